//! All counters at one moment; each shard's are taken under its lock, which is held for that long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::rdma::server::counts::{FabricGauges, Reported};
use crate::server::clock;
use crate::session::{Asked, Counts, Latencies, Measured, Shared, classes, counts};
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
    /// Bytes registered with fabrics, and how many may be.
    pub(super) registered: u64,
    pub(super) registered_limit: u64,
    pub(super) accepted: u64,
    pub(super) rejected: u64,
    pub(super) pauses: u64,
    /// By transport, sockets first, and by [`Asked`].
    pub(super) measured: Vec<(&'static str, [Measured; 3])>,
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
        let of_fabrics: Vec<FabricGauges> = fabrics.iter().map(|fabric| fabric.gauges()).collect();
        let gauges = |of: fn(&FabricGauges) -> u64| of_fabrics.iter().map(of).sum::<u64>();
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
            fabric_connections: gauges(|gauges| gauges.connections),
            registered: gauges(|gauges| gauges.registered_bytes),
            registered_limit: gauges(|gauges| gauges.registered_limit_bytes),
            one_sided: fabrics.iter().map(|fabric| fabric.counts().seen_reads.load(Relaxed)).sum(),
            accepted: shared.total_connections.load(Relaxed),
            rejected: shared.rejected_connections.load(Relaxed),
            pauses: shared.listen_disabled.load(Relaxed),
            measured: measured(shared, fabrics),
            cpu: rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).into_seconds(),
        }
    }

    /// By [`Asked`], over all transports.
    pub(super) fn all_measured(&self) -> [Measured; 3] {
        let mut sum = <[Measured; 3]>::default();
        for (_, measured) in &self.measured {
            sum.iter_mut().zip(measured).for_each(|(sum, more)| sum.add(more));
        }
        sum
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

fn measured(shared: &Shared, fabrics: &[Arc<dyn Reported>]) -> Vec<(&'static str, [Measured; 3])> {
    let mut transports: Vec<(&str, Vec<&Latencies>)> = vec![("socket", shared.latencies.iter().collect())];
    for fabric in fabrics {
        match transports.iter_mut().find(|(name, _)| *name == fabric.name()) {
            Some((_, of)) => of.push(fabric.latencies()),
            None => transports.push((fabric.name(), vec![fabric.latencies()])),
        }
    }
    let sum = |of: &[&Latencies]| Asked::ALL.map(|asked| Measured::of(of.iter().copied(), asked));
    transports.into_iter().map(|(name, of)| (name, sum(&of))).collect()
}

trait Seconds {
    fn into_seconds(self) -> f64;
}

impl Seconds for rustix::time::Timespec {
    fn into_seconds(self) -> f64 {
        self.tv_sec as f64 + self.tv_nsec as f64 / 1e9
    }
}
