//! The way of a miss, and the way out of the cache.
//!
//! ```text
//! plan: victims leave, gaps become placeholders, all of it is held
//! deregister what left, until the gaps fit
//! register each gap; what fails takes its placeholder back
//! ```
//!
//! The books stay borrowed all the while, so nobody meets a placeholder. What the registrar itself does to the
//! cache meanwhile (it may drop leases and report changes) is put down for [`State::catch_up`].

use super::{Later, State};
use crate::access::Access;
use crate::cache::{AcquireError, Amount, CacheCounters, Reaped, Records, Tally, Usage};
use crate::core::{Ask, Core, Leavers, Leaving, NobodyElse, Part, Yielding};
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::{Failure, Registered, Registrar};
use smallvec::SmallVec;
use std::any::Any;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How often a registrar is asked to take what it refused, when the last lease has ended.
const REFUSALS: u32 = 20;

/// The decisions, and what is registered.
pub(super) struct Books<T> {
    pub(super) core: Core,
    /// What has left the core and is still registered.
    limbo: Vec<Registered<T>>,
    /// An empty vector to put in the place of `limbo`.
    spare: Vec<Registered<T>>,
    /// What could not be deregistered.
    parked: Vec<Registered<T>>,
    /// What the registrar said when it last refused to deregister.
    refusal: String,
    /// All that is registered, is being registered, or is parked.
    registered: Amount,
    tally: Tally,
}

/// What a request is about.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    /// The pages, rounded out to what the registrar registers.
    pub(super) range: PageRange,
    pub(super) access: Access,
}

/// The regions of a request.
pub(super) type Holds = SmallVec<[RegionId; 2]>;

/// A gap that becomes a region.
struct Placeholder {
    id: RegionId,
    range: PageRange,
    access: Access,
}

/// Why a call goes no further.
pub(super) enum Stop<E> {
    Failed(E),
    /// The registrar panicked with this.
    Panicked(Box<dyn Any + Send>),
}

impl<E> From<E> for Stop<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

impl<T> Books<T> {
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            limbo: Vec::new(),
            spare: Vec::new(),
            parked: Vec::new(),
            refusal: String::new(),
            registered: Amount::default(),
            tally: Tally::default(),
        }
    }

    pub(super) fn counters(&self) -> CacheCounters {
        CacheCounters::of(self.core.counters(), &self.tally)
    }

    pub(super) fn usage(&self, limit: Amount) -> Usage {
        Usage {
            pages: self.registered.pages,
            regions: self.registered.regions,
            leaving: self.limbo.len() as u64,
            parked: self.parked.len() as u64,
            lent: 0,
            capacity_pages: limit.pages,
            capacity_regions: limit.regions,
        }
    }

    /// Ends a lease's hold.
    pub(super) fn release(&mut self, records: &Records<T>, id: RegionId) {
        collect(self.core.release(id), records, &mut self.limbo);
    }

    /// Nothing finds what is in the range any more; it leaves now, or with its last lease.
    pub(super) fn invalidate(&mut self, records: &Records<T>, range: PageRange) {
        collect(self.core.invalidate(range), records, &mut self.limbo);
    }

    /// What could not be deregistered is tried again.
    fn unpark(&mut self) {
        let Self { limbo, parked, .. } = self;
        limbo.append(parked);
    }
}

/// Takes the registrations of what the core has just let go.
fn collect<T>(leavers: &Leavers, records: &Records<T>, limbo: &mut Vec<Registered<T>>) {
    collect_batches(leavers.batches(), records, limbo);
}

fn collect_batches<'a, T>(
    batches: impl Iterator<Item = &'a [Leaving]>,
    records: &Records<T>,
    limbo: &mut Vec<Registered<T>>,
) {
    for leaving in batches.flatten() {
        let record = &records[leaving.region];
        let (range, access) = (record.range(), record.access());
        #[expect(unsafe_code, reason = "it empties records")]
        // SAFETY: the core let the region go just now, so it was registered, its record is filled, and no lease holds it;
        // placeholders are abandoned and do not come here. One thread has the books.
        let registration = unsafe { record.empty() };
        limbo.push(Registered { range, access, registration });
    }
}

impl<R: Registrar> State<R> {
    /// Calls the registrar. A panic comes back as a value, for the books to be put right first.
    fn call<A, E>(&self, call: impl FnOnce(&R) -> A) -> Result<A, Stop<E>> {
        self.calling.set(true);
        // What the registrar leaves in a batch when it panics is taken as still registered; nothing else of ours is
        // in its hands.
        let answer = catch_unwind(AssertUnwindSafe(|| call(&self.registrar)));
        self.calling.set(false);
        answer.map_err(Stop::Panicked)
    }

    /// Deals with what the registrar did to the cache while it was called.
    fn catch_up(&self, books: &mut Books<R::Registration>) {
        let Later { ended, changed } = mem::take(&mut *self.later.borrow_mut());
        for id in ended {
            books.release(&self.records, id);
        }
        for range in changed {
            books.invalidate(&self.records, range);
        }
    }

    /// Finds or registers the range, and holds it.
    pub(super) fn acquire(&self, books: &mut Books<R::Registration>, wish: Wish) -> Result<Holds, Stop<AcquireError>> {
        let answer = self.find_or_register(books, wish);
        self.catch_up(books);
        answer
    }

    fn find_or_register(&self, books: &mut Books<R::Registration>, wish: Wish) -> Result<Holds, Stop<AcquireError>> {
        let Wish { range, access } = wish;
        self.terms.check(range, access, || self.registrar.name())?;
        let ask = Ask { access, max_segments: self.terms.max_segments, ..Ask::new(range) };
        if books.core.may_evict_for(&ask) {
            // Somebody may have to leave for this: not for an address that cannot be registered.
            self.probe(books, &ask)?;
        }
        let answer = books.core.ask(&ask, &mut NobodyElse).map(drop);
        collect_batches(books.core.outcome().batches(), &self.records, &mut books.limbo);
        answer.map_err(|source| AcquireError::AllInUse { source, waited: Duration::ZERO })?;

        let mut holds = Holds::new();
        let mut gaps = SmallVec::<[Placeholder; 2]>::new();
        for &part in books.core.outcome().parts() {
            match part {
                Part::Ready { region, .. } => holds.push(region),
                Part::Gap { region: Some(id), range, access } => {
                    holds.push(id);
                    gaps.push(Placeholder { id, range, access });
                }
                Part::Gap { region: None, .. } => unreachable!("under a hard limit every gap becomes a region"),
            }
        }
        // Before anything else can leave.
        let mut too_many = false;
        holds.retain(|&mut id| {
            let held = books.core.try_hold(id);
            too_many |= !held;
            held
        });
        let mut yielding = books.core.outcome().yielding().to_vec();
        if gaps.is_empty() && !too_many {
            return Ok(holds);
        }
        let mut done = 0;
        let answer = if too_many {
            Err(AcquireError::TooManyLeases { range }.into())
        } else {
            self.register_all(books, range, &gaps, &mut done, &mut yielding)
        };
        if answer.is_err() {
            // What was registered before the failure stays cached. The gaps are among the holds, in the same order.
            let mut missing = gaps[done..].iter().map(|placeholder| placeholder.id).peekable();
            for &id in &holds {
                if missing.next_if_eq(&id).is_some() {
                    books.core.abandon(id);
                } else {
                    books.release(&self.records, id);
                }
            }
        }
        self.end_yielding(books, &mut yielding, true);
        answer.map(|()| holds)
    }

    /// What was to be replaced leaves, or comes back if it can and may.
    fn end_yielding(&self, books: &mut Books<R::Registration>, yielding: &mut Vec<Yielding>, may_return: bool) {
        if yielding.is_empty() {
            return;
        }
        yielding.retain(|&one| !(may_return && books.core.come_back(one)));
        let gone = yielding.drain(..).map(|one| one.region);
        collect(books.core.give_way(gone), &self.records, &mut books.limbo);
    }

    /// Asks the registrar whether the range can be registered at all.
    fn probe(&self, books: &mut Books<R::Registration>, ask: &Ask) -> Result<(), Stop<AcquireError>> {
        let Ask { range, access, .. } = *ask;
        let Err(source) = self.call(|registrar| registrar.probe(range, access))? else { return Ok(()) };
        if !books.core.refuse_missing(ask, &[]) {
            return Ok(());
        }
        books.tally.attempts += 1;
        Err(self.refused(range, access, 1, source).into())
    }

    fn refused(&self, range: PageRange, access: Access, attempts: u32, source: io::Error) -> AcquireError {
        AcquireError::Register { range, access, registrar: self.registrar.name(), attempts, source }
    }

    /// Registers the gaps, and says how many are `done` if one fails.
    fn register_all(
        &self,
        books: &mut Books<R::Registration>,
        asked: PageRange,
        gaps: &[Placeholder],
        done: &mut usize,
        yielding: &mut Vec<Yielding>,
    ) -> Result<(), Stop<AcquireError>> {
        let mut amount = Amount::default();
        gaps.iter().for_each(|gap| amount.add(gap.range.pages()));
        self.make_way(books, asked, amount, yielding)?;
        let mut answer = Ok(());
        for &Placeholder { id, range, access } in gaps {
            match self.register(books, range, access, yielding) {
                Ok(registration) => {
                    self.records[id].fill(range, access, registration);
                    if !self.terms.caches {
                        // For this lease only.
                        books.core.withdraw(id);
                    }
                    let Books { core, limbo, .. } = books;
                    collect(core.retire_covered(id, &mut NobodyElse), &self.records, limbo);
                    amount.take(Amount { pages: range.pages(), regions: 1 });
                    *done += 1;
                }
                Err(stop) => {
                    answer = Err(stop);
                    break;
                }
            }
        }
        // What was set aside and not used is free again.
        books.registered.take(amount);
        answer
    }

    /// Deregisters what has left, until there is room for so much, and sets that aside.
    fn make_way(
        &self,
        books: &mut Books<R::Registration>,
        asked: PageRange,
        amount: Amount,
        yielding: &mut Vec<Yielding>,
    ) -> Result<(), Stop<AcquireError>> {
        let limit = self.terms.capacity;
        if !books.limbo.is_empty() {
            self.deregister_limbo(books)?;
        }
        let mut fits = books.tally.reserve(&mut books.registered, amount, limit);
        if !fits && !books.parked.is_empty() {
            books.unpark();
            self.deregister_limbo(books)?;
            fits = books.tally.reserve(&mut books.registered, amount, limit);
        }
        if !fits && !yielding.is_empty() {
            self.end_yielding(books, yielding, false);
            self.deregister_limbo(books)?;
            fits = books.tally.reserve(&mut books.registered, amount, limit);
        }
        if fits {
            return Ok(());
        }
        // What could not be deregistered takes the room.
        let Amount { pages, regions } = Amount::of(&books.parked);
        if regions > 0 {
            books.tally.not_taken_back += 1;
            let (registrar, why) = (self.registrar.name(), books.refusal.clone());
            return Err(AcquireError::NotTakenBack { range: asked, pages, regions, registrar, why }.into());
        }
        let source = books.registered.no_room(asked, amount, limit);
        Err(AcquireError::AllInUse { source, waited: Duration::ZERO }.into())
    }

    /// Registers one gap; where the system is out of something, makes room and tries again.
    fn register(
        &self,
        books: &mut Books<R::Registration>,
        range: PageRange,
        access: Access,
        yielding: &mut Vec<Yielding>,
    ) -> Result<R::Registration, Stop<AcquireError>> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            books.tally.attempts += 1;
            let source = match self.call(|registrar| registrar.register(range, access))? {
                Ok(registration) => return Ok(registration),
                Err(source) => source,
            };
            let last = Failure::of(&source) == Failure::Refused || attempts > self.terms.retries;
            if last || !self.free_some(books, range, attempts, yielding)? {
                return Err(self.refused(range, access, attempts, source).into());
            }
        }
    }

    /// The system is out of something: evicts and deregisters a batch. False if nothing could be freed.
    fn free_some(
        &self,
        books: &mut Books<R::Registration>,
        range: PageRange,
        attempts: u32,
        yielding: &mut Vec<Yielding>,
    ) -> Result<bool, Stop<AcquireError>> {
        // More each time: what the system counts need not be what we count.
        let pages = range.pages().saturating_mul(1 << attempts.min(16));
        let Books { core, limbo, .. } = books;
        collect(core.evict(Need { pages, regions: 1 }, &mut NobodyElse), &self.records, limbo);
        if books.limbo.is_empty() {
            // There is but what the gap is to take the place of.
            self.end_yielding(books, yielding, false);
        }
        if books.limbo.is_empty() {
            return Ok(false);
        }
        books.tally.retries += 1;
        self.deregister_limbo(books)?;
        Ok(true)
    }

    /// Deregisters all that is in limbo, in one batch.
    fn deregister_limbo<E>(&self, books: &mut Books<R::Registration>) -> Result<(), Stop<E>> {
        let mut batch = mem::replace(&mut books.limbo, mem::take(&mut books.spare));
        let amount = Amount::of(&batch);
        let answer = self.call(|registrar| registrar.deregister(&mut batch));
        let failed = !matches!(answer, Ok(Ok(())));
        books.tally.handed_over(&mut books.registered, amount, Amount::of(&batch), failed);
        if !batch.is_empty() {
            books.refusal = match &answer {
                Ok(Ok(())) => "it said that all went well, and left them".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            };
        }
        books.parked.append(&mut batch);
        books.spare = batch;
        // A failure is counted, and tried again later.
        answer.map(drop)
    }

    /// Deregisters all that can go without an eviction, parked ones too.
    pub(super) fn reap<E>(&self, books: &mut Books<R::Registration>) -> Result<Reaped, Stop<E>> {
        let before = books.tally.deregistered;
        books.unpark();
        let answer = if books.limbo.is_empty() { Ok(()) } else { self.deregister_limbo(books) };
        self.catch_up(books);
        answer?;
        let mut done = books.tally.deregistered;
        done.take(before);
        Ok(Reaped { regions: done.regions, pages: done.pages })
    }

    /// Everything that is not in use leaves.
    pub(super) fn flush<E>(&self, books: &mut Books<R::Registration>) -> Result<Reaped, Stop<E>> {
        books.invalidate(&self.records, PageRange::EVERYTHING);
        self.reap(books)
    }

    /// At the end, when there is no lease: everything leaves, or the registrar is asked no more.
    pub(super) fn deregister_everything(&self, books: &mut Books<R::Registration>) -> Result<(), Stop<()>> {
        self.flush(books)?;
        for _ in 0..REFUSALS {
            if books.registered == Amount::default() {
                return Ok(());
            }
            self.reap(books)?;
        }
        if books.registered == Amount::default() { Ok(()) } else { Err(Stop::Failed(())) }
    }
}
