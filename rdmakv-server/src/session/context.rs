//! The arguments of a session at each call: the shared state, and the worker's own.

use std::io::Write;

use super::Shared;
use super::flash::{Recalled, Stopped, Waits};
use super::watch::{DELETIONS, FETCHERS, MUTATIONS, Set, escape};
use crate::metrics::Counts;
use crate::store::{Found, Outcome, Refused, Store, Sum};

/// The worker's own state that a session needs.
#[derive(Debug)]
pub struct Context<'a> {
    /// The shared state.
    pub shared: &'a Shared,
    /// Unix seconds.
    pub now: u64,
    /// The worker's counts.
    pub counts: &'a mut Counts,
    /// The worker's number.
    pub worker: usize,
    /// The connection's number, for events; -1 where there is none. The session sets it.
    pub peer: i32,
    /// The reads of items that it waits for.
    pub waits: Waits,
}

impl<'a> Context<'a> {
    /// For a worker's sessions, one after the other.
    pub fn new(shared: &'a Shared, now: u64, counts: &'a mut Counts, worker: usize) -> Self {
        Self { shared, now, counts, worker, peer: -1, waits: Waits::default() }
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

    /// Returns the end that a GET gives to an item, if it has come already. The item is shown once more before it gets that.
    pub(super) fn ends_after(&self, until: Option<u64>) -> Option<u64> {
        until.filter(|&until| until != 0 && until <= self.now)
    }

    /// Returns the version as clients see it: with `-C` none.
    pub(super) fn shown(&self, version: u64) -> u64 {
        if self.shared.settings.cas { version } else { 0 }
    }

    /// Counts the outcome of an increment or a decrement.
    pub(super) fn count_sum(&mut self, sum: Sum, up: bool) {
        match (sum, up) {
            (Sum::NotFound, true) => self.counts.incr_misses += 1,
            (Sum::NotFound, false) => self.counts.decr_misses += 1,
            (Sum::Done { .. }, true) => self.counts.incr_hits += 1,
            (Sum::Done { .. }, false) => self.counts.decr_hits += 1,
            _ => {}
        }
    }

    /// Before a command that needs the value of a key, under the lock of its store.
    #[inline]
    pub(crate) fn recall(&mut self, store: &mut Store, shard: usize, key: &[u8]) -> Recalled {
        if store.flash_tier().is_none() {
            return Recalled::Here;
        }
        self.waits.recall(store, (shard, key), self.worker, self.now)
    }

    /// Begins to read the item of a key that is asked for next; no lock is held. Returns whether more may be begun.
    pub(super) fn hint(&mut self, key: &[u8]) -> bool {
        let shard = self.shared.shards.of(key);
        let load = self.shared.shards.at(shard).hint(key, self.now);
        self.waits.add(shard, load)
    }

    /// After a request that has to wait: begins the reads, and returns where to go on.
    pub(super) fn stop(&mut self, before: Stopped) -> Stopped {
        self.begin_reads();
        self.waits.stop(before, self.now)
    }
    /// Begins the reads that were asked for.
    #[inline]
    pub(crate) fn begin_reads(&mut self) {
        self.waits.begin(self.shared.reads.get().map(|reads| &**reads));
    }

    /// Publishes the counts.
    pub fn publish(&self) {
        if let Ok(mut counts) = self.shared.counts[self.worker].lock() {
            *counts = *self.counts;
        }
    }

    /// Before a key is looked up: reports what is found.
    #[inline]
    pub(super) fn report_get(&self, store: &Store, key: &[u8]) {
        if self.shared.watchers.wants(FETCHERS) {
            self.got(store.peek(key, self.now), key);
        }
    }

    #[cold]
    fn got(&self, found: Found, key: &[u8]) {
        self.shared.watchers.log(FETCHERS, self.now, |line| {
            line.extend_from_slice(b"type=item_get key=");
            escape(key, line);
            let (status, class, size) = match found {
                Found::Not => ("not_found", 0, 0),
                Found::Item { class, value } => ("found", class + 1, value),
                Found::Flushed => ("flushed", 0, 0),
                Found::Expired => ("expired", 0, 0),
            };
            let _ = write!(line, " status={status} clsid={class} cfd={} size={size}", self.peer);
        });
    }

    /// Returns whether [`report_set`](Self::report_set) is wanted.
    #[inline]
    pub(super) fn reports_sets(&self) -> bool {
        self.shared.watchers.wants(MUTATIONS)
    }

    /// Reports the outcome of a store.
    #[cold]
    pub(super) fn report_set(&self, outcome: Outcome, set: &Set<'_>) {
        self.shared.watchers.log(MUTATIONS, self.now, |line| {
            line.extend_from_slice(b"type=item_store key=");
            escape(set.key, line);
            let status = match outcome {
                Outcome::Stored(_) => "stored",
                Outcome::NotStored => "not_stored",
                Outcome::Exists => "exists",
                Outcome::NotFound => "not_found",
                Outcome::Refused(Refused::TooLarge) => "too_large",
                Outcome::Refused(Refused::NoMemory) => "no_memory",
            };
            let ttl = set.expiry.saturating_sub(self.now);
            let (command, class, size) = (set.command, set.class, set.size);
            let _ =
                write!(line, " status={status} cmd={command} ttl={ttl} clsid={class} cfd={} size={size}", self.peer);
        });
    }

    /// Before an item is deleted by this command: reports it, if it is there.
    #[inline]
    pub(super) fn report_delete(&self, store: &Store, key: &[u8], command: &str) {
        if self.shared.watchers.wants(DELETIONS)
            && let Found::Item { class, value } = store.peek(key, self.now)
        {
            self.shared.watchers.log(DELETIONS, self.now, |line| {
                line.extend_from_slice(b"type=deleted key=");
                escape(key, line);
                let _ = write!(line, " cmd={command} clsid={} size={value}", class + 1);
            });
        }
    }
}
