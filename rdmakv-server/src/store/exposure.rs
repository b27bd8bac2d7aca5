//! What a fabric has to know of chunks that it let its clients read.
//!
//! A store tells its exposures two things, both under its lock: that a leased chunk gives way to another
//! ([`Exposure::replaced`]), and that a chunk's last lease has ended ([`Exposure::ended`]), if none of them still needs it
//! ([`Exposure::is_open`]). None may wait for anything: no system call, no registration. What has to be undone at leisure is put
//! aside, for the fabric's own threads. The exception: a chunk that is about to be free may be in the hands of a thread that is just
//! sending it, which is waited for.

use std::fmt;

use super::Store;
use super::arena::Arena;
use super::chunk::Id;
#[cfg(test)]
use super::chunk::{Chunk, State};
use super::index::Index;

/// A chunk's place in memory, and which item is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Where it begins, in this process.
    pub address: u64,
    /// Its bytes in all. What is beyond the used ones may be anything.
    pub slot: u64,
    /// Bytes that the item uses: header, key and value.
    pub used: u64,
    /// The item's version. No two items of a store have the same, so it tells chunks apart that follow each other in one
    /// place.
    pub version: u64,
}

/// A leased chunk is dead and gives way to another, which is not published yet.
#[derive(Debug)]
pub struct Replacement<'a> {
    arena: &'a Arena,
    /// The chunk that is dead.
    pub old: Extent,
    /// The chunk that is the key's next.
    pub new: Extent,
    /// Whether the index still names the old one.
    #[cfg(test)]
    pub(crate) named: bool,
}

impl Replacement<'_> {
    /// Makes zeros of what is between the new item's end and this many bytes from its chunk's begin, as far as its chunk
    /// goes: whoever can read as much of the old chunk sees nothing of others then.
    pub fn clear_tail(&self, until: u64) {
        clear(self.arena, self.new, until);
    }

    /// What the state bytes of the old and the new chunk are.
    #[cfg(test)]
    pub(crate) fn states(&self) -> (State, State) {
        let at = |extent: Extent| Chunk::new(self.arena, self.arena.id_of(extent.address)).state();
        (at(self.old), at(self.new))
    }
}

/// Zeros from an item's end on. Nobody else has these bytes: they are the chunk's and not the item's, and no slice of a
/// key or a value reaches there.
fn clear(arena: &Arena, extent: Extent, until: u64) {
    let begin = arena.id_of(extent.address) as usize * 8;
    let (from, to) = (extent.used as usize, until.min(extent.slot) as usize);
    if from < to {
        arena.bytes_mut(begin + from, to - from).fill(0);
    }
}

/// A fabric, as the store sees it. Its methods are called under the store's lock and must not sleep.
pub trait Exposure: Send {
    /// Between a leased chunk's death and the change of the index. The new chunk is complete and not published. Says
    /// whether the tags that named the old chunk name the new one from now on; the new chunk is then leased as long as the
    /// old one.
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool;

    /// Whether somebody may still be at the chunk though its last lease is over: then it stays leased a little longer, and
    /// this is asked again.
    fn is_open(&mut self, chunk: Extent) -> bool {
        let _ = chunk;
        false
    }

    /// The chunk's last lease has ended, and if it is dead it is free after this. `now` is in nanoseconds, of the clock
    /// that leases count by.
    fn ended(&mut self, chunk: Extent, now: u64);
}

/// All exposures of a store.
#[derive(Default)]
pub(super) struct Exposures(pub(super) Vec<Box<dyn Exposure>>);

impl fmt::Debug for Exposures {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} exposures", self.0.len())
    }
}

impl Exposures {
    pub(super) fn replaced(&mut self, arena: &Arena, old: Extent, new: Extent, index: &Index) -> bool {
        #[cfg(not(test))]
        let _ = index;
        let replacement = Replacement {
            arena,
            old,
            new,
            #[cfg(test)]
            named: index.has(arena.id_of(old.address)) && !index.has(arena.id_of(new.address)),
        };
        // Each is asked, whatever the others say.
        self.0.iter_mut().fold(false, |any, exposure| exposure.replaced(&replacement) | any)
    }

    pub(super) fn is_open(&mut self, chunk: Extent) -> bool {
        self.0.iter_mut().any(|exposure| exposure.is_open(chunk))
    }

    pub(super) fn ended(&mut self, chunk: Extent, now: u64) {
        for exposure in &mut self.0 {
            exposure.ended(chunk, now);
        }
    }
}

impl Store {
    /// From now on this fabric hears of what it exposed.
    pub fn attach(&mut self, exposure: Box<dyn Exposure>) {
        self.exposures.0.push(exposure);
    }

    /// Where the arena begins, and its bytes.
    pub fn arena(&self) -> (*mut u8, usize) {
        self.arena.whole()
    }

    pub(super) fn extent_of(&self, id: Id) -> Extent {
        let chunk = self.chunk(id);
        Extent {
            address: self.arena.address_of(id),
            slot: self.sizes[chunk.class()] as u64,
            used: chunk.size() as u64,
            version: chunk.version(),
        }
    }

    /// The chunk in use that begins at this address, if one does and its item is alive.
    fn alive_at(&self, address: u64) -> Option<Id> {
        let (base, len) = self.arena.whole();
        let at = address.checked_sub(base as u64).filter(|&at| at < len as u64)?;
        self.pages.chunk_at(at as usize).filter(|&id| self.is_alive(id))
    }

    /// One-sided reads of the item whose chunk begins at this address: they count as if somebody had asked for it so
    /// often. Says whether there is such an item.
    pub fn seen(&mut self, address: u64, reads: u64, now: u64) -> bool {
        let Some(id) = self.alive_at(address).filter(|&id| !self.is_over(id, now)) else { return false };
        for _ in 0..reads.min(u64::from(super::queues::MOST_FREQUENT)) {
            self.bump(id, now);
        }
        let class = self.chunk(id).class();
        self.classes[class].get_hits = self.classes[class].get_hits.saturating_add(reads);
        self.counters.one_sided = self.counters.one_sided.saturating_add(reads);
        true
    }

    /// Makes zeros of what is between the item's end and this many bytes from its chunk's begin. For who is about to let
    /// a client read so far.
    ///
    /// Nothing of the item changes, and no reader looks at these bytes for more than their number.
    pub fn clear_tail(&mut self, held: &super::Held, until: u64) {
        let extent = self.extent_of(held.id);
        clear(&self.arena, extent, until);
    }
}
