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

pub use crate::fates::MAX_WINDOW;
use crate::fates::{Fates, Known};
use crate::faults::is_planted;
use crate::ids::{Epoch, Version, WriteId};
use crate::messages::{
    Answer, Call, Change, Condition, Fate, Form, Pending, Piece, Refusal, Reply, Request, Stored, Verdict,
};
pub use crate::room::MAX_STAGED;
use crate::room::{Owner, Room};

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
    /// The epoch of the last flush: values confirmed before it are gone.
    pub flushed: Epoch,
}

/// The driver's chunks.
pub trait Chunks {
    /// Returns whether the key's value never changes any more: it is a chunk of a frozen generation. It may go.
    fn is_final(&self, _value: Option<&Stored>) -> bool {
        false
    }

    /// Makes the result of a computation on the value, if there is one, under the key's lock.
    ///
    /// # Errors
    ///
    /// The arguments do not fit the value, or there is no room.
    fn compute(&mut self, value: Option<&Stored>, arguments: u64) -> Result<Piece, Refusal>;

    /// Makes a published value readable by tag, at the primary. The one before is dead already.
    fn publish(&mut self, piece: Piece);

    /// Ends a value early that has an expiry: the clock of this primary may be behind that of the one before, which ended it.
    fn end_early(&mut self, piece: Piece);

    /// Takes a piece that nothing names any more: it is dead, and freed when no tag lease is left.
    fn free(&mut self, piece: Piece);
}

/// The state of a server for all keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    cluster: u128,
    /// The last epoch that this server ordered writes in, and how many it ordered in it.
    ordered: (Epoch, u64),
    fates: Fates,
    room: Room,
    /// The connection that calls come over, if the driver tells it.
    connection: Option<u64>,
}

/// A staged piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Staged {
    piece: Piece,
    owner: Owner,
}

/// The state of a server for one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Replica {
    current: Option<Stored>,
    next: Option<Stored>,
    /// A primary that is new does not know whether its next is published.
    is_ambiguous: bool,
    /// When the primary ordered its next, found it, or asked a client to complete it.
    since: u64,
    queue: VecDeque<Waiting>,
    staged: BTreeMap<WriteId, Staged>,
}

/// An order in a primary's queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    call_id: CallId,
    id: WriteId,
    condition: Condition,
    change: Change,
}

impl Waiting {
    fn free(self, chunks: &mut dyn Chunks) {
        if let Change::Put(piece) = self.change {
            chunks.free(piece);
        }
    }
}

/// The replies that a call made, to it and to others that waited. Each call gets one.
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

    /// Returns the newest fragment of a value that is sealed or published here.
    pub fn newest_fragment(&self) -> Option<&Stored> {
        [&self.next, &self.current].into_iter().flatten().find(|stored| stored.piece.is_fragment())
    }

    /// Returns whether there is nothing but a value: the driver need not keep more than its store does.
    pub fn is_idle(&self) -> bool {
        self.next.is_none() && self.queue.is_empty() && self.staged.is_empty()
    }

    /// Returns the value that a client may read by tag from a primary that may answer; None while it does not know its last write.
    pub fn readable(&self, standing: &Standing) -> Option<&Stored> {
        let may = standing.role == Role::Primary && standing.has_right && !standing.is_fenced && !self.is_ambiguous;
        self.current.as_ref().filter(|current| may && current.is_value())
    }

    /// Makes the published value a tombstone, which can be forgotten: it has expired, so the key is absent already.
    pub fn end_value(&mut self) {
        if let Some(current) = &mut self.current {
            current.piece = Piece { form: Form::Tombstone, length: 0, sum: 0, ..current.piece };
        }
    }

    /// Takes the value out of a key of which there is nothing else: it is kept elsewhere, too.
    pub fn evict(&mut self) -> Option<Piece> {
        let may_go = self.is_idle();
        self.current.take_if(|current| may_go && current.is_value()).map(|current| current.piece)
    }

    /// Returns how many orders wait.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the writes that have a staged piece here and were not ordered here.
    pub fn staged(&self) -> impl Iterator<Item = WriteId> + '_ {
        self.staged.keys().copied()
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

    /// Returns all pieces of this key that the driver keeps.
    #[cfg(test)]
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let put = |waiting: &Waiting| if let Change::Put(piece) = waiting.change { Some(piece) } else { None };
        let stored = [&self.current, &self.next].into_iter().flatten().map(|stored| stored.piece);
        stored.chain(self.staged.values().map(|staged| staged.piece)).chain(self.queue.iter().filter_map(put)).collect()
    }

    /// Lets the write that is pending be so for long.
    #[cfg(test)]
    pub(crate) fn make_late(&mut self) {
        self.since = 0;
    }
}

impl Member {
    /// Returns a server of a cluster that has nothing.
    pub fn new(cluster: u128) -> Self {
        Self { cluster, ordered: (Epoch(0), 0), fates: Fates::default(), room: Room::default(), connection: None }
    }

    /// Notes the connection that the next calls come over. Each has its share of the room for staged bytes.
    pub fn set_connection(&mut self, connection: u64) {
        self.connection = Some(connection);
    }

    /// Returns whether this server ordered half of the writes that have versions in this epoch, so that it needs another soon.
    pub fn needs_epoch(&self, epoch: Epoch) -> bool {
        self.ordered.0 == epoch && self.ordered.1 > Version::MAX_COUNT / 2
    }

    /// Counts writes of the epoch that were never ordered.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, count: u64) {
        self.ordered.1 = count;
    }

    /// Returns how many bytes are staged for the writes of all keys.
    pub fn staged_bytes(&self) -> u64 {
        self.room.used()
    }

    /// Returns the fates of writes that this server knows.
    pub fn fates(&self) -> &Fates {
        &self.fates
    }

    /// Forgets a client that was silent for long. The driver closed its connections before.
    pub fn forget_client(&mut self, client: u64) {
        self.fates.forget_client(client);
    }

    /// Takes a key into a later epoch. `before` is the part that it had in the epoch that it leaves.
    ///
    /// `stayed_primary` tells that this run was its primary in each epoch between, `was_outside` that it was outside in one. Those whose
    /// orders waited have to ask again.
    ///
    /// After a flush nothing of before is left. A write that was ordered before, and may be published, counts as done for its primary,
    /// which would complete it without the flush. A backup does not know: another primary may have refused it.
    pub fn adopt(
        &mut self,
        replica: &mut Replica,
        before: Role,
        standing: &Standing,
        (stayed_primary, was_outside): (bool, bool),
        chunks: &mut dyn Chunks,
    ) -> Replies {
        let mut other = |waiting: Waiting| {
            let reply = (waiting.call_id, reply(standing, Some(waiting.id), Answer::OtherEpoch));
            waiting.free(chunks);
            reply
        };
        let replies = replica.queue.drain(..).map(&mut other).collect();
        if was_outside || standing.role == Role::Outside {
            let all = [replica.current.take(), replica.next.take()];
            all.into_iter().flatten().for_each(|stored| chunks.free(stored.piece));
            let staged: Vec<WriteId> = replica.staged().collect();
            staged.into_iter().for_each(|id| self.drop_staged(replica, id, chunks));
        }
        let is_flushed = |stored: &mut Stored| stored.confirmed < standing.flushed && !is_planted("flushed-kept");
        if let Some(next) = replica.next.take_if(is_flushed) {
            let is_primary = standing.role == Role::Primary;
            let verdict = if is_primary { Verdict::Stored(next.version) } else { Verdict::Flushed };
            self.fates.record(next.id, Fate::Done(verdict));
            chunks.free(next.piece);
        }
        replica.current.take_if(is_flushed).into_iter().for_each(|current| chunks.free(current.piece));
        let is_new = standing.role == Role::Primary && !(before == Role::Primary && stayed_primary);
        if is_new && is_planted("ambiguous-not-completed") {
            replica.next.take().into_iter().for_each(|next| chunks.free(next.piece));
        }
        if is_new {
            [&replica.current, &replica.next].into_iter().flatten().for_each(|stored| chunks.end_early(stored.piece));
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
        self.fates.hear(id.map(|id| id.client), now);
        let one = |answer| vec![(call_id, reply(standing, id, answer))];
        if let Err(answer) = self.admits(replica, standing, &request) {
            request.call.piece().into_iter().for_each(|piece| chunks.free(piece));
            return one(answer);
        }
        match request.call {
            Call::Stage { id, piece } => one(self.stage(replica, id, piece, chunks)),
            Call::Order { id, lowest, condition, change } => {
                self.fates.close_below(id.client, lowest);
                let waiting = Waiting { call_id, id, condition, change };
                self.order(replica, standing, waiting, now, chunks)
            }
            Call::Seal { id, version, base, piece } => {
                one(self.seal(replica, standing, (id, version, base, piece), chunks))
            }
            Call::Publish { id, version } => self.publish(replica, standing, (call_id, id, version), now, chunks),
            Call::Note { id, version, lowest } => {
                if replica.next.as_ref().is_some_and(|next| next.id == id && next.version == version) {
                    self.promote(replica, standing.epoch, chunks);
                }
                self.fates.close_below(id.client, lowest);
                one(Answer::Taken)
            }
            Call::Resolve { id } => {
                let (answer, mut replies) = self.resolve(replica, standing, id, chunks);
                replies.extend(one(answer));
                replies
            }
            Call::Refuse { id } => one(self.refuse(replica, id, chunks)),
            Call::Read => one(Answer::Value(replica.current.clone().filter(Stored::is_value))),
            Call::Survey => one(Answer::Value(replica.current.clone())),
            Call::List { version } => one(self.list(replica, standing.epoch, version, chunks)),
            Call::Repair { id, version, piece } => {
                one(self.repair(replica, standing.epoch, (id, version, piece), chunks))
            }
            Call::Fetch { version: Version::ABSENT } | Call::Locate => {
                one(Answer::Value(replica.newest_fragment().cloned()))
            }
            Call::Fetch { version } => {
                let is_it = |stored: &&Stored| stored.version == version;
                one(Answer::Value([&replica.next, &replica.current].into_iter().flatten().find(is_it).cloned()))
            }
            Call::FatesAfter { after, .. } => one(Answer::Fates(Some(self.fates.after(after)))),
            // These are the driver's, which has all keys.
            Call::Keys { .. } | Call::Report(_) | Call::Freeze(_) | Call::Persisted(_) | Call::Carry { .. } => {
                one(Answer::NotServing)
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

    /// Answers the first order that waits for a write that is pending for long: its client completes that.
    ///
    /// If that client does not either, the next one is asked after the same time.
    pub fn overdue(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        now: u64,
        chunks: &mut dyn Chunks,
    ) -> Replies {
        let Some(pending) = replica.pending().filter(|_| is_late(replica.since, now)) else { return Vec::new() };
        let Some(waiting) = replica.queue.pop_front() else { return Vec::new() };
        replica.since = now;
        let help = (waiting.call_id, reply(standing, Some(waiting.id), Answer::Help(pending)));
        waiting.free(chunks);
        vec![help]
    }

    /// Answers all orders that wait: their clients complete the write that is pending.
    ///
    /// For a driver whose connections cannot go on before a call is answered.
    pub fn dismiss(&mut self, replica: &mut Replica, standing: &Standing, chunks: &mut dyn Chunks) -> Replies {
        let Some(pending) = replica.pending() else { return Vec::new() };
        let mut help = |waiting: Waiting| {
            let reply = (waiting.call_id, reply(standing, Some(waiting.id), Answer::Help(pending.clone())));
            waiting.free(chunks);
            reply
        };
        replica.queue.drain(..).map(&mut help).collect()
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
            Call::Stage { .. } | Call::Forget { .. } | Call::Fetch { .. } | Call::Locate => None,
            Call::Fates(_) | Call::FatesAfter { .. } | Call::Keys { .. } | Call::Report(_) => None,
            Call::Freeze(_) | Call::Persisted(_) | Call::Carry { .. } => None,
        };
        // In a whole epoch nothing is repaired, so no agent makes these calls. They would drop values, and end writes of others.
        let repairs = matches!(request.call, Call::List { .. } | Call::Repair { .. } | Call::Fates(_));
        if repairs && standing.is_whole && !is_late_repair {
            return Err(Answer::NotServing);
        }
        if matches!(request.call, Call::Fates(_)) && !self.fates.takes_more() {
            return Err(Answer::Busy);
        }
        if request.call.is_for_no_key() && standing.has_right {
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
            Call::Publish { .. } | Call::Stage { .. } => false,
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

    fn stage(&mut self, replica: &mut Replica, id: WriteId, piece: Piece, chunks: &mut dyn Chunks) -> Answer {
        let owner = self.connection.map_or(Owner::Client(id.client), Owner::Connection);
        let answer = match self.fates.of(id) {
            // A call that comes twice brings the same bytes again.
            Known::Open if replica.staged.contains_key(&id) => Answer::Staged,
            Known::Open if replica.next.as_ref().is_some_and(|next| next.id == id) => Answer::Staged,
            Known::Open if chunks.is_final(replica.current.as_ref()) => Answer::Done(Verdict::Declined(Refusal::Final)),
            Known::Open if self.room.take(owner, &piece) => {
                replica.staged.insert(id, Staged { piece, owner });
                return Answer::Staged;
            }
            Known::Open => Answer::Busy,
            known => ended(known),
        };
        chunks.free(piece);
        answer
    }

    /// Takes the piece that is staged for a write.
    fn take_staged(&mut self, staged: &mut BTreeMap<WriteId, Staged>, id: WriteId) -> Option<Piece> {
        let Staged { piece, owner } = staged.remove(&id)?;
        self.room.give_back(owner, &piece);
        Some(piece)
    }

    fn drop_staged(&mut self, replica: &mut Replica, id: WriteId, chunks: &mut dyn Chunks) {
        self.take_staged(&mut replica.staged, id).into_iter().for_each(|piece| chunks.free(piece));
    }

    /// Orders a write, or lets it wait.
    fn order(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        waiting: Waiting,
        now: u64,
        chunks: &mut dyn Chunks,
    ) -> Replies {
        let (call_id, id) = (waiting.call_id, waiting.id);
        let answer = match (self.fates.of(id), replica.pending()) {
            (Known::Open, _) if !self.fates.has_place(id.client, false) => Answer::Busy,
            (Known::Open, None) => {
                let answer = self.run(replica, standing.epoch, waiting, now, chunks);
                return vec![(call_id, reply(standing, Some(id), answer))];
            }
            // It was ordered before, and its answer was lost. It may be from an earlier epoch.
            (Known::Open, Some(pending)) if pending.stored.id == id => Answer::Help(pending),
            (Known::Open, Some(pending)) if is_late(replica.since, now) => {
                replica.since = now;
                Answer::Help(pending)
            }
            (Known::Open, Some(_)) if replica.queue.len() >= MAX_QUEUE => Answer::Busy,
            (Known::Open, Some(_)) => {
                let before = dequeue(replica, id, chunks);
                replica.queue.push_back(waiting);
                return before.map(|before| (before, reply(standing, Some(id), Answer::Unknown))).into_iter().collect();
            }
            (known, _) => ended(known),
        };
        waiting.free(chunks);
        vec![(call_id, reply(standing, Some(id), answer))]
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
        let Some(count) = self.count(epoch) else {
            waiting.free(chunks);
            return Answer::Busy;
        };
        let is_removal = matches!(change, Change::Put(Piece { form: Form::Tombstone, .. }));
        let value = replica.current.as_ref().filter(|current| current.is_value());
        let decided = match condition {
            _ if !is_removal && chunks.is_final(replica.current.as_ref()) => Err(Refusal::Final),
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
            Change::Staged => Ok(self.take_staged(&mut replica.staged, id)),
            Change::Compute(arguments) => chunks.compute(value, arguments).map(Some),
        });
        match piece {
            Ok(Some(piece)) => {
                self.ordered = (epoch, count);
                let version = Version::new(epoch, count);
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
                self.drop_staged(replica, id, chunks);
                let verdict = Verdict::Declined(refusal);
                self.fates.record(id, Fate::Done(verdict));
                Answer::Done(verdict)
            }
        }
    }

    /// Returns the count of the next version of an epoch; None if none is left, or writes of a later epoch were ordered.
    fn count(&self, epoch: Epoch) -> Option<u64> {
        let (last, count) = self.ordered;
        let next = if epoch > last { 1 } else { count + 1 };
        (epoch >= last && next <= Version::MAX_COUNT).then_some(next)
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
                self.drop_staged(replica, id, chunks);
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
            self.drop_staged(replica, id, chunks);
            return Answer::Sealed(version);
        }
        let is_staged = piece.is_none();
        let Some(piece) = piece.or_else(|| self.take_staged(&mut replica.staged, id)) else { return Answer::Lacks };
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
                known => {
                    waiting.free(chunks);
                    ended(known)
                }
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

    /// Returns the answer, and the reply to an order of the same write that waited.
    fn resolve(
        &mut self,
        replica: &mut Replica,
        standing: &Standing,
        id: WriteId,
        chunks: &mut dyn Chunks,
    ) -> (Answer, Replies) {
        if let Some(pending) = replica.pending().filter(|pending| pending.stored.id == id) {
            return (Answer::Help(pending), Vec::new());
        }
        let waited = dequeue(replica, id, chunks);
        let answer = match self.refuse_unless_done(replica, id, chunks) {
            // Its client would begin again, though it may have been done: its fate was forgotten.
            Answer::Refused if self.fates.of(id) == Known::Closed => Answer::Done(Verdict::Flushed),
            answer => answer,
        };
        let waited = waited.map(|waited| (waited, reply(standing, Some(id), answer.clone())));
        (answer, waited.into_iter().collect())
    }

    fn refuse(&mut self, replica: &mut Replica, id: WriteId, chunks: &mut dyn Chunks) -> Answer {
        // The primary of this epoch does not know the write, so it was never published, and no later write has it as base.
        if let Some(next) = replica.next.take_if(|next| next.id == id) {
            chunks.free(next.piece);
        }
        self.refuse_unless_done(replica, id, chunks)
    }

    fn refuse_unless_done(&mut self, replica: &mut Replica, id: WriteId, chunks: &mut dyn Chunks) -> Answer {
        self.drop_staged(replica, id, chunks);
        if let Some(current) = replica.current.as_ref().filter(|current| current.id == id) {
            return Answer::Done(Verdict::Stored(current.version));
        }
        // What was ordered within the window can be refused.
        if self.fates.of(id) == Known::Open && !self.fates.has_place(id.client, true) {
            return Answer::Busy;
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
        self.drop_staged(replica, id, chunks);
        Answer::Repaired(version)
    }
}

/// Takes the order of a write out of the queue. Returns its call, which has no reply yet.
fn dequeue(replica: &mut Replica, id: WriteId, chunks: &mut dyn Chunks) -> Option<CallId> {
    let at = replica.queue.iter().position(|waiting| waiting.id == id)?;
    let waiting = replica.queue.remove(at)?;
    let call_id = waiting.call_id;
    waiting.free(chunks);
    Some(call_id)
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
