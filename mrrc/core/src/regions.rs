//! The store of regions, and the lists that they stand in.
//!
//! Every region has a slot, named by a [`RegionId`]: a row in each of a few arrays, split by their readers. A
//! look-up reads sixteen bytes of it, moving it to the top twelve more. It stands in at most one list at a time:
//! a section of the stack, the queue of its size, whatever a policy needs. Moving it from one list to another
//! allocates nothing.
//!
//! The lists themselves are in [`links`].

use crate::access::Access;
use crate::grow;
use crate::range::PageRange;
use std::cell::Cell;
use std::fmt;

mod links;

use links::Lists;
pub use links::{ListId, RegionId};

/// The part that look-ups read: sixteen bytes a region, apart from the rest, so that many fit a near cache.
#[derive(Debug)]
struct Span {
    start: Cell<u64>,
    /// The number of pages, and in the bits above it the state, the aside flag and the mark.
    sized: Cell<u64>,
}

/// The notes of policies on a region.
struct Notes {
    /// The number of holds, and in the bits above it the rights.
    held: Cell<u32>,
    count: Cell<u32>,
    order: Cell<u64>,
    weight: Cell<f64>,
}

/// The core's view of a region, and the notes that policies keep with it.
///
/// The public fields belong to the policy: they mean what it says they mean.
#[derive(Debug, Clone, Copy)]
pub struct Region<'a> {
    span: &'a Span,
    held: &'a Cell<u32>,
    /// A count of the policy's own, such as a frequency.
    pub count: &'a Cell<u32>,
    /// A place in an order: a recency stamp, an entry number.
    pub order: &'a Cell<u64>,
    /// The benefit of the region: an eviction factor, a priority. At first it is -0.
    pub weight: &'a Cell<f64>,
}

/// The stages of a region's life. Every state but [`RegionState::Absent`] counts against the capacity.
///
/// | state | a request | next state: when |
/// | --- | --- | --- |
/// | absent | misses | registering: a miss reserves its pages |
/// | registering | waits | cached: published · retired: good for one lease only · absent: failed |
/// | cached | hits | retired: evicted, replaced or invalidated |
/// | retired | misses | pending deregistration: no lease holds it · absent: its registration failed · cached: what was to take its place found no room |
/// | pending deregistration | misses | deregistering: a thread takes the batch |
/// | deregistering | misses | absent: done · pending deregistration: refused |
///
/// A region has its name until it is pending deregistration; the last two states are known to whoever deregisters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionState {
    /// There is no such region.
    Absent = 3,
    /// Reserved by a request that registers it. Look-ups find it, and requests wait for it.
    Registering = 1,
    /// Registered, and found by look-ups.
    Cached = 0,
    /// No longer found, but a lease holds it, so it stays registered.
    Retired = 2,
    /// To be deregistered.
    PendingDeregistration = 4,
    /// A thread deregisters it.
    Deregistering = 5,
}

/// The events that change the state of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionEvent {
    /// A request reserved its pages.
    Reserved,
    /// It was registered, and look-ups find it.
    Published,
    /// Its registration failed, or was given up.
    Failed,
    /// It was evicted, replaced or invalidated.
    Retired,
    /// It stays cached after all: what was to take its place found no room.
    Kept,
    /// No lease holds it any more.
    Released,
    /// A thread took the batch that it is in.
    Taken,
    /// The registrar deregistered it.
    Deregistered,
    /// The registrar refused to deregister it.
    Refused,
}

impl RegionState {
    /// Returns the state that follows an event, or `None` if that cannot happen in this state.
    #[inline]
    pub const fn after(self, event: RegionEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::Absent, RegionEvent::Reserved) => Self::Registering,
            (Self::Registering, RegionEvent::Published) => Self::Cached,
            (Self::Registering | Self::Cached, RegionEvent::Retired) => Self::Retired,
            (Self::Registering | Self::Retired, RegionEvent::Failed) => Self::Absent,
            (Self::Retired, RegionEvent::Kept) => Self::Cached,
            (Self::Retired, RegionEvent::Released) => Self::PendingDeregistration,
            (Self::PendingDeregistration, RegionEvent::Taken) => Self::Deregistering,
            (Self::Deregistering, RegionEvent::Deregistered) => Self::Absent,
            (Self::Deregistering, RegionEvent::Refused) => Self::PendingDeregistration,
            _ => return None,
        })
    }
}

/// The number of pages is at most 2^52, which takes 53 bits.
const PAGES_MASK: u64 = (1 << 53) - 1;
const STATE_SHIFT: u32 = 53;
const STATE_MASK: u64 = 0b11 << STATE_SHIFT;
const ASIDE: u64 = 1 << 55;
const MARK_SHIFT: u32 = 56;
const MARK_MASK: u64 = 0xff << MARK_SHIFT;

const HOLDS_BITS: u32 = 27;
const HOLDS_MASK: u32 = (1 << HOLDS_BITS) - 1;
const _: () = assert!(Access::all().bits() as u32 <= u32::MAX >> HOLDS_BITS);

impl Notes {
    fn new(access: Access) -> Self {
        let held = Cell::new(u32::from(access.bits()) << HOLDS_BITS);
        // The sign tells `Winners` that it is no member.
        Self { held, count: Cell::new(0), order: Cell::new(0), weight: Cell::new(-0.0) }
    }

    #[inline(always)]
    fn rank(&self) -> (f64, u64) {
        (self.weight.get(), self.order.get())
    }
}

impl Span {
    fn of(range: PageRange, state: RegionState) -> Self {
        Self { start: Cell::new(range.start()), sized: Cell::new(range.pages() | (state as u64) << STATE_SHIFT) }
    }

    #[inline]
    fn pages(&self) -> u64 {
        self.sized.get() & PAGES_MASK
    }

    #[inline]
    fn range(&self) -> PageRange {
        PageRange::between(self.start.get(), self.start.get() + self.pages())
    }

    #[inline]
    fn covers(&self, range: PageRange) -> bool {
        // A range that starts before the region wraps to a huge distance: one comparison for both ends.
        let ahead = range.start().wrapping_sub(self.start.get());
        let pages = self.pages();
        ahead < pages && range.pages() <= pages - ahead
    }

    #[inline]
    fn state(&self) -> RegionState {
        match (self.sized.get() & STATE_MASK) >> STATE_SHIFT {
            0 => RegionState::Cached,
            1 => RegionState::Registering,
            2 => RegionState::Retired,
            _ => RegionState::Absent,
        }
    }

    /// Only of the states that a name has.
    fn set_state(&self, state: RegionState) {
        debug_assert!((state as u64) << STATE_SHIFT & !STATE_MASK == 0, "{state:?} has no name");
        self.sized.set(self.sized.get() & !STATE_MASK | (state as u64) << STATE_SHIFT);
    }
}

impl Region<'_> {
    /// Returns the pages that are registered.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.span.range()
    }

    /// Returns the number of pages registered.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.span.pages()
    }

    /// Returns whether a lease holds the region, so that it must not be evicted.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.holds() != 0
    }

    /// Returns the rights that the registration grants.
    #[inline]
    pub fn access(&self) -> Access {
        Access::from_bits_retain((self.held.get() >> HOLDS_BITS) as u8)
    }

    /// Returns a mark of the policy's own: visited, in which queue, and the like.
    #[inline]
    pub fn mark(&self) -> u8 {
        (self.span.sized.get() >> MARK_SHIFT) as u8
    }

    /// Sets the policy's own mark.
    #[inline]
    pub fn set_mark(&self, mark: u8) {
        self.span.sized.set(self.span.sized.get() & !MARK_MASK | u64::from(mark) << MARK_SHIFT);
    }

    /// Returns where the region is in its life.
    #[inline]
    pub fn state(&self) -> RegionState {
        self.span.state()
    }

    /// Leases that hold the region; while there is one it is no candidate for eviction.
    #[inline]
    pub(crate) fn holds(&self) -> u32 {
        self.held.get() & HOLDS_MASK
    }

    pub(crate) fn set_holds(&self, holds: u32) {
        assert!(holds <= HOLDS_MASK, "fewer than 2^27 leases of a region");
        self.held.set(self.held.get() & !HOLDS_MASK | holds);
    }

    /// Taken out of its list by a policy that met it in use; put back when the last hold ends.
    #[inline]
    pub fn aside(&self) -> bool {
        self.span.sized.get() & ASIDE != 0
    }

    /// Sets a region in use aside, or says that it is back.
    pub fn set_aside(&self, aside: bool) {
        self.span.sized.set(self.span.sized.get() & !ASIDE | if aside { ASIDE } else { 0 });
    }
}

/// The regions of one cache and the lists they stand in.
#[derive(Default)]
pub struct Regions {
    /// About the most regions that there will be.
    limit: usize,
    spans: Vec<Span>,
    notes: Vec<Notes>,
    free: Vec<RegionId>,
    lists: Lists,
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions").field("places", &self.spans.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
thread_local! {
    /// Steps from one region of a list to the next.
    pub(crate) static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Regions {
    /// Returns an empty store.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns an empty store, for about so many regions at most.
    pub(crate) fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Returns the number of regions that have a slot.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len() - self.free.len()
    }

    /// Returns whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the region of that name.
    ///
    /// # Panics
    /// If the store never handed out such a name.
    #[inline]
    pub fn get(&self, id: RegionId) -> Region<'_> {
        let Notes { held, count, order, weight } = &self.notes[id.index()];
        Region { span: &self.spans[id.index()], held, count, order, weight }
    }

    /// Returns the slot of that name, if the store ever handed it out.
    #[inline]
    pub(crate) fn find(&self, id: RegionId) -> Option<Region<'_>> {
        (id.index() < self.spans.len()).then(|| self.get(id))
    }

    /// Returns the number of places of slots, taken and free.
    pub(crate) fn places(&self) -> usize {
        self.notes.len()
    }

    /// Returns weight and order of a region.
    #[inline(always)]
    pub(crate) fn rank(&self, id: RegionId) -> (f64, u64) {
        self.notes[id.index()].rank()
    }

    /// Returns the same of the slots from this place on, if there are so many.
    #[inline(always)]
    pub(crate) fn ranks<const N: usize>(&self, first: usize) -> Option<[(f64, u64); N]> {
        let notes: &[Notes; N] = self.notes.get(first..)?.first_chunk()?;
        Some(notes.each_ref().map(Notes::rank))
    }

    /// Returns the number of pages of a region.
    #[inline]
    pub fn pages(&self, id: RegionId) -> u64 {
        self.spans[id.index()].pages()
    }

    /// Returns whether every page of the range is in the region.
    #[inline]
    pub fn covers(&self, id: RegionId, range: PageRange) -> bool {
        self.spans[id.index()].covers(range)
    }

    /// Returns whether the range shares a page with the region.
    #[inline]
    pub(crate) fn overlaps(&self, id: RegionId, range: PageRange) -> bool {
        self.spans[id.index()].range().overlaps(range)
    }

    /// Returns whether the region is cached and not [aside](Region::aside), so that the policy has it in its
    /// order. Reads nothing but what look-ups read.
    #[inline]
    pub(crate) fn is_ordered(&self, id: RegionId) -> bool {
        const { assert!(RegionState::Cached as u64 == 0 && ASIDE == 0b100 << STATE_SHIFT, "three bits are compared with 0") };
        self.spans[id.index()].sized.get() >> STATE_SHIFT & 0b111 == 0
    }

    /// Every region that has a slot, in no useful order.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, Region<'_>)> {
        let ids = (0..self.spans.len()).map(RegionId::of_index);
        ids.map(|id| (id, self.get(id))).filter(|(_, region)| region.state() != RegionState::Absent)
    }

    /// Bytes allocated for the slots and lists.
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
            + self.notes.capacity() * size_of::<Notes>()
            + self.free.capacity() * size_of::<RegionId>()
            + self.lists.memory()
    }

    #[cfg(test)]
    pub(crate) fn insert(&mut self, range: PageRange) -> RegionId {
        self.insert_with(range, Access::LOCAL_READ, RegionState::Cached)
    }

    /// Gives a region a slot and a name.
    pub(crate) fn insert_with(&mut self, range: PageRange, access: Access, state: RegionState) -> RegionId {
        if let Some(id) = self.free.pop() {
            self.spans[id.index()] = Span::of(range, state);
            self.notes[id.index()] = Notes::new(access);
            return id;
        }
        let id = RegionId::of_index(self.spans.len());
        grow::push_within(&mut self.spans, Span::of(range, state), self.limit);
        grow::push_within(&mut self.notes, Notes::new(access), self.limit);
        self.lists.add_row(self.limit);
        id
    }

    /// Changes the state of a region, which keeps its name.
    ///
    /// # Panics
    /// If the event cannot happen in its state.
    #[inline]
    pub(crate) fn change(&mut self, id: RegionId, event: RegionEvent) {
        let span = &self.spans[id.index()];
        let Some(next) = span.state().after(event) else { panic!("{id:?} is {:?}: no {event:?}", span.state()) };
        span.set_state(next);
    }

    /// Gives the slot back. The region must stand in no list.
    pub(crate) fn remove(&mut self, id: RegionId) {
        let region = self.get(id);
        assert!(
            self.list(id).is_none() && region.state() != RegionState::Absent,
            "{id:?} is removed while a policy still lists it"
        );
        region.span.set_state(RegionState::Absent);
        self.free.push(id);
    }

    /// Returns a new, empty list. The first one makes room for the links of all regions.
    pub fn new_list(&mut self) -> ListId {
        self.lists.new_list(self.spans.len(), self.limit)
    }

    /// Gives an empty list back.
    pub fn drop_list(&mut self, list: ListId) {
        self.lists.drop_list(list);
    }

    /// Returns the list that the region stands in.
    #[inline]
    pub fn list(&self, id: RegionId) -> Option<ListId> {
        self.lists.list(id)
    }

    /// Puts an unlisted region at the front of a list.
    #[inline]
    pub fn push_front(&mut self, list: ListId, id: RegionId) {
        self.lists.push_front(list, id);
    }

    /// Puts an unlisted region at the back of a list.
    #[inline]
    pub fn push_back(&mut self, list: ListId, id: RegionId) {
        self.lists.push_back(list, id);
    }

    /// Puts an unlisted region right behind another, in that one's list.
    pub fn insert_after(&mut self, place: RegionId, id: RegionId) {
        self.lists.insert_after(place, id);
    }

    /// Takes a region out of the list that it is in, if any, and says which that was.
    #[inline]
    pub fn unlink(&mut self, id: RegionId) -> Option<ListId> {
        self.lists.unlink(id)
    }

    /// Takes a region out of the list that it is in, if any, and puts it at the front of `list`.
    #[inline]
    pub fn move_to_front(&mut self, list: ListId, id: RegionId) {
        self.lists.move_to_front(list, id);
    }

    /// Puts a region of the list at its front.
    #[inline]
    pub fn raise(&mut self, list: ListId, id: RegionId) {
        self.lists.raise(list, id);
    }

    /// Returns the first region of a list.
    #[inline]
    pub fn front(&self, list: ListId) -> Option<RegionId> {
        self.lists.front(list)
    }

    /// Returns the last region of a list.
    #[inline]
    pub fn back(&self, list: ListId) -> Option<RegionId> {
        self.lists.back(list)
    }

    /// Returns the region before this one, nearer to the front of its list.
    #[inline]
    pub fn before(&self, id: RegionId) -> Option<RegionId> {
        #[cfg(test)]
        STEPS.set(STEPS.get() + 1);
        self.lists.before(id)
    }

    /// Returns the region after this one, nearer to the back of its list.
    #[inline]
    pub fn after(&self, id: RegionId) -> Option<RegionId> {
        self.lists.after(id)
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
    fn a_slot_keeps_what_it_is_told() {
        let (regions, ids) = store_of(600);
        for (i, &id) in ids.iter().enumerate() {
            let region = regions.get(id);
            region.set_mark(i as u8);
            region.set_aside(i % 2 == 0);
            assert_eq!(region.range(), PageRange::between(10 * i as u64, 10 * i as u64 + 1 + i as u64 % 7));
            assert_eq!((region.mark(), region.aside(), region.state()), (i as u8, i % 2 == 0, RegionState::Cached));
        }
    }

    #[test]
    fn lists_keep_order_and_membership_is_unique() {
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
