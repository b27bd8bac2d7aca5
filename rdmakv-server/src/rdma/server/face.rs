//! What all connections of a fabric share: the cache over its domain, its terms, its tags, its counts.
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mrrc::invalidation::Explicit;
use mrrc::policy::PolicyKind;
use mrrc::{Cache, PAGE};

use super::arenas::Arenas;
use super::budget::{Budget, pages_of};
use super::counts::{FabricCounts, FabricGauges, Reported};
use super::fabrics::Fabric;
use super::pinned::{Pinned, Pins};
use super::reaper::Bell;
use super::tags::{Limits, Tags};
use crate::session::{Latencies, Shared};

/// What clients are told, and how much there may be of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Which life of the server this is.
    pub(super) incarnation: u32,
    /// How long a tag may be read by.
    pub(super) lease: Duration,
    /// Bytes of a value that travels in a message at most.
    pub(super) eager: usize,
    /// Bytes that may be registered with this fabric.
    pub(super) registered: u64,
    /// Who leaves when they are full.
    pub(super) policy: PolicyKind,
}

/// A fabric's side of the server.
pub(super) struct Face<F: Fabric> {
    pub(super) fabric: F,
    pub(super) shared: Arc<Shared>,
    pub(super) cache: Cache<Pinned<F::Provider>>,
    pub(super) terms: Terms,
    pub(super) counts: FabricCounts,
    /// What its connections measured.
    pub(super) latencies: Latencies,
    /// Connections at present.
    pub(super) connections: AtomicU64,
    /// Registered memory that transfers may use.
    pub(super) under_way: Arc<Budget>,
    /// And one client's bytes of it, if it is more than one item.
    pub(super) share: u64,
    /// Where the stores' memory is.
    pub(super) arenas: Arc<Arenas>,
    /// Who has which tag.
    pub(super) tags: Mutex<Tags<F>>,
    /// Wakes who looks after what is over.
    pub(super) bell: Bell,
}

impl<F: Fabric> Face<F> {
    /// Nobody has come yet.
    ///
    /// # Errors
    ///
    /// What the cache says of the terms.
    pub(super) fn new(
        fabric: F,
        shared: Arc<Shared>,
        arenas: Arc<Arenas>,
        terms: Terms,
        pins: Option<Pins>,
    ) -> io::Result<Self> {
        let pinned = pins.is_some() || F::PINS;
        // Nothing is registered but the stores' memory, which is never unmapped: nobody needs to look out for that.
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
        let pages = cache.usage().capacity_pages;
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
        })
    }
}

impl<F: Fabric> std::fmt::Debug for Face<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Face").field("fabric", &F::NAME).field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl<F: Fabric> Reported for Face<F> {
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
