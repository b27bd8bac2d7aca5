//! Which items leave for memory, and which class gives up a page: queues of items, ghosts of those that left, and what one
//! more page would do for each class.

mod balance;
mod ghosts;
mod queues;

use super::chunk::{Chunk, FETCHED, Id};
use super::counters::Counts;
use super::slabs::Slabs;
use crate::metrics::ClassCounters;
use balance::Balance;
use ghosts::Ghosts;
use queues::Queues;

pub(super) use queues::{MAIN, MOST_FREQUENT, SMALL};

/// The queues of all classes, and what was learnt from evictions.
#[derive(Debug)]
pub(super) struct Eviction {
    queues: Vec<Queues>,
    ghosts: Ghosts,
    balance: Balance,
}

/// Counts a use of the item.
#[inline]
pub(super) fn touch(chunk: Chunk<'_>, now: u64) {
    // Nothing is written where nothing changes: the line stays shared between processors.
    if chunk.accessed() != now as u32 {
        chunk.set_accessed(now);
    }
    let frequency = chunk.frequency();
    if frequency < MOST_FREQUENT {
        chunk.set_frequency(frequency + 1);
    }
    chunk.mark(FETCHED);
}

/// Counts uses of the item at times that are not known.
pub(super) fn touched(chunk: Chunk<'_>, uses: u32) {
    chunk.set_frequency((chunk.frequency() + uses).min(MOST_FREQUENT));
    chunk.mark(FETCHED);
}

impl Eviction {
    pub(super) fn new(classes: usize) -> Self {
        Self { queues: vec![Queues::new(); classes], ghosts: Ghosts::new(classes), balance: Balance::new(classes) }
    }

    /// Puts a new item into the main queue if it left lately, else into the small one.
    pub(super) fn admit(&mut self, slabs: &Slabs, id: Id, hash: u64) {
        let class = slabs.chunk(id).class();
        let ghost = self.ghosts.recall(class, hash);
        if let Some(ghost) = ghost {
            self.balance.came_back(class, ghost.of_a_page(slabs.pages_of(class)));
        }
        let queue = if ghost.is_some_and(|ghost| ghost.small) { MAIN } else { SMALL };
        self.queues[class].push(slabs, id, queue);
    }

    /// Puts a chunk in the place of another: in the same queue if it is of the same class, else at the new end of its own
    /// class's. Its frequency is the other's and these uses.
    pub(super) fn replace(&mut self, slabs: &Slabs, old: Id, new: Id, uses: u32) {
        let (before, chunk) = (slabs.chunk(old), slabs.chunk(new));
        if before.class() == chunk.class() {
            self.queues[chunk.class()].replace(slabs, old, new);
        } else {
            let queue = before.queue();
            self.queues[before.class()].remove(slabs, old);
            self.queues[chunk.class()].push(slabs, new, queue);
        }
        chunk.set_frequency((before.frequency() + uses).min(MOST_FREQUENT));
    }

    /// Takes an item out of its queue.
    pub(super) fn forget(&mut self, slabs: &Slabs, id: Id) {
        self.queues[slabs.chunk(id).class()].remove(slabs, id);
    }

    /// Returns the next of the class to go, if there is one that nothing holds. The moves of its search are counted. `learn` counts uses of
    /// an item that the store has not seen yet.
    pub(super) fn victim(
        &mut self,
        slabs: &Slabs,
        class: usize,
        counters: &mut ClassCounters,
        learn: impl Fn(Id),
    ) -> Option<Id> {
        self.queues[class].victim(slabs, counters, learn)
    }

    /// Remembers that an item is driven out, of a store with so many; it is in its queue still.
    pub(super) fn evicted(&mut self, slabs: &Slabs, id: Id, hash: u64, items: usize) {
        let chunk = slabs.chunk(id);
        let class = chunk.class();
        self.balance.evicted(class);
        self.ghosts.add(class, hash, chunk.queue() == SMALL, self.queued(class), items);
    }

    /// Returns how many items the class has.
    pub(super) fn queued(&self, class: usize) -> u64 {
        self.len(class, SMALL) + self.len(class, MAIN)
    }
    pub(super) fn len(&self, class: usize, queue: u32) -> u64 {
        self.queues[class].len(queue)
    }
    /// Returns the oldest items of the class: of the small and of the main queue.
    pub(super) fn oldest(&self, class: usize) -> [Option<Id>; 2] {
        [SMALL, MAIN].map(|queue| self.queues[class].oldest(queue))
    }
    /// Returns the oldest item of one of the class's queues.
    pub(super) fn oldest_of(&self, class: usize, queue: u32) -> Option<Id> {
        self.queues[class].oldest(queue)
    }
    /// Puts an item of the run before at the new end of its queue.
    pub(super) fn restore(&mut self, slabs: &Slabs, id: Id, queue: u32) {
        self.queues[slabs.chunk(id).class()].push(slabs, id, queue);
    }
    /// Returns the seconds since these were last asked for; 0 where there is none.
    pub(super) fn ages(&self, slabs: &Slabs, class: usize, now: u64) -> [u64; 2] {
        self.oldest(class).map(|oldest| oldest.map_or(0, |id| slabs.chunk(id).idle(now)))
    }
    /// Returns for how long the class's oldest item was not asked for.
    fn idle(queues: &[Queues], slabs: &Slabs, class: usize, now: u64) -> u64 {
        [SMALL, MAIN]
            .iter()
            .filter_map(|&queue| queues[class].oldest(queue))
            .map(|id| slabs.chunk(id).idle(now))
            .max()
            .unwrap_or(0)
    }

    /// Sets whether pages move by themselves.
    pub(super) fn set_automove(&mut self, automatic: bool) {
        self.balance.set_automove(automatic);
    }
    /// Returns the class that gives up a page for another, the one that misses it least.
    pub(super) fn donor(&self, slabs: &Slabs, but: usize, now: u64) -> Option<usize> {
        self.balance.donor(slabs, but, &|class| Self::idle(&self.queues, slabs, class, now))
    }
    /// After evictions: returns whether it is time to compare the classes ([`weigh`](Self::weigh), [`fade`](Self::fade)).
    pub(super) fn is_time_to_weigh(&self, slabs: &Slabs) -> bool {
        self.balance.is_time_to_weigh(slabs)
    }
    /// Compares the classes, and returns the page to move if that is worth it.
    pub(super) fn weigh(&mut self, slabs: &Slabs, counts: &Counts, now: u64) -> Option<usize> {
        self.balance.weigh(slabs, counts, &|class| Self::idle(&self.queues, slabs, class, now))
    }
    /// Lets what was counted fade.
    pub(super) fn fade(&mut self) {
        self.balance.fade();
    }
    /// Once a second: returns a page to move to where items were driven out youngest, if that differs much.
    pub(super) fn rebalance(&mut self, slabs: &Slabs, counts: &Counts, now: u64) -> Option<usize> {
        self.balance.rebalance(slabs, counts, &|class| Self::idle(&self.queues, slabs, class, now))
    }
    /// Returns the bytes of the ghosts.
    pub(super) fn bytes(&self) -> usize {
        self.ghosts.bytes()
    }
}
