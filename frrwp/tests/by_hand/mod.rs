//! One side of a handshake, spoken to by hand.
#![allow(dead_code, reason = "each test uses what it needs")]

use frrwp::handshake::{Action, Handshake, Limits, Side as End};
use frrwp::wire::{Body, MESSAGE, Message, Offer, Placed, Reason, Segment, Segments};

/// One side, spoken to by hand. It is granted a receive for each message, as a patient peer would.
pub(crate) struct Side(pub(crate) Handshake);

impl Side {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Handshake::new(End::Accepting, limits))
    }

    pub(crate) fn say(&mut self, tag: u64, body: Body<'_>) {
        self.say_at(0, 2, tag, body);
    }

    pub(crate) fn say_at(&mut self, now: u64, credits: u16, tag: u64, body: Body<'_>) {
        let mut bytes = [0; MESSAGE];
        let length = Message { credits, tag, body }.encode(&mut bytes);
        self.0.received(now, &bytes[..length]);
    }

    /// All it says, as tag and kind or reason.
    pub(crate) fn hears(&mut self) -> Vec<(u64, String)> {
        let mut bytes = [0; MESSAGE];
        let mut heard = Vec::new();
        while let Some(length) = self.0.take_message(0, &mut bytes) {
            let message = Message::decode(&bytes[..length]).expect("what it says makes sense");
            heard.push((
                message.tag,
                match message.body {
                    Body::Nak(reason) => format!("NAK {reason:?}"),
                    Body::Sync { .. } => "SYNC".into(),
                    Body::Stcrw(_) => "STCRW".into(),
                    Body::Done { bytes } => format!("DONE {bytes}"),
                    Body::Cancel => "CANCEL".into(),
                    Body::Say(said) => format!("SAY {}", said.escape_ascii()),
                    Body::Credit => continue,
                },
            ));
        }
        heard
    }

    /// Sleeps until something has expired. The deadline is the earliest that there may be.
    pub(crate) fn sleep(&mut self) {
        let before = self.0.counters().expired;
        while self.0.counters().expired == before {
            let deadline = self.0.next_deadline().expect("something waits");
            self.0.expire(deadline);
        }
    }

    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.0.next_action()).collect()
    }
}

pub(crate) fn sync(length: u64, read: bool) -> Body<'static> {
    Body::Sync { length, read, header: b"", offer: None }
}

pub(crate) fn offer(segments: &[Placed], more: bool) -> Body<'_> {
    Body::Stcrw(Offer { offset: 0, segments: Segments::Plain(segments), more })
}

pub(crate) fn bytes(length: u64) -> Placed {
    Placed { offset: 0, segment: Segment { address: 0x1000, length, key: 9 } }
}

pub(crate) fn nak(reason: Reason) -> String {
    format!("NAK {reason:?}")
}
