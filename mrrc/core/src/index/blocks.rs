//! The hash table from block numbers to entries.
//!
//! Open addressing with linear probing, at most two thirds full, and deletion by shifting back,
//! so that there are no tombstones and a probe ends at the first vacant place. It exists beside the
//! well-kept hash maps because a hit can afford two nanoseconds here: the key is one word, a value is
//! never 0, and a look-up is two multiplications, a shift and usually one comparison.
//!
//! A place is one atomic word, so that hits on other threads can look blocks up while the owner works.
#![expect(unsafe_code, reason = "the path of a hit: a hash is scaled to the size of the table")]

use super::fork::Entry;
use super::lines::Lines;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An entry in the high half and its block's number in the low half; a vacant place is 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

impl Place {
    const VACANT: Self = Self(0);

    fn new(block: u64, entry: Entry) -> Self {
        Self(u64::from(entry.raw()) << 32 | block)
    }

    #[inline(always)]
    fn block(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    fn entry(self) -> Entry {
        Entry::from_raw((self.0 >> 32) as u32)
    }
}

/// Block numbers are below this, so that a place is eight bytes.
pub(super) const BLOCKS_END: u64 = 1 << 32;

/// Returns the place where the search for a block begins, in a power of two of places.
#[inline(always)]
fn home(places: &[AtomicU64], block: u64) -> usize {
    // Fibonacci hashing: the highest bits of the product mix all bits of the block number. Numbers that follow each
    // other are spread evenly, and mostly do not meet.
    let hash = (block as u32).wrapping_mul(0x9e37_79b9);
    // The highest bits, as many as number the places: to multiply by their number takes less than a shift by a
    // variable.
    ((u64::from(hash) * places.len() as u64) >> u32::BITS) as usize
}

/// Returns the entry of a block, read from places that may be changing. A number beyond [`BLOCKS_END`] can get
/// another block's entry. There are places, and at most 2^32.
#[inline(always)]
pub(super) fn entry_in(places: &[AtomicU64], block: u64) -> Entry {
    let home = home(places, block);
    // SAFETY: `home` is a number below 2^32 times the number of places, divided by 2^32: below that number, if there are
    // any, as in each table from its making. It does not overflow: there are at most 2^32 places.
    let place = Place(unsafe { places.get_unchecked(home) }.load(Relaxed));
    // A vacant place has the number of block 0 and the entry of nothing.
    if place.block() == block as u32 { place.entry() } else { look_further(places, block, home) }
}

#[cold]
#[inline(never)]
fn look_further(places: &[AtomicU64], block: u64, home: usize) -> Entry {
    let (before, from) = places.split_at(home);
    // A table is never full; the bound is for readers, which may see it change under their eyes.
    for place in from.iter().chain(before) {
        let place = Place(place.load(Relaxed));
        if place.block() == block as u32 || place == Place::VACANT {
            return place.entry();
        }
    }
    Entry::NOTHING
}

/// The table. Clones are the same table.
#[derive(Clone)]
pub(super) struct Blocks {
    /// A power of two of places, at most 2^32.
    places: Lines<AtomicU64>,
}

impl Blocks {
    pub(super) const SMALLEST: usize = 8;
    /// As many as there are numbers.
    const LARGEST: u64 = BLOCKS_END;

    /// Returns a table of so many places, a power of two of at least [`Blocks::SMALLEST`].
    pub(super) fn new(places: usize) -> Self {
        let fits = places >= Self::SMALLEST && places as u64 <= Self::LARGEST;
        assert!(places.is_power_of_two() && fits, "{places} places");
        const { assert!(Place::VACANT.0 == 0, "places begin as zeroes") };
        Self { places: Lines::zeroed(places) }
    }

    /// Returns the number of places.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.places.is_same(&other.places)
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.places)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Entry)> {
        let used = self.places.iter().map(|place| Place(place.load(Relaxed))).filter(|&place| place != Place::VACANT);
        used.map(|place| (u64::from(place.block()), place.entry()))
    }

    /// Returns the places themselves.
    #[inline(always)]
    pub(super) fn all(&self) -> &[AtomicU64] {
        &self.places
    }

    fn home(&self, block: u64) -> usize {
        home(&self.places, block)
    }

    /// See [`entry_in`].
    #[inline(always)]
    pub(super) fn get(&self, block: u64) -> Entry {
        entry_in(&self.places, block)
    }

    fn place(&self, at: usize) -> Place {
        Place(self.places[at].load(Relaxed))
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// The place of the block, or the vacant place where it belongs, and the entry there. The block is numbered
    /// below [`BLOCKS_END`].
    #[inline]
    pub(super) fn find(&self, block: u64) -> (usize, Entry) {
        debug_assert!(block < BLOCKS_END);
        let mut at = self.home(block);
        loop {
            let place = self.place(at);
            if place == Place::VACANT || place.block() == block as u32 {
                return (at, place.entry());
            }
            at = self.after(at);
        }
    }

    /// Sets the entry of a block at the place where [`Blocks::find`] found it; it is not nothing.
    pub(super) fn set(&self, at: usize, block: u64, entry: Entry) {
        debug_assert!(entry != Entry::NOTHING);
        self.places[at].store(Place::new(block, entry).0, Relaxed);
    }

    /// Vacates a place, and moves up what it would hide from its home.
    pub(super) fn vacate(&self, mut gap: usize) {
        let mut at = self.after(gap);
        let mask = self.places.len() - 1;
        while self.place(at) != Place::VACANT {
            let place = self.place(at);
            let from_home = at.wrapping_sub(self.home(u64::from(place.block()))) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.places[gap].store(place.0, Relaxed);
                gap = at;
            }
            at = self.after(at);
        }
        self.places[gap].store(Place::VACANT.0, Relaxed);
    }

    /// Returns whether the table could be larger.
    pub(super) fn can_grow(&self) -> bool {
        (self.places() as u64) < Self::LARGEST
    }

    /// Returns a table of so many places with the same entries.
    pub(super) fn resized(&self, places: usize) -> Self {
        let table = Self::new(places);
        for (block, entry) in self.iter() {
            table.set(table.find(block).0, block, entry);
        }
        table
    }
}
