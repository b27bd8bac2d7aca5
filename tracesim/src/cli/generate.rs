//! `generate`: workloads made from published figures.

use super::convert::{create, wrote};
use super::failure::Failure;
use super::hanging::hanging;
use super::progress::Progress;
use super::source::failed;
use std::io::Write as _;
use std::path::PathBuf;
use traces::TraceError;
use traces::generate::{Generator, Workload, buffers};
use traces::write::Form;

/// Write a workload made from published figures
#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub(crate) struct Generate {
    /// httpd, cello92, zipf or buffers; options after a colon: zipf:objects=1000,requests=5000
    workload: Workload,
    /// The file to write, compressed if it ends with .gz, .xz or .zst; it appears when it is whole
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The same as FILE
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    output: Option<PathBuf>,
    /// The format to write: pages, csv, registrations or registrations-binary
    #[arg(long, value_name = "NAME", default_value = "pages")]
    to: Form,
}

const EXAMPLES: &str = "\
Examples:
  tracesim generate httpd httpd.csv                    the paper's web server
  tracesim generate cello92:client-cache=0 cello.csv   its disks, without a first-level cache
  tracesim generate zipf:exponent=1.2,seed=7 - | head
  tracesim generate --to csv httpd httpd.csv.zst       with times and clients

What was asked of the workload is shown beside what its events have, on standard error.";

/// Examples, and the workloads with their options.
fn help() -> String {
    let lines = |workload: &Workload| {
        let whole = workload.to_string();
        let (name, options) = whole.split_once(':').unwrap_or((&whole, ""));
        format!("\n{}", hanging(&format!("{name}:"), name.len() + 3, options))
    };
    let lines: String = Workload::all().iter().map(lines).collect();
    let patterns: Vec<_> = buffers::Pattern::ALL.iter().map(|pattern| pattern.name()).collect();
    format!("{EXAMPLES}\n\nWorkloads and their options:{lines}\n\nPatterns of buffers: {}.", patterns.join(", "))
}

/// Events between two reports of how far it is.
const REPORT: usize = 1 << 14;

impl Generate {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let file = self.output.as_ref().unwrap_or(&self.file);
        let mut events = self.workload.generate().map_err(failed)?;
        let mut writer = create(file, self.to).map_err(failed)?;
        let progress = Progress::of(&format!("generating {}", self.workload.name()), self.workload.requests());
        for (at, event) in events.by_ref().enumerate() {
            writer.write(&event.map_err(failed)?).map_err(failed)?;
            if at % REPORT == REPORT - 1 {
                progress.step(REPORT as u64);
            }
        }
        let written = writer.finish().map_err(|error: TraceError| failed(error))?;
        drop(progress);
        // An error here could not be reported anywhere.
        let _ = write!(std::io::stderr(), "{}\n{}", self.workload, events.checks());
        wrote(file, self.to, written);
        Ok(())
    }
}
