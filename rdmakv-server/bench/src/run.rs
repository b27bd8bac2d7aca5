//! A run: connect, write the keys, warm up, measure, wait for the last answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use crate::bursts::Clients;
use crate::conclude::conclude;
use crate::cpu::{self, Sample, Used, Watched};
use crate::generator::Generator;
use crate::keys::{Choice, Chooser, Newest};
use crate::observe::{Observer, Second};
use crate::owner;
use crate::placed::Placed;
use crate::plan::Plan;
use crate::protocol::Codec;
use crate::report::Report;
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::target::Target;
use crate::through_client::ThroughClient;
use crate::traffic::Traffic;
use crate::values::Values;
use crate::window::{Ended, Line, Meter, Own, Window};
use crate::work::{Drawn, Work, share_of};

/// Runs, and returns the report.
///
/// A server that dies in the middle ends the run, with a report of what there is. Blocks until all is done.
///
/// # Errors
///
/// The reason why the run did not begin: an impossible plan, no server, keys that could not be written.
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
    let codec = Codec { protocol: plan.protocol, names: &names, values: &values, verify: plan.verify };
    if plan.load && !matches!(plan.traffic, Traffic::Load) {
        load(plan, &codec)?;
    }
    let server = watched(plan)?;
    let mut generators =
        each_thread(plan, (0..plan.threads).collect(), |_, thread| Driver::new(plan, &codec, &plan.target, thread))?;
    let newest = Arc::new(Newest::of(plan.keys));
    // Each thread's work is made before the clock runs.
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
        let mut observer = Observer {
            plan,
            window,
            stop: &stop,
            server: server.as_ref(),
            samples: &mut samples,
            own: &mut own,
            placed: &mut placed,
        };
        observer.observe(&tallies, &returns, &mut total, &mut watch);
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

/// Returns the keys that a thread writes.
fn load_share(plan: &Plan, thread: usize) -> std::ops::Range<u64> {
    let until = |thread: usize| (u128::from(plan.keys) * thread as u128 / plan.threads as u128) as u64;
    until(thread)..until(thread + 1)
}

/// Returns a thread's work, with its times if these are not up to the server.
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

/// The driver of a thread's requests.
enum Driver<'a> {
    Sockets(Box<Generator<'a>>),
    Client(Box<ThroughClient<'a>>),
}

impl<'a> Driver<'a> {
    fn new(plan: &'a Plan, codec: &Codec<'a>, target: &Target, thread: usize) -> Result<Self, Ended> {
        Ok(match target {
            Target::Client(address) => {
                Self::Client(Box::new(ThroughClient::new(plan, codec.clone(), address, thread)?))
            }
            _ => Self::Sockets(Box::new(Generator::new(plan, codec.clone(), target, thread)?)),
        })
    }

    fn run(
        &mut self,
        mut work: Work,
        mut schedule: Option<Schedule>,
        window: Window,
        line: &Line<'_>,
    ) -> (Own, Result<(), Ended>) {
        let (mut meter, work, schedule) = (Meter::default(), &mut work, &mut schedule);
        let (ended, calls, tally) = match self {
            Self::Sockets(generator) => {
                let ended = generator.drive(work, schedule, window, line, &mut meter);
                (ended, &generator.calls, &mut generator.tally)
            }
            Self::Client(client) => {
                let ended = client.drive(work, schedule, window, line, &mut meter);
                (ended, &client.calls, &mut client.tally)
            }
        };
        let own = meter.read(calls);
        let _ = line.seconds.send(std::mem::take(tally));
        (own, ended)
    }
}

/// Writes all keys.
fn load(plan: &Plan, codec: &Codec<'_>) -> Result<(), String> {
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
        let mut generator = Driver::new(&loading, codec, &target, thread)?;
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
            "writing the keys: {} of {} were refused: {}; give the server more memory (-m) or larger items (-I), or ask for fewer or smaller values",
            total.counts.errors,
            plan.keys,
            total.error.unwrap_or_default()
        ));
    }
    Ok(())
}

/// Runs each of these on a thread of its own, placed as planned.
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
