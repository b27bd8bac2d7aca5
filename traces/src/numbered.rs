//! Addresses for objects that are known by number: a [`Layout`](crate::layout::Layout) for many millions of requests.
//!
//! The table has an object with its number and its size, so a look-up reads one line of memory. Requests are noted in batches,
//! so that these reads overlap. The second reading finds most objects by the order of the first, without the table. Where the
//! order has all requests with their pages, no second reading is needed.

use crate::Step;
use crate::layout::{NO_ROOM, place};
use mrrc_core::{PAGE, PageRange};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Requests that are noted at once, at most.
pub(crate) const BATCH: usize = 64;

/// Objects at most: slots have 32 bits for the number of one.
const MOST_OBJECTS: usize = u32::MAX as usize - 1;

/// Requests whose order is kept, at most, in 8 bytes each. Later ones are looked up.
const MOST_ORDERED: usize = 1 << 24;

/// Requests in one block of the order, which is freed when they were read again.
const BLOCK: usize = 1 << 16;

/// Requests that are recalled at once, at most.
const RECALLED: usize = 1 << 12;

/// Objects in order of first appearance, each as large as it ever is: page aligned, one after the other.
///
/// First all are [noted](Self::note), then [laid out](Self::lay_out), then [found](Self::find).
#[derive(Debug)]
pub(crate) struct Numbered {
    ids: Vec<u64>,
    /// Their starts, once they are laid out.
    places: Vec<u64>,
    /// By the hash of an object. At most half are in use.
    slots: Vec<Slot>,
    /// Bytes of the objects, by number, that have more pages than a slot can tell.
    huge: FxHashMap<u32, u64>,
    seed: u64,
    /// The objects of the first requests, in order, in blocks, and how many pages each request is for.
    order: VecDeque<Vec<(u32, u32)>>,
    /// The next request in the first block of `order`.
    next: usize,
    ordered: usize,
    /// Requests that were noted.
    noted: u64,
    is_laid_out: bool,
    /// The first page of each object, where all of the requests can be [recalled](Self::recall).
    starts: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    id: u64,
    /// The number of the object plus one, or 0 in an empty slot.
    place: u32,
    /// The most pages that a request was for.
    pages: u32,
}

impl Default for Numbered {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            places: Vec::new(),
            slots: vec![Slot::default(); 1 << 8],
            huge: FxHashMap::default(),
            seed: RandomState::new().hash_one(0),
            order: VecDeque::new(),
            next: 0,
            ordered: 0,
            noted: 0,
            is_laid_out: false,
            starts: None,
        }
    }
}

impl Numbered {
    pub(crate) fn is_laid_out(&self) -> bool {
        self.is_laid_out
    }

    pub(crate) fn objects(&self) -> usize {
        self.ids.len()
    }

    fn hash(&self, id: u64) -> u64 {
        let product = u128::from(id ^ self.seed) * 0x9e37_79b9_7f4a_7c15_u128;
        product as u64 ^ (product >> 64) as u64
    }

    /// Returns the slot of the object, or the free one for it.
    fn probe(&self, id: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut slot = self.hash(id) as usize & last;
        while self.slots[slot].place != 0 && self.slots[slot].id != id {
            slot = (slot + 1) & last;
        }
        slot
    }

    /// Returns the number of the object, if it was noted.
    fn look_up(&self, id: u64) -> Option<usize> {
        (self.slots[self.probe(id)].place as usize).checked_sub(1)
    }

    /// Makes room for so many more objects.
    fn reserve(&mut self, more: usize) {
        let needed = (self.ids.len() + more) * 2;
        if needed <= self.slots.len() {
            return;
        }
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); needed.next_power_of_two()]);
        for slot in old.into_iter().filter(|slot| slot.place != 0) {
            let place = self.probe(slot.id);
            self.slots[place] = slot;
        }
    }

    /// Notes requests, at most [`BATCH`]: objects, and how large they are here.
    pub(crate) fn note(&mut self, batch: &[(u64, u64)]) {
        let homes = self.homes(batch.iter().map(|&(id, _)| id));
        for (&home, &(id, size)) in homes.iter().zip(batch) {
            let Some(slot) = self.slot(home, id) else { continue };
            let number = self.slots[slot].place - 1;
            let pages = u32::try_from(size.div_ceil(PAGE)).unwrap_or_else(|_| self.note_huge(number, size));
            self.slots[slot].pages = self.slots[slot].pages.max(pages);
            self.keep(number, pages);
        }
    }

    /// Returns the numbers of objects, at most [`BATCH`], of which new ones get the next. Beyond four billion it is that of the last.
    pub(crate) fn numbers(&mut self, ids: &[u64]) -> impl Iterator<Item = u32> {
        let homes = self.homes(ids.iter().copied());
        homes.into_iter().zip(ids).map(|(home, &id)| match self.slot(home, id) {
            Some(slot) => self.slots[slot].place - 1,
            None => MOST_OBJECTS as u32 - 1,
        })
    }

    /// Returns the first slots where objects may be, at most [`BATCH`], with room for all of them.
    #[inline]
    fn homes(&mut self, ids: impl ExactSizeIterator<Item = u64>) -> [usize; BATCH] {
        self.reserve(ids.len());
        // In a loop of their own, so that these reads do not wait for each other.
        let last = self.slots.len() - 1;
        let mut homes = [0; BATCH];
        let mut read = 0;
        for (home, id) in homes.iter_mut().zip(ids) {
            *home = self.hash(id) as usize & last;
            read ^= self.slots[*home].id;
        }
        std::hint::black_box(read);
        homes
    }

    /// Returns the slot of an object, which is added if it is new and there is a number for it.
    #[inline]
    fn slot(&mut self, home: usize, id: u64) -> Option<usize> {
        let Slot { id: known, place, .. } = self.slots[home];
        let slot = if known == id && place != 0 { home } else { self.probe(id) };
        (self.slots[slot].place != 0 || self.add(id, slot)).then_some(slot)
    }

    /// Adds an object. Returns whether there is a number for it.
    #[cold]
    fn add(&mut self, id: u64, slot: usize) -> bool {
        if self.ids.len() == MOST_OBJECTS {
            return false;
        }
        self.ids.push(id);
        self.slots[slot] = Slot { id, place: self.ids.len() as u32, pages: 0 };
        true
    }

    #[cold]
    fn note_huge(&mut self, number: u32, size: u64) -> u32 {
        let known = self.huge.entry(number).or_default();
        *known = size.max(*known);
        u32::MAX
    }

    #[inline]
    fn keep(&mut self, number: u32, pages: u32) {
        self.noted += 1;
        if self.ordered == MOST_ORDERED {
            return;
        }
        if self.ordered.is_multiple_of(BLOCK) {
            self.order.push_back(Vec::with_capacity(BLOCK));
        }
        if let Some(block) = self.order.back_mut() {
            block.push((number, pages));
        }
        self.ordered += 1;
    }

    /// Gives every object its place, at the end of a first reading of so many pieces. An object that does not fit gets none.
    pub(crate) fn lay_out(&mut self, pieces: u64) {
        self.places = vec![0; self.ids.len()];
        for slot in self.slots.iter().filter(|slot| slot.place != 0) {
            let number = slot.place - 1;
            let bytes = self.huge.get(&number).copied().unwrap_or(u64::from(slot.pages) * PAGE);
            self.places[number as usize] = bytes;
        }
        let mut next = 0;
        for at in &mut self.places {
            *at = place(&mut next, *at);
        }
        self.is_laid_out = true;
        // Otherwise the file has other things than requests, or more of them than are kept.
        if self.noted == pieces && self.ordered as u64 == pieces && self.huge.is_empty() {
            self.starts = self.places.iter().map(|at| u32::try_from(at / PAGE).ok()).collect();
        }
    }

    /// Adds the next requests to `steps`, if the pages of all requests are known, and goes on to the one after them. Returns whether
    /// more are left.
    pub(crate) fn recall(&mut self, steps: &mut Vec<Step>) -> bool {
        let (Some(starts), Some(block)) = (&self.starts, self.order.front()) else { return false };
        let end = block.len().min(self.next + RECALLED);
        steps.reserve(end - self.next);
        steps.extend(block[self.next..end].iter().filter_map(|&(number, pages)| {
            let start = u64::from(*starts.get(number as usize)?);
            Some(Step::request(PageRange::new(start, u64::from(pages)).ok()?))
        }));
        self.next = end;
        if end == block.len() {
            self.order.pop_front();
            self.next = 0;
        }
        !self.order.is_empty()
    }

    /// Returns the start of the object of the next request, and goes on to the one after it.
    pub(crate) fn find(&mut self, id: u64) -> Result<u64, &'static str> {
        let found = self.peek(id);
        self.pass();
        found
    }

    /// Returns the start of the object of the next request.
    #[inline]
    pub(crate) fn peek(&self, id: u64) -> Result<u64, &'static str> {
        let next = self.order.front().and_then(|block| block.get(self.next));
        let number = match next {
            Some(&(number, _)) if self.ids.get(number as usize) == Some(&id) => number as usize,
            // Beyond the order; or the file is not the one of the first reading.
            _ => self.look_up(id).ok_or("the object was not there at the first reading")?,
        };
        match self.places.get(number) {
            None | Some(&u64::MAX) => Err(NO_ROOM),
            Some(&at) => Ok(at),
        }
    }

    /// Goes on to the next request.
    #[inline]
    pub(crate) fn pass(&mut self) {
        let Some(block) = self.order.front() else { return };
        self.next += 1;
        if self.next >= block.len() {
            self.order.pop_front();
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Id, Layout};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn objects_lie_as_in_the_general_layout(
            requests in prop::collection::vec((0_u64..300, prop_oneof![4 => 0_u64..20_000, 1 => Just(u64::MAX)]), 0..600),
            batch in 1..=BATCH,
            others in prop::collection::vec(0_u64..310, 0..40),
        ) {
            let (mut numbered, mut general) = (Numbered::default(), Layout::<Id>::default());
            requests.chunks(batch).for_each(|batch| numbered.note(batch));
            requests.iter().for_each(|&(id, size)| general.note(&Id(id), size));
            prop_assert_eq!(numbered.objects(), general.objects());
            numbered.lay_out(0);
            general.lay_out();
            // In order, then in any other.
            for id in requests.iter().map(|&(id, _)| id).chain(others) {
                prop_assert_eq!(numbered.find(id), general.find(&Id(id)).map(|span| span.address));
            }
        }

        #[test]
        fn changed_requests_are_found_all_the_same(
            ids in prop::collection::vec(0_u64..50, 1..200), again in prop::collection::vec(0_u64..50, 1..200)
        ) {
            let mut numbered = Numbered::default();
            for chunk in ids.chunks(BATCH) {
                numbered.note(&chunk.iter().map(|&id| (id, 1)).collect::<Vec<_>>());
            }
            numbered.lay_out(0);
            for id in again {
                let place = ids.iter().position(|&known| known == id);
                let before = |at: usize| ids[..at].iter().collect::<std::collections::HashSet<_>>().len() as u64;
                prop_assert_eq!(numbered.find(id).ok(), place.map(|at| before(at) * mrrc_core::PAGE));
            }
        }
    }

    proptest! {
        #[test]
        fn recalls_what_is_found(requests in prop::collection::vec((0_u64..300, 1_u64..20_000), 1..600), first in 0_usize..9) {
            let mut numbered = Numbered::default();
            requests.chunks(BATCH).for_each(|batch| numbered.note(batch));
            numbered.lay_out(requests.len() as u64);
            let mut expected = Vec::new();
            for &(id, size) in requests.iter().skip(first) {
                let address = numbered.places[numbered.look_up(id).unwrap()];
                expected.push(Step::request(crate::Span { address, length: size }.pages().unwrap()));
            }
            for &(id, _) in requests.iter().take(first) {
                numbered.find(id).unwrap();
            }
            let mut steps = Vec::new();
            while numbered.recall(&mut steps) {}
            prop_assert_eq!(steps, expected);
        }
    }

    #[test]
    fn recalls_nothing_beside_other_pieces() {
        let noted = |requests: &[(u64, u64)], pieces| {
            let mut numbered = Numbered::default();
            numbered.note(requests);
            numbered.lay_out(pieces);
            numbered.recall(&mut Vec::new()) || numbered.starts.is_some()
        };
        assert!(noted(&[(1, 1), (2, 1)], 2));
        assert!(!noted(&[(1, 1), (2, 1)], 3), "a piece is no request");
        assert!(!noted(&[(1, 1), (2, 1 << 45)], 2), "more pages than are kept");
        assert!(!noted(&[(1, u64::MAX - 4095), (2, 9 << 12)], 2), "an object without a place");
    }

    #[test]
    fn order_ends_where_memory_would_grow() {
        let mut numbered =
            Numbered { ordered: MOST_ORDERED - 1, order: VecDeque::from([Vec::new()]), ..Numbered::default() };
        numbered.note(&[(1, 1), (2, 1), (3, 1)]);
        assert_eq!((numbered.ordered, numbered.order.len(), numbered.order[0].len()), (MOST_ORDERED, 1, 1));
        numbered.lay_out(0);
        assert_eq!([1, 2, 3].map(|id| numbered.find(id)), [Ok(0), Ok(4096), Ok(8192)]);
    }
}
