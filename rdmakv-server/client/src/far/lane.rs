//! A lane: accesses of one thread to a far memory, over connections of its own.
//!
//! An access is split over regions. Each part is posted at the server that has the region, by a tag that the lane asked for once. The
//! access ends with its last part.
//!
//! With workers, short parts go to the server in batches, which a worker carries out. Longer ones are posted all the same. A batch leaves
//! when it is full, and when the caller waits for an access in it.
//!
//! While a region moves, the lane marks the pages that it writes. Writes to a paused region wait in the lane. So do accesses of a moving
//! region whose server is lost. They go on when the table changes. The lane publishes the table's change at which its oldest access
//! began. So the move knows when no access follows an older table.
#![expect(unsafe_code, reason = "lends buffers to connections")]

use super::batches::Batches;
use super::configuration::Configuration;
use super::connection::{Connection, Trouble, acks_by_completion};
use super::order::{Kind, Order};
use super::shared::{Place, ROUND, Shared};
use super::table::{AccessError, Accesses, MemoryError, Piece, ServerId, Table, Target, WriteRoute};
use crate::slots::Slot;
use rdmakv_proto::far::batch::{Batch, Operation, Reply, Status, Writer};
use rdmakv_proto::far::messages::{Answer, Refusal, Request, Verb};
use rdmakv_proto::messages::RemoteSegment;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a read that acks writes.
const ACK: u64 = 8;
/// Pieces of accesses that one batch has at most.
const PIECES: usize = 1 << 16;

/// Tickets of a lane, as a power of two: more than four years of a million a second. The bits above number the lanes of the process, so that no
/// lane takes another's ticket for its own.
const TICKETS: u32 = 47;
static LANES: AtomicU64 = AtomicU64::new(1);

/// Names an access of a lane.
type Op = u64;

/// Memory for accesses, from [`Lane::buffer`]. It may be kept.
pub struct Buffer(Slot);

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// Names an access that was begun. [`Lane::wait`] has its outcome.
#[must_use = "the buffer is kept until the outcome is taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(Op);

/// An access that was begun.
struct Access {
    buffer: Buffer,
    /// Parts that have not ended, and one while more may be posted.
    parts: usize,
    writes: bool,
    error: Option<AccessError>,
    /// The number of the table's change when it began.
    change: u64,
}

/// Bytes of a part that goes in a batch, at most.
const BATCHED: u64 = 4096;

/// A part of an access, in one region.
#[derive(Clone, Copy, Debug)]
struct Part {
    op: Op,
    region: u32,
    offset: u64,
    /// The first byte in the buffer of the access.
    at: usize,
    length: u64,
    writes: bool,
    /// The place that it goes to.
    target: Target,
}

/// The fate of a part.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// It goes to its target.
    To,
    /// It goes to its target, and its pages are marked before.
    Marked,
    /// It waits for a change of the table.
    Wait,
}

/// The lane's part of one server.
struct Server {
    place: Place,
    /// None once it is lost. Its end has no access to buffers then.
    connection: Option<Connection>,
    order: Order<Part>,
    batches: Batches<Part>,
    /// By region, each with the epoch in which it was asked for.
    tags: HashMap<u32, (u32, RemoteSegment)>,
    /// The destination of reads that ack writes.
    ack: Slot,
    /// The tag of the last write.
    last: Option<RemoteSegment>,
}

impl Server {
    /// Returns whether something is under way there.
    fn is_waited_for(&self) -> bool {
        !self.order.is_idle() || !self.batches.is_idle()
    }
}

/// See the module. From [`Memory::lane`](super::Memory::lane).
pub struct Lane {
    /// Dropped first: accesses have their buffers until then.
    servers: Vec<Server>,
    accesses: HashMap<Op, Access>,
    next: Op,
    /// Whether short parts go in batches.
    is_batched: bool,
    /// By it the lane has its worker at each server.
    number: u32,
    of: Configuration,
    table: Table,
    /// The table's change by which `waiting` was looked at.
    routed: u64,
    /// Parts that wait for a change of the table.
    waiting: VecDeque<Part>,
    begun: Accesses,
    /// The oldest of `begun`, as others see it. After the servers: accesses that are flushed with them are under way until then.
    oldest: Arc<AtomicU64>,
    shared: Arc<Shared>,
}

/// The answer of a server that was asked for a region's tag.
enum Tagged {
    By(RemoteSegment),
    /// The server does not give one.
    Refused,
    /// The region moves, or stayed in a later epoch.
    Moved,
    /// The server is lost.
    Lost,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("under_way", &self.accesses.len()).finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn new(shared: &Arc<Shared>, of: &Configuration) -> Result<Self, MemoryError> {
        let oldest = shared.join();
        let next = LANES.fetch_add(1, Ordering::Relaxed) << TICKETS;
        let (is_batched, number) = (!of.is_one_sided(), shared.number_lane(of.workers));
        let table = shared.table();
        let mut lane = Self {
            servers: Vec::new(),
            accesses: HashMap::new(),
            next,
            is_batched,
            number,
            of: *of,
            routed: table.change(),
            table,
            waiting: VecDeque::new(),
            begun: Accesses::default(),
            oldest,
            shared: shared.clone(),
        };
        lane.join_servers()?;
        Ok(lane)
    }

    /// Connects to the servers that the lane does not know yet.
    fn join_servers(&mut self) -> Result<(), MemoryError> {
        let all = self.shared.servers();
        for place in all.iter().skip(self.servers.len()) {
            let no_memory = || MemoryError::System { what: "the memory for buffers is full".to_owned() };
            let ack = self.shared.slot(ACK as usize).ok_or_else(no_memory)?;
            let connection = match self.shared.connect(place) {
                Ok(connection) => Some(connection),
                // It takes no more connections. It is no loss of regions that other connections reach.
                Err(error @ MemoryError::Unreachable { .. }) if self.shared.is_reached(place.server()) => {
                    return Err(error);
                }
                Err(MemoryError::Unreachable { .. } | MemoryError::Ended) if !self.shared.is_over() => {
                    self.shared.lose(place.server());
                    None
                }
                Err(error) => return Err(error),
            };
            let (batch, depth) = (self.of.batch as usize, self.of.depth as usize);
            self.servers.push(Server {
                place: place.clone(),
                connection,
                order: Order::new(depth, acks_by_completion(place.fabric())),
                batches: Batches::new(batch, depth),
                tags: HashMap::new(),
                ack,
                last: None,
            });
        }
        Ok(())
    }

    /// Returns memory for accesses of so many bytes. Its content is undefined, and not zero where it was used before.
    ///
    /// # Errors
    /// [`AccessError::NoBuffer`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, AccessError> {
        self.shared.slot(bytes).map(Buffer).ok_or(AccessError::NoBuffer { bytes })
    }

    /// Begins to read as many bytes as the buffer has, from `at` on. It waits while [as many accesses](super::Options::depth) as may be are
    /// under way.
    ///
    /// # Errors
    /// [`AccessError`]; later ones are the outcome's.
    pub fn read(&mut self, at: u64, buffer: Buffer) -> Result<Ticket, AccessError> {
        let length = buffer.len() as u64;
        self.begin(&[(at, length)], buffer, false)
    }

    /// Begins to read these bytes, each a first one and a length, into the buffer, one after the other: the buffer has as many.
    ///
    /// # Errors
    /// As [`Lane::read`].
    pub fn read_batch(&mut self, parts: &[(u64, u64)], buffer: Buffer) -> Result<Ticket, AccessError> {
        self.begin(parts, buffer, false)
    }

    /// Begins to write the buffer, from `at` on. It waits as [`Lane::read`] does. The outcome comes when the server's memory has the bytes.
    ///
    /// Accesses of the same bytes that are under way at the same time have no order: wait for one before the other.
    ///
    /// # Errors
    /// As [`Lane::read`].
    pub fn write(&mut self, at: u64, buffer: Buffer) -> Result<Ticket, AccessError> {
        let length = buffer.len() as u64;
        self.begin(&[(at, length)], buffer, true)
    }

    /// Returns whether an access has ended: [`Lane::wait`] does not wait then.
    pub fn test(&mut self, ticket: &Ticket) -> bool {
        self.send_batches_of(ticket.0);
        self.progress();
        self.is_over(ticket.0)
    }

    /// Waits for the end of an access, and returns its buffer.
    ///
    /// # Errors
    /// [`AccessError`]. Bytes of a write that came to nothing may have been written.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Buffer, AccessError> {
        self.send_batches_of(ticket.0);
        loop {
            self.progress();
            if self.is_over(ticket.0) {
                break;
            }
            self.sleep(ticket.0);
        }
        match self.accesses.remove(&ticket.0) {
            Some(Access { buffer, error: None, .. }) => Ok(buffer),
            Some(Access { error: Some(error), .. }) => Err(error),
            None => Err(AccessError::OtherLane),
        }
    }

    fn is_over(&self, op: Op) -> bool {
        self.accesses.get(&op).is_none_or(|access| access.parts == 0)
    }

    fn begin(&mut self, parts: &[(u64, u64)], buffer: Buffer, writes: bool) -> Result<Ticket, AccessError> {
        let change = self.enter();
        let routed = self.route_all(parts, buffer.len() as u64, writes);
        let routed = match routed {
            Ok(routed) => routed,
            Err(error) => {
                self.publish();
                return Err(error);
            }
        };
        let op = self.next;
        self.next += 1;
        self.begun.begin(change);
        self.accesses.insert(op, Access { buffer, parts: 1 + routed.len(), writes, error: None, change });
        routed.into_iter().for_each(|(part, route)| self.send(part, route));
        self.end_part(op);
        Ok(Ticket(op))
    }

    /// Begins an access by the present table. Returns the number of its change, which is published before it is looked at again.
    fn enter(&mut self) -> u64 {
        loop {
            self.refresh();
            let change = self.table.change();
            self.oldest.store(self.begun.oldest().min(change), Ordering::SeqCst);
            if self.shared.change() == change {
                return change;
            }
        }
    }

    fn publish(&self) {
        self.oldest.store(self.begun.oldest(), Ordering::SeqCst);
    }

    /// Returns the parts of the next access, each with where it goes.
    fn route_all(&mut self, parts: &[(u64, u64)], bytes: u64, writes: bool) -> Result<Vec<(Part, Route)>, AccessError> {
        if self.shared.is_over() {
            return Err(AccessError::Ended);
        }
        let (mut routed, mut filled) = (Vec::new(), 0_u64);
        for &(at, length) in parts {
            for Piece { region, offset, buffer } in self.table.split(at, length)? {
                let (length, at) = (buffer.end - buffer.start, (filled + buffer.start) as usize);
                let (target, route) = self.route(region, length, writes)?;
                routed.push((Part { op: self.next, region, offset, at, length, writes, target }, route));
            }
            filled += length;
        }
        if routed.len() > PIECES {
            return Err(AccessError::Long { parts: routed.len(), most: PIECES });
        }
        if filled != bytes {
            return Err(AccessError::Buffer { wanted: filled, length: bytes });
        }
        Ok(routed)
    }

    fn route(&mut self, region: u32, length: u64, writes: bool) -> Result<(Target, Route), AccessError> {
        let target = self.table.read(region)?;
        if !writes {
            return Ok((target, Route::To));
        }
        Ok(match self.table.write(region, length)? {
            WriteRoute::To(target) => (target, Route::To),
            WriteRoute::Marked(target) => (target, Route::Marked),
            WriteRoute::Wait => (target, Route::Wait),
        })
    }

    /// Sends a part to its target, or has it wait.
    fn send(&mut self, part: Part, route: Route) {
        match route {
            Route::Wait => return self.waiting.push_back(part),
            Route::Marked => self.shared.mark(part.region, part.offset, part.length),
            Route::To => {}
        }
        let at = self.servers.iter().position(|of| of.place.server() == part.target.server);
        match at {
            Some(at) if self.is_batched && part.length <= BATCHED => self.add_to_batch(at, part),
            Some(at) => self.post(at, part),
            None => self.undo(part),
        }
    }

    /// Has a part that was not carried out wait if its region may be elsewhere soon, or is. Otherwise its access fails.
    fn undo(&mut self, part: Part) {
        let is_elsewhere = self.table.target(part.region).is_some_and(|target| target != part.target);
        if is_elsewhere || self.table.is_moving(part.region) {
            if is_elsewhere {
                // The table has changed already.
                self.routed = 0;
            }
            return self.waiting.push_back(part);
        }
        let error = self.lost(part.region);
        self.fail(part.op, error);
        self.end_part(part.op);
    }

    /// Posts a part of an access, or notes why it cannot be.
    fn post(&mut self, at: usize, part: Part) {
        let Some(memory) = self.accesses.get(&part.op).map(|access| access.buffer.0.as_ptr()) else { return };
        let memory = memory.wrapping_add(part.at);
        loop {
            let tag = match self.tag(at, &part) {
                Tagged::By(tag) => tag,
                Tagged::Refused => {
                    self.fail(part.op, AccessError::NoKey { region: part.region });
                    return self.end_part(part.op);
                }
                Tagged::Moved | Tagged::Lost => break,
            };
            let Server { connection: Some(connection), order, last, .. } = &mut self.servers[at] else { break };
            if order.has_room() {
                let segment = RemoteSegment { address: tag.address + part.offset, length: part.length, ..tag };
                // SAFETY: `Connection::read` and `write` require that the memory has no other user, and is not written, until the end
                // or until the connection is dropped. It is the buffer's, which `accesses` keeps until all parts have ended.
                let posted = unsafe {
                    if part.writes { connection.write(memory, segment) } else { connection.read(memory, segment) }
                };
                if let Some(id) = posted {
                    order.post(id, if part.writes { Kind::Write(part) } else { Kind::Read(part) });
                    *last = if part.writes { Some(tag) } else { *last };
                    self.ack(at, false);
                    return;
                }
                connection.progress();
            }
            self.settle(at);
            self.ack(at, true);
            let Server { connection: Some(connection), order, .. } = &mut self.servers[at] else { break };
            if !order.has_room() {
                connection.wait();
                self.settle(at);
            }
        }
        self.undo(part);
    }

    /// Adds a part to the open batch, and sends the batch if it is full.
    fn add_to_batch(&mut self, at: usize, part: Part) {
        let length = part.length as usize;
        if !self.servers[at].batches.takes(length, part.writes) {
            self.send_batch(at);
        }
        if self.servers[at].connection.is_none() {
            return self.undo(part);
        }
        if self.servers[at].batches.add(part, length, part.writes) {
            self.send_batch(at);
        }
    }

    /// Sends the batches in which parts of the access wait.
    fn send_batches_of(&mut self, op: Op) {
        for at in 0..self.servers.len() {
            if self.servers[at].batches.is_open(|part| part.op == op) {
                self.send_batch(at);
            }
        }
    }

    /// Sends the open batch, once there are fewer under way than may be. It comes to nothing if the server is lost.
    fn send_batch(&mut self, at: usize) {
        while !self.servers[at].batches.has_room() {
            if let Some(connection) = &mut self.servers[at].connection {
                connection.wait();
            }
            self.settle(at);
        }
        let Server { connection: Some(connection), batches, .. } = &mut self.servers[at] else { return };
        let Some((sequence, parts, bytes)) = batches.take() else { return };
        let mut batch = vec![0; bytes];
        let Some(mut writer) = Writer::new(&mut batch) else { return };
        for &Part { op, region, offset, at, length, writes, .. } in parts {
            let Some(access) = self.accesses.get(&op) else { continue };
            let operation = match writes {
                true => Operation::Write { region, offset, data: &access.buffer[at..at + length as usize] },
                false => Operation::Read { region, offset, length: length as u16 },
            };
            let is_added = writer.operation(&operation);
            debug_assert!(is_added, "the batch's length was computed");
        }
        let verb = Verb::Batch { batch: writer.finish(sequence) };
        connection.post(&Request { memory: self.shared.name().memory, region: self.number, epoch: 0, verb });
    }

    /// Takes the replies of batches that have come from one server.
    fn take_replies(&mut self, at: usize) {
        while let Some(connection) = &mut self.servers[at].connection {
            let replies = connection.next_answer(|reply| match reply.answer {
                Answer::Batch { replies } => Some(replies.to_vec()),
                _ => None,
            });
            match replies {
                None => return,
                Some(Ok(replies)) if self.end_batch(at, &replies) => {}
                // The caller sees that the connection is broken.
                Some(Err(Trouble::Broken(_))) => return,
                // The memory has ended, or the server's answer makes no sense.
                Some(_) => {
                    let server = self.servers[at].place.server();
                    return self.lose(at, server);
                }
            }
        }
    }

    /// Ends the parts of a batch. Returns false if the replies are not those of the batch.
    fn end_batch(&mut self, at: usize, replies: &[u8]) -> bool {
        let Ok(replies) = Batch::decode(replies) else { return false };
        let Some(parts) = self.servers[at].batches.end(replies.sequence()) else { return false };
        let mut replies = replies.replies();
        // Regions that are not there: the memory has ended.
        let mut unplaced = Vec::new();
        for part in parts {
            let wanted = if part.writes { 0 } else { part.length as usize };
            match replies.next() {
                Some(Ok(Reply { status: Status::Done, data })) if data.len() == wanted => {
                    if let Some(access) = self.accesses.get_mut(&part.op) {
                        access.buffer[part.at..part.at + wanted].copy_from_slice(data);
                    }
                }
                Some(Ok(Reply { status: Status::Frozen, .. })) => {
                    self.fail(part.op, AccessError::Busy { region: part.region });
                }
                _ => {
                    unplaced.push(part.op);
                    continue;
                }
            }
            self.end_part(part.op);
        }
        if !unplaced.is_empty() {
            let server = self.servers[at].place.server();
            self.lose(at, server);
            let error = self.lost_of(server);
            for op in unplaced {
                self.fail(op, error.clone());
                self.end_part(op);
            }
        }
        true
    }

    /// Posts a read that acks writes, where one is wanted. Without room for it now, it is tried again.
    fn ack(&mut self, at: usize, is_waiting: bool) {
        let Server { connection: Some(connection), order, ack, last: Some(tag), .. } = &mut self.servers[at] else {
            return;
        };
        if !order.wants_ack(is_waiting) {
            return;
        }
        // SAFETY: `Connection::read` requires that the memory has no other user until the read has ended. One such read is under way at
        // a time, nothing else uses its slot, and the slot is dropped after the connection.
        if let Some(id) = unsafe { connection.read(ack.as_ptr(), RemoteSegment { length: ACK, ..*tag }) } {
            order.post(id, Kind::Ack);
        }
    }

    /// Returns the tag of a part's region, which is asked for once in each epoch.
    fn tag(&mut self, at: usize, part: &Part) -> Tagged {
        let Part { region, target: Target { epoch, .. }, .. } = *part;
        if let Some(&(of, tag)) = self.servers[at].tags.get(&region)
            && of == epoch
        {
            return Tagged::By(tag);
        }
        let Server { connection, tags, place, .. } = &mut self.servers[at];
        let request = Request { memory: self.shared.name().memory, region, epoch, verb: Verb::Tags { moves: false } };
        let bytes = self.table.region_bytes();
        let Some(connection) = connection.as_mut() else { return Tagged::Lost };
        let asked = connection.ask(&request, |reply| match reply.answer {
            Answer::Tags { write, .. } => write.iter().next().filter(|tag| tag.length == bytes),
            _ => None,
        });
        match asked {
            Ok(tag) => {
                tags.insert(region, (epoch, tag));
                Tagged::By(tag)
            }
            // It has no key left. Other lanes, and other regions of this one, are reached as before.
            Err(Trouble::Refused(Refusal::Unable, _)) => Tagged::Refused,
            // A move began or ended since the table was read: the part goes by the next one.
            Err(Trouble::Refused(Refusal::Stale | Refusal::State, _)) => {
                self.table = self.shared.table();
                Tagged::Moved
            }
            // The memory has ended: nothing of it is reached by this lane any more.
            Err(_) => {
                let server = place.server();
                self.lose(at, server);
                Tagged::Lost
            }
        }
    }

    /// Takes what has ended at one server, and notes whether it is lost.
    fn settle(&mut self, at: usize) {
        let mut ended = Vec::new();
        let Server { connection: Some(connection), order, place, .. } = &mut self.servers[at] else { return };
        connection.progress();
        while let Some(id) = connection.next_completed() {
            if !order.complete(id, &mut ended) {
                debug_assert!(false, "a fabric completes in the order of posting");
            }
        }
        let server = place.server();
        ended.into_iter().for_each(|part| self.end_part(part.op));
        self.take_replies(at);
        let is_broken = |connection: &Connection| connection.broken().is_some();
        let lost = self.servers[at].connection.as_ref().is_some_and(is_broken).then_some(server);
        if let Some(server) = lost {
            self.lose(at, server);
        } else {
            self.ack(at, false);
        }
    }

    fn progress(&mut self) {
        self.refresh();
        (0..self.servers.len()).for_each(|at| self.settle(at));
    }

    /// Sleeps until a part of the access may have ended.
    fn sleep(&mut self, op: Op) {
        if !self.waiting.is_empty() || self.accesses.get(&op).is_some_and(|access| access.writes) {
            (0..self.servers.len()).for_each(|at| self.ack(at, true));
        }
        // Of several servers each is waited for in turn: all have to answer.
        let waited = self.servers.iter_mut().find(|server| server.connection.is_some() && server.is_waited_for());
        match waited.and_then(|server| server.connection.as_mut()) {
            Some(connection) if self.waiting.is_empty() => connection.wait(),
            Some(connection) => connection.wait_for(ROUND),
            None if !self.waiting.is_empty() => self.shared.wait_for_change(self.routed),
            // Nothing is under way, so nothing of this access can end it.
            None => {
                let error = self.lost(0);
                self.fail(op, error);
                while !self.is_over(op) {
                    self.end_part(op);
                }
            }
        }
    }

    /// Learns what other lanes found out, and what moves did.
    fn refresh(&mut self) {
        if self.shared.arrivals() != self.servers.len() && self.join_servers().is_err() {
            // It is tried again. A part that goes there waits, or is lost.
        }
        if self.shared.change() == self.table.change() && self.routed == self.table.change() {
            return;
        }
        let (table, gone) = self.shared.now();
        self.table = table;
        self.routed = self.table.change();
        for at in 0..self.servers.len() {
            if self.servers[at].connection.is_some() && gone.contains(&self.servers[at].place.server()) {
                self.abandon(at);
            }
            // A move may wait for accesses of before.
            self.send_batch(at);
            self.ack(at, true);
        }
        for part in std::mem::take(&mut self.waiting) {
            match self.route(part.region, part.length, part.writes) {
                Ok((target, route)) => {
                    let is_reached =
                        self.servers.iter().any(|of| of.place.server() == target.server && of.connection.is_some());
                    let route = if is_reached || !self.table.is_moving(part.region) { route } else { Route::Wait };
                    self.send(Part { target, ..part }, route);
                }
                Err(error) => {
                    self.fail(part.op, error);
                    self.end_part(part.op);
                }
            }
        }
        // They may be waited for already.
        (0..self.servers.len()).for_each(|at| self.send_batch(at));
    }

    fn lose(&mut self, at: usize, server: ServerId) {
        self.shared.lose(server);
        self.table = self.shared.table();
        self.abandon(at);
    }

    /// Ends the accesses under way at a server that is lost, except those of a region that moves.
    fn abandon(&mut self, at: usize) {
        // It is flushed when it is dropped: nothing is at the buffers after that.
        self.servers[at].connection = None;
        self.servers[at].tags.clear();
        let Server { order, batches, .. } = &mut self.servers[at];
        let parts: Vec<Part> = order.give_up().into_iter().chain(batches.give_up()).collect();
        parts.into_iter().for_each(|part| self.undo(part));
    }

    fn lost(&self, region: u32) -> AccessError {
        if self.shared.is_over() {
            return AccessError::Ended;
        }
        // A server that is not lost, and not reached now.
        self.table.read(region.min(self.table.len() - 1)).err().unwrap_or(AccessError::Busy { region })
    }

    fn lost_of(&self, server: ServerId) -> AccessError {
        if self.shared.is_over() {
            return AccessError::Ended;
        }
        let of_server = |error: &AccessError| matches!(error, AccessError::Lost { server: of, .. } if *of == server);
        let errors = (0..self.table.len()).filter_map(|region| self.table.read(region).err());
        errors.into_iter().find(of_server).unwrap_or(AccessError::Ended)
    }

    fn fail(&mut self, op: Op, error: AccessError) {
        if let Some(access) = self.accesses.get_mut(&op) {
            access.error.get_or_insert(error);
        }
    }

    fn end_part(&mut self, op: Op) {
        if let Some(access) = self.accesses.get_mut(&op)
            && access.parts > 0
        {
            access.parts -= 1;
            if access.parts == 0 {
                let change = access.change;
                self.begun.end(change);
                self.publish();
            }
        }
    }
}
