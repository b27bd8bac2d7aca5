//! The counts of a thread, in each second and in all.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::protocol::{Answer, Ask, Op};

/// Latencies in nanoseconds, three digits of each, up to a minute.
pub(crate) type Latencies = Histogram<u64>;

pub(crate) fn latencies() -> Latencies {
    match Histogram::new_with_bounds(1, 60_000_000_000, 3) {
        Ok(empty) => empty,
        Err(wrong) => unreachable!("the bounds are right: {wrong}"),
    }
}

/// The kind of a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Reading a value.
    Get,
    /// Writing one.
    Set,
    /// Reading several keys in a row by one request.
    Scan,
    /// Reading a value and then writing it: both together.
    Modify,
    /// A whole block, of as many requests as it has chunks.
    Block,
    /// A GET, with the database's time after a miss: no request waited for that.
    WithPenalty,
}

impl Kind {
    /// All there are.
    pub const ALL: [Self; 6] = [Self::Get, Self::Set, Self::Scan, Self::Modify, Self::Block, Self::WithPenalty];

    /// As tables and logs have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Set => "SET",
            Self::Scan => "SCAN",
            Self::Modify => "MODIFY",
            Self::Block => "BLOCK",
            Self::WithPenalty => "GET+PENALTY",
        }
    }
}

/// Latencies of each kind; only those that occur take memory.
#[derive(Clone, Default)]
pub struct Histograms([Option<Latencies>; Kind::ALL.len()]);

impl Histograms {
    /// Latencies of this kind, in nanoseconds, if there are any.
    pub fn of(&self, kind: Kind) -> Option<&Histogram<u64>> {
        self.0[kind as usize].as_ref().filter(|latencies| !latencies.is_empty())
    }

    /// How many of this kind there are.
    pub fn count(&self, kind: Kind) -> u64 {
        self.of(kind).map_or(0, Histogram::len)
    }

    #[inline]
    pub(crate) fn record(&mut self, kind: Kind, nanos: u64) {
        self.0[kind as usize].get_or_insert_with(latencies).saturating_record(nanos);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().zip(&other.0) {
            if let Some(more) = more.as_ref().filter(|more| !more.is_empty()) {
                // All have the same bounds, so that none can be too large for another.
                let _ = own.get_or_insert_with(latencies).add(more);
            }
        }
    }

    fn clear(&mut self) {
        self.0.iter_mut().flatten().for_each(Latencies::reset);
    }
}

impl std::fmt::Debug for Histograms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // All their buckets are nothing to look at.
        f.debug_map().entries(Kind::ALL.map(|kind| (kind, self.count(kind)))).finish()
    }
}

/// Numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Operations that ended in the time that counts.
    pub(crate) operations: u64,
    /// Answers in it: of some operations there are two.
    pub(crate) answers: u64,
    /// Operations that ended before.
    pub(crate) warm: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) stored: u64,
    /// Values that scans found, and those that they asked for.
    pub(crate) found: u64,
    pub(crate) sought: u64,
    pub(crate) errors: u64,
    pub(crate) wrong: u64,
    /// Datagrams without answers.
    pub(crate) lost: u64,
    /// Requests of an open loop that were never sent, for too many waited before them.
    pub(crate) unsent: u64,
    /// The cost of misses at the database, in nanoseconds.
    pub(crate) penalty: u64,
    /// Blocks that began late because the one before was not done.
    pub(crate) overrun: u64,
    /// Values that came through the client library, by how: one-sidedly, in messages, by transfers, over sockets.
    pub(crate) sources: [u64; 4],
}

/// Counts and latencies.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    /// Of requests that were to start in the time that counts.
    pub(crate) latencies: Histograms,
    /// How late requests of an open loop were started.
    pub(crate) late: Latencies,
    /// The first error of the server's.
    pub(crate) error: Option<String>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { counts: Counts::default(), latencies: Histograms::default(), late: latencies(), error: None }
    }
}

impl Tally {
    /// An answer to a request that was to start in the time that counts.
    #[inline]
    pub(crate) fn count(&mut self, ask: &Ask, answer: Answer, nanos: u64) {
        match answer {
            Answer::Hit => self.counts.hits += 1,
            Answer::Miss => self.counts.misses += 1,
            Answer::Stored => self.counts.stored += 1,
            Answer::Found(values) => self.counts.found += u64::from(values),
            Answer::Error => self.counts.errors += 1,
            Answer::Wrong => self.counts.wrong += 1,
        }
        let kind = match ask.op {
            Op::Get => Kind::Get,
            Op::Set => Kind::Set,
            Op::Scan => {
                self.counts.sought += u64::from(ask.keys);
                Kind::Scan
            }
        };
        self.latencies.record(kind, nanos);
    }

    /// Counts a request of an open loop that started so late, in nanoseconds.
    pub(crate) fn started(&mut self, late: u64) {
        self.late.saturating_record(late);
    }

    /// Counts requests of an open loop that were never sent, and how late they would be now.
    pub(crate) fn never_started(&mut self, requests: u64, late: u64) {
        self.late.saturating_record_n(late, requests);
        self.counts.unsent += requests;
    }

    /// Counts a block that started so late, and whether the one before it was not done.
    pub(crate) fn block_started(&mut self, late: u64, overrun: bool) {
        self.late.saturating_record(late);
        self.counts.overrun += u64::from(overrun);
    }

    /// Counts a block that took so long, in nanoseconds.
    pub(crate) fn block_ended(&mut self, nanos: u64) {
        self.latencies.record(Kind::Block, nanos);
    }

    /// Counts blocks that were never begun.
    pub(crate) fn blocks_never_started(&mut self, blocks: u64) {
        self.counts.unsent += blocks;
    }

    /// Adds another's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        let _ = self.late.add(&other.late);
        let (own, more) = (&mut self.counts, &other.counts);
        own.operations += more.operations;
        own.answers += more.answers;
        own.warm += more.warm;
        own.hits += more.hits;
        own.misses += more.misses;
        own.stored += more.stored;
        own.found += more.found;
        own.sought += more.sought;
        own.errors += more.errors;
        own.wrong += more.wrong;
        own.lost += more.lost;
        own.unsent += more.unsent;
        own.penalty += more.penalty;
        own.overrun += more.overrun;
        own.sources.iter_mut().zip(more.sources).for_each(|(own, more)| *own += more);
        if self.error.is_none() {
            self.error.clone_from(&other.error);
        }
    }

    /// Requests that were to start in the time that counts and were answered.
    pub(crate) fn answered(&self) -> u64 {
        [Kind::Get, Kind::Set, Kind::Scan].into_iter().map(|kind| self.latencies.count(kind)).sum()
    }

    /// Empty again; its memory is kept.
    pub(crate) fn clear(&mut self) {
        self.latencies.clear();
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
