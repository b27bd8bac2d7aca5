//! The memory of items: an arena of pages, each cut into chunks of one size.
//!
//! A page belongs to one class or to the pool. Its free chunks are linked through their headers; chunks that were
//! never used are counted, not touched. A page that drains gives out nothing more and goes to the pool when its
//! last chunk comes back.
//!
//! A chunk is free, unpublished (its [`ChunkWriter`]'s alone), alive or dead. It is freed when it is dead and nothing holds it: a
//! [`ChunkRef`] is a holder, a lease is another. A value of a cluster that was shown is primary or held instead of alive: it keeps its
//! [`ChunkWriter`], which writes no more.

mod classes;
mod lend;

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::arena::{Arena, Backing, Memory};
use super::chunk::{self, Chunk, Id};
use super::config::Config;
use super::kernel::KernelTable;
use rdmakv_proto::item::{HEADER, KEY_MAX, State};

pub use lend::{ChunkRef, ChunkWriter};

#[derive(Clone, Debug)]
struct Page {
    class: Option<u8>,
    used: u32,
    touched: u32,
    free: Id,
    draining: bool,
    /// Chunks with leases.
    leased: u32,
    /// The page's place in its class's list of pages with free chunks.
    listed: Option<u32>,
}

const NO_CLASS: Page =
    Page { class: None, used: 0, touched: 0, free: Id::NONE, draining: false, leased: 0, listed: None };

#[derive(Clone, Debug, Default)]
struct Class {
    pages: u32,
    draining: u32,
    used: u64,
    /// Bytes that items use.
    bytes: u64,
    with_free: Vec<u32>,
    /// Whether it had a page beyond the limit once.
    had_extra: bool,
}

/// A chunk's place in memory, and which item is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The start, in this process.
    pub address: u64,
    /// Its bytes in all. Bytes beyond the used ones may be anything.
    pub slot: u64,
    /// Bytes that the item uses: header, key and value.
    pub used: u64,
    /// The item's version. It tells chunks apart that follow each other in one place. Only an item that was on flash has its own
    /// again.
    pub version: u64,
}

/// The place of a walk over all chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    page: usize,
    slot: u32,
}

/// A page without memory of the system, which was counted as one that has some.
#[derive(Debug)]
pub struct EmptyPage {
    arena: Arc<Arena>,
    at: usize,
    len: usize,
}

impl EmptyPage {
    /// Has the system give it memory now, and not when items use it.
    ///
    /// # Errors
    ///
    /// The system has no memory, or does not know the call (Linux before 5.14).
    pub fn populate(&self) -> io::Result<()> {
        self.arena.populate(self.at, self.len)
    }
}

/// How many pages of which size a configuration makes.
pub(super) struct Pages {
    /// Bytes of a page.
    pub(super) page: usize,
    limit: usize,
    extra: usize,
    /// Pages at most.
    pub(super) most: usize,
    sizes: Vec<usize>,
}

impl Pages {
    pub(super) fn of(config: &Config) -> Self {
        let page = config.item_max.next_multiple_of(4096).clamp(1 << 20, 1 << 30);
        let limit = (config.memory / page).max(2);
        let sizes = classes::sizes(page, config.least, config.factor);
        let extra = (config.extra / page).min(sizes.len());
        let most = (config.memory_max / page).max(limit) + extra;
        Self { page, limit, extra, most, sizes }
    }
}

/// The arena, its pages and their classes.
#[derive(Debug)]
pub(super) struct Slabs {
    arena: Arc<Arena>,
    page: usize,
    item_max: usize,
    sizes: Vec<usize>,
    pages: Vec<Page>,
    classes: Vec<Class>,
    /// Pages of no class; those with memory are the last.
    pool: Vec<u32>,
    /// Pages with memory of the system: those in use, and some of the pool.
    resident: usize,
    /// Pages that are lent.
    lent: usize,
    /// Whether the next page to come free is to be lent.
    is_wanted: bool,
    /// Whether the system takes memory back.
    gives_back: bool,
    /// Pages that may be in use; fewer than there are after the limit was lowered.
    limit: usize,
    /// Pages beyond the limit that may still be given to classes without any, and those that were.
    extra: usize,
    extra_given: usize,
    crawler: Place,
    /// Learns of pages that leave their class.
    kernel: Option<Arc<dyn KernelTable>>,
}

impl Slabs {
    /// Makes empty slabs, in memory from `make` if there is one: it is told how many bytes it takes.
    pub(super) fn new(config: &Config, make: Option<impl FnOnce(usize) -> io::Result<Memory>>) -> io::Result<Self> {
        let Pages { page, limit, extra, most, sizes } = Pages::of(config);
        if most * page / 8 >= u32::MAX as usize {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a store holds less than 32 GiB: use more of them",
            ));
        }
        // Huge pages are no one else's from then on, so there are only as many as the items may take now.
        let now = limit + extra;
        let (arena, count) = match make {
            Some(make) => (Arena::given(make(most * page)?, most * page)?, most),
            None => match config.huge.then(|| Arena::huge(now * page)).flatten() {
                Some(arena) => (arena, now),
                None => (Arena::new(most * page)?, most),
            },
        };
        Ok(Self {
            arena: Arc::new(arena),
            page,
            item_max: config.item_max.min(page),
            pages: vec![NO_CLASS; count],
            classes: vec![Class::default(); sizes.len()],
            pool: (0..count as u32).rev().collect(),
            resident: 0,
            lent: 0,
            is_wanted: false,
            gives_back: true,
            limit: limit.min(count),
            extra,
            extra_given: 0,
            crawler: Place::default(),
            kernel: None,
            sizes,
        })
    }

    /// Reports pages that leave their class to this table from now on.
    pub(super) fn report_to(&mut self, kernel: Arc<dyn KernelTable>) {
        self.kernel = Some(kernel);
    }
    /// Returns what backs the memory.
    pub(super) fn backing(&self) -> Backing {
        self.arena.backing()
    }
    /// Returns where the arena begins, and its bytes.
    pub(super) fn memory(&self) -> (*mut u8, usize) {
        self.arena.whole()
    }
    /// Returns the bytes that pages can be made of.
    pub(super) fn most_memory(&self) -> usize {
        self.pages.len() * self.page
    }
    /// Returns the bytes of pages in use for items.
    pub(super) fn memory_in_use(&self) -> usize {
        (self.in_use() - self.lent) * self.page
    }

    /// Sets how many bytes pages may take from now on, two pages at least and at most all.
    pub(super) fn set_limit(&mut self, memory: usize) {
        self.limit = (memory / self.page).max(2).min(self.pages.len());
    }
    /// Counts the pages above the limit as those that classes without any were given.
    pub(super) fn count_extra(&mut self) {
        self.extra_given = self.in_use().saturating_sub(self.limit).min(self.extra);
    }
    pub(super) fn limit(&self) -> usize {
        self.limit
    }
    fn in_use(&self) -> usize {
        self.pages.len() - self.pool.len()
    }
    /// Returns the bytes of pages that have memory.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        self.resident * self.page
    }
    /// Lends a page, for something that is no item, if the limit allows another. The next one to come free is kept for that otherwise.
    pub(super) fn lend_page(&mut self) -> Option<(NonNull<u8>, Arc<Arena>)> {
        self.is_wanted = self.in_use() >= self.limit + self.extra_given;
        let page = if self.is_wanted { None } else { self.take_page() }?;
        self.lent += 1;
        let bytes = self.arena.bytes_mut(page * self.page, self.page);
        Some((NonNull::from(bytes).cast(), self.arena.clone()))
    }
    /// Takes a lent page back.
    pub(super) fn return_page(&mut self, address: u64) {
        self.lent -= 1;
        self.pool.push(((address - self.arena.whole().0 as u64) / self.page as u64) as u32);
    }
    /// Keeps no page for what is not asked for any more.
    pub(super) fn want_none(&mut self) {
        self.is_wanted = false;
    }
    fn take_page(&mut self) -> Option<usize> {
        let has_memory = self.resident > self.in_use();
        let page = self.pool.pop()? as usize;
        self.resident += usize::from(!has_memory);
        Some(page)
    }
    /// Returns the page without memory that would be used next, and counts it as one with memory; None if all below the limit have some.
    pub(super) fn empty_page(&mut self) -> Option<EmptyPage> {
        if self.resident >= self.limit {
            return None;
        }
        // Pages with memory are the last ones of the pool.
        let last = self.pool.len().checked_sub(self.resident - self.in_use() + 1)?;
        self.resident += 1;
        let at = self.pool[last] as usize * self.page;
        Some(EmptyPage { arena: self.arena.clone(), at, len: self.page })
    }
    /// Returns whether [`trim`](Self::trim) finds something.
    pub(super) fn has_spare_memory(&self) -> bool {
        self.gives_back && self.resident > (self.limit + self.extra_given).max(self.in_use())
    }
    /// Returns whether an address is in the arena.
    pub(super) fn has(&self, address: u64) -> bool {
        let (base, len) = self.arena.whole();
        address.checked_sub(base as u64).is_some_and(|at| at < len as u64)
    }
    /// Returns the bytes of a page.
    pub(super) fn page_bytes(&self) -> usize {
        self.page
    }
    /// Gives the memory of pages beyond the limit back to the system, if they are in no use; returns where they are and their bytes.
    pub(super) fn trim(&mut self, most: usize) -> Vec<(u64, u64)> {
        let mut trimmed = Vec::new();
        while self.has_spare_memory() && trimmed.len() < most {
            let page = self.pool[self.pool.len() - (self.resident - self.in_use())] as usize;
            self.gives_back = self.arena.give_back(page * self.page, self.page);
            self.resident -= 1;
            trimmed.push((self.arena.whole().0 as u64 + (page * self.page) as u64, self.page as u64));
        }
        trimmed
    }
    /// Returns whether a page is to be given up: for the limit, or to be lent.
    pub(super) fn is_short(&self) -> bool {
        self.in_use() + usize::from(self.is_wanted) > self.limit + self.extra_given
    }
    pub(super) fn over_limit(&self) -> bool {
        self.in_use() > self.limit + self.extra_given
    }
    /// Returns whether a class that has pages gets no more by asking.
    pub(super) fn none_to_adopt(&self) -> bool {
        self.pool.is_empty() || self.in_use() + usize::from(self.is_wanted) >= self.limit + self.extra_given
    }
    /// Returns how many pages belong to no class.
    pub(super) fn pooled(&self) -> usize {
        self.pool.len()
    }
    /// Returns how many pages drain and are not empty yet.
    pub(super) fn draining(&self) -> u32 {
        self.classes.iter().map(|class| class.draining).sum()
    }
}

/// Classes.
impl Slabs {
    /// Returns the sizes of chunks, by class.
    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }
    /// Returns the class of an item with a key and a value of these lengths, unless it is too large.
    pub(super) fn class_for(&self, key: usize, value: usize) -> Option<usize> {
        let size = HEADER.saturating_add(key).saturating_add(value);
        if key > KEY_MAX || size > self.item_max { None } else { classes::fitting(&self.sizes, size) }
    }
    /// Returns the class of items of so many bytes, with their headers. The largest takes what is larger, too.
    pub(super) fn class_of_size(&self, bytes: usize) -> usize {
        classes::fitting(&self.sizes, bytes).unwrap_or(self.sizes.len() - 1)
    }
    pub(super) fn pages_of(&self, class: usize) -> u32 {
        self.classes[class].pages
    }
    /// Returns how many pages of the class do not drain already.
    pub(super) fn steady_pages_of(&self, class: usize) -> u32 {
        self.classes[class].pages - self.classes[class].draining
    }
    pub(super) fn used_of(&self, class: usize) -> u64 {
        self.classes[class].used
    }
    /// Returns the bytes that the class's items use, headers included.
    pub(super) fn bytes_of(&self, class: usize) -> u64 {
        self.classes[class].bytes
    }
    pub(super) fn chunks_a_page(&self, class: usize) -> u32 {
        (self.page / self.sizes[class]) as u32
    }
    pub(super) fn free_of(&self, class: usize) -> u64 {
        u64::from(self.pages_of(class)) * u64::from(self.chunks_a_page(class)) - self.used_of(class)
    }
    /// Returns whether a page that the class has holds a free chunk.
    pub(super) fn has_free(&self, class: usize) -> bool {
        !self.classes[class].with_free.is_empty()
    }
}

/// Chunks.
impl Slabs {
    #[inline]
    pub(super) fn chunk(&self, id: Id) -> Chunk<'_> {
        Chunk::new(&self.arena, id)
    }

    /// Takes a free chunk of the class, from a page it has or from the pool.
    pub(super) fn allocate(&mut self, class: usize) -> Option<Id> {
        let page = match self.classes[class].with_free.last() {
            Some(&page) => page as usize,
            None => self.adopt(class)?,
        };
        let entry = &mut self.pages[page];
        let id = match entry.free.some() {
            Some(id) => {
                entry.free = Chunk::new(&self.arena, id).next();
                id
            }
            None => {
                entry.touched += 1;
                let slot = entry.touched - 1;
                self.id(page, slot)
            }
        };
        self.pages[page].used += 1;
        self.classes[class].used += 1;
        if self.pages[page].used == self.chunks_a_page(class) {
            self.unlist(page);
        }
        Some(id)
    }

    /// Begins an item in a chunk that was just allocated; it is unpublished.
    pub(super) fn begin(&mut self, id: Id, class: usize, incarnation: u32, key: &[u8], value: usize) -> Chunk<'_> {
        let chunk = Chunk::new(&self.arena, id);
        chunk.begin(incarnation, class, key.len(), value);
        chunk.key_mut().copy_from_slice(key);
        self.classes[class].bytes += (HEADER + key.len() + value) as u64;
        chunk
    }

    /// Copies an item into a chunk of its class that was just allocated; the copy is unpublished, not leased and not listed.
    pub(super) fn copy(&mut self, from: Id, to: Id) {
        let (from, to) = (Chunk::new(&self.arena, from), Chunk::new(&self.arena, to));
        to.begin_copy(from);
        to.key_mut().copy_from_slice(from.key());
        to.value_mut().copy_from_slice(from.value());
        self.classes[to.class()].bytes += to.size() as u64;
    }

    /// Makes an item readable for all that find it.
    pub(super) fn publish(&mut self, id: Id) {
        self.chunk(id).set_state(State::Alive);
    }
    /// Makes an unpublished or held value the one that its key's primary answers with.
    pub(super) fn show(&mut self, id: Id) {
        self.chunk(id).set_state(State::Primary);
    }
    /// Makes a value that was shown no answer, for all that read without asking.
    pub(super) fn cover(&mut self, id: Id) {
        self.chunk(id).set_state(State::Held);
    }
    /// Ends an item for all that read without asking.
    pub(super) fn kill(&mut self, id: Id) {
        self.chunk(id).set_state(State::Dead);
    }
    /// Frees the chunk of a dead item, unless something holds it; returns whether it is free.
    pub(super) fn retire(&mut self, id: Id) -> bool {
        let unheld = self.chunk(id).holders() == 0;
        if unheld {
            self.free(id);
        }
        unheld
    }

    /// Adds a holder; `false` if there are as many as the header can count.
    fn add_holder(&mut self, id: Id) -> bool {
        let holders = self.chunk(id).holders();
        if holders < 0xffff {
            self.chunk(id).set_holders(holders + 1);
        }
        holders < 0xffff
    }
    /// Takes a holder off; the last one of a dead item frees the chunk.
    fn drop_holder(&mut self, id: Id) {
        let chunk = self.chunk(id);
        chunk.set_holders(chunk.holders() - 1);
        if chunk.state() == State::Dead {
            self.retire(id);
        }
    }
    /// Holds a chunk for a lease; `false` if it has as many holders as it can.
    pub(super) fn lease(&mut self, id: Id) -> bool {
        let held = self.add_holder(id);
        let page = self.page_of(id);
        self.pages[page].leased += u32::from(held);
        held
    }
    /// Ends the hold of a chunk's leases.
    pub(super) fn unlease(&mut self, id: Id) {
        let page = self.page_of(id);
        self.pages[page].leased -= 1;
        self.drop_holder(id);
    }
    /// Returns whether something holds the chunk that is no lease: then its item must stay in this very chunk or leave.
    pub(super) fn is_pinned(&self, id: Id) -> bool {
        let chunk = self.chunk(id);
        chunk.holders() > u32::from(chunk.marked(chunk::LEASED))
    }

    /// Returns where the chunk lies, and which item is in it.
    pub(super) fn extent(&self, id: Id) -> Extent {
        let chunk = self.chunk(id);
        Extent {
            address: self.arena.whole().0 as u64 + id.at() as u64,
            slot: self.sizes[chunk.class()] as u64,
            used: chunk.size() as u64,
            version: chunk.version(),
        }
    }
    /// Returns all bytes of a chunk.
    #[cfg(test)]
    pub(super) fn bytes(&self, extent: Extent) -> &[u8] {
        self.arena.bytes((extent.address - self.arena.whole().0 as u64) as usize, extent.slot as usize)
    }
    /// Zeroes what lies between the item's end and this many bytes from its chunk's begin, as far as the chunk goes.
    pub(super) fn clear_tail(&self, extent: Extent, until: u64) {
        let begin = (extent.address - self.arena.whole().0 as u64) as usize;
        let (from, to) = (extent.used as usize, until.min(extent.slot) as usize);
        // Nothing else has these bytes: they are the chunk's and not the item's, and no slice of a key or a value
        // reaches there.
        if from < to {
            self.arena.bytes_mut(begin + from, to - from).fill(0);
        }
    }
    /// Returns the chunk that begins at this address, if it was ever in use.
    pub(super) fn chunk_at(&self, address: u64) -> Option<Id> {
        let at = address.checked_sub(self.arena.whole().0 as u64)? as usize;
        let (page, inside) = (self.pages.get(at / self.page)?, at % self.page);
        let size = self.sizes[usize::from(page.class?)];
        (inside % size == 0 && inside / size < page.touched as usize).then(|| Id::of(at))
    }

    /// Returns the next chunk that was ever in use, of one class or of all; `None` at the end.
    pub(super) fn next_chunk(&self, place: &mut Place, class: Option<usize>) -> Option<Id> {
        while let Some(page) = self.pages.get(place.page) {
            if place.slot < page.touched && class.is_none_or(|class| page.class == Some(class as u8)) {
                place.slot += 1;
                return Some(self.id(place.page, place.slot - 1));
            }
            *place = Place { page: place.page + 1, slot: 0 };
        }
        None
    }
    /// Returns the crawler's next chunk; at the end `None`, and then it begins again.
    pub(super) fn crawl(&mut self) -> Option<Id> {
        let mut place = self.crawler;
        let id = self.next_chunk(&mut place, None);
        self.crawler = if id.is_some() { place } else { Place::default() };
        id
    }
}

/// Chunks that are lent.
impl Slabs {
    /// Lends a chunk in which an item was begun.
    pub(super) fn writer(&self, id: Id) -> ChunkWriter {
        ChunkWriter::new(&self.arena, id)
    }
    /// Takes back a chunk to publish it, or to retire it if it was shown.
    pub(super) fn take(&self, writer: &ChunkWriter) -> Id {
        writer.lent_by(&self.arena)
    }
    /// Takes back a chunk that is not published, and frees it.
    pub(super) fn abandon(&mut self, writer: ChunkWriter) {
        let id = self.take(&writer);
        self.free(id);
    }

    /// Lends a published chunk; `None` if it has as many holders as it can.
    pub(super) fn hold(&mut self, id: Id) -> Option<ChunkRef> {
        let chunk = self.chunk(id);
        // One that is dead for others, but was still looked at, is leased: it stays as it is.
        let state = chunk.state();
        let stays = state.is_readable() || state == State::Held || chunk.marked(chunk::LEASED);
        assert!(stays, "a handle is good until the store changes");
        // More would not fit into its field: the caller copies the value then.
        self.add_holder(id).then(|| ChunkRef::new(&self.arena, id))
    }
    /// Returns the chunk that was lent.
    pub(super) fn lent(&self, held: &ChunkRef) -> Id {
        held.lent_by(&self.arena)
    }
    /// Takes back a published chunk.
    pub(super) fn release(&mut self, held: ChunkRef) {
        let id = self.lent(&held);
        self.drop_holder(id);
    }
}

/// Pages.
impl Slabs {
    /// Returns the page of the class that loses least when it drains: with the fewest leases, then the fewest chunks in use.
    pub(super) fn cheapest_page(&self, class: usize) -> Option<usize> {
        (0..self.pages.len())
            .filter(|&page| self.pages[page].class == Some(class as u8) && !self.pages[page].draining)
            .min_by_key(|&page| (self.pages[page].leased, self.pages[page].used))
    }
    /// Returns how many chunks of the page have leases.
    pub(super) fn leased_in(&self, page: usize) -> u32 {
        self.pages[page].leased
    }

    /// Returns whether the chunk's page drains.
    pub(super) fn drains(&self, id: Id) -> bool {
        self.classes[self.chunk(id).class()].draining > 0 && self.pages[self.page_of(id)].draining
    }

    /// Gives out nothing more from this page. Returns the chunks that have to leave it, none if it is in the pool already.
    pub(super) fn begin_drain(&mut self, page: usize) -> Vec<Id> {
        self.unlist(page);
        let entry = &mut self.pages[page];
        if let Some(class) = entry.class.filter(|_| !entry.draining) {
            self.classes[usize::from(class)].draining += 1;
        }
        entry.draining = true;
        if entry.used == 0 {
            self.give_up(page);
        }
        (0..self.pages[page].touched).map(|slot| self.id(page, slot)).collect()
    }

    fn id(&self, page: usize, slot: u32) -> Id {
        let size = self.pages[page].class.map_or(0, |class| self.sizes[usize::from(class)]);
        Id::of(page * self.page + slot as usize * size)
    }
    fn page_of(&self, id: Id) -> usize {
        id.at() / self.page
    }

    fn adopt(&mut self, class: usize) -> Option<usize> {
        let beyond = self.none_to_adopt();
        if beyond && (self.classes[class].pages > 0 || self.classes[class].had_extra || self.extra == self.extra_given)
        {
            return None;
        }
        let page = self.take_page()?;
        self.classes[class].had_extra |= beyond;
        self.extra_given += usize::from(beyond);
        self.pages[page] = Page { class: Some(class as u8), ..NO_CLASS };
        self.classes[class].pages += 1;
        self.list(page);
        Some(page)
    }

    /// The one place where chunks become free.
    fn free(&mut self, id: Id) {
        let page = self.page_of(id);
        let chunk = Chunk::new(&self.arena, id);
        debug_assert_ne!(chunk.state(), State::Free, "freed twice");
        chunk.set_state(State::Free);
        let entry = &mut self.pages[page];
        chunk.set_next(entry.free);
        entry.free = id;
        entry.used -= 1;
        let (used, draining, listed) = (entry.used, entry.draining, entry.listed.is_some());
        let class = &mut self.classes[chunk.class()];
        class.bytes -= chunk.size() as u64;
        class.used -= 1;
        if used == 0 && (draining || class.with_free.len() > 1) {
            self.give_up(page);
        } else if !draining && !listed {
            self.list(page);
        }
    }

    /// Gives an empty page to the pool. It keeps its memory until [`trim`](Self::trim).
    fn give_up(&mut self, page: usize) {
        self.unlist(page);
        let entry = &mut self.pages[page];
        if let Some(class) = entry.class.take() {
            self.classes[usize::from(class)].pages -= 1;
            self.classes[usize::from(class)].draining -= u32::from(entry.draining);
        }
        *entry = NO_CLASS;
        self.pool.push(page as u32);
        if let Some(kernel) = &self.kernel {
            kernel.page_left();
        }
    }

    fn list(&mut self, page: usize) {
        let class = usize::from(self.pages[page].class.expect("a listed page has a class"));
        self.pages[page].listed = Some(self.classes[class].with_free.len() as u32);
        self.classes[class].with_free.push(page as u32);
    }

    fn unlist(&mut self, page: usize) {
        let Some(at) = self.pages[page].listed.take() else { return };
        let class = usize::from(self.pages[page].class.expect("a listed page has a class"));
        self.classes[class].with_free.swap_remove(at as usize);
        if let Some(&moved) = self.classes[class].with_free.get(at as usize) {
            self.pages[moved as usize].listed = Some(at);
        }
    }

    /// Whether the counts of pages and classes agree with the chunks; returns what does not.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut bytes = vec![0; self.sizes.len()];
        for (number, page) in self.pages.iter().enumerate() {
            let (mut used, mut leased) = (0, 0);
            for slot in 0..page.touched {
                let chunk = self.chunk(self.id(number, slot));
                if chunk.state() == State::Free {
                    continue;
                }
                used += 1;
                leased += u32::from(chunk.marked(chunk::LEASED));
                if page.class != Some(chunk.class() as u8) || chunk.size() > self.sizes[chunk.class()] {
                    return Err(format!("page {number}, chunk {slot}: does not fit its class"));
                }
                if chunk.state() == State::Dead && chunk.holders() == 0 {
                    return Err(format!("page {number}, chunk {slot}: dead, and nothing holds it"));
                }
                bytes[chunk.class()] += chunk.size() as u64;
            }
            if (used, leased) != (page.used, page.leased) {
                let counted = (page.used, page.leased);
                return Err(format!(
                    "page {number}: {used} chunks in use, {leased} of them leased; {counted:?} counted"
                ));
            }
        }
        if self.resident < self.in_use() || self.resident > self.pages.len() {
            return Err(format!("{} pages with memory, {} in use", self.resident, self.in_use()));
        }
        let counted: Vec<u64> = self.classes.iter().map(|class| class.bytes).collect();
        if bytes != counted { Err(format!("{bytes:?} bytes in chunks, {counted:?} counted")) } else { Ok(()) }
    }
}
