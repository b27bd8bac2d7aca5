//! The counters and gauges of far memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rdmakv_proto::far::procedures::Procedure;

use super::count;

counters! {
    shared
    /// The counters of far memory. The server does not see one-sided accesses.
    FarCounts {
        /// Requests for how much there is.
        offers = "offer",
        /// Requests for regions.
        takes = "take",
        /// Requests for tags of regions.
        tags = "tags",
        /// Requests for more time.
        renewals = "renew",
        /// Requests that opened a memory.
        lists = "list",
        /// Requests that dropped a region.
        drops = "drop",
        /// Requests that ended a memory.
        ends = "end",
        /// Batches of accesses.
        batches = "batch",
        /// Reads in batches.
        reads = "read",
        /// Writes in batches.
        writes = "write",
        /// Procedures, and their parts at this server.
        runs = "run",
        /// Nanoseconds for which batches and procedures were carried out.
        busy_nanos = "busy_nanos",
        /// Nanoseconds for which modules were run.
        module_nanos = "module_nanos",
        /// Bytes that were read from other servers, for regions that moved here.
        moved_bytes = "moved_bytes",
        /// Regions whose writes were paused for a move away.
        pauses = "pauses",
        /// Nanoseconds for which they were.
        pause_nanos = "pause_nanos",
        /// Requests of other kinds.
        others = "other",
        /// Requests that were refused.
        refused = "refused",
        /// Regions that are lost: their client gave them up, or they did not move before the server stopped.
        lost = "lost",
        /// Memories that ran out of time.
        expired = "expired",
    }
}

impl FarCounts {
    /// Returns the counter of a verb of the messages.
    pub(crate) fn requests(&self, verb: u8) -> Option<&AtomicU64> {
        Some(match verb {
            1 => &self.offers,
            2 => &self.takes,
            3 => &self.tags,
            5 => &self.renewals,
            6 => &self.lists,
            11 => &self.drops,
            15 => &self.ends,
            // It is counted when it is carried out.
            4 => return None,
            13 => &self.runs,
            7..=14 | 16 | 17 => &self.others,
            _ => return None,
        })
    }
}

/// The names of the ends of procedures, by status.
const ENDS: [&str; 10] = ["done", "hops", "bytes", "time", "full", "elsewhere", "failed", "frozen", "fuel", "trap"];

/// How often procedures ended here, by procedure and end.
#[derive(Debug, Default)]
pub struct FarRuns([[AtomicU64; ENDS.len()]; Procedure::NAMES.len()]);

impl FarRuns {
    /// Counts an end of a procedure, each by its number in messages.
    pub(crate) fn count(&self, procedure: u32, status: u8) {
        let of = self.0.get((procedure as usize).wrapping_sub(1)).and_then(|ends| ends.get(usize::from(status)));
        if let Some(counter) = of {
            count(counter);
        }
    }

    /// Returns the counters, each with its procedure and end.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let named = Procedure::NAMES.into_iter().zip(&self.0);
        named.flat_map(|(name, ends)| {
            ENDS.into_iter().zip(ends).map(move |(end, count)| (name, end, count.load(Relaxed)))
        })
    }
}

/// The gauges of far memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarGauges {
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Memories.
    pub memories: u64,
    /// Regions that memories have.
    pub used: u64,
    /// Regions that are free.
    pub free: u64,
    /// Regions that ended, and whose tags may still be open.
    pub ending: u64,
    /// Modules of clients.
    pub modules: u64,
}

/// Far memory, as reports see it.
pub trait FarReported: Send + Sync + std::fmt::Debug {
    /// Returns the gauges.
    fn gauges(&self) -> FarGauges;
    /// Returns the counters.
    fn counts(&self) -> &FarCounts;
    /// Returns the counters of procedures.
    fn runs(&self) -> &FarRuns;
    /// Tells clients that the server is to stop. Returns whether it waits for them to move their regions away: it does so for a while, as
    /// long as there are some.
    fn delays_stop(&self) -> bool;
}
