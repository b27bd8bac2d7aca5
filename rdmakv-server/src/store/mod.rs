//! The cache itself, without sockets, clocks or threads: time comes in as an argument (Unix seconds).
//!
//! A [`Store`] is one shard and belongs to whoever has `&mut`; a server puts each behind a lock. Operations on a key
//! happen under that lock, so they are linearizable. Two things may leave it: a [`Filling`] (a chunk that is not
//! published yet, for its one owner to write) and a [`Held`] (a published chunk that stays as it is until it is
//! released, for as many readers as like). Neither is ever reused early: chunks are freed in one place only,
//! `retire`, which waits for the last holder.
//!
//! ```
//! use rdmakv_server::store::{Config, Outcome, Store, Terms};
//!
//! let mut store = Store::new(&Config::default())?;
//! let mut chunk = store.reserve(b"key", 5, 0, 0, 1000).unwrap();
//! chunk.value().copy_from_slice(b"value");
//! assert!(matches!(store.publish(chunk, Terms::default(), 1000), Outcome::Stored(_)));
//! assert_eq!(store.get(b"key", true, 1000).unwrap().value, b"value");
//! # Ok::<(), std::io::Error>(())
//! ```

mod arena;
mod arithmetic;
mod chunk;
mod classes;
mod counters;
mod crawl;
mod evict;
mod ghosts;
mod index;
mod pages;
mod queues;
mod report;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use foldhash::quality::FixedState;
use std::hash::{BuildHasher, Hasher};

use arena::Arena;
use chunk::{Chunk, Id, State};
use ghosts::Ghosts;
use index::Index;
use pages::Pages;
use queues::{MAIN, MOST_FREQUENT, Queues, SMALL};

pub use arena::Backing;
pub use arithmetic::Sum;
pub use chunk::{HEADER, MAGIC};
pub use counters::{ClassCounters, Counters};
pub use evict::NoMove;
pub use report::{ClassReport, Entry, Report};

/// Bytes of a key at most.
pub const KEY_MAX: usize = 250;

/// How a store is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes for items.
    pub memory: usize,
    /// Bytes that it may grow to later ([`Store::set_limit`]); address space, not memory.
    pub memory_max: usize,
    /// Bytes of an item at most, with its header and key.
    pub item_max: usize,
    /// How much larger each class is than the one before.
    pub factor: f64,
    /// Room for key and value in the smallest class.
    pub least: usize,
    /// Whether old items make room for new ones.
    pub evict: bool,
    /// Whether to use huge pages where the system has them.
    pub huge: bool,
    /// The hash table starts with two to this power of buckets.
    pub hashpower: u32,
    /// The hash's secret.
    pub seed: u64,
    /// Which life of the server this is; every header carries it.
    pub incarnation: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            memory_max: 0,
            item_max: 1 << 20,
            factor: 1.25,
            least: 48,
            evict: true,
            huge: true,
            hashpower: 0,
            seed: 0,
            incarnation: 1,
        }
    }
}

/// Why there is no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The item is larger than items may be.
    TooLarge,
    /// Nothing could be evicted, or nothing may be.
    NoMemory,
}

/// On what terms an item is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// In any case.
    #[default]
    Set,
    /// Only if there is none.
    Add,
    /// Only if there is one.
    Replace,
    /// After the value that is there.
    Append,
    /// Before the value that is there.
    Prepend,
}

/// All the terms of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// See [`Mode`].
    pub mode: Mode,
    /// Only if the item that is there has this version.
    pub cas: Option<u64>,
    /// With `cas`: an older version is stored too, but as stale.
    pub invalidate: bool,
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored, as this version.
    Stored(u64),
    /// The mode did not allow it.
    NotStored,
    /// The version was another.
    Exists,
    /// There was nothing to compare with.
    NotFound,
    /// There was no room.
    Refused(Refused),
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Gone, or marked as stale.
    Done,
    /// There was none.
    NotFound,
    /// The version was another.
    Exists,
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
    /// Whether somebody was told to renew it.
    pub won: bool,
    /// Its size class.
    pub class: usize,
    /// Bytes with the header.
    pub size: usize,
    id: Id,
}

impl View<'_> {
    /// What to [`hold`](Store::hold).
    pub fn handle(&self) -> Handle {
        Handle(self.id)
    }
}

/// Names an item just looked at.
#[derive(Clone, Copy, Debug)]
pub struct Handle(Id);

/// A chunk that is being filled: the owner's alone until it is published or given up.
#[derive(Debug)]
#[must_use = "a chunk that is neither published nor abandoned is lost to the store"]
pub struct Filling {
    arena: Arc<Arena>,
    id: Id,
}

impl Filling {
    /// Where the value goes.
    pub fn value(&mut self) -> &mut [u8] {
        Chunk::new(&self.arena, self.id).value_mut()
    }
    /// What it will be stored under.
    pub fn key(&self) -> &[u8] {
        Chunk::new(&self.arena, self.id).key()
    }
}

/// A published chunk that stays as it is until it is given back to its store.
#[derive(Debug)]
#[must_use = "a chunk that is not released is lost to the store"]
pub struct Held {
    arena: Arc<Arena>,
    id: Id,
}

impl Held {
    /// The value.
    pub fn value(&self) -> &[u8] {
        Chunk::new(&self.arena, self.id).value()
    }
}

/// One shard of the cache.
#[derive(Debug)]
pub struct Store {
    arena: Arc<Arena>,
    sizes: Vec<usize>,
    pages: Pages,
    index: Index,
    queues: Vec<Queues>,
    ghosts: Ghosts,
    hasher: FixedState,
    incarnation: u32,
    item_max: usize,
    may_evict: bool,
    version: u64,
    /// Items up to this version are gone.
    flushed: u64,
    flush_at: Option<u64>,
    crawler: crawl::Cursor,
    rebalance: evict::Rebalance,
    classes: Vec<ClassCounters>,
    counters: Counters,
}

impl Store {
    /// An empty store.
    ///
    /// # Errors
    ///
    /// Those of the mapping: no memory, no address space.
    pub fn new(config: &Config) -> io::Result<Self> {
        let page = config.item_max.next_multiple_of(4096).clamp(1 << 20, 1 << 30);
        let count = (config.memory / page).max(2);
        let most = (config.memory_max / page).max(count);
        if most * page / 8 >= u32::MAX as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a store holds less than 32 GiB: use more of them",
            ));
        }
        let arena = Arc::new(Arena::new(most * page, config.huge)?);
        let sizes = classes::sizes(page, config.least, config.factor);
        let mut pages = Pages::new(page, most, &sizes);
        pages.set_limit(count);
        Ok(Self {
            index: Index::new(config.hashpower),
            queues: vec![Queues::new(); sizes.len()],
            ghosts: Ghosts::new(sizes.len()),
            hasher: FixedState::with_seed(config.seed),
            incarnation: config.incarnation,
            item_max: config.item_max.min(page),
            may_evict: config.evict,
            version: 0,
            flushed: 0,
            flush_at: None,
            crawler: crawl::Cursor::default(),
            rebalance: evict::Rebalance::new(sizes.len()),
            classes: vec![ClassCounters::default(); sizes.len()],
            counters: Counters::default(),
            arena,
            sizes,
            pages,
        })
    }

    /// What stands behind the memory.
    pub fn backing(&self) -> Backing {
        self.arena.backing()
    }

    /// Items at present, those that have expired unseen included.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn chunk(&self, id: Id) -> Chunk<'_> {
        Chunk::new(&self.arena, id)
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The key's chunk, dead or alive.
    fn find(&self, hash: u64, key: &[u8]) -> Option<Id> {
        self.index.find(hash, |id| self.chunk(id).key() == key)
    }

    /// Whether a published item is over: expired or flushed.
    fn is_over(&self, id: Id, now: u64) -> bool {
        let chunk = self.chunk(id);
        let expiry = chunk.expiry();
        (expiry != 0 && expiry <= now) || chunk.version() <= self.flushed
    }

    /// The key's item if it lives; one that is over is taken out on the way.
    fn live(&mut self, hash: u64, key: &[u8], now: u64) -> Option<Id> {
        let id = self.find(hash, key)?;
        if self.is_over(id, now) {
            self.reclaim(id);
            return None;
        }
        Some(id)
    }

    /// Takes out an item that is over.
    fn reclaim(&mut self, id: Id) {
        let chunk = self.chunk(id);
        let (class, fetched) = (chunk.class(), chunk.marked(chunk::FETCHED));
        self.classes[class].reclaimed += 1;
        self.classes[class].expired_unfetched += u64::from(!fetched);
        self.unlink(id);
    }

    /// Takes an item out of the index and the queues, and retires its chunk.
    fn unlink(&mut self, id: Id) {
        let hash = self.hash(self.chunk(id).key());
        let class = self.chunk(id).class();
        // Dead first: a one-sided reader must not find alive what the index no longer has.
        self.chunk(id).set_state(State::Dead);
        let there = self.index.remove(hash, id);
        debug_assert!(there, "an item is in the index");
        self.queues[class].remove(&self.arena, id);
        self.retire(id);
    }

    /// The one place where chunks end: freed when nobody holds them, else when the last holder lets go.
    fn retire(&mut self, id: Id) {
        let chunk = Chunk::new(&self.arena, id);
        chunk.set_state(State::Dead);
        if chunk.holders() == 0 {
            self.classes[chunk.class()].requested -= chunk.size() as u64;
            self.pages.give(&self.arena, id);
        }
    }

    /// The item, if there is one. With `bump` the question counts: for eviction and in the marks.
    pub fn get(&mut self, key: &[u8], bump: bool, now: u64) -> Option<View<'_>> {
        let hash = self.hash(key);
        let id = self.find(hash, key)?;
        if self.is_over(id, now) {
            let flushed = self.chunk(id).version() <= self.flushed;
            *(if flushed { &mut self.counters.get_flushed } else { &mut self.counters.get_expired }) += 1;
            self.reclaim(id);
            return None;
        }
        let chunk = self.chunk(id);
        let before = (chunk.accessed(), chunk.marked(chunk::FETCHED));
        if bump {
            let class = chunk.class();
            self.bump(id, now);
            self.classes[class].get_hits += 1;
        }
        Some(View { accessed: before.0, fetched: before.1, ..self.view(id) })
    }

    fn bump(&mut self, id: Id, now: u64) {
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

    fn view(&self, id: Id) -> View<'_> {
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
            class: chunk.class(),
            size: chunk.size(),
            id,
        }
    }

    /// The value of an item just looked at.
    pub fn value(&self, handle: Handle) -> &[u8] {
        self.chunk(handle.0).value()
    }

    /// Keeps the item's chunk as it is until it is released, whatever becomes of the item.
    ///
    /// # Panics
    ///
    /// If the item is gone: a handle is good until the store changes.
    pub fn hold(&mut self, handle: Handle) -> Option<Held> {
        let chunk = Chunk::new(&self.arena, handle.0);
        assert_eq!(chunk.state(), State::Alive, "a handle is good until the store changes");
        let holders = chunk.holders();
        // More would not fit into its field: the caller copies the value then.
        if holders == 0xffff {
            return None;
        }
        chunk.set_holders(holders + 1);
        Some(Held { arena: self.arena.clone(), id: handle.0 })
    }

    /// The holder lets go.
    ///
    /// # Panics
    ///
    /// If another store lent it.
    pub fn release(&mut self, held: Held) {
        assert!(Arc::ptr_eq(&self.arena, &held.arena), "a chunk goes back to the store that lent it");
        let chunk = Chunk::new(&held.arena, held.id);
        let holders = chunk.holders();
        chunk.set_holders(holders - 1);
        if holders == 1 && chunk.state() == State::Dead {
            self.retire(held.id);
        }
    }

    /// A chunk for this item, to be filled. `expiry` is in Unix seconds, 0 for never.
    ///
    /// # Errors
    ///
    /// The item is too large, or there is no memory for it.
    pub fn reserve(&mut self, key: &[u8], value: usize, flags: u32, expiry: u64, now: u64) -> Result<Filling, Refused> {
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
            (Mode::Replace | Mode::Append | Mode::Prepend, None) => Some(Outcome::NotStored),
            _ => None,
        });
        if let Some(outcome) = refused {
            self.abandon(filling);
            return outcome;
        }
        match (terms.mode, old) {
            (Mode::Append | Mode::Prepend, Some(id)) => self.join(filling, id, terms.mode, hash, stale, now),
            _ => Outcome::Stored(self.install(new, hash, old, stale)),
        }
    }

    fn join(&mut self, filling: Filling, old: Id, mode: Mode, hash: u64, stale: bool, now: u64) -> Outcome {
        // The old chunk is held, so that making room does not evict it.
        let held = self.hold(Handle(old));
        let chunk = Chunk::new(&filling.arena, old);
        let added = Chunk::new(&filling.arena, filling.id).value();
        let reserved =
            self.reserve(filling.key(), chunk.value().len() + added.len(), chunk.flags(), chunk.expiry(), now);
        let outcome = match reserved {
            Ok(mut joined) => {
                let parts = if mode == Mode::Append { [chunk.value(), added] } else { [added, chunk.value()] };
                let (first, second) = joined.value().split_at_mut(parts[0].len());
                first.copy_from_slice(parts[0]);
                second.copy_from_slice(parts[1]);
                Outcome::Stored(self.install(joined.id, hash, Some(old), stale))
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
    fn install(&mut self, new: Id, hash: u64, old: Option<Id>, stale: bool) -> u64 {
        self.version += 1;
        self.counters.total_items += 1;
        let chunk = Chunk::new(&self.arena, new);
        chunk.set_version(self.version);
        chunk.set_crc(chunk.sum());
        if stale {
            chunk.mark(chunk::STALE);
        }
        let class = chunk.class();
        self.classes[class].sets += 1;
        // Making room may have driven the old one out meanwhile, where its holder keeps the chunk from being reused.
        let old = old.filter(|&old| self.chunk(old).state() == State::Alive);
        let chunk = Chunk::new(&self.arena, new);
        if let Some(old) = old {
            let before = Chunk::new(&self.arena, old);
            before.set_state(State::Dead);
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
        } else {
            let Self { index, arena, hasher, .. } = self;
            index.insert(hash, new, |id| {
                let mut state = hasher.build_hasher();
                state.write(Chunk::new(arena, id).key());
                state.finish()
            });
            let queue = if self.ghosts.recall(class, hash) { MAIN } else { SMALL };
            self.queues[class].push(&self.arena, new, queue);
        }
        Chunk::new(&self.arena, new).set_state(State::Alive);
        self.version
    }

    /// Deletes the item.
    pub fn delete(&mut self, key: &[u8], cas: Option<u64>, now: u64) -> Deleted {
        let hash = self.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Deleted::NotFound };
        if cas.is_some_and(|cas| cas != self.chunk(id).version()) {
            return Deleted::Exists;
        }
        let class = self.chunk(id).class();
        self.classes[class].deletes += 1;
        self.unlink(id);
        Deleted::Done
    }

    /// Keeps the item but marks it as stale, under a new version; with another expiry if there is one.
    pub fn invalidate(&mut self, key: &[u8], cas: Option<u64>, expiry: Option<u64>, now: u64) -> Deleted {
        let hash = self.hash(key);
        let Some(id) = self.live(hash, key, now) else { return Deleted::NotFound };
        if cas.is_some_and(|cas| cas != self.chunk(id).version()) {
            return Deleted::Exists;
        }
        let Some(held) = self.hold(Handle(id)) else { return Deleted::Exists };
        let (flags, until) = (self.chunk(id).flags(), expiry.unwrap_or(self.chunk(id).expiry()));
        let copied = self.reserve(key, held.value().len(), flags, until, now).map(|mut copy| {
            copy.value().copy_from_slice(held.value());
            copy.id
        });
        match copied {
            Ok(new) => {
                self.install(new, hash, Some(id), true);
            }
            // Without memory for a stale copy the item goes altogether: nobody takes it for fresh.
            Err(_) => self.unlink(id),
        }
        self.release(held);
        Deleted::Done
    }

    /// Gives the item another expiry; its version and the item otherwise as it was.
    pub fn touch(&mut self, key: &[u8], expiry: u64, now: u64) -> Option<View<'_>> {
        let hash = self.hash(key);
        let id = self.live(hash, key, now)?;
        self.chunk(id).set_expiry(expiry);
        let class = self.chunk(id).class();
        self.classes[class].touches += 1;
        self.bump(id, now);
        Some(self.view(id))
    }

    /// Notes that somebody was told to renew the item.
    pub fn mark_won(&mut self, handle: Handle) {
        self.chunk(handle.0).mark(chunk::WON);
    }

    /// Everything stored so far is gone, now or when [`tick`](Self::tick) sees that time.
    pub fn flush(&mut self, at: Option<u64>, now: u64) {
        match at {
            Some(at) if at > now => self.flush_at = Some(at),
            _ => {
                self.flushed = self.version;
                self.flush_at = None;
            }
        }
    }

    /// Once a second: a flush that is due, and a page to where it is needed more.
    pub fn tick(&mut self, now: u64) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush(None, now);
        }
        self.shrink(now);
        self.rebalance(now);
    }

    /// Other bounds on the memory, as far as the address space reaches; what is over goes at the next ticks. Says
    /// how much it is now.
    pub fn set_limit(&mut self, memory: usize) -> usize {
        self.pages.set_limit((memory / self.pages.page_size()).max(2));
        memory.min(self.pages.count() * self.pages.page_size())
    }

    /// Counters back to zero.
    pub fn reset_counters(&mut self) {
        for class in &mut self.classes {
            *class = ClassCounters { requested: class.requested, ..ClassCounters::default() };
        }
        self.counters = Counters::default();
    }
}
