//! Sets of byte ranges.

use std::ops::Range;

use super::fields::{Reader, check};
use super::{FilesError, MAX_VALUE, VERSION};

/// Ranges of a value at most.
pub const MAX_RANGES: usize = (MAX_VALUE - HEAD) / 16;

const HEAD: usize = 8;

/// A set of bytes of a file, as ranges that neither overlap nor touch, in their order.
///
/// As a value:
///
/// ```text
/// 0 u8 version   1 u8[3] zero   4 u32 count   8 the ranges: u64 start, u64 end
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Returns the set of one range's bytes.
    pub fn of(range: Range<u64>) -> Self {
        let mut ranges = Self::default();
        ranges.insert(range);
        ranges
    }

    /// Adds the bytes of a range. An empty one changes nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Those that overlap or touch become one with it.
        let first = self.0.partition_point(|&(_, end)| end < range.start);
        let last = self.0.partition_point(|&(start, _)| start <= range.end);
        let start = self.0.get(first).map_or(range.start, |&(start, _)| start.min(range.start));
        let end = self.0[..last].last().map_or(range.end, |&(_, end)| end.max(range.end));
        self.0.splice(first..last.max(first), [(start, end)]);
    }

    /// Removes the bytes of a range.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|&(_, end)| end <= range.start);
        let last = self.0.partition_point(|&(start, _)| start < range.end).max(first);
        let left = self.0[first..last].first().map(|&(start, _)| (start, range.start));
        let right = self.0[first..last].last().map(|&(_, end)| (range.end, end));
        let parts = [left, right].into_iter().flatten().filter(|(start, end)| start < end);
        let parts: Vec<(u64, u64)> = parts.collect();
        self.0.splice(first..last, parts);
    }

    /// Adds all bytes of another set.
    pub fn union(&mut self, other: &Self) {
        other.iter().for_each(|range| self.insert(range));
    }

    /// Returns whether all bytes of a range are in the set.
    pub fn covers(&self, range: Range<u64>) -> bool {
        let at = self.0.partition_point(|&(_, end)| end <= range.start);
        range.is_empty() || self.0.get(at).is_some_and(|&(start, end)| start <= range.start && range.end <= end)
    }

    /// Returns the parts of a range that are not in the set, in their order.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let first = self.0.partition_point(|&(_, end)| end <= range.start);
        for &(start, end) in self.0[first..].iter().take_while(|&&(start, _)| start < range.end) {
            if at < start {
                gaps.push(at..start);
            }
            at = end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Returns the ranges in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|&(start, end)| start..end)
    }

    /// Returns the first so many ranges.
    pub fn first(&self, count: usize) -> Self {
        Self(self.0[..count.min(self.0.len())].to_vec())
    }

    /// Returns how many ranges there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value. It can be read if there are at most [`MAX_RANGES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, 0, 0, 0];
        out.extend((self.0.len() as u32).to_le_bytes());
        for (start, end) in &self.0 {
            out.extend(start.to_le_bytes());
            out.extend(end.to_le_bytes());
        }
        out
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// The bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, FilesError> {
        let mut reader = Reader::new(bytes)?;
        reader.zeros(3)?;
        let count = reader.u32()? as usize;
        check(count <= MAX_RANGES, "number of ranges")?;
        check(count * 16 <= bytes.len(), "number of ranges")?;
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(count);
        for _ in 0..count {
            let (start, end) = (reader.u64()?, reader.u64()?);
            let follows = ranges.last().is_none_or(|&(_, before)| before < start);
            check(follows && start < end, "range")?;
            ranges.push((start, end));
        }
        reader.end()?;
        Ok(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    fn bytes_of(ranges: &Ranges) -> Vec<bool> {
        (0..SIZE).map(|byte| ranges.covers(byte..byte + 1)).collect()
    }

    proptest! {
        #[test]
        fn a_set_holds_the_bytes_of_a_plain_vector(
            steps in proptest::collection::vec((any::<bool>(), 0..SIZE, 0..SIZE), 0..40),
            asked in (0..SIZE, 0..SIZE),
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), vec![false; SIZE as usize]);
            for (is_added, start, end) in steps {
                bytes.iter_mut().enumerate().filter(|(at, _)| (start..end).contains(&(*at as u64))).for_each(|(_, byte)| *byte = is_added);
                if is_added { ranges.insert(start..end) } else { ranges.remove(start..end) }
                prop_assert_eq!(&bytes_of(&ranges), &bytes);
                prop_assert_eq!(Ranges::decode(&ranges.encode()), Ok(ranges.clone()));
            }
            let asked = asked.0..asked.1;
            let is_covered = asked.clone().all(|byte| bytes[byte as usize]);
            prop_assert_eq!(ranges.covers(asked.clone()), is_covered);
            let gaps: Vec<u64> = ranges.gaps(asked.clone()).into_iter().flatten().collect();
            let missing: Vec<u64> = asked.filter(|&byte| !bytes[byte as usize]).collect();
            prop_assert_eq!(gaps, missing);
        }
    }

    #[test]
    fn refuses_ranges_that_touch_or_are_too_many() {
        let mut ranges = Ranges::of(0..1);
        ranges.insert(2..3);
        let mut bytes = ranges.encode();
        bytes[24] = 1;
        assert_eq!(Ranges::decode(&bytes), Err(FilesError::Field("range")));
        let many = Ranges((0..=MAX_RANGES as u64).map(|at| (2 * at, 2 * at + 1)).collect());
        assert_eq!(Ranges::decode(&many.encode()), Err(FilesError::Field("number of ranges")));
        let most = Ranges(many.0[1..].to_vec()).encode();
        assert!(most.len() <= MAX_VALUE);
        assert!(Ranges::decode(&most).is_ok());
    }
}
