//! Bytes in pieces that a format reads one by one: lines, or records of a fixed or stated length.
//!
//! One buffer, used again and again; a piece is a view of it. A line is at most [`LONGEST_LINE`], so that noise without
//! line ends costs no memory.

use std::io::{self, Read};
use std::ops::Range;

/// The longest line that is read. A Mooncake request of a million tokens takes 20 KB.
pub(crate) const LONGEST_LINE: usize = 4 << 20;

/// The mark with which spreadsheets begin a UTF-8 text.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

const FIRST_BUFFER: usize = 256 << 10;

/// How bytes fall into pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// Lines, without their ends.
    Lines,
    /// Records of so many bytes.
    Records(usize),
    /// Records that begin with their length, 32 bits big endian, after an optional text that ends with a form feed.
    Srt,
}

/// A piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Frame {
    /// These bytes of [`Frames::bytes`], valid until the next call.
    Of(Range<usize>),
    /// A line that is too long; it has been passed over.
    TooLong,
    /// The text before binary records; it has been passed over.
    Header,
    /// The bytes cannot be cut: they are not what the format says, or end within a record.
    Broken(String),
    /// Nothing is left.
    End,
}

/// Pieces that were read at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) pieces: usize,
    /// Their bytes, ends of lines included.
    pub(crate) bytes: usize,
}

/// The pieces of a stream.
pub(crate) struct Frames {
    inner: Box<dyn Read + Send>,
    framing: Framing,
    buffer: Vec<u8>,
    /// The start of the bytes not yet handed out.
    start: usize,
    end: usize,
    at_end: bool,
    /// Position of `start` in the stream.
    offset: u64,
    /// Pieces handed out.
    count: u64,
    /// The next pieces, so many, are to be passed over.
    owed: u64,
    /// The range of the last one.
    last: Range<usize>,
}

impl Frames {
    pub(crate) fn new(inner: Box<dyn Read + Send>, framing: Framing) -> Self {
        Self {
            inner,
            framing,
            buffer: vec![0; FIRST_BUFFER],
            start: 0,
            end: 0,
            at_end: false,
            offset: 0,
            count: 0,
            owed: 0,
            last: 0..0,
        }
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Returns the number of the last piece, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.count
    }

    /// Returns the place of the last piece, in words: `line 17`.
    pub(crate) fn place(&self) -> String {
        match self.framing {
            Framing::Lines => format!("line {}", self.count),
            Framing::Records(_) | Framing::Srt => format!("record {}, byte {}", self.count, self.offset),
        }
    }

    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Returns the beginning of the last piece, as text: of records the bytes.
    pub(crate) fn last_text(&self) -> String {
        let last = &self.buffer[self.last.clone()];
        match self.framing {
            Framing::Lines => {
                let shown = String::from_utf8_lossy(&last[..last.len().min(200)]);
                shown.trim_end().chars().map(|c| if c.is_control() { '\u{b7}' } else { c }).collect()
            }
            _ => last.iter().take(24).map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// Bytes handed out so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the whole pieces that are in the buffer, lines with their ends. There are none where each piece has its own length,
    /// nor before the first line, which may begin with a mark.
    pub(crate) fn whole(&self) -> &[u8] {
        let there = &self.buffer[self.start..self.end];
        let bytes = match self.framing {
            _ if self.owed > 0 => 0,
            Framing::Records(size) => there.len() / size * size,
            Framing::Lines if self.count > 0 => memchr::memrchr(b'\n', there).map_or(0, |at| at + 1),
            Framing::Lines | Framing::Srt => 0,
        };
        &there[..bytes]
    }

    /// Passes over these of the [whole](Self::whole) pieces.
    pub(crate) fn pass(&mut self, taken: Taken) {
        if taken.pieces > 0 {
            self.take(taken.bytes);
            self.count += taken.pieces as u64;
        }
    }

    /// Passes over the next pieces, so many. They are read only if one after them is.
    pub(crate) fn owe(&mut self, pieces: usize) {
        self.owed += pieces as u64;
    }

    /// Passes over all that is left, without reading it.
    pub(crate) fn end(&mut self) {
        self.count += std::mem::take(&mut self.owed);
        self.start = self.end;
        self.at_end = true;
    }

    pub(crate) fn next(&mut self) -> io::Result<Frame> {
        while self.owed > 0 {
            self.owed -= 1;
            self.piece()?;
        }
        self.piece()
    }

    fn piece(&mut self) -> io::Result<Frame> {
        match self.framing {
            Framing::Lines => self.line(),
            Framing::Records(size) => self.record(size),
            Framing::Srt => self.srt(),
        }
    }

    /// Reads more, making room first. Whether there was more.
    fn fill(&mut self) -> io::Result<bool> {
        if self.at_end {
            return Ok(false);
        }
        if self.start > 0 && self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let read = loop {
            match self.inner.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.end += read;
        self.at_end = read == 0;
        Ok(read > 0)
    }

    fn take(&mut self, bytes: usize) -> Range<usize> {
        let range = self.start..self.start + bytes;
        self.last = range.clone();
        self.start += bytes;
        self.offset += bytes as u64;
        range
    }

    fn line(&mut self) -> io::Result<Frame> {
        let mut seen = 0;
        let mut too_long = false;
        let mut any = false;
        loop {
            let found = memchr::memchr(b'\n', &self.buffer[self.start + seen..self.end]);
            if let Some(at) = found {
                self.count += 1;
                let range = self.take(seen + at + 1);
                if too_long {
                    return Ok(Frame::TooLong);
                }
                let range = self.without_mark(range);
                let end = range.end - 1;
                let carriage = end > range.start && self.buffer[end - 1] == b'\r';
                return Ok(Frame::Of(range.start..end - usize::from(carriage)));
            }
            seen = self.end - self.start;
            any |= seen > 0;
            if seen > LONGEST_LINE {
                too_long = true;
                self.take(seen);
                seen = 0;
            }
            if !self.fill()? {
                if !any {
                    return Ok(Frame::End);
                }
                self.count += 1;
                let range = self.take(seen);
                return Ok(if too_long { Frame::TooLong } else { Frame::Of(self.without_mark(range)) });
            }
        }
    }

    /// Returns a line without the mark that some programs put before the first one.
    fn without_mark(&self, line: Range<usize>) -> Range<usize> {
        let is_marked = self.count == 1 && self.buffer[line.clone()].starts_with(BYTE_ORDER_MARK);
        line.start + if is_marked { BYTE_ORDER_MARK.len() } else { 0 }..line.end
    }

    /// Returns whether so many bytes are there.
    fn have(&mut self, bytes: usize) -> io::Result<bool> {
        while self.end - self.start < bytes {
            if !self.fill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn record(&mut self, size: usize) -> io::Result<Frame> {
        if self.have(size)? {
            self.count += 1;
            return Ok(Frame::Of(self.take(size)));
        }
        Ok(match self.end - self.start {
            0 => Frame::End,
            left => Frame::Broken(format!("the last record has {left} of {size} bytes")),
        })
    }

    fn srt(&mut self) -> io::Result<Frame> {
        if !self.have(4)? {
            return self.record(4);
        }
        let first = &self.buffer[self.start..self.start + 4];
        if self.offset == 0 && first.iter().all(|&byte| is_text(byte)) {
            return self.header();
        }
        let size = u32::from_be_bytes([first[0], first[1], first[2], first[3]]) as usize;
        if !(52..=256).contains(&size) {
            return Ok(Frame::Broken(format!("a record of {size} bytes, where they have 52 to 256")));
        }
        self.record(size)
    }

    /// Passes over text up to a form feed.
    fn header(&mut self) -> io::Result<Frame> {
        let mut seen = 0;
        loop {
            let text = &self.buffer[self.start + seen..self.end];
            if let Some(end) = text.iter().position(|&byte| byte == 0x0c) {
                self.take(seen + end + 1);
                return Ok(Frame::Header);
            }
            if !text.iter().all(|&byte| is_text(byte)) || self.end - self.start > LONGEST_LINE {
                return Ok(Frame::Broken("the text at the beginning does not end with a form feed".into()));
            }
            seen = self.end - self.start;
            if !self.fill()? {
                return Ok(Frame::Broken("there is only text, and no form feed after which records begin".into()));
            }
        }
    }
}

pub(crate) fn is_text(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r' | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a few bytes at a time.
    struct Drip(Vec<u8>, usize);

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(self.1).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    fn lines(text: &[u8], step: usize) -> Vec<Option<Vec<u8>>> {
        let mut frames = Frames::new(Box::new(Drip(text.to_vec(), step)), Framing::Lines);
        let mut all = Vec::new();
        loop {
            match frames.next().unwrap() {
                Frame::Of(range) => all.push(Some(frames.bytes(range).to_vec())),
                Frame::End => return all,
                _ => all.push(None),
            }
        }
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        let text = b"one\r\n\ntwo\nlast without end";
        let expected: Vec<_> = ["one", "", "two", "last without end"].map(|line| Some(line.as_bytes().to_vec())).into();
        for step in [1, 2, 3, 7, 100] {
            assert_eq!(lines(text, step), expected, "{step}");
        }
    }

    #[test]
    fn endless_line_is_skipped_in_bounded_memory() {
        let mut text = b"a\n".to_vec();
        text.resize(3 * LONGEST_LINE, b'x');
        text.extend(b"\nb\n");
        assert_eq!(lines(&text, usize::MAX), [Some(b"a".to_vec()), None, Some(b"b".to_vec())]);
        let mut frames = Frames::new(Box::new(Drip(text, 1 << 16)), Framing::Lines);
        while frames.next().unwrap() != Frame::End {}
        assert!(frames.buffer.len() <= 2 * LONGEST_LINE + FIRST_BUFFER);
    }
}
