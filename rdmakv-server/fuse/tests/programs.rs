//! Programs that know nothing of the mount. A test is skipped, with a line, where its program, etcd, `/dev/fuse` or root is missing.

#![cfg(feature = "mount")]

mod common;
mod mounted;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Cluster, Dice};
use mounted::{Mounted, can_mount};

/// Returns a mount, and its cluster; None where it or one of the programs is missing.
fn start(programs: &[&str]) -> Option<(Cluster, Mounted)> {
    if !can_mount() {
        return None;
    }
    for program in programs {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            eprintln!("skipped: no {program} here");
            return None;
        }
    }
    let cluster = Cluster::start(2)?;
    let mount = Mounted::with(&cluster, &[]);
    Some((cluster, mount))
}

/// Runs a program, which must succeed, and returns what it printed.
fn output(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    // The configuration of a user is no part of a test.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.args(arguments).current_dir(directory).output().unwrap();
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {said}{why}");
    said.into_owned()
}

/// Makes a tree of files with bytes at random, of sizes from none to some chunks.
fn tree(root: &Path) {
    let mut dice = Dice(9);
    for directory in 0..6 {
        let directory = root.join(format!("d{directory}/e"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..8 {
            let length = if file == 0 { 700_000 } else { dice.below(20_000) } as usize;
            fs::write(directory.join(format!("f{file}")), dice.bytes(length)).unwrap();
        }
        std::os::unix::fs::symlink("f1", directory.join("link")).unwrap();
    }
}

#[test]
fn tar_unpacks_what_diff_finds_equal() {
    let Some((_cluster, mount)) = start(&["tar", "diff"]) else { return };
    let plain = tempfile::tempdir().unwrap();
    tree(&plain.path().join("tree"));
    output(plain.path(), "tar", &["cf", "tree.tar", "tree"]);
    let (archive, at) = (plain.path().join("tree.tar"), mount.path(""));
    output(&at, "tar", &["xf", archive.to_str().unwrap()]);
    let (ours, theirs) = (mount.path("tree"), plain.path().join("tree"));
    output(&at, "diff", &["-r", "--no-dereference", ours.to_str().unwrap(), theirs.to_str().unwrap()]);
    output(&at, "tar", &["df", archive.to_str().unwrap()]);
    output(&at, "rm", &["-r", "tree"]);
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    assert!(mount.unmount().success());
}

#[test]
fn git_clones_and_finds_no_fault() {
    let Some((_cluster, mount)) = start(&["git"]) else { return };
    let plain = tempfile::tempdir().unwrap();
    let source = plain.path().join("source");
    tree(&source);
    let who = ["-c", "user.name=Test", "-c", "user.email=test@localhost"];
    output(&source, "git", &["init", "-q"]);
    output(&source, "git", &["add", "."]);
    output(&source, "git", &[&who[..], &["commit", "-qm", "first"]].concat());
    let url = format!("file://{}", source.display());
    output(&mount.path(""), "git", &["clone", "-q", &url, "copy"]);
    let copy = mount.path("copy");
    output(&copy, "git", &["fsck", "--full", "--strict"]);
    assert_eq!(output(&copy, "git", &["status", "--porcelain"]), "");
    fs::write(copy.join("new"), b"second").unwrap();
    output(&copy, "git", &["add", "new"]);
    output(&copy, "git", &[&who[..], &["commit", "-qm", "second"]].concat());
    output(&copy, "git", &["gc", "-q"]);
    output(&copy, "git", &["fsck", "--full", "--strict"]);
    assert_eq!(output(&copy, "git", &["log", "--format=%s"]), "second\nfirst\n");
    assert!(mount.unmount().success());
}

#[test]
fn a_killed_sqlite_leaves_whole_transactions() {
    let Some((_cluster, mount)) = start(&["sqlite3"]) else { return };
    let at = mount.path("");
    let create = "PRAGMA journal_mode=DELETE; CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB); CREATE INDEX i ON t (b);";
    output(&at, "sqlite3", &["db", create]);
    for round in 0..4_u64 {
        let insert =
            "BEGIN; INSERT INTO t (b) SELECT randomblob(900) FROM generate_series(1, 20); COMMIT;\n".repeat(200);
        let mut writer = Command::new("sqlite3").arg("db").current_dir(&at).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = writer.stdin.take().unwrap();
        let feed = std::thread::spawn(move || {
            use std::io::Write;
            // It is killed in the middle.
            let _ = input.write_all(insert.as_bytes());
        });
        std::thread::sleep(std::time::Duration::from_millis(150 + 100 * round));
        let _ = writer.kill();
        writer.wait().unwrap();
        feed.join().unwrap();
        assert_eq!(output(&at, "sqlite3", &["db", "PRAGMA integrity_check;"]), "ok\n");
        let rest = output(&at, "sqlite3", &["db", "SELECT count(*) % 20 FROM t;"]);
        assert_eq!(rest, "0\n", "a transaction is there in part");
    }
    assert!(mount.unmount().success());
}

#[test]
fn fio_reads_what_it_wrote() {
    let Some((_cluster, mount)) = start(&["fio"]) else { return };
    let at = mount.path("");
    for (kind, size) in [("write", "bs=1m"), ("randwrite", "bs=4k")] {
        let (name, size) = (format!("--name={kind}"), format!("--{size}"));
        let arguments = ["--size=8m", "--numjobs=2", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"];
        let more = ["--ioengine=psync", "--end_fsync=1", "--group_reporting", &size, &name, &format!("--rw={kind}")];
        output(&at, "fio", &[&arguments[..], &more].concat());
    }
    assert!(mount.unmount().success());
}

/// One file for each rank, then one that all ranks write, with `dd` as the program of a rank.
#[test]
fn ranks_of_mpi_write_files() {
    let Some((_cluster, mount)) = start(&["mpirun"]) else { return };
    let at = mount.path("");
    let write = "r=$OMPI_COMM_WORLD_RANK; yes $r | head -c 3000000 > rank.$r && \
                 dd if=rank.$r of=shared bs=1000000 count=1 seek=$r conv=notrunc,fsync status=none";
    let arguments = ["--allow-run-as-root", "--oversubscribe", "-n", "4", "sh", "-c", write];
    output(&at, "mpirun", &arguments);
    for rank in 0..4 {
        let bytes = fs::read(at.join(format!("rank.{rank}"))).unwrap();
        let expected = format!("{rank}\n").repeat(1_500_000);
        assert!(bytes == expected.as_bytes(), "rank {rank}");
        let shared = fs::read(at.join("shared")).unwrap();
        assert!(shared.len() == 4_000_000 && shared[rank * 1_000_000..][..1_000_000] == bytes[..1_000_000]);
    }
    assert!(mount.unmount().success());
}
