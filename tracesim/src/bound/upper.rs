//! What a cache that knows the future pays: a schedule that can be followed, so the cheapest costs no more.

use super::clairvoyant::{Clairvoyant, Future};
use super::lower::Bound;
use mrrc::core::{Ask, NobodyElse};
use mrrc::cost::Linear;
use mrrc::{Config, ConfigError, Core, PageRange, Part, RegionId};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use traces::{Kind, Process, Trace};

/// One way to use the knowledge of the future; the cheapest of a few counts.
#[derive(Clone, Copy)]
struct Schedule {
    /// The share of the capacity that a batch of victims holds at least: larger batches save calls, smaller ones keep more.
    batch: f64,
    /// What is worth less than this many times the price of room is registered for its request alone.
    bypass_below: f64,
}

const WITHIN_THE_LIMIT: &[Schedule] =
    &[Schedule { batch: 0.0, bypass_below: 0.0 }, Schedule { batch: 0.02, bypass_below: 0.0 }];

const BYPASSING: &[Schedule] =
    &[Schedule { batch: 0.02, bypass_below: 1.0 }, Schedule { batch: 0.02, bypass_below: 1.25 }];

/// What a cache that knows the future pays, in microseconds, at each capacity, in pages: every process has a cache of
/// that capacity. No request exceeds the limit, but for those that do not fit.
///
/// # Errors
/// [`ConfigError`] for a capacity of no pages, and for costs that are no costs.
pub fn upper(trace: &Trace, capacities_pages: &[u64], costs: &Linear) -> Result<Vec<f64>, ConfigError> {
    cheapest(trace, capacities_pages, costs, WITHIN_THE_LIMIT)
}

/// As [`upper`], where any request may bypass the limit as one that does not fit does: what is not worth the room is
/// registered for its request alone, and nothing leaves for it.
///
/// # Errors
/// As [`upper`].
pub fn upper_bypassing(trace: &Trace, capacities_pages: &[u64], costs: &Linear) -> Result<Vec<f64>, ConfigError> {
    cheapest(trace, capacities_pages, costs, BYPASSING)
}

fn cheapest(trace: &Trace, capacities: &[u64], costs: &Linear, tries: &[Schedule]) -> Result<Vec<f64>, ConfigError> {
    let mut totals = vec![0.0; capacities.len()];
    for process in &trace.processes {
        let future = Future::of(process);
        let prices = tries.iter().any(|schedule| schedule.bypass_below > 0.0).then(|| Bound::of(process, costs));
        for (total, &capacity) in totals.iter_mut().zip(capacities) {
            let price = prices.as_ref().map_or(0.0, |bound| bound.price_at(capacity));
            let mut least = f64::INFINITY;
            for schedule in tries {
                let config = Config { cost: *costs, ..Config::new(capacity) };
                let us = replay(process, &future, &config, schedule.batch, schedule.bypass_below * price)?;
                least = least.min(us);
            }
            *total += least;
        }
    }
    Ok(totals)
}

fn replay(process: &Process, future: &Rc<Future>, config: &Config, batch: f64, price: f64) -> Result<f64, ConfigError> {
    let policy = Clairvoyant::new(future.clone(), &config.cost, config.pages_of(batch));
    let core = Core::with_policy(config, policy)?;
    let mut replay = Replay { core, costs: config.cost, leases: FxHashMap::default(), aside_us: 0.0 };
    future.rewind();
    let mut list = Vec::new();
    for step in &process.steps {
        let range = step.range();
        let ask = Ask::new(range);
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
            Kind::Invalidate => _ = replay.core.invalidate(range),
        }
    }
    Ok(replay.core.counters().cost(&config.cost).total_us() + replay.aside_us)
}

struct Replay {
    core: Core<Clairvoyant>,
    costs: Linear,
    leases: FxHashMap<PageRange, Vec<Vec<RegionId>>>,
    /// What was registered for its request alone without the core's knowledge.
    aside_us: f64,
}

impl Replay {
    /// Whether others would have to leave for what saves less than its room is worth.
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

    fn ask(&mut self, ask: Ask) {
        if self.core.ask(&ask, &mut NobodyElse).is_err() {
            // What is refused has to be served all the same.
            self.aside(ask.range);
        }
    }

    fn hold(&mut self, ask: Ask) -> Vec<RegionId> {
        let Ok(outcome) = self.core.ask(&ask, &mut NobodyElse) else {
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
