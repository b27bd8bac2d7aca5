//! What an engine tells its application: what happened, and why something did not.

use crate::handshake::{Disconnect, Expired, Failure, Refusal, Tag};
use mrrc::cache::AcquireError;

/// What became of things.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The peer opens a transfer. [`Engine::header`](super::Engine::header) has what its application said. Answer with [`Engine::accept`](super::Engine::accept),
    /// [`Engine::supply`](super::Engine::supply) or [`Engine::refuse`](super::Engine::refuse). A transfer that has ended before this was told is not told of at all.
    Asked {
        /// The transfer.
        tag: Tag,
        /// Whether the peer wants bytes.
        read: bool,
        /// What it writes, or the most that it accepts.
        length: u64,
    },
    /// In the traditional process: the peer's keys are there; go on with [`Engine::submit`](super::Engine::submit).
    KeysCame {
        /// The transfer.
        tag: Tag,
    },
    /// A transfer has ended, and its buffer belongs to the application again, unless it is
    /// [quarantined](TransferError::Quarantined). After a failure, what a target's buffer holds is undefined.
    Ended {
        /// The transfer.
        tag: Tag,
        /// Bytes moved.
        result: Result<u64, TransferError>,
    },
    /// The peer's application said something: [`Engine::heard`](super::Engine::heard) takes it. Told once for each message that was
    /// not taken before.
    Said,
    /// A one-sided read has ended, and its buffer belongs to the application again.
    Fetched {
        /// As [`Engine::fetch`](super::Engine::fetch) named it.
        id: u64,
        /// Whether the bytes are there. If not, those of the buffer are undefined, and the connection is at its end.
        succeeded: bool,
    },
    /// An operation has waited too long and is given up: a message is never sent, the end of a transfer or a one-sided read follows
    /// when nothing can be at its buffer any more. Told only where the end is not told at once.
    Expired(Expired),
    /// What was refused because there was [no room](crate::handshake::Unsaid::Full) to say it, or because the fabric was
    /// [busy](OpenError::Busy), may be tried again.
    Room,
    /// The peer speaks an older version of the wire, in which nothing can be said: what was said to it was not heard.
    Deaf {
        /// The newest version that it speaks.
        spoken: u8,
    },
    /// The connection has come to its end. Every transfer's end was told before.
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
        /// What the cache says.
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
    /// As it says, and the peer, which has stopped in mid-copy, may still write the buffer: it is *not* the application's
    /// again before that process is dead. Only over fabrics whose peers copy by themselves: `shm`.
    #[error("{why}; the peer has stopped while it was at the buffer, which is not free before that process is dead")]
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
    #[error("{under_way} reads are under way and the fabric takes no more now: try again after progress")]
    Busy {
        /// Reads.
        under_way: usize,
    },
    /// A one-sided read of more than the buffer holds.
    #[error("{wanted} bytes to be read into a buffer of {length}: lend as many")]
    TooShort {
        /// Bytes of the buffer.
        length: usize,
        /// Bytes to be read.
        wanted: u64,
    },
    /// The lease does not cover the buffer, or in more pieces than the fabric takes at a time.
    #[error("the lease covers the buffer in no more than {most} pieces: lease all of it, or fetch without a lease")]
    Uncovered {
        /// Pieces that the fabric takes at a time.
        most: usize,
    },
}
