//! The locked path: what a request does that is no plain hit.
//!
//! ```text
//! lock ─ plan: victims leave, gaps become placeholders, what stands is held ─ unlock      (plan.rs)
//!      ─ deregister what left, until the gaps fit                                         (register.rs)
//!      ─ ask the monitor, register each gap              (no lock is held)
//! lock ─ publish ─ unlock                                                                 (publish.rs)
//!      ─ wait for the placeholders of others, and plan again for what they leave          (wait.rs)
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
use super::books::{Books, Comeback};
use super::error::{AcquireError, Unusable};
use super::lease::{Hold, Lease, Segments};
use super::shared::Shared;
use super::tally::Amount;
use crate::access::Access;
use crate::core::Sharing;
use crate::invalidation::Watch;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::{Failure, Registered, Registrar};
use crate::shim::sync::MutexGuard;
use crate::shim::sync::atomic::Ordering;
use smallvec::SmallVec;
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

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
#[must_use = "what was begun is taken back when this is dropped: finish it"]
pub struct Acquiring<'cache, R: Registrar> {
    shared: &'cache Shared<R>,
    wish: Wish,
    stage: Stage,
    /// The thread that the books have down for placeholders that nobody registers yet.
    beginner: Option<u32>,
    /// Time spent waiting: for room, and for others. What the caller or the registrar takes is not waiting.
    waited_for_room: Duration,
    waited_for_others: Duration,
    /// Whether it is counted as one that waited.
    has_waited: bool,
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
mod plan;
mod publish;
mod register;
mod wait;

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
            has_waited: false,
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
            let mut holds = SmallVec::new();
            for id in self.holds.iter().map(Hold::id).filter(|&id| shared.records[id].range().overlaps(range)) {
                let Ok(grip) = shared.grip(id) else {
                    self.past.extend(holds);
                    return Err(AcquireError::TooManyLeases { range });
                };
                holds.push(Hold::new(id, grip));
            }
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
}

/// Whether a wish can be granted at all. Before it is planned.
fn check<R: Registrar>(shared: &Shared<R>, wish: &Wish) -> Result<(), AcquireError> {
    shared.terms.check(wish.range, wish.access, || shared.registrar.name())?;
    if wish.access.is_remote() {
        shared.has_remote.store(true, Ordering::Relaxed);
    }
    Ok(())
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
