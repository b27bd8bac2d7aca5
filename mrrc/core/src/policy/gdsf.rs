//! GreedyDual-Size-Frequency (Cherkasova, *Improving WWW proxies performance with
//! Greedy-Dual-Size-Frequency caching policy*, HP Labs 1998), on GreedyDual-Size (Cao and Irani 1997).
//!
//! A region is worth `L + frequency · cost / pages`, anew at each reference. The least worth leaves, and the clock `L`
//! rises to what it was worth, so that others age. The cost is what the configuration's cost model says that registering
//! the region again takes, so a model without a cost per page gives the classic policy with unit cost. Ties go to the
//! older reference, as in libCacheSim. A newcomer's benefit counts from the clock before its victims leave, as there and in
//! the paper.
//!
//! Worths are whole numbers: the cost of one page in a region of one page is 2^20, and others are rounded to that. So no sum
//! is rounded, and equal worths are equal. With regions of one page all worths are multiples of it, as in the paper.
//!
//! There and in the paper a newcomer that is worth less than what would leave for it is not admitted, and `L` rises
//! to the newcomer's benefit. Here it has to be registered, so it takes the room, but `L` rises no higher
//! than that either: the newcomer is then the next victim, and all that was lost is its room.

use super::Policy;
use super::parts::Ordered;
use crate::cost::Linear;
use crate::policy::PolicyParams;
use crate::regions::{RegionId, Regions};

/// Regions by worth. Uses [`Region::count`](crate::Region::count) for the frequency.
#[derive(Debug)]
pub struct Gdsf {
    /// By whole numbers below [`LIMIT`].
    benefit: Ordered,
    clock: f64,
    /// The most that a victim was worth since the last region entered.
    left: f64,
    cost: Linear,
    /// The benefit of a microsecond for a page.
    scale: f64,
}

/// The benefit of a region of one page after one request.
const UNIT: f64 = (1_u64 << 20) as f64;

/// The most that one use is worth, whatever the cost model.
const MOST: f64 = (1_u64 << 32) as f64;

/// Whole numbers up to here are exact.
const LIMIT: f64 = (1_u64 << 53) as f64;

impl Gdsf {
    /// With the cost model of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        let page = params.cost.reload(1);
        let scale = if page > 0.0 { UNIT / page } else { UNIT };
        Self { benefit: Ordered::default(), clock: 0.0, left: 0.0, cost: params.cost, scale }
    }

    #[inline]
    fn benefit_of(&self, regions: &Regions, id: RegionId) -> f64 {
        let region = regions.get(id);
        let pages = region.pages();
        let exact = (self.cost.reload(pages) / pages as f64 * self.scale).clamp(1.0, MOST);
        // Rounded, without a call.
        let of_one_use = (exact + 0.5) as i64 as f64;
        (self.clock + f64::from(region.count.get()) * of_one_use).min(LIMIT)
    }
}

impl Policy for Gdsf {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        regions.get(id).count.set(1);
        let benefit = self.benefit_of(regions, id);
        self.clock = self.clock.max(self.left.min(benefit));
        self.left = 0.0;
        self.benefit.insert(regions, id, benefit);
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        let count = &regions.get(id).count;
        count.set(count.get().saturating_add(1));
        // Costs may have fallen since; what a region was worth it stays worth until it leaves.
        let benefit = self.benefit_of(regions, id).max(regions.get(id).weight.get());
        self.benefit.raise(regions, id, benefit);
    }

    fn costs(&mut self, costs: &Linear) {
        self.cost = *costs;
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.benefit.remove(regions, id);
    }

    /// The worth grows with each use; what is hit more often than this between two runs is safe anyway.
    fn max_touches(&self) -> u32 {
        15
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.benefit.take_idle(regions)?;
        self.left = self.left.max(regions.get(id).weight.get());
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        // It stays, so the clock does not rise for it; what else left in the same batch is worth no more.
        self.left = self.left.min(regions.get(id).weight.get());
        self.benefit.put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.benefit.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn benefits_are_rounded(page in 1e-9_f64..1e3, call in 0_f64..1e6, pages in 1_u64..5000) {
            let cost = Linear { reg_page: page, reg_call: call, ..Linear::PAPER };
            let gdsf = Gdsf::new(&PolicyParams { cost, ..PolicyParams::new(100) });
            let mut regions = Regions::new();
            let id = regions.insert(PageRange::new(0, pages).unwrap());
            regions.get(id).count.set(1);
            let exact = cost.reload(pages) / pages as f64 * gdsf.scale;
            prop_assert_eq!(gdsf.benefit_of(&regions, id), exact.round().clamp(1.0, MOST));
        }
    }
}
