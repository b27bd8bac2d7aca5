//! A miss, as a state machine: no clock, no lock, no registrar.
//!
//! ```text
//! Start ─ ask where it may be widened                                      ─► Look
//!       ─ plan: victims leave, gaps get tickets, what is registered is held ─► Probe, Wait (for room)
//!       ─ make room with the registrar                                      ─► Deregister, Wait
//!       ─ the driver asks the monitor and registers each gap                ─► Register
//!       ─ publish, or take back what failed; free more where the system is out of something
//!       ─ wait for the tickets of others, and plan again for what they leave ─► Wait
//! ```
//!
//! A part for each stage: [`Question`] is put to the core, [`Room`] is made with the registrar, [`Gaps`] are registered, and
//! [`Waits`] limits them. [`Miss::advance`] runs under the lock and returns a [`Step`]; the driver (`lease/pending.rs`) does that, without the lock
//! where it takes long, and reports it as the next [`Event`].
//!
//! A request reserves all its gaps in one step or fails. It registers its own before it waits for others, and
//! it never waits for leases while a ticket of its own is out, so two requests never wait for each other. Nor does a
//! thread wait for itself: what it has begun it registers once more. And as long as it has begun what it does not register
//! just now, it waits for no other thread, and registers once more what others do: they may have begun that, and need what
//! it has. What no look-up will find (the monitor does not watch it, it is just being discarded) is retired before it is
//! registered, so no thread waits for that either.
//!
//! A request that may register its surroundings as well has the driver look at them first ([`Step::Look`]). If such a registration fails, in
//! whatever way, the request is planned anew as it is: a bad neighbour fails no good request.
//!
//! Waits end by their time-outs. Where a request ends early [`Miss::abandon`] takes back its tickets, and threads that wait
//! for them plan for themselves.

mod gaps;
mod lone;
mod question;
mod request;
mod room;
mod surroundings;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod waits;

pub(crate) use gaps::Gap;
pub(crate) use lone::{publish_lone, reserve_lone};
pub(crate) use request::AcquireRequest;
pub(crate) use surroundings::reach;

use crate::core::{Part, Request, Sharing};
use crate::effective::EffectiveSettings;
use crate::error::{AcquireError, Obstacle};
use crate::hit::{HitTables, HoldRef};
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::Failure;
use crate::state::{Batch, CacheState, Entry};
use gaps::Gaps;
use question::Question;
use room::{Room, keep_headroom};
use smallvec::SmallVec;
use std::io;
use std::time::Duration;
use surroundings::note_refusal;
use waits::{Cause, Waits};

/// The surroundings of a miss.
pub(crate) struct Context<'a, T> {
    pub(crate) tables: &'a HitTables<T>,
    pub(crate) settings: &'a EffectiveSettings,
    /// The registrar's name.
    pub(crate) registrar: &'static str,
    /// The thread that drives it: see `thread_id.rs`.
    pub(crate) thread: u32,
    /// The ranges that the request spans, where it is for several: each of them counts as a request, and the span does not.
    pub(crate) members: &'a [PageRange],
}

/// A result that the driver reports.
pub(crate) enum Event {
    /// Nothing yet: the request is planned, or planned anew.
    Start,
    /// The caller finishes what it began.
    Resume,
    /// These pages around the request can be registered with it.
    Looked(PageRange),
    /// The registrar was asked whether the range can be registered.
    Probed(io::Result<()>),
    /// The monitor was asked about the gaps, and does not watch all of them.
    Unwatched,
    /// The gaps were registered, until one failed.
    Registered {
        failed: Option<io::Error>,
        /// No change is under way that is not in the state yet.
        sure: bool,
    },
    /// A batch was deregistered; it took so long.
    Deregistered(Duration),
    /// It was waited for progress, for so long.
    Waited(Duration),
    /// The lock was let go and taken again.
    Locked,
}

/// The next task of the driver.
pub(crate) enum Step {
    /// Look which of these pages, around the request, can be registered with it, without the lock. With the number of changes so far.
    Look(PageRange, u64),
    /// Ask the registrar whether the range can be registered, without the lock.
    Probe(PageRange),
    /// Ask the monitor about the gaps and register them, without the lock.
    Register,
    /// Take a batch, and deregister it without the lock.
    Deregister,
    /// Wait for progress, at most so long. The lock is let go meanwhile.
    Wait(Duration),
    /// Let the lock go and take it again, with every change in the state.
    Relock,
    /// The request is done, or as far as it is to be begun.
    Done,
}

/// The next step, or none where another look at the request decides it.
type Next = Result<Option<Step>, AcquireError>;

/// A part that another request registers.
struct Awaited {
    id: RegionId,
    ticket: u64,
    range: PageRange,
    /// Whether this very thread registers it, in a call further up: it does not wait for itself.
    own: bool,
}

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The core is asked.
    Planning,
    /// It is planned, and its caller does something else before it goes on.
    Begun,
    /// Room is made for the gaps with the registrar.
    MakingRoom,
    /// The driver registers the gaps.
    Registering,
    /// The system is out of something: regions are deregistered, and then it is tried again.
    Freeing,
    /// Another request registers a part.
    Waiting,
    /// Everything is held.
    Done,
}

/// A request that is no hit. Owns its holds, and its gaps until they are published or abandoned.
pub(crate) struct Miss<T> {
    request: AcquireRequest,
    stage: Stage,
    /// Whether its caller does something else between the plan and the registration.
    begins: bool,
    question: Question,
    room: Room,
    waits: Waits,
    holds: SmallVec<[HoldRef; 2]>,
    /// Held before the request was planned anew.
    past: SmallVec<[HoldRef; 1]>,
    gaps: Gaps<T>,
    awaited: SmallVec<[Awaited; 1]>,
}

impl<T> Miss<T> {
    #[inline(always)]
    pub(crate) fn new(request: AcquireRequest, max_segments: usize, begins: bool) -> Self {
        let AcquireRequest { range, access, counted, sharing, blocks, .. } = request;
        let ask = Request { range, access, max_segments, again: counted, sharing, mapping: range, blocks };
        Self {
            request,
            stage: Stage::Planning,
            begins,
            // Others would wait for the surroundings of what is begun until that is finished.
            question: Question::new(ask, !begins),
            room: Room::default(),
            waits: Waits::default(),
            holds: SmallVec::new(),
            past: SmallVec::new(),
            gaps: Gaps::new(),
            awaited: SmallVec::new(),
        }
    }

    /// Returns a request that is one gap, [reserved](reserve_lone) and tried so often.
    pub(crate) fn of_gap(request: AcquireRequest, max_segments: usize, gap: Gap<T>, attempts: u64) -> Self {
        let mut miss = Self::new(request, max_segments, false);
        miss.stage = Stage::Registering;
        miss.gaps.take_lone(gap, attempts);
        miss
    }

    pub(crate) fn request(&self) -> &AcquireRequest {
        &self.request
    }

    /// Returns the holds so far.
    pub(crate) fn holds(&self) -> &[HoldRef] {
        &self.holds
    }

    /// Takes the holds out: the caller ends them.
    pub(crate) fn take_holds(&mut self) -> SmallVec<[HoldRef; 2]> {
        std::mem::take(&mut self.holds)
    }

    /// Puts holds back that were [taken](Miss::take_holds).
    pub(crate) fn put_back(&mut self, holds: SmallVec<[HoldRef; 2]>) {
        self.holds = holds;
    }

    /// Takes the holds out that it had before the request was planned anew: the caller ends them.
    pub(crate) fn take_past(&mut self) -> SmallVec<[HoldRef; 1]> {
        std::mem::take(&mut self.past)
    }

    /// Keeps holds until the request ends.
    pub(crate) fn keep(&mut self, holds: impl IntoIterator<Item = HoldRef>) {
        self.past.extend(holds);
    }

    /// Returns the ranges that are watched and were not registered: to be unwatched without the lock.
    pub(crate) fn take_unwatch(&mut self) -> SmallVec<[PageRange; 1]> {
        self.gaps.take_unwatch()
    }

    /// Returns whether a request that was begun has nothing to register and nothing to wait for.
    pub(crate) fn is_complete(&self) -> bool {
        self.gaps.is_empty() && self.awaited.is_empty() && self.holds.len() <= self.question.max_segments()
    }

    /// Returns whether a request that was begun has only gaps to register for which there is room: then no lock is needed
    /// before.
    pub(crate) fn register_at_once(&mut self) -> bool {
        let ready = self.stage == Stage::Begun && self.gaps.is_reserved();
        if ready {
            self.stage = Stage::Registering;
        }
        ready
    }

    /// Takes the batch that the driver is to deregister.
    pub(crate) fn take_batch(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Batch<T> {
        let batch = state.reclaimer.take_batch(context.thread);
        self.room.count_batch(batch.regions.len());
        batch
    }

    /// Returns the gaps to ask the monitor about.
    pub(crate) fn unasked(&mut self) -> impl Iterator<Item = &mut Gap<T>> {
        self.gaps.unasked(self.request)
    }

    /// Returns whether the monitor does not watch a gap that others might wait for.
    pub(crate) fn has_unwatched(&self) -> bool {
        self.gaps.has_unwatched()
    }

    /// Returns the next gap to register, and counts the attempt.
    pub(crate) fn next_gap(&mut self) -> Option<&mut Gap<T>> {
        self.gaps.attempt()
    }

    /// Notes a request whose plan is to be made anew, from the beginning.
    pub(crate) fn restart(&mut self) {
        self.waits.restart();
        self.awaited.clear();
        self.begins = false;
        self.plan_anew(self.request.sharing);
    }

    /// Begins the usual miss, of [one gap](reserve_lone). Returns false, and does nothing, for any other.
    pub(crate) fn begin_lone(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> bool {
        let Some(gap) = reserve_lone(state, context, &self.request) else { return false };
        self.gaps.take_lone(gap, 0);
        self.gaps.set_beginner(state, context.thread);
        self.begins = false;
        self.stage = Stage::Begun;
        true
    }

    /// Takes the request as far as it goes without effects.
    ///
    /// # Errors
    /// The request fails; [`Miss::abandon`] takes back what is left of it.
    pub(crate) fn advance(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        event: Event,
    ) -> Result<Step, AcquireError> {
        let mut sure = true;
        match event {
            Event::Start | Event::Locked => {}
            Event::Resume => self.stage = Stage::MakingRoom,
            Event::Looked(found) => self.question.take_surroundings(state, found),
            Event::Probed(answer) => self.question.take_probe(state, context, answer)?,
            Event::Unwatched => {
                if self.question.widened() > 0
                    && let Some((gap, lasts)) = self.gaps.unwatched_beyond(self.request.range)
                {
                    note_refusal(state, gap, lasts);
                    self.narrow(state, context, true);
                    return Ok(Step::Relock);
                }
                self.gaps.set_apart(state, context.thread);
                return Ok(Step::Register);
            }
            Event::Registered { failed, sure: is_sure } => {
                sure = is_sure;
                let wide = self.gaps.failed_beyond(self.request.range).filter(|_| self.question.widened() > 0);
                if let (Some(gap), Some(error)) = (wide, &failed) {
                    note_refusal(state, gap, Failure::of(error) == Failure::Refused);
                    self.narrow(state, context, sure);
                } else {
                    self.end_registration(state, context, failed, sure)?;
                }
            }
            Event::Deregistered(took) if self.stage == Stage::Freeing => self.waits.add(Cause::Freeing, took),
            Event::Deregistered(took) => {
                if let Some(cause) = self.room.cause() {
                    self.waits.add(cause, took);
                }
            }
            Event::Waited(took) => {
                let cause = match self.stage {
                    Stage::Planning => Cause::Leases,
                    Stage::Freeing => Cause::Freeing,
                    _ => Cause::Others,
                };
                self.waits.add(cause, took);
            }
        }
        loop {
            if !sure && self.stage != Stage::Done {
                // What comes next looks at regions: no change may be missing.
                return Ok(Step::Relock);
            }
            let next = match self.stage {
                Stage::Planning => self.plan(state, context)?,
                Stage::Begun | Stage::Done => Some(Step::Done),
                Stage::MakingRoom => self.make_room(state, context)?,
                Stage::Registering => Some(Step::Register),
                Stage::Freeing => {
                    let next = self.room.free(state, context, &mut self.waits);
                    if next.is_none() {
                        self.stage = Stage::Registering;
                    }
                    next
                }
                Stage::Waiting => self.wait_for_others(state, context)?,
            };
            if let Some(step) = next {
                return Ok(step);
            }
        }
    }

    /// Publishes what was registered, or has room made where the system is out of something.
    fn end_registration(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        failed: Option<io::Error>,
        sure: bool,
    ) -> Result<(), AcquireError> {
        let failure = failed.map(|source| self.room.take_failure(state, context, &mut self.gaps, &self.waits, source));
        if let Some(Ok(())) = failure {
            self.stage = Stage::Freeing;
            return Ok(());
        }
        self.gaps.publish(state, context.tables, sure, &mut self.holds);
        self.stage = Stage::Waiting;
        failure.transpose()?;
        if self.question.widened() > 0 {
            state.stats.widened += 1;
            state.stats.widened_pages += self.question.widened();
        }
        Ok(())
    }

    /// Plans all of it once more. Segments shown as ready stay held.
    fn plan_anew(&mut self, sharing: Sharing) {
        self.past.extend(self.holds.drain(..));
        self.plan_part(self.request.range, sharing);
    }

    /// Plans all of it once more, as it is: its widened registration failed, or found no room. What is registered of it is published.
    fn narrow(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>, sure: bool) {
        state.stats.widened_failed += 1;
        self.gaps.publish(state, context.tables, sure, &mut self.holds);
        self.awaited.clear();
        self.plan_anew(self.request.sharing);
    }

    /// Plans a part of it, or all, which was counted before.
    fn plan_part(&mut self, range: PageRange, sharing: Sharing) {
        self.question.repeat(range, sharing);
        self.stage = Stage::Planning;
    }

    /// Asks the core, and takes in its answer: holds what is registered, notes what others register, and issues tickets for its
    /// own gaps.
    fn plan(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Next {
        let mut is_held = true;
        if self.question.looks(state)
            && let Some(reach) = reach(state, context, &self.request)
        {
            return Ok(Some(Step::Look(reach, state.changes.number())));
        }
        self.question.check_surroundings(state, &self.request);
        if let Some(gap) = self.question.put_lone(state, context) {
            self.gaps.add(state, context, &self.request, gap);
        } else if let Some(step) = self.question.put(state, context, &mut self.waits)? {
            return Ok(Some(step));
        } else {
            is_held = self.take_answer(state, context);
        }
        let &Context { thread, .. } = context;
        self.gaps.begin(state, thread);
        keep_headroom(state, context);
        self.room.begin(state, context);
        self.stage = Stage::MakingRoom;
        if std::mem::take(&mut self.begins) {
            self.stage = Stage::Begun;
            if !self.gaps.is_empty() {
                self.gaps.set_beginner(state, thread);
                // Mostly there is room, and nothing to deregister first.
                if state.reclaimer.is_kept_up(context.settings.background) {
                    self.gaps.reserve(state);
                }
            }
        }
        // What is reserved is taken back with the request.
        if is_held { Ok(None) } else { Err(AcquireError::TooManyLeases { range: self.question.range() }) }
    }

    /// Takes in the answer of the core. False where a region has too many leases.
    fn take_answer(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> bool {
        let &Context { tables, thread, .. } = context;
        let mut is_held = true;
        let before = self.holds.len();
        for &part in state.core.outcome().parts() {
            match part {
                Part::Ready { region: id, .. } => match tables.hold(id) {
                    Ok(hold) => self.holds.push(hold),
                    Err(_) => is_held = false,
                },
                Part::Registering { region: id, range } => {
                    let Entry::Registering { ticket, owner, .. } = state.in_flight.entry(id) else {
                        unreachable!("{id:?} is being registered")
                    };
                    self.awaited.push(Awaited { id, ticket, range, own: owner == thread });
                }
                Part::Gap { region: Some(id), range, access } => {
                    self.gaps.add(state, context, &self.request, Gap::new(id, range, access));
                }
                Part::Gap { region: None, .. } => unreachable!("under a hard limit every gap becomes a region"),
            }
        }
        self.holds[before..].iter().for_each(|hold| state.note_leased(hold.id()));
        is_held
    }

    fn make_room(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Next {
        if self.gaps.is_empty() {
            self.stage = Stage::Waiting;
            return Ok(None);
        }
        let next = match self.room.make(state, context, self.request.range, &mut self.gaps, &self.waits) {
            // The request as it is may find room. There may be more for the next.
            Err(_) if self.question.widened() > 0 => {
                self.narrow(state, context, true);
                return Ok(None);
            }
            next => next?,
        };
        if next.is_none() {
            self.stage = Stage::Registering;
        }
        Ok(next)
    }

    /// Waits until the tickets of others are gone, and plans for what they leave.
    fn wait_for_others(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Next {
        let &Context { settings, thread, .. } = context;
        if let Some(&Awaited { id, ticket, range, own }) = self.awaited.last() {
            // As long as it has begun something, this thread waits for no other: others may wait for that, and have begun
            // what this is.
            let mut sharing = self.request.sharing;
            if own || state.in_flight.is_in_progress(id, ticket) {
                if !own && !state.in_flight.is_beginner(thread) {
                    self.waits.count(&mut state.stats);
                    let obstacle = || Obstacle::Registering { range };
                    return Ok(Some(Step::Wait(self.waits.left_for_others(settings, self.request.range, obstacle)?)));
                }
                sharing = Sharing::Nothing;
            }
            self.awaited.pop();
            // Planned again whatever became of it: it may have failed, or gone already.
            if self.request.blocks.is_some() {
                // The region that takes its place may end within a block that another part has.
                self.awaited.clear();
                self.plan_anew(sharing);
            } else {
                self.plan_part(range, sharing);
            }
        } else if self.holds.len() > settings.max_segments {
            // More than one region took the place of the awaited one.
            self.plan_anew(self.request.sharing);
        } else {
            self.stage = Stage::Done;
        }
        Ok(None)
    }

    /// Returns the region whose ticket the request waits for, if it waits for one.
    pub(crate) fn awaited(&self) -> Option<RegionId> {
        let awaited = self.awaited.last().filter(|_| self.stage == Stage::Waiting);
        awaited.map(|awaited| awaited.id)
    }

    /// Returns whether nothing of the request is held or left in the state.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.past.is_empty() && !self.gaps.has_unwatch() && !self.is_pending()
    }

    /// Returns whether something of the request is left in the state that [`Miss::abandon`] takes back.
    pub(crate) fn is_pending(&self) -> bool {
        self.gaps.is_pending()
    }

    /// Takes back what is planned and not published.
    pub(crate) fn abandon(&mut self, state: &mut CacheState<T>, tables: &HitTables<T>) {
        self.awaited.clear();
        self.gaps.abandon(state, tables);
    }

    /// Leaks what was registered and is not published: nothing may deregister it any more.
    pub(crate) fn forget(&mut self) {
        self.awaited.clear();
        self.gaps.forget();
    }
}
