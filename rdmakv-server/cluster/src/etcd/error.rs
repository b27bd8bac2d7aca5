//! Errors of the client.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::endpoint::Endpoint;
use super::gateway::{Refusal, code};
use crate::config::ChangeError;
use crate::json::DecodeError;

/// An operation that etcd is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads the configuration and the facts.
    Read,
    /// Writes the configuration.
    Write,
    /// Writes or deletes a fact.
    Fact,
    /// Gets, renews or ends a lease.
    Lease,
    /// Watches for changes.
    Watch,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read configuration",
            Self::Write => "write configuration",
            Self::Fact => "write fact",
            Self::Lease => "hold etcd's lease",
            Self::Watch => "watch configuration",
        })
    }
}

/// An operation that failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Error {
    /// No endpoint takes connections.
    #[error("{operation} {endpoint}: {cause}: start etcd or correct --etcd")]
    Unreachable {
        /// The operation.
        operation: Operation,
        /// The endpoint that was tried last.
        endpoint: Endpoint,
        /// Its reason.
        cause: String,
    },
    /// No answer came in time.
    #[error("{operation} {endpoint}: no answer within {} ms ({cause}): see whether etcd has a leader, and how busy it is", after.as_millis())]
    TimedOut {
        /// The operation.
        operation: Operation,
        /// The endpoint that was tried last.
        endpoint: Endpoint,
        /// How long it took.
        after: Duration,
        /// The last failure.
        cause: String,
    },
    /// The answer to a write did not come: it may have been done, or may be done yet.
    #[error("{operation} {endpoint}: {cause}: outcome unknown: read it again")]
    OutcomeUnknown {
        /// The operation.
        operation: Operation,
        /// The endpoint that was asked.
        endpoint: Endpoint,
        /// Why there is no answer.
        cause: String,
    },
    /// etcd refused.
    #[error("{operation} {endpoint}: {}: {}", refusal.message, remedy(refusal))]
    Refused {
        /// The operation.
        operation: Operation,
        /// The endpoint that was asked.
        endpoint: Endpoint,
        /// Its refusal.
        refusal: Refusal,
    },
    /// Another program answered.
    #[error("{operation} {endpoint}: {cause}: give the address of etcd's clients (3.4 or later)")]
    NotEtcd {
        /// The operation.
        operation: Operation,
        /// The endpoint that was asked.
        endpoint: Endpoint,
        /// The difference.
        cause: String,
    },
    /// The configuration in etcd is none.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The cluster does not exist.
    #[error("read configuration of cluster {0}: no such cluster: make it by `rdmakv cluster init`")]
    NoCluster(String),
    /// The change cannot be made.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Others changed the configuration each time.
    #[error("write configuration of cluster {0}: other changes came first each time: try again")]
    Contended(String),
}

/// Returns the remedy for a refusal.
fn remedy(refusal: &Refusal) -> &'static str {
    match refusal.code {
        code::UNAUTHENTICATED | code::INVALID
            if refusal.message.contains("auth") || refusal.message.contains("user") =>
        {
            "give the user in the variable RDMAKV_ETCD, as http://USER:PASSWORD@HOST:PORT"
        }
        code::PERMISSION => "let the user read and write keys below /rdmakv/",
        code::EXHAUSTED if refusal.message.contains("space") => "compact and defragment etcd, and disarm its alarm",
        _ => "see etcd's log",
    }
}
