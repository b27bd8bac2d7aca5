//! The commands about far memory.

use super::flags::{FarCommand, Load};
use super::{Failure, far_model};
use crate::Client;
use crate::far::bench::{self, measure};
use crate::far::configuration::Configuration;
use crate::far::{Memory, MemoryError, Options, Secret};
use std::io::{self, Write};
use std::time::Duration;

/// The variable with the secret of a memory: others see arguments.
const SECRET: &str = "RDMAKV_FAR_SECRET";

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::No(error.to_string())
    }
}

pub(super) fn run(client: &Client, command: &FarCommand) -> Result<(), Failure> {
    match command {
        FarCommand::Create { name, size, seconds } => create(client, name, *size, *seconds),
        FarCommand::Delete { name } => Ok(open(client, name)?.delete()?),
        FarCommand::Bench(load) => run_bench(client, load),
        FarCommand::Model(survey) => far_model::survey(client, survey),
        FarCommand::Plan(level) => far_model::plan(level),
    }
}

fn create(client: &Client, name: &str, size: u64, seconds: u64) -> Result<(), Failure> {
    let duration = Duration::from_secs(seconds);
    let options = Options { name: Some(name.to_owned()), duration, ..Options::default() };
    let memory = Memory::create(client, size, &options)?;
    let (secret, left) = (memory.secret(), memory.left().as_secs());
    writeln!(io::stdout(), "name    {name}\nsecret  {secret}\nseconds {left}")?;
    Ok(())
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

fn run_bench(client: &Client, load: &Load) -> Result<(), Failure> {
    let Load { size, record, reads, lanes, depth, workers, batch, seconds } = *load;
    if u64::from(record) > size {
        return Err(Failure::Usage(format!(
            "bench: a record of {record} bytes is longer than the memory: raise --size"
        )));
    }
    let batch = if workers == 0 { 1 } else { batch };
    let configuration = Configuration { workers, lanes, batch, depth };
    let under_way = u64::from(lanes) * u64::from(depth) * u64::from(batch);
    let buffers = (under_way * u64::from(record.max(512)) * 2).saturating_add(16 << 20);
    let options = Options {
        duration: Duration::from_secs_f64(seconds * 2.0 + 60.0),
        depth,
        workers,
        batch,
        buffers: usize::try_from(buffers).unwrap_or(usize::MAX),
        ..Options::default()
    };
    let memory = Memory::create(client, size, &options)?;
    let measured = bench_lanes(&memory, &configuration, load);
    // Also after a failure: else it would take its room until its time is over.
    let deleted = memory.delete();
    let bench::Measured { point, median, accesses } = measured?;
    deleted?;
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

fn bench_lanes(memory: &Memory, of: &Configuration, load: &Load) -> Result<bench::Measured, Failure> {
    let mut lanes = (0..of.lanes).map(|_| memory.lane()).collect::<Result<Vec<_>, _>>()?;
    let &Load { record, reads, seconds, .. } = load;
    let load = bench::Load { record, reads, time: Duration::from_secs_f64(seconds) };
    measure(&mut lanes, memory.capacity(), of, &load).map_err(|error| Failure::No(error.to_string()))
}
