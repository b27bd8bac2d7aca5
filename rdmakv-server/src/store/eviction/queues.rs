//! The order of eviction: S3-FIFO for the chunks of one class.
//!
//! New items enter a small queue (a tenth of the class). A chunk that was asked for while it stood there moves to
//! the main queue, the rest leaves and is remembered for a while by a [ghost](super::ghosts). An item that comes
//! back in that time enters the main queue at once. The main queue gives those that were asked for another round. So
//! what is asked for once cannot push out what is asked for often, and a hit writes at most a counter.
//!
//! Yang, Zhang, Qiu, Yue, Vigfusson: *FIFO queues are all you need for cache eviction* (SOSP 2023).

use super::super::ClassCounters;
use super::super::chunk::Id;
use super::super::slabs::Slabs;

pub(in crate::store) const SMALL: u32 = 1;
pub(in crate::store) const MAIN: u32 = 2;
/// Hits counted at most.
pub(in crate::store) const MOST_FREQUENT: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Queue {
    newest: Id,
    oldest: Id,
    len: u64,
}

/// Both queues of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues([Queue; 2]);

impl Queues {
    pub(super) fn new() -> Self {
        Self([Queue { newest: Id::NONE, oldest: Id::NONE, len: 0 }; 2])
    }

    /// Returns how many items the queue has.
    pub(super) fn len(&self, queue: u32) -> u64 {
        self.0[queue as usize - 1].len
    }
    pub(super) fn oldest(&self, queue: u32) -> Option<Id> {
        self.0[queue as usize - 1].oldest.some()
    }

    pub(super) fn push(&mut self, slabs: &Slabs, id: Id, queue: u32) {
        let list = &mut self.0[queue as usize - 1];
        let chunk = slabs.chunk(id);
        chunk.set_queue(queue);
        chunk.set_prev(Id::NONE);
        chunk.set_next(list.newest);
        match list.newest.some() {
            Some(newest) => slabs.chunk(newest).set_prev(id),
            None => list.oldest = id,
        }
        list.newest = id;
        list.len += 1;
    }

    pub(super) fn remove(&mut self, slabs: &Slabs, id: Id) {
        let chunk = slabs.chunk(id);
        let queue = chunk.queue();
        if queue == 0 {
            return;
        }
        let (prev, next) = (chunk.prev(), chunk.next());
        self.relink(slabs, queue, (prev, next), (next, prev));
        self.0[queue as usize - 1].len -= 1;
        chunk.set_queue(0);
    }

    /// Puts `new` where `old` stands.
    pub(super) fn replace(&mut self, slabs: &Slabs, old: Id, new: Id) {
        let (from, to) = (slabs.chunk(old), slabs.chunk(new));
        let (queue, prev, next) = (from.queue(), from.prev(), from.next());
        to.set_prev(prev);
        to.set_next(next);
        to.set_queue(queue);
        self.relink(slabs, queue, (prev, next), (new, new));
        from.set_queue(0);
    }

    /// Makes the chunks, or the ends of the queue, before and after a place lead to others.
    fn relink(&mut self, slabs: &Slabs, queue: u32, (prev, next): (Id, Id), (after, before): (Id, Id)) {
        let list = &mut self.0[queue as usize - 1];
        match prev.some() {
            Some(prev) => slabs.chunk(prev).set_next(after),
            None => list.newest = after,
        }
        match next.some() {
            Some(next) => slabs.chunk(next).set_prev(before),
            None => list.oldest = before,
        }
    }

    /// Returns the next to go, moving on those that earned it. Chunks that are held are passed over. `None` after a
    /// bounded number of steps without one.
    ///
    /// `learn` is called for each that may go: it counts uses that were not seen yet.
    pub(super) fn victim(&mut self, slabs: &Slabs, counters: &mut ClassCounters, learn: impl Fn(Id)) -> Option<Id> {
        // Each step moves a chunk or finds one; none passes more often than a chunk's counter allows, unless held.
        let most = 4 * (self.len(SMALL) + self.len(MAIN)).min(1024) + 4;
        for _ in 0..most {
            let small = self.len(SMALL);
            let from = if small > 0 && small * 10 >= small + self.len(MAIN) { SMALL } else { MAIN };
            let id = self.oldest(from).or_else(|| self.oldest(SMALL))?;
            let chunk = slabs.chunk(id);
            if chunk.frequency() == 0 {
                learn(id);
            }
            let frequency = chunk.frequency();
            if chunk.holders() > 0 {
                self.remove(slabs, id);
                self.push(slabs, id, MAIN);
            } else if chunk.queue() == SMALL && frequency > 0 {
                self.remove(slabs, id);
                chunk.set_frequency(0);
                self.push(slabs, id, MAIN);
                counters.promoted += 1;
            } else if chunk.queue() == MAIN && frequency > 0 {
                self.remove(slabs, id);
                chunk.set_frequency(frequency - 1);
                self.push(slabs, id, MAIN);
                counters.rotated += 1;
            } else {
                return Some(id);
            }
        }
        // All chunks were asked for again and again: the oldest without holders.
        [MAIN, SMALL].into_iter().filter_map(|queue| self.oldest(queue)).find(|&id| slabs.chunk(id).holders() == 0)
    }
}
