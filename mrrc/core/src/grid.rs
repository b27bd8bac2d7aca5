//! The places where a range is divided between two regions.

use crate::range::PageRange;

/// Pages at equal distances, at which a range may be divided between two regions.
///
/// ```
/// use mrrc_core::{Grid, PageRange};
/// let grid = Grid::every(512); // each 2 MiB
/// let range = PageRange::new(500, 600)?;
/// let parts: Vec<_> = grid.cut(range).map(|part| (part.start(), part.pages())).collect();
/// assert_eq!(parts, [(500, 12), (512, 512), (1024, 76)]);
/// # Ok::<(), mrrc_core::RangeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grid {
    step: u64,
    /// The first line, less than a step from 0.
    phase: u64,
}

impl Grid {
    /// Returns the grid of all multiples of so many pages. 0 counts as 1.
    pub fn every(pages: u64) -> Self {
        Self { step: pages.max(1), phase: 0 }
    }

    /// Returns the grid of the bounds of blocks that are bounds of pages as well. The first block begins at `address`, and each has
    /// `block` bytes. A page has `page` bytes here, a power of two and a multiple of [`PAGE`](crate::PAGE). Where no bound of a block is
    /// one of a page, nothing may be divided. `None` for blocks of no bytes.
    ///
    /// ```
    /// use mrrc_core::Grid;
    /// // Blocks of 6 KiB meet pages at each second block.
    /// let grid = Grid::of_blocks(0x2_0000, 6144, 4096).unwrap();
    /// assert!(grid.divides(35) && !grid.divides(34));
    /// ```
    pub fn of_blocks(address: u64, block: u64, page: u64) -> Option<Self> {
        if block == 0 {
            return None;
        }
        let bits = page.trailing_zeros();
        let shared = block.trailing_zeros().min(bits);
        let (block, page) = (block >> shared, page / crate::PAGE);
        let step = block.saturating_mul(page);
        if address.trailing_zeros() < shared || step == u64::MAX {
            return Some(Self { step: u64::MAX, phase: 0 });
        }
        // Line p solves p · 2^(bits - shared) = address / 2^shared, modulo the block. With bits left it is odd, so 2 has an inverse.
        let mut line = (address >> shared) % block;
        for _ in shared..bits {
            line = if line.is_multiple_of(2) { line / 2 } else { line / 2 + block / 2 + 1 };
        }
        Some(Self { step, phase: line * page })
    }

    /// Returns the lines of this grid that are as far apart as they can be with at most so many pages between two. `None` where two
    /// lines have more pages between them.
    #[must_use]
    pub fn coarsened(self, longest: u64) -> Option<Self> {
        let times = longest / self.step;
        (times > 0).then(|| Self { step: self.step * times, phase: self.phase })
    }

    /// Returns whether a range may be divided before this page.
    #[inline]
    pub fn divides(self, page: u64) -> bool {
        page % self.step == self.phase
    }

    /// Returns whether a line lies within the range.
    #[inline]
    pub fn crosses(self, range: PageRange) -> bool {
        self.after(range.start()) < range.end()
    }

    /// Returns the first line behind this page.
    #[inline]
    fn after(self, page: u64) -> u64 {
        let over = (page % self.step + (self.step - self.phase)) % self.step;
        page.saturating_add(self.step - over)
    }

    /// Returns the parts of the range between the lines, in address order.
    pub fn cut(self, range: PageRange) -> impl Iterator<Item = PageRange> {
        let mut next = range.start();
        std::iter::from_fn(move || {
            (next < range.end()).then(|| {
                let part = PageRange::between(next, self.after(next).min(range.end()));
                next = part.end();
                part
            })
        })
    }

    /// Returns the number of parts of the range.
    #[inline]
    pub fn count(self, range: PageRange) -> u64 {
        let first = self.after(range.start());
        if first >= range.end() { 1 } else { 2 + (range.end() - 1 - first) / self.step }
    }
}

/// How a range is divided into regions: at the lines of a grid, or by length alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cutter {
    longest: u64,
    grid: Option<Grid>,
    /// Whether only what is too long for a region is cut.
    only_long: bool,
}

impl Cutter {
    /// Returns a cutter for regions of at most so many pages (0 counts as 1). A grid that is too wide for that counts as none.
    pub fn new(longest: u64, grid: Option<Grid>) -> Self {
        let longest = longest.max(1);
        Self { longest, grid: grid.filter(|grid| grid.step <= longest), only_long: false }
    }

    /// Cuts only what is too long for a region.
    #[must_use]
    pub fn only_long(self) -> Self {
        Self { only_long: true, ..self }
    }

    /// Returns the grid by which the range is cut.
    #[inline]
    fn grid_for(self, range: PageRange) -> Option<Grid> {
        self.grid.filter(|_| !self.only_long || range.pages() > self.longest)
    }

    /// Returns the parts of the range that become a region each, in address order.
    pub fn cut(self, range: PageRange) -> impl Iterator<Item = PageRange> {
        let grid = self.grid_for(range);
        let by_grid = grid.map(|grid| grid.cut(range)).into_iter().flatten();
        let by_length = grid.is_none().then(|| range.pieces(self.longest)).into_iter().flatten();
        by_grid.chain(by_length)
    }

    /// Returns the number of parts of the range.
    #[inline]
    pub fn count(self, range: PageRange) -> u64 {
        self.grid_for(range).map_or_else(|| range.pages().div_ceil(self.longest), |grid| grid.count(range))
    }

    /// Returns whether the range can be one region.
    #[inline]
    pub fn keeps_whole(self, range: PageRange) -> bool {
        range.pages() <= self.longest && self.grid_for(range).is_none_or(|grid| !grid.crosses(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PAGE;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::between(start, end)
    }

    #[test]
    fn lines_divide_and_tile() {
        for step in 1..9 {
            for phase in 0..step {
                let grid = Grid { step, phase };
                for start in 0..20 {
                    for end in start + 1..24 {
                        let whole = range(start, end);
                        let mut bounds: Vec<_> = (start + 1..end).filter(|&page| page % step == phase).collect();
                        assert_eq!(grid.crosses(whole), !bounds.is_empty(), "{grid:?} {whole:?}");
                        bounds.insert(0, start);
                        bounds.push(end);
                        let parts: Vec<_> = bounds.windows(2).map(|part| range(part[0], part[1])).collect();
                        assert_eq!(grid.cut(whole).collect::<Vec<_>>(), parts, "{grid:?}");
                        assert_eq!(grid.count(whole), parts.len() as u64, "{grid:?} {whole:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn lines_are_bounds_of_blocks_and_of_pages() {
        for page in [PAGE, 4 * PAGE] {
            for block in [1, 8, 100, 1000, 1536, 3072, 4096, 5000, 6144, 8192, 12_288, 20_480, 65_536, 65_540] {
                for address in [1, 8, 100, 4096, 5000, 8192, 10_000, 70_000, 123_456] {
                    let grid = Grid::of_blocks(address, block, page).unwrap();
                    let step =
                        |line: u64| (line * PAGE).abs_diff(address) % block == 0 && (line * PAGE).is_multiple_of(page);
                    for line in 1..200 {
                        assert_eq!(grid.divides(line), step(line), "{line}: {block} from {address}, pages of {page}");
                    }
                }
            }
        }
        assert_eq!(Grid::of_blocks(4096, 0, PAGE), None);
    }

    #[test]
    fn huge_blocks_and_addresses_do_not_overflow() {
        for block in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) + 1, (1 << 62) + 4096] {
            for address in [1, 4096, u64::MAX, u64::MAX - 4095] {
                for page in [PAGE, 2 << 20] {
                    let grid = Grid::of_blocks(address, block, page).unwrap();
                    assert_eq!(grid.cut(range(0, 1 << 52)).map(PageRange::pages).sum::<u64>(), 1 << 52);
                }
            }
        }
    }

    #[test]
    fn coarse_lines_are_lines_and_near_enough() {
        let grid = Grid { step: 3, phase: 2 };
        assert_eq!(grid.coarsened(2), None);
        let coarse = grid.coarsened(10).unwrap();
        assert_eq!(coarse, Grid { step: 9, phase: 2 });
        assert!((0..100).all(|page| !coarse.divides(page) || grid.divides(page)));
        assert_eq!(Grid { step: u64::MAX, phase: 0 }.coarsened(1 << 40), None);
    }

    #[test]
    fn cutters_without_a_fitting_grid_cut_by_length() {
        let parts = |cutter: Cutter| cutter.cut(range(5, 15)).map(PageRange::pages).collect::<Vec<_>>();
        assert_eq!(parts(Cutter::new(4, None)), [4, 4, 2]);
        assert_eq!(parts(Cutter::new(4, Some(Grid::every(4)))), [3, 4, 3]);
        assert_eq!(parts(Cutter::new(4, Some(Grid::every(5)))), [4, 4, 2]);
        assert_eq!(parts(Cutter::new(10, Some(Grid::every(10)))), [5, 5]);
        assert_eq!(parts(Cutter::new(10, Some(Grid::every(10))).only_long()), [10]);
        assert_eq!(parts(Cutter::new(9, Some(Grid::every(6))).only_long()), [1, 6, 3]);
        for cutter in [Cutter::new(4, None), Cutter::new(4, Some(Grid::every(3))), Cutter::new(u64::MAX, None)] {
            assert_eq!(cutter.count(range(5, 15)), parts(cutter).len() as u64);
            assert!(
                (1..9).all(|pages| cutter.keeps_whole(range(5, 5 + pages)) == (cutter.count(range(5, 5 + pages)) == 1))
            );
        }
    }
}
