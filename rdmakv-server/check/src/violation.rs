//! The violations of a history, and the operations between which they occur.

use std::fmt;

/// In what way a history is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A value whose words are not all of one version, or whose length is not that version's.
    Torn,
    /// A value that was never written to this key.
    Unwritten,
    /// One value written by two operations: of two increments one was lost.
    WrittenTwice,
    /// Two operations replaced the same value.
    ReplacedTwice,
    /// An operation saw a value before it was written, or after its successor.
    OutOfTurn,
    /// A value came back after another value.
    CameBack,
    /// A value was there before and after a time at which the key was absent or had another value.
    Interrupted,
    /// A value was seen after its time.
    Outlived,
    /// No order of the operations explains all answers.
    NoOrder,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torn => "torn value",
            Self::Unwritten => "value that was never written",
            Self::WrittenTwice => "value written twice",
            Self::ReplacedTwice => "value replaced twice",
            Self::OutOfTurn => "value out of turn",
            Self::CameBack => "value came back",
            Self::Interrupted => "value came back",
            Self::Outlived => "value outlived its time",
            Self::NoOrder => "no order",
        })
    }
}

/// A proof that no order of the operations explains their answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// In what way.
    pub kind: Kind,
    /// The operations in question, as places in the history; the reason calls the first one A, the second B, and so on.
    pub operations: Vec<usize>,
    /// Why no order explains them.
    pub why: String,
}

impl Violation {
    pub(crate) fn new(kind: Kind, operations: impl Into<Vec<usize>>, why: impl Into<String>) -> Self {
        Self { kind, operations: operations.into(), why: why.into() }
    }
}
