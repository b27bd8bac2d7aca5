//! The memory that items live in: one shared mapping, backed by a memfd where the system has them, so that
//! every fabric can expose it.
//!
//! Ownership: a mapping is shared by a store and by what the store lent out ([`ChunkRef`](super::ChunkRef),
//! [`ChunkWriter`](super::ChunkWriter)). Words of headers are atomics and may be read from anywhere. Bytes of keys and
//! values are written only through `&mut` of a chunk's one owner, before the chunk is published, and read only after
//! that. The modules above keep that promise, this one keeps the bounds.

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

/// The backing of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A memfd of huge pages (2 MiB).
    HugePages,
    /// A memfd of ordinary pages.
    Memfd,
    /// Anonymous memory: this system has no memfd, or limits the sizes of files to less.
    Anonymous,
    /// Memory that was made elsewhere, as by a fabric.
    Given,
}

/// Memory that was made elsewhere, for a store to keep its items in.
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    keeper: Box<dyn Any + Send + Sync>,
}

impl Memory {
    /// Takes it over, with what keeps it there; that is dropped with the store and the last of what it lent.
    ///
    /// # Safety
    ///
    /// Until the keeper is dropped the memory is there, readable and writable, and is written by this program through
    /// the store alone. It begins at a multiple of 4096 and is all zeros.
    #[expect(unsafe_code, reason = "whether the memory is there is the caller's word")]
    pub unsafe fn new(base: NonNull<u8>, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Self {
        Self { base, len, keeper }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes at {:p}", self.len, self.base)
    }
}

/// The mapping.
pub(super) struct Arena {
    base: *mut u8,
    len: usize,
    backing: Backing,
    /// The owner that unmaps the memory, if that is not the store.
    keeper: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes at {:p}, {:?}", self.len, self.base, self.backing)
    }
}

const HUGE: usize = 2 << 20;

/// Words of the mapping that are shared with all readers.
///
/// # Safety
///
/// The type consists of atomic integers, without padding, and its layout is that of C.
#[expect(unsafe_code, reason = "a type that may lie anywhere in the mapping")]
pub(super) unsafe trait Words {}

#[expect(unsafe_code, reason = "a word")]
// SAFETY: `AtomicU64` is one atomic integer.
unsafe impl Words for AtomicU64 {}

#[expect(unsafe_code, reason = "the memory is shared between threads by contract: see each method")]
// SAFETY: the mapping belongs to no thread; all access is through atomics or through slices whose exclusivity the
// callers keep (see the module's first paragraph).
unsafe impl Send for Arena {}
#[expect(unsafe_code, reason = "the memory is shared between threads by contract: see each method")]
// SAFETY: the arena belongs to no thread; shared access to its words is atomic.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory of others, which has to be this long.
    pub(super) fn given(memory: Memory, len: usize) -> io::Result<Self> {
        let Memory { base, len: there, keeper } = memory;
        if there < len || !(base.as_ptr() as usize).is_multiple_of(4096) {
            let wrong = format!("{there} bytes at {base:p} for an arena: it takes {len}, from a multiple of 4096 on");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
        }
        Ok(Self { base: base.as_ptr(), len: there, backing: Backing::Given, keeper: Some(keeper) })
    }

    /// At least `len` bytes of huge pages, all zero, if the system has enough of them. They are taken from the system
    /// at once, whether they are used or not.
    pub(super) fn huge(len: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::MemfdFlags;
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
            Self::memfd(len.max(1).next_multiple_of(HUGE), flags, Backing::HugePages).ok()
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = len;
            None
        }
    }

    /// At least `len` bytes, all zero; address space until they are used.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(HUGE);
        #[cfg(target_os = "linux")]
        if let Ok(arena) = Self::memfd(len, rustix::fs::MemfdFlags::CLOEXEC, Backing::Memfd) {
            return Ok(arena);
        }
        #[expect(unsafe_code, reason = "mmap")]
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )?
        };
        Ok(Self { base: base.cast(), len, backing: Backing::Anonymous, keeper: None })
    }

    #[cfg(target_os = "linux")]
    fn memfd(len: usize, flags: rustix::fs::MemfdFlags, backing: Backing) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("rdmakv-arena", flags)?;
        // A limit on file sizes is an error, and no signal that ends the process. Anonymous memory has no such limit.
        frrwp::fabric::grow_file(&file, len as u64)?;
        // Huge pages are reserved by the mapping, so that too few fail here and not at the first touch.
        let sharing =
            if backing == Backing::HugePages { MapFlags::SHARED } else { MapFlags::SHARED | MapFlags::NORESERVE };
        #[expect(unsafe_code, reason = "mmap")]
        // SAFETY: a new mapping of a file that no other process has open, at an address of the system's choice.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, sharing, &file, 0)?
        };
        #[expect(unsafe_code, reason = "madvise")]
        // SAFETY: the range is the mapping just made; the advice changes no contents. It may be refused.
        let _ = unsafe { rustix::mm::madvise(base, len, rustix::mm::Advice::LinuxHugepage) };
        Ok(Self { base: base.cast(), len, backing, keeper: None })
    }

    pub(super) fn backing(&self) -> Backing {
        self.backing
    }

    pub(super) fn whole(&self) -> (*mut u8, usize) {
        (self.base, self.len)
    }

    /// Gives the memory of these bytes back to the system: they are zeros afterwards. Returns whether the system took it. No slice of them
    /// exists: the caller's promise.
    pub(super) fn give_back(&self, at: usize, len: usize) -> bool {
        self.check(at, len, 1);
        #[cfg(target_os = "linux")]
        #[expect(unsafe_code, reason = "madvise")]
        // SAFETY: in bounds by the check. Words of headers are atomics and may become zeros at any time; slices exist only of chunks that
        // are in use, and the caller promises that there are none of these bytes.
        unsafe {
            self.backing != Backing::HugePages
                && rustix::mm::madvise(self.base.add(at).cast(), len, rustix::mm::Advice::LinuxRemove).is_ok()
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Has the system give these bytes memory now, and not when they are used. What they hold stays.
    ///
    /// # Errors
    ///
    /// The system has no memory, or does not know the call (Linux before 5.14).
    pub(super) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        self.check(at, len, 1);
        #[cfg(target_os = "linux")]
        #[expect(unsafe_code, reason = "madvise")]
        // SAFETY: in bounds by the check, and mapped as long as the arena lives. This advice acts as a write to each page that leaves its
        // bytes as they are, so slices and words of them stay valid.
        unsafe {
            Ok(rustix::mm::madvise(self.base.add(at).cast(), len, rustix::mm::Advice::LinuxPopulateWrite)?)
        }
        #[cfg(not(target_os = "linux"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    fn check(&self, at: usize, len: usize, align: usize) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at}+{len} is outside of the arena");
        assert!(at.is_multiple_of(align), "{at} is not aligned to {align}");
    }

    /// Returns the words that begin there.
    #[inline]
    pub(super) fn words<W: Words>(&self, at: usize) -> &W {
        self.check(at, size_of::<W>(), align_of::<W>());
        #[expect(unsafe_code, reason = "words of the mapping")]
        // SAFETY: `check` has shown that the words are in bounds and aligned (the base is aligned to a page). The mapping starts
        // as zeros, and `Words` requires that `W` consists of atomics, for which all bytes are valid.
        unsafe {
            &*self.base.add(at).cast::<W>()
        }
    }

    /// Returns the word of 64 bits there.
    #[inline]
    pub(super) fn word64(&self, at: usize) -> &AtomicU64 {
        self.words(at)
    }

    /// Returns bytes that are not written as long as the borrow lives: the caller's promise.
    #[inline]
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.check(at, len, 1);
        #[expect(unsafe_code, reason = "bytes of the mapping")]
        // SAFETY: in bounds and initialised; only this module's siblings can call, and they ask only for chunks that
        // are published, or held, or their own (see the module's first paragraph).
        unsafe {
            std::slice::from_raw_parts(self.base.add(at), len)
        }
    }

    /// Bytes that only the caller can reach as long as the borrow lives: the caller's promise.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the chunk's one owner asks; see the module's first paragraph")]
    pub(super) fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        self.check(at, len, 1);
        #[expect(unsafe_code, reason = "bytes of the mapping")]
        // SAFETY: in bounds and initialised; asked for only by the owner of an unpublished chunk, through `&mut`.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.add(at), len)
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.keeper.is_some() {
            return;
        }
        #[expect(unsafe_code, reason = "munmap")]
        // SAFETY: the mapping is ours and nothing borrowed from it outlives it. A failure would leak it, no more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}
