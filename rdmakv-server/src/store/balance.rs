//! Where a page does most good: classes are compared by what they answered, and pages move to where one more would
//! answer most.
//!
//! A class's *gain* is how many items came back so soon after they were driven out that one more page would have kept
//! them: the [ghosts](super::ghosts) tell. What a class would lose with a page is its gain too if it drives items out
//! (the page it has last is worth little more than the one it has not), else its share of the hits. Time is counted in
//! evictions, not in seconds: a cache under load adapts as fast as it is loaded. What is counted fades.

use super::Store;
use super::queues::{MAIN, SMALL};

/// Evictions between two looks at the classes at least; more where there are more pages.
const PERIOD: u64 = 64;
/// What remains of the counts at each look.
const FADING: f32 = 0.97;
/// How much more a page has to do elsewhere, and how many hits in the time counted, before it moves.
const MARGIN: (f32, f32) = (2.0, 1.0);
/// Hits that make no difference.
const ABOUT: f32 = 4.0;

/// What is known of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Worth {
    /// Items that one more page would have kept.
    gain: f32,
    /// Hits.
    hits: f32,
    /// Items driven out.
    evicted: f32,
    /// The class's counter of hits at the last look.
    hits_before: u64,
    /// Items driven out since the last tick.
    of_late: u64,
}

/// What is known of all.
#[derive(Debug)]
pub(super) struct Balance {
    classes: Vec<Worth>,
    evictions: u64,
    /// May pages move by themselves.
    automatic: bool,
}

impl Balance {
    pub(super) fn new(classes: usize) -> Self {
        Self { classes: vec![Worth::default(); classes], evictions: 0, automatic: true }
    }

    pub(super) fn evicted(&mut self, class: usize) {
        self.classes[class].evicted += 1.0;
        self.classes[class].of_late += 1;
        self.evictions += 1;
    }

    pub(super) fn came_back(&mut self, class: usize, part: f32) {
        self.classes[class].gain += part;
    }
}

impl Store {
    /// Whether pages move by themselves.
    pub fn set_automove(&mut self, automatic: bool) {
        self.balance.automatic = automatic;
    }

    /// What the class would lose with a page.
    fn loss(&self, class: usize) -> f32 {
        let Worth { gain, hits, evicted, .. } = self.balance.classes[class];
        let pages = self.pages.steady_pages_of(class);
        if self.pages.free_of(class) > u64::from(self.pages.chunks_a_page(class)) {
            0.0
        } else if pages > 1 && evicted >= 1.0 {
            gain
        } else {
            hits / pages.max(1) as f32
        }
    }

    /// For how long the class's oldest item was not asked for.
    fn idle(&self, class: usize, now: u64) -> u64 {
        [MAIN, SMALL]
            .into_iter()
            .filter_map(|queue| self.queues[class].oldest(queue))
            .map(|id| u64::from((now as u32).saturating_sub(self.chunk(id).accessed())))
            .max()
            .unwrap_or(0)
    }

    /// Which class gives up a page: the one that loses least; where that is about the same, one that keeps others, then
    /// the one that is longest idle, then the one with most pages.
    pub(super) fn donor(&self, but: usize, now: u64) -> Option<usize> {
        let donors = (0..self.sizes.len()).filter(|&class| class != but && self.pages.steady_pages_of(class) > 0);
        let rank = |class: usize| {
            let pages = self.pages.steady_pages_of(class);
            // Ghosts err now and then: a few hits are as good as none.
            ((self.loss(class) / ABOUT) as u64, pages == 1, std::cmp::Reverse((self.idle(class, now), pages)))
        };
        donors.min_by_key(|&class| rank(class))
    }

    /// After an eviction: looks at the classes if it is time, and moves a page if that is worth it.
    pub(super) fn weigh(&mut self, now: u64) {
        if self.balance.evictions < PERIOD.max(self.pages.limit() as u64) {
            return;
        }
        self.balance.evictions = 0;
        for (worth, counters) in self.balance.classes.iter_mut().zip(&self.classes) {
            // The counter may have been reset meanwhile.
            worth.hits += counters.get_hits.saturating_sub(worth.hits_before) as f32;
            worth.hits_before = counters.get_hits;
        }
        if self.balance.automatic && self.pages.none_to_adopt() {
            let needy = (0..self.sizes.len())
                .max_by(|&a, &b| self.balance.classes[a].gain.total_cmp(&self.balance.classes[b].gain));
            if let Some(needy) = needy
                && let Some(donor) = self.donor(needy, now)
                && self.balance.classes[needy].gain > self.loss(donor) * MARGIN.0 + MARGIN.1
                && let Some(page) = self.cheapest_page(donor)
            {
                self.drain(page, now);
                // It has what it asked for; whether it needs more has to show again.
                self.balance.classes[needy].gain *= 0.5;
            }
        }
        for worth in &mut self.balance.classes {
            worth.gain *= FADING;
            worth.hits *= FADING;
            worth.evicted *= FADING;
        }
    }

    /// Once a second: a page from where items lie idle longest to where items were driven out youngest, if that
    /// differs much and nothing is known that speaks against it.
    pub(super) fn rebalance(&mut self, now: u64) {
        let evicted: Vec<u64> =
            self.balance.classes.iter_mut().map(|worth| std::mem::take(&mut worth.of_late)).collect();
        if !self.balance.automatic || !self.pages.none_to_adopt() {
            return;
        }
        let needy = (0..evicted.len())
            .filter(|&class| evicted[class] > 0)
            .min_by_key(|&class| self.classes[class].evicted_time);
        let Some(needy) = needy else { return };
        let Some(donor) = self.donor(needy, now).filter(|&donor| self.pages.pages_of(donor) > 1) else { return };
        if self.loss(donor) > self.balance.classes[needy].gain {
            return;
        }
        let roomy = self.pages.free_of(donor) > 2 * u64::from(self.pages.chunks_a_page(donor));
        let differs = roomy || self.idle(donor, now) * 4 > self.classes[needy].evicted_time * 5 + 4;
        if let Some(page) = self.cheapest_page(donor).filter(|_| differs) {
            self.drain(page, now);
        }
    }
}
