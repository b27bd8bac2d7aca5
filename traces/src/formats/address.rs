//! `address`: `s 0x1fffff50 1`, the memory accesses of a program: store or load, address, instructions since the access before.
//!
//! Caffeine's simulator reads these traces of the University of California at San Diego, also with the costs of a hit and of a
//! miss after them. An access touches the page of its address, or `--block` bytes.

use crate::number::{decimal, hex, words};
use crate::parser::{self, Outcome, Parser};
use crate::{Event, ReadOptions, Span};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Address {
    length: u64,
}

impl Address {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Self { length: options.block_or(1) }
    }
}

impl Parser for Address {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let mut words = words(line);
        let Some(kind) = words.next() else { return Outcome::Other };
        let access = match kind {
            b"l" | b"L" => Access::LOCAL_READ,
            b"s" | b"S" => Access::LOCAL_WRITE,
            _ => return Outcome::Bad("the access is neither a load (l) nor a store (s)"),
        };
        let address = words.next().filter(|word| word.starts_with(b"0x")).and_then(hex);
        let Some(address) = address else { return Outcome::Bad("the address is no hexadecimal number with 0x") };
        // Instructions, and the two costs.
        if words.next().and_then(decimal).is_none() || !matches!(words.count(), 0 | 2) {
            return Outcome::Bad("the address is not followed by one number or three");
        }
        parser::request(0, 0, access, Span { address, length: self.length })
    }

    fn understood(&self) -> String {
        format!("loads and stores of {} bytes at an address", self.length)
    }
}
