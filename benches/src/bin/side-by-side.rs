//! Ours beside the peers, from one interleaved run on pinned threads. See [`benches::side_by_side`].

use benches::pin::Places;
use benches::side_by_side::report::{self, Row};
use benches::side_by_side::{self, Options, Subtest};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "side-by-side", about = "Measures ours beside its peers, in turns, on pinned threads", after_help = EXIT)]
struct Cli {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// The registration cache, beside UCX's
    Cache(Cache),
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Cache {
    /// Print JSON lines: name, ours, peer, unit, ratio
    #[arg(long)]
    json: bool,

    /// As short as can be: whether it runs, not what it takes
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,

    /// The most threads [default: one for each CPU, at most 16]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Seconds for each measurement, at least
    #[arg(long, value_name = "S", default_value_t = 4.0, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,

    /// Only what has this name, or this beginning of one (`hit/stride`); can be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// List the names and measure nothing
    #[arg(long)]
    list: bool,
}

const EXAMPLES: &str = "\
Units: `ns` is better the lower it is, `x` the higher, `count` the lower.
Ratios are ours / peer, of the best laps. Peer and ratio are null (`-` in tables) where
there is no peer.

Examples:
  side-by-side cache                          everything, one to two minutes
  side-by-side cache --quick                  whether it runs, in seconds
  side-by-side cache --only hit/stride        the first set of hits
  side-by-side cache --threads 1 --only churn --seconds 10
  side-by-side cache --json > figures.jsonl   for programs; who took part and progress go to stderr

Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

const EXIT: &str = "Exit status: 0 measured, 1 something could not be measured, 2 wrong usage.";

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0 to 3600".into()),
    }
}

fn main() -> ExitCode {
    let Cli { subject: Subject::Cache(cache) } = Cli::parse();
    match run(&cache) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read has seen enough.
        Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Stop::Output(error)) => failed(&format!("the figures could not be written: {error}")),
        Err(Stop::Measuring(error)) => failed(&error),
        Err(Stop::Usage(error)) => Cli::command().error(ErrorKind::InvalidValue, error).exit(),
    }
}

fn failed(error: &str) -> ExitCode {
    eprintln!("side-by-side: {error}");
    ExitCode::FAILURE
}

/// Why a run ends early.
enum Stop {
    Usage(String),
    Measuring(String),
    Output(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn run(cache: &Cache) -> Result<(), Stop> {
    let tests = chosen(&cache.only)?;
    let mut out = io::stdout().lock();
    if cache.list {
        for test in &tests {
            writeln!(out, "{}", test.name)?;
        }
        return Ok(());
    }
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let cpus = places.cpus.len();
    let most = cache.threads.unwrap_or(cpus.min(16));
    if most == 0 || most > cpus {
        return Err(Stop::Usage(format!(
            "--threads {most}: this process may use {cpus} CPUs, and each thread has its own"
        )));
    }
    let mut head = vec![places.describe(most)];
    head.extend(side_by_side::about());
    if cache.quick {
        head.push("A quick run: it shows that everything runs, its figures mean little.".into());
    }
    if cache.json {
        head.iter().for_each(|line| eprintln!("{line}"));
    } else {
        head.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        writeln!(out)?;
        out.flush()?;
    }
    let options = Options::new(places, most, cache.seconds, cache.quick);
    let count = tests.len();
    let mut table: Vec<Row> = Vec::new();
    for (index, test) in tests.iter().enumerate() {
        eprintln!("[{}/{count}] {}", index + 1, test.name);
        let rows = test.measure(&options).map_err(Stop::Measuring)?;
        if cache.json {
            report::json(&mut out, &rows)?;
        } else {
            table.extend(rows);
            if tests.get(index + 1).is_none_or(|next| next.group != test.group) {
                report::table(&mut out, test.group, &table)?;
                table.clear();
            }
        }
        out.flush()?;
    }
    Ok(())
}

/// The measurements that one of `only` names, or all.
fn chosen(only: &[String]) -> Result<Vec<Subtest>, Stop> {
    let mut tests = side_by_side::cache();
    for name in only {
        if !tests.iter().any(|test| test.is_named(name)) {
            let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
            return Err(Stop::Usage(format!(
                "--only {name}: no measurement has that name; there are {}",
                names.join(", ")
            )));
        }
    }
    tests.retain(|test| only.is_empty() || only.iter().any(|name| test.is_named(name)));
    Ok(tests)
}
