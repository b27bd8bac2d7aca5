//! A cache under test, as the measurements see it.
//!
//! Everything is generic over [`Subject`] and compiled for each, so that the harness adds a loop and a load to
//! what it measures, and nothing else.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A registration cache.
pub trait Subject: Send + Sync + Sized {
    /// Returns an empty cache; `None` if there is no such cache here.
    ///
    /// # Errors
    /// Why it could not be made.
    fn create(setup: &Setup) -> Result<Option<Self>, String>;

    /// Returns the contestant and its setup in a line.
    fn about() -> String;

    /// Acquires the bytes for local use and releases them: what is measured. False if that failed.
    fn touch(&self, address: usize, length: usize) -> bool;

    /// Its registrar's settings and counts.
    fn behaviour(&self) -> &Behaviour;
}

/// The settings of a cache.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The most regions that may be registered, for caches that count regions.
    pub most_regions: usize,
    /// The most pages that may be registered, for caches that count pages. The same limit, for the regions at hand.
    pub most_pages: u64,
    /// No monitor is needed: the program reports changes of memory. (The peer's memory hooks are always off.)
    pub unwatched: bool,
    /// Registrations that begin at these addresses take [`Setup::pause`].
    pub slow: Range<usize>,
    /// See [`Setup::slow`].
    pub pause: Duration,
    /// Registrations that begin at these addresses fail with `EFAULT`.
    pub bad: Range<usize>,
}

impl Setup {
    /// Returns the behaviour of the dummy registrar.
    pub fn behaviour(&self) -> Behaviour {
        Behaviour {
            slow: [self.slow.start, self.slow.end],
            slow_ns: u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX),
            bad: [self.bad.start, self.bad.end],
            attempts: AtomicU64::new(0),
            deregistered: AtomicU64::new(0),
        }
    }
}

/// The dummy registrar of every cache: what it does at which address, and what it was asked to do.
///
/// The C shim declares the same layout. Counts are kept with a load and a store each, so that they cost next to
/// nothing: exact while one thread at a time registers, a little low otherwise.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Behaviour {
    slow: [usize; 2],
    slow_ns: u64,
    bad: [usize; 2],
    attempts: AtomicU64,
    deregistered: AtomicU64,
}

impl Behaviour {
    /// Registers a range that begins at `address`. False: it is a bad address.
    #[inline]
    pub fn register(&self, address: usize) -> bool {
        add(&self.attempts, 1);
        if (self.bad[0]..self.bad[1]).contains(&address) {
            return false;
        }
        if (self.slow[0]..self.slow[1]).contains(&address) {
            std::thread::sleep(Duration::from_nanos(self.slow_ns));
        }
        true
    }

    /// Deregisters so many regions.
    #[inline]
    pub fn deregister(&self, regions: usize) {
        add(&self.deregistered, regions as u64);
    }

    /// Registrations that were tried.
    pub fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// Regions that were deregistered.
    pub fn deregistered(&self) -> u64 {
        self.deregistered.load(Ordering::Relaxed)
    }
}

#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}
