//! What all servers of a client share.

use super::answer::Answer;
use super::error::Error;
use super::ops::Ops;
use super::way::Patience;
use std::time::Duration;

/// What all servers of a client share.
pub(super) struct Rest {
    pub(super) ops: Ops,
    pub(super) patience: Patience,
    pub(super) timeout: Duration,
    pub(super) counters: Counters,
}

/// What a client has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// GETs that found a value.
    pub hits: u64,
    /// GETs that found none.
    pub misses: u64,
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
            Ok(Answer::Value(Some(_))) => self.hits += 1,
            Ok(Answer::Value(None)) => self.misses += 1,
            Ok(_) => {}
            Err(_) => self.errors += 1,
        }
    }
}
