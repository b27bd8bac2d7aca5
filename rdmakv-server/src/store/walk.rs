//! Walks over all items: the crawler takes out what is over, a few chunks at a time, others show what is there.

use super::chunk::{CHOSEN, Id, LEASED, LISTED};
use super::{Place, Store, View};

/// A name for what [`Store::walk`] shows.
pub type Entry<'a> = View<'a>;

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

    /// Shows every living item, of one class or of all, until `see` says enough.
    pub fn walk(&mut self, class: Option<usize>, now: u64, mut see: impl FnMut(Entry<'_>) -> bool) {
        self.flush_if_due(now);
        let mut place = Place::default();
        while let Some(id) = self.slabs.next_chunk(&mut place, class) {
            if self.is_shown(id, now) && !see(self.view(id)) {
                return;
            }
        }
    }

    /// Shows every living item of the next so many chunks; returns whether that was the end. A chunk that comes or moves
    /// meanwhile may be missed or seen twice.
    pub fn walk_on(&mut self, place: &mut Place, chunks: usize, now: u64, mut see: impl FnMut(Entry<'_>)) -> bool {
        self.flush_if_due(now);
        for _ in 0..chunks {
            let Some(id) = self.slabs.next_chunk(place, None) else { return true };
            if self.is_shown(id, now) {
                see(self.view(id));
            }
        }
        false
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
