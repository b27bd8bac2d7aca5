//! The bytes of a chunk that a mount has in a buffer.

use std::ops::Range;

use rdmakv_proto::files::Ranges;

/// The way in which a buffer goes out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flush {
    /// Nothing is to be sent.
    Clean,
    /// The buffer has all of the chunk. Bytes up to this length are sent, and zeros follow.
    Whole(u64),
    /// Fetch the stored chunk first, and tell by [`Buffered::fetched`].
    Fetch,
}

/// The state of a buffer: bytes that are known, and among them those that the servers do not have yet.
///
/// Offsets count from the chunk's begin. A byte that is known and was never written or fetched is zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffered {
    /// Bytes of a whole chunk.
    size: u64,
    known: Ranges,
    dirty: Ranges,
    /// Known bytes from here on are zeros.
    length: u64,
}

impl Buffered {
    /// Returns the state of an empty buffer.
    ///
    /// The stored chunk has at most `stored` bytes: 0 for a hole, up to the file's end in a last chunk, else all.
    pub fn new(stored: u64, size: u64) -> Self {
        let mut known = Ranges::default();
        known.insert(stored..size);
        Self { size, known, dirty: Ranges::default(), length: 0 }
    }

    /// Takes a write into the buffer.
    pub fn write(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.length = self.length.max(range.end);
            self.known.insert(range.clone());
            self.dirty.insert(range);
        }
    }

    /// Takes the stored chunk, of so many bytes. Returns the parts of the buffer to fill from it, with zeros after its end.
    ///
    /// Other parts stay: they are this mount's, and newer.
    pub fn fetched(&mut self, stored: u64) -> Vec<Range<u64>> {
        let gaps = self.known.gaps(0..self.size);
        let last = gaps.iter().filter(|gap| gap.start < stored).map(|gap| gap.end.min(stored)).max();
        self.length = self.length.max(last.unwrap_or(0));
        self.known.insert(0..self.size);
        gaps
    }

    /// Ends the file within this chunk. The caller clears the buffer from there on.
    pub fn truncate(&mut self, length: u64) {
        let has_more = self.length > length || !self.known.covers(length..self.size);
        self.known.insert(length..self.size);
        self.length = self.length.min(length);
        if has_more {
            // The servers may have other bytes there than zeros.
            self.dirty.insert(length..self.size);
        }
    }

    /// Returns how the buffer goes out.
    pub fn flush(&self) -> Flush {
        match (self.dirty.is_empty(), self.known.covers(0..self.size)) {
            (true, _) => Flush::Clean,
            (false, true) => Flush::Whole(self.length),
            (false, false) => Flush::Fetch,
        }
    }

    /// Returns whether these bytes may be read from the buffer.
    pub fn has(&self, range: Range<u64>) -> bool {
        self.known.covers(range)
    }

    /// Takes the dirty bytes, because they are being sent. Later writes are dirty again.
    pub fn take_dirty(&mut self) -> Ranges {
        std::mem::take(&mut self.dirty)
    }

    /// Makes bytes dirty again that could not be sent.
    pub fn restore(&mut self, taken: &Ranges) {
        self.dirty.union(taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 32;

    /// A chunk as it should be, as it is stored, and in a buffer.
    struct Chunk {
        plain: Vec<u8>,
        stored: Vec<u8>,
        buffer: Vec<u8>,
        state: Buffered,
    }

    impl Chunk {
        fn new(stored: &[u8]) -> Self {
            let mut plain = stored.to_vec();
            plain.resize(SIZE, 0);
            let state = Buffered::new(stored.len() as u64, SIZE as u64);
            Self { plain, stored: stored.to_vec(), buffer: vec![0; SIZE], state }
        }

        fn write(&mut self, start: usize, bytes: &[u8]) {
            let end = (start + bytes.len()).min(SIZE);
            let bytes = &bytes[..end - start];
            self.plain[start..end].copy_from_slice(bytes);
            self.buffer[start..end].copy_from_slice(bytes);
            self.state.write(start as u64..end as u64);
        }

        fn truncate(&mut self, length: usize) {
            self.plain[length..].fill(0);
            self.buffer[length..].fill(0);
            self.state.truncate(length as u64);
        }

        fn fetch(&mut self) {
            for gap in self.state.fetched(self.stored.len() as u64) {
                for at in gap {
                    self.buffer[at as usize] = self.stored.get(at as usize).copied().unwrap_or(0);
                }
            }
        }

        fn flush(&mut self, succeeds: bool) {
            if self.state.flush() == Flush::Fetch {
                self.fetch();
            }
            let Flush::Whole(length) = self.state.flush() else { return };
            let taken = self.state.take_dirty();
            if succeeds {
                self.stored = self.buffer[..length as usize].to_vec();
            } else {
                self.state.restore(&taken);
            }
        }

        fn check(&self) {
            for at in (0..SIZE).filter(|&at| self.state.has(at as u64..at as u64 + 1)) {
                assert_eq!(self.buffer[at], self.plain[at], "byte {at}");
            }
            if self.state.flush() == Flush::Clean {
                let mut stored = self.stored.clone();
                stored.resize(SIZE, 0);
                assert_eq!(stored, self.plain);
            }
        }
    }

    proptest! {
        #[test]
        fn chunks_are_stored_as_they_were_written(
            stored in proptest::collection::vec(1..=255_u8, 0..=SIZE),
            steps in proptest::collection::vec((0..6, 0..SIZE, proptest::collection::vec(1..=255_u8, 0..SIZE)), 0..30),
        ) {
            let mut chunk = Chunk::new(&stored);
            for (step, at, bytes) in steps {
                match step {
                    0..=2 => chunk.write(at, &bytes),
                    3 => chunk.truncate(at),
                    4 => chunk.flush(true),
                    _ => chunk.flush(false),
                }
                chunk.check();
            }
            chunk.flush(true);
            chunk.check();
            prop_assert_eq!(chunk.state.flush(), Flush::Clean);
        }
    }

    #[test]
    fn only_parts_that_are_not_known_are_fetched() {
        let mut chunk = Buffered::new(0, 64);
        chunk.write(3..5);
        assert_eq!(chunk.flush(), Flush::Whole(5));
        let mut chunk = Buffered::new(64, 64);
        chunk.write(3..5);
        assert_eq!(chunk.flush(), Flush::Fetch);
        assert_eq!(chunk.fetched(10), [0..3, 5..64]);
        assert_eq!(chunk.flush(), Flush::Whole(10));
    }
}
