//! The store's interface to the program that answers GETs in the kernel.
//!
//! The program finds items by a table of places, and believes an item only if it was the key's value all the while. The store
//! tells the table of every item that the program may answer ([`TableWriter`](super::table)), and the rest of what the program
//! compares: flushes, and pages that leave their class.
//!
//! Under the shard's lock. An item is entered once it is alive. Its entry goes once it is dead, and before its chunk is free.

use std::fmt::Debug;
use std::sync::Arc;

use super::chunk::{Chunk, Id, LISTED, STALE};
use super::slabs::Slabs;
use rdmakv_proto::commands::udp;

/// What the kernel's program knows of all stores. A place is where an item begins: bytes from the begin of the first store's memory.
pub trait KernelTable: Debug + Send + Sync {
    /// Enters an item that is not there yet.
    fn enter(&self, key: &[u8], place: u64);
    /// Returns whether an item is there still. Others displace it.
    fn has(&self, key: &[u8], place: u64) -> bool;
    /// Removes an item, if it is there; returns the hits that the program saw. When this returns, no reader begins with it.
    fn remove(&self, key: &[u8], place: u64) -> u32;
    /// Returns the hits that the program saw since the last time.
    fn take_hits(&self, key: &[u8], place: u64) -> u32;
    /// A page left its class, and no item of it is in the table. What is written to it afterwards, no reader believes that began before.
    fn page_left(&self);
    /// Items of this shard up to this version are gone. No flush is due any more.
    fn flushed(&self, shard: usize, version: u64);
    /// Items of this shard will be gone from this time on, in Unix seconds.
    fn flush_at(&self, shard: usize, at: u64);
}

/// The bytes of a long answer besides key and value, with flags of one digit.
const LEAST_LINE: usize = "VALUE  0 0000\r\n\r\nEND\r\n".len();

/// A store's part of the table.
#[derive(Debug)]
pub(super) struct Kernel {
    table: Arc<dyn KernelTable>,
    /// Where the store's memory begins.
    base: u64,
    shard: usize,
}

impl Kernel {
    pub(super) fn new(table: Arc<dyn KernelTable>, base: u64, shard: usize) -> Self {
        Self { table, base, shard }
    }

    fn place(&self, id: Id) -> u64 {
        self.base + id.at() as u64
    }

    /// Returns whether the program may answer an item.
    fn may_answer(chunk: Chunk<'_>) -> bool {
        let fits = LEAST_LINE + chunk.key_len() + chunk.value_len() <= udp::DATAGRAM - udp::HEADER;
        fits && !chunk.marked(STALE)
    }

    /// Enters an item that is alive, if the program may answer it and it is not there; returns whether it is there now.
    pub(super) fn list(&self, slabs: &Slabs, id: Id) -> bool {
        let (chunk, place) = (slabs.chunk(id), self.place(id));
        if !Self::may_answer(chunk) {
            return false;
        }
        if !chunk.marked(LISTED) {
            chunk.mark(LISTED);
            self.table.enter(chunk.key(), place);
        } else if !self.table.has(chunk.key(), place) {
            self.table.enter(chunk.key(), place);
        }
        true
    }

    /// Removes an item that was entered once; returns the hits that the program saw.
    pub(super) fn unlist(&self, slabs: &Slabs, id: Id) -> u32 {
        self.table.remove(slabs.chunk(id).key(), self.place(id))
    }

    /// Returns the hits of an item that was entered once.
    pub(super) fn hits(&self, slabs: &Slabs, id: Id) -> u32 {
        self.table.take_hits(slabs.chunk(id).key(), self.place(id))
    }

    pub(super) fn flushed(&self, version: u64) {
        self.table.flushed(self.shard, version);
    }
    pub(super) fn flush_at(&self, at: u64) {
        self.table.flush_at(self.shard, at);
    }
}
