//! From a value to an item: a chunk is reserved, filled by its owner, and published.

use super::chunk::{self, Id};
use super::eviction;
use super::{ChunkWriter, Mode, Outcome, Refused, Store, Terms};
use rdmakv_proto::faults::{Fault, injected};

impl Store {
    /// Returns a chunk for this item, to be filled. `expiry` is in Unix seconds, 0 for never.
    ///
    /// # Errors
    ///
    /// The item is too large, or there is no memory for it.
    pub fn reserve(
        &mut self,
        key: &[u8],
        value: usize,
        flags: u32,
        expiry: u64,
        now: u64,
    ) -> Result<ChunkWriter, Refused> {
        #[cfg(rdmakv_fault_injection)]
        self.bury(1);
        let Some(class) = self.slabs.class_for(key.len(), value) else {
            self.counts.whole.too_large += 1;
            return Err(Refused::TooLarge);
        };
        let Some(id) = self.allocate(class, now) else {
            self.counts.whole.no_memory += 1;
            self.counts.classes[class].outofmemory += 1;
            return Err(Refused::NoMemory);
        };
        let chunk = self.slabs.begin(id, class, self.versions.incarnation(), key, value);
        chunk.set_expiry(expiry);
        chunk.set_flags(flags);
        chunk.set_accessed(now);
        Ok(self.slabs.writer(id))
    }

    /// Returns the bytes that an item's chunk takes of the memory for items: its part of a page.
    pub fn memory_of(&self, writer: &ChunkWriter) -> u64 {
        let (page, class) = (self.slabs.page_bytes(), writer.chunk().class());
        (page / self.slabs.chunks_a_page(class).max(1) as usize) as u64
    }

    /// Returns the bytes that items may take.
    pub fn memory_for_items(&self) -> u64 {
        (self.slabs.limit() * self.slabs.page_bytes()) as u64
    }

    /// Gives up a chunk that was not published.
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn abandon(&mut self, writer: ChunkWriter) {
        self.slabs.abandon(writer);
    }

    /// Makes what was filled the key's value, if the terms are met.
    ///
    /// # Panics
    ///
    /// If another store lent the chunk.
    pub fn publish(&mut self, writer: ChunkWriter, terms: Terms, now: u64) -> Outcome {
        let new = self.slabs.take(&writer);
        if terms.binary {
            writer.chunk().mark(chunk::BINARY);
        }
        let hash = self.index.hash(writer.key());
        let old = self.live(hash, writer.key(), now);
        let away = old.is_none() && self.is_away(hash, writer.key(), now);
        let before = old.map(|old| self.slabs.chunk(old));
        let mut stale = false;
        let refused = match (before, terms.cas) {
            // Its value was to be brought back before.
            (None, Some(_)) if away => Some(Outcome::Refused(Refused::NoMemory)),
            (None, Some(_)) => Some(Outcome::NotFound),
            (Some(before), Some(cas)) => {
                stale = terms.invalidate && cas < before.version();
                let good = stale || cas == before.version();
                let counters = &mut self.counts.classes[before.class()];
                *(if good { &mut counters.cas_hits } else { &mut counters.cas_badval }) += 1;
                (!good).then_some(Outcome::Exists)
            }
            _ => None,
        };
        let refused = refused.or(match (terms.mode, before) {
            (Mode::Add, Some(before)) => {
                eviction::touch(before, now);
                Some(Outcome::NotStored)
            }
            (Mode::Add, None) if away => Some(Outcome::NotStored),
            (Mode::Append | Mode::Prepend, None) if away => Some(Outcome::Refused(Refused::NoMemory)),
            (Mode::Replace, None) if away => None,
            (Mode::Append | Mode::Prepend, None) if terms.vivify => None,
            (Mode::Replace | Mode::Append | Mode::Prepend, None) => Some(Outcome::NotStored),
            _ => None,
        });
        if let Some(outcome) = refused {
            self.abandon(writer);
            return outcome;
        }
        if let (true, Some(before)) = (stale, before) {
            // As memcached: an older value keeps the end of the newer one, and its token.
            writer.chunk().set_expiry(before.expiry());
            writer.chunk().mark(before.marks(chunk::WON));
        }
        match (terms.mode, old) {
            (Mode::Append | Mode::Prepend, Some(old)) => self.join(writer, old, &terms, (hash, stale), now),
            _ => Outcome::Stored(self.install(new, hash, old, (stale, terms.version), now)),
        }
    }

    fn join(&mut self, writer: ChunkWriter, old: Id, terms: &Terms, (hash, stale): (u64, bool), now: u64) -> Outcome {
        // The old chunk is held, so that making room does not evict it; where it can be held no more, the others' holds do that.
        let held = self.slabs.hold(old);
        let (before, added) = (self.slabs.chunk(old), writer.chunk().value());
        let (length, flags, expiry) = (before.value_len() + added.len(), before.flags(), before.expiry());
        let outcome = match self.reserve(writer.key(), length, flags, expiry, now) {
            Ok(mut joined) => {
                let before = self.slabs.chunk(old);
                let (first, second) =
                    if terms.mode == Mode::Append { (before.value(), added) } else { (added, before.value()) };
                let (front, back) = joined.value().split_at_mut(first.len());
                front.copy_from_slice(first);
                back.copy_from_slice(second);
                let kept = if stale { chunk::BINARY | chunk::WON } else { chunk::BINARY };
                joined.chunk().mark(before.marks(kept));
                Outcome::Stored(self.install(joined.id(), hash, Some(old), (stale, terms.version), now))
            }
            Err(refused) => Outcome::Refused(refused),
        };
        held.into_iter().for_each(|held| self.slabs.release(held));
        self.abandon(writer);
        outcome
    }

    /// The steps of a replacement, in the order that one-sided readers need: the old chunk is dead before the index
    /// changes, and the new one is alive only after.
    /// `version` is the one that a client chose, if one did.
    pub(super) fn install(
        &mut self,
        new: Id,
        hash: u64,
        old: Option<Id>,
        (stale, version): (bool, Option<u64>),
        now: u64,
    ) -> u64 {
        let chunk = self.slabs.chunk(new);
        let version = self.versions.stamp(chunk, version);
        chunk.seal();
        if stale {
            chunk.mark(chunk::STALE);
        }
        self.counts.whole.total_items += 1;
        self.counts.classes[chunk.class()].sets += 1;
        if let Some(tier) = self.tier.as_mut().filter(|_| !injected(Fault::FlashKeptAtOverwrite)) {
            tier.flash.remove(hash, chunk.key());
        }
        // Making room may have driven the old one out meanwhile, where its holder keeps the chunk from being reused.
        let was_listed = match old.filter(|&old| self.is_alive(old)) {
            // Tags stay with the dead if the key changes too often.
            Some(old) => {
                self.replace(old, new, hash, 1, |store| !store.leases.died(hash, store.versions.latest(), now))
            }
            None => {
                self.index.insert(&self.slabs, hash, new);
                self.eviction.admit(&self.slabs, new, hash);
                self.slabs.publish(new);
                false
            }
        };
        // With an expiry that is past it is over at once, and tags may lead to it already.
        let (leased, over) = (self.slabs.chunk(new).marked(chunk::LEASED), self.is_over(new, now));
        if leased && over {
            self.reclaim(new, now);
        } else if (was_listed || self.table.lists_all()) && !over {
            self.table.list(&self.slabs, new);
        }
        // Its page began to drain while the chunk was not published.
        if self.slabs.drains(new) && self.is_alive(new) {
            if over { self.reclaim(new, now) } else { self.vacate(new, true, now) }
        }
        version
    }

    /// Puts an unpublished chunk in the place of a living one and publishes it. Tags go over to it if they may. Returns whether the
    /// old one was listed in the GET table.
    pub(super) fn replace(
        &mut self,
        old: Id,
        new: Id,
        hash: u64,
        uses: u32,
        tags_may_go_over: impl FnOnce(&mut Self) -> bool,
    ) -> bool {
        let marks = self.slabs.chunk(old).marks(chunk::LEASED | chunk::LISTED);
        self.die(old, true);
        if marks & chunk::LEASED != 0 && tags_may_go_over(self) {
            debug_assert!(self.index.names(hash, old) && !self.index.names(hash, new), "the index changes after that");
            self.leases.hand_over(&mut self.slabs, old, new);
        }
        self.index.replace(hash, old, new);
        self.eviction.replace(&self.slabs, old, new, uses);
        self.retire(old);
        self.slabs.publish(new);
        marks & chunk::LISTED != 0
    }
}
