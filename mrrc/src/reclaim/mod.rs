//! Deregistration: in batches, by requests that need the room, the background thread, or [`Cache::reap`].
//!
//! A batch takes a bounded time (`state/pace.rs`). Its room is free when it ends, and requests that wait for room look
//! again then. Several threads deregister batches at once.
//!
//! A lease that ends only empties its slot. Another thread looks later: the next request that lacks room,
//! `reap`, or the background (`background.rs`). Other caches of a [budget](crate::cache::Budget) ask for room too (`tenant.rs`). The
//! end of a cache is in `close.rs`.
//!
//! [`Cache::reap`]: crate::Cache::reap

mod background;
mod close;
mod tenant;

pub(crate) use background::tend;
pub(crate) use close::close;
pub(crate) use tenant::join;

use crate::error::Unusable;
use crate::footprint::Footprint;
use crate::memory::Memory;
use crate::range::PageRange;
use crate::registrar::Registrar;
use crate::state::shared::{Lock, Shared};
use crate::state::{Batch, PendingUnmap};
use crate::thread_id;
use std::time::{Duration, Instant};

/// Deregisters the next batch. Returns how many regions that was.
fn deregister_batch<R: Registrar>(shared: &Shared<R>, mut state: Lock<'_, R>) -> usize {
    let batch = state.reclaimer.take_batch(thread_id::current());
    drop(state);
    deregister(shared, batch)
}

/// Deregisters a batch, and takes the lock for what comes next.
pub(crate) fn deregister_then_lock<'a, R: Registrar>(
    shared: &'a Shared<R>,
    batch: Batch<R::Registration>,
) -> Result<Lock<'a, R>, Unusable> {
    let mut batch = Deregistering { shared, batch: Some(batch) };
    hand_over(&mut batch);
    if let Some((state, sure)) = batch.end() {
        if sure {
            return Ok(state);
        }
        // The monitor needs it to bring its change in.
        drop(state);
    }
    shared.lock()
}

/// Deregisters a batch, without the lock. Returns how many regions that was.
fn deregister<R: Registrar>(shared: &Shared<R>, batch: Batch<R::Registration>) -> usize {
    hand_over(&mut Deregistering { shared, batch: Some(batch) })
}

/// Hands a batch to the registrar. Returns how many regions that was.
fn hand_over<R: Registrar>(batch: &mut Deregistering<'_, R>) -> usize {
    let shared = batch.shared;
    let Some(Batch { regions, unwatch, timed, took, refusal, .. }) = &mut batch.batch else { return 0 };
    let count = regions.len();
    unwatch.drain(..).for_each(|range| shared.monitor.unwatch(range));
    if count == 0 {
        *refusal = None;
        return 0;
    }
    let registrar = &shared.registrar;
    let begun = (*timed || shared.times.is_some()).then(|| (Instant::now(), registrar.clock()));
    *refusal = registrar.deregister(regions).err().map(|error| error.to_string().into());
    let elapsed = begun.map(|begun| match (begun, registrar.clock()) {
        ((_, Some(begun)), Some(now)) => now.saturating_sub(begun),
        // Under a checker time does not pass.
        _ if cfg!(any(loom, shuttle)) => Duration::ZERO,
        ((begun, _), _) => begun.elapsed(),
    });
    *took = elapsed.filter(|_| *timed);
    if let (Some(times), Some(elapsed)) = (&shared.times, elapsed) {
        times.deregistered(elapsed);
    }
    count
}

/// Deregisters all that can go without an eviction, refused ones too. Returns how much that was.
pub(crate) fn reap<R: Registrar>(shared: &Shared<R>) -> Result<Footprint, Unusable> {
    let mut state = shared.lock()?;
    let before = state.stats.deregistered;
    state.reclaimer.retry();
    // The background may be gone, and without `membarrier` the word of a lease that ended may be lost.
    state.sweep_all(&shared.tables);
    state = deregister_all(shared, state)?;
    Ok(state.stats.deregistered.minus(before))
}

/// Deregisters all that has left by now, batch by batch, and unmaps memory that nothing is registered of any more. Regions that
/// leave meanwhile stay for others.
fn deregister_all<'a, R: Registrar>(shared: &'a Shared<R>, mut state: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
    state.sweep(&shared.tables);
    // First out, first deregistered: a thread that takes so many regions, or finds none, has seen the last of these go.
    let mut left = state.reclaimer.pending_regions();
    let mut has_more = state.reclaimer.has_work();
    while has_more {
        left -= deregister_batch(shared, state).min(left);
        state = shared.lock()?;
        has_more = left > 0 && state.reclaimer.has_work();
    }
    if state.reclaimer.has_unmaps() {
        state.sweep(&shared.tables);
        if state.reclaimer.has_work() {
            deregister_batch(shared, state);
            state = shared.lock()?;
        }
    }
    Ok(state)
}

/// Waits for the batches that others are deregistering now, and for no later ones; at most as long as for anything that
/// others do. A registrar that calls back from a deregistration does not wait for that.
pub(crate) fn await_others<R: Registrar>(shared: &Shared<R>) -> Result<(), Unusable> {
    let begun = Instant::now();
    let mut state = shared.lock()?;
    let now = state.reclaimer.next_batch();
    let me = thread_id::current();
    while state.reclaimer.others_in_progress(now, me) {
        let Some(left) = shared.settings.wait_timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
        else {
            break;
        };
        state = shared.wait(state, left, None)?;
    }
    Ok(())
}

/// Everything that is not in use leaves.
pub(crate) fn flush<R: Registrar>(shared: &Shared<R>) -> Result<Footprint, Unusable> {
    let mut state = shared.lock()?;
    state.invalidate(&shared.tables, PageRange::EVERYTHING);
    drop(state);
    reap(shared)
}

/// An arena's memory goes: nothing finds it any more, and it is unmapped once no lease has it.
pub(crate) fn give_up<R: Registrar>(shared: &Shared<R>, memory: Memory) {
    let Ok(mut state) = shared.lock() else {
        // A child, or the registrations are unknown: the owner of a lease may still use it.
        std::mem::forget(memory);
        return;
    };
    let change = state.begin_change(&shared.tables, memory.pages());
    state.reclaimer.add_unmap(PendingUnmap::new(memory, change));
    // Regions that are in use now are for the next one.
    drop(deregister_all(shared, state));
    shared.wake_background();
}

/// Deregisters what has left, if anything has.
pub(crate) fn tidy<R: Registrar>(shared: &Shared<R>) {
    if let Ok(state) = shared.lock() {
        drop(deregister_all(shared, state));
    }
}

/// A batch that is being deregistered. However that ends, what is left of it is refused.
struct Deregistering<'a, R: Registrar> {
    shared: &'a Shared<R>,
    /// There until it is dropped.
    batch: Option<Batch<R::Registration>>,
}

impl<'a, R: Registrar> Deregistering<'a, R> {
    /// Ends it, if that is not done. Returns the lock where it need not be let go, and whether every change is in the state.
    fn end(&mut self) -> Option<(Lock<'a, R>, bool)> {
        let (shared, mut batch) = (self.shared, self.batch.take()?);
        batch.unmap();
        let Ok((mut state, sure)) = shared.lock_now() else {
            batch.forget();
            return None;
        };
        let pages = state.finish_batch(&shared.tables, batch);
        if let Some(seat) = shared.seat.get() {
            seat.give_back(pages);
        }
        let wakes = state.in_flight.take_waiters();
        if !wakes.is_empty() {
            drop(state);
            shared.wake(wakes);
            return None;
        }
        Some((state, sure))
    }
}

impl<R: Registrar> Drop for Deregistering<'_, R> {
    fn drop(&mut self) {
        drop(self.end());
    }
}
