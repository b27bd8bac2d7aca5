//! Deregistration: in batches, by requests that need the room, the background thread, or [`Cache::reap`].
//!
//! A batch takes a bounded time (`state/pace.rs`). Its room is free when it ends, and requests that wait for room look
//! again then. Several threads deregister batches at once.
//!
//! A lease that ends only empties its slot. Another thread looks later: the next request that lacks room,
//! `reap`, or the background (`background.rs`). The end of a cache is in `close.rs`.
//!
//! [`Cache::reap`]: crate::Cache::reap

mod background;
mod close;

pub(crate) use close::close;

use crate::budget::{Budget, Tenant};
use crate::error::Unusable;
use crate::memory::Memory;
use crate::policy::Need;
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::shim::sync::MutexGuard;
use crate::state::shared::Shared;
use crate::state::stats::Footprint;
use crate::state::{Batch, CacheState, PendingUnmap};
use crate::thread_id;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Lock<'a, R> = MutexGuard<'a, CacheState<<R as Registrar>::Registration>>;

impl<R: Registrar> Shared<R> {
    /// Deregisters the next batch of what has left, without the lock.
    pub(crate) fn deregister_next<'a>(&'a self, state: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
        self.deregister_batch(state);
        self.lock()
    }

    /// Deregisters what has left by now, batch by batch, and at most so many. Regions that leave meanwhile stay for
    /// others.
    fn deregister_batches<'a>(&'a self, mut state: Lock<'a, R>, most: u32) -> Result<Lock<'a, R>, Unusable> {
        // First out, first deregistered: a thread that takes so many regions, or finds none, has seen the last of these
        // go.
        let mut left = state.reclaimer.pending_regions();
        for _ in 0..most {
            left -= self.deregister_batch(state).min(left);
            state = self.lock()?;
            if left == 0 || !state.reclaimer.has_work() {
                break;
            }
        }
        Ok(state)
    }

    /// Deregisters the next batch. Returns how many regions that was.
    fn deregister_batch(&self, mut state: Lock<'_, R>) -> usize {
        let batch = state.reclaimer.take_batch(thread_id::current());
        drop(state);
        self.deregister(batch)
    }

    /// Deregisters a batch, without the lock. Returns how many regions that was.
    pub(crate) fn deregister(&self, batch: Batch<R::Registration>) -> usize {
        let mut batch = Deregistering { shared: self, batch: Some(batch) };
        let Some(Batch { regions, unwatch, timed, took, refusal, .. }) = &mut batch.batch else { return 0 };
        let count = regions.len();
        unwatch.drain(..).for_each(|range| self.unwatch(range));
        if count == 0 {
            *refusal = None;
            return 0;
        }
        let begun = (*timed || self.times.is_some()).then(Instant::now);
        *refusal = self.registrar.deregister(regions).err().map(|error| error.to_string());
        // Under a checker time does not pass.
        let elapsed = begun.map(|begun| if cfg!(any(loom, shuttle)) { Duration::ZERO } else { begun.elapsed() });
        *took = elapsed.filter(|_| *timed);
        if let (Some(times), Some(elapsed)) = (&self.times, elapsed) {
            times.deregistered(elapsed);
        }
        count
    }

    /// Deregisters all that can go without an eviction, parked ones too. Returns how much that was.
    pub(crate) fn reap(&self) -> Result<Footprint, Unusable> {
        let mut state = self.lock()?;
        let before = state.stats.deregistered;
        state.reclaimer.retry();
        // The background may be gone, and without `membarrier` the word of a lease that ended may be lost.
        state.sweep_all(&self.tables);
        state = self.deregister_all(state)?;
        let mut after = state.stats.deregistered;
        after.take(before);
        Ok(after)
    }

    /// Deregisters all that has left by now, and unmaps memory that nothing is registered of any more.
    fn deregister_all<'a>(&'a self, mut state: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
        state.sweep(&self.tables);
        if state.reclaimer.has_work() {
            state = self.deregister_batches(state, u32::MAX)?;
        }
        if state.reclaimer.has_unmaps() {
            state.sweep(&self.tables);
            if state.reclaimer.has_work() {
                state = self.deregister_next(state)?;
            }
        }
        Ok(state)
    }

    /// Waits for the batches that others are deregistering now, and for no later ones; at most as long as for anything that
    /// others do. A registrar that calls back from a deregistration does not wait for that.
    pub(crate) fn await_others(&self) -> Result<(), Unusable> {
        let begun = Instant::now();
        let mut state = self.lock()?;
        let now = state.reclaimer.next_batch();
        let me = thread_id::current();
        while state.reclaimer.others_in_progress(now, me) {
            let Some(left) = self.settings.wait_timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            else {
                break;
            };
            state = self.wait(state, left)?;
        }
        Ok(())
    }

    /// Everything that is not in use leaves.
    pub(crate) fn flush(&self) -> Result<Footprint, Unusable> {
        let mut state = self.lock()?;
        state.invalidate(&self.tables, PageRange::EVERYTHING);
        drop(state);
        self.reap()
    }

    /// An arena's memory goes: nothing finds it any more, and it is unmapped once no lease has it.
    pub(crate) fn give_up(&self, memory: Memory) {
        let Ok(mut state) = self.lock() else {
            // A child, or the registrations are unknown: the owner of a lease may still use it.
            std::mem::forget(memory);
            return;
        };
        let change = state.begin_change(&self.tables, memory.pages());
        state.reclaimer.add_unmap(PendingUnmap::new(memory, change));
        // Regions that are in use now are for the next one.
        drop(self.deregister_all(state));
        self.work.notify_one();
    }

    /// Deregisters what has left, if anything has.
    pub(crate) fn tidy(&self) {
        if let Ok(state) = self.lock() {
            drop(self.deregister_all(state));
        }
    }
}

/// A batch that is being deregistered. However that ends, what is left of it is refused.
struct Deregistering<'a, R: Registrar> {
    shared: &'a Shared<R>,
    /// There until it is dropped.
    batch: Option<Batch<R::Registration>>,
}

impl<R: Registrar> Drop for Deregistering<'_, R> {
    fn drop(&mut self) {
        let (shared, Some(mut batch)) = (self.shared, self.batch.take()) else { return };
        batch.unmap();
        let Ok((mut state, _)) = shared.lock_now() else {
            batch.forget();
            return;
        };
        let pages = state.finish_batch(&shared.tables, batch);
        if let Some(seat) = shared.seat.get() {
            seat.give_back(pages);
        }
        let wakes = state.in_flight.take_waiters();
        drop(state);
        if wakes {
            shared.progress.notify_all();
        }
    }
}

impl<R: Registrar> Shared<R> {
    /// The cache keeps to this budget from now on. It has registered nothing so far.
    pub(crate) fn join(self: &Arc<Self>, budget: &Budget) {
        let shared: Arc<dyn Tenant> = self.clone();
        let seat = budget.join(self.settings.capacity.pages, Arc::downgrade(&shared));
        assert!(self.seat.set(seat).is_ok(), "a cache joins one budget");
    }

    fn make_room(&self, pages: u64) -> Result<u64, Unusable> {
        let (mut state, sure) = self.lock_now()?;
        if !sure {
            // A monitor has the word, and it may want this lock.
            return Ok(0);
        }
        state.sweep(&self.tables);
        let leaving = state.reclaimer.pending_amount().pages;
        if leaving < pages {
            let need = Need { pages: pages - leaving, regions: 0 };
            state.with_core(&self.tables, |core, leases| _ = core.evict_exactly(need, leases));
        }
        let before = state.stats.deregistered.pages;
        let freed = |state: &CacheState<R::Registration>| state.stats.deregistered.pages - before;
        while state.reclaimer.has_pending() && freed(&state) < pages {
            self.deregister_batch(state);
            state = self.lock_now()?.0;
        }
        Ok(freed(&state))
    }
}

impl<R: Registrar> Tenant for Shared<R> {
    fn hits(&self) -> u64 {
        let ([subset, exact], _) = self.tables.blocks.counts();
        subset.wrapping_add(exact)
    }

    fn give(&self, pages: u64) -> u64 {
        self.make_room(pages).unwrap_or(0)
    }
}
