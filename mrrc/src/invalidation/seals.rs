//! Seals of memfds: whether the kernel keeps all pages of shared memory, whatever other processes do.
//!
//! A mapping shows the device and inode of its file, and seals are read by a file descriptor. So one of this process that leads to the
//! same inode is looked for, on a miss in a mapping that is not known yet. Seals are never taken off. Adding them waits for a
//! truncation or a punch that is under way. So memory whose seals can be read loses no page any more.
//!
//! Inodes of memfds are never used again (on 64-bit systems, since Linux 5.9), so those that were seen sealed are remembered. The inodes of huge pages count
//! to 2^32 and begin anew: they are looked up each time, and an open descriptor tells.

use super::{Unwatched, VouchError};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A file: the numbers of its device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// Files that are remembered, of either kind. The oldest is forgotten first, and looked up again.
const REMEMBERED: usize = 1024;
/// Descriptors that are looked at for one file.
const DESCRIPTORS: usize = 1 << 16;
/// How long a file that was refused is not looked up again. A request for such memory would otherwise look at all descriptors.
const REFUSED: Duration = Duration::from_secs(1);

const SHRINK: libc::c_int = libc::F_SEAL_SHRINK;
const WRITES: libc::c_int = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;
const HUGETLBFS: u32 = 0x9584_58f6;

/// The memfds that were looked up.
#[derive(Debug, Default)]
pub(super) struct Seals(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    sealed: VecDeque<FileId>,
    refused: VecDeque<(FileId, Unwatched, Instant)>,
}

impl Seals {
    /// Returns whether the pages of a memfd stay, or else why it is not known.
    pub(super) fn check(&self, file: FileId) -> Result<(), Unwatched> {
        let mut known = self.known();
        if known.sealed.contains(&file) {
            return Ok(());
        }
        known.refused.retain(|&(_, _, when)| when.elapsed() < REFUSED);
        if let Some(&(_, why, _)) = known.refused.iter().find(|&&(refused, ..)| refused == file) {
            return Err(why);
        }
        match find(file) {
            Found::Sealed { is_unique } => {
                known.remember(file, is_unique);
                Ok(())
            }
            Found::Refused(why) => {
                if known.refused.len() == REMEMBERED {
                    known.refused.pop_front();
                }
                known.refused.push_back((file, why, Instant::now()));
                Err(why)
            }
        }
    }

    /// Reads the seals of a descriptor, and remembers its file.
    pub(super) fn vouch(&self, fd: BorrowedFd<'_>) -> Result<(), VouchError> {
        let fd = fd.as_raw_fd();
        let refuse = |source| VouchError::NoSeals { fd, source };
        let seals = seals_of(fd).map_err(refuse)?;
        if !suffice(seals) {
            return Err(VouchError::Unsealed { fd });
        }
        let file = file_of(fd).map_err(refuse)?;
        let mut known = self.known();
        known.refused.retain(|&(refused, ..)| refused != file);
        known.remember(file, has_unique_inode(fd));
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn remember(&mut self, file: FileId, is_unique: bool) {
        if is_unique && !self.sealed.contains(&file) {
            if self.sealed.len() == REMEMBERED {
                self.sealed.pop_front();
            }
            self.sealed.push_back(file);
        }
    }
}

enum Found {
    Sealed { is_unique: bool },
    Refused(Unwatched),
}

/// Looks for a descriptor of this process that leads to the file.
fn find(file: FileId) -> Found {
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return Found::Refused(Unwatched::NoDescriptor) };
    let numbers = descriptors.take(DESCRIPTORS).filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for fd in numbers {
        if file_of(fd).ok() != Some(file) {
            continue;
        }
        let (seals, is_unique) = (seals_of(fd).unwrap_or(0), has_unique_inode(fd));
        // Another thread may have closed it meanwhile, and opened another file by its number.
        if file_of(fd).ok() == Some(file) {
            return if suffice(seals) { Found::Sealed { is_unique } } else { Found::Refused(Unwatched::Unsealed) };
        }
    }
    Found::Refused(Unwatched::NoDescriptor)
}

/// Returns whether a file with these seals keeps its pages: truncation is refused, and so is punching.
fn suffice(seals: libc::c_int) -> bool {
    seals & SHRINK != 0 && seals & WRITES != 0
}

#[expect(unsafe_code, reason = "a system call")]
fn seals_of(fd: RawFd) -> io::Result<libc::c_int> {
    // SAFETY: `fcntl` with F_GET_SEALS takes a number, accesses no memory, and refuses one that is no descriptor.
    match unsafe { libc::fcntl(fd, libc::F_GET_SEALS) } {
        seals @ 0.. => Ok(seals),
        _ => Err(io::Error::last_os_error()),
    }
}

#[expect(unsafe_code, reason = "a system call")]
fn file_of(fd: RawFd) -> io::Result<FileId> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` writes one `stat`, for which there is room. It refuses a number that is no descriptor.
    if unsafe { libc::fstat(fd, found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fstat` succeeded, so it has written the whole.
    let found = unsafe { found.assume_init() };
    Ok(FileId { device: found.st_dev, inode: found.st_ino })
}

/// Returns whether the inode of a memfd is never used for another one.
#[expect(unsafe_code, reason = "a system call")]
fn has_unique_inode(fd: RawFd) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `fstatfs` writes one `statfs`, for which there is room. It refuses a number that is no descriptor.
    if !cfg!(target_pointer_width = "64") || unsafe { libc::fstatfs(fd, found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: `fstatfs` succeeded, so it has written the whole.
    let found = unsafe { found.assume_init() };
    found.f_type != HUGETLBFS.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};

    #[expect(unsafe_code, reason = "system calls")]
    fn memfd(flags: libc::c_uint, seals: libc::c_int) -> File {
        // SAFETY: the name is a C string, and the descriptor is new and owned by the file.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags)) };
        file.set_len(8192).unwrap();
        // SAFETY: `fcntl` with F_ADD_SEALS takes numbers.
        assert!(seals == 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0);
        file
    }

    const SEALABLE: libc::c_uint = libc::MFD_ALLOW_SEALING;

    #[test]
    #[cfg_attr(miri, ignore = "it makes memfds")]
    fn only_seals_against_loss_of_pages_suffice() {
        use libc::{F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_WRITE};
        let of = |seals| {
            let file = memfd(SEALABLE, seals);
            let id = file_of(file.as_raw_fd()).unwrap();
            (Seals::default().check(id), Seals::default().vouch(file.as_fd()).is_ok())
        };
        for seals in [0, F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, F_SEAL_GROW | F_SEAL_WRITE] {
            assert_eq!(of(seals), (Err(Unwatched::Unsealed), false), "{seals:#x}");
        }
        for seals in [F_SEAL_SHRINK | F_SEAL_WRITE, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE] {
            assert_eq!(of(seals), (Ok(()), true), "{seals:#x}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes memfds")]
    fn a_closed_descriptor_counts_if_it_vouched() {
        let vouched = memfd(SEALABLE, SHRINK | WRITES);
        let (seals, id) = (Seals::default(), file_of(vouched.as_raw_fd()).unwrap());
        seals.vouch(vouched.as_fd()).unwrap();
        drop(vouched);
        assert_eq!(seals.check(id), Ok(()));
        let forgotten = Seals::default();
        assert_eq!(forgotten.check(id), Err(Unwatched::NoDescriptor));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes memfds")]
    fn later_seals_count_once_vouched() {
        let file = memfd(SEALABLE, 0);
        let (seals, id) = (Seals::default(), file_of(file.as_raw_fd()).unwrap());
        assert_eq!(seals.check(id), Err(Unwatched::Unsealed));
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: `fcntl` with F_ADD_SEALS takes numbers.
        let added = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SHRINK | libc::F_SEAL_FUTURE_WRITE) };
        assert_eq!(added, 0);
        // The refusal is remembered for a moment.
        seals.vouch(file.as_fd()).unwrap();
        assert_eq!(seals.check(id), Ok(()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes memfds")]
    fn files_without_seals_vouch_for_nothing() {
        let seals = Seals::default();
        let error = |fd: BorrowedFd<'_>| seals.vouch(fd).unwrap_err().to_string();
        assert!(error(memfd(0, 0).as_fd()).contains("F_SEAL_SHRINK"));
        assert!(error(File::open("/proc/self/exe").unwrap().as_fd()).contains("MFD_ALLOW_SEALING"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = Known::default();
        for inode in 0..2 * REMEMBERED as u64 {
            known.remember(FileId { device: 1, inode }, true);
        }
        known.remember(FileId { device: 1, inode: 0 }, false);
        assert_eq!((known.sealed.len(), known.sealed[0].inode), (REMEMBERED, REMEMBERED as u64));
    }
}
