//! What a thread counts, in each second and in all.

use hdrhistogram::Histogram;

use crate::speech::{Answer, Op};

/// Latencies in nanoseconds, three digits of each, up to a minute.
pub(crate) type Latencies = Histogram<u64>;

pub(crate) fn latencies() -> Latencies {
    match Histogram::new_with_bounds(1, 60_000_000_000, 3) {
        Ok(empty) => empty,
        Err(wrong) => unreachable!("the bounds are right: {wrong}"),
    }
}

/// Numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Answers that came in the time that counts.
    pub(crate) answers: u64,
    /// Answers that came before.
    pub(crate) warm: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) stored: u64,
    pub(crate) errors: u64,
    pub(crate) wrong: u64,
    /// Datagrams without answers.
    pub(crate) lost: u64,
    /// Requests of an open loop that were never sent, for too many waited before them.
    pub(crate) unsent: u64,
}

/// Counts and latencies.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    /// Of requests that were to start in the time that counts.
    pub(crate) gets: Latencies,
    pub(crate) sets: Latencies,
    /// How late requests of an open loop were started.
    pub(crate) late: Latencies,
    /// The first error of the server's.
    pub(crate) error: Option<String>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: Counts::default(), gets: latencies(), sets: latencies(), late: latencies(), error: None }
    }
}

impl Tally {
    /// An answer to a request that was to start in the time that counts.
    #[inline]
    pub(crate) fn count(&mut self, op: Op, answer: Answer, nanos: u64) {
        match answer {
            Answer::Hit => self.counts.hits += 1,
            Answer::Miss => self.counts.misses += 1,
            Answer::Stored => self.counts.stored += 1,
            Answer::Error => self.counts.errors += 1,
            Answer::Wrong => self.counts.wrong += 1,
        }
        let latencies = if op == Op::Get { &mut self.gets } else { &mut self.sets };
        latencies.saturating_record(nanos);
    }

    /// What another counted, too.
    pub(crate) fn add(&mut self, other: &Self) {
        // All have the same bounds, so that none can be too large for another.
        let _ = self.gets.add(&other.gets);
        let _ = self.sets.add(&other.sets);
        let _ = self.late.add(&other.late);
        let (own, more) = (&mut self.counts, &other.counts);
        own.answers += more.answers;
        own.warm += more.warm;
        own.hits += more.hits;
        own.misses += more.misses;
        own.stored += more.stored;
        own.errors += more.errors;
        own.wrong += more.wrong;
        own.lost += more.lost;
        own.unsent += more.unsent;
        if self.error.is_none() {
            self.error.clone_from(&other.error);
        }
    }

    /// Requests that were to start in the time that counts and were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.gets.len() + self.sets.len()
    }

    /// Empty again; its memory is kept.
    pub(crate) fn clear(&mut self) {
        self.gets.reset();
        self.sets.reset();
        self.late.reset();
        self.counts = Counts::default();
        self.error = None;
    }
}

/// System calls and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) waits: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

impl Calls {
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            waits: self.waits - before.waits,
            bytes_read: self.bytes_read - before.bytes_read,
            bytes_written: self.bytes_written - before.bytes_written,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.waits += other.waits;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}
