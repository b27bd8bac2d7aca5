//! Regions that no lease has: since when, and which of them end.
//!
//! A lease that ends reports nothing, so the regions are looked at: [`LOOKS`] times in the longest time that they may stay. Where
//! their pages are limited, it is each second, too. A look finds which are held, and which were hit since the last one. From that follows a
//! moment at or before the end of the last lease, by less than the interval of two looks. A region ends with the last look before
//! that moment is too long ago. So it stays for at most the time, and for at least 7/8 of it.
//!
//! A look goes in parts of [`PART`] regions, because it needs the lock. After each part it pauses, so that it takes at most
//! 1/[`SHARE`] of the time. Where a look comes or ends late for that, a region stays longer by the delay, or ends sooner.
//!
//! Pure: the time is an argument.

use crate::regions::RegionId;
use crate::unheld_limit::UnheldLimit;
use std::time::{Duration, Instant};

/// Looks in the longest time without a lease, at least.
const LOOKS: u32 = 16;
/// The longest interval of two looks, without a limit on pages and with one.
const LONGEST: Duration = Duration::from_secs(3600);
const LONGEST_SIZED: Duration = Duration::from_secs(1);
/// A look comes early if more than this part of the limit, and of the regions at the last look, was registered since.
const GROWTH: u64 = 8;
/// Regions of one part of a look.
const PART: usize = 1024;
/// Pages that leave for the limit with one part of a look.
const BITE: u64 = 4096;
/// The part of the time that looks may take, as a divisor.
const SHARE: u32 = 16;

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

/// A look under way.
#[derive(Clone, Copy, Debug)]
struct Under {
    began: Duration,
    /// The regions from this index on are still to be looked at.
    from: usize,
    /// Those that stay: how many, and their pages without a lease.
    regions: u64,
    pages: u64,
}

/// Looks at the regions of one cache. Moments count from when the cache was made.
#[derive(Debug)]
pub(crate) struct Unheld {
    limit: UnheldLimit,
    /// For each region a moment before its last lease ended, or [`HIT`].
    since: Vec<Duration>,
    /// The begin of the last look, or when there was something to look at.
    last: Duration,
    under: Option<Under>,
    /// The next look, or part of one; none while there is nothing to look at.
    due: Option<Duration>,
    /// Pages without a lease at the last look, and regions.
    pages: u64,
    regions: u64,
    /// Pages and regions that were registered since its begin.
    new_pages: u64,
    new_regions: u64,
    /// Pages that still have to leave for the limit.
    excess: u64,
}

impl Unheld {
    pub(crate) fn new(limit: UnheldLimit) -> Self {
        Self {
            limit,
            since: Vec::new(),
            last: Duration::ZERO,
            under: None,
            due: None,
            pages: 0,
            regions: 0,
            new_pages: 0,
            new_regions: 0,
            excess: 0,
        }
    }

    /// Returns the interval of two looks.
    fn interval(&self) -> Duration {
        (self.limit.time / LOOKS).min(if self.limit.is_sized() { LONGEST_SIZED } else { LONGEST })
    }

    /// A region is cached from now on. Returns whether a look is due earlier than it was.
    pub(crate) fn begin(&mut self, id: RegionId, pages: u64, now: Duration) -> bool {
        if self.since.len() <= id.index() {
            self.since.resize(id.index() + 1, HIT);
        }
        self.since[id.index()] = now;
        self.new_pages = self.new_pages.saturating_add(pages);
        self.new_regions += 1;
        let was_idle = self.due.is_none();
        let due = *self.due.get_or_insert(now.saturating_add(self.interval()));
        if was_idle {
            self.last = now;
        }
        let beyond = self.pages.saturating_add(self.new_pages).saturating_sub(self.limit.pages);
        let is_full = beyond > self.limit.pages / GROWTH && self.new_regions > self.regions / GROWTH;
        let is_early = is_full && self.is_between() && due > now;
        if is_early {
            self.due = Some(now);
        }
        was_idle || is_early
    }

    /// Returns whether no look is under way, with what leaves for it.
    fn is_between(&self) -> bool {
        self.under.is_none() && self.excess == 0
    }

    /// A region was leased, and its mark of that is gone.
    pub(crate) fn note_hit(&mut self, id: RegionId) {
        if let Some(since) = self.since.get_mut(id.index()) {
            *since = HIT;
        }
    }

    /// Returns how long it is till the next look, or part of one.
    pub(crate) fn left(&self, now: Duration) -> Option<Duration> {
        Some(self.due?.saturating_sub(now))
    }

    /// Returns the index of the first region of the next part of a look.
    pub(crate) fn from(&self) -> usize {
        self.under.map_or(0, |under| under.from)
    }

    /// Does a part of a look, at cached regions from [`Unheld::from`] on in their order. It takes [`PART`] of them at most, and appends
    /// those that end now. Returns the pages that have to leave for the limit, besides.
    pub(crate) fn look(
        &mut self,
        now: Duration,
        seen: impl IntoIterator<Item = Seen>,
        ending: &mut Vec<RegionId>,
    ) -> u64 {
        if self.excess == 0 {
            self.look_at(now, seen, ending);
        }
        let bite = self.excess.min(BITE);
        self.excess -= bite;
        if self.excess > 0 {
            self.due = Some(now);
        }
        bite
    }

    fn look_at(&mut self, now: Duration, seen: impl IntoIterator<Item = Seen>, ending: &mut Vec<RegionId>) {
        let mut under = self.under.take().unwrap_or_else(|| {
            // Regions of which the registration follows count for the next look, whether this one finds them or not.
            (self.new_pages, self.new_regions) = (0, 0);
            Under { began: now, from: 0, regions: 0, pages: 0 }
        });
        let next = now.saturating_add(self.interval());
        let mut looked = 0;
        // No more are taken from the iterator: it takes marks of hits away.
        for Seen { id, pages, is_held, is_hit } in seen.into_iter().take(PART) {
            (looked, under.from) = (looked + 1, id.index() + 1);
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
            under.regions += 1;
            under.pages += if is_held { 0 } else { pages };
        }
        if looked == PART {
            // There may be more.
            (self.under, self.due) = (Some(under), Some(now));
            return;
        }
        self.last = under.began;
        self.pages = under.pages.min(self.limit.pages);
        self.regions = under.regions;
        self.excess = under.pages - self.pages;
        let any = under.regions > 0 || self.new_regions > 0;
        self.due = any.then_some(under.began.saturating_add(self.interval()).max(now));
    }

    /// A part of a look took so long until now: the next comes after a pause.
    pub(crate) fn pause(&mut self, took: Duration, now: Duration) {
        let pause = took.saturating_mul(SHARE - 1);
        self.due = self.due.map(|due| due.max(now.saturating_add(pause)));
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

    /// As [`Unheld::from`].
    pub(crate) fn from(&self) -> usize {
        self.0.as_ref().map_or(0, |(unheld, _)| unheld.from())
    }

    /// As [`Unheld::look`], now.
    pub(crate) fn look(&mut self, seen: impl IntoIterator<Item = Seen>, ending: &mut Vec<RegionId>) -> u64 {
        self.0.as_mut().map_or(0, |(unheld, made)| unheld.look(made.elapsed(), seen, ending))
    }

    /// As [`Unheld::pause`], of a part that began then.
    pub(crate) fn pause(&mut self, began: Instant) {
        if let Some((unheld, made)) = &mut self.0 {
            unheld.pause(began.elapsed(), made.elapsed());
        }
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

    /// Returns cached regions of one page, without a lease, as a look at them finds them.
    fn cached(unheld: &Unheld, regions: usize) -> Vec<Seen> {
        let seen = |nth| Seen { id: RegionId::of_index(nth), pages: 1, is_held: false, is_hit: false };
        (unheld.from()..regions).map(seen).collect()
    }

    /// Does a whole look. Returns its parts, and the pages that leave for the limit.
    fn look(unheld: &mut Unheld, regions: usize, now: Duration) -> (u32, u64) {
        let (mut parts, mut excess) = (0, 0);
        while unheld.left(now).is_some_and(|left| left.is_zero()) {
            let seen = cached(unheld, regions);
            excess += unheld.look(now, seen, &mut Vec::new());
            parts += 1;
        }
        (parts, excess)
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
            let (now, from) = (self.now, self.unheld.from());
            let cached = self.regions.iter_mut().enumerate().skip(from).filter(|(_, region)| region.is_cached);
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
        let excess = unheld.look(TICK, (0..91).map(seen), &mut Vec::new());
        assert_eq!((excess, unheld.left(TICK)), (7, Some(TICK)));
    }

    #[test]
    fn a_look_goes_in_parts() {
        let (mut unheld, regions) = (Unheld::new(limit(u64::MAX)), 3 * PART + 5);
        (0..regions).for_each(|nth| _ = unheld.begin(RegionId::of_index(nth), 1, Duration::ZERO));
        assert_eq!((look(&mut unheld, regions, TICK), unheld.left(TICK)), ((4, 0), Some(TICK)));
        // All end, and meanwhile one is registered in a place that the look has passed.
        let (mut ending, late) = (Vec::new(), TIME * 2);
        for _ in 0..4 {
            let seen = cached(&unheld, regions);
            unheld.look(late, seen, &mut ending);
            if ending.len() == PART {
                unheld.begin(RegionId::of_index(0), 1, late);
            }
        }
        assert_eq!((ending.len(), unheld.left(late)), (regions, Some(TICK)));
        unheld.look(late + TICK, [], &mut ending);
        assert_eq!(unheld.left(late), None);
    }

    #[test]
    fn looks_take_a_part_of_the_time() {
        let (mut unheld, regions, took) = (Unheld::new(limit(u64::MAX)), 64 * PART, TICK / 2);
        (0..regions).for_each(|nth| _ = unheld.begin(RegionId::of_index(nth), 1, Duration::ZERO));
        let (mut now, mut looked) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..100 {
            now += unheld.left(now).unwrap();
            let seen = cached(&unheld, regions);
            unheld.look(now, seen, &mut Vec::new());
            (now, looked) = (now + took, looked + took);
            unheld.pause(took, now);
        }
        assert!(looked * SHARE <= now + took * SHARE, "{looked:?} of {now:?}");
    }

    #[test]
    fn a_small_limit_needs_no_look_each_time() {
        let mut unheld = Unheld::new(limit(0));
        let mut looks = 0;
        for nth in 0..800 {
            unheld.begin(RegionId::of_index(nth), 1, Duration::ZERO);
            let seen = cached(&unheld, nth + 1).into_iter().map(|seen| Seen { is_held: true, ..seen });
            if unheld.left(Duration::ZERO).unwrap().is_zero() {
                unheld.look(Duration::ZERO, seen, &mut Vec::new());
                looks += 1;
            }
        }
        // The first 9 one by one, and then with each eighth more.
        assert!((20..=60).contains(&looks), "{looks}");
    }

    #[test]
    fn a_limit_on_pages_is_looked_at_each_second() {
        let hours = Duration::from_secs(16 * 3600);
        for (pages, expected) in [(1 << 18, LONGEST_SIZED), (u64::MAX, LONGEST)] {
            let mut unheld = Unheld::new(UnheldLimit { pages, time: hours });
            unheld.begin(RegionId::of_index(0), 1, Duration::ZERO);
            assert_eq!(unheld.left(Duration::ZERO), Some(expected));
        }
    }

    #[test]
    fn much_excess_leaves_in_bites() {
        let (mut unheld, regions) = (Unheld::new(limit(10)), 2 * PART);
        (0..regions).for_each(|nth| _ = unheld.begin(RegionId::of_index(nth), 5, Duration::ZERO));
        let seen = |unheld: &Unheld| -> Vec<_> {
            cached(unheld, regions).into_iter().map(|seen| Seen { pages: 5, ..seen }).collect()
        };
        let bites: Vec<_> = (0..6)
            .map(|_| {
                let seen = seen(&unheld);
                unheld.look(TICK, seen, &mut Vec::new())
            })
            .collect();
        assert_eq!(bites[..5], [0, 0, BITE, BITE, 5 * 2 * PART as u64 - 10 - 2 * BITE]);
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
