//! `side-by-side`: ours beside the peers, from interleaved runs on pinned threads. The measurements are
//! in [`side_by_side`](crate::side_by_side).

mod all;
mod cache;
mod output;
mod parts;
mod sim;

use crate::side_by_side::far;
use crate::side_by_side::kv::OURS;
use crate::side_by_side::remote;
use crate::side_by_side::resilience::CLIENT;
use crate::side_by_side::sim::commands::TRACESIM;
use crate::side_by_side::sim::instructions;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Measures ours beside its peers, in turns, on pinned threads
#[derive(Parser)]
#[command(name = "side-by-side", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    subject: Option<Subject>,
}

#[derive(Subcommand)]
enum Subject {
    /// Everything, one part after the other: what is done if nothing is said
    All(all::All),
    /// The registration cache, beside UCX's
    Cache(cache::Cache),
    /// The simulator, beside libCacheSim
    Sim(sim::Sim),
    /// The fabrics: shared memory beside memcpy, iWARP beside plain TCP
    Fabric(parts::Fabric),
    /// FRRWP beside the traditional process, over both fabrics
    Handshake(parts::Handshake),
    /// The key-value server, beside memcached
    Kv(parts::Kv),
    /// Keys that survive their servers, compared with one copy
    Resilience(parts::Resilience),
    /// GETs over UDP that the kernel answers (--xdp), beside memcached's over UDP
    Kernel(parts::Kernel),
}

const EXAMPLES: &str = "\
Examples:
  side-by-side                                      everything, a quarter of an hour
  side-by-side all --quick                          whether everything runs, a minute
  side-by-side all --markdown benches/RESULTS.md    and a page of it
  side-by-side cache --only hit                     one part of it, and of that some rows

Each command's --help has more. Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    // Our server: this program under its name.
    if std::env::args_os().next().is_some_and(|name| name == OURS) {
        return rdmakv_server::startup::main();
    }
    // The agent of a server: this program as `rdmakv`.
    if std::env::args_os().next().is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == CLIENT)) {
        return rdmakv_client::cli::main();
    }
    // Our simulator: this program under its name.
    if std::env::args_os().next().is_some_and(|name| name == TRACESIM) {
        return tracesim::main_with(&[]);
    }
    // Its own process, started to have its instructions counted: not for users.
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == instructions::LAP
    {
        return instructions::lap(rest).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    // The other end of a connection: not for users either.
    if let Some((first, rest)) = arguments.split_first()
        && first == remote::FAR
    {
        return far::run(rest).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    let done = match &Cli::parse().subject {
        None => all::run(&all::All::default()),
        Some(Subject::All(all)) => all::run(all),
        Some(Subject::Cache(cache)) => cache::run(cache),
        Some(Subject::Sim(sim)) => sim::run(sim),
        Some(Subject::Fabric(fabric)) => parts::fabric(fabric),
        Some(Subject::Handshake(handshake)) => parts::handshake(handshake),
        Some(Subject::Kv(kv)) => parts::kv(kv),
        Some(Subject::Resilience(resilience)) => parts::resilience(resilience),
        Some(Subject::Kernel(kernel)) => parts::kernel(kernel),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Stop::Output(error)) => failed(&format!("the figures could not be written: {error}")),
        Err(Stop::Measuring(error)) => failed(&error),
        Err(Stop::Usage(error)) => Cli::command().error(ErrorKind::InvalidValue, error).exit(),
    }
}

fn failed(error: &str) -> ExitCode {
    eprintln!("side-by-side: {error}");
    ExitCode::FAILURE
}

/// Returns the command line, without the file that it is saved to.
fn asked() -> String {
    let mut words = vec!["side-by-side".to_owned()];
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        if word == "--save" {
            arguments.next();
        } else {
            words.push(word);
        }
    }
    words.join(" ")
}

/// Why a run ends early.
enum Stop {
    Usage(String),
    Measuring(String),
    Output(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0 to 3600".into()),
    }
}
