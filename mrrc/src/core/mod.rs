//! The request procedure: what the cache decides, without threads, clocks or memory.
//!
//! A [`Core`] takes a request and answers what is ready, what has to be registered and what has to be
//! deregistered first; whoever drives it does so, or only counts. Decisions are pure, effects live at
//! the edge: the simulator and the production cache run this code.
//!
//! The trip of a request, by the steps of the paper's Figure 4:
//!
//! 1. [`Core::request`] looks for a region that contains it: a hit, moved to the top.
//! 2. `survey` (in `plan.rs`) finds the regions that overlap it and the gaps between them, and moves the
//!    former to the top; `classify` counts the request.
//! 3. `make_room` (in `room.rs`) runs *full* until the gaps fit: the policy proposes victims in batches.
//! 4. `admit` makes a region of each gap.
//!
//! A request that overlaps nothing needs no plan: `ask_anew` (in `anew.rs`) makes room and registers it.
//!
//! Regions that are held, invalidated or replaced go through `leases.rs`. Where each request is answered by one region,
//! regions may overlap: `one_key.rs` has the rules.

use crate::config::{Config, ConfigError};
use crate::cost::Linear;
use crate::count::{Amounts, Count};
use crate::index::{Index, IndexReader, Layers};
use crate::policy::{Granule, Keeps, Matching, Policy, Scheme};
use crate::range::PageRange;
use crate::regions::{RegionId, Regions, State};
use rustc_hash::FxHashMap;
use std::fmt;

mod anew;
mod counters;
mod group;
mod holders;
mod leases;
mod one_key;
mod outcome;
mod plan;
mod room;
mod yielding;

use crate::access::Access;
use counters::SingleHits;
pub use counters::{Cost, Counters};
pub(crate) use group::group_len;
pub use holders::{Ask, Holders, NobodyElse, Sharing};
pub use outcome::{Found, Leavers, Leaving, Outcome, Part, Yielding};
use plan::{Piece, Plan};
use room::Proposals;

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
    /// How ranges find their regions: those for local use, and those that peers have rights to.
    lookups: [Lookup; 2],
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
    proposals: Proposals,
    /// Of the regions last proposed, those that somebody holds.
    met: Vec<RegionId>,
    /// Whether what does not fit beside its overlaps is cached in their place, and not let bypass the limit.
    hard_limit: bool,
    /// Whether no more leaves than is needed.
    exact: bool,
}

impl<P> fmt::Debug for Core<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("capacity", &self.capacity)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// How a range finds its region.
enum Lookup {
    Contain(Index),
    /// Regions that may overlap: see `one_key.rs`.
    Layers(Box<Layers>),
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

impl<P: Policy> Core<P> {
    /// A core with a policy of its own type; [`Config::build`] chooses one by name.
    ///
    /// # Errors
    /// What [`Config::check`] finds.
    pub fn with_policy(config: &Config, policy: P) -> Result<Self, ConfigError> {
        config.check()?;
        let mut scheme = policy.scheme();
        scheme.overlap = config.overlap.unwrap_or(scheme.overlap);
        scheme.matching = config.matching.unwrap_or(scheme.matching);
        scheme.check()?;
        let max_region_pages = config.max_region_pages.unwrap_or(u64::MAX);
        if let Granule::Bucket(pages) = &mut scheme.granule {
            // A bucket is registered whole, so it is no larger than a region can be.
            *pages = max_region_pages.min(*pages);
        }
        let lookup = || match scheme.matching {
            Matching::Contain => Lookup::Contain(Index::new()),
            Matching::Exact => Lookup::Exact(FxHashMap::default()),
        };
        Ok(Self {
            regions: Regions::new(),
            lookups: [lookup(), lookup()],
            policy,
            scheme,
            // More than the address space is the address space; and totals cannot overflow.
            capacity: config.capacity.min(PageRange::EVERYTHING.pages()),
            max_regions: [config.max_regions, scheme.max_regions, Some(RegionId::MOST)]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(0),
            max_region_pages,
            group_extra: config.group_extra,
            cost: config.cost,
            used: Total::default(),
            held: Total::default(),
            single_hits: SingleHits::default(),
            counters: Counters::default(),
            outcome: Outcome::new(),
            plan: Plan::default(),
            proposals: Proposals::default(),
            met: Vec::new(),
            hard_limit: false,
            exact: false,
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

    /// The cached region that contains the range, if there is one. Decides and counts nothing.
    #[inline(always)]
    pub fn find(&self, range: PageRange) -> Option<RegionId> {
        self.find_in(0, range)
    }

    #[inline(always)]
    fn find_in(&self, class: usize, range: PageRange) -> Option<RegionId> {
        match &self.lookups[class] {
            Lookup::Contain(index) => index.find(range, &self.regions),
            Lookup::Layers(layers) => layers.find(range, &self.regions, |_| true),
            Lookup::Exact(regions) => regions.get(&range).copied(),
        }
    }

    /// The same, by a region that grants the rights.
    #[inline(always)]
    fn find_granting(&self, class: usize, range: PageRange, access: Access) -> Option<RegionId> {
        let grants = |&id: &RegionId| self.regions.get(id).access().contains(access);
        match &self.lookups[class] {
            Lookup::Layers(layers) => layers.find(range, &self.regions, |id| grants(&id)),
            _ => self.find_in(class, range).filter(grants),
        }
    }

    /// The cached region that contains the range and grants the rights. A region that peers have rights to
    /// serves its owner too.
    #[inline(always)]
    pub fn find_with(&self, range: PageRange, access: Access) -> Option<RegionId> {
        (access.class()..2).find_map(|class| self.find_granting(class, range, access))
    }

    /// As [`Core::hit`], by a region that grants the rights.
    #[inline(always)]
    pub(crate) fn hit_with(&mut self, asked: PageRange, access: Access) -> Option<RegionId> {
        let id = self.find_with(asked, access)?;
        self.single_hits.count(self.regions.pages(id) == asked.pages(), asked.pages());
        self.touch(id);
        Some(id)
    }

    /// See [`Policy::most_uses`].
    pub(crate) fn most_uses(&self) -> u32 {
        self.policy.most_uses()
    }

    /// Regions that were asked for without the core's knowledge move up, in this order.
    pub fn fold(&mut self, touched: impl IntoIterator<Item = RegionId>) {
        for id in touched {
            if self.regions.get(id).state() == State::Cached {
                self.touch(id);
            }
        }
    }

    /// As [`Core::request`], with rights, and with holders whom the core does not know.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held.
    pub fn ask(&mut self, ask: &Ask, holders: &mut impl Holders) -> Result<&Outcome, AllInUse> {
        let Some(id) = self.find_for(ask) else { return self.ask_missed(ask, holders) };
        if !ask.again {
            self.single_hits.count(self.regions.pages(id) == ask.range.pages(), ask.range.pages());
        }
        self.touch(id);
        self.outcome.hit(self.found_as(id, ask.range), Part::Ready { region: id, range: ask.range });
        Ok(&self.outcome)
    }

    #[inline]
    fn find_for(&self, ask: &Ask) -> Option<RegionId> {
        match ask.sharing {
            Sharing::All => self.find_with(ask.range, ask.access),
            Sharing::OwnClass => self.find_granting(ask.access.class(), ask.range, ask.access),
            Sharing::Nothing => None,
        }
    }

    fn found_as(&self, id: RegionId, asked: PageRange) -> Found {
        if self.regions.pages(id) == asked.pages() { Found::Exact } else { Found::Subset }
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
        self.ask_missed(&Ask::new(asked), &mut NobodyElse)
    }

    fn ask_missed(&mut self, ask: &Ask, holders: &mut impl Holders) -> Result<&Outcome, AllInUse> {
        if let Some(answer) = self.ask_anew(ask, holders) {
            self.debug_check_limits();
            return answer.map(|_| &self.outcome);
        }
        let mut plan = std::mem::take(&mut self.plan);
        let result = self.plan_and_execute(ask, &mut plan, holders);
        self.plan = plan;
        self.debug_check_limits();
        result.map(|()| &self.outcome)
    }

    #[inline]
    fn debug_check_limits(&self) {
        debug_assert!(
            self.used.pages <= self.capacity && self.used.regions <= self.max_regions,
            "the limits hold after every request"
        );
    }

    fn plan_and_execute(&mut self, ask: &Ask, plan: &mut Plan, holders: &mut impl Holders) -> Result<(), AllInUse> {
        if ask.sharing == Sharing::Nothing {
            if !ask.again {
                self.counters.missed(Found::Miss, 0, ask.range.pages());
            }
            return self.register_aside(ask, plan, holders);
        }
        let found = self.survey(ask, self.wanted(ask), plan);
        if !ask.again {
            self.classify(ask.range, plan);
        }
        self.execute(ask, found, plan, holders)
    }

    /// Makes room and registers, or does so for this request alone.
    fn execute(
        &mut self,
        ask: &Ask,
        found: Found,
        plan: &mut Plan,
        holders: &mut impl Holders,
    ) -> Result<(), AllInUse> {
        if self.has_one_key() {
            return self.execute_one(ask, found, plan, holders);
        }
        self.outcome.start(found);
        if plan.is_served() {
            self.add_parts(ask.range, plan, false);
            return Ok(());
        }
        if self.scheme.keeps == Keeps::Nothing && !self.hard_limit {
            self.register_for_request(ask.range, plan);
            return Ok(());
        }
        if !self.fits(plan) {
            if !self.hard_limit {
                self.counters.bypass += 1;
                self.outcome.set_bypass();
                self.register_for_request(ask.range, plan);
                return Ok(());
            }
            if self.scheme.keeps == Keeps::Forever && !self.need(plan).is_met() {
                // Nothing is ever evicted, and nothing bypasses the limit.
                return Err(self.refuse(ask.range, self.need(plan)));
            }
            self.take_over(ask, plan);
        }
        if plan.aside {
            return self.register_aside(ask, plan, holders);
        }
        let spans_more = self.hard_limit && plan.whole && plan.piece_total.pages > ask.range.pages();
        match self.make_room(ask.range, plan, holders) {
            Err(_) if spans_more => {
                // What it was to be merged with finds no room; by itself it may.
                self.counters.all_in_use -= 1;
                self.take_over(ask, plan);
                self.make_room(ask.range, plan, holders)?;
            }
            result => result?,
        }
        self.admit(ask.range, plan);
        Ok(())
    }

    /// From now on the capacity is a hard limit, as a cache needs it that registers: what does not fit beside the
    /// regions that it overlaps takes their place, everything that is registered is a region, and what gives way
    /// stands until its replacement does ([`Outcome::yielding`]). A request of more pages than the capacity must not be
    /// made then.
    pub fn limit_hard(&mut self) {
        self.hard_limit = true;
    }

    /// The request that was just refused will be made again: it is not refused yet, and not counted so.
    pub(crate) fn take_back_refusal(&mut self) {
        self.counters.all_in_use -= 1;
    }

    /// Whether look-ups find the region.
    pub(crate) fn is_cached(&self, id: RegionId) -> bool {
        self.regions.get(id).state() == State::Cached
    }

    /// The pages and the rights of a region.
    pub(crate) fn facts_of(&self, id: RegionId) -> (PageRange, Access) {
        let region = self.regions.get(id);
        (region.range(), region.access())
    }

    /// The answer to the last request.
    pub(crate) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Readers that find candidates on other threads, by class. Where matching is exact they find nothing.
    pub(crate) fn share_index(&mut self) -> [IndexReader; 2] {
        self.lookups.each_mut().map(|lookup| match lookup {
            Lookup::Contain(index) => index.share(),
            Lookup::Layers(layers) => layers.share().into_iter().next().unwrap_or_else(|| Index::new().share()),
            Lookup::Exact(_) => Index::new().share(),
        })
    }

    /// The same for the layers above the first, where regions may overlap; none where they may not.
    pub(crate) fn share_layers(&mut self) -> [Box<[IndexReader]>; 2] {
        self.lookups.each_mut().map(|lookup| match lookup {
            Lookup::Layers(layers) => layers.share().into_iter().skip(1).collect(),
            Lookup::Contain(_) | Lookup::Exact(_) => Box::default(),
        })
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

    #[cfg(test)]
    pub(crate) fn policy(&self) -> &P {
        &self.policy
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

    /// The pages of a registered region, if there is one of that name now. Names are used again: ask while
    /// the region is held.
    pub fn range_of(&self, id: RegionId) -> Option<PageRange> {
        let region = self.regions.find(id)?;
        (region.state() != State::Vacant).then(|| region.range())
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
        let lookup = |lookup: &Lookup| match lookup {
            Lookup::Contain(index) => index.memory(),
            Lookup::Layers(layers) => layers.memory(),
            Lookup::Exact(regions) => regions.capacity() * (size_of::<(PageRange, RegionId)>() + 1),
        };
        self.regions.memory() + self.lookups.iter().map(lookup).sum::<usize>() + self.policy.memory()
    }
}
