//! The plan of a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::keys::{Choice, Names};
use crate::penalty::Penalty;
use crate::protocol::Protocol;
use crate::recording::Recording;
use crate::schedule::Arrivals;
use crate::sizes::Sizes;
use crate::target::Target;
use crate::traffic::{Mix, Traffic};

/// All that is to be known before a run. The defaults are one thread, 16 connections, closed loop, 30 GETs to a SET of
/// 1,024 bytes, 10,000 keys evenly, five seconds after one to warm up.
///
/// ```
/// use rdmakv_bench::{Plan, Target};
///
/// let plan = Plan { sizes: "100".parse().unwrap(), ..Plan::new(Target::Tcp("127.0.0.1:11211".into())) };
/// assert!(plan.check().is_ok());
/// assert!(Plan { connections: 0, ..plan }.check().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server's address.
    pub target: Target,
    /// The protocol.
    pub protocol: Protocol,
    /// Threads that make requests; each has its share of the connections.
    pub threads: usize,
    /// Connections of all threads.
    pub connections: usize,
    /// Requests under way on a connection, in a closed loop.
    pub depth: usize,
    /// Requests a second, of all threads: an open loop. None for a closed one.
    pub rate: Option<f64>,
    /// How the requests of an open loop arrive.
    pub arrivals: Arrivals,
    /// How many keys there are.
    pub keys: u64,
    /// Which of them requests are for.
    pub choice: Choice,
    /// Bytes of a key.
    pub key_len: usize,
    /// The prefix of keys.
    pub key_prefix: String,
    /// Bytes of a value.
    pub sizes: Sizes,
    /// The traffic.
    pub traffic: Traffic,
    /// The cost of a miss behind the server, to be reported beside the measurement.
    pub penalty: Option<Penalty>,
    /// Whether a GET that finds nothing makes the figures useless: as where all keys were written and are to be there.
    pub must_hit: bool,
    /// Of a recording: whether a key that is missed is written.
    pub fill: bool,
    /// A recording's speed-up if its times are kept; None for as fast as the server answers.
    pub speed: Option<f64>,
    /// Whether all keys are written before.
    pub load: bool,
    /// The address that they are written to, if not the target; over UDP it is TCP at the same place.
    pub load_at: Option<Target>,
    /// Whether values are compared with what they should be.
    pub verify: bool,
    /// Time before anything counts.
    pub warm_up: Duration,
    /// Time that counts.
    pub duration: Duration,
    /// How long an answer may take, and a connection to be made.
    pub timeout: Duration,
    /// How long a datagram's answer may take before it is lost.
    pub datagram_timeout: Duration,
    /// CPUs, one a thread and round again; none for wherever the system puts them.
    pub pin: Vec<usize>,
    /// Whether threads ask for answers again and again instead of sleeping.
    pub spin: bool,
    /// How late an open loop may start one request in a hundred.
    pub tolerance: Duration,
    /// The server's process, if it is known; else it is looked for.
    pub server_pid: Option<i32>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Ends the run with the results so far when it is set.
    pub interrupt: Option<Arc<AtomicBool>>,
}

/// Requests under way on a connection at most.
pub(crate) const DEPTH_MAX: usize = 1 << 16;

impl Plan {
    /// Returns the defaults, for this server.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            protocol: Protocol::Text,
            threads: 1,
            connections: 16,
            depth: 1,
            rate: None,
            arrivals: Arrivals::Poisson,
            keys: 10_000,
            choice: Choice::Uniform,
            key_len: 16,
            key_prefix: "key".into(),
            sizes: Sizes::default(),
            traffic: Traffic::Mix(Mix::sets(1.0 / 31.0)),
            penalty: None,
            must_hit: false,
            fill: true,
            speed: None,
            load: true,
            load_at: None,
            verify: false,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            datagram_timeout: Duration::from_millis(500),
            pin: Vec::new(),
            spin: false,
            tolerance: Duration::from_millis(1),
            server_pid: None,
            seed: 1,
            interrupt: None,
        }
    }

    /// Whether it can be done.
    ///
    /// # Errors
    ///
    /// The fault, and the right form.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, number: u64, least: u64, most: u64| {
            if (least..=most).contains(&number) {
                Ok(())
            } else {
                Err(format!("{name}: {number} is not between {least} and {most}"))
            }
        };
        within("threads", self.threads as u64, 1, 1024)?;
        within("connections", self.connections as u64, self.threads as u64, 100_000)?;
        within("depth", self.depth as u64, 1, DEPTH_MAX as u64)?;
        within("keys", self.keys, 1, 1 << 40)?;
        let writes = match &self.traffic {
            Traffic::Mix(mix) => {
                mix.check()?;
                if mix.scans > 0.0 && self.protocol != Protocol::Text {
                    return Err(
                        "scans are read by one GET of several keys, which only the text protocol has: --protocol text"
                            .into(),
                    );
                }
                mix.writes()
            }
            Traffic::Load => true,
            Traffic::Bursts(bursts) => {
                bursts.check()?;
                bursts.reads < 1.0
            }
            Traffic::Replay(recording) => {
                self.check_replay(recording)?;
                true
            }
        };
        if self.rate.is_some_and(|rate| !(0.1..=1e9).contains(&rate)) {
            return Err("rate: between 0.1 and 1,000,000,000 requests a second".into());
        }
        if self.duration.is_zero() || self.duration + self.warm_up > Duration::from_secs(86_400 * 30) {
            return Err("duration: more than nothing and less than a month".into());
        }
        if self.timeout < Duration::from_millis(10) || self.datagram_timeout < Duration::from_millis(1) {
            return Err("timeout: at least 10 ms, and 1 ms for datagrams".into());
        }
        if self.target.is_through_client() {
            within("connections", self.connections as u64, 1, 1024)
                .map_err(|wrong| format!("{wrong}, as each is a client with a thread of its own"))?;
            if matches!(&self.traffic, Traffic::Mix(mix) if mix.scans > 0.0) {
                return Err("scans are made over sockets only: tcp:, unix:".into());
            }
        }
        if matches!(self.target, Target::Udp(_)) {
            if writes {
                return Err("over UDP only GETs are made: -m 1:0, and nothing that writes".into());
            }
            if self.depth > 1024 {
                return Err("depth: 1,024 at most over UDP".into());
            }
        }
        if matches!(self.load_at, Some(Target::Udp(_))) {
            return Err("values are not written over UDP: name a tcp: or unix: place to write them".into());
        }
        if let Some(skew) = self.choice.skew().filter(|skew| !(0.0..=10.0).contains(skew)) {
            return Err(format!("the skew {skew} is not between 0 and 10"));
        }
        self.names().map(|_| ())
    }

    fn check_replay(&self, recording: &Recording) -> Result<(), String> {
        if self.rate.is_some() {
            return Err("a recording has times of its own: --speed instead of --rate".into());
        }
        let Some(speed) = self.speed else { return Ok(()) };
        if !(speed.is_finite() && speed > 0.0) {
            return Err(format!("speed: {speed} is not more than nothing"));
        }
        if recording.length().is_zero() {
            return Err("this recording has no times to keep: --speed max".into());
        }
        Ok(())
    }

    /// Returns the first connection of a thread, and how many it has.
    pub(crate) fn connections_of(&self, thread: usize) -> (usize, usize) {
        let (each, more) = (self.connections / self.threads, self.connections % self.threads);
        (each * thread + more.min(thread), each + usize::from(thread < more))
    }

    /// How long after its end an open loop may begin what was due before, in nanoseconds: as late as may be borne, and no less than
    /// 50 ms.
    pub(crate) fn grace(&self) -> u64 {
        (self.tolerance.as_nanos() as u64).max(50_000_000)
    }

    /// Returns whether requests start by a schedule, whatever the server does.
    pub(crate) fn is_open(&self) -> bool {
        self.rate.is_some() || (matches!(self.traffic, Traffic::Replay(_)) && self.speed.is_some())
    }

    pub(crate) fn names(&self) -> Result<Names, String> {
        Names::new(&self.key_prefix, self.key_len, self.keys)
    }

    /// Returns the address that values are written to before the run.
    pub(crate) fn loading_place(&self) -> Target {
        match (&self.load_at, &self.target) {
            (Some(place), _) => place.clone(),
            (None, Target::Udp(place)) => Target::Tcp(place.clone()),
            (None, target) => target.clone(),
        }
    }
}
