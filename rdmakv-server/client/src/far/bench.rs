//! Measures one configuration: accesses of random records of a memory, by a number of lanes.

use super::configuration::Configuration;
use super::lane::{Buffer, Lane, Ticket};
use super::model::Point;
use super::table::AccessError;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which is looked whether lanes go on.
const ROUND: Duration = Duration::from_millis(20);
/// Latencies that a lane keeps at most. Beyond that every second one is dropped, again and again.
const KEPT: usize = 1 << 20;

/// The load of a measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Bytes of a record.
    pub record: u32,
    /// The share of reads, 0 to 1.
    pub reads: f64,
    /// How long it is measured, after a tenth of that as a warm-up.
    pub time: Duration,
}

/// The measurement of a configuration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Throughput, mean and 99th percentile.
    pub point: Point,
    /// The latency in ns that half of the accesses do not exceed.
    pub median: f64,
    /// How many accesses were measured.
    pub accesses: u64,
}

/// Random numbers of a lane: xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// The latencies of a lane, and how many there were.
#[derive(Default)]
pub(super) struct Latencies {
    kept: Vec<u32>,
    /// Of so many one is kept.
    stride: u64,
    count: u64,
    sum: f64,
}

impl Latencies {
    pub(super) fn add(&mut self, time: Duration) {
        self.sum += time.as_nanos() as f64;
        if self.count.is_multiple_of(self.stride.max(1)) {
            if self.kept.len() == KEPT {
                let mut at = 0;
                self.kept.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.stride = self.stride.max(1) * 2;
            }
            self.kept.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
        }
        self.count += 1;
    }

    /// Returns how many there were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns their mean, in ns.
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Returns the latencies in ns that these shares of them do not exceed.
    pub(super) fn shares<const N: usize>(mut self, shares: [f64; N]) -> [f64; N] {
        self.kept.sort_unstable();
        let last = self.kept.last();
        let at = |share: f64| self.kept.get((self.kept.len() as f64 * share) as usize).or(last);
        shares.map(|share| at(share).map_or(0.0, |&nanos| nanos.into()))
    }
}

/// Measures lanes, each in a thread, over a memory of `capacity` bytes. They are of this configuration, which has as many.
///
/// # Errors
/// [`AccessError`] of an access.
pub fn measure(lanes: &mut [Lane], capacity: u64, of: &Configuration, load: &Load) -> Result<Measured, AccessError> {
    let (is_measured, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let begin = Barrier::new(lanes.len() + 1);
    let (results, time) = thread::scope(|scope| {
        let (is_measured, is_over, begin) = (&is_measured, &is_over, &begin);
        let threads: Vec<_> = lanes
            .iter_mut()
            .enumerate()
            .map(|(at, lane)| {
                let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(at as u64 + 1);
                scope.spawn(move || {
                    let buffers =
                        (0..of.depth * of.batch).map(|_| lane.buffer(load.record as usize)).collect::<Result<_, _>>();
                    begin.wait();
                    run(lane, buffers?, (capacity, load), Random(seed), || {
                        (is_over.load(Relaxed), is_measured.load(Relaxed))
                    })
                })
            })
            .collect();
        begin.wait();
        // A lane ends before its time if an access fails.
        let is_going = || !threads.iter().any(thread::ScopedJoinHandle::is_finished);
        sleep_while(load.time / 10, is_going);
        is_measured.store(true, Relaxed);
        let since = Instant::now();
        sleep_while(load.time, is_going);
        is_over.store(true, Relaxed);
        let time = since.elapsed();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Latencies, AccessError>>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        (threads.into_iter().map(join).collect::<Vec<_>>(), time)
    });
    let lanes = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let accesses = lanes.iter().map(|lane| lane.count).sum::<u64>();
    let sum = lanes.iter().map(|lane| lane.sum).sum::<f64>();
    let mut kept: Vec<u32> = lanes.into_iter().flat_map(|lane| lane.kept).collect();
    kept.sort_unstable();
    let at =
        |share: f64| kept.get((kept.len() as f64 * share) as usize).or(kept.last()).map_or(0.0, |&nanos| nanos.into());
    let point =
        Point { throughput: accesses as f64 / time.as_secs_f64(), mean: sum / accesses.max(1) as f64, p99: at(0.99) };
    Ok(Measured { point, median: at(0.5), accesses })
}

/// Sleeps for so long, or until something is not the case any more.
fn sleep_while(time: Duration, is_so: impl Fn() -> bool) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !is_so() {
            return;
        }
        thread::sleep(left.min(ROUND));
    }
}

/// Keeps as many accesses under way as there are buffers, until it is over. Returns the latencies while they are measured.
fn run(
    lane: &mut Lane,
    mut free: Vec<Buffer>,
    (capacity, load): (u64, &Load),
    mut random: Random,
    state: impl Fn() -> (bool, bool),
) -> Result<Latencies, AccessError> {
    let mut under_way: VecDeque<(Instant, Ticket)> = VecDeque::new();
    let mut latencies = Latencies::default();
    let records = (capacity / u64::from(load.record.max(1))).max(1);
    let bound = (load.reads * u32::MAX as f64) as u64;
    loop {
        let (is_over, is_measured) = state();
        while let Some(buffer) = free.pop_if(|_| !is_over) {
            let at = random.next() % records * u64::from(load.record);
            let (begun, reads) = (Instant::now(), random.next() >> 32 < bound);
            let ticket = if reads { lane.read(at, buffer) } else { lane.write(at, buffer) }?;
            under_way.push_back((begun, ticket));
        }
        let Some((begun, ticket)) = under_way.pop_front() else { return Ok(latencies) };
        free.push(lane.wait(ticket)?);
        if is_measured && !is_over {
            latencies.add(begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_latencies_are_thinned_out() {
        let mut latencies = Latencies::default();
        for _ in 0..3 * KEPT {
            latencies.add(Duration::from_nanos(7));
        }
        assert_eq!((latencies.count, latencies.stride), (3 * KEPT as u64, 4));
        assert!(latencies.kept.len() <= KEPT && latencies.kept.iter().all(|&nanos| nanos == 7));
    }
}
