//! Regions in the order of their last use, in two forms. A [log](super::Recency) is fast where every hit comes here. A
//! [list](Listed) takes no memory for a region that it does not take anyway.

use super::Recency;
use crate::regions::{ListId, RegionId, Regions};
use std::collections::BTreeMap;

/// An LRU stack. Numbers those that leave by the old end in [`Region::order`](crate::Region::order).
pub trait Stack: Default {
    /// Puts a region on top that is not in this stack.
    fn insert(&mut self, regions: &mut Regions, id: RegionId);

    /// Puts a region of this stack on top; false if it is not in this stack.
    fn raise(&mut self, regions: &mut Regions, id: RegionId) -> bool;

    /// Takes a region out, if it is in this stack.
    fn remove(&mut self, regions: &mut Regions, id: RegionId) -> bool;

    /// Takes out the least recently used region that is not in use; sets aside those that are.
    fn take_oldest(&mut self, regions: &mut Regions) -> Option<RegionId>;

    /// Puts a region back that left by the old end, where it was.
    fn put_back(&mut self, regions: &mut Regions, id: RegionId);

    /// Returns the bytes allocated.
    fn memory(&self) -> usize;
}

impl Stack for Recency {
    #[inline]
    fn insert(&mut self, _: &mut Regions, id: RegionId) {
        self.insert(id);
    }

    #[inline]
    fn raise(&mut self, regions: &mut Regions, id: RegionId) -> bool {
        self.raise(regions, id)
    }

    #[inline]
    fn remove(&mut self, regions: &mut Regions, id: RegionId) -> bool {
        self.remove(regions, id)
    }

    #[inline]
    fn take_oldest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.take_oldest(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.memory()
    }
}

/// An LRU stack as a list of the store. To raise a region takes three writes to distant places. So this is for caches that report
/// touches in batches.
#[derive(Debug, Default)]
pub struct Listed {
    /// Made when first needed: a policy is built before it meets its store.
    list: Option<ListId>,
    departures: u64,
    /// Regions that came back, by the number of their departure: all older than the list.
    returned: BTreeMap<u64, RegionId>,
}

impl Listed {
    #[inline]
    fn list(&mut self, regions: &mut Regions) -> ListId {
        match self.list {
            Some(list) => list,
            None => *self.list.insert(regions.new_list()),
        }
    }

    /// Takes out a region that came back; false if it did not.
    fn take_returned(&mut self, regions: &Regions, id: RegionId) -> bool {
        let order = regions.get(id).order.get();
        let is_returned = !self.returned.is_empty() && self.returned.get(&order) == Some(&id);
        if is_returned {
            self.returned.remove(&order);
        }
        is_returned
    }

    fn pop(&mut self, regions: &mut Regions) -> Option<RegionId> {
        if let Some((_, id)) = self.returned.pop_first() {
            return Some(id);
        }
        let id = regions.back(self.list?)?;
        regions.unlink(id);
        self.departures += 1;
        regions.get(id).order.set(self.departures);
        Some(id)
    }
}

impl Stack for Listed {
    #[inline]
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let list = self.list(regions);
        regions.push_front(list, id);
    }

    #[inline]
    fn raise(&mut self, regions: &mut Regions, id: RegionId) -> bool {
        let list = self.list(regions);
        if regions.list(id) == Some(list) {
            regions.raise(list, id);
            return true;
        }
        let is_returned = self.take_returned(regions, id);
        if is_returned {
            regions.push_front(list, id);
        }
        is_returned
    }

    #[inline]
    fn remove(&mut self, regions: &mut Regions, id: RegionId) -> bool {
        let is_listed = self.list.is_some() && regions.list(id) == self.list;
        if is_listed {
            regions.unlink(id);
        }
        is_listed || self.take_returned(regions, id)
    }

    fn take_oldest(&mut self, regions: &mut Regions) -> Option<RegionId> {
        while let Some(id) = self.pop(regions) {
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
        None
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.returned.insert(regions.get(id).order.get(), id);
    }

    fn memory(&self) -> usize {
        self.returned.len() * size_of::<(u64, RegionId)>() * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;
    use proptest::prelude::*;

    /// A stack with a store of its own, and where each region is.
    struct Driven<S> {
        stack: S,
        regions: Regions,
        ids: Vec<RegionId>,
    }

    impl<S: Stack> Driven<S> {
        fn new(count: u64) -> Self {
            let mut regions = Regions::new();
            let ids = (0..count).map(|page| regions.insert(PageRange::between(page, page + 1))).collect();
            Self { stack: S::default(), regions, ids }
        }

        /// Does one thing to one region, as policies do. Returns the outcome.
        fn step(&mut self, step: u8, nth: usize, place: Place) -> Option<RegionId> {
            let Self { stack, regions, ids } = self;
            let id = ids[nth];
            match (step, place) {
                (0 | 1, Place::Out) => stack.insert(regions, id),
                (0 | 1, Place::In) => assert!(stack.raise(regions, id)),
                (2, Place::In) => assert!(stack.remove(regions, id)),
                (2, Place::Out) => assert!(!stack.remove(regions, id) && !stack.raise(regions, id)),
                (3, Place::In) => regions.get(id).set_holds(1 - regions.get(id).holds()),
                (4, Place::Left) => {
                    regions.get(id).set_aside(false);
                    regions.get(id).set_holds(0);
                    stack.put_back(regions, id);
                }
                (5, _) => return stack.take_oldest(regions),
                _ => {}
            }
            None
        }
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Place {
        Out,
        In,
        Left,
    }

    proptest! {
        #[test]
        fn both_forms_keep_the_same_order(steps in prop::collection::vec((0_u8..6, 0_usize..12), 1..200)) {
            let (mut log, mut list) = (Driven::<Recency>::new(12), Driven::<Listed>::new(12));
            let mut places = [Place::Out; 12];
            for (step, nth) in steps {
                let taken = log.step(step, nth, places[nth]);
                prop_assert_eq!(list.step(step, nth, places[nth]), taken);
                places[nth] = match (step, places[nth]) {
                    (0 | 1, Place::Out) | (4, Place::Left) => Place::In,
                    (2, Place::In) => Place::Out,
                    (_, place) => place,
                };
                for (nth, &id) in log.ids.iter().enumerate() {
                    prop_assert_eq!(log.regions.get(id).aside(), list.regions.get(id).aside());
                    if taken == Some(id) || log.regions.get(id).aside() {
                        places[nth] = Place::Left;
                    }
                }
            }
            loop {
                let taken = log.stack.take_oldest(&log.regions);
                prop_assert_eq!(list.stack.take_oldest(&mut list.regions), taken);
                if taken.is_none() {
                    break;
                }
            }
        }
    }
}
