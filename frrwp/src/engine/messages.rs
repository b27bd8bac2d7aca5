//! Messages between the two applications: taken where they come, kept until the application takes them.
//!
//! A message is sent at once, or waits for a credit or for room in the fabric's queue, before all else that waits for those.
//! Nothing waits for the peer's application: a message that would have to is refused.
//!
//! A message that is kept has its receive: it is posted again, and announced to the peer, when the application has taken
//! it. So there are never more of them than receives, and the buffers go round between here and the application.

use super::events::{Event, Events};
use super::send_queue::{SendQueue, Sent};
use crate::fabric::Endpoint;
use crate::handshake::{Expired, Handshake, Operation, Phase, SendError, Tag};
use crate::wire::MESSAGE;
use std::collections::VecDeque;

/// Messages of this side that are not sent, and of the peer's that are not taken.
pub(super) struct Messages {
    send_time: u64,
    waiting: VecDeque<Waiting>,
    /// How many were handed over by the application.
    number: u64,
    /// The first of those that waited when nothing could be sent any more: from it on, none is ever sent.
    void: Option<u64>,
    inbox: VecDeque<Vec<u8>>,
    /// Buffers for the next of either, at most as many as there were at a time.
    spare: Vec<Vec<u8>>,
    /// Events among those of the engine that speak of messages in the inbox.
    untold: usize,
    /// Whether a message was refused for want of room, and the application waits for an event.
    refused: bool,
}

/// A message that is not sent.
struct Waiting {
    bytes: Vec<u8>,
    number: u64,
    /// How many writes had been posted when it began to wait, and when that was.
    after: u64,
    since: u64,
    /// When its time is over.
    over: u64,
}

impl Messages {
    pub(super) fn new(send_time: u64) -> Self {
        Self {
            send_time,
            waiting: VecDeque::new(),
            number: 0,
            void: None,
            inbox: VecDeque::new(),
            spare: Vec::new(),
            untold: 0,
            refused: false,
        }
    }

    /// Sends a message, or keeps it until it can be sent.
    pub(super) fn send<E: Endpoint>(
        &mut self,
        bytes: &[u8],
        handshake: &mut Handshake,
        queue: &mut SendQueue<E>,
    ) -> Result<(), SendError> {
        handshake.may_ever_send(bytes.len())?;
        if self.can_send_now(handshake, queue) {
            let mut refused = Ok(());
            // A message that finds the queue full waits, before everything else.
            queue.send(|into| handshake.send_message_ahead(bytes, into).map_err(|error| refused = Err(error)).ok());
            self.number += u64::from(refused.is_ok());
            return refused;
        }
        if !handshake.may_wait_to_send(self.waiting.len()) {
            self.refused = true;
            return Err(SendError::Full);
        }
        let mut message = self.spare.pop().unwrap_or_default();
        message.extend_from_slice(bytes);
        self.number += 1;
        let (number, after, since) = (self.number, queue.ever(), queue.now());
        let over = since.saturating_add(self.send_time);
        self.waiting.push_back(Waiting { bytes: message, number, after, since, over });
        Ok(())
    }

    fn can_send_now<E: Endpoint>(&self, handshake: &Handshake, queue: &SendQueue<E>) -> bool {
        self.waiting.is_empty() && !queue.has_unsent() && handshake.may_send_ahead()
    }

    fn has_room<E: Endpoint>(&self, handshake: &Handshake, queue: &SendQueue<E>) -> bool {
        self.can_send_now(handshake, queue) || handshake.may_wait_to_send(self.waiting.len())
    }

    /// Returns whether a message was refused for want of room.
    pub(super) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Returns whether there is room for a message that was refused; then the next call returns false.
    pub(super) fn regains_room<E: Endpoint>(&mut self, handshake: &Handshake, queue: &SendQueue<E>) -> bool {
        let regains = self.refused && self.has_room(handshake, queue);
        self.refused &= !regains;
        regains
    }

    /// Returns the number of the last message.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether a message waits to be sent.
    pub(super) fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether this message waits to be sent.
    pub(super) fn waits(&self, number: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.number == number)
    }

    /// Returns whether this message waited when nothing could be sent any more: it is never sent.
    pub(super) fn is_void(&self, number: u64) -> bool {
        self.void.is_some_and(|void| void <= number)
    }

    /// Returns how many writes had been posted when the first that waits began to.
    pub(super) fn waits_since(&self) -> Option<u64> {
        self.waiting.front().map(|first| first.after)
    }

    /// Takes a message back that waits to be sent. Returns false if it was sent.
    pub(super) fn cancel(&mut self, number: u64) -> bool {
        let at = self.waiting.iter().position(|waiting| waiting.number == number);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Sets when the time of a message is over that waits to be sent. Returns false if it does not wait.
    pub(super) fn set_deadline(&mut self, number: u64, over: u64) -> bool {
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.number == number);
        waiting.map(|waiting| waiting.over = over).is_some()
    }

    /// Returns when [`Messages::expire`] has something to do at the earliest.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.waiting.iter().map(|waiting| waiting.over).min()
    }

    /// Takes back the messages that have waited too long.
    pub(super) fn expire(&mut self, now: u64, events: &mut Events) {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.over <= now) {
            let Some(Waiting { number, since, .. }) = self.waiting.remove(at) else { return };
            let (operation, waited) = (Operation::Message(number), now.saturating_sub(since));
            events.push(Event::Expired(Expired { operation, phase: Phase::Credit, waited }));
        }
    }

    /// Sends the messages that wait, as far as there are credits. The DONEs that can be sent go first, so that the peer
    /// learns first of transfers that have ended here. `posted` says whether all writes of a transfer are. Returns false if
    /// the fabric's queue is full.
    pub(super) fn send_waiting<E: Endpoint>(
        &mut self,
        handshake: &mut Handshake,
        queue: &mut SendQueue<E>,
        posted: impl Fn(Tag) -> bool,
    ) -> bool {
        while let Some(first) = self.waiting.front() {
            let mut has_no_credit = false;
            let mut sent = queue.send(|into| {
                let (done, lacks) = handshake.take_done_where(into, &posted);
                has_no_credit = lacks;
                done
            });
            let is_done = sent != Sent::Nothing;
            if !is_done && !has_no_credit {
                sent = queue.send(|into| handshake.send_message_ahead(&first.bytes, into).ok());
            }
            if sent == Sent::Nothing {
                // A message that is not delivered: an event tells the application.
                if handshake.may_ever_send(first.bytes.len()).is_err() {
                    self.void.get_or_insert(first.number);
                    self.waiting.clear();
                }
                return true;
            }
            if !is_done && let Some(Waiting { mut bytes, .. }) = self.waiting.pop_front() {
                bytes.clear();
                self.spare.push(bytes);
            }
            if sent == Sent::Waits {
                return false;
            }
        }
        true
    }

    /// Keeps a message of the peer's. An event that speaks of it follows.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        let mut message = self.spare.pop().unwrap_or_default();
        message.extend_from_slice(bytes);
        self.inbox.push_back(message);
        self.untold += 1;
    }

    /// Notes that the application was told of a message.
    pub(super) fn told(&mut self) {
        self.untold -= 1;
    }

    /// Takes the oldest message: `into` is emptied and kept for messages to come, and the message is there in its stead. Returns
    /// false, and does nothing, where there is none.
    pub(super) fn take(&mut self, into: &mut Vec<u8>, events: &mut Events) -> bool {
        let Some(message) = self.inbox.pop_front() else { return false };
        let mut before = std::mem::replace(into, message);
        before.clear();
        // A program that collects much in one buffer leaves it here, where it is of no use.
        before.shrink_to(2 * MESSAGE);
        self.spare.push(before);
        if self.untold > self.inbox.len() {
            // Taken before it was told.
            self.untold -= usize::from(events.take_back_message());
        }
        true
    }
}
