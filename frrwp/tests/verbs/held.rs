//! The resources of a process while it uses a device, and their return.

use super::ends::WITHIN;
use frrwp::fabric::verbs::VerbsDomain;
use std::process::Command;
use std::time::{Duration, Instant};

/// The resources of this process: descriptors, pinned memory, and the kernel's counts of the device.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Held {
    descriptors: usize,
    pub(super) pinned: String,
    counted: String,
}

impl Held {
    pub(super) fn now(domain: Option<&VerbsDomain>) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let pinned = status.lines().find(|line| line.starts_with("VmPin")).unwrap_or_default().to_owned();
        let name = domain.map_or("", |domain| domain.device());
        let said = Command::new("rdma").args(["resource", "show", name]).output();
        let counted = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
        Self { descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(), pinned, counted }
    }

    /// Nothing more is held than then. siw unpins a little later than it says.
    #[track_caller]
    pub(super) fn comes_back(&self, domain: Option<&VerbsDomain>) {
        let until = Instant::now() + WITHIN;
        loop {
            let now = Self::now(domain);
            if *self == now {
                return;
            }
            assert!(Instant::now() < until, "held before: {self:?}, and now: {now:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
