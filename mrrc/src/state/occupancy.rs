//! Pages and regions with the registrar.

use super::stats::{Footprint, Stats};
use crate::core::AllInUse;
use crate::range::PageRange;

/// Room with the registrar. Owns the amount that is registered, being registered or deregistered, or refused.
pub(crate) struct Occupancy {
    used: Footprint,
    limit: Footprint,
}

impl Occupancy {
    pub(super) fn new(limit: Footprint) -> Self {
        Self { used: Footprint::default(), limit }
    }

    pub(crate) fn used(&self) -> Footprint {
        self.used
    }

    pub(crate) fn limit(&self) -> Footprint {
        self.limit
    }

    /// Returns the pages that are free.
    pub(crate) fn free_pages(&self) -> u64 {
        self.limit.pages.saturating_sub(self.used.pages)
    }

    #[inline]
    pub(crate) fn has_room(&self, amount: Footprint) -> bool {
        self.used.has_room(amount, self.limit)
    }

    /// Reserves room, if there is as much.
    pub(super) fn reserve(&mut self, amount: Footprint, stats: &mut Stats) -> bool {
        stats.reserve(&mut self.used, amount, self.limit)
    }

    pub(crate) fn release(&mut self, amount: Footprint) {
        self.used.take(amount);
    }

    /// Counts a batch that was handed to the registrar, and what is left of it.
    pub(super) fn handed_over(&mut self, batch: Footprint, left: Footprint, failed: bool, stats: &mut Stats) {
        stats.handed_over(&mut self.used, batch, left, failed);
    }

    /// Returns by how much this amount exceeds the room.
    pub(super) fn shortfall(&self, needed: Footprint) -> Footprint {
        let after = self.used.plus(needed);
        Footprint {
            pages: after.pages.saturating_sub(self.limit.pages),
            regions: after.regions.saturating_sub(self.limit.regions),
        }
    }

    /// Returns why there is no room for this amount.
    pub(crate) fn no_room(&self, asked: PageRange, needed: Footprint) -> AllInUse {
        self.used.no_room(asked, needed, self.limit)
    }
}
