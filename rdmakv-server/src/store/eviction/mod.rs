//! Which items leave for memory, and which class gives up a page: queues of items, ghosts of those that left, and what one
//! more page would do for each class.

mod balance;
mod ghosts;
mod queues;

use super::chunk::{Chunk, FETCHED, Id};
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

impl Chunk<'_> {
    /// Returns the seconds since the item was last asked for.
    pub(super) fn idle(self, now: u64) -> u64 {
        u64::from((now as u32).saturating_sub(self.accessed()))
    }
    /// Counts a use of the item.
    #[inline]
    pub(super) fn touch(self, now: u64) {
        // Nothing is written where nothing changes: the line stays shared between processors.
        if self.accessed() != now as u32 {
            self.set_accessed(now);
        }
        let frequency = self.frequency();
        if frequency < MOST_FREQUENT {
            self.set_frequency(frequency + 1);
        }
        self.mark(FETCHED);
    }
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

    /// Returns the next of the class to go, if there is one that nothing holds. The moves of its search are counted.
    pub(super) fn victim(&mut self, slabs: &Slabs, class: usize, counters: &mut ClassCounters) -> Option<Id> {
        self.queues[class].victim(slabs, counters)
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
    /// Returns the seconds since these were last asked for; 0 where there is none.
    pub(super) fn ages(&self, slabs: &Slabs, class: usize, now: u64) -> [u64; 2] {
        self.oldest(class).map(|oldest| oldest.map_or(0, |id| slabs.chunk(id).idle(now)))
    }
    /// Returns the bytes of the ghosts.
    pub(super) fn bytes(&self) -> usize {
        self.ghosts.bytes()
    }
}
