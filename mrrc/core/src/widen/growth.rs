//! Growth: misses close to each other register ever more around them.
//!
//! A program that asks for views of one tensor, or slides a window over a buffer, misses close to where it missed before. The misses of
//! such an area add up. The next one may register as many more pages as all of them together. Where the area has grown to [`SETTLED`]
//! pages, these are [twice](FASTER) as many. So each miss doubles or triples what is registered there, and n misses become O(log n).
//!
//! **Areas.** A miss belongs to an area if it is no further from it than [`NEAR`] times the pages that were registered there. It is
//! no further than [`FAR`] either. Misses that are scattered are areas of their own, and exact. The 32 areas that were used last are known. Of several
//! that are near, a miss belongs to the nearest. In a cache with [ample](AMPLE) room, areas where more was registered count as nearer. A small one would grow from its
//! beginning once more.
//!
//! **Direction.** A miss that follows the one before grows away from it. Others grow to both sides, or from the nearer end of a gap that is in
//! reach. So they leave one gap and not two.
//!
//! **Bounds.** It takes no page outside of the mapping, [`LARGEST`] pages and an eighth of the capacity at most. It takes free room only,
//! up to half of the capacity: no region leaves for it.
//!
//! **Changes.** Requested pages that change do not add up any longer: memory that is given back after each use does not grow. Where regions
//! leave that an area registered beyond its requests, their pages count as wasted, and the area grows half as far. If these pages are half of
//! all that it registered so, all of that counts, and the area begins anew.
//! Nothing grows while more is wasted than the [`PAYBACK`]th part of the pages that were asked for, and [`ALLOWANCE`].

use crate::range::PageRange;
use std::cmp::Reverse;

/// The areas that are known.
const AREAS: usize = 32;
/// How far from an area a miss may be, in parts of what was registered there.
const NEAR: u64 = 1024;
/// How far from an area a miss may be at most, in pages: 1 GiB. Other mappings are further away, mostly.
const FAR: u64 = 1 << 18;
/// Pages registered in an area, from which on it grows faster: 1 MiB.
const SETTLED: u64 = 1 << 8;
/// It then grows by so many times what was registered there.
const FASTER: u64 = 2;
/// The most pages of a region that has grown: 256 MiB.
pub(super) const LARGEST: u64 = 1 << 16;
/// A cache whose largest region has so many pages has ample room.
const AMPLE: u64 = 1 << 13;
/// One wasted page is allowed for so many that were asked for.
const PAYBACK: u64 = 96;
/// Pages that may be wasted before that counts.
const ALLOWANCE: u64 = 1 << 10;
/// Bounds of huge pages, in pages. Longer growth ends there.
const HUGE: u64 = 512;

/// The areas of misses. Decides alike for alike sequences of calls, and allocates nothing.
#[derive(Debug)]
pub(super) struct Growth {
    areas: [Area; AREAS],
    /// The most pages of a region.
    most: u64,
    /// Misses so far.
    clock: u64,
    /// Pages of all misses, and pages that were registered beyond them in vain.
    asked: u64,
    wasted: u64,
}

/// The pages that a grown region may share with its neighbours, where regions can overlap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overlap {
    /// So many of each: requests over the common bound are served by it.
    pub(crate) shared: u64,
    /// All pages of neighbours that have fewer than this.
    pub(crate) smaller_than: u64,
}

/// Pages in which misses are close to each other. None where nothing was spent.
#[derive(Clone, Copy, Debug, Default)]
struct Area {
    start: u64,
    end: u64,
    /// Pages registered there.
    spent: u64,
    /// The same before its last miss.
    before: u64,
    /// Of these, pages that were not asked for, and the bounds of the regions that have them.
    grown: u64,
    within: (u64, u64),
    /// Pages of the longest request.
    longest: u64,
    /// The last miss, and the direction from the one before.
    last: (u64, u64),
    towards: Towards,
    /// When it was missed last.
    used: u64,
}

/// The direction of misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Towards {
    #[default]
    Both,
    End,
    Start,
}

impl Area {
    /// Returns how far the range is from it, where that is near.
    fn distance(&self, range: PageRange) -> Option<u64> {
        let gap = range.start().saturating_sub(self.end).max(self.start.saturating_sub(range.end()));
        (self.spent > 0 && gap <= self.spent.saturating_mul(NEAR).min(FAR)).then_some(gap)
    }

    /// Returns the direction of a miss after the last one. One that touches the last, or begins within twice its length behind it, follows it.
    fn direction(&self, range: PageRange) -> Towards {
        let (start, end) = self.last;
        let step = 2 * (end - start).max(range.pages());
        if range.start() > start && range.start() <= self.end && range.end() + step > self.end && range.end() > end {
            Towards::End
        } else if range.end() < end && range.end() >= self.start && range.start() < self.start + step {
            Towards::Start
        } else {
            Towards::Both
        }
    }
}

impl Growth {
    /// Returns one that has seen nothing, for a cache of so many pages.
    pub(super) fn new(capacity: u64) -> Self {
        Self { areas: [Area::default(); AREAS], most: (capacity / 8).min(LARGEST), clock: 0, asked: 0, wasted: 0 }
    }

    /// Returns the place of the nearest area of a range, and of several the one where most was spent. Where there is ample room,
    /// an area is as much nearer as more was spent there.
    fn area_of(&self, range: PageRange) -> Option<usize> {
        let is_ample = self.most >= AMPLE;
        let near = self.areas.iter().enumerate().filter_map(|(at, area)| {
            let distance = area.distance(range)?;
            let distance = if is_ample { distance >> area.spent.ilog2() } else { distance };
            Some((distance, Reverse(area.spent), at))
        });
        near.min().map(|(_, _, at)| at)
    }

    /// Learns from a miss, before it is widened.
    pub(super) fn observe(&mut self, range: PageRange) {
        self.clock += 1;
        self.asked = self.asked.saturating_add(range.pages());
        let at = self.area_of(range);
        let oldest = || (0..AREAS).min_by_key(|&at| self.areas[at].used).unwrap_or(0);
        let place = at.unwrap_or_else(oldest);
        let area = &mut self.areas[place];
        if at.is_none() {
            *area = Area { start: range.start(), end: range.start(), ..Area::default() };
        } else {
            area.towards = area.direction(range);
        }
        area.before = area.spent;
        area.longest = area.longest.max(range.pages());
        area.last = (range.start(), range.end());
        area.used = self.clock;
        area.add(range, range.pages());
    }

    /// Returns the pages around a miss that it may take at most, where the cache has so much room: before or after it was
    /// [learned](Growth::observe).
    pub(super) fn reach(&self, range: PageRange, room: u64) -> PageRange {
        let more = self.budget(range, |area| area.spent).min(room.saturating_sub(range.pages()));
        let end = (range.end() + more).min(PageRange::EVERYTHING.end());
        PageRange::between(range.start().saturating_sub(more), end)
    }

    /// Returns what a region may share with its neighbours, for a miss that was learned.
    pub(super) fn overlap(&self, range: PageRange) -> Overlap {
        let shared = self.area_of(range).map_or(0, |at| self.areas[at].longest);
        Overlap { shared, smaller_than: self.budget(range, |area| area.before) / 4 }
    }

    /// Returns the range to register for a miss that was learned: it, or more around it within bounds, where the cache has so much room.
    pub(super) fn grow(&self, range: PageRange, within: PageRange, room: u64) -> PageRange {
        let more = self.budget(range, |area| area.before).min(room.saturating_sub(range.pages()));
        let Some(area) = self.area_of(range).map(|at| &self.areas[at]).filter(|_| more > 0) else { return range };
        let (before, after) = (range.start().saturating_sub(within.start()), within.end().saturating_sub(range.end()));
        let (to_start, to_end) = match area.towards {
            Towards::End => (0, more.min(after)),
            Towards::Start => (more.min(before), 0),
            Towards::Both if before.min(after) >= more => (more / 2, more - more / 2),
            // An end of the gap is in reach.
            Towards::Both if before < after => (before, (more - before).min(after)),
            Towards::Both => ((more - after).min(before), after),
        };
        let mut start = range.start() - to_start;
        let mut end = range.end() + to_end;
        if to_start > HUGE && start > within.start() {
            start = start.next_multiple_of(HUGE);
        }
        if to_end > HUGE && end < within.end() {
            end = end / HUGE * HUGE;
        }
        PageRange::between(start, end)
    }

    /// Learns that so much is registered for a miss that was learned. The area is halved where that is far less than it might have been.
    /// A cache looks at all pages in reach, and should not do so in vain again and again.
    pub(super) fn registered(&mut self, range: PageRange, wide: PageRange) {
        let budget = self.budget(range, |area| area.before);
        if let Some(at) = self.area_of(range) {
            let more = wide.pages() - range.pages();
            let area = &mut self.areas[at];
            if more < budget / 8 {
                area.halve();
            }
            let (start, end) = if area.grown > 0 { area.within } else { (wide.start(), wide.end()) };
            area.within = (start.min(wide.start()), end.max(wide.end()));
            area.grown += more;
            area.add(wide, more);
        }
    }

    /// Learns that nothing around a miss can be registered with it.
    pub(super) fn found_nothing(&mut self, range: PageRange) {
        if let Some(at) = self.area_of(range) {
            self.areas[at].halve();
        }
    }

    /// Learns that memory changed, so that the regions in this range leave. Their pages beyond the requests are wasted. The requests there
    /// count no more.
    pub(super) fn forget(&mut self, range: PageRange) {
        let common = |(start, end): (u64, u64)| end.min(range.end()).saturating_sub(start.max(range.start()));
        for area in &mut self.areas {
            let (start, end) = area.within;
            let wasted = common(area.within).min(area.grown);
            // Regions may overlap, and have gaps between them.
            if 2 * wasted >= area.grown.min(end - start).max(1) {
                self.wasted = self.wasted.saturating_add(area.grown);
                *area = Area::default();
                continue;
            }
            self.wasted = self.wasted.saturating_add(wasted);
            area.grown -= wasted;
            let lost = common((area.start, area.end));
            area.spent = area.spent.saturating_sub(lost);
            area.before = area.before.min(area.spent);
            if lost > 0 && area.spent > 0 {
                area.halve();
            }
        }
    }

    /// Returns how many pages more a miss may register.
    fn budget(&self, range: PageRange, spent: impl Fn(&Area) -> u64) -> u64 {
        if self.wasted > ALLOWANCE + self.asked / PAYBACK {
            return 0;
        }
        let spent = self.area_of(range).map_or(0, |at| {
            let area = &self.areas[at];
            let spent = spent(area);
            if area.grown > 0 && spent >= SETTLED { spent * FASTER } else { spent }
        });
        spent.min(self.most.saturating_sub(range.pages()))
    }
}

impl Area {
    /// Has it grow half as far.
    fn halve(&mut self) {
        self.spent = (self.spent / 2).max(1);
        self.before = self.before.min(self.spent);
    }

    fn add(&mut self, range: PageRange, pages: u64) {
        self.start = self.start.min(range.start());
        self.end = self.end.max(range.end());
        self.spent = self.spent.saturating_add(pages).min(PageRange::EVERYTHING.pages());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAPPING: PageRange = PageRange::EVERYTHING;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::new(start, pages).unwrap()
    }

    /// A miss: learned, widened and registered.
    fn miss(growth: &mut Growth, asked: PageRange, within: PageRange) -> PageRange {
        growth.observe(asked);
        let wide = growth.grow(asked, within, u64::MAX);
        growth.registered(asked, wide);
        wide
    }

    #[test]
    fn first_miss_is_exact_and_later_ones_double() {
        let mut growth = Growth::new(1 << 20);
        let mapping = range(1 << 20, 1 << 20);
        let pages: Vec<u64> = (0..5)
            .map(|nth| miss(&mut growth, range((1 << 20) + 1000 + nth * 37 % 5 * 100, 10), mapping).pages())
            .collect();
        assert_eq!(pages, [10, 20, 40, 80, 160]);
    }

    #[test]
    fn settled_areas_triple() {
        let mut growth = Growth::new(1 << 20);
        let mapping = range(1 << 20, 1 << 18);
        let mut spent = 0;
        for nth in 0..9 {
            let pages = miss(&mut growth, range((1 << 20) + 100_000 + nth * 37 % 9 * 1000, 10), mapping).pages();
            let times = if spent < SETTLED { 1 } else { FASTER };
            let bound = 2 * HUGE * u64::from(spent > HUGE);
            assert!((10 + times * spent - bound..=10 + times * spent).contains(&pages), "{nth}: {pages} after {spent}");
            spent += pages;
        }
        assert!(spent > 10_000, "{spent}");
    }

    #[test]
    fn distant_misses_of_a_small_area_add_up() {
        let mut growth = Growth::new(1 << 20);
        let mapping = range(1 << 20, 1 << 18);
        assert_eq!(miss(&mut growth, range(1 << 20, 10), mapping).pages(), 10);
        assert_eq!(miss(&mut growth, range((1 << 20) + 10_000, 10), mapping).pages(), 20);
    }

    #[test]
    fn growth_leaves_one_gap_where_an_end_is_in_reach() {
        let mut growth = Growth::new(1 << 20);
        let spent: u64 = (0..5).map(|nth| miss(&mut growth, range((1 << 20) + 1000 * nth, 10), MAPPING).pages()).sum();
        assert_eq!(FASTER * spent, 620);
        let asked = range((1 << 20) + 6100, 10);
        growth.observe(asked);
        let grown = |before: u64, after: u64, room: u64| {
            let within = PageRange::between(asked.start() - before, asked.end() + after);
            let wide = growth.grow(asked, within, room);
            (asked.start() - wide.start(), wide.end() - asked.end())
        };
        assert_eq!(grown(5000, 5000, u64::MAX), (310, 310));
        assert_eq!(grown(200, 5000, u64::MAX), (200, 420));
        assert_eq!(grown(5000, 200, u64::MAX), (420, 200));
        assert_eq!(grown(350, 400, u64::MAX), (350, 270));
        assert_eq!(grown(300, 320, u64::MAX), (300, 320));
        assert_eq!(grown(5, 0, u64::MAX), (5, 0));
        assert_eq!(grown(5000, 5000, 110), (50, 50), "all the room");
        assert_eq!(grown(5000, 5000, 5), (0, 0));
    }

    #[test]
    fn a_few_live_buffers_grow_little() {
        let mut growth = Growth::new(1 << 20);
        let heap = range(1 << 20, 1 << 16);
        let (mut live, mut asked, mut registered) = (std::collections::VecDeque::new(), 0, 0);
        for nth in 0..1000_u64 {
            if live.len() == 6 {
                growth.forget(live.pop_front().unwrap());
            }
            let request = range((1 << 20) + nth * 7 % 16 * 4000, 8);
            let wide = miss(&mut growth, request, heap);
            asked += request.pages();
            registered += wide.pages();
            live.push_back(wide);
        }
        assert!(registered < 2 * asked, "{registered} of {asked}");
    }

    #[test]
    fn slides_grow_ahead_of_them() {
        for forward in [true, false] {
            let mut growth = Growth::new(1 << 20);
            let mapping = range(1 << 20, 1 << 20);
            let (mut at, mut ahead) = (3 << 19, (0, 0));
            for nth in 0..8 {
                let asked = range(at, 64);
                let wide = miss(&mut growth, asked, mapping);
                if nth > 1 {
                    ahead = (wide.end() - asked.end(), asked.start() - wide.start());
                    assert_eq!(if forward { ahead.1 } else { ahead.0 }, 0, "{nth}: {wide:?}");
                }
                at = if forward { wide.end() - 48 } else { wide.start() - 16 };
            }
            assert!(ahead.0.max(ahead.1) > 64 << 4, "{ahead:?}");
        }
    }

    #[test]
    fn areas_that_cannot_grow_look_at_few_pages() {
        for is_seen in [false, true] {
            let mut growth = Growth::new(1 << 20);
            for nth in 0..10_000 {
                let asked = range((1 << 20) + 9 * nth, 8);
                let looked = growth.reach(asked, u64::MAX).pages();
                assert!(looked <= 64, "{nth}: {looked}");
                // Each is a mapping of its own, or lies between regions.
                if is_seen {
                    assert_eq!(miss(&mut growth, asked, asked), asked);
                } else {
                    growth.found_nothing(asked);
                    growth.observe(asked);
                }
            }
        }
    }

    #[test]
    fn full_caches_look_at_nothing() {
        let mut growth = Growth::new(1 << 20);
        (0..8).for_each(|nth| _ = miss(&mut growth, range((1 << 20) + 20 * nth, 10), range(1 << 20, 1 << 20)));
        let asked = range((1 << 20) + 5000, 10);
        assert!(growth.reach(asked, 1 << 20).pages() > 1000);
        assert_eq!((growth.reach(asked, 30).pages(), growth.reach(asked, 3)), (50, asked));
    }

    #[test]
    fn memory_given_back_each_time_stays_exact() {
        let mut growth = Growth::new(1 << 20);
        for nth in 0..10_000 {
            let asked = range((1 << 20) + nth * 7919 % 16_000, 1 + nth % 32);
            assert_eq!(miss(&mut growth, asked, MAPPING), asked, "{nth}");
            growth.forget(asked);
        }
        assert_eq!(growth.wasted, 0);
    }

    #[test]
    fn larger_areas_count_as_nearer_where_room_is_ample() {
        for (capacity, pages) in [(1 << 20, 16 + 512), (1 << 14, 16 + 8)] {
            let mut growth = Growth::new(capacity);
            // Eight pages, and 512 at twice their distance.
            for asked in [range(1 << 20, 8), range((1 << 20) + 16_000, 512)] {
                miss(&mut growth, asked, asked);
            }
            assert_eq!(miss(&mut growth, range((1 << 20) + 5600, 16), MAPPING).pages(), pages, "{capacity}");
        }
    }

    #[test]
    fn scattered_misses_stay_exact() {
        let mut growth = Growth::new(1 << 30);
        for nth in 0..10_000 {
            let asked = range((nth * 7919 % 1_000_003) << 12, 1);
            assert_eq!(miss(&mut growth, asked, MAPPING).pages(), 1, "{nth}");
        }
    }

    #[test]
    fn wasted_pages_have_to_be_paid_back() {
        let mut growth = Growth::new(1 << 20);
        // Each miss is close to those before, and all of it is unmapped before it is of use.
        let (mut asked, mut registered) = (0, 0);
        for nth in 0..200_000_u64 {
            let request = range((1 << 30) + nth * 7919 % 1009 * 16, 8);
            let wide = miss(&mut growth, request, range(1 << 30, 1 << 15));
            asked += request.pages();
            registered += wide.pages();
            if nth % 10 == 9 {
                growth.forget(range(1 << 30, 1 << 15));
            }
        }
        assert!(registered <= asked + asked / 32 + 3 * ALLOWANCE, "{registered} of {asked}");
        assert!(registered > asked);
    }

    #[test]
    fn changes_elsewhere_waste_nothing() {
        let mut growth = Growth::new(1 << 20);
        let mapping = range(1 << 20, 1 << 20);
        (0..6).for_each(|nth| _ = miss(&mut growth, range((1 << 20) + nth * 100, 10), mapping));
        growth.forget(range(1 << 19, 64));
        growth.forget(range(1 << 22, 64));
        assert_eq!(growth.wasted, 0);
        growth.forget(mapping);
        assert!(growth.wasted > 100);
        assert_eq!(miss(&mut growth, range((1 << 20) + 100, 10), mapping).pages(), 10);
    }

    #[test]
    fn small_losses_leave_the_rest_growing() {
        let mut growth = Growth::new(1 << 20);
        let mapping = range(1 << 20, 1 << 20);
        let regions: Vec<_> =
            (0..12).map(|nth| miss(&mut growth, range((1 << 20) + nth * 37 % 12 * 5000, 100), mapping)).collect();
        let grown: u64 = regions.iter().map(|region| region.pages() - 100).sum();
        assert!(grown > 100_000, "{grown}");
        // One of the first to grow leaves, because one buffer of it is unmapped.
        assert_eq!(regions[1].pages(), 200);
        growth.forget(regions[1]);
        assert!(growth.wasted <= 200, "{}", growth.wasted);
        assert!(miss(&mut growth, range((1 << 20) + 61_000, 100), mapping).pages() > 30_000);
        growth.forget(mapping);
        assert!(growth.wasted >= grown, "{} of {grown}", growth.wasted);
    }

    #[test]
    fn the_first_miss_far_away_is_exact() {
        let mut growth = Growth::new(1 << 30);
        let mapping = range(1 << 24, 1 << 18);
        (0..40).for_each(|nth| _ = miss(&mut growth, range((1 << 24) + nth * 7919 % 250 * 1000, 1000), mapping));
        let far = range((1 << 24) + (10 << 18), 16);
        assert_eq!(miss(&mut growth, far, MAPPING), far, "10 GiB further on");
        let near = miss(&mut growth, range((1 << 24) + 77_000, 16), mapping);
        assert!(near.pages() > 10_000, "{near:?}");
    }

    #[test]
    fn longer_growth_ends_at_bounds_of_huge_pages() {
        let mut growth = Growth::new(1 << 20);
        let mapping = range((1 << 20) + 3, 1 << 20);
        for nth in 0..12 {
            let wide = miss(&mut growth, range((3 << 19) + nth * 77, 16), mapping);
            if wide.pages() > 4 * HUGE {
                assert_eq!((wide.start() % HUGE, wide.end() % HUGE), (0, 0), "{wide:?}");
            }
        }
        // The end of the mapping is taken as it is.
        let wide = miss(&mut growth, range((3 << 19) + 5016, 16), range((3 << 19) + 5003, 60));
        assert_eq!(wide, range((3 << 19) + 5003, 60));
    }

    proptest! {
        #[test]
        fn grows_within_bounds_and_by_what_was_spent(
            capacity in 8_u64..1 << 22,
            misses in prop::collection::vec((0_u64..1 << 20, 1_u64..300, 0_u64..3000, 0_u64..3000, prop::bool::weighted(0.05)), 1..120),
        ) {
            let mut growth = Growth::new(capacity);
            let mut spent = 0;
            for (start, pages, before, after, changes) in misses {
                let asked = range(start, pages);
                // A cache looks at no more than the reach.
                let reach = growth.reach(asked, u64::MAX);
                let within = PageRange::between(start.saturating_sub(before), asked.end() + after);
                let within = within.intersection(reach).unwrap();
                growth.observe(asked);
                let wide = growth.grow(asked, within, u64::MAX);
                prop_assert!(wide.contains(asked) && within.contains(wide) && reach.contains(wide));
                prop_assert!(wide == asked || wide.pages() <= (capacity / 8).min(LARGEST));
                prop_assert!(wide.pages() - asked.pages() <= FASTER * spent, "no more than all before, twice");
                growth.registered(asked, wide);
                spent += wide.pages();
                if changes {
                    growth.forget(asked);
                }
            }
        }
    }
}
