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
use crate::registrar::{Failure, Registrar};
use crate::shim::sync::atomic::Ordering;
use smallvec::SmallVec;
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
    /// The most registrations that the caller can take; one, if there would be more.
    pub(super) most_parts: usize,
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
    /// When the first wait began.
    begun: Option<Instant>,
    holds: SmallVec<[Hold; 2]>,
    mine: SmallVec<[Placeholder; 2]>,
    awaited: SmallVec<[Awaited; 1]>,
    /// Room that was reserved with the registrar and not used yet.
    reserved: Amount,
    attempts: u64,
}

impl<'cache, R: Registrar> Acquiring<'cache, R> {
    pub(super) fn new(shared: &'cache Shared<R>, wish: Wish) -> Self {
        Self {
            shared,
            wish,
            begun: None,
            holds: SmallVec::new(),
            mine: SmallVec::new(),
            awaited: SmallVec::new(),
            reserved: Amount::default(),
            attempts: 0,
        }
    }

    /// Plans the request: from here on, what stands of it is held and what is missing is reserved.
    pub(super) fn start(&mut self) -> Result<(), AcquireError> {
        let Self { shared, wish, .. } = *self;
        let offered = shared.terms.rights;
        if !offered.contains(wish.access) {
            let registrar = shared.registrar.name();
            return Err(AcquireError::Rights { range: wish.range, asked: wish.access, offered, registrar });
        }
        if wish.access.is_remote() {
            shared.has_remote.store(true, Ordering::Relaxed);
        }
        let limits = shared.terms.capacity;
        let too_large = |needed, limit, unit| AcquireError::TooLarge { range: wish.range, needed, limit, unit };
        if wish.range.pages() > limits.pages {
            return Err(too_large(wish.range.pages(), limits.pages, "pages"));
        }
        if wish.range.pages() > shared.terms.region_pages {
            if wish.most_parts == 1 {
                return Err(too_large(wish.range.pages(), shared.terms.region_pages, "pages in one region"));
            }
            let regions = wish.range.pages().div_ceil(shared.terms.region_pages);
            if regions > limits.regions {
                return Err(too_large(regions, limits.regions, "regions"));
            }
        }
        self.plan(wish.range, false)
    }

    /// What is registered already, in no order.
    pub fn ready(&self) -> Segments<'_, R> {
        Segments::over(self.shared, &self.holds, self.wish.address, self.wish.length)
    }

    /// Registers what is missing.
    ///
    /// # Errors
    /// As [`Cache::acquire`](crate::Cache::acquire).
    pub fn finish(mut self) -> Result<Lease<R>, AcquireError> {
        self.complete()
    }

    pub(super) fn complete(&mut self) -> Result<Lease<R>, AcquireError> {
        self.register_mine()?;
        while let Some(awaited) = self.awaited.pop() {
            self.wait_for(&awaited)?;
            // Planned again whatever became of it: it may have failed, or gone already.
            self.plan(awaited.range, true)?;
            self.register_mine()?;
        }
        let shared = self.shared;
        let Wish { address, length, .. } = self.wish;
        if self.holds.len() > 1 {
            self.holds.sort_by_key(|hold| shared.records[hold.id()].range());
            let rest = self.holds.drain(1..).collect();
            let Some(first) = self.holds.pop() else { unreachable!("there was more than one") };
            return Ok(Lease::of(shared, address, length, first, rest));
        }
        let Some(first) = self.holds.pop() else { unreachable!("a range of pages takes a region at least") };
        Ok(Lease::one(shared, address, length, first))
    }

    /// How long the request has waited.
    fn waited(&mut self) -> Duration {
        self.begun.get_or_insert_with(Instant::now).elapsed()
    }

    /// Finds out what there is of the range, holds that, and reserves the rest.
    fn plan(&mut self, range: PageRange, again: bool) -> Result<(), AcquireError> {
        let shared = self.shared;
        let desk = shared.desk();
        let Wish { access, most_parts, .. } = self.wish;
        let mut ask = Ask { range, access, one_region: false, again };
        let mut nap = LOOK;
        let mut probed = false;
        let mut books = shared.lock()?;
        loop {
            let limit = shared.terms.capacity;
            let crowded =
                books.core.used_pages() + range.pages() > limit.pages || books.core.used_regions() >= limit.regions;
            if crowded {
                books.sweep(desk);
                if !probed {
                    // Somebody may have to leave for this: not for an address that cannot be registered.
                    probed = true;
                    drop(books);
                    self.probe(range)?;
                    books = shared.lock()?;
                }
            }
            ask.one_region = most_parts < usize::MAX && books.core.parts(&ask) > most_parts;
            let (core, mut leases) = books.parts(desk);
            let answer = core.ask(&ask, &mut leases).map(drop);
            // Also where there was no room: what the request would have replaced may have left.
            books.collect_outcome(desk);
            let Err(source) = answer else { break };
            let waited = self.waited();
            let left = shared.terms.room_wait.saturating_sub(waited);
            if left.is_zero() {
                return Err(AcquireError::AllInUse { source, waited });
            }
            ask.again = true;
            books.tally.waits += 1;
            // Leases end without a word: looked after at growing intervals.
            books = shared.wait(books, nap.min(left))?;
            nap = (nap * 2).min(LOOK_LONGEST);
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
        let mut amount = Amount::default();
        for placeholder in &self.mine {
            amount.add(placeholder.range.pages());
            books.core.hold(placeholder.id);
            let ticket = books.next_ticket;
            books.next_ticket += 1;
            books.set_entry(placeholder.id, Entry::Pending { ticket, stale: false });
        }
        // Mostly there is room, and nothing to deregister first.
        if (books.limbo.is_empty() || shared.terms.background) && books.reserve(amount, shared.terms.capacity) {
            self.reserved = amount;
        }
        Ok(())
    }

    /// Asks the registrar whether the range can be registered at all.
    fn probe(&mut self, range: PageRange) -> Result<(), AcquireError> {
        let shared = self.shared;
        let access = self.wish.access;
        let Err(source) = shared.registrar.probe(range, access) else { return Ok(()) };
        self.attempts += 1;
        Err(AcquireError::Register { range, access, registrar: shared.registrar.name(), attempts: 1, source })
    }

    /// Registers this request's gaps, all or none.
    fn register_mine(&mut self) -> Result<(), AcquireError> {
        if self.mine.is_empty() {
            return Ok(());
        }
        if self.reserved == Amount::default() {
            self.make_way()?;
        }
        if let [Placeholder { range, access, .. }] = self.mine[..] {
            let watch = self.watch(range);
            let registration = self.register(range, access);
            let failure = match registration {
                Ok(registration) => return self.publish(std::iter::once((registration, watch))),
                Err(failure) => failure,
            };
            self.unwatch(range, watch);
            self.publish(std::iter::empty())?;
            return Err(failure);
        }
        let mut registered = SmallVec::<[_; 2]>::new();
        let mut failure = None;
        for next in 0..self.mine.len() {
            let Placeholder { range, access, .. } = self.mine[next];
            let watch = self.watch(range);
            match self.register(range, access) {
                Ok(registration) => registered.push((registration, watch)),
                Err(error) => {
                    self.unwatch(range, watch);
                    failure = Some(error);
                    break;
                }
            }
        }
        self.publish(registered.into_iter())?;
        failure.map_or(Ok(()), Err)
    }

    /// Whether changes of the range will be heard of.
    fn watch(&self, range: PageRange) -> Watch {
        if self.wish.owned { Watch::Watched } else { self.shared.monitor.watch(range) }
    }

    /// A range that was to be watched is not registered after all.
    fn unwatch(&self, range: PageRange, watch: Watch) {
        if watch == Watch::Watched && !self.wish.owned {
            self.shared.monitor.unwatch(range);
        }
    }

    /// Deregisters what has left until there is room for this request's gaps, and reserves that.
    fn make_way(&mut self) -> Result<(), AcquireError> {
        let shared = self.shared;
        let limit = shared.terms.capacity;
        let mut amount = Amount::default();
        self.mine.iter().for_each(|placeholder| amount.add(placeholder.range.pages()));
        let mut retried = false;
        let mut books = shared.lock()?;
        loop {
            if !shared.terms.background && !books.limbo.is_empty() {
                books = shared.deregister_limbo(books)?;
            } else if books.reserve(amount, limit) {
                self.reserved = amount;
                return Ok(());
            } else if !books.limbo.is_empty() {
                books = shared.deregister_limbo(books)?;
            } else if books.going > 0 {
                // Somebody is deregistering just now.
                let waited = self.waited();
                let left = shared.terms.patience.saturating_sub(waited);
                if left.is_zero() {
                    return Err(AcquireError::TimedOut { range: self.wish.range, waited });
                }
                books = shared.wait(books, left)?;
            } else if !retried && !books.parked.is_empty() {
                retried = true;
                books.unpark();
            } else {
                // What could not be deregistered takes the room.
                let after = books.registered.plus(amount);
                let source = crate::AllInUse {
                    asked: self.wish.range,
                    missing_pages: after.pages.saturating_sub(limit.pages),
                    missing_regions: after.regions.saturating_sub(limit.regions),
                    in_use_pages: books.registered.pages,
                    in_use_regions: books.registered.regions,
                };
                drop(books);
                return Err(AcquireError::AllInUse { source, waited: self.waited() });
            }
        }
    }

    /// Registers one gap; where the system is out of something, makes room and tries again.
    fn register(&mut self, range: PageRange, access: Access) -> Result<R::Registration, AcquireError> {
        let shared = self.shared;
        let mut attempts = 0;
        loop {
            attempts += 1;
            self.attempts += 1;
            let begun = shared.times.as_ref().map(|_| Instant::now());
            let result = shared.registrar.register(range, access);
            if let (Some(times), Some(begun)) = (&shared.times, begun) {
                times.registered(begun.elapsed());
            }
            let source = match result {
                Ok(registration) => {
                    self.reserved.take(Amount { pages: range.pages(), regions: 1 });
                    return Ok(registration);
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
        books.tally.retries += 1;
        books.sweep(desk);
        // More each time: what the system counts need not be what we count.
        let pages = range.pages() << attempts.min(16);
        books.evict(desk, Need { pages, regions: 1 });
        if books.limbo.is_empty() {
            return Ok(false);
        }
        drop(shared.deregister_limbo(books)?);
        Ok(true)
    }

    /// Puts what was registered in the place of the placeholders, and takes back those that were not.
    fn publish(&mut self, registered: impl Iterator<Item = (R::Registration, Watch)>) -> Result<(), AcquireError> {
        let shared = self.shared;
        let (mut books, sure) = shared.lock_now()?;
        self.give_back(&mut books);
        let mut placeholders = std::mem::take(&mut self.mine).into_iter();
        for (registration, watch) in registered {
            let Some(Placeholder { id, range, access }) = placeholders.next() else { break };
            let Entry::Pending { stale, .. } = books.entry(id) else { unreachable!("{id:?} is this request's own") };
            // Not cached any more: merged into another region meanwhile.
            let stale = stale || !sure || !books.core.is_cached(id);
            let barred = !self.wish.owned && books.is_barred(range);
            let cached = !stale && !barred && watch == Watch::Watched && shared.terms.caches;
            books.tally.overtaken += u64::from(stale);
            books.tally.barred += u64::from(barred && !stale);
            books.tally.unwatched += u64::from(watch != Watch::Watched);
            let watched = watch == Watch::Watched && !self.wish.owned;
            books.set_entry(id, Entry::Standing { stale: !cached, watched });
            shared.records[id].fill(range, access, registration);
            self.holds.push(Hold::new(id, shared.grip(id)));
            if cached {
                shared.records[id].show();
                books.core.settle(id);
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
        let waiting = std::mem::take(&mut books.waiting);
        drop(books);
        if waiting > 0 {
            shared.progress.notify_all();
        }
        Ok(())
    }

    /// What was reserved and not used is free again.
    fn give_back(&mut self, books: &mut Books<R::Registration>) {
        books.registered.take(std::mem::take(&mut self.reserved));
        books.tally.attempts += std::mem::take(&mut self.attempts);
    }

    /// Waits until another's placeholder is one no more.
    fn wait_for(&mut self, awaited: &Awaited) -> Result<(), AcquireError> {
        let shared = self.shared;
        let mut books = shared.lock()?;
        while matches!(books.entry(awaited.id), Entry::Pending { ticket, .. } if ticket == awaited.ticket) {
            books.tally.waits += 1;
            // All waits of a request together, so that it ends however often others get ahead of it.
            let waited = self.waited();
            let left = shared.terms.patience.saturating_sub(waited);
            if left.is_zero() {
                return Err(AcquireError::TimedOut { range: self.wish.range, waited });
            }
            books = shared.wait(books, left)?;
        }
        Ok(())
    }
}

impl<R: Registrar> Drop for Acquiring<'_, R> {
    /// Takes back what is not registered, and lets go of the rest. In a child of a fork there is nothing to do: its
    /// books are never used again.
    #[expect(unsafe_code, reason = "it ends holds")]
    fn drop(&mut self) {
        for hold in self.holds.drain(..) {
            // SAFETY: the holds of a lease that did not come about end here; `self.shared` lives on.
            unsafe { hold.end(NonNull::from(self.shared)) };
        }
        if self.mine.is_empty() && self.reserved == Amount::default() && self.attempts == 0 {
            return;
        }
        if let Ok((mut books, _)) = self.shared.lock_now() {
            self.give_back(&mut books);
            for Placeholder { id, .. } in self.mine.drain(..) {
                books.set_entry(id, Entry::Vacant);
                books.core.abandon(id);
            }
            drop(books);
            self.shared.progress.notify_all();
        }
    }
}

/// Whether an error is worth a fall-back to smaller ranges.
pub(super) fn is_unmapped(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Register { source, .. } if source.raw_os_error() == Some(libc::EFAULT))
}
