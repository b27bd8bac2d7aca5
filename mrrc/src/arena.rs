//! Memory that a cache owns, so that it can be acquired in safe code.
//!
//! [`Cache::acquire`](crate::Cache::acquire) is unsafe because the memory may be freed, or referenced, while a device or a peer accesses it.
//! With an [`Arena`] neither can happen: it alone unmaps its memory, and gives out copies of bytes and pointers, never
//! references. As no other code changes the mapping, no monitor is needed: hits and misses are exact, under every
//! monitor.
//!
//! # The end of an arena
//!
//! A [`Lease`] of an arena is a lease like any other, and may outlive the arena. Its
//! [address](Lease::address) leads to the arena's memory for as long as the lease lives. So when an arena is dropped,
//!
//! 1. nothing of it is found any more: its regions leave the cache, and from then on nothing there is cached;
//! 2. what no lease has is deregistered, at once;
//! 3. the memory is unmapped if no lease has any of it. Otherwise it waits as a pending unmap, and is unmapped after
//!    the deregistration of the last lease's regions: by the thread that deregisters next (`state/reclaimer.rs`).
//!
//! A lease's slot marks the memory of its region as in use. So a hit in an arena costs no more than any other: no
//! count is kept.
#![expect(unsafe_code, reason = "it takes its memory out when it is dropped")]

use crate::access::Access;
use crate::error::{AcquireError, OutsideArena, Unusable};
use crate::lease::{self, Lease};
use crate::memory::{Kind, MapError, Memory};
use crate::range::PAGE;
use crate::reclaim;
use crate::registrar::Registrar;
use crate::state::shared::Shared;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Memory that a cache owns. From [`Cache::arena`](crate::Cache::arena).
///
/// It is private to this process unless it is [shared](crate::Cache::shared_arena), zeroed, and touched by the system when it is first written or registered. Parts of it
/// are acquired by their offsets; what lies where is the caller's choice.
///
/// ```
/// use mrrc::testing::NoopRegistrar;
/// use mrrc::{Access, Cache};
///
/// let cache = Cache::builder(NoopRegistrar::default()).monitor(mrrc::invalidation::Explicit).build()?;
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
/// A peer that was given a key with remote rights can use it until the region has left the cache. That may be after
/// the lease ended. Its accesses by then are still to this arena, and not to a later mapping at the address. A region
/// is deregistered before its memory is unmapped. Do not put into an arena what peers with a key must not see.
///
/// Dropping an arena deregisters and unmaps, so it takes system calls. Memory of it that leases still have is unmapped
/// after the last of them ended.
///
/// An arena outlives its cache, but nothing more of it is acquired then ([`Unusable::Closed`]). In a child that was
/// forked meanwhile it has a copy of the memory, which stays mapped. Of a shared arena it has
/// the memory itself.
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
        /// The requested size.
        bytes: usize,
    },
    /// The system has no memory for it.
    #[error("arena of {bytes} bytes: {source}: ask for less, or raise RLIMIT_AS (ulimit -v)")]
    Memory {
        /// The requested size.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// See [`Unusable`].
    #[error("arena: {0}")]
    Unusable(#[from] Unusable),
}

impl<R: Registrar> Arena<R> {
    pub(crate) fn new(shared: &Arc<Shared<R>>, bytes: usize, kind: Kind) -> Result<Self, ArenaError> {
        let unit = usize::try_from(shared.settings.unit.saturating_mul(PAGE)).unwrap_or(usize::MAX);
        let memory = Memory::map(bytes, unit, kind).map_err(|error| match error {
            MapError::Size => ArenaError::Size { bytes },
            MapError::System(source) => ArenaError::Memory { bytes, source },
        })?;
        let arena = Self { shared: shared.clone(), memory: ManuallyDrop::new(memory) };
        // If the memory here was unmapped without a report, that ends now.
        let mut state = shared.lock()?;
        state.invalidate(&shared.tables, arena.memory.pages());
        drop(state);
        shared.wake_background();
        Ok(arena)
    }

    /// Bytes in the arena: what was asked for, rounded up to whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the first byte. Make no reference of it while a transfer or another thread may write what it refers to.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Returns the file descriptor of a [shared](crate::Cache::shared_arena) arena, to be sent to other processes. None of another arena, and
    /// where the program has closed it.
    ///
    /// They can map it to read it, for longer than the arena lives. They can neither write it, nor cut it short or punch it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.fd()
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
        let address = self.memory.at(start, end).ok_or_else(|| self.outside(start, end))?;
        let pages = self.memory.pages();
        let lease = lease::acquire(&self.shared, address.expose_provenance(), length, access, Some(pages))?;
        if self.shared.settings.divided(access).0.is_remote() && !lease.lies_within(pages) {
            // The arena was registered together with its neighbours: safe code cannot get a key to that. The memory
            // is registered by itself, for this lease.
            drop(lease);
            return lease::acquire_aside(&self.shared, address.expose_provenance(), length, access, pages);
        }
        Ok(lease)
    }

    /// Copies bytes out of the arena. Bytes that a transfer or another thread writes meanwhile are each the old or the
    /// new one.
    ///
    /// # Errors
    /// [`OutsideArena`]; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutsideArena> {
        self.memory.read(offset, into).ok_or_else(|| self.outside(offset, offset.saturating_add(into.len())))
    }

    /// Copies bytes into the arena. A concurrent reader finds each the old or the new one.
    ///
    /// # Errors
    /// [`OutsideArena`]; nothing is copied then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), OutsideArena> {
        self.memory.write(offset, from).ok_or_else(|| self.outside(offset, offset.saturating_add(from.len())))
    }

    fn outside(&self, start: usize, end: usize) -> OutsideArena {
        OutsideArena { start, end, bytes: self.len() }
    }
}

impl<R: Registrar> Drop for Arena<R> {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing looks at it afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if self.shared.tables.gate.is_forked() {
            // The arena may be the last that has its parent's state: the registrar's end must not deregister anything.
            std::mem::forget(self.shared.clone());
        }
        reclaim::give_up(&self.shared, memory);
    }
}

impl<R: Registrar> fmt::Debug for Arena<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({:p}, {} bytes)", self.as_ptr(), self.len())
    }
}
