//! The background thread of a cache.
//!
//! Every cache with a monitor has one, and others may have. It deregisters what left, looks after leases of regions that are
//! retired, and keeps some room free if it is asked to ([`Builder::headroom`](crate::cache::Builder::headroom)), so that
//! misses seldom wait for a deregistration. While memory is short it may keep more free
//! ([`Builder::pressure`](crate::cache::Builder::pressure)). It ends regions that had no lease for too long
//! ([`Builder::max_unheld`](crate::cache::Builder::max_unheld)). It tries the registrar's refusals again, at intervals that
//! grow from 50 ms to 30 s.

use super::deregister_batch;
use crate::error::Unusable;
use crate::hit::barrier::Barrier;
use crate::policy::Need;
use crate::registrar::Registrar;
use crate::state::IDLE;
use crate::state::shared::Shared;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// The intervals between looks at leases with regions that are to go. After these it is arranged that they tell.
const LOOKS: [Duration; 3] = [Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];
/// The shortest and longest time after which the background tries again what could not be deregistered.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// When the background does something again: after a time that doubles as long as it is of no use.
struct Retry {
    pause: Duration,
    due: Option<Instant>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { pause: RETRY, due: None }
    }
}

impl Retry {
    /// Returns whether it is time. Asked at each round, whether there is anything to do it for or not.
    fn is_due(&mut self, any: bool) -> bool {
        if !any {
            *self = Self::default();
            return false;
        }
        let now = Instant::now();
        let due = *self.due.get_or_insert(now + self.pause) <= now;
        if due {
            self.pause = (self.pause * 2).min(RETRY_LONGEST);
            self.due = Some(now + self.pause);
        }
        due
    }

    /// How long it is till then. Under a checker time does not pass.
    fn left(&self) -> Option<Duration> {
        let due = self.due.filter(|_| !cfg!(any(loom, shuttle)))?;
        Some(due.saturating_duration_since(Instant::now()))
    }
}

/// When the background looks at leases again. Leases that tell of their end wake it: that is no reason to look sooner, or
/// those of a region that is in use all the time would keep it going.
struct Looks {
    left: std::slice::Iter<'static, Duration>,
    due: Option<Instant>,
}

impl Looks {
    fn new() -> Self {
        Self { left: LOOKS.iter(), due: None }
    }

    /// How long it is till the next look. None after the last of them, and where there is nothing to look at. Under a checker
    /// time does not pass.
    fn next(&mut self, any: bool) -> Option<Duration> {
        if !any {
            *self = Self::new();
            return None;
        }
        let now = Instant::now();
        if let Some(due) = self.due.filter(|&due| now < due && !cfg!(any(loom, shuttle))) {
            return Some(due - now);
        }
        let Some(&look) = self.left.next() else {
            *self = Self::new();
            return None;
        };
        self.due = Some(now + look);
        Some(look)
    }
}

/// The background's work, until it is told to stop.
pub(crate) fn tend<R: Registrar>(shared: &Shared<R>) {
    let (mut retry, mut second_look) = (Retry::default(), Retry::default());
    let mut looks = Looks::new();
    loop {
        let mut state = match shared.lock() {
            Ok(state) => state,
            // The monitor takes its time; waiting threads are told.
            Err(Unusable::Draining(_)) if !shared.is_stopping() => continue,
            Err(_) => return,
        };
        if shared.is_stopping() {
            return;
        }
        if second_look.is_due(shared.tables.barrier == Barrier::Fence && !state.lease_holds.is_empty()) {
            state.sweep_all(&shared.tables);
        } else {
            state.sweep(&shared.tables);
        }
        let mut look = looks.next(state.lease_holds.fresh() > 0);
        if look.is_none() && state.lease_holds.fresh() > 0 {
            state.await_leases(&shared.tables);
            look = looks.next(state.lease_holds.fresh() > 0);
        }
        // Leaving regions already make room; more only if that is not enough.
        let short = state.occupancy.short_of_free(&shared.settings);
        let is_short = short > 0;
        if is_short && !state.reclaimer.has_work() && !state.reclaimer.is_in_progress() {
            state.evict(&shared.tables, Need { pages: short, regions: 0 });
        }
        let unheld = state.look_at_unheld(&shared.tables);
        if retry.is_due(state.reclaimer.has_refused()) {
            state.reclaimer.retry();
        }
        if state.reclaimer.has_work() {
            // A registrar that panics has its batch tried again; the background lives on.
            _ = std::panic::catch_unwind(AssertUnwindSafe(|| deregister_batch(shared, state)));
            continue;
        }
        let idle = (is_short || state.reclaimer.has_unmaps()).then_some(IDLE);
        // Without end, if nothing is to be done: new work comes with a notification.
        let rest = state.reclaimer.rest();
        let longest = [look, retry.left(), second_look.left(), idle, unheld, rest].into_iter().flatten().min();
        drop(state);
        shared.tables.notifier().wait(longest);
    }
}
