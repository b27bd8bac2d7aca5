//! A run: connect, write the keys, warm up, measure, wait for the last answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use crate::bursts::Clients;
use crate::conn::Ended;
use crate::cpu::{self, Sample, Used, Watched};
use crate::generator::Generator;
use crate::keys::{Choice, Chooser, Newest};
use crate::owner;
use crate::placed::Placed;
use crate::plan::Plan;
use crate::report::{self, Kept, Report};
use crate::schedule::Schedule;
use crate::speech::Speech;
use crate::tally::{Calls, Histograms, Tally};
use crate::target::Target;
use crate::through_client::ThroughClient;
use crate::traffic::Traffic;
use crate::values::Values;
use crate::window::{Line, Own, Window};
use crate::work::{Drawn, Work, share_of};

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
    /// Latencies that count.
    pub latencies: &'a Histograms,
    /// CPU time of the server in this second, in nanoseconds, user and system, if it can be seen.
    pub server: Option<(f64, f64)>,
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
/// println!("{:.0} operations a second, {:?}", report.rate, report.latencies);
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
    // A client blocks: each has a thread to itself.
    let threads = if plan.target.is_through_client() { plan.connections } else { plan.threads };
    let plan = &Plan { threads, ..plan.clone() };
    let names = plan.names()?;
    let values = Values::new(&plan.sizes);
    let speech = Speech { protocol: plan.protocol, names: &names, values: &values, verify: plan.verify };
    if plan.load && !matches!(plan.traffic, Traffic::Load) {
        load(plan, &speech)?;
    }
    let server = watched(plan)?;
    let mut generators =
        each_thread(plan, (0..plan.threads).collect(), |_, thread| Driver::new(plan, &speech, &plan.target, thread))?;
    let newest = Arc::new(Newest::of(plan.keys));
    // What each thread is to do is made before the clock runs.
    let works: Vec<_> = (0..plan.threads).map(|thread| work(plan, &newest, thread)).collect();
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
    let mut own: [Option<Used>; 2] = [None; 2];
    let mut placed = server.as_ref().and_then(|server| Placed::of(server.pid));
    let ends: Vec<(Own, Result<(), Ended>)> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (at, ((generator, line), (work, schedule))) in generators.iter_mut().zip(lines).zip(works).enumerate() {
            let stop = &stop;
            threads.push(scope.spawn(move || {
                place(plan, at).map_or_else(
                    |wrong| (Own::default(), Err(wrong)),
                    |()| {
                        thread::sleep(window.begin.saturating_duration_since(Instant::now()));
                        let (own, ended) = generator.run(work, schedule, window, &line);
                        if ended.is_err() {
                            stop.store(true, Relaxed);
                        }
                        (own, ended)
                    },
                )
            }));
        }
        let mut watching = Watching {
            plan,
            window,
            stop: &stop,
            server: server.as_ref(),
            samples: &mut samples,
            own: &mut own,
            placed: &mut placed,
        };
        watching.observe(&tallies, &returns, &mut total, &mut watch);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let measured = window.now().min(window.to).saturating_sub(window.from);
    if samples[1].is_none() {
        samples[1] = server.as_ref().and_then(Watched::sample);
    }
    // Fabrics have threads of their own, which are part of what a client costs.
    let whole = own[0].filter(|_| plan.target.is_through_client());
    let whole = whole.map(|before| own[1].unwrap_or_else(cpu::of_this_process).since(&before));
    let used = server.as_ref().zip(samples[0]).zip(samples[1]).map(|((server, from), to)| (server, to.since(&from)));
    let shared = placed.and_then(|placed| placed.shared());
    Ok(conclude(plan, total, &ends, measured, (used, shared), whole))
}

/// The keys that a thread writes.
fn load_share(plan: &Plan, thread: usize) -> std::ops::Range<u64> {
    let until = |thread: usize| (u128::from(plan.keys) * thread as u128 / plan.threads as u128) as u64;
    until(thread)..until(thread + 1)
}

/// What a thread is to do, and when if that is not up to the server.
fn work(plan: &Plan, newest: &Arc<Newest>, thread: usize) -> (Work, Option<Schedule>) {
    let schedule = plan.rate.map(|rate| Schedule::new(plan.arrivals, rate, thread, plan.threads));
    match &plan.traffic {
        Traffic::Mix(mix) => {
            let chooser = Chooser::new(plan.choice, plan.keys, Arc::clone(newest));
            let latest = matches!(plan.choice, Choice::Latest { .. });
            (Work::Mix(Drawn::new(mix, chooser, latest)), schedule)
        }
        Traffic::Load => (Work::Load(load_share(plan, thread)), schedule),
        Traffic::Bursts(bursts) => {
            let (first, count) = plan.connections_of(thread);
            (Work::Bursts(Clients::new(bursts, first, count, plan.connections)), None)
        }
        Traffic::Replay(recording) => {
            let (steps, times) = share_of(recording, plan.fill, thread, plan.threads);
            let scaled = |speed: f64| times.iter().map(|&time| (time as f64 / speed) as u64).collect();
            (Work::Replay { steps: steps.into_iter() }, plan.speed.map(|speed| Schedule::recorded(scaled(speed))))
        }
    }
}

/// Who makes a thread's requests.
enum Driver<'a> {
    Sockets(Box<Generator<'a>>),
    Client(Box<ThroughClient<'a>>),
}

impl<'a> Driver<'a> {
    fn new(plan: &'a Plan, speech: &Speech<'a>, target: &Target, thread: usize) -> Result<Self, Ended> {
        Ok(match target {
            Target::Client(address) => {
                Self::Client(Box::new(ThroughClient::new(plan, speech.clone(), address, thread)?))
            }
            _ => Self::Sockets(Box::new(Generator::new(plan, speech.clone(), target, thread)?)),
        })
    }

    fn run(
        &mut self,
        work: Work,
        schedule: Option<Schedule>,
        window: Window,
        line: &Line<'_>,
    ) -> (Own, Result<(), Ended>) {
        match self {
            Self::Sockets(generator) => generator.run(work, schedule, window, line),
            Self::Client(client) => client.run(work, schedule, window, line),
        }
    }
}

/// Writes all keys.
fn load(plan: &Plan, speech: &Speech<'_>) -> Result<(), String> {
    let target = plan.loading_place();
    let loading = Plan {
        target: target.clone(),
        depth: plan.depth.clamp(16, 256),
        connections: if target.is_through_client() { plan.threads } else { plan.connections.min(plan.threads * 4) },
        spin: false,
        ..plan.clone()
    };
    let own = AtomicBool::new(false);
    let stop = plan.interrupt.as_deref().unwrap_or(&own);
    let tallies = each_thread(&loading, (0..plan.threads).collect(), |_, thread| {
        let mut generator = Driver::new(&loading, speech, &target, thread)?;
        let (seconds, tallies) = channel();
        let (_, emptied) = channel();
        let line = Line { stop, seconds, emptied };
        let window = Window { begin: Instant::now(), from: 0, to: u64::MAX };
        let (_, ended) = generator.run(Work::Load(load_share(plan, thread)), None, window, &line);
        if ended.is_err() {
            stop.store(true, Relaxed);
        }
        ended.map(|()| tallies)
    })
    .map_err(|wrong| format!("writing the keys: {wrong}"))?;
    if stop.load(Relaxed) {
        return Err("writing the keys: interrupted".into());
    }
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
    pin(plan.pin[thread % plan.pin.len()])
}

/// Keeps the calling thread on this CPU.
///
/// # Errors
///
/// There is no such CPU, or it is not allowed.
pub fn pin(cpu: usize) -> Result<(), String> {
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

/// What is looked at while the threads work.
struct Watching<'a> {
    plan: &'a Plan,
    window: Window,
    stop: &'a AtomicBool,
    server: Option<&'a Watched>,
    /// The server's clock at both ends of the window.
    samples: &'a mut [Option<Sample>; 2],
    /// What this process had used then.
    own: &'a mut [Option<Used>; 2],
    placed: &'a mut Option<Placed>,
}

/// How often we look where threads are, and whether somebody interrupts.
const LOOK: u64 = 100_000_000;

impl Watching<'_> {
    /// Collects what the threads count until they end.
    fn observe(
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

fn conclude(
    plan: &Plan,
    total: Tally,
    ends: &[(Own, Result<(), Ended>)],
    measured: u64,
    (server, shared): (Option<(&Watched, Used)>, Option<f64>),
    whole: Option<Used>,
) -> Report {
    let counts = &total.counts;
    let seconds = measured as f64 / 1e9;
    let per_second = |number: u64| number as f64 / seconds.max(1e-9);
    let operations = counts.operations.max(1) as f64;
    let (mut cpu, mut calls) = (Used::default(), Calls::default());
    for (own, _) in ends {
        cpu.add(&own.cpu);
        calls.add(&own.calls);
    }
    let cpu = whole.unwrap_or(cpu);
    let interrupted = plan.interrupt.as_ref().is_some_and(|interrupt| interrupt.load(Relaxed));
    let ended_early =
        ends.iter().find_map(|(_, ended)| ended.clone().err()).or_else(|| interrupted.then(|| "interrupted".into()));
    let mut invalid = Vec::new();
    if counts.operations == 0 {
        invalid.push("no answer came in the time that counts".into());
    }
    let schedule = (plan.is_open() || !total.late.is_empty()).then(|| kept(plan, &total, seconds, &mut invalid));
    if let (Some(kept), Some(wanted), None) = (&schedule, plan.rate, &ended_early) {
        let answered = per_second(counts.operations);
        // Chance alone makes a Poisson schedule miss its rate by a few times the root of the number.
        let chance = 5.0 * (wanted * seconds).sqrt() / seconds.max(1e-9);
        if answered < 0.95 * wanted - chance {
            let started = kept.started;
            invalid.push(format!(
                "the server did not keep up: {answered:.0} of {wanted:.0} requests a second were answered, and {started:.0} made"
            ));
        }
    }
    if plan.must_hit && counts.misses > 0 {
        invalid.push(format!(
            "{} of {} GETs missed, and all keys were to be there: give the server more memory (-m), or ask for fewer or smaller \
             values",
            counts.misses,
            counts.hits + counts.misses
        ));
    }
    let failed = counts.errors + counts.lost;
    if failed as f64 > 0.01 * (total.answered() + counts.lost) as f64 {
        invalid.push(format!("{failed} requests failed, which is more than one in a hundred"));
    }
    let server = server.map(|(watched, used)| report::Server {
        pid: watched.pid,
        name: watched.name.clone(),
        user_ns: used.user / operations,
        system_ns: used.system / operations,
        cpus: (used.user + used.system) / measured.max(1) as f64,
        shared,
    });
    Report {
        target: plan.target.to_string(),
        protocol: plan.protocol.to_string(),
        threads: plan.threads,
        connections: plan.connections,
        depth: (!plan.is_open()).then_some(plan.depth),
        traffic: report::traffic(plan),
        keys: match plan.traffic {
            Traffic::Mix(_) => format!("{} of {}", plan.choice, plan.keys),
            Traffic::Load | Traffic::Bursts(_) | Traffic::Replay(_) => plan.keys.to_string(),
        },
        sizes: plan.sizes.to_string(),
        valid: invalid.is_empty(),
        invalid_because: invalid,
        ended_early,
        seconds,
        operations: counts.operations,
        answers: counts.answers,
        rate: per_second(counts.operations),
        hits: counts.hits,
        misses: counts.misses,
        stored: counts.stored,
        scanned: (counts.sought > 0).then_some(report::Scanned { found: counts.found, sought: counts.sought }),
        errors: counts.errors,
        first_error: total.error.clone(),
        wrong_values: plan.verify.then_some(counts.wrong),
        lost: counts.lost,
        latencies: report::summaries(&total.latencies),
        schedule,
        bursts: report::bursts(plan, &total),
        penalty: report::penalty(plan, &total),
        ways: report::ways(plan, &total),
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
        histograms: total.latencies,
    }
}

/// How the schedule was kept; if it was not, that makes the run invalid.
fn kept(plan: &Plan, total: &Tally, seconds: f64, invalid: &mut Vec<String>) -> Kept {
    let late = |quantile| total.late.value_at_quantile(quantile) as f64 / 1e3;
    let unsent = total.counts.unsent;
    let bursts = matches!(plan.traffic, Traffic::Bursts(_));
    let kept = Kept {
        wanted: plan.rate,
        started: total.late.len().saturating_sub(if bursts { 0 } else { unsent }) as f64 / seconds.max(1e-9),
        late_p50: late(0.5),
        late_p99: late(0.99),
        late_max: total.late.max() as f64 / 1e3,
        unsent,
    };
    if late(0.99) * 1e3 > plan.tolerance.as_nanos() as f64 {
        invalid.push(format!(
            "the schedule was not kept: one request in a hundred started {:.0} us late or more; ask for a lower rate, use \
             more threads, or give them CPUs of their own (--pin)",
            kept.late_p99
        ));
    }
    if unsent > 0 && bursts {
        invalid
            .push(format!("{unsent} blocks were due and never began: the server takes longer for one than a period"));
    } else if unsent > 0 {
        invalid.push(format!("{unsent} requests were never sent: more waited than can be borne"));
    }
    kept
}
