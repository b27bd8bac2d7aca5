//! What the two applications say to each other: taken where it comes, kept until the application takes it.
//!
//! A message that is kept has its receive: it is posted again, and announced to the peer, when the application has taken
//! it. So there are never more of them than receives, and the buffers go round between here and the application.

use super::{Engine, Event};
use crate::fabric::Endpoint;
use crate::handshake::Unsaid;
use crate::wire::MESSAGE;
use std::collections::VecDeque;

/// What was said and not taken.
#[derive(Default)]
pub(super) struct Said {
    messages: VecDeque<Vec<u8>>,
    /// Buffers for the next, at most as many as there were messages at a time.
    spare: Vec<Vec<u8>>,
    /// Events among those of the engine that speak of these.
    untold: usize,
}

/// What was refused for want of room.
#[derive(Default)]
pub(super) struct Wants {
    pub(super) to_say: bool,
    pub(super) to_fetch: bool,
}

impl Said {
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
    /// Says something to the peer's application, in one message of at most [`SAID`](crate::wire::SAID) bytes. It comes in order
    /// with the ends of transfers.
    ///
    /// # Errors
    /// [`Unsaid`]. Where there is [no room](Unsaid::Full), [`Event::Room`] says when to try again.
    pub fn say(&mut self, bytes: &[u8]) -> Result<(), Unsaid> {
        if !self.may_say() {
            self.drive();
        }
        if self.posts.waits() {
            self.handshake.may_ever_say(bytes.len())?;
            self.wants.to_say = true;
            return Err(Unsaid::Full);
        }
        match self.handshake.say(bytes, &mut self.message) {
            Ok(length) => {
                // What finds the queue full waits, before everything else.
                self.posts.send(&mut self.endpoint, &self.message[..length]);
                Ok(())
            }
            Err(error) => {
                self.wants.to_say |= error == Unsaid::Full;
                Err(error)
            }
        }
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
        !self.posts.waits() && self.handshake.may_say()
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
