//! Monitors that are slow on purpose, or that break a promise on purpose.

use crate::registrar::linger;
use mrrc::PageRange;
use mrrc::invalidation::{Change, Monitor, Reports, Userfaultfd, Watch};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Says that it watches, and never reports anything: as if the program had forgotten to.
pub(crate) struct Off;

// SAFETY: not kept, on purpose: the torture is to find that. It acquires by unsafe functions, from memory that stays its own.
unsafe impl Monitor for Off {
    fn name(&self) -> &'static str {
        "off"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }
}

/// A layer between userfaultfd and the cache.
#[derive(Clone, Copy)]
pub(crate) struct Between {
    /// Time between reading what changed and telling it, now and then.
    pub(crate) delay: Duration,
    /// Whether the flag is raised, as it must be.
    pub(crate) raises: bool,
}

/// Userfaultfd, with something between it and the cache.
pub(crate) struct Altered(pub(crate) Userfaultfd, pub(crate) Between);

// SAFETY: userfaultfd's, unless it is told not to raise the flag: the torture is to find that.
unsafe impl Monitor for Altered {
    fn name(&self) -> &'static str {
        "altered userfaultfd"
    }

    unsafe fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()> {
        // SAFETY: a call of the cache that has this one, passed on.
        unsafe { self.0.start(Arc::new(Told { reports, between: self.1, count: AtomicU32::new(0) })) }
    }

    unsafe fn watch(&self, range: PageRange) -> Watch {
        // SAFETY: a call of the cache that has this one, passed on.
        unsafe { self.0.watch(range) }
    }

    unsafe fn unwatch(&self, range: PageRange) {
        // SAFETY: a call of the cache that has this one, passed on.
        unsafe { self.0.unwatch(range) }
    }

    unsafe fn stop(&self) {
        // SAFETY: a call of the cache that has this one, passed on.
        unsafe { self.0.stop() }
    }
}

struct Told {
    reports: Arc<dyn Reports>,
    between: Between,
    count: AtomicU32,
}

impl Reports for Told {
    fn raise(&self) {
        if self.between.raises {
            self.reports.raise();
        }
    }

    fn apply(&self, changes: &[Change]) -> bool {
        if self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            linger(self.between.delay);
        }
        self.reports.apply(changes)
    }

    fn lower(&self) {
        if self.between.raises {
            self.reports.lower();
        }
    }
}
