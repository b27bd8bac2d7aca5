//! `srt`: the disk traces of HP Laboratories, Cello among them.
//!
//! An optional text that ends with a form feed, then records of 32-bit numbers, big endian: length of the record, type and
//! version in 16 bits each, seconds, microseconds, start and stop of the transfer after that, bytes, block, device, driver,
//! cylinder, flags, origin; from version 4 on a queue length, later ones more. Type 1 is a request, type 4 one with a
//! doubtful time. Bit 0 of the flags is set for reads. A block is 1 KiB, as HP-UX counts them.

use crate::frames::Framing;
use crate::layout::{Devices, PAST_DEVICE};
use crate::parser::{self, Outcome, Parser};
use crate::{Event, ReadOptions};
use mrrc_core::Access;
use std::collections::VecDeque;

pub(crate) struct Srt {
    block: u64,
    devices: Devices,
}

const REQUEST: u32 = 1;
const SUSPECT: u32 = 4;
const READ: u32 = 1;

impl Srt {
    pub(crate) fn new(options: &ReadOptions) -> Self {
        Self { block: options.block_or(1024), devices: Devices::default() }
    }
}

/// Returns whether a record can begin with this length and this type and version.
pub(crate) fn is_plausible(size: u32, id: u32) -> bool {
    (52..=256).contains(&size)
        && size.is_multiple_of(4)
        && (1..=7).contains(&(id >> 16))
        && (1..=10).contains(&(id & 0xffff))
}

impl Parser for Srt {
    fn framing(&self) -> Framing {
        Framing::Srt
    }

    fn parse(&mut self, record: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let word = |at: usize| {
            record.get(at * 4..at * 4 + 4).map_or(0, |word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        };
        let [size, id, seconds, micros, _, _, bytes, block, device, _, _, flags] = std::array::from_fn(word);
        if !is_plausible(size, id) {
            return Outcome::Bad("type or version of the record is unknown");
        }
        match id & 0xffff {
            REQUEST => {}
            SUSPECT => return Outcome::LeftOut("the trace itself marks the request as suspect"),
            _ => return Outcome::LeftOut("the record is no request"),
        }
        if bytes == 0 {
            return Outcome::LeftOut(crate::layout::NO_BYTES);
        }
        let access = if flags & READ != 0 { Access::LOCAL_READ } else { Access::LOCAL_WRITE };
        let at = u64::from(seconds) * 1_000_000_000 + u64::from(micros) * 1000;
        let Some(offset) = u64::from(block).checked_mul(self.block) else { return Outcome::Bad(PAST_DEVICE) };
        match self.devices.span(&device.to_be_bytes(), offset, u64::from(bytes)) {
            Ok(span) => parser::request(at, 0, access, span),
            Err(why) => Outcome::Bad(why),
        }
    }

    fn understood(&self) -> String {
        format!("blocks of {} bytes (--block changes it), sizes in bytes; a device has 256 TiB to itself", self.block)
    }
}
