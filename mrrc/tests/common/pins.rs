//! The kernel's count of pages pinned by this process.

#![allow(dead_code, reason = "each test uses a part of it")]

use mrrc::PAGE;
use std::time::{Duration, Instant};

/// Returns a line of this process's status.
pub(crate) fn status(name: &str) -> String {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

/// Pages that the kernel counts as pinned by this process.
pub(crate) fn pinned() -> u64 {
    status("VmPin").strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024 / PAGE
}

/// Older kernels unpin a little after a slot was cleared.
#[track_caller]
pub(crate) fn comes_to(pages: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while pinned() != pages && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pinned(), pages, "pages pinned");
}
