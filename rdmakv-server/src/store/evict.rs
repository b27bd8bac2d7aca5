//! Memory for a new item: from a free chunk, from an item that has to leave, or from another class's page.

use super::chunk::{self, Id};
use super::leases::{WHEN_SHORT, nanos};
use super::slabs::Slabs;
use super::table::TableWriter;
use super::{Store, eviction};

/// Pages that may drain at once before no more are asked for.
pub(super) const DRAINING: u32 = 8;

fn learn_hits(slabs: &Slabs, table: &TableWriter, id: Id, now: u64) {
    for _ in 0..table.hits(slabs, id) {
        eviction::touch(slabs.chunk(id), now);
    }
}

impl Store {
    /// Returns a chunk of the class for a new item, if there is room or some can be made.
    pub(super) fn allocate(&mut self, class: usize, now: u64) -> Option<Id> {
        if let Some(id) = self.slabs.allocate(class) {
            return Some(id);
        }
        // An expired item at the old end of the queues is the cheapest memory there is.
        for id in self.eviction.oldest(class).into_iter().flatten() {
            if self.is_over(id, now) {
                self.reclaim(id, now);
            }
        }
        if !self.leases.is_empty() {
            self.sweep(nanos(now), WHEN_SHORT);
        }
        if let Some(id) = self.slabs.allocate(class) {
            return Some(id);
        }
        if !self.may_evict {
            return None;
        }
        // What leaves takes memory for its stub.
        if self.make_room_for_stubs() && self.slabs.draining() == 0 {
            self.shrink(1, now);
            self.make_room_for_stubs();
        }
        if self.eviction.is_time_to_weigh(&self.slabs) {
            if let Some(page) = self.eviction.weigh(&self.slabs, &self.counts, now) {
                self.drain(page, now);
            }
            self.eviction.fade();
        }
        let mut revoked = false;
        // Each round frees a chunk, unless its page drains or leaves the class; so a few rounds suffice.
        for _ in 0..8 {
            match self.victim(class, now) {
                Some(id) => self.evict(id, now),
                None if !revoked && self.leases.living(class) > 0 => {
                    self.revoke(class, now);
                    revoked = true;
                    continue;
                }
                // Draining pages come when their readers release them: to drain more would lose items for nothing.
                None if self.slabs.draining() >= DRAINING => return None,
                None => {
                    let donor = self.eviction.donor(&self.slabs, class, now)?;
                    let page = self.slabs.cheapest_page(donor)?;
                    // With leases on it, it comes when they have ended: one at a time.
                    if self.slabs.leased_in(page) > 0 && self.slabs.draining() > 0 {
                        return None;
                    }
                    self.drain(page, now);
                }
            }
            if let Some(id) = self.slabs.allocate(class) {
                return Some(id);
            }
        }
        None
    }

    /// Returns the next of the class to go, if there is one that nothing holds or leases.
    fn victim(&mut self, class: usize, now: u64) -> Option<Id> {
        // Where all are leased, there is no need to look at each.
        if u64::from(self.leases.living(class)) >= self.eviction.queued(class) {
            return None;
        }
        self.next_victim(class, now)
    }

    /// Returns the next of the class to go, if there is one that nothing holds.
    pub(super) fn next_victim(&mut self, class: usize, now: u64) -> Option<Id> {
        let (slabs, table) = (&self.slabs, &self.table);
        let learn = |id| learn_hits(slabs, table, id, now);
        self.eviction.victim(slabs, class, &mut self.counts.classes[class], learn)
    }

    /// Counts uses of an item that the store has not seen: those in the kernel.
    pub(super) fn learn_hits_of(&self, id: Id, now: u64) {
        learn_hits(&self.slabs, &self.table, id, now);
    }

    /// When nothing unleased is left in a class: one of its oldest items is dead from then on, so that it is not leased again and
    /// its chunk comes free in the end.
    #[cold]
    fn revoke(&mut self, class: usize, now: u64) {
        if let Some(id) = self.leases.to_revoke(&self.slabs, class, self.eviction.oldest(class)) {
            self.counts.whole.leases_revoked += 1;
            self.evict(id, now);
        }
    }

    /// Drives an item out.
    pub(super) fn evict(&mut self, id: Id, now: u64) {
        if self.is_over(id, now) {
            self.reclaim(id, now);
            return;
        }
        let hash = self.index.hash_of(&self.slabs, id);
        let stays = self.leave_for_flash(id, hash, now);
        if let Some(observer) = self.observer.as_ref().filter(|_| !stays) {
            observer.evicted(&self.view(id), now);
        }
        let chunk = self.slabs.chunk(id);
        let counters = &mut self.counts.classes[chunk.class()];
        if !stays {
            counters.evicted += 1;
            counters.evicted_nonzero += u64::from(chunk.expiry() != 0);
            counters.evicted_unfetched += u64::from(!chunk.marked(chunk::FETCHED));
        }
        counters.evicted_time = chunk.idle(now);
        self.eviction.evicted(&self.slabs, id, hash, self.index.len());
        self.take_out(id, hash, now);
    }
}
