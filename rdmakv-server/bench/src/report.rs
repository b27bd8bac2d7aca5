//! What came of a run.

use serde::Serialize;

use crate::tally::Latencies;

/// The figures. Times are in microseconds, CPU times in nanoseconds an operation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Where the server was.
    pub target: String,
    /// What it was spoken to in.
    pub protocol: String,
    /// Threads that made requests.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
    /// Requests under way on a connection, in a closed loop.
    pub depth: Option<usize>,
    /// How keys were chosen.
    pub keys: String,
    /// Bytes of values.
    pub sizes: String,
    /// Whether the figures can be used.
    pub valid: bool,
    /// Why they cannot.
    pub invalid_because: Vec<String>,
    /// What ended the run before its time.
    pub ended_early: Option<String>,
    /// Seconds that counted.
    pub seconds: f64,
    /// Answers that came in them.
    pub operations: u64,
    /// The same a second.
    pub rate: f64,
    /// GETs that found a value.
    pub hits: u64,
    /// GETs that found none.
    pub misses: u64,
    /// SETs that were done.
    pub stored: u64,
    /// Requests that the server could not do, and said so.
    pub errors: u64,
    /// What it said at first.
    pub first_error: Option<String>,
    /// Values that were not what they should be; none were looked for if this is missing.
    pub wrong_values: Option<u64>,
    /// Datagrams without answers.
    pub lost: u64,
    /// Latencies of GETs.
    pub gets: Option<Summary>,
    /// Latencies of SETs.
    pub sets: Option<Summary>,
    /// Of an open loop, whether its schedule was kept.
    pub schedule: Option<Kept>,
    /// What the generator itself used.
    pub generator: Generator,
    /// What the server used, if it runs on this host.
    pub server: Option<Server>,
    /// Whole distributions.
    #[serde(skip)]
    pub histograms: Histograms,
}

impl Report {
    /// Whether the run went as it should: to its end, with figures that can be used and values that were right.
    pub fn is_good(&self) -> bool {
        self.valid && self.ended_early.is_none() && self.wrong_values.unwrap_or(0) == 0
    }
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(missing_docs, reason = "the names are what they are")]
pub struct Summary {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    pub max: f64,
}

impl Summary {
    pub(crate) fn of(latencies: &Latencies) -> Option<Self> {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        (!latencies.is_empty()).then(|| Self {
            count: latencies.len(),
            mean: latencies.mean() / 1e3,
            min: latencies.min() as f64 / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: latencies.max() as f64 / 1e3,
        })
    }
}

/// Latencies in nanoseconds, for those who want more of them than a summary has.
#[derive(Clone)]
#[expect(missing_docs, reason = "the names are what they are")]
pub struct Histograms {
    pub gets: Latencies,
    pub sets: Latencies,
}

impl std::fmt::Debug for Histograms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // All their buckets are nothing to look at.
        write!(f, "{} and {} latencies", self.gets.len(), self.sets.len())
    }
}

/// How a schedule was kept.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kept {
    /// Requests a second that were asked for.
    pub wanted: f64,
    /// Requests a second that were started.
    pub started: f64,
    /// How late they were, in microseconds: the median,
    pub late_p50: f64,
    /// one in a hundred,
    pub late_p99: f64,
    /// and the worst.
    pub late_max: f64,
    /// Requests that were not started, for too many waited for answers.
    pub unsent: u64,
}

/// What the generator used, all threads together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Generator {
    /// CPU time in user space, an operation.
    pub user_ns: f64,
    /// CPU time in the kernel, an operation.
    pub system_ns: f64,
    /// Share of its threads' time that it was computing; near 1, it may be what limits the rate.
    pub busy: f64,
    /// System calls that read, an operation.
    pub reads: f64,
    /// System calls that wrote, an operation.
    pub writes: f64,
    /// System calls that waited, an operation.
    pub waits: f64,
    /// Bytes received in all.
    pub bytes_read: u64,
    /// Bytes sent in all.
    pub bytes_written: u64,
}

/// What the server used.
#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// Its process.
    pub pid: i32,
    /// What that is called.
    pub name: String,
    /// CPU time in user space, an operation.
    pub user_ns: f64,
    /// CPU time in the kernel, an operation.
    pub system_ns: f64,
    /// CPUs that it kept busy.
    pub cpus: f64,
}

impl Server {
    /// CPU time an operation, all of it.
    pub fn ns(&self) -> f64 {
        self.user_ns + self.system_ns
    }
}
