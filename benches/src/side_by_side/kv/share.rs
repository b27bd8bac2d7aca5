//! A share of a CPU for a process: a control group with a quota, in place of a processor that is clocked down.
//!
//! The quota's period is short (5 ms), so that a request meets a pause of milliseconds at most. Both versions of control groups are known; they
//! take root, or a group that was handed to this user. The group goes when this is dropped.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Microseconds in which the quota may be used.
const PERIOD: u32 = 5_000;

/// A control group whose processes together have a share of one CPU.
#[derive(Debug)]
pub(super) struct Share {
    group: PathBuf,
}

impl Share {
    /// Returns a group with this share, in percent of a CPU.
    ///
    /// # Errors
    /// There are no control groups for CPU time here, or they are not this user's to make.
    pub(super) fn new(percent: u32) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("side-by-side-{}-{number}", std::process::id());
        let quota = PERIOD * percent / 100;
        let one = PathBuf::from("/sys/fs/cgroup/cpu");
        let group = if one.join("cpu.cfs_quota_us").exists() || one.join("cgroup.procs").exists() {
            one.join(name)
        } else {
            PathBuf::from("/sys/fs/cgroup").join(name)
        };
        fs::create_dir(&group)?;
        let share = Self { group };
        if share.group.join("cpu.cfs_quota_us").exists() {
            fs::write(share.group.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            fs::write(share.group.join("cpu.cfs_quota_us"), quota.to_string())?;
        } else {
            fs::write(share.group.join("cpu.max"), format!("{quota} {PERIOD}"))?;
        }
        Ok(share)
    }

    /// Puts a process with all its threads under it.
    ///
    /// # Errors
    /// It is gone, or not this user's.
    pub(super) fn take(&self, process: u32) -> io::Result<()> {
        fs::write(self.group.join("cgroup.procs"), process.to_string())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Its processes have to be gone, or a moment more is needed until the kernel has seen that they are.
        for _ in 0..50 {
            if fs::remove_dir(&self.group).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
