//! GETs of short values over datagrams (`udp:`). Beside them: one-sided reads over `iwarp:`, and TCP. Each of so many clients asks for one at a
//! time. The peer is memcached over TCP.
//!
//! Over `udp:` and `iwarp:` the client library asks, over TCP the plain load of the other tables.

use super::contestant::{Contestant, Way, rounds};
use super::load::Mix;
use super::server::peer_version;
use super::size_name;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};

/// Above the table.
const TITLE: &str =
    "A GET of 64 bytes over datagrams (udp:), iwarp: and TCP, by 1 and by 32 clients; the peer is memcached over TCP";
const VALUE: usize = 64;
const PAIRS: u32 = 1000;
const CLIENTS: [usize; 2] = [1, 32];
const WAYS: [Way; 3] = [Way::Udp, Way::Iwarp, Way::Tcp];
const ROWS: [&str; 9] =
    ["udp/cpu", "udp/time", "udp/p50", "iwarp/cpu", "iwarp/time", "iwarp/p50", "tcp/cpu", "tcp/time", "tcp/p50"];

pub(super) fn parts() -> Vec<Part> {
    let part = |clients: usize| {
        let name = format!("datagrams/{}/{clients}", size_name(VALUE));
        Part::new(name.clone(), TITLE, &ROWS, move |setting| {
            measure(setting, clients, &name).map_err(|error| error.to_string())
        })
    };
    CLIENTS.into_iter().map(part).collect()
}

fn measure(setting: &Setting, clients: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix { connections: clients, ..Mix::reading(VALUE, PAIRS) };
    let ways = WAYS.into_iter().chain(peer_version().map(|_| Way::Memcached));
    let mut all = ways.map(|way| Contestant::begin(way, setting.far, mix, 1, clients)).collect::<Outcome<Vec<_>>>()?;
    rounds(setting, &mut all)?;
    let peer = all.iter().position(|one| one.way == Way::Memcached).map(|at| all.remove(at));
    let mut rows = Vec::new();
    for ours in &all {
        let row = |what: &str, of: &dyn Fn(&Contestant) -> Figure| {
            Row::new(format!("{name}/{}/{what}", ours.way.name()), of(ours), peer.as_ref().map(of), Unit::Nanos)
        };
        rows.push(row("cpu", &|one| one.rounds(|lap| lap.cpu.all as f64)).note("the server's, for a GET"));
        rows.push(row("time", &|one| one.rounds(|lap| lap.turn.nanos as f64)).note("of all clients together"));
        let median =
            |one: &Contestant| Figure::lowest(one.laps.iter().map(|lap| lap.turn.quantiles[0] as f64).collect());
        rows.push(row("p50", &median));
    }
    Ok(rows)
}
