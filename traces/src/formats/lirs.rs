//! `lirs`: one block number a line, `*` marks the beginning of a phase; the form of the traces of LIRS's authors.

use crate::number::decimal;
use crate::parser::{self, Outcome, PAST_END, Parser};
use crate::{Event, ReadOptions};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Lirs {
    block: u64,
}

impl Lirs {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Self { block: options.block_or(mrrc_core::PAGE) }
    }
}

impl Parser for Lirs {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let word = line.trim_ascii();
        if word.is_empty() || word == b"*" {
            return Outcome::Other;
        }
        let Some(number) = decimal(word) else { return Outcome::Bad("it is no block number") };
        match parser::blocks(number, 1, self.block) {
            Some(span) => parser::request(0, 0, Access::LOCAL, span),
            None => Outcome::Bad(PAST_END),
        }
    }

    fn understood(&self) -> String {
        format!("a block of {} bytes a line, to read and to write", self.block)
    }
}
