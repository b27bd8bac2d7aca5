//! How items end: deleted, flushed, expired or driven out.

use super::chunk::{self, Id};
use super::{Deleted, Keep, Store, eviction};
use rdmakv_proto::faults::{Fault, injected};

impl Store {
    /// Deletes the item.
    pub fn delete(&mut self, key: &[u8], cas: Option<u64>, now: u64) -> Deleted {
        let hash = self.index.hash(key);
        let Some(id) = self.live(hash, key, now) else {
            let there = cas.is_none() && self.end_away(hash, key, now);
            return if there { Deleted::Done } else { Deleted::NotFound };
        };
        let chunk = self.slabs.chunk(id);
        if cas.is_some_and(|cas| cas != chunk.version()) {
            return Deleted::Exists;
        }
        self.counts.classes[chunk.class()].deletes += 1;
        self.unlink(id, now);
        Deleted::Done
    }

    /// Keeps the item under a new version, changed in this way.
    pub fn invalidate(&mut self, key: &[u8], cas: Option<u64>, keep: Keep, now: u64) -> Deleted {
        let hash = self.index.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Deleted::NotFound };
        let chunk = self.slabs.chunk(id);
        if cas.is_some_and(|cas| cas != chunk.version()) {
            return Deleted::Exists;
        }
        let until = keep.expiry.unwrap_or(chunk.expiry());
        let (flags, len) = if keep.empty { (0, 0) } else { (chunk.flags(), chunk.value_len()) };
        // Held, so that making room does not evict it; where it can be held no more, the others' holds do that.
        let held = self.slabs.hold(id);
        match self.reserve(key, len, flags, until, now) {
            Ok(mut copy) => {
                let chunk = self.slabs.chunk(id);
                copy.value().copy_from_slice(&chunk.value()[..len]);
                let kept = if keep.stale { chunk::BINARY } else { chunk::BINARY | chunk::STALE | chunk::WON };
                copy.chunk().mark(chunk.marks(kept));
                self.install(copy.id(), hash, Some(id), (keep.stale, keep.version), now);
            }
            // Without memory for a copy the item goes altogether: it is not taken for what it was. It may have gone
            // already, with a page that was emptied in vain, or have left for flash with that.
            Err(_) if self.is_alive(id) => self.unlink(id, now),
            Err(_) => {
                self.end_away(hash, key, now);
            }
        }
        held.into_iter().for_each(|held| self.slabs.release(held));
        Deleted::Done
    }

    /// Everything stored so far is gone, now or when a command or [`tick`](Self::tick) comes at that time.
    pub fn flush(&mut self, at: Option<u64>, now: u64) {
        if let Some(at) = at.filter(|&at| at > now) {
            self.versions.flush_later(at);
            return self.table.kernel().map_or((), |kernel| kernel.flush_at(at));
        }
        let any_chosen = self.versions.flush();
        if let Some(kernel) = self.table.kernel().filter(|_| !injected(Fault::FlushedLate)) {
            kernel.flushed(self.versions.latest());
        }
        if any_chosen {
            self.end_chosen(now);
        }
        if let Some(tier) = &mut self.tier {
            tier.flash.flush();
            tier.ring();
        }
        self.table.clear();
        // The others need not be marked: nothing reads them without asking.
        self.end_leased(now, |store, id| store.is_over(id, now));
    }

    /// Ends those of the leased items that are `over`, so that a reply that they are gone is right for all that read by themselves.
    pub(super) fn end_leased(&mut self, now: u64, over: impl Fn(&Self, Id) -> bool) {
        for id in self.leases.chunks() {
            if self.is_alive(id) && over(self, id) {
                self.reclaim(id, now);
            }
        }
    }

    /// Takes out an item that is over.
    pub(super) fn reclaim(&mut self, id: Id, now: u64) {
        self.learn_hits_of(id, now);
        let chunk = self.slabs.chunk(id);
        let counters = &mut self.counts.classes[chunk.class()];
        counters.reclaimed += 1;
        counters.expired_unfetched += u64::from(!chunk.marked(chunk::FETCHED));
        self.unlink(id, now);
    }

    /// Ends an item: takes it out of the index, the queues and flash, and retires its chunk.
    pub(super) fn unlink(&mut self, id: Id, now: u64) {
        let hash = self.index.hash_of(&self.slabs, id);
        if let Some(tier) = self.tier.as_mut().filter(|_| !injected(Fault::FlashKeptAtEnd)) {
            tier.flash.remove(hash, self.slabs.chunk(id).key());
        }
        self.take_out(id, hash, now);
    }

    /// Takes an item out of the index and the queues, and retires its chunk. If it is on flash too, it stays there.
    pub(super) fn take_out(&mut self, id: Id, hash: u64, now: u64) {
        // Dead first: a one-sided reader must not find alive what the index no longer has.
        self.die(id, false);
        if self.slabs.chunk(id).marked(chunk::LEASED) {
            self.leases.died(hash, self.versions.latest(), now);
        }
        self.index.remove(hash, id);
        self.eviction.forget(&self.slabs, id);
        self.retire(id);
    }

    /// From now on no one-sided reader believes the item. `replaced` says whether another takes its place.
    #[inline]
    pub(super) fn die(&mut self, id: Id, replaced: bool) {
        #[cfg(not(rdmakv_fault_injection))]
        let _ = replaced;
        #[cfg(rdmakv_fault_injection)]
        if self.dies_late(id, replaced) || self.stays_listed(id) {
            return;
        }
        self.slabs.kill(id);
        let hits = self.table.unlist(&self.slabs, id);
        if hits > 0 {
            eviction::touched(self.slabs.chunk(id), hits);
        }
    }

    /// Frees the chunk of an item that is dead, or has the last holder free it.
    pub(super) fn retire(&mut self, id: Id) {
        self.leases.retire(&mut self.slabs, id);
        #[cfg(rdmakv_fault_injection)]
        self.reuse_early(id);
    }
}
