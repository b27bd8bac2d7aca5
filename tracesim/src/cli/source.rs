//! Which trace, and how it is read.

use super::failure::{Failure, note};
use super::interrupt;
use super::progress::Progress;
use std::path::Path;
use traces::{Event, Reader, Summary, Trace, TraceError};
use tracesim::survey::Survey;

/// How traces are read.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Reading")]
pub(crate) struct Source {
    /// All processes use one cache and one address space, in the order of time
    #[arg(long)]
    share: bool,
}

/// Steps between two reports of how far it is.
const REPORT: u64 = 1 << 16;

impl Source {
    /// Reads everything into memory, and says what was passed over.
    pub(crate) fn load(&self, path: &Path) -> Result<(Trace, Survey), Failure> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let progress = Progress::unknown(&format!("reading {name}"));
        let reader = Watched { reader: open(path, self).map_err(failed)?, progress, unreported: 0 };
        let trace = Trace::load(name, reader, self.share).map_err(failed)?;
        if trace.summary.skipped() > 0 {
            note(trace.summary.to_string().trim_end());
        }
        let survey = Survey::of(&trace);
        if survey.requests == 0 {
            let format = &trace.summary.understood;
            return Err(Failure::work(format_args!(
                "{}: no requests, read as {format}; name its format",
                path.display()
            )));
        }
        Ok((trace, survey))
    }
}

/// An option that makes no sense is wrong usage, all else failed work.
fn failed(error: TraceError) -> Failure {
    match error {
        _ if interrupt::came() => Failure::Interrupted,
        TraceError::Option { .. } => Failure::usage(error),
        _ => Failure::work(error),
    }
}

/// A reader that reports how far it is, and that ends when it is told to.
struct Watched<R> {
    reader: R,
    progress: Progress,
    unreported: u64,
}

impl<R: Reader> Iterator for Watched<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.unreported += 1;
        if self.unreported == REPORT {
            self.progress.step(std::mem::take(&mut self.unreported));
            if interrupt::came() {
                let error = std::io::ErrorKind::Interrupted.into();
                return Some(Err(TraceError::Io { file: "the trace".into(), doing: "read", error }));
            }
        }
        self.reader.next()
    }
}

impl<R: Reader> Reader for Watched<R> {
    fn summary(&self) -> &Summary {
        self.reader.summary()
    }
}

// ---- The seam to `traces::open`: until it is there, `pages` is read here. ------------------------------

fn open(path: &Path, _: &Source) -> Result<impl Reader + use<>, TraceError> {
    pages::Pages::open(path)
}

mod pages {
    use mrrc::{Access, PageRange};
    use std::fs::File;
    use std::path::{Path, PathBuf};
    use traces::{Event, Reader, Span, Summary, TraceError};

    pub(super) struct Pages {
        file: PathBuf,
        rows: csv::DeserializeRecordsIntoIter<File, (u64, u64)>,
        summary: Summary,
    }

    impl Pages {
        pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
            let io = |error| TraceError::Io { file: path.to_owned(), doing: "open", error };
            let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(File::open(path).map_err(io)?);
            let header = reader.headers().map(|header| header.iter().eq(["start_page", "pages"])).unwrap_or(false);
            if !header {
                return Err(TraceError::Content {
                    file: path.to_owned(),
                    at: "line 1".into(),
                    what: "expected the header start_page,pages".into(),
                    remedy: "name its format".into(),
                });
            }
            let summary = Summary::new("pages");
            Ok(Self { file: path.to_owned(), rows: reader.into_deserialize(), summary })
        }
    }

    impl Iterator for Pages {
        type Item = Result<Event, TraceError>;

        fn next(&mut self) -> Option<Self::Item> {
            let line = self.rows.reader().position().line();
            let content = |what: String| TraceError::Content {
                file: self.file.clone(),
                at: format!("line {line}"),
                what,
                remedy: "correct the line".into(),
            };
            let range = match self.rows.next()? {
                Ok((start, pages)) => PageRange::new(start, pages).map_err(|error| content(error.to_string())),
                Err(error) => Err(content(error.to_string())),
            };
            Some(range.map(|range| {
                let event = Event::request(Span::of_pages(range), Access::LOCAL_READ);
                self.summary.read(&event);
                event
            }))
        }
    }

    impl Reader for Pages {
        fn summary(&self) -> &Summary {
            &self.summary
        }
    }
}
