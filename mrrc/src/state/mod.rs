//! The state that the cache's lock protects: the decisions, and the parts that carry them out.
//!
//! Nothing here blocks, registers or deregisters. Each part owns its fields; [`CacheState`] has the operations that take
//! several of them. A region's way:
//!
//! ```text
//! absent ──► registering ──► cached ──► retired ──► pending deregistration ──► deregistering ──► absent
//!               │   └──────────────────────▲                  ▲                       │
//!               └─ abandoned     for one lease                └─ refused, tried again ┘
//! ```

mod change_log;
mod dead_pins;
mod holders;
mod in_flight;
mod lease_holds;
pub(crate) mod listener;
#[cfg(all(test, loom))]
mod loom_tests;
mod occupancy;
mod pace;
mod reclaimer;
pub(crate) mod shared;
pub(crate) mod stats;
mod unheld;

pub(crate) use in_flight::{Entry, Gone, InFlight, Wakes};
pub(crate) use reclaimer::{Batch, IDLE, PendingUnmap, Reclaimer, of_batch};

use crate::core::{Core, Leaving};
use crate::error::Obstacle;
use crate::footprint::Footprint;
use crate::hit::HitTables;
use crate::invalidation::{Change, ChangeKind};
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registered;
use crate::unheld_limit::UnheldLimit;
use change_log::ChangeLog;
use holders::Leases;
use lease_holds::LeaseHolds;
use occupancy::Occupancy;
use stats::Stats;
use std::time::{Duration, Instant};
use unheld::{Looks, Seen};

/// The state of a cache. Owns the decisions ([`Core`]) and the parts that carry them out, and takes what leaves the core to
/// the [`Reclaimer`].
pub(crate) struct CacheState<T> {
    pub(crate) core: Core,
    pub(crate) in_flight: InFlight,
    pub(crate) reclaimer: Reclaimer<T>,
    pub(crate) lease_holds: LeaseHolds,
    pub(crate) changes: ChangeLog,
    pub(crate) occupancy: Occupancy,
    pub(crate) stats: Stats,
    unheld: Looks,
    /// The group with the next marks to hand over.
    next_group: usize,
    /// The cache is gone: nothing new is registered.
    pub(crate) closed: bool,
}

impl<T> CacheState<T> {
    pub(crate) fn new(core: Core, limit: Footprint, max_unheld: Option<UnheldLimit>) -> Self {
        Self {
            core,
            in_flight: InFlight::default(),
            reclaimer: Reclaimer::new(),
            lease_holds: LeaseHolds::default(),
            changes: ChangeLog::new(),
            occupancy: Occupancy::new(limit),
            stats: Stats::default(),
            unheld: Looks::new(max_unheld),
            next_group: 0,
            closed: false,
        }
    }

    /// Has the core decide, and takes what left it to the reclaimer.
    pub(crate) fn with_core<A>(
        &mut self,
        tables: &HitTables<T>,
        decide: impl FnOnce(&mut Core, &mut Leases<'_, T>) -> A,
    ) -> A {
        self.with_core_after(tables, None, decide)
    }

    /// As [`CacheState::with_core`], where memory changed at this moment, if it is known.
    fn with_core_after<A>(
        &mut self,
        tables: &HitTables<T>,
        changed: Option<Instant>,
        decide: impl FnOnce(&mut Core, &mut Leases<'_, T>) -> A,
    ) -> A {
        let Self { core, in_flight, lease_holds, stats, unheld, next_group, .. } = self;
        let answer = decide(core, &mut Leases { tables, in_flight, lease_holds, unheld, next_group, stats });
        self.collect(tables, changed);
        answer
    }

    /// Takes the registrations of what the core let go. The pins of those with changed memory are dead from then on.
    #[expect(unsafe_code, reason = "it empties records")]
    fn collect(&mut self, tables: &HitTables<T>, mut changed: Option<Instant>) {
        let Self { core, in_flight, reclaimer, .. } = self;
        let mut any = false;
        for batch in core.outcome().batches() {
            for &Leaving { region: id, .. } in batch {
                any = true;
                let record = &tables.records[id];
                let (watched, is_dead) = match in_flight.remove(id) {
                    Entry::Cached { watched } => (watched, false),
                    Entry::Retired { watched, is_dead, .. } => (watched, is_dead),
                    Entry::Absent | Entry::Registering { .. } => unreachable!("{id:?} is registered until it leaves"),
                };
                let dead_since = is_dead.then(|| *changed.get_or_insert_with(Instant::now));
                let (range, access) = (record.range(), record.access());
                // SAFETY: `Record::empty` wants a record that is filled, hidden and not held, and the lock. The region was
                // registered, so its record is filled; the core let it go only after it was hidden and found unheld; and
                // `self` is what the lock protects.
                let registration = unsafe { record.empty() };
                reclaimer.push(Registered { range, access, registration }, watched, dead_since);
            }
        }
        if any {
            reclaimer.stir(tables.notifier());
        }
    }

    /// Issues a ticket for a region that the core holds for this thread.
    pub(crate) fn begin(&mut self, id: RegionId, owner: u32) {
        self.in_flight.begin(id, owner);
        self.changes.make_room(self.in_flight.len());
    }

    /// Takes back a region that was not registered.
    pub(crate) fn abandon(&mut self, id: RegionId) {
        self.in_flight.remove(id);
        self.core.abandon(id);
    }

    /// Notes that a region is registered. One that is not to be cached is retired, for the lease that is about to have it: it
    /// leaves when that ends.
    pub(crate) fn set_registered(&mut self, id: RegionId, is_cached: bool, watched: bool) {
        self.in_flight.set_registered(id, is_cached, watched);
        if !is_cached {
            self.core.withdraw(id);
            let is_new = self.lease_holds.add(id);
            debug_assert!(is_new, "no lease had it while it was registered");
        }
    }

    /// Reserves room with the registrar, if there is as much.
    pub(crate) fn reserve(&mut self, amount: Footprint) -> bool {
        self.occupancy.reserve(amount, &mut self.stats)
    }

    /// Makes room for no request in particular: so much, or what there is.
    pub(crate) fn evict(&mut self, tables: &HitTables<T>, need: Need) {
        self.with_core(tables, |core, leases| _ = core.evict(need, leases));
    }

    /// Publishes regions: hits and requests find them, and what they displace retires.
    #[inline]
    pub(crate) fn publish(&mut self, tables: &HitTables<T>, ids: &[RegionId]) {
        self.with_core(tables, |core, leases| _ = core.publish(ids, leases));
        ids.iter().for_each(|&id| self.show(tables, id));
    }

    /// As [`CacheState::publish`], of one region.
    #[inline]
    pub(crate) fn publish_one(&mut self, tables: &HitTables<T>, id: RegionId) {
        if self.core.publish_lone(id) {
            self.show(tables, id);
        } else {
            self.publish(tables, &[id]);
        }
    }

    #[inline]
    fn show(&mut self, tables: &HitTables<T>, id: RegionId) {
        let record = &tables.records[id];
        record.show();
        if self.unheld.begin(id, || record.range().pages()) {
            tables.notifier().notify_one();
        }
    }

    /// Returns what a request that needs so much waits for, as long as what left is not deregistered.
    pub(crate) fn obstacle(&self, needed: Footprint) -> Obstacle {
        let missing = self.occupancy.shortfall(needed);
        let (under_way, waiting) = (self.reclaimer.in_progress_amount(), self.reclaimer.pending_amount());
        Obstacle::Deregistering {
            missing_pages: missing.pages,
            missing_regions: missing.regions,
            under_way_pages: under_way.pages,
            under_way_regions: under_way.regions,
            waiting_pages: waiting.pages,
            waiting_regions: waiting.regions,
        }
    }

    /// Ends a batch that was handed to the registrar. Returns the pages that were deregistered.
    pub(crate) fn finish_batch(&mut self, tables: &HitTables<T>, batch: Batch<T>) -> u64 {
        let (amount, left) = (batch.amount, of_batch(&batch.regions));
        if amount != Footprint::default() {
            self.occupancy.handed_over(amount, left, batch.refusal.is_some(), &mut self.stats);
        }
        for change in self.reclaimer.finish_batch(batch, tables.notifier()) {
            self.changes.end(change);
        }
        amount.pages.saturating_sub(left.pages)
    }

    /// Finds the regions that leases have no more, and the memory.
    pub(crate) fn sweep(&mut self, tables: &HitTables<T>) {
        if !self.lease_holds.is_empty() {
            let free = self.lease_holds.sweep(tables, &mut self.stats);
            self.release(tables, free);
            if self.lease_holds.are_many() {
                self.await_leases(tables);
            }
        }
        if self.reclaimer.has_unmaps() {
            let held = self.lease_holds.regions().map(|id| tables.records[id].range());
            self.reclaimer.find_unheld(held);
        }
    }

    /// As [`CacheState::sweep`], also where leases may have ended without telling.
    pub(crate) fn sweep_all(&mut self, tables: &HitTables<T>) {
        self.lease_holds.look_again(tables);
        self.sweep(tables);
    }

    /// Has leases tell when they end.
    pub(crate) fn await_leases(&mut self, tables: &HitTables<T>) {
        let free = self.lease_holds.await_ends(tables, &mut self.stats);
        self.release(tables, free);
    }

    /// Ends holds of the core's.
    fn release(&mut self, tables: &HitTables<T>, holds: Vec<RegionId>) {
        for id in holds {
            self.with_core(tables, |core, _| _ = core.release(id));
        }
    }
}

/// Regions without a lease.
impl<T> CacheState<T> {
    /// Notes that a request leased a cached region under the lock: it leaves no mark.
    #[inline]
    pub(crate) fn note_leased(&mut self, id: RegionId) {
        self.unheld.note_hit(id);
    }

    /// Returns the pages of all cached regions that no lease has. It looks at every region.
    pub(crate) fn unheld_pages(&mut self, tables: &HitTables<T>) -> u64 {
        let Self { in_flight, lease_holds, .. } = self;
        lease_holds.names().read(tables, in_flight.len());
        let names = lease_holds.names();
        let unheld = in_flight.cached_from(0).filter(|&id| !names.have(tables, id));
        unheld.map(|id| tables.records[id].range().pages()).sum()
    }

    /// Ends the regions that had no lease for too long, if a look or a part of it is due. Returns how long it is till the next one.
    pub(crate) fn look_at_unheld(&mut self, tables: &HitTables<T>) -> Option<Duration> {
        if self.unheld.left()?.is_zero() {
            self.end_unheld(tables);
        }
        self.unheld.left()
    }

    #[cold]
    fn end_unheld(&mut self, tables: &HitTables<T>) {
        let began = Instant::now();
        let Self { in_flight, lease_holds, unheld, .. } = self;
        let (mut touched, mut ending) = (Vec::new(), Vec::new());
        // Slots first: a lease that ended before that has left its mark.
        lease_holds.names().read(tables, in_flight.len());
        let names = lease_holds.names();
        let seen = in_flight.cached_from(unheld.from()).map(|id| {
            let record = &tables.records[id];
            let touches = record.take_touched();
            touched.extend((0..touches).map(|_| id));
            Seen { id, pages: record.range().pages(), is_held: names.have(tables, id), is_hit: touches > 0 }
        });
        let excess = unheld.look(seen, &mut ending);
        self.core.apply_touches(touched);
        ending.retain(|&id| self.core.is_found(id));
        self.stats.expired += ending.len() as u64;
        if !ending.is_empty() {
            self.with_core(tables, |core, leases| _ = core.invalidate_regions(&mut ending, leases));
        }
        if excess > 0 {
            let need = Need { pages: excess, regions: 0 };
            self.with_core(tables, |core, leases| _ = core.evict_exactly(need, leases));
        }
        self.unheld.pause(began);
    }
}

/// Changes of memory.
impl<T> CacheState<T> {
    /// Deals with what monitors left: the regions that they hid, in one batch.
    #[inline]
    pub(crate) fn settle(&mut self, tables: &HitTables<T>) {
        if self.changes.has_reported() {
            self.settle_reported(tables);
        }
    }

    #[cold]
    fn settle_reported(&mut self, tables: &HitTables<T>) {
        let changed = self.changes.reported_since();
        let mut regions = self.changes.drain(self.in_flight.len());
        regions.retain(|&id| self.in_flight.entry(id).is_changed() && self.core.is_found(id));
        self.with_core_after(tables, changed, |core, leases| _ = core.invalidate_regions(&mut regions, leases));
        self.changes.reuse(regions);
    }

    /// Invalidates what is cached or being registered in the range; what leases have stays registered until they end. To invalidate
    /// everything is to empty the cache, and tells of no change of memory.
    pub(crate) fn invalidate(&mut self, tables: &HitTables<T>, range: PageRange) {
        let why = if range == PageRange::EVERYTHING { Gone::Cache } else { Gone::Memory };
        self.hide(tables, range, why, |_, _| {});
        self.with_core(tables, |core, leases| _ = core.invalidate_among(range, leases));
    }

    /// Hides what is in the range, and names what was not hidden before. Allocates and frees nothing: monitors do this.
    fn hide(
        &mut self,
        tables: &HitTables<T>,
        range: PageRange,
        why: Gone,
        mut hidden: impl FnMut(&mut ChangeLog, RegionId),
    ) {
        let Self { core, in_flight, changes, reclaimer, .. } = self;
        changes.count();
        if why == Gone::Memory && reclaimer.note_change(range) {
            reclaimer.stir(tables.notifier());
        }
        let hide = |id: RegionId| {
            let Some(entry) = in_flight.set_changed(id, why) else { return };
            if entry.is_registered() {
                tables.records[id].hide();
            }
            hidden(changes, id);
        };
        core.for_each_overlap(range, hide);
    }

    /// Records a monitor's change: hidden at once, dealt with by the next thread that has the lock. Allocates nothing.
    pub(crate) fn note_change(&mut self, tables: &HitTables<T>, change: Change, now: Instant, until: Instant) {
        self.stats.changes += 1;
        let mut any_hidden = false;
        self.hide(tables, change.range, Gone::Memory, |changes, id| {
            any_hidden = true;
            changes.record(id, now);
        });
        if any_hidden {
            self.core.observe_change(change.range);
        }
        if change.kind == ChangeKind::Discarding {
            self.changes.discard(change.range, until, now);
        }
    }

    /// Begins a change of the range: nothing of it is found from now on, and nothing of it is cached that is planned until
    /// the change [ends](ChangeLog::end). Returns its number.
    pub(crate) fn begin_change(&mut self, tables: &HitTables<T>, range: PageRange) -> u64 {
        let change = self.changes.begin(range);
        self.invalidate(tables, range);
        change
    }
}
