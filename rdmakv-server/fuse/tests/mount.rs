//! The mount against a plain directory, on real servers and etcd. The tests are skipped, with a line, without etcd, `/dev/fuse` or root.
//!
//! `RDMAKV_FSX=N` has the comparison with a plain file take N steps, and `RDMAKV_SEED=N` has it take others.

#![cfg(feature = "mount")]

mod common;
mod mapped;
mod mounted;
mod steps;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Cluster, Dice, soon};
use mounted::{Mounted, can_mount, command, failure};
use rdmakv_fuse::How;

/// Cases that a mount answers as a plain directory does, after the themes of pjdfstest.
const SAME: &[&str] = &[
    // open
    "open f no RDONLY",
    "open f no RDWR",
    "open f no/a RDONLY|CREAT",
    "make a; open f a/b RDONLY",
    "make a; open f a/b RDONLY|CREAT",
    "open f a RDWR|CREAT 600; fstat f; stat a",
    "open f a RDWR|CREAT 444; write f x; cat a",
    "open f a WRONLY|CREAT; read f 1",
    "make a; open f a RDONLY; write f x",
    "make a; open f a RDWR|CREAT|EXCL",
    "symlink no a; open f a RDWR|CREAT|EXCL",
    "symlink b a; open f a RDWR|CREAT; write f x; list .; cat b",
    "put a hello; open f a RDWR|TRUNC; fstat f",
    "put a hello; open f a RDONLY|CREAT; read f 9",
    "put a hello; open f a RDWR|CREAT|TRUNC 600; fstat f",
    "mkdir d; open f d RDWR",
    "mkdir d; open f d WRONLY",
    "mkdir d; open f d RDONLY; fstat f",
    "mkdir d; open f d RDWR|CREAT",
    "make a; open f a RDONLY|DIRECTORY",
    "mkdir d; open f d RDONLY|DIRECTORY",
    "make a; symlink a l; open f l RDONLY|NOFOLLOW",
    "symlink l l; open f l RDONLY",
    "symlink b a; symlink a b; stat a; lstat a",
    "open f *255 RDWR|CREAT; list .",
    "open f *256 RDWR|CREAT",
    "stat *256; unlink *256; mkdir *256; rmdir *256; readlink *256",
    "make a; rename a *256; list .",
    // read, write, seek
    "open f a RDWR|CREAT; write f hello; seek f set 1; read f 3; seek f cur 0; seek f end -1; read f 9; read f 9",
    "open f a RDWR|CREAT; seek f set 5; write f x; fstat f; cat a",
    "open f a RDWR|CREAT; seek f cur -1",
    "open f a RDWR|CREAT; pwrite f 3 abc; pread f 0 9; pread f 6 9; pread f 7 9",
    "open f a RDWR|CREAT; fill f x 70000; pwrite f 65534 abcd; pread f 65533 7; fstat f",
    "open f a RDWR|CREAT; pwrite f 200000 end; pread f 65530 8; fstat f",
    "put a hello; open f a WRONLY|APPEND; write f X; write f Y; cat a",
    "put a hello; open f a RDWR|APPEND; seek f set 0; write f X; read f 9; seek f set 0; read f 9",
    "put a hello; open f a WRONLY|APPEND; open g a WRONLY|APPEND; write f 1; write g 2; write f 3; cat a",
    "put a hello; open f a RDWR|APPEND; ftruncate f 2; write f X; cat a",
    "put a hello; open f a RDONLY; open g a RDWR; pwrite g 0 J; pread f 0 9",
    "open f a RDWR|CREAT; write f one; open g a RDONLY; read g 9; write f two; read g 9; fsync f; close f; cat a",
    "put a hello; open f a RDONLY; put a bye; pread f 0 9; stat a",
    "mkdir d; open f d RDONLY; read f 1",
    // truncate
    "put a hello; truncate a 2; cat a; truncate a 4; cat a; stat a",
    "put a hello; truncate a 0; stat a; cat a",
    "put a hello; open f a RDWR; ftruncate f 3; fstat f; ftruncate f 6; pread f 0 9",
    "put a hello; open f a RDONLY; ftruncate f 3",
    "open f a RDWR|CREAT; fill f x 140000; ftruncate f 65537; ftruncate f 140000; pread f 65535 4; fstat f",
    "open f a RDWR|CREAT; ftruncate f 1000000; fstat f; pread f 999998 9",
    "truncate no 1; mkdir d; truncate d 1; make a; truncate a/b 1",
    "open f a RDWR|CREAT; fill f x 65536; fsync f; ftruncate f 10; fsync f; ftruncate f 20; pread f 8 20",
    // unlink
    "unlink no; make a; unlink a; stat a; list .",
    "mkdir d; unlink d",
    "make a; unlink a/b; unlink no/b",
    "symlink no a; unlink a; lstat a",
    "put a hello; open f a RDWR; unlink a; fstat f; links f; pread f 0 9; pwrite f 5 !; pread f 0 9; list .; close f; list .",
    "put a hello; open f a RDONLY; unlink a; read f 9; put a new; cat a; pread f 0 9",
    "put a hello; open f a RDWR; unlink a; ftruncate f 2; fsync f; fstat f; fchmod f 600; fstat f; close f",
    "open f a RDWR|CREAT; unlink a; write f x; make a; stat a; fstat f",
    "mkdir d; make d/a; unlink d/a; rmdir d; list .",
    // mkdir, rmdir
    "mkdir d; mkdir d; stat d; list d",
    "mkdir d 700; stat d; mkdir e 1777; stat e",
    "make a; mkdir a; mkdir a/b; mkdir no/b",
    "symlink no a; mkdir a",
    "mkdir d; mkdir d/e; mkdir d/e/f; list d/e; rmdir d/e; rmdir d/e/f; rmdir d/e; rmdir d; list .",
    "rmdir no; make a; rmdir a; rmdir a/b; symlink no l; rmdir l",
    "mkdir d; make d/a; rmdir d; list d",
    "mkdir d; rmdir d/.",
    "mkdir d; mkdir d/e; rmdir d/e/..",
    "mkdir d; rmdir d; mkdir d; make d/a; list d",
    "mkdir d; rmdir d; make d; stat d",
    "make a; unlink a; mkdir a; stat a; rmdir a; make a; stat a",
    "list no; make a; list a",
    "mkdir d; make d/a; make d/b; make d/c; list d; unlink d/b; list d",
    // rename
    "rename no a; make a; rename a no/b; rename a/b c",
    "put a hello; rename a b; cat a; cat b; list .",
    "put a one; put b two; rename a b; cat b; list .",
    "put a one; rename a a; cat a",
    "make a; mkdir d; rename a d; list .",
    "mkdir d; make a; rename d a; list .",
    "put a one; put b two; open f b RDONLY; rename a b; read f 9; cat b; links f",
    "put a one; open f a RDWR; rename a b; pwrite f 0 O; cat b; fstat f; close f; cat b",
    "put a one; rename a b; put a two; cat a; cat b; rename b a; cat a; list .",
    "put a one; put b two; rename-new a b; rename-new a c; list .; cat b; cat c",
    "symlink no a; rename a b; readlink b; lstat a",
    "symlink no a; put b two; rename b a; cat a; list .",
    "put a one; symlink a l; rename l b; readlink b; cat b",
    "mkdir d; rename d/. e; rename . e",
    "open f a RDWR|CREAT; write f one; rename a b; write f two; close f; cat b; list .",
    "put a one; unlink a; put b two; rename b a; cat a; rename a b; cat b; stat a",
    // symlink, readlink
    "symlink target a; readlink a; lstat a; list .",
    "put b hello; symlink b a; cat a; stat a",
    "symlink no a; cat a; stat a",
    "make a; symlink x a; mkdir d; symlink x d; symlink y z; symlink x z",
    "make a; readlink a; mkdir d; readlink d; readlink no",
    "symlink *4095 a; lstat a",
    "symlink *4096 a; list .",
    "mkdir d; put d/a hello; symlink d l; cat l/a; list l; put l/b x; list d",
    "symlink x no/a; make a; symlink x a/b",
    "symlink .. a; stat a/no",
    // chmod
    "make a; chmod a 0; stat a; chmod a 7777; stat a; chmod a 644; stat a",
    "mkdir d; chmod d 1755; stat d; chmod d 2755; mkdir d/e; stat d/e",
    "chmod no 644; make a; chmod a/b 644",
    "make a; symlink a l; chmod l 600; stat a",
    "open f a RDWR|CREAT; write f x; fchmod f 600; write f y; close f; stat a; cat a",
    "make a; as 1000; chmod a 777; stat a",
    "make a; chown a 1000 1000; as 1000; chmod a 600; stat a; chmod a 2777; stat a",
    "make a; chown a 1000 0; chmod a 644; as 1001; chmod a 600",
    // chown
    "make a; chown a 1000 1001; stat a; chown a - 5; stat a; chown a 6 -; stat a",
    "make a; symlink a l; chown l 1000 1000; stat a; lstat l; lchown l 7 8; lstat l; stat a",
    "chown no 1 1; make a; chown a/b 1 1; mkdir d; chown d 9 9; stat d",
    "make a; chmod a 6755; chown a 1000 1000; stat a",
    "make a; as 1000; chown a 1000 1000; stat a",
    "make a; chown a 1000 1000; as 1000; chown a 1001 -; chown a - 1000; stat a",
    "make a; chmod a 4755; chown a 1000 1000; chmod a 4755; as 1000; open f a RDWR; write f x; stat a",
    "mkdir d; chown d 5 77; chmod d 2777; make d/a; mkdir d/e; stat d/a; stat d/e",
    "mkdir d; chown d 5 77; chmod d 2777; as 1000; open f d/a RDWR|CREAT 644; fstat f; mkdir d/e; stat d/e",
    // permissions
    "put a hello; chmod a 600; as 1000; open f a RDONLY; open f a RDWR; access a r; access a w; stat a",
    "put a hello; chmod a 644; as 1000; cat a; open f a RDWR; access a x",
    "put a hello; chown a 1000 1000; chmod a 0; as 1000; cat a; access a r",
    "put a hello; chown a 0 1000; chmod a 640; as 1000; cat a; open f a WRONLY",
    "mkdir d; put d/a x; chmod d 700; as 1000; cat d/a; list d; stat d/a; unlink d/a; make d/b; mkdir d/e",
    "mkdir d; put d/a x; chmod d 744; as 1000; list d; cat d/a",
    "mkdir d; put d/a x; chmod d 711; as 1000; list d; cat d/a; unlink d/a",
    "mkdir d; put d/a x; chmod d 755; as 1000; unlink d/a; rename d/a d/b; symlink x d/l; rmdir d",
    "mkdir d; put d/a x; chmod d 777; as 1000; unlink d/a; make d/b; stat d/b; mkdir d/e; stat d/e; symlink x d/l; lstat d/l",
    "mkdir d; put d/a x; chmod d 1777; as 1000; unlink d/a; rename d/a d/b; make d/c; unlink d/c; list d",
    "mkdir d; chmod d 1777; put d/a x; chown d/a 1000 1000; as 1000; rename d/a d/b; unlink d/b; list d",
    "mkdir d; chmod d 1777; put d/a x; chmod d/a 666; as 1000; make d/b; rename d/b d/a; list d",
    "mkdir d; chmod d 1777; mkdir d/e; as 1000; rmdir d/e",
    "put a x; chmod a 666; as 1000; truncate a 0; touch a 5; stat a",
    "put a x; chmod a 600; as 1000; truncate a 0; touch a 5",
    "put a x; chmod a 755; access a x; chmod a 644; access a x; mkdir d; chmod d 0; access d x; list d",
    // times
    "make a; touch a 1000000000; time a; touch a 5; time a",
    "make a; touch a 5; open f a RDWR; fsync f; close f; time a",
    "make a; touch a 5; chmod a 600; time a; chown a 1 1; time a; rename a b; time b",
    "put a x; touch a 5; cat a; time a; stat a",
    "mkdir d; touch d 5; time d; make d/a; touch d 6; time d; stat d",
    "put a x; touch a 5; open f a RDONLY; read f 1; close f; time a",
    "mkdir d; touch d 5; stat d/no; list d; time d",
    "touch no 5; make a; touch a/b 5",
    "open f a RDWR|CREAT; write f x; touch a 7; close f; time a",
    "put a x; put b x; touch a 9; touch b 9; same-time a b",
    // mknod, fallocate, mmap, sync
    "mknod file a; stat a; mknod file a",
    "open f a RDWR|CREAT; fallocate f 0 0 100; fstat f; pread f 98 9; fallocate f 0 10 5; fstat f",
    "put a hello; open f a RDONLY; fallocate f 0 0 100; stat a",
    "open f a RDWR|CREAT; fallocate f 0 0 0",
    "put a hello; open f a RDONLY; mapped f 5",
    "put a hello; open f a RDWR; map-write f 5 1 EL; pread f 0 9; close f; cat a",
    "open f a RDWR|CREAT; fill f x 70000; map-write f 70000 65535 abc; pread f 65534 5; close f; stat a",
    "put a hello; open f a RDONLY; map-write f 5 0 J",
    "put a hello; open f a RDWR; mapped f 5; pwrite f 0 J; mapped f 5",
    "put a hello; open f a RDWR; unlink a; map-write f 5 0 J; pread f 0 9",
    "open f a RDWR|CREAT; fsync f; fdatasync f; write f x; fdatasync f; open g . RDONLY; fsync g; close f; cat a",
    "put a hello; open f a RDWR; open g a RDWR; pwrite f 0 A; pwrite g 4 Z; pread f 0 9; close f; pread g 0 9; close g; cat a",
    // names
    "make a; make A; make ä; make -; list .",
    "make .a; make a.; make a~; list .",
    "make *255; stat *255; rename *255 b; list .",
    "make a; stat a/; stat a/.; unlink a/",
    "mkdir d; stat d/; stat d/..; stat d/.; rmdir d/; list .",
    "make a; stat ./a; stat ../no; list ./.",
];

/// Cases that this version refuses: what the mount gives in place of what a plain directory would.
const REFUSED: &[(&str, &[&str])] = &[
    ("make a; link a b; list .", &["ok", "E1", "a"]),
    ("mkdir d; make a; link a d/b", &["ok", "ok", "E1"]),
    ("mknod fifo a; mknod socket b; list .", &["E1", "E1", ""]),
    ("mkdir d; rename d e; list .", &["ok", "E18", "d"]),
    ("mkdir d; mkdir e; rename d e; list .", &["ok", "ok", "E18", "d,e"]),
    ("mkdir d; put a x; rename a d/a; list .; cat a", &["ok", "ok", "E18", "a,d", "x"]),
    ("make a; make b; exchange a b", &["ok", "ok", "E22"]),
    ("make a; setxattr a user.x 1; getxattr a user.x", &["ok", "E95", "E95"]),
    ("open f a RDWR|CREAT; fallocate f 1 0 10; fstat f", &["ok", "E95", "file 644 0 0 0"]),
    ("put a hello; open f a RDWR; fallocate f 3 0 2; pread f 0 9", &["ok", "ok", "E95", "hello"]),
];

#[test]
fn answers_are_those_of_a_plain_directory() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let mount = Mounted::new(&cluster);
    let plain = tempfile::tempdir().unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    for root in [plain.path().to_owned(), mount.path("")] {
        let open = PermissionsExt::from_mode(0o755);
        fs::set_permissions(root, open).unwrap();
    }
    let mut differ = Vec::new();
    for (at, case) in SAME.iter().enumerate() {
        let (ours, theirs) = (mount.path(&format!("c{at}")), plain.path().join(format!("c{at}")));
        let run = |directory: &std::path::Path| {
            fs::create_dir(directory).unwrap();
            steps::run(directory, case)
        };
        let (ours, theirs) = (run(&ours), run(&theirs));
        if ours != theirs {
            differ.push(format!("{case}\n  mount {ours:?}\n  plain {theirs:?}"));
        }
    }
    for (at, (case, expected)) in REFUSED.iter().enumerate() {
        let directory = mount.path(&format!("r{at}"));
        fs::create_dir(&directory).unwrap();
        let given = steps::run(&directory, case);
        if given != *expected {
            differ.push(format!("{case}\n  mount {given:?}\n  expected {expected:?}"));
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
    assert!(mount.unmount().success());
}

#[test]
fn written_files_outlive_the_mount() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let bytes = Dice(1).bytes(300_000);
    let mount = Mounted::new(&cluster);
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/a"), &bytes).unwrap();
    assert!(mount.unmount().success());
    // A signal stores even what no program synced, though the file is open.
    let mount = Mounted::new(&cluster);
    assert_eq!(fs::read(mount.path("d/a")).unwrap(), bytes);
    let mut open = File::create(mount.path("b")).unwrap();
    open.write_all(b"not synced").unwrap();
    assert!(mount.end().success());
    drop(open);
    let files = cluster.mount();
    let read = |path: &str| files.open(path, How::new()).unwrap().read_at(0, 1 << 20).unwrap();
    assert_eq!((read("b"), read("d/a")), (b"not synced".to_vec(), bytes));
}

#[test]
fn mounts_see_what_others_closed() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let (one, other) = (Mounted::new(&cluster), Mounted::new(&cluster));
    fs::write(one.path("a"), b"first").unwrap();
    let reader = File::open(other.path("a")).unwrap();
    assert_eq!(fs::read(other.path("a")).unwrap(), b"first");
    fs::write(one.path("a"), b"second, longer").unwrap();
    // The pages of the first bytes are dropped at the next opening.
    assert_eq!(fs::read(other.path("a")).unwrap(), b"second, longer");
    // Even if the size is the same.
    let writer = fs::OpenOptions::new().write(true).open(one.path("a")).unwrap();
    writer.write_all_at(b"SECOND", 0).unwrap();
    drop(writer);
    assert_eq!(fs::read(other.path("a")).unwrap(), b"SECOND, longer");
    drop(reader);
    let writer = fs::OpenOptions::new().write(true).open(one.path("a")).unwrap();
    let refused = fs::OpenOptions::new().write(true).open(other.path("a")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::BUSY.raw_os_error()));
    drop(writer);
    fs::OpenOptions::new().append(true).open(other.path("a")).unwrap().write_all(b"!").unwrap();
    assert_eq!(fs::read(one.path("a")).unwrap(), b"SECOND, longer!");
    assert!(one.unmount().success() && other.unmount().success());
}

#[test]
fn a_read_only_mount_refuses_changes() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    fs::write(cluster.backing().join("a"), b"old").unwrap();
    let mount = Mounted::with(&cluster, &["--read-only"]);
    assert_eq!(fs::read(mount.path("a")).unwrap(), b"old");
    let refused = fs::write(mount.path("b"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    assert!(mount.unmount().success());
}

#[test]
fn a_mount_in_the_background_returns() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let place = tempfile::tempdir().unwrap();
    let (at, backing) = (place.path().to_str().unwrap(), cluster.backing().to_str().unwrap());
    let mut mount = command(&cluster.urls(), &["mount", at, "--backing", backing, "-d"]);
    // All that it prints is read to the end, as `$(...)` does.
    mount.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(mount.output().unwrap().status.success()));
    let mounts = told.recv_timeout(common::PATIENCE);
    fs::write(place.path().join("a"), b"x").unwrap();
    // A second one at the same place is refused, because it would hide the first.
    let (code, said) = failure(command(&cluster.urls(), &["mount", at, "--backing", backing, "-d"]));
    assert!(code == Some(1) && said.contains("use an empty one"), "{said}");
    assert!(Command::new("umount").arg(at).status().unwrap().success());
    assert_eq!(mounts, Ok(true), "a pipe is kept");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn refused_mounts_name_the_remedy() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let (place, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(full.path().join("a"), b"x").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (at, full, backing) = (text(place.path()), text(full.path()), text(cluster.backing()));
    let absent = format!("{at}/no");
    let foreign = tempfile::tempdir().unwrap();
    fs::create_dir(foreign.path().join(".rdmakv")).unwrap();
    fs::write(foreign.path().join(".rdmakv/id"), "00000000000000000000000000000001").unwrap();
    let foreign = text(foreign.path());
    for (urls, arguments, code, remedy) in [
        (cluster.urls(), vec![&full, "--backing", &backing], 1, "use an empty one"),
        (cluster.urls(), vec![&absent, "--backing", &backing], 1, "make the directory"),
        (cluster.urls(), vec![&at, "--backing", &foreign], 1, "use the cluster's own directory"),
        (cluster.urls(), vec![&at, "--backing", &backing, "--chunk", "5k"], 1, "use a power of two"),
        (cluster.urls(), vec![&at, "--backing", &absent], 1, "choose a directory"),
        (String::new(), vec![&at, "--backing", &backing], 2, "use --etcd URL"),
        ("http://127.0.0.1:1".to_owned(), vec![&at, "--backing", &backing], 1, "etcd"),
    ] {
        let arguments = [vec!["mount"], arguments].concat();
        let (given, said) = failure(command(&urls, &arguments));
        assert!(given == Some(code) && said.contains(remedy), "{arguments:?}: {given:?}: {said}");
    }
}

/// Returns a command that another user runs.
fn as_user(mut command: Command) -> Command {
    use std::os::unix::process::CommandExt;
    command.uid(USER).gid(USER);
    command
}

/// A user without privileges.
const USER: u32 = 65_534;

#[test]
fn a_user_without_privileges_mounts() {
    if !can_mount() {
        return;
    }
    let binary = as_user(command("", &["--version"])).stdout(std::process::Stdio::null()).status();
    let helper = Command::new("fusermount3").arg("--version").stdout(std::process::Stdio::null()).status();
    let is_open =
        fs::metadata("/dev/fuse").is_ok_and(|device| PermissionsExt::mode(&device.permissions()) & 0o006 == 0o006);
    if binary.is_err() || helper.is_err() || !is_open {
        eprintln!("skipped: no fusermount3 here, or other users may not use /dev/fuse or run what was built");
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let place = tempfile::tempdir().unwrap();
    for directory in [place.path(), cluster.backing()] {
        std::os::unix::fs::chown(directory, Some(USER), Some(USER)).unwrap();
    }
    let (at, backing) = (place.path().to_str().unwrap(), cluster.backing().to_str().unwrap());
    let mut mount = as_user(command(&cluster.urls(), &["mount", at, "--backing", backing, "-d"]));
    assert!(mount.status().unwrap().success());
    let run = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir("/");
        as_user(shell).output().unwrap()
    };
    let written = run(&format!("echo own >{at}/a && cat {at}/a && stat -c %u {at}/a"));
    assert_eq!(String::from_utf8_lossy(&written.stdout), format!("own\n{USER}\n"), "{written:?}");
    // Its mount is its own: even root does not see into it.
    assert_eq!(fs::read(place.path().join("a")).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    assert!(run(&format!("fusermount3 -u {at}")).status.success());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_mount_carries_another_mount() {
    if !can_mount() {
        return;
    }
    let (Some(cluster), Some(inner)) = (Cluster::start(2), Cluster::start(2)) else { return };
    let mount = Mounted::new(&cluster);
    let at = mount.path("below");
    fs::create_dir(&at).unwrap();
    let (at, backing) = (at.to_str().unwrap(), inner.backing().to_str().unwrap());
    let mut below = command(&inner.urls(), &["mount", at, "--backing", backing, "-d"]);
    assert!(below.status().unwrap().success());
    fs::write(mount.path("below/a"), b"inner").unwrap();
    fs::write(mount.path("a"), b"outer").unwrap();
    assert_eq!(fs::read(mount.path("below/a")).unwrap(), b"inner");
    // A file cannot be renamed from one to the other.
    let refused = fs::rename(mount.path("a"), mount.path("below/b")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::XDEV.raw_os_error()));
    assert!(Command::new("umount").arg(at).status().unwrap().success());
    assert_eq!(fs::read_dir(mount.path("below")).unwrap().count(), 0);
    assert!(mount.unmount().success());
}

/// Compares one file with a plain vector: writes, reads, truncates, appends, syncs, reopens and renames.
#[test]
fn a_mounted_file_is_as_a_plain_one() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let number = |name: &str, other: u64| std::env::var(name).map_or(other, |text| text.parse().expect("a number"));
    let (steps, seed) = (number("RDMAKV_FSX", 1000), number("RDMAKV_SEED", 5));
    let (mount, other) = (Mounted::new(&cluster), Mounted::new(&cluster));
    let mut dice = Dice(seed);
    let mut plain: Vec<u8> = Vec::new();
    let open = |name: &str| {
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.path(name)).unwrap()
    };
    let (mut name, mut file) = ("a", open("a"));
    for step in 0..steps {
        let at = dice.below(260_000) as usize;
        let length = if dice.below(8) == 0 { dice.below(140_000) } else { dice.below(3_000) } as usize;
        match dice.below(14) {
            0..=4 => {
                let bytes = dice.bytes(length);
                file.write_all_at(&bytes, at as u64).unwrap();
                if length > 0 {
                    plain.resize(plain.len().max(at + length), 0);
                    plain[at..at + length].copy_from_slice(&bytes);
                }
            }
            5..=7 => {
                let mut bytes = vec![0; length];
                let mut read = 0;
                while let count @ 1.. = file.read_at(&mut bytes[read..], (at + read) as u64).unwrap() {
                    read += count;
                }
                let end = plain.len().min(at + length);
                assert!(bytes[..read] == *plain.get(at..end).unwrap_or_default(), "step {step}, read {at}+{length}");
            }
            8 => {
                file.set_len(at as u64).unwrap();
                plain.resize(at, 0);
            }
            9 => file.sync_all().unwrap(),
            10 => {
                let bytes = dice.bytes(length.min(5000));
                let mut append = fs::OpenOptions::new().append(true).open(mount.path(name)).unwrap();
                append.write_all(&bytes).unwrap();
                plain.extend(bytes);
                assert_eq!(append.seek(SeekFrom::End(0)).unwrap(), plain.len() as u64, "step {step}");
            }
            11 => {
                drop(file);
                assert!(fs::read(other.path(name)).unwrap() == plain, "step {step}, another mount");
                file = open(name);
            }
            12 => assert!(fs::read(mount.path(name)).unwrap() == plain, "step {step}, another descriptor"),
            _ => {
                let next = if name == "a" { "b" } else { "a" };
                fs::rename(mount.path(name), mount.path(next)).unwrap();
                name = next;
            }
        }
    }
    drop(file);
    assert!(fs::read(mount.path(name)).unwrap() == plain && fs::read(other.path(name)).unwrap() == plain);
    assert!(mount.unmount().success() && other.unmount().success());
}

/// An agent as a process of its own, which works by the time this returns.
fn agent(cluster: &Cluster) -> std::process::Child {
    let backing = cluster.backing().to_str().unwrap();
    let mut agent = command(&cluster.urls(), &["agent", "--backing", backing]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(agent.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("carries files to"), "{line}");
    agent
}

#[test]
fn an_unmounted_process_waits_for_the_agent() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let bytes = Dice(3).bytes(3 << 20);
    // Without an agent it does not wait.
    let mounted = Mounted::new(&cluster);
    fs::write(mounted.path("a"), &bytes).unwrap();
    assert!(mounted.unmount().success());
    assert!(!cluster.backing().join("a").exists());
    let mut agent = agent(&cluster);
    let mounted = Mounted::new(&cluster);
    // The agent shows one directory of these in each round.
    fs::create_dir_all(mounted.path("n/e/w")).unwrap();
    let names = ["b", "c", "d", "n/e/w/f"];
    for name in names {
        fs::write(mounted.path(name), &bytes).unwrap();
    }
    assert!(mounted.unmount().success());
    for name in names {
        assert!(fs::read(cluster.backing().join(name)).is_ok_and(|shown| shown == bytes), "{name}");
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
    // One that was killed is known to work for 12 s more. With the flag nothing is waited for.
    let mounted = Mounted::with(&cluster, &["--no-settle"]);
    fs::write(mounted.path("e"), &bytes).unwrap();
    assert!(mounted.unmount().success());
    assert!(!cluster.backing().join("e").exists());
}

/// The process waits for an agent that cannot carry a file. Then all servers are gone, so its questions get no answers.
#[test]
fn a_signal_ends_the_wait_for_a_lost_cluster() {
    if !can_mount() {
        return;
    }
    let Some(mut cluster) = Cluster::start(2) else { return };
    let mut agent = agent(&cluster);
    let place = tempfile::tempdir().unwrap();
    let (at, backing) = (place.path().to_str().unwrap(), cluster.backing().to_str().unwrap().to_owned());
    let mut command = command(&cluster.urls(), &["mount", at, "--backing", &backing, "--chunk", "64k"]);
    let mut mount = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(mount.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("mounted {at}\n"));
    let other = cluster.mount();
    let mut file = File::create(place.path().join("a")).unwrap();
    let (ino, _) = other.look_up("a").unwrap();
    // No file can be made where a directory is.
    fs::create_dir(cluster.backing().join(format!(".rdmakv/data/{:x}.1", ino.0))).unwrap();
    file.write_all(b"bytes").unwrap();
    drop(file);
    soon("that nothing uses the mount", || Command::new("umount").arg(at).status().unwrap().success());
    // It has given up its directories, and waits.
    soon("that another mount makes names", || other.mkdir("d").is_ok());
    drop(other);
    (0..2).for_each(|server| cluster.kill(server));
    // Longer than between two looks. The next one takes 30 s.
    std::thread::sleep(Duration::from_secs(6));
    let process = rustix::process::Pid::from_child(&mount);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut said = String::new();
    mount.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(mount.wait().unwrap().success() && said.contains("a signal ended the wait"), "{said}");
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// Without an agent the process ends soon.
#[test]
fn open_files_are_stored_and_closed_after_a_signal() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let place = tempfile::tempdir().unwrap();
    let (at, backing) = (place.path().to_str().unwrap(), cluster.backing().to_str().unwrap());
    let mut command = command(&cluster.urls(), &["mount", at, "--backing", backing]);
    let mut mount = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(mount.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("mounted {at}\n"));
    let mut file = File::create(place.path().join("a")).unwrap();
    file.write_all(b"bytes").unwrap();
    let process = rustix::process::Pid::from_child(&mount);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut said = String::new();
    mount.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(mount.wait().unwrap().success(), "{said}");
    assert!(said.contains("files that are open are stored and closed now"), "{said}");
    let error = file.write_all(b"more").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    assert_eq!(cluster.mount().open("a", How::new()).unwrap().read_at(0, 9).unwrap(), b"bytes");
}

#[test]
fn lost_output_and_unsettled_files_are_failures() {
    let Some(cluster) = Cluster::start(2) else { return };
    let files = cluster.mount();
    files.open("a", How::new().write().create()).unwrap().close().unwrap();
    let mut status = command(&cluster.urls(), &["files", "status"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = status.stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&status.stderr);
    assert!(status.status.code() == Some(1) && said.contains("write standard output: No space left"), "{said}");
    let (code, said) = failure(command(&cluster.urls(), &["files", "settle", "--timeout", "0"]));
    assert!(code == Some(1) && said.contains("reports that the directory has no room or fails"), "{said}");
}
