//! How transfers and connections end other than well, and what is counted.

use super::Tag;
use crate::wire::Reason;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Why a transfer failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// On this side.
    Here(Reason),
    /// The peer says so.
    Peer(Reason),
    /// It waited too long.
    TimedOut {
        /// For what.
        phase: Phase,
        /// Nanoseconds.
        waited: u64,
    },
    /// The connection is gone.
    Lost,
}

/// The phase that a transfer waits in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The peer's answer to a SYNC.
    Answer,
    /// The local application, to answer or to register.
    Application,
    /// More of the peer's segments, or of one's own.
    Pieces,
    /// Writes on their way.
    Writes,
    /// The peer's DONE.
    Done,
    /// The answer to a CANCEL.
    Cancelling,
    /// The bytes of a one-sided read.
    Reading,
    /// A credit for a message, or room for it in the fabric's queue.
    Credit,
}

/// The operation of an engine for an application.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// A transfer.
    Transfer(Tag),
    /// A one-sided read, by its name.
    Read(u64),
    /// A message, by its number: the first that was said is 1.
    Message(u64),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transfer(Tag(tag)) => write!(f, "transfer {tag}"),
            Self::Read(id) => write!(f, "read {id}"),
            Self::Message(number) => write!(f, "message {number}"),
        }
    }
}

/// An operation has waited too long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Expired {
    /// Which.
    pub operation: Operation,
    /// The phase that it waited in.
    pub phase: Phase,
    /// How long, in nanoseconds.
    pub waited: u64,
}

impl fmt::Display for Expired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, phase, waited } = self;
        let seconds = *waited as f64 / 1e9;
        write!(f, "{operation}: waited {seconds:.1} s for {phase}: {}", phase.remedy())
    }
}

impl std::error::Error for Expired {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(reason) => write!(f, "the transfer failed on this side: {reason}"),
            Self::Peer(reason) => write!(f, "the peer ended the transfer: {reason}"),
            Self::TimedOut { phase, waited } => {
                let (seconds, remedy) = (*waited as f64 / 1e9, phase.remedy());
                write!(f, "the transfer waited {seconds:.1} s for {phase}: {remedy}")
            }
            Self::Lost => f.write_str("the connection was lost during the transfer: connect again"),
        }
    }
}

impl std::error::Error for Failure {}

impl Phase {
    /// Returns the remedy: the side that has to be quicker, or the bound that allows more.
    fn remedy(self) -> &'static str {
        match self {
            Self::Answer => "see that the peer's engine is driven and its application answers, or raise `sync_time`",
            Self::Application => "answer what is asked, or refuse it, or raise `sync_time`",
            Self::Pieces => "see what takes registering so long, here or at the peer, or raise `write_time`",
            Self::Writes => "see whether the network moves bytes at the `lowest_rate` that was promised, or lower it",
            Self::Done => "see that the peer's engine is driven, or raise `write_time` or lower `lowest_rate`",
            Self::Cancelling => "see that the peer's engine is driven, or raise `sync_time`",
            Self::Reading => "see whether the peer is alive and the network moves bytes, or raise `read_time`",
            Self::Credit => "see that the peer's engine is driven, or raise `send_time`",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "the peer to answer its SYNC",
            Self::Application => "the application on this side",
            Self::Pieces => "the rest of the buffers to be registered",
            Self::Writes => "its writes to complete",
            Self::Done => "the peer's DONE",
            Self::Cancelling => "the peer to answer its CANCEL",
            Self::Reading => "the bytes of the peer's memory",
            Self::Credit => "the peer to take what it was sent before",
        })
    }
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Disconnect {
    /// A target that cannot take back its keys in any other way.
    #[error(
        "the peer did not answer a CANCEL: its right to write is taken back by closing the connection; connect again"
    )]
    Revocation,
    /// A write was not carried out, or not in time.
    #[error("a write failed or never completed: see the fabric's error, and connect again")]
    WriteFailed,
    /// A one-sided read did not end, though its time was over: its memory is taken back by closing the connection.
    #[error(
        "a one-sided read never ended: its memory is taken back by closing the connection; see whether the peer is alive"
    )]
    ReadFailed,
    /// The peer said too much that makes no sense.
    #[error("the peer sent {count} senseless messages: see whether it has the same protocol and version")]
    Strangers {
        /// Messages.
        count: u32,
    },
    /// The peer sent more than there were receives for.
    #[error("the peer sent a message for which it had no credit: it counts receives wrongly; do not trust it")]
    NoCredit,
    /// The peer claims more than it can have written.
    #[error("the peer claims writes that it was not offered: do not trust it")]
    FalseDone,
}

/// The counters of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Transfers that ended well.
    pub completed: u64,
    /// Transfers that did not.
    pub failed: u64,
    /// Waits that took too long.
    pub expired: u64,
    /// Messages for transfers that had ended: dropped.
    pub late: u64,
    /// Messages for transfers that never were, or that make no sense.
    pub strangers: u32,
    /// Transfers of the peer's that were answered with NAK(busy).
    pub busy: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Sent CREDITs.
    pub credit_messages: u64,
    /// Sent SAYs.
    pub messages_sent: u64,
    /// Received SAYs.
    pub messages_received: u64,
}

/// Only what decides something: states that differ in how often something happened are explored once.
impl Hash for Counters {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.strangers.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_says_what_to_do() {
        let phases = [
            (Phase::Answer, "sync_time"),
            (Phase::Application, "sync_time"),
            (Phase::Pieces, "write_time"),
            (Phase::Writes, "lowest_rate"),
            (Phase::Done, "write_time"),
            (Phase::Cancelling, "sync_time"),
        ];
        for (phase, bound) in phases {
            let text = Failure::TimedOut { phase, waited: 5_000_000_000 }.to_string();
            assert!(
                text.starts_with(&format!("the transfer waited 5.0 s for {phase}: ")) && text.contains(bound),
                "{text}"
            );
        }
        assert!(Failure::Lost.to_string().ends_with("connect again"));
        let reasons = [
            (Reason::Busy, "try again"),
            (Reason::TooLong { needed: 7 }, "7 bytes"),
            (Reason::Version { spoken: 2 }, "same release"),
            (Reason::Malformed, "same release"),
        ];
        for (reason, remedy) in reasons {
            let text = Failure::Peer(reason).to_string();
            assert!(text.contains(remedy), "{text}");
        }
    }
}
