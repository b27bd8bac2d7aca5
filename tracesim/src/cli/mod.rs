//! The command line: arguments, output, and how it ends. Its work is the library's.

mod advise;
mod bound;
#[cfg(feature = "mrrc")]
mod calibrate;
mod choices;
mod compare;
mod compared;
mod convert;
mod failure;
mod form;
mod generate;
mod hanging;
mod heading;
mod info;
mod interrupt;
mod large_blocks;
mod merge;
mod mrc;
mod output;
mod progress;
mod real;
#[cfg(target_os = "linux")]
mod record;
mod replay;
mod report;
#[cfg(all(feature = "mrrc", feature = "frrwp"))]
mod reproduce;
mod run;
mod source;
mod table;
mod whole;
mod widening;

use crate::policies::{PolicyEntry, builtin_and};
use choices::chosen_of;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Which policy and which size for these buffers?
///
/// Replays traces of memory use through mrrc's own decisions, so what is counted here is what the cache would do.
#[derive(Parser, Debug)]
#[command(version, after_help = EXAMPLES)]
struct Command {
    #[command(subcommand)]
    what: What,
}

const EXAMPLES: &str = "\
Examples:
  tracesim reproduce                                  the paper's study, and which claims hold
  tracesim info requests.csv                          what is in it
  tracesim record -- mpirun -n 4 program              what it does with its buffers
  tracesim compare requests.csv                       every policy at 1 to 50 % of the footprint
  tracesim advise requests.csv                        which of them to run with
  tracesim replay -p mrrc -c 32MiB --json requests.csv

Each command's --help has more. Exit status: 0, 1 if the work failed, 2 for wrong usage, 130 if
interrupted; then what was finished is printed.";

#[derive(Subcommand, Debug)]
enum What {
    #[cfg(target_os = "linux")]
    Record(record::Record),
    Replay(replay::Replay),
    Compare(compare::Compare),
    Advise(advise::Advise),
    Merge(merge::Merge),
    Info(info::InfoCommand),
    Generate(generate::Generate),
    Convert(convert::Convert),
    Mrc(mrc::Mrc),
    Bound(bound::Bound),
    #[cfg(feature = "mrrc")]
    Calibrate(calibrate::Calibrate),
    #[cfg(all(feature = "mrrc", feature = "frrwp"))]
    Reproduce(reproduce::Reproduce),
}

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Command::command()
}

/// Returns the command with these policies as well.
fn command_with(policies: &[PolicyEntry]) -> clap::Command {
    let all = builtin_and(policies);
    let named = |line: clap::Command| line.mut_arg("policy", |arg| arg.value_parser(chosen_of(all.clone())));
    let line = command().mut_subcommand("compare", named);
    line.mut_subcommand("replay", |line| named(line).after_help(replay::help(&all)))
}

/// Runs the command. See [`main_with`](crate::main_with).
pub fn main_with(policies: &[PolicyEntry]) -> ExitCode {
    large_blocks::go_back_when_freed();
    let matches = command_with(policies).get_matches();
    let command = Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    #[cfg(target_os = "linux")]
    if let What::Record(command) = &command.what {
        // Signals are the program's.
        return command.run().unwrap_or_else(|failure| failure.tell());
    }
    interrupt::listen();
    let result = match command.what {
        #[cfg(target_os = "linux")]
        What::Record(_) => Ok(()),
        What::Replay(command) => command.run(),
        What::Compare(mut command) => command.run(),
        What::Advise(command) => command.run(),
        What::Merge(command) => command.run(),
        What::Info(command) => command.run(),
        What::Generate(command) => command.run(),
        What::Convert(command) => command.run(),
        What::Mrc(command) => command.run(),
        What::Bound(command) => command.run(),
        #[cfg(feature = "mrrc")]
        What::Calibrate(command) => command.run(),
        #[cfg(all(feature = "mrrc", feature = "frrwp"))]
        What::Reproduce(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
