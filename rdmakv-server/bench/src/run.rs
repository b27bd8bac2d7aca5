//! A run: connect, write the keys, warm up, measure, wait for the last answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use crate::conn::Ended;
use crate::cpu::{Sample, Used, Watched};
use crate::generator::{Generator, Line, Own, Window, Work};
use crate::keys::Chooser;
use crate::owner;
use crate::plan::Plan;
use crate::report::{self, Kept, Report, Summary};
use crate::schedule::Schedule;
use crate::speech::Speech;
use crate::tally::{Calls, Latencies, Tally};
use crate::values::Values;

/// A second of a run, for whoever watches.
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
    /// Latencies of GETs that count, in nanoseconds.
    pub gets: &'a Latencies,
    /// Latencies of SETs that count, in nanoseconds.
    pub sets: &'a Latencies,
}

/// Runs, and says what came of it.
///
/// A server that dies in the middle ends the run, with a report of what there is. Blocks until all is done.
///
/// # Errors
///
/// What kept the run from beginning: the plan cannot be done, the server is not there, the keys could not be written.
///
/// ```no_run
/// use std::time::Duration;
///
/// let mut plan = rdmakv_bench::Plan::new("127.0.0.1:11211".parse()?);
/// plan.sizes = "1k".parse()?;
/// plan.duration = Duration::from_secs(2);
/// let report = rdmakv_bench::run(&plan)?;
/// assert!(report.is_good(), "{report:?}");
/// println!("{:.0} operations a second, {:?}", report.rate, report.gets);
/// # Ok::<(), String>(())
/// ```
pub fn run(plan: &Plan) -> Result<Report, String> {
    run_watched(plan, |_| ())
}

/// The same; each second is shown to `watch`.
///
/// # Errors
///
/// As of [`run`].
pub fn run_watched(plan: &Plan, mut watch: impl FnMut(&Second<'_>)) -> Result<Report, String> {
    plan.check()?;
    let names = plan.names()?;
    let values = Values::new(&plan.sizes);
    let speech = Speech { protocol: plan.protocol, names: &names, values: &values, verify: plan.verify };
    if plan.load {
        load(plan, &speech)?;
    }
    let server = watched(plan)?;
    let mut generators = each_thread(plan, (0..plan.threads).collect(), |_, thread| {
        Generator::new(plan, speech.clone(), &plan.target, thread)
    })?;
    let newest = Arc::<AtomicU64>::default();
    // A moment for the threads to start in.
    let begin = Instant::now() + Duration::from_millis(5);
    let from = plan.warm_up.as_nanos() as u64;
    let window = Window { begin, from, to: from + plan.duration.as_nanos() as u64 };
    let stop = AtomicBool::new(false);
    let (seconds, tallies) = channel();
    let (mut returns, mut lines) = (Vec::new(), Vec::new());
    for _ in 0..plan.threads {
        let (give, emptied) = channel();
        let _ = give.send(Tally::default());
        returns.push(give);
        lines.push(Line { stop: &stop, seconds: seconds.clone(), emptied });
    }
    drop(seconds);

    let mut total = Tally::default();
    let mut samples: [Option<Sample>; 2] = [None; 2];
    let ends: Vec<(Own, Result<(), Ended>)> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (at, (generator, line)) in generators.iter_mut().zip(lines).enumerate() {
            let chooser = Chooser::new(plan.choice, plan.keys, Arc::clone(&newest));
            let schedule = plan.rate.map(|rate| Schedule::new(plan.arrivals, rate, at, plan.threads));
            let stop = &stop;
            threads.push(scope.spawn(move || {
                place(plan, at).map_or_else(
                    |wrong| (Own::default(), Err(wrong)),
                    |()| {
                        thread::sleep(window.begin.saturating_duration_since(Instant::now()));
                        let work = Work::Mix { chooser, sets: plan.sets };
                        let (own, ended) = generator.run(work, schedule, window, &line);
                        if ended.is_err() {
                            stop.store(true, Relaxed);
                        }
                        (own, ended)
                    },
                )
            }));
        }
        observe(&tallies, &returns, window, server.as_ref(), &mut samples, &mut total, &mut watch);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let measured = window.now().min(window.to).saturating_sub(window.from);
    if samples[1].is_none() {
        samples[1] = server.as_ref().and_then(Watched::sample);
    }
    Ok(conclude(plan, &total, &ends, measured, server.as_ref(), samples))
}

/// Writes all keys.
fn load(plan: &Plan, speech: &Speech<'_>) -> Result<(), String> {
    let target = plan.loading_place();
    let loading = Plan {
        target: target.clone(),
        depth: plan.depth.clamp(16, 256),
        connections: plan.connections.min(plan.threads * 4),
        spin: false,
        ..plan.clone()
    };
    let stop = AtomicBool::new(false);
    let share = |thread: usize| plan.keys * thread as u64 / plan.threads as u64;
    let tallies = each_thread(&loading, (0..plan.threads).collect(), |_, thread| {
        let mut generator = Generator::new(&loading, speech.clone(), &target, thread)?;
        let (seconds, tallies) = channel();
        let (_, emptied) = channel();
        let line = Line { stop: &stop, seconds, emptied };
        let window = Window { begin: Instant::now(), from: 0, to: u64::MAX };
        let (_, ended) = generator.run(Work::Load(share(thread)..share(thread + 1)), None, window, &line);
        if ended.is_err() {
            stop.store(true, Relaxed);
        }
        ended.map(|()| tallies)
    })
    .map_err(|wrong| format!("writing the keys: {wrong}"))?;
    let mut total = Tally::default();
    tallies.iter().flat_map(|tallies| tallies.try_iter()).for_each(|tally| total.add(&tally));
    if total.counts.errors > 0 {
        return Err(format!(
            "writing the keys: {} of {} were refused: {}; give the server more memory, or ask for fewer or smaller values",
            total.counts.errors,
            plan.keys,
            total.error.unwrap_or_default()
        ));
    }
    Ok(())
}

/// What each of these gives on a thread of its own, where the plan puts it.
fn each_thread<T: Send, U: Send>(
    plan: &Plan,
    things: Vec<T>,
    act: impl Fn(usize, T) -> Result<U, Ended> + Sync,
) -> Result<Vec<U>, Ended> {
    thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = things
            .into_iter()
            .enumerate()
            .map(|(at, thing)| {
                scope.spawn(move || {
                    place(plan, at)?;
                    act(at, thing)
                })
            })
            .collect();
        let done: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        done.into_iter().collect()
    })
}

/// Puts this thread where it should be.
fn place(plan: &Plan, thread: usize) -> Result<(), Ended> {
    // Sleeps are to end when they should, not up to 50 us later; where that is refused, the schedule tells.
    let _ = set_current_timer_slack(std::num::NonZeroU64::new(1));
    if plan.pin.is_empty() {
        return Ok(());
    }
    let cpu = plan.pin[thread % plan.pin.len()];
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("pinning a thread to CPU {cpu}: there is no such CPU"));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
        .map_err(|error| format!("pinning a thread to CPU {cpu}: {error}; is it there, and allowed?"))
}

fn watched(plan: &Plan) -> Result<Option<Watched>, String> {
    match plan.server_pid {
        Some(pid) => Watched::new(pid).map(Some),
        // Where it is not found, its CPU is not reported. A server in this process cannot be told from us.
        None => {
            let pid = owner::find(&plan.target).filter(|&pid| pid != std::process::id() as i32);
            Ok(pid.and_then(|pid| Watched::new(pid).ok()))
        }
    }
}

/// Collects what the threads count until they end, and reads the server's clock at both ends of the window.
fn observe(
    tallies: &std::sync::mpsc::Receiver<Tally>,
    returns: &[std::sync::mpsc::Sender<Tally>],
    window: Window,
    server: Option<&Watched>,
    samples: &mut [Option<Sample>; 2],
    total: &mut Tally,
    watch: &mut impl FnMut(&Second<'_>),
) {
    let mut second = Tally::default();
    let (mut shown, mut turn) = (0, 0);
    loop {
        let now = window.now();
        // A little after the threads have handed over theirs.
        let due = (shown + 1) * 1_000_000_000 + 20_000_000;
        for (at, end) in [window.from, window.to].into_iter().enumerate() {
            if now >= end && samples[at].is_none() {
                samples[at] = server.and_then(Watched::sample);
            }
        }
        let next = [window.from, window.to, due].into_iter().filter(|&time| time > now).min().unwrap_or(now);
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
            show(&second, Duration::from_secs(shown), watch);
            total.add(&second);
            second.clear();
        }
    }
    if second.counts.answers + second.counts.warm + second.answered() > 0 {
        show(&second, Duration::from_nanos(window.now()), watch);
    }
    total.add(&second);
}

fn show(second: &Tally, at: Duration, watch: &mut impl FnMut(&Second<'_>)) {
    let counts = &second.counts;
    watch(&Second {
        at,
        answers: counts.answers + counts.warm,
        misses: counts.misses,
        failures: counts.errors + counts.lost + counts.wrong,
        gets: &second.gets,
        sets: &second.sets,
    });
}

fn conclude(
    plan: &Plan,
    total: &Tally,
    ends: &[(Own, Result<(), Ended>)],
    measured: u64,
    server: Option<&Watched>,
    samples: [Option<Sample>; 2],
) -> Report {
    let counts = &total.counts;
    let seconds = measured as f64 / 1e9;
    let operations = counts.answers.max(1) as f64;
    let (mut cpu, mut calls) = (Used::default(), Calls::default());
    for (own, _) in ends {
        cpu.add(&own.cpu);
        calls.add(&own.calls);
    }
    let ended_early = ends.iter().find_map(|(_, ended)| ended.clone().err());
    let mut invalid = Vec::new();
    if counts.answers == 0 {
        invalid.push("no answer came in the time that counts".into());
    }
    let schedule = plan.rate.map(|wanted| {
        let late = |quantile| total.late.value_at_quantile(quantile) as f64 / 1e3;
        let kept = Kept {
            wanted,
            started: total.late.len().saturating_sub(counts.unsent) as f64 / seconds.max(1e-9),
            late_p50: late(0.5),
            late_p99: late(0.99),
            late_max: total.late.max() as f64 / 1e3,
            unsent: counts.unsent,
        };
        if late(0.99) * 1e3 > plan.tolerance.as_nanos() as f64 {
            invalid.push(format!(
                "the schedule was not kept: one request in a hundred started {:.0} us late or more; ask for a lower rate, use \
                 more threads, or give them CPUs of their own (--pin)",
                kept.late_p99
            ));
        }
        if counts.unsent > 0 {
            invalid.push(format!("{} requests were never sent: more waited than can be borne", counts.unsent));
        }
        let answered = counts.answers as f64 / seconds.max(1e-9);
        // Chance alone makes a Poisson schedule miss its rate by a few times the root of the number.
        let chance = 5.0 * (wanted * seconds).sqrt() / seconds.max(1e-9);
        if ended_early.is_none() && answered < 0.95 * wanted - chance {
            invalid.push(format!("the server did not keep up: {answered:.0} of {wanted:.0} requests a second were answered"));
        }
        kept
    });
    let failed = counts.errors + counts.lost;
    if failed as f64 > 0.01 * (total.answered() + counts.lost) as f64 {
        invalid.push(format!("{failed} requests failed, which is more than one in a hundred"));
    }
    let server = server.and_then(|watched| {
        let used = samples[1]?.since(&samples[0]?);
        Some(report::Server {
            pid: watched.pid,
            name: watched.name.clone(),
            user_ns: used.user / operations,
            system_ns: used.system / operations,
            cpus: (used.user + used.system) / measured.max(1) as f64,
        })
    });
    Report {
        target: plan.target.to_string(),
        protocol: plan.protocol.to_string(),
        threads: plan.threads,
        connections: plan.connections,
        depth: plan.rate.is_none().then_some(plan.depth),
        keys: format!("{} of {}", plan.choice, plan.keys),
        sizes: plan.sizes.to_string(),
        valid: invalid.is_empty(),
        invalid_because: invalid,
        ended_early,
        seconds,
        operations: counts.answers,
        rate: counts.answers as f64 / seconds.max(1e-9),
        hits: counts.hits,
        misses: counts.misses,
        stored: counts.stored,
        errors: counts.errors,
        first_error: total.error.clone(),
        wrong_values: plan.verify.then_some(counts.wrong),
        lost: counts.lost,
        gets: Summary::of(&total.gets),
        sets: Summary::of(&total.sets),
        schedule,
        generator: report::Generator {
            user_ns: cpu.user / operations,
            system_ns: cpu.system / operations,
            busy: (cpu.user + cpu.system) / (measured.max(1) as f64 * plan.threads as f64),
            reads: calls.reads as f64 / operations,
            writes: calls.writes as f64 / operations,
            waits: calls.waits as f64 / operations,
            bytes_read: calls.bytes_read,
            bytes_written: calls.bytes_written,
        },
        server,
        histograms: report::Histograms { gets: total.gets.clone(), sets: total.sets.clone() },
    }
}
