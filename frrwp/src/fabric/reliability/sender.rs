//! The answers of a server: each with the request's clock, and with the time that the request was held.

use super::limits::Format;
use super::outbox::Outbox;
use super::replies::Reply;
use super::wire::{Body, Datagram, Part, flags};
use crate::fabric::traits::Peer;

/// The request that is answered: its client, when it was sent, and how long it was held.
#[derive(Clone, Copy)]
pub(super) struct Answered {
    pub(super) to: Peer,
    pub(super) client: u64,
    pub(super) request: u64,
    pub(super) clock: u32,
    pub(super) held: u64,
}

impl Answered {
    pub(super) fn now(to: Peer, datagram: &Datagram<'_>) -> Self {
        Self { to, client: datagram.client, request: datagram.request, clock: datagram.clock, held: 0 }
    }
}

/// The datagrams of a server's thread that are to be sent.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Sender {
    pub(super) format: Format,
    pub(super) is_pressed: bool,
    pub(super) outbox: Outbox,
}

impl Sender {
    pub(super) fn send(&mut self, answered: Answered, body: Body<'_>, more: &[u8]) {
        let datagram = Datagram {
            client: answered.client,
            request: answered.request,
            floor: 0,
            flags: flags::REPLY | if self.is_pressed { flags::SLOW_DOWN } else { 0 },
            clock: u32::try_from(answered.held / 1000).unwrap_or(u32::MAX),
            echo: answered.clock,
            body,
        };
        self.outbox.push(answered.to, &datagram, more, self.format.check);
    }

    pub(super) fn send_parts<H: AsRef<[u8]>, R: AsRef<[u8]>>(
        &mut self,
        answered: Answered,
        execution: u32,
        reply: &Reply<H, R>,
        which: impl Iterator<Item = u16>,
    ) {
        let fragment = self.format.fragment();
        let (parts, length) = (reply.parts(fragment), reply.len() as u32);
        for part in which {
            let [bytes, more] = reply.piece(part, fragment);
            self.send(answered, Body::Part(Part { execution, part, parts, length, bytes }), more);
        }
    }
}
