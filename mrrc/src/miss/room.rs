//! Room with the registrar, by deregistering what has left.

use super::gaps::Gaps;
use super::waits::{Cause, Waits};
use super::{Context, Next, Step};
use crate::error::AcquireError;
use crate::footprint::Footprint;
use crate::policy::Need;
use crate::range::PageRange;
use crate::registrar::Failure;
use crate::state::CacheState;
use std::io;

/// Batches that a request deregisters for others, at most, where no other thread does that. Each takes twice as much as the
/// one before, or some milliseconds.
const FOR_OTHERS: u32 = 16;

/// The work of a request for room with the registrar. Owns what it still does for others, and what it did for itself.
#[derive(Default)]
pub(super) struct Room {
    /// The batches and regions that it deregisters for others before it makes room for itself.
    batches: u32,
    regions: usize,
    /// Whether that is only because there are many dead pins.
    for_dead: bool,
    /// Whether it deregistered something for itself, and whether it had refused regions tried again.
    helped: bool,
    retried: bool,
    /// The pages that are to be deregistered, by any thread, before a failed gap is tried again.
    enough: u64,
}

impl Room {
    /// Begins to make room for gaps that were just planned.
    pub(super) fn begin<T>(&mut self, state: &CacheState<T>, context: &Context<'_, T>) {
        let is_idle = context.settings.background || state.reclaimer.is_in_progress() || !state.reclaimer.has_work();
        let for_dead = is_idle && state.reclaimer.has_many_dead();
        let helps = !is_idle || for_dead;
        let (batches, regions) = if helps { (FOR_OTHERS, state.reclaimer.pending_regions()) } else { (0, 0) };
        *self = Self { batches, regions, for_dead, ..Self::default() };
    }

    /// Returns the cause of the time that a batch took; none where it was deregistered for others.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.helped.then_some(Cause::Others)
    }

    /// Notes that a batch of so many regions is being deregistered.
    pub(super) fn count_batch(&mut self, regions: usize) {
        self.regions = self.regions.saturating_sub(regions);
    }

    /// Deregisters what has left until there is room for this request's gaps, and reserves that.
    ///
    /// Where no other thread does that, or there are many dead pins, a bounded part of what left before is deregistered in any case.
    /// More is only as long as the room is not there, and no longer than the request would wait for others.
    ///
    /// # Errors
    /// There is no room, or the request has waited for others for too long.
    pub(super) fn make<T>(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        range: PageRange,
        gaps: &mut Gaps<T>,
        waits: &Waits,
    ) -> Next {
        let &Context { settings, registrar, .. } = context;
        if self.batches > 0 {
            let is_needed = !self.for_dead || state.reclaimer.has_many_dead();
            if self.regions > 0 && state.reclaimer.has_work() && is_needed {
                self.batches -= 1;
                return Ok(Some(Step::Deregister));
            }
            self.batches = 0;
        }
        loop {
            if gaps.reserve(state) {
                return Ok(None);
            }
            let amount = gaps.footprint();
            let left = |state: &CacheState<T>| waits.left_for_others(settings, range, || state.obstacle(amount));
            if state.reclaimer.has_pending() {
                if std::mem::replace(&mut self.helped, true) {
                    left(state)?;
                }
                return Ok(Some(Step::Deregister));
            } else if state.reclaimer.is_in_progress() {
                return Ok(Some(Step::Wait(left(state)?)));
            } else if !self.retried && state.reclaimer.has_refused() {
                self.retried = true;
                state.reclaimer.retry();
            } else {
                // Regions that could not be deregistered take the room.
                let (Footprint { pages, regions }, why) = state.reclaimer.refused();
                if regions > 0 {
                    let why = why.to_owned();
                    state.stats.refused_dereg_failed += 1;
                    return Err(AcquireError::DeregistrationFailed { range, pages, regions, registrar, why });
                }
                let source = state.occupancy.no_room(range, amount);
                return Err(AcquireError::AllInUse { source, waited: waits.waited(Cause::Leases) });
            }
        }
    }

    /// A gap could not be registered: where the system is out of something, regions are evicted, to be deregistered before it is
    /// tried again.
    ///
    /// # Errors
    /// It is not tried again.
    pub(super) fn take_failure<T>(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        gaps: &mut Gaps<T>,
        waits: &Waits,
        source: io::Error,
    ) -> Result<(), AcquireError> {
        let &Context { settings, tables, registrar, .. } = context;
        let (range, access, attempts) = gaps.count_failure();
        let refused = |source| AcquireError::Register { range, access, registrar, attempts, source };
        if Failure::of(&source) == Failure::Refused || attempts > settings.retries {
            return Err(refused(source));
        }
        state.sweep(tables);
        // More each time: what the system counts need not be what we count.
        let pages = range.pages().saturating_mul(1 << attempts.min(16));
        state.evict(tables, Need { pages, regions: 1 });
        // Or another thread may be freeing what is missing.
        let waits_for_others = state.reclaimer.is_in_progress() && !waits.left(Cause::Others, settings).is_zero();
        if !state.reclaimer.has_pending() && !waits_for_others {
            return Err(refused(source));
        }
        state.stats.retries += 1;
        self.enough = state.stats.deregistered.pages.saturating_add(pages);
        Ok(())
    }

    /// Deregisters what has left, batch by batch, until enough is deregistered, by any thread, or nothing is left to wait
    /// for. No longer than the request waits for others.
    pub(super) fn free<T>(
        &self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        waits: &mut Waits,
    ) -> Option<Step> {
        let left = waits.left(Cause::Freeing, context.settings);
        let has_begun = !waits.waited(Cause::Freeing).is_zero();
        if state.stats.deregistered.pages < self.enough && (!left.is_zero() || !has_begun) {
            if state.reclaimer.has_pending() {
                return Some(Step::Deregister);
            }
            if state.reclaimer.is_in_progress() && !left.is_zero() {
                return Some(Step::Wait(left));
            }
        }
        waits.end_freeing();
        None
    }
}

/// Wakes the background where less is free than it is to keep free.
pub(super) fn keep_headroom<T>(state: &mut CacheState<T>, context: &Context<'_, T>) {
    if context.settings.background && state.occupancy.short_of_free(context.settings) > 0 {
        context.tables.notifier().notify_one();
    }
}
