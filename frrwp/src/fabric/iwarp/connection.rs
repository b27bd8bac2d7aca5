//! One connection: both halves of the protocol, a socket, and what its application is told.
//!
//! One lock guards all of it; whoever holds it may read and write the socket, and no system call made under it blocks. The
//! provider's thread, and the application's when it posts, polls or waits, take turns.
#![expect(unsafe_code, reason = "places bytes in registered memory")]

use super::IwarpEnd;
use super::inbound::{Breach, Event, Gate, Inbound, LOOKAHEAD, Landing, Next, Reading};
use super::memory;
use super::outbound::{Ends, Outbound, Sources};
use super::provider::Shared;
use super::socket::{self, Room};
use super::tags::{Pin, Wish};
use super::terminate::Terminate;
use crate::wire::MESSAGE;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are received ahead of what is known to come.
const BUFFER: usize = 4096;
/// Times that a socket is read before others have their turn.
const ROUNDS: usize = 32;
/// How long the peer may take to hear last words.
const LINGER: Duration = Duration::from_secs(1);

/// What is told to the application.
#[derive(Debug)]
pub(super) enum Arrival {
    Message(Vec<u8>),
    Done { id: u64, succeeded: bool },
    Lost,
    Flushed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// Last words are sent; what still comes is thrown away, so that the peer's system does not throw the words away.
    Parting {
        until: Instant,
    },
    Closed,
}

thread_local! {
    /// Room for payload that is summed up before it is placed.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A connection.
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) socket: TcpStream,
    pub(super) shared: Arc<Shared>,
    core: Mutex<Core>,
}

/// Something posted whose end is told in the order of posting.
struct Pending {
    id: u64,
    /// Parts that have not ended.
    left: u32,
}

/// What the lock guards.
pub(super) struct Core {
    inbound: Inbound,
    pub(super) outbound: Outbound,
    /// Bytes that came and were not looked at lie from `start` to `end`.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    message: Vec<u8>,
    pub(super) inbox: VecDeque<Arrival>,
    pub(super) receives: u32,
    pending: VecDeque<Pending>,
    /// The name of the first that is pending.
    first: u64,
    phase: Phase,
    pub(super) why: Option<IwarpEnd>,
    /// Whether the socket takes no more now.
    blocked: bool,
    /// The application's thread serves the socket, and the provider's keeps away.
    pub(super) claim: Claim,
    /// What the provider's thread is woken for: reading, writing.
    pub(super) armed: (bool, bool),
    /// When bytes last came or went, or the first of what is pending was posted.
    progress: Instant,
}

/// Who serves a connection.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Claim {
    /// The application.
    pub(super) held: bool,
    /// It sleeps on the socket.
    pub(super) waiting: bool,
    /// The provider has stopped watching whether it comes back: it gives the claim back when it wakes.
    pub(super) parked: bool,
    /// It was here since the provider looked.
    pub(super) active: bool,
}

struct Guard<'a> {
    connection: &'a Connection,
    receives: &'a mut u32,
}

impl Gate for Guard<'_> {
    fn may_write(&mut self, tag: u32, at: u64, length: u64) -> Result<(), Terminate> {
        self.connection.pin(tag, at, length, Wish::Write).map(drop)
    }

    fn take_receive(&mut self) -> bool {
        let left = self.receives.checked_sub(1);
        *self.receives = left.unwrap_or(0);
        left.is_some()
    }
}

impl Sources for Connection {
    fn pin(&self, tag: u32, at: u64, length: u64) -> Result<Pin, Terminate> {
        self.pin(tag, at, length, Wish::Read)
    }
}

/// What was agreed when the connection was set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) checksums: bool,
    /// Whether this side may speak before the other.
    pub(super) may_speak: bool,
    pub(super) ready_by_send: bool,
    /// Reads at a time: of the peer's, of this side's.
    pub(super) inbound: u16,
    pub(super) outbound: u16,
}

impl Connection {
    /// A connection whose start frames were exchanged, with bytes that came after them.
    pub(super) fn new(
        number: u64,
        socket: TcpStream,
        shared: Arc<Shared>,
        agreed: Agreed,
        receives: u32,
        came: &[u8],
    ) -> Self {
        let mut buffer = vec![0; BUFFER.max(came.len())].into_boxed_slice();
        buffer[..came.len()].copy_from_slice(came);
        let core = Core {
            inbound: Inbound::new(agreed.checksums, MESSAGE, agreed.ready_by_send),
            outbound: Outbound::new(agreed.checksums, agreed.may_speak, agreed.outbound, agreed.inbound),
            buffer,
            start: 0,
            end: came.len(),
            message: Vec::new(),
            inbox: VecDeque::new(),
            receives,
            pending: VecDeque::new(),
            first: 0,
            phase: Phase::Open,
            why: None,
            blocked: false,
            claim: Claim::default(),
            armed: (false, false),
            progress: Instant::now(),
        };
        Self { number, socket, shared, core: Mutex::new(core) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(&self, tag: u32, at: u64, length: u64, wish: Wish) -> Result<Pin, Terminate> {
        self.shared.tags.pin(tag, at, length, wish, self.number)
    }
}

impl Core {
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether the socket is to be watched: for reading, for writing.
    pub(super) fn interest(&self) -> (bool, bool) {
        (self.phase != Phase::Closed, self.blocked)
    }

    /// Things posted that have not ended.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Something of so many parts is posted; its name.
    pub(super) fn begin(&mut self, id: u64, parts: u32) -> u64 {
        if self.pending.is_empty() {
            self.progress = Instant::now();
        }
        self.pending.push_back(Pending { id, left: parts });
        self.first + self.pending.len() as u64 - 1
    }

    pub(super) fn expect(&mut self, reading: Reading) {
        self.inbound.expect(reading);
    }

    fn part_done(&mut self, sequence: u64) {
        let at = sequence.wrapping_sub(self.first) as usize;
        if let Some(pending) = self.pending.get_mut(at) {
            pending.left -= 1;
        }
        while let Some(&Pending { id, left: 0 }) = self.pending.front() {
            self.pending.pop_front();
            self.first += 1;
            self.inbox.push_back(Arrival::Done { id, succeeded: true });
        }
    }

    /// When the peer has stood still for too long, if something is to come from it.
    pub(super) fn stalls_at(&self, stall: Duration) -> Option<Instant> {
        match self.phase {
            Phase::Open if !self.pending.is_empty() || self.blocked => Some(self.progress + stall),
            Phase::Parting { until } => Some(until),
            _ => None,
        }
    }

    /// Ends a connection whose peer stands still.
    pub(super) fn expire(&mut self, connection: &Connection) {
        let stall = connection.shared.options.stall;
        if self.stalls_at(stall).is_some_and(|at| at <= Instant::now()) {
            match self.phase {
                Phase::Open => self.lose(connection, IwarpEnd::Stalled { after: stall }),
                _ => self.close(connection),
            }
        }
    }

    /// Reads what is there and does what it says, then sends what is to be sent. True if the socket was not emptied.
    pub(super) fn serve(&mut self, connection: &Connection) -> bool {
        let mut more = false;
        if self.phase == Phase::Open {
            more = self.receive(connection);
        }
        if let Phase::Parting { .. } = self.phase {
            self.discard(connection);
        }
        self.flush(connection);
        more
    }

    fn receive(&mut self, connection: &Connection) -> bool {
        for _ in 0..ROUNDS {
            let wanted = match self.digest(connection) {
                Ok(wanted) => wanted,
                Err(breach) => {
                    self.breach(connection, breach);
                    return false;
                }
            };
            if self.phase != Phase::Open {
                return false;
            }
            match self.read(connection, wanted) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => {
                    // Emptied. What came is looked at, and the socket's next readiness brings the rest.
                    match self.digest(connection) {
                        Ok(_) => {}
                        Err(breach) => self.breach(connection, breach),
                    }
                    return false;
                }
                Ok(None) => return false,
                Err(breach) => {
                    self.breach(connection, breach);
                    return false;
                }
            }
        }
        true
    }

    /// Reads once: payload straight to where it belongs, what follows it into the buffer. True if more may be there; `None`
    /// if nothing came.
    fn read(&mut self, connection: &Connection, wanted: Option<(Landing, usize)>) -> Result<Option<bool>, Breach> {
        if let Some((landing @ Landing::Tag { .. }, left)) = wanted
            && self.inbound.checksums()
        {
            return SCRATCH.with_borrow_mut(|scratch| self.read_by_copy(connection, landing, left, scratch));
        }
        let mut rooms: SmallVec<[Room; 2]> = SmallVec::new();
        let mut pin = None;
        let (mut target, mut left) = (std::ptr::null_mut(), 0);
        if let Some((landing, length)) = wanted {
            left = length;
            target = match landing {
                Landing::Tag { tag, at } => {
                    let pinned = connection.pin(tag, at, length as u64, Wish::Write);
                    let pinned = pinned.map_err(|terminate| Breach { terminate, at_fault: self.inbound.at_fault() })?;
                    pin.insert(pinned).address
                }
                Landing::Read { at } => at as *mut u8,
                Landing::Message { at } => {
                    self.message.resize(at + length, 0);
                    self.message[at..].as_mut_ptr()
                }
                // Such payload is never waited for: it is kept or thrown away as it comes.
                Landing::Nowhere => return Ok(None),
            };
            rooms.push(Room { address: target, length: left });
        }
        let free = self.buffer.len() - self.end;
        let ahead = if left >= BUFFER { free.min(LOOKAHEAD) } else { free };
        rooms.push(Room { address: self.buffer[self.end..].as_mut_ptr(), length: ahead });
        // SAFETY: the payload's memory is held by the pin, or is a read's, which its poster promised to leave to it until it
        // has ended; the message and the buffer are this connection's.
        let received = unsafe { socket::receive(connection.socket.as_fd(), &rooms) };
        if pin.is_some() && received.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT)) {
            // What is not mapped any more is as good as not registered.
            return Err(Breach { terminate: Terminate::DDP_INVALID_TAG, at_fault: self.inbound.at_fault() });
        }
        let Some(came) = self.came(connection, received) else { return Ok(None) };
        let placed = came.min(left);
        if placed > 0 {
            if matches!(wanted, Some((Landing::Tag { .. }, _))) {
                // Without CRCs, or it would have been copied.
                self.inbound.skipped(placed);
            } else {
                // SAFETY: as above, and these bytes were just written.
                self.inbound.landed(unsafe { std::slice::from_raw_parts(target, placed) });
            }
        }
        self.end += came - placed;
        Ok(Some(came == left + ahead))
    }

    /// Reads payload that is summed up before it goes to memory which others may change.
    fn read_by_copy(
        &mut self,
        connection: &Connection,
        landing: Landing,
        left: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<bool>, Breach> {
        let asked = left + LOOKAHEAD;
        if scratch.len() < asked {
            scratch.resize(asked, 0);
        }
        let room = Room { address: scratch.as_mut_ptr(), length: asked };
        // SAFETY: the room is this thread's.
        let Some(came) = self.came(connection, unsafe { socket::receive(connection.socket.as_fd(), &[room]) }) else {
            return Ok(None);
        };
        let (payload, ahead) = scratch[..came].split_at(came.min(left));
        self.put(connection, landing, payload)?;
        self.inbound.landed(payload);
        self.buffer[self.end..self.end + ahead.len()].copy_from_slice(ahead);
        self.end += ahead.len();
        Ok(Some(came == asked))
    }

    /// How much came, if anything did; the connection's end otherwise.
    fn came(&mut self, connection: &Connection, received: std::io::Result<usize>) -> Option<usize> {
        match received {
            Ok(0) => self.lose(connection, IwarpEnd::Closed),
            Ok(came) => {
                self.progress = Instant::now();
                return Some(came);
            }
            // What was interrupted is told of again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.lose(connection, IwarpEnd::Broken(error.kind())),
        }
        None
    }

    /// Looks at the bytes in the buffer. Gives the payload that is to come, if one has begun.
    fn digest(&mut self, connection: &Connection) -> Result<Option<(Landing, usize)>, Breach> {
        let buffer = std::mem::take(&mut self.buffer);
        let mut bytes = &buffer[self.start..self.end];
        let outcome = self.digest_bytes(connection, &mut bytes);
        let left = bytes.len();
        self.start = self.end - left;
        self.buffer = buffer;
        // What is left is less than a header: it goes to the front.
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, left);
        outcome
    }

    fn digest_bytes(&mut self, connection: &Connection, bytes: &mut &[u8]) -> Result<Option<(Landing, usize)>, Breach> {
        loop {
            let mut guard = Guard { connection, receives: &mut self.receives };
            match self.inbound.next(bytes, &mut guard)? {
                Next::More => return Ok(None),
                Next::Payload(landing, left) if bytes.is_empty() => return Ok(Some((landing, left))),
                Next::Payload(landing, left) => {
                    let (now, rest) = bytes.split_at(left.min(bytes.len()));
                    self.put(connection, landing, now)?;
                    self.inbound.landed(now);
                    *bytes = rest;
                }
                Next::Event(event) => {
                    self.outbound.may_speak = true;
                    self.happened(connection, event)?;
                    if self.phase != Phase::Open {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Puts bytes that came with a header where they belong.
    fn put(&mut self, connection: &Connection, landing: Landing, bytes: &[u8]) -> Result<(), Breach> {
        match landing {
            Landing::Tag { tag, at } => {
                let breach = |terminate| Breach { terminate, at_fault: self.inbound.at_fault() };
                let pin = connection.pin(tag, at, bytes.len() as u64, Wish::Write).map_err(breach)?;
                // SAFETY: the pin says that its owner lets peers write there.
                // What is not mapped any more is as good as not registered.
                unsafe { memory::put(bytes, pin.address) }.map_err(|_| breach(Terminate::DDP_INVALID_TAG))
            }
            Landing::Read { at } => {
                // SAFETY: the memory is a read's, which its poster promised to leave to it until it has ended.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
                Ok(())
            }
            Landing::Message { at } => {
                self.message.truncate(at);
                self.message.extend_from_slice(bytes);
                Ok(())
            }
            Landing::Nowhere => Ok(()),
        }
    }

    fn happened(&mut self, connection: &Connection, event: Event) -> Result<(), Breach> {
        let breach = |inbound: &Inbound, terminate| Breach { terminate, at_fault: inbound.at_fault() };
        match event {
            Event::Placed => {}
            Event::Message { length, invalidate } => {
                if let Some(tag) = invalidate {
                    let ended = connection.shared.tags.invalidate(tag, connection.number);
                    ended.map_err(|terminate| breach(&self.inbound, terminate))?;
                }
                let buffer = self.outbound.buffer();
                let mut message = std::mem::replace(&mut self.message, buffer);
                message.truncate(length);
                self.inbox.push_back(Arrival::Message(message));
            }
            Event::Request(request) => {
                // An empty read looks at no tag (RFC 5040, section 5.2).
                if request.length > 0 {
                    let pin =
                        connection.pin(request.source_tag, request.source_offset, request.length.into(), Wish::Read);
                    pin.map_err(|terminate| breach(&self.inbound, terminate))?;
                }
                // More at a time than was agreed: the queue of read requests has no buffer (RFC 5041, section 8).
                if !self.outbound.answer(request) {
                    return Err(breach(&self.inbound, Terminate::NO_BUFFER));
                }
            }
            Event::Read { sequence } => {
                self.outbound.read_ended();
                self.part_done(sequence);
            }
            Event::Terminated(why) => self.lose(connection, IwarpEnd::Terminated(why)),
        }
        Ok(())
    }

    /// Sends what is to be sent, as much as goes.
    pub(super) fn flush(&mut self, connection: &Connection) {
        self.blocked = false;
        while self.phase != Phase::Closed {
            if let Err(terminate) = self.outbound.fill(connection) {
                // A tag that a peer reads was taken back: the answer cannot be finished. What the RFC has for it is that
                // this side failed.
                let _ = terminate;
                return self.breach(connection, Breach { terminate: Terminate::LOCAL_CATASTROPHE, at_fault: None });
            }
            let mut vector = SmallVec::new();
            let mut pins = SmallVec::new();
            if self.outbound.show(connection, &mut vector, &mut pins).is_err() {
                // In the middle of a frame there is no place for last words.
                return self.lose(connection, IwarpEnd::Withdrawn);
            }
            if vector.is_empty() {
                return;
            }
            // SAFETY: frames are this connection's, a write's memory may be read until it is done as its poster promised,
            // and that of tags is held by the pins.
            match unsafe { socket::send(connection.socket.as_fd(), &vector) } {
                Ok(sent) => {
                    drop(pins);
                    self.progress = Instant::now();
                    let mut ended: SmallVec<[Ends; 8]> = SmallVec::new();
                    self.outbound.sent(sent, |ends| ended.push(ends));
                    for ends in ended {
                        match ends {
                            Ends::Write { sequence } => self.part_done(sequence),
                            Ends::Connection => drop(connection.socket.shutdown(Shutdown::Write)),
                            Ends::Answer | Ends::Nothing => {}
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.lose(connection, IwarpEnd::Broken(error.kind())),
            }
        }
    }

    /// The peer has broken a rule: it is told which, and the connection ends.
    fn breach(&mut self, connection: &Connection, breach: Breach) {
        if self.phase != Phase::Open {
            return;
        }
        if breach.terminate.is_guess()
            && let Ok(peer) = connection.socket.peer_addr()
        {
            connection.shared.guesses.note(peer.ip());
        }
        let header = breach.at_fault;
        self.outbound.terminate(breach.terminate.encode(header.as_ref().map(|(header, length)| (header, *length))));
        self.phase = Phase::Parting { until: Instant::now() + LINGER };
        self.told(IwarpEnd::Breach(breach.terminate));
        self.claim.held = false;
        self.flush(connection);
    }

    /// Throws away what still comes, until the peer has closed too.
    fn discard(&mut self, connection: &Connection) {
        for _ in 0..ROUNDS {
            let room = Room { address: self.buffer.as_mut_ptr(), length: self.buffer.len() };
            // SAFETY: the buffer is this connection's.
            match unsafe { socket::receive(connection.socket.as_fd(), &[room]) } {
                Ok(0) => return self.close(connection),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.close(connection),
            }
        }
    }

    /// The connection has ended.
    pub(super) fn lose(&mut self, connection: &Connection, why: IwarpEnd) {
        if self.phase == Phase::Open {
            self.told(why);
        }
        self.close(connection);
    }

    fn close(&mut self, connection: &Connection) {
        self.phase = Phase::Closed;
        self.outbound.clear();
        self.blocked = false;
        let _ = connection.socket.shutdown(Shutdown::Both);
    }

    /// Tells the application of the end. Nothing is placed any more: that happens in the open phase only, under the lock that
    /// is held.
    fn told(&mut self, why: IwarpEnd) {
        self.why = Some(why);
        self.inbox.push_back(Arrival::Lost);
        for Pending { id, .. } in self.pending.drain(..) {
            self.inbox.push_back(Arrival::Done { id, succeeded: false });
        }
        self.inbox.push_back(Arrival::Flushed);
    }
}
