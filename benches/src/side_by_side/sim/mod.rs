//! Our simulator beside libCacheSim, on the same file in the same run: what `side-by-side sim` measures.
//!
//! The trace is a generated one of Zipf popularity in a file of the format `oraclegeneral`, which both read. Laps take
//! turns on one CPU: ours, theirs, the next policy. A lap is a replay of the whole trace, in user CPU; ours replays
//! what lies in memory and theirs a file that it maps, so what reading took us is a row of its own.
//!
//! * `sim/POLICY/replay`: millions of requests a second, the best lap.
//! * `sim/POLICY/misses`: the share of requests that miss. Sizes and costs are as libCacheSim has them (every miss costs
//!   the same) and ranges match exactly, so policies of one name miss alike.
//! * `sim/POLICY/instructions`: a request, on a shorter trace, where there is a tool that counts ([`instructions`]).

mod file;
pub mod instructions;

use super::figure::Figure;
use super::report::{Row, Unit};
use crate::peer::libcachesim::{self, Ask, Environment, LibCacheSim};
use crate::pin;
use mrrc::cost::Linear;
use mrrc::policy::{Matching, PolicyKind};
use mrrc::{Config, PAGE};
use std::path::{Path, PathBuf};
use traces::Trace;
use traces::generate::zipf;
use tracesim::simulate::{Recency, replay};
use tracesim::sizes::Capacity;
use tracesim::survey::Survey;

/// What the table is called.
pub const TITLE: &str = "Replaying a trace: requests a second of user CPU, misses, instructions a request";

/// Those that are measured when nobody says which. `mrrc` and `probation` have no peer.
pub const USUAL: [PolicyKind; 7] = [
    PolicyKind::PinDown,
    PolicyKind::Fifo,
    PolicyKind::Sieve,
    PolicyKind::S3Fifo,
    PolicyKind::Gdsf,
    PolicyKind::Mrrc,
    PolicyKind::Probation,
];

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is replayed.
    pub workload: zipf::Options,
    /// Who replays it.
    pub policies: Vec<PolicyKind>,
    /// How much room they have.
    pub capacity: Capacity,
    /// Laps of each.
    pub rounds: usize,
    /// Where the trace and the peer's environment are kept.
    pub folder: PathBuf,
    /// Where all of it runs.
    pub cpu: usize,
}

/// A trace, read, and its peer, if it is there.
pub struct Sim {
    options: Options,
    trace: Trace,
    read: Figure,
    capacity_pages: u64,
    peer: Option<LibCacheSim>,
}

impl Sim {
    /// Generates the trace where it is not there from before, reads it, and starts the peer.
    ///
    /// # Errors
    /// What kept it from being written or read. A peer that does not start is one.
    pub fn new(options: Options, environment: Option<&Environment>) -> Result<Self, String> {
        pin::pin(options.cpu).map_err(|error| format!("CPU {}: {error}", options.cpu))?;
        let file = file::made(&options.folder, &options.workload)?;
        let before = pin::user_seconds();
        let trace = file::load(&file)?;
        let survey = Survey::of(&trace);
        let read = millions(survey.requests, pin::user_seconds() - before);
        let capacity_pages = options.capacity.pages(survey.footprint_pages);
        let peer = environment.map(|environment| environment.start(&file, Some(options.cpu))).transpose()?;
        Ok(Self { options, trace, read: Figure::once(read), capacity_pages, peer })
    }

    /// What is replayed, in a line.
    pub fn about(&self) -> String {
        let Options { workload, rounds, cpu, .. } = &self.options;
        format!("trace: zipf:{workload}; capacity {} pages; laps: {rounds}, on CPU {cpu}.", self.capacity_pages)
    }

    /// How fast we read the file.
    pub fn read(&self) -> Row {
        Row::new("sim/read", self.read, None, Unit::Millions).note("events, and their footprint")
    }

    /// Lets both replay it with this policy.
    ///
    /// # Errors
    /// What kept either from it.
    pub fn measure(&mut self, policy: PolicyKind) -> Result<Vec<Row>, String> {
        let requests: u64 = self.trace.processes.iter().map(|process| process.steps.len() as u64).sum();
        let peers = libcachesim::has(policy);
        let ask = Ask { policy, capacity: self.capacity_pages.saturating_mul(PAGE), requests: None };
        let mut rates = (Vec::new(), Vec::new());
        let mut missed = None;
        // The first lap warms up, where there is more than one.
        let warm = usize::from(self.options.rounds > 1);
        for lap in 0..self.options.rounds + warm {
            let before = pin::user_seconds();
            self.lap(Config { policy, ..Config::new(self.capacity_pages) })?;
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
        let exact = Config { policy, matching: Some(Matching::Exact), cost, ..Config::new(self.capacity_pages) };
        let share = |misses: u64| Figure::once(misses as f64 / requests.max(1) as f64);
        let ours = share(self.lap(exact)?);
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
    fn lap(&self, config: Config) -> Result<u64, String> {
        let counters = replay(&self.trace, &config, Recency::Exact, None).map_err(|error| error.to_string())?.counters;
        Ok(counters.requests - counters.exact - counters.subset - counters.covered)
    }
}

/// Replays the beginning of a file once.
fn once(file: &Path, policy: PolicyKind, capacity_pages: u64, requests: u64) -> Result<(), String> {
    let mut trace = file::load(file)?;
    let most = usize::try_from(requests).unwrap_or(usize::MAX);
    trace.processes.iter_mut().for_each(|process| process.steps.truncate(most));
    let config = Config { policy, ..Config::new(capacity_pages) };
    replay(&trace, &config, Recency::Exact, None).map(drop).map_err(|error| error.to_string())
}

fn millions(count: u64, seconds: f64) -> f64 {
    count as f64 / 1e6 / seconds
}
