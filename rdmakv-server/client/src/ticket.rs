//! Tickets: operations that go on while the caller does something else.

use super::answer::{Answer, Stored};
use super::ops::Name;
use super::value::Value;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// An operation that is under way, or has ended and waits to be taken by [`Client::wait`](super::Client::wait). A dropped ticket
/// gives up the outcome: the operation is done all the same.
#[must_use = "the outcome is nobody's without its ticket"]
pub struct Ticket<T> {
    pub(super) name: Name,
    pub(super) client: u64,
    _holder: Arc<()>,
    outcome: PhantomData<fn() -> T>,
}

impl<T> Ticket<T> {
    pub(super) fn new(name: Name, client: u64, holder: Arc<()>) -> Self {
        Self { name, client, _holder: holder, outcome: PhantomData }
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?})", self.name)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for Option<super::Value> {}
    impl Sealed for super::Stored {}
    impl Sealed for bool {}
    impl Sealed for Option<u64> {}
    impl Sealed for String {}
    impl Sealed for Vec<(String, String)> {}
}

/// The outcome of operations.
pub trait Outcome: Sized + sealed::Sealed {
    /// Of this answer.
    #[doc(hidden)]
    fn from_answer(answer: AnyAnswer) -> Self;
}

#[doc(hidden)]
#[derive(Debug)]
pub struct AnyAnswer(pub(super) Answer);

macro_rules! outcomes {
    ($($type:ty: $variant:ident or $else:expr;)*) => {$(
        impl Outcome for $type {
            fn from_answer(AnyAnswer(answer): AnyAnswer) -> Self {
                match answer {
                    Answer::$variant(outcome) => outcome,
                    // The answer was read for the operation, so it is of its kind.
                    _ => $else,
                }
            }
        }
    )*};
}

outcomes! {
    Option<Value>: Value or None;
    Stored: Stored or Stored::NotStored;
    bool: Yes or false;
    Option<u64>: Number or None;
    String: Text or String::new();
    Vec<(String, String)>: Stats or Vec::new();
}
