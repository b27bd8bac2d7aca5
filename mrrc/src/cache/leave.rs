//! How registrations end: in batches, by whoever needs the room, the background thread, or [`Cache::reap`].
//!
//! A lease that ends only empties its slot. Somebody looks later: the next request that lacks room,
//! `reap`, or the *background*, a thread that every cache with a monitor has and others may have. It
//! deregisters what left, looks after leases of regions that were struck out, and keeps some room free if it is asked
//! to ([`Builder::headroom`](super::Builder::headroom)), so that misses seldom wait for a deregistration. What could not be
//! deregistered it tries again, at intervals that grow from 50 ms to 30 s.
//!
//! [`Cache::reap`]: crate::Cache::reap

use super::arena::Memory;
use super::books::{Books, Orphan};
use super::error::Unusable;
use super::shared::Shared;
use super::tally::Amount;
use super::who;
use crate::policy::Need;
use crate::range::PageRange;
use crate::registrar::{Registered, Registrar};
use crate::shim::sync::MutexGuard;
use crate::shim::sync::atomic::Ordering;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at leases whose regions are to go.
const WATCHFUL: Duration = Duration::from_millis(2);
const IDLE: Duration = Duration::from_millis(500);
/// The shortest and longest time after which the background tries again what could not be deregistered.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// How often a registrar is asked to take what it refused when the cache is gone.
const REFUSALS: u32 = 20;
const ORPHANS_LONGEST: Duration = Duration::from_millis(100);

impl<T> Books<T> {
    /// What could not be deregistered is tried again.
    pub(super) fn unpark(&mut self) {
        let Self { limbo, parked, .. } = self;
        limbo.append(parked);
    }
}

/// When the background tries parked regions again: after a time that doubles as long as it fails.
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
    /// Whether it is time. Asked at each round, whether anything is parked or not.
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

    /// How long the background sleeps if nobody wakes it.
    fn longest(&self) -> Duration {
        match self.due {
            // Under a checker time does not pass.
            Some(due) if !cfg!(any(loom, shuttle)) => IDLE.min(due.saturating_duration_since(Instant::now())),
            _ => IDLE,
        }
    }
}

type Lock<'a, R> = MutexGuard<'a, Books<<R as Registrar>::Registration>>;

impl<R: Registrar> Shared<R> {
    /// Deregisters all that is in limbo, in one batch, without the lock.
    pub(super) fn deregister_limbo<'a>(&'a self, books: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
        self.deregister_batch(books);
        self.lock()
    }

    fn deregister_batch(&self, mut books: Lock<'_, R>) {
        let spare = std::mem::take(&mut books.spare);
        let regions = std::mem::replace(&mut books.limbo, spare);
        let unwatch = std::mem::take(&mut books.to_unwatch);
        let orphans = std::mem::take(&mut books.to_unmap);
        let amount = Amount::of(&regions);
        let number = books.batch_begins(amount.regions, who::am_i());
        let mut batch =
            Batch { shared: self, number, regions, orphans, amount, refusal: Some("it panicked".to_owned()) };
        drop(books);

        unwatch.into_iter().for_each(|range| self.unwatch(range));
        if batch.regions.is_empty() {
            batch.refusal = None;
            return;
        }
        let begun = self.times.as_ref().map(|_| Instant::now());
        batch.refusal = self.registrar.deregister(&mut batch.regions).err().map(|error| error.to_string());
        if let (Some(times), Some(begun)) = (&self.times, begun) {
            times.deregistered(begun.elapsed());
        }
    }

    /// Deregisters all that can go without an eviction, parked ones too. Returns how much that was.
    pub(super) fn reap(&self) -> Result<Amount, Unusable> {
        let mut books = self.lock()?;
        let before = books.tally.deregistered;
        // Before the sweep: memory of an arena goes with what is registered of it, in one batch.
        books.unpark();
        books.sweep(self.desk());
        if books.has_leavers() {
            books = self.deregister_limbo(books)?;
        }
        let mut after = books.tally.deregistered;
        after.take(before);
        Ok(after)
    }

    /// Waits for the batches that others are deregistering now, and for no later ones; at most as long as for anything that
    /// others do. A registrar that calls back from a deregistration does not wait for that.
    pub(super) fn await_others(&self) -> Result<(), Unusable> {
        let begun = Instant::now();
        let mut books = self.lock()?;
        let now = books.next_batch;
        let me = who::am_i();
        while books.under_way.iter().any(|&(number, thread)| number < now && thread != me) {
            let Some(left) = self.terms.patience.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
                break;
            };
            books = self.wait(books, left)?;
        }
        Ok(())
    }

    /// Everything that is not in use leaves.
    pub(super) fn flush(&self) -> Result<Amount, Unusable> {
        let mut books = self.lock()?;
        books.invalidate(self.desk(), PageRange::EVERYTHING);
        drop(books);
        self.reap()
    }

    /// The background's work, until it is told to stop.
    pub(super) fn tend(&self) {
        let mut retry = Retry::default();
        loop {
            let mut books = match self.lock() {
                Ok(books) => books,
                // The monitor takes its time; whoever waits for it is told.
                Err(Unusable::Draining(_)) if !self.stopping.load(Ordering::Acquire) => continue,
                Err(_) => return,
            };
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            books.sweep(self.desk());
            // What is leaving already makes room; more only if that is not enough.
            if !books.has_leavers() && books.going == 0 {
                let free = self.terms.capacity.pages.saturating_sub(books.registered.pages);
                if free < self.terms.headroom {
                    books.evict(self.desk(), Need { pages: self.terms.headroom - free, regions: 0 });
                }
            }
            if retry.is_due(!books.parked.is_empty()) {
                books.unpark();
            }
            if books.has_leavers() {
                // A registrar that panics has its batch parked; the background lives on.
                _ = std::panic::catch_unwind(AssertUnwindSafe(|| self.deregister_batch(books)));
                continue;
            }
            let longest = if books.lent.is_empty() { retry.longest() } else { WATCHFUL };
            if !crate::shim::wait(&self.work, books, longest) {
                self.broken();
                return;
            }
        }
    }

    /// Whether no region is registered and no lease left.
    fn is_done(&self) -> bool {
        // This runs where a cache is dropped: what a registrar that panics was given is parked, and tried again.
        _ = std::panic::catch_unwind(AssertUnwindSafe(|| self.flush()));
        self.lock_now().is_ok_and(|(books, _)| {
            // What is registered at this moment for somebody who has an arena is used, and not yet lent.
            books.registered == Amount::default()
                && books.lent.is_empty()
                && books.core.used_regions() == 0
                && books.orphans.is_empty()
        })
    }

    /// An arena's memory goes: nothing finds it any more, and it is unmapped once no lease has it.
    pub(super) fn give_up(&self, memory: Memory) {
        let Ok(mut books) = self.lock() else {
            // A child, or nobody knows what is registered: whoever has a lease may still use it.
            std::mem::forget(memory);
            return;
        };
        let change = books.change(self.desk(), memory.pages());
        books.orphans.push(Orphan::new(memory, change));
        books.sweep(self.desk());
        self.deregister_batch(books);
        self.work.notify_one();
    }

    /// Deregisters what has left, if anything has.
    pub(super) fn tidy(&self) {
        if let Ok(mut books) = self.lock() {
            books.sweep(self.desk());
            if books.has_leavers() {
                self.deregister_batch(books);
            }
        }
    }
}

impl<R: Registrar> Shared<R> {
    fn has_leases(&self) -> bool {
        self.lock_now().is_ok_and(|(books, _)| !books.lent.is_empty() || books.core.used_regions() > 0)
    }
}

/// Regions that are being deregistered. However that ends, what is left of them is parked.
struct Batch<'a, R: Registrar> {
    shared: &'a Shared<R>,
    number: u64,
    regions: Vec<Registered<R::Registration>>,
    /// Memory of arenas that are gone, to be unmapped after that.
    orphans: Vec<Orphan>,
    /// What it was in the beginning.
    amount: Amount,
    /// Why the registrar did not take all, if it did not.
    refusal: Option<String>,
}

impl<R: Registrar> Drop for Batch<'_, R> {
    fn drop(&mut self) {
        let Self { shared, amount, number, .. } = *self;
        let refusal = self.refusal.take();
        // Not before, and not where it failed: what is pinned there is pinned no more.
        let still = |orphan: &Orphan| self.regions.iter().any(|left| left.range.overlaps(orphan.memory.pages()));
        let (kept, gone): (Vec<_>, Vec<_>) = self.orphans.drain(..).partition(still);
        let unmapped: Vec<_> = gone.into_iter().map(|Orphan { change, .. }| change).collect();
        let Ok((mut books, _)) = shared.lock_now() else {
            // Nobody's to deregister any more: leaked, not dropped.
            kept.into_iter().for_each(std::mem::forget);
            self.regions.drain(..).for_each(std::mem::forget);
            return;
        };
        books.orphans.extend(kept);
        unmapped.into_iter().for_each(|change| books.changed(change));
        books.batch_ends(number, amount.regions);
        let Books { registered, tally, .. } = &mut *books;
        if amount != Amount::default() {
            tally.handed_over(registered, amount, Amount::of(&self.regions), refusal.is_some());
        }
        if !self.regions.is_empty() {
            books.refusal = refusal.unwrap_or_else(|| "it said that all went well, and left them".to_owned());
        }
        books.parked.append(&mut self.regions);
        books.spare = std::mem::take(&mut self.regions);
        let waiting = std::mem::take(&mut books.waiting);
        drop(books);
        if waiting > 0 {
            shared.progress.notify_all();
        }
    }
}

/// Ends a cache: whatever no lease has is deregistered now, and the rest when its leases end, by a thread
/// that waits for them. Its state outlives the leases.
pub(super) fn close<R: Registrar>(shared: Arc<Shared<R>>) {
    if shared.gate.is_forked() {
        // Everything here is the parent's; so is the registrar, whose end must not deregister anything.
        std::mem::forget(shared);
        return;
    }
    if let Ok((mut books, _)) = shared.lock_now() {
        books.closed = true;
    }
    shared.end_listening();
    if shared.is_done() {
        return;
    }
    let waiter = shared.clone();
    let wait = move || {
        let mut nap = Duration::from_millis(1);
        let mut refusals = 0;
        while !waiter.gate.is_forked() && !waiter.is_done() {
            if !waiter.has_leases() {
                refusals += 1;
                if refusals == REFUSALS {
                    // The registrar will not take them; what it knows must not be freed under it.
                    std::mem::forget(waiter);
                    return;
                }
            }
            crate::shim::thread::sleep(nap);
            nap = (nap * 2).min(ORPHANS_LONGEST);
        }
    };
    let spawned = crate::shim::thread::Builder::new().name("mrrc-orphans".into()).spawn(wait);
    if spawned.is_err() {
        // Leases point to the state: better that it stays for good.
        std::mem::forget(shared);
    }
}
