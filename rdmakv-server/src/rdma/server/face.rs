//! What all connections of a fabric share: its domain and cache, its terms, its counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use frrwp::fabric::{Domain, Endpoint};
use frrwp::wire::Segment;
use mrrc::invalidation::Explicit;
use mrrc::policy::PolicyKind;
use mrrc::{Access, Cache, Lease, PAGE};

use super::arenas::Arenas;
use super::budget::Budget;
use super::counts::{FabricCounts, FabricGauges, Reported};
use super::origin::Origin;
use super::pinned::{Pinned, Pins};
use super::reaper::Bell;
use super::shared::SharedTags;
use super::tags::{self, Granted, Limits};
use crate::session::Shared;

/// The memory that a fabric has registered, as a cache holds it.
pub(super) type Leased<F> = Lease<Pinned<<F as Fabric>::Provider>>;

/// A fabric that clients come over. What its tags are made of is said by [`tags::Fabric`].
pub(super) trait Fabric:
    tags::Fabric<Registration: Send, Record: Send, Tag: Send> + Send + Sync + Sized + 'static
{
    /// Its name in addresses.
    const NAME: &'static str;
    /// The rights that chunks are registered with before a client gets a tag.
    const RIGHTS: Access;
    /// Registrations at most that a chunk may be in, where a tag is the key of one.
    const SEGMENTS: Option<usize> = None;
    /// What registers memory for it.
    type Provider: Domain;
    /// One end of a connection.
    type Endpoint: Endpoint<Domain = Self::Provider> + Origin + Send;
    /// What makes tags for one connection.
    type Own;

    /// What registers memory for it.
    fn provider(&self) -> Self::Provider;
    /// What makes tags for this connection.
    fn own(endpoint: &Self::Endpoint) -> Self::Own;
    /// What keeps a chunk registered, from what the cache has leased of it.
    ///
    /// # Errors
    ///
    /// Why it cannot be opened to clients.
    fn registration(&self, leased: Leased<Self>) -> io::Result<Self::Registration>;
    /// What the tags of one chunk share.
    fn record(&self) -> Self::Record;
    /// A connection's tag of a record, whose chunk is registered so and begins at this address, if there are more.
    fn tag(
        &self,
        own: &Self::Own,
        record: &Self::Record,
        registration: &Self::Registration,
        address: u64,
        bound: u64,
    ) -> Option<Self::Tag>;
    /// What the client is told.
    fn segment(&self, cache: &Cache<Pinned<Self::Provider>>, granted: &Granted<'_, Self>, address: u64) -> Segment;
    /// The chunk's address, from the one that clients know it by.
    fn address(&self, told: u64) -> Option<u64>;
    /// Something of it is over. It may still be needed for a while; whoever drops it may wait.
    fn over(&self, registration: Self::Registration);
    /// Drops what was over for long enough; says whether nothing is left of it.
    fn bury(&self) -> bool {
        true
    }
}

/// Where clients come in.
pub(super) trait Door<F: Fabric>: Send + 'static {
    /// The next client, if one comes within the time.
    ///
    /// # Errors
    ///
    /// Why one that came was not let in, or why nobody can come now.
    fn accept(&mut self, receives: u16, within: Duration) -> Result<Option<F::Endpoint>, String>;

    /// Clients that did not come to stand, and that no error told of.
    fn refused(&self) -> u64 {
        0
    }
}

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
    /// Connections at present.
    pub(super) connections: AtomicU64,
    /// Registered memory that transfers may use.
    pub(super) under_way: Arc<Budget>,
    /// And one client's bytes of it, if it is more than one item.
    pub(super) share: u64,
    /// Where the stores' memory is.
    pub(super) arenas: Arc<Arenas>,
    /// Who has which tag.
    pub(super) tags: SharedTags<F>,
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
        Ok(Self {
            fabric,
            shared,
            cache,
            terms,
            counts: FabricCounts::default(),
            connections: AtomicU64::new(0),
            under_way: Budget::new(pages - pages / 2),
            share: pages / 8 * PAGE,
            tags: SharedTags::new(Limits::of(pages, terms.lease, F::REBINDS)),
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

    fn gauges(&self) -> FabricGauges {
        let usage = self.cache.usage();
        let tags = self.tags().counts();
        FabricGauges {
            connections: self.connections.load(Relaxed),
            swaps: tags.followed,
            leased_chunks: tags.pins as u64,
            leased_pages: tags.pages,
            registered_bytes: usage.pages * PAGE,
            registered_limit_bytes: usage.capacity_pages * PAGE,
        }
    }

    fn end(&self) {
        self.bell.end();
    }
}
