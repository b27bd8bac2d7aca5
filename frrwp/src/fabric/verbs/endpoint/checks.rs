//! When an endpoint looks at the connection manager's events, which is a system call.

use std::time::{Duration, Instant};

/// Polls between two checks.
const POLLS: u32 = 64;
/// The longest time between two checks while things complete: a device in software may carry out each within the call that posts it.
const INTERVAL: Duration = Duration::from_millis(5);

/// Polls since the last check, and its time.
pub(super) struct Checks {
    polls: u32,
    last: Instant,
}

impl Checks {
    pub(super) fn new() -> Self {
        Self { polls: 0, last: Instant::now() }
    }

    /// Counts a poll. Returns whether a check is due.
    pub(super) fn polled(&mut self) -> bool {
        self.polls += 1;
        let is_due = self.polls >= POLLS;
        if is_due {
            self.polls = 0;
        }
        is_due
    }

    /// Notes that something has completed: the next poll checks, if the last check is old.
    pub(super) fn completed(&mut self, now: Instant) {
        if now.saturating_duration_since(self.last) >= INTERVAL {
            self.polls = POLLS;
        }
    }

    /// Notes a check.
    pub(super) fn done(&mut self, now: Instant) {
        self.last = now;
    }
}
