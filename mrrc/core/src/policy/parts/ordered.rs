//! Regions by a value that only rises, smallest first: a heap that hits do not touch.
//!
//! A region's value and the number of its last reference stand in its slot. The heap holds for each region an entry with
//! a value that it has or once had. Since values only rise, no entry is above its region. So the smallest entry, if it
//! is up to date, belongs to the smallest region, and if it is not, it is brought up to date and sinks. A hit costs two
//! stores, and what it delays is done once, however many hits there were. Entries have four children and not two: a heap
//! that is larger than the near cache waits for half as many lines.

use crate::regions::{ListId, RegionId, Regions};
use dary_heap::{PeekMut, QuaternaryHeap};
use std::cmp::Reverse;

/// Regions by (value, last reference). Uses [`Region::weight`](crate::Region::weight) for the value,
/// which is never negative, and [`Region::order`](crate::Region::order) for the number of the reference.
#[derive(Debug, Default)]
pub struct Ordered {
    /// The members, in no useful order. Made on first use.
    list: Option<ListId>,
    len: usize,
    references: u64,
    /// Entries of regions that have left are skipped when they come up.
    heap: QuaternaryHeap<Reverse<Entry>>,
}

/// A value, the reference, and the region in one word, from the first bits to the last. It sorts by them, of which no two regions have the
/// same. Positive floats sort as their bits do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

/// Bits of a name, and of a reference.
const ID_BITS: u32 = 30;
const REFERENCE_BITS: u32 = 35;
/// The last reference: then all are numbered anew.
const LAST: u64 = (1 << REFERENCE_BITS) - 1;
const _: () = assert!(RegionId::MOST < 1 << ID_BITS);

impl Entry {
    #[inline]
    fn of(regions: &Regions, id: RegionId) -> Self {
        let region = regions.get(id);
        // The sign goes.
        let value = u128::from(region.weight.get().to_bits()) << (ID_BITS + REFERENCE_BITS);
        Self(value | u128::from(region.order.get()) << ID_BITS | u128::from(id.raw()))
    }

    /// Returns the region: there is always one.
    #[inline]
    fn id(self) -> Option<RegionId> {
        RegionId::from_raw(self.0 as u32 & ((1 << ID_BITS) - 1))
    }
}

impl Ordered {
    /// Takes in an unlisted region.
    pub fn insert(&mut self, regions: &mut Regions, id: RegionId, value: f64) {
        self.set(regions, id, value);
        self.put_back(regions, id);
    }

    /// Gives a region that is ordered here a value that is no smaller than its last.
    #[inline]
    pub fn raise(&mut self, regions: &Regions, id: RegionId, value: f64) {
        debug_assert!(value >= regions.get(id).weight.get(), "values only rise");
        self.set(regions, id, value);
    }

    #[inline]
    fn set(&mut self, regions: &Regions, id: RegionId, value: f64) {
        if self.references == LAST {
            self.renumber(regions);
        }
        self.references += 1;
        let region = regions.get(id);
        region.weight.set(value);
        region.order.set(self.references);
    }

    /// Takes in a region again with the value and the reference that it had.
    pub fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let list = *self.list.get_or_insert_with(|| regions.new_list());
        regions.push_back(list, id);
        self.len += 1;
        self.heap.push(Reverse(Entry::of(regions, id)));
        if self.heap.len() > 2 * self.len + 64 {
            self.rebuild(regions, list);
        }
    }

    /// Numbers the references of all members from 1 on, in their order.
    #[cold]
    fn renumber(&mut self, regions: &Regions) {
        let Some(list) = self.list else { return self.references = 0 };
        let mut members: Vec<RegionId> = std::iter::successors(regions.front(list), |&id| regions.after(id)).collect();
        members.sort_unstable_by_key(|&id| regions.get(id).order.get());
        for (reference, &id) in (1..).zip(&members) {
            regions.get(id).order.set(reference);
        }
        self.references = members.len() as u64;
        self.rebuild(regions, list);
    }

    #[cold]
    fn rebuild(&mut self, regions: &Regions, list: ListId) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.clear();
        let mut next = regions.front(list);
        while let Some(id) = next {
            entries.push(Reverse(Entry::of(regions, id)));
            next = regions.after(id);
        }
        self.heap = entries.into();
    }

    /// Takes out a region that is ordered here.
    pub fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        regions.unlink(id);
        self.len -= 1;
    }

    /// Takes out the smallest region that is not in use; sets aside the smaller ones, which are.
    pub fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let id = top.0.id()?;
            let here = regions.list(id) == self.list;
            let current = Entry::of(regions, id);
            if here && top.0 != current {
                // An entry of a slot that serves another region by now goes the same way: then the
                // region has two entries, the second of which is skipped once the first has been
                // taken.
                top.0 = current;
                continue;
            }
            PeekMut::pop(top);
            if !here {
                continue;
            }
            self.remove(regions, id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
    }

    /// Bytes allocated.
    pub fn memory(&self) -> usize {
        self.heap.capacity() * size_of::<Reverse<Entry>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;

    #[test]
    fn smallest_leaves_first_oldest_on_ties() {
        let mut regions = Regions::new();
        let mut ordered = Ordered::default();
        let ids: Vec<_> = (0..4).map(|i| regions.insert(PageRange::new(i, 1).unwrap())).collect();
        for (&id, value) in ids.iter().zip([2.0, 1.0, 2.0, 1.0]) {
            ordered.insert(&mut regions, id, value);
        }
        ordered.raise(&regions, ids[1], 1.0);
        ordered.raise(&regions, ids[0], 3.0);
        let order: Vec<_> = std::iter::from_fn(|| ordered.take_idle(&mut regions)).collect();
        assert_eq!(order, [ids[3], ids[1], ids[2], ids[0]]);
    }

    #[test]
    fn references_are_numbered_anew_in_their_order() {
        let mut regions = Regions::new();
        let mut ordered = Ordered { references: LAST - 3, ..Ordered::default() };
        let ids: Vec<_> = (0..6).map(|i| regions.insert(PageRange::new(i, 1).unwrap())).collect();
        for &id in &ids {
            ordered.insert(&mut regions, id, 1.0);
        }
        ordered.raise(&regions, ids[1], 1.0);
        assert_eq!(ordered.references, 3 + 4);
        ordered.references = LAST;
        ordered.raise(&regions, ids[3], 1.0);
        assert_eq!(ordered.references, 6 + 1);
        let order: Vec<_> = std::iter::from_fn(|| ordered.take_idle(&mut regions)).collect();
        assert_eq!(order, [0, 2, 4, 5, 1, 3].map(|at| ids[at]));
    }

    #[test]
    fn entries_sort_by_value_then_reference() {
        let mut regions = Regions::new();
        let id = regions.insert(PageRange::new(0, 1).unwrap());
        let values = [0.0, f64::MIN_POSITIVE, 0.5, 1.0, 1.0 + f64::EPSILON, 2e15, f64::MAX, f64::INFINITY];
        let entries = values.iter().flat_map(|&value| [0, 1, LAST].map(|reference| (value, reference)));
        let entries: Vec<Entry> = entries
            .map(|(value, reference)| {
                regions.get(id).weight.set(value);
                regions.get(id).order.set(reference);
                Entry::of(&regions, id)
            })
            .collect();
        assert!(entries.is_sorted_by(|a, b| a < b) && entries.iter().all(|entry| entry.id() == Some(id)));
    }

    #[test]
    fn reused_slot_keeps_its_turn_in_a_small_heap() {
        let mut regions = Regions::new();
        let mut ordered = Ordered::default();
        let kept = regions.insert(PageRange::new(0, 1).unwrap());
        ordered.insert(&mut regions, kept, 5.0);
        for i in 1..10_000 {
            let id = regions.insert(PageRange::new(i, 1).unwrap());
            ordered.insert(&mut regions, id, if i % 2 == 0 { 1.0 } else { 9.0 });
            if i < 9_999 {
                ordered.remove(&mut regions, id);
                regions.remove(id);
            }
        }
        assert!(ordered.memory() < 100 * size_of::<Reverse<Entry>>() * 2);
        assert_eq!(ordered.take_idle(&mut regions), Some(kept), "the last one has value 9");
        assert!(ordered.take_idle(&mut regions).is_some_and(|id| id != kept));
        assert_eq!(ordered.take_idle(&mut regions), None);
    }
}
