//! A page changes its class: its items move to other chunks of theirs, or leave.

use super::Store;
use super::chunk::{Id, LEASED};
use super::evict::DRAINING;
use super::eviction::MAIN;
use super::slabs::EmptyPage;

/// Why a page did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMove {
    /// There is no such class.
    BadClass,
    /// It is the same class.
    Same,
    /// The class has one page or none.
    NoSpare,
}

impl Store {
    /// Empties a page: items move to free chunks of their class, those that were asked for also to chunks of items that
    /// are the next to go; the rest leaves. A held or leased chunk follows when it is released, and an unpublished one when it
    /// is published.
    pub(super) fn drain(&mut self, page: usize, now: u64) {
        self.counts.whole.slabs_moved += 1;
        for id in self.slabs.begin_drain(page) {
            if !self.is_alive(id) {
                continue;
            }
            if self.is_over(id, now) {
                self.reclaim(id, now);
                continue;
            }
            self.learn_hits_of(id, now);
            // A leased chunk is read, though the store does not see it.
            let chunk = self.slabs.chunk(id);
            let asked_for = chunk.frequency() > 0 || chunk.queue() == MAIN || chunk.marked(LEASED);
            self.vacate(id, asked_for, now);
        }
    }

    /// Takes an item off a page that drains: it moves, or leaves where there is no chunk for it. For one that was asked for
    /// another item leaves.
    pub(super) fn vacate(&mut self, id: Id, asked_for: bool, now: u64) {
        let class = self.slabs.chunk(id).class();
        if asked_for
            && !self.slabs.is_pinned(id)
            && !self.slabs.has_free(class)
            && let Some(victim) = self.next_victim(class, now)
        {
            self.counts.whole.move_evictions += 1;
            self.evict(victim, now);
        }
        if self.is_alive(id) && (self.slabs.is_pinned(id) || !self.rescue(id, class)) {
            self.counts.whole.move_evictions += 1;
            self.evict(id, now);
        }
    }

    /// Moves an item to a free chunk of its class, if there is one on a page that the class has.
    fn rescue(&mut self, id: Id, class: usize) -> bool {
        if !self.slabs.has_free(class) {
            return false;
        }
        let Some(new) = self.slabs.allocate(class) else { return false };
        self.slabs.copy(id, new);
        self.counts.whole.rescues += 1;
        let hash = self.index.hash_of(&self.slabs, id);
        if self.replace(id, new, hash, 0, |_| true) {
            self.table.list(&self.slabs, new);
        }
        true
    }

    /// Moves a page from a class to another, or from the one that misses it least (`None`).
    ///
    /// # Errors
    ///
    /// There is no such class or no page to spare.
    pub fn reassign(&mut self, from: Option<usize>, to: usize, now: u64) -> Result<(), NoMove> {
        if [Some(to), from].into_iter().flatten().any(|class| class >= self.slabs.sizes().len()) {
            return Err(NoMove::BadClass);
        }
        if from == Some(to) {
            return Err(NoMove::Same);
        }
        let from = from.or_else(|| self.eviction.donor(&self.slabs, to, now)).ok_or(NoMove::NoSpare)?;
        if self.slabs.pages_of(from) < 2 {
            return Err(NoMove::NoSpare);
        }
        let page = self.slabs.cheapest_page(from).ok_or(NoMove::NoSpare)?;
        self.drain(page, now);
        Ok(())
    }

    /// Returns a page that the system has given no memory yet, if items may use it: the caller populates it. It is asked for once.
    pub fn empty_page(&mut self) -> Option<EmptyPage> {
        self.slabs.empty_page()
    }

    /// After the limit was lowered: some pages go, and memory goes back to the system.
    pub(super) fn shrink(&mut self, most: usize, now: u64) {
        for _ in 0..most {
            if !self.slabs.is_short() || self.slabs.draining() >= DRAINING {
                break;
            }
            let donor = self.eviction.donor(&self.slabs, usize::MAX, now);
            let Some(page) = donor.and_then(|donor| self.slabs.cheapest_page(donor)) else { break };
            self.drain(page, now);
        }
        for (address, bytes) in self.slabs.trim(most) {
            self.leases.discarded(address, bytes);
        }
    }
}
