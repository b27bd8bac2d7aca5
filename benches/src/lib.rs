//! Shared parts of the benches: address layouts and request streams that no index is tuned to, and
//! the [measurements beside the peers](side_by_side).
//!
//! # Beside this crate
//!
//! The measurements: [`mrrc`], [`frrwp`], [`traces`], [`tracesim`] and [`rdmakv-server`].
//!
//! [`mrrc`]: ../mrrc/index.html
//! [`frrwp`]: ../frrwp/index.html
//! [`traces`]: ../traces/index.html
//! [`tracesim`]: ../tracesim/index.html
//! [`rdmakv-server`]: ../rdmakv_server/index.html

#![allow(missing_debug_implementations, reason = "what measures is not printed; what was measured is")]

pub mod cli;
pub mod peer;
pub mod pin;
pub mod side_by_side;
pub mod subject;

use mrrc::PageRange;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How regions lie in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 64 KiB regions every 128 KiB, as the peers were measured.
    Stride,
    /// Regions of 1 to 512 pages with gaps of 0 to 511 pages.
    Irregular,
    /// Regions of 1 to 512 pages, one right behind the other.
    Packed,
    /// Regions of 1 to 512 pages anywhere in a 47-bit address space.
    Scattered,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 4] = [Self::Stride, Self::Irregular, Self::Packed, Self::Scattered];
}

/// `count` disjoint regions, in random order.
pub fn regions(layout: Layout, count: usize, seed: u64) -> Vec<PageRange> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut next = 0x7_f000_0000_u64;
    let slot = (1 << 35) / count as u64;
    let mut regions: Vec<_> = (0..count as u64)
        .map(|i| {
            let (start, pages) = match layout {
                Layout::Stride => (next, 16),
                Layout::Irregular => (next + rng.random_range(0..512), rng.random_range(1..=512)),
                Layout::Packed => (next, rng.random_range(1..=512)),
                Layout::Scattered => (i * slot + rng.random_range(1..slot - 512), rng.random_range(1..=512)),
            };
            next = if layout == Layout::Stride { start + 32 } else { start + pages };
            PageRange::new(start, pages).expect("within the address space")
        })
        .collect();
    for i in (1..regions.len()).rev() {
        regions.swap(i, rng.random_range(0..=i));
    }
    regions
}

/// `count` requests of up to two pages (8 KiB) inside regions drawn at random.
pub fn requests_inside(regions: &[PageRange], count: usize, seed: u64) -> Vec<PageRange> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let region = regions[rng.random_range(0..regions.len())];
            let pages = region.pages().min(2);
            let start = region.start() + rng.random_range(0..=region.pages() - pages);
            PageRange::new(start, pages).expect("inside a region")
        })
        .collect()
}
