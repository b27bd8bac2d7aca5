//! From a key to its item: lookups, and what they leave behind.

use std::hash::{BuildHasher, Hasher};

use super::chunk::{self, Chunk, Id, State};
use super::queues::{MOST_FREQUENT, SMALL};
use super::{Handle, Store, View};

/// What a look at a key finds, without changing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Not,
    /// An item.
    Item {
        /// Its size class.
        class: usize,
        /// Bytes of its value.
        value: usize,
    },
    /// An item from before a flush.
    Flushed,
    /// An item whose time is over.
    Expired,
}

impl Store {
    pub(super) fn chunk(&self, id: Id) -> Chunk<'_> {
        Chunk::new(&self.arena, id)
    }

    #[inline]
    pub(super) fn is_alive(&self, id: Id) -> bool {
        #[cfg(rdmakv_sabotage)]
        if self.leases.planted.is_late(id) {
            return false;
        }
        self.chunk(id).state() == State::Alive
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The key's chunk, dead or alive.
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<Id> {
        self.index.find(hash, |id| self.chunk(id).key() == key)
    }

    /// Whether a published item is over: expired or flushed.
    pub(super) fn is_over(&self, id: Id, now: u64) -> bool {
        let chunk = self.chunk(id);
        let expiry = chunk.expiry();
        (expiry != 0 && expiry <= now) || self.is_flushed(id)
    }

    /// Whether it is from before a flush. Those whose version a client chose are taken out by the flush itself.
    fn is_flushed(&self, id: Id) -> bool {
        let chunk = self.chunk(id);
        chunk.version() <= self.flushed && !chunk.marked(chunk::CHOSEN)
    }

    /// A flush whose time has come takes effect with the first command of that second, so that it takes nothing along
    /// that was stored later.
    pub(super) fn flush_if_due(&mut self, now: u64) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush(None, now);
        }
    }

    /// The key's item if it lives; one that is over is taken out on the way.
    pub(super) fn live(&mut self, hash: u64, key: &[u8], now: u64) -> Option<Id> {
        self.flush_if_due(now);
        let id = self.find(hash, key)?;
        if self.is_over(id, now) {
            self.reclaim(id, now);
            return None;
        }
        Some(id)
    }

    /// The item, if there is one. With `bump` the question counts: for eviction and in the marks.
    pub fn get(&mut self, key: &[u8], bump: bool, now: u64) -> Option<View<'_>> {
        #[cfg(rdmakv_sabotage)]
        self.bury(1);
        self.flush_if_due(now);
        let hash = self.hash(key);
        let id = self.find(hash, key)?;
        if self.is_over(id, now) {
            let flushed = self.is_flushed(id);
            *(if flushed { &mut self.counters.get_flushed } else { &mut self.counters.get_expired }) += 1;
            self.reclaim(id, now);
            return None;
        }
        let chunk = self.chunk(id);
        let before = (chunk.accessed(), chunk.marked(chunk::FETCHED));
        if bump {
            let class = chunk.class();
            self.bump(id, now);
            self.classes[class].hits_small += u64::from(self.chunk(id).queue() == SMALL);
            self.classes[class].get_hits += 1;
        }
        Some(View { accessed: before.0, fetched: before.1, ..self.view(id) })
    }

    /// Looks at the key, and leaves no trace of it.
    pub fn peek(&self, key: &[u8], now: u64) -> Found {
        let Some(id) = self.find(self.hash(key), key) else { return Found::Not };
        let chunk = self.chunk(id);
        if self.is_flushed(id) || self.flush_at.is_some_and(|at| at <= now) {
            Found::Flushed
        } else if self.is_over(id, now) {
            Found::Expired
        } else {
            Found::Item { class: chunk.class(), value: chunk.value().len() }
        }
    }

    /// The size class, counted from one, of an item with a key and a value of these lengths; 0 if it is too large for any.
    pub fn class_for(&self, key: usize, value: usize) -> usize {
        let size = super::HEADER.saturating_add(key).saturating_add(value);
        let class = super::classes::fitting(&self.sizes, size).filter(|_| size <= self.item_max);
        class.map_or(0, |class| class + 1)
    }

    pub(super) fn bump(&mut self, id: Id, now: u64) {
        let chunk = self.chunk(id);
        // Nothing is written where nothing changes: the line stays shared between processors.
        if chunk.accessed() != now as u32 {
            chunk.set_accessed(now as u32);
        }
        let frequency = chunk.frequency();
        if frequency < MOST_FREQUENT {
            chunk.set_frequency(frequency + 1);
        }
        chunk.mark(chunk::FETCHED);
    }

    pub(super) fn view(&self, id: Id) -> View<'_> {
        let chunk = self.chunk(id);
        View {
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

    /// Gives the item another expiry; its version and the item otherwise as it was.
    pub fn touch(&mut self, key: &[u8], expiry: u64, now: u64) -> Option<View<'_>> {
        let hash = self.hash(key);
        let id = self.live(hash, key, now)?;
        self.chunk(id).set_expiry(expiry);
        let class = self.chunk(id).class();
        self.classes[class].touches += 1;
        self.bump(id, now);
        // An end that has come already is one for those who read by themselves as well.
        if self.chunk(id).marked(chunk::LEASED | chunk::LISTED) && self.is_over(id, now) {
            self.reclaim(id, now);
        }
        Some(self.view(id))
    }

    /// Notes that somebody was told to renew the item.
    pub fn mark_won(&mut self, handle: Handle) {
        self.chunk(handle.0).mark(chunk::WON);
    }
}
