//! Repair: a server is killed, and a new run of it comes back empty and gets its pieces.

use super::cluster::Cluster;
use super::contestant::{fill, options};
use super::{Kind, SERVERS, Shared};
use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};
use rdmakv_client::Client;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TITLE: &str =
    "Repair of a server of six that was killed and came back empty: by agents that send at most 400 MB/s each";
const VALUE: usize = 1 << 20;
/// Values, and those of a short run.
const VALUES: (usize, usize) = (512, 12);
/// MiB of a server.
const MEMORY: (u64, u64) = (1024, 128);
/// Megabytes a second, at least.
const LEAST: f64 = 300.0;
/// Longer than a fence: nine eighths of a lease.
const FENCE: Duration = Duration::from_millis(2500);
/// The time between two looks at the server's pieces.
const LOOK: Duration = Duration::from_millis(2);

pub(super) fn parts(shared: &Shared, cpus: &[usize]) -> Vec<Part> {
    let part = |kind: Kind| {
        let (shared, cpus) = (shared.clone(), cpus.to_vec());
        Part::new(format!("repair/{}", kind.name()), TITLE, &["rate", "whole"], move |setting| {
            // The servers of the parts before have no part in this.
            shared.take();
            measure(setting, kind, &cpus).map_err(|error| error.to_string())
        })
    };
    Kind::RESILIENT.map(part).into()
}

/// One repair.
struct Repaired {
    /// Bytes that came to the new run.
    bytes: u64,
    /// Between the first and the last of them, in seconds.
    seconds: f64,
    /// From the start of the new run until no key lacks a piece, in nanoseconds.
    whole: f64,
}

fn measure(setting: &Setting, kind: Kind, cpus: &[usize]) -> Outcome<Vec<Row>> {
    pin::pin(setting.near)?;
    let folder = tempfile::tempdir()?;
    let policies = [(format!("{}:", kind.name()), kind.policy())];
    let (values, memory) = if setting.quick { (VALUES.1, MEMORY.1) } else { (VALUES.0, MEMORY.0) };
    let mut cluster = Cluster::start(folder.path(), cpus, memory, &policies)?;
    let mut client = Client::of_cluster(&cluster.of_clients(), options())?;
    fill(std::slice::from_mut(&mut client), kind, "repair", values, VALUE)?;
    drop(client);
    let mut all = Vec::new();
    for round in 0..setting.rounds {
        all.push(once(&mut cluster, round % SERVERS)?);
    }
    let rates = all.iter().map(|one| one.bytes as f64 / 1e6 / one.seconds).collect();
    let rate = Figure::highest(rates);
    let megabytes = all.iter().map(|one| one.bytes).sum::<u64>() as f64 / 1e6 / all.len() as f64;
    let row = |what: &str, figure, unit| Row::new(format!("repair/{}/{what}", kind.name()), figure, None, unit);
    let median = rate.median.unwrap_or(f64::NAN);
    Ok(vec![
        row("rate", rate, Unit::Megabytes)
            .at_least("MB/s", median, LEAST)
            .note(format!("{megabytes:.0} MB came to the new run, between the first piece and the last")),
        row("whole", Figure::lowest(all.iter().map(|one| one.whole).collect()), Unit::Nanos)
            .note("from the start of the new run until the epoch is whole"),
    ])
}

/// Kills a server, starts it anew, and watches its pieces come.
fn once(cluster: &mut Cluster, at: usize) -> Outcome<Repaired> {
    cluster.kill(at);
    cluster.has(SERVERS - 1)?;
    // Fences are no part of the pace: the servers that took over keys wait for theirs.
    std::thread::sleep(FENCE);
    let begun = Instant::now();
    cluster.run(at)?;
    let mut watcher = cluster.servers[at].watcher()?;
    let ends = AtomicBool::new(false);
    let (watched, whole) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = Vec::new();
            loop {
                // The last look is after the end: all pieces may have come since the one before.
                let is_last = ends.load(Relaxed);
                let bytes = watcher.cluster("piece_bytes").map_err(|error| error.to_string())?;
                seen.push((begun.elapsed().as_secs_f64(), bytes));
                if is_last {
                    return Ok::<_, String>(seen);
                }
                std::thread::sleep(LOOK);
            }
        });
        let whole = cluster.is_whole().map(|()| begun.elapsed().as_nanos() as f64);
        ends.store(true, Relaxed);
        (watch.join(), whole)
    });
    let seen = watched.map_err(|_| "the thread that watches a server panicked")??;
    let (bytes, seconds) = pace(&seen).ok_or("no piece came to the new run of a server")?;
    Ok(Repaired { bytes, seconds, whole: whole? })
}

/// Returns the bytes that came between two looks or more, and the seconds between the first of them and the last.
fn pace(seen: &[(f64, u64)]) -> Option<(u64, f64)> {
    let first = seen.iter().position(|&(_, bytes)| bytes > 0)?;
    // The look before: they may have begun to come right behind it.
    let (begun, before) = seen[first.saturating_sub(1)];
    let &(_, most) = seen.iter().max_by_key(|&&(_, bytes)| bytes)?;
    let &(ended, _) = seen.iter().find(|&&(_, bytes)| bytes == most)?;
    Some((most - before.min(most), ended - begun)).filter(|&(_, seconds)| seconds > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_from_first_to_last_piece() {
        assert_eq!(pace(&[(0.0, 0), (1.0, 0), (1.5, 10), (2.0, 40), (3.0, 40)]), Some((40, 1.0)));
        assert_eq!((pace(&[(0.0, 0), (1.0, 0)]), pace(&[])), (None, None));
        // What a member drops at the end is no part of it.
        assert_eq!(pace(&[(0.0, 0), (0.5, 30), (1.0, 20)]), Some((30, 0.5)));
    }
}
