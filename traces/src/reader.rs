//! What every source of a trace is.

use crate::{Event, Summary, TraceError};

/// A stream of events that tells how it was understood.
///
/// It holds no more than it must: memory does not grow with the number of events, except by what a format needs to
/// lay out objects that have no address. After an error it yields nothing more.
pub trait Reader: Iterator<Item = Result<Event, TraceError>> {
    /// What was understood so far: complete once the stream has ended.
    fn summary(&self) -> &Summary;
}

impl<R: Reader + ?Sized> Reader for Box<R> {
    fn summary(&self) -> &Summary {
        (**self).summary()
    }
}
