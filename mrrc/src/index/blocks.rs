//! The hash table from block numbers to entries.
//!
//! Open addressing with linear probing, at most two thirds full, and deletion by shifting back,
//! so that there are no tombstones and a probe ends at the first vacant place. It exists beside the
//! well-kept hash maps because a hit can afford two nanoseconds here: the key is one word, a value is
//! never 0, and a look-up is a multiplication, a shift and usually one comparison.

//!
//! A place is one atomic word, so that hits on other threads can look blocks up while the owner works.

use super::Entry;
use super::published::{Editions, Published};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A block's number in the high half and its entry in the low half; a vacant place is 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

impl Place {
    const VACANT: Self = Self(0);

    fn new(block: u64, entry: Entry) -> Self {
        Self(block << 32 | u64::from(entry.0))
    }

    #[inline(always)]
    fn block(self) -> u64 {
        self.0 >> 32
    }

    #[inline(always)]
    fn entry(self) -> Entry {
        Entry(self.0 as u32)
    }
}

const SMALLEST_BITS: u32 = 3;

/// Block numbers are below this, so that a place is eight bytes.
pub(super) const BLOCKS_END: u64 = 1 << 32;

pub(super) struct Blocks {
    /// A power of two of places.
    places: Published<AtomicU64>,
    used: usize,
}

fn vacant(places: usize) -> Arc<[AtomicU64]> {
    (0..places).map(|_| AtomicU64::new(Place::VACANT.0)).collect()
}

/// The place where the search for a block begins.
#[inline(always)]
fn home(block: u64, places: usize) -> usize {
    // Fibonacci hashing: the highest bits of the product mix all bits of the block number.
    (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - places.trailing_zeros())) as usize
}

/// The block's entry, read from places that may be changing.
#[inline(always)]
fn look_up(places: &[AtomicU64], block: u64) -> Entry {
    let at = home(block, places.len());
    let place = places.get(at).map_or(Place::VACANT, |place| Place(place.load(Relaxed)));
    if place.block() == block || place == Place::VACANT {
        return place.entry();
    }
    look_further(places, block, at)
}

#[inline(never)]
fn look_further(places: &[AtomicU64], block: u64, home: usize) -> Entry {
    let (before, from) = places.split_at(home);
    // A table is never full; that this ends is for readers, who may see it change under their eyes.
    for place in from[1..].iter().chain(before) {
        let place = Place(place.load(Relaxed));
        if place.block() == block || place == Place::VACANT {
            return place.entry();
        }
    }
    Entry::NOTHING
}

/// Looks blocks up while the owner changes them: an answer can be out of date.
pub(super) struct BlocksReader(Arc<Editions<AtomicU64>>);

impl BlocksReader {
    #[inline(always)]
    pub(super) fn get(&self, block: u64) -> Entry {
        look_up(self.0.read(), block)
    }
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { places: Published::new(vacant(1 << SMALLEST_BITS)), used: 0 }
    }

    pub(super) fn share(&mut self) -> BlocksReader {
        BlocksReader(self.places.share())
    }

    /// The number of blocks that have an entry.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn memory(&self) -> usize {
        self.places.memory()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Entry)> {
        let used = self.places.iter().map(|place| Place(place.load(Relaxed))).filter(|&place| place != Place::VACANT);
        used.map(|place| (place.block(), place.entry()))
    }

    fn place(&self, at: usize) -> Place {
        Place(self.places[at].load(Relaxed))
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// The place of the block, or the vacant place where it belongs.
    fn place_of(&self, block: u64) -> usize {
        let mut at = home(block, self.places.len());
        loop {
            let place = self.place(at);
            if place == Place::VACANT || place.block() == block {
                return at;
            }
            at = self.after(at);
        }
    }

    /// The block's entry.
    #[inline(always)]
    pub(super) fn get(&self, block: u64) -> Entry {
        look_up(&self.places, block)
    }

    /// Sets the block's entry; nothing removes it. The block is numbered below [`BLOCKS_END`].
    pub(super) fn set(&mut self, block: u64, entry: Entry) {
        debug_assert!(block < BLOCKS_END);
        let at = self.place_of(block);
        let was = self.place(at);
        let is = if entry == Entry::NOTHING { Place::VACANT } else { Place::new(block, entry) };
        match (was == Place::VACANT, is == Place::VACANT) {
            (true, true) => {}
            (false, false) => self.places[at].store(is.0, Relaxed),
            (true, false) => {
                self.places[at].store(is.0, Relaxed);
                self.used += 1;
                if self.used * 3 > self.places.len() * 2 {
                    self.resize(self.places.len() * 2);
                }
            }
            (false, true) => {
                self.used -= 1;
                self.close_gap(at);
                let sparse = self.used * 8 < self.places.len() && self.places.len() > 1 << SMALLEST_BITS;
                // Readers keep every edition alive: a table that breathes would leave one each time.
                if sparse && !self.places.is_shared() {
                    self.resize(self.places.len() / 2);
                }
            }
        }
    }

    /// Moves up what a vacated place would hide from its home.
    fn close_gap(&mut self, mut gap: usize) {
        let mut at = self.after(gap);
        let mask = self.places.len() - 1;
        while self.place(at) != Place::VACANT {
            let place = self.place(at);
            let from_home = at.wrapping_sub(home(place.block(), self.places.len())) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.places[gap].store(place.0, Relaxed);
                gap = at;
            }
            at = self.after(at);
        }
        self.places[gap].store(Place::VACANT.0, Relaxed);
    }

    fn resize(&mut self, places: usize) {
        let items = vacant(places);
        for (block, entry) in self.iter() {
            let mut at = home(block, places);
            while items[at].load(Relaxed) != Place::VACANT.0 {
                at = (at + 1) & (places - 1);
            }
            items[at].store(Place::new(block, entry).0, Relaxed);
        }
        self.places.replace(items);
    }
}
