//! What the face counts, fabric by fabric, for `stats` and for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::session::Latencies;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened on the connections of a fabric.
        #[derive(Debug, Default)]
        pub struct FabricCounts { $($(#[$doc])* pub $name: AtomicU64,)* }

        impl FabricCounts {
            /// Name and number of each.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)*]
            }

            /// Back to zero.
            pub fn reset(&self) {
                $(self.$name.store(0, Relaxed);)*
            }
        }
    };
}

counts! {
    /// Connections ever.
    total_connections,
    /// Connections refused, because there were too many or they did not come to stand.
    rejected_connections,
    /// Connections that were ended because what came made no sense.
    malformed,
    /// Connections that a fault of the server's own has ended.
    faults,
    /// Items that went in messages.
    gets_by_message,
    /// Items that were written into clients' memory.
    gets_by_transfer,
    /// Bytes of these.
    transferred_bytes,
    /// Transfers that failed.
    failed_transfers,
    /// Values that were read out of clients' memory.
    sets_pulled,
    /// Bytes of these.
    pulled_bytes,
    /// Values that could not be read there.
    failed_pulls,
    /// Requests refused because too much was under way.
    busy,
    /// Tags given to clients.
    grants,
    /// Requests for items that the client finds in the GET table from then on.
    listed,
    /// Tags not given, because the key changes too often.
    refused_restless,
    /// Because the item was gone when its memory was registered.
    refused_gone,
    /// Because as much is leased as may be.
    refused_budget,
    /// Because others are read more often, and not all fit.
    refused_seldom,
    /// Because the client has its share.
    refused_share,
    /// Because the memory could not be registered.
    refused_registration,
    /// Reads by tag that the server learned of.
    seen_reads,
}

/// What is so at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricGauges {
    /// Connections.
    pub connections: u64,
    /// Tags that went over to the next value of their key, ever.
    pub swaps: u64,
    /// Chunks that clients may read by tags.
    pub leased_chunks: u64,
    /// Pages of these.
    pub leased_pages: u64,
    /// Bytes registered.
    pub registered_bytes: u64,
    /// Bytes that may be.
    pub registered_limit_bytes: u64,
    /// Reads by tags that were never valid on their connection, ever.
    pub tag_guesses: u64,
    /// Times that the guesses of an address began to be limited, ever.
    pub tag_throttles: u64,
}

impl FabricGauges {
    /// Name and number of each.
    pub fn list(&self) -> [(&'static str, u64); 8] {
        [
            ("connections", self.connections),
            ("swaps", self.swaps),
            ("leased_chunks", self.leased_chunks),
            ("leased_pages", self.leased_pages),
            ("registered_bytes", self.registered_bytes),
            ("registered_limit_bytes", self.registered_limit_bytes),
            ("tag_guesses", self.tag_guesses),
            ("tag_throttles", self.tag_throttles),
        ]
    }
}

/// A fabric, for those who report on it.
pub trait Reported: Send + Sync + std::fmt::Debug {
    /// Its name: shm, iwarp, verbs.
    fn name(&self) -> &'static str;
    /// What happened.
    fn counts(&self) -> &FabricCounts;
    /// What is so now.
    fn gauges(&self) -> FabricGauges;
    /// How long answers to requests took, of the few that were measured. One-sided reads are not among them.
    fn latencies(&self) -> &Latencies;
    /// Nobody is served any more.
    fn end(&self);
}

/// What there is to report, once for each name: devices are several fabrics of one.
pub fn by_name(fabrics: &[Arc<dyn Reported>]) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    for fabric in fabrics {
        let gauges = fabric.gauges().list().to_vec();
        let counts = fabric.counts().list();
        match reports.iter_mut().find(|report| report.name == fabric.name()) {
            Some(report) => {
                let sums = report.gauges.iter_mut().zip(gauges).chain(report.counts.iter_mut().zip(counts));
                sums.for_each(|((_, sum), (_, more))| *sum += more);
            }
            None => reports.push(Report { name: fabric.name(), gauges, counts }),
        }
    }
    reports
}

/// What there is to say of the fabrics of a name.
#[derive(Clone, Debug)]
pub struct Report {
    /// Their name.
    pub name: &'static str,
    /// What is so now.
    pub gauges: Vec<(&'static str, u64)>,
    /// What happened.
    pub counts: Vec<(&'static str, u64)>,
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// So many more.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}
