//! The handshake's requests to its driver, and its answers to calls out of place.

use super::{Disconnect, Failure, Tag};
use crate::wire::{HEADER, Segment};

/// The actions of the driver, in this order.
///
/// Exhaustive on purpose: each is an order, and a driver that does not know one must not pass it over. A new one comes with a new major
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The peer opens a transfer. Answer with [`Handshake::accept`](super::Handshake::accept) for a write, [`Handshake::crw`](super::Handshake::crw) for a read, or
    /// [`Handshake::fail`](super::Handshake::fail). [`Handshake::header`](super::Handshake::header) has what its application said.
    Requested {
        /// The transfer.
        tag: Tag,
        /// Whether the peer wants bytes.
        read: bool,
        /// The peer's length: of its write, or the most that it accepts.
        length: u64,
    },
    /// Write the bytes of the local buffer from `offset` on into `remote`, then report by [`Handshake::written`](super::Handshake::written). The last
    /// part of a write that is carried out in several carries the immediate.
    Write {
        /// The transfer.
        tag: Tag,
        /// The destination, and the number of bytes.
        remote: Segment,
        /// The source's offset in the buffer.
        offset: u64,
        /// Stands for DONE.
        immediate: Option<u32>,
    },
    /// In the [traditional](super::Process::Traditional) process: the first of the peer's keys are there; the application answers
    /// with [`Handshake::submit`](super::Handshake::submit).
    KeysCame {
        /// The transfer.
        tag: Tag,
    },
    /// How the transfer ended: the bytes that were moved, or why they were not. After a failure the target's buffer is
    /// undefined.
    Completed {
        /// The transfer.
        tag: Tag,
        /// Bytes.
        result: Result<u64, Failure>,
    },
    /// The lease of the transfer's buffer may be released. The tag is forgotten.
    Release {
        /// The transfer.
        tag: Tag,
    },
    /// The peer speaks an older version of the wire, in which applications say nothing: what was [said](super::Handshake::send_message) to it
    /// was not heard.
    PeerTooOld {
        /// The newest version that it speaks.
        spoken: u8,
    },
    /// The connection cannot go on.
    Disconnect {
        /// Why.
        why: Disconnect,
    },
}

/// A local call that came to nothing. The transfer, if there is one, is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Too many of one's own transfers are open.
    #[error("{open} transfers are open, the most allowed: wait for one to end, or raise the limit")]
    TooManyOpen {
        /// How many.
        open: usize,
    },
    /// The application's header is too long.
    #[error("an application header of {length} bytes: at most {HEADER} go with a SYNC")]
    HeaderTooLong {
        /// Bytes.
        length: usize,
    },
    /// The transfer has ended: its end is among the actions.
    #[error("transfer {} has ended, or was never opened", tag.0)]
    NotOpen {
        /// The transfer.
        tag: Tag,
    },
    /// The call does not fit the side or the state of the transfer.
    #[error("{call} does not fit transfer {}: {why}", tag.0)]
    OutOfPlace {
        /// The transfer.
        tag: Tag,
        /// The call.
        call: &'static str,
        /// Why it does not fit.
        why: &'static str,
    },
    /// The connection is gone.
    #[error("the connection is gone: connect again")]
    Disconnected,
}
