//! A connection to a server over a fabric, and what the server is asked there.
//!
//! Items with known tags are not asked for but read (`reads.rs`); the server's answers are in `replies.rs`. It is asked by a message, or
//! where the item is known to be large by a transfer that the message goes with.
//!
//! The lease of a tag counts from the first sending of the request that brought it, by a clock that runs through suspend.

#![expect(unsafe_code, reason = "lends buffers to engines")]

use super::end::End;
use super::outbox::Outbox;
use super::reads::Fetching;
use super::table::Table;
use crate::answer::is_store;
use crate::buffer::Data;
use crate::command::line;
use crate::common::Common;
use crate::error::Operation;
use crate::memory::Sending;
use crate::ops::{Name, On};
use crate::tags::Tags;
use frrwp::engine::Event;
use frrwp::fabric::shm::ShmBuffer;
use frrwp::handshake;
use hashbrown::HashMap;
use rdmakv_proto::clock;
use rdmakv_proto::item::HEADER;
use rdmakv_proto::messages::{self, Assembly, Kind, RemoteSegment, Request, SEGMENTS, Welcome};
use std::any::Any;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Transfers under way at a time; others come in messages.
const TRANSFERS: usize = 32;

/// A connection.
pub(crate) struct Link {
    /// Dropped first: what it was lent is below.
    pub(super) end: Box<dyn End>,
    /// The server's first message; nothing is asked before.
    pub(super) welcome: Option<Welcome>,
    /// The message to send before anything else.
    pub(super) login: Option<Vec<u8>>,
    pub(super) greeted: bool,
    pub(crate) born: Instant,
    /// When something came last, or a read was done.
    pub(crate) heard_at: Instant,
    /// Whether the server counts one-sided reads by itself.
    pub(super) counts_reads: bool,
    next_id: u32,
    pub(super) asked: HashMap<u32, Asked>,
    pub(super) fetches: VecDeque<Fetching>,
    /// GETs that wait until fewer reads are under way.
    pub(super) held: VecDeque<Name>,
    pub(super) landings: HashMap<handshake::Tag, Landing>,
    pub(super) outbox: Outbox,
    pub(super) assembly: Assembly,
    pub(super) heard: Vec<u8>,
    pub(super) message: Vec<u8>,
    text: Vec<u8>,
    segments: Vec<RemoteSegment>,
    /// Nanoseconds of a lease.
    pub(super) lease: u64,
    /// Events that came while something else was waited for.
    pub(super) events: VecDeque<Event>,
    /// When reads were told last.
    pub(super) seen_at: u64,
    /// When the server was greeted.
    pub(super) greeted_at: u64,
    /// When a clock was looked at last for a read by the table.
    pub(super) now: u64,
    /// The GET table, if the server has one.
    pub(super) table: Option<Box<Table>>,
    /// The reason why it is of no use any more.
    pub(super) broken: Option<String>,
}

/// A request that was sent, or waits to be.
pub(super) struct Asked {
    pub(super) op: Name,
    /// The key that opens the data to the server, and the data if it is a copy.
    _offered: Option<Offered>,
    /// The transfer that it went with.
    pub(super) landing: bool,
}

/// The key that opens data to the server that is to be stored, and the data if it is a copy. Taken apart in this order.
type Offered = (Box<dyn Any + Send>, Option<Sending>);

/// A transfer.
pub(super) struct Landing {
    pub(super) id: u32,
    pub(super) op: Name,
    pub(super) buffer: ShmBuffer,
}

/// An operation that a fabric does not do, and another transport may.
pub(crate) struct NotConnected;

impl Link {
    /// Returns a connection that was just made. The server is greeted.
    pub(crate) fn new(end: Box<dyn End>, counts_reads: bool, login: Option<Vec<u8>>, one_sided: bool) -> Self {
        let mut link = Self {
            end,
            welcome: None,
            login,
            greeted: false,
            born: Instant::now(),
            heard_at: Instant::now(),
            counts_reads,
            next_id: 1,
            asked: HashMap::new(),
            fetches: VecDeque::new(),
            held: VecDeque::new(),
            landings: HashMap::new(),
            outbox: Outbox::default(),
            assembly: Assembly::default(),
            heard: Vec::new(),
            message: Vec::new(),
            text: Vec::new(),
            segments: Vec::new(),
            lease: 0,
            events: VecDeque::new(),
            seen_at: clock::boot(),
            greeted_at: clock::boot(),
            now: 0,
            table: None,
            broken: None,
        };
        let kind = Request::hello(&mut link.message, one_sided);
        link.outbox.push(0, kind, &link.message);
        link.say();
        link
    }

    /// Sends the login.
    pub(super) fn log_in(&mut self, login: &[u8]) {
        self.message.clear();
        let kind = Request::run(&mut self.message, false, b"login", &[login]);
        self.outbox.push(0, kind, &self.message);
        self.say();
    }

    /// Returns whether the server has said that it is there.
    pub(crate) fn is_ready(&self) -> bool {
        self.greeted && self.broken.is_none()
    }

    /// Returns whether the server has answered the greeting.
    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// It is of no use any more.
    pub(crate) fn give_up(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.to_owned());
    }

    /// Returns the reason why it is of no use any more, if it is not.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Returns whether something is waited for.
    pub(crate) fn is_busy(&self) -> bool {
        !self.asked.is_empty()
            || !self.fetches.is_empty()
            || !self.held.is_empty()
            || !self.landings.is_empty()
            || !self.greeted
    }

    /// Bytes that are registered here.
    pub(crate) fn registered(&self) -> u64 {
        self.end.registered()
    }

    /// Whether what is asked from now on may wait until it leaves together.
    pub(crate) fn hold(&mut self, requests: bool) {
        self.end.cork(requests);
    }

    pub(crate) fn wait(&mut self, longest: Duration) {
        if self.events.is_empty() {
            self.end.wait(longest);
        }
    }

    fn eager(&self) -> usize {
        self.welcome.map_or(0, |welcome| welcome.eager as usize)
    }

    /// Bytes of an item at most.
    pub(super) fn largest(&self) -> usize {
        let largest = self.welcome.map_or(0, |welcome| welcome.largest);
        usize::try_from(largest).unwrap_or(usize::MAX).min(1 << 30)
    }

    pub(super) fn say(&mut self) {
        if let Err(unsaid) = self.outbox.say(&mut *self.end) {
            self.broken.get_or_insert_with(|| unsaid.to_string());
        }
    }

    // ---- Requests ----------------------------------------------------------------------------------

    pub(super) fn name(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        id
    }

    /// Begins an operation.
    pub(crate) fn issue(&mut self, common: &mut Common, tags: &mut Tags, name: Name) -> Result<(), NotConnected> {
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        (op.on, op.attempts) = (On::Fabric, op.attempts.saturating_add(1));
        if op.operation == Operation::Get {
            self.get(common, tags, name);
            return Ok(());
        }
        let now = clock::boot();
        if now.saturating_sub(self.seen_at) >= self.lease / 4 {
            self.tell_seen(tags, now);
        }
        if is_store(op.operation) && op.data.bytes().len() > self.eager() {
            self.put(common, tags, name)
        } else {
            self.run(common, tags, name);
            Ok(())
        }
    }

    /// Asks for an item, by a message, or by a transfer where it is known to be large.
    pub(super) fn ask(&mut self, common: &mut Common, tags: &mut Tags, name: Name) {
        let Some(op) = common.ops.unanswered(name) else { return };
        let size = tags.size(&op.key).map_or(0, |size| size as usize);
        let now = clock::boot();
        op.first_sent = if op.first_sent == 0 { now } else { op.first_sent };
        if now.saturating_sub(self.seen_at) >= self.lease / 4 {
            self.tell_seen(tags, now);
        }
        // A transfer overtakes what waits to be said, which may be of this key.
        let is_large = size > HEADER + op.key.len() + self.eager() && !op.no_transfer && self.outbox.is_empty();
        if is_large && self.ask_into(common, name, size) {
            return;
        }
        let Some(op) = common.ops.unanswered(name) else { return };
        self.message.clear();
        let kind = Request::get(&mut self.message, common.one_sided, &op.key);
        self.send(name, kind, None);
    }

    /// Asks for an item of this size, by a transfer. False if there is no memory for it.
    pub(super) fn ask_into(&mut self, common: &mut Common, name: Name, size: usize) -> bool {
        if self.landings.len() >= TRANSFERS {
            return false;
        }
        let Ok(buffer) = common.fabrics.memory().and_then(|memory| memory.landing(size)) else { return false };
        let Some(op) = common.ops.unanswered(name) else { return false };
        let id = self.name();
        self.message.clear();
        messages::start(&mut self.message, id, Kind::Get, false);
        Request::get(&mut self.message, common.one_sided, &op.key);
        // SAFETY: the buffer is kept in `landings` until the end of the transfer is told, or dropped after the engine.
        let Ok(tag) = (unsafe { self.end.read(buffer.as_ptr(), size, &self.message) }) else { return false };
        self.landings.insert(tag, Landing { id, op: name, buffer });
        self.asked.insert(id, Asked { op: name, _offered: None, landing: true });
        true
    }

    /// Has the server carry out the operation's line.
    pub(super) fn run(&mut self, common: &mut Common, tags: &mut Tags, name: Name) {
        let Some(op) = common.ops.unanswered(name) else { return };
        op.first_sent = if op.first_sent == 0 { clock::boot() } else { op.first_sent };
        let data = op.data.bytes();
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        line(op.operation, &op.key, &op.arguments, data.len(), &mut text);
        let wish = common.one_sided && op.operation != Operation::Delete && tags.knows(&op.key);
        self.message.clear();
        let end: &[u8] = if is_store(op.operation) { b"\r\n" } else { b"" };
        let kind = Request::run(&mut self.message, wish, &op.key, &[&text, data, end]);
        self.text = text;
        self.send(name, kind, None);
    }

    /// Has the server read what is to be stored.
    fn put(&mut self, common: &mut Common, tags: &mut Tags, name: Name) -> Result<(), NotConnected> {
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        op.first_sent = if op.first_sent == 0 { clock::boot() } else { op.first_sent };
        let copy = match &op.data {
            Data::Buffer(_) => None,
            data => {
                let bytes = data.bytes();
                let mut copy =
                    common.fabrics.memory().and_then(|memory| memory.sending(bytes.len())).map_err(|_| NotConnected)?;
                copy.bytes_mut().copy_from_slice(bytes);
                Some(copy)
            }
        };
        let from = match (&copy, &op.data) {
            (Some(copy), _) => copy.as_ptr(),
            (None, data) => data.bytes().as_ptr(),
        };
        let length = op.data.bytes().len();
        self.segments.clear();
        // SAFETY: the memory is of the arena that only this process writes; the copy is kept beside the lease, and the operation's own
        // buffer as long as the operation is not answered. Where that ends without an answer, this connection is closed with it, and
        // what the server reads after that it does not get.
        let lease = unsafe { self.end.offer(from, length, &mut self.segments) }.map_err(|_| NotConnected)?;
        if self.segments.len() > SEGMENTS {
            return Err(NotConnected);
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        line(op.operation, &op.key, &op.arguments, length, &mut text);
        let wish = common.one_sided && tags.knows(&op.key);
        self.message.clear();
        let kind = Request::put(&mut self.message, wish, &op.key, &text, &self.segments);
        self.text = text;
        self.send(name, kind, Some((lease, copy)));
        Ok(())
    }

    fn send(&mut self, op: Name, kind: Kind, offered: Option<Offered>) {
        let id = self.name();
        self.asked.insert(id, Asked { op, _offered: offered, landing: false });
        self.outbox.push(id, kind, &self.message);
        self.say();
    }

    // ---- The end -----------------------------------------------------------------------------------

    /// Operations that are open here, and whether anything of them was sent. The connection is closed, and its memory free, when this
    /// returns.
    pub(crate) fn close(self) -> Vec<(Name, bool)> {
        let open = self.open();
        // Takes the connection down.
        drop(self);
        open
    }

    /// The same in a child of a fork: the connection is the parent's, and goes on there.
    pub(crate) fn abandon(self) -> Vec<(Name, bool)> {
        let open = self.open();
        std::mem::forget(self);
        open
    }

    fn open(&self) -> Vec<(Name, bool)> {
        let Self { asked, fetches, held, outbox, .. } = self;
        let mut open: Vec<_> = asked.iter().map(|(&id, asked)| (asked.op, !outbox.has_all(id))).collect();
        open.extend(held.iter().map(|&name| (name, false)));
        open.extend(fetches.iter().filter_map(|fetching| Some((fetching.op?, true))));
        open
    }
}
