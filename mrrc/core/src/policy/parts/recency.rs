//! Regions in the order of their last use, the base of every LRU scheme here.
//!
//! A linked list does this with three writes to three distant places on every hit, and at 100,000 regions
//! those writes cost four times the look-up. So the order is kept as a *log*: using a region appends
//! its name, and a table remembers the place of each region's last entry; older entries are stale. A
//! hit writes one word into that table and one at the end of the log. The oldest region is the first
//! entry that is not stale. When the log is full the stale entries are squeezed out, which visits at
//! most two entries for each use since the last time (a nanosecond each).
//!
//! A region in use may grow old: its lease can outlast everything else here. When such a region is met
//! at the old end it is set aside, so that a thousand long leases are met once and not at every
//! eviction. When its lease ends it returns to its exact place: all that ever left by the old end is older
//! than all that stayed, in the order in which it left.

use crate::grow;
use crate::regions::{RegionId, Regions};
use std::collections::BTreeMap;

/// An LRU stack. Numbers those that leave by the old end in [`Region::order`](crate::Region::order).
#[derive(Debug, Default)]
pub struct Recency {
    /// Names in the order of use; an entry is current if it is the place of its region.
    log: Vec<RegionId>,
    /// Entries before this one are gone.
    oldest: usize,
    /// The place of each region's last entry, by [`RegionId::index`].
    places: Vec<u32>,
    /// Regions in the log.
    len: usize,
    departures: u64,
    /// Regions that came back, by the number of their departure: all older than the log.
    returned: BTreeMap<u64, RegionId>,
}

/// Not in this stack.
const NOWHERE: u32 = u32::MAX;
/// In `returned`.
const RETURNED: u32 = u32::MAX - 1;
/// Room in a log beyond its current entries and as many stale ones.
const SLACK: usize = 32;

impl Recency {
    /// Puts a region on top that is not in this stack.
    pub fn insert(&mut self, id: RegionId) {
        while self.places.len() <= id.index() {
            grow::push(&mut self.places, NOWHERE);
        }
        self.len += 1;
        self.append(id);
    }

    /// Puts a region of this stack on top; false if it is not in this stack.
    #[inline]
    pub fn raise(&mut self, regions: &Regions, id: RegionId) -> bool {
        match self.places.get(id.index()) {
            Some(&place) if place < RETURNED => self.append(id),
            Some(&RETURNED) => self.raise_returned(regions, id),
            _ => return false,
        }
        true
    }

    #[cold]
    fn raise_returned(&mut self, regions: &Regions, id: RegionId) {
        self.remove(regions, id);
        self.insert(id);
    }

    #[inline]
    fn append(&mut self, id: RegionId) {
        if self.log.len() == self.log.capacity() {
            self.squeeze();
        }
        self.places[id.index()] = self.log.len() as u32;
        self.log.push(id);
    }

    /// Drops stale entries, and makes room for as many as there are regions.
    #[cold]
    #[inline(never)]
    fn squeeze(&mut self) {
        let mut kept = 0;
        for entry in self.oldest..self.log.len() {
            let id = self.log[entry];
            self.log[kept] = id;
            let place = &mut self.places[id.index()];
            // Without a branch: stale entries are unpredictable.
            let current = *place == entry as u32;
            *place = if current { kept as u32 } else { *place };
            kept += usize::from(current);
        }
        self.log.truncate(kept);
        self.oldest = 0;
        let wanted = 2 * self.len + SLACK;
        assert!(wanted < RETURNED as usize / 2, "places in the log are numbered in 32 bits");
        self.log.shrink_to(2 * wanted);
        self.log.reserve_exact(wanted.saturating_sub(kept));
    }

    /// Takes a region out, if it is in this stack.
    pub fn remove(&mut self, regions: &Regions, id: RegionId) -> bool {
        let Some(place) = self.places.get_mut(id.index()) else { return false };
        match std::mem::replace(place, NOWHERE) {
            NOWHERE => return false,
            RETURNED => _ = self.returned.remove(&regions.get(id).order.get()),
            _ => self.len -= 1,
        }
        true
    }

    /// Takes out the least recently used region that is not in use; sets aside those that are.
    pub fn take_oldest(&mut self, regions: &Regions) -> Option<RegionId> {
        while let Some(id) = self.pop(regions) {
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
        None
    }

    fn pop(&mut self, regions: &Regions) -> Option<RegionId> {
        if let Some((_, id)) = self.returned.pop_first() {
            self.places[id.index()] = NOWHERE;
            return Some(id);
        }
        while let Some(&id) = self.log.get(self.oldest) {
            let entry = self.oldest as u32;
            self.oldest += 1;
            let place = &mut self.places[id.index()];
            if *place == entry {
                *place = NOWHERE;
                self.len -= 1;
                self.departures += 1;
                regions.get(id).order.set(self.departures);
                return Some(id);
            }
        }
        None
    }

    /// Puts a region back that left by the old end, where it was.
    pub fn put_back(&mut self, regions: &Regions, id: RegionId) {
        self.places[id.index()] = RETURNED;
        self.returned.insert(regions.get(id).order.get(), id);
    }

    /// Returns the bytes allocated.
    pub fn memory(&self) -> usize {
        self.log.capacity() * size_of::<RegionId>()
            + self.places.capacity() * size_of::<u32>()
            + self.returned.len() * size_of::<(u64, RegionId)>() * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;

    fn store_of(n: u64) -> (Regions, Recency, Vec<RegionId>) {
        let mut regions = Regions::new();
        let mut stack = Recency::default();
        let ids: Vec<_> = (0..n).map(|i| regions.insert(PageRange::between(i, i + 1))).collect();
        ids.iter().for_each(|&id| stack.insert(id));
        (regions, stack, ids)
    }

    fn drain(stack: &mut Recency, regions: &Regions) -> Vec<RegionId> {
        std::iter::from_fn(|| stack.take_oldest(regions)).collect()
    }

    #[test]
    fn oldest_leaves_first_despite_compaction() {
        let (regions, mut stack, ids) = store_of(5);
        for round in 0..1_000 {
            assert!(stack.raise(&regions, ids[round % 3]));
        }
        assert!(stack.log.capacity() <= 4 * 5 + 2 * SLACK);
        assert_eq!(drain(&mut stack, &regions), [ids[3], ids[4], ids[1], ids[2], ids[0]]);
        assert!(!stack.raise(&regions, ids[0]));
    }

    #[test]
    fn what_is_set_aside_returns_to_its_place() {
        let (regions, mut stack, ids) = store_of(5);
        for &id in &ids[0..3] {
            regions.get(id).set_holds(1);
        }
        assert_eq!(stack.take_oldest(&regions), Some(ids[3]));
        for &id in &[ids[2], ids[0], ids[1]] {
            assert!(regions.get(id).aside());
            regions.get(id).set_holds(0);
            stack.put_back(&regions, id);
        }
        assert_eq!(stack.take_oldest(&regions), Some(ids[0]));
        stack.put_back(&regions, ids[0]);
        assert!(stack.raise(&regions, ids[1]));
        assert!(stack.remove(&regions, ids[2]) && !stack.remove(&regions, ids[2]));
        stack.put_back(&regions, ids[3]);
        assert_eq!(drain(&mut stack, &regions), [ids[0], ids[3], ids[4], ids[1]]);
    }
}
