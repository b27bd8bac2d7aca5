//! The last minutes, a point a second, so that the overview shows at once what happened.

use std::collections::VecDeque;

use serde::Serialize;

use crate::metrics::{Asked, FlashCounts, KernelCounts, Measured, Transferred};
use crate::session::{Shared, Snapshot, measured};
use rdmakv_proto::clock;

/// Points that are kept: five minutes.
const POINTS: usize = 300;
/// Seconds over which latencies are taken together, since only few turns are measured.
const WINDOW: usize = 10;
/// And for their distribution.
const LONG_WINDOW: usize = 60;

/// A second. Rates are per second.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Point {
    /// Its number; the next has the next.
    pub(super) number: u64,
    /// Unix seconds.
    at: u64,
    hits: f64,
    misses: f64,
    sets: f64,
    others: f64,
    evictions: f64,
    expired: f64,
    received: f64,
    sent: f64,
    connections: u64,
    fabric_connections: u64,
    one_sided: f64,
    /// None without `--xdp`.
    kernel: Option<KernelPoint>,
    /// None without flash.
    flash: Option<FlashPoint>,
    items: u64,
    /// Of items.
    bytes: u64,
    /// Of the processor: seconds a second.
    cpu: f64,
    /// Seconds that half of the gets did not exceed, and so on.
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
}

/// The programs in the kernel in a second.
#[derive(Clone, Debug, Default, Serialize)]
struct KernelPoint {
    /// Hits that they answered.
    gets: f64,
    /// GETs that they left to the socket.
    passed: f64,
}

/// The second tier in a second.
#[derive(Clone, Debug, Default, Serialize)]
struct FlashPoint {
    /// Items that came back to memory.
    recalled: f64,
    /// Bytes that were read for clients.
    read: f64,
    /// Bytes of items from memory that are written.
    admitted: f64,
    /// Bytes of items that are written again to free a segment.
    rewritten: f64,
    /// Items that left memory and were written, or were there already.
    written: f64,
    clean: f64,
    /// Items that came faster than they could be written.
    busy: f64,
    /// Items that are not on flash for another reason.
    refused: f64,
    /// Seconds that half of the device's reads for clients did not exceed, and so on.
    read_p50: Option<f64>,
    read_p99: Option<f64>,
    write_p99: Option<f64>,
}

/// The points.
#[derive(Debug)]
pub(super) struct History {
    points: VecDeque<Point>,
    last: Snapshot,
    last_at: std::time::Instant,
    /// The measurements until each of the last seconds, by kind.
    measured: VecDeque<[Measured; 3]>,
    /// The transfers of flash until each of the last seconds: reads for clients and writes.
    transfers: VecDeque<[Measured; 2]>,
}

impl History {
    pub(super) fn begin(shared: &Shared) -> Self {
        let last = Snapshot::take(shared, clock::now());
        let measured = VecDeque::from([all_measured(shared)]);
        let (points, transfers) = (VecDeque::new(), VecDeque::from([all_transfers(shared)]));
        Self { points, last, last_at: std::time::Instant::now(), measured, transfers }
    }

    /// A second has passed.
    pub(super) fn note(&mut self, shared: &Shared) {
        let (now, snapshot) = (std::time::Instant::now(), Snapshot::take(shared, clock::now()));
        let seconds = (now - self.last_at).as_secs_f64().max(1e-3);
        // After a reset of the counters they begin anew.
        let rate = |of: &dyn Fn(&Snapshot) -> u64| of(&snapshot).saturating_sub(of(&self.last)) as f64 / seconds;
        let measured = all_measured(shared);
        let gets = &self.over(&measured, WINDOW)[Asked::Get as usize];
        let flash = snapshot.flash.map(|(counts, _)| {
            if self.transfers.len() > WINDOW {
                self.transfers.pop_front();
            }
            let (now, then) = (all_transfers(shared), &self.transfers[0]);
            let [reads, writes] = std::array::from_fn(|kind| now[kind].since(&then[kind]));
            self.transfers.push_back(now);
            let before = self.last.flash.map_or(counts, |(counts, _)| counts);
            FlashPoint {
                read_p50: reads.quantile(0.5),
                read_p99: reads.quantile(0.99),
                write_p99: writes.quantile(0.99),
                ..FlashPoint::rates(&counts.since(&before), seconds)
            }
        });
        let point = Point {
            number: self.points.back().map_or(1, |point| point.number + 1),
            at: snapshot.now,
            hits: rate(&|of| of.counts.get_hits),
            misses: rate(&|of| of.counts.get_misses),
            sets: rate(&|of| of.counts.cmd_set),
            others: rate(&Snapshot::others),
            evictions: rate(&|of| of.totals.evicted),
            expired: rate(&Snapshot::expired),
            received: rate(&|of| of.counts.bytes_read),
            sent: rate(&|of| of.counts.bytes_written),
            connections: snapshot.connections,
            fabric_connections: snapshot.fabric_connections,
            one_sided: rate(&|of| of.one_sided),
            kernel: snapshot.kernel.as_ref().map(|_| {
                let of_kernel = |count: fn(&KernelCounts) -> u64| rate(&|of| of.kernel.as_ref().map_or(0, count));
                KernelPoint { gets: of_kernel(|kernel| kernel.gets), passed: of_kernel(KernelCounts::passed) }
            }),
            flash,
            items: snapshot.items,
            bytes: snapshot.bytes,
            cpu: (snapshot.cpu - self.last.cpu) / seconds,
            p50: gets.quantile(0.5),
            p99: gets.quantile(0.99),
            p999: gets.quantile(0.999),
        };
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        if self.measured.len() > LONG_WINDOW {
            self.measured.pop_front();
        }
        self.measured.push_back(measured);
        (self.last, self.last_at) = (snapshot, now);
    }

    /// Returns the points after that number.
    pub(super) fn since(&self, number: u64) -> Vec<&Point> {
        // A page that knows more than there is has been open since before the server began anew.
        let newest = self.points.back().map_or(0, |point| point.number);
        let number = if number > newest { 0 } else { number };
        self.points.iter().filter(|point| point.number > number).collect()
    }

    /// Returns the measurements of the last minute, by kind.
    pub(super) fn distribution(&self) -> [Measured; 3] {
        self.measured.back().map_or_else(Default::default, |now| self.over(now, LONG_WINDOW))
    }

    fn over(&self, now: &[Measured; 3], seconds: usize) -> [Measured; 3] {
        let then = &self.measured[self.measured.len().saturating_sub(seconds)];
        std::array::from_fn(|kind| now[kind].since(&then[kind]))
    }
}

impl FlashPoint {
    fn rates(counts: &FlashCounts, seconds: f64) -> Self {
        let rate = |count: u64| count as f64 / seconds;
        let FlashCounts { dropped_size, dropped_expiry, dropped_unread, dropped_stubs, dropped_lost, .. } = *counts;
        Self {
            recalled: rate(counts.recalled),
            read: rate(counts.read_bytes),
            admitted: rate(counts.admitted_bytes),
            rewritten: rate(counts.rewritten_bytes),
            written: rate(counts.admitted),
            clean: rate(counts.left_clean),
            busy: rate(counts.dropped_busy),
            refused: rate(dropped_size + dropped_expiry + dropped_unread + dropped_stubs + dropped_lost),
            ..Self::default()
        }
    }
}

fn all_transfers(shared: &Shared) -> [Measured; 2] {
    [Transferred::Read, Transferred::Write].map(|kind| Measured::of_transfers(&shared.transfers, kind))
}

/// Returns what was measured until now, by kind, over all transports.
fn all_measured(shared: &Shared) -> [Measured; 3] {
    let mut sum = <[Measured; 3]>::default();
    for (_, measured) in measured(shared) {
        sum.iter_mut().zip(&measured).for_each(|(sum, more)| sum.add(more));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::KernelReported;
    use crate::session::{Settings, Shards};
    use crate::store::Config;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    fn shared() -> Shared {
        let config = Config { memory: 4 << 20, huge: false, ..Config::default() };
        Shared::new(Shards::new(&config, 1).unwrap(), Settings { threads: 2, ..Settings::default() }, 1)
    }

    #[test]
    fn a_point_has_what_happened_since_the_one_before() {
        let shared = shared();
        let mut history = History::begin(&shared);
        for worker in &shared.counts[..2] {
            worker.lock().unwrap().get_hits = 30;
        }
        shared.latencies[1].record(Asked::Get, Duration::from_micros(100));
        history.note(&shared);
        history.note(&shared);
        // Counters that begin anew are no negative rate.
        shared.counts[0].lock().unwrap().get_hits = 0;
        history.note(&shared);
        let points = history.since(0);
        let hits: Vec<bool> = points.iter().map(|point| point.hits > 0.0).collect();
        assert_eq!(hits, [true, false, false]);
        assert!(points.iter().all(|point| point.hits >= 0.0 && point.evictions == 0.0));
        assert!(points[0].p99.is_some_and(|seconds| (100e-6..113e-6).contains(&seconds)));
        assert_eq!(history.distribution()[Asked::Get as usize].count(), 1);
        assert_eq!(history.distribution()[Asked::Set as usize].count(), 0);
    }

    #[test]
    fn points_have_flash_where_there_is_some() {
        let shared = shared();
        let mut history = History::begin(&shared);
        history.note(&shared);
        assert!(history.since(0)[0].flash.is_none());
        let layout = rdmakv_flash::Layout::new(&[64 << 20], 1, 0, 1 << 20, 512).unwrap();
        let settings = rdmakv_flash::Settings::new(layout, 1, 0);
        shared.shards.at(0).attach_flash(settings, None, None).unwrap();
        shared.transfers.record_transfer(Transferred::Read, Duration::from_micros(100));
        history.note(&shared);
        for _ in 0..WINDOW + 1 {
            history.note(&shared);
        }
        let points = history.since(0);
        let of = |number: usize| points[number].flash.clone().unwrap();
        assert!(of(1).read_p99.is_some_and(|seconds| (100e-6..113e-6).contains(&seconds)) && of(1).write_p99.is_none());
        assert!(of(WINDOW).read_p50.is_some() && of(WINDOW + 1).read_p50.is_none(), "ten seconds are over");
    }

    /// Programs in the kernel that have answered this number of GETs, and passed as many.
    #[derive(Debug, Default)]
    struct Programs(AtomicU64);

    impl KernelReported for Programs {
        fn counts(&self) -> KernelCounts {
            let gets = self.0.load(Relaxed);
            KernelCounts { gets, passed_unknown: gets, ..KernelCounts::default() }
        }
        fn reset(&self) {
            self.0.store(0, Relaxed);
        }
        fn interfaces(&self) -> String {
            String::new()
        }
        fn look(&self) {}
    }

    #[test]
    fn points_have_gets_of_the_kernel() {
        let shared = shared();
        let mut history = History::begin(&shared);
        history.note(&shared);
        let programs = Arc::new(Programs::default());
        shared.kernel.set(programs.clone()).unwrap();
        for gets in [30, 30, 0] {
            programs.0.store(gets, Relaxed);
            history.note(&shared);
        }
        let points = history.since(0);
        let rates = |point: &&Point| point.kernel.as_ref().map(|kernel| (kernel.gets, kernel.passed));
        assert!(rates(&points[0]).is_none());
        let first = rates(&points[1]).unwrap();
        assert!(first.0 > 0.0 && first == (points[1].hits, first.0));
        // A reset is no negative rate.
        assert_eq!([rates(&points[2]), rates(&points[3])], [Some((0.0, 0.0)); 2]);
    }

    #[test]
    fn minutes_are_kept_and_no_more() {
        let shared = shared();
        let mut history = History::begin(&shared);
        assert!(history.since(0).is_empty());
        for _ in 0..POINTS + 20 {
            history.note(&shared);
        }
        let numbers = |since| history.since(since).iter().map(|point| point.number).collect::<Vec<_>>();
        assert_eq!(numbers(0), (21..=POINTS as u64 + 20).collect::<Vec<_>>());
        assert_eq!(numbers(POINTS as u64 + 18), [POINTS as u64 + 19, POINTS as u64 + 20]);
        assert!(numbers(POINTS as u64 + 20).is_empty());
        assert_eq!(numbers(1_000_000).len(), POINTS, "who knows more than there is knows another server");
        assert!(history.measured.len() <= LONG_WINDOW + 1);
    }
}
