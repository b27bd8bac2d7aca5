//! SETs and GETs: the time of a request and its CPU, whole and after two servers were lost.

use super::contestant::{Asked, Contestant, Turn, cpu};
use super::{Kind, SERVERS, Shared, memory, size_name, with};
use crate::pin;
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};

const TITLE: &str = "A request, one at a time: its median time, and the CPU of servers, agents and client for it";
const DEGRADED: &str = "A GET after two of six servers were killed, compared with the same GETs before";
const SIZES: [usize; 2] = [1 << 10, 1 << 20];
/// Keys of a size, and those of a short run.
const KEYS: (usize, usize) = (24, 6);
/// Servers that are killed.
const LOST: usize = 2;

/// The figure of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cost {
    P50,
    Cpu,
    /// Calls that servers answer.
    Calls,
}

impl Cost {
    const OF_GET: [Self; 2] = [Self::P50, Self::Cpu];
    const OF_SET: [Self; 3] = [Self::P50, Self::Cpu, Self::Calls];

    fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::Cpu => "cpu",
            Self::Calls => "messages",
        }
    }

    fn of(self, turn: &Turn) -> f64 {
        match self {
            Self::P50 => turn.p50,
            Self::Cpu => turn.cpu,
            Self::Calls => turn.calls,
        }
    }
}

/// Returns how many times the cost of one copy a request may take, if that is limited.
fn most(asked: Asked, kind: Kind, bytes: usize, cost: Cost) -> Option<f64> {
    let is_large = bytes == 1 << 20;
    match (asked, kind, cost) {
        (Asked::Set, Kind::Copies, Cost::Cpu) if is_large => Some(3.2),
        (Asked::Set, Kind::Code, Cost::Cpu) if is_large => Some(2.2),
        (Asked::Set, Kind::Copies, Cost::P50) if !is_large => Some(3.5),
        (Asked::Set, Kind::Code, Cost::P50) if is_large => Some(2.0),
        (Asked::Get, Kind::Copies, Cost::P50 | Cost::Cpu) if !is_large => Some(1.1),
        (Asked::Get, Kind::Code, Cost::P50 | Cost::Cpu) if is_large => Some(1.3),
        _ => None,
    }
}

/// How many times the cost of a whole GET a degraded one may take.
const MOST_DEGRADED: f64 = 2.0;

pub(super) fn parts(shared: &Shared, cpus: &[usize]) -> Vec<Part> {
    let mut parts = vec![idle(shared, cpus)];
    for (asked, name, costs) in [(Asked::Set, "set", &Cost::OF_SET[..]), (Asked::Get, "get", &Cost::OF_GET)] {
        for bytes in SIZES {
            let name = format!("{name}/{}", size_name(bytes));
            let mut names = rows(costs);
            if asked == Asked::Set {
                names.extend(Cost::OF_GET.map(|cost| format!("memcached/{}", cost.name())));
            }
            parts.push(part(shared, cpus, name.clone(), &names, move |setting, contestant| {
                requests(setting, contestant, (asked, bytes, costs), &name)
            }));
        }
    }
    // The last one: the servers that it kills stay away.
    let sizes = SIZES.map(size_name);
    let rows = sizes.iter().flat_map(|size| rows(&Cost::OF_GET).into_iter().map(move |row| format!("{size}/{row}")));
    let rows: Vec<_> = rows.collect();
    let (shared, cpus) = (shared.clone(), cpus.to_vec());
    parts.push(Part::new("degraded", DEGRADED, &rows, move |setting| {
        let start = || memory::start(&cpus, setting);
        with(&shared, start, |contestant| degraded(setting, contestant)).map_err(|error| error.to_string())
    }));
    parts
}

fn rows(costs: &[Cost]) -> Vec<String> {
    let of = |kind: Kind| costs.iter().map(move |cost| format!("{}/{}", kind.name(), cost.name()));
    Kind::RESILIENT.into_iter().flat_map(of).collect()
}

fn part(
    shared: &Shared,
    cpus: &[usize],
    name: String,
    rows: &[String],
    measure: impl Fn(&Setting, &mut Contestant) -> Outcome<Vec<Row>> + 'static,
) -> Part {
    let (shared, cpus) = (shared.clone(), cpus.to_vec());
    Part::new(name, TITLE, rows, move |setting| {
        let start = || memory::start(&cpus, setting);
        with(&shared, start, |contestant| measure(setting, contestant)).map_err(|error| error.to_string())
    })
}

/// CPU of servers and agents that nothing is asked of.
fn idle(shared: &Shared, cpus: &[usize]) -> Part {
    let (shared, cpus) = (shared.clone(), cpus.to_vec());
    Part::new("idle", TITLE, &["cpu"], move |setting| {
        let measure = |contestant: &mut Contestant| -> Outcome<Vec<Row>> {
            let (mut ours, mut one) = (Vec::new(), Vec::new());
            for _ in 0..setting.rounds {
                for (kind, rounds) in [(Kind::Copies, &mut ours), (Kind::One, &mut one)] {
                    let processes = contestant.processes(kind);
                    let before = cpu(&processes)?;
                    std::thread::sleep(setting.whole);
                    rounds.push((cpu(&processes)? - before) as f64 / setting.whole.as_secs_f64());
                }
            }
            let row = Row::new("idle/cpu", Figure::lowest(ours), Some(Figure::lowest(one)), Unit::Nanos);
            Ok(vec![row.without_ratio().note("for a second without requests")])
        };
        with(&shared, || memory::start(&cpus, setting), measure).map_err(|error| error.to_string())
    })
}

fn keys(setting: &Setting) -> usize {
    if setting.quick { KEYS.1 } else { KEYS.0 }
}

/// The turns of each kind, by its place.
type Turns = [Vec<Turn>; Kind::ALL.len()];

/// Takes turns, there and back: none always runs behind the same other.
fn take_turns(
    setting: &Setting,
    contestant: &mut Contestant,
    kinds: &[Kind],
    asked: Asked,
    (of, bytes): (&str, usize),
) -> Outcome<Turns> {
    pin::pin(setting.near)?;
    let mut turns = Turns::default();
    for round in 0..setting.rounds {
        for nth in 0..kinds.len() {
            let kind = kinds[if round % 2 == 0 { nth } else { kinds.len() - 1 - nth }];
            turns[kind as usize].push(contestant.turn(asked, kind, (of, keys(setting), bytes), setting.whole)?);
        }
    }
    Ok(turns)
}

/// Stores the values that GETs read, and reads each once, so that the client has tags and sizes.
fn prepare(contestant: &mut Contestant, of: &str, bytes: usize, setting: &Setting) -> Outcome<()> {
    for kind in contestant.kinds() {
        contestant.fill(kind, of, keys(setting), bytes)?;
        contestant.turn(Asked::Get, kind, (of, keys(setting), bytes), setting.whole / 4)?;
    }
    Ok(())
}

fn figure(turns: &[Turn], cost: Cost) -> Figure {
    Figure::lowest(turns.iter().map(|turn| cost.of(turn)).collect())
}

fn requests(
    setting: &Setting,
    contestant: &mut Contestant,
    (asked, bytes, costs): (Asked, usize, &[Cost]),
    name: &str,
) -> Outcome<Vec<Row>> {
    prepare(contestant, name, bytes, setting)?;
    let kinds: Vec<_> = contestant.kinds().filter(|&kind| asked == Asked::Set || kind != Kind::Memcached).collect();
    let turns = take_turns(setting, contestant, &kinds, asked, (name, bytes))?;
    let mut rows = Vec::new();
    for kind in Kind::RESILIENT {
        for &cost in costs {
            let (ours, one) = (figure(&turns[kind as usize], cost), figure(&turns[0], cost));
            let name = format!("{name}/{}/{}", kind.name(), cost.name());
            if cost == Cost::Calls {
                rows.push(Row::new(name, ours, None, Unit::Count).note("calls that servers answer for a SET"));
                continue;
            }
            let row = Row::new(name, ours, Some(one), Unit::Nanos);
            rows.push(row.at_most_times(most(asked, kind, bytes, cost)).note(about(&turns[kind as usize], bytes)));
        }
    }
    if asked == Asked::Set {
        let of = |kind: Kind, cost| figure(&turns[kind as usize], cost);
        rows.extend(Cost::OF_GET.map(|cost| {
            let peer = kinds.contains(&Kind::Memcached).then(|| of(Kind::Memcached, cost));
            let row = Row::new(format!("{name}/memcached/{}", cost.name()), of(Kind::Copies, cost), peer, Unit::Nanos);
            row.at_most_times(None).note("ours: copies:3; peer: three memcacheds")
        }));
    }
    Ok(rows)
}

/// Returns how many requests there were, and how many of their bytes went in messages or over sockets, if those of values did.
fn about(turns: &[Turn], bytes: usize) -> String {
    let requests = turns.iter().map(|turn| turn.requests).sum::<u64>();
    let copied = Figure::lowest(turns.iter().map(|turn| turn.copied).collect()).median.unwrap_or(0.0);
    match copied / bytes as f64 {
        share if share < 0.5 || bytes < 1 << 20 => format!("{requests} requests"),
        share => format!("{requests} requests, {share:.1} x the value in messages"),
    }
}

/// Kills two servers and reads what was stored before.
fn degraded(setting: &Setting, contestant: &mut Contestant) -> Outcome<Vec<Row>> {
    let of = SIZES.map(|bytes| (format!("degraded/{}", size_name(bytes)), bytes));
    let mut whole = Vec::new();
    for (name, bytes) in &of {
        prepare(contestant, name, *bytes, setting)?;
        whole.push(take_turns(setting, contestant, &Kind::RESILIENT, Asked::Get, (name, *bytes))?);
    }
    (0..LOST).try_for_each(|at| contestant.kill(at))?;
    contestant.cluster.has(SERVERS - LOST)?;
    let mut rows = Vec::new();
    for ((name, bytes), whole) in of.iter().zip(whole) {
        for kind in Kind::RESILIENT {
            contestant.turn(Asked::Get, kind, (name, keys(setting), *bytes), setting.whole / 4)?;
        }
        let turns = take_turns(setting, contestant, &Kind::RESILIENT, Asked::Get, (name, *bytes))?;
        for kind in Kind::RESILIENT {
            let at = kind as usize;
            for cost in Cost::OF_GET {
                let (ours, before) = (figure(&turns[at], cost), figure(&whole[at], cost));
                let row = Row::new(format!("{name}/{}/{}", kind.name(), cost.name()), ours, Some(before), Unit::Nanos);
                let limit = (cost == Cost::P50).then_some(MOST_DEGRADED);
                rows.push(row.at_most_times(limit).note("peer: before they were killed"));
            }
        }
    }
    Ok(rows)
}
