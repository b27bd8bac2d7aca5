//! Where regions live, and the lists they stand in.
//!
//! Every cached region has one slot of 64 bytes, named by a [`RegionId`]. A slot stands in at most
//! one list at a time: a section of the stack, the queue of its size, whatever a policy needs. The
//! lists are `intrusive-collections` lists threaded through the slots, so that moving a region from
//! one to another allocates nothing and touches only its neighbours.
//!
//! This is the one module of the core that may use `unsafe`. What makes it sound:
//!
//! * Slots live in chunks that are allocated once, never move, and are freed only with the whole
//!   store, after its lists. A pointer to a slot is therefore valid as long as the store is.
//! * Slots are only ever reached by shared reference; what changes in them is in cells.
//! * A slot knows the list it is in. Every operation on a list takes the list from the slot or writes
//!   it there, so no slot is ever unlinked from a list that it is not in.
//! * No pointer leaves the module: callers hold ids, which are checked against the store's bounds.
#![allow(unsafe_code)]

use crate::range::PageRange;
use intrusive_collections::{LinkedList, LinkedListLink, UnsafeRef, intrusive_adapter};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU32;
use std::ptr::NonNull;

/// Names a region for as long as it is registered; names are reused afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(NonZeroU32);

impl RegionId {
    /// A small dense number, for tables kept beside the cache.
    #[inline]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    #[inline]
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        NonZeroU32::new(raw).map(Self)
    }

    #[inline]
    pub(crate) fn raw(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Debug for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Names a list of regions in its store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListId(u32);

/// In no list.
const NOWHERE: u32 = u32::MAX;

/// What the core knows of a region, and the notes that policies keep with it.
///
/// The last four fields belong to the policy: they mean what it says they mean.
#[repr(C, align(64))]
pub struct Region {
    link: LinkedListLink,
    start: Cell<u64>,
    /// The number of pages, and in the bits above it the state, the aside flag and the mark: they
    /// make the slot one cache line.
    sized: Cell<u64>,
    id: u32,
    list: Cell<u32>,
    /// Leases that hold the region; while there is one it is no candidate for eviction.
    holds: Cell<u32>,
    /// A count of the policy's own, such as a frequency.
    pub count: Cell<u32>,
    /// A place in an order: a recency stamp, an entry number.
    pub order: Cell<u64>,
    /// What the region is worth: an eviction factor, a priority.
    pub weight: Cell<f64>,
}

/// Where a region is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The slot is free.
    Vacant = 0,
    /// Found by look-ups.
    Cached = 1,
    /// No longer found, but held, so still registered.
    Retired = 2,
}

/// The number of pages is at most 2^52, which takes 53 bits.
const PAGES_MASK: u64 = (1 << 53) - 1;
const STATE_SHIFT: u32 = 53;
const STATE_MASK: u64 = 0b11 << STATE_SHIFT;
const ASIDE: u64 = 1 << 55;
const MARK_SHIFT: u32 = 56;
const MARK_MASK: u64 = 0xff << MARK_SHIFT;

const _: () = assert!(size_of::<Region>() == 64);

intrusive_adapter!(InList = UnsafeRef<Region>: Region { link => LinkedListLink });

impl Region {
    fn vacant(id: u32) -> Self {
        Self {
            link: LinkedListLink::new(),
            start: Cell::new(0),
            sized: Cell::new(0),
            id,
            list: Cell::new(NOWHERE),
            holds: Cell::new(0),
            count: Cell::new(0),
            order: Cell::new(0),
            weight: Cell::new(0.0),
        }
    }

    fn occupy(&self, range: PageRange) {
        self.start.set(range.start());
        self.sized.set(range.pages());
        self.set_state(State::Cached);
        self.holds.set(0);
        self.count.set(0);
        self.order.set(0);
        self.weight.set(0.0);
    }

    /// The pages that are registered.
    #[inline]
    pub fn range(&self) -> PageRange {
        PageRange::between(self.start.get(), self.start.get() + self.pages())
    }

    /// The number of pages registered.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.sized.get() & PAGES_MASK
    }

    /// Whether a lease holds the region, so that it must not be evicted.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.holds.get() != 0
    }

    /// The list that the region stands in.
    #[inline]
    pub fn list(&self) -> Option<ListId> {
        let list = self.list.get();
        (list != NOWHERE).then_some(ListId(list))
    }

    /// A mark of the policy's own: visited, in which queue, and the like.
    #[inline]
    pub fn mark(&self) -> u8 {
        (self.sized.get() >> MARK_SHIFT) as u8
    }

    /// Sets the policy's own mark.
    #[inline]
    pub fn set_mark(&self, mark: u8) {
        self.sized.set(self.sized.get() & !MARK_MASK | u64::from(mark) << MARK_SHIFT);
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        match (self.sized.get() & STATE_MASK) >> STATE_SHIFT {
            0 => State::Vacant,
            1 => State::Cached,
            _ => State::Retired,
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.sized.set(self.sized.get() & !STATE_MASK | (state as u64) << STATE_SHIFT);
    }

    pub(crate) fn holds(&self) -> u32 {
        self.holds.get()
    }

    pub(crate) fn set_holds(&self, holds: u32) {
        self.holds.set(holds);
    }

    /// Taken out of its list by a policy that met it in use; put back when the last hold ends.
    #[inline]
    pub(crate) fn aside(&self) -> bool {
        self.sized.get() & ASIDE != 0
    }

    pub(crate) fn set_aside(&self, aside: bool) {
        self.sized.set(self.sized.get() & !ASIDE | if aside { ASIDE } else { 0 });
    }
}

/// Slots in a chunk: 16 KiB at a time.
const CHUNK: usize = 256;

/// The regions of one cache and the lists they stand in.
pub struct Regions {
    lists: Vec<LinkedList<InList>>,
    free_lists: Vec<ListId>,
    chunks: Vec<NonNull<Region>>,
    free: Vec<RegionId>,
    /// Slots handed out at least once.
    fresh: usize,
    live: usize,
}

// SAFETY: the store owns its slots; no pointer to one, and no reference with interior mutability,
// can be kept outside a borrow of the store, so moving it to another thread moves everything.
unsafe impl Send for Regions {}

impl Default for Regions {
    fn default() -> Self {
        Self::new()
    }
}

impl Regions {
    /// An empty store.
    pub fn new() -> Self {
        Self { lists: Vec::new(), free_lists: Vec::new(), chunks: Vec::new(), free: Vec::new(), fresh: 0, live: 0 }
    }

    /// The number of regions that have a slot.
    #[inline]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The region of that name.
    ///
    /// # Panics
    /// If the store never handed out such a name.
    #[inline]
    pub fn get(&self, id: RegionId) -> &Region {
        let index = id.index();
        let chunk = self.chunks[index / CHUNK];
        // SAFETY: the chunk holds CHUNK initialised slots, is alive as long as `self`, and its slots
        // are never borrowed mutably.
        unsafe { chunk.add(index % CHUNK).as_ref() }
    }

    /// Every region that has a slot, in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        (1..=self.fresh as u32)
            .filter_map(RegionId::from_raw)
            .map(|id| (id, self.get(id)))
            .filter(|(_, region)| region.state() != State::Vacant)
    }

    /// Bytes allocated for the slots and lists.
    pub fn memory(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Region>()
            + self.chunks.capacity() * size_of::<NonNull<Region>>()
            + self.free.capacity() * size_of::<RegionId>()
            + self.free_lists.capacity() * size_of::<ListId>()
            + self.lists.capacity() * size_of::<LinkedList<InList>>()
    }

    pub(crate) fn insert(&mut self, range: PageRange) -> RegionId {
        let id = self.free.pop().unwrap_or_else(|| self.next_fresh());
        let region = self.get(id);
        debug_assert!(region.state() == State::Vacant && region.list().is_none());
        region.occupy(range);
        self.live += 1;
        id
    }

    /// Gives the slot back. The region must stand in no list.
    pub(crate) fn remove(&mut self, id: RegionId) {
        let region = self.get(id);
        assert!(
            region.list().is_none() && region.state() != State::Vacant,
            "{id:?} is removed while a policy still lists it"
        );
        region.set_state(State::Vacant);
        self.free.push(id);
        self.live -= 1;
    }

    fn next_fresh(&mut self) -> RegionId {
        if self.fresh == self.chunks.len() * CHUNK {
            let layout = Layout::array::<Region>(CHUNK).expect("a chunk is small");
            // SAFETY: the layout has a size, and every slot is written before the chunk is kept.
            let chunk = unsafe {
                let Some(chunk) = NonNull::new(alloc(layout).cast::<Region>()) else { handle_alloc_error(layout) };
                for slot in 0..CHUNK {
                    chunk.add(slot).write(Region::vacant((self.fresh + slot + 1) as u32));
                }
                chunk
            };
            self.chunks.push(chunk);
        }
        self.fresh += 1;
        u32::try_from(self.fresh).ok().and_then(RegionId::from_raw).expect("fewer than four billion regions")
    }

    #[inline]
    fn slot(&self, id: RegionId) -> NonNull<Region> {
        let index = id.index();
        // SAFETY: the offset lies in the chunk.
        unsafe { self.chunks[index / CHUNK].add(index % CHUNK) }
    }

    /// A new, empty list.
    pub fn new_list(&mut self) -> ListId {
        self.free_lists.pop().unwrap_or_else(|| {
            self.lists.push(LinkedList::new(InList::new()));
            ListId(self.lists.len() as u32 - 1)
        })
    }

    /// Gives an empty list back.
    pub fn drop_list(&mut self, list: ListId) {
        assert!(self.front(list).is_none(), "a list that is given back is empty");
        self.free_lists.push(list);
    }

    /// Puts an unlisted region at the front of a list.
    #[inline]
    pub fn push_front(&mut self, list: ListId, id: RegionId) {
        let slot = self.enter(list, id);
        self.lists[list.0 as usize].push_front(slot);
    }

    /// Puts an unlisted region at the back of a list.
    #[inline]
    pub fn push_back(&mut self, list: ListId, id: RegionId) {
        let slot = self.enter(list, id);
        self.lists[list.0 as usize].push_back(slot);
    }

    /// Puts an unlisted region right behind another, in that one's list.
    pub fn insert_after(&mut self, place: RegionId, id: RegionId) {
        let list = self.get(place).list().expect("the place is in a list");
        let slot = self.enter(list, id);
        let place = self.slot(place).as_ptr();
        // SAFETY: `place` says that it is in this list.
        unsafe { self.lists[list.0 as usize].cursor_mut_from_ptr(place) }.insert_after(slot);
    }

    /// Takes a region out of the list that it is in, if any, and says which that was.
    #[inline]
    pub fn unlink(&mut self, id: RegionId) -> Option<ListId> {
        let region = self.get(id);
        let list = region.list()?;
        region.list.set(NOWHERE);
        let slot = self.slot(id);
        // SAFETY: the region said that it is in this list.
        unsafe { self.lists[list.0 as usize].cursor_mut_from_ptr(slot.as_ptr()) }.remove();
        Some(list)
    }

    /// Takes a region out of the list that it is in, if any, and puts it at the front of `list`.
    #[inline]
    pub fn move_to_front(&mut self, list: ListId, id: RegionId) {
        if self.get(id).list() == Some(list) && self.front(list) == Some(id) {
            return;
        }
        self.unlink(id);
        self.push_front(list, id);
    }

    /// The first region of a list.
    #[inline]
    pub fn front(&self, list: ListId) -> Option<RegionId> {
        self.lists[list.0 as usize].front().get().and_then(|region| RegionId::from_raw(region.id))
    }

    /// The last region of a list.
    #[inline]
    pub fn back(&self, list: ListId) -> Option<RegionId> {
        self.lists[list.0 as usize].back().get().and_then(|region| RegionId::from_raw(region.id))
    }

    /// The region before this one, nearer to the front of its list.
    #[inline]
    pub fn before(&self, id: RegionId) -> Option<RegionId> {
        let list = self.get(id).list()?;
        // SAFETY: the region said that it is in this list.
        let mut cursor = unsafe { self.lists[list.0 as usize].cursor_from_ptr(self.slot(id).as_ptr()) };
        cursor.move_prev();
        cursor.get().and_then(|region| RegionId::from_raw(region.id))
    }

    /// The region after this one, nearer to the back of its list.
    #[inline]
    pub fn after(&self, id: RegionId) -> Option<RegionId> {
        let list = self.get(id).list()?;
        // SAFETY: the region said that it is in this list.
        let mut cursor = unsafe { self.lists[list.0 as usize].cursor_from_ptr(self.slot(id).as_ptr()) };
        cursor.move_next();
        cursor.get().and_then(|region| RegionId::from_raw(region.id))
    }

    #[inline]
    fn enter(&self, list: ListId, id: RegionId) -> UnsafeRef<Region> {
        let region = self.get(id);
        assert!(region.list().is_none() && region.state() != State::Vacant, "{id:?} is free to be listed");
        region.list.set(list.0);
        // SAFETY: the slot outlives the lists (see `Drop`).
        unsafe { UnsafeRef::from_raw(self.slot(id).as_ptr()) }
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // The lists let go of the slots before the slots are freed.
        for list in &mut self.lists {
            list.fast_clear();
        }
        let layout = Layout::array::<Region>(CHUNK).expect("a chunk is small");
        for chunk in &self.chunks {
            // SAFETY: the chunk came from `alloc` with this layout; a slot has nothing to drop.
            unsafe { dealloc(chunk.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_of(n: u64) -> (Regions, Vec<RegionId>) {
        let mut regions = Regions::new();
        let ids = (0..n).map(|i| regions.insert(PageRange::between(10 * i, 10 * i + 1 + i % 7))).collect();
        (regions, ids)
    }

    fn order(regions: &Regions, list: ListId) -> Vec<RegionId> {
        std::iter::successors(regions.front(list), |&id| regions.after(id)).collect()
    }

    #[test]
    fn a_slot_is_one_cache_line_and_keeps_what_it_is_told() {
        let (regions, ids) = store_of(600);
        for (i, &id) in ids.iter().enumerate() {
            let region = regions.get(id);
            region.set_mark(i as u8);
            region.set_aside(i % 2 == 0);
            assert_eq!(region.range(), PageRange::between(10 * i as u64, 10 * i as u64 + 1 + i as u64 % 7));
            assert_eq!((region.mark(), region.aside(), region.state()), (i as u8, i % 2 == 0, State::Cached));
        }
        assert!(regions.memory() < 600 * 100 + 16 * 1024);
    }

    #[test]
    fn lists_keep_their_order_and_a_region_stands_in_one_at_most() {
        let (mut regions, ids) = store_of(4);
        let (hot, cold) = (regions.new_list(), regions.new_list());
        for &id in &ids {
            regions.push_front(hot, id);
        }
        assert_eq!(order(&regions, hot), [ids[3], ids[2], ids[1], ids[0]]);
        regions.move_to_front(hot, ids[1]);
        regions.move_to_front(cold, ids[2]);
        assert_eq!(order(&regions, hot), [ids[1], ids[3], ids[0]]);
        assert_eq!(order(&regions, cold), [ids[2]]);
        assert_eq!(regions.unlink(ids[3]), Some(hot));
        assert_eq!(regions.unlink(ids[3]), None);
        regions.insert_after(ids[1], ids[3]);
        assert_eq!(order(&regions, hot), [ids[1], ids[3], ids[0]]);
        assert_eq!((regions.before(ids[1]), regions.before(ids[0])), (None, Some(ids[3])));
        assert_eq!(regions.back(hot), Some(ids[0]));
    }

    #[test]
    fn slots_and_lists_are_used_again() {
        let (mut regions, ids) = store_of(3);
        regions.remove(ids[1]);
        assert_eq!((regions.len(), regions.iter().count()), (2, 2));
        assert_eq!(regions.insert(PageRange::between(1, 2)), ids[1]);
        let list = regions.new_list();
        regions.drop_list(list);
        assert_eq!(regions.new_list(), list);
    }

    #[test]
    #[should_panic(expected = "still lists it")]
    fn a_listed_region_cannot_give_its_slot_back() {
        let (mut regions, ids) = store_of(1);
        let list = regions.new_list();
        regions.push_back(list, ids[0]);
        regions.remove(ids[0]);
    }

    #[test]
    #[should_panic(expected = "free to be listed")]
    fn a_region_cannot_enter_two_lists() {
        let (mut regions, ids) = store_of(1);
        let list = regions.new_list();
        regions.push_back(list, ids[0]);
        regions.push_back(list, ids[0]);
    }
}
