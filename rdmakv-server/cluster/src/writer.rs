//! A client's part in a write.
//!
//! Bytes are staged at all members, or come with the order; the primary orders; all others seal; the primary publishes. After a lost answer
//! or a later epoch the writer asks the key's primary what became of the write. If nothing did, all members refuse it in that epoch, and
//! only then may the client begin again, under a new number.

use crate::faults::is_planted;
use crate::helper::{Calls, Completion, Progress, Target};
use crate::ids::{ServerId, WriteId};
use crate::messages::{Answer, Call, Change, Condition, Piece, Refusal, Reply, Verdict};

/// Bytes of a value at most that travel with the order and the seals. More are staged at all members first.
pub const CARRIED: usize = 64 << 10;

/// Nanoseconds after which a client gives up a write whose outcome it could not learn.
pub const GIVE_UP_AFTER: u64 = 30_000_000_000;

/// The bytes of a write.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Bytes {
    /// A whole value, small enough to travel with the order.
    Carried(Piece),
    /// One piece for each member, in their order, to be staged.
    Staged(Vec<Piece>),
    /// The primary computes the value.
    Computed(u64),
}

/// How a write ended for its client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It was published, or declined.
    Known(Verdict),
    /// It never happens: begin again, under a new number, and wait a little if a server was busy.
    Again,
    /// The client gave up, and the write may have happened, or may still. The client goes on as another.
    Unknown,
}

/// One write of a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Writer {
    target: Target,
    id: WriteId,
    lowest: u64,
    condition: Condition,
    bytes: Bytes,
    step: Step,
    /// Why a member had no place for the bytes.
    declined: Option<Refusal>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Step {
    Staging(Vec<ServerId>),
    Ordering,
    /// A write is being completed: this one, or one that this one waits for. In the second case the step to repeat follows.
    Completing(Completion, Repeat),
    Resolving,
    Refusing(Vec<ServerId>),
    Ended(Outcome),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Repeat {
    Order,
    Resolve,
}

impl Writer {
    /// Begins a write, and returns it with its first calls. `lowest` is the lowest number of the client whose outcome it does not know.
    pub fn begin(target: Target, (id, lowest): (WriteId, u64), condition: Condition, bytes: Bytes) -> (Self, Calls) {
        let step = Step::Ordering;
        let mut writer = Self { target, id, lowest, condition, bytes, step, declined: None };
        let calls = match &writer.bytes {
            Bytes::Staged(pieces) => {
                let stage = |piece: &Piece| Call::Stage { id, piece: *piece };
                let members = writer.target.members.clone();
                let calls = members.iter().zip(pieces);
                let calls = calls.flat_map(|(&server, piece)| writer.target.each(&[server], &stage(piece))).collect();
                writer.step = Step::Staging(members);
                calls
            }
            Bytes::Carried(_) | Bytes::Computed(_) => writer.order(),
        };
        (writer, calls)
    }

    /// Returns the write's number.
    pub fn id(&self) -> WriteId {
        self.id
    }

    /// Returns how the write ended; None while it goes on.
    pub fn outcome(&self) -> Option<Outcome> {
        if let Step::Ended(outcome) = self.step { Some(outcome) } else { None }
    }

    /// Returns what the caller knows of the key.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Takes a reply. Those to earlier steps and of other epochs change nothing.
    pub fn take(&mut self, from: ServerId, reply: &Reply) -> Calls {
        if reply.epoch != self.target.epoch {
            return Calls::new();
        }
        let is_primary = self.target.is_primary(from);
        let is_own = reply.id == Some(self.id);
        match (&mut self.step, &reply.answer) {
            (Step::Staging(waiting), Answer::Staged) if is_own => {
                waiting.retain(|&server| server != from);
                if waiting.is_empty() { self.order() } else { Calls::new() }
            }
            (Step::Staging(_), Answer::Done(Verdict::Declined(refusal))) if is_own => {
                self.declined = Some(*refusal);
                self.resolve()
            }
            (Step::Staging(_), Answer::Refused | Answer::Busy) if is_own => self.resolve(),
            (Step::Ordering, Answer::Ordered { version, base, computed }) if is_own && is_primary => {
                let carried = match self.bytes {
                    Bytes::Carried(piece) => Some(piece),
                    Bytes::Staged(_) => None,
                    Bytes::Computed(_) => *computed,
                };
                let completion = Completion::ordered(&self.target, self.id, (*version, *base), carried);
                self.complete(completion, Repeat::Resolve)
            }
            (Step::Ordering, Answer::Help(pending)) if is_own && is_primary => {
                self.complete(Completion::of(pending, &self.target), Repeat::Order)
            }
            (Step::Ordering, Answer::Busy | Answer::Lacks) if is_own && is_primary => self.resolve(),
            (Step::Resolving, Answer::Help(pending)) if is_own && is_primary => {
                self.complete(Completion::of(pending, &self.target), Repeat::Resolve)
            }
            (Step::Ordering | Step::Resolving, Answer::Done(verdict)) if is_own && is_primary => {
                self.end(Outcome::Known(*verdict));
                self.drop_staged(*verdict)
            }
            (Step::Ordering | Step::Resolving, Answer::Refused) if is_own && is_primary => self.refuse(),
            (Step::Refusing(_), Answer::Done(verdict)) if is_own => self.end(Outcome::Known(*verdict)),
            (Step::Refusing(waiting), Answer::Refused) if is_own => {
                waiting.retain(|&server| server != from);
                if waiting.is_empty() { self.refused() } else { Calls::new() }
            }
            (Step::Completing(completion, repeat), answer) if reply.id == Some(completion.id()) => {
                let (id, repeat) = (completion.id(), *repeat);
                let progress = completion.take(&self.target, from, answer);
                self.go_on(id, repeat, progress)
            }
            _ => Calls::new(),
        }
    }

    /// Goes on after an answer was lost, or after waiting for a fence: asks what became of the write.
    pub fn lost(&mut self) -> Calls {
        if self.outcome().is_some() { Calls::new() } else { self.resolve() }
    }

    /// Goes on in a later epoch.
    pub fn adopt(&mut self, target: Target) -> Calls {
        if target.epoch <= self.target.epoch {
            return Calls::new();
        }
        self.target = target;
        self.lost()
    }

    /// Gives up, [`GIVE_UP_AFTER`] the begin.
    pub fn give_up(&mut self) {
        if self.outcome().is_none() {
            self.step = Step::Ended(Outcome::Unknown);
        }
    }

    fn order(&mut self) -> Calls {
        self.step = Step::Ordering;
        let change = match self.bytes {
            Bytes::Carried(piece) => Change::Put(piece),
            Bytes::Staged(_) => Change::Staged,
            Bytes::Computed(arguments) => Change::Compute(arguments),
        };
        let (id, lowest, condition) = (self.id, self.lowest, self.condition);
        self.target.primary(Call::Order { id, lowest, condition, change })
    }

    fn resolve(&mut self) -> Calls {
        self.step = Step::Resolving;
        self.target.primary(Call::Resolve { id: self.id })
    }

    fn refuse(&mut self) -> Calls {
        let others = self.target.others().to_vec();
        if others.is_empty() || is_planted("no-refuse") {
            return self.refused();
        }
        let calls = self.target.each(&others, &Call::Refuse { id: self.id });
        self.step = Step::Refusing(others);
        calls
    }

    fn refused(&mut self) -> Calls {
        let declined = self.declined.map(|refusal| Outcome::Known(Verdict::Declined(refusal)));
        self.end(declined.unwrap_or(Outcome::Again))
    }

    fn complete(&mut self, completion: Completion, repeat: Repeat) -> Calls {
        let is_own = completion.id() == self.id;
        let completion = if is_own { completion.closing(self.lowest) } else { completion };
        let calls = completion.start(&self.target);
        self.step = Step::Completing(completion, repeat);
        calls
    }

    fn go_on(&mut self, id: WriteId, repeat: Repeat, progress: Progress) -> Calls {
        let mut calls = match progress {
            Progress::Waiting(calls) => return calls,
            Progress::Ended(verdict, notes) if id == self.id => {
                self.step = Step::Ended(Outcome::Known(verdict));
                return notes;
            }
            Progress::Ended(_, notes) => notes,
            Progress::Unknown => Calls::new(),
        };
        calls.extend(if id != self.id && repeat == Repeat::Order { self.order() } else { self.resolve() });
        calls
    }

    /// Returns calls for the others to drop what is staged for a write that was declined. No answer to them is needed.
    fn drop_staged(&self, verdict: Verdict) -> Calls {
        let is_staged = matches!((&self.bytes, verdict), (Bytes::Staged(_), Verdict::Declined(_)));
        let others = if is_staged { self.target.others() } else { &[] };
        self.target.each(others, &Call::Refuse { id: self.id })
    }

    fn end(&mut self, outcome: Outcome) -> Calls {
        self.step = Step::Ended(outcome);
        Calls::new()
    }
}
