//! The torture: threads map, unmap, move, discard and reuse the same few addresses while others acquire memory there and
//! transfer through real pins, and the bytes prove which pages were hit.
//!
//! A byte that was received (`READ_FIXED`) and is not in memory afterwards is *lost*; a byte that was sent
//! (`WRITE_FIXED`) and is not the one in memory is *misplaced*. Either means a stale hit. What is asserted to find none
//! is shown to find some where the cache is not told, or does not look at the flag.
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
mod racing;
mod random;
mod registrar;
mod report;
mod rig;
mod ring;
mod windows;

use report::{Expects, Goal, Row, Score};
use rig::{Calls, Kind, Rig, Source};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `VmPin` is of the whole process, and so are processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a process has no io_uring, or a failure if that is no reason.
fn ring_error(error: io::Error) -> String {
    let refused = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::ENOMEM, libc::EINVAL];
    assert!(error.raw_os_error().is_some_and(|code| refused.contains(&code)), "io_uring: {error}");
    format!("no io_uring with sparse tables of buffers for this process ({error}; Linux 5.19)")
}

/// Pages that the kernel counts as pinned by this process.
fn pinned() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("a line of pinned memory");
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 4
}

/// Older kernels unpin a little after a slot was cleared.
#[track_caller]
fn comes_to(pages: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while pinned() != pages && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pinned(), pages, "pages pinned at the end");
}

/// A run: who tells the cache, how memory changes hands, and what must come of it.
#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    form: Form,
    source: Source,
    /// Whether registrations take long now and then.
    tardy: bool,
    fence: bool,
    expects: Expects,
    /// Its share of the time.
    share: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    HandedOver,
    Racing,
}

const fn plan(name: &'static str, form: Form, monitor: Kind, calls: Calls, expects: Expects, share: u32) -> Plan {
    Plan { name, form, source: Source { monitor, calls }, tardy: false, fence: false, expects, share }
}

/// Whether the crate was built without its look at the flag.
const UNGATED: bool = cfg!(mrrc_torture_no_gate);

// Arenas that the cache owns will be one more source of each form: exact, like explicit calls.
const EXPLICIT: Plan = plan("handed over, explicit", Form::HandedOver, Kind::Explicit, Calls::Before, Expects::None, 3);
const TWICE: Plan = Plan {
    tardy: true,
    ..plan("handed over, explicit, intruders", Form::HandedOver, Kind::Explicit, Calls::Both, Expects::None, 3)
};
const HEARD: Plan =
    plan("handed over, userfaultfd", Form::HandedOver, Kind::Userfaultfd, Calls::None, Expects::None, 5);
const SLOW: Plan = plan("handed over, slow userfaultfd", Form::HandedOver, Kind::Slow, Calls::None, Expects::None, 4);
const ALL: Plan = Plan {
    tardy: true,
    fence: true,
    ..plan("handed over, all sources", Form::HandedOver, Kind::Userfaultfd, Calls::Some, Expects::None, 5)
};
const RACING_EXPLICIT: Plan =
    plan("racing reuse, explicit", Form::Racing, Kind::Explicit, Calls::Before, Expects::None, 3);
const RACING_ALL: Plan =
    plan("racing reuse, all sources", Form::Racing, Kind::Userfaultfd, Calls::Before, Expects::None, 3);
const RACING_HEARD: Plan =
    plan("racing reuse, userfaultfd", Form::Racing, Kind::Userfaultfd, Calls::None, Expects::Number, 3);
const OFF: Plan = plan("control: nobody tells", Form::HandedOver, Kind::Off, Calls::None, Expects::Some, 1);
const UNFLAGGED: Plan =
    plan("control: no flag raised", Form::HandedOver, Kind::Unflagged, Calls::None, Expects::Some, 2);

impl Plan {
    /// Runs it, or says why not.
    fn run(self, goal: Goal) -> Option<Row> {
        let before = pinned();
        let rig = match Rig::new(self.source.monitor, self.tardy, self.fence) {
            Ok(rig) => rig,
            Err(why) => {
                println!("{}: not run: {why}", self.name);
                return None;
            }
        };
        let (score, begun) = (Score::default(), Instant::now());
        let watch = || score.watch(self.name, goal);
        match self.form {
            Form::HandedOver => handed_over::run(&rig, self.source, &score, watch),
            Form::Racing => racing::run(&rig, self.source, &score, watch),
        }
        let (time, counters) = (begun.elapsed(), rig.cache.counters());
        assert!(counters.failed_deregs == 0, "{}: {counters:?}", self.name);
        drop(rig);
        comes_to(before);
        Some(Row::new(self.name, self.expects, score, counters, time))
    }

    /// For so long, and it must come to what it has to.
    #[track_caller]
    fn holds_for(self, milliseconds: u64) {
        let _alone = alone();
        let Some(row) = self.run(Goal { operations: u64::MAX, time: Duration::from_millis(milliseconds) }) else {
            return;
        };
        let fault = row.fault();
        report::print(&[row]);
        if let Some(fault) = fault {
            panic!("{fault}");
        }
    }
}

#[test]
fn an_address_handed_over_after_an_explicit_call_leads_to_no_old_page() {
    EXPLICIT.holds_for(400);
}

#[test]
fn nor_after_calls_before_and_after_a_change_during_which_others_acquire() {
    TWICE.holds_for(400);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn an_address_handed_over_under_userfaultfd_leads_to_no_old_page() {
    HEARD.holds_for(700);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn nor_does_it_when_there_is_time_between_reading_a_change_and_telling_it() {
    SLOW.holds_for(700);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn nor_with_all_sources_together() {
    ALL.holds_for(700);
}

#[test]
fn an_address_mapped_while_its_unmapping_is_under_way_leads_to_no_old_page_after_an_explicit_call() {
    RACING_EXPLICIT.holds_for(400);
    RACING_ALL.holds_for(400);
}

#[test]
#[cfg(not(mrrc_torture_no_gate))]
fn under_userfaultfd_alone_it_leads_to_none_once_the_unmapping_has_returned() {
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

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value:?}: a number")))
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
