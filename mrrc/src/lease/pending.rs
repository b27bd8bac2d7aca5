//! The driver of a [`Miss`]: it takes the lock, asks the monitor, registers, deregisters and waits.

use super::checks::check;
use super::{Lease, Segments, windows};
use crate::access::Access;
use crate::error::{AcquireError, Unusable};
use crate::hit::HoldRef;
use crate::invalidation::Watch;
use crate::miss::{self, AcquireRequest, Context, Event, Gap, Miss, Step};
use crate::range::PageRange;
use crate::reclaim;
use crate::registrar::Registrar;
use crate::state::Wakes;
use crate::state::shared::{Lock, Shared};
use crate::thread_id;
use smallvec::SmallVec;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::time::Instant;

/// Memory that is being acquired: what is registered already can be used while the rest is.
///
/// Dropped before it is finished, it takes back what it has not registered.
#[must_use = "what was begun is taken back when this is dropped: finish it"]
pub struct PendingLease<'cache, R: Registrar> {
    shared: &'cache Shared<R>,
    miss: Miss<R::Registration>,
    progress: Progress,
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It is planned, and its caller does something else before it goes on.
    Begun,
    /// It is being finished; or that failed, and what there is of it is not to be relied on.
    Unfinished,
    /// There is a lease of it.
    Done,
}

impl<'cache, R: Registrar> PendingLease<'cache, R> {
    /// Begins a request: from here on, what is registered of it is held and what is missing is reserved.
    ///
    /// # Errors
    /// As [`Cache::acquire`](crate::Cache::acquire).
    pub(crate) fn begin(shared: &'cache Shared<R>, request: AcquireRequest) -> Result<Self, AcquireError> {
        check(shared, &request)?;
        // Before the lock, so that it is dropped after it, whatever panics.
        let mut pending = Self::new(shared, request, true);
        let mut state = shared.lock()?;
        if !pending.miss.begin_lone(&mut state, &context(shared, &[])) {
            pending.drive(state, Event::Start, &[])?;
        }
        pending.progress = Progress::Begun;
        Ok(pending)
    }

    /// Returns a request that is not planned yet.
    #[inline(always)]
    fn new(shared: &'cache Shared<R>, request: AcquireRequest, begins: bool) -> Self {
        let miss = Miss::new(request, shared.settings.max_segments, begins);
        Self { shared, miss, progress: Progress::Unfinished }
    }

    /// Returns the segments that are registered already, in the order of their addresses. Nothing in a forked child. Windows are bound when the
    /// request is finished.
    pub fn ready(&self) -> Segments<'_, R> {
        let holds = if self.shared.tables.gate.is_forked() { &[] } else { self.miss.holds() };
        let &AcquireRequest { address, length, .. } = self.miss.request();
        Segments::over(&self.shared.tables, holds, address, length)
    }

    /// Registers what is missing. The lease has it all, with what was [ready](PendingLease::ready): drop it when the transfers
    /// are done, those of what was ready too. After an error there is no lease, and what was ready stays held until this
    /// is dropped. It can be finished once more then: the request is planned anew.
    ///
    /// # Errors
    /// As [`Cache::acquire`](crate::Cache::acquire); [`AcquireError::Finished`] if there was a lease before.
    pub fn finish(&mut self) -> Result<Lease<R>, AcquireError> {
        let result = match std::mem::replace(&mut self.progress, Progress::Unfinished) {
            Progress::Begun => self.resume(),
            Progress::Unfinished => {
                // Nothing is left of the plan, unless the registrar or the monitor panicked.
                self.take_back();
                self.miss.restart();
                self.run(Event::Start, &[])
            }
            Progress::Done => {
                self.progress = Progress::Done;
                return Err(AcquireError::Finished { range: self.miss.request().range });
            }
        };
        match result {
            Ok(()) => {
                let lease = self.lease();
                match windows::open_or_return(self.shared, self.miss.request(), lease) {
                    Ok(lease) => {
                        self.progress = Progress::Done;
                        Ok(lease)
                    }
                    Err((error, lease)) => {
                        // Transfers of what was ready may go on.
                        self.miss.put_back(lease.map_or_else(SmallVec::new, Lease::into_holds));
                        Err(error)
                    }
                }
            }
            Err(error) => {
                // Others do not wait for it until this is dropped.
                self.take_back();
                Err(error)
            }
        }
    }

    /// Returns a lease of all that is held.
    fn lease(&mut self) -> Lease<R> {
        let &AcquireRequest { address, length, .. } = self.miss.request();
        lease(self.shared, address, length, self.miss.take_holds())
    }

    /// Returns a lease for each of these members of the request: address and length.
    fn share(&mut self, members: &[(usize, usize)]) -> Result<Vec<Lease<R>>, AcquireError> {
        let shared = self.shared;
        // No look for holders happens while the lock is taken, so no look falls between one hold and another.
        let (mut state, _) = shared.lock_now()?;
        let mut leases = Vec::with_capacity(members.len());
        for &(address, length) in members {
            let range = PageRange::of_bytes(address as u64, length as u64)?;
            let mut holds = SmallVec::new();
            let ids = self.miss.holds().iter().map(HoldRef::id);
            for id in ids.filter(|&id| shared.tables.records[id].range().overlaps(range)) {
                let Ok(hold) = shared.tables.hold(id) else {
                    self.miss.keep(holds);
                    return Err(AcquireError::TooManyLeases { range });
                };
                state.note_leased(id);
                holds.push(hold);
            }
            leases.push(lease(shared, address, length, holds));
        }
        drop(state);
        Ok(leases)
    }

    /// Takes the lock and drives the request as far as it goes.
    #[inline]
    fn run(&mut self, event: Event, members: &[PageRange]) -> Result<(), AcquireError> {
        let state = self.shared.lock()?;
        self.drive(state, event, members)
    }

    /// Drives on a request that was begun. No lock is taken before it registers gaps for which there is room.
    fn resume(&mut self) -> Result<(), AcquireError> {
        // The room may have been reserved by the parent of this process.
        if self.shared.tables.gate.is_forked() {
            return Err(Unusable::Forked.into());
        }
        if self.miss.is_complete() {
            return Ok(());
        }
        if !self.miss.register_at_once() {
            return self.run(Event::Resume, &[]);
        }
        let (state, event) = self.register_gaps()?;
        self.drive(state, event, &[])
    }

    #[inline]
    fn drive(
        &mut self,
        mut state: Lock<'cache, R>,
        mut event: Event,
        members: &[PageRange],
    ) -> Result<(), AcquireError> {
        let shared = self.shared;
        let context = context(shared, members);
        loop {
            let ends_registration = matches!(event, Event::Registered { .. } | Event::Unwatched);
            let step = self.miss.advance(&mut state, &context, event);
            let wakes = if ends_registration { state.in_flight.take_waiters() } else { Wakes::default() };
            if let Ok(Step::Wait(longest)) = step {
                // The wait lets the lock go.
                shared.wake(wakes);
                let begun = Instant::now();
                (state, event) = (shared.wait(state, longest, self.miss.awaited())?, Event::Waited(begun.elapsed()));
                continue;
            }
            if let Ok(Step::Deregister) = step {
                let batch = self.miss.take_batch(&mut state, &context);
                drop(state);
                shared.wake(wakes);
                let begun = Instant::now();
                state = reclaim::deregister_then_lock(shared, batch)?;
                event = Event::Deregistered(begun.elapsed());
                continue;
            }
            drop(state);
            shared.wake(wakes);
            (state, event) = match step? {
                Step::Register => self.register_gaps()?,
                Step::Look(reach, number) => {
                    let &AcquireRequest { range, owned, .. } = self.miss.request();
                    let found = shared.surroundings(range, reach, owned, number);
                    (shared.lock()?, Event::Looked(found))
                }
                Step::Probe(range) => {
                    let answer = shared.registrar.probe(range, self.miss.request().access);
                    (shared.lock()?, Event::Probed(answer))
                }
                Step::Relock => (shared.lock()?, Event::Locked),
                Step::Wait(_) | Step::Deregister => unreachable!("it was done"),
                Step::Done => return Ok(()),
            };
        }
    }

    /// Asks the monitor about the gaps, and registers them until one fails.
    #[inline]
    fn register_gaps(&mut self) -> Result<(Lock<'cache, R>, Event), AcquireError> {
        let shared = self.shared;
        for gap in self.miss.unasked() {
            gap.watch = Some(shared.monitor.watch(gap.range));
        }
        if self.miss.has_unwatched() {
            return Ok((shared.lock_now()?.0, Event::Unwatched));
        }
        let mut failed = None;
        while let Some(gap) = self.miss.next_gap() {
            match attempt(shared, gap.range, gap.access) {
                Ok(registration) => gap.made = Some(registration),
                Err(source) => {
                    failed = Some(source);
                    break;
                }
            }
        }
        let (state, sure) = shared.lock_now()?;
        Ok((state, Event::Registered { failed, sure }))
    }

    /// Takes back what is not registered.
    fn take_back(&mut self) {
        let shared = self.shared;
        if self.miss.is_pending() {
            match shared.lock_now() {
                Ok((mut state, _)) => {
                    self.miss.abandon(&mut state, &shared.tables);
                    let wakes = state.in_flight.take_all_waiters();
                    drop(state);
                    shared.wake(wakes);
                }
                Err(_) => self.miss.forget(),
            }
        }
        self.miss.take_unwatch().into_iter().for_each(|range| shared.monitor.unwatch(range));
    }
}

/// Grants a request that is no hit.
pub(crate) fn grant<R: Registrar>(shared: &Shared<R>, request: AcquireRequest) -> Result<Lease<R>, AcquireError> {
    windows::open(shared, &request, grant_regions(shared, request)?)
}

fn grant_regions<R: Registrar>(shared: &Shared<R>, request: AcquireRequest) -> Result<Lease<R>, AcquireError> {
    check(shared, &request)?;
    let mut state = shared.lock()?;
    let context = context(shared, &[]);
    let is_wide = miss::reach(&state, &context, &request).is_some();
    let lone = if is_wide { None } else { miss::reserve_lone(&mut state, &context, &request) };
    let Some(gap) = lone else {
        let mut pending = PendingLease::new(shared, request, false);
        pending.drive(state, Event::Start, &[])?;
        return Ok(pending.lease());
    };
    drop(state);
    Lone { shared, request: &request, gap: Some(gap), attempts: 0 }.register()
}

/// Grants a request that spans these ranges, in the order of their addresses: a lease for each of the buffers.
pub(crate) fn grant_group<R: Registrar>(
    shared: &Shared<R>,
    span: AcquireRequest,
    ranges: &[PageRange],
    buffers: &[(usize, usize)],
) -> Result<Vec<Lease<R>>, AcquireError> {
    check(shared, &span)?;
    let mut pending = PendingLease::new(shared, span, false);
    pending.run(Event::Start, ranges)?;
    pending.share(buffers)
}

/// Returns what a miss needs of the cache.
#[inline]
fn context<'a, R: Registrar>(shared: &'a Shared<R>, members: &'a [PageRange]) -> Context<'a, R::Registration> {
    let Shared { tables, settings, registrar, .. } = shared;
    Context { tables, settings, registrar: registrar.name(), thread: thread_id::current(), members }
}

/// The driver of the usual miss: the steps of any other, without the lists. Dropped before it is published (the registrar or the
/// monitor panicked), its gap is taken back.
struct Lone<'a, R: Registrar> {
    shared: &'a Shared<R>,
    request: &'a AcquireRequest,
    /// There until it is published, or a [`Miss`] has it.
    gap: Option<Gap<R::Registration>>,
    attempts: u64,
}

impl<'a, R: Registrar> Lone<'a, R> {
    fn register(mut self) -> Result<Lease<R>, AcquireError> {
        let Self { shared, request, ref mut gap, ref mut attempts } = self;
        let Some(gap) = gap else { unreachable!("it was just reserved") };
        let mut failed = None;
        if !request.answers_for(gap.range) {
            gap.watch = Some(shared.monitor.watch(gap.range));
        }
        if !matches!(gap.watch, Some(Watch::Unwatched(_))) {
            // Counted before: the registrar may panic.
            *attempts = 1;
            match attempt(shared, gap.range, gap.access) {
                Ok(registration) => gap.made = Some(registration),
                Err(source) => failed = Some(source),
            }
        }
        let (mut state, sure) = shared.lock_now()?;
        if let Some(registration) = gap.made.take() {
            let hold = miss::publish_lone(&mut state, &shared.tables, gap, registration, sure);
            let wakes = state.in_flight.take_waiters();
            drop(state);
            std::mem::forget(self);
            shared.wake(wakes);
            return Ok(Lease::one(&shared.tables, request.address, request.length, hold));
        }
        let event = if failed.is_some() { Event::Registered { failed, sure } } else { Event::Unwatched };
        let Some(mut pending) = self.widen() else { unreachable!("the gap is there") };
        pending.drive(state, event, &[])?;
        Ok(pending.lease())
    }

    /// Returns the same as a miss of any kind.
    #[cold]
    fn widen(&mut self) -> Option<PendingLease<'a, R>> {
        let Self { shared, request, attempts, .. } = *self;
        let miss = Miss::of_gap(*request, shared.settings.max_segments, self.gap.take()?, attempts);
        Some(PendingLease { shared, miss, progress: Progress::Unfinished })
    }
}

impl<R: Registrar> Drop for Lone<'_, R> {
    fn drop(&mut self) {
        drop(self.widen());
    }
}

/// Registers a range, and records how long that took if it is to be known.
#[inline]
fn attempt<R: Registrar>(shared: &Shared<R>, range: PageRange, access: Access) -> io::Result<R::Registration> {
    let claim = shared.claim(range)?;
    let begun = shared.times.as_ref().map(|_| Instant::now());
    let result = shared.registrar.register(range, access);
    if let (Some(times), Some(begun)) = (&shared.times, begun) {
        times.registered(begun.elapsed());
    }
    if let (Ok(_), Some(claim)) = (&result, claim) {
        claim.keep();
    }
    result
}

/// Returns a lease of these holds.
#[inline]
fn lease<R: Registrar>(
    shared: &Shared<R>,
    address: usize,
    length: usize,
    mut holds: SmallVec<[HoldRef; 2]>,
) -> Lease<R> {
    if holds.len() > 1 {
        holds.sort_by_key(|hold| shared.tables.records[hold.id()].range());
        return Lease::of(&shared.tables, address, length, holds.into_vec());
    }
    let Some(first) = holds.pop() else { unreachable!("a range of pages takes a region at least") };
    Lease::one(&shared.tables, address, length, first)
}

impl<R: Registrar> Drop for PendingLease<'_, R> {
    /// Takes back what is not registered, and ends the holds. In a child of a fork there is nothing to do: its state is
    /// never used again.
    #[expect(unsafe_code, reason = "it ends holds")]
    fn drop(&mut self) {
        if self.miss.is_empty() {
            return;
        }
        for hold in self.miss.take_holds().into_iter().chain(self.miss.take_past()) {
            // SAFETY: `end` wants to be called once: holds of a lease that did not come about were taken out here, and
            // `self.shared` lives on.
            unsafe { hold.end(NonNull::from(&self.shared.tables)) };
        }
        self.take_back();
    }
}

impl<R: Registrar> fmt::Debug for PendingLease<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingLease").field("range", &self.miss.request().range).finish_non_exhaustive()
    }
}
