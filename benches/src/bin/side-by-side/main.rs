//! Ours beside the peers, from one interleaved run on pinned threads. See [`benches::side_by_side`].

mod parts;
mod sim;

use benches::pin::Places;
use benches::side_by_side::far;
use benches::side_by_side::kv::OURS;
use benches::side_by_side::report::{self, Row};
use benches::side_by_side::sim::instructions;
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
    /// The simulator, beside libCacheSim
    Sim(sim::Sim),
    /// The fabrics: shared memory beside memcpy, iWARP beside plain TCP
    Fabric(parts::Fabric),
    /// FRRWP beside the traditional process, over both fabrics
    Handshake(parts::Handshake),
    /// The key-value server, beside memcached
    Kv(parts::Kv),
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
there is no peer.

Examples:
  side-by-side cache                          everything, one to two minutes
  side-by-side cache --quick                  whether it runs, in seconds
  side-by-side cache --only hit/stride        the first set of hits
  side-by-side cache --only p99.99 --only 100000/2-threads
                                              these rows of all measurements
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
    // Our server: this program under its name.
    if std::env::args_os().next().is_some_and(|name| name == OURS) {
        return rdmakv_server::server::main();
    }
    // Its own process, started to have its instructions counted: nobody types this.
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == instructions::LAP
    {
        return instructions::lap(rest).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    // The other end of a connection: nobody types this either.
    if let Some((first, rest)) = arguments.split_first()
        && first == far::FAR
    {
        return far::run(rest).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    }
    let done = match &Cli::parse().subject {
        Subject::Cache(cache) => run(cache),
        Subject::Sim(sim) => sim::run(sim),
        Subject::Fabric(fabric) => parts::fabric(fabric),
        Subject::Handshake(handshake) => parts::handshake(handshake),
        Subject::Kv(kv) => parts::kv(kv),
    };
    match done {
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
    let places = Places::look().map_err(|error| Stop::Measuring(format!("sched_getaffinity: {error}")))?;
    let cpus = places.cpus.len();
    let most = cache.threads.unwrap_or(cpus.min(16));
    if most == 0 || most > cpus {
        return Err(Stop::Usage(format!(
            "--threads {most}: this process may use {cpus} CPUs, and each thread has its own"
        )));
    }
    let tests = chosen(&cache.only, most)?;
    let mut out = io::stdout().lock();
    if cache.list {
        for Chosen { test, rows } in &tests {
            if cache.rows {
                rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
            } else {
                writeln!(out, "{}", test.name)?;
            }
        }
        return Ok(());
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
    for (index, Chosen { test, rows: wanted }) in tests.iter().enumerate() {
        eprintln!("[{}/{count}] {}", index + 1, test.name);
        let mut rows = test.measure(&options).map_err(Stop::Measuring)?;
        rows.retain(|row| wanted.contains(&row.name));
        if cache.json {
            report::json(&mut out, &rows)?;
        } else {
            table.extend(rows);
            if tests.get(index + 1).is_none_or(|next| next.test.group != test.group) {
                report::table(&mut out, test.group, &table)?;
                table.clear();
            }
        }
        out.flush()?;
    }
    Ok(())
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
