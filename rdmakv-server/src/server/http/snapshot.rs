//! All counters at one moment; each shard's are taken under its lock, which is held for that long.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use crate::server::clock;
use crate::session::{Asked, Counts, Measured, Shared, classes, counts};
use crate::store::{ClassCounters, ClassReport, Counters, Report};

/// The numbers.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) now: u64,
    pub(super) counts: Counts,
    pub(super) whole: Counters,
    pub(super) totals: ClassCounters,
    /// By number, from one.
    pub(super) classes: BTreeMap<usize, ClassReport>,
    pub(super) items: u64,
    /// Of items, with their headers.
    pub(super) bytes: u64,
    /// Of pages in use.
    pub(super) paged: u64,
    pub(super) hash_bytes: u64,
    /// Of items that are gone and that clients may still read.
    pub(super) leased_dead_bytes: u64,
    pub(super) limit: u64,
    pub(super) connections: u64,
    /// Connections over fabrics, and GETs that clients read there by themselves, as far as the server has heard.
    pub(super) fabric_connections: u64,
    pub(super) one_sided: u64,
    pub(super) accepted: u64,
    pub(super) rejected: u64,
    pub(super) pauses: u64,
    /// By [`Asked`].
    pub(super) measured: [Measured; 3],
    /// Of the processor, in seconds.
    pub(super) cpu: f64,
}

impl Snapshot {
    pub(super) fn take(shared: &Shared) -> Self {
        let now = clock::now();
        let (mut reports, mut whole, mut totals) = (Vec::new(), Counters::default(), ClassCounters::default());
        shared.shards.each(|store| {
            reports.push(store.report(now));
            totals.add(&store.class_totals());
        });
        for report in &reports {
            whole.add(&report.counters);
        }
        let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
        let fabrics = shared.fabrics.get().map_or(&[][..], Vec::as_slice);
        Self {
            now,
            counts: counts(shared),
            whole,
            totals,
            items: sum(|report| report.items),
            bytes: sum(|report| report.bytes),
            paged: sum(|report| report.malloced),
            hash_bytes: sum(|report| report.hash_bytes),
            leased_dead_bytes: sum(|report| report.leased_dead_bytes),
            classes: classes(&reports),
            limit: shared.limit.load(Relaxed),
            connections: shared.connections.load(Relaxed).max(0) as u64,
            fabric_connections: fabrics.iter().map(|fabric| fabric.gauges().connections).sum(),
            one_sided: fabrics.iter().map(|fabric| fabric.counts().seen_reads.load(Relaxed)).sum(),
            accepted: shared.total_connections.load(Relaxed),
            rejected: shared.rejected_connections.load(Relaxed),
            pauses: shared.listen_disabled.load(Relaxed),
            measured: Asked::ALL.map(|asked| Measured::of(&shared.latencies, asked)),
            cpu: rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).into_seconds(),
        }
    }

    /// Operations that are neither a get nor a set.
    pub(super) fn others(&self) -> u64 {
        let counts = &self.counts;
        counts.delete_hits
            + counts.delete_misses
            + counts.incr_hits
            + counts.incr_misses
            + counts.decr_hits
            + counts.decr_misses
            + counts.cmd_touch
            + counts.cmd_flush
    }

    /// Items that ended because their time was up.
    pub(super) fn expired(&self) -> u64 {
        self.totals.reclaimed + self.totals.crawler_reclaimed
    }
}

trait Seconds {
    fn into_seconds(self) -> f64;
}

impl Seconds for rustix::time::Timespec {
    fn into_seconds(self) -> f64 {
        self.tv_sec as f64 + self.tv_nsec as f64 / 1e9
    }
}
