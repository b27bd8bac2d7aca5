//! `side-by-side cache`.

use super::output::Output;
use super::parts::measure;
use super::{Stop, seconds};
use crate::pin::Places;
use crate::side_by_side::cache;
use crate::side_by_side::part::{Part, Setting};
use clap::Args;
use std::io::{self, Write};
use std::time::Duration;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Cache {
    #[command(flatten)]
    output: Output,

    /// As short as can be: whether it runs, not what it takes
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,

    /// The most threads [default: one for each CPU, at most 16]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Seconds for each measurement, at least
    #[arg(long, value_name = "S", default_value_t = 4.0, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Only measurements of this name, or this beginning of one (`hit/stride`); or else only rows whose name has this
    /// in it (`p99.99`, `2-threads`). Can be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// List the names of the measurements and measure nothing
    #[arg(long)]
    list: bool,

    /// With --list: the names of the rows
    #[arg(long, requires = "list")]
    rows: bool,
}

const EXAMPLES: &str = "\
Measurements, for --only (--list --rows lists their rows):
  machine      what the machine's two threads do at best
  hit/LAYOUT/REGIONS
               LAYOUT is stride or irregular, REGIONS 1, 1000 or 100000;
               rows hit/…/N-threads[/evicting] and speedup/LAYOUT/REGIONS/N-threads[/evicting]
  churn        misses that evict: churn/1000-of-2000[/request|/watched]
  stall        a hit while another thread registers: stall/p50, p99, p99.99, p99.999
               [/alone|/beside-a-sleeper], stall/p99.99/added, stall/throughput
  bad-address  bad-address[/full]/attempts, evictions
  memory       what a region takes: memory/stride/100000[/watched], and so on
A row is measured with all rows of its measurement.

Units: `ns` is better the lower it is, `x` the higher, `count` and `B` the lower.
Ratios are ours / peer, of the best laps. Peer and ratio are null (`-` in tables) where
there is no peer, and the ratio where the laps of both overlap.

Examples:
  side-by-side cache                          everything, one to two minutes
  side-by-side cache --quick                  whether it runs, in seconds
  side-by-side cache --only hit/stride        the first set of hits
  side-by-side cache --only p99.99 --only 100000/2-threads
                                              these rows of all measurements
  side-by-side cache --threads 1 --only churn --seconds 10
  side-by-side cache --json > figures.jsonl   for programs; who took part and progress go to stderr

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

pub(super) fn run(flags: &Cache) -> Result<(), Stop> {
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let cpus = places.cpus.len();
    let most = flags.threads.unwrap_or(cpus.min(16));
    if most == 0 || most > cpus {
        return Err(Stop::Usage(format!(
            "--threads {most}: this process may use {cpus} CPUs, and each thread has its own"
        )));
    }
    let parts = chosen(cache::parts(&places, most), &flags.only)?;
    if flags.list {
        let mut out = io::stdout().lock();
        for part in &parts {
            if flags.rows {
                part.rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
            } else {
                writeln!(out, "{}", part.name)?;
            }
        }
        return Ok(());
    }
    let mut about = vec![places.describe(most)];
    about.extend(cache::about());
    let (near, far) = (places.cpus[0], places.cpus[most.min(2) - 1]);
    let rounds = if flags.quick { 4 } else { 25 };
    let whole = Duration::from_secs_f64(if flags.quick { 0.0 } else { flags.seconds });
    let setting = Setting { near, far, rounds, whole, quick: flags.quick };
    measure("cache", &flags.output, &setting, &parts, &about)
}

/// Returns the measurements that one of `only` names, or else those whose rows one names, with these rows; or all.
fn chosen(mut parts: Vec<Part>, only: &[String]) -> Result<Vec<Part>, Stop> {
    // A word that names measurements names no rows besides.
    let (of_parts, of_rows): (Vec<_>, Vec<_>) =
        only.iter().partition(|name| parts.iter().any(|part| part.is_named(name)));
    let has = |row: &str, name: &str| !name.is_empty() && row.contains(name);
    for name in &of_rows {
        if !parts.iter().any(|part| part.rows.iter().any(|row| has(row, name))) {
            let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
            return Err(Stop::Usage(format!(
                "--only {name}: no measurement has that name, and no row has it in its name; there are {}, and \
                 `--list --rows` lists the rows",
                names.join(", ")
            )));
        }
    }
    if !only.is_empty() {
        for part in &mut parts {
            let whole = of_parts.iter().any(|name| part.is_named(name));
            part.rows.retain(|row| whole || of_rows.iter().any(|name| has(row, name)));
        }
        parts.retain(|part| !part.rows.is_empty());
    }
    Ok(parts)
}
