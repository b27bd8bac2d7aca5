//! The schemes beyond the choice of victims, each in a story short enough to check by hand.

use mrrc_core::cost::Linear;
use mrrc_core::policy::{Granule, Matching, Overlap, Policy, PolicyKind, Scheme};
use mrrc_core::{Config, ConfigError, Core, Found, Leaving, PageRange, Part, RegionId, Regions};
use tracesim_policies::AnyPolicy;

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(start, end - start).unwrap()
}

fn core(policy: &str, capacity: u64) -> Core {
    AnyPolicy::named(policy).unwrap().core(&Config::new(capacity)).unwrap()
}

/// Returns the outcome of a request: found, gaps, and the ranges of each batch.
fn ask(core: &mut Core, start: u64, end: u64) -> (Found, Vec<PageRange>, Vec<Vec<PageRange>>) {
    let outcome = core.request(range(start, end)).unwrap();
    let batches = outcome.batches().map(|batch| batch.iter().map(|leaving| leaving.range).collect()).collect();
    (outcome.found(), outcome.gaps().collect(), batches)
}

fn cached(core: &Core) -> Vec<PageRange> {
    let mut ranges: Vec<_> = core.cached().map(|(_, range)| range).collect();
    ranges.sort_unstable();
    ranges
}

#[test]
fn none_registers_and_deregisters_at_each_request() {
    let mut core = core("none", 1);
    for _ in 0..3 {
        assert_eq!(ask(&mut core, 10, 14), (Found::Miss, vec![range(10, 14)], vec![]));
    }
    let counters = core.counters();
    assert_eq!((counters.regs, counters.deregs, counters.dereg_batches, counters.bypass), (3, 3, 3, 0));
    assert_eq!((core.used_pages(), counters.peak_pages), (0, 4));
}

#[test]
fn pindown_evicts_just_enough_one_at_a_time() {
    let mut core = core("pindown", 10);
    for start in [0, 2, 4, 6, 8] {
        ask(&mut core, start, start + 2);
    }
    ask(&mut core, 0, 1);
    let batches = ask(&mut core, 100, 103).2;
    assert_eq!(batches, [vec![range(2, 4)], vec![range(4, 6)]]);
}

#[test]
fn fmrd_evicts_a_share_of_the_capacity_in_one_batch() {
    let mut core = AnyPolicy::Fmrd.core(&Config { evict: 0.5, ..Config::new(10) }).unwrap();
    for start in [0, 2, 4, 6, 8] {
        ask(&mut core, start, start + 2);
    }
    let batches = ask(&mut core, 100, 101).2;
    assert_eq!(batches, [vec![range(0, 2), range(2, 4), range(4, 6)]]);
}

#[test]
fn pages_enter_by_runs_and_leave_alone() {
    let mut core = core("pindown-page", 4);
    ask(&mut core, 1, 2);
    assert_eq!(ask(&mut core, 0, 4).0, Found::Partial);
    // Two runs around page 1, though three pages became entries.
    assert_eq!((core.counters().regs, core.counters().reg_pages, core.used_regions()), (3, 4, 4));
    assert_eq!(ask(&mut core, 0, 4).0, Found::Covered);
    assert_eq!(ask(&mut core, 2, 3).0, Found::Exact);
    let batches = ask(&mut core, 10, 12).2;
    assert_eq!(batches, [vec![range(0, 1)], vec![range(1, 2)]]);
    assert_eq!((core.counters().deregs, core.counters().dereg_batches), (2, 2));
}

#[test]
fn lazy_serves_equals_only_and_its_table_is_bounded() {
    let config = Config { table_entries: 2, ..Config::new(100) };
    let mut core = AnyPolicy::Lazy.core(&config).unwrap();
    assert_eq!(ask(&mut core, 0, 8).0, Found::Miss);
    assert_eq!(ask(&mut core, 0, 8).0, Found::Exact);
    assert_eq!(ask(&mut core, 0, 4), (Found::Miss, vec![range(0, 4)], vec![]));
    assert_eq!(core.used_pages(), 12);
    assert_eq!(ask(&mut core, 0, 8).0, Found::Exact);
    assert_eq!(ask(&mut core, 50, 51).2, [vec![range(0, 4)]]);
    assert_eq!(cached(&core), [range(0, 8), range(50, 51)]);
}

#[test]
fn firehose_registers_buckets_and_evicts_lru() {
    let config = Config { bucket_pages: 4, ..Config::new(12) };
    let mut core = AnyPolicy::Firehose.core(&config).unwrap();
    assert_eq!(ask(&mut core, 3, 5), (Found::Miss, vec![range(0, 4), range(4, 8)], vec![]));
    assert_eq!((core.counters().regs, core.counters().reg_pages, core.counters().pages), (2, 8, 2));
    assert_eq!(ask(&mut core, 5, 7).0, Found::Subset);
    assert_eq!(ask(&mut core, 0, 8).0, Found::Covered);
    ask(&mut core, 8, 9);
    // Bucket 0 is held while the others are used again: it leaves first until it is released, last after.
    let region = core.find(range(0, 4)).unwrap();
    core.hold(region);
    ask(&mut core, 4, 5);
    ask(&mut core, 8, 9);
    core.release(region);
    assert_eq!(ask(&mut core, 20, 21).2, [vec![range(4, 8)]]);
    assert_eq!(cached(&core), [range(0, 4), range(8, 12), range(20, 24)]);
}

#[test]
fn ogr_joins_near_ranges_of_one_request() {
    let mut core = core("ogr", 100);
    let mut answers = Vec::new();
    let asked = [range(40, 44), range(0, 8), range(10, 18), range(90, 91)];
    core.request_list(&asked, |span, outcome| answers.push((span, outcome.unwrap().gaps().collect::<Vec<_>>())));
    // The hole of two pages costs less than a call; the others are too wide.
    assert_eq!(
        answers,
        [
            (range(0, 18), vec![range(0, 18)]),
            (range(40, 44), vec![range(40, 44)]),
            (range(90, 91), vec![range(90, 91)])
        ]
    );
    let counters = core.counters();
    assert_eq!((counters.requests, counters.miss, counters.pages), (4, 4, 21));
    assert_eq!((counters.regs, counters.reg_pages), (3, 23));
    answers.clear();
    core.request_list(&asked, |span, outcome| answers.push((span, outcome.unwrap().gaps().collect())));
    assert_eq!(answers.len(), 4);
    assert_eq!((core.counters().exact, core.counters().subset), (2, 2));
}

#[test]
fn ungrouped_schemes_take_each_range_alone() {
    let mut core = core("pindown", 100);
    core.request_list(&[range(0, 8), range(10, 18)], |_, outcome| assert_eq!(outcome.unwrap().gaps().count(), 1));
    assert_eq!(core.counters().regs, 2);
}

#[test]
fn ucx_merges_overlaps_into_their_union() {
    let mut core = core("ucx", 100);
    ask(&mut core, 0, 4);
    ask(&mut core, 8, 12);
    assert_eq!(ask(&mut core, 2, 9), (Found::Partial, vec![range(0, 12)], vec![vec![range(0, 4)], vec![range(8, 12)]]));
    assert_eq!(cached(&core), [range(0, 12)]);
    assert_eq!((core.counters().merged, core.counters().regs, core.counters().reg_pages), (2, 3, 20));
    assert_eq!(ask(&mut core, 0, 12).0, Found::Exact);
}

#[test]
fn spanning_hit_needs_segments() {
    for (overlap, found) in [(Overlap::Split, Found::Covered), (Overlap::Merge, Found::Partial)] {
        let mut core =
            Core::new(&Config { policy: PolicyKind::Mrrc, overlap: Some(overlap), ..Config::new(100) }).unwrap();
        ask(&mut core, 0, 4);
        ask(&mut core, 4, 8);
        assert_eq!(ask(&mut core, 2, 6).0, found);
    }
}

#[test]
fn whole_drops_what_it_overlaps() {
    let mut core =
        Core::new(&Config { policy: PolicyKind::Mrrc, overlap: Some(Overlap::Whole), ..Config::new(100) }).unwrap();
    ask(&mut core, 0, 4);
    assert_eq!(ask(&mut core, 2, 9), (Found::Partial, vec![range(2, 9)], vec![vec![range(0, 4)]]));
    assert_eq!(cached(&core), [range(2, 9)]);
}

#[test]
fn merged_held_region_stays_until_released() {
    let mut core = core("ucx", 20);
    ask(&mut core, 0, 4);
    let old = core.find(range(0, 4)).unwrap();
    core.hold(old);
    assert_eq!(ask(&mut core, 2, 9).2, Vec::<Vec<PageRange>>::new());
    assert_eq!((core.used_pages(), cached(&core)), (4 + 9, vec![range(0, 9)]));
    let left: Vec<Leaving> = core.release(old).batches().flatten().copied().collect();
    assert_eq!(left, [Leaving { region: old, range: range(0, 4) }]);
    assert_eq!(core.used_pages(), 9);
}

#[test]
fn union_without_room_bypasses() {
    let mut core = core("ucx", 10);
    ask(&mut core, 0, 8);
    let outcome = core.request(range(6, 12)).unwrap();
    assert!(outcome.is_bypass());
    assert_eq!(
        outcome.parts(),
        [Part::Gap { region: None, range: range(6, 12), access: mrrc_core::Access::LOCAL_READ }]
    );
    assert_eq!(cached(&core), [range(0, 8)]);
}

#[test]
fn libfabric_is_bounded_in_entries() {
    let mut core = AnyPolicy::Libfabric.core(&Config { cache_entries: 2, ..Config::new(100) }).unwrap();
    for start in [0, 10, 20] {
        ask(&mut core, start, start + 1);
    }
    assert_eq!(cached(&core), [range(10, 11), range(20, 21)]);
}

#[test]
fn nccl_never_evicts() {
    let mut core = core("nccl", 4);
    ask(&mut core, 0, 3);
    for _ in 0..2 {
        assert!(core.request(range(10, 12)).unwrap().is_bypass());
    }
    assert_eq!(ask(&mut core, 20, 21).0, Found::Miss);
    assert_eq!(cached(&core), [range(0, 3), range(20, 21)]);
    assert_eq!((core.counters().bypass, core.counters().deregs), (2, 2));
}

#[test]
fn gaps_longer_than_the_largest_region_are_cut() {
    let mut core =
        Core::new(&Config { policy: PolicyKind::Mrrc, max_region_pages: Some(4), ..Config::new(100) }).unwrap();
    assert_eq!(ask(&mut core, 0, 10).1, [range(0, 4), range(4, 8), range(8, 10)]);
    assert_eq!(ask(&mut core, 0, 10).0, Found::Covered);
}

#[test]
fn exact_matching_suits_any_region_policy() {
    let mut core =
        Core::new(&Config { policy: PolicyKind::Mrrc, matching: Some(Matching::Exact), ..Config::new(100) }).unwrap();
    ask(&mut core, 0, 8);
    assert_eq!(ask(&mut core, 0, 4).0, Found::Miss);
    for policy in [AnyPolicy::PinDownPage, AnyPolicy::Firehose] {
        let config = Config { matching: Some(Matching::Exact), ..Config::new(100) };
        assert_eq!(policy.core(&config).err(), Some(ConfigError::Granule));
    }
}

#[test]
fn everything_in_use_is_an_error_that_loses_nothing() {
    let mut core = core("mrrc", 8);
    for start in [0, 2, 4, 6] {
        ask(&mut core, start, start + 2);
    }
    let held: Vec<_> = [2, 4, 6].map(|start| core.find(range(start, start + 2)).unwrap()).into();
    held.iter().for_each(|&region| core.hold(region));
    let error = core.request(range(20, 23)).unwrap_err();
    assert_eq!((error.missing_pages, error.in_use_pages, error.in_use_regions), (3, 6, 3));
    assert!(error.to_string().contains("0x14000..0x17000 (3 pages)"), "{error}");
    assert_eq!(cached(&core).len(), 4);
    held.iter().for_each(|&region| _ = core.release(region));
    assert!(core.request(range(20, 23)).is_ok());
}

#[test]
fn invalidation_retires_held_and_batches_rest() {
    let mut core = core("mrrc", 100);
    for start in [0, 10, 20, 30] {
        ask(&mut core, start, start + 4);
    }
    let held = core.find(range(10, 14)).unwrap();
    core.hold(held);
    let dropped: Vec<Vec<PageRange>> =
        core.invalidate(range(3, 21)).batches().map(|batch| batch.iter().map(|l| l.range).collect()).collect();
    assert_eq!(dropped, [vec![range(0, 4), range(20, 24)]]);
    assert_eq!((cached(&core), core.used_pages()), (vec![range(30, 34)], 8));
    assert_eq!((core.counters().invalidated, core.counters().invalidated_pages), (3, 12));
    // The same pages can be registered again while the old registration is still held.
    assert_eq!(ask(&mut core, 10, 14).0, Found::Miss);
    assert_eq!(core.release(held).batches().flatten().count(), 1);
    assert_eq!(core.used_pages(), 8);
}

#[test]
fn whole_address_space_is_a_valid_request() {
    for &policy in AnyPolicy::ALL {
        let mut core = policy.core(&Config { max_region_pages: Some(3), ..Config::new(1_000) }).unwrap();
        assert_eq!(core.request(PageRange::EVERYTHING).unwrap().parts().len(), 1, "{policy}");
        assert!(core.counters().regs > 0 && core.used_pages() == 0);
        if policy == AnyPolicy::PinDownPage || policy == AnyPolicy::Firehose {
            continue; // where it fits, it would be more entries than any machine has memory for
        }
        let config = Config { max_region_pages: Some(1), max_regions: Some(100), ..Config::new(u64::MAX) };
        assert!(
            policy == AnyPolicy::None
                || policy.core(&config).unwrap().request(PageRange::EVERYTHING).is_err()
                || policy == AnyPolicy::Nccl
        );
        let mut core = policy.core(&Config::new(u64::MAX)).unwrap();
        for _ in 0..5_000 {
            assert_eq!(core.request(PageRange::EVERYTHING).unwrap().parts().len(), 1);
        }
        assert!(core.counters().pages == u64::MAX && core.used_pages() <= core.capacity(), "{policy}");
        core.invalidate(PageRange::EVERYTHING);
        assert_eq!(core.used_pages(), 0);
    }
}

#[test]
fn learned_costs_reach_the_policies_that_weigh_them() {
    let mut core = core("gdsf", 5);
    let flat = Linear { reg_page: 0.0, reg_call: 1.0, dereg_page: 0.0, dereg_call: 0.0 };
    core.set_costs(flat).unwrap();
    ask(&mut core, 0, 4);
    ask(&mut core, 10, 11);
    // With a flat cost a page of a large region is worth less than a small region.
    assert_eq!(ask(&mut core, 20, 21).2, [vec![range(0, 4)]]);
    // When pages cost and calls do not, they are worth the same, and the older leaves.
    let mut core = where_only_pages_cost();
    ask(&mut core, 10, 11);
    ask(&mut core, 0, 4);
    assert_eq!(ask(&mut core, 20, 21).2, [vec![range(10, 11)]]);
    assert!(core.set_costs(Linear { reg_page: f64::NAN, ..flat }).is_err());
}

fn where_only_pages_cost() -> Core {
    let mut core = core("gdsf", 5);
    core.set_costs(Linear { reg_page: 1.0, reg_call: 0.0, dereg_page: 0.0, dereg_call: 0.0 }).unwrap();
    core
}

/// A policy from outside that says what it is told to, and evicts the newest whether it is in use or not.
struct Careless(Scheme, Vec<RegionId>);

impl Policy for Careless {
    fn scheme(&self) -> Scheme {
        self.0
    }
    fn insert(&mut self, _: &mut Regions, id: RegionId) {
        self.1.push(id);
    }
    fn touch(&mut self, _: &mut Regions, _: RegionId) {}
    fn remove(&mut self, _: &mut Regions, id: RegionId) {
        self.1.retain(|&other| other != id);
    }
    fn victim(&mut self, _: &mut Regions) -> Option<RegionId> {
        self.1.pop()
    }
    fn put_back(&mut self, _: &mut Regions, id: RegionId) {
        self.1.push(id);
    }
}

#[test]
fn a_scheme_from_outside_is_checked_like_any_other() {
    let refused = |scheme| Core::with_policy(&Config::new(10), Careless(scheme, Vec::new())).err();
    let whole = Scheme::default();
    let buckets = Scheme { granule: Granule::Bucket(0), ..whole };
    assert_eq!(refused(buckets), Some(ConfigError::ZeroLimit { name: "bucket_pages" }));
    assert_eq!(refused(Scheme { max_regions: Some(0), ..whole }), Some(ConfigError::ZeroLimit { name: "max_regions" }));
    let pages = Scheme { granule: Granule::Page, overlap: Overlap::Merge, ..whole };
    assert_eq!(refused(pages), Some(ConfigError::Granule));
    assert_eq!(refused(whole), None);
}

#[test]
#[should_panic(expected = "which is in use or gone")]
fn careless_policy_cannot_evict_held() {
    let mut core = Core::with_policy(&Config::new(2), Careless(Scheme::default(), Vec::new())).unwrap();
    core.request(range(0, 1)).unwrap();
    core.request(range(1, 2)).unwrap();
    core.hold(core.find(range(1, 2)).unwrap());
    let _ = core.request(range(5, 6));
}
