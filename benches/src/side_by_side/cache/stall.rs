//! Stall: how long a hit takes while another thread's registration takes a millisecond.
//!
//! One thread hits one region and reads the clock after each hit. The time between two readings is the figure, so
//! it holds one reading and comes in the steps of the clock (10 ns on some machines). Three loops in turn: alone;
//! beside a thread that only sleeps and wakes as often as the disturber does, because waking up on the next CPU
//! is felt too; and beside the disturber. Every half millisecond it asks for a missing region, and the registrar
//! sleeps for one.
//!
//! A cache that holds a lock while it registers stalls the hits 600 times a second, once in some 10,000 hits:
//! p99.99 is just about where that shows, p99.999 shows it for certain.
//!
//! A hit during which the scheduler gave the CPU to some other program is left out: that can
//! happen in every loop and says nothing about a cache. Waiting for a lock is not that.

use super::field::Field;
use super::{Options, fill};
use crate::Layout;
use crate::pin::{self, Switches};
use crate::side_by_side::figure::Figure;
use crate::side_by_side::report::{Row, Unit};
use crate::subject::{Setup, Subject};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Above the table.
pub const TITLE: &str = "Stall: a hit (and one reading of the clock) while another thread's registration takes 1 ms";

/// How many of the hits take no longer, and what that is called.
const QUANTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.99, "p99"), (0.9999, "p99.99"), (0.99999, "p99.999")];

/// Returns the ends of the names of its rows.
pub fn rows() -> Vec<String> {
    let times =
        QUANTILES.iter().flat_map(|(_, name)| ["", "/alone", "/beside-a-sleeper"].map(|end| format!("{name}{end}")));
    times.chain(["p99.99/added", "throughput"].map(String::from)).collect()
}

const REGISTRATION: Duration = Duration::from_millis(1);
const BETWEEN: Duration = Duration::from_micros(500);
/// Cold regions, and how many of them are cached.
const COLD: usize = 256;
const SPARE: usize = 64;

/// No other program's turn is shorter than this.
const SUSPICIOUS: Duration = Duration::from_micros(2);

/// The other load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Other {
    Nobody,
    Sleeper,
    Registers,
}

const OTHERS: [Other; 3] = [Other::Nobody, Other::Sleeper, Other::Registers];

/// The durations of one cache's hits in a round, by the other load.
struct Taken([Histogram<u64>; 3]);

/// In every round.
#[derive(Default)]
struct Rounds(Vec<Taken>);

impl Rounds {
    /// Returns a value of all rounds together, and of each.
    fn figure(&self, value: impl Fn(&Taken) -> f64) -> Result<Figure, String> {
        let mut all = Taken::new()?;
        for round in &self.0 {
            for (all, one) in all.0.iter_mut().zip(&round.0) {
                all.add(one).map_err(|error| error.to_string())?;
            }
        }
        Ok(Figure::whole(value(&all), self.0.iter().map(value).collect()))
    }
}

impl Taken {
    fn new() -> Result<Self, String> {
        let empty = || Histogram::new_with_bounds(1, 10_000_000_000, 3).map_err(|error| error.to_string());
        Ok(Self([empty()?, empty()?, empty()?]))
    }

    fn at(&self, other: Other, quantile: f64) -> f64 {
        self.0[other as usize].value_at_quantile(quantile) as f64
    }
}

/// Measures it.
///
/// # Errors
/// If there is one CPU only, or an operation fails.
pub fn measure<O: Subject, P: Subject>(options: &Options) -> Result<Vec<Row>, String> {
    if options.places.cpus.len() < 2 {
        eprintln!("stall: left out, the other thread needs a CPU of its own");
        return Ok(Vec::new());
    }
    let field = Field::new(Layout::Stride, 1 + COLD, 4)?;
    let (ours, peer) = (prepared::<O>(&field)?, prepared::<P>(&field)?);
    let ours = ours.ok_or("our own cache is not there")?;
    let (mut our_times, mut peer_times) = (Rounds::default(), Rounds::default());
    let quick = options.length.whole.is_zero();
    let stretch = Duration::from_millis(if quick { 60 } else { 250 });
    let rounds = if quick { 1 } else { options.length.whole.div_duration_f64(stretch * 3).ceil().max(4.0) as usize };
    for round in 0..rounds {
        let (mut ours_now, mut peers_now) = (Taken::new()?, Taken::new()?);
        for other in OTHERS {
            let mut our_turn = || one_stretch(options, &ours, &field, other, stretch, round, &mut ours_now);
            let mut peers_turn = || match &peer {
                Some(peer) => one_stretch(options, peer, &field, other, stretch, round, &mut peers_now),
                None => Ok(()),
            };
            // There and back: neither always runs behind the other.
            if round % 2 == 0 {
                our_turn()?;
                peers_turn()?;
            } else {
                peers_turn()?;
                our_turn()?;
            }
        }
        our_times.0.push(ours_now);
        peer_times.0.push(peers_now);
    }
    let times = |value: &dyn Fn(&Taken) -> f64| -> Result<_, String> {
        let peers = peer.is_some().then(|| peer_times.figure(value)).transpose()?;
        Ok((our_times.figure(value)?, peers))
    };
    let mut rows = Vec::new();
    let endings = ["/alone", "/beside-a-sleeper", ""];
    let notes = ["the same loop without the other thread", "the other thread only sleeps and wakes", ""];
    for (quantile, name) in QUANTILES {
        for other in OTHERS {
            let (ours, peer) = times(&|taken| taken.at(other, quantile))?;
            let name = format!("stall/{name}{}", endings[other as usize]);
            rows.push(Row::new(name, ours, peer, Unit::Nanos).note(notes[other as usize]));
        }
    }
    let added = |taken: &Taken| (taken.at(Other::Registers, 0.9999) - taken.at(Other::Nobody, 0.9999)).max(0.0);
    let (ours, peer) = times(&added)?;
    rows.push(
        Row::new("stall/p99.99/added", ours, peer, Unit::Nanos).note("over the same loop without the other thread"),
    );
    let rate = |taken: &Taken, other: Other| taken.0[other as usize].len() as f64;
    let (ours, peer) = times(&|taken| rate(taken, Other::Registers) / rate(taken, Other::Nobody))?;
    rows.push(Row::new("stall/throughput", ours, peer, Unit::Times).note("of the same loop without the other thread"));
    Ok(rows)
}

/// Returns a cache with a hot region and cold ones; its registrar is slow from now on for the cold ones.
fn prepared<S: Subject>(field: &Field) -> Result<Option<S>, String> {
    // The field is in random order: any one region is the hot one, the others are slow.
    let (hot, length) = field.place(0);
    let mut slow = field.bounds();
    // The registrar knows one slow range only: the longer side of the hot region. `cold` asks for those.
    if hot - slow.start > slow.end - (hot + length) {
        slow.end = hot
    } else {
        slow.start = hot + length
    }
    let setup = Setup {
        most_regions: 1 + SPARE,
        most_pages: field.pages(0..1 + SPARE),
        slow,
        pause: REGISTRATION,
        ..Setup::default()
    };
    let cache = S::create(&setup)?;
    if let Some(cache) = &cache {
        fill(cache, [(hot, length)])?;
    }
    Ok(cache)
}

/// Returns the regions whose registration is slow.
fn cold(field: &Field) -> Vec<(usize, usize)> {
    let (hot, length) = field.place(0);
    let bounds = field.bounds();
    let below = hot - bounds.start > bounds.end - (hot + length);
    (1..=COLD).map(|region| field.place(region)).filter(|&(address, _)| (address < hot) == below).collect()
}

/// Returns whether this thread was preempted since the last call, without a wait: a waiting thread would not
/// have needed the CPU.
#[cold]
fn pushed_aside(seen: &mut Switches) -> bool {
    let now = pin::switches();
    let before = std::mem::replace(seen, now);
    now.pushed != before.pushed && now.waited == before.waited
}

/// Hits for a while.
fn one_stretch<S: Subject>(
    options: &Options,
    cache: &S,
    field: &Field,
    other: Other,
    stretch: Duration,
    round: usize,
    taken: &mut Taken,
) -> Result<(), String> {
    let taken = &mut taken.0[other as usize];
    let (hot, _) = field.place(0);
    let cold = cold(field);
    let over = AtomicBool::new(false);
    let failed = AtomicBool::new(false);
    let cpus = &options.places.cpus;
    let fail = |error: std::io::Error| format!("a thread could not be pinned to its CPU: {error}");
    thread::scope(|scope| {
        let other = (other != Other::Nobody).then(|| {
            let (over, failed, cold) = (&over, &failed, &cold);
            scope.spawn(move || {
                pin::pin(cpus[1])?;
                let mut next = round * 7919;
                while !over.load(Ordering::Relaxed) {
                    if other == Other::Registers {
                        let (address, length) = cold[next % cold.len()];
                        next += 1;
                        if !cache.touch(address, length) {
                            failed.store(true, Ordering::Relaxed);
                        }
                    } else {
                        thread::sleep(REGISTRATION);
                    }
                    thread::sleep(BETWEEN);
                }
                Ok::<_, std::io::Error>(())
            })
        });
        let hitter = scope.spawn(|| {
            pin::pin(cpus[0])?;
            // The caches of the CPU are cold and the other thread is just starting: not counted.
            for _ in 0..20_000 {
                cache.touch(hot, 8192);
            }
            let mut seen = pin::switches();
            let end = Instant::now() + stretch;
            let mut last = Instant::now();
            while last < end {
                if !cache.touch(hot, 8192) {
                    failed.store(true, Ordering::Relaxed);
                }
                let hit = last.elapsed();
                // Asked only where it can have happened: the answer takes a system call.
                if hit < SUSPICIOUS || !pushed_aside(&mut seen) {
                    taken.saturating_record(hit.as_nanos() as u64);
                }
                // The time of recording is not part of the next hit.
                last = Instant::now();
            }
            Ok::<_, std::io::Error>(())
        });
        let hitter = hitter.join();
        over.store(true, Ordering::Relaxed);
        hitter.map_err(|_| "the hitting thread panicked")?.map_err(fail)?;
        if let Some(other) = other {
            other.join().map_err(|_| "the other thread panicked")?.map_err(fail)?;
        }
        if failed.load(Ordering::Relaxed) { Err("an operation failed that should not".into()) } else { Ok(()) }
    })
}
