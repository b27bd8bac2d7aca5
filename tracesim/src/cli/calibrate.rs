//! `calibrate`: what registrations cost on this machine.

use super::failure::Failure;
use super::interrupt;
use super::output::Output;
use super::progress::Progress;
use super::table::{Side, table};
use clap::ValueEnum;
use std::path::PathBuf;
use tracesim::calibrate::{Calibration, Line, Measured};

/// Measure what registrations cost on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Calibrate {
    /// Who registers
    #[arg(long, value_name = "NAME", default_value = "io-uring")]
    registrar: Device,
    /// Measurements of each size; the medians count
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write there instead of to standard output; the file appears when it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Device {
    /// Fixed buffers of an io_uring: real pins, on any Linux since 5.19
    IoUring,
}

const EXAMPLES: &str = "\
Examples:
  tracesim calibrate                                      the table, and the model for --cost
  tracesim calibrate --json | jq .register.page_us
  tracesim compare --cost $(tracesim calibrate --json | jq -r .cost) requests.csv

Ranges of 1 to 1024 resident pages of 4 KiB are registered and deregistered one at a time. A line
is fitted to the medians, least squares of the error in percent; the error shown is the root of
their mean square.";

impl Calibrate {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut out = Output::open(self.output.as_deref())?;
        let calibration = measure(self.registrar, self.rounds)?;
        out.write(|out| {
            if self.json {
                serde_json::to_writer(&mut *out, &Json { cost: calibration.as_option(), calibration: &calibration })?;
                writeln!(out)
            } else {
                out.write_all(shown(&calibration).as_bytes())
            }
        })?;
        out.finish()
    }
}

/// The object of `--json`.
#[derive(serde::Serialize)]
struct Json<'a> {
    /// As `--cost` takes it.
    cost: String,
    #[serde(flatten)]
    calibration: &'a Calibration,
}

fn shown(calibration: &Calibration) -> String {
    let Calibration { register, deregister, sizes, .. } = calibration;
    let off =
        |line: &Line, us: f64, pages: u64| format!("{:+.0}%", 100.0 * (line.at(pages as f64) - us) / us.max(1e-9));
    let row = |m: &Measured| {
        vec![
            m.pages.to_string(),
            format!("{:.3}", m.register_us),
            off(register, m.register_us, m.pages),
            format!("{:.3}", m.deregister_us),
            off(deregister, m.deregister_us, m.pages),
        ]
    };
    let header = ["pages", "register us", "fit", "deregister us", "fit"];
    let line = |what: &str, line: &Line| {
        format!(
            "{what:<11} {:.4}·p + {:.3} us, error {:.1}%, {:.1}% at most\n",
            line.page_us,
            line.call_us,
            100.0 * line.error,
            100.0 * line.largest_error
        )
    };
    format!(
        "{}: medians of {} measurements\n\n{}\n{}{}\n--cost {}\n",
        calibration.registrar,
        calibration.rounds,
        table(&[Side::Right], &header, sizes.iter().map(row)),
        line("register", register),
        line("deregister", deregister),
        calibration.as_option()
    )
}

/// Measures, with a bar of progress.
pub(super) fn measure(device: Device, rounds: u32) -> Result<Calibration, Failure> {
    match device {
        Device::IoUring => io_uring(rounds),
    }
}

#[cfg(target_os = "linux")]
fn io_uring(rounds: u32) -> Result<Calibration, Failure> {
    use mrrc::registrar::io_uring::IoUringBuffers;
    use std::io;
    use tracesim::calibrate::{SIZES, pages::Pages};

    // One of them is used at a time; other pages each time.
    const SLOTS: u32 = 8;
    let largest = SIZES.into_iter().max().unwrap_or(1);
    let refused = |error: &io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "; see that kernel.io_uring_disabled is 0 and that no seccomp filter (a container's) keeps the call out"
            }
            io::ErrorKind::Unsupported => "; that takes Linux 5.19 or later",
            _ => "",
        };
        Failure::work(format_args!("calibrate: setting up an io_uring: {error}{remedy}"))
    };
    let ring = io_uring::IoUring::new(4).map_err(|error| match error.raw_os_error() {
        // No such system call.
        Some(38) => refused(&io::ErrorKind::Unsupported.into()),
        _ => refused(&error),
    })?;
    let table = IoUringBuffers::new(&ring, SLOTS).map_err(|error| Failure::work(format_args!("calibrate: {error}")))?;
    let memory = Pages::new(4 * largest).map_err(|error| Failure::work(format_args!("calibrate: memory: {error}")))?;
    let range = memory.range().map_err(Failure::work)?;
    let progress = Progress::of("calibrating", u64::from(rounds) + 1);
    let measured = tracesim::calibrate::measure(&table, range, rounds, || {
        progress.step(1);
        !interrupt::came()
    });
    measured.map_err(|error| match error.kind() {
        io::ErrorKind::Interrupted if interrupt::came() => Failure::Interrupted,
        io::ErrorKind::OutOfMemory => Failure::work(format_args!(
            "calibrate: registering up to {largest} pages (4 MiB): {error}: more than this user may pin: raise RLIMIT_MEMLOCK \
             (`ulimit -l`) to 8192 or more, or run it with CAP_IPC_LOCK"
        )),
        _ => Failure::work(format_args!("calibrate: registering: {error}")),
    })
}

#[cfg(not(target_os = "linux"))]
fn io_uring(_: u32) -> Result<Calibration, Failure> {
    Err(Failure::work("calibrate: there is no io_uring here: run it on Linux, 5.19 or later"))
}
