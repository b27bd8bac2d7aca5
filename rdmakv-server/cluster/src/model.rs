//! A cluster in one value: servers, clients, agents and the messages between them, all of the code that ships.
//!
//! [`World::actions`] lists what may happen next, and [`World::step`] lets it happen. `model_tests.rs` explores all of it for small
//! clusters, and walks at random through larger ones.
//!
//! Time is left out. A right is in force or over, and may end as soon as a later epoch exists. A fence runs while an earlier primary's
//! right is in force; `rights_tests.rs` shows that real fences do not end earlier. A paused server is one to which nothing happens. A
//! message that is lost is one that never arrives.
//!
//! **Linearizable.** Versions order the writes of a key. After each step, each server that may answer is read. No read may return a version
//! below one that was read or acknowledged before. The version of a write is above all that were read before it began. Each version belongs
//! to one operation, and each operation has at most one. Registers with these properties are linearizable in the order of the versions.
//!
//! Reads by tags take several steps, one for each fragment. A client learns all servers' tags, and reads by them later and at different
//! times. Such a read returns no version below one that was read or acknowledged before it began.

use std::collections::BTreeMap;

use crate::config::{Policy, State};
use crate::faults::is_planted;
use crate::helper::{Calls, Target};
use crate::ids::{Epoch, ServerId, Version, WriteId};
use crate::member::{CallId, Chunks, Member, Replica, Role, Standing};
use crate::messages::{Answer, Call, Chunk, Condition, Form, Piece, Refusal, Reply, Request, Stored, Verdict};
use crate::reader::{ChunkState, Reader, Reading, Seen};
use crate::repair::Repair;
use crate::writer::{Bytes, Outcome, Writer};

const CLUSTER: u128 = 7;

/// How large a world is, and how much may happen in it.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) servers: u8,
    /// Servers that join, in the first epoch.
    pub(crate) joining: u8,
    pub(crate) policy: Policy,
    pub(crate) keys: u8,
    pub(crate) clients: u8,
    /// Operations of each client.
    pub(crate) operations: u8,
    /// The second operation of a client deletes, and so on.
    pub(crate) deletes: bool,
    /// Copies are staged. Fragments always are.
    pub(crate) staged: bool,
    pub(crate) epochs: u32,
    /// Lost answers of each client.
    pub(crate) timeouts: u8,
    /// Messages that arrive twice.
    pub(crate) duplicates: u8,
    /// Servers that may be lost before all is repaired.
    pub(crate) losses: u8,
    /// Servers return, and agents repair.
    pub(crate) repairs: bool,
    /// Flushes of the cluster.
    pub(crate) flushes: u8,
    /// Fragments are read by tags.
    pub(crate) tags: bool,
}

/// An epoch's servers, by number: their run and state; None for one that is not in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Setup {
    servers: Vec<Option<(u64, State)>>,
    is_whole: bool,
    /// The epoch of the last flush; 0 before the first.
    flushed: Epoch,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    run: u64,
    is_alive: bool,
    has_right: bool,
    epoch: Epoch,
    /// The epoch that it adopted before.
    previous: Epoch,
    /// It granted tags in its epoch, by key.
    has_granted: Vec<bool>,
    /// Chunks that it took and did not free.
    chunks: Chunked,
    member: Member,
    replicas: Vec<Replica>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct User {
    epoch: Epoch,
    writing: Option<(u8, Writer)>,
    /// The version of the key when the operation began.
    floor: Version,
    operations: u8,
    sequence: u64,
    timeouts: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Agent {
    epoch: Epoch,
    repairs: Vec<Option<Repair>>,
    /// Servers that do not have the fates yet.
    fates: Option<Vec<ServerId>>,
    is_done: bool,
    /// A tombstone that is forgotten: epoch, version, and the members that have it yet.
    forgetting: Option<(Epoch, Version, Vec<ServerId>)>,
}

/// A sender of calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Peer {
    Client(u8),
    Repair(u8),
    Fates(u8),
    Forget(u8),
}

/// A message on its way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Packet {
    Ask { from: Peer, to: ServerId, run: u64, key: u8, request: Request },
    Tell { from: ServerId, to: Peer, key: u8, reply: Reply },
}

/// An event that may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Action {
    Begin(u8, u8),
    Deliver(usize),
    Duplicate(usize),
    Lose(u8),
    Learn(u8),
    Overdue(u8, u8),
    Crash(u8),
    Remove(u8),
    Adopt(u8),
    Expire(u8),
    Return(u8),
    Drain(u8),
    Repair(u8),
    Retry(u8),
    SendFates(u8),
    Whole,
    Forget(u8, u8),
    Flush,
    /// A client learns the tags of a key.
    LearnTags(u8),
    /// It reads a fragment by that of a server.
    ReadByTag(u8, u8),
}

/// A client's tags of a key, and its read by them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tagged {
    primary: ServerId,
    /// The run of each server that gave a tag, and the value whose piece that is for.
    tags: Vec<(ServerId, u64, Version, Piece)>,
    /// The read that is under way, and the version of the key when it began.
    read: Option<(Reader, Version)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    setups: Vec<Setup>,
    nodes: Vec<Node>,
    users: Vec<User>,
    agents: Vec<Agent>,
    network: Vec<Packet>,
    /// The last version of each key that was read or acknowledged, and whether it is a tombstone.
    seen: Vec<(Version, bool)>,
    /// The operation of each published version.
    published: Vec<BTreeMap<Version, u64>>,
    lost: u8,
    duplicates: u8,
    flushes: u8,
    runs: u64,
    /// The tags of each key; None where its client has none.
    tagged: Vec<Option<Tagged>>,
    /// Reads by tags that made a value.
    read_by_tag: u64,
    violation: Option<&'static str>,
}

/// The chunks of a server: how many it keeps. A computation is not modelled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Chunked(usize);

impl Chunks for Chunked {
    fn end_early(&mut self, _: Piece) {}

    fn compute(&mut self, _: Option<&Stored>, _: u64) -> Result<Piece, Refusal> {
        Err(Refusal::Invalid)
    }

    fn publish(&mut self, _: Piece) {}

    fn free(&mut self, _: Piece) {
        self.0 = self.0.checked_sub(1).expect("a chunk is freed once");
    }
}

/// The operation whose bytes a chunk has.
fn operation(chunk: Chunk) -> u64 {
    chunk.0 / 64
}

impl Setup {
    fn clockwise(&self, key: u8, size: usize, is_in: impl Fn(State) -> bool) -> Vec<ServerId> {
        let count = self.servers.len();
        let ring = (0..count).map(|at| (at + usize::from(key)) % count);
        let serving = ring.filter(|&at| self.servers[at].is_some_and(|(_, state)| is_in(state)));
        serving.take(size).map(|at| ServerId(at as u8)).collect()
    }

    /// The members of a key, the primary first.
    fn members(&self, key: u8, policy: Policy) -> Vec<ServerId> {
        let size = policy.group_size();
        let mut members = self.clockwise(key, size, |state| state != State::Joining);
        let next = self.clockwise(key, size, |state| state != State::Draining);
        let extra: Vec<ServerId> = next.into_iter().filter(|server| !members.contains(server)).collect();
        members.extend(extra);
        members
    }

    fn live(&self) -> usize {
        self.servers.iter().flatten().filter(|(_, state)| *state != State::Joining).count()
    }

    /// Returns whether a server stays that has the keys, if this one goes.
    fn can_spare(&self, server: usize) -> bool {
        let others = self.servers.iter().enumerate().filter(|(other, _)| *other != server);
        others.flat_map(|(_, other)| other).any(|(_, state)| *state != State::Joining)
    }

    fn has(&self, server: usize, run: u64) -> bool {
        self.servers[server].is_some_and(|(other, _)| other == run)
    }
}

impl World {
    pub(crate) fn new(shape: &Shape) -> Self {
        let state = |server| if server < shape.joining { State::Joining } else { State::Up };
        let servers = (0..shape.servers).map(|server| Some((u64::from(server), state(server)))).collect();
        let keys = usize::from(shape.keys);
        let node = |server: u8| Node {
            run: u64::from(server),
            is_alive: true,
            has_right: true,
            epoch: Epoch(1),
            previous: Epoch(1),
            has_granted: vec![false; keys],
            chunks: Chunked(0),
            member: Member::new(CLUSTER),
            replicas: vec![Replica::default(); keys],
        };
        let user =
            User { epoch: Epoch(1), writing: None, floor: Version::ABSENT, operations: 0, sequence: 0, timeouts: 0 };
        let agent = Agent { epoch: Epoch(0), repairs: vec![None; keys], fates: None, is_done: false, forgetting: None };
        Self {
            setups: vec![Setup { servers, is_whole: shape.joining == 0, flushed: Epoch(0) }],
            nodes: (0..shape.servers).map(node).collect(),
            users: vec![user; usize::from(shape.clients)],
            agents: vec![agent; usize::from(shape.servers)],
            network: Vec::new(),
            seen: vec![(Version::ABSENT, true); keys],
            published: vec![BTreeMap::new(); keys],
            lost: 0,
            duplicates: 0,
            flushes: 0,
            runs: u64::from(shape.servers),
            tagged: vec![None; keys],
            read_by_tag: 0,
            violation: None,
        }
    }

    /// Returns the messages on their way.
    pub(crate) fn network(&self) -> &[Packet] {
        &self.network
    }

    /// Returns an action as a person reads it.
    pub(crate) fn describe(&self, action: Action) -> String {
        match action {
            Action::Deliver(at) | Action::Duplicate(at) => format!("{action:?} {:?}", self.network[at]),
            _ => format!("{action:?}"),
        }
    }

    /// Returns the rule that was broken.
    pub(crate) fn violation(&self) -> Option<&'static str> {
        self.violation
    }

    /// Returns whether all operations ended that the shape has.
    pub(crate) fn is_finished(&self, shape: &Shape) -> bool {
        self.users.iter().all(|user| user.operations == shape.operations && user.writing.is_none())
    }

    /// Returns whether no operation is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.users.iter().all(|user| user.writing.is_none())
    }

    /// Returns how many writes were published.
    pub(crate) fn writes(&self) -> usize {
        self.published.iter().map(BTreeMap::len).sum()
    }

    /// Returns how many reads by tags made a value.
    pub(crate) fn reads_by_tag(&self) -> u64 {
        self.read_by_tag
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.setups.len() as u32)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.latest().is_whole
    }

    fn latest(&self) -> &Setup {
        &self.setups[self.setups.len() - 1]
    }

    fn setup(&self, epoch: Epoch) -> &Setup {
        &self.setups[epoch.0 as usize - 1]
    }

    fn role(&self, shape: &Shape, server: usize, run: u64, epoch: Epoch, key: u8) -> Role {
        if epoch.0 == 0 || !self.setup(epoch).has(server, run) {
            return Role::Outside;
        }
        match self.setup(epoch).members(key, shape.policy).iter().position(|member| usize::from(member.0) == server) {
            Some(0) => Role::Primary,
            Some(_) => Role::Backup,
            None => Role::Outside,
        }
    }

    fn standing(&self, shape: &Shape, server: usize, key: u8) -> Standing {
        let node = &self.nodes[server];
        let role = self.role(shape, server, node.run, node.epoch, key);
        let setup = (node.epoch.0 > 0).then(|| self.setup(node.epoch));
        let (is_whole, flushed) = setup.map_or((false, Epoch(0)), |setup| (setup.is_whole, setup.flushed));
        let is_fenced = role == Role::Primary && self.is_fenced(shape, server, key);
        let has_right = node.has_right && node.is_alive;
        Standing { epoch: node.epoch, role, has_right, is_fenced, is_whole, flushed }
    }

    /// Returns whether another server may still answer as the primary of an earlier epoch.
    fn is_fenced(&self, shape: &Shape, server: usize, key: u8) -> bool {
        let node = &self.nodes[server];
        let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != server);
        others.any(|(at, other)| {
            let was_primary = |epoch| self.role(shape, at, other.run, epoch, key) == Role::Primary;
            let is_overlooked =
                is_planted("no-fence") || is_planted("no-fence-after-skip") && !was_primary(node.previous);
            let may_answer = other.is_alive && other.has_right && other.epoch < node.epoch;
            may_answer && was_primary(other.epoch) && !is_overlooked
        })
    }

    fn target(&self, shape: &Shape, epoch: Epoch, key: u8) -> Target {
        Target { cluster: CLUSTER, epoch, members: self.setup(epoch).members(key, shape.policy) }
    }

    /// Returns all that may happen.
    pub(crate) fn actions(&self, shape: &Shape) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.violation.is_some() {
            return actions;
        }
        let (latest, has_epochs) = (self.epoch(), self.epoch().0 < shape.epochs);
        for at in 0..self.network.len() {
            if (at == 0 || self.network[at] != self.network[at - 1]) && self.is_deliverable(shape, at) {
                actions.push(Action::Deliver(at));
                if self.duplicates < shape.duplicates {
                    actions.push(Action::Duplicate(at));
                }
            }
        }
        for (user, at) in self.users.iter().zip(0..) {
            if user.writing.is_none() && user.operations < shape.operations {
                actions.extend((0..shape.keys).map(|key| Action::Begin(at, key)));
            }
            if user.writing.is_some() && user.timeouts < shape.timeouts {
                actions.push(Action::Lose(at));
            }
            if user.epoch < latest {
                actions.push(Action::Learn(at));
            }
        }
        for (node, at) in self.nodes.iter().zip(0..) {
            let server = usize::from(at);
            let state = self.latest().servers[server];
            let is_in = self.latest().has(server, node.run);
            let may_lose = self.lost < shape.losses;
            if node.is_alive && is_in && may_lose && self.latest().can_spare(server) {
                actions.push(Action::Crash(at));
            }
            if is_in && has_epochs && (may_lose || !node.is_alive) && self.latest().can_spare(server) {
                actions.push(Action::Remove(at));
            }
            if is_in && node.is_alive && has_epochs && shape.repairs && self.latest().can_spare(server) {
                let drains = self.latest().servers.iter().flatten().any(|(_, state)| *state == State::Draining);
                if !drains && state.is_some_and(|(_, state)| state == State::Up) {
                    actions.push(Action::Drain(at));
                }
            }
            if node.is_alive && node.epoch < latest && is_in {
                actions.push(Action::Adopt(at));
            }
            if node.is_alive && node.has_right && node.epoch < latest {
                actions.push(Action::Expire(at));
            }
            if !is_in && state.is_none() && has_epochs && shape.repairs {
                actions.push(Action::Return(at));
            }
            for (replica, key) in node.replicas.iter().zip(0..) {
                if node.is_alive && replica.queue_len() > 0 {
                    actions.push(Action::Overdue(at, key));
                }
                let is_tombstone = replica.current().is_some_and(|current| !current.is_value());
                if shape.deletes && is_tombstone && self.standing(shape, server, key).is_whole {
                    let is_primary = self.standing(shape, server, key).role == Role::Primary;
                    if is_primary
                        && node.epoch == latest
                        && self.agents[server].forgetting.as_ref().is_none_or(|(epoch, ..)| *epoch < latest)
                    {
                        actions.push(Action::Forget(at, key));
                    }
                }
            }
            let agent = &self.agents[server];
            if shape.repairs && is_in && node.is_alive && node.epoch == latest && !self.latest().is_whole {
                if agent.epoch < latest {
                    actions.push(Action::Repair(at));
                } else if !agent.is_done {
                    let all = agent.repairs.iter().flatten().all(Repair::is_done);
                    actions.push(if all && agent.fates.is_none() { Action::SendFates(at) } else { Action::Retry(at) });
                }
            }
        }
        if shape.repairs && has_epochs && self.may_be_whole(latest) {
            actions.push(Action::Whole);
        }
        if has_epochs && self.flushes < shape.flushes {
            actions.push(Action::Flush);
        }
        for (tagged, key) in self.tagged.iter().zip(0..).filter(|_| shape.tags) {
            actions.push(Action::LearnTags(key));
            let tags = tagged.iter().flat_map(|tagged| &tagged.tags);
            actions.extend(tags.map(|&(server, ..)| Action::ReadByTag(key, server.0)));
        }
        actions
    }

    fn may_be_whole(&self, latest: Epoch) -> bool {
        let servers = self.latest().servers.iter().enumerate();
        let mut present = servers.filter_map(|(at, server)| server.map(|(run, _)| (at, run)));
        let is_done = |(at, run): (usize, u64)| {
            let (node, agent) = (&self.nodes[at], &self.agents[at]);
            node.run == run && node.is_alive && agent.epoch == latest && agent.is_done
        };
        !self.latest().is_whole && present.all(is_done)
    }

    /// Returns whether the message would be taken. Others may as well never arrive.
    fn is_deliverable(&self, shape: &Shape, at: usize) -> bool {
        match &self.network[at] {
            Packet::Tell { .. } => true,
            Packet::Ask { to, run, key, request, .. } => {
                let (node, standing) = (&self.nodes[usize::from(to.0)], self.standing(shape, usize::from(to.0), *key));
                node.is_alive && node.run == *run && standing.has_right && !standing.is_fenced && {
                    request.epoch == standing.epoch || self.takes_other_epochs(request)
                }
            }
        }
    }

    fn takes_other_epochs(&self, request: &Request) -> bool {
        is_planted("other-epoch") || is_planted("late-repair") && matches!(request.call, Call::Repair { .. })
    }

    /// Lets something happen.
    pub(crate) fn step(&mut self, shape: &Shape, action: Action) {
        match action {
            Action::Begin(client, key) => self.begin(shape, client, key),
            Action::Deliver(at) => {
                let packet = self.network.remove(at);
                self.deliver(shape, packet);
            }
            Action::Duplicate(at) => {
                self.duplicates += 1;
                let packet = self.network[at].clone();
                self.deliver(shape, packet);
            }
            Action::Lose(client) => {
                let user = &mut self.users[usize::from(client)];
                user.timeouts += 1;
                if let Some((key, mut writer)) = user.writing.take() {
                    let calls = writer.lost();
                    self.goes_on(shape, client, key, writer, calls);
                }
            }
            Action::Learn(client) => {
                let latest = self.epoch();
                let user = &mut self.users[usize::from(client)];
                user.epoch = latest;
                if let Some((key, mut writer)) = user.writing.take() {
                    let calls = writer.adopt(self.target(shape, latest, key));
                    self.goes_on(shape, client, key, writer, calls);
                }
            }
            Action::Overdue(server, key) => {
                let standing = self.standing(shape, usize::from(server), key);
                let node = &mut self.nodes[usize::from(server)];
                let replica = &mut node.replicas[usize::from(key)];
                let replies = node.member.overdue(replica, &standing, u64::MAX, &mut node.chunks);
                replica.make_late();
                self.reply(ServerId(server), key, replies);
            }
            Action::Crash(server) => {
                self.nodes[usize::from(server)].is_alive = false;
                self.lost += 1;
            }
            Action::Remove(server) => {
                self.lost += u8::from(self.nodes[usize::from(server)].is_alive);
                self.change(|setup| setup.servers[usize::from(server)] = None);
            }
            Action::Drain(server) => self.change(|setup| {
                let state = setup.servers[usize::from(server)].as_mut();
                state.into_iter().for_each(|(_, state)| *state = State::Draining);
            }),
            Action::Return(server) => self.returns(usize::from(server)),
            Action::Adopt(server) => self.adopt(shape, usize::from(server)),
            Action::Expire(server) => self.nodes[usize::from(server)].has_right = false,
            Action::Repair(server) => self.begin_repair(shape, server),
            Action::Retry(server) => {
                for key in 0..shape.keys {
                    let repair = &mut self.agents[usize::from(server)].repairs[usize::from(key)];
                    let calls = repair.as_mut().map(Repair::lost).unwrap_or_default();
                    self.send(Peer::Repair(server), key, calls);
                }
                if self.agents[usize::from(server)].fates.is_some() {
                    self.send_fates(server);
                }
            }
            Action::SendFates(server) => self.send_fates(server),
            Action::Whole => {
                let dead = |(at, server): (usize, &Option<(u64, State)>)| server.is_some() && !self.nodes[at].is_alive;
                self.lost = self.latest().servers.iter().enumerate().filter(|&server| dead(server)).count() as u8;
                self.change(|setup| {
                    let others_stay = setup.servers.iter().flatten().any(|(_, state)| *state != State::Draining);
                    setup.servers.iter_mut().for_each(|server| {
                        server.take_if(|(_, state)| others_stay && *state == State::Draining);
                        server.as_mut().into_iter().for_each(|(_, state)| *state = State::Up);
                    });
                    setup.is_whole = true;
                });
            }
            Action::Forget(server, key) => self.forget(shape, server, key),
            Action::Flush => {
                self.flushes += 1;
                let epoch = Epoch(self.epoch().0 + 1);
                self.change(|setup| setup.flushed = epoch);
            }
            Action::LearnTags(key) => self.learn_tags(shape, key),
            Action::ReadByTag(key, server) => self.read_by_tag(shape, key, server),
        }
        self.prune();
        self.observe(shape);
        self.network.sort_unstable();
    }

    fn change(&mut self, change: impl FnOnce(&mut Setup)) {
        let mut setup = self.latest().clone();
        setup.is_whole = false;
        change(&mut setup);
        self.setups.push(setup);
    }

    fn begin(&mut self, shape: &Shape, client: u8, key: u8) {
        let user = &mut self.users[usize::from(client)];
        user.operations += 1;
        user.floor = self.seen[usize::from(key)].0;
        self.attempt(shape, client, key);
    }

    /// Begins a write, or begins it again under a new number.
    fn attempt(&mut self, shape: &Shape, client: u8, key: u8) {
        let user = &mut self.users[usize::from(client)];
        user.sequence += 1;
        let (epoch, sequence) = (user.epoch, user.sequence);
        let operation = u64::from(client) * 256 + u64::from(user.operations);
        let deletes = shape.deletes && user.operations.is_multiple_of(2);
        let target = self.target(shape, epoch, key);
        let piece = |index: u64, form| Piece { chunk: Chunk(operation * 64 + index), form, length: 1, sum: 0 };
        let live = target.members.len().min(self.setup(epoch).live());
        let bytes = match shape.policy.shrunk_to(live).unwrap_or_default() {
            _ if deletes => Bytes::Carried(piece(0, Form::Tombstone)),
            Policy::Code { data, .. } => {
                let fragment = |index: usize| piece(index as u64, Form::Fragment { k: data, index: index as u8 });
                Bytes::Staged((0..target.members.len()).map(fragment).collect())
            }
            _ if shape.staged => Bytes::Staged(vec![piece(0, Form::Copy); target.members.len()]),
            _ => Bytes::Carried(piece(0, Form::Copy)),
        };
        let id = WriteId { client: u64::from(client), sequence };
        let (writer, calls) = Writer::begin(target, (id, sequence), Condition::Always, bytes);
        self.goes_on(shape, client, key, writer, calls);
    }

    fn goes_on(&mut self, shape: &Shape, client: u8, key: u8, writer: Writer, calls: Calls) {
        let outcome = writer.outcome();
        self.send(Peer::Client(client), key, calls);
        let user = &mut self.users[usize::from(client)];
        match outcome {
            None => user.writing = Some((key, writer)),
            Some(Outcome::Again) => self.attempt(shape, client, key),
            Some(Outcome::Known(Verdict::Stored(version))) => {
                let floor = user.floor;
                if version <= floor {
                    self.violation = Some("a write has no place after what was read before it");
                }
                let own = u64::from(client) * 256 + u64::from(user.operations);
                let is_flushed = version.epoch() < self.latest().flushed;
                let published = self.published[usize::from(key)].get(&version).copied();
                // A write that was ordered and not published is done when a flush takes it away.
                let Some(operation) = published.or(is_flushed.then_some(own)) else {
                    self.violation = Some("a write was acknowledged and not published");
                    return;
                };
                if published.is_none() {
                    self.publish(key, version, own);
                }
                let user = &self.users[usize::from(client)];
                if operation != own {
                    self.violation = Some("a write was acknowledged for another");
                }
                let seen = &mut self.seen[usize::from(key)];
                if version > seen.0 {
                    *seen = (version, shape.deletes && user.operations.is_multiple_of(2));
                }
            }
            Some(Outcome::Known(Verdict::Declined(_) | Verdict::Flushed) | Outcome::Unknown) => {}
        }
    }

    fn send(&mut self, from: Peer, key: u8, calls: Calls) {
        for (to, request) in calls {
            let Some((run, _)) = self.setup(request.epoch).servers[usize::from(to.0)] else { continue };
            self.network.push(Packet::Ask { from, to, run, key, request });
        }
    }

    fn deliver(&mut self, shape: &Shape, packet: Packet) {
        match packet {
            Packet::Ask { from, to, key, request, .. } => {
                let server = usize::from(to.0);
                let standing = self.standing(shape, server, key);
                let publishes = matches!(request.call, Call::Publish { .. });
                let node = &mut self.nodes[server];
                node.chunks.0 += usize::from(request.call.piece().is_some());
                let replica = &mut node.replicas[usize::from(key)];
                let before = replica.current().map(|current| current.version);
                let replies = node.member.take(replica, &standing, (call_id(from), request), 0, &mut node.chunks);
                let now = replica.current().cloned();
                self.reply(to, key, replies);
                if let Some(now) = now.filter(|now| publishes && before != Some(now.version)) {
                    self.publish(key, now.version, operation(now.piece.chunk));
                }
            }
            Packet::Tell { from, to, key, reply } => match to {
                Peer::Client(client) => {
                    let Some((key, mut writer)) = self.users[usize::from(client)].writing.take() else { return };
                    let calls = writer.take(from, &reply);
                    self.goes_on(shape, client, key, writer, calls);
                }
                Peer::Repair(server) => {
                    let repair = &mut self.agents[usize::from(server)].repairs[usize::from(key)];
                    let calls = repair.as_mut().map(|repair| repair.take(from, &reply)).unwrap_or_default();
                    self.send(to, key, calls);
                    self.fetch(server, key);
                }
                Peer::Fates(server) => {
                    let agent = &mut self.agents[usize::from(server)];
                    if let Some(waiting) = agent.fates.as_mut().filter(|_| reply.epoch == agent.epoch) {
                        waiting.retain(|&server| server != from);
                        agent.is_done = waiting.is_empty();
                    }
                }
                Peer::Forget(server) => self.forgot(shape, server, key, from, reply.epoch),
            },
        }
    }

    fn publish(&mut self, key: u8, version: Version, operation: u64) {
        let published = &mut self.published[usize::from(key)];
        let ran = published.iter().any(|(&other, &of)| of == operation && other != version);
        if ran {
            self.violation = Some("a write ran twice");
        }
        if published.insert(version, operation).is_some_and(|before| before != operation) {
            self.violation = Some("two writes have one version");
        }
    }

    fn reply(&mut self, from: ServerId, key: u8, replies: Vec<(CallId, Reply)>) {
        for (call_id, reply) in replies {
            let to = peer(call_id);
            // A caller only tries again after these, which it may do without them. The answer to a note is not awaited.
            let is_needed = match reply.answer {
                Answer::OtherEpoch | Answer::NotServing | Answer::Fenced => false,
                Answer::Taken => !matches!(to, Peer::Client(_)),
                _ => true,
            };
            if is_needed {
                self.network.push(Packet::Tell { from, to, key, reply });
            }
        }
    }

    fn adopt(&mut self, shape: &Shape, server: usize) {
        let latest = self.epoch();
        let (run, from) = (self.nodes[server].run, self.nodes[server].epoch);
        for key in 0..shape.keys {
            let role = |epoch: u32| self.role(shape, server, run, Epoch(epoch), key);
            let before = role(from.0);
            let stayed_primary = (from.0..=latest.0).all(|epoch| role(epoch) == Role::Primary);
            let keeps = is_planted("return-not-emptied");
            let was_outside = !keeps && (from.0..=latest.0).any(|epoch| role(epoch) == Role::Outside);
            let standing = Standing {
                epoch: latest,
                role: role(latest.0),
                has_right: true,
                is_fenced: false,
                is_whole: self.latest().is_whole,
                flushed: self.latest().flushed,
            };
            let node = &mut self.nodes[server];
            let replica = &mut node.replicas[usize::from(key)];
            let gaps = (stayed_primary, was_outside);
            let replies = node.member.adopt(replica, before, &standing, gaps, &mut node.chunks);
            if !is_planted("not-covered") {
                node.has_granted[usize::from(key)] = false;
            }
            self.reply(ServerId(server as u8), key, replies);
        }
        let node = &mut self.nodes[server];
        (node.previous, node.epoch, node.has_right) = (from, latest, true);
    }

    fn returns(&mut self, server: usize) {
        self.runs += 1;
        let run = self.runs;
        self.change(|setup| setup.servers[server] = Some((run, State::Joining)));
        let node = &mut self.nodes[server];
        if !is_planted("return-not-emptied") {
            node.member = Member::new(CLUSTER);
            node.replicas.iter_mut().for_each(|replica| *replica = Replica::default());
            node.chunks = Chunked(0);
        }
        (node.run, node.is_alive, node.has_right) = (run, true, false);
        (node.epoch, node.previous) = (Epoch(0), Epoch(0));
        node.has_granted.fill(false);
        let keys = node.replicas.len();
        self.agents[server] =
            Agent { epoch: Epoch(0), repairs: vec![None; keys], fates: None, is_done: false, forgetting: None };
    }

    fn begin_repair(&mut self, shape: &Shape, server: u8) {
        let latest = self.epoch();
        let agent = &mut self.agents[usize::from(server)];
        *agent = Agent {
            epoch: latest,
            repairs: vec![None; usize::from(shape.keys)],
            fates: None,
            is_done: false,
            forgetting: None,
        };
        for key in 0..shape.keys {
            let target = self.target(shape, latest, key);
            if target.is_primary(ServerId(server)) {
                let (repair, calls) = Repair::begin(target, 0);
                self.agents[usize::from(server)].repairs[usize::from(key)] = Some(repair);
                self.send(Peer::Repair(server), key, calls);
            }
        }
    }

    /// Gives an agent the pieces that it wants, if enough are there.
    fn fetch(&mut self, server: u8, key: u8) {
        let Some(repair) = &self.agents[usize::from(server)].repairs[usize::from(key)] else { return };
        let Some((value, lacking)) = repair.wants() else { return };
        let is_there = self.indices(key, value.version).len() >= needed(value);
        let piece = |&(_, form): &(ServerId, Form)| {
            let index = if let Form::Fragment { index, .. } = form { u64::from(index) } else { 0 };
            Piece { chunk: Chunk(operation(value.piece.chunk) * 64 + index), form, ..value.piece }
        };
        let pieces: Vec<Piece> = lacking.iter().map(piece).collect();
        let repair = self.agents[usize::from(server)].repairs[usize::from(key)].as_mut();
        let calls = repair.map(|repair| if is_there { repair.fetched(&pieces) } else { repair.lost() });
        self.send(Peer::Repair(server), key, calls.unwrap_or_default());
    }

    fn send_fates(&mut self, server: u8) {
        let latest = self.epoch();
        let fates = self.nodes[usize::from(server)].member.fates().after(None);
        let present = self.latest().servers.iter().enumerate().filter(|(_, other)| other.is_some());
        let others = present.map(|(at, _)| ServerId(at as u8)).filter(|other| other.0 != server).collect::<Vec<_>>();
        let agent = &mut self.agents[usize::from(server)];
        agent.is_done = is_planted("repair-without-fates") || others.is_empty();
        agent.fates = Some(others.clone());
        if !agent.is_done {
            let request = Request { cluster: CLUSTER, epoch: latest, call: Call::Fates(fates) };
            let calls = others.into_iter().map(|other| (other, request.clone())).collect();
            self.send(Peer::Fates(server), 0, calls);
        }
    }

    /// Begins to forget a tombstone: all others first.
    fn forget(&mut self, shape: &Shape, server: u8, key: u8) {
        let latest = self.epoch();
        let target = self.target(shape, latest, key);
        let current = self.nodes[usize::from(server)].replicas[usize::from(key)].current();
        let version = current.map_or(Version::ABSENT, |current| current.version);
        self.agents[usize::from(server)].forgetting = Some((latest, version, target.others().to_vec()));
        let calls = target.each(target.others(), &Call::Forget { version });
        self.send(Peer::Forget(server), key, calls);
    }

    /// Lets the primary forget a tombstone when all others have.
    fn forgot(&mut self, shape: &Shape, server: u8, key: u8, from: ServerId, epoch: Epoch) {
        let latest = self.epoch();
        let forgetting = &mut self.agents[usize::from(server)].forgetting;
        let Some((_, version, waiting)) = forgetting.as_mut().filter(|(begun, ..)| *begun == epoch) else { return };
        waiting.retain(|&other| other != from);
        if waiting.is_empty() && from.0 != server {
            let version = *version;
            let calls = self.target(shape, latest, key).primary(Call::Forget { version });
            self.send(Peer::Forget(server), key, calls);
        } else if from.0 == server {
            *forgetting = None;
        }
    }

    /// The indices of a version's pieces on servers that live.
    fn indices(&self, key: u8, version: Version) -> Vec<u8> {
        let alive = self.nodes.iter().filter(|node| node.is_alive);
        let replicas = alive.map(|node| &node.replicas[usize::from(key)]);
        let stored = replicas.flat_map(|replica| [replica.current(), replica.next()]).flatten();
        let index = |stored: &Stored| {
            if let Form::Fragment { index, .. } = stored.piece.form { index } else { 0 }
        };
        let mut indices: Vec<u8> = stored.filter(|stored| stored.version == version).map(index).collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    }

    /// Reads each key at each server that may answer, and counts chunks.
    fn observe(&mut self, shape: &Shape) {
        let kept = |node: &Node| node.replicas.iter().map(|replica| replica.pieces().len()).sum::<usize>();
        if self.nodes.iter().any(|node| node.chunks.0 != kept(node)) {
            self.violation = Some("a chunk is kept that nothing names");
        }
        for key in 0..shape.keys {
            for server in 0..self.nodes.len() {
                self.read(shape, server, key);
            }
        }
    }

    fn read(&mut self, shape: &Shape, server: usize, key: u8) {
        let at = usize::from(key);
        let standing = self.standing(shape, server, key);
        let node = &mut self.nodes[server];
        let replica = &node.replicas[at];
        let may_ask = standing.role == Role::Primary && standing.has_right && !standing.is_fenced;
        node.has_granted[at] |= may_ask;
        // Tags end inside the right, so a right that is in force stands for both.
        let has_tag = is_planted("tag-past-right") && node.is_alive && node.has_granted[at];
        if !(may_ask || has_tag) || replica.is_ambiguous() {
            return;
        }
        let Some(current) = replica.current().cloned() else {
            // The first version of the epoch of a flush is that of no write.
            let flushed = Version::new(standing.flushed, 0);
            if self.seen[at].0 < flushed {
                self.seen[at] = (flushed, true);
            }
            if !self.seen[at].1 {
                self.violation = Some("a read found nothing, after a value was seen");
            }
            return;
        };
        if current.version < self.seen[at].0 {
            self.violation = Some("a read returned an older value");
        }
        if self.published[at].get(&current.version) != Some(&operation(current.piece.chunk)) {
            self.violation = Some("a read returned what was never published");
        }
        if current.is_value() && self.indices(key, current.version).len() < needed(&current) {
            self.violation = Some("too few fragments of a value are left");
        }
        self.seen[at] = (current.version, !current.is_value());
    }

    /// Lets a client ask the members of a key, if its primary answers with a value in fragments.
    fn learn_tags(&mut self, shape: &Shape, key: u8) {
        let at = usize::from(key);
        let primary = (0..self.nodes.len()).find(|&server| {
            let standing = self.standing(shape, server, key);
            self.nodes[server].replicas[at].readable(&standing).is_some_and(|stored| stored.piece.is_fragment())
        });
        let tag = |server: usize| {
            let (node, standing) = (&self.nodes[server], self.standing(shape, server, key));
            let is_primary = Some(server) == primary;
            if !standing.has_right || standing.role == Role::Outside {
                return None;
            }
            let replica = &node.replicas[at];
            let stored = if is_primary { replica.current() } else { replica.newest_fragment() }?;
            Some((ServerId(server as u8), node.run, stored.version, stored.piece))
        };
        self.tagged[at] = primary.map(|primary| Tagged {
            primary: ServerId(primary as u8),
            tags: (0..self.nodes.len()).filter_map(tag).collect(),
            read: None,
        });
    }

    /// Lets a client read a piece by its tag. Tags end inside the right. The bytes of a piece that was freed stay until its tags end.
    fn read_by_tag(&mut self, shape: &Shape, key: u8, server: u8) {
        let (at, id) = (usize::from(key), ServerId(server));
        let Some(mut tagged) = self.tagged[at].take() else { return };
        let Some(&(_, run, version, piece)) = tagged.tags.iter().find(|(other, ..)| *other == id) else { return };
        let (node, standing) = (&self.nodes[usize::from(server)], self.standing(shape, usize::from(server), key));
        let replica = &node.replicas[at];
        let is_current = replica.current().is_some_and(|current| current.version == version);
        let is_next = replica.next().is_some_and(|next| next.version == version);
        let is_uncovered = is_planted("not-covered") && node.has_granted[at];
        let is_shown = replica.readable(&standing).is_some() || is_uncovered;
        let may_read = node.is_alive && node.run == run && node.has_right;
        let state = match () {
            () if is_current && is_shown => ChunkState::Alive,
            () if is_current || is_next => ChunkState::Held,
            () => ChunkState::Dead,
        };
        let primary = tagged.primary;
        let new = || (Reader::new(primary), self.seen[at].0);
        let (mut reader, floor) = tagged.read.take().unwrap_or_else(new);
        match reader.take(id, may_read.then_some(Seen { state, version, piece })) {
            Reading::More => tagged.read = Some((reader, floor)),
            Reading::Value(version, fragments) => {
                self.read_by_tag += 1;
                let published = self.published[at].get(&version).copied();
                if version < floor {
                    self.violation = Some("a read by tags returned an older value");
                }
                if fragments.iter().any(|&(_, chunk)| Some(operation(chunk)) != published) {
                    self.violation = Some("a read by tags mixed values");
                }
                if version > self.seen[at].0 {
                    self.seen[at] = (version, false);
                }
            }
            Reading::Ask | Reading::TakeTurn => return,
        }
        self.tagged[at] = Some(tagged);
    }

    /// Drops messages that would change nothing.
    fn prune(&mut self) {
        let mut network = std::mem::take(&mut self.network);
        network.retain(|packet| match packet {
            Packet::Ask { to, run, request, .. } => {
                let node = &self.nodes[usize::from(to.0)];
                let is_old = request.epoch < node.epoch && !self.takes_other_epochs(request);
                node.is_alive && node.run == *run && !is_old
            }
            Packet::Tell { to: Peer::Client(client), reply, .. } => {
                let writing = self.users[usize::from(*client)].writing.as_ref();
                writing.is_some_and(|(_, writer)| writer.target().epoch == reply.epoch)
            }
            Packet::Tell { to: Peer::Repair(server) | Peer::Fates(server), reply, .. } => {
                self.agents[usize::from(*server)].epoch == reply.epoch
            }
            Packet::Tell { to: Peer::Forget(_), .. } => true,
        });
        self.network = network;
    }
}

/// How many pieces make a value.
fn needed(value: &Stored) -> usize {
    if let Form::Fragment { k, .. } = value.piece.form { usize::from(k) } else { 1 }
}

fn call_id(peer: Peer) -> CallId {
    let (kind, number) = match peer {
        Peer::Client(number) => (0, number),
        Peer::Repair(number) => (1, number),
        Peer::Fates(number) => (2, number),
        Peer::Forget(number) => (3, number),
    };
    CallId(kind * 256 + u64::from(number))
}

fn peer(call_id: CallId) -> Peer {
    let number = (call_id.0 % 256) as u8;
    match call_id.0 / 256 {
        0 => Peer::Client(number),
        1 => Peer::Repair(number),
        2 => Peer::Fates(number),
        _ => Peer::Forget(number),
    }
}
