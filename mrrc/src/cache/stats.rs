//! What a cache has counted: always on, and exact once the threads that acquire have stopped.

use super::books::{Books, Tally};
use super::shared::Shared;
use crate::core::Counters;
use crate::registrar::Registrar;

/// Everything that a cache has counted since it was made.
///
/// Hits are counted by each thread for itself, and everything else under the lock. The sums are exact whenever
/// nobody is inside a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheCounters {
    /// What was asked for and what was decided, as the simulator counts it. `deregs` counts regions that left;
    /// they may not be deregistered yet.
    pub decisions: Counters,
    /// Calls of the registrar to register, those that failed included.
    pub attempts: u64,
    /// Registrations that were tried again because the system was out of something.
    pub retries: u64,
    /// Times that a request waited for another's registration or for room.
    pub waits: u64,
    /// Regions registered for one lease only, because no monitor watches such memory.
    pub unwatched: u64,
    /// Regions registered for one lease only, because pages there were just discarded.
    pub barred: u64,
    /// Regions registered for one lease only, because memory changed while they were registered.
    pub overtaken: u64,
    /// Changes of memory that monitors reported.
    pub changes: u64,
    /// Regions proposed to leave that somebody turned out to hold.
    pub recalled: u64,
    /// Heavy barriers: one for each batch that is proposed to leave, replaced or invalidated.
    pub barriers: u64,
    /// Batches handed to the registrar.
    pub dereg_batches: u64,
    /// Regions that were deregistered.
    pub deregistered: u64,
    /// Deregistrations that failed: those regions are parked, and tried again.
    pub failed_deregs: u64,
    /// The most pages that were ever registered at once.
    pub peak_pages: u64,
    /// The most regions that were ever registered at once.
    pub peak_regions: u64,
}

/// What is registered at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// Pages registered, being registered, being deregistered, or parked. Never above the capacity.
    pub pages: u64,
    /// Regions, counted likewise.
    pub regions: u64,
    /// Regions that left and wait to be deregistered.
    pub leaving: u64,
    /// Regions that could not be deregistered.
    pub parked: u64,
    /// Regions that somebody was found to hold and that are looked at again: retired, or registered for a lease.
    pub lent: u64,
    /// The capacity in pages.
    pub capacity_pages: u64,
    /// The capacity in regions.
    pub capacity_regions: u64,
}

impl CacheCounters {
    pub(crate) fn of(decisions: Counters, tally: &Tally) -> Self {
        Self {
            decisions,
            attempts: tally.attempts,
            retries: tally.retries,
            waits: tally.waits,
            unwatched: tally.unwatched,
            barred: tally.barred,
            overtaken: tally.overtaken,
            changes: tally.changes,
            recalled: tally.recalled,
            barriers: tally.barriers,
            dereg_batches: tally.batches,
            deregistered: tally.deregistered.regions,
            failed_deregs: tally.failed_deregs,
            peak_pages: tally.peak.pages,
            peak_regions: tally.peak.regions,
        }
    }
}

impl<R: Registrar> Shared<R> {
    pub(super) fn counters(&self) -> CacheCounters {
        let Ok((books, _)) = self.lock_now() else { return CacheCounters::default() };
        let mut decisions = books.core.counters();
        let ([subset, exact], pages) = self.blocks.counts();
        decisions.requests += subset + exact;
        decisions.subset += subset;
        decisions.exact += exact;
        decisions.pages = decisions.pages.saturating_add(pages);
        decisions.hit_pages = decisions.hit_pages.saturating_add(pages);
        CacheCounters::of(decisions, &books.tally)
    }

    pub(super) fn usage(&self) -> Usage {
        let limit = self.terms.capacity;
        let Ok((books, _)) = self.lock_now() else { return Usage::default() };
        let Books { registered, limbo, parked, lent, .. } = &*books;
        Usage {
            pages: registered.pages,
            regions: registered.regions,
            leaving: limbo.len() as u64,
            parked: parked.len() as u64,
            lent: lent.len() as u64,
            capacity_pages: limit.pages,
            capacity_regions: limit.regions,
        }
    }
}
