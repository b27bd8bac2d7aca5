//! The request procedure: what the cache decides, without threads, clocks or memory.
//!
//! A [`Core`] takes a request and answers what is ready, what has to be registered and what has to be
//! deregistered first. Its driver does so, or only counts. Decisions are pure, effects live at the
//! edge: the simulator and the production cache run this code.
//!
//! The trip of a request, by the steps of the paper's Figure 4:
//!
//! 1. [`Core::request`] looks for a region that contains it: a hit, moved to the top.
//! 2. `miss.rs` has the planner find the regions that overlap it and the gaps between them, moves the
//!    former to the top, and counts the request.
//! 3. `room.rs` runs *full* until the gaps fit: the policy proposes victims in batches.
//! 4. `register.rs` makes a region of each gap.
//!
//! `Contents` owns the regions, the look-ups, the totals and the policy, and keeps them in step. `Planner` owns the plan, which
//! it makes from a `View` of the contents. `miss.rs`, `room.rs`, `register.rs` and `publish.rs` carry plans out. A request
//! that overlaps nothing needs none. Where each request is answered by one region, regions may overlap:
//! `planner/one_key.rs` has the rules. A miss may register its neighbours as well: `planner/widening.rs`.

use crate::config::{Config, ConfigError, can_slice, can_widen, check_scheme};
use crate::cost::Linear;
use crate::index::IndexReader;
use crate::policy::{Granule, Matching, Need, Policy, Scheme};
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState};
use crate::units::{Amounts, Count};
use crate::widen::Widener;
use std::fmt;

mod capacity;
mod contents;
mod counters;
mod evictor;
mod group;
mod holders;
mod lookup;
mod miss;
mod outcome;
mod planner;
mod publish;
mod record;
mod register;
mod room;
#[cfg(test)]
mod tests;
mod view;

use crate::access::Access;
use capacity::{Capacity, Total};
use contents::Contents;
pub use counters::{Cost, Counters};
pub use group::group_len;
pub use holders::{Holders, NoHolders, Request, Sharing};
pub use outcome::{Found, Leavers, Leaving, Outcome, Part};
use planner::Planner;

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
    contents: Contents<P>,
    planner: Planner,
    group_extra: f64,
    cost: Linear,
}

impl<P> fmt::Debug for Core<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("capacity", &self.contents.view().capacity.limit().pages)
            .field("counters", &self.contents.record().counters())
            .finish_non_exhaustive()
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
        let mut scheme = config.scheme_of(&policy);
        scheme.widens = config.widen.unwrap_or(scheme.widens && can_widen(&scheme));
        check_scheme(&scheme)?;
        if config.slice_pages.is_some() && !can_slice(&scheme) {
            return Err(ConfigError::Slices);
        }
        let capacity = Capacity::new(config, &scheme);
        if let Granule::Bucket(pages) = &mut scheme.granule {
            // A bucket is registered whole, so it is no larger than a region can be.
            *pages = capacity.region_pages().min(*pages);
        }
        let widener = scheme.widens.then(|| {
            let mut widener = Widener::new(config.capacity, &config.cost);
            if config.widen_for_peers {
                widener.include_peers();
            }
            widener
        });
        Ok(Self {
            contents: Contents::new(policy, &scheme, capacity),
            planner: Planner::new(scheme, widener),
            group_extra: config.group_extra,
            cost: config.cost,
        })
    }

    // ---- Requests ------------------------------------------------------------------------------------

    /// Takes a request and decides.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held by leases.
    #[inline]
    pub fn request(&mut self, asked: PageRange) -> Result<&Outcome, AllInUse> {
        let Some(region) = self.hit(asked) else { return self.request_missed(asked) };
        self.contents.answer_ready(region, asked);
        Ok(self.outcome())
    }

    /// The first half of [`Core::request`]: counts and orders a request that one region serves, and
    /// leaves any other as if it had not been made.
    #[inline(always)]
    pub fn hit(&mut self, asked: PageRange) -> Option<RegionId> {
        let id = self.find(asked)?;
        self.contents.count_hit(id, asked);
        self.contents.touch(id);
        Some(id)
    }

    /// As [`Core::request`], with rights, and with holders that the core does not know.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held.
    pub fn request_with(&mut self, request: &Request, holders: &mut impl Holders) -> Result<&Outcome, AllInUse> {
        self.planner.begin_request();
        // A cache of many threads looks before it asks: mostly nothing overlaps what it asks for.
        let lone = miss::answer_lone(&mut self.contents, &mut self.planner, request, true, holders);
        if let Some(result) = lone {
            self.debug_check_limits();
            return result.map(|()| self.outcome());
        }
        let Some(id) = self.contents.view().find_for(request) else {
            let result = miss::answer_by_plan(&mut self.contents, &mut self.planner, request, holders);
            self.debug_check_limits();
            return result.map(|()| self.outcome());
        };
        if !request.again {
            self.contents.count_hit(id, request.range);
        }
        self.contents.touch(id);
        self.contents.answer_hit(id, request.range);
        Ok(self.outcome())
    }

    /// The second half of [`Core::request`]: takes a request that [`Core::hit`] has just not found.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held by leases.
    #[inline(never)]
    pub fn request_missed(&mut self, asked: PageRange) -> Result<&Outcome, AllInUse> {
        let Self { contents, planner, .. } = self;
        let request = Request { mapping: PageRange::EVERYTHING, ..Request::new(asked) };
        let lone = miss::answer_lone(contents, planner, &request, false, &mut NoHolders);
        let result = lone.unwrap_or_else(|| miss::answer_by_plan(contents, planner, &request, &mut NoHolders));
        self.debug_check_limits();
        result.map(|()| self.outcome())
    }

    #[inline]
    fn debug_check_limits(&self) {
        debug_assert!(self.contents.view().capacity.fits(Total::default()), "the limits hold after every request");
    }

    /// Returns the region to register for a request that overlaps nothing and that has room. It is held once. For any other
    /// request nothing is done or counted. Under a [hard limit](Core::limit_hard).
    pub fn request_lone(&mut self, request: &Request) -> Option<RegionId> {
        miss::hold_lone(&mut self.contents, &mut self.planner, request)
    }

    /// Asks for the span of a group. Each member is a request of its own for the counters; what is registered is
    /// the span.
    ///
    /// # Errors
    /// [`AllInUse`] when everything that could make room is held.
    pub fn request_group(
        &mut self,
        request: &Request,
        members: &[PageRange],
        holders: &mut impl Holders,
    ) -> Result<&Outcome, AllInUse> {
        let result = miss::answer_group(&mut self.contents, &mut self.planner, request, members, holders);
        result.map(|()| self.outcome())
    }

    /// Takes a request of several ranges. `answer` hears the outcome of each range, or of each group with
    /// the range that spans it; what lies between the members of a group was not asked for.
    ///
    /// The answer for one range is held until the list is done, so that no range makes room at
    /// another's cost. A range or group that finds no room does not stop the others. The returned
    /// regions were replaced by a later range of the same list, and are to be deregistered at the
    /// end.
    pub fn request_list(
        &mut self,
        asked: &[PageRange],
        answer: impl FnMut(PageRange, Result<&Outcome, AllInUse>),
    ) -> &Leavers {
        self.request_each(asked, None, answer)
    }

    /// As [`Core::request_list`], with rights. Ranges for local use may be widened into all pages around them.
    pub fn request_list_with(
        &mut self,
        asked: &[PageRange],
        access: Access,
        answer: impl FnMut(PageRange, Result<&Outcome, AllInUse>),
    ) -> &Leavers {
        self.request_each(asked, Some(access), answer)
    }

    fn request_each(
        &mut self,
        asked: &[PageRange],
        access: Option<Access>,
        mut answer: impl FnMut(PageRange, Result<&Outcome, AllInUse>),
    ) -> &Leavers {
        let mut held = Vec::new();
        let mut missed = Vec::new();
        // A region that spans a group serves no member that is matched exactly.
        let groups = self.scheme().groups && self.scheme().matching == Matching::Contain;
        for &range in asked {
            if groups && access.map_or_else(|| self.find(range), |access| self.find_with(range, access)).is_none() {
                missed.push(range);
            } else {
                answer(range, self.request_one(range, access));
                self.hold_answer(&mut held);
            }
        }
        missed.sort_unstable();
        let mut rest = &missed[..];
        let most_pages = self.capacity().min(self.contents.view().capacity.region_pages());
        while let [first, ..] = *rest {
            let (members, others) = rest.split_at(group_len(rest, &self.cost, self.group_extra, most_pages));
            rest = others;
            if let [_] = members {
                answer(first, self.request_one(first, access));
            } else {
                let span = members.iter().fold(first, |span, &member| span.hull(member));
                let exact = Request::new(span);
                let request = Request { access: access.unwrap_or(exact.access), ..exact };
                answer(span, self.request_group(&request, members, &mut NoHolders));
            }
            self.hold_answer(&mut held);
        }
        self.collect_leavers(|contents| held.into_iter().for_each(|id| contents.release(id)))
    }

    /// One range of a list.
    fn request_one(&mut self, range: PageRange, access: Option<Access>) -> Result<&Outcome, AllInUse> {
        match access {
            None => self.request(range),
            Some(access) => self.request_with(&Request::within_all(range, access), &mut NoHolders),
        }
    }

    fn hold_answer(&mut self, held: &mut Vec<RegionId>) {
        let first = held.len();
        held.extend(self.outcome().parts().iter().filter_map(Part::region));
        held[first..].iter().for_each(|&id| self.hold(id));
    }

    /// The request is refused before it was planned, because what is missing of it cannot be registered. Counts it.
    /// False, and nothing is counted, if nothing is missing.
    pub fn refuse_missing(&mut self, request: &Request, members: &[PageRange]) -> bool {
        miss::refuse_missing(&mut self.contents, &mut self.planner, request, members)
    }

    /// The request that was just refused will be made again: it is not refused yet, and not counted so.
    pub fn take_back_refusal(&mut self) {
        self.contents.record_mut().take_back_refusal();
    }

    /// Returns whether a region may have to leave before the request is served. A quick guess, which is no only where
    /// none has to.
    pub fn may_evict_for(&self, request: &Request) -> bool {
        self.planner.may_evict_for(self.contents.view(), request)
    }

    // ---- Uses and holds ------------------------------------------------------------------------------

    /// Regions that were asked for without the core's knowledge move up, in this order.
    pub fn apply_touches(&mut self, touched: impl IntoIterator<Item = RegionId>) {
        touched.into_iter().for_each(|id| self.contents.touch(id));
    }

    /// Learns from a request that the core did not answer itself, where it widens. Of its own it learns from the misses.
    #[inline]
    pub fn observe(&mut self, range: PageRange) {
        self.planner.observe(range);
    }

    /// Learns that memory changed, where it widens: what is registered there is of no use. [`Core::invalidate`] does so by itself.
    #[inline]
    pub fn observe_change(&mut self, range: PageRange) {
        self.planner.forget(self.contents.view(), range);
    }

    /// Learns that the registration of this widened gap failed, and would again: its surroundings stay exact for a while, longer each time.
    pub fn widening_failed(&mut self, gap: PageRange) {
        self.planner.refuse_widening(gap);
    }

    /// Learns that the surroundings of this gap cannot be registered just now: they stay exact for a few misses.
    pub fn pause_widening(&mut self, gap: PageRange) {
        self.planner.pause_widening(gap);
    }

    /// Learns whether any page of the [reach](Core::reach_of) of a request can be registered with it. Where none can, again and again, it
    /// returns a reach for few requests.
    pub fn note_surroundings(&mut self, range: PageRange, found: bool) {
        self.planner.look_around(range, found);
    }

    /// Returns the pages around a request that a widened registration may take. Those of them that can be registered are to be its
    /// [`Request::mapping`]. None where the request is registered as it is.
    #[inline]
    pub fn reach_of(&self, request: &Request) -> Option<PageRange> {
        self.planner.reach(self.contents.view(), request)
    }

    /// Returns the pages that the answer to the last [`Core::request_with`] registers beyond the request, by widening.
    #[inline]
    pub fn widened(&self) -> u64 {
        self.planner.plan().widened()
    }

    /// A lease takes hold of a region: until it lets go, the region is no candidate for eviction.
    ///
    /// # Panics
    /// If no region has that name now.
    #[inline]
    pub fn hold(&mut self, id: RegionId) {
        self.contents.hold(id);
    }

    /// A lease lets go. A region that was retired meanwhile leaves with its last lease: it is in the
    /// batch that is returned, to be deregistered.
    ///
    /// # Panics
    /// If the region is not held.
    pub fn release(&mut self, id: RegionId) -> &Leavers {
        self.collect_leavers(|contents| contents.release(id))
    }

    // ---- Registrations that end ----------------------------------------------------------------------

    /// These regions were registered: they are cached from now on, and their request's holds end. Those in their way, and
    /// those that they cover where regions may [overlap](Core::use_one_key), retire. The returned regions are to be
    /// deregistered.
    ///
    /// # Panics
    /// If one is not registering.
    #[inline]
    pub fn publish(&mut self, ids: &[RegionId], holders: &mut impl Holders) -> &Leavers {
        self.contents.record_mut().clear_leavers();
        publish::publish(&mut self.contents, &mut self.planner, ids, holders);
        self.contents.record().leavers()
    }

    /// As [`Core::publish`], of one region that has nothing in its way. Returns false, and does nothing, where something may be.
    #[inline]
    pub fn publish_lone(&mut self, id: RegionId) -> bool {
        let view = self.contents.view();
        let is_lone = !view.has_one_key() && !view.lookup.has_replacements();
        if is_lone {
            self.contents.publish(id);
        }
        is_lone
    }

    /// Takes back a region after its registration failed. It counts as one that was tried and not as one
    /// that left.
    ///
    /// # Panics
    /// If it is cached, or has a holder besides the request that was to register it.
    pub fn abandon(&mut self, id: RegionId) {
        self.contents.abandon(id);
    }

    // ---- Regions that leave --------------------------------------------------------------------------

    /// Makes room, for no request, until so much is free or all that is left is in use; none under a policy that keeps
    /// regions forever. The returned regions are to be deregistered.
    pub fn evict(&mut self, need: Need, holders: &mut impl Holders) -> &Leavers {
        self.collect_leavers(|contents| room::evict(contents, need, holders))
    }

    /// As [`Core::evict`], but no more than that, whatever the policy lets leave at a time.
    pub fn evict_exactly(&mut self, need: Need, holders: &mut impl Holders) -> &Leavers {
        self.contents.set_exact(true);
        self.evict(need, holders);
        self.contents.set_exact(false);
        self.contents.record().leavers()
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
        self.planner.forget(self.contents.view(), range);
        self.collect_leavers(|contents| contents.invalidate(range, holders))
    }

    /// As [`Core::invalidate_among`], for these regions, which look-ups find. The list is put in order.
    pub fn invalidate_regions(&mut self, regions: &mut Vec<RegionId>, holders: &mut impl Holders) -> &Leavers {
        self.collect_leavers(|contents| contents.invalidate_regions(regions, holders))
    }

    /// A region that is held is not to be found any more: it leaves with its last hold.
    ///
    /// # Panics
    /// If the region is not held.
    pub fn withdraw(&mut self, id: RegionId) {
        self.contents.withdraw(id);
    }

    /// Returns the regions that leave by an operation that answers no request.
    #[inline]
    fn collect_leavers(&mut self, operation: impl FnOnce(&mut Contents<P>)) -> &Leavers {
        self.contents.record_mut().clear_leavers();
        operation(&mut self.contents);
        self.contents.record_mut().close_batch();
        self.contents.record().leavers()
    }

    // ---- Settings ------------------------------------------------------------------------------------

    /// From now on the capacity is a hard limit, as a cache needs it that registers: what does not fit beside the
    /// regions that it overlaps takes their place, and everything that is registered is a region. Each gap is
    /// [registering](RegionState::Registering), and held once, until it is [published](Core::publish) or
    /// [abandoned](Core::abandon); what it replaces stays cached until then, if both fit. A request of more pages than the
    /// capacity must not be made then.
    pub fn limit_hard(&mut self) {
        self.contents.limit_hard();
    }

    /// From now on the capacity is a [hard limit](Core::limit_hard), and each request is answered by one region, whatever
    /// [`Request::max_segments`] says: cached regions may overlap. Before the first request. A policy that registers other ranges than those asked for
    /// (pages, buckets, unions) or matches them exactly goes on as before.
    pub fn use_one_key(&mut self) {
        self.limit_hard();
        if self.planner.allows_one_key() {
            self.contents.allow_overlaps();
            self.planner.begin_growth();
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
        self.contents.set_costs(&costs);
        self.planner.set_costs(&costs);
        Ok(())
    }

    /// Readers that find candidates on other threads, by class. Where matching is exact they find nothing.
    pub fn share_index(&mut self) -> [IndexReader; 2] {
        self.contents.share_index()
    }

    /// The same for the layers above the first, where regions may overlap; none where they may not.
    pub fn share_layers(&mut self) -> [Box<[IndexReader]>; 2] {
        self.contents.share_layers()
    }

    // ---- Questions -----------------------------------------------------------------------------------

    /// Returns the cached region that contains the range, if there is one. Decides and counts nothing.
    #[inline(always)]
    pub fn find(&self, range: PageRange) -> Option<RegionId> {
        self.contents.view().find_in(0, range)
    }

    /// Returns the cached region that contains the range and grants the rights. A region that peers have
    /// rights to serves its owner too.
    #[inline(always)]
    pub fn find_with(&self, range: PageRange, access: Access) -> Option<RegionId> {
        self.contents.view().find_with(range, access)
    }

    /// Shows every region that look-ups find and that shares a page with the range, of any rights, some of
    /// them more than once. Allocates and frees nothing.
    pub fn for_each_overlap(&self, range: PageRange, found: impl FnMut(RegionId)) {
        let view = self.contents.view();
        view.lookup.for_each_overlap(range, view.regions, found);
    }

    /// Returns whether look-ups find the region: it is cached, or being registered.
    #[inline]
    pub fn is_found(&self, id: RegionId) -> bool {
        matches!(self.state_of(id), RegionState::Registering | RegionState::Cached)
    }

    /// Returns where a region is in its life. Names are used again: ask while the region is held.
    #[inline]
    pub fn state_of(&self, id: RegionId) -> RegionState {
        self.contents.view().regions.find(id).map_or(RegionState::Absent, |region| region.state())
    }

    /// Returns the pages and the rights of a region.
    pub fn facts_of(&self, id: RegionId) -> (PageRange, Access) {
        let region = self.contents.view().regions.get(id);
        (region.range(), region.access())
    }

    /// Returns the pages of a registered region, if there is one of that name now. Names are used again:
    /// ask while the region is held.
    pub fn range_of(&self, id: RegionId) -> Option<PageRange> {
        let region = self.contents.view().regions.find(id)?;
        (region.state() != RegionState::Absent).then(|| region.range())
    }

    /// Every cached region, in no useful order.
    pub fn cached(&self) -> impl Iterator<Item = (RegionId, PageRange)> {
        let regions = self.contents.view().regions.iter();
        regions.filter(|(_, region)| region.state() == RegionState::Cached).map(|(id, region)| (id, region.range()))
    }

    /// Returns whether each request is answered by one region, and regions may overlap.
    #[inline]
    pub fn has_one_key(&self) -> bool {
        self.contents.view().has_one_key()
    }

    /// Returns the answer to the last request.
    #[inline]
    pub fn outcome(&self) -> &Outcome {
        self.contents.record().outcome()
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> Counters {
        self.contents.record().counters()
    }

    /// Returns the scheme beyond the choice of victims, with the configuration's own choices.
    pub fn scheme(&self) -> &Scheme {
        self.planner.scheme()
    }

    /// See [`Policy::max_touches`].
    pub fn max_touches(&self) -> u32 {
        self.contents.evictor().max_touches()
    }

    #[cfg(test)]
    pub(crate) fn policy(&self) -> &P {
        self.contents.evictor().policy()
    }

    /// `C`, in pages.
    pub fn capacity(&self) -> u64 {
        self.contents.view().capacity.limit().pages
    }

    /// Pages registered: cached, or retired and still held.
    pub fn used_pages(&self) -> u64 {
        self.contents.view().capacity.used().pages
    }

    /// Regions registered.
    pub fn used_regions(&self) -> u64 {
        self.contents.view().capacity.used().regions
    }

    /// Pages that leases hold.
    pub fn held_pages(&self) -> u64 {
        self.contents.view().capacity.held().pages
    }

    /// Bytes allocated for regions, index, policy, and what widening has learned.
    pub fn memory(&self) -> usize {
        self.contents.memory() + self.planner.memory()
    }
}
