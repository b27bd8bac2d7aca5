//! What a cache that knows the future pays: a schedule that can be followed, so the cheapest costs no more.

use super::clairvoyant::{Clairvoyant, Future};
use mrrc::core::Ask;
use mrrc::cost::Linear;
use mrrc::{Config, ConfigError, Core, PageRange, RegionId, Segment};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use traces::{Kind, Process, Trace};

/// Shares of the capacity that a batch of victims holds at least, of which the cheapest counts: larger batches save
/// calls, smaller ones keep more.
const BATCHES: [f64; 2] = [0.0, 0.02];

/// What a cache that knows the future pays, in microseconds, at each capacity, in pages: every process has a cache of
/// that capacity. The cheapest of a few schedules.
///
/// # Errors
/// [`ConfigError`] for a capacity of no pages, and for costs that are no costs.
pub fn upper(trace: &Trace, capacities_pages: &[u64], costs: &Linear) -> Result<Vec<f64>, ConfigError> {
    let mut totals = vec![0.0; capacities_pages.len()];
    for process in &trace.processes {
        let future = Future::of(process);
        for (total, &capacity) in totals.iter_mut().zip(capacities_pages) {
            let mut least = f64::INFINITY;
            for batch in BATCHES {
                least = least.min(replay(process, &future, capacity, batch, costs)?);
            }
            *total += least;
        }
    }
    Ok(totals)
}

fn replay(
    process: &Process,
    future: &Rc<Future>,
    capacity: u64,
    batch: f64,
    costs: &Linear,
) -> Result<f64, ConfigError> {
    let config = Config { cost: *costs, ..Config::new(capacity) };
    let policy = Clairvoyant::new(future.clone(), costs, config.pages_of(batch));
    let mut replay =
        Replay { core: Core::with_policy(&config, policy)?, leases: FxHashMap::default(), refused_us: 0.0 };
    future.rewind();
    let mut list = Vec::new();
    for step in &process.steps {
        let range = step.range();
        match step.kind() {
            Kind::Request if step.is_single_request() && list.is_empty() => {
                replay.ask(Ask { access: step.access(), ..Ask::new(range) }, costs);
                future.advance();
            }
            Kind::Request => {
                list.extend(replay.hold(Ask { access: step.access(), ..Ask::new(range) }, costs));
                future.advance();
                if !step.goes_on() {
                    replay.let_go(list.drain(..));
                }
            }
            Kind::Acquire => {
                let held = replay.hold(Ask { access: step.access(), ..Ask::new(range) }, costs);
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
    Ok(replay.core.counters().cost(costs).total_us() + replay.refused_us)
}

struct Replay {
    core: Core<Clairvoyant>,
    leases: FxHashMap<PageRange, Vec<Vec<RegionId>>>,
    /// What was refused has to be served all the same: registered for its request alone.
    refused_us: f64,
}

impl Replay {
    fn ask(&mut self, ask: Ask, costs: &Linear) {
        if self.core.ask(&ask, &mut mrrc::core::NobodyElse).is_err() {
            self.refused_us += costs.reload(ask.range.pages());
        }
    }

    fn hold(&mut self, ask: Ask, costs: &Linear) -> Vec<RegionId> {
        let Ok(outcome) = self.core.ask(&ask, &mut mrrc::core::NobodyElse) else {
            self.refused_us += costs.reload(ask.range.pages());
            return Vec::new();
        };
        let held: Vec<RegionId> = outcome.segments().iter().filter_map(Segment::region).collect();
        held.iter().for_each(|&id| self.core.hold(id));
        held
    }

    fn let_go(&mut self, held: impl Iterator<Item = RegionId>) {
        held.for_each(|id| _ = self.core.release(id));
    }
}
