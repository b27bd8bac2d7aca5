//! Who goes first: S3-FIFO for the chunks of one class.
//!
//! New items enter a small queue (a tenth of the class). What was asked for while it stood there moves to the main
//! queue, the rest leaves and is remembered for a while by a [ghost](super::ghosts); an item that comes back in that
//! time enters the main queue at once. The main queue gives those that were asked for another round. So what is
//! asked for once cannot push out what is asked for often, and a hit writes at most a counter.
//!
//! Yang, Zhang, Qiu, Yue, Vigfusson: *FIFO queues are all you need for cache eviction* (SOSP 2023).

use super::arena::Arena;
use super::chunk::{Chunk, Id, NONE};

pub(super) const SMALL: u32 = 1;
pub(super) const MAIN: u32 = 2;
/// Hits counted at most.
pub(super) const MOST_FREQUENT: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Queue {
    newest: Id,
    oldest: Id,
    len: u64,
}

/// Both queues of a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues([Queue; 2]);

/// What a search for a victim moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// From the small queue to the main one.
    pub(super) promoted: u64,
    /// Within the main queue.
    pub(super) rotated: u64,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self([Queue { newest: NONE, oldest: NONE, len: 0 }; 2])
    }

    pub(super) fn len(&self, queue: u32) -> u64 {
        self.0[queue as usize - 1].len
    }
    pub(super) fn oldest(&self, queue: u32) -> Option<Id> {
        let id = self.0[queue as usize - 1].oldest;
        (id != NONE).then_some(id)
    }

    pub(super) fn push(&mut self, arena: &Arena, id: Id, queue: u32) {
        let list = &mut self.0[queue as usize - 1];
        let chunk = Chunk::new(arena, id);
        chunk.set_queue(queue);
        chunk.set_prev(NONE);
        chunk.set_next(list.newest);
        if list.newest == NONE {
            list.oldest = id;
        } else {
            Chunk::new(arena, list.newest).set_prev(id);
        }
        list.newest = id;
        list.len += 1;
    }

    pub(super) fn remove(&mut self, arena: &Arena, id: Id) {
        let chunk = Chunk::new(arena, id);
        let queue = chunk.queue();
        if queue == 0 {
            return;
        }
        let list = &mut self.0[queue as usize - 1];
        let (prev, next) = (chunk.prev(), chunk.next());
        if prev == NONE {
            list.newest = next;
        } else {
            Chunk::new(arena, prev).set_next(next);
        }
        if next == NONE {
            list.oldest = prev;
        } else {
            Chunk::new(arena, next).set_prev(prev);
        }
        list.len -= 1;
        chunk.set_queue(0);
    }

    /// Puts `new` where `old` stands, with its frequency.
    pub(super) fn replace(&mut self, arena: &Arena, old: Id, new: Id) {
        let (from, to) = (Chunk::new(arena, old), Chunk::new(arena, new));
        let queue = from.queue();
        let list = &mut self.0[queue as usize - 1];
        let (prev, next) = (from.prev(), from.next());
        to.set_prev(prev);
        to.set_next(next);
        to.set_queue(queue);
        to.set_frequency(from.frequency());
        if prev == NONE {
            list.newest = new;
        } else {
            Chunk::new(arena, prev).set_next(new);
        }
        if next == NONE {
            list.oldest = new;
        } else {
            Chunk::new(arena, next).set_prev(new);
        }
        from.set_queue(0);
    }

    /// The next to go, moving on those that earned it. Chunks that are held are passed over. `None` after a bounded
    /// number of steps without one.
    pub(super) fn victim(&mut self, arena: &Arena, moved: &mut Moved) -> Option<Id> {
        // Each step moves a chunk or finds one; nobody passes more often than a chunk's counter allows, unless held.
        let most = 4 * (self.len(SMALL) + self.len(MAIN)).min(1024) + 4;
        for _ in 0..most {
            let small = self.len(SMALL);
            let from = if small > 0 && small * 10 >= small + self.len(MAIN) { SMALL } else { MAIN };
            let id = self.oldest(from).or_else(|| self.oldest(SMALL))?;
            let chunk = Chunk::new(arena, id);
            let frequency = chunk.frequency();
            if chunk.holders() > 0 {
                self.remove(arena, id);
                self.push(arena, id, MAIN);
            } else if chunk.queue() == SMALL && frequency > 0 {
                self.remove(arena, id);
                chunk.set_frequency(0);
                self.push(arena, id, MAIN);
                moved.promoted += 1;
            } else if chunk.queue() == MAIN && frequency > 0 {
                self.remove(arena, id);
                chunk.set_frequency(frequency - 1);
                self.push(arena, id, MAIN);
                moved.rotated += 1;
            } else {
                return Some(id);
            }
        }
        // Everything was asked for again and again: the oldest that nobody holds.
        [MAIN, SMALL]
            .into_iter()
            .filter_map(|queue| self.oldest(queue))
            .find(|&id| Chunk::new(arena, id).holders() == 0)
    }
}
