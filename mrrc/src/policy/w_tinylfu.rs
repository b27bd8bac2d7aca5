//! W-TinyLFU (Einziger, Friedman and Manes, *TinyLFU: a highly efficient cache admission policy*, ACM
//! Transactions on Storage 2017).
//!
//! A new region enters a small LRU window. What is pushed out of the window moves to the main part if
//! there is room, else it has to be more frequent, by a sketch of past references, than the region
//! that would leave for it; the loser is the victim. The main part is a segmented LRU list: regions enter
//! on probation and are protected once they are asked for again, and what no longer fits the protected
//! segment goes back on probation.
//!
//! Sizes are in pages and parameters those of libCacheSim: 1 % window, 20 % of the rest on
//! probation, 80 % protected, all counts halved after 32 hits per page of the main part. As there,
//! the window may have whatever the main part leaves free, references are counted when a region enters,
//! when it is hit in the main part and when it is pushed out of the window, and while the
//! probation segment is full, a region that fits the protected one enters that.
//!
//! The sketch is the paper's, with minimal increment. libCacheSim's raises all counters of a range and is
//! fuller, so its estimates are noisier: renumbering the objects of a trace changes its hit ratio by up to a
//! percent. It also refuses what is larger than the window, where here everything enters; and it evicts
//! at a hit when what is no longer protected overfills the probation segment, where here the
//! segment grows, and at once when a large winner replaces a small loser, where here the main part gives
//! up more regions at the next occasion.

use super::Policy;
use super::queue::Queue;
use super::sketch::Sketch;
use crate::config::Config;
use crate::range::PageRange;
use crate::regions::{RegionId, Regions};

/// References that the sketch counts, per page of the main part, before it halves its counts.
const SAMPLE: u64 = 32;

/// Window, main part and sketch.
#[derive(Debug)]
pub struct WTinyLfu {
    window: Queue,
    probation: Queue,
    protected: Queue,
    main_pages: u64,
    probation_pages: u64,
    protected_pages: u64,
    sketch: Sketch,
    /// Hits since the counts were halved.
    hits: u64,
}

impl WTinyLfu {
    /// With the capacity of the configuration.
    pub fn new(config: &Config) -> Self {
        let main_pages = config.capacity - config.pages_of(0.01);
        Self {
            window: Queue::marking(1),
            probation: Queue::marking(2),
            protected: Queue::marking(3),
            main_pages,
            probation_pages: (main_pages as f64 * 0.2) as u64,
            protected_pages: (main_pages as f64 * 0.8) as u64,
            sketch: Sketch::new(main_pages),
            hits: 0,
        }
    }

    fn in_main(&self) -> u64 {
        self.probation.pages() + self.protected.pages()
    }

    /// Puts an unlisted region into the lowest segment that has room for it.
    fn enter_main(&mut self, regions: &mut Regions, id: RegionId) {
        let pages = regions.get(id).pages();
        let fits = |queue: &Queue, limit| queue.pages() + pages <= limit;
        if !fits(&self.probation, self.probation_pages) && fits(&self.protected, self.protected_pages) {
            self.protected.push(regions, id);
        } else {
            self.probation.push(regions, id);
        }
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

    fn count_hit(&mut self, range: PageRange) {
        self.sketch.add(range);
        self.hits += 1;
        if self.hits >= SAMPLE.saturating_mul(self.main_pages) {
            self.hits = 0;
            self.sketch.halve();
        }
    }

    /// The region of the main part that would leave next.
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
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.window.push(regions, id);
        self.sketch.add(regions.get(id).range());
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if self.window.owns(regions, id) {
            self.window.raise(regions, id);
        } else {
            self.promote(regions, id);
            self.count_hit(regions.get(id).range());
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue_of(regions, id).remove(regions, id);
    }

    /// The sketch counts up to 15.
    fn most_uses(&self) -> u32 {
        15
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        // Each step but the last moves a region from the window to the main part.
        loop {
            let candidate = if self.in_main() > self.main_pages { None } else { self.window.oldest_idle(regions) };
            let Some(candidate) = candidate else {
                let loser = self.rival(regions).or_else(|| self.window.oldest_idle(regions))?;
                self.queue_of(regions, loser).remove(regions, loser);
                return Some(loser);
            };
            self.window.remove(regions, candidate);
            let region = regions.get(candidate);
            let (range, pages) = (region.range(), region.pages());
            let fits = self.in_main() + pages <= self.main_pages;
            let rival = if fits { None } else { self.rival(regions) };
            let wins = rival
                .is_some_and(|rival| self.sketch.estimate(range) > self.sketch.estimate(regions.get(rival).range()));
            self.sketch.add(range);
            if !fits && !wins {
                return Some(candidate);
            }
            if let Some(rival) = rival {
                self.queue_of(regions, rival).remove(regions, rival);
            }
            self.enter_main(regions, candidate);
            if rival.is_some() {
                return rival;
            }
        }
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.queue_of(regions, id).put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.sketch.memory()
    }
}
