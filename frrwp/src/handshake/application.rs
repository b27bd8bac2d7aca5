//! The messages of the two applications to each other beside their transfers.
//!
//! A message of the application's is sent when it is said, in the one order of the connection, or not at all: nothing is kept
//! here. So what was said before a transfer was answered arrives before the transfer's end does. The driver keeps messages
//! until the application takes them; there are never more of them than receives.

use super::{Action, Expired, Handshake};
use crate::wire::{Body, MAX_FRAME_PAYLOAD, MESSAGE, Message, SAYS};

/// Why something was not said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It is too long for a message.
    #[error("a message of {length} bytes: at most {MAX_FRAME_PAYLOAD} fit: send it in parts")]
    TooLong {
        /// Bytes.
        length: usize,
    },
    /// The peer has no receives to spare, because its application does not take what was said before, or the fabric is full.
    #[error("no room for a message: try again after progress")]
    Full,
    /// The peer does not know how to listen.
    #[error(
        "the peer speaks version {spoken} of the wire format, which has no messages: run the same release on both sides"
    )]
    PeerTooOld {
        /// The newest version that it speaks.
        spoken: u8,
    },
    /// It was not sent in time, and never is.
    #[error("{0}")]
    Expired(Expired),
    /// The connection is gone.
    #[error("the connection is gone: connect again")]
    Disconnected,
}

impl Handshake {
    /// Says something to the peer's application: the message, in `into`, and its length. It is sent at once, behind all that
    /// was [taken](Handshake::take_message).
    ///
    /// # Errors
    /// [`SendError`]: also where actions or messages wait, which come first.
    pub fn send_message(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, SendError> {
        self.may_ever_send(bytes.len())?;
        if !self.may_send() {
            return Err(SendError::Full);
        }
        self.send_message_ahead(bytes, into)
    }

    /// The same, before the actions and messages that wait. None of those is about what is said; but of what was opened before,
    /// the peer hears after it.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_message_ahead(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, SendError> {
        self.may_ever_send(bytes.len())?;
        if !self.link.credits.may_send() {
            return Err(SendError::Full);
        }
        let (credits, taken) = self.link.credits.spend_on_say().ok_or(SendError::Full)?;
        self.link.said = self.link.said.saturating_add(1);
        self.link.counters.sent += 1;
        self.link.counters.messages_sent += 1;
        Ok(Message { credits, tag: taken, body: Body::Say(bytes) }.encode(into))
    }

    /// Returns whether one more message may wait behind so many to be [said ahead](Handshake::send_message_ahead): all that they wait
    /// for is a credit each, which comes whether the peer's application listens or not.
    pub fn may_wait_to_send(&self, waiting: usize) -> bool {
        let link = &self.link;
        link.stands() && link.peer_too_old.is_none() && link.credits.may_wait_to_send(waiting)
    }

    /// Returns whether something can be [said ahead](Handshake::send_message_ahead) now, if it is not too long.
    pub fn may_send_ahead(&self) -> bool {
        self.link.stands() && self.link.peer_too_old.is_none() && self.link.credits.may_send()
    }

    /// Whether so many bytes could be said, if there were room.
    ///
    /// # Errors
    /// [`SendError`], but not for want of room.
    pub fn may_ever_send(&self, length: usize) -> Result<(), SendError> {
        match self.link.peer_too_old {
            _ if length > MAX_FRAME_PAYLOAD => Err(SendError::TooLong { length }),
            _ if !self.link.stands() => Err(SendError::Disconnected),
            Some(spoken) => Err(SendError::PeerTooOld { spoken }),
            None => Ok(()),
        }
    }

    /// Returns whether something can be said now, if it is not too long.
    pub fn may_send(&self) -> bool {
        self.may_send_ahead() && self.link.has_nothing_out() && self.link.actions.is_empty()
    }

    /// The application has taken one of the messages that were said to it. Its receive is posted again before this.
    pub fn message_taken(&mut self) {
        self.link.credits.let_go();
    }

    /// A NAK of what has no tag says that a version is not spoken: whether it answers a SAY.
    pub(super) fn was_not_heard(&mut self, spoken: u8) -> bool {
        if self.link.said == 0 || spoken >= SAYS {
            return false;
        }
        self.link.said -= 1;
        if self.link.peer_too_old.is_none() {
            self.link.peer_too_old = Some(spoken);
            self.link.actions.push_back(Action::PeerTooOld { spoken });
        }
        true
    }
}
