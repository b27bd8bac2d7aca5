//! The events of an engine for its application: results, and the reasons of failures.

use crate::handshake::{Disconnect, Expired, Failure, Refusal, Tag};
use mrrc::cache::AcquireError;
use std::collections::VecDeque;

/// Events that the application has not taken, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<Event>);

impl Events {
    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        self.0.push_back(event);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, is_it: impl Fn(&Event) -> bool) -> Option<Event> {
        let at = self.0.iter().position(is_it)?;
        self.0.remove(at)
    }

    /// Takes the request of a transfer back. Returns false if the application was told of it.
    pub(super) fn take_back_request(&mut self, tag: Tag) -> bool {
        self.take(|event| matches!(event, Event::Requested { tag: asked, .. } if *asked == tag)).is_some()
    }

    /// Takes back the event of a message. Returns false if no message waits.
    pub(super) fn take_back_message(&mut self) -> bool {
        self.take(|event| matches!(event, Event::Message)).is_some()
    }

    /// Takes the result of a transfer that has ended.
    pub(super) fn take_end(&mut self, tag: Tag) -> Option<Result<u64, TransferError>> {
        match self.take(|event| matches!(event, Event::Completed { tag: ended, .. } if *ended == tag))? {
            Event::Completed { result, .. } => Some(result),
            _ => None,
        }
    }
}

/// An event.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The peer opens a transfer. [`Engine::header`](super::Engine::header) has what its application said. Answer with [`Engine::accept_write`](super::Engine::accept_write),
    /// [`Engine::accept_read`](super::Engine::accept_read) or [`Engine::refuse`](super::Engine::refuse). A transfer that has ended before this was told is not told of at all.
    Requested {
        /// The transfer.
        tag: Tag,
        /// Whether the peer wants bytes.
        read: bool,
        /// The length that it writes, or the most that it accepts.
        length: u64,
    },
    /// In the traditional process: the peer's keys are there; go on with [`Engine::submit`](super::Engine::submit).
    KeysCame {
        /// The transfer.
        tag: Tag,
    },
    /// A transfer has ended, and its buffer belongs to the application again, unless it is
    /// [quarantined](TransferError::Quarantined). After a failure, what a target's buffer holds is undefined.
    Completed {
        /// The transfer.
        tag: Tag,
        /// Bytes moved.
        result: Result<u64, TransferError>,
    },
    /// The peer's application said something: [`Engine::recv_message`](super::Engine::recv_message) takes it. Told once for each message that was
    /// not taken before.
    Message,
    /// A one-sided read has ended, and its buffer belongs to the application again.
    ReadCompleted {
        /// As [`Engine::read_remote`](super::Engine::read_remote) named it.
        id: u64,
        /// Whether the bytes are there. If not, those of the buffer are undefined, and the connection is at its end.
        succeeded: bool,
    },
    /// A one-sided write has ended, and its buffer belongs to the application again. Over `iwarp` the bytes have only left this side by
    /// then. The end of a read that was posted after the write shows that they are at the peer.
    WriteCompleted {
        /// As [`Engine::write_remote`](super::Engine::write_remote) named it.
        id: u64,
        /// Whether the bytes were written. If not, some of them may be, and the connection is at its end.
        succeeded: bool,
    },
    /// An operation has waited too long and is given up. A message is never sent. The end of a transfer or a one-sided read
    /// follows when nothing can be at its buffer any more. Reported only if the end is not reported at once.
    Expired(Expired),
    /// An operation that was refused for lack of [room](crate::handshake::SendError::Full), or because the fabric was
    /// [busy](OpenError::Busy), may be tried again.
    Writable,
    /// The peer speaks an older version of the wire, which has no messages: those that were sent to it are lost.
    PeerTooOld {
        /// The newest version that it speaks.
        spoken: u8,
    },
    /// The connection has come to its end. Every transfer's end was reported before.
    Closed {
        /// Why, where it was this side that ended it.
        why: Option<Disconnect>,
    },
}

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Its memory could not be registered.
    #[error("transfer {}: {error}", tag.0)]
    Registration {
        /// The transfer.
        tag: Tag,
        /// The cache's error.
        #[source]
        error: AcquireError,
    },
    /// Anything else.
    #[error("transfer {}: {failure}", tag.0)]
    Failed {
        /// The transfer.
        tag: Tag,
        /// Why.
        failure: Failure,
    },
    /// As it says, and the peer has stopped in mid-copy and may still write the buffer. That is *not* the application's
    /// again before the peer's process is dead. Only over fabrics with peers that copy by themselves: `shm`.
    #[error("{why}; the peer stopped while it used the buffer: end that process to free it")]
    Quarantined {
        /// The transfer.
        tag: Tag,
        /// How it ended.
        #[source]
        why: Box<TransferError>,
    },
}

/// Why no transfer, or no one-sided read, was opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The handshake refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The traditional process and one-sided reads register first, and could not.
    #[error("a transfer could not be opened: {0}")]
    Registration(#[source] AcquireError),
    /// As many one-sided reads are under way as there may be, or as the fabric takes.
    #[error("{under_way} reads are in flight, and the fabric takes no more now: try again after progress")]
    Busy {
        /// Reads.
        under_way: usize,
    },
    /// A one-sided read or write of more than the buffer holds.
    #[error("{wanted} bytes to be read into, or written from, a buffer of {length}: lend as many")]
    TooShort {
        /// Bytes of the buffer.
        length: usize,
        /// Bytes to be read or written.
        wanted: u64,
    },
    /// The lease does not cover the buffer, or in more pieces than the fabric takes at a time.
    #[error("the lease covers the buffer in no more than {most} pieces: lease all of it, or read without one")]
    Uncovered {
        /// Pieces that the fabric takes at a time.
        most: usize,
    },
}
