//! The cache decides what its core decides.
//!
//! The statement: drive a cache from one thread that drops each lease before its next request, and beside it a bare
//! [`Core`] in which a request that one region contains only leaves a mark on that region, and in which the marked
//! regions move up, in the order of their numbers, each as often as it was hit but no more often than the policy can
//! tell apart, when the core asks for them before *full*. Then both
//! answer alike, request by request, and end with the same counters. So the concurrent cache differs from the exact
//! core in nothing but the recency of hits between two evictions, and where there are none it does not differ at all.

mod common;

use common::*;
use mrrc::core::{Ask, Core, Holders};
use mrrc::policy::{Granule, Keeps, Matching, Overlap, Policy, PolicyKind};
use mrrc::{Access, Config, Counters, PAGE, PageRange, Part, RegionId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const CAPACITY: u64 = 64;

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask { start: u64, pages: u64, remote: bool },
    Invalidate { start: u64, pages: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ask = (0_u64..120, 1_u64..9, prop::bool::weighted(0.1));
    let step = prop_oneof![
        30 => ask.prop_map(|(start, pages, remote)| Step::Ask { start, pages, remote }),
        1 => (0_u64..120, 1_u64..20).prop_map(|(start, pages)| Step::Invalidate { start, pages }),
    ];
    prop::collection::vec(step, 1..300)
}

/// Knows no holders; hands over marks.
struct Marks {
    of: BTreeMap<RegionId, u32>,
    /// What the policy can tell apart.
    most: u32,
}

impl Holders for Marks {
    fn hold_back(&mut self, _: &[RegionId], _: &mut Vec<RegionId>) {}

    fn stay(&mut self, _: &[RegionId]) {}

    fn touched(&mut self, _: usize, touched: &mut Vec<RegionId>) {
        for (id, uses) in std::mem::take(&mut self.of) {
            touched.extend((0..uses).map(|_| id));
        }
    }
}

struct Reference {
    core: Core,
    marks: Marks,
    hits: Counters,
    /// Whether hits reach the core at once.
    exact: bool,
}

impl Reference {
    /// What is registered for the request.
    fn ask(&mut self, range: PageRange, access: Access) -> Vec<PageRange> {
        let found = (!self.exact).then(|| self.core.find_with(range, access)).flatten();
        if let Some(id) = found {
            let whole = self.core.range_of(id) == Some(range);
            self.hits.requests += 1;
            self.hits.exact += u64::from(whole);
            self.hits.subset += u64::from(!whole);
            self.hits.pages += range.pages();
            self.hits.hit_pages += range.pages();
            let uses = self.marks.of.entry(id).or_default();
            *uses = (*uses + 1).min(self.marks.most);
            return Vec::new();
        }
        let outcome = self.core.ask(&Ask { access, ..Ask::new(range) }, &mut self.marks).unwrap();
        let yielding: Vec<_> = outcome.yielding().iter().map(|yielding| yielding.region).collect();
        let gaps: Vec<_> = outcome.parts().iter().copied().filter(|part| matches!(part, Part::Gap { .. })).collect();
        for id in gaps.iter().filter_map(Part::region) {
            // Held while it is registered; a new region has no mark.
            self.marks.of.remove(&id);
            self.core.hold(id);
        }
        gaps.iter().filter_map(Part::region).for_each(|id| _ = self.core.release(id));
        // What they take the place of goes when they stand.
        if !yielding.is_empty() {
            _ = self.core.give_way(yielding);
        }
        gaps.iter().map(Part::range).collect()
    }

    fn counters(&self) -> Counters {
        let (mut counters, hits) = (self.core.counters(), self.hits);
        counters.requests += hits.requests;
        counters.exact += hits.exact;
        counters.subset += hits.subset;
        counters.pages += hits.pages;
        counters.hit_pages += hits.hit_pages;
        counters
    }
}

/// Runs both. `exact`: every hit reaches the core at once, as in a simulation.
fn compare(policy: PolicyKind, steps: &[Step], exact: bool) -> (Counters, Counters) {
    let config = Config { policy, max_regions: Some(CAPACITY), ..Config::new(CAPACITY) };
    let mut core = config.build().unwrap();
    core.limit_hard();
    let exact = exact || core.scheme().matching == Matching::Exact;
    let marks = Marks { of: BTreeMap::new(), most: policy.build(&config).most_uses() };
    let mut reference = Reference { core, marks, hits: Counters::default(), exact };
    let device = device();
    let cache = builder(&device, CAPACITY).config(config).build().unwrap();
    for (at, &step) in steps.iter().enumerate() {
        match step {
            Step::Ask { start, pages, remote } => {
                let access = if remote { Access::LOCAL | Access::REMOTE_READ } else { Access::LOCAL };
                let before = device.counts().regs;
                drop(ask(&cache, start, pages, access).unwrap());
                let gaps = reference.ask(range(start, pages), access);
                if !exact {
                    assert_eq!(device.counts().regs - before, gaps.len() as u64, "{policy} at step {at}: {gaps:?}");
                }
            }
            Step::Invalidate { start, pages } => {
                cache.invalidate(address(start), (pages * PAGE) as usize).unwrap();
                _ = reference.core.invalidate(range(start, pages));
            }
        }
    }
    let counted = cache.counters();
    assert_eq!((counted.attempts, device.counts().regs), (counted.decisions.regs, counted.decisions.regs));
    assert!(device.counts().peak_pages <= CAPACITY);
    assert_eq!(counted.deregistered + cache.usage().leaving, counted.decisions.deregs);
    (counted.decisions, reference.counters())
}

/// Those that register regions and let them go when others need the room; a request always fits beside its overlaps.
fn policies() -> Vec<PolicyKind> {
    let usual = |&kind: &PolicyKind| {
        let core = Config { policy: kind, ..Config::new(CAPACITY) }.build().unwrap();
        core.scheme().keeps == Keeps::UntilEvicted && core.scheme().granule == Granule::Region
    };
    PolicyKind::ALL.iter().copied().filter(usual).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn marked_hits_are_all_that_differs_from_the_core(steps in steps()) {
        for policy in policies() {
            let (cache, core) = compare(policy, &steps, false);
            prop_assert_eq!(cache, core, "{}", policy);
        }
    }

    /// Requests that no single region contains, by construction: each is longer than any before it.
    #[test]
    fn where_no_hit_is_served_without_the_lock_the_core_is_met_exactly(starts in prop::collection::vec(0_u64..200, 1..20)) {
        // A hull could contain a later request.
        let merges = |kind: &PolicyKind| Config { policy: *kind, ..Config::new(CAPACITY) }.build().unwrap().scheme().overlap == Overlap::Merge;
        for policy in policies().into_iter().filter(|kind| !merges(kind)) {
            let steps: Vec<_> = starts.iter().zip(1..).map(|(&start, pages)| Step::Ask { start, pages, remote: false }).collect();
            let (cache, core) = compare(policy, &steps, true);
            prop_assert_eq!(cache, core, "{}", policy);
        }
    }
}
