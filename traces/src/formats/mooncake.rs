//! `mooncake`: one JSON object a line with `timestamp` in milliseconds and `hash_ids`, the blocks of a key-value cache that
//! a request to a language model uses. Each block is a region and a request of its own.

use crate::layout::{Id, Names};
use crate::parser::{self, Outcome, PAST_END, Parser};
use crate::{Event, ReadOptions};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Mooncake {
    block: u64,
    blocks: Names<Id>,
}

/// Bytes of a block, unless said otherwise.
const USUAL: u64 = 1 << 20;

#[derive(serde::Deserialize)]
struct Line {
    #[serde(default)]
    timestamp: f64,
    hash_ids: Vec<u64>,
}

impl Mooncake {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Self { block: options.block_or(USUAL), blocks: Names::default() }
    }
}

impl Parser for Mooncake {
    fn parse(&mut self, line: &[u8], queue: &mut VecDeque<Event>) -> Outcome {
        if line.trim_ascii().is_empty() {
            return Outcome::Other;
        }
        let Ok(Line { timestamp, hash_ids }) = serde_json::from_slice(line) else {
            return Outcome::Bad("it is no JSON object with `hash_ids`");
        };
        if hash_ids.is_empty() {
            return Outcome::LeftOut("the request uses no blocks");
        }
        // Out of range becomes the nearest in range.
        let time = (timestamp * 1e6) as u64;
        for id in hash_ids {
            let number = u64::from(self.blocks.number(&Id(id)));
            // A block size has 40 bits and a number 32, so late blocks may not fit.
            let span = parser::blocks(number, 1, self.block).filter(|span| span.pages().is_ok());
            let Some(span) = span else {
                queue.clear();
                return Outcome::Bad(PAST_END);
            };
            queue.push_back(Event { time, ..Event::request(span, Access::LOCAL) });
        }
        Outcome::Queued
    }

    fn understood(&self) -> String {
        let kind = if self.block == USUAL { "; --block changes it" } else { "" };
        format!("blocks of {} bytes{kind}, each a request of its own; to read and to write", self.block)
    }
}
