//! The form that a running program writes: records of 32 bytes behind a head that counts them.
//!
//! [`traces_record::layout`] has it byte by byte. It can be read at any time, also while it is written and after the program was
//! killed: what was finished is there. Records that were begun and not finished, damaged ones, and those after the file had
//! reached its limit are passed over and counted. A file that is shorter than its head says is cut short, as in the other forms.

use super::{CutShort, WHOLE_COPY, failed, unusable, wrong};
use crate::file::MOST_MEMBERS;
use crate::reader::Steps;
use crate::{Action, Event, Span, Summary, TraceError};
use hashbrown::HashMap;
use mrrc_core::Access;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use traces_record::layout::{HEAD, Head, NoHead, Operation, Place, RECORD, Record};

pub use traces_record::layout::MAGIC;

/// Records read at a time.
const BATCH: usize = 1024;

/// Reads this form.
pub struct Mapped<R> {
    file: PathBuf,
    input: R,
    cut: CutShort,
    summary: Summary,
    head: Head,
    /// Records that are behind.
    done: u64,
    batch: Vec<u8>,
    at: usize,
    /// Processes by the number that the kernel gave them, and their domains, in the order in which they came up: each has a
    /// cache of its own.
    processes: HashMap<(u32, u8), u32, FxBuildHasher>,
    is_over: bool,
}

impl<R> fmt::Debug for Mapped<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("file", &self.file).field("summary", &self.summary).finish_non_exhaustive()
    }
}

impl<R: Read> Mapped<R> {
    /// Reads the head. `file` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Content`] if the head is not there or of another version.
    pub fn new(file: &Path, mut input: R, cut: CutShort) -> Result<Self, TraceError> {
        let mut bytes = [0; HEAD];
        let read = fill(&mut input, &mut bytes).map_err(|error| failed(file, error))?;
        let foreign = |what: &str| wrong(file, "byte 0".to_owned(), what, "name the format that it has");
        if read < HEAD && MAGIC.starts_with(&bytes[..read.min(8)]) {
            return Err(foreign("cut short within its first 4096 bytes"));
        }
        let head = Head::of_bytes(&bytes).map_err(|why| match why {
            NoHead::Foreign => foreign("not a recording of a running program"),
            NoHead::Version(version) => {
                let what = format!("version {version} of the recording, only 1 is known");
                wrong(file, "byte 8".to_owned(), what, "read it with a later version of this tool")
            }
        })?;
        let summary = Summary::new(understood(&head));
        let (file, batch) = (file.to_owned(), Vec::new());
        let processes = HashMap::default();
        Ok(Self { file, input, cut, summary, head, done: 0, batch, at: 0, processes, is_over: false })
    }

    /// Returns the next records into `batch`; `false` at the end.
    fn next_batch(&mut self) -> Result<bool, TraceError> {
        let left = self.head.records() - self.done;
        if left == 0 || self.is_over {
            return self.end();
        }
        let asked = RECORD * left.min(BATCH as u64) as usize;
        self.batch.resize(asked, 0);
        self.at = 0;
        let read = fill(&mut self.input, &mut self.batch).map_err(|error| failed(&self.file, error))?;
        self.batch.truncate(read - read % RECORD);
        if read < asked {
            self.is_over = true;
        }
        Ok(true)
    }

    fn end(&mut self) -> Result<bool, TraceError> {
        if self.summary.is_mostly_unreadable() {
            let what = format!("{} of {} records are damaged", self.summary.skipped(), self.done);
            return Err(wrong(&self.file, "record 1".to_owned(), what, "copy or record it again"));
        }
        if self.is_over {
            let (is, should) = (self.done, self.head.records());
            if self.cut == CutShort::Refused {
                let what = format!("cut short: {should} records were begun, {is} are there");
                return Err(wrong(&self.file, format!("record {}", is + 1), what, WHOLE_COPY));
            }
            self.summary.skip_many("cut short", should - is);
        }
        let left_out = self.head.left_out();
        if left_out > 0 {
            self.summary.skip_many(
                match (self.head.claimed > self.head.limit, self.head.stopped) {
                    (_, 1..) => "the file could not be made longer: is the disk full?",
                    (true, 0) => "came after the file had reached its limit (MRRC_RECORD_LIMIT)",
                    (false, 0) => "begun and not finished: the program was killed there, or is running",
                },
                left_out,
            );
        }
        Ok(false)
    }

    fn event(&mut self, record: Record) -> Result<Option<Event>, TraceError> {
        let Record { operation, access, process, thread, time, address, length, domain } = record;
        let span = Span { address, length };
        if let Some(why) = unusable(span) {
            self.summary.skip(why, self.done, "");
            return Ok(None);
        }
        let next = self.processes.len() as u32;
        let process = *self.processes.entry((process, domain)).or_insert(next);
        if process == MOST_MEMBERS {
            let what = format!("it has more than {MOST_MEMBERS} processes");
            return Err(wrong(&self.file, format!("record {}", self.done), what, "record fewer of them"));
        }
        let spans = smallvec::smallvec![span];
        let action = match operation {
            Operation::Request => Action::Request(spans),
            Operation::Acquire => Action::Acquire(spans),
            Operation::Release => Action::Release(spans),
            Operation::Invalidate => Action::Invalidate(span),
        };
        let event = Event { time, process, client: thread, access: Access::from_bits_truncate(access), action };
        self.summary.read(&event);
        Ok(Some(event))
    }
}

/// Returns the head's description of the run.
fn understood(head: &Head) -> String {
    let of = match head.source {
        1 => " of verbs",
        2 => " of MPI",
        _ => "",
    };
    let others = match head.others {
        0 => "",
        0b10 => "; verbs were used as well, and left out",
        _ => "; MPI was used as well, and left out",
    };
    let open = head.attached.saturating_sub(head.ended);
    let ends = match open {
        0 => String::new(),
        _ => format!("; {open} of {} processes run, or were ended otherwise than by exit", head.attached),
    };
    let unwatched = match head.unwatched {
        0 => String::new(),
        many => format!("; of {many} registrations it would be missing that their memory was unmapped"),
    };
    format!("registrations{of}: a recording as the program wrote it, version 1{others}{unwatched}{ends}")
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl<R: Read> Steps for Mapped<R> {
    fn step(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            let Some(bytes) = self.batch[self.at..].first_chunk::<RECORD>() else {
                if self.next_batch()? {
                    continue;
                }
                return Ok(None);
            };
            let place = Record::of_bytes(bytes);
            self.at += RECORD;
            self.done += 1;
            match place {
                Place::Written(record) => {
                    if let Some(event) = self.event(record)? {
                        return Ok(Some(event));
                    }
                }
                Place::Empty => {
                    self.summary.skip(
                        "begun and not finished: the program was killed there, or is running",
                        self.done,
                        "",
                    );
                }
                Place::Damaged => self.summary.skip("damaged", self.done, ""),
            }
        }
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}
