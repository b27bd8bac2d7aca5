//! The report of a run.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::Plan;
use crate::tally::{Histograms, Kind, Latencies, Tally};
use crate::traffic::Traffic;

/// The figures. Times are in microseconds, CPU times in nanoseconds an operation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The server's address.
    pub target: String,
    /// The protocol of the requests, or `client library`, which chooses it.
    pub protocol: String,
    /// Threads that made requests.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
    /// Requests under way on a connection, in a closed loop.
    pub depth: Option<usize>,
    /// The traffic.
    pub traffic: String,
    /// How keys were chosen, and of how many.
    pub keys: String,
    /// Bytes of values.
    pub sizes: String,
    /// Whether the figures can be used.
    pub valid: bool,
    /// Why they cannot.
    pub invalid_because: Vec<String>,
    /// The reason for an early end.
    pub ended_early: Option<String>,
    /// Seconds that counted.
    pub seconds: f64,
    /// Operations that ended in them.
    pub operations: u64,
    /// Answers that came in them: an operation that reads and then writes has two.
    pub answers: u64,
    /// Operations a second.
    pub rate: f64,
    /// GETs that found a value.
    pub hits: u64,
    /// GETs that found none.
    pub misses: u64,
    /// SETs that were done.
    pub stored: u64,
    /// The results of scans.
    pub scanned: Option<Scanned>,
    /// Requests that the server could not do, and said so.
    pub errors: u64,
    /// The message of the first error.
    pub first_error: Option<String>,
    /// Values that were not what they should be; none were looked for if this is missing.
    pub wrong_values: Option<u64>,
    /// Datagrams without answers.
    pub lost: u64,
    /// Latencies, by what they are of.
    pub latencies: BTreeMap<Kind, Summary>,
    /// Whether an open loop's schedule was kept.
    pub schedule: Option<Kept>,
    /// The blocks of bursty load.
    pub bursts: Option<Blocks>,
    /// The cost of misses at a database.
    pub penalty: Option<Cost>,
    /// Through the client library, how values came.
    #[serde(rename = "ways")]
    pub sources: Option<Sources>,
    /// The CPU time of the generator itself.
    pub generator: Generator,
    /// The CPU time of the server, if it runs on this host.
    pub server: Option<Server>,
    /// Whole distributions.
    #[serde(skip)]
    pub histograms: Histograms,
}

impl Report {
    /// Returns whether the run went as it should: to its end, with figures that can be used and values that were right.
    pub fn is_good(&self) -> bool {
        self.valid && self.ended_early.is_none() && self.wrong_values.unwrap_or(0) == 0
    }

    /// Megabytes of requests and answers a second, both ways.
    pub fn megabytes(&self) -> f64 {
        (self.generator.bytes_read + self.generator.bytes_written) as f64 / 1e6 / self.seconds.max(1e-9)
    }

    /// Returns whether the generator may be what limits the rate.
    pub fn is_limited_by_generator(&self) -> bool {
        self.generator.busy > 0.95
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

pub(crate) fn summaries(histograms: &Histograms) -> BTreeMap<Kind, Summary> {
    Kind::ALL.into_iter().filter_map(|kind| Some((kind, Summary::of(histograms.of(kind)?)?))).collect()
}

/// Returns the traffic in words.
pub(crate) fn traffic(plan: &Plan) -> String {
    match &plan.traffic {
        Traffic::Mix(mix) => mix.to_string(),
        Traffic::Load => "each key is written once".into(),
        Traffic::Bursts(bursts) => {
            let reads = (100.0 * bursts.reads).round();
            let kind = match reads as u32 {
                0 => "written".to_owned(),
                100 => "read".to_owned(),
                share => format!("read ({share} %) or written"),
            };
            format!("blocks of {} bytes {kind} as chunks of {}", bursts.block, bursts.chunk)
        }
        Traffic::Replay(recording) => {
            let speed =
                plan.speed.map_or("as fast as it is answered".into(), |speed| format!("at {speed} times its speed"));
            format!("{}, {speed}{}", recording.about(), if plan.fill { ", misses are written" } else { "" })
        }
    }
}

/// The results of scans.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scanned {
    /// Values that came.
    pub found: u64,
    /// Keys that were asked for.
    pub sought: u64,
}

/// Blocks of bursty load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Blocks {
    /// How many were done.
    pub done: u64,
    /// Those that began late since the one before was not done.
    pub overrun: u64,
    /// Bytes of one.
    pub bytes: usize,
    /// Bytes a second, in millions, while one was under way, by the median: of one connection.
    pub median_megabytes: f64,
}

pub(crate) fn bursts(plan: &Plan, total: &Tally) -> Option<Blocks> {
    let Traffic::Bursts(bursts) = &plan.traffic else { return None };
    let median = total.latencies.of(Kind::Block).map_or(0, |blocks| blocks.value_at_quantile(0.5));
    Some(Blocks {
        done: total.latencies.count(Kind::Block),
        overrun: total.counts.overrun,
        bytes: bursts.block,
        median_megabytes: if median == 0 { 0.0 } else { bursts.block as f64 * 1e3 / median as f64 },
    })
}

/// How values came through the client library, in the time that counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sources {
    /// Read from the server's memory, without its CPU.
    pub one_sided: u64,
    /// In messages over the fabric.
    pub messages: u64,
    /// Written by the server into this side's memory.
    pub transfers: u64,
    /// Over sockets.
    pub sockets: u64,
}

impl Sources {
    /// Returns the share that was read one-sidedly.
    pub fn one_sided_share(&self) -> f64 {
        self.one_sided as f64 / (self.one_sided + self.messages + self.transfers + self.sockets).max(1) as f64
    }
}

pub(crate) fn sources(plan: &Plan, total: &Tally) -> Option<Sources> {
    let [one_sided, messages, transfers, sockets] = total.counts.sources;
    plan.target.is_through_client().then_some(Sources { one_sided, messages, transfers, sockets })
}

/// The cost of misses at a database.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The origin of the penalty.
    pub about: String,
    /// Its mean, in microseconds.
    pub mean: f64,
    /// Seconds that all misses together would have taken; no request waited for them.
    pub seconds: f64,
    /// Share of the GETs that missed.
    pub miss_share: f64,
}

pub(crate) fn penalty(plan: &Plan, total: &Tally) -> Option<Cost> {
    let penalty = plan.penalty.as_ref()?;
    let counts = &total.counts;
    Some(Cost {
        about: penalty.about().into(),
        mean: penalty.mean().as_nanos() as f64 / 1e3,
        seconds: counts.penalty as f64 / 1e9,
        miss_share: counts.misses as f64 / (counts.hits + counts.misses).max(1) as f64,
    })
}

/// How a schedule was kept.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kept {
    /// Requests a second that were asked for, if it was a rate.
    pub wanted: Option<f64>,
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

/// The CPU time of the generator, all threads together.
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

/// The CPU time of the server.
#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// Its process.
    pub pid: i32,
    /// The name.
    pub name: String,
    /// CPU time in user space, an operation.
    pub user_ns: f64,
    /// CPU time in the kernel, an operation.
    pub system_ns: f64,
    /// CPUs that it kept busy.
    pub cpus: f64,
    /// Share of the looks, ten a second, in which it computed on a CPU on which the generator did.
    pub shared: Option<f64>,
}

impl Server {
    /// CPU time an operation, all of it.
    pub fn ns(&self) -> f64 {
        self.user_ns + self.system_ns
    }
}
