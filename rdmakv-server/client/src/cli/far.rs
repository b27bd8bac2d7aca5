//! The commands about far memory.

use super::flags::{FarCommand, Load, ModuleCommand, RunCommand, Wanted};
use super::interrupt::measure_and_delete;
use super::{Failure, far_model};
use crate::Client;
use crate::far::configuration::Configuration;
use crate::far::modules::{ModuleError, StoredModule};
use crate::far::{Bucket, Cas64, Filter, Module, Procedure, RunEnd, RunError, Walk, bench, chain};
use crate::far::{Memory, MemoryError, Moved, Options, Secret};
use crate::far::{list_modules, remove_module, store_module};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// The variable with the secret of a memory: others see arguments.
const SECRET: &str = "RDMAKV_FAR_SECRET";

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::No(error.to_string())
    }
}

impl From<ModuleError> for Failure {
    fn from(error: ModuleError) -> Self {
        Self::No(error.to_string())
    }
}

pub(super) fn run(client: &Client, command: &FarCommand) -> Result<(), Failure> {
    match command {
        FarCommand::Create { name, size, seconds, wanted } => create(client, (name, *size, *seconds), *wanted),
        FarCommand::Delete { name } => Ok(open(client, name)?.delete()?),
        FarCommand::Migrate { name, from, to } => migrate(&mut open(client, name)?, from, to.as_deref()),
        FarCommand::Bench(load @ Load { chain: Some(nodes), .. }) => bench_chain(client, load, *nodes),
        FarCommand::Bench(load) => run_bench(client, load),
        FarCommand::Run { procedure } => {
            let (name, procedure) = procedure_of(procedure);
            run_procedure(&open(client, name)?, procedure)
        }
        FarCommand::Module { command } => match command {
            ModuleCommand::Add { name, file } => add_module(client, name, file),
            ModuleCommand::List => print_modules(client),
            ModuleCommand::Remove { name } => Ok(remove_module(client, name)?),
        },
        FarCommand::Model(survey) => far_model::survey(client, survey),
        FarCommand::Plan(level) => far_model::plan(client, level),
    }
}

fn create(client: &Client, (name, size, seconds): (&str, u64, u64), wanted: Wanted) -> Result<(), Failure> {
    let duration = Duration::from_secs(seconds);
    let options = Options { name: Some(name.to_owned()), duration, ..Options::default() };
    let (memory, chosen) = match (wanted.latency, wanted.throughput) {
        (Some(latency), Some(throughput)) => {
            let slo = far_model::slo(latency, throughput, wanted.record, wanted.reads)?;
            let (memory, chosen) = far_model::create_for(client, size, &slo, &options)?;
            (memory, Some(chosen))
        }
        _ => (Memory::create(client, size, &options)?, None),
    };
    let (secret, left) = (memory.secret(), memory.left().as_secs());
    let mut said = format!("name    {name}\nsecret  {secret}\nseconds {left}\n");
    if let Some(chosen) = chosen {
        said.push_str(&format!("plan    {chosen}\n"));
    }
    let mut out = io::stdout();
    let told = out.write_all(said.as_bytes()).and_then(|()| out.flush());
    if told.is_err() {
        // Without its secret it is of no use.
        memory.delete()?;
    }
    Ok(told?)
}

fn open(client: &Client, name: &str) -> Result<Memory, Failure> {
    let secret = std::env::var(SECRET).map_err(|_| {
        Failure::Usage(format!(
            "open far memory {name:?}: no secret is given: set the variable {SECRET} to that of `create`"
        ))
    })?;
    let secret: Secret = secret.trim().parse().map_err(|error| Failure::Usage(format!("{SECRET}: {error}")))?;
    Ok(Memory::open(client, name, secret, &Options::default())?)
}

/// Moves a memory's regions, and prints what was moved and where it is now.
fn migrate(memory: &mut Memory, from: &str, to: Option<&str>) -> Result<(), Failure> {
    let Moved { regions, lost, bytes, longest_pause } = memory.migrate(from, to)?;
    let mut out = io::stdout();
    let (mib, millis) = (bytes as f64 / f64::from(1 << 20), longest_pause.as_secs_f64() * 1e3);
    writeln!(
        out,
        "moved   {regions} regions, {mib} MiB; writes to a region would have paused for {millis:.2} ms at most"
    )?;
    for (server, regions) in memory.servers() {
        writeln!(out, "at      {server}: {regions} regions")?;
    }
    match lost {
        0 => Ok(()),
        lost => Err(Failure::No(format!("{lost} regions are lost: fill them again, and look at the servers' logs"))),
    }
}

/// Returns the name of a memory and a procedure of the command line.
fn procedure_of(of: &RunCommand) -> (&str, Procedure) {
    match *of {
        RunCommand::Walk { ref name, at, next, nodes, ref item } => {
            let key = item.key.clone().into_bytes();
            (name, Procedure::Walk(Walk { at, next, key_at: item.key_at, nodes, length: item.length, key }))
        }
        RunCommand::Bucket { ref name, at, entries, hash, ref item } => {
            let (key_at, length, key) = (item.key_at, item.length, item.key.clone().into_bytes());
            (name, Procedure::Bucket(Bucket { at, entries, first: 0, hash, key_at, length, item: 0, key }))
        }
        RunCommand::Filter { ref name, at, records, stride, field, least, greatest, pointer, from, length } => (
            name,
            Procedure::Filter(Filter { at, records, stride, field, least, greatest, pointer, from, length, found: 0 }),
        ),
        RunCommand::Cas64 { ref name, at, old, new } => (name, Procedure::Cas64(Cas64 { at, old, new })),
        RunCommand::Module { ref name, ref module, at, ref state } => {
            let (module, state) = (module.clone().into_bytes(), state.clone().into_bytes());
            (name, Procedure::Module(Module { at, name: module, state }))
        }
    }
}

fn add_module(client: &Client, name: &str, file: &Path) -> Result<(), Failure> {
    let code = std::fs::read(file).map_err(|error| Failure::No(format!("read {}: {error}", file.display())))?;
    Ok(store_module(client, name, &code)?)
}

fn print_modules(client: &Client) -> Result<(), Failure> {
    let mut out = io::stdout();
    for StoredModule { server, name, length } in list_modules(client)? {
        writeln!(out, "{server}\t{name}\t{length}")?;
    }
    Ok(())
}

/// Runs a procedure. One whose reply is full goes on.
fn run_procedure(memory: &Memory, procedure: Procedure) -> Result<(), Failure> {
    let mut runner = memory.runner();
    let swapped = match procedure {
        Procedure::Cas64(Cas64 { old, new, .. }) => Some((old, new)),
        _ => None,
    };
    let mut next = procedure;
    let (mut bytes, mut hops) = (0_u64, 0_u64);
    loop {
        let outcome = runner.call(next).map_err(|error| match error {
            RunError::Arguments { .. } => Failure::Usage(error.to_string()),
            error => Failure::No(error.to_string()),
        })?;
        io::stdout().write_all(&outcome.reply)?;
        (bytes, hops) = (bytes + u64::from(outcome.bytes), hops + u64::from(outcome.hops));
        match (outcome.end, outcome.rest) {
            (RunEnd::Full, Some(rest)) => next = rest,
            (RunEnd::Done, _) => {
                let at = outcome.at;
                if let Some((old, new)) = swapped {
                    return tell_swap(&outcome.reply, at, old, new);
                }
                let is_found = at != 0 || !outcome.reply.is_empty();
                let found = if is_found { format!("done at {at}") } else { "nothing found".to_owned() };
                let _ = writeln!(io::stderr(), "{found}: {bytes} bytes read, {hops} hops");
                return if is_found { Ok(()) } else { Err(Failure::No("there is no such key".to_owned())) };
            }
            (RunEnd::Fuel, _) => {
                let said =
                    "run far procedure: a step of the module takes longer than 50 us: divide it into shorter ones";
                return Err(Failure::No(said.to_owned()));
            }
            (RunEnd::Trap, _) => {
                let said = format!(
                    "run far procedure: the module trapped in its step at {}: look for an access outside of its memory, or a call \
                     of far behind cas64",
                    outcome.at
                );
                return Err(Failure::No(said));
            }
            (end, _) => {
                let limit = match end {
                    RunEnd::Hops => "hops",
                    RunEnd::Bytes => "bytes that are read",
                    _ => "time",
                };
                let said = format!(
                    "run far procedure: it came to the servers' limit of {limit} at {}: begin again there, or see whether \
                     the chain is a circle",
                    outcome.at
                );
                return Err(Failure::No(said));
            }
        }
    }
}

/// Tells whether a number was replaced.
fn tell_swap(reply: &[u8], at: u64, old: u64, new: u64) -> Result<(), Failure> {
    let was = reply.try_into().map(u64::from_le_bytes);
    let was = was.map_err(|_| Failure::No(format!("run far procedure: cas64 at {at}: its answer has no number")))?;
    if was == old {
        let _ = writeln!(io::stderr(), "replaced at {at}: {old} by {new}");
        return Ok(());
    }
    Err(Failure::No(format!("run far procedure: cas64 at {at}: it has {was}, not {old}: nothing was replaced")))
}

/// Measures a chain of records, and prints a row a way.
fn bench_chain(client: &Client, load: &Load, nodes: u32) -> Result<(), Failure> {
    let time = Duration::from_secs_f64(load.seconds);
    let options = Options { duration: time * 4 + Duration::from_secs(60), ..Options::default() };
    let memory = Memory::create(client, load.size, &options)?;
    let chain::Chained { read, reads, walk } = measure_and_delete(memory, |memory| {
        chain::measure(memory, nodes, load.record, time).map_err(|error| Failure::No(error.to_string()))
    })?;
    let mut out = io::stdout();
    let about = format!("{nodes} records of {} bytes", load.record);
    writeln!(out, "{about:<32}{:>10}{:>10}{:>10}{:>10}", "mean us", "median", "p99", "times")?;
    let each = format!("{nodes} reads, one after the other");
    for (name, of) in [("1 read", read), (&each[..], reads), ("1 walk", walk)] {
        let [mean, median, p99] = [of.point.mean, of.median, of.point.p99].map(|nanos| nanos / 1000.0);
        writeln!(out, "{name:<32}{mean:>10.2}{median:>10.2}{p99:>10.2}{:>10}", of.accesses)?;
    }
    let share = |of: bench::Measured| walk.median / of.median.max(1.0);
    writeln!(out, "a walk takes {:.2} x a read, {:.2} x the reads, by median", share(read), share(reads))?;
    Ok(())
}

fn run_bench(client: &Client, load: &Load) -> Result<(), Failure> {
    let Load { size, record, reads, lanes, depth, workers, batch, .. } = *load;
    if u64::from(record) > size {
        return Err(Failure::Usage(format!(
            "bench: a record of {record} bytes is longer than the memory: raise --size"
        )));
    }
    let batch = if workers == 0 { 1 } else { batch };
    let configuration = Configuration { workers, lanes, batch, depth };
    let load = bench::Load { record, reads, time: Duration::from_secs_f64(load.seconds) };
    let bench::Measured { point, median, accesses } = far_model::measured(client, size, &configuration, &load)?;
    let micros = |nanos: f64| nanos / 1000.0;
    writeln!(
        io::stdout(),
        "{configuration}; records of {record} bytes, {:.0} % reads, {accesses} accesses\n\
         throughput  {:.0} accesses/s\n\
         mean        {:.2} us\n\
         median      {:.2} us\n\
         p99         {:.2} us",
        reads * 100.0,
        point.throughput,
        micros(point.mean),
        micros(median),
        micros(point.p99)
    )?;
    Ok(())
}
