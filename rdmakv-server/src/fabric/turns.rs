//! How long requests take: of few, the time from their arrival to the end of their answers.

use std::time::{Duration, Instant};

use crate::metrics::{Asked, Counts, Sampler};

/// Chooses the requests of a connection that are measured.
#[derive(Debug)]
pub(super) struct Turns {
    sampler: Sampler,
    /// When something last came, if the next request may be one to measure.
    woken: Option<Instant>,
    measured: Option<Measured>,
}

/// A request with a measured answer, from the moment the connection learned that something had come.
#[derive(Clone, Copy, Debug)]
struct Measured {
    begun: Instant,
    /// The counts then.
    gets: u64,
    sets: u64,
}

impl Turns {
    /// Measures a connection with this number.
    pub(super) fn new(number: u32) -> Self {
        Self { sampler: Sampler::new(number), woken: None, measured: None }
    }

    /// Notes that something came.
    pub(super) fn wake(&mut self) {
        // Most rounds measure nothing, and these do not ask the clock.
        self.woken = self.sampler.is_near(1).then(Instant::now);
    }

    /// Begins a request.
    pub(super) fn begin(&mut self, counts: &Counts) {
        if self.sampler.turn()
            && let Some(begun) = self.woken.take()
        {
            self.measured = Some(Measured { begun, gets: counts.cmd_get, sets: counts.cmd_set });
        }
    }

    /// Goes on with the next request: this one has no answer.
    pub(super) fn pass(&mut self) {
        self.woken = self.measured.take().map(|turn| turn.begun);
    }

    /// Ends a request: all of its answer is with the fabric. Returns its kind and time if it was measured.
    pub(super) fn end(&mut self, counts: &Counts) -> Option<(Asked, Duration)> {
        let Measured { begun, gets, sets } = self.measured.take()?;
        self.sampler.measured();
        Some((Asked::of(counts.cmd_get > gets, counts.cmd_set > sets), begun.elapsed()))
    }
}
