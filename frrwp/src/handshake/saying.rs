//! What the two applications say to each other beside their transfers.
//!
//! A message of the application's is sent when it is said, in the one order of the connection, or not at all: nothing is kept
//! here. So what was said before a transfer was answered arrives before the transfer's end does. What comes is the driver's to
//! keep until the application takes it; there is never more of it than receives.

use super::{Action, Expired, Handshake};
use crate::wire::{Body, MESSAGE, Message, SAID, SAYS};

/// Why something was not said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsaid {
    /// It is too long for a message.
    #[error("{length} bytes to be said; at most {SAID} go in a message: say it in parts")]
    TooLong {
        /// Bytes.
        length: usize,
    },
    /// The peer has no receives to spare, because its application does not take what was said before, or the fabric is full.
    #[error("there is no room to say something: try again after progress")]
    Full,
    /// The peer does not know how to listen.
    #[error(
        "the peer speaks version {spoken} of the wire, in which nothing can be said: run the same release on both sides"
    )]
    Deaf {
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
    /// [`Unsaid`]: also where actions or messages wait, which come first.
    pub fn say(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, Unsaid> {
        self.may_ever_say(bytes.len())?;
        if !self.may_say() {
            return Err(Unsaid::Full);
        }
        self.say_ahead(bytes, into)
    }

    /// The same, before the actions and messages that wait. None of those is about what is said; but of what was opened before,
    /// the peer hears after it.
    ///
    /// # Errors
    /// [`Unsaid`].
    pub fn say_ahead(&mut self, bytes: &[u8], into: &mut [u8; MESSAGE]) -> Result<usize, Unsaid> {
        self.may_ever_say(bytes.len())?;
        if !self.link.credits.may_say() {
            return Err(Unsaid::Full);
        }
        let (credits, taken) = self.link.credits.spend_on_say().ok_or(Unsaid::Full)?;
        self.link.said = self.link.said.saturating_add(1);
        self.link.counters.sent += 1;
        self.link.counters.said += 1;
        Ok(Message { credits, tag: taken, body: Body::Say(bytes) }.encode(into))
    }

    /// Whether one more message may wait behind so many to be [said ahead](Handshake::say_ahead): all that they wait for is a
    /// credit each, which comes whether the peer's application listens or not.
    pub fn may_wait_to_say(&self, waiting: usize) -> bool {
        let link = &self.link;
        link.stands() && link.deaf.is_none() && link.credits.may_wait_to_say(waiting)
    }

    /// Whether something can be [said ahead](Handshake::say_ahead) now, if it is not too long.
    pub fn may_say_ahead(&self) -> bool {
        self.link.stands() && self.link.deaf.is_none() && self.link.credits.may_say()
    }

    /// Whether so many bytes could be said, if there were room.
    ///
    /// # Errors
    /// [`Unsaid`], but not for want of room.
    pub fn may_ever_say(&self, length: usize) -> Result<(), Unsaid> {
        match self.link.deaf {
            _ if length > SAID => Err(Unsaid::TooLong { length }),
            _ if !self.link.stands() => Err(Unsaid::Disconnected),
            Some(spoken) => Err(Unsaid::Deaf { spoken }),
            None => Ok(()),
        }
    }

    /// Whether something can be said now, if it is not too long.
    pub fn may_say(&self) -> bool {
        self.may_say_ahead() && self.link.has_nothing_out() && self.link.actions.is_empty()
    }

    /// The application has taken one of the messages that were said to it. Its receive is posted again before this.
    pub fn heard(&mut self) {
        self.link.credits.let_go();
    }

    /// A NAK of what has no tag says that a version is not spoken: whether it answers a SAY.
    pub(super) fn was_not_heard(&mut self, spoken: u8) -> bool {
        if self.link.said == 0 || spoken >= SAYS {
            return false;
        }
        self.link.said -= 1;
        if self.link.deaf.is_none() {
            self.link.deaf = Some(spoken);
            self.link.actions.push_back(Action::Deaf { spoken });
        }
        true
    }
}
