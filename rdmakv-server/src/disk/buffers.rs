//! Memory for reads, used again.

use std::collections::HashMap;

use super::transfer::Owned;

/// Bytes that are kept for later reads.
const KEPT: usize = 1 << 20;
/// Bytes of a buffer are a multiple of these.
const PAGE: usize = 4096;

/// Memory of reads that have ended, by its bytes.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: HashMap<usize, Vec<Owned>>,
    bytes: usize,
}

impl Buffers {
    /// Returns memory of at least so many bytes.
    pub(super) fn take(&mut self, len: usize) -> Owned {
        let size = len.max(1).next_multiple_of(PAGE);
        match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(buffer) => {
                self.bytes -= size;
                buffer
            }
            None => Owned::new(size),
        }
    }
    /// Takes memory back that no read uses.
    pub(super) fn give_back(&mut self, buffer: Owned) {
        let size = buffer.bytes().len();
        if self.bytes + size <= KEPT {
            self.bytes += size;
            self.free.entry(size).or_default().push(buffer);
        }
    }
}
