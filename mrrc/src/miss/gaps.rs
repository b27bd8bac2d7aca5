//! The gaps of a request: the parts that it registers itself.

use super::{AcquireRequest, Context};
use crate::access::Access;
use crate::core::Sharing;
use crate::footprint::Footprint;
use crate::hit::{HitTables, HoldRef};
use crate::invalidation::Watch;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Registered;
use crate::state::{CacheState, Entry};
use smallvec::SmallVec;

/// Why a gap is for its request alone, so that no look-up finds it and no thread waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uncached {
    /// Pages there are being discarded, or are about to change.
    Changing,
    /// The monitor does not report when memory there changes.
    Unwatched,
    /// The request is served by nothing that others could find: its thread waits for no other, or it has rights of its own.
    ByItself,
    /// The policy keeps nothing.
    NothingKept,
}

/// A gap that this request registers.
pub(crate) struct Gap<T> {
    id: RegionId,
    pub(crate) range: PageRange,
    pub(crate) access: Access,
    uncached: Option<Uncached>,
    /// The monitor's answer; none before it was asked.
    pub(crate) watch: Option<Watch>,
    /// Attempts that failed.
    tries: u32,
    /// Registered, and not in the state yet. Whatever happens it is not lost: a registrar or a monitor can panic.
    pub(crate) made: Option<T>,
}

impl<T> Gap<T> {
    pub(super) fn new(id: RegionId, range: PageRange, access: Access) -> Self {
        Self { id, range, access, uncached: None, watch: None, tries: 0, made: None }
    }

    /// Returns whether the monitor is to be told when the region goes.
    fn is_watched(&self) -> bool {
        self.watch == Some(Watch::Watched)
    }

    /// Notes that the gap was registered. Returns a hold of it, and whether it is to be published. Sure: no change is under way
    /// that is not in the state.
    #[inline(always)]
    pub(super) fn set_registered(
        &self,
        state: &mut CacheState<T>,
        tables: &HitTables<T>,
        registration: T,
        sure: bool,
    ) -> (HoldRef, Option<RegionId>) {
        let &Self { id, range, access, uncached, .. } = self;
        let Entry::Registering { changed, .. } = state.in_flight.entry(id) else {
            unreachable!("{id:?} is this request's own")
        };
        let changed_in_flight = uncached.is_none() && (changed || !sure);
        // Not found any more: taken in by another region meanwhile, or invalidated.
        let is_cached = uncached.is_none() && !changed_in_flight && state.core.is_found(id);
        state.stats.changed_in_flight += u64::from(changed_in_flight);
        state.stats.discarded += u64::from(uncached == Some(Uncached::Changing));
        state.stats.unwatched += u64::from(uncached == Some(Uncached::Unwatched));
        tables.records[id].fill(range, access, registration);
        let Ok(hold) = tables.hold(id) else {
            unreachable!("{id:?} was not found before, so no count has leases of it")
        };
        state.set_registered(id, is_cached, self.is_watched());
        (hold, is_cached.then_some(id))
    }
}

/// The gaps of a request. Owns them, and the room that is reserved for them, until they are published or abandoned.
pub(super) struct Gaps<T> {
    list: SmallVec<[Gap<T>; 2]>,
    /// Room that was reserved with the registrar and not used yet.
    reserved: Footprint,
    /// Attempts that are not counted yet.
    attempts: u64,
    /// The thread that is noted for gaps that it does not register yet.
    beginner: Option<u32>,
    /// Ranges that are watched and were not registered: the driver unwatches them, without the lock.
    to_unwatch: SmallVec<[PageRange; 1]>,
}

impl<T> Gaps<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            list: SmallVec::new(),
            reserved: Footprint::default(),
            attempts: 0,
            beginner: None,
            to_unwatch: SmallVec::new(),
        }
    }

    /// Takes a gap for which room is reserved, tried so often.
    pub(super) fn take_lone(&mut self, gap: Gap<T>, attempts: u64) {
        self.reserved = Footprint::of([gap.range]);
        self.attempts = attempts;
        self.list.push(gap);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.reserved != Footprint::default()
    }

    /// Returns whether something of them is left in the state that [`Gaps::abandon`] takes back.
    pub(super) fn is_pending(&self) -> bool {
        !self.list.is_empty() || self.attempts > 0 || self.is_reserved()
    }

    /// Adds a gap that the core has made a region of.
    pub(super) fn add(
        &mut self,
        state: &CacheState<T>,
        context: &Context<'_, T>,
        request: &AcquireRequest,
        mut gap: Gap<T>,
    ) {
        // Asked before the pages are looked up: a registration can outlast the grace period. What is discarded from here on marks
        // the entry.
        gap.uncached = if !state.changes.allows_caching(gap.range, request.answers_for(gap.range)) {
            Some(Uncached::Changing)
        } else if !context.settings.caches {
            Some(Uncached::NothingKept)
        } else if state.core.is_found(gap.id) {
            None
        } else if request.sharing == Sharing::Nothing && request.owned.is_none() {
            // Borrowed memory, whose changes are not reported.
            Some(Uncached::Unwatched)
        } else {
            Some(Uncached::ByItself)
        };
        self.list.push(gap);
    }

    /// Issues the tickets.
    pub(super) fn begin(&self, state: &mut CacheState<T>, thread: u32) {
        for gap in &self.list {
            state.begin(gap.id, thread);
            if gap.uncached.is_some() {
                state.core.withdraw(gap.id);
            }
        }
    }

    /// Notes a thread that registers them later.
    pub(super) fn set_beginner(&mut self, state: &mut CacheState<T>, thread: u32) {
        state.in_flight.add_beginner(thread);
        self.beginner = Some(thread);
    }

    pub(super) fn footprint(&self) -> Footprint {
        Footprint::of(self.list.iter().map(|gap| gap.range))
    }

    /// Reserves room for them with the registrar, unless they have it. Returns whether they have it.
    pub(super) fn reserve(&mut self, state: &mut CacheState<T>) -> bool {
        if !self.is_reserved() {
            let amount = self.footprint();
            if state.reserve(amount) {
                self.reserved = amount;
            }
        }
        self.is_reserved()
    }

    /// Returns the gaps to ask the monitor about: none where no look-up will find them, or the caller answers for them.
    pub(super) fn unasked(&mut self, request: AcquireRequest) -> impl Iterator<Item = &mut Gap<T>> {
        let unasked =
            move |gap: &&mut Gap<T>| gap.watch.is_none() && gap.uncached.is_none() && !request.answers_for(gap.range);
        self.list.iter_mut().filter(unasked)
    }

    /// Returns whether the monitor does not watch a gap that others might wait for.
    pub(super) fn has_unwatched(&self) -> bool {
        self.list.iter().any(|gap| gap.uncached.is_none() && matches!(gap.watch, Some(Watch::Unwatched(_))))
    }

    /// Keeps gaps whose changes would not be reported for this request alone: others that need them do not wait
    /// for their registration.
    pub(super) fn set_apart(&mut self, state: &mut CacheState<T>, thread: u32) {
        for gap in self.list.iter_mut().filter(|gap| matches!(gap.watch, Some(Watch::Unwatched(_)))) {
            gap.uncached = Some(Uncached::Unwatched);
            state.core.withdraw(gap.id);
            // Requests that wait for the old ticket find that it is gone.
            state.in_flight.begin_anew(gap.id, thread);
        }
    }

    /// Returns the place of the next gap to register: those before it are registered.
    fn next(&self) -> Option<usize> {
        let next = self.list.partition_point(|gap| gap.made.is_some());
        (next < self.list.len()).then_some(next)
    }

    /// Returns the next gap to register, and counts the attempt: before, because the registrar may panic.
    pub(super) fn attempt(&mut self) -> Option<&mut Gap<T>> {
        let next = self.next()?;
        self.attempts += 1;
        Some(&mut self.list[next])
    }

    /// Returns the next gap, which failed, if it has pages outside of this range.
    pub(super) fn failed_beyond(&self, range: PageRange) -> Option<PageRange> {
        let gap = self.next().map(|next| self.list[next].range);
        gap.filter(|&gap| !range.contains(gap))
    }

    /// Returns a gap that has pages outside of this range and is not watched, and whether it will not be.
    pub(super) fn unwatched_beyond(&self, range: PageRange) -> Option<(PageRange, bool)> {
        let unwatched = |gap: &Gap<T>| match gap.watch {
            Some(Watch::Unwatched(why)) if gap.uncached.is_none() && !range.contains(gap.range) => {
                Some((gap.range, why.lasts()))
            }
            _ => None,
        };
        self.list.iter().find_map(unwatched)
    }

    /// Counts a failure of the next gap. Returns the gap's range, its rights, and how often it has failed.
    pub(super) fn count_failure(&mut self) -> (PageRange, Access, u32) {
        let Some(next) = self.next() else { unreachable!("a gap failed") };
        let gap = &mut self.list[next];
        gap.tries += 1;
        (gap.range, gap.access, gap.tries)
    }

    /// Publishes what was registered, and takes back what was not.
    pub(super) fn publish(
        &mut self,
        state: &mut CacheState<T>,
        tables: &HitTables<T>,
        sure: bool,
        holds: &mut SmallVec<[HoldRef; 2]>,
    ) {
        let mut published = SmallVec::<[RegionId; 2]>::new();
        self.settle(state, |state, gap, registration| {
            let (hold, cached) = gap.set_registered(state, tables, registration, sure);
            holds.push(hold);
            published.extend(cached);
        });
        if !published.is_empty() {
            state.publish(tables, &published);
        }
    }

    /// Takes back what is planned and not published. A registrar or a monitor may have panicked: what was registered goes.
    pub(super) fn abandon(&mut self, state: &mut CacheState<T>, tables: &HitTables<T>) {
        self.settle(state, |state, gap, registration| {
            state.abandon(gap.id);
            let &Gap { range, access, .. } = gap;
            state.reclaimer.push(Registered { range, access, registration }, gap.is_watched(), None);
            state.reclaimer.stir(tables.notifier());
        });
    }

    /// Ends them: takes what was registered to `made`, and takes back the others, with the room that they had.
    #[inline(always)]
    fn settle(&mut self, state: &mut CacheState<T>, mut made: impl FnMut(&mut CacheState<T>, &Gap<T>, T)) {
        if let Some(beginner) = self.beginner.take() {
            state.in_flight.remove_beginner(beginner);
        }
        let mut unused = std::mem::take(&mut self.reserved);
        for nth in 0..self.list.len() {
            let gap = &mut self.list[nth];
            if let Some(registration) = gap.made.take() {
                unused = unused.minus(Footprint::of([gap.range]));
                made(state, gap, registration);
            } else {
                state.abandon(gap.id);
                if gap.is_watched() {
                    self.to_unwatch.push(gap.range);
                }
            }
        }
        self.list.clear();
        state.occupancy.release(unused);
        state.stats.attempts += std::mem::take(&mut self.attempts);
    }

    /// Leaks what was registered and is not published: nothing may deregister it any more.
    pub(super) fn forget(&mut self) {
        (self.reserved, self.attempts) = (Footprint::default(), 0);
        for gap in self.list.drain(..) {
            if gap.is_watched() && gap.made.is_none() {
                self.to_unwatch.push(gap.range);
            }
            std::mem::forget(gap.made);
        }
    }

    pub(super) fn has_unwatch(&self) -> bool {
        !self.to_unwatch.is_empty()
    }

    /// Returns the ranges that are watched and were not registered: to be unwatched without the lock.
    pub(super) fn take_unwatch(&mut self) -> SmallVec<[PageRange; 1]> {
        std::mem::take(&mut self.to_unwatch)
    }
}
