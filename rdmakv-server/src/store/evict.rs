//! Memory for a new item: from a free chunk, from an item that has to leave, or from another class's page.

use super::Store;
use super::chunk::{self, Chunk, Id, NONE, State};
use super::queues::{MAIN, SMALL};

/// What the last second's evictions say about where memory is short.
#[derive(Debug)]
pub(super) struct Rebalance {
    evicted: Vec<u64>,
    /// May pages move by themselves.
    pub(super) automatic: bool,
}

impl Rebalance {
    pub(super) fn new(classes: usize) -> Self {
        Self { evicted: vec![0; classes], automatic: true }
    }
}

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
    pub(super) fn allocate(&mut self, class: usize, now: u64) -> Option<Id> {
        if let Some(id) = self.pages.take(&self.arena, class) {
            return Some(id);
        }
        // What expired at the old end of the queues is the cheapest memory there is.
        for queue in [SMALL, MAIN] {
            if let Some(id) = self.queues[class].oldest(queue)
                && self.is_over(id, now)
            {
                self.reclaim(id);
            }
        }
        if let Some(id) = self.pages.take(&self.arena, class) {
            return Some(id);
        }
        if !self.may_evict {
            return None;
        }
        // Each round frees a chunk, unless its page drains or leaves the class; so a few rounds suffice.
        for _ in 0..8 {
            match self.queues[class].victim(&self.arena) {
                Some(id) => self.evict(id, now),
                None => {
                    let page = self.donor(class, now).and_then(|donor| self.cheapest_page(donor))?;
                    self.drain(page, now);
                }
            }
            if let Some(id) = self.pages.take(&self.arena, class) {
                return Some(id);
            }
        }
        None
    }

    fn evict(&mut self, id: Id, now: u64) {
        if self.is_over(id, now) {
            self.reclaim(id);
            return;
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
        self.rebalance.evicted[class] += 1;
        if from_small {
            self.ghosts.add(class, hash, self.queues[class].len(MAIN), self.index.len());
        }
        self.unlink(id);
    }

    /// For how long the class's oldest item was not asked for.
    fn idle(&self, class: usize, now: u64) -> u64 {
        [MAIN, SMALL]
            .into_iter()
            .filter_map(|queue| self.queues[class].oldest(queue))
            .map(|id| u64::from((now as u32).saturating_sub(self.chunk(id).accessed())))
            .max()
            .unwrap_or(0)
    }

    /// Which class gives up a page: one with more than a page of free chunks, else the one that is longest idle.
    fn donor(&self, but: usize, now: u64) -> Option<usize> {
        (0..self.sizes.len()).filter(|&class| class != but && self.pages.steady_pages_of(class) > 0).max_by_key(
            |&class| {
                let roomy = self.pages.free_of(class) > u64::from(self.pages.chunks_a_page(class));
                (roomy, self.idle(class, now), self.pages.pages_of(class))
            },
        )
    }

    fn cheapest_page(&self, class: usize) -> Option<usize> {
        (0..self.pages.count())
            .filter(|&page| self.pages.class_of(page) == Some(class) && !self.pages.is_draining(page))
            .min_by_key(|&page| self.pages.used_in(page))
    }

    /// Empties a page: items move to free chunks of their class or leave; what is held follows when it is released.
    fn drain(&mut self, page: usize, now: u64) {
        let Some(class) = self.pages.class_of(page) else { return };
        self.counters.slabs_moved += 1;
        let slots = self.pages.touched(page);
        let ids: Vec<Id> = (0..slots).map(|slot| self.pages.id(page, slot)).collect();
        if self.pages.drain(page) {
            return;
        }
        for id in ids {
            let chunk = self.chunk(id);
            if chunk.state() != State::Alive {
                continue;
            }
            if self.is_over(id, now) {
                self.reclaim(id);
            } else if self.pages.free_of(class) == 0 || chunk.holders() > 0 || !self.rescue(id, class) {
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
        for mark in [chunk::FETCHED, chunk::STALE, chunk::WON] {
            if from.marked(mark) {
                to.mark(mark);
            }
        }
        to.key_mut().copy_from_slice(from.key());
        to.value_mut().copy_from_slice(from.value());
        self.classes[class].requested += to.size() as u64;
        self.counters.rescues += 1;
        from.set_state(State::Dead);
        let hash = self.hash(self.chunk(id).key());
        self.index.replace(hash, id, new);
        self.queues[class].replace(&self.arena, id, new);
        self.retire(id);
        self.chunk(new).set_state(State::Alive);
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

    /// Whether pages move by themselves.
    pub fn set_automove(&mut self, automatic: bool) {
        self.rebalance.automatic = automatic;
    }

    /// One page, from where items lie idle longest to where items were driven out youngest, if that differs much.
    pub(super) fn rebalance(&mut self, now: u64) {
        let evicted: Vec<u64> = self.rebalance.evicted.iter_mut().map(std::mem::take).collect();
        if !self.rebalance.automatic || self.pages.pooled() > 0 {
            return;
        }
        let needy = (0..evicted.len())
            .filter(|&class| evicted[class] > 0)
            .min_by_key(|&class| self.classes[class].evicted_time);
        let Some(needy) = needy else { return };
        let Some(donor) = self.donor(needy, now).filter(|&donor| self.pages.pages_of(donor) > 1) else { return };
        let roomy = self.pages.free_of(donor) > 2 * u64::from(self.pages.chunks_a_page(donor));
        let differs = roomy || self.idle(donor, now) * 4 > self.classes[needy].evicted_time * 5 + 4;
        if let Some(page) = self.cheapest_page(donor).filter(|_| differs) {
            self.drain(page, now);
        }
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
