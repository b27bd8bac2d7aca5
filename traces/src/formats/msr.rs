//! `msr`: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, the block traces of Microsoft Research Cambridge.
//!
//! Times are Windows file times: 100 ns since 1601. Offset and size are bytes. Each disk of each host is one of its own.

use crate::Event;
use crate::layout::Devices;
use crate::number::{decimal, fields};
use crate::parser::{self, Outcome, Parser};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Msr {
    devices: Devices,
    has_begun: bool,
}

impl Parser for Msr {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if line.trim_ascii().is_empty() || is_first && line.starts_with(b"Timestamp,") {
            return Outcome::Other;
        }
        let Some(([at, host, disk, op, offset, size, response], false)) = fields(line) else {
            return Outcome::Bad("it has not seven fields");
        };
        let Some(access) = parser::access(op) else { return Outcome::Bad("the type is neither Read nor Write") };
        let fields = [at, disk, offset, size, response];
        let numbers = fields.map(decimal);
        let [Some(at), Some(_), Some(offset), Some(size), Some(_)] = numbers else {
            return Outcome::Bad(crate::number::wrong(&fields));
        };
        // Host and disk lie side by side in the line.
        let from = host.as_ptr().addr() - line.as_ptr().addr();
        let to = disk.as_ptr().addr() - line.as_ptr().addr() + disk.len();
        match self.devices.span(line.get(from..to).unwrap_or(host), offset, size) {
            Ok(span) => parser::request(at.saturating_mul(100), 0, access, span),
            Err(why) => Outcome::Bad(why),
        }
    }

    fn understood(&self) -> String {
        "offsets and sizes in bytes, times in 100 ns since 1601; a disk has 256 TiB to itself".into()
    }
}
