//! ARC, the adaptive replacement cache (Megiddo and Modha, *ARC: a self-tuning, low overhead replacement
//! cache*, FAST 2003).
//!
//! Two LRU lists, T1 for what was asked for once and T2 for what was asked for again, each followed by
//! ghosts (B1, B2) of what it lost. A target `p` says how many pages T1 should have: a region that
//! returns from B1 shows that T1 is too small and raises it, one from B2 lowers it, by the ratio of the
//! two memories and by one at least. T1 and B1 together have at most the capacity in pages, all four lists
//! twice that.
//!
//! For regions of one page every decision is that of the paper's figure 4. For larger ones, each of its rules holds in
//! pages: a newcomer makes old ghosts drop until the lists with it are within their limits, REPLACE is repeated until
//! there is room, and a return moves `p` by the ratio once, whatever its size. A request for several ranges at once
//! moves `p` for each of them before the first victim leaves.

use mrrc_core::PageRange;
use mrrc_core::policy::{
    Policy, PolicyParams,
    parts::{Ghosts, Queue},
};
use mrrc_core::{RegionId, Regions};
use smallvec::SmallVec;

/// T1 with B1, T2 with B2, and `p`.
#[derive(Debug)]
pub struct Arc {
    once: Queue,
    once_ghosts: Ghosts,
    often: Queue,
    often_ghosts: Ghosts,
    target: f64,
    capacity: u64,
    /// The ranges about to be registered.
    missed: SmallVec<[Missed; 1]>,
}

/// A range that is about to be registered.
#[derive(Debug, Clone, Copy)]
struct Missed {
    range: PageRange,
    origin: Origin,
}

/// The place of a range at its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    New,
    OnceGhosts,
    OftenGhosts,
}

impl Arc {
    /// With the capacity of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        Self {
            once: Queue::marking(1),
            once_ghosts: Ghosts::new(params.capacity),
            often: Queue::marking(2),
            often_ghosts: Ghosts::new(params.capacity.saturating_mul(2)),
            target: 0.0,
            capacity: params.capacity,
            missed: SmallVec::new(),
        }
    }

    /// Takes a range out of the ghosts and moves the target, if it was there.
    fn origin(&mut self, range: PageRange) -> Origin {
        let (once, often) = (self.once_ghosts.pages() as f64, self.often_ghosts.pages() as f64);
        if self.once_ghosts.remove(range).is_some() {
            self.target = (self.target + (often / once).max(1.0)).min(self.capacity as f64);
            Origin::OnceGhosts
        } else if self.often_ghosts.remove(range).is_some() {
            self.target = (self.target - (once / often).max(1.0)).max(0.0);
            Origin::OftenGhosts
        } else {
            Origin::New
        }
    }

    /// Drops the oldest ghosts until newcomers of so many pages fit (case IV). False if they do not fit beside T1.
    fn make_ghost_room(&mut self, pages: u64) -> bool {
        let fits = |sum: u64, limit: u64| sum.saturating_add(pages) <= limit;
        while !fits(self.once.pages() + self.once_ghosts.pages(), self.capacity) {
            if !self.once_ghosts.drop_oldest() {
                return false;
            }
        }
        let lists =
            |arc: &Self| arc.once.pages() + arc.once_ghosts.pages() + arc.often.pages() + arc.often_ghosts.pages();
        while !fits(lists(self), self.capacity.saturating_mul(2)) {
            if !self.often_ghosts.drop_oldest() {
                break;
            }
        }
        true
    }

    /// Leaves a ghost of a victim of T1 or of T2.
    fn make_ghost(&mut self, range: PageRange, was_once: bool) {
        let ghosts = if was_once { &mut self.once_ghosts } else { &mut self.often_ghosts };
        ghosts.insert(range, ());
        ghosts.trim();
    }
}

impl Policy for Arc {
    fn missed(&mut self, ranges: &mut dyn Iterator<Item = PageRange>) {
        // A request that was refused and comes again has moved the target.
        let before = std::mem::take(&mut self.missed);
        for range in ranges {
            let known = before.iter().find(|missed| missed.range == range).copied();
            let missed = known.unwrap_or_else(|| Missed { range, origin: self.origin(range) });
            self.missed.push(missed);
        }
    }

    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let range = regions.get(id).range();
        let known = self.missed.iter().position(|missed| missed.range == range);
        let origin = match known {
            Some(place) => self.missed.remove(place).origin,
            // There was room.
            None => self.origin(range),
        };
        if origin == Origin::New {
            self.make_ghost_room(range.pages());
            self.once.push(regions, id);
        } else {
            self.often.push(regions, id);
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

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let of = |origin| move |missed: &&Missed| missed.origin == origin;
        let new: u64 = self.missed.iter().filter(of(Origin::New)).map(|missed| missed.range.pages()).sum();
        let from_often = self.missed.iter().any(|missed| missed.origin == Origin::OftenGhosts);
        // Case IV, A: B1 is empty, and T1 alone is too large.
        let leaves_no_ghost = new > 0 && !self.make_ghost_room(new);
        let once = self.once.pages() as f64;
        let prefers_once = leaves_no_ghost || once > self.target || from_often && once > 0.0 && once == self.target;
        let id = if prefers_once {
            self.once.take_idle(regions).or_else(|| self.often.take_idle(regions))
        } else {
            self.often.take_idle(regions).or_else(|| self.once.take_idle(regions))
        }?;
        let was_once = self.once.owns(regions, id);
        if !(leaves_no_ghost && was_once) {
            self.make_ghost(regions.get(id).range(), was_once);
        }
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let range = regions.get(id).range();
        if self.once.owns(regions, id) {
            self.once_ghosts.remove(range);
            self.once.put_back(regions, id);
        } else {
            self.often_ghosts.remove(range);
            self.often.put_back(regions, id);
        }
    }

    fn memory(&self) -> usize {
        self.once_ghosts.memory() + self.often_ghosts.memory() + self.once.memory() + self.often.memory()
    }
}
