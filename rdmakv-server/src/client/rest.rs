//! What all servers of a client share.

use super::answer::Answer;
use super::error::Error;
use super::fabric::domains::Fabrics;
use super::ops::{Name, Ops};
use super::value::Source;
use super::way::Patience;
use std::time::Duration;

/// What all servers of a client share.
pub(super) struct Rest {
    pub(super) ops: Ops,
    pub(super) patience: Patience,
    pub(super) timeout: Duration,
    pub(super) counters: Counters,
    pub(super) fabrics: Fabrics,
    /// What is said first on each connection.
    pub(super) login: Option<Vec<u8>>,
    /// Whether tags are wished for.
    pub(super) one_sided: bool,
}

impl Rest {
    /// An operation has come to its end.
    pub(super) fn end(&mut self, name: Name, answer: Result<Answer, Error>) {
        self.counters.answered(&answer);
        self.ops.end(name, answer);
    }
}

/// What a client has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// GETs that found a value.
    pub hits: u64,
    /// GETs that found none.
    pub misses: u64,
    /// Values that were read one-sidedly, without the server's CPU.
    pub one_sided: u64,
    /// One-sided reads that found something else, or came too late; the server was asked then.
    pub distrusted: u64,
    /// Values that came over sockets.
    pub over_sockets: u64,
    /// Requests that a server did not take over its fabric.
    pub refused: u64,
    /// Operations that ended with an error.
    pub errors: u64,
    /// Operations that ran out of time.
    pub timeouts: u64,
    /// Connections that were lost.
    pub lost_connections: u64,
    /// Attempts to connect that failed.
    pub failed_connections: u64,
}

impl Counters {
    pub(super) fn answered(&mut self, answer: &Result<Answer, Error>) {
        match answer {
            Ok(Answer::Value(Some(value))) => {
                self.hits += 1;
                self.over_sockets += u64::from(value.source() == Source::Socket);
            }
            Ok(Answer::Value(None)) => self.misses += 1,
            Ok(_) => {}
            Err(_) => self.errors += 1,
        }
    }
}
