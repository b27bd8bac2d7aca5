//! The sums of a region's pages: a copy is summed while it is copied, and only pages that are read again are summed again.
//!
//! So the sum of the whole region is known without a look at all its bytes, while writes to it are paused.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, checksum};
use rdmakv_proto::far::marks::MARKED_PAGE;

/// The CRC32C of each page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageSums {
    region_bytes: u64,
    pages: Vec<u32>,
}

impl PageSums {
    /// Returns the sums of a region of which no page was summed.
    pub(super) fn new(region_bytes: u64) -> Self {
        Self { region_bytes, pages: vec![0; region_bytes.div_ceil(MARKED_PAGE) as usize] }
    }

    /// Sums the pages of these ranges again, each of which begins at a page. `read` fills its buffer with the bytes from an offset on.
    pub(super) fn sum(&mut self, ranges: impl IntoIterator<Item = Range<u64>>, mut read: impl FnMut(u64, &mut [u8])) {
        let mut page = [0; MARKED_PAGE as usize];
        for Range { start, end } in ranges {
            for number in start / MARKED_PAGE..end.min(self.region_bytes).div_ceil(MARKED_PAGE) {
                let at = number * MARKED_PAGE;
                let bytes = &mut page[..(self.region_bytes - at).min(MARKED_PAGE) as usize];
                read(at, bytes);
                self.pages[number as usize] = checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
            }
        }
    }

    /// Returns the sum of the region: the CRC32C of the pages' sums. It is never 0, which stands for none.
    pub(super) fn whole(&self) -> u32 {
        let bytes: Vec<u8> = self.pages.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        (checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_of(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) {
        |at, into| into.copy_from_slice(&bytes[at as usize..][..into.len()])
    }

    proptest! {
        #[test]
        fn changed_pages_make_the_sum_of_the_whole(
            length in 1..20_000_u64, changes in prop::collection::vec((any::<u64>(), any::<u8>()), 0..9),
        ) {
            let mut bytes = vec![7_u8; length as usize];
            let mut sums = PageSums::new(length);
            sums.sum(std::iter::once(0..length), read_of(&bytes));
            let before = sums.whole();
            let mut ranges = Vec::new();
            for (at, byte) in changes {
                let at = at % length;
                bytes[at as usize] = byte;
                ranges.push(at / MARKED_PAGE * MARKED_PAGE..at + 1);
            }
            sums.sum(ranges, read_of(&bytes));
            let mut fresh = PageSums::new(length);
            fresh.sum(std::iter::once(0..length), read_of(&bytes));
            prop_assert_eq!(&sums, &fresh);
            prop_assert_eq!(sums.whole() == before, bytes.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn a_page_that_was_not_read_again_differs() {
        let mut sums = PageSums::new(3 * MARKED_PAGE);
        let mut bytes = vec![1; 3 * MARKED_PAGE as usize];
        sums.sum(std::iter::once(0..3 * MARKED_PAGE), read_of(&bytes));
        bytes[MARKED_PAGE as usize] = 2;
        sums.sum(std::iter::once(0..MARKED_PAGE), read_of(&bytes));
        let mut fresh = PageSums::new(3 * MARKED_PAGE);
        fresh.sum(std::iter::once(0..3 * MARKED_PAGE), read_of(&bytes));
        assert_ne!(sums.whole(), fresh.whole());
    }
}
