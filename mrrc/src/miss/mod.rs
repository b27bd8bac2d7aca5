//! A miss, as a state machine: no clock, no lock, no registrar.
//!
//! ```text
//! Start ─ plan: victims leave, gaps get tickets, what is registered is held ─► Probe, Wait (for room)
//!       ─ make room with the registrar                                      ─► Deregister, Wait
//!       ─ the driver asks the monitor and registers each gap                ─► Register
//!       ─ publish, or take back what failed; free more where the system is out of something
//!       ─ wait for the tickets of others, and plan again for what they leave ─► Wait
//! ```
//!
//! [`Miss::advance`] runs under the lock and returns a [`Step`]; the driver (`lease/pending.rs`) does that, without the lock
//! where it takes long, and reports it as the next [`Event`].
//!
//! A request reserves all its gaps in one step or fails. It registers its own before it waits for others, and
//! it never waits for leases while a ticket of its own is out, so two requests never wait for each other. Nor does a
//! thread wait for itself: what it has begun it registers once more. And as long as it has begun what it does not register
//! just now, it waits for no other thread, and registers once more what others do: they may have begun that, and need what
//! it has. What no look-up will find (the monitor does not watch it, it is just being discarded) is retired before it is
//! registered, so no thread waits for that either.
//!
//! Waits end by their time-outs. Where a request ends early [`Miss::abandon`] takes back its tickets, and threads that wait
//! for them plan for themselves.

mod request;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub(crate) use request::AcquireRequest;

use crate::access::Access;
use crate::core::{AllInUse, Ask, Part, Sharing};
use crate::effective::EffectiveSettings;
use crate::error::{AcquireError, Obstacle, Unusable};
use crate::footprint::Footprint;
use crate::hit::{HitTables, HoldRef};
use crate::invalidation::Watch;
use crate::policy::Need;
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::registrar::{Failure, Registered};
use crate::state::{Batch, CacheState, Entry};
use smallvec::SmallVec;
use std::io;
use std::time::Duration;

/// The shortest and longest time between two looks at leases that may have ended.
const LOOK: Duration = Duration::from_micros(100);
const LOOK_LONGEST: Duration = Duration::from_millis(5);
/// Batches that a request deregisters for others, at most, where no other thread does that. Each takes twice as much as the
/// one before, or some milliseconds.
const FOR_OTHERS: u32 = 16;

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
pub(crate) enum Step<T> {
    /// Ask the registrar whether the range can be registered, without the lock.
    Probe(PageRange),
    /// Ask the monitor about the gaps and register them, without the lock.
    Register,
    /// Deregister a batch, without the lock.
    Deregister(Batch<T>),
    /// Wait for progress, at most so long. The lock is let go meanwhile.
    Wait(Duration),
    /// Let the lock go and take it again, with every change in the state.
    Relock,
    /// The request is done, or as far as it is to be begun.
    Done,
}

/// Why a gap is for its request alone, so that no look-up finds it and no thread waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uncached {
    /// Pages there are being discarded, or are about to change.
    Changing,
    /// The monitor does not report when memory there changes.
    Unwatched,
    /// The request is served by nothing that others could find: its thread waits for no other, or it has rights of its own.
    ByItself,
    /// The policy keeps nothing.
    NothingKept,
}

/// A gap that this request registers.
pub(crate) struct Gap<T> {
    id: RegionId,
    pub(crate) range: PageRange,
    pub(crate) access: Access,
    uncached: Option<Uncached>,
    /// The monitor's answer; none before it was asked.
    pub(crate) watch: Option<Watch>,
    /// Attempts that failed.
    tries: u32,
    /// Registered, and not in the state yet. Whatever happens it is not lost: a registrar or a monitor can panic.
    pub(crate) made: Option<T>,
}

impl<T> Gap<T> {
    /// Returns whether the monitor is to be told when the region goes.
    fn is_watched(&self) -> bool {
        self.watch == Some(Watch::Watched)
    }
}

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
    /// The system is out of something: regions are deregistered until so many pages are, and then it is tried again.
    Freeing { enough: u64 },
    /// Another request registers a part.
    Waiting,
    /// Everything is held.
    Done,
}

/// The work that is done for others before a request makes room for itself: batches and regions to deregister.
#[derive(Clone, Copy, Default)]
struct Chores {
    batches: u32,
    regions: usize,
}

/// A request that is no hit. Owns its holds, and its gaps until they are published or abandoned.
pub(crate) struct Miss<T> {
    request: AcquireRequest,
    stage: Stage,
    /// Whether its caller does something else between the plan and the registration.
    begins: bool,
    /// The question to the core, and whether the registrar was asked before others have to leave for it.
    ask: Ask,
    probed: bool,
    /// The next time between two looks at leases.
    nap: Duration,
    /// The thread that is noted for gaps that it does not register yet.
    beginner: Option<u32>,
    /// Time spent waiting: for room, and for others. The time of the caller or the registrar is not waiting.
    waited_for_room: Duration,
    waited_for_others: Duration,
    /// Time spent on freeing memory for the next try.
    freeing: Duration,
    /// Whether it is counted as one that waited.
    has_waited: bool,
    chores: Chores,
    /// Whether the request deregistered something for itself, and whether it had refused regions tried again.
    helped: bool,
    retried: bool,
    holds: SmallVec<[HoldRef; 2]>,
    /// Held before the request was planned anew.
    past: SmallVec<[HoldRef; 1]>,
    gaps: SmallVec<[Gap<T>; 2]>,
    awaited: SmallVec<[Awaited; 1]>,
    /// Room that was reserved with the registrar and not used yet.
    reserved: Footprint,
    /// Attempts that are not counted yet.
    attempts: u64,
    /// Ranges that are watched and were not registered: the driver unwatches them, without the lock.
    to_unwatch: SmallVec<[PageRange; 1]>,
}

/// The next step, or none where another look at the request decides it.
type Next<T> = Result<Option<Step<T>>, AcquireError>;

impl<T> Miss<T> {
    #[inline(always)]
    pub(crate) fn new(request: AcquireRequest, max_segments: usize, begins: bool) -> Self {
        let AcquireRequest { range, access, counted, sharing, .. } = request;
        Self {
            request,
            stage: Stage::Planning,
            begins,
            ask: Ask { range, access, max_segments, again: counted, sharing },
            probed: false,
            nap: LOOK,
            beginner: None,
            waited_for_room: Duration::ZERO,
            waited_for_others: Duration::ZERO,
            freeing: Duration::ZERO,
            has_waited: false,
            chores: Chores::default(),
            helped: false,
            retried: false,
            holds: SmallVec::new(),
            past: SmallVec::new(),
            gaps: SmallVec::new(),
            awaited: SmallVec::new(),
            reserved: Footprint::default(),
            attempts: 0,
            to_unwatch: SmallVec::new(),
        }
    }

    /// Returns a request that is one gap, [reserved](reserve_lone) and tried so often.
    pub(crate) fn of_gap(request: AcquireRequest, max_segments: usize, gap: Gap<T>, attempts: u64) -> Self {
        let mut miss = Self::new(request, max_segments, false);
        miss.stage = Stage::Registering;
        miss.reserved = Footprint::of([gap.range]);
        miss.attempts = attempts;
        miss.gaps.push(gap);
        miss
    }

    pub(crate) fn request(&self) -> &AcquireRequest {
        &self.request
    }

    /// Returns what is held.
    pub(crate) fn holds(&self) -> &[HoldRef] {
        &self.holds
    }

    /// Returns what was held before the request was planned anew; the caller ends these holds.
    pub(crate) fn take_holds(&mut self) -> SmallVec<[HoldRef; 2]> {
        std::mem::take(&mut self.holds)
    }

    pub(crate) fn take_past(&mut self) -> SmallVec<[HoldRef; 1]> {
        std::mem::take(&mut self.past)
    }

    /// Keeps holds until the request ends.
    pub(crate) fn keep(&mut self, holds: impl IntoIterator<Item = HoldRef>) {
        self.past.extend(holds);
    }

    /// Returns the ranges that are watched and were not registered: to be unwatched without the lock.
    pub(crate) fn take_unwatch(&mut self) -> SmallVec<[PageRange; 1]> {
        std::mem::take(&mut self.to_unwatch)
    }

    /// Returns whether a request that was begun has nothing to register and nothing to wait for.
    pub(crate) fn is_complete(&self) -> bool {
        self.gaps.is_empty() && self.awaited.is_empty() && self.holds.len() <= self.ask.max_segments
    }

    /// Returns whether a request that was begun has only gaps to register for which there is room: then no lock is needed
    /// before.
    pub(crate) fn register_at_once(&mut self) -> bool {
        let ready = self.stage == Stage::Begun && self.reserved != Footprint::default();
        if ready {
            self.stage = Stage::Registering;
        }
        ready
    }

    /// Returns the gaps to ask the monitor about: none where no look-up will find them, or the caller answers for them.
    pub(crate) fn unasked(&mut self) -> impl Iterator<Item = &mut Gap<T>> {
        let request = self.request;
        let unasked =
            move |gap: &&mut Gap<T>| gap.watch.is_none() && gap.uncached.is_none() && !request.answers_for(gap.range);
        self.gaps.iter_mut().filter(unasked)
    }

    /// Returns whether the monitor does not watch a gap that others might wait for.
    pub(crate) fn has_unwatched(&self) -> bool {
        self.gaps.iter().any(|gap| gap.uncached.is_none() && matches!(gap.watch, Some(Watch::Unwatched(_))))
    }

    /// Returns the next gap to register, and counts the attempt: before, because the registrar may panic.
    pub(crate) fn next_gap(&mut self) -> Option<&mut Gap<T>> {
        let next = self.registered();
        let gap = self.gaps.get_mut(next)?;
        self.attempts += 1;
        Some(gap)
    }

    /// Returns how many gaps are registered: they are the first.
    fn registered(&self) -> usize {
        self.gaps.partition_point(|gap| gap.made.is_some())
    }

    /// Notes a request whose plan is to be made anew, from the beginning.
    pub(crate) fn restart(&mut self) {
        (self.waited_for_room, self.waited_for_others) = (Duration::ZERO, Duration::ZERO);
        self.awaited.clear();
        self.begins = false;
        self.plan_anew();
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
    ) -> Result<Step<T>, AcquireError> {
        let mut sure = true;
        match event {
            Event::Start | Event::Locked => {}
            Event::Resume => self.stage = Stage::MakingRoom,
            Event::Probed(answer) => self.probed(state, context, answer)?,
            Event::Unwatched => {
                self.set_apart(state);
                return Ok(Step::Register);
            }
            Event::Registered { failed: None, sure: is_sure } => {
                sure = is_sure;
                self.publish(state, context, sure);
            }
            Event::Registered { failed: Some(source), sure: is_sure } => {
                sure = is_sure;
                if let Err(error) = self.failed(state, context, source) {
                    self.publish(state, context, sure);
                    return Err(error);
                }
            }
            Event::Deregistered(took) => self.deregistered(took),
            Event::Waited(took) => match self.stage {
                Stage::Planning => self.waited_for_room += took,
                Stage::Freeing { .. } => self.freeing += took,
                _ => self.waited_for_others += took,
            },
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
                Stage::Freeing { enough } => self.free(state, context, enough),
                Stage::Waiting => self.wait_for_others(state, context)?,
            };
            if let Some(step) = next {
                return Ok(step);
            }
        }
    }
}

/// The plan.
impl<T> Miss<T> {
    /// Plans all of it once more. Segments shown as ready stay held.
    fn plan_anew(&mut self) {
        self.past.extend(self.holds.drain(..));
        self.plan_part(self.request.range, self.request.sharing);
    }

    /// Plans a part of it, or all, which was counted before.
    fn plan_part(&mut self, range: PageRange, sharing: Sharing) {
        self.ask = Ask { range, sharing, again: true, ..self.ask };
        (self.probed, self.nap) = (false, LOOK);
        self.stage = Stage::Planning;
    }

    /// Asks the core until it has an answer. Where all that is registered is in use, room is looked for, or waited for.
    fn plan(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Next<T> {
        let &Context { tables, settings, members, .. } = context;
        loop {
            is_open(state)?;
            let ask = self.ask;
            if state.core.may_evict_for(&ask) {
                state.sweep(tables);
                if !std::mem::replace(&mut self.probed, true) {
                    return Ok(Some(Step::Probe(ask.range)));
                }
            }
            let answer = state.with_core(tables, |core, leases| {
                if members.is_empty() || ask.again {
                    core.ask(&ask, leases).map(drop)
                } else {
                    core.ask_group(&ask, members, leases).map(drop)
                }
            });
            let Err(refusal) = answer else { break };
            self.ask.again = true;
            let held = state.lease_holds.len();
            state.sweep_all(tables);
            if state.lease_holds.len() < held {
                // Leases have ended since the last look.
                state.core.take_back_refusal();
            } else {
                return self.wait_for_room(state, settings, refusal).map(Some);
            }
        }
        self.take_in(state, context)?;
        Ok(None)
    }

    /// The core has refused: it is asked again after a while, and has not refused yet; or that was done long enough.
    fn wait_for_room(
        &mut self,
        state: &mut CacheState<T>,
        settings: &EffectiveSettings,
        refusal: AllInUse,
    ) -> Result<Step<T>, AcquireError> {
        let waited = self.waited_for_room;
        let left = settings.capacity_timeout.saturating_sub(waited);
        if left.is_zero() {
            return Err(AcquireError::AllInUse { source: refusal, waited });
        }
        state.core.take_back_refusal();
        self.count_as_waiting(state);
        // Leases end without a word: looked after at growing intervals.
        let nap = self.nap;
        self.nap = (nap * 2).min(LOOK_LONGEST);
        Ok(Step::Wait(nap.min(left)))
    }

    /// Others may have to leave for this: not for an address that cannot be registered.
    fn probed(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        answer: io::Result<()>,
    ) -> Result<(), AcquireError> {
        let Ask { range, access, .. } = self.ask;
        // Nothing of this request was in the state meanwhile: the end of the cache did not wait for it.
        is_open(state)?;
        if let Err(source) = answer
            && state.core.refuse_missing(&self.ask, context.members)
        {
            self.attempts += 1;
            let registrar = context.registrar;
            return Err(AcquireError::Register { range, access, registrar, attempts: 1, source });
        }
        Ok(())
    }

    /// Takes in what the core has answered: holds what is registered, notes what others register, and issues tickets for its
    /// own gaps.
    fn take_in(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Result<(), AcquireError> {
        let &Context { tables, settings, thread, .. } = context;
        let mut is_held = true;
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
                    // Asked before the pages are looked up: a registration can outlast the grace period. What is discarded from
                    // here on makes the entry stale.
                    let uncached = if !state.changes.allows_caching(range, self.request.answers_for(range)) {
                        Some(Uncached::Changing)
                    } else if !settings.caches {
                        Some(Uncached::NothingKept)
                    } else if state.core.is_found(id) {
                        None
                    } else if self.request.sharing == Sharing::Nothing && self.request.owned.is_none() {
                        // Borrowed memory, whose changes are not reported.
                        Some(Uncached::Unwatched)
                    } else {
                        Some(Uncached::ByItself)
                    };
                    self.gaps.push(Gap { id, range, access, uncached, watch: None, tries: 0, made: None });
                }
                Part::Gap { region: None, .. } => unreachable!("under a hard limit every gap becomes a region"),
            }
        }
        for gap in &self.gaps {
            state.begin(gap.id, thread);
            if gap.uncached.is_some() {
                state.core.withdraw(gap.id);
            }
        }
        keep_headroom(state, context);
        (self.helped, self.retried) = (false, false);
        let is_idle = settings.background || state.reclaimer.is_in_progress();
        self.chores = if is_idle || !state.reclaimer.has_work() {
            Chores::default()
        } else {
            Chores { batches: FOR_OTHERS, regions: state.reclaimer.pending_regions() }
        };
        self.stage = Stage::MakingRoom;
        if self.begins {
            self.begins = false;
            self.stage = Stage::Begun;
            if !self.gaps.is_empty() {
                state.in_flight.add_beginner(thread);
                self.beginner = Some(thread);
                // Mostly there is room, and nothing to deregister first.
                let amount = self.missing();
                if (settings.background || !state.reclaimer.has_work()) && state.reserve(amount) {
                    self.reserved = amount;
                }
            }
        }
        // What is reserved is taken back with the request.
        if is_held { Ok(()) } else { Err(AcquireError::TooManyLeases { range: self.ask.range }) }
    }

    fn missing(&self) -> Footprint {
        Footprint::of(self.gaps.iter().map(|gap| gap.range))
    }

    /// Counts the request as one that waited: once, however often it looks and whatever it waits for.
    fn count_as_waiting(&mut self, state: &mut CacheState<T>) {
        state.stats.waits += u64::from(!std::mem::replace(&mut self.has_waited, true));
    }
}

/// Room with the registrar.
impl<T> Miss<T> {
    /// Deregisters what has left until there is room for this request's gaps, and reserves that.
    ///
    /// Where no other thread does that, a bounded part of what left before is deregistered in any case; more only as long as
    /// the room is not there, and no longer than the request would wait for others.
    fn make_room(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Next<T> {
        if self.gaps.is_empty() {
            self.stage = Stage::Waiting;
            return Ok(None);
        }
        let &Context { settings, thread, registrar, .. } = context;
        if self.chores.batches > 0 {
            if self.chores.regions > 0 && state.reclaimer.has_work() {
                let batch = state.reclaimer.take_batch(thread);
                self.chores.batches -= 1;
                self.chores.regions -= batch.regions.len().min(self.chores.regions);
                return Ok(Some(Step::Deregister(batch)));
            }
            self.chores = Chores::default();
        }
        let amount = self.missing();
        loop {
            if self.reserved != Footprint::default() || state.reserve(amount) {
                self.reserved = amount;
                self.stage = Stage::Registering;
                return Ok(None);
            } else if state.reclaimer.has_pending() {
                if std::mem::replace(&mut self.helped, true) {
                    self.time_left(settings, || state.obstacle(amount))?;
                }
                return Ok(Some(Step::Deregister(state.reclaimer.take_batch(thread))));
            } else if state.reclaimer.is_in_progress() {
                return Ok(Some(Step::Wait(self.time_left(settings, || state.obstacle(amount))?)));
            } else if !self.retried && state.reclaimer.has_refused() {
                self.retried = true;
                state.reclaimer.retry();
            } else {
                // Regions that could not be deregistered take the room.
                let (Footprint { pages, regions }, why) = state.reclaimer.refused();
                let range = self.request.range;
                if regions > 0 {
                    let why = why.to_owned();
                    state.stats.refused_dereg_failed += 1;
                    return Err(AcquireError::DeregistrationFailed { range, pages, regions, registrar, why });
                }
                let source = state.occupancy.no_room(range, amount);
                return Err(AcquireError::AllInUse { source, waited: self.waited_for_room });
            }
        }
    }

    fn deregistered(&mut self, took: Duration) {
        match self.stage {
            Stage::Freeing { .. } => self.freeing += took,
            // What is done for others is not waiting.
            _ if self.helped => self.waited_for_others += took,
            _ => {}
        }
    }

    /// Returns how much longer this request waits for others, or works for them: an error that says for what, when that is
    /// over.
    fn time_left(
        &self,
        settings: &EffectiveSettings,
        obstacle: impl FnOnce() -> Obstacle,
    ) -> Result<Duration, AcquireError> {
        let waited = self.waited_for_others;
        let left = settings.wait_timeout.saturating_sub(waited);
        if !left.is_zero() {
            return Ok(left);
        }
        Err(AcquireError::TimedOut { range: self.request.range, waited, obstacle: obstacle() })
    }

    /// A gap could not be registered: where the system is out of something, room is made and it is tried again.
    fn failed(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        source: io::Error,
    ) -> Result<(), AcquireError> {
        let &Context { settings, tables, registrar, .. } = context;
        let next = self.registered();
        let Some(gap) = self.gaps.get_mut(next) else { unreachable!("a gap failed") };
        gap.tries += 1;
        let &mut Gap { range, access, tries: attempts, .. } = gap;
        let refused = |source| AcquireError::Register { range, access, registrar, attempts, source };
        if Failure::of(&source) == Failure::Refused || attempts > settings.retries {
            return Err(refused(source));
        }
        state.sweep(tables);
        // More each time: what the system counts need not be what we count.
        let pages = range.pages().saturating_mul(1 << attempts.min(16));
        state.evict(tables, Need { pages, regions: 1 });
        // Or another thread may be freeing what is missing.
        let left = settings.wait_timeout.saturating_sub(self.waited_for_others);
        if !state.reclaimer.has_pending() && (!state.reclaimer.is_in_progress() || left.is_zero()) {
            return Err(refused(source));
        }
        state.stats.retries += 1;
        self.freeing = Duration::ZERO;
        self.stage = Stage::Freeing { enough: state.stats.deregistered.pages.saturating_add(pages) };
        Ok(())
    }

    /// Deregisters what has left, batch by batch, until so much is deregistered, by any thread, or nothing is left to wait
    /// for. No longer than the request waits for others.
    fn free(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>, enough: u64) -> Option<Step<T>> {
        let left = context.settings.wait_timeout.saturating_sub(self.waited_for_others).saturating_sub(self.freeing);
        let has_begun = !self.freeing.is_zero();
        if state.stats.deregistered.pages < enough && (!left.is_zero() || !has_begun) {
            if state.reclaimer.has_pending() {
                return Some(Step::Deregister(state.reclaimer.take_batch(context.thread)));
            }
            if state.reclaimer.is_in_progress() && !left.is_zero() {
                return Some(Step::Wait(left));
            }
        }
        self.waited_for_others += self.freeing;
        self.stage = Stage::Registering;
        None
    }
}

/// The end of a registration.
impl<T> Miss<T> {
    /// Keeps gaps whose changes would not be reported for this request alone: others that need them do not wait
    /// for their registration.
    fn set_apart(&mut self, state: &mut CacheState<T>) {
        for gap in self.gaps.iter_mut().filter(|gap| matches!(gap.watch, Some(Watch::Unwatched(_)))) {
            gap.uncached = Some(Uncached::Unwatched);
            state.core.withdraw(gap.id);
            // Requests that wait for the old ticket find that it is gone.
            state.in_flight.renew(gap.id);
        }
    }

    /// Publishes what was registered, and takes back what was not.
    fn publish(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>, sure: bool) {
        self.give_back(state);
        let mut gaps = std::mem::take(&mut self.gaps);
        let mut published = SmallVec::<[RegionId; 2]>::new();
        for mut gap in gaps.drain(..) {
            match gap.made.take() {
                Some(registration) => {
                    let (hold, is_cached) = set_registered(state, context.tables, &gap, registration, sure);
                    self.holds.push(hold);
                    if is_cached {
                        published.push(gap.id);
                    }
                }
                None => self.abandon_gap(state, &gap),
            }
        }
        if !published.is_empty() {
            state.publish(context.tables, &published);
        }
        self.stage = Stage::Waiting;
    }

    fn abandon_gap(&mut self, state: &mut CacheState<T>, gap: &Gap<T>) {
        state.abandon(gap.id);
        if gap.is_watched() {
            self.to_unwatch.push(gap.range);
        }
    }

    /// Frees what was reserved and not used; the thread is noted no more for what it does not register yet.
    fn give_back(&mut self, state: &mut CacheState<T>) {
        if let Some(beginner) = self.beginner.take() {
            state.in_flight.remove_beginner(beginner);
        }
        let mut unused = std::mem::take(&mut self.reserved);
        for gap in self.gaps.iter().filter(|gap| gap.made.is_some()) {
            unused = unused.minus(Footprint::of([gap.range]));
        }
        state.occupancy.release(unused);
        state.stats.attempts += std::mem::take(&mut self.attempts);
    }

    /// Waits until the tickets of others are gone, and plans for what they leave.
    fn wait_for_others(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Next<T> {
        let &Context { settings, thread, .. } = context;
        if let Some(&Awaited { id, ticket, range, own }) = self.awaited.last() {
            // As long as it has begun something, this thread waits for no other: others may wait for that, and have begun
            // what this is.
            let mut sharing = self.request.sharing;
            if own || state.in_flight.is_in_progress(id, ticket) {
                if !own && !state.in_flight.is_beginner(thread) {
                    self.count_as_waiting(state);
                    return Ok(Some(Step::Wait(self.time_left(settings, || Obstacle::Registering { range })?)));
                }
                sharing = Sharing::Nothing;
            }
            self.awaited.pop();
            // Planned again whatever became of it: it may have failed, or gone already.
            self.plan_part(range, sharing);
        } else if self.holds.len() > settings.max_segments {
            // More than one region took the place of the awaited one.
            self.plan_anew();
        } else {
            self.stage = Stage::Done;
        }
        Ok(None)
    }

    /// Returns whether nothing of the request is held or left in the state.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let holds_none = self.holds.is_empty() && self.past.is_empty() && self.to_unwatch.is_empty();
        holds_none && !self.is_pending()
    }

    /// Returns whether something of the request is left in the state that [`Miss::abandon`] takes back.
    pub(crate) fn is_pending(&self) -> bool {
        !self.gaps.is_empty() || self.attempts > 0 || self.reserved != Footprint::default()
    }

    /// Takes back what is planned and not published.
    pub(crate) fn abandon(&mut self, state: &mut CacheState<T>, tables: &HitTables<T>) {
        self.awaited.clear();
        self.give_back(state);
        let mut gaps = std::mem::take(&mut self.gaps);
        for mut gap in gaps.drain(..) {
            let watched = gap.is_watched();
            match gap.made.take() {
                // A registrar or a monitor panicked: what was registered goes.
                Some(registration) => {
                    state.abandon(gap.id);
                    let registered = Registered { range: gap.range, access: gap.access, registration };
                    state.reclaimer.push(registered, watched);
                    state.reclaimer.stir(tables.notifier());
                }
                None => self.abandon_gap(state, &gap),
            }
        }
    }

    /// Leaks what was registered and is not published: nothing may deregister it any more.
    pub(crate) fn forget(&mut self) {
        self.awaited.clear();
        (self.reserved, self.attempts) = (Footprint::default(), 0);
        for gap in self.gaps.drain(..) {
            if gap.is_watched() && gap.made.is_none() {
                self.to_unwatch.push(gap.range);
            }
            std::mem::forget(gap.made);
        }
    }
}

/// Reserves the usual miss, one gap that nothing overlaps and for which there is room, and its ticket. `None`, and nothing is
/// done, for any other.
#[inline]
pub(crate) fn reserve_lone<T>(
    state: &mut CacheState<T>,
    context: &Context<'_, T>,
    request: &AcquireRequest,
) -> Option<Gap<T>> {
    let &Context { settings, thread, .. } = context;
    let &AcquireRequest { range, access, counted, sharing, .. } = request;
    let amount = Footprint::of([range]);
    // Regions that have left are deregistered first, unless another thread does that.
    let is_plain = settings.caches && !state.closed && (settings.background || !state.reclaimer.has_work());
    if !is_plain || !state.changes.allows_caching(range, false) || !state.occupancy.has_room(amount) {
        return None;
    }
    let ask = Ask { range, access, max_segments: settings.max_segments, again: counted, sharing };
    let id = state.core.hold_anew(&ask)?;
    state.begin(id, thread);
    let is_reserved = state.reserve(amount);
    debug_assert!(is_reserved, "there was room");
    keep_headroom(state, context);
    Some(Gap { id, range, access, uncached: None, watch: None, tries: 0, made: None })
}

/// Publishes a gap that was [reserved](reserve_lone), and that one attempt registered.
#[inline]
pub(crate) fn publish_lone<T>(
    state: &mut CacheState<T>,
    tables: &HitTables<T>,
    gap: &Gap<T>,
    registration: T,
    sure: bool,
) -> HoldRef {
    state.stats.attempts += 1;
    let (hold, is_cached) = set_registered(state, tables, gap, registration, sure);
    if is_cached {
        state.publish(tables, &[gap.id]);
    }
    hold
}

/// Notes that a gap was registered. Returns a hold of it, and whether it is to be published. Sure: no change is under way that
/// is not in the state.
#[inline(always)]
fn set_registered<T>(
    state: &mut CacheState<T>,
    tables: &HitTables<T>,
    gap: &Gap<T>,
    registration: T,
    sure: bool,
) -> (HoldRef, bool) {
    let &Gap { id, range, access, uncached, .. } = gap;
    let lone = uncached.is_some();
    let Entry::Registering { stale, .. } = state.in_flight.entry(id) else {
        unreachable!("{id:?} is this request's own")
    };
    // Not cached any more: taken in by another region meanwhile, or invalidated.
    let merged = !lone && !state.core.is_found(id);
    let changed_in_flight = !lone && (stale || !sure);
    let cached = !lone && !merged && !changed_in_flight;
    state.stats.changed_in_flight += u64::from(changed_in_flight);
    state.stats.discarded += u64::from(uncached == Some(Uncached::Changing));
    state.stats.unwatched += u64::from(uncached == Some(Uncached::Unwatched));
    state.set_registered(id, !cached, gap.is_watched());
    tables.records[id].fill(range, access, registration);
    let Ok(hold) = tables.hold(id) else { unreachable!("{id:?} was not found before, so no count has leases of it") };
    if !cached {
        state.retire_for_lease(id);
    }
    (hold, cached)
}

/// Wakes the background where less is free than it is to keep free.
fn keep_headroom<T>(state: &CacheState<T>, context: &Context<'_, T>) {
    if context.settings.background && state.occupancy.free_pages() < context.settings.headroom {
        context.tables.notifier().notify_one();
    }
}

/// Whether the cache is there. Asked each time that the lock was taken before anything of a request is in the state: what
/// is there keeps the state of the cache, and nothing else does.
fn is_open<T>(state: &CacheState<T>) -> Result<(), Unusable> {
    if state.closed { Err(Unusable::Closed) } else { Ok(()) }
}
