//! Writes and messages on their way to the fabric, and the end of the connection that they leave by.
//!
//! A write of the handshake's is posted in pieces, at most [`PIECES`] at a time. The others wait here, and with them their
//! DONE, but no other message. So a message that is posted is behind [`PIECES`] pieces at most, of whatever lengths the
//! transfers are. One that waits for a credit, or for room in the fabric's queue, has no more than so many posted before it
//! meanwhile.
//!
//! Messages of the application are sent first, then what was written, then the handshake's messages.

#![expect(unsafe_code, reason = "posts the memory of leases")]

use super::transfers::Transfers;
use crate::fabric::poller::Bell;
use crate::fabric::{Armed, Completion, Endpoint, Local};
use crate::handshake::{Disconnect, Handshake, Tag};
use crate::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

/// The most bytes that are posted in one write.
pub const PIECE: u64 = 256 << 10;
/// Pieces that are posted at a time, at most. Shorter writes share one.
pub const PIECES: u64 = 4;
/// Writes of whatever length that are posted at a time, at most.
const WRITES: u64 = 64;

/// Pieces of registered memory that an endpoint reads or writes.
type Locals<'a, E> = [Local<'a, <<E as Endpoint>::Domain as Registrar>::Registration>];

/// The endpoint, and what waits for room in its queue.
pub(super) struct SendQueue<E: Endpoint> {
    endpoint: E,
    /// A message that is encoded, or has come.
    message: Box<[u8; MESSAGE]>,
    /// Writes that are not posted, or not wholly.
    waiting: VecDeque<Write>,
    /// A message that found the queue full.
    unsent: Option<Vec<u8>>,
    /// Writes that are posted at least in part, by name.
    posted: Vec<Option<Posted>>,
    free: Vec<usize>,
    /// Bytes of what is posted and has not completed, in the order of posting, which is that of completing.
    parts: VecDeque<u64>,
    in_flight: Load,
    /// The posts since the engine began to make progress: it returns to its application in between.
    lately: Load,
    /// Writes that were posted ever.
    ever: u64,
    /// Whether the application holds back what it posts.
    corked: bool,
    /// Why this side ended the connection.
    why: Option<Disconnect>,
    closed: bool,
}

/// A number of writes, and the bytes of all of them.
#[derive(Clone, Copy, Default)]
struct Load {
    writes: u64,
    bytes: u64,
}

impl Load {
    fn add(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes += bytes;
    }

    fn takes(self, more: u64) -> bool {
        self.writes < WRITES && self.bytes + more <= PIECES * PIECE
    }
}

struct Write {
    tag: Tag,
    /// The rest of it.
    remote: Segment,
    offset: u64,
    immediate: Option<u32>,
    /// Its name, once part of it is posted.
    name: Option<usize>,
}

/// A write of the handshake's on its way.
struct Posted {
    tag: Tag,
    /// Parts that have not completed, and whether there will be more.
    parts: u32,
    all: bool,
    succeeded: bool,
}

/// The result of posting a part of a write.
enum Part {
    Posted,
    /// The fabric's queue is full.
    Blocked,
    /// It need not be posted any more.
    LeftOut,
    /// There is nothing to be posted.
    Void,
}

/// The result of sending a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// There was none.
    Nothing,
    /// It was handed to the fabric.
    Posted,
    /// The fabric's queue is full: the message waits here.
    Waits,
}

impl<E: Endpoint> SendQueue<E> {
    pub(super) fn new(endpoint: E) -> Self {
        Self {
            endpoint,
            message: Box::new([0; MESSAGE]),
            waiting: VecDeque::new(),
            unsent: None,
            posted: Vec::new(),
            free: Vec::new(),
            parts: VecDeque::new(),
            in_flight: Load::default(),
            lately: Load::default(),
            ever: 0,
            corked: false,
            why: None,
            closed: false,
        }
    }

    pub(super) fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Returns the time by the endpoint's clock.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.endpoint.now()
    }

    /// Returns the next completion. A message that has come is read by [`SendQueue::message`] before the next call.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<Completion> {
        self.endpoint.poll(&mut self.message)
    }

    /// Returns the message of this length that came last.
    pub(super) fn message(&self, length: usize) -> &[u8] {
        &self.message[..length]
    }

    /// Posts a receive in the place of one that was used.
    pub(super) fn repost(&mut self) {
        // The connection's end is told by a completion.
        let _ = self.endpoint.receive(1);
    }

    /// Sends the message that `encode` makes, if it makes one.
    pub(super) fn send(&mut self, encode: impl FnOnce(&mut [u8; MESSAGE]) -> Option<usize>) -> Sent {
        let Some(length) = encode(&mut self.message) else { return Sent::Nothing };
        match self.endpoint.send(&self.message[..length]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.unsent = Some(self.message[..length].to_vec());
                Sent::Waits
            }
            // The connection's end is told by a completion.
            _ => Sent::Posted,
        }
    }

    /// Returns whether a message has found the queue full.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Sends the message that found the queue full. Returns false if it still is.
    pub(super) fn send_unsent(&mut self) -> bool {
        let Some(unsent) = self.unsent.take() else { return true };
        match self.endpoint.send(&unsent) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.unsent = Some(unsent);
                false
            }
            // The connection's end is told by a completion.
            _ => true,
        }
    }

    /// Queues a write of the handshake's.
    pub(super) fn queue(&mut self, tag: Tag, remote: Segment, offset: u64, immediate: Option<u32>) {
        self.waiting.push_back(Write { tag, remote, offset, immediate, name: None });
    }

    /// Posts a one-sided read. Returns false if the queue is full.
    ///
    /// # Safety
    /// As [`Endpoint::read`].
    #[inline]
    pub(super) unsafe fn read(&mut self, id: u64, into: &Locals<'_, E>, from: Segment) -> io::Result<bool> {
        // SAFETY: `Endpoint::read` requires what this function requires of its caller.
        match unsafe { self.endpoint.read(id, into, from) } {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Posts a one-sided write. Returns false if the queue is full.
    ///
    /// # Safety
    /// As [`Endpoint::write`].
    pub(super) unsafe fn write(&mut self, id: u64, from: &Locals<'_, E>, to: Segment) -> io::Result<bool> {
        // SAFETY: `Endpoint::write` requires what this function requires of its caller.
        match unsafe { self.endpoint.write(id, from, to, None) } {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads before it returns, where the fabric can: see [`Endpoint::read_now`].
    ///
    /// # Safety
    /// As [`Endpoint::read_now`].
    #[inline]
    pub(super) unsafe fn read_now(&mut self, into: &Locals<'_, E>, from: Segment) -> io::Result<Option<bool>> {
        // SAFETY: `Endpoint::read_now` requires what this function requires of its caller.
        unsafe { self.endpoint.read_now(into, from) }
    }

    fn name(&mut self, tag: Tag) -> usize {
        let posted = Some(Posted { tag, parts: 0, all: false, succeeded: true });
        match self.free.pop() {
            Some(name) => {
                self.posted[name] = posted;
                name
            }
            None => {
                self.posted.push(posted);
                self.posted.len() - 1
            }
        }
    }

    /// Takes the completion of a part. Returns the transfer, and whether it succeeded, if that was the last part of a write.
    pub(super) fn complete(&mut self, id: u64, succeeded: bool) -> Option<(Tag, bool)> {
        let name = id as usize;
        let posted = self.posted.get_mut(name)?.as_mut()?;
        posted.parts -= 1;
        posted.succeeded &= succeeded;
        if let Some(bytes) = self.parts.pop_front() {
            self.in_flight.writes -= 1;
            self.in_flight.bytes -= bytes;
        }
        self.ended(name)
    }

    /// Returns the transfer of a write, if it has completed wholly.
    fn ended(&mut self, name: usize) -> Option<(Tag, bool)> {
        let posted = self.posted.get(name)?.as_ref()?;
        if posted.parts > 0 || !posted.all {
            return None;
        }
        let ended = (posted.tag, posted.succeeded);
        self.posted[name] = None;
        self.free.push(name);
        Some(ended)
    }

    /// Forgets the recent posts.
    pub(super) fn refresh(&mut self) {
        self.lately = Load::default();
    }

    /// Writes that were posted ever, for a message that begins to wait.
    pub(super) fn ever(&self) -> u64 {
        self.ever
    }

    /// Returns whether so much more may be posted now, with a message that waits since so many writes were posted. At least one
    /// piece is, if none is on its way: with it comes the next turn.
    fn may_post(&self, bytes: u64, waits_since: Option<u64>) -> bool {
        if waits_since.is_some_and(|since| self.ever - since >= PIECES) {
            return false;
        }
        self.in_flight.writes == 0 || (self.in_flight.takes(bytes) && self.lately.takes(bytes))
    }

    /// Posts the writes that wait, as many as may be while a message waits since so many writes were posted. Pieces leave together:
    /// a fabric may take a list of them for the price of one.
    pub(super) fn post(
        &mut self,
        handshake: &mut Handshake,
        transfers: &mut Transfers<'_, E::Domain>,
        waits_since: Option<u64>,
    ) {
        let Some(first) = self.waiting.front() else { return };
        let together = (self.waiting.len() > 1 || first.remote.length > PIECE) && !self.corked;
        if together {
            self.endpoint.cork(true);
        }
        self.post_pieces(handshake, transfers, waits_since);
        if together {
            self.endpoint.cork(false);
        }
    }

    fn post_pieces(
        &mut self,
        handshake: &mut Handshake,
        transfers: &mut Transfers<'_, E::Domain>,
        waits_since: Option<u64>,
    ) {
        while let Some(mut write) = self.waiting.pop_front() {
            let part = match handshake.gives_up(write.tag) {
                true => Part::LeftOut,
                false if !self.may_post(write.remote.length.min(PIECE), waits_since) => Part::Blocked,
                false => self.post_part(&mut write, transfers),
            };
            match part {
                Part::Posted if write.remote.length > 0 => {
                    self.waiting.push_front(write);
                    continue;
                }
                Part::Posted => {}
                Part::Blocked => return self.waiting.push_front(write),
                Part::LeftOut => self.leave_out(&write, true, handshake),
                Part::Void => self.leave_out(&write, false, handshake),
            }
            transfers.write_posted(write.tag);
        }
    }

    /// Leaves out the rest of a write. It is reported when the parts of it that were have completed.
    fn leave_out(&mut self, write: &Write, in_order: bool, handshake: &mut Handshake) {
        let ended = match write.name {
            None => Some((write.tag, in_order)),
            Some(name) => {
                if let Some(posted) = self.posted[name].as_mut() {
                    posted.all = true;
                    posted.succeeded &= in_order;
                }
                self.ended(name)
            }
        };
        if let Some((tag, succeeded)) = ended {
            handshake.written(tag, succeeded);
        }
    }

    /// Posts as much of a write as one gathering takes, a piece at most.
    fn post_part(&mut self, write: &mut Write, transfers: &Transfers<'_, E::Domain>) -> Part {
        // Released with a write still waiting: only where the connection is flushed.
        let Some(buffer) = transfers.buffer(write.tag) else { return Part::Void };
        let most = self.endpoint.capabilities().gather;
        let start = buffer.address() as u64 + write.offset;
        let end = start + write.remote.length.min(PIECE);
        let mut gather = smallvec::SmallVec::<[Local<'_, _>; 8]>::new();
        let mut bytes = 0_u64;
        for (address, length, registration) in buffer.segments() {
            let from = (address as u64).max(start);
            let to = (address as u64 + length as u64).min(end);
            if from < to && gather.len() < most {
                let within = (from - address as u64) as usize;
                let address = address.cast_mut().wrapping_add(within);
                gather.push(Local { address, length: (to - from) as usize, registration });
                bytes += to - from;
            }
        }
        if bytes == 0 {
            return Part::Void;
        }
        let name = *write.name.get_or_insert_with(|| self.name(write.tag));
        let is_last = bytes == write.remote.length;
        let to = Segment { length: bytes, ..write.remote };
        let immediate = write.immediate.filter(|_| is_last);
        // SAFETY: `Endpoint::write` requires memory that may be read and stays registered until the write has completed or the
        // connection is flushed. `Transfers` keeps the buffer's lease until the handshake releases it, which is no earlier; that it
        // may be read meanwhile is promised by the caller of `Buffer::new`.
        match unsafe { self.endpoint.write(name as u64, &gather, to, immediate) } {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Part::Blocked,
            // The connection's end is told by a completion, and ends the transfer.
            Err(_) => {
                write.remote.length = 0;
                return Part::Posted;
            }
            Ok(()) => {}
        }
        if let Some(posted) = self.posted[name].as_mut() {
            posted.parts += 1;
            posted.all = is_last;
        }
        self.parts.push_back(bytes);
        self.ever += 1;
        self.in_flight.add(bytes);
        self.lately.add(bytes);
        write.remote.address += bytes;
        write.remote.length -= bytes;
        write.offset += bytes;
        Part::Posted
    }

    /// Has the endpoint hold back what is posted, or let it go: see [`Endpoint::cork`].
    pub(super) fn cork(&mut self, corked: bool) {
        self.corked = corked;
        self.endpoint.cork(corked);
    }

    /// Sleeps until something may have happened, or this time has come.
    pub(super) fn wait(&mut self, until: Option<u64>) {
        self.endpoint.wait(until);
    }

    /// Has the bell ring from the first [`SendQueue::arm`] on.
    pub(super) fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        self.endpoint.attach(bell)
    }

    /// Arms the bell.
    pub(super) fn arm(&mut self) -> Armed {
        self.endpoint.arm()
    }

    /// Ends the connection, for this reason if it is this side's.
    pub(super) fn disconnect(&mut self, why: Option<Disconnect>) {
        self.why = why.or(self.why);
        self.endpoint.disconnect();
    }

    /// Returns why this side ended the connection, if it did.
    pub(super) fn why(&self) -> Option<Disconnect> {
        self.why
    }

    /// Notes that the connection was flushed.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Returns whether the connection was flushed.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Waits until a connection that was ended is flushed.
    pub(super) fn flush(&mut self) {
        while !self.closed {
            match self.endpoint.poll(&mut self.message) {
                Some(Completion::Flushed) => self.closed = true,
                Some(_) => {}
                None => self.endpoint.wait(None),
            }
        }
    }
}
