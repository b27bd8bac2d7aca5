//! The commands that measure a model of far memory, and plan by it.

use super::Failure;
use super::flags::{Level, ModelFile, Survey};
use super::interrupt::{guard, measure_and_delete};
use crate::Client;
use crate::far::bench;
use crate::far::configuration::{Configuration, Limits, Prices};
use crate::far::measure;
use crate::far::model::Operation;
use crate::far::picture::picture;
use crate::far::samples::Samples;
use crate::far::search::{Near, Prediction, cheapest, nearest};
use crate::far::slo::Slo;
use crate::far::{DEPTH_MAX, Memory, Options, Terms, create_guarded};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The file of a user's model, below the folder for data.
const FILE: &str = "rdmakv/far/model.csv";

/// Returns the file, and whether its machine may be another one.
fn path(file: &ModelFile) -> Result<PathBuf, Failure> {
    if let Some(file) = &file.file {
        return Ok(file.clone());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    let data = data.ok_or_else(|| {
        Failure::Usage("find far model: neither XDG_DATA_HOME nor HOME is set: name the file by --file".to_owned())
    })?;
    Ok(data.join(FILE))
}

/// Returns the name of this machine in models.
fn machine() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {processors} processors", name.trim())
}

/// Measures the fabric of the memory's servers, and keeps the other fabrics of the file.
pub(super) fn survey(client: &Client, survey: &Survey) -> Result<(), Failure> {
    let path = path(&survey.file)?;
    let mut all = match fs::read_to_string(&path) {
        // One of another machine or form is replaced.
        Ok(text) => Samples::from_text(&text).ok().filter(|all| all.machine == machine()).unwrap_or_default(),
        Err(_) => Samples::default(),
    };
    let options = Options { duration: Duration::from_secs(24 * 3600), ..Options::default() };
    let memory = Memory::create(client, survey.size, &options)?;
    let fabric = memory.fabric();
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let workers = memory.workers().min(survey.workers.unwrap_or(u32::MAX));
    let limits = Limits { workers, lanes: survey.lanes.unwrap_or(processors), depth: survey.depth };
    let points = (&[Operation::Read, Operation::Write][..], &measure::RECORDS[..]);
    let time = Duration::from_millis(survey.millis);
    let samples = measure_and_delete(memory, |memory| {
        let measured = measure::samples(memory, &limits, points, time, |operation, record, of| {
            let operation = if operation == Operation::Read { "reads" } else { "writes" };
            let _ = writeln!(io::stderr(), "{fabric}: {operation} of {record} bytes, {of}");
        });
        measured.map_err(|error| Failure::No(error.to_string()))
    })?;
    let count = samples.len();
    all.machine = machine();
    env!("CARGO_PKG_VERSION").clone_into(&mut all.versions);
    all.fabrics.insert(fabric.to_owned(), samples);
    let failed = |error: io::Error| Failure::Io(format!("write far model {}: {error}", path.display()));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // Whole or not at all.
    let new = path.with_extension("new");
    fs::write(&new, all.to_text()).and_then(|()| fs::rename(&new, &path)).map_err(failed)?;
    writeln!(io::stdout(), "{count} points of {fabric} in {}", path.display())?;
    Ok(())
}

/// Returns a service level, with the latency in microseconds.
pub(super) fn slo(latency: f64, throughput: f64, record: u32, reads: f64) -> Result<Slo, Failure> {
    let slo = Slo::new(Duration::from_secs_f64(latency / 1e6), throughput, record, reads);
    slo.map_err(|error| Failure::Usage(error.to_string()))
}

/// Makes a memory for a level, by the model of this machine if there is one, or else by measuring.
pub(super) fn create_for(
    client: &Client,
    size: u64,
    slo: &Slo,
    options: &Options,
) -> Result<(Memory, Prediction), Failure> {
    let file = path(&ModelFile { file: None, any_machine: false }).and_then(|path| Ok(fs::read_to_string(path)?));
    let samples = file.ok().and_then(|text| Samples::from_text(&text).ok());
    let model = samples.zip(client.far_fabric());
    let model = model.and_then(|(samples, fabric)| samples.model(fabric, Some(&machine())).ok().flatten());
    if model.is_none() {
        let _ = writeln!(io::stderr(), "no model of this machine: measuring; `rdmakv far model` keeps one");
    }
    let terms = Terms { model: model.as_ref(), ..Terms::default() };
    let made = create_guarded(client, size, slo, &terms, (options, |memory: &Memory| guard(memory).ok()));
    made.map_err(|error| Failure::No(error.to_string()))
}

/// Measures a choice at the servers, and tells whether it meets the level.
fn check(client: &Client, size: u64, slo: &Slo, of: &Configuration) -> Result<(), Failure> {
    let load = bench::Load { record: slo.record(), reads: slo.reads(), time: Duration::from_secs(1) };
    let bench::Measured { point, .. } = measured(client, size, of, &load)?;
    let is_met = point.throughput >= slo.throughput() && point.mean <= slo.latency().as_secs_f64() * 1e9;
    let measured = format!("measured: {:.0} operations/s, {:.1} us", point.throughput, point.mean / 1e3);
    if !is_met {
        return Err(Failure::No(format!("{measured}: it misses the level: make the model again, or ask for less")));
    }
    writeln!(io::stdout(), "{measured}: it meets the level")?;
    Ok(())
}

/// Prints the cheapest configuration that meets a level, and what is nearest below its cost.
pub(super) fn plan(client: &Client, level: &Level) -> Result<(), Failure> {
    let Level { latency, throughput, record, reads, ref fabric, lanes, workers, check: is_checked, ref file, .. } =
        *level;
    let path = path(file)?;
    let text = fs::read_to_string(&path).map_err(|error| {
        Failure::No(format!("read far model {}: {error}: make one with `rdmakv far model`", path.display()))
    })?;
    let samples = Samples::from_text(&text).map_err(|error| Failure::No(error.to_string()))?;
    let here = machine();
    let machine = if file.any_machine { None } else { Some(here.as_str()) };
    let model = samples.model(fabric, machine).map_err(|error| Failure::No(error.to_string()))?;
    let model = model.ok_or_else(|| {
        Failure::No(format!("plan far memory: {} has no {fabric}: measure it with `rdmakv far model`", path.display()))
    })?;
    let slo = slo(latency, throughput, record, reads)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let workers = workers.unwrap_or(u32::MAX).min(model.workers());
    let limits = Limits { workers, lanes: lanes.unwrap_or(processors), depth: DEPTH_MAX };
    let prices = Prices::default();
    let found = cheapest(&model, &slo, &limits, &prices);
    let drawn = level.picture.as_ref().map_or(Ok(()), |file| {
        let drawn = picture(&model, &slo, &limits, &prices, found.as_ref().ok());
        let no_picture = |error| {
            Failure::Io(format!("write the picture {}: {error}: name a file that can be written", file.display()))
        };
        fs::write(file, drawn).map_err(no_picture)
    });
    let chosen = found.map_err(|error| Failure::No(error.to_string()))?;
    let mut out = io::stdout();
    writeln!(out, "{chosen}")?;
    let Configuration { workers, lanes, batch, depth } = chosen.configuration;
    let server = client.far_server(fabric).map_or_else(|| address_of(fabric), ToString::to_string);
    write!(
        out,
        "try it: rdmakv -s {server} far bench --record {record} --reads {reads} --lanes {lanes} --depth {depth}"
    )?;
    if !chosen.configuration.is_one_sided() {
        write!(out, " --workers {workers} --batch {batch}")?;
    }
    writeln!(out)?;
    let Near { by_throughput, by_latency } = nearest(&model, &slo, &limits, &prices, chosen.cost);
    let cheaper = [("in time, too few operations", by_throughput), ("fast enough, too late", by_latency)];
    for (what, near) in cheaper.into_iter().filter_map(|(what, near)| Some((what, near?))) {
        writeln!(out, "cheaper, {what}: {near}")?;
    }
    // The plan is told all the same.
    drawn?;
    if !is_checked {
        return Ok(());
    }
    match client.far_fabric() {
        Some(reached) if reached != fabric.as_str() => Err(Failure::Usage(format!(
            "check the plan: it is for {fabric}, and the server is reached over {reached}: name it by -s {}, or plan for \
             --fabric {reached}",
            address_of(fabric)
        ))),
        _ => check(client, level.size, &slo, &chosen.configuration),
    }
}

/// Returns the form of a server's address on a fabric.
fn address_of(fabric: &str) -> String {
    match fabric {
        "shm" => "shm:@NAME".to_owned(),
        fabric => format!("{fabric}:HOST:PORT"),
    }
}

/// Makes a memory, measures a configuration, and deletes the memory.
pub(super) fn measured(
    client: &Client,
    size: u64,
    of: &Configuration,
    load: &bench::Load,
) -> Result<bench::Measured, Failure> {
    let Configuration { workers, lanes, batch, depth } = *of;
    let under_way = u64::from(lanes) * u64::from(depth) * u64::from(batch);
    let buffers = (under_way * u64::from(load.record.max(512)) * 2).saturating_add(16 << 20);
    let options = Options {
        duration: load.time * 2 + Duration::from_secs(60),
        depth,
        workers,
        batch,
        buffers: usize::try_from(buffers).unwrap_or(usize::MAX),
        ..Options::default()
    };
    let memory = Memory::create(client, size, &options)?;
    measure_and_delete(memory, |memory| bench_lanes(memory, of, load))
}

fn bench_lanes(memory: &Memory, of: &Configuration, load: &bench::Load) -> Result<bench::Measured, Failure> {
    let mut lanes = (0..of.lanes).map(|_| memory.lane()).collect::<Result<Vec<_>, _>>()?;
    bench::measure(&mut lanes, memory.capacity(), of, load).map_err(|error| Failure::No(error.to_string()))
}
