//! FRRWP beside the traditional process on real fabrics: what `side-by-side handshake` measures.
//!
//! Two processes, each with a cache of its own on a CPU of its own, transfer a buffer again and again. The two processes of
//! the handshake take turns, transfer by transfer. Registrations take as long as a [cost model](mrrc::cost::Linear) says
//! (`Priced`, which the example `transfer` of `frrwp` uses too): the side that registers computes that long, on its CPU, as it would pin pages. The
//! opener reads: its transfer has ended when the last byte is in its memory and it knows it, so one clock has it all.
//! `--write` has it write instead; then the end is told to the writer when the writes are done.
//!
//! Before each transfer the caches of both sides are brought into a [state](State); that is not timed. All states of a size
//! take turns too.
//!
//! `copies/…` write one buffer to three peers, each a process of its own, and end when the last one has it. Registrations of the peers
//! leave their CPU to each other, as they would be on machines of their own. FRRWP asks all peers before it registers the buffer here
//! ([`Engine::open_writes`](frrwp::engine::Engine::open_writes)); the traditional process registers it first.
//!
//! * `…/p50`, `…/p99`: from the opener's call to its end.
//! * `…/hidden`: which share of what both sides spent registering did *not* make the transfer longer than one that has all
//!   registered (`…/warm`), by medians. It is not told where registrations take less than a twentieth of the transfer; nor
//!   where it would be less than nothing (the time that one side registers lets the other fall asleep, which has to be
//!   woken) or more than all: then the note says by how much of it the transfer was longer.

mod cells;
mod link;
mod near;
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../../frrwp/examples/transfer/priced.rs"]
mod priced;
pub mod remote;

use super::part::Part;
use frrwp::handshake::Process;
use mrrc::cost::Linear;

/// Above the tables.
pub const TITLE: &str =
    "A transfer by FRRWP (ours) and by the traditional process (peer); hidden: of the time spent registering";

/// Above the tables of one buffer for several peers.
const COPIES_TITLE: &str = "One buffer written to three peers by FRRWP (ours) and by the traditional process (peer)";

/// The peers of one buffer.
const COPIES: usize = 3;

/// The buffers that are registered before a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing, at both ends.
    Cold,
    /// The first half of the buffer, at both ends. From two pages on.
    HalfWarm,
    /// All of it at the far end, nothing at the near one.
    OneSide,
    /// All of it, at both ends.
    Warm,
}

impl State {
    /// In the order of their rows; the warm one first, as the others are held against it.
    const ALL: [Self; 4] = [Self::Warm, Self::OneSide, Self::HalfWarm, Self::Cold];

    fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::HalfWarm => "half-warm",
            Self::OneSide => "one-side",
            Self::Warm => "warm",
        }
    }

    fn index(self) -> usize {
        Self::ALL.into_iter().position(|state| state == self).unwrap_or(0)
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// How many bytes of so many are registered.
    fn ready(self, near: bool, bytes: usize) -> usize {
        match self {
            Self::Cold => 0,
            Self::HalfWarm => bytes / 2,
            Self::OneSide if near => 0,
            Self::OneSide | Self::Warm => bytes,
        }
    }
}

/// Bytes of a transfer.
const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The costs of registrations.
const COSTS: [(&str, Linear); 2] = [("nic", Linear::PAPER), ("io-uring", Linear::IO_URING)];

const FABRICS: [&str; 2] = ["shm", "iwarp"];

fn process_name(process: Process) -> &'static str {
    match process {
        Process::Frrwp => "frrwp",
        Process::Traditional => "traditional",
    }
}

fn size_name(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{}KiB", bytes >> 10) } else { format!("{}MiB", bytes >> 20) }
}

/// Returns the states that a size is measured in.
fn states(bytes: usize) -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(move |&state| state != State::HalfWarm || bytes > 4 << 10)
}

/// Everything there is to measure, in order: a part for each fabric, cost and size.
pub fn parts(write: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    for fabric in FABRICS {
        for (cost_name, cost) in COSTS {
            for bytes in SIZES {
                let name = format!("{fabric}/{cost_name}/{}", size_name(bytes));
                parts.push(part(name, TITLE, near::Ask { fabric, cost, bytes, write, peers: 1 }));
            }
        }
    }
    let (cost_name, cost) = COSTS[0];
    for fabric in FABRICS {
        for bytes in [64 << 10, 1 << 20] {
            let name = format!("copies/{fabric}/{cost_name}/{}", size_name(bytes));
            parts.push(part(name, COPIES_TITLE, near::Ask { fabric, cost, bytes, write: true, peers: COPIES }));
        }
    }
    parts
}

fn part(name: String, title: &'static str, ask: near::Ask) -> Part {
    let rows: Vec<_> = states(ask.bytes)
        .flat_map(|state| {
            let hidden = (state != State::Warm).then_some("hidden");
            ["p50", "p99"].into_iter().chain(hidden).map(move |what| format!("{}/{what}", state.name()))
        })
        .collect();
    let prefix = name.clone();
    Part::new(name, title, &rows, move |setting| {
        near::measure(setting, &ask, &prefix).map_err(|error| error.to_string())
    })
}

/// Returns what ours and the peer are, and the costs of the two models' registrations, a line each.
pub fn about() -> Vec<String> {
    let contestants =
        ["ours: FRRWP: both ends register at once", "peer: the traditional process: one end registers after the other"];
    let costs = COSTS.iter().map(|(name, cost)| format!("{name}: {cost}, spent computing, at the side that registers"));
    let copies =
        format!("copies: to {COPIES} peers at once; their registrations leave the CPU that they share to each other");
    contestants.map(String::from).into_iter().chain(costs).chain([copies]).collect()
}
