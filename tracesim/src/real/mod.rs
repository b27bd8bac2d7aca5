//! A trace through the real cache, with real pins: what is measured beside what the simulation predicts.
//!
//! ```text
//! trace ─► layout: the same pages at addresses of ours ─┬─► simulate::replay ──────────────► predicted
//!                                                       ├─► pinned: mrrc::Cache, io_uring ─► measured
//!                                                       └─► pinned: no cache, io_uring ────► without
//! ```
//!
//! One process of the trace after the other. The memory is there before the clock runs, as a program's buffers are; what the trace invalidates is unmapped and mapped anew. A request
//! that the cache refuses is registered for itself, as the shim does. Registrations are local, whatever the trace says:
//! an io_uring has no peers. A cache that widens is told which requests are for peers, as in the simulation: it does not widen them.

mod layout;
mod pinned;
mod status;
mod timed;

pub use timed::Spent;

use crate::policies::PolicyEntry;
use crate::report::bytes;
use crate::simulate::{Recency, ReplayError, Watch, replay};
use layout::Memory;
use mrrc::cache::{AcquireError, BuildError, ChangeError};
use mrrc::registrar::io_uring::IoUringError;
use mrrc_core::Config;
use std::io;
use traces::{Process, Trace};

/// The widest block that widening registers, in pages.
const BLOCK: u64 = 64;

/// The outcome, all processes together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Ranges asked for.
    pub requests: u64,
    /// The simulation's counts.
    pub predicted: Counted,
    /// The cache's counts.
    pub measured: Counted,
    /// Registrations and deregistrations with the cache.
    pub cached: Spent,
    /// The same without; none if what is in use at once may not be pinned at once.
    pub without: Option<Spent>,
    /// The most memory that the kernel says was pinned, in KiB, of the process that pinned most.
    pub pinned_kib: u64,
}

/// How requests were served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Requests that found everything in use.
    pub refused: u64,
    /// Registrations.
    pub registrations: u64,
    /// Pages registered.
    pub pages: u64,
}

impl Counted {
    /// Registrations that were not made, of one for each request that was served.
    pub fn avoided(&self, requests: u64) -> i64 {
        requests.saturating_sub(self.refused) as i64 - self.registrations as i64
    }

    fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.registrations += other.registrations;
        self.pages += other.pages;
    }
}

impl Outcome {
    /// By which share of what was predicted more was avoided, or less.
    pub fn difference(&self) -> f64 {
        let [predicted, measured] =
            [self.predicted, self.measured].map(|counted| counted.avoided(self.requests) as f64);
        match measured - predicted {
            0.0 => 0.0,
            difference => difference / predicted.abs().max(1.0),
        }
    }
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealError {
    /// More than may be pinned.
    #[error(
        "a capacity of {} is more than may be pinned here, {}: give a smaller --capacity, or raise RLIMIT_MEMLOCK (`ulimit -l`), \
         up to half of the memory",
        bytes(*pages),
        bytes(*may)
    )]
    Capacity {
        /// The capacity.
        pages: u64,
        /// The pages that may be pinned.
        may: u64,
    },
    /// More than there is.
    #[error(
        "the trace touches {} MiB in one process, and {} MiB of memory are left to fill: shorten it (--cut PAGES, or \
         record less), or replay it where there is more",
        pages >> 8, left >> 8
    )]
    Memory {
        /// Pages of the largest process.
        pages: u64,
        /// Pages that may be filled.
        left: u64,
    },
    /// Memory at addresses of ours.
    #[error("memory for the trace's buffers ({} MiB of addresses): {source}: see `ulimit -v` and vm.overcommit_memory", pages >> 8)]
    Map {
        /// Pages of the mapping.
        pages: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// No ring.
    #[error(
        "setting up an io_uring: {0}; that takes Linux 5.19 or later, kernel.io_uring_disabled at 0, and no filter of system calls \
         (a container's) that keeps it out"
    )]
    Ring(#[source] io::Error),
    /// No table of buffers.
    #[error(transparent)]
    Table(#[from] IoUringError),
    /// No cache.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A request failed.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// A registration without a cache failed: that of a request that the cache would not have.
    #[error(
        "register {pages} pages for themselves, as the cache would not have them: {source}: give a larger --capacity, or raise `ulimit -l`"
    )]
    Register {
        /// Its pages.
        pages: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The cache was told of a change in vain.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The simulation.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Replays the trace through a cache of this configuration, and without one.
///
/// # Errors
/// [`RealError`].
pub fn run(trace: &Trace, policy: &PolicyEntry, config: &Config, watch: &Watch<'_>) -> Result<Outcome, RealError> {
    // As in a simulation: what lies behind an object without an address is made up.
    let widen = if trace.summary.is_laid_out { Some(false) } else { config.widen };
    let config = Config { widen, ..config.clone() };
    let mut all = Outcome { without: Some(Spent::default()), ..Outcome::default() };
    for process in &trace.processes {
        let one = one(process, policy, &config, watch)?;
        all.requests += one.requests;
        all.predicted.add(one.predicted);
        all.measured.add(one.measured);
        all.cached.add(one.cached);
        all.without = all.without.zip(one.without).map(|(mut all, one)| {
            all.add(one);
            all
        });
        all.pinned_kib = all.pinned_kib.max(one.pinned_kib);
    }
    Ok(all)
}

fn one(process: &Process, policy: &PolicyEntry, config: &Config, watch: &Watch<'_>) -> Result<Outcome, RealError> {
    let ring = pinned::Ring::new()?;
    let limits = ring.limits();
    if let Some(may) = limits.pages.filter(|&may| config.capacity > may) {
        return Err(RealError::Capacity { pages: config.capacity, may });
    }
    let (mut memory, steps) = Memory::of(process, if policy.widens(config) { BLOCK } else { 1 })?;
    // The simulated cache must not hold more than the table can.
    let least = |set: Option<u64>, limit: Option<u64>| [set, limit].into_iter().flatten().min();
    let config = Config {
        max_regions: least(config.max_regions, limits.regions),
        max_region_pages: least(config.max_region_pages, limits.region_pages),
        ..config.clone()
    };
    let simulated = Trace { processes: vec![Process { steps: steps.iter().copied().collect() }], ..Trace::default() };
    let predicted = replay(&simulated, policy, &config, Recency::Deferred, Some(watch))?.counters;
    let (measured, cached, pinned_kib) = pinned::cached(ring, policy, &config, &steps, &mut memory, watch)?;
    let without = pinned::without(&steps, &mut memory, watch)?;
    Ok(Outcome {
        requests: predicted.requests,
        predicted: Counted { refused: predicted.all_in_use, registrations: predicted.regs, pages: predicted.reg_pages },
        measured,
        cached,
        without,
        pinned_kib,
    })
}
