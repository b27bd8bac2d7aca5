//! The wait of a sync for the backing directory.

use std::time::{Duration, Instant};

use rdmakv_proto::files::{Generation, Inode, State};
use rustix::io::Errno;

/// In a key `p/INO/GEN/SERVER`, in place of a server: why the agent could not write or show the generation.
pub(crate) const FAILURE: u8 = u8::MAX - 1;

/// How long the agent's note of a failure lasts: it tries again after five seconds, and notes it anew.
pub(crate) const FAILURE_LASTS: Duration = Duration::from_secs(15);

/// How long a file may wait before a full directory counts as the reason: the agent tries again after as long.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// A sync that waits for the backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    pub(crate) generation: Generation,
    pub(crate) since: Instant,
    /// The version of the agent's note that was there when it began. What failed before may be mended.
    stale: Option<u64>,
}

impl Wait {
    /// Begins, with the version of the agent's note of this generation if there is one.
    pub(crate) fn begin(generation: Generation, note: Option<u64>, now: Instant) -> Self {
        Self { generation, since: now, stale: note }
    }

    /// Returns why the agent failed since it began, by the version and the bytes of its note.
    pub(crate) fn failure(&self, note: Option<(u64, &[u8])>) -> Option<Errno> {
        let (_, bytes) = note.filter(|&(version, _)| self.stale != Some(version))?;
        failed(bytes)
    }
}

/// How far a frozen file is on its way to the backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// The backing shows them, or never will: the file has no name.
    Done,
    Waits,
    /// The directory does not take them.
    Fails(Errno),
}

/// The room in a directory's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Space {
    pub(crate) is_read_only: bool,
    /// Bytes.
    pub(crate) free: u64,
    /// Bytes that the data file takes already.
    pub(crate) taken: u64,
}

/// Returns the value of the agent's note of a failure.
pub(crate) fn failure(errno: Errno) -> [u8; 4] {
    errno.raw_os_error().to_le_bytes()
}

/// Returns the errno of the agent's note; None if the bytes are none.
pub(crate) fn failed(note: &[u8]) -> Option<Errno> {
    let number = i32::from_le_bytes(note.try_into().ok()?);
    (1..4096).contains(&number).then(|| Errno::from_raw_os_error(number))
}

/// Decides how far a frozen file is that has waited for so long. `failed` is why the agent could not carry it lately.
pub(crate) fn standing(inode: &Inode, waited: Duration, space: Space, failed: Option<Errno>) -> Standing {
    let chunks: u64 = inode.map.iter().map(|run| u64::from(run.count)).sum();
    let needed = (chunks << inode.chunk_bits).min(inode.size).saturating_sub(space.taken);
    match inode.state {
        State::Persisted => Standing::Done,
        _ if inode.is_unlinked => Standing::Done,
        _ if waited < AGAIN => Standing::Waits,
        _ if space.is_read_only => Standing::Fails(Errno::ROFS),
        _ if needed > space.free => Standing::Fails(Errno::NOSPC),
        _ => failed.map_or(Standing::Waits, Standing::Fails),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::empty_file;
    use rdmakv_proto::files::{Generation, Run};

    #[test]
    fn a_failure_is_noted_and_read() {
        assert_eq!(failed(&failure(Errno::DQUOT)), Some(Errno::DQUOT));
        for bytes in [&b""[..], &[0; 4], &[255; 4], b"later"] {
            assert_eq!(failed(bytes), None);
        }
    }

    #[test]
    fn a_note_of_an_earlier_failure_does_not_count() {
        let note = failure(Errno::DQUOT);
        let at = |stale| Wait::begin(Generation(3), stale, Instant::now());
        let seen = |version| Some((version, &note[..]));
        assert_eq!((at(Some(7)).failure(seen(7)), at(Some(7)).failure(None)), (None, None));
        assert_eq!((at(Some(7)).failure(seen(8)), at(None).failure(seen(7))), (Some(Errno::DQUOT), Some(Errno::DQUOT)));
    }

    #[test]
    fn a_full_directory_is_told_after_a_while() {
        let mut inode = Inode {
            size: 1 << 20,
            generation: Generation(1),
            reserved: Generation(1),
            map: vec![Run { first: 0, count: 4, generation: Generation(1) }],
            ..empty_file()
        };
        let space = |free, taken| Space { is_read_only: false, free, taken };
        let after = |inode: &Inode, space| standing(inode, AGAIN, space, None);
        assert_eq!(standing(&inode, AGAIN / 2, space(0, 0), Some(Errno::IO)), Standing::Waits);
        assert_eq!(standing(&inode, AGAIN, space(1 << 30, 0), Some(Errno::DQUOT)), Standing::Fails(Errno::DQUOT));
        assert_eq!(after(&inode, space(0, 0)), Standing::Fails(Errno::NOSPC));
        // Four chunks are needed, whatever the size: holes take no room.
        assert_eq!(after(&inode, space((4 << 16) - 1, 0)), Standing::Fails(Errno::NOSPC));
        assert_eq!(
            (after(&inode, space(4 << 16, 0)), after(&inode, space(0, 4 << 16))),
            (Standing::Waits, Standing::Waits)
        );
        let read_only = Space { is_read_only: true, free: 1 << 30, taken: 0 };
        assert_eq!(after(&inode, read_only), Standing::Fails(Errno::ROFS));
        inode.state = State::Persisted;
        assert_eq!(after(&inode, read_only), Standing::Done);
        (inode.state, inode.is_unlinked) = (State::Frozen, true);
        assert_eq!(after(&inode, read_only), Standing::Done);
    }
}
