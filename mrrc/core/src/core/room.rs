//! Making room for what is missing, and registering it: the second half of a request.

use super::plan::{Piece, Plan};
use super::{AllInUse, Core, Found, Holders, Leavers, Part, Request};
use crate::policy::{Granule, Keeps, Need, Policy};
use crate::range::PageRange;
use crate::regions::{RegionEvent, RegionId, RegionState};

/// How often room is made anew for no request when victims turn out to be held.
const EVICT_ROUNDS: u32 = 4;
/// How many marks are told before victims are chosen, and how many victims stay for theirs, at most: the lock is held
/// meanwhile.
const MARKS: u64 = 4096;
/// The number of touches applied for each victim of a large batch: as much work as it is to register again what is used.
/// A fixed number would leave most marks of a large cache untold, and a large batch would take what is used along.
const MARKS_A_VICTIM: u64 = 64;

impl<P: Policy> Core<P> {
    /// Runs *full* until the pieces fit; the overlapping regions give way or are no candidates.
    pub(super) fn make_room(
        &mut self,
        asked: PageRange,
        plan: &Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        if self.need(plan).is_met() && (plan.replaced.is_empty() || self.stays_until_published(plan)) {
            return Ok(());
        }
        plan.overlaps.iter().for_each(|&id| self.hold(id));
        self.unpublish(&plan.replaced, holders);
        let need = self.need(plan);
        let replaced = self.replaced(plan);
        let unheld = self.capacity.unheld();
        let can_leave = Need { pages: unheld.pages - replaced.pages, regions: unheld.regions - replaced.regions };
        let mut enough = need.pages <= can_leave.pages && need.regions <= can_leave.regions;
        if enough {
            if !need.is_met() {
                self.evictor.missed(plan.pieces.iter().map(|piece| piece.range));
            }
            // A replaced region is no candidate, and goes only when there is room for what replaces it.
            for &id in &plan.replaced {
                if self.leaves_first(id) {
                    self.detach(id);
                }
            }
            enough = self.full(need, plan, holders);
        }
        if !enough {
            holders.republish(&plan.replaced);
        }
        self.close_batch();
        // Read when the holders are known.
        let in_use = self.capacity.held();
        plan.overlaps.iter().for_each(|&id| self.unhold(id));
        if enough {
            Ok(())
        } else {
            let error = self.refuse(asked, need);
            Err(AllInUse { in_use_pages: in_use.pages, in_use_regions: in_use.regions, ..error })
        }
    }

    /// Returns a request that finds no room, with the figures as they are.
    pub(super) fn refuse(&mut self, asked: PageRange, need: Need) -> AllInUse {
        self.counters.all_in_use += 1;
        AllInUse {
            asked,
            missing_pages: need.pages,
            missing_regions: need.regions,
            in_use_pages: self.capacity.held().pages,
            in_use_regions: self.capacity.held().regions,
        }
    }

    /// Makes room, for no request, until so much is free or all that is left is in use; none under a policy that keeps
    /// regions forever. The returned regions are to be deregistered.
    pub fn evict(&mut self, need: Need, holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        // A region that turns out to be held is known to be the next time, so that the rest can go.
        for _ in 0..EVICT_ROUNDS {
            let unheld = self.capacity.unheld();
            let free = Need { pages: need.pages.min(unheld.pages), regions: need.regions.min(unheld.regions) };
            if free.is_met() || self.full(free, &Plan::default(), holders) {
                break;
            }
        }
        self.outcome.leaving_mut()
    }

    /// As [`Core::evict`], but no more than that, whatever the policy lets leave at a time.
    pub fn evict_exactly(&mut self, need: Need, holders: &mut impl Holders) -> &Leavers {
        self.evictor.set_exact(true);
        self.evict(need, holders);
        self.evictor.set_exact(false);
        self.outcome.leaving_mut()
    }

    /// Makes room for a request that overlaps nothing.
    #[inline]
    pub(super) fn make_room_anew(
        &mut self,
        asked: PageRange,
        need: Need,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        if need.is_met() {
            return Ok(());
        }
        let can_leave = self.capacity.unheld();
        if need.pages > can_leave.pages || need.regions > can_leave.regions {
            return Err(self.refuse(asked, need));
        }
        self.evictor.missed(std::iter::once(asked));
        let enough =
            if holders.are_none() { self.full_alone(need) } else { self.full(need, &Plan::default(), holders) };
        if enough { Ok(()) } else { Err(self.refuse(asked, need)) }
    }

    /// Runs of *full* where no other can hold what leaves, and so much can leave: every proposal goes at once.
    fn full_alone(&mut self, mut need: Need) -> bool {
        let mut idle_runs = 0;
        while !need.is_met() && idle_runs < 2 {
            idle_runs += 1;
            self.evictor.prepare(&mut self.regions);
            let mut batch = self.batch_size(need);
            while !batch.is_met() {
                let Some(id) = self.evictor.victim(&mut self.regions) else { break };
                let pages = self.regions.pages(id);
                (batch, need) = (batch.less(pages), need.less(pages));
                self.evict_one(id);
                idle_runs = 0;
            }
            self.close_batch();
        }
        debug_assert!(need.is_met(), "the policy finds every region that is not in use");
        need.is_met()
    }

    /// Runs of *full*: batches of victims leave until the need is met, and before them what the plan replaces; or nothing
    /// does and all stays.
    fn full(&mut self, mut need: Need, plan: &Plan, holders: &mut impl Holders) -> bool {
        let mut victims = self.evictor.take_victims();
        // A policy that keeps regions forever has none to propose, for any need.
        let evicts = self.scheme.keeps != Keeps::Forever;
        let mut reprieves = 0;
        if evicts && !need.is_met() {
            reprieves = self.patience(need);
            self.evictor.apply_touches(&mut self.regions, reprieves, holders);
        }
        let mut idle_runs = 0;
        let mut met_runs = 0;
        let mut spared = Vec::new();
        let mut any_met = false;
        while evicts && !need.is_met() && idle_runs < 2 {
            let begun = victims.regions.len();
            // Where much is in use, each run proposes twice as much as the last: few questions are asked.
            let more = |much: u64| much.saturating_mul(1 << met_runs);
            let more = Need { pages: more(need.pages), regions: more(need.regions) };
            self.evictor.propose(&mut self.regions, more, self.capacity.limit(), &mut victims.regions);
            // A run can spend itself on setting regions in use aside; the next one does not meet them.
            idle_runs = if victims.regions.len() == begun { idle_runs + 1 } else { 0 };
            self.unpublish(&victims.regions[begun..], holders);
            let reprieves_before = reprieves;
            // Those that are held return to their place with the last release.
            let held = self.evictor.held_victims();
            held.iter().for_each(|&id| self.regions.get(id).set_aside(true));
            holders.republish(held);
            let any_held = !held.is_empty();
            // But what leaves is one batch, however much was proposed.
            let mut batch = self.batch_size(need);
            let mut kept = begun;
            for next in begun..victims.regions.len() {
                if batch.is_met() {
                    self.take_back(&victims.regions[next..], holders);
                    break;
                }
                let id = victims.regions[next];
                if self.regions.get(id).in_use() {
                    continue;
                }
                let touches = if reprieves > 0 { holders.touches(id) } else { 0 };
                if touches > 0 {
                    // Not proposed again as long as there are others.
                    reprieves -= 1;
                    spared.push((id, touches));
                    holders.republish(&[id]);
                } else {
                    let pages = self.regions.pages(id);
                    (batch, need) = (batch.less(pages), need.less(pages));
                    victims.regions[kept] = id;
                    kept += 1;
                }
            }
            victims.regions.truncate(kept);
            any_met |= any_held;
            let any_stays = any_held || reprieves < reprieves_before;
            met_runs = (met_runs + u32::from(any_stays)).min(16);
            victims.ends.push(kept);
            if idle_runs == 2 && !spared.is_empty() {
                // There are no others: now those least worth keeping leave.
                self.spare(&mut spared);
                (reprieves, idle_runs, met_runs) = (0, 0, 0);
            }
        }
        let enough = need.is_met();
        if enough {
            self.retire_replaced(plan, holders);
            let mut begun = 0;
            for &end in &victims.ends {
                for &id in &victims.regions[begun..end] {
                    self.evict_one(id);
                }
                self.close_batch();
                begun = end;
            }
        } else {
            debug_assert!(any_met || !evicts, "the policy finds every region that is not in use");
            self.take_back(&victims.regions, holders);
            for &id in &plan.replaced {
                if self.regions.get(id).state() == RegionState::Retired {
                    self.reattach(id);
                }
            }
        }
        self.spare(&mut spared);
        self.evictor.return_victims(victims);
        enough
    }

    /// Returns whether a region that is replaced leaves before its replacement is registered, where both do not fit.
    /// Under a hard limit one that leases hold stays until it is displaced: it takes no room that could be had.
    fn leaves_first(&self, id: RegionId) -> bool {
        !self.capacity.is_hard() || !self.regions.get(id).in_use()
    }

    /// Returns whether both what the plan replaces and what it registers fit, so that the former stays until the
    /// latter is published.
    fn stays_until_published(&self, plan: &Plan) -> bool {
        self.capacity.is_hard() && self.fits_beside(plan)
    }

    /// Lets detached regions that the plan replaces leave, now or with their last lease; the others stay.
    fn retire_replaced(&mut self, plan: &Plan, holders: &mut impl Holders) {
        let crowded_from = plan.replaced.len() - plan.crowded;
        for (nth, &id) in plan.replaced.iter().enumerate() {
            if self.regions.get(id).state() != RegionState::Retired {
                holders.republish(&[id]);
                continue;
            }
            if nth < plan.short {
                self.counters.upgraded += 1;
            } else if nth < crowded_from {
                self.counters.merged += 1;
            }
            self.leave_now_or_later(id);
        }
    }

    /// A victim leaves. The policy knows that.
    #[inline]
    fn evict_one(&mut self, id: RegionId) {
        self.counters.evicted += 1;
        self.lookup.remove(id, &self.regions);
        self.regions.change(id, RegionEvent::Retired);
        self.let_go(id);
    }

    /// Returns how much one run takes.
    fn batch_size(&self, need: Need) -> Need {
        self.evictor.batch_size(need, self.capacity.limit())
    }

    /// How many marks and reprieves making so much room may cost.
    fn patience(&self, need: Need) -> usize {
        let batch = self.batch_size(need);
        let used = self.capacity.used();
        let pages_a_region = (used.pages / used.regions.max(1)).max(1);
        let victims = batch.pages.div_ceil(pages_a_region).max(batch.regions);
        usize::try_from(victims.saturating_mul(MARKS_A_VICTIM).max(MARKS)).unwrap_or(usize::MAX)
    }

    /// Takes back the proposed regions that need not leave. Held regions stand aside and stay there.
    fn take_back(&mut self, proposed: &[RegionId], holders: &mut impl Holders) {
        // The last that left goes back first: so each finds its place.
        for &id in proposed.iter().rev() {
            if !self.regions.get(id).in_use() {
                self.evictor.reinsert(&mut self.regions, id);
            }
        }
        holders.republish(proposed);
    }

    /// Victims that were asked for since it was last told, and how often, move up instead.
    fn spare(&mut self, spared: &mut Vec<(RegionId, u32)>) {
        for (id, touches) in spared.drain(..) {
            self.evictor.reinsert(&mut self.regions, id);
            (0..touches).for_each(|_| self.touch(id));
        }
    }

    /// Makes a region of each piece.
    pub(super) fn admit(&mut self, asked: PageRange, plan: &Plan) {
        self.count_registrations(plan);
        self.add_parts(asked, plan, true);
        self.counters.peak_pages = self.counters.peak_pages.max(self.capacity.used().pages);
    }

    /// Registers regions for one request: they are regions like others for the limits, and retired from the
    /// start, so no look-up finds them, and they leave with their first release. Under a hard limit they are held for
    /// their registration.
    pub(super) fn register_aside(
        &mut self,
        request: &Request,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        let found = if plan.aside { plan.found } else { Found::Miss };
        plan.clear();
        self.cut_whole(request, plan, request.access);
        self.outcome.start(found);
        self.make_room(request.range, plan, holders)?;
        self.count_registrations(plan);
        for &Piece { range, access } in &plan.pieces {
            let id = self.regions.insert_with(range, access, RegionState::Retired);
            self.capacity.add(range.pages());
            if self.capacity.is_hard() {
                self.hold(id);
            }
            self.outcome.push(Part::Gap { region: Some(id), range, access });
        }
        self.counters.peak_pages = self.counters.peak_pages.max(self.capacity.used().pages);
        Ok(())
    }

    /// Makes a region of a piece. Under a hard limit it is registering, and held for that.
    fn add_region(&mut self, piece: Piece) -> RegionId {
        self.add_region_in_place(piece, false)
    }

    /// As [`Core::add_region`]. `is_free`: no region that look-ups find, or that takes one's place, is in its way.
    #[inline]
    pub(super) fn add_region_in_place(&mut self, piece: Piece, is_free: bool) -> RegionId {
        let pages = piece.range.pages();
        self.capacity.add(pages);
        if !self.capacity.is_hard() {
            let id = self.regions.insert_with(piece.range, piece.access, RegionState::Cached);
            self.lookup.insert(id, &self.regions);
            self.evictor.admit(&mut self.regions, id);
            return id;
        }
        let id = self.regions.insert_with(piece.range, piece.access, RegionState::Registering);
        self.regions.get(id).set_holds(1);
        self.capacity.hold(pages);
        if is_free {
            self.lookup.insert(id, &self.regions);
        } else {
            self.lookup.insert_registering(id, &self.regions);
        }
        id
    }

    /// Registers what is missing for this request alone, and deregisters it in one batch.
    pub(super) fn register_for_request(&mut self, asked: PageRange, plan: &mut Plan) {
        // Nothing gives way to what is not kept: the request is registered as it is.
        let whole = [asked];
        let ranges = if plan.whole { &whole[..] } else { &plan.gaps[..] };
        let access = plan.pieces.first().map_or(crate::Access::LOCAL_READ, |piece| piece.access);
        plan.pieces.clear();
        plan.pieces.extend(ranges.iter().map(|&range| Piece { range, access }));
        plan.piece_total.pages = plan.pieces.iter().map(|piece| piece.range.pages()).sum();
        self.count_registrations(plan);
        let pages = plan.piece_total.pages;
        self.counters.deregs += self.registrations(plan);
        self.counters.dereg_pages = self.counters.dereg_pages.saturating_add(pages);
        self.counters.dereg_batches += 1;
        self.counters.peak_pages = self.counters.peak_pages.max(self.capacity.used().pages + pages);
        self.add_parts(asked, plan, false);
    }

    /// How many registrations a plan takes. Pages that become regions of their own are registered by runs.
    fn registrations(&self, plan: &Plan) -> u64 {
        let longest = match self.scheme.granule {
            Granule::Region | Granule::Page => self.capacity.region_pages(),
            Granule::Bucket(pages) => pages,
        };
        if plan.whole || plan.short > 0 {
            plan.pieces.iter().map(|piece| piece.range.pages().div_ceil(longest)).sum()
        } else {
            plan.gaps.iter().map(|run| run.pages().div_ceil(longest)).sum()
        }
    }

    fn count_registrations(&mut self, plan: &Plan) {
        self.counters.regs += self.registrations(plan);
        self.counters.reg_pages = self.counters.reg_pages.saturating_add(plan.piece_total.pages);
    }

    /// Fills in the parts in address order. `keep`: the pieces become regions.
    pub(super) fn add_parts(&mut self, asked: PageRange, plan: &Plan, keep: bool) {
        let mut pieces = plan.pieces.iter().copied().peekable();
        let add_piece = |core: &mut Self, piece: Piece| {
            let region = keep.then(|| core.add_region(piece));
            core.outcome.push(Part::Gap { region, range: piece.range, access: piece.access });
        };
        for &region in &plan.overlaps {
            let covered = self.regions.get(region).range();
            while let Some(piece) = pieces.next_if(|piece| piece.range.start() < covered.start()) {
                add_piece(self, piece);
            }
            if let Some(range) = covered.intersection(asked) {
                self.outcome.push(self.part_of(region, range));
            }
        }
        for piece in pieces {
            add_piece(self, piece);
        }
    }
}
