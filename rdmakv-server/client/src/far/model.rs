//! A model of one fabric: measured points, and the values between them.
//!
//! Points lie on axes of powers of two: record, workers, lanes, batch, depth. Between two of them throughput and latency are linear in
//! the logarithm of the axis. Beyond the last one they stay as they are there. Access without workers is a plane of its own,
//! because nothing lies between one-sided reads and rings. Axes may end early, each by itself.

use super::configuration::Configuration;

/// How fast a configuration is.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Point {
    /// Operations a second.
    pub throughput: f64,
    /// Mean latency in ns.
    pub mean: f64,
    /// The latency in ns that 99 % of the operations do not exceed.
    pub p99: f64,
}

/// An operation on a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// A measured point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// The operation.
    pub operation: Operation,
    /// The bytes of a record.
    pub record: u32,
    /// The configuration.
    pub configuration: Configuration,
    /// How fast it was.
    pub point: Point,
}

/// Values along one axis, by rising place.
#[derive(Clone, PartialEq, Debug)]
struct Axis<T>(Vec<(u32, T)>);

impl<T> Default for Axis<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Axis<T> {
    fn entry(&mut self, place: u32) -> &mut T
    where
        T: Default,
    {
        let at = match self.0.binary_search_by_key(&place, |&(at, _)| at) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (place, T::default()));
                at
            }
        };
        &mut self.0[at].1
    }

    /// Returns the values around a place with their weights, which sum to 1; nothing on an empty axis.
    fn around(&self, place: u32) -> impl Iterator<Item = (f64, &T)> {
        let above = self.0.partition_point(|&(at, _)| at < place);
        let pair = match (above.checked_sub(1).map(|below| &self.0[below]), self.0.get(above)) {
            (_, Some((at, value))) if *at == place => [Some((1.0, value)), None],
            (Some((low, below)), Some((high, above))) => {
                let log = |place: u32| f64::from(place).log2();
                let share = (log(place) - log(*low)) / (log(*high) - log(*low));
                [Some((1.0 - share, below)), Some((share, above))]
            }
            (Some((_, only)), None) | (None, Some((_, only))) => [Some((1.0, only)), None],
            (None, None) => [None, None],
        };
        pair.into_iter().flatten()
    }
}

type Depths = Axis<Point>;
type Lanes = Axis<Axis<Depths>>;

/// The points of one operation and length of record.
#[derive(Clone, PartialEq, Debug, Default)]
struct Plane {
    one_sided: Lanes,
    rings: Axis<Lanes>,
}

/// A model of one fabric.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Model {
    reads: Axis<Plane>,
    writes: Axis<Plane>,
}

/// Throughput and latency by depth, where all else is fixed.
#[derive(Debug)]
pub struct Curve<'a> {
    /// Of reads, and of writes: parts with their weights.
    parts: [Vec<(f64, &'a Depths)>; 2],
    reads: f64,
}

impl Model {
    /// Returns the model of these points. Of two at one place the later counts.
    pub fn of<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Self {
        let mut model = Self::default();
        for sample in samples {
            model.plane(sample.operation).entry(sample.record).insert(&sample.configuration, sample.point);
        }
        model
    }

    /// Returns the most workers that were measured.
    pub fn workers(&self) -> u32 {
        let planes = self.reads.0.iter().chain(&self.writes.0);
        planes.filter_map(|(_, plane)| plane.rings.0.last()).map(|&(workers, _)| workers).max().unwrap_or(0)
    }

    fn plane(&mut self, operation: Operation) -> &mut Axis<Plane> {
        match operation {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
        }
    }

    /// Returns the curve of records of `record` bytes of which a share of `reads` is read; None where nothing like it was measured.
    ///
    /// The depth of the configuration does not count.
    pub fn curve(&self, record: u32, reads: f64, of: &Configuration) -> Option<Curve<'_>> {
        let parts = [
            if reads > 0.0 { self.reads.gather(record, of) } else { Vec::new() },
            if reads < 1.0 { self.writes.gather(record, of) } else { Vec::new() },
        ];
        let is_known = (reads <= 0.0 || !parts[0].is_empty()) && (reads >= 1.0 || !parts[1].is_empty());
        is_known.then_some(Curve { parts, reads })
    }

    /// Returns how fast a configuration is; None where nothing like it was measured.
    pub fn at(&self, record: u32, reads: f64, of: &Configuration) -> Option<Point> {
        self.curve(record, reads, of).map(|curve| curve.at(of.depth))
    }
}

impl Axis<Plane> {
    fn gather(&self, record: u32, of: &Configuration) -> Vec<(f64, &Depths)> {
        let mut parts = Vec::new();
        for (weight, plane) in self.around(record) {
            if of.is_one_sided() {
                plane.one_sided.gather(weight, of, &mut parts);
            } else {
                plane.rings.around(of.workers).for_each(|(share, lanes)| lanes.gather(weight * share, of, &mut parts));
            }
        }
        parts
    }
}

impl Lanes {
    fn gather<'a>(&'a self, weight: f64, of: &Configuration, parts: &mut Vec<(f64, &'a Depths)>) {
        for (of_lane, batches) in self.around(of.lanes) {
            parts.extend(batches.around(of.batch).map(|(share, depths)| (weight * of_lane * share, depths)));
        }
    }
}

impl Plane {
    fn insert(&mut self, at: &Configuration, point: Point) {
        let lanes = if at.is_one_sided() { &mut self.one_sided } else { self.rings.entry(at.workers) };
        *lanes.entry(at.lanes).entry(at.batch).entry(at.depth) = point;
    }
}

impl Curve<'_> {
    /// Returns throughput and latency at a depth.
    ///
    /// A mix of reads and writes has the mean of their latencies, and takes the sum of their times. Its 99th percentile is that of the
    /// slower operation, which is an upper bound.
    pub fn at(&self, depth: u32) -> Point {
        let [reads, writes] = &self.parts;
        match (reads.is_empty(), writes.is_empty()) {
            (_, true) => blend(reads, depth),
            (true, _) => blend(writes, depth),
            _ => {
                let (read, write, share) = (blend(reads, depth), blend(writes, depth), self.reads);
                Point {
                    throughput: 1.0 / (share / read.throughput + (1.0 - share) / write.throughput),
                    mean: share * read.mean + (1.0 - share) * write.mean,
                    p99: read.p99.max(write.p99),
                }
            }
        }
    }
}

fn blend(parts: &[(f64, &Depths)], depth: u32) -> Point {
    let mut sum = Point::default();
    for (weight, depths) in parts {
        for (share, point) in depths.around(depth) {
            let weight = weight * share;
            sum.throughput += weight * point.throughput;
            sum.mean += weight * point.mean;
            sum.p99 += weight * point.p99;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(
        operation: Operation,
        record: u32,
        [workers, lanes, batch, depth]: [u32; 4],
        rate: f64,
        mean: f64,
    ) -> Sample {
        let configuration = Configuration { workers, lanes, batch, depth };
        Sample { operation, record, configuration, point: Point { throughput: rate, mean, p99: 2.0 * mean } }
    }

    fn at(model: &Model, record: u32, reads: f64, [workers, lanes, batch, depth]: [u32; 4]) -> Option<Point> {
        model.at(record, reads, &Configuration { workers, lanes, batch, depth })
    }

    #[test]
    fn returns_what_was_measured() {
        let model = Model::of(&[sample(Operation::Read, 64, [1, 2, 4, 8], 1e6, 5e3)]);
        assert_eq!(at(&model, 64, 1.0, [1, 2, 4, 8]), Some(Point { throughput: 1e6, mean: 5e3, p99: 1e4 }));
        assert_eq!(
            at(&model, 7, 1.0, [9, 9, 9, 9]),
            at(&model, 64, 1.0, [1, 2, 4, 8]),
            "stays as it is beyond the ends"
        );
        assert_eq!(at(&model, 64, 0.5, [1, 2, 4, 8]), None, "no write was measured");
        assert_eq!(at(&model, 64, 1.0, [0, 2, 1, 8]), None, "nothing one-sided was");
        assert_eq!(Model::default().at(64, 1.0, &Configuration { workers: 1, lanes: 1, batch: 1, depth: 1 }), None);
    }

    #[test]
    fn is_linear_in_the_logarithm() {
        let read = |lanes, rate| sample(Operation::Read, 64, [0, lanes, 1, 1], rate, 1e3);
        let model = Model::of(&[read(1, 1e6), read(4, 3e6)]);
        let rate = |lanes| at(&model, 64, 1.0, [0, lanes, 1, 1]).unwrap().throughput;
        assert!((rate(2) - 2e6).abs() < 1e-3, "{}", rate(2));
        assert!((rate(3) - (1e6 + 2e6 * 3_f64.log2() / 2.0)).abs() < 1e-3, "{}", rate(3));
    }

    #[test]
    fn axes_may_end_early() {
        let read = |lanes, depth, rate| sample(Operation::Read, 64, [0, lanes, 1, depth], rate, 1e3);
        let model = Model::of(&[read(1, 1, 1e6), read(1, 2, 2e6), read(1, 4, 3e6), read(4, 1, 5e6)]);
        // At 2 lanes and depth 4: halfway between 3e6 and what 4 lanes have at their last depth.
        let rate = at(&model, 64, 1.0, [0, 2, 1, 4]).unwrap().throughput;
        assert!((rate - 4e6).abs() < 1e-3, "{rate}");
    }

    #[test]
    fn mixes_add_times() {
        let of = [1, 1, 1, 1];
        let model = Model::of(&[sample(Operation::Read, 64, of, 4e6, 1e3), sample(Operation::Write, 64, of, 1e6, 3e3)]);
        let mixed = at(&model, 64, 0.5, of).unwrap();
        assert!((mixed.throughput - 1.6e6).abs() < 1e-3, "{mixed:?}");
        assert_eq!((mixed.mean, mixed.p99), (2e3, 6e3));
        assert_eq!(at(&model, 64, 0.0, of).unwrap().throughput, 1e6);
    }
}
