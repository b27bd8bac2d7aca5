//! The runs: how the cache is told, how memory changes hands, and the expected result.

use crate::report::{self, Expects, Goal, Row, Score};
use crate::rig::{Calls, Kind, Rig, Source};
use crate::{handed_over, racing};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `VmPin` is of the whole process, and so are processors.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
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
    let end = Instant::now() + Duration::from_secs(60);
    while pinned() != pages && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pinned(), pages, "pages pinned at the end");
}

/// A run: how the cache is told, how memory changes hands, and the expected result.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    source: Source,
    /// Whether registrations take long now and then.
    tardy: bool,
    fence: bool,
    pub(crate) expects: Expects,
    /// Its share of the time.
    pub(crate) share: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    HandedOver,
    Racing,
}

const fn plan(name: &'static str, form: Form, monitor: Kind, calls: Calls, expects: Expects, share: u32) -> Plan {
    Plan { name, form, source: Source { monitor, calls }, tardy: false, fence: false, expects, share }
}

// No plan has memory of an arena: only the cache changes its mappings, and this is about other changes.
// `safe_ways/arena.rs` and `cache_concurrent.rs` have what an arena promises.
pub(crate) const EXPLICIT: Plan =
    plan("handed over, explicit", Form::HandedOver, Kind::Explicit, Calls::Before, Expects::None, 3);
pub(crate) const TWICE: Plan = Plan {
    tardy: true,
    ..plan("handed over, explicit, intruders", Form::HandedOver, Kind::Explicit, Calls::Both, Expects::None, 3)
};
pub(crate) const HEARD: Plan =
    plan("handed over, userfaultfd", Form::HandedOver, Kind::Userfaultfd, Calls::None, Expects::None, 5);
pub(crate) const SLOW: Plan =
    plan("handed over, slow userfaultfd", Form::HandedOver, Kind::Slow, Calls::None, Expects::None, 4);
pub(crate) const ALL: Plan = Plan {
    tardy: true,
    fence: true,
    ..plan("handed over, all sources", Form::HandedOver, Kind::Userfaultfd, Calls::Some, Expects::None, 5)
};
pub(crate) const RACING_EXPLICIT: Plan =
    plan("racing reuse, explicit", Form::Racing, Kind::Explicit, Calls::Before, Expects::None, 3);
pub(crate) const RACING_ALL: Plan =
    plan("racing reuse, all sources", Form::Racing, Kind::Userfaultfd, Calls::Before, Expects::None, 3);
pub(crate) const RACING_HEARD: Plan =
    plan("racing reuse, userfaultfd", Form::Racing, Kind::Userfaultfd, Calls::None, Expects::Number, 3);
pub(crate) const OFF: Plan = plan("control: nobody tells", Form::HandedOver, Kind::Off, Calls::None, Expects::Some, 1);
pub(crate) const UNFLAGGED: Plan =
    plan("control: no flag raised", Form::HandedOver, Kind::Unflagged, Calls::None, Expects::Some, 2);

impl Plan {
    /// Runs it, or says why not.
    pub(crate) fn run(self, goal: Goal) -> Option<Row> {
        let before = pinned();
        let rig = match Rig::new(self.source.monitor, self.tardy, self.fence) {
            Ok(rig) => rig,
            Err(why) => {
                println!("{}: not run: {why}", self.name);
                return None;
            }
        };
        let (score, begun) = (Score::default(), Instant::now());
        let watch = || score.watch(self.name, goal, self.expects);
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
    #[allow(dead_code, reason = "where there is no device to wait for")]
    #[track_caller]
    pub(crate) fn holds_for(self, milliseconds: u64) {
        self.holds(Goal { operations: u64::MAX, time: Duration::from_millis(milliseconds) });
    }

    /// Until then, and it must come to what it has to.
    #[track_caller]
    pub(crate) fn holds(self, goal: Goal) {
        let _alone = alone();
        let Some(row) = self.run(goal) else {
            return;
        };
        let fault = row.fault();
        report::print(&[row]);
        if let Some(fault) = fault {
            panic!("{fault}");
        }
    }
}

/// Returns a number from the environment.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value:?}: a number")))
}
