//! The agent as a process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rdmakv_client::{Cluster, Options};
use rustix::io::Errno;

use super::Failure;
use crate::life::Turn;
use crate::{Agent, Round, Swept};

/// The pause after a round, at least. It is as long as the round if that took longer.
const REST: Duration = Duration::from_millis(200);

/// The pause after a round in which names failed and none was shown, after one without an answer, and between attempts to work again.
const AGAIN: Duration = Duration::from_secs(5);

/// How often what dead mounts left behind is looked for, and for how long its data files did not change.
const SWEEP: Duration = Duration::from_secs(600);

/// Failures that are remembered, so that each is told once.
const TOLD: usize = 1000;

const EXAMPLES: &str = "\
One agent works for a whole cluster, on any machine that has the directory. One that starts later waits until the first one has \
ended, for 12 s after it was killed. It may be killed at any time. While the cluster is away, an agent that has worked or waited tries \
again, and ends by a signal only.

Examples:
  rdmakv-fuse agent --etcd http://10.0.0.1:2379 --backing /lustre/run7
  rdmakv-fuse agent --backing /lustre/run7 --keep 4096      4 GiB of files stay in memory for readers
  RDMAKV_ETCD=http://10.0.0.1:2379 rdmakv-fuse agent --backing /mnt/disk";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Flags {
    /// The directory, which all mounts have as well
    #[arg(long, value_name = "DIR")]
    backing: PathBuf,
    /// Keep at most so many bytes of files in memory that the directory has, in MiB: those that were closed last; all, unless given
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(..=1 << 40))]
    keep: Option<u64>,
}

/// Works until the process is ended, or another agent began without waiting for its turn. An outage of the cluster is waited for, but not at
/// the start.
pub(super) fn run(cluster: &Cluster, flags: &Flags) -> Result<(), Failure> {
    let mut outages = Outages::default();
    loop {
        let waits = |outages: &mut Outages| outages.works("waits until the agent that works has ended");
        let error = match Turn::take(cluster, Options::default(), || say(&waits(&mut outages))) {
            Err(error) => outages.take(error)?,
            Ok(turn) => {
                let Err(error) = work(cluster, flags, &turn, &mut outages);
                // Another agent has the turn, and began before this one saw that.
                let may_wait = error.errno() != Errno::STALE || turn.check().is_err();
                // Reported before the turn is given up: that waits for the cluster.
                if may_wait { outages.take(error)? } else { return Err(error.into()) }
            }
        };
        error.into_iter().for_each(|line| say(&line));
        std::thread::sleep(AGAIN);
    }
}

/// Works until another agent may work, or the agent cannot begin.
fn work(cluster: &Cluster, flags: &Flags, turn: &Turn, outages: &mut Outages) -> crate::Result<Infallible> {
    let mut agent = Agent::begin(cluster, &flags.backing, Options::default())?;
    if let Some(keep) = flags.keep {
        agent.keep(keep << 20)?;
    }
    say(&outages.works(&format!("carries files to {}", flags.backing.display())));
    let mut told = BTreeMap::new();
    let mut swept = Instant::now();
    loop {
        turn.check()?;
        let begun = Instant::now();
        if begun.duration_since(swept) >= SWEEP {
            swept = begun;
            tell_swept(agent.sweep(SWEEP));
        } else {
            // Files are carried in between.
            agent.sweep_on().transpose().into_iter().for_each(tell_swept);
        }
        let rest = match agent.round() {
            Err(error) if error.errno() == Errno::STALE => return Err(error),
            // Others may have the turn by now, and this one begins again.
            Err(error) if turn.check().is_err() => return Err(error),
            Err(error) => {
                tell(&mut told, b"/", &error.to_string());
                AGAIN
            }
            Ok(round) => {
                told.retain(|path: &Vec<u8>, _| round.failed.iter().any(|(failed, _)| failed == path));
                round.failed.iter().for_each(|(path, why)| tell(&mut told, path, &why.to_string()));
                rest_after(&round, begun.elapsed())
            }
        };
        std::thread::sleep(rest);
    }
}

/// The times in which an agent could not work, so that each is reported once.
#[derive(Debug, Default)]
struct Outages {
    /// The agent has worked, or waited for its turn. An error before that ends it.
    has_begun: bool,
    /// The errno of the last report, while the agent cannot work.
    reported: Option<Errno>,
}

impl Outages {
    /// Takes an error. Returns the line that reports it, unless it was reported.
    ///
    /// # Errors
    ///
    /// It is that of the start.
    fn take(&mut self, error: crate::Error) -> Result<Option<String>, Failure> {
        if !self.has_begun {
            return Err(error.into());
        }
        let errno = error.errno();
        if self.reported.replace(errno) == Some(errno) {
            return Ok(None);
        }
        // Errors of the cluster have this errno.
        let state = if errno == Errno::IO { "the cluster is away" } else { "the agent cannot work" };
        Ok(Some(format!("{state}: {error}: it is tried again every {} s", AGAIN.as_secs())))
    }

    /// Notes that the agent works, or waits for its turn. Returns the line that reports it.
    fn works(&mut self, what: &str) -> String {
        self.has_begun = true;
        let is_back = self.reported.take().is_some();
        if is_back { format!("the cluster is back: {what}") } else { what.to_owned() }
    }
}

/// Reports what a sweep freed, once it is at its end.
fn tell_swept(swept: crate::Result<Swept>) {
    match swept {
        Ok(swept) if swept == Swept::default() || swept.left > 0 => {}
        Ok(Swept { writers, freed, unnamed, data_files, .. }) => say(&format!(
            "swept what dead mounts left: {writers} files open, {unnamed} without a name, chunks of {freed} files, {data_files} data files"
        )),
        Err(error) => say(&format!("sweep: {error}")),
    }
}

fn rest_after(round: &Round, took: Duration) -> Duration {
    let is_stuck = !round.failed.is_empty() && round.shown == 0;
    if is_stuck { AGAIN } else { took.clamp(REST, AGAIN) }
}

/// Tells a failure, unless it is the path's last one.
fn tell(told: &mut BTreeMap<Vec<u8>, String>, path: &[u8], why: &str) {
    if told.get(path).is_some_and(|last| last == why) {
        return;
    }
    say(&format!("{}: {why}", path.escape_ascii()));
    if told.len() < TOLD {
        told.insert(path.to_vec(), why.to_owned());
    }
}

fn say(line: &str) {
    // Where standard error is closed, it works on.
    let _ = writeln!(std::io::stderr(), "rdmakv-fuse agent: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_round_is_repeated_later() {
        let failed = || vec![(b"/a".to_vec(), crate::Error::new(Errno::NOSPC, "write a: no room"))];
        let stuck = Round { failed: failed(), ..Round::default() };
        assert_eq!(rest_after(&stuck, REST), AGAIN);
        let goes_on = Round { shown: 1, failed: failed(), ..Round::default() };
        assert_eq!(rest_after(&goes_on, Duration::ZERO), REST);
        assert_eq!(rest_after(&Round::default(), 2 * REST), 2 * REST);
    }

    #[test]
    fn only_an_error_of_the_start_ends_the_agent() {
        let away = || crate::Error::new(Errno::IO, "read etcd: no answer");
        let mut outages = Outages::default();
        assert!(matches!(outages.take(away()), Err(Failure::No(why)) if why == "read etcd: no answer"));
        assert_eq!(outages.works("waits"), "waits");
        assert!(outages.take(away()).is_ok());
    }

    #[test]
    fn an_outage_is_reported_once() {
        let mut outages = Outages::default();
        outages.works("waits");
        let mut take = |errno, why| outages.take(crate::Error::new(errno, why)).ok().flatten();
        let line = take(Errno::IO, "touch m/1: late").unwrap();
        assert_eq!(line, "the cluster is away: touch m/1: late: it is tried again every 5 s");
        assert_eq!(take(Errno::IO, "read etcd: no answer"), None);
        // The cluster is back, and the directory is not there.
        assert!(take(Errno::NOENT, "open /a").unwrap().starts_with("the agent cannot work: open /a"));
        assert_eq!(outages.works("carries"), "the cluster is back: carries");
        assert_eq!(outages.works("waits"), "waits");
    }

    #[test]
    fn a_failure_is_told_once() {
        let mut told = BTreeMap::new();
        tell(&mut told, b"/a", "no room");
        assert_eq!(told.len(), 1);
        (0..2 * TOLD).for_each(|at| tell(&mut told, format!("/{at}").as_bytes(), "no room"));
        assert_eq!(told.len(), TOLD);
    }
}
