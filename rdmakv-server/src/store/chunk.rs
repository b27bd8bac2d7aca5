//! How an item lies in memory: a header, the key, the value.
//!
//! [`item`] describes what readers see of it, the life of the chunk included. Sixteen bytes are the store's own:
//!
//! | at | bytes | what                                             |
//! |---:|------:|--------------------------------------------------|
//! | 40 |     8 | neighbours in the queue, or in the free list     |
//! | 48 |     4 | last access, in Unix seconds                     |
//! | 52 |     4 | holders, frequency, queue                        |
//!
//! Each word has one writer, and an `impl` here with what that one may change. A move to another chunk
//! ([`Slabs::copy`](super::slabs::Slabs::copy)) copies the words of an item, whichever part writes them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rdmakv_proto::item::{self, HEADER, MAGIC, State};

use super::arena::{Arena, Words};

/// A chunk's place in the arena, in units of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(super) struct Id(u32);

impl Id {
    /// No chunk.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// Returns the chunk that begins so many bytes into the arena, a multiple of eight.
    #[inline]
    pub(super) fn of(at: usize) -> Self {
        Self((at / 8) as u32)
    }
    /// Returns where in the arena the chunk begins, in bytes.
    #[inline]
    pub(super) fn at(self) -> usize {
        self.0 as usize * 8
    }
    /// Returns the chunk, if it is one.
    #[inline]
    pub(super) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

pub(super) const FETCHED: u64 = 1 << 8;
pub(super) const STALE: u64 = 1 << 9;
pub(super) const WON: u64 = 1 << 10;
pub(super) const LEASED: u64 = 1 << 11;
pub(super) const BINARY: u64 = 1 << 12;
/// A client chose the version: it says nothing of when the item was stored.
pub(super) const CHOSEN: u64 = 1 << 13;
/// In the GET table.
pub(super) const LISTED: u64 = 1 << 14;
/// The item is on flash too, as it is here.
pub(super) const CLEAN: u64 = 1 << 15;

/// The words of a header.
#[repr(C)]
struct Header {
    /// State, marks, magic, incarnation.
    first: AtomicU64,
    expiry: AtomicU64,
    version: AtomicU64,
    value_len: AtomicU32,
    flags: AtomicU32,
    crc: AtomicU32,
    /// Length of the key, class, life.
    shape: AtomicU32,
    prev: AtomicU32,
    next: AtomicU32,
    accessed: AtomicU32,
    /// Holders, frequency, queue.
    own: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == HEADER);

#[expect(unsafe_code, reason = "words of the arena")]
// SAFETY: `Words` requires atomic integers without padding in C's layout; the fields' sizes add up to `HEADER`.
unsafe impl Words for Header {}

/// A chunk in the arena: a view that knows where each field is.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    arena: &'a Arena,
    header: &'a Header,
    at: usize,
}

/// Reads that any part may do.
impl<'a> Chunk<'a> {
    #[inline]
    pub(super) fn new(arena: &'a Arena, id: Id) -> Self {
        Self { arena, header: arena.words(id.at()), at: id.at() }
    }

    #[inline]
    pub(super) fn state(self) -> State {
        State::of(self.header.first.load(Acquire) as u8)
    }
    /// Returns those of these marks that it has.
    #[inline]
    pub(super) fn marks(self, marks: u64) -> u64 {
        self.header.first.load(Relaxed) & marks
    }
    #[inline]
    pub(super) fn marked(self, mark: u64) -> bool {
        self.marks(mark) != 0
    }
    #[inline]
    pub(super) fn expiry(self) -> u64 {
        self.header.expiry.load(Relaxed)
    }
    #[inline]
    pub(super) fn version(self) -> u64 {
        self.header.version.load(Relaxed)
    }
    #[inline]
    pub(super) fn flags(self) -> u32 {
        self.header.flags.load(Relaxed)
    }
    pub(super) fn crc(self) -> u32 {
        self.header.crc.load(Relaxed)
    }
    /// Returns the sum that the header should carry.
    pub(super) fn sum(self) -> u32 {
        item::sum(self.version(), self.flags(), self.key(), self.value())
    }
    #[inline]
    pub(super) fn key_len(self) -> usize {
        (self.header.shape.load(Relaxed) & 0xff) as usize
    }
    #[inline]
    pub(super) fn class(self) -> usize {
        (self.header.shape.load(Relaxed) >> 8 & 0xff) as usize
    }
    /// Returns the number of the chunk's life: how many items began in it, of which it keeps the lowest sixteen bits.
    #[cfg(test)]
    pub(super) fn life(self) -> u16 {
        (self.header.shape.load(Relaxed) >> 16) as u16
    }
    #[inline]
    pub(super) fn value_len(self) -> usize {
        self.header.value_len.load(Relaxed) as usize
    }
    /// Returns how many bytes of the chunk are used.
    #[inline]
    pub(super) fn size(self) -> usize {
        HEADER + self.key_len() + self.value_len()
    }
    #[inline]
    pub(super) fn prev(self) -> Id {
        Id(self.header.prev.load(Relaxed))
    }
    #[inline]
    pub(super) fn next(self) -> Id {
        Id(self.header.next.load(Relaxed))
    }
    #[inline]
    pub(super) fn accessed(self) -> u32 {
        self.header.accessed.load(Relaxed)
    }
    /// Returns the seconds since the item was last asked for.
    pub(super) fn idle(self, now: u64) -> u64 {
        u64::from((now as u32).saturating_sub(self.accessed()))
    }
    #[inline]
    pub(super) fn holders(self) -> u32 {
        self.header.own.load(Relaxed) & 0xffff
    }
    #[inline]
    pub(super) fn frequency(self) -> u32 {
        self.header.own.load(Relaxed) >> 16 & 0xff
    }
    #[inline]
    pub(super) fn queue(self) -> u32 {
        self.header.own.load(Relaxed) >> 24
    }

    #[inline]
    pub(super) fn key(self) -> &'a [u8] {
        self.arena.bytes(self.at + HEADER, self.key_len())
    }
    #[inline]
    pub(super) fn value(self) -> &'a [u8] {
        self.arena.bytes(self.at + HEADER + self.key_len(), self.value_len())
    }
    /// Appends a copy of what of the chunk is used.
    pub(super) fn image(self, out: &mut Vec<u8>) {
        out.reserve(self.size());
        for at in (0..HEADER).step_by(8) {
            out.extend_from_slice(&self.arena.word64(self.at + at).load(Acquire).to_le_bytes());
        }
        out.extend_from_slice(self.arena.bytes(self.at + HEADER, self.key_len() + self.value_len()));
    }

    #[inline]
    fn set_first(self, of: u64, to: u64) {
        let first = &self.header.first;
        first.store(first.load(Relaxed) & !of | to, Release);
    }
    #[inline]
    fn set_own(self, of: u32, to: u32) {
        let own = &self.header.own;
        own.store(own.load(Relaxed) & !of | to, Relaxed);
    }
    /// Sets a mark, for its writer: CHOSEN for [`Versions`](super::versions), LEASED for [`Leases`](super::leases), LISTED for
    /// [`TableWriter`](super::table), FETCHED for [`Eviction`](super::eviction), others for the store.
    #[inline]
    pub(super) fn mark(self, mark: u64) {
        if self.marks(mark) != mark {
            self.set_first(0, mark);
        }
    }
    /// Takes a mark off.
    pub(super) fn unmark(self, mark: u64) {
        self.set_first(mark, 0);
    }
}

/// For [`Slabs`](super::slabs): the item in the chunk, and the number of its holders.
impl<'a> Chunk<'a> {
    /// Starts a new life: unpublished, without marks, for a key and a value of these lengths.
    #[inline]
    pub(super) fn begin(self, incarnation: u32, class: usize, key: usize, value: usize) {
        let first = State::Unpublished as u64 | u64::from(MAGIC) << 16 | u64::from(incarnation) << 32;
        self.header.first.store(first, Release);
        self.live_again(key as u32 | (class as u32) << 8);
        self.header.value_len.store(value as u32, Relaxed);
        self.header.own.store(0, Relaxed);
    }
    /// Counts another life, of this shape. A reader that sees any part of that item sees that the one before is not alive.
    #[inline]
    fn live_again(self, shape: u32) {
        fence(Release);
        let life = (self.header.shape.load(Relaxed) & !0xffff).wrapping_add(1 << 16);
        self.header.shape.store(life | shape & 0xffff, Relaxed);
    }
    /// Starts the life of a copy: unpublished, neither leased nor listed, of the same lengths.
    pub(super) fn begin_copy(self, of: Chunk<'_>) {
        let (to, from) = (self.header, of.header);
        let first = from.first.load(Relaxed) & !(0xff | LEASED | LISTED) | State::Unpublished as u64;
        to.first.store(first, Release);
        self.live_again(from.shape.load(Relaxed));
        for (to, from) in [(&to.expiry, &from.expiry), (&to.version, &from.version)] {
            to.store(from.load(Relaxed), Relaxed);
        }
        for (to, from) in [
            (&to.value_len, &from.value_len),
            (&to.flags, &from.flags),
            (&to.crc, &from.crc),
            (&to.accessed, &from.accessed),
        ] {
            to.store(from.load(Relaxed), Relaxed);
        }
        to.own.store(0, Relaxed);
    }
    #[inline]
    pub(super) fn set_state(self, to: State) {
        self.set_first(0xff, to as u64);
    }
    #[inline]
    pub(super) fn set_holders(self, to: u32) {
        self.set_own(0xffff, to);
    }
    /// Returns the place of the key, for the owner of an unpublished chunk only.
    #[inline]
    pub(super) fn key_mut(self) -> &'a mut [u8] {
        self.arena.bytes_mut(self.at + HEADER, self.key_len())
    }
    /// Returns the place of the value, for the owner of an unpublished chunk only.
    pub(super) fn value_mut(self) -> &'a mut [u8] {
        self.arena.bytes_mut(self.at + HEADER + self.key_len(), self.value_len())
    }
}

/// For [`Eviction`](super::eviction); the next of a free chunk is for [`Slabs`](super::slabs).
impl Chunk<'_> {
    #[inline]
    pub(super) fn set_prev(self, to: Id) {
        self.header.prev.store(to.0, Relaxed);
    }
    #[inline]
    pub(super) fn set_next(self, to: Id) {
        self.header.next.store(to.0, Relaxed);
    }
    #[inline]
    pub(super) fn set_accessed(self, now: u64) {
        self.header.accessed.store(now as u32, Relaxed);
    }
    #[inline]
    pub(super) fn set_frequency(self, to: u32) {
        self.set_own(0xff << 16, to << 16);
    }
    #[inline]
    pub(super) fn set_queue(self, to: u32) {
        self.set_own(0xff << 24, to << 24);
    }
}

/// For [`Versions`](super::versions).
impl Chunk<'_> {
    pub(super) fn set_version(self, to: u64) {
        self.header.version.store(to, Relaxed);
    }
}

/// For the [`Store`](super::Store).
impl Chunk<'_> {
    pub(super) fn set_expiry(self, to: u64) {
        self.header.expiry.store(to, Release);
    }
    pub(super) fn set_flags(self, to: u32) {
        self.header.flags.store(to, Relaxed);
    }
    /// Takes over a sum that was computed before.
    pub(super) fn set_crc(self, to: u32) {
        self.header.crc.store(to, Relaxed);
    }
    /// Writes the sum of all that it covers.
    pub(super) fn seal(self) {
        self.header.crc.store(self.sum(), Relaxed);
    }
}
