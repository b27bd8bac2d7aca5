//! What is counted, and how much is pinned by all caches of the process together.

use crate::treatment::Passed;
use mrrc::cost::{Fit, Linear};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A sum of calls, pages and nanoseconds.
#[derive(Default)]
pub(crate) struct Sum {
    calls: AtomicU64,
    pages: AtomicU64,
    nanos: AtomicU64,
}

impl Sum {
    pub(crate) fn add(&self, pages: u64, took: Duration) {
        self.calls.fetch_add(1, Relaxed);
        self.pages.fetch_add(pages, Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }

    pub(crate) fn micros(&self) -> f64 {
        self.nanos.load(Relaxed) as f64 / 1e3
    }
}

/// Of one process. Never freed.
pub(crate) struct Tally {
    /// Registrations that a cache served to the program, and the deregistrations of those.
    pub(crate) served: Sum,
    pub(crate) returned: Sum,
    /// What the caches did for that.
    pub(crate) registered: Sum,
    pub(crate) deregistered: Sum,
    /// What making caches took in deregistrations that went straight on, and what ending them took.
    pub(crate) made: Sum,
    pub(crate) ended: Sum,
    /// What went straight on, by reason.
    passed: [AtomicU64; Passed::ALL.len()],
    /// Pages that the caches have pinned, and how many they may, all together.
    pinned: AtomicU64,
    most: AtomicU64,
    fit: Mutex<Fit>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            served: Sum::default(),
            returned: Sum::default(),
            registered: Sum::default(),
            deregistered: Sum::default(),
            made: Sum::default(),
            ended: Sum::default(),
            passed: Default::default(),
            pinned: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            fit: Mutex::new(Fit::new(Linear::PAPER)),
        }
    }

    /// The capacity of one cache is that of all.
    pub(crate) fn limit(&self, pages: u64) {
        self.most.fetch_min(pages, Relaxed);
    }

    /// Whether so many more may be pinned; they are counted if so.
    pub(crate) fn admits(&self, pages: u64) -> bool {
        let most = self.most.load(Relaxed);
        let more = |pinned: u64| pinned.checked_add(pages).filter(|&pinned| pinned <= most);
        self.pinned.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// So many are not pinned any more, or were not after all.
    pub(crate) fn left(&self, pages: u64) {
        self.pinned.fetch_sub(pages, Relaxed);
    }

    pub(crate) fn registered(&self, pages: u64, took: Duration) {
        self.registered.add(pages, took);
        self.fit.lock().unwrap_or_else(PoisonError::into_inner).registered(pages, took.as_secs_f64() * 1e6);
    }

    pub(crate) fn deregistered(&self, pages: u64, took: Duration) {
        self.deregistered.add(pages, took);
        self.fit.lock().unwrap_or_else(PoisonError::into_inner).deregistered(pages, took.as_secs_f64() * 1e6);
    }

    pub(crate) fn passed(&self, why: Passed) {
        if let Some(at) = Passed::ALL.iter().position(|&other| other == why) {
            self.passed[at].fetch_add(1, Relaxed);
        }
    }

    /// Those that went straight on, with the reasons that there were.
    pub(crate) fn all_passed(&self) -> Vec<(Passed, u64)> {
        let counts = Passed::ALL.into_iter().zip(self.passed.iter().map(|count| count.load(Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }

    /// What registering and deregistering cost here.
    pub(crate) fn costs(&self) -> Linear {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner).model()
    }
}
