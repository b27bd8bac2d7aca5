//! Gives a memory file its size, where a limit on file sizes is an error and not a signal.
#![expect(unsafe_code, reason = "blocks a signal of this thread for one call")]

use rustix::fd::AsFd;
use rustix::io::Errno;

/// Why a memory file does not get its size.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The limit on file sizes (`RLIMIT_FSIZE`) is smaller.
    #[error("make {bytes} bytes of shared memory: the limit on file sizes does not allow it: raise it (ulimit -f)")]
    Limit {
        /// The requested size.
        bytes: u64,
    },
    /// Any other error of the system.
    #[error("make {bytes} bytes of shared memory: {source}: raise the limits on memory")]
    System {
        /// The requested size.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<GrowError> for std::io::Error {
    fn from(error: GrowError) -> Self {
        match error {
            GrowError::Limit { .. } => Self::new(std::io::ErrorKind::FileTooLarge, error),
            GrowError::System { source, .. } => source,
        }
    }
}

/// Gives a memory file so many bytes.
///
/// A file beyond the limit on file sizes (`RLIMIT_FSIZE`) gets the caller the signal `SIGXFSZ`, which ends a process that does not
/// expect it. The signal is blocked meanwhile, and taken if it comes.
///
/// # Errors
/// [`GrowError`].
pub fn grow_file(file: impl AsFd, bytes: u64) -> Result<(), GrowError> {
    // SAFETY: zeroes are sets of signals, which are this function's own, and live; the calls change the mask of this thread only,
    // and the last one restores it.
    unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut before);
        libc::sigpending(&mut pending);
        let was_pending = libc::sigismember(&pending, libc::SIGXFSZ) == 1;
        let done = rustix::fs::ftruncate(&file, bytes);
        if done.is_err() && !was_pending {
            // The system sends the signal to this thread, before the call returns.
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&blocked, std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        done.map_err(|error| match error {
            Errno::FBIG => GrowError::Limit { bytes },
            error => GrowError::System { bytes, source: error.into() },
        })
    }
}
