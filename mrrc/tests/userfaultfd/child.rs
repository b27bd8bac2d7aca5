//! Children of a fork, which may not hang, and threads by their names.

use std::time::{Duration, Instant};
use std::{ptr, thread};

/// Returns the kernel's numbers of the threads of that name.
pub(crate) fn threads(name: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let named = tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    named.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Runs in a child, with its own copy of everything, and ends there without any clean-up.
    pub(crate) fn fork(run: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child uses what other threads may have locked only as the C library allows after a fork.
        match unsafe { libc::fork() } {
            0 => {
                let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(1);
                // SAFETY: `_exit` ends this child without destructors.
                unsafe { libc::_exit(status) }
            }
            child => Self(child),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, which is not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

pub(crate) fn in_child(run: impl FnOnce() -> i32) {
    let child = Child::fork(run);
    let late = Instant::now() + Duration::from_secs(20);
    let mut status = 0;
    // SAFETY: `status` can be written; the child's number stays ours until `waitpid` has returned it.
    while unsafe { libc::waitpid(child.0, &mut status, libc::WNOHANG) } == 0 {
        assert!(Instant::now() < late, "the child hangs");
        thread::sleep(Duration::from_millis(1));
    }
    std::mem::forget(child);
    assert_eq!(status, 0, "the child failed: status {:#x}", status);
}
