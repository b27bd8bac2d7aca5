//! A mount of a test's cluster: the command in a process of its own.

// Each test program uses some of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::common::{Cluster, soon};

/// A directory where a cluster's files are mounted.
pub(crate) struct Mounted {
    process: Child,
    place: tempfile::TempDir,
}

/// Returns whether this machine mounts. Prints a line if not.
pub(crate) fn can_mount() -> bool {
    let (has_device, is_root) = (Path::new("/dev/fuse").exists(), rustix::process::geteuid().is_root());
    if !has_device || !is_root {
        eprintln!("skipped: a mount needs /dev/fuse and root");
    }
    has_device && is_root
}

/// Returns the command, with arguments in place of the mount's own.
pub(crate) fn command(urls: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmakv-fuse"));
    command.args(arguments).env("RDMAKV_ETCD", urls).stdin(Stdio::null());
    command
}

impl Mounted {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        Self::with(cluster, &["--chunk", "64k"])
    }

    pub(crate) fn with(cluster: &Cluster, arguments: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        Self { process: start(cluster, place.path(), arguments), place }
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    /// Kills its process, as a machine that fails does. Programs that use the mount get errors.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let unmount = Command::new("umount").arg("-l").arg(self.place.path()).status().unwrap();
        assert!(unmount.success());
    }

    /// Mounts once more at the same place, after it was killed.
    pub(crate) fn again(&mut self, cluster: &Cluster, arguments: &[&str]) {
        self.process = start(cluster, self.place.path(), arguments);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Unmounts it as users do. Returns how its process ended.
    pub(crate) fn unmount(mut self) -> ExitStatus {
        soon("that nothing uses the mount", || {
            Command::new("umount").arg(self.place.path()).stderr(Stdio::null()).status().unwrap().success()
        });
        self.process.wait().unwrap()
    }

    /// Asks the process to end. Returns how it did.
    pub(crate) fn end(mut self) -> ExitStatus {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(self.place.path()).stderr(Stdio::null()).status();
    }
}

fn start(cluster: &Cluster, place: &Path, arguments: &[&str]) -> Child {
    let (at, backing) = (place.to_str().unwrap(), cluster.backing().to_str().unwrap());
    let arguments = [&["mount", at, "--backing", backing], arguments].concat();
    let mut process = command(&cluster.urls(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("mounted {at}\n"));
    process
}

/// Returns what a command printed to standard error, and its exit code.
pub(crate) fn failure(mut command: Command) -> (Option<i32>, String) {
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (process.wait().unwrap().code(), said)
}
