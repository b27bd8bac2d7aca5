//! `side-by-side cache`.

use super::output::Output;
use super::{Stop, seconds};
use crate::pin::Places;
use crate::side_by_side::{self, Options, Subtest};
use clap::Args;
use std::io::{self, Write};

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
A row is measured with all rows of its measurement.

Units: `ns` is better the lower it is, `x` the higher, `count` the lower.
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

pub(super) fn run(cache: &Cache) -> Result<(), Stop> {
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let cpus = places.cpus.len();
    let most = cache.threads.unwrap_or(cpus.min(16));
    if most == 0 || most > cpus {
        return Err(Stop::Usage(format!(
            "--threads {most}: this process may use {cpus} CPUs, and each thread has its own"
        )));
    }
    let tests = chosen(&cache.only, most)?;
    if cache.list {
        let mut out = io::stdout().lock();
        for Chosen { test, rows } in &tests {
            if cache.rows {
                rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
            } else {
                writeln!(out, "{}", test.name)?;
            }
        }
        return Ok(());
    }
    let mut about = vec![places.describe(most)];
    about.extend(side_by_side::about());
    let mut teller = cache.output.begin("cache", &about, cache.quick)?;
    let options = Options::new(places, most, cache.seconds, cache.quick);
    let count = tests.len();
    for (index, Chosen { test, rows: wanted }) in tests.iter().enumerate() {
        eprintln!("[{}/{count}] {}", index + 1, test.name);
        let mut rows = test.measure(&options).map_err(Stop::Measuring)?;
        rows.retain(|row| wanted.contains(&row.name));
        teller.rows(test.group, rows)?;
    }
    teller.end()
}

/// A measurement, and which of its rows are shown.
struct Chosen {
    test: Subtest,
    rows: Vec<String>,
}

/// The measurements and rows that one of `only` names, or all.
fn chosen(only: &[String], most_threads: usize) -> Result<Vec<Chosen>, Stop> {
    let all = side_by_side::cache().into_iter();
    let mut tests: Vec<_> = all.map(|test| Chosen { rows: test.row_names(most_threads), test }).collect();
    let names_a_test = |name: &str| side_by_side::cache().iter().any(|test| test.is_named(name));
    // What names measurements names no rows besides.
    let (of_tests, of_rows): (Vec<_>, Vec<_>) = only.iter().partition(|name| names_a_test(name));
    let has = |row: &str, name: &str| !name.is_empty() && row.contains(name);
    for name in &of_rows {
        if !tests.iter().any(|Chosen { rows, .. }| rows.iter().any(|row| has(row, name))) {
            let names: Vec<_> = tests.iter().map(|Chosen { test, .. }| test.name.as_str()).collect();
            return Err(Stop::Usage(format!(
                "--only {name}: no measurement has that name, and no row has it in its name; there are {}, and \
                 `--list --rows` lists the rows",
                names.join(", ")
            )));
        }
    }
    if !only.is_empty() {
        for Chosen { test, rows } in &mut tests {
            let whole = of_tests.iter().any(|name| test.is_named(name));
            rows.retain(|row| whole || of_rows.iter().any(|name| has(row, name)));
        }
        tests.retain(|Chosen { rows, .. }| !rows.is_empty());
    }
    Ok(tests)
}
