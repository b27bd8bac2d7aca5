//! The command line: 0 when all went as it should, 1 when the run failed or its figures cannot be used, 2 when it was
//! called wrongly.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use crate::{Arrivals, Choice, Plan, Protocol, Second, Sizes, Target, null::Null, render, run_watched};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

/// Makes load for memcached servers, and measures how they bear it.
#[derive(Debug, Parser)]
#[command(name = "rdmakv-bench", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  rdmakv-bench run                                             the usual load on 127.0.0.1:11211, five seconds
  rdmakv-bench run -c 64 -s 10-1k --choice zipf server:11211   many connections, values of many sizes
  rdmakv-bench run -r 50000 --format json server:11211         an open loop, and a report for programs
  rdmakv-bench null-server                                     what the generator itself can do

Each command's --help has more. Exit status: 0 measured, 1 not, or not to be used, 2 wrong usage.";

const RUN_EXAMPLES: &str = "\
Examples:
  rdmakv-bench run                                   GETs and SETs of 1 KiB, 30:1, over 16 connections
  rdmakv-bench run -t 2 -c 64 -d 8 --pin 2,3          two threads on their CPUs, eight requests on each connection
  rdmakv-bench run -r 50000 -T 60 --log seconds.hlog server:11211
                                                      50,000 a second whatever comes back, with histograms
  rdmakv-bench run -m 1:0 --verify unix:/run/kv.sock  reads only, each compared
  rdmakv-bench run --protocol binary udp:127.0.0.1:11211

Exit status: 0 measured, 1 it failed or its figures cannot be used, 2 wrong usage.";

const NULL_EXAMPLES: &str = "\
Examples:
  rdmakv-bench null-server                    on a free port, which it prints
  rdmakv-bench null-server -s 100 unix:/tmp/null.sock

Exit status: 1 it cannot listen, 2 wrong usage; otherwise it serves until it is ended.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads and writes keys for some seconds
    Run(Box<Run>),
    /// Serves what `run` asks for and stores nothing: shows what the generator itself can do
    NullServer(NullServer),
}

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
struct Run {
    /// The server: HOST:PORT, udp:HOST:PORT, unix:PATH
    #[arg(default_value = "127.0.0.1:11211")]
    target: Target,
    /// text, meta or binary
    #[arg(long, default_value = "text")]
    protocol: Protocol,
    /// Threads that make requests
    #[arg(short = 't', long, default_value_t = 1)]
    threads: usize,
    /// Connections of all threads
    #[arg(short = 'c', long, default_value_t = 16)]
    connections: usize,
    /// Requests under way on each connection (closed loop)
    #[arg(short = 'd', long, default_value_t = 1)]
    depth: usize,
    /// Requests a second of all threads: an open loop, latencies count from when requests should have started
    #[arg(short = 'r', long, value_name = "N", conflicts_with = "depth")]
    rate: Option<f64>,
    /// How requests of an open loop arrive: poisson, constant
    #[arg(long, default_value = "poisson")]
    arrivals: Arrivals,
    /// How many keys
    #[arg(short = 'k', long, default_value_t = 10_000)]
    keys: u64,
    /// Which keys: uniform, zipf[:SKEW], earliest[:SKEW], latest[:SKEW], hotspot[:PART:SHARE], sequential
    #[arg(long, default_value = "uniform")]
    choice: Choice,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_name = "BYTES")]
    key_len: usize,
    /// What keys start with
    #[arg(long, default_value = "key", value_name = "TEXT")]
    key_prefix: String,
    /// Bytes of a value: 100, 1k, 10-1k, or 32=9,100k=1 (with weights)
    #[arg(short = 's', long, default_value = "1024", value_name = "BYTES")]
    size: Sizes,
    /// GETs to SETs, such as 30:1; 1:0 only reads [default: 30:1, over UDP 1:0]
    #[arg(short = 'm', long, value_name = "GETS:SETS", value_parser = mix)]
    mix: Option<f64>,
    /// Do not write the keys before
    #[arg(long)]
    no_load: bool,
    /// Where to write them, if elsewhere (over UDP: TCP at the same port)
    #[arg(long, value_name = "SERVER")]
    load_at: Option<Target>,
    /// Compare each value with what was written
    #[arg(long)]
    verify: bool,
    /// Seconds that count
    #[arg(short = 'T', long, default_value = "5", value_name = "SECONDS", value_parser = seconds)]
    duration: Duration,
    /// Seconds before them
    #[arg(short = 'w', long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    warm_up: Duration,
    /// Seconds that an answer may take before the run ends
    #[arg(long, default_value = "5", value_name = "SECONDS", value_parser = seconds)]
    timeout: Duration,
    /// Seconds that a datagram's answer may take before it is lost
    #[arg(long, default_value = "0.5", value_name = "SECONDS", value_parser = seconds)]
    datagram_timeout: Duration,
    /// Put the threads on these CPUs, one each and round again: 1,2
    #[arg(long, value_delimiter = ',', value_name = "CPU")]
    pin: Vec<usize>,
    /// Ask for answers again and again instead of sleeping
    #[arg(long)]
    spin: bool,
    /// Seconds that one request in a hundred may start late before an open loop is invalid
    #[arg(long, default_value = "0.001", value_name = "SECONDS", value_parser = seconds)]
    tolerance: Duration,
    /// The server's process, for its CPU time (else the one that listens there)
    #[arg(long, value_name = "PID")]
    server_pid: Option<i32>,
    /// What random numbers start from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How to print the report
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Write each second's histograms to this file, as HdrHistogram's tools read them
    #[arg(long, value_name = "FILE")]
    log: Option<std::path::PathBuf>,
    /// No progress on stderr
    #[arg(short = 'q', long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = NULL_EXAMPLES)]
struct NullServer {
    /// Where to listen: HOST:PORT (0 is a free one), udp:HOST:PORT, unix:PATH
    #[arg(default_value = "127.0.0.1:0")]
    listen: String,
    /// Bytes of a value, as the generator has them
    #[arg(short = 's', long, default_value = "1024", value_name = "BYTES")]
    size: Sizes,
}

fn mix(text: &str) -> Result<f64, String> {
    let wrong = || "two numbers are needed, such as 30:1".to_owned();
    let (gets, sets) = text.split_once(':').ok_or_else(wrong)?;
    let (gets, sets): (f64, f64) = (gets.parse().map_err(|_| wrong())?, sets.parse().map_err(|_| wrong())?);
    let share = sets / (gets + sets);
    if gets >= 0.0 && sets >= 0.0 && share.is_finite() { Ok(share) } else { Err(wrong()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>().map_err(|_| "a number of seconds is needed")?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// What may be asked, for manual pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => run.act(),
        Command::NullServer(null) => null.act(),
    }
}

fn fail(code: u8, wrong: &str) -> ExitCode {
    eprintln!("rdmakv-bench: {wrong}");
    ExitCode::from(code)
}

impl Run {
    fn plan(&self) -> Plan {
        let mut plan = Plan::new(self.target.clone());
        plan.protocol = self.protocol;
        plan.threads = self.threads;
        plan.connections = self.connections;
        plan.depth = self.depth;
        plan.rate = self.rate;
        plan.arrivals = self.arrivals;
        plan.keys = self.keys;
        plan.choice = self.choice;
        plan.key_len = self.key_len;
        plan.key_prefix.clone_from(&self.key_prefix);
        plan.sizes = self.size.clone();
        let udp = matches!(self.target, Target::Udp(_));
        plan.sets = self.mix.unwrap_or(if udp { 0.0 } else { plan.sets });
        plan.load = !self.no_load;
        plan.load_at.clone_from(&self.load_at);
        plan.verify = self.verify;
        plan.warm_up = self.warm_up;
        plan.duration = self.duration;
        plan.timeout = self.timeout;
        plan.datagram_timeout = self.datagram_timeout;
        plan.pin.clone_from(&self.pin);
        plan.spin = self.spin;
        plan.tolerance = self.tolerance;
        plan.server_pid = self.server_pid;
        plan.seed = self.seed;
        plan
    }

    fn act(&self) -> ExitCode {
        let plan = self.plan();
        if let Err(wrong) = plan.check() {
            return fail(2, &wrong);
        }
        raise_descriptors();
        let mut log = match self.log.as_ref().map(File::create).transpose() {
            Ok(file) => file.map(BufWriter::new),
            Err(error) => {
                return fail(1, &format!("--log {}: {error}", self.log.clone().unwrap_or_default().display()));
            }
        };
        if !self.quiet && plan.load {
            eprintln!("writing {} keys to {}", plan.keys, self.target);
        }
        let mut written = Ok(());
        let done = match &mut log {
            None => run_watched(&plan, |second| self.show(second)),
            Some(file) => {
                let mut serializer = V2DeflateSerializer::new();
                let mut builder = IntervalLogWriterBuilder::new();
                builder.add_comment(&format!("rdmakv-bench, latencies in nanoseconds, {}", self.target));
                builder.with_start_time(SystemTime::now());
                match builder.begin_log_with(file, &mut serializer) {
                    Err(error) => return fail(1, &format!("--log: {error}")),
                    Ok(mut log) => run_watched(&plan, |second| {
                        self.show(second);
                        for (tag, histogram) in [("GET", second.gets), ("SET", second.sets)] {
                            if !histogram.is_empty() && written.is_ok() {
                                let start = second.at.saturating_sub(Duration::from_secs(1));
                                let tag = Tag::new(tag);
                                written = log.write_histogram(histogram, start, Duration::from_secs(1), tag);
                            }
                        }
                    }),
                }
            }
        };
        let report = match done {
            Ok(report) => report,
            Err(wrong) => return fail(1, &wrong),
        };
        let flushed = log.map_or(Ok(()), |mut file| file.flush());
        let text = match self.format {
            Format::Table => render(&report),
            Format::Json => match serde_json::to_string(&report) {
                Ok(line) => line + "\n",
                Err(error) => return fail(1, &format!("the report as JSON: {error}")),
            },
        };
        // Who does not read to the end wants no more.
        let _ = std::io::stdout().write_all(text.as_bytes());
        if let Err(error) = written.map_err(|error| error.to_string()).and(flushed.map_err(|error| error.to_string())) {
            return fail(1, &format!("--log: {error}"));
        }
        if !report.is_good() {
            let why = report.ended_early.iter().chain(&report.invalid_because).next().cloned();
            return fail(1, &why.unwrap_or_else(|| "values were not what was written".into()));
        }
        ExitCode::SUCCESS
    }

    fn show(&self, second: &Second<'_>) {
        if self.quiet {
            return;
        }
        let at = |quantile| second.gets.value_at_quantile(quantile) as f64 / 1e3;
        let mut line = format!("{:>4.0} s  {:>9} answers", second.at.as_secs_f64(), second.answers);
        if !second.gets.is_empty() {
            line += &format!("  GET p50 {:.0} us, p99 {:.0} us, max {:.0} us", at(0.5), at(0.99), at(1.0));
        }
        if second.misses > 0 {
            line += &format!("  {} misses", second.misses);
        }
        if second.failures > 0 {
            line += &format!("  {} FAILED", second.failures);
        }
        eprintln!("{line}");
    }
}

/// As many descriptors as the system lets us have.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

impl NullServer {
    fn act(&self) -> ExitCode {
        let null = match Null::bind(&self.listen, &self.size) {
            Ok(null) => null,
            Err(wrong) => return fail(1, &wrong),
        };
        raise_descriptors();
        println!("listening on {}", null.target());
        match null.serve(&AtomicBool::new(false)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(1, &format!("serving: {error}")),
        }
    }
}
