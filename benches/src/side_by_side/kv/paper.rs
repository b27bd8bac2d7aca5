//! The experiment of the paper on memcached over soft-RDMA (Stuedi, Trivedi and Metzler 2012): 1,000 values are stored, and then asked for
//! at the highest rate.
//!
//! Contestants: memcached, our server over TCP, and our server whose clients read one-sidedly over `iwarp:`, which is TCP all the same; servers in
//! turn on the same CPU. A quota of CPU time stands in for the paper's lower clock. Over `shm:` there is no network, so it has a table of
//! its own.
//!
//! Tags last a minute here (`--tag-lease 60s`): the paper's have no end. All threads of the server count, those that serve reads too; nobody spins.

use super::calls::calls;
use super::load::{CONNECTIONS, Load, Mix, Turn};
use super::one_sided::OneSided;
use super::server::{Cpu, Server, Whose, peer_version};
use super::size_name;
use crate::side_by_side::far::Outcome;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::report::{Row, Unit};
use crate::side_by_side::share::Share;
use std::net::{Ipv4Addr, TcpListener};

/// Above the tables.
const TITLE: &str =
    "The paper again: a GET of one of 1,000 values, at the highest rate; 32 connections; the peer is memcached";
const SHM: &str =
    "GETs over shared memory, which is no network: one client, one GET at a time; beside it memcached's over TCP";
const SIZES: [usize; 3] = [1 << 10, 10 << 10, 100 << 10];
const PAIRS: u32 = 1000;
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
    for (share, percent) in [("full", None), ("reduced", Some(REDUCED))] {
        for value in SIZES {
            let name = format!("paper/{share}/{}", size_name(value));
            parts.push(Part::new(name.clone(), TITLE, &ROWS, move |setting| {
                over_network(setting, value, percent, &name).map_err(|error| error.to_string())
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

/// How a GET comes to its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Iwarp,
    Shm,
    Tcp,
    Memcached,
}

enum Asking {
    Sockets(Load),
    Fabric(Box<OneSided>),
}

struct Contestant {
    way: Way,
    asking: Asking,
    server: Server,
    turns: Vec<(Turn, Cpu, u64)>,
    calls: Option<f64>,
    asked: f64,
    /// Goes after the server.
    _share: Option<Share>,
}

impl Contestant {
    fn begin(way: Way, cpu: usize, mix: Mix, threads: usize, connections: usize) -> Outcome<Self> {
        let threads = threads.to_string();
        let mut flags = vec!["-m", "1024", "-I", "2m", "-t", &threads];
        let address = match way {
            Way::Iwarp => {
                // It is free now; that it is taken at once by somebody else is not likely.
                let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
                format!("iwarp:127.0.0.1:{port}")
            }
            Way::Shm => format!("shm:@side-by-side-{}", std::process::id()),
            Way::Tcp | Way::Memcached => "none".to_owned(),
        };
        if way != Way::Memcached {
            flags.extend(["--fabric", &address, "--tag-lease", "60s", "--registered-memory", "2048"]);
        }
        let whose = if way == Way::Memcached { Whose::Peer } else { Whose::Ours };
        let server = Server::start(whose, cpu, &flags)?;
        let asking = match way {
            Way::Iwarp | Way::Shm => Asking::Fabric(Box::new(OneSided::begin(&address, connections, mix)?)),
            Way::Tcp | Way::Memcached => Asking::Sockets(Load::begin(server.address, mix)?),
        };
        Ok(Self { way, asking, server, turns: Vec::new(), calls: None, asked: 0.0, _share: None })
    }

    fn turn(&mut self, setting: &Setting) -> Outcome<()> {
        let (cpu, waits) = (self.server.cpu()?, self.server.waits()?);
        let turn = match &mut self.asking {
            Asking::Sockets(load) => load.turn(setting.whole)?,
            Asking::Fabric(load) => {
                let asked = load.asked;
                let turn = load.turn(setting.whole)?;
                self.asked += (load.asked - asked) as f64;
                turn
            }
        };
        self.turns.push((turn, self.server.cpu()?.since(cpu), self.server.waits()? - waits));
        Ok(())
    }

    fn rounds(&self, of: impl Fn(&Turn, &Cpu, u64) -> f64) -> Figure {
        Figure::lowest(
            self.turns.iter().map(|(turn, cpu, waits)| of(turn, cpu, *waits) / turn.requests as f64).collect(),
        )
    }

    fn requests(&self) -> f64 {
        self.turns.iter().map(|(turn, ..)| turn.requests).sum::<u64>() as f64
    }

    /// Of all rounds together, as the clock's ticks are too coarse for one.
    fn ticks(&self, part: fn(&Cpu) -> u64) -> Figure {
        Figure::once(self.turns.iter().map(|(_, cpu, _)| part(cpu)).sum::<u64>() as f64 / self.requests())
    }
}

/// Turns, there and back, so that nobody always runs behind the same other.
fn rounds(setting: &Setting, all: &mut [Contestant]) -> Outcome<()> {
    for round in 0..setting.rounds.max(if setting.quick { 1 } else { 5 }) {
        for nth in 0..all.len() {
            let nth = if round % 2 == 0 { nth } else { all.len() - 1 - nth };
            all[nth].turn(setting)?;
        }
    }
    Ok(())
}

fn over_network(setting: &Setting, value: usize, percent: Option<u32>, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix { value, gets_a_set: 0, pairs: Some(PAIRS) };
    let mut ways = vec![Way::Iwarp, Way::Tcp];
    ways.extend(peer_version().map(|_| Way::Memcached));
    let mut all = Vec::new();
    for way in ways {
        let mut contestant = Contestant::begin(way, setting.far, mix, 1, CONNECTIONS)?;
        if let Some(percent) = percent {
            let share =
                Share::new(percent).map_err(|error| format!("a share of a CPU: {error}; control groups take root"))?;
            share.take(contestant.server.process())?;
            contestant._share = Some(share);
        }
        all.push(contestant);
    }
    rounds(setting, &mut all)?;
    for contestant in &mut all {
        let asking = &mut contestant.asking;
        contestant.calls = calls(contestant.server.process(), |count| match asking {
            Asking::Sockets(load) => load.one_by_one(count),
            Asking::Fabric(load) => load.one_by_one(count),
        })?;
    }
    let peer = all.iter().position(|contestant| contestant.way == Way::Memcached);
    let peer = peer.map(|at| all.remove(at));
    let mut rows = Vec::new();
    for ours in &all {
        let prefix = format!("{name}/{}", if ours.way == Way::Iwarp { "iwarp" } else { "tcp" });
        let row = |what: &str, unit, of: &dyn Fn(&Contestant) -> Figure| {
            Row::new(format!("{prefix}/{what}"), of(ours), peer.as_ref().map(of), unit)
        };
        rows.push(row("cpu", Unit::Nanos, &|one| one.rounds(|_, cpu, _| cpu.all as f64)));
        if ours.way == Way::Iwarp {
            let note = "all rounds, by the clock's ticks";
            rows.push(row("cpu/user", Unit::Nanos, &|one| one.ticks(Cpu::user)).without_ratio().note(note));
            rows.push(row("cpu/system", Unit::Nanos, &|one| one.ticks(|cpu| cpu.system)).without_ratio().note(note));
        }
        if let Some(own) = ours.calls {
            let peer = peer.as_ref().and_then(|peer| peer.calls).map(Figure::once);
            rows.push(Row::new(format!("{prefix}/calls"), Figure::once(own), peer, Unit::Calls));
        }
        rows.push(row("waits", Unit::Count, &|one| one.rounds(|_, _, waits| waits as f64)));
        // One request at a time on each connection: the time of all of them together.
        rows.push(row("time", Unit::Nanos, &|one| one.rounds(|turn, _, _| turn.nanos as f64)));
        if ours.way == Way::Iwarp {
            for (nth, what) in ["p50", "p99"].into_iter().enumerate() {
                let quantile = |one: &Contestant| {
                    Figure::lowest(one.turns.iter().map(|(turn, ..)| turn.quantiles[nth] as f64).collect())
                };
                rows.push(row(what, Unit::Nanos, &quantile));
            }
            let share = Figure::once(ours.asked / ours.requests());
            rows.push(
                Row::new(format!("{prefix}/asked"), share, None, Unit::Share).note("GETs that the server answered"),
            );
        }
    }
    Ok(rows)
}

/// The paper's Figure 8b: what a core does, with one and with two server threads, of 1 KiB values: a rate for each second of CPU, as there is one CPU beside the load's.
fn a_core(setting: &Setting, threads: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix { value: 1 << 10, gets_a_set: 0, pairs: Some(PAIRS) };
    let mut ways = vec![Way::Iwarp, Way::Tcp];
    ways.extend(peer_version().map(|_| Way::Memcached));
    let begin = |way| Contestant::begin(way, setting.far, mix, threads, CONNECTIONS);
    let mut all = ways.into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    rounds(setting, &mut all)?;
    let of = |one: &Contestant| {
        let rate = |(turn, cpu, _): &(Turn, Cpu, u64)| turn.requests as f64 * 1000.0 / cpu.all as f64;
        Figure::highest(one.turns.iter().map(rate).collect())
    };
    let peer = all.iter().find(|one| one.way == Way::Memcached).map(of);
    let ours = all.iter().filter(|one| one.way != Way::Memcached);
    let row = |one: &Contestant| {
        let way = if one.way == Way::Iwarp { "iwarp" } else { "tcp" };
        Row::new(format!("{name}/{way}/core"), of(one), peer, Unit::Millions).note("GETs for a second of CPU")
    };
    Ok(ours.map(row).collect())
}

fn over_memory(setting: &Setting, value: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix { value, gets_a_set: 0, pairs: Some(PAIRS) };
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
        row("time", Unit::Nanos, &|one| one.rounds(|turn, _, _| turn.nanos as f64)).without_ratio(),
        row("cpu", Unit::Nanos, &|one| one.rounds(|_, cpu, _| cpu.all as f64)).without_ratio().note("the server's"),
        Row::new(format!("{name}/asked"), Figure::once(ours.asked / ours.requests()), None, Unit::Share)
            .note("GETs that the server answered"),
    ])
}
