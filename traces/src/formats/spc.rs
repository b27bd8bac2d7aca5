//! `spc`: `ASU,LBA,size,opcode,time[,…]`, the trace file format of the Storage Performance Council, revision 1.0.1.
//!
//! The logical block is 512 bytes, the size is in bytes, the operation `R` or `W` in either case, the time in seconds.
//! Further fields are allowed by the format and passed over. Each application storage unit is a disk of its own.

use crate::Event;
use crate::layout::{Devices, PAST_DEVICE};
use crate::number::{decimal, fields, time};
use crate::parser::{self, Outcome, Parser};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Spc {
    devices: Devices,
}

impl Parser for Spc {
    fn parse(&mut self, line: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        if line.trim_ascii().is_empty() {
            return Outcome::Other;
        }
        let Some(([unit, block, size, op, at], _)) = fields(line) else {
            return Outcome::Bad("it has not five fields");
        };
        let access = match op {
            b"R" | b"r" => mrrc_core::Access::LOCAL_READ,
            b"W" | b"w" => mrrc_core::Access::LOCAL_WRITE,
            _ => return Outcome::Bad("the operation is neither R nor W"),
        };
        let (Some(_), Some(block), Some(size)) = (decimal(unit), decimal(block), decimal(size)) else {
            return Outcome::Bad("unit, block or size is no number");
        };
        let Some(at) = time(at, 1_000_000_000) else { return Outcome::Bad("the time is no number") };
        let Some(offset) = block.checked_mul(512) else { return Outcome::Bad(PAST_DEVICE) };
        match self.devices.span(unit, offset, size) {
            Ok(span) => parser::request(at, 0, access, span),
            Err(why) => Outcome::Bad(why),
        }
    }

    fn understood(&self) -> String {
        "blocks of 512 bytes, sizes in bytes, times in seconds; a storage unit has 256 TiB to itself".into()
    }
}
