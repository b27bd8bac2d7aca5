//! Many policies at many capacities on a trace in memory: cells, replayed in parallel.
//!
//! A cell is one replay. Their order is fixed by the study alone, so several machines agree on who does which
//! ([`shard`](crate::shard)).

use crate::bound;
use crate::row::{DeregCost, Label, Row};
use crate::simulate::{Recency, ReplayError, Watch, replay};
use crate::sizes::Capacity;
use crate::survey::Survey;
use mrrc::policy::PolicyKind;
use mrrc::{Config, ConfigError, PageRange};
use rayon::prelude::*;
use std::sync::atomic::Ordering;
use traces::Trace;

/// What is to be compared.
#[derive(Clone, Debug)]
pub struct Study {
    /// Who.
    pub policies: Vec<PolicyKind>,
    /// With how much room each.
    pub capacities: Vec<Capacity>,
    /// Whether no cache and an infinite one stand beside them.
    pub lines: bool,
    /// Everything else that a cache is told, costs included; policy and capacity in it are ignored.
    pub base: Config,
    /// How deregistrations are charged.
    pub dereg: DeregCost,
    /// When the core hears of hits.
    pub recency: Recency,
    /// Whether results say what no cache goes below, which takes some seconds for ten million requests.
    pub bound: bool,
}

/// One replay of a study.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cell {
    /// Registers and deregisters at each request.
    NoCache,
    /// Everything stays.
    Infinite,
    /// A policy at the capacity of that place in the list.
    At {
        /// Who.
        policy: PolicyKind,
        /// The place of its capacity in [`Study::capacities`].
        capacity: usize,
    },
}

/// The name under which the infinite cache stands beside the policies.
pub const INFINITE: &str = "infinite";

/// What came of a cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// The result.
    pub row: Row,
    /// Releases of what was not in use.
    pub unmatched_releases: u64,
}

impl Study {
    /// The cells, in the order of results: the lines, then capacity by capacity.
    pub fn cells(&self) -> Vec<Cell> {
        let lines = if self.lines { &[Cell::NoCache, Cell::Infinite][..] } else { &[] };
        let at = |capacity| self.policies.iter().map(move |&policy| Cell::At { policy, capacity });
        lines.iter().copied().chain((0..self.capacities.len()).flat_map(at)).collect()
    }

    /// Finds the first policy that cannot be configured so, and why.
    ///
    /// # Errors
    /// The policy and the reason.
    pub fn check(&self) -> Result<(), (PolicyKind, ConfigError)> {
        let check = |&policy: &PolicyKind| {
            Config { policy, capacity: 1, ..self.base.clone() }.build().map(|_| ()).map_err(|error| (policy, error))
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
        survey: &Survey,
        cells: &[Cell],
        watch: &Watch<'_>,
    ) -> Result<Vec<Option<Finished>>, ReplayError> {
        let capacities: Vec<u64> = cells.iter().map(|&cell| self.capacity(cell, survey)).collect();
        let bounds: Vec<Option<f64>> = if self.bound {
            bound::lower(trace, &capacities, &self.base.cost).into_iter().map(Some).collect()
        } else {
            vec![None; capacities.len()]
        };
        let one = |((&cell, &capacity), bound)| {
            if watch.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match self.replay(trace, cell, capacity, bound, watch) {
                Err(ReplayError::Interrupted) => Ok(None),
                result => result.map(Some),
            }
        };
        cells.par_iter().zip(&capacities).zip(bounds).with_max_len(1).map(one).collect()
    }

    /// Pages as the result shows them.
    fn capacity(&self, cell: Cell, survey: &Survey) -> u64 {
        let footprint = survey.largest_footprint_pages;
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
        let (name, config) = match cell {
            Cell::NoCache => (PolicyKind::None.name(), Config { policy: PolicyKind::None, capacity: 1, ..base }),
            Cell::Infinite => {
                let capacity = PageRange::EVERYTHING.pages();
                (INFINITE, Config { policy: PolicyKind::PinDown, capacity, max_regions: None, ..base })
            }
            Cell::At { policy, .. } => (policy.name(), Config { policy, capacity: capacity_pages, ..base }),
        };
        let replayed = replay(trace, &config, self.recency, Some(watch))?;
        let Config { resort, evict, .. } = config;
        let label = Label { trace: &trace.name, policy: name, capacity_pages, resort, evict };
        let mut row = Row::new(&label, &replayed, &self.base.cost, self.dereg);
        row.processes = Some(trace.processes.len()).filter(|&processes| processes > 1);
        row.lower_bound_us = bound.filter(|_| bound::holds_for(config.policy));
        Ok(Finished { row, unmatched_releases: replayed.unmatched_releases })
    }
}
