//! The chunks of an open file that are in buffers.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Instant;

use rdmakv_proto::files::Ranges;

use crate::ranges::{Buffered, Flush};

/// The buffers of a file.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    chunks: BTreeMap<u32, Chunk>,
    uses: u64,
}

/// A chunk in a buffer. Bytes after the vector's end are zeros.
#[derive(Debug)]
pub(crate) struct Chunk {
    state: Buffered,
    /// The answer to a read may hold them for a moment. A write in that moment changes a copy.
    bytes: Arc<Vec<u8>>,
    dirty_since: Option<Instant>,
    used: u64,
    /// Since when its server refuses it: others may take theirs.
    refused: Option<Instant>,
}

/// Bytes that were read. They are a part of a chunk's buffer where that has them all, so that nothing is copied.
#[derive(Debug)]
pub(crate) enum Read {
    Part(Arc<Vec<u8>>, Range<usize>),
    Own(Vec<u8>),
}

impl Read {
    /// Returns the bytes as the caller's own.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Part(..) => self.to_vec(),
            Self::Own(bytes) => bytes,
        }
    }
}

impl Deref for Read {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Part(bytes, range) => &bytes[range.clone()],
            Self::Own(bytes) => bytes,
        }
    }
}

impl Buffers {
    /// Returns whether a chunk has a buffer.
    pub(crate) fn has(&self, index: u32) -> bool {
        self.chunks.contains_key(&index)
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.chunks.len()
    }

    /// Returns a chunk's buffer, if it has one.
    pub(crate) fn find(&mut self, index: u32) -> Option<&mut Chunk> {
        self.chunks.get_mut(&index)
    }

    /// Returns a chunk's buffer, which is used now. A new one knows that `stored` bytes of `size` may be stored.
    pub(crate) fn chunk(&mut self, index: u32, stored: u64, size: u64) -> &mut Chunk {
        self.uses += 1;
        let used = self.uses;
        let chunk = self.chunks.entry(index).or_insert_with(|| Chunk {
            state: Buffered::new(stored, size),
            bytes: Arc::default(),
            dirty_since: None,
            used: 0,
            refused: None,
        });
        chunk.used = used;
        chunk
    }

    /// Gives up all.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Gives up those from this chunk on.
    pub(crate) fn truncate(&mut self, kept: u32) {
        drop(self.chunks.split_off(&kept));
    }

    /// Returns those that are dirty: all, or those since before a time.
    pub(crate) fn due(&self, before: Option<Instant>) -> Vec<u32> {
        let is_due = |chunk: &Chunk| {
            let since = chunk.dirty_since;
            since.is_some_and(|since| before.is_none_or(|before| since <= before))
        };
        self.chunks.iter().filter(|(_, chunk)| is_due(chunk)).map(|(&index, _)| index).collect()
    }

    /// Gives up the clean one that was used longest ago, of those that are not under way. Returns whether there is one.
    pub(crate) fn evict(&mut self, under_way: &[u32]) -> bool {
        let oldest = self.oldest(|index, chunk| chunk.may_go(index, under_way));
        oldest.is_some_and(|oldest| self.chunks.remove(&oldest).is_some())
    }

    /// Returns the dirty one that was used longest ago.
    pub(crate) fn oldest_dirty(&self) -> Option<u32> {
        self.oldest(|_, chunk| chunk.flush() != Flush::Clean)
    }

    fn oldest(&self, may_be: impl Fn(u32, &Chunk) -> bool) -> Option<u32> {
        let chunks = self.chunks.iter().filter(|&(&index, chunk)| may_be(index, chunk));
        chunks.min_by_key(|(_, chunk)| chunk.used).map(|(&index, _)| index)
    }
}

impl Chunk {
    /// Takes bytes that a program writes.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) {
        self.fill(start, bytes);
        self.state.write(start..start + bytes.len() as u64);
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Ends the file within this chunk.
    pub(crate) fn truncate(&mut self, length: u64) {
        Arc::make_mut(&mut self.bytes).truncate(length as usize);
        self.state.truncate(length);
        if self.flush() != Flush::Clean {
            self.dirty_since.get_or_insert_with(Instant::now);
        }
    }

    /// Returns how the buffer goes out.
    pub(crate) fn flush(&self) -> Flush {
        self.state.flush()
    }

    /// Returns whether these bytes may be read from the buffer.
    pub(crate) fn has(&self, range: Range<u64>) -> bool {
        self.state.has(range)
    }

    /// Returns the value to store, if the chunk is dirty and the buffer has all of it.
    pub(crate) fn value(&mut self) -> Option<&[u8]> {
        let Flush::Whole(length) = self.flush() else { return None };
        // An empty value would stand for a chunk that is absent.
        let length = length.max(1) as usize;
        if self.bytes.len() < length {
            Arc::make_mut(&mut self.bytes).resize(length, 0);
        }
        Some(&self.bytes[..length])
    }

    /// Returns the bytes of [`Self::value`] that are there, without zeros at the end.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        let Flush::Whole(length) = self.flush() else { return None };
        Some(&self.bytes[..self.bytes.len().min(length as usize)])
    }

    /// Takes the dirty bytes, because they are being sent. Later writes are dirty again.
    pub(crate) fn take_dirty(&mut self) -> Ranges {
        self.dirty_since = None;
        self.state.take_dirty()
    }

    /// Makes bytes dirty again that could not be sent.
    pub(crate) fn restore(&mut self, taken: &Ranges) {
        self.state.restore(taken);
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Notes that a server took the chunk.
    pub(crate) fn stored(&mut self) {
        self.refused = None;
    }

    /// Notes that its server refuses it. Returns since when.
    pub(crate) fn refused(&mut self, now: Instant) -> Instant {
        *self.refused.get_or_insert(now)
    }

    /// Returns whether its buffer may go, while these chunks are under way.
    fn may_go(&self, index: u32, under_way: &[u32]) -> bool {
        self.state.flush() == Flush::Clean && !under_way.contains(&index)
    }

    fn fill(&mut self, start: u64, bytes: &[u8]) {
        let (start, into) = (start as usize, Arc::make_mut(&mut self.bytes));
        if into.len() < start {
            into.resize(start, 0);
        }
        // What is new is copied once, and not filled with zeros before.
        let (over, beyond) = bytes.split_at(bytes.len().min(into.len() - start));
        into[start..start + over.len()].copy_from_slice(over);
        into.extend_from_slice(beyond);
    }

    /// Takes the stored bytes, where the buffer has no newer ones.
    pub(crate) fn take(&mut self, stored: Vec<u8>) {
        let gaps = self.state.fetched(stored.len() as u64);
        let is_whole = matches!(gaps.as_slice(), [gap] if gap.start == 0 && gap.end >= stored.len() as u64);
        if self.bytes.is_empty() && is_whole {
            self.bytes = Arc::new(stored);
            return;
        }
        for gap in gaps {
            let end = gap.end.min(stored.len() as u64);
            if gap.start < end {
                self.fill(gap.start, &stored[gap.start as usize..end as usize]);
            }
        }
    }

    /// Returns a part that the buffer has; None if zeros follow it.
    pub(crate) fn part(&self, start: u64, stop: u64) -> Option<Read> {
        let range = start as usize..stop as usize;
        self.bytes.get(range.clone()).map(|_| Read::Part(Arc::clone(&self.bytes), range))
    }

    /// Appends a part, with zeros after the end of the buffer.
    pub(crate) fn copy(&self, start: u64, stop: u64, out: &mut Vec<u8>) {
        let length = self.bytes.len();
        let (from, to) = ((start as usize).min(length), (stop as usize).min(length));
        out.extend_from_slice(&self.bytes[from..to]);
        out.resize(out.len() + (stop - start) as usize - (to - from), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_under_way_stays_in_its_buffer() {
        let mut buffers = Buffers::default();
        for index in [3, 4, 5] {
            buffers.chunk(index, 0, 16);
        }
        buffers.find(4).unwrap().write(0, &[1; 16]);
        let next = |under_way: &[u32]| buffers.oldest(|index, chunk| chunk.may_go(index, under_way));
        assert_eq!((next(&[]), next(&[7]), next(&[3]), next(&[5, 3])), (Some(3), Some(3), Some(5), None));
    }

    #[test]
    fn a_chunk_is_filled_over_its_end_and_beyond() {
        let mut buffers = Buffers::default();
        let chunk = buffers.chunk(0, 0, 16);
        for (start, bytes, whole) in
            [(2, &b"ab"[..], &b"\0\0ab"[..]), (3, b"cde", b"\0\0acde"), (0, b"xy", b"xyacde"), (6, b"", b"xyacde")]
        {
            chunk.fill(start, bytes);
            assert_eq!(*chunk.bytes, whole);
        }
    }
}
