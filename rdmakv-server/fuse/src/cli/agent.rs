//! The agent as a process.

use std::collections::BTreeMap;
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

/// The pause after a round in which names failed and none was shown, and after one without an answer.
const AGAIN: Duration = Duration::from_secs(5);

/// How often what dead mounts left behind is looked for, and for how long its data files did not change.
const SWEEP: Duration = Duration::from_secs(600);

/// Failures that are remembered, so that each is told once.
const TOLD: usize = 1000;

const EXAMPLES: &str = "\
One agent works for a whole cluster, on any machine that has the directory. One that starts later waits until the first one has
ended, for 12 s after it was killed. It may be killed at any time.

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

/// Works until the process is ended, or another agent may work.
pub(super) fn run(cluster: &Cluster, flags: &Flags) -> Result<(), Failure> {
    let turn = Turn::take(cluster, Options::default(), || say("waits until the agent that works has ended"))?;
    let mut agent = Agent::begin(cluster, &flags.backing, Options::default())?;
    if let Some(keep) = flags.keep {
        agent.keep(keep << 20)?;
    }
    say(&format!("carries files to {}", flags.backing.display()));
    let mut told = BTreeMap::new();
    let mut swept = Instant::now();
    loop {
        turn.check()?;
        let begun = Instant::now();
        if begun.duration_since(swept) >= SWEEP {
            swept = begun;
            sweep(&mut agent);
        }
        let rest = match agent.round() {
            Err(error) if error.errno() == Errno::STALE => return Err(error.into()),
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

fn sweep(agent: &mut Agent) {
    match agent.sweep(SWEEP) {
        Ok(swept) if swept == Swept::default() => {}
        Ok(Swept { writers, freed, data_files, .. }) => say(&format!(
            "swept what dead mounts left: {writers} files open, chunks of {freed} files, {data_files} data files"
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
    fn a_failure_is_told_once() {
        let mut told = BTreeMap::new();
        tell(&mut told, b"/a", "no room");
        assert_eq!(told.len(), 1);
        (0..2 * TOLD).for_each(|at| tell(&mut told, format!("/{at}").as_bytes(), "no room"));
        assert_eq!(told.len(), TOLD);
    }
}
