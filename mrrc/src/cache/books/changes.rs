//! What becomes of memory, in the books: changes that monitors tell or that somebody announced, and where nothing is
//! cached for a while.

use super::{Books, Desk, Entry, append};
use crate::invalidation::{Change, ChangeKind};
use crate::range::PageRange;
use crate::regions::RegionId;
use std::time::{Duration, Instant};

/// Regions that a monitor's change has hidden, and that still stand in the core. There is room for all regions, so that a
/// monitor, which may not allocate, can name each of them.
#[derive(Default)]
pub(super) struct Unsettled {
    regions: Vec<RegionId>,
    /// There was no room after all: regions that are hidden have to be searched for.
    is_partial: bool,
}

impl Unsettled {
    /// Makes room for so many regions.
    pub(super) fn make_room(&mut self, regions: usize) {
        self.regions.reserve(regions.saturating_sub(self.regions.len()));
    }

    /// Allocates nothing.
    fn add(&mut self, id: RegionId) {
        if self.regions.len() < self.regions.capacity() {
            self.regions.push(id);
        } else {
            debug_assert!(false, "there is room for every region");
            self.is_partial = true;
        }
    }

    fn is_empty(&self) -> bool {
        self.regions.is_empty() && !self.is_partial
    }
}

impl<T> Books<T> {
    /// Deals with what monitors left: the regions that they hid, in one batch.
    #[inline]
    pub(in crate::cache) fn settle(&mut self, desk: Desk<'_, T>) {
        if !self.unsettled.is_empty() {
            self.settle_hidden(desk);
        }
    }

    #[cold]
    fn settle_hidden(&mut self, desk: Desk<'_, T>) {
        let Unsettled { mut regions, is_partial } = std::mem::take(&mut self.unsettled);
        if is_partial {
            regions.clear();
            regions.extend((0..self.entries.len()).map(RegionId::of_index));
        }
        regions.retain(|&id| self.entry(id).is_stale() && self.core.is_cached(id));
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.invalidate_regions(&mut regions, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
        regions.clear();
        self.unsettled.regions = regions;
        self.unsettled.make_room(self.entries.len());
    }

    /// Strikes out what stands or is pending in the range; what leases have stays registered until they end.
    pub(in crate::cache) fn invalidate(&mut self, desk: Desk<'_, T>, range: PageRange) {
        self.hide(desk, range, |_, _| {});
        let mut leaving = std::mem::take(&mut self.leaving);
        let (core, mut leases) = self.parts(desk);
        append(core.invalidate_among(range, &mut leases).batches(), &mut leaving);
        self.leaving = leaving;
        self.collect(desk);
    }

    /// Hides what is in the range, and shows what was not hidden before. Allocates and frees nothing: monitors do this.
    fn hide(&mut self, desk: Desk<'_, T>, range: PageRange, mut hidden: impl FnMut(&mut Unsettled, RegionId)) {
        let Self { core, entries, yielding, unsettled, .. } = self;
        let mut hide = |id: RegionId| {
            let Some(entry) = entries.get_mut(id.index()) else { return };
            let is_new = match entry {
                Entry::Vacant => false,
                Entry::Pending { stale, .. } => !std::mem::replace(stale, true),
                Entry::Standing { stale, .. } => {
                    desk.records[id].hide();
                    !std::mem::replace(stale, true)
                }
            };
            if is_new {
                hidden(unsettled, id);
            }
        };
        core.for_each_overlap(range, &mut hide);
        yielding.near(range).filter(|&id| desk.records[id].range().overlaps(range)).for_each(hide);
    }

    /// A monitor's change: hidden at once, dealt with by the next one who has the lock. Allocates nothing.
    pub(in crate::cache) fn note_change(&mut self, desk: Desk<'_, T>, change: Change, now: Instant, until: Instant) {
        self.tally.changes += 1;
        self.hide(desk, change.range, Unsettled::add);
        if change.kind == ChangeKind::Discarding {
            self.discards.add(change.range, until, now);
        }
    }

    /// The range is about to change, until [`Books::changed`]: nothing of it is found from now on, and nothing
    /// of it is cached that is planned meanwhile.
    pub(in crate::cache) fn change(&mut self, desk: Desk<'_, T>, range: PageRange) -> u64 {
        let change = self.announced.begin(range);
        self.invalidate(desk, range);
        change
    }

    /// The change is done.
    pub(in crate::cache) fn changed(&mut self, change: u64) {
        self.announced.end(change);
    }

    /// Whether a change is under way somewhere in the range.
    pub(in crate::cache) fn is_changing(&self, range: PageRange) -> bool {
        self.announced.has(range)
    }

    /// Whether a request is planned as usual: the cache is there, and nothing is changing or being discarded in the range.
    #[inline]
    pub(in crate::cache) fn is_quiet(&self, range: PageRange) -> bool {
        !self.closed && !self.is_changing(range) && !self.is_barred(range)
    }

    pub(in crate::cache) fn is_barred(&self, range: PageRange) -> bool {
        self.discards.has(range)
    }

    /// Where in the range nothing is cached, and for how long.
    pub(in crate::cache) fn barred_for(&self, range: PageRange) -> Vec<(PageRange, Duration)> {
        self.discards.within(range)
    }
}
