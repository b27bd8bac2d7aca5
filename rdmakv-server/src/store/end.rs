//! How items end: deleted, flushed, expired or driven out; and the one place where their chunks are freed.

use super::chunk::{self, Chunk, Id, State};
use super::{Deleted, Handle, Keep, Store};

impl Store {
    /// Deletes the item.
    pub fn delete(&mut self, key: &[u8], cas: Option<u64>, now: u64) -> Deleted {
        let hash = self.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Deleted::NotFound };
        if cas.is_some_and(|cas| cas != self.chunk(id).version()) {
            return Deleted::Exists;
        }
        let class = self.chunk(id).class();
        self.classes[class].deletes += 1;
        self.unlink(id, now);
        Deleted::Done
    }

    /// Keeps the item under a new version, changed in this way.
    pub fn invalidate(&mut self, key: &[u8], cas: Option<u64>, keep: Keep, now: u64) -> Deleted {
        let hash = self.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Deleted::NotFound };
        if cas.is_some_and(|cas| cas != self.chunk(id).version()) {
            return Deleted::Exists;
        }
        // Held, so that making room does not evict it; where it can be held no more, the others' holds do that.
        let held = self.hold(Handle(id));
        let until = keep.expiry.unwrap_or(self.chunk(id).expiry());
        let (flags, len) = if keep.empty { (0, 0) } else { (self.chunk(id).flags(), self.chunk(id).value().len()) };
        let copied = self.reserve(key, len, flags, until, now).map(|mut copy| {
            copy.value().copy_from_slice(&self.chunk(id).value()[..len]);
            let kept = if keep.stale { chunk::BINARY } else { chunk::BINARY | chunk::STALE | chunk::WON };
            self.chunk(copy.id).mark(self.chunk(id).marks(kept));
            copy.id
        });
        match copied {
            Ok(new) => {
                self.install(new, hash, Some(id), (keep.stale, keep.version), now);
            }
            // Without memory for a copy the item goes altogether: it is not taken for what it was. It may have gone
            // already, with a page that was emptied in vain.
            Err(_) if self.is_alive(id) => self.unlink(id, now),
            Err(_) => {}
        }
        if let Some(held) = held {
            self.release(held);
        }
        Deleted::Done
    }

    /// Everything stored so far is gone, now or when a command or [`tick`](Self::tick) comes at that time.
    pub fn flush(&mut self, at: Option<u64>, now: u64) {
        match at {
            Some(at) if at > now => self.flush_at = Some(at),
            _ => {
                self.flushed = self.version;
                self.flush_at = None;
                if std::mem::take(&mut self.chosen) {
                    self.end_chosen(now);
                }
                self.unlist_all();
                // The others need not be marked: nobody reads them without asking.
                if !self.leases.is_empty() {
                    self.end_leased_items(now, |store, id| store.is_over(id, now));
                }
            }
        }
    }

    /// Takes out all items whose version a client chose: it does not tell that they are from before a flush.
    fn end_chosen(&mut self, now: u64) {
        for page in 0..self.pages.count() {
            let mut slot = 0;
            while slot < self.pages.touched(page) {
                let id = self.pages.id(page, slot);
                if self.is_alive(id) && self.chunk(id).marked(chunk::CHOSEN) {
                    self.reclaim(id, now);
                }
                slot += 1;
            }
        }
    }

    /// Takes out an item that is over.
    pub(super) fn reclaim(&mut self, id: Id, now: u64) {
        let chunk = self.chunk(id);
        let (class, fetched) = (chunk.class(), chunk.marked(chunk::FETCHED));
        self.classes[class].reclaimed += 1;
        self.classes[class].expired_unfetched += u64::from(!fetched);
        self.unlink(id, now);
    }

    /// Takes an item out of the index and the queues, and retires its chunk.
    pub(super) fn unlink(&mut self, id: Id, now: u64) {
        let hash = self.hash(self.chunk(id).key());
        let class = self.chunk(id).class();
        // Dead first: a one-sided reader must not find alive what the index no longer has.
        self.die(id, false);
        if self.chunk(id).marked(chunk::LEASED) {
            self.leased_dies(hash, now);
        }
        let there = self.index.remove(hash, id);
        debug_assert!(there, "an item is in the index");
        self.queues[class].remove(&self.arena, id);
        self.retire(id);
        #[cfg(rdmakv_sabotage)]
        self.reuse_early(id);
    }

    /// From now on no one-sided reader believes the item. `replaced` says whether another takes its place.
    #[inline]
    pub(super) fn die(&mut self, id: Id, replaced: bool) {
        #[cfg(not(rdmakv_sabotage))]
        let _ = replaced;
        #[cfg(rdmakv_sabotage)]
        if self.dies_late(id, replaced) {
            return;
        }
        #[cfg(rdmakv_sabotage)]
        if self.stays_listed(id) {
            return;
        }
        self.chunk(id).set_state(State::Dead);
        self.unlist(id);
    }

    /// The one place where chunks end: freed when nobody holds them, else when the last holder lets go. A lease is a
    /// holder.
    pub(super) fn retire(&mut self, id: Id) {
        let chunk = Chunk::new(&self.arena, id);
        if chunk.holders() == 0 {
            chunk.set_state(State::Dead);
            self.classes[chunk.class()].requested -= chunk.size() as u64;
            self.pages.give(&self.arena, id);
        } else if chunk.marked(chunk::LEASED) {
            self.leases.died(chunk.class(), chunk.size());
        }
    }
}
