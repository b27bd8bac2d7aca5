//! Racing reuse: a thread maps an address while another's call that frees it has not returned, and uses it at once.
//!
//! Two threads throw one window to each other. The one that has it calls `munmap` (or moves the pages away) and the
//! other tries all the time to map there, with `MAP_FIXED_NOREPLACE`. As soon as that succeeds it acquires and
//! transfers. With a call of `Cache::invalidate` *before* the unmapping none of its bytes may be lost, as long as the
//! range is not acquired between that call and the unmapping. With userfaultfd alone the kernel frees the address before
//! the message can be read, so some are: they are counted. Once the call has returned, none may be.

use crate::random::Random;
use crate::report::{EndsWith, Score};
use crate::rig::{Calls, Rig, Source, Worker};
use crate::windows::{self, WIDEST, Windows};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The two threads of a window, and how far the round is.
#[derive(Default)]
struct Court {
    /// Rounds in which the window is being thrown, and rounds in which the call has returned.
    thrown: AtomicU64,
    returned: AtomicU64,
    /// Rounds in which it was caught.
    caught: AtomicU64,
    /// Pages of the window, when it is thrown.
    pages: AtomicUsize,
}

const PAGE: usize = 4096;

pub(crate) fn run(rig: &Rig, source: Source, score: &Score, watch: impl FnOnce() + Send) {
    let windows = &Windows::new(1, 2);
    let court = &Court::default();
    windows::map_free(windows.address(0), 1).expect("a free address");
    court.pages.store(1, Ordering::SeqCst);
    std::thread::scope(|threads| {
        for thread in 0..2 {
            threads.spawn(move || {
                let _ends = EndsWith(score);
                stay_on(thread);
                let mut player = Player { worker: Worker::new(rig, score, thread), source, court, windows };
                player.play();
            });
        }
        watch();
    });
}

struct Player<'a> {
    worker: Worker<'a>,
    source: Source,
    court: &'a Court,
    windows: &'a Windows,
}

impl Player<'_> {
    fn play(&mut self) {
        let mut round = 1;
        loop {
            let throws = round % 2 == self.worker.thread as u64;
            let go_on = if throws { self.throw(round) } else { self.catch(round) };
            if !go_on {
                return;
            }
            round += 1;
        }
    }

    /// Uses the window, so that it is cached, and frees its address.
    fn throw(&mut self, round: u64) -> bool {
        let (address, pages) = (self.windows.address(0), self.court.pages.load(Ordering::SeqCst));
        self.worker.batch(address, pages, 4, || format!("{pages} pages, before it is thrown"));
        let moves = self.worker.random.chance(2);
        let aside = self.windows.aside(self.worker.thread);
        self.court.thrown.store(round, Ordering::SeqCst);
        if self.source.calls == Calls::Before {
            self.worker.rig.invalidate(address, pages * PAGE);
        }
        if moves {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            windows::remap(address, pages * PAGE, aside, flags).expect("a move");
        } else {
            windows::unmap(address, pages * PAGE);
        }
        self.court.returned.store(round, Ordering::SeqCst);
        if moves {
            windows::unmap(aside, pages * PAGE);
        }
        self.worker.score.changes.fetch_add(1, Ordering::Relaxed);
        self.waits_for(&self.court.caught, round)
    }

    /// Maps at the address as soon as it can, and uses it.
    fn catch(&mut self, round: u64) -> bool {
        if !self.waits_for(&self.court.thrown, round) {
            return false;
        }
        let score = self.worker.score;
        let address = self.windows.address(0);
        let pages = shape(&mut self.worker.random);
        for attempt in 1_u32.. {
            match windows::map_free(address, pages) {
                Ok(()) => break,
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EEXIST), "{error}"),
            }
            // The other one may need this processor after all.
            if attempt.is_multiple_of(64) {
                std::thread::yield_now();
            }
        }
        let races = self.court.returned.load(Ordering::SeqCst) < round;
        let stale = self.worker.batch(address, pages, 1, || format!("{pages} pages, in a race: {races}"));
        if races {
            score.raced.fetch_add(1, Ordering::Relaxed);
            score.stale_raced.fetch_add(stale, Ordering::Relaxed);
        }
        if !self.waits_for(&self.court.returned, round) {
            return false;
        }
        self.worker.batch(address, pages, 3, || format!("{pages} pages, after the call returned"));
        self.court.pages.store(pages, Ordering::SeqCst);
        self.court.caught.store(round, Ordering::SeqCst);
        true
    }

    /// False if the run is over, and the other is not coming.
    fn waits_for(&self, counter: &AtomicU64, round: u64) -> bool {
        let mut spins = 0_u32;
        while counter.load(Ordering::SeqCst) < round {
            if self.worker.score.is_done() {
                return false;
            }
            spins += 1;
            // The other one may need this processor.
            if spins.is_multiple_of(256) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        true
    }
}

/// Keeps the thread on a processor that the other one does not have, if there are two: on one they cannot race.
fn stay_on(thread: usize) {
    // SAFETY: sets of processors, which the calls fill and read; all zeroes are an empty one.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed) != 0 {
            return;
        }
        let mut usable = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        if let Some(mine) = usable.nth(thread) {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(mine, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &one);
        }
    }
}

fn shape(random: &mut Random) -> usize {
    1 + random.below(WIDEST)
}
