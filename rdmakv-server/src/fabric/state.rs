//! The common state of a fabric's connections: the cache over its domain, its terms, its tags, its counts.
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mrrc::invalidation::Explicit;
use mrrc::policy::PolicyKind;
use mrrc::{Cache, PAGE};

use super::arenas::Arenas;
use super::bell::Bell;
use super::budget::{Budget, pages_of};
use super::far::{Closes, Far, FarTags, Part};
use super::hybrid::Hybrid;
use super::pinned::{Pinned, Pins};
use super::providers::Fabric;
use super::tags::{Limits, Tags};
use crate::metrics::Latencies;
use crate::metrics::{FabricCounts, FabricGauges, Reported};
use crate::session::Shared;

/// The terms for clients, and the limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Which incarnation of the server this is.
    pub(super) incarnation: u32,
    /// How long a tag may be read by.
    pub(super) lease: Duration,
    /// Bytes of a value that travels in a message at most.
    pub(super) eager: usize,
    /// Longer values may go by transfers.
    pub(super) transfers_from: usize,
    /// Bytes that may be registered with this fabric.
    pub(super) registered: u64,
    /// Bytes of them that are for far memory.
    pub(super) far: u64,
    /// The eviction policy when they are full.
    pub(super) policy: PolicyKind,
}

/// A fabric's side of the server.
pub(super) struct FabricState<F: Fabric> {
    pub(super) fabric: F,
    pub(super) shared: Arc<Shared>,
    pub(super) cache: Cache<Pinned<F::Provider>>,
    pub(super) terms: Terms,
    pub(super) counts: FabricCounts,
    /// The latencies of its connections.
    pub(super) latencies: Latencies,
    /// Connections at present.
    pub(super) connections: AtomicU64,
    /// Registered memory that transfers may use.
    pub(super) under_way: Arc<Budget>,
    /// And one client's bytes of it, if it is more than one item.
    pub(super) share: u64,
    /// The stores' memory.
    pub(super) arenas: Arc<Arenas>,
    /// The tags and their clients.
    tags: Mutex<Tags<F>>,
    /// Wakes the thread that looks after ended leases.
    pub(super) bell: Bell,
    /// The server's far memory, if it offers some.
    pub(super) far: Option<Arc<Far>>,
    /// Which clients get connections, where these are for the busiest.
    pub(super) hybrid: Option<Arc<Hybrid>>,
    /// The tags of its regions over this fabric.
    pub(super) far_tags: FarTags<F::FarTag>,
}

impl<F: Fabric> FabricState<F> {
    /// No client has come yet.
    ///
    /// # Errors
    ///
    /// The cache's error for the terms.
    pub(super) fn new(
        fabric: F,
        shared: Arc<Shared>,
        arenas: Arc<Arenas>,
        terms: Terms,
        pins: Option<Pins>,
        far: Option<Arc<Far>>,
        hybrid: Option<Arc<Hybrid>>,
    ) -> io::Result<Self> {
        let pinned = pins.is_some() || F::PINS;
        // Nothing is registered but the stores' memory, which is never unmapped: no monitor is needed.
        let cache = Cache::builder(Pinned::new(fabric.provider(), pins))
            .capacity_bytes(terms.registered)
            .policy(terms.policy)
            .monitor(Explicit)
            .ignore_environment();
        let cache = match F::SEGMENTS {
            Some(most) => cache.max_segments(most),
            None => cache,
        };
        let cache = cache.build().map_err(io::Error::other)?;
        // Regions of far memory have room of their own: items never wait for them.
        let pages = cache.usage().capacity_pages.saturating_sub(terms.far / PAGE);
        // Room for two of the largest items, or an eighth: what is leased cannot make room for what is new.
        let reserve = (pages / 8).max(2 * pages_of(shared.settings.item_max as u64)).min(pages / 2);
        let limits = Limits::of(pages, pinned, reserve, terms.lease, F::REBINDS);
        Ok(Self {
            fabric,
            shared,
            cache,
            terms,
            counts: FabricCounts::default(),
            latencies: Latencies::default(),
            connections: AtomicU64::new(0),
            under_way: Budget::new(pages - limits.pages),
            share: pages / 8 * PAGE,
            tags: Mutex::new(Tags::new(limits)),
            arenas,
            bell: Bell::default(),
            far,
            hybrid,
            far_tags: FarTags::default(),
        })
    }

    /// Returns the tags and their clients. The holder of this lock asks no store for anything: a store's lock is
    /// taken before this one.
    pub(super) fn tags(&self) -> MutexGuard<'_, Tags<F>> {
        // A panic in the table is a bug; going on with what is there serves more than ending every connection would.
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes tags of regions, by connection and place. Returns whether none of these is left.
    pub(super) fn close_far(&self, names: impl Fn(u64, u32) -> bool) -> bool {
        self.far_tags.close(names, |tag| self.fabric.close_far(tag))
    }
}

impl<F: Fabric> Closes for FabricState<F> {
    fn close_place(&self, place: u32, part: &Part) -> bool {
        let is_closed = self.close_far(|_, of| of == place);
        // The cache keeps regions that are in no lease; this one is unmapped next.
        if is_closed && self.cache.invalidate(part.address(), part.bytes()).is_ok() {
            let _ = self.cache.reap();
        }
        is_closed
    }

    fn close_connection(&self, connection: u64) -> bool {
        self.close_far(|of, _| of == connection)
    }
}

impl<F: Fabric> std::fmt::Debug for FabricState<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FabricState").field("fabric", &F::NAME).field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl<F: Fabric> Reported for FabricState<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn counts(&self) -> &FabricCounts {
        &self.counts
    }

    fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    fn gauges(&self) -> FabricGauges {
        let usage = self.cache.usage();
        let tags = self.tags().counts();
        let (tag_guesses, tag_throttles) = self.fabric.tag_guesses();
        FabricGauges {
            connections: self.connections.load(Relaxed),
            swaps: tags.followed,
            leased_chunks: tags.pins as u64,
            leased_pages: tags.pages,
            registered_bytes: usage.pages * PAGE,
            registered_limit_bytes: usage.capacity_pages * PAGE,
            tag_guesses,
            tag_throttles,
        }
    }

    fn end(&self) {
        self.bell.end();
    }
}
