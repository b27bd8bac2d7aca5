//! Slices and blocks, against a model that walks over the pages.

use mrrc_core::core::{Core, NoHolders, Request};
use mrrc_core::policy::{Matching, Overlap};
use mrrc_core::{AllInUse, Config, ConfigError, Found, Grid, PAGE, PageRange, Part};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).expect("not empty")
}

/// A core as a cache of many threads has it.
fn core(config: &Config) -> Core {
    let mut core = Core::new(config).expect("a configuration that fits");
    core.limit_hard();
    core
}

/// Returns what the request registers; all of it is cached then.
fn registered(core: &mut Core, request: &Request) -> Result<Vec<PageRange>, AllInUse> {
    let outcome = core.request_with(request, &mut NoHolders)?;
    let gaps: Vec<_> = outcome.parts().iter().filter(|part| matches!(part, Part::Gap { .. })).copied().collect();
    let ids: Vec<_> = gaps.iter().filter_map(Part::region).collect();
    core.publish(&ids, &mut NoHolders);
    Ok(gaps.iter().map(Part::range).collect())
}

/// Returns the regions that a walk over the pages makes of those that are not cached.
fn walked(asked: PageRange, cached: &BTreeSet<u64>, is_line: impl Fn(u64) -> bool) -> Vec<PageRange> {
    let mut made: Vec<(u64, u64)> = Vec::new();
    for page in (asked.start()..asked.end()).filter(|page| !cached.contains(page)) {
        match made.last_mut() {
            Some((_, end)) if *end == page && !is_line(page) => *end += 1,
            _ => made.push((page, page + 1)),
        }
    }
    made.into_iter().map(|(start, end)| range(start, end - start)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gaps_are_cut_at_lines_and_nowhere_else(
        slice in 1_u64..12,
        asked in prop::collection::vec((0_u64..100, 1_u64..40), 1..20),
    ) {
        let mut core = core(&Config { slice_pages: Some(slice), ..Config::new(1000) });
        let mut cached = BTreeSet::new();
        for (start, pages) in asked {
            let asked = range(start, pages);
            let expected = walked(asked, &cached, |page| page % slice == 0);
            prop_assert_eq!(registered(&mut core, &Request::new(asked)).unwrap(), expected);
            cached.extend(start..start + pages);
        }
    }

    #[test]
    fn each_block_has_one_key_however_many_are_cached(
        slice in 4_u64..20,
        halves in 1_u64..8,
        others in prop::collection::vec((0_u64..100, 1_u64..30), 0..6),
        start in 0_u64..60,
        pages in 1_u64..60,
    ) {
        let mut core = core(&Config { slice_pages: Some(slice), ..Config::new(1000) });
        for (start, pages) in others {
            registered(&mut core, &Request::new(range(start, pages))).unwrap();
        }
        let (asked, block) = (range(start, pages), halves * PAGE / 2);
        let blocks = Grid::of_blocks(asked.start() * PAGE, block, PAGE);
        let request = Request { blocks, ..Request::new(asked) };
        // The longest distance of two lines: 7 halves, twice.
        prop_assume!(slice >= 7);
        registered(&mut core, &request).unwrap();
        let regions: Vec<_> = core.cached().map(|(_, range)| range).collect();
        for first in (asked.start() * PAGE..asked.end() * PAGE).step_by(block as usize) {
            let last = (first + block).min(asked.end() * PAGE) - 1;
            let whole = range(first / PAGE, last / PAGE - first / PAGE + 1);
            prop_assert!(regions.iter().any(|region| region.contains(whole)), "{} of {:?}", whole, regions);
        }
        prop_assert!(regions.iter().all(|region| region.pages() <= slice));
        // And again it is a hit.
        prop_assert_eq!(registered(&mut core, &request).unwrap(), []);
    }
}

#[test]
fn one_key_is_not_cut() {
    let mut core = Core::new(&Config { slice_pages: Some(8), ..Config::new(100) }).unwrap();
    core.use_one_key();
    assert_eq!(registered(&mut core, &Request::new(range(5, 8))), Ok(vec![range(5, 8)]));
}

#[test]
fn slices_larger_than_a_region_are_as_large_as_it() {
    let config = Config { slice_pages: Some(8), max_region_pages: Some(6), ..Config::new(100) };
    assert_eq!(
        registered(&mut core(&config), &Request::new(range(5, 8))),
        Ok(vec![range(5, 1), range(6, 6), range(12, 1)])
    );
}

#[test]
fn lack_of_regions_evicts_before_it_refuses() {
    let mut core = core(&Config { slice_pages: Some(4), max_regions: Some(4), ..Config::new(1000) });
    for start in [100, 200, 300, 400] {
        registered(&mut core, &Request::new(range(start, 1))).unwrap();
    }
    let request = Request::new(range(0, 16));
    assert_eq!(registered(&mut core, &request).map(|made| made.len()), Ok(4));
    assert_eq!(core.counters().evicted, 4);
    // With all of them held nothing can leave.
    let ids: Vec<_> = core.cached().map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| core.hold(id));
    let refusal = registered(&mut core, &Request::new(range(500, 8))).unwrap_err();
    assert_eq!((refusal.missing_regions, refusal.missing_pages), (2, 0));
}

#[test]
fn blocks_of_whole_cached_parts_are_a_hit() {
    let mut core = core(&Config { slice_pages: Some(8), ..Config::new(100) });
    registered(&mut core, &Request::new(range(0, 4))).unwrap();
    registered(&mut core, &Request::new(range(4, 4))).unwrap();
    let blocks_of =
        |pages: u64| Request { blocks: Grid::of_blocks(PAGE << 3, pages * PAGE, PAGE), ..Request::new(range(0, 8)) };
    let outcome = core.request_with(&blocks_of(2), &mut NoHolders).unwrap();
    assert_eq!((outcome.found(), outcome.parts().len()), (Found::Covered, 2));
    // Blocks of three pages begin at 2, 5 and 8: one region takes the place of the two.
    assert_eq!(registered(&mut core, &blocks_of(3)), Ok(vec![range(0, 8)]));
    assert_eq!(core.cached().count(), 1);
}

#[test]
fn ranges_that_are_not_split_are_not_sliced() {
    let plain = Config { slice_pages: Some(8), ..Config::new(100) };
    for config in [
        Config { overlap: Some(Overlap::Merge), ..plain.clone() },
        Config { matching: Some(Matching::Exact), ..plain.clone() },
    ] {
        assert_eq!(Core::new(&config).err(), Some(ConfigError::Slices), "{config:?}");
    }
}
