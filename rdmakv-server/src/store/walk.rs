//! Walks over all items: the crawler takes out what is over, a few chunks at a time, others show what is there.
//!
//! Items that are on flash only are shown by their stubs, which have neither the version, nor the last use, nor the exact size.

use rdmakv_flash::Position;

use super::chunk::{CHOSEN, Id, LEASED, LISTED};
use super::{HEADER, Place, Store, View};

/// An item as walks show it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Bytes of its value; of an item on flash, rounded up.
    pub value: usize,
    /// Its version; 0 for an item on flash.
    pub version: u64,
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u64,
    /// When it was last asked for, in Unix seconds; 0 for an item on flash.
    pub accessed: u32,
    /// Whether it was asked for.
    pub fetched: bool,
    /// Its size class; of an item on flash, that of its size.
    pub class: usize,
    /// Bytes with the header; of an item on flash, rounded up.
    pub size: usize,
}

impl<'a> Entry<'a> {
    fn of(view: &View<'a>) -> Self {
        let View { key, version, expiry, accessed, fetched, class, size, .. } = *view;
        Self { key, value: view.value.len(), version, expiry, accessed, fetched, class, size }
    }
}

/// How far a walk over memory and flash has come.
#[derive(Debug, Default)]
pub struct Walk {
    place: Place,
    /// In the stubs, after memory.
    away: Option<Position>,
}

impl Walk {
    /// Returns a walk over what is on flash only.
    pub fn of_flash() -> Self {
        Self { away: Some(Position::default()), ..Self::default() }
    }
}

impl Store {
    /// Looks at this many chunks and takes out what is over, though nothing asks for it; returns whether it came to the end of the
    /// arena.
    pub fn crawl(&mut self, chunks: usize, now: u64) -> bool {
        self.flush_if_due(now);
        for _ in 0..chunks {
            let Some(id) = self.slabs.crawl() else { return true };
            if self.is_alive(id) {
                let counters = &mut self.counts.classes[self.slabs.chunk(id).class()];
                counters.crawler_checked += 1;
                self.learn_hits_of(id, now);
                if self.is_over(id, now) {
                    self.counts.classes[self.slabs.chunk(id).class()].crawler_reclaimed += 1;
                    self.reclaim(id, now);
                }
            }
        }
        false
    }

    /// Looks at this many stubs of flash and takes out what is over; returns whether it came to their end.
    pub fn crawl_flash(&mut self, stubs: usize, now: u64) -> bool {
        self.flush_if_due(now);
        let Some(tier) = self.tier.as_deref_mut() else { return true };
        tier.flash.crawl(stubs, now as u32, |crawled| {
            let counters = &mut self.counts.classes[self.slabs.class_of_size(crawled.len as usize)];
            counters.crawler_checked += 1;
            counters.crawler_reclaimed += u64::from(crawled.over);
            counters.expired_unfetched += u64::from(crawled.over && !crawled.fetched);
        })
    }

    /// Shows every living item in memory, of one class or of all, until `see` says enough.
    pub fn walk(&mut self, class: Option<usize>, now: u64, mut see: impl FnMut(Entry<'_>) -> bool) {
        self.flush_if_due(now);
        let mut place = Place::default();
        while let Some(id) = self.slabs.next_chunk(&mut place, class) {
            if self.is_shown(id, now) && !see(Entry::of(&self.view(id))) {
                return;
            }
        }
    }

    /// Shows every living item of the next so many chunks or stubs; returns whether that was the end. A chunk that comes or moves
    /// meanwhile may be missed or seen twice.
    pub fn walk_on(&mut self, walk: &mut Walk, most: usize, now: u64, mut see: impl FnMut(Entry<'_>)) -> bool {
        self.flush_if_due(now);
        let Some(from) = &mut walk.away else {
            for _ in 0..most {
                let Some(id) = self.slabs.next_chunk(&mut walk.place, None) else {
                    walk.away = Some(Position::default());
                    return self.tier.is_none();
                };
                if self.is_shown(id, now) {
                    see(Entry::of(&self.view(id)));
                }
            }
            return false;
        };
        let Some(flash) = self.flash_tier() else { return true };
        flash.walk(from, most, now as u32, |listed| {
            let size = listed.len as usize;
            see(Entry {
                key: listed.key,
                value: size.saturating_sub(HEADER + listed.key.len()),
                version: 0,
                expiry: u64::from(listed.expiry),
                accessed: 0,
                fetched: listed.fetched,
                class: self.slabs.class_of_size(size),
                size,
            });
        })
    }

    /// Returns how many items are on flash only, by their rounded sizes and classes.
    pub fn sizes_on_flash(&self) -> Vec<(usize, usize, u64)> {
        let lengths = self.flash_tier().into_iter().flat_map(|flash| flash.lengths());
        let all = lengths.map(|(len, items)| (len as usize, self.slabs.class_of_size(len as usize), items));
        all.filter(|&(_, _, items)| items > 0).collect()
    }

    /// Returns whether a chunk's item lives. One that is over and is not shown for that must not be found by a
    /// one-sided reader after this.
    fn is_shown(&mut self, id: Id, now: u64) -> bool {
        if !self.is_alive(id) {
            return false;
        }
        let over = self.is_over(id, now);
        if over && self.slabs.chunk(id).marked(LEASED | LISTED) {
            self.reclaim(id, now);
        }
        !over
    }

    /// Removes all items of versions that clients chose: such a version does not tell that they are from before a
    /// flush.
    pub(super) fn end_chosen(&mut self, now: u64) {
        let mut place = Place::default();
        while let Some(id) = self.slabs.next_chunk(&mut place, None) {
            if self.is_alive(id) && self.slabs.chunk(id).marked(CHOSEN) {
                self.reclaim(id, now);
            }
        }
    }
}
