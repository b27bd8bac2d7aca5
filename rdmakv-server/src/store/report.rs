//! The store as `stats` shows it.

use super::chunk::{Id, LEASED, LISTED, State};
use super::queues::{MAIN, SMALL};
use super::{ClassCounters, Counters, Store, View};

/// The whole.
#[derive(Clone, Debug)]
pub struct Report {
    /// What happened.
    pub counters: Counters,
    /// Items.
    pub items: u64,
    /// Bytes that items use, headers included.
    pub bytes: u64,
    /// Bytes of the hash table and of the ghosts.
    pub hash_bytes: u64,
    /// Two to this power of buckets.
    pub hash_power: u32,
    /// Whether the table is between two powers.
    pub growing: bool,
    /// Pages in nobody's hands.
    pub pool: u64,
    /// Bytes of pages in use.
    pub malloced: u64,
    /// Chunks that one-sided readers may read.
    pub leased: u64,
    /// Of these, those whose item is gone: they are free when their leases have ended.
    pub leased_dead: u64,
    /// Bytes that these use; `bytes` has them too.
    pub leased_dead_bytes: u64,
    /// Classes in use.
    pub classes: Vec<ClassReport>,
}

/// A class.
#[derive(Clone, Debug)]
pub struct ClassReport {
    /// Its number.
    pub class: usize,
    /// Bytes of a chunk.
    pub size: usize,
    /// Chunks in a page.
    pub a_page: u32,
    /// Pages.
    pub pages: u32,
    /// Chunks in use.
    pub used: u64,
    /// Items in the small queue.
    pub small: u64,
    /// Items in the main queue.
    pub main: u64,
    /// Seconds since the oldest item was asked for.
    pub age: u64,
    /// The same of the small and of the main queue.
    pub ages: [u64; 2],
    /// What happened.
    pub counters: ClassCounters,
}

/// Where a walk in pieces stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    page: usize,
    slot: u32,
}

/// A name for what [`Store::walk`] shows.
pub type Entry<'a> = View<'a>;

impl Store {
    /// The numbers at present.
    pub fn report(&self, now: u64) -> Report {
        let classes: Vec<ClassReport> = (0..self.sizes.len())
            .filter(|&class| self.pages.pages_of(class) > 0)
            .map(|class| ClassReport {
                class,
                size: self.pages.size_of(class),
                a_page: self.pages.chunks_a_page(class),
                pages: self.pages.pages_of(class),
                used: self.pages.used_of(class),
                small: self.queues[class].len(SMALL),
                main: self.queues[class].len(MAIN),
                age: self.age(class, SMALL, now).max(self.age(class, MAIN, now)),
                ages: [SMALL, MAIN].map(|queue| self.age(class, queue, now)),
                counters: self.classes[class],
            })
            .collect();
        Report {
            counters: self.counters,
            items: self.index.len() as u64,
            bytes: self.classes.iter().map(|class| class.requested).sum(),
            hash_bytes: (self.index.bytes() + self.ghosts.bytes()) as u64,
            hash_power: self.index.power(),
            growing: self.index.is_growing(),
            pool: self.pages.pooled() as u64,
            malloced: ((self.pages.count() - self.pages.pooled()) * self.pages.page_size()) as u64,
            leased: self.leases.len() as u64,
            leased_dead: self.leases.dead(),
            leased_dead_bytes: self.leases.dead_bytes(),
            classes,
        }
    }

    /// Seconds since the queue's oldest item was asked for; 0 if it is empty.
    fn age(&self, class: usize, queue: u32, now: u64) -> u64 {
        let oldest = self.queues[class].oldest(queue);
        oldest.map_or(0, |id| u64::from((now as u32).saturating_sub(self.chunk(id).accessed())))
    }

    /// What the classes without pages counted too, summed.
    pub fn class_totals(&self) -> ClassCounters {
        let mut totals = ClassCounters::default();
        for class in &self.classes {
            totals.add(class);
        }
        totals
    }

    /// Shows every living item, of one class or of all, until `see` says enough.
    pub fn walk(&mut self, class: Option<usize>, now: u64, mut see: impl FnMut(Entry<'_>) -> bool) {
        for page in 0..self.pages.count() {
            if self.pages.class_of(page).is_none_or(|of| class.is_some_and(|class| class != of)) {
                continue;
            }
            for slot in 0..self.pages.touched(page) {
                let id = self.pages.id(page, slot);
                if self.is_shown(id, now) && !see(self.view(id)) {
                    return;
                }
            }
        }
    }

    /// Shows every living item of the next so many chunks; says whether that was the end. What comes or moves meanwhile
    /// may be missed or seen twice.
    pub fn walk_on(&mut self, place: &mut Place, chunks: usize, now: u64, mut see: impl FnMut(Entry<'_>)) -> bool {
        for _ in 0..chunks {
            while place.page < self.pages.count()
                && (self.pages.class_of(place.page).is_none() || place.slot >= self.pages.touched(place.page))
            {
                *place = Place { page: place.page + 1, slot: 0 };
            }
            if place.page >= self.pages.count() {
                return true;
            }
            let id = self.pages.id(place.page, place.slot);
            place.slot += 1;
            if self.is_shown(id, now) {
                see(self.view(id));
            }
        }
        false
    }

    /// Whether a chunk's item lives. One that is over and is not shown for that must not be found by a one-sided reader
    /// after this.
    fn is_shown(&mut self, id: Id, now: u64) -> bool {
        if !self.is_alive(id) {
            return false;
        }
        let over = self.is_over(id, now);
        if over && self.chunk(id).marked(LEASED | LISTED) {
            self.reclaim(id, now);
        }
        !over
    }

    /// The classes' sizes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Whether header and sum of every published chunk are right, and index, queues, pages and the GET table agree; says what is not.
    pub fn check(&self) -> Result<(), String> {
        self.check_listing()?;
        let (mut alive, mut requested, mut leased, mut leased_dead) = (0, 0, 0, 0);
        for page in 0..self.pages.count() {
            let Some(class) = self.pages.class_of(page) else { continue };
            let (mut used, mut leased_here) = (0, 0);
            for slot in 0..self.pages.touched(page) {
                let id = self.pages.id(page, slot);
                let chunk = self.chunk(id);
                if chunk.state() == State::Free {
                    continue;
                }
                used += 1;
                requested += chunk.size() as u64;
                if chunk.class() != class || chunk.size() > self.sizes[class] {
                    return Err(format!("page {page}, chunk {slot}: does not fit its class"));
                }
                if chunk.marked(LEASED) {
                    leased_here += 1;
                    leased_dead += u64::from(!self.is_alive(id));
                    if self.leases.until(id).is_none() || chunk.holders() == 0 {
                        return Err(format!("page {page}, chunk {slot}: marked as leased, without a lease"));
                    }
                }
                if chunk.state() == State::Dead && chunk.holders() == 0 {
                    return Err(format!("page {page}, chunk {slot}: dead, and nobody's"));
                }
                if self.is_alive(id) {
                    alive += 1;
                    if chunk.crc() != chunk.sum() {
                        return Err(format!("page {page}, chunk {slot}: the sum is wrong"));
                    }
                    if self.find(self.hash(chunk.key()), chunk.key()) != Some(id) {
                        return Err(format!("page {page}, chunk {slot}: alive, but not in the index"));
                    }
                }
            }
            if leased_here != self.pages.leased_in(page) {
                return Err(format!("page {page}: {leased_here} leased, {} counted", self.pages.leased_in(page)));
            }
            leased += leased_here as usize;
            if used != self.pages.used_in(page) {
                return Err(format!("page {page}: {used} chunks in use, {} counted", self.pages.used_in(page)));
            }
        }
        if leased != self.leases.len() || leased_dead != self.leases.dead() {
            let (all, dead) = (self.leases.len(), self.leases.dead());
            return Err(format!("{leased} leased, {leased_dead} dead; {all} and {dead} counted"));
        }
        let queued: u64 = self.queues.iter().map(|queues| queues.len(SMALL) + queues.len(MAIN)).sum();
        if alive != self.index.len() as u64 || alive != queued {
            return Err(format!("{alive} alive, {} in the index, {queued} in queues", self.index.len()));
        }
        let counted: u64 = self.classes.iter().map(|class| class.requested).sum();
        if requested != counted {
            return Err(format!("{requested} bytes in chunks, {counted} counted"));
        }
        Ok(())
    }
}
