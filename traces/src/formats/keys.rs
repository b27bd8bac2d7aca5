//! `u32` and `u64`: raw keys, one after the other.
//!
//! Keys are names and no addresses: each is an object of a block, side by side in order of first appearance. So the byte order
//! does not matter.

use crate::frames::Framing;
use crate::layout::Names;
use crate::parser::{self, Outcome, PAST_END, Parser};
use crate::{Event, ReadOptions};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Keys {
    bytes: usize,
    block: u64,
    names: Names<Key>,
    keys: u64,
    /// Keys that were there before.
    repeated: u64,
    /// Keys whose bytes are all printable.
    text: u64,
    /// Keys that are 0, the first and every second from there, and the others.
    zeros: [u64; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key(u64);

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        *key
    }
}

/// Fewer keys than this are not judged.
const FEW: u64 = 64;

impl Keys {
    /// Keys of so many bytes, at most 8.
    pub(crate) fn new(bytes: usize, options: &ReadOptions) -> Self {
        Self {
            bytes,
            block: options.block_or(mrrc_core::PAGE),
            names: Names::default(),
            keys: 0,
            repeated: 0,
            text: 0,
            zeros: [0; 2],
        }
    }
}

impl Parser for Keys {
    fn framing(&self) -> Framing {
        Framing::Records(self.bytes)
    }

    fn parse(&mut self, record: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let key = record.iter().fold(0, |key, &byte| key << 8 | u64::from(byte));
        let known = self.names.len();
        let number = self.names.number(&Key(key));
        self.zeros[(self.keys % 2) as usize] += u64::from(key == 0);
        self.keys += 1;
        self.repeated += u64::from(self.names.len() == known);
        self.text += u64::from(record.iter().all(|&byte| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n')));
        match parser::blocks(u64::from(number), 1, self.block) {
            Some(span) => parser::request(0, 0, Access::LOCAL, span),
            None => Outcome::Bad(PAST_END),
        }
    }

    fn judge(&self) -> Result<(), String> {
        let Self { bytes, keys, repeated, text, zeros, .. } = *self;
        if keys < FEW {
            return Ok(());
        }
        if text > keys / 10 * 9 {
            return Err(format!("{text} of its {keys} keys of {bytes} bytes are text"));
        }
        if bytes == 4 && zeros.iter().any(|&zeros| zeros >= keys / 2) {
            return Err("every second of its keys of 4 bytes is 0, so they seem to have 8".into());
        }
        if repeated < keys / 1000 || repeated == 0 {
            return Err(format!(
                "only {repeated} of its {keys} keys of {bytes} bytes come again, so they seem to be none"
            ));
        }
        Ok(())
    }

    fn understood(&self) -> String {
        format!(
            "keys of {} bytes in any byte order, each an object of {} bytes in order of first appearance (--block changes it); \
             to read and to write",
            self.bytes, self.block
        )
    }
}
