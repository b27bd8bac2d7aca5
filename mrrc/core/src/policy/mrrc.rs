//! MRRC with MRE (Ou, He and Han 2009): the paper's own policy.
//!
//! ```text
//!            top ┌────────────────────┐ ◄── every region that is asked for
//!                │  frequent section  │     in recency order
//!                ├────────────────────┤ ◄── slides down when the cache is full,
//!                │ resorting section  │     and gets its eviction factor r + 1/pages
//!                │ ·················· │     ordered by (factor, entry)
//!                │  eviction segment  │ ──► deregistered in one batch
//!         bottom └────────────────────┘
//! ```
//!
//! A large region gets a small factor: it leaves before small ones that are as old, because it frees
//! more pages and costs less per page to register again. `r` rises to the smallest factor each time
//! the cache is full, so a region that stays behind grows cold in comparison. The sections live in files
//! of their own, `recency.rs` and `resorting.rs`.

use super::parts::{Listed, Recency, Stack};
use super::resorting::Resorting;
use super::{Need, Policy};
use crate::policy::PolicyParams;
use crate::regions::{RegionId, Regions};

/// The paper's three-section stack.
#[derive(Debug)]
pub struct Mrrc<S = Recency> {
    frequent: S,
    resorting: Resorting,
    /// The system recency value.
    recency: f64,
    /// Pages that the resorting section is filled up to.
    resort_pages: u64,
    /// Pages that a batch holds at least.
    evict_pages: u64,
}

impl Mrrc {
    /// With the capacity and the two fractions of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        Self::over(params)
    }
}

impl Mrrc<Listed> {
    /// As [`Mrrc::new`], with the same decisions: it keeps less for each region, and touches cost it more.
    pub fn lean(params: &PolicyParams) -> Self {
        Self::over(params)
    }
}

impl<S: Stack> Mrrc<S> {
    fn over(params: &PolicyParams) -> Self {
        Self {
            frequent: S::default(),
            resorting: Resorting::default(),
            recency: 0.0,
            resort_pages: params.pages_of(params.resort).max(1),
            evict_pages: params.pages_of(params.evict).max(1),
        }
    }
}

impl<S: Stack> Policy for Mrrc<S> {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.frequent.insert(regions, id);
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if !self.frequent.raise(regions, id) {
            self.resorting.remove(regions, id);
            self.frequent.insert(regions, id);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if !self.frequent.remove(regions, id) {
            self.resorting.remove(regions, id);
        }
    }

    fn prepare(&mut self, regions: &mut Regions) {
        if let Some(smallest) = self.resorting.smallest(regions) {
            // A region that was held below and came back may have a smaller factor; `r` never falls.
            self.recency = self.recency.max(smallest);
        }
        while self.resorting.pages() < self.resort_pages {
            let Some(id) = self.frequent.take_oldest(regions) else { break };
            let region = regions.get(id);
            self.resorting.enter(regions, id, self.recency + 1.0 / region.pages() as f64);
        }
    }

    fn batch_size(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.evict_pages), regions: need.regions }
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.resorting.take_smallest(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        // A factor is never 0 in the resorting section, and always 0 above it.
        if regions.get(id).weight.get() == 0.0 {
            self.frequent.put_back(regions, id);
        } else {
            self.resorting.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.frequent.memory() + self.resorting.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;

    #[test]
    fn the_recency_value_never_falls() {
        let mut regions = Regions::new();
        let mut policy = Mrrc::new(&PolicyParams { resort: 1.0, evict: 0.0, ..PolicyParams::new(12) });
        let held = regions.insert(PageRange::between(0, 4));
        policy.insert(&mut regions, held);
        let mut last = 0.0;
        for round in 1..100 {
            let id = regions.insert(PageRange::between(10 * round, 10 * round + 2));
            policy.insert(&mut regions, id);
            policy.prepare(&mut regions);
            assert!(policy.recency >= last, "{} after {last}", policy.recency);
            last = policy.recency;
            if round > 2 {
                let victim = policy.victim(&mut regions).expect("older ones can leave");
                regions.remove(victim);
            }
            // The large region is in use for a while, and comes back with the factor of long ago.
            regions.get(held).set_holds(u32::from(round % 10 != 0));
            if round % 10 == 0 && regions.get(held).aside() {
                regions.get(held).set_aside(false);
                policy.put_back(&mut regions, held);
                regions.get(held).set_holds(1);
            }
        }
        assert!(last > 10.0);
    }
}
