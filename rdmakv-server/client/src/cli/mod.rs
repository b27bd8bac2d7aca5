//! The command `rdmakv`: asks key-value servers, over RDMA or TCP.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.

mod agent;
mod cluster;
mod far;
mod far_model;
mod files;
mod flags;
mod interrupt;
mod repairs;
mod values;
mod watch;

use crate::{About, Client, Cluster, Error, Everywhere, Operation, Options, Stats};
use clap::{CommandFactory, Parser};
use flags::{Command, Flags, ends};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The address of the server by default.
const HERE: &str = "shm:@rdmakv-11211,tcp:127.0.0.1:11211";

/// How long an operation may take by default.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Why the command comes to nothing.
pub(super) enum Failure {
    Client(Error),
    Io(String),
    Cluster(rdmakv_cluster::etcd::Error),
    /// The command line makes no sense.
    Usage(String),
    /// It was done, and the answer is no.
    No(String),
    /// The output has no reader any more.
    Hung,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<rdmakv_cluster::etcd::Error> for Failure {
    fn from(error: rdmakv_cluster::etcd::Error) -> Self {
        Self::Cluster(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Hung,
            _ => Self::Io(format!("write standard output: {error}")),
        }
    }
}

/// Returns the command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

/// Runs the command.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    let (code, said) = match run(&flags) {
        Ok(()) | Err(Failure::Hung) => return ExitCode::SUCCESS,
        Err(Failure::Client(error @ (Error::Address { .. } | Error::NoServer | Error::Key { .. }))) => {
            (2, error.to_string())
        }
        Err(Failure::Client(error @ Error::OutcomeUnknown { .. })) => (3, error.to_string()),
        // Not as the library has them: this has a flag.
        Err(Failure::Client(Error::TimedOut { about, after })) => {
            let after = after.as_millis();
            (
                1,
                format!(
                    "{about}: no answer within {after} ms; see whether the server is busy or stopped, or raise --timeout"
                ),
            )
        }
        Err(Failure::Client(Error::NotServed { about, after, why })) => {
            let after = after.as_millis();
            (
                1,
                format!(
                    "{about}: not served within {after} ms: {why}: see `rdmakv cluster status`, or raise --timeout"
                ),
            )
        }
        Err(Failure::Client(Error::Refused { about, said })) => (1, refused(&about, &said)),
        Err(Failure::Client(error)) => (1, error.to_string()),
        Err(Failure::Cluster(error @ rdmakv_cluster::etcd::Error::OutcomeUnknown { .. })) => (3, error.to_string()),
        Err(Failure::Cluster(error @ rdmakv_cluster::etcd::Error::Change(_))) => (2, error.to_string()),
        Err(Failure::Cluster(error)) => (1, error.to_string()),
        Err(Failure::Usage(said)) => (2, said),
        Err(Failure::Io(said) | Failure::No(said)) => (1, said),
    };
    // Where standard error is closed, the code says it.
    let _ = writeln!(io::stderr(), "rdmakv: {said}");
    ExitCode::from(code)
}

/// Returns the bounds of the client.
fn options(flags: &Flags, timeout: Duration) -> Result<Options, Failure> {
    // Not a flag: others see those.
    let login = match std::env::var("RDMAKV_LOGIN").ok().filter(|login| !login.is_empty()) {
        Some(login) => {
            let (name, password) = login.split_once(':').ok_or_else(|| {
                Failure::Usage("log in: RDMAKV_LOGIN has no colon: set it to NAME:PASSWORD".to_owned())
            })?;
            Some((name.to_owned(), password.to_owned()))
        }
        None => None,
    };
    Ok(Options { timeout, connect_timeout: timeout, one_sided: !flags.ask, login, ..Options::default() })
}

fn run(flags: &Flags) -> Result<(), Failure> {
    let timeout = flags.timeout.map_or(TIMEOUT, Duration::from_millis);
    if let Command::Cluster(cluster) = &flags.command {
        return cluster::run(cluster, (flags.etcd.as_deref(), &flags.cluster), options(flags, timeout)?);
    }
    if let Command::Mount { arguments } = &flags.command {
        return files::become_program(flags, "mount", arguments);
    }
    if let Command::Files { arguments } = &flags.command {
        return files::become_program(flags, "files", arguments);
    }
    let (servers, cluster) = servers_of(flags)?;
    let options = options(flags, timeout)?;
    if let Command::Agent { name, repair_rate, until_input_ends } = &flags.command {
        let cluster = cluster.ok_or_else(|| {
            let why = "find etcd: no address is given: use --etcd URL or the variable RDMAKV_ETCD";
            Failure::Usage(why.to_owned())
        })?;
        return agent::run(&cluster, (name, repair_rate * 1_000_000), options, *until_input_ends);
    }
    let mut client = match cluster {
        Some(cluster) => Client::of_cluster(&cluster, options)?,
        None => Client::with_options(&servers, options)?,
    };
    match &flags.command {
        Command::Get { keys, times, output } => {
            values::get(&mut client, &servers, keys, *times, output.as_deref(), flags.verbose)
        }
        Command::Set { key, value, input, ttl, flags: number, how } => {
            let value = values::to_store(value.as_deref(), input.as_deref())?;
            values::set(&mut client, key, value, (ends(*ttl), *number), *how, flags.verbose)
        }
        Command::Delete { keys } => {
            let mut missing = Vec::new();
            for key in keys {
                if !client.delete(key)? {
                    missing.push(format!("\"{}\"", key.escape_debug()));
                }
            }
            if missing.is_empty() { Ok(()) } else { Err(Failure::No(format!("there is no {}", missing.join(", ")))) }
        }
        Command::Touch { key, seconds, ttl } => {
            // One of them is required.
            let seconds = seconds.or(*ttl).unwrap_or(0);
            client.touch(key, ends(seconds))?.then_some(()).ok_or_else(|| none(key))
        }
        Command::Incr { key, by } => number(key, client.incr(key, *by)?),
        Command::Decr { key, by } => number(key, client.decr(key, *by)?),
        Command::Stats { kind } => stats(client.stats(kind)),
        Command::Watch { interval, count } => watch::watch(&mut client, Duration::from_secs_f64(*interval), *count),
        Command::Far { command } => far::run(&client, command),
        Command::Cluster(_) | Command::Agent { .. } | Command::Mount { .. } | Command::Files { .. } => Ok(()),
        Command::Version => everywhere(client.version(), |server, version, text| {
            let _ = writeln!(text, "{server}  {version}");
        }),
        Command::Flush { after } => everywhere(client.flush(Duration::from_secs(*after)), |_, _, _| {}),
    }
}

/// Returns the servers that are asked, or the cluster that they are of.
fn servers_of(flags: &Flags) -> Result<(Vec<String>, Option<Cluster>), Failure> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let of_cluster = |etcd: String| {
        let mut cluster = Cluster::new(etcd);
        cluster.name.clone_from(&flags.cluster);
        // Servers forget writes that clients do not give up after their 30 s.
        let longest = cluster.give_up_after;
        cluster.give_up_after = flags.timeout.map_or(longest, |timeout| Duration::from_millis(timeout).min(longest));
        (Vec::new(), Some(cluster))
    };
    match (&flags.etcd, &flags.servers[..]) {
        (Some(_), [_, ..]) => {
            let why = "find servers: both -s and --etcd are given: name servers, or the etcd of their cluster";
            Err(Failure::Usage(why.to_owned()))
        }
        (Some(etcd), []) => Ok(of_cluster(etcd.clone())),
        (None, servers @ [_, ..]) => Ok((servers.to_vec(), None)),
        (None, []) => Ok(match (variable("RDMAKV_SERVERS"), variable("RDMAKV_ETCD")) {
            (Some(servers), _) => (servers.split_whitespace().map(str::to_owned).collect(), None),
            (None, Some(etcd)) => of_cluster(etcd),
            (None, None) => (vec![HERE.to_owned()], None),
        }),
    }
}

/// Returns the meaning of a server's refusal for the user of the command.
fn refused(about: &About, said: &str) -> String {
    match about.operation {
        Operation::Stats if said == "ERROR" => {
            format!(
                "{about}: the server has no statistics of that kind; there are items, slabs, settings, sizes, reset"
            )
        }
        _ if said.contains("too large") => {
            format!(
                "{about}: the server says: {said}; it takes larger ones when it is started with a larger -I (and -m)"
            )
        }
        _ => format!("{about}: the server says: {said}"),
    }
}

pub(super) fn none(key: &str) -> Failure {
    Failure::No(format!("there is no \"{}\"", key.escape_debug()))
}

fn number(key: &str, number: Option<u64>) -> Result<(), Failure> {
    let number = number.ok_or_else(|| none(key))?;
    Ok(writeln!(io::stdout(), "{number}")?)
}

fn stats(stats: Everywhere<Stats>) -> Result<(), Failure> {
    let several = stats.len() > 1;
    everywhere(stats, |server, stats, text| {
        if several {
            let _ = writeln!(text, "{server}");
        }
        let name = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let value = stats.iter().map(|(_, value)| value.len()).filter(|&len| len <= 20).max().unwrap_or(0);
        for (named, said) in stats {
            // Numbers stand below each other, by their last digits.
            let _ = match said.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
                true => writeln!(text, "{named:name$}  {said:>value$}"),
                false => writeln!(text, "{named:name$}  {said}"),
            };
        }
    })
}

/// Shows each server's answer; then the errors of some of them, if there are any.
fn everywhere<T>(outcomes: Everywhere<T>, show: impl Fn(&str, &T, &mut String)) -> Result<(), Failure> {
    let (mut text, mut failed) = (String::new(), None);
    for (server, outcome) in outcomes {
        match outcome {
            Ok(outcome) => show(&server, &outcome, &mut text),
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    let _ = writeln!(io::stderr(), "rdmakv: {before}");
                }
            }
        }
    }
    io::stdout().write_all(text.as_bytes())?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}
