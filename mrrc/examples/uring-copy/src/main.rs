//! Copies a file by io_uring, through buffers that change, and prints what a cache of registrations gains.
//!
//! The lesson: the kernel must pin a buffer before a disk may write into it. With plain buffers it does so for
//! each transfer anew; with *fixed* buffers the program pins (registers) them ahead and transfers name them by
//! number. But which buffer comes next is rarely known, so a program would register for each transfer, which takes
//! as long as it saves. [`mrrc::Cache`] keeps registered what is used again. Three things make a program use it: a
//! cache over the ring ([`Pins::cached`]), a lease before a transfer ([`Pins::hold`]), and the lease dropped when
//! the transfer's completion was seen ([`copy::Lane`]). `pins.rs` is the part to copy from.
//!
//! ```text
//! cargo run --release -p uring-copy             # a file of its own, in the temporary directory
//! cargo run --release -p uring-copy -- FROM TO  # copy this file
//! cargo run --release -p uring-copy -- --help
//! ```
//!
//! The three ways take turns, so that what else the machine does hits all of them, and each copy is compared with its
//! original. The files are opened with `O_DIRECT`: transfers by way of the page cache copy bytes and pin nothing, so
//! there is nothing to gain (`--buffered` shows that).

mod copy;
mod files;
mod pins;
mod pool;
mod report;

use clap::Parser;
use copy::Way;
use files::Job;
use mrrc::PAGE;
use pins::Pins;
use pool::{Draw, Pool};
use report::{Sample, cpu_time, report, stay_on_one_cpu};
use std::error::Error;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Copies a file by io_uring in three ways and says what each costs: plain buffers, buffers registered for each
/// chunk, and buffers that a cache keeps registered.
///
/// Variables of the cache, like MRRC_CAPACITY, MRRC_POLICY and MRRC_MONITOR, apply.
#[derive(Parser)]
#[command(name = "uring-copy", after_help = EXAMPLES)]
struct Options {
    /// The file to copy [default: one of random bytes, removed at the end]
    from: Option<PathBuf>,
    /// Destination; it must not exist yet [default: a file that is removed at the end]
    to: Option<PathBuf>,
    /// Folder of the program's own files [default: the temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Bytes in the program's own file
    #[arg(long, value_parser = size, default_value = "64M", conflicts_with = "from")]
    size: u64,
    /// Bytes in a chunk, which is one read and one write: a multiple of 4K, at most 64M [default: 4M, or less where
    /// little may be pinned]
    #[arg(long, value_parser = chunk)]
    chunk: Option<u64>,
    /// Chunks under way at a time
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256), default_value_t = 8)]
    depth: u32,
    /// Buffers, a chunk each: half of all chunks go to an eighth of them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16384), default_value_t = 32)]
    buffers: u32,
    /// Bytes that the cache may keep registered [default: half of the buffers]. At most half of what may be pinned
    #[arg(long, value_parser = size)]
    capacity: Option<u64>,
    /// Copies that are measured, each way; the medians are printed. One more, unmeasured, goes ahead
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 9)]
    rounds: u32,
    /// Copy through the page cache, where transfers pin nothing
    #[arg(long)]
    buffered: bool,
}

const EXAMPLES: &str = "\
Examples:
  uring-copy                                    a file of its own, 64 MiB, in all three ways
  uring-copy --chunk 256K --rounds 21           small chunks, which gain less
  uring-copy --capacity 16M --size 1G           a cache that is much too small
  MRRC_POLICY=gdsf uring-copy big.file copy     a file of yours, and another policy

Exit status: 0 copied, and every copy equals its original; 1 it failed; 2 wrong usage.";

/// Bytes in a chunk, if as much may be pinned.
const CHUNK: u64 = 4 << 20;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(report) => match io::stdout().write_all(report.as_bytes()) {
            // The reader has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&error),
            _ => ExitCode::SUCCESS,
        },
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn Error) -> ExitCode {
    // An error here could not be reported anywhere.
    let _ = writeln!(io::stderr(), "uring-copy: {error}");
    ExitCode::FAILURE
}

fn run(options: &Options) -> Result<String> {
    if options.buffers < options.depth {
        return Err(format!("{} buffers for {} chunks at a time: too few", options.buffers, options.depth).into());
    }
    // Requests that can be refused come before any file is made.
    let plain = Way::new("plain buffers", options.depth, |_| Ok(Pins::Plain))?;
    let each_time = Way::new("register each time", options.depth, Pins::each_time)?;
    let plan = Plan::new(options, each_time.pins.limit());
    let cached = Way::new("cached", options.depth, |ring| Pins::cached(ring, plan.capacity))?;
    let mut ways = [plain, each_time, cached];
    let mut pool = Pool::new(options.buffers, plan.chunk)?;
    let mut job = Job::open(options, plan.chunk)?;
    let cpu = stay_on_one_cpu()?;

    for round in 0..=options.rounds {
        for turn in 0..ways.len() {
            let way = &mut ways[(turn + round as usize) % 3];
            job.wipe_copy()?;
            // The same buffers for every way, others in the next round.
            let mut draw = Draw::new(u64::from(round));
            let (wall, busy) = (Instant::now(), cpu_time()?);
            way.copy(&job, &mut pool, &mut draw)?;
            let sample = Sample { wall: wall.elapsed(), cpu: cpu_time()?.saturating_sub(busy) };
            job.compare().map_err(|error| format!("{}: {error}", way.name))?;
            match round {
                0 => way.before = way.pins.counts(),
                _ => way.samples.push(sample),
            }
        }
    }
    job.keep();
    Ok(report(options, &plan, &job, &ways, cpu))
}

/// The settings that follow from the options and the limit on pins.
struct Plan {
    chunk: u64,
    /// The cache's bytes.
    capacity: u64,
    /// Bytes that may be pinned.
    limit: u64,
}

impl Plan {
    /// The cache gets half of the limit at most, because this program registers by hand besides. (A program that
    /// does not need not set a capacity: a cache keeps to the limit by itself.)
    fn new(options: &Options, limit: u64) -> Self {
        let fitting = || 1 << (limit / 2 / 16).clamp(PAGE, CHUNK).ilog2();
        let chunk = options.chunk.unwrap_or_else(fitting);
        let wanted = options.capacity.unwrap_or_else(|| (u64::from(options.buffers) * chunk / 2).max(chunk));
        Self { chunk, capacity: wanted.min(limit / 2), limit }
    }
}

/// Bytes: `4096`, `64K`, `1M`, `2G`.
fn size(text: &str) -> Result<u64, String> {
    let bytes = mrrc::bytes(text).filter(|bytes| (PAGE..=1 << 40).contains(bytes));
    bytes.ok_or_else(|| "a number of bytes from 4096 (4K) to 1024G".into())
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let fits = bytes.is_multiple_of(PAGE) && bytes <= 64 << 20;
    if fits { Ok(bytes) } else { Err("a multiple of 4K, at most 64M".into()) }
}
