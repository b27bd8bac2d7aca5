//! The replay loop: one process through one cache.
//!
//! A plain request is released at once, so it is one call of [`Core::request`]; recordings also acquire, release and
//! invalidate. Nothing is flushed at the end.

use crate::deferred::DeferredTouches;
use mrrc_core::core::{NoHolders, Request};
use mrrc_core::cost::Linear;
use mrrc_core::policy::Policy;
use mrrc_core::{Access, AllInUse, Config, ConfigError, Core, Cost, Counters, Outcome, PageRange, Part, RegionId};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use traces::{Kind, Process, Step, StepIter};

/// When the core hears of hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recency {
    /// At once, as in the paper.
    #[default]
    Exact,
    /// Before room is made, as in the cache of many threads: hits leave marks, and the marked regions move up in the
    /// order of their slots.
    Deferred,
}

/// Looks on, and can end it.
pub struct Watch<'a> {
    /// Set by any thread to end a replay soon.
    pub stop: &'a AtomicBool,
    /// Hears how many more steps were replayed, now and then.
    pub replayed: &'a (dyn Fn(u64) + Sync),
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("stop", self.stop).finish_non_exhaustive()
    }
}

/// How deregistrations are charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeregCost {
    /// `b'` for each batch.
    #[default]
    Batch,
    /// `b'` for each region: the paper's formula (1).
    Region,
}

/// The counts of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Of all processes together.
    pub counters: Counters,
    /// Releases of what was not in use: passed over.
    pub unmatched_releases: u64,
    /// Pages of the requests that were refused, as all was in use ([`Counters::all_in_use`]).
    pub refused_pages: u64,
}

impl Replayed {
    /// Returns its cost by a model. Refused requests are there too: they have to be served all the same, so each is
    /// registered for itself and deregistered after it, as without a cache. Otherwise a policy that refuses more would
    /// seem the cheaper.
    pub fn cost(&self, model: &Linear, dereg: DeregCost) -> Cost {
        let Cost { reg_us, dereg_us } = match dereg {
            DeregCost::Batch => self.counters.cost(model),
            DeregCost::Region => self.counters.cost_by_region(model),
        };
        let (requests, pages) = (self.counters.all_in_use as f64, self.refused_pages as f64);
        Cost {
            reg_us: reg_us + model.reg_page * pages + model.reg_call * requests,
            dereg_us: dereg_us + model.dereg_page * pages + model.dereg_call * requests,
        }
    }
}

/// Why there are no counts.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is no such cache.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// More is acquired and never released than a cache can hold.
    #[error("more than {MOST_IN_USE} acquires are in use at once: see whether the recording has its releases")]
    TooManyInUse,
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
    /// The policy broke its contract: it proposed a region that is not cached, or panicked itself.
    #[error("policy `{name}`: {message}: propose each cached region once, as `Policy::victim` says")]
    Policy {
        /// Its name.
        name: &'static str,
        /// The message of the panic.
        message: String,
    },
}

/// Acquires in use at once, at most: a region counts so many holders.
const MOST_IN_USE: usize = (1 << 27) - 1;

/// Steps between two looks at the watch.
const GLANCE: usize = 1 << 16;

/// Replays one process through a cache with this policy. The loop is compiled for each type of policy.
pub(crate) fn replay_with<P: Policy>(
    policy: P,
    process: &Process,
    config: &Config,
    recency: Recency,
    watch: Option<&Watch<'_>>,
) -> Result<Replayed, ReplayError> {
    let steps = &process.steps;
    let max_touches = policy.max_touches();
    let core = Core::with_policy(config, policy)?;
    let deferred = (recency == Recency::Deferred).then(|| Deferred::new(max_touches));
    let tells_rights = core.scheme().widens && remote_requests(process) > 0;
    let mut replayer = Replayer::new(core, deferred, tells_rights);
    let mut at = 0;
    while at < steps.len() {
        let begun = at;
        let until = steps.len().min(at + GLANCE);
        while at < until {
            let mut next = steps.range(at..until);
            while let Some(step) = next.next() {
                if step.is_single_request() && !tells_rights {
                    replayer.request(step.range());
                    at += 1;
                } else {
                    let taken = replayer.event(steps.range(at..steps.len()))?;
                    at += taken;
                    if taken > 1 {
                        next.nth(taken - 2);
                    }
                }
                debug_assert!(replayer.core.used_pages() <= replayer.core.capacity(), "the capacity is a limit");
            }
        }
        if let Some(watch) = watch {
            (watch.replayed)((at - begun) as u64);
            if watch.stop.load(Ordering::Relaxed) {
                return Err(ReplayError::Interrupted);
            }
        }
    }
    Ok(replayer.replayed())
}

/// Returns how many requests of a process give peers rights.
pub(crate) fn remote_requests(process: &Process) -> u64 {
    let asks = |step: &Step| matches!(step.kind(), Kind::Request | Kind::Acquire) && step.access().is_remote();
    process.steps.iter().filter(asks).count() as u64
}

/// Returns the rights by which a cache that widens tells a request for peers from one for local use. More are not told apart:
/// regions are not registered again for a right that they lack.
pub(crate) fn rights_of(asked: Access) -> Access {
    if asked.is_remote() { Access::LOCAL | Access::REMOTE } else { Access::LOCAL }
}

/// The ranges of an event.
type Ranges = SmallVec<[PageRange; 1]>;

/// The regions that an acquire holds.
type Held = SmallVec<[RegionId; 2]>;

/// A process in the middle of its trace.
struct Replayer<P> {
    core: Core<P>,
    /// The deferred touches, if the core hears of hits later.
    deferred: Option<Deferred>,
    /// Whether requests for peers are told from those for local use: only where the core widens. Those for peers are not widened, and
    /// not served by pages that are registered for local use.
    tells_rights: bool,
    /// Acquires in use by their ranges, the last one last.
    open: FxHashMap<Ranges, Vec<Held>>,
    in_use: usize,
    unmatched_releases: u64,
    refused_pages: u64,
}

/// Hits that the core has not heard of: it neither counts them nor, before it makes room, orders by them.
struct Deferred {
    marks: DeferredTouches,
    hits: Counters,
    touched: Vec<RegionId>,
}

impl Deferred {
    fn new(max_touches: u32) -> Self {
        Self { marks: DeferredTouches::new(max_touches), hits: Counters::default(), touched: Vec::new() }
    }
}

impl<P: Policy> Replayer<P> {
    fn new(core: Core<P>, deferred: Option<Deferred>, tells_rights: bool) -> Self {
        let open = FxHashMap::default();
        Self { core, deferred, tells_rights, open, in_use: 0, unmatched_releases: 0, refused_pages: 0 }
    }

    /// One range, released at once. The core counts a request without room as refused, and that is all.
    #[inline(always)]
    fn request(&mut self, asked: PageRange) {
        let refused = if self.deferred.is_none() {
            // As `Core::request`, without the answer to a hit.
            self.core.hit(asked).is_none() && self.core.request_missed(asked).is_err()
        } else {
            self.hit_deferred(asked, None).is_none() && self.missed_deferred(asked, None).is_none()
        };
        if refused {
            self.refuse(asked);
        }
    }

    #[cold]
    fn refuse(&mut self, asked: PageRange) {
        self.refused_pages = self.refused_pages.saturating_add(asked.pages());
    }

    /// Counts and marks the region that serves the range by itself, if there is one.
    #[inline(always)]
    fn hit_deferred(&mut self, asked: PageRange, rights: Option<Access>) -> Option<RegionId> {
        let Deferred { marks, hits, .. } = self.deferred.as_mut()?;
        let id = rights.map_or_else(|| self.core.find(asked), |rights| self.core.find_with(asked, rights))?;
        marks.mark(id);
        let exact = self.core.range_of(id) == Some(asked);
        let kind = if exact { &mut hits.exact } else { &mut hits.subset };
        *kind += 1;
        hits.requests += 1;
        for pages in [&mut hits.pages, &mut hits.hit_pages] {
            *pages = pages.saturating_add(asked.pages());
        }
        Some(id)
    }

    /// Asks for what no region serves by itself.
    #[inline(always)]
    fn missed_deferred(&mut self, asked: PageRange, rights: Option<Access>) -> Option<&Outcome> {
        let Deferred { marks, .. } = self.deferred.as_mut()?;
        let request = Request::within_all(asked, rights.unwrap_or(Access::LOCAL_READ));
        let outcome = self.core.request_with(&request, marks).ok()?;
        marks.forget(outcome.batches());
        Some(outcome)
    }

    /// An event that is more than a range asked for and released; how many steps it took.
    #[cold]
    fn event(&mut self, mut steps: StepIter<'_>) -> Result<usize, ReplayError> {
        let Some(first) = steps.clone().next() else { return Ok(0) };
        let mut ranges = Ranges::new();
        for step in steps.by_ref() {
            ranges.push(step.range());
            if !step.goes_on() {
                break;
            }
        }
        let len = ranges.len();
        let rights = self.tells_rights.then(|| rights_of(first.access()));
        match first.kind() {
            Kind::Request => _ = self.ask(&ranges, rights),
            Kind::Acquire => self.acquire(ranges, rights)?,
            Kind::Release => self.release(&ranges),
            Kind::Invalidate => self.invalidate(&ranges),
        }
        Ok(len)
    }

    /// Ranges asked for together; the regions that serve them.
    fn ask(&mut self, ranges: &[PageRange], rights: Option<Access>) -> Held {
        let regions_of = |outcome: &Outcome| -> Held { outcome.parts().iter().filter_map(Part::region).collect() };
        if let &[asked] = ranges {
            let served = if self.deferred.is_none() {
                let answer = match rights {
                    None => self.core.request(asked),
                    Some(rights) => self.core.request_with(&Request::within_all(asked, rights), &mut NoHolders),
                };
                answer.ok().map(regions_of)
            } else if let Some(id) = self.hit_deferred(asked, rights) {
                Some(smallvec::smallvec![id])
            } else {
                self.missed_deferred(asked, rights).map(regions_of)
            };
            if served.is_none() {
                self.refuse(asked);
            }
            return served.unwrap_or_default();
        }
        self.apply_touches();
        let mut served = Held::new();
        let mut refused = 0_u64;
        let each = |range: PageRange, answer: Result<&Outcome, AllInUse>| match answer {
            Ok(outcome) => served.extend(regions_of(outcome)),
            Err(_) => refused = refused.saturating_add(range.pages()),
        };
        match rights {
            None => self.core.request_list(ranges, each),
            Some(rights) => self.core.request_list_with(ranges, rights, each),
        };
        self.refused_pages = self.refused_pages.saturating_add(refused);
        // A later range of the list can have replaced what served an earlier one.
        served.retain(|id| self.core.range_of(*id).is_some());
        served
    }

    fn acquire(&mut self, ranges: Ranges, rights: Option<Access>) -> Result<(), ReplayError> {
        if self.in_use >= MOST_IN_USE {
            return Err(ReplayError::TooManyInUse);
        }
        let held = self.ask(&ranges, rights);
        held.iter().for_each(|&id| self.core.hold(id));
        self.in_use += held.len().max(1);
        self.open.entry(ranges).or_default().push(held);
        Ok(())
    }

    fn release(&mut self, ranges: &Ranges) {
        let Some(held) = self.open.get_mut(ranges).and_then(Vec::pop) else {
            self.unmatched_releases += 1;
            return;
        };
        if self.open.get(ranges).is_some_and(Vec::is_empty) {
            self.open.remove(ranges);
        }
        self.in_use -= held.len().max(1);
        for id in held {
            let leavers = self.core.release(id);
            if let Some(Deferred { marks, .. }) = &mut self.deferred {
                marks.forget(leavers.batches());
            }
        }
    }

    fn invalidate(&mut self, ranges: &[PageRange]) {
        for &range in ranges {
            let leavers = self.core.invalidate(range);
            if let Some(Deferred { marks, .. }) = &mut self.deferred {
                marks.forget(leavers.batches());
            }
        }
    }

    /// Tells the core of all hits.
    fn apply_touches(&mut self) {
        if let Some(Deferred { marks, touched, .. }) = &mut self.deferred {
            touched.clear();
            marks.take(touched);
            self.core.apply_touches(touched.iter().copied());
        }
    }

    fn replayed(&self) -> Replayed {
        let mut counters = self.core.counters();
        if let Some(Deferred { hits, .. }) = &self.deferred {
            add(&mut counters, hits);
        }
        Replayed { counters, unmatched_releases: self.unmatched_releases, refused_pages: self.refused_pages }
    }
}

/// Adds up; pages saturate as they do in one core. The highest level of each is added as well: a bound for that of all.
pub(crate) fn add(sum: &mut Counters, other: &Counters) {
    let pairs = [
        (&mut sum.requests, other.requests),
        (&mut sum.exact, other.exact),
        (&mut sum.subset, other.subset),
        (&mut sum.covered, other.covered),
        (&mut sum.partial, other.partial),
        (&mut sum.miss, other.miss),
        (&mut sum.bypass, other.bypass),
        (&mut sum.all_in_use, other.all_in_use),
        (&mut sum.pages, other.pages),
        (&mut sum.hit_pages, other.hit_pages),
        (&mut sum.regs, other.regs),
        (&mut sum.reg_pages, other.reg_pages),
        (&mut sum.deregs, other.deregs),
        (&mut sum.dereg_pages, other.dereg_pages),
        (&mut sum.dereg_batches, other.dereg_batches),
        (&mut sum.evicted, other.evicted),
        (&mut sum.merged, other.merged),
        (&mut sum.upgraded, other.upgraded),
        (&mut sum.failed, other.failed),
        (&mut sum.invalidated, other.invalidated),
        (&mut sum.invalidated_pages, other.invalidated_pages),
        (&mut sum.peak_pages, other.peak_pages),
    ];
    for (sum, other) in pairs {
        *sum = sum.saturating_add(other);
    }
}
