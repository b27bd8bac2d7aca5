//! What a session is given at each call: what all share, and what is its worker's own.

use super::{Counts, Shared};

/// What a session needs to do anything: the worker's own.
#[derive(Debug)]
pub struct Context<'a> {
    /// What all share.
    pub shared: &'a Shared,
    /// Unix seconds.
    pub now: u64,
    /// The worker's counts.
    pub counts: &'a mut Counts,
    /// The worker's number.
    pub worker: usize,
    /// The connection's number, for events; -1 where there is none. The session sets it.
    pub peer: i32,
}

impl<'a> Context<'a> {
    /// For a worker's sessions, one after the other.
    pub fn new(shared: &'a Shared, now: u64, counts: &'a mut Counts, worker: usize) -> Self {
        Self { shared, now, counts, worker, peer: -1 }
    }

    /// When an item ends that is given this expiry: memcached's rule of thirty days.
    pub(super) fn until(&self, exptime: i64) -> u64 {
        const MONTH: i64 = 60 * 60 * 24 * 30;
        match exptime {
            0 => 0,
            // In the past, but not never.
            ..0 => 1,
            1..=MONTH => self.now + exptime as u64,
            _ => exptime as u64,
        }
    }

    /// The version as clients see it: with `-C` none.
    pub(super) fn shown(&self, version: u64) -> u64 {
        if self.shared.settings.cas { version } else { 0 }
    }

    /// Publishes the counts.
    pub fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.worker].lock() {
            *counts = *self.counts;
        }
    }
}
