//! The counters and gauges of the fabrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{DatagramCounts, Latencies};

counters! {
    shared
    /// The counters of a fabric's connections.
    FabricCounts {
        /// Connections ever.
        total_connections = "total_connections",
        /// Connections refused, because there were too many or they did not come to stand.
        rejected_connections = "rejected_connections",
        /// Connections that were offered to busy clients of datagrams, and came.
        promoted = "promoted",
        /// Connections that were ended because what came made no sense.
        malformed = "malformed",
        /// Connections that a fault of the server's own has ended.
        faults = "faults",
        /// Items that went in messages.
        gets_by_message = "gets_by_message",
        /// Items that were written into clients' memory.
        gets_by_transfer = "gets_by_transfer",
        /// Bytes of these.
        transferred_bytes = "transferred_bytes",
        /// Transfers that failed.
        failed_transfers = "failed_transfers",
        /// Values that were read out of clients' memory.
        sets_pulled = "sets_pulled",
        /// Bytes of these.
        pulled_bytes = "pulled_bytes",
        /// Values that could not be read there.
        failed_pulls = "failed_pulls",
        /// Requests refused because too much was under way.
        busy = "busy",
        /// Tags given to clients.
        grants = "grants",
        /// Requests for items that the client finds in the GET table from then on.
        listed = "listed",
        /// Tags not given, because the key changes too often.
        refused_churn = "refused_churn",
        /// Because the item was gone when its memory was registered.
        refused_gone = "refused_gone",
        /// Because as much is leased as may be.
        refused_budget = "refused_budget",
        /// Because others are read more often, and not all fit.
        refused_seldom = "refused_seldom",
        /// Because the client has its share.
        refused_share = "refused_share",
        /// Because the memory could not be registered.
        refused_registration = "refused_registration",
        /// Reads by tag that the server learned of.
        seen_reads = "seen_reads",
    }
}

counters! {
    named
    /// The gauges of a fabric.
    FabricGauges {
        /// Connections.
        connections = "connections",
        /// Tags that went over to the next value of their key, ever.
        swaps = "swaps",
        /// Chunks that clients may read by tags.
        leased_chunks = "leased_chunks",
        /// Pages of these.
        leased_pages = "leased_pages",
        /// Bytes registered.
        registered_bytes = "registered_bytes",
        /// Bytes that may be.
        registered_limit_bytes = "registered_limit_bytes",
        /// Reads by tags that were never valid on their connection, ever.
        tag_guesses = "tag_guesses",
        /// Times that the guesses of an address began to be limited, ever.
        tag_throttles = "tag_throttles",
    }
}

/// A fabric, as reports see it.
pub trait Reported: Send + Sync + std::fmt::Debug {
    /// Its name: shm, iwarp, verbs, udp.
    fn name(&self) -> &'static str;
    /// Returns the counters.
    fn counts(&self) -> &FabricCounts;
    /// Returns the counters of datagrams, if it has some.
    fn datagrams(&self) -> Option<&DatagramCounts> {
        None
    }
    /// Returns the gauges.
    fn gauges(&self) -> FabricGauges;
    /// How long answers to requests took, of the few that were measured. One-sided reads are not among them.
    fn latencies(&self) -> &Latencies;
    /// Serves no client any more.
    fn end(&self);
}

/// Returns the reports, once for each name: devices are several fabrics of one.
pub fn by_name(fabrics: &[Arc<dyn Reported>]) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    for fabric in fabrics {
        let (gauges, counts) = (fabric.gauges(), fabric.counts().list());
        let datagrams = fabric.datagrams().map_or_else(Vec::new, DatagramCounts::list);
        match reports.iter_mut().find(|report| report.name == fabric.name()) {
            Some(report) => {
                report.gauges.add(&gauges);
                report.counts.iter_mut().zip(counts).for_each(|((_, sum), (_, more))| *sum += more);
                report.datagrams.iter_mut().zip(datagrams).for_each(|((_, sum), (_, more))| *sum += more);
            }
            None => reports.push(Report { name: fabric.name(), gauges, counts, datagrams }),
        }
    }
    reports
}

/// The report on the fabrics of a name.
#[derive(Clone, Debug)]
pub struct Report {
    /// Their name.
    pub name: &'static str,
    /// The gauges.
    pub gauges: FabricGauges,
    /// The counters.
    pub counts: Vec<(&'static str, u64)>,
    /// The counters of datagrams; none over other fabrics.
    pub datagrams: Vec<(&'static str, u64)>,
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// So many more.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}
