//! Whether a cache is worth its trouble.
//!
//! A cache stands aside where it cannot help: requests then go straight to libibverbs. It looks at itself every [`WINDOW`]
//! requests. The premise is always the same: fewer than one request in [`FEW`] was a hit. Misses alone are no reason, because
//! every program begins with them; there must be a cause:
//!
//! * *Unmapped*: the program unmapped at least half as many regions as it made requests. Each is a miss, and each unmapping is
//!   reported and waited for.
//! * *Unkept*: at least half of the requests were refused, or registered for one lease only (shared memory, for instance).
//! * *Evicted*: what the cache holds was evicted twice over. This counts from the first eviction, and takes as long as it takes.
//!
//! ```text
//!            a cause                    the pause is over
//! serving ─────────────► standing aside ─────────────────► on trial
//!    ▲                         ▲                            │    │
//!    │                         └──── few hits (pause × 2) ──┘    │
//!    └────────────── hits, until the pause is short (÷ 2 each) ──┘
//! ```
//!
//! A pause is 1,024 requests at first and doubles up to 2^20. A trial is a sixteenth of the pause before it, and at least a
//! window. On trial misses alone are a reason. So memory that never comes again costs the price of a miss for at most one
//! request in 17. A program whose memory comes again is served again after at most as many requests as were passed on before.
//! Trials grow with pauses, so that large sets of buffers are met again in one. Of a set of n buffers, a trial of
//! more than n requests has hits.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests between two looks.
const WINDOW: u32 = 64;
/// With fewer hits than one in this number of requests, the cache does not help.
const FEW: u64 = 20;
/// The number of times that the cache's content has to be evicted.
const TURNOVERS: u64 = 2;
/// Requests for which it stands aside, at first and at most.
const ASIDE: u32 = 1 << 10;
const ASIDE_MOST: u32 = 1 << 20;
/// A trial has the so-many-th part of the requests for which it stood aside.
const TRIAL: u32 = 16;

/// Why a cache stands aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// Memory is unmapped before it comes again.
    Unmapped,
    /// Regions are evicted before they come again.
    Evicted,
    /// Requests are refused, or registered for one lease.
    Unkept,
}

impl Cause {
    pub(crate) const ALL: [Self; 3] = [Self::Unmapped, Self::Evicted, Self::Unkept];
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    Hit,
    Miss,
    Refused,
}

/// A cache's counters since it was made.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    /// Regions that were unmapped or changed.
    pub(crate) unmapped: u64,
    /// Regions that left to make room.
    pub(crate) evicted: u64,
    /// Regions that were registered for one lease.
    pub(crate) unkept: u64,
    /// Regions that it has at this moment.
    pub(crate) regions: u64,
}

/// The requests between two looks.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    hits: u64,
    refused: u64,
}

/// Requests, and hits among them.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    requests: u64,
    hits: u64,
}

impl Count {
    fn add(&mut self, window: Window) {
        self.requests += u64::from(WINDOW);
        self.hits += window.hits;
    }

    fn is_few(self) -> bool {
        self.hits * FEW < self.requests
    }
}

/// Regions leave to make room: what was asked for since the first of them did.
#[derive(Clone, Copy, Default, Debug)]
struct Turnover {
    count: Count,
    evicted: u64,
    /// The most regions that the cache had meanwhile.
    regions: u64,
}

/// The decision, without threads, clocks and effects. See the [module](self).
#[derive(Default, Debug)]
struct Judge {
    /// At the last look.
    seen: Seen,
    turnover: Turnover,
    trial: Count,
    /// The last pause, halved by each trial that went well. 0: the cache serves, and is not on trial.
    pause: u32,
    /// Why there was one.
    cause: Option<Cause>,
}

impl Judge {
    /// After each window. Returns why, and for how many requests, the cache stands aside from now on.
    fn look(&mut self, window: Window, seen: Seen) -> Option<(Cause, u32)> {
        let cause = self.cause_at_once(window, seen);
        let cause = match self.pause {
            0 => cause.or_else(|| self.turned_over(window, seen).then_some(Cause::Evicted)),
            _ => cause.or_else(|| self.failed(window)),
        };
        self.seen = seen;
        cause.map(|cause| (cause, self.stand_aside(cause)))
    }

    /// Returns a cause that a single window shows.
    fn cause_at_once(&self, window: Window, seen: Seen) -> Option<Cause> {
        let mut count = Count::default();
        count.add(window);
        let most = |regions: u64| 2 * regions >= u64::from(WINDOW);
        let unkept = window.refused + seen.unkept.saturating_sub(self.seen.unkept);
        match seen.unmapped.saturating_sub(self.seen.unmapped) {
            _ if !count.is_few() => None,
            unmapped if most(unmapped) => Some(Cause::Unmapped),
            _ => most(unkept).then_some(Cause::Unkept),
        }
    }

    /// Returns whether all that it has was evicted so many times, while next to nothing was a hit.
    fn turned_over(&mut self, window: Window, seen: Seen) -> bool {
        let Turnover { count, evicted, regions } = &mut self.turnover;
        *evicted += seen.evicted.saturating_sub(self.seen.evicted);
        if *evicted == 0 {
            return false;
        }
        count.add(window);
        *regions = seen.regions.max(*regions).max(1);
        let (is_over, is_few) = (*evicted >= TURNOVERS * *regions, count.is_few());
        if is_over {
            self.turnover = Turnover::default();
        }
        is_over && is_few
    }

    /// On trial: its cause again, if the trial is over and there were few hits.
    fn failed(&mut self, window: Window) -> Option<Cause> {
        self.trial.add(window);
        if self.trial.requests < u64::from((self.pause / TRIAL).max(WINDOW)) {
            return None;
        }
        if std::mem::take(&mut self.trial).is_few() {
            return self.cause;
        }
        self.pause = Some(self.pause / 2).filter(|&pause| pause >= ASIDE).unwrap_or(0);
        None
    }

    fn stand_aside(&mut self, cause: Cause) -> u32 {
        self.pause = self.pause.saturating_mul(2).clamp(ASIDE, ASIDE_MOST);
        (self.cause, self.turnover, self.trial) = (Some(cause), Turnover::default(), Count::default());
        self.pause
    }
}

/// Counts of several threads at once, and the decision. A request that is counted in one window or in the next changes nothing.
#[derive(Default)]
pub(crate) struct Benefit {
    asked: AtomicU32,
    hits: AtomicU32,
    refused: AtomicU32,
    /// Requests left for which it stands aside, and why: the number of a cause.
    aside: AtomicU32,
    cause: AtomicU8,
    judge: Mutex<Judge>,
}

impl Benefit {
    /// Why this request is to be passed on, if it is.
    pub(crate) fn stands_aside(&self) -> Option<Cause> {
        let one_less = |left: u32| left.checked_sub(1);
        if self.aside.load(Ordering::Relaxed) == 0
            || self.aside.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less).is_err()
        {
            return None;
        }
        Some(Cause::ALL[usize::from(self.cause.load(Ordering::Relaxed))])
    }

    /// A request was served, or not. Returns whether it is the time to [look](Benefit::look).
    pub(crate) fn served(&self, how: Served) -> bool {
        match how {
            Served::Hit => _ = self.hits.fetch_add(1, Ordering::Relaxed),
            Served::Refused => _ = self.refused.fetch_add(1, Ordering::Relaxed),
            Served::Miss => {}
        }
        (self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(WINDOW)
    }

    /// With what the cache has counted so far. Returns whether it stands aside from now on: then what it has is to leave, and
    /// [`Benefit::left`] to be reported.
    pub(crate) fn look(&self, seen: Seen) -> bool {
        let mut judge = self.judge();
        let take = |count: &AtomicU32| u64::from(count.swap(0, Ordering::Relaxed));
        let window = Window { hits: take(&self.hits), refused: take(&self.refused) };
        let Some((cause, pause)) = judge.look(window, seen) else { return false };
        self.cause.store(cause as u8, Ordering::Relaxed);
        self.aside.store(pause, Ordering::Release);
        true
    }

    /// Notes that the cache's content has left: none of that counts.
    pub(crate) fn left(&self, seen: Seen) {
        self.judge().seen = seen;
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cache that has so many regions, and a judge of it.
    #[derive(Default)]
    struct Run {
        judge: Judge,
        seen: Seen,
    }

    impl Run {
        fn with_regions(regions: u64) -> Self {
            Self { seen: Seen { regions, ..Seen::default() }, ..Self::default() }
        }

        /// A window of requests, of which some hit and some are refused, while regions leave.
        fn window(&mut self, hits: u64, refused: u64, more: Seen) -> Option<(Cause, u32)> {
            self.seen.unmapped += more.unmapped;
            self.seen.evicted += more.evicted;
            self.seen.unkept += more.unkept;
            self.judge.look(Window { hits, refused }, self.seen)
        }
    }

    const UNMAPPED: Seen = Seen { unmapped: 64, evicted: 0, unkept: 0, regions: 0 };
    const EVICTED: Seen = Seen { unmapped: 0, evicted: 64, unkept: 0, regions: 0 };
    const UNKEPT: Seen = Seen { unmapped: 0, evicted: 0, unkept: 40, regions: 0 };
    const NONE: Seen = Seen { unmapped: 0, evicted: 0, unkept: 0, regions: 0 };

    #[test]
    fn pauses_double_while_memory_is_unmapped() {
        let mut run = Run::default();
        for pause in (10..20).map(|bits| 1 << bits) {
            assert_eq!(run.window(0, 0, UNMAPPED), Some((Cause::Unmapped, pause)));
        }
        for _ in 0..3 {
            assert_eq!(run.window(0, 0, UNMAPPED), Some((Cause::Unmapped, ASIDE_MOST)));
        }
    }

    #[test]
    fn hits_bring_the_cache_back() {
        let mut run = Run::default();
        assert!(run.window(0, 0, UNMAPPED).is_some());
        assert_eq!(run.window(20, 0, Seen { unmapped: 44, ..NONE }), None);
        assert_eq!(run.window(0, 0, UNMAPPED), Some((Cause::Unmapped, ASIDE)), "as if for the first time");
    }

    #[test]
    fn misses_alone_are_no_reason() {
        let mut run = Run::with_regions(1000);
        for _ in 0..100 {
            assert_eq!(run.window(0, 0, Seen { unmapped: 10, ..NONE }), None);
        }
    }

    #[test]
    fn what_is_evicted_twice_over_is_not_worth_it() {
        let mut run = Run::with_regions(320);
        assert!((0..100).all(|_| run.window(0, 0, NONE).is_none()), "it fills");
        assert!((0..9).all(|_| run.window(3, 0, EVICTED).is_none()));
        assert_eq!(run.window(3, 0, EVICTED), Some((Cause::Evicted, ASIDE)));
    }

    #[test]
    fn some_hits_are_worth_evictions() {
        let mut run = Run::with_regions(320);
        assert!((0..1000).all(|_| run.window(4, 0, EVICTED).is_none()));
        // Those of a time before the first eviction do not count.
        let mut run = Run::with_regions(320);
        assert!((0..1000).all(|_| run.window(64, 0, NONE).is_none()));
        assert!((0..9).all(|_| run.window(0, 0, EVICTED).is_none()));
        assert!(run.window(0, 0, EVICTED).is_some());
    }

    #[test]
    fn what_cannot_be_kept_is_a_reason() {
        let mut run = Run::default();
        assert_eq!(run.window(3, 32, NONE), Some((Cause::Unkept, ASIDE)));
        assert_eq!(run.window(0, 0, UNKEPT), Some((Cause::Unkept, 2 * ASIDE)));
        let mut run = Run::default();
        assert!((0..100).all(|_| run.window(4, 60, NONE).is_none()), "hits are what it is for");
        assert!((0..100).all(|_| run.window(0, 31, NONE).is_none()));
    }

    #[test]
    fn on_trial_misses_are_a_reason() {
        let mut run = Run::default();
        assert!(run.window(0, 0, UNMAPPED).is_some());
        assert_eq!(run.window(3, 0, NONE), Some((Cause::Unmapped, 2 * ASIDE)));
        assert_eq!(run.window(0, 0, NONE), None, "a trial of two windows");
        assert_eq!(run.window(6, 0, NONE), Some((Cause::Unmapped, 4 * ASIDE)));
    }

    #[test]
    fn a_trial_that_goes_well_halves_the_pause() {
        let mut run = Run::default();
        (0..3).for_each(|_| assert!(run.window(0, 0, UNMAPPED).is_some()));
        assert_eq!(run.judge.pause, 4 * ASIDE);
        assert!((0..4).all(|_| run.window(20, 0, NONE).is_none()));
        assert_eq!(run.judge.pause, 2 * ASIDE);
        assert_eq!(run.window(0, 0, UNMAPPED), Some((Cause::Unmapped, 4 * ASIDE)));
    }

    #[test]
    fn threads_pass_on_as_many_as_were_decided() {
        let worth = Benefit::default();
        for nth in 1..=WINDOW {
            assert_eq!(worth.served(Served::Refused), nth == WINDOW);
        }
        assert!(worth.look(Seen::default()));
        let passed = || (0..2 * ASIDE).filter(|_| worth.stands_aside() == Some(Cause::Unkept)).count();
        let passed: usize = std::thread::scope(|threads| {
            let threads: Vec<_> = (0..4).map(|_| threads.spawn(passed)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, ASIDE as usize);
    }

    fn any_window(hits: std::ops::Range<u64>) -> impl Strategy<Value = (u64, u64, Seen)> {
        let seen = (0..80_u64, 0..80_u64, 0..65_u64);
        (hits, 0..65_u64, seen).prop_map(|(hits, refused, (unmapped, evicted, unkept))| {
            (hits, refused, Seen { unmapped, evicted, unkept, regions: 0 })
        })
    }

    proptest! {
        /// Whatever leaves and is refused: of what never comes again, one request in 17 at most is tried after the first pause.
        #[test]
        fn few_are_tried_of_what_never_comes_again(
            windows in prop::collection::vec(any_window(0..4), 1..2000),
            regions in 0..500_u64,
        ) {
            let mut run = Run::with_regions(regions);
            let (mut tried, mut passed) = (0, 0);
            for (hits, refused, more) in windows {
                tried += if passed > 0 { u64::from(WINDOW) } else { 0 };
                passed += run.window(hits, refused, more).map_or(0, |(_, pause)| u64::from(pause));
                prop_assert!(tried * 16 <= passed, "{tried} tried, {passed} passed on");
            }
        }

        /// Whatever came before: what comes again is served when the pause is over, and goes on to be.
        #[test]
        fn what_comes_again_is_served_again(
            windows in prop::collection::vec(any_window(0..65), 1..500),
            regions in 0..500_u64,
            hits in 4..65_u64,
        ) {
            let mut run = Run::with_regions(regions);
            windows.into_iter().for_each(|(hits, refused, more)| _ = run.window(hits, refused, more));
            // A trial that has begun may have had few hits so far.
            (0..ASIDE_MOST / TRIAL / WINDOW).for_each(|_| _ = run.window(hits, 0, EVICTED));
            for _ in 0..10_000 {
                prop_assert_eq!(run.window(hits, 0, EVICTED), None);
            }
            prop_assert_eq!(run.judge.pause, 0);
        }
    }
}
