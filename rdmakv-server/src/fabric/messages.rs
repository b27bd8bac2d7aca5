//! Messages from and to a client, each in as many fragments as it takes.

use std::time::Instant;

use frrwp::engine::Engine;
use frrwp::fabric::Endpoint;
use frrwp::handshake::SendError;
use frrwp::wire::MAX_FRAME_PAYLOAD;

use super::commands::Commands;
use super::gets::Lent;
use rdmakv_proto::messages::{self, Assembly, FRAGMENT, Kind, Malformed, Reply, Tag, Whole};

/// Bytes of a fragment after its start.
const PART: usize = MAX_FRAME_PAYLOAD - FRAGMENT;
/// Capacity that is kept for the next message.
const KEPT: usize = 16 << 10;

/// The message that is being received.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    assembly: Assembly,
    fragment: Vec<u8>,
}

impl Inbox {
    /// Receives the next fragment; returns its bytes, if there is one.
    pub(super) fn receive<E: Endpoint>(&mut self, engine: &mut Engine<'_, E>) -> Option<usize> {
        engine.recv_message(&mut self.fragment).then_some(self.fragment.len())
    }

    /// Returns the whole message, of at most so many bytes, if the received fragment is its last.
    pub(super) fn take(&mut self, most: usize) -> Result<Option<Whole<'_>>, Malformed> {
        self.assembly.take(&self.fragment, most)
    }

    /// Returns whether a message has begun and is not whole.
    pub(super) fn is_within(&self) -> bool {
        self.assembly.is_within()
    }
}

/// The step after a message is sent.
#[derive(Debug, Default)]
pub(super) enum Then<'f> {
    /// The next request.
    #[default]
    Nothing,
    /// A transfer gets its bytes.
    Accept(frrwp::handshake::Tag, Lent<'f>),
    /// A transfer gets none.
    Refuse(frrwp::handshake::Tag),
    /// The end.
    End,
}

/// How far a message came.
pub(super) enum Sent<'f> {
    /// There is none.
    Nothing,
    /// The client has no room for more of it.
    Blocked,
    /// All of it was sent.
    All(Then<'f>),
    /// The peer is gone, or does not take messages.
    Failed,
}

/// The message that is being sent.
#[derive(Debug, Default)]
pub(super) struct Outbox<'f> {
    message: Option<(u32, Kind)>,
    head: Vec<u8>,
    /// How much of the head was sent.
    at: usize,
    /// Whether the session's answer follows the head.
    has_answer: bool,
    then: Then<'f>,
    blocked_since: Option<Instant>,
    fragment: Vec<u8>,
}

impl<'f> Outbox<'f> {
    pub(super) fn is_empty(&self) -> bool {
        self.message.is_none()
    }

    /// Returns since when the client has had no room.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// Begins to send a reply.
    pub(super) fn reply(&mut self, id: u32, reply: &Reply<'_>) {
        debug_assert!(self.message.is_none(), "one message at a time");
        self.head.clear();
        self.at = 0;
        self.has_answer = false;
        self.then = Then::Nothing;
        let kind = reply.encode(&mut self.head);
        self.message = Some((id, kind));
    }

    /// Begins to send the session's answer.
    pub(super) fn answer(&mut self, id: u32, tag: Option<Tag>) {
        self.reply(id, &Reply::Ran { tag, answer: b"" });
        self.has_answer = true;
    }

    /// Sets the step after this message.
    pub(super) fn then(&mut self, then: Then<'f>) {
        self.then = then;
    }

    /// Writes the next fragment; returns how many bytes of it are the head's and the answer's.
    fn prepare(&mut self, (id, kind): (u32, Kind), commands: &mut Commands<'_>) -> (usize, usize) {
        let waiting = if self.has_answer { commands.prepare(PART) } else { 0 };
        let left = self.head.len() - self.at;
        let of_head = left.min(PART);
        let of_answer = waiting.min(PART - of_head);
        let more = left + waiting > of_head + of_answer || (self.has_answer && commands.has_more());
        self.fragment.clear();
        messages::start(&mut self.fragment, id, kind, more);
        self.fragment.extend_from_slice(&self.head[self.at..self.at + of_head]);
        commands.copy(of_answer, &mut self.fragment);
        (of_head, of_answer)
    }

    /// Sends as much of the message as there is room for.
    pub(super) fn send<E: Endpoint>(&mut self, engine: &mut Engine<'_, E>, commands: &mut Commands<'_>) -> Sent<'f> {
        while let Some(message) = self.message {
            let (of_head, of_answer) = self.prepare(message, commands);
            match engine.send_message(&self.fragment) {
                Ok(()) => {}
                Err(SendError::Full) => {
                    self.blocked_since.get_or_insert_with(Instant::now);
                    return Sent::Blocked;
                }
                Err(_) => return Sent::Failed,
            }
            commands.counts().bytes_written += self.fragment.len() as u64;
            commands.sent(of_answer);
            self.blocked_since = None;
            self.at += of_head;
            if self.at == self.head.len() && (!self.has_answer || commands.is_answered()) {
                self.message = None;
                commands.shrink(KEPT);
                if self.head.capacity() > KEPT {
                    self.head = Vec::new();
                }
                return Sent::All(std::mem::take(&mut self.then));
            }
        }
        Sent::Nothing
    }
}
