//! `objects`: `time id bytes`, requests for objects of a web cache. The time may be a mere count; its unit is as given, or by
//! the magnitude of the first.
//!
//! An object is as large as it ever is; each request asks for as much of it as it says.

use crate::frames::Taken;
use crate::layout::NO_BYTES;
use crate::number::{decimal, first_words, leading};
use crate::numbered::{BATCH, Numbered};
use crate::parser::{self, Outcome, Parser};
use crate::times::{TimeUnit, Times};
use crate::{Event, ReadOptions, Span, Step};
use mrrc_core::{Access, PageRange};
use std::collections::VecDeque;

pub(crate) struct Objects {
    store: Store,
    times: Times,
    /// The last time, and how many were too large at the first reading and at the second.
    last: u64,
    too_large: [u64; 2],
}

impl Objects {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        let unit = options.time_unit.map(TimeUnit::nanoseconds);
        Self { store: Store::default(), times: Times::new(unit), last: 0, too_large: [0; 2] }
    }

    /// Returns a time, or the one before it in place of one that is too large.
    fn time_of(&mut self, time: u64) -> u64 {
        if time == u64::MAX {
            self.too_large[usize::from(self.store.layout.is_laid_out())] += 1;
        } else {
            self.last = time;
        }
        self.last
    }
}

/// A line that is a plain request: object, bytes, and the line's length with its end.
type Plain = (u64, u64, usize);

/// Returns the first line, if it has nothing unusual. All others are [parsed](Objects::parse).
#[inline]
fn plain(text: &[u8]) -> Option<Plain> {
    let (_, mut at) = leading(text)?;
    if text.get(at) == Some(&b'.') {
        at += 1;
        at += text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    }
    at += blanks(&text[at..])?;
    let (object, digits) = leading(&text[at..])?;
    at += digits;
    at += blanks(&text[at..])?;
    let (bytes, digits) = leading(&text[at..])?;
    at += digits;
    at += usize::from(text.get(at) == Some(&b'\r'));
    (bytes > 0 && text.get(at) == Some(&b'\n')).then_some((object, bytes, at + 1))
}

/// Returns how many blanks are there, if there are any.
#[inline]
fn blanks(text: &[u8]) -> Option<usize> {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    (blanks > 0).then_some(blanks)
}

/// Returns the plain lines up to the first other one.
fn plain_lines(mut text: &[u8]) -> impl Iterator<Item = Plain> {
    std::iter::from_fn(move || {
        let line = plain(text)?;
        text = &text[line.2..];
        Some(line)
    })
}

impl Parser for Objects {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let Some(([at, object, bytes], false)) = first_words(line) else {
            let is_blank = line.trim_ascii().is_empty();
            return if is_blank { Outcome::Other } else { Outcome::Bad("it has not three fields") };
        };
        let numbers = (self.times.number(at), decimal(object), decimal(bytes));
        let (Some(at), Some(object), Some(bytes)) = numbers else {
            return Outcome::Bad(crate::number::wrong(&[at, object, bytes]));
        };
        let time = self.time_of(at);
        self.store.request(time, object, bytes)
    }

    fn note(&mut self, lines: &[u8]) -> Taken {
        let mut taken = Taken::default();
        // The first time decides on the unit.
        if self.times.unit().is_none() {
            return taken;
        }
        let mut lines = plain_lines(lines);
        let mut batch = [(0, 0); BATCH];
        loop {
            let mut filled = 0;
            for (place, (object, bytes, length)) in batch.iter_mut().zip(&mut lines) {
                *place = (object, bytes);
                taken.bytes += length;
                filled += 1;
            }
            self.store.note(&batch[..filled]);
            taken.pieces += filled;
            if filled < BATCH {
                return taken;
            }
        }
    }

    fn requests(&mut self, lines: &[u8], steps: &mut Vec<Step>) -> Taken {
        let mut taken = Taken::default();
        for (object, bytes, length) in plain_lines(lines) {
            let Some(pages) = self.store.pages(object, bytes) else { break };
            steps.push(Step::request(pages));
            taken.pieces += 1;
            taken.bytes += length;
        }
        taken
    }

    fn lay_out(&mut self, pieces: u64) {
        self.last = 0;
        self.store.lay_out(pieces);
    }

    fn recall(&mut self, steps: &mut Vec<Step>) -> bool {
        self.store.recall(steps)
    }

    fn untimed(&self) -> u64 {
        // One of the readings may have taken plain lines without their times.
        self.too_large[0].max(self.too_large[1])
    }

    fn understood(&self) -> String {
        let unit = self.times.unit().and_then(|(unit, _)| TimeUnit::of_nanoseconds(unit));
        self.store.understood(&unit.map_or("no times".into(), |unit| format!("times in {}", unit.name())))
    }
}

/// Objects known by number, requested for as many bytes as each request says.
#[derive(Default)]
pub(crate) struct Store {
    layout: Numbered,
}

impl Store {
    pub(crate) fn request(&mut self, time: u64, object: u64, bytes: u64) -> Outcome {
        if bytes == 0 {
            return Outcome::LeftOut(NO_BYTES);
        }
        if !self.layout.is_laid_out() {
            self.layout.note(&[(object, bytes)]);
            return Outcome::Noted;
        }
        match self.layout.find(object) {
            Ok(address) => parser::request(time, 0, Access::LOCAL, Span { address, length: bytes }),
            Err(why) => Outcome::Bad(why),
        }
    }

    /// Notes requests at the first reading, at most as many as a [batch](crate::numbered::BATCH) has.
    pub(crate) fn note(&mut self, batch: &[(u64, u64)]) {
        self.layout.note(batch);
    }

    /// Returns the pages of the next request at the second reading, which is for at least one byte. Where there are none, it stays
    /// the next.
    #[inline]
    pub(crate) fn pages(&mut self, object: u64, bytes: u64) -> Option<PageRange> {
        let address = self.layout.peek(object).ok()?;
        let pages = Span { address, length: bytes }.pages().ok()?;
        self.layout.pass();
        Some(pages)
    }

    pub(crate) fn lay_out(&mut self, pieces: u64) {
        self.layout.lay_out(pieces);
    }

    /// See [`Parser::recall`].
    pub(crate) fn recall(&mut self, steps: &mut Vec<Step>) -> bool {
        self.layout.recall(steps)
    }

    pub(crate) fn understood(&self, times: &str) -> String {
        let objects = self.layout.objects();
        let objects = if objects == 1 { "1 object".into() } else { format!("{objects} objects side by side") };
        format!("{times}; {objects}, each as large as it ever is; to read and to write")
    }
}
