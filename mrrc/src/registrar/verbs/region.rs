//! A registration with a card: its keys.
#![expect(unsafe_code, reason = "what libibverbs points to")]

use super::binding::ibv_mr;
use crate::range::{PAGE, PageRange};
use std::ffi::c_void;
use std::ptr::NonNull;

/// A memory region of a card.
///
/// It stays registered until it is given to [`Registrar::deregister`](crate::registrar::Registrar::deregister) or the last
/// clone of its [`Domain`](super::Domain) is dropped. Dropping this value alone only loses the keys.
#[derive(Debug)]
#[must_use = "the pages stay pinned until this is deregistered"]
pub struct MemoryRegion {
    region: NonNull<ibv_mr>,
    range: PageRange,
    domain: u64,
    lkey: u32,
    rkey: u32,
    takes_windows: bool,
}

// SAFETY: libibverbs' regions belong to no thread; what is here besides are numbers.
unsafe impl Send for MemoryRegion {}
// SAFETY: nothing here is changed by a shared reference.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// None if it is null.
    ///
    /// # Safety
    /// If it is not, libibverbs has just returned it, for this range, in this domain, and for windows if it takes them.
    pub(super) unsafe fn new(region: *mut ibv_mr, range: PageRange, domain: u64, takes_windows: bool) -> Option<Self> {
        let region = NonNull::new(region)?;
        // SAFETY: `new` requires a region that libibverbs has just returned, so its keys can be read.
        let (lkey, rkey) = unsafe { ((*region.as_ptr()).lkey, (*region.as_ptr()).rkey) };
        Some(Self { region, range, domain, lkey, rkey, takes_windows })
    }

    pub(super) fn domain(&self) -> u64 {
        self.domain
    }

    /// Returns whether memory windows can be bound to it.
    pub(super) fn takes_windows(&self) -> bool {
        self.takes_windows
    }

    /// Returns the key for the work requests of this side: `lkey` of an `ibv_sge`.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the key for peers: `rkey` of their work requests. It opens nothing to them where windows give peers their rights
    /// ([`Segment::window`](crate::Segment::window)).
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the pages that it means.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Returns whether a work request may name these bytes by its keys. The address in a request is the one in memory.
    #[inline]
    pub fn holds(&self, address: u64, length: u64) -> bool {
        let (start, bytes) = (self.range.start() * PAGE, self.range.pages() * PAGE);
        address.checked_sub(start).is_some_and(|offset| offset <= bytes && length <= bytes - offset)
    }

    /// Returns the `struct ibv_mr *`, to bind memory windows to. Alive until it is deregistered: as long as the lease
    /// that showed this. A caller that deregisters it itself breaks what the cache rests on.
    pub fn raw(&self) -> NonNull<c_void> {
        self.region.cast()
    }
}
