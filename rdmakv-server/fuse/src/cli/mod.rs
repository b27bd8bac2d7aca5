//! The command `rdmakv-fuse`.
//!
//! Public for what is beside this crate, and no part of what semantic versions are about.

mod agent;
mod files;
#[cfg(feature = "mount")]
mod mount;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use rdmakv_client::Cluster;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const EXAMPLES: &str = "\
Examples:
  rdmakv-fuse mount /mnt/run7 --backing /lustre/run7 --etcd http://10.0.0.1:2379
  rdmakv-fuse agent --etcd http://10.0.0.1:2379 --backing /lustre/run7
  rdmakv-fuse files status
  rdmakv-fuse files settle --timeout 600

Without --etcd, the variable RDMAKV_ETCD has the addresses.

Exit codes:
  0 done; 1 failed, or not settled in time; 2 wrong usage";

/// Files in the memory of a cluster, carried to a directory
#[derive(Parser, Debug)]
#[command(name = "rdmakv-fuse", version, after_help = EXAMPLES)]
struct Flags {
    /// The etcd of the cluster: http://HOST:PORT, with commas between several. With users, better in RDMAKV_ETCD: http://USER:PASSWORD@HOST:PORT
    #[arg(long, value_name = "URL,...", global = true)]
    etcd: Option<String>,
    /// The name of the cluster in etcd
    #[arg(long, value_name = "NAME", default_value = "main", global = true)]
    cluster: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Carries closed files to a directory, and shows them there once they are whole
    Agent(agent::Flags),
    /// Tells how much the directory does not have yet, and waits for it
    Files(files::Flags),
    /// Mounts the files at a directory, for programs that know nothing of the cluster
    #[cfg(feature = "mount")]
    Mount(mount::Flags),
}

/// Why the command comes to nothing.
enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// It failed, or the answer is no.
    No(String),
    /// The output has no reader any more.
    Hung,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Hung,
            _ => Self::No(format!("write standard output: {error}")),
        }
    }
}

impl From<crate::Error> for Failure {
    fn from(error: crate::Error) -> Self {
        Self::No(error.to_string())
    }
}

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    use_limits();
    let (code, said) = match run(&flags) {
        Ok(()) | Err(Failure::Hung) => return ExitCode::SUCCESS,
        Err(Failure::Usage(said)) => (2, said),
        Err(Failure::No(said)) => (1, said),
    };
    // Where standard error is closed, the code says it.
    let _ = writeln!(io::stderr(), "rdmakv-fuse: {said}");
    ExitCode::from(code)
}

/// Descriptors that a process may have, if its limit allows. Programs that close all of them in a loop still end soon.
const DESCRIPTORS: u64 = 1 << 20;

/// Changes the limits that the process inherits. Where that fails, they are as they were.
fn use_limits() {
    // A write beyond the limit on file sizes ends a process. With a handler, whose flag nothing looks at, it fails with `EFBIG`.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    // A mount has a descriptor for each file whose chunks go to the directory.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let etcd = flags.etcd.clone().or_else(|| std::env::var("RDMAKV_ETCD").ok()).filter(|etcd| !etcd.is_empty());
    let etcd = etcd.ok_or_else(|| {
        Failure::Usage("find etcd: no address is given: use --etcd URL or the variable RDMAKV_ETCD".to_owned())
    })?;
    let mut cluster = Cluster::new(etcd);
    cluster.name.clone_from(&flags.cluster);
    match &flags.command {
        Command::Agent(flags) => agent::run(&cluster, flags),
        Command::Files(flags) => files::run(&cluster, flags),
        #[cfg(feature = "mount")]
        Command::Mount(flags) => mount::run(&cluster, flags),
    }
}
