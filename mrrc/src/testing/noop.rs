//! No device at all: a measurement over it measures the cache.

use super::Registration;
use crate::access::Access;
use crate::range::PageRange;
use crate::registrar::{Limits, Registered, Registrar};
use crate::shim::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

/// Registers whatever it is asked for, at the price of one atomic addition, and forgets it.
///
/// It enforces no limits: those it is made with are only told. See [`Model`](super::Model) for others.
#[derive(Clone, Debug)]
pub struct NoopRegistrar {
    next: Arc<OwnLine>,
    limits: Limits,
}

/// A counter that shares its cache line, and the one fetched with it, with nothing.
#[derive(Debug)]
#[repr(align(128))]
struct OwnLine(AtomicU64);

impl NoopRegistrar {
    /// Without limits.
    pub fn new() -> Self {
        Self::with_limits(Limits::NONE)
    }

    /// With limits that it tells, and does not enforce.
    pub fn with_limits(limits: Limits) -> Self {
        Self { next: Arc::new(OwnLine(AtomicU64::new(1))), limits }
    }
}

impl Default for NoopRegistrar {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: there is no device, so nothing is touched on any registration's account; keys are counted up and
// never repeat.
#[expect(unsafe_code, reason = "the trait of the edge; there is nothing behind this one")]
unsafe impl Registrar for NoopRegistrar {
    type Registration = Registration;

    #[inline]
    fn register(&self, _: PageRange, _: Access) -> io::Result<Registration> {
        // Only uniqueness matters, nothing is published through the counter.
        let key = self.next.0.fetch_add(1, Ordering::Relaxed);
        Ok(Registration { key })
    }

    #[inline]
    fn deregister(&self, batch: &mut Vec<Registered<Registration>>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn name(&self) -> &'static str {
        "noop"
    }
}
