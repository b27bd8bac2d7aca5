//! Steps in memory, eight bytes each.
//!
//! A word has the last bits of a start and the pages. The first bits of a start, the kind and the rights are the same for many
//! steps, so a word has a number for them. A step that does not fit into a word lies beside.

use crate::step::Step;
use rustc_hash::FxHashMap;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

/// The steps of a process, in the order of time.
///
/// A step takes eight bytes, and up to 24 where a range has 65,536 pages and more.
///
/// ```
/// use mrrc_core::{Access, PageRange};
/// use traces::{Kind, Step, StepList};
///
/// let asked = |page| Step::new(Kind::Request, PageRange::new(page, 1).unwrap(), Access::LOCAL_READ, false);
/// let steps: StepList = [1, 2, 1].map(asked).into();
/// assert_eq!(steps.len(), 3);
/// assert_eq!(steps.get(1), Some(asked(2)));
/// assert!(steps.iter().eq([1, 2, 1].map(asked)));
/// ```
#[derive(Clone, Default)]
pub struct StepList {
    words: Vec<u64>,
    /// The first word of a step without the bits of its start that are in the word.
    shared: Vec<u64>,
    /// Their places in `shared`.
    places: FxHashMap<u64, u64>,
    /// The shared part of the last step, and its place in `shared`.
    last: Option<(u64, u64)>,
    /// The steps that do not fit.
    wide: Vec<Step>,
}

/// Bits of a start in a word: 128 TiB.
const START_BITS: u32 = 35;
const START: u64 = (1 << START_BITS) - 1;
const PAGES_BITS: u32 = 16;
const PAGES: u64 = (1 << PAGES_BITS) - 1;
const SHARED_SHIFT: u32 = START_BITS + PAGES_BITS;
/// Set where the rest is a place in `wide`.
const WIDE: u64 = 1 << 63;
/// Different things in common, at most.
const MOST_SHARED: usize = 1 << (63 - SHARED_SHIFT);

impl StepList {
    /// Returns a list without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of steps.
    #[inline]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Adds a step at the end.
    #[inline]
    pub fn push(&mut self, step: Step) {
        let word = self.packed(step);
        self.words.push(word);
    }

    #[inline]
    fn packed(&mut self, step: Step) -> u64 {
        let (first, pages) = step.words();
        let shared = first & !START;
        let place = match self.last {
            Some((last, place)) if last == shared => Some(place),
            _ => self.place(shared),
        };
        match place {
            Some(place) if pages <= PAGES => place << SHARED_SHIFT | pages << START_BITS | first & START,
            _ => {
                self.wide.push(step);
                WIDE | (self.wide.len() as u64 - 1)
            }
        }
    }

    #[inline(never)]
    fn place(&mut self, shared: u64) -> Option<u64> {
        let place = match self.places.get(&shared) {
            Some(&place) => place,
            None if self.shared.len() == MOST_SHARED => return None,
            None => {
                let place = self.shared.len() as u64;
                self.shared.push(shared);
                self.places.insert(shared, place);
                place
            }
        };
        self.last = Some((shared, place));
        Some(place)
    }

    #[inline]
    fn unpacked(&self, word: u64) -> Step {
        if word & WIDE != 0 {
            return self.wide[(word & !WIDE) as usize];
        }
        let shared = self.shared[(word >> SHARED_SHIFT) as usize];
        Step::of_words(shared | word & START, word >> START_BITS & PAGES)
    }

    /// Returns the step at this place.
    #[inline]
    pub fn get(&self, at: usize) -> Option<Step> {
        self.words.get(at).map(|&word| self.unpacked(word))
    }

    /// Returns the steps in their order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { list: self, words: self.words.iter() }
    }

    /// Returns the steps in this range of places.
    ///
    /// # Panics
    /// If the range reaches past the end.
    #[inline]
    pub fn range(&self, places: Range<usize>) -> Iter<'_> {
        Iter { list: self, words: self.words[places].iter() }
    }

    /// Drops all but the first `len` steps.
    pub fn truncate(&mut self, len: usize) {
        self.words.truncate(len);
    }
}

/// The steps of a list.
#[derive(Clone)]
pub struct Iter<'a> {
    list: &'a StepList,
    words: std::slice::Iter<'a, u64>,
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl Iterator for Iter<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        self.words.next().map(|&word| self.list.unpacked(word))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.words.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<Step> {
        self.words.nth(n).map(|&word| self.list.unpacked(word))
    }
}

impl DoubleEndedIterator for Iter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Step> {
        self.words.next_back().map(|&word| self.list.unpacked(word))
    }
}

impl ExactSizeIterator for Iter<'_> {}
impl FusedIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a StepList {
    type Item = Step;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Extend<Step> for StepList {
    fn extend<I: IntoIterator<Item = Step>>(&mut self, steps: I) {
        let steps = steps.into_iter();
        self.words.reserve(steps.size_hint().0);
        steps.for_each(|step| self.push(step));
    }
}

impl FromIterator<Step> for StepList {
    fn from_iter<I: IntoIterator<Item = Step>>(steps: I) -> Self {
        let mut list = Self::new();
        list.extend(steps);
        list
    }
}

impl From<Vec<Step>> for StepList {
    fn from(steps: Vec<Step>) -> Self {
        steps.into_iter().collect()
    }
}

impl<const N: usize> From<[Step; N]> for StepList {
    fn from(steps: [Step; N]) -> Self {
        steps.into_iter().collect()
    }
}

impl fmt::Debug for StepList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use mrrc_core::{Access, PageRange};
    use proptest::prelude::*;

    fn step() -> impl Strategy<Value = Step> {
        let start = prop_oneof![0_u64..100, (START - 2)..(START + 3), 0..PageRange::EVERYTHING.pages() - (1 << 18)];
        let pages = prop_oneof![1_u64..40, (PAGES - 2)..(PAGES + 3)];
        let kind = prop_oneof![Just(Kind::Request), Just(Kind::Acquire), Just(Kind::Release), Just(Kind::Invalidate)];
        (kind, start, pages, 0_u8..32, any::<bool>()).prop_map(|(kind, start, pages, access, goes_on)| {
            Step::new(kind, PageRange::new(start, pages).unwrap(), Access::from_bits_truncate(access), goes_on)
        })
    }

    proptest! {
        #[test]
        fn steps_come_out_as_they_went_in(steps in prop::collection::vec(step(), 0..60)) {
            let list: StepList = steps.clone().into();
            prop_assert_eq!(list.len(), steps.len());
            prop_assert!(list.iter().eq(steps.iter().copied()));
            prop_assert!(list.iter().rev().eq(steps.iter().rev().copied()));
            prop_assert!((0..=steps.len()).all(|at| list.get(at) == steps.get(at).copied()));
        }
    }

    #[test]
    fn many_kinds_of_starts_fit_beside() {
        let far = |n: u64| Step::new(Kind::Request, PageRange::new(n << START_BITS, 1).unwrap(), Access::LOCAL, false);
        let steps: Vec<Step> = (0..MOST_SHARED as u64 + 9).map(far).collect();
        let list: StepList = steps.iter().chain(&steps).copied().collect();
        assert_eq!((list.shared.len(), list.wide.len()), (MOST_SHARED, 18));
        assert!(list.iter().eq(steps.iter().chain(&steps).copied()));
    }
}
