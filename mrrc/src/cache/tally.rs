//! Room with the registrar, and what the cache counts besides what the core counts. Both faces of the cache keep these.

use crate::core::AllInUse;
use crate::range::PageRange;
use crate::registrar::Registered;

/// Pages and regions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Amount {
    pub(crate) pages: u64,
    pub(crate) regions: u64,
}

impl Amount {
    pub(crate) fn of<T>(batch: &[Registered<T>]) -> Self {
        let mut amount = Self::default();
        batch.iter().for_each(|registered| amount.add(registered.range.pages()));
        amount
    }

    pub(crate) fn add(&mut self, pages: u64) {
        self.pages += pages;
        self.regions += 1;
    }

    /// Whether there is so much beside this.
    #[inline]
    pub(super) fn has_room(self, more: Self, limit: Self) -> bool {
        let after = self.plus(more);
        after.pages <= limit.pages && after.regions <= limit.regions
    }

    /// Saturates: a registrar may claim to have deregistered more than there was.
    pub(crate) fn take(&mut self, other: Self) {
        self.pages = self.pages.saturating_sub(other.pages);
        self.regions = self.regions.saturating_sub(other.regions);
    }

    pub(super) fn plus(self, other: Self) -> Self {
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

/// What the cache counts besides what the core counts.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(super) waits: u64,
    pub(super) unwatched: u64,
    pub(super) barred: u64,
    pub(super) overtaken: u64,
    pub(super) recalled: u64,
    pub(super) barriers: u64,
    pub(super) sweeps: u64,
    pub(super) changes: u64,
    pub(super) failed_deregs: u64,
    /// Requests that had no room because of such failures.
    pub(crate) not_taken_back: u64,
    pub(super) batches: u64,
    pub(crate) deregistered: Amount,
    pub(super) peak: Amount,
}

impl Tally {
    /// Sets room aside with the registrar, if there is as much.
    pub(crate) fn reserve(&mut self, registered: &mut Amount, amount: Amount, limit: Amount) -> bool {
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
    pub(crate) fn handed_over(&mut self, registered: &mut Amount, batch: Amount, left: Amount, failed: bool) {
        // A registrar that says that all went wrong and leaves nothing is taken at its deeds.
        let done = Amount {
            pages: batch.pages.saturating_sub(left.pages),
            regions: batch.regions.saturating_sub(left.regions),
        };
        registered.take(done);
        self.batches += 1;
        self.deregistered = self.deregistered.plus(done);
        self.failed_deregs += left.regions.max(u64::from(failed));
    }
}
