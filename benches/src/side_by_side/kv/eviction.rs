//! How often what is asked for is not there: a trace is replayed, and what is missing is set.

use super::client::Client;
use super::contestants;
use super::objects::{self, Objects};
use super::server::{Server, Whose};
use crate::side_by_side::figure::Figure;
use crate::side_by_side::part::{Part, Setting};
use crate::side_by_side::remote::Outcome;
use crate::side_by_side::report::{Row, Unit};
use std::path::{Path, PathBuf};

/// Above the table.
const TITLE: &str =
    "A trace replayed, what is missing set: the share of requests that miss, and what is resident at the end";

/// Traces that are replayed, with the megabytes that the servers get.
const USUAL: [(&str, &[u64]); 3] = [
    ("adaptsize_request.trace.xz", &[8, 32, 64, 128]),
    ("nasa_19950701_10k.tsv.zst", &[4, 16]),
    ("cloudPhysicsIO.oracleGeneral.bin.zst", &[64, 256, 512]),
];

/// Returns the measurements: of the files named `FILE:MEGABYTES`, else of the traces beside the repository.
///
/// # Errors
/// A file that is not so named.
pub(super) fn parts(named: &[String]) -> Result<Vec<Part>, String> {
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    for name in named {
        let split = name.rsplit_once(':').and_then(|(file, megabytes)| Some((file, megabytes.parse::<u64>().ok()?)));
        let (file, megabytes) = split.ok_or_else(|| format!("{name}: a file and megabytes are needed: FILE:64"))?;
        files.push((file.into(), megabytes));
    }
    if named.is_empty()
        && let Some(folder) = objects::folder()
    {
        for (file, sizes) in USUAL {
            files.extend(sizes.iter().map(|&megabytes| (folder.join(file), megabytes)));
        }
    }
    let part = |(file, megabytes): (PathBuf, u64)| {
        let name = row_name(&file, megabytes);
        Part::new(name, TITLE, &["misses", "resident"], move |setting| {
            measure(setting, &file, megabytes).map_err(|error| error.to_string())
        })
    };
    Ok(files.into_iter().map(part).collect())
}

fn row_name(file: &Path, megabytes: u64) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("eviction/{}/{megabytes}MB", name.split('.').next().unwrap_or_default())
}

/// The result of a replay.
struct Replay {
    misses: f64,
    resident: f64,
}

fn measure(setting: &Setting, file: &Path, megabytes: u64) -> Outcome<Vec<Row>> {
    let mut objects = Objects::read(file)?;
    if setting.quick {
        objects.requests.truncate(2000);
    }
    if objects.requests.is_empty() {
        return Err(format!("{}: nothing in it is asked for", file.display()).into());
    }
    let replay = |whose| replay(whose, setting.far, megabytes, &objects);
    let replays = contestants().into_iter().map(replay).collect::<Outcome<Vec<_>>>()?;
    let row = |what: &str, unit, of: fn(&Replay) -> f64| {
        let one = |replay: &Replay| Figure::once(of(replay));
        let name = format!("{}/{what}", row_name(file, megabytes));
        Row::new(name, one(&replays[0]), replays.get(1).map(one), unit)
    };
    Ok(vec![
        row("misses", Unit::Share, |replay| replay.misses),
        row("resident", Unit::Mebibytes, |replay| replay.resident / f64::from(1 << 20)),
    ])
}

fn replay(whose: Whose, cpu: usize, megabytes: u64, objects: &Objects) -> Outcome<Replay> {
    let server = Server::start(whose, cpu, &["-m", &megabytes.to_string()])?;
    let mut client = Client::connect(&server.address)?;
    let value = vec![b'v'; objects.sizes.iter().copied().max().unwrap_or(0) as usize];
    let mut misses = 0_u64;
    for &number in &objects.requests {
        let key = Objects::key(number);
        if !client.get(&key)? {
            misses += 1;
            client.set(&key, &value[..objects.sizes[number as usize] as usize])?;
        }
    }
    Ok(Replay { misses: misses as f64 / objects.requests.len() as f64, resident: server.resident()? as f64 })
}
