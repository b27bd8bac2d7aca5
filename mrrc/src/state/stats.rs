//! The cache's counters.

use crate::footprint::Footprint;

/// The cache's counters besides the core's: see [`CacheCounters`](crate::cache::CacheCounters).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stats {
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(crate) widened: u64,
    pub(crate) widened_pages: u64,
    pub(crate) widened_failed: u64,
    pub(crate) waits: u64,
    pub(crate) unwatched: u64,
    pub(crate) discarded: u64,
    pub(crate) changed_in_flight: u64,
    pub(crate) expired: u64,
    pub(crate) recalled: u64,
    pub(crate) barriers: u64,
    pub(crate) sweeps: u64,
    pub(crate) changes: u64,
    pub(crate) failed_deregs: u64,
    pub(crate) refused_dereg_failed: u64,
    pub(crate) batches: u64,
    pub(crate) deregistered: Footprint,
    pub(crate) peak: Footprint,
}
