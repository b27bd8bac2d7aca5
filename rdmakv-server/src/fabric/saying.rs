//! The message being sent: one, in as many fragments as it takes, as the client makes room for them.

use std::time::Instant;

use frrwp::handshake::SendError;
use frrwp::wire::MAX_FRAME_PAYLOAD;

use super::connection::{Connection, Own};
use super::gets::Lent;
use super::providers::Fabric;
use crate::session::Shards;
use rdmakv_proto::messages::{self, FRAGMENT, Kind, Reply, Tag};

/// Bytes of a fragment beside its start.
const PART: usize = MAX_FRAME_PAYLOAD - FRAGMENT;
/// Capacity that is kept for the next message.
const KEPT: usize = 16 << 10;

/// The step after the message.
#[derive(Debug, Default)]
pub(super) enum Then {
    /// The next request.
    #[default]
    Nothing,
    /// A transfer gets its bytes.
    Supply(frrwp::handshake::Tag, Lent),
    /// A transfer gets none.
    Refuse(frrwp::handshake::Tag),
    /// The end.
    End,
}

/// A message on its way.
#[derive(Debug, Default)]
pub(super) struct Saying {
    what: Option<(u32, Kind)>,
    head: Vec<u8>,
    at: usize,
    /// Whether the session's output follows.
    goes_on: bool,
    then: Then,
    since: Option<Instant>,
}

/// How far it came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// There is nothing left to say.
    All,
    /// The client has no room for more.
    Part,
    /// There is nothing left, and nothing comes.
    Last,
}

impl Saying {
    pub(super) fn is_some(&self) -> bool {
        self.what.is_some()
    }

    /// Since when the client has had no room.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    fn begin(&mut self, id: u32, reply: &Reply<'_>) {
        debug_assert!(self.what.is_none(), "one message at a time");
        self.head.clear();
        self.at = 0;
        self.goes_on = false;
        self.then = Then::Nothing;
        let kind = reply.encode(&mut self.head);
        self.what = Some((id, kind));
    }

    pub(super) fn reply(&mut self, id: u32, reply: &Reply<'_>) {
        self.begin(id, reply);
    }

    /// Sends the session's answer.
    pub(super) fn ran(&mut self, id: u32, tag: Option<Tag>) {
        self.begin(id, &Reply::Ran { tag, answer: b"" });
        self.goes_on = true;
    }

    /// It is the last thing that is said.
    pub(super) fn last(&mut self) {
        self.then = Then::End;
    }

    pub(super) fn then(&mut self, then: Then) {
        self.then = then;
    }

    pub(super) fn clear(&mut self, shards: &Shards) {
        self.what = None;
        if let Then::Supply(_, lent) = std::mem::take(&mut self.then) {
            lent.give_back(shards);
        }
    }
}

impl Own<'_> {
    /// Returns the next fragment, and the bytes of it that are the head's and the output's.
    fn next_part(&mut self, (id, kind): (u32, Kind), part: &mut Vec<u8>) -> (usize, usize) {
        if self.saying.goes_on && self.out.waiting() < PART {
            let (session, out, mut cx) = self.context();
            // Few of a long answer's turns at a time; only such an answer goes on by itself.
            while session.has_more() && out.waiting() < PART {
                session.advance(b"", &mut 8, &mut cx, out);
            }
        }
        let Saying { head, at, goes_on, .. } = &self.saying;
        let of_head = (head.len() - at).min(PART);
        let waiting = if *goes_on { self.out.waiting() } else { 0 };
        let of_out = waiting.min(PART - of_head);
        let left = head.len() - at - of_head + waiting - of_out;
        let more = left > 0 || (*goes_on && self.session.has_more());
        part.clear();
        messages::start(part, id, kind, more);
        part.extend_from_slice(&head[*at..*at + of_head]);
        self.out.copy(of_out, part);
        (of_head, of_out)
    }
}

impl<F: Fabric> Connection<'_, F> {
    /// Says what there is to say, as far as there is room.
    pub(super) fn speak(&mut self) -> Said {
        while let Some(what) = self.own.saying.what {
            let (of_head, of_out) = self.own.next_part(what, &mut self.part);
            match self.engine.send_message(&self.part) {
                Ok(()) => {}
                Err(SendError::Full) => {
                    self.own.saying.since.get_or_insert_with(Instant::now);
                    return Said::Part;
                }
                // The peer is gone, or knows nothing of messages.
                Err(_) => return Said::Last,
            }
            let own = &mut self.own;
            own.counts.bytes_written += self.part.len() as u64;
            own.saying.since = None;
            own.saying.at += of_head;
            own.out.advance(of_out, &own.shared.shards);
            let goes_on = own.saying.goes_on && (!own.out.is_empty() || own.session.has_more());
            if own.saying.at == own.saying.head.len() && !goes_on {
                own.saying.what = None;
                own.out.shrink(KEPT);
                if own.saying.head.capacity() > KEPT {
                    own.saying.head = Vec::new();
                }
                match std::mem::take(&mut own.saying.then) {
                    Then::Nothing => {}
                    Then::Supply(tag, lent) => self.supply(tag, lent),
                    Then::Refuse(tag) => drop(self.engine.refuse(tag)),
                    Then::End => return Said::Last,
                }
                self.end_turn();
            }
        }
        Said::All
    }
}
