//! The torture over a real device: as `tests/torture`, whose runs these are, with memory regions in the place of fixed
//! buffers and RDMA reads and writes, of this side and of a peer, in that of an io_uring's.
//!
//! ```text
//! cargo test -p mrrc --features verbs --test verbs_torture                       a device is needed: see common/loopback.rs
//! TORTURE_SECONDS=60 cargo test … --test verbs_torture -- --ignored --nocapture long_form
//! ```

#![cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux", not(any(loom, shuttle))))]
#![allow(unsafe_code, reason = "memory is mapped, unmapped and given to a card by address")]

#[path = "../torture/handed_over.rs"]
mod handed_over;
#[path = "../common/loopback.rs"]
mod loopback;
#[path = "../torture/monitors.rs"]
mod monitors;
#[path = "../torture/plan.rs"]
mod plan;
#[path = "../torture/racing.rs"]
mod racing;
#[path = "../torture/random.rs"]
mod random;
#[path = "../torture/registrar.rs"]
mod registrar;
#[path = "../torture/report.rs"]
mod report;
#[path = "../torture/rig.rs"]
mod rig;
mod ring;
#[path = "../torture/stamps.rs"]
mod stamps;
#[path = "../torture/windows.rs"]
mod windows;

use plan::*;
use report::{Expects, Goal, Row};
use std::time::Duration;

/// Devices in software, in emulated machines, are as slow as they are: a number of operations, if there is time for them.
const fn operations(operations: u64) -> Goal {
    Goal { operations, time: Duration::from_secs(10) }
}

#[test]
fn an_address_handed_over_leads_a_card_to_no_old_page() {
    EXPLICIT.holds(operations(2000));
    HEARD.holds(operations(2000));
    ALL.holds(operations(2000));
}

#[test]
fn card_reads_no_old_page_under_racing_explicit() {
    RACING_EXPLICIT.holds(operations(500));
}

#[test]
fn a_cache_that_nobody_tells_is_caught() {
    OFF.holds(operations(2000));
}

/// Runs it; the control again, for as long, where a slow guest was through with too little to find anything.
fn run(plan: &Plan, goal: Goal) -> Option<Row> {
    let mut row = plan.run(goal)?;
    for _ in 0..5 {
        if plan.name != OFF.name || row.stale > 0 {
            break;
        }
        row = plan.run(goal)?;
    }
    Some(row)
}

#[test]
#[ignore = "long: see the first lines"]
fn long_form() {
    let _alone = alone();
    let plans = [EXPLICIT, TWICE, HEARD, SLOW, ALL, RACING_EXPLICIT, RACING_ALL, RACING_HEARD, OFF, UNFLAGGED];
    let shares: u32 = plans.iter().map(|plan| plan.share).sum();
    let seconds = Duration::from_secs(setting("TORTURE_SECONDS").unwrap_or(60));
    let goal = |plan: &Plan| Goal { operations: u64::MAX, time: seconds * plan.share / shares };
    println!();
    let rows: Vec<Row> = plans.iter().filter_map(|plan| run(plan, goal(plan))).collect();
    report::print(&rows);
    // Whether the control without the flag finds anything in so little time is luck, in a guest.
    let found = |row: &&Row| row.expects != Expects::Some || row.name == OFF.name;
    let faults: Vec<String> = rows.iter().filter(found).filter_map(Row::fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
