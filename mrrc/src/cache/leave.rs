//! How registrations end: in batches, by whoever needs the room, the background thread, or [`Cache::reap`].
//!
//! A batch takes a bounded time (`pace.rs`). What it freed is free when it ends, and whoever waits for room looks again then.
//! Several threads deregister batches at once.
//!
//! A lease that ends only empties its slot. Somebody looks later: the next request that lacks room,
//! `reap`, or the *background*, a thread that every cache with a monitor has and others may have. It
//! deregisters what left, looks after leases of regions that were struck out, and keeps some room free if it is asked
//! to ([`Builder::headroom`](super::Builder::headroom)), so that misses seldom wait for a deregistration. What could not be
//! deregistered it tries again, at intervals that grow from 50 ms to 30 s.
//!
//! [`Cache::reap`]: crate::Cache::reap

use super::arena::Memory;
use super::barrier::Barrier;
use super::books::{BatchTaken, Books, Orphan};
use super::error::Unusable;
use super::shared::Shared;
use super::tally::Amount;
use super::who;
use crate::own_thread;
use crate::policy::Need;
use crate::range::PageRange;
use crate::registrar::{Registered, Registrar};
use crate::shim::sync::MutexGuard;
use crate::shim::sync::atomic::Ordering;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at leases whose regions are to go. After these it is arranged that they tell.
const LOOKS: [Duration; 3] = [Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];
/// Between two looks at what nobody tells of.
const IDLE: Duration = Duration::from_millis(500);
/// The shortest and longest time after which the background tries again what could not be deregistered.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// How often a registrar is asked to take what it refused when the cache is gone.
const REFUSALS: u32 = 20;
const ORPHANS_LONGEST: Duration = Duration::from_millis(100);
/// Batches that a request deregisters for others, at most, where no other thread does that. Each takes twice as much as the
/// one before, or some milliseconds.
const FOR_OTHERS: u32 = 16;

impl<T> Books<T> {
    /// What could not be deregistered is tried again.
    pub(super) fn unpark(&mut self) {
        if !self.parked.is_empty() {
            self.limbo.extend(self.parked.drain(..));
        }
    }
}

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
    /// Whether it is time. Asked at each round, whether there is anything to do it for or not.
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

type Lock<'a, R> = MutexGuard<'a, Books<<R as Registrar>::Registration>>;

impl<R: Registrar> Shared<R> {
    /// Deregisters the next batch of what has left, without the lock.
    pub(super) fn deregister_next<'a>(&'a self, books: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
        self.deregister_batch(books);
        self.lock()
    }

    /// Deregisters what has left by now, batch by batch, and at most so many. What leaves meanwhile stays for others.
    fn deregister_batches<'a>(&'a self, mut books: Lock<'a, R>, most: u32) -> Result<Lock<'a, R>, Unusable> {
        // What left first goes first: whoever takes so many regions, or finds none, has seen the last of these go.
        let mut left = books.limbo.len();
        for _ in 0..most {
            left -= self.deregister_batch(books).min(left);
            books = self.lock()?;
            if left == 0 || !books.has_leavers() {
                break;
            }
        }
        Ok(books)
    }

    /// A request does a part of what leaves, where nobody else deregisters it.
    pub(super) fn work_for_others<'a>(&'a self, books: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
        if self.terms.background || books.going.regions > 0 || !books.has_leavers() {
            return Ok(books);
        }
        self.deregister_batches(books, FOR_OTHERS)
    }

    /// Deregisters what has left, batch by batch, until so much is deregistered, by whom ever, or nothing is left to wait for.
    /// No longer than that: others' batches are waited for, and one's own are begun, until the time is over.
    pub(super) fn free<'a>(&'a self, mut books: Lock<'a, R>, pages: u64, longest: Duration) -> Result<(), Unusable> {
        let begun = Instant::now();
        let enough = books.tally.deregistered.pages.saturating_add(pages);
        loop {
            let left = longest.saturating_sub(begun.elapsed());
            if !books.limbo.is_empty() {
                books = self.deregister_next(books)?;
            } else if books.going.regions > 0 && !left.is_zero() {
                books = self.wait(books, left)?;
            } else {
                return Ok(());
            }
            if books.tally.deregistered.pages >= enough || begun.elapsed() >= longest {
                return Ok(());
            }
        }
    }

    /// Deregisters the next batch. Returns how many regions that was.
    pub(super) fn deregister_batch(&self, mut books: Lock<'_, R>) -> usize {
        let BatchTaken { number, regions, amount, unwatch, timed } = books.batch_begins(who::am_i());
        let orphans = std::mem::take(&mut books.to_unmap);
        drop(books);
        let count = regions.len();
        let refusal = Some("it panicked".to_owned());
        let mut batch = Batch { shared: self, number, regions, orphans, amount, took: None, refusal };

        unwatch.into_iter().for_each(|range| self.unwatch(range));
        if batch.regions.is_empty() {
            batch.refusal = None;
            return 0;
        }
        let begun = (timed || self.times.is_some()).then(Instant::now);
        batch.refusal = self.registrar.deregister(&mut batch.regions).err().map(|error| error.to_string());
        // Under a checker time does not pass.
        let took = begun.map(|begun| if cfg!(any(loom, shuttle)) { Duration::ZERO } else { begun.elapsed() });
        batch.took = took.filter(|_| timed);
        if let (Some(times), Some(took)) = (&self.times, took) {
            times.deregistered(took);
        }
        count
    }

    /// Deregisters all that can go without an eviction, parked ones too. Returns how much that was.
    pub(super) fn reap(&self) -> Result<Amount, Unusable> {
        let mut books = self.lock()?;
        let before = books.tally.deregistered;
        books.unpark();
        // The background may be gone, and without `membarrier` the word of a lease that ended may be lost.
        if self.barrier == Barrier::Fence {
            books.look_at_all_lent(self.desk());
        }
        books = self.deregister_all(books)?;
        let mut after = books.tally.deregistered;
        after.take(before);
        Ok(after)
    }

    /// Deregisters all that has left by now, and unmaps memory that nothing is registered of any more.
    fn deregister_all<'a>(&'a self, mut books: Lock<'a, R>) -> Result<Lock<'a, R>, Unusable> {
        books.sweep(self.desk());
        if books.has_leavers() {
            books = self.deregister_batches(books, u32::MAX)?;
        }
        if !books.orphans.is_empty() {
            books.sweep(self.desk());
            if !books.to_unmap.is_empty() {
                books = self.deregister_next(books)?;
            }
        }
        Ok(books)
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
        let (mut retry, mut second_look) = (Retry::default(), Retry::default());
        let mut looks = Looks::new();
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
            if second_look.is_due(self.barrier == Barrier::Fence && !books.lent.is_empty()) {
                books.look_at_all_lent(self.desk());
            } else {
                books.sweep(self.desk());
            }
            let mut look = looks.next(books.lent.fresh() > 0);
            if look.is_none() && books.lent.fresh() > 0 {
                books.await_lent(self.desk());
                look = looks.next(books.lent.fresh() > 0);
            }
            // What is leaving already makes room; more only if that is not enough.
            let free = self.terms.capacity.pages.saturating_sub(books.registered.pages);
            let is_short = free < self.terms.headroom;
            if is_short && !books.has_leavers() && books.going.regions == 0 {
                books.evict(self.desk(), Need { pages: self.terms.headroom - free, regions: 0 });
            }
            if retry.is_due(!books.parked.is_empty()) {
                books.unpark();
            }
            if books.has_leavers() {
                // A registrar that panics has its batch parked; the background lives on.
                _ = std::panic::catch_unwind(AssertUnwindSafe(|| self.deregister_batch(books)));
                continue;
            }
            let idle = (is_short || !books.orphans.is_empty()).then_some(IDLE);
            let mut longest = [look, retry.left(), second_look.left(), idle].into_iter().flatten().min();
            // Without end, if nothing is to be done: whoever makes work says so.
            if longest.is_none() && !books.rest() {
                longest = Some(IDLE);
            }
            drop(books);
            self.work.wait(longest);
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
        // What cannot be had now is the next one's to look after.
        drop(self.deregister_all(books));
        self.work.notify_one();
    }

    /// Deregisters what has left, if anything has.
    pub(super) fn tidy(&self) {
        if let Ok(books) = self.lock() {
            drop(self.deregister_all(books));
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
    /// How long the registrar took, if the pace wants to know.
    took: Option<Duration>,
    /// Why the registrar did not take all, if it did not.
    refusal: Option<String>,
}

impl<R: Registrar> Drop for Batch<'_, R> {
    fn drop(&mut self) {
        let Self { shared, amount, number, took, .. } = *self;
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
        let Books { registered, tally, pace, .. } = &mut *books;
        if amount != Amount::default() {
            let left = Amount::of(&self.regions);
            shared.leave_budget(amount.pages.saturating_sub(left.pages));
            tally.handed_over(registered, amount, left, refusal.is_some());
            pace.learn(amount, took);
        }
        if !self.regions.is_empty() {
            books.refusal = refusal.unwrap_or_else(|| "it said that all went well, and left them".to_owned());
        }
        books.batch_ends(number, amount, &mut self.regions);
        if !books.parked.is_empty() || !books.orphans.is_empty() {
            books.stir(shared.work);
        }
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
    let spawned = own_thread::spawn("mrrc-orphans", wait);
    if spawned.is_err() {
        // Leases point to the state: better that it stays for good.
        std::mem::forget(shared);
    }
}
