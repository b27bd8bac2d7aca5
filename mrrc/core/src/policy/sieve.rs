//! SIEVE (Zhang, Yang, Yue, Vigfusson and Rashmi, *SIEVE is simpler than LRU*, NSDI 2024).
//!
//! One FIFO queue and a hand that moves from its old end to its new one. The hand spares a region that
//! was asked for since it last came by, and takes the mark away. The first one without a mark leaves. A
//! new region enters behind the hand's back, at the new end, so a region without another request is
//! sifted out without disturbing the rest. Sizes change nothing: the hand goes on until enough pages are
//! free. libCacheSim does the same; it knows no regions in use, which are set aside here when the hand
//! meets one without a mark, and come back right behind the hand.

use super::Policy;
use crate::regions::{ListId, RegionId, Regions};

/// Asked for since the hand last came by.
const VISITED: u8 = 1;

/// A queue and a hand. A hit does no more than mark its region.
#[derive(Debug, Default)]
pub struct Sieve {
    /// Newest first. Made on first use: a policy is built before it meets its store.
    list: Option<ListId>,
    /// The region to look at next; none for the oldest.
    hand: Option<RegionId>,
}

impl Sieve {
    /// Returns an empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    fn list(&mut self, regions: &mut Regions) -> ListId {
        *self.list.get_or_insert_with(|| regions.new_list())
    }
}

impl Policy for Sieve {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.push_front(list, id);
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        if region.mark() != VISITED {
            region.set_mark(VISITED);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if self.hand == Some(id) {
            self.hand = regions.before(id);
        }
        regions.unlink(id);
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let list = self.list(regions);
        // Each step takes a mark away or takes a region out: two rounds at most.
        loop {
            let id = self.hand.or_else(|| regions.back(list))?;
            self.hand = regions.before(id);
            let region = regions.get(id);
            if region.mark() == VISITED {
                region.set_mark(0);
                continue;
            }
            regions.unlink(id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        // Where the hand has just been: the exact place of a victim, and the last to be met again for
        // one that was set aside long ago.
        match self.hand {
            Some(hand) => regions.insert_after(hand, id),
            None => {
                let list = self.list(regions);
                regions.push_front(list, id);
            }
        }
    }
}
