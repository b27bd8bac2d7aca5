//! The recently evicted: ranges without their registration, oldest first.
//!
//! A ghost takes up no pages, but it stands for those that its region had, and the memory is bounded
//! in them. Since a range has a page at least, the number of ghosts is bounded with it.
//!
//! A request that misses asks for its ghost *after* its victims have left, because only then does the
//! policy learn of it. So that its victims cannot push out the very ghost that it is about to find,
//! [`Ghosts::insert`] lets the limit be passed until [`Ghosts::trim`] is called, which is done once the
//! look-up is over and before each run of victims.

use crate::range::PageRange;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Evicted ranges in the order in which they left, each with what the policy remembers of it.
#[derive(Debug)]
pub struct Ghosts<V = ()> {
    limit: u64,
    pages: u64,
    entries: u64,
    /// By range, its entry number and what is remembered.
    known: FxHashMap<PageRange, (u64, V)>,
    /// Entry numbers and ranges, oldest first; those that are no longer known so are skipped.
    order: VecDeque<(u64, PageRange)>,
}

impl<V> Ghosts<V> {
    /// Returns an empty memory of at most `limit` pages.
    pub fn new(limit: u64) -> Self {
        Self { limit, pages: 0, entries: 0, known: FxHashMap::default(), order: VecDeque::new() }
    }

    /// Returns the pages of all ghosts.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Remembers a range as the newest. One that alone is too large is forgotten at once, so that it
    /// does not push out all others.
    pub fn insert(&mut self, range: PageRange, value: V) {
        self.remove(range);
        if range.pages() > self.limit {
            return;
        }
        self.entries += 1;
        self.pages += range.pages();
        self.known.insert(range, (self.entries, value));
        self.order.push_back((self.entries, range));
        // A ghost that was removed out of turn leaves its place in the order behind.
        if self.order.len() > 2 * self.known.len() + 64 {
            self.order.retain(|(entry, range)| self.known.get(range).is_some_and(|(known, _)| known == entry));
        }
    }

    /// Forgets a range and returns what was remembered of it, if anything was.
    pub fn remove(&mut self, range: PageRange) -> Option<V> {
        let (_, value) = self.known.remove(&range)?;
        self.pages -= range.pages();
        Some(value)
    }

    /// Returns the memory of a range.
    pub fn get(&self, range: PageRange) -> Option<&V> {
        self.known.get(&range).map(|(_, value)| value)
    }

    /// Returns the range that has been here longest.
    pub fn oldest(&mut self) -> Option<PageRange> {
        while let Some((entry, range)) = self.order.front() {
            if self.known.get(range).is_some_and(|(known, _)| known == entry) {
                return Some(*range);
            }
            self.order.pop_front();
        }
        None
    }

    /// Forgets the range that has been here longest; whether there was one.
    pub fn drop_oldest(&mut self) -> bool {
        self.oldest().and_then(|range| self.remove(range)).is_some()
    }

    /// Forgets the oldest until the limit holds.
    pub fn trim(&mut self) {
        while self.pages > self.limit {
            self.drop_oldest();
        }
    }

    /// Bytes allocated, without what the values themselves allocated.
    pub fn memory(&self) -> usize {
        self.known.capacity() * (size_of::<(PageRange, (u64, V))>() + 1)
            + self.order.capacity() * size_of::<(u64, PageRange)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::new(start, pages).unwrap()
    }

    #[test]
    fn the_oldest_give_way_and_a_giant_pushes_out_nobody() {
        let mut ghosts = Ghosts::new(10);
        for i in 0..4 {
            ghosts.insert(range(10 * i, 3), i);
        }
        assert_eq!(ghosts.get(range(0, 3)), Some(&0), "the limit waits for the look-up");
        ghosts.trim();
        assert_eq!((ghosts.pages(), ghosts.get(range(0, 3))), (9, None));
        ghosts.insert(range(100, 11), 9);
        ghosts.trim();
        assert_eq!((ghosts.pages(), ghosts.oldest()), (9, Some(range(10, 3))));
        assert_eq!(ghosts.remove(range(10, 3)), Some(1));
        assert_eq!(ghosts.oldest(), Some(range(20, 3)));
    }

    #[test]
    fn what_returns_counts_from_its_return() {
        let mut ghosts = Ghosts::new(2);
        ghosts.insert(range(1, 1), 'a');
        ghosts.insert(range(2, 1), 'b');
        ghosts.insert(range(1, 1), 'c');
        ghosts.insert(range(3, 1), 'd');
        ghosts.trim();
        assert_eq!((ghosts.get(range(1, 1)), ghosts.get(range(2, 1))), (Some(&'c'), None));
    }

    #[test]
    fn memory_stays_bounded_when_ghosts_come_and_go() {
        let mut ghosts = Ghosts::new(100);
        for i in 0..100_000 {
            ghosts.insert(range(i % 150, 1), ());
            ghosts.remove(range((i * 7) % 150, 1));
            ghosts.trim();
        }
        assert!(ghosts.memory() < 100 * 150, "{} bytes", ghosts.memory());
    }
}
