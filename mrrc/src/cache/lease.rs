//! A lease: memory that is registered for as long as the lease lives.
//!
//! A lease holds its regions by slots (or, where a thread has too many leases, by counts) and knows the
//! cache by a pointer, not by a count: that would be a line that all threads write. What keeps the cache's
//! shared state alive is the slot itself: a cache that is dropped while leases live leaves its state to a
//! thread that waits until the last slot is empty. So the store that empties the slot is the last thing that
//! a lease does.
#![expect(unsafe_code, reason = "leases point to the state that their slots keep alive")]

use super::hit::{self, Grip};
use super::shared::Shared;
use crate::count::Count;
use crate::range::{PAGE, PageRange};
use crate::regions::RegionId;
use crate::registrar::Registrar;
use crate::shim::sync::atomic::AtomicU32;
use std::fmt;
use std::ptr::NonNull;

/// Memory that stays registered until this is dropped.
///
/// It can be sent to and dropped on any thread; dropping it is one store, and no system call. Regions in use
/// are never evicted; one that is invalidated while a lease has it is not found any more, and stays registered until
/// the lease ends.
///
/// The keys are lent by the lease, and cannot outlive it:
///
/// ```compile_fail,E0505
/// use mrrc::registrar::model::Dummy;
/// use mrrc::{Access, Cache};
/// let cache = Cache::builder(Dummy::default()).build().unwrap();
/// let buffer = vec![0_u8; 4096];
/// let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }.unwrap();
/// let segment = lease.segments().next().unwrap();
/// drop(lease);
/// println!("{:?}", segment.registration());
/// ```
pub struct Lease<R: Registrar> {
    shared: NonNull<Shared<R>>,
    address: usize,
    length: usize,
    first: Hold,
    /// Boxed by `of`; null where there is but one. No `Option<Box>`, so that dropping the usual lease is a test and a
    /// store, which the compiler puts in the place of the call.
    rest: *mut Vec<Hold>,
}

/// One region, held.
pub(super) struct Hold {
    id: RegionId,
    /// `None`: counted in the region.
    slot: Option<NonNull<AtomicU32>>,
}

// SAFETY: what a lease points to is shared by all threads of the cache, and slots are atomics that whoever drops
// the lease may empty.
unsafe impl<R: Registrar> Send for Lease<R> {}
// SAFETY: a shared lease shows registrations, which are `Sync`.
unsafe impl<R: Registrar> Sync for Lease<R> {}

impl Hold {
    #[inline(always)]
    pub(super) fn new(id: RegionId, grip: Grip<'_>) -> Self {
        let slot = match grip {
            Grip::Slot(slot) => Some(NonNull::from(slot)),
            Grip::Counted => None,
        };
        Self { id, slot }
    }

    pub(super) fn id(&self) -> RegionId {
        self.id
    }

    /// Ends the hold.
    ///
    /// # Safety
    /// It is called once, and nothing of the shared state is touched on this hold's account afterwards.
    #[inline(always)]
    pub(super) unsafe fn end<R: Registrar>(&self, shared: NonNull<Shared<R>>) {
        match self.slot {
            // SAFETY: the slot's block belongs to the shared state, which lives as long as the slot names a region.
            Some(slot) => hit::let_go(unsafe { slot.as_ref() }),
            // SAFETY: as above, for the count.
            None => hit::let_go_counted(unsafe { shared.as_ref() }.records[self.id].counted()),
        }
    }
}

impl<R: Registrar> Lease<R> {
    #[inline(always)]
    pub(super) fn one(shared: &Shared<R>, address: usize, length: usize, hold: Hold) -> Self {
        Self { shared: NonNull::from(shared), address, length, first: hold, rest: std::ptr::null_mut() }
    }

    /// The holds are in the order of their addresses.
    pub(super) fn of(shared: &Shared<R>, address: usize, length: usize, first: Hold, rest: Vec<Hold>) -> Self {
        let rest = Box::into_raw(Box::new(rest));
        Self { shared: NonNull::from(shared), address, length, first, rest }
    }

    fn rest(&self) -> &[Hold] {
        // SAFETY: null, or boxed by `of` and not freed before the lease is dropped.
        unsafe { self.rest.as_ref() }.map_or(&[], Vec::as_slice)
    }

    /// Ends the holds of a lease of several parts but for the first. Takes what it needs and not the lease, which can
    /// stay in registers then.
    ///
    /// # Safety
    /// `rest` was boxed by `of`, and this is called once, by `drop`.
    #[cold]
    #[inline(never)]
    unsafe fn end_rest(shared: NonNull<Shared<R>>, rest: *mut Vec<Hold>) {
        // SAFETY: by the contract.
        let rest = unsafe { Box::from_raw(rest) };
        for hold in rest.iter() {
            // SAFETY: only `drop` ends a lease's holds, and the first one keeps the shared state alive until its turn.
            unsafe { hold.end(shared) }
        }
    }

    /// Whether all its regions lie in the range.
    pub(super) fn lies_within(&self, range: PageRange) -> bool {
        // SAFETY: the slots of this lease keep the shared state alive.
        let shared = unsafe { self.shared.as_ref() };
        std::iter::once(&self.first).chain(self.rest()).all(|hold| range.contains(shared.records[hold.id].range()))
    }

    /// Where the memory is.
    pub fn address(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Bytes that were acquired, at least one.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The parts of the memory with their registrations, in the order of their addresses. One, unless several
    /// regions cover the memory together. None in a child that was forked meanwhile: the registrations
    /// are its parent's.
    pub fn segments(&self) -> Segments<'_, R> {
        // SAFETY: the slots of this lease keep the shared state alive.
        let shared = unsafe { self.shared.as_ref() };
        let (first, rest) = if shared.gate.is_forked() { (None, &[][..]) } else { (Some(&self.first), self.rest()) };
        Segments { shared, first, rest: rest.iter(), address: self.address, last: self.address + (self.length - 1) }
    }
}

impl<R: Registrar> Drop for Lease<R> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.rest.is_null() {
            // SAFETY: it is not null, so `of` boxed it, and a lease is dropped once.
            unsafe { Self::end_rest(self.shared, self.rest) }
        }
        // SAFETY: nobody else ends it, and this is the last thing that a lease does.
        unsafe { self.first.end(self.shared) }
    }
}

impl<R: Registrar> fmt::Debug for Lease<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Count(1 + self.rest().len() as u64, "parts");
        write!(f, "Lease({:#x}, {} bytes, {parts})", self.address, self.length)
    }
}

/// A part of a lease: memory that one registration covers.
pub struct Segment<'lease, T> {
    address: usize,
    length: usize,
    registration: &'lease T,
}

impl<'lease, T> Segment<'lease, T> {
    /// Where it is. A pointer, because a peer may be writing there: make no reference of it while one may.
    pub fn address(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Bytes, at least one.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The registration: what transfers name this memory by.
    pub fn registration(&self) -> &'lease T {
        self.registration
    }
}

impl<'lease, T> Segment<'lease, T> {
    /// What a region covers of the addresses from `from` to `last`; `from` moves behind it. `None` where the regions
    /// before cover that already.
    pub(crate) fn next(range: PageRange, registration: &'lease T, from: &mut usize, last: usize) -> Option<Self> {
        let address = (*from).max((range.start() * PAGE) as usize);
        let last = last.min(((range.end() - 1) * PAGE + (PAGE - 1)) as usize);
        // Two regions of different rights can cover the same pages: what one gave is not given twice. After the last
        // byte of all nothing is left to give.
        let given = address <= last;
        if given {
            *from = last.saturating_add(1);
        }
        given.then(|| Self { address, length: last - address + 1, registration })
    }
}

impl<T> fmt::Debug for Segment<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:#x}, {} bytes)", self.address, self.length)
    }
}

/// See [`Lease::segments`].
pub struct Segments<'lease, R: Registrar> {
    shared: &'lease Shared<R>,
    first: Option<&'lease Hold>,
    rest: std::slice::Iter<'lease, Hold>,
    /// What was not given yet: its first byte and its last one, for the end of the address space has no number.
    address: usize,
    last: usize,
}

impl<'lease, R: Registrar> Segments<'lease, R> {
    pub(super) fn over(shared: &'lease Shared<R>, holds: &'lease [Hold], address: usize, length: usize) -> Self {
        Self { shared, first: None, rest: holds.iter(), address, last: address + (length - 1) }
    }
}

impl<'lease, R: Registrar> Iterator for Segments<'lease, R> {
    type Item = Segment<'lease, R::Registration>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let hold = self.first.take().or_else(|| self.rest.next())?;
            let record = &self.shared.records[hold.id];
            // SAFETY: the region is held for as long as the lease is borrowed.
            let registration = unsafe { record.registration() };
            let segment = Segment::next(record.range(), registration, &mut self.address, self.last);
            if segment.is_some() {
                return segment;
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(usize::from(self.first.is_some()) + self.rest.len()))
    }
}
