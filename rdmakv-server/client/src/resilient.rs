//! The driver of operations on keys of which several servers have copies: it sends their calls, and brings them the replies.
//!
//! A call is an operation of its own at one server, and part of another. Operations of this client on one key follow each other, so that
//! each finds the effect of those begun before it.

use super::answer::{Answer, Stored};
use super::buffer::{Buffer, Data, Part};
use super::caller::{Caller, Came, Outgoing};
use super::calls::{Calls, Ended, Message, Parent, Sent};
use super::cluster::Cluster;
use super::command::Arguments;
use super::common::Common;
use super::erasure::{CODE_FROM, Fragments};
use super::error::{About, Error, Operation as Asked};
use super::fabric::parts::Begun;
use super::fragment_tags::{FragmentTags, Located, Look};
use super::gathering::HEDGE;
use super::membership::{Layout, Membership};
use super::one_sided::{FragmentRead, LOOK_FROM, OneSided};
use super::ops::{Name, On};
use super::options::Options;
use super::places::{Hands, Places};
use super::replication::{Arrived, Body, CARRIED, End, Found, Ids, Now, Operation, Own, Parcel, Work, refused};
use super::revision::{ATTEMPTS, Change, Next, Revision};
use super::server::Server;
use super::tags::CallTag;
use super::turns::Turns;
use super::value::{Bytes, Source, Value};
use hashbrown::HashMap;
use rdmakv_cluster::config::{Policy, ServerId};
use rdmakv_cluster::messages::{Answer as Told, Call, Condition, Refusal, Verdict, Version};
use rdmakv_cluster::wire::{Arguments as Computation, Attributes, ReplyFrame, RequestFrame};
use rdmakv_proto::clock;
use rdmakv_proto::horizon::Horizon;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client that is dropped waits for the answers to its last notes. Without them the servers keep the values of before.
pub(super) const LAST_NOTES: Duration = Duration::from_millis(100);
/// Bytes from which data is copied to where several servers can read it, if it is not there.
const SHARED_FROM: usize = 64 << 10;
/// The longest sleep while a later epoch may come.
const MOMENT: Duration = Duration::from_millis(20);

/// The operations of a client on keys that have copies.
pub(super) struct Resilient {
    cluster: Cluster,
    options: Options,
    membership: Membership,
    layout: Arc<Layout>,
    places: Places,
    ids: Ids,
    running: HashMap<Name, Running>,
    turns: Turns,
    calls: Calls,
    /// The places of fragments in this epoch.
    fragment_tags: FragmentTags,
    /// The operations whose fragments are being read one-sidedly.
    readers: Vec<Name>,
    /// When operations have something to do though nothing comes.
    wakes: BTreeSet<(u64, Name)>,
    /// Whether the answer to a call over a fabric is waited for awake.
    horizon: Horizon,
    /// The replies to the calls of a [`Caller`]; None where none comes.
    returned: Vec<(u64, Option<Came>)>,
    /// By the clock that runs on while the machine sleeps, as the servers' does: they forget the writes of silent clients.
    started: u64,
    process: u32,
}

struct Running {
    operation: Operation,
    key: Vec<u8>,
    is_queued: bool,
    /// The bytes that it stores. The caller gets them back if no call needs them any more.
    own: Arc<Data>,
    /// How the last reply came.
    source: Source,
    /// Another operation on the key comes first, or a GET at the primary.
    is_waiting: bool,
    /// Its time in the wakes, if it is there.
    wakes_at: Option<u64>,
    /// The call that was sent last.
    call: Option<Name>,
    /// The fragments that it stores, once they were computed.
    fragments: Option<Fragments>,
    /// The change of the value that the client carries out, because the primary could not.
    revision: Option<Revision>,
    /// The one-sided read of its fragments that comes first.
    reads: Option<OneSided>,
    /// The last tag that came from each server.
    tags: Vec<(ServerId, CallTag)>,
}

impl Running {
    /// Notes the tag that came with the reply to a call, or that none did.
    fn take_tag(&mut self, from: ServerId, tag: Option<CallTag>) {
        self.tags.retain(|&(server, _)| server != from);
        self.tags.extend(tag.map(|tag| (from, tag)));
    }
}

impl Resilient {
    /// Reads the configuration of the cluster, and makes its servers.
    pub(super) fn new(cluster: &Cluster, options: &Options, hands: &mut Hands<'_>) -> Result<Self, Error> {
        let membership = Membership::open(&cluster.etcd, &cluster.name, cluster.give_up_after)?;
        let layout = membership.layout();
        let mut this = Self {
            cluster: cluster.clone(),
            options: options.clone(),
            membership,
            layout: Arc::clone(&layout),
            places: Places::default(),
            ids: Ids::new(random()?),
            running: HashMap::new(),
            turns: Turns::default(),
            calls: Calls::default(),
            fragment_tags: FragmentTags::new(options.tags),
            readers: Vec::new(),
            wakes: BTreeSet::new(),
            horizon: Horizon::default(),
            returned: Vec::new(),
            started: clock::boot(),
            process: std::process::id(),
        };
        this.adopt(layout, hands);
        Ok(this)
    }

    /// Returns whether several servers have the key.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.layout.policy(key) != Policy::None
    }

    /// Returns the place of the first server of a key.
    pub(super) fn primary(&self, key: &[u8]) -> Option<usize> {
        self.layout.primary(key).and_then(|server| self.places.of(server))
    }

    /// Returns an operation that has not ended.
    pub(super) fn any(&self) -> Option<Name> {
        self.running.keys().next().copied()
    }

    /// Returns whether calls are under way, as those are that tell backups of published writes. A child of a fork has none of its own.
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty() && self.process == std::process::id()
    }

    /// Returns when there is something to do though nothing comes.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let due = self.due().map(|at| Instant::now() + Duration::from_nanos(at.saturating_sub(self.now())));
        self.calls.deadline().into_iter().chain(due).min()
    }

    /// Returns when an operation or a note has something to do though nothing comes.
    fn due(&self) -> Option<u64> {
        self.wakes.first().map(|&(at, _)| at).into_iter().chain(self.calls.note_due()).min()
    }

    /// Begins an operation that was opened.
    pub(super) fn begin(&mut self, name: Name, hands: &mut Hands<'_>) {
        self.follow(hands);
        let Some(op) = hands.common.ops.get(name) else { return };
        let work = match work(op.operation, &op.arguments) {
            Ok(work) => work,
            Err(why) => return self.fail(hands.common, name, |about| Error::Unsupported { about, why }),
        };
        let Arguments { terms, .. } = op.arguments;
        let own = match work {
            Work::Put(_) => {
                let (flags, expiry) = (terms.flags, terms.expire.unix_seconds());
                let attributes = Attributes { flags, expiry, ..Attributes::default() };
                Own::of(op.data.bytes(), attributes)
            }
            Work::Read | Work::Delete | Work::Compute(_) => Own::default(),
        };
        let key = op.key.clone();
        let revision = matches!(op.operation, Asked::Touch | Asked::Gat)
            .then(|| Revision::new(Change::End(terms.expire.unix_seconds())));
        let is_write = work != Work::Read || revision.is_some();
        let is_queued = is_write || self.turns.has(&key);
        let (mut reads, mut call) = (None, None);
        if is_write {
            self.fragment_tags.forget(&key);
        } else if !is_queued {
            reads = self.read_fragments(&key, hands);
        }
        if let Some(read) = reads.take_if(|read| read.is_done())
            && let Some(value) = self.take_fragments(read, &key, hands)
        {
            return hands.common.end(name, Ok(Answer::Value(Some(value))));
        }
        let mut reads = reads.map(OneSided::Reading);
        if reads.is_some() {
            self.readers.push(name);
        } else if !is_queued {
            (reads, call) = self.look(name, &key, hands).unzip();
        }
        let data = shared(name, hands.common);
        let operation = Operation::new(&key, work, own, self.now(), self.cluster.patience());
        if !is_queued && reads.is_none() {
            call = self.get_plainly(name, &key, hands);
        }
        let mut is_waiting = call.is_some() || reads.is_some();
        if is_queued {
            is_waiting = self.turns.enter(&key, name);
        }
        let source = Source::Socket;
        let running = Running {
            operation,
            key,
            is_queued,
            own: data,
            source,
            is_waiting,
            wakes_at: None,
            call,
            fragments: None,
            revision,
            reads,
            tags: Vec::new(),
        };
        self.running.insert(name, running);
        self.go_on(name, hands);
        self.progress(hands);
    }

    /// Does what can be done now.
    pub(super) fn progress(&mut self, hands: &mut Hands<'_>) {
        self.follow(hands);
        self.calls.expire(Instant::now(), hands);
        self.end_reads(hands);
        self.take_replies(hands);
        let due = self.now();
        self.calls.send_notes(due, &self.places, hands);
        let due: Vec<Name> = self.wakes.iter().take_while(|&&(at, _)| at <= due).map(|&(_, name)| name).collect();
        if !due.is_empty() {
            due.into_iter().for_each(|name| self.go_on(name, hands));
            self.take_replies(hands);
        }
    }

    /// Sleeps until something may have happened to an operation, or so long.
    pub(super) fn wait(&mut self, name: Option<Name>, longest: Duration, hands: &mut Hands<'_>) {
        let now = self.now();
        let longest = self.due().map_or(longest, |at| longest.min(Duration::from_nanos(at.saturating_sub(now))));
        let ops = &hands.common.ops;
        let is_open = |call: &Name| ops.get(*call).is_some() && !ops.is_done(*call);
        let own = name.and_then(|name| self.running.get(&name)?.call).filter(is_open);
        let reader = name.into_iter().chain(self.readers.iter().copied());
        let reads = reader.filter_map(|name| self.running.get(&name)?.reads.as_ref()?.waits_for()).next();
        if let Some(server) = reads.filter(|_| own.is_none()) {
            return hands.servers[server].wait(hands.common, On::Fabric, longest.min(MOMENT));
        }
        match own.or_else(|| self.calls.oldest(ops)).and_then(|call| ops.get(call)).map(|op| (op.server, op.on)) {
            Some((server, On::Fabric)) if name.is_some_and(|name| self.is_short(name)) => {
                self.wait_awake(server, longest.min(MOMENT), hands);
            }
            Some((server, on)) => hands.servers[server].wait(hands.common, on, longest.min(MOMENT)),
            None => self.membership.wait(self.layout.epoch(), longest),
        }
    }

    /// Returns whether an operation stores no bytes that are staged: to move those takes longer than to wake a thread.
    fn is_short(&self, name: Name) -> bool {
        self.running.get(&name).is_some_and(|running| running.own.bytes().len() <= CARRIED)
    }

    /// Waits for an answer to any call, awake at first if that pays. Then it sleeps until one comes from this server.
    fn wait_awake(&mut self, server: usize, longest: Duration, hands: &mut Hands<'_>) {
        let came = self.horizon.wait(longest, || {
            let busy = hands.servers.iter_mut().filter(|server| server.busy() > 0);
            busy.for_each(|server| server.progress(hands.common));
            hands.common.ops.has_ended_parts()
        });
        if !came {
            hands.servers[server].wait(hands.common, On::Fabric, longest);
        }
    }

    fn now(&self) -> u64 {
        clock::boot().saturating_sub(self.started)
    }

    /// Adopts the latest epoch. In a child of a fork it begins anew first: nothing is begun under the parent's number.
    pub(super) fn follow(&mut self, hands: &mut Hands<'_>) {
        if self.process != hands.common.this_process.id() {
            self.begin_anew(hands.common);
        }
        if self.membership.epoch() > self.layout.epoch() {
            self.adopt(self.membership.layout(), hands);
            self.wake_all(hands);
        }
    }

    /// Goes on in this epoch.
    fn adopt(&mut self, layout: Arc<Layout>, hands: &mut Hands<'_>) {
        self.places.adopt(layout.config(), &self.options, hands);
        self.layout = layout;
        self.fragment_tags.clear();
        for running in self.running.values_mut() {
            running.tags.clear();
            // Members of an earlier epoch were asked.
            if running.reads.take_if(|reads| reads.looks_until().is_some()).is_some() {
                running.is_waiting = false;
            }
        }
        // Servers refuse those of an earlier epoch, and agents repair its keys.
        self.calls.drop_notes();
    }

    /// In a child of a fork: writes that were begun stay with the parent, which goes on with them. Reads begin anew.
    fn begin_anew(&mut self, common: &mut Common) {
        const WHY: &str = "it was begun by the process that this one was forked from";
        self.process = common.this_process.id();
        self.membership.begin_anew(&self.layout);
        // Two processes never use one client's number.
        self.ids = Ids::new(random().unwrap_or_else(|_| u64::from(self.process) ^ self.now()));
        self.calls.clear();
        self.fragment_tags.clear();
        self.readers.clear();
        self.turns.clear();
        self.wakes.clear();
        for (name, running) in std::mem::take(&mut self.running) {
            if common.ops.get(name).is_some_and(|op| op.operation.is_read()) {
                let (now, patience) = (self.now(), self.cluster.patience());
                let operation = Operation::new(&running.key, Work::Read, Own::default(), now, patience);
                let (wakes_at, call) = (Some(0), None);
                self.wakes.insert((0, name));
                let (reads, tags) = (None, Vec::new());
                let anew =
                    Running { operation, is_queued: false, is_waiting: false, wakes_at, call, reads, tags, ..running };
                self.running.insert(name, anew);
            } else {
                self.fail(common, name, |about| Error::OutcomeUnknown { about, why: WHY.to_owned() });
            }
        }
    }

    fn take_replies(&mut self, hands: &mut Hands<'_>) {
        loop {
            let ended = self.calls.take_ended(hands.common);
            if ended.is_empty() {
                return;
            }
            for Ended { sent, answer, source, tag } in ended {
                if let Parent::Operation(parent) | Parent::Looker(parent) = sent.parent
                    && sent.wishes
                {
                    self.running.get_mut(&parent).into_iter().for_each(|running| running.take_tag(sent.to, tag));
                }
                self.take_reply(&sent, (answer, source), hands);
            }
        }
    }

    fn take_reply(&mut self, sent: &Sent, (answer, source): (Result<Answer, Error>, Source), hands: &mut Hands<'_>) {
        let time = self.now();
        let &Sent { parent, to: from, round, .. } = sent;
        match parent {
            Parent::Reader(name) => return self.take_item(name, answer, hands),
            Parent::Looker(name) => return self.take_place(name, from, answer, hands),
            Parent::Operation(_) | Parent::Caller(_) => {}
        }
        let (came, said) = match answer {
            Ok(Answer::Called(reply, bytes)) => (ReplyFrame::decode(&reply).ok().map(|frame| (frame, bytes)), None),
            Err(Error::Refused { said, .. }) => (None, Some(said)),
            _ => (None, None),
        };
        let parent = match parent {
            Parent::Operation(parent) => parent,
            Parent::Caller(number) => return self.returned.push((number, came)),
            Parent::Reader(_) | Parent::Looker(_) => return,
        };
        let Some(running) = self.running.get_mut(&parent) else { return };
        running.source = source;
        let mut now = Now { layout: &self.layout, ids: &mut self.ids, time };
        let parcels = match came {
            Some((frame, bytes)) => running.operation.take(Arrived { from, round, frame, bytes }, &mut now),
            None => running.operation.failed(from, (round, said), &mut now),
        };
        self.send(parent, parcels, hands);
        self.settle(parent, hands);
    }

    /// Lets all operations do what is due.
    fn wake_all(&mut self, hands: &mut Hands<'_>) {
        let names: Vec<Name> = self.running.keys().copied().collect();
        names.into_iter().for_each(|name| self.go_on(name, hands));
    }

    /// Lets an operation do what is due.
    fn go_on(&mut self, name: Name, hands: &mut Hands<'_>) {
        let time = self.now();
        let Some(running) = self.running.get_mut(&name) else { return };
        if running.reads.take_if(|reads| reads.looks_until().is_some_and(|until| until <= time)).is_some() {
            running.is_waiting = false;
        }
        let mut parcels = Vec::new();
        if !running.is_waiting || time >= running.operation.deadline() {
            let mut now = Now { layout: &self.layout, ids: &mut self.ids, time };
            parcels = running.operation.progress(&mut now);
        }
        self.send(name, parcels, hands);
        self.settle(name, hands);
    }

    /// Takes the end of an operation. A revision goes on after those of its parts.
    fn take_end(&mut self, name: Name, hands: &mut Hands<'_>) -> Option<Result<End, u32>> {
        let time = self.now();
        let running = self.running.get_mut(&name)?;
        let end = running.operation.take_end()?;
        let asked = hands.common.ops.get(name).map(|op| op.operation);
        let change = match asked {
            Some(Asked::Append) => Some(Change::Append),
            Some(Asked::Prepend) => Some(Change::Prepend),
            _ => None,
        };
        let next = match (&mut running.revision, change) {
            (Some(revision), _) => revision.next(end, running.own.bytes()),
            (None, Some(change)) => {
                running.revision = Revision::after(&end, change);
                if running.revision.is_some() { Next::Read } else { Next::End(end) }
            }
            (None, None) => Next::End(end),
        };
        let new = running.revision.as_ref().map(|revision| revision.value().bytes()).unwrap_or_default();
        let (work, own) = match next {
            Next::Read => (Work::Read, Own::default()),
            Next::Write(version, attributes) => (Work::Put(Condition::Version(version)), Own::of(new, attributes)),
            Next::End(End::Done(verdict)) if asked == Some(Asked::Gat) => {
                return Some(Ok(End::Value(running.revision.as_ref().and_then(|revision| revision.found(verdict)))));
            }
            Next::End(end) => return Some(Ok(end)),
            Next::Contended => return Some(Err(ATTEMPTS)),
        };
        let left = running.operation.deadline().saturating_sub(time);
        running.operation = Operation::new(&running.key, work, own, time, left);
        running.fragments = None;
        None
    }

    /// Reads the fragments of a key's value, if it is known where they are.
    fn read_fragments(&mut self, key: &[u8], hands: &mut Hands<'_>) -> Option<FragmentRead> {
        let located = self.fragment_tags.get(key)?;
        let read = self.read_located(Arc::clone(&located), key, hands);
        // Without a slot or room to post it the places are good all the same.
        if read.is_none() && !located.is_leased(clock::boot()) {
            self.fragment_tags.forget(key);
        }
        read
    }

    fn read_located(&self, located: Arc<Located>, key: &[u8], hands: &mut Hands<'_>) -> Option<FragmentRead> {
        // A read by a tag that is closed would take the connection along.
        if !located.is_leased(clock::boot()) {
            return None;
        }
        let slot = Arc::new(hands.common.fabrics.slots()?.take(located.size(key)?)?);
        let mut outcomes = Vec::new();
        for (number, fragment) in located.fragments().iter().enumerate() {
            let at = self.places.of(fragment.server)?;
            match hands.servers[at].read_part(&fragment.tag, &slot, &located.place(number, key)) {
                Begun::Done => {}
                Begun::UnderWay(outcome) => outcomes.push((at, outcome)),
                Begun::Failed => return None,
            }
        }
        Some(FragmentRead::new(located, slot, outcomes, self.now() + HEDGE))
    }

    /// Returns the value of fragments that were read. Without one, the servers are to be asked where it is.
    fn take_fragments(&mut self, read: FragmentRead, key: &[u8], hands: &mut Hands<'_>) -> Option<Value> {
        let value = read.value(key);
        match value {
            Some(_) => hands.common.counters.one_sided += 1,
            None => {
                hands.common.counters.distrusted += 1;
                self.fragment_tags.forget(key);
            }
        }
        value
    }

    /// Takes the ends of reads of fragments. Those that bring no value, or take too long, go on by calls.
    fn end_reads(&mut self, hands: &mut Hands<'_>) {
        if self.readers.is_empty() {
            return;
        }
        let now = self.now();
        for name in std::mem::take(&mut self.readers) {
            let Some(running) = self.running.get_mut(&name) else { continue };
            let Some(OneSided::Reading(read)) = running.reads.take_if(|read| read.is_over(now)) else {
                if running.reads.is_some() {
                    self.readers.push(name);
                }
                continue;
            };
            let key = running.key.clone();
            let value = self.take_fragments(read, &key, hands);
            self.end_read(name, value, hands);
        }
    }

    /// Ends an operation with the value that was read one-sidedly. Without one it goes on by calls.
    fn end_read(&mut self, name: Name, value: Option<Value>, hands: &mut Hands<'_>) {
        match value {
            Some(value) => {
                self.stop(name);
                hands.common.end(name, Ok(Answer::Value(Some(value))));
            }
            None => {
                self.running.get_mut(&name).into_iter().for_each(|running| running.is_waiting = false);
                self.go_on(name, hands);
            }
        }
    }

    /// Asks the members where the fragments of a large value are. Returns the last call.
    fn look(&mut self, name: Name, key: &[u8], hands: &mut Hands<'_>) -> Option<(OneSided, Name)> {
        let Policy::Code { data, .. } = self.layout.policy(key) else { return None };
        let target = self.layout.target(key);
        let members = target.members.get(..usize::from(data))?;
        let places: Vec<usize> = members.iter().map(|&id| self.places.of(id)).collect::<Option<_>>()?;
        let (&primary, &first) = (members.first()?, places.first()?);
        let is_large = hands.servers[first].size(key).is_some_and(|bytes| bytes >= LOOK_FROM);
        let may = hands.common.one_sided && hands.common.fabrics.slots().is_some();
        if !(is_large && may && places.iter().all(|&at| hands.servers[at].fabric_in_use().is_some())) {
            return None;
        }
        let (look, mut last) = (Look::new(primary, members.len()), None);
        for ((to, request), at) in target.each(members, &Call::Locate).into_iter().zip(places) {
            let message = Message::new(&RequestFrame::new(request), Part::default());
            let sent = Sent { parent: Parent::Looker(name), to, round: None, wishes: true };
            last = Some(self.calls.send(key, message, at, sent, hands));
        }
        Some((OneSided::Looking(look, self.now() + HEDGE), last?))
    }

    /// Takes a member's answer to the question where its fragment is. The fragments are read once all have answered. If one has none, or
    /// another version, the value is asked for by calls.
    fn take_place(&mut self, name: Name, from: ServerId, answer: Result<Answer, Error>, hands: &mut Hands<'_>) {
        let Some(running) = self.running.get_mut(&name) else { return };
        let Some(OneSided::Looking(look, _)) = &mut running.reads else { return };
        let told = match answer {
            Ok(Answer::Called(reply, _)) => ReplyFrame::decode(&reply).ok().map(|frame| frame.reply.answer),
            _ => None,
        };
        let tag = running.tags.iter().find(|(server, _)| *server == from).map(|&(_, tag)| tag);
        let is_there = match (told, tag) {
            (Some(Told::Value(Some(stored))), Some(tag)) => look.take(from, (stored.version, stored.piece), tag),
            _ => false,
        };
        if is_there && !look.is_done() {
            return;
        }
        let located = if is_there { look.located() } else { None };
        let key = running.key.clone();
        running.reads = None;
        let read = located.and_then(|located| {
            self.fragment_tags.learn(&key, located);
            self.read_fragments(&key, hands)
        });
        match read {
            Some(read) if read.is_done() => {
                let value = self.take_fragments(read, &key, hands);
                self.end_read(name, value, hands);
            }
            Some(read) => {
                let Some(running) = self.running.get_mut(&name) else { return };
                running.reads = Some(OneSided::Reading(read));
                self.readers.push(name);
                self.settle(name, hands);
            }
            None => self.end_read(name, None, hands),
        }
    }

    /// Learns where the fragments of the value are that an operation has read.
    fn learn_fragments(&mut self, running: &mut Running) {
        if let Some(primary) = self.layout.primary(&running.key)
            && let Some(made_of) = running.operation.take_made_of()
            && let Some(located) = Located::new(made_of, primary, &running.tags)
        {
            self.fragment_tags.learn(&running.key, located);
        }
    }

    /// Takes the end of an operation, or notes when it is to be woken.
    fn settle(&mut self, name: Name, hands: &mut Hands<'_>) {
        let Some(end) = self.take_end(name, hands) else {
            let Some(running) = self.running.get_mut(&name) else { return };
            let operation = &running.operation;
            let wakes_at = match &running.reads {
                Some(reads) => reads.gives_up_at(),
                None if running.is_waiting => operation.deadline(),
                None => operation.wakes_at(),
            };
            let before = running.wakes_at.replace(wakes_at);
            if before != Some(wakes_at) {
                before.into_iter().for_each(|before| _ = self.wakes.remove(&(before, name)));
                self.wakes.insert((wakes_at, name));
            }
            return;
        };
        let Some(mut running) = self.stop(name) else { return };
        if !running.is_queued {
            self.learn_fragments(&mut running);
        }
        // Its fragments are parts of the data.
        drop(running.fragments);
        if let (Some(op), Ok(data)) = (hands.common.ops.get_mut(name), Arc::try_unwrap(running.own))
            && matches!(op.data, Data::None)
        {
            op.data = data;
        }
        if let Ok(end) = &end {
            self.learn_size(name, end, hands);
        }
        match end {
            Ok(end) => self.finish(hands.common, name, end, running.source),
            Err(attempts) => self.fail(hands.common, name, |about| Error::Contended { about, attempts }),
        }
        if !running.is_queued {
            return;
        }
        if let Some(next) = self.turns.leave(&running.key, name)
            && self.running.get_mut(&next).is_some_and(|next| std::mem::take(&mut next.is_waiting))
        {
            self.go_on(next, hands);
        }
    }

    /// Stops to drive an operation, which has ended.
    fn stop(&mut self, name: Name) -> Option<Running> {
        let running = self.running.remove(&name)?;
        running.wakes_at.into_iter().for_each(|at| _ = self.wakes.remove(&(at, name)));
        Some(running)
    }

    /// Remembers the size of a value that may be in fragments. It decides how the value is asked for.
    fn learn_size(&self, name: Name, end: &End, hands: &mut Hands<'_>) {
        let Some(op) = hands.common.ops.get(name) else { return };
        let bytes = match (end, op.operation) {
            (End::Value(Some(found)), _) => found.bytes.len(),
            (End::Done(Verdict::Stored(_)), Asked::Set | Asked::Add | Asked::Replace | Asked::Cas) => {
                op.data.bytes().len()
            }
            _ => return,
        };
        self.expect_size(&op.key, bytes, hands.servers);
    }

    /// Notes how many bytes a value is said to have, if it may be in fragments.
    pub(super) fn expect_size(&self, key: &[u8], bytes: usize, servers: &mut [Server]) {
        if matches!(self.layout.policy(key), Policy::Code { .. })
            && let Some(at) = self.primary(key)
        {
            servers[at].learn_size(key, bytes);
        }
    }

    fn send(&mut self, parent: Name, parcels: Vec<Parcel>, hands: &mut Hands<'_>) {
        let mut parcels = VecDeque::from(parcels);
        while let Some(Parcel { to, frame, body, round }) = parcels.pop_front() {
            let Some(at) = self.places.of(to) else {
                // It is in no epoch that this client knows any more.
                let mut now = Now { time: self.now(), layout: &self.layout, ids: &mut self.ids };
                let running = self.running.get_mut(&parent);
                parcels.extend(
                    running.map(|running| running.operation.failed(to, (round, None), &mut now)).unwrap_or_default(),
                );
                continue;
            };
            let Some(running) = self.running.get_mut(&parent) else { return };
            let own = running.revision.as_ref().map_or(&running.own, Revision::value);
            let piece = match body {
                Body::None => Part::default(),
                Body::Own => Part::whole(own),
                Body::Came(bytes) => Arc::unwrap_or_clone(bytes).into(),
                Body::Fragment { k, index, of } => {
                    let memory = hands.common.fabrics.memory_if_any();
                    let made = running.fragments.take().filter(|made| made.are_for(k, of));
                    running.fragments.insert(made.unwrap_or_else(|| Fragments::of(own, k, of))).get(index, memory)
                }
            };
            let is_read = matches!(frame.request.call, Call::Read | Call::Fetch { .. });
            let (key, message) = (running.key.clone(), Message::new(&frame, piece));
            let wishes = is_read && matches!(self.layout.policy(&key), Policy::Code { .. });
            let sent = Sent { parent: Parent::Operation(parent), to, round, wishes };
            if matches!(frame.request.call, Call::Note { .. }) {
                self.calls.note(key, message, sent, self.now(), &self.places, hands);
                continue;
            }
            let call = self.calls.send(&key, message, at, sent, hands);
            self.running.get_mut(&parent).into_iter().for_each(|running| running.call = Some(call));
        }
    }

    /// Asks the primary for the whole value, as for one of a plain key, if it has a fabric in use. Not if the value is known to be in
    /// fragments.
    fn get_plainly(&mut self, name: Name, key: &[u8], hands: &mut Hands<'_>) -> Option<Name> {
        let to = self.layout.primary(key).filter(|_| !self.turns.has(key))?;
        let at = self.places.of(to)?;
        hands.servers[at].fabric_in_use()?;
        let is_code = matches!(self.layout.policy(key), Policy::Code { .. });
        if is_code && hands.servers[at].size(key).is_some_and(|bytes| bytes >= CODE_FROM) {
            return None;
        }
        let sent = Sent { parent: Parent::Reader(name), to, round: None, wishes: false };
        Some(self.calls.send_get(key, at, sent, hands))
    }

    /// Returns the server out of whose memory the value of a key may be read now: nothing that was begun before changes it. Tables of
    /// servers may list the key if it has no policy.
    #[inline]
    pub(super) fn to_read(&self, key: &[u8]) -> Option<(usize, bool)> {
        let policy = self.layout.policy(key);
        let is_settled = policy == Policy::None || !self.turns.has(key);
        let at = self.primary(key).filter(|_| is_settled)?;
        Some((at, policy == Policy::None))
    }

    /// Takes the end of a GET at the primary. What did not have a value or its absence is asked for by calls.
    fn take_item(&mut self, name: Name, answer: Result<Answer, Error>, hands: &mut Hands<'_>) {
        let Some(running) = self.running.get_mut(&name) else { return };
        match answer {
            Ok(answer @ Answer::Value(_)) => {
                self.stop(name);
                hands.common.end(name, Ok(answer));
            }
            _ => {
                running.is_waiting = false;
                self.go_on(name, hands);
            }
        }
    }

    /// Sends all notes that wait.
    pub(super) fn send_notes(&mut self, hands: &mut Hands<'_>) {
        self.calls.send_notes(u64::MAX, &self.places, hands);
    }

    /// Gives a caller the replies to its calls, and sends those that it makes. Returns whether there were any.
    pub(super) fn serve(&mut self, caller: &mut impl Caller, hands: &mut Hands<'_>) -> bool {
        let returned = std::mem::take(&mut self.returned);
        let (layout, now, is_busy) = (Arc::clone(&self.layout), self.now(), !returned.is_empty());
        let mut outgoing: Vec<Outgoing> = Vec::new();
        for (number, came) in returned {
            outgoing.extend(caller.take(number, came, now));
        }
        outgoing.extend(caller.progress(&layout, now));
        let is_busy = is_busy || !outgoing.is_empty();
        for Outgoing { number, to, key, frame, body } in outgoing {
            let Some(at) = self.places.of(to) else {
                self.returned.push((number, None));
                continue;
            };
            let message = Message::new(&frame, body);
            let sent = Sent { parent: Parent::Caller(number), to, round: None, wishes: false };
            self.calls.send(&key, message, at, sent, hands);
        }
        is_busy
    }

    /// Returns how long a caller has nothing to do; None if it has, or waits for a reply.
    pub(super) fn rest_of(&self, caller: &impl Caller) -> Option<Duration> {
        caller.rests_until().map(|until| Duration::from_nanos(until.saturating_sub(self.now())))
    }

    /// Returns how long an operation may take while servers fail.
    pub(super) fn patience(&self) -> Duration {
        self.cluster.give_up_after
    }

    /// Ends an operation for its caller.
    fn finish(&self, common: &mut Common, name: Name, end: End, source: Source) {
        let Some(op) = common.ops.get(name) else { return };
        let (operation, after) = (op.operation, self.cluster.give_up_after);
        let answer = match end {
            End::Value(found) => Answer::Value(found.map(|found| value(found, source))),
            End::Number(number) => Answer::Number(Some(number)),
            End::Done(verdict) => match done(operation, verdict) {
                Ok(answer) => answer,
                Err(said) => {
                    return self.fail(common, name, |about| Error::Refused { about, said: said.to_owned() });
                }
            },
            End::TooFew => {
                let servers = self.layout.live();
                return self.fail(common, name, |about| Error::TooFew { about, servers });
            }
            End::Lost { found, needed } => {
                return self.fail(common, name, |about| Error::Lost { about, found, needed });
            }
            End::Damaged => {
                const WHAT: &str = "a value whose sum is another";
                return self.fail(common, name, |about| Error::Nonsense { about, what: WHAT });
            }
            End::Refused(said) => return self.fail(common, name, |about| Error::Refused { about, said }),
            End::NotServed(why) => {
                let why = why.to_string();
                return self.fail(common, name, |about| Error::NotServed { about, after, why });
            }
            End::Unknown(why) => {
                let why = why.to_string();
                return self.fail(common, name, |about| Error::OutcomeUnknown { about, why });
            }
        };
        common.end(name, Ok(answer));
    }

    fn fail(&self, common: &mut Common, name: Name, error: impl FnOnce(About) -> Error) {
        if let Some(about) = common.ops.about(name, &format!("cluster {}", self.cluster.name)) {
            common.end(name, Err(error(about)));
        }
    }
}

/// Takes the data of an operation, to be shared by its calls. Much data is copied to where servers can read it, unless it is there.
fn shared(name: Name, common: &mut Common) -> Arc<Data> {
    let Some(op) = common.ops.get_mut(name) else { return Arc::default() };
    if let Data::Vec(bytes) = &op.data
        && bytes.len() > SHARED_FROM
        && let Some(memory) = common.fabrics.memory_if_any()
        && let Ok(mut sending) = memory.sending(bytes.len())
    {
        sending.bytes_mut().copy_from_slice(bytes);
        return Arc::new(Data::Buffer(Buffer(sending)));
    }
    Arc::new(std::mem::take(&mut op.data))
}

/// Returns the work of an operation, or why it is not possible on a key with copies.
fn work(operation: Asked, arguments: &Arguments) -> Result<Work, &'static str> {
    let &Arguments { version, number: by, .. } = arguments;
    Ok(match operation {
        // The end of a value is changed by a revision, which reads first.
        Asked::Get | Asked::Touch | Asked::Gat => Work::Read,
        Asked::Set => Work::Put(Condition::Always),
        Asked::Add => Work::Put(Condition::Absent),
        Asked::Replace => Work::Put(Condition::Present),
        Asked::Cas => Work::Put(Condition::Version(Version(version))),
        Asked::Delete => Work::Delete,
        Asked::Append => Work::Compute(Computation::Append),
        Asked::Prepend => Work::Compute(Computation::Prepend),
        Asked::Incr => Work::Compute(Computation::Increment { by, initial: None }),
        Asked::Decr => Work::Compute(Computation::Decrement { by, initial: None }),
        _ => return Err("it is of no key with copies"),
    })
}

/// Returns the answer to an operation whose write ended so, or memcached's words for an error.
fn done(operation: Asked, verdict: Verdict) -> Result<Answer, &'static str> {
    if let Verdict::Declined(refusal) = verdict
        && let Some(said) = refused(refusal)
    {
        return Err(said);
    }
    Ok(match (operation, verdict) {
        (Asked::Delete | Asked::Touch, verdict) => Answer::Yes(matches!(verdict, Verdict::Stored(_))),
        (Asked::Incr | Asked::Decr, _) => Answer::Number(None),
        (_, Verdict::Stored(version)) => Answer::Stored(Stored::Yes(version.0)),
        (_, Verdict::Declined(Refusal::Exists)) => Answer::Stored(Stored::Exists),
        (Asked::Cas, _) => Answer::Stored(Stored::NotFound),
        _ => Answer::Stored(Stored::NotStored),
    })
}

fn value(found: Found, source: Source) -> Value {
    let Found { version, attributes, bytes } = found;
    let length = bytes.len();
    Value::new(Bytes::Heap(bytes), 0, length, (attributes.flags, version.0), source)
}

/// Returns a random number.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let why = || "number client: the system has no random numbers: see that getrandom works".to_owned();
    if got.is_ok_and(|got| got == bytes.len()) {
        Ok(u64::from_le_bytes(bytes))
    } else {
        Err(Error::Configuration { why: why() })
    }
}
