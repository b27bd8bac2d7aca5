//! The requests made of the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::recording::Recording;

/// The traffic of a run.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// Requests of several kinds, at random.
    Mix(Mix),
    /// Each key written once.
    Load,
    /// Blocks of many chunks, and pauses between them.
    Bursts(Bursts),
    /// A recording of other clients' requests.
    Replay(Arc<Recording>),
}

/// Shares of the kinds of requests; they need not sum up to one.
///
/// ```
/// use rdmakv_bench::Mix;
///
/// assert_eq!(Mix::ycsb('b').unwrap(), Mix { reads: 0.95, updates: 0.05, ..Mix::default() });
/// assert!(Mix::ycsb('g').is_none());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// A key is read.
    pub reads: f64,
    /// A key is written; where keys are chosen by *latest*, a new one.
    pub updates: f64,
    /// A new key is written.
    pub inserts: f64,
    /// Keys in a row are read by one request (text protocol).
    pub scans: f64,
    /// A key is read, then written.
    pub modifies: f64,
    /// Keys of a scan at most; each number from one on is as likely.
    pub scan_most: u16,
    /// Whether a key that is missed is written.
    pub fill: bool,
}

impl Mix {
    /// Reads, and this share of SETs.
    pub fn sets(share: f64) -> Self {
        Self { reads: 1.0 - share, updates: share, ..Self::default() }
    }

    /// One of YCSB's core workloads, A to F.
    pub fn ycsb(letter: char) -> Option<Self> {
        let none = Self::default();
        Some(match letter.to_ascii_lowercase() {
            'a' => Self { reads: 0.5, updates: 0.5, ..none },
            'b' => Self { reads: 0.95, updates: 0.05, ..none },
            'c' => Self { reads: 1.0, ..none },
            'd' => Self { reads: 0.95, inserts: 0.05, ..none },
            'e' => Self { scans: 0.95, inserts: 0.05, scan_most: 100, ..none },
            'f' => Self { reads: 0.5, modifies: 0.5, ..none },
            _ => return None,
        })
    }

    pub(crate) fn shares(&self) -> [f64; 5] {
        [self.reads, self.updates, self.inserts, self.scans, self.modifies]
    }

    /// Returns whether it writes anything.
    pub fn writes(&self) -> bool {
        self.updates + self.inserts + self.modifies > 0.0 || self.fill
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let sum: f64 = self.shares().iter().sum();
        if !self.shares().iter().all(|share| (0.0..=1e9).contains(share)) || sum <= 0.0 {
            return Err(format!("the mix {self}: shares of nothing or more are needed, one of them more than nothing"));
        }
        if self.scans > 0.0 && !(1..=1000).contains(&self.scan_most) {
            return Err(format!("keys of a scan: {} is not between 1 and 1000", self.scan_most));
        }
        Ok(())
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum: f64 = self.shares().iter().sum();
        let names = ["GET", "SET", "new keys", "scans", "read-modify-write"];
        let mut parts = names.iter().zip(self.shares()).filter(|(_, share)| *share > 0.0);
        if let Some((name, share)) = parts.next() {
            write!(f, "{} % {name}", round(100.0 * share / sum))?;
        }
        parts.try_for_each(|(name, share)| write!(f, ", {} % {name}", round(100.0 * share / sum)))
    }
}

fn round(percent: f64) -> f64 {
    (percent * 100.0).round() / 100.0
}

/// Load that comes in blocks, as of programs that write checkpoints or read files through a burst buffer.
///
/// A block is written or read as chunks, each under a key of its own, with as many requests under way as the plan's depth
/// allows. Each connection has blocks of its own, and all connections begin together.
#[derive(Clone, Debug, PartialEq)]
pub struct Bursts {
    /// Bytes of a block.
    pub block: usize,
    /// Bytes of a chunk; a block is a whole number of them.
    pub chunk: usize,
    /// Blocks of each connection: after the last comes the first again.
    pub blocks: u64,
    /// Share of the blocks that are read.
    pub reads: f64,
    /// From the beginning of a block to that of the next. A block that takes longer delays the next, whose time counts from when
    /// it should have begun. None for one after the other.
    pub period: Option<Duration>,
    /// From the end of a block to the beginning of the next at least.
    pub pause: Duration,
    /// Whether connections begin one after the other, evenly over a period, instead of together.
    pub staggered: bool,
}

impl Bursts {
    /// Chunks of a block.
    pub fn chunks(&self) -> u64 {
        (self.block / self.chunk.max(1)) as u64
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.chunk == 0 || self.block == 0 || !self.block.is_multiple_of(self.chunk) {
            return Err(format!("a block of {} bytes is no whole number of chunks of {}", self.block, self.chunk));
        }
        if !(0.0..=1.0).contains(&self.reads) {
            return Err(format!("reads: {} is not a share between 0 and 1", self.reads));
        }
        if self.blocks == 0 || self.blocks.saturating_mul(self.chunks()) > 1 << 32 {
            return Err("blocks: at least one, and of all chunks four billion at most".into());
        }
        if self.period.is_some_and(|period| period < Duration::from_micros(1)) {
            return Err("period: at least 1 us".into());
        }
        Ok(())
    }
}
