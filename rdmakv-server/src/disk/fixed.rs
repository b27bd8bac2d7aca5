//! Memory that transfers may name by number, because a cache of registrations keeps it pinned.

use std::ptr::NonNull;

use io_uring::IoUring;
use mrrc::invalidation::Explicit;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, Cache, Lease};

/// Transfers in a block before it is registered: a registration costs as much as this many fixed transfers save.
const USES: u8 = 32;
/// Transfers after which the uses of all blocks count half.
const FADE: u32 = 4096;
/// Refusals in a row after which no registrations are tried for [`FADE`] transfers.
const REFUSALS: u32 = 8;

/// A range of memory in which transfers may be fixed.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    begin: usize,
    len: usize,
    block: usize,
    capacity: u64,
}

impl Fixed {
    /// Names the range, the bytes that are registered at a time, and the bytes that may be registered.
    ///
    /// # Safety
    ///
    /// The range stays mapped, and to the same pages, until every disk that was started with it is dropped.
    #[expect(unsafe_code, reason = "the kernel keeps the pages")]
    #[must_use]
    pub unsafe fn new(begin: NonNull<u8>, len: usize, block: usize, capacity: u64) -> Self {
        Self { begin: begin.as_ptr() as usize, len, block: block.max(4096), capacity }
    }
}

/// The registrations of a ring.
#[derive(Debug)]
pub(super) struct Registered {
    range: Fixed,
    cache: Cache<IoUringBuffers>,
    uses: Vec<u8>,
    transfers: u32,
    refused: u32,
    pause: u32,
}

impl Registered {
    /// Makes the table of a ring, if the kernel allows one.
    pub(super) fn new(ring: &IoUring, range: Fixed) -> Option<Self> {
        let table = IoUringBuffers::new(ring, 1024).ok()?;
        let builder = Cache::builder(table).ignore_environment().capacity_bytes(range.capacity).max_segments(1);
        let cache = builder.monitor(Explicit).background(false).build().ok()?;
        Some(Self { range, cache, uses: vec![0; range.len.div_ceil(range.block)], transfers: 0, refused: 0, pause: 0 })
    }

    /// Leases the memory, if it is in the range and worth it; the lease names its slot.
    pub(super) fn lease(&mut self, at: usize, len: usize) -> Option<(Lease<IoUringBuffers>, u16)> {
        let offset = at.checked_sub(self.range.begin).filter(|offset| offset + len <= self.range.len)?;
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        self.transfers += 1;
        if self.transfers == FADE {
            self.transfers = 0;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
        let (first, last) = (offset / self.range.block, (offset + len - 1) / self.range.block);
        let mut is_worth = true;
        for uses in &mut self.uses[first..=last] {
            *uses = uses.saturating_add(1);
            is_worth &= *uses >= USES;
        }
        if !is_worth {
            return None;
        }
        let begin = self.range.begin + first * self.range.block;
        let end = (self.range.begin + (last + 1) * self.range.block).min(self.range.begin + self.range.len);
        #[expect(unsafe_code, reason = "leases memory to the kernel")]
        // SAFETY: `Fixed::new` requires that the range stays mapped until the disk, which owns this cache, is dropped.
        let lease = unsafe { self.cache.acquire(begin as *const u8, end - begin, Access::LOCAL) };
        match lease {
            Ok(lease) => {
                self.refused = 0;
                let slot = lease.segments().next().map(|segment| segment.registration().index());
                slot.map(|slot| (lease, slot))
            }
            Err(_) => {
                self.refused += 1;
                if self.refused >= REFUSALS {
                    (self.refused, self.pause) = (0, FADE);
                }
                None
            }
        }
    }
}
