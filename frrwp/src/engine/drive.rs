//! What the handshake wants is carried out, and what the fabric says is passed on.
//!
//! Actions come before messages: that is the one order of a connection. Writes that may not be posted yet, or for which the
//! fabric has no room, wait in [`posts`](super::posts), and the DONE that speaks of them is not taken from the handshake before
//! they have left.

use super::{Engine, Event, TransferError};
use crate::fabric::{Completion, Endpoint};
use crate::handshake::{Action, Failure, Tag};

impl<E: Endpoint> Engine<'_, E> {
    /// Something has ended, or has come. Returns whether to act on it at once. The end of a part of a write only makes room for further
    /// parts, and those leave together when all completions are taken.
    pub(super) fn completed(&mut self, completion: Completion) -> bool {
        match completion {
            Completion::Message { length } => {
                match self.handshake.received(self.endpoint.now(), &self.message[..length]) {
                    Some(said) => {
                        self.said.came(said);
                        self.events.push_back(Event::Said);
                    }
                    // Its receive is there again before it is answered.
                    None => self.repost(),
                }
            }
            Completion::Immediate(immediate) => {
                self.repost();
                self.handshake.received_immediate(self.endpoint.now(), immediate);
            }
            Completion::Done { id, succeeded } => {
                let Some((tag, succeeded)) = self.posts.done(id, succeeded) else { return false };
                self.handshake.written(tag, succeeded);
            }
            Completion::Lost => self.handshake.lost(),
            Completion::Flushed => {
                self.handshake.flushed();
                self.drive();
                self.flush_fetches();
                self.closed = true;
                self.events.push_back(Event::Closed { why: self.why });
            }
        }
        true
    }

    /// Posts a receive in the place of one that was used.
    pub(super) fn repost(&mut self) {
        // The connection's end is told by a completion.
        let _ = self.endpoint.receive(1);
    }

    /// Carries out the actions that the handshake wants. False if some still wait for the fabric.
    pub(super) fn carry_out(&mut self) -> bool {
        while let Some(action) = self.handshake.next_action() {
            self.act(action);
        }
        self.post_fetches();
        self.post()
    }

    /// Carries out what the handshake wants: actions, then messages, in the one order of the connection.
    pub(super) fn drive(&mut self) {
        if !self.carry_out() {
            return;
        }
        // What is said has the next credit.
        if self.said.waits_to_be_sent() || !self.handshake.has_to_say() {
            return;
        }
        let now = self.endpoint.now();
        let buffers = &self.buffers;
        let posted = |tag| buffers.get(&tag).is_none_or(|buffer| buffer.unposted == 0);
        // A message that finds the queue full waits in it, and nothing is taken before it has left.
        while let Some(length) = self.handshake.take_message_where(now, &mut self.message, posted) {
            if !self.posts.send(&mut self.endpoint, &self.message[..length]) {
                return;
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Asked { tag, read, length } => self.events.push_back(Event::Asked { tag, read, length }),
            Action::KeysCame { tag } => self.events.push_back(Event::KeysCame { tag }),
            Action::Write { tag, remote, offset, immediate } => {
                if let Some(buffer) = self.buffers.get_mut(&tag) {
                    buffer.unposted += 1;
                }
                self.posts.queue(tag, remote, offset, immediate);
            }
            Action::Ended { tag, result } => drop(self.ends.insert(tag, result)),
            Action::Release { tag } => {
                let answered = self.buffers.contains_key(&tag);
                if !answered && self.take_question_back(tag) {
                    self.ends.remove(&tag);
                    return;
                }
                let error = self.errors.remove(&tag);
                let result = match (self.ends.remove(&tag), error) {
                    (Some(Ok(bytes)), _) => Ok(bytes),
                    (_, Some(error)) => Err(TransferError::Registration { tag, error }),
                    (Some(Err(failure)), None) => Err(TransferError::Failed { tag, failure }),
                    (None, None) => Err(TransferError::Failed { tag, failure: Failure::Lost }),
                };
                let result = result.map_err(|error| self.held_or_free(tag, error));
                self.buffers.remove(&tag);
                self.events.push_back(Event::Ended { tag, result });
            }
            Action::Deaf { spoken } => self.events.push_back(Event::Deaf { spoken }),
            Action::Disconnect { why } => {
                self.why = Some(why);
                self.endpoint.disconnect();
            }
        }
    }
}

impl<E: Endpoint> Engine<'_, E> {
    /// What the application has not been asked yet, it need not know of: else a peer that opens and takes back piles up
    /// events before an application that looks at none. False if there is no such question.
    fn take_question_back(&mut self, tag: Tag) -> bool {
        let is_question = |event: &Event| matches!(event, Event::Asked { tag: asked, .. } if *asked == tag);
        let at = self.events.iter().position(is_question);
        at.and_then(|at| self.events.remove(at)).is_some()
    }
}
