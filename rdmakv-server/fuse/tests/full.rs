//! More bytes than the servers have memory for, against real servers and etcd. The tests are skipped, with a line, on machines without etcd.
//!
//! `RDMAKV_FULL=8192` writes so many MiB, through servers with three eighths of that memory.

#![cfg(feature = "library")]

mod common;
#[cfg(feature = "mount")]
mod mounted;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Cluster, soon};
use rdmakv_client::Options;
use rdmakv_cluster::config::Policy;
use rdmakv_fuse::{Agent, Files, How, Settings};
use rustix::io::Errno;

/// Bytes of a file.
const FILE: usize = 4 << 20;

/// Bytes that differ from those of other files.
fn bytes_of(file: usize) -> Vec<u8> {
    let mut state = file as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    };
    (0..FILE / 8).flat_map(|_| next()).collect()
}

fn write(files: &Files, path: &str, bytes: &[u8]) -> rdmakv_fuse::Result<()> {
    let mut file = files.open(path, How::new().write().create().truncate())?;
    file.write_at(0, bytes)?;
    file.close()
}

/// Returns counts of chunks of files that a server tells.
fn counts(cluster: &Cluster, server: usize, names: [&str; 4]) -> [u64; 4] {
    let stream = TcpStream::connect(("127.0.0.1", cluster.ports[server])).unwrap();
    (&stream).write_all(b"stats cluster\r\n").unwrap();
    let lines = BufReader::new(&stream).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.take_while(|line| line != "END").collect();
    let value = |name: &str| {
        let start = format!("STAT files_{name} ");
        let found = lines.iter().find_map(|line| line.strip_prefix(&start)).expect("the count");
        found.parse().unwrap()
    };
    names.map(value)
}

/// Returns how many writes all servers refused, and chunks that they evicted. None has more dirty bytes than it may.
fn refused_and_evicted(cluster: &Cluster) -> (u64, u64) {
    let mut sums = (0, 0);
    for server in 0..cluster.ports.len() {
        let [dirty, limit, refused, evicted] =
            counts(cluster, server, ["dirty_bytes", "dirty_limit_bytes", "refused", "evicted"]);
        assert!(dirty <= limit, "server {server} has {dirty} dirty bytes of {limit}");
        sums = (sums.0 + refused, sums.1 + evicted);
    }
    sums
}

/// An agent as a process, which begins later.
///
/// The process is there before files are written. A new one closes its copies of the files that this program has open. On a mount that waits
/// for room, as each close does.
struct Drains(Child);

impl Drains {
    fn prepare(cluster: &Cluster) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "read line && exec \"$0\" agent --backing \"$1\"", env!("CARGO_BIN_EXE_rdmakv-fuse")]);
        command.arg(cluster.backing()).env("RDMAKV_ETCD", cluster.urls());
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn begin(&mut self) {
        self.0.stdin.take().expect("it begins once").write_all(b"begin\n").unwrap();
    }
}

impl Drop for Drains {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts servers, and returns them with how many files to write: of more than two and a half times their memory.
fn servers(policy: Policy) -> Option<(Cluster, usize)> {
    let all = std::env::var("RDMAKV_FULL").map_or(128, |text| text.parse().expect("RDMAKV_FULL is a number"));
    Some((Cluster::start_as(3, all / 8, policy)?, (all as usize) << 20)).map(|(cluster, bytes)| (cluster, bytes / FILE))
}

/// Writes until servers refuse more, begins to drain, and writes the rest. Then all is on the backing, and is read again.
fn overfill(cluster: &Cluster, files: usize, write: impl Fn(usize) + Sync, read: impl Fn(usize) -> Vec<u8>) {
    let mut agent = Drains::prepare(cluster);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (0..files).for_each(&write));
        // Without an agent the writer ends by itself, so this is bounded however much fits.
        while refused_and_evicted(cluster).0 == 0 {
            assert!(!writing.is_finished(), "servers refuse dirty chunks");
            std::thread::sleep(Duration::from_millis(50));
        }
        agent.begin();
        while !writing.is_finished() {
            refused_and_evicted(cluster);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    cluster.mount().settle(Duration::from_secs(600)).unwrap();
    drop(agent);
    assert!(refused_and_evicted(cluster).1 > 0, "clean chunks are evicted");
    for file in 0..files {
        let bytes = bytes_of(file);
        assert!(std::fs::read(cluster.backing().join(format!("f{file}"))).unwrap() == bytes, "{file} on the backing");
        assert!(read(file) == bytes, "{file} as the mount has it");
    }
}

#[test]
fn more_is_written_than_memory_holds() {
    let Some((cluster, files)) = servers(Policy::Copies(2)) else { return };
    let (one, other) = (cluster.mount(), cluster.mount());
    let read = |file| other.open(format!("f{file}"), How::new()).unwrap().read_at(0, 1 << 30).unwrap();
    overfill(&cluster, files, |file| write(&one, &format!("f{file}"), &bytes_of(file)).unwrap(), read);
}

/// Each server evicts its fragments by itself. Too few of a chunk may be left, or none at its primary.
#[test]
fn fragments_are_evicted_and_read_elsewhere() {
    let Some((cluster, files)) = servers(Policy::Code { data: 2, parity: 1 }) else { return };
    let (one, other) = (cluster.mount(), cluster.mount());
    let read = |file| other.open(format!("f{file}"), How::new()).unwrap().read_at(0, 1 << 30).unwrap();
    overfill(&cluster, files, |file| write(&one, &format!("f{file}"), &bytes_of(file)).unwrap(), read);
}

/// More programs wait for room than threads serve the mount. Those that need no room go on, or the writes would fail after 2 minutes.
#[cfg(feature = "mount")]
#[test]
fn a_mount_serves_others_while_writes_wait() {
    const WRITERS: usize = 32;
    /// Small: all that are open at a time fit into the servers. Only closed files are drained.
    const PART: usize = 256 << 10;
    if !mounted::can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start_with(2, 48) else { return };
    let waits = ["--chunk", "64k", "--spill-after", "3600"];
    let (mounted, mut agent) = (mounted::Mounted::with(&cluster, &waits), Drains::prepare(&cluster));
    std::fs::write(mounted.path("small"), b"small").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mounted = &mounted;
            scope.spawn(move || {
                for (part, bytes) in bytes_of(writer).chunks(PART).enumerate() {
                    std::fs::write(mounted.path(&format!("f{writer}-{part}")), bytes).unwrap();
                }
            });
        }
        // Once nothing more gets in for a while, all that are left wait. What is staged and then refused elsewhere comes and goes.
        let (mut most, mut same) = (0, 0);
        soon("that the servers are full", || {
            let [dirty, _, refused, _] =
                counts(&cluster, 0, ["dirty_bytes", "dirty_limit_bytes", "refused", "evicted"]);
            same = if refused > 0 && dirty <= most { same + 1 } else { 0 };
            most = most.max(dirty);
            same > 100
        });
        assert_eq!(std::fs::read(mounted.path("small")).unwrap(), b"small");
        assert!(std::fs::read_dir(mounted.path("")).unwrap().count() > WRITERS / 2);
        std::fs::create_dir(mounted.path("d")).unwrap();
        std::fs::remove_dir(mounted.path("d")).unwrap();
        agent.begin();
    });
    for writer in 0..WRITERS {
        for (part, bytes) in bytes_of(writer).chunks(PART).enumerate() {
            assert!(std::fs::read(mounted.path(&format!("f{writer}-{part}"))).unwrap() == bytes, "{writer}, {part}");
        }
    }
}

/// Files that are open together have more bytes than the servers have memory, and no agent runs. All the same they are written, stored, read by
/// other mounts, and drained in the end.
#[test]
fn open_files_outgrow_memory() {
    const FILES: usize = 14;
    let Some(cluster) = Cluster::start_with(2, 48) else { return };
    let (files, other) = (cluster.mount(), cluster.mount());
    let mut open: Vec<_> =
        (0..FILES).map(|file| files.open(format!("f{file}"), How::new().write().create()).unwrap()).collect();
    for at in (0..FILE).step_by(256 << 10) {
        for (file, open) in open.iter_mut().enumerate() {
            open.write_at(at as u64, &bytes_of(file)[at..at + (256 << 10)]).unwrap();
        }
    }
    let read = |files: &Files, file| files.open(format!("f{file}"), How::new()).unwrap().read_at(0, 1 << 30).unwrap();
    for (file, mut open) in open.into_iter().enumerate() {
        assert!(open.read_at(0, 1 << 30).unwrap() == bytes_of(file), "{file}, before it is synced");
        open.sync().unwrap();
        assert!(read(&other, file) == bytes_of(file), "{file}, synced");
        open.close().unwrap();
        assert!(read(&other, file) == bytes_of(file), "{file}, closed");
    }
    let spilled = (0..FILES).filter(|file| files.look_up(format!("f{file}")).unwrap().1.is_spilled).count();
    assert!(spilled > 0, "the servers have less memory");
    let mut agent = Agent::begin(&cluster.address(), cluster.backing(), Options::default()).unwrap();
    soon("that all is drained", || agent.round().unwrap().failed.is_empty() && files.settle(Duration::ZERO).is_ok());
    for file in 0..FILES {
        assert!(std::fs::read(cluster.backing().join(format!("f{file}"))).unwrap() == bytes_of(file), "{file}");
        assert!(read(&other, file) == bytes_of(file), "{file}, drained");
    }
    let left: Vec<_> = std::fs::read_dir(cluster.backing().join(".rdmakv/data")).unwrap().collect();
    assert_eq!(left.len(), FILES, "{left:?}");
}

#[cfg(feature = "mount")]
#[test]
fn programs_write_at_once_more_than_memory() {
    const WRITERS: usize = 20;
    if !mounted::can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start_with(2, 48) else { return };
    let (mounted, mut agent) = (mounted::Mounted::new(&cluster), Drains::prepare(&cluster));
    agent.begin();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mounted = &mounted;
            scope.spawn(move || std::fs::write(mounted.path(&format!("f{writer}")), bytes_of(writer)).unwrap());
        }
    });
    for writer in 0..WRITERS {
        assert!(std::fs::read(mounted.path(&format!("f{writer}"))).unwrap() == bytes_of(writer), "{writer}");
    }
    cluster.mount().settle(Duration::from_secs(600)).unwrap();
    for writer in 0..WRITERS {
        assert!(std::fs::read(cluster.backing().join(format!("f{writer}"))).unwrap() == bytes_of(writer), "{writer}");
    }
}

#[cfg(feature = "mount")]
#[test]
fn programs_write_more_than_memory_holds() {
    if !mounted::can_mount() {
        return;
    }
    let Some((cluster, files)) = servers(Policy::Copies(2)) else { return };
    let mounted = mounted::Mounted::new(&cluster);
    let path = |file| mounted.path(&format!("f{file}"));
    overfill(
        &cluster,
        files,
        |file| std::fs::write(path(file), bytes_of(file)).unwrap(),
        |file| std::fs::read(path(file)).unwrap(),
    );
}

#[test]
fn a_write_that_nothing_drains_ends_with_enospc() {
    let Some(cluster) = Cluster::start_with(2, 64) else { return };
    let (chunk, settle, full, spill) = (64 << 10, Duration::ZERO, Duration::from_secs(1), Duration::MAX);
    let files = cluster.mount_with(Settings { chunk: Some(chunk), settle, full, spill, ..Settings::default() });
    let refused =
        (0..32).find_map(|file| write(&files, &format!("f{file}"), &bytes_of(file)).err().map(|why| (file, why)));
    let (written, why) = refused.expect("the servers have less memory");
    assert_eq!(why.errno(), Errno::NOSPC, "{why}");
    // Names still have room, and what was written is drained. Then there is room again.
    files.mkdir("d").unwrap();
    let mut agent = Agent::begin(&cluster.address(), cluster.backing(), Options::default()).unwrap();
    let name = format!("f{written}");
    soon("that all other files are drained", || {
        let round = agent.round().unwrap();
        assert!(round.failed.is_empty(), "{round:?}");
        (0..written).all(|file| cluster.backing().join(format!("f{file}")).exists())
    });
    write(&files, &name, &bytes_of(written)).unwrap();
    let settled = || agent.round().unwrap().failed.is_empty() && files.settle(Duration::ZERO).is_ok();
    let mut settled = settled;
    soon("that all is drained", &mut settled);
    assert!(std::fs::read(cluster.backing().join(&name)).unwrap() == bytes_of(written));
}
