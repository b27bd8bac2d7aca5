//! Which sizes chunks have: each class a factor larger than the one before, then stretched until its chunks fill
//! a page.

use rdmakv_proto::item::HEADER;

/// Classes at most, so that one fits into a byte of the header.
pub(super) const MOST: usize = 200;

/// Chunks of which fewer than that fit into a page come in every size that fits a whole number of times.
const WHOLE_PARTS: usize = 16;

/// Returns the sizes, ascending; the last is a whole page.
pub(super) fn sizes(page: usize, least: usize, factor: f64) -> Vec<usize> {
    let factor = factor.max(1.01);
    let mut sizes: Vec<usize> = Vec::new();
    let mut wanted = (HEADER + least.max(8)).next_multiple_of(8);
    while wanted < page && sizes.len() + 1 < MOST {
        let a_page = page / wanted;
        // The same number of chunks, without the unused end of the page.
        let size = page / a_page / 8 * 8;
        if sizes.last().is_none_or(|&last| last < size) {
            sizes.push(size);
        }
        wanted = ((wanted as f64 * factor) as usize).max(wanted + 8).next_multiple_of(8);
    }
    // Between these there is nothing that would fit more chunks into a page. Values with sizes that are powers of two
    // are common, and with their keys and headers they are a little larger than such a part.
    for parts in 1..=WHOLE_PARTS {
        let size = page / parts / 8 * 8;
        if let Err(at) = sizes.binary_search(&size) {
            sizes.insert(at, size);
        }
    }
    sizes
}

/// Returns the smallest class that holds this many bytes.
#[inline]
pub(super) fn fitting(sizes: &[usize], bytes: usize) -> Option<usize> {
    let class = sizes.partition_point(|&size| size < bytes);
    (class < sizes.len()).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_in_words_and_end_with_the_page() {
        for (page, least, factor) in [(1 << 20, 48, 1.25), (1 << 20, 1, 1.01), (4096, 48, 2.0), (65536, 5000, 1.1)] {
            let sizes = sizes(page, least, factor);
            assert!(sizes.len() <= MOST + WHOLE_PARTS && sizes.len() < 256);
            assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(sizes.iter().all(|size| size % 8 == 0));
            assert_eq!(sizes.last(), Some(&page));
        }
    }

    #[test]
    fn an_item_gets_the_smallest_chunk_that_holds_it() {
        let sizes = sizes(1 << 20, 48, 1.25);
        for bytes in (1..(1 << 20)).step_by(997) {
            let class = fitting(&sizes, bytes).unwrap();
            assert!(sizes[class] >= bytes && (class == 0 || sizes[class - 1] < bytes));
        }
        assert_eq!(fitting(&sizes, (1 << 20) + 1), None);
    }
}
