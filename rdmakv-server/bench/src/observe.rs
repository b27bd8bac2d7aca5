//! Observation from outside while the threads work: the server's clock, the threads' CPUs, interrupts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::cpu::{self, Sample, Used, Watched};
use crate::placed::Placed;
use crate::plan::Plan;
use crate::tally::{Histograms, Tally};
use crate::window::Window;

/// A second of a run, for progress output.
#[derive(Debug)]
#[non_exhaustive]
pub struct Second<'a> {
    /// Since the run began.
    pub at: Duration,
    /// Answers in it, those that do not count included.
    pub answers: u64,
    /// GETs that found nothing.
    pub misses: u64,
    /// Requests that the server could not do, and datagrams that were lost.
    pub failures: u64,
    /// Latencies that count.
    pub latencies: &'a Histograms,
    /// CPU time of the server in this second, in nanoseconds, user and system, if it can be seen.
    pub server: Option<(f64, f64)>,
}

/// Observes a run while its threads work.
pub(crate) struct Observer<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) window: Window,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) server: Option<&'a Watched>,
    /// The server's clock at both ends of the window.
    pub(crate) samples: &'a mut [Option<Sample>; 2],
    /// The CPU time of this process then.
    pub(crate) own: &'a mut [Option<Used>; 2],
    pub(crate) placed: &'a mut Option<Placed>,
}

/// The interval between looks at the threads' CPUs and at interrupts.
const LOOK: u64 = 100_000_000;

impl Observer<'_> {
    /// Collects what the threads count until they end.
    pub(crate) fn observe(
        &mut self,
        tallies: &std::sync::mpsc::Receiver<Tally>,
        returns: &[std::sync::mpsc::Sender<Tally>],
        total: &mut Tally,
        watch: &mut impl FnMut(&Second<'_>),
    ) {
        let window = self.window;
        let mut second = Tally::default();
        let (mut shown, mut turn, mut look) = (0, 0, LOOK);
        let mut before = self.server.and_then(Watched::sample);
        loop {
            let now = window.now();
            // A little after the threads have handed over theirs.
            let due = (shown + 1) * 1_000_000_000 + 20_000_000;
            for (at, end) in [window.from, window.to].into_iter().enumerate() {
                if now >= end && self.samples[at].is_none() {
                    self.samples[at] = self.server.and_then(Watched::sample);
                }
                if now >= end && self.own[at].is_none() {
                    self.own[at] = Some(cpu::of_this_process());
                }
            }
            if now >= look {
                look = now + LOOK;
                if let Some(placed) = self.placed.as_mut().filter(|_| now >= window.from && now < window.to) {
                    placed.look();
                }
                if self.plan.interrupt.as_ref().is_some_and(|interrupt| interrupt.load(Relaxed)) {
                    self.stop.store(true, Relaxed);
                }
            }
            let next = [window.from, window.to, due, look].into_iter().filter(|&time| time > now).min().unwrap_or(now);
            match tallies.recv_timeout(Duration::from_nanos(next - now)) {
                Ok(mut tally) => {
                    second.add(&tally);
                    tally.clear();
                    // One is as good as another; a thread that has none makes one.
                    let _ = returns[turn % returns.len()].send(tally);
                    turn += 1;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if window.now() >= due {
                shown += 1;
                self.show(&second, Duration::from_secs(shown), &mut before, watch);
                total.add(&second);
                second.clear();
            }
        }
        if second.counts.answers + second.counts.warm + second.answered() > 0 {
            self.show(&second, Duration::from_nanos(window.now()), &mut before, watch);
        }
        total.add(&second);
    }

    fn show(&self, second: &Tally, at: Duration, before: &mut Option<Sample>, watch: &mut impl FnMut(&Second<'_>)) {
        let counts = &second.counts;
        let sample = self.server.and_then(Watched::sample);
        let server = sample.zip(*before).map(|(now, before)| now.since(&before)).map(|used| (used.user, used.system));
        *before = sample;
        watch(&Second {
            at,
            answers: counts.answers + counts.warm,
            misses: counts.misses,
            failures: counts.errors + counts.lost + counts.wrong,
            latencies: &second.latencies,
            server,
        });
    }
}
