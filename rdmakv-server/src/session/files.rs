//! The chunks of files that a server of a cluster has: which are final, and how much memory they may take.
//!
//! A chunk is *dirty* until the agent of the file system says that the backing directory has it, and *clean* from then on. Dirty ones are
//! never evicted. So they take a share of the memory only, and a write beyond it is declined: its mount waits until others are clean.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rdmakv_cluster::messages::{Call, Change, Form, Frozen};
use rdmakv_proto::files::{Finals, Generation, Ino, Key};

use crate::metrics::FileCounts;

/// The share of the memory for items that dirty chunks may take if nothing else is chosen, in percent.
pub const DIRTY_LIMIT: u8 = 70;

/// Bytes that chunks of files leave to other keys, at least: their names and inodes need pages of several classes.
const OTHERS: u64 = 8 << 20;

/// Frozen generations that are not persisted, at most. Agents repeat the call for more.
const FROZEN: usize = 1 << 16;

/// The state of all chunks of files, and the limits of their memory.
#[derive(Debug)]
pub(super) struct FileChunks {
    /// The generations that are frozen. Its lock is taken last, and held for a look only.
    finals: Mutex<Finals>,
    /// The share of dirty chunks, in percent.
    dirty_limit: u8,
    counts: FileCounts,
}

/// The memory that chunks of files may take in one shard, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) dirty: u64,
    pub(super) all: u64,
}

/// Whether there is room for another chunk of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Fits,
    /// Once clean chunks of so many bytes were evicted.
    After(u64),
    Refused,
}

impl Limits {
    /// Returns the limits in a shard with so much memory for items.
    fn of(memory: u64, dirty_limit: u8) -> Self {
        let others = (memory / 8).max(OTHERS).min(memory / 2);
        let all = memory - others;
        Self { dirty: (memory / 100 * u64::from(dirty_limit)).min(all), all }
    }

    /// Decides whether a chunk of so many bytes may be written beside others. A repair brings it without regard to what is dirty.
    pub(super) fn admit(self, (dirty, clean): (u64, u64), bytes: u64, is_repair: bool) -> Admission {
        let beyond = (dirty + clean + bytes).saturating_sub(self.all);
        if is_repair {
            return if beyond.min(clean) == 0 { Admission::Fits } else { Admission::After(beyond.min(clean)) };
        }
        // A chunk that is larger than the limit fits alone.
        let is_dirty = dirty > 0 && dirty + bytes > self.dirty;
        match beyond {
            _ if is_dirty => Admission::Refused,
            0 => Admission::Fits,
            beyond if beyond <= clean => Admission::After(beyond),
            _ if dirty == 0 => Admission::After(clean),
            _ => Admission::Refused,
        }
    }
}

impl Default for FileChunks {
    fn default() -> Self {
        Self { finals: Mutex::default(), dirty_limit: DIRTY_LIMIT, counts: FileCounts::default() }
    }
}

impl FileChunks {
    /// Sets the share of the memory that dirty chunks may take, in percent.
    pub(super) fn set_dirty_limit(&mut self, percent: u8) {
        self.dirty_limit = percent;
    }

    /// Returns the counts.
    pub(super) fn counts(&self) -> &FileCounts {
        &self.counts
    }

    /// Returns the limits in a shard with so much memory for items.
    pub(super) fn limits(&self, memory: u64) -> Limits {
        Limits::of(memory, self.dirty_limit)
    }

    /// Freezes a generation. Returns false if too many are frozen.
    pub(super) fn freeze(&self, frozen: &Frozen) -> bool {
        let (ino, generation) = (Ino(frozen.ino), Generation(frozen.generation));
        let mut finals = self.finals();
        let has_room = finals.len() < FROZEN || finals.has(ino, generation);
        if has_room {
            finals.freeze(ino, generation);
        }
        has_room
    }

    /// Takes a generation that the backing directory has.
    pub(super) fn persisted(&self, frozen: &Frozen) {
        self.finals().persisted(Ino(frozen.ino), Generation(frozen.generation));
    }

    /// Returns whether a key is a chunk of a generation that was frozen.
    pub(super) fn is_frozen(&self, key: &[u8]) -> bool {
        chunk(key).is_some_and(|(ino, generation)| self.finals().has(ino, generation))
    }

    /// Returns whether a key is a chunk of a generation that the backing directory has.
    pub(super) fn is_persisted(&self, key: &[u8]) -> bool {
        chunk(key).is_some_and(|(ino, generation)| self.finals().is_persisted(ino, generation))
    }

    /// Forgets all generations.
    pub(super) fn clear(&self) {
        *self.finals() = Finals::default();
    }

    fn finals(&self) -> MutexGuard<'_, Finals> {
        self.finals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the generation that a key is a chunk of, if it is one.
pub(super) fn chunk(key: &[u8]) -> Option<(Ino, Generation)> {
    let key = std::str::from_utf8(key).ok().filter(|key| key.starts_with("c/")).and_then(Key::parse)?;
    if let Key::Chunk(ino, generation, _) = key { Some((ino, generation)) } else { None }
}

/// Returns the keys of a generation's chunks, with their indexes.
pub(crate) fn chunks_of(frozen: &Frozen) -> impl Iterator<Item = (u32, String)> + '_ {
    let (ino, generation) = (Ino(frozen.ino), Generation(frozen.generation));
    let indexes = frozen.runs.iter().flat_map(|&(first, count)| first..first.saturating_add(count));
    indexes.map(move |index| (index, Key::Chunk(ino, generation, index).to_string()))
}

/// Returns whether a call brings bytes that stay in memory, and whether it is a repair. None if it brings none, or none that may be declined.
pub(super) fn brings(call: &Call) -> Option<bool> {
    match call {
        Call::Stage { piece, .. } | Call::Order { change: Change::Put(piece), .. } if piece.form != Form::Tombstone => {
            Some(false)
        }
        Call::Repair { piece, .. } if piece.form != Form::Tombstone => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_chunks_take_their_share_only() {
        let limits = Limits::of(1000 << 20, 70);
        assert_eq!(limits, Limits { dirty: 700 << 20, all: 875 << 20 });
        let admit = |dirty: u64, clean: u64, bytes: u64| limits.admit((dirty << 20, clean << 20), bytes << 20, false);
        assert_eq!((admit(699, 0, 1), admit(700, 0, 1)), (Admission::Fits, Admission::Refused));
        assert_eq!(admit(600, 275, 1), Admission::After(1 << 20));
        assert_eq!((admit(690, 186, 10), admit(690, 186, 11)), (Admission::After(11 << 20), Admission::Refused));
        // One that is larger than the limit is written alone.
        assert_eq!((admit(0, 0, 800), admit(1, 0, 800)), (Admission::Fits, Admission::Refused));
        assert_eq!(admit(0, 100, 900), Admission::After(100 << 20));
    }

    #[test]
    fn a_repair_is_refused_for_no_dirty_chunks() {
        let limits = Limits::of(1000 << 20, 70);
        let admit = |dirty: u64, clean: u64| limits.admit((dirty << 20, clean << 20), 1 << 20, true);
        assert_eq!((admit(900, 0), admit(700, 100)), (Admission::Fits, Admission::Fits));
        assert_eq!((admit(700, 175), admit(900, 5)), (Admission::After(1 << 20), Admission::After(5 << 20)));
    }

    #[test]
    fn small_stores_leave_room_for_other_keys() {
        assert_eq!(Limits::of(32 << 20, 70), Limits { dirty: (32 << 20) / 100 * 70, all: 24 << 20 });
        assert_eq!(Limits::of(8 << 20, 70), Limits { dirty: 4 << 20, all: 4 << 20 });
        assert_eq!(Limits::of(32 << 20, 85).dirty, 24 << 20);
    }

    #[test]
    fn chunks_are_told_from_other_keys() {
        assert_eq!(chunk(b"c/1f/a/0"), Some((Ino(0x1f), Generation(10))));
        for key in [&b"c/1"[..], b"c/", b"i/1", b"c/01/1/1", b"\xff"] {
            assert_eq!(chunk(key), None);
        }
    }
}
