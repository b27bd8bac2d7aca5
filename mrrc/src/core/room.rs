//! Making room for what is missing, and registering it: the second half of a request.

use super::plan::Plan;
use super::{AllInUse, Core, Lookup, Segment};
use crate::policy::{Granule, Need, Policy};
use crate::range::PageRange;
use crate::regions::{RegionId, State};

impl<P: Policy> Core<P> {
    /// Runs *full* until the pieces fit; the overlapping regions give way or are no candidates.
    pub(super) fn make_room(&mut self, asked: PageRange, plan: &Plan) -> Result<(), AllInUse> {
        let mut need = self.need(plan);
        if need.is_met() && !plan.replaces {
            return Ok(());
        }
        if !plan.replaces {
            plan.overlaps.iter().for_each(|&id| self.hold(id));
        }
        let replaced = self.replaced(plan);
        let can_leave = Need {
            pages: self.used.pages - self.held.pages - replaced.pages,
            regions: self.used.regions - self.held.regions - replaced.regions,
        };
        let mut enough = need.pages <= can_leave.pages && need.regions <= can_leave.regions;
        let error = AllInUse {
            asked,
            missing_pages: need.pages,
            missing_regions: need.regions,
            in_use_pages: self.held.pages,
            in_use_regions: self.held.regions,
        };
        if enough && plan.replaces {
            self.counters.merged += plan.overlaps.len() as u64;
            plan.overlaps.iter().for_each(|&id| self.retire(id));
        }
        let mut idle_runs = 0;
        while enough && !need.is_met() {
            let left = self.full(need);
            // A run can spend itself on setting regions in use aside; the next one does not meet them.
            idle_runs = if left == need { idle_runs + 1 } else { 0 };
            enough = idle_runs < 2;
            debug_assert!(enough, "the policy finds every region that is not in use");
            need = left;
        }
        self.close_batch();
        if !plan.replaces {
            plan.overlaps.iter().for_each(|&id| self.unhold(id));
        }
        if enough {
            Ok(())
        } else {
            self.counters.all_in_use += 1;
            Err(error)
        }
    }

    /// One run of *full*: a batch of victims leaves. Returns what is still needed.
    fn full(&mut self, mut need: Need) -> Need {
        self.policy.prepare(&mut self.regions);
        let mut goal = self.policy.goal(need);
        while !goal.is_met() {
            let Some(id) = self.policy.victim(&mut self.regions) else { break };
            let victim = self.regions.get(id);
            // Policies can come from outside, and what is held must stay whatever they say.
            assert!(
                victim.state() == State::Cached && !victim.in_use(),
                "the policy proposes {id:?}, which is in use or gone"
            );
            let pages = victim.pages();
            goal = goal.less(pages);
            need = need.less(pages);
            self.forget(id);
            self.let_go(id);
        }
        self.close_batch();
        need
    }

    /// Makes a region of each piece.
    pub(super) fn admit(&mut self, asked: PageRange, plan: &mut Plan) {
        self.count_registrations(plan);
        if plan.replaces {
            plan.overlaps.clear();
        }
        self.add_segments(asked, plan, true);
        self.counters.peak_pages = self.counters.peak_pages.max(self.used.pages);
    }

    fn add_region(&mut self, range: PageRange) -> RegionId {
        let id = self.regions.insert(range);
        match &mut self.lookup {
            Lookup::Contain(index) => index.insert(id, &self.regions),
            Lookup::Exact(regions) => _ = regions.insert(range, id),
        }
        self.used.add(range.pages());
        self.policy.insert(&mut self.regions, id);
        id
    }

    /// Registers what is missing for this request alone, and deregisters it in one batch.
    pub(super) fn register_for_request(&mut self, asked: PageRange, plan: &mut Plan) {
        plan.pieces.clear();
        if plan.replaces {
            // Nothing gives way to what is not kept: the request is registered as it is.
            plan.overlaps.clear();
            plan.pieces.push(asked);
        } else {
            plan.pieces.extend_from_slice(&plan.gaps);
        }
        plan.piece_total.pages = plan.pieces.iter().map(|piece| piece.pages()).sum();
        self.count_registrations(plan);
        let pages = plan.piece_total.pages;
        self.counters.deregs += self.registrations(plan);
        self.counters.dereg_pages = self.counters.dereg_pages.saturating_add(pages);
        self.counters.dereg_batches += 1;
        self.counters.peak_pages = self.counters.peak_pages.max(self.used.pages + pages);
        self.add_segments(asked, plan, false);
    }

    /// How many registrations a plan takes. Pages that become regions of their own are registered by runs.
    fn registrations(&self, plan: &Plan) -> u64 {
        let longest = match self.scheme.granule {
            Granule::Region | Granule::Page => self.max_region_pages,
            Granule::Bucket(pages) => pages,
        };
        let runs = if plan.replaces { &plan.pieces } else { &plan.gaps };
        runs.iter().map(|run| run.pages().div_ceil(longest)).sum()
    }

    fn count_registrations(&mut self, plan: &Plan) {
        self.counters.regs += self.registrations(plan);
        self.counters.reg_pages = self.counters.reg_pages.saturating_add(plan.piece_total.pages);
    }

    /// Fills in the segments in address order. `keep`: the pieces become regions.
    pub(super) fn add_segments(&mut self, asked: PageRange, plan: &Plan, keep: bool) {
        let mut pieces = plan.pieces.iter().copied().peekable();
        let add_piece = |core: &mut Self, range| {
            let region = keep.then(|| core.add_region(range));
            core.outcome.push(Segment::Gap { region, range });
        };
        for &region in &plan.overlaps {
            let covered = self.regions.get(region).range();
            while let Some(piece) = pieces.next_if(|piece| piece.start() < covered.start()) {
                add_piece(self, piece);
            }
            if let Some(range) = covered.intersection(asked) {
                self.outcome.push(Segment::Ready { region, range });
            }
        }
        for piece in pieces {
            add_piece(self, piece);
        }
    }
}
