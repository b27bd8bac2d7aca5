//! A cache of blocks, first in, first out, of which only the names are kept.

use super::{CONTEXT_BITS, mix};

/// Blocks by when they entered. A block is there while fewer than the capacity entered after it.
///
/// The table has sets of [`WAYS`] and room for twice the capacity or the bound, so few blocks are displaced early. With a capacity beyond the
/// bound it holds all blocks until they are [too many](Shadow::is_full): then a sample of them [stays](Shadow::keep).
#[derive(Debug)]
pub(super) struct Shadow {
    /// Pages of a block, as a power of two.
    width_bits: u32,
    /// Blocks.
    capacity: u32,
    /// Blocks that the table is made for.
    bound: u32,
    /// Entries of blocks.
    occupied: u32,
    /// Blocks that entered; it wraps.
    clock: u32,
    sets: Box<[[Entry; WAYS]]>,
}

/// A set is a line of memory.
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The rank of the block's context, and a hash: never 0; 0 for none.
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

/// Bits of a tag below the rank.
const RANK_AT: u32 = 27;
/// The highest rank.
pub(super) const MOST_RANK: u32 = u32::MAX >> RANK_AT;

impl Shadow {
    /// Returns an empty one, for so many blocks of a width that is a power of two. Its table is made for no more than the bound.
    pub(super) fn new(width: u64, capacity: u64, bound: u64) -> Self {
        let capacity = clamped(capacity);
        let bound = bound.clamp(1, 1 << 24) as u32;
        let sets = (2 * capacity.min(bound) as usize).div_ceil(WAYS).next_power_of_two();
        let sets = vec![[Entry::default(); WAYS]; sets].into();
        Self { width_bits: width.ilog2(), capacity, bound, occupied: 0, clock: 0, sets }
    }

    /// Returns whether it has more blocks than its table is made for, which does not hold as many as the capacity.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.occupied > self.bound && self.capacity > self.bound
    }

    /// Keeps the blocks in contexts of this rank and above, and has a capacity of so many blocks from now on.
    pub(super) fn keep(&mut self, rank: u32, capacity: u64) {
        self.capacity = clamped(capacity);
        for entry in self.sets.iter_mut().flatten() {
            if entry.tag != 0 && entry.tag >> RANK_AT < rank {
                *entry = Entry::default();
                self.occupied -= 1;
            }
        }
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
            for entry in self.sets[at].iter_mut().filter(|entry| entry.tag == tag) {
                *entry = Entry::default();
                self.occupied -= 1;
            }
        }
    }

    fn place_of(&self, block: u64) -> (usize, u32) {
        let hash = mix(block);
        let rank = rank_of(mix((block << self.width_bits) >> CONTEXT_BITS));
        let tag = (hash >> 32) as u32 & ((1 << RANK_AT) - 1) | 1;
        (hash as usize & (self.sets.len() - 1), rank << RANK_AT | tag)
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
        self.occupied += u32::from(set[slot].tag == 0);
        set[slot] = Entry { tag, entered: self.clock };
        false
    }

    /// Returns the bytes allocated.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.sets)
    }
}

/// Returns the rank of a context by its hash: half of all contexts have 0, a quarter 1, and so on.
pub(super) fn rank_of(hash: u64) -> u32 {
    hash.leading_zeros().min(MOST_RANK)
}

fn clamped(blocks: u64) -> u32 {
    blocks.clamp(1, 1 << 30) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shadow(capacity: u64) -> Shadow {
        Shadow::new(1, capacity, capacity)
    }

    #[test]
    fn a_full_shadow_keeps_a_sample() {
        let mut shadow = Shadow::new(4, 1 << 20, 1024);
        let before = shadow.memory();
        // A block in each context.
        let blocks = |count: u64| (0..count).map(|context| (context << CONTEXT_BITS) / 4);
        blocks(1000).for_each(|block| assert_eq!(shadow.request(block, block).blocks, 1));
        assert!(!shadow.is_full());
        blocks(1200).for_each(|block| _ = shadow.request(block, block));
        assert!(shadow.is_full());
        shadow.keep(1, 1 << 19);
        let left = shadow.occupied as usize;
        assert!((450..750).contains(&left) && !shadow.is_full(), "{left}");
        let is_there = |block: &u64| shadow.request(*block, *block).blocks == 0;
        let kept: Vec<_> = blocks(1200).filter(is_there).collect();
        assert!((left - 30..=left).contains(&kept.len()), "{left} {}", kept.len());
        assert!(kept.iter().all(|block| rank_of(mix((block * 4) >> CONTEXT_BITS)) >= 1));
        shadow.forget(0, 300_000);
        assert_eq!((shadow.occupied, shadow.memory()), (0, before));
    }

    #[test]
    fn blocks_leave_in_order_of_entry() {
        let mut shadow = shadow(3);
        assert_eq!(shadow.request(0, 2), Missing { blocks: 3, runs: 1 });
        assert_eq!(shadow.request(0, 0), Missing::default());
        // The use of the first does not keep it.
        assert_eq!(shadow.request(3, 3), Missing { blocks: 1, runs: 1 });
        assert_eq!(shadow.request(1, 3), Missing::default());
        assert_eq!(shadow.request(0, 0), Missing { blocks: 1, runs: 1 });
    }

    #[test]
    fn forgotten_blocks_enter_anew() {
        let mut shadow = shadow(8);
        shadow.request(0, 4);
        shadow.forget(1, 2);
        assert_eq!(shadow.request(0, 4), Missing { blocks: 2, runs: 1 });
        assert_eq!(shadow.request(0, 4), Missing::default());
    }

    #[test]
    fn runs_are_counted_apart() {
        let mut shadow = shadow(8);
        shadow.request(2, 2);
        assert_eq!(shadow.request(0, 4), Missing { blocks: 4, runs: 2 });
    }

    #[test]
    fn the_table_is_seldom_too_small() {
        let mut shadow = shadow(1000);
        shadow.request(0, 899);
        assert!(shadow.request(0, 899).blocks < 100);
    }
}
