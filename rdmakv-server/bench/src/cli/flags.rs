//! The flags that commands share: one name for one thing.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::plan::DEPTH_MAX;
use crate::{Arrivals, Choice, Plan, Protocol, Sizes, Target};
use clap::Args;

/// The options of every command that makes load.
#[derive(Debug, Args)]
pub(super) struct Common {
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    names: Names,
}

/// The destination of requests.
#[derive(Debug, Args)]
struct Servers {
    /// The servers: HOST:PORT, udp:HOST:PORT, unix:PATH; through rdmakv-server's client library shm:@NAME, iwarp:HOST:PORT,
    /// verbs:HOST:PORT, or any of its addresses after client:. Of several, one after the other is asked
    #[arg(default_value = "127.0.0.1:11211", value_name = "SERVER", num_args = 1..)]
    servers: Vec<Target>,
    /// text, meta or binary
    #[arg(long, default_value = "text", help_heading = "Server")]
    protocol: Protocol,
    /// Address to write keys to before the run, if elsewhere (over UDP: TCP at the same port)
    #[arg(long, value_name = "SERVER", help_heading = "Server")]
    load_at: Option<Target>,
    /// The server's process, for its CPU time (else the one that listens there)
    #[arg(long, value_name = "PID", help_heading = "Server")]
    server_pid: Option<i32>,
    /// How long an answer may take before the run ends
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = time, help_heading = "Server")]
    timeout: Duration,
    /// How long a datagram's answer may take before it is lost
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = time, help_heading = "Server")]
    datagram_timeout: Duration,
}

/// How requests are made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct Pace {
    /// Threads that make requests
    #[arg(short = 't', long, default_value_t = 1, value_name = "N", value_parser = whole::<usize, 1024>)]
    threads: usize,
    /// Connections of all threads
    #[arg(short = 'c', long, default_value = "16", value_name = "N", value_parser = whole::<usize, 100_000>)]
    connections: usize,
    /// Time that counts
    #[arg(short = 'T', long, default_value = "5s", value_name = "TIME", value_parser = time)]
    duration: Duration,
    /// Time before it
    #[arg(short = 'w', long, default_value = "1s", value_name = "TIME", value_parser = time)]
    warm_up: Duration,
    /// Compare each value with what was written
    #[arg(long)]
    verify: bool,
    /// Put the threads on these CPUs, one each and round again: 1,2
    #[arg(long, value_delimiter = ',', value_name = "CPU")]
    pin: Vec<usize>,
    /// Ask for answers again and again instead of sleeping
    #[arg(long)]
    spin: bool,
    /// How late one request in a hundred may start before an open loop is invalid
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = time)]
    tolerance: Duration,
    /// Seed of random numbers
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole::<u64, { u64::MAX }>)]
    seed: u64,
}

/// When requests are made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(super) struct Loop {
    /// Requests under way on each connection (closed loop)
    #[arg(short = 'd', long, default_value = "1", value_name = "N", value_parser = whole::<usize, { DEPTH_MAX as u64 }>)]
    depth: usize,
    /// Requests a second of all threads: an open loop, latencies count from when requests should have started
    #[arg(short = 'r', long, value_name = "N", conflicts_with = "depth")]
    rate: Option<f64>,
    /// How requests of an open loop arrive: poisson, constant
    #[arg(long, default_value = "poisson")]
    arrivals: Arrivals,
}

/// The form of keys.
#[derive(Debug, Args)]
#[command(next_help_heading = "Keys and values")]
struct Names {
    /// How many keys
    #[arg(short = 'k', long, default_value = "10000", value_name = "N", value_parser = whole::<u64, { 1 << 40 }>)]
    keys: u64,
    /// Bytes of a key
    #[arg(long, default_value = "16", value_name = "BYTES", value_parser = whole::<usize, 250>)]
    key_len: usize,
    /// Prefix of keys
    #[arg(long, default_value = "key", value_name = "TEXT")]
    key_prefix: String,
}

/// Which keys.
#[derive(Debug, Args)]
#[command(next_help_heading = "Keys and values")]
pub(super) struct Chosen {
    /// Which keys: uniform, zipf[:SKEW], earliest[:SKEW], latest[:SKEW], hotspot[:PART:SHARE], sequential
    #[arg(long, default_value = "uniform")]
    pub(super) choice: Choice,
}

/// How large values are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Keys and values")]
pub(super) struct Valued {
    /// Bytes of a value: 100, 1k, 10-1k, or 32=9,100k=1 (with weights)
    #[arg(short = 's', long, default_value = "1024", value_name = "BYTES")]
    pub(super) size: Sizes,
}

/// The output of a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct Output {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with curves and tables to this file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write each second's histograms to this file, as HdrHistogram's tools read them
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// No progress on stderr
    #[arg(short = 'q', long)]
    pub(super) quiet: bool,
}

impl Common {
    /// Returns the servers, one after the other.
    pub(super) fn servers(&self) -> &[Target] {
        &self.servers.servers
    }

    /// Returns a plan for this server of them.
    pub(super) fn plan(&self, server: &Target, interrupt: &Arc<AtomicBool>) -> Plan {
        let Self { servers, pace, names } = self;
        let mut plan = Plan::new(server.clone());
        plan.protocol = servers.protocol;
        plan.load_at.clone_from(&servers.load_at);
        plan.server_pid = servers.server_pid;
        plan.timeout = servers.timeout;
        plan.datagram_timeout = servers.datagram_timeout;
        plan.threads = pace.threads;
        plan.connections = pace.connections;
        plan.duration = pace.duration;
        plan.warm_up = pace.warm_up;
        plan.verify = pace.verify;
        plan.pin.clone_from(&pace.pin);
        plan.spin = pace.spin;
        plan.tolerance = pace.tolerance;
        plan.seed = pace.seed;
        plan.keys = names.keys;
        plan.key_len = names.key_len;
        plan.key_prefix.clone_from(&names.key_prefix);
        plan.interrupt = Some(Arc::clone(interrupt));
        plan
    }
}

impl Loop {
    pub(super) fn apply(&self, plan: &mut Plan) {
        plan.depth = self.depth;
        plan.rate = self.rate;
        plan.arrivals = self.arrivals;
    }
}

/// Returns a whole number up to this one, whatever is wrong with another.
pub(super) fn whole<T: TryFrom<u64>, const MOST: u64>(text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().ok().filter(|&number| number <= MOST).and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("a whole number is needed, {MOST} at most"))
}

/// Returns the share of SETs in GETS:SETS.
pub(super) fn mix(text: &str) -> Result<f64, String> {
    let wrong = || "two numbers are needed, such as 30:1".to_owned();
    let (gets, sets) = text.split_once(':').ok_or_else(wrong)?;
    let (gets, sets): (f64, f64) = (gets.parse().map_err(|_| wrong())?, sets.parse().map_err(|_| wrong())?);
    let share = sets / (gets + sets);
    if gets >= 0.0 && sets >= 0.0 && share.is_finite() { Ok(share) } else { Err(wrong()) }
}

/// `5`, `5s`, `20ms`, `100us`
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", 1.0)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).unwrap_or((text, &1.0));
    let number = number.trim().parse::<f64>().map_err(|_| "a time is needed: 5 or 5s, 20ms, 100us")?;
    Duration::try_from_secs_f64(number * unit).map_err(|error| error.to_string())
}

/// Returns a list of value sizes, each a law of its own: `1k,10k,100k`.
pub(super) fn each_size(text: &str) -> Result<Sizes, String> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_number_is_refused_with_its_bounds() {
        assert_eq!(whole::<u64, 9>("9"), Ok(9));
        for text in ["10", "-1", "1x", "", "99999999999999999999999"] {
            assert_eq!(whole::<u64, 9>(text), Err("a whole number is needed, 9 at most".to_owned()), "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, micros) in [("5", 5_000_000), ("0.5s", 500_000), ("20ms", 20_000), ("100us", 100), ("0", 0)] {
            assert_eq!(time(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "s", "5m", "-1", "x", "1e300"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_mix_is_two_numbers() {
        assert_eq!((mix("3:1"), mix("1:0"), mix("0:1")), (Ok(0.25), Ok(0.0), Ok(1.0)));
        for text in ["1", "0:0", "-1:2", "a:b", "1:2:3"] {
            assert!(mix(text).is_err(), "{text}");
        }
    }
}
