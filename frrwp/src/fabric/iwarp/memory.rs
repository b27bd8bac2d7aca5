//! Memory that peers reach, touched by this side: through the kernel, because it may be unmapped at any moment.
//!
//! Between a socket and such memory lies a thread's [`Buffer`]: a memfd that the thread alone has, mapped. The thread reads
//! and sums up what is in the mapping. Between the file and an address the kernel copies, by a plain read or write of the
//! file, and says whether the address is mapped. `process_vm_writev` to oneself does the same for two to three times as
//! much: it looks the process up and holds each page.
#![expect(unsafe_code, reason = "system calls that take addresses, and a mapping")]

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a buffer: as much as stays in a processor's cache between its socket and its target.
pub(super) const SIZE: usize = 256 * 1024;
const PAGE: usize = mrrc::PAGE as usize;

thread_local! {
    static BUFFER: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// A thread's bytes, on their way between a socket and memory that peers reach.
///
/// A child has none: it would share the bytes with its parent. Its first use makes one of its own.
pub(super) struct Buffer {
    file: OwnedFd,
    base: *mut u8,
    /// A page that the kernel wipes in a child: 1 in the process that made the buffer.
    mark: *mut u8,
}

impl Buffer {
    fn new() -> io::Result<Self> {
        let file = memfd_create("iwarp", MemfdFlags::CLOEXEC)?;
        crate::fabric::grow_file(&file, SIZE as u64)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let mark = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, rights, MapFlags::PRIVATE) }?;
        let mut buffer = Self { file, base: std::ptr::null_mut(), mark: mark.cast() };
        // SAFETY: the page is this buffer's, and is not written again.
        unsafe {
            madvise(mark, PAGE, Advice::LinuxWipeOnFork)?;
            buffer.mark.write_volatile(1);
        }
        // SAFETY: a new mapping where the kernel likes, of a file as long as it.
        let base = unsafe { mmap(std::ptr::null_mut(), SIZE, rights, MapFlags::SHARED, &buffer.file, 0) }?;
        buffer.base = base.cast();
        // SAFETY: the mapping is this buffer's own, `SIZE` bytes at `base`.
        unsafe { madvise(base, SIZE, Advice::LinuxDontFork) }?;
        Ok(buffer)
    }

    /// Returns whether this process, and not its parent, made the buffer.
    fn is_here(&self) -> bool {
        // SAFETY: the page is mapped as long as the buffer lives.
        unsafe { self.mark.read_volatile() == 1 }
    }

    /// Lends the thread's buffer, which is made when it is first asked for.
    ///
    /// # Errors
    /// The system has no memory, or no descriptor, for it.
    pub(super) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> io::Result<T> {
        let mut buffer = BUFFER.take().filter(Self::is_here).map_or_else(Self::new, Ok)?;
        let outcome = work(&mut buffer);
        BUFFER.set(Some(buffer));
        Ok(outcome)
    }

    /// Gives the thread's buffer back to the system, descriptor and all, until it is needed again.
    pub(super) fn give_back() {
        drop(BUFFER.take());
    }

    /// Copies bytes of the buffer to an address of this process.
    ///
    /// # Errors
    /// `EFAULT` where it is not mapped so that it can be written.
    ///
    /// # Safety
    /// Its owner lets the bytes be written.
    pub(super) unsafe fn put(&self, bytes: Range<usize>, to: *mut u8) -> io::Result<()> {
        let length = bytes.len();
        // SAFETY: the kernel checks the address; that it may be written is the caller's promise.
        let copied = unsafe { libc::pread(self.file.as_raw_fd(), to.cast(), length, bytes.start as libc::off_t) };
        all(copied, length)
    }

    /// Copies bytes from an address of this process to the buffer's start.
    ///
    /// # Errors
    /// `EFAULT` where it is not mapped.
    pub(super) fn get(&mut self, from: *const u8, length: usize) -> io::Result<&[u8]> {
        // A write past the end would lengthen the file, and not the mapping.
        let length = length.min(SIZE);
        // SAFETY: the kernel checks the source; what it writes is lent to the caller of this alone.
        let copied = unsafe { libc::pwrite(self.file.as_raw_fd(), from.cast(), length, 0) };
        all(copied, length)?;
        Ok(&self[..length])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mappings are this buffer's, and end with it; a child has the mark alone.
        unsafe {
            if self.is_here() && !self.base.is_null() {
                let _ = munmap(self.base.cast(), SIZE);
            }
            let _ = munmap(self.mark.cast(), PAGE);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped as long as the buffer lives, and written by its owner alone: no other has the file.
        unsafe { std::slice::from_raw_parts(self.base, SIZE) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this buffer's own, `SIZE` bytes at `base`, and `&mut self` shows that it is borrowed
        // alone.
        unsafe { std::slice::from_raw_parts_mut(self.base, SIZE) }
    }
}

fn all(copied: isize, length: usize) -> io::Result<()> {
    match usize::try_from(copied) {
        Ok(copied) if copied == length => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_is_an_error() {
        Buffer::with(|buffer| {
            let mut bytes = [0; 3];
            buffer[5..8].copy_from_slice(b"abc");
            // SAFETY: the array is this test's own and has room for the bytes.
            unsafe { buffer.put(5..8, bytes.as_mut_ptr()) }.unwrap();
            assert_eq!(bytes, *b"abc");
            assert_eq!(buffer.get(bytes.as_ptr(), 3).unwrap(), b"abc");
            // SAFETY: `put` reports an address without memory, which is what this test passes, as an error.
            let error = unsafe { buffer.put(5..8, 64 as *mut u8) }.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            assert_eq!(buffer.get(64 as *const u8, 3).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        })
        .unwrap();
    }

    #[test]
    fn a_buffer_is_made_once_a_thread() {
        let base = || Buffer::with(|buffer| buffer.base as usize).unwrap();
        let here = base();
        assert_eq!(base(), here);
        assert_ne!(std::thread::spawn(base).join().unwrap(), here);
    }

    #[test]
    fn a_child_makes_a_buffer_of_its_own() {
        let work = |byte: u8| Buffer::with(|buffer| std::mem::replace(&mut buffer[0], byte)).unwrap();
        work(1);
        // SAFETY: the child maps memory, and ends at once; no memory is passed to the other calls but the status, which lives.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // A child that hangs is ended by the signal.
                libc::alarm(60);
                let found = std::panic::catch_unwind(|| work(2)).unwrap_or(9);
                libc::_exit(found.into());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0, "it found nothing in it");
        }
        assert_eq!(work(3), 1, "the parent's is as it was");
    }
}
