//! Messages in and out: to which transfer they belong, and whether they make sense at all.

use super::ends::{Disconnect, Failure};
use super::link::{Link, Out};
use super::transfer::{Role, Transfer};
use super::transfers::{About, Opening, Transfers};
use super::{Action, Tag};
use crate::wire::{Body, DecodeError, MESSAGE, Message, Offer, Reason, Start, VERSION};

/// The messages of a connection, for one call.
pub(super) struct Messages<'a> {
    pub(super) transfers: &'a mut Transfers,
    pub(super) link: &'a mut Link,
    pub(super) now: u64,
}

impl Messages<'_> {
    /// Takes a message that came. Returns what the peer's application said in it.
    pub(super) fn received<'bytes>(&mut self, bytes: &'bytes [u8]) -> Option<&'bytes [u8]> {
        if !self.count_in() {
            return None;
        }
        // The start is the same in all versions, and its credits count whatever follows it.
        let Some(start) = Start::decode(bytes) else {
            self.nonsense(Tag(0), Reason::Malformed);
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
            Ok(message) => self.understood(tag, message.body),
            Err(DecodeError::Version { version, .. }) if start.is_nak() => {
                self.unreadable_nak(tag, Reason::Version { spoken: version });
            }
            Err(_) if start.is_nak() => self.unreadable_nak(tag, Reason::Malformed),
            Err(DecodeError::Version { .. }) => self.nonsense(tag, Reason::Version { spoken: VERSION }),
            Err(DecodeError::Foreign { .. } | DecodeError::Malformed { .. }) => {
                self.nonsense(tag, Reason::Malformed);
            }
        }
        None
    }

    /// Takes the immediate of a write that came.
    pub(super) fn received_immediate(&mut self, immediate: u32) {
        let now = self.now;
        if !self.count_in() {
            return;
        }
        // It stands for the DONE of a write that the peer opened, and of nothing else.
        let low = Tag(immediate.into());
        if let Some(at) = self.transfers.by_low_half(immediate) {
            return self.transfers.apply(self.link, at, |transfer, link| match &mut transfer.role {
                _ if transfer.trip.ended => link.counters.late += 1,
                Role::Target(target) if !transfer.trip.ours => {
                    let length = transfer.trip.length;
                    target.done_came(&mut transfer.trip, link, length);
                }
                _ => transfer.malformed(link, now),
            });
        }
        // Where the peer's tags have gone beyond the low half, one with these bits may have been open.
        if self.transfers.peer_has_opened(low) {
            self.link.counters.late += 1;
        } else {
            self.nonsense(low, Reason::UnknownTag);
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

    fn understood(&mut self, tag: Tag, body: Body<'_>) {
        let now = self.now;
        match body {
            // A CREDIT's tag, and a SAY's, says how much of what was said here was taken there.
            Body::Credit => return self.link.credits.taken(tag.0),
            Body::Nak(Reason::Version { spoken }) if tag == Tag(0) && self.link.say_refused(spoken) => return,
            _ => {}
        }
        if let Body::Sync { length, read, header, offer } = body {
            return self.sync_came(tag, length, read, header, offer);
        }
        let at = match self.transfers.about(tag) {
            About::Open(at) => at,
            About::Late => {
                self.link.counters.late += 1;
                return;
            }
            About::Never if matches!(body, Body::Nak(_)) => return self.link.count_stranger(),
            About::Never => return self.nonsense(tag, Reason::UnknownTag),
        };
        self.transfers.apply(self.link, at, |transfer, link| {
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

    fn sync_came(&mut self, tag: Tag, length: u64, read: bool, header: &[u8], offer: Option<Offer<'_>>) {
        let now = self.now;
        match self.transfers.peer_opens(tag) {
            Opening::New => {}
            Opening::Wrong => return self.nonsense(tag, Reason::Malformed),
            // Said before: a transfer is opened once.
            Opening::Late => {
                self.link.counters.late += 1;
                return;
            }
            Opening::Ambiguous => {
                self.link.enqueue(Out::Nak { tag, reason: Reason::Malformed });
                return self.link.count_stranger();
            }
        }
        if self.transfers.peer_open() >= self.link.limits.open {
            self.link.counters.busy += 1;
            return self.link.enqueue(Out::Nak { tag, reason: Reason::Busy });
        }
        let deadline = self.link.deadline(now, self.link.limits.sync_time);
        let role = if read { Role::writer(None) } else { Role::target(None) };
        let at = self.transfers.enter(tag, role, length, header, now, deadline);
        self.link.actions.push_back(Action::Requested { tag, read, length });
        if let Some(offer) = offer {
            self.transfers.apply(self.link, at, |Transfer { trip, role }, link| {
                if let Role::Writer(writer) = role {
                    writer.offer_came(trip, link, now, offer);
                }
            });
        }
    }

    /// A message that makes no sense is counted. It ends the transfer that it speaks of, and is answered where there is none.
    fn nonsense(&mut self, tag: Tag, reason: Reason) {
        let now = self.now;
        match self.transfers.about(tag) {
            About::Open(at) => {
                self.transfers
                    .apply(self.link, at, |transfer, link| transfer.give_up(link, now, reason, Failure::Here(reason)));
            }
            About::Never => self.link.enqueue(Out::Nak { tag, reason }),
            About::Late => {}
        }
        self.link.count_stranger();
    }

    /// A NAK of which only the start makes sense. That says enough: it ends its transfer, and is not answered either, of
    /// whatever version it is.
    fn unreadable_nak(&mut self, tag: Tag, reason: Reason) {
        if let About::Open(at) = self.transfers.about(tag) {
            self.transfers.apply(self.link, at, |transfer, link| transfer.nak_came(link, reason));
        }
        self.link.count_stranger();
    }

    /// Returns the length of the next message to send, which is in `into`. `posted` says of a transfer whether all of its
    /// writes are posted.
    pub(super) fn take(self, into: &mut [u8; MESSAGE], posted: impl Fn(Tag) -> bool) -> Option<usize> {
        let now = self.now;
        if !self.link.stands() {
            return None;
        }
        if self.link.credits.should_tell_taken() {
            return self.link.take_credits(into);
        }
        // Void messages are not sent.
        while let Some(&out) = self.link.out.front() {
            let (Out::Sync(tag) | Out::Stcrw(tag)) = out else { break };
            if self.transfers.get(tag).is_some_and(|transfer| transfer.has_to_send(out)) {
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
                let at = self.transfers.find(tag)?;
                return Some(self.transfers.apply(self.link, at, |transfer, link| match (out, &mut transfer.role) {
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
