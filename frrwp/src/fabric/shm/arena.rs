//! Memory that peers can be let at: mapped from memory files, and given out in buffers.

use super::error::ShmError;
use super::link::Link;
use super::memory::Mapping;
use super::pool::Memory;
use super::registry::Registry;
use mrrc::volatile_copy as copy;
use mrrc::{PAGE, PageRange};
use rustix::fs::FallocateFlags;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Memory that connections of a domain can be let at. From [`ShmDomain::arena`](super::ShmDomain::arena), for all peers, or
/// [`ShmDomain::private_arena`](super::ShmDomain::private_arena), for those that it is [passed](super::ShmEndpoint::pass) to.
///
/// Each of these peers is passed the *whole* arena, and could, if it is hostile, read all of it, and write all of it
/// where it is [writable](super::Sharing::Writable), without asking for a key. Keys tell honest peers what they may do. Memory
/// that is not for all of these peers belongs into another arena, of another domain.
///
/// The memory stays mapped until arena, buffers and registrations of it are gone; registrations that a cache keeps go with
/// [`Cache::invalidate`](mrrc::Cache::invalidate).
pub struct ShmArena {
    memory: Arc<Memory>,
    registry: Registry,
}

/// No buffer of that size is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("buffer of {bytes} bytes: {}", if *kept > 0 {
    "no such piece of the arena is free, and stalled peers may still use some of it: end those processes, or make another arena"
} else {
    "no such piece of the arena is free: drop buffers, or make another arena"
})]
pub struct NoBuffer {
    /// The requested size.
    pub bytes: usize,
    /// Bytes that are not given out before peers that stalled are dead.
    pub kept: usize,
}

/// These bytes are not all there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes {start}..{end} of {bytes}: stay inside")]
pub struct Outside {
    /// The first byte that was asked for.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Bytes that there are.
    pub bytes: usize,
}

/// Why pages were not taken back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeBackError {
    /// Not in the arena.
    #[error(transparent)]
    Outside(#[from] Outside),
    /// Peers that did not stall may be at them.
    #[error(
        "pages {range} are registered for peers: invalidate them in the cache, and reap it, before they are taken back"
    )]
    Registered {
        /// The registration.
        range: PageRange,
    },
    /// The system has no memory for it.
    #[error("take pages back: {0}: free some memory")]
    Memory(#[from] io::Error),
}

impl ShmArena {
    pub(super) fn new(memory: Arc<Memory>, registry: Registry) -> Self {
        Self { memory, registry }
    }

    /// Bytes in the arena: what was asked for, rounded up to whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.memory.mapping.len()
    }

    /// Returns the first byte. Make no reference of it: peers may write.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.mapping.base()
    }

    /// Returns whole pages of the arena that are allocated to no other until the buffer is dropped. Those at which a stalled peer
    /// may still be are not given again before it is dead. A child of a fork gets none of its parent's: it makes an arena of its
    /// own.
    ///
    /// # Errors
    /// [`NoBuffer`].
    pub fn buffer(&self, bytes: usize) -> Result<ShmBuffer, NoBuffer> {
        let page = rustix::param::page_size().max(PAGE as usize);
        let none = |kept| NoBuffer { bytes, kept };
        if !self.memory.is_here() {
            return Err(none(0));
        }
        let whole = bytes.max(1).checked_next_multiple_of(page).ok_or(none(0))?;
        let start = self.memory.allocate(whole, || self.registry.quarantined()).map_err(none)?;
        Ok(ShmBuffer {
            memory: self.memory.clone(),
            registry: self.registry.clone(),
            start,
            bytes: bytes.max(1),
            whole,
        })
    }

    /// Copies bytes out. Bytes that others write meanwhile are each the old or the new one.
    ///
    /// # Errors
    /// [`Outside`]; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Outside> {
        read(&self.memory.mapping, 0, self.len(), offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Outside`]; nothing is copied then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Outside> {
        write(&self.memory.mapping, 0, self.len(), offset, from)
    }

    /// Passes the arena to a peer, if it is private and the peer does not have it.
    pub(super) fn pass_to(&self, link: &Arc<Link>) -> Result<(), ShmError> {
        self.registry.books().pass_to(&self.memory, link)
    }

    /// Gives these bytes back to the system, whole pages. They are zeros when either side touches them next.
    ///
    /// # Errors
    /// [`TakeBackError::Outside`], and [`TakeBackError::Memory`] with the system's error.
    pub fn clear(&self, bytes: Range<usize>) -> Result<(), TakeBackError> {
        let page = rustix::param::page_size().max(PAGE as usize);
        let is_whole = bytes.start.is_multiple_of(page) && bytes.end.is_multiple_of(page);
        if bytes.start >= bytes.end || bytes.end > self.len() || !is_whole {
            return Err(Outside { start: bytes.start, end: bytes.end, bytes: self.len() }.into());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let cleared = rustix::fs::fallocate(&self.memory.file, hole, bytes.start as u64, bytes.len() as u64);
        cleared.map_err(|error| TakeBackError::Memory(error.into()))
    }

    /// Makes the pages of these bytes private, with what they hold, at the same address: for memory that the application
    /// must have back though a peer that stalled may still be at it. The peer keeps the old pages. Private pages are not
    /// registered for peers any more. Bytes that others write while the pages change may be lost.
    ///
    /// # Errors
    /// [`TakeBackError`]; nothing has changed then.
    pub fn take_back(&self, bytes: Range<usize>) -> Result<(), TakeBackError> {
        if bytes.start >= bytes.end || bytes.end > self.len() {
            return Err(Outside { start: bytes.start, end: bytes.end, bytes: self.len() }.into());
        }
        let page = rustix::param::page_size().max(PAGE as usize);
        let whole = bytes.start - bytes.start % page..bytes.end.next_multiple_of(page);
        // First they are not offered any more, then they are seen not to be.
        self.memory.set_private(&whole, true);
        let done = match self.memory.pages(&whole).and_then(|pages| self.registry.living_in(pages)) {
            Some(range) => Err(TakeBackError::Registered { range }),
            None => self.memory.mapping.replace(whole.start, whole.len()).map_err(TakeBackError::Memory),
        };
        if done.is_err() {
            self.memory.set_private(&whole, false);
        }
        done
    }
}

impl fmt::Debug for ShmArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmArena({:p}, {} bytes, {:?})", self.as_ptr(), self.len(), self.memory.sharing)
    }
}

/// Pages of an arena. From [`ShmArena::buffer`].
///
/// Dropping it gives the pages back; end transfers that use it first.
pub struct ShmBuffer {
    memory: Arc<Memory>,
    registry: Registry,
    start: usize,
    bytes: usize,
    whole: usize,
}

impl ShmBuffer {
    /// Bytes that were asked for.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the first byte. Make no reference of it: peers may write.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.mapping.base().wrapping_add(self.start)
    }

    /// Copies bytes out. Bytes that others write meanwhile are each the old or the new one.
    ///
    /// # Errors
    /// [`Outside`]; nothing is copied then.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Outside> {
        read(&self.memory.mapping, self.start, self.bytes, offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Outside`]; nothing is copied then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Outside> {
        write(&self.memory.mapping, self.start, self.bytes, offset, from)
    }

    /// Returns whether a stalled peer may still be at some of these pages.
    pub fn is_quarantined(&self) -> bool {
        let pages = self.memory.pages(&(self.start..self.start + self.whole));
        pages.is_some_and(|pages| self.registry.quarantined().iter().any(|held| held.overlaps(pages)))
    }
}

impl Drop for ShmBuffer {
    fn drop(&mut self) {
        self.memory.free(self.start..self.start + self.whole, self.is_quarantined());
    }
}

impl fmt::Debug for ShmBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmBuffer({:p}, {} bytes)", self.as_ptr(), self.bytes)
    }
}

fn place(mapping: &Mapping, start: usize, bytes: usize, offset: usize, length: usize) -> Result<*mut u8, Outside> {
    let end = offset.saturating_add(length);
    let outside = Outside { start: offset, end, bytes };
    if end > bytes {
        return Err(outside);
    }
    mapping.at((start + offset) as u64, length as u64).ok_or(outside)
}

#[expect(unsafe_code, reason = "copies bytes that others may write")]
fn read(mapping: &Mapping, start: usize, bytes: usize, offset: usize, into: &mut [u8]) -> Result<(), Outside> {
    let from = place(mapping, start, bytes, offset, into.len())?;
    // SAFETY: both are as long, and no references lead to the mapping.
    unsafe { copy(from, into.as_mut_ptr(), into.len()) };
    Ok(())
}

#[expect(unsafe_code, reason = "copies bytes that others may write")]
fn write(mapping: &Mapping, start: usize, bytes: usize, offset: usize, from: &[u8]) -> Result<(), Outside> {
    let to = place(mapping, start, bytes, offset, from.len())?;
    // SAFETY: the caller promises `from.len()` mapped bytes at `to`; `from` is borrowed.
    unsafe { copy(from.as_ptr(), to, from.len()) };
    Ok(())
}
