//! `oraclegeneral`: libCacheSim's records of 24 bytes, little endian without padding: time in seconds (u32), object (u64),
//! bytes (u32), number of the request that asks for it next (i64, -1 for none).
//!
//! An object is as large as it ever is; each request asks for as much of it as it says.

use crate::formats::objects::Store;
use crate::frames::{Framing, Taken};
use crate::numbered::BATCH;
use crate::parser::{Outcome, Parser};
use crate::{Event, Step};
use std::collections::VecDeque;

/// Bytes of a record.
pub(crate) const RECORD: usize = 24;

#[derive(Default)]
pub(crate) struct OracleGeneral {
    store: Store,
}

/// Returns whether a record can have this size and this next access. `i64::MAX` means none as well.
pub(crate) fn is_plausible(size: u32, next: i64) -> bool {
    size <= 1 << 31 && (next == i64::MAX || (-1..=1 << 40).contains(&next))
}

/// Time, object, bytes and next access.
pub(crate) fn record(bytes: &[u8]) -> Option<(u32, u64, u32, i64)> {
    let bytes: &[u8; RECORD] = bytes.try_into().ok()?;
    let [t0, t1, t2, t3, o0, o1, o2, o3, o4, o5, o6, o7, s0, s1, s2, s3, next @ ..] = *bytes;
    let time = u32::from_le_bytes([t0, t1, t2, t3]);
    let object = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
    Some((time, object, u32::from_le_bytes([s0, s1, s2, s3]), i64::from_le_bytes(next)))
}

/// Returns object and bytes of records, up to the first that is no plain request.
fn plain(records: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    records.chunks_exact(RECORD).map_while(|bytes| {
        let (_, object, bytes, next) = record(bytes)?;
        (bytes > 0 && is_plausible(bytes, next)).then_some((object, u64::from(bytes)))
    })
}

const fn taken(records: usize) -> Taken {
    Taken { pieces: records, bytes: records * RECORD }
}

impl Parser for OracleGeneral {
    fn framing(&self) -> Framing {
        Framing::Records(RECORD)
    }

    fn parse(&mut self, bytes: &[u8], _: &mut VecDeque<Event>) -> Outcome {
        let Some((time, object, size, next)) = record(bytes) else { return Outcome::Bad("it has not 24 bytes") };
        if next < -1 {
            return Outcome::Bad("the next access is neither a number nor -1");
        }
        if !is_plausible(size, next) {
            return Outcome::Bad("the size is more than 2 GiB, or the next access is beyond 2^40");
        }
        self.store.request(u64::from(time).saturating_mul(1_000_000_000), object, u64::from(size))
    }

    fn note(&mut self, records: &[u8]) -> Taken {
        let mut noted = 0;
        let mut batch = [(0, 0); BATCH];
        for some in records.chunks(BATCH * RECORD) {
            let plain = plain(some);
            let mut filled = 0;
            for (place, request) in batch.iter_mut().zip(plain) {
                *place = request;
                filled += 1;
            }
            self.store.note(&batch[..filled]);
            noted += filled;
            if filled * RECORD < some.len() {
                break;
            }
        }
        taken(noted)
    }

    fn requests(&mut self, records: &[u8], steps: &mut Vec<Step>) -> Taken {
        let store = &mut self.store;
        let before = steps.len();
        steps.extend(plain(records).map_while(|(object, bytes)| store.pages(object, bytes)).map(Step::request));
        taken(steps.len() - before)
    }

    fn lay_out(&mut self, pieces: u64) {
        self.store.lay_out(pieces);
    }

    fn recall(&mut self, steps: &mut Vec<Step>) -> bool {
        self.store.recall(steps)
    }

    fn understood(&self) -> String {
        self.store.understood("times in seconds")
    }
}
