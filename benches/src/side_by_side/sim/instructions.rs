//! Instructions a request: the figure that load cannot bend.
//!
//! Two processes are counted: one that replays the whole trace, and one that stops half-way. They differ by the second half,
//! without starting and reading. The counter is `perf stat` where the machine lets it count, else valgrind, which takes some
//! fifty times as long. So the trace is a shorter one, of the same shape.

use super::{Options, Row, Unit, file};
use crate::peer::libcachesim::{self, Ask, Environment};
use crate::side_by_side::figure::Figure;
use mrrc::PAGE;
use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use traces::generate::zipf;
use tracesim::footprint::Footprint;
use tracesim::policies::{PolicyEntry, UnknownPolicy};

/// How many times shorter the trace is, unless it is short already.
const SHORTER: u64 = 20;

/// Short already.
const SHORT: u64 = 100_000;

/// The argument by which the program is told to be a lap (`sim::once`).
pub const LAP: &str = "sim-lap";

/// The counter of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// The processor, through `perf stat`.
    Perf,
    /// valgrind's cachegrind, without its caches.
    Valgrind,
}

impl Counter {
    /// Returns the first that works.
    ///
    /// # Errors
    /// The package to install.
    pub fn find() -> Result<Self, String> {
        let works = |counter: &Self| counter.count(&["true".into()], "").is_ok();
        [Self::Perf, Self::Valgrind].into_iter().find(works).ok_or_else(|| {
            "instructions are not counted: perf has no counter here, and there is no valgrind to install in its place".into()
        })
    }

    /// Runs a command with this input to its end; its instructions.
    fn count(self, command: &[OsString], input: &str) -> Result<u64, String> {
        let words: &[&str] = match self {
            Self::Perf => &["perf", "stat", "-x,", "-e", "instructions:u", "--"],
            Self::Valgrind => {
                &["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "--"]
            }
        };
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input is none to complain about.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|error| format!("{}: {error}", words[0]))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let count = if output.status.success() { self.read(&said) } else { None };
        count.ok_or_else(|| format!("{}: {}", words[0], said.lines().last().unwrap_or("it said nothing")))
    }

    /// Finds the count in what the tool says.
    fn read(self, said: &str) -> Option<u64> {
        let digits = |text: &str| text.trim().replace(',', "").parse().ok();
        match self {
            Self::Perf => said.lines().find(|line| line.contains("instructions"))?.split(',').next().and_then(digits),
            Self::Valgrind => digits(said.lines().find_map(|line| line.split_once("refs:"))?.1),
        }
    }
}

/// A shorter trace and the counter.
pub struct Instructions {
    counter: Counter,
    file: PathBuf,
    program: PathBuf,
    requests: u64,
    capacity_pages: u64,
    peer: Option<Environment>,
}

impl Instructions {
    /// Makes the trace.
    ///
    /// # Errors
    /// That there is no counter, or what kept the trace from being written or read.
    pub fn new(options: &Options, environment: Option<&Environment>) -> Result<Self, String> {
        let counter = Counter::find()?;
        let whole = &options.workload;
        let requests = (whole.requests / SHORTER).max(SHORT).min(whole.requests);
        let objects = (u64::from(whole.objects) * requests / whole.requests.max(1)).max(1);
        let workload = zipf::Options { objects: objects.try_into().unwrap_or(u32::MAX), requests, ..whole.clone() };
        let file = file::made(&options.folder, &workload)?;
        let footprint = Footprint::of(&file::load(&file)?);
        let program = env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
        let capacity_pages = options.capacity.pages(footprint.pages);
        Ok(Self { counter, file, program, requests: footprint.requests, capacity_pages, peer: environment.cloned() })
    }

    /// Counts both.
    ///
    /// # Errors
    /// The reason why one of them was not counted.
    pub fn measure(&self, policy: &PolicyEntry) -> Result<Row, String> {
        let ours = self.a_request(|requests| {
            let mut command: Vec<OsString> = vec![self.program.clone().into(), LAP.into(), self.file.clone().into()];
            command.extend([self.capacity_pages.to_string(), policy.to_string(), requests.to_string()].map(Into::into));
            self.counter.count(&command, "")
        })?;
        let theirs = |environment: &Environment| {
            self.a_request(|requests| {
                let capacity = self.capacity_pages.saturating_mul(PAGE);
                let ask = serde_json::to_string(&Ask { policy: policy.name(), capacity, requests: Some(requests) });
                self.counter.count(&environment.arguments(&self.file), &ask.map_err(|error| error.to_string())?)
            })
        };
        let peer = self.peer.as_ref().filter(|_| libcachesim::has(policy.name())).map(theirs).transpose()?;
        let row = Row::new(format!("sim/{policy}/instructions"), ours, peer, Unit::Count);
        Ok(row.note(format!("by {}, at {} requests", self.counter.name(), self.requests)))
    }

    /// Instructions a request, in the second half.
    fn a_request(&self, count: impl Fn(u64) -> Result<u64, String>) -> Result<Figure, String> {
        let half = self.requests / 2;
        let second = count(self.requests)?.saturating_sub(count(half)?);
        Ok(Figure::once((second as f64 / (self.requests - half).max(1) as f64).round()))
    }
}

impl Counter {
    fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Valgrind => "valgrind",
        }
    }
}

/// Does what the arguments after [`LAP`] say.
///
/// # Errors
/// The reason why it was not done, or the right arguments.
pub fn lap(arguments: &[OsString]) -> Result<(), String> {
    let usage = || format!("{LAP} FILE PAGES POLICY REQUESTS");
    let [file, rest @ ..] = arguments else { return Err(usage()) };
    let words: Option<Vec<&str>> = rest.iter().map(|word| word.to_str()).collect();
    let Some([pages, policy, requests]) = words.as_deref() else { return Err(usage()) };
    let number = |word: &str| word.parse::<u64>().map_err(|_| usage());
    let policy: PolicyEntry = policy.parse().map_err(|error: UnknownPolicy| error.to_string())?;
    super::once(Path::new(file), &policy, number(pages)?, number(requests)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_the_tools_print_them() {
        assert_eq!(Counter::Perf.read("123456,,instructions:u,1000,100.00,,\n"), Some(123_456));
        assert_eq!(Counter::Perf.read("<not supported>,,instructions:u,0,100.00,,\n"), None);
        let said = "==7== Cachegrind, a profiler\n==7== \n==7== I refs:        1,234,567\n";
        assert_eq!(Counter::Valgrind.read(said), Some(1_234_567));
        assert_eq!(Counter::Valgrind.read("==7== nothing"), None);
    }
}
