//! The fabrics' interface to the store, for clients that read without asking: leases, entries of the GET table, places in
//! memory.

use std::sync::Arc;

use rdmakv_proto::item::{State, sum_of};

use super::chunk::{Id, LEASED};
use super::eviction::{self, MOST_FREQUENT};
use super::kernel::KernelTable;
use super::kernel_list::KernelList;
use super::leases::{AT_A_GRANT, Exposure, NoLease};
use super::{ChunkRef, ChunkWriter, Extent, GetTable, Handle, Store};

impl Store {
    /// Tells this fabric from now on what becomes of the chunks that it exposed.
    pub fn attach(&mut self, exposure: Box<dyn Exposure>) {
        self.leases.attach(exposure);
    }

    /// Returns where the arena begins, and its bytes.
    pub fn arena(&self) -> (*mut u8, usize) {
        self.slabs.memory()
    }

    /// Returns where the item just looked at lies.
    pub fn extent(&self, handle: Handle) -> Extent {
        self.slabs.extent(handle.0)
    }

    /// Appends the whole item as one-sided readers find it: header, key, value.
    pub fn image(&self, handle: Handle, out: &mut Vec<u8>) {
        self.slabs.chunk(handle.0).image(out);
    }

    /// Leases an item just looked at, from now on; returns until when. `now` is in nanoseconds.
    ///
    /// # Errors
    ///
    /// See [`NoLease`].
    pub fn lease(&mut self, handle: Handle, now: u64) -> Result<u64, NoLease> {
        self.lease_chunk(handle.0, now)
    }

    /// As [`lease`](Self::lease), for a chunk that was held while its memory was registered and that may have died
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// See [`NoLease`].
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn expose(&mut self, held: &ChunkRef, now: u64) -> Result<u64, NoLease> {
        self.lease_chunk(self.slabs.lent(held), now)
    }

    fn lease_chunk(&mut self, id: Id, now: u64) -> Result<u64, NoLease> {
        let seconds = now / 1_000_000_000;
        self.flush_if_due(seconds);
        self.leases.learn_time(now);
        let chunk = self.slabs.chunk(id);
        let is_there = match chunk.state() {
            // A held piece is no answer of its own: it is a part of the one that the primary gives.
            State::Primary | State::Held => chunk.expiry() == 0 || chunk.expiry() > seconds,
            _ => self.is_alive(id) && !self.is_over(id, seconds),
        };
        if !is_there {
            return Err(NoLease::Gone);
        }
        let granted = self.leases.grant(&mut self.slabs, id, |slabs| self.index.hash_of(slabs, id), now);
        match granted {
            Ok(_) => {
                self.counts.whole.leases += 1;
                self.sweep(now, AT_A_GRANT);
            }
            Err(NoLease::Churn) => self.counts.whole.leases_refused += 1,
            Err(_) => {}
        }
        granted
    }

    /// Ends the leases after their time, at most so many; returns how many were. `now` is in nanoseconds.
    pub fn sweep(&mut self, now: u64, most: usize) -> usize {
        #[cfg(rdmakv_fault_injection)]
        self.tell_early(now);
        let ended = self.leases.expire(&mut self.slabs, now, most);
        #[cfg(rdmakv_fault_injection)]
        self.undone.forget_freed(&self.leases);
        ended
    }

    /// Ends one-sided reading: every item that is leased is dead when this returns, none is listed, and no other will be leased or
    /// listed. `now` is in seconds.
    pub fn close(&mut self, now: u64) {
        self.leases.close();
        self.table.close();
        self.end_leased(now, |_, _| true);
        for id in self.leases.chunks() {
            if self.slabs.chunk(id).state() == State::Primary {
                self.slabs.cover(id);
            }
        }
    }

    /// Returns a value just looked at: its bytes, and those with the header.
    pub fn size(&self, handle: Handle) -> (usize, usize) {
        let chunk = self.slabs.chunk(handle.0);
        (chunk.value_len(), chunk.size())
    }

    /// Shows a piece to those that read it without asking. The sum is that of the value that it is a part of.
    pub(super) fn show_piece(&mut self, piece: &ChunkWriter, version: u64, sum: u32) {
        self.hold_piece(piece, version, sum);
        self.slabs.show(piece.id());
    }

    /// Lets a piece be read without asking, by those that know from elsewhere that its version is the key's. One that is shown stays so.
    pub(super) fn hold_piece(&mut self, piece: &ChunkWriter, version: u64, sum: u32) {
        let chunk = piece.chunk();
        if chunk.state() == State::Unpublished {
            self.versions.take_over(chunk, version);
            chunk.set_crc(sum_of(version, chunk.flags(), chunk.key(), (chunk.value_len(), sum)));
            self.slabs.cover(piece.id());
        }
    }

    /// Makes a piece that was shown no answer.
    pub(super) fn cover_piece(&mut self, piece: &ChunkWriter) {
        self.slabs.cover(piece.id());
    }

    /// Ends a piece: the chunk of one that was shown is free after its last holder and lease.
    pub(super) fn end_piece(&mut self, piece: ChunkWriter, now: u64) {
        if piece.chunk().state() == State::Unpublished {
            return self.abandon(piece);
        }
        let id = self.slabs.take(&piece);
        self.slabs.kill(id);
        let chunk = self.slabs.chunk(id);
        if chunk.marked(LEASED) {
            self.leases.died(self.index.hash(chunk.key()), chunk.version(), now);
        }
        self.retire(id);
    }

    /// Counts one-sided reads of the item whose chunk begins at this address: as if it had been asked for so often. Returns whether
    /// there is such an item.
    pub fn seen(&mut self, address: u64, reads: u64, now: u64) -> bool {
        let there = self.slabs.chunk_at(address).filter(|&id| self.is_alive(id) && !self.is_over(id, now));
        let Some(chunk) = there.map(|id| self.slabs.chunk(id)) else { return false };
        for _ in 0..reads.min(u64::from(MOST_FREQUENT)) {
            eviction::touch(chunk, now);
        }
        let hits = &mut self.counts.classes[chunk.class()].get_hits;
        *hits = hits.saturating_add(reads);
        self.counts.whole.one_sided = self.counts.whole.one_sided.saturating_add(reads);
        true
    }

    /// Makes zeros of what is between the item's end and this many bytes from its chunk's begin, before a client may read so far.
    ///
    /// Nothing of the item changes, and no reader looks at these bytes for more than their number.
    pub fn clear_tail(&mut self, held: &ChunkRef, until: u64) {
        self.slabs.clear_tail(self.slabs.extent(self.slabs.lent(held)), until);
    }

    /// Lists items in this table from now on. The store's memory begins at this place, in bytes.
    pub fn list_in(&mut self, table: Arc<GetTable>, base: u64) {
        self.table.attach(table, base);
    }

    /// Lists all items for the kernel's program from now on. The store is this shard, and its memory begins at this place, in bytes.
    ///
    /// # Panics
    ///
    /// If the store is not empty.
    pub fn list_in_kernel(&mut self, table: Arc<dyn KernelTable>, base: u64, shard: usize) {
        assert!(self.is_empty(), "items that are there already would not be listed");
        self.slabs.report_to(table.clone());
        self.table.attach_kernel(KernelList::new(table, base, shard));
    }

    /// Returns whether items are listed for the kernel's program.
    #[inline]
    pub fn is_listed_in_kernel(&self) -> bool {
        self.table.lists_all()
    }

    /// Before the uses of this key's item are looked at: counts those that the kernel's program saw.
    #[inline]
    pub fn learn_hits(&mut self, key: &[u8], now: u64) {
        if self.table.lists_all()
            && let Some(id) = self.index.find(&self.slabs, self.index.hash(key), key)
        {
            self.learn_hits_of(id, now);
        }
    }

    /// Lists the key's item again, if there is one that others displaced in the kernel's table.
    pub fn list_again(&mut self, key: &[u8], now: u64) {
        if self.table.lists_all()
            && let Some(id) = self.index.find(&self.slabs, self.index.hash(key), key)
            && !self.is_over(id, now)
        {
            self.table.list(&self.slabs, id);
        }
    }

    /// Lists an item just looked at, unless it is listed; returns whether it is now.
    pub fn list(&mut self, handle: Handle, now: u64) -> bool {
        self.is_alive(handle.0) && !self.is_over(handle.0, now) && self.table.list(&self.slabs, handle.0)
    }
}
