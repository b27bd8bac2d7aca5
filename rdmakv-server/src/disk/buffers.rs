//! Memory for reads, used again.

use std::collections::HashMap;

use super::fixed::Fixed;
use super::transfer::{Owned, Region};

/// Parts of a region at most, and their bytes.
const PARTS: usize = 16;
const PART: usize = 64 << 10;
/// Bytes of a buffer are a multiple of these.
const PAGE: usize = 4096;

/// Memory of reads that have ended, by its bytes.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: HashMap<usize, Vec<Owned>>,
    /// Bytes of these, and how many there may be.
    bytes: usize,
    kept: usize,
    /// Parts of a region. The last one used is the next: so those that are not needed take no memory.
    parts: Vec<Owned>,
}

impl Buffers {
    /// Makes buffers that keep `kept` bytes at most. Half of them are a range that can be registered, of 1 MiB at most. Reads above a part's
    /// bytes, and more reads than there are parts, have other memory.
    pub(super) fn in_a_range(kept: usize) -> (Self, Option<Fixed>) {
        let count = (kept / 2 / PART).min(PARTS);
        if count == 0 {
            return (Self::keeping(kept), None);
        }
        let (begin, parts) = Region::divided(count, PART);
        #[expect(unsafe_code, reason = "names memory to the kernel")]
        // SAFETY: `Fixed::new` requires that the range stays mapped until its ring is dropped. `WorkerReads` drops its ring before these
        // buffers, and the ring keeps the parts that are in use.
        let fixed = unsafe { Fixed::new(begin, count * PART, PART, (count * PART) as u64) };
        (Self { parts, ..Self::keeping(kept - count * PART) }, Some(fixed))
    }
    /// Makes buffers that keep `kept` bytes at most.
    pub(super) fn keeping(kept: usize) -> Self {
        Self { kept, ..Self::default() }
    }
    /// Returns the bytes that may be kept.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Returns memory of `len` bytes or more.
    pub(super) fn take(&mut self, len: usize) -> Owned {
        if len <= PART
            && let Some(part) = self.parts.pop()
        {
            return part;
        }
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
        if buffer.is_part() {
            self.parts.push(buffer);
            return;
        }
        let size = buffer.bytes().len();
        if self.bytes + size <= self.kept {
            self.bytes += size;
            self.free.entry(size).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_allowed() {
        for kept in [0, 3 * PART, 8 << 20] {
            let (mut buffers, _) = Buffers::in_a_range(kept);
            let taken: Vec<Owned> = (0..300).map(|_| buffers.take(PART)).collect();
            let of_range = taken.iter().filter(|buffer| buffer.is_part()).count();
            assert_eq!(of_range, (kept / PART / 2).min(PARTS));
            taken.into_iter().for_each(|buffer| buffers.give_back(buffer));
            assert_eq!(of_range * PART + buffers.bytes, kept.min(300 * PART), "of {kept}");
        }
    }
}
