//! The form to look at and to edit.
//!
//! ```text
//! # mrrc registrations 1
//! time_ns,operation,process,thread,address,length,access
//! 1200,acquire,0,7,0x7f10a2000000,65536,rw
//! 1350,acquire+,0,7,0x7f10a2010000,4096,r
//! 1350,acquire,0,7,0x7f10a2040000,4096,r
//! 9800,release,0,7,0x7f10a2000000,65536,rw
//! 9900,invalidate,0,7,0x7f10a2000000,1048576,-
//! ```
//!
//! The first line names the format and its version, the second the columns; both must be there. Every further line ends
//! with a line feed (one without is taken for cut short) and is one range:
//!
//! * `time_ns`, `process`, `thread`, `length`: decimal; `address`: hexadecimal with `0x`, or decimal.
//! * `operation`: `request`, `acquire`, `release`, `invalidate`. A `+` behind it says that the next line is a further range
//!   of the same event. The other columns of that line are the same. An invalidation has a single range.
//! * `access`: `r` and `w` are the local rights to read and write, `R`, `W` and `A` those of peers to read, write and run
//!   atomic operations; `-` is none.
//!
//! Empty lines and lines that begin with `#` are passed over.

use super::{CutShort, LETTERS, MAX_RANGES, Operation, WHOLE_COPY, failed, unrecordable, unusable, wrong};
use crate::reader::Steps;
use crate::{Event, Span, Spans, Summary, TraceError};
use mrrc_core::Access;
use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};

/// The first line.
pub const HEADER: &str = "# mrrc registrations 1";
/// The second line.
pub const COLUMNS: &str = "time_ns,operation,process,thread,address,length,access";
/// A longer line is none of ours.
const MAX_LINE: u64 = 1024;

/// Writes the two lines at the head.
///
/// # Errors
/// The output's.
pub fn write_header(out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    writeln!(out, "{HEADER}\n{COLUMNS}")
}

/// Writes an event, a line for each range.
///
/// # Errors
/// The output's; `InvalidInput` for an event without bytes or past the end of the address space.
pub fn write_event(out: &mut (impl Write + ?Sized), event: &Event) -> io::Result<()> {
    if let Some(why) = unrecordable(event) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let Event { time, process, client, .. } = event;
    let name = Operation::of(&event.action).name();
    let spans = event.action.spans();
    for (at, Span { address, length }) in spans.iter().enumerate() {
        let more = if at + 1 < spans.len() { "+" } else { "" };
        write!(out, "{time},{name}{more},{process},{client},{address:#x},{length},")?;
        if event.access.is_empty() {
            out.write_all(b"-")?;
        }
        for (_, letter) in LETTERS.iter().filter(|(right, _)| event.access.contains(*right)) {
            write!(out, "{letter}")?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads this form.
pub struct Csv<R> {
    file: PathBuf,
    input: R,
    cut: CutShort,
    summary: Summary,
    line: Vec<u8>,
    number: u64,
    /// The event whose ranges are being read, and whether one of them was bad.
    open: Option<Group>,
}

impl<R> fmt::Debug for Csv<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csv").field("file", &self.file).field("summary", &self.summary).finish_non_exhaustive()
    }
}

struct Group {
    head: Row,
    spans: Spans,
    bad: bool,
}

/// A line.
#[derive(Clone, Copy)]
struct Row {
    time: u64,
    operation: Operation,
    goes_on: bool,
    process: u32,
    thread: u32,
    span: Span,
    access: Access,
}

impl Row {
    fn has_head_of(&self, other: &Self) -> bool {
        (self.time, self.operation, self.process, self.thread, self.access)
            == (other.time, other.operation, other.process, other.thread, other.access)
    }
}

/// A parsed line.
enum Line {
    Whole,
    Cut,
    End,
}

impl<R: BufRead> Csv<R> {
    /// Reads the head. `file` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Content`] if the head is not there or of another version.
    pub fn new(file: &Path, input: R, cut: CutShort) -> Result<Self, TraceError> {
        let summary = Summary::new("registrations: this project's recording, as CSV, version 1");
        let (line, open) = (Vec::with_capacity(128), None);
        let mut reader = Self { file: file.to_owned(), input, cut, summary, line, number: 0, open };
        for expected in [HEADER, COLUMNS] {
            let whole = matches!(reader.next_line()?, Line::Whole);
            let found = String::from_utf8_lossy(&reader.line);
            if !whole || found.trim_end() != expected {
                let found: String = found.trim_end().chars().take(60).collect();
                let at = format!("line {}", reader.number.max(1));
                let what = format!("`{expected}` expected, found `{}`", found.escape_debug());
                return Err(wrong(file, at, what, "name the format that it has, or record it again with this version"));
            }
            reader.summary.other += 1;
        }
        Ok(reader)
    }

    /// A line without its end is cut. A text too long to be a line is read over and left as its first bytes.
    fn next_line(&mut self) -> Result<Line, TraceError> {
        self.line.clear();
        let read = self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| failed(&self.file, error))?;
        if read == 0 {
            return Ok(Line::End);
        }
        self.number += 1;
        if self.line.ends_with(b"\n") {
            return Ok(Line::Whole);
        }
        if (read as u64) < MAX_LINE {
            return Ok(Line::Cut);
        }
        match skip_line(&mut self.input).map_err(|error| failed(&self.file, error))? {
            true => Ok(Line::Whole),
            false => Ok(Line::Cut),
        }
    }

    fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            match self.next_line()? {
                Line::Whole => {}
                Line::Cut => return self.end(Some("the last line is cut short")),
                Line::End if self.open.is_some() => return self.end(Some("the last event is cut short")),
                Line::End => return self.end(None),
            }
            let text = self.line.trim_ascii();
            if text.is_empty() || text[0] == b'#' {
                self.summary.other += 1;
                continue;
            }
            let row = match std::str::from_utf8(text).map_err(|_| "not text").and_then(parse) {
                Ok(row) => row,
                Err(why) => {
                    self.skip(why);
                    // Whether it went on is not known; what follows must not join what came before.
                    self.open = None;
                    continue;
                }
            };
            if let Some(event) = self.join(row) {
                self.summary.read(&event);
                return Ok(Some(event));
            }
        }
    }

    /// An event, when this was its last range.
    fn join(&mut self, row: Row) -> Option<Event> {
        let mut group = match self.open.take() {
            Some(group) if group.head.has_head_of(&row) => group,
            Some(_) => {
                self.skip("not of the event that the line before it goes on with");
                return None;
            }
            None => Group { head: row, spans: Spans::new(), bad: false },
        };
        let too_many = (group.spans.len() >= MAX_RANGES).then_some("more than 65,536 ranges");
        let why = unusable(row.span).or(too_many);
        if let Some(why) = why {
            self.skip(why);
            group.bad = true;
        } else {
            group.spans.push(row.span);
        }
        if row.goes_on {
            self.open = Some(group);
            return None;
        }
        let Group { head, spans, bad } = group;
        if bad {
            return None;
        }
        let Some(action) = head.operation.action(spans) else {
            self.skip("an invalidation of several ranges");
            return None;
        };
        Some(Event { time: head.time, process: head.process, client: head.thread, access: head.access, action })
    }

    fn skip(&mut self, why: &'static str) {
        let text = String::from_utf8_lossy(&self.line);
        self.summary.skip(why, self.number, text.trim_end());
    }

    fn end(&mut self, cut: Option<&'static str>) -> Result<Option<Event>, TraceError> {
        let at = format!("line {}", self.number);
        match cut {
            Some(what) if self.cut == CutShort::Refused => return Err(wrong(&self.file, at, what, WHOLE_COPY)),
            Some(what) => self.skip(what),
            None => {}
        }
        if self.summary.is_mostly_unreadable() {
            let what = format!("{} lines understood, {} not", self.summary.events, self.summary.skipped());
            return Err(wrong(&self.file, at, what, "look at the summary's first skipped lines"));
        }
        Ok(None)
    }
}

impl<R: BufRead> Steps for Csv<R> {
    fn step(&mut self) -> Result<Option<Event>, TraceError> {
        self.next_event()
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// Returns whether the line's end was found.
fn skip_line(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(false);
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

fn parse(line: &str) -> Result<Row, &'static str> {
    let mut columns = line.split(',').map(str::trim);
    let mut column = || columns.next().ok_or("fewer than seven columns");
    let [time, operation, process, thread, address, length, access] =
        [column()?, column()?, column()?, column()?, column()?, column()?, column()?];
    if columns.next().is_some() {
        return Err("more than seven columns");
    }
    let goes_on = operation.ends_with('+');
    let name = operation.trim_end_matches('+');
    let operation = Operation::ALL.into_iter().find(|operation| operation.name() == name).ok_or("no such operation")?;
    let address = match address.strip_prefix("0x").or_else(|| address.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).map_err(|_| "no address"),
        Some(_) => Err("no address"),
        None => address.parse().map_err(|_| "no address"),
    };
    Ok(Row {
        time: time.parse().map_err(|_| "no time")?,
        operation,
        goes_on,
        process: process.parse().map_err(|_| "no process")?,
        thread: thread.parse().map_err(|_| "no thread")?,
        span: Span { address: address?, length: length.parse().map_err(|_| "no length")? },
        access: parse_access(access)?,
    })
}

fn parse_access(text: &str) -> Result<Access, &'static str> {
    let right = |letter| LETTERS.iter().find(|(_, known)| *known == letter).map(|&(right, _)| right);
    match text {
        "-" => Ok(Access::empty()),
        "" => Err("no access"),
        letters => letters.chars().map(right).collect::<Option<Access>>().ok_or("no such access"),
    }
}
