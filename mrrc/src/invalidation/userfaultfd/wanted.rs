//! How many regions rely on each page.
//!
//! Regions of one cache hardly ever overlap, so mostly one region at most relies on a page. A page is a bit then, in a word of 64.
//! Whole words of a range are bits of the next *level*: a cell of level 1 is a word of level 0, and so on. So a range takes
//! two words of a level at most, however long it is.
//!
//! Two caches over the same memory may want the same pages, and so may two classes of rights. The second such range is *repeated*.
//! A map of ranges counts it, and another its pages.

use crate::range::PageRange;
use rangemap::RangeMap;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

/// log2 of the cells in a word.
const WORD_BITS: u32 = 6;
const LAST_CELL: u64 = (1 << WORD_BITS) - 1;
/// With these all pages have a word: they are numbered below 2^52.
const LEVELS: u32 = 9;
/// Room for no more words than these is kept whatever is in use.
const FEW: usize = 1024;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Wanted {
    words: FxHashMap<Key, u64>,
    /// How often a range was added beyond what `words` has.
    repeated: FxHashMap<PageRange, u64>,
    /// How many of those have a page; pages of none are absent.
    shared: RangeMap<u64, u64>,
}

/// Names a word: its number among those of its level, and the level in the lowest bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key(u64);

impl Key {
    const LEVEL_BITS: u32 = 4;

    fn new(level: u32, word: u64) -> Self {
        Self(word << Self::LEVEL_BITS | u64::from(level))
    }

    fn word(self) -> u64 {
        self.0 >> Self::LEVEL_BITS
    }

    /// Returns log2 of the pages of a cell.
    fn cell_bits(self) -> u32 {
        WORD_BITS * (self.0 as u32 & ((1 << Self::LEVEL_BITS) - 1))
    }
}

/// The cells of a range, word by word.
struct Cells {
    level: u32,
    start: u64,
    end: u64,
}

impl Cells {
    fn of(range: PageRange) -> Self {
        Self { level: 0, start: range.start(), end: range.end() }
    }
}

impl Iterator for Cells {
    type Item = (Key, u64);

    #[inline]
    fn next(&mut self) -> Option<(Key, u64)> {
        while self.start < self.end {
            let (first, last) = (self.start >> WORD_BITS, (self.end - 1) >> WORD_BITS);
            let (from, to) = (self.start & LAST_CELL, self.end & LAST_CELL);
            if first == last {
                let cells = self.end - self.start;
                self.start = self.end;
                return Some((Key::new(self.level, first), u64::MAX >> (LAST_CELL + 1 - cells) << from));
            }
            if from != 0 {
                self.start = (first + 1) << WORD_BITS;
                return Some((Key::new(self.level, first), u64::MAX << from));
            }
            if to != 0 {
                self.end -= to;
                return Some((Key::new(self.level, last), (1 << to) - 1));
            }
            self.level += 1;
            self.start >>= WORD_BITS;
            self.end >>= WORD_BITS;
        }
        None
    }
}

impl Wanted {
    /// One region more relies on the pages.
    #[inline]
    pub(super) fn add(&mut self, range: PageRange) {
        for (set, (key, cells)) in Cells::of(range).enumerate() {
            let word = self.words.entry(key).or_default();
            if *word & cells != 0 {
                // Not in part: either the words have all of a range, or the maps do.
                Cells::of(range).take(set).for_each(|(key, cells)| self.clear(key, cells));
                return self.add_repeated(range);
            }
            *word |= cells;
        }
    }

    /// One region less relies on the pages: the same as were added. Returns false, and does nothing, where they were not.
    #[inline]
    pub(super) fn remove(&mut self, range: PageRange) -> bool {
        if !self.repeated.is_empty() && self.remove_repeated(range) {
            return true;
        }
        let mut cells = Cells::of(range);
        let is_known = cells.all(|(key, cells)| self.words.get(&key).is_some_and(|word| word & cells == cells));
        if is_known {
            Cells::of(range).for_each(|(key, cells)| self.clear(key, cells));
            let (used, room) = (self.words.len(), self.words.capacity());
            if room > FEW && used < room / 8 {
                self.words.shrink_to(used * 2);
            }
        }
        is_known
    }

    /// Returns the sum of the counts of the pages.
    pub(super) fn sum(&self, range: PageRange) -> u64 {
        let mut sum = 0;
        self.for_each_run(range, |run, count| sum += (run.end - run.start) * count);
        sum
    }

    /// Shows runs of pages that count within a range, and how often; in no order, and a page can be in several.
    pub(super) fn for_each_run(&self, range: PageRange, mut show: impl FnMut(Range<u64>, u64)) {
        let mut show_word = |key: Key, mut word: u64| {
            let bits = key.cell_bits();
            while word != 0 {
                let first = word.trailing_zeros();
                let cells = (word >> first).trailing_ones();
                word &= !(u64::MAX >> (u64::BITS - cells) << first);
                let start = (key.word() << WORD_BITS | u64::from(first)) << bits;
                let run = start.max(range.start())..(start + (u64::from(cells) << bits)).min(range.end());
                if run.start < run.end {
                    show(run, 1);
                }
            }
        };
        let words_of = |level: u32| {
            let bits = WORD_BITS * (level + 1);
            range.start() >> bits..=(range.end() - 1) >> bits
        };
        // A long range has more words than there are.
        let bottom = words_of(0);
        if (bottom.end() - bottom.start()) / 2 > self.words.len() as u64 {
            self.words.iter().for_each(|(&key, &word)| show_word(key, word));
        } else {
            for level in 0..LEVELS {
                for key in words_of(level).map(|word| Key::new(level, word)) {
                    if let Some(&word) = self.words.get(&key) {
                        show_word(key, word);
                    }
                }
            }
        }
        for (run, &count) in self.shared.overlapping(range.start()..range.end()) {
            show(run.start.max(range.start())..run.end.min(range.end()), count);
        }
    }

    fn clear(&mut self, key: Key, cells: u64) {
        if let Entry::Occupied(mut word) = self.words.entry(key) {
            *word.get_mut() &= !cells;
            if *word.get() == 0 {
                word.remove();
            }
        }
    }

    #[cold]
    fn add_repeated(&mut self, range: PageRange) {
        *self.repeated.entry(range).or_default() += 1;
        self.count(range, |count| count + 1);
    }

    #[cold]
    fn remove_repeated(&mut self, range: PageRange) -> bool {
        let Entry::Occupied(mut times) = self.repeated.entry(range) else { return false };
        *times.get_mut() -= 1;
        if *times.get() == 0 {
            times.remove();
        }
        self.count(range, |count| count.saturating_sub(1));
        true
    }

    /// Changes the counts of repeated ranges for each page of one.
    fn count(&mut self, range: PageRange, change: impl Fn(u64) -> u64) {
        let pages = range.start()..range.end();
        let held: Vec<_> = self.shared.overlapping(pages.clone()).map(|(run, &count)| (run.clone(), count)).collect();
        let mut next = pages.start;
        let mut set = |run: Range<u64>, count: u64| match (run.is_empty(), count) {
            (true, _) => {}
            (_, 0) => self.shared.remove(run),
            _ => self.shared.insert(run, count),
        };
        for (run, count) in held {
            let (start, end) = (run.start.max(pages.start), run.end.min(pages.end));
            set(next..start, change(0));
            set(start..end, change(count));
            next = end;
        }
        set(next..pages.end, change(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::new(start, pages).unwrap()
    }

    #[test]
    fn cells_are_the_pages_of_their_range() {
        let edges = [0, 1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 8192, 262_144, 300_000];
        for (start, end) in edges.iter().flat_map(|&start| edges.iter().map(move |&end| (start, end))) {
            if start >= end {
                continue;
            }
            let mut wanted = Wanted::default();
            wanted.add(range(start, end - start));
            assert!(Cells::of(range(start, end - start)).count() <= 6);
            let mut runs = Vec::new();
            wanted.for_each_run(range(0, 1 << 20), |run, count| runs.push((run.start, run.end, count)));
            runs.sort_unstable();
            assert_eq!((runs[0].0, runs[runs.len() - 1].1), (start, end));
            assert!(runs.windows(2).all(|two| two[0].1 == two[1].0) && runs.iter().all(|&(.., count)| count == 1));
            assert_eq!(wanted.sum(range(start, 1)), 1);
            assert!(wanted.remove(range(start, end - start)) && wanted.words.is_empty());
        }
    }

    #[test]
    fn dense_regions_share_their_words() {
        let mut wanted = Wanted::default();
        (0..4096).for_each(|nth| wanted.add(range(16 * nth + 3, 16)));
        assert!(wanted.words.len() <= 1025 && wanted.repeated.is_empty());
        assert_eq!(wanted.sum(range(0, 1 << 40)), 16 * 4096);
        (0..4096).for_each(|nth| assert!(wanted.remove(range(16 * nth + 3, 16))));
        assert!(wanted.words.is_empty() && wanted.words.capacity() <= 2 * FEW);
    }

    #[test]
    fn huge_ranges_take_few_words() {
        let mut wanted = Wanted::default();
        wanted.add(range(1, (1 << 51) - 7));
        assert!(wanted.words.len() <= 18);
        assert_eq!(wanted.sum(range(0, 1 << 52)), (1 << 51) - 7);
        assert!(!wanted.remove(range(1, 1 << 51)) && wanted.remove(range(1, (1 << 51) - 7)));
    }

    proptest! {
        /// Against a count for each page.
        #[test]
        fn counts_agree_with_naive_ones(
            steps in prop::collection::vec((any::<bool>(), 0_u64..200, 1_u64..200, any::<usize>()), 1..60),
            looks in prop::collection::vec((0_u64..300, 1_u64..200), 1..5),
        ) {
            let (mut wanted, mut naive, mut regions) = (Wanted::default(), [0_u64; 600], Vec::new());
            for (adds, start, pages, which) in steps {
                if adds || regions.is_empty() {
                    regions.push(range(start, pages));
                    wanted.add(range(start, pages));
                    naive[start as usize..][..pages as usize].iter_mut().for_each(|count| *count += 1);
                } else {
                    let gone = regions.swap_remove(which % regions.len());
                    prop_assert!(wanted.remove(gone));
                    naive[gone.start() as usize..gone.end() as usize].iter_mut().for_each(|count| *count -= 1);
                }
                for &(start, pages) in &looks {
                    let expected: u64 = naive[start as usize..][..pages as usize].iter().sum();
                    prop_assert_eq!(wanted.sum(range(start, pages)), expected);
                }
            }
            regions.into_iter().for_each(|region| assert!(wanted.remove(region)));
            prop_assert!(wanted.words.is_empty() && wanted.repeated.is_empty() && wanted.shared.is_empty());
        }
    }
}
