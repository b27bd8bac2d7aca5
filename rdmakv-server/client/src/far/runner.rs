//! A runner: procedures of one thread on a far memory, over connections of its own.
//!
//! A procedure begins at the server that has its first address. Where it comes to bytes of another server, the answer says so, and the runner
//! sends it on: it knows the newest table. So servers need no connections to each other, and each procedure has one outcome.

use super::connection::{Connection, Trouble};
use super::run::{Next, Outcome, RunError, Running};
use super::shared::{Place, Shared};
use super::table::{AccessError, MemoryError, ServerId, Table, Target, WriteRoute};
use rdmakv_proto::far::messages::{Answer, Ran, Refusal, Request, RunStatus, Verb};
use rdmakv_proto::far::procedures::Procedure;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Procedures that are under way at most.
const UNDER_WAY: usize = 32;
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
    /// The procedures under way there: they are answered in this order.
    sent: VecDeque<u64>,
}

/// See the module. From [`Memory::runner`](super::Memory::runner).
pub struct Runner {
    shared: Arc<Shared>,
    table: Table,
    links: Vec<Link>,
    runs: HashMap<u64, State>,
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
        Self { shared: shared.clone(), table: shared.table(), links: Vec::new(), runs: HashMap::new(), next, number }
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
        self.links.iter().map(|link| link.sent.len()).sum()
    }

    /// Sends a procedure to the server that has this address, or ends it.
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
        let Some(State::UnderWay(running)) = self.runs.get(&ticket) else { return Ok(()) };
        let (procedure, writes) = (running.procedure().name(), running.procedure().writes());
        let target = self.target(at, writes)?;
        let link = self.link(target.server)?;
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
        sent.push_back(ticket);
        Ok(())
    }

    /// Returns the server that has an address. While a region moves, procedures do not write to it.
    fn target(&mut self, at: u64, writes: bool) -> Result<Target, AccessError> {
        let Some(piece) = self.table.split(at, 1)?.next() else { return Err(AccessError::Ended) };
        if !writes {
            return self.table.read(piece.region);
        }
        match self.table.write(piece.region, 8)? {
            WriteRoute::To(target) => Ok(target),
            WriteRoute::Marked(_) | WriteRoute::Wait => Err(AccessError::Busy { region: piece.region }),
        }
    }

    /// Returns the place of the connection to a server, which is made when it is first needed.
    fn link(&mut self, server: ServerId) -> Result<usize, RunError> {
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
            Err(MemoryError::Unreachable { .. }) => {
                self.shared.lose(server);
                self.table = self.shared.table();
                Err(self.lost(server).into())
            }
            Err(_) => Err(AccessError::Ended.into()),
        }
    }

    fn end(&mut self, ticket: u64, outcome: Result<Outcome, RunError>) {
        self.runs.insert(ticket, State::Over(outcome));
    }

    fn progress(&mut self) {
        (0..self.links.len()).for_each(|at| self.settle(at));
    }

    /// Takes the answers of a server.
    fn settle(&mut self, at: usize) {
        if let Some(connection) = &mut self.links[at].connection {
            connection.progress();
        }
        while let Link { connection: Some(connection), sent, .. } = &mut self.links[at] {
            let answer = connection.next_answer(|reply| match &reply.answer {
                Answer::Run(ran) if Some(&ran.request) == sent.front() => Some(Answered::of(ran)),
                _ => None,
            });
            match answer {
                None if connection.broken().is_some() => return self.lose(at),
                None => return,
                Some(Err(Trouble::Broken(_))) => return self.lose(at),
                Some(answer) => {
                    let Some(ticket) = sent.pop_front() else { return };
                    self.take(at, ticket, answer);
                }
            }
        }
    }

    fn take(&mut self, at: usize, ticket: u64, answer: Result<Answered, Trouble>) {
        let region_bytes = self.table.region_bytes();
        let Some(State::UnderWay(running)) = self.runs.get_mut(&ticket) else { return };
        let procedure = running.procedure().name();
        match answer {
            Ok(answered) => match running.take(&answered.ran(), region_bytes) {
                Next::At(address) => self.send(ticket, address),
                Next::Over(outcome) => self.end(ticket, outcome),
            },
            Err(Trouble::Refused(Refusal::Unable, _)) => {
                let server = self.links[at].place.name().to_owned();
                self.end(ticket, Err(RunError::Unable { procedure, server }));
            }
            // The memory has ended.
            Err(_) => self.end(ticket, Err(AccessError::Ended.into())),
        }
    }

    /// Ends the procedures under way at a server that is lost.
    fn lose(&mut self, at: usize) {
        let server = self.links[at].place.server();
        self.links[at].connection = None;
        self.shared.lose(server);
        self.table = self.shared.table();
        let error = self.lost(server);
        for ticket in std::mem::take(&mut self.links[at].sent) {
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
        if let Some(connection) = waited.and_then(|link| link.connection.as_mut()) {
            connection.wait();
        }
    }
}
