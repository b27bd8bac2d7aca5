//! The torture: threads map, unmap, move, discard and reuse the same few addresses while others acquire memory there and
//! transfer through real pins, and the bytes prove which pages were hit.
//!
//! A byte that was received (`READ_FIXED`) and is not in memory afterwards is *lost*. A byte that was sent
//! (`WRITE_FIXED`) and is not the one in memory is *misplaced*. Either means a stale hit. The cases asserted to find
//! none are shown to find some where the cache is not told, or does not look at the flag.
//!
//! ```text
//! cargo test -p mrrc --test torture                                                  some seconds
//! TORTURE_SECONDS=60 cargo test --release -p mrrc --test torture -- --ignored --nocapture long_form
//! TORTURE_OPERATIONS=10000000 cargo test --release -p mrrc --test torture -- --ignored --nocapture long_form
//! ```
//!
//! With operations, each run that is asserted does so many, and each race a tenth. With seconds, all runs together take
//! so long. No privileges are needed, and 8 MiB of `RLIMIT_MEMLOCK` are enough.
//!
//! To see the shipped check of the flag fail, build the crate without it (in a target directory of its own, as
//! everything is built anew):
//!
//! ```text
//! RUSTFLAGS="--cfg mrrc_torture_no_gate" cargo test --release -p mrrc --test torture --target-dir target/no-gate
//! ```

#![cfg(all(feature = "io-uring", target_os = "linux", not(any(loom, shuttle))))]
#![allow(unsafe_code, reason = "memory is mapped, unmapped and submitted to the kernel by address")]

mod handed_over;
mod monitors;
mod plan;
mod racing;
mod random;
mod registrar;
mod report;
mod rig;
mod ring;
mod stamps;
mod windows;

use plan::*;
use report::{Expects, Goal, Row};
use std::io;
use std::time::Duration;

/// Why a process has no io_uring, or a failure if that is no reason.
fn ring_error(error: io::Error) -> String {
    let refused = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::ENOMEM, libc::EINVAL];
    assert!(error.raw_os_error().is_some_and(|code| refused.contains(&code)), "io_uring: {error}");
    format!("no io_uring with sparse tables of buffers for this process ({error}; Linux 5.19)")
}

/// Whether the crate was built without its look at the flag.
const UNGATED: bool = cfg!(mrrc_torture_no_gate);

#[test]
fn explicit_handover_leads_to_no_old_page() {
    EXPLICIT.holds_for(400);
}

#[test]
fn change_guard_leads_to_no_old_page() {
    TWICE.holds_for(400);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn userfaultfd_handover_leads_to_no_old_page() {
    HEARD.holds_for(700);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn slow_userfaultfd_leads_to_no_old_page() {
    SLOW.holds_for(700);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn nor_with_all_sources_together() {
    ALL.holds_for(700);
}

#[test]
fn racing_explicit_unmap_leads_to_no_old_page() {
    RACING_EXPLICIT.holds_for(400);
    RACING_ALL.holds_for(400);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn racing_userfaultfd_unmap_leads_to_no_old_page() {
    RACING_HEARD.holds_for(400);
}

#[test]
fn a_cache_that_nobody_tells_is_caught() {
    OFF.holds_for(300);
}

#[test]
fn a_monitor_that_raises_no_flag_is_caught() {
    UNFLAGGED.holds_for(1000);
}

#[test]
#[cfg(mrrc_torture_no_gate)]
fn a_cache_that_does_not_look_at_the_flag_is_caught() {
    Plan { expects: Expects::Some, ..SLOW }.holds_for(2000);
    Plan { expects: Expects::Some, ..HEARD }.holds_for(10_000);
}

#[test]
#[ignore = "long: see the first lines of tests/torture/main.rs"]
fn long_form() {
    let _alone = alone();
    let plans = [EXPLICIT, TWICE, HEARD, SLOW, ALL, RACING_EXPLICIT, RACING_ALL, RACING_HEARD, OFF, UNFLAGGED];
    let shares: u32 = plans.iter().map(|plan| plan.share).sum();
    let seconds = Duration::from_secs(setting("TORTURE_SECONDS").unwrap_or(60));
    let operations = setting("TORTURE_OPERATIONS");
    let goal = |plan: &Plan| match (operations, plan.expects, plan.form) {
        (Some(_), Expects::Some, _) => Goal { operations: u64::MAX, time: Duration::from_secs(5) },
        (Some(operations), _, Form::HandedOver) => Goal { operations, time: Duration::MAX },
        (Some(operations), _, Form::Racing) => Goal { operations: operations / 10, time: Duration::MAX },
        (None, ..) => Goal { operations: u64::MAX, time: seconds * plan.share / shares },
    };
    // The harness has begun a line.
    println!();
    let rows: Vec<Row> = plans.iter().filter_map(|plan| plan.run(goal(plan))).collect();
    report::print(&rows);
    let faults: Vec<String> = rows.iter().filter_map(Row::fault).collect();
    assert!(UNGATED || faults.is_empty(), "{}", faults.join("\n"));
}
