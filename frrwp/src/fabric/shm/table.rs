//! The tag table: what peers may reach, and by which key.
//!
//! One for each domain, in a memory file that its owner alone can write, and that every peer maps for reading. A slot has 64
//! bytes, so that no two share a cache line; the slot of a key is its low bits:
//!
//! ```text
//! slot   0  u64  the key in the low half; 1 << 32 while the tag lives
//!        8  u64  address of the first byte: the arena's number << 40, and the offset in it
//!       16  u64  bytes
//!       24  u64  rights: 1 peers read, 2 peers write
//!       32       nothing (32); in slot 0, 16 bytes that tell whether the owner lives (robust.rs)
//! ```
//!
//! A slot's other words change only while its first says that nothing lives there and no peer uses it, so an end that
//! has announced itself and then found the tag alive (see the module above) reads them without more ado.
//!
//! A key has 32 bits from a cryptographic generator that the system seeded. It is drawn again while its slot is taken.
//! As half the slots are left free, that is rare, and the keys are spread evenly over the free slots.

use super::error::ShmError;
use super::memory::{Mapping, Writers};
use super::robust::{RobustWord, owner_lives};
use mrrc::{Access, PageRange};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

const SLOT: usize = 64;
const LIVES: u64 = 1 << 32;
/// The place of the owner's word.
const OWNER: usize = 32;
/// Bits of an offset in an arena.
pub(super) const OFFSET: u32 = 40;
/// The most slots that a peer's table may have.
const MOST: u64 = 1 << 20;

pub(super) const READ: u64 = 1;
pub(super) const WRITE: u64 = 2;

/// The owner's side.
pub(super) struct Table {
    pub(super) file: OwnedFd,
    /// Dropped before its mapping.
    _owner: RobustWord,
    shared: Mapping,
    /// The contents of the slots. The shared ones are never read here.
    slots: Vec<Option<Held>>,
    live: usize,
    rng: StdRng,
}

#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) key: u32,
    pub(super) bytes: u64,
    pub(super) range: PageRange,
    /// It takes no new access, but an old one may not have ended.
    pub(super) is_dead: bool,
}

impl Table {
    /// Room for so many tags, a power of two.
    pub(super) fn new(tags: usize) -> Result<Self, ShmError> {
        let slots = Self::most_of(tags) * 2;
        let (file, shared) = Mapping::create("frrwp-tags", slots * SLOT, Writers::Maker)?;
        let owner = RobustWord::new(&shared, OWNER)?;
        let mut seed = <StdRng as SeedableRng>::Seed::default();
        let doing = super::error::system("draw random keys", "see why the system's getrandom fails");
        let mut at = 0;
        while at < seed.len() {
            at += rustix::rand::getrandom(&mut seed[at..], rustix::rand::GetRandomFlags::empty()).map_err(&doing)?;
        }
        Ok(Self { file, _owner: owner, shared, slots: vec![None; slots], live: 0, rng: StdRng::from_seed(seed) })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shared.len() as u64
    }

    /// How many tags a table has that is made for so many.
    pub(super) fn most_of(tags: usize) -> usize {
        tags.clamp(64, MOST as usize / 2).next_power_of_two()
    }

    fn most(&self) -> usize {
        self.slots.len() / 2
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Returns a new tag, unless there are as many as there may be.
    pub(super) fn insert(&mut self, address: u64, range: PageRange, access: Access) -> Option<u32> {
        if self.live >= self.most() {
            return None;
        }
        let (key, at) = loop {
            let key = self.rng.random::<u32>();
            let at = key as usize & (self.slots.len() - 1);
            if key != 0 && self.slots[at].is_none() {
                break (key, at);
            }
        };
        let bytes = range.pages() * mrrc::PAGE;
        let right = |right, bit| if access.contains(right) { bit } else { 0 };
        let rights = right(Access::REMOTE_READ, READ) | right(Access::REMOTE_WRITE, WRITE);
        self.shared.word(at * SLOT + 8).store(address, Relaxed);
        self.shared.word(at * SLOT + 16).store(bytes, Relaxed);
        self.shared.word(at * SLOT + 24).store(rights, Relaxed);
        self.shared.word(at * SLOT).store(LIVES | u64::from(key), Release);
        self.slots[at] = Some(Held { key, bytes, range, is_dead: false });
        self.live += 1;
        Some(key)
    }

    /// From now on no access begins with the key. [`fence`] before its users are looked for.
    pub(super) fn kill(&mut self, key: u32) {
        if let Some(held) = self.get(key) {
            let at = key as usize & (self.slots.len() - 1);
            self.shared.word(at * SLOT).store(u64::from(key), SeqCst);
            self.slots[at] = Some(Held { is_dead: true, ..held });
        }
    }

    /// It has no users any more: the slot is free.
    pub(super) fn remove(&mut self, key: u32) {
        if self.get(key).is_some() {
            let at = key as usize & (self.slots.len() - 1);
            self.slots[at] = None;
            self.live -= 1;
        }
    }

    pub(super) fn get(&self, key: u32) -> Option<Held> {
        self.slots[key as usize & (self.slots.len() - 1)].filter(|held| held.key == key)
    }

    /// Returns the slots that can still be used.
    pub(super) fn living(&self) -> impl Iterator<Item = Held> {
        self.slots.iter().flatten().copied().filter(|held| !held.is_dead)
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Mapping {
        &self.shared
    }
}

/// A peer's table. Whatever is in it was written by the peer.
pub(super) struct PeerTable {
    shared: Mapping,
    mask: usize,
}

/// A tag that lived when it was looked at.
#[derive(Clone, Copy)]
pub(super) struct Tag {
    at: usize,
    word: u64,
    /// In the arena.
    pub(super) offset: u64,
    pub(super) arena: u64,
}

impl PeerTable {
    pub(super) fn new(shared: Mapping) -> Result<Self, &'static str> {
        let slots = shared.len() / SLOT;
        if !shared.len().is_multiple_of(SLOT) || !slots.is_power_of_two() || slots as u64 > MOST * 2 {
            return Err("a tag table of a size that does not exist");
        }
        Ok(Self { shared, mask: slots - 1 })
    }

    /// Looks up a tag after the reader has announced itself, with a fence.
    #[inline(always)]
    pub(super) fn find(&self, key: u32, address: u64, length: u64, right: u64) -> Option<Tag> {
        let at = (key as usize & self.mask) * SLOT;
        let word = self.shared.word(at).load(Relaxed);
        fence(Acquire);
        let start = self.shared.word(at + 8).load(Relaxed);
        let bytes = self.shared.word(at + 16).load(Relaxed);
        let rights = self.shared.word(at + 24).load(Relaxed);
        let within = address.checked_sub(start)?;
        let fits = within.checked_add(length).is_some_and(|end| end <= bytes);
        let offset = address & ((1 << OFFSET) - 1);
        (word == LIVES | u64::from(key) && rights & right != 0 && fits).then_some(Tag {
            at,
            word,
            offset,
            arena: address >> OFFSET,
        })
    }

    /// Returns whether it still lives, and its owner does, after what was done by it.
    #[inline(always)]
    pub(super) fn still(&self, tag: Tag) -> bool {
        fence(Acquire);
        self.shared.word(tag.at).load(Relaxed) == tag.word && owner_lives(&self.shared, OWNER)
    }
}
