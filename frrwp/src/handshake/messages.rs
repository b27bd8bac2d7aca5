//! Messages in and out: to which transfer they belong, and whether they make sense at all.

use super::ends::{Disconnect, Failure};
use super::transfer::{Role, Transfer};
use super::{Action, Connection, Handshake, Side, Tag};
use crate::wire::{Body, DecodeError, MESSAGE, Message, Offer, Reason, VERSION};

/// Something to be said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Out {
    Sync(Tag),
    /// Whatever the target has to offer when it is sent.
    Stcrw(Tag),
    Done {
        tag: Tag,
        bytes: u64,
    },
    Nak {
        tag: Tag,
        reason: Reason,
    },
    Cancel(Tag),
}

/// What a tag in a message is about.
enum About {
    Open,
    /// It has ended.
    Late,
    Never,
}

impl Handshake {
    /// A message came. Its receive is posted again before the next call.
    pub fn received(&mut self, now: u64, bytes: &[u8]) {
        if !self.count_in() {
            return;
        }
        match Message::decode(bytes) {
            Ok(message) => {
                self.credits.granted(message.credits);
                self.understood(now, Tag(message.tag), message.body);
            }
            Err(DecodeError::Foreign { .. }) => self.stranger(Tag(0), Reason::Malformed),
            Err(DecodeError::Version { tag, .. }) => self.stranger(Tag(tag), Reason::Version { spoken: VERSION }),
            Err(DecodeError::Malformed { tag, .. }) => self.stranger(Tag(tag), Reason::Malformed),
        }
    }

    /// A write of the peer's came with an immediate. Its receive is posted again before the next call.
    pub fn received_immediate(&mut self, now: u64, immediate: u32) {
        if !self.count_in() {
            return;
        }
        let _ = now;
        // Its tag is even where the peer accepted: a transfer that the peer opened.
        let tag = self.slots.by_low_half(immediate);
        let transfer = tag.and_then(|tag| self.slots.get(tag)).filter(|transfer| !transfer.ours && !transfer.ended);
        match transfer {
            Some(&Transfer { tag, length, role: Role::Target(_), .. }) => self.done_came(tag, length),
            Some(_) => self.stranger(Tag(immediate.into()), Reason::Malformed),
            None => self.counters.late += 1,
        }
    }

    /// False where nothing is listened to any more.
    fn count_in(&mut self) -> bool {
        if self.state != Connection::Stands {
            return false;
        }
        self.counters.received += 1;
        if !self.credits.received() {
            self.disconnect(Disconnect::NoCredit);
            return false;
        }
        true
    }

    fn understood(&mut self, now: u64, tag: Tag, body: Body<'_>) {
        if let Body::Credit = body {
            return;
        }
        if let Body::Sync { length, read, header, offer } = body {
            return self.sync_came(now, tag, length, read, header, offer);
        }
        match self.about(tag) {
            About::Open => {}
            About::Late => {
                self.counters.late += 1;
                return;
            }
            About::Never => return self.stranger_unless_nak(tag, body),
        }
        let is_writer = self.slots.get(tag).is_some_and(|transfer| matches!(transfer.role, Role::Writer(_)));
        match (body, is_writer) {
            (Body::Stcrw(offer), true) => self.offer_came(now, tag, offer),
            (Body::Cancel, true) => {
                let failure = Failure::Peer(Reason::Cancelled);
                self.writer_gives_up(tag, Some(Reason::Cancelled), failure);
            }
            (Body::Nak(reason), true) => self.writer_gives_up(tag, None, Failure::Peer(reason)),
            (Body::Nak(reason), false) => self.target_was_refused(tag, reason),
            (Body::Done { bytes }, false) => self.done_came(tag, bytes),
            _ => self.stranger(tag, Reason::Malformed),
        }
    }

    fn stranger_unless_nak(&mut self, tag: Tag, body: Body<'_>) {
        match body {
            // Never answered. One without a tag answers something that had none.
            Body::Nak(_) => self.count_stranger(),
            _ => self.stranger(tag, Reason::UnknownTag),
        }
    }

    fn about(&self, tag: Tag) -> About {
        if self.slots.get(tag).is_some_and(|transfer| !transfer.ended) {
            return About::Open;
        }
        let opened = if self.is_own(tag) { tag.0 < self.next } else { tag.0 <= self.highest };
        if opened && tag.0 > 0 { About::Late } else { About::Never }
    }

    fn is_own(&self, tag: Tag) -> bool {
        (tag.0 & 1 == 1) == (self.side == Side::Connecting)
    }

    fn sync_came(&mut self, now: u64, tag: Tag, length: u64, read: bool, header: &[u8], offer: Option<Offer<'_>>) {
        if self.is_own(tag) || tag.0 == 0 {
            return self.stranger(tag, Reason::Malformed);
        }
        if tag.0 <= self.highest {
            // Said before: a transfer is opened once.
            self.counters.late += 1;
            return;
        }
        self.highest = tag.0;
        if self.slots.by_low_half(tag.0 as u32).is_some() {
            return self.stranger(tag, Reason::Malformed);
        }
        if self.open[1] >= self.limits.open {
            self.counters.busy += 1;
            self.say(Out::Nak { tag, reason: Reason::Busy });
            return;
        }
        let deadline = self.deadline(now, self.limits.sync_time);
        let role = if read { Role::writer(None) } else { Role::target(None) };
        self.open[1] += 1;
        self.slots.insert(Transfer::new(tag, false, role, length, now, deadline), header);
        self.actions.push_back(Action::Asked { tag, read, length });
        if let Some(offer) = offer {
            self.offer_came(now, tag, offer);
        }
    }

    /// A message that makes no sense is answered, a bounded number of times.
    pub(super) fn stranger(&mut self, tag: Tag, reason: Reason) {
        self.say(Out::Nak { tag, reason });
        self.count_stranger();
    }

    pub(super) fn count_stranger(&mut self) {
        self.counters.strangers += 1;
        if self.counters.strangers >= self.limits.strangers {
            self.disconnect(Disconnect::Strangers { count: self.counters.strangers });
        }
    }

    pub(super) fn say(&mut self, out: Out) {
        if self.state == Connection::Stands {
            self.out.push_back(out);
        }
    }

    /// The next message to send, in `into`, and its length. `None` where there is nothing to say, or the peer has no
    /// receive for it yet.
    pub fn take_message(&mut self, now: u64, into: &mut [u8; MESSAGE]) -> Option<usize> {
        if self.state != Connection::Stands {
            return None;
        }
        // What has become void is not said.
        while self.out.front().is_some_and(|&out| self.is_void(out)) {
            self.out.pop_front();
        }
        if self.out.is_empty() {
            return self.take_credits(into);
        }
        let credits = self.credits.spend()?;
        let out = self.out.pop_front()?;
        self.counters.sent += 1;
        let message = |tag: Tag, body| Message { credits, tag: tag.0, body };
        Some(match out {
            Out::Sync(tag) => self.encode_sync(now, tag, credits, into),
            Out::Stcrw(tag) => self.encode_stcrw(now, tag, credits, into),
            Out::Done { tag, bytes } => message(tag, Body::Done { bytes }).encode(into),
            Out::Nak { tag, reason } => message(tag, Body::Nak(reason)).encode(into),
            Out::Cancel(tag) => message(tag, Body::Cancel).encode(into),
        })
    }

    fn take_credits(&mut self, into: &mut [u8; MESSAGE]) -> Option<usize> {
        if !self.credits.should_announce() {
            return None;
        }
        let credits = self.credits.spend()?;
        self.counters.sent += 1;
        self.counters.credit_messages += 1;
        Some(Message { credits, tag: 0, body: Body::Credit }.encode(into))
    }

    /// The opening of a transfer that has ended, or segments of a target that gave up.
    fn is_void(&self, out: Out) -> bool {
        match out {
            Out::Sync(tag) => self.slots.get(tag).is_none_or(|transfer| transfer.ended),
            Out::Stcrw(tag) => self.slots.get(tag).is_none_or(|transfer| match transfer.role {
                Role::Target(target) => transfer.ended || target.cancelled.is_some() || !target.queued,
                Role::Writer(_) => true,
            }),
            Out::Done { .. } | Out::Nak { .. } | Out::Cancel(_) => false,
        }
    }
}
