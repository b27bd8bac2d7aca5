//! A runner: procedures of one thread on a far memory, over connections of its own.
//!
//! A procedure begins at the server that has its first address. Where it comes to bytes of another server, the answer says so, and the runner
//! sends it on: it knows the newest table. So servers need no connections to each other, and each procedure has one outcome.
//!
//! While a region moves, procedures go on where it is, and the server marks the pages that they write. A procedure that comes to a region
//! whose writes are paused waits here, and goes on at the server that has the region then. The server that had it keeps it until
//! no procedure reads there. So moves need not wait for runners, which look for answers only when their thread asks.

use super::connection::{Connection, Trouble};
use super::run::{Next, Outcome, RunError, Running};
use super::shared::{Place, ROUND, Shared};
use super::table::{AccessError, MemoryError, ServerId, Table};
use rdmakv_proto::far::messages::{Answer, Ran, Refusal, Request, RunStatus, Verb};
use rdmakv_proto::far::procedures::Procedure;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Procedures that are under way at most.
const UNDER_WAY: usize = 32;
/// How long a procedure waits for a region that moves, besides the time of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long answers are waited for while others wait for a change.
const MOMENT: Duration = Duration::from_millis(1);
/// Tickets of a runner, as a power of two. The bits above number the runners of the process.
const TICKETS: u32 = 47;
static RUNNERS: AtomicU64 = AtomicU64::new(1);

/// Names a procedure that was begun. [`Runner::wait`] has its outcome.
#[must_use = "the outcome is kept until it is taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct RunTicket(u64);

/// The state of a procedure.
enum State {
    UnderWay(Running),
    Over(Result<Outcome, RunError>),
}

/// The connection to one server.
struct Link {
    place: Place,
    /// None once it is lost.
    connection: Option<Connection>,
    /// The procedures under way there, each with the table's change at which it was sent: they are answered in this order.
    sent: VecDeque<(u64, u64)>,
}

/// A procedure that waits for a region that moves.
struct Waiting {
    ticket: u64,
    /// The address at which it goes on.
    at: u64,
    /// The table's change at which it had to wait.
    change: u64,
    /// When it is tried again without a change.
    again: Instant,
}

/// See the module. From [`Memory::runner`](super::Memory::runner).
pub struct Runner {
    shared: Arc<Shared>,
    table: Table,
    links: Vec<Link>,
    runs: HashMap<u64, State>,
    waiting: Vec<Waiting>,
    /// Of procedures that waited: at which address, and when they are given up there.
    delays: HashMap<u64, (u64, Instant)>,
    next: u64,
    /// By it the runner has its worker at each server.
    number: u32,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

/// An answer, out of its message.
struct Answered {
    request: u64,
    status: RunStatus,
    bytes: u32,
    micros: u32,
    at: u64,
    arguments: Vec<u8>,
    reply: Vec<u8>,
}

impl Answered {
    fn of(ran: &Ran<'_>) -> Self {
        let &Ran { request, status, bytes, micros, at, arguments, reply } = ran;
        Self { request, status, bytes, micros, at, arguments: arguments.to_vec(), reply: reply.to_vec() }
    }

    fn ran(&self) -> Ran<'_> {
        let &Self { request, status, bytes, micros, at, ref arguments, ref reply } = self;
        Ran { request, status, bytes, micros, at, arguments, reply }
    }
}

impl Runner {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let next = RUNNERS.fetch_add(1, Relaxed) << TICKETS;
        let number = shared.number_lane(u32::MAX);
        Self {
            shared: shared.clone(),
            table: shared.table(),
            links: Vec::new(),
            runs: HashMap::new(),
            waiting: Vec::new(),
            delays: HashMap::new(),
            next,
            number,
        }
    }

    /// Begins a procedure. It waits while as many as may be are under way, 32.
    ///
    /// The procedure sees writes that were waited for. Other writes under way have no order with it.
    ///
    /// # Errors
    /// [`RunError`]; later ones are the outcome's.
    pub fn run(&mut self, procedure: Procedure) -> Result<RunTicket, RunError> {
        let running = Running::new(procedure)?;
        while self.under_way() >= UNDER_WAY {
            self.progress();
            if self.under_way() >= UNDER_WAY {
                self.sleep();
            }
        }
        let ticket = self.next;
        self.next += 1;
        let at = running.procedure().at();
        self.runs.insert(ticket, State::UnderWay(running));
        self.send(ticket, at);
        Ok(RunTicket(ticket))
    }

    /// Returns whether a procedure has ended: [`Runner::wait`] does not wait then.
    pub fn test(&mut self, ticket: &RunTicket) -> bool {
        self.progress();
        !matches!(self.runs.get(&ticket.0), Some(State::UnderWay(_)))
    }

    /// Waits for the outcome of a procedure.
    ///
    /// # Errors
    /// [`RunError`]. A `cas64` whose server is lost may have been carried out.
    pub fn wait(&mut self, ticket: RunTicket) -> Result<Outcome, RunError> {
        while !self.test(&ticket) {
            self.sleep();
        }
        match self.runs.remove(&ticket.0) {
            Some(State::Over(outcome)) => outcome,
            _ => Err(AccessError::OtherLane.into()),
        }
    }

    /// Runs a procedure, and waits for its outcome.
    ///
    /// # Errors
    /// As [`Runner::wait`].
    pub fn call(&mut self, procedure: Procedure) -> Result<Outcome, RunError> {
        let ticket = self.run(procedure)?;
        self.wait(ticket)
    }

    fn under_way(&self) -> usize {
        self.links.iter().map(|link| link.sent.len()).sum::<usize>() + self.waiting.len()
    }

    /// Sends a procedure to the server that has this address, has it wait, or ends it.
    fn send(&mut self, ticket: u64, at: u64) {
        if let Err(error) = self.try_to_send(ticket, at) {
            self.end(ticket, Err(error));
        }
    }

    fn try_to_send(&mut self, ticket: u64, at: u64) -> Result<(), RunError> {
        if self.shared.is_over() {
            return Err(AccessError::Ended.into());
        }
        if self.shared.change() != self.table.change() {
            self.table = self.shared.table();
        }
        let change = self.table.change();
        let Some(State::UnderWay(running)) = self.runs.get(&ticket) else { return Ok(()) };
        let procedure = running.procedure().name();
        let Some(piece) = self.table.split(at, 1)?.next() else { return Err(AccessError::Ended.into()) };
        let target = self.table.read(piece.region)?;
        if self.table.is_paused(piece.region) {
            return self.delay(ticket, at, change);
        }
        let link = self.link(target.server, procedure)?;
        if self.links[link].place.workers() == 0 {
            let server = self.links[link].place.name().to_owned();
            return Err(RunError::Unable { procedure, server });
        }
        let mut arguments = Vec::new();
        let Some(State::UnderWay(running)) = self.runs.get(&ticket) else { return Ok(()) };
        let run = running.request(ticket, &mut arguments);
        let (memory, Link { connection, sent, .. }) = (self.shared.name().memory, &mut self.links[link]);
        let Some(connection) = connection else { return Err(self.lost(target.server).into()) };
        connection.post(&Request { memory, region: self.number, epoch: 0, verb: Verb::Run(run) });
        sent.push_back((ticket, change));
        Ok(())
    }

    /// Has a procedure wait until the table is another one than at this change, or for a moment.
    fn delay(&mut self, ticket: u64, at: u64, change: u64) -> Result<(), RunError> {
        let now = Instant::now();
        // The server may have sent it back: it is still the same wait.
        let over = match self.delays.get(&ticket) {
            Some(&(same, over)) if same == at => over,
            _ => now + PATIENCE + self.shared.source().patience,
        };
        self.delays.insert(ticket, (at, over));
        if over <= now {
            let region = (at / self.table.region_bytes().max(1)) as u32;
            return Err(AccessError::Busy { region }.into());
        }
        self.waiting.push(Waiting { ticket, at, change, again: now + ROUND });
        Ok(())
    }

    /// Sends those on that waited for a change which has come, or for a moment.
    fn send_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let (change, now) = (self.shared.change(), Instant::now());
        let due = self.waiting.extract_if(.., |waits| waits.change != change || waits.again <= now);
        for Waiting { ticket, at, .. } in due.collect::<Vec<_>>() {
            self.send(ticket, at);
        }
    }

    /// Returns the place of the connection to a server, which is made when it is first needed.
    fn link(&mut self, server: ServerId, procedure: &'static str) -> Result<usize, RunError> {
        if let Some(at) = self.links.iter().position(|link| link.place.server() == server) {
            return Ok(at);
        }
        let places = self.shared.servers();
        let Some(place) = places.iter().find(|place| place.server() == server) else {
            return Err(self.lost(server).into());
        };
        match self.shared.connect(place) {
            Ok(connection) => {
                let link = Link { place: place.clone(), connection: Some(connection), sent: VecDeque::new() };
                self.links.push(link);
                Ok(self.links.len() - 1)
            }
            Err(MemoryError::Connections { server: name }) => {
                let why = "as many connections use the memory there as may be".to_owned();
                Err(RunError::Unreachable { procedure, server: name, why })
            }
            Err(MemoryError::Refused { server: name, why }) => {
                Err(RunError::Unreachable { procedure, server: name, why })
            }
            Err(MemoryError::Unreachable { .. }) => {
                self.shared.lose(server);
                self.table = self.shared.table();
                Err(self.lost(server).into())
            }
            Err(_) => Err(AccessError::Ended.into()),
        }
    }

    fn end(&mut self, ticket: u64, outcome: Result<Outcome, RunError>) {
        self.delays.remove(&ticket);
        self.runs.insert(ticket, State::Over(outcome));
    }

    fn progress(&mut self) {
        (0..self.links.len()).for_each(|at| self.settle(at));
        self.send_waiting();
    }

    /// Takes the answers of a server.
    fn settle(&mut self, at: usize) {
        if let Some(connection) = &mut self.links[at].connection {
            connection.progress();
        }
        while let Link { connection: Some(connection), sent, .. } = &mut self.links[at] {
            let answer = connection.next_answer(|reply| match &reply.answer {
                Answer::Run(ran) if sent.front().is_some_and(|(ticket, _)| *ticket == ran.request) => {
                    Some(Answered::of(ran))
                }
                _ => None,
            });
            match answer {
                None if connection.broken().is_some() => return self.lose(at),
                None => return,
                Some(Err(Trouble::Broken(_))) => return self.lose(at),
                Some(answer) => {
                    let Some((ticket, change)) = sent.pop_front() else { return };
                    self.take(at, (ticket, change), answer);
                }
            }
        }
    }

    fn take(&mut self, at: usize, (ticket, change): (u64, u64), answer: Result<Answered, Trouble>) {
        let Some(State::UnderWay(running)) = self.runs.get_mut(&ticket) else { return };
        let (procedure, module) = (running.procedure().name(), running.module());
        match answer {
            Ok(answered) => match running.take(&answered.ran()) {
                // By the table it is at this very server: the region is frozen there, or its map has not come.
                Next::At(address) if self.shared.change() == change && self.is_at(address, at) => {
                    self.wait_at(ticket, address, change);
                }
                Next::At(address) => self.send(ticket, address),
                Next::Again(address) => self.wait_at(ticket, address, change),
                Next::Over(outcome) => self.end(ticket, outcome),
            },
            Err(Trouble::Refused(why @ (Refusal::Unable | Refusal::NoModules | Refusal::NoModule), _)) => {
                let server = self.links[at].place.name().to_owned();
                self.end(
                    ticket,
                    Err(match why {
                        Refusal::NoModules => RunError::NoModules { procedure, server },
                        Refusal::NoModule => RunError::NoModule { name: module, server },
                        _ => RunError::Unable { procedure, server },
                    }),
                );
            }
            // The memory has ended.
            Err(_) => self.end(ticket, Err(AccessError::Ended.into())),
        }
    }

    /// Returns whether an address is at the server of a link, by the table.
    fn is_at(&self, address: u64, link: usize) -> bool {
        let region = address / self.table.region_bytes().max(1);
        let target = u32::try_from(region).ok().and_then(|region| self.table.target(region));
        target.is_some_and(|target| target.server == self.links[link].place.server())
    }

    fn wait_at(&mut self, ticket: u64, address: u64, change: u64) {
        if let Err(error) = self.delay(ticket, address, change) {
            self.end(ticket, Err(error));
        }
    }

    /// Ends the procedures under way at a server that is lost.
    fn lose(&mut self, at: usize) {
        let server = self.links[at].place.server();
        self.links[at].connection = None;
        self.shared.lose(server);
        self.table = self.shared.table();
        let error = self.lost(server);
        for (ticket, _) in std::mem::take(&mut self.links[at].sent) {
            self.end(ticket, Err(error.clone().into()));
        }
    }

    /// Returns the error of accesses to a server that is lost.
    fn lost(&self, server: ServerId) -> AccessError {
        let of_server = |error: &AccessError| matches!(error, AccessError::Lost { server: of, .. } if *of == server);
        let mut errors = (0..self.table.len()).filter_map(|region| self.table.read(region).err());
        errors.find(of_server).unwrap_or(AccessError::Ended)
    }

    /// Sleeps until an answer may have come. Of several servers one is waited for: all have to answer.
    fn sleep(&mut self) {
        let waited = self.links.iter_mut().find(|link| !link.sent.is_empty());
        match waited.and_then(|link| link.connection.as_mut()) {
            Some(connection) if self.waiting.is_empty() => connection.wait(),
            Some(connection) => connection.wait_for(MOMENT),
            None if !self.waiting.is_empty() => self.shared.wait_for_change(self.table.change()),
            None => {}
        }
    }
}
