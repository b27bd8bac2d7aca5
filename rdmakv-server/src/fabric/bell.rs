//! The bell that wakes the reaper of a fabric.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Wakes the reaper.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Whether the reaper sleeps until a client has a tag.
    sleeps: AtomicBool,
    ends: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// Wakes it: a client has a tag.
    pub(super) fn ring(&self) {
        if self.sleeps.load(Relaxed) {
            let _ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleeps.store(false, Relaxed);
            self.rung.notify_all();
        }
    }

    /// The end.
    pub(super) fn end(&self) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_all();
    }

    /// Waits for the next round, or, if no client has a tag, until one does; returns whether it is the end.
    pub(super) fn wait(&self, round: Duration, idle: bool) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if *ends {
            return true;
        }
        if idle {
            // Looked at again after a while all the same: a tag may just have been given.
            self.sleeps.store(true, Relaxed);
            *self.rung.wait_timeout(ends, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner).0
        } else {
            *self.rung.wait_timeout(ends, round).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
