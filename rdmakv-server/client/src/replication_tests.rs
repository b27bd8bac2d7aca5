//! Clients against servers that are made of the code that ships, over a network that loses and delays.
//!
//! Servers are lost and removed, learn epochs late, and answer until their rights end. Each history has to be linearizable.

use super::erasure::Fragments;
use super::gathering::HEDGE;
use super::membership::Layout;
use super::replication::{Arrived, Body, CARRIED, End, Ids, Now, Operation, Own, Parcel, Work};
use members::{Kept, Sent};
use proptest::prelude::*;
use rdmakv_cluster::config::{Config, Incarnation, Policy, ServerId};
use rdmakv_cluster::member::{CallId, Role, Standing};
use rdmakv_cluster::messages::{
    Answer, Call, Chunk, Condition, Form, Pending, Piece, Refusal, Reply, Request, Stored, Verdict, Version, WriteId,
};
use rdmakv_cluster::wire::{Arguments, Attributes, ReplyFrame, RequestFrame};
use rdmakv_proto::item::value_sum;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use std::collections::BTreeMap;
use std::sync::Arc;

#[path = "../tests/members/mod.rs"]
mod members;

const MS: u64 = 1_000_000;
/// How long a client waits for an answer.
const ANSWER: u64 = 300 * MS;
/// How long an operation may take.
const PATIENCE: u64 = 5_000 * MS;
const KEYS: [&[u8]; 2] = [b"a", b"b"];
/// The key whose large values are in fragments.
const CODED: usize = 1;
const SERVERS: u64 = 5;

// ---- The specification -------------------------------------------------------------------------------

/// A key's value. All values that are stored are different, so a value names its version.
#[derive(Clone, Debug, Default)]
struct Key(Option<u64>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Get,
    Set(u64),
    Add(u64),
    Replace(u64),
    /// The value that was read before, and the new one.
    Cas(u64, u64),
    Delete,
    Incr(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Value(Option<u64>),
    Stored,
    NotStored,
    Exists,
    /// The operation failed, and is known to have changed nothing.
    Nothing,
}

impl SequentialSpec for Key {
    type Op = Asked;
    type Ret = Told;

    fn invoke(&mut self, asked: &Asked) -> Told {
        let store = |key: &mut Self, may: bool, value: u64| {
            if may {
                key.0 = Some(value);
            }
            if may { Told::Stored } else { Told::NotStored }
        };
        match *asked {
            Asked::Get => Told::Value(self.0),
            Asked::Set(value) => store(self, true, value),
            Asked::Add(value) => store(self, self.0.is_none(), value),
            Asked::Replace(value) => store(self, self.0.is_some(), value),
            Asked::Cas(before, _) if self.0.is_some_and(|value| value != before) => Told::Exists,
            Asked::Cas(_, value) => store(self, self.0.is_some(), value),
            Asked::Delete => self.0.take().map_or(Told::NotStored, |_| Told::Stored),
            Asked::Incr(by) => {
                self.0 = self.0.map(|value| value + by);
                self.0.map_or(Told::NotStored, |value| Told::Value(Some(value)))
            }
        }
    }

    fn is_valid_step(&mut self, asked: &Asked, told: &Told) -> bool {
        *told == Told::Nothing || self.invoke(asked) == *told
    }
}

// ---- Servers -----------------------------------------------------------------------------------------

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

struct Node {
    id: ServerId,
    is_alive: bool,
    has_right: bool,
    epoch: usize,
    kept: Kept,
    calls: BTreeMap<CallId, Sender>,
}

/// The client that a reply is for, and the attempt of its operation.
#[derive(Clone, Copy, Debug)]
struct Sender {
    client: usize,
    operation: u64,
    round: Option<u32>,
}

enum Packet {
    Call { to: ServerId, key: Vec<u8>, bytes: Vec<u8>, call: usize, sender: Sender },
    Reply { from: ServerId, reply: Vec<u8>, bytes: Vec<u8>, sender: Sender },
}

// ---- Clients -----------------------------------------------------------------------------------------

struct Client {
    ids: Ids,
    epoch: usize,
    /// The thread of the history. One whose operation has an unknown end does nothing any more.
    thread: usize,
    running: Option<Running>,
    operations: u64,
    left: u32,
    /// The value of each key that was read last, with its version.
    read: BTreeMap<usize, (u64, Version)>,
}

struct Running {
    key: usize,
    asked: Asked,
    value: Vec<u8>,
    operation: Operation,
    /// Calls that have no answer, and when they are given up.
    open: Vec<(u64, ServerId, Option<u32>)>,
}

struct World {
    random: u64,
    time: u64,
    epochs: Vec<Arc<Layout>>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    network: Vec<(u64, Packet)>,
    threads: usize,
    values: u64,
    histories: Vec<LinearizabilityTester<usize, Key>>,
    ends: BTreeMap<&'static str, u32>,
    kills: u32,
    loss: u64,
}

impl World {
    fn new(seed: u64, (clients, operations): (usize, u32), loss: u64) -> Self {
        let join = |config: Config, run: u64| {
            config.with_server(&format!("s{run}"), vec![format!("tcp:h{run}:1")], 1, Incarnation(run)).unwrap()
        };
        let config = (0..SERVERS).fold(Config::new(7), join).with_policy(b"", Policy::Copies(3)).unwrap();
        let config = config.with_policy(KEYS[CODED], Policy::Code { data: 2, parity: 2 }).unwrap().whole().unwrap();
        let node = |id: u8| Node {
            id: ServerId(id),
            is_alive: true,
            has_right: true,
            epoch: 0,
            kept: Kept::new(7, seed.is_multiple_of(2)),
            calls: BTreeMap::new(),
        };
        let client = |at: usize| Client {
            ids: Ids::new(seed ^ (at as u64) << 32),
            epoch: 0,
            thread: at,
            running: None,
            operations: 0,
            left: operations,
            read: BTreeMap::new(),
        };
        Self {
            random: seed,
            time: 0,
            epochs: vec![Arc::new(Layout::of(&config))],
            nodes: (0..SERVERS as u8).map(node).collect(),
            clients: (0..clients).map(client).collect(),
            network: Vec::new(),
            threads: clients,
            values: 0,
            histories: vec![LinearizabilityTester::new(Key::default()); KEYS.len()],
            ends: BTreeMap::new(),
            kills: 0,
            loss,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }

    fn run(&mut self) {
        while self.clients.iter().any(|client| client.left > 0 || client.running.is_some()) {
            self.time += 100_000 + self.below(2 * MS);
            assert!(self.time < 3_600_000 * MS, "an operation does not end");
            self.change();
            while let Some(at) = self.network.iter().position(|&(at, _)| at <= self.time) {
                let (_, packet) = self.network.swap_remove(at);
                self.deliver(packet);
            }
            (0..self.nodes.len()).for_each(|node| self.overdue(node));
            (0..self.clients.len()).for_each(|client| self.act(client));
        }
        for history in &self.histories {
            assert!(history.is_consistent(), "no order explains {history:?}");
        }
    }

    /// Lets servers die, epochs begin and be learned, and rights end.
    fn change(&mut self) {
        let latest = self.epochs.len() - 1;
        let config = self.epochs[latest].config().clone();
        if self.kills < 2 && self.below(400) == 0 {
            let victim = self.below(SERVERS) as usize;
            if self.nodes[victim].is_alive && config.server(ServerId(victim as u8)).is_some() {
                self.kills += 1;
                self.nodes[victim].is_alive = self.below(2) == 0;
            }
            // One that lives on is cut off from the others, and answers until its right has ended.
            if self.kills > 0 {
                self.epochs.extend(self.without(&config, victim));
            }
        }
        let dead = self.nodes.iter().position(|node| !node.is_alive && config.server(node.id).is_some());
        if let Some(dead) = dead
            && self.below(100) == 0
        {
            self.epochs.extend(self.without(&config, dead));
        }
        let latest = self.epochs.len() - 1;
        for at in 0..self.nodes.len() {
            if self.nodes[at].epoch == latest || self.below(40) > 0 {
                continue;
            }
            self.nodes[at].has_right = self.epochs[latest].config().server(ServerId(at as u8)).is_some();
            if self.nodes[at].has_right {
                self.adopt(at, latest);
            }
        }
        for at in 0..self.clients.len() {
            if self.clients[at].epoch < latest && self.below(60) == 0 {
                self.clients[at].epoch += 1;
            }
        }
    }

    fn without(&self, config: &Config, server: usize) -> Option<Arc<Layout>> {
        config.without_server(ServerId(server as u8)).ok().map(|config| Arc::new(Layout::of(&config)))
    }

    fn role(&self, node: usize, epoch: usize, key: &[u8]) -> Role {
        let members = self.epochs[epoch].target(key).members;
        match members.iter().position(|member| usize::from(member.0) == node) {
            Some(0) => Role::Primary,
            Some(_) => Role::Backup,
            None => Role::Outside,
        }
    }

    fn standing(&self, at: usize, key: &[u8]) -> Standing {
        let node = &self.nodes[at];
        let may_answer = |(other, peer): (usize, &Node)| {
            let is_older = peer.epoch < node.epoch && peer.is_alive && peer.has_right;
            other != at && is_older && self.role(other, peer.epoch, key) == Role::Primary
        };
        let role = self.role(at, node.epoch, key);
        Standing {
            epoch: self.epochs[node.epoch].epoch(),
            role,
            has_right: node.has_right && node.is_alive,
            is_fenced: role == Role::Primary && self.nodes.iter().enumerate().any(may_answer),
            is_whole: self.epochs[node.epoch].config().is_whole(),
            flushed: self.epochs[node.epoch].config().flushed(),
        }
    }

    fn adopt(&mut self, at: usize, epoch: usize) {
        let from = std::mem::replace(&mut self.nodes[at].epoch, epoch);
        for key in KEYS {
            let roles: Vec<Role> = (from..=epoch).map(|epoch| self.role(at, epoch, key)).collect();
            let stayed = roles.iter().all(|&role| role == Role::Primary);
            let was_outside = roles.contains(&Role::Outside);
            let standing = self.standing(at, key);
            let sent = self.nodes[at].kept.adopt(key, roles[0], &standing, (stayed, was_outside));
            self.reply(at, sent);
        }
    }

    fn overdue(&mut self, at: usize) {
        for key in KEYS.into_iter().filter(|_| self.nodes[at].is_alive).collect::<Vec<_>>() {
            let standing = self.standing(at, key);
            let sent = self.nodes[at].kept.overdue(key, &standing, self.time);
            self.reply(at, sent);
        }
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Call { to, key, bytes, call, sender } => self.serve(usize::from(to.0), &key, &bytes, call, sender),
            Packet::Reply { from, reply, bytes, sender } => {
                let frame = ReplyFrame::decode(&reply).unwrap();
                let epoch = self.clients[sender.client].epoch;
                let layout = Arc::clone(&self.epochs[epoch]);
                let client = &mut self.clients[sender.client];
                let Some(running) = client.running.as_mut().filter(|_| client.operations == sender.operation) else {
                    return;
                };
                let open = running.open.iter().position(|&(_, to, round)| (to, round) == (from, sender.round));
                open.map(|open| running.open.remove(open));
                let mut now = Now { layout: &layout, ids: &mut client.ids, time: self.time };
                let arrived = Arrived { from, round: sender.round, frame, bytes };
                let parcels = running.operation.take(arrived, &mut now);
                self.send(sender.client, parcels);
            }
        }
    }

    fn serve(&mut self, at: usize, key: &[u8], bytes: &[u8], call: usize, sender: Sender) {
        let standing = self.standing(at, key);
        let node = &mut self.nodes[at];
        if node.is_alive {
            let (call_id, sent) = node.kept.serve(key, (bytes, call), &standing, self.time);
            node.calls.insert(call_id, sender);
            self.reply(at, sent);
        }
    }

    fn reply(&mut self, at: usize, all: Vec<Sent>) {
        for Sent { call_id, reply, bytes } in all {
            let (from, sender) = (self.nodes[at].id, self.nodes[at].calls.remove(&call_id));
            if let Some(sender) = sender {
                self.post(Packet::Reply { from, reply, bytes, sender });
            }
        }
    }

    fn post(&mut self, packet: Packet) {
        if self.below(1000) >= self.loss {
            // Some are late, so that later ones overtake them.
            let delay = if self.below(20) == 0 { self.below(400 * MS) } else { self.below(3 * MS) };
            self.network.push((self.time + delay, packet));
        }
    }

    fn send(&mut self, client: usize, parcels: Vec<Parcel>) {
        for Parcel { to, frame, body, round } in parcels {
            let Client { running, operations, .. } = &mut self.clients[client];
            let Some(running) = running else { return };
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let call = bytes.len();
            match body {
                Body::None => {}
                Body::Own => bytes.extend_from_slice(&running.value),
                Body::Came(came) => bytes.extend_from_slice(&came),
                Body::Fragment { k, index, of } => {
                    let mut fragments = Fragments::of(&Arc::new(running.value.clone().into()), k, of);
                    bytes.extend_from_slice(fragments.get(index, None).bytes());
                }
            }
            if round.is_some() {
                running.open.push((self.time + ANSWER, to, round));
            }
            let (key, sender) = (KEYS[running.key].to_vec(), Sender { client, operation: *operations, round });
            self.post(Packet::Call { to, key, bytes, call, sender });
        }
    }

    /// Lets a client begin an operation, or go on with it.
    fn act(&mut self, at: usize) {
        if self.clients[at].running.is_none() && self.clients[at].left > 0 && self.below(20) == 0 {
            self.begin(at);
        }
        let (time, epoch) = (self.time, self.clients[at].epoch);
        let layout = Arc::clone(&self.epochs[epoch]);
        let client = &mut self.clients[at];
        let Some(running) = &mut client.running else { return };
        let mut now = Now { layout: &layout, ids: &mut client.ids, time };
        let (late, open) = std::mem::take(&mut running.open).into_iter().partition(|&(until, ..)| until <= time);
        running.open = open;
        let late: Vec<(u64, ServerId, Option<u32>)> = late;
        let mut parcels: Vec<Parcel> =
            late.into_iter().flat_map(|(_, to, round)| running.operation.failed(to, (round, None), &mut now)).collect();
        parcels.extend(running.operation.progress(&mut now));
        let end = running.operation.take_end();
        self.send(at, parcels);
        if let Some(end) = end {
            self.end(at, end);
        }
    }

    fn begin(&mut self, at: usize) {
        let (key, kind, large) = (self.below(KEYS.len() as u64) as usize, self.below(10), self.below(4) == 0);
        self.values += 1;
        let value = self.values * 1000;
        let read = self.clients[at].read.get(&key).copied();
        let asked = match (kind, read) {
            (0..=3, _) => Asked::Get,
            (4, _) => Asked::Add(value),
            (5, _) => Asked::Replace(value),
            (6, _) => Asked::Delete,
            (7, _) => Asked::Incr(1),
            (8, Some((before, _))) => Asked::Cas(before, value),
            _ => Asked::Set(value),
        };
        let work = match (asked, read) {
            (Asked::Get, _) => Work::Read,
            (Asked::Set(_), _) => Work::Put(Condition::Always),
            (Asked::Add(_), _) => Work::Put(Condition::Absent),
            (Asked::Replace(_), _) => Work::Put(Condition::Present),
            (Asked::Cas(..), read) => Work::Put(Condition::Version(read.unwrap().1)),
            (Asked::Delete, _) => Work::Delete,
            (Asked::Incr(by), _) => Work::Compute(Arguments::Increment { by, initial: None }),
        };
        // A large value is staged before it is ordered.
        let zeros = if large { "0".repeat(CARRIED) } else { String::new() };
        let is_put = matches!(work, Work::Put(_));
        let value = if is_put { format!("{zeros}{value}").into_bytes() } else { Vec::new() };
        let own = match work {
            Work::Put(_) => Own::of(&value, Attributes { flags: self.values as u32, ..Attributes::default() }),
            _ => Own::default(),
        };
        let patience = if self.loss > 0 && self.below(3) == 0 { self.below(500 * MS) } else { PATIENCE };
        let operation = Operation::new(KEYS[key], work, own, self.time, patience);
        let client = &mut self.clients[at];
        client.left -= 1;
        client.operations += 1;
        client.running = Some(Running { key, asked, value, operation, open: Vec::new() });
        self.histories[key].on_invoke(client.thread, asked).unwrap();
    }

    fn end(&mut self, at: usize, end: End) {
        let client = &mut self.clients[at];
        let Some(Running { key, asked, .. }) = client.running.take() else { return };
        let (name, told) = match end {
            End::Value(found) => {
                let value = found.as_ref().map(|found| number(&found.bytes).expect("a whole value"));
                if let (Some(found), Some(value)) = (found, value) {
                    client.read.insert(key, (value, found.version));
                    assert_eq!(u64::from(found.attributes.flags), value / 1000, "flags of another value");
                }
                ("read", Some(Told::Value(value)))
            }
            End::Number(number) => ("number", Some(Told::Value(Some(number)))),
            End::Done(Verdict::Stored(_)) => ("stored", Some(Told::Stored)),
            End::Done(Verdict::Declined(Refusal::Exists)) => ("exists", Some(Told::Exists)),
            End::Done(Verdict::Declined(Refusal::NotStored)) => ("not stored", Some(Told::NotStored)),
            End::NotServed(_) | End::TooFew => ("not served", Some(Told::Nothing)),
            // A value in fragments is no number.
            End::Done(Verdict::Declined(Refusal::Invalid)) if key == CODED => ("no number", Some(Told::Nothing)),
            End::Unknown(_) => ("unknown", None),
            other => panic!("{asked:?} ended with {other:?}"),
        };
        *self.ends.entry(name).or_default() += 1;
        match told {
            Some(told) => drop(self.histories[key].on_return(client.thread, told).unwrap()),
            None => {
                client.thread = self.threads;
                self.threads += 1;
            }
        }
    }
}

#[test]
fn undisturbed_operations_end_as_asked() {
    let mut world = World::new(1, (1, 60), 0);
    world.kills = 2;
    world.run();
    assert!(!world.ends.contains_key("unknown") && !world.ends.contains_key("not served"), "{:?}", world.ends);
    for name in ["read", "stored", "not stored", "number"] {
        assert!(world.ends.contains_key(name), "no {name}: {:?}", world.ends);
    }
}

#[test]
fn a_cluster_that_is_gone_is_no_endless_wait() {
    let mut world = World::new(2, (2, 3), 0);
    world.kills = 2;
    world.nodes.iter_mut().for_each(|node| node.is_alive = false);
    for client in &mut world.clients {
        client.epoch = 0;
    }
    world.epochs.truncate(1);
    world.run();
    let ended: u32 = world.ends.values().sum();
    assert!(ended == 6 && !world.ends.contains_key("stored"), "{:?}", world.ends);
}

/// Returns an increment that was ordered, and whose answers were lost until it is known to be stored as the third version.
fn stored_increment(layout: &Layout, ids: &mut Ids) -> (Operation, ServerId, WriteId) {
    let work = Work::Compute(Arguments::Increment { by: 1, initial: None });
    let mut operation = Operation::new(b"a", work, Own::default(), 0, PATIENCE);
    let order = operation.progress(&mut Now { layout, ids, time: 0 });
    let (to, id) = (order[0].to, order[0].frame.request.call.id().unwrap());
    operation.failed(to, (order[0].round, None), &mut Now { layout, ids, time: ANSWER });
    let resolve = operation.progress(&mut Now { layout, ids, time: 2 * ANSWER });
    assert_eq!(resolve[0].frame.request.call, Call::Resolve { id });
    let read =
        answer(&mut operation, &resolve[0], Answer::Done(Verdict::Stored(Version(3))), b"", (layout, ids, 2 * ANSWER));
    assert!(matches!(read[..], [Parcel { ref frame, .. }] if frame.request.call == Call::Read));
    (operation, to, id)
}

fn answer(
    operation: &mut Operation,
    parcel: &Parcel,
    answer: Answer,
    bytes: &[u8],
    (layout, ids, time): (&Layout, &mut Ids, u64),
) -> Vec<Parcel> {
    let request = &parcel.frame.request;
    let frame = ReplyFrame::new(Reply { epoch: request.epoch, id: request.call.id(), answer });
    let arrived = Arrived { from: parcel.to, round: parcel.round, frame, bytes: bytes.to_vec() };
    operation.take(arrived, &mut Now { layout, ids, time })
}

#[test]
fn a_lost_number_is_read_if_it_is_the_last_one() {
    let world = World::new(1, (1, 1), 0);
    let layout = &world.epochs[0];
    let fragment = Form::Fragment { k: 2, index: 0 };
    for (version, form, end) in [(3, Form::Copy, Some(End::Number(42))), (4, Form::Copy, None), (4, fragment, None)] {
        let mut ids = Ids::new(5);
        let (mut operation, to, id) = stored_increment(layout, &mut ids);
        let length = if form == Form::Copy { 2 } else { 5000 };
        let piece = Piece { chunk: Chunk(0), form, length, sum: value_sum(b"42") };
        let (version, confirmed) = (Version(version), layout.epoch());
        let stored = Stored { id, version, confirmed, piece, is_staged: false };
        let request = Request { cluster: 7, epoch: layout.epoch(), call: Call::Read };
        let read = Parcel { to, frame: RequestFrame::new(request), body: Body::None, round: None };
        answer(&mut operation, &read, Answer::Value(Some(stored)), b"42", (layout, &mut ids, 3 * ANSWER));
        match (operation.take_end(), end) {
            (Some(End::Unknown(why)), None) => assert!(why.to_string().starts_with("it was done, and another")),
            (got, end) => assert_eq!(got, end),
        }
    }
}

#[test]
fn a_value_is_lost_only_if_no_write_followed() {
    let world = World::new(1, (1, 1), 0);
    let (layout, mut ids, value) = (&world.epochs[0], Ids::new(5), [7; 5000]);
    let mut operation = Operation::new(KEYS[CODED], Work::Read, Own::default(), 0, PATIENCE);
    let form = Form::Fragment { k: 2, index: 0 };
    let piece = Piece { chunk: Chunk(0), form, length: 5000, sum: value_sum(&value) };
    let mut fragments = Fragments::of(&Arc::new(value.to_vec().into()), 2, 4);
    let mut time = 0;
    let mut reads = operation.progress(&mut Now { layout, ids: &mut ids, time });
    // The others have dropped the third version, because the fourth followed. That one they lack.
    for version in [3, 4, 4] {
        let (version, confirmed, id) = (Version(version), layout.epoch(), WriteId { client: 9, sequence: version });
        let stored = Answer::Value(Some(Stored { id, version, confirmed, piece, is_staged: true }));
        let own = fragments.get(0, None).bytes().to_vec();
        assert!(reads[0].frame.request.call == Call::Read);
        let mut fetches = answer(&mut operation, &reads[0], stored, &own, (layout, &mut ids, time));
        fetches.extend(reads.drain(1..));
        let mut asked = 0;
        while let Some(fetch) = fetches.pop() {
            let is_known = fetch.frame.request.call == Call::Fetch { version };
            assert!(is_known || fetch.frame.request.call == Call::Fetch { version: Version::ABSENT });
            assert!(operation.take_end().is_none());
            asked += u32::from(is_known);
            fetches.extend(answer(&mut operation, &fetch, Answer::Value(None), b"", (layout, &mut ids, time)));
        }
        // All others, also the one that was asked before the version was known.
        assert_eq!(asked, 3);
        time = operation.wakes_at();
        reads = operation.progress(&mut Now { layout, ids: &mut ids, time });
    }
    assert_eq!(operation.take_end(), Some(End::Lost { found: 1, needed: 2 }));
}

/// Returns an answer with the fragment of a member, by its place.
fn fragment(layout: &Layout, (value, version): (&[u8], u64), index: u8) -> (Answer, Vec<u8>) {
    let form = Form::Fragment { k: 2, index };
    let piece = Piece { chunk: Chunk(0), form, length: value.len() as u64, sum: value_sum(value) };
    let (version, confirmed, id) = (Version(version), layout.epoch(), WriteId { client: 9, sequence: version });
    let stored = Stored { id, version, confirmed, piece, is_staged: true };
    (Answer::Value(Some(stored)), Fragments::of(&Arc::new(value.into()), 2, 4).get(index, None).bytes().to_vec())
}

/// The calls of a read of a value in fragments, and the members that they go to.
struct Read<'a> {
    layout: &'a Layout,
    ids: Ids,
    operation: Operation,
    calls: Vec<Parcel>,
    time: u64,
}

impl<'a> Read<'a> {
    fn begin(layout: &'a Layout) -> Self {
        let mut operation = Operation::new(KEYS[CODED], Work::Read, Own::default(), 0, PATIENCE);
        let mut ids = Ids::new(5);
        let calls = operation.progress(&mut Now { layout, ids: &mut ids, time: 0 });
        Self { layout, ids, operation, calls, time: 0 }
    }

    /// Returns the places of the members that were called, and whether each call names a version.
    fn called(&self) -> Vec<(usize, bool)> {
        let members = self.layout.target(KEYS[CODED]).members;
        let place = |parcel: &Parcel| members.iter().position(|&member| member == parcel.to).unwrap();
        let is_known = |call: &Call| matches!(call, Call::Fetch { version } if *version != Version::ABSENT);
        self.calls.iter().map(|parcel| (place(parcel), is_known(&parcel.frame.request.call))).collect()
    }

    /// Answers the call of a member.
    fn answer(&mut self, place: usize, (told, bytes): (Answer, Vec<u8>)) {
        let at = self.called().iter().position(|&(called, _)| called == place).expect("a call");
        let parcel = self.calls.remove(at);
        let now = (self.layout, &mut self.ids, self.time);
        let more = answer(&mut self.operation, &parcel, told, &bytes, now);
        self.calls.extend(more);
    }

    /// Lets the time come at which it does something by itself.
    fn wait(&mut self) {
        self.time = self.operation.wakes_at();
        let more = self.operation.progress(&mut Now { layout: self.layout, ids: &mut self.ids, time: self.time });
        self.calls.extend(more);
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        match self.operation.take_end()? {
            End::Value(Some(found)) => Some(found.bytes),
            other => panic!("ended with {other:?}"),
        }
    }
}

#[test]
fn fragments_are_read_in_one_round_trip() {
    let (world, value) = (World::new(1, (1, 1), 0), [7; 5000]);
    let layout = &world.epochs[0];
    for order in [[0, 1], [1, 0]] {
        let mut read = Read::begin(layout);
        assert_eq!(read.called(), [(0, false), (1, false)]);
        for place in order {
            read.answer(place, fragment(layout, (&value, 3), place as u8));
        }
        assert!(read.calls.is_empty());
        assert_eq!(read.value().as_deref(), Some(&value[..]));
    }
}

#[test]
fn fragments_of_other_versions_are_not_mixed() {
    let (world, value, other) = (World::new(1, (1, 1), 0), [7; 5000], [8; 5000]);
    let layout = &world.epochs[0];
    for order in [[0, 1], [1, 0]] {
        let mut read = Read::begin(layout);
        for place in order {
            read.answer(
                place,
                fragment(layout, (if place == 0 { &value } else { &other }, 3 + place as u64), place as u8),
            );
        }
        // Another is asked, and then those that had another version, which may have both.
        assert_eq!(read.called(), [(2, true)]);
        read.answer(2, (Answer::Value(None), Vec::new()));
        assert_eq!(read.called(), [(3, true)]);
        read.answer(3, (Answer::Value(None), Vec::new()));
        assert_eq!(read.called(), [(1, true)]);
        read.answer(1, fragment(layout, (&value, 3), 1));
        assert_eq!(read.value().as_deref(), Some(&value[..]));
    }
}

#[test]
fn a_silent_member_is_passed_over() {
    let (world, value) = (World::new(1, (1, 1), 0), [7; 5000]);
    let layout = &world.epochs[0];
    let mut read = Read::begin(layout);
    read.answer(0, fragment(layout, (&value, 3), 0));
    assert_eq!(read.called(), [(1, false)]);
    read.wait();
    assert_eq!((read.time, read.called()), (HEDGE, vec![(1, false), (2, true)]));
    // The next one is silent, too.
    read.wait();
    assert_eq!((read.time, read.called()), (2 * HEDGE, vec![(1, false), (2, true), (3, true)]));
    assert!(read.value().is_none() && read.operation.wakes_at() > 3 * HEDGE);
    read.answer(3, fragment(layout, (&value, 3), 3));
    assert_eq!(read.value().as_deref(), Some(&value[..]));
}

#[test]
fn a_damaged_fragment_is_passed_over() {
    let (world, value) = (World::new(1, (1, 1), 0), [7; 5000]);
    let layout = &world.epochs[0];
    for damaged in 0..2 {
        let mut read = Read::begin(layout);
        for place in 0..2 {
            let (told, mut bytes) = fragment(layout, (&value, 3), place as u8);
            bytes[9] ^= u8::from(place == damaged);
            read.answer(place, (told, bytes));
        }
        assert_eq!(read.called(), [(2, true), (3, true)]);
        read.answer(3, fragment(layout, (&value, 3), 3));
        assert_eq!(read.value().as_deref(), Some(&value[..]));
    }
    // Without two sound ones it is no value.
    let mut read = Read::begin(layout);
    for place in 0..4 {
        let (told, mut bytes) = fragment(layout, (&value, 3), place as u8);
        bytes[9 * place] ^= u8::from(place > 0);
        read.answer(place, (told, bytes));
    }
    assert_eq!(read.operation.take_end(), Some(End::Damaged));
}

#[test]
fn orders_leave_the_write_before_to_its_client() {
    let world = World::new(1, (1, 1), 0);
    let (layout, mut ids) = (&world.epochs[0], Ids::new(5));
    let own = Own::of(b"1", Attributes::default());
    let mut operation = Operation::new(b"a", Work::Put(Condition::Always), own, 0, PATIENCE);
    let order = operation.progress(&mut Now { layout, ids: &mut ids, time: 0 });
    let id = WriteId { client: 9, sequence: 1 };
    let piece = Piece { chunk: Chunk(0), form: Form::Copy, length: 1, sum: value_sum(b"2") };
    let (version, confirmed) = (Version(3), layout.epoch());
    let stored = Stored { id, version, confirmed, piece, is_staged: false };
    let help = Answer::Help(Pending { stored, base: Version::ABSENT });
    let (mut orders, mut time) = (order, 3 * ANSWER);
    for turn in 0.. {
        let calls = answer(&mut operation, &orders[0], help.clone(), b"2", (layout, &mut ids, time));
        if !calls.is_empty() {
            // Its client had its time.
            assert!(turn > 2 && calls.iter().all(|call| matches!(call.frame.request.call, Call::Seal { .. })));
            break;
        }
        time = operation.wakes_at();
        orders = operation.progress(&mut Now { layout, ids: &mut ids, time });
        assert!(matches!(orders[0].frame.request.call, Call::Order { .. }) && orders.len() == 1);
    }
    assert!(time < 3 * ANSWER + 20 * MS);
}

#[test]
fn a_value_that_is_too_large_is_refused_everywhere() {
    let world = World::new(1, (1, 1), 0);
    let (layout, mut ids) = (&world.epochs[0], Ids::new(5));
    let own = Own::of(&vec![b'1'; CARRIED + 1], Attributes::default());
    let mut operation = Operation::new(b"a", Work::Put(Condition::Always), own, 0, PATIENCE);
    let said = "SERVER_ERROR object too large for cache";
    for stage in operation.progress(&mut Now { layout, ids: &mut ids, time: 0 }) {
        let mut now = Now { layout, ids: &mut ids, time: MS };
        operation.failed(stage.to, (stage.round, Some(said.to_owned())), &mut now);
    }
    let time = operation.wakes_at();
    let resolve = operation.progress(&mut Now { layout, ids: &mut ids, time });
    assert!(matches!(resolve[..], [Parcel { ref frame, .. }] if matches!(frame.request.call, Call::Resolve { .. })));
    for refuse in answer(&mut operation, &resolve[0], Answer::Refused, b"", (layout, &mut ids, time)) {
        assert!(matches!(refuse.frame.request.call, Call::Refuse { .. }) && operation.take_end().is_none());
        answer(&mut operation, &refuse, Answer::Refused, b"", (layout, &mut ids, time));
    }
    assert_eq!(operation.take_end(), Some(End::Refused(said.to_owned())));
}

#[test]
fn a_write_before_a_flush_has_an_unknown_outcome() {
    let world = World::new(1, (1, 1), 0);
    let (layout, mut ids) = (&world.epochs[0], Ids::new(5));
    let own = Own::of(b"1", Attributes::default());
    let mut operation = Operation::new(b"a", Work::Put(Condition::Absent), own, 0, PATIENCE);
    let order = operation.progress(&mut Now { layout, ids: &mut ids, time: 0 });
    answer(&mut operation, &order[0], Answer::Done(Verdict::Flushed), b"", (layout, &mut ids, MS));
    assert!(matches!(operation.take_end(), Some(End::Unknown(why)) if why.to_string().contains("flushed")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 8, ..ProptestConfig::default() })]

    #[test]
    fn histories_with_losses_are_linearizable(seed: u64, loss in 0_u64..60) {
        World::new(seed, (3, 12), loss).run();
    }
}
