//! The policy and the capacity to choose: the result of a comparison, for the user of the program.
//!
//! Several policies are replayed at sizes from a thousandth of the footprint to all of it. The best of them saves most. The advice is
//! the smallest size that saves nearly as much, and there the policy that saves most, or the default if that is as good. It is not
//! given where even the best saves little, or where there is too little to go by.

use crate::footprint::Footprint;
use crate::replayer::remote_requests;
use crate::row::{DeregCost, Row};
use crate::simulate::{Recency, ReplayError, Watch, replay};
use crate::sizes::Capacity;
use crate::sweep::{Cell, Finished, Sweep};
use mrrc_core::Config;
use mrrc_core::cost::Linear;
use mrrc_core::policy::PolicyKind;
use serde::Serialize;
use traces::{Process, Trace};

/// The question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The policies that may be advised.
    pub policies: Vec<PolicyKind>,
    /// The cost of registrations.
    pub cost: Linear,
    /// Share of the most that can be saved which may be given up for a smaller cache.
    pub within: f64,
    /// Share of the cost without a cache that has to be saved for a cache to be worth it.
    pub worth: f64,
}

/// The policies that are compared unless others are named: those that register what is asked for, and no two alike.
pub const POLICIES: [PolicyKind; 6] = [
    PolicyKind::Mrrc,
    PolicyKind::PinDown,
    PolicyKind::Gdsf,
    PolicyKind::S3Fifo,
    PolicyKind::Sieve,
    PolicyKind::Probation,
];

/// Fewer requests say nothing.
pub const LEAST_REQUESTS: u64 = 300;
/// Halves whose shares are further apart are no halves of one behaviour.
const STEADY: f64 = 0.25;
/// The default policy stands if it saves so nearly what the best does.
const AS_GOOD: f64 = 0.01;
/// Replays of the whole trace that those of its halves take: each without a cache and with the choice.
const HALVES: u64 = 2;
/// Widening pays from this share of the cost with the cache: it pins pages that nothing asked for.
const WIDENING_PAYS: f64 = 0.05;

/// The advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// There is a cache that is worth it.
    Use,
    /// Even the best saves little.
    NotWorthIt,
    /// Too few requests.
    TooShort,
}

/// The best policy at a capacity.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// Pages of each process's cache.
    pub capacity_pages: u64,
    /// The policy that saves most there.
    pub policy: Option<&'static str>,
    /// Requests that found everything in use: they are charged what they cost without a cache.
    pub refused: u64,
    /// Requests served without a registration, by share.
    pub hit_ratio: f64,
    /// The cost of registrations with it, in microseconds.
    pub total_us: f64,
    /// Its saving as a share of the cost without a cache.
    pub saved: f64,
}

/// The advice, and what it rests on.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The advice.
    pub verdict: Verdict,
    /// Which line of them, if a cache is to be used: the place in [`Advice::lines`].
    pub chosen: Option<usize>,
    /// The policy to run with there.
    pub policy: Option<&'static str>,
    /// Its cost, in microseconds.
    pub total_us: f64,
    /// Its cost with widening (`MRRC_WIDEN`), in microseconds; none where the policy cannot, or the trace has no addresses.
    pub widened_us: Option<f64>,
    /// The cost without a cache.
    pub none_us: f64,
    /// The cost where everything stays.
    pub infinite_us: f64,
    /// The best's saving, as a share.
    pub best: f64,
    /// The saving in the first half of the trace and in the second, as shares.
    pub halves: [f64; 2],
    /// Requests that give peers rights.
    pub remote_requests: u64,
    /// The best policy at each capacity.
    pub lines: Vec<Line>,
}

impl Advice {
    /// Returns whether both halves of the trace say nearly the same.
    pub fn is_steady(&self) -> bool {
        let [first, second] = self.halves;
        (first - second).abs() <= STEADY
    }

    /// Returns whether widening would save enough to be tried.
    pub fn widening_pays(&self) -> bool {
        self.widened_us.is_some_and(|widened_us| widened_us <= self.total_us * (1.0 - WIDENING_PAYS))
    }

    /// Returns the line that was chosen.
    pub fn choice(&self) -> Option<&Line> {
        self.chosen.and_then(|at| self.lines.get(at))
    }

    /// Returns how often [`Advice::of`] replays the trace, at most: each policy at each size, the lines, the halves and the widening.
    pub fn replays(question: &Question, footprint: &Footprint) -> u64 {
        let sizes = sizes(footprint.largest_process_pages);
        sweep(question, &sizes).cells().len() as u64 + HALVES + 1
    }

    /// Compares, and decides.
    ///
    /// # Errors
    /// As [`replay`].
    pub fn of(
        question: &Question,
        trace: &Trace,
        footprint: &Footprint,
        watch: &Watch<'_>,
    ) -> Result<Self, ReplayError> {
        let sizes = sizes(footprint.largest_process_pages);
        let sweep = sweep(question, &sizes);
        let cells = sweep.cells();
        let finished: Option<Vec<Finished>> =
            sweep.run(trace, footprint, &cells, watch)?.into_iter().collect::<Option<Vec<_>>>();
        let finished = finished.ok_or(ReplayError::Interrupted)?;
        let us = |of: &Finished| us(&question.cost, of);
        let cost_of = |cell: Cell| cells.iter().position(|&at| at == cell).map_or(0.0, |at| us(&finished[at]));
        let none_us = cost_of(Cell::NoCache);
        let share = |total_us: f64| if none_us > 0.0 { 1.0 - total_us / none_us } else { 0.0 };
        let at = |capacity: usize| -> Vec<&Finished> {
            let is_there = |cell: &Cell| matches!(cell, Cell::At { capacity: at, .. } if *at == capacity);
            cells.iter().zip(&finished).filter(|(cell, _)| is_there(cell)).map(|(_, finished)| finished).collect()
        };
        let line = |(nth, &capacity_pages): (usize, &u64)| {
            let best = at(nth).into_iter().min_by(|a, b| us(a).total_cmp(&us(b)));
            Line {
                capacity_pages,
                policy: best.and_then(|of| named(&of.row.policy)),
                refused: best.and_then(|of| of.row.refused).unwrap_or(0),
                hit_ratio: best.map_or(0.0, |of| of.row.hit_ratio),
                total_us: best.map_or(none_us, us),
                saved: best.map_or(0.0, |of| share(us(of))),
            }
        };
        let lines: Vec<Line> = sizes.iter().enumerate().map(line).collect();
        let best = lines.iter().filter(|line| line.policy.is_some()).map(|line| line.saved).fold(0.0, f64::max);
        let mut advice = Self {
            verdict: verdict(question, footprint, best),
            chosen: None,
            policy: None,
            total_us: none_us,
            widened_us: None,
            none_us,
            infinite_us: cost_of(Cell::Infinite),
            best,
            halves: [0.0; 2],
            remote_requests: trace.processes.iter().map(remote_requests).sum(),
            lines,
        };
        let enough = |line: &Line| line.policy.is_some() && line.saved >= best * (1.0 - question.within);
        if advice.verdict != Verdict::Use {
            return Ok(advice);
        }
        if let Some(chosen) = advice.lines.iter().position(enough) {
            let rows = at(chosen);
            let default = rows.iter().find(|of| of.row.policy == PolicyKind::default().name());
            let best = advice.lines[chosen].total_us;
            let row = default.filter(|of| none_us - us(of) >= (none_us - best) * (1.0 - AS_GOOD));
            advice.total_us = row.map_or(best, |of| us(of));
            advice.policy = row.map_or(advice.lines[chosen].policy, |of| named(&of.row.policy));
            let capacity = advice.lines[chosen].capacity_pages;
            let policy = advice.policy.and_then(|name| name.parse().ok()).unwrap_or_default();
            advice.halves = halves(question, trace, policy, capacity, watch)?;
            let config = Config { widen: Some(true), ..Config::new(capacity) };
            if !trace.summary.is_laid_out && config.can_widen(&*policy.build(&config.params())) {
                advice.widened_us = Some(cost(question, trace, policy, &config, watch)?);
            }
            advice.chosen = Some(chosen);
        }
        Ok(advice)
    }
}

fn verdict(question: &Question, footprint: &Footprint, best: f64) -> Verdict {
    match footprint.requests {
        few if few < LEAST_REQUESTS => Verdict::TooShort,
        _ if best < question.worth => Verdict::NotWorthIt,
        _ => Verdict::Use,
    }
}

/// Returns the cost of a result to its end: remaining regions are deregistered in one batch, because a cache that keeps
/// everything has only put that off.
fn us(cost: &Linear, of: &Finished) -> f64 {
    let Row { reg_pages, dereg_pages, total_us, .. } = of.row;
    total_us + rest_us(cost, reg_pages, dereg_pages)
}

fn rest_us(cost: &Linear, registered: u64, deregistered: u64) -> f64 {
    match registered.saturating_sub(deregistered) {
        0 => 0.0,
        pages => cost.deregister(pages),
    }
}

fn named(name: &str) -> Option<&'static str> {
    PolicyKind::ALL.iter().map(|kind| kind.name()).find(|known| *known == name)
}

/// Sizes in pages that are easily written: powers of two and those half between, from a thousandth of the footprint up to the first that
/// holds it.
fn sizes(footprint: u64) -> Vec<u64> {
    let all = (0..63).flat_map(|power| {
        let one = 1_u64 << power;
        [Some(one), (power > 0).then_some(one + one / 2)].into_iter().flatten()
    });
    let mut sizes = Vec::new();
    for size in all.filter(|size| *size >= footprint / 1000) {
        sizes.push(size);
        if size >= footprint {
            break;
        }
    }
    sizes
}

fn sweep(question: &Question, sizes: &[u64]) -> Sweep {
    Sweep {
        policies: question.policies.iter().map(|&policy| policy.into()).collect(),
        capacities: sizes.iter().map(|&pages| Capacity::of_pages(pages)).collect(),
        lines: true,
        base: Config { cost: question.cost, ..Config::new(1) },
        dereg: DeregCost::Batch,
        // As in the cache that programs use.
        recency: Recency::Deferred,
        bound: false,
    }
}

/// Returns the cost of a trace to its end, in microseconds.
fn cost(
    question: &Question,
    trace: &Trace,
    policy: PolicyKind,
    config: &Config,
    watch: &Watch<'_>,
) -> Result<f64, ReplayError> {
    let config = Config { cost: question.cost, ..config.clone() };
    let counted = replay(trace, &policy.into(), &config, Recency::Deferred, Some(watch))?;
    let rest = rest_us(&question.cost, counted.counters.reg_pages, counted.counters.dereg_pages);
    Ok(counted.cost(&question.cost, DeregCost::Batch).total_us() + rest)
}

/// Returns the choice's saving in each half, as shares.
fn halves(
    question: &Question,
    trace: &Trace,
    policy: PolicyKind,
    capacity: u64,
    watch: &Watch<'_>,
) -> Result<[f64; 2], ReplayError> {
    let mut saved = [0.0; 2];
    for (half, saved) in saved.iter_mut().enumerate() {
        let part = |process: &Process| {
            let middle = process.steps.len() / 2;
            let places = if half == 0 { 0..middle } else { middle..process.steps.len() };
            Process { steps: process.steps.range(places).collect() }
        };
        let half = Trace { processes: trace.processes.iter().map(part).collect(), ..Trace::default() };
        let cost = |policy, capacity| cost(question, &half, policy, &Config::new(capacity), watch);
        let none = cost(PolicyKind::None, 1)?;
        *saved = if none > 0.0 { 1.0 - cost(policy, capacity)? / none } else { 0.0 };
    }
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::{Access, PageRange};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use traces::{Kind, Step};

    fn step(kind: Kind, start: u64, pages: u64) -> Step {
        Step::new(kind, PageRange::new(start, pages).unwrap(), Access::LOCAL, false)
    }

    fn advice(steps: Vec<Step>) -> Advice {
        let trace = Trace { processes: vec![Process { steps: steps.into() }], ..Trace::default() };
        let question = Question {
            policies: vec![PolicyKind::Mrrc, PolicyKind::PinDown],
            cost: Linear::PAPER,
            within: 0.05,
            worth: 0.1,
        };
        let (replayed, footprint) = (AtomicU64::new(0), Footprint::of(&trace));
        let count = |steps| _ = replayed.fetch_add(steps, Ordering::Relaxed);
        let watch = Watch { stop: &AtomicBool::new(false), replayed: &count };
        let advice = Advice::of(&question, &trace, &footprint, &watch).unwrap();
        // All that is announced, if there is a choice.
        let announced = Advice::replays(&question, &footprint) * trace.processes[0].steps.len() as u64;
        let replayed = replayed.into_inner();
        assert!(if advice.choice().is_some() { replayed == announced } else { replayed < announced }, "{replayed}");
        advice
    }

    #[test]
    fn sizes_reach_from_a_thousandth_to_all() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(10), [1, 2, 3, 4, 6, 8, 12]);
        let sizes = sizes(1_000_000);
        assert_eq!((sizes[0], sizes.last()), (1024, Some(&1_048_576)));
    }

    #[test]
    fn the_knee_is_where_what_is_asked_for_again_fits() {
        // Ten buffers of four pages in turn, and now and then one that never comes again.
        let steps = (0..2000).map(|n| match n % 50 {
            0 => step(Kind::Request, 1000 + n * 4, 4),
            _ => step(Kind::Request, n % 10 * 8, 4),
        });
        let advice = advice(steps.collect());
        assert_eq!(advice.verdict, Verdict::Use);
        let capacity = advice.choice().unwrap().capacity_pages;
        assert!((40..=64).contains(&capacity), "{capacity}");
        assert!(advice.best > 0.9 && advice.is_steady(), "{advice:?}");
        assert!(
            advice
                .lines
                .iter()
                .filter(|line| line.capacity_pages < capacity)
                .all(|line| line.saved < 0.95 * advice.best)
        );
    }

    #[test]
    fn what_never_comes_again_is_not_worth_a_cache() {
        let advice = advice((0..1000).map(|n| step(Kind::Request, n * 4, 4)).collect());
        assert_eq!((advice.verdict, advice.chosen), (Verdict::NotWorthIt, None));
        // Nor what is registered once and held.
        let held = (0..400).map(|n| step(Kind::Acquire, n * 4, 4));
        assert_eq!(self::advice(held.collect()).verdict, Verdict::NotWorthIt);
    }

    #[test]
    fn a_few_requests_say_nothing() {
        let advice = advice((0..299).map(|_| step(Kind::Request, 1, 1)).collect());
        assert_eq!((advice.verdict, advice.choice()), (Verdict::TooShort, None));
    }

    #[test]
    fn advice_excludes_caches_below_use() {
        // 64 pages in use at once, each acquired anew and anew.
        let round =
            (0..64).flat_map(|n| [step(Kind::Acquire, n * 2, 1)]).chain((0..64).map(|n| step(Kind::Release, n * 2, 1)));
        let advice = advice(round.collect::<Vec<_>>().repeat(20));
        assert_eq!(advice.choice().unwrap().capacity_pages, 64);
        for line in &advice.lines {
            assert_eq!(line.refused == 0, line.capacity_pages >= 64, "{line:?}");
        }
    }

    #[test]
    fn widening_is_advised_where_it_pays() {
        let scan = |n: u64| step(Kind::Request, n % 3000, 1);
        let pays = advice((0..20_000).map(scan).collect());
        assert!(pays.widening_pays(), "{pays:?}");
        // Neighbours that nothing asks for.
        let apart = advice((0..20_000_u64).map(|n| step(Kind::Request, n % 3000 * 64, 1)).collect());
        assert!(apart.choice().is_some() && apart.widened_us.is_some() && !apart.widening_pays(), "{apart:?}");
        // As for peers: a cache would not widen them.
        let remote = |n: u64| Step::new(Kind::Request, PageRange::new(n % 3000, 1).unwrap(), Access::all(), false);
        let peers = advice((0..20_000).map(remote).collect());
        assert_eq!(peers.widened_us, Some(peers.total_us));
    }

    #[test]
    fn halves_that_differ_are_told() {
        let steps = (0..1000).map(|n| step(Kind::Request, if n < 500 { n % 5 * 2 } else { n * 2 }, 1));
        let advice = advice(steps.collect());
        assert!(!advice.is_steady(), "{:?}", advice.halves);
    }
}
