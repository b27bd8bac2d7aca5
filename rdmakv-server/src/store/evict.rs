//! Memory for a new item: from a free chunk, from an item that has to leave, or from another class's page.

use super::Store;
use super::chunk::{self, Id};
use super::leases::{WHEN_SHORT, nanos};
use super::queues::{MAIN, Moved, SMALL};

/// Pages that may drain at once before no more are asked for.
const DRAINING: u32 = 8;

impl Store {
    pub(super) fn allocate(&mut self, class: usize, now: u64) -> Option<Id> {
        if let Some(id) = self.pages.take(&self.arena, class) {
            return Some(id);
        }
        // What expired at the old end of the queues is the cheapest memory there is.
        for queue in [SMALL, MAIN] {
            if let Some(id) = self.queues[class].oldest(queue)
                && self.is_over(id, now)
            {
                self.reclaim(id, now);
            }
        }
        if !self.leases.is_empty() {
            self.sweep(nanos(now), WHEN_SHORT);
        }
        if let Some(id) = self.pages.take(&self.arena, class) {
            return Some(id);
        }
        if !self.may_evict {
            return None;
        }
        self.weigh(now);
        let mut doomed = false;
        // Each round frees a chunk, unless its page drains or leaves the class; so a few rounds suffice.
        for _ in 0..8 {
            match self.victim(class) {
                Some(id) => self.evict(id, now),
                None if !doomed && self.leases.living(class) > 0 => {
                    self.doom(class, now);
                    doomed = true;
                    continue;
                }
                // Pages that drain come when those who read from them let go: to drain more would lose items for nothing.
                None if self.pages.draining() >= DRAINING => return None,
                None => {
                    let page = self.donor(class, now).and_then(|donor| self.cheapest_page(donor))?;
                    // With leases on it, it comes when they have ended: one at a time.
                    if self.pages.leased_in(page) > 0 && self.pages.draining() > 0 {
                        return None;
                    }
                    self.drain(page, now);
                }
            }
            if let Some(id) = self.pages.take(&self.arena, class) {
                return Some(id);
            }
        }
        None
    }

    /// The next of the class to go, if there is one that nobody holds or leases.
    fn victim(&mut self, class: usize) -> Option<Id> {
        let queued = self.queues[class].len(SMALL) + self.queues[class].len(MAIN);
        // Where all are leased, there is no need to look at each.
        if u64::from(self.leases.living(class)) >= queued {
            return None;
        }
        self.next_victim(class)
    }

    /// The next of the queues to go, and what its search moved is counted.
    pub(super) fn next_victim(&mut self, class: usize) -> Option<Id> {
        let mut moved = Moved::default();
        let victim = self.queues[class].victim(&self.arena, &mut moved);
        self.classes[class].promoted += moved.promoted;
        self.classes[class].rotated += moved.rotated;
        victim
    }

    pub(super) fn evict(&mut self, id: Id, now: u64) {
        if self.is_over(id, now) {
            self.reclaim(id, now);
            return;
        }
        if let Some(observer) = &self.observer {
            observer.evicted(&self.view(id), now);
        }
        let chunk = self.chunk(id);
        let (class, hash) = (chunk.class(), self.hash(chunk.key()));
        let counters = super::ClassCounters {
            evicted: 1,
            evicted_nonzero: u64::from(chunk.expiry() != 0),
            evicted_unfetched: u64::from(!chunk.marked(chunk::FETCHED)),
            ..Default::default()
        };
        let idle = u64::from((now as u32).saturating_sub(chunk.accessed()));
        let from_small = chunk.queue() == SMALL;
        self.classes[class].add(&counters);
        self.classes[class].evicted_time = idle;
        self.balance.evicted(class);
        let queued = self.queues[class].len(SMALL) + self.queues[class].len(MAIN);
        self.ghosts.add(class, hash, from_small, queued, self.index.len());
        self.unlink(id, now);
    }
}
