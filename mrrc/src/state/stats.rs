//! Room with the registrar, and what the cache counts besides what the core counts. Both faces of the cache keep these.

use crate::core::AllInUse;
use crate::range::PageRange;
use crate::registrar::Registered;

/// Pages and regions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Footprint {
    pub(crate) pages: u64,
    pub(crate) regions: u64,
}

impl Footprint {
    pub(crate) fn of<T>(batch: &[Registered<T>]) -> Self {
        let mut amount = Self::default();
        batch.iter().for_each(|registered| amount.add(registered.range.pages()));
        amount
    }

    pub(crate) fn add(&mut self, pages: u64) {
        self.pages += pages;
        self.regions += 1;
    }

    /// Returns whether there is so much beside this.
    #[inline]
    pub(crate) fn has_room(self, more: Self, limit: Self) -> bool {
        let after = self.plus(more);
        after.pages <= limit.pages && after.regions <= limit.regions
    }

    /// Saturates: a registrar may claim to have deregistered more than there was.
    pub(crate) fn take(&mut self, other: Self) {
        self.pages = self.pages.saturating_sub(other.pages);
        self.regions = self.regions.saturating_sub(other.regions);
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { pages: self.pages + other.pages, regions: self.regions + other.regions }
    }

    /// Why so much more cannot be registered beside this.
    pub(crate) fn no_room(self, asked: PageRange, more: Self, limit: Self) -> AllInUse {
        let after = self.plus(more);
        AllInUse {
            asked,
            missing_pages: after.pages.saturating_sub(limit.pages),
            missing_regions: after.regions.saturating_sub(limit.regions),
            in_use_pages: self.pages,
            in_use_regions: self.regions,
        }
    }
}

/// The cache's counters besides the core's.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stats {
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(crate) waits: u64,
    pub(crate) unwatched: u64,
    pub(crate) discarded: u64,
    pub(crate) overtaken: u64,
    pub(crate) recalled: u64,
    pub(crate) barriers: u64,
    pub(crate) sweeps: u64,
    pub(crate) changes: u64,
    pub(crate) failed_deregs: u64,
    /// Requests that had no room because of such failures.
    pub(crate) refused_dereg_failed: u64,
    pub(crate) batches: u64,
    pub(crate) deregistered: Footprint,
    pub(crate) peak: Footprint,
}

impl Stats {
    /// Sets room aside with the registrar, if there is as much.
    pub(crate) fn reserve(&mut self, registered: &mut Footprint, amount: Footprint, limit: Footprint) -> bool {
        let after = registered.plus(amount);
        let fits = registered.has_room(amount, limit);
        if fits {
            *registered = after;
            self.peak.pages = self.peak.pages.max(after.pages);
            self.peak.regions = self.peak.regions.max(after.regions);
        }
        fits
    }

    /// A batch was handed to the registrar, and this was left of it.
    pub(crate) fn handed_over(&mut self, registered: &mut Footprint, batch: Footprint, left: Footprint, failed: bool) {
        // A registrar that says that all went wrong and leaves nothing is taken at its deeds.
        let done = Footprint {
            pages: batch.pages.saturating_sub(left.pages),
            regions: batch.regions.saturating_sub(left.regions),
        };
        registered.take(done);
        self.batches += 1;
        self.deregistered = self.deregistered.plus(done);
        self.failed_deregs += left.regions.max(u64::from(failed));
    }
}
