//! One-sided reads of fragments, of which each server has one: parts of a value that one slot gets.

#![expect(unsafe_code, reason = "lends a slot to engines")]

use super::channel::Channel;
use crate::fragment_tags::Place;
use crate::slots::Slot;
use crate::tags::Leased;
use rdmakv_proto::messages::RemoteSegment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The outcome of the read of a part, as it is told to its reader.
#[derive(Debug)]
pub(crate) struct Outcome(AtomicU8);

impl Outcome {
    const UNDER_WAY: u8 = 0;
    const SUCCEEDED: u8 = 1;
    const FAILED: u8 = 2;

    /// Returns whether the part was read; None while that is under way.
    pub(crate) fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Acquire) {
            Self::UNDER_WAY => None,
            outcome => Some(outcome == Self::SUCCEEDED),
        }
    }
}

/// The begin of a read of a part.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It was read.
    Done,
    UnderWay(Arc<Outcome>),
    /// It is not read.
    Failed,
}

/// A part that is being read.
struct PartRead {
    /// Reads without an end.
    ids: Vec<u64>,
    failed: bool,
    /// Keeps the memory of the reads.
    _slot: Arc<Slot>,
    outcome: Arc<Outcome>,
}

impl Drop for PartRead {
    fn drop(&mut self) {
        let succeeded = self.ids.is_empty() && !self.failed;
        self.outcome.0.store(if succeeded { Outcome::SUCCEEDED } else { Outcome::FAILED }, Ordering::Release);
    }
}

/// The parts that are read over a connection. Dropped after its end, which the slots are lent to.
#[derive(Default)]
pub(super) struct Parts(Vec<PartRead>);

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a fragment's head and its bytes to their places, by a tag whose lease is not over.
    pub(super) fn read(&mut self, channel: &mut Channel, leased: &Leased, slot: &Arc<Slot>, to: &Place) -> Begun {
        let segment = leased.tag.segment;
        let (head, bytes) = (to.head.len() as u64, to.bytes.len() as u64);
        let is_within = to.head.end <= slot.len() && to.bytes.end <= slot.len();
        if !is_within || segment.length < head + bytes {
            return Begun::Failed;
        }
        let head_of = RemoteSegment { length: head, ..segment };
        let bytes_of = RemoteSegment { address: segment.address + head, length: bytes, ..segment };
        let at = |offset| slot.as_ptr().wrapping_add(offset);
        // SAFETY: the place lies in the slot, and `Located::place` gives no two reads the same. The slot's bytes are looked at by the one
        // that has it alone, when all reads have ended.
        match unsafe { channel.end().read_now(at(to.head.start), head_of) } {
            Some(true) => {
                // SAFETY: this place, too, is in the slot and of this read alone.
                let is_read =
                    bytes == 0 || unsafe { channel.end().read_now(at(to.bytes.start), bytes_of) } == Some(true);
                return if is_read { Begun::Done } else { Begun::Failed };
            }
            Some(false) => return Begun::Failed,
            None => {}
        }
        // SAFETY: the slot is kept in `PartRead` until the read has ended, or the engine is dropped.
        let Some(first) = (unsafe { channel.fetch(at(to.head.start), head_of) }) else { return Begun::Failed };
        let mut ids = vec![first];
        let mut failed = false;
        if bytes > 0 {
            // SAFETY: as for the head, `PartRead` keeps the slot until this read has ended.
            match unsafe { channel.fetch(at(to.bytes.start), bytes_of) } {
                Some(id) => ids.push(id),
                None => failed = true,
            }
        }
        let outcome = Arc::new(Outcome(AtomicU8::new(Outcome::UNDER_WAY)));
        self.0.push(PartRead { ids, failed, _slot: Arc::clone(slot), outcome: Arc::clone(&outcome) });
        Begun::UnderWay(outcome)
    }

    /// Takes the end of a read. Returns whether it was one of these.
    pub(super) fn ended(&mut self, id: u64, succeeded: bool) -> bool {
        let Some(at) = self.0.iter().position(|part| part.ids.contains(&id)) else { return false };
        let part = &mut self.0[at];
        part.ids.retain(|&other| other != id);
        part.failed |= !succeeded;
        if part.ids.is_empty() {
            self.0.swap_remove(at);
        }
        true
    }
}
