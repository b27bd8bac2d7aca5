//! The shared state of all sessions of a server. Counts, the baseline and names are behind a lock each, which is held for a copy or a
//! comparison. No other lock is taken under it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use super::flash::place;
use super::{Bell, Cluster, Peers, Prefixes, Reads, Settings, Shards, Tls, Watchers};
use crate::log::Log;
use crate::metrics::{Counts, FarReported, KernelReported, Latencies, Reported};
use crate::store::Waiter;

/// The shared state of all sessions.
#[derive(Debug)]
pub struct Shared {
    /// The stores.
    pub shards: Shards,
    /// How the server was started.
    pub settings: Settings,
    /// The server's log.
    pub log: Log,
    /// Bytes for items, as `cache_memlimit` left them.
    pub limit: AtomicU64,
    /// Whether the server is to end.
    pub stop: AtomicBool,
    /// Whether no new client is accepted, and connections end once they are silent.
    pub finish: AtomicBool,
    /// Unix seconds at the start.
    pub started: u64,
    /// Each worker's counts.
    pub counts: Vec<Mutex<Counts>>,
    /// The counts at the last `stats reset`.
    pub baseline: Mutex<Counts>,
    /// Connections and listening sockets.
    pub peers: Peers,
    /// Clients that watch.
    pub watchers: Arc<Watchers>,
    /// The counts under each prefix of keys.
    pub prefixes: Prefixes,
    /// Connections at present.
    pub connections: AtomicI64,
    /// Connections ever.
    pub total_connections: AtomicU64,
    /// Connections refused.
    pub rejected_connections: AtomicU64,
    /// Times the server stopped accepting.
    pub listen_disabled: AtomicU64,
    /// For how long, in microseconds.
    pub listen_disabled_micros: AtomicU64,
    /// Whether the crawler runs.
    pub crawler: AtomicBool,
    /// Whether a round of the crawler is under way, or was asked for.
    pub crawling: AtomicBool,
    /// Whether pages move between classes by themselves: 0 is no, as in `slabs automove`.
    pub automove: AtomicU32,
    /// Whether the crawler is to make a round at once.
    pub crawl_now: AtomicBool,
    /// Rounds of the crawler.
    pub crawler_starts: AtomicU64,
    /// Names and passwords, as last read.
    pub users: Mutex<Vec<Vec<u8>>>,
    /// When each worker last came round, in Unix seconds.
    pub rounds: Vec<AtomicU64>,
    /// The latencies of each worker.
    pub latencies: Vec<Latencies>,
    /// The durations of flash's transfers.
    pub transfers: Latencies,
    /// The reads of flash into memory that is registered with the kernel.
    pub fixed_reads: AtomicU64,
    /// TLS as the server has it.
    pub tls: Option<Tls>,
    /// Fabrics, to report on.
    pub fabrics: OnceLock<Vec<Arc<dyn Reported>>>,
    /// Far memory, if it is offered, to report on.
    pub far: OnceLock<Arc<dyn FarReported>>,
    /// The programs in the kernel, if there are any.
    pub kernel: OnceLock<Arc<dyn KernelReported>>,
    /// The driver of flash, if there is any.
    pub reads: OnceLock<Arc<dyn Reads>>,
    /// The cluster that it is a server of, if there is one.
    pub cluster: Option<Arc<Cluster>>,
    /// Any client may have each request carried out: there are no users, and no keys to be looked at.
    pub is_open: bool,
    /// One for each worker and each connection over a fabric, by the number of its counts.
    pub bells: Vec<Bell>,
}

impl Shared {
    /// For a server that has not yet met anyone.
    pub fn new(shards: Shards, settings: Settings, now: u64) -> Self {
        let workers = settings.threads + 1 + settings.seats;
        let watchers = Arc::new(Watchers::new(settings.watcher_buffer));
        shards.each(|store| store.observe(watchers.clone()));
        Self {
            shards,
            log: Log::default(),
            limit: AtomicU64::new(settings.maxbytes),
            stop: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            started: now,
            counts: (0..workers).map(|_| Mutex::default()).collect(),
            baseline: Mutex::default(),
            prefixes: Prefixes::new(settings.prefixes.unwrap_or(b':'), settings.prefixes.is_some()),
            listen_disabled_micros: AtomicU64::new(0),
            peers: Peers::default(),
            watchers,
            connections: AtomicI64::new(0),
            total_connections: AtomicU64::new(0),
            rejected_connections: AtomicU64::new(0),
            listen_disabled: AtomicU64::new(0),
            crawler: AtomicBool::new(true),
            crawling: AtomicBool::new(false),
            automove: AtomicU32::new(1),
            crawl_now: AtomicBool::new(false),
            crawler_starts: AtomicU64::new(0),
            users: Mutex::new(settings.users.clone().unwrap_or_default()),
            rounds: (0..settings.threads).map(|_| AtomicU64::new(now)).collect(),
            latencies: (0..settings.threads).map(|_| Latencies::default()).collect(),
            transfers: Latencies::default(),
            fixed_reads: AtomicU64::new(0),
            tls: None,
            fabrics: OnceLock::new(),
            far: OnceLock::new(),
            kernel: OnceLock::new(),
            reads: OnceLock::new(),
            cluster: None,
            is_open: settings.users.is_none(),
            bells: (0..workers).map(|_| Bell::default()).collect(),
            settings,
        }
    }

    /// Makes it a server of a cluster, before it serves.
    pub fn join(&mut self, cluster: Arc<Cluster>) {
        (self.cluster, self.is_open) = (Some(cluster), false);
    }

    /// Has the requests go on that waited for reads.
    pub fn wake(&self, waiters: Vec<Waiter>) {
        self.wake_others(waiters, usize::MAX);
    }

    /// The same, but returns the turns of this thread.
    pub fn wake_others(&self, waiters: Vec<Waiter>, own: usize) -> Vec<u64> {
        let mut turns = Vec::new();
        for (bell, turn) in waiters.into_iter().map(place) {
            if bell == own {
                turns.push(turn);
            } else if let Some(bell) = self.bells.get(bell) {
                bell.wake(turn);
            }
        }
        turns
    }
}

/// Returns whether this server's stop was asked for.
pub fn is_stopping(shared: &Shared) -> bool {
    shared.stop.load(Relaxed)
}

/// Returns whether it takes new connections.
pub fn is_accepting(shared: &Shared) -> bool {
    !shared.stop.load(Relaxed) && !shared.finish.load(Relaxed)
}

/// A worker that has not come round for this long is stuck, in seconds. Idle workers come round every second.
const STUCK: u64 = 10;

/// Returns a worker that has not come round for long, if there is one.
pub(crate) fn stuck_worker(shared: &Shared, now: u64) -> Option<usize> {
    shared.rounds.iter().position(|round| now.saturating_sub(round.load(Relaxed)) > STUCK)
}
