//! A list of regions that knows its pages and marks what stands in it.
//!
//! FIFO if only [`push`](Queue::push) is used, LRU with [`raise`](Queue::raise). The mark stays with a
//! region that was taken out or set aside, so that a policy of several queues finds the right one again.

use crate::regions::{ListId, RegionId, Regions};

/// One queue of a policy. Uses [`Region::mark`](crate::Region::mark), and
/// [`Region::weight`](crate::Region::weight) to number those that leave by the old end: what comes back
/// is older than all that stayed, in the order in which it left.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Made on first use: a policy is built before it meets its store.
    list: Option<ListId>,
    mark: u8,
    pages: u64,
    departures: u64,
}

/// The number of a region that did not leave by the old end since it entered.
const STAYED: f64 = 0.0;

impl Queue {
    /// An empty queue that marks its regions so; every queue of a policy has a mark of its own.
    pub(crate) fn marking(mark: u8) -> Self {
        Self { list: None, mark, pages: 0, departures: 0 }
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
        regions.get(id).weight.set(STAYED);
        self.enter(regions, id);
    }

    /// Moves a region that stands here to the new end.
    #[inline]
    pub(crate) fn raise(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.move_to_front(list, id);
        regions.get(id).weight.set(STAYED);
    }

    /// Puts a region back where it was when it left by the old end.
    pub(crate) fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        let departure = regions.get(id).weight.get();
        let left_before = |other: RegionId| {
            let number = regions.get(other).weight.get();
            number != STAYED && number < departure
        };
        let mut newer = regions.back(list);
        while let Some(older) = newer.filter(|&other| left_before(other)) {
            newer = regions.before(older);
        }
        match newer {
            Some(newer) => regions.insert_after(newer, id),
            None => regions.push_front(list, id),
        }
        self.enter(regions, id);
    }

    /// Numbers the region at the old end, which is about to leave.
    fn number(&mut self, regions: &Regions, id: RegionId) {
        let region = regions.get(id);
        if region.weight.get() == STAYED {
            self.departures += 1;
            // Exact up to 2^53 departures.
            region.weight.set(self.departures as f64);
        }
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
        self.number(regions, id);
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
            self.number(regions, id);
            self.remove(regions, id);
            regions.get(id).set_aside(true);
        }
    }

    /// Takes out the oldest region that is not in use; sets aside the older ones, which are.
    pub(crate) fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.oldest_idle(regions)?;
        self.number(regions, id);
        self.remove(regions, id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;

    #[test]
    fn what_was_set_aside_returns_in_its_order() {
        let mut regions = Regions::new();
        let mut queue = Queue::marking(1);
        let ids: Vec<_> = (0..5).map(|i| regions.insert(PageRange::new(i, 1).unwrap())).collect();
        ids.iter().for_each(|&id| queue.push(&mut regions, id));
        ids[..3].iter().for_each(|&id| regions.get(id).set_holds(1));
        assert_eq!(queue.take_idle(&mut regions), Some(ids[3]));
        for id in [ids[1], ids[0], ids[3], ids[2]] {
            regions.get(id).set_holds(0);
            queue.put_back(&mut regions, id);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.take_idle(&mut regions)).collect();
        assert_eq!(order, ids);
    }
}
