//! A cache of blocks, first in, first out, of which only the names are kept.

use super::mix;

/// Blocks by when they entered. A block is there while fewer than the capacity entered after it.
///
/// The table has sets of [`WAYS`] and room for twice the capacity, so few blocks are displaced early.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Blocks.
    capacity: u32,
    /// Blocks that entered; it wraps.
    clock: u32,
    sets: Box<[[Entry; WAYS]]>,
}

/// A set is a line of memory.
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// A hash, never 0; 0 for none.
    tag: u32,
    /// The clock when it entered.
    entered: u32,
}

/// The part of a request that a shadow did not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) blocks: u64,
    /// Runs of missing blocks.
    pub(super) runs: u64,
}

impl Shadow {
    /// Returns an empty one.
    pub(super) fn new(capacity: u64) -> Self {
        let capacity = capacity.clamp(1, 1 << 24) as u32;
        let sets = (2 * capacity as usize).div_ceil(WAYS).next_power_of_two();
        Self { capacity, clock: 0, sets: vec![[Entry::default(); WAYS]; sets].into() }
    }

    /// Enters the blocks from the first to the last that are not there, and returns how many those are.
    pub(super) fn request(&mut self, first: u64, last: u64) -> Missing {
        let mut missing = Missing::default();
        let mut was_there = true;
        for block in first..=last {
            let is_there = self.find_or_enter(block);
            if !is_there {
                missing.blocks += 1;
                missing.runs += u64::from(was_there);
            }
            was_there = is_there;
        }
        missing
    }

    /// Removes the blocks from the first to the last.
    pub(super) fn forget(&mut self, first: u64, last: u64) {
        for block in first..=last {
            let (at, tag) = self.place_of(block);
            self.sets[at].iter_mut().filter(|entry| entry.tag == tag).for_each(|entry| *entry = Entry::default());
        }
    }

    fn place_of(&self, block: u64) -> (usize, u32) {
        let hash = mix(block);
        (hash as usize & (self.sets.len() - 1), (hash >> 32) as u32 | 1)
    }

    fn find_or_enter(&mut self, block: u64) -> bool {
        let (at, tag) = self.place_of(block);
        let (clock, capacity) = (self.clock, self.capacity);
        // Blocks that entered after it.
        let age = |entry: &Entry| if entry.tag == 0 { u32::MAX } else { clock.wrapping_sub(entry.entered) };
        let set = &mut self.sets[at];
        let slot = set.iter().position(|entry| entry.tag == tag);
        if slot.is_some_and(|slot| age(&set[slot]) < capacity) {
            return true;
        }
        let oldest = || (0..WAYS).max_by_key(|&slot| age(&set[slot])).unwrap_or(0);
        let slot = slot.unwrap_or_else(oldest);
        self.clock = clock.wrapping_add(1);
        set[slot] = Entry { tag, entered: self.clock };
        false
    }

    /// Returns the bytes allocated.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_in_order_of_entry() {
        let mut shadow = Shadow::new(3);
        assert_eq!(shadow.request(0, 2), Missing { blocks: 3, runs: 1 });
        assert_eq!(shadow.request(0, 0), Missing::default());
        // The use of the first does not keep it.
        assert_eq!(shadow.request(3, 3), Missing { blocks: 1, runs: 1 });
        assert_eq!(shadow.request(1, 3), Missing::default());
        assert_eq!(shadow.request(0, 0), Missing { blocks: 1, runs: 1 });
    }

    #[test]
    fn forgotten_blocks_enter_anew() {
        let mut shadow = Shadow::new(8);
        shadow.request(0, 4);
        shadow.forget(1, 2);
        assert_eq!(shadow.request(0, 4), Missing { blocks: 2, runs: 1 });
        assert_eq!(shadow.request(0, 4), Missing::default());
    }

    #[test]
    fn runs_are_counted_apart() {
        let mut shadow = Shadow::new(8);
        shadow.request(2, 2);
        assert_eq!(shadow.request(0, 4), Missing { blocks: 4, runs: 2 });
    }

    #[test]
    fn the_table_is_seldom_too_small() {
        let mut shadow = Shadow::new(1000);
        shadow.request(0, 899);
        assert!(shadow.request(0, 899).blocks < 100);
    }
}
