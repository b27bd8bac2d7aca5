//! The memory file of an arena, and which of its pages are given out.

use super::error::{NotOffered, ShmError};
use super::memory::{Mapping, Writers};
use crate::fabric::fork_mark::ForkMark;
use mrrc::{PAGE, PageRange};
use rustix::fd::OwnedFd;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The rights of peers in an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Sharing {
    /// Read it. They cannot get to write it, whatever they try: the file is sealed against that.
    Readable,
    /// Read and write it.
    Writable,
}

/// The memory file of an arena, and the buffers that it was given out in.
pub(super) struct Memory {
    pub(super) number: u64,
    pub(super) file: OwnedFd,
    pub(super) mapping: Mapping,
    pub(super) sharing: Sharing,
    /// The process that owns it: children share the bytes, and have copies of the books.
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

    /// Returns whether this process made it, and is no child with a copy.
    pub(super) fn is_here(&self) -> bool {
        self.mark.is_here()
    }

    /// Allocates whole pages, of so many bytes. Pages that were kept are free again unless `quarantined`, which is called without the
    /// lock, returns them.
    ///
    /// # Errors
    /// Bytes that are kept, where no piece of that size is free.
    pub(super) fn allocate(&self, whole: usize, quarantined: impl FnOnce() -> Vec<PageRange>) -> Result<usize, usize> {
        if !self.books().kept.is_empty() {
            let quarantined = quarantined();
            let mut books = self.books();
            for kept in std::mem::take(&mut books.kept) {
                match self.pages(&kept) {
                    Some(pages) if quarantined.iter().any(|held| held.overlaps(pages)) => books.kept.push(kept),
                    _ => books.free(kept),
                }
            }
        }
        let mut books = self.books();
        let kept = books.kept.iter().map(Range::len).sum();
        books.take(whole).ok_or(kept)
    }

    /// Frees pages, or keeps them while a stalled peer may be at them.
    pub(super) fn free(&self, bytes: Range<usize>, is_kept: bool) {
        let mut books = self.books();
        if is_kept { books.kept.push(bytes) } else { books.free(bytes) }
    }

    /// Offers these bytes to peers no more, or does again.
    pub(super) fn set_private(&self, bytes: &Range<usize>, is_private: bool) {
        let mut books = self.books();
        if is_private {
            books.private.push(bytes.clone());
        } else if let Some(at) = books.private.iter().position(|private| private == bytes) {
            books.private.remove(at);
        }
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

    pub(super) fn pages(&self, bytes: &Range<usize>) -> Option<PageRange> {
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
