//! ARC, the adaptive replacement cache (Megiddo and Modha, *ARC: a self-tuning, low overhead replacement
//! cache*, FAST 2003).
//!
//! Two LRU lists, T1 for what was asked for once and T2 for what was asked for again, each followed by
//! ghosts (B1, B2) of what it lost. A target `p` says how many pages T1 should have: a region that
//! returns from B1 shows that T1 is too small and raises it, one from B2 lowers it, by the ratio of the
//! two memories and by one at least. T1 and B1 together stand for one capacity of pages, all four lists for
//! two. With sizes these are not exact, as in libCacheSim: a victim makes one old ghost drop, whatever their
//! sizes, and a return counts once, whatever its size. Against drift, B1 and B2 are cut at two capacities
//! each, which libCacheSim does not do. The policy learns which range was missed only after the victims have
//! left. So what depends on it is done then, in the order in which they left; but a return moves `p` in
//! time for the next victim and not for its own.

use super::Policy;
use super::ghosts::Ghosts;
use super::queue::Queue;
use crate::config::Config;
use crate::range::PageRange;
use crate::regions::{RegionId, Regions};

/// T1 with B1, T2 with B2, and `p`.
#[derive(Debug)]
pub struct Arc {
    once: Queue,
    once_ghosts: Ghosts,
    often: Queue,
    often_ghosts: Ghosts,
    target: f64,
    capacity: u64,
    /// The victims that have no ghost yet.
    victims: Vec<Victim>,
}

/// A victim, and what was cached when it was chosen.
#[derive(Debug)]
struct Victim {
    range: PageRange,
    was_once: bool,
    once_pages: u64,
    often_pages: u64,
}

impl Arc {
    /// With the capacity of the configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            once: Queue::marking(1),
            once_ghosts: Ghosts::new(config.capacity.saturating_mul(2)),
            often: Queue::marking(2),
            often_ghosts: Ghosts::new(config.capacity.saturating_mul(2)),
            target: 0.0,
            capacity: config.capacity,
            victims: Vec::new(),
        }
    }

    /// Whether a range returns; moves the target if so.
    fn returns(&mut self, range: PageRange) -> bool {
        let (once, often) = (self.once_ghosts.pages() as f64, self.often_ghosts.pages() as f64);
        if self.once_ghosts.remove(range).is_some() {
            self.target = (self.target + (often / once).max(1.0)).min(self.capacity as f64);
        } else if self.often_ghosts.remove(range).is_some() {
            self.target = (self.target - (once / often).max(1.0)).max(0.0);
        } else {
            return false;
        }
        true
    }

    /// Makes ghosts of the victims. Unless they left for a range that returns, each displaces an older
    /// ghost (case IV of the paper), as if it had been chosen for a newcomer of that many pages.
    fn make_ghosts(&mut self, newcomer: Option<u64>) {
        let mut victims = std::mem::take(&mut self.victims);
        for victim in victims.drain(..) {
            if let Some(pages) = newcomer {
                let once = victim.once_pages + self.once_ghosts.pages();
                if once + pages > self.capacity {
                    if !self.once_ghosts.drop_oldest() && victim.was_once {
                        continue; // T1 has the whole capacity: B1 is to be empty
                    }
                } else if once + victim.often_pages + self.often_ghosts.pages() >= self.capacity.saturating_mul(2) {
                    self.often_ghosts.drop_oldest();
                }
            }
            let ghosts = if victim.was_once { &mut self.once_ghosts } else { &mut self.often_ghosts };
            ghosts.insert(victim.range, ());
        }
        self.victims = victims;
        self.once_ghosts.trim();
        self.often_ghosts.trim();
    }
}

impl Policy for Arc {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let range = regions.get(id).range();
        let returns = self.returns(range);
        self.make_ghosts((!returns).then_some(range.pages()));
        if returns {
            self.often.push(regions, id);
        } else {
            self.once.push(regions, id);
        }
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        if self.often.owns(regions, id) {
            self.often.raise(regions, id);
        } else {
            self.once.remove(regions, id);
            self.often.push(regions, id);
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        if self.often.owns(regions, id) {
            self.often.remove(regions, id);
        } else {
            self.once.remove(regions, id);
        }
    }

    fn prepare(&mut self, _: &mut Regions) {
        self.make_ghosts(Some(0));
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let (once_pages, often_pages) = (self.once.pages(), self.often.pages());
        let id = if once_pages as f64 > self.target {
            self.once.take_idle(regions).or_else(|| self.often.take_idle(regions))
        } else {
            self.often.take_idle(regions).or_else(|| self.once.take_idle(regions))
        }?;
        let was_once = self.once.owns(regions, id);
        self.victims.push(Victim { range: regions.get(id).range(), was_once, once_pages, often_pages });
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let range = regions.get(id).range();
        self.victims.retain(|victim| victim.range != range);
        if self.once.owns(regions, id) {
            self.once_ghosts.remove(range);
            self.once.put_back(regions, id);
        } else {
            self.often_ghosts.remove(range);
            self.often.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        let victims = self.victims.capacity() * size_of::<Victim>();
        self.once_ghosts.memory() + self.often_ghosts.memory() + victims
    }
}
