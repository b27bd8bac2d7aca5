//! The form for a recorder: some five to ten bytes an event, appended in frames.
//!
//! All fixed numbers are little-endian. A *varint* is LEB128: seven bits a byte, the lowest first, the top bit set on all
//! but the last byte; at most ten bytes. *zigzag* makes a signed difference unsigned: 0, −1, 1, −2 become 0, 1, 2, 3.
//! Differences wrap around at 2⁶⁴.
//!
//! | byte | |
//! | --- | --- |
//! | 0–7 | `89 4d 52 47 0d 0a 1a 0a`: `MRG` between bytes that a transfer as text would change |
//! | 8 | the version, 1 |
//! | 9–15 | 0, reserved |
//! | 16– | frames, the last of which is empty |
//!
//! A frame:
//!
//! | byte | |
//! | --- | --- |
//! | 0–3 | bytes of content, n; 1 to 2,097,152; 0 in the last frame |
//! | 4–7 | CRC-32 (that of gzip) of the content; in the last frame that of bytes 8–15 |
//! | 8– | n bytes of content: whole events; in the last frame 8 bytes, the number of events in the file |
//!
//! Content is understood without any other frame: before its first event the last time and address are 0, process and
//! thread 0, the rights none. An event:
//!
//! | | |
//! | --- | --- |
//! | 1 byte | bits 0–1: 0 request, 1 acquire, 2 release, 3 invalidate; bit 2: several ranges; bit 3: another process or thread than the last event's; bit 4: other rights; bit 5: whole pages; bits 6–7: 0 |
//! | varint | time less the last event's time, zigzag |
//! | 2 varints | process and thread, if bit 3 |
//! | 1 byte | the rights, if bit 4: 1 local read, 2 local write, 4 remote read, 8 remote write, 16 remote atomic |
//! | varint | the number of ranges, 1 to 65,536, if bit 2 |
//! | 2 varints a range | address less that of the range before it (of the last event, for the first), zigzag; length. Both in pages of 4,096 bytes if bit 5: then all addresses and lengths of the event, and the address before it, are multiples of 4,096 |
//!
//! Without the last frame the file is cut short. If that is accepted, every event that is there whole is read, also those of a
//! frame that is not included, which no checksum proves; otherwise those of whole frames before the error. A recorder needs
//! nothing but memory for one frame and `write`; threads may each fill a frame of their own.

use super::{CutShort, MAX_RANGES, Operation, WHOLE_COPY, failed, unrecordable, unusable, wrong};
use crate::reader::Steps;
use crate::{Event, Span, Spans, Summary, TraceError};
use mrrc_core::{Access, PAGE};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"\x89MRG\r\n\x1a\n";
/// The version that is written.
pub const VERSION: u8 = 1;
/// Content of a frame, at most.
pub const MAX_FRAME: usize = 2 << 20;
/// A frame is closed when its content has grown to this.
const FULL: usize = 64 << 10;

const SEVERAL: u8 = 1 << 2;
const ANOTHER: u8 = 1 << 3;
const RIGHTS: u8 = 1 << 4;
const PAGES: u8 = 1 << 5;
const RESERVED: u8 = 0b1100_0000;

/// The base of an event's differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Last {
    time: u64,
    address: u64,
    process: u32,
    thread: u32,
    access: Access,
}

const START: Last = Last { time: 0, address: 0, process: 0, thread: 0, access: Access::empty() };

/// Collects events into a frame. Single-threaded, by `&mut`; it allocates only when a frame is longer than any before it.
#[derive(Debug)]
pub struct Encoder {
    /// Eight bytes for the head of the frame, then its content.
    frame: Vec<u8>,
    last: Last,
}

const HEAD: usize = 8;

impl Default for Encoder {
    fn default() -> Self {
        let mut frame = Vec::with_capacity(HEAD + FULL + 256);
        frame.extend([0; HEAD]);
        Self { frame, last: START }
    }
}

impl Encoder {
    /// Returns the sixteen bytes at the head of a file.
    pub fn header() -> [u8; 16] {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&MAGIC);
        header[8] = VERSION;
        header
    }

    /// Returns the last frame.
    pub fn end(events: u64) -> [u8; 16] {
        let count = events.to_le_bytes();
        let mut end = [0; 16];
        end[4..8].copy_from_slice(&crc32fast::hash(&count).to_le_bytes());
        end[8..].copy_from_slice(&count);
        end
    }

    /// Adds an event. The answer says whether the frame is full and should be taken.
    ///
    /// # Errors
    /// Why the event cannot be recorded: it has no bytes, or lies past the end of the address space.
    pub fn push(&mut self, event: &Event) -> Result<bool, &'static str> {
        if let Some(why) = unrecordable(event) {
            return Err(why);
        }
        let spans = event.action.spans();
        let before = self.last;
        let another = (event.process, event.client) != (before.process, before.thread);
        let rights = event.access != before.access;
        let whole = before.address.is_multiple_of(PAGE)
            && spans.iter().all(|span| span.address.is_multiple_of(PAGE) && span.length.is_multiple_of(PAGE));
        let flag = |condition, bit| if condition { bit } else { 0 };
        let flags = flag(spans.len() > 1, SEVERAL) | flag(another, ANOTHER) | flag(rights, RIGHTS) | flag(whole, PAGES);
        let out = &mut self.frame;
        out.push(Operation::of(&event.action) as u8 | flags);
        put(out, zigzag(event.time.wrapping_sub(before.time)));
        if another {
            put(out, event.process.into());
            put(out, event.client.into());
        }
        if rights {
            out.push(event.access.bits());
        }
        if spans.len() > 1 {
            put(out, spans.len() as u64);
        }
        let unit = if whole { PAGE } else { 1 };
        let mut address = before.address;
        for span in spans {
            // In pages, both are multiples: the difference of the quotients does not wrap.
            put(out, zigzag((span.address / unit).wrapping_sub(address / unit)));
            put(out, span.length / unit);
            address = span.address;
        }
        self.last =
            Last { time: event.time, address, process: event.process, thread: event.client, access: event.access };
        Ok(self.frame.len() >= HEAD + FULL)
    }

    /// Writes the frame, if it has any content, by a single call of `write_all`, and begins another.
    ///
    /// # Errors
    /// The output's.
    pub fn take(&mut self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let content = self.frame.len() - HEAD;
        if content == 0 {
            return Ok(());
        }
        let checksum = crc32fast::hash(&self.frame[HEAD..]);
        self.frame[..4].copy_from_slice(&(content as u32).to_le_bytes());
        self.frame[4..HEAD].copy_from_slice(&checksum.to_le_bytes());
        let written = out.write_all(&self.frame);
        self.frame.truncate(HEAD);
        self.last = START;
        written
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns a wrapped difference, near 0 for near numbers on either side.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Why an event could not be taken from a frame's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bad {
    /// It goes on after the end.
    Cut,
    /// It is none.
    Noise(&'static str),
}

/// The content of a frame, read from its start.
struct Content<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Content<'_> {
    fn byte(&mut self) -> Result<u8, Bad> {
        let byte = self.bytes.get(self.at).copied().ok_or(Bad::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Bad> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Bad::Noise("a number beyond 64 bits"))
    }

    fn small(&mut self) -> Result<u32, Bad> {
        self.varint()?.try_into().map_err(|_| Bad::Noise("a process or thread beyond 32 bits"))
    }

    fn event(&mut self, last: &mut Last) -> Result<Event, Bad> {
        let tag = self.byte()?;
        if tag & RESERVED != 0 {
            return Err(Bad::Noise("a reserved bit is set"));
        }
        let operation = Operation::ALL[usize::from(tag & 3)];
        let mut next = *last;
        next.time = last.time.wrapping_add(unzigzag(self.varint()?));
        if tag & ANOTHER != 0 {
            (next.process, next.thread) = (self.small()?, self.small()?);
        }
        if tag & RIGHTS != 0 {
            next.access = Access::from_bits(self.byte()?).ok_or(Bad::Noise("no such access"))?;
        }
        let ranges = if tag & SEVERAL != 0 { self.varint()? } else { 1 };
        if ranges == 0 || ranges > MAX_RANGES as u64 {
            return Err(Bad::Noise("not 1 to 65,536 ranges"));
        }
        let unit = if tag & PAGES != 0 { PAGE } else { 1 };
        let mut spans = Spans::new();
        for _ in 0..ranges {
            let start = (next.address / unit).wrapping_add(unzigzag(self.varint()?));
            let [start, length] = [start, self.varint()?].map(|number| number.checked_mul(unit));
            let (Some(address), Some(length)) = (start, length) else {
                return Err(Bad::Noise("past the end of the address space"));
            };
            let span = Span { address, length };
            if let Some(why) = unusable(span) {
                return Err(Bad::Noise(why));
            }
            next.address = address;
            spans.push(span);
        }
        let action = operation.action(spans).ok_or(Bad::Noise("an invalidation of several ranges"))?;
        let Last { time, process, thread, access, .. } = next;
        *last = next;
        Ok(Event { time, process, client: thread, access, action })
    }
}

/// Reads this form, a frame at a time.
pub struct Binary<R> {
    file: PathBuf,
    input: R,
    cut: CutShort,
    summary: Summary,
    content: Vec<u8>,
    /// The number of bytes read of the content.
    at: usize,
    last: Last,
    /// The frame in `content` is not whole.
    is_cut: bool,
    /// The offset of `content` in the file.
    offset: u64,
}

impl<R> fmt::Debug for Binary<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binary").field("file", &self.file).field("summary", &self.summary).finish_non_exhaustive()
    }
}

impl<R: Read> Binary<R> {
    /// Reads the head. `file` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Content`] if the head is not there or of another version.
    pub fn new(file: &Path, input: R, cut: CutShort) -> Result<Self, TraceError> {
        let summary = Summary::new("registrations: this project's recording, binary, version 1");
        let (file, content) = (file.to_owned(), Vec::new());
        let mut reader = Self { file, input, cut, summary, content, at: 0, last: START, is_cut: false, offset: 0 };
        let mut header = [0; 16];
        let read = reader.fill(&mut header)?;
        let foreign = |what| Err(wrong(&reader.file, "byte 0".to_owned(), what, "name the format that it has"));
        if !MAGIC.starts_with(&header[..read.min(8)]) {
            return foreign("not a binary recording");
        }
        if read < header.len() {
            return foreign("cut short within its first 16 bytes");
        }
        if header[8] != VERSION || header[9..] != [0; 7] {
            let what = format!("version {} of the recording, only {VERSION} is known", header[8]);
            return Err(wrong(&reader.file, "byte 8".to_owned(), what, "read it with a later version of this tool"));
        }
        Ok(reader)
    }

    /// Reads until the buffer is full or the input ends.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TraceError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.input.read(&mut buffer[done..]) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&self.file, error)),
            }
        }
        self.offset += done as u64;
        Ok(done)
    }

    fn wrong_at(&self, at: u64, what: impl Into<String>, remedy: &str) -> TraceError {
        wrong(&self.file, format!("byte {at}"), what, remedy)
    }

    /// Returns the next frame into `content`; `false` after the last.
    fn next_frame(&mut self) -> Result<bool, TraceError> {
        let begin = self.offset;
        let mut head = [0; HEAD];
        if self.fill(&mut head)? < HEAD {
            return self.end_early();
        }
        let [length, checksum] =
            [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        if length as usize > MAX_FRAME {
            return Err(self.wrong_at(begin, format!("a frame of {length} bytes"), DAMAGED));
        }
        let is_last = length == 0;
        let length = if is_last { 8 } else { u64::from(length) };
        self.content.clear();
        self.at = 0;
        self.last = START;
        let read = self.input.by_ref().take(length).read_to_end(&mut self.content);
        let read = read.map_err(|error| failed(&self.file, error))? as u64;
        self.offset += read;
        self.is_cut = read < length;
        if self.is_cut {
            // Nothing proves its content: it may be its length that is damaged, and others' bytes that follow.
            let accepted = !is_last && self.cut == CutShort::Accepted;
            return if accepted { Ok(true) } else { self.end_early() };
        }
        if crc32fast::hash(&self.content) != checksum {
            return Err(self.wrong_at(begin, "a frame whose checksum does not match", DAMAGED));
        }
        if is_last {
            return self.end(begin);
        }
        Ok(true)
    }

    fn end(&mut self, begin: u64) -> Result<bool, TraceError> {
        let count = self.content[..].try_into().map_or(0, u64::from_le_bytes);
        if count != self.summary.events {
            let what = format!("{count} events were written, {} are there", self.summary.events);
            return Err(self.wrong_at(begin, what, DAMAGED));
        }
        if self.fill(&mut [0])? > 0 {
            return Err(self.wrong_at(self.offset - 1, "something follows the last frame", DAMAGED));
        }
        Ok(false)
    }

    fn end_early(&mut self) -> Result<bool, TraceError> {
        if self.cut == CutShort::Refused {
            return Err(self.wrong_at(self.offset, "cut short", WHOLE_COPY));
        }
        self.summary.skip("cut short", self.summary.events + 1, "");
        Ok(false)
    }

    fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        while self.at == self.content.len() {
            let more = if self.is_cut { self.end_early()? } else { self.next_frame()? };
            if !more {
                return Ok(None);
            }
        }
        let mut content = Content { bytes: &self.content, at: self.at };
        match content.event(&mut self.last) {
            Ok(event) => {
                self.at = content.at;
                self.summary.read(&event);
                Ok(Some(event))
            }
            Err(Bad::Cut) if self.is_cut => self.end_early().map(|_| None),
            Err(bad) => {
                let what = match bad {
                    Bad::Cut => "an event that goes on after its frame",
                    Bad::Noise(what) => what,
                };
                let at = self.offset - (self.content.len() - self.at) as u64;
                Err(self.wrong_at(at, what, DAMAGED))
            }
        }
    }
}

const DAMAGED: &str = "the file is damaged from here on: copy or record it again";

impl<R: Read> Steps for Binary<R> {
    fn step(&mut self) -> Result<Option<Event>, TraceError> {
        self.next_event()
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}
