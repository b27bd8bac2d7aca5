//! Writers: events into a file, whole or not at all.
//!
//! ```text
//! Event ─► Writer (pages, csv, registrations) ─► gzip or zstd, by the name ─► Output: a temporary file beside ─► renamed
//! ```
//!
//! [`create`] picks all of it by the file's name and a [`Form`]. [`Writer::finish`] makes the file appear under its name;
//! a writer that is dropped before, or whose write failed, leaves nothing behind.

mod output;
mod records;
mod tables;

pub use output::Output;
pub use records::{BinaryRecords, CsvRecords};
pub use tables::{Csv, Pages};

use crate::{Event, Reader, TraceError};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

/// A sink for events.
pub trait Writer {
    /// Writes an event.
    ///
    /// # Errors
    /// [`TraceError::Io`] of the output; [`TraceError::Content`] for an event that has no place in the form. Nothing
    /// should be written after it.
    fn write(&mut self, event: &Event) -> Result<(), TraceError>;

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// [`TraceError::Io`]; then there is no file.
    fn finish(self: Box<Self>) -> Result<Written, TraceError>;
}

/// The counts of the written events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Written events.
    pub events: u64,
    /// Their ranges.
    pub ranges: u64,
    /// Events that the form cannot express, such as the releases of a recording in `pages`.
    pub left_out: u64,
}

/// The forms that can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Form {
    /// `start_page,pages`.
    Pages,
    /// `time_ns,addr,len,op,client,process`.
    Csv,
    /// [The recording](crate::registrations), as CSV.
    Registrations,
    /// The recording, binary.
    RegistrationsBinary,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pages, Self::Csv, Self::Registrations, Self::RegistrationsBinary];

    /// As the command line spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Csv => "csv",
            Self::Registrations => "registrations",
            Self::RegistrationsBinary => "registrations-binary",
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Form {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        Self::ALL.into_iter().find(|form| form.name() == text).ok_or_else(|| TraceError::Option {
            option: "--to",
            what: format!("`{text}` is no format that can be written"),
            remedy: format!("give one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// Returns a writer for this file: compressed if it ends with `.gz`, `.xz` or `.zst`, to standard output if it is `-`.
///
/// # Errors
/// [`TraceError::Io`] if the file cannot be made.
///
/// # Examples
/// ```
/// use traces::{Event, Span, write};
///
/// let file = std::env::temp_dir().join(format!("two-pages-{}.csv.gz", std::process::id()));
/// let mut writer = write::create(&file, write::Form::Pages)?;
/// writer.write(&Event::request(Span { address: 0x1f00, length: 0x200 }, mrrc_core::Access::LOCAL))?;
/// assert!(!file.exists(), "not before the end");
/// assert_eq!(writer.finish()?.events, 1);
/// assert!(file.exists());
/// # std::fs::remove_file(file).unwrap();
/// # Ok::<(), traces::TraceError>(())
/// ```
pub fn create(file: &Path, form: Form) -> Result<Box<dyn Writer>, TraceError> {
    create_in(Output::create(file)?, form)
}

/// Returns a writer for this output, as [`create`] does for a file.
///
/// # Errors
/// [`TraceError::Io`] if the output cannot be written.
pub fn create_in(output: Output, form: Form) -> Result<Box<dyn Writer>, TraceError> {
    Ok(match form {
        Form::Pages => Box::new(Pages::new(output)?),
        Form::Csv => Box::new(Csv::new(output)?),
        Form::Registrations => Box::new(CsvRecords::new(output)?),
        Form::RegistrationsBinary => Box::new(BinaryRecords::new(output)?),
    })
}

/// Writes everything that a reader has.
///
/// # Errors
/// The reader's or the writer's; then there is no file.
pub fn copy(reader: &mut (impl Reader + ?Sized), mut writer: Box<dyn Writer>) -> Result<Written, TraceError> {
    for event in &mut *reader {
        writer.write(&event?)?;
    }
    writer.finish()
}

impl Written {
    fn add(&mut self, ranges: usize) {
        self.events += 1;
        self.ranges += ranges as u64;
    }
}

/// Writes a line, with the error that names the file.
macro_rules! line {
    ($output:expr, $($format:tt)*) => {{
        let output = &mut $output;
        writeln!(output, $($format)*).map_err(|error| output.failed("write", error))
    }};
}
use line;

fn unwritable(output: &Output, number: u64, what: impl Into<String>) -> TraceError {
    let file = output.file().to_owned();
    let remedy = "leave it out".to_owned();
    TraceError::Content { file, at: format!("event {}", number + 1), what: what.into(), remedy }
}

/// Raw bytes, with the error that names the file.
fn put(output: &mut Output, bytes: &[u8]) -> Result<(), TraceError> {
    output.write_all(bytes).map_err(|error| output.failed("write", error))
}
