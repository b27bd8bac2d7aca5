//! Regions in use, and how regions go: leases, invalidation, and the way out that they share.

use super::{Core, Holders, Leavers, Leaving, Lookup, NobodyElse};
use crate::policy::{Deregistration, Policy};
use crate::range::PageRange;
use crate::regions::{MOST_LEASES, RegionId, State};

impl<P: Policy> Core<P> {
    /// A lease takes hold of a region: until it lets go, the region is no candidate for eviction.
    ///
    /// # Panics
    /// If no region has that name now.
    #[inline]
    pub fn hold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.state() != State::Vacant, "no region {id:?} is registered that could be held");
        let holds = region.holds();
        region.set_holds(holds + 1);
        if holds == 0 {
            self.held.add(region.pages());
        }
    }

    /// As [`Core::hold`], for a lease that may be forgotten: false, and nothing is done, if the region has as many as are counted.
    ///
    /// # Panics
    /// If no region has that name now.
    #[inline]
    pub(crate) fn try_hold(&mut self, id: RegionId) -> bool {
        let may = self.regions.get(id).holds() < MOST_LEASES;
        if may {
            self.hold(id);
        }
        may
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

    /// As [`Core::release`] where nothing can leave with the hold; false, and nothing is done, where something might.
    ///
    /// # Panics
    /// If the region is not held.
    #[inline]
    pub(crate) fn release_cached(&mut self, id: RegionId) -> bool {
        let cached = self.is_cached(id);
        if cached {
            self.unhold(id);
        }
        cached
    }

    /// Ends the hold of who registered a region that look-ups find from now on.
    ///
    /// # Panics
    /// If the region is not held, or not found.
    pub fn settle(&mut self, id: RegionId) {
        assert!(self.regions.get(id).state() == State::Cached, "{id:?} is cached");
        self.unhold(id);
    }

    /// Ends a hold; a region that was retired meanwhile joins the open batch with its last one.
    pub(super) fn let_lease_go(&mut self, id: RegionId) {
        self.unhold(id);
        let region = self.regions.get(id);
        if region.state() == State::Retired && !region.in_use() {
            self.let_go(id);
        }
    }

    #[inline]
    pub(super) fn unhold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is not held");
        let (holds, aside, cached) = (region.holds() - 1, region.aside(), region.state() == State::Cached);
        region.set_holds(holds);
        if holds > 0 {
            return;
        }
        self.held.remove(region.pages());
        if aside {
            self.bring_back(id);
        }
        if cached {
            self.policy.released(&mut self.regions, id);
        }
    }

    /// Retires every region that shares a page with the range: it is not found any more, and is
    /// deregistered now or, if held, with its last release. What is returned is to be deregistered, in one
    /// batch where the scheme deregisters in batches. Where matching is exact, every region is looked at.
    pub fn invalidate(&mut self, range: PageRange) -> &Leavers {
        self.invalidate_among(range, &mut NobodyElse)
    }

    /// As [`Core::invalidate`], with holders whom the core does not know.
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
    pub(crate) fn invalidate_regions(&mut self, regions: &mut Vec<RegionId>, holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        self.invalidate_touched(regions, holders);
        self.outcome.leaving_mut()
    }

    fn invalidate_touched(&mut self, touched: &mut Vec<RegionId>, holders: &mut impl Holders) {
        // A region that spans several blocks of the index was met in each. One with rights for peers can have the very pages
        // of one without: the name tells them apart, or neither would be dropped where it comes again.
        touched.sort_unstable_by_key(|&id| (self.regions.get(id).range(), id));
        touched.dedup();
        self.hold_back(touched, holders);
        for &id in touched.iter() {
            self.counters.invalidated += 1;
            self.counters.invalidated_pages = self.counters.invalidated_pages.saturating_add(self.regions.pages(id));
            self.retire(id);
        }
        self.close_batch();
    }

    /// Shows every region that look-ups find and that shares a page with the range, of any rights, some of
    /// them more than once. Allocates and frees nothing.
    pub fn for_each_overlap(&self, range: PageRange, mut found: impl FnMut(RegionId)) {
        for lookup in &self.lookups {
            match lookup {
                Lookup::Contain(index) => index.for_each_overlap(range, &self.regions, &mut found),
                Lookup::Layers(layers) => layers.for_each_overlap(range, &self.regions, &mut found),
                Lookup::Exact(regions) => {
                    regions.iter().filter(|(cached, _)| cached.overlaps(range)).for_each(|(_, &id)| found(id));
                }
            }
        }
    }

    /// Takes back a region whose registration failed. It counts as one that was tried and not as one that
    /// left.
    ///
    /// # Panics
    /// If anybody but the one who was to register it holds it.
    pub fn abandon(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.holds() == 1, "{id:?} is abandoned by the one who holds it, and by nobody else");
        self.counters.failed += 1;
        let pages = region.pages();
        if region.state() == State::Cached {
            if region.aside() {
                self.bring_back(id);
            }
            self.policy.remove(&mut self.regions, id);
            self.forget(id);
        }
        self.regions.get(id).set_holds(0);
        self.held.remove(pages);
        self.used.remove(pages);
        self.regions.remove(id);
    }

    /// Asks who holds what is to leave, and holds that too.
    pub(super) fn hold_back(&mut self, leaving: &[RegionId], holders: &mut impl Holders) {
        let mut met = std::mem::take(&mut self.met);
        met.clear();
        holders.hold_back(leaving, &mut met);
        met.iter().for_each(|&id| self.hold(id));
        self.met = met;
    }

    /// A region that is held is not to be found any more: it leaves with its last hold.
    ///
    /// # Panics
    /// If the region is not held.
    pub fn withdraw(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is held");
        if region.state() == State::Cached {
            self.retire(id);
        }
    }

    /// Takes a region out of policy and index; it leaves now, or when its last lease ends.
    pub(super) fn retire(&mut self, id: RegionId) {
        self.step_aside(id);
        self.leave_now_or_later(id);
    }

    /// Takes a region out of policy and index. It can still come back.
    pub(super) fn step_aside(&mut self, id: RegionId) {
        if self.regions.get(id).aside() {
            self.bring_back(id);
        }
        self.policy.remove(&mut self.regions, id);
        self.forget(id);
        self.regions.get(id).set_state(State::Retired);
    }

    /// Undoes [`Core::step_aside`]: the region is the one used last.
    pub(super) fn step_back(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        region.set_state(State::Cached);
        match &mut self.lookups[region.access().class()] {
            Lookup::Layers(layers) => layers.insert_again(id, &self.regions),
            Lookup::Contain(_) | Lookup::Exact(_) => self.enter(id),
        }
        self.policy.insert(&mut self.regions, id);
    }

    pub(super) fn leave_now_or_later(&mut self, id: RegionId) {
        if !self.regions.get(id).in_use() {
            self.let_go(id);
        }
    }

    #[cold]
    pub(super) fn bring_back(&mut self, id: RegionId) {
        self.regions.get(id).set_aside(false);
        self.policy.put_back(&mut self.regions, id);
    }

    /// Look-ups find the region.
    pub(super) fn enter(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        match &mut self.lookups[region.access().class()] {
            Lookup::Contain(index) => index.insert(id, &self.regions),
            Lookup::Layers(layers) => layers.insert(id, &self.regions),
            Lookup::Exact(regions) => _ = regions.insert(region.range(), id),
        }
    }

    /// Look-ups find the region no longer.
    pub(super) fn forget(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        match &mut self.lookups[region.access().class()] {
            Lookup::Contain(index) => index.remove(id, &self.regions),
            Lookup::Layers(layers) => layers.remove(id, &self.regions),
            Lookup::Exact(regions) => _ = regions.remove(&region.range()),
        }
    }

    /// The region joins the open batch of what is deregistered, and its slot is free.
    pub(super) fn let_go(&mut self, id: RegionId) {
        let range = self.regions.get(id).range();
        self.used.remove(range.pages());
        self.counters.deregs += 1;
        self.counters.dereg_pages = self.counters.dereg_pages.saturating_add(range.pages());
        self.regions.remove(id);
        self.outcome.leaving_mut().push(Leaving { region: id, range });
        if self.scheme.deregistration == Deregistration::Single {
            self.close_batch();
        }
    }

    pub(super) fn close_batch(&mut self) {
        if self.outcome.leaving_mut().close() {
            self.counters.dereg_batches += 1;
        }
    }
}
