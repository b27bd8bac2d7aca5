//! Which named shared memory is cached: memory that another process can change too.

use std::io;
use std::os::fd::RawFd;

/// Which named shared memory a cache keeps registered. The setting `shared`, and `MRRC_SHARED`.
///
/// Another process can truncate such memory or punch holes into it, and no monitor hears of that. So it needs a reason why that does
/// not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Shared mappings of memfds that are sealed with `F_SEAL_SHRINK`, and with `F_SEAL_WRITE` or `F_SEAL_FUTURE_WRITE`. The kernel
    /// refuses to truncate or punch those, for good.
    ///
    /// The seals are read by a file descriptor of the process that leads to the memory, when the first region in a mapping is made. If the
    /// descriptor is closed before that, pass it to [`Cache::vouch`](crate::Cache::vouch) first.
    #[default]
    Sealed,
    /// Those of all memfds, and of files in `/dev/shm` and `/dev/hugepages`. You vouch that none is truncated or punched while it is
    /// mapped. System V segments are not among them: `shmdt` goes unnoticed.
    Trusted,
    /// None.
    Off,
}

impl SharedMemory {
    pub(crate) const ALL: [Self; 3] = [Self::Sealed, Self::Trusted, Self::Off];

    /// Returns its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sealed => "sealed",
            Self::Trusted => "trusted",
            Self::Off => "off",
        }
    }
}

/// Why a file descriptor does not vouch for its memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VouchError {
    /// The memory can be truncated or punched.
    #[error(
        "vouch for file descriptor {fd}: its memory is not sealed against that it loses pages: add F_SEAL_SHRINK, and F_SEAL_FUTURE_WRITE \
         or F_SEAL_WRITE"
    )]
    Unsealed {
        /// The descriptor.
        fd: RawFd,
    },
    /// It has no seals.
    #[error("vouch for file descriptor {fd}: {source}: pass one of a memfd that was made with MFD_ALLOW_SEALING")]
    NoSeals {
        /// The descriptor.
        fd: RawFd,
        /// The system's error.
        source: io::Error,
    },
    /// The monitor has no use for it.
    #[error(
        "vouch for file descriptor {fd}: monitor {monitor} reads no seals: build the cache with monitor userfaultfd"
    )]
    Monitor {
        /// The descriptor.
        fd: RawFd,
        /// The monitor's name.
        monitor: &'static str,
    },
}
