//! The common state of all servers of a client: the operations in flight, their time limits, the memory that fabrics use.

use super::answer::Answer;
use super::counters::Counters;
use super::domains::Fabrics;
use super::error::Error;
use super::ops::{Name, Ops};
use super::ways::Patience;
use mrrc::ForkGuard;
use std::time::Duration;

/// See the module.
pub(super) struct Common {
    pub(super) ops: Ops,
    pub(super) patience: Patience,
    pub(super) timeout: Duration,
    pub(super) counters: Counters,
    pub(super) fabrics: Fabrics,
    /// The first bytes on each connection.
    pub(super) login: Option<Vec<u8>>,
    /// Whether tags are wished for.
    pub(super) one_sided: bool,
    /// The process that owns the memory of the fabrics.
    pub(super) process: u32,
    pub(super) this_process: ThisProcess,
}

/// The number of this process. It takes a system call only in a child that was forked since it was last asked for.
pub(super) struct ThisProcess {
    id: u32,
    /// None where the system has no guards: then each question is a system call.
    guard: Option<ForkGuard>,
}

impl ThisProcess {
    pub(super) fn new() -> Self {
        Self { id: std::process::id(), guard: ForkGuard::new().ok() }
    }

    /// Returns the number.
    #[inline]
    pub(super) fn id(&mut self) -> u32 {
        match &self.guard {
            Some(guard) if !guard.is_forked() => self.id,
            _ => self.ask(),
        }
    }

    #[cold]
    fn ask(&mut self) -> u32 {
        if self.guard.is_some() {
            self.guard = ForkGuard::new().ok();
        }
        self.id = std::process::id();
        self.id
    }
}

impl Common {
    /// In a child of a fork: fabrics begin anew, once.
    pub(super) fn begin_anew(&mut self, process: u32) {
        if self.process != process {
            self.process = process;
            self.fabrics.begin_anew();
        }
    }

    /// An operation has come to its end.
    pub(super) fn end(&mut self, name: Name, answer: Result<Answer, Error>) {
        // Another way may have been first.
        if self.ops.unanswered(name).is_some() {
            // The outcome of a part is counted with that of the whole.
            if !self.ops.is_part(name) {
                self.counters.answered(&answer);
            }
            self.ops.end(name, answer);
        }
    }
}
