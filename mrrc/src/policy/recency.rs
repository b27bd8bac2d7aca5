//! Regions in the order of their last use, the base of every LRU scheme here.
//!
//! A region in use may grow old: its lease can outlast everything else in the list. When such a
//! region is met at the old end it is set aside, so that a thousand long leases are met once and not
//! at every eviction; when its lease ends it returns to its exact place, found by its stamp.

use crate::regions::{ListId, RegionId, Regions};

/// An LRU list. Uses [`Region::order`](crate::Region::order) as a recency stamp.
#[derive(Default)]
pub(crate) struct Recency {
    /// Made on first use: a policy is built before it meets its store.
    list: Option<ListId>,
    clock: u64,
}

impl Recency {
    #[inline]
    fn list(&mut self, regions: &mut Regions) -> ListId {
        match self.list {
            Some(list) => list,
            None => *self.list.insert(regions.new_list()),
        }
    }

    /// Whether the region stands in this list.
    #[inline]
    pub(crate) fn holds(&self, regions: &Regions, id: RegionId) -> bool {
        self.list.is_some() && regions.get(id).list() == self.list
    }

    /// Puts the region on top, wherever it was.
    #[inline]
    pub(crate) fn raise(&mut self, regions: &mut Regions, id: RegionId) {
        self.clock += 1;
        regions.get(id).order.set(self.clock);
        let list = self.list(regions);
        regions.move_to_front(list, id);
    }

    /// Takes out the least recently used region that is not in use; sets aside those that are.
    pub(crate) fn take_oldest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let list = self.list(regions);
        while let Some(id) = regions.back(list) {
            regions.unlink(id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
        None
    }

    /// Puts a region back where its last use places it. It comes from the old end, so only what
    /// returned before it can be older: the search is short.
    pub(crate) fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        let stamp = regions.get(id).order.get();
        let mut place = regions.back(list);
        while let Some(other) = place {
            if regions.get(other).order.get() > stamp {
                regions.insert_after(other, id);
                return;
            }
            place = regions.before(other);
        }
        regions.push_front(list, id);
    }
}
