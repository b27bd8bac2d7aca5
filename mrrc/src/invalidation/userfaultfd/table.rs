//! Which mappings are registered with the kernel, and which pages of them regions still need.
//!
//! Two books, kept apart on purpose. The first holds the pages that are registered, mapping by mapping; a change
//! cuts pieces out of it. The second counts, page by page, the regions that rely on being watched, and knows
//! nothing of mappings: however these are split, moved, or made anew at the same address, a region counts from
//! its [`Table::want`] to its [`Table::release`]. A mapping may be unregistered when no page of it counts.
//!
//! Beside them is a list of strays: pages that may be registered though the first book lacks them, since a mapping was moved there, or changed too
//! fast to be entered, or since more was cut out than had changed. No caller is told that they are watched; they wait to be unregistered.

use super::super::SharedMemory;
use super::wanted::Wanted;
use crate::range::PageRange;
use rangemap::{RangeMap, RangeSet};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Places that stay registered though no region needs them.
const IDLE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Table {
    /// The number of the last session of the monitor's thread that the table has learnt all of; none if it learnt during one.
    pub(super) settled: Option<u64>,
    /// By first page; they do not overlap.
    registered: BTreeMap<u64, Registered>,
    /// How many regions rely on a page.
    wanted: Wanted,
    /// How many of `registered` are idle.
    idle: usize,
    strays: RangeSet<u64>,
    /// Strays, and what was young, that could not be taken out the last time.
    left: usize,
    /// Shared memory that was registered lately, until when that matters.
    young: RangeMap<u64, Instant>,
    /// With more than these it is looked which are young no more. Twice what was young at the last look, so that a look
    /// costs each of them little.
    most_young: usize,
}

/// Ranges that are young, or were, before those that were are looked for.
const YOUNG: usize = 4096;

/// The source of the pages of a mapping, and so the reason why they stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backing {
    /// Private anonymous memory.
    Private,
    /// Anonymous memory, shared with children.
    Shared,
    /// A memfd that the kernel lets lose no page.
    Sealed,
    /// Shared memory that the user answers for: no process takes pages of it.
    Trusted,
}

impl Backing {
    /// Returns whether a cache that keeps this shared memory relies on such a mapping.
    fn serves(self, shared: SharedMemory) -> bool {
        match self {
            Self::Private | Self::Shared => true,
            Self::Sealed => shared != SharedMemory::Off,
            Self::Trusted => shared == SharedMemory::Trusted,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Registered {
    end: u64,
    /// The sum of its pages' counts.
    wanted: u64,
    backing: Backing,
}

impl Registered {
    /// Returns whether no page of it is wanted.
    fn is_idle(&self) -> bool {
        self.wanted == 0
    }
}

impl Table {
    /// Returns whether every page of the range is registered, in mappings on which a cache relies that keeps this shared memory.
    pub(super) fn covers(&self, range: PageRange, shared: SharedMemory) -> bool {
        let mut next = range.start();
        while next < range.end() {
            match self.registered.range(..=next).next_back() {
                Some((_, mapping)) if mapping.end > next && mapping.backing.serves(shared) => next = mapping.end,
                _ => return false,
            }
        }
        true
    }

    /// The pages are young until then, or no more.
    pub(super) fn set_young(&mut self, range: PageRange, until: Option<Instant>) {
        let pages = range.start()..range.end();
        let Some(until) = until else {
            if !self.young.is_empty() {
                self.young.remove(pages);
            }
            return;
        };
        self.young.insert(pages, until);
        if self.young.len() > self.most_young.max(YOUNG) {
            let now = Instant::now();
            let old: Vec<Range<u64>> =
                self.young.iter().filter(|(_, until)| **until <= now).map(|(at, _)| at.clone()).collect();
            old.into_iter().for_each(|pages| self.young.remove(pages));
            self.most_young = 2 * self.young.len();
        }
    }

    /// Returns whether some of the pages are young.
    pub(super) fn is_young(&self, range: PageRange) -> bool {
        let mut over = self.young.overlapping(range.start()..range.end()).peekable();
        !self.young.is_empty() && over.peek().is_some() && {
            let now = Instant::now();
            over.any(|(_, &until)| until > now)
        }
    }

    /// The pages are registered.
    #[cfg(test)]
    pub(super) fn add(&mut self, range: PageRange) {
        self.add_mapping(range, Backing::Shared);
    }

    /// The pages of a mapping are registered.
    pub(super) fn add_mapping(&mut self, range: PageRange, backing: Backing) {
        self.cut(range, |_| {});
        self.strays.remove(range.start()..range.end());
        self.insert_with(range.start(), range.end(), self.sum(range.start(), range.end()), backing);
    }

    /// Returns the part of a registered mapping of private anonymous memory that holds a page, as far as nothing was cut out of it.
    pub(super) fn private_mapping(&self, page: u64) -> Option<PageRange> {
        let (&start, mapping) = self.registered.range(..=page).next_back()?;
        (mapping.end > page && mapping.backing == Backing::Private).then(|| PageRange::between(start, mapping.end))
    }

    /// The pages are registered no longer.
    pub(super) fn remove(&mut self, range: PageRange) {
        self.cut(range, |_| {});
        self.strays.remove(range.start()..range.end());
    }

    /// Some of the pages are registered no longer, and it is not known which.
    pub(super) fn doubt(&mut self, range: PageRange) {
        let mut pieces = Vec::new();
        self.cut(range, |piece| pieces.push(piece));
        self.strays.extend(pieces);
    }

    /// The pages may be registered, though no caller asked.
    pub(super) fn stray(&mut self, range: PageRange) {
        for gap in self.gaps(range) {
            self.strays.insert(gap);
        }
    }

    /// One region more relies on the pages.
    pub(super) fn want(&mut self, range: PageRange) {
        self.wanted.add(range);
        let idle = &mut self.idle;
        for_each_part(&mut self.registered, range, |mapping, pages| {
            *idle -= usize::from(mapping.is_idle());
            mapping.wanted += pages;
        });
    }

    /// One region less relies on the pages: the same as were wanted.
    pub(super) fn release(&mut self, range: PageRange) {
        if !self.wanted.remove(range) {
            return;
        }
        let idle = &mut self.idle;
        for_each_part(&mut self.registered, range, |mapping, pages| {
            mapping.wanted -= pages;
            *idle += usize::from(mapping.is_idle());
        });
    }

    /// Returns whether so much is registered though no region needs it that it is time to take it out.
    pub(super) fn is_crowded(&self) -> bool {
        self.idle + self.strays.len() > IDLE + 2 * self.left
    }

    /// Takes out what no region needs: idle mappings and strays.
    pub(super) fn take_idle(&mut self) -> RangeSet<u64> {
        let mut taken = RangeSet::new();
        let (now, young) = (Instant::now(), &self.young);
        let mut kept = 0;
        self.registered.retain(|&start, mapping| {
            // One that is young has been asked for: registered anew it would never come of age.
            let is_young = || young.overlapping(start..mapping.end).any(|(_, &until)| until > now);
            let leaves = mapping.is_idle() && !is_young();
            if leaves {
                taken.insert(start..mapping.end);
            }
            kept += usize::from(mapping.is_idle() && !leaves);
            !leaves
        });
        self.idle = kept;
        // A region that was watched before its memory moved, or lost its entry, may need a stray.
        for stray in self.strays.iter() {
            let mut free = RangeSet::from_iter([stray.clone()]);
            let pages = PageRange::between(stray.start, stray.end);
            self.wanted.for_each_run(pages, |run, _| free.remove(run));
            taken.extend(free);
        }
        for free in taken.iter() {
            self.strays.remove(free.clone());
        }
        self.left = self.strays.len() + kept;
        taken
    }

    /// All that is registered, or may be.
    pub(super) fn into_all(self) -> RangeSet<u64> {
        let mut all = self.strays;
        all.extend(self.registered.iter().map(|(&start, mapping)| start..mapping.end));
        all
    }

    fn insert_with(&mut self, start: u64, end: u64, wanted: u64, backing: Backing) {
        let mapping = Registered { end, wanted, backing };
        self.idle += usize::from(mapping.is_idle());
        self.registered.insert(start, mapping);
    }

    /// Returns the sum of the counts of pages.
    fn sum(&self, start: u64, end: u64) -> u64 {
        if start < end { self.wanted.sum(PageRange::between(start, end)) } else { 0 }
    }

    /// Takes the range out of the first book, and shows what was in it.
    fn cut(&mut self, range: PageRange, mut out: impl FnMut(Range<u64>)) {
        while let Some((start, mapping)) = self.first_overlapping(range) {
            self.registered.remove(&start);
            self.idle -= usize::from(mapping.is_idle());
            let cut = start.max(range.start())..mapping.end.min(range.end());
            // The longest of the three parts has the rest: large mappings are cut to pieces without a look at all of it.
            let parts = [start..cut.start, cut.clone(), cut.end..mapping.end];
            let longest = (0..3).max_by_key(|&part| parts[part].end - parts[part].start).unwrap_or(0);
            let sum = |part: usize| if part == longest { 0 } else { self.sum(parts[part].start, parts[part].end) };
            let mut sums = [0, 1, 2].map(sum);
            sums[longest] = mapping.wanted - sums.iter().sum::<u64>();
            for part in [0, 2] {
                if !parts[part].is_empty() {
                    self.insert_with(parts[part].start, parts[part].end, sums[part], mapping.backing);
                }
            }
            out(cut);
        }
    }

    /// Returns the pages of the range that are not in the first book.
    fn gaps(&self, range: PageRange) -> Vec<Range<u64>> {
        let mut gaps = RangeSet::new();
        gaps.insert(range.start()..range.end());
        let first = self.registered.range(..=range.start()).next_back().map_or(range.start(), |(&start, _)| start);
        for (&start, mapping) in self.registered.range(first..range.end()) {
            gaps.remove(start..mapping.end);
        }
        gaps.into_iter().collect()
    }

    fn first_overlapping(&self, range: PageRange) -> Option<(u64, Registered)> {
        let before = self.registered.range(..range.start()).next_back().filter(|(_, held)| held.end > range.start());
        let first = before.or_else(|| self.registered.range(range.start()..range.end()).next());
        first.map(|(&start, &mapping)| (start, mapping))
    }
}

/// Shows the mappings that have pages of the range, and how many.
#[inline]
fn for_each_part(
    registered: &mut BTreeMap<u64, Registered>,
    range: PageRange,
    mut show: impl FnMut(&mut Registered, u64),
) {
    // Mostly it is all in one.
    let mut first = range.start();
    if let Some((&start, mapping)) = registered.range_mut(..=first).next_back() {
        if range.end() <= mapping.end {
            return show(mapping, range.pages());
        }
        first = start;
    }
    for (&start, mapping) in registered.range_mut(first..range.end()) {
        let (start, end) = (start.max(range.start()), mapping.end.min(range.end()));
        if start < end {
            show(mapping, end - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::between(start, end)
    }

    fn set(start: u64, end: u64) -> RangeSet<u64> {
        RangeSet::from_iter(std::iter::once(start..end))
    }

    #[test]
    fn private_mappings_end_at_holes() {
        let mut table = Table::default();
        table.add_mapping(range(10, 20), Backing::Private);
        table.add_mapping(range(20, 30), Backing::Shared);
        assert_eq!([9, 10, 19, 20].map(|page| table.private_mapping(page)), {
            let whole = Some(range(10, 20));
            [None, whole, whole, None]
        });
        table.remove(range(15, 16));
        let found = [14, 15, 16].map(|page| table.private_mapping(page));
        assert_eq!(found, [Some(range(10, 15)), None, Some(range(16, 20))]);
    }

    #[test]
    fn a_hole_torn_into_a_mapping_is_no_longer_covered() {
        let mut table = Table::default();
        table.add(range(10, 20));
        table.add(range(20, 30));
        assert!(table.covers(range(12, 28), SharedMemory::Off));
        table.remove(range(15, 16));
        assert!(
            !table.covers(range(12, 28), SharedMemory::Off)
                && table.covers(range(10, 15), SharedMemory::Off)
                && table.covers(range(16, 30), SharedMemory::Off)
        );
    }

    #[test]
    fn what_is_young_is_kept_until_it_is_of_age() {
        let mut table = Table::default();
        let far = Instant::now() + std::time::Duration::from_secs(3600);
        for (start, until) in [(10, Some(far)), (30, Some(Instant::now())), (50, None)] {
            table.set_young(range(start, start + 10), until);
            table.add(range(start, start + 10));
        }
        assert_eq!((table.idle, table.take_idle()), (3, RangeSet::from([30..40, 50..60])));
        assert!(table.idle == 1 && table.covers(range(10, 20), SharedMemory::Off) && !table.is_crowded());
        table.set_young(range(10, 20), None);
        assert_eq!((table.take_idle(), table.idle), (set(10, 20), 0));
    }

    #[test]
    fn old_mappings_region_does_not_count_for_the_new() {
        let mut table = Table::default();
        table.add(range(10, 20));
        table.want(range(12, 14)); // old
        table.remove(range(10, 20));
        table.add(range(10, 20));
        table.want(range(12, 14)); // new
        table.release(range(12, 14)); // old: deregistered late
        assert_eq!((table.idle, table.take_idle()), (0, RangeSet::new()));
        table.release(range(12, 14));
        assert_eq!((table.idle, table.take_idle()), (1, set(10, 20)));
    }

    #[test]
    fn releasing_unwanted_pages_changes_nothing() {
        let mut table = Table::default();
        table.add(range(10, 20));
        table.want(range(10, 12));
        table.release(range(12, 20));
        assert_eq!(table.idle, 0);
    }

    #[test]
    fn doubtful_pages_are_not_covered_but_kept() {
        let mut table = Table::default();
        table.add(range(10, 20));
        table.want(range(12, 14));
        table.doubt(range(11, 18));
        table.stray(range(30, 32));
        assert!(!table.covers(range(11, 12), SharedMemory::Off) && table.covers(range(18, 20), SharedMemory::Off));
        assert_eq!(table.take_idle(), RangeSet::from([10..12, 14..20, 30..32]));
        assert_eq!((table.strays.len(), table.into_all()), (1, set(12, 14)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64, u64),
        Remove(u64, u64),
        Doubt(u64, u64),
        Stray(u64, u64),
        Want(u64, u64),
        Release(usize),
        Sweep,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = || (0_u64..30, 1_u64..8);
        prop::collection::vec(
            prop_oneof![
                span().prop_map(|(start, pages)| Step::Add(start, pages)),
                span().prop_map(|(start, pages)| Step::Remove(start, pages)),
                span().prop_map(|(start, pages)| Step::Doubt(start, pages)),
                span().prop_map(|(start, pages)| Step::Stray(start, pages)),
                span().prop_map(|(start, pages)| Step::Want(start, pages)),
                any::<usize>().prop_map(Step::Release),
                Just(Step::Sweep),
            ],
            1..80,
        )
    }

    proptest! {
        /// Against sets of single pages and a list of the regions that live.
        #[test]
        fn both_books_agree_with_naive_ones(steps in steps()) {
            let mut table = Table::default();
            let mut registered = [false; 40];
            // The ranges that the kernel may hold: those registered, and those in doubt or from elsewhere.
            let mut possible = [false; 40];
            let mut regions = Vec::new();
            for step in steps {
                let span = |start: u64, pages: u64| range(start, start + pages);
                match step {
                    Step::Add(start, pages) => {
                        table.add(span(start, pages));
                        registered[start as usize..][..pages as usize].fill(true);
                        possible[start as usize..][..pages as usize].fill(true);
                    }
                    Step::Remove(start, pages) => {
                        table.remove(span(start, pages));
                        registered[start as usize..][..pages as usize].fill(false);
                        possible[start as usize..][..pages as usize].fill(false);
                    }
                    Step::Doubt(start, pages) => {
                        table.doubt(span(start, pages));
                        registered[start as usize..][..pages as usize].fill(false);
                    }
                    Step::Stray(start, pages) => {
                        table.stray(span(start, pages));
                        possible[start as usize..][..pages as usize].fill(true);
                    }
                    Step::Want(start, pages) => {
                        table.want(span(start, pages));
                        regions.push(span(start, pages));
                    }
                    Step::Release(_) if regions.is_empty() => {}
                    Step::Release(index) => table.release(regions.swap_remove(index % regions.len())),
                    Step::Sweep => {
                        for idle in table.take_idle() {
                            prop_assert!(!regions.iter().any(|region: &PageRange| region.overlaps(range(idle.start, idle.end))));
                            registered[idle.start as usize..idle.end as usize].fill(false);
                            possible[idle.start as usize..idle.end as usize].fill(false);
                        }
                        prop_assert_eq!(table.idle, 0);
                        for mapping in table.registered.iter().map(|(&start, held)| range(start, held.end)) {
                            prop_assert!(regions.iter().any(|region: &PageRange| region.overlaps(mapping)));
                        }
                    }
                }
                let idle = table.registered.values().filter(|mapping| mapping.is_idle()).count();
                prop_assert_eq!(table.idle, idle);
                for page in 0..40 {
                    let held = registered[page as usize] || table.strays.contains(&page);
                    prop_assert_eq!(held, possible[page as usize]);
                    prop_assert!(!(registered[page as usize] && table.strays.contains(&page)));
                    prop_assert_eq!(table.covers(range(page, page + 1), SharedMemory::Off), registered[page as usize]);
                }
            }
        }
    }
}
