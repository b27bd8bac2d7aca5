//! `blkparse`: the default output of `blkparse`, `maj,min cpu seq time pid action RWBS sector + count [process]`.
//!
//! A request passes many actions on its way; what is queued (`Q`) is what was asked for. Sectors have 512 bytes, times are
//! seconds. Lines of other actions, messages, and the tables after the events are understood and left out. The tables come
//! last and begin with `CPU0 (sda):` or `Total (sda):`.

use crate::Event;
use crate::layout::{Devices, Names, PAST_DEVICE};
use crate::number::{decimal, time, words};
use crate::parser::{self, Outcome, Parser};
use mrrc_core::Access;
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Blkparse {
    devices: Devices,
    clients: Names<Box<[u8]>>,
    is_in_tables: bool,
}

impl Parser for Blkparse {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let mut words = words(line);
        let Some(device) = words.next() else { return Outcome::Other };
        if !is_device(device) {
            let begins = [&b"CPU"[..], b"Total", b"Throughput", b"Events", b"Skips"];
            self.is_in_tables |= begins.iter().any(|begin| device.starts_with(begin));
            return if self.is_in_tables { Outcome::Other } else { Outcome::Bad("it begins with no device") };
        }
        let mut next = || words.next().unwrap_or_default();
        let [cpu, sequence, at, process, action, kind, sector, plus, count] = std::array::from_fn(|_| next());
        let (Some(_), Some(_), Some(at)) = (decimal(cpu), decimal(sequence), time(at, 1_000_000_000)) else {
            return Outcome::Bad("cpu, sequence or time is no number");
        };
        if decimal(process).is_none() || action.is_empty() {
            return Outcome::Bad("process or action is missing");
        }
        if action != b"Q" {
            return Outcome::LeftOut("the action is not Q: something that was asked for before");
        }
        // A flush has no sector: `Q FWS [process]`.
        if plus != b"+" {
            return Outcome::LeftOut("the request is for no sectors");
        }
        let access = match kind {
            kind if kind.contains(&b'D') => return Outcome::LeftOut("the request discards, it moves no data"),
            kind if kind.contains(&b'R') => Access::LOCAL_READ,
            kind if kind.contains(&b'W') => Access::LOCAL_WRITE,
            _ => return Outcome::LeftOut("the request neither reads nor writes"),
        };
        let (Some(sector), Some(count)) = (decimal(sector), decimal(count)) else {
            return Outcome::Bad("sector or count is no number");
        };
        let Some(bytes) = parser::blocks(sector, count, 512) else { return Outcome::Bad(PAST_DEVICE) };
        if bytes.length == 0 {
            return Outcome::LeftOut("the request is for no sectors");
        }
        match self.devices.span(device, bytes.address, bytes.length) {
            Ok(span) => parser::request(at, self.clients.number(process), access, span),
            Err(why) => Outcome::Bad(why),
        }
    }

    fn understood(&self) -> String {
        "action Q, sectors of 512 bytes, times in seconds; a device has 256 TiB to itself, a process is a client".into()
    }
}

/// `8,0`
fn is_device(word: &[u8]) -> bool {
    let comma = memchr::memchr(b',', word);
    comma.is_some_and(|at| decimal(&word[..at]).is_some() && decimal(&word[at + 1..]).is_some())
}
