//! The calls of a monitor, made by a test that has it for itself.
#![allow(dead_code, unsafe_code, reason = "each test uses a part of it; a test plays the cache")]

use mrrc::PageRange;
use mrrc::invalidation::{Monitor, Reports, Watch};
use std::io;
use std::sync::Arc;

/// A cache's calls of its monitor. No device touches memory on account of what a test is told.
pub(crate) trait ByHand: Monitor {
    fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        // SAFETY: the test has the monitor for itself, and relies on nothing that it says to reach memory.
        unsafe { Monitor::start(self, reports) }
    }

    fn watch(&self, range: PageRange) -> Watch {
        // SAFETY: the caller makes the promises of the wrapped monitor's call.
        unsafe { Monitor::watch(self, range) }
    }

    fn unwatch(&self, range: PageRange) {
        // SAFETY: the caller makes the promises of the wrapped monitor's call.
        unsafe { Monitor::unwatch(self, range) }
    }

    fn stop(&self) {
        // SAFETY: the caller makes the promises of the wrapped monitor's call.
        unsafe { Monitor::stop(self) }
    }
}

impl<M: Monitor> ByHand for M {}
