//! Files of ours in a program that may close them, as programs do that close all their files.
//!
//! The number of such a file can be another file's then. So a file is compared with the one that was opened before its number is closed,
//! and before anything is read from it that matters. The program may have opened a file of the same name, as it may `/proc/self/maps`. So each
//! file of ours has a mark that files for reading do not have: it is set to append.
//!
//! A duplicate of a file of the program's has its flags, too, so it is not marked. Its inode is no other file's, and tells it from others.

#![expect(unsafe_code, reason = "system calls")]

use std::fs::File;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

/// Tells an open file from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) device: libc::dev_t,
    pub(crate) inode: libc::ino_t,
    /// With the [mark](mark).
    pub(crate) flags: libc::c_int,
}

/// Marks an open file as ours. Where the system refuses that, its name alone tells it from others.
pub(crate) fn mark(fd: RawFd) {
    // SAFETY: `fcntl` with F_GETFL and F_SETFL takes numbers.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_APPEND);
        }
    }
}

/// Returns the identity of the file that a number leads to. Allocates nothing, and makes only async-signal-safe calls.
///
/// # Errors
/// No file is open by that number.
pub(crate) fn identity(fd: RawFd) -> io::Result<Identity> {
    let (device, inode) = inode(fd)?;
    // SAFETY: `fcntl` with F_GETFL takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Identity { device, inode, flags })
}

/// Returns the device and the inode of the file that a number leads to.
fn inode(fd: RawFd) -> io::Result<(libc::dev_t, libc::ino_t)> {
    let mut file = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` writes one `stat`, for which there is room.
    if unsafe { libc::fstat(fd, file.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fstat` returned 0, so it has filled the structure.
    let file = unsafe { file.assume_init() };
    Ok((file.st_dev, file.st_ino))
}

/// A file of ours. When it is dropped it is closed, unless its number leads to another file by then, or to none.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: ManuallyDrop<File>,
    identity: Identity,
    is_marked: bool,
}

impl OwnFile {
    /// # Errors
    /// Those of the system.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        mark(file.as_raw_fd());
        Self::with(file, true)
    }

    /// Takes a file whose flags others may see and change: a duplicate of theirs, or one that they may have duplicates of. No other file has
    /// its inode.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn unmarked(file: File) -> io::Result<Self> {
        Self::with(file, false)
    }

    fn with(file: File, is_marked: bool) -> io::Result<Self> {
        Ok(Self { identity: identity(file.as_raw_fd())?, file: ManuallyDrop::new(file), is_marked })
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(File::open(path)?)
    }

    /// Returns the file.
    ///
    /// # Errors
    /// The program has closed it.
    pub(crate) fn get(&self) -> io::Result<&File> {
        if self.is_ours() { Ok(&self.file) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    /// Returns its number, which may lead to another file.
    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn is_ours(&self) -> bool {
        if self.is_marked {
            identity(self.number()).is_ok_and(|now| now == self.identity)
        } else {
            inode(self.number()).is_ok_and(|now| now == (self.identity.device, self.identity.inode))
        }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: `file` is not used after this, because its owner is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.file) }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle, miri))))]
pub(crate) mod tests {
    use super::*;

    /// Has a number lead to another file, as after the program closed it and opened that one.
    pub(crate) fn replace(number: RawFd, other: &File) {
        // SAFETY: both numbers are open, and the test owns them. `dup2` leaves none of them free meanwhile.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    }

    /// Closes a number that [`replace`] led to another file. Fails if that was closed already.
    pub(crate) fn close(number: RawFd) {
        // SAFETY: the test opened a file by this number, and nothing uses it.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }

    #[test]
    fn own_files_are_read_and_closed() {
        let file = OwnFile::open("/proc/self/maps").unwrap();
        let before = identity(file.number()).unwrap();
        assert!(file.get().is_ok());
        let number = file.number();
        drop(file);
        // Another thread may have opened a file by that number.
        assert!(identity(number).map_or(true, |now| now != before));
    }

    #[test]
    fn numbers_of_other_files_stay_open() {
        for path in ["/dev/null", "/proc/self/maps"] {
            let (file, other) = (OwnFile::open("/proc/self/maps").unwrap(), File::open(path).unwrap());
            let number = file.number();
            replace(number, &other);
            assert_eq!(file.get().unwrap_err().raw_os_error(), Some(libc::EBADF), "{path}");
            drop(file);
            assert_eq!(identity(number).unwrap(), identity(other.as_raw_fd()).unwrap(), "{path}");
            close(number);
        }
    }

    #[test]
    fn flags_of_a_duplicate_are_the_programs() {
        let own = File::open("/dev/null").unwrap();
        let duplicate = OwnFile::unmarked(own.try_clone().unwrap()).unwrap();
        let before = identity(own.as_raw_fd()).unwrap();
        assert_eq!(before.flags & libc::O_APPEND, 0);
        // The program marks its file.
        mark(own.as_raw_fd());
        assert_ne!(identity(own.as_raw_fd()).unwrap(), before);
        assert!(duplicate.get().is_ok());
    }

    #[test]
    fn numbers_of_duplicates_that_are_anothers_stay_open() {
        let (own, other) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
        let duplicate = OwnFile::unmarked(own.try_clone().unwrap()).unwrap();
        let number = duplicate.number();
        replace(number, &other);
        assert_eq!(duplicate.get().unwrap_err().raw_os_error(), Some(libc::EBADF));
        drop(duplicate);
        close(number);
    }
}
