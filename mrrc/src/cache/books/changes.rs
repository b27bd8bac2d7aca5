//! What becomes of memory, in the books: changes that monitors tell or that somebody announced, and where nothing is
//! cached for a while.

use super::{Books, Comeback, Desk, Entry, append};
use crate::invalidation::{Change, ChangeKind};
use crate::range::PageRange;
use crate::regions::RegionId;
use std::time::Instant;

/// Changes that a monitor can leave to be dealt with; more become one that touches everything.
pub(super) const CHANGES: usize = 64;
/// Ranges that are barred at a time; more become their hull.
pub(super) const BARRED: usize = 64;
impl<T> Books<T> {
    /// Deals with what monitors left.
    pub(in crate::cache) fn settle(&mut self, desk: Desk<'_, T>) {
        while let Some(change) = self.changes.pop() {
            self.invalidate(desk, change.range);
        }
    }

    /// Strikes out what stands or is pending in the range; what leases have stays registered until they end.
    pub(in crate::cache) fn invalidate(&mut self, desk: Desk<'_, T>, range: PageRange) {
        self.mark_stale(desk, range);
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.invalidate_among(range, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
    }

    /// Hides what is in the range. Allocates and frees nothing: monitors do this.
    pub(in crate::cache) fn mark_stale(&mut self, desk: Desk<'_, T>, range: PageRange) {
        let entries = &mut self.entries;
        let mut mark = |id: RegionId| {
            if let Some(entry) = entries.get_mut(id.index()) {
                match entry {
                    Entry::Vacant => {}
                    Entry::Pending { stale, .. } => *stale = true,
                    Entry::Standing { stale, .. } => {
                        *stale = true;
                        desk.records[id].hide();
                    }
                }
            }
        };
        self.core.for_each_overlap(range, &mut mark);
        let yielding = self.yielding.iter().map(Comeback::region);
        yielding.filter(|&id| desk.records[id].range().overlaps(range)).for_each(mark);
    }

    /// A monitor's change: hidden at once, dealt with by the next one who has the lock. Allocates nothing.
    pub(in crate::cache) fn note_change(&mut self, desk: Desk<'_, T>, change: Change, barred_until: Instant) {
        self.tally.changes += 1;
        self.mark_stale(desk, change.range);
        if self.changes.len() == CHANGES {
            self.changes.clear();
            self.mark_stale(desk, PageRange::EVERYTHING);
            self.changes.push(Change { range: PageRange::EVERYTHING, kind: ChangeKind::Gone });
        } else {
            self.changes.push(change);
        }
        if change.kind == ChangeKind::Discarding {
            self.bar(change.range, barred_until);
        }
    }

    /// Nothing is cached in the range until then. Allocates nothing.
    pub(in crate::cache) fn bar(&mut self, range: PageRange, until: Instant) {
        let now = Instant::now();
        self.barred.retain(|&(_, until)| until > now);
        if self.barred.len() == BARRED {
            let all = self.barred.iter().fold(range, |hull, &(barred, _)| hull.hull(barred));
            self.barred.clear();
            self.barred.push((all, until));
        } else {
            self.barred.push((range, until));
        }
    }

    /// The range is about to change, until [`Books::changed`]: nothing of it is found from now on, and nothing
    /// of it is cached that is planned meanwhile.
    pub(in crate::cache) fn change(&mut self, desk: Desk<'_, T>, range: PageRange) -> u64 {
        let change = self.next_change;
        self.next_change += 1;
        self.changing.push((change, range));
        self.invalidate(desk, range);
        change
    }

    /// The change is done.
    pub(in crate::cache) fn changed(&mut self, change: u64) {
        self.changing.retain(|&(number, _)| number != change);
    }

    /// Whether a change is under way somewhere in the range.
    pub(in crate::cache) fn is_changing(&self, range: PageRange) -> bool {
        self.changing.iter().any(|(_, changing)| changing.overlaps(range))
    }

    /// Whether a request is planned as usual: the cache is there, and nothing is changing or being discarded in the range.
    #[inline]
    pub(in crate::cache) fn is_quiet(&self, range: PageRange) -> bool {
        !self.closed && !self.is_changing(range) && !self.is_barred(range)
    }

    pub(in crate::cache) fn is_barred(&self, range: PageRange) -> bool {
        let mut over = self.barred.iter().filter(|(barred, _)| barred.overlaps(range)).peekable();
        over.peek().is_some() && {
            let now = Instant::now();
            over.any(|&(_, until)| until > now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::time::Duration;

    fn pages(start: u64) -> PageRange {
        PageRange::between(start, start + 1)
    }

    #[test]
    fn bars_that_are_too_many_to_remember_become_one_over_them_all() {
        let mut books = Books::<()>::new(Config::new(64).build().unwrap());
        let soon = Instant::now() + Duration::from_secs(3600);
        (0..BARRED as u64).for_each(|nth| books.bar(pages(10 * nth), soon));
        assert!(books.is_barred(pages(10)) && !books.is_barred(pages(11)));
        books.bar(pages(10_000), soon);
        assert_eq!(books.barred.len(), 1);
        assert!(books.is_barred(pages(0)) && books.is_barred(pages(11)) && books.is_barred(pages(10_000)));
        assert!(!books.is_barred(pages(10_001)));
    }

    #[test]
    fn a_bar_ends_by_itself_and_its_place_is_used_again() {
        let mut books = Books::<()>::new(Config::new(64).build().unwrap());
        (0..BARRED as u64).for_each(|nth| books.bar(pages(nth), Instant::now()));
        assert!(!books.is_barred(pages(1)));
        books.bar(pages(1), Instant::now() + Duration::from_secs(3600));
        assert!(books.is_barred(pages(1)) && !books.is_barred(pages(0)));
        assert_eq!(books.barred.len(), 1);
    }
}
