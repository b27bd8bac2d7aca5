//! The ground that caches are measured on: address space that is never touched, regions in it, and requests
//! drawn in advance.

use crate::{Layout, regions};
use mrrc::{PAGE, PageRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io;
use std::ptr;

/// Requests drawn for each thread: 4 MiB of them, part of what 100,000 regions cost, the same for every cache.
pub const DRAWN: usize = 1 << 20;

/// The alignment of spaces, as of large allocations. An index by powers of two (UCX's) cuts a region of 64 KiB
/// at an odd page into many entries: what that costs is for the irregular regions to show.
const ALIGNED: usize = 2 << 20;

/// Address space that is mapped without any access, so that no page of it is ever there.
///
/// One page more can be read: it keeps the kernel from making one mapping of this space and the next, which a
/// monitor would watch as one.
#[derive(Debug)]
struct Space {
    start: usize,
    bytes: usize,
    mapping: *mut libc::c_void,
    mapped: usize,
}

#[expect(unsafe_code, reason = "it holds a pointer")]
// SAFETY: the pointer is never followed; it is kept to unmap the mapping, once.
unsafe impl Send for Space {}
#[expect(unsafe_code, reason = "it holds a pointer")]
// SAFETY: it is a mapping of its own, which belongs to no thread.
unsafe impl Sync for Space {}

impl Space {
    fn map(bytes: usize) -> io::Result<Self> {
        let border = PAGE as usize;
        let mapped = bytes + ALIGNED + border;
        #[expect(unsafe_code, reason = "system call")]
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let mapping = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), mapped, libc::PROT_READ, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let space = Self { start: mapping.addr().next_multiple_of(ALIGNED), bytes, mapping, mapped };
        #[expect(unsafe_code, reason = "system call")]
        // SAFETY: the page is the last of the mapping above, and no reference leads to it.
        let refused = unsafe { libc::mprotect(mapping.byte_add(mapped - border), border, libc::PROT_NONE) };
        if refused == 0 { Ok(space) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "system call")]
        // SAFETY: the mapping is ours and no reference into it was ever made.
        unsafe {
            libc::munmap(self.mapping, self.mapped);
        }
    }
}

/// Regions in a space of their own, in random order.
#[derive(Debug)]
pub struct Field {
    space: Space,
    /// Page numbers count from the start of the space.
    regions: Vec<PageRange>,
}

impl Field {
    /// `count` regions.
    ///
    /// # Errors
    /// If that much address space is not to be had.
    pub fn new(layout: Layout, count: usize, seed: u64) -> Result<Self, String> {
        let mut regions = regions(layout, count, seed);
        let first = regions.iter().map(|region| region.start()).min().unwrap_or(0);
        for region in &mut regions {
            *region = PageRange::new(region.start() - first, region.pages()).map_err(|error| error.to_string())?;
        }
        Self::of(regions)
    }

    /// The same regions in a space of their own: memory that a userfaultfd of one cache watches is not to be
    /// had by another's.
    ///
    /// # Errors
    /// As [`Field::new`].
    pub fn twin(&self) -> Result<Self, String> {
        Self::of(self.regions.clone())
    }

    fn of(regions: Vec<PageRange>) -> Result<Self, String> {
        let pages = regions.iter().map(|region| region.end()).max().unwrap_or(1);
        let bytes = (pages * PAGE) as usize;
        let space = Space::map(bytes).map_err(|error| {
            format!("mmap of {bytes} bytes without access: {error}: raise the limit on address space (ulimit -v)")
        })?;
        Ok(Self { space, regions })
    }

    /// Puts the regions into the order of their addresses.
    pub fn sort(&mut self) {
        self.regions.sort_by_key(|region| region.start());
    }

    /// Returns the whole space.
    pub fn bounds(&self) -> std::ops::Range<usize> {
        self.space.start..self.space.start + self.space.bytes
    }

    /// Returns a region's address and its length in bytes.
    #[inline]
    pub fn place(&self, region: usize) -> (usize, usize) {
        let region = self.regions[region];
        (self.space.start + (region.start() * PAGE) as usize, (region.pages() * PAGE) as usize)
    }

    /// Returns the pages of all regions, or of some.
    pub fn pages(&self, regions: std::ops::Range<usize>) -> u64 {
        self.regions[regions].iter().map(|region| region.pages()).sum()
    }

    /// Requests of 8 KiB (4 KiB where a region is no larger) inside the first `hot` regions.
    pub fn draw(&self, hot: usize, seed: u64) -> Vec<Draw> {
        let mut rng = StdRng::seed_from_u64(seed);
        let one = |_| {
            let region = self.regions[rng.random_range(0..hot)];
            let pages = region.pages().min(2);
            Draw::new(region.start() + rng.random_range(0..=region.pages() - pages), pages)
        };
        (0..DRAWN).map(one).collect()
    }

    /// Requests for all of one of the first `hot` regions.
    pub fn draw_whole(&self, hot: usize, seed: u64) -> Vec<Whole> {
        let mut rng = StdRng::seed_from_u64(seed);
        let one = |_| {
            let region = self.regions[rng.random_range(0..hot)];
            Whole { page: region.start() as u32, pages: region.pages() as u32 }
        };
        (0..DRAWN).map(one).collect()
    }

    /// Returns the range of a request for a whole region.
    #[inline(always)]
    pub fn asked_whole(&self, draw: Whole) -> (usize, usize) {
        (self.space.start + draw.page as usize * PAGE as usize, draw.pages as usize * PAGE as usize)
    }

    /// Returns the address of a drawn request and its length in bytes.
    #[inline(always)]
    pub fn asked(&self, draw: Draw) -> (usize, usize) {
        let page = (draw.0 >> 1) as usize;
        (self.space.start + page * PAGE as usize, (1 + (draw.0 & 1) as usize) * PAGE as usize)
    }
}

/// A request in four bytes: the page that it begins at, and whether it takes a second one.
#[derive(Clone, Copy, Debug)]
pub struct Draw(u32);

/// A request for a whole region.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    page: u32,
    pages: u32,
}

impl Draw {
    fn new(page: u64, pages: u64) -> Self {
        debug_assert!(page < 1 << 31 && (1..=2).contains(&pages));
        Self((page << 1) as u32 | (pages - 1) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_aligned_and_twins_disjoint() {
        let field = Field::new(Layout::Stride, 3, 1).unwrap();
        let twin = field.twin().unwrap();
        for field in [&field, &twin] {
            assert!(field.bounds().start.is_multiple_of(ALIGNED));
            assert!((0..3).all(|region| field.bounds().contains(&field.place(region).0)));
        }
        assert!(field.bounds().end <= twin.bounds().start || twin.bounds().end <= field.bounds().start);
    }

    #[test]
    fn every_drawn_request_lies_in_a_hot_region() {
        for layout in [Layout::Stride, Layout::Irregular] {
            let field = Field::new(layout, 2_500, 1).unwrap();
            let mut hot: Vec<_> = (0..2_000).map(|region| field.place(region)).collect();
            hot.sort_unstable();
            let mut short = 0;
            for draw in field.draw(2_000, 2).into_iter().take(50_000) {
                let (address, length) = field.asked(draw);
                let (start, bytes) = hot[hot.partition_point(|&(start, _)| start <= address) - 1];
                assert!(address + length <= start + bytes, "{layout:?}: {address:#x} + {length}");
                assert_eq!(length, bytes.min(8192));
                short += usize::from(length < 8192);
            }
            assert_eq!(short > 0, layout == Layout::Irregular, "regions of one page are among them");
        }
    }
}
