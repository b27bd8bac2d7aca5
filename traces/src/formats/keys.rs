//! `u32` and `u64`: raw keys, one after the other.
//!
//! Keys are names and no addresses: each is an object of a block, side by side in order of first appearance. So the byte order
//! does not matter.

use crate::frames::{Framing, Taken};
use crate::numbered::{BATCH, Numbered};
use crate::parser::{self, Outcome, PAST_END, Parser};
use crate::{Event, ReadOptions, Span, Step};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Keys {
    bytes: usize,
    block: u64,
    objects: Numbered,
    keys: u64,
    /// Keys that were there before.
    repeated: u64,
    /// Keys whose bytes are all printable.
    text: u64,
    /// Keys that are 0, the first and every second from there, and the others.
    zeros: [u64; 2],
}

/// Fewer keys than this are not judged.
const FEW: u64 = 64;

impl Keys {
    /// Keys of so many bytes, at most 8.
    pub(crate) fn new(bytes: usize, options: &ReadOptions) -> Self {
        Self {
            bytes,
            block: options.block_or(mrrc_core::PAGE),
            objects: Numbered::default(),
            keys: 0,
            repeated: 0,
            text: 0,
            zeros: [0; 2],
        }
    }

    /// Counts records, at most [`BATCH`], and hands out the place of each.
    fn take(&mut self, records: &[u8], mut place: impl FnMut(Option<Span>)) {
        let mut keys = [0; BATCH];
        let mut count = 0;
        for (key, record) in keys.iter_mut().zip(records.chunks_exact(self.bytes)) {
            *key = record.iter().fold(0, |key, &byte| key << 8 | u64::from(byte));
            self.zeros[(self.keys % 2) as usize] += u64::from(*key == 0);
            self.keys += 1;
            self.text += u64::from(record.iter().all(|&byte| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n')));
            count += 1;
        }
        let known = self.objects.objects();
        for number in self.objects.numbers(&keys[..count]) {
            place(parser::blocks(u64::from(number), 1, self.block));
        }
        self.repeated += (count - (self.objects.objects() - known)) as u64;
    }
}

impl Parser for Keys {
    fn framing(&self) -> Framing {
        Framing::Records(self.bytes)
    }

    fn parse(&mut self, record: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let mut span = None;
        self.take(record, |place| span = place);
        match span {
            Some(span) => parser::request(0, 0, Access::LOCAL, span),
            None => Outcome::Bad(PAST_END),
        }
    }

    fn requests(&mut self, records: &[u8], steps: &mut Vec<Step>) -> Taken {
        let mut taken = Taken::default();
        // No number is larger, so no request reaches past the end.
        let fits = parser::blocks(u64::from(u32::MAX), 1, self.block).is_some_and(|last| last.pages().is_ok());
        if fits {
            for records in records.chunks(BATCH * self.bytes) {
                let before = steps.len();
                self.take(records, |span| steps.extend(span.and_then(|span| span.pages().ok()).map(Step::request)));
                taken.pieces += steps.len() - before;
                taken.bytes += records.len();
            }
        }
        taken
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
