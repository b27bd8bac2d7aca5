//! A list of regions that knows its pages and marks what stands in it.
//!
//! FIFO if only [`push`](Queue::push) is used, LRU with [`raise`](Queue::raise). The mark stays with a
//! region that was taken out or set aside, so that a policy of several queues finds the right one again.

use crate::regions::{ListId, RegionId, Regions};

/// One queue of a policy. Uses [`Region::mark`](crate::Region::mark).
pub(crate) struct Queue {
    /// Made on first use: a policy is built before it meets its store.
    list: Option<ListId>,
    mark: u8,
    pages: u64,
}

impl Queue {
    /// An empty queue that marks its regions so; every queue of a policy has a mark of its own.
    pub(crate) fn marking(mark: u8) -> Self {
        Self { list: None, mark, pages: 0 }
    }

    /// The pages of the regions that stand here; what is set aside does not count.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether the region stands here, or did when it was taken out or set aside.
    #[inline]
    pub(crate) fn owns(&self, regions: &Regions, id: RegionId) -> bool {
        regions.get(id).mark() == self.mark
    }

    #[inline]
    fn list(&mut self, regions: &mut Regions) -> ListId {
        match self.list {
            Some(list) => list,
            None => *self.list.insert(regions.new_list()),
        }
    }

    /// Puts an unlisted region at the new end.
    #[inline]
    pub(crate) fn push(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.push_front(list, id);
        self.enter(regions, id);
    }

    /// Moves a region that stands here to the new end.
    #[inline]
    pub(crate) fn raise(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.move_to_front(list, id);
    }

    /// Puts a region back at the old end. It was the oldest when it left, so this is its old place
    /// but for others that left and returned meanwhile.
    pub(crate) fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.push_back(list, id);
        self.enter(regions, id);
    }

    #[inline]
    fn enter(&mut self, regions: &Regions, id: RegionId) {
        let region = regions.get(id);
        region.set_mark(self.mark);
        self.pages += region.pages();
    }

    /// Takes out a region that stands here.
    #[inline]
    pub(crate) fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        debug_assert!(self.list.is_some() && regions.list(id) == self.list, "{id:?} stands in this queue");
        regions.unlink(id);
        self.pages -= regions.get(id).pages();
    }

    /// The region at the old end.
    #[inline]
    pub(crate) fn oldest(&self, regions: &Regions) -> Option<RegionId> {
        self.list.and_then(|list| regions.back(list))
    }

    /// Takes out the region at the old end.
    #[inline]
    pub(crate) fn take_oldest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.oldest(regions)?;
        self.remove(regions, id);
        Some(id)
    }

    /// The oldest region that is not in use; sets aside the older ones, which are.
    pub(crate) fn oldest_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let id = self.oldest(regions)?;
            if !regions.get(id).in_use() {
                return Some(id);
            }
            self.remove(regions, id);
            regions.get(id).set_aside(true);
        }
    }

    /// Takes out the oldest region that is not in use; sets aside the older ones, which are.
    pub(crate) fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.oldest_idle(regions)?;
        self.remove(regions, id);
        Some(id)
    }
}
