//! Monitors: they report that memory changed under the regions of a cache.
//!
//! A registration means *pages*; a program means *addresses*. After an unmapping, a remapping or a discard the
//! address leads to other pages, or to none, while the registration still means the old ones. Used again, it loses
//! data silently. So every change of a mapping must reach the cache before the address can be used again. A
//! [`Monitor`] is such a source. It decides, on a miss, whether it would hear of changes to a range
//! ([`Monitor::watch`]); what no source watches is not cached.
//!
//! A monitor reports through [`Reports`], in this order, so that no use of an address that follows the
//! change can find the old region:
//!
//! 1. [`Reports::raise`]: from now on no look-up is served without the cache's lock. A holder of that lock looks at
//!    the flag before it uses anything.
//! 2. Only then the change is let happen, or be known to have happened (for userfaultfd: the event is read).
//! 3. [`Reports::apply`]: regions in the range, and those being registered, are hidden.
//! 4. [`Reports::lower`].

#[cfg(target_os = "linux")]
pub(crate) mod mappings;
mod own;
pub(crate) mod ranges;
#[cfg(target_os = "linux")]
mod seals;
#[cfg(target_os = "linux")]
mod userfaultfd;

#[cfg(target_os = "linux")]
pub use userfaultfd::Userfaultfd;

pub use crate::shared_memory::{SharedMemory, VouchError};

pub(crate) use own::OwnMonitor;

use crate::range::PageRange;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// A change to the pages of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The changed pages.
    pub range: PageRange,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// See [`Change`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeKind {
    /// The mapping is gone, or moved away; the address may lead to other pages already.
    Gone,
    /// The pages are about to go and it is not known when they are gone. Besides striking out the regions there,
    /// nothing is cached in the range for a while.
    Discarding,
}

/// The cache, as a monitor sees it. None of these allocates, frees, or waits for a lock.
pub trait Reports: Send + Sync {
    /// Look-ups take the lock from now on. Every call is paired with one of [`Reports::lower`].
    fn raise(&self);

    /// Hides the regions that the changes touch, and those being registered. Returns false, and does nothing, if the
    /// cache's lock is taken. Its holder may be waiting for this very monitor to read the next event, so read on and
    /// try again soon.
    #[must_use]
    fn apply(&self, changes: &[Change]) -> bool;

    /// Lowers the flag: the raised changes are dealt with.
    fn lower(&self);
}

/// A monitor's answer for a range that is about to be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Whatever changes in the range will be reported, from before this answer on.
    Watched,
    /// Changes would go unnoticed: the range is registered for one lease only.
    Unwatched(Unwatched),
}

/// Why a range is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unwatched {
    /// Part of the range is not mapped.
    #[error("part of the range is not mapped")]
    Unmapped,
    /// Part of the range may be neither read nor written, as address space that is reserved (`PROT_NONE`). It is not watched,
    /// however large it is, and a registrar that pins pages refuses it.
    #[error("part of the range is mapped without access rights, as reserved address space is")]
    NoAccess,
    /// A mapping of a regular file, which can be truncated.
    #[error("it is a mapping of a file, and truncation of a file goes unnoticed")]
    File,
    /// Shared memory that has a file descriptor or a System V identifier.
    #[error("it is shared memory that can be truncated, punched or detached unnoticed")]
    SharedMemory,
    /// A memfd without the seals that [`SharedMemory::Sealed`] asks for.
    #[error("it is a memfd that is not sealed: add F_SEAL_SHRINK, and F_SEAL_FUTURE_WRITE or F_SEAL_WRITE")]
    Unsealed,
    /// A memfd to which no file descriptor of the process leads.
    #[error(
        "it is a memfd, and no file descriptor of the process tells its seals: keep one open, or call Cache::vouch before it is closed"
    )]
    NoDescriptor,
    /// A device's memory and the like.
    #[error("it is special memory (a device, the kernel's own pages)")]
    Special,
    /// The mapping belongs to another userfaultfd: that of a cache that was given one of its own, or of another part of the
    /// program.
    #[error(
        "the mapping is watched by another userfaultfd already; caches over the same memory share one (the default, or \
         clones of one `Userfaultfd`)"
    )]
    Taken,
    /// Shared memory that is watched since a moment ago: a discard (`MADV_REMOVE`) that began before would go unnoticed.
    #[error("it is shared memory that is watched since a moment ago, and a discard may have begun before")]
    Young,
    /// The system refused.
    #[error("the system refused to watch the mapping (errno {0})")]
    Refused(i32),
}

impl Unwatched {
    /// Returns whether it stays so until the memory changes.
    pub(crate) fn lasts(self) -> bool {
        match self {
            Self::NoAccess | Self::File | Self::SharedMemory | Self::Special | Self::Taken => true,
            Self::Unmapped | Self::Unsealed | Self::NoDescriptor | Self::Young | Self::Refused(_) => false,
        }
    }
}

/// A source of invalidation.
///
/// # Safety
///
/// Where a monitor [vouches](Monitor::vouches) for what it says, safe code is served by cached registrations
/// ([`Cache::with_slice`](crate::Cache::with_slice)). A registration that outlives its memory unnoticed would let a
/// device write to what is another's by then. So an implementation promises that
///
/// * [`Monitor::vouches`] always gives the same answer, and if that is yes,
/// * after [`Monitor::watch`] answered [`Watch::Watched`], whatever takes pages of the range away from their
///   addresses is reported, in the order that the [module](self) states. That holds until the range is unwatched as
///   often as it was watched, or the monitor is stopped. The type's documentation lists the unseen changes; programs
///   that use the type answer for not making them.
///
/// A monitor that does not vouch promises nothing: callers of the unsafe acquire functions answer for the changes that
/// it misses.
///
/// # Callers
///
/// Only the cache that a monitor was [given](crate::cache::Builder::monitor) to calls it. An `unwatch` of another
/// user's range makes it deaf, and with it all that share its source. So the calls are unsafe. A caller keeps a
/// monitor for one cache: its own, or, for a monitor that wraps another, the cache whose calls it passes on. An
/// implementation may have them as safe functions, if it does not rely on this.
#[expect(unsafe_code, reason = "what it promises is what safe functions rest on")]
pub unsafe trait Monitor: Send + Sync + 'static {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Begins to report. Called once, before the first [`Monitor::watch`].
    ///
    /// # Errors
    /// What the system refuses.
    ///
    /// # Safety
    /// The caller [uses it for one cache](Monitor#callers), and the reports go to that cache.
    unsafe fn start(&self, reports: Arc<dyn Reports>) -> io::Result<()>;

    /// Asked before a range is registered and never with a lock held: will changes be reported?
    ///
    /// # Safety
    /// The caller [uses it for one cache](Monitor#callers).
    unsafe fn watch(&self, range: PageRange) -> Watch;

    /// Returns whether [`Watch::Watched`] means that changes are found out, and not that the program promised to tell
    /// of them. Where it is a promise, the cache's safe functions do not rely on it.
    fn vouches(&self) -> bool {
        true
    }

    /// Returns the shortest [`discard_grace`](crate::cache::Builder::discard_grace) that it can be used with: a cache is not
    /// built with less. Default: 10 ms where it vouches, because what it reports as [`ChangeKind::Discarding`] is not over yet;
    /// nothing where it does not. A monitor that reports discards when they are done, or none, may say nothing.
    fn least_grace(&self) -> Duration {
        if self.vouches() { Duration::from_millis(10) } else { Duration::ZERO }
    }

    /// Returns the bounds of the watched mapping that holds a page of 4 KiB. None where they are not known, or it is no private anonymous
    /// memory. It does not ask the system: before Linux 6.11 that reads a list of all mappings. Never called with a lock held. Default: none.
    fn private_mapping(&self, page: u64) -> Option<PageRange> {
        let _ = page;
        None
    }

    /// States which named shared memory the cache keeps registered. Called once at most, before [`Monitor::start`]. Default: it is
    /// ignored, for monitors to which all memory is the same.
    fn set_shared_memory(&self, shared: SharedMemory) {
        let _ = shared;
    }

    /// Reads the seals of a file descriptor, for mappings of its memory that are asked for later. See
    /// [`Cache::vouch`](crate::Cache::vouch). Default: an error.
    ///
    /// # Errors
    /// [`VouchError`]: the memory is not sealed, or the monitor has no use for it.
    fn vouch(&self, fd: BorrowedFd<'_>) -> Result<(), VouchError> {
        Err(VouchError::Monitor { fd: fd.as_raw_fd(), monitor: self.name() })
    }

    /// A region that was watched is deregistered. Never called with a lock held.
    ///
    /// # Safety
    /// The caller [uses it for one cache](Monitor#callers). [`Monitor::watch`] returned [`Watch::Watched`] for this
    /// very range once more often than the caller called this for it. The caller relies on that answer no more.
    unsafe fn unwatch(&self, range: PageRange) {
        let _ = range;
    }

    /// Reports no more: the cache is going. Returns when no report is under way any longer.
    ///
    /// # Safety
    /// The caller [uses it for one cache](Monitor#callers), and relies on no answer of it any more.
    unsafe fn stop(&self) {}
}

/// The program itself reports: it calls `Cache::invalidate` around whatever
/// changes a mapping. Exact and free of cost, and every range is cached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explicit;

// SAFETY: `vouches` returns false, so it promises nothing: callers report every change.
#[expect(unsafe_code, reason = "the trait asks for a promise")]
unsafe impl Monitor for Explicit {
    fn name(&self) -> &'static str {
        "explicit"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, _: PageRange) -> Watch {
        Watch::Watched
    }

    fn vouches(&self) -> bool {
        false
    }
}
