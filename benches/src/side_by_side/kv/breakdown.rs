//! The cycles of a GET, as in Figures 2 and 8a of the paper on memcached over soft-RDMA: memcached, our server over TCP, and our server
//! under one-sided reads over `iwarp:`, each under the load of [`paper`](super::paper).
//!
//! The kernel's accounts are there on every machine: user and system time, and how often threads left their CPU. System calls are there
//! where `strace` is, of one connection, as it depends on nothing else then. The paper's classes are there where `perf` may sample:
//! [`profile`](super::profile).

use super::contestant::{Contestant, Way, rounds};
use super::load::{CONNECTIONS, Mix};
use super::profile::{Class, Profile, profile};
use super::server::{Cpu, peer_version};
use super::size_name;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};
use std::time::Duration;

/// Above the tables.
const TITLE: &str = "Where the cycles of a GET go: one of 1,000 values, 32 connections; the peer is memcached";
const SIZES: [usize; 3] = [1 << 10, 10 << 10, 100 << 10];
const PAIRS: u32 = 1000;
/// System calls with a row wherever a contestant makes them; all others have one together.
const CALLS: [&str; 12] = [
    "epoll_wait",
    "epoll_pwait",
    "poll",
    "ppoll",
    "futex",
    "read",
    "recvfrom",
    "recvmsg",
    "write",
    "writev",
    "sendto",
    "sendmsg",
];
const OTHER: &str = "other";
/// Calls below this share belong to no request: threads make them now and then for upkeep.
const FEW: f64 = 0.005;

pub(super) fn parts() -> Vec<Part> {
    let mut rows = Vec::new();
    for way in ["iwarp", "tcp"] {
        rows.extend(["user", "system", "switches/waited", "switches/pushed"].map(|row| format!("{way}/{row}")));
        rows.extend(CALLS.iter().chain([&OTHER]).map(|call| format!("{way}/calls/{call}")));
        rows.extend(Class::ALL.map(|class| format!("{way}/cpu/{}", class.name())));
    }
    let rows: Vec<_> = rows.iter().map(String::as_str).collect();
    let part = |value| {
        let name = format!("breakdown/{}", size_name(value));
        Part::new(name.clone(), TITLE, &rows, move |setting| {
            measure(setting, value, &name).map_err(|error| error.to_string())
        })
    };
    SIZES.map(part).into()
}

/// A contestant after its turns.
struct Looked {
    contestant: Contestant,
    profile: Option<Profile>,
}

fn measure(setting: &Setting, value: usize, name: &str) -> Outcome<Vec<Row>> {
    crate::pin::pin(setting.near)?;
    let mix = Mix::reading(value, PAIRS);
    let mut ways = vec![Way::Iwarp, Way::Tcp];
    ways.extend(peer_version().map(|_| Way::Memcached));
    let begin = |way| Contestant::begin(way, setting.far, mix, 1, CONNECTIONS);
    let mut all = ways.into_iter().map(begin).collect::<Outcome<Vec<_>>>()?;
    rounds(setting, &mut all)?;
    let mut all = all.into_iter().map(|contestant| look(setting, contestant)).collect::<Outcome<Vec<_>>>()?;
    let peer = all.iter().position(|one| one.contestant.way == Way::Memcached);
    let peer = peer.map(|at| all.remove(at));
    Ok(all.iter().flat_map(|ours| rows(ours, peer.as_ref(), name)).collect())
}

/// Has its calls counted, and its samples taken.
fn look(setting: &Setting, mut contestant: Contestant) -> Outcome<Looked> {
    contestant.count_calls()?;
    let short = Setting { whole: Duration::from_millis(20), ..*setting };
    let longest = 2 * setting.whole;
    let profile = profile(contestant.server.process(), longest, || contestant.load(&short).map(|_| ()))?;
    let profile = profile.map_err(|why| eprintln!("  {}: {why}: no classes of cycles", contestant.way.name())).ok();
    Ok(Looked { contestant, profile })
}

fn rows(ours: &Looked, peer: Option<&Looked>, name: &str) -> Vec<Row> {
    let prefix = format!("{name}/{}", ours.contestant.way.name());
    // A single look has no rounds by which two could be told apart; and only the sum is won or lost.
    let row = |what: &str, unit, of: &dyn Fn(&Looked) -> Figure| {
        Row::new(format!("{prefix}/{what}"), of(ours), peer.map(of), unit).without_ratio()
    };
    let ticks = "all rounds, by the clock's ticks";
    let mut rows = vec![
        row("user", Unit::Nanos, &|one| one.contestant.ticks(Cpu::user)).note(ticks),
        row("system", Unit::Nanos, &|one| one.contestant.ticks(|cpu| cpu.system)).note(ticks),
        row("switches/waited", Unit::Count, &|one| one.contestant.rounds(|lap| lap.switches.waited as f64)),
        row("switches/pushed", Unit::Count, &|one| one.contestant.rounds(|lap| lap.switches.pushed as f64)),
    ];
    for call in CALLS {
        let count = |one: &Looked| one.contestant.calls.as_ref().map_or(f64::NAN, |calls| calls.of(call));
        if count(ours).max(peer.map_or(0.0, count)) >= FEW {
            rows.push(row(&format!("calls/{call}"), Unit::Calls, &|one| Figure::once(count(one))));
        }
    }
    if ours.contestant.calls.is_some() {
        let others = row(&format!("calls/{OTHER}"), Unit::Calls, &|one| Figure::once(other_calls(one).0));
        rows.push(others.note(other_calls(ours).1));
    }
    if let Some(profile) = &ours.profile {
        for class in Class::ALL {
            let of = |one: &Looked| {
                let share = one.profile.as_ref().map_or(f64::NAN, |profile| profile.share(class));
                Figure::once(share * one.contestant.ticks(|cpu| cpu.all).best)
            };
            let most = profile.most(class, 3).into_iter();
            let most = most.map(|(function, share)| format!("{function} {:.0} %", 100.0 * share)).collect::<Vec<_>>();
            let share = format!("{:.0} % of all: {}", 100.0 * profile.share(class), most.join(", "));
            rows.push(row(&format!("cpu/{}", class.name()), Unit::Nanos, &of).note(share));
        }
    }
    rows
}

/// Calls that have no row of their own, and the names of the frequent ones.
fn other_calls(one: &Looked) -> (f64, String) {
    let calls = one.contestant.calls.as_ref();
    let others = calls.into_iter().flat_map(|calls| calls.by_name()).filter(|(name, _)| !CALLS.contains(name));
    let others: Vec<_> = others.collect();
    let names = others.iter().filter(|(_, count)| *count >= FEW).map(|(name, count)| format!("{name} {count:.2}"));
    (others.iter().map(|(_, count)| count).sum(), names.collect::<Vec<_>>().join(", "))
}
