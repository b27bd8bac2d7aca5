//! The orders of a thread that makes requests, and its report.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use crate::cpu::{self, Used};
use crate::tally::{Calls, Tally};

/// How often time-outs are looked for.
pub(crate) const TICK: u64 = 50_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// When it begins and what of it counts, in nanoseconds since then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Window {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Returns whether a moment is in the time that counts.
    #[inline]
    pub(crate) fn counts(&self, time: u64) -> bool {
        time >= self.from && time < self.to
    }
}

/// The thread's own CPU time within the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    pub(crate) cpu: Used,
    pub(crate) calls: Calls,
}

/// Why a thread ended before its time.
pub(crate) type Ended = String;

/// How a thread and the one that waits for it speak.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// A thread has failed: all end.
    pub(crate) stop: &'a AtomicBool,
    /// Each second's counts.
    pub(crate) seconds: Sender<Tally>,
    /// Tallies that were emptied.
    pub(crate) emptied: Receiver<Tally>,
}

impl Line<'_> {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Hands over a second's counts and takes empty ones.
    pub(crate) fn hand_over(&self, tally: &mut Tally) {
        let mut next = self.emptied.try_recv().unwrap_or_default();
        std::mem::swap(&mut next, tally);
        let _ = self.seconds.send(next);
    }
}

/// Reads the thread's use of CPU and calls at both ends of the window.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    from: Option<(Used, Calls)>,
    to: Option<Own>,
}

impl Meter {
    #[inline]
    pub(crate) fn look(&mut self, now: u64, window: Window, calls: &Calls) {
        if self.from.is_none() && now >= window.from {
            self.from = Some((cpu::of_this_thread(), *calls));
        }
        if self.to.is_none() && now >= window.to {
            self.to = Some(self.read(calls));
        }
    }

    pub(crate) fn read(&self, calls: &Calls) -> Own {
        if let Some(own) = self.to {
            return own;
        }
        let Some((cpu, before)) = &self.from else { return Own::default() };
        Own { cpu: cpu::of_this_thread().since(cpu), calls: calls.since(before) }
    }
}
