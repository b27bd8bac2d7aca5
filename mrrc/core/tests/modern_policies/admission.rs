//! A model of W-TinyLFU.

use crate::model::{List, Model, pages, raise, take};
use mrrc_core::PageRange;
use std::collections::HashMap;

pub(crate) struct WTinyLfu {
    capacity: u64,
    window: List,
    probation: List,
    protected: List,
    counts: HashMap<PageRange, u8>,
    references: u64,
}

impl WTinyLfu {
    pub(crate) fn new(capacity: u64) -> Self {
        let (window, probation, protected) = Default::default();
        Self { capacity, window, probation, protected, counts: HashMap::new(), references: 0 }
    }

    fn main_limit(&self) -> u64 {
        self.capacity * 99 / 100
    }

    fn window_limit(&self) -> u64 {
        self.capacity - self.main_limit()
    }

    fn main_pages(&self) -> u64 {
        pages(&self.probation) + pages(&self.protected)
    }

    fn count(&self, range: PageRange) -> u8 {
        self.counts.get(&range).copied().unwrap_or(0)
    }

    fn add(&mut self, range: PageRange) {
        let count = self.counts.entry(range).or_default();
        *count = (*count + 1).min(15);
        self.references += 1;
        if self.references == 10 * self.capacity {
            self.references /= 2;
            self.counts.values_mut().for_each(|count| *count /= 2);
        }
    }

    fn rival(&self) -> Option<PageRange> {
        self.probation.iter().chain(&self.protected).next().copied()
    }

    /// Moves out of the window what fits, then lets the next one compete with a region of the main part.
    fn evict(&mut self, newcomer: u64) {
        loop {
            let overflows = pages(&self.window) + newcomer > self.window_limit();
            if !overflows || self.main_pages() > self.main_limit() || self.window.is_empty() {
                let rival = self.rival().unwrap_or_else(|| self.window[0]);
                let lists = [&mut self.probation, &mut self.protected, &mut self.window];
                lists.into_iter().for_each(|list| _ = take(list, rival));
                return;
            }
            let candidate = self.window.remove(0);
            if self.main_pages() + candidate.pages() <= self.main_limit() {
                self.probation.push(candidate);
                continue;
            }
            if let Some(rival) = self.rival().filter(|&rival| self.count(candidate) > self.count(rival)) {
                let _ = take(&mut self.probation, rival) || take(&mut self.protected, rival);
                self.probation.push(candidate);
            }
            return;
        }
    }
}

impl Model for WTinyLfu {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn hit(&mut self, range: PageRange) -> bool {
        let lists = [&self.window, &self.probation, &self.protected];
        if !lists.iter().any(|list| list.contains(&range)) {
            return false;
        }
        self.add(range);
        if take(&mut self.probation, range) {
            self.protected.push(range);
            while pages(&self.protected) > self.main_limit() * 4 / 5 {
                let cooled = self.protected.remove(0);
                self.probation.push(cooled);
            }
        } else if !raise(&mut self.window, range) {
            raise(&mut self.protected, range);
        }
        true
    }

    fn miss(&mut self, range: PageRange) {
        self.add(range);
        while pages(&self.window) + self.main_pages() + range.pages() > self.capacity {
            self.evict(range.pages());
        }
        self.window.push(range);
        while pages(&self.window) > self.window_limit()
            && self.main_pages() + self.window[0].pages() <= self.main_limit()
        {
            let oldest = self.window.remove(0);
            self.probation.push(oldest);
        }
    }
}
