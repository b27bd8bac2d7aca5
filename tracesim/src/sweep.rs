//! Many policies at many capacities on a trace in memory: cells, replayed in parallel.
//!
//! A cell is one replay. Their order is fixed by the sweep alone, so several machines agree on their shares
//! ([`shard`](crate::shard)).

use crate::bound;
use crate::footprint::Footprint;
use crate::policies::PolicyEntry;
use crate::row::{DeregCost, Label, Row};
use crate::simulate::{Recency, ReplayError, Watch, replay};
use crate::sizes::Capacity;
use mrrc_core::policy::{PolicyKind, Scheme};
use mrrc_core::{Config, ConfigError, PageRange};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use traces::Trace;

/// The policies, capacities and traces to compare.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The policies.
    pub policies: Vec<PolicyEntry>,
    /// With how much room each.
    pub capacities: Vec<Capacity>,
    /// Whether no cache and an infinite one stand beside them.
    pub lines: bool,
    /// The other settings of each cache, costs included; its policy and capacity are ignored.
    pub base: Config,
    /// How deregistrations are charged.
    pub dereg: DeregCost,
    /// When the core hears of hits.
    pub recency: Recency,
    /// Whether results say what no cache goes below, which takes some seconds for ten million requests.
    pub bound: bool,
}

/// One replay of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cell {
    /// Registers and deregisters at each request.
    NoCache,
    /// Everything stays.
    Infinite,
    /// A policy at the capacity of that place in the list.
    At {
        /// The place of the policy in [`Sweep::policies`].
        policy: usize,
        /// The place of its capacity in [`Sweep::capacities`].
        capacity: usize,
    },
}

/// The name under which the infinite cache stands beside the policies.
pub const INFINITE: &str = "infinite";

/// Returns the places of cells, smallest capacity first.
fn by_size(capacities: &[u64]) -> VecDeque<usize> {
    let mut places: Vec<usize> = (0..capacities.len()).collect();
    places.sort_by_key(|&at| capacities[at]);
    places.into()
}

/// Takes the next place, from the end if `last`.
fn next(left: &Mutex<VecDeque<usize>>, last: bool) -> Option<usize> {
    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
    if last { left.pop_back() } else { left.pop_front() }
}

/// The result of a cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// The result.
    pub row: Row,
    /// Releases of what was not in use.
    pub unmatched_releases: u64,
}

impl Sweep {
    /// Returns the cells, in the order of results: the lines, then capacity by capacity.
    pub fn cells(&self) -> Vec<Cell> {
        let lines = if self.lines { &[Cell::NoCache, Cell::Infinite][..] } else { &[] };
        let at = |capacity| (0..self.policies.len()).map(move |policy| Cell::At { policy, capacity });
        lines.iter().copied().chain((0..self.capacities.len()).flat_map(at)).collect()
    }

    /// Finds the first policy that cannot be configured so, and why.
    ///
    /// # Errors
    /// The policy and the reason.
    pub fn check(&self) -> Result<(), (PolicyEntry, ConfigError)> {
        let config = Config { capacity: 1, ..self.base.clone() };
        let check = |policy: &PolicyEntry| {
            let widens = policy.scheme(&config.params()).widens && config.widen != Some(false);
            // A cache would quietly stay exact, which is not the policy of that name.
            let config = Config { widen: if widens { Some(true) } else { config.widen }, ..config.clone() };
            policy.core(&config).map(drop).map_err(|error| (policy.clone(), error))
        };
        self.policies.iter().try_for_each(check)
    }

    /// Replays the cells on as many threads as rayon has. A cell that the watch stopped has no result.
    ///
    /// # Errors
    /// The first cell that fails otherwise.
    pub fn run(
        &self,
        trace: &Trace,
        footprint: &Footprint,
        cells: &[Cell],
        watch: &Watch<'_>,
    ) -> Result<Vec<Option<Finished>>, ReplayError> {
        let capacities: Vec<u64> = cells.iter().map(|&cell| self.capacity(cell, footprint)).collect();
        let bounds: Vec<Option<f64>> = if self.bound {
            let Some(bounds) = bound::lower_until(trace, &capacities, &self.base.cost, watch.stop) else {
                return Ok(vec![None; cells.len()]);
            };
            bounds.into_iter().map(Some).collect()
        } else {
            vec![None; capacities.len()]
        };
        let one = |at: usize| {
            if watch.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match self.replay(trace, cells[at], capacities[at], bounds[at], watch) {
                Err(ReplayError::Interrupted) => Ok(None),
                result => result.map(Some),
            }
        };
        let left = Mutex::new(by_size(&capacities));
        // Every second thread begins with the largest caches, so that not all have a large one in memory at once.
        let share = |thread: usize| {
            let mut done = Vec::new();
            while let Some(at) = next(&left, thread % 2 == 1) {
                let result = one(at);
                if result.is_err() {
                    left.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                done.push((at, result));
            }
            done
        };
        let threads = rayon::current_num_threads().min(cells.len());
        let mut done: Vec<_> = (0..threads).into_par_iter().with_max_len(1).flat_map_iter(share).collect();
        done.sort_unstable_by_key(|&(at, _)| at);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Pages as the result shows them.
    fn capacity(&self, cell: Cell, footprint: &Footprint) -> u64 {
        let footprint = footprint.largest_process_pages;
        match cell {
            Cell::NoCache => 0,
            Cell::Infinite => footprint,
            Cell::At { capacity, .. } => self.capacities[capacity].pages(footprint),
        }
    }

    fn replay(
        &self,
        trace: &Trace,
        cell: Cell,
        capacity_pages: u64,
        bound: Option<f64>,
        watch: &Watch<'_>,
    ) -> Result<Finished, ReplayError> {
        let base = self.base.clone();
        let (name, policy, config) = match cell {
            Cell::NoCache => {
                let none = PolicyKind::None;
                (none.name().to_owned(), &none.into(), Config { capacity: 1, widen: None, ..base })
            }
            Cell::Infinite => {
                let config = Config { capacity: PageRange::EVERYTHING.pages(), max_regions: None, widen: None, ..base };
                (INFINITE.to_owned(), &PolicyKind::PinDown.into(), config)
            }
            Cell::At { policy, .. } => {
                let policy = &self.policies[policy];
                (policy.label(&base), policy, Config { capacity: capacity_pages, ..base })
            }
        };
        let replayed = replay(trace, policy, &config, self.recency, Some(watch))?;
        let Config { resort, evict, .. } = config;
        let label = Label { trace: &trace.name, policy: &name, capacity_pages, resort, evict };
        let mut row = Row::new(&label, &replayed, &self.base.cost, self.dereg);
        row.processes = Some(trace.processes.len()).filter(|&processes| processes > 1);
        let scheme = policy.scheme(&config.params());
        let scheme = Scheme { widens: !trace.summary.is_laid_out && config.widen.unwrap_or(scheme.widens), ..scheme };
        row.lower_bound_us = bound.filter(|_| bound::holds_for(&scheme));
        Ok(Finished { row, unmatched_releases: replayed.unmatched_releases })
    }
}
