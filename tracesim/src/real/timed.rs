//! A registrar that tells how long it took, and looks at what the kernel says is pinned when that is more than ever. It takes requests
//! for peers, and grants them the local rights that there are.

use super::status;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc_core::{Access, PageRange};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Time and calls of a registrar.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub struct Spent {
    /// Registrations that came about.
    pub registrations: u64,
    /// Their pages.
    pub reg_pages: u64,
    /// Regions deregistered.
    pub deregistrations: u64,
    /// Calls to deregister.
    pub batches: u64,
    /// Microseconds of registrations.
    pub reg_us: f64,
    /// Microseconds of deregistrations.
    pub dereg_us: f64,
}

impl Spent {
    /// Microseconds of both.
    pub fn total_us(&self) -> f64 {
        self.reg_us + self.dereg_us
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.registrations += other.registrations;
        self.reg_pages += other.reg_pages;
        self.deregistrations += other.deregistrations;
        self.batches += other.batches;
        self.reg_us += other.reg_us;
        self.dereg_us += other.dereg_us;
    }
}

/// Counts of one registrar, read by its owner. Relaxed: one thread registers.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    registrations: AtomicU64,
    reg_ns: AtomicU64,
    reg_pages: AtomicU64,
    dereg_ns: AtomicU64,
    deregistrations: AtomicU64,
    batches: AtomicU64,
    /// Pages registered now.
    pages: AtomicU64,
    /// Pages at which the kernel was last asked.
    looked: AtomicU64,
    pinned_kib: AtomicU64,
}

impl Clock {
    pub(crate) fn spent(&self) -> Spent {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Spent {
            registrations: of(&self.registrations),
            reg_pages: of(&self.reg_pages),
            deregistrations: of(&self.deregistrations),
            batches: of(&self.batches),
            reg_us: of(&self.reg_ns) as f64 / 1e3,
            dereg_us: of(&self.dereg_ns) as f64 / 1e3,
        }
    }

    pub(crate) fn pinned_kib(&self) -> u64 {
        self.pinned_kib.load(Ordering::Relaxed)
    }

    /// Asks the kernel when a hundredth more is registered than when it was asked last.
    fn look(&self) {
        let now = self.pages.load(Ordering::Relaxed);
        let looked = self.looked.load(Ordering::Relaxed);
        if now > looked + looked / 100 {
            self.looked.store(now, Ordering::Relaxed);
            self.pinned_kib.fetch_max(status::pinned_kib(), Ordering::Relaxed);
        }
    }
}

/// A registrar with a clock.
#[derive(Debug)]
pub(crate) struct Timed<R> {
    pub(crate) inner: R,
    pub(crate) clock: std::sync::Arc<Clock>,
}

impl<R: Registrar> Timed<R> {
    /// Returns the rights that are granted of these. None of the trace's peers is there.
    fn granted(&self, asked: Access) -> Access {
        asked & self.inner.rights()
    }
}

fn since(begun: Instant) -> u64 {
    begun.elapsed().as_nanos() as u64
}

#[expect(unsafe_code, reason = "promises what the trait asks for")]
// SAFETY: the inner registrar keeps the contract, and its answers are returned as they are. It is asked for the same ranges and
// for no right that was not asked for.
unsafe impl<R: Registrar> Registrar for Timed<R> {
    type Registration = R::Registration;

    fn register(&self, range: PageRange, access: Access) -> io::Result<R::Registration> {
        let begun = Instant::now();
        let registration = self.inner.register(range, self.granted(access));
        self.clock.reg_ns.fetch_add(since(begun), Ordering::Relaxed);
        if registration.is_ok() {
            self.clock.registrations.fetch_add(1, Ordering::Relaxed);
            self.clock.reg_pages.fetch_add(range.pages(), Ordering::Relaxed);
            self.clock.pages.fetch_add(range.pages(), Ordering::Relaxed);
            self.clock.look();
        }
        registration
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.inner.probe(range, self.granted(access))
    }

    fn examine(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.inner.examine(range, self.granted(access))
    }

    fn deregister(&self, batch: &mut Vec<Registered<R::Registration>>) -> io::Result<()> {
        let pages = |batch: &[Registered<R::Registration>]| batch.iter().map(|one| one.range.pages()).sum::<u64>();
        let before = (batch.len() as u64, pages(batch));
        let begun = Instant::now();
        let result = self.inner.deregister(batch);
        self.clock.dereg_ns.fetch_add(since(begun), Ordering::Relaxed);
        self.clock.batches.fetch_add(1, Ordering::Relaxed);
        self.clock.deregistrations.fetch_add(before.0 - batch.len() as u64, Ordering::Relaxed);
        self.clock.pages.fetch_sub(before.1 - pages(batch), Ordering::Relaxed);
        result
    }

    fn clock(&self) -> Option<std::time::Duration> {
        self.inner.clock()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn rights(&self) -> Access {
        Access::all()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}
