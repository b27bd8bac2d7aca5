//! The scripts for Slurm, run as slurmd does: on a real mount where this machine mounts, and with commands that fail.

#![cfg(feature = "mount")]

mod common;
mod mounted;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::Cluster;
use mounted::{can_mount, command};

/// A node of Slurm: its configuration, its mounts, and commands in place of real ones.
struct Node {
    place: tempfile::TempDir,
}

impl Node {
    fn new(config: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("bin")).unwrap();
        let mounts = place.path().join("mounts");
        let own = format!("RDMAKV_MOUNTS={}\nRDMAKV_UNMOUNT_SECONDS=1\n{config}", mounts.display());
        fs::write(place.path().join("slurm.conf"), own).unwrap();
        Self { place }
    }

    /// Puts a command in place of the real one.
    fn fake(&self, name: &str, script: &str) {
        let path = self.place.path().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn mount(&self, job: &str) -> PathBuf {
        self.place.path().join("mounts").join(job)
    }

    fn run(&self, script: &str, job: Option<&str>) -> (i32, String) {
        let directory = Path::new(env!("CARGO_BIN_EXE_rdmakv-fuse")).parent().unwrap();
        let path = format!(
            "{}:{}:{}",
            self.place.path().join("bin").display(),
            directory.display(),
            std::env::var("PATH").unwrap()
        );
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm").join(script));
        command.env_clear().env("PATH", path).env("RDMAKV_SLURM_CONFIG", self.place.path().join("slurm.conf"));
        command.envs(job.map(|job| ("SLURM_JOB_ID", job)));
        // The mount in the background keeps the prolog's output, so it goes to a file.
        let log = self.place.path().join("log");
        let file = fs::File::create(&log).unwrap();
        let status = command.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
        (status.code().unwrap(), fs::read_to_string(log).unwrap())
    }
}

#[test]
fn a_job_writes_between_prolog_and_epilog() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    let backing = cluster.backing().display().to_string();
    let node = Node::new(&format!("RDMAKV_ETCD={}\nRDMAKV_BACKING={backing}\n", cluster.urls()));
    let mut agent = command(&cluster.urls(), &["agent", "--backing", &backing]).spawn().unwrap();
    // slurmd may run a prolog twice.
    for _ in 0..2 {
        assert_eq!(node.run("prolog.sh", Some("7")), (0, String::new()));
    }
    fs::write(node.mount("7").join("a"), b"of the job").unwrap();
    assert_eq!(node.run("epilog.sh", Some("7")), (0, String::new()));
    assert_eq!(fs::read(cluster.backing().join("a")).unwrap(), b"of the job");
    assert!(!node.mount("7").exists());
    // A job that has no mount ends, too.
    assert_eq!(node.run("epilog.sh", Some("8")), (0, String::new()));

    // The process of a mount dies, and the next prolog mounts anew.
    assert_eq!(node.run("prolog.sh", Some("9")).0, 0);
    let at = node.mount("9").display().to_string();
    let Output { stdout, .. } =
        Command::new("pgrep").args(["-f", &format!("rdmakv-fuse mount {at} ")]).output().unwrap();
    let process = String::from_utf8(stdout).unwrap();
    assert!(Command::new("kill").args(["-9", process.trim()]).status().unwrap().success(), "{process}");
    let (code, said) = node.run("prolog.sh", Some("9"));
    assert!(code == 0 && said.contains("the process of an earlier mount died"), "{said}");
    assert_eq!(fs::read(node.mount("9").join("a")).unwrap(), b"of the job");
    // A program that is left does not keep the epilog.
    let open = fs::File::open(node.mount("9").join("a")).unwrap();
    let (code, said) = node.run("epilog.sh", Some("9"));
    assert!(code == 0 && said.contains("programs use it after 1 s"), "{said}");
    drop(open);
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[test]
fn a_node_that_cannot_mount_is_told_why() {
    let node = Node::new("RDMAKV_ETCD=http://127.0.0.1:1\nRDMAKV_BACKING=/backing\nRDMAKV_MOUNT_SECONDS=1\n");
    for (job, remedy) in [(None, "let slurmd run this"), (Some("7; ls"), "let slurmd run this")] {
        for script in ["prolog.sh", "epilog.sh"] {
            let (code, said) = node.run(script, job);
            assert!(code == 1 && said.contains(remedy), "{script}: {said}");
        }
    }
    node.fake("rdmakv-fuse", "echo \"rdmakv-fuse: no cluster\" >&2; exit 1");
    let (code, said) = node.run("prolog.sh", Some("7"));
    assert!(code == 1 && said.contains("no cluster") && said.contains("rdmakv cluster status"), "{said}");
    // A mount that takes too long is given up.
    node.fake("rdmakv-fuse", "exec sleep 100");
    let (code, said) = node.run("prolog.sh", Some("7"));
    assert!(code == 1 && said.contains("took more than 1 s"), "{said}");
    // So is one that does nothing.
    node.fake("rdmakv-fuse", "exit 0");
    let (code, said) = node.run("prolog.sh", Some("7"));
    assert!(code == 1 && said.contains("nothing is mounted there"), "{said}");
    // A backing directory that lags behind does not drain the node.
    node.fake("rdmakv-fuse", "echo \"$@\" >&2; exit 1");
    let (code, said) = node.run("epilog.sh", Some("7"));
    assert!(code == 0 && said.contains("files settle --timeout 300 /\n") && said.contains("files status"), "{said}");
    for (config, remedy) in
        [("", "RDMAKV_ETCD is not set"), ("RDMAKV_ETCD=http://127.0.0.1:1\n", "RDMAKV_BACKING is not set")]
    {
        let (code, said) = Node::new(config).run("prolog.sh", Some("7"));
        assert!(code == 1 && said.contains(remedy), "{said}");
    }
}
