//! The cost of a cache that knows the future: a schedule that can be followed, so the cheapest costs no more.

use super::clairvoyant::{Clairvoyant, Foresight, Future};
use super::holds_for;
use super::lower::{Bound, NEVER};
use crate::policies::{PolicyEntry, builtin};
use crate::row::DeregCost;
use crate::simulate::{Recency, ReplayError, Watch};
use mrrc_core::core::{NoHolders, Request};
use mrrc_core::cost::Linear;
use mrrc_core::policy::Overlap;
use mrrc_core::{Config, ConfigError, Core, PageRange, Part, RegionId};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use traces::{Kind, Process, Trace};

/// One way to use the knowledge of the future; the cheapest of a few counts.
#[derive(Clone, Copy)]
struct Schedule {
    /// The share of the capacity that a batch of victims holds at least: larger batches save calls, smaller ones keep more.
    batch: f64,
    /// Regions worth less than this many times the price of room are registered for their request alone.
    bypass_below: f64,
    foresight: Foresight,
    /// The treatment of regions that a request overlaps.
    overlap: Overlap,
}

const fn within(batch: f64, foresight: Foresight, overlap: Overlap) -> Schedule {
    Schedule { batch, bypass_below: 0.0, foresight, overlap }
}

const fn bypassing(bypass_below: f64, foresight: Foresight) -> Schedule {
    Schedule { batch: 0.02, bypass_below, foresight, overlap: Overlap::Split }
}

const WITHIN_THE_LIMIT: &[Schedule] = &[
    within(0.0, Foresight::Requests, Overlap::Split),
    within(0.02, Foresight::Requests, Overlap::Split),
    within(0.02, Foresight::Pages, Overlap::Split),
    within(0.02, Foresight::Pages, Overlap::Whole),
];

const BYPASSING: &[Schedule] =
    &[bypassing(1.0, Foresight::Requests), bypassing(1.25, Foresight::Requests), bypassing(1.0, Foresight::Pages)];

/// Returns the cost of a cache that knows the future, or of the best policy that does not, if that is less. In microseconds, at
/// each capacity, in pages: every process has a cache of that capacity. No request exceeds the limit, but for those that do not
/// fit.
///
/// # Errors
/// [`ConfigError`] for a capacity of no pages, and for costs that are no costs.
pub fn upper(trace: &Trace, capacities_pages: &[u64], costs: &Linear) -> Result<Vec<f64>, ConfigError> {
    upper_until(trace, capacities_pages, costs, &UNWATCHED).map(Option::unwrap_or_default)
}

/// Returns the same as [`upper`], or none soon after `watch` was told to stop. It hears of the steps of [all replays](upper_replays).
///
/// # Errors
/// As [`upper`].
pub fn upper_until(
    trace: &Trace,
    capacities_pages: &[u64],
    costs: &Linear,
    watch: &Watch<'_>,
) -> Result<Option<Vec<f64>>, ConfigError> {
    cheapest(trace, capacities_pages, costs, WITHIN_THE_LIMIT, true, watch)
}

/// As [`upper`], where any request may bypass the limit as one that does not fit does: what is not worth the room is
/// registered for its request alone, and nothing leaves for it.
///
/// # Errors
/// As [`upper`].
pub fn upper_bypassing(trace: &Trace, capacities_pages: &[u64], costs: &Linear) -> Result<Vec<f64>, ConfigError> {
    upper_bypassing_until(trace, capacities_pages, costs, &UNWATCHED).map(Option::unwrap_or_default)
}

/// Returns the same as [`upper_bypassing`], or none soon after `watch` was told to stop. It hears of the steps of [all replays](upper_replays).
///
/// # Errors
/// As [`upper`].
pub fn upper_bypassing_until(
    trace: &Trace,
    capacities_pages: &[u64],
    costs: &Linear,
    watch: &Watch<'_>,
) -> Result<Option<Vec<f64>>, ConfigError> {
    cheapest(trace, capacities_pages, costs, BYPASSING, false, watch)
}

fn cheapest(
    trace: &Trace,
    capacities: &[u64],
    costs: &Linear,
    tries: &[Schedule],
    with_online: bool,
    watch: &Watch<'_>,
) -> Result<Option<Vec<f64>>, ConfigError> {
    let mut totals = vec![0.0; capacities.len()];
    for process in &trace.processes {
        let future = Future::of(process);
        let bypasses = tries.iter().any(|schedule| schedule.bypass_below > 0.0);
        let prices = bypasses.then(|| Bound::until(process, costs, watch.stop)).flatten();
        for (total, &capacity) in totals.iter_mut().zip(capacities) {
            let price = prices.as_ref().map_or(0.0, |bound| bound.price_at(capacity));
            let mut least = f64::INFINITY;
            for schedule in tries {
                let config = Config { cost: *costs, overlap: Some(schedule.overlap), ..Config::new(capacity) };
                let Some(us) = replay(process, &future, &config, schedule, price, watch)? else { return Ok(None) };
                least = least.min(us);
            }
            if with_online {
                let Some(us) = best_online(process, capacity, costs, watch)? else { return Ok(None) };
                least = least.min(us);
            }
            *total += least;
        }
    }
    Ok(Some(totals))
}

/// The policies that do not know the future, and for which the lower bound holds.
fn online(config: &Config) -> impl Iterator<Item = PolicyEntry> {
    builtin().into_iter().filter(|policy| holds_for(&policy.scheme(&config.params())))
}

/// Returns how often [`upper_until`] and [`upper_bypassing_until`] replay a trace at each capacity.
pub fn upper_replays() -> (u64, u64) {
    ((WITHIN_THE_LIMIT.len() + online(&Config::new(1)).count()) as u64, BYPASSING.len() as u64)
}

/// Returns the cost of the best policy that does not know the future, of those for which the lower bound holds; none if stopped.
fn best_online(
    process: &Process,
    capacity: u64,
    costs: &Linear,
    watch: &Watch<'_>,
) -> Result<Option<f64>, ConfigError> {
    let mut least = f64::INFINITY;
    let config = Config { cost: *costs, ..Config::new(capacity) };
    for policy in online(&config) {
        match policy.replay_process(process, &config, Recency::Exact, Some(watch)) {
            Ok(replayed) => least = least.min(replayed.cost(costs, DeregCost::Batch).total_us()),
            Err(ReplayError::Config(error)) => return Err(error),
            Err(ReplayError::Interrupted) => return Ok(None),
            // The policies are our own: a contract that one breaks is our defect.
            Err(error @ ReplayError::Policy { .. }) => panic!("{error}"),
            // It has no figure to show either.
            Err(_) => {}
        }
    }
    Ok(Some(least))
}

/// Steps that are replayed between two looks at whether it is to stop.
const UNINTERRUPTED: usize = 1024;
/// Steps between two reports.
const REPORT: usize = 1 << 16;
/// Is not told to stop, and hears nothing.
const UNWATCHED: Watch<'_> = Watch { stop: &NEVER, replayed: &|_| {} };

/// Returns the cost of a schedule; none if stopped.
fn replay(
    process: &Process,
    future: &Rc<Future>,
    config: &Config,
    schedule: &Schedule,
    price: f64,
    watch: &Watch<'_>,
) -> Result<Option<f64>, ConfigError> {
    let price = schedule.bypass_below * price;
    let batch = config.params().pages_of(schedule.batch);
    let policy = Clairvoyant::new(future.clone(), schedule.foresight, &config.cost, batch);
    let core = Core::with_policy(config, policy)?;
    let mut replay = Replay { core, costs: config.cost, leases: FxHashMap::default(), aside_us: 0.0 };
    future.rewind();
    let mut list = Vec::new();
    for (at, step) in process.steps.iter().enumerate() {
        if at.is_multiple_of(UNINTERRUPTED) && watch.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if at % REPORT == REPORT - 1 {
            (watch.replayed)(REPORT as u64);
        }
        let range = step.range();
        let ask = Request::new(range);
        if matches!(step.kind(), Kind::Request | Kind::Acquire) && schedule.foresight == Foresight::Pages {
            future.begin(range);
        }
        match step.kind() {
            Kind::Request if step.is_single_request() && list.is_empty() => {
                if replay.is_worth_less(range, future.wait(), price) {
                    replay.aside(range);
                } else {
                    replay.ask(ask);
                }
                future.advance();
            }
            Kind::Request => {
                list.extend(replay.hold(ask));
                future.advance();
                if !step.goes_on() {
                    replay.let_go(list.drain(..));
                }
            }
            Kind::Acquire => {
                let held = replay.hold(ask);
                replay.leases.entry(range).or_default().push(held);
                future.advance();
            }
            Kind::Release => {
                let held = replay.leases.get_mut(&range).and_then(Vec::pop);
                replay.let_go(held.into_iter().flatten());
            }
            Kind::Invalidate => {
                future.invalidate(range);
                _ = replay.core.invalidate(range);
            }
        }
    }
    (watch.replayed)((process.steps.len() % REPORT) as u64);
    Ok(Some(replay.core.counters().cost(&config.cost).total_us() + replay.aside_us))
}

struct Replay {
    core: Core<Clairvoyant>,
    costs: Linear,
    leases: FxHashMap<PageRange, Vec<Vec<RegionId>>>,
    /// The cost of registrations for one request alone, without the core's knowledge.
    aside_us: f64,
}

impl Replay {
    /// Returns whether others would have to leave for what saves less than its room is worth.
    fn is_worth_less(&self, range: PageRange, wait: Option<u64>, price: f64) -> bool {
        if price == 0.0 || self.core.used_pages() + range.pages() <= self.core.capacity() {
            return false;
        }
        let saves = |wait: u64| self.costs.reload(range.pages()) / (range.pages() as f64 * wait as f64);
        let mut is_new = true;
        self.core.for_each_overlap(range, |_| is_new = false);
        is_new && wait.map_or(0.0, saves) < price
    }

    fn aside(&mut self, range: PageRange) {
        self.aside_us += self.costs.reload(range.pages());
    }

    fn ask(&mut self, ask: Request) {
        if self.core.request_with(&ask, &mut NoHolders).is_err() {
            // A refused request has to be served all the same.
            self.aside(ask.range);
        }
    }

    fn hold(&mut self, ask: Request) -> Vec<RegionId> {
        let Ok(outcome) = self.core.request_with(&ask, &mut NoHolders) else {
            self.aside(ask.range);
            return Vec::new();
        };
        let held: Vec<RegionId> = outcome.parts().iter().filter_map(Part::region).collect();
        held.iter().for_each(|&id| self.core.hold(id));
        held
    }

    fn let_go(&mut self, held: impl Iterator<Item = RegionId>) {
        held.for_each(|id| _ = self.core.release(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::Access;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use traces::Step;

    #[test]
    fn stopped_bounds_are_none() {
        let step = |page: u64| Step::new(Kind::Request, PageRange::new(page % 30, 1).unwrap(), Access::LOCAL, false);
        let steps: Vec<Step> = (0..500).map(step).collect();
        let trace = Trace { processes: vec![Process { steps: steps.into() }], ..Trace::default() };
        let [go, stop] = [false, true].map(AtomicBool::new);
        let replayed = AtomicU64::new(0);
        let count = |steps| _ = replayed.fetch_add(steps, Ordering::Relaxed);
        let (go, stop) = (Watch { stop: &go, replayed: &count }, Watch { stop: &stop, replayed: &|_| {} });
        let costs = Linear::PAPER;
        assert_eq!(upper_until(&trace, &[10], &costs, &go).unwrap(), Some(upper(&trace, &[10], &costs).unwrap()));
        let (within, bypassing) = upper_replays();
        assert_eq!(replayed.swap(0, Ordering::Relaxed), 500 * within);
        assert!(upper_bypassing_until(&trace, &[10], &costs, &go).unwrap().is_some());
        assert_eq!(replayed.into_inner(), 500 * bypassing);
        assert_eq!(upper_until(&trace, &[10], &costs, &stop).unwrap(), None);
        assert_eq!(upper_bypassing_until(&trace, &[10], &costs, &stop).unwrap(), None);
        assert_eq!(best_online(&trace.processes[0], 10, &costs, &stop).unwrap(), None);
    }
}
