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
use super::shared::{Shared, Terms};
use crate::access::Access;
use crate::core::{Ask, Segment, Sharing};
use crate::invalidation::Watch;
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::{Failure, Registered, Registrar};
use crate::shim::sync::MutexGuard;
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
    /// Memory whose changes the caller answers for, so that no monitor is needed there.
    pub(super) owned: Option<PageRange>,
    /// Whose regions may serve it.
    pub(super) sharing: Sharing,
    /// Whether it has been counted as a request already.
    pub(super) counted: bool,
}

impl Wish {
    /// The rights are complete; the pages are rounded out here.
    pub(super) fn new(terms: &Terms, address: usize, length: usize, access: Access) -> Result<Self, AcquireError> {
        let range = PageRange::of_bytes(address as u64, length as u64)?.rounded_out(terms.unit);
        Ok(Self { address, length, range, access, owned: None, sharing: Sharing::All, counted: false })
    }

    /// Whether the caller answers for all of the range. A region can be larger than the request: its neighbours may
    /// be merged with it, and they may lie elsewhere.
    fn answers_for(&self, range: PageRange) -> bool {
        self.owned.is_some_and(|owned| owned.contains(range))
    }

    /// Whether the monitor is asked about the range. What nobody will find needs no watching.
    fn needs_watching(&self, range: PageRange) -> bool {
        self.sharing != Sharing::Nothing && !self.answers_for(range)
    }
}

/// A gap that this request registers.
struct Placeholder {
    id: RegionId,
    range: PageRange,
    access: Access,
    /// Whether pages there were being discarded when this was planned.
    barred: bool,
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
    holds: SmallVec<[Hold; 2]>,
    /// Held before the request was planned anew.
    past: SmallVec<[Hold; 1]>,
    mine: SmallVec<[Placeholder; 2]>,
    awaited: SmallVec<[Awaited; 1]>,
    /// Room that was reserved with the registrar and not used yet.
    reserved: Amount,
    /// Attempts that are not in the books yet.
    attempts: u64,
    /// Registered, and not in the books yet. Whatever happens it is not lost: a registrar or a monitor can panic.
    made: SmallVec<[Made<R::Registration>; 1]>,
    /// Watched, and not registered yet.
    watched: Option<PageRange>,
}

/// A gap that was registered.
struct Made<T> {
    registered: Registered<T>,
    watch: Watch,
    /// Whether the monitor is to be told when it goes.
    watched: bool,
}

type Lock<'a, R> = MutexGuard<'a, Books<<R as Registrar>::Registration>>;

impl<'cache, R: Registrar> Acquiring<'cache, R> {
    pub(super) fn new(shared: &'cache Shared<R>, wish: Wish) -> Self {
        Self {
            shared,
            wish,
            waited_for_room: Duration::ZERO,
            waited_for_others: Duration::ZERO,
            holds: SmallVec::new(),
            past: SmallVec::new(),
            mine: SmallVec::new(),
            awaited: SmallVec::new(),
            reserved: Amount::default(),
            attempts: 0,
            made: SmallVec::new(),
            watched: None,
        }
    }

    /// Plans the request: from here on, what stands of it is held and what is missing is reserved.
    ///
    /// Where there are members, the wish is their span: each of them counts as a request, and the span does not.
    pub(super) fn start(&mut self, members: &[PageRange]) -> Result<(), AcquireError> {
        let Self { shared, wish, .. } = *self;
        shared.terms.check(wish.range, wish.access, shared.registrar.name())?;
        if wish.access.is_remote() {
            shared.has_remote.store(true, Ordering::Relaxed);
        }
        self.plan(wish.range, wish.counted, members)
    }

    /// What is registered already, in the order of its addresses. Nothing in a forked child.
    pub fn ready(&self) -> Segments<'_, R> {
        let holds = if self.shared.gate.is_forked() { &[] } else { &self.holds[..] };
        Segments::over(self.shared, holds, self.wish.address, self.wish.length)
    }

    /// Registers what is missing. What was [ready](Acquiring::ready) stays held until this is dropped, also after an
    /// error: drop it when the transfers that use it are done.
    ///
    /// # Errors
    /// As [`Cache::acquire`](crate::Cache::acquire).
    pub fn finish(&mut self) -> Result<Lease<R>, AcquireError> {
        self.complete()
    }

    pub(super) fn complete(&mut self) -> Result<Lease<R>, AcquireError> {
        self.register_all()?;
        let Wish { address, length, .. } = self.wish;
        Ok(lease(self.shared, address, length, std::mem::take(&mut self.holds)))
    }

    /// A lease for each of these members of the wish: address and length.
    pub(super) fn share(mut self, members: &[(usize, usize)]) -> Result<Vec<Lease<R>>, AcquireError> {
        self.register_all()?;
        let shared = self.shared;
        // Nobody looks who holds what while the lock is taken, so no look falls between one hold and another.
        let (books, _) = shared.lock_now()?;
        let mut leases = Vec::with_capacity(members.len());
        for &(address, length) in members {
            let range = PageRange::of_bytes(address as u64, length as u64)?;
            let serving = self.holds.iter().filter(|hold| shared.records[hold.id()].range().overlaps(range));
            let holds = serving.map(|hold| Hold::new(hold.id(), shared.grip(hold.id()))).collect();
            leases.push(lease(shared, address, length, holds));
        }
        drop(books);
        Ok(leases)
    }

    /// Registers what is missing, so that everything is held.
    fn register_all(&mut self) -> Result<(), AcquireError> {
        if self.shared.gate.is_forked() {
            return Err(Unusable::Forked.into());
        }
        loop {
            self.register_mine()?;
            if let Some(awaited) = self.awaited.pop() {
                self.wait_for(&awaited)?;
                // Planned again whatever became of it: it may have failed, or gone already.
                self.plan(awaited.range, true, &[])?;
            } else if self.holds.len() > self.shared.terms.max_segments {
                // What took the place of one that was waited for is more than one. What was shown as ready stays held.
                self.past.extend(self.holds.drain(..));
                self.plan(self.wish.range, true, &[])?;
            } else {
                return Ok(());
            }
        }
    }

    /// Lets go of what it holds.
    #[expect(unsafe_code, reason = "it ends holds")]
    fn let_go(&mut self) {
        for hold in self.holds.drain(..).chain(self.past.drain(..)) {
            // SAFETY: the holds of a lease that did not come about end here; `self.shared` lives on.
            unsafe { hold.end(NonNull::from(self.shared)) };
        }
    }

    /// Finds out what there is of the range, holds that, and reserves the rest.
    fn plan(&mut self, range: PageRange, again: bool, members: &[PageRange]) -> Result<(), AcquireError> {
        let shared = self.shared;
        let desk = shared.desk();
        let Wish { access, sharing, .. } = self.wish;
        let mut ask = Ask { range, access, max_segments: shared.terms.max_segments, again, sharing };
        let mut nap = LOOK;
        let mut probed = false;
        let mut books = shared.lock()?;
        loop {
            if books.closed {
                return Err(Unusable::Closed.into());
            }
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
            let (core, mut leases) = books.parts(desk);
            let answer = if members.is_empty() || ask.again {
                core.ask(&ask, &mut leases).map(drop)
            } else {
                core.ask_group(&ask, members, &mut leases).map(drop)
            };
            books.collect_outcome(desk);
            let Err(source) = answer else { break };
            ask.again = true;
            let lent = books.lent.len();
            books.sweep(desk);
            if books.lent.len() < lent {
                // Leases have ended since it was last looked.
                books.core.is_asked_again();
                continue;
            }
            let waited = self.waited_for_room;
            let left = shared.terms.room_wait.saturating_sub(waited);
            if left.is_zero() {
                return Err(AcquireError::AllInUse { source, waited });
            }
            books.core.is_asked_again();
            books.tally.waits += 1;
            // Leases end without a word: looked after at growing intervals.
            let begun = Instant::now();
            books = shared.wait(books, nap.min(left))?;
            self.waited_for_room += begun.elapsed();
            nap = (nap * 2).min(LOOK_LONGEST);
        }
        let books = &mut *books;
        for &segment in books.core.outcome().segments() {
            match segment {
                Segment::Ready { region: id, range } => match books.entries[id.index()] {
                    Entry::Pending { ticket, .. } => self.awaited.push(Awaited { id, ticket, range }),
                    _ => self.holds.push(Hold::new(id, shared.grip(id))),
                },
                Segment::Gap { region: Some(id), range, access } => {
                    // Asked before the pages are looked up: a registration can outlast the bar. What is discarded from
                    // here on makes the placeholder stale.
                    let barred = books.is_changing(range) || !self.wish.answers_for(range) && books.is_barred(range);
                    self.mine.push(Placeholder { id, range, access, barred });
                }
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
        if shared.terms.background
            && shared.terms.capacity.pages.saturating_sub(books.registered.pages) < shared.terms.headroom
        {
            shared.work.notify_one();
        }
        // Mostly there is room, and nothing to deregister first.
        if (!books.has_leavers() || shared.terms.background) && books.reserve(amount, shared.terms.capacity) {
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

    /// Registers this request's gaps until one fails. Those registered before it stay cached.
    fn register_mine(&mut self) -> Result<(), AcquireError> {
        if self.mine.is_empty() {
            return Ok(());
        }
        // The room may have been reserved by the parent of this process.
        if self.shared.gate.is_forked() {
            return Err(Unusable::Forked.into());
        }
        if self.reserved == Amount::default() {
            self.make_way()?;
        }
        let mut result = Ok(());
        for next in 0..self.mine.len() {
            let Placeholder { range, access, .. } = self.mine[next];
            let watch = self.watch(range);
            result = self.register(range, access, watch);
            if result.is_err() {
                break;
            }
        }
        self.unwatch();
        self.publish()?;
        result
    }

    /// Whether changes of the range will be heard of.
    fn watch(&mut self, range: PageRange) -> Watch {
        if !self.wish.needs_watching(range) {
            return Watch::Watched;
        }
        let watch = self.shared.monitor.watch(range);
        self.watched = (watch == Watch::Watched).then_some(range);
        watch
    }

    /// What is not registered after all need not be watched. Never with a lock held.
    fn unwatch(&mut self) {
        if let Some(range) = self.watched.take() {
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
            if !shared.terms.background && books.has_leavers() {
                books = shared.deregister_limbo(books)?;
            } else if books.reserve(amount, limit) {
                self.reserved = amount;
                return Ok(());
            } else if !books.limbo.is_empty() {
                books = shared.deregister_limbo(books)?;
            } else if books.going > 0 {
                // Somebody is deregistering just now.
                books = self.wait(books)?;
            } else if !retried && !books.parked.is_empty() {
                retried = true;
                books.unpark();
            } else {
                // What could not be deregistered takes the room.
                let Amount { pages, regions } = Amount::of(&books.parked);
                if regions > 0 {
                    return Err(AcquireError::NotTakenBack { range: self.wish.range, pages, regions });
                }
                let source = books.registered.no_room(self.wish.range, amount, limit);
                return Err(AcquireError::AllInUse { source, waited: self.waited_for_room });
            }
        }
    }

    /// Registers one gap; where the system is out of something, makes room and tries again.
    fn register(&mut self, range: PageRange, access: Access, watch: Watch) -> Result<(), AcquireError> {
        let shared = self.shared;
        let mut attempts = 0;
        loop {
            attempts += 1;
            // Counted before: the registrar may panic.
            self.attempts += 1;
            let begun = shared.times.as_ref().map(|_| Instant::now());
            let result = shared.registrar.register(range, access);
            if let (Some(times), Some(begun)) = (&shared.times, begun) {
                times.registered(begun.elapsed());
            }
            let source = match result {
                Ok(registration) => {
                    self.reserved.take(Amount { pages: range.pages(), regions: 1 });
                    let watched = self.watched.take().is_some();
                    let registered = Registered { range, access, registration };
                    self.made.push(Made { registered, watch, watched });
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
        if !books.limbo.is_empty() {
            books.tally.retries += 1;
            drop(shared.deregister_limbo(books)?);
            return Ok(true);
        }
        // Somebody else may be freeing what is missing.
        let freeing = books.going > 0;
        if freeing {
            books.tally.retries += 1;
            drop(shared.wait(books, shared.terms.patience)?);
        }
        Ok(freeing)
    }

    /// Puts what was registered in the place of the placeholders, and takes back those that were not.
    fn publish(&mut self) -> Result<(), AcquireError> {
        let shared = self.shared;
        let (mut books, sure) = match shared.lock_now() {
            Ok(locked) => locked,
            Err(unusable) => {
                // Registered, and nobody's to deregister any more: leaked, not dropped.
                self.made.drain(..).for_each(std::mem::forget);
                return Err(unusable.into());
            }
        };
        self.give_back(&mut books);
        let mut placeholders = std::mem::take(&mut self.mine).into_iter();
        for (made, Placeholder { id, barred, .. }) in std::mem::take(&mut self.made).into_iter().zip(&mut placeholders)
        {
            let Made { registered: Registered { range, access, registration }, watch, watched } = made;
            let Entry::Pending { stale, .. } = books.entry(id) else { unreachable!("{id:?} is this request's own") };
            // Not cached any more: merged into another region meanwhile.
            let stale = stale || !sure || !books.core.is_cached(id);
            let alone = self.wish.sharing == Sharing::Nothing;
            let cached = !stale && !barred && watch == Watch::Watched && shared.terms.caches;
            books.tally.overtaken += u64::from(stale && !alone);
            books.tally.barred += u64::from(barred && !stale);
            books.tally.unwatched += u64::from(alone || watch != Watch::Watched);
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

/// A lease of these holds, in the order of their addresses.
fn lease<R: Registrar>(shared: &Shared<R>, address: usize, length: usize, mut holds: SmallVec<[Hold; 2]>) -> Lease<R> {
    if holds.len() > 1 {
        holds.sort_by_key(|hold| shared.records[hold.id()].range());
        let rest = holds.drain(1..).collect();
        let Some(first) = holds.pop() else { unreachable!("there was more than one") };
        return Lease::of(shared, address, length, first, rest);
    }
    let Some(first) = holds.pop() else { unreachable!("a range of pages takes a region at least") };
    Lease::one(shared, address, length, first)
}

impl<R: Registrar> Shared<R> {
    /// [`Cache::acquire`](crate::Cache::acquire), for memory whose changes the caller answers for or not.
    #[inline(always)]
    pub(super) fn acquire(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        if self.times.is_some() {
            return self.acquire_timed(address, length, access, owned);
        }
        self.acquire_plain(address, length, access, owned)
    }

    #[inline(always)]
    fn acquire_plain(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        let access = access.with_read();
        if let Some(range) = PageRange::of_bytes_quickly(address as u64, length as u64)
            && let Some((id, grip)) = self.hit(range, access)
        {
            return Ok(Lease::one(self, address, length, Hold::new(id, grip)));
        }
        // Boxed and unboxed, so that the usual answer is not built in memory that the slow path may write to.
        self.acquire_slowly(address, length, access, owned).map_err(|error| *error)
    }

    #[cold]
    #[inline(never)]
    fn acquire_timed(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, AcquireError> {
        let begun = Instant::now();
        let result = self.acquire_plain(address, length, access, owned);
        // Not in a forked child: a histogram's lock may have been held at the fork.
        if let Some(times) = &self.times
            && !self.gate.is_forked()
        {
            let on_stack = 0_u8;
            times.acquired(std::ptr::from_ref(&on_stack).addr() >> 16, begun.elapsed());
        }
        result
    }

    #[cold]
    #[inline(never)]
    fn acquire_slowly(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: Option<PageRange>,
    ) -> Result<Lease<R>, Box<AcquireError>> {
        let wish = Wish::new(&self.terms, address, length, access)?;
        Ok(self.grant(Wish { owned, ..wish })?)
    }

    /// Memory that is registered by itself, for one lease.
    #[cold]
    pub(super) fn acquire_aside(
        &self,
        address: usize,
        length: usize,
        access: Access,
        owned: PageRange,
    ) -> Result<Lease<R>, AcquireError> {
        let wish = Wish::new(&self.terms, address, length, access.with_read())?;
        self.grant(Wish { owned: Some(owned), sharing: Sharing::Nothing, counted: true, ..wish })
    }

    /// The locked path.
    pub(super) fn grant(&self, wish: Wish) -> Result<Lease<R>, AcquireError> {
        let mut acquiring = Acquiring::new(self, wish);
        acquiring.start(&[])?;
        acquiring.complete()
    }
}

impl<R: Registrar> Drop for Acquiring<'_, R> {
    /// Takes back what is not registered, and lets go of the rest. In a child of a fork there is nothing to do: its
    /// books are never used again.
    fn drop(&mut self) {
        self.let_go();
        self.unwatch();
        let untouched = self.mine.is_empty() && self.made.is_empty() && self.attempts == 0;
        if untouched && self.reserved == Amount::default() {
            return;
        }
        if let Ok((mut books, _)) = self.shared.lock_now() {
            self.give_back(&mut books);
            for Placeholder { id, .. } in self.mine.drain(..) {
                books.set_entry(id, Entry::Vacant);
                books.core.abandon(id);
            }
            for Made { registered, watched, .. } in self.made.drain(..) {
                if watched {
                    books.to_unwatch.push(registered.range);
                }
                books.limbo.push(registered);
            }
            drop(books);
            self.shared.progress.notify_all();
        } else {
            self.made.drain(..).for_each(std::mem::forget);
        }
    }
}

/// Whether an error is worth a fall-back to smaller ranges: something between them is not mapped, or there is no room
/// for it.
pub(super) fn is_worth_less(error: &AcquireError) -> bool {
    match error {
        AcquireError::AllInUse { .. } | AcquireError::NotTakenBack { .. } => true,
        AcquireError::Register { source, .. } => {
            source.raw_os_error() == Some(libc::EFAULT) || Failure::of(source) == Failure::Exhausted
        }
        _ => false,
    }
}
