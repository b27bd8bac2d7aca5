//! Addresses that are handed over: a thread that acquires a window owns it, so the call that last changed
//! it has returned. The bytes found there must be those mapped there.
//!
//! Threads take windows in turn, change them now and then, and do batches of operations: directly after the change, or
//! after another thread has. *Intruders* besides warm windows that they do not own, at any moment of a change:
//! whatever they register must be found out. Not where a call before the change is the cache's only notice: between
//! the two the old pages can be registered again, so a program that cannot rule that out calls after the change too.

use crate::random::Random;
use crate::report::{EndsWith, Score};
use crate::rig::{Calls, Rig, Source, Worker};
use crate::windows::{Change, WIDEST, Window, Windows};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const WINDOWS: usize = 96;
const WORKERS: usize = 4;
const INTRUDERS: u64 = 2;
/// A window changes once in so many batches. Shared ones are not cached for 100 ms after they were made.
const REST: usize = 4;
const SHARED_REST: usize = 64;
/// A range that was discarded is not cached for 100 ms: more discards than these, and nothing would be.
const BETWEEN_DISCARDS: Duration = Duration::from_millis(25);
/// A discard may take so long before it is outside of what the grace period (100 ms) covers.
const LONGEST_DISCARD: Duration = Duration::from_millis(50);

pub(crate) fn run(rig: &Rig, source: Source, score: &Score, watch: impl FnOnce() + Send) {
    let windows = &Windows::new(WINDOWS, WORKERS);
    std::thread::scope(|threads| {
        for thread in 0..WORKERS {
            threads.spawn(move || {
                let _ends = EndsWith(score);
                let mut worker = Mutator { worker: Worker::new(rig, score, thread), source, discarded: Instant::now() };
                while !score.is_done() {
                    worker.step(windows);
                }
            });
        }
        if source.bears_intruders() {
            for number in 0..INTRUDERS {
                threads.spawn(move || intrude(rig, windows, score, number));
            }
        }
        watch();
    });
    // The windows go while the cache lives: the last unmappings are reported too.
}

struct Mutator<'a> {
    worker: Worker<'a>,
    source: Source,
    discarded: Instant,
}

impl Mutator<'_> {
    fn step(&mut self, windows: &Windows) {
        let number = self.worker.random.below(WINDOWS);
        let Ok(mut window) = windows.all()[number].try_lock() else { return };
        let mut last = None;
        if window.pages == 0 {
            window.fill(&mut self.worker.random);
        } else if self.worker.random.chance(if window.shared { SHARED_REST } else { REST }) {
            last = Some(self.change(&mut window, windows));
        }
        let count = 1 + self.worker.random.below(crate::rig::BATCH);
        let (address, pages) = (window.address, window.pages);
        self.worker.batch(address, pages, count, || format!("{pages} pages, last change here {last:?}"));
    }

    fn change(&mut self, window: &mut Window, windows: &Windows) -> Change {
        let Self { worker, source, .. } = self;
        let mut change = Change::ALL[worker.random.below(Change::ALL.len())];
        if change.discards() && source.watches() {
            if self.discarded.elapsed() < BETWEEN_DISCARDS {
                change = Change::Over;
            } else {
                self.discarded = Instant::now();
            }
        }
        let kept = if worker.random.chance(4) { worker.keep(window.address, window.pages) } else { None };
        let (before, after) = match source.calls {
            Calls::None => (false, false),
            Calls::Before => (true, false),
            Calls::Both => (true, true),
            Calls::Some => (worker.random.chance(2), worker.random.chance(2)),
        };
        let (address, bytes) = (window.address, window.bytes());
        if before {
            worker.rig.invalidate(address, bytes);
        }
        windows.note_change(window);
        let begun = Instant::now();
        let aside = windows.aside(worker.thread);
        let done = window.change(change, aside, &mut worker.random);
        if done.discards() && source.watches() && begun.elapsed() > LONGEST_DISCARD {
            // An intruder may have registered what was about to go, and that is known not to be found out.
            window.change(Change::Over, aside, &mut worker.random);
        }
        if after {
            worker.rig.invalidate(address, bytes);
        }
        worker.score.changes.fetch_add(1, Ordering::Relaxed);
        if let Some(kept) = kept {
            worker.check(&kept, || format!("across {done:?}"));
        }
        done
    }
}

fn intrude(rig: &Rig, windows: &Windows, score: &Score, number: u64) {
    let _ends = EndsWith(score);
    let mut random = Random::new(77 + number);
    while !score.is_done() {
        // Rather where something is happening.
        let number = if random.chance(4) { random.below(WINDOWS) } else { windows.changing() };
        let address = windows.address(number);
        for _ in 0..1 + random.below(8) {
            // There may be fewer pages, or none: an error then, and never another window's.
            let pages = 1 + random.below(WIDEST);
            // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
            let _ = unsafe { rig.cache.warm(address as *const u8, pages * 4096, crate::ring::ACCESS) };
        }
        if random.chance(64) {
            rig.cache.reap().unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.below(100) as u64));
    }
}
