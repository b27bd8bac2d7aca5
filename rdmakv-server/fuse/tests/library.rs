//! The library against real servers and etcd. The tests are skipped, with a line, on machines without etcd.
//!
//! `RDMAKV_FSX=N` has the comparison with a plain file take N steps, and `RDMAKV_SEED=N` has it take others.

#![cfg(feature = "library")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Cluster, Dice, PATIENCE, soon};
use rdmakv_client::{Client, Options, Stored};
use rdmakv_fuse::{Agent, Files, How, Settings};
use rdmakv_proto::files::{Bucket, Entry, Ino, Key, Kind, Standing, State, bucket_of};
use rustix::io::Errno;

fn write(files: &Files, path: &str, bytes: &[u8]) {
    let mut file = files.open(path, How::new().write().create().truncate()).unwrap();
    file.write_at(0, bytes).unwrap();
    file.close().unwrap();
}

fn read(files: &Files, path: &str) -> Vec<u8> {
    files.open(path, How::new()).unwrap().read_at(0, 1 << 30).unwrap()
}

fn names(files: &Files, path: &str) -> Vec<String> {
    let listed = files.list(path).unwrap().into_iter();
    let mut names: Vec<String> = listed.map(|listed| String::from_utf8(listed.name).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn closed_bytes_are_seen_by_another_mount() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (one, other) = (cluster.mount(), cluster.mount());
    let bytes = Dice(1).bytes(300_000);
    one.mkdir("run").unwrap();
    let mut file = one.open("run/a", How::new().write().create()).unwrap();
    file.write_at(0, &bytes).unwrap();
    // Nothing is synced yet, so others see the file before it was written.
    assert_eq!(read(&other, "run/a"), b"");
    file.sync().unwrap();
    assert_eq!(read(&other, "run/a"), bytes);
    file.write_at(70_000, b"later").unwrap();
    assert_eq!(file.read_at(69_999, 7).unwrap()[1..6], *b"later");
    file.close().unwrap();
    assert_eq!(read(&other, "run/a")[70_000..70_005], *b"later");
    assert_eq!(names(&other, "run"), ["a"]);
}

#[test]
fn errors_have_the_errno_of_a_file_system() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = cluster.mount();
    files.mkdir("d").unwrap();
    files.mkdir("e").unwrap();
    write(&files, "d/a", b"1");
    write(&files, "f", b"2");
    files.symlink("f", "l").unwrap();
    let long = "n".repeat(256);
    let error = |outcome: rdmakv_fuse::Result<()>| outcome.unwrap_err().errno();
    let open = |path: &str, how: How| files.open(path, how).map(drop);
    for (what, found, errno) in [
        ("no file", error(open("no", How::new())), Errno::NOENT),
        ("no directory", error(open("no/a", How::new())), Errno::NOENT),
        ("through a file", error(open("f/a", How::new())), Errno::NOTDIR),
        ("open a directory", error(open("d", How::new().write())), Errno::ISDIR),
        ("open a link", error(open("l", How::new())), Errno::LOOP),
        ("make what is there", error(open("f", How::new().write().create_new())), Errno::EXIST),
        ("too long", error(open(&long, How::new().write().create())), Errno::NAMETOOLONG),
        ("our folder", error(open(".rdmakv", How::new().write().create())), Errno::PERM),
        ("our folder again", error(files.mkdir(".rdmakv")), Errno::PERM),
        ("mkdir twice", error(files.mkdir("d")), Errno::EXIST),
        ("unlink nothing", error(files.unlink("no")), Errno::NOENT),
        ("unlink a directory", error(files.unlink("d")), Errno::ISDIR),
        ("rmdir a file", error(files.rmdir("f")), Errno::NOTDIR),
        ("rmdir with names", error(files.rmdir("d")), Errno::NOTEMPTY),
        ("rename nothing", error(files.rename("no", "x")), Errno::NOENT),
        ("rename onto a directory", error(files.rename("f", "d")), Errno::ISDIR),
        ("rename a directory", error(files.rename("d", "x")), Errno::XDEV),
        ("rename elsewhere", error(files.rename("f", "d/f")), Errno::XDEV),
        ("list a file", error(files.list("f").map(drop)), Errno::NOTDIR),
    ] {
        assert_eq!(found, errno, "{what}");
    }
    let mut reader = files.open("f", How::new()).unwrap();
    assert_eq!(reader.write_at(0, b"x").unwrap_err().errno(), Errno::BADF);
    let mut writer = files.open("f", How::new().write()).unwrap();
    assert_eq!(writer.write_at(1 << 60, b"x").unwrap_err().errno(), Errno::FBIG);
    assert_eq!(reader.append(b"").unwrap_err().errno(), Errno::BADF);
}

#[test]
fn names_change_and_open_files_stay() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = cluster.mount();
    for name in ["a", "b", "c"] {
        write(&files, name, name.as_bytes());
    }
    let removed = files.open("c", How::new()).unwrap();
    files.unlink("c").unwrap();
    let replaced = files.open("b", How::new()).unwrap();
    files.rename("a", "b").unwrap();
    assert_eq!(names(&files, ""), ["b"]);
    assert_eq!(read(&files, "b"), b"a");
    assert_eq!((removed.read_at(0, 9).unwrap(), replaced.read_at(0, 9).unwrap()), (b"c".to_vec(), b"b".to_vec()));
    removed.close().unwrap();
    replaced.close().unwrap();
    write(&files, "c", b"new");
    assert_eq!(read(&files, "c"), b"new");
    files.rename("b", "b").unwrap();
    files.unlink("b").unwrap();
    files.mkdir("d").unwrap();
    write(&files, "d/x", b"x");
    files.unlink("d/x").unwrap();
    files.rmdir("d").unwrap();
    assert_eq!(names(&files, ""), ["c"]);
}

#[test]
fn a_directory_in_use_is_busy_and_then_passes_on() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (one, other) = (cluster.mount(), cluster.mount());
    let mut file = one.open("a", How::new().write().create()).unwrap();
    file.write_at(0, b"1").unwrap();
    file.sync().unwrap();
    // An open writer keeps the directory.
    assert_eq!(other.open("b", How::new().write().create()).unwrap_err().errno(), Errno::BUSY);
    assert_eq!(other.open("a", How::new().write()).unwrap_err().errno(), Errno::BUSY);
    assert_eq!(read(&other, "a"), b"1");
    file.close().unwrap();
    write(&other, "b", b"2");
    write(&other, "a", b"3");
    assert_eq!((read(&one, "a"), read(&one, "b")), (b"3".to_vec(), b"2".to_vec()));
    // It comes back in the same way.
    write(&one, "a", b"4");
    assert_eq!(read(&other, "a"), b"4");
}

#[test]
fn files_of_the_backing_are_seen_and_changed() {
    let Some(cluster) = Cluster::start(2) else { return };
    let bytes = Dice(2).bytes(200_000);
    std::fs::create_dir_all(cluster.backing().join("old/deep")).unwrap();
    std::fs::write(cluster.backing().join("old/deep/a"), &bytes).unwrap();
    std::os::unix::fs::symlink("deep/a", cluster.backing().join("old/l")).unwrap();
    let files = cluster.mount();
    assert_eq!(names(&files, "old"), ["deep", "l"]);
    assert_eq!(read(&files, "old/deep/a"), bytes);
    let (_, link) = files.look_up("old/l").unwrap();
    assert_eq!((link.kind, link.target), (Kind::Link, b"deep/a".to_vec()));
    let mut file = files.open("old/deep/a", How::new().write()).unwrap();
    file.write_at(100_000, b"changed").unwrap();
    file.close().unwrap();
    let mut changed = bytes.clone();
    changed[100_000..100_007].copy_from_slice(b"changed");
    assert_eq!(read(&cluster.mount(), "old/deep/a"), changed);
    // The backing keeps the earlier generation until an agent shows the next one.
    assert_eq!(std::fs::read(cluster.backing().join("old/deep/a")).unwrap(), bytes);
    files.unlink("old/l").unwrap();
    assert_eq!(names(&files, "old"), ["deep"]);
    assert_eq!(names(&files, ""), ["old"]);
}

/// A buffer of bytes beyond the earlier generation does not know those before, which the new one has as a hole.
#[test]
fn zeros_of_an_earlier_generation_are_read() {
    let Some(cluster) = Cluster::start(2) else { return };
    std::fs::write(cluster.backing().join("f"), vec![0; 15_000]).unwrap();
    let mut file = cluster.mount().open("f", How::new().write()).unwrap();
    file.write_at(70_000, b"end").unwrap();
    assert_eq!(file.read_at(20_000, 3).unwrap(), [0; 3]);
    file.sync().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(file.read_at(0, 80_000)));
    let bytes = told.recv_timeout(PATIENCE).expect("the read ends").unwrap();
    assert!(bytes.len() == 70_003 && bytes[..70_000].iter().all(|&byte| byte == 0) && bytes.ends_with(b"end"));
}

/// With chunks of 64 KiB the mount itself writes files of 8 GiB at most.
#[test]
fn a_large_file_of_the_backing_is_seen() {
    let Some(cluster) = Cluster::start(2) else { return };
    let large = std::fs::File::create(cluster.backing().join("large")).unwrap();
    large.set_len(40 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&large, b"end", (40 << 30) - 3).unwrap();
    let files = cluster.mount();
    assert_eq!(files.look_up("large").unwrap().1.size, 40 << 30);
    assert_eq!(files.open("large", How::new()).unwrap().read_at((40 << 30) - 3, 9).unwrap(), b"end");
    files.unlink("large").unwrap();
    assert_eq!(names(&files, ""), [""; 0]);
}

fn put(client: &mut Client, key: &str, value: &[u8]) {
    assert!(matches!(client.set(key, value, ()).unwrap(), Stored::Yes(_)), "{key}");
}

/// A rename is noted, and fails half-way. It is completed before the directory changes otherwise.
#[test]
fn a_rename_that_fails_half_way_is_completed() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (files, other) = (cluster.mount(), cluster.mount());
    ["a", "b", "c"].iter().for_each(|name| write(&files, name, name.as_bytes()));
    let open = files.open("a", How::new().write()).unwrap();
    let key = Key::Bucket(Ino::ROOT, bucket_of(b"a")).to_string();
    assert_ne!(bucket_of(b"a"), bucket_of(b"b"));
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    let bucket = client.get(&key).unwrap().unwrap().into_vec();
    put(&mut client, &key, b"broken");
    assert_eq!(files.rename("a", "b").unwrap_err().errno(), Errno::IO);
    put(&mut client, &key, &bucket);
    files.rename("c", "d").unwrap();
    assert_eq!(names(&files, ""), ["b", "d"]);
    let mut open = open;
    open.write_at(0, b"A").unwrap();
    open.close().unwrap();
    assert_eq!(read(&files, "b"), b"A");
    write(&other, "e", b"e");
    assert_eq!(names(&other, ""), ["b", "d", "e"]);
}

/// Without room for its target's name, and of a file that is lost.
#[test]
fn a_rename_never_stops_a_directory() {
    let Some(cluster) = Cluster::start(2) else { return };
    drop(cluster.mount());
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    let mut full = Bucket::new(1);
    let is_put = |at: u64| {
        let name = format!("{at:0200}").into_bytes();
        full.put(Entry { name, ino: Ino(1000 + at), kind: Kind::File, standing: Standing::Shown })
    };
    assert!((0..100_000).map(is_put).any(|is_put| !is_put));
    put(&mut client, &Key::Bucket(Ino::ROOT, bucket_of(b"full")).to_string(), &full.encode());
    let (files, other) = (cluster.mount(), cluster.mount());
    let source = ["x", "y"].into_iter().find(|name| bucket_of(name.as_bytes()) != bucket_of(b"full")).unwrap();
    write(&files, source, b"bytes");
    let long = "f".repeat(200);
    let target = (0..).map(|at| format!("{long}{at}")).find(|name| bucket_of(name.as_bytes()) == bucket_of(b"full"));
    assert_eq!(files.rename(source, target.unwrap()).unwrap_err().errno(), Errno::NOSPC);
    files.rename(source, "z").unwrap();
    let (ino, _) = files.look_up("z").unwrap();
    assert!(client.delete(Key::Inode(ino).to_string()).unwrap());
    files.rename("z", "lost").unwrap();
    write(&files, "w", b"w");
    files.rename("w", "v").unwrap();
    write(&other, "e", b"e");
    assert_eq!(read(&other, "v"), b"w");
}

/// A mount point without its file system, or a directory that only this machine has.
#[test]
fn another_directory_is_refused_once_there_are_files() {
    let Some(cluster) = Cluster::start(2) else { return };
    let other = tempfile::tempdir().unwrap();
    let refused = |other: &std::path::Path| {
        let why = Files::mount(&cluster.address(), other, Settings::default()).unwrap_err();
        assert!(why.errno() == Errno::NOENT && why.to_string().contains("mount its file system"), "{why}");
        let why = Agent::begin(&cluster.address(), other, Options::default()).unwrap_err();
        assert_eq!(why.errno(), Errno::NOENT, "{why}");
        assert_eq!(std::fs::read_dir(other).unwrap().count(), 0, "nothing is made there");
    };
    // An agent may be the first one, too.
    drop(Agent::begin(&cluster.address(), cluster.backing(), Options::default()).unwrap());
    refused(other.path());
    write(&cluster.mount(), "a", b"bytes");
    refused(other.path());
    // The whole directory may move.
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(cluster.backing().join(".rdmakv")).arg(other.path());
    assert!(copy.status().unwrap().success());
    let settings = Settings { chunk: Some(64 << 10), ..Settings::default() };
    assert_eq!(read(&Files::mount(&cluster.address(), other.path(), settings).unwrap(), "a"), b"bytes");
}

/// Servers that all were restarted have no files, and no root directory.
#[test]
fn another_directory_is_refused_after_a_restart() {
    let Some(cluster) = Cluster::start(2) else { return };
    write(&cluster.mount(), "a", b"bytes");
    let restart = || {
        let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
        assert!(client.delete(Key::Inode(Ino::ROOT).to_string()).unwrap());
    };
    restart();
    let other = tempfile::tempdir().unwrap();
    let begin = |path: &std::path::Path| Agent::begin(&cluster.address(), path, Options::default());
    let why = begin(other.path()).unwrap_err();
    assert!(why.errno() == Errno::NOENT && why.to_string().contains("mount its file system"), "{why}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "nothing is made there");
    drop(begin(cluster.backing()).unwrap());
    // It is given up on purpose.
    restart();
    let why = why.to_string();
    let key = why.split_once("etcdctl del ").unwrap().1.trim_end_matches('`');
    cluster.forget(key);
    drop(begin(other.path()).unwrap());
    assert_eq!(begin(cluster.backing()).unwrap_err().errno(), Errno::EXIST);
}

#[test]
fn closed_bytes_survive_a_killed_server() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let files = cluster.mount();
    let mut dice = Dice(3);
    let mut all = BTreeMap::new();
    for at in 0..6 {
        let bytes = dice.bytes(150_000);
        if at == 3 {
            cluster.kill(1);
        }
        write(&files, &format!("f{at}"), &bytes);
        all.insert(format!("f{at}"), bytes);
    }
    for (name, bytes) in &all {
        assert_eq!(read(&files, name), *bytes, "{name}");
    }
    drop(files);
    let files = cluster.mount();
    all.iter().for_each(|(name, bytes)| assert_eq!(read(&files, name), *bytes, "{name}"));
}

/// No agent runs, which would end the dead mount's writing.
#[test]
fn a_dead_mounts_file_is_written_again() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (dead, files) = (cluster.mount(), cluster.mount());
    let mut file = dead.open("a", How::new().write().create()).unwrap();
    file.write_at(0, b"synced").unwrap();
    file.sync().unwrap();
    let refused = files.open("a", How::new().write()).unwrap_err();
    assert_eq!(refused.errno(), Errno::BUSY);
    // The mount's key ends, as after its death.
    let writer = dead.look_up("a").unwrap().1.writer.unwrap();
    let mut client = Client::of_cluster(&cluster.address(), Options::default()).unwrap();
    assert!(client.delete(Key::Mount(writer).to_string()).unwrap());
    let mut file = files.open("a", How::new().write()).unwrap();
    assert_eq!(file.append(b" and more").unwrap(), 6);
    file.close().unwrap();
    assert_eq!(read(&files, "a"), b"synced and more");
    write(&files, "b", b"b");
    files.rename("b", "a").unwrap();
    assert_eq!(read(&files, "a"), b"b");
}

#[test]
fn a_settled_file_is_frozen_and_begins_anew() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = cluster.mount_with(Settings { settle: Duration::ZERO, chunk: Some(64 << 10), ..Settings::default() });
    let frozen = |generation: u64| {
        common::soon("that the file is frozen", || {
            let (_, inode) = files.look_up("a").unwrap();
            (inode.state, inode.writer, inode.generation.0) == (State::Frozen, None, generation)
        });
    };
    write(&files, "a", &[7; 100_000]);
    frozen(1);
    let mut file = files.open("a", How::new().write()).unwrap();
    file.append(b"end").unwrap();
    file.close().unwrap();
    frozen(2);
    let bytes = read(&files, "a");
    assert!(bytes[..100_000] == [7; 100_000] && bytes[100_000..] == *b"end");
    // Opened for writing and not written: the generation stays.
    files.open("a", How::new().write()).unwrap().close().unwrap();
    frozen(2);
}

#[test]
fn a_file_is_as_a_plain_one() {
    let Some(cluster) = Cluster::start(2) else { return };
    is_as_a_plain_one(&cluster, Settings::default().spill);
}

/// The same where servers have room for some chunks, later for none: others go to the backing.
#[test]
fn a_file_that_spills_is_as_a_plain_one() {
    let Some(cluster) = Cluster::tight(2) else { return };
    is_as_a_plain_one(&cluster, Duration::ZERO);
}

/// An append that waits for room has filled a chunk in part. Its next try writes at the same place.
#[test]
fn appends_that_wait_are_written_once() {
    let Some(cluster) = Cluster::tight(2) else { return };
    let (files, other) = (cluster.mount(), cluster.mount());
    let (mut dice, mut plain) = (Dice(9), Vec::new());
    let mut file = files.open("a", How::new().write().create()).unwrap();
    for _ in 0..60 {
        let bytes = dice.bytes(50_000);
        assert_eq!(file.append(&bytes).unwrap(), plain.len() as u64);
        plain.extend_from_slice(&bytes);
    }
    file.close().unwrap();
    assert!(read(&other, "a") == plain);
}

/// A sync ends though another thread writes the same file all the time, faster than the disk.
#[test]
fn a_sync_ends_beside_a_steady_writer() {
    const MOST: u64 = 1 << 30;
    let Some(cluster) = Cluster::tight(2) else { return };
    let files = cluster.mount_with(Settings { chunk: Some(512 << 10), spill: Duration::ZERO, ..Settings::default() });
    let (begun, ended, is_through) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let mut writer = files.open("a", How::new().write().create()).unwrap();
    let mut syncing = files.open("a", How::new().write()).unwrap();
    let bytes = Dice(6).bytes(1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in (0..MOST).step_by(1 << 20) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // It goes round in a part of the file.
                writer.write_at(at % (64 << 20), &bytes).unwrap();
                begun.store(at > 8 << 20, Ordering::Relaxed);
            }
            is_through.store(true, Ordering::Relaxed);
        });
        soon("that chunks are written", || begun.load(Ordering::Relaxed));
        syncing.sync().unwrap();
        ended.store(true, Ordering::Relaxed);
        assert!(!is_through.load(Ordering::Relaxed), "the sync waited for the writer's end");
    });
    assert!(files.look_up("a").unwrap().1.is_spilled);
}

/// A reader that opened the file before finds a chunk that moved to the backing.
#[test]
fn a_chunk_that_moved_is_found() {
    let Some(cluster) = Cluster::tight(2) else { return };
    let files = cluster.mount_with(Settings { chunk: Some(64 << 10), spill: Duration::ZERO, ..Settings::default() });
    let (other, mut dice) = (cluster.mount(), Dice(4));
    let mut file = files.open("a", How::new().write().create()).unwrap();
    let (first, second) = (dice.bytes(3 << 16), dice.bytes(3 << 16));
    file.write_at(0, &first).unwrap();
    file.sync().unwrap();
    let reader = other.open("a", How::new()).unwrap();
    assert!(reader.read_at(0, 1 << 16).unwrap() == first[..1 << 16]);
    let mut filler = files.open("b", How::new().write().create()).unwrap();
    filler.write_at(0, &dice.bytes(40 << 16)).unwrap();
    filler.sync().unwrap();
    file.write_at(0, &second).unwrap();
    file.sync().unwrap();
    assert!(files.look_up("a").unwrap().1.is_spilled, "servers have room for the chunk in place");
    assert!(reader.read_at(2 << 16, 1 << 16).unwrap() == second[2 << 16..]);
}

/// Compares one file with a plain vector: writes, reads, truncates, syncs, reopens, renames, and reads of another mount.
fn is_as_a_plain_one(cluster: &Cluster, spill: Duration) {
    let number = |name: &str, other: u64| std::env::var(name).map_or(other, |text| text.parse().expect("a number"));
    let (steps, seed) = (number("RDMAKV_FSX", 600), number("RDMAKV_SEED", 5));
    let settings = Settings { settle: Duration::from_millis(50), chunk: Some(64 << 10), spill, ..Settings::default() };
    let (files, other) = (cluster.mount_with(settings), cluster.mount());
    let mut dice = Dice(seed);
    let mut plain: Vec<u8> = Vec::new();
    let (mut name, mut file) = ("a", files.open("a", How::new().write().create()).unwrap());
    for step in 0..steps {
        let at = dice.below(260_000) as usize;
        let length = if dice.below(8) == 0 { dice.below(140_000) } else { dice.below(3_000) } as usize;
        match dice.below(12) {
            0..=4 => {
                let bytes = dice.bytes(length);
                file.write_at(at as u64, &bytes).unwrap();
                if length > 0 {
                    plain.resize(plain.len().max(at + length), 0);
                    plain[at..at + length].copy_from_slice(&bytes);
                }
            }
            5..=7 => {
                let end = plain.len().min(at + length);
                let expected = plain.get(at..end).unwrap_or_default();
                assert!(file.read_at(at as u64, length as u64).unwrap() == expected, "step {step}, read {at}+{length}");
            }
            8 => {
                file.truncate(at as u64).unwrap();
                plain.resize(at, 0);
            }
            9 => file.sync().unwrap(),
            10 => {
                file.close().unwrap();
                if dice.below(3) == 0 {
                    std::thread::sleep(Duration::from_millis(300));
                }
                assert!(read(&other, name) == plain, "step {step}, another mount");
                file = files.open(name, How::new().write()).unwrap();
            }
            _ => {
                let next = if name == "a" { "b" } else { "a" };
                files.rename(name, next).unwrap();
                name = next;
            }
        }
    }
    file.close().unwrap();
    assert!(read(&files, name) == plain && read(&other, name) == plain);
}
