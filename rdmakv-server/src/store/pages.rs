//! Pages and the chunks in them: who has which page, and which chunks of it are free.
//!
//! A page belongs to one class or to the pool. Its free chunks are linked through their headers; chunks that were
//! never used are counted, not touched. A page that drains gives out nothing more and goes to the pool when its
//! last chunk comes back.

use super::arena::Arena;
use super::chunk::{Chunk, Id, NONE, State};

#[derive(Clone, Debug)]
struct Page {
    class: Option<u8>,
    used: u32,
    touched: u32,
    free: Id,
    draining: bool,
    /// Chunks with leases.
    leased: u32,
    /// Where the page stands in its class's list of pages with free chunks.
    listed: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    size: usize,
    pages: u32,
    draining: u32,
    used: u64,
    with_free: Vec<u32>,
    /// Whether it had a page beyond the limit once.
    had_extra: bool,
}

/// The tables.
#[derive(Debug)]
pub(super) struct Pages {
    page: usize,
    pages: Vec<Page>,
    classes: Vec<Class>,
    pool: Vec<u32>,
    /// Pages that may be in use; fewer than there are after the limit was lowered.
    limit: usize,
    /// Pages beyond the limit that may still be given to classes without any, and those that were.
    extra: usize,
    extra_given: usize,
}

impl Pages {
    pub(super) fn new(page: usize, count: usize, sizes: &[usize]) -> Self {
        let empty = Page { class: None, used: 0, touched: 0, free: NONE, draining: false, leased: 0, listed: None };
        Self {
            page,
            pages: vec![empty; count],
            classes: sizes.iter().map(|&size| Class { size, ..Class::default() }).collect(),
            pool: (0..count as u32).rev().collect(),
            limit: count,
            extra: 0,
            extra_given: 0,
        }
    }

    pub(super) fn size_of(&self, class: usize) -> usize {
        self.classes[class].size
    }
    pub(super) fn pages_of(&self, class: usize) -> u32 {
        self.classes[class].pages
    }
    /// Pages of the class that do not drain already.
    pub(super) fn steady_pages_of(&self, class: usize) -> u32 {
        self.classes[class].pages - self.classes[class].draining
    }
    /// Pages that drain and are not empty yet.
    pub(super) fn draining(&self) -> u32 {
        self.classes.iter().map(|class| class.draining).sum()
    }
    pub(super) fn used_of(&self, class: usize) -> u64 {
        self.classes[class].used
    }
    pub(super) fn chunks_a_page(&self, class: usize) -> u32 {
        (self.page / self.classes[class].size) as u32
    }
    pub(super) fn free_of(&self, class: usize) -> u64 {
        u64::from(self.pages_of(class)) * u64::from(self.chunks_a_page(class)) - self.used_of(class)
    }
    pub(super) fn page_size(&self) -> usize {
        self.page
    }
    pub(super) fn count(&self) -> usize {
        self.pages.len()
    }
    pub(super) fn pooled(&self) -> usize {
        self.pool.len()
    }
    pub(super) fn class_of(&self, page: usize) -> Option<usize> {
        self.pages[page].class.map(usize::from)
    }
    /// Chunks of this page that were ever in use.
    pub(super) fn touched(&self, page: usize) -> u32 {
        self.pages[page].touched
    }
    pub(super) fn used_in(&self, page: usize) -> u32 {
        self.pages[page].used
    }
    pub(super) fn leased_in(&self, page: usize) -> u32 {
        self.pages[page].leased
    }
    /// The chunk is leased now, or is not any more.
    pub(super) fn leased(&mut self, id: Id, is: bool) {
        let page = self.page_of(id);
        let leased = &mut self.pages[page].leased;
        *leased = if is { *leased + 1 } else { *leased - 1 };
    }
    /// The chunk that begins so many bytes into the arena, if it was ever in use.
    pub(super) fn chunk_at(&self, at: usize) -> Option<Id> {
        let (page, inside) = (self.pages.get(at / self.page)?, at % self.page);
        let size = self.classes[usize::from(page.class?)].size;
        (inside % size == 0 && inside / size < page.touched as usize).then_some((at / 8) as Id)
    }
    pub(super) fn is_draining(&self, page: usize) -> bool {
        self.pages[page].draining
    }
    pub(super) fn id(&self, page: usize, slot: u32) -> Id {
        let size = self.pages[page].class.map_or(0, |class| self.classes[usize::from(class)].size);
        ((page * self.page + slot as usize * size) / 8) as Id
    }
    fn page_of(&self, id: Id) -> usize {
        id as usize * 8 / self.page
    }

    /// How many pages may be in use from now on; at most those that exist.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn set_limit(&mut self, pages: usize) {
        self.limit = pages.min(self.pages.len());
    }
    /// How many pages may go beyond the limit, one for each class that has none.
    pub(super) fn set_extra(&mut self, pages: usize) {
        self.extra = pages;
    }
    fn in_use(&self) -> usize {
        self.pages.len() - self.pool.len()
    }
    pub(super) fn over_limit(&self) -> bool {
        self.in_use() > self.limit + self.extra_given
    }
    /// Whether a class that has pages gets no more by asking.
    pub(super) fn none_to_adopt(&self) -> bool {
        self.pool.is_empty() || self.in_use() >= self.limit + self.extra_given
    }

    /// Whether a page that the class has holds a free chunk.
    pub(super) fn has_free(&self, class: usize) -> bool {
        !self.classes[class].with_free.is_empty()
    }

    /// A free chunk of the class, from a page it has or from the pool.
    pub(super) fn take(&mut self, arena: &Arena, class: usize) -> Option<Id> {
        let page = match self.classes[class].with_free.last() {
            Some(&page) => page as usize,
            None => self.adopt(class)?,
        };
        let entry = &mut self.pages[page];
        let id = if entry.free == NONE {
            entry.touched += 1;
            let slot = entry.touched - 1;
            self.id(page, slot)
        } else {
            let id = entry.free;
            entry.free = Chunk::new(arena, id).next();
            id
        };
        self.pages[page].used += 1;
        self.classes[class].used += 1;
        if self.pages[page].used == self.chunks_a_page(class) {
            self.unlist(page);
        }
        Some(id)
    }

    fn adopt(&mut self, class: usize) -> Option<usize> {
        let beyond = self.none_to_adopt();
        if beyond && (self.classes[class].pages > 0 || self.classes[class].had_extra || self.extra == self.extra_given)
        {
            return None;
        }
        let page = self.pool.pop()? as usize;
        self.classes[class].had_extra |= beyond;
        self.extra_given += usize::from(beyond);
        self.pages[page] = Page {
            class: Some(class as u8),
            used: 0,
            touched: 0,
            free: NONE,
            draining: false,
            leased: 0,
            listed: None,
        };
        self.classes[class].pages += 1;
        self.list(page);
        Some(page)
    }

    /// The chunk is free again; says whether its page went to the pool.
    pub(super) fn give(&mut self, arena: &Arena, id: Id) -> bool {
        let page = self.page_of(id);
        let class = self.class_of(page).expect("a chunk in use is in a page of a class");
        let chunk = Chunk::new(arena, id);
        debug_assert_ne!(chunk.state(), State::Free, "freed twice");
        chunk.set_state(State::Free);
        let entry = &mut self.pages[page];
        chunk.set_next(entry.free);
        entry.free = id;
        entry.used -= 1;
        let (used, draining, listed) = (entry.used, entry.draining, entry.listed.is_some());
        self.classes[class].used -= 1;
        if used == 0 && (draining || self.classes[class].with_free.len() > 1) {
            self.release(page);
            return true;
        }
        if !draining && !listed {
            self.list(page);
        }
        false
    }

    /// Nothing more is given out from this page; says whether it was empty and is in the pool already.
    pub(super) fn drain(&mut self, page: usize) -> bool {
        self.unlist(page);
        if let Some(class) = self.class_of(page).filter(|_| !self.pages[page].draining) {
            self.classes[class].draining += 1;
        }
        self.pages[page].draining = true;
        if self.pages[page].used == 0 {
            self.release(page);
            return true;
        }
        false
    }

    fn release(&mut self, page: usize) {
        self.unlist(page);
        let entry = &mut self.pages[page];
        if let Some(class) = entry.class.take() {
            self.classes[usize::from(class)].pages -= 1;
            self.classes[usize::from(class)].draining -= u32::from(entry.draining);
        }
        entry.draining = false;
        entry.touched = 0;
        entry.free = NONE;
        self.pool.push(page as u32);
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
}
