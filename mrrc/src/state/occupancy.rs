//! Pages and regions with the registrar.

use super::stats::Stats;
use crate::core::AllInUse;
use crate::effective::EffectiveSettings;
use crate::footprint::Footprint;
use crate::pressure::{Pressure, WHOLE};
use crate::range::PageRange;

/// Room with the registrar. Owns the amount that is registered, being registered or deregistered, or refused.
pub(crate) struct Occupancy {
    used: Footprint,
    limit: Footprint,
    /// The most pages since memory pressure began, while there is some: the whole of which it keeps a part. A cache that is new then
    /// has none at the begin, and would keep nothing.
    under_pressure: u64,
}

impl Occupancy {
    pub(super) fn new(limit: Footprint) -> Self {
        Self { used: Footprint::default(), limit, under_pressure: 0 }
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

    /// Returns by how many pages less is free than it is to be: the headroom, and more under memory pressure.
    #[inline]
    pub(crate) fn short_of_free(&mut self, settings: &EffectiveSettings) -> u64 {
        let sixteenths = settings.pressure.as_ref().map_or(WHOLE, |pressure| Pressure::sixteenths(pressure));
        let to_be_free = settings.headroom.max(self.freed_by_pressure(sixteenths));
        to_be_free.saturating_sub(self.free_pages())
    }

    /// Returns the pages that are to be free where the cache keeps so many sixteenths of the most that it had under pressure.
    fn freed_by_pressure(&mut self, sixteenths: u64) -> u64 {
        if sixteenths >= WHOLE {
            self.under_pressure = 0;
            return 0;
        }
        self.under_pressure = self.under_pressure.max(self.used.pages);
        let kept = u128::from(self.under_pressure) * u128::from(sixteenths) / u128::from(WHOLE);
        self.limit.pages.saturating_sub(kept as u64)
    }

    #[inline]
    pub(crate) fn has_room(&self, amount: Footprint) -> bool {
        let after = self.used.plus(amount);
        after.pages <= self.limit.pages && after.regions <= self.limit.regions
    }

    /// Reserves room, if there is as much.
    pub(super) fn reserve(&mut self, amount: Footprint, stats: &mut Stats) -> bool {
        let fits = self.has_room(amount);
        if fits {
            self.used = self.used.plus(amount);
            stats.peak.pages = stats.peak.pages.max(self.used.pages);
            stats.peak.regions = stats.peak.regions.max(self.used.regions);
        }
        fits
    }

    pub(crate) fn release(&mut self, amount: Footprint) {
        self.used = self.used.minus(amount);
    }

    /// Counts a batch that was handed to the registrar, and the part that it left.
    pub(super) fn handed_over(&mut self, batch: Footprint, left: Footprint, failed: bool, stats: &mut Stats) {
        // A registrar that reports a failure and leaves nothing has deregistered all.
        let done = batch.minus(left);
        self.release(done);
        stats.batches += 1;
        stats.deregistered = stats.deregistered.plus(done);
        stats.failed_deregs += left.regions.max(u64::from(failed));
    }

    /// Returns by how much this amount exceeds the room.
    pub(super) fn shortfall(&self, needed: Footprint) -> Footprint {
        self.used.plus(needed).minus(self.limit)
    }

    /// Returns why there is no room for this amount.
    pub(crate) fn no_room(&self, asked: PageRange, needed: Footprint) -> AllInUse {
        let missing = self.shortfall(needed);
        AllInUse {
            asked,
            missing_pages: missing.pages,
            missing_regions: missing.regions,
            in_use_pages: self.used.pages,
            in_use_regions: self.used.regions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_that_is_new_under_pressure_keeps_a_part() {
        let footprint = |pages| Footprint { pages, regions: 1 };
        let mut occupancy = Occupancy::new(Footprint { pages: 1000, regions: 100 });
        assert_eq!((occupancy.freed_by_pressure(WHOLE), occupancy.freed_by_pressure(2)), (0, 1000));
        assert!(occupancy.reserve(footprint(160), &mut Stats::default()));
        assert_eq!(occupancy.freed_by_pressure(2), 1000 - 160 / 8);
        // What is evicted is no smaller whole, or little would stay in the end.
        occupancy.release(footprint(140));
        assert_eq!((occupancy.freed_by_pressure(2), occupancy.freed_by_pressure(8)), (1000 - 160 / 8, 1000 - 160 / 2));
        assert_eq!(occupancy.freed_by_pressure(WHOLE), 0);
        assert_eq!(occupancy.freed_by_pressure(8), 1000 - 10);
    }
}
