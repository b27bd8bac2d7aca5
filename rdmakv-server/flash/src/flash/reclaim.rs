//! Reclaim: the oldest segment is made free.
//!
//! Its directory is read, and each record that a stub names is written again or goes. Most asked for come first, as far as the credit
//! reaches: a share of the bytes that were admitted. So writes are bounded at any fill, and with them items go instead. Items that are
//! in RAM too are not written again.
//!
//! A sweep over all stubs removes those of segments that count no more. These are left by a flush, by a file that was given up, and by a
//! directory that cannot be read.

use std::collections::VecDeque;

use super::{Action, Flash, Ticket, is_over};
use crate::device::DeviceError;
use crate::layout::{self, Area};
use crate::record::{self, Entry, Summed};
use crate::segments::State;
use crate::stubs::{self, Id};

/// Stubs and entries that one call looks at.
const AT_ONCE: usize = 64;
/// Records that are read at a time.
const READS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Move {
    ticket: u64,
    hash: u64,
    place: u32,
}

#[derive(Debug, Default)]
enum Step {
    #[default]
    Idle,
    Directory {
        segment: u32,
        ticket: u64,
    },
    /// Sums the units of the records by how often they were asked for.
    Counting {
        segment: u32,
        entries: Vec<(u64, u32)>,
        at: usize,
        units: [u64; 8],
    },
    Moving {
        segment: u32,
        entries: Vec<(u64, u32)>,
        at: usize,
        /// Asked for more often: written again. As often: as long as there are units left.
        above: u8,
        left: u64,
        moves: Vec<Move>,
    },
}

#[derive(Debug, Default)]
pub(super) struct Reclaim {
    step: Step,
    reads: VecDeque<(u64, Area)>,
    /// The stub that the sweep has come to.
    sweep: Option<Id>,
    is_early: bool,
}

impl Reclaim {
    /// Asks for a segment before free ones are few.
    pub(super) fn want_early(&mut self) {
        self.is_early = true;
    }
    /// Asks for a look at all stubs.
    pub(super) fn sweep_all(&mut self) {
        self.sweep = Some(Id::NONE);
    }
    pub(super) fn bytes(&self) -> usize {
        match &self.step {
            Step::Counting { entries, .. } | Step::Moving { entries, .. } => {
                entries.capacity() * size_of::<(u64, u32)>()
            }
            _ => 0,
        }
    }
    pub(super) fn segment(&self) -> Option<u32> {
        match self.step {
            Step::Idle => None,
            Step::Directory { segment, .. } | Step::Counting { segment, .. } | Step::Moving { segment, .. } => {
                Some(segment)
            }
        }
    }
    /// Ends what is in progress; returns its segment.
    pub(super) fn abort(&mut self) -> Option<u32> {
        let segment = self.segment();
        (self.step, self.is_early) = (Step::Idle, false);
        self.reads.clear();
        segment
    }
}

impl Flash {
    pub(super) fn next_read(&mut self) -> Option<Action> {
        let (ticket, area) = self.reclaim.reads.pop_front()?;
        Some(Action::Read { ticket: Ticket(ticket), area })
    }

    /// Goes on with reclaim, by a bounded step; returns whether there is more to do now.
    pub fn work(&mut self, now: u32) -> bool {
        let swept = self.sweep(now);
        let has_shrunk = self.shrink_stubs();
        self.reclaim(now) || swept || has_shrunk
    }

    /// Gives a block up if stubs take more than they may.
    fn shrink_stubs(&mut self) -> bool {
        let block = self.stubs.excess();
        if let Some(block) = block {
            self.empty_block(block);
        }
        block.is_some()
    }

    fn sweep(&mut self, now: u32) -> bool {
        let Some(mut from) = self.reclaim.sweep else { return false };
        for _ in 0..AT_ONCE {
            let Some(id) = self.stubs.after(from) else {
                self.reclaim.sweep = None;
                return false;
            };
            from = id;
            let stub = self.stubs.get(id);
            if !self.segments.counts(self.settings.layout.segment_of(stub.place)) || is_over(stub, now) {
                let hash = self.hash(self.stubs.key(id));
                self.remove_id(hash, id);
            }
        }
        self.reclaim.sweep = Some(from);
        true
    }

    fn reclaim(&mut self, now: u32) -> bool {
        match std::mem::take(&mut self.reclaim.step) {
            Step::Idle => self.begin_reclaim(),
            step @ Step::Directory { .. } => {
                self.reclaim.step = step;
                false
            }
            Step::Counting { segment, entries, at, mut units } => {
                let end = entries.len().min(at + AT_ONCE);
                for &(hash, unit) in &entries[at..end] {
                    if let Some(id) = self.entry(segment, hash, unit) {
                        let stub = self.stubs.get(id);
                        if stub.marks & stubs::SHADOWED == 0 && !is_over(stub, now) {
                            units[usize::from(stub.marks & stubs::FREQUENCY)] +=
                                u64::from(layout::decode_len(stub.len));
                        }
                    }
                }
                self.reclaim.step = if end < entries.len() {
                    Step::Counting { segment, entries, at: end, units }
                } else {
                    // At most half a segment, so that each reclaim gains the other half.
                    let most = u64::from(self.settings.layout.segment_bytes() / 2);
                    let mut left = (self.credit / 100).min(most) / u64::from(self.settings.layout.unit());
                    let mut above = 7;
                    while above > 0 && units[usize::from(above)] <= left {
                        left -= units[usize::from(above)];
                        above -= 1;
                    }
                    Step::Moving { segment, entries, at: 0, above, left, moves: Vec::new() }
                };
                true
            }
            Step::Moving { segment, entries, at, above, left, moves } => {
                self.go_on_moving(segment, entries, at, (above, left), moves, now)
            }
        }
    }

    fn entry(&self, segment: u32, hash: u64, unit: u32) -> Option<Id> {
        let layout = &self.settings.layout;
        self.at_place(hash, layout.place(segment, 0).saturating_add(unit))
    }

    fn begin_reclaim(&mut self) -> bool {
        if self.is_stopping || (self.segments.free() >= self.reserve() && !self.reclaim.is_early) {
            return false;
        }
        let Some(number) = self.segments.oldest().filter(|&number| !self.writer.is_busy(number)) else { return false };
        self.reclaim.is_early = false;
        self.segments.set_state(number, State::Reclaiming);
        let layout = &self.settings.layout;
        let len = record::directory_len(self.segments.get(number).records as usize) as u32;
        let area = layout.area(number, layout.segment_bytes() - len, len);
        let ticket = self.writer.ticket();
        self.reclaim.reads.push_back((ticket, area));
        self.reclaim.step = Step::Directory { segment: number, ticket };
        true
    }

    fn go_on_moving(
        &mut self,
        segment: u32,
        entries: Vec<(u64, u32)>,
        mut at: usize,
        (above, mut left): (u8, u64),
        mut moves: Vec<Move>,
        now: u32,
    ) -> bool {
        for _ in 0..AT_ONCE {
            if at == entries.len() || moves.len() == READS {
                break;
            }
            let (hash, unit) = entries[at];
            at += 1;
            let Some(id) = self.entry(segment, hash, unit) else { continue };
            let stub = self.stubs.get(id);
            let units = u64::from(layout::decode_len(stub.len));
            let frequency = stub.marks & stubs::FREQUENCY;
            let is_wanted = stub.marks & stubs::SHADOWED == 0 && !is_over(stub, now);
            let is_left = frequency == above && units <= left;
            if !is_wanted || (frequency <= above && !is_left) {
                if is_over(stub, now) {
                    self.remove_id(hash, id);
                } else {
                    self.evict(hash, id);
                }
                continue;
            }
            if is_left {
                left -= units;
            }
            let (layout, ticket) = (&self.settings.layout, self.writer.ticket());
            let area = layout.area(segment, layout.offset_of(stub.place), layout.read_len(stub.place, stub.len));
            self.reclaim.reads.push_back((ticket, area));
            moves.push(Move { ticket, hash, place: stub.place });
        }
        if at == entries.len() && moves.is_empty() {
            self.counts.reclaimed += 1;
            self.end_reclaim(segment);
            return true;
        }
        let more = at < entries.len() && moves.len() < READS;
        self.reclaim.step = Step::Moving { segment, entries, at, above, left, moves };
        more
    }

    fn end_reclaim(&mut self, segment: u32) {
        self.segments.condemn(segment);
        // A stub that the directory does not list goes with a sweep.
        if self.segments.get(segment).live > 0 {
            self.reclaim.sweep_all();
        }
        self.settle(segment);
    }

    /// Takes the end of a read for reclaim: the bytes that were read, all that the area had.
    pub fn read(&mut self, ticket: Ticket, bytes: Result<Summed<'_>, DeviceError>, now: u32) {
        match &mut self.reclaim.step {
            Step::Directory { segment, ticket: own } if *own == ticket.0 => {
                let segment = *segment;
                self.counts.read_errors += u64::from(bytes.is_err());
                let sequence = self.segments.get(segment).sequence;
                let entries = bytes.ok().and_then(|read| record::directory(read.bytes(), sequence));
                match entries.map(|entries| entries.collect::<Vec<_>>()) {
                    Some(entries) => self.reclaim.step = Step::Counting { segment, entries, at: 0, units: [0; 8] },
                    None => {
                        self.reclaim.step = Step::Idle;
                        self.end_reclaim(segment);
                    }
                }
            }
            Step::Moving { segment, moves, .. } => {
                let Some(at) = moves.iter().position(|one| one.ticket == ticket.0) else { return };
                let (one, segment) = (moves.swap_remove(at), *segment);
                self.end_move(one, segment, bytes, now);
            }
            _ => {}
        }
    }

    /// With `flash-moves-the-dead`: writes a record again that nothing names any more.
    #[cfg(rdmakv_fault_injection)]
    fn move_the_dead(&mut self, hash: u64, bytes: Result<Summed<'_>, DeviceError>) {
        use rdmakv_proto::faults::{Fault, injected};
        let Some(Ok((record, ..))) = bytes.ok().map(|read| record::parse(read.bytes())) else { return };
        if !injected(Fault::FlashMovesTheDead) || self.find(hash, record.key).is_some() {
            return;
        }
        let (key, value, version, flags, crc) = (record.key, record.value, record.version, record.flags, record.crc);
        let entry = Entry { key, value, version, flags, crc, expiry: 0, frequency: 0, fetched: false, marks: 0 };
        let unit = self.settings.layout.unit();
        let len = layout::encode_len(record::len(&entry).div_ceil(unit as usize) as u32);
        if let Some(place) = self.append(hash, &entry) {
            self.insert(hash, key, stubs::Stub { place, expiry: 0, len, version: version as u8, marks: 0 });
        }
    }

    fn end_move(&mut self, one: Move, segment: u32, bytes: Result<Summed<'_>, DeviceError>, now: u32) {
        // Removed or replaced meanwhile: nothing comes back.
        let Some(id) = self.at_place(one.hash, one.place) else {
            #[cfg(rdmakv_fault_injection)]
            self.move_the_dead(one.hash, bytes);
            return;
        };
        let stub = self.stubs.get(id);
        let sequence = self.segments.get(segment).sequence;
        let Ok(bytes) = bytes else {
            self.counts.read_errors += 1;
            self.remove_id(one.hash, id);
            return;
        };
        let Ok(record) = record::believe(bytes, self.stubs.key(id), stub.version, sequence) else {
            self.counts.wrong += 1;
            self.remove_id(one.hash, id);
            return;
        };
        let entry = Entry {
            key: record.key,
            value: record.value,
            version: record.version,
            flags: record.flags,
            crc: record.crc,
            expiry: stub.expiry,
            frequency: 0,
            fetched: false,
            marks: 0,
        };
        let place = if is_over(stub, now) { None } else { self.append(one.hash, &entry) };
        let Some(place) = place else {
            self.counts.lost_moves += u64::from(!is_over(stub, now));
            self.remove_id(one.hash, id);
            return;
        };
        self.move_to(id, place);
        let mut stub = self.stubs.get(id);
        stub.marks -= u8::from(stub.marks & stubs::FREQUENCY > 0);
        self.stubs.set(id, stub);
        let bytes = record::len(&entry).next_multiple_of(self.settings.layout.unit() as usize) as u64;
        self.credit = self.credit.saturating_sub(bytes * 100);
        self.counts.rewritten += 1;
        self.counts.rewritten_bytes += bytes;
    }
}
