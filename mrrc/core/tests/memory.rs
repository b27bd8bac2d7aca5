//! The memory of a cached region, with the paper's policy: at most 150 bytes, also after the cache has turned over.

use mrrc_core::policy::PolicyKind;
use mrrc_core::{Config, Core, PageRange};

/// Regions of 1 to 512 pages with gaps of 0 to 511, so that no index is tuned to a stride.
fn irregular(count: usize) -> Vec<PageRange> {
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut next = 1 << 30;
    let mut regions = Vec::new();
    for _ in 0..count {
        let region = PageRange::new(next + random(512), 1 + random(512)).unwrap();
        next = region.end();
        regions.push(region);
    }
    regions
}

fn turned_over(regions: &[PageRange], capacity: u64) -> Core {
    // What `probation` remembers of the evicted, and its shadow caches, are measured beside it.
    let mut core = Core::new(&Config { policy: PolicyKind::Mrrc, ..Config::new(capacity) }).unwrap();
    for round in 0..4 {
        for &region in regions.iter().skip(round % 2).chain(regions) {
            core.request(region).unwrap();
        }
    }
    core
}

#[test]
fn a_cached_region_takes_at_most_150_bytes() {
    for count in [1_000, 3_000, 100_000] {
        let regions = irregular(count);
        let pages: u64 = regions.iter().map(|region| region.pages()).sum();
        let filled = turned_over(&regions, pages);
        assert_eq!(filled.used_regions(), count as u64);
        let each = filled.memory() / count;
        println!("{count} regions, nothing evicted: {each} bytes each");
        assert!(each <= 150, "{each} bytes each of {count} regions");

        let half = turned_over(&regions, pages / 2);
        let most = half.used_regions() as usize;
        let each = half.memory() / most;
        println!("{most} of {count} regions, turned over: {each} bytes each");
        assert!(each <= 150, "{each} bytes each of {most} regions after turning over");
    }
}
