//! The locked path: what a request does that is no plain hit.
//!
//! ```text
//! lock ─ plan: victims leave, gaps become placeholders, what stands is held ─ unlock
//!      ─ deregister what left, until the gaps fit
//!      ─ ask the monitor, register each gap              (no lock is held)
//! lock ─ publish ─ unlock
//!      ─ wait for the placeholders of others, and plan again for what they leave
//! ```
//!
//! A request reserves all its gaps in one step or fails. It registers its own before it waits for others, and
//! nobody waits for leases while a placeholder of his own stands, so two requests never wait for each other.
//! Waits end by their time-outs. Whatever ends a request early takes back its placeholders, and their waiters
//! plan for themselves.

use super::books::{Amount, Books, Entry};
use super::error::{AcquireError, Unusable};
use super::lease::{Hold, Lease, Segments};
use super::shared::Shared;
use crate::access::Access;
use crate::core::{Ask, Segment};
use crate::invalidation::Watch;
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::{Failure, Registered, Registrar};
use crate::shim::sync::MutexGuard;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// The shortest and longest time between two looks at leases that may have ended.
const LOOK: Duration = Duration::from_micros(100);
const LOOK_LONGEST: Duration = Duration::from_millis(5);

/// What a request is about.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) address: usize,
    pub(super) length: usize,
    /// The pages, rounded out to what the registrar registers.
    pub(super) range: PageRange,
    pub(super) access: Access,
    /// Whether the caller answers for changes of the memory, so that no monitor is needed.
    pub(super) owned: bool,
}

/// A gap that this request registers.
struct Placeholder {
    id: RegionId,
    range: PageRange,
    access: Access,
}

/// A part that another request registers.
struct Awaited {
    id: RegionId,
    ticket: u64,
    range: PageRange,
}

/// Memory that is being acquired: what is registered already can be used while the rest is.
///
/// Dropped before it is finished, it takes back what it has not registered.
pub struct Acquiring<'cache, R: Registrar> {
    shared: &'cache Shared<R>,
    wish: Wish,
    /// Time spent waiting: for room, and for others. What the caller or the registrar takes is not waiting.
    waited_for_room: Duration,
    waited_for_others: Duration,
    holds: Vec<Hold>,
    mine: Vec<Placeholder>,
    awaited: Vec<Awaited>,
}

type Lock<'a, R> = MutexGuard<'a, Books<<R as Registrar>::Registration>>;

impl<'cache, R: Registrar> Acquiring<'cache, R> {
    pub(super) fn begin(shared: &'cache Shared<R>, wish: Wish) -> Result<Self, AcquireError> {
        let offered = shared.terms.rights;
        if !offered.contains(wish.access) {
            let registrar = shared.registrar.name();
            return Err(AcquireError::Rights { range: wish.range, asked: wish.access, offered, registrar });
        }
        if let Some((needed, limit, unit)) = shared.terms.excess(wish.range) {
            return Err(AcquireError::TooLarge { range: wish.range, needed, limit, unit });
        }
        let mut acquiring = Self {
            shared,
            wish,
            waited_for_room: Duration::ZERO,
            waited_for_others: Duration::ZERO,
            holds: Vec::new(),
            mine: Vec::new(),
            awaited: Vec::new(),
        };
        acquiring.plan(wish.range, false)?;
        Ok(acquiring)
    }

    /// What is registered already, in the order of its addresses. Nothing in a forked child.
    pub fn ready(&self) -> Segments<'_, R> {
        let holds = if self.shared.gate.is_forked() { &[] } else { &self.holds[..] };
        Segments::over(self.shared, holds, self.wish.address, self.wish.length)
    }

    /// Registers what is missing.
    ///
    /// # Errors
    /// As [`Cache::acquire`](crate::Cache::acquire).
    pub fn finish(mut self) -> Result<Lease<R>, AcquireError> {
        let shared = self.shared;
        loop {
            self.register_mine()?;
            if let Some(awaited) = self.awaited.pop() {
                self.wait_for(&awaited)?;
                // Planned again whatever became of it: it may have failed, or gone already.
                self.plan(awaited.range, true)?;
            } else if self.holds.len() > shared.terms.max_segments {
                // What took the place of one that was waited for is more than one.
                self.let_go();
                self.plan(self.wish.range, true)?;
            } else {
                break;
            }
        }
        let mut holds = std::mem::take(&mut self.holds);
        holds.sort_by_key(|hold| shared.records[hold.id()].range());
        let Wish { address, length, .. } = self.wish;
        let rest = holds.split_off(1);
        let Some(first) = holds.pop() else { unreachable!("a range of pages takes a region at least") };
        if rest.is_empty() {
            return Ok(Lease::one(shared, address, length, first));
        }
        Ok(Lease::of(shared, address, length, first, rest))
    }

    /// Lets go of what it holds.
    #[expect(unsafe_code, reason = "it ends holds")]
    fn let_go(&mut self) {
        for hold in self.holds.drain(..) {
            // SAFETY: the holds of a lease that did not come about end here; `self.shared` lives on.
            unsafe { hold.end(NonNull::from(self.shared)) };
        }
    }

    /// Finds out what there is of the range, holds that, and reserves the rest.
    fn plan(&mut self, range: PageRange, again: bool) -> Result<(), AcquireError> {
        let shared = self.shared;
        let desk = shared.desk();
        let max_segments = shared.terms.max_segments;
        let mut ask = Ask { range, access: self.wish.access, max_segments, again };
        let mut books = shared.lock()?;
        let mut nap = LOOK;
        loop {
            let crowded = |books: &Books<_>| books.core.used_pages() + range.pages() > shared.terms.capacity.pages;
            if crowded(&books) || books.core.used_regions() == shared.terms.capacity.regions {
                books.sweep(desk);
            }
            let (core, mut leases) = books.parts(desk);
            let answer = core.ask(&ask, &mut leases).map(drop);
            // Also where there was no room: what the request would have replaced may have left.
            books.collect_outcome(desk);
            match answer {
                Ok(()) => break,
                Err(source) => {
                    let waited = self.waited_for_room;
                    let left = shared.terms.room_wait.saturating_sub(waited);
                    if left.is_zero() {
                        return Err(AcquireError::AllInUse { source, waited });
                    }
                    ask.again = true;
                    books.tally.waits += 1;
                    // Leases end without a word: looked after at growing intervals.
                    let begun = Instant::now();
                    books = shared.wait(books, nap.min(left))?;
                    self.waited_for_room += begun.elapsed();
                    nap = (nap * 2).min(LOOK_LONGEST);
                }
            }
        }
        let books = &mut *books;
        for &segment in books.core.outcome().segments() {
            match segment {
                Segment::Ready { region: id, range } => match books.entries[id.index()] {
                    Entry::Pending { ticket, .. } => self.awaited.push(Awaited { id, ticket, range }),
                    _ => self.holds.push(Hold::new(id, shared.grip(id))),
                },
                Segment::Gap { region: Some(id), range, access } => self.mine.push(Placeholder { id, range, access }),
                Segment::Gap { region: None, .. } => unreachable!("under a hard limit every gap becomes a region"),
            }
        }
        for placeholder in &self.mine {
            books.core.hold(placeholder.id);
            let ticket = books.next_ticket;
            books.next_ticket += 1;
            books.set_entry(placeholder.id, Entry::Pending { ticket, stale: false });
        }
        Ok(())
    }

    /// Registers this request's gaps, all or none.
    fn register_mine(&mut self) -> Result<(), AcquireError> {
        if self.mine.is_empty() {
            return Ok(());
        }
        let shared = self.shared;
        let mut amount = Amount::default();
        self.mine.iter().for_each(|placeholder| amount.add(placeholder.range.pages()));
        drop(self.make_way(amount)?);
        let made = Vec::with_capacity(self.mine.len());
        let mut reservation = Reservation { shared, amount, attempts: 0, made, watched: None };
        let mut result = Ok(());
        for placeholder in &self.mine {
            let watch = if self.wish.owned { Watch::Watched } else { shared.monitor.watch(placeholder.range) };
            reservation.watched = (watch == Watch::Watched && !self.wish.owned).then_some(placeholder.range);
            result = self.register(placeholder, watch, &mut reservation);
            if result.is_err() {
                break;
            }
        }
        reservation.unwatch();
        self.publish(reservation)?;
        result
    }

    /// Deregisters what has left until there is room for so much more, and reserves that.
    fn make_way(&mut self, amount: Amount) -> Result<Lock<'cache, R>, AcquireError> {
        let shared = self.shared;
        let limit = shared.terms.capacity;
        let mut retried = false;
        let mut books = shared.lock()?;
        loop {
            let after = books.registered.plus(amount);
            let over = after.pages > limit.pages || after.regions > limit.regions;
            if !books.limbo.is_empty() && (over || !shared.terms.background) {
                books = shared.deregister_limbo(books)?;
            } else if !over {
                books.registered = after;
                books.tally.peak.pages = books.tally.peak.pages.max(after.pages);
                books.tally.peak.regions = books.tally.peak.regions.max(after.regions);
                return Ok(books);
            } else if books.going > 0 {
                // Somebody is deregistering just now.
                books = self.wait(books)?;
            } else if !retried && !books.parked.is_empty() {
                retried = true;
                books.unpark();
            } else {
                // What could not be deregistered takes the room.
                let source = crate::AllInUse {
                    asked: self.wish.range,
                    missing_pages: after.pages.saturating_sub(limit.pages),
                    missing_regions: after.regions.saturating_sub(limit.regions),
                    in_use_pages: books.registered.pages,
                    in_use_regions: books.registered.regions,
                };
                return Err(AcquireError::AllInUse { source, waited: self.waited_for_room });
            }
        }
    }

    /// Registers one gap; where the system is out of something, makes room and tries again.
    fn register(
        &self,
        placeholder: &Placeholder,
        watch: Watch,
        reservation: &mut Reservation<'_, R>,
    ) -> Result<(), AcquireError> {
        let shared = self.shared;
        let &Placeholder { range, access, .. } = placeholder;
        let mut attempts = 0;
        loop {
            attempts += 1;
            // Counted before: the registrar may panic.
            reservation.attempts += 1;
            let begun = shared.times.as_ref().map(|_| Instant::now());
            let result = shared.registrar.register(range, access);
            if let (Some(times), Some(begun)) = (&shared.times, begun) {
                times.registered(begun.elapsed());
            }
            let source = match result {
                Ok(registration) => {
                    reservation.used(Registered { range, access, registration }, watch);
                    return Ok(());
                }
                Err(source) => source,
            };
            let last = Failure::of(&source) == Failure::Refused || attempts > shared.terms.retries;
            if last || !self.free_some(range, attempts)? {
                let registrar = shared.registrar.name();
                return Err(AcquireError::Register { range, access, registrar, attempts, source });
            }
        }
    }

    /// The system is out of something: evicts and deregisters a batch. False if nothing could be freed.
    fn free_some(&self, range: PageRange, attempts: u32) -> Result<bool, Unusable> {
        let shared = self.shared;
        let desk = shared.desk();
        let mut books = shared.lock()?;
        books.sweep(desk);
        // More each time: what the system counts need not be what we count.
        let pages = range.pages() << attempts.min(16);
        books.evict(desk, Need { pages, regions: 1 });
        if books.limbo.is_empty() {
            return Ok(false);
        }
        books.tally.retries += 1;
        drop(shared.deregister_limbo(books)?);
        Ok(true)
    }

    /// Puts what was registered in the place of the placeholders, and takes back those that were not.
    fn publish(&mut self, mut reservation: Reservation<'_, R>) -> Result<(), AcquireError> {
        let shared = self.shared;
        let desk = shared.desk();
        let (mut books, sure) = shared.lock_now()?;
        reservation.give_back(&mut books);
        let mut placeholders = std::mem::take(&mut self.mine).into_iter();
        for (made, Placeholder { id, .. }) in reservation.made.drain(..).zip(&mut placeholders) {
            let Made { registered, watch, watched } = made;
            let Registered { range, access, registration } = registered;
            let Entry::Pending { stale, .. } = books.entry(id) else { unreachable!("{id:?} is this request's own") };
            // Not cached any more: merged into another region meanwhile.
            let stale = stale || !sure || !books.core.is_cached(id);
            let barred = !self.wish.owned && books.is_barred(range);
            let cached = !stale && !barred && watch == Watch::Watched && shared.terms.caches;
            books.tally.overtaken += u64::from(stale);
            books.tally.barred += u64::from(barred && !stale);
            books.tally.unwatched += u64::from(watch != Watch::Watched);
            books.set_entry(id, Entry::Standing { stale: !cached, watched });
            shared.records[id].fill(range, access, registration);
            self.holds.push(Hold::new(id, shared.grip(id)));
            if cached {
                shared.records[id].show();
                books.release(desk, id);
            } else {
                // For this lease only: the core's hold goes on until the lease ends.
                books.core.withdraw(id);
                books.lent.push(id);
            }
        }
        for Placeholder { id, .. } in placeholders {
            books.set_entry(id, Entry::Vacant);
            books.core.abandon(id);
        }
        drop(books);
        shared.progress.notify_all();
        Ok(())
    }

    /// Waits until another's placeholder is one no more.
    fn wait_for(&mut self, awaited: &Awaited) -> Result<(), AcquireError> {
        let mut books = self.shared.lock()?;
        while matches!(books.entry(awaited.id), Entry::Pending { ticket, .. } if ticket == awaited.ticket) {
            books.tally.waits += 1;
            books = self.wait(books)?;
        }
        Ok(())
    }

    /// Waits for the progress of others, as long as the patience of the whole request lasts.
    fn wait(&mut self, books: Lock<'cache, R>) -> Result<Lock<'cache, R>, AcquireError> {
        let waited = self.waited_for_others;
        let left = self.shared.terms.patience.saturating_sub(waited);
        if left.is_zero() {
            return Err(AcquireError::TimedOut { range: self.wish.range, waited });
        }
        let begun = Instant::now();
        let books = self.shared.wait(books, left)?;
        self.waited_for_others += begun.elapsed();
        Ok(books)
    }
}

impl<R: Registrar> Drop for Acquiring<'_, R> {
    /// Takes back what is not registered, and lets go of the rest. In a child of a fork there is nothing to do: its
    /// books are never used again.
    fn drop(&mut self) {
        self.let_go();
        if self.mine.is_empty() {
            return;
        }
        if let Ok((mut books, _)) = self.shared.lock_now() {
            for Placeholder { id, .. } in self.mine.drain(..) {
                books.set_entry(id, Entry::Vacant);
                books.core.abandon(id);
            }
            drop(books);
            self.shared.progress.notify_all();
        }
    }
}

/// Room that was reserved with the registrar, and what was made of it. What is not used is given back and what was
/// made is not lost, whatever happens: a registrar or a monitor can panic.
struct Reservation<'a, R: Registrar> {
    shared: &'a Shared<R>,
    /// Not used yet.
    amount: Amount,
    attempts: u64,
    /// Registered, and not in the books yet.
    made: Vec<Made<R::Registration>>,
    /// Watched, and not registered yet.
    watched: Option<PageRange>,
}

struct Made<T> {
    registered: Registered<T>,
    watch: Watch,
    /// Whether the monitor is to be told when it goes.
    watched: bool,
}

impl<R: Registrar> Reservation<'_, R> {
    fn used(&mut self, registered: Registered<R::Registration>, watch: Watch) {
        self.amount.take(Amount { pages: registered.range.pages(), regions: 1 });
        let watched = self.watched.take().is_some();
        self.made.push(Made { registered, watch, watched });
    }

    /// What is not registered need not be watched. Never with a lock held.
    fn unwatch(&mut self) {
        if let Some(range) = self.watched.take() {
            self.shared.monitor.unwatch(range);
        }
    }

    fn give_back(&mut self, books: &mut Books<R::Registration>) {
        books.registered.take(std::mem::take(&mut self.amount));
        books.tally.attempts += std::mem::take(&mut self.attempts);
    }
}

impl<R: Registrar> Drop for Reservation<'_, R> {
    fn drop(&mut self) {
        self.unwatch();
        let is_settled = self.amount == Amount::default() && self.attempts == 0 && self.made.is_empty();
        if !is_settled && let Ok((mut books, _)) = self.shared.lock_now() {
            self.give_back(&mut books);
            for Made { registered, watched, .. } in self.made.drain(..) {
                if watched {
                    books.to_unwatch.push(registered.range);
                }
                books.limbo.push(registered);
            }
        }
    }
}

/// Whether an error is worth a fall-back to smaller ranges.
pub(super) fn is_unmapped(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Register { source, .. } if source.raw_os_error() == Some(libc::EFAULT))
}
