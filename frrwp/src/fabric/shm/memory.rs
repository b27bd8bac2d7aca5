//! Shared memory: made, admitted from a peer, and accessed so that concurrent writers do no harm.
//!
//! Memory that a peer may write is never behind a reference to bytes. Control words are atomics; everything else is
//! copied by one instruction that no compiler looks into ([`copy`]), or, where there is none, by atomic bytes.
//!
//! # Admission
//!
//! A descriptor that a peer passed is mapped only if
//!
//! 1. it is sealed against shrinking and growing, which only memory files can be: no truncation can ever make an access
//!    fail with a signal;
//! 2. it lies in tmpfs, not in hugetlbfs, where an access can fail for want of a page;
//! 3. it is as large as was said. Asked after the seals, so that it stays true.
#![expect(unsafe_code, reason = "maps memory, and copies bytes that others may write")]

use super::error::{Foreign, ShmError, system};
use crate::fabric::file_size::{GrowError, grow_file};
use crate::fabric::fork_mark::ForkMark;
use mrrc::volatile_copy as copy;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The remedy where there is no memory file.
const MORE: &str = "raise the limits on open files and memory (ulimit -n, -v)";
/// The seals that every transfer needs: the size stays.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: u64 = 0x0102_1994;

/// The others that may write a memory file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writers {
    /// None: a receiver of the descriptor can map it for reading only, whatever it tries.
    Maker,
    /// Every receiver of the descriptor.
    Anybody,
}

/// A shared mapping, unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
    /// The process that has it, if its children do not get it.
    only_here: Option<ForkMark>,
}

// SAFETY: a mapping belongs to no thread, and is accessed by atomics and by raw copies.
unsafe impl Send for Mapping {}
// SAFETY: peers write the mapping at any time, so it is accessed only by volatile copies and atomics, from any thread.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns a new memory file of so many bytes, whole pages, with its mapping. It is zeroed.
    pub(super) fn create(name: &str, bytes: usize, writers: Writers) -> Result<(OwnedFd, Self), ShmError> {
        let doing = system("make shared memory", MORE);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know the flag, and do not ask for it.
        let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
            .map_err(&doing)?;
        grow_file(&file, bytes as u64).map_err(|error| match error {
            GrowError::Limit { .. } => ShmError::FileSize { bytes },
            GrowError::System { source, .. } => system("make shared memory", MORE)(source),
        })?;
        let mapping = Self::map(&file, bytes, true).map_err(&doing)?;
        // After the mapping, which stays writable; none that is made later is. A descriptor that was opened for reading
        // would not do: it can be opened anew through /proc.
        let seals = if writers == Writers::Maker { SIZE | SealFlags::FUTURE_WRITE } else { SIZE };
        rustix::fs::fcntl_add_seals(&file, seals | SealFlags::SEAL).map_err(&doing)?;
        Ok((file, mapping))
    }

    /// Maps what a peer passed, if it is what he says.
    pub(super) fn admit(file: &OwnedFd, bytes: u64, writable: bool) -> Result<Self, Foreign> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Foreign::Kind)?;
        if !seals.contains(SIZE) {
            return Err(Foreign::Unsealed);
        }
        if rustix::fs::fstatfs(file).map_err(|_| Foreign::Kind)?.f_type as u64 != TMPFS {
            return Err(Foreign::Kind);
        }
        let has = rustix::fs::fstat(file).map_err(|_| Foreign::Kind)?.st_size as u64;
        if has != bytes || bytes == 0 {
            return Err(Foreign::Size { said: bytes, has });
        }
        let bytes = usize::try_from(bytes).map_err(|_| Foreign::Size { said: bytes, has })?;
        let mut mapping = Self::map(file, bytes, writable).map_err(|_| Foreign::Unmappable)?;
        // A child of a fork could be at the peer's memory after this process, which the peer watches, is dead.
        // SAFETY: advice about a mapping of our own, which nothing has used yet.
        let hidden = unsafe { rustix::mm::madvise(mapping.base.as_ptr().cast(), bytes, Advice::LinuxDontFork) };
        mapping.only_here = Some(hidden.ok().and_then(|()| ForkMark::here().ok()).ok_or(Foreign::Unmappable)?);
        Ok(mapping)
    }

    fn map(file: impl AsFd, bytes: usize, writable: bool) -> rustix::io::Result<Self> {
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, bytes, writable, only_here: None })
    }

    /// Puts fresh private memory with the same bytes in the place of these whole pages: other users of the memory file
    /// keep the old ones.
    pub(super) fn replace(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(self.writable && offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: fresh memory anywhere; the bytes are copied into it, and it then takes the place of pages of this mapping,
        // to which no reference leads.
        unsafe {
            let fresh = rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE)?;
            copy(self.base.as_ptr().add(offset), fresh.cast(), bytes);
            let place = self.base.as_ptr().add(offset).cast();
            let flags = rustix::mm::MremapFlags::MAYMOVE;
            if let Err(error) = rustix::mm::mremap_fixed(fresh, bytes, bytes, flags, place) {
                let _ = rustix::mm::munmap(fresh, bytes);
                return Err(error.into());
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the eight bytes at an offset. Store only where the mapping is writable; load relaxed, and fence, where it
    /// is not: no stronger load is promised to be a mere load.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes && self.bytes - offset >= 8);
        // SAFETY: aligned, within the mapping, and every access to it in this process is atomic or a raw copy.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the four bytes at an offset, as [`word`](Self::word).
    #[inline(always)]
    pub(super) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.bytes && self.bytes - offset >= 4);
        // SAFETY: aligned, within the mapping, and every access to it in this process is atomic or a raw copy.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the address of these bytes, if they are all there.
    #[inline(always)]
    pub(super) fn at(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: inside of the mapping, or one past it.
        (end <= self.bytes as u64).then(|| unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child, something else may be at those addresses.
        if self.only_here.is_some_and(|mark| !mark.is_here()) {
            return;
        }
        // SAFETY: the mapping is this value's own, and this process has it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
