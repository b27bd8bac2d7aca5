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
            let pages = extent.footprint_pages(process);
            all.pages = all.pages.saturating_add(pages);
            all.largest_process_pages = all.largest_process_pages.max(pages);
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

/// The requests of a process, and how far apart they lie.
#[derive(Clone, Copy)]
struct Extent {
    requests: u64,
    requested_pages: u64,
    /// The first page requested, and the end of the last.
    first: u64,
    end: u64,
}

impl Extent {
    fn of(process: &Process) -> Self {
        let mut all = Self { requests: 0, requested_pages: 0, first: u64::MAX, end: 0 };
        for asked in asked_by(process) {
            all.requests += 1;
            all.requested_pages = all.requested_pages.saturating_add(asked.pages());
            all.first = all.first.min(asked.start());
            all.end = all.end.max(asked.end());
        }
        all
    }

    /// Counts the distinct pages that the process requests.
    fn footprint_pages(&self, process: &Process) -> u64 {
        // Where most words would stay empty, sorting takes less.
        match self.end.checked_sub(self.first) {
            None => 0,
            Some(pages) if pages <= MOST_MARKED.min(process.steps.len() as u64 * 64) => {
                marked_pages(process, self.first, self.end)
            }
            Some(_) => sorted_pages(process),
        }
    }
}

/// Counts with a bit for each page from `first` to `end`.
fn marked_pages(process: &Process, first: u64, end: u64) -> u64 {
    let mut words = vec![0_u64; (end - first).div_ceil(64) as usize];
    for range in asked_by(process) {
        let (mut at, end) = (range.start() - first, range.end() - first);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            words[(at / 64) as usize] |= (u64::MAX >> (64 - bits)) << (at % 64);
            at += bits;
        }
    }
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Ranges that are sorted at a time: memory is bounded by this and by what is not adjacent.
const BATCH: usize = 1 << 18;

/// Counts by sorting.
fn sorted_pages(process: &Process) -> u64 {
    let mut asked = asked_by(process).map(|range| (range.start(), range.end()));
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut batch: Vec<(u64, u64)> = Vec::with_capacity(BATCH.min(process.steps.len()));
    let mut merged = Vec::new();
    loop {
        batch.clear();
        batch.extend(asked.by_ref().take(BATCH));
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

    fn footprint_pages(process: &Process) -> u64 {
        Extent::of(process).footprint_pages(process)
    }

    fn process(ranges: impl IntoIterator<Item = (u64, u64)>) -> Process {
        let step =
            |(start, pages)| Step::new(Kind::Request, PageRange::new(start, pages).unwrap(), Access::LOCAL_READ, false);
        Process { steps: ranges.into_iter().map(step).collect() }
    }

    proptest! {
        #[test]
        fn the_footprint_is_the_number_of_different_pages(ranges in prop::collection::vec((0u64..200, 1u64..20), 0..60)) {
            let pages: HashSet<u64> = ranges.iter().flat_map(|&(start, pages)| start..start + pages).collect();
            let process = process(ranges);
            prop_assert_eq!(footprint_pages(&process), pages.len() as u64);
            prop_assert_eq!(sorted_pages(&process), pages.len() as u64);
            prop_assert_eq!(marked_pages(&process, 0, 219), pages.len() as u64);
        }
    }

    #[test]
    fn batches_join() {
        let many = (0..3 * BATCH as u64).map(|i| (i * 7919 % 100_003 * 2, 1));
        let process = process(many);
        assert_eq!((footprint_pages(&process), sorted_pages(&process)), (100_003, 100_003));
    }

    #[test]
    fn processes_have_address_spaces_of_their_own() {
        let trace = Trace { processes: vec![process([(0, 4), (2, 4)]), process([(0, 4)])], ..Trace::default() };
        let footprint = Footprint { requests: 3, requested_pages: 12, pages: 10, largest_process_pages: 6 };
        assert_eq!(Footprint::of(&trace), footprint);
    }
}
