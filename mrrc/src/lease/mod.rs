//! A lease: memory that is registered for as long as the lease lives.
//!
//! A lease holds its regions by slots (or, where a thread has too many leases, by counts). It refers to the cache by
//! a pointer, not by a count: that would be a line that all threads write. The slot itself keeps the cache's shared
//! state alive. A cache that is dropped while leases live leaves its state to a thread that waits until the last slot
//! is empty. So the store that empties the slot is the last thing that a lease does with that state. The slot itself
//! stays, and the lease looks there whether its end is to be reported.
#![expect(unsafe_code, reason = "leases point to the state that their slots keep alive")]

mod acquire;
mod checks;
mod pending;
mod windows;

pub(crate) use acquire::{acquire, acquire_aside, acquire_blocks};
pub(crate) use checks::needs_local_write;
pub use pending::PendingLease;
pub(crate) use pending::{grant, grant_group};
pub(crate) use windows::open;

use crate::error::NoKey;
use crate::hit::slots::Slot;
use crate::hit::{HitTables, HoldRef};
use crate::range::{PAGE, PageRange};
use crate::registrar::Registrar;
use crate::units::Count;
use smallvec::{SmallVec, smallvec};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::{fmt, io};
use windows::LeaseWindows;

/// Memory that stays registered until this is dropped.
///
/// It can be sent to and dropped on any thread. Dropping it is one store, and no system call; with windows for peers
/// ([`Remote::Windows`](crate::registrar::windows::Remote::Windows)) it also waits until the device has ended them. Regions in use are
/// never evicted. One that is invalidated while a lease has it is not found any more, and stays registered until the
/// lease ends.
///
/// The keys are lent by the lease, and cannot outlive it:
///
/// ```compile_fail,E0505
/// use mrrc::testing::NoopRegistrar;
/// use mrrc::{Access, Cache};
/// let cache = Cache::builder(NoopRegistrar::default()).build().unwrap();
/// let buffer = vec![0_u8; 4096];
/// let lease = unsafe { cache.acquire(buffer.as_ptr(), buffer.len(), Access::LOCAL) }.unwrap();
/// let segment = lease.segments().next().unwrap();
/// drop(lease);
/// println!("{:?}", segment.registration());
/// ```
#[must_use = "the memory may leave when this is dropped"]
pub struct Lease<R: Registrar> {
    tables: NonNull<HitTables<R::Registration>>,
    address: usize,
    length: usize,
    /// A [`HoldRef`]; or, with [`SEVERAL`] in the address, a boxed [`Parts`]. One word, so that a lease is nothing
    /// but registers. Dropping the usual one is a test and a store, which the compiler puts in the place of the call.
    held: NonNull<Slot>,
}

/// Marks the address of boxed parts, where a lease has several holds, or windows.
const SEVERAL: usize = 0b10;
const _: () = assert!(HoldRef::TAGS & SEVERAL != 0 && align_of::<Parts<()>>() > HoldRef::TAGS);

/// The holds of a lease, in the order of their addresses, and its windows.
struct Parts<T> {
    holds: Vec<HoldRef>,
    windows: Option<LeaseWindows<T>>,
}

// SAFETY: what a lease points to is shared by all threads of the cache, and slots are atomics that any thread
// that drops the lease may empty.
unsafe impl<R: Registrar> Send for Lease<R> {}
// SAFETY: a shared lease shows registrations, which are `Sync`.
unsafe impl<R: Registrar> Sync for Lease<R> {}

impl<R: Registrar> Lease<R> {
    #[inline(always)]
    pub(crate) fn one(tables: &HitTables<R::Registration>, address: usize, length: usize, hold: HoldRef) -> Self {
        Self { tables: NonNull::from(tables), address, length, held: hold.pointer() }
    }

    /// The holds are in the order of their addresses.
    pub(crate) fn of(tables: &HitTables<R::Registration>, address: usize, length: usize, holds: Vec<HoldRef>) -> Self {
        let held = Self::boxed(Parts { holds, windows: None });
        Self { tables: NonNull::from(tables), address, length, held }
    }

    fn boxed(parts: Parts<R::Registration>) -> NonNull<Slot> {
        NonNull::from(Box::leak(Box::new(parts))).cast::<Slot>().map_addr(|address| address | SEVERAL)
    }

    /// Returns it with the windows of its segments.
    fn with_windows(mut self, windows: LeaseWindows<R::Registration>) -> Self {
        let several = Self::several(self.held);
        // SAFETY: null, or boxed by this lease, which is not shared yet.
        match unsafe { several.as_mut() } {
            Some(parts) => parts.windows = Some(windows),
            None => {
                // From here on the box has the hold, in the place of this lease.
                let holds = vec![HoldRef::from_pointer(self.held)];
                self.held = Self::boxed(Parts { holds, windows: Some(windows) });
            }
        }
        self
    }

    /// Returns its holds. It has no windows.
    fn into_holds(self) -> SmallVec<[HoldRef; 2]> {
        let lease = ManuallyDrop::new(self);
        let several = Self::several(lease.held);
        if several.is_null() {
            return smallvec![HoldRef::from_pointer(lease.held)];
        }
        // SAFETY: it is not null, so `boxed` made it, and the lease is not dropped any more.
        let parts = unsafe { Box::from_raw(several) };
        debug_assert!(parts.windows.is_none(), "windows would stay bound");
        SmallVec::from_vec(parts.holds)
    }

    /// Its box; null where there is but one hold.
    #[inline]
    fn several(held: NonNull<Slot>) -> *mut Parts<R::Registration> {
        if held.addr().get() & HoldRef::TAGS == SEVERAL {
            held.as_ptr().map_addr(|address| address & !HoldRef::TAGS).cast()
        } else {
            std::ptr::null_mut()
        }
    }

    fn holds(&self) -> &[HoldRef] {
        // SAFETY: null, or boxed by `boxed` and not freed before the lease is dropped.
        match unsafe { Self::several(self.held).as_ref() } {
            Some(several) => &several.holds,
            // SAFETY: a hold is that pointer and nothing else, and this is one.
            None => std::slice::from_ref(unsafe { &*(&raw const self.held).cast::<HoldRef>() }),
        }
    }

    /// Ends the holds of a lease that has not just a slot. Takes what it needs and not the lease, which can stay in
    /// registers then.
    ///
    /// # Safety
    /// It is called once, by `drop`.
    #[cold]
    #[inline(never)]
    unsafe fn end_unusual(tables: NonNull<HitTables<R::Registration>>, held: NonNull<Slot>) {
        let several = Self::several(held);
        if several.is_null() {
            // SAFETY: only `drop` ends a lease's holds, and this is the last thing that it does.
            return unsafe { HoldRef::from_pointer(held).end(tables) };
        }
        // SAFETY: it is not null, so `boxed` made it, and a lease is dropped once.
        let mut parts = unsafe { Box::from_raw(several) };
        if let Some(windows) = &mut parts.windows {
            // SAFETY: the holds of this lease keep the shared state alive.
            let is_forked = unsafe { tables.as_ref() }.gate.is_forked();
            if !is_forked && windows.end().is_err() {
                // Peers may use the windows: their regions stay registered for good.
                return;
            }
        }
        for hold in parts.holds.iter() {
            // SAFETY: `end` requires a hold that has not ended and live tables; each hold keeps the shared state alive
            // until its turn.
            unsafe { hold.end(tables) }
        }
    }

    /// Returns whether all its regions lie in the range.
    pub(crate) fn lies_within(&self, range: PageRange) -> bool {
        // SAFETY: the slots of this lease keep the shared state alive.
        let tables = unsafe { self.tables.as_ref() };
        self.holds().iter().all(|hold| range.contains(tables.records[hold.id()].range()))
    }

    /// Returns the address of the memory.
    pub fn address(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Bytes that were acquired, at least one.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the parts of the memory with their registrations, in the order of their addresses. One, unless
    /// several regions cover the memory together. None in a child that was forked meanwhile: the
    /// registrations are its parent's.
    pub fn segments(&self) -> Segments<'_, R> {
        // SAFETY: the slots of this lease keep the shared state alive.
        let tables = unsafe { self.tables.as_ref() };
        let holds = if tables.gate.is_forked() { &[] } else { self.holds() };
        Segments { windows: self.windows().iter(), ..Segments::over(tables, holds, self.address, self.length) }
    }

    /// Returns the keys of its windows.
    fn windows(&self) -> &[Option<u32>] {
        // SAFETY: null, or boxed by `boxed` and not freed before the lease is dropped.
        let parts = unsafe { Self::several(self.held).as_ref() };
        parts.and_then(|parts| parts.windows.as_ref()).map_or(&[], |windows| &windows.keys)
    }

    /// Ends the rights that windows give peers ([`Remote::Windows`](crate::registrar::windows::Remote::Windows)), and keeps the memory
    /// registered. Returns when their keys open nothing any more. A lease without windows has nothing to end, and in a forked child this does
    /// nothing: the windows are its parent's. The end of a lease does the same; where it fails, that leaves the memory registered for good.
    ///
    /// # Errors
    /// The device did not end a window: peers may still use its key. It can be tried again.
    pub fn end_windows(&mut self) -> io::Result<()> {
        // SAFETY: the holds of this lease keep the shared state alive.
        if unsafe { self.tables.as_ref() }.gate.is_forked() {
            return Ok(());
        }
        // SAFETY: null, or boxed by `boxed`; the lease is borrowed for itself alone, so nothing else refers to it.
        let parts = unsafe { Self::several(self.held).as_mut() };
        parts.and_then(|parts| parts.windows.as_mut()).map_or(Ok(()), LeaseWindows::end)
    }

    /// Returns the registration of these bytes, for a transfer that takes one key. The offset counts from the lease's first byte.
    ///
    /// # Errors
    /// [`NoKey::Straddles`] says where the bytes have to be divided.
    ///
    /// ```
    /// use mrrc::cache::NoKey;
    /// use mrrc::{Access, Cache, invalidation::Explicit, testing::NoopRegistrar};
    ///
    /// let cache = Cache::builder(NoopRegistrar::default()).monitor(Explicit).build()?;
    /// let arena = cache.arena(8 * 4096)?;
    /// drop(arena.acquire(..4096, Access::LOCAL)?); // one registration, and the next line makes another for the rest
    /// let lease = arena.acquire(.., Access::LOCAL)?;
    /// assert!(lease.key_for(0, 4096).is_ok() && lease.key_for(4096, 4096).is_ok());
    /// assert_eq!(lease.key_for(4000, 200).unwrap_err(), NoKey::Straddles { offset: 4000, end: 4200, at: 4096 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn key_for(&self, offset: usize, length: usize) -> Result<&R::Registration, NoKey> {
        self.segment_for(offset, length).map(|segment| segment.registration)
    }

    /// As [`Lease::key_for`], with the part of the lease that the registration has: it names the [window](Segment::window) as well.
    ///
    /// # Errors
    /// As [`Lease::key_for`].
    pub fn segment_for(&self, offset: usize, length: usize) -> Result<Segment<'_, R::Registration>, NoKey> {
        let end = offset.checked_add(length).filter(|&end| length > 0 && end <= self.length);
        let end = end.ok_or(NoKey::Outside { offset, length, bytes: self.length })?;
        for segment in self.segments() {
            let begin = segment.address - self.address;
            let at = begin + segment.length;
            if (begin..at).contains(&offset) {
                return if end <= at { Ok(segment) } else { Err(NoKey::Straddles { offset, end, at }) };
            }
        }
        Err(NoKey::Forked)
    }
}

impl<R: Registrar> Drop for Lease<R> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.held.addr().get() & HoldRef::TAGS == 0 {
            // SAFETY: it is a slot, and slots are never freed. No other code ends this hold, and it is the last thing that
            // a lease does.
            unsafe { self.held.as_ref() }.release();
        } else {
            // SAFETY: `end_unusual` takes the lease's holds once: a lease is dropped once.
            unsafe { Self::end_unusual(self.tables, self.held) }
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
    window: Option<u32>,
}

impl<'lease, T> Segment<'lease, T> {
    /// Returns the address. A pointer, because a peer may be writing there: make no reference of it while one may.
    pub fn address(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Bytes, at least one.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the registration: what transfers name this memory by.
    pub fn registration(&self) -> &'lease T {
        self.registration
    }

    /// Returns the key of the window by which peers reach exactly these bytes, until the lease ends. `None` where no window gives them rights: they
    /// were not asked for, or regions have them ([`Remote::Trusted`](crate::registrar::windows::Remote::Trusted)).
    pub fn window(&self) -> Option<u32> {
        self.window
    }
}

impl<'lease, T> Segment<'lease, T> {
    /// Returns the part of the addresses from `from` to `last` that a region covers; `from` moves behind it. `None`
    /// where the regions before cover that already.
    pub(crate) fn next(range: PageRange, registration: &'lease T, from: &mut usize, last: usize) -> Option<Self> {
        let address = (*from).max((range.start() * PAGE) as usize);
        let last = last.min(((range.end() - 1) * PAGE + (PAGE - 1)) as usize);
        // Two regions of different rights can cover the same pages: what one gave is not given twice. After the last
        // byte of all nothing is left to give.
        let given = address <= last;
        if given {
            *from = last.saturating_add(1);
        }
        given.then(|| Self { address, length: last - address + 1, registration, window: None })
    }
}

impl<T> fmt::Debug for Segment<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:#x}, {} bytes)", self.address, self.length)
    }
}

/// See [`Lease::segments`].
pub struct Segments<'lease, R: Registrar> {
    tables: &'lease HitTables<R::Registration>,
    holds: std::slice::Iter<'lease, HoldRef>,
    /// The keys of the windows, one for each segment that was not given yet. None where there are no windows.
    windows: std::slice::Iter<'lease, Option<u32>>,
    /// The rest that was not given yet: its first byte and its last one, because the end of the address space has no
    /// number.
    address: usize,
    last: usize,
}

impl<R: Registrar> fmt::Debug for Segments<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").field("address", &self.address).field("last", &self.last).finish_non_exhaustive()
    }
}

impl<'lease, R: Registrar> Segments<'lease, R> {
    pub(crate) fn over(
        tables: &'lease HitTables<R::Registration>,
        holds: &'lease [HoldRef],
        address: usize,
        length: usize,
    ) -> Self {
        Self { tables, holds: holds.iter(), windows: [].iter(), address, last: address + (length - 1) }
    }
}

impl<'lease, R: Registrar> Iterator for Segments<'lease, R> {
    type Item = Segment<'lease, R::Registration>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let hold = self.holds.next()?;
            let record = &self.tables.records[hold.id()];
            // SAFETY: the region is held for as long as the lease is borrowed.
            let registration = unsafe { record.registration() };
            let segment = Segment::next(record.range(), registration, &mut self.address, self.last);
            if let Some(segment) = segment {
                return Some(Segment { window: self.windows.next().copied().flatten(), ..segment });
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.holds.len()))
    }
}
