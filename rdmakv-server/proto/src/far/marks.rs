//! Pages of a region that were written while it was copied.

use std::ops::Range;

/// Bytes of a page that is marked.
pub const MARKED_PAGE: u64 = 4096;

/// Pages of a region, a bit each, the lowest bit of a byte first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks(Vec<u8>);

impl Marks {
    /// Returns marks for a region of this many bytes, none of them set.
    pub fn new(region_bytes: u64) -> Self {
        Self(vec![0; region_bytes.div_ceil(MARKED_PAGE).div_ceil(8) as usize])
    }

    /// Marks the pages of a range. Pages beyond the region are left out.
    pub fn set(&mut self, offset: u64, length: u64) {
        let Some(last) = length.checked_sub(1).map(|last| offset.saturating_add(last) / MARKED_PAGE) else { return };
        for page in offset / MARKED_PAGE..=last.min(self.0.len() as u64 * 8) {
            if let Some(byte) = self.0.get_mut((page / 8) as usize) {
                *byte |= 1 << (page % 8);
            }
        }
    }

    /// Adds those of a server. Pages beyond the region are left out.
    pub fn merge(&mut self, others: &[u8]) {
        self.0.iter_mut().zip(others).for_each(|(ours, theirs)| *ours |= theirs);
    }

    /// Returns the bytes, as they lie in messages.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the byte ranges of marked pages, as they lie in a message: each in parts of at most `longest` bytes, a multiple of pages.
/// Pages beyond `region_bytes` are left out.
pub fn marked_ranges(marks: &[u8], region_bytes: u64, longest: u64) -> impl Iterator<Item = Range<u64>> + '_ {
    let pages = (marks.len() as u64 * 8).min(region_bytes.div_ceil(MARKED_PAGE));
    let is_marked = |page: u64| marks[(page / 8) as usize] & (1 << (page % 8)) != 0;
    let most = (longest / MARKED_PAGE).max(1);
    let mut next = 0;
    std::iter::from_fn(move || {
        let first = (next..pages).find(|&page| is_marked(page))?;
        let most = pages.min(first + most);
        let end = (first..most).find(|&page| !is_marked(page)).unwrap_or(most);
        next = end;
        Some(first * MARKED_PAGE..(end * MARKED_PAGE).min(region_bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_are_pages_of_the_region() {
        let mut marks = Marks::new(10 * MARKED_PAGE);
        marks.set(MARKED_PAGE - 1, 2);
        marks.set(9 * MARKED_PAGE, 1);
        marks.set(5 * MARKED_PAGE, 0);
        assert_eq!(marks.bytes(), [0b11, 0b10]);
        marks.merge(&[0b100, 0, 0xff]);
        assert_eq!(marks.bytes(), [0b111, 0b10]);
        marks.set(u64::MAX, u64::MAX);
        marks.set(0, u64::MAX);
        assert_eq!(marks.bytes(), [0xff, 0xff], "bits behind the end are never read");
    }

    proptest! {
        #[test]
        fn ranges_cover_marked_pages_once(
            marks in prop::collection::vec(any::<u8>(), 0..20), bytes in 1..600_000_u64, longest in 1..60_000_u64,
        ) {
            let mut covered = vec![0_u32; bytes.div_ceil(MARKED_PAGE) as usize];
            for range in marked_ranges(&marks, bytes, longest) {
                prop_assert!(range.start < range.end && range.end <= bytes);
                prop_assert!(range.end - range.start <= longest.max(MARKED_PAGE) && range.start % MARKED_PAGE == 0);
                for page in range.start / MARKED_PAGE..range.end.div_ceil(MARKED_PAGE) {
                    covered[page as usize] += 1;
                }
            }
            for (page, &count) in covered.iter().enumerate() {
                let is_marked = marks.get(page / 8).is_some_and(|byte| byte & (1 << (page % 8)) != 0);
                prop_assert_eq!(count, u32::from(is_marked));
            }
        }
    }
}
