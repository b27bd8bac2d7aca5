//! The last failure of the backing directory, which the agent notes for others to see.

use std::time::{Duration, SystemTime};

use rdmakv_proto::files::{Generation, Ino, Key};
use rustix::io::Errno;

use crate::persist::{FAILURE, failed, failure};

/// The key of the note. The root is never published, so no file has this key.
pub(crate) const NOTE: Key = Key::Persisted(Ino::ROOT, Generation(0), FAILURE);

/// How long the note lasts.
pub(crate) const LASTS: Duration = Duration::from_secs(24 * 3600);

/// A failure of the backing directory: it is full, or has an error.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DiskError {
    /// The path of the file that could not be written or shown; `/` if an agent could not begin.
    pub path: Vec<u8>,
    /// The error of the directory's file system.
    pub errno: Errno,
    /// When it was, by the clock of the agent's machine, in whole seconds.
    pub at: SystemTime,
}

impl DiskError {
    /// Returns the value of the note: seconds since 1970 (8 bytes), the errno (4), the path.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let seconds = self.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        [&seconds.to_le_bytes(), &failure(self.errno)[..], &self.path].concat()
    }

    /// Returns the failure that a note has; None if the bytes are no note.
    pub(crate) fn decode(note: &[u8]) -> Option<Self> {
        let (seconds, rest) = note.split_first_chunk()?;
        let (errno, path) = rest.split_first_chunk::<4>()?;
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_le_bytes(*seconds)))?;
        Some(Self { path: path.to_vec(), errno: failed(errno)?, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let error = DiskError { path: b"/a/\xff".to_vec(), errno: Errno::NOSPC, at };
        assert_eq!(DiskError::decode(&error.encode()), Some(error.clone()));
        let all = DiskError { at: SystemTime::UNIX_EPOCH, path: Vec::new(), ..error };
        assert_eq!(DiskError::decode(&all.encode()), Some(all.clone()));
        for bytes in [&b""[..], &all.encode()[..11], &[0; 12], &[255; 40]] {
            assert_eq!(DiskError::decode(bytes), None);
        }
    }
}
