//! The question to the core, and the room that it lacks.

use super::gaps::Gap;
use super::surroundings::note_refusal;
use super::waits::{Cause, Waits};
use super::{AcquireRequest, Context, Next, Step};
use crate::core::{AllInUse, Request, Sharing};
use crate::error::{AcquireError, Unusable};
use crate::range::PageRange;
use crate::registrar::Failure;
use crate::state::CacheState;
use std::io;
use std::time::Duration;

/// The shortest and longest time between two looks at leases that may have ended.
const LOOK: Duration = Duration::from_micros(100);
const LOOK_LONGEST: Duration = Duration::from_millis(5);

/// The question to the core. Owns it, and how often it was put.
pub(super) struct Question {
    ask: Request,
    /// Whether the registrar was asked before others have to leave for it.
    is_probed: bool,
    /// Whether its surroundings need not be looked at (any more).
    is_looked: bool,
    /// The number of changes of memory when they were looked at.
    seen: u64,
    /// Pages beyond the request that its plan registers.
    widened: u64,
    /// The next time between two looks at leases.
    nap: Duration,
}

impl Question {
    /// Returns a question that was not put. `looks`: the surroundings of the request may be registered with it.
    pub(super) fn new(ask: Request, looks: bool) -> Self {
        Self { ask, is_probed: false, is_looked: !looks, seen: 0, widened: 0, nap: LOOK }
    }

    /// Returns whether the surroundings of the request are to be looked at, once.
    pub(super) fn looks<T>(&mut self, state: &CacheState<T>) -> bool {
        let looks = !std::mem::replace(&mut self.is_looked, true);
        if looks {
            self.seen = state.changes.number();
        }
        looks
    }

    /// Takes the pages that can be registered with the request.
    pub(super) fn take_surroundings<T>(&mut self, state: &mut CacheState<T>, found: PageRange) {
        state.core.note_surroundings(self.ask.range, found != self.ask.range);
        self.ask.mapping = found;
    }

    /// Keeps to the request where memory changed since its surroundings were looked at, or nothing is cached of them: it would not be
    /// cached either.
    pub(super) fn check_surroundings<T>(&mut self, state: &CacheState<T>, request: &AcquireRequest) {
        let Request { range, mapping, .. } = self.ask;
        let is_cached = || state.changes.allows_caching(mapping, request.answers_for(mapping));
        if mapping != range && (self.seen != state.changes.number() || !is_cached()) {
            self.ask.mapping = range;
        }
    }

    /// Returns the pages that its plan registers beyond the request.
    pub(super) fn widened(&self) -> u64 {
        self.widened
    }

    pub(super) fn range(&self) -> PageRange {
        self.ask.range
    }

    pub(super) fn max_segments(&self) -> usize {
        self.ask.max_segments
    }

    /// Asks for a part of the request, or all, which was counted before. It is not widened.
    pub(super) fn repeat(&mut self, range: PageRange, sharing: Sharing) {
        *self = Self::new(Request { range, sharing, again: true, mapping: range, ..self.ask }, false);
    }

    /// Asks for a gap that nothing overlaps and for which there is room in the core. `None`, and nothing is done, for any other
    /// request.
    pub(super) fn put_lone<T>(&self, state: &mut CacheState<T>, context: &Context<'_, T>) -> Option<Gap<T>> {
        if state.closed || !context.members.is_empty() {
            return None;
        }
        let id = state.core.request_lone(&self.ask)?;
        Some(Gap::new(id, self.ask.range, self.ask.access))
    }

    /// Asks the core until it has an answer, which is in its outcome. Where all that is registered is in use, room is looked for,
    /// or waited for.
    pub(super) fn put<T>(&mut self, state: &mut CacheState<T>, context: &Context<'_, T>, waits: &mut Waits) -> Next {
        let &Context { tables, members, .. } = context;
        loop {
            check_open(state)?;
            let ask = self.ask;
            if self.is_probed {
                state.sweep(tables);
            } else if state.core.may_evict_for(&ask) {
                self.is_probed = true;
                return Ok(Some(Step::Probe(ask.mapping)));
            }
            let answer = state.with_core(tables, |core, leases| {
                if members.is_empty() || ask.again {
                    core.request_with(&ask, leases).map(drop)
                } else {
                    core.request_group(&ask, members, leases).map(drop)
                }
            });
            let Err(refusal) = answer else {
                self.widened = if members.is_empty() { state.core.widened() } else { 0 };
                return Ok(None);
            };
            self.ask.again = true;
            let held = state.lease_holds.len();
            state.sweep_all(tables);
            if state.lease_holds.len() == held {
                return self.wait_for_room(state, context, waits, refusal).map(Some);
            }
            // Leases have ended since the last look.
            state.core.take_back_refusal();
        }
    }

    /// The core has refused: it is asked again after a while, and has not refused yet; or that was done long enough.
    fn wait_for_room<T>(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        waits: &mut Waits,
        refusal: AllInUse,
    ) -> Result<Step, AcquireError> {
        let left = waits.left(Cause::Leases, context.settings);
        if left.is_zero() {
            return Err(AcquireError::AllInUse { source: refusal, waited: waits.waited(Cause::Leases) });
        }
        state.core.take_back_refusal();
        waits.count(&mut state.stats);
        // What was seen around it is not so for long.
        self.ask.mapping = self.ask.range;
        // Leases end without a word: looked after at growing intervals.
        let nap = self.nap;
        self.nap = (nap * 2).min(LOOK_LONGEST);
        Ok(Step::Wait(nap.min(left)))
    }

    /// Takes the registrar's answer. Others may have to leave for this: not for an address that cannot be registered. Where it refuses
    /// the surroundings, it is asked about the request alone.
    ///
    /// # Errors
    /// The registrar refuses, and part of the range is not registered.
    pub(super) fn take_probe<T>(
        &mut self,
        state: &mut CacheState<T>,
        context: &Context<'_, T>,
        answer: io::Result<()>,
    ) -> Result<(), AcquireError> {
        let Request { range, access, mapping, .. } = self.ask;
        // Nothing of this request was in the state meanwhile: the end of the cache did not wait for it.
        check_open(state)?;
        if let (Err(error), true) = (&answer, mapping != range) {
            note_refusal(state, range, Failure::of(error) == Failure::Refused);
            (self.ask.mapping, self.is_probed) = (range, false);
        } else if let Err(source) = answer
            && state.core.refuse_missing(&self.ask, context.members)
        {
            state.stats.attempts += 1;
            let registrar = context.registrar;
            return Err(AcquireError::Register { range, access, registrar, attempts: 1, source });
        }
        Ok(())
    }
}

/// Fails where the cache is gone. Asked each time that the lock was taken before anything of a request is in the state: what is
/// there keeps the state of the cache, and nothing else does.
fn check_open<T>(state: &CacheState<T>) -> Result<(), Unusable> {
    if state.closed { Err(Unusable::Closed) } else { Ok(()) }
}
