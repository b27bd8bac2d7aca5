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
//! nobody waits for leases while a placeholder of his own stands, so two requests never wait for each other. Nor does a
//! thread wait for itself: what it has begun it registers once more. And as long as it has begun what it does not register
//! just now, it waits for nobody, and registers once more what others do: they may have begun that, and need what it has.
//! What nobody will find (the monitor does not watch it,
//! it is just being discarded) is struck out before it is registered, so nobody waits for that either.
//! The usual miss is one gap that nothing overlaps, and there is room: it goes the same way in fewer steps
//! (`miss/alone.rs`).
//! Waits end by their time-outs. Whatever ends a request early takes back its placeholders, and their waiters
//! plan for themselves.

use super::acquire::Wish;
use super::books::{Books, Comeback, Entry};
use super::error::{AcquireError, Unusable};
use super::lease::{Hold, Lease, Segments};
use super::shared::Shared;
use super::tally::Amount;
use super::who;
use crate::access::Access;
use crate::core::{Ask, Segment, Sharing};
use crate::invalidation::Watch;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::{Failure, Registered, Registrar};
use crate::shim::sync::MutexGuard;
use crate::shim::sync::atomic::Ordering;
use smallvec::SmallVec;
use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// The shortest and longest time between two looks at leases that may have ended.
const LOOK: Duration = Duration::from_micros(100);
const LOOK_LONGEST: Duration = Duration::from_millis(5);

/// Why a gap is for its request alone, so that nobody finds it and nobody waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    /// Pages there are being discarded, or are about to change.
    Changing,
    /// Nobody says so when memory there changes.
    Unwatched,
    /// The request is served by nothing that others could find: it has a thread that waits for nobody, or rights of its own.
    ByItself,
    /// The policy keeps nothing.
    NothingKept,
}

/// A gap that this request registers.
struct Placeholder {
    id: RegionId,
    range: PageRange,
    access: Access,
    apart: Option<Apart>,
    /// What the monitor said, and whether it is to be told when the region goes.
    watch: Watch,
    watched: bool,
}

/// A part that another request registers.
struct Awaited {
    id: RegionId,
    ticket: u64,
    range: PageRange,
    /// Whether this very thread registers it, in a call further up: nobody waits for himself.
    own: bool,
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is planned, and its caller does something else before it goes on.
    Begun,
    /// It is being finished; or that failed, and what there is of it is not to be relied on.
    Unfinished,
    /// There is a lease of it.
    Done,
}

/// Memory that is being acquired: what is registered already can be used while the rest is.
///
/// Dropped before it is finished, it takes back what it has not registered.
pub struct Acquiring<'cache, R: Registrar> {
    shared: &'cache Shared<R>,
    wish: Wish,
    stage: Stage,
    /// The thread that the books have down for placeholders that nobody registers yet.
    beginner: Option<u32>,
    /// Time spent waiting: for room, and for others. What the caller or the registrar takes is not waiting.
    waited_for_room: Duration,
    waited_for_others: Duration,
    holds: SmallVec<[Hold; 2]>,
    /// Held before the request was planned anew.
    past: SmallVec<[Hold; 1]>,
    mine: SmallVec<[Placeholder; 2]>,
    awaited: SmallVec<[Awaited; 1]>,
    /// What the gaps take the place of, until they have.
    yielding: SmallVec<[Comeback; 1]>,
    /// Room that was reserved with the registrar and not used yet.
    reserved: Amount,
    /// Attempts that are not in the books yet.
    attempts: u64,
    /// Registered, and not in the books yet. Whatever happens it is not lost: a registrar or a monitor can panic.
    /// Of `mine`, the first.
    made: SmallVec<[Registered<R::Registration>; 1]>,
}

impl<R: Registrar> fmt::Debug for Acquiring<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").field("range", &self.wish.range).finish_non_exhaustive()
    }
}

mod alone;
mod register;

pub(super) use alone::Begun;

type Lock<'a, R> = MutexGuard<'a, Books<<R as Registrar>::Registration>>;

impl<'cache, R: Registrar> Acquiring<'cache, R> {
    pub(super) fn new(shared: &'cache Shared<R>, wish: Wish) -> Self {
        Self {
            shared,
            wish,
            stage: Stage::Unfinished,
            beginner: None,
            waited_for_room: Duration::ZERO,
            waited_for_others: Duration::ZERO,
            holds: SmallVec::new(),
            past: SmallVec::new(),
            mine: SmallVec::new(),
            awaited: SmallVec::new(),
            yielding: SmallVec::new(),
            reserved: Amount::default(),
            attempts: 0,
            made: SmallVec::new(),
        }
    }

    /// Plans the request: from here on, what stands of it is held and what is missing is reserved.
    ///
    /// Where there are members, the wish is their span: each of them counts as a request, and the span does not.
    pub(super) fn start(&mut self, members: &[PageRange]) -> Result<(), AcquireError> {
        let Self { shared, wish, .. } = *self;
        check(shared, &wish)?;
        self.plan(wish.range, wish.counted, members, wish.sharing)
    }

    /// As [`Acquiring::start`], for a caller who does something else before it is finished.
    pub(super) fn begin(&mut self) -> Result<(), AcquireError> {
        self.stage = Stage::Begun;
        self.start(&[])
    }

    /// As [`Acquiring::start`], of a wish that was checked, with the lock.
    pub(super) fn go_on(&mut self, books: Lock<'cache, R>) -> Result<(), AcquireError> {
        let Wish { range, counted, sharing, .. } = self.wish;
        self.plan_under(books, range, counted, &[], sharing)
    }

    /// What is registered already, in the order of its addresses. Nothing in a forked child.
    pub fn ready(&self) -> Segments<'_, R> {
        let holds = if self.shared.gate.is_forked() { &[] } else { &self.holds[..] };
        Segments::over(self.shared, holds, self.wish.address, self.wish.length)
    }

    /// Registers what is missing. The lease has it all, with what was [ready](Acquiring::ready): drop it when the transfers
    /// are done, those of what was ready too. After an error there is no lease, and what was ready stays held until this
    /// is dropped. It can be finished once more then: the request is planned anew.
    ///
    /// # Errors
    /// As [`Cache::acquire`](crate::Cache::acquire); [`AcquireError::Finished`] if there was a lease before.
    pub fn finish(&mut self) -> Result<Lease<R>, AcquireError> {
        match std::mem::replace(&mut self.stage, Stage::Unfinished) {
            Stage::Begun => {}
            Stage::Unfinished => {
                // Nothing is left of the plan, unless the registrar or the monitor panicked.
                self.take_back();
                (self.waited_for_room, self.waited_for_others) = (Duration::ZERO, Duration::ZERO);
                self.plan_anew()?;
            }
            Stage::Done => {
                self.stage = Stage::Done;
                return Err(AcquireError::Finished { range: self.wish.range });
            }
        }
        let answer = self.complete();
        match answer {
            Ok(_) => self.stage = Stage::Done,
            // Others do not wait for it until this is dropped.
            Err(_) => self.take_back(),
        }
        answer
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
                let waited = !awaited.own && self.wait_for(&awaited)?;
                let sharing = if waited { self.wish.sharing } else { Sharing::Nothing };
                // Planned again whatever became of it: it may have failed, or gone already.
                self.plan(awaited.range, true, &[], sharing)?;
            } else if self.holds.len() > self.shared.terms.max_segments {
                // What took the place of one that was waited for is more than one.
                self.plan_anew()?;
            } else {
                return Ok(());
            }
        }
    }

    /// Plans all of it once more. What was shown as ready stays held.
    fn plan_anew(&mut self) -> Result<(), AcquireError> {
        self.past.extend(self.holds.drain(..));
        self.plan(self.wish.range, true, &[], self.wish.sharing)
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
    fn plan(
        &mut self,
        range: PageRange,
        again: bool,
        members: &[PageRange],
        sharing: Sharing,
    ) -> Result<(), AcquireError> {
        let books = self.shared.lock()?;
        self.plan_under(books, range, again, members, sharing)
    }

    /// The same, with the lock.
    fn plan_under(
        &mut self,
        mut books: Lock<'cache, R>,
        range: PageRange,
        again: bool,
        members: &[PageRange],
        sharing: Sharing,
    ) -> Result<(), AcquireError> {
        let shared = self.shared;
        let desk = shared.desk();
        let access = self.wish.access;
        let mut ask = Ask { range, access, max_segments: shared.terms.max_segments, again, sharing };
        let mut nap = LOOK;
        let mut probed = false;
        loop {
            is_open(&books)?;
            if books.core.may_evict_for(&ask) {
                books.sweep(desk);
                if !probed {
                    // Somebody may have to leave for this: not for an address that cannot be registered.
                    probed = true;
                    drop(books);
                    let refused = shared.registrar.probe(range, access);
                    books = shared.lock()?;
                    // Nothing of this request was in the books meanwhile: the end of the cache did not wait for it.
                    is_open(&books)?;
                    if let Err(source) = refused
                        && books.core.refuse_missing(&ask, members)
                    {
                        self.attempts += 1;
                        let registrar = shared.registrar.name();
                        return Err(AcquireError::Register { range, access, registrar, attempts: 1, source });
                    }
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
            if books.lent.len() < lent || books.give_up_comebacks(desk) {
                // Leases have ended since it was last looked, or there is room that nobody uses.
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
                    Entry::Pending { ticket, owner, .. } => {
                        self.awaited.push(Awaited { id, ticket, range, own: owner == who::am_i() });
                    }
                    _ => self.holds.push(Hold::new(id, shared.grip(id))),
                },
                Segment::Gap { region: Some(id), range, access } => {
                    // Asked before the pages are looked up: a registration can outlast the bar. What is discarded from
                    // here on makes the placeholder stale.
                    let barred = books.is_changing(range) || !self.wish.answers_for(range) && books.is_barred(range);
                    let apart = if barred {
                        Some(Apart::Changing)
                    } else if !shared.terms.caches {
                        Some(Apart::NothingKept)
                    } else if books.core.is_cached(id) {
                        None
                    } else if self.wish.sharing == Sharing::Nothing && self.wish.owned.is_none() {
                        // Borrowed memory, of whose changes nobody vouches to hear.
                        Some(Apart::Unwatched)
                    } else {
                        Some(Apart::ByItself)
                    };
                    let watch = Watch::Watched;
                    self.mine.push(Placeholder { id, range, access, apart, watch, watched: false });
                }
                Segment::Gap { region: None, .. } => unreachable!("under a hard limit every gap becomes a region"),
            }
        }
        let mut amount = Amount::default();
        for placeholder in &self.mine {
            amount.add(placeholder.range.pages());
            books.core.hold(placeholder.id);
            let ticket = books.new_ticket();
            books.set_entry(placeholder.id, Entry::Pending { ticket, stale: false, owner: who::am_i() });
            if placeholder.apart.is_some() {
                books.core.withdraw(placeholder.id);
            }
        }
        if self.stage == Stage::Begun && !self.mine.is_empty() {
            let me = who::am_i();
            books.beginners.push(me);
            self.beginner = Some(me);
        }
        books.note_yielding(desk, &mut self.yielding);
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
        let made = std::mem::take(&mut self.made);
        for (registered, placeholder) in made.into_iter().zip(&mut placeholders) {
            self.holds.push(stand(shared, &mut books, &placeholder, registered, sure));
        }
        for Placeholder { id, .. } in placeholders {
            books.set_entry(id, Entry::Vacant);
            books.core.abandon(id);
        }
        books.end_yielding(shared.desk(), self.yielding.drain(..), sure);
        let waiting = std::mem::take(&mut books.waiting);
        drop(books);
        if waiting > 0 {
            shared.progress.notify_all();
        }
        Ok(())
    }

    /// What was reserved and not used is free again, and nobody is down for what is not registered yet.
    fn give_back(&mut self, books: &mut Books<R::Registration>) {
        if let Some(beginner) = self.beginner.take()
            && let Some(place) = books.beginners.iter().position(|&other| other == beginner)
        {
            books.beginners.swap_remove(place);
        }
        books.registered.take(std::mem::take(&mut self.reserved));
        books.tally.attempts += std::mem::take(&mut self.attempts);
    }

    /// Waits until another's placeholder is one no more. False: this thread waits for nobody, because others may wait for
    /// what it has begun, and have begun what this is.
    fn wait_for(&mut self, awaited: &Awaited) -> Result<bool, AcquireError> {
        let mut books = self.shared.lock()?;
        while matches!(books.entry(awaited.id), Entry::Pending { ticket, .. } if ticket == awaited.ticket) {
            if books.beginners.contains(&who::am_i()) {
                return Ok(false);
            }
            books.tally.waits += 1;
            books = self.wait(books)?;
        }
        Ok(true)
    }

    /// Takes back what is planned and not registered.
    fn take_back(&mut self) {
        self.awaited.clear();
        self.unwatch();
        let untouched = self.mine.is_empty() && self.yielding.is_empty() && self.attempts == 0;
        if untouched && self.reserved == Amount::default() {
            return;
        }
        if let Ok((mut books, sure)) = self.shared.lock_now() {
            self.give_back(&mut books);
            let mut made = self.made.drain(..);
            for Placeholder { id, watched, .. } in self.mine.drain(..) {
                books.set_entry(id, Entry::Vacant);
                books.core.abandon(id);
                // A registrar or a monitor panicked: what was registered goes.
                if let Some(registered) = made.next() {
                    if watched {
                        books.to_unwatch.push(registered.range);
                    }
                    books.limbo.push(registered);
                }
            }
            books.end_yielding(self.shared.desk(), self.yielding.drain(..), sure);
            drop(books);
            self.shared.progress.notify_all();
        } else {
            self.made.drain(..).for_each(std::mem::forget);
        }
    }

    /// How much longer this request waits for others, or works for them.
    fn patience_left(&self) -> Result<Duration, AcquireError> {
        let waited = self.waited_for_others;
        let left = self.shared.terms.patience.saturating_sub(waited);
        if left.is_zero() { Err(AcquireError::TimedOut { range: self.wish.range, waited }) } else { Ok(left) }
    }

    /// Waits for the progress of others, as long as the patience of the whole request lasts.
    fn wait(&mut self, books: Lock<'cache, R>) -> Result<Lock<'cache, R>, AcquireError> {
        let left = self.patience_left()?;
        let begun = Instant::now();
        let books = self.shared.wait(books, left)?;
        self.waited_for_others += begun.elapsed();
        Ok(books)
    }
}

/// Whether the cache is there. Asked each time that the lock was taken before anything of a request is in the books: what
/// is there keeps the state of the cache, and nothing else does.
fn is_open<T>(books: &Books<T>) -> Result<(), Unusable> {
    if books.closed { Err(Unusable::Closed) } else { Ok(()) }
}

/// Whether a wish can be granted at all. Before it is planned.
fn check<R: Registrar>(shared: &Shared<R>, wish: &Wish) -> Result<(), AcquireError> {
    shared.terms.check(wish.range, wish.access, || shared.registrar.name())?;
    if wish.access.is_remote() {
        shared.has_remote.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Puts what was registered in the place of its placeholder, held. Sure: no change is under way that is not in the books.
#[inline(always)]
fn stand<R: Registrar>(
    shared: &Shared<R>,
    books: &mut Books<R::Registration>,
    placeholder: &Placeholder,
    registered: Registered<R::Registration>,
    sure: bool,
) -> Hold {
    let &Placeholder { id, apart, watched, .. } = placeholder;
    let lone = apart.is_some();
    let Registered { range, access, registration } = registered;
    let Entry::Pending { stale, .. } = books.entry(id) else { unreachable!("{id:?} is this request's own") };
    // Not cached any more: taken in by another region meanwhile, or struck out.
    let merged = !lone && !books.core.is_cached(id);
    let overtaken = !lone && (stale || !sure);
    let cached = !lone && !merged && !overtaken;
    books.tally.overtaken += u64::from(overtaken);
    books.tally.barred += u64::from(apart == Some(Apart::Changing));
    books.tally.unwatched += u64::from(apart == Some(Apart::Unwatched));
    books.set_entry(id, Entry::Standing { stale: !cached, watched });
    shared.records[id].fill(range, access, registration);
    let hold = Hold::new(id, shared.grip(id));
    if cached {
        shared.records[id].show();
        books.core.settle(id);
    } else {
        // For this lease only: the core's hold goes on until the lease ends.
        books.core.withdraw(id);
        books.lent.push(id);
    }
    hold
}

/// A lease of these holds, in the order of their addresses.
fn lease<R: Registrar>(shared: &Shared<R>, address: usize, length: usize, mut holds: SmallVec<[Hold; 2]>) -> Lease<R> {
    if holds.len() > 1 {
        holds.sort_by_key(|hold| shared.records[hold.id()].range());
        return Lease::of(shared, address, length, holds.into_vec());
    }
    let Some(first) = holds.pop() else { unreachable!("a range of pages takes a region at least") };
    Lease::one(shared, address, length, first)
}

impl<R: Registrar> Drop for Acquiring<'_, R> {
    /// Takes back what is not registered, and lets go of the rest. In a child of a fork there is nothing to do: its
    /// books are never used again.
    fn drop(&mut self) {
        self.let_go();
        self.take_back();
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
