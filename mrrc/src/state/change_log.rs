//! Changes of memory: those that monitors report, those that the program announces, and ranges where nothing is cached for a
//! while.

mod announced;
mod discards;

use crate::range::PageRange;
use crate::regions::RegionId;
use announced::Announced;
use discards::Discards;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Changes of memory. Owns the regions that monitors reported and that are still in the core, the changes that the program
/// announced, and the ranges where pages were discarded a while ago.
pub(crate) struct ChangeLog {
    reported: Reported,
    announced: Announced,
    discards: Discards,
    /// Changes that were heard of, begun or ended.
    number: u64,
}

/// Regions that a monitor's change has hidden, and that are still cached in the core. There is a bit for each region: a monitor may not
/// allocate.
#[derive(Default)]
struct Reported {
    marks: Vec<u64>,
    /// The words that have marks: from the first one, up to the second.
    marked: Range<usize>,
    /// There was no room after all: regions that are hidden have to be searched for.
    is_partial: bool,
    /// When the first of them was recorded.
    since: Option<Instant>,
    /// An empty list for the next time.
    spare: Vec<RegionId>,
}

/// Regions with marks in a word.
const WORD: usize = u64::BITS as usize;
/// No longer list is kept for the next time.
const SPARE: usize = 4096;

impl ChangeLog {
    pub(super) fn new() -> Self {
        Self { reported: Reported::default(), announced: Announced::default(), discards: Discards::new(), number: 0 }
    }

    /// Makes room for reports of so many regions.
    #[inline]
    pub(super) fn make_room(&mut self, regions: usize) {
        let marks = &mut self.reported.marks;
        if marks.len() * WORD < regions {
            marks.resize(regions.div_ceil(WORD), 0);
        }
    }

    /// Records a region that a monitor's change has hidden. Allocates nothing.
    pub(super) fn record(&mut self, id: RegionId, now: Instant) {
        let Reported { marks, marked, is_partial, since, .. } = &mut self.reported;
        since.get_or_insert(now);
        let word = id.index() / WORD;
        if let Some(marks) = marks.get_mut(word) {
            *marks |= 1 << (id.index() % WORD);
            *marked =
                if Range::is_empty(marked) { word..word + 1 } else { marked.start.min(word)..marked.end.max(word + 1) };
        } else {
            debug_assert!(false, "there is room for every region");
            *is_partial = true;
        }
    }

    /// Returns when the first of the changes was recorded that were not [taken](Self::drain).
    pub(super) fn reported_since(&self) -> Option<Instant> {
        self.reported.since
    }

    #[inline]
    pub(super) fn has_reported(&self) -> bool {
        !self.reported.marked.is_empty() || self.reported.is_partial
    }

    /// Takes what monitors recorded of so many regions; what is not needed any more is to be [returned](Self::reuse).
    pub(super) fn drain(&mut self, regions: usize) -> Vec<RegionId> {
        let Reported { marks, marked, is_partial, spare, since } = &mut self.reported;
        *since = None;
        let mut reported = std::mem::take(spare);
        let words = std::mem::take(marked);
        for (word, marks) in words.clone().zip(&mut marks[words]) {
            let mut marks = std::mem::take(marks);
            while marks != 0 {
                reported.push(RegionId::of_index(word * WORD + marks.trailing_zeros() as usize));
                marks &= marks - 1;
            }
        }
        if std::mem::take(is_partial) {
            reported.clear();
            reported.extend((0..regions).map(RegionId::of_index));
        }
        reported
    }

    /// Takes back the list that reports were taken in.
    pub(super) fn reuse(&mut self, mut reported: Vec<RegionId>) {
        if reported.capacity() <= SPARE {
            reported.clear();
            self.reported.spare = reported;
        }
    }

    /// Records that pages were discarded: nothing is cached there until then. Allocates nothing.
    pub(super) fn discard(&mut self, range: PageRange, until: Instant, now: Instant) {
        self.discards.add(range, until, now);
    }

    /// Begins a change that the program announced. Returns its number.
    pub(super) fn begin(&mut self, range: PageRange) -> u64 {
        self.announced.begin(range)
    }

    /// Ends a change.
    pub(crate) fn end(&mut self, change: u64) {
        self.number += 1;
        self.announced.end(change);
    }

    /// Counts a change of any memory.
    pub(super) fn count(&mut self) {
        self.number += 1;
    }

    /// Returns a number that is the same as before while no change was heard of, begun or ended.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether an announced change is under way somewhere in the range.
    pub(crate) fn is_changing(&self, range: PageRange) -> bool {
        self.announced.has(range)
    }

    /// Returns whether what is planned now may be cached. Owned: the caller answers for the range, so that no discard matters.
    #[inline]
    pub(crate) fn allows_caching(&self, range: PageRange, owned: bool) -> bool {
        !self.is_changing(range) && (owned || !self.discards.has(range))
    }

    /// Returns the parts of the range where nothing is cached, and for how long.
    pub(crate) fn discarded(&self, range: PageRange) -> Vec<(PageRange, Duration)> {
        self.discards.within(range)
    }
}
