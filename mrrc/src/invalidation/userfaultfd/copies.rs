//! A forked child closes its copies of userfaultfds.
//!
//! A copy keeps the userfaultfd alive when the parent has closed its own descriptor. The kernel then goes on to send messages that
//! no thread can read, and unmappings in the parent wait until the child ends.
//!
//! A hook of `fork` walks a list of what is open. It takes no lock and allocates nothing, because the threads of the parent are
//! missing in the child. Entries of the list are reused and never freed.

#![expect(unsafe_code, reason = "system calls")]

use crate::own_file::{Identity, identity};
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// An entry that is not in use.
const FREE: RawFd = -1;
/// An entry whose identity is being written.
const CLAIMED: RawFd = -2;
/// An entry whose descriptor is the parent's. It is in use until its owner is dropped.
const PARENTS: RawFd = -3;

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(std::ptr::null_mut());

#[derive(Debug)]
struct Entry {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    flags: AtomicI32,
    /// Set before the entry is in the list.
    next: AtomicPtr<Entry>,
}

/// A descriptor's place in the list, until dropped.
#[derive(Debug)]
pub(super) struct Listed(&'static Entry);

impl Listed {
    pub(super) fn new(fd: RawFd, identity: Identity) -> Self {
        install_hook();
        let claim =
            |entry: &&Entry| entry.fd.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let entry = entries().find(claim).unwrap_or_else(add_entry);
        entry.device.store(identity.device, Ordering::Relaxed);
        entry.inode.store(identity.inode, Ordering::Relaxed);
        entry.flags.store(identity.flags, Ordering::Relaxed);
        entry.fd.store(fd, Ordering::Release);
        Self(entry)
    }

    /// Returns false in a child of the process that opened the descriptor.
    pub(super) fn is_here(&self) -> bool {
        self.0.fd.load(Ordering::Relaxed) >= 0
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.fd.store(FREE, Ordering::Release);
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: a pointer in the list is null or leads to an entry that `add_entry` leaked, so it is valid for ever.
    let entry = |link: &AtomicPtr<Entry>| unsafe { link.load(Ordering::Acquire).as_ref() };
    std::iter::successors(entry(&FIRST), move |last| entry(&last.next))
}

/// Adds a claimed entry to the list.
fn add_entry() -> &'static Entry {
    let entry: &'static Entry = Box::leak(Box::new(Entry {
        fd: AtomicI32::new(CLAIMED),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        flags: AtomicI32::new(0),
        next: AtomicPtr::default(),
    }));
    let mut first = FIRST.load(Ordering::Relaxed);
    loop {
        entry.next.store(first, Ordering::Relaxed);
        let this = std::ptr::from_ref(entry).cast_mut();
        match FIRST.compare_exchange_weak(first, this, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return entry,
            Err(now) => first = now,
        }
    }
}

fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: `close_copies` makes only async-signal-safe calls, which is what a child of a process with threads may make.
        // If the hook cannot be installed, children keep their copies.
        unsafe { libc::pthread_atfork(None, None, Some(close_copies)) };
    });
}

/// Runs in the child. A number that leads to another file by now stays open.
extern "C" fn close_copies() {
    for entry in entries() {
        let fd = entry.fd.load(Ordering::Acquire);
        if fd < 0 {
            continue;
        }
        entry.fd.store(PARENTS, Ordering::Relaxed);
        let own = Identity {
            device: entry.device.load(Ordering::Relaxed),
            inode: entry.inode.load(Ordering::Relaxed),
            flags: entry.flags.load(Ordering::Relaxed),
        };
        // Before Linux 5.12 all anonymous files had one inode, so the kind of the file is compared, too.
        if identity(fd).is_ok_and(|now| now == own) && is_userfaultfd(fd) {
            // SAFETY: the number leads to the child's copy of the userfaultfd. The monitor makes no call through it in a child.
            unsafe { libc::close(fd) };
        }
    }
}

/// Returns whether the number leads to a userfaultfd. False without `/proc`. Allocates nothing.
fn is_userfaultfd(fd: RawFd) -> bool {
    const KIND: &[u8] = b"anon_inode:[userfaultfd]";
    let path = path_of(fd);
    let mut target = [0_u8; KIND.len() + 1];
    // SAFETY: `path` ends with a zero, and `readlink` writes at most the length that it is given.
    let length = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    usize::try_from(length).is_ok_and(|length| &target[..length] == KIND)
}

const FOLDER: &[u8; 14] = b"/proc/self/fd/";

/// Returns `/proc/self/fd/N`, followed by zeros.
fn path_of(fd: RawFd) -> [u8; 32] {
    let mut path = [0; 32];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let digits = fd.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = fd.unsigned_abs();
    for digit in path[FOLDER.len()..][..digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_paths_of_numbers() {
        for fd in [0, 7, 10, 1023, RawFd::MAX] {
            let path = path_of(fd);
            let end = path.iter().position(|&byte| byte == 0).unwrap();
            assert_eq!(std::str::from_utf8(&path[..end]).unwrap(), format!("/proc/self/fd/{fd}"));
        }
    }

    #[test]
    fn other_files_are_no_userfaultfd() {
        use std::os::fd::AsRawFd;
        assert!(!is_userfaultfd(std::fs::File::open("/dev/null").unwrap().as_raw_fd()));
        assert!(!is_userfaultfd(RawFd::MAX));
    }
}
