//! Every interleaving of two clients and a server. Datagrams are lost, come twice and overtake each other, time-outs come early,
//! and the server restarts.
//!
//! The model runs the shipped machines and adds choice: whichever thing can happen next happens, in every order. Faults have
//! budgets. From states without anything on its way a fair run goes on, in which all calls have to end.

use super::super::wire::{Body, Datagram};
use super::super::{Client, ClientLimits, Event, Failure, RequestKind, Scope, Server, ServerFault, ServerLimits, Work};
use super::{parse, parse_reply, peer, reply, request, server, server_peer, short};
use crate::fabric::traits::Peer;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

const READ: RequestKind = RequestKind::Read;
const MUTATION: RequestKind = RequestKind::Mutation;

/// A call of the model: its client, kind and key, bytes of the request and of the reply.
#[derive(Clone, Copy, Debug)]
struct Wish {
    client: usize,
    kind: RequestKind,
    key: u64,
    length: usize,
    reply: u32,
}

/// How often each fault may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Budget {
    losses: u8,
    repeats: u8,
    timeouts: u8,
    restarts: u8,
}

#[derive(Clone, Debug)]
struct State {
    server: Server<Vec<u8>>,
    clients: Vec<Client>,
    clocks: Vec<u64>,
    /// Datagrams on their way, and how many of each.
    passing: BTreeMap<(Peer, Peer, Vec<u8>), u8>,
    /// Requests that are being executed: work, operation, bytes of the reply.
    works: Vec<(Work, u32, usize)>,
    /// For each operation how often it was executed.
    executed: Vec<u8>,
    /// For each call its end.
    ends: Vec<Option<Result<u32, Failure>>>,
    /// Whether all replies were of one execution.
    is_whole: bool,
    /// Clients that were sent a cookie.
    cookies: Vec<bool>,
    left: Budget,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.server, &self.clients, &self.clocks, &self.passing, &self.works).hash(state);
        (&self.executed, format!("{:?}", self.ends), self.is_whole, &self.cookies, self.left).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let [own, other] = [self, other].map(|state| {
            let mut hasher = std::hash::DefaultHasher::new();
            state.hash(&mut hasher);
            hasher.finish()
        });
        own == other
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Deliver(Peer, Peer, Vec<u8>),
    Lose(Peer, Peer, Vec<u8>),
    Repeat(Peer, Peer, Vec<u8>),
    Complete(usize),
    TimeOut(usize),
    Restart,
}

#[derive(Clone, Debug)]
struct Space {
    wishes: Vec<Wish>,
    budget: Budget,
    /// Whether the clients are admitted before the exploration begins.
    admitted: bool,
    fault: Option<ServerFault>,
    mixes: bool,
}

fn client_peer(client: usize) -> Peer {
    peer(1 + client as u16, 7)
}

impl State {
    fn new(space: &Space) -> Self {
        let format = short();
        let clients = 1 + space.wishes.iter().map(|wish| wish.client).max().unwrap_or(0);
        let mut state = Self {
            server: server(ServerLimits { format, ..ServerLimits::default() }, 1),
            clients: Vec::new(),
            clocks: vec![0; clients],
            passing: BTreeMap::new(),
            works: Vec::new(),
            executed: vec![0; space.wishes.len()],
            ends: vec![None; space.wishes.len()],
            is_whole: true,
            cookies: vec![false; clients],
            left: Budget::default(),
        };
        if let Some(fault) = space.fault {
            state.server.inject(fault);
        }
        for client in 0..clients {
            let limits = ClientLimits { format, ..ClientLimits::default() };
            let mut new = Client::new(limits, server_peer(), client as u64);
            if space.mixes {
                new.mix_executions();
            }
            state.clients.push(new);
        }
        for (operation, wish) in space.wishes.iter().enumerate() {
            let message = request(wish.kind, operation as u32, wish.reply, wish.length);
            let call = state.clients[wish.client].call(0, wish.kind, Scope::Key(wish.key), message);
            assert!(call.is_ok());
        }
        state.collect(space);
        if space.admitted {
            // HELLO, RETRY and HELLO of each client; the ADMITs are on their way.
            for _ in 0..3 * clients {
                if let Some((from, to, bytes)) = state.passing.keys().find(|(_, _, bytes)| !is_admit(bytes)).cloned() {
                    state.deliver(space, from, to, &bytes);
                }
            }
        }
        state.left = space.budget;
        state
    }

    /// Puts on the way what the machines send, and notes the ends of calls.
    fn collect(&mut self, space: &Space) {
        for (to, bytes) in self.server.outbox().iter() {
            let client = (0..self.cookies.len()).find(|client| client_peer(*client) == to);
            let is_retry = matches!(Datagram::decode(bytes, true).map(|datagram| datagram.body), Some(Body::Retry(_)));
            if let (Some(client), true) = (client, is_retry) {
                self.cookies[client] = true;
            }
            *self.passing.entry((server_peer(), to, bytes.to_vec())).or_default() += 1;
        }
        self.server.outbox().clear();
        for (at, client) in self.clients.iter_mut().enumerate() {
            for (to, bytes) in client.outbox().iter() {
                *self.passing.entry((client_peer(at), to, bytes.to_vec())).or_default() += 1;
            }
            client.outbox().clear();
            // Calls of a client are its wishes, in order.
            let wishes: Vec<usize> = (0..space.wishes.len()).filter(|wish| space.wishes[*wish].client == at).collect();
            while let Some(event) = client.next_event() {
                let (call, end) = match event {
                    Event::Reply { call, message } => {
                        let parsed = parse_reply(&message);
                        self.is_whole &= parsed.is_some();
                        (call, Ok(parsed.map_or(0, |(execution, _)| execution)))
                    }
                    Event::Failed { call, why } => (call, Err(why)),
                };
                self.ends[wishes[call as usize - 1]] = Some(end);
            }
        }
    }

    fn take(&mut self, from: Peer, to: Peer, bytes: &[u8]) {
        let key = (from, to, bytes.to_vec());
        if let Some(count) = self.passing.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.passing.remove(&key);
            }
        }
    }

    fn deliver(&mut self, space: &Space, from: Peer, to: Peer, bytes: &[u8]) {
        self.take(from, to, bytes);
        if to == server_peer() {
            if let Some(request) = self.server.receive(0, from, bytes) {
                let (operation, length) = parse(request.message);
                self.executed[operation as usize] += 1;
                self.works.push((request.work, operation, length));
            }
        } else if let Some(client) = (0..self.clients.len()).find(|client| client_peer(*client) == to) {
            self.clients[client].receive(self.clocks[client], from, bytes);
        }
        self.collect(space);
    }

    fn complete(&mut self, space: &Space, at: usize) {
        let (work, operation, length) = self.works.remove(at);
        let serial: u32 = self.executed.iter().map(|count| u32::from(*count)).sum();
        let message = reply(serial, operation, length);
        self.server.complete(0, work, &message, None);
        self.collect(space);
    }

    fn time_out(&mut self, space: &Space, client: usize) {
        let Some(time) = self.clients[client].timer() else { return };
        self.clocks[client] = time;
        self.clients[client].tick(time);
        self.collect(space);
    }

    /// Goes on without faults until all calls have ended; returns whether they have.
    fn ends_fairly(&self, space: &Space) -> bool {
        let mut state = self.clone();
        for _ in 0..60 {
            while let Some((from, to, bytes)) = state.passing.keys().next().cloned() {
                state.deliver(space, from, to, &bytes);
            }
            while !state.works.is_empty() {
                state.complete(space, 0);
            }
            if state.passing.is_empty() {
                if state.ends.iter().all(Option::is_some) {
                    return true;
                }
                (0..state.clients.len()).for_each(|client| state.time_out(space, client));
            }
        }
        false
    }
}

fn is_admit(bytes: &[u8]) -> bool {
    matches!(Datagram::decode(bytes, true).map(|datagram| datagram.body), Some(Body::Admit { .. }))
}

impl Model for Space {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        for (from, to, bytes) in state.passing.keys() {
            actions.push(Step::Deliver(*from, *to, bytes.clone()));
            if state.left.losses > 0 {
                actions.push(Step::Lose(*from, *to, bytes.clone()));
            }
            if state.left.repeats > 0 {
                actions.push(Step::Repeat(*from, *to, bytes.clone()));
            }
        }
        actions.extend((0..state.works.len()).map(Step::Complete));
        if state.left.timeouts > 0 {
            let waiting = (0..state.clients.len()).filter(|client| state.clients[*client].unanswered() > 0);
            actions.extend(waiting.map(Step::TimeOut));
        }
        if state.left.restarts > 0 {
            actions.push(Step::Restart);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Deliver(from, to, bytes) => state.deliver(self, from, to, &bytes),
            Step::Lose(from, to, bytes) => {
                state.left.losses -= 1;
                state.take(from, to, &bytes);
            }
            Step::Repeat(from, to, bytes) => {
                state.left.repeats -= 1;
                *state.passing.entry((from, to, bytes)).or_default() += 1;
            }
            Step::Complete(at) => state.complete(self, at),
            Step::TimeOut(client) => {
                state.left.timeouts -= 1;
                state.time_out(self, client);
            }
            Step::Restart => {
                state.left.restarts -= 1;
                state.works.clear();
                let limits = ServerLimits { format: short(), ..ServerLimits::default() };
                state.server = server(limits, 2);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a mutation is executed at most once", |space: &Space, state: &State| {
                space.wishes.iter().zip(&state.executed).all(|(wish, count)| wish.kind == READ || *count <= 1)
            }),
            Property::always("a reply is of one execution", |_, state: &State| state.is_whole),
            Property::always("no state comes before the cookie", |_, state: &State| {
                state.server.clients() <= state.cookies.iter().filter(|cookie| **cookie).count()
            }),
            Property::always("ends are true", |space: &Space, state: &State| {
                (0..space.wishes.len()).all(|wish| match state.ends[wish] {
                    Some(Ok(_)) => state.executed[wish] >= 1,
                    Some(Err(Failure::TimedOut)) if space.wishes[wish].kind == MUTATION => state.executed[wish] == 0,
                    _ => true,
                })
            }),
            Property::always("all calls end under fair loss", |space: &Space, state: &State| {
                !(state.passing.is_empty() && state.works.is_empty()) || state.ends_fairly(space)
            }),
            Property::sometimes("all calls succeed", |_, state: &State| {
                state.ends.iter().all(|end| matches!(end, Some(Ok(_))))
            }),
        ]
    }
}

fn wish(client: usize, kind: RequestKind, key: u64, length: usize, reply: u32) -> Wish {
    Wish { client, kind, key, length, reply }
}

fn space(wishes: &[Wish], losses: u8, repeats: u8, timeouts: u8, restarts: u8) -> Space {
    let budget = Budget { losses, repeats, timeouts, restarts };
    Space { wishes: wishes.to_vec(), budget, admitted: true, fault: None, mixes: false }
}

/// Explores all of it, and prints how much that was.
fn explore(name: &str, space: Space) {
    let checker = space.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{name}: {} states, {} of them different", checker.state_count(), checker.unique_state_count());
    for (property, path) in checker.discoveries() {
        let steps: Vec<String> = path.into_actions().iter().map(describe).collect();
        assert!(property == "all calls succeed", "{name}: not so: {property}\n{}", steps.join("\n"));
    }
    assert!(checker.discovery("all calls succeed").is_some(), "{name}: no run succeeds");
}

fn describe(step: &Step) -> String {
    match step {
        Step::Deliver(from, to, bytes) => format!("deliver {from:?} {to:?} {:?}", Datagram::decode(bytes, true)),
        Step::Lose(from, to, bytes) => format!("lose {from:?} {to:?} {:?}", Datagram::decode(bytes, true)),
        Step::Repeat(from, to, bytes) => format!("repeat {from:?} {to:?} {:?}", Datagram::decode(bytes, true)),
        other => format!("{other:?}"),
    }
}

/// A fault that has to be noticed.
fn notices(property: &str, space: Space) {
    let checker = space.clone().checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<&str> = checker.discoveries().into_keys().filter(|name| *name != "all calls succeed").collect();
    println!("{space:?}: noticed after {} states: {found:?}", checker.state_count());
    assert_eq!(found, [property]);
}

#[test]
fn admission_keeps_nothing_before_the_cookie() {
    for (losses, repeats, timeouts, restarts) in [(1, 1, 1, 0), (0, 1, 1, 1)] {
        let mut space = space(&[wish(0, MUTATION, 1, 9, 8)], losses, repeats, timeouts, restarts);
        space.admitted = false;
        explore("one client from the start", space);
    }
}

#[test]
fn three_requests_of_two_clients_are_answered() {
    let wishes = [wish(0, MUTATION, 1, 9, 8), wish(0, READ, 2, 9, 8), wish(1, MUTATION, 1, 9, 8)];
    for (losses, repeats, timeouts, restarts) in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1)] {
        explore("three requests", space(&wishes, losses, repeats, timeouts, restarts));
    }
    explore("two requests", space(&[wishes[0], wishes[2]], 0, 0, 1, 0));
}

#[test]
fn long_messages_are_of_one_execution() {
    for (losses, repeats) in [(1, 0), (0, 1)] {
        explore("a reply of two parts", space(&[wish(0, READ, 1, 9, 60)], losses, repeats, 1, 0));
        explore("a request of two parts", space(&[wish(0, READ, 1, 60, 8)], losses, repeats, 0, 0));
        explore("both of two parts", space(&[wish(0, MUTATION, 1, 60, 60)], losses, repeats, 0, 0));
    }
}

/// Larger budgets, for minutes. The second message alone takes more than 22 GB of memory.
#[test]
#[ignore = "long: cargo test --release -p frrwp --lib reliability::tests::model -- --ignored --nocapture"]
fn larger_budgets_are_explored() {
    for wish in [wish(0, READ, 1, 9, 60), wish(0, MUTATION, 1, 60, 60), wish(0, READ, 1, 60, 8)] {
        explore("a message of two parts", space(&[wish], 1, 1, 2, 0));
    }
    let wishes = [wish(0, MUTATION, 1, 9, 8), wish(0, READ, 2, 9, 60), wish(1, MUTATION, 1, 9, 8)];
    for (losses, repeats, timeouts, restarts) in
        [(0, 0, 1, 0), (1, 0, 1, 0), (0, 1, 1, 0), (0, 0, 1, 1), (1, 1, 0, 0), (1, 1, 1, 1)]
    {
        explore("three requests", space(&wishes, losses, repeats, timeouts, restarts));
    }
}

#[test]
fn faults_are_noticed() {
    let once = "a mutation is executed at most once";
    let two = [wish(0, MUTATION, 1, 9, 8), wish(0, MUTATION, 1, 9, 8)];
    let mut no_replies = space(&two[..1], 0, 1, 0, 0);
    no_replies.fault = Some(ServerFault::NoReplies);
    notices(once, no_replies);
    let mut no_executing = space(&two[..1], 0, 1, 0, 0);
    no_executing.fault = Some(ServerFault::NoExecuting);
    notices(once, no_executing);
    let mut floor_back = space(&two, 0, 2, 0, 0);
    floor_back.fault = Some(ServerFault::FloorBack);
    notices(once, floor_back);
    let mut mixed = space(&[wish(0, READ, 1, 9, 60)], 0, 1, 0, 0);
    mixed.mixes = true;
    notices("a reply is of one execution", mixed);
}
