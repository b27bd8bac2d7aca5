//! A client's part in a read of a value in fragments: which states of chunks make one value.
//!
//! The read takes effect when the primary's chunk was read: that is alive, so its version is the published one. The other fragments may be
//! read earlier or later, alive or not. They never change, and each member keeps those of a version until the next one is noted.
//!
//! A copy needs no rule: the primary's alone is read.

use crate::faults::is_planted;
use crate::ids::{ServerId, Version};
use crate::messages::{Chunk, Form, Piece};

/// Attempts by tag after which a reader asks the primary for its turn.
pub const MAX_ATTEMPTS: u8 = 3;

/// The state of a chunk that was read by tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChunkState {
    /// The published value of a primary.
    Alive,
    /// Valid bytes at a backup.
    Held,
    /// No longer the primary's value. Its bytes are valid until they are freed.
    Dead,
}

/// A chunk that was read by tag and passed the checks of its own: complete, of this key, not expired.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seen {
    /// Its state.
    pub state: ChunkState,
    /// Its version.
    pub version: Version,
    /// Its piece.
    pub piece: Piece,
}

/// One read of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reader {
    primary: ServerId,
    seen: Vec<(ServerId, Seen)>,
    attempts: u8,
}

/// How a read goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reading {
    /// More fragments are needed, from members that were not read yet.
    More,
    /// These pieces make the value of this version, if its CRC is right.
    Value(Version, Vec<(u8, Chunk)>),
    /// The chunks do not fit: ask the members for their tags, and read again.
    Ask,
    /// Too often they did not fit: take a turn in the key's queue.
    TakeTurn,
}

impl Reader {
    /// Returns a read of a key whose primary this is.
    pub fn new(primary: ServerId) -> Self {
        Self { primary, seen: Vec::new(), attempts: 0 }
    }

    /// Takes what was read at a server; None if no tag is known or the checks failed.
    pub fn take(&mut self, from: ServerId, seen: Option<Seen>) -> Reading {
        let Some(seen) = seen else {
            // Any others will do in its place, but not in the primary's.
            return if from == self.primary { self.ask() } else { self.value() };
        };
        if from == self.primary && seen.state != ChunkState::Alive && !is_planted("dead-primary-believed") {
            return self.ask();
        }
        self.seen.retain(|&(server, _)| server != from);
        self.seen.push((from, seen));
        self.value()
    }

    /// Begins again, after the members told their tags.
    pub fn again(&mut self) {
        self.seen.clear();
    }

    fn ask(&mut self) -> Reading {
        self.seen.clear();
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts >= MAX_ATTEMPTS { Reading::TakeTurn } else { Reading::Ask }
    }

    fn value(&mut self) -> Reading {
        let Some(&(_, primary)) = self.seen.iter().find(|&&(server, _)| server == self.primary) else {
            return Reading::More;
        };
        let Form::Fragment { k, .. } = primary.piece.form else {
            return Reading::Value(primary.version, vec![(0, primary.piece.chunk)]);
        };
        let is_other = |&(_, seen): &(ServerId, Seen)| seen.version != primary.version;
        if self.seen.iter().any(is_other) && !is_planted("versions-mixed") {
            return self.ask();
        }
        let mut fragments: Vec<(u8, Chunk)> = Vec::new();
        for (_, seen) in &self.seen {
            if let Form::Fragment { index, .. } = seen.piece.form
                && !fragments.iter().any(|&(other, _)| other == index)
            {
                fragments.push((index, seen.piece.chunk));
            }
        }
        if fragments.len() < usize::from(k) {
            return Reading::More;
        }
        fragments.truncate(usize::from(k));
        Reading::Value(primary.version, fragments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    fn seen(state: ChunkState, count: u64, index: u8) -> Option<Seen> {
        let piece = Piece { chunk: Chunk(count), form: Form::Fragment { k: 2, index }, length: 9, sum: 0 };
        Some(Seen { state, version: Version::new(Epoch(1), count), piece })
    }

    #[test]
    fn believes_fragments_of_the_alive_version() {
        let mut reader = Reader::new(ServerId(0));
        assert_eq!(reader.take(ServerId(1), seen(ChunkState::Dead, 5, 1)), Reading::More);
        let value = reader.take(ServerId(0), seen(ChunkState::Alive, 5, 0));
        assert_eq!(value, Reading::Value(Version::new(Epoch(1), 5), vec![(1, Chunk(5)), (0, Chunk(5))]));
    }

    #[test]
    fn does_not_mix_versions() {
        let mut reader = Reader::new(ServerId(0));
        assert_eq!(reader.take(ServerId(0), seen(ChunkState::Alive, 6, 0)), Reading::More);
        assert_eq!(reader.take(ServerId(1), seen(ChunkState::Held, 5, 1)), Reading::Ask);
    }

    #[test]
    fn needs_distinct_fragments() {
        let mut reader = Reader::new(ServerId(0));
        assert_eq!(reader.take(ServerId(0), seen(ChunkState::Alive, 6, 0)), Reading::More);
        assert_eq!(reader.take(ServerId(3), seen(ChunkState::Held, 6, 0)), Reading::More);
        assert_eq!(reader.take(ServerId(2), None), Reading::More);
    }

    #[test]
    fn a_dead_chunk_of_the_primary_is_no_value() {
        let mut reader = Reader::new(ServerId(0));
        for expected in [Reading::Ask, Reading::Ask, Reading::TakeTurn] {
            assert_eq!(reader.take(ServerId(0), seen(ChunkState::Dead, 6, 0)), expected);
        }
    }
}
