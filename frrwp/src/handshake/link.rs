//! The common state of all transfers of a connection: pending actions and messages, credits, bounds and counts.

use super::application::SendError;
use super::credits::Credits;
use super::ends::{Counters, Disconnect, Expired};
use super::{Action, Limits, Tag};
use crate::wire::{Body, MAX_FRAME_PAYLOAD, MESSAGE, Message, Reason, SAYS};
use std::collections::VecDeque;

/// A connection without its transfers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Link {
    pub(super) limits: Limits,
    pub(super) credits: Credits,
    /// The messages to send, in order, but for DONEs.
    pub(super) out: VecDeque<Out>,
    /// DONEs that are to be said, in the order of the last writes that they speak of. Those with unposted writes are passed
    /// by others.
    dones: VecDeque<Done>,
    pub(super) actions: VecDeque<Action>,
    /// Bytes of segments that came before they could be used.
    pub(super) early_bytes: usize,
    /// Nothing that is open ends earlier than this.
    pub(super) earliest: u64,
    pub(super) state: Connection,
    pub(super) counters: Counters,
    /// SAYs that a peer of an older version may still answer with NAK; and, once it has, which version it speaks.
    said: u32,
    peer_too_old: Option<u8>,
    /// The overdue transfers that have not ended with that.
    pub(super) expired: VecDeque<Expired>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Connection {
    Stands,
    /// A disconnect was asked for.
    Ends,
    Lost,
    Flushed,
}

/// A DONE to be said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Done {
    tag: Tag,
    bytes: u64,
    /// Other messages that were to be said before it, and have not been.
    behind: usize,
}

/// Something to be said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Out {
    Sync(Tag),
    /// Whatever the target has to offer when it is sent.
    Stcrw(Tag),
    Nak {
        tag: Tag,
        reason: Reason,
    },
    Cancel(Tag),
}

impl Link {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            credits: Credits::new(limits.receives),
            out: VecDeque::new(),
            dones: VecDeque::new(),
            actions: VecDeque::new(),
            early_bytes: 0,
            earliest: u64::MAX,
            state: Connection::Stands,
            counters: Counters::default(),
            said: 0,
            peer_too_old: None,
            expired: VecDeque::new(),
        }
    }

    pub(super) fn stands(&self) -> bool {
        self.state == Connection::Stands
    }

    /// Nothing is sent that the peer cannot receive.
    pub(super) fn enqueue(&mut self, out: Out) {
        if self.stands() {
            self.out.push_back(out);
        }
    }

    /// Says that so many bytes were written, behind the actions that are there.
    pub(super) fn say_done(&mut self, tag: Tag, bytes: u64) {
        if self.stands() {
            self.dones.push_back(Done { tag, bytes, behind: self.out.len() });
        }
    }

    /// Does not say DONE after all. False if that was said.
    pub(super) fn take_done_back(&mut self, tag: Tag) -> bool {
        let at = self.dones.iter().position(|done| done.tag == tag);
        at.and_then(|at| self.dones.remove(at)).is_some()
    }

    /// Returns whether a DONE can be said now that its writes are posted; and, unless it comes `first`, is next.
    pub(super) fn done_is_next(&self, posted: impl Fn(Tag) -> bool, first: bool) -> bool {
        let next = |done: &Done| first || done.behind == 0 || self.out.is_empty();
        self.dones.front().is_some_and(|done| next(done) && posted(done.tag))
    }

    /// Returns the first DONE, and receives that it announces, if there is a credit for it.
    pub(super) fn take_done(&mut self, into: &mut [u8; MESSAGE]) -> Option<usize> {
        let credits = self.credits.spend()?;
        let Done { tag, bytes, .. } = self.dones.pop_front()?;
        self.counters.sent += 1;
        Some(Message { credits, tag: tag.0, body: Body::Done { bytes } }.encode(into))
    }

    /// The first of the others is said, or has become void.
    pub(super) fn take_out(&mut self) {
        self.out.pop_front();
        for done in &mut self.dones {
            done.behind = done.behind.saturating_sub(1);
        }
    }

    pub(super) fn has_nothing_out(&self) -> bool {
        self.out.is_empty() && self.dones.is_empty()
    }

    /// Nothing more is said.
    pub(super) fn fall_silent(&mut self) {
        self.out.clear();
        self.dones.clear();
    }

    pub(super) fn memory(&self) -> usize {
        self.out.capacity() * size_of::<Out>()
            + self.dones.capacity() * size_of::<Done>()
            + self.actions.capacity() * size_of::<Action>()
    }

    /// Does not say it after all. The entry before it may wait for long, and more would pile up behind that.
    pub(super) fn take_back(&mut self, said: Out) {
        self.out.retain(|out| *out != said);
    }

    pub(super) fn disconnect(&mut self, why: Disconnect) {
        if self.stands() {
            self.state = Connection::Ends;
            self.earliest = u64::MAX;
            self.fall_silent();
            self.actions.push_back(Action::Disconnect { why });
        }
    }

    /// Returns a moment so much later; noted, so that it is not slept over.
    pub(super) fn deadline(&mut self, now: u64, time: u64) -> u64 {
        let deadline = now.saturating_add(time);
        if self.stands() {
            self.earliest = self.earliest.min(deadline);
        }
        deadline
    }

    /// How long bytes may take, once nothing but the network stands between.
    pub(super) fn time_for(&self, bytes: u64) -> u64 {
        self.limits.time_for(self.limits.write_time, bytes)
    }

    /// One more message that makes no sense.
    pub(super) fn count_stranger(&mut self) {
        self.counters.strangers += 1;
        if self.counters.strangers >= self.limits.strangers {
            self.disconnect(Disconnect::Strangers { count: self.counters.strangers });
        }
    }

    /// Returns a CREDIT.
    pub(super) fn take_credits(&mut self, into: &mut [u8; MESSAGE]) -> Option<usize> {
        let credits = self.credits.spend()?;
        self.counters.sent += 1;
        self.counters.credit_messages += 1;
        Some(Message { credits, tag: self.credits.tell_taken(), body: Body::Credit }.encode(into))
    }

    /// Returns whether there may be something to send.
    pub(super) fn has_to_send(&self) -> bool {
        self.stands() && (!self.has_nothing_out() || self.credits.should_announce() || self.credits.should_tell_taken())
    }

    /// Returns the length of a message to the peer's application, which is in `into`.
    pub(super) fn send_message_ahead(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, SendError> {
        self.may_ever_send(bytes.len())?;
        if !self.credits.may_send() {
            return Err(SendError::Full);
        }
        let (credits, taken) = self.credits.spend_on_say().ok_or(SendError::Full)?;
        self.said = self.said.saturating_add(1);
        self.counters.sent += 1;
        self.counters.messages_sent += 1;
        Ok(Message { credits, tag: taken, body: Body::Say(bytes) }.encode(into))
    }

    pub(super) fn may_wait_to_send(&self, waiting: usize) -> bool {
        self.stands() && self.peer_too_old.is_none() && self.credits.may_wait_to_send(waiting)
    }

    pub(super) fn may_send_ahead(&self) -> bool {
        self.stands() && self.peer_too_old.is_none() && self.credits.may_send()
    }

    pub(super) fn may_ever_send(&self, length: usize) -> Result<(), SendError> {
        match self.peer_too_old {
            _ if length > MAX_FRAME_PAYLOAD => Err(SendError::TooLong { length }),
            _ if !self.stands() => Err(SendError::Disconnected),
            Some(spoken) => Err(SendError::PeerTooOld { spoken }),
            None => Ok(()),
        }
    }

    pub(super) fn may_send(&self) -> bool {
        self.may_send_ahead() && self.has_nothing_out() && self.actions.is_empty()
    }

    /// Takes a NAK of what has no tag, which says that a version is not spoken. Returns whether it answers a SAY.
    pub(super) fn say_refused(&mut self, spoken: u8) -> bool {
        if self.said == 0 || spoken >= SAYS {
            return false;
        }
        self.said -= 1;
        if self.peer_too_old.is_none() {
            self.peer_too_old = Some(spoken);
            self.actions.push_back(Action::PeerTooOld { spoken });
        }
        true
    }
}
