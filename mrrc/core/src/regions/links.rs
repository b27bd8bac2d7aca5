//! The lists that regions stand in: `intrusive-collections` lists over a dense table of links.
//!
//! A region's links are a row of twelve bytes in a table beside the slots: moving a region to the top
//! writes into three rows of a table that stays in a near cache, and not into three slots.
//!
//! This is the one module of the core that may use `unsafe`. It is sound because:
//!
//! * A region enters a list only if its row exists, and rows stay: the lists need not check again.
//! * References to rows never outlive the call of [`Lists`] that took them, so a table that grows
//!   leaves none dangling.
//! * Links change through cells, so shared references suffice.
//! * A row knows the list it is in. Every operation on a list takes the list from the row or writes it
//!   there, so no row is ever unlinked from a list that it is not in.
//! * The table is shared by the lists of one [`Lists`] alone, and nothing hands it out.
#![allow(unsafe_code)]

use crate::grow;
use intrusive_collections::linked_list::{Cursor, LinkedListOps};
use intrusive_collections::{Adapter, LinkOps, LinkedList, PointerOps};
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::num::NonZeroU32;
use std::ptr;
use std::rc::Rc;

/// Names a region for as long as it is registered; names are reused afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(NonZeroU32);

impl RegionId {
    /// The most regions that have names.
    pub const MOST: u64 = (1 << 30) - 1;

    /// Returns a small dense number, for tables kept beside the cache.
    #[inline]
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Returns the name with that [`RegionId::index`].
    ///
    /// # Panics
    /// If the number is not below 2^32 − 1.
    pub fn of_index(index: usize) -> Self {
        u32::try_from(index + 1).ok().and_then(Self::from_raw).expect("fewer than four billion regions")
    }

    /// Returns the name of that number, unless it is 0.
    #[inline]
    pub fn from_raw(raw: u32) -> Option<Self> {
        NonZeroU32::new(raw).map(Self)
    }

    /// Returns the name as a number, which is not 0.
    #[inline]
    pub fn raw(self) -> u32 {
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

/// A region's neighbours, and the list that they stand in together.
struct Row {
    next: Cell<Option<RegionId>>,
    previous: Cell<Option<RegionId>>,
    list: Cell<u32>,
}

/// The rows of all regions of a cache; row 0 stays unused, so that a name is its row.
#[derive(Clone)]
struct Table(Rc<UnsafeCell<Vec<Row>>>);

impl Table {
    fn new() -> Self {
        Self(Rc::new(UnsafeCell::new(vec![Row::nowhere()])))
    }

    #[inline]
    fn rows(&self) -> &[Row] {
        // SAFETY: only `add` borrows the rows mutably, and no reference is alive when it is called:
        // it takes `&mut Lists`, and every other call ends before it gives `Lists` back.
        unsafe { &*self.0.get() }
    }

    fn add(&mut self, limit: usize) {
        // SAFETY: `&mut self` shows that no reference to the rows is alive: every borrow by `rows` ends before `Lists`
        // is given back.
        grow::push_within(unsafe { &mut *self.0.get() }, Row::nowhere(), limit);
    }

    fn capacity(&self) -> usize {
        // SAFETY: the rows are borrowed for this call only, and `add`, which borrows them mutably, needs `&mut self`.
        unsafe { &*self.0.get() }.capacity()
    }

    /// Returns the row of a region that is in a list.
    #[inline]
    fn listed(&self, id: RegionId) -> &Row {
        debug_assert!((id.raw() as usize) < self.rows().len());
        // SAFETY: regions enter lists through `Lists::enter`, which checks that the row exists; rows
        // are never removed.
        unsafe { self.rows().get_unchecked(id.raw() as usize) }
    }
}

impl Row {
    fn nowhere() -> Self {
        Self { next: Cell::new(None), previous: Cell::new(None), list: Cell::new(NOWHERE) }
    }
}

// SAFETY: whether a region is in a list is what its row says; `Lists` sets that before a region enters
// a list, clears it when it leaves, and lets none enter twice. So there is nothing to acquire here.
unsafe impl LinkOps for Table {
    type LinkPtr = RegionId;

    #[inline]
    unsafe fn acquire_link(&mut self, _: RegionId) -> bool {
        true
    }

    #[inline]
    unsafe fn release_link(&mut self, _: RegionId) {}
}

// SAFETY: what is set is what is read, and nothing panics.
unsafe impl LinkedListOps for Table {
    #[inline]
    unsafe fn next(&self, id: RegionId) -> Option<RegionId> {
        self.listed(id).next.get()
    }

    #[inline]
    unsafe fn prev(&self, id: RegionId) -> Option<RegionId> {
        self.listed(id).previous.get()
    }

    #[inline]
    unsafe fn set_next(&mut self, id: RegionId, next: Option<RegionId>) {
        self.listed(id).next.set(next);
    }

    #[inline]
    unsafe fn set_prev(&mut self, id: RegionId, previous: Option<RegionId>) {
        self.listed(id).previous.set(previous);
    }
}

/// A list's owner without data. Its address is the region's name, and a reference to a type without
/// size may have any address but null.
struct Named;

impl RegionId {
    #[inline]
    fn as_named(self) -> *const Named {
        ptr::without_provenance(self.raw() as usize)
    }

    #[inline]
    fn of_named(named: *const Named) -> Self {
        Self::from_raw(named.addr() as u32).expect("made from a name")
    }
}

struct Names;

// SAFETY: `into_raw` and `from_raw` are each other's inverse.
unsafe impl PointerOps for Names {
    type Value = Named;
    type Pointer = RegionId;

    #[inline]
    unsafe fn from_raw(&self, value: *const Named) -> RegionId {
        RegionId::of_named(value)
    }

    #[inline]
    fn into_raw(&self, id: RegionId) -> *const Named {
        id.as_named()
    }
}

struct InList {
    table: Table,
    names: Names,
}

// SAFETY: `get_value` and `get_link` are each other's inverse.
unsafe impl Adapter for InList {
    type LinkOps = Table;
    type PointerOps = Names;

    #[inline]
    unsafe fn get_value(&self, link: RegionId) -> *const Named {
        link.as_named()
    }

    #[inline]
    unsafe fn get_link(&self, value: *const Named) -> RegionId {
        RegionId::of_named(value)
    }

    #[inline]
    fn link_ops(&self) -> &Table {
        &self.table
    }

    #[inline]
    fn link_ops_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    #[inline]
    fn pointer_ops(&self) -> &Names {
        &self.names
    }
}

/// All lists of a cache.
pub(super) struct Lists {
    table: Table,
    lists: Vec<LinkedList<InList>>,
    free: Vec<ListId>,
}

// SAFETY: the table is shared among the lists of this value alone, which move with it.
unsafe impl Send for Lists {}

impl Default for Lists {
    fn default() -> Self {
        Self { table: Table::new(), lists: Vec::new(), free: Vec::new() }
    }
}

impl Lists {
    pub(super) fn memory(&self) -> usize {
        self.table.capacity() * size_of::<Row>()
            + self.free.capacity() * size_of::<ListId>()
            + self.lists.capacity() * size_of::<LinkedList<InList>>()
    }

    /// A row for the next region, of about so many at most. None is made before there is a list.
    #[inline]
    pub(super) fn add_row(&mut self, limit: usize) {
        if !self.lists.is_empty() {
            // One row is no region's.
            self.table.add(limit.saturating_add(1));
        }
    }

    /// Returns a new list, for a store of so many regions, and about so many at most.
    pub(super) fn new_list(&mut self, regions: usize, limit: usize) -> ListId {
        while self.table.rows().len() <= regions {
            self.table.add(limit.saturating_add(1));
        }
        self.free.pop().unwrap_or_else(|| {
            assert!(self.lists.len() < NOWHERE as usize, "fewer than four billion lists");
            grow::push(&mut self.lists, LinkedList::new(InList { table: self.table.clone(), names: Names }));
            ListId(self.lists.len() as u32 - 1)
        })
    }

    pub(super) fn drop_list(&mut self, list: ListId) {
        assert!(self.front(list).is_none(), "a list that is given back is empty");
        self.free.push(list);
    }

    #[inline]
    pub(super) fn list(&self, id: RegionId) -> Option<ListId> {
        let list = self.table.rows().get(id.raw() as usize)?.list.get();
        (list != NOWHERE).then_some(ListId(list))
    }

    /// Notes that an unlisted region is about to enter a list.
    #[inline]
    fn enter(&mut self, list: ListId, id: RegionId) -> &mut LinkedList<InList> {
        let entered = &mut self.lists[list.0 as usize];
        let row = &self.table.rows()[id.raw() as usize];
        assert!(row.list.get() == NOWHERE, "{id:?} is free to be listed");
        row.list.set(list.0);
        entered
    }

    #[inline]
    pub(super) fn push_front(&mut self, list: ListId, id: RegionId) {
        self.enter(list, id).push_front(id);
    }

    #[inline]
    pub(super) fn push_back(&mut self, list: ListId, id: RegionId) {
        self.enter(list, id).push_back(id);
    }

    pub(super) fn insert_after(&mut self, place: RegionId, id: RegionId) {
        let list = self.list(place).expect("the place is in a list");
        let list = self.enter(list, id);
        // SAFETY: `place` says that it is in this list.
        unsafe { list.cursor_mut_from_ptr(place.as_named()) }.insert_after(id);
    }

    #[inline]
    pub(super) fn unlink(&mut self, id: RegionId) -> Option<ListId> {
        let list = self.list(id)?;
        self.table.rows()[id.raw() as usize].list.set(NOWHERE);
        // SAFETY: the region said that it is in this list.
        unsafe { self.lists[list.0 as usize].cursor_mut_from_ptr(id.as_named()) }.remove();
        Some(list)
    }

    #[inline]
    pub(super) fn move_to_front(&mut self, list: ListId, id: RegionId) {
        if self.list(id) == Some(list) {
            self.raise(list, id);
        } else {
            self.unlink(id);
            self.push_front(list, id);
        }
    }

    /// Puts a region of the list at its front.
    #[inline]
    pub(super) fn raise(&mut self, list: ListId, id: RegionId) {
        let row = &self.table.rows()[id.raw() as usize];
        assert!(row.list.get() == list.0, "{id:?} is in the list");
        if row.previous.get().is_none() {
            return;
        }
        let list = &mut self.lists[list.0 as usize];
        // SAFETY: the region says that it is in this list.
        unsafe { list.cursor_mut_from_ptr(id.as_named()) }.remove();
        list.push_front(id);
    }

    #[inline]
    pub(super) fn front(&self, list: ListId) -> Option<RegionId> {
        self.lists[list.0 as usize].front().get().map(|named| RegionId::of_named(named))
    }

    #[inline]
    pub(super) fn back(&self, list: ListId) -> Option<RegionId> {
        self.lists[list.0 as usize].back().get().map(|named| RegionId::of_named(named))
    }

    /// Returns the neighbour before or after a listed region.
    #[inline]
    fn neighbour(&self, id: RegionId, go: impl Fn(&mut Cursor<'_, InList>)) -> Option<RegionId> {
        let list = self.list(id)?;
        // SAFETY: the region said that it is in this list.
        let mut cursor = unsafe { self.lists[list.0 as usize].cursor_from_ptr(id.as_named()) };
        go(&mut cursor);
        cursor.get().map(|named| RegionId::of_named(named))
    }

    #[inline]
    pub(super) fn before(&self, id: RegionId) -> Option<RegionId> {
        self.neighbour(id, |cursor| cursor.move_prev())
    }

    #[inline]
    pub(super) fn after(&self, id: RegionId) -> Option<RegionId> {
        self.neighbour(id, |cursor| cursor.move_next())
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        // A list that is dropped unlinks its members one by one; none of them needs to know.
        self.lists.iter_mut().for_each(LinkedList::fast_clear);
    }
}
