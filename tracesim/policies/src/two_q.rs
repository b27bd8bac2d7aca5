//! 2Q, the full version (Johnson and Shasha, *2Q: a low overhead high performance buffer management
//! replacement algorithm*, VLDB 1994).
//!
//! A new region enters a FIFO queue (A1in). A region that leaves it is evicted, but remembered in a queue
//! of ghosts (A1out). A region that is asked for while its ghost is there has been asked for twice at some
//! distance, and enters the main LRU list (Am). References to what stands in A1in count for nothing: they
//! come too close together to mean much. Sizes are in pages, with the parameters of libCacheSim: A1in has
//! 25 % of the capacity, A1out 50 %. libCacheSim refuses what is larger than A1in; here it enters like
//! everything else.

use mrrc_core::policy::{
    Policy, PolicyParams,
    parts::{Ghosts, Queue},
};
use mrrc_core::{RegionId, Regions};

/// A1in, A1out and Am.
#[derive(Debug)]
pub struct TwoQ {
    recent: Queue,
    ghosts: Ghosts,
    main: Queue,
    recent_pages: u64,
}

impl TwoQ {
    /// With the capacity of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        Self {
            recent: Queue::marking(1),
            ghosts: Ghosts::new(params.pages_of(0.5)),
            main: Queue::marking(2),
            recent_pages: params.pages_of(0.25),
        }
    }
}

impl Policy for TwoQ {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let again = self.ghosts.remove(regions.get(id).range()).is_some();
        self.ghosts.trim();
        if again {
            self.main.push(regions, id);
        } else {
            self.recent.push(regions, id);
        }
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if self.main.owns(regions, id) {
            self.main.raise(regions, id);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if self.main.owns(regions, id) {
            self.main.remove(regions, id);
        } else {
            self.recent.remove(regions, id);
        }
    }

    fn prepare(&mut self, _: &mut Regions) {
        self.ghosts.trim();
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = if self.recent.pages() > self.recent_pages {
            self.recent.take_idle(regions).or_else(|| self.main.take_idle(regions))
        } else {
            self.main.take_idle(regions).or_else(|| self.recent.take_idle(regions))
        }?;
        if self.recent.owns(regions, id) {
            self.ghosts.insert(regions.get(id).range(), ());
        }
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.ghosts.remove(regions.get(id).range());
        if self.main.owns(regions, id) {
            self.main.put_back(regions, id);
        } else {
            self.recent.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.ghosts.memory() + self.recent.memory() + self.main.memory()
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
        let mut policy = TwoQ::new(&PolicyParams::new(8));
        let id = returns_without_a_ghost(&mut policy, &mut regions, PageRange::new(0, 3).unwrap());
        assert!(policy.recent.owns(&regions, id));
    }
}
