//! Writes and messages on their way to the fabric.
//!
//! A write of the handshake's is posted in pieces, and only so many of them are posted at a time: the others wait here, and
//! with them the DONE that speaks of them, but no other message. So a message that is posted is behind [`PIECES`] pieces at
//! most, of whatever lengths the transfers are; and one that waits for a credit, or for room in the fabric's queue, has no more
//! than so many posted before it meanwhile.
//!
//! What an application says comes first, then what was written, then the handshake's messages.

#![expect(unsafe_code, reason = "posts the memory of leases")]

use super::Engine;
use crate::fabric::{Endpoint, Local};
use crate::handshake::Tag;
use crate::wire::Segment;
use std::collections::VecDeque;
use std::io::ErrorKind;

/// The most bytes that are posted in one write.
pub const PIECE: u64 = 256 << 10;
/// Pieces that are posted at a time, at most. Shorter writes share one.
pub const PIECES: u64 = 4;
/// Writes of whatever length that are posted at a time, at most.
const WRITES: u64 = 64;

#[derive(Default)]
pub(super) struct Posts {
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
    /// What was posted since the engine began to make progress: it returns for its application in between.
    lately: Load,
    /// Writes that were posted ever.
    ever: u64,
}

/// So many writes, and bytes of them.
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
    /// What is left of it.
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

/// What became of a part.
enum Part {
    Posted,
    /// The fabric's queue is full.
    Blocked,
    /// It need not be posted any more.
    LeftOut,
    /// There is nothing to be posted.
    Void,
}

impl Posts {
    pub(super) fn queue(&mut self, tag: Tag, remote: Segment, offset: u64, immediate: Option<u32>) {
        self.waiting.push_back(Write { tag, remote, offset, immediate, name: None });
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

    /// A part has completed: the transfer, if that was the last of a write.
    pub(super) fn done(&mut self, id: u64, succeeded: bool) -> Option<(Tag, bool)> {
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

    /// The transfer of a write, if it has completed wholly.
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

    /// What was posted lately is forgotten.
    pub(super) fn refresh(&mut self) {
        self.lately = Load::default();
    }

    /// Writes that were posted ever, for a message that begins to wait.
    pub(super) fn ever(&self) -> u64 {
        self.ever
    }

    /// Whether a message has found the queue full.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether so much more may be posted now, with a message that waits since so many writes were posted. At least one piece is, if
    /// none is on its way: with it comes the next turn.
    fn may_post(&self, bytes: u64, waits_since: Option<u64>) -> bool {
        if waits_since.is_some_and(|since| self.ever - since >= PIECES) {
            return false;
        }
        self.in_flight.writes == 0 || (self.in_flight.takes(bytes) && self.lately.takes(bytes))
    }

    /// False if the queue is full: the message waits.
    pub(super) fn send(&mut self, endpoint: &mut impl Endpoint, message: &[u8]) -> bool {
        match endpoint.send(message) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.unsent = Some(message.to_vec());
                false
            }
            // The connection's end is told by a completion.
            _ => true,
        }
    }
}

impl<E: Endpoint> Engine<'_, E> {
    /// Sends the messages that wait, then posts writes, as many as may be. False if the fabric takes no message.
    pub(super) fn post(&mut self) -> bool {
        if let Some(unsent) = self.posts.unsent.take()
            && !self.posts.send(&mut self.endpoint, &unsent)
        {
            return false;
        }
        let sends = self.send_waiting();
        if !self.posts.waiting.is_empty() {
            self.post_writes();
        }
        sends
    }

    /// Pieces leave together: a fabric may take a list of them for the price of one.
    fn post_writes(&mut self) {
        let writes = &self.posts.waiting;
        let many = writes.len() > 1 || writes.front().is_some_and(|write| write.remote.length > PIECE);
        let holds = many && !self.holds;
        if holds {
            self.endpoint.hold(true);
        }
        self.post_pieces_of_writes();
        if holds {
            self.endpoint.hold(false);
        }
    }

    fn post_pieces_of_writes(&mut self) {
        let waits_since = self.said.waits_since();
        while let Some(mut write) = self.posts.waiting.pop_front() {
            let part = match self.handshake.gives_up(write.tag) {
                true => Part::LeftOut,
                false if !self.posts.may_post(write.remote.length.min(PIECE), waits_since) => Part::Blocked,
                false => self.post_part(&mut write),
            };
            match part {
                Part::Posted if write.remote.length > 0 => {
                    self.posts.waiting.push_front(write);
                    continue;
                }
                Part::Posted => {}
                Part::Blocked => return self.posts.waiting.push_front(write),
                Part::LeftOut => self.leave_out(&write, true),
                Part::Void => self.leave_out(&write, false),
            }
            if let Some(buffer) = self.buffers.get_mut(&write.tag) {
                buffer.unposted -= 1;
            }
        }
    }

    /// What is left of a write is not posted. It is reported when the parts of it that were have completed.
    fn leave_out(&mut self, write: &Write, in_order: bool) {
        let ended = match write.name {
            None => Some((write.tag, in_order)),
            Some(name) => {
                if let Some(posted) = self.posts.posted[name].as_mut() {
                    posted.all = true;
                    posted.succeeded &= in_order;
                }
                self.posts.ended(name)
            }
        };
        if let Some((tag, succeeded)) = ended {
            self.handshake.written(tag, succeeded);
        }
    }

    /// Posts as much of a write as one gathering takes, a piece at most.
    fn post_part(&mut self, write: &mut Write) -> Part {
        // Released with a write still waiting: only where the connection is flushed.
        let Some(buffer) = self.buffers.get(&write.tag) else { return Part::Void };
        let most = self.endpoint.abilities().gather;
        let start = buffer.address as u64 + write.offset;
        let end = start + write.remote.length.min(PIECE);
        let mut gather = smallvec::SmallVec::<[Local<'_, _>; 8]>::new();
        let mut bytes = 0_u64;
        let segments = buffer.segments();
        for (address, length, registration) in segments {
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
        let name = *write.name.get_or_insert_with(|| self.posts.name(write.tag));
        let is_last = bytes == write.remote.length;
        let to = Segment { length: bytes, ..write.remote };
        let immediate = write.immediate.filter(|_| is_last);
        // SAFETY: the buffer's lease is held until the handshake releases it, which is after the write has completed or the
        // connection was flushed; that it may be read meanwhile is the promise of whoever opened the transfer.
        match unsafe { self.endpoint.write(name as u64, &gather, to, immediate) } {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Part::Blocked,
            // The connection's end is told by a completion, and ends the transfer.
            Err(_) => {
                write.remote.length = 0;
                return Part::Posted;
            }
            Ok(()) => {}
        }
        if let Some(posted) = self.posts.posted[name].as_mut() {
            posted.parts += 1;
            posted.all = is_last;
        }
        self.posts.parts.push_back(bytes);
        self.posts.ever += 1;
        self.posts.in_flight.add(bytes);
        self.posts.lately.add(bytes);
        write.remote.address += bytes;
        write.remote.length -= bytes;
        write.offset += bytes;
        Part::Posted
    }
}
