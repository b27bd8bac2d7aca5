//! The replayer: in use until released, one cache a process, hits told at once or later.

use mrrc_core::core::{NoHolders, Request};
use mrrc_core::policy::Overlap;
use mrrc_core::{Access, Config, PageRange};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use traces::{Kind, Process, Step, Trace};
use tracesim::policies::{PolicyEntry, builtin};
use tracesim::simulate::{Recency, ReplayError, Replayed, Watch, replay};

fn step(kind: Kind, (start, pages): (u64, u64), goes_on: bool) -> Step {
    Step::new(kind, PageRange::new(start, pages).unwrap(), Access::LOCAL_READ, goes_on)
}

fn trace(steps: impl IntoIterator<Item = (Kind, (u64, u64))>) -> Trace {
    let steps = steps.into_iter().map(|(kind, range)| step(kind, range, false)).collect();
    Trace { processes: vec![Process { steps }], ..Trace::default() }
}

fn counted(trace: &Trace, policy: &str, capacity: u64, recency: Recency) -> Replayed {
    replay(trace, &policy.parse().unwrap(), &Config::new(capacity), recency, None).unwrap()
}

const BOTH: [Recency; 2] = [Recency::Exact, Recency::Deferred];

/// Returns a scan of single pages, again and again, with these rights in turn: widening pays.
fn scan(rights: &[Access]) -> Trace {
    let one = |n: usize| {
        let page = PageRange::new(n as u64 % 3000, 1).unwrap();
        Step::new(Kind::Request, page, rights[n / 8 % rights.len()], false)
    };
    Trace { processes: vec![Process { steps: (0..20_000).map(one).collect() }], ..Trace::default() }
}

#[test]
fn requests_for_peers_are_not_widened() {
    let peers = scan(&[Access::LOCAL | Access::REMOTE_READ]);
    let local = scan(&[Access::LOCAL]);
    for recency in BOTH {
        let [exact, widened] = ["probation", "widening"].map(|policy| counted(&peers, policy, 1024, recency));
        assert_eq!(exact, widened, "{recency:?}");
        assert_eq!(counted(&local, "probation", 1024, recency), exact, "{recency:?}: rights change nothing there");
        let pays = counted(&local, "widening", 1024, recency).counters;
        assert!(pays.regs * 3 < exact.counters.regs, "{recency:?}: {} of {}", pays.regs, exact.counters.regs);
    }
}

#[test]
fn lists_for_peers_are_not_widened() {
    for (access, widens) in [(Access::LOCAL, true), (Access::LOCAL | Access::REMOTE_WRITE, false)] {
        let one = |n: u64| Step::new(Kind::Request, PageRange::new(n % 3000, 1).unwrap(), access, n.is_multiple_of(2));
        let steps = (0..20_000).map(one).collect();
        let trace = Trace { processes: vec![Process { steps }], ..Trace::default() };
        for recency in BOTH {
            let c = counted(&trace, "widening", 1024, recency).counters;
            assert_eq!(c.reg_pages > c.pages, widens, "{recency:?} {access}: {} of {}", c.reg_pages, c.pages);
        }
    }
}

#[test]
fn what_is_in_use_does_not_leave_before_its_release() {
    use Kind::{Acquire, Release, Request};
    let (a, b, c) = ((0, 4), (10, 4), (20, 8));
    for recency in BOTH {
        let held = trace([(Acquire, a), (Acquire, a), (Release, a), (Request, b), (Request, c), (Request, a)]);
        let counters = counted(&held, "pindown", 8, recency).counters;
        assert_eq!(
            (counters.exact, counters.miss, counters.all_in_use),
            (2, 3, 1),
            "{recency:?}: no room for c beside a"
        );
        let released =
            trace([(Acquire, a), (Acquire, a), (Release, a), (Release, a), (Request, b), (Request, c), (Request, a)]);
        let counters = counted(&released, "pindown", 8, recency).counters;
        assert_eq!(
            (counters.exact, counters.miss, counters.all_in_use),
            (1, 4, 0),
            "{recency:?}: a and b gave way to c"
        );
    }
}

#[test]
fn unmatched_releases_are_counted() {
    use Kind::{Acquire, Release};
    let trace = trace([(Release, (0, 4)), (Acquire, (0, 4)), (Release, (0, 3)), (Release, (0, 4)), (Release, (0, 4))]);
    for recency in BOTH {
        assert_eq!(counted(&trace, "mrrc", 8, recency).unmatched_releases, 3);
    }
}

#[test]
fn invalidated_regions_reregister_and_outlive_use() {
    use Kind::{Acquire, Invalidate, Release, Request};
    let (a, b) = ((0, 4), (2, 6));
    for recency in BOTH {
        let trace = trace([(Acquire, a), (Request, b), (Invalidate, (3, 2)), (Request, a), (Release, a), (Request, a)]);
        let counters = counted(&trace, "pindown", 100, recency).counters;
        assert_eq!(
            (counters.invalidated, counters.invalidated_pages),
            (2, 8),
            "{recency:?}: 0 to 4, and the gap 4 to 8"
        );
        assert_eq!((counters.miss, counters.partial, counters.exact), (2, 1, 1), "{recency:?}");
        assert_eq!((counters.deregs, counters.dereg_pages), (2, 8), "{recency:?}: the gap at once, a with its release");
    }
}

#[test]
fn the_ranges_of_a_list_are_asked_for_together() {
    let list = |kind, goes_on: [bool; 2]| [step(kind, (0, 1), goes_on[0]), step(kind, (2, 1), goes_on[1])];
    let mut steps = list(Kind::Acquire, [true, false]).to_vec();
    steps.extend(list(Kind::Release, [true, false]));
    let trace = Trace { processes: vec![Process { steps: steps.into() }], ..Trace::default() };
    for recency in BOTH {
        let ogr = counted(&trace, "ogr", 100, recency);
        assert_eq!((ogr.counters.requests, ogr.counters.regs, ogr.counters.reg_pages), (2, 2, 2), "too far apart");
        assert_eq!(ogr.unmatched_releases, 0, "a list is released as it was acquired");
    }
    let wide = Config { group_extra: 0.5, ..Config::new(100) };
    let counters = replay(&trace, &"ogr".parse().unwrap(), &wide, Recency::Exact, None).unwrap().counters;
    assert_eq!((counters.requests, counters.regs, counters.reg_pages), (2, 1, 3), "one registration spans both");
}

#[test]
fn truncated_list_replays_its_prefix() {
    let steps = vec![step(Kind::Request, (0, 1), true), step(Kind::Request, (5, 1), true)];
    let trace = Trace { processes: vec![Process { steps: steps.into() }], ..Trace::default() };
    assert_eq!(counted(&trace, "mrrc", 8, Recency::Exact).counters.requests, 2);
}

#[test]
fn processes_have_separate_caches() {
    let one = trace([(Kind::Request, (0, 4)), (Kind::Request, (0, 4))]);
    let two = Trace { processes: [&one.processes[..], &one.processes[..]].concat(), ..Trace::default() };
    let [one, two] = [one, two].map(|trace| counted(&trace, "mrrc", 4, Recency::Exact).counters);
    assert_eq!((one.exact, one.miss), (1, 1));
    assert_eq!((two.exact, two.miss, two.pages, two.reg_pages), (2, 2, 16, 8));
}

#[test]
fn replay_stops_on_request_and_reports_progress() {
    let trace = trace((0..200_000).map(|i| (Kind::Request, (i, 1))));
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = |more| _ = steps.fetch_add(more, Ordering::Relaxed);
    let watch = Watch { stop: &stop, replayed: &count };
    let config = Config::new(10);
    assert!(replay(&trace, &"mrrc".parse().unwrap(), &config, Recency::Exact, Some(&watch)).is_ok());
    assert_eq!(steps.swap(0, Ordering::Relaxed), 200_000);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(
        replay(&trace, &"mrrc".parse().unwrap(), &config, Recency::Exact, Some(&watch)),
        Err(ReplayError::Interrupted)
    );
    assert!(steps.load(Ordering::Relaxed) < 200_000);
}

#[test]
fn an_impossible_cache_is_an_error() {
    let trace = trace([(Kind::Request, (0, 1))]);
    assert!(matches!(
        replay(&trace, &"mrrc".parse().unwrap(), &Config::new(0), Recency::Exact, None),
        Err(ReplayError::Config(_))
    ));
}

/// Requests of a few sizes over few pages, so that everything happens.
fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0u64..60, prop::sample::select(vec![1u64, 2, 3, 8, 20])), 1..400)
}

/// Such requests, and invalidations among them.
fn changes() -> impl Strategy<Value = Vec<(Kind, (u64, u64))>> {
    let kind = prop::sample::select(vec![Kind::Request, Kind::Request, Kind::Request, Kind::Request, Kind::Invalidate]);
    let range = (0u64..60, prop::sample::select(vec![1u64, 2, 3, 8]));
    prop::collection::vec((kind, range), 1..400)
}

fn recording() -> impl Strategy<Value = Vec<(Kind, (u64, u64))>> {
    let kind = prop::sample::select(vec![Kind::Request, Kind::Acquire, Kind::Release, Kind::Release, Kind::Invalidate]);
    prop::collection::vec((kind, (0u64..12, prop::sample::select(vec![1u64, 2, 5]))), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn typed_policy_equals_boxed_policy(requests in requests(), capacity in 1u64..40) {
        let trace = trace(requests.iter().map(|&range| (Kind::Request, range)));
        for entry in builtin() {
            let policy = entry.name();
            let mut core = entry.core(&Config::new(capacity)).unwrap();
            for &(start, pages) in &requests {
                core.request(PageRange::new(start, pages).unwrap()).unwrap();
            }
            prop_assert_eq!(counted(&trace, policy, capacity, Recency::Exact).counters, core.counters(), "{}", policy);
        }
    }

    #[test]
    fn marking_policies_ignore_touch_delay(steps in changes(), capacity in 1u64..40) {
        let trace = trace(steps);
        for policy in ["sieve", "s3fifo", "none", "nccl"] {
            // A merged region leaves with its mark, and another region takes its name.
            for overlap in [None, Some(Overlap::Merge)] {
                let config = Config { overlap, ..Config::new(capacity) };
                let [exact, deferred] = BOTH.map(|recency| replay(&trace, &policy.parse().unwrap(), &config, recency, None));
                prop_assert_eq!(exact, deferred, "{} {:?}", policy, overlap);
            }
        }
    }

    /// As a cache asks its core, whose requests have rights.
    #[test]
    fn widening_tells_rights_as_a_cache_does(
        rights in prop::collection::vec(prop_oneof![Just(Access::LOCAL), Just(Access::LOCAL | Access::REMOTE)], 1..9),
        capacity in 100u64..2000,
    ) {
        let trace = scan(&rights);
        let config = Config::new(capacity);
        let mut core = "widening".parse::<PolicyEntry>().unwrap().core(&config).unwrap();
        for step in &trace.processes[0].steps {
            let request = Request { access: step.access(), mapping: PageRange::EVERYTHING, ..Request::new(step.range()) };
            core.request_with(&request, &mut NoHolders).unwrap();
        }
        prop_assert_eq!(counted(&trace, "widening", capacity, Recency::Exact).counters, core.counters());
    }

    #[test]
    fn without_eviction_it_makes_no_difference_to_anybody(requests in requests()) {
        let trace = trace(requests.into_iter().map(|range| (Kind::Request, range)));
        for entry in builtin() {
            let policy = entry.name();
            let [exact, deferred] = BOTH.map(|recency| counted(&trace, policy, 100_000, recency));
            prop_assert_eq!(exact, deferred, "{}", policy);
        }
    }

    #[test]
    fn recordings_keep_the_limit_and_their_counts_add_up(steps in recording(), capacity in 1u64..20) {
        // The limit itself is asserted by the replayer.
        let trace = trace(steps);
        for entry in builtin() {
            let policy = entry.name();
            for recency in BOTH {
                let c = counted(&trace, policy, capacity, recency).counters;
                prop_assert_eq!(c.requests, c.hits() + c.partial + c.miss, "{} {:?}", policy, recency);
                prop_assert!(c.deregs <= c.regs.max(c.reg_pages) && c.dereg_pages <= c.reg_pages, "{} {:?}", policy, recency);
            }
        }
    }
}
