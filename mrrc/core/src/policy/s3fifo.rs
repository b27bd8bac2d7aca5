//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vigfusson, *FIFO queues are all you need for cache eviction*,
//! SOSP 2023).
//!
//! Three FIFO queues: a small one that new regions enter, a main one, and ghosts. A region that leaves
//! the small queue moves to the main one if it was asked for twice since it came, else it is evicted and
//! leaves a ghost. A region with a remaining ghost enters the main queue. The main queue gives what was
//! asked for another round, up to three. All sizes are in pages: 10 % small, 90 % main, ghosts for 90 %,
//! the parameters of libCacheSim (with the revised rules of the authors: until the first eviction, a
//! region that does not fit the small queue enters the main one). libCacheSim refuses regions as large
//! as the small queue; here they have to be registered anyway, and enter like all others.

use super::Policy;
use super::parts::Ghosts;
use super::parts::Queue;
use crate::policy::PolicyParams;
use crate::regions::{RegionId, Regions};

/// References in the small queue that lead to the main one.
const TO_MAIN: u32 = 2;

/// The references that are counted: two bits.
const MOST: u32 = 3;

/// Small queue, main queue and ghosts. A hit does no more than count, in
/// [`Region::count`](crate::Region::count).
#[derive(Debug)]
pub struct S3Fifo {
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
    small_pages: u64,
    main_pages: u64,
    has_evicted: bool,
}

impl S3Fifo {
    /// With the capacity of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        let small_pages = params.pages_of(0.1).max(1);
        Self {
            small: Queue::marking(1),
            main: Queue::marking(2),
            ghosts: Ghosts::new(params.pages_of(0.9)),
            small_pages,
            main_pages: params.capacity.saturating_sub(small_pages),
            has_evicted: false,
        }
    }

    /// Empties the small queue down to the first region that was not asked for enough: the victim.
    fn evict_small(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let id = self.small.take_idle(regions)?;
            let region = regions.get(id);
            if region.count.get() < TO_MAIN {
                self.ghosts.insert(region.range(), ());
                return Some(id);
            }
            region.count.set(0);
            self.main.push(regions, id);
        }
    }

    /// Gives another round to what was asked for, up to the first region that was not: the victim.
    fn evict_main(&mut self, regions: &mut Regions) -> Option<RegionId> {
        // Each step takes a count away or takes a region out: it ends.
        loop {
            let id = self.main.take_idle(regions)?;
            let count = &regions.get(id).count;
            if count.get() == 0 {
                return Some(id);
            }
            count.set(count.get() - 1);
            self.main.push(regions, id);
        }
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let again = self.ghosts.remove(regions.get(id).range()).is_some();
        self.ghosts.trim();
        if again || !self.has_evicted && self.small.pages() >= self.small_pages {
            self.main.push(regions, id);
        } else {
            self.small.push(regions, id);
        }
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        let count = &regions.get(id).count;
        if count.get() < MOST {
            count.set(count.get() + 1);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if self.small.owns(regions, id) {
            self.small.remove(regions, id);
        } else {
            self.main.remove(regions, id);
        }
    }

    fn prepare(&mut self, _: &mut Regions) {
        self.ghosts.trim();
    }

    /// The count of uses goes up to 3.
    fn max_touches(&self) -> u32 {
        3
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.has_evicted = true;
        if self.main.pages() > self.main_pages {
            self.evict_main(regions).or_else(|| self.evict_small(regions))
        } else {
            self.evict_small(regions).or_else(|| self.evict_main(regions))
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.ghosts.remove(regions.get(id).range());
        if self.small.owns(regions, id) {
            self.small.put_back(regions, id);
        } else {
            self.main.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.ghosts.memory() + self.small.memory() + self.main.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::returns_without_a_ghost;
    use crate::range::PageRange;

    #[test]
    fn a_victim_that_is_put_back_has_no_ghost() {
        let mut regions = Regions::new();
        let mut policy = S3Fifo::new(&PolicyParams::new(10));
        let id = returns_without_a_ghost(&mut policy, &mut regions, PageRange::new(0, 1).unwrap());
        assert!(policy.small.owns(&regions, id));
    }
}
