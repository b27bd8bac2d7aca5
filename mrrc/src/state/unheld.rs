//! Regions that no lease has: since when, and which of them end.
//!
//! A lease that ends reports nothing, so the regions are looked at, [`LOOKS`] times in the longest time that they may stay. A look
//! finds which are held, and which were hit since the last one. From that follows a moment at or before the end of the last
//! lease, by less than the interval of two looks. A region ends with the last look before that moment is too long ago. So it
//! stays for at most the time, and for at least 7/8 of it.
//!
//! Pure: the time is an argument. Where a look comes late, a region stays longer by the delay, or ends sooner.

use crate::regions::RegionId;
use crate::unheld_limit::UnheldLimit;
use std::time::{Duration, Instant};

/// Looks in the longest time without a lease, at least.
const LOOKS: u32 = 16;
/// The longest interval of two looks.
const LONGEST: Duration = Duration::from_secs(3600);
/// A look comes early when so much of the limit was registered since the last one: the n-th part.
const GROWTH: u64 = 8;

/// Hit since the last look, in the place of a moment.
const HIT: Duration = Duration::MAX;

/// A cached region as a look finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) id: RegionId,
    pub(crate) pages: u64,
    /// A lease has it.
    pub(crate) is_held: bool,
    /// It was hit since the last look.
    pub(crate) is_hit: bool,
}

/// The outcome of a look.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Look {
    /// Pages that have to leave for the limit, besides the regions that end.
    pub(crate) excess: u64,
    /// When the next look is due; none if there is nothing to look at.
    pub(crate) next: Option<Duration>,
}

/// Looks at the regions of one cache. Moments count from when the cache was made.
#[derive(Debug)]
pub(crate) struct Unheld {
    limit: UnheldLimit,
    /// For each region a moment before its last lease ended, or [`HIT`].
    since: Vec<Duration>,
    /// The last look, or when there was something to look at.
    last: Duration,
    /// The next look; none while there is nothing to look at.
    due: Option<Duration>,
    /// Pages without a lease at the last look, and those registered since.
    pages: u64,
}

impl Unheld {
    pub(crate) fn new(limit: UnheldLimit) -> Self {
        Self { limit, since: Vec::new(), last: Duration::ZERO, due: None, pages: 0 }
    }

    /// Returns the interval of two looks.
    fn interval(&self) -> Duration {
        (self.limit.time / LOOKS).min(LONGEST)
    }

    /// A region is cached from now on. Returns whether a look is due earlier than it was.
    pub(crate) fn begin(&mut self, id: RegionId, pages: u64, now: Duration) -> bool {
        if self.since.len() <= id.index() {
            self.since.resize(id.index() + 1, HIT);
        }
        self.since[id.index()] = now;
        self.pages = self.pages.saturating_add(pages);
        let was_idle = self.due.is_none();
        let due = *self.due.get_or_insert(now.saturating_add(self.interval()));
        if was_idle {
            self.last = now;
        }
        let is_full = self.pages.saturating_sub(self.limit.pages) > self.limit.pages / GROWTH;
        if is_full && due > now {
            self.due = Some(now);
        }
        was_idle || (is_full && due > now)
    }

    /// A region was leased, and its mark of that is gone.
    pub(crate) fn note_hit(&mut self, id: RegionId) {
        if let Some(since) = self.since.get_mut(id.index()) {
            *since = HIT;
        }
    }

    /// Returns how long it is till the next look.
    pub(crate) fn left(&self, now: Duration) -> Option<Duration> {
        Some(self.due?.saturating_sub(now))
    }

    /// Looks at all cached regions, and appends those that end now.
    pub(crate) fn look(
        &mut self,
        now: Duration,
        seen: impl IntoIterator<Item = Seen>,
        ending: &mut Vec<RegionId>,
    ) -> Look {
        let next = now.saturating_add(self.interval());
        let (mut any, mut pages) = (false, 0_u64);
        for Seen { id, pages: of_region, is_held, is_hit } in seen {
            let Some(since) = self.since.get_mut(id.index()) else { continue };
            if is_held {
                *since = now;
            } else if is_hit || *since == HIT {
                *since = self.last;
            }
            if !is_held && since.saturating_add(self.limit.time) < next {
                ending.push(id);
                continue;
            }
            any = true;
            pages += if is_held { 0 } else { of_region };
        }
        self.last = now;
        self.pages = pages.min(self.limit.pages);
        self.due = any.then_some(next);
        Look { excess: pages.saturating_sub(self.limit.pages), next: self.due }
    }
}

/// The looks of a cache by the system's clock, if there is a limit.
pub(crate) struct Looks(Option<(Unheld, Instant)>);

impl Looks {
    pub(crate) fn new(limit: Option<UnheldLimit>) -> Self {
        Self(limit.map(|limit| (Unheld::new(limit), Instant::now())))
    }

    /// As [`Unheld::begin`].
    #[inline]
    pub(crate) fn begin(&mut self, id: RegionId, pages: impl FnOnce() -> u64) -> bool {
        match &mut self.0 {
            Some((unheld, made)) => unheld.begin(id, pages(), made.elapsed()),
            None => false,
        }
    }

    /// As [`Unheld::note_hit`].
    #[inline]
    pub(crate) fn note_hit(&mut self, id: RegionId) {
        if let Some((unheld, _)) = &mut self.0 {
            unheld.note_hit(id);
        }
    }

    /// As [`Unheld::left`].
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.as_ref().and_then(|(unheld, made)| unheld.left(made.elapsed()))
    }

    /// As [`Unheld::look`], now. Returns the pages that have to leave.
    pub(crate) fn look(&mut self, seen: impl IntoIterator<Item = Seen>, ending: &mut Vec<RegionId>) -> u64 {
        self.0.as_mut().map_or(0, |(unheld, made)| unheld.look(made.elapsed(), seen, ending).excess)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIME: Duration = Duration::from_millis(1600);
    const TICK: Duration = Duration::from_millis(100);

    fn limit(pages: u64) -> UnheldLimit {
        UnheldLimit { pages, time: TIME }
    }

    /// A region of the simulation.
    #[derive(Clone, Copy, Default, Debug)]
    struct Model {
        is_cached: bool,
        held_until: Duration,
        is_hit: bool,
    }

    /// Regions under a simulated clock: looks come when they are due, and not before.
    struct World {
        unheld: Unheld,
        regions: Vec<Model>,
        now: Duration,
        looks: u32,
        /// For each end: how long the region had no lease.
        ends: Vec<Duration>,
    }

    impl World {
        fn new(limit: UnheldLimit, regions: usize) -> Self {
            let (now, unheld) = (Duration::from_secs(3600), Unheld::new(limit));
            Self { unheld, regions: vec![Model::default(); regions], now, looks: 0, ends: Vec::new() }
        }

        fn lease(&mut self, nth: usize, takes: Duration) {
            let region = &mut self.regions[nth];
            let end = region.held_until.max(self.now + takes);
            let is_new = !region.is_cached;
            *region = Model { is_cached: true, held_until: end, is_hit: !is_new };
            if is_new {
                self.unheld.begin(RegionId::of_index(nth), 1, self.now);
            }
        }

        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while let Some(left) = self.unheld.left(self.now).filter(|&left| self.now + left <= end) {
                self.now += left;
                self.look();
            }
            self.now = end;
        }

        fn look(&mut self) {
            let now = self.now;
            let cached = self.regions.iter_mut().enumerate().filter(|(_, region)| region.is_cached);
            let seen: Vec<_> = cached
                .map(|(nth, region)| Seen {
                    id: RegionId::of_index(nth),
                    pages: 1,
                    is_held: region.held_until > now,
                    is_hit: std::mem::take(&mut region.is_hit),
                })
                .collect();
            let mut ending = Vec::new();
            self.unheld.look(now, seen, &mut ending);
            self.looks += 1;
            for id in ending {
                let region = std::mem::take(&mut self.regions[id.index()]);
                self.ends.push(now - region.held_until);
            }
        }
    }

    #[test]
    fn a_region_without_a_lease_ends_in_time() {
        let mut world = World::new(limit(u64::MAX), 1);
        world.lease(0, Duration::from_millis(10));
        world.pass(TIME * 7 / 8 - TICK);
        assert!(world.ends.is_empty());
        world.pass(TICK * 3);
        assert_eq!(world.ends.len(), 1);
        assert!(world.ends[0] <= TIME);
    }

    #[test]
    fn nothing_cached_means_no_look() {
        let mut world = World::new(limit(u64::MAX), 2);
        world.pass(TIME * 100);
        assert_eq!(world.looks, 0);
        world.lease(1, Duration::ZERO);
        world.pass(TIME * 100);
        assert!(world.looks <= LOOKS && world.ends.len() == 1, "{} looks", world.looks);
    }

    #[test]
    fn a_region_ends_only_after_its_lease() {
        let mut world = World::new(limit(u64::MAX), 1);
        world.lease(0, TIME * 50);
        world.pass(TIME * 50);
        assert!(world.ends.is_empty());
        world.pass(TIME);
        assert_eq!(world.ends.len(), 1);
    }

    #[test]
    fn a_hit_whose_mark_was_taken_counts() {
        let (mut unheld, id) = (Unheld::new(limit(u64::MAX)), RegionId::of_index(3));
        let mut looks = |is_noted: bool| {
            unheld.begin(id, 1, Duration::ZERO);
            let mut ending = Vec::new();
            for nth in 1..=2 * LOOKS {
                if is_noted {
                    unheld.note_hit(id);
                }
                let seen = Seen { id, pages: 1, is_held: false, is_hit: false };
                unheld.look(TICK * nth, ending.is_empty().then_some(seen), &mut ending);
            }
            ending.len()
        };
        assert_eq!((looks(true), looks(false)), (0, 1));
    }

    #[test]
    fn growth_beyond_the_limit_is_looked_at() {
        let mut unheld = Unheld::new(limit(80));
        let begin = |unheld: &mut Unheld, nth: u64| unheld.begin(RegionId::of_index(nth as usize), 1, TICK);
        let early: Vec<_> = (0..91).map(|nth| begin(&mut unheld, nth)).collect();
        // The first wakes the looks, and the 91st is more than an eighth beyond 80.
        assert!(early[0] && early[90] && early[1..90].iter().all(|early| !early));
        assert_eq!(unheld.left(TICK), Some(Duration::ZERO));
        let seen = |nth: usize| Seen { id: RegionId::of_index(nth), pages: 1, is_held: nth < 4, is_hit: false };
        let look = unheld.look(TICK, (0..91).map(seen), &mut Vec::new());
        assert_eq!(look, Look { excess: 7, next: Some(TICK * 2) });
    }

    proptest! {
        #[test]
        fn every_region_ends_between_7_eighths_and_all(
            steps in prop::collection::vec((0..6_usize, 0..3000_u64, 0..2000_u64), 1..200),
        ) {
            let mut world = World::new(limit(u64::MAX), 6);
            for (nth, takes, pause) in steps {
                world.lease(nth, Duration::from_millis(takes));
                world.pass(Duration::from_millis(pause));
                for region in world.regions.iter().filter(|region| region.is_cached) {
                    prop_assert!(world.now.saturating_sub(region.held_until) <= TIME, "{region:?}");
                }
            }
            world.pass(Duration::from_secs(60));
            prop_assert!(world.regions.iter().all(|region| !region.is_cached));
            for end in world.ends {
                prop_assert!(TIME * 7 / 8 <= end && end <= TIME, "{end:?}");
            }
        }
    }
}
