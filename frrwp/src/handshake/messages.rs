//! Messages in and out: to which transfer they belong, and whether they make sense at all.

use super::ends::{Disconnect, Failure};
use super::link::Out;
use super::slots::At;
use super::transfer::{Role, Transfer};
use super::trip::Trip;
use super::{Action, Handshake, Side, Tag};
use crate::wire::{Body, DecodeError, MESSAGE, Message, Offer, Reason, Start, VERSION};

/// The subject of a tag in a message.
enum About {
    Open(At),
    /// It has ended.
    Late,
    /// It was not opened, or the peer cannot know of it yet.
    Never,
}

impl Handshake {
    /// A message came. Its receive is posted again before the next call, unless this returns what the peer's application
    /// said: then it is once this side's has taken that, and [`Handshake::message_taken`] is told.
    pub fn received<'bytes>(&mut self, now: u64, bytes: &'bytes [u8]) -> Option<&'bytes [u8]> {
        if !self.count_in() {
            return None;
        }
        // The start is the same in all versions, and its credits count whatever follows it.
        let Some(start) = Start::decode(bytes) else {
            self.nonsense(now, Tag(0), Reason::Malformed);
            return None;
        };
        self.link.credits.granted(start.credits);
        let tag = Tag(start.tag);
        match Message::decode(bytes) {
            Ok(Message { body: Body::Say(said), .. }) => {
                self.link.credits.taken(start.tag);
                self.link.credits.hold();
                self.link.counters.messages_received += 1;
                return Some(said);
            }
            Ok(message) => self.understood(now, tag, message.body),
            Err(DecodeError::Version { version, .. }) if start.is_nak() => {
                self.unreadable_nak(tag, Reason::Version { spoken: version });
            }
            Err(_) if start.is_nak() => self.unreadable_nak(tag, Reason::Malformed),
            Err(DecodeError::Version { .. }) => self.nonsense(now, tag, Reason::Version { spoken: VERSION }),
            Err(DecodeError::Foreign { .. } | DecodeError::Malformed { .. }) => {
                self.nonsense(now, tag, Reason::Malformed);
            }
        }
        None
    }

    /// A write of the peer's came with an immediate. Its receive is posted again before the next call.
    pub fn received_immediate(&mut self, now: u64, immediate: u32) {
        if !self.count_in() {
            return;
        }
        // It stands for the DONE of a write that the peer opened, and of nothing else.
        let low = Tag(immediate.into());
        if let Some(at) = self.slots.by_low_half(immediate) {
            return self.at(at, |transfer, link| match &mut transfer.role {
                _ if transfer.trip.ended => link.counters.late += 1,
                Role::Target(target) if !transfer.trip.ours => {
                    let length = transfer.trip.length;
                    target.done_came(&mut transfer.trip, link, length);
                }
                _ => transfer.malformed(link, now),
            });
        }
        // Where the peer's tags have gone beyond the low half, one with these bits may have been open.
        if !self.is_own(low) && low.0 > 0 && low.0 <= self.highest {
            self.link.counters.late += 1;
        } else {
            self.nonsense(now, low, Reason::UnknownTag);
        }
    }

    /// False where nothing is listened to any more.
    fn count_in(&mut self) -> bool {
        if !self.link.stands() {
            return false;
        }
        self.link.counters.received += 1;
        if !self.link.credits.received() {
            self.link.disconnect(Disconnect::NoCredit);
            return false;
        }
        true
    }

    fn understood(&mut self, now: u64, tag: Tag, body: Body<'_>) {
        match body {
            // A CREDIT's tag, and a SAY's, says how much of what was said here was taken there.
            Body::Credit => return self.link.credits.taken(tag.0),
            Body::Nak(Reason::Version { spoken }) if tag == Tag(0) && self.was_not_heard(spoken) => return,
            _ => {}
        }
        if let Body::Sync { length, read, header, offer } = body {
            return self.sync_came(now, tag, length, read, header, offer);
        }
        let at = match self.about(tag) {
            About::Open(at) => at,
            About::Late => {
                self.link.counters.late += 1;
                return;
            }
            About::Never if matches!(body, Body::Nak(_)) => return self.link.count_stranger(),
            About::Never => return self.nonsense(now, tag, Reason::UnknownTag),
        };
        self.at(at, |transfer, link| {
            let trip = &mut transfer.trip;
            match (body, &mut transfer.role) {
                (Body::Stcrw(offer), Role::Writer(writer)) => writer.offer_came(trip, link, now, offer),
                (Body::Cancel, Role::Writer(writer)) => {
                    writer.give_up(trip, link, Some(Reason::Cancelled), Failure::Peer(Reason::Cancelled));
                }
                (Body::Nak(reason), _) => transfer.nak_came(link, reason),
                (Body::Done { bytes }, Role::Target(target)) => target.done_came(trip, link, bytes),
                _ => transfer.malformed(link, now),
            }
        });
    }

    fn about(&self, tag: Tag) -> About {
        if let Some(at) = self.slots.find(tag) {
            match &self.slots.at(at).trip {
                trip if !trip.said => return About::Never,
                trip if !trip.ended => return About::Open(at),
                _ => {}
            }
        }
        let opened = if self.is_own(tag) { tag.0 < self.next } else { tag.0 <= self.highest };
        if opened && tag.0 > 0 { About::Late } else { About::Never }
    }

    fn is_own(&self, tag: Tag) -> bool {
        (tag.0 & 1 == 1) == (self.side == Side::Connecting)
    }

    fn sync_came(&mut self, now: u64, tag: Tag, length: u64, read: bool, header: &[u8], offer: Option<Offer<'_>>) {
        if self.is_own(tag) || tag.0 == 0 {
            return self.nonsense(now, tag, Reason::Malformed);
        }
        if tag.0 <= self.highest {
            // Said before: a transfer is opened once.
            self.link.counters.late += 1;
            return;
        }
        self.highest = tag.0;
        if self.slots.by_low_half(tag.0 as u32).is_some() {
            self.link.enqueue(Out::Nak { tag, reason: Reason::Malformed });
            return self.link.count_stranger();
        }
        if self.open[1] >= self.link.limits.open {
            self.link.counters.busy += 1;
            return self.link.enqueue(Out::Nak { tag, reason: Reason::Busy });
        }
        let deadline = self.link.deadline(now, self.link.limits.sync_time);
        let role = if read { Role::writer(None) } else { Role::target(None) };
        self.open[1] += 1;
        let at = self.slots.insert(Transfer { trip: Trip::new(tag, false, length, now, deadline), role }, header);
        self.link.actions.push_back(Action::Requested { tag, read, length });
        if let Some(offer) = offer {
            self.at(at, |Transfer { trip, role }, link| {
                if let Role::Writer(writer) = role {
                    writer.offer_came(trip, link, now, offer);
                }
            });
        }
    }

    /// A message that makes no sense is counted. It ends the transfer that it speaks of, and is answered where there is none.
    fn nonsense(&mut self, now: u64, tag: Tag, reason: Reason) {
        match self.about(tag) {
            About::Open(at) => {
                self.at(at, |transfer, link| transfer.give_up(link, now, reason, Failure::Here(reason)));
            }
            About::Never => self.link.enqueue(Out::Nak { tag, reason }),
            About::Late => {}
        }
        self.link.count_stranger();
    }

    /// A NAK of which only the start makes sense. That says enough: it ends its transfer, and is not answered either, of
    /// whatever version it is.
    fn unreadable_nak(&mut self, tag: Tag, reason: Reason) {
        if let About::Open(at) = self.about(tag) {
            self.at(at, |transfer, link| transfer.nak_came(link, reason));
        }
        self.link.count_stranger();
    }

    /// Returns whether [`Handshake::take_message`] may have something to send.
    pub fn has_to_send(&self) -> bool {
        self.link.stands()
            && (!self.link.has_nothing_out()
                || self.link.credits.should_announce()
                || self.link.credits.should_tell_taken())
    }

    /// Returns the next message to send, in `into`, and its length. `None` where there is nothing to say, or the
    /// peer has no receive for it yet.
    pub fn take_message(&mut self, now: u64, into: &mut [u8; MESSAGE]) -> Option<usize> {
        self.take_message_where(now, into, |_| true)
    }

    /// Returns the next DONE of which `posted` says that all of the transfer's writes are posted, before other messages: for a driver
    /// that [says something ahead](Handshake::send_message_ahead) next, which is not to be heard before the ends of transfers that have
    /// ended here. Some DONE is left for want of a credit where the second is true.
    pub fn take_done_where(&mut self, into: &mut [u8; MESSAGE], posted: impl Fn(Tag) -> bool) -> (Option<usize>, bool) {
        if !self.link.stands() || !self.link.done_is_next(posted, true) {
            return (None, false);
        }
        let taken = self.link.take_done(into);
        (taken, taken.is_none())
    }

    /// The same as [`Handshake::take_message`], for a driver that posts writes late: a DONE is not taken before `posted` says
    /// that all of the transfer's writes are posted. Other messages do not wait for writes.
    pub fn take_message_where(
        &mut self,
        now: u64,
        into: &mut [u8; MESSAGE],
        posted: impl Fn(Tag) -> bool,
    ) -> Option<usize> {
        if !self.link.stands() {
            return None;
        }
        if self.link.credits.should_tell_taken() {
            return self.link.take_credits(into);
        }
        // Void messages are not sent.
        while let Some(&out) = self.link.out.front() {
            let (Out::Sync(tag) | Out::Stcrw(tag)) = out else { break };
            if self.slots.get(tag).is_some_and(|transfer| transfer.has_to_send(out)) {
                break;
            }
            self.link.take_out();
        }
        if self.link.done_is_next(posted, false) {
            return self.link.take_done(into);
        }
        let Some(&out) = self.link.out.front() else {
            return self.link.credits.should_announce().then(|| self.link.take_credits(into))?;
        };
        let credits = self.link.credits.spend()?;
        self.link.take_out();
        self.link.counters.sent += 1;
        let (tag, body) = match out {
            Out::Sync(tag) | Out::Stcrw(tag) => {
                // It has something to say, as was seen above.
                let at = self.slots.find(tag)?;
                return Some(self.at(at, |transfer, link| match (out, &mut transfer.role) {
                    (Out::Stcrw(_), Role::Target(target)) => {
                        target.encode_stcrw(&mut transfer.trip, link, now, credits, into)
                    }
                    _ => transfer.encode_sync(link, now, credits, into),
                }));
            }
            Out::Nak { tag, reason } => (tag, Body::Nak(reason)),
            Out::Cancel(tag) => (tag, Body::Cancel),
        };
        Some(Message { credits, tag: tag.0, body }.encode(into))
    }
}
