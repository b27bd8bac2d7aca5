//! The regions of a cache: how they come, are held, and leave.

use super::capacity::Capacity;
use super::evictor::{Evictor, Victims};
use super::holders::Holders;
use super::lookup::Lookup;
use super::outcome::Part;
use super::record::Record;
use super::view::View;
use crate::access::Access;
use crate::cost::Linear;
use crate::index::IndexReader;
use crate::policy::{Deregistration, Keeps, Need, Policy, Scheme};
use crate::range::PageRange;
use crate::regions::{RegionEvent, RegionId, RegionState, Regions};

/// The regions, the look-ups, the totals and the policy, which it keeps in step. It does what was decided, and records that.
pub(super) struct Contents<P> {
    regions: Regions,
    lookup: Lookup,
    capacity: Capacity,
    evictor: Evictor<P>,
    record: Record,
    /// Whether regions leave to make room.
    evicts: bool,
    /// Whether each region is deregistered by itself.
    deregisters_singly: bool,
    /// The regions that an invalidation touches. Kept to use the buffer again.
    touched: Vec<RegionId>,
}

impl<P> Contents<P> {
    /// Returns what a decision needs to know.
    #[inline(always)]
    pub(super) fn view(&self) -> View<'_> {
        View { regions: &self.regions, lookup: &self.lookup, capacity: &self.capacity }
    }

    #[inline]
    pub(super) fn record(&self) -> &Record {
        &self.record
    }
}

impl<P: Policy> Contents<P> {
    pub(super) fn new(policy: P, scheme: &Scheme, capacity: Capacity) -> Self {
        Self {
            regions: Regions::within(usize::try_from(capacity.limit().regions).unwrap_or(usize::MAX)),
            lookup: Lookup::new(scheme.matching),
            capacity,
            evictor: Evictor::new(policy),
            record: Record::new(),
            evicts: scheme.keeps != Keeps::Forever,
            deregisters_singly: scheme.deregistration == Deregistration::Single,
            touched: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn record_mut(&mut self) -> &mut Record {
        &mut self.record
    }

    pub(super) fn evictor(&self) -> &Evictor<P> {
        &self.evictor
    }

    /// Makes the limits [hard](super::Core::limit_hard).
    pub(super) fn limit_hard(&mut self) {
        self.capacity.set_hard();
    }

    /// Lets published regions overlap. Before the first request.
    pub(super) fn allow_overlaps(&mut self) {
        debug_assert!(self.regions.is_empty(), "before the first request");
        self.lookup = Lookup::in_layers();
        self.capacity.forget_slices();
    }

    /// Returns readers of the look-ups for other threads: of the first layer, by class.
    pub(super) fn share_index(&mut self) -> [IndexReader; 2] {
        self.lookup.share_index()
    }

    /// Returns the same for the layers above the first.
    pub(super) fn share_layers(&mut self) -> [Box<[IndexReader]>; 2] {
        self.lookup.share_layers()
    }

    /// Tells the policy the costs from now on.
    pub(super) fn set_costs(&mut self, costs: &Linear) {
        self.evictor.costs(costs);
    }

    /// Returns the bytes allocated for regions, look-ups and policy.
    pub(super) fn memory(&self) -> usize {
        self.regions.memory() + self.lookup.memory() + self.evictor.memory()
    }

    // ---- Uses and holds ------------------------------------------------------------------------------

    /// Counts a request that a region serves.
    #[inline(always)]
    pub(super) fn count_hit(&mut self, id: RegionId, asked: PageRange) {
        self.record.count_hit(self.regions.pages(id) == asked.pages(), asked.pages());
    }

    /// Answers that a cached region serves the request.
    #[inline(always)]
    pub(super) fn answer_ready(&mut self, region: RegionId, range: PageRange) {
        let found = self.view().found_as(region, range);
        self.record.hit(found, Part::Ready { region, range });
    }

    /// Answers that a region serves the request, now or once it is registered.
    #[inline]
    pub(super) fn answer_hit(&mut self, id: RegionId, asked: PageRange) {
        let (found, part) = (self.view().found_as(id, asked), self.view().part_of(id, asked));
        self.record.hit(found, part);
    }

    /// Tells the policy that a region was asked for. One that is not cached is in no order.
    #[inline]
    pub(super) fn touch(&mut self, id: RegionId) {
        self.evictor.touch(&mut self.regions, id);
    }

    /// Holds a region: until it is released, it is no candidate for eviction.
    ///
    /// # Panics
    /// If no region has that name now.
    #[inline]
    pub(super) fn hold(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.state() != RegionState::Absent, "no region {id:?} is registered that could be held");
        let holds = region.holds();
        region.set_holds(holds + 1);
        if holds == 0 {
            self.capacity.hold(region.pages());
        }
    }

    /// Ends a hold of a region that stays.
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

    /// Ends a hold; a region that was retired meanwhile joins the open batch with its last one.
    pub(super) fn release(&mut self, id: RegionId) {
        self.unhold(id);
        let region = self.regions.get(id);
        if region.state() == RegionState::Retired && !region.in_use() {
            self.let_go(id);
        }
    }

    /// Asks for the holders of what is to leave, and holds that too.
    pub(super) fn unpublish(&mut self, leaving: &[RegionId], holders: &mut impl Holders) {
        self.evictor.find_held(leaving, holders);
        for nth in 0..self.evictor.held_victims().len() {
            self.hold(self.evictor.held_victims()[nth]);
        }
    }

    // ---- How regions come ----------------------------------------------------------------------------

    /// Makes a region, which is cached. Under a hard limit it is registering, and held for that. `is_free`: no region that
    /// look-ups find, or that takes one's place, is in its way.
    #[inline]
    pub(super) fn add(&mut self, range: PageRange, access: Access, is_free: bool) -> RegionId {
        let pages = range.pages();
        self.capacity.add(pages);
        if !self.capacity.is_hard() {
            let id = self.regions.insert_with(range, access, RegionState::Cached);
            self.lookup.insert(id, &self.regions);
            self.evictor.admit(&mut self.regions, id);
            return id;
        }
        let id = self.regions.insert_with(range, access, RegionState::Registering);
        self.regions.get(id).set_holds(1);
        self.capacity.hold(pages);
        if is_free {
            self.lookup.insert(id, &self.regions);
        } else {
            self.lookup.insert_registering(id, &self.regions);
        }
        id
    }

    /// Makes a region that no look-up finds. Under a hard limit it is held for its registration.
    pub(super) fn add_retired(&mut self, range: PageRange, access: Access) -> RegionId {
        let id = self.regions.insert_with(range, access, RegionState::Retired);
        self.capacity.add(range.pages());
        if self.capacity.is_hard() {
            self.hold(id);
        }
        id
    }

    /// Records how many pages are registered now, and so many more for a moment.
    #[inline]
    pub(super) fn record_peak(&mut self, more: u64) {
        self.record.count_pages_at_once(self.capacity.used().pages + more);
    }

    /// Caches a region that was registered, and ends the hold for that.
    #[inline]
    pub(super) fn publish(&mut self, id: RegionId) {
        self.regions.change(id, RegionEvent::Published);
        let region = self.regions.get(id);
        region.set_holds(region.holds() - 1);
        if region.holds() == 0 {
            self.capacity.release(region.pages());
        }
        self.evictor.admit(&mut self.regions, id);
    }

    /// Puts a replacement among the published regions. Nothing is in its way any more.
    pub(super) fn move_into_place(&mut self, id: RegionId) {
        if self.lookup.is_replacement(id, &self.regions) {
            self.lookup.remove(id, &self.regions);
            self.lookup.insert(id, &self.regions);
        }
    }

    /// Removes a region whose registration failed.
    ///
    /// # Panics
    /// If it is cached, or has a holder besides the request that was to register it.
    pub(super) fn abandon(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.holds() == 1, "{id:?} is abandoned by the one who holds it, and by nobody else");
        self.record.count_failure();
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

    // ---- How regions leave ---------------------------------------------------------------------------

    /// Retires every region that shares a page with the range.
    pub(super) fn invalidate(&mut self, range: PageRange, holders: &mut impl Holders) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.clear();
        self.lookup.for_each_overlap(range, &self.regions, |id| touched.push(id));
        self.invalidate_regions(&mut touched, holders);
        self.touched = touched;
    }

    /// Retires these regions, which look-ups find. The list is put in order.
    pub(super) fn invalidate_regions(&mut self, touched: &mut Vec<RegionId>, holders: &mut impl Holders) {
        // A region that spans several blocks of the index was met in each. One with rights for peers can have the very pages
        // of one without: the name tells them apart, or neither would be dropped where it comes again.
        touched.sort_unstable_by_key(|&id| (self.regions.get(id).range(), id));
        touched.dedup();
        self.unpublish(touched, holders);
        for &id in touched.iter() {
            self.record.count_invalidation(self.regions.pages(id));
            self.retire(id);
        }
    }

    /// Takes a region out of policy and look-ups; it leaves now, or when its last hold ends.
    pub(super) fn retire(&mut self, id: RegionId) {
        self.detach(id);
        self.leave_now_or_later(id);
    }

    /// Retires a region that is held: it leaves with its last hold.
    ///
    /// # Panics
    /// If the region is not held.
    pub(super) fn withdraw(&mut self, id: RegionId) {
        let region = self.regions.get(id);
        assert!(region.in_use(), "{id:?} is held");
        if region.state() != RegionState::Retired {
            self.retire(id);
        }
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

    /// Undoes [`Contents::detach`] of a cached region: it is the one used last.
    pub(super) fn reattach(&mut self, id: RegionId) {
        self.regions.change(id, RegionEvent::Kept);
        self.lookup.insert_again(id, &self.regions);
        self.evictor.admit(&mut self.regions, id);
    }

    /// Lets a detached region leave: now, or when its last hold ends.
    pub(super) fn leave_now_or_later(&mut self, id: RegionId) {
        if !self.regions.get(id).in_use() {
            self.let_go(id);
        }
    }

    /// Retires a victim, which leaves now. The policy knows that.
    #[inline]
    pub(super) fn evict(&mut self, id: RegionId) {
        self.record.count_eviction();
        self.lookup.remove(id, &self.regions);
        self.regions.change(id, RegionEvent::Retired);
        self.let_go(id);
    }

    /// The region joins the open batch of what is deregistered, and its slot is free.
    #[inline]
    fn let_go(&mut self, id: RegionId) {
        let range = self.regions.get(id).range();
        self.capacity.remove(range.pages());
        self.regions.remove(id);
        self.record.leave(id, range);
        if self.deregisters_singly {
            self.record.close_batch();
        }
    }

    // ---- The choice of victims -----------------------------------------------------------------------

    /// Returns whether regions leave to make room.
    pub(super) fn evicts(&self) -> bool {
        self.evicts
    }

    /// Sets whether no more leaves at a time than is needed.
    pub(super) fn set_exact(&mut self, exact: bool) {
        self.evictor.set_exact(exact);
    }

    /// Tells the policy that these ranges are about to be registered, and that victims leave for them.
    pub(super) fn expect(&mut self, ranges: impl Iterator<Item = PageRange>) {
        self.evictor.missed(ranges);
    }

    /// Returns how much one run takes.
    pub(super) fn batch_size(&self, need: Need) -> Need {
        self.evictor.batch_size(need, self.capacity.limit())
    }

    /// Begins a run of single victims.
    pub(super) fn begin_run(&mut self) {
        self.evictor.prepare(&mut self.regions);
    }

    /// Takes the next victim out of the order.
    #[inline]
    pub(super) fn victim(&mut self) -> Option<RegionId> {
        self.evictor.victim(&mut self.regions)
    }

    /// Runs once: appends a batch of victims, taken out of the order.
    pub(super) fn propose(&mut self, need: Need, proposed: &mut Vec<RegionId>) {
        self.evictor.propose(&mut self.regions, need, self.capacity.limit(), proposed);
    }

    /// Sets the victims that turned out to be held aside: they return to their place with the last release.
    pub(super) fn set_held_aside(&mut self) -> &[RegionId] {
        let held = self.evictor.held_victims();
        held.iter().for_each(|&id| self.regions.get(id).set_aside(true));
        held
    }

    /// Puts a victim that stays back into the order.
    pub(super) fn reinsert(&mut self, id: RegionId) {
        self.evictor.reinsert(&mut self.regions, id);
    }

    /// Touches about so many regions that were asked for without the core's knowledge.
    pub(super) fn apply_touches(&mut self, most: usize, holders: &mut impl Holders) {
        self.evictor.apply_touches(&mut self.regions, most, holders);
    }

    /// Lends an empty list of victims; to be returned.
    pub(super) fn take_victims(&mut self) -> Victims {
        self.evictor.take_victims()
    }

    pub(super) fn return_victims(&mut self, victims: Victims) {
        self.evictor.return_victims(victims);
    }
}
