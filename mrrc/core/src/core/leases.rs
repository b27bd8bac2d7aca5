//! Regions in use, and how regions go: leases, invalidation, and the way out that they share.

use super::{Core, Holders, Leavers, Leaving, NoHolders};
use crate::policy::{Deregistration, Policy};
use crate::range::PageRange;
use crate::regions::{RegionEvent, RegionId, RegionState};

impl<P: Policy> Core<P> {
    /// A lease takes hold of a region: until it lets go, the region is no candidate for eviction.
    ///
    /// # Panics
    /// If no region has that name now.
    #[inline]
    pub fn hold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.state() != RegionState::Absent, "no region {id:?} is registered that could be held");
        let holds = region.holds();
        region.set_holds(holds + 1);
        if holds == 0 {
            self.capacity.hold(region.pages());
        }
    }

    /// A lease lets go. A region that was retired meanwhile leaves with its last lease: it is in the
    /// batch that is returned, to be deregistered.
    ///
    /// # Panics
    /// If the region is not held.
    pub fn release(&mut self, id: RegionId) -> &Leavers {
        self.outcome.leaving_mut().clear();
        self.let_lease_go(id);
        self.close_batch();
        self.outcome.leaving_mut()
    }

    /// Ends a hold; a region that was retired meanwhile joins the open batch with its last one.
    pub(super) fn let_lease_go(&mut self, id: RegionId) {
        self.unhold(id);
        let region = self.regions.get(id);
        if region.state() == RegionState::Retired && !region.in_use() {
            self.let_go(id);
        }
    }

    #[inline]
    pub(super) fn unhold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is not held");
        let (holds, cached) = (region.holds() - 1, region.state() == RegionState::Cached);
        region.set_holds(holds);
        if holds > 0 {
            return;
        }
        self.capacity.release(region.pages());
        if cached {
            self.evictor.released(&mut self.regions, id);
        }
    }

    /// Retires every region that shares a page with the range: it is not found any more, and is
    /// deregistered now or, if held, with its last release. The returned regions are to be deregistered,
    /// in one batch where the scheme deregisters in batches. Where matching is exact, every region is
    /// looked at.
    pub fn invalidate(&mut self, range: PageRange) -> &Leavers {
        self.invalidate_among(range, &mut NoHolders)
    }

    /// As [`Core::invalidate`], with holders that the core does not know.
    pub fn invalidate_among(&mut self, range: PageRange, holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        let mut touched = std::mem::take(&mut self.plan.overlaps);
        touched.clear();
        self.for_each_overlap(range, |id| touched.push(id));
        self.invalidate_touched(&mut touched, holders);
        self.plan.overlaps = touched;
        self.outcome.leaving_mut()
    }

    /// As [`Core::invalidate_among`], for these regions, which look-ups find. The list is put in order.
    pub fn invalidate_regions(&mut self, regions: &mut Vec<RegionId>, holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        self.invalidate_touched(regions, holders);
        self.outcome.leaving_mut()
    }

    fn invalidate_touched(&mut self, touched: &mut Vec<RegionId>, holders: &mut impl Holders) {
        // A region that spans several blocks of the index was met in each. One with rights for peers can have the very pages
        // of one without: the name tells them apart, or neither would be dropped where it comes again.
        touched.sort_unstable_by_key(|&id| (self.regions.get(id).range(), id));
        touched.dedup();
        self.unpublish(touched, holders);
        for &id in touched.iter() {
            self.counters.invalidated += 1;
            self.counters.invalidated_pages = self.counters.invalidated_pages.saturating_add(self.regions.pages(id));
            self.retire(id);
        }
        self.close_batch();
    }

    /// Shows every region that look-ups find and that shares a page with the range, of any rights, some of
    /// them more than once. Allocates and frees nothing.
    pub fn for_each_overlap(&self, range: PageRange, found: impl FnMut(RegionId)) {
        self.lookup.for_each_overlap(range, &self.regions, found);
    }

    /// Takes back a region after its registration failed. It counts as one that was tried and not as one
    /// that left.
    ///
    /// # Panics
    /// If it is cached, or has a holder besides the request that was to register it.
    pub fn abandon(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.holds() == 1, "{id:?} is abandoned by the one who holds it, and by nobody else");
        self.counters.failed += 1;
        let pages = region.pages();
        assert!(region.state() != RegionState::Cached, "{id:?} is registered");
        if region.state() == RegionState::Registering {
            self.lookup.remove(id, &self.regions);
        }
        self.regions.get(id).set_holds(0);
        self.capacity.release(pages);
        self.capacity.remove(pages);
        self.regions.remove(id);
    }

    /// Asks for the holders of what is to leave, and holds that too.
    pub(super) fn unpublish(&mut self, leaving: &[RegionId], holders: &mut impl Holders) {
        self.evictor.find_held(leaving, holders);
        for nth in 0..self.evictor.held_victims().len() {
            self.hold(self.evictor.held_victims()[nth]);
        }
    }

    /// A region that is held is not to be found any more: it leaves with its last hold.
    ///
    /// # Panics
    /// If the region is not held.
    pub fn withdraw(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is held");
        if region.state() != RegionState::Retired {
            self.retire(id);
        }
    }

    /// Takes a region out of policy and index; it leaves now, or when its last lease ends.
    pub(super) fn retire(&mut self, id: RegionId) {
        self.detach(id);
        self.leave_now_or_later(id);
    }

    /// Takes a region out of policy and look-ups. It can still come back.
    pub(super) fn detach(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        if region.state() == RegionState::Cached {
            self.evictor.forget(&mut self.regions, id);
        }
        self.lookup.remove(id, &self.regions);
        self.regions.change(id, RegionEvent::Retired);
    }

    /// Undoes [`Core::detach`] of a cached region: it is the one used last.
    pub(super) fn reattach(&mut self, id: RegionId) {
        self.regions.change(id, RegionEvent::Kept);
        self.lookup.insert_again(id, &self.regions);
        self.evictor.admit(&mut self.regions, id);
    }

    pub(super) fn leave_now_or_later(&mut self, id: RegionId) {
        if !self.regions.get(id).in_use() {
            self.let_go(id);
        }
    }

    /// The region joins the open batch of what is deregistered, and its slot is free.
    #[inline]
    pub(super) fn let_go(&mut self, id: RegionId) {
        let range = self.regions.get(id).range();
        self.capacity.remove(range.pages());
        self.counters.deregs += 1;
        self.counters.dereg_pages = self.counters.dereg_pages.saturating_add(range.pages());
        self.regions.remove(id);
        self.outcome.leaving_mut().push(Leaving { region: id, range });
        if self.scheme.deregistration == Deregistration::Single {
            self.close_batch();
        }
    }

    #[inline]
    pub(super) fn close_batch(&mut self) {
        if self.outcome.leaving_mut().close() {
            self.counters.dereg_batches += 1;
        }
    }
}
