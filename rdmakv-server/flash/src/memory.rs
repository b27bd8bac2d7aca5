//! Memory for stubs: lent by the store, out of its own pages, or mapped.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 32 << 10;

/// Memory that blocks of stubs are cut from.
pub struct StubMemory {
    base: NonNull<u8>,
    len: usize,
    /// The owner, if the memory is lent.
    keeper: Option<Arc<dyn Any + Send + Sync>>,
}

/// A block of some [`StubMemory`].
#[derive(Debug)]
pub(crate) struct Piece(NonNull<u8>);

impl fmt::Debug for StubMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubMemory").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

#[expect(unsafe_code, reason = "owned memory")]
// SAFETY: the memory is owned or lent to this owner alone, and is reached by its borrows only; the keeper may be anywhere.
unsafe impl Send for StubMemory {}
#[expect(unsafe_code, reason = "owned memory")]
// SAFETY: a shared borrow shows no byte.
unsafe impl Sync for StubMemory {}
#[expect(unsafe_code, reason = "owned memory")]
// SAFETY: a piece is a part of memory that has one owner, and is reached by its borrows only.
unsafe impl Send for Piece {}
#[expect(unsafe_code, reason = "owned memory")]
// SAFETY: a shared borrow of a piece only reads.
unsafe impl Sync for Piece {}

impl StubMemory {
    /// Takes memory of others, which stays as long as the keeper.
    ///
    /// # Safety
    ///
    /// The memory is initialised and writable, and until this is dropped nothing else writes it, or reads more of it than words of headers.
    #[must_use]
    #[expect(unsafe_code, reason = "the memory is the caller's")]
    pub unsafe fn lent(base: NonNull<u8>, len: usize, keeper: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, len, keeper: Some(keeper) }
    }

    /// Maps `len` bytes, unless the system refuses. Pages come with their first use.
    pub(crate) fn mapped(len: usize) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        #[expect(unsafe_code, reason = "mmap")]
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of others.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags).ok()?
        };
        Some(Self { base: NonNull::new(base.cast())?, len, keeper: None })
    }

    #[cfg(test)]
    pub(crate) fn into_lent(mut self) -> Self {
        self.keeper = Some(Arc::new(()));
        self
    }
    pub(crate) fn is_lent(&self) -> bool {
        self.keeper.is_some()
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
    /// Returns a block, by its number. It must not outlive this, and each is taken once.
    pub(crate) fn piece(&self, number: usize) -> Piece {
        assert!((number + 1) * BLOCK <= self.len, "block {number} is outside of the memory");
        #[expect(unsafe_code, reason = "the address of a block")]
        // SAFETY: the assertion keeps the whole block inside of the memory.
        Piece(unsafe { self.base.add(number * BLOCK) })
    }
}

impl Drop for StubMemory {
    fn drop(&mut self) {
        if self.keeper.is_none() {
            #[expect(unsafe_code, reason = "munmap")]
            // SAFETY: the mapping is owned, and no piece of it outlives it. A failure would leak it, no more.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

impl Piece {
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= BLOCK, "{at}+{len} is outside of the block");
        #[expect(unsafe_code, reason = "bytes of a block")]
        // SAFETY: in bounds, and initialised. `piece` requires that the memory outlives this, and that there is no other of these bytes.
        unsafe {
            std::slice::from_raw_parts(self.0.as_ptr().add(at), len)
        }
    }
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= BLOCK, "{at}+{len} is outside of the block");
        #[expect(unsafe_code, reason = "bytes of a block")]
        // SAFETY: in bounds, and initialised. `piece` requires that the memory outlives this, and that there is no other of these bytes.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.as_ptr().add(at), len)
        }
    }
}
