//! `mambo`: application I/O traces of the University of Maryland, in their ASCII form.
//!
//! A header of three numbers (processes, files, records), perhaps followed by the position of the records; for each file a
//! line with the length of its name and the name; then records `op nrec pid file wall process offset length`: operation (0
//! open, 1 close, 2 read, 3 write, 4 seek, 5 header of a list), an unused count, process, number of the file from 0, time in
//! seconds since the start, processor time, and the bytes. Reads are kept.
//!
//! The size of a file is not in the trace: a file is as large as it is ever read.

use crate::Event;
use crate::Span;
use crate::layout::{Id, Layout, NO_BYTES, Names};
use crate::number::{decimal, first_words, time, words};
use crate::parser::{self, Outcome, PAST_END, Parser};
use mrrc_core::Access;
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Mambo {
    header: Header,
    clients: Names<Box<[u8]>>,
    layout: Layout<Id>,
}

/// How much of the header is behind.
#[derive(Default)]
struct Header {
    numbers: Vec<u64>,
    names: u64,
}

impl Header {
    /// Takes a line of it, or says that it is over.
    fn take(&mut self, line: &[u8]) -> Option<Outcome> {
        if self.numbers.len() < 3 {
            let numbers: Option<Vec<u64>> = words(line).take(5).map(decimal).collect();
            let Some(numbers) = numbers.filter(|numbers| self.numbers.len() + numbers.len() <= 4) else {
                return Some(Outcome::Broken("the header is not processes, files and records".into()));
            };
            self.numbers.extend(numbers);
            return Some(Outcome::Other);
        }
        if self.names == self.numbers[1] {
            return None;
        }
        let mut words = words(line);
        let length = words.next().map(decimal);
        match length {
            None => return Some(Outcome::Other),
            Some(None) => {
                let what = format!("not the length and the name of file {} of {}", self.names, self.numbers[1]);
                return Some(Outcome::Broken(what));
            }
            // The position of the records, on a line of its own.
            Some(Some(_)) if self.names == 0 && words.next().is_none() && self.numbers.len() == 3 => {
                self.numbers.push(0)
            }
            Some(Some(_)) => self.names += 1,
        }
        Some(Outcome::Other)
    }
}

impl Parser for Mambo {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        if let Some(outcome) = self.header.take(line) {
            return outcome;
        }
        let Some(([op, _, process, file, wall, _, offset, length], _)) = first_words(line) else {
            let is_blank = line.trim_ascii().is_empty();
            return if is_blank { Outcome::Other } else { Outcome::Bad("it has not eight fields") };
        };
        match op {
            b"2" | b"READ" | b"read" => {}
            b"0" | b"1" | b"3" | b"4" | b"5" => return Outcome::LeftOut("the operation is not a read"),
            _ => return Outcome::Bad("the operation is none of 0 to 5"),
        }
        let (Some(at), Some(file)) = (time(wall, 1_000_000_000), decimal(file)) else {
            return Outcome::Bad("file or time is no number");
        };
        let (Some(offset), Some(length)) = (decimal(offset), decimal(length)) else {
            return Outcome::Bad("offset or length is no number");
        };
        if file >= self.header.numbers[1] {
            return Outcome::Bad("there is no file of that number");
        }
        if length == 0 {
            return Outcome::LeftOut(NO_BYTES);
        }
        let Some(end) = offset.checked_add(length) else { return Outcome::Bad(PAST_END) };
        if !self.layout.is_laid_out() {
            self.layout.note(&Id(file), end);
            return Outcome::Noted;
        }
        let client = self.clients.number(process);
        match self.layout.find(&Id(file)) {
            Ok(Span { address, .. }) => {
                // It lies within the file as laid out, unless the file on disk has changed since.
                let Some(address) = address.checked_add(offset) else { return Outcome::Bad(PAST_END) };
                parser::request(at, client, Access::LOCAL_READ, Span { address, length })
            }
            Err(why) => Outcome::Bad(why),
        }
    }

    fn lay_out(&mut self, _: u64) {
        self.layout.lay_out();
        self.header = Header::default();
    }

    fn understood(&self) -> String {
        let files = self.layout.objects();
        format!("{files} files that are read, side by side, each as large as it is ever read; times in seconds")
    }
}
