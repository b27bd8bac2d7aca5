//! Announced changes of memory: nothing is cached there until the change is done.
//!
//! Changes overlap, and a program may have any number of them under way; each miss asks whether one is in its range. So they are
//! found by their places. A change of at least 2^k pages and less than 2^(k+1) contains a multiple of 2^k: it stands there, and
//! all that stand at one place contain that page, so the first start and the last end among them say what they cover. A range is
//! compared with some five places for each k that there is.

use crate::range::PageRange;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Announced {
    /// By their numbers.
    changes: FxHashMap<u64, PageRange>,
    next: u64,
    /// By k, and by which multiple of 2^k they contain.
    places: BTreeMap<(u32, u64), Place>,
}

/// Changes that have a page in common: how many of them begin and end at a page.
#[derive(Default)]
struct Place {
    starts: BTreeMap<u64, u32>,
    ends: BTreeMap<u64, u32>,
}

impl Place {
    fn overlaps(&self, range: PageRange) -> bool {
        let covered = self.starts.first_key_value().zip(self.ends.last_key_value());
        covered.is_some_and(|((&start, _), (&end, _))| start < range.end() && range.start() < end)
    }
}

impl Announced {
    /// A change begins. Returns its number.
    pub(crate) fn begin(&mut self, range: PageRange) -> u64 {
        let number = self.next;
        self.next += 1;
        self.changes.insert(number, range);
        let place = self.places.entry(place_of(range)).or_default();
        *place.starts.entry(range.start()).or_default() += 1;
        *place.ends.entry(range.end()).or_default() += 1;
        number
    }

    /// The change is done. Nothing, if it was before.
    pub(crate) fn end(&mut self, number: u64) {
        let Some(range) = self.changes.remove(&number) else { return };
        let name = place_of(range);
        let Some(place) = self.places.get_mut(&name) else { return };
        one_less(&mut place.starts, range.start());
        one_less(&mut place.ends, range.end());
        if place.starts.is_empty() {
            self.places.remove(&name);
        }
    }

    /// Returns whether a change is under way somewhere in the range.
    #[inline]
    pub(crate) fn has(&self, range: PageRange) -> bool {
        !self.places.is_empty() && self.near(range).any(|place| place.overlaps(range))
    }

    /// Returns the places where changes of the range may stand: at most five for each k that are not inside it.
    fn near(&self, range: PageRange) -> impl Iterator<Item = &Place> {
        let next = |after: Option<u32>| {
            let first = after.map_or(0, |class| class + 1);
            self.places.range((first, 0)..).next().map(|(&(class, _), _)| class)
        };
        std::iter::successors(next(None), move |&class| next(Some(class))).flat_map(move |class| {
            let (first, last) = ((range.start() >> class).saturating_sub(2), (range.end() >> class) + 2);
            self.places.range((class, first)..=(class, last)).map(|(_, place)| place)
        })
    }
}

/// Its k, and the first multiple of 2^k in it.
fn place_of(range: PageRange) -> (u32, u64) {
    let class = range.pages().ilog2();
    (class, range.start().div_ceil(1 << class))
}

fn one_less(counts: &mut BTreeMap<u64, u32>, page: u64) {
    if let Some(count) = counts.get_mut(&page) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&page);
        }
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
    fn many_changes_are_not_looked_through() {
        let mut announced = Announced::default();
        // Ranges of all lengths, and many over the same memory.
        let numbers: Vec<_> = (0..100_000_u64).map(|nth| announced.begin(pages(nth * 8, 1 << (nth % 10)))).collect();
        let same: Vec<_> = (0..100_000).map(|_| announced.begin(pages(1 << 30, 1 << 20))).collect();
        for range in [pages(1 << 29, 1), pages(1 << 28, 1 << 28), pages((1 << 30) + (1 << 20), 5)] {
            assert!(!announced.has(range) && announced.near(range).count() <= 50, "{range}");
        }
        assert!(announced.has(pages((1 << 30) + 77, 1)));
        assert!(
            announced.near(PageRange::EVERYTHING).take_while(|place| !place.overlaps(PageRange::EVERYTHING)).count()
                == 0
        );
        numbers.into_iter().chain(same).for_each(|number| announced.end(number));
        assert!(announced.places.is_empty() && announced.changes.is_empty());
    }

    #[test]
    fn the_ends_of_the_address_space_are_no_exception() {
        let mut announced = Announced::default();
        let everything = PageRange::EVERYTHING;
        let last = pages(everything.end() - 1, 1);
        for range in [everything, last, pages(0, 1)] {
            let number = announced.begin(range);
            assert!(announced.has(everything) && announced.has(range));
            assert_eq!(announced.has(pages(1, 1)), range == everything);
            announced.end(number);
            announced.end(number);
            assert!(!announced.has(everything));
        }
    }

    proptest! {
        /// Against a list.
        #[test]
        fn changes_agree_with_a_list(
            steps in prop::collection::vec((0..200_u64, 1..60_u64, prop::bool::weighted(0.4), any::<prop::sample::Index>()), 1..40),
        ) {
            let (mut announced, mut list) = (Announced::default(), Vec::new());
            for (start, count, ends, which) in steps {
                if ends && !list.is_empty() {
                    let (number, _) = list.swap_remove(which.index(list.len()));
                    announced.end(number);
                } else {
                    list.push((announced.begin(pages(start, count)), pages(start, count)));
                }
                for first in (0..260).step_by(3) {
                    for length in [1, 7, 64] {
                        let range = pages(first, length);
                        prop_assert_eq!(announced.has(range), list.iter().any(|(_, change)| change.overlaps(range)));
                    }
                }
            }
        }
    }
}
