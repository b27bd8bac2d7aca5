//! Programs on mounts and in a plain directory, with servers, mounts and the agent killed meanwhile, on real servers and etcd. The tests are
//! skipped, with a line, without etcd, `/dev/fuse` or root.
//!
//! `RDMAKV_SEED=N` has them take other steps. The long form takes `RDMAKV_FSX=N` operations, a million unless given, and kills something
//! `RDMAKV_KILLS=N` times, 60 unless given.

#![cfg(feature = "mount")]

mod common;
mod endured;
mod known;
mod mapped;
mod mounted;

use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError, RwLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use common::{Cluster, Dice, soon};
use endured::{Place, Program, Shared, everything};
use mounted::{Mounted, can_mount, command};
use rdmakv_client::{Client, Options};
use rdmakv_cluster::config::Policy;
use rdmakv_fuse::Files;
use rdmakv_proto::files::{Directory, Key, Mount};

/// Servers, of which two may be lost at once with three copies.
const SERVERS: usize = 4;

const PROGRAMS: usize = 3;

/// Flags of the mounts: files have several chunks, which go to the backing as soon as servers refuse one.
const FLAGS: &[&str] = &["--chunk", "64k", "--spill-after", "0"];

/// The end of a process by a signal that it cannot catch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kill {
    /// A server, which returns once the others have removed it.
    Server,
    /// A server, which returns at once.
    ServerForAMoment,
    /// Two servers at the same time.
    TwoServers,
    Mount,
    Agent,
}

const KILLS: [Kill; 5] = [Kill::Mount, Kill::Server, Kill::Agent, Kill::ServerForAMoment, Kill::TwoServers];

fn number(name: &str, other: u64) -> u64 {
    std::env::var(name).map_or(other, |text| text.parse().expect("a number"))
}

#[test]
fn what_was_acknowledged_outlives_kills() {
    run(number("RDMAKV_SEED", 1), 3_000, 3, 70);
}

/// The same with room for a few dirty chunks: others go to the backing at once.
#[test]
fn what_was_spilled_outlives_kills() {
    run(number("RDMAKV_SEED", 2), 1_500, 2, 1);
}

#[test]
#[ignore = "the long form takes an hour"]
fn long_form() {
    run(number("RDMAKV_SEED", 1), number("RDMAKV_FSX", 1_000_000), number("RDMAKV_KILLS", 60), 70);
}

#[test]
#[ignore = "the long form takes an hour"]
fn long_form_that_spills() {
    run(number("RDMAKV_SEED", 1), number("RDMAKV_FSX", 1_000_000), number("RDMAKV_KILLS", 60), 1);
}

fn agent(cluster: &Cluster) -> Child {
    let backing = cluster.backing().to_str().unwrap();
    command(&cluster.urls(), &["agent", "--backing", backing, "--keep", "64"]).spawn().unwrap()
}

/// One run at a time: the processes that a run starts would flush the other's files.
static RUNS: Mutex<()> = Mutex::new(());

/// Gives this thread descriptors of its own.
///
/// A new process has copies of its parent's descriptors until it executes its program, and closing a copy stores the file. So a thread that
/// starts processes would have files stored that no program closed.
#[expect(unsafe_code)]
fn keep_descriptors_apart() {
    // SAFETY: all that is open now stays open for this thread. It uses nothing that other threads open later, nor do they.
    let done = unsafe { libc::unshare(libc::CLONE_FILES) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// The processes of a run.
struct Processes {
    cluster: Cluster,
    /// A mount for looking, which the programs do not use.
    files: Files,
    mounts: Vec<Mounted>,
    agent: Child,
    client: Client,
}

fn run(seed: u64, operations: u64, kills: u64, dirty_limit: u8) {
    if !can_mount() {
        return;
    }
    let _alone = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(cluster) = Cluster::repaired(SERVERS, Policy::Copies(3), dirty_limit) else { return };
    println!("RDMAKV_SEED={seed}, {operations} operations, {kills} kills");
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let plain = tempfile::tempdir().unwrap();
    let mounts = [Mounted::with(&cluster, FLAGS), Mounted::with(&cluster, FLAGS)];
    let place = |mount: &Mounted| Place {
        path: mount.path(""),
        killed: AtomicU64::new(0),
        mounted: AtomicU64::new(0),
        maps: RwLock::new(()),
    };
    let places = mounts.iter().map(place).collect();
    let backing = cluster.backing().to_owned();
    let files = cluster.mount();
    let shared = Shared { places, plain: plain.path(), backing: &backing, done: AtomicU64::new(0) };
    let agent = agent(&cluster);
    let (mut dice, begun, apart) = (Dice(seed), Instant::now(), Barrier::new(PROGRAMS + 1));
    let processes = std::thread::scope(|scope| {
        let start = |number| {
            let (program, apart) = (Program::new(&shared, files.clone(), number, seed), &apart);
            scope.spawn(move || {
                apart.wait();
                program.run(operations / PROGRAMS as u64);
            })
        };
        let programs: Vec<_> = (0..PROGRAMS).map(start).collect();
        // It is used and closed where its connections are opened.
        drop(files);
        keep_descriptors_apart();
        apart.wait();
        let files = cluster.mount();
        let client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
        let mut processes = Processes { cluster, files, mounts: mounts.into(), agent, client };
        for at in 0..kills {
            if !wait(&shared, &programs, operations * (at + 1) / (kills + 2)) {
                break;
            }
            let kill = if at < KILLS.len() as u64 { KILLS[at as usize] } else { KILLS[dice.below(5) as usize] };
            println!("{:.0?}, {} operations: {kill:?}", begun.elapsed(), shared.done.load(Ordering::Relaxed));
            processes.kill(&shared, kill, &mut dice);
        }
        processes
    });
    println!("{:.0?}: all operations are done", begun.elapsed());
    processes.end(&backing, plain.path());
}

/// Waits until so many operations were done. Returns false if a program has ended.
fn wait<T>(shared: &Shared<'_>, programs: &[ScopedJoinHandle<'_, T>], operations: u64) -> bool {
    while shared.done.load(Ordering::Relaxed) < operations {
        if programs.iter().any(ScopedJoinHandle::is_finished) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

impl Drop for Processes {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

impl Processes {
    fn kill(&mut self, shared: &Shared<'_>, kill: Kill, dice: &mut Dice) {
        let server = dice.below(SERVERS as u64) as usize;
        match kill {
            Kill::Server => {
                self.cluster.kill(server);
                self.cluster.has(SERVERS - 1);
                self.cluster.restart(server);
            }
            Kill::ServerForAMoment => {
                self.cluster.kill(server);
                self.cluster.restart(server);
            }
            Kill::TwoServers => {
                let other = (server + 1) % SERVERS;
                self.cluster.kill(server);
                self.cluster.kill(other);
                self.cluster.has(SERVERS - 2);
                self.cluster.restart(server);
                self.cluster.restart(other);
            }
            Kill::Mount => self.kill_mount(shared, dice.below(2) as usize),
            Kill::Agent => {
                self.agent.kill().unwrap();
                self.agent.wait().unwrap();
                self.agent = agent(&self.cluster);
            }
        }
        self.cluster.is_up(SERVERS);
    }

    fn kill_mount(&mut self, shared: &Shared<'_>, at: usize) {
        let place = &shared.places[at];
        let process = self.mounts[at].process();
        {
            let _no_maps = place.maps.write().unwrap();
            place.killed.fetch_add(1, Ordering::SeqCst);
            self.mounts[at].kill();
        }
        self.end_key(process);
        self.mounts[at].again(&self.cluster, FLAGS);
        place.mounted.fetch_add(1, Ordering::SeqCst);
    }

    /// Has the key of a dead mount end now, in place of 30 s later, if it holds a directory.
    fn end_key(&mut self, process: u32) {
        let paths = (0..PROGRAMS).flat_map(|number| [format!("p{number}"), format!("p{number}/s")]);
        for path in std::iter::once(String::new()).chain(paths) {
            let Ok((ino, _)) = self.files.look_up(&path) else { continue };
            let Some(held) = self.client.get(Key::Directory(ino).to_string()).unwrap() else { continue };
            // A directory that was removed has an empty value.
            let Some(holder) = Directory::decode(&held).ok().and_then(|held| held.holder) else { continue };
            let key = Key::Mount(holder).to_string();
            let mount = self.client.get(&key).unwrap().and_then(|mount| Mount::decode(&mount).ok());
            if mount.is_some_and(|mount| mount.process == process) {
                self.client.delete(&key).unwrap();
            }
        }
    }

    /// Waits until the backing has everything, and compares it with the plain directory.
    fn end(mut self, backing: &Path, plain: &Path) {
        for mount in self.mounts.drain(..) {
            assert!(mount.unmount().success());
        }
        soon("that the backing has everything", || self.files.settle(Duration::ZERO).is_ok());
        let (ours, theirs) = (everything(backing), everything(plain));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
        for (path, theirs) in &theirs {
            let ours = &ours[path];
            assert!(ours == theirs, "{} differs: modes {:o} {:o}", path.display(), ours.0, theirs.0);
        }
        println!("{} names are equal", theirs.len());
    }
}
