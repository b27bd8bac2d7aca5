//! What the two applications say to each other: taken where it comes, kept until the application takes it.
//!
//! What is said is sent at once, or waits for a credit or for room in the fabric's queue, before all else that waits for
//! those. Nothing waits for the peer's application: what would is refused.
//!
//! A message that is kept has its receive: it is posted again, and announced to the peer, when the application has taken
//! it. So there are never more of them than receives, and the buffers go round between here and the application.

use super::{Engine, Event};
use crate::fabric::Endpoint;
use crate::handshake::{Expired, Operation, Phase, Unsaid};
use crate::wire::MESSAGE;
use std::collections::VecDeque;

/// What was said here and not sent, and what was said there and not taken.
#[derive(Default)]
pub(super) struct Said {
    waiting: VecDeque<Waiting>,
    /// How many were said.
    number: u64,
    /// The first of those that waited when nothing could be said any more: from it on, none is ever sent.
    void: Option<u64>,
    messages: VecDeque<Vec<u8>>,
    /// Buffers for the next of either, at most as many as there were at a time.
    spare: Vec<Vec<u8>>,
    /// Events among those of the engine that speak of these.
    untold: usize,
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

/// What was refused for want of room.
#[derive(Default)]
pub(super) struct Wants {
    pub(super) to_say: bool,
    pub(super) to_fetch: bool,
}

impl Said {
    /// Whether a message waits to be sent.
    pub(super) fn waits_to_be_sent(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many writes had been posted when the first that waits began to.
    pub(super) fn waits_since(&self) -> Option<u64> {
        self.waiting.front().map(|first| first.after)
    }

    /// When the time of the first whose time is over is.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.waiting.iter().map(|waiting| waiting.over).min()
    }

    /// Whether that message waits to be sent.
    pub(super) fn waits(&self, number: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.number == number)
    }

    /// An event that speaks of it follows.
    pub(super) fn came(&mut self, bytes: &[u8]) {
        let mut message = self.spare.pop().unwrap_or_default();
        message.extend_from_slice(bytes);
        self.messages.push_back(message);
        self.untold += 1;
    }

    /// The application was told of one.
    pub(super) fn told(&mut self) {
        self.untold -= 1;
    }
}

impl<E: Endpoint> Engine<'_, E> {
    /// Says something to the peer's application, in one message of at most [`SAID`](crate::wire::SAID) bytes. Messages come in the
    /// order in which they are said, and before the end of each transfer that is answered afterwards. Where the peer owes credits
    /// or the fabric is full it is sent by [`Engine::progress`], before what was waiting already, and with at most
    /// [`PIECES`](super::PIECES) pieces of writes before it.
    ///
    /// # Errors
    /// [`Unsaid`]. Where there is [no room](Unsaid::Full), because the peer's application does not take what was said before,
    /// [`Event::Room`] says when to try again.
    pub fn say(&mut self, bytes: &[u8]) -> Result<(), Unsaid> {
        // What was opened before is heard of before, where it can be.
        if !self.handshake.may_say() {
            self.drive();
        }
        self.handshake.may_ever_say(bytes.len())?;
        let waits = self.said.waits_to_be_sent() || self.posts.has_unsent();
        if !waits && self.handshake.may_say_ahead() {
            let length = self.handshake.say_ahead(bytes, &mut self.message)?;
            // What finds the queue full waits, before everything else.
            self.posts.send(&mut self.endpoint, &self.message[..length]);
            self.said.number += 1;
            return Ok(());
        }
        if !self.handshake.may_wait_to_say(self.said.waiting.len()) {
            self.wants.to_say = true;
            return Err(Unsaid::Full);
        }
        let mut message = self.said.spare.pop().unwrap_or_default();
        message.extend_from_slice(bytes);
        self.said.number += 1;
        let (number, after, since) = (self.said.number, self.posts.ever(), self.endpoint.now());
        let over = since.saturating_add(self.say_time);
        self.said.waiting.push_back(Waiting { bytes: message, number, after, since, over });
        Ok(())
    }

    /// How many messages were said here: the number of the last.
    pub fn messages(&self) -> u64 {
        self.said.number
    }

    /// Takes a message back that waits to be sent. False if it was sent: what was sent is heard.
    pub fn cancel_message(&mut self, number: u64) -> bool {
        let at = self.said.waiting.iter().position(|waiting| waiting.number == number);
        at.and_then(|at| self.said.waiting.remove(at)).is_some()
    }

    /// Sets when the time of a message that waits to be sent is over, on the clock of [`Endpoint::now`], in the place of what the
    /// [limits](crate::handshake::Limits::say_time) say. False if it was sent, or taken back.
    pub fn set_message_deadline(&mut self, number: u64, over: u64) -> bool {
        let waiting = self.said.waiting.iter_mut().find(|waiting| waiting.number == number);
        waiting.map(|waiting| waiting.over = over).is_some()
    }

    /// Takes back the messages that have waited too long.
    pub(super) fn expire_messages(&mut self, now: u64) {
        while let Some(at) = self.said.waiting.iter().position(|waiting| waiting.over <= now) {
            let Some(Waiting { number, since, .. }) = self.said.waiting.remove(at) else { return };
            let (operation, waited) = (Operation::Message(number), now.saturating_sub(since));
            self.events.push_back(Event::Expired(Expired { operation, phase: Phase::Credit, waited }));
        }
    }

    /// Why a message of so many bytes can never be sent.
    pub(super) fn may_ever_say(&self, length: usize) -> Result<(), Unsaid> {
        self.handshake.may_ever_say(length)
    }

    /// Whether that message waits to be sent.
    pub(super) fn message_waits(&self, number: u64) -> bool {
        self.said.waits(number)
    }

    /// Whether that message waited when nothing could be said any more: it is never sent.
    pub(super) fn message_is_void(&self, number: u64) -> bool {
        self.said.void.is_some_and(|void| void <= number)
    }

    /// Sends the messages that wait, as far as there are credits, and before each the DONEs that can be: so that it is heard
    /// after the ends of transfers that have ended here. False if the fabric's queue is full.
    pub(super) fn send_waiting(&mut self) -> bool {
        while let Some(mut first) = self.said.waiting.pop_front() {
            let buffers = &self.buffers;
            let posted = |tag| buffers.get(&tag).is_none_or(|buffer| buffer.unposted == 0);
            let (done, has_no_credit) = self.handshake.take_done_where(&mut self.message, posted);
            let length = match done {
                Some(_) => done,
                None if has_no_credit => None,
                None => self.handshake.say_ahead(&first.bytes, &mut self.message).ok(),
            };
            match length {
                // It is not delivered: an event tells the application.
                None if self.handshake.may_ever_say(first.bytes.len()).is_err() => {
                    self.said.void.get_or_insert(first.number);
                    self.said.waiting.clear();
                }
                None => {
                    self.said.waiting.push_front(first);
                    return true;
                }
                Some(length) => {
                    if done.is_some() {
                        self.said.waiting.push_front(first);
                    } else {
                        first.bytes.clear();
                        self.said.spare.push(first.bytes);
                    }
                    if !self.posts.send(&mut self.endpoint, &self.message[..length]) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Takes what the peer's application has said, the oldest first: `into` is emptied and lent to messages to come, and what
    /// was said is there in its stead. False, and nothing is done, where there is nothing.
    pub fn heard(&mut self, into: &mut Vec<u8>) -> bool {
        let Some(message) = self.said.messages.pop_front() else { return false };
        let mut before = std::mem::replace(into, message);
        before.clear();
        // Whoever collects much in one buffer leaves it here, where it is of no use.
        before.shrink_to(2 * MESSAGE);
        self.said.spare.push(before);
        if self.said.untold > self.said.messages.len() {
            // Taken before it was told.
            let at = self.events.iter().position(|event| matches!(event, Event::Said));
            self.said.untold -= usize::from(at.and_then(|at| self.events.remove(at)).is_some());
        }
        self.repost();
        self.handshake.heard();
        // The caller may go to sleep now, and the peer wait for room.
        if self.handshake.has_to_say() {
            self.drive();
        }
        true
    }

    fn may_say(&self) -> bool {
        let waits = self.said.waits_to_be_sent() || self.posts.has_unsent();
        (!waits && self.handshake.may_say_ahead()) || self.handshake.may_wait_to_say(self.said.waiting.len())
    }

    /// Tells who was refused that there is room, when there is.
    #[cold]
    pub(super) fn look_for_room(&mut self) {
        let to_say = self.wants.to_say && self.may_say();
        let to_fetch = self.wants.to_fetch && self.fetches.have_room();
        self.wants.to_say &= !to_say;
        self.wants.to_fetch &= !to_fetch;
        if to_say || to_fetch {
            self.events.push_back(Event::Room);
        }
    }
}
