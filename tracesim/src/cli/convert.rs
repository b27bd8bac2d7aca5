//! `convert`: a trace in another form.

use super::failure::{Failure, note};
use super::hanging::hanging;
use super::interrupt;
use super::output::refuse_input;
use super::source::{ABOUT_TRACES, Reading, failed, tell};
use std::path::{Path, PathBuf};
use traces::write::{self, Form, Writer, Written, copy};
use traces::{Event, Format, Reader, TraceError};

/// Write a trace in another format
#[derive(clap::Args, Debug)]
#[command(after_help = help())]
pub(crate) struct Convert {
    /// The trace
    trace: PathBuf,
    /// The file to write, compressed if it ends with .gz, .xz or .zst; it appears when it is whole
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The same as FILE
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    output: Option<PathBuf>,
    /// The format to write: pages, csv, registrations or registrations-binary
    #[arg(long, value_name = "NAME", default_value = "pages")]
    to: Form,
    #[command(flatten)]
    reading: Reading,
}

const EXAMPLES: &str = "\
Examples:
  tracesim convert access_log.gz requests.csv                 whole pages, header start_page,pages
  tracesim convert --to csv --format msr disk.csv disk.csv.zst
  tracesim convert --to registrations-binary ranks.tar ranks.reg
  tracesim convert --split 32 access_log - | head";

/// Examples, and the formats that are read.
fn help() -> String {
    let line = |format: &Format| format!("\n{}", hanging(format.name(), 17, format.about()));
    format!(
        "{EXAMPLES}\n\nFormats that are read:{}\n\n{ABOUT_TRACES}",
        Format::ALL.iter().map(line).collect::<String>()
    )
}

impl Convert {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let file = self.output.as_ref().unwrap_or(&self.file);
        refuse_input(file, std::slice::from_ref(&self.trace))?;
        let mut reader = self.reading.open(&self.trace)?;
        let writer = create(file, self.to).map_err(failed)?;
        let written = copy(&mut reader, writer).map_err(failed)?;
        tell(&self.trace, reader.summary());
        wrote(file, self.to, written);
        Ok(())
    }
}

/// Reports the counts of the written events on standard error.
pub(super) fn wrote(file: &Path, form: Form, written: Written) {
    let Written { events, left_out, .. } = written;
    let to = if file.as_os_str() == "-" { "standard output".into() } else { file.display().to_string() };
    let left = if left_out == 0 { String::new() } else { format!(", {left_out} left out that {form} cannot express") };
    note(&format!("{events} events to {to}{left}"));
}

/// A writer whose temporary file an interruption removes.
struct Removable {
    writer: Box<dyn Writer>,
    temporary: Option<PathBuf>,
}

/// Returns a writer for this file, as [`write::create`] does. An interruption leaves nothing of it behind.
pub(super) fn create(file: &Path, form: Form) -> Result<Box<dyn Writer>, TraceError> {
    // A pipe may wait for a reader.
    let is_special = file.as_os_str() == "-" || file.metadata().is_ok_and(|there| !there.is_file());
    let output = if is_special {
        write::Output::create(file)?
    } else {
        interrupt::begin(|| write::Output::create(file), write::Output::temporary)?
    };
    let temporary = output.temporary().map(Path::to_owned);
    Ok(Box::new(Removable { writer: write::create_in(output, form)?, temporary }))
}

impl Writer for Removable {
    fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        self.writer.write(event)
    }

    fn finish(self: Box<Self>) -> Result<Written, TraceError> {
        let Self { writer, temporary } = *self;
        let written = writer.finish();
        temporary.iter().for_each(|path| interrupt::finished(path));
        written
    }
}
