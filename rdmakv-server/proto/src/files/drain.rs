//! Draining a frozen generation of a file, at one server.
//!
//! A frozen generation never changes, so a slice may be written twice, late, and by two servers: the bytes are the same. Bytes count as on
//! disk once they are synced.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Generation, Ino, Inode, Key, MAX_RANGES, Ranges};

/// Files of which a server remembers that the backing has a generation, at most. Those that were persisted first are forgotten first.
pub const MAX_PERSISTED: usize = 1 << 17;

/// The generations that a server froze: chunks of them never change there.
///
/// The freeze outlasts the chunks. Clean ones leave memory, and a mount that seemed dead may store one late. That would take the place
/// of the one that is only on the backing. So a server remembers the last generation of a file that was persisted, and accepts none up to it. Memory is bounded, so it forgets those of the files that were persisted first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Finals {
    frozen: BTreeSet<(Ino, Generation)>,
    /// The last generation of a file that the backing has, and its place in the order.
    persisted: BTreeMap<Ino, (Generation, u64)>,
    order: BTreeMap<u64, Ino>,
    last: u64,
}

impl Finals {
    /// Freezes a generation.
    pub fn freeze(&mut self, ino: Ino, generation: Generation) {
        if !self.is_persisted(ino, generation) {
            self.frozen.insert((ino, generation));
        }
    }

    /// Returns how many generations are frozen that the backing does not have.
    pub fn len(&self) -> usize {
        self.frozen.len()
    }

    /// Returns whether no generation is frozen that the backing does not have.
    pub fn is_empty(&self) -> bool {
        self.frozen.is_empty()
    }

    /// Returns whether a generation is frozen. It may be on the backing.
    pub fn has(&self, ino: Ino, generation: Generation) -> bool {
        self.frozen.contains(&(ino, generation)) || self.is_persisted(ino, generation)
    }

    /// Returns whether the backing has a generation, or a later one of the file.
    pub fn is_persisted(&self, ino: Ino, generation: Generation) -> bool {
        self.persisted.get(&ino).is_some_and(|&(last, _)| generation <= last)
    }

    /// Takes a generation that the backing has. It and earlier ones of its file are never written again.
    pub fn persisted(&mut self, ino: Ino, generation: Generation) {
        while let Some(&frozen) = self.frozen.range((ino, Generation(0))..=(ino, generation)).next() {
            self.frozen.remove(&frozen);
        }
        let before = self.persisted.get(&ino).copied();
        self.last += 1;
        let last = before.map_or(generation, |(last, _)| last.max(generation));
        self.persisted.insert(ino, (last, self.last));
        self.order.insert(self.last, ino);
        if let Some((_, place)) = before {
            self.order.remove(&place);
        }
        if self.order.len() > MAX_PERSISTED
            && let Some((_, first)) = self.order.pop_first()
        {
            self.persisted.remove(&first);
        }
    }

    /// Returns whether a write of a key is accepted.
    pub fn accepts(&self, key: &Key) -> bool {
        let Key::Chunk(ino, generation, _) = key else { return true };
        !self.has(*ino, *generation)
    }
}

/// A server's part of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// A data fragment: its index, and the bytes of each fragment.
    Fragment(u8, u64),
}

/// The places of a file's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Places {
    /// Bytes of the file.
    pub size: u64,
    /// Binary logarithm of a chunk's bytes.
    pub chunk_bits: u8,
}

impl From<&Inode> for Places {
    fn from(inode: &Inode) -> Self {
        Self { size: inode.size, chunk_bits: inode.chunk_bits }
    }
}

impl Places {
    /// Returns the bytes of the file that a server writes for a part of a chunk, and those that it may state as covered.
    ///
    /// A chunk of fewer bytes than its place in the file ends with zeros. They are a hole of the file on the backing. The part with
    /// the chunk's last byte covers them, and of an empty chunk the first part.
    pub fn slice(self, index: u32, length: u64, part: Part) -> (Range<u64>, Range<u64>) {
        let start = u64::from(index) << self.chunk_bits;
        let end = self.size.min(start + (1 << self.chunk_bits));
        let length = length.min(end.saturating_sub(start));
        let (from, to) = match part {
            Part::Whole => (0, length),
            Part::Fragment(fragment, bytes) => {
                let from = bytes.saturating_mul(u64::from(fragment));
                (from.min(length), from.saturating_add(bytes).min(length))
            }
        };
        let is_last = to == length && (from < to || from == 0);
        let written = start + from..start + to;
        let covered = written.start..if is_last { end.max(written.end) } else { written.end };
        (written, covered)
    }
}

/// A server's draining of one generation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Draining {
    /// To be written.
    left: Ranges,
    /// Written, but a sync has not begun since.
    written: Ranges,
    /// Written before the sync that is under way.
    syncing: Ranges,
    synced: Ranges,
}

impl Draining {
    /// Begins with the ranges of the server's own `p/INO/GEN/SERVER`, if there is one.
    pub fn new(synced: Ranges) -> Self {
        Self { synced, ..Self::default() }
    }

    /// Adds the bytes of a part that the server has. What it wrote before is not written again.
    pub fn add(&mut self, covered: Range<u64>) {
        let mut known = self.synced.clone();
        known.union(&self.written);
        known.union(&self.syncing);
        known.gaps(covered).into_iter().for_each(|gap| self.left.insert(gap));
    }

    /// Returns the next range to be written.
    pub fn next(&self) -> Option<Range<u64>> {
        self.left.iter().next()
    }

    /// Returns the bytes that are to be written.
    pub fn left(&self) -> &Ranges {
        &self.left
    }

    /// Takes a range that was written.
    pub fn wrote(&mut self, range: Range<u64>) {
        self.left.remove(range.clone());
        self.written.insert(range);
    }

    /// A sync begins. Returns whether one is needed, and none is under way.
    pub fn begin_sync(&mut self) -> bool {
        let begins = self.syncing.is_empty() && !self.written.is_empty();
        if begins {
            self.syncing = std::mem::take(&mut self.written);
        }
        begins
    }

    /// Takes the end of a sync. After a failed one all is written again that was not synced: the system may have dropped it.
    pub fn end_sync(&mut self, succeeded: bool) {
        let syncing = std::mem::take(&mut self.syncing);
        if succeeded {
            self.synced.union(&syncing);
        } else {
            self.left.union(&syncing);
            self.left.union(&std::mem::take(&mut self.written));
        }
    }

    /// Returns the bytes that were written and are not synced.
    pub fn unsynced(&self) -> &Ranges {
        &self.written
    }

    /// Returns the value of `p/INO/GEN/SERVER`: as many ranges as fit. The bytes of others are written again if need be.
    pub fn value(&self) -> Ranges {
        self.synced.first(MAX_RANGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Fragments of all data holders cover a chunk, whatever its length, and write each of its bytes once.
        #[test]
        fn slices_of_a_chunk_cover_it(length in 0..=65_536_u64, more in 0..70_000_u64, k in 1..9_u64, index in 0..3_u32) {
            let start = u64::from(index) << 16;
            let places = Places { size: (start + length + more).max(1), chunk_bits: 16 };
            let bytes = length.div_ceil(k).next_multiple_of(64);
            let (mut written, mut covered, mut sum) = (Ranges::default(), Ranges::default(), 0);
            for fragment in 0..k {
                let (bytes, place) = places.slice(index, length, Part::Fragment(fragment as u8, bytes));
                sum += bytes.end - bytes.start;
                prop_assert!(place.start == bytes.start && place.end >= bytes.end);
                written.insert(bytes);
                covered.insert(place);
            }
            let end = places.size.min(start + 65_536);
            prop_assert!(written.covers(start..start + length) && sum == length);
            prop_assert!(covered.covers(start..end));
            let whole = places.slice(index, length, Part::Whole);
            prop_assert_eq!(whole, (start..start + length, start..end));
        }
    }

    #[test]
    fn a_persisted_generation_stays_final() {
        let mut finals = Finals::default();
        for (ino, generation) in [(4, 9), (5, 1), (5, 2), (5, 3), (6, 1)] {
            finals.freeze(Ino(ino), Generation(generation));
        }
        finals.persisted(Ino(5), Generation(2));
        assert_eq!(finals.len(), 3);
        let accepts = |finals: &Finals, generation| finals.accepts(&Key::Chunk(Ino(5), Generation(generation), 0));
        assert_eq!([1, 2, 3, 4].map(|generation| accepts(&finals, generation)), [false, false, false, true]);
        // A call that comes late changes nothing.
        finals.persisted(Ino(5), Generation(1));
        finals.freeze(Ino(5), Generation(2));
        assert_eq!((finals.len(), accepts(&finals, 2)), (3, false));
        assert!(finals.is_persisted(Ino(5), Generation(2)) && !finals.is_persisted(Ino(5), Generation(3)));
    }

    #[test]
    fn the_file_persisted_first_is_forgotten_first() {
        let mut finals = Finals::default();
        (0..MAX_PERSISTED as u64).for_each(|ino| finals.persisted(Ino(ino), Generation(1)));
        finals.persisted(Ino(0), Generation(2));
        finals.persisted(Ino(u64::MAX), Generation(1));
        assert!(finals.is_persisted(Ino(0), Generation(2)) && !finals.is_persisted(Ino(1), Generation(1)));
        assert_eq!((finals.persisted.len(), finals.order.len()), (MAX_PERSISTED, MAX_PERSISTED));
    }

    #[test]
    fn ranges_count_once_they_are_synced() {
        let mut draining = Draining::new(Ranges::of(0..10));
        draining.add(0..30);
        assert_eq!(draining.next(), Some(10..30));
        draining.wrote(10..20);
        assert!(draining.begin_sync() && !draining.begin_sync());
        // Written after the sync began, so another one is needed.
        draining.wrote(20..30);
        assert_eq!(draining.value(), Ranges::of(0..10));
        draining.end_sync(true);
        assert_eq!((draining.value(), draining.next()), (Ranges::of(0..20), None));
        assert!(draining.begin_sync());
        draining.end_sync(false);
        assert_eq!((draining.value(), draining.next()), (Ranges::of(0..20), Some(20..30)));
    }

    #[test]
    fn states_as_many_ranges_as_fit() {
        let mut ranges = Ranges::default();
        (0..=MAX_RANGES as u64).for_each(|at| ranges.insert(2 * at..2 * at + 1));
        let value = Draining::new(ranges.clone()).value();
        assert_eq!((value.len(), ranges.len()), (MAX_RANGES, MAX_RANGES + 1));
        assert_eq!(Ranges::decode(&value.encode()), Ok(value));
    }
}
