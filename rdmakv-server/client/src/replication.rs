//! Operations on keys that several servers have whole, as state machines without input, output or clock.
//!
//! An [`Operation`] is one read or write of one key. It returns calls to send, and takes the replies. An answer that does not come, a fence
//! and a later epoch let it ask what became of its write, and go on. All that has an end: [`Operation::progress`] gives up at its deadline.
//!
//! A write takes three steps, each at several servers at once: the primary orders it, all others seal it, the primary publishes it. Values
//! of more than [`CARRIED`] bytes are staged at all of them first. A read asks the primary.

use super::erasure::CODE_FROM;
use super::gathering::{Gathered, Gathering, MadeOf};
use super::membership::Layout;
use rdmakv_cluster::config::{Policy, ServerId};
use rdmakv_cluster::helper::{Calls, Completion, Progress, Target};
use rdmakv_cluster::messages::{
    Answer, Call, Change, Chunk, Condition, Form, Piece, Refusal, Reply, Request, Verdict, Version, WriteId,
};
use rdmakv_cluster::wire::{Arguments, Attributes, ReplyFrame, RequestFrame};
pub(super) use rdmakv_cluster::writer::CARRIED;
use rdmakv_cluster::writer::{Bytes, GIVE_UP_AFTER, Outcome, Writer};
use rdmakv_proto::files::Key;
use rdmakv_proto::item::value_sum;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Nanoseconds before a call is repeated, at first and at most.
const PAUSE: (u64, u64) = (2_000_000, 100_000_000);

/// Nanoseconds before an order is repeated that came behind another write, at first and at most.
const TURN: (u64, u64) = (250_000, 4_000_000);

/// Nanoseconds for which the client of a write may complete it before one that comes behind it does, and for which an order stands back.
const STANDS_BACK: (u64, u64) = (5_000_000, 50_000_000);

/// How the lines of servers begin that say the same however often they are asked.
const FINAL: [&str; 3] =
    ["SERVER_ERROR object too large", "CLIENT_ERROR call of another version", "CLIENT_ERROR bad call"];

/// The number of bytes that came with a reply; 0 are the operation's own.
const CAME: Chunk = Chunk(1);

/// The work of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Returns the value.
    Read,
    /// Stores the operation's bytes.
    Put(Condition),
    /// Takes the value away.
    Delete,
    /// Has the primary compute a value of the one that is there.
    Compute(Arguments),
}

/// The facts of the bytes that an operation stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Own {
    length: u64,
    sum: u32,
    attributes: Attributes,
}

impl Own {
    /// Returns the facts of a value.
    pub(super) fn of(value: &[u8], attributes: Attributes) -> Self {
        Self { length: value.len() as u64, sum: value_sum(value), attributes }
    }

    fn piece(&self, form: Form) -> Piece {
        Piece { chunk: Chunk(0), form, length: self.length, sum: self.sum }
    }
}

/// A call to a server.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) to: ServerId,
    pub(super) frame: RequestFrame,
    /// The bytes that follow the call.
    pub(super) body: Body,
    /// The attempt that waits for the answer; None if nothing does.
    pub(super) round: Option<u32>,
}

/// The bytes that follow a call.
#[derive(Clone, Debug)]
pub(super) enum Body {
    None,
    /// Those that the operation stores, or adds.
    Own,
    /// Those of a reply.
    Came(Arc<Vec<u8>>),
    /// A fragment of those that the operation stores.
    Fragment {
        /// Fragments that make the value.
        k: u8,
        /// Which of them it is.
        index: u8,
        /// Fragments in all.
        of: usize,
    },
}

/// A reply as it came.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) from: ServerId,
    /// The attempt of its call.
    pub(super) round: Option<u32>,
    pub(super) frame: ReplyFrame,
    pub(super) bytes: Vec<u8>,
}

/// A value that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) version: Version,
    pub(super) attributes: Attributes,
    pub(super) bytes: Vec<u8>,
}

/// The end of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The value; None if the key is absent.
    Value(Option<Found>),
    /// The write was published, or changed nothing.
    Done(Verdict),
    /// The number was computed and published.
    Number(u64),
    /// Too few servers are left for a write that is to survive the loss of one, or none for a read.
    TooFew,
    /// Fewer fragments of the value are left than make it.
    Lost {
        /// Fragments that are left.
        found: usize,
        /// Fragments that make it.
        needed: usize,
    },
    /// The bytes are not those that were stored.
    Damaged,
    /// A server refused it in these words, and nothing was changed.
    Refused(String),
    /// The time is over, and nothing was changed.
    NotServed(Obstacle),
    /// The time is over, and the write may have been published, or may be yet.
    Unknown(Obstacle),
}

/// The last event that kept an operation from its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Obstacle {
    server: Option<ServerId>,
    why: Cow<'static, str>,
}

impl Obstacle {
    fn at(server: ServerId, why: impl Into<Cow<'static, str>>) -> Self {
        Self { server: Some(server), why: why.into() }
    }

    fn none(why: &'static str) -> Self {
        Self { server: None, why: why.into() }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server {
            Some(server) => write!(f, "server {} {}", server.0, self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// The numbers of a client's writes.
///
/// A client whose write has an unknown outcome goes on as another. So it never closes a write that others may still complete.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    client: u64,
    sequence: u64,
    /// The state of the generator of client numbers.
    seed: u64,
    open: BTreeSet<WriteId>,
}

impl Ids {
    /// Returns the numbers of a client that no other has, if the seed is random.
    pub(super) fn new(seed: u64) -> Self {
        let (client, sequence) = (0, 0);
        let mut ids = Self { client, sequence, seed, open: BTreeSet::new() };
        ids.become_another();
        ids
    }

    fn become_another(&mut self) {
        // SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // On the wire 0 stands for no client.
        (self.client, self.sequence) = ((value ^ (value >> 31)).max(1), 0);
    }

    /// Returns the number of a new write, and the lowest of the client whose outcome it may still ask for.
    fn begin(&mut self) -> (WriteId, u64) {
        self.sequence += 1;
        let id = WriteId { client: self.client, sequence: self.sequence };
        self.open.insert(id);
        let of_client = WriteId { client: self.client, sequence: 0 }..=id;
        let lowest = self.open.range(of_client).next().map_or(id.sequence, |lowest| lowest.sequence);
        (id, lowest)
    }

    /// Closes a write: its outcome is known, and not asked for again.
    fn close(&mut self, id: WriteId) {
        self.open.remove(&id);
    }

    /// Gives up a write whose outcome is unknown.
    fn lose(&mut self, id: WriteId) {
        self.open.remove(&id);
        if id.client == self.client {
            self.become_another();
        }
    }
}

/// The surroundings of an operation at one moment.
pub(super) struct Now<'a> {
    pub(super) layout: &'a Layout,
    pub(super) ids: &'a mut Ids,
    /// Nanoseconds.
    pub(super) time: u64,
}

/// One operation on one key.
#[derive(Debug)]
pub(super) struct Operation {
    key: Vec<u8>,
    work: Work,
    own: Own,
    step: Step,
    /// Each repetition of calls is a round. Replies of earlier ones may still come.
    round: u32,
    /// Calls of this round without an answer.
    waiting: u32,
    retry_at: Option<u64>,
    pauses: u32,
    deadline: u64,
    /// A primary may have ordered the write.
    is_ordered: bool,
    /// The order, as it was sent last.
    order: Option<(ServerId, Request)>,
    /// The write that the order came behind.
    behind: Option<Behind>,
    /// The value that a primary computed.
    computed: Option<u64>,
    /// The words of a server that does not take the write.
    refused: Option<String>,
    /// The version of which all members together had too few fragments at the last read.
    lacked: Option<Version>,
    /// The fragments of the value that was read.
    made_of: Option<MadeOf>,
    obstacle: Obstacle,
}

/// A write that an order came behind: its client is given time to complete it.
#[derive(Clone, Copy, Debug)]
struct Behind {
    id: WriteId,
    since: u64,
    /// When the order came behind the first of several writes.
    first: u64,
    turns: u32,
}

#[derive(Debug)]
enum Step {
    /// It begins, or begins again, at this time.
    Due(u64),
    Writing(Writer),
    /// The value is asked for; after a computation, the one of this version.
    Reading(Gathering, Option<Version>),
    /// A write that the primary does not know the end of is completed, before the value is asked for again.
    Completing(Target, Completion, Option<Version>),
    Ended(Option<End>),
}

impl Operation {
    /// Returns an operation that begins at once, and takes at most `patience` nanoseconds, or [`GIVE_UP_AFTER`].
    pub(super) fn new(key: &[u8], work: Work, own: Own, now: u64, patience: u64) -> Self {
        Self {
            key: key.to_vec(),
            work,
            own,
            step: Step::Due(now),
            round: 0,
            waiting: 0,
            retry_at: None,
            pauses: 0,
            deadline: now.saturating_add(patience.min(GIVE_UP_AFTER)),
            is_ordered: false,
            order: None,
            behind: None,
            computed: None,
            refused: None,
            lacked: None,
            made_of: None,
            obstacle: Obstacle::none("no server was asked"),
        }
    }

    /// Returns when there is something to do though nothing comes.
    pub(super) fn wakes_at(&self) -> u64 {
        let next = match &self.step {
            Step::Due(at) => Some(*at),
            Step::Reading(gathering, _) => self.retry_at.into_iter().chain(gathering.hedges_at()).min(),
            _ => self.retry_at,
        };
        next.map_or(self.deadline, |next| next.min(self.deadline))
    }

    /// Returns when it gives up.
    pub(super) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Returns the epoch that its calls have; None while it has none under way.
    pub(super) fn epoch(&self) -> Option<rdmakv_cluster::config::Epoch> {
        match &self.step {
            Step::Writing(writer) => Some(writer.target().epoch),
            Step::Reading(gathering, _) => Some(gathering.target().epoch),
            Step::Completing(target, ..) => Some(target.epoch),
            Step::Due(_) | Step::Ended(_) => None,
        }
    }

    /// Takes the end, once there is one.
    pub(super) fn take_end(&mut self) -> Option<End> {
        if let Step::Ended(end) = &mut self.step { end.take() } else { None }
    }

    /// Takes the fragments that the value was made of, if it was.
    pub(super) fn take_made_of(&mut self) -> Option<MadeOf> {
        self.made_of.take()
    }

    /// Does what is due: begins, repeats calls, goes on in a later epoch, gives up.
    pub(super) fn progress(&mut self, now: &mut Now<'_>) -> Vec<Parcel> {
        if matches!(self.step, Step::Ended(_)) {
            return Vec::new();
        }
        if now.time >= self.deadline {
            self.give_up(now);
            return Vec::new();
        }
        let is_later = self.epoch().is_some_and(|epoch| now.layout.epoch() > epoch);
        let is_due = match self.step {
            Step::Due(at) => now.time >= at,
            _ => self.retry_at.is_some_and(|at| now.time >= at),
        };
        if !is_later && !is_due {
            return match &mut self.step {
                Step::Reading(gathering, _) if gathering.hedges_at().is_some_and(|at| now.time >= at) => {
                    gathering.hedge(now.time);
                    self.gather()
                }
                _ => Vec::new(),
            };
        }
        if is_later {
            (self.pauses, self.behind) = (0, None);
        }
        let stands_back = self.behind.is_some_and(|behind| behind.turns > 0);
        if !stands_back {
            self.order = None;
        }
        (self.round, self.waiting, self.retry_at) = (self.round.wrapping_add(1), 0, None);
        let calls = match &mut self.step {
            Step::Due(_) => return self.begin(now),
            Step::Writing(writer) if is_later => writer.adopt(now.layout.target(&self.key)),
            Step::Writing(_) if stands_back => self.order.iter().cloned().collect(),
            Step::Writing(writer) => writer.lost(),
            Step::Reading(_, after) | Step::Completing(.., after) => {
                let after = *after;
                return self.read(now, after);
            }
            Step::Ended(_) => Calls::new(),
        };
        let parcels = self.parcels(calls, None);
        self.settle(now);
        parcels
    }

    /// Takes a reply.
    pub(super) fn take(&mut self, arrived: Arrived, now: &mut Now<'_>) -> Vec<Parcel> {
        let Arrived { from, round, frame: ReplyFrame { mut reply, attributes }, bytes } = arrived;
        self.answered(round);
        self.meet(from, &reply.answer);
        name_bytes(&mut reply.answer);
        let came = (Arc::new(bytes), attributes);
        if self.stands_back(from, &reply, now.time) {
            return Vec::new();
        }
        let parcels = match &mut self.step {
            Step::Writing(writer) => {
                if has_computed(&reply, writer.id()) {
                    self.computed = number(&came.0);
                }
                let calls = writer.take(from, &reply);
                self.parcels(calls, Some(&came))
            }
            Step::Reading(gathering, after) if reply.epoch == gathering.target().epoch => {
                let is_primary = gathering.target().is_primary(from);
                match &reply.answer {
                    _ if !is_primary => {
                        if round == Some(self.round) {
                            gathering.take(from, &reply.answer, Arc::unwrap_or_clone(came.0));
                        }
                        self.gather()
                    }
                    // By the version it is asked for nothing.
                    _ if gathering.is_told() => Vec::new(),
                    Answer::Value(Some(stored)) if after.is_none() && stored.piece.is_fragment() => {
                        let (found, (bytes, attributes)) = ((stored.version, stored.piece), came);
                        gathering.tell(from, found, (Arc::unwrap_or_clone(bytes), attributes));
                        self.gather()
                    }
                    Answer::Value(value) if reply.id.is_none() => {
                        let value = value.as_ref().map(|stored| (stored.version, stored.piece));
                        let end = self.found(value, came);
                        self.end(end)
                    }
                    Answer::Help(pending) => {
                        let (target, after) = (gathering.target().clone(), *after);
                        let completion = Completion::of(pending, &target);
                        let calls = completion.start(&target);
                        self.step = Step::Completing(target, completion, after);
                        self.parcels(calls, Some(&came))
                    }
                    _ => {
                        self.ask_later(now.time);
                        Vec::new()
                    }
                }
            }
            Step::Completing(target, completion, after)
                if reply.epoch == target.epoch && reply.id == Some(completion.id()) =>
            {
                let after = *after;
                match completion.take(target, from, &reply.answer) {
                    Progress::Waiting(calls) => self.parcels(calls, Some(&came)),
                    Progress::Ended(_, notes) => {
                        let mut parcels = self.parcels(notes, None);
                        parcels.extend(self.read(now, after));
                        parcels
                    }
                    Progress::Unknown => self.read(now, after),
                }
            }
            _ => Vec::new(),
        };
        let more = self.settle(now);
        parcels.into_iter().chain(more).collect()
    }

    /// Notes that a call gets no answer, or a line in place of one.
    pub(super) fn failed(
        &mut self,
        to: ServerId,
        (round, said): (Option<u32>, Option<String>),
        now: &mut Now<'_>,
    ) -> Vec<Parcel> {
        self.answered(round);
        self.obstacle = match &said {
            Some(said) => Obstacle::at(to, format!("says: {said}")),
            None => Obstacle::at(to, "does not answer"),
        };
        let is_final = |said: &String| FINAL.iter().any(|line| said.starts_with(line));
        if let Some(said) = said.filter(is_final) {
            match self.step {
                // It is known to have no effect once all members have refused it.
                Step::Writing(_) => self.refused = Some(said),
                Step::Reading(_, None) => self.step = Step::Ended(Some(End::Refused(said))),
                _ => {}
            }
        }
        self.stop_standing_back();
        let mut parcels = Vec::new();
        match &mut self.step {
            Step::Reading(gathering, _) if round == Some(self.round) && !gathering.target().is_primary(to) => {
                gathering.lose(to);
                parcels = self.gather();
            }
            Step::Reading(..) if round == Some(self.round) => self.ask_later(now.time),
            _ => {}
        }
        self.settle(now);
        parcels
    }

    /// Goes on with a read of fragments: makes the value, or asks more members.
    fn gather(&mut self) -> Vec<Parcel> {
        let Step::Reading(gathering, _) = &mut self.step else { return Vec::new() };
        match gathering.go_on() {
            Gathered::Waits(calls) => return self.parcels(calls, None),
            Gathered::Value(version, attributes, bytes) => {
                self.made_of = gathering.made_of();
                return self.end(End::Value(Some(Found { version, attributes, bytes })));
            }
            Gathered::Damaged => return self.end(End::Damaged),
            // Members drop a version when a later one is published. Then the primary has that, too, when it is asked again.
            Gathered::Lost { version, found, needed } if self.lacked == Some(version) => {
                return self.end(End::Lost { found, needed });
            }
            Gathered::Lost { version, .. } => self.lacked = Some(version),
            Gathered::Unsure => self.lacked = None,
        }
        Vec::new()
    }

    /// Repeats a read whose primary has no answer to it, whatever the others do.
    fn ask_later(&mut self, now: u64) {
        if self.retry_at.is_none() {
            self.retry_at = Some(now + self.pause());
        }
    }

    fn answered(&mut self, round: Option<u32>) {
        if round == Some(self.round) {
            self.waiting = self.waiting.saturating_sub(1);
        }
    }

    /// Returns whether an order that came behind another write is to be repeated, so that this write's client completes it.
    ///
    /// All that came behind it would complete it otherwise, each with as many calls.
    fn stands_back(&mut self, from: ServerId, reply: &Reply, now: u64) -> bool {
        let (Step::Writing(writer), Answer::Help(pending)) = (&self.step, &reply.answer) else {
            self.stop_standing_back();
            return false;
        };
        let (id, target) = (pending.stored.id, writer.target());
        let is_order = reply.id == Some(writer.id()) && reply.epoch == target.epoch && self.order.is_some();
        if id == writer.id() || !is_order || !target.is_primary(from) || self.waiting > 0 {
            return false;
        }
        let new = Behind { id, since: now, first: now, turns: 0 };
        let mut behind = self.behind.unwrap_or(new);
        if behind.id != id {
            (behind.id, behind.since) = (id, now);
        }
        let is_over = now - behind.since >= STANDS_BACK.0 || now - behind.first >= STANDS_BACK.1;
        if is_over {
            self.stop_standing_back();
            return false;
        }
        self.retry_at = Some(now + (TURN.0 << behind.turns.min(16)).min(TURN.1));
        behind.turns += 1;
        self.behind = Some(behind);
        true
    }

    /// Lets later repetitions ask what became of the write.
    fn stop_standing_back(&mut self) {
        self.order = None;
        if let Some(behind) = &mut self.behind {
            behind.turns = 0;
        }
    }

    /// Remembers an answer that leads nowhere, for errors.
    fn meet(&mut self, from: ServerId, answer: &Answer) {
        let why = match answer {
            Answer::OtherEpoch => "is in another epoch",
            Answer::NotServing => "has no right to answer for the key",
            Answer::Fenced => "waits until the right of the primary before it has ended",
            Answer::Busy => "is busy with other writes of the key",
            Answer::Lacks => "lacks the value's bytes",
            _ => return,
        };
        self.obstacle = Obstacle::at(from, why);
    }

    /// Begins anew, under a new number.
    fn begin(&mut self, now: &mut Now<'_>) -> Vec<Parcel> {
        let policy = now.layout.policy(&self.key).shrunk_to(now.layout.live());
        if now.layout.live() == 0 || policy.is_none() && self.work != Work::Read {
            return self.end(End::TooFew);
        }
        if self.work == Work::Read {
            return self.read(now, None);
        }
        let target = now.layout.target(&self.key);
        let (condition, bytes) = match self.work {
            Work::Delete => {
                let none = Own::default().piece(Form::Tombstone);
                (Condition::Present, Bytes::Carried(none))
            }
            Work::Put(condition) => {
                if let (Some(Policy::Code { data, .. }), true) = (policy, self.own.length >= CODE_FROM as u64) {
                    let piece = |index| self.own.piece(Form::Fragment { k: data, index });
                    let pieces = (0..target.members.len() as u8).map(piece).collect();
                    return self.write(target, (condition, Bytes::Staged(pieces)), now);
                }
                let piece = self.own.piece(Form::Copy);
                // A server can refuse what is staged. One that backs a key up cannot refuse what its primary has ordered.
                let is_staged = self.own.length >= CODE_FROM as u64 && is_chunk_of_file(&self.key);
                let is_carried = self.own.length <= CARRIED as u64 && !is_staged;
                let staged = || Bytes::Staged(vec![piece; target.members.len()]);
                (condition, if is_carried { Bytes::Carried(piece) } else { staged() })
            }
            Work::Read | Work::Compute(_) => (Condition::Present, Bytes::Computed(0)),
        };
        self.write(target, (condition, bytes), now)
    }

    fn write(&mut self, target: Target, (condition, bytes): (Condition, Bytes), now: &mut Now<'_>) -> Vec<Parcel> {
        let (writer, calls) = Writer::begin(target, now.ids.begin(), condition, bytes);
        (self.step, self.is_ordered, self.order) = (Step::Writing(writer), false, None);
        let parcels = self.parcels(calls, None);
        self.settle(now);
        parcels
    }

    /// Asks for the value.
    fn read(&mut self, now: &mut Now<'_>, after: Option<Version>) -> Vec<Parcel> {
        // A number is no fragment.
        let spread = match now.layout.policy(&self.key) {
            Policy::Code { data, .. } if after.is_none() => usize::from(data).saturating_sub(1),
            _ => 0,
        };
        let (gathering, calls) = Gathering::begin(now.layout.target(&self.key), spread, now.time);
        (self.round, self.waiting, self.retry_at) = (self.round.wrapping_add(1), 0, None);
        self.step = Step::Reading(gathering, after);
        let parcels = self.parcels(calls, None);
        self.settle(now);
        parcels
    }

    /// Returns the end that a value brings.
    fn found(&self, value: Option<(Version, Piece)>, (bytes, attributes): (Arc<Vec<u8>>, Attributes)) -> End {
        let after = if let Step::Reading(_, after) = self.step { after } else { None };
        let is_sound = |piece: &Piece| bytes.len() as u64 == piece.length && value_sum(&bytes) == piece.sum;
        match (value, after) {
            (Some((_, piece)), _) if piece.form == Form::Copy && !is_sound(&piece) => End::Damaged,
            (Some((version, _)), Some(after)) if version == after && number(&bytes).is_some() => {
                number(&bytes).map_or(End::Damaged, End::Number)
            }
            (_, Some(_)) => {
                End::Unknown(Obstacle::none("it was done, and another write followed before its number was read"))
            }
            (Some((version, _)), None) => {
                End::Value(Some(Found { version, attributes, bytes: Arc::unwrap_or_clone(bytes) }))
            }
            (None, None) => End::Value(None),
        }
    }

    /// Returns calls as they are sent.
    fn parcels(&mut self, calls: Calls, came: Option<&(Arc<Vec<u8>>, Attributes)>) -> Vec<Parcel> {
        calls.into_iter().map(|(to, request)| self.parcel(to, request, came)).collect()
    }

    fn parcel(&mut self, to: ServerId, request: Request, came: Option<&(Arc<Vec<u8>>, Attributes)>) -> Parcel {
        let mut frame = RequestFrame::new(request);
        let piece = match &frame.request.call {
            Call::Stage { piece, .. } | Call::Order { change: Change::Put(piece), .. } => Some(*piece),
            Call::Seal { piece, .. } => *piece,
            _ => None,
        };
        let mut body = Body::None;
        match (piece, came) {
            // A deleted key has no attributes.
            (Some(piece), _) if piece.form == Form::Tombstone => {}
            (Some(piece), Some((bytes, attributes))) if piece.chunk == CAME => {
                (body, frame.attributes) = (Body::Came(Arc::clone(bytes)), *attributes);
            }
            (Some(Piece { form: Form::Fragment { k, index }, .. }), _) => {
                let of = if let Step::Writing(writer) = &self.step { writer.target().members.len() } else { 0 };
                (body, frame.attributes) = (Body::Fragment { k, index, of }, self.own.attributes);
            }
            (Some(_), _) => (body, frame.attributes) = (Body::Own, self.own.attributes),
            (None, _) => {}
        }
        if let (Call::Order { change, .. }, Work::Compute(arguments)) = (&frame.request.call, self.work)
            && matches!(change, Change::Compute(_))
        {
            (body, frame.arguments) = (Body::Own, Some(arguments));
        }
        if matches!(frame.request.call, Call::Order { .. }) {
            (self.is_ordered, self.order) = (true, Some((to, frame.request.clone())));
        }
        if self.obstacle.server.is_none() {
            self.obstacle = Obstacle::at(to, "has not answered");
        }
        let is_note = matches!(frame.request.call, Call::Note { .. });
        self.waiting += u32::from(!is_note);
        Parcel { to, frame, body, round: (!is_note).then_some(self.round) }
    }

    /// Goes on after a step: takes the writer's outcome, or waits before calls are repeated.
    fn settle(&mut self, now: &mut Now<'_>) -> Vec<Parcel> {
        if let Step::Writing(writer) = &self.step
            && let Some(outcome) = writer.outcome()
        {
            let id = writer.id();
            match outcome {
                Outcome::Known(verdict) => {
                    now.ids.close(id);
                    return self.known(verdict, now);
                }
                Outcome::Again => {
                    now.ids.close(id);
                    if let Some(said) = self.refused.take() {
                        return self.end(End::Refused(said));
                    }
                    let at = now.time + self.pause();
                    (self.step, self.retry_at) = (Step::Due(at), None);
                }
                Outcome::Unknown => {
                    now.ids.lose(id);
                    self.end(End::Unknown(self.obstacle.clone()));
                }
            }
        }
        let is_under_way = !matches!(self.step, Step::Due(_) | Step::Ended(_));
        if is_under_way && self.waiting == 0 && self.retry_at.is_none() {
            self.retry_at = Some(now.time + self.pause());
        }
        Vec::new()
    }

    /// Ends with the verdict. The number that was computed is read if it did not come.
    fn known(&mut self, verdict: Verdict, now: &mut Now<'_>) -> Vec<Parcel> {
        let is_number = matches!(self.work, Work::Compute(Arguments::Increment { .. } | Arguments::Decrement { .. }));
        match (verdict, self.computed) {
            (Verdict::Stored(_), Some(number)) if is_number => self.end(End::Number(number)),
            (Verdict::Stored(version), None) if is_number => self.read(now, Some(version)),
            (Verdict::Flushed, _) => self.end(End::Unknown(Obstacle::none(
                "the cluster was flushed meanwhile, or the client was silent for long",
            ))),
            _ => self.end(End::Done(verdict)),
        }
    }

    fn pause(&mut self) -> u64 {
        let pause = (PAUSE.0 << self.pauses.min(16)).min(PAUSE.1);
        self.pauses += 1;
        pause
    }

    fn give_up(&mut self, now: &mut Now<'_>) {
        let end = match &self.step {
            Step::Writing(writer) if self.is_ordered => {
                now.ids.lose(writer.id());
                End::Unknown(self.obstacle.clone())
            }
            Step::Writing(writer) => {
                now.ids.close(writer.id());
                End::NotServed(self.obstacle.clone())
            }
            // The write is done, and its number is not known.
            Step::Reading(_, Some(_)) | Step::Completing(.., Some(_)) => End::Unknown(self.obstacle.clone()),
            _ => End::NotServed(self.obstacle.clone()),
        };
        self.end(end);
    }

    fn end(&mut self, end: End) -> Vec<Parcel> {
        self.step = Step::Ended(Some(end));
        Vec::new()
    }
}

/// Returns the refusal in memcached's words, for those that are errors there.
pub(super) fn refused(refusal: Refusal) -> Option<&'static str> {
    match refusal {
        Refusal::Invalid => Some("CLIENT_ERROR cannot increment or decrement non-numeric value"),
        Refusal::NoMemory => Some("SERVER_ERROR out of memory storing object"),
        Refusal::TooLarge => Some("SERVER_ERROR object too large for cache"),
        Refusal::Final => Some("SERVER_ERROR chunk is final: its file's generation is frozen"),
        Refusal::NotStored | Refusal::Exists => None,
    }
}

/// Returns whether a key is a chunk of a file, of which servers refuse more than they can keep until they are drained.
fn is_chunk_of_file(key: &[u8]) -> bool {
    let is_key = |key: &str| matches!(Key::parse(key), Some(Key::Chunk(..)));
    key.starts_with(b"c/") && std::str::from_utf8(key).is_ok_and(is_key)
}

/// Gives the bytes that came with a reply their number.
fn name_bytes(answer: &mut Answer) {
    match answer {
        Answer::Ordered { computed: Some(piece), .. } => piece.chunk = CAME,
        Answer::Help(pending) => pending.stored.piece.chunk = CAME,
        Answer::Value(Some(stored)) => stored.piece.chunk = CAME,
        _ => {}
    }
}

/// Returns whether bytes that a primary computed for this write came with a reply.
fn has_computed(reply: &Reply, id: WriteId) -> bool {
    match &reply.answer {
        Answer::Ordered { computed, .. } => reply.id == Some(id) && computed.is_some(),
        Answer::Help(pending) => pending.stored.id == id && !pending.stored.is_staged,
        _ => false,
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_write_is_never_closed() {
        let mut ids = Ids::new(1);
        let (first, lowest) = ids.begin();
        assert_eq!(lowest, first.sequence);
        let (second, _) = ids.begin();
        ids.close(first);
        let (third, lowest) = ids.begin();
        assert_eq!(lowest, second.sequence);
        ids.lose(second);
        // Those that are under way keep their client number, and another begins.
        let (other, lowest) = ids.begin();
        assert!(other.client != third.client && lowest == other.sequence);
        ids.close(third);
        assert!(ids.open.contains(&other) && ids.open.len() == 1);
    }
}
