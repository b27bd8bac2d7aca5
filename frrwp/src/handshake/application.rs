//! The messages of the two applications to each other beside their transfers.
//!
//! A message of the application's is sent when it is said, in the one order of the connection, or not at all: nothing is kept
//! here. So what was said before a transfer was answered arrives before the transfer's end does. The driver keeps messages
//! until the application takes them; there are never more of them than receives.

use super::Expired;
use crate::wire::MAX_FRAME_PAYLOAD;

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
