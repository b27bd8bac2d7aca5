//! A hash table whose older records are in memory, in a file by io_uring, or in far memory, side by side.
//!
//! Each store holds the same records, and is asked for the same keys, so chains are equally long. Far memory is measured twice: each record of a
//! chain by a one-sided read, and the whole chain by a walk at the server. So is the file: through the page cache, and past it.

mod log;
mod stores;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use log::{Log, Outcome, PAGE, RECORD, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdmakv_client::Client;
use rdmakv_client::far::{Memory, Options};
use stores::{Far, Local, Ram};

/// Compare a hash table's records in memory, in a file by io_uring, and in far memory.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  rdmakv-server --far 256m --fabric shm:@far &
  far-log --server shm:@far                       chains of 4 records
  far-log --server iwarp:10.0.0.1:7471 --chains 4096 --directory /mnt/nvme")]
struct Flags {
    /// A server with far memory
    #[arg(short, long, default_value = "shm:@rdmakv-11211")]
    server: String,
    /// Keys of the table
    #[arg(long, default_value_t = 200_000)]
    keys: u64,
    /// Chains of the index; a power of two
    #[arg(long, default_value_t = 65_536)]
    chains: usize,
    /// Pages of 4 KiB that stay in memory
    #[arg(long, default_value_t = 64)]
    tail: usize,
    /// How many keys are looked up
    #[arg(long, default_value_t = 100_000)]
    gets: u64,
    /// Runs of each store; the stores take turns
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The directory of the files
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("far-log: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Outcome<()> {
    let client = Client::new([&flags.server])?;
    let pages = flags.keys / (PAGE / RECORD) as u64 + 3;
    println!(
        "{} keys in {} chains, {} KiB in memory, {} KiB in the store, {} gets",
        flags.keys,
        flags.chains.next_power_of_two(),
        (flags.tail * PAGE) >> 10,
        (pages * PAGE as u64).saturating_sub((flags.tail * PAGE) as u64) >> 10,
        flags.gets
    );
    let mut rows: Vec<(&str, Vec<Measured>)> = NAMES.map(|name| (name, Vec::new())).into();
    for _ in 0..flags.runs.max(1) {
        for (name, runs) in &mut rows {
            match measure(name, &client, pages, flags) {
                Ok(measured) => runs.push(measured),
                // Not all file systems have direct access.
                Err(error) if *name == DIRECT => {
                    eprintln!("left out: {name} in {}: {error}", flags.directory.display())
                }
                Err(error) => return Err(error),
            }
        }
    }
    print_table(rows)
}

/// The stores, in the order in which each run has them.
const NAMES: [&str; 5] = ["memory", "file, page cache", DIRECT, "far memory, reads", "far memory, walks"];
const DIRECT: &str = "file, direct";

/// One run of a store: microseconds of a SET, of a GET, and of the slowest but one percent of GETs.
struct Measured {
    set: f64,
    get: f64,
    p99: f64,
}

/// Makes a store, measures it, and drops it.
fn measure(name: &str, client: &Client, pages: u64, flags: &Flags) -> Outcome<Measured> {
    match name {
        "memory" => run_once(name, &mut Ram::default(), flags),
        "file, page cache" => run_once(name, &mut Local::new(&flags.directory, false)?, flags),
        DIRECT => run_once(name, &mut Local::new(&flags.directory, true)?, flags),
        _ => {
            let memory = Memory::create(client, pages * PAGE as u64, &Options::default())?;
            let walks = name.ends_with("walks");
            let done = Far::new(&memory, walks).and_then(|mut store| run_once(name, &mut store, flags));
            memory.delete()?;
            done
        }
    }
}

/// Prints the median of each store's runs, and the least and the greatest.
fn print_table(rows: Vec<(&str, Vec<Measured>)>) -> Outcome<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{:<20}{:>26}{:>26}{:>26}{:>12}", "store", "set us", "get us", "get p99 us", "gets/s")?;
    for (name, runs) in rows.into_iter().filter(|(_, runs)| !runs.is_empty()) {
        let column = |of: fn(&Measured) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            let (least, median, greatest) = (all[0], all[all.len() / 2], all[all.len() - 1]);
            (median, format!("{median:.2} ({least:.2} to {greatest:.2})"))
        };
        let ((_, set), (get, gets), (_, p99)) = (column(|of| of.set), column(|of| of.get), column(|of| of.p99));
        writeln!(out, "{name:<20}{set:>26}{gets:>26}{p99:>26}{:>12.0}", 1e6 / get.max(1e-9))?;
    }
    Ok(())
}

/// Fills a table, asks for random keys, and returns how long that took.
fn run_once(name: &str, store: &mut dyn Store, flags: &Flags) -> Outcome<Measured> {
    let mut log = Log::new(store, flags.chains, flags.tail);
    let begun = Instant::now();
    for key in 0..flags.keys {
        log.set(key, key ^ 0x5555)?;
    }
    let set = begun.elapsed();
    let mut random = StdRng::seed_from_u64(1);
    let mut times: Vec<Duration> = Vec::with_capacity(flags.gets as usize);
    for _ in 0..flags.gets {
        let key = random.random_range(0..flags.keys.max(1));
        let begun = Instant::now();
        let value = log.get(key)?;
        times.push(begun.elapsed());
        if value != Some(key ^ 0x5555) {
            return Err(format!("{name}: key {key} has {value:?}").into());
        }
    }
    let sum = times.iter().sum::<Duration>().as_secs_f64();
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    let micros = |seconds: f64, count: u64| seconds * 1e6 / count.max(1) as f64;
    Ok(Measured {
        set: micros(set.as_secs_f64(), flags.keys),
        get: micros(sum, flags.gets),
        p99: p99.as_secs_f64() * 1e6,
    })
}
