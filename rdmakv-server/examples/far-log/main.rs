//! A hash table whose older records are in memory, in a file by io_uring, or in far memory, side by side.
//!
//! Each store holds the same records, and is asked for the same keys, so chains are equally long. Far memory is measured twice: each record of a
//! chain by a one-sided read, and the whole chain by a walk at the server.

mod log;
mod stores;

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
    /// The directory of the file
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
    println!("{:<24}{:>12}{:>12}{:>12}{:>12}", "store", "set us", "get us", "get p99", "gets/s");
    row("memory", &mut Ram::default(), flags)?;
    row("file, io_uring", &mut Local::new(&flags.directory)?, flags)?;
    for (name, walks) in [("far memory, reads", false), ("far memory, walks", true)] {
        let memory = Memory::create(&client, pages * PAGE as u64, &Options::default())?;
        let done = Far::new(&memory, walks).and_then(|mut store| row(name, &mut store, flags));
        memory.delete()?;
        done?;
    }
    Ok(())
}

/// Fills a table, asks for random keys, and prints how long that took.
fn row(name: &str, store: &mut dyn Store, flags: &Flags) -> Outcome<()> {
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
    println!(
        "{name:<24}{:>12.2}{:>12.2}{:>12.2}{:>12.0}",
        micros(set.as_secs_f64(), flags.keys),
        micros(sum, flags.gets),
        p99.as_secs_f64() * 1e6,
        flags.gets as f64 / sum.max(1e-9)
    );
    Ok(())
}
