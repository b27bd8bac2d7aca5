//! The lower bound lies below everything that can be done, and the upper one above the cheapest of it.

use mrrc_core::cost::Linear;
use mrrc_core::policy::{Matching, Overlap, PolicyParams};
use mrrc_core::{Access, Config, PageRange};
use proptest::prelude::*;
use traces::{Kind, Process, Step, Trace};
use tracesim::bound;
use tracesim::policies::builtin;
use tracesim::row::DeregCost;
use tracesim::simulate::{Recency, replay};

/// Pages of the small address space of the exhaustive search.
const PAGES: u64 = 6;

#[derive(Clone, Debug)]
enum What {
    Request(Vec<PageRange>),
    Acquire(PageRange),
    /// The place of the acquire that ends, among those so far.
    Release(prop::sample::Index),
    Invalidate(PageRange),
}

fn range(space: u64, longest: u64) -> impl Strategy<Value = PageRange> {
    (0..space, 1..=longest).prop_map(move |(start, pages)| PageRange::new(start, pages.min(space - start)).unwrap())
}

fn what(space: u64, longest: u64) -> impl Strategy<Value = What> {
    prop_oneof![
        12 => range(space, longest).prop_map(|range| What::Request(vec![range])),
        2 => prop::collection::vec(range(space, longest), 2..4).prop_map(What::Request),
        2 => range(space, longest).prop_map(What::Acquire),
        2 => any::<prop::sample::Index>().prop_map(What::Release),
        1 => range(space, longest).prop_map(What::Invalidate),
    ]
}

fn trace_of(processes: Vec<Vec<What>>, ends_idle: bool) -> Trace {
    let mut trace = Trace::default();
    for whats in processes {
        let mut held = Vec::new();
        let mut steps = Vec::new();
        for what in whats {
            let mut add = |kind, range, goes_on| steps.push(Step::new(kind, range, Access::LOCAL, goes_on));
            match what {
                What::Request(ranges) => {
                    let last = ranges.len() - 1;
                    ranges.iter().enumerate().for_each(|(at, &range)| add(Kind::Request, range, at < last));
                }
                What::Acquire(range) => {
                    add(Kind::Acquire, range, false);
                    held.push(range);
                }
                What::Release(_) if held.is_empty() => {}
                What::Release(which) => add(Kind::Release, held.swap_remove(which.index(held.len())), false),
                What::Invalidate(range) => add(Kind::Invalidate, range, false),
            }
        }
        if ends_idle {
            steps.extend(held.into_iter().map(|range| Step::new(Kind::Release, range, Access::LOCAL, false)));
        }
        trace.processes.push(Process { steps: steps.into() });
    }
    trace
}

/// `ends_idle`: every lease ends before the trace does.
fn traces(space: u64, longest: u64, events: usize, ends_idle: bool) -> impl Strategy<Value = Trace> {
    let whats = prop::collection::vec(prop::collection::vec(what(space, longest), 1..events), 1..3);
    whats.prop_map(move |whats| trace_of(whats, ends_idle))
}

fn costs() -> impl Strategy<Value = Linear> {
    prop_oneof![
        2 => Just(Linear::PAPER),
        1 => Just(Linear { reg_page: 1.0, reg_call: 0.0, dereg_page: 0.5, dereg_call: 0.0 }),
        1 => Just(Linear { reg_page: 0.0, reg_call: 3.0, dereg_page: 0.0, dereg_call: 1.0 }),
        1 => Just(Linear { reg_page: 0.1, reg_call: 9.0, dereg_page: 2.0, dereg_call: 0.0 }),
    ]
}

/// Returns the least that any schedule of pages costs, by trying them all: each set of pages that can be
/// registered is a state. Single pages can leave, gaps are registered one by one or the request whole, and any
/// request may bypass.
fn optimum(process: &Process, capacity: u64, costs: &Linear) -> f64 {
    let states = 1usize << PAGES;
    let mask_of = |range: PageRange| ((1usize << range.pages()) - 1) << range.start();
    let runs = |mask: usize| (mask & !(mask << 1)).count_ones();
    let leave = |mask: usize| if mask == 0 { 0.0 } else { costs.deregister(u64::from(mask.count_ones())) };
    let mut least = vec![f64::INFINITY; states];
    least[0] = 0.0;
    for step in &process.steps {
        let mut after = vec![f64::INFINITY; states];
        let asked = mask_of(step.range());
        for (had, &so_far) in least.iter().enumerate().filter(|(_, cost)| cost.is_finite()) {
            match step.kind() {
                Kind::Release => after[had] = after[had].min(so_far),
                Kind::Invalidate => {
                    // Regions leave whole, and take along what else they hold.
                    let leaves = |kept: usize| so_far + leave(had & !kept);
                    for_each_subset(had & !asked, |kept| after[kept] = after[kept].min(leaves(kept)));
                }
                Kind::Request | Kind::Acquire => {
                    let gap = asked & !had;
                    let by_gap = costs.reg_page * f64::from(gap.count_ones()) + costs.reg_call * f64::from(runs(gap));
                    let whole = costs.register(u64::from(asked.count_ones()));
                    let register = if gap == 0 { 0.0 } else { by_gap.min(whole) };
                    // Every subset of what there is may stay.
                    for_each_subset(had, |kept| {
                        let cached = kept | asked;
                        if u64::from(cached.count_ones()) <= capacity {
                            after[cached] = after[cached].min(so_far + register + leave(had & !cached));
                        }
                        after[kept] = after[kept].min(so_far + register + leave(had & !kept | gap));
                    });
                }
            }
        }
        least = after;
    }
    least.into_iter().fold(f64::INFINITY, f64::min)
}

fn for_each_subset(set: usize, mut visit: impl FnMut(usize)) {
    let mut subset = set;
    loop {
        visit(subset);
        if subset == 0 {
            return;
        }
        subset = (subset - 1) & set;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_optimum_lies_between_the_bounds(trace in traces(PAGES, 4, 14, true), costs in costs()) {
        let capacities: Vec<u64> = (1..=PAGES).collect();
        let lower = bound::lower(&trace, &capacities, &costs);
        let upper = bound::upper(&trace, &capacities, &costs).unwrap();
        let bypassing = bound::upper_bypassing(&trace, &capacities, &costs).unwrap();
        for (at, &capacity) in capacities.iter().enumerate() {
            let optimum: f64 = trace.processes.iter().map(|process| optimum(process, capacity, &costs)).sum();
            prop_assert!(lower[at] <= optimum + 1e-9, "lower {} at {capacity}, optimum {optimum}", lower[at]);
            let least = upper[at].min(bypassing[at]);
            prop_assert!(optimum <= least + 1e-9, "upper {least} at {capacity}, optimum {optimum}");
        }
    }

    #[test]
    fn no_policy_goes_below_the_lower_bound(
        trace in traces(40, 9, 60, false),
        costs in costs(),
        matching in prop::option::of(prop_oneof![Just(Matching::Contain), Just(Matching::Exact)]),
        overlap in prop::option::of(prop_oneof![Just(Overlap::Split), Just(Overlap::Merge), Just(Overlap::Whole)]),
    ) {
        let capacities = [1, 3, 8, 16, 30, 100];
        let lower = bound::lower(&trace, &capacities, &costs);
        for (&capacity, lower) in capacities.iter().zip(lower) {
            for policy in builtin().iter().filter(|policy| bound::holds_for(&policy.scheme(&PolicyParams::new(capacity)))) {
                let config = Config { matching, overlap, cost: costs, ..Config::new(capacity) };
                // Some requests find all in use. They are in the cost, so the bound holds all the same.
                let Ok(replayed) = replay(&trace, policy, &config, Recency::Exact, None) else { continue };
                let total = replayed.cost(&costs, DeregCost::Batch).total_us();
                let refused = replayed.counters.all_in_use;
                prop_assert!(
                    lower <= total + 1e-9,
                    "{policy} pays {total} at {capacity}, {refused} refused, bound {lower}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn pages_alone_bound_policies_that_widen(trace in traces(40, 9, 60, false), costs in costs(), widen in any::<bool>()) {
        let capacities = [1, 3, 8, 16, 30, 100];
        let pages = Linear { reg_call: 0.0, dereg_call: 0.0, ..costs };
        let lower = bound::lower(&trace, &capacities, &pages);
        for (&capacity, lower) in capacities.iter().zip(lower) {
            for policy in &builtin() {
                let config = Config { widen: widen.then_some(true), cost: costs, ..Config::new(capacity) };
                let Ok(replayed) = replay(&trace, policy, &config, Recency::Exact, None) else { continue };
                let total = replayed.cost(&costs, DeregCost::Batch).total_us();
                prop_assert!(lower <= total + 1e-9, "{policy} pays {total} at {capacity}, bound {lower}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_policy_pays_less_than_the_upper_side(trace in traces(40, 9, 60, false), costs in costs()) {
        let capacities = [1, 3, 8, 16, 30, 100];
        let upper = bound::upper(&trace, &capacities, &costs).unwrap();
        for (&capacity, upper) in capacities.iter().zip(upper) {
            for policy in builtin().iter().filter(|policy| bound::holds_for(&policy.scheme(&PolicyParams::new(capacity)))) {
                let config = Config { cost: costs, ..Config::new(capacity) };
                let Ok(replayed) = replay(&trace, policy, &config, Recency::Exact, None) else { continue };
                let total = replayed.cost(&costs, DeregCost::Batch).total_us();
                prop_assert!(upper <= total + 1e-9, "{policy} pays {total} at {capacity}, upper side {upper}");
            }
        }
    }
}

#[test]
fn bound_with_full_room_is_first_use_cost() {
    let [a, b] = [PageRange::new(0, 4).unwrap(), PageRange::new(10, 2).unwrap()];
    let whats = [a, b, a, b, a].map(|range| What::Request(vec![range]));
    let trace = trace_of(vec![whats.to_vec()], true);
    let costs = Linear::PAPER;
    let all = costs.register(4) + costs.register(2);
    for lower in bound::lower(&trace, &[6, 100], &costs) {
        assert!((lower - all).abs() < 1e-9, "{lower} against {all}");
    }
    let upper = bound::upper(&trace, &[6], &costs).unwrap();
    assert!((upper[0] - all).abs() < 1e-9, "{upper:?} against {all}");
}

#[test]
fn processes_have_a_cache_each() {
    let one = PageRange::new(0, 3).unwrap();
    let whats = vec![What::Request(vec![one]); 5];
    let costs = Linear::PAPER;
    let [single, double] = [1, 2].map(|n| bound::lower(&trace_of(vec![whats.clone(); n], true), &[3], &costs)[0]);
    assert!((double - 2.0 * single).abs() < 1e-9);
    assert!((single - costs.register(3)).abs() < 1e-9);
}

#[test]
fn an_empty_trace_costs_nothing() {
    assert_eq!(bound::lower(&Trace::default(), &[1, 5], &Linear::PAPER), [0.0, 0.0]);
    assert_eq!(bound::upper(&Trace::default(), &[1, 5], &Linear::PAPER).unwrap(), [0.0, 0.0]);
    assert!(bound::upper(&trace_of(vec![vec![]], true), &[0], &Linear::PAPER).is_err());
}
