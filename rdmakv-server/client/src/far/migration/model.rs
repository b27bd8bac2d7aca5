//! A region of two servers, its client and the client's successors, with the state machines that ship: [`Migration`], [`Recovery`],
//! [`Table`] and the server's [`Offers`]. Explored breadth first: messages and one-sided accesses take any time, and all may die.
//!
//! One byte stands for the region. Writes have the values 1, 2 and so on, one at a time, from lanes or from a procedure at the server. After
//! each step an open client reads: it must find no less than was acknowledged or read before, or know that the region is lost.

use super::{Ask, Call, Migration, Outcome, Recovery, Step};
use crate::far::faults;
use crate::far::table::{Accesses, ServerId, Table, Target, WriteRoute};
use rdmakv_proto::far::messages::{Entry, Refusal};
use rdmakv_server::fabric::far::offers::{Caller, Freeze, Offers, Refused, Settings, Take};
use stateright::{Checker, Model, Property};
use std::collections::VecDeque;
use std::time::Duration;

const MEMORY: u64 = 1;
const SECRET: [u8; 16] = [5; 16];
const NOW: Duration = Duration::ZERO;
/// A byte that no client of the memory wrote: the place was zeroed for another one.
const FREED: u8 = 99;

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Shape {
    writes: u8,
    moves: u8,
    server_deaths: u8,
    client_deaths: u8,
    /// Servers that a client gives up though they live.
    cuts: u8,
    procedures: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    is_alive: bool,
    offers: Offers,
    /// By place.
    bytes: [u8; 2],
    /// TAGS came: procedures mark.
    marks: bool,
    marked: bool,
    /// The place and the value of a procedure that writes, and its owner.
    procedure: Option<(u32, u8, u64)>,
    inbox: VecDeque<Letter>,
}

/// A request on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Letter {
    owner: u64,
    ask: Ask,
    /// The marks of a last PULL.
    is_marked: bool,
    /// It came, and waits for a procedure.
    waits: bool,
}

/// A one-sided access under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Access {
    owner: u64,
    server: usize,
    place: u32,
    /// The value that is written, or the least that may be read.
    value: u8,
    is_write: bool,
    has_landed: bool,
    change: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Work {
    Idle,
    Moving(Migration),
    Recovering(Recovery),
    /// Lists of the servers that answered, and servers that are passed over.
    Opening(Vec<(ServerId, Vec<Entry>)>, [bool; 2]),
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    nodes: [Node; 2],
    owner: u64,
    table: Table,
    accesses: Accesses,
    work: Work,
    /// Servers that this client gave up.
    gone: [bool; 2],
    /// The ask that is under way, and its answer.
    sent: Option<Ask>,
    replies: VecDeque<(Ask, Result<Vec<u8>, Refusal>)>,
    /// A write that is not sent, and the number of the table's change at which it had to wait.
    queued: Option<(u8, u64)>,
    under_way: Vec<Access>,
    issued: u8,
    acked: u8,
    seen: u8,
    /// The server on which a finished move or recovery left it.
    settled: Option<usize>,
    moves: u8,
    server_deaths: u8,
    client_deaths: u8,
    cuts: u8,
    moved: bool,
    violation: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Action {
    Move,
    Deliver(usize),
    Receive,
    Write,
    Read,
    Land(usize),
    Finish(usize),
    BeginProcedure(usize),
    EndProcedure(usize),
    ServerDies(usize),
    Notice(usize),
    Cut(usize),
    ClientDies,
    List(usize),
    PassOver(usize),
    Decide,
}

fn server(at: usize) -> ServerId {
    at as u64 + 1
}

fn caller(owner: u64) -> Caller {
    Caller { now: NOW, login: 1, connection: owner }
}

impl World {
    fn new() -> Self {
        let settings = Settings {
            regions: 2,
            longest: Duration::from_secs(3600),
            forward: Duration::from_secs(60),
            quarantine: Duration::ZERO,
        };
        let node = Node {
            is_alive: true,
            offers: Offers::new(settings),
            bytes: [0; 2],
            marks: false,
            marked: false,
            procedure: None,
            inbox: VecDeque::new(),
        };
        let mut world = Self {
            nodes: [node.clone(), node],
            owner: 1,
            table: Table::new(4096, 4096, Target { server: 1, epoch: 1 }).expect("a region"),
            accesses: Accesses::default(),
            work: Work::Idle,
            gone: [false; 2],
            sent: None,
            replies: VecDeque::new(),
            queued: None,
            under_way: Vec::new(),
            issued: 0,
            acked: 0,
            seen: 0,
            settled: Some(0),
            moves: 0,
            server_deaths: 0,
            client_deaths: 0,
            cuts: 0,
            moved: false,
            violation: None,
        };
        let taken = world.take(0, 1, 1, None);
        assert_eq!(taken, Ok(SECRET));
        world
    }

    fn take(&mut self, at: usize, owner: u64, epoch: u32, source: Option<u64>) -> Result<[u8; 16], Refused> {
        let duration = Duration::from_secs(60);
        let secret = SECRET;
        let name = b"";
        let take =
            Take { memory: MEMORY, first: 0, regions: 1, total: 1, epoch, duration, owner, secret, name, source };
        self.nodes[at].offers.take(&caller(owner), &take, SECRET)
    }

    fn is_open(&self) -> bool {
        !matches!(self.work, Work::Opening(..) | Work::Dead)
    }

    /// Returns the server and place of the region, if its server lives and was not given up.
    fn place(&self) -> Option<(usize, Option<u32>)> {
        let at = self.table.target(0)?.server as usize - 1;
        let node = &self.nodes[at];
        (node.is_alive && !self.gone[at]).then(|| (at, node.offers.place(MEMORY, 0)))
    }

    fn is_writing(&self) -> bool {
        let mine = |access: &Access| access.is_write && access.owner == self.owner;
        let procedure = |node: &Node| node.procedure.is_some_and(|(_, _, owner)| owner == self.owner);
        self.queued.is_some() || self.under_way.iter().any(mine) || self.nodes.iter().any(procedure)
    }

    fn actions(&self, shape: &Shape, actions: &mut Vec<Action>) {
        let is_open = self.is_open();
        let has_region = is_open && self.place().is_some();
        if matches!(self.work, Work::Idle) && has_region && self.moves < shape.moves && !self.gone.contains(&true) {
            actions.push(Action::Move);
        }
        if !self.replies.is_empty() {
            actions.push(Action::Receive);
        }
        if has_region && !self.is_writing() && self.issued < shape.writes {
            actions.push(Action::Write);
        }
        let is_reading = self.under_way.iter().any(|access| !access.is_write);
        if has_region && !is_reading {
            actions.push(Action::Read);
        }
        for (number, access) in self.under_way.iter().enumerate() {
            let is_mine = access.owner == self.owner && is_open;
            if !access.has_landed && self.nodes[access.server].is_alive {
                actions.push(Action::Land(number));
            }
            if access.has_landed && is_mine && !self.gone[access.server] {
                actions.push(Action::Finish(number));
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if !node.is_alive {
                if is_open && !self.gone[at] {
                    actions.push(Action::Notice(at));
                }
                continue;
            }
            if node.inbox.front().is_some_and(|letter| !letter.waits || node.procedure.is_none()) {
                actions.push(Action::Deliver(at));
            }
            if node.procedure.is_some() {
                actions.push(Action::EndProcedure(at));
            }
            let may =
                shape.procedures && has_region && !self.gone[at] && !self.is_writing() && self.issued < shape.writes;
            if may && node.procedure.is_none() {
                actions.push(Action::BeginProcedure(at));
            }
            if self.server_deaths < shape.server_deaths {
                actions.push(Action::ServerDies(at));
            }
            if is_open && !self.gone[at] && self.cuts < shape.cuts {
                actions.push(Action::Cut(at));
            }
        }
        match &self.work {
            Work::Dead => {}
            Work::Opening(lists, passed) => {
                for (at, node) in self.nodes.iter().enumerate() {
                    let is_done = passed[at] || lists.iter().any(|(listed, _)| *listed == server(at));
                    if !is_done && node.is_alive && node.procedure.is_none() {
                        actions.push(Action::List(at));
                    }
                    if !is_done && (!node.is_alive || self.cuts < shape.cuts) {
                        actions.push(Action::PassOver(at));
                    }
                }
                if lists.len() + passed.iter().filter(|passed| **passed).count() == 2 {
                    actions.push(Action::Decide);
                }
            }
            _ if self.client_deaths < shape.client_deaths && self.table.target(0).is_some() => {
                actions.push(Action::ClientDies);
            }
            _ => {}
        }
    }

    fn step(&mut self, action: Action) {
        match action {
            Action::Move => {
                let to = server(1 - (self.table.target(0).expect("it has the region").server as usize - 1));
                self.moves += 1;
                self.settled = None;
                if let Some(migration) = Migration::new(&mut self.table, 0, to) {
                    self.work = Work::Moving(migration);
                }
            }
            Action::Deliver(at) => self.deliver(at),
            Action::Receive => {
                let (ask, answer) = self.replies.pop_front().expect("a reply");
                self.sent = None;
                let answer = answer.as_deref().map_err(|why| *why);
                match &mut self.work {
                    Work::Moving(moving) => moving.answered(&mut self.table, NOW, &ask, answer),
                    Work::Recovering(recovering) => recovering.answered(&mut self.table, NOW, &ask, answer),
                    _ => {}
                }
            }
            Action::Write => {
                self.issued += 1;
                self.queued = Some((self.issued, 0));
            }
            Action::Read => {
                let (at, place) = self.place().expect("it has the region");
                let value = self.acked.max(self.seen);
                if let Some(place) = place {
                    self.begin(Access {
                        owner: 0,
                        server: at,
                        place,
                        value,
                        is_write: false,
                        has_landed: false,
                        change: 0,
                    });
                }
            }
            Action::Land(number) => self.land(number),
            Action::Finish(number) => {
                let access = self.under_way.remove(number);
                self.accesses.end(access.change);
                if access.is_write {
                    self.acked = self.acked.max(access.value);
                }
            }
            Action::BeginProcedure(at) => {
                if let Ok(place) = self.nodes[at].offers.begin_write(MEMORY, 0) {
                    self.issued += 1;
                    self.nodes[at].procedure = Some((place, self.issued, self.owner));
                }
            }
            Action::EndProcedure(at) => {
                let node = &mut self.nodes[at];
                let (place, value, owner) = node.procedure.take().expect("a procedure");
                node.bytes[place as usize] = value;
                node.marked |= node.marks;
                node.offers.end_write(MEMORY, 0);
                if owner == self.owner && self.is_open() && !self.gone[at] {
                    self.acked = self.acked.max(value);
                }
            }
            Action::ServerDies(at) => {
                self.server_deaths += 1;
                let node = &mut self.nodes[at];
                node.is_alive = false;
                node.procedure = None;
                node.inbox.clear();
            }
            Action::Notice(at) => self.give_up(at),
            Action::Cut(at) => {
                self.cuts += 1;
                self.give_up(at);
            }
            Action::ClientDies => {
                self.client_deaths += 1;
                self.work = Work::Opening(Vec::new(), [false; 2]);
                self.owner += 1;
                self.accesses = Accesses::default();
                self.under_way.retain(|access| access.is_write && !access.has_landed);
                self.gone = [false; 2];
                (self.sent, self.queued) = (None, None);
                self.replies.clear();
            }
            Action::PassOver(at) => {
                self.cuts += u8::from(self.nodes[at].is_alive);
                self.gone[at] = true;
                if let Work::Opening(_, passed) = &mut self.work {
                    passed[at] = true;
                }
            }
            Action::List(at) => self.list(at),
            Action::Decide => {
                let Work::Opening(lists, _) = std::mem::replace(&mut self.work, Work::Dead) else { return };
                let entries: Vec<_> =
                    lists.iter().flat_map(|(at, entries)| entries.iter().map(|entry| (*at, *entry))).collect();
                let recovery = Recovery::new(&mut self.table, NOW, 0, &entries);
                self.work = Work::Recovering(recovery);
                let is_lost = self.table.target(0).is_none();
                if is_lost && self.settled.is_some_and(|at| lists.iter().any(|(listed, _)| *listed == server(at))) {
                    self.violation = Some("lost, though it was settled on a server that answers");
                }
                self.settled = None;
            }
        }
        self.go_on();
        self.look();
    }

    /// The client gives a server up.
    fn give_up(&mut self, at: usize) {
        self.gone[at] = true;
        if self.sent.is_some_and(|ask| ask.server == server(at)) {
            self.sent = None;
        }
        self.replies.retain(|(ask, _)| ask.server != server(at));
        let ended: Vec<Access> = self.under_way.iter().filter(|access| access.server == at).copied().collect();
        ended.iter().filter(|access| access.owner == self.owner).for_each(|access| self.accesses.end(access.change));
        // A write that is under way may still land, and is not waited for.
        let may_land = |access: &Access| access.is_write && !access.has_landed && self.nodes[at].is_alive;
        let is_kept = |access: &Access| access.server != at || may_land(access);
        self.under_way.retain(is_kept);
        self.under_way.iter_mut().filter(|access| access.server == at).for_each(|access| access.owner = 0);
        match &mut self.work {
            Work::Moving(moving) => moving.gone(&mut self.table, NOW, server(at)),
            Work::Recovering(recovering) => recovering.gone(&mut self.table, NOW, server(at)),
            _ => {}
        }
        if self.table.target(0).is_some_and(|target| target.server == server(at)) && matches!(self.work, Work::Idle) {
            self.table.lose(0, NOW);
        }
    }

    fn begin(&mut self, mut access: Access) {
        access.change = self.table.change();
        access.owner = self.owner;
        self.accesses.begin(access.change);
        self.under_way.push(access);
        self.under_way.sort_by_key(|access| (access.owner, access.is_write, access.server, access.place, access.value));
    }

    fn land(&mut self, number: usize) {
        let access = &mut self.under_way[number];
        let byte = &mut self.nodes[access.server].bytes[access.place as usize];
        if access.is_write {
            if *byte != FREED {
                *byte = access.value;
            }
            access.has_landed = true;
            if access.owner != self.owner {
                self.under_way.remove(number);
            }
        } else {
            access.has_landed = true;
            if *byte == FREED {
                self.violation = Some("a read found memory of another");
            } else if *byte < access.value {
                self.violation = Some("a read went back");
            } else {
                self.seen = self.seen.max(*byte);
            }
        }
    }

    fn deliver(&mut self, at: usize) {
        let letter = self.nodes[at].inbox.pop_front().expect("a message");
        let Letter { owner, ask, .. } = letter;
        let who = caller(owner);
        let mut marks = Vec::new();
        let answer = match ask.call {
            Call::Tags => {
                self.nodes[at].marks = true;
                Ok(())
            }
            Call::Take { source } => self.take(at, owner, ask.epoch, Some(source)).map(|_| self.copy(at)),
            Call::Pull { is_last: false } => Ok(()),
            Call::Pull { is_last: true } => self.pull(at, &who, &letter),
            Call::Freeze { to } => match self.nodes[at].offers.freeze(&who, MEMORY, 0, ask.epoch, to) {
                Ok(Freeze::Writing(_)) => {
                    self.nodes[at].inbox.push_front(Letter { waits: true, ..letter });
                    return;
                }
                frozen => {
                    marks = vec![self.nodes[at].marked.into()];
                    frozen.map(drop)
                }
            },
            Call::Commit => self.nodes[at].offers.commit(&who, MEMORY, 0, ask.epoch),
            Call::Map => self.nodes[at].offers.map(&who, MEMORY, 0..1, ask.epoch),
            Call::Thaw => self.nodes[at].offers.thaw(&who, MEMORY, 0, ask.epoch),
            Call::Drop { to } => self.nodes[at].offers.drop_region(&who, MEMORY, 0, ask.epoch, to).map(drop),
        };
        let node = &mut self.nodes[at];
        while let Some(place) = node.offers.places_mut().next_to_revoke() {
            node.offers.places_mut().revoked(NOW, place);
        }
        while let Some(place) = node.offers.places_mut().next_to_zero(NOW) {
            node.bytes[place as usize] = FREED;
            node.offers.places_mut().zeroed(place);
        }
        if owner == self.owner && !self.gone[at] {
            self.replies.push_back((ask, answer.map(|()| marks).map_err(|refused| refused.why)));
        }
    }

    /// Copies the region from the other server to a copy here, if that one lives and has it.
    fn copy(&mut self, at: usize) {
        let source = &self.nodes[1 - at];
        let places = (source.offers.place(MEMORY, 0), self.nodes[at].offers.place(MEMORY, 0));
        if let (true, (Some(from), Some(to))) = (source.is_alive, places) {
            self.nodes[at].bytes[to as usize] = source.bytes[from as usize];
        }
    }

    fn pull(&mut self, at: usize, who: &Caller, letter: &Letter) -> Result<(), Refused> {
        if !self.nodes[1 - at].is_alive {
            return Err(Refusal::SourceGone.into());
        }
        if letter.is_marked {
            self.copy(at);
        }
        self.nodes[at].offers.copied(who, MEMORY, 0, letter.ask.epoch)
    }

    fn list(&mut self, at: usize) {
        let former = self.owner - 1;
        if !faults::is_planted("answers before flushing") {
            self.nodes[at].inbox.clear();
            self.under_way.retain(|access| access.server != at);
        }
        for connection in 0..=former {
            self.nodes[at].offers.detach(connection);
        }
        let listed = self.nodes[at].offers.list(&caller(self.owner), MEMORY, b"", self.owner, &SECRET, 0);
        let entries = listed.map_or_else(|_| Vec::new(), |list| list.entries);
        if let Work::Opening(lists, _) = &mut self.work {
            lists.push((server(at), entries));
            lists.sort_by_key(|(server, _)| *server);
        }
    }

    /// The client's drivers go on: a queued write begins, and the next request is sent.
    fn go_on(&mut self) {
        if !self.is_open() {
            return;
        }
        let due = self.queued.filter(|(_, waited_at)| *waited_at != self.table.change());
        if let (Some((value, _)), Some((server, place))) = (due, self.place()) {
            let route = self.table.write(0, 1);
            self.queued = Some((value, self.table.change()));
            if matches!(route, Ok(WriteRoute::To(_) | WriteRoute::Marked(_))) {
                self.queued = None;
                if let (Ok(WriteRoute::Marked(_)), Work::Moving(moving)) = (&route, &mut self.work) {
                    moving.mark(0, 1);
                }
                match place {
                    Some(place) => {
                        self.begin(Access {
                            owner: 0,
                            server,
                            place,
                            value,
                            is_write: true,
                            has_landed: false,
                            change: 0,
                        });
                    }
                    None => self.violation = Some("a write went to a server without the region"),
                }
            }
        }
        let step = match &mut self.work {
            Work::Moving(moving) => moving.poll(self.accesses.oldest()),
            Work::Recovering(recovering) => recovering.poll(),
            _ => return,
        };
        match step {
            Step::Ask(ask) => {
                let at = ask.server as usize - 1;
                if self.sent != Some(ask) && !self.gone[at] {
                    self.sent = Some(ask);
                    if self.nodes[at].is_alive {
                        let is_marked = matches!(&self.work, Work::Moving(moving) if moving.marks().bytes()[0] != 0);
                        self.nodes[at].inbox.push_back(Letter { owner: self.owner, ask, is_marked, waits: false });
                    }
                }
            }
            Step::Wait => {}
            Step::Done(outcome) => {
                self.work = Work::Idle;
                self.moved |= matches!(outcome, Outcome::At(_)) && self.moves > 0;
                self.settled = self.table.target(0).map(|target| target.server as usize - 1);
                self.nodes.iter_mut().for_each(|node| (node.marks, node.marked) = (false, false));
            }
        }
    }

    /// Looks for what must not be.
    fn look(&mut self) {
        if self.violation.is_some() || !self.is_open() {
            return;
        }
        if self.table.target(0).is_none() {
            if self.server_deaths + self.cuts == 0 {
                self.violation = Some("lost, though no server is gone");
            }
            return;
        }
        match self.place() {
            None => {}
            Some((_, None)) => self.violation = Some("the server does not have the region"),
            Some((at, Some(place))) => {
                let value = self.nodes[at].bytes[place as usize];
                if value == FREED {
                    self.violation = Some("a read finds memory of another");
                } else if value < self.acked {
                    self.violation = Some("an acknowledged write is missing");
                } else if value < self.seen {
                    self.violation = Some("an address went back");
                }
                self.seen = self.seen.max(value);
            }
        }
    }
}

/// All states, with a fault.
struct Explored(Shape, &'static str);

impl Model for Explored {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.violation.is_none() {
            world.actions(&self.0, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        // The checker calls this on threads of its own.
        faults::plant(self.1);
        let mut next = world.clone();
        next.step(action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, world: &World| world.violation.is_none()),
            Property::sometimes("moved", |explored: &Self, world: &World| {
                world.moved && world.settled == Some(1) && world.acked == explored.0.writes && world.is_open()
            }),
        ]
    }
}

/// Explores up to this many states, or all for 0. Returns the violation with the steps that lead there. Returns also whether a move ended
/// in some state with all writes done, and how many states there are.
fn explore(shape: Shape, fault: &'static str, states: usize) -> (Option<(&'static str, Vec<Action>)>, bool, usize) {
    let checker = Explored(shape, fault).checker().target_state_count(states).spawn_bfs().join();
    let violation = checker.discovery("safe").map(|path| {
        let violation = path.last_state().violation.expect("a violation");
        (violation, path.into_actions())
    });
    (violation, checker.discovery("moved").is_some(), checker.unique_state_count())
}

const SHAPE: Shape = Shape { writes: 2, moves: 1, server_deaths: 1, client_deaths: 1, cuts: 0, procedures: false };

/// Explores all states, and asserts that nothing is wrong and that moves end.
fn is_safe(shape: Shape, states: usize) {
    let (violation, moved, states) = explore(shape, "", states);
    println!("{states} states of {shape:?}");
    assert_eq!(violation, None, "{shape:?}");
    assert!(moved, "no move ended in {states} states of {shape:?}");
}

#[test]
fn no_write_is_missing_while_all_may_die() {
    is_safe(SHAPE, 0);
}

#[test]
fn no_write_is_missing_while_servers_are_cut_off() {
    is_safe(Shape { server_deaths: 0, cuts: 1, ..SHAPE }, 0);
}

#[test]
fn no_write_of_a_procedure_is_missing() {
    is_safe(Shape { server_deaths: 0, procedures: true, ..SHAPE }, 0);
}

/// Takes long: run it by name, in a release build.
#[test]
#[ignore = "explores a million states"]
fn explores_two_moves_for_long() {
    let shape = Shape { cuts: 1, procedures: true, ..SHAPE };
    is_safe(shape, 0);
    is_safe(Shape { moves: 2, client_deaths: 2, ..shape }, 0);
}

#[test]
fn planted_faults_are_found() {
    let cut = Shape { cuts: 1, server_deaths: 0, ..SHAPE };
    let deaths = Shape { cuts: 1, writes: 1, ..SHAPE };
    let procedures = Shape { procedures: true, client_deaths: 0, server_deaths: 0, ..SHAPE };
    let faults = [
        ("copies before marks count", SHAPE),
        ("freezes before writes end", SHAPE),
        ("writes while frozen", SHAPE),
        ("forgets the server's marks", procedures),
        ("takes a lost answer for not done", cut),
        ("thaws in the same epoch", cut),
        ("goes back after commit", cut),
        ("drops before reads end", SHAPE),
        ("believes the frozen", SHAPE),
        ("believes the committed", deaths),
        ("takes the lowest epoch", SHAPE),
        ("answers before flushing", SHAPE),
    ];
    for (fault, shape) in faults {
        let (violation, _, states) = explore(shape, fault, 0);
        let (violation, steps) = violation.unwrap_or_else(|| panic!("{fault}: not found in {states} states"));
        println!("{fault}: {violation}, after {} steps", steps.len());
    }
}
