//! Parts of a buffer, as lists in which each byte is at most once.

use crate::wire::{Placed, Segment};

/// Bytes of the local buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Extent {
    /// Returns the first byte behind it. The maker of an extent has checked that it does not wrap.
    fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Returns the part of a piece that lies in it.
    pub(super) fn part_of(self, piece: Placed) -> Option<Placed> {
        let Placed { offset, segment } = piece;
        let start = offset.max(self.offset);
        let end = (offset + segment.length).min(self.end());
        let length = end.checked_sub(start).filter(|&length| length > 0)?;
        let segment = Segment { address: segment.address + (start - offset), length, key: segment.key };
        Some(Placed { offset: start, segment })
    }
}

/// Adds an extent to a list that is sorted, and in which those that touch are one: a write can then gather over both.
/// False, and nothing is added, where one of its bytes is there already.
pub(super) fn add(extents: &mut Vec<Extent>, new: Extent) -> bool {
    let at = extents.partition_point(|extent| extent.end() <= new.offset);
    if extents.get(at).is_some_and(|after| after.offset < new.end()) {
        return false;
    }
    let joins_before = at > 0 && extents[at - 1].end() == new.offset;
    let joins_after = extents.get(at).is_some_and(|after| after.offset == new.end());
    match (joins_before, joins_after) {
        (true, true) => {
            let after = extents.remove(at);
            extents[at - 1].length += new.length + after.length;
        }
        (true, false) => extents[at - 1].length += new.length,
        (false, true) => extents[at] = Extent { offset: new.offset, length: new.length + extents[at].length },
        (false, false) => extents.insert(at, new),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(parts: &[(u64, u64)]) -> Vec<Extent> {
        parts.iter().map(|&(offset, length)| Extent { offset, length }).collect()
    }

    #[test]
    fn what_touches_is_one_and_what_overlaps_is_refused() {
        let mut extents = Vec::new();
        for (offset, length) in [(10, 5), (20, 5), (0, 10), (15, 5), (30, 1)] {
            assert!(add(&mut extents, Extent { offset, length }), "{offset}");
        }
        assert_eq!(extents, list(&[(0, 25), (30, 1)]));
        for (offset, length) in [(0, 1), (24, 2), (29, 2), (5, 100), (30, 1)] {
            assert!(!add(&mut extents, Extent { offset, length }), "{offset}");
        }
        assert_eq!(extents, list(&[(0, 25), (30, 1)]));
    }
}
