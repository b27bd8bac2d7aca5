//! A server's part in the writes of its keys.
//!
//! [`Member`] has what a server keeps for all keys, [`Replica`] what it keeps for one. A driver calls them under the key's lock, sends the
//! replies, and carries out the effects that it is told through [`Chunks`]. Servers send nothing to each other: clients and agents drive
//! each write.
//!
//! **Order.** The primary gives each write a version. It has one ordered write at a time, its *next*; others queue. A backup has the same
//! next once it sealed it. *Current* is published, or is the base of a write that was ordered, which is published as well.
//!
//! **A new primary** knows of each published write, because it had sealed it. Its next may be published, or not: it is *ambiguous*, and is
//! completed before anything else is answered.

use std::collections::{BTreeMap, VecDeque};

use crate::fates::{Fates, Known};
use crate::faults::is_planted;
use crate::ids::{Epoch, Version, WriteId};
use crate::messages::{
    Answer, Call, Change, Condition, Fate, Form, Pending, Piece, Refusal, Reply, Request, Stored, Verdict,
};

/// Writes of one key that may wait at its primary.
pub const MAX_QUEUE: usize = 1024;

/// Nanoseconds after which a client that meets a pending write completes it.
pub const HELP_AFTER: u64 = 100_000_000;

/// A driver's name for the call that a reply belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// A server's part in a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Orders its writes.
    Primary,
    /// Takes its writes, among them a member to be.
    Backup,
    /// Has none of it.
    Outside,
}

/// A server's standing for a key, as its configuration, right and fences give it at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    /// The epoch that the key adopted here.
    pub epoch: Epoch,
    /// The part in the key.
    pub role: Role,
    /// The server's right is in force.
    pub has_right: bool,
    /// A fence of the key runs.
    pub is_fenced: bool,
    /// The epoch is whole: each member has all that it should.
    pub is_whole: bool,
}

/// The driver's chunks.
pub trait Chunks {
    /// Makes the result of a computation on the value, if there is one, under the key's lock.
    ///
    /// # Errors
    ///
    /// The arguments do not fit the value, or there is no room.
    fn compute(&mut self, value: Option<&Stored>, arguments: u64) -> Result<Piece, Refusal>;

    /// Makes a published value readable by tag, at the primary. The one before is dead already.
    fn publish(&mut self, piece: Piece);

    /// Takes a piece that nothing names any more: it is dead, and freed when no tag lease is left.
    fn free(&mut self, piece: Piece);
}

/// The state of a server for all keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    cluster: u128,
    writes: u64,
    fates: Fates,
    staged: BTreeMap<WriteId, Piece>,
}

/// The state of a server for one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Replica {
    current: Option<Stored>,
    next: Option<Stored>,
    /// A primary that is new does not know whether its next is published.
    is_ambiguous: bool,
    /// When the primary ordered its next, or found it.
    since: u64,
    queue: VecDeque<Waiting>,
}

/// An order in a primary's queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    call_id: CallId,
    id: WriteId,
    condition: Condition,
    change: Change,
}

/// The replies that a call made, to it and to others that waited.
pub type Replies = Vec<(CallId, Reply)>;

impl Replica {
    /// Returns the state of a key with a published value and nothing else, as a driver finds it in its store.
    pub fn with(current: Option<Stored>) -> Self {
        Self { current, ..Self::default() }
    }

    /// Returns the last value that is known to be published here.
    pub fn current(&self) -> Option<&Stored> {
        self.current.as_ref()
    }

    /// Returns the write that is sealed or ordered here, and not known to be published.
    pub fn next(&self) -> Option<&Stored> {
        self.next.as_ref()
    }

    /// Returns whether there is nothing but a value: the driver need not keep more than its store does.
    pub fn is_idle(&self) -> bool {
        self.next.is_none() && self.queue.is_empty()
    }

    /// Returns the value that a client may read by tag from a primary that may answer; None while it does not know its last write.
    pub fn readable(&self, standing: &Standing) -> Option<&Stored> {
        let may = standing.role == Role::Primary && standing.has_right && !standing.is_fenced && !self.is_ambiguous;
        self.current.as_ref().filter(|current| may && current.is_value())
    }

    /// Returns how many orders wait.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether this primary does not know if its next is published: only that is answered.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    fn version(&self) -> Version {
        self.current.as_ref().map_or(Version::ABSENT, |current| current.version)
    }

    fn pending(&self) -> Option<Pending> {
        self.next.clone().map(|stored| Pending { stored, base: self.version() })
    }
}

impl Member {
    /// Returns a server of a cluster that has nothing.
    pub fn new(cluster: u128) -> Self {
        Self { cluster, writes: 0, fates: Fates::default(), staged: BTreeMap::new() }
    }

    /// Returns the fates of writes that this server knows.
    pub fn fates(&self) -> &Fates {
        &self.fates
    }

    /// Forgets a client that was silent for long. The driver closed its connections before.
    pub fn forget_client(&mut self, client: u64) {
        self.fates.forget_client(client);
    }

    /// Returns the writes that have a staged piece here and were not ordered here.
    pub fn staged(&self) -> impl Iterator<Item = WriteId> + '_ {
        self.staged.keys().copied()
    }

    /// Takes a key into a later epoch. `before` is the part that it had in the epoch that it leaves.
    ///
    /// `stayed_primary` tells that this run was its primary in each epoch between, `was_outside` that it was outside in one. Those whose
    /// orders waited have to ask again.
    pub fn adopt(
        &mut self,
        replica: &mut Replica,
        before: Role,
        standing: &Standing,
        (stayed_primary, was_outside): (bool, bool),
        chunks: &mut dyn Chunks,
    ) -> Replies {
        let other = |waiting: Waiting| (waiting.call_id, reply(standing, Some(waiting.id), Answer::OtherEpoch));
        let replies = replica.queue.drain(..).map(other).collect();
        if was_outside || standing.role == Role::Outside {
            let all = [replica.current.take(), replica.next.take()];
            all.into_iter().flatten().for_each(|stored| chunks.free(stored.piece));
        }
        let is_new = standing.role == Role::Primary && !(before == Role::Primary && stayed_primary);
        if is_new && is_planted("ambiguous-not-completed") {
            replica.next = None;
        }
        // It stays ambiguous until it is completed, in whatever epoch.
        replica.is_ambiguous = (is_new || replica.is_ambiguous) && replica.next.is_some();
        replica.since = 0;
        replies
    }

    /// Answers a call for a key. `now` is in nanoseconds.
    ///
    /// An order that waits gets its reply later, from the call that lets it go on.
    pub fn take(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        (call_id, request): (CallId, Request),
        now: u64,
        chunks: &mut dyn Chunks,
    ) -> Replies {
        let id = request.call.id();
        let one = |answer| vec![(call_id, reply(standing, id, answer))];
        if let Err(answer) = self.admits(replica, standing, &request) {
            return one(answer);
        }
        match request.call {
            Call::Stage { id, piece } => one(self.stage(id, piece, chunks)),
            Call::Order { id, lowest, condition, change } => {
                self.fates.close_below(id.client, lowest);
                let waiting = Waiting { call_id, id, condition, change };
                self.order(replica, standing, waiting, now, chunks).map_or_else(Vec::new, one)
            }
            Call::Seal { id, version, base, piece } => {
                one(self.seal(replica, standing, (id, version, base, piece), chunks))
            }
            Call::Publish { id, version } => self.publish(replica, standing, (call_id, id, version), now, chunks),
            Call::Note { id, version } => {
                if replica.next.as_ref().is_some_and(|next| next.id == id && next.version == version) {
                    self.promote(replica, standing.epoch, chunks);
                }
                one(Answer::Taken)
            }
            Call::Resolve { id } => one(self.resolve(replica, id, chunks)),
            Call::Refuse { id } => one(self.refuse(replica, id, chunks)),
            Call::Read => one(Answer::Value(replica.current.clone().filter(Stored::is_value))),
            Call::Survey => one(Answer::Value(replica.current.clone())),
            Call::List { version } => one(self.list(replica, standing.epoch, version, chunks)),
            Call::Repair { id, version, piece } => {
                one(self.repair(replica, standing.epoch, (id, version, piece), chunks))
            }
            Call::Fates(fates) => {
                fates.into_iter().for_each(|(id, fate)| self.fates.record(id, fate));
                one(Answer::Taken)
            }
            Call::Forget { version } => {
                let is_it = |stored: &Stored| stored.version == version && !stored.is_value();
                if standing.role == Role::Backup && replica.next.as_ref().is_some_and(is_it) {
                    self.promote(replica, standing.epoch, chunks);
                }
                let tombstone = replica.current.take_if(|current| is_it(current));
                tombstone.into_iter().for_each(|tombstone| chunks.free(tombstone.piece));
                one(Answer::Taken)
            }
        }
    }

    /// Answers all orders that wait for a write that is pending for long: their clients complete it.
    pub fn overdue(&mut self, replica: &mut Replica, standing: &Standing, now: u64) -> Replies {
        let Some(pending) = replica.pending().filter(|_| is_late(replica.since, now)) else { return Vec::new() };
        let help =
            |waiting: Waiting| (waiting.call_id, reply(standing, Some(waiting.id), Answer::Help(pending.clone())));
        replica.queue.drain(..).map(help).collect()
    }

    /// Decides whether this server may answer a call at all.
    fn admits(&self, replica: &Replica, standing: &Standing, request: &Request) -> Result<(), Answer> {
        let is_late_repair = matches!(request.call, Call::Repair { .. }) && is_planted("late-repair");
        if request.cluster != self.cluster {
            return Err(Answer::NotServing);
        }
        if request.epoch != standing.epoch && !is_late_repair && !is_planted("other-epoch") {
            return Err(Answer::OtherEpoch);
        }
        let needed = match request.call {
            Call::Order { .. } | Call::Publish { .. } | Call::Resolve { .. } | Call::Read | Call::Survey => {
                Some(Role::Primary)
            }
            Call::Seal { .. } | Call::Note { .. } | Call::Refuse { .. } | Call::List { .. } | Call::Repair { .. } => {
                Some(Role::Backup)
            }
            Call::Stage { .. } | Call::Forget { .. } | Call::Fates(_) => None,
        };
        if matches!(request.call, Call::Fates(_)) && standing.has_right {
            return Ok(());
        }
        if !standing.has_right || standing.role == Role::Outside || needed.is_some_and(|role| role != standing.role) {
            return Err(Answer::NotServing);
        }
        if matches!(request.call, Call::Forget { .. }) && !standing.is_whole {
            return Err(Answer::NotServing);
        }
        if standing.role != Role::Primary {
            return Ok(());
        }
        if standing.is_fenced {
            return Err(Answer::Fenced);
        }
        // A write of an earlier epoch is completed before its value is repaired, an ambiguous one before anything is answered. Only what
        // completes it passes.
        let is_old = |next: &Stored| next.version.epoch() < standing.epoch;
        let blocks = match &request.call {
            Call::Publish { .. } => false,
            Call::Survey if is_planted("repair-before-completion") => false,
            Call::Survey => replica.next.as_ref().is_some_and(is_old),
            Call::Resolve { id } => replica.is_ambiguous && replica.next.as_ref().is_some_and(|next| next.id != *id),
            _ => replica.is_ambiguous,
        };
        match replica.pending() {
            Some(pending) if blocks => Err(Answer::Help(pending)),
            _ => Ok(()),
        }
    }

    fn stage(&mut self, id: WriteId, piece: Piece, chunks: &mut dyn Chunks) -> Answer {
        match self.fates.of(id) {
            Known::Open => {
                if let Some(before) = self.staged.insert(id, piece) {
                    chunks.free(before);
                }
                Answer::Staged
            }
            known => {
                chunks.free(piece);
                ended(known)
            }
        }
    }

    /// Orders a write, or lets it wait: None.
    fn order(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        waiting: Waiting,
        now: u64,
        chunks: &mut dyn Chunks,
    ) -> Option<Answer> {
        match self.fates.of(waiting.id) {
            Known::Open => {}
            known => return Some(ended(known)),
        }
        match replica.pending() {
            None => Some(self.run(replica, standing.epoch, waiting, now, chunks)),
            // It was ordered before, and its answer was lost. It may be from an earlier epoch.
            Some(pending) if pending.stored.id == waiting.id || is_late(replica.since, now) => {
                Some(Answer::Help(pending))
            }
            Some(_) if replica.queue.len() >= MAX_QUEUE => Some(Answer::Busy),
            Some(_) => {
                replica.queue.retain(|other| other.id != waiting.id);
                replica.queue.push_back(waiting);
                None
            }
        }
    }

    /// Decides a write that nothing is before.
    fn run(
        &mut self,
        replica: &mut Replica,
        epoch: Epoch,
        waiting: Waiting,
        now: u64,
        chunks: &mut dyn Chunks,
    ) -> Answer {
        let Waiting { id, condition, change, .. } = waiting;
        let value = replica.current.as_ref().filter(|current| current.is_value());
        let decided = match condition {
            Condition::Always => Ok(()),
            Condition::Absent if value.is_none() => Ok(()),
            Condition::Present if value.is_some() => Ok(()),
            Condition::Absent | Condition::Present => Err(Refusal::NotStored),
            Condition::Version(version) => match value {
                Some(value) if value.version == version => Ok(()),
                Some(_) => Err(Refusal::Exists),
                None => Err(Refusal::NotStored),
            },
        };
        let piece = decided.and_then(|()| match change {
            Change::Put(piece) => Ok(Some(piece)),
            Change::Staged => Ok(self.staged.remove(&id)),
            Change::Compute(arguments) => chunks.compute(value, arguments).map(Some),
        });
        match piece {
            Ok(Some(piece)) => {
                self.writes += 1;
                let version = Version::new(epoch, self.writes);
                let (base, is_staged) = (replica.version(), change == Change::Staged);
                replica.next = Some(Stored { id, version, confirmed: epoch, piece, is_staged });
                replica.since = now;
                let computed = matches!(change, Change::Compute(_)).then_some(piece);
                Answer::Ordered { version, base, computed }
            }
            Ok(None) => Answer::Lacks,
            Err(refusal) => {
                if let Change::Put(piece) = change {
                    chunks.free(piece);
                }
                self.staged.remove(&id).into_iter().for_each(|piece| chunks.free(piece));
                let verdict = Verdict::Declined(refusal);
                self.fates.record(id, Fate::Done(verdict));
                Answer::Done(verdict)
            }
        }
    }

    fn seal(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        (id, version, base, piece): (WriteId, Version, Version, Option<Piece>),
        chunks: &mut dyn Chunks,
    ) -> Answer {
        let unused = |chunks: &mut dyn Chunks| piece.into_iter().for_each(|piece| chunks.free(piece));
        match self.fates.of(id) {
            // A write that is refused here and not everywhere may be completed by the primary of a later epoch.
            Known::Open | Known::Fate(Fate::Refused) => {}
            // It is published, so this late call changes nothing.
            Known::Closed | Known::Fate(Fate::Done(_)) => {
                unused(chunks);
                return Answer::Sealed(version);
            }
        }
        if replica.next.as_ref().is_some_and(|next| next.version == base) {
            self.promote(replica, standing.epoch, chunks);
        }
        let newest = replica.next.as_ref().map_or(Version::ABSENT, |next| next.version).max(replica.version());
        if version <= newest {
            if let Some(next) = replica.next.as_mut().filter(|next| next.version == version) {
                next.confirmed = standing.epoch;
            }
            unused(chunks);
            return Answer::Sealed(version);
        }
        let is_staged = piece.is_none();
        let Some(piece) = piece.or_else(|| self.staged.remove(&id)) else { return Answer::Lacks };
        let next = Stored { id, version, confirmed: standing.epoch, piece, is_staged };
        if let Some(dropped) = replica.next.replace(next) {
            chunks.free(dropped.piece);
        }
        Answer::Sealed(version)
    }

    fn publish(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        (call_id, id, version): (CallId, WriteId, Version),
        now: u64,
        chunks: &mut dyn Chunks,
    ) -> Replies {
        if !replica.next.as_ref().is_some_and(|next| next.id == id && next.version == version) {
            let answer = match self.fates.of(id) {
                Known::Open => Answer::Unknown,
                known => ended(known),
            };
            return vec![(call_id, reply(standing, Some(id), answer))];
        }
        self.promote(replica, standing.epoch, chunks);
        replica.is_ambiguous = false;
        if let Some(current) = &replica.current {
            chunks.publish(current.piece);
        }
        let mut replies = vec![(call_id, reply(standing, Some(id), Answer::Done(Verdict::Stored(version))))];
        while replica.next.is_none() {
            let Some(waiting) = replica.queue.pop_front() else { break };
            let (call_id, id) = (waiting.call_id, waiting.id);
            let answer = match self.fates.of(id) {
                Known::Open => self.run(replica, standing.epoch, waiting, now, chunks),
                known => ended(known),
            };
            replies.push((call_id, reply(standing, Some(id), answer)));
        }
        replies
    }

    /// Makes the next value the current one: it is published.
    fn promote(&mut self, replica: &mut Replica, epoch: Epoch, chunks: &mut dyn Chunks) {
        let Some(next) = replica.next.take() else { return };
        self.fates.record(next.id, Fate::Done(Verdict::Stored(next.version)));
        let before = replica.current.replace(Stored { confirmed: epoch, ..next });
        before.into_iter().for_each(|before| chunks.free(before.piece));
    }

    fn resolve(&mut self, replica: &mut Replica, id: WriteId, chunks: &mut dyn Chunks) -> Answer {
        if let Some(pending) = replica.pending().filter(|pending| pending.stored.id == id) {
            return Answer::Help(pending);
        }
        replica.queue.retain(|waiting| waiting.id != id);
        self.refuse_unless_done(replica, id, chunks)
    }

    fn refuse(&mut self, replica: &mut Replica, id: WriteId, chunks: &mut dyn Chunks) -> Answer {
        // The primary of this epoch does not know the write, so it was never published, and no later write has it as base.
        if let Some(next) = replica.next.take_if(|next| next.id == id) {
            chunks.free(next.piece);
        }
        self.refuse_unless_done(replica, id, chunks)
    }

    fn refuse_unless_done(&mut self, replica: &Replica, id: WriteId, chunks: &mut dyn Chunks) -> Answer {
        self.staged.remove(&id).into_iter().for_each(|piece| chunks.free(piece));
        if let Some(current) = replica.current.as_ref().filter(|current| current.id == id) {
            return Answer::Done(Verdict::Stored(current.version));
        }
        self.fates.record(id, Fate::Refused);
        ended(self.fates.of(id))
    }

    fn list(&mut self, replica: &mut Replica, epoch: Epoch, version: Version, chunks: &mut dyn Chunks) -> Answer {
        // A listed version is published, so a next that is of this version is noted, too.
        if replica.next.as_ref().is_some_and(|next| next.version == version) {
            self.promote(replica, epoch, chunks);
        }
        let is_older = |stored: &mut Stored| stored.confirmed < epoch && !is_planted("return-not-emptied");
        replica.next.take_if(is_older).into_iter().for_each(|next| chunks.free(next.piece));
        if version == Version::ABSENT {
            replica.current.take_if(is_older).into_iter().for_each(|current| chunks.free(current.piece));
        }
        match &mut replica.current {
            Some(current) if current.version >= version => {
                current.confirmed = epoch;
                let index = if let Form::Fragment { index, .. } = current.piece.form { index } else { 0 };
                Answer::Has(Some(index))
            }
            None if version == Version::ABSENT => Answer::Has(Some(0)),
            _ => Answer::Has(None),
        }
    }

    fn repair(
        &mut self,
        replica: &mut Replica,
        epoch: Epoch,
        (id, version, piece): (WriteId, Version, Piece),
        chunks: &mut dyn Chunks,
    ) -> Answer {
        if replica.version() >= version && !is_planted("repair-over-newer") {
            chunks.free(piece);
            return Answer::Repaired(version);
        }
        replica.next.take_if(|next| next.version <= version).into_iter().for_each(|next| chunks.free(next.piece));
        let before = replica.current.replace(Stored { id, version, confirmed: epoch, piece, is_staged: false });
        before.into_iter().for_each(|before| chunks.free(before.piece));
        self.fates.record(id, Fate::Done(Verdict::Stored(version)));
        Answer::Repaired(version)
    }
}

fn is_late(since: u64, now: u64) -> bool {
    now.saturating_sub(since) > HELP_AFTER
}

/// Returns the answer for a write with a fate.
fn ended(known: Known) -> Answer {
    match known {
        Known::Fate(Fate::Done(verdict)) => Answer::Done(verdict),
        Known::Fate(Fate::Refused) | Known::Closed => Answer::Refused,
        Known::Open => Answer::Unknown,
    }
}

fn reply(standing: &Standing, id: Option<WriteId>, answer: Answer) -> Reply {
    Reply { epoch: standing.epoch, id, answer }
}
