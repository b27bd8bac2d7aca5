//! Memory for reads, used again.

use std::collections::HashMap;

use super::fixed::Fixed;
use super::transfer::{Owned, Region};

/// Bytes that are kept for later reads.
const KEPT: usize = 1 << 20;
/// Parts of a region, and their bytes.
const PARTS: usize = 16;
const PART: usize = 64 << 10;
/// Bytes of a buffer are a multiple of these.
const PAGE: usize = 4096;

/// Memory of reads that have ended, by its bytes.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: HashMap<usize, Vec<Owned>>,
    bytes: usize,
    /// Parts of a region. The last one used is the next: so those that are not needed take no memory.
    parts: Vec<Owned>,
}

impl Buffers {
    /// Makes buffers of which the first ones are in a range that can be registered. Reads above a part's bytes, and above 16 at a time, have
    /// other memory.
    pub(super) fn in_a_range() -> (Self, Fixed) {
        let (begin, parts) = Region::divided(PARTS, PART);
        #[expect(unsafe_code, reason = "names memory to the kernel")]
        // SAFETY: `Fixed::new` requires that the range stays mapped until its ring is dropped. `WorkerReads` drops its ring before these
        // buffers, and the ring keeps the parts that are in use.
        let fixed = unsafe { Fixed::new(begin, PARTS * PART, PART, (PARTS * PART) as u64) };
        (Self { parts, ..Self::default() }, fixed)
    }

    /// Returns memory of at least so many bytes.
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
        if self.bytes + size <= KEPT {
            self.bytes += size;
            self.free.entry(size).or_default().push(buffer);
        }
    }
}
