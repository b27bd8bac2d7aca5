//! Mappings of memory for arenas.
//!
//! # Bytes that others write
//!
//! A transfer may write bytes while a thread reads them, and any number of threads may read and write the same bytes of
//! an arena. Threads of this program must not race in Rust's memory model, where volatile accesses are as good as plain
//! ones; what does not race are atomics. So every access of this module is atomic, relaxed, and *one byte* wide:
//! accesses of different widths would race again. A read can be torn: some bytes old, some new. Devices and the kernel
//! are outside of that model, and their writes are such bytes to it.
//!
//! A loop over atomic bytes copies one at a time: about 1 GB/s. On x86-64 the same accesses are made by one instruction,
//! `rep movsb`, at about 20 GB/s, half to all of what `memcpy` does. No compiler looks into it, and byte by byte is what it
//! promises.
#![expect(unsafe_code, reason = "it maps memory, and copies bytes that others may write")]

use crate::own_file::OwnFile;
use crate::range::{PAGE, PageRange};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(target_os = "linux")]
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes in a huge page, where the system has such.
const HUGE: usize = 2 << 20;

/// Why memory could not be mapped.
pub(crate) enum MapError {
    /// No mapping has such a size.
    Size,
    System(io::Error),
}

/// The kind of memory that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Private,
    /// Private, with the hint to use huge pages.
    Huge,
    /// A sealed memfd, which other processes can map to read it.
    #[cfg(target_os = "linux")]
    Shared,
}

/// A mapping, unmapped when it is dropped.
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    /// Of shared memory.
    file: Option<OwnFile>,
}

// SAFETY: a mapping belongs to no thread, and shared access to it is by atomic bytes.
unsafe impl Send for Memory {}
// SAFETY: its methods access the bytes of the mapping atomically, so shared references race with nothing.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps so many bytes, rounded up to and placed at multiples of what the registrar and the system call a page.
    pub(crate) fn map(bytes: usize, unit: usize, kind: Kind) -> Result<Self, MapError> {
        // SAFETY: `sysconf` takes a number and returns one.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE as usize);
        let huge = kind == Kind::Huge;
        let unit = unit.max(page).max(if huge { HUGE } else { 0 });
        let whole = bytes.checked_next_multiple_of(unit).filter(|&whole| whole > 0 && whole <= isize::MAX as usize);
        let Some((whole, room)) = whole.and_then(|whole| Some((whole, whole.checked_add(unit - page)?))) else {
            return Err(MapError::Size);
        };
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let Some(mapped) = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED) else {
            return Err(MapError::System(io::Error::last_os_error()));
        };
        let ahead = mapped.as_ptr().align_offset(unit);
        // SAFETY: `ahead` is less than `unit` and a multiple of a page, so all of this is in the mapping, which is ours
        // alone; what lies around the arena is given back.
        let memory = unsafe {
            let base = mapped.add(ahead);
            let rest = room - whole - ahead;
            if ahead > 0 {
                libc::munmap(mapped.as_ptr().cast(), ahead);
            }
            if rest > 0 {
                libc::munmap(base.as_ptr().add(whole).cast(), rest);
            }
            #[cfg(target_os = "linux")]
            if huge {
                // A hint: a system without huge pages refuses it.
                libc::madvise(base.as_ptr().cast(), whole, libc::MADV_HUGEPAGE);
            }
            Self { base, bytes: whole, file: None }
        };
        #[cfg(target_os = "linux")]
        let memory = if kind == Kind::Shared { memory.shared().map_err(MapError::System)? } else { memory };
        Ok(memory)
    }

    /// Puts a memfd in the place of the mapping, and seals it. Others can map it to read it. They can neither write it nor cut it short.
    #[cfg(target_os = "linux")]
    fn shared(mut self) -> io::Result<Self> {
        let failed = || Err(io::Error::last_os_error());
        // SAFETY: `memfd_create` reads a C string, which the literal is, and makes a descriptor.
        let fd = unsafe { libc::memfd_create(c"mrrc-arena".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return failed();
        }
        // SAFETY: the descriptor was just made, and is owned by nothing else.
        let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(self.bytes as u64)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: it takes the place of a mapping that is this value's own, and to which nothing leads yet.
        if unsafe { libc::mmap(self.base.as_ptr().cast(), self.bytes, rights, flags, fd, 0) } == libc::MAP_FAILED {
            return failed();
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: `fcntl` with F_ADD_SEALS takes numbers.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return failed();
        }
        self.file = Some(OwnFile::unmarked(file)?);
        Ok(self)
    }

    /// Returns the descriptor of shared memory; None if the program has closed it.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref()?.get().ok().map(AsFd::as_fd)
    }

    /// Returns the pages of the mapping.
    pub(crate) fn pages(&self) -> PageRange {
        let start = self.base.as_ptr().expose_provenance() as u64 / PAGE;
        PageRange::between(start, start + self.bytes as u64 / PAGE)
    }

    /// Returns the number of its bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the pointer to these bytes, if they are all in the mapping.
    #[inline(always)]
    pub(crate) fn at(&self, start: usize, end: usize) -> Option<*mut u8> {
        if start > end || end > self.bytes {
            return None;
        }
        // SAFETY: `add` wants a place inside of the mapping or one past it, and `start` is at most its length.
        Some(unsafe { self.base.as_ptr().add(start) })
    }

    /// Copies bytes out of the mapping. `None`, and nothing is copied, if they are not all in it.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        let from = self.at(offset, offset.saturating_add(into.len()))?;
        // SAFETY: `volatile_copy` wants bytes that only atomics of one byte access: `at` found them in the mapping, to which no
        // reference leads, and the slice is the caller's alone.
        unsafe { volatile_copy(from, into.as_mut_ptr(), into.len()) };
        Some(())
    }

    /// Copies bytes into the mapping. `None`, and nothing is copied, if they are not all in it.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Option<()> {
        let to = self.at(offset, offset.saturating_add(from.len()))?;
        // Miri allows no atomic load by a shared borrow.
        #[cfg(miri)]
        let from = from.to_vec();
        // SAFETY: `volatile_copy` wants bytes that only atomics of one byte access: `at` found them in the mapping, to which no
        // reference leads, and nothing writes the borrowed slice.
        unsafe { volatile_copy(from.as_ptr(), to, from.len()) };
        Some(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; it is dropped when no lease has its address any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Copies bytes that others may write or read meanwhile: each is the old or the new one. See the module's source.
///
/// # Safety
/// So many bytes can be read at `from` and written at `to`, they do not overlap, and no reference of this process to them is used
/// meanwhile, other than the caller's own. Other threads access them by this function, or by atomics of one byte.
#[inline(always)]
pub unsafe fn volatile_copy(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller promises that both ranges can be accessed. The instruction uses no stack and leaves the flags
    // alone; the direction flag is clear in Rust code.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for offset in 0..length {
        use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
        // SAFETY: the caller promises that both ranges can be accessed, atomically; `offset` is less than their length.
        unsafe {
            let byte = AtomicU8::from_ptr(from.cast_mut().add(offset)).load(Relaxed);
            AtomicU8::from_ptr(to.add(offset)).store(byte, Relaxed);
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;
    use crate::own_file::tests::{close, replace};
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn number_of_another_file_stays_open() {
        let memory = Memory::map(PAGE as usize, 1, Kind::Shared).ok().unwrap();
        let (number, other) = (memory.fd().unwrap().as_raw_fd(), File::open("/dev/null").unwrap());
        replace(number, &other);
        assert!(memory.fd().is_none());
        drop(memory);
        close(number);
    }
}
