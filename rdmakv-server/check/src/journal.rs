//! The journal of one thread, in a file that outlives the process. A line is there before the request goes out, and its
//! answer once it has come, so that every operation that a killed client may have done is known.
//!
//! The file is mapped and shared; one thread writes it, and others read it during the run (progress) or afterwards (the
//! checker). A line is six words: its begin; its end (0: not yet, written last); kinds, key and expiry; the value to be
//! written; the other value of a CAS, or of a torn one; the value that was seen.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memmap2::MmapRaw;

use crate::history::NEVER;
use crate::record::{Answer, Record, Request, Transport};
use crate::values::MOST_LINES;

/// Words before the first line: how many lines there are, how many answers made no sense.
const START: usize = 2;
const LINE: usize = 6;

/// Words of a file that several processes share.
#[derive(Debug)]
pub struct Words {
    map: MmapRaw,
    count: usize,
}

impl Words {
    /// Returns a file of so many words, all 0; it takes room on the disk only where it is written. A reader that finds
    /// it finds all of it.
    ///
    /// # Errors
    ///
    /// As opening and mapping have them.
    pub fn create(path: &Path, count: usize) -> io::Result<Self> {
        let new = path.with_extension("new");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&new)?;
        file.set_len(count as u64 * 8)?;
        std::fs::rename(new, path)?;
        Ok(Self { map: MmapRaw::map_raw(&file)?, count })
    }

    /// Returns a file that is there.
    ///
    /// # Errors
    ///
    /// As opening and mapping have them.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let map = MmapRaw::map_raw(&file)?;
        Ok(Self { count: map.len() / 8, map })
    }

    /// One of the words.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn at(&self, place: usize) -> &AtomicU64 {
        assert!(place < self.count, "word {place} of {}", self.count);
        // SAFETY: the mapping is that long, starts on a page and lives as long as `self`; all processes that share it use
        // atomics only. The file is never made shorter: it lies in the run's own directory.
        #[expect(unsafe_code, reason = "memory that processes share is not a Rust object")]
        unsafe {
            &*self.map.as_mut_ptr().cast::<AtomicU64>().add(place)
        }
    }
}

/// A thread's journal.
#[derive(Debug)]
pub struct Journal {
    words: Words,
}

impl Journal {
    /// Returns an empty one for at most so many lines.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn create(path: &Path, lines: usize) -> io::Result<Self> {
        Ok(Self { words: Words::create(path, START + lines.min(MOST_LINES) * LINE)? })
    }

    /// One that is there.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { words: Words::open(path)? })
    }

    /// How many lines there are.
    pub fn lines(&self) -> usize {
        self.words.at(0).load(Acquire) as usize
    }

    /// Returns whether it has no room for another.
    pub fn is_full(&self) -> bool {
        START + (self.lines() + 1) * LINE > self.words.count
    }

    /// Notes an answer that made no sense.
    pub fn note_nonsense(&self) {
        self.words.at(1).fetch_add(1, Relaxed);
    }

    /// How many answers made no sense.
    pub fn nonsense(&self) -> u64 {
        self.words.at(1).load(Relaxed)
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        self.words.at(START + line * LINE + word)
    }

    /// Writes what is asked for; gives the line's number.
    pub fn begin(&self, record: &Record) -> usize {
        let line = self.lines();
        let (value, from) = match record.request {
            Request::Set(value) | Request::Add(value) => (value, 0),
            Request::Cas { from, to } => (to, from),
            _ => (0, 0),
        };
        self.word(line, 0).store(record.begin, Relaxed);
        self.word(line, 2).store(head(record), Relaxed);
        self.word(line, 3).store(value, Relaxed);
        self.word(line, 4).store(from, Relaxed);
        self.words.at(0).store(line as u64 + 1, Release);
        line
    }

    /// Writes what came of it.
    pub fn end(&self, line: usize, record: &Record) {
        match record.answer {
            Answer::Value(value) => self.word(line, 5).store(value, Relaxed),
            Answer::Torn(one, other) => {
                self.word(line, 5).store(one, Relaxed);
                self.word(line, 4).store(other, Relaxed);
            }
            _ => {}
        }
        self.word(line, 2).store(head(record), Relaxed);
        self.word(line, 1).store(record.end, Release);
    }

    /// Returns the key of a line.
    pub fn key(&self, line: usize) -> u32 {
        (self.word(line, 2).load(Relaxed) >> 32) as u32
    }

    /// Returns a line.
    pub fn record(&self, line: usize) -> Record {
        let end = self.word(line, 1).load(Acquire);
        let word = |word| self.word(line, word).load(Relaxed);
        let (begin, head, value, from, seen) = (word(0), word(2), word(3), word(4), word(5));
        let request = match head & 15 {
            0 => Request::Get,
            1 => Request::Set(value),
            2 => Request::Add(value),
            3 => Request::Cas { from, to: value },
            4 => Request::Incr,
            5 => Request::Delete,
            6 => Request::Touch,
            _ => Request::Flush,
        };
        let answer = match head >> 4 & 15 {
            1 => Answer::Value(seen),
            2 => Answer::Done,
            3 => Answer::Refused,
            4 => Answer::Absent,
            5 => Answer::NotDone,
            6 => Answer::Torn(seen, from),
            _ => Answer::Unknown,
        };
        let is_known = end != 0 && answer != Answer::Unknown;
        Record {
            begin,
            end: if is_known { end } else { NEVER },
            key: (head >> 32) as u32,
            request,
            answer: if is_known { answer } else { Answer::Unknown },
            expiry: (head >> 16) as u8,
            transport: Transport::ALL[(head >> 8 & 7) as usize % Transport::ALL.len()],
            one_sided: head >> 11 & 1 == 1,
        }
    }
}

fn head(record: &Record) -> u64 {
    let request = match record.request {
        Request::Get => 0,
        Request::Set(_) => 1,
        Request::Add(_) => 2,
        Request::Cas { .. } => 3,
        Request::Incr => 4,
        Request::Delete => 5,
        Request::Touch => 6,
        Request::Flush => 7,
    };
    let answer = match record.answer {
        Answer::Unknown => 0,
        Answer::Value(_) => 1,
        Answer::Done => 2,
        Answer::Refused => 3,
        Answer::Absent => 4,
        Answer::NotDone => 5,
        Answer::Torn(..) => 6,
    };
    request
        | answer << 4
        | (record.transport as u64) << 8
        | u64::from(record.one_sided) << 11
        | u64::from(record.expiry) << 16
        | u64::from(record.key) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let written = Journal::create(&path, 100).unwrap();
        let requests = [
            Request::Get,
            Request::Set(1),
            Request::Add(2),
            Request::Cas { from: 3, to: u64::MAX },
            Request::Incr,
            Request::Delete,
            Request::Touch,
            Request::Flush,
        ];
        let answers =
            [Answer::Value(5), Answer::Done, Answer::Refused, Answer::Absent, Answer::NotDone, Answer::Torn(6, 7)];
        let mut records = Vec::new();
        for (at, request) in requests.into_iter().enumerate() {
            for (over, answer) in answers.into_iter().enumerate() {
                if matches!(answer, Answer::Torn(..)) && request != Request::Get {
                    continue;
                }
                let (begin, end, key, expiry) = (at as u64 + 1, 9 + over as u64, u32::MAX - at as u32, 255);
                let (transport, one_sided) = (Transport::ALL[over % 5], over % 2 == 0);
                records.push(Record { begin, end, key, request, answer, expiry, transport, one_sided });
            }
        }
        for record in &records {
            let line = written.begin(record);
            assert_eq!(written.record(line).answer, Answer::Unknown);
            assert_eq!(written.record(line).end, NEVER);
            written.end(line, record);
        }
        let read = Journal::open(&path).unwrap();
        assert_eq!((0..read.lines()).map(|line| read.record(line)).collect::<Vec<_>>(), records);
    }
}
