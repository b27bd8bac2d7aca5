//! Draining to the backing directory, against real servers and etcd. The tests are skipped, with a line, on machines without etcd.
//!
//! `RDMAKV_STRIDE=1` has an agent be killed after each number of steps, in place of every fifth.

#![cfg(feature = "library")]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Cluster, Dice, soon};
use rdmakv_client::{Client, Cluster as Address, Error, Frozen, Options};
use rdmakv_cluster::config::Policy;
use rdmakv_fuse::{Agent, Files, Fsync, How, Settings, Status};
use rdmakv_proto::files::{BUCKETS, Generation, Ino, Inode, Key, State};
use rustix::io::Errno;

fn write(files: &Files, path: &str, bytes: &[u8]) {
    let mut file = files.open(path, How::new().write().create().truncate()).unwrap();
    file.write_at(0, bytes).unwrap();
    file.close().unwrap();
}

fn read(files: &Files, path: &str) -> Vec<u8> {
    files.open(path, How::new()).unwrap().read_at(0, 1 << 30).unwrap()
}

/// Mounts with small chunks, and freezes files as soon as they are closed.
fn mount(cluster: &Cluster) -> Files {
    cluster.mount_with(Settings { settle: Duration::ZERO, chunk: Some(64 << 10), ..Settings::default() })
}

fn frozen(files: &Files, path: &str) -> (u64, Inode) {
    soon("that the file is frozen", || files.look_up(path).unwrap().1.state == State::Frozen);
    let (ino, inode) = files.look_up(path).unwrap();
    (ino.0, inode)
}

#[test]
fn all_servers_refuse_changes_of_a_frozen_file() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let files = mount(&cluster);
    write(&files, "a", &Dice(1).bytes(150_000));
    let (ino, inode) = frozen(&files, "a");
    let Inode { size, chunk_bits, generation, .. } = inode;
    let runs = inode.map.iter().map(|run| (run.first, run.count)).collect();
    let frozen = Frozen { ino, generation: generation.0, size, chunk_bits, runs };
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    // One of them is gone: the others answer in the next epoch.
    cluster.kill(1);
    let epoch = client.freeze(&frozen).unwrap();
    assert_eq!(client.freeze(&frozen).unwrap(), epoch);
    for index in 0..3 {
        let key = Key::Chunk(Ino(ino), Generation(1), index).to_string();
        let why = client.set(&key, b"other", ()).unwrap_err();
        assert!(matches!(&why, Error::Refused { said, .. } if said.contains("chunk is final")), "{why}");
    }
    client.persisted(&frozen).unwrap();
    let mut alone = cluster.address();
    alone.give_up_after = Duration::from_millis(300);
    let mut client = Client::of_cluster(&alone, Options::default()).unwrap();
    cluster.kill(0);
    cluster.kill(2);
    let why = client.freeze(&frozen).unwrap_err();
    assert!(matches!(&why, Error::NotEverywhere { servers, .. } if servers.contains(&cluster.name(2))), "{why}");
}

#[test]
fn a_write_without_an_end_does_not_hold_up_freezes() {
    let of_chunks = Policy::Copies(3);
    let Some(mut cluster) = Cluster::start_as(4, 512, of_chunks) else { return };
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    // Small and large ones: bytes that travel with their orders, and bytes that are staged.
    let frozen = |ino| Frozen { ino, generation: 1, size: 16 << 16, chunk_bits: 16, runs: vec![(0, 16)] };
    let key = |ino, index| Key::Chunk(Ino(ino), Generation(1), index).to_string();
    for (ino, length) in [(5, 5), (6, 65_000)] {
        (0..16).for_each(|index| _ = client.set(key(ino, index), vec![index as u8; length].as_slice(), ()).unwrap());
    }
    // Its calls end here, and backups never hear what became of the last writes.
    let mut other = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    other.freeze(&frozen(5)).unwrap();
    // Another server may be the primary of some now, and know no more of their writes than that they were sealed.
    cluster.kill(1);
    other.freeze(&frozen(6)).unwrap();
    for (ino, length) in [(5, 5), (6, 65_000)] {
        for index in 0..16 {
            let value = other.get(key(ino, index)).unwrap().unwrap();
            assert_eq!(*value, *vec![index as u8; length]);
        }
    }
    drop(client);
}

/// An agent for the process that is to be one: addresses of etcd, the backing, and the steps after which it ends by a signal.
const DRAIN: &str = "RDMAKV_TEST_DRAINS";

/// Becomes the agent, where [`agent`] started this process. It ends once all names are shown.
#[test]
#[ignore = "the process of an agent"]
fn drain() {
    let Ok(arguments) = std::env::var(DRAIN) else { return };
    let arguments: Vec<&str> = arguments.lines().collect();
    let begun = Agent::begin(&Address::new(arguments[0]), arguments[1].as_ref(), Options::default());
    let mut agent = begun.unwrap();
    if let Ok(steps) = arguments[2].parse() {
        agent.abort_after(steps);
    }
    loop {
        let round = agent.round().unwrap();
        if (round.shown, round.left, round.failed.len()) == (0, 0, 0) {
            std::process::exit(0);
        }
    }
}

/// Starts the process of an agent.
fn agent(cluster: &Cluster, steps: Option<u64>) -> Child {
    let steps = steps.map_or("all".to_owned(), |steps| steps.to_string());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "drain", "--nocapture", "--include-ignored"])
        .env(DRAIN, [cluster.urls(), cluster.backing().display().to_string(), steps].join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the agent starts")
}

fn begin(cluster: &Cluster) -> Agent {
    Agent::begin(&cluster.address(), cluster.backing(), Options::default()).unwrap()
}

/// Has an agent go through the names until the backing shows all.
fn settle(agent: &mut Agent, files: &Files) {
    soon("that the backing shows all", || {
        let round = agent.round().unwrap();
        assert!(round.failed.is_empty(), "{round:?}");
        files.settle(Duration::ZERO).is_ok()
    });
}

fn on_backing(cluster: &Cluster, path: &str) -> Option<Vec<u8>> {
    std::fs::read(cluster.backing().join(path)).ok()
}

fn names_on_backing(cluster: &Cluster, path: &str) -> Vec<String> {
    let listed = std::fs::read_dir(cluster.backing().join(path)).unwrap();
    let mut names: Vec<String> = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".rdmakv");
    names.sort();
    names
}

#[test]
fn the_backing_shows_what_a_mount_has() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let mut agent = begin(&cluster);
    let mut dice = Dice(7);
    let long = dice.bytes(1_500_000);
    files.mkdir("d").unwrap();
    files.mkdir("d/e").unwrap();
    write(&files, "d/e/long", &long);
    write(&files, "empty", b"");
    files.symlink("d/e/long", "link").unwrap();
    let mut holes = files.open("holes", How::new().write().create().mode(0o600)).unwrap();
    holes.write_at(200_000, b"middle").unwrap();
    holes.truncate(400_001).unwrap();
    holes.close().unwrap();
    settle(&mut agent, &files);
    assert_eq!(names_on_backing(&cluster, ""), ["d", "empty", "holes", "link"]);
    assert!(on_backing(&cluster, "d/e/long").unwrap() == long);
    assert_eq!(on_backing(&cluster, "empty").unwrap(), b"");
    assert_eq!(std::fs::read_link(cluster.backing().join("link")).unwrap(), Path::new("d/e/long"));
    let holes = on_backing(&cluster, "holes").unwrap();
    assert!(holes.len() == 400_001 && holes[200_000..200_006] == *b"middle");
    assert_eq!(holes.iter().filter(|&&byte| byte != 0).count(), 6);
    // A mount that holds the directory remembers the inode.
    let (_, inode) = mount(&cluster).look_up("holes").unwrap();
    let seen = std::fs::metadata(cluster.backing().join("holes")).unwrap();
    assert_eq!((inode.state, inode.backing), (State::Persisted, seen.ino()));
    assert_eq!((seen.mode() & 0o7777, seen.mtime()), (0o600, inode.modified.seconds));

    // Changes: the next generation, a rename over another file, removals, and a directory that is made again.
    write(&files, "empty", b"no longer");
    files.rename("holes", "link").unwrap();
    files.unlink("d/e/long").unwrap();
    files.rmdir("d/e").unwrap();
    files.mkdir("d/e").unwrap();
    // The backing has the old one still, but the new one has no names.
    assert_eq!(names_on_backing(&cluster, "d/e"), ["long"]);
    assert!(files.list("d/e").unwrap().is_empty());
    assert_eq!(files.open("d/e/long", How::new()).unwrap_err().errno(), Errno::NOENT);
    write(&files, "d/e/next", b"next");
    settle(&mut agent, &files);
    assert_eq!(names_on_backing(&cluster, ""), ["d", "empty", "link"]);
    assert_eq!(on_backing(&cluster, "empty").unwrap(), b"no longer");
    assert_eq!(on_backing(&cluster, "link").unwrap().len(), 400_001);
    assert_eq!(names_on_backing(&cluster, "d/e"), ["next"]);

    // A tree is removed from below.
    files.unlink("d/e/next").unwrap();
    files.rmdir("d/e").unwrap();
    files.rmdir("d").unwrap();
    settle(&mut agent, &files);
    assert_eq!(names_on_backing(&cluster, ""), ["empty", "link"]);
    assert_eq!(names_on_backing(&cluster, ".rdmakv/data").len(), 2, "data files of removed ones are gone");
    // Nothing is left to do, and a mount that comes later sees the same.
    assert_eq!(agent.round().unwrap(), Default::default());
    assert_eq!(read(&mount(&cluster), "empty"), b"no longer");
}

/// Holes, a short last chunk, and a file of few chunks, which is not worth asking for.
#[test]
fn servers_write_their_own_chunks() {
    let Some(mut cluster) = Cluster::repaired(3, Policy::Copies(2), 70) else { return };
    let (files, mut agent, mut dice) = (mount(&cluster), begin(&cluster), Dice(9));
    let long = dice.bytes(3_000_001);
    let mut file = files.open("long", How::new().write().create()).unwrap();
    file.write_at(0, &long).unwrap();
    file.write_at(5_000_000, b"behind a hole").unwrap();
    file.truncate(6_000_000).unwrap();
    file.close().unwrap();
    write(&files, "short", &dice.bytes(150_000));
    let (mut bytes, mut by_servers) = (0, 0);
    soon("that the backing shows all", || {
        let round = agent.round().unwrap();
        assert!(round.failed.is_empty(), "{round:?}");
        (bytes, by_servers) = (bytes + round.bytes, by_servers + round.by_servers);
        files.settle(Duration::ZERO).is_ok()
    });
    let shown = on_backing(&cluster, "long").unwrap();
    assert!(shown.len() == 6_000_000 && shown[..long.len()] == long && shown[5_000_000..].starts_with(b"behind"));
    let rest = shown.iter().skip(long.len()).filter(|&&byte| byte != 0).count();
    assert_eq!(rest, b"behind a hole".len());
    // 46 chunks, and the one behind the hole.
    assert_eq!((by_servers, bytes - by_servers), (47 << 16, 150_000));

    // Those of a lost server are written by the ones that are left.
    let long = dice.bytes(9_000_000);
    write(&files, "long", &long);
    cluster.kill(1);
    soon("that the backing shows all", || {
        // Servers freeze no chunk whose last write they do not know to be published. Their agents find out.
        let _ = agent.round();
        files.settle(Duration::ZERO).is_ok()
    });
    assert!(on_backing(&cluster, "long").unwrap() == long);
}

/// A thread that goes through the names until it is dropped.
struct Drains(std::sync::Arc<std::sync::atomic::AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Drains {
    fn begin(cluster: &Cluster) -> Self {
        let (ends, mut agent) = (std::sync::Arc::<std::sync::atomic::AtomicBool>::default(), begin(cluster));
        let seen = std::sync::Arc::clone(&ends);
        let run = move || {
            while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = agent.round();
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        Self(ends, Some(std::thread::spawn(run)))
    }
}

impl Drop for Drains {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.1.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn syncs_wait_for_the_backing() {
    let Some(cluster) = Cluster::carrying(2) else { return };
    let settings = || Settings { chunk: Some(64 << 10), fsync: Fsync::Backing, ..Settings::default() };
    let files = cluster.mount_with(settings());
    // Without an agent there is an end to the wait.
    let patience = Duration::from_secs(1);
    let hurried = cluster.mount_with(Settings { full: patience, ..settings() });
    hurried.mkdir("d").unwrap();
    let mut alone = hurried.open("d/alone", How::new().write().create()).unwrap();
    alone.write_at(0, b"alone").unwrap();
    assert_eq!(alone.sync().unwrap_err().errno(), Errno::TIMEDOUT);
    let _agent = Drains::begin(&cluster);
    alone.close().unwrap();
    assert_eq!(on_backing(&cluster, "d/alone").unwrap(), b"alone");

    let bytes = Dice(4).bytes(500_000);
    let mut file = files.open("a", How::new().write().create()).unwrap();
    file.write_at(0, &bytes).unwrap();
    file.sync().unwrap();
    assert!(on_backing(&cluster, "a").unwrap() == bytes);
    // It is written on, by the next generation, and cut.
    file.append(b"more").unwrap();
    assert!(file.read_at(0, 1 << 20).unwrap() == [&bytes[..], b"more"].concat());
    file.sync().unwrap();
    assert!(on_backing(&cluster, "a").unwrap() == [&bytes[..], b"more"].concat());
    file.truncate(100_000).unwrap();
    file.write_at(0, b"begin").unwrap();
    file.close().unwrap();
    let shown = on_backing(&cluster, "a").unwrap();
    assert!(shown.len() == 100_000 && shown[..5] == *b"begin" && shown[5..] == bytes[5..100_000]);
    // Two writers: the last close waits.
    let open = || files.open("b", How::new().write().create()).unwrap();
    let (mut first, second) = (open(), open());
    first.write_at(0, b"both").unwrap();
    first.close().unwrap();
    second.close().unwrap();
    assert_eq!(on_backing(&cluster, "b").unwrap(), b"both");
    // A file without a name is not awaited.
    let mut gone = files.open("c", How::new().write().create()).unwrap();
    gone.write_at(0, b"gone").unwrap();
    files.unlink("c").unwrap();
    gone.sync().unwrap();
    assert_eq!(gone.read_at(0, 10).unwrap(), b"gone");
    gone.close().unwrap();
    assert_eq!(on_backing(&cluster, "c"), None);
}

#[test]
fn a_sync_tells_that_the_directory_is_full() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a small file system needs root");
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let at = cluster.backing().to_str().unwrap().to_owned();
    let mounts = |arguments: &[&str]| Command::new(arguments[0]).args(&arguments[1..]).status().unwrap().success();
    assert!(mounts(&["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", &at]));
    let outcome = std::panic::catch_unwind(|| {
        let settings = Settings { chunk: Some(64 << 10), fsync: Fsync::Backing, ..Settings::default() };
        let files = cluster.mount_with(settings);
        let _agent = Drains::begin(&cluster);
        let mut file = files.open("a", How::new().write().create()).unwrap();
        file.write_at(0, &Dice(4).bytes(4 << 20)).unwrap();
        assert_eq!(file.sync().unwrap_err().errno(), Errno::NOSPC);
        // With room it goes on.
        assert!(mounts(&["mount", "-o", "remount,size=64m", &at]));
        file.sync().unwrap();
        assert_eq!(on_backing(&cluster, "a").unwrap().len(), 4 << 20);
    });
    assert!(mounts(&["umount", "-l", &at]));
    outcome.unwrap();
}

#[test]
fn a_sync_tells_why_the_agent_failed() {
    let Some(cluster) = Cluster::start(2) else { return };
    let settings = Settings { chunk: Some(64 << 10), fsync: Fsync::Backing, ..Settings::default() };
    let files = cluster.mount_with(settings);
    let mut file = files.open("a", How::new().write().create()).unwrap();
    file.write_at(0, &Dice(4).bytes(200_000)).unwrap();
    let (ino, _) = files.look_up("a").unwrap();
    let in_place = cluster.backing().join(format!(".rdmakv/data/{:x}.1", ino.0));
    std::fs::create_dir(&in_place).unwrap();
    let _agent = Drains::begin(&cluster);
    assert_eq!(file.sync().unwrap_err().errno(), Errno::ISDIR);
    std::fs::remove_dir(&in_place).unwrap();
    file.close().unwrap();
    assert_eq!(on_backing(&cluster, "a").unwrap(), Dice(4).bytes(200_000));
}

/// The agent failed, and the reason went before the sync began. So it goes by what the agent does next, however late that is.
#[test]
fn a_sync_takes_no_earlier_failure_for_its_own() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    write(&files, "a", b"bytes");
    frozen(&files, "a");
    let (ino, inode) = files.look_up("a").unwrap();
    let in_place = cluster.backing().join(format!(".rdmakv/data/{:x}.{:x}", ino.0, inode.generation.0));
    std::fs::create_dir(&in_place).unwrap();
    let status = || Status::of(&cluster.address(), Options::default(), false).unwrap();
    assert_eq!(status().disk_error, None);
    let failed = begin(&cluster).round().unwrap().failed;
    assert_eq!(failed[0].1.errno(), Errno::ISDIR);
    let error = status().disk_error.expect("status shows the failure");
    assert!(error.path == b"/a" && error.errno == Errno::ISDIR && error.at.elapsed().is_ok(), "{error:?}");
    std::fs::remove_dir(&in_place).unwrap();
    // Neither can an agent begin without its folder.
    let [folder, aside] = ["new", "aside"].map(|name| cluster.backing().join(".rdmakv").join(name));
    std::fs::rename(&folder, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &folder).unwrap();
    let begun = Agent::begin(&cluster.address(), cluster.backing(), Options::default());
    let error = status().disk_error.unwrap();
    assert_eq!((&error.path[..], Err(error.errno)), (&b"/"[..], begun.map(|_| ()).map_err(|why| why.errno())));
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    drop(files);
    let settings = Settings { chunk: Some(64 << 10), fsync: Fsync::Backing, ..Settings::default() };
    let files = cluster.mount_with(settings);
    let mut file = files.open("a", How::new()).unwrap();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync());
        // After 5 s a failure counts.
        std::thread::sleep(Duration::from_millis(5500));
        let _agent = Drains::begin(&cluster);
        assert_eq!(sync.join().unwrap(), Ok(()));
    });
    assert_eq!(on_backing(&cluster, "a").unwrap(), b"bytes");
}

#[test]
fn an_imported_file_is_changed_on_the_backing() {
    let Some(cluster) = Cluster::start(2) else { return };
    let bytes = Dice(2).bytes(200_000);
    std::fs::create_dir_all(cluster.backing().join("old/deep")).unwrap();
    std::fs::write(cluster.backing().join("old/deep/a"), &bytes).unwrap();
    std::fs::write(cluster.backing().join("old/b"), b"b").unwrap();
    let (files, mut agent) = (mount(&cluster), begin(&cluster));
    let mut file = files.open("old/deep/a", How::new().write()).unwrap();
    file.write_at(100_000, b"changed").unwrap();
    file.close().unwrap();
    files.rename("old/b", "old/c").unwrap();
    settle(&mut agent, &files);
    let mut changed = bytes;
    changed[100_000..100_007].copy_from_slice(b"changed");
    assert!(on_backing(&cluster, "old/deep/a").unwrap() == changed);
    assert_eq!(
        (names_on_backing(&cluster, "old"), on_backing(&cluster, "old/c").unwrap()),
        (vec!["c".into(), "deep".into()], b"b".to_vec())
    );
}

/// Others append to a file on the backing, where a mount knows it by its earlier size.
#[test]
fn a_renamed_file_keeps_bytes_of_others() {
    let Some(cluster) = Cluster::start(2) else { return };
    std::fs::write(cluster.backing().join("log"), b"first").unwrap();
    let (files, mut agent) = (mount(&cluster), begin(&cluster));
    assert_eq!(read(&files, "log"), b"first");
    std::fs::write(cluster.backing().join("log"), b"first, second").unwrap();
    files.rename("log", "old").unwrap();
    settle(&mut agent, &files);
    assert_eq!(on_backing(&cluster, "old").unwrap(), b"first, second");
}

/// Another mount takes the directory. Neither the reader of a file that was removed there nor its writer keeps the directory, or loses the file.
#[test]
fn a_removed_file_stays_while_it_is_open() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (files, other, mut agent) = (mount(&cluster), mount(&cluster), begin(&cluster));
    let bytes = Dice(8).bytes(200_000);
    write(&files, "a", &bytes);
    settle(&mut agent, &files);
    let reader = files.open("a", How::new()).unwrap();
    files.unlink("a").unwrap();
    write(&other, "b", b"b");
    settle(&mut agent, &other);
    assert!(reader.read_at(0, 1 << 20).unwrap() == bytes);
    let mut writer = files.open("c", How::new().write().create()).unwrap();
    files.unlink("c").unwrap();
    write(&other, "b", b"next");
    settle(&mut agent, &other);
    writer.write_at(0, &bytes).unwrap();
    writer.sync().unwrap();
    assert!(writer.read_at(0, 1 << 20).unwrap() == bytes);
    writer.close().unwrap();
    reader.close().unwrap();
    assert_eq!(names_on_backing(&cluster, ""), ["b"]);
}

/// A file keeps its data file until it is written: both what was made and what was imported.
#[test]
fn an_unwritten_file_is_shown_again() {
    let Some(cluster) = Cluster::start(2) else { return };
    std::fs::write(cluster.backing().join("old"), b"old").unwrap();
    let (files, mut agent) = (mount(&cluster), begin(&cluster));
    files.open("new", How::new().write().create()).unwrap().close().unwrap();
    files.rename("old", "older").unwrap();
    settle(&mut agent, &files);
    assert_eq!(read(&mount(&cluster), "older"), b"old");
    files.rename("new", "newer").unwrap();
    files.rename("older", "oldest").unwrap();
    settle(&mut agent, &files);
    assert_eq!(names_on_backing(&cluster, ""), ["newer", "oldest"]);
    assert_eq!(read(&mount(&cluster), "oldest"), b"old");
}

#[test]
fn a_later_agent_takes_over() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let (mut first, mut second) = (begin(&cluster), begin(&cluster));
    write(&files, "a", b"bytes");
    frozen(&files, "a");
    assert_eq!(first.round().unwrap_err().errno(), Errno::STALE);
    assert_eq!(on_backing(&cluster, "a"), None);
    settle(&mut second, &files);
    assert_eq!(on_backing(&cluster, "a").unwrap(), b"bytes");
    assert_eq!(names_on_backing(&cluster, ".rdmakv/new"), ["2"]);
}

/// A mount that seems dead goes on, and writes to the data file that the agent has taken a copy of.
#[test]
fn a_dead_mounts_spilled_file_stays_as_shown() {
    let Some(cluster) = Cluster::tight(2) else { return };
    let spill = Duration::ZERO;
    let dead = cluster.mount_with(Settings { chunk: Some(64 << 10), buffered: 64 << 10, spill, ..Settings::default() });
    let files = mount(&cluster);
    let bytes = |seed| Dice(seed).bytes(20 << 16);
    let mut file = dead.open("a", How::new().write().create()).unwrap();
    file.write_at(0, &bytes(1)).unwrap();
    file.sync().unwrap();
    let (_, inode) = dead.look_up("a").unwrap();
    assert!(inode.is_spilled && !inode.map.is_empty(), "{inode:?}");
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    assert!(client.delete(Key::Mount(inode.writer.unwrap()).to_string()).unwrap());
    let mut agent = begin(&cluster);
    settle(&mut agent, &files);
    assert!(on_backing(&cluster, "a").unwrap() == bytes(1));
    // Servers refuse the chunks that they have. Others are written, where nothing reads them.
    let _ = file.write_at(0, &bytes(2));
    assert!(on_backing(&cluster, "a").unwrap() == bytes(1));
    let inode = files.look_up("a").unwrap().1;
    assert!(inode.is_torn && inode.state == State::Persisted, "{inode:?}");
    assert!(read(&files, "a") == bytes(1));
}

/// A mount died before its first sync. Its chunks would stay dirty, and its data file would stay, for good.
#[test]
fn what_a_dead_mount_left_is_swept() {
    let Some(cluster) = Cluster::tight(2) else { return };
    let (spill, settle_at_once) = (Duration::ZERO, Duration::ZERO);
    let files = mount(&cluster);
    let mut agent = begin(&cluster);
    write(&files, "a", b"bytes");
    settle(&mut agent, &files);
    drop(files);
    let dead = cluster.mount_with(Settings {
        chunk: Some(64 << 10),
        buffered: 64 << 10,
        spill,
        settle: settle_at_once,
        ..Settings::default()
    });
    let mut file = dead.open("a", How::new().write()).unwrap();
    file.write_at(0, &Dice(1).bytes(20 << 16)).unwrap();
    let (ino, inode) = dead.look_up("a").unwrap();
    let data = || names_on_backing(&cluster, ".rdmakv/data");
    assert!(data().iter().any(|name| name.ends_with(".w")), "{:?}", data());
    let chunk = |index| Key::Chunk(ino, inode.reserved, index).to_string();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    let kept = (0..20).find(|&index| client.get(chunk(index)).unwrap().is_some()).expect("one is in memory");
    // It lives, so all of it stays.
    assert_eq!(agent.sweep(Duration::ZERO).unwrap(), Default::default());
    assert!(client.delete(Key::Mount(inode.writer.unwrap()).to_string()).unwrap());
    let swept = agent.sweep(Duration::from_secs(600)).unwrap();
    assert_eq!((swept.writers, swept.freed, swept.data_files), (1, 1, 0), "the data file is young");
    let swept = agent.sweep(Duration::ZERO).unwrap();
    assert_eq!((swept.writers, swept.freed, swept.data_files), (0, 0, 1));
    assert!(!data().iter().any(|name| name.ends_with(".w")), "{:?}", data());
    // Servers take no more of it, and what they have may go.
    let why = client.set(chunk(kept), b"late", ()).unwrap_err();
    assert!(matches!(&why, Error::Refused { said, .. } if said.contains("chunk is final")), "{why}");
    assert_eq!(on_backing(&cluster, "a").unwrap(), b"bytes");
    // The next writer has room, and another generation.
    let files = mount(&cluster);
    write(&files, "a", b"next");
    settle(&mut agent, &files);
    assert_eq!(on_backing(&cluster, "a").unwrap(), b"next");
}

#[test]
fn a_dead_mounts_file_is_shown_as_it_was_synced() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (dead, files) = (mount(&cluster), mount(&cluster));
    let mut file = dead.open("a", How::new().write().create()).unwrap();
    file.write_at(0, b"synced").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"not synced").unwrap();
    let mut agent = begin(&cluster);
    assert_eq!(agent.round().unwrap().left, 1);
    assert_eq!(on_backing(&cluster, "a"), None);
    // The mount's key ends, as after its death.
    let writer = dead.look_up("a").unwrap().1.writer.unwrap();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    assert!(client.delete(Key::Mount(writer).to_string()).unwrap());
    settle(&mut agent, &files);
    assert_eq!(on_backing(&cluster, "a").unwrap(), b"synced");
    let (_, inode) = mount(&cluster).look_up("a").unwrap();
    assert!(inode.is_torn && inode.writer.is_none() && inode.state == State::Persisted);
}

/// A mount for the process that is to be one: addresses of etcd, and the backing.
const HOLD: &str = "RDMAKV_TEST_HOLDS";

/// Becomes a mount whose files lost their names while they are open, and waits to be killed.
#[test]
#[ignore = "the process of a mount"]
fn hold() {
    let Ok(arguments) = std::env::var(HOLD) else { return };
    let (urls, backing) = arguments.split_once('\n').unwrap();
    let settings = Settings { chunk: Some(64 << 10), ..Settings::default() };
    let files = Files::mount(&Address::new(urls), backing.as_ref(), settings).unwrap();
    let open = |path: &str| {
        let mut file = files.open(path, How::new().write().create()).unwrap();
        file.write_at(0, &[7; 300_000]).unwrap();
        (file, files.look_up(path).unwrap().0.0)
    };
    let ((mut synced, first), (_other, second), (replaced, third)) = (open("synced"), open("other"), open("replaced"));
    synced.sync().unwrap();
    synced.write_at(300_000, &[8; 300_000]).unwrap();
    files.unlink("synced").unwrap();
    files.unlink("other").unwrap();
    write(&files, "new", b"new");
    files.rename("new", "replaced").unwrap();
    // One that is closed is gone with its name.
    let (closed, fourth) = open("closed");
    files.unlink("closed").unwrap();
    closed.close().unwrap();
    println!("\nheld {first} {second} {third} {fourth}");
    std::thread::sleep(Duration::from_secs(3600));
    drop(replaced);
}

/// Returns the dirty bytes that all servers have.
fn dirty_bytes(cluster: &Cluster) -> u64 {
    let of = |port: &u16| {
        let stream = std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
        std::io::Write::write_all(&mut &stream, b"stats cluster\r\n").unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        let count = lines.find_map(|line| line.strip_prefix("STAT files_dirty_bytes ").map(str::to_owned));
        count.expect("the count").parse::<u64>().unwrap()
    };
    cluster.ports.iter().map(of).sum()
}

#[test]
fn files_without_a_name_go_with_their_dead_mount() {
    let Some(cluster) = Cluster::repaired(2, Policy::Copies(2), 70) else { return };
    let (files, mut agent) = (mount(&cluster), begin(&cluster));
    let mut dead = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold", "--nocapture", "--include-ignored"])
        .env(HOLD, [cluster.urls(), cluster.backing().display().to_string()].join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(dead.stdout.take().unwrap()).lines().map(Result::unwrap);
    let held = lines.find_map(|line| line.strip_prefix("held ").map(str::to_owned)).expect("the files");
    let keys: Vec<String> = held.split(' ').map(|ino| Key::Inode(Ino(ino.parse().unwrap())).to_string()).collect();
    settle(&mut agent, &files);
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    // An empty value stands for a key that was deleted.
    let mut inode = |key: &String| client.get(key).unwrap().and_then(|value| Inode::decode(&value).ok());
    // It lives, so all of it stays.
    assert_eq!(agent.sweep(Duration::ZERO).unwrap().unnamed, 0);
    assert!(keys[..3].iter().all(|key| inode(key).is_some_and(|inode| inode.is_unlinked)) && inode(&keys[3]).is_none());
    let writer = inode(&keys[0]).unwrap().writer.unwrap();
    dead.kill().unwrap();
    dead.wait().unwrap();
    // Its key ends, as 30 s later.
    assert!(client.delete(Key::Mount(writer).to_string()).unwrap());
    assert!(dirty_bytes(&cluster) > 600_000);
    assert_eq!(agent.sweep(Duration::ZERO).unwrap().unnamed, 3);
    // Agents of servers end the writes that were under way.
    soon("that no chunk is dirty", || dirty_bytes(&cluster) == 0);
    let mut inode = |key: &String| client.get(key).unwrap().and_then(|value| Inode::decode(&value).ok());
    assert!(keys.iter().all(|key| inode(key).is_none()));
    assert_eq!(agent.sweep(Duration::ZERO).unwrap(), Default::default());
    assert_eq!(on_backing(&cluster, "replaced").unwrap(), b"new");
}

/// Servers take long for each of them, and files are carried in between.
#[test]
fn few_files_are_freed_at_a_time() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (files, dead, mut agent) = (mount(&cluster), mount(&cluster), begin(&cluster));
    let names = |kind: &str| (0..10).map(|at| format!("{kind}{at}")).collect::<Vec<_>>();
    for name in names("touched") {
        write(&files, &name, b"bytes");
    }
    settle(&mut agent, &files);
    // They have a generation that never began, and others lost their names.
    for name in names("touched") {
        files.open(&name, How::new().write()).unwrap().close().unwrap();
    }
    soon("that the touched ones are closed", || {
        names("touched").iter().all(|name| files.look_up(name).unwrap().1.writer.is_none())
    });
    let held: Vec<_> = names("held")
        .iter()
        .map(|name| {
            let file = dead.open(name, How::new().write().create()).unwrap();
            let (_, inode) = dead.look_up(name).unwrap();
            dead.unlink(name).unwrap();
            (file, inode.writer.unwrap())
        })
        .collect();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    assert!(client.delete(Key::Mount(held[0].1).to_string()).unwrap());
    let mut swept = vec![agent.sweep(Duration::ZERO).unwrap()];
    while let Some(more) = agent.sweep_on().unwrap() {
        swept.push(more);
    }
    let seen: Vec<_> = swept.iter().map(|swept| (swept.unnamed, swept.freed, swept.left)).collect();
    assert_eq!(seen, [(4, 0, 16), (8, 0, 12), (10, 2, 8), (10, 6, 4), (10, 10, 0)]);
    assert_eq!((agent.sweep_on().unwrap(), agent.sweep(Duration::ZERO).unwrap()), (None, Default::default()));
    assert_eq!(read(&files, "touched0"), b"bytes");
}

/// If the mount dies meanwhile, an agent finds the chunks that are left by the inode.
#[test]
fn a_removed_files_chunks_go_before_its_inode() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let mut file = files.open("a", How::new().write().create()).unwrap();
    let chunks = 300;
    file.write_at(0, &vec![7; chunks << 16]).unwrap();
    file.sync().unwrap();
    let (ino, inode) = files.look_up("a").unwrap();
    files.unlink("a").unwrap();
    let last = Key::Chunk(ino, inode.generation, chunks as u32 - 1).to_string();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    assert!(client.get(&last).unwrap().is_some());
    let closes = std::thread::spawn(move || file.close().unwrap());
    let inode = Key::Inode(ino).to_string();
    // An empty value stands for a key that was deleted.
    while client.get(&inode).unwrap().is_some_and(|value| !value.is_empty()) {}
    assert!(client.get(&last).unwrap().is_none(), "the chunk outlives its inode");
    closes.join().unwrap();
}

#[test]
fn notes_that_cannot_be_read_stop_no_sweep() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (files, dead, mut agent) = (mount(&cluster), mount(&cluster), begin(&cluster));
    let held = dead.open("held", How::new().write().create()).unwrap();
    let writer = dead.look_up("held").unwrap().1.writer.unwrap();
    dead.unlink("held").unwrap();
    let left = cluster.backing().join(".rdmakv/data/77.1.w");
    std::fs::write(&left, b"bytes").unwrap();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    // Buckets without the note.
    let keys = (2..18).flat_map(|number| (0..BUCKETS).map(move |at| Key::Bucket(Ino(number), at).to_string()));
    let broken: Vec<String> = keys.filter(|key| client.get(key).unwrap().is_none()).collect();
    assert_eq!(broken.len(), 255);
    for key in [&broken[0], &broken[254]] {
        assert!(client.set(key, b"no bucket", ()).unwrap().is_stored());
    }
    assert!(client.delete(Key::Mount(writer).to_string()).unwrap());
    let why = agent.sweep(Duration::ZERO).unwrap_err();
    assert!(why.to_string().contains(&broken[0]), "{why}");
    assert!(!left.exists());
    for key in &broken {
        client.delete(key).unwrap();
    }
    assert_eq!(agent.sweep(Duration::ZERO).unwrap(), Default::default(), "the file without a name is gone");
    drop((held, files));
}

/// A program reads what it has open, though another closed the file that it wrote there.
#[test]
fn files_without_a_name_stay_for_their_readers() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (files, mut agent) = (mount(&cluster), begin(&cluster));
    let open = |path: &str| {
        let mut file = files.open(path, How::new().write().create()).unwrap();
        file.write_at(0, path.as_bytes()).unwrap();
        (file, files.open(path, How::new()).unwrap(), files.look_up(path).unwrap().0)
    };
    let [removed, replaced, synced] = ["removed", "replaced", "synced"].map(open);
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    files.unlink("removed").unwrap();
    write(&files, "new", b"new");
    files.rename("new", "replaced").unwrap();
    // The one that is closed before it loses its name stays, too.
    for (file, reader, ino) in [removed, replaced, synced] {
        file.close().unwrap();
        let _ = files.unlink("synced");
        // What is closed is frozen, unless there is a reason.
        let _ = files.settle(Duration::ZERO);
        agent.round().unwrap();
        agent.sweep(Duration::ZERO).unwrap();
        assert!(!reader.read_at(0, 10).unwrap().is_empty());
        let key = Key::Inode(ino).to_string();
        assert!(client.get(&key).unwrap().is_some_and(|value| Inode::decode(&value).is_ok()));
        reader.close().unwrap();
        assert!(client.get(&key).unwrap().is_none_or(|value| Inode::decode(&value).is_err()), "it is gone");
    }
    assert_eq!(agent.sweep(Duration::ZERO).unwrap().unnamed, 0);
    assert_eq!(read(&files, "replaced"), b"new");
}

/// Bytes that tell of themselves whether they are whole.
fn marked(generation: u8) -> Vec<u8> {
    vec![generation; 70_000 * usize::from(generation)]
}

fn is_whole(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|&generation| *bytes == marked(generation))
}

#[test]
fn a_rewritten_file_is_never_shown_in_part() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let mut agent = begin(&cluster);
    let writer = files.clone();
    let writing = std::thread::spawn(move || {
        for generation in (1..=9).cycle().take(30) {
            write(&writer, "a", &marked(generation));
            writer.rename("a", "b").unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    while !writing.is_finished() {
        let round = agent.round().unwrap();
        assert!(round.failed.is_empty(), "{round:?}");
        for name in ["a", "b"] {
            assert!(on_backing(&cluster, name).is_none_or(|bytes| is_whole(&bytes)), "{name}");
        }
    }
    writing.join().unwrap();
    settle(&mut agent, &files);
    assert!(on_backing(&cluster, "b").unwrap() == marked(3));
    assert_eq!(names_on_backing(&cluster, ""), ["b"]);
}

/// An agent is killed after so many steps. It has a new file, a changed one, one that is gone, and a directory to show.
#[test]
fn an_agent_that_is_killed_is_followed() {
    let Some(cluster) = Cluster::carrying(2) else { return };
    let files = mount(&cluster);
    let stride = std::env::var("RDMAKV_STRIDE").map_or(5, |text| text.parse().expect("a number"));
    for steps in (0..).step_by(stride) {
        let path = |name: &str| format!("{name}{steps}");
        for name in ["changed", "gone"] {
            write(&files, &path(name), &marked(1));
        }
        assert!(agent(&cluster, None).wait().unwrap().success());
        write(&files, &path("changed"), &marked(2));
        write(&files, &path("new"), &marked(3));
        files.unlink(path("gone")).unwrap();
        files.mkdir(path("d")).unwrap();
        write(&files, &format!("d{steps}/e"), &marked(1));
        for path in [path("changed"), path("new"), format!("d{steps}/e")] {
            frozen(&files, &path);
        }
        let is_over = agent(&cluster, Some(steps)).wait().unwrap().success();
        let seen = |name: &str| on_backing(&cluster, &path(name));
        let changed = seen("changed").expect("the old or the new generation");
        assert!(changed == marked(1) || changed == marked(2), "{steps}");
        assert!(seen("new").is_none_or(|bytes| bytes == marked(3)), "{steps}");
        let inside = || on_backing(&cluster, &format!("d{steps}/e"));
        assert!(inside().is_none_or(|bytes| bytes == marked(1)), "{steps}");
        assert!(seen("gone").is_none_or(|bytes| bytes == marked(1)), "{steps}");
        assert!(agent(&cluster, None).wait().unwrap().success());
        files.settle(Duration::ZERO).unwrap();
        assert!(seen("changed").unwrap() == marked(2) && seen("new").unwrap() == marked(3), "{steps}");
        assert!(inside().unwrap() == marked(1) && seen("gone").is_none(), "{steps}");
        if is_over {
            assert!(steps > 40, "{steps}");
            return;
        }
        files.unlink(format!("d{steps}/e")).unwrap();
        files.rmdir(path("d")).unwrap();
    }
}

#[test]
fn a_server_killed_in_the_drain_loses_nothing() {
    let Some(cluster) = Cluster::start(3) else { return };
    lose_a_server(cluster, 60);
}

#[test]
fn a_server_killed_while_it_writes_loses_nothing() {
    let Some(cluster) = Cluster::carrying(3) else { return };
    lose_a_server(cluster, 40);
}

fn lose_a_server(mut cluster: Cluster, steps: u64) {
    let files = mount(&cluster);
    let mut dice = Dice(9);
    let all: Vec<(String, Vec<u8>)> = (0..8).map(|at| (format!("f{at}"), dice.bytes(1_000_000))).collect();
    all.iter().for_each(|(name, bytes)| write(&files, name, bytes));
    all.iter().for_each(|(name, _)| _ = frozen(&files, name));
    // It is killed in the middle, and another goes on without one of the servers.
    assert!(!agent(&cluster, Some(steps)).wait().unwrap().success());
    assert!(names_on_backing(&cluster, "").len() < all.len());
    let mut second = agent(&cluster, None);
    cluster.kill(1);
    assert!(second.wait().unwrap().success());
    files.settle(Duration::ZERO).unwrap();
    let files = mount(&cluster);
    for (name, bytes) in &all {
        assert!(on_backing(&cluster, name).unwrap() == *bytes, "{name} on the backing");
        assert!(read(&files, name) == *bytes, "{name} in memory");
    }
}

fn command(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmakv-fuse"));
    command.args(arguments).env("RDMAKV_ETCD", cluster.urls()).stdin(Stdio::null());
    command
}

#[test]
fn commands_drain_settle_and_tell() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let run = |arguments: &[&str]| {
        let output = command(&cluster, arguments).output().unwrap();
        let [said, told] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), said + &told)
    };
    write(&files, "a", &Dice(3).bytes(150_000));
    frozen(&files, "a");
    let (code, said) = run(&["files", "status", "--check"]);
    assert!(code == 0 && said.contains("dirty bytes  150000\n") && said.contains("lost         0\n"), "{said}");
    let (code, said) = run(&["files", "settle", "--timeout", "0"]);
    assert!(code == 1 && said.contains("/a after 0 s"), "{said}");
    let backing = cluster.backing().display().to_string();
    let mut first = command(&cluster, &["agent", "--backing", &backing]).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(run(&["files", "settle"]), (0, String::new()));
    assert_eq!(on_backing(&cluster, "a").unwrap().len(), 150_000);
    assert!(run(&["files", "status"]).1.contains("dirty bytes  0\n"));
    first.kill().unwrap();
    first.wait().unwrap();
    // A chunk of a file that is not on the backing is lost.
    write(&files, "c", b"lost");
    let (ino, inode) = frozen(&files, "c");
    let chunk = Key::Chunk(Ino(ino), inode.generation, 0).to_string();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    assert!(client.delete(&chunk).unwrap());
    drop(client);
    let (_, said) = run(&["files", "status", "--check"]);
    assert!(said.ends_with("lost         1\nlost /c\n"), "{said}");
    // One path may be settled while another one is not.
    assert_eq!(run(&["files", "settle", "/a", "--timeout", "0"]), (0, String::new()));
    let (code, said) = run(&["files", "settle", "c", "--timeout", "0"]);
    assert!(code == 1 && said.contains("/c after 0 s"), "{said}");
    let (code, said) = run(&["files", "settle", "no/c", "--timeout", "0"]);
    assert!(code == 1 && said.contains("look up no/c: no mount has used it"), "{said}");
    let mut agent = begin(&cluster);
    let round = agent.round().unwrap();
    let (path, why) = &round.failed[0];
    assert!(path == b"/c" && why.to_string().contains("its servers are lost"), "{why}");
    assert_eq!(on_backing(&cluster, "c"), None);
    // Wrong usage names what is missing.
    let output = command(&cluster, &["files", "status"]).env_remove("RDMAKV_ETCD").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// A file beyond an inherited limit fails, as on a full disk. All else goes on.
#[test]
fn an_agent_outlives_a_limit_on_file_sizes() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    write(&files, "large", &Dice(5).bytes(300_000));
    write(&files, "small", b"bytes");
    let script = format!("ulimit -f 200; ulimit -S -n 40; exec {} \"$@\"", env!("CARGO_BIN_EXE_rdmakv-fuse"));
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", "agent", "--backing"]).arg(cluster.backing()).env("RDMAKV_ETCD", cluster.urls());
    let mut agent = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(agent.stderr.take().unwrap()).lines();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let line = std::iter::from_fn(|| told.recv_timeout(common::PATIENCE).ok()).find(|line| line.contains("/large: "));
    assert!(line.as_ref().is_some_and(|line| line.contains("too large")), "{line:?}");
    soon("that the other file is shown", || on_backing(&cluster, "small").is_some());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
    let open = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(!open.contains(" 40 "), "{open}");
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// An agent's process, and what it prints.
struct Told(Child, std::sync::mpsc::Receiver<String>);

impl Told {
    fn start(cluster: &Cluster) -> Self {
        let backing = cluster.backing().display().to_string();
        let mut agent = command(cluster, &["agent", "--backing", &backing]).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(agent.stderr.take().unwrap()).lines();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self(agent, told)
    }

    /// Waits for a line. Operations on the cluster end after 30 s without an answer.
    fn says(&self, what: &str) {
        let mut seen = Vec::new();
        while let Ok(line) = self.1.recv_timeout(2 * common::PATIENCE) {
            if line.contains(what) {
                return;
            }
            seen.push(line);
        }
        panic!("the agent does not say {what:?}, but {seen:?}");
    }

    fn end(mut self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(process, signal).unwrap();
        soon("that the agent ends", || self.0.try_wait().unwrap().is_some());
    }
}

/// One agent works, and one waits for its turn.
#[test]
fn agents_outlive_an_outage_of_etcd() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    drop(mount(&cluster));
    let first = Told::start(&cluster);
    first.says("carries files");
    let second = Told::start(&cluster);
    second.says("waits until");
    cluster.set_etcd(false);
    let away = "the cluster is away";
    first.says(away);
    second.says(away);
    second.end(rustix::process::Signal::TERM);
    // An agent that begins now is told at once.
    let mut late = command(&cluster, &["agent", "--backing", "/"]);
    let output = late.output().unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && why.contains("etcd"), "{why}");
    cluster.set_etcd(true);
    first.says("the cluster is back: carries files");
    let files = mount(&cluster);
    write(&files, "a", b"after it");
    files.settle(common::PATIENCE).unwrap();
    assert_eq!(on_backing(&cluster, "a").unwrap(), b"after it");
    first.end(rustix::process::Signal::TERM);
}

#[test]
fn a_second_agent_follows_the_first() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let backing = cluster.backing().display().to_string();
    let start = || {
        let mut agent = command(&cluster, &["agent", "--backing", &backing]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(agent.stderr.take().unwrap()).lines();
        let line = said.next().unwrap().unwrap();
        (agent, said, line)
    };
    let (mut first, _first_said, line) = start();
    assert!(line.contains("carries files"), "{line}");
    let (mut second, mut second_said, line) = start();
    assert!(line.contains("waits until the agent that works has ended"), "{line}");
    write(&files, "a", b"by the first");
    files.settle(common::PATIENCE).unwrap();
    assert!(first.try_wait().unwrap().is_none() && second.try_wait().unwrap().is_none());
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(second_said.next().unwrap().unwrap().contains("carries files"));
    write(&files, "b", b"by the second");
    files.settle(common::PATIENCE).unwrap();
    assert_eq!(on_backing(&cluster, "b").unwrap(), b"by the second");
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn persisted_bytes_are_read_from_the_backing() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = mount(&cluster);
    let mut dice = Dice(4);
    let all: Vec<(String, Vec<u8>)> = (0..5).map(|at| (format!("f{at}"), dice.bytes(200_000))).collect();
    let mut agent = begin(&cluster);
    agent.keep(400_000).unwrap();
    for (name, bytes) in &all {
        write(&files, name, bytes);
        frozen(&files, name);
        settle(&mut agent, &files);
    }
    let other = mount(&cluster);
    let in_memory = |name: &String| !other.look_up(name).unwrap().1.map.is_empty();
    assert_eq!(all.iter().filter(|(name, _)| in_memory(name)).count(), 2);
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    let (ino, _) = other.look_up("f0").unwrap();
    assert!((0..4).all(|index| client.get(Key::Chunk(ino, Generation(1), index).to_string()).unwrap().is_none()));
    // One mount remembers where chunks were, and the other does not.
    for files in [&files, &other] {
        all.iter().for_each(|(name, bytes)| assert!(read(files, name) == *bytes, "{name}"));
    }
    // A later agent knows what is in memory, and a writer takes the rest from the backing.
    let mut later = begin(&cluster);
    later.keep(0).unwrap();
    let mut file = files.open("f1", How::new().write()).unwrap();
    file.write_at(100_000, b"changed").unwrap();
    file.close().unwrap();
    settle(&mut later, &files);
    let mut changed = all[1].1.clone();
    changed[100_000..100_007].copy_from_slice(b"changed");
    assert!(on_backing(&cluster, "f1").unwrap() == changed && read(&mount(&cluster), "f1") == changed);
    let third = mount(&cluster);
    assert!(all.iter().all(|(name, _)| third.look_up(name).unwrap().1.map.is_empty()));
}
