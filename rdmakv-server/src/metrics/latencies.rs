//! The durations of answers, of the few that are measured, and of transfers of flash: buckets that grow with the time, an eighth of it.
//!
//! Each worker writes to its own and the connections of a fabric to the fabric's, without locks. A reader sees each bucket
//! as it was at some moment.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The request of the measured turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing but values.
    Get,
    /// Nothing but to store.
    Set,
    /// Both, or something else.
    Other,
}

impl Asked {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Get, Self::Set, Self::Other];

    /// By whether it had gets and sets.
    pub fn of(gets: bool, sets: bool) -> Self {
        match (gets, sets) {
            (true, false) => Self::Get,
            (false, true) => Self::Set,
            _ => Self::Other,
        }
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Other => "other",
        }
    }
}

/// A transfer of flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transferred {
    /// The read of an item for a client.
    Read,
    /// A read to free a segment.
    Reclaim,
    /// A write.
    Write,
}

impl Transferred {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Reclaim, Self::Write];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Reclaim => "reclaim",
            Self::Write => "write",
        }
    }
}

/// One in about so many turns is measured.
const SAMPLE: u32 = 64;

/// Chooses the turns that are measured: not always as many apart, so that no rhythm of the clients hides from it.
#[derive(Debug)]
pub struct Sampler {
    /// Turns until one is measured.
    until: u32,
    random: u32,
}

impl Sampler {
    /// The numbers of several samplers make their first turns differ, so that those are chosen evenly, too, of which each
    /// sees few.
    pub fn new(number: u32) -> Self {
        let spread = number.wrapping_mul(0x9e37_79b9);
        Self { until: spread / (u32::MAX / SAMPLE + 1) + 1, random: spread | 1 }
    }

    /// Returns whether the turn to measure may be one of the next so many.
    pub fn is_near(&self, turns: usize) -> bool {
        self.until as usize <= turns
    }

    /// A turn begins; returns whether it is to be measured.
    pub fn turn(&mut self) -> bool {
        self.until = self.until.saturating_sub(1);
        self.until == 0
    }

    /// One was measured.
    pub fn measured(&mut self) {
        for shift in [13, -17, 5_i32] {
            self.random ^= if shift > 0 { self.random << shift } else { self.random >> -shift };
        }
        self.until = SAMPLE / 2 + self.random % SAMPLE;
    }
}

/// The unit, so that a whole number of microseconds is a whole number of units.
const TICK: u64 = 125;
/// Buckets in which the time doubles.
const AN_OCTAVE: u64 = 8;
/// Up to 33 seconds; the last takes what is longer.
pub const BUCKETS: usize = 216;

/// Returns the number of buckets that lie wholly below a power of two of microseconds.
pub fn below_micros(power: u32) -> usize {
    AN_OCTAVE as usize * (power as usize + 1)
}

fn bucket(took: Duration) -> usize {
    let ticks = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / TICK;
    if ticks < AN_OCTAVE {
        return ticks as usize;
    }
    let octave = u64::from(ticks.ilog2());
    let part = (ticks >> (octave - 3)) % AN_OCTAVE;
    (((octave - 2) * AN_OCTAVE + part) as usize).min(BUCKETS - 1)
}

/// Returns the end of a bucket, in seconds.
pub fn end_of(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    let ticks =
        if bucket < AN_OCTAVE { bucket + 1 } else { (AN_OCTAVE + bucket % AN_OCTAVE + 1) << (bucket / AN_OCTAVE - 1) };
    (ticks * TICK) as f64 / 1e9
}

/// One kind's.
#[derive(Debug)]
struct Kind {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// A worker's or a fabric's, by [`Asked`]; or flash's, by [`Transferred`].
#[derive(Debug)]
pub struct Latencies {
    kinds: Box<[Kind; 3]>,
}

impl Default for Latencies {
    fn default() -> Self {
        let kind = || Kind { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) };
        Self { kinds: Box::new([kind(), kind(), kind()]) }
    }
}

impl Latencies {
    /// A turn with such requests took so long.
    pub fn record(&self, asked: Asked, took: Duration) {
        self.add(asked as usize, took);
    }
    /// A transfer took so long.
    pub fn record_transfer(&self, transfer: Transferred, took: Duration) {
        self.add(transfer as usize, took);
    }
    fn add(&self, kind: usize, took: Duration) {
        let kind = &self.kinds[kind];
        kind.buckets[bucket(took)].fetch_add(1, Relaxed);
        kind.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

/// Some of them together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// How many fell into each bucket.
    pub buckets: Vec<u64>,
    /// Their sum.
    pub nanos: u64,
}

impl Default for Measured {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], nanos: 0 }
    }
}

impl Measured {
    /// Those of that kind.
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Latencies>, asked: Asked) -> Self {
        Self::of_kind(all, asked as usize)
    }
    /// The transfers of that kind.
    pub fn of_transfers(all: &Latencies, transfer: Transferred) -> Self {
        Self::of_kind([all], transfer as usize)
    }
    fn of_kind<'a>(all: impl IntoIterator<Item = &'a Latencies>, kind: usize) -> Self {
        let mut sum = Self::default();
        for kind in all.into_iter().map(|one| &one.kinds[kind]) {
            for (sum, bucket) in sum.buckets.iter_mut().zip(&kind.buckets) {
                *sum += bucket.load(Relaxed);
            }
            sum.nanos = sum.nanos.wrapping_add(kind.nanos.load(Relaxed));
        }
        sum
    }

    /// Returns the measurements since then.
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&earlier.buckets).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self { buckets, nanos: self.nanos.wrapping_sub(earlier.nanos) }
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, more)| *sum += more);
        self.nanos = self.nanos.wrapping_add(other.nanos);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the time that this part of them did not exceed, in seconds: the end of a bucket. None where nothing was
    /// measured.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        self.buckets
            .iter()
            .position(|count| {
                seen += count;
                seen >= wanted
            })
            .map(end_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_ends_within_an_eighth_above() {
        for nanos in (0..40).map(|power| 1_u64 << power).flat_map(|power| [power - 1, power, power * 5 / 4]) {
            let (seconds, bucket) = (nanos as f64 / 1e9, bucket(Duration::from_nanos(nanos)));
            if bucket == BUCKETS - 1 {
                assert!(seconds > 30.0);
                continue;
            }
            assert!(end_of(bucket) > seconds, "{nanos} ns in bucket {bucket}");
            assert!(end_of(bucket) <= seconds.max(1e-6) * 1.126 + 125e-9, "{nanos} ns in bucket {bucket}");
        }
    }

    #[test]
    fn about_one_turn_in_64_is_measured() {
        let mut sampler = Sampler::new(7);
        let measured = (0..64_000).filter(|_| {
            let is = sampler.turn();
            if is {
                sampler.measured();
            }
            is
        });
        let measured = measured.count();
        assert!((900..1100).contains(&measured), "{measured}");
        // Among many that see one turn each, as many.
        let firsts = (0..6400).filter(|&number| Sampler::new(number).turn()).count();
        assert!((90..110).contains(&firsts), "{firsts}");
    }

    #[test]
    fn buckets_end_at_powers_of_two_of_microseconds() {
        for power in 0..25 {
            let end = end_of(below_micros(power) - 1);
            assert!((end - f64::from(1_u32 << power) / 1e6).abs() < 1e-12, "{power}: {end}");
        }
    }

    #[test]
    fn quantiles_are_of_what_was_measured_since() {
        let workers = [Latencies::default(), Latencies::default()];
        assert_eq!(Measured::of(&workers, Asked::Get).quantile(0.5), None);
        for _ in 0..1000 {
            workers[0].record(Asked::Get, Duration::from_secs(1));
        }
        let before = Measured::of(&workers, Asked::Get);
        for micros in 1..=100 {
            workers[micros % 2].record(Asked::Get, Duration::from_micros(micros as u64));
            workers[0].record(Asked::Set, Duration::from_micros(900));
        }
        let measured = Measured::of(&workers, Asked::Get).since(&before);
        assert_eq!((measured.count(), measured.nanos), (100, 5_050_000));
        let half = measured.quantile(0.5).unwrap();
        assert!((50e-6..57e-6).contains(&half), "{half}");
        assert!(measured.quantile(1.0).unwrap() >= 100e-6);
    }
}
