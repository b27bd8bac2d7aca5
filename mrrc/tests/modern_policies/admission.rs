//! A model of W-TinyLFU, with exact counts in place of the sketch, which is exact for so few ranges.

use crate::model::{List, Model, pages, raise, take};
use mrrc::PageRange;
use std::collections::HashMap;

pub(crate) struct WTinyLfu {
    capacity: u64,
    window: List,
    probation: List,
    protected: List,
    counts: HashMap<PageRange, u8>,
    hits: u64,
}

impl WTinyLfu {
    pub(crate) fn new(capacity: u64) -> Self {
        let (window, probation, protected) = Default::default();
        Self { capacity, window, probation, protected, counts: HashMap::new(), hits: 0 }
    }

    fn main_limit(&self) -> u64 {
        self.capacity - self.capacity / 100
    }

    fn main_pages(&self) -> u64 {
        pages(&self.probation) + pages(&self.protected)
    }

    fn count(&mut self, range: PageRange) -> &mut u8 {
        self.counts.entry(range).or_default()
    }

    fn add(&mut self, range: PageRange) {
        let count = self.count(range);
        *count = count.saturating_add(1);
    }

    fn enter_main(&mut self, range: PageRange) {
        let room = |list: &List, limit| pages(list) + range.pages() <= limit;
        let (small, large) = (self.main_limit() / 5, self.main_limit() * 4 / 5);
        if !room(&self.probation, small) && room(&self.protected, large) {
            self.protected.push(range);
        } else {
            self.probation.push(range);
        }
    }

    fn evict_main(&mut self) {
        let list = if self.probation.is_empty() { &mut self.protected } else { &mut self.probation };
        list.remove(0);
    }

    /// Moves out of the window what fits, then lets the next one compete with a region of the main part.
    fn evict(&mut self) {
        while self.main_pages() <= self.main_limit() && !self.window.is_empty() {
            let candidate = self.window.remove(0);
            if self.main_pages() + candidate.pages() <= self.main_limit() {
                self.enter_main(candidate);
                self.add(candidate);
                continue;
            }
            let rival = self.probation.iter().chain(&self.protected).next().copied();
            let wins = rival.is_some_and(|rival| *self.count(candidate) > *self.count(rival));
            self.add(candidate);
            if wins {
                self.evict_main();
                self.enter_main(candidate);
            }
            return;
        }
        self.evict_main();
    }
}

impl Model for WTinyLfu {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        if raise(&mut self.window, range) {
            return true;
        }
        if take(&mut self.probation, range) {
            self.protected.push(range);
            while pages(&self.protected) > self.main_limit() * 4 / 5 {
                let cooled = self.protected.remove(0);
                self.probation.push(cooled);
            }
        } else if !raise(&mut self.protected, range) {
            return false;
        }
        self.add(range);
        self.hits += 1;
        if self.hits == 32 * self.main_limit() {
            self.hits = 0;
            self.counts.values_mut().for_each(|count| *count /= 2);
        }
        true
    }

    fn miss(&mut self, range: PageRange) {
        while pages(&self.window) + self.main_pages() + range.pages() > self.capacity {
            self.evict();
        }
        self.window.push(range);
        self.add(range);
    }
}
