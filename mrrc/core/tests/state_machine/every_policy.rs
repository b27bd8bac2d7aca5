//! Every policy, with every way to treat overlaps and to match, keeps honest books under random requests,
//! leases and invalidations.

use crate::ledger::Ledger;
use mrrc_core::policy::{Matching, Overlap};
use mrrc_core::{Config, ConfigError, PageRange, RegionId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{TestError, TestRunner};
use tracesim_policies::AnyPolicy;

/// One past the last page that is asked for.
const END: u64 = 160;

/// Places to choose from, taken round the list that there is.
const PLACES: usize = 60;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Request(PageRange),
    /// A request, and a hold on every region that answers.
    Lease(PageRange),
    /// Requests that come together.
    List(Vec<PageRange>),
    /// A hold on every cached region that overlaps, wherever it stands, without a request for it.
    Hold(PageRange),
    /// A hold ends, by its place among those that there are.
    Release(usize),
    Invalidate(PageRange),
}

fn range() -> impl Strategy<Value = PageRange> {
    let start = prop_oneof![0..END, (0..END / 8).prop_map(|place| place * 8)];
    let length = prop_oneof![3 => 1..=8u64, 2 => 1..=30u64, 1 => 1..=END, 2 => Just(8)];
    (start, length).prop_map(|(start, length)| PageRange::new(start, length).expect("not empty"))
}

/// One of a few neighbours, so that groups of them come again.
fn block() -> impl Strategy<Value = PageRange> {
    (0..6u64).prop_map(|place| PageRange::new(place * 8, 8).expect("not empty"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => range().prop_map(Step::Request),
        4 => range().prop_map(Step::Lease),
        1 => vec(range(), 0..5).prop_map(Step::List),
        1 => vec(block(), 2..4).prop_map(Step::List),
        1 => range().prop_map(Step::Hold),
        6 => (0..PLACES).prop_map(Step::Release),
        1 => range().prop_map(Step::Invalidate),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let fraction = || select(&[0.0, 0.1, 0.5, 1.0]);
    let limit = || prop_oneof![2 => Just(None), 1 => (1..=20u64).prop_map(Some)];
    (1..=150u64, fraction(), fraction(), limit(), limit(), [1..=20u64, 1..=20u64, 1..=20u64], 1..=3u32).prop_map(
        |(
            capacity,
            resort,
            evict,
            max_regions,
            max_region_pages,
            [bucket_pages, table_entries, cache_entries],
            lru_k,
        )| {
            Config {
                resort,
                evict,
                max_regions,
                max_region_pages,
                bucket_pages,
                table_entries,
                cache_entries,
                lru_k,
                ..Config::new(capacity)
            }
        },
    )
}

fn take(ledger: &mut Ledger, step: &Step) {
    match step {
        Step::Request(asked) => _ = ledger.request(*asked),
        Step::Lease(asked) => ledger.request(*asked).into_iter().for_each(|id| ledger.hold(id)),
        Step::List(asked) => ledger.request_list(asked),
        Step::Hold(range) => {
            let cached: Vec<(RegionId, PageRange)> = ledger.core().cached().collect();
            let overlaps = cached.into_iter().filter(|(_, cached)| cached.overlaps(*range));
            overlaps.for_each(|(id, _)| ledger.hold(id));
        }
        Step::Release(place) => {
            let held = ledger.held();
            held.get(place % held.len().max(1)).into_iter().for_each(|&id| ledger.release(id));
        }
        Step::Invalidate(range) => ledger.invalidate(*range),
    }
}

pub(crate) fn keeps_honest_books(policy: AnyPolicy, config: &Config, steps: &[Step]) {
    let mut ledger = Ledger::new(policy.core(config).expect("valid"), config);
    for step in steps {
        take(&mut ledger, step);
        ledger.check();
    }
    ledger.close(PageRange::new(0, 1 << 52).expect("the address space"));
}

#[test]
fn every_policy_keeps_honest_books() {
    let base = ProptestConfig {
        cases: crate::cases(1_200).div_ceil(AnyPolicy::ALL.len() as u32 * 6),
        max_shrink_iters: 10_000,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    for &policy in AnyPolicy::ALL {
        let mut accepted = 0;
        for overlap in [Overlap::Split, Overlap::Merge, Overlap::Whole] {
            for matching in [Matching::Contain, Matching::Exact] {
                let chosen = move |config: &Config| Config {
                    overlap: Some(overlap),
                    matching: Some(matching),
                    ..config.clone()
                };
                match policy.core(&chosen(&Config::new(1))) {
                    Ok(_) => accepted += 1,
                    Err(error) => {
                        assert_eq!(error, ConfigError::Granule);
                        continue;
                    }
                }
                let steps = vec(step(), 1..80);
                let test = |(config, steps): (Config, Vec<Step>)| {
                    keeps_honest_books(policy, &chosen(&config), &steps);
                    Ok(())
                };
                match TestRunner::new(base.clone()).run(&(config(), steps), test) {
                    Ok(()) => {}
                    Err(TestError::Fail(why, (config, steps))) => {
                        panic!("{why}\nminimal failing input: {policy} {:?}\n{steps:?}", chosen(&config))
                    }
                    Err(error) => panic!("{policy}, {overlap:?}, {matching:?}: {error}"),
                }
            }
        }
        assert!(accepted > 0, "{policy} can be configured");
    }
}
