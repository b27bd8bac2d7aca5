//! When each page was last used, kept by runs of pages that were last used together.
//!
//! A request of 32 pages is one entry, not 32, and stays one until another request takes a part of it away. Each use
//! leaves one run behind and cuts at most two others. So the work is in proportion to the ranges of a trace, whatever
//! their length, and memory to the runs that are alive. Most uses are of all of a run and no more: a hash finds it. The
//! order of the runs serves all others.

use mrrc_core::PageRange;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// A value for each page that was used: the same for all pages of a run.
#[derive(Clone, Debug)]
pub(crate) struct LastUse<T> {
    /// By first page; runs are disjoint.
    runs: FxHashMap<u64, Run<T>>,
    /// Their first pages.
    starts: BTreeSet<u64>,
    /// The parts that a use found, in address order. Kept to be used again.
    cut: Vec<(u64, Run<T>)>,
}

#[derive(Clone, Copy, Debug)]
struct Run<T> {
    end: u64,
    value: T,
}

impl<T> Default for LastUse<T> {
    fn default() -> Self {
        Self { runs: FxHashMap::default(), starts: BTreeSet::new(), cut: Vec::new() }
    }
}

impl<T: Copy> LastUse<T> {
    /// Every page of the range has this value now. Shows how many pages had which value, in address order; `None`
    /// for those that had none.
    #[inline]
    pub(crate) fn put(&mut self, range: PageRange, value: T, mut had: impl FnMut(u64, Option<T>)) {
        if let Some(run) = self.runs.get_mut(&range.start())
            && run.end == range.end()
        {
            had(range.pages(), Some(run.value));
            run.value = value;
            return;
        }
        self.take(range, &mut had);
        self.insert(range.start(), Run { end: range.end(), value });
    }

    /// Reads the entries of ranges that are used soon, so that these reads overlap.
    #[inline]
    pub(crate) fn prepare(&self, ranges: impl Iterator<Item = PageRange>) {
        let ends = ranges.map(|range| self.runs.get(&range.start()).map_or(0, |run| run.end));
        std::hint::black_box(ends.fold(0, |all, end| all ^ end));
    }

    /// No page of the range has a value any more. Shows what they had, as [`LastUse::put`] does.
    pub(crate) fn take(&mut self, range: PageRange, mut had: impl FnMut(u64, Option<T>)) {
        let mut cut = std::mem::take(&mut self.cut);
        cut.extend(self.touched_by(range));
        let mut next = range.start();
        for (start, run) in cut.drain(..) {
            self.runs.remove(&start);
            self.starts.remove(&start);
            if start < range.start() {
                self.insert(start, Run { end: range.start(), ..run });
            }
            if run.end > range.end() {
                self.insert(range.end(), run);
            }
            let from = start.max(range.start());
            if next < from {
                had(from - next, None);
            }
            next = run.end.min(range.end());
            had(next - from, Some(run.value));
        }
        if next < range.end() {
            had(range.end() - next, None);
        }
        self.cut = cut;
    }

    fn insert(&mut self, start: u64, run: Run<T>) {
        self.runs.insert(start, run);
        self.starts.insert(start);
    }

    /// Returns the runs that have pages of the range, in address order.
    fn touched_by(&self, range: PageRange) -> impl Iterator<Item = (u64, Run<T>)> {
        let before = self.starts.range(..range.start()).next_back();
        let starts = before.into_iter().chain(self.starts.range(range.start()..range.end()));
        let runs = starts.filter_map(|start| self.runs.get(start).map(|&run| (*start, run)));
        runs.filter(move |(_, run)| run.end > range.start())
    }

    /// Shows how many pages of the range have which value, in address order; those without one are left out.
    pub(crate) fn visit(&self, range: PageRange, mut has: impl FnMut(u64, T)) {
        if let Some(run) = self.runs.get(&range.start()).filter(|run| run.end >= range.end()) {
            return has(range.pages(), run.value);
        }
        for (start, run) in self.touched_by(range) {
            has(run.end.min(range.end()) - start.max(range.start()), run.value);
        }
    }

    /// Pages that have a value.
    pub(crate) fn pages(&self) -> u64 {
        self.runs.iter().map(|(start, run)| run.end - start).sum()
    }

    /// Every value, to be changed, in any order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.runs.values_mut().map(|run| &mut run.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn runs_say_what_single_pages_would(uses in prop::collection::vec((0u64..40, 1u64..12, prop::bool::weighted(0.8)), 1..60)) {
            let mut runs = LastUse::default();
            let mut pages: HashMap<u64, usize> = HashMap::new();
            for (at, (start, len, is_use)) in uses.into_iter().enumerate() {
                let range = PageRange::new(start, len).unwrap();
                let expected: Vec<_> = (start..start + len).map(|page| pages.get(&page).copied()).collect();
                let mut got = Vec::new();
                let had = |pages: u64, value| got.extend((0..pages).map(|_| value));
                if is_use {
                    runs.put(range, at, had);
                    pages.extend((start..start + len).map(|page| (page, at)));
                } else {
                    runs.take(range, had);
                    pages.retain(|page, _| !(start..start + len).contains(page));
                }
                prop_assert_eq!(got, expected);
                prop_assert_eq!(runs.pages(), pages.len() as u64);
            }
        }
    }
}
