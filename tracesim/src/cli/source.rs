//! Which trace, and how it is read.

use super::failure::{Failure, note};
use super::interrupt;
use super::progress::Progress;
use super::whole::whole;
use crate::footprint::{Footprint, asked_by};
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use traces::generate::Workload;
use traces::registrations::WHOLE_COPY;
use traces::{
    BlockSize, Columns, Cut, Event, Format, Larger, ReadOptions, Reader, Skipped, Step, Summary, TimeUnit, Trace,
    TraceError,
};

/// How a trace is read.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Reading")]
pub(crate) struct Reading {
    /// The format of the trace, one of those that `tracesim convert --help` lists [default: it is detected]
    #[arg(long, value_name = "NAME")]
    format: Option<Format>,
    /// Which column of a CSV means what, by number from 1 or by name: time=1,addr=2:sector,len=3,op=4
    #[arg(long, value_name = "LIST")]
    columns: Option<Columns>,
    /// The unit of the times of a CSV or of objects: s, ms, us or ns [default: by the column's name, else by magnitude]
    #[arg(long, value_name = "UNIT")]
    time_unit: Option<TimeUnit>,
    /// Bytes of a block, where the format counts blocks: 512, 4k, 2MiB or page
    #[arg(long, value_name = "SIZE")]
    block: Option<BlockSize>,
    /// In web logs, count what was answered by 304, not modified, as well
    #[arg(long)]
    not_modified: bool,
    /// In recordings of registrations, take one whose end is missing as far as it goes
    #[arg(long)]
    accept_cut: bool,
    /// Split what is larger into requests of so many pages
    #[arg(long, value_name = "PAGES", conflicts_with = "cut", value_parser = whole::<NonZeroU64>(1..=u64::MAX))]
    split: Option<NonZeroU64>,
    /// Cut what is larger off after so many pages
    #[arg(long, value_name = "PAGES", value_parser = whole::<NonZeroU64>(1..=u64::MAX))]
    cut: Option<NonZeroU64>,
}

/// How a trace is read into memory.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Reading")]
pub(crate) struct Source {
    #[command(flatten)]
    reading: Reading,
    /// All processes use one cache and one address space, in the order of time
    #[arg(long)]
    share: bool,
}

/// The help on TRACE that every command shares.
pub(crate) const ABOUT_TRACES: &str = "\
A TRACE is a file in any of the formats that `tracesim convert --help` lists, also compressed
(.gz, .xz, .zst) or in a .tar; - is standard input, and httpd:, cello92:, zipf: and buffers: are
workloads made on the spot (`tracesim generate --help`).";

/// Events between two reports of how far it is.
const REPORT: u64 = 1 << 14;

impl Source {
    /// Reads everything into memory, and says what was passed over.
    pub(crate) fn load(&self, path: &Path) -> Result<(Trace, Footprint), Failure> {
        let trace = self.load_trace(path)?;
        let footprint = Footprint::of(&trace);
        Ok((trace, footprint))
    }

    /// As [`load`](Self::load), without the footprint.
    pub(crate) fn load_trace(&self, path: &Path) -> Result<Trace, Failure> {
        let trace = Trace::load(name(path), self.reading.open(path)?, self.share).map_err(failed)?;
        tell(path, &trace.summary);
        if trace.processes.iter().all(|process| asked_by(process).next().is_none()) {
            let what = format_args!("{}: no requests in it, read as {}", path.display(), trace.summary.understood);
            return Err(Failure::work(format_args!("{what}; if it is something else, give --format")));
        }
        Ok(trace)
    }
}

impl Reading {
    /// Returns a reader that shows how far it is and ends when the command is interrupted.
    pub(crate) fn open(&self, path: &Path) -> Result<Watched, Failure> {
        let reader = self.reader(path).map_err(failed)?;
        let reader: Box<dyn Reader> = match (self.split, self.cut) {
            (Some(pages), _) => Box::new(Cut::new(reader, pages, Larger::Split)),
            (_, Some(pages)) => Box::new(Cut::new(reader, pages, Larger::Cut)),
            _ => reader,
        };
        Ok(match workload(path) {
            Some(Ok(workload)) => Watched::generating(reader, &workload),
            _ => Watched::reading(reader, &name(path)),
        })
    }

    fn reader(&self, path: &Path) -> Result<Box<dyn Reader>, TraceError> {
        if let Some(workload) = workload(path) {
            return Ok(Box::new(workload?.generate()?));
        }
        if let (Some(format), Some(_)) = (self.format.filter(|format| *format != Format::Csv), &self.columns) {
            let what = format!("{format} has its columns where it has them");
            return Err(TraceError::Option {
                option: "columns",
                what,
                remedy: "give --format csv, or leave it out".into(),
            });
        }
        let options = ReadOptions {
            format: self.format,
            columns: self.columns.clone(),
            time_unit: self.time_unit,
            block: self.block,
            not_modified: self.not_modified,
            accept_cut: self.accept_cut,
        };
        Ok(traces::open(path, &options)?)
    }
}

/// Returns a workload, if that is what it names and not a file.
pub(super) fn workload(path: &Path) -> Option<Result<Workload, TraceError>> {
    let text = path.to_str()?;
    let named = |workload: &Workload| text.split_once(':').is_some_and(|(name, _)| name == workload.name());
    (Workload::all().iter().any(named) && !path.exists()).then(|| text.parse())
}

/// Whether all of these traces are there, as far as can be told before long work.
pub(super) fn present<'a>(traces: impl Iterator<Item = &'a Path>) -> Result<(), Failure> {
    let mut standard_input = false;
    for path in traces {
        if path.as_os_str() == "-" {
            if std::mem::replace(&mut standard_input, true) {
                return Err(Failure::usage("standard input (-) can be read once: name it once, and files beside it"));
            }
            continue;
        }
        match workload(path) {
            Some(workload) => _ = workload.map_err(failed)?,
            None => {
                let opened = path.metadata().map(|_| ());
                opened.map_err(|error| failed(TraceError::Io { file: path.into(), doing: "open", error }))?;
            }
        }
    }
    Ok(())
}

/// Returns the trace's name in tables.
pub(crate) fn name(path: &Path) -> String {
    if workload(path).is_some() {
        return path.to_string_lossy().into_owned();
    }
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Says what was passed over, and why.
pub(crate) fn tell(path: &Path, summary: &Summary) {
    if summary.untimed > 0 {
        let (times, each) = if summary.untimed == 1 { ("time", "its") } else { ("times", "each") };
        let what = format!("{times} could not be read: {each} request has the time of the one before it");
        note(&format!("{}: {} {what}", path.display(), summary.untimed));
    }
    // Others are of kinds that are not read; `info` has them.
    for Skipped { reason, count, .. } in summary.left_out.iter().filter(|left_out| left_out.asks_for_nothing()) {
        note(&format!("{}: {count} left out: {reason}", path.display()));
    }
    for Skipped { reason, count, first } in &summary.skipped {
        note(&format!("{}: {count} passed over: {reason}", path.display()));
        for (number, text) in first {
            // Bytes from a file are not for the terminal to interpret.
            let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
            // A binary record has no text to show.
            let text = if text.is_empty() { text } else { format!(": {text}") };
            note(&format!("  line or record {number}{text}"));
        }
    }
}

/// An option that makes no sense is wrong usage, all else failed work.
pub(crate) fn failed(error: TraceError) -> Failure {
    match &error {
        _ if interrupt::came() => Failure::Interrupted,
        TraceError::Option { .. } => Failure::usage(error),
        TraceError::Io { doing: "write", error, .. } if error.kind() == io::ErrorKind::BrokenPipe => {
            Failure::NobodyReads
        }
        // The library knows no options.
        TraceError::Content { remedy, .. } if remedy == WHOLE_COPY => {
            Failure::work(format_args!("{error} (--accept-cut)"))
        }
        TraceError::Io { doing: "open", error: missing, file } if missing.kind() == io::ErrorKind::NotFound => {
            let named = |workload: &&Workload| Path::new(workload.name()) == file;
            match Workload::all().iter().find(named).map(Workload::name) {
                Some(name) => Failure::work(format_args!("{error}: the generated workload is `{name}:`, with a colon")),
                None => Failure::work(format_args!(
                    "{error}: name a trace that is there, or a workload: httpd:, cello92:, zipf:, buffers:"
                )),
            }
        }
        _ => Failure::work(error),
    }
}

/// A reader that shows how far it is and ends when the command is interrupted.
pub(crate) struct Watched {
    reader: Box<dyn Reader>,
    progress: Progress,
    unreported: u64,
}

impl Watched {
    /// Shows progress of reading a trace of unknown length.
    pub(crate) fn reading(reader: Box<dyn Reader>, name: &str) -> Self {
        Self { reader, progress: Progress::unknown(&format!("reading {name}")), unreported: 0 }
    }

    fn generating(reader: Box<dyn Reader>, workload: &Workload) -> Self {
        let progress = Progress::of(&format!("generating {}", workload.name()), workload.requests());
        Self { reader, progress, unreported: 0 }
    }
}

impl Iterator for Watched {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.unreported += 1;
        if self.unreported == REPORT {
            self.progress.step(std::mem::take(&mut self.unreported));
            if interrupt::came() {
                let error = io::ErrorKind::Interrupted.into();
                return Some(Err(TraceError::Io { file: "trace".into(), doing: "read", error }));
            }
        }
        self.reader.next()
    }
}

impl Reader for Watched {
    fn summary(&self) -> &Summary {
        self.reader.summary()
    }

    fn read_steps(&mut self, steps: &mut Vec<Step>) -> Option<u32> {
        // The next event is an error soon.
        if interrupt::came() {
            return None;
        }
        let before = steps.len();
        let process = self.reader.read_steps(steps)?;
        self.progress.step((steps.len() - before) as u64);
        Some(process)
    }
}
