//! The cache itself, without sockets, clocks or threads: time comes in as an argument (Unix seconds).
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! A [`Store`] is one shard and belongs to the holder of `&mut`; a server puts each behind a lock. Operations on a
//! key happen under that lock, so they are linearizable. Two things may leave it: a [`ChunkWriter`] (a chunk that is
//! not published yet, for its one owner to write) and a [`ChunkRef`] (a published chunk that stays as it is until it
//! is released, for as many readers as like). Neither is ever reused early: chunks become free in one place only
//! (`slabs/`), when nothing holds them.
//!
//! Each part owns its fields, and its words of the headers of items (`chunk.rs`). A part that reads or writes headers is
//! lent the slabs, and none knows another.
//!
//! | part        | file          | owns                                                             |
//! |-------------|---------------|------------------------------------------------------------------|
//! | Slabs       | `slabs/`      | the arena, its pages and classes; walks over all chunks          |
//! | ItemIndex   | `index.rs`    | the table from keys to chunks                                    |
//! | Eviction    | `eviction/`   | queues of items, ghosts, which class gives up a page             |
//! | Leases      | `leases/`     | until when clients may read without asking; fabrics that are told |
//! | Versions    | `versions.rs` | versions, incarnation, flushes                                   |
//! | TableWriter | `table.rs`    | the store's entries in the GET table, or in that of the kernel (`kernel_list.rs`) |
//!
//! What takes several parts is an operation of the store: `find.rs`, `put.rs`, `end.rs`, `evict.rs`, `moves.rs`, `walk.rs`. `flash.rs`
//! is for the second tier, `warm.rs` for the next run, and `one_sided.rs` for fabrics. One order is kept wherever an item ends: it is dead and its entry taken out, then leases
//! and tags learn of it, then the index changes, then its chunk is retired; and only then its successor is alive and listed.
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
mod chunk;
mod config;
mod counters;
mod end;
mod evict;
mod eviction;
#[cfg(rdmakv_fault_injection)]
mod faults;
mod find;
mod flash;
#[cfg(test)]
mod flash_tests;
mod index;
mod kernel;
mod kernel_list;
#[cfg(test)]
mod kernel_tests;
mod leases;
#[cfg(test)]
mod leases_model;
#[cfg(test)]
mod leases_tests;
mod moves;
mod one_sided;
mod put;
mod replicas;
mod report;
mod slabs;
mod table;
mod terms;
#[cfg(test)]
mod tests;
mod versions;
mod walk;
mod warm;

use std::io;
use std::sync::Arc;

use counters::Counts;
use eviction::Eviction;
use index::ItemIndex;
use leases::{AT_A_TICK, Leases, nanos};
use slabs::{Pages, Slabs};
use table::TableWriter;
use versions::Versions;

/// Pages that give way at a tick.
const SHRINKS: usize = 8;

pub use crate::metrics::{ClassCounters, Counters};
pub use arena::{Backing, Memory};
pub use arithmetic::{Sum, number};
pub use config::Config;
pub use find::{Found, Glance, Handle, View};
pub use flash::{Kept, Load, Recall, Waiter};
pub use kernel::KernelTable;
pub use leases::{Exposure, NoLease, Replacement};
pub use moves::NoMove;
pub use rdmakv_proto::commands::Mode;
pub use rdmakv_proto::item::{HEADER, KEY_MAX, MAGIC};
pub use rdmakv_proto::lease::{LONGEST, lasting};
pub use replicas::{Pieces, Reserve, Reserved};
pub use report::{ClassReport, Report};
pub use slabs::{ChunkRef, ChunkWriter, EmptyPage, Extent, Place};
pub use table::GetTable;
pub use terms::{Deleted, Keep, Outcome, Refused, Terms};
pub use walk::{Entry, Walk};
pub use warm::{Continuation, DamagedImage, ImagePlace};

/// Learns which items leave for memory. It is called under the store's lock and must not call the store.
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// This item leaves.
    fn evicted(&self, item: &View<'_>, now: u64);
}

/// One shard of the cache.
#[derive(Debug)]
pub struct Store {
    slabs: Slabs,
    index: ItemIndex,
    eviction: Eviction,
    leases: Leases,
    versions: Versions,
    table: TableWriter,
    counts: Counts,
    may_evict: bool,
    observer: Option<Arc<dyn Observer>>,
    /// Bytes that it may use in all.
    memory: usize,
    seed: u64,
    tier: Option<Box<flash::Tier>>,
    #[cfg(rdmakv_fault_injection)]
    undone: faults::Undone,
}

impl Store {
    /// Makes an empty store.
    ///
    /// # Errors
    ///
    /// Those of the mapping: no memory, no address space.
    pub fn new(config: &Config) -> io::Result<Self> {
        Self::build(config, None::<fn(usize) -> io::Result<Memory>>)
    }

    /// Makes an empty store in memory that was made elsewhere: `make` is told how many bytes it takes.
    ///
    /// # Errors
    ///
    /// Those of `make`; or the memory is too short.
    pub fn with_memory(config: &Config, make: impl FnOnce(usize) -> io::Result<Memory>) -> io::Result<Self> {
        Self::build(config, Some(make))
    }

    fn build(config: &Config, make: Option<impl FnOnce(usize) -> io::Result<Memory>>) -> io::Result<Self> {
        let slabs = Slabs::new(config, make)?;
        let classes = slabs.sizes().len();
        Ok(Self {
            index: ItemIndex::new(config.hashpower, config.seed),
            eviction: Eviction::new(classes),
            leases: Leases::new(classes, config.lease),
            versions: Versions::new(config.incarnation),
            table: TableWriter::default(),
            counts: Counts::new(classes),
            may_evict: config.evict,
            observer: None,
            memory: config.memory,
            seed: config.seed,
            tier: None,
            #[cfg(rdmakv_fault_injection)]
            undone: Default::default(),
            slabs,
        })
    }

    /// Returns the bytes of a page, and those of the memory that a store of this configuration takes.
    pub fn layout(config: &Config) -> (usize, usize) {
        let pages = Pages::of(config);
        (pages.page, pages.page * pages.most)
    }

    /// Returns what stands behind the memory.
    pub fn backing(&self) -> Backing {
        self.slabs.backing()
    }

    /// Returns how many items there are, those that have expired unseen included.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Once a second: ends leases whose time is over, begins a flush that is due, and moves a page to where it is needed more.
    pub fn tick(&mut self, now: u64) {
        #[cfg(rdmakv_fault_injection)]
        self.bury(u32::MAX);
        self.sweep(nanos(now), AT_A_TICK);
        self.flush_if_due(now);
        self.limit_stubs();
        self.make_room_for_stubs();
        self.shrink(SHRINKS, now);
        if let Some(page) = self.eviction.rebalance(&self.slabs, &self.counts, now) {
            self.drain(page, now);
        }
    }

    /// Sets another bound on the memory, at most [`Store::most_memory`]. Pages above it go at the next ticks.
    pub fn set_limit(&mut self, memory: usize) {
        self.memory = memory;
        self.slabs.set_limit(memory);
        self.limit_stubs();
        self.make_room_for_stubs();
    }

    /// Returns the bytes that the address space has room for.
    pub fn most_memory(&self) -> usize {
        self.slabs.most_memory()
    }

    /// Sets whether pages move by themselves.
    pub fn set_automove(&mut self, automatic: bool) {
        self.eviction.set_automove(automatic);
    }

    /// Tells this one what leaves from now on.
    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Sets all counters back to zero.
    pub fn reset_counters(&mut self) {
        self.counts = Counts::new(self.slabs.sizes().len());
    }
}
