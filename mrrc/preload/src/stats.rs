//! Counters, and the budget that all caches of the process keep to.

use crate::eligibility::Passed;
use mrrc::cache::Budget;
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

    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed))
    }

    pub(crate) fn micros(&self) -> f64 {
        self.nanos.load(Relaxed) as f64 / 1e3
    }
}

/// Of one process. Never freed.
pub(crate) struct Stats {
    /// Registrations that a cache served to the program, and the deregistrations of those.
    pub(crate) served: Sum,
    pub(crate) returned: Sum,
    /// The registrations that the caches made.
    pub(crate) registered: Sum,
    pub(crate) deregistered: Sum,
    /// The caches that were made, and the cost of ending them.
    pub(crate) made: Sum,
    pub(crate) ended: Sum,
    /// Windows that were bound, and steps of windows that failed.
    bindings: AtomicU64,
    window_failures: AtomicU64,
    /// Requests passed on, by reason.
    passed: [AtomicU64; Passed::ALL.len()],
    /// How much the caches may pin, all together: the capacity of one is that of all.
    pub(crate) budget: Budget,
    fit: Mutex<Fit>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            served: Sum::default(),
            returned: Sum::default(),
            registered: Sum::default(),
            deregistered: Sum::default(),
            made: Sum::default(),
            ended: Sum::default(),
            bindings: AtomicU64::new(0),
            window_failures: AtomicU64::new(0),
            passed: Default::default(),
            budget: Budget::default(),
            fit: Mutex::new(Fit::new(Linear::PAPER)),
        }
    }

    pub(crate) fn bound(&self) {
        self.bindings.fetch_add(1, Relaxed);
    }

    pub(crate) fn window_failed(&self) {
        self.window_failures.fetch_add(1, Relaxed);
    }

    /// Returns how many windows were bound, and how many could not be bound or unbound.
    pub(crate) fn windows(&self) -> (u64, u64) {
        (self.bindings.load(Relaxed), self.window_failures.load(Relaxed))
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

    /// Returns the count of each reason, also of those that there were none of, by its name in metrics.
    pub(crate) fn passed_by_label(&self) -> Vec<(&'static str, u64)> {
        let counts = self.passed.iter().map(|count| count.load(Relaxed));
        Passed::ALL.into_iter().map(Passed::label).zip(counts).collect()
    }

    /// Returns the microseconds that libibverbs would have taken for what the caches avoided, by the cost of what they did: to
    /// register, and to deregister.
    pub(crate) fn avoided_micros(&self) -> (f64, f64) {
        let (served, returned, did, undid) = (&self.served, &self.returned, &self.registered, &self.deregistered);
        let costs = self.costs();
        let cost = |calls: u64, pages: u64, call: f64, page: f64| call * calls as f64 + page * pages as f64;
        let spared = |all: &Sum, some: &Sum| {
            (all.calls().saturating_sub(some.calls()), all.pages().saturating_sub(some.pages()))
        };
        let (calls, pages) = spared(served, did);
        let registering = cost(calls, pages, costs.reg_call, costs.reg_page);
        if undid.calls() == 0 {
            return (registering, 0.0);
        }
        let (calls, pages) = spared(returned, undid);
        (registering, cost(calls, pages, costs.dereg_call, costs.dereg_page))
    }

    /// Returns the microseconds that the caches saved the program. Less than 0 where they cost more.
    pub(crate) fn saved_micros(&self) -> f64 {
        let (registering, deregistering) = self.avoided_micros();
        let without = self.registered.micros() + registering + self.deregistered.micros() + deregistering;
        let with = [&self.served, &self.returned, &self.made, &self.ended];
        without - with.into_iter().map(Sum::micros).sum::<f64>()
    }

    /// Returns the measured costs of registering and deregistering.
    pub(crate) fn costs(&self) -> Linear {
        self.fit.lock().unwrap_or_else(PoisonError::into_inner).model()
    }
}
