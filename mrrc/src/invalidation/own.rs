//! The monitor of one cache.

use super::{Monitor, Reports, VouchError, Watch};
use crate::range::PageRange;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The monitor of one cache, which is the only one that calls it. Never with a lock held.
pub(crate) struct OwnMonitor(Box<dyn Monitor>);

#[expect(unsafe_code, reason = "a monitor's calls rely on their caller")]
impl OwnMonitor {
    /// Takes a monitor that is given to a cache by value.
    pub(crate) fn new(monitor: Box<dyn Monitor>) -> Self {
        Self(monitor)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Starts its reports to the cache. Once, when the cache is made.
    pub(crate) fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        // SAFETY: `start` requires that the monitor's owner calls it: it was given to this cache by value, and reports to it.
        unsafe { self.0.start(reports) }
    }

    pub(crate) fn watch(&self, range: PageRange) -> Watch {
        // SAFETY: `watch` requires that the monitor's owner calls it: it was given to this cache by value.
        unsafe { self.0.watch(range) }
    }

    /// Reads the seals of a descriptor.
    pub(crate) fn vouch(&self, fd: BorrowedFd<'_>) -> Result<(), VouchError> {
        self.0.vouch(fd)
    }

    /// Returns the bounds of a watched mapping of private anonymous memory, if they are known.
    #[cfg(target_os = "linux")]
    pub(crate) fn private_mapping(&self, page: u64) -> Option<PageRange> {
        self.0.private_mapping(page)
    }

    /// Once for each time that [`OwnMonitor::watch`] answered that the range is watched, when nothing there is to be found any
    /// more.
    pub(crate) fn unwatch(&self, range: PageRange) {
        // SAFETY: `unwatch` may be called once for each answer `Watched`; each is noted with its gap, then with its entry, and then
        // in a list of ranges to unwatch, and is taken from there to be given here.
        unsafe { self.0.unwatch(range) }
    }

    /// When the cache is closed.
    pub(crate) fn stop(&self) {
        // SAFETY: `stop` requires that this cache relies on no answer any more: nothing is cached from now on, and only
        // the owner of the cache, which is going, finds anything.
        unsafe { self.0.stop() }
    }
}
