//! The history of one key: operations with the times between which each took effect, and their effects on the key,
//! reduced to six steps.
//!
//! A key holds one value or none. Every value is written once in a history (it carries a version of its own), and
//! eviction, expiry and restarts may take a value away at any moment. That freedom makes the steps few. An operation that
//! found the key absent may have come right after an eviction, so that it *makes* the key absent, whatever was there
//! ([`Step::Gone`]). And an ADD that was stored needs no more of the state before it than a SET does.

/// A value, by its version; 0 is not used.
pub type Value = u64;

/// The end of what never ended.
pub const NEVER: u64 = u64::MAX;

/// The effect of an operation, if it took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The key has this value from now on, whatever was there.
    Write(Value),
    /// One value became the other.
    Swap {
        /// The value before.
        from: Value,
        /// The value from now on.
        to: Value,
    },
    /// The value was one more than another that was there; which one is unknown.
    Count,
    /// This value was there.
    Read(Value),
    /// Nothing was there; from now on nothing is.
    Gone,
    /// Some value was there; from now on nothing is.
    Take,
    /// Some value was there, but not this one.
    Present {
        /// The one that was not there.
        not: Option<Value>,
    },
}

/// One operation on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was asked for: it took effect no sooner.
    pub begin: u64,
    /// When its answer was there, or its server was gone: it took effect no later.
    pub end: u64,
    /// Whether it took effect. If not certain, it may have, or may not.
    pub certain: bool,
    /// The effect.
    pub step: Step,
}

impl Operation {
    /// Returns the value that it wrote.
    pub(crate) fn written(&self) -> Option<Value> {
        match self.step {
            Step::Write(value) | Step::Swap { to: value, .. } => Some(value),
            _ => None,
        }
    }

    /// Returns the value that it says was there.
    pub(crate) fn seen(&self) -> Option<Value> {
        match self.step {
            Step::Read(value) | Step::Swap { from: value, .. } => Some(value),
            _ => None,
        }
    }
}
