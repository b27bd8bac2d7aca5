//! `side-by-side sim`.

use super::Stop;
use super::output::Output;
use crate::peer::libcachesim::{Environment, VERSION};
use crate::pin::Places;
use crate::side_by_side::sim::instructions::Instructions;
use crate::side_by_side::sim::{self, Options};
use clap::Args;
use std::path::{Path, PathBuf};
use traces::generate::zipf;
use tracesim::policies::{PolicyEntry, UnknownPolicy};
use tracesim::sizes::Capacity;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Sim {
    #[command(flatten)]
    output: Output,

    /// A hundredth of the trace, once: whether it runs, not what it takes
    #[arg(long, conflicts_with_all = ["requests", "objects", "rounds"])]
    quick: bool,

    /// Requests in the trace
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    requests: u64,

    /// Objects, of 1 to 32 pages [default: a tenth of the requests]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1 << 27))]
    objects: Option<u32>,

    /// Room, as for tracesim: 8192p, 32MiB, or 5% of the footprint
    #[arg(long, value_name = "SIZE", default_value = "1%")]
    capacity: Capacity,

    /// Policies; several with commas [default: pindown,fifo,sieve,s3fifo,gdsf,mrrc,probation]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<PolicyEntry>,

    /// Laps of each, behind one that warms up; the best counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Count instructions a request too, by perf or valgrind: takes minutes with the latter
    #[arg(long)]
    instructions: bool,

    /// Folder of the trace and libCacheSim [default: side-by-side in the folder of this build]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Rows: sim/read, and for each policy sim/POLICY/replay, sim/POLICY/misses and, with --instructions,
sim/POLICY/instructions. sim/POLICY/command is of whole processes: ours is tracesim replay --json
--no-bound with its start, reading, footprint and output; the peer is Python with its start. Its
CPU is the kernel's for it too. Units: `M/s` (million requests a second of CPU, in other rows of
user CPU) is better the higher it is, `share` and `count` the lower. Ratios are ours / peer, of the best laps. Peer and ratio are
null (`-` in tables) where there is no peer, and the ratio where the laps of both overlap.

The peer is the Python package libcachesim, which is installed into an environment of its own the
first time: python3 with venv and a package index that pip reaches. PYTHON names another
interpreter; PYTHON=none does without. The trace takes 24 bytes a request.

Examples:
  side-by-side sim                              some two minutes
  side-by-side sim --policy pindown,sieve --rounds 10
  side-by-side sim --quick --instructions --json > figures.jsonl

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

pub(super) fn run(sim: &Sim) -> Result<(), Stop> {
    let options = options(sim)?;
    let environment = Environment::prepare(&options.folder);
    let mut head = vec![format!("ours: tracesim {}, pages of 4 KiB", env!("CARGO_PKG_VERSION"))];
    head.push(match &environment {
        Ok(_) => format!("peer: libCacheSim {VERSION}, by its Python package"),
        Err(why) => format!("peer: none, as there is no libCacheSim: {why}"),
    });
    let environment = environment.ok();
    let policies = options.policies.clone();
    let instructions = if sim.instructions { Some(Instructions::new(&options, environment.as_ref())) } else { None };
    head.extend(match &instructions {
        None => Some("Instructions are not counted: --instructions does that.".into()),
        Some(Err(why)) => Some(format!("Instructions are left out: {why}.")),
        Some(Ok(_)) => None,
    });
    let mut measured = sim::Sim::new(options, environment.as_ref()).map_err(Stop::Measuring)?;
    head.push(measured.about());
    let mut teller = sim.output.begin("sim", &head, sim.quick)?;
    teller.rows(sim::TITLE, vec![measured.read()])?;
    for (nth, policy) in policies.iter().enumerate() {
        eprintln!("[{}/{}] {policy}", nth + 1, policies.len());
        let mut rows = measured.measure(policy).map_err(Stop::Measuring)?;
        if let Some(Ok(instructions)) = &instructions {
            rows.push(instructions.measure(policy).map_err(Stop::Measuring)?);
        }
        teller.rows(sim::TITLE, rows)?;
    }
    let commands = measured.commands();
    for (nth, policy) in policies.iter().enumerate() {
        eprintln!("[{}/{}] {policy}, whole commands", nth + 1, policies.len());
        teller.rows(sim::commands::TITLE, vec![commands.measure(policy).map_err(Stop::Measuring)?])?;
    }
    teller.end()
}

fn usual() -> Result<Vec<PolicyEntry>, Stop> {
    let usual: Result<_, UnknownPolicy> = sim::USUAL.iter().map(|name| name.parse()).collect();
    usual.map_err(|error| Stop::Measuring(error.to_string()))
}

fn options(sim: &Sim) -> Result<Options, Stop> {
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let cpu = *places.cpus.first().ok_or_else(|| Stop::Measuring("this process may use no CPU".into()))?;
    let requests = if sim.quick { 100_000 } else { sim.requests };
    let tenth = u32::try_from(requests / 10).unwrap_or(u32::MAX).clamp(1, (1 << 27) - 1);
    Ok(Options {
        workload: zipf::Options { objects: sim.objects.unwrap_or(tenth), requests, ..zipf::Options::default() },
        policies: if sim.policy.is_empty() { usual()? } else { sim.policy.clone() },
        capacity: sim.capacity.clone(),
        rounds: if sim.quick { 1 } else { sim.rounds as usize },
        folder: sim.folder.clone().or_else(beside_the_build).unwrap_or_else(|| "target/side-by-side".into()),
        cpu,
    })
}

/// Returns a folder in that of the build, which holds this program in a folder of its own.
fn beside_the_build() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent().and_then(Path::parent)?.join("side-by-side"))
}
