//! A lease: memory that is registered for as long as the lease lives.
//!
//! A lease holds its regions by slots (or, where a thread has too many leases, by counts) and knows the
//! cache by a pointer, not by a count: that would be a line that all threads write. What keeps the cache's
//! shared state alive is the slot itself: a cache that is dropped while leases live leaves its state to a
//! thread that waits until the last slot is empty. So the store that empties the slot is the last thing that
//! a lease does with that state; the slot itself stays, and it looks there whether somebody is to be told.
#![expect(unsafe_code, reason = "leases point to the state that their slots keep alive")]

use super::hit::{self, Grip};
use super::shared::Shared;
use super::slots::Slot;
use crate::count::Count;
use crate::range::{PAGE, PageRange};
use crate::regions::RegionId;
use crate::registrar::Registrar;
use std::fmt;
use std::num::NonZero;
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
#[must_use = "the memory may leave when this is dropped"]
pub struct Lease<R: Registrar> {
    shared: NonNull<Shared<R>>,
    address: usize,
    length: usize,
    /// A [`Hold`]; or, with [`SEVERAL`] in the address, a boxed list of them. One word, so that a lease is nothing but
    /// registers, and dropping the usual one a test and a store, which the compiler puts in the place of the call.
    held: NonNull<Slot>,
}

/// One region, held: by a slot, which names it as long as it is held. Or it is counted in the region, and this is no
/// address but its name, with [`COUNTED`] in the bits below.
#[repr(transparent)]
pub(super) struct Hold(NonNull<Slot>);

/// Bits that are 0 in the address of a slot.
const TAGS: usize = 0b11;
const COUNTED: NonZero<usize> = NonZero::<usize>::MIN;
const SEVERAL: usize = 0b10;
const TAG_BITS: u32 = 2;
const _: () = assert!(align_of::<Slot>() > TAGS && align_of::<Vec<Hold>>() > TAGS);

// SAFETY: what a lease points to is shared by all threads of the cache, and slots are atomics that whoever drops
// the lease may empty.
unsafe impl<R: Registrar> Send for Lease<R> {}
// SAFETY: a shared lease shows registrations, which are `Sync`.
unsafe impl<R: Registrar> Sync for Lease<R> {}

impl Hold {
    /// By a slot, which names the region.
    #[inline(always)]
    pub(super) fn by(slot: &'static Slot) -> Self {
        Self(NonNull::from(slot))
    }

    #[inline(always)]
    pub(super) fn new(id: RegionId, grip: Grip) -> Self {
        match grip {
            Grip::Slot(slot) => Self::by(slot),
            Grip::Counted => Self(NonNull::dangling().map_addr(|_| COUNTED | (id.raw() as usize) << TAG_BITS)),
        }
    }

    fn is_counted(&self) -> bool {
        self.0.addr().get() & TAGS == COUNTED.get()
    }

    /// The region. Asked while it is held.
    pub(super) fn id(&self) -> RegionId {
        let name = if self.is_counted() {
            (self.0.addr().get() >> TAG_BITS) as u32
        } else {
            // SAFETY: it is a slot, and slots are never freed.
            unsafe { self.0.as_ref() }.name()
        };
        let Some(id) = RegionId::from_raw(name) else { unreachable!("a hold names its region until it ends") };
        id
    }

    /// Ends the hold.
    ///
    /// # Safety
    /// It is called once, and nothing of the shared state is touched on this hold's account afterwards.
    pub(super) unsafe fn end<R: Registrar>(&self, shared: NonNull<Shared<R>>) {
        if self.is_counted() {
            let id = self.id();
            // SAFETY: the shared state lives as long as the region is counted.
            let shared = unsafe { shared.as_ref() };
            if shared.gate.is_forked() {
                // The count is that of the parent's books, which are never used here.
                return;
            }
            hit::let_go_counted(&shared.records[id], id.raw(), shared.work);
        } else {
            // SAFETY: it is a slot, and slots are never freed.
            unsafe { self.0.as_ref() }.let_go();
        }
    }
}

impl<R: Registrar> Lease<R> {
    #[inline(always)]
    pub(super) fn one(shared: &Shared<R>, address: usize, length: usize, hold: Hold) -> Self {
        Self { shared: NonNull::from(shared), address, length, held: hold.0 }
    }

    /// The holds are in the order of their addresses.
    pub(super) fn of(shared: &Shared<R>, address: usize, length: usize, holds: Vec<Hold>) -> Self {
        let several = NonNull::from(Box::leak(Box::new(holds))).cast::<Slot>();
        Self { shared: NonNull::from(shared), address, length, held: several.map_addr(|address| address | SEVERAL) }
    }

    /// Boxed by `of`; null where there is but one hold.
    #[inline]
    fn several(held: NonNull<Slot>) -> *mut Vec<Hold> {
        if held.addr().get() & TAGS == SEVERAL {
            held.as_ptr().map_addr(|address| address & !TAGS).cast()
        } else {
            std::ptr::null_mut()
        }
    }

    fn holds(&self) -> &[Hold] {
        // SAFETY: null, or boxed by `of` and not freed before the lease is dropped.
        match unsafe { Self::several(self.held).as_ref() } {
            Some(several) => several,
            // SAFETY: a hold is that pointer and nothing else, and this is one.
            None => std::slice::from_ref(unsafe { &*(&raw const self.held).cast::<Hold>() }),
        }
    }

    /// Ends the holds of a lease that has not just a slot. Takes what it needs and not the lease, which can stay in
    /// registers then.
    ///
    /// # Safety
    /// It is called once, by `drop`.
    #[cold]
    #[inline(never)]
    unsafe fn end_unusual(shared: NonNull<Shared<R>>, held: NonNull<Slot>) {
        let several = Self::several(held);
        if several.is_null() {
            // SAFETY: only `drop` ends a lease's holds, and this is the last thing that it does.
            return unsafe { Hold(held).end(shared) };
        }
        // SAFETY: it is not null, so `of` boxed it, and a lease is dropped once.
        for hold in unsafe { Box::from_raw(several) }.iter() {
            // SAFETY: as above; each keeps the shared state alive until its turn.
            unsafe { hold.end(shared) }
        }
    }

    /// Whether all its regions lie in the range.
    pub(super) fn lies_within(&self, range: PageRange) -> bool {
        // SAFETY: the slots of this lease keep the shared state alive.
        let shared = unsafe { self.shared.as_ref() };
        self.holds().iter().all(|hold| range.contains(shared.records[hold.id()].range()))
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
        let holds = if shared.gate.is_forked() { &[] } else { self.holds() };
        Segments::over(shared, holds, self.address, self.length)
    }
}

impl<R: Registrar> Drop for Lease<R> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.held.addr().get() & TAGS == 0 {
            // SAFETY: it is a slot, and slots are never freed. Nobody else ends this hold, and it is the last thing that a
            // lease does.
            unsafe { self.held.as_ref() }.let_go();
        } else {
            // SAFETY: a lease is dropped once.
            unsafe { Self::end_unusual(self.shared, self.held) }
        }
    }
}

impl<R: Registrar> fmt::Debug for Lease<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Count(self.holds().len() as u64, "parts");
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
    holds: std::slice::Iter<'lease, Hold>,
    /// What was not given yet: its first byte and its last one, for the end of the address space has no number.
    address: usize,
    last: usize,
}

impl<R: Registrar> fmt::Debug for Segments<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").field("address", &self.address).field("last", &self.last).finish_non_exhaustive()
    }
}

impl<'lease, R: Registrar> Segments<'lease, R> {
    pub(super) fn over(shared: &'lease Shared<R>, holds: &'lease [Hold], address: usize, length: usize) -> Self {
        Self { shared, holds: holds.iter(), address, last: address + (length - 1) }
    }
}

impl<'lease, R: Registrar> Iterator for Segments<'lease, R> {
    type Item = Segment<'lease, R::Registration>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let hold = self.holds.next()?;
            let record = &self.shared.records[hold.id()];
            // SAFETY: the region is held for as long as the lease is borrowed.
            let registration = unsafe { record.registration() };
            let segment = Segment::next(record.range(), registration, &mut self.address, self.last);
            if segment.is_some() {
                return segment;
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.holds.len()))
    }
}
