//! Who watches what the program asks for, for a recording: called at every registration and deregistration that a program
//! makes, whether it is cached, passed on or refused, and also where caching is off.
//!
//! An observer is called by whichever thread asks, without any lock held, inside the shim: what it allocates or
//! registers itself is not seen. In a forked child it is [told](Observer::forked) before anything else.

#![allow(dead_code, reason = "read by who records")]

use crate::treatment::Request;
use std::time::Instant;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    /// A registration, and the `ibv_mr` that the program was given: null if it was refused.
    Register(Request, usize),
    /// A change of a registration that the program has, and what it is now, if that went well.
    Reregister(Request, usize),
    /// The end of the registration with this `ibv_mr`, if that went well.
    Deregister(usize),
}

/// One call of the program's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// When it was made.
    pub(crate) begun: Instant,
    /// When it was answered.
    pub(crate) ended: Instant,
    /// What for.
    pub(crate) asked: Asked,
    /// Whether libibverbs or the cache did it.
    pub(crate) done: bool,
}

/// See the [module](self).
pub(crate) trait Observer: Send + Sync {
    fn observe(&self, event: &Event);

    /// This is a child that was forked from the process that is observed: what it has in common with that, the file and
    /// what waits to be written to it, is the parent's. Returns who observes here, if anybody does.
    fn forked(&self) -> Option<Box<dyn Observer>>;

    /// The process ends.
    fn finish(&self);
}

/// Who observes this process, by its variables.
///
/// # Errors
/// A line that says what is wrong.
pub(crate) fn of_process() -> Result<Option<Box<dyn Observer>>, String> {
    Ok(None)
}
