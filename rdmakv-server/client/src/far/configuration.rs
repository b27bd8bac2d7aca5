//! Configurations: threads, batches and depth of the access to far memory, and their cost.

use std::fmt;

/// The longest batch: records of one fill 4 KiB.
const BATCH_BYTES: u32 = 4096;
/// The head of a batch in a ring, and that of each operation in it, in bytes.
const BATCH_HEAD: u64 = 16;
const OPERATION_HEAD: u64 = 16;
/// Bytes that hold the reply of one batch and the batch itself: a slot each.
const DIRECTIONS: u64 = 2;

/// How a client reaches far memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Configuration {
    /// Threads of the servers that poll rings. With 0 every access is one-sided.
    pub workers: u32,
    /// Threads of the client, with a connection to each server.
    pub lanes: u32,
    /// Operations of a batch: 1 where access is one-sided.
    pub batch: u32,
    /// Batches that a lane has in flight.
    pub depth: u32,
}

/// The largest configuration that there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Workers of the servers.
    pub workers: u32,
    /// Lanes of the client.
    pub lanes: u32,
    /// Batches in flight on a lane.
    pub depth: u32,
}

/// The cost of a configuration, in a unit of the operator's choice.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// Of a worker.
    pub worker: f64,
    /// Of a lane.
    pub lane: f64,
    /// Of a MiB of rings and buffers.
    pub mebibyte: f64,
}

impl Default for Prices {
    /// A lane costs half a worker, because the client shares its processors with the program.
    fn default() -> Self {
        Self { worker: 1.0, lane: 0.5, mebibyte: 0.01 }
    }
}

impl Configuration {
    /// Returns whether access is one-sided.
    pub fn is_one_sided(&self) -> bool {
        self.workers == 0
    }

    /// Returns the bytes of rings and buffers for records of `record` bytes.
    pub fn bytes(&self, record: u32) -> u64 {
        let in_flight = u64::from(self.lanes) * u64::from(self.depth);
        let record = u64::from(record);
        if self.is_one_sided() {
            return in_flight * record;
        }
        in_flight * DIRECTIONS * (BATCH_HEAD + u64::from(self.batch) * (OPERATION_HEAD + record))
    }
}

impl Prices {
    /// Returns the cost of a configuration for records of `record` bytes.
    pub fn cost(&self, of: &Configuration, record: u32) -> f64 {
        let threads = f64::from(of.workers) * self.worker + f64::from(of.lanes) * self.lane;
        threads + of.bytes(record) as f64 / f64::from(1 << 20) * self.mebibyte
    }
}

impl Limits {
    /// Returns the powers of two up to the longest batch of records of `record` bytes.
    pub fn batches(&self, workers: u32, record: u32) -> impl Iterator<Item = u32> + use<> {
        powers(if workers == 0 { 1 } else { BATCH_BYTES.div_ceil(record.max(1)) })
    }

    /// Returns the powers of two up to the most batches in flight.
    pub fn depths(&self) -> impl Iterator<Item = u32> + use<> {
        powers(self.depth)
    }
}

/// Returns 1, 2, 4 and so on up to `most`.
pub(super) fn powers(most: u32) -> impl Iterator<Item = u32> + use<> {
    (0..32).map(|bit| 1_u32 << bit).take_while(move |&power| power <= most)
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count: u32| if count == 1 { "" } else { "s" };
        if self.is_one_sided() {
            write!(f, "one-sided")?;
        } else {
            write!(f, "{} worker{}", self.workers, s(self.workers))?;
        }
        write!(f, ", {} lane{}", self.lanes, s(self.lanes))?;
        if !self.is_one_sided() {
            write!(f, ", batches of {}", self.batch)?;
        }
        write!(f, ", {} in flight", self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_bytes_by_kind_of_access() {
        let one_sided = Configuration { workers: 0, lanes: 2, batch: 1, depth: 8 };
        assert_eq!(one_sided.bytes(64), 2 * 8 * 64);
        let rings = Configuration { workers: 1, lanes: 2, batch: 4, depth: 8 };
        assert_eq!(rings.bytes(64), 2 * 8 * 2 * (16 + 4 * (16 + 64)));
    }

    #[test]
    fn costs_threads_and_memory() {
        let of = Configuration { workers: 2, lanes: 4, batch: 1, depth: 1 };
        let bytes = of.bytes(1 << 20) as f64 / f64::from(1 << 20);
        assert!((Prices::default().cost(&of, 1 << 20) - (2.0 + 2.0 + bytes * 0.01)).abs() < 1e-9);
    }

    #[test]
    fn batches_end_at_4_kib() {
        let limits = Limits { workers: 4, lanes: 4, depth: 5 };
        assert_eq!(limits.batches(1, 1024).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(limits.batches(1, 1500).collect::<Vec<_>>(), [1, 2], "3 records fit, and 3 is no power of two");
        assert_eq!(limits.batches(1, 1 << 20).collect::<Vec<_>>(), [1]);
        assert_eq!(limits.batches(0, 8).collect::<Vec<_>>(), [1]);
        assert_eq!(limits.depths().collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn reads_as_a_sentence() {
        let mut of = Configuration { workers: 0, lanes: 1, batch: 1, depth: 8 };
        assert_eq!(of.to_string(), "one-sided, 1 lane, 8 in flight");
        of = Configuration { workers: 1, lanes: 2, batch: 16, depth: 4 };
        assert_eq!(of.to_string(), "1 worker, 2 lanes, batches of 16, 4 in flight");
    }
}
