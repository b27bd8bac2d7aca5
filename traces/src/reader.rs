//! The interface of every source of a trace.

use crate::step::Step;
use crate::{Event, Summary, TraceError};

/// A stream of events that tells how it was understood.
///
/// It holds no more than it must: memory does not grow with the number of events, except by what a format needs to
/// lay out objects that have no address. After an error it yields nothing more.
pub trait Reader: Iterator<Item = Result<Event, TraceError>> {
    /// Returns the summary so far: complete once the stream has ended.
    fn summary(&self) -> &Summary;

    /// Reads requests of one range each, and adds a step for each to `steps`. Returns their process; `None` if there are
    /// none, and the next event is to be had by [`next`](Iterator::next).
    ///
    /// Faster than events, where a source has it; the times are left out.
    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        let _ = steps;
        None
    }
}

impl<R: Reader + ?Sized> Reader for Box<R> {
    fn summary(&self) -> &Summary {
        (**self).summary()
    }

    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        (**self).read_steps(steps)
    }
}

/// A source that reads step by step; [`Stepped`] makes a [`Reader`] of it.
pub(crate) trait Steps {
    /// Reads on up to the next event; none at the end. Not called again after that, nor after an error.
    fn step(&mut self) -> Result<Option<Event>, TraceError>;

    /// Returns the summary so far.
    fn summary(&self) -> &Summary;

    /// Reads steps of requests: see [`Reader::read_steps`]. Called as [`Steps::step`] is.
    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        let _ = steps;
        None
    }
}

/// A reader that yields nothing after its end or an error.
pub(crate) struct Stepped<S> {
    steps: S,
    is_over: bool,
}

impl<S: Steps> Stepped<S> {
    pub(crate) const fn new(steps: S) -> Self {
        Self { steps, is_over: false }
    }
}

impl<S: Steps> Iterator for Stepped<S> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let step = self.steps.step().transpose();
        self.is_over = !matches!(step, Some(Ok(_)));
        step
    }
}

impl<S: Steps> Reader for Stepped<S> {
    fn summary(&self) -> &Summary {
        self.steps.summary()
    }

    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        if self.is_over { None } else { self.steps.read_steps(steps) }
    }
}
