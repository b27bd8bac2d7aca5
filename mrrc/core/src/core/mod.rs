//! The request procedure: what the cache decides, without threads, clocks or memory.
//!
//! A [`Core`] takes a request and answers what is ready, what has to be registered and what has to be
//! deregistered first. Its driver does so, or only counts. Decisions are pure, effects live at the
//! edge: the simulator and the production cache run this code.
//!
//! The trip of a request, by the steps of the paper's Figure 4:
//!
//! 1. [`Core::request`] looks for a region that contains it: a hit, moved to the top.
//! 2. `survey` (in `plan.rs`) finds the regions that overlap it and the gaps between them, and moves the
//!    former to the top; `classify` counts the request.
//! 3. `make_room` (in `room.rs`) runs *full* until the gaps fit: the policy proposes victims in batches.
//! 4. `admit` makes a region of each gap.
//!
//! A request that overlaps nothing needs no plan: `request_anew` (in `anew.rs`) makes room and registers it.
//!
//! Regions that are held, invalidated or replaced go through `leases.rs`. Where each request is answered by one region,
//! regions may overlap: `one_key.rs` has the rules.

use crate::config::{Config, ConfigError, check_scheme};
use crate::cost::Linear;
use crate::index::IndexReader;
use crate::policy::{Granule, Keeps, Policy, Scheme};
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState, Regions};
use crate::units::{Amounts, Count};
use std::fmt;

mod anew;
mod capacity;
mod counters;
mod evictor;
mod group;
mod holders;
mod leases;
mod lookup;
mod one_key;
mod outcome;
mod plan;
mod publish;
mod room;

use crate::access::Access;
use capacity::Capacity;
use counters::SingleHits;
pub use counters::{Cost, Counters};
use evictor::Evictor;
pub use group::group_len;
pub use holders::{Holders, NoHolders, Request, Sharing};
use lookup::Lookup;
pub use outcome::{Found, Leavers, Leaving, Outcome, Part};
use plan::{Piece, Plan};

/// A request found no room: all that could have left is in use. Nothing was evicted for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {asked}: it lacks {}, and what is in use ({} in {}) cannot leave: release leases or raise the capacity",
    Amounts { pages: *missing_pages, regions: *missing_regions },
    Count(*in_use_pages, "pages"),
    Count(*in_use_regions, "regions")
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
    capacity: Capacity,
    evictor: Evictor<P>,
    scheme: Scheme,
    group_extra: f64,
    cost: Linear,
    single_hits: SingleHits,
    counters: Counters,
    outcome: Outcome,
    plan: Plan,
}

impl<P> fmt::Debug for Core<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("capacity", &self.capacity.limit().pages)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Pages and regions, added up.
#[derive(Clone, Copy, Debug, Default)]
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

impl Core {
    /// Returns a core with the policy that the configuration names.
    ///
    /// # Errors
    /// The findings of [`Config::check`].
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.check()?;
        Self::with_policy(config, config.policy.build(&config.params()))
    }
}

impl<P: Policy> Core<P> {
    /// Returns a core with a policy of its own type; [`Core::new`] takes that of the configuration.
    ///
    /// # Errors
    /// The findings of [`Config::check`].
    pub fn with_policy(config: &Config, policy: P) -> Result<Self, ConfigError> {
        config.check()?;
        let mut scheme = policy.scheme();
        scheme.overlap = config.overlap.unwrap_or(scheme.overlap);
        scheme.matching = config.matching.unwrap_or(scheme.matching);
        check_scheme(&scheme)?;
        let capacity = Capacity::new(config, &scheme);
        if let Granule::Bucket(pages) = &mut scheme.granule {
            // A bucket is registered whole, so it is no larger than a region can be.
            *pages = capacity.region_pages().min(*pages);
        }
        Ok(Self {
            regions: Regions::new(),
            lookup: Lookup::new(scheme.matching),
            capacity,
            evictor: Evictor::new(policy),
            scheme,
            group_extra: config.group_extra,
            cost: config.cost,
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
        self.outcome.hit(self.found_as(region, asked), Part::Ready { region, range: asked });
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

    /// Returns the cached region that contains the range, if there is one. Decides and counts nothing.
    #[inline(always)]
    pub fn find(&self, range: PageRange) -> Option<RegionId> {
        self.find_in(0, range)
    }

    #[inline(always)]
    fn find_in(&self, class: usize, range: PageRange) -> Option<RegionId> {
        self.lookup.find(class, range, &self.regions)
    }

    /// The same, by a region that grants the rights.
    #[inline(always)]
    fn find_granting(&self, class: usize, range: PageRange, access: Access) -> Option<RegionId> {
        self.lookup.find_granting(class, range, access, &self.regions)
    }

    /// Returns the cached region that contains the range and grants the rights. A region that peers have
    /// rights to serves its owner too.
    #[inline(always)]
    pub fn find_with(&self, range: PageRange, access: Access) -> Option<RegionId> {
        let found = self.find_granting(access.class(), range, access);
        let may_be_remote = found.is_none() && access.class() == 0 && !self.lookup.is_empty(1);
        if may_be_remote { self.find_granting(1, range, access) } else { found }
    }

    /// See [`Policy::max_touches`].
    pub fn max_touches(&self) -> u32 {
        self.evictor.max_touches()
    }

    /// Regions that were asked for without the core's knowledge move up, in this order.
    pub fn apply_touches(&mut self, touched: impl IntoIterator<Item = RegionId>) {
        for id in touched {
            self.touch(id);
        }
    }

    /// As [`Core::request`], with rights, and with holders that the core does not know.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held.
    pub fn request_with(&mut self, request: &Request, holders: &mut impl Holders) -> Result<&Outcome, AllInUse> {
        let Some(id) = self.find_for(request) else { return self.miss(request, holders) };
        if !request.again {
            self.single_hits.count(self.regions.pages(id) == request.range.pages(), request.range.pages());
        }
        self.touch(id);
        self.outcome.hit(self.found_as(id, request.range), self.part_of(id, request.range));
        Ok(&self.outcome)
    }

    #[inline]
    fn find_for(&self, request: &Request) -> Option<RegionId> {
        let found = match request.sharing {
            Sharing::All => self.find_with(request.range, request.access),
            Sharing::OwnClass => self.find_granting(request.access.class(), request.range, request.access),
            Sharing::Nothing => return None,
        };
        if found.is_none() && self.lookup.has_replacements() { self.find_replacement(request) } else { found }
    }

    fn found_as(&self, id: RegionId, asked: PageRange) -> Found {
        if self.regions.pages(id) == asked.pages() { Found::Exact } else { Found::Subset }
    }

    /// The part of a request that a region serves, now or once it is registered.
    #[inline]
    fn part_of(&self, region: RegionId, range: PageRange) -> Part {
        match self.regions.get(region).state() {
            RegionState::Registering => Part::Registering { region, range },
            _ => Part::Ready { region, range },
        }
    }

    /// A region was asked for. What is not cached is not in the policy's order.
    #[inline]
    fn touch(&mut self, id: RegionId) {
        self.evictor.touch(&mut self.regions, id);
    }

    #[inline(never)]
    fn request_missed(&mut self, asked: PageRange) -> Result<&Outcome, AllInUse> {
        self.miss(&Request::new(asked), &mut NoHolders)
    }

    fn miss(&mut self, request: &Request, holders: &mut impl Holders) -> Result<&Outcome, AllInUse> {
        if let Some(answer) = self.request_anew(request, holders) {
            self.debug_check_limits();
            return answer.map(|_| &self.outcome);
        }
        let mut plan = std::mem::take(&mut self.plan);
        let result = self.plan_and_execute(request, &mut plan, holders);
        self.plan = plan;
        self.debug_check_limits();
        result.map(|()| &self.outcome)
    }

    #[inline]
    fn debug_check_limits(&self) {
        debug_assert!(self.capacity.fits(Total::default()), "the limits hold after every request");
    }

    fn plan_and_execute(
        &mut self,
        request: &Request,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        if request.sharing == Sharing::Nothing {
            if !request.again {
                self.counters.missed(Found::Miss, 0, request.range.pages());
            }
            return self.register_aside(request, plan, holders);
        }
        let found = self.survey(request, self.wanted(request), plan);
        if !request.again {
            self.classify(request.range, plan);
        }
        self.execute(request, found, plan, holders)
    }

    /// Makes room and registers, or does so for this request alone.
    fn execute(
        &mut self,
        request: &Request,
        found: Found,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        if self.has_one_key() {
            return self.execute_one(request, found, plan, holders);
        }
        self.outcome.start(found);
        if plan.is_served() {
            self.add_parts(request.range, plan, false);
            return Ok(());
        }
        if self.scheme.keeps == Keeps::Nothing && !self.capacity.is_hard() {
            self.register_for_request(request.range, plan);
            return Ok(());
        }
        if !self.fits(plan) {
            if !self.capacity.is_hard() {
                self.counters.bypass += 1;
                self.outcome.set_bypass();
                self.register_for_request(request.range, plan);
                return Ok(());
            }
            if self.scheme.keeps == Keeps::Forever && !self.need(plan).is_met() {
                // Nothing is ever evicted, and nothing bypasses the limit.
                return Err(self.refuse(request.range, self.need(plan)));
            }
            self.take_over(request, plan);
        }
        if plan.aside {
            return self.register_aside(request, plan, holders);
        }
        if let Some(region) = self.in_the_way(plan) {
            self.outcome.push(Part::Registering { region, range: request.range });
            return Ok(());
        }
        let spans_more = self.capacity.is_hard() && plan.whole && plan.piece_total.pages > request.range.pages();
        match self.make_room(request.range, plan, holders) {
            Err(_) if spans_more => {
                // The merged region finds no room; by itself the range may.
                self.counters.all_in_use -= 1;
                self.take_over(request, plan);
                if plan.aside {
                    return self.register_aside(request, plan, holders);
                }
                self.make_room(request.range, plan, holders)?;
            }
            result => result?,
        }
        self.admit(request.range, plan);
        Ok(())
    }

    /// From now on the capacity is a hard limit, as a cache needs it that registers: what does not fit beside the
    /// regions that it overlaps takes their place, and everything that is registered is a region. Each gap is
    /// [registering](RegionState::Registering), and held once, until it is [published](Core::publish) or
    /// [abandoned](Core::abandon); what it replaces stays cached until then, if both fit. A request of more pages than the
    /// capacity must not be made then.
    pub fn limit_hard(&mut self) {
        self.capacity.set_hard();
    }

    /// The request that was just refused will be made again: it is not refused yet, and not counted so.
    pub fn take_back_refusal(&mut self) {
        self.counters.all_in_use -= 1;
    }

    /// Returns whether look-ups find the region: it is cached, or being registered.
    #[inline]
    pub fn is_found(&self, id: RegionId) -> bool {
        matches!(self.state_of(id), RegionState::Registering | RegionState::Cached)
    }

    /// Returns where a region is in its life. Names are used again: ask while the region is held.
    #[inline]
    pub fn state_of(&self, id: RegionId) -> RegionState {
        self.regions.find(id).map_or(RegionState::Absent, |region| region.state())
    }

    /// Returns the pages and the rights of a region.
    pub fn facts_of(&self, id: RegionId) -> (PageRange, Access) {
        let region = self.regions.get(id);
        (region.range(), region.access())
    }

    /// Returns the answer to the last request.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Readers that find candidates on other threads, by class. Where matching is exact they find nothing.
    pub fn share_index(&mut self) -> [IndexReader; 2] {
        self.lookup.share_index()
    }

    /// The same for the layers above the first, where regions may overlap; none where they may not.
    pub fn share_layers(&mut self) -> [Box<[IndexReader]>; 2] {
        self.lookup.share_layers()
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
        self.evictor.costs(&costs);
        Ok(())
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.counters.with(self.single_hits)
    }

    /// Returns the scheme beyond the choice of victims, with the configuration's own choices.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    #[cfg(test)]
    pub(crate) fn policy(&self) -> &P {
        self.evictor.policy()
    }

    /// `C`, in pages.
    pub fn capacity(&self) -> u64 {
        self.capacity.limit().pages
    }

    /// Pages registered: cached, or retired and still held.
    pub fn used_pages(&self) -> u64 {
        self.capacity.used().pages
    }

    /// Regions registered.
    pub fn used_regions(&self) -> u64 {
        self.capacity.used().regions
    }

    /// Pages that leases hold.
    pub fn held_pages(&self) -> u64 {
        self.capacity.held().pages
    }

    /// Returns the pages of a registered region, if there is one of that name now. Names are used again:
    /// ask while the region is held.
    pub fn range_of(&self, id: RegionId) -> Option<PageRange> {
        let region = self.regions.find(id)?;
        (region.state() != RegionState::Absent).then(|| region.range())
    }

    /// Every cached region, in no useful order.
    pub fn cached(&self) -> impl Iterator<Item = (RegionId, PageRange)> {
        self.regions
            .iter()
            .filter(|(_, region)| region.state() == RegionState::Cached)
            .map(|(id, region)| (id, region.range()))
    }

    /// Bytes allocated for regions, index and policy.
    pub fn memory(&self) -> usize {
        self.regions.memory() + self.lookup.memory() + self.evictor.memory()
    }
}
