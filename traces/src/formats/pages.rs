//! `pages`: CSV with the header `start_page,pages`, one request a line. The source of the golden counts.

use crate::number::{decimal, fields};
use crate::parser::{Outcome, Parser};
use crate::{Event, Span};
use mrrc_core::{Access, PageRange};
use std::collections::VecDeque;

pub(crate) const HEADER: &[u8] = b"start_page,pages";

#[derive(Default)]
pub(crate) struct Pages {
    has_begun: bool,
}

impl Parser for Pages {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if line.is_empty() || is_first && line.trim_ascii() == HEADER {
            return Outcome::Other;
        }
        let Some(([start, pages], false)) = fields(line) else { return Outcome::Bad("it has not two fields") };
        let (Some(first), Some(count)) = (decimal(start), decimal(pages)) else {
            return Outcome::Bad(crate::number::wrong(&[start, pages]));
        };
        match PageRange::new(first, count) {
            Ok(range) => Outcome::Event(Event::request(Span::of_pages(range), Access::LOCAL)),
            Err(_) if count == 0 => Outcome::Bad("the request is for no pages"),
            Err(_) => Outcome::Bad(crate::parser::PAST_END),
        }
    }

    fn understood(&self) -> String {
        "a first page and a number of pages a line, to read and to write".into()
    }
}
