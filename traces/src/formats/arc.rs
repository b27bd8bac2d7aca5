//! `arc`: `start count ignored seq`, the form of the traces that ARC's authors published.
//!
//! P1 to P14, ConCat, MergeP, MergeS and S1 to S3 count sectors of 512 bytes; OLTP and DS1 pages. The file's name tells, or
//! `--block`.

use crate::number::{decimal, first_words};
use crate::parser::{self, Outcome, PAST_END, Parser};
use crate::{Event, ReadOptions};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Arc {
    block: u64,
    why: &'static str,
}

impl Arc {
    pub(crate) fn new(options: &ReadOptions, name: &str) -> Self {
        let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let (block, why) = match options.block {
            Some(block) => (block.get(), "as asked for"),
            None if file.contains("oltp") || file.contains("ds1") => {
                (mrrc_core::PAGE, "pages, by the name of the file")
            }
            None => (512, "sectors, as most of these files have; --block changes it"),
        };
        Self { block, why }
    }
}

impl Parser for Arc {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let Some(([start, count, ignored, sequence], false)) = first_words(line) else {
            let is_blank = line.trim_ascii().is_empty();
            return if is_blank { Outcome::Other } else { Outcome::Bad("it has not four fields") };
        };
        let all = [start, count, ignored, sequence];
        let [Some(start), Some(count), Some(_), Some(_)] = all.map(decimal) else {
            return Outcome::Bad(crate::number::wrong(&all));
        };
        match parser::blocks(start, count, self.block) {
            Some(span) => parser::request(0, 0, Access::LOCAL, span),
            None => Outcome::Bad(PAST_END),
        }
    }

    fn understood(&self) -> String {
        format!("blocks of {} bytes ({}), to read and to write", self.block, self.why)
    }
}
