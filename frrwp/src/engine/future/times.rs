//! When the time of operations is over that wait for room.

use std::collections::BTreeSet;

/// Times, and the names of the futures that they are of.
#[derive(Default)]
pub(super) struct Times(BTreeSet<(u64, u64)>);

impl Times {
    pub(super) fn insert(&mut self, time: u64, name: u64) {
        self.0.insert((time, name));
    }

    /// Removes the time of a future, if it has one.
    pub(super) fn remove(&mut self, time: Option<u64>, name: u64) {
        if let Some(time) = time {
            self.0.remove(&(time, name));
        }
    }

    /// Returns the first time.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.first().map(|&(time, _)| time)
    }

    /// Takes the first out if its time is over.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<u64> {
        if self.first()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, name)| name)
    }
}
