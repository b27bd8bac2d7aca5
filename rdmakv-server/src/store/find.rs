//! From a key to its item: lookups, and what they leave behind.

use super::chunk::{self, Chunk, Id};
use super::eviction::{self, SMALL};
use super::flash::is_binary;
use super::{ChunkRef, HEADER, Store};
use rdmakv_proto::item::State;

/// The result of a look at a key, without changing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Not,
    /// An item.
    Item {
        /// Its size class.
        class: usize,
        /// Bytes of its value; of an item on flash, rounded up.
        value: usize,
    },
    /// An item from before a flush.
    Flushed,
    /// An item after its time.
    Expired,
}

/// An item as it was when asked for, before the asking left its traces.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// Its version (CAS).
    pub version: u64,
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u64,
    /// When it was last asked for, in Unix seconds.
    pub accessed: u32,
    /// Whether it was asked for before.
    pub fetched: bool,
    /// Whether it was invalidated.
    pub stale: bool,
    /// Whether a client was told to renew it.
    pub won: bool,
    /// Whether its key was stored as base64.
    pub binary: bool,
    /// Its size class.
    pub class: usize,
    /// Bytes with the header.
    pub size: usize,
    id: Id,
}

/// The fields of an item on flash that need no read, as they were when asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u64,
    /// Whether it was asked for before.
    pub fetched: bool,
    /// Whether its key was stored as base64.
    pub binary: bool,
}

impl<'a> View<'a> {
    #[inline]
    pub(super) fn new(chunk: Chunk<'a>, id: Id) -> Self {
        Self {
            key: chunk.key(),
            value: chunk.value(),
            flags: chunk.flags(),
            version: chunk.version(),
            expiry: chunk.expiry(),
            accessed: chunk.accessed(),
            fetched: chunk.marked(chunk::FETCHED),
            stale: chunk.marked(chunk::STALE),
            won: chunk.marked(chunk::WON),
            binary: chunk.marked(chunk::BINARY),
            class: chunk.class(),
            size: chunk.size(),
            id,
        }
    }

    /// Returns the name of the item, good until the store changes: what to [`hold`](Store::hold).
    pub fn handle(&self) -> Handle {
        Handle(self.id)
    }
}

/// Names an item just looked at.
#[derive(Clone, Copy, Debug)]
pub struct Handle(pub(super) Id);

impl Store {
    #[inline]
    pub(super) fn is_alive(&self, id: Id) -> bool {
        #[cfg(rdmakv_fault_injection)]
        if self.undone.is_late(id) {
            return false;
        }
        self.slabs.chunk(id).state() == State::Alive
    }

    /// Returns whether a published item is over: expired or flushed.
    pub(super) fn is_over(&self, id: Id, now: u64) -> bool {
        let chunk = self.slabs.chunk(id);
        let expiry = chunk.expiry();
        (expiry != 0 && expiry <= now) || self.versions.is_flushed(chunk)
    }

    /// A due flush takes effect with the first command of that second, so that it takes nothing along that was stored
    /// later.
    pub(super) fn flush_if_due(&mut self, now: u64) {
        if self.versions.flush_due(now) {
            self.flush(None, now);
        }
    }

    /// Returns the key's item if it lives; one that is over is taken out on the way.
    pub(super) fn live(&mut self, hash: u64, key: &[u8], now: u64) -> Option<Id> {
        self.flush_if_due(now);
        let id = self.index.find(&self.slabs, hash, key)?;
        if self.is_over(id, now) {
            self.reclaim(id, now);
            return None;
        }
        Some(id)
    }

    /// Returns the item, if there is one. With `bump` the question counts: for eviction and in the marks.
    pub fn get(&mut self, key: &[u8], bump: bool, now: u64) -> Option<View<'_>> {
        #[cfg(rdmakv_fault_injection)]
        self.bury(1);
        self.flush_if_due(now);
        let id = self.index.find(&self.slabs, self.index.hash(key), key)?;
        let chunk = self.slabs.chunk(id);
        if self.is_over(id, now) {
            let whole = &mut self.counts.whole;
            *(if self.versions.is_flushed(chunk) { &mut whole.get_flushed } else { &mut whole.get_expired }) += 1;
            self.reclaim(id, now);
            return None;
        }
        let (accessed, fetched) = (chunk.accessed(), chunk.marked(chunk::FETCHED));
        if bump {
            eviction::touch(chunk, now);
            let counters = &mut self.counts.classes[chunk.class()];
            counters.hits_small += u64::from(chunk.queue() == SMALL);
            counters.get_hits += 1;
        }
        Some(View { accessed, fetched, ..self.view(id) })
    }

    /// Looks at the key, and leaves no trace of it.
    pub fn peek(&self, key: &[u8], now: u64) -> Found {
        let hash = self.index.hash(key);
        let Some(id) = self.index.find(&self.slabs, hash, key) else {
            let listed = self.flash_tier().and_then(|flash| flash.look(hash, key, now as u32));
            return listed.filter(|_| !self.versions.flush_due(now)).map_or(Found::Not, |listed| {
                let size = listed.len as usize;
                Found::Item { class: self.slabs.class_of_size(size), value: size.saturating_sub(HEADER + key.len()) }
            });
        };
        let chunk = self.slabs.chunk(id);
        if self.versions.is_flushed(chunk) || self.versions.flush_due(now) {
            Found::Flushed
        } else if self.is_over(id, now) {
            Found::Expired
        } else {
            Found::Item { class: chunk.class(), value: chunk.value().len() }
        }
    }

    /// Returns what is known without a read of an item that is on flash only. With `bump` the question counts.
    pub fn glance(&mut self, key: &[u8], bump: bool, now: u64) -> Option<Glance> {
        self.flush_if_due(now);
        let hash = self.index.hash(key);
        if self.tier.is_none() || self.index.find(&self.slabs, hash, key).is_some() {
            return None;
        }
        let listed = self.flash_tier()?.look(hash, key, now as u32)?;
        let glance =
            Glance { expiry: u64::from(listed.expiry), fetched: listed.fetched, binary: is_binary(listed.marks) };
        if bump && let Some(flash) = self.flash() {
            flash.note_asked(hash, key);
        }
        Some(glance)
    }

    /// Returns the size class, counted from one, of an item with a key and a value of these lengths; 0 if it is too large for any.
    pub fn class_for(&self, key: usize, value: usize) -> usize {
        self.slabs.class_for(key, value).map_or(0, |class| class + 1)
    }

    pub(super) fn view(&self, id: Id) -> View<'_> {
        View::new(self.slabs.chunk(id), id)
    }

    /// Gives the item another expiry; its version and the item otherwise as it was.
    pub fn touch(&mut self, key: &[u8], expiry: u64, now: u64) -> Option<View<'_>> {
        let id = self.live(self.index.hash(key), key, now)?;
        let chunk = self.slabs.chunk(id);
        chunk.set_expiry(expiry);
        eviction::touch(chunk, now);
        self.counts.classes[chunk.class()].touches += 1;
        // An end that has come already is one for one-sided readers as well.
        if chunk.marked(chunk::LEASED | chunk::LISTED) && self.is_over(id, now) {
            self.reclaim(id, now);
        }
        Some(self.view(id))
    }

    /// Notes that a client was told to renew the item.
    pub fn mark_won(&mut self, handle: Handle) {
        self.slabs.chunk(handle.0).mark(chunk::WON);
    }

    /// Returns the value of an item just looked at.
    pub fn value(&self, handle: Handle) -> &[u8] {
        self.slabs.chunk(handle.0).value()
    }

    /// Keeps the item's chunk as it is until it is released, whatever becomes of the item. `None` if too many hold it.
    ///
    /// # Panics
    ///
    /// If the item is gone: a handle is good until the store changes.
    pub fn hold(&mut self, handle: Handle) -> Option<ChunkRef> {
        self.slabs.hold(handle.0)
    }

    /// Takes back a chunk that was held.
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn release(&mut self, held: ChunkRef) {
        self.slabs.release(held);
    }
}
