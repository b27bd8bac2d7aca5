//! The counters of a client.

use super::answer::Answer;
use super::error::Error;
use super::value::Source;

/// The counters of a client so far.
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
