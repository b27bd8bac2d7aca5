//! All counters at one moment, for `stats` and for monitoring; each shard's are taken under its lock, which is held for that long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Shared;
use crate::metrics::{
    Asked, ClassCounters, Counters, Counts, FabricGauges, FlashCounts, FlashGauges, KernelCounts, Latencies, Measured,
    Reported,
};
use crate::store::{ClassReport, Report};

/// The numbers.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) now: u64,
    pub(crate) counts: Counts,
    pub(crate) whole: Counters,
    pub(crate) totals: ClassCounters,
    /// By number, from one.
    pub(crate) classes: BTreeMap<usize, ClassReport>,
    /// Those on flash included, and those in memory.
    pub(crate) items: u64,
    pub(crate) here: u64,
    /// Of items in memory, with their headers.
    pub(crate) bytes: u64,
    /// Of pages in use.
    pub(crate) paged: u64,
    pub(crate) hash_bytes: u64,
    /// Two to this power of buckets, and whether a table is between two powers.
    pub(crate) hash_power: u32,
    pub(crate) is_growing: bool,
    /// Pages without a class.
    pub(crate) pool: u64,
    /// Chunks that one-sided readers may read, and those of them whose item is gone.
    pub(crate) leased: u64,
    pub(crate) leased_dead: u64,
    /// Of items that are gone and that clients may still read.
    pub(crate) leased_dead_bytes: u64,
    /// The second tier, if there is one.
    pub(crate) flash: Option<(FlashCounts, FlashGauges)>,
    /// GETs that the kernel answered, if any are.
    pub(crate) kernel: Option<KernelCounts>,
    pub(crate) limit: u64,
    pub(crate) connections: u64,
    /// Connections over fabrics, and GETs that clients read there by themselves, as far as the server has heard.
    pub(crate) fabric_connections: u64,
    pub(crate) one_sided: u64,
    /// Bytes registered with fabrics, and how many may be.
    pub(crate) registered: u64,
    pub(crate) registered_limit: u64,
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    pub(crate) pauses: u64,
    /// The processor's time in seconds.
    pub(crate) cpu: f64,
}

impl Snapshot {
    pub(crate) fn take(shared: &Shared, now: u64) -> Self {
        let (mut reports, mut whole, mut totals) = (Vec::new(), Counters::default(), ClassCounters::default());
        shared.shards.each(|store| {
            reports.push(store.report(now));
            totals.add(&store.class_totals());
        });
        for report in &reports {
            whole.add(&report.counters);
        }
        let kernel = shared.kernel.get().map(|kernel| kernel.counts());
        let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
        let fabrics = shared.fabrics.get().map_or(&[][..], Vec::as_slice);
        let of_fabrics: Vec<FabricGauges> = fabrics.iter().map(|fabric| fabric.gauges()).collect();
        let gauges = |of: fn(&FabricGauges) -> u64| of_fabrics.iter().map(of).sum::<u64>();
        Self {
            now,
            counts: counts(shared, kernel.as_ref()),
            whole,
            totals,
            items: sum(|report| report.items),
            here: sum(|report| report.here),
            bytes: sum(|report| report.bytes),
            paged: sum(|report| report.malloced),
            hash_bytes: sum(|report| report.hash_bytes),
            hash_power: reports.iter().map(|report| report.hash_power).max().unwrap_or(0),
            is_growing: reports.iter().any(|report| report.growing),
            pool: sum(|report| report.pool),
            leased: sum(|report| report.leased),
            leased_dead: sum(|report| report.leased_dead),
            leased_dead_bytes: sum(|report| report.leased_dead_bytes),
            classes: classes(&reports, kernel.as_ref()).into_iter().filter(|(_, class)| class.pages > 0).collect(),
            kernel,
            flash: flash(&reports),
            limit: shared.limit.load(Relaxed),
            connections: shared.connections.load(Relaxed).max(0) as u64,
            fabric_connections: gauges(|gauges| gauges.connections),
            registered: gauges(|gauges| gauges.registered_bytes),
            registered_limit: gauges(|gauges| gauges.registered_limit_bytes),
            one_sided: fabrics.iter().map(|fabric| fabric.counts().seen_reads.load(Relaxed)).sum(),
            accepted: shared.total_connections.load(Relaxed),
            rejected: shared.rejected_connections.load(Relaxed),
            pauses: shared.listen_disabled.load(Relaxed),
            cpu: rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).into_seconds(),
        }
    }

    /// Operations that are neither a get nor a set.
    pub(crate) fn others(&self) -> u64 {
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
    pub(crate) fn expired(&self) -> u64 {
        self.totals.reclaimed + self.totals.crawler_reclaimed
    }
}

/// All shards' tiers in one.
fn flash(reports: &[Report]) -> Option<(FlashCounts, FlashGauges)> {
    reports.iter().filter_map(|report| report.flash).reduce(|(mut counts, mut gauges), other| {
        counts.add(&other.0);
        gauges.add(&other.1);
        (counts, gauges)
    })
}

/// All workers' counts since the last reset, and the kernel's.
fn counts(shared: &Shared, kernel: Option<&KernelCounts>) -> Counts {
    let mut counts = of_workers(shared);
    if let Some(kernel) = kernel {
        counts.cmd_get += kernel.gets;
        counts.get_hits += kernel.gets;
        counts.cmd_meta += kernel.meta;
        counts.bytes_read += kernel.bytes_in;
        counts.bytes_written += kernel.bytes_out;
    }
    counts
}

/// All workers' counts since the last reset.
pub(super) fn of_workers(shared: &Shared) -> Counts {
    let mut sum = Counts::default();
    for worker in &shared.counts {
        if let Ok(counts) = worker.lock() {
            sum.add(&counts);
        }
    }
    shared.baseline.lock().map_or(sum, |baseline| sum.since(&baseline))
}

/// All shards' classes, by number from one, with the kernel's hits.
pub(super) fn classes(reports: &[Report], kernel: Option<&KernelCounts>) -> BTreeMap<usize, ClassReport> {
    let mut sums = BTreeMap::new();
    for class in reports.iter().flat_map(|report| &report.classes) {
        sums.entry(class.class + 1)
            .and_modify(|sum: &mut ClassReport| {
                sum.pages += class.pages;
                sum.used += class.used;
                sum.bytes += class.bytes;
                sum.small += class.small;
                sum.main += class.main;
                sum.away += class.away;
                sum.age = sum.age.max(class.age);
                sum.ages = [sum.ages[0].max(class.ages[0]), sum.ages[1].max(class.ages[1])];
                sum.counters.add(&class.counters);
            })
            .or_insert_with(|| class.clone());
    }
    let of_kernel = kernel.map_or(&[][..], |kernel| &kernel.classes);
    for (class, hits) in of_kernel.iter().enumerate() {
        if let Some(class) = sums.get_mut(&(class + 1)) {
            class.counters.get_hits += hits;
        }
    }
    sums
}

/// Returns what was measured, by transport, sockets first, and by [`Asked`].
pub(crate) fn measured(shared: &Shared) -> Vec<(&'static str, [Measured; 3])> {
    let fabrics: &[Arc<dyn Reported>] = shared.fabrics.get().map_or(&[], Vec::as_slice);
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
