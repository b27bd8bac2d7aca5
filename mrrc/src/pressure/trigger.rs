//! The kernel's trigger of memory pressure: it wakes a thread, which need not look at counters meanwhile.
//!
//! `Documentation/accounting/psi.rst`: what is written to a file as `/proc/pressure/memory` makes the open file a trigger, which `poll` waits for.
//! Before Linux 6.5 that takes CAP_SYS_RESOURCE. The events of a control group are waited for in the same way, by any process.

use crate::own_file::OwnFile;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A trigger, as long as the file is open.
#[derive(Debug)]
pub(super) struct Trigger {
    file: OwnFile,
    /// Set when the kernel has ended it, as with its control group.
    is_over: AtomicBool,
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Woken {
    /// Threads stalled as long as the trigger says.
    pub(super) has_fired: bool,
    /// It did not end by its time.
    pub(super) is_early: bool,
}

impl Trigger {
    /// Sets a trigger of stalls of some thread for so long within so much time.
    ///
    /// # Errors
    /// There is no such file, or this process may not set it.
    pub(super) fn set(source: &Path, stall: Duration, window: Duration) -> io::Result<Self> {
        let mut file = File::options().read(true).write(true).open(source)?;
        // In one piece, and with the byte that ends it.
        file.write_all(format!("some {} {}\0", stall.as_micros(), window.as_micros()).as_bytes())?;
        Ok(Self { file: OwnFile::new(file)?, is_over: AtomicBool::new(false) })
    }

    /// Returns whether the kernel still has it.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Waits until it fires or the events of a group change, at most so long.
    #[cfg(target_os = "linux")]
    pub(super) fn wait(&self, events: Option<&OwnFile>, longest: Duration) -> Woken {
        use std::os::fd::AsRawFd;
        let entry = |file: &File| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        let Ok(file) = self.file.get() else {
            // The program has closed it.
            self.is_over.store(true, Ordering::Relaxed);
            return Woken { has_fired: false, is_early: true };
        };
        // An entry with a negative number is passed over.
        let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut entries = [entry(file), events.and_then(|events| events.get().ok()).map_or(none, entry)];
        let milliseconds = libc::c_int::try_from(longest.as_millis()).unwrap_or(libc::c_int::MAX);
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: `poll` writes the results of as many entries as it is told, and these live until it returns. The files are open.
        let ready = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
        let of_trigger = entries[0].revents;
        if ready > 0 && of_trigger & (libc::POLLERR | libc::POLLNVAL | libc::POLLHUP) != 0 {
            self.is_over.store(true, Ordering::Relaxed);
        }
        Woken { has_fired: ready > 0 && of_trigger & libc::POLLPRI != 0 && self.is_whole(), is_early: ready != 0 }
    }

    /// Waits so long: this system has no triggers.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn wait(&self, _: Option<&OwnFile>, longest: Duration) -> Woken {
        std::thread::sleep(longest);
        Woken { has_fired: false, is_early: false }
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// A file that is no trigger: `poll` says nothing of it that was asked for, so the time ends a wait.
    #[test]
    fn files_of_other_kinds_never_fire() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pressure");
        assert!(Trigger::set(&path, Duration::from_millis(150), Duration::from_secs(2)).is_err());
        std::fs::write(&path, "").unwrap();
        let trigger = Trigger::set(&path, Duration::from_millis(150), Duration::from_secs(2)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"some 150000 2000000\0");
        let woken = trigger.wait(None, Duration::from_millis(1));
        assert_eq!((woken, trigger.is_whole()), (Woken { has_fired: false, is_early: false }, true));
    }

    #[test]
    fn trigger_that_ended_is_over() {
        let (reader, writer) = io::pipe().unwrap();
        let writer = File::from(OwnedFd::from(writer));
        let trigger = Trigger { file: OwnFile::new(writer).unwrap(), is_over: AtomicBool::new(false) };
        drop(reader);
        assert_eq!(trigger.wait(None, Duration::from_secs(60)), Woken { has_fired: false, is_early: true });
        assert!(!trigger.is_whole());
    }
}
