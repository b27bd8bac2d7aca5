//! Recent discards of pages. The system tells of a discard before the pages go, so nothing is cached there for a stated
//! time.

use crate::invalidation::ranges::Ranges;
use crate::range::PageRange;
use std::time::{Duration, Instant};

/// Ranges that are remembered exactly of as many discards as there are within that time. Beyond that, neighbours are drawn
/// together: the thread that reports a discard may not allocate.
const ROOM: usize = 1 << 17;

/// Ranges of pages, each with the time until which nothing is cached there.
///
/// There are two generations. A younger one begins when the oldest time of `recent` is over: then all of `before` is over,
/// as it was discarded earlier, and is forgotten at once. So what is over is never searched for.
pub(crate) struct Discards {
    recent: Ranges<Instant>,
    before: Ranges<Instant>,
    /// When the first of `recent` is over.
    first: Option<Instant>,
}

impl Discards {
    pub(crate) fn new() -> Self {
        Self::with_room_for(ROOM)
    }

    fn with_room_for(most: usize) -> Self {
        Self { recent: Ranges::with_room_for(most), before: Ranges::with_room_for(most), first: None }
    }

    /// Nothing is cached in the range until then, which is no earlier than for those before. Allocates nothing.
    pub(crate) fn add(&mut self, range: PageRange, until: Instant, now: Instant) {
        if self.first.is_some_and(|first| first <= now) {
            std::mem::swap(&mut self.recent, &mut self.before);
            self.recent.clear();
            self.first = None;
        }
        self.first.get_or_insert(until);
        self.recent.insert(range, until);
    }

    /// Returns whether nothing is cached somewhere in the range.
    #[inline]
    pub(crate) fn has(&self, range: PageRange) -> bool {
        // Mostly there never was one.
        self.first.is_some() && self.has_young(range)
    }

    fn has_young(&self, range: PageRange) -> bool {
        let mut now = None;
        let mut is_young = |_, until| until > *now.get_or_insert_with(Instant::now);
        self.recent.find_overlap(range, &mut is_young) || self.before.find_overlap(range, &mut is_young)
    }

    /// Returns the parts of the range where nothing is cached, and for how long.
    pub(crate) fn within(&self, range: PageRange) -> Vec<(PageRange, Duration)> {
        let now = Instant::now();
        let mut parts = Vec::new();
        for generation in [&self.before, &self.recent] {
            generation.find_overlap(range, |discarded, until| {
                let left = until.saturating_duration_since(now);
                parts.extend(discarded.intersection(range).filter(|_| !left.is_zero()).map(|part| (part, left)));
                false
            });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages(start: u64, count: u64) -> PageRange {
        PageRange::between(start, start + count)
    }

    #[test]
    fn a_discard_is_over_and_its_place_is_used_again() {
        let mut discards = Discards::with_room_for(100);
        let begun = Instant::now() - Duration::from_secs(60);
        let grace = Duration::from_secs(1);
        for nth in 0..10_000 {
            // A hundred within each grace, fifty of which fit a generation beside the others.
            let now = begun + grace * nth / 40;
            if now + grace < Instant::now() {
                discards.add(pages(u64::from(nth) * 2, 1), now + grace, now);
            }
        }
        assert!(discards.recent.is_exact() && discards.before.is_exact());
        assert!(discards.recent.len() + discards.before.len() <= 82);
        assert!(!discards.has(PageRange::EVERYTHING));
        let now = Instant::now();
        discards.add(pages(1, 1), now + Duration::from_secs(3600), now);
        assert!(discards.has(pages(1, 1)) && !discards.has(pages(0, 1)) && !discards.has(pages(2, 10)));
        assert_eq!(discards.within(pages(0, 10)).len(), 1);
    }

    #[test]
    fn too_many_to_remember_cover_what_lies_between_some() {
        let mut discards = Discards::with_room_for(100);
        let now = Instant::now();
        (0..1000).for_each(|nth| discards.add(pages(10 * nth, 1), now + Duration::from_secs(3600), now));
        assert!((0..1000).all(|nth| discards.has(pages(10 * nth, 1))));
        assert!(!discards.has(pages(10_001, 1)));
        assert!(!discards.has(pages(11, 1)), "those that fit stay exact");
    }

    proptest! {
        /// Against a time for each page.
        #[test]
        fn discards_agree_with_a_naive_model(
            steps in prop::collection::vec((0_u64..100, 1_u64..9, 0_u32..40), 1..200),
        ) {
            // Time ends long before the test does, or long after: the clock of the test does not matter.
            let (mut discards, mut now) = (Discards::new(), Instant::now() - Duration::from_secs(3600));
            let grace = Duration::from_secs(100);
            let mut until = [now; 110];
            for (start, count, pause) in steps {
                now += Duration::from_secs(u64::from(pause));
                discards.add(pages(start, count), now + grace, now);
                until[start as usize..][..count as usize].fill(now + grace);
                for page in 0..110 {
                    let mut latest = None;
                    for generation in [&discards.before, &discards.recent] {
                        generation.find_overlap(pages(page, 1), |_, until| {
                            latest = Some(until).max(latest);
                            false
                        });
                    }
                    let expected = until[page as usize];
                    prop_assert_eq!(latest.filter(|&until| until > now), Some(expected).filter(|&until| until > now));
                }
            }
        }
    }
}
