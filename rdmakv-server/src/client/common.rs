//! What all servers of a client have in common: the operations under way, how long each may take, the memory that fabrics use.

use super::answer::Answer;
use super::counters::Counters;
use super::error::Error;
use super::fabric::domains::Fabrics;
use super::ops::{Name, Ops};
use super::way::Patience;
use std::time::Duration;

/// See the module.
pub(super) struct Common {
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

impl Common {
    /// An operation has come to its end.
    pub(super) fn end(&mut self, name: Name, answer: Result<Answer, Error>) {
        self.counters.answered(&answer);
        self.ops.end(name, answer);
    }
}
