//! The cache decides what its core decides.
//!
//! The test drives a cache from one thread that drops each lease before its next request, and beside it a bare
//! [`Core`]. There a request that one region contains only leaves a mark on that region. The marked regions move up
//! when the core asks for them before *full*, in the order of their numbers, each as often as it was hit but no more
//! often than the policy can tell apart. Then both answer alike, request by request, and end with the same counters.
//! So the concurrent cache differs from the exact core in nothing but the recency of hits between two evictions, and
//! where there are none it does not differ at all.

mod common;
#[path = "common/reference.rs"]
mod reference;

use common::*;
use mrrc::policy::{Granule, Keeps, Overlap};
use mrrc::{Access, Config, Counters, PAGE};
use proptest::prelude::*;
use reference::Reference;
use tracesim_policies::AnyPolicy;

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

/// Runs both. `exact`: every hit reaches the core at once, as in a simulation.
fn compare(policy: AnyPolicy, steps: &[Step], exact: bool) -> (Counters, Counters) {
    let config = Config { max_regions: Some(CAPACITY), ..Config::new(CAPACITY) };
    let mut reference = Reference::new(policy, &config, exact);
    let exact = reference.exact;
    let device = device();
    let cache =
        builder(&device, CAPACITY).config(config).policy_from(move |params| policy.build(params)).build().unwrap();
    for (at, &step) in steps.iter().enumerate() {
        match step {
            Step::Ask { start, pages, remote } => {
                let access = if remote { Access::LOCAL | Access::REMOTE_READ } else { Access::LOCAL };
                let before = device.counts().regs;
                drop(ask(&cache, start, pages, access).unwrap());
                let answer = reference.ask(range(start, pages), access);
                if !exact {
                    assert_eq!(device.counts().regs - before, answer.gaps, "{policy} at step {at}: {answer:?}");
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
fn policies() -> Vec<AnyPolicy> {
    let usual = |policy: &AnyPolicy| {
        let core = policy.core(&Config::new(CAPACITY)).unwrap();
        core.scheme().keeps == Keeps::UntilEvicted && core.scheme().granule == Granule::Region
    };
    AnyPolicy::ALL.iter().copied().filter(usual).collect()
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
    fn locked_path_decides_exactly_as_core(starts in prop::collection::vec(0_u64..200, 1..20)) {
        // A hull could contain a later request.
        let merges = |policy: &AnyPolicy| policy.core(&Config::new(CAPACITY)).unwrap().scheme().overlap == Overlap::Merge;
        for policy in policies().into_iter().filter(|policy| !merges(policy)) {
            let steps: Vec<_> = starts.iter().zip(1..).map(|(&start, pages)| Step::Ask { start, pages, remote: false }).collect();
            let (cache, core) = compare(policy, &steps, true);
            prop_assert_eq!(cache, core, "{}", policy);
        }
    }
}
