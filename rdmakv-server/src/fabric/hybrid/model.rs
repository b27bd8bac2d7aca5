//! Every interleaving of two clients that move between datagrams and a connection.
//!
//! The shipped decisions run: the state machines of [`frrwp::fabric::reliability`], when a client leaves a path ([`Departure`]), and
//! the offers of connections ([`Offers`]). The model adds the network, the connections, and choice: whichever thing can happen next happens,
//! in every order. Datagrams are lost, come twice and overtake each other. Connections break, clients give operations up, the server is killed.

use super::super::promotion::Host;
use super::{Decision, Offers};
use frrwp::fabric::Peer;
use frrwp::fabric::reliability::wire::{Body, Datagram};
use frrwp::fabric::reliability::{
    Client, ClientLimits, Departure, Event, Failure, Format, RequestKind, Scope, Secret, Server, ServerLimits,
};
use rdmakv_proto::datagrams::{append_token, take_token};
use rdmakv_proto::messages::{self, Kind};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

const READ: RequestKind = RequestKind::Read;
const MUTATION: RequestKind = RequestKind::Mutation;
const HERE: Host = [1; 16];
/// The number of a greeting, which is no operation.
const GREETING: u8 = 255;
/// The time between rankings: a reservation ends, a slot is had for long enough, and a silent client is idle.
const ROUND: u64 = 2_100_000_000;

/// An operation: its client, kind and key.
#[derive(Clone, Copy, Debug)]
struct Wish {
    client: usize,
    kind: RequestKind,
    key: u64,
}

/// How often each thing may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Budget {
    rankings: u8,
    losses: u8,
    repeats: u8,
    timeouts: u8,
    given_up: u8,
    silences: u8,
    breaks: u8,
    kills: u8,
}

/// A fault that the model has to notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// A client moves though a mutation of unknown outcome may still be executed.
    MovesUnsettled,
    /// A client that lost its datagrams goes another way though a mutation of unknown outcome may still be executed.
    LosesUnsettled,
    /// A client moves while operations are under way, and sends them again.
    Resends,
    /// The server forgets that a connection has a slot.
    KeepsSlots,
}

#[derive(Clone, Debug)]
struct Space {
    wishes: Vec<Wish>,
    slots: usize,
    budget: Budget,
    fault: Option<Fault>,
}

/// A message up a connection. They keep their order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Up {
    Hello(u64),
    Run(usize),
}

/// A message down a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Down {
    Welcome,
    Refused,
    Ran(usize),
    Demote,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Connection {
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    /// The client's: the server has answered, wants it back; operations under way.
    is_ready: bool,
    is_demoted: bool,
    open: Vec<usize>,
    /// The server's: the client that has a slot by it.
    slot: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Side {
    /// None once it has left datagrams.
    datagrams: Option<Client>,
    /// One that it lost. Nothing is begun before no mutation of that can be executed any more.
    settling: Option<Client>,
    clients: u64,
    clock: u64,
    /// The operation of each call.
    calls: BTreeMap<u64, u8>,
    /// Whether the server has answered the greeting by datagrams.
    is_greeted: bool,
    token: Option<u64>,
    connection: Option<Connection>,
    /// Connections that the client has closed, and the server has not seen that.
    closing: Vec<Connection>,
    uses_connection: bool,
    waiting: VecDeque<usize>,
}

#[derive(Clone, Debug)]
struct State {
    server: Server<Vec<u8>>,
    offers: Offers,
    now: u64,
    incarnation: u64,
    next_token: u64,
    sides: Vec<Side>,
    /// Datagrams on their way: up or down, of which client.
    passing: BTreeMap<(bool, usize, Vec<u8>), u8>,
    executed: Vec<u8>,
    ends: Vec<Option<Result<(), Failure>>>,
    /// No mutation was executed after a later one of its client on its key.
    is_in_order: bool,
    left: Budget,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.server, &self.offers, self.now, self.incarnation, self.next_token, &self.sides).hash(state);
        (&self.passing, &self.executed, format!("{:?}", self.ends), self.is_in_order, self.left).hash(state);
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
    Deliver(bool, usize, Vec<u8>),
    Lose(bool, usize, Vec<u8>),
    Repeat(bool, usize, Vec<u8>),
    /// The next message of a connection, up or down.
    Pass(bool, usize),
    /// The server sees that a client closed a connection.
    SeeClosed(usize),
    TimeOut(usize),
    GiveUp(usize),
    /// The client has heard nothing for too long.
    Silence(usize),
    Rank(Option<usize>),
    Break(usize),
    Kill,
}

fn client_peer(client: usize) -> Peer {
    Peer::from(SocketAddr::from(([10, 0, 0, 1 + client as u8], 7)))
}

fn server_peer() -> Peer {
    Peer::from(SocketAddr::from(([10, 0, 0, 200], 1)))
}

fn classify(message: &[u8]) -> RequestKind {
    if message.first() == Some(&0) { READ } else { MUTATION }
}

fn server(incarnation: u64) -> Server<Vec<u8>> {
    Server::new(ServerLimits::default(), Secret::new([incarnation as u8; 16]), incarnation, 0, classify)
}

impl Side {
    fn new(client: usize, wishes: VecDeque<usize>) -> Self {
        let mut side = Self {
            datagrams: None,
            settling: None,
            clients: 0,
            clock: 0,
            calls: BTreeMap::new(),
            is_greeted: false,
            token: None,
            connection: None,
            closing: Vec::new(),
            uses_connection: false,
            waiting: wishes,
        };
        side.open_datagrams(client);
        side
    }

    /// Returns when its datagrams have something to do.
    fn timer(&self) -> Option<u64> {
        self.datagrams.iter().chain(&self.settling).filter_map(Client::timer).min()
    }

    /// Returns whether an operation is under way by datagrams.
    fn is_open(&self) -> bool {
        self.calls.values().any(|operation| *operation != GREETING)
    }

    /// Begins with datagrams, as a new client.
    fn open_datagrams(&mut self, client: usize) {
        self.clients += 1;
        let seed = self.clients * 100 + client as u64;
        let mut datagrams = Client::new(ClientLimits::default(), server_peer(), seed);
        self.calls.clear();
        self.is_greeted = false;
        let call = datagrams.call(self.clock, READ, Scope::All, vec![0, GREETING]).expect("there is room");
        self.calls.insert(call, GREETING);
        self.datagrams = Some(datagrams);
    }
}

impl State {
    fn new(space: &Space) -> Self {
        let clients = 1 + space.wishes.iter().map(|wish| wish.client).max().unwrap_or(0);
        let of = |client| (0..space.wishes.len()).filter(|wish| space.wishes[*wish].client == client).collect();
        let mut state = Self {
            server: server(1),
            offers: Offers::new(space.slots, 16, 0),
            now: 0,
            incarnation: 1,
            next_token: 1,
            sides: (0..clients).map(|client| Side::new(client, of(client))).collect(),
            passing: BTreeMap::new(),
            executed: vec![0; space.wishes.len()],
            ends: vec![None; space.wishes.len()],
            is_in_order: true,
            left: Budget::default(),
        };
        // Admission and greetings are in order; all operations are on their way.
        state.collect(space);
        let operates = |(is_up, _, bytes): &(bool, usize, Vec<u8>)| match Datagram::decode(bytes, true) {
            Some(Datagram { body: Body::Part(part), .. }) => *is_up && !part.bytes.ends_with(&[GREETING]),
            _ => false,
        };
        while let Some((is_up, client, bytes)) = state.passing.keys().find(|key| !operates(key)).cloned() {
            state.deliver(space, is_up, client, &bytes);
        }
        state.left = space.budget;
        state
    }

    fn end(&mut self, operation: usize, end: Result<(), Failure>) {
        self.ends[operation] = Some(end);
    }

    fn execute(&mut self, space: &Space, operation: usize) {
        let wish = space.wishes[operation];
        if wish.kind == MUTATION {
            let overtakes = |later: usize| {
                let other = space.wishes[later];
                other.kind == MUTATION
                    && (other.client, other.key) == (wish.client, wish.key)
                    && self.executed[later] > 0
            };
            self.is_in_order &= !(operation + 1..space.wishes.len()).any(overtakes);
        }
        self.executed[operation] += 1;
    }

    /// An operation's path is gone: a read is asked again, and the outcome of a mutation is unknown.
    fn was_lost(&mut self, space: &Space, operation: usize) {
        match space.wishes[operation].kind {
            READ => self.sides[space.wishes[operation].client].waiting.push_front(operation),
            _ => self.end(operation, Err(Failure::Unknown)),
        }
    }

    /// Takes the ends of calls by datagrams.
    fn take_ends(&mut self, space: &Space, at: usize) {
        while let Some(event) = self.sides[at].datagrams.as_mut().and_then(Client::next_event) {
            let (call, end) = match event {
                Event::Reply { call, mut message } => {
                    let token = take_token(&mut message);
                    self.sides[at].token = token.or(self.sides[at].token);
                    (call, Ok(()))
                }
                Event::Failed { call, why } => (call, Err(why)),
            };
            match self.sides[at].calls.remove(&call) {
                Some(GREETING) => self.sides[at].is_greeted = end.is_ok(),
                Some(operation) => self.end(usize::from(operation), end),
                None => {}
            }
        }
        if self.sides[at].datagrams.as_ref().is_some_and(|datagrams| datagrams.counters().resets > 0) {
            self.lose_datagrams(space, at);
        }
        let is_over = |client: &mut Client| client.is_settled() || client.counters().resets > 0;
        if let Some(mut settled) = self.sides[at].settling.take_if(is_over) {
            settled.close(self.sides[at].clock);
            self.send_from(at, &mut settled);
        }
    }

    /// As a client does: what was not sent is begun again by a new one.
    fn lose_datagrams(&mut self, space: &Space, at: usize) {
        let side = &mut self.sides[at];
        let Some(mut lost) = side.datagrams.take() else { return };
        for (call, operation) in std::mem::take(&mut side.calls).into_iter().rev() {
            match operation {
                GREETING => {}
                operation if lost.was_sent(call) => self.was_lost(space, usize::from(operation)),
                operation => self.sides[at].waiting.push_front(usize::from(operation)),
            }
        }
        let side = &mut self.sides[at];
        lost.cancel_all(side.clock);
        while lost.next_event().is_some() {}
        let is_over = lost.is_settled() || space.fault == Some(Fault::LosesUnsettled);
        if is_over {
            lost.close(side.clock);
        }
        self.send_from(at, &mut lost);
        self.sides[at].settling = Some(lost).filter(|_| !is_over);
        self.sides[at].open_datagrams(at);
    }

    /// The client's decisions, as in `client/src/server.rs`.
    fn advance(&mut self, space: &Space, at: usize) {
        self.take_ends(space, at);
        let side = &mut self.sides[at];
        if side.connection.is_none()
            && let Some(token) = side.token.take()
        {
            side.connection = Some(Connection { up: [Up::Hello(token)].into(), ..Connection::default() });
        }
        let mut is_draining = false;
        if let (false, Some(connection), Some(datagrams)) =
            (side.uses_connection, &mut side.connection, &mut side.datagrams)
            && connection.is_ready
            && side.settling.is_none()
        {
            let is_settled = datagrams.is_settled() || space.fault == Some(Fault::MovesUnsettled);
            let mut departure = Departure::next(datagrams.unanswered() > 0, is_settled);
            if space.fault == Some(Fault::Resends) && departure == Departure::Drain {
                let open = side.calls.values().map(|operation| usize::from(*operation));
                open.collect::<Vec<_>>().into_iter().rev().for_each(|operation| side.waiting.push_front(operation));
                departure = Departure::Leave;
            }
            is_draining = departure == Departure::Drain;
            if departure == Departure::Leave {
                datagrams.close(side.clock);
                (side.uses_connection, side.token) = (true, None);
                self.send(at);
                let side = &mut self.sides[at];
                (side.datagrams, side.is_greeted) = (None, false);
                side.calls.clear();
            }
        }
        let side = &mut self.sides[at];
        if side.uses_connection && side.connection.as_ref().is_some_and(|connection| connection.is_demoted) {
            if side.datagrams.is_none() {
                side.open_datagrams(at);
            }
            if let Some(connection) =
                side.connection.take_if(|connection| side.is_greeted && connection.open.is_empty())
            {
                side.closing.push(connection);
                side.uses_connection = false;
            }
            is_draining = side.uses_connection && side.is_greeted;
        }
        while !is_draining
            && self.sides[at].settling.is_none()
            && let Some(next) = self.next(space, at)
            && let Some(operation) = self.sides[at].waiting.remove(next)
        {
            self.begin(space, at, operation);
        }
        self.send(at);
    }

    /// Returns the place of the next operation to begin. The program waits for the end of one before it begins another on its key.
    fn next(&self, space: &Space, at: usize) -> Option<usize> {
        let key = |operation: usize| (space.wishes[operation].client, space.wishes[operation].key);
        let may_begin =
            |later: &usize| (0..*later).all(|other| key(other) != key(*later) || self.ends[other].is_some());
        self.sides[at].waiting.iter().position(may_begin)
    }

    fn begin(&mut self, space: &Space, at: usize, operation: usize) {
        let (side, wish) = (&mut self.sides[at], space.wishes[operation]);
        match (&mut side.connection, &mut side.datagrams) {
            (Some(connection), _) if side.uses_connection => {
                connection.open.push(operation);
                connection.up.push_back(Up::Run(operation));
            }
            (_, Some(datagrams)) => {
                let message = vec![u8::from(wish.kind == MUTATION), operation as u8];
                let call = datagrams.call(side.clock, wish.kind, Scope::Key(wish.key), message);
                side.calls.insert(call.expect("there is room"), operation as u8);
            }
            _ => side.waiting.push_front(operation),
        }
    }

    /// Puts a client's datagrams on their way.
    fn send(&mut self, at: usize) {
        let side = &mut self.sides[at];
        let (mut datagrams, mut settling) = (side.datagrams.take(), side.settling.take());
        datagrams.iter_mut().chain(&mut settling).for_each(|client| self.send_from(at, client));
        (self.sides[at].datagrams, self.sides[at].settling) = (datagrams, settling);
    }

    fn send_from(&mut self, at: usize, client: &mut Client) {
        for (_, bytes) in client.outbox().iter() {
            *self.passing.entry((true, at, bytes.to_vec())).or_default() += 1;
        }
        client.outbox().clear();
    }

    fn collect(&mut self, space: &Space) {
        for (to, bytes) in self.server.outbox().iter() {
            let client = (0..self.sides.len()).find(|client| client_peer(*client) == to);
            *self.passing.entry((false, client.unwrap_or(0), bytes.to_vec())).or_default() += 1;
        }
        self.server.outbox().clear();
        (0..self.sides.len()).for_each(|at| self.advance(space, at));
    }

    fn take(&mut self, is_up: bool, client: usize, bytes: &[u8]) {
        let key = (is_up, client, bytes.to_vec());
        if let Some(count) = self.passing.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.passing.remove(&key);
            }
        }
    }

    fn deliver(&mut self, space: &Space, is_up: bool, client: usize, bytes: &[u8]) {
        self.take(is_up, client, bytes);
        let side = &mut self.sides[client];
        if !is_up {
            for datagrams in side.datagrams.iter_mut().chain(&mut side.settling) {
                datagrams.receive(side.clock, server_peer(), bytes);
            }
        } else if let Some(request) = self.server.receive(0, client_peer(client), bytes) {
            let (operation, work) = (request.message[1], request.work);
            if operation != GREETING {
                self.execute(space, usize::from(operation));
            }
            let mut reply = Vec::new();
            messages::start(&mut reply, u32::from(operation), Kind::None, false);
            if let Some(&token) = self.offers.tokens.get(&work.client()) {
                append_token(&mut reply, token);
            }
            self.server.complete(0, work, &reply, None);
        }
        self.collect(space);
    }

    /// Delivers the next message of a connection.
    fn pass(&mut self, space: &Space, is_up: bool, at: usize) {
        let (now, offers) = (self.now, &mut self.offers);
        let Some(connection) = &mut self.sides[at].connection else { return };
        if is_up {
            match connection.up.pop_front() {
                Some(Up::Hello(token)) => match offers.enter(Some(token), HERE, now) {
                    Ok(slot) => {
                        connection.slot = slot;
                        connection.down.push_back(Down::Welcome);
                    }
                    Err(_) => connection.down.push_back(Down::Refused),
                },
                Some(Up::Run(operation)) => {
                    connection.down.push_back(Down::Ran(operation));
                    self.execute(space, operation);
                }
                None => {}
            }
        } else {
            match connection.down.pop_front() {
                Some(Down::Welcome) => connection.is_ready = true,
                Some(Down::Refused) => self.sides[at].connection = None,
                Some(Down::Demote) => connection.is_demoted = true,
                Some(Down::Ran(operation)) => {
                    connection.open.retain(|open| *open != operation);
                    self.end(operation, Ok(()));
                }
                None => {}
            }
        }
        self.collect(space);
    }

    /// The server sees the end of a connection.
    fn free(&mut self, space: &Space, connection: &Connection) {
        if let Some(client) = connection.slot
            && space.fault != Some(Fault::KeepsSlots)
        {
            self.offers.leave(Some(client), HERE);
        }
    }

    fn rank(&mut self, space: &Space, busy: Option<usize>) {
        self.now += ROUND;
        for at in 0..self.sides.len() {
            let side = &self.sides[at];
            let events = if busy == Some(at) { 1000 } else { 0 };
            if let Some(client) = side.connection.iter().chain(&side.closing).find_map(|connection| connection.slot) {
                self.offers.promotion.report(client, events as f64);
            }
            if let Some(client) = side.datagrams.as_ref().and_then(Client::id).filter(|_| events > 0) {
                self.offers.promotion.record(client, HERE, events, self.now);
            }
        }
        let next = &mut self.next_token;
        let decisions = self.offers.rank(self.now, || {
            *next += 1;
            *next
        });
        for decision in decisions {
            if let Decision::Demote(client) = decision {
                let mut connections = self.sides.iter_mut().filter_map(|side| side.connection.as_mut());
                if let Some(told) = connections.find(|connection| connection.slot == Some(client)) {
                    told.down.push_back(Down::Demote);
                }
            }
        }
        self.collect(space);
    }

    /// The connection breaks, at both ends.
    fn break_connection(&mut self, space: &Space, at: usize) {
        let Some(connection) = self.sides[at].connection.take() else { return };
        self.free(space, &connection);
        let used = std::mem::take(&mut self.sides[at].uses_connection);
        connection.open.iter().rev().for_each(|operation| self.was_lost(space, *operation));
        if used && self.sides[at].datagrams.is_none() {
            self.sides[at].open_datagrams(at);
        }
    }

    fn kill(&mut self, space: &Space) {
        self.incarnation += 1;
        self.server = server(self.incarnation);
        self.offers = Offers::new(space.slots, 16, self.now);
        for at in 0..self.sides.len() {
            self.sides[at].closing.clear();
            if let Some(connection) = &mut self.sides[at].connection {
                connection.slot = None;
            }
            self.break_connection(space, at);
        }
        self.collect(space);
    }

    fn time_out(&mut self, space: &Space, at: usize) {
        let side = &mut self.sides[at];
        let Some(time) = side.timer() else { return };
        side.clock = side.clock.max(time);
        let now = side.clock;
        side.datagrams.iter_mut().chain(&mut side.settling).for_each(|datagrams| datagrams.tick(now));
        self.collect(space);
    }

    /// The client has waited long enough for its first operation under way by datagrams.
    fn give_up(&mut self, space: &Space, at: usize) {
        let side = &mut self.sides[at];
        let first = side.calls.iter().find(|(_, operation)| **operation != GREETING).map(|(&call, _)| call);
        if let (Some(call), Some(datagrams)) = (first, &mut side.datagrams) {
            datagrams.cancel(side.clock, call);
        }
        self.collect(space);
    }

    fn is_quiet(&self) -> bool {
        let is_idle = |connection: &Connection| connection.up.is_empty() && connection.down.is_empty();
        let is_quiet = |side: &Side| side.closing.is_empty() && side.connection.as_ref().is_none_or(is_idle);
        self.passing.is_empty() && self.sides.iter().all(is_quiet)
    }

    fn see_closed(&mut self, space: &Space, at: usize) {
        let connection = self.sides[at].closing.remove(0);
        self.free(space, &connection);
        self.collect(space);
    }

    /// Goes on without faults until all operations have ended; returns whether they have.
    fn ends_fairly(&self, space: &Space) -> bool {
        let mut state = self.clone();
        for _ in 0..60 {
            while !state.is_quiet() {
                while let Some((is_up, client, bytes)) = state.passing.keys().next().cloned() {
                    state.deliver(space, is_up, client, &bytes);
                }
                for at in 0..state.sides.len() {
                    state.pass(space, true, at);
                    state.pass(space, false, at);
                    while !state.sides[at].closing.is_empty() {
                        state.see_closed(space, at);
                    }
                }
            }
            if state.ends.iter().all(Option::is_some) {
                return true;
            }
            (0..state.sides.len()).for_each(|at| state.time_out(space, at));
        }
        false
    }
}

impl Model for Space {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        for (is_up, client, bytes) in state.passing.keys() {
            actions.push(Step::Deliver(*is_up, *client, bytes.clone()));
            if state.left.losses > 0 {
                actions.push(Step::Lose(*is_up, *client, bytes.clone()));
            }
            if state.left.repeats > 0 {
                actions.push(Step::Repeat(*is_up, *client, bytes.clone()));
            }
        }
        for (at, side) in state.sides.iter().enumerate() {
            if let Some(connection) = &side.connection {
                let ways = [(true, !connection.up.is_empty()), (false, !connection.down.is_empty())];
                actions.extend(ways.iter().filter(|(_, any)| *any).map(|(is_up, _)| Step::Pass(*is_up, at)));
                actions.extend((state.left.breaks > 0).then_some(Step::Break(at)));
            }
            actions.extend((!side.closing.is_empty()).then_some(Step::SeeClosed(at)));
            actions.extend((state.left.timeouts > 0 && side.timer().is_some()).then_some(Step::TimeOut(at)));
            actions.extend((state.left.given_up > 0 && side.is_open()).then_some(Step::GiveUp(at)));
            actions.extend((state.left.silences > 0 && side.is_open()).then_some(Step::Silence(at)));
        }
        if state.left.rankings > 0 {
            actions.extend((0..state.sides.len()).map(|at| Step::Rank(Some(at))));
            actions.push(Step::Rank(None));
        }
        actions.extend((state.left.kills > 0).then_some(Step::Kill));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Deliver(is_up, client, bytes) => state.deliver(self, is_up, client, &bytes),
            Step::Lose(is_up, client, bytes) => {
                state.left.losses -= 1;
                state.take(is_up, client, &bytes);
            }
            Step::Repeat(is_up, client, bytes) => {
                state.left.repeats -= 1;
                *state.passing.entry((is_up, client, bytes)).or_default() += 1;
            }
            Step::Pass(is_up, at) => state.pass(self, is_up, at),
            Step::SeeClosed(at) => state.see_closed(self, at),
            Step::TimeOut(at) => {
                state.left.timeouts -= 1;
                state.time_out(self, at);
            }
            Step::GiveUp(at) => {
                state.left.given_up -= 1;
                state.give_up(self, at);
            }
            Step::Silence(at) => {
                state.left.silences -= 1;
                state.lose_datagrams(self, at);
                state.collect(self);
            }
            Step::Rank(busy) => {
                state.left.rankings -= 1;
                state.rank(self, busy);
            }
            Step::Break(at) => {
                state.left.breaks -= 1;
                state.break_connection(self, at);
                state.collect(self);
            }
            Step::Kill => {
                state.left.kills -= 1;
                state.kill(self);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |space: &Space, state: &State| {
                space.wishes.iter().zip(&state.executed).all(|(wish, count)| wish.kind == READ || *count <= 1)
            }),
            Property::always(ORDER, |_, state: &State| state.is_in_order),
            Property::always(TRUE, |space: &Space, state: &State| {
                (0..space.wishes.len()).all(|wish| match state.ends[wish] {
                    Some(Ok(())) => state.executed[wish] >= 1,
                    Some(Err(Failure::TimedOut)) if space.wishes[wish].kind == MUTATION => state.executed[wish] == 0,
                    _ => true,
                })
            }),
            Property::always(SLOTS, |space: &Space, state: &State| {
                let connections = state.sides.iter().flat_map(|side| side.connection.iter().chain(&side.closing));
                let held = connections.filter(|connection| connection.slot.is_some()).count();
                let taken = state.offers.promotion.taken();
                taken <= space.slots && taken == held + state.offers.tokens.len()
            }),
            Property::always(END, |space: &Space, state: &State| !state.is_quiet() || state.ends_fairly(space)),
            Property::sometimes(MOVED, |_, state: &State| {
                let is_done = state.ends.iter().all(|end| matches!(end, Some(Ok(()))));
                is_done && state.sides.iter().any(|side| side.uses_connection)
            }),
            Property::sometimes(BACK, |_, state: &State| state.sides.iter().any(|side| !side.closing.is_empty())),
        ]
    }
}

const ONCE: &str = "a mutation is executed at most once";
const ORDER: &str = "no late copy is executed after a later mutation";
const TRUE: &str = "ends are true";
const SLOTS: &str = "slots are those of connections";
const END: &str = "all operations end under fair loss";
const MOVED: &str = "a client moves to a connection";
const BACK: &str = "a client goes back to datagrams";

fn wish(client: usize, kind: RequestKind, key: u64) -> Wish {
    Wish { client, kind, key }
}

fn space(wishes: &[Wish], budget: Budget) -> Space {
    Space { wishes: wishes.to_vec(), slots: 1, budget, fault: None }
}

/// Explores all of it, and prints how much that was. A client moves in some run, and these happen, too.
fn explore(name: &str, space: Space, happens: &[&'static str]) {
    let checker = space.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{name}: {} states, {} of them different", checker.state_count(), checker.unique_state_count());
    for (property, path) in checker.discoveries() {
        let steps: Vec<String> = path.into_actions().iter().map(describe).collect();
        assert!([MOVED, BACK].contains(&property), "{name}: not so: {property}\n{}", steps.join("\n"));
    }
    for property in happens {
        assert!(checker.discovery(property).is_some(), "{name}: never: {property}");
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Deliver(_, client, bytes) | Step::Lose(_, client, bytes) | Step::Repeat(_, client, bytes) => {
            let what = match step {
                Step::Deliver(..) => "deliver",
                Step::Lose(..) => "lose",
                _ => "repeat",
            };
            format!("{what} of client {client}: {:?}", Datagram::decode(bytes, Format::default().check))
        }
        other => format!("{other:?}"),
    }
}

/// Two operations of a client on one key, and one on another.
fn three() -> [Wish; 3] {
    [wish(0, MUTATION, 1), wish(0, MUTATION, 2), wish(0, MUTATION, 2)]
}

#[test]
fn a_client_moves_and_executes_once() {
    for (name, budget) in [
        ("given up", Budget { rankings: 1, given_up: 1, ..Budget::default() }),
        ("silent", Budget { rankings: 1, silences: 1, ..Budget::default() }),
        ("lost", Budget { rankings: 1, losses: 1, ..Budget::default() }),
        ("repeated", Budget { rankings: 1, repeats: 1, ..Budget::default() }),
        ("out of time", Budget { rankings: 1, timeouts: 1, ..Budget::default() }),
    ] {
        explore(name, space(&three(), budget), &[MOVED]);
    }
}

#[test]
fn breaks_and_kills_end_no_slot_twice() {
    for (name, budget) in [
        ("broken", Budget { rankings: 1, breaks: 1, ..Budget::default() }),
        ("killed", Budget { rankings: 1, kills: 1, ..Budget::default() }),
    ] {
        explore(name, space(&three(), budget), &[MOVED]);
    }
}

#[test]
fn two_clients_take_turns_with_a_slot() {
    let wishes = [wish(0, MUTATION, 1), wish(0, READ, 1), wish(1, MUTATION, 1)];
    explore("demoted", space(&wishes, Budget { rankings: 2, ..Budget::default() }), &[MOVED, BACK]);
}

/// Larger budgets: 4,700,000 states, a minute on two cores.
#[test]
#[ignore = "long: cargo test --release -p rdmakv-server --lib fabric::hybrid::model -- --ignored --nocapture"]
fn larger_budgets_are_explored() {
    let wishes = [wish(0, MUTATION, 1), wish(0, MUTATION, 1), wish(1, MUTATION, 1)];
    for (name, budget) in [
        ("three rankings", Budget { rankings: 3, ..Budget::default() }),
        ("demoted, lost", Budget { rankings: 2, losses: 1, ..Budget::default() }),
        ("demoted, repeated", Budget { rankings: 2, repeats: 1, ..Budget::default() }),
        ("demoted, given up", Budget { rankings: 2, given_up: 1, ..Budget::default() }),
        ("demoted, silent", Budget { rankings: 2, silences: 1, ..Budget::default() }),
        ("demoted, broken", Budget { rankings: 2, breaks: 1, ..Budget::default() }),
        ("demoted, killed", Budget { rankings: 2, kills: 1, ..Budget::default() }),
    ] {
        explore(name, space(&wishes, budget), &[MOVED, BACK]);
    }
    let one = Budget { rankings: 1, ..Budget::default() };
    for (name, budget) in [
        ("given up, out of time", Budget { given_up: 1, timeouts: 1, ..one }),
        ("given up, repeated", Budget { given_up: 1, repeats: 1, ..one }),
        ("silent, repeated", Budget { silences: 1, repeats: 1, ..one }),
        ("silent, lost, out of time", Budget { silences: 1, losses: 1, timeouts: 1, ..one }),
        ("silent, broken", Budget { silences: 1, breaks: 1, ..one }),
        ("silent, killed", Budget { silences: 1, kills: 1, ..one }),
        ("silent twice", Budget { silences: 2, ..one }),
        ("broken, killed, lost", Budget { breaks: 1, kills: 1, losses: 1, ..one }),
    ] {
        explore(name, space(&three(), budget), &[MOVED]);
    }
}

/// A fault that has to be noticed.
fn notices(fault: Fault, property: &str, budget: Budget) {
    let space = Space { fault: Some(fault), ..space(&three(), budget) };
    let checker = space.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found: Vec<&str> = checker.discoveries().into_keys().filter(|name| ![MOVED, BACK].contains(name)).collect();
    println!("{fault:?}: noticed after {} states: {found:?}", checker.state_count());
    assert!(found.contains(&property));
}

#[test]
fn faults_of_the_switch_are_noticed() {
    let rankings = Budget { rankings: 1, ..Budget::default() };
    notices(Fault::MovesUnsettled, ORDER, Budget { given_up: 1, ..rankings });
    notices(Fault::LosesUnsettled, ORDER, Budget { silences: 1, ..rankings });
    notices(Fault::Resends, ONCE, rankings);
    notices(Fault::KeepsSlots, SLOTS, Budget { breaks: 1, ..rankings });
}
