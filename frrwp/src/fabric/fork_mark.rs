//! Tells a process from a child that was forked from it, by one load.
#![expect(unsafe_code, reason = "a page that the kernel wipes in a child")]

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Names the process in which it was made. Copies in a child that was forked name the parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForkMark {
    /// In a page that a child finds wiped.
    word: &'static AtomicU64,
    value: u64,
}

impl ForkMark {
    /// Returns the mark of this process.
    ///
    /// # Errors
    /// The system has no memory, or no random numbers.
    pub(super) fn here() -> io::Result<Self> {
        static WORD: OnceLock<Result<&'static AtomicU64, Errno>> = OnceLock::new();
        let word = (*WORD.get_or_init(page))?;
        if word.load(Relaxed) == 0 {
            let mut bytes = [0; 8];
            if getrandom(&mut bytes, GetRandomFlags::empty())? < bytes.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Another thread may be first.
            let _ = word.compare_exchange(0, u64::from_ne_bytes(bytes) | 1, Relaxed, Relaxed);
        }
        Ok(Self { word, value: word.load(Relaxed) })
    }

    /// Returns whether this process, and not its parent, made the mark.
    #[inline(always)]
    pub(super) fn is_here(self) -> bool {
        self.word.load(Relaxed) == self.value
    }
}

impl PartialEq for ForkMark {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// Returns a page for as long as the process lives.
fn page() -> Result<&'static AtomicU64, Errno> {
    let bytes = rustix::param::page_size();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists; it is never unmapped, so the reference
    // to its first word, which is aligned and zero, stays valid.
    unsafe {
        let page = mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE)?;
        madvise(page, bytes, Advice::LinuxWipeOnFork)?;
        Ok(AtomicU64::from_ptr(page.cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_told_from_its_parent() {
        let mark = ForkMark::here().unwrap();
        assert!(mark.is_here() && mark == ForkMark::here().unwrap());
        // SAFETY: the child looks at its marks, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs is ended by the signal.
            unsafe { libc::alarm(60) };
            let own = ForkMark::here();
            let told = !mark.is_here() && own.is_ok_and(|own| own.is_here() && own != mark);
            // SAFETY: `_exit` ends this child without destructors.
            unsafe { libc::_exit(i32::from(!told)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a local integer that the call may write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(mark.is_here());
    }
}
