//! The memory that a cache takes for each region with the default policy and the paper's, counted by the allocator.
//! `a_region_takes_few_bytes` states the most. Once regions were evicted `probation` remembers them in 8 to 16 bytes more.
//!
//! Tables that are made at once for all regions take memory where they are used. So of large blocks of zeroes only the pages count
//! that are in memory.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "it counts what the allocator gives, and maps memory")]

use mrrc::cache::Builder;
use mrrc::invalidation::{Explicit, Monitor, Userfaultfd};
use mrrc::policy::PolicyKind;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, PAGE};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};

/// The regions of a cache that is measured.
const REGIONS: usize = 100_000;

/// Zeroes of so many bytes are not in memory before they are written.
const LARGE: usize = 256 << 10;
const PLACES: usize = 256;

struct Counting;

/// Bytes that are allocated, short of those in `BLOCKS`.
static BYTES: AtomicIsize = AtomicIsize::new(0);
/// The large blocks of zeroes: address and length.
static BLOCKS: [[AtomicUsize; 2]; PLACES] = [const { [const { AtomicUsize::new(0) }; 2] }; PLACES];
static TOO_MANY: AtomicBool = AtomicBool::new(false);

// SAFETY: `GlobalAlloc` asks for memory of each layout: the system's allocator gives it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let block = unsafe { System.alloc_zeroed(layout) };
        if layout.size() < LARGE {
            BYTES.fetch_add(layout.size() as isize, SeqCst);
            return block;
        }
        let free = BLOCKS.iter().find(|place| place[0].compare_exchange(0, block.addr(), SeqCst, SeqCst).is_ok());
        match free {
            Some(place) => place[1].store(layout.size(), SeqCst),
            None => TOO_MANY.store(true, SeqCst),
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if BLOCKS.iter().all(|place| place[0].load(SeqCst) != block.addr()) {
            BYTES.fetch_add(size as isize - layout.size() as isize, SeqCst);
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: `realloc` requires a size that a layout of this alignment can have, and a block of the old layout: both are
        // live, and do not overlap.
        unsafe {
            let longer = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !longer.is_null() {
                ptr::copy_nonoverlapping(block, longer, size.min(layout.size()));
                self.dealloc(block, layout);
            }
            longer
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match BLOCKS.iter().find(|place| place[0].load(SeqCst) == block.addr()) {
            Some(place) => {
                place[1].store(0, SeqCst);
                place[0].store(0, SeqCst);
            }
            None => _ = BYTES.fetch_sub(layout.size() as isize, SeqCst),
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that are in use.
fn in_use() -> isize {
    assert!(!TOO_MANY.load(SeqCst), "there are more large blocks than places for them");
    let resident = |[start, bytes]: &[AtomicUsize; 2]| {
        let (start, bytes) = (start.load(SeqCst), bytes.load(SeqCst));
        let first = start & !(PAGE as usize - 1);
        let mut there = [0_u8; 4096];
        let mut pages = 0;
        for at in (first..start + bytes).step_by(there.len() * PAGE as usize) {
            let length = (start + bytes - at).min(there.len() * PAGE as usize);
            // SAFETY: `mincore` asks about mapped memory, and writes a byte for each of at most 4,096 pages.
            let asked = unsafe { libc::mincore(ptr::without_provenance_mut(at), length, there.as_mut_ptr()) };
            assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
            pages += there[..length.div_ceil(PAGE as usize)].iter().filter(|&&page| page & 1 == 1).count();
        }
        (pages * PAGE as usize) as isize
    };
    BYTES.load(SeqCst) + BLOCKS.iter().filter(|place| place[0].load(SeqCst) != 0).map(resident).sum::<isize>()
}

/// Address space that is never touched.
fn space(pages: usize) -> *const u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces nothing. It stays.
    let start = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE as usize, libc::PROT_READ, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    start.cast()
}

/// Returns the first page of each region, and its pages.
fn layout(name: &str) -> Vec<(usize, usize)> {
    let (mut next, mut random) = (3, 1_u64);
    let mut draw = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) % most) as usize
    };
    let place = |_| {
        let (gap, pages) = match name {
            "dense" => (0, 16),
            "stride" => (16, 16),
            "single pages" => (0, 1),
            _ => (draw(512), 1 + draw(512)),
        };
        let start = next + gap;
        next = start + pages;
        (start, pages)
    };
    (0..REGIONS).map(place).collect()
}

/// Returns the bytes that each region takes.
fn bytes_per_region(policy: PolicyKind, regions: &[(usize, usize)], monitor: impl Monitor) -> f64 {
    let pages: usize = regions.iter().map(|&(_, pages)| pages).sum();
    let end = regions.last().map_or(0, |&(start, pages)| start + pages);
    let memory = space(end);
    let builder: Builder<_> =
        Cache::builder(NoopRegistrar::default()).policy(policy).ignore_environment().background(false);
    let builder = builder.capacity_pages(pages as u64).max_regions(REGIONS as u64).monitor(monitor);
    let cache = builder.build().unwrap();
    let ask = |&(start, pages): &(usize, usize)| {
        let address = memory.wrapping_add(start * PAGE as usize);
        // SAFETY: nothing is transferred, and the memory stays mapped.
        drop(unsafe { cache.acquire(address, pages * PAGE as usize, Access::LOCAL) }.unwrap());
    };
    // A thread's block of slots, and all else that is made once.
    ask(&regions[0]);
    let before = in_use();
    regions[1..].iter().for_each(ask);
    let bytes = (in_use() - before) as f64 / (regions.len() - 1) as f64;
    assert_eq!(cache.usage().regions, regions.len() as u64, "all are cached");
    bytes
}

#[test]
fn a_region_takes_few_bytes() {
    // Large blocks come from the system each time, also when others were given back.
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers, and no other thread allocates large blocks meanwhile.
    assert_eq!(unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE as libc::c_int / 2) }, 1);
    let watches = Userfaultfd::new().is_ok();
    // Bytes at most: reported by the program, and watched.
    for (policy, limits) in [
        (
            PolicyKind::Mrrc,
            [("dense", 115, 129), ("stride", 111, 123), ("single pages", 113, 113), ("irregular", 158, 205)],
        ),
        (
            PolicyKind::default(),
            [("dense", 112, 118), ("stride", 100, 112), ("single pages", 100, 102), ("irregular", 147, 194)],
        ),
    ] {
        for (name, most, watched) in limits {
            let regions = layout(name);
            let bytes = bytes_per_region(policy, &regions, Explicit);
            println!("{policy}, {name}: {bytes:.1} bytes a region");
            assert!(bytes <= f64::from(most), "{policy}, {name}: {bytes:.1} bytes a region");
            if watches {
                let bytes = bytes_per_region(policy, &regions, Userfaultfd::new().unwrap());
                println!("{policy}, {name}, watched: {bytes:.1} bytes a region");
                assert!(bytes <= f64::from(watched), "{policy}, {name}, watched: {bytes:.1} bytes a region");
            }
        }
    }
}
