//! Our simulator beside libCacheSim, on the same file in the same run: what `side-by-side sim` measures.
//!
//! The trace is a generated one of Zipf popularity in a file of the format `oraclegeneral`, which both read. Laps take
//! turns on one CPU: ours, theirs, the next policy. A lap is a replay of the whole trace, in user CPU. Ours replays
//! what lies in memory and theirs a file that it maps, so what reading took us is a row of its own. Whole commands have both.
//!
//! * `sim/POLICY/replay`: millions of requests a second, the best lap.
//! * `sim/POLICY/misses`: the share of requests that miss. Sizes and costs are as libCacheSim has them (every miss costs
//!   the same) and ranges match exactly, so policies of one name miss alike.
//! * `sim/POLICY/command`: requests a second of CPU of whole processes, the kernel's included ([`commands`]).
//! * `sim/POLICY/instructions`: a request, on a shorter trace, where there is a tool that counts ([`instructions`]).

pub mod commands;
mod file;
pub mod instructions;

use super::figure::Figure;
use super::report::{Row, Unit};
use crate::peer::libcachesim::{self, Ask, Environment, LibCacheSim};
use crate::pin;
use commands::Commands;
use mrrc::cost::Linear;
use mrrc::policy::Matching;
use mrrc::{Config, PAGE};
use std::path::{Path, PathBuf};
use traces::Trace;
use traces::generate::zipf;
use tracesim::footprint::Footprint;
use tracesim::policies::PolicyEntry;
use tracesim::simulate::{Recency, replay};
use tracesim::sizes::Capacity;

/// The title of the table.
pub const TITLE: &str = "Replaying a trace, start and our reading not included: requests a second of user CPU, misses, instructions a request";

/// Those that are measured by default. `mrrc` and `probation` have no peer.
pub const USUAL: [&str; 7] = ["pindown", "fifo", "sieve", "s3fifo", "gdsf", "mrrc", "probation"];

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The workload.
    pub workload: zipf::Options,
    /// The policies.
    pub policies: Vec<PolicyEntry>,
    /// How much room they have.
    pub capacity: Capacity,
    /// Laps of each.
    pub rounds: usize,
    /// The folder of the trace and the peer's environment.
    pub folder: PathBuf,
    /// The CPU of all of it.
    pub cpu: usize,
}

/// A trace, read, and its peer, if it is there.
pub struct Sim {
    options: Options,
    file: PathBuf,
    trace: Trace,
    environment: Option<Environment>,
    read: Figure,
    capacity_pages: u64,
    peer: Option<LibCacheSim>,
}

impl Sim {
    /// Generates the trace where it is not there from before, reads it, and starts the peer.
    ///
    /// # Errors
    /// The error of writing or reading. A peer that does not start is one.
    pub fn new(options: Options, environment: Option<&Environment>) -> Result<Self, String> {
        pin::pin(options.cpu).map_err(|error| format!("CPU {}: {error}", options.cpu))?;
        let file = file::made(&options.folder, &options.workload)?;
        let before = pin::user_seconds();
        let trace = file::load(&file)?;
        let footprint = Footprint::of(&trace);
        let read = millions(footprint.requests, pin::user_seconds() - before);
        let capacity_pages = options.capacity.pages(footprint.pages);
        let peer = environment.map(|environment| environment.start(&file, Some(options.cpu))).transpose()?;
        let environment = environment.cloned();
        Ok(Self { options, file, trace, environment, read: Figure::once(read), capacity_pages, peer })
    }

    /// Returns the workload in a line.
    pub fn about(&self) -> String {
        let Options { workload, rounds, cpu, .. } = &self.options;
        format!("trace: zipf:{workload}; capacity {} pages; laps: {rounds}, on CPU {cpu}.", self.capacity_pages)
    }

    /// Returns the comparison of whole commands.
    pub fn commands(&self) -> Commands<'_> {
        Commands::new(&self.options, &self.file, self.requests(), self.capacity_pages, self.environment.as_ref())
    }

    fn requests(&self) -> u64 {
        self.trace.processes.iter().map(|process| process.steps.len() as u64).sum()
    }

    /// How fast we read the file.
    pub fn read(&self) -> Row {
        Row::new("sim/read", self.read, None, Unit::Millions).note("events, and their footprint")
    }

    /// Lets both replay it with this policy.
    ///
    /// # Errors
    /// The reason why one of them did not.
    pub fn measure(&mut self, policy: &PolicyEntry) -> Result<Vec<Row>, String> {
        let requests = self.requests();
        let peers = libcachesim::has(policy.name());
        let ask = Ask { policy: policy.name(), capacity: self.capacity_pages.saturating_mul(PAGE), requests: None };
        let mut rates = (Vec::new(), Vec::new());
        let mut missed = None;
        // The first lap warms up, where there is more than one.
        let warm = usize::from(self.options.rounds > 1);
        for lap in 0..self.options.rounds + warm {
            let before = pin::user_seconds();
            self.lap(policy, &Config::new(self.capacity_pages))?;
            let took = pin::user_seconds() - before;
            let theirs = self.peer.as_mut().filter(|_| peers).map(|peer| peer.replay(&ask)).transpose()?;
            if let Some(theirs) = &theirs {
                if theirs.requests != requests {
                    return Err(format!("libCacheSim finds {} requests in the file, not {requests}", theirs.requests));
                }
                missed = Some(theirs.misses);
            }
            if lap >= warm {
                rates.0.push(millions(requests, took));
                rates.1.extend(theirs.map(|theirs| millions(requests, theirs.user_s)));
            }
        }
        let cost = Linear { reg_page: 0.0, reg_call: 1.0, dereg_page: 0.0, dereg_call: 0.0 };
        let exact = Config { matching: Some(Matching::Exact), cost, ..Config::new(self.capacity_pages) };
        let share = |misses: u64| Figure::once(misses as f64 / requests.max(1) as f64);
        let ours = share(self.lap(policy, &exact)?);
        let name = |what| format!("sim/{policy}/{what}");
        Ok(vec![
            Row::new(
                name("replay"),
                Figure::highest(rates.0),
                Some(rates.1).filter(|r| !r.is_empty()).map(Figure::highest),
                Unit::Millions,
            ),
            Row::new(name("misses"), ours, missed.map(share), Unit::Share),
        ])
    }

    /// Replays it with ours; the misses.
    fn lap(&self, policy: &PolicyEntry, config: &Config) -> Result<u64, String> {
        let counters =
            replay(&self.trace, policy, config, Recency::Exact, None).map_err(|error| error.to_string())?.counters;
        Ok(counters.requests - counters.exact - counters.subset - counters.covered)
    }
}

/// Replays the beginning of a file once.
fn once(file: &Path, policy: &PolicyEntry, capacity_pages: u64, requests: u64) -> Result<(), String> {
    let mut trace = file::load(file)?;
    let most = usize::try_from(requests).unwrap_or(usize::MAX);
    trace.processes.iter_mut().for_each(|process| process.steps.truncate(most));
    let config = Config::new(capacity_pages);
    replay(&trace, policy, &config, Recency::Exact, None).map(drop).map_err(|error| error.to_string())
}

fn millions(count: u64, seconds: f64) -> f64 {
    count as f64 / 1e6 / seconds
}
