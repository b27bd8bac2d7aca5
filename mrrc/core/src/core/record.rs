//! The answer to the last request, and everything that is counted.

use super::counters::{Counters, SingleHits};
use super::outcome::{Found, Leavers, Leaving, Outcome, Part};
use super::planner::Reason;
use crate::range::PageRange;
use crate::regions::RegionId;

/// The answer to the last request, and the counts of all. Owns the outcome and the counters; it decides nothing.
pub(super) struct Record {
    outcome: Outcome,
    counters: Counters,
    single_hits: SingleHits,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { outcome: Outcome::new(), counters: Counters::default(), single_hits: SingleHits::default() }
    }

    #[inline]
    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the counters so far.
    pub(super) fn counters(&self) -> Counters {
        self.counters.with(self.single_hits)
    }

    /// Begins the answer to a request.
    #[inline]
    pub(super) fn start(&mut self, found: Found) {
        self.outcome.start(found);
    }

    /// Adds the next part of the answer.
    #[inline]
    pub(super) fn push(&mut self, part: Part) {
        self.outcome.push(part);
    }

    /// Answers that one region serves the request.
    #[inline]
    pub(super) fn hit(&mut self, found: Found, part: Part) {
        self.outcome.hit(found, part);
    }

    /// Counts a request that one region serves.
    #[inline]
    pub(super) fn count_hit(&mut self, exact: bool, pages: u64) {
        self.single_hits.count(exact, pages);
    }

    /// Counts a request that no single region serves.
    #[inline]
    pub(super) fn count_miss(&mut self, found: Found, hit_pages: u64, pages: u64) {
        self.counters.missed(found, hit_pages, pages);
    }

    /// Answers, and counts, that the gaps are registered for this request alone.
    pub(super) fn bypass(&mut self) {
        self.counters.bypass += 1;
        self.outcome.set_bypass();
    }

    /// Counts a request that finds no room.
    pub(super) fn count_refusal(&mut self) {
        self.counters.all_in_use += 1;
    }

    /// Counts the last refusal out.
    pub(super) fn take_back_refusal(&mut self) {
        self.counters.all_in_use -= 1;
    }

    /// Counts registrations, of so many pages together.
    #[inline]
    pub(super) fn count_registrations(&mut self, registrations: u64, pages: u64) {
        self.counters.regs += registrations;
        self.counters.reg_pages = self.counters.reg_pages.saturating_add(pages);
    }

    /// Counts the deregistration, in one batch, of what was registered for one request.
    pub(super) fn count_deregistrations(&mut self, deregistrations: u64, pages: u64) {
        self.counters.deregs += deregistrations;
        self.counters.dereg_pages = self.counters.dereg_pages.saturating_add(pages);
        self.counters.dereg_batches += 1;
    }

    /// So many pages are registered at once.
    #[inline]
    pub(super) fn count_pages_at_once(&mut self, pages: u64) {
        self.counters.peak_pages = self.counters.peak_pages.max(pages);
    }

    /// Counts a registration that failed.
    pub(super) fn count_failure(&mut self) {
        self.counters.failed += 1;
    }

    /// Counts a region that leaves to make room.
    #[inline]
    pub(super) fn count_eviction(&mut self) {
        self.counters.evicted += 1;
    }

    /// Counts a region that an invalidation retires.
    pub(super) fn count_invalidation(&mut self, pages: u64) {
        self.counters.invalidated += 1;
        self.counters.invalidated_pages = self.counters.invalidated_pages.saturating_add(pages);
    }

    /// Counts a region that gives way.
    pub(super) fn count_replaced(&mut self, reason: Reason) {
        match reason {
            Reason::Upgraded => self.counters.upgraded += 1,
            Reason::Merged => self.counters.merged += 1,
            Reason::Crowded => {}
        }
    }

    /// Forgets the regions that left before.
    #[inline]
    pub(super) fn clear_leavers(&mut self) {
        self.outcome.leaving_mut().clear();
    }

    /// Adds a region to the open batch of what is to be deregistered, and counts it.
    #[inline]
    pub(super) fn leave(&mut self, region: RegionId, range: PageRange) {
        self.counters.deregs += 1;
        self.counters.dereg_pages = self.counters.dereg_pages.saturating_add(range.pages());
        self.outcome.leaving_mut().push(Leaving { region, range });
    }

    /// Closes the open batch, and counts it if it is not empty.
    #[inline]
    pub(super) fn close_batch(&mut self) {
        if self.outcome.leaving_mut().close() {
            self.counters.dereg_batches += 1;
        }
    }

    /// Returns the regions that left, in batches.
    #[inline]
    pub(super) fn leavers(&self) -> &Leavers {
        self.outcome.leavers()
    }
}
