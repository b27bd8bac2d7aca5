//! W-TinyLFU (Einziger, Friedman and Manes, *TinyLFU: a highly efficient cache admission policy*, ACM
//! Transactions on Storage 2017).
//!
//! A new region enters a small LRU window. A region that is pushed out of the window moves to the main
//! part if there is room, else it has to be more frequent, by a count of past references, than the region
//! that would leave for it. The loser is the victim. The main part is a segmented LRU list: regions enter
//! on probation and are protected once they are asked for again, and what no longer fits the protected
//! segment goes back on probation.
//!
//! Parameters are those of the paper and of its authors' cache, Caffeine: 1 % window (rounded up), at most 80 % of the rest
//! protected, every reference counted, up to 15; after ten references for each page of the capacity all counts and the number
//! of references are halved. Counts are exact: the paper's sketch and doorkeeper estimate them in less memory. The window does
//! not adapt.
//!
//! Limits are in pages; frequencies are compared as they are, whatever the sizes. A winner that is larger than the loser
//! overfills the main part, which gives up more regions at the next occasion. A region that is larger than the window goes on
//! to the main part as it enters, if there is room. libCacheSim 0.3.5 counts fewer references (none of hits in the window)
//! and halves after 32 hits for each page. On traces of LIRS's authors its ratio of misses is up to 0.064 higher.

use crate::references::References;
use mrrc_core::PageRange;
use mrrc_core::policy::{Policy, PolicyParams, parts::Queue};
use mrrc_core::{RegionId, Regions};

/// References per page of the capacity before all counts are halved.
const SAMPLE: u64 = 10;

/// Window, main part and counts.
#[derive(Debug)]
pub struct WTinyLfu {
    window: Queue,
    probation: Queue,
    protected: Queue,
    window_pages: u64,
    main_pages: u64,
    protected_pages: u64,
    counts: References,
    /// References before counts are halved.
    sample: u64,
    /// References that the counts stand for.
    references: u64,
    /// Pages of what is about to be registered.
    missed_pages: u64,
    /// How many of the next regions were counted when they were missed.
    counted: usize,
}

impl WTinyLfu {
    /// With the capacity of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        let main_pages = params.pages_of(0.99);
        Self {
            window: Queue::marking(1),
            probation: Queue::marking(2),
            protected: Queue::marking(3),
            window_pages: params.capacity - main_pages,
            main_pages,
            protected_pages: (main_pages as f64 * 0.8) as u64,
            counts: References::default(),
            sample: params.capacity.saturating_mul(SAMPLE),
            references: 0,
            missed_pages: 0,
            counted: 0,
        }
    }

    fn in_main(&self) -> u64 {
        self.probation.pages() + self.protected.pages()
    }

    fn fits_main(&self, regions: &Regions, id: RegionId) -> bool {
        self.in_main().saturating_add(regions.get(id).pages()) <= self.main_pages
    }

    /// A hit in the main part.
    fn promote(&mut self, regions: &mut Regions, id: RegionId) {
        if self.protected.owns(regions, id) {
            self.protected.raise(regions, id);
            return;
        }
        self.probation.remove(regions, id);
        self.protected.push(regions, id);
        while self.protected.pages() > self.protected_pages {
            let Some(id) = self.protected.take_oldest(regions) else { break };
            self.probation.push(regions, id);
        }
    }

    fn count(&mut self, range: PageRange) {
        self.counts.add(range);
        self.references += 1;
        if self.references >= self.sample {
            self.references /= 2;
            self.counts.halve();
        }
    }

    /// Returns the region of the main part that would leave next.
    fn rival(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.probation.oldest_idle(regions).or_else(|| self.protected.oldest_idle(regions))
    }

    fn queue_of(&mut self, regions: &Regions, id: RegionId) -> &mut Queue {
        [&mut self.window, &mut self.probation, &mut self.protected]
            .into_iter()
            .find(|queue| queue.owns(regions, id))
            .expect("every region has the mark of a queue")
    }
}

impl Policy for WTinyLfu {
    fn missed(&mut self, ranges: &mut dyn Iterator<Item = PageRange>) {
        (self.missed_pages, self.counted) = (0, 0);
        for range in ranges {
            self.count(range);
            self.missed_pages = self.missed_pages.saturating_add(range.pages());
            self.counted += 1;
        }
    }

    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let (range, pages) = (regions.get(id).range(), regions.get(id).pages());
        match self.counted.checked_sub(1) {
            Some(left) => self.counted = left,
            None => self.count(range),
        }
        self.missed_pages = self.missed_pages.saturating_sub(pages);
        self.window.push(regions, id);
        while self.window.pages() > self.window_pages {
            let Some(oldest) = self.window.oldest(regions).filter(|&oldest| self.fits_main(regions, oldest)) else {
                break;
            };
            self.window.remove(regions, oldest);
            self.probation.push(regions, oldest);
        }
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        self.count(regions.get(id).range());
        if self.window.owns(regions, id) {
            self.window.raise(regions, id);
        } else {
            self.promote(regions, id);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue_of(regions, id).remove(regions, id);
    }

    /// References are counted up to 15.
    fn max_touches(&self) -> u32 {
        15
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        // Each step but the last moves a region from the window to the main part.
        loop {
            let overflows = self.window.pages().saturating_add(self.missed_pages) > self.window_pages;
            let competes = overflows && self.in_main() <= self.main_pages;
            let candidate = if competes { self.window.oldest_idle(regions) } else { None };
            let Some(candidate) = candidate else {
                let loser = self.rival(regions).or_else(|| self.window.oldest_idle(regions))?;
                self.queue_of(regions, loser).remove(regions, loser);
                return Some(loser);
            };
            self.window.remove(regions, candidate);
            if self.fits_main(regions, candidate) {
                self.probation.push(regions, candidate);
                continue;
            }
            let frequency = self.counts.count(regions.get(candidate).range());
            let Some(rival) = self.rival(regions) else { return Some(candidate) };
            if frequency <= self.counts.count(regions.get(rival).range()) {
                return Some(candidate);
            }
            self.queue_of(regions, rival).remove(regions, rival);
            self.probation.push(regions, candidate);
            return Some(rival);
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue_of(regions, id).put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.counts.memory() + self.window.memory() + self.probation.memory() + self.protected.memory()
    }
}
