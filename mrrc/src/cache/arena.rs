//! Memory that a cache owns, so that it can be acquired in safe code.
//!
//! What makes [`Cache::acquire`] unsafe is that somebody may free the memory, or have references to it, while a device
//! or a peer is at it. Nobody can do either with an [`Arena`]: it alone unmaps its memory, and gives out copies of
//! bytes and pointers, never references. As nobody else changes the mapping, nobody has to watch it: hits and misses are
//! exact, under every monitor.
//!
//! # The end of an arena
//!
//! A [`Lease`] of an arena is a lease like any other, and may outlive the arena. Its
//! [address](Lease::address) leads to the arena's memory for as long as the lease lives. So when an arena is dropped,
//!
//! 1. nothing of it is found any more: its regions leave the cache, and from then on nothing there is cached;
//! 2. what no lease has is deregistered, at once;
//! 3. the memory is unmapped if no lease has any of it. Otherwise it waits among the *orphans*, and is unmapped after
//!    the deregistration of what the last lease had: by whoever deregisters next (`leave.rs`).
//!
//! What says that a lease has memory is the slot that says that it has a region, so a hit in an arena costs no more
//! than any other: no count is kept.
//!
//! # Bytes that others write
//!
//! A transfer may write bytes while a thread reads them, and any number of threads may read and write the same bytes
//! of an arena. Threads of this program must not race in Rust's memory model, where volatile accesses are as good as
//! plain ones; what does not race are atomics. So every access of this module is atomic, relaxed, and *one byte*
//! wide: accesses of different widths would race again. What is read can be torn: some bytes old, some new. Devices and
//! the kernel are outside of that model, and their writes are such bytes to it.
//!
//! A loop over atomic bytes copies one at a time: about 1 GB/s. On x86-64 the same accesses are made by one instruction,
//! `rep movsb`, at about 20 GB/s, half to all of what `memcpy` does. No compiler looks into it, and byte by byte is what it
//! promises.
#![expect(unsafe_code, reason = "it owns a mapping, and copies bytes that others may write")]

use super::error::{AcquireError, Unusable};
use super::lease::Lease;
use super::shared::Shared;
use crate::access::Access;
use crate::range::{PAGE, PageRange};
use crate::registrar::Registrar;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes in a huge page, where the system has such.
const HUGE: usize = 2 << 20;

/// Memory that a cache owns. From [`Cache::arena`](crate::Cache::arena).
///
/// It is private to this process, zeroed, and touched by the system when it is first written or registered. Parts of it
/// are acquired by their offsets; what lies where is the caller's choice.
///
/// ```
/// use mrrc::registrar::model::Dummy;
/// use mrrc::{Access, Cache};
///
/// let cache = Cache::builder(Dummy::default()).monitor(mrrc::invalidation::Explicit).build()?;
/// let arena = cache.arena(1 << 20)?;
/// arena.write_at(4096, b"to be sent")?;
/// let lease = arena.acquire(4096..4106, Access::LOCAL_READ)?;
/// for segment in lease.segments() {
///     println!("{:p} {} {:?}", segment.address(), segment.len(), segment.registration());
/// }
/// drop(lease);
/// let mut back = [0; 10];
/// arena.read_at(4096, &mut back)?;
/// assert_eq!(&back, b"to be sent");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A peer that was given a key with remote rights can use it until the region has left the cache, which may be after the
/// lease ended. What it reads and writes by then is still this arena, and not what another has made of the address:
/// a region is deregistered before its memory is unmapped. Do not put into an arena what peers with a key must not see.
///
/// Dropping an arena deregisters and unmaps, so it takes system calls. Memory of it that leases still have is unmapped
/// after the last of them ended.
///
/// An arena outlives its cache, but nothing more of it is acquired then ([`Unusable::Closed`]). In a child that was
/// forked meanwhile it has a copy of the memory, which stays mapped.
pub struct Arena<R: Registrar> {
    shared: Arc<Shared<R>>,
    /// Given up by `drop`.
    memory: ManuallyDrop<Memory>,
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No arena has such a size.
    #[error("arena of {bytes} bytes: ask for one byte at least, and for less than the address space")]
    Size {
        /// What was asked for.
        bytes: usize,
    },
    /// The system has no memory for it.
    #[error("arena of {bytes} bytes: {source}: ask for less, or raise RLIMIT_AS (ulimit -v)")]
    Memory {
        /// What was asked for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// See [`Unusable`].
    #[error("arena: {0}")]
    Unusable(#[from] Unusable),
}

/// These bytes are not all in the arena, or end before they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} of an arena that has {bytes}: {}", if start > end {
    "the range ends before it begins"
} else {
    "stay inside of it, or make it larger"
})]
pub struct OutsideArena {
    /// The first byte that was asked for.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Bytes in the arena.
    pub bytes: usize,
}

impl<R: Registrar> Arena<R> {
    pub(super) fn new(shared: &Arc<Shared<R>>, bytes: usize, huge: bool) -> Result<Self, ArenaError> {
        let unit = usize::try_from(shared.terms.unit.saturating_mul(PAGE)).unwrap_or(usize::MAX);
        let memory = Memory::map(bytes, unit, huge)?;
        let arena = Self { shared: shared.clone(), memory: ManuallyDrop::new(memory) };
        // If somebody unmapped what was here and did not say so, that ends now.
        let mut books = shared.lock()?;
        books.invalidate(shared.desk(), arena.memory.pages());
        drop(books);
        shared.work.notify_one();
        Ok(arena)
    }

    /// Bytes in the arena: what was asked for, rounded up to whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.memory.bytes
    }

    /// The first byte. Make no reference of it while a transfer or another thread may write what it refers to.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.base.as_ptr()
    }

    /// Registers these bytes, with these rights at least, until the lease is dropped: see
    /// [`Cache::acquire`](crate::Cache::acquire), which this is the safe form of.
    ///
    /// # Errors
    /// [`AcquireError::Outside`], also for a range that ends before it begins, [`AcquireError::Range`] for no bytes, and all that `acquire` has.
    #[inline]
    pub fn acquire(&self, range: impl RangeBounds<usize>, access: Access) -> Result<Lease<R>, AcquireError> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        let length = end.saturating_sub(start);
        let address = self.memory.at(start, end)?;
        let pages = self.memory.pages();
        let lease = self.shared.acquire(address.expose_provenance(), length, access, Some(pages))?;
        if access.is_remote() && !lease.lies_within(pages) {
            // Somebody registered the arena together with what lies beside it: a key to that is not to be had in safe
            // code. The memory is registered by itself, for this lease.
            drop(lease);
            return self.shared.acquire_aside(address.expose_provenance(), length, access, pages);
        }
        Ok(lease)
    }

    /// Copies bytes out of the arena. Bytes that a transfer or another thread writes meanwhile are each the old or the
    /// new one.
    ///
    /// # Errors
    /// [`OutsideArena`]; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutsideArena> {
        let from = self.memory.at(offset, offset.saturating_add(into.len()))?;
        // SAFETY: the bytes are in the mapping, and no reference leads there.
        unsafe { load(from, into) };
        Ok(())
    }

    /// Copies bytes into the arena. Who reads them meanwhile finds each the old or the new one.
    ///
    /// # Errors
    /// [`OutsideArena`]; nothing is copied then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), OutsideArena> {
        let to = self.memory.at(offset, offset.saturating_add(from.len()))?;
        // SAFETY: the bytes are in the mapping, and no reference leads there.
        unsafe { store(from, to) };
        Ok(())
    }
}

impl<R: Registrar> Drop for Arena<R> {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing looks at it afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if self.shared.gate.is_forked() {
            // The arena may be the last that has its parent's state: the registrar's end must not deregister anything.
            std::mem::forget(self.shared.clone());
        }
        self.shared.give_up(memory);
    }
}

impl<R: Registrar> fmt::Debug for Arena<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({:p}, {} bytes)", self.as_ptr(), self.len())
    }
}

/// A mapping, unmapped when it is dropped.
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to no thread, and whoever shares it accesses it by atomic bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps so many bytes, rounded up to and placed at multiples of what the registrar and the system call a page.
    fn map(bytes: usize, unit: usize, huge: bool) -> Result<Self, ArenaError> {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE as usize);
        let unit = unit.max(page).max(if huge { HUGE } else { 0 });
        let whole = bytes.checked_next_multiple_of(unit).filter(|&whole| whole > 0 && whole <= isize::MAX as usize);
        let Some((whole, room)) = whole.and_then(|whole| Some((whole, whole.checked_add(unit - page)?))) else {
            return Err(ArenaError::Size { bytes });
        };
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let Some(mapped) = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED) else {
            return Err(ArenaError::Memory { bytes, source: io::Error::last_os_error() });
        };
        let ahead = mapped.as_ptr().align_offset(unit);
        // SAFETY: `ahead` is less than `unit` and a multiple of a page, so all of this is in the mapping, which is ours
        // alone; what lies around the arena is given back.
        unsafe {
            let base = mapped.add(ahead);
            let rest = room - whole - ahead;
            if ahead > 0 {
                libc::munmap(mapped.as_ptr().cast(), ahead);
            }
            if rest > 0 {
                libc::munmap(base.as_ptr().add(whole).cast(), rest);
            }
            #[cfg(target_os = "linux")]
            if huge {
                // A hint: a system without huge pages refuses it.
                libc::madvise(base.as_ptr().cast(), whole, libc::MADV_HUGEPAGE);
            }
            Ok(Self { base, bytes: whole })
        }
    }

    /// The pages of the mapping.
    pub(super) fn pages(&self) -> PageRange {
        let start = self.base.as_ptr().expose_provenance() as u64 / PAGE;
        PageRange::between(start, start + self.bytes as u64 / PAGE)
    }

    /// Where these bytes are.
    #[inline(always)]
    fn at(&self, start: usize, end: usize) -> Result<*mut u8, OutsideArena> {
        if start > end || end > self.bytes {
            return Err(OutsideArena { start, end, bytes: self.bytes });
        }
        // SAFETY: inside of the mapping, or one past it.
        Ok(unsafe { self.base.as_ptr().add(start) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; it is dropped when nobody has its address any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Copies bytes by relaxed atomic loads.
///
/// # Safety
/// The bytes at `from` are mapped, and all other accesses to them are atomic and one byte wide.
unsafe fn load(from: *const u8, into: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as many bytes can be read, and written where the slice is. What it does is what the loop below does:
    // each byte is loaded once, atomically as every access to a byte is.
    unsafe {
        copy(from, into.as_mut_ptr(), into.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (offset, byte) in into.iter_mut().enumerate() {
        // SAFETY: by the contract.
        *byte = unsafe { atomic(from.cast_mut().add(offset)) }.load(std::sync::atomic::Ordering::Relaxed);
    }
}

/// Copies bytes by relaxed atomic stores.
///
/// # Safety
/// As [`load`], for the bytes at `to`, which can be written.
unsafe fn store(from: &[u8], to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as in `load`.
    unsafe {
        copy(from.as_ptr(), to, from.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (offset, byte) in from.iter().enumerate() {
        // SAFETY: by the contract.
        unsafe { atomic(to.add(offset)) }.store(*byte, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn atomic<'a>(byte: *mut u8) -> &'a std::sync::atomic::AtomicU8 {
    // SAFETY: by the caller's contract, all accesses to the byte are atomic as long as this is used.
    unsafe { std::sync::atomic::AtomicU8::from_ptr(byte) }
}

/// `rep movsb`. The direction flag is clear in Rust code.
///
/// # Safety
/// So many bytes can be read at `from` and written at `to`, and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: by the contract; it uses no stack and leaves the flags alone.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}
