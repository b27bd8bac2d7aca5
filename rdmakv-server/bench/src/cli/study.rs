//! `hybrid study`: the survey's study of miss penalties (sections 5.2 and 6.1), on servers with flash and without.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Args;

use super::Failure;
use super::flags::{time, whole};
use super::session::raise_descriptors;
use crate::Choice;
use crate::study::{Amounts, Contender, Parameters, Part, Programs, beside_us, render, study, usual_folder};

#[derive(Debug, Args)]
#[command(after_help = "\
It starts each server with the same memory and the same bytes of flash, writes values of several times the memory, and reads them by
each pattern; what is missed is written again. The cost of a miss is added afterwards: one measurement serves for all penalties.
Then: GETs of memory alone and beside busy flash, and SETs where flash is 80 % full. Servers end with
the study, and their files go.

The system caches extstore's file in memory that -m does not count. So the study drops those pages all the time. With --page-cache
they stay: extstore then reads its file from memory as long as it fits there.

Examples:
  rdmakv-bench hybrid study --folder /flash
  rdmakv-bench hybrid study -m 1024 --flash 8192 --rounds 3 --json > study.json
  rdmakv-bench hybrid study --contenders ours,extstore --patterns uniform --page-cache
  rdmakv-bench hybrid study --parts full --max-frag 0.23,0.5
  rdmakv-bench hybrid study --quick                               to see that it works, some seconds

Exit status: 0 measured, 1 failed or interrupted, 2 wrong usage. Goals that are missed are printed, and no failure.")]
pub(super) struct Study {
    /// Folder for the files; its device is measured [default: the system's for temporary files]
    #[arg(long, value_name = "DIR", help_heading = "Servers")]
    folder: Option<PathBuf>,
    /// Which of ours, memcached, extstore
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ours,memcached,extstore",
        value_name = "LIST",
        help_heading = "Servers"
    )]
    contenders: Vec<Contender>,
    /// rdmakv-server [default: beside this program, or in PATH]
    #[arg(long, value_name = "FILE", help_heading = "Servers")]
    server: Option<PathBuf>,
    /// memcached
    #[arg(long, default_value = "memcached", value_name = "FILE", help_heading = "Servers")]
    memcached: PathBuf,
    /// MiB of memory of each server
    #[arg(short = 'm', long, default_value = "64", value_name = "MIB", value_parser = whole::<u64, { 1 << 20 }>,
          help_heading = "Servers")]
    memory: u64,
    /// MiB of flash
    #[arg(long, default_value = "1024", value_name = "MIB", value_parser = whole::<u64, { 1 << 30 }>,
          help_heading = "Servers")]
    flash: u64,
    /// Threads that serve
    #[arg(short = 't', long, default_value = "2", value_name = "N", value_parser = whole::<usize, 64>,
          help_heading = "Servers")]
    threads: usize,
    /// Leave the files of flash in the system's cache
    #[arg(long, help_heading = "Servers")]
    page_cache: bool,
    /// Also measure rdmakv-server with these ext_max_frag where flash is 80 % full
    #[arg(long, value_delimiter = ',', value_name = "LIST", help_heading = "Servers")]
    max_frag: Vec<f64>,
    /// Which of patterns, tiers, full
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "patterns,tiers,full",
        value_name = "LIST",
        help_heading = "Load"
    )]
    parts: Vec<Part>,
    /// Which keys: uniform, zipf[:SKEW], latest[:SKEW], earliest[:SKEW]
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "uniform,zipf,latest,earliest",
        value_name = "LIST",
        help_heading = "Load"
    )]
    patterns: Vec<Choice>,
    /// The costs of a miss, in milliseconds
    #[arg(long, value_delimiter = ',', default_value = "1,5,20,95", value_name = "LIST", help_heading = "Load")]
    penalties: Vec<f64>,
    /// Bytes of a value
    #[arg(short = 's', long, default_value = "32768", value_name = "BYTES", value_parser = whole::<usize, { 1 << 20 }>,
          help_heading = "Load")]
    size: usize,
    /// Bytes of all values, in times of the memory
    #[arg(long, default_value = "4", value_name = "N", help_heading = "Load")]
    times: f64,
    /// Connections [default: 16 on two processors or less, else 64]
    #[arg(short = 'c', long, value_name = "N", value_parser = whole::<usize, 4096>, help_heading = "Load")]
    connections: Option<usize>,
    /// How often all of it is done; servers take turns, and medians are printed
    #[arg(long, default_value = "1", value_name = "N", value_parser = whole::<usize, 1000>, help_heading = "Load")]
    rounds: usize,
    /// Time that counts, of each part
    #[arg(short = 'T', long, default_value = "5s", value_name = "TIME", value_parser = time, help_heading = "Load")]
    duration: Duration,
    /// Time before it
    #[arg(short = 'w', long, default_value = "3s", value_name = "TIME", value_parser = time, help_heading = "Load")]
    warm_up: Duration,
    /// A short form with little of everything: its figures mean nothing
    #[arg(long, conflicts_with_all = ["memory", "flash", "patterns", "duration", "warm_up"], help_heading = "Load")]
    quick: bool,
    /// Print JSON instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// No progress on stderr
    #[arg(short = 'q', long, help_heading = "Output")]
    quiet: bool,
}

impl Study {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        let parameters = self.parameters()?;
        raise_descriptors();
        let interrupt = Arc::clone(&parameters.interrupt);
        // Servers and files go when the part that runs has ended, which is at once.
        let _ = ctrlc::set_handler(move || interrupt.store(true, Relaxed));
        let tell = |line: &str| {
            if !self.quiet {
                eprintln!("{line}");
            }
        };
        let done = study(&parameters, &tell);
        if parameters.interrupt.load(Relaxed) && done.as_ref().map_or(true, |study| study.rows.is_empty()) {
            return Err(Failure::work("interrupted"));
        }
        let study = done.map_err(Failure::work)?;
        let text = if self.json { serde_json::to_string(&study).unwrap_or_default() + "\n" } else { render(&study) };
        // A reader that does not read to the end wants no more.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        if study.ended_early { Err(Failure::work("interrupted")) } else { Ok(ExitCode::SUCCESS) }
    }

    fn parameters(&self) -> Result<Parameters, Failure> {
        let usage = |what: &str| Err(Failure::usage(what));
        if self.penalties.iter().any(|penalty| !penalty.is_finite() || *penalty < 0.0) {
            return usage("--penalties: milliseconds, not below 0");
        }
        if self.max_frag.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return usage("--max-frag: shares from 0 to 1");
        }
        if !(0.1..=1000.0).contains(&self.times) {
            return usage("--times: between 0.1 and 1000");
        }
        if self.memory == 0 || self.threads == 0 || self.size == 0 || self.rounds == 0 || self.connections == Some(0) {
            return usage("-m, -t, -s, -c and --rounds: at least 1");
        }
        let (memory, flash) = if self.quick { (32, 256) } else { (self.memory, self.flash) };
        if (memory as f64) * self.times > 0.9 * flash as f64 {
            return usage("--flash: the values do not fit: give more, or less of -m or --times");
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = if processors <= 2 { 16 } else { 64 };
        let short = Duration::from_millis(300);
        Ok(Parameters {
            contenders: self.contenders.clone(),
            programs: Programs {
                ours: self.server.clone().unwrap_or_else(|| beside_us("rdmakv-server")),
                memcached: self.memcached.clone(),
                folder: self.folder.clone().unwrap_or_else(usual_folder),
            },
            parts: self.parts.clone(),
            max_frags: self.max_frag.clone(),
            amounts: Amounts { memory, flash, threads: self.threads, page_cache: self.page_cache },
            patterns: if self.quick { vec![Choice::Uniform] } else { self.patterns.clone() },
            penalties: self.penalties.clone(),
            size: self.size,
            times: self.times,
            connections: self.connections.unwrap_or(usual),
            rounds: self.rounds,
            warm_up: if self.quick { short } else { self.warm_up },
            duration: if self.quick { short } else { self.duration },
            interrupt: Arc::new(AtomicBool::new(false)),
        })
    }
}
