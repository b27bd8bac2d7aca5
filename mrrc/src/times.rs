//! Durations, on request: three histograms.
//!
//! The price: two readings of the clock and an uncontended lock for each acquire, about 50 ns, hits included.

use crate::shim::sync::{Mutex, PoisonError};
use hdrhistogram::Histogram;
use std::time::Duration;

/// Threads spread over so many histograms of acquires, so that they seldom meet.
const SHARDS: usize = 16;
/// Three digits, up to a minute.
const LONGEST_NS: u64 = 60_000_000_000;

pub(crate) struct Times {
    acquires: Vec<Mutex<Histogram<u64>>>,
    registrations: Mutex<Histogram<u64>>,
    deregistrations: Mutex<Histogram<u64>>,
}

/// Latencies in nanoseconds, to three digits, up to a minute.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Latencies {
    /// Acquires, hits included.
    pub acquire: Histogram<u64>,
    /// Registrations that were tried.
    pub register: Histogram<u64>,
    /// Batches that were deregistered.
    pub deregister: Histogram<u64>,
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_NS, 3).expect("a minute to three digits can be held")
}

fn record(histogram: &Mutex<Histogram<u64>>, took: Duration) {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    histogram.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
}

fn copy(histogram: &Mutex<Histogram<u64>>) -> Histogram<u64> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Times {
    pub(crate) fn new() -> Self {
        Self {
            acquires: (0..SHARDS).map(|_| Mutex::new(empty())).collect(),
            registrations: Mutex::new(empty()),
            deregistrations: Mutex::new(empty()),
        }
    }

    /// `thread`: anything that differs between threads.
    pub(crate) fn acquired(&self, thread: usize, took: Duration) {
        record(&self.acquires[thread % SHARDS], took);
    }

    pub(crate) fn registered(&self, took: Duration) {
        record(&self.registrations, took);
    }

    pub(crate) fn deregistered(&self, took: Duration) {
        record(&self.deregistrations, took);
    }

    pub(crate) fn read(&self) -> Latencies {
        let mut acquire = empty();
        for shard in &self.acquires {
            acquire.add(copy(shard)).expect("all have the same bounds");
        }
        Latencies { acquire, register: copy(&self.registrations), deregister: copy(&self.deregistrations) }
    }
}
