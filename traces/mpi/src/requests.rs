//! Requests in flight and their buffers, until they complete.
//!
//! A table of fixed size in 64 parts, each behind a lock that is held for a look and a store. A part has room for 1,024
//! requests, and what finds none counts as completed at once. Open MPI and MPICH hand out one and the same handle for messages
//! that are complete when their call returns, so a handle that comes up anew ends what was known under it.

use crate::buffers::{Buffer, NOTHING, Used};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PARTS: usize = 64;
const PLACES: usize = 1024;

#[derive(Clone, Copy)]
struct Entry {
    /// None where nothing is.
    handle: usize,
    used: Used,
    is_persistent: bool,
    is_active: bool,
}

const EMPTY: Entry = Entry { handle: 0, used: [NOTHING; 2], is_persistent: false, is_active: false };

/// Open addressing, one place after another. Locked for one operation.
struct Part {
    entries: [Entry; PLACES],
    count: usize,
}

static PARTS_OF_ALL: [Mutex<Part>; PARTS] = [const { Mutex::new(Part { entries: [EMPTY; PLACES], count: 0 }) }; PARTS];

/// The buffers of an unknown request: none.
pub(crate) const NONE: Used = [NOTHING; 2];

fn part(handle: usize) -> MutexGuard<'static, Part> {
    // Handles are aligned pointers, or numbers in turn.
    let mixed = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    PARTS_OF_ALL[(mixed >> 58) as usize].lock().unwrap_or_else(PoisonError::into_inner)
}

fn home(handle: usize) -> usize {
    ((handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % PLACES
}

impl Part {
    /// Returns the place of the handle, or the free place for it.
    fn place(&self, handle: usize) -> usize {
        let mut at = home(handle);
        while self.entries[at].handle != handle && self.entries[at].handle != 0 {
            at = (at + 1) % PLACES;
        }
        at
    }

    fn remove(&mut self, mut at: usize) {
        self.count -= 1;
        // The request that was pushed on by this one moves back.
        let mut next = (at + 1) % PLACES;
        while self.entries[next].handle != 0 {
            let wants = home(self.entries[next].handle);
            let distance = |from: usize, to: usize| (to + PLACES - from) % PLACES;
            if distance(wants, next) >= distance(at, next) {
                self.entries[at] = self.entries[next];
                at = next;
            }
            next = (next + 1) % PLACES;
        }
        self.entries[at] = EMPTY;
    }
}

/// Remembers what a request uses; answers what is in use no more instead: of an earlier request of that handle, or of this one,
/// if there is no room.
pub(crate) fn begin(handle: usize, used: Used, is_persistent: bool) -> Used {
    let is_nothing = used.iter().all(|buffer| buffer.length == 0);
    if handle == 0 || (is_nothing && !is_persistent) {
        return NONE;
    }
    let mut part = part(handle);
    let at = part.place(handle);
    let before = part.entries[at];
    let is_new = before.handle == 0;
    if is_new && part.count + 1 == PLACES {
        return if is_persistent { NONE } else { used };
    }
    part.count += usize::from(is_new);
    part.entries[at] = Entry { handle, used, is_persistent, is_active: !is_persistent };
    if before.is_active { before.used } else { NONE }
}

/// A persistent request is started: what it uses.
pub(crate) fn start(handle: usize) -> Used {
    let mut part = part(handle);
    let at = part.place(handle);
    let entry = &mut part.entries[at];
    if entry.handle == 0 || !entry.is_persistent || entry.is_active {
        return NONE;
    }
    entry.is_active = true;
    entry.used
}

/// A request is completed: what is in use no more.
pub(crate) fn complete(handle: usize) -> Used {
    end(handle, false)
}

/// A request is freed: what is in use no more, as far as can be told.
pub(crate) fn free(handle: usize) -> Used {
    end(handle, true)
}

fn end(handle: usize, for_good: bool) -> Used {
    if handle == 0 {
        return NONE;
    }
    let mut part = part(handle);
    let at = part.place(handle);
    let entry = part.entries[at];
    if entry.handle == 0 {
        return NONE;
    }
    if entry.is_persistent && !for_good {
        part.entries[at].is_active = false;
    } else {
        part.remove(at);
    }
    if entry.is_active { entry.used } else { NONE }
}

/// Those of the buffers that are some.
pub(crate) fn of(used: Used) -> impl Iterator<Item = Buffer> {
    used.into_iter().filter(|buffer| buffer.length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(n: usize) -> Used {
        [Buffer { address: n as u64, length: 1, access: 1 }, NOTHING]
    }

    #[test]
    fn requests_are_found_until_they_are_completed() {
        // As a heap hands them out: in no order, and some at one place.
        let handles = (1..20_000_usize).map(|n| (n * n).wrapping_mul(0x5851_f42d_4c95_7f2d) >> 12 | 1);
        handles.clone().for_each(|handle| assert_eq!(begin(handle, used(handle), false), NONE));
        // Every second one goes, so that others move.
        handles.clone().step_by(2).for_each(|handle| assert_eq!(complete(handle), used(handle)));
        for (nth, handle) in handles.enumerate() {
            let expected = if nth % 2 == 0 { NONE } else { used(handle) };
            assert_eq!(complete(handle), expected, "{nth}");
            assert_eq!(complete(handle), NONE);
        }
    }

    #[test]
    fn reused_handle_ends_the_earlier_request() {
        assert_eq!(begin(0x1000, used(1), false), NONE);
        assert_eq!(begin(0x1000, used(2), false), used(1));
        assert_eq!(complete(0x1000), used(2));
    }

    #[test]
    fn persistent_request_is_used_start_to_completion() {
        assert_eq!(begin(0x2000, used(1), true), NONE);
        assert_eq!(complete(0x2000), NONE);
        for _ in 0..2 {
            assert_eq!(start(0x2000), used(1));
            assert_eq!(complete(0x2000), used(1));
        }
        assert_eq!(start(0x2000), used(1));
        assert_eq!(free(0x2000), used(1));
        assert_eq!(start(0x2000), NONE);
    }
}
