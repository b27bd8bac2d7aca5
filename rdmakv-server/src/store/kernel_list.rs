//! A store's items in the table of the [kernel's program](super::KernelTable).

use std::sync::Arc;

use super::chunk::{Chunk, Id, LISTED, STALE};
use super::kernel::KernelTable;
use super::slabs::Slabs;
use rdmakv_proto::commands::udp;

/// The bytes of a long answer besides key and value, with flags of one digit.
const LEAST_LINE: usize = "VALUE  0 0000\r\n\r\nEND\r\n".len();

/// A store's part of the table.
#[derive(Debug)]
pub(super) struct KernelList {
    table: Arc<dyn KernelTable>,
    /// The begin of the store's memory.
    base: u64,
    shard: usize,
}

impl KernelList {
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
