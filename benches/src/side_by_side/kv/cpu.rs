//! The cost of a GET for the server: CPU, system calls, and how long its client waits; over TCP, a Unix socket and TLS.

use super::calls::{Calls, calls};
use super::load::{CONNECTIONS, Load, Mix, Turn};
use super::server::{Cpu, Server, Whose};
use super::transport::Transport;
use super::{contestants, size_name};
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};

/// Above the table.
const TITLE: &str =
    "A request: the server's CPU, and what the client waits; 32 connections, one request at a time on each";
const OTHERS: &str = "A GET over a Unix socket, and over TLS (AES-256-GCM): otherwise the same";

/// Bytes of values; those over other transports than TCP.
const SIZES: [usize; 4] = [32, 1 << 10, 10 << 10, 100 << 10];
const OTHER_SIZES: [usize; 2] = [1 << 10, 10 << 10];
const ROWS: [&str; 7] = ["cpu", "cpu/user", "cpu/system", "calls", "p50", "p99", "p99.9"];

pub(super) fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for (name, gets_a_set) in [("read-only", 0), ("30:1", 30)] {
        for value in SIZES {
            let mix = Mix { value, gets_a_set, pairs: None, at_once: 1, connections: CONNECTIONS };
            let name = format!("get/{}/{name}", size_name(value));
            parts.push(Part::new(name.clone(), TITLE, &ROWS, move |setting| {
                measure(setting, &Transport::Tcp, mix, &name).map_err(|error| error.to_string())
            }));
        }
    }
    type Begin = fn() -> Outcome<Transport>;
    for (transport, begin) in [("unix", Transport::unix as Begin), ("tls", Transport::tls)] {
        for value in OTHER_SIZES {
            let mix = Mix { value, gets_a_set: 0, pairs: None, at_once: 1, connections: CONNECTIONS };
            let name = format!("{transport}/{}", size_name(value));
            parts.push(Part::new(name.clone(), OTHERS, &ROWS, move |setting| {
                let measured = begin().and_then(|transport| measure(setting, &transport, mix, &name));
                measured.map_err(|error| error.to_string())
            }));
        }
    }
    parts
}

/// One contestant: its server, the load on it, and what its turns took.
struct Contestant {
    server: Server,
    load: Load,
    turns: Vec<(Turn, Cpu)>,
    calls: Option<Calls>,
}

fn measure(setting: &Setting, transport: &Transport, mix: Mix, prefix: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let begin = |whose: Whose| -> Outcome<Contestant> {
        let server = Server::start_over(transport, whose, setting.far, &["-m", "1024"])?;
        let mut load = Load::begin(&server.address, mix)?;
        load.turn(setting.whole / 4)?;
        Ok(Contestant { load, server, turns: Vec::new(), calls: None })
    };
    let mut all = contestants().into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    for round in 0..setting.rounds {
        for nth in 0..all.len() {
            // There and back: no contestant always runs behind the same other.
            let nth = if round % 2 == 0 { nth } else { all.len() - 1 - nth };
            let Contestant { server, load, turns, .. } = &mut all[nth];
            let before = server.cpu()?;
            let turn = load.turn(setting.whole)?;
            turns.push((turn, server.cpu()?.since(before)));
        }
    }
    for contestant in &mut all {
        contestant.calls = calls(contestant.server.process(), |count| contestant.load.one_by_one(count))?;
    }
    let row = |what: &str, unit: Unit, value: &dyn Fn(&Turn, &Cpu) -> f64| {
        let rounds = |contestant: &Contestant| {
            Figure::lowest(contestant.turns.iter().map(|(turn, cpu)| value(turn, cpu)).collect())
        };
        Row::new(format!("{prefix}/{what}"), rounds(&all[0]), all.get(1).map(rounds), unit)
    };
    let of = |cpu: u64, turn: &Turn| cpu as f64 / turn.requests as f64;
    let mut rows = vec![row("cpu", Unit::Nanos, &|turn, cpu| of(cpu.all, turn))];
    // The clock's ticks are too coarse for one round.
    let whole = |contestant: &Contestant, part: fn(&Cpu) -> u64| {
        let cpu: u64 = contestant.turns.iter().map(|(_, cpu)| part(cpu)).sum();
        Figure::once(cpu as f64 / contestant.turns.iter().map(|(turn, _)| turn.requests).sum::<u64>() as f64)
    };
    for (what, part) in [("cpu/user", Cpu::user as fn(&Cpu) -> u64), ("cpu/system", |cpu| cpu.system)] {
        let peer = all.get(1).map(|peer| whole(peer, part));
        let row = Row::new(format!("{prefix}/{what}"), whole(&all[0], part), peer, Unit::Nanos);
        rows.push(row.without_ratio().note("all rounds, by the clock's ticks"));
    }
    if let Some(ours) = &all[0].calls {
        let peer = all.get(1).and_then(|peer| peer.calls.as_ref()).map(|calls| Figure::once(calls.all()));
        rows.push(Row::new(format!("{prefix}/calls"), Figure::once(ours.all()), peer, Unit::Calls));
    }
    for (nth, what) in ["p50", "p99", "p99.9"].into_iter().enumerate() {
        rows.push(row(what, Unit::Nanos, &|turn, _| turn.quantiles[nth] as f64));
    }
    Ok(rows)
}
