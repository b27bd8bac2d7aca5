//! How an item lies in memory: a header, the key, the value.
//!
//! What readers see of it is described in [`item`](crate::item). The sixteen bytes that are the store's own:
//!
//! | at | bytes | what                                             |
//! |---:|------:|--------------------------------------------------|
//! | 40 |     8 | neighbours in the queue                          |
//! | 48 |     4 | last access, in Unix seconds                     |
//! | 52 |     4 | holders, frequency, queue                        |

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::arena::Arena;
use crate::item::{self, MAGIC};
pub(super) use crate::item::{HEADER, State};

/// A chunk's place in the arena, in units of eight bytes.
pub(super) type Id = u32;
/// No chunk.
pub(super) const NONE: Id = u32::MAX;
pub(super) const FETCHED: u64 = 1 << 8;
pub(super) const STALE: u64 = 1 << 9;
pub(super) const WON: u64 = 1 << 10;
pub(super) const LEASED: u64 = 1 << 11;
pub(super) const BINARY: u64 = 1 << 12;
/// A client chose the version: it says nothing of when the item was stored.
pub(super) const CHOSEN: u64 = 1 << 13;
/// In the GET table.
pub(super) const LISTED: u64 = 1 << 14;

/// A chunk in the arena: a view that knows where each field is.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    arena: &'a Arena,
    at: usize,
}

macro_rules! field32 {
    ($get:ident, $set:ident, $at:literal) => {
        #[inline]
        pub(super) fn $get(self) -> u32 {
            self.arena.word32(self.at + $at).load(Relaxed)
        }
        #[inline]
        pub(super) fn $set(self, to: u32) {
            self.arena.word32(self.at + $at).store(to, Relaxed);
        }
    };
}

impl<'a> Chunk<'a> {
    #[inline]
    pub(super) fn new(arena: &'a Arena, id: Id) -> Self {
        Self { arena, at: id as usize * 8 }
    }

    field32!(value_len, set_value_len, 24);
    field32!(flags, set_flags, 28);
    field32!(crc, set_crc, 32);
    field32!(shape, set_shape, 36);
    field32!(prev, set_prev, 40);
    field32!(next, set_next, 44);
    field32!(accessed, set_accessed, 48);
    field32!(private, set_private, 52);

    #[inline]
    pub(super) fn state(self) -> State {
        State::of(self.arena.word64(self.at).load(Acquire) as u8)
    }

    /// Starts a new life: no marks, this incarnation.
    pub(super) fn begin(self, state: State, incarnation: u32) {
        let word = state as u64 | u64::from(MAGIC) << 16 | u64::from(incarnation) << 32;
        self.arena.word64(self.at).store(word, Release);
    }

    pub(super) fn set_state(self, state: State) {
        let word = self.arena.word64(self.at);
        word.store(word.load(Relaxed) & !0xff | state as u64, Release);
    }

    /// Returns those of these marks that it has.
    pub(super) fn marks(self, marks: u64) -> u64 {
        self.arena.word64(self.at).load(Relaxed) & marks
    }

    #[inline]
    pub(super) fn marked(self, mark: u64) -> bool {
        self.arena.word64(self.at).load(Relaxed) & mark != 0
    }

    #[inline]
    pub(super) fn mark(self, mark: u64) {
        let word = self.arena.word64(self.at);
        let old = word.load(Relaxed);
        if old & mark != mark {
            word.store(old | mark, Release);
        }
    }

    pub(super) fn unmark(self, mark: u64) {
        let word = self.arena.word64(self.at);
        word.store(word.load(Relaxed) & !mark, Release);
    }

    #[inline]
    pub(super) fn expiry(self) -> u64 {
        self.arena.word64(self.at + 8).load(Relaxed)
    }
    pub(super) fn set_expiry(self, to: u64) {
        self.arena.word64(self.at + 8).store(to, Release);
    }
    #[inline]
    pub(super) fn version(self) -> u64 {
        self.arena.word64(self.at + 16).load(Relaxed)
    }
    pub(super) fn set_version(self, to: u64) {
        self.arena.word64(self.at + 16).store(to, Relaxed);
    }

    #[inline]
    pub(super) fn key_len(self) -> usize {
        (self.shape() & 0xff) as usize
    }
    #[inline]
    pub(super) fn class(self) -> usize {
        (self.shape() >> 8 & 0xff) as usize
    }

    pub(super) fn holders(self) -> u32 {
        self.private() & 0xffff
    }
    pub(super) fn set_holders(self, to: u32) {
        self.set_private(self.private() & !0xffff | to);
    }
    #[inline]
    pub(super) fn frequency(self) -> u32 {
        self.private() >> 16 & 0xff
    }
    #[inline]
    pub(super) fn set_frequency(self, to: u32) {
        self.set_private(self.private() & !0x00ff_0000 | to << 16);
    }
    pub(super) fn queue(self) -> u32 {
        self.private() >> 24
    }
    pub(super) fn set_queue(self, to: u32) {
        self.set_private(self.private() & 0x00ff_ffff | to << 24);
    }

    #[inline]
    pub(super) fn key(self) -> &'a [u8] {
        self.arena.bytes(self.at + HEADER, self.key_len())
    }
    #[inline]
    pub(super) fn value(self) -> &'a [u8] {
        self.arena.bytes(self.at + HEADER + self.key_len(), self.value_len() as usize)
    }
    /// For the owner of an unpublished chunk only.
    pub(super) fn key_mut(self) -> &'a mut [u8] {
        self.arena.bytes_mut(self.at + HEADER, self.key_len())
    }
    /// For the owner of an unpublished chunk only.
    pub(super) fn value_mut(self) -> &'a mut [u8] {
        self.arena.bytes_mut(self.at + HEADER + self.key_len(), self.value_len() as usize)
    }
    /// What of the chunk is used.
    pub(super) fn size(self) -> usize {
        HEADER + self.key_len() + self.value_len() as usize
    }

    /// A copy of what of the chunk is used.
    pub(super) fn image(self, out: &mut Vec<u8>) {
        out.reserve(self.size());
        for at in (0..HEADER).step_by(8) {
            out.extend_from_slice(&self.arena.word64(self.at + at).load(Acquire).to_le_bytes());
        }
        out.extend_from_slice(self.arena.bytes(self.at + HEADER, self.key_len() + self.value_len() as usize));
    }

    /// The sum that the header should carry.
    pub(super) fn sum(self) -> u32 {
        item::sum(self.version(), self.flags(), self.key(), self.value())
    }
}
