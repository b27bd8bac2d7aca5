//! Making room for what is missing, and registering it: the second half of a request.

use super::plan::{Piece, Plan};
use super::{AllInUse, Ask, Core, Found, Holders, Leavers, Part};
use crate::policy::{Granule, Keeps, Need, Policy};
use crate::range::PageRange;
use crate::regions::{RegionId, State};

/// How often room is made anew for no request when victims turn out to be held.
const EVICT_ROUNDS: u32 = 4;
/// How many marks are told before victims are chosen, and how many victims stay for theirs, at most: the lock is held
/// meanwhile.
const MARKS: u64 = 4096;
/// Where many leave at once, so many for each: as much work as it is to register again what is used. A fixed number would
/// leave most marks of a large cache untold, and a large batch would take what is used along.
const MARKS_A_VICTIM: u64 = 64;

/// What is proposed to leave, in batches; nothing has left yet.
#[derive(Default)]
pub(super) struct Proposals {
    regions: Vec<RegionId>,
    /// Where each batch ends.
    ends: Vec<usize>,
}

impl<P: Policy> Core<P> {
    /// Runs *full* until the pieces fit; the overlapping regions give way or are no candidates.
    pub(super) fn make_room(
        &mut self,
        asked: PageRange,
        plan: &Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        if self.need(plan).is_met() && plan.replaced.is_empty() {
            return Ok(());
        }
        plan.overlaps.iter().for_each(|&id| self.hold(id));
        self.hold_back(&plan.replaced, holders);
        let need = self.need(plan);
        let replaced = self.replaced(plan);
        let can_leave = Need {
            pages: self.used.pages - self.held.pages - replaced.pages,
            regions: self.used.regions - self.held.regions - replaced.regions,
        };
        let mut enough = need.pages <= can_leave.pages && need.regions <= can_leave.regions;
        if enough {
            if !need.is_met() {
                self.policy.missed(&mut plan.pieces.iter().map(|piece| piece.range));
            }
            // What is replaced is no candidate, and goes only when there is room for what replaces it.
            let fits_beside = self.fits_beside(plan);
            plan.replaced.iter().for_each(|&id| self.step_aside(id));
            enough = self.full(need, plan, fits_beside, holders);
        }
        if enough {
            self.counters.upgraded += plan.short as u64;
            self.counters.merged += (plan.replaced.len() - plan.short - plan.crowded) as u64;
        } else {
            holders.stay(&plan.replaced);
        }
        self.close_batch();
        // Read when it is known who holds what.
        let in_use = self.held;
        plan.overlaps.iter().for_each(|&id| self.unhold(id));
        if enough {
            Ok(())
        } else {
            let error = self.refuse(asked, need);
            Err(AllInUse { in_use_pages: in_use.pages, in_use_regions: in_use.regions, ..error })
        }
    }

    /// A request that finds no room, with the figures as they are.
    pub(super) fn refuse(&mut self, asked: PageRange, need: Need) -> AllInUse {
        self.counters.all_in_use += 1;
        AllInUse {
            asked,
            missing_pages: need.pages,
            missing_regions: need.regions,
            in_use_pages: self.held.pages,
            in_use_regions: self.held.regions,
        }
    }

    /// Makes room, for no request, until so much is free or all that is left is in use; none under a policy that keeps
    /// regions forever. What is returned is to be deregistered.
    pub fn evict(&mut self, need: Need, holders: &mut impl Holders) -> &Leavers {
        self.outcome.leaving_mut().clear();
        // What turns out to be held is known to be the next time, so that the rest can go.
        for _ in 0..EVICT_ROUNDS {
            let free = Need {
                pages: need.pages.min(self.used.pages - self.held.pages),
                regions: need.regions.min(self.used.regions - self.held.regions),
            };
            if free.is_met() || self.full(free, &Plan::default(), false, holders) {
                break;
            }
        }
        self.outcome.leaving_mut()
    }

    /// As [`Core::evict`], but no more than that, whatever the policy lets leave at a time.
    pub fn evict_exactly(&mut self, need: Need, holders: &mut impl Holders) -> &Leavers {
        self.exact = true;
        self.evict(need, holders);
        self.exact = false;
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
        let can_leave =
            Need { pages: self.used.pages - self.held.pages, regions: self.used.regions - self.held.regions };
        if need.pages > can_leave.pages || need.regions > can_leave.regions {
            return Err(self.refuse(asked, need));
        }
        self.policy.missed(&mut std::iter::once(asked));
        let enough =
            if holders.are_none() { self.full_alone(need) } else { self.full(need, &Plan::default(), true, holders) };
        if enough { Ok(()) } else { Err(self.refuse(asked, need)) }
    }

    /// Runs of *full* where nobody else can hold what leaves, and so much can leave: whatever is proposed goes at once.
    fn full_alone(&mut self, mut need: Need) -> bool {
        let mut idle_runs = 0;
        while !need.is_met() && idle_runs < 2 {
            idle_runs += 1;
            self.policy.prepare(&mut self.regions);
            let mut goal = self.goal(need);
            while !goal.is_met() {
                let Some(id) = self.next_victim() else { break };
                let pages = self.regions.pages(id);
                (goal, need) = (goal.less(pages), need.less(pages));
                self.evict_one(id);
                idle_runs = 0;
            }
            self.close_batch();
        }
        debug_assert!(need.is_met(), "the policy finds every region that is not in use");
        need.is_met()
    }

    /// Runs of *full*: batches of victims leave until the need is met, and before them what the plan replaces, if it has
    /// no room beside that; or nothing does and all stays.
    fn full(&mut self, mut need: Need, plan: &Plan, fits_beside: bool, holders: &mut impl Holders) -> bool {
        let mut proposals = std::mem::take(&mut self.proposals);
        proposals.regions.clear();
        proposals.ends.clear();
        // Who keeps regions forever has none to propose, whatever they would be evicted for.
        let evicts = self.scheme.keeps != Keeps::Forever;
        let mut reprieves = 0;
        if evicts && !need.is_met() {
            reprieves = self.patience(need);
            self.met.clear();
            holders.touched(reprieves, &mut self.met);
            let touched = std::mem::take(&mut self.met);
            self.fold(touched.iter().copied());
            self.met = touched;
        }
        let mut idle_runs = 0;
        let mut met_runs = 0;
        let mut spared = Vec::new();
        let mut any_met = false;
        while evicts && !need.is_met() && idle_runs < 2 {
            let begun = proposals.regions.len();
            // Where much is in use, each run proposes twice as much as the last: few questions are asked.
            let more = |much: u64| much.saturating_mul(1 << met_runs);
            let more = Need { pages: more(need.pages), regions: more(need.regions) };
            self.propose(more, &mut proposals.regions);
            // A run can spend itself on setting regions in use aside; the next one does not meet them.
            idle_runs = if proposals.regions.len() == begun { idle_runs + 1 } else { 0 };
            self.hold_back(&proposals.regions[begun..], holders);
            let reprieves_before = reprieves;
            // Those that are held return to their place with the last release.
            self.met.iter().for_each(|&id| self.regions.get(id).set_aside(true));
            holders.stay(&self.met);
            // But what leaves is one batch, however much was proposed.
            let mut goal = self.goal(need);
            let mut kept = begun;
            for next in begun..proposals.regions.len() {
                if goal.is_met() {
                    self.take_back(&proposals.regions[next..], holders);
                    break;
                }
                let id = proposals.regions[next];
                if self.regions.get(id).in_use() {
                    continue;
                }
                let touches = if reprieves > 0 { holders.touches(id) } else { 0 };
                if touches > 0 {
                    // Not proposed again as long as there are others.
                    reprieves -= 1;
                    spared.push((id, touches));
                    holders.stay(&[id]);
                } else {
                    let pages = self.regions.pages(id);
                    (goal, need) = (goal.less(pages), need.less(pages));
                    proposals.regions[kept] = id;
                    kept += 1;
                }
            }
            proposals.regions.truncate(kept);
            any_met |= !self.met.is_empty();
            let any_stays = !self.met.is_empty() || reprieves < reprieves_before;
            met_runs = (met_runs + u32::from(any_stays)).min(16);
            proposals.ends.push(kept);
            if idle_runs == 2 && !spared.is_empty() {
                // There are no others: now those least worth keeping leave.
                self.spare(&mut spared);
                (reprieves, idle_runs, met_runs) = (0, 0, 0);
            }
        }
        let enough = need.is_met();
        if enough {
            self.part_with(plan, fits_beside);
            let mut begun = 0;
            for &end in &proposals.ends {
                for &id in &proposals.regions[begun..end] {
                    self.evict_one(id);
                }
                self.close_batch();
                begun = end;
            }
        } else {
            debug_assert!(any_met || !evicts, "the policy finds every region that is not in use");
            self.take_back(&proposals.regions, holders);
            plan.replaced.iter().for_each(|&id| self.step_back(id));
        }
        self.spare(&mut spared);
        self.proposals = proposals;
        enough
    }

    /// A victim leaves. The policy knows that.
    fn evict_one(&mut self, id: RegionId) {
        self.counters.evicted += 1;
        self.forget(id);
        self.let_go(id);
    }

    /// How much one run takes. Where pages are there and only regions are missing, a batch is the same share of the regions
    /// that it is of the pages otherwise: a tenth of the pages can be more than all that a full table of small
    /// regions holds.
    fn goal(&self, need: Need) -> Need {
        if self.exact {
            return need;
        }
        let goal = self.policy.goal(need);
        if need.pages > 0 {
            return goal;
        }
        let share = u128::from(goal.pages) * u128::from(self.max_regions) / u128::from(self.capacity.max(1));
        Need { pages: 0, regions: goal.regions.max(u64::try_from(share).unwrap_or(u64::MAX)) }
    }

    /// How many marks and reprieves making so much room may cost.
    fn patience(&self, need: Need) -> usize {
        let goal = self.goal(need);
        let pages_a_region = (self.used.pages / self.used.regions.max(1)).max(1);
        let victims = goal.pages.div_ceil(pages_a_region).max(goal.regions);
        usize::try_from(victims.saturating_mul(MARKS_A_VICTIM).max(MARKS)).unwrap_or(usize::MAX)
    }

    /// What was proposed and need not leave. What is in use stands aside and stays there.
    fn take_back(&mut self, proposed: &[RegionId], holders: &mut impl Holders) {
        // The last that left goes back first: so each finds its place.
        for &id in proposed.iter().rev() {
            if !self.regions.get(id).in_use() {
                self.policy.put_back(&mut self.regions, id);
            }
        }
        holders.stay(proposed);
    }

    /// Victims that were asked for since it was last told, and how often, move up instead.
    fn spare(&mut self, spared: &mut Vec<(RegionId, u32)>) {
        for (id, touches) in spared.drain(..) {
            self.policy.put_back(&mut self.regions, id);
            (0..touches).for_each(|_| self.touch(id));
        }
    }

    /// One run: the policy takes a batch of victims out of its order.
    fn propose(&mut self, need: Need, proposed: &mut Vec<RegionId>) {
        self.policy.prepare(&mut self.regions);
        let mut goal = self.goal(need);
        while !goal.is_met() {
            let Some(id) = self.next_victim() else { break };
            goal = goal.less(self.regions.pages(id));
            proposed.push(id);
        }
    }

    #[inline]
    fn next_victim(&mut self) -> Option<RegionId> {
        let id = self.policy.victim(&mut self.regions)?;
        let victim = self.regions.get(id);
        // Policies can come from outside, and what is held must stay whatever they say.
        assert!(
            victim.state() == State::Cached && !victim.in_use(),
            "the policy proposes {id:?}, which is in use or gone"
        );
        Some(id)
    }

    /// Makes a region of each piece.
    pub(super) fn admit(&mut self, asked: PageRange, plan: &Plan) {
        self.count_registrations(plan);
        self.add_parts(asked, plan, true);
        self.counters.peak_pages = self.counters.peak_pages.max(self.used.pages);
    }

    /// What is registered for one request is a region like others for the limits, and retired from the start:
    /// no look-up finds it, and it leaves with its first release. Whoever asked holds it at once.
    pub(super) fn register_aside(
        &mut self,
        ask: &Ask,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        let found = if plan.aside { plan.found } else { Found::Miss };
        plan.clear();
        self.cut_whole(ask, plan, ask.access);
        self.outcome.start(found);
        self.make_room(ask.range, plan, holders)?;
        self.count_registrations(plan);
        for &Piece { range, access } in &plan.pieces {
            let id = self.regions.insert_with(range, access);
            self.regions.get(id).set_state(State::Retired);
            self.used.add(range.pages());
            self.outcome.push(Part::Gap { region: Some(id), range, access });
        }
        self.counters.peak_pages = self.counters.peak_pages.max(self.used.pages);
        Ok(())
    }

    pub(super) fn add_region(&mut self, piece: Piece) -> RegionId {
        let id = self.regions.insert_with(piece.range, piece.access);
        self.enter(id);
        self.used.add(piece.range.pages());
        self.policy.insert(&mut self.regions, id);
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
        self.counters.peak_pages = self.counters.peak_pages.max(self.used.pages + pages);
        self.add_parts(asked, plan, false);
    }

    /// How many registrations a plan takes. Pages that become regions of their own are registered by runs.
    fn registrations(&self, plan: &Plan) -> u64 {
        let longest = match self.scheme.granule {
            Granule::Region | Granule::Page => self.max_region_pages,
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
                self.outcome.push(Part::Ready { region, range });
            }
        }
        for piece in pieces {
            add_piece(self, piece);
        }
    }
}
