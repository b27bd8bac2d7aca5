//! Interleaved laps: contestants take turns, many times, so that a noisy moment of the machine hits them all.
//!
//! A team of threads, each pinned to its CPU for the whole race, is led by the calling thread, which sleeps
//! while a lap runs. In a lap the first `threads` of the team run one contestant, begun together at a spinning
//! gate and timed from the first start to the last end. The rest of the team is asleep. A turn is a few
//! laps, the first of them behind a warm-up, because the others have just had the caches of the CPU.
//!
//! Laps are short and many, so that some are undisturbed on a machine that does other things too: a lap
//! in which the scheduler preempted a thread does not count, as long as others do.
//!
//! The assignment is handed over in a mutex between two barriers; during a lap only the contestants' own
//! state is shared.

use crate::pin;
use crate::side_by_side::figure::Figure;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Operations are run in whole chunks of so many.
pub const CHUNK: usize = 1024;

/// Laps in a turn.
const LAPS: usize = 4;

/// Undisturbed laps that suffice to leave the disturbed ones out.
const ENOUGH: usize = 4;

/// A contestant: one cache in one setting, or a plain loop.
pub struct Contestant<'a> {
    /// Runs chunks of operations as one thread of the team. Returns how many operations failed.
    pub run: &'a (dyn Fn(Stint) -> usize + Sync),
    /// Registrations so far, to tell how many operations missed.
    pub attempts: &'a (dyn Fn() -> u64 + Sync),
}

/// A thread's part in a lap.
#[derive(Clone, Copy, Debug)]
pub struct Stint {
    /// Which thread of the team, from 0.
    pub thread: usize,
    /// The number of the first chunk. No two stints of a contestant have a number in common, whatever thread
    /// and lap they belong to: what a chunk asks for by its number was asked for long ago.
    pub first: usize,
    /// How many chunks.
    pub chunks: usize,
}

/// How long to race.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// The timed part of a lap.
    pub lap: Duration,
    /// Turns of each contestant, at least.
    pub rounds: usize,
    /// The whole race, at least.
    pub whole: Duration,
    /// Chunks of each thread in front of a turn, at least: what it works on has to get into the caches of its CPU first.
    pub warm: usize,
}

/// One lap.
#[derive(Clone, Copy, Debug)]
pub struct Lap {
    /// Nanoseconds for one operation, all threads together: ten when two threads take twenty each.
    pub nanos: f64,
    /// Registrations for each operation.
    pub misses: f64,
    /// A thread was pushed off its CPU meanwhile.
    pub disturbed: bool,
}

/// The laps of one contestant with one number of threads.
#[derive(Clone, Debug, Default)]
pub struct Laps(pub Vec<Lap>);

impl Laps {
    /// Returns the best of a value that is better the lower it is, and its median.
    pub fn figure(&self, value: impl Fn(&Lap) -> f64) -> Figure {
        let calm = self.0.iter().filter(|lap| !lap.disturbed).count();
        let counts = |lap: &&Lap| !lap.disturbed || calm < ENOUGH;
        Figure::lowest(self.0.iter().filter(counts).map(value).collect())
    }

    /// Returns the share of laps that were disturbed.
    pub fn disturbed(&self) -> f64 {
        self.0.iter().filter(|lap| lap.disturbed).count() as f64 / self.0.len().max(1) as f64
    }

    /// Nanoseconds for one operation.
    pub fn nanos(&self) -> Figure {
        self.figure(|lap| lap.nanos)
    }

    /// Registrations for each operation, the median.
    pub fn misses(&self) -> f64 {
        self.figure(|lap| lap.misses).median.unwrap_or(0.0)
    }
}

/// Races every contestant with every number of threads; `laps[contestant][threads]` in the order given.
///
/// # Errors
/// If a thread cannot be pinned, an operation failed, or a contestant panicked.
pub fn race(
    contestants: &[Contestant<'_>],
    threads: &[usize],
    cpus: &[usize],
    length: Length,
) -> Result<Vec<Vec<Laps>>, String> {
    let team = threads.iter().copied().max().unwrap_or(0);
    if team == 0 || team > cpus.len() {
        return Err(format!("{team} threads on {} CPUs: each needs a CPU of its own", cpus.len()));
    }
    let ground = Ground {
        start: Barrier::new(team + 1),
        finish: Barrier::new(team + 1),
        job: Mutex::new(Job::End),
        gate: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        disturbed: AtomicBool::new(false),
        broken: AtomicBool::new(false),
        times: (0..team).map(|_| Mutex::new(None)).collect(),
    };
    thread::scope(|scope| {
        for (thread, &cpu) in cpus.iter().enumerate().take(team) {
            let ground = &ground;
            scope.spawn(move || ground.serve(thread, cpu, contestants));
        }
        let result = ground.lead(contestants, threads, length);
        *lock(&ground.job) = Job::End;
        ground.start.wait();
        result
    })
}

/// Runs one stint in each of `threads` pinned threads: the time from the first start to the last end, for
/// harnesses that take turns by themselves. `next` numbers the chunks.
///
/// # Errors
/// If a thread cannot be pinned or panics, or an operation failed.
pub fn together(
    threads: usize,
    cpus: &[usize],
    chunks: usize,
    next: &AtomicUsize,
    run: impl Fn(Stint) -> usize + Sync,
) -> Result<Duration, String> {
    let first = next.fetch_add(threads * chunks, Ordering::Relaxed);
    let ready = Barrier::new(threads);
    let work = |thread: usize, cpu: usize| {
        let pinned = pin::pin(cpu);
        ready.wait();
        let start = Instant::now();
        let failed = run(Stint { thread, first: first.wrapping_add(thread * chunks), chunks });
        (failed, start, Instant::now(), pinned.is_ok())
    };
    let done: Vec<_> = thread::scope(|scope| {
        let work = &work;
        let team: Vec<_> = cpus
            .iter()
            .take(threads)
            .enumerate()
            .map(|(thread, &cpu)| scope.spawn(move || work(thread, cpu)))
            .collect();
        team.into_iter().map(|thread| thread.join().ok()).collect()
    });
    let done: Vec<_> = done.into_iter().flatten().filter(|&(.., pinned)| pinned).collect();
    let start = done.iter().map(|&(_, start, ..)| start).min();
    let end = done.iter().map(|&(_, _, end, _)| end).max();
    match (start, end) {
        (Some(start), Some(end)) if done.len() == threads => match done.iter().map(|&(failed, ..)| failed).sum() {
            0 => Ok(end.duration_since(start)),
            failed => Err(format!("{failed} operations failed that should not")),
        },
        _ => Err("a thread could not be pinned to its CPU, or panicked".into()),
    }
}

/// The leader's request to the team.
#[derive(Clone, Copy)]
enum Job {
    Run { contestant: usize, threads: usize, first: usize, warm: usize, chunks: usize },
    End,
}

struct Ground {
    start: Barrier,
    finish: Barrier,
    job: Mutex<Job>,
    /// Threads that are ready to be timed.
    gate: AtomicUsize,
    /// Operations that failed.
    failed: AtomicUsize,
    /// A thread was pushed off its CPU in this lap.
    disturbed: AtomicBool,
    /// A thread could not be pinned, or panicked.
    broken: AtomicBool,
    times: Vec<Mutex<Option<(Instant, Instant)>>>,
}

impl Ground {
    /// Returns the leader's side.
    fn lead(
        &self,
        contestants: &[Contestant<'_>],
        threads: &[usize],
        length: Length,
    ) -> Result<Vec<Vec<Laps>>, String> {
        let mut laps = vec![vec![Laps::default(); threads.len()]; contestants.len()];
        let mut turns: Vec<Turn> = Vec::new();
        let mut next = vec![0; contestants.len()];
        for (contestant, next) in next.iter_mut().enumerate() {
            for (column, &threads) in threads.iter().enumerate() {
                let mut turn = Turn { contestant, column, threads, chunks: 1 };
                self.calibrate(contestants, &mut turn, next, length)?;
                turns.push(turn);
            }
        }
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds < length.rounds || begun.elapsed() < length.whole {
            for turn in &turns {
                for number in 0..LAPS {
                    let warm = if number == 0 { length.warm.max(2 * turn.chunks) } else { 0 };
                    let lap = self.lap(contestants, turn, &mut next[turn.contestant], warm)?;
                    laps[turn.contestant][turn.column].0.push(lap);
                }
            }
            // There and back: no contestant always runs behind the same other.
            turns.reverse();
            rounds += 1;
        }
        let worst = laps.iter().flatten().map(Laps::disturbed).fold(0.0, f64::max);
        if worst > 0.5 {
            eprintln!("  the machine is busy: up to {:.0} % of a contestant's laps were disturbed", 100.0 * worst);
        }
        Ok(laps)
    }

    /// Finds how many chunks fill a lap.
    fn calibrate(
        &self,
        contestants: &[Contestant<'_>],
        turn: &mut Turn,
        next: &mut usize,
        length: Length,
    ) -> Result<(), String> {
        loop {
            let nanos =
                self.lap(contestants, turn, next, length.warm)?.nanos * (turn.chunks * CHUNK * turn.threads) as f64;
            let wanted = length.lap.as_nanos() as f64;
            if nanos >= wanted / 2.0 {
                turn.chunks = ((turn.chunks as f64 * wanted / nanos) as usize).max(1);
                return Ok(());
            }
            turn.chunks = turn.chunks.saturating_mul(2);
        }
    }

    fn lap(&self, contestants: &[Contestant<'_>], turn: &Turn, next: &mut usize, warm: usize) -> Result<Lap, String> {
        let Turn { contestant, threads, chunks, .. } = *turn;
        let attempts = contestants[contestant].attempts;
        *lock(&self.job) = Job::Run { contestant, threads, first: *next, warm, chunks };
        self.gate.store(0, Ordering::Relaxed);
        self.disturbed.store(false, Ordering::Relaxed);
        *next = next.wrapping_add(threads * (warm + chunks));
        let before = attempts();
        self.start.wait();
        self.finish.wait();
        let registered = attempts().wrapping_sub(before);
        if self.broken.load(Ordering::Relaxed) {
            return Err("a thread of the race could not be pinned to its CPU, or panicked".into());
        }
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 {
            return Err(format!("{failed} operations failed that should not"));
        }
        let times: Vec<_> = self.times[..threads].iter().filter_map(|time| *lock(time)).collect();
        let start = times.iter().map(|&(start, _)| start).min();
        let end = times.iter().map(|&(_, end)| end).max();
        let (Some(start), Some(end)) = (start, end) else { return Err("a lap without times".into()) };
        let per_thread = |chunks: usize| (chunks * CHUNK * threads) as f64;
        Ok(Lap {
            nanos: end.duration_since(start).as_nanos() as f64 / per_thread(chunks),
            misses: registered as f64 / per_thread(warm + chunks),
            disturbed: self.disturbed.load(Ordering::Relaxed),
        })
    }

    /// A thread's side.
    fn serve(&self, thread: usize, cpu: usize, contestants: &[Contestant<'_>]) {
        if pin::pin(cpu).is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
        loop {
            self.start.wait();
            let job = *lock(&self.job);
            let Job::Run { contestant, threads, first, warm, chunks } = job else { return };
            if thread < threads && !self.broken.load(Ordering::Relaxed) {
                let run = contestants[contestant].run;
                let work = || {
                    let mut failed = run(Stint { thread, first: first.wrapping_add(thread * warm), chunks: warm });
                    let pushed = pin::switches().pushed;
                    self.pass_gate(threads);
                    let start = Instant::now();
                    let first = first.wrapping_add(threads * warm + thread * chunks);
                    failed += run(Stint { thread, first, chunks });
                    let end = Instant::now();
                    if pin::switches().pushed != pushed {
                        self.disturbed.store(true, Ordering::Relaxed);
                    }
                    (failed, start, end)
                };
                match catch_unwind(AssertUnwindSafe(work)) {
                    Ok((failed, start, end)) => {
                        self.failed.fetch_add(failed, Ordering::Relaxed);
                        *lock(&self.times[thread]) = Some((start, end));
                    }
                    Err(_) => self.broken.store(true, Ordering::Relaxed),
                }
            }
            self.finish.wait();
        }
    }

    /// Waits for the others, awake, so that all start within the time of a cache miss. A thread that
    /// panicked never comes: `broken` opens the gate.
    fn pass_gate(&self, threads: usize) {
        self.gate.fetch_add(1, Ordering::AcqRel);
        while self.gate.load(Ordering::Acquire) < threads && !self.broken.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }
}

/// One contestant with one number of threads.
struct Turn {
    contestant: usize,
    column: usize,
    threads: usize,
    chunks: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const SHORT: Length = Length { lap: Duration::from_micros(50), rounds: 4, whole: Duration::ZERO, warm: 0 };

    fn cpus() -> Vec<usize> {
        pin::Places::look().unwrap().cpus
    }

    #[test]
    fn each_chunk_runs_once_in_every_round() {
        let cpus = cpus();
        let threads: Vec<_> = (1..=cpus.len().min(2)).collect();
        let seen = Mutex::new(Vec::new());
        let run = |stint: Stint| {
            lock(&seen).extend(stint.first..stint.first + stint.chunks);
            (0..stint.chunks * CHUNK).for_each(|i| _ = std::hint::black_box(i));
            0
        };
        let contestants = [Contestant { run: &run, attempts: &|| 0 }];
        let laps = race(&contestants, &threads, &cpus, SHORT).unwrap();
        assert!(laps[0].iter().all(|laps| laps.0.len() == 4 * LAPS));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..seen.len()), "{seen:?}");
    }

    #[test]
    fn registrations_are_counted_for_each_operation() {
        let registered = std::sync::atomic::AtomicU64::new(0);
        let run = |stint: Stint| {
            registered.fetch_add(stint.chunks as u64, Ordering::Relaxed);
            (0..stint.chunks * CHUNK).for_each(|i| _ = std::hint::black_box(i));
            0
        };
        let contestants = [Contestant { run: &run, attempts: &|| registered.load(Ordering::Relaxed) }];
        let laps = race(&contestants, &[1], &cpus(), SHORT).unwrap();
        assert!((laps[0][0].misses() - 1.0 / CHUNK as f64).abs() < 1e-9);
    }

    #[test]
    fn a_failed_operation_fails_the_race() {
        let run = |stint: Stint| usize::from(stint.chunks > 0);
        let contestants = [Contestant { run: &run, attempts: &|| 0 }];
        assert!(race(&contestants, &[1], &cpus(), SHORT).unwrap_err().contains("failed"));
    }

    #[test]
    fn contestant_panic_ends_the_race() {
        let run = |stint: Stint| if stint.chunks > 0 { panic!("on purpose") } else { 0 };
        let contestants = [Contestant { run: &run, attempts: &|| 0 }];
        assert!(race(&contestants, &[1], &cpus(), SHORT).unwrap_err().contains("panicked"));
    }

    #[test]
    fn more_threads_than_cpus_are_refused() {
        assert!(race(&[], &[cpus().len() + 1], &cpus(), SHORT).is_err());
        assert!(race(&[], &[], &cpus(), SHORT).is_err());
    }

    #[test]
    fn disturbed_laps_count_only_alone() {
        let lap = |nanos, disturbed| Lap { nanos, misses: 0.0, disturbed };
        let mut laps = Laps(vec![lap(1.0, true), lap(9.0, true)]);
        assert_eq!(laps.nanos().best, 1.0);
        laps.0.extend([lap(5.0, false); ENOUGH]);
        assert_eq!((laps.nanos().best, laps.nanos().median), (5.0, Some(5.0)));
        assert!((laps.disturbed() - 2.0 / 6.0).abs() < 1e-9);
    }
}
