//! A list of regions that knows its pages and marks what stands in it.
//!
//! FIFO if only [`push`](Queue::push) is used, LRU with [`raise`](Queue::raise). The mark stays with a
//! region that was taken out or set aside, so that a policy of several queues finds the right one again.

use crate::regions::{ListId, RegionId, Regions};
use std::collections::BTreeMap;

/// One queue of a policy. Uses [`Region::mark`](crate::Region::mark), and
/// [`Region::weight`](crate::Region::weight) to number those that leave by the old end: what comes back
/// is older than all that stayed, in the order in which it left. It does not go back into the list: its place
/// there would have to be searched for, among all that came back before it.
#[derive(Debug)]
pub struct Queue {
    /// Made on first use: a policy is built before it meets its store.
    list: Option<ListId>,
    mark: u8,
    pages: u64,
    departures: u64,
    /// Regions that came back, by the number of their departure: all older than the list.
    returned: BTreeMap<u64, RegionId>,
}

/// The number of a region that did not leave by the old end since it entered.
const STAYED: f64 = 0.0;

impl Queue {
    /// Returns an empty queue that marks its regions so; every queue of a policy has a mark of its own.
    pub fn marking(mark: u8) -> Self {
        Self { list: None, mark, pages: 0, departures: 0, returned: BTreeMap::new() }
    }

    /// Returns the pages of the regions that stand here; what is set aside does not count.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns whether the region stands here, or did when it was taken out or set aside.
    #[inline]
    pub fn owns(&self, regions: &Regions, id: RegionId) -> bool {
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
    pub fn push(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.push_front(list, id);
        regions.get(id).weight.set(STAYED);
        self.enter(regions, id);
    }

    /// Moves a region that stands here to the new end.
    #[inline]
    pub fn raise(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        if self.take_returned(regions, id) {
            regions.push_front(list, id);
        } else {
            regions.move_to_front(list, id);
        }
        regions.get(id).weight.set(STAYED);
    }

    /// Puts a region back where it was when it left by the old end.
    pub fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.number(regions, id);
        self.returned.insert(departure_of(regions, id), id);
        self.enter(regions, id);
    }

    /// Takes out a region that came back; false if it is in the list.
    #[inline]
    fn take_returned(&mut self, regions: &Regions, id: RegionId) -> bool {
        !self.returned.is_empty()
            && regions.get(id).weight.get() != STAYED
            && self.returned.remove(&departure_of(regions, id)).is_some()
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
    pub fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if !self.take_returned(regions, id) {
            debug_assert!(self.list.is_some() && regions.list(id) == self.list, "{id:?} stands in this queue");
            regions.unlink(id);
        }
        self.pages -= regions.get(id).pages();
    }

    /// Returns the region at the old end.
    #[inline]
    pub fn oldest(&self, regions: &Regions) -> Option<RegionId> {
        let first = self.returned.first_key_value().map(|(_, &id)| id);
        first.or_else(|| self.list.and_then(|list| regions.back(list)))
    }

    /// Bytes allocated.
    pub fn memory(&self) -> usize {
        2 * self.returned.len() * size_of::<(u64, RegionId)>()
    }

    /// Takes out the region at the old end.
    #[inline]
    pub fn take_oldest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.oldest(regions)?;
        self.number(regions, id);
        self.remove(regions, id);
        Some(id)
    }

    /// Returns the oldest region that is not in use; sets aside the older ones, which are.
    pub fn oldest_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let id = self.oldest(regions)?;
            // A caller that takes it out may put it back.
            self.number(regions, id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            self.remove(regions, id);
            regions.get(id).set_aside(true);
        }
    }

    /// Takes out the oldest region that is not in use; sets aside the older ones, which are.
    pub fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.oldest_idle(regions)?;
        self.remove(regions, id);
        Some(id)
    }
}

/// Returns the number of a region that left by the old end.
fn departure_of(regions: &Regions, id: RegionId) -> u64 {
    regions.get(id).weight.get() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;
    use crate::regions::STEPS;

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

    #[test]
    fn many_return_without_a_search() {
        let mut regions = Regions::new();
        let mut queue = Queue::marking(1);
        let ids: Vec<_> = (0..2000).map(|i| regions.insert(PageRange::new(i, 1).unwrap())).collect();
        ids.iter().for_each(|&id| queue.push(&mut regions, id));
        while queue.take_idle(&mut regions).is_some() {}
        let before = STEPS.get();
        ids.iter().for_each(|&id| queue.put_back(&mut regions, id));
        assert!(STEPS.get() - before <= 2000, "{} steps", STEPS.get() - before);
    }

    #[test]
    fn what_returned_is_raised_and_removed_like_others() {
        let mut regions = Regions::new();
        let mut queue = Queue::marking(1);
        let ids: Vec<_> = (0..6).map(|i| regions.insert(PageRange::new(i, 1).unwrap())).collect();
        ids.iter().for_each(|&id| queue.push(&mut regions, id));
        for _ in 0..4 {
            queue.take_idle(&mut regions);
        }
        ids[..4].iter().for_each(|&id| queue.put_back(&mut regions, id));
        queue.raise(&mut regions, ids[1]);
        queue.remove(&mut regions, ids[2]);
        assert_eq!((queue.pages(), queue.oldest(&regions)), (5, Some(ids[0])));
        let order: Vec<_> = std::iter::from_fn(|| queue.take_idle(&mut regions)).collect();
        assert_eq!(order, [ids[0], ids[3], ids[4], ids[5], ids[1]]);
        assert_eq!((queue.pages(), queue.memory()), (0, 0));
    }
}
