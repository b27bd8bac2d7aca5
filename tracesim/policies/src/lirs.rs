//! LIRS (Jiang and Zhang, *LIRS: an efficient low inter-reference recency set replacement policy*,
//! SIGMETRICS 2002).
//!
//! Most of the cache (99 %) is for regions with a short time between their last two references (LIR). The
//! rest (HIR) pass through a queue Q and are the victims. A stack S holds everything by its last
//! reference down to the oldest LIR region, evicted HIR regions included: an HIR region that is asked for
//! while it is in S has a shorter time between references than that LIR region, and takes its place.
//!
//! S need not be kept as a list. A region is in S exactly if its last reference is later than that of the
//! oldest LIR region, so a number per region and a queue of the LIR regions tell all that S does. Since Q
//! and the ghosts are in the order of that number too (those that are in S), pruning S is to drop the
//! oldest ghosts. A region then stands in one list at a time, LIR or Q.
//!
//! Sizes are in pages, the HIR part has 1 % of the capacity and a page at least, and S stands for at most
//! two capacities, all as in libCacheSim, which however keeps both parts within their shares, so that it
//! evicts before the cache is full and refuses what is larger than Q; here the cache evicts when it is full,
//! and LIR regions once Q is empty. libCacheSim also turns the oldest LIR region into an HIR one each
//! time that an HIR region outside of S is hit; the paper leaves it alone, and so does this.

use mrrc_core::policy::{
    Policy, PolicyParams,
    parts::{Ghosts, Queue},
};
use mrrc_core::{RegionId, Regions};

/// LIR regions, HIR regions and ghosts. Uses [`Region::order`](mrrc_core::Region::order) for the number of the
/// last reference.
#[derive(Debug)]
pub struct Lirs {
    lir: Queue,
    /// Q.
    hir: Queue,
    /// The evicted HIR regions in S, with their last reference.
    ghosts: Ghosts<u64>,
    references: u64,
    /// The last reference of the oldest LIR region, which S reaches down to.
    bottom: u64,
    lir_pages: u64,
    stack_pages: u64,
}

impl Lirs {
    /// With the capacity of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        let hir_pages = params.pages_of(0.01).max(1);
        Self {
            lir: Queue::marking(1),
            hir: Queue::marking(2),
            ghosts: Ghosts::new(params.capacity.saturating_mul(2)),
            references: 0,
            bottom: 0,
            lir_pages: params.capacity.saturating_sub(hir_pages),
            stack_pages: params.capacity.saturating_mul(2),
        }
    }

    /// Notes a reference; whether the region was in S before.
    #[inline]
    fn refer(&mut self, regions: &Regions, id: RegionId) -> bool {
        self.references += 1;
        regions.get(id).order.replace(self.references) > self.bottom
    }

    /// Makes an unlisted region LIR, and the oldest ones HIR if there is no room.
    fn enter_lir(&mut self, regions: &mut Regions, id: RegionId) {
        self.lir.push(regions, id);
        while self.lir.pages() > self.lir_pages {
            let Some(id) = self.lir.take_oldest(regions) else { break };
            self.hir.push(regions, id);
        }
    }

    /// Finds the bottom of S; drops the ghosts that are below it, and those for which S has no room.
    fn prune(&mut self, regions: &Regions) {
        if let Some(oldest) = self.lir.oldest(regions) {
            self.bottom = regions.get(oldest).order.get();
        }
        let resident = self.lir.pages() + self.hir.pages();
        while let Some(oldest) = self.ghosts.oldest() {
            let in_stack = self.ghosts.get(oldest).is_some_and(|&reference| reference > self.bottom);
            if in_stack && resident + self.ghosts.pages() <= self.stack_pages {
                break;
            }
            self.ghosts.drop_oldest();
        }
    }
}

impl Policy for Lirs {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.refer(regions, id);
        let region = regions.get(id);
        let in_stack = self.ghosts.remove(region.range()).is_some();
        if in_stack || self.lir.pages() + region.pages() <= self.lir_pages {
            self.enter_lir(regions, id);
        } else {
            self.hir.push(regions, id);
        }
        self.prune(regions);
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if self.lir.owns(regions, id) {
            let was_bottom = self.lir.oldest(regions) == Some(id);
            self.refer(regions, id);
            self.lir.raise(regions, id);
            if was_bottom {
                self.prune(regions);
            }
        } else if self.refer(regions, id) {
            self.hir.remove(regions, id);
            self.enter_lir(regions, id);
            self.prune(regions);
        } else {
            self.hir.raise(regions, id);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if self.lir.owns(regions, id) {
            self.lir.remove(regions, id);
        } else {
            self.hir.remove(regions, id);
        }
        self.prune(regions);
    }

    fn prepare(&mut self, regions: &mut Regions) {
        self.prune(regions);
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let Some(id) = self.hir.take_idle(regions) else {
            let id = self.lir.take_idle(regions);
            self.prune(regions);
            return id;
        };
        let region = regions.get(id);
        let reference = region.order.get();
        if reference > self.bottom {
            self.ghosts.insert(region.range(), reference);
        }
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.ghosts.remove(regions.get(id).range());
        if self.lir.owns(regions, id) {
            self.lir.put_back(regions, id);
        } else {
            self.hir.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.ghosts.memory() + self.lir.memory() + self.hir.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::PageRange;
    use mrrc_core::policy::testing::{self, returns_without_a_ghost};

    #[test]
    fn a_victim_that_is_put_back_has_no_ghost() {
        let mut regions = testing::regions();
        let mut policy = Lirs::new(&PolicyParams::new(100));
        let lir = testing::insert(&mut regions, PageRange::new(0, 99).unwrap());
        policy.insert(&mut regions, lir);
        let id = returns_without_a_ghost(&mut policy, &mut regions, PageRange::new(200, 1).unwrap());
        assert!(policy.hir.owns(&regions, id) && policy.lir.owns(&regions, lir));
    }
}
