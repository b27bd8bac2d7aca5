//! A cluster under torture: servers and etcds of its own, clients with copies of each key, and faults by seed.
//!
//! Every key is written before the first fault, and nothing is deleted or expires. So a key that is absent is a lost write, and each history
//! has to be linearizable. At most as many servers are lost between two whole epochs as each key has copies to spare. After that the next
//! fault waits until agents have repaired all keys.

mod etcds;
mod network;
mod plan;
mod report;
mod setup;
mod worker;

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

pub use plan::Plan;
pub use report::Run;
use report::{Facts, verdict};
use setup::Setup;
use worker::{Did, KEYS, Shared, Worker};

/// Time for what has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// The name of the cluster.
const NAME: &str = "check";

/// Carries out a plan.
///
/// # Errors
///
/// The plan makes no sense, etcd or a server does not start, or an epoch does not become whole again.
pub fn run(plan: &Plan) -> io::Result<Run> {
    plan.check()?;
    let folder = tempfile::tempdir()?;
    let mut place = Setup::start(plan, folder.path())?;
    let shared = Shared::default();
    let (begun, mut random) = (Instant::now(), Pcg64Mcg::seed_from_u64(plan.seed));
    let mut histories: Vec<Vec<Did>> = vec![place.write_all()?];
    let faults = std::thread::scope(|scope| -> io::Result<_> {
        let (shared, etcd) = (&shared, place.etcds.urls());
        let work = |thread: u32| {
            let (plan, etcd) = (plan.clone(), etcd.clone());
            scope.spawn(move || Worker::new(&plan, &etcd, thread as usize + 1).map(|worker| worker.run(shared)))
        };
        let workers: Vec<_> = (0..plan.threads).map(work).collect();
        let put_in = place.put_in_faults(shared, &mut random);
        shared.stops.store(true, Ordering::Release);
        for worker in workers {
            let history = worker.join().map_err(|_| io::Error::other("a client panicked"))?;
            histories.push(history.map_err(other)?);
        }
        put_in
    })?;
    // All that was acknowledged is there for a client that comes now.
    let mut last = Worker::new(plan, &place.etcds.urls(), plan.threads as usize + 1).map_err(other)?;
    (0..KEYS.0 + KEYS.1).for_each(|key| last.get(key));
    histories.push(last.did);
    let (worked, epoch) = (begun.elapsed(), place.epoch()?);
    let one_sided = shared.one_sided.load(Ordering::Relaxed);
    Ok(verdict(histories, Facts { faults, worked, epoch, seed: plan.seed, lease: plan.lease, one_sided }))
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
