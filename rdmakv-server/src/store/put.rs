//! From a value to an item: a chunk is reserved, filled by its owner, and published.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use super::chunk::{self, Chunk, HEADER, Id, State};
use super::queues::{MAIN, MOST_FREQUENT, SMALL};
use super::{Filling, Handle, KEY_MAX, Mode, Outcome, Refused, Store, Terms, classes};

impl Store {
    /// A chunk for this item, to be filled. `expiry` is in Unix seconds, 0 for never.
    ///
    /// # Errors
    ///
    /// The item is too large, or there is no memory for it.
    pub fn reserve(&mut self, key: &[u8], value: usize, flags: u32, expiry: u64, now: u64) -> Result<Filling, Refused> {
        #[cfg(rdmakv_sabotage)]
        self.bury(1);
        let size = HEADER.saturating_add(key.len()).saturating_add(value);
        let class =
            if key.len() > KEY_MAX || size > self.item_max { None } else { classes::fitting(&self.sizes, size) };
        let Some(class) = class else {
            self.counters.too_large += 1;
            return Err(Refused::TooLarge);
        };
        let Some(id) = self.allocate(class, now) else {
            self.counters.no_memory += 1;
            self.classes[class].outofmemory += 1;
            return Err(Refused::NoMemory);
        };
        let chunk = self.chunk(id);
        chunk.begin(State::Unpublished, self.incarnation);
        chunk.set_expiry(expiry);
        chunk.set_version(0);
        chunk.set_value_len(value as u32);
        chunk.set_flags(flags);
        chunk.set_shape(key.len() as u32 | (class as u32) << 8);
        chunk.set_accessed(now as u32);
        chunk.set_private(0);
        chunk.key_mut().copy_from_slice(key);
        self.classes[class].requested += size as u64;
        Ok(Filling { arena: self.arena.clone(), id })
    }

    /// Gives up a chunk that was not published.
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn abandon(&mut self, filling: Filling) {
        assert!(Arc::ptr_eq(&self.arena, &filling.arena), "a chunk goes back to the store that lent it");
        self.retire(filling.id);
    }

    /// Makes what was filled the key's value, if the terms are met.
    ///
    /// # Panics
    ///
    /// If another store lent the chunk.
    pub fn publish(&mut self, filling: Filling, terms: Terms, now: u64) -> Outcome {
        assert!(Arc::ptr_eq(&self.arena, &filling.arena), "a chunk goes back to the store that lent it");
        let new = filling.id;
        if terms.binary {
            self.chunk(new).mark(chunk::BINARY);
        }
        let hash = self.hash(self.chunk(new).key());
        let old = self.live(hash, filling.key(), now);
        let mut stale = false;
        let refused = match (old, terms.cas) {
            (None, Some(_)) => Some(Outcome::NotFound),
            (Some(id), Some(cas)) => {
                let (version, class) = (self.chunk(id).version(), self.chunk(id).class());
                stale = terms.invalidate && cas < version;
                let good = stale || cas == version;
                *(if good { &mut self.classes[class].cas_hits } else { &mut self.classes[class].cas_badval }) += 1;
                (!good).then_some(Outcome::Exists)
            }
            _ => None,
        };
        let refused = refused.or(match (terms.mode, old) {
            (Mode::Add, Some(id)) => {
                self.bump(id, now);
                Some(Outcome::NotStored)
            }
            (Mode::Append | Mode::Prepend, None) if terms.vivify => None,
            (Mode::Replace | Mode::Append | Mode::Prepend, None) => Some(Outcome::NotStored),
            _ => None,
        });
        if let Some(outcome) = refused {
            self.abandon(filling);
            return outcome;
        }
        if let (true, Some(old)) = (stale, old) {
            // As memcached: an older value keeps the end of the newer one, and its token.
            let old = self.chunk(old);
            self.chunk(new).set_expiry(old.expiry());
            self.chunk(new).mark(old.marks(chunk::WON));
        }
        match (terms.mode, old) {
            (Mode::Append | Mode::Prepend, Some(id)) => self.join(filling, id, &terms, (hash, stale), now),
            _ => Outcome::Stored(self.install(new, hash, old, (stale, terms.version), now)),
        }
    }

    fn join(&mut self, filling: Filling, old: Id, terms: &Terms, (hash, stale): (u64, bool), now: u64) -> Outcome {
        // The old chunk is held, so that making room does not evict it.
        let held = self.hold(Handle(old));
        let chunk = Chunk::new(&filling.arena, old);
        let added = Chunk::new(&filling.arena, filling.id).value();
        let reserved =
            self.reserve(filling.key(), chunk.value().len() + added.len(), chunk.flags(), chunk.expiry(), now);
        let outcome = match reserved {
            Ok(mut joined) => {
                let parts = if terms.mode == Mode::Append { [chunk.value(), added] } else { [added, chunk.value()] };
                let (first, second) = joined.value().split_at_mut(parts[0].len());
                first.copy_from_slice(parts[0]);
                second.copy_from_slice(parts[1]);
                let kept = if stale { chunk::BINARY | chunk::WON } else { chunk::BINARY };
                Chunk::new(&filling.arena, joined.id).mark(chunk.marks(kept));
                Outcome::Stored(self.install(joined.id, hash, Some(old), (stale, terms.version), now))
            }
            Err(refused) => Outcome::Refused(refused),
        };
        if let Some(held) = held {
            self.release(held);
        }
        self.abandon(filling);
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
        self.version += 1;
        self.counters.total_items += 1;
        let chunk = Chunk::new(&self.arena, new);
        let version = match version {
            Some(version) => {
                self.chosen = true;
                chunk.mark(chunk::CHOSEN);
                version
            }
            None => self.version,
        };
        chunk.set_version(version);
        chunk.set_crc(chunk.sum());
        if stale {
            chunk.mark(chunk::STALE);
        }
        let class = chunk.class();
        self.classes[class].sets += 1;
        // Making room may have driven the old one out meanwhile, where its holder keeps the chunk from being reused.
        let old = old.filter(|&old| self.is_alive(old));
        let listed = old.is_some_and(|old| self.chunk(old).marked(chunk::LISTED));
        if let Some(old) = old {
            self.die(old, true);
            // Tags go over between the old one's death and the change of the index, if the key is not changed too often.
            if self.chunk(old).marked(chunk::LEASED) && !self.leased_dies(hash, now) {
                self.hand_over(old, new);
            }
            let (chunk, before) = (Chunk::new(&self.arena, new), Chunk::new(&self.arena, old));
            let there = self.index.replace(hash, old, new);
            debug_assert!(there, "an item is in the index");
            let frequency = before.frequency();
            if before.class() == class {
                self.queues[class].replace(&self.arena, old, new);
            } else {
                let queue = before.queue();
                self.queues[before.class()].remove(&self.arena, old);
                self.queues[class].push(&self.arena, new, queue);
            }
            chunk.set_frequency((frequency + 1).min(MOST_FREQUENT));
            self.retire(old);
            #[cfg(rdmakv_sabotage)]
            self.reuse_early(old);
        } else {
            let Self { index, arena, hasher, .. } = self;
            index.insert(hash, new, |id| {
                let mut state = hasher.build_hasher();
                state.write(Chunk::new(arena, id).key());
                state.finish()
            });
            let ghost = self.ghosts.recall(class, hash);
            if let Some(ghost) = ghost {
                self.balance.came_back(class, ghost.of_a_page(self.pages.pages_of(class)));
            }
            let queue = if ghost.is_some_and(|ghost| ghost.small) { MAIN } else { SMALL };
            self.queues[class].push(&self.arena, new, queue);
        }
        let chunk = Chunk::new(&self.arena, new);
        chunk.set_state(State::Alive);
        // With an expiry that is past it is over at once, and tags may lead to it already.
        if chunk.marked(chunk::LEASED) && self.is_over(new, now) {
            self.reclaim(new, now);
        } else if listed && !self.is_over(new, now) {
            self.relist(new);
        }
        version
    }
}
