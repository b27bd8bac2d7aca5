//! The hash table from block numbers to entries.
//!
//! Open addressing with linear probing, at most two thirds full, and deletion by shifting back,
//! so that there are no tombstones and a probe ends at the first vacant place. It exists beside the
//! well-kept hash maps because a hit can afford two nanoseconds here: the key is one word, a value is
//! never 0, and a look-up is a multiplication, a shift and usually one comparison.

use super::Entry;

#[derive(Clone, Copy)]
struct Place {
    block: u32,
    /// [`Entry::NOTHING`] in a vacant place.
    entry: Entry,
}

const VACANT: Place = Place { block: 0, entry: Entry::NOTHING };
const SMALLEST_BITS: u32 = 3;

/// Block numbers are below this, so that a place is eight bytes.
pub(super) const BLOCKS_END: u64 = 1 << 32;

pub(super) struct Blocks {
    /// A power of two of places.
    places: Vec<Place>,
    /// 64 less the logarithm of that number.
    shift: u32,
    used: usize,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { places: vec![VACANT; 1 << SMALLEST_BITS], shift: 64 - SMALLEST_BITS, used: 0 }
    }

    /// The number of blocks that have an entry.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn memory(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Entry)> {
        let used = self.places.iter().filter(|place| place.entry != Entry::NOTHING);
        used.map(|place| (place.block.into(), place.entry))
    }

    #[inline]
    fn home(&self, block: u64) -> usize {
        // Fibonacci hashing: the highest bits of the product mix all bits of the block number.
        (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// The place of the block, or the vacant place where it belongs.
    #[inline]
    fn place_of(&self, block: u64) -> usize {
        let mut at = self.home(block);
        loop {
            let place = &self.places[at];
            if u64::from(place.block) == block || place.entry == Entry::NOTHING {
                return at;
            }
            at = self.after(at);
        }
    }

    /// The block's entry.
    #[inline]
    pub(super) fn get(&self, block: u64) -> Entry {
        let mut at = self.home(block);
        loop {
            let place = &self.places[at];
            if u64::from(place.block) == block || place.entry == Entry::NOTHING {
                return place.entry;
            }
            at = self.after(at);
        }
    }

    /// Sets the block's entry; nothing removes it. The block is numbered below [`BLOCKS_END`].
    pub(super) fn set(&mut self, block: u64, entry: Entry) {
        debug_assert!(block < BLOCKS_END);
        let at = self.place_of(block);
        let block = block as u32;
        let was = std::mem::replace(&mut self.places[at], Place { block, entry }).entry;
        match (was == Entry::NOTHING, entry == Entry::NOTHING) {
            (true, false) => {
                self.used += 1;
                if self.used * 3 > self.places.len() * 2 {
                    self.resize(self.places.len() * 2);
                }
            }
            (false, true) => {
                self.used -= 1;
                self.close_gap(at);
                if self.used * 8 < self.places.len() && self.places.len() > 1 << SMALLEST_BITS {
                    self.resize(self.places.len() / 2);
                }
            }
            _ => {}
        }
    }

    /// Moves up what a vacated place would hide from its home.
    fn close_gap(&mut self, mut gap: usize) {
        let mut at = self.after(gap);
        while self.places[at].entry != Entry::NOTHING {
            let mask = self.places.len() - 1;
            let from_home = at.wrapping_sub(self.home(self.places[at].block.into())) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.places[gap] = self.places[at];
                gap = at;
            }
            at = self.after(at);
        }
        self.places[gap] = VACANT;
    }

    fn resize(&mut self, places: usize) {
        let old = std::mem::replace(&mut self.places, vec![VACANT; places]);
        self.shift = 64 - places.ilog2();
        for place in old.into_iter().filter(|place| place.entry != Entry::NOTHING) {
            let at = self.place_of(place.block.into());
            self.places[at] = place;
        }
    }
}
