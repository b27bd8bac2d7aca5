//! The command line: 0 when no violation was found, 1 when one was or the run failed, 2 when it was called wrongly.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cluster;
use crate::faults::{self, Faults};
use crate::record::Transport;
use crate::torture::Plan;
use crate::worker::{self, Habits};
use crate::{report, server, torture};
use clap::{Args, CommandFactory, Parser, Subcommand};

/// Tortures an rdmakv server and proves that every key was one linearizable register.
///
/// Client processes use the same keys at once, over every path that is asked for; they and the server are killed now and
/// then. Every answer is written down, and at the end each key's history is judged: is there one order of the operations
/// that explains all answers? A violation is printed with the operations in question.
#[derive(Debug, Parser)]
#[command(name = "rdmakv-check", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    plan: Plan,
}

const EXAMPLES: &str = "Examples:
  rdmakv-check                                       a million operations, a minute
  rdmakv-check --operations 10000000                 ten million
  rdmakv-check --kill-server-every 2 --seed 7        many restarts, other random numbers
  rdmakv-check --transports tcp,shm,iwarp            over fabrics too, on the same keys
  rdmakv-check --transports datagrams,tcp --loss 1   datagrams, of which some are lost, late or doubled
  rdmakv-check --transports hybrid,tcp --loss 1      the busiest of these clients move to connections, and back
  rdmakv-check --flash 64 --large --cold 150         more than memory holds: some values come from flash
  rdmakv-check --kernel --transports udp,tcp         GETs in the kernel, as root
  rdmakv-check cluster -n 100000                     servers with copies, over a real etcd
  rdmakv-check faults                                are faults found that are put in on purpose?
  rdmakv-check --at 127.0.0.1:11211 --flush-every 0  a memcached that runs already

Exit status: 0 no violation was found, 1 one was or the run failed, 2 wrong usage.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Builds the server and its clients with faults put in on purpose, and sees whether each is found
    ///
    /// A replacement that is seen before what it replaces is dead; an item that is dead only after the reply; a server
    /// that does not wait for the leases of the one before; a chunk that is reused while it is leased, which the sum in each
    /// item hides, and which shows as torn values once clients do not look at the sum.
    ///
    /// Of flash: a record whose sum is not compared. An old value that stays where an item is written or ends. A read that is believed
    /// though the item ended meanwhile.
    ///
    /// Of GETs in the kernel, with the feature bpf: programs that look once only, and a flush that they learn of late.
    ///
    /// Of datagrams: mutations that are executed again, because the server forgets that it executed them or executes them, or the client moves
    /// too early. Replies whose parts are of several executions.
    ///
    /// Runs without any fault are between them. To be called in the repository: it runs cargo.
    Faults(Faults),
    /// Tortures a cluster over a real etcd, and proves that no acknowledged write was lost
    ///
    /// Servers and etcds of its own. Clients keep copies of each key on several servers. Servers are killed, paused for longer than their
    /// right, drained, or cut off from others. etcd is killed, all of it or its leader. At most as many servers are lost as keys have copies to
    /// spare, until agents have repaired all. Every key is written first, and then each history has to be linearizable.
    Cluster(cluster::Plan),
    /// A client process of a run
    #[command(hide = true)]
    Work(Work),
}

#[derive(Debug, Args)]
struct Work {
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    first_thread: usize,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    lines: usize,
    #[arg(long, value_delimiter = ',')]
    transports: Vec<Transport>,
    #[command(flatten)]
    habits: Habits,
}

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    if let Some(code) = server::serve_if_asked() {
        return code;
    }
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Command::Work(work)) => {
            server::end_with_parent();
            worker::work(
                &work.directory,
                work.first_thread..work.first_thread + work.threads,
                work.lines,
                &work.transports,
                work.habits,
            )
            .map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Faults(faults)) => {
            faults::run(&faults).map(|good| if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Command::Cluster(plan)) => cluster::run(&plan).map(|run| {
            print!("{}", run.render());
            if run.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }),
        None => torture::run(&cli.plan).map(|run| {
            print!("{}", report::render(&run, cli.plan.habits.keys));
            if run.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }),
    };
    result.unwrap_or_else(|error| {
        eprintln!("rdmakv-check: {error}");
        ExitCode::FAILURE
    })
}
