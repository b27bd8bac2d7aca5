//! A page changes its class: its items move to other chunks of theirs, or leave.

use super::Store;
use super::chunk::{self, Chunk, Id, LEASED, LISTED, NONE, State};
use super::queues::MAIN;

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
    pub(super) fn cheapest_page(&self, class: usize) -> Option<usize> {
        (0..self.pages.count())
            .filter(|&page| self.pages.class_of(page) == Some(class) && !self.pages.is_draining(page))
            .min_by_key(|&page| (self.pages.leased_in(page), self.pages.used_in(page)))
    }

    /// Empties a page: items move to free chunks of their class, those that were asked for also to chunks of items that
    /// are the next to go; the rest leaves. What is held or leased follows when it is released.
    pub(super) fn drain(&mut self, page: usize, now: u64) {
        let Some(class) = self.pages.class_of(page) else { return };
        self.counters.slabs_moved += 1;
        let slots = self.pages.touched(page);
        let ids: Vec<Id> = (0..slots).map(|slot| self.pages.id(page, slot)).collect();
        if self.pages.drain(page) {
            return;
        }
        for id in ids {
            if !self.is_alive(id) {
                continue;
            }
            if self.is_over(id, now) {
                self.reclaim(id, now);
                continue;
            }
            // What is leased is asked for, though the store does not see it.
            let chunk = self.chunk(id);
            let asked_for = chunk.frequency() > 0 || chunk.queue() == MAIN || chunk.marked(LEASED);
            let wanted = asked_for && !self.is_pinned(id);
            if wanted
                && !self.pages.has_free(class)
                && let Some(victim) = self.next_victim(class)
            {
                self.counters.move_evictions += 1;
                self.evict(victim, now);
            }
            if self.is_alive(id) && (self.is_pinned(id) || !self.rescue(id, class)) {
                self.counters.move_evictions += 1;
                self.evict(id, now);
            }
        }
    }

    /// Moves an item to a free chunk of its class.
    fn rescue(&mut self, id: Id, class: usize) -> bool {
        if !self.pages.has_free(class) {
            return false;
        }
        let Some(new) = self.pages.take(&self.arena, class) else { return false };
        let (from, to) = (Chunk::new(&self.arena, id), Chunk::new(&self.arena, new));
        to.begin(State::Unpublished, self.incarnation);
        to.set_expiry(from.expiry());
        to.set_version(from.version());
        to.set_value_len(from.value_len());
        to.set_flags(from.flags());
        to.set_crc(from.crc());
        to.set_shape(from.shape());
        to.set_prev(NONE);
        to.set_accessed(from.accessed());
        to.set_private(0);
        for mark in [chunk::FETCHED, chunk::STALE, chunk::WON, chunk::BINARY, chunk::CHOSEN] {
            if from.marked(mark) {
                to.mark(mark);
            }
        }
        to.key_mut().copy_from_slice(from.key());
        to.value_mut().copy_from_slice(from.value());
        self.classes[class].requested += to.size() as u64;
        self.counters.rescues += 1;
        self.die(id, true);
        if self.chunk(id).marked(LEASED) {
            self.hand_over(id, new);
        }
        let hash = self.hash(self.chunk(id).key());
        self.index.replace(hash, id, new);
        self.queues[class].replace(&self.arena, id, new);
        let listed = self.chunk(id).marked(LISTED);
        self.retire(id);
        self.chunk(new).set_state(State::Alive);
        if listed {
            self.relist(new);
        }
        true
    }

    /// Moves a page from a class to another, or from the one that misses it least (`None`).
    ///
    /// # Errors
    ///
    /// There is no such class or no page to spare.
    pub fn reassign(&mut self, from: Option<usize>, to: usize, now: u64) -> Result<(), NoMove> {
        if to >= self.sizes.len() || from.is_some_and(|from| from >= self.sizes.len()) {
            return Err(NoMove::BadClass);
        }
        if from == Some(to) {
            return Err(NoMove::Same);
        }
        let from = from.or_else(|| self.donor(to, now)).ok_or(NoMove::NoSpare)?;
        if self.pages.pages_of(from) < 2 {
            return Err(NoMove::NoSpare);
        }
        let page = self.cheapest_page(from).ok_or(NoMove::NoSpare)?;
        self.drain(page, now);
        Ok(())
    }

    /// After the limit was lowered: a page a tick goes.
    pub(super) fn shrink(&mut self, now: u64) {
        if self.pages.over_limit()
            && let Some(donor) = self.donor(usize::MAX, now)
            && let Some(page) = self.cheapest_page(donor)
        {
            self.drain(page, now);
        }
    }
}
