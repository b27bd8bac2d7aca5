//! Requests to a server: what was asked, and what may come back.

#![expect(unsafe_code, reason = "lends buffers to engines")]

use super::channel::Channel;
use super::choice::{Choice, Choices, Kind as Chosen};
use crate::answer::is_store;
use crate::buffer::{Data, Part};
use crate::command::line;
use crate::common::Common;
use crate::error::Operation;
use crate::memory::Sending;
use crate::ops::Name;
use crate::tags::Tags;
use frrwp::fabric::shm::ShmBuffer;
use frrwp::handshake;
use hashbrown::HashMap;
use rdmakv_proto::clock;
use rdmakv_proto::item::HEADER;
use rdmakv_proto::messages::{self, Kind, RemoteSegment, Request, SEGMENTS};
use std::any::Any;

/// Bytes of a call that a message has room for beside its piece.
const CALL: usize = 1 << 10;
/// Transfers under way at a time; others come in messages.
const TRANSFERS: usize = 32;

/// The requests of a connection without an answer so far.
#[derive(Default)]
pub(super) struct Requests {
    asked: HashMap<u32, Asked>,
    landings: HashMap<handshake::Tag, Landing>,
    text: Vec<u8>,
    segments: Vec<RemoteSegment>,
    choices: Choices,
    /// That of the request that is being sent.
    choice: Option<Choice>,
}

/// A request that was sent, or waits to be.
pub(super) struct Asked {
    pub(super) op: Name,
    _offered: Option<Offered>,
    /// The transfer that it went with.
    pub(super) landing: bool,
    /// The choice of its way, and when it was made.
    choice: Option<(Choice, u64)>,
}

/// Data that a server reads. Taken apart in this order.
struct Offered {
    /// The key that opens it to the server.
    _lease: Box<dyn Any + Send>,
    /// The data, if it is a copy.
    _copy: Option<Sending>,
    /// The data of which several servers read parts.
    _part: Part,
}

/// A transfer.
pub(super) struct Landing {
    pub(super) id: u32,
    pub(super) op: Name,
    pub(super) buffer: ShmBuffer,
}

/// An operation that a fabric does not do, and another transport may.
pub(crate) struct NotConnected;

impl Requests {
    pub(super) fn is_busy(&self) -> bool {
        !self.asked.is_empty() || !self.landings.is_empty()
    }

    /// Returns the operations that are open here, the oldest first, and whether anything of them was sent.
    pub(super) fn open(&self, channel: &Channel) -> Vec<(Name, bool)> {
        let mut ids: Vec<u32> = self.asked.keys().copied().collect();
        ids.sort_unstable_by_key(|id| channel.order_of(*id));
        ids.into_iter().filter_map(|id| Some((self.asked.get(&id)?.op, channel.was_sent(id)))).collect()
    }

    /// Returns the request of that number.
    pub(super) fn get(&self, id: u32) -> Option<&Asked> {
        self.asked.get(&id)
    }

    /// Returns the number of an operation's request.
    pub(super) fn id_of(&self, name: Name) -> Option<u32> {
        self.asked.iter().find(|(_, asked)| asked.op == name).map(|(&id, _)| id)
    }

    /// Removes the request of that number: it was answered.
    pub(super) fn remove(&mut self, id: u32) -> Option<Asked> {
        self.asked.remove(&id)
    }

    /// Notes that a request has its answer, by the way that was chosen.
    pub(super) fn answered(&mut self, asked: &Asked) {
        if let Some((choice, at)) = asked.choice {
            self.choices.ended(choice, clock::boot().saturating_sub(at));
        }
    }

    /// Returns whether a value takes a transfer: because it has to, or because that is faster.
    fn takes_transfer(&mut self, channel: &Channel, kind: Chosen, bytes: usize) -> bool {
        if bytes > channel.eager() || bytes <= channel.transfers_from() {
            return bytes > channel.eager();
        }
        let choice = self.choices.choose(kind, bytes, self.asked.len());
        self.choice = Some(choice);
        choice.transfer
    }

    /// Has the server carry out an operation that stores something.
    pub(super) fn store(
        &mut self,
        channel: &mut Channel,
        common: &mut Common,
        tags: &Tags,
        name: Name,
    ) -> Result<(), NotConnected> {
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        let bytes = op.length();
        if op.operation == Operation::Call {
            // Small pieces may have memory at the server that no fabric writes.
            if op.piece.bytes().len() > channel.eager() || bytes > channel.eager() + CALL {
                return self.put(channel, common, tags, name);
            }
            self.run(channel, common, tags, name);
            return Ok(());
        }
        if self.takes_transfer(channel, Chosen::Set, bytes) {
            let put = self.put(channel, common, tags, name);
            // Without memory for a transfer a message does.
            if put.is_ok() || bytes > channel.eager() {
                return put;
            }
            self.choice = None;
        }
        self.run(channel, common, tags, name);
        Ok(())
    }

    /// Removes a transfer that has ended.
    pub(super) fn landed(&mut self, tag: handshake::Tag) -> Option<Landing> {
        self.landings.remove(&tag)
    }

    /// Asks for an item, by a message, or by a transfer if it is known to be large.
    pub(super) fn ask(&mut self, channel: &mut Channel, common: &mut Common, tags: &Tags, name: Name, now: u64) {
        let Some(op) = common.ops.unanswered(name) else { return };
        let size = tags.size(&op.key).map_or(0, |size| size as usize);
        op.first_sent = if op.first_sent == 0 { now } else { op.first_sent };
        let bytes = size.saturating_sub(HEADER + op.key.len());
        // A transfer overtakes messages that wait, which may be of this key.
        let may_transfer = !op.no_transfer && channel.has_sent_all();
        if may_transfer && self.takes_transfer(channel, Chosen::Get, bytes) {
            if self.ask_into(channel, common, name, size) {
                return;
            }
            self.choice = None;
        }
        let Some(op) = common.ops.unanswered(name) else { return };
        channel.message.clear();
        let kind = Request::get(&mut channel.message, common.one_sided, &op.key);
        self.send(channel, name, kind, None);
    }

    /// Asks for an item of this size, by a transfer. Returns false if there is no memory for it.
    pub(super) fn ask_into(&mut self, channel: &mut Channel, common: &mut Common, name: Name, size: usize) -> bool {
        if self.landings.len() >= TRANSFERS {
            return false;
        }
        let Ok(buffer) = common.fabrics.memory().and_then(|memory| memory.landing(size)) else { return false };
        let Some(op) = common.ops.unanswered(name) else { return false };
        let id = channel.next_id();
        channel.message.clear();
        messages::start(&mut channel.message, id, Kind::Get, false);
        Request::get(&mut channel.message, common.one_sided, &op.key);
        // SAFETY: the buffer is kept in `landings` until the end of the transfer is told, or dropped after the engine.
        let Ok(tag) = (unsafe { channel.read(buffer.as_ptr(), size) }) else { return false };
        self.landings.insert(tag, Landing { id, op: name, buffer });
        let choice = self.choice.take().map(|choice| (choice, clock::boot()));
        self.asked.insert(id, Asked { op: name, _offered: None, landing: true, choice });
        true
    }

    /// Has the server carry out the operation's line.
    pub(super) fn run(&mut self, channel: &mut Channel, common: &mut Common, tags: &Tags, name: Name) {
        let Some(op) = common.ops.unanswered(name) else { return };
        op.first_sent = if op.first_sent == 0 { clock::boot() } else { op.first_sent };
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        line(op.operation, &op.key, &op.arguments, op.length(), &mut text);
        let may = op.wishes || op.operation != Operation::Delete && tags.knows(&op.key);
        let wish = common.one_sided && may;
        channel.message.clear();
        let end: &[u8] = if is_store(op.operation) { b"\r\n" } else { b"" };
        let kind = Request::run(&mut channel.message, wish, &op.key, &[&text, op.data.bytes(), op.piece.bytes(), end]);
        self.text = text;
        self.send(channel, name, kind, None);
    }

    /// Has the server read what is to be stored; of a call, its piece.
    fn put(&mut self, channel: &mut Channel, common: &mut Common, tags: &Tags, name: Name) -> Result<(), NotConnected> {
        let Some(op) = common.ops.unanswered(name) else { return Ok(()) };
        op.first_sent = if op.first_sent == 0 { clock::boot() } else { op.first_sent };
        let is_call = op.operation == Operation::Call;
        let (first, bytes) = if is_call { (op.data.bytes(), op.piece.bytes()) } else { (&[][..], op.data.bytes()) };
        let is_lendable = if is_call { op.piece.is_lendable() } else { matches!(op.data, Data::Buffer(_)) };
        // The rest of a call travels in the message, also where no values do.
        if first.len() > channel.eager() + CALL || bytes.is_empty() {
            return Err(NotConnected);
        }
        let copy = if is_lendable {
            None
        } else {
            let mut copy =
                common.fabrics.memory().and_then(|memory| memory.sending(bytes.len())).map_err(|_| NotConnected)?;
            copy.bytes_mut().copy_from_slice(bytes);
            Some(copy)
        };
        let from = copy.as_ref().map_or(bytes.as_ptr(), Sending::as_ptr);
        self.segments.clear();
        // SAFETY: the memory is of the arena that only this process writes; a copy and a part are kept beside the lease, and the
        // operation's own buffer as long as the operation is not answered. Where that ends without an answer, and the server may know the
        // segments, this connection is closed with it, and what the server reads after that it does not get.
        let lease = unsafe { channel.end().offer(from, bytes.len(), &mut self.segments) }.map_err(|_| NotConnected)?;
        if self.segments.len() > SEGMENTS {
            return Err(NotConnected);
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        line(op.operation, &op.key, &op.arguments, op.length(), &mut text);
        text.extend_from_slice(first);
        let wish = common.one_sided && tags.knows(&op.key);
        channel.message.clear();
        let kind = Request::put(&mut channel.message, wish, &op.key, &text, &self.segments);
        self.text = text;
        let offered = Offered { _lease: lease, _copy: copy, _part: op.piece.clone() };
        self.send(channel, name, kind, Some(offered));
        Ok(())
    }

    fn send(&mut self, channel: &mut Channel, op: Name, kind: Kind, offered: Option<Offered>) {
        let id = channel.next_id();
        let choice = self.choice.take().map(|choice| (choice, clock::boot()));
        self.asked.insert(id, Asked { op, _offered: offered, landing: false, choice });
        channel.send(id, kind);
    }
}
