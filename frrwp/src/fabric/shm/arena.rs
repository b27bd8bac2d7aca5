//! Memory that peers can be let at: mapped from memory files, and given out in buffers.

use super::domain::ShmDomain;
use super::error::{NotOffered, ShmError};
use super::memory::{Mapping, Writers};
use crate::fabric::fork_mark::ForkMark;
use crate::fabric::racing::copy;
use mrrc::{PAGE, PageRange};
use rustix::fd::OwnedFd;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What peers can do with an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Sharing {
    /// Read it. They cannot get to write it, whatever they try: the file is sealed against that.
    Readable,
    /// Read and write it.
    Writable,
}

/// Memory that connections of a domain can be let at. From [`ShmDomain::arena`].
///
/// Every peer of the domain is passed the *whole* arena, and could, if it is hostile, read all of it, and write all of it
/// where it is [writable](Sharing::Writable), without asking for a key. Keys tell honest peers what they may do. Memory
/// that is not for all of these peers belongs into another arena, of another domain.
///
/// The memory stays mapped until arena, buffers and registrations of it are gone; registrations that a cache keeps go with
/// [`Cache::invalidate`](mrrc::Cache::invalidate).
pub struct ShmArena {
    memory: Arc<Memory>,
    domain: ShmDomain,
}

pub(super) struct Memory {
    pub(super) number: u64,
    pub(super) file: OwnedFd,
    pub(super) mapping: Mapping,
    pub(super) sharing: Sharing,
    /// The process whose it is: children share the bytes, and have copies of the books.
    mark: ForkMark,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Bytes that no buffer has, in order, never adjacent.
    free: Vec<Range<usize>>,
    /// Given back while a stalled peer may be at them.
    kept: Vec<Range<usize>>,
    /// Taken back from peers for good.
    private: Vec<Range<usize>>,
}

/// No buffer of that size is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("buffer of {bytes} bytes: {}", if *kept > 0 {
    "no such piece of the arena is free, and stalled peers may still be at some of it: end those processes, or make another arena"
} else {
    "no such piece of the arena is free: drop buffers, or make another arena"
})]
pub struct NoBuffer {
    /// What was asked for.
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

impl Memory {
    pub(super) fn new(number: u64, bytes: usize, sharing: Sharing, mark: ForkMark) -> Result<Self, ShmError> {
        let page = rustix::param::page_size().max(PAGE as usize);
        let whole = bytes.checked_next_multiple_of(page).filter(|&whole| whole > 0 && whole as u64 <= 1 << 40);
        let whole = whole.ok_or(ShmError::Size { bytes })?;
        let writers = if sharing == Sharing::Readable { Writers::Maker } else { Writers::Anybody };
        let (file, mapping) = Mapping::create("frrwp-arena", whole, writers)?;
        let books = Mutex::new(Books { free: std::iter::once(0..whole).collect(), ..Books::default() });
        Ok(Self { number, file, mapping, sharing, mark, books })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn base(&self) -> usize {
        self.mapping.base() as usize
    }

    pub(super) fn offer(&self, range: PageRange, write: bool) -> Result<(), NotOffered> {
        if write && self.sharing == Sharing::Readable {
            return Err(NotOffered::ReadOnly { range });
        }
        let start = (range.start() * PAGE) as usize - self.base();
        let asked = start..start + (range.pages() * PAGE) as usize;
        if self.books().private.iter().any(|private| overlap(private, &asked)) {
            return Err(NotOffered::Private { range });
        }
        Ok(())
    }

    fn pages(&self, bytes: &Range<usize>) -> Option<PageRange> {
        PageRange::of_bytes((self.base() + bytes.start) as u64, bytes.len() as u64).ok()
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Books {
    fn free(&mut self, bytes: Range<usize>) {
        let at = self.free.partition_point(|free| free.start < bytes.start);
        self.free.insert(at, bytes);
        if self.free.get(at + 1).is_some_and(|next| next.start == self.free[at].end) {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }

    fn take(&mut self, bytes: usize) -> Option<usize> {
        let at = self.free.iter().position(|free| free.len() >= bytes)?;
        let start = self.free[at].start;
        self.free[at].start += bytes;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        Some(start)
    }
}

impl ShmArena {
    pub(super) fn new(memory: Arc<Memory>, domain: ShmDomain) -> Self {
        Self { memory, domain }
    }

    /// Bytes in the arena: what was asked for, rounded up to whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.memory.mapping.len()
    }

    /// The first byte. Make no reference of it: peers may write.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.mapping.base()
    }

    /// Whole pages of the arena that nobody else is given until the buffer is dropped. Those at which a stalled peer may
    /// still be are not given again before it is dead. A child of a fork gets none of its parent's: it makes an arena of its own.
    ///
    /// # Errors
    /// [`NoBuffer`].
    pub fn buffer(&self, bytes: usize) -> Result<ShmBuffer, NoBuffer> {
        let page = rustix::param::page_size().max(PAGE as usize);
        let none = |kept| NoBuffer { bytes, kept };
        if !self.memory.mark.is_here() {
            return Err(none(0));
        }
        let whole = bytes.max(1).checked_next_multiple_of(page).ok_or(none(0))?;
        if !self.memory.books().kept.is_empty() {
            let quarantined = self.domain.quarantined();
            let mut books = self.memory.books();
            for kept in std::mem::take(&mut books.kept) {
                match self.memory.pages(&kept) {
                    Some(pages) if quarantined.iter().any(|held| held.overlaps(pages)) => books.kept.push(kept),
                    _ => books.free(kept),
                }
            }
        }
        let mut books = self.memory.books();
        let kept = books.kept.iter().map(Range::len).sum();
        let start = books.take(whole).ok_or(none(kept))?;
        drop(books);
        Ok(ShmBuffer { memory: self.memory.clone(), domain: self.domain.clone(), start, bytes: bytes.max(1), whole })
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

    /// Makes the pages of these bytes private, with what they hold, at the same address: for memory that the application
    /// must have back though a peer that stalled may still be at it. The peer keeps the old pages. Private pages are not
    /// registered for peers any more. What others write while the pages change may be lost.
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
        self.memory.books().private.push(whole.clone());
        let done = match self.memory.pages(&whole).and_then(|pages| self.domain.living_in(pages)) {
            Some(range) => Err(TakeBackError::Registered { range }),
            None => self.memory.mapping.replace(whole.start, whole.len()).map_err(TakeBackError::Memory),
        };
        if done.is_err() {
            let mut books = self.memory.books();
            if let Some(at) = books.private.iter().position(|private| *private == whole) {
                books.private.remove(at);
            }
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
    domain: ShmDomain,
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

    /// The first byte. Make no reference of it: peers may write.
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

    /// Whether a stalled peer may still be at some of these pages.
    pub fn is_quarantined(&self) -> bool {
        let pages = self.memory.pages(&(self.start..self.start + self.whole));
        pages.is_some_and(|pages| self.domain.quarantined().iter().any(|held| held.overlaps(pages)))
    }
}

impl Drop for ShmBuffer {
    fn drop(&mut self) {
        let bytes = self.start..self.start + self.whole;
        let is_kept = self.is_quarantined();
        let mut books = self.memory.books();
        if is_kept { books.kept.push(bytes) } else { books.free(bytes) }
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
    // SAFETY: as above.
    unsafe { copy(from.as_ptr(), to, from.len()) };
    Ok(())
}
