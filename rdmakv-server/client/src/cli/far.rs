//! The commands about far memory.

use super::flags::{FarCommand, Load, Wanted};
use super::{Failure, far_model};
use crate::Client;
use crate::far::bench;
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
        FarCommand::Create { name, size, seconds, wanted } => create(client, (name, *size, *seconds), *wanted),
        FarCommand::Delete { name } => Ok(open(client, name)?.delete()?),
        FarCommand::Bench(load) => run_bench(client, load),
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
    let mut out = io::stdout();
    writeln!(out, "name    {name}\nsecret  {secret}\nseconds {left}")?;
    if let Some(chosen) = chosen {
        writeln!(out, "plan    {chosen}")?;
    }
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
