//! Ranges of pages: what is asked for, what is registered, what is left to register.
//!
//! The cache counts in pages of 4 KiB ([`PAGE`]) whatever the system's page is; a larger page only
//! widens the rounding. A [`PageRange`] is half-open, never empty and never wraps, because it can
//! only be built through constructors that refuse such input: code behind them needs no such checks.

use crate::units::Count;
use std::fmt;

/// Bytes in a page, the unit of every count in this crate.
pub const PAGE: u64 = 4096;

/// One past the last page of a 64-bit address space.
const PAGES_END: u64 = 1 << 52;

/// A half-open, non-empty range of pages. Displayed in bytes, debugged in pages.
///
/// ```
/// use mrrc_core::PageRange;
/// let header = PageRange::of_bytes(0x1ff0, 64)?; // touches two pages
/// assert_eq!((header.start(), header.pages()), (1, 2));
/// # Ok::<(), mrrc_core::RangeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRange {
    start: u64,
    pages: u64,
}

impl PageRange {
    /// The whole address space.
    pub const EVERYTHING: Self = Self { start: 0, pages: PAGES_END };

    /// Returns the range of `pages` pages from page number `start`.
    ///
    /// # Errors
    /// [`RangeError::Empty`] for no pages, [`RangeError::Wraps`] past the end of the address space.
    #[inline]
    pub fn new(start: u64, pages: u64) -> Result<Self, RangeError> {
        if pages == 0 {
            return Err(RangeError::Empty { start: start.saturating_mul(PAGE) });
        }
        match start.checked_add(pages) {
            Some(end) if end <= PAGES_END => Ok(Self { start, pages }),
            _ => Err(RangeError::Wraps { start: start.saturating_mul(PAGE), length: pages.saturating_mul(PAGE) }),
        }
    }

    /// Returns the pages that the `length` bytes at `address` touch.
    ///
    /// # Errors
    /// As [`PageRange::new`], and [`RangeError::Null`] for the null address, which no buffer has.
    #[inline]
    pub fn of_bytes(address: u64, length: u64) -> Result<Self, RangeError> {
        if length == 0 {
            return Err(RangeError::Empty { start: address });
        }
        if address == 0 {
            return Err(RangeError::Null { length });
        }
        let Some(last) = address.checked_add(length - 1) else {
            return Err(RangeError::Wraps { start: address, length });
        };
        let start = address / PAGE;
        Ok(Self { start, pages: last / PAGE - start + 1 })
    }

    /// As [`PageRange::of_bytes`], for the path of a hit: one comparison.
    #[inline(always)]
    pub fn of_bytes_quickly(address: u64, length: u64) -> Option<Self> {
        let before = address.wrapping_sub(1);
        let last = before.wrapping_add(length);
        // No length makes them equal, what wraps makes the last byte lie before the first, and from the null address
        // nothing is larger than what is before it.
        if before >= last {
            return None;
        }
        let start = address / PAGE;
        Some(Self { start, pages: last / PAGE - start + 1 })
    }

    /// From bounds that are known to be in order; for ranges cut out of other ranges.
    #[inline]
    pub fn between(start: u64, end: u64) -> Self {
        debug_assert!(start < end && end <= PAGES_END);
        Self { start, pages: end - start }
    }

    /// Returns the first page.
    #[inline]
    pub fn start(self) -> u64 {
        self.start
    }

    /// One past the last page.
    #[inline]
    pub fn end(self) -> u64 {
        self.start + self.pages
    }

    /// Returns the number of pages, at least one.
    #[inline]
    pub fn pages(self) -> u64 {
        self.pages
    }

    /// Returns whether every page of `inner` is in this range.
    #[inline]
    pub fn contains(self, inner: Self) -> bool {
        self.start <= inner.start && inner.end() <= self.end()
    }

    /// Returns whether the two ranges share a page.
    #[inline]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns the pages that both ranges hold.
    #[inline]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Self::between(start, end))
    }

    /// Returns the smallest range that holds both.
    #[inline]
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self::between(self.start.min(other.start), self.end().max(other.end()))
    }

    /// This range grown at both ends to multiples of `unit` pages, within the address space.
    #[inline]
    #[must_use]
    pub fn rounded_out(self, unit: u64) -> Self {
        let unit = unit.max(1);
        let start = self.start - self.start % unit;
        let end = match self.end() % unit {
            0 => self.end(),
            over => self.end().saturating_add(unit - over).min(PAGES_END),
        };
        Self::between(start, end)
    }

    /// This range in consecutive pieces of at most `longest` pages; all but the last are that long.
    pub fn pieces(self, longest: u64) -> impl Iterator<Item = Self> {
        let longest = longest.max(1);
        let mut next = self.start;
        std::iter::from_fn(move || {
            if next >= self.end() {
                return None;
            }
            let end = next.saturating_add(longest).min(self.end());
            let piece = Self::between(next, end);
            next = end;
            Some(piece)
        })
    }

    /// Returns whether [`PageRange::pieces`] of that length yields this piece.
    pub fn is_piece(self, piece: Self, longest: u64) -> bool {
        let longest = longest.max(1);
        self.contains(piece)
            && (piece.start - self.start).is_multiple_of(longest)
            && piece.pages == longest.min(self.end() - piece.start)
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end())
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In bytes, as debuggers and `/proc/self/maps` show it; the last page ends beyond what 64 bits hold.
        let [start, end] = [self.start, self.end()].map(|page| u128::from(page) * u128::from(PAGE));
        write!(f, "{start:#x}..{end:#x} ({})", Count(self.pages, "pages"))
    }
}

/// Why a range of memory cannot be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// No bytes or no pages.
    #[error("no bytes at {start:#x}: a range of memory has one byte at least")]
    Empty {
        /// The address asked for.
        start: u64,
    },
    /// The end lies past the end of the address space.
    #[error("range at {start:#x} of {length} bytes wraps around the address space: check the length for underflow")]
    Wraps {
        /// The address asked for.
        start: u64,
        /// The length in bytes, saturated.
        length: u64,
    },
    /// The null address.
    #[error("null address with {length} bytes: no buffer starts there")]
    Null {
        /// The length in bytes.
        length: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_out_to_the_pages_they_touch() {
        assert_eq!(PageRange::of_bytes(4096, 4096), PageRange::new(1, 1));
        assert_eq!(PageRange::of_bytes(4097, 4096), PageRange::new(1, 2));
        assert_eq!(PageRange::of_bytes(8191, 1), PageRange::new(1, 1));
    }

    #[test]
    fn the_quick_way_refuses_what_the_other_refuses() {
        let numbers =
            [0, 1, 2, 4095, 4096, 4097, 1 << 47, 1 << 48, u64::MAX / 2, u64::MAX - 4096, u64::MAX - 1, u64::MAX];
        for address in numbers {
            for length in numbers.into_iter().chain([address.wrapping_neg(), address.wrapping_neg().wrapping_add(1)]) {
                let quickly = PageRange::of_bytes_quickly(address, length);
                assert_eq!(quickly, PageRange::of_bytes(address, length).ok(), "{length} bytes at {address:#x}");
            }
        }
    }

    #[test]
    fn empty_wrapping_and_null_ranges_have_an_error_each() {
        assert_eq!(PageRange::new(7, 0), Err(RangeError::Empty { start: 7 * PAGE }));
        assert_eq!(PageRange::of_bytes(7, 0), Err(RangeError::Empty { start: 7 }));
        assert_eq!(PageRange::of_bytes(0, 1), Err(RangeError::Null { length: 1 }));
        assert!(matches!(PageRange::of_bytes(u64::MAX, 2), Err(RangeError::Wraps { .. })));
        assert!(matches!(PageRange::of_bytes(4096, u64::MAX), Err(RangeError::Wraps { .. })));
        assert!(matches!(PageRange::new(u64::MAX, 1), Err(RangeError::Wraps { .. })));
        assert!(matches!(PageRange::new(1, u64::MAX), Err(RangeError::Wraps { .. })));
        assert!(matches!(PageRange::new(PAGES_END, 1), Err(RangeError::Wraps { .. })));
    }

    #[test]
    fn last_byte_of_address_space_is_valid() {
        let last = PageRange::of_bytes(u64::MAX, 1).unwrap();
        assert_eq!(last.end(), PAGES_END);
        assert_eq!(last.rounded_out(48).end(), PAGES_END);
    }

    #[test]
    fn messages_show_addresses_in_bytes() {
        assert_eq!(PageRange::of_bytes(0x1ff0, 64).unwrap().to_string(), "0x1000..0x3000 (2 pages)");
        assert_eq!(PageRange::new(1, 1).unwrap().to_string(), "0x1000..0x2000 (1 page)");
        let end = PageRange::of_bytes(u64::MAX, 1).unwrap().to_string();
        assert_eq!(end, "0xfffffffffffff000..0x10000000000000000 (1 page)");
    }

    #[test]
    fn pieces_tile_the_range() {
        let whole = PageRange::new(10, 7).unwrap();
        let pieces: Vec<_> = whole.pieces(3).map(|p| (p.start(), p.pages())).collect();
        assert_eq!(pieces, [(10, 3), (13, 3), (16, 1)]);
        assert_eq!(whole.pieces(u64::MAX).collect::<Vec<_>>(), [whole]);
        for start in 9..18 {
            for pages in 1..9 {
                let piece = PageRange::new(start, pages).unwrap();
                assert_eq!(whole.is_piece(piece, 3), pieces.contains(&(start, pages)), "{piece}");
            }
        }
    }
}
