//! The balance of pages: classes are compared by their hits, and pages move to where one more would hit most.
//!
//! A class's *gain* is how many items came back so soon after they were driven out that one more page would have kept
//! them: the [ghosts](super::ghosts) tell. A class's loss by a page is its gain too if the page drives items out (the
//! page it has last is worth little more than the one it has not), else its share of the hits. Time is counted in
//! evictions, not in seconds: a cache under load adapts as fast as it is loaded. Counts fade.

use super::super::counters::Counts;
use super::super::slabs::Slabs;

/// Evictions between two looks at the classes at least; more where there are more pages.
const PERIOD: u64 = 64;
/// The share of the counts that remains at each look.
const FADING: f32 = 0.97;
/// How much more a page has to do elsewhere, and how many hits in the time counted, before it moves.
const MARGIN: (f32, f32) = (2.0, 1.0);
/// Hits that make no difference.
const ABOUT: f32 = 4.0;

/// The knowledge of a class.
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

/// The knowledge of all classes.
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

    /// Counts an item of the class that was driven out.
    pub(super) fn evicted(&mut self, class: usize) {
        self.classes[class].evicted += 1.0;
        self.classes[class].of_late += 1;
        self.evictions += 1;
    }

    /// Counts an item that came back: how likely one more page would have kept it.
    pub(super) fn came_back(&mut self, class: usize, part: f32) {
        self.classes[class].gain += part;
    }

    /// Sets whether pages move by themselves.
    pub(super) fn set_automove(&mut self, automatic: bool) {
        self.automatic = automatic;
    }

    /// Returns what the class would lose with a page.
    fn loss(&self, slabs: &Slabs, class: usize) -> f32 {
        let Worth { gain, hits, evicted, .. } = self.classes[class];
        let pages = slabs.steady_pages_of(class);
        if slabs.free_of(class) > u64::from(slabs.chunks_a_page(class)) {
            0.0
        } else if pages > 1 && evicted >= 1.0 {
            gain
        } else {
            hits / pages.max(1) as f32
        }
    }

    /// Returns which class gives up a page: the one that loses least; where that is about the same, one that keeps others,
    /// then the one that is longest idle, then the one with most pages. `idle` returns for how many seconds the oldest item of a
    /// class was not asked for.
    pub(super) fn donor(&self, slabs: &Slabs, but: usize, idle: &impl Fn(usize) -> u64) -> Option<usize> {
        let classes = 0..self.classes.len();
        let donors = classes.filter(|&class| class != but && slabs.steady_pages_of(class) > 0);
        let rank = |class: usize| {
            let pages = slabs.steady_pages_of(class);
            // Ghosts err now and then: a few hits are as good as none.
            let loss = (self.loss(slabs, class) / ABOUT) as u64;
            (loss, pages == 1, std::cmp::Reverse((idle(class), pages)))
        };
        donors.min_by_key(|&class| rank(class))
    }

    /// After evictions: whether it is time to look at the classes ([`weigh`](Self::weigh), [`fade`](Self::fade)).
    pub(super) fn is_time_to_weigh(&self, slabs: &Slabs) -> bool {
        self.evictions >= PERIOD.max(slabs.limit() as u64)
    }

    /// Looks at the classes, and returns the page to move if that is worth it.
    pub(super) fn weigh(&mut self, slabs: &Slabs, counts: &Counts, idle: &impl Fn(usize) -> u64) -> Option<usize> {
        self.evictions = 0;
        for (worth, counters) in self.classes.iter_mut().zip(&counts.classes) {
            // The counter may have been reset meanwhile.
            worth.hits += counters.get_hits.saturating_sub(worth.hits_before) as f32;
            worth.hits_before = counters.get_hits;
        }
        if !self.automatic || !slabs.none_to_adopt() {
            return None;
        }
        let classes = &self.classes;
        let needy = (0..classes.len()).max_by(|&a, &b| classes[a].gain.total_cmp(&classes[b].gain))?;
        let donor = self.donor(slabs, needy, idle)?;
        if classes[needy].gain <= self.loss(slabs, donor) * MARGIN.0 + MARGIN.1 {
            return None;
        }
        let page = slabs.cheapest_page(donor)?;
        // It has what it asked for; whether it needs more has to show again.
        self.classes[needy].gain *= 0.5;
        Some(page)
    }

    /// Lets what was counted fade.
    pub(super) fn fade(&mut self) {
        for worth in &mut self.classes {
            worth.gain *= FADING;
            worth.hits *= FADING;
            worth.evicted *= FADING;
        }
    }

    /// Once a second: returns a page to move from where items lie idle longest to where items were driven out youngest, if
    /// that differs much and nothing is known that speaks against it.
    pub(super) fn rebalance(&mut self, slabs: &Slabs, counts: &Counts, idle: &impl Fn(usize) -> u64) -> Option<usize> {
        let evicted: Vec<u64> = self.classes.iter_mut().map(|worth| std::mem::take(&mut worth.of_late)).collect();
        if !self.automatic || !slabs.none_to_adopt() {
            return None;
        }
        let evicts = (0..evicted.len()).filter(|&class| evicted[class] > 0);
        let needy = evicts.min_by_key(|&class| counts.classes[class].evicted_time)?;
        let donor = self.donor(slabs, needy, idle).filter(|&donor| slabs.pages_of(donor) > 1)?;
        if self.loss(slabs, donor) > self.classes[needy].gain {
            return None;
        }
        let roomy = slabs.free_of(donor) > 2 * u64::from(slabs.chunks_a_page(donor));
        let differs = roomy || idle(donor) * 4 > counts.classes[needy].evicted_time * 5 + 4;
        slabs.cheapest_page(donor).filter(|_| differs)
    }
}
