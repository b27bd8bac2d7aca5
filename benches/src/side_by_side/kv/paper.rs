//! The experiment of the paper on memcached over soft-RDMA (Stuedi, Trivedi and Metzler 2012): 1,000 values are stored, and then asked for
//! at the highest rate.
//!
//! Contestants: memcached, our server over TCP, and our server with one-sided reads over `iwarp:`, which is TCP all the same; servers in turn on
//! the same CPU. A quota of CPU time stands in for the paper's lower clock. Over `shm:` there is no network, so it has a table of its own.
//!
//! Beside one request at a time on each of 32 connections, `many` asks for 32 values at once on one. `few` asks for 8, and `one` for one. A
//! client of RDMA has many reads in flight on a connection, as one of memcached has multi-gets. Both save system calls by it.
//!
//! Tags last a minute here (`--tag-lease 60s`): the paper's have no end. All threads of the server count, those that serve reads too; none of them
//! spins.

use super::contestant::{Contestant, Lap, Way, rounds};
use super::load::{CONNECTIONS, Mix};
use super::server::{Cpu, peer_version};
use super::size_name;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};

/// Above the tables.
const TITLE: &str =
    "The paper again: a GET of one of 1,000 values, at the highest rate; 32 connections; the peer is memcached";
const SHM: &str =
    "GETs over shared memory, which is no network: one client, one GET at a time; beside it memcached's over TCP";
const SIZES: [usize; 3] = [1 << 10, 10 << 10, 100 << 10];
const PAIRS: u32 = 1000;
const MANY: &str = "The same on one connection, with 32 or 8 of the 1,000 values at a time (a multi-get, of one-sided reads or of memcached's), or one";
/// Keys of the multi-gets.
const AT_ONCE: usize = 32;
const FEW: usize = 8;
/// The reduced share, in percent of a CPU.
const REDUCED: u32 = 40;
const ROWS: [&str; 13] = [
    "iwarp/cpu",
    "iwarp/cpu/user",
    "iwarp/cpu/system",
    "iwarp/calls",
    "iwarp/waits",
    "iwarp/time",
    "iwarp/p50",
    "iwarp/p99",
    "iwarp/asked",
    "tcp/cpu",
    "tcp/calls",
    "tcp/waits",
    "tcp/time",
];

pub(super) fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for (kind, title, percent, at_once, connections) in [
        ("full", TITLE, None, 1, CONNECTIONS),
        ("reduced", TITLE, Some(REDUCED), 1, CONNECTIONS),
        ("many", MANY, None, AT_ONCE, 1),
        ("few", MANY, None, FEW, 1),
        ("one", MANY, None, 1, 1),
    ] {
        for value in SIZES {
            let name = format!("paper/{kind}/{}", size_name(value));
            let mix = Mix { at_once, connections, ..Mix::reading(value, PAIRS) };
            parts.push(Part::new(name.clone(), title, &ROWS, move |setting| {
                over_network(setting, mix, percent, &name).map_err(|error| error.to_string())
            }));
        }
    }
    for threads in [1, 2] {
        let name = format!("paper/threads/{threads}");
        parts.push(Part::new(name.clone(), TITLE, &["iwarp/core", "tcp/core"], move |setting| {
            a_core(setting, threads, &name).map_err(|error| error.to_string())
        }));
    }
    for value in SIZES {
        let name = format!("shm/{}", size_name(value));
        parts.push(Part::new(name.clone(), SHM, &["time", "cpu", "asked"], move |setting| {
            over_memory(setting, value, &name).map_err(|error| error.to_string())
        }));
    }
    parts
}

fn over_network(setting: &Setting, mix: Mix, percent: Option<u32>, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mut ways = vec![Way::Iwarp, Way::Tcp];
    ways.extend(peer_version().map(|_| Way::Memcached));
    let mut all = Vec::new();
    for way in ways {
        let mut contestant = Contestant::begin(way, setting.far, mix, 1, mix.connections)?;
        if let Some(percent) = percent {
            contestant.reduce(percent)?;
        }
        all.push(contestant);
    }
    rounds(setting, &mut all)?;
    for contestant in &mut all {
        contestant.count_calls()?;
    }
    let peer = all.iter().position(|contestant| contestant.way == Way::Memcached);
    let peer = peer.map(|at| all.remove(at));
    let mut rows = Vec::new();
    for ours in &all {
        let prefix = format!("{name}/{}", ours.way.name());
        let row = |what: &str, unit, of: &dyn Fn(&Contestant) -> Figure| {
            Row::new(format!("{prefix}/{what}"), of(ours), peer.as_ref().map(of), unit)
        };
        rows.push(row("cpu", Unit::Nanos, &|one| one.rounds(|lap| lap.cpu.all as f64)));
        if ours.way == Way::Iwarp {
            let note = "all rounds, by the clock's ticks";
            rows.push(row("cpu/user", Unit::Nanos, &|one| one.ticks(Cpu::user)).without_ratio().note(note));
            rows.push(row("cpu/system", Unit::Nanos, &|one| one.ticks(|cpu| cpu.system)).without_ratio().note(note));
        }
        if let Some(own) = &ours.calls {
            let peer = peer.as_ref().and_then(|peer| peer.calls.as_ref()).map(|calls| Figure::once(calls.all()));
            rows.push(Row::new(format!("{prefix}/calls"), Figure::once(own.all()), peer, Unit::Calls));
        }
        rows.push(row("waits", Unit::Count, &|one| one.rounds(|lap| lap.switches.waited as f64)));
        // One request at a time on each connection: the time of all of them together.
        rows.push(row("time", Unit::Nanos, &|one| one.rounds(|lap| lap.turn.nanos as f64)));
        if ours.way == Way::Iwarp {
            for (nth, what) in ["p50", "p99"].into_iter().enumerate() {
                let quantile = |one: &Contestant| {
                    Figure::lowest(one.laps.iter().map(|lap| lap.turn.quantiles[nth] as f64).collect())
                };
                rows.push(row(what, Unit::Nanos, &quantile));
            }
            rows.push(
                Row::new(format!("{prefix}/asked"), ours.answered(), None, Unit::Share)
                    .note("GETs that the server answered"),
            );
        }
    }
    Ok(rows)
}

/// The paper's Figure 8b: what a core does, with one and with two server threads, of 1 KiB values: a rate for each second of CPU, as there is one CPU beside the load's.
fn a_core(setting: &Setting, threads: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix::reading(1 << 10, PAIRS);
    let mut ways = vec![Way::Iwarp, Way::Tcp];
    ways.extend(peer_version().map(|_| Way::Memcached));
    let begin = |way| Contestant::begin(way, setting.far, mix, threads, CONNECTIONS);
    let mut all = ways.into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    rounds(setting, &mut all)?;
    let of = |one: &Contestant| {
        let rate = |lap: &Lap| lap.turn.requests as f64 * 1000.0 / lap.cpu.all as f64;
        Figure::highest(one.laps.iter().map(rate).collect())
    };
    let peer = all.iter().find(|one| one.way == Way::Memcached).map(of);
    let ours = all.iter().filter(|one| one.way != Way::Memcached);
    let row = |one: &Contestant| {
        Row::new(format!("{name}/{}/core", one.way.name()), of(one), peer, Unit::Millions)
            .note("GETs for a second of CPU")
    };
    Ok(ours.map(row).collect())
}

fn over_memory(setting: &Setting, value: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix::reading(value, PAIRS);
    let mut all = vec![Contestant::begin(Way::Shm, setting.far, mix, 1, 1)?];
    if peer_version().is_some() {
        all.push(Contestant::begin(Way::Memcached, setting.far, mix, 1, CONNECTIONS)?);
    }
    rounds(setting, &mut all)?;
    let (ours, peer) = (&all[0], all.get(1));
    let row = |what: &str, unit, of: &dyn Fn(&Contestant) -> Figure| {
        Row::new(format!("{name}/{what}"), of(ours), peer.map(of), unit)
    };
    Ok(vec![
        row("time", Unit::Nanos, &|one| one.rounds(|lap| lap.turn.nanos as f64)).without_ratio(),
        row("cpu", Unit::Nanos, &|one| one.rounds(|lap| lap.cpu.all as f64)).without_ratio().note("the server's"),
        Row::new(format!("{name}/asked"), ours.answered(), None, Unit::Share).note("GETs that the server answered"),
    ])
}
