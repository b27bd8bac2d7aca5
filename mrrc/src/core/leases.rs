//! Regions in use, and how regions go: leases, invalidation, and the way out that they share.

use super::{Core, Leavers, Leaving, Lookup};
use crate::policy::{Deregistration, Policy};
use crate::range::PageRange;
use crate::regions::{RegionId, State};

impl<P: Policy> Core<P> {
    /// A lease takes hold of a region: until it lets go, the region is no candidate for eviction.
    ///
    /// # Panics
    /// If no region has that name now.
    pub fn hold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.state() != State::Vacant, "no region {id:?} is registered that could be held");
        let holds = region.holds();
        region.set_holds(holds.checked_add(1).expect("fewer than four billion leases of a region"));
        if holds == 0 {
            self.held.add(region.pages());
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
        if region.state() == State::Retired && !region.in_use() {
            self.let_go(id);
        }
    }

    pub(super) fn unhold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is not held");
        region.set_holds(region.holds() - 1);
        if !region.in_use() {
            self.held.remove(region.pages());
            if region.aside() {
                self.bring_back(id);
            }
            if self.regions.get(id).state() == State::Cached {
                self.policy.released(&mut self.regions, id);
            }
        }
    }

    /// Retires every region that shares a page with the range: it is not found any more, and is
    /// deregistered now or, if held, with its last release. What is returned is to be deregistered, in one
    /// batch where the scheme deregisters in batches. Where matching is exact, every region is looked at.
    pub fn invalidate(&mut self, range: PageRange) -> &Leavers {
        self.outcome.leaving_mut().clear();
        let mut plan = std::mem::take(&mut self.plan);
        plan.overlaps.clear();
        match &self.lookup {
            Lookup::Contain(index) => index.overlaps(range, &self.regions, &mut plan.overlaps),
            Lookup::Exact(regions) => {
                plan.overlaps.extend(regions.iter().filter(|(cached, _)| cached.overlaps(range)).map(|(_, &id)| id));
                plan.overlaps.sort_unstable_by_key(|&id| self.regions.get(id).range());
            }
        }
        for &id in &plan.overlaps {
            self.counters.invalidated += 1;
            self.counters.invalidated_pages = self.counters.invalidated_pages.saturating_add(self.regions.pages(id));
            self.retire(id);
        }
        self.close_batch();
        self.plan = plan;
        self.outcome.leaving_mut()
    }

    /// Takes a region out of policy and index; it leaves now, or when its last lease ends.
    pub(super) fn retire(&mut self, id: RegionId) {
        if self.regions.get(id).aside() {
            self.bring_back(id);
        }
        self.policy.remove(&mut self.regions, id);
        self.forget(id);
        if self.regions.get(id).in_use() {
            self.regions.get(id).set_state(State::Retired);
        } else {
            self.let_go(id);
        }
    }

    #[cold]
    pub(super) fn bring_back(&mut self, id: RegionId) {
        self.regions.get(id).set_aside(false);
        self.policy.put_back(&mut self.regions, id);
    }

    /// Look-ups find the region no longer.
    pub(super) fn forget(&mut self, id: RegionId) {
        match &mut self.lookup {
            Lookup::Contain(index) => index.remove(id, &self.regions),
            Lookup::Exact(regions) => _ = regions.remove(&self.regions.get(id).range()),
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
