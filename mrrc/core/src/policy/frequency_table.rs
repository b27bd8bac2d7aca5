//! How often regions were used before they were evicted: a table of bounded size that forgets.
//!
//! A place holds one range, named by a hash of 56 bits, beside its count; what comes to a taken place
//! pushes out what was there. So a look-up reads one word, nothing is ever listed or swept, and what was evicted
//! long ago is forgotten by chance, later the larger the table is. The table grows with the cache: at least as many
//! places as regions.

use crate::range::PageRange;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// Places of a table that was never grown: 2 KiB.
const LEAST: usize = 1 << 8;

/// The bits of a place that hold the count; the others hold the name.
const COUNT: u64 = 0xff;

/// Returns a well-mixed name of a range: any of its bits serves to choose by.
pub(super) fn name_of(range: PageRange) -> u64 {
    let mut hasher = FxHasher::default();
    range.hash(&mut hasher);
    // The finisher of MurmurHash3.
    let h = hasher.finish();
    let h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

/// Counts by name. A count of 0 is an empty place.
#[derive(Debug)]
pub(super) struct FrequencyTable {
    places: Vec<u64>,
}

impl FrequencyTable {
    pub(super) fn new() -> Self {
        Self { places: vec![0; LEAST] }
    }

    #[inline]
    fn place(&self, name: u64) -> usize {
        // A part of the name that is kept, so that a place can be moved when the table grows.
        (name >> 8) as usize & (self.places.len() - 1)
    }

    /// Remembers the uses of what is evicted; forgets some other.
    pub(super) fn insert(&mut self, name: u64, uses: u32) {
        let place = self.place(name);
        self.places[place] = name & !COUNT | u64::from(uses).min(COUNT);
    }

    /// Returns the uses that are remembered, or 0.
    #[inline]
    pub(super) fn get(&self, name: u64) -> u32 {
        let found = self.places[self.place(name)];
        if (found ^ name) & !COUNT == 0 { (found & COUNT) as u32 } else { 0 }
    }

    /// Forgets what was not evicted after all.
    pub(super) fn forget(&mut self, name: u64) {
        let place = self.place(name);
        if self.get(name) > 0 {
            self.places[place] = 0;
        }
    }

    /// Grows to a place for each of that many regions at least.
    pub(super) fn grow(&mut self, regions: usize) {
        if self.places.len() >= regions {
            return;
        }
        let larger = vec![0; regions.next_power_of_two()];
        for old in std::mem::replace(&mut self.places, larger) {
            let place = self.place(old);
            self.places[place] = self.places[place].max(old);
        }
    }

    /// Bytes allocated.
    pub(super) fn memory(&self) -> usize {
        self.places.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: u64) -> u64 {
        name_of(PageRange::new(i * 3, 1 + i % 4).unwrap())
    }

    #[test]
    fn frequency_table_keeps_recent_and_stays_small() {
        let mut table = FrequencyTable::new();
        let memory = table.memory();
        for i in 0..100_000 {
            table.insert(name(i), 1 + (i % 300) as u32);
        }
        let known = |table: &FrequencyTable, from: u64, to: u64| (from..to).filter(|&i| table.get(name(i)) > 0).count();
        assert!(known(&table, 99_980, 100_000) > 15);
        assert!(known(&table, 0, 98_000) < 10);
        assert_eq!(table.memory(), memory);
        let last = table.get(name(99_999));
        assert_eq!(last, 1 + 99_999 % 300, "the last one cannot have been pushed out");
        table.insert(name(7), 1_000);
        assert_eq!(table.get(name(7)), 255, "counts saturate");
    }

    #[test]
    fn growing_forgets_nothing() {
        let mut table = FrequencyTable::new();
        (0..200).for_each(|i| table.insert(name(i), 5));
        let known = |table: &FrequencyTable| (0..200).filter(|&i| table.get(name(i)) == 5).count();
        let before = known(&table);
        table.grow(5_000);
        assert_eq!(known(&table), before);
        assert_eq!(table.memory(), 8 * 8192);
        table.forget(name(199));
        assert_eq!((table.get(name(199)), known(&table)), (0, before - 1));
    }
}
