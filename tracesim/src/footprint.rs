//! The requests and the footprint of a trace, before any cache.

use mrrc_core::PageRange;
use traces::{Kind, Process, Trace};

/// The requests of a trace and the pages that they name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Ranges requested.
    pub requests: u64,
    /// Their pages, each counted as often as it is requested.
    pub requested_pages: u64,
    /// Distinct pages requested: the sum over all processes.
    pub pages: u64,
    /// Distinct pages of the process that has most. A capacity in percent is a share of this, because each process has a cache.
    pub largest_process_pages: u64,
}

impl Footprint {
    /// Counts the steps of a trace, in one pass.
    pub fn of(trace: &Trace) -> Self {
        let mut all = Self::default();
        for process in &trace.processes {
            let extent = Extent::of(process);
            all.requests += extent.requests;
            all.requested_pages = all.requested_pages.saturating_add(extent.requested_pages);
            all.pages = all.pages.saturating_add(extent.pages);
            all.largest_process_pages = all.largest_process_pages.max(extent.pages);
        }
        all
    }
}

/// Returns the ranges that a process requests.
pub fn asked_by(process: &Process) -> impl Iterator<Item = PageRange> {
    process.steps.iter().filter(|step| matches!(step.kind(), Kind::Request | Kind::Acquire)).map(|step| step.range())
}

/// Pages, from the first requested to the last, for which there may be a bit each: 8 MiB.
const MOST_MARKED: u64 = 1 << 26;

/// The requests of a process, and their distinct pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Extent {
    requests: u64,
    requested_pages: u64,
    pages: u64,
}

impl Extent {
    fn of(process: &Process) -> Self {
        // Where most words would stay empty, sorting takes less.
        let most = MOST_MARKED.min(process.steps.len() as u64 * 64);
        // Objects are laid out from 0 on; addresses of programs end this soon.
        let from_zero = Self::marked(process, 0, most);
        let from_first = || {
            let first = asked_by(process).map(|range| range.start()).min()?;
            Self::marked(process, first, most)
        };
        from_zero.or_else(from_first).unwrap_or_else(|| Self::sorted(process))
    }

    /// Counts with a bit for each page from `first` on, if so many are enough.
    fn marked(process: &Process, first: u64, most: u64) -> Option<Self> {
        let mut all = Self::default();
        let mut words = Vec::new();
        for range in asked_by(process) {
            all.requests += 1;
            all.requested_pages = all.requested_pages.saturating_add(range.pages());
            let (mut at, end) = (range.start() - first, range.end() - first);
            let needed = end.div_ceil(64) as usize;
            if words.len() < needed {
                if end > most {
                    return None;
                }
                words.resize(needed, 0_u64);
            }
            while at < end {
                let bits = (64 - at % 64).min(end - at);
                words[(at / 64) as usize] |= (u64::MAX >> (64 - bits)) << (at % 64);
                at += bits;
            }
        }
        all.pages = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Some(all)
    }

    fn sorted(process: &Process) -> Self {
        let add = |all: Self, range: PageRange| Self {
            requests: all.requests + 1,
            requested_pages: all.requested_pages.saturating_add(range.pages()),
            ..all
        };
        Self { pages: sorted_pages(process), ..asked_by(process).fold(Self::default(), add) }
    }
}

/// Ranges that are sorted at a time, at least: memory is bounded by this and by what is not adjacent.
const BATCH: usize = 1 << 18;

/// Counts by sorting. Batches grow with what is not adjacent, so that it is merged a few times only.
fn sorted_pages(process: &Process) -> u64 {
    let mut asked = asked_by(process).map(|range| (range.start(), range.end()));
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut batch: Vec<(u64, u64)> = Vec::with_capacity(BATCH.min(process.steps.len()));
    let mut merged = Vec::new();
    loop {
        batch.clear();
        batch.extend(asked.by_ref().take(BATCH.max(all.len() / 2)));
        if batch.is_empty() {
            return all.iter().map(|(start, end)| end - start).sum();
        }
        batch.sort_unstable();
        merged.clear();
        let (mut a, mut b) = (all.iter().copied().peekable(), batch.iter().copied().peekable());
        while let Some((start, end)) =
            if a.peek().is_some_and(|a| b.peek().is_none_or(|b| a <= b)) { a.next() } else { b.next() }
        {
            match merged.last_mut() {
                Some((_, last)) if start <= *last => *last = end.max(*last),
                _ => merged.push((start, end)),
            }
        }
        std::mem::swap(&mut all, &mut merged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::Access;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use traces::Step;

    fn process(ranges: impl IntoIterator<Item = (u64, u64)>) -> Process {
        let step =
            |(start, pages)| Step::new(Kind::Request, PageRange::new(start, pages).unwrap(), Access::LOCAL_READ, false);
        Process { steps: ranges.into_iter().map(step).collect() }
    }

    proptest! {
        #[test]
        fn the_footprint_is_the_number_of_different_pages(ranges in prop::collection::vec((0u64..200, 1u64..20), 0..60)) {
            let pages: HashSet<u64> = ranges.iter().flat_map(|&(start, pages)| start..start + pages).collect();
            let requested_pages = ranges.iter().map(|&(_, pages)| pages).sum();
            let expected = Extent { requests: ranges.len() as u64, requested_pages, pages: pages.len() as u64 };
            let process = process(ranges);
            prop_assert_eq!(Extent::of(&process), expected);
            prop_assert_eq!(Extent::sorted(&process), expected);
            prop_assert_eq!(Extent::marked(&process, 0, 219), Some(expected));
        }
    }

    #[test]
    fn batches_join() {
        let many = (0..3 * BATCH as u64).map(|i| (i * 7919 % 100_003 * 2, 1));
        let joined = process(many);
        assert_eq!((Extent::of(&joined).pages, sorted_pages(&joined)), (100_003, 100_003));
        // None is adjacent to another, and each is asked for twice.
        let apart = 5 * BATCH as u64 + 7;
        assert_eq!(sorted_pages(&process((0..2 * apart).map(|i| (i % apart * 2, 1)))), apart);
    }

    #[test]
    fn processes_have_address_spaces_of_their_own() {
        let trace = Trace { processes: vec![process([(0, 4), (2, 4)]), process([(0, 4)])], ..Trace::default() };
        let footprint = Footprint { requests: 3, requested_pages: 12, pages: 10, largest_process_pages: 6 };
        assert_eq!(Footprint::of(&trace), footprint);
    }
}
