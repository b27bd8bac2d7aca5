//! `objects`: `time id bytes`, requests for objects of a web cache. The time may be a mere count; its unit is as given, or by
//! the magnitude of the first.
//!
//! An object is as large as it ever is; each request asks for as much of it as it says.

use crate::layout::NO_BYTES;
use crate::number::{decimal, first_words};
use crate::numbered::Numbered;
use crate::parser::{self, Outcome, Parser};
use crate::times::{TimeUnit, Times};
use crate::{Event, ReadOptions, Span};
use mrrc_core::{Access, PageRange};
use std::collections::VecDeque;

pub(crate) struct Objects {
    store: Store,
    times: Times,
}

impl Objects {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        let unit = options.time_unit.map(TimeUnit::nanoseconds);
        Self { store: Store::default(), times: Times::new(unit) }
    }
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
        self.store.request(at, object, bytes)
    }

    fn lay_out(&mut self, pieces: u64) {
        self.store.lay_out(pieces);
    }

    fn recall(&mut self, asked: &mut Vec<PageRange>) -> (Access, bool) {
        self.store.recall(asked)
    }

    fn understood(&self) -> String {
        let (unit, _) = self.times.unit().unwrap_or_default();
        self.store.understood(&format!("times in units of {unit} ns"))
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
    pub(crate) fn recall(&mut self, asked: &mut Vec<PageRange>) -> (Access, bool) {
        (Access::LOCAL, self.layout.recall(asked))
    }

    pub(crate) fn understood(&self, times: &str) -> String {
        let objects = self.layout.objects();
        format!("{times}; {objects} objects side by side, each as large as it ever is; to read and to write")
    }
}
