//! The search: the cheapest configuration that meets a service level.
//!
//! Workers and lanes rise by ones, batch and depth by powers of two. What costs no less than the best so far is skipped. More depth
//! only adds latency. So the first depth with enough throughput decides: it is taken if its latency is low enough, and otherwise no
//! greater depth is tried. Margins of a tenth absorb noise.

use super::configuration::{Configuration, Limits, Prices};
use super::model::{Model, Point};
use super::slo::Slo;
use std::fmt;

/// The throughput that is looked for, as a multiple of the level's.
pub const THROUGHPUT_MARGIN: f64 = 1.1;
/// The latency that is looked for, as a multiple of the level's.
pub const LATENCY_MARGIN: f64 = 0.9;

/// A configuration, and how fast the model has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// The configuration.
    pub configuration: Configuration,
    /// How fast it is.
    pub point: Point,
    /// Its cost.
    pub cost: f64,
}

/// Configurations that miss a level by the least.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Near {
    /// That with the most throughput among those whose latency is low enough.
    pub by_throughput: Option<Prediction>,
    /// That with the lowest latency among those whose throughput is high enough.
    pub by_latency: Option<Prediction>,
}

/// No configuration meets the level.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Infeasible {
    /// The level.
    pub slo: Slo,
    /// The configurations that come closest.
    pub near: Near,
}

/// The throughput and latency that are looked for: those of the level, with margins.
#[derive(Clone, Copy, Debug)]
struct Goal {
    throughput: f64,
    mean: f64,
}

impl Goal {
    fn of(slo: &Slo) -> Self {
        let nanos = slo.latency().as_secs_f64() * 1e9;
        Self { throughput: slo.throughput() * THROUGHPUT_MARGIN, mean: nanos * LATENCY_MARGIN }
    }

    fn is_fast_enough(&self, point: &Point) -> bool {
        point.throughput >= self.throughput
    }

    fn is_quick_enough(&self, point: &Point) -> bool {
        point.mean <= self.mean
    }
}

/// Returns the cheapest configuration within `limits` that meets the level with its margins.
///
/// # Errors
///
/// None meets it. The error has those that come closest.
pub fn cheapest(model: &Model, slo: &Slo, limits: &Limits, prices: &Prices) -> Result<Prediction, Box<Infeasible>> {
    let goal = Goal::of(slo);
    let mut best: Option<Prediction> = None;
    for shape in shapes(limits, slo.record()) {
        let is_dearer = |cost| best.is_some_and(|best| cost >= best.cost);
        if is_dearer(prices.cost(&shape, slo.record())) {
            continue;
        }
        let Some(curve) = model.curve(slo.record(), slo.reads(), &shape) else { continue };
        for depth in limits.depths() {
            let configuration = Configuration { depth, ..shape };
            let cost = prices.cost(&configuration, slo.record());
            if is_dearer(cost) {
                break;
            }
            let point = curve.at(depth);
            if goal.is_fast_enough(&point) {
                if goal.is_quick_enough(&point) {
                    best = Some(Prediction { configuration, point, cost });
                }
                break;
            }
        }
    }
    best.ok_or_else(|| Box::new(Infeasible { slo: *slo, near: nearest(model, slo, limits, prices, f64::INFINITY) }))
}

/// Returns what comes closest to the level, with its margins, of all that costs less than `below`. So it tells why nothing cheaper
/// than a choice meets its level.
pub fn nearest(model: &Model, slo: &Slo, limits: &Limits, prices: &Prices, below: f64) -> Near {
    let goal = Goal::of(slo);
    let mut near = Near::default();
    for shape in shapes(limits, slo.record()) {
        let Some(curve) = model.curve(slo.record(), slo.reads(), &shape) else { continue };
        for depth in limits.depths() {
            let configuration = Configuration { depth, ..shape };
            let (cost, point) = (prices.cost(&configuration, slo.record()), curve.at(depth));
            if cost >= below {
                break;
            }
            let this = Prediction { configuration, point, cost };
            let is_faster = |than: Prediction| point.throughput > than.point.throughput;
            if goal.is_quick_enough(&point) && near.by_throughput.is_none_or(is_faster) {
                near.by_throughput = Some(this);
            }
            let is_quicker = |than: Prediction| point.mean < than.point.mean;
            if goal.is_fast_enough(&point) && near.by_latency.is_none_or(is_quicker) {
                near.by_latency = Some(this);
            }
        }
    }
    near
}

/// Returns the configurations within the limits with one batch in flight, in the order of the search.
fn shapes(limits: &Limits, record: u32) -> impl Iterator<Item = Configuration> + use<> {
    let limits = *limits;
    let threads = (0..=limits.workers)
        .flat_map(move |workers| (workers.max(1)..=limits.lanes).map(move |lanes| (workers, lanes)));
    threads.flat_map(move |(workers, lanes)| {
        limits.batches(workers, record).map(move |batch| Configuration { workers, lanes, batch, depth: 1 })
    })
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { throughput, mean, .. } = self.point;
        write!(f, "{}: {throughput:.0} operations/s, {:.1} us, cost {:.2}", self.configuration, mean / 1e3, self.cost)
    }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, latency) = (self.slo.throughput(), self.slo.latency());
        write!(f, "plan far memory: nothing here makes {rate:.0} operations/s in {latency:?} with a tenth to spare")?;
        match self.near {
            Near { by_throughput: None, by_latency: None } => {
                write!(f, ": allow more time, or ask for fewer operations")
            }
            Near { by_throughput, by_latency } => {
                let separators = [":", ";"];
                let near = [("in time", by_throughput), ("fast enough", by_latency)];
                let told = near.into_iter().filter_map(|(what, prediction)| Some((what, prediction?)));
                for (separator, (what, prediction)) in separators.into_iter().zip(told) {
                    write!(f, "{separator} closest {what} is {prediction}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Infeasible {}
