//! Addresses for objects that are known by number: a [`Layout`](crate::layout::Layout) for many millions of requests.
//!
//! The table has the place of an object beside a part of its hash. So a look-up reads one line of it and one of the list of
//! objects. Requests are noted in batches, so that these reads overlap. The second reading finds most objects by the order of
//! the first, without the table.

use crate::layout::{NO_ROOM, place};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Requests that are noted at once, at most.
pub(crate) const BATCH: usize = 64;

/// Objects at most: slots have 32 bits for the number of one.
const MOST_OBJECTS: usize = u32::MAX as usize - 1;

/// Requests whose order is kept, at most, in 4 bytes each. Later ones are looked up.
const MOST_ORDERED: usize = 1 << 24;

/// Requests in one block of the order, which is freed when they were read again.
const BLOCK: usize = 1 << 16;

/// Objects in order of first appearance, each as large as it ever is: page aligned, one after the other.
///
/// First all are [noted](Self::note), then [laid out](Self::lay_out), then [found](Self::find).
#[derive(Debug)]
pub(crate) struct Numbered {
    objects: Vec<Object>,
    /// By the hash of an object: the upper half of the hash, and the object's place in `objects` plus one; 0 where there is
    /// none. At most half are in use.
    slots: Vec<u64>,
    seed: u64,
    /// The objects of the first requests, in order, in blocks.
    order: VecDeque<Vec<u32>>,
    /// The next request in the first block of `order`.
    next: usize,
    ordered: usize,
    is_laid_out: bool,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    id: u64,
    /// Its size while it is noted, and then where it begins.
    at: u64,
}

/// The bits of a slot besides the number.
const MARK: u64 = !0 << 32;

impl Default for Numbered {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            slots: vec![0; 1 << 8],
            seed: RandomState::new().hash_one(0),
            order: VecDeque::new(),
            next: 0,
            ordered: 0,
            is_laid_out: false,
        }
    }
}

impl Numbered {
    pub(crate) fn is_laid_out(&self) -> bool {
        self.is_laid_out
    }

    pub(crate) fn objects(&self) -> usize {
        self.objects.len()
    }

    fn hash(&self, id: u64) -> u64 {
        let product = u128::from(id ^ self.seed) * 0x9e37_79b9_7f4a_7c15_u128;
        product as u64 ^ (product >> 64) as u64
    }

    /// Returns the slot that has this mark, or the free one where it would be, from `slot` on.
    fn probe(&self, hash: u64, mut slot: usize) -> (usize, u64) {
        let last = self.slots.len() - 1;
        loop {
            slot &= last;
            let found = self.slots[slot];
            if found == 0 || (found ^ hash) & MARK == 0 {
                return (slot, found);
            }
            slot += 1;
        }
    }

    /// Returns the number of the object, or the slot for it.
    fn look_up(&self, id: u64) -> Result<usize, usize> {
        let hash = self.hash(id);
        let mut slot = hash as usize;
        loop {
            let (at, found) = self.probe(hash, slot);
            match number(found) {
                None => return Err(at),
                Some(number) if self.objects[number].id == id => return Ok(number),
                Some(_) => slot = at + 1,
            }
        }
    }

    /// Makes room for so many more objects.
    fn reserve(&mut self, more: usize) {
        let needed = (self.objects.len() + more) * 2;
        if needed <= self.slots.len() {
            return;
        }
        self.slots = vec![0; needed.next_power_of_two()];
        for at in 0..self.objects.len() {
            let hash = self.hash(self.objects[at].id);
            let mut slot = hash as usize;
            loop {
                slot &= self.slots.len() - 1;
                if self.slots[slot] == 0 {
                    break;
                }
                slot += 1;
            }
            self.slots[slot] = hash & MARK | (at as u64 + 1);
        }
    }

    /// Notes requests, at most [`BATCH`]: objects, and how large they are here.
    pub(crate) fn note(&mut self, batch: &[(u64, u64)]) {
        self.reserve(batch.len());
        // A loop for each kind of read, so that reads of one kind do not wait for each other.
        let last = self.slots.len() - 1;
        let (mut hashes, mut found) = ([0; BATCH], [0; BATCH]);
        for ((hash, found), &(id, _)) in hashes.iter_mut().zip(&mut found).zip(batch) {
            *hash = self.hash(id);
            *found = self.slots[*hash as usize & last];
        }
        for (found, &hash) in found.iter_mut().zip(&hashes).take(batch.len()) {
            if *found != 0 && (*found ^ hash) & MARK != 0 {
                (_, *found) = self.probe(hash, hash as usize + 1);
            }
        }
        let mut known = [0; BATCH];
        for (known, &found) in known.iter_mut().zip(&found) {
            *known = number(found).map_or(0, |number| self.objects[number].id);
        }
        for ((&(id, size), &found), &known) in batch.iter().zip(&found).zip(&known) {
            let number = match number(found) {
                Some(number) if known == id => number,
                _ => self.look_up(id).unwrap_or_else(|slot| self.add(id, slot)),
            };
            let object = &mut self.objects[number];
            object.at = object.at.max(size);
            self.keep(number);
        }
    }

    #[cold]
    fn add(&mut self, id: u64, slot: usize) -> usize {
        let number = self.objects.len();
        if number == MOST_OBJECTS {
            return number - 1;
        }
        self.objects.push(Object { id, at: 0 });
        self.slots[slot] = self.hash(id) & MARK | (number as u64 + 1);
        number
    }

    fn keep(&mut self, number: usize) {
        if self.ordered == MOST_ORDERED {
            return;
        }
        if self.ordered.is_multiple_of(BLOCK) {
            self.order.push_back(Vec::with_capacity(BLOCK));
        }
        if let Some(block) = self.order.back_mut() {
            block.push(number as u32);
        }
        self.ordered += 1;
    }

    /// Gives every object its place. An object that does not fit gets none.
    pub(crate) fn lay_out(&mut self) {
        let mut next = 0;
        for object in &mut self.objects {
            object.at = place(&mut next, object.at);
        }
        self.is_laid_out = true;
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
        let object = match next.and_then(|&number| self.objects.get(number as usize)) {
            Some(object) if object.id == id => object,
            // Beyond the order; or the file is not the one of the first reading.
            _ => {
                let number = self.look_up(id).map_err(|_| "the object was not there at the first reading")?;
                &self.objects[number]
            }
        };
        if object.at == u64::MAX { Err(NO_ROOM) } else { Ok(object.at) }
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

/// Returns the number in a slot.
fn number(slot: u64) -> Option<usize> {
    ((slot & !MARK) as usize).checked_sub(1)
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
            numbered.lay_out();
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
            numbered.lay_out();
            for id in again {
                let place = ids.iter().position(|&known| known == id);
                let before = |at: usize| ids[..at].iter().collect::<std::collections::HashSet<_>>().len() as u64;
                prop_assert_eq!(numbered.find(id).ok(), place.map(|at| before(at) * mrrc_core::PAGE));
            }
        }
    }

    #[test]
    fn order_ends_where_memory_would_grow() {
        let mut numbered =
            Numbered { ordered: MOST_ORDERED - 1, order: VecDeque::from([Vec::new()]), ..Numbered::default() };
        numbered.note(&[(1, 1), (2, 1), (3, 1)]);
        assert_eq!((numbered.ordered, numbered.order.len(), numbered.order[0].len()), (MOST_ORDERED, 1, 1));
        numbered.lay_out();
        assert_eq!([1, 2, 3].map(|id| numbered.find(id)), [Ok(0), Ok(4096), Ok(8192)]);
    }
}
