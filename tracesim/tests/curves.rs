//! The LRU curve says what replaying the LRU caches says, and a sample of the trace says nearly the same.

use mrrc_core::policy::Matching;
use mrrc_core::{Access, Config, Counters, PageRange};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use traces::{Kind, Process, Step, Trace};
use tracesim::mrc::{Curve, Sampling, Unit, curve, reuse_distances};
use tracesim::policies::PolicyEntry;

fn trace(ranges: impl IntoIterator<Item = PageRange>) -> Trace {
    let steps = ranges.into_iter().map(|range| Step::new(Kind::Request, range, Access::LOCAL_READ, false)).collect();
    Trace { processes: vec![Process { steps }], ..Trace::default() }
}

fn replay(trace: &Trace, policy: &str, config: &Config) -> Counters {
    let mut core = policy.parse::<PolicyEntry>().unwrap().core(config).unwrap();
    for step in &trace.processes[0].steps {
        core.request(step.range()).unwrap();
    }
    core.counters()
}

fn says_the_same(trace: &Trace, curve: &Curve, policy: &str, config: &Config) -> Result<(), TestCaseError> {
    for point in &curve.points {
        let counters = replay(trace, policy, &Config { capacity: point.capacity, ..config.clone() });
        prop_assert_eq!((counters.requests, counters.pages), (curve.requests, curve.pages));
        prop_assert_eq!(counters.hits() as f64, point.hits, "hits at {}", point.capacity);
        prop_assert_eq!(counters.hit_pages as f64, point.hit_pages, "pages hit at {}", point.capacity);
    }
    Ok(())
}

fn range() -> impl Strategy<Value = PageRange> {
    (0u64..60, 1u64..=8).prop_map(|(start, pages)| PageRange::new(start, pages).unwrap())
}

/// Pages by themselves, group by group: for each request, what it finds at a capacity.
fn naive_pages(trace: &Trace, capacity: u64) -> (f64, f64) {
    // The last use of each page; a page lies as deep as all pages that were used as late as it or later.
    let mut last: Vec<(u64, usize)> = Vec::new();
    let (mut hits, mut hit_pages) = (0, 0);
    for (now, step) in trace.processes[0].steps.iter().enumerate() {
        let range = step.range();
        let pages: Vec<u64> = (range.start()..range.end()).collect();
        let mut found = 0;
        for run in pages.chunk_by(|a, b| last_use(&last, *a) == last_use(&last, *b)) {
            let Some(used) = last_use(&last, run[0]) else { continue };
            let depth = last.iter().filter(|&&(_, at)| at >= used).count() as u64;
            let fit = capacity.saturating_sub(depth - run.len() as u64).min(run.len() as u64);
            found += fit;
        }
        hit_pages += found;
        hits += u64::from(found == range.pages());
        last.retain(|(page, _)| !pages.contains(page));
        last.extend(pages.iter().map(|&page| (page, now)));
    }
    (hits as f64, hit_pages as f64)
}

fn last_use(last: &[(u64, usize)], page: u64) -> Option<usize> {
    last.iter().find(|&&(other, _)| other == page).map(|&(_, at)| at)
}

proptest! {
    #[test]
    fn regions_are_a_pindown_cache_that_matches_exactly(
        ranges in prop::collection::vec(range(), 1..300),
        capacities in prop::collection::vec(8u64..200, 1..6),
    ) {
        let trace = trace(ranges);
        let config = Config { matching: Some(Matching::Exact), ..Config::new(8) };
        says_the_same(&trace, &curve(&trace, &capacities, Unit::Region, Sampling::Exact), "pindown", &config)?;
    }

    #[test]
    fn regions_that_do_not_overlap_are_a_pindown_cache(
        objects in prop::collection::vec(0u64..40, 1..400),
        capacities in prop::collection::vec(7u64..200, 1..6),
    ) {
        let trace = trace(objects.into_iter().map(|object| PageRange::new(object * 10, 1 + object % 7).unwrap()));
        let config = Config::new(8);
        says_the_same(&trace, &curve(&trace, &capacities, Unit::Region, Sampling::Exact), "pindown", &config)?;
    }

    #[test]
    fn single_pages_are_a_pindown_cache_by_pages(
        pages in prop::collection::vec(0u64..60, 1..400),
        capacities in prop::collection::vec(1u64..70, 1..6),
    ) {
        let trace = trace(pages.into_iter().map(|page| PageRange::new(page, 1).unwrap()));
        let config = Config::new(1);
        says_the_same(&trace, &curve(&trace, &capacities, Unit::Page, Sampling::Exact), "pindown-page", &config)?;
        says_the_same(&trace, &curve(&trace, &capacities, Unit::Region, Sampling::Exact), "pindown-page", &config)?;
    }

    #[test]
    fn runs_of_pages_say_what_single_pages_would(
        ranges in prop::collection::vec(range(), 1..100),
        capacities in prop::collection::vec(1u64..70, 1..6),
    ) {
        let trace = trace(ranges);
        for point in curve(&trace, &capacities, Unit::Page, Sampling::Exact).points {
            prop_assert_eq!((point.hits, point.hit_pages), naive_pages(&trace, point.capacity), "at {}", point.capacity);
        }
    }
}

#[test]
fn invalidated_regions_are_not_found_and_take_no_room() {
    let [a, b] = [PageRange::new(0, 4).unwrap(), PageRange::new(10, 4).unwrap()];
    for unit in [Unit::Region, Unit::Page] {
        let mut steps: Vec<Step> = trace([a, b, a, b]).processes[0].steps.iter().collect();
        steps.insert(2, Step::new(Kind::Invalidate, b, Access::LOCAL_READ, false));
        let trace = Trace { processes: vec![Process { steps: steps.into() }], ..Trace::default() };
        let points = curve(&trace, &[4, 8], unit, Sampling::Exact).points;
        assert_eq!([points[0].hits, points[1].hits], [1.0, 1.0], "a is found beside nothing, b is not found");
    }
}

#[test]
fn reuse_is_told_by_powers_of_two() {
    let [a, b] = [PageRange::new(0, 4).unwrap(), PageRange::new(10, 3).unwrap()];
    let found = reuse_distances(&trace([a, a, b, a]), Unit::Region);
    let told: Vec<_> = found.iter().map(|reuse| (reuse.up_to_pages, reuse.requests, reuse.pages)).collect();
    assert_eq!(told, [(Some(1), 0, 0), (Some(2), 0, 0), (Some(4), 1, 4), (Some(8), 1, 4), (None, 2, 7)]);
}

/// 40,000 requests for 5,000 objects of 1 to 32 pages; popularity falls with rank as rank^-0.9.
fn zipf() -> (Trace, u64) {
    let mut random = StdRng::seed_from_u64(7);
    let mut next = 0;
    let objects: Vec<PageRange> = (0..5_000)
        .map(|_| {
            let range = PageRange::new(next, random.random_range(1..=32)).unwrap();
            next = range.end();
            range
        })
        .collect();
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=objects.len())
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    let picks: Vec<PageRange> = (0..40_000)
        .map(|_| {
            let at = random.random_range(0.0..sum);
            objects[sums.partition_point(|&upto| upto <= at).min(objects.len() - 1)]
        })
        .collect();
    (trace(picks), next)
}

/// Returns the mean difference of hit ratio, and of page hit ratio.
fn errors(one: &Curve, other: &Curve) -> [f64; 2] {
    let points = one.points.len() as f64;
    let mean = |pairs: Vec<(f64, f64)>| pairs.iter().map(|(a, b)| (a - b).abs()).sum::<f64>() / points;
    [
        mean(one.hit_ratios().map(|p| p.1).zip(other.hit_ratios().map(|p| p.1)).collect()),
        mean(one.page_hit_ratios().map(|p| p.1).zip(other.page_hit_ratios().map(|p| p.1)).collect()),
    ]
}

#[test]
fn a_sample_says_nearly_what_the_whole_trace_does() {
    let (trace, footprint) = zipf();
    let capacities: Vec<u64> = (1..=50).map(|n| footprint * n / 50).collect();
    for unit in [Unit::Region, Unit::Page] {
        let exact = curve(&trace, &capacities, unit, Sampling::Exact);
        assert!(exact.points.windows(2).all(|pair| pair[0].hits <= pair[1].hits));
        for sampling in [Sampling::Rate(0.1), Sampling::Size(1_000), Sampling::Rate(1.0), Sampling::Size(1_000_000)] {
            let sampled = curve(&trace, &capacities, unit, sampling);
            let [hits, pages] = errors(&exact, &sampled);
            println!(
                "{unit:?} {sampling:?}: share {:.3}, mean error {hits:.4} of requests, {pages:.4} of pages",
                sampled.share
            );
            let most = if sampled.share < 1.0 { 0.03 } else { 0.001 };
            assert!(hits <= most && pages <= most, "{unit:?} {sampling:?}: {hits} {pages}");
        }
    }
}

#[test]
fn page_runs_are_close_to_a_pindown_cache_by_pages() {
    let (trace, footprint) = zipf();
    let capacities = [footprint / 50, footprint / 10, footprint / 3];
    for point in curve(&trace, &capacities, Unit::Page, Sampling::Exact).points {
        let counters = replay(&trace, "pindown-page", &Config::new(point.capacity));
        let page_hits = point.hit_pages / counters.pages as f64;
        let hits = point.hits / counters.requests as f64;
        assert!((page_hits - counters.page_hit_ratio()).abs() < 0.001, "{page_hits} {}", counters.page_hit_ratio());
        assert!((hits - counters.hit_ratio()).abs() < 0.001, "{hits} {}", counters.hit_ratio());
    }
}
