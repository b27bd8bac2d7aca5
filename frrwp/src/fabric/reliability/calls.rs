//! The ends of calls, the errors of a client that takes none, and its counts.

use super::wire::MAX_MESSAGE;

/// A call that cannot be taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CallError {
    /// As many calls as the limits allow are unanswered.
    #[error("call: {calls} calls are unanswered: wait for one of them")]
    Full {
        /// Calls.
        calls: usize,
    },
    /// The message is longer than datagrams carry.
    #[error("call: {length} bytes are more than datagrams carry ({MAX_MESSAGE}): use another transport of the address")]
    TooLarge {
        /// Bytes of the message.
        length: usize,
    },
    /// The client was closed.
    #[error("call: the client was closed: make another one")]
    Closed,
}

/// The reason why a call has no reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The time was over. It is a read, or it was not executed.
    TimedOut,
    /// It is a mutation, and the server may have executed it, once, or may do so still.
    Unknown,
    /// The server does not take a message of this length, or send one of the reply's. A mutation with such a reply was executed.
    TooLarge,
    /// The server has no room for another client. Nothing was sent.
    Full,
    /// The client was closed before the call was sent, or it is a read.
    Closed,
}

/// The end of a call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// Its reply.
    Reply {
        /// The call.
        call: u64,
        /// The reply's bytes.
        message: Vec<u8>,
    },
    /// It has none.
    Failed {
        /// The call.
        call: u64,
        /// The reason.
        why: Failure,
    },
}

/// Counts of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct ClientCounters {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Time-outs of requests.
    pub timeouts: u64,
    /// Datagrams that were sent once more after a short silence, before a time-out.
    pub probes: u64,
    /// Datagrams that make no sense, or whose sum is wrong.
    pub malformed: u64,
    /// Datagrams about calls that have ended, or of another execution.
    pub stale: u64,
    /// Times that the server did not know this client any more.
    pub resets: u64,
    /// Requests that the server had no room for.
    pub busy: u64,
    /// Times that the server asked to slow down.
    pub slow_down: u64,
}
