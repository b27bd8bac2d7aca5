//! The request procedure: what the cache decides, without threads, clocks or memory.
//!
//! A [`Core`] takes a request and answers what is ready, what has to be registered and what has to be
//! deregistered first; whoever drives it does so, or only counts. `architecture.md` calls that "the
//! decisions are pure": the simulator and the production cache run this code.
//!
//! The trip of a request, by the steps of the paper's Figure 4:
//!
//! 1. [`Core::request`] looks for a region that contains it: a hit, moved to the top.
//! 2. `survey` finds the regions that overlap it and the gaps between them, and moves the former to
//!    the top; `classify` counts the request.
//! 3. `make_room` runs *full* until the gaps fit: the policy proposes victims in batches.
//! 4. `admit` makes a region of each gap.

use crate::config::{Config, ConfigError};
use crate::cost::Linear;
use crate::coverage;
use crate::index::Index;
use crate::policy::{Deregistration, Granule, Keeps, Matching, Need, Overlap, Policy, Scheme};
use crate::range::PageRange;
use crate::regions::{Region, RegionId, Regions, State};
use rustc_hash::FxHashMap;

mod counters;
mod group;
mod outcome;

use counters::SingleHits;
pub use counters::{Cost, Counters};
pub use outcome::{Found, Leavers, Leaving, Outcome, Segment};

/// A request found no room: all that could have left is in use. Nothing was evicted for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {asked}: {missing_pages} pages and {missing_regions} regions are missing, and what is in use \
     ({in_use_pages} pages in {in_use_regions} regions) cannot leave: release leases or raise the capacity"
)]
pub struct AllInUse {
    /// The request.
    pub asked: PageRange,
    /// Pages that would have had to leave.
    pub missing_pages: u64,
    /// Regions that would have had to leave.
    pub missing_regions: u64,
    /// Pages that cannot leave, the request's own overlaps among them.
    pub in_use_pages: u64,
    /// Regions that cannot leave.
    pub in_use_regions: u64,
}

/// The decisions of one cache. See the [module](self) and the [crate] for an example.
pub struct Core<P = Box<dyn Policy + Send>> {
    regions: Regions,
    lookup: Lookup,
    policy: P,
    scheme: Scheme,
    capacity: u64,
    max_regions: u64,
    max_region_pages: u64,
    group_extra: f64,
    cost: Linear,
    /// Registered: cached, or retired and still held.
    used: Total,
    /// Of these, what a lease holds.
    held: Total,
    single_hits: SingleHits,
    counters: Counters,
    outcome: Outcome,
    plan: Plan,
}

/// How a range finds its region.
enum Lookup {
    Contain(Index),
    Exact(FxHashMap<PageRange, RegionId>),
}

/// Pages and regions, added up.
#[derive(Clone, Copy, Default)]
struct Total {
    pages: u64,
    regions: u64,
}

impl Total {
    fn add(&mut self, pages: u64) {
        self.pages += pages;
        self.regions += 1;
    }

    fn remove(&mut self, pages: u64) {
        self.pages -= pages;
        self.regions -= 1;
    }
}

/// What a request that is no hit is made of. Kept to use its buffers again.
#[derive(Default)]
struct Plan {
    /// Cached regions that overlap the request, in address order.
    overlaps: Vec<RegionId>,
    /// What no region covers.
    gaps: Vec<PageRange>,
    /// What becomes a region each: the gaps, cut to size, or a hull.
    pieces: Vec<PageRange>,
    /// The overlapping regions and the pieces, added up.
    overlap_total: Total,
    piece_total: Total,
    /// Whether the overlapping regions give way.
    replaces: bool,
}

impl Plan {
    fn found(&self) -> Found {
        match (self.pieces.is_empty(), self.overlaps.is_empty()) {
            (true, _) => Found::Covered,
            (false, true) => Found::Miss,
            (false, false) => Found::Partial,
        }
    }
}

impl<P: Policy> Core<P> {
    /// A core with a policy of its own type; [`Config::build`] chooses one by name.
    ///
    /// # Errors
    /// What [`Config::check`] finds.
    pub fn with_policy(config: &Config, policy: P) -> Result<Self, ConfigError> {
        config.check()?;
        let mut scheme = policy.scheme();
        config.check_granule(scheme.granule)?;
        scheme.overlap = config.overlap.unwrap_or(scheme.overlap);
        scheme.matching = config.matching.unwrap_or(scheme.matching);
        let lookup = match scheme.matching {
            Matching::Contain => Lookup::Contain(Index::new()),
            Matching::Exact => Lookup::Exact(FxHashMap::default()),
        };
        Ok(Self {
            regions: Regions::new(),
            lookup,
            policy,
            scheme,
            // More than the address space is the address space; and totals cannot overflow.
            capacity: config.capacity.min(PageRange::EVERYTHING.pages()),
            max_regions: config.max_regions.unwrap_or(u64::MAX).min(scheme.max_regions.unwrap_or(u64::MAX)),
            max_region_pages: config.max_region_pages.unwrap_or(u64::MAX),
            group_extra: config.group_extra,
            cost: config.cost,
            used: Total::default(),
            held: Total::default(),
            single_hits: SingleHits::default(),
            counters: Counters::default(),
            outcome: Outcome::new(),
            plan: Plan::default(),
        })
    }

    /// Takes a request and decides.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held by leases.
    #[inline]
    pub fn request(&mut self, asked: PageRange) -> Result<&Outcome, AllInUse> {
        let Some(region) = self.hit(asked) else { return self.request_missed(asked) };
        let exact = self.regions.pages(region) == asked.pages();
        let found = if exact { Found::Exact } else { Found::Subset };
        self.outcome.hit(found, Segment::Ready { region, range: asked });
        Ok(&self.outcome)
    }

    /// The first half of [`Core::request`]: counts and orders a request that one region serves, and
    /// leaves any other as if it had not been made.
    #[inline(always)]
    pub fn hit(&mut self, asked: PageRange) -> Option<RegionId> {
        let id = self.find(asked)?;
        self.single_hits.count(self.regions.pages(id) == asked.pages(), asked.pages());
        self.touch(id);
        Some(id)
    }

    /// The cached region that contains the range, if there is one. Decides and counts nothing.
    #[inline(always)]
    pub fn find(&self, range: PageRange) -> Option<RegionId> {
        match &self.lookup {
            Lookup::Contain(index) => index.find(range, &self.regions),
            Lookup::Exact(regions) => regions.get(&range).copied(),
        }
    }

    #[inline]
    fn touch(&mut self, id: RegionId) {
        if self.regions.aside(id) {
            self.bring_back(id);
        }
        self.policy.touch(&mut self.regions, id);
    }

    #[inline(never)]
    fn request_missed(&mut self, asked: PageRange) -> Result<&Outcome, AllInUse> {
        let mut plan = std::mem::take(&mut self.plan);
        let result = self.plan_and_execute(asked, &mut plan);
        self.plan = plan;
        debug_assert!(
            self.used.pages <= self.capacity && self.used.regions <= self.max_regions,
            "the limits hold after every request"
        );
        result.map(|()| &self.outcome)
    }

    fn plan_and_execute(&mut self, asked: PageRange, plan: &mut Plan) -> Result<(), AllInUse> {
        let wanted = match self.scheme.granule {
            Granule::Bucket(pages) => asked.rounded_out(pages),
            Granule::Region | Granule::Page => asked,
        };
        let found = self.survey(asked, wanted, plan);
        self.classify(asked, plan);
        self.execute(asked, found, plan)
    }

    /// Finds what overlaps the request and what is missing of the pages wanted for it, and moves the
    /// overlapping regions to the top.
    fn survey(&mut self, asked: PageRange, wanted: PageRange, plan: &mut Plan) -> Found {
        plan.overlaps.clear();
        plan.gaps.clear();
        plan.pieces.clear();
        plan.overlap_total = Total::default();
        plan.piece_total = Total::default();
        plan.replaces = false;
        if let Lookup::Contain(index) = &self.lookup {
            index.overlaps(wanted, &self.regions, &mut plan.overlaps);
        }
        for &id in &plan.overlaps {
            plan.overlap_total.add(self.regions.pages(id));
            self.touch(id);
        }
        if plan.overlaps.is_empty() {
            plan.gaps.push(wanted);
        } else {
            let covered = plan.overlaps.iter().map(|&id| self.regions.get(id).range());
            coverage::gaps(wanted, covered, &mut plan.gaps);
        }
        self.cut_pieces(asked, plan);
        plan.pieces.iter().for_each(|piece| plan.piece_total.add(piece.pages()));
        plan.found()
    }

    /// Counts a request that was surveyed.
    fn classify(&mut self, asked: PageRange, plan: &Plan) {
        let parts = plan.overlaps.iter().filter_map(|&id| self.regions.get(id).range().intersection(asked));
        self.counters.missed(plan.found(), parts.map(PageRange::pages).sum(), asked.pages());
    }

    /// Makes room and registers, or does so for this request alone.
    fn execute(&mut self, asked: PageRange, found: Found, plan: &mut Plan) -> Result<(), AllInUse> {
        self.outcome.start(found);
        if found == Found::Covered {
            self.add_segments(asked, plan, false);
        } else if self.scheme.keeps == Keeps::Nothing {
            self.register_for_request(asked, plan);
        } else if !self.fits(plan) {
            self.counters.bypass += 1;
            self.outcome.set_bypass();
            self.register_for_request(asked, plan);
        } else {
            self.make_room(asked, plan)?;
            self.admit(asked, plan);
        }
        Ok(())
    }

    fn cut_pieces(&self, asked: PageRange, plan: &mut Plan) {
        if self.scheme.overlap != Overlap::Split && !plan.overlaps.is_empty() {
            let hull = plan.overlaps.iter().fold(asked, |hull, &id| hull.hull(self.regions.get(id).range()));
            let whole = if self.scheme.overlap == Overlap::Merge { hull } else { asked };
            // What one region cannot hold is split after all: merging it again and again is no use.
            if whole.pages() <= self.max_region_pages {
                plan.replaces = true;
                plan.pieces.push(whole);
                return;
            }
        }
        let longest = match self.scheme.granule {
            Granule::Region => self.max_region_pages,
            Granule::Page => 1,
            Granule::Bucket(pages) => pages.min(self.max_region_pages),
        };
        let pages: u64 = plan.gaps.iter().map(|gap| gap.pages()).sum();
        // What cannot be cached is not cut: there is no bound on the number of its pieces.
        let cacheable = plan.overlap_total.pages + pages <= self.capacity && self.scheme.keeps != Keeps::Nothing;
        for gap in &plan.gaps {
            if gap.pages() <= longest || !cacheable {
                plan.pieces.push(*gap);
            } else {
                plan.pieces.extend(gap.pieces(longest));
            }
        }
    }

    /// Whether the request can be cached beside all that it overlaps.
    fn fits(&self, plan: &Plan) -> bool {
        let kept = if plan.replaces { Total::default() } else { plan.overlap_total };
        let pages = kept.pages + plan.piece_total.pages;
        let regions = kept.regions + plan.piece_total.regions;
        let has_room = self.scheme.keeps != Keeps::Forever || self.need(plan).is_met();
        has_room && pages <= self.capacity && regions <= self.max_regions
    }

    /// What has to leave, besides what is replaced, before the pieces fit.
    fn need(&self, plan: &Plan) -> Need {
        let replaced = self.replaced(plan);
        let pages = self.used.pages - replaced.pages + plan.piece_total.pages;
        let regions = self.used.regions - replaced.regions + plan.piece_total.regions;
        Need { pages: pages.saturating_sub(self.capacity), regions: regions.saturating_sub(self.max_regions) }
    }

    /// What leaves at once because the request replaces it.
    fn replaced(&self, plan: &Plan) -> Total {
        let mut total = Total::default();
        if plan.replaces {
            let leaving = plan.overlaps.iter().map(|&id| self.regions.get(id)).filter(|region| !region.in_use());
            leaving.for_each(|region| total.add(region.pages()));
        }
        total
    }

    /// Runs *full* until the pieces fit; the overlapping regions give way or are no candidates.
    fn make_room(&mut self, asked: PageRange, plan: &Plan) -> Result<(), AllInUse> {
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
        while enough && !need.is_met() {
            self.policy.prepare(&mut self.regions);
            let mut goal = self.policy.goal(need);
            enough = false;
            while !goal.is_met() {
                let Some(id) = self.policy.victim(&mut self.regions) else { break };
                let pages = self.regions.get(id).pages();
                goal = goal.less(pages);
                need = need.less(pages);
                self.forget(id);
                self.let_go(id);
                enough = true;
            }
            debug_assert!(enough, "the policy finds every region that is not in use");
            self.close_batch();
        }
        self.close_batch();
        if !plan.replaces {
            plan.overlaps.iter().for_each(|&id| self.unhold(id));
        }
        if enough { Ok(()) } else { Err(error) }
    }

    /// Makes a region of each piece.
    fn admit(&mut self, asked: PageRange, plan: &mut Plan) {
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
    fn register_for_request(&mut self, asked: PageRange, plan: &mut Plan) {
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
            Granule::Bucket(pages) => pages.min(self.max_region_pages),
        };
        let runs = if plan.replaces { &plan.pieces } else { &plan.gaps };
        runs.iter().map(|run| run.pages().div_ceil(longest)).sum()
    }

    fn count_registrations(&mut self, plan: &Plan) {
        self.counters.regs += self.registrations(plan);
        self.counters.reg_pages = self.counters.reg_pages.saturating_add(plan.piece_total.pages);
    }

    /// Fills in the segments in address order. `keep`: the pieces become regions.
    fn add_segments(&mut self, asked: PageRange, plan: &Plan, keep: bool) {
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

    /// A lease takes hold of a region: until it lets go, the region is no candidate for eviction.
    ///
    /// # Panics
    /// If no region has that name now.
    pub fn hold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.state() != State::Vacant, "{id:?} is registered");
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
        self.unhold(id);
        let region = self.regions.get(id);
        if region.state() == State::Retired && !region.in_use() {
            self.let_go(id);
            self.close_batch();
        }
        self.outcome.leaving_mut()
    }

    fn unhold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is released as often as it was held");
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
    /// deregistered now or, if held, with its last release. What is returned is to be deregistered in
    /// one operation.
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
        if self.outcome.leaving_mut().close() {
            self.counters.dereg_batches += 1;
        }
        self.plan = plan;
        self.outcome.leaving_mut()
    }

    /// Takes a region out of policy and index; it leaves now, or when its last lease ends.
    fn retire(&mut self, id: RegionId) {
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
    fn bring_back(&mut self, id: RegionId) {
        self.regions.get(id).set_aside(false);
        self.policy.put_back(&mut self.regions, id);
    }

    /// Look-ups find the region no longer.
    fn forget(&mut self, id: RegionId) {
        match &mut self.lookup {
            Lookup::Contain(index) => index.remove(id, &self.regions),
            Lookup::Exact(regions) => _ = regions.remove(&self.regions.get(id).range()),
        }
    }

    /// The region joins the open batch of what is deregistered, and its slot is free.
    fn let_go(&mut self, id: RegionId) {
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

    fn close_batch(&mut self) {
        if self.outcome.leaving_mut().close() {
            self.counters.dereg_batches += 1;
        }
    }

    /// Registration costs this much from now on: grouping and policies that weigh cost go by it. A
    /// [`Fit`](crate::cost::Fit) learns it from what registrations take.
    ///
    /// # Errors
    /// [`ConfigError::Cost`] for a constant that is negative or not a number.
    pub fn set_costs(&mut self, costs: Linear) -> Result<(), ConfigError> {
        if !costs.is_valid() {
            return Err(ConfigError::Cost { cost: costs });
        }
        self.cost = costs;
        self.policy.costs(&costs);
        Ok(())
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters.with(self.single_hits)
    }

    /// What the scheme does besides choosing victims, with the configuration's own choices.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// `C`, in pages.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Pages registered: cached, or retired and still held.
    pub fn used_pages(&self) -> u64 {
        self.used.pages
    }

    /// Regions registered.
    pub fn used_regions(&self) -> u64 {
        self.used.regions
    }

    /// Pages that leases hold.
    pub fn held_pages(&self) -> u64 {
        self.held.pages
    }

    /// A registered region.
    pub fn region(&self, id: RegionId) -> Region<'_> {
        self.regions.get(id)
    }

    /// Every cached region, in no useful order.
    pub fn cached(&self) -> impl Iterator<Item = (RegionId, PageRange)> {
        self.regions
            .iter()
            .filter(|(_, region)| region.state() == State::Cached)
            .map(|(id, region)| (id, region.range()))
    }

    /// Bytes allocated for regions, index and policy.
    pub fn memory(&self) -> usize {
        let lookup = match &self.lookup {
            Lookup::Contain(index) => index.memory(),
            Lookup::Exact(regions) => regions.capacity() * (size_of::<(PageRange, RegionId)>() + 1),
        };
        self.regions.memory() + lookup + self.policy.memory()
    }
}
