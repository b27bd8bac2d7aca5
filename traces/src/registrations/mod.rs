//! This project's own recording of what a program did with its buffers.
//!
//! One event is a time in nanoseconds, an operation (acquire, release, invalidate, or a request that is released at
//! once), its process and thread, the rights asked for, and one range of bytes or, where buffers were asked for
//! together, several. There are three forms of the same content: [`csv`] to look at and to edit; [`binary`], a tenth of
//! its size, to keep; and [`mapped`], which a recorder in a running program writes. [`read()`] tells them apart.
//!
//! All begin with a versioned header, are only ever appended to, and let a reader see that the end is missing: everything
//! before the cut is still read, and then the cut is an error, unless [`CutShort::Accepted`].

pub mod binary;
pub mod csv;
pub mod mapped;

use crate::reader::Stepped;
use crate::{Action, Event, Reader, Span, TraceError};
use mrrc_core::Access;
use std::io::{BufRead, Cursor, Read};
use std::path::{Path, PathBuf};

/// Ranges of one event, at most.
pub const MAX_RANGES: usize = 1 << 16;

/// The treatment of a recording without its end: the recorder was killed, or the file was not copied whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CutShort {
    /// An error, after everything before it.
    #[default]
    Refused,
    /// The end; the summary counts it as skipped.
    Accepted,
}

/// Reads any form. `file` is for messages.
///
/// # Errors
/// [`TraceError::Io`] if it cannot be read, [`TraceError::Content`] if it is no form of it or of a version to come.
pub fn read<R>(file: &Path, mut input: R, cut: CutShort) -> Result<Box<dyn Reader + Send>, TraceError>
where
    R: BufRead + Send + 'static,
{
    let first = input.fill_buf().map_err(|error| failed(file, error))?;
    if first.first() == Some(&binary::MAGIC[0]) {
        let mut head = Vec::new();
        input.by_ref().take(binary::MAGIC.len() as u64).read_to_end(&mut head).map_err(|error| failed(file, error))?;
        let is_mapped = head == mapped::MAGIC;
        let input = Cursor::new(head).chain(input);
        return Ok(match is_mapped {
            true => Box::new(Stepped::new(mapped::Mapped::new(file, input, cut)?)),
            false => Box::new(Stepped::new(binary::Binary::new(file, input, cut)?)),
        });
    }
    Ok(Box::new(Stepped::new(csv::Csv::new(file, input, cut)?)))
}

fn failed(file: &Path, error: std::io::Error) -> TraceError {
    TraceError::Io { file: PathBuf::from(file), doing: "read", error }
}

fn wrong(file: &Path, at: String, what: impl Into<String>, remedy: &str) -> TraceError {
    TraceError::Content { file: file.to_owned(), at, what: what.into(), remedy: remedy.to_owned() }
}

/// The remedy of a recording that is cut short, unless [`CutShort::Accepted`]. A program with an option for that can name it beside
/// this.
pub const WHOLE_COPY: &str = "copy it again, or accept what is there";

/// The four operations, in the order of their numbers in the binary form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Request,
    Acquire,
    Release,
    Invalidate,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Request, Self::Acquire, Self::Release, Self::Invalidate];

    fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Invalidate => "invalidate",
        }
    }

    fn of(action: &Action) -> Self {
        match action {
            Action::Request(_) => Self::Request,
            Action::Acquire(_) => Self::Acquire,
            Action::Release(_) => Self::Release,
            Action::Invalidate(_) => Self::Invalidate,
        }
    }

    /// An invalidation has one range, anything else at least one.
    fn action(self, spans: crate::Spans) -> Option<Action> {
        Some(match self {
            _ if spans.is_empty() => return None,
            Self::Request => Action::Request(spans),
            Self::Acquire => Action::Acquire(spans),
            Self::Release => Action::Release(spans),
            Self::Invalidate if spans.len() > 1 => return None,
            Self::Invalidate => Action::Invalidate(spans[0]),
        })
    }
}

/// Why a range cannot be recorded or read.
fn unusable(span: Span) -> Option<&'static str> {
    match span.pages() {
        Ok(_) => None,
        Err(_) if span.length == 0 => Some("no bytes"),
        Err(_) => Some("past the end of the address space"),
    }
}

/// Why an event cannot be recorded.
fn unrecordable(event: &Event) -> Option<&'static str> {
    let spans = event.action.spans();
    match spans.len() {
        0 => Some("no ranges"),
        many if many > MAX_RANGES => Some("more than 65,536 ranges"),
        _ => spans.iter().find_map(|&span| unusable(span)),
    }
}

/// Every right has a letter.
const LETTERS: [(Access, char); 5] = [
    (Access::LOCAL_READ, 'r'),
    (Access::LOCAL_WRITE, 'w'),
    (Access::REMOTE_READ, 'R'),
    (Access::REMOTE_WRITE, 'W'),
    (Access::REMOTE_ATOMIC, 'A'),
];
