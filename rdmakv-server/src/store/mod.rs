//! The cache itself, without sockets, clocks or threads: time comes in as an argument (Unix seconds).
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! A [`Store`] is one shard and belongs to whoever has `&mut`; a server puts each behind a lock. Operations on a key
//! happen under that lock, so they are linearizable. Two things may leave it: a [`Filling`] (a chunk that is not
//! published yet, for its one owner to write) and a [`Held`] (a published chunk that stays as it is until it is
//! released, for as many readers as like). Neither is ever reused early: chunks are freed in one place only,
//! `retire`, which waits for the last holder.
//!
//! ```
//! use rdmakv_server::store::{Config, Outcome, Store, Terms};
//!
//! let mut store = Store::new(&Config::default())?;
//! let mut chunk = store.reserve(b"key", 5, 0, 0, 1000).unwrap();
//! chunk.value().copy_from_slice(b"value");
//! assert!(matches!(store.publish(chunk, Terms::default(), 1000), Outcome::Stored(_)));
//! assert_eq!(store.get(b"key", true, 1000).unwrap().value, b"value");
//! # Ok::<(), std::io::Error>(())
//! ```

mod arena;
mod arithmetic;
mod balance;
mod chunk;
mod classes;
mod config;
mod counters;
mod crawl;
mod end;
mod evict;
mod exposure;
mod find;
mod ghosts;
mod index;
mod leases;
#[cfg(test)]
mod leases_model;
#[cfg(test)]
mod leases_tests;
mod lend;
mod listed;
mod moves;
mod pages;
#[cfg(rdmakv_sabotage)]
mod planted;
mod put;
mod queues;
mod report;
mod restless;
mod terms;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use foldhash::quality::FixedState;

use arena::Arena;
use exposure::Exposures;
use ghosts::Ghosts;
use index::Index;
use leases::{AT_A_TICK, Leases, nanos};
use pages::Pages;
use queues::Queues;

pub use crate::item::{HEADER, KEY_MAX, MAGIC};
pub use arena::{Backing, Memory};
pub use arithmetic::Sum;
pub use config::Config;
pub use counters::{ClassCounters, Counters};
pub use exposure::{Exposure, Extent, Replacement};
pub use find::Found;
pub use leases::{LONGEST, NoLease, lasting};
pub use lend::{Filling, Handle, Held, View};
pub use listed::GetTable;
pub use moves::NoMove;
pub use report::{ClassReport, Entry, Place, Report};
pub use terms::{Deleted, Keep, Mode, Outcome, Refused, Terms};

/// Learns which items leave for memory. It is called under the store's lock and must not call the store.
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// This item leaves.
    fn evicted(&self, item: &View<'_>, now: u64);
}

/// One shard of the cache.
#[derive(Debug)]
pub struct Store {
    arena: Arc<Arena>,
    sizes: Vec<usize>,
    pages: Pages,
    index: Index,
    queues: Vec<Queues>,
    ghosts: Ghosts,
    hasher: FixedState,
    incarnation: u32,
    item_max: usize,
    may_evict: bool,
    version: u64,
    /// Items up to this version are gone.
    flushed: u64,
    flush_at: Option<u64>,
    /// Whether a client ever chose a version.
    chosen: bool,
    crawler: crawl::Cursor,
    balance: balance::Balance,
    leases: Leases,
    exposures: Exposures,
    listing: Option<listed::Listing>,
    classes: Vec<ClassCounters>,
    counters: Counters,
    observer: Option<Arc<dyn Observer>>,
}

impl Store {
    /// An empty store.
    ///
    /// # Errors
    ///
    /// Those of the mapping: no memory, no address space.
    pub fn new(config: &Config) -> io::Result<Self> {
        Self::build(config, None::<fn(usize) -> io::Result<Memory>>)
    }

    /// An empty store in memory that was made elsewhere: `make` is told how many bytes it takes.
    ///
    /// # Errors
    ///
    /// Those of `make`; or the memory is too short.
    pub fn with_memory(config: &Config, make: impl FnOnce(usize) -> io::Result<Memory>) -> io::Result<Self> {
        Self::build(config, Some(make))
    }

    fn build(config: &Config, make: Option<impl FnOnce(usize) -> io::Result<Memory>>) -> io::Result<Self> {
        let page = config.item_max.next_multiple_of(4096).clamp(1 << 20, 1 << 30);
        let count = (config.memory / page).max(2);
        let sizes = classes::sizes(page, config.least, config.factor);
        let extra = (config.extra / page).min(sizes.len());
        let most = (config.memory_max / page).max(count) + extra;
        if most * page / 8 >= u32::MAX as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a store holds less than 32 GiB: use more of them",
            ));
        }
        // Huge pages are no one else's from then on, so there are only as many as the items may take now.
        let now = count + extra;
        let (arena, most) = match make {
            Some(make) => (Arena::given(make(most * page)?, most * page)?, most),
            None => match config.huge.then(|| Arena::huge(now * page)).flatten() {
                Some(arena) => (arena, now),
                None => (Arena::new(most * page)?, most),
            },
        };
        let arena = Arc::new(arena);
        let mut pages = Pages::new(page, most, &sizes);
        pages.set_limit(count);
        pages.set_extra(extra);
        Ok(Self {
            index: Index::new(config.hashpower),
            queues: vec![Queues::new(); sizes.len()],
            ghosts: Ghosts::new(sizes.len()),
            hasher: FixedState::with_seed(config.seed),
            incarnation: config.incarnation,
            item_max: config.item_max.min(page),
            may_evict: config.evict,
            version: 0,
            flushed: 0,
            flush_at: None,
            chosen: false,
            crawler: crawl::Cursor::default(),
            balance: balance::Balance::new(sizes.len()),
            leases: Leases::new(sizes.len(), config.lease),
            exposures: Exposures::default(),
            listing: None,
            classes: vec![ClassCounters::default(); sizes.len()],
            counters: Counters::default(),
            observer: None,
            arena,
            sizes,
            pages,
        })
    }

    /// What stands behind the memory.
    pub fn backing(&self) -> Backing {
        self.arena.backing()
    }

    /// Items at present, those that have expired unseen included.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Once a second: leases that have ended, a flush that is due, and a page to where it is needed more.
    pub fn tick(&mut self, now: u64) {
        #[cfg(rdmakv_sabotage)]
        self.bury(u32::MAX);
        self.sweep(nanos(now), AT_A_TICK);
        self.flush_if_due(now);
        self.shrink(now);
        self.rebalance(now);
    }

    /// Sets another bound on the memory, at most [`Store::most_memory`]. Pages above it go at the next ticks.
    pub fn set_limit(&mut self, memory: usize) {
        self.pages.set_limit((memory / self.pages.page_size()).max(2));
    }

    /// Returns the bytes that the address space has room for.
    pub fn most_memory(&self) -> usize {
        self.pages.count() * self.pages.page_size()
    }

    /// From now on this one learns what leaves.
    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Counters back to zero.
    pub fn reset_counters(&mut self) {
        for class in &mut self.classes {
            *class = ClassCounters { requested: class.requested, ..ClassCounters::default() };
        }
        self.counters = Counters::default();
    }
}
