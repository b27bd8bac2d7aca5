//! The command line: 0 when all went as it should, 1 when a run failed or its figures cannot be used, 2 when it was called
//! wrongly.

mod bursts;
mod bursty;
mod crowd;
mod flags;
mod hybrid;
mod latency;
mod null;
mod paper;
mod places;
mod replay;
mod run;
mod session;
mod study;
mod ycsb;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Loads memcached servers and measures their answers.
#[derive(Debug, Parser)]
#[command(
    name = "rdmakv-bench",
    version,
    after_help = "\
Examples:
  rdmakv-bench run 127.0.0.1:11211 -c 64 -s 100              as fast as it answers
  rdmakv-bench run 127.0.0.1:11211 -r 50000 --html run.html  50,000 a second, whatever it does
  rdmakv-bench ycsb a,b,f unix:/run/kv.sock
  rdmakv-bench replay access.log.gz 127.0.0.1:11211 --speed 60"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads and writes keys for some seconds
    Run(Box<run::Run>),
    /// The experiment of "Wimpy nodes with 10GbE": GETs of 1, 10 and 100 KB, and what they cost the server
    Paper(Box<paper::Paper>),
    /// Latencies of SETs, GETs and both, one at a time and with a window of them
    Latency(Box<latency::Latency>),
    /// The core workloads of YCSB, A to F: load, then run
    Ycsb(Box<ycsb::Ycsb>),
    /// A cache before a database: what misses cost beside what the cache takes
    Hybrid(Box<hybrid::Hybrid>),
    /// Blocks written and read as chunks, then silence: checkpoints and burst buffers
    Bursty(Box<bursty::Bursty>),
    /// Checkpoints through a mounted burst buffer, against the same straight to its disk
    Bursts(Box<bursts::Bursts>),
    /// Many clients of rdmakv-server, most of them idle: what they cost it in memory
    Crowd(Box<crowd::Crowd>),
    /// Replay a trace at its speed, faster, or as fast as it is answered
    Replay(Box<replay::Replay>),
    /// Serves what the others ask for and stores nothing: shows what the generator itself can do
    NullServer(null::NullServer),
}

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(run) => run.act(),
        Command::Paper(paper) => paper.act(),
        Command::Latency(latency) => latency.act(),
        Command::Ycsb(ycsb) => ycsb.act(),
        Command::Hybrid(hybrid) => hybrid.act(),
        Command::Bursty(bursty) => bursty.act(),
        Command::Bursts(bursts) => bursts.act(),
        Command::Crowd(crowd) => crowd.act(),
        Command::Replay(replay) => replay.act(),
        Command::NullServer(null) => null.act(),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("rdmakv-bench: {}", failure.what);
        ExitCode::from(failure.code)
    })
}

/// Why nothing came of it.
#[derive(Debug)]
struct Failure {
    code: u8,
    what: String,
}

impl Failure {
    /// It was called wrongly.
    fn usage(what: impl Into<String>) -> Self {
        Self { code: 2, what: what.into() }
    }

    /// It was tried.
    fn work(what: impl Into<String>) -> Self {
        Self { code: 1, what: what.into() }
    }
}
