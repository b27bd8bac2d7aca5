//! `calibrate`: what registrations cost on this machine.
//!
//! The registrars that it can measure are in modules of their own, each with what it takes to set it up and what can go
//! wrong with that.

mod io_uring;
mod verbs;

use super::failure::Failure;
use super::interrupt;
use super::output::Output;
use super::progress::Progress;
use super::table::{Side, table};
use super::whole::whole;
use crate::calibrate::{Calibration, Line, Measured, SIZES, pages::Pages};
use clap::ValueEnum;
use mrrc::registrar::Registrar;
use std::io;
use std::path::PathBuf;

/// Measure what registrations cost on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Calibrate {
    /// Registrar
    #[arg(long, value_name = "NAME", default_value = "io-uring")]
    registrar: Registering,
    /// The RDMA device, as `rdma link show` names it (--registrar verbs) [default: the first that is up]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Measurements of each size; the medians count
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(1..=1_000_000))]
    rounds: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Write there instead of to standard output; the file appears when it is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Registering {
    /// Fixed buffers of an io_uring: real pins, on any Linux since 5.19
    IoUring,
    /// Memory regions of an RDMA device; a tracesim that was built with feature `verbs` has it
    Verbs,
}

const EXAMPLES: &str = "\
Examples:
  tracesim calibrate                                      the table, and the model for --cost
  tracesim calibrate --registrar verbs --device mlx5_0    of an RDMA device
  tracesim calibrate --json | jq .register.page_us
  tracesim compare --cost $(tracesim calibrate --json | jq -r .cost) requests.csv

Ranges of 1 to 1024 resident pages of 4 KiB are registered and deregistered one at a time. A line
is fitted to the medians, least squares of the error in percent; the error shown is the root of
their mean square.";

impl Calibrate {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.device.is_some() && self.registrar != Registering::Verbs {
            return Err(Failure::usage("calibrate: --device is for --registrar verbs"));
        }
        let mut out = Output::open(self.output.as_deref(), &[])?;
        let calibration = measure(self.registrar, self.device.as_deref(), self.rounds)?;
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
        "{}{}: medians of {} measurements\n\n{}\n{}{}\n--cost {}\n",
        calibration.registrar,
        calibration.device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default(),
        calibration.rounds,
        table(&[Side::Right], &header, sizes.iter().map(row)),
        line("register", register),
        line("deregister", deregister),
        calibration.as_option()
    )
}

/// Measures, with a bar of progress.
pub(super) fn measure(registering: Registering, device: Option<&str>, rounds: u32) -> Result<Calibration, Failure> {
    match registering {
        Registering::IoUring => io_uring::measure(rounds),
        Registering::Verbs => verbs::measure(device, rounds),
    }
}

/// Measures this registrar.
#[cfg(target_os = "linux")]
fn measure_one(registrar: &impl Registrar, rounds: u32) -> Result<Calibration, Failure> {
    let largest = SIZES.into_iter().max().unwrap_or(1);
    // Other pages each time.
    let memory = Pages::new(4 * largest).map_err(|error| Failure::work(format_args!("calibrate: memory: {error}")))?;
    let range = memory.range().map_err(Failure::work)?;
    let progress = Progress::of("calibrating", u64::from(rounds) + 1);
    let measured = crate::calibrate::measure(registrar, range, rounds, || {
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
