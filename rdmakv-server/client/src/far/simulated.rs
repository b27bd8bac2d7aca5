//! A fabric of formulas: how fast configurations would be, for tests of the search and for plans without a machine.
//!
//! It is a closed network of queues, in which `lanes × depth` batches go round. They pass the client's lanes, the link, and the server's
//! card or its workers, and spend a round trip on the way. Stations with several servers count as one that is as many times faster,
//! after a delay. Mean value analysis then gives throughput and latency, exactly for such a network.

use super::configuration::Configuration;
use super::model::Point;

/// Threads of one side that run at once. More of them share.
const THREADS: f64 = 32.0;

/// The costs of a fabric, in ns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// The way there and back.
    pub round_trip: f64,
    /// A byte on the link.
    pub byte: f64,
    /// A batch at the client, and each operation of it.
    pub lane: (f64, f64),
    /// A batch at a worker, and each operation of it.
    pub worker: (f64, f64),
    /// A one-sided operation at the server's card.
    pub card: f64,
    /// The share by which each further thread slows down all threads of its side.
    pub contention: f64,
}

impl Default for Costs {
    /// Roughly those of a card of 100 Gb/s.
    fn default() -> Self {
        Self {
            round_trip: 3_000.0,
            byte: 0.08,
            lane: (250.0, 20.0),
            worker: (250.0, 30.0),
            card: 30.0,
            contention: 0.01,
        }
    }
}

/// A place where batches queue.
#[derive(Clone, Copy)]
struct Station {
    /// Time of a batch there.
    demand: f64,
    servers: f64,
}

impl Costs {
    /// Returns how fast a configuration is with records of `record` bytes.
    ///
    /// The 99th percentile is that of a wait that is distributed exponentially, after the least time.
    pub fn at(&self, of: &Configuration, record: u32) -> Point {
        let batch = f64::from(of.batch);
        let side = |threads: u32| {
            let threads = f64::from(threads);
            (threads.min(THREADS), (1.0 + self.contention * (threads - 1.0)) * (threads / THREADS).max(1.0))
        };
        let (lanes, slower) = side(of.lanes);
        let client = Station { demand: (self.lane.0 + self.lane.1 * batch) * slower, servers: lanes };
        let link = Station { demand: self.byte * batch * f64::from(record), servers: 1.0 };
        let server = if of.is_one_sided() {
            Station { demand: self.card * batch, servers: 1.0 }
        } else {
            let (workers, slower) = side(of.workers);
            Station { demand: (self.worker.0 + self.worker.1 * batch) * slower, servers: workers }
        };
        let population = u64::from(of.lanes) * u64::from(of.depth);
        let (rate, time, least) = mean_values(&[client, link, server], self.round_trip, population);
        let p99 = least + (time - least) * 100_f64.ln();
        Point { throughput: rate * batch * 1e9, mean: time, p99 }
    }
}

/// Returns batches per ns, the time of one, and that of one alone.
fn mean_values(stations: &[Station; 3], delay: f64, population: u64) -> (f64, f64, f64) {
    let parallel = |station: &Station| station.demand * (station.servers - 1.0) / station.servers;
    let delay = delay + stations.iter().map(parallel).sum::<f64>();
    let demands = stations.map(|station| station.demand / station.servers);
    let mut queues = [0.0; 3];
    let (mut rate, mut time) = (0.0, 0.0);
    for batches in 1..=population {
        let mut times = [0.0; 3];
        for (time, (demand, queue)) in times.iter_mut().zip(demands.iter().zip(&queues)) {
            *time = demand * (1.0 + queue);
        }
        time = delay + times.iter().sum::<f64>();
        rate = batches as f64 / time;
        queues = times.map(|time| rate * time);
    }
    (rate, time, delay + demands.iter().sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(workers: u32, lanes: u32, batch: u32, depth: u32) -> Point {
        Costs::default().at(&Configuration { workers, lanes, batch, depth }, 64)
    }

    #[test]
    fn one_operation_takes_the_sum_of_its_times() {
        let alone = at(0, 1, 1, 1);
        assert!((alone.mean - (3_000.0 + 270.0 + 64.0 * 0.08 + 30.0)).abs() < 1e-6, "{alone:?}");
        assert!((alone.throughput * alone.mean - 1e9).abs() < 1.0);
        assert!((alone.p99 - alone.mean).abs() < 1e-6, "there is no wait");
    }

    #[test]
    fn more_depth_is_faster_and_later() {
        for (workers, batch) in [(0, 1), (1, 1), (1, 16), (4, 16)] {
            let points: Vec<_> = (0..8).map(|bit| at(workers, 4, batch, 1 << bit)).collect();
            for pair in points.windows(2) {
                let most = pair[0].throughput * (1.0 - 1e-9);
                assert!(pair[1].throughput >= most && pair[1].mean >= pair[0].mean, "{pair:?}");
            }
        }
    }

    #[test]
    fn no_station_exceeds_its_rate() {
        let bound = 1e9 / 30.0;
        assert!(at(0, 32, 1, 64).throughput <= bound);
        assert!(at(0, 32, 1, 64).throughput > 0.9 * bound);
        assert!(at(1, 32, 64, 16).throughput <= 64e9 / (250.0 + 30.0 * 64.0));
    }
}
