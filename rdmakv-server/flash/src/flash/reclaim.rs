//! Reclaim: a segment is made free.
//!
//! Its directory is read, and each record that a stub names is written again or goes. The *credit* bounds what is written again, by a
//! share of the bytes that were admitted. So writes are bounded at any fill.
//!
//! The segment of which least is named comes first: its items are all kept, as far as the credit reaches. Where it does not reach,
//! items have to go, and the oldest segment is taken: most asked for are kept first. Items that are in RAM too are not written again.
//!
//! A sweep over all stubs removes those of segments that count no more. These are left by a flush, by a file that was given up, and by a
//! directory that cannot be read. It also removes what has expired, once a minute while segments are needed.

use std::collections::VecDeque;

use super::{Action, Flash, Ticket, is_over};
use crate::device::DeviceError;
use crate::layout::{self, Area};
use crate::record::{self, Entry, Summed};
use crate::segments::State;
use crate::stubs::{self, Id, Stub};
use crate::writer::Missing;

/// Stubs and entries that one call looks at.
const AT_ONCE: usize = 64;
/// Records that are read at a time, if together they are no more than a batch.
const READS: usize = 16;
/// Seconds between two sweeps for items that have expired.
const SWEEP: u32 = 60;

#[derive(Clone, Copy, Debug)]
struct Move {
    ticket: u64,
    hash: u64,
    place: u32,
    len: u32,
}

/// The records of a segment, on their way to another.
#[derive(Debug)]
struct Moving {
    entries: Vec<(u64, u32)>,
    at: usize,
    /// Asked for more often: written again. As often: as long as there are units left.
    above: u8,
    left: u64,
    moves: Vec<Move>,
    /// Hashes and places of records that were read and found no buffer.
    again: Vec<(u64, u32)>,
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
        moving: Moving,
    },
}

#[derive(Debug, Default)]
pub(super) struct Reclaim {
    step: Step,
    reads: VecDeque<(u64, Area)>,
    /// The stub that the sweep has come to.
    sweep: Option<Id>,
    /// When the last sweep for expired items began.
    swept: u32,
    is_early: bool,
    /// Whether items that were never asked for go in any case.
    asked_only: bool,
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
            Step::Counting { entries, .. } | Step::Moving { moving: Moving { entries, .. }, .. } => {
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
            if !self.segments.counts(self.settings.layout.segment_of(stub.place)) {
                self.remove_uncounted(self.hash(self.stubs.key(id)), id, now);
            } else if is_over(stub, now) {
                self.remove_id(self.hash(self.stubs.key(id)), id);
            }
        }
        self.reclaim.sweep = Some(from);
        true
    }

    fn reclaim(&mut self, now: u32) -> bool {
        match std::mem::take(&mut self.reclaim.step) {
            Step::Idle => self.begin_reclaim(now),
            step @ Step::Directory { .. } => {
                self.reclaim.step = step;
                false
            }
            Step::Counting { segment, entries, at, mut units } => {
                let end = entries.len().min(at + AT_ONCE);
                for &(hash, unit) in &entries[at..end] {
                    if let Some(id) = self.entry(segment, hash, unit) {
                        let stub = self.stubs.get(id);
                        if self.is_wanted(stub, now) {
                            units[usize::from(stub.marks & stubs::FREQUENCY)] +=
                                u64::from(layout::decode_len(stub.len));
                        }
                    }
                }
                self.reclaim.step = if end < entries.len() {
                    Step::Counting { segment, entries, at: end, units }
                } else {
                    let (mut left, mut above) = (u64::from(self.units_left()), 7);
                    while above > 0 && units[usize::from(above)] <= left {
                        left -= units[usize::from(above)];
                        above -= 1;
                    }
                    if above == 0 && self.reclaim.asked_only {
                        left = 0;
                    }
                    let (moves, again) = (Vec::new(), Vec::new());
                    Step::Moving { segment, moving: Moving { entries, at: 0, above, left, moves, again } }
                };
                true
            }
            Step::Moving { segment, moving } => self.go_on_moving(segment, moving, now),
        }
    }

    /// Returns the units that may be written again now.
    fn units_left(&self) -> u32 {
        let credit = self.credit / 100 / u64::from(self.settings.layout.unit());
        self.rewrite_units().min(credit.try_into().unwrap_or(u32::MAX))
    }
    /// Returns whether an item is to be written again, if the credit reaches.
    fn is_wanted(&self, stub: Stub, now: u32) -> bool {
        let is_dropped = self.settings.drop_unread && stub.marks & stubs::FETCHED == 0;
        stub.marks & stubs::SHADOWED == 0 && !is_over(stub, now) && !is_dropped
    }

    fn entry(&self, segment: u32, hash: u64, unit: u32) -> Option<Id> {
        let layout = &self.settings.layout;
        self.at_place(hash, layout.place(segment, 0).saturating_add(unit))
    }

    fn begin_reclaim(&mut self, now: u32) -> bool {
        let is_early = self.reclaim.is_early;
        if self.is_stopping || (self.segments.free() >= self.reserve() && !is_early) {
            return false;
        }
        if self.has_expiry && self.reclaim.sweep.is_none() && now >= self.reclaim.swept.saturating_add(SWEEP) {
            (self.has_expiry, self.reclaim.swept) = (false, now);
            self.reclaim.sweep_all();
        }
        // Only where items go anyway is age what counts. For stubs, they have to go.
        let most = self.units_left();
        let emptiest = self.segments.emptiest().filter(|&number| self.segments.get(number).live_units <= most);
        let number = if is_early { None } else { emptiest };
        let Some(number) = number.or_else(|| self.segments.oldest()) else { return false };
        if self.writer.is_busy(number) {
            return false;
        }
        (self.reclaim.is_early, self.reclaim.asked_only) = (false, is_early);
        self.segments.set_state(number, State::Reclaiming);
        let layout = &self.settings.layout;
        let len = record::directory_len(self.segments.get(number).records as usize) as u32;
        let area = layout.area(number, layout.segment_bytes() - len, len);
        let ticket = self.writer.ticket();
        self.reclaim.reads.push_back((ticket, area));
        self.reclaim.step = Step::Directory { segment: number, ticket };
        true
    }

    fn go_on_moving(&mut self, segment: u32, mut moving: Moving, now: u32) -> bool {
        let mut reading: u32 = moving.moves.iter().map(|one| one.len).sum();
        let mut is_waiting = false;
        for _ in 0..AT_ONCE {
            let (hash, place) = match (moving.again.last(), moving.entries.get(moving.at)) {
                (Some(&(hash, place)), _) => (hash, place),
                (None, Some(&(hash, unit))) => (hash, self.settings.layout.place(segment, 0).saturating_add(unit)),
                (None, None) => break,
            };
            let stub = self.at_place(hash, place).map(|id| (id, self.stubs.get(id)));
            let len = stub.map_or(0, |(_, stub)| self.settings.layout.read_len(stub.place, stub.len));
            let is_large = !moving.moves.is_empty() && reading + len > self.writer.record_max() as u32;
            if moving.moves.len() == READS || is_large || (len > 0 && !self.writer.has_buffer(len)) {
                is_waiting = true;
                break;
            }
            let is_again = moving.again.pop().is_some();
            moving.at += usize::from(!is_again);
            let Some((id, stub)) = stub else { continue };
            let units = u64::from(layout::decode_len(stub.len));
            let frequency = stub.marks & stubs::FREQUENCY;
            let is_left = frequency == moving.above && units <= moving.left;
            let is_kept = is_again || frequency > moving.above || is_left;
            if !self.is_wanted(stub, now) || !is_kept {
                if is_over(stub, now) {
                    self.remove_id(hash, id);
                } else {
                    self.evict(hash, id);
                }
                continue;
            }
            if is_left && !is_again {
                moving.left -= units;
            }
            let (layout, ticket) = (&self.settings.layout, self.writer.ticket());
            let area = layout.area(segment, layout.offset_of(stub.place), len);
            self.reclaim.reads.push_back((ticket, area));
            moving.moves.push(Move { ticket, hash, place, len });
            reading += len;
        }
        if moving.at == moving.entries.len() && moving.moves.is_empty() && moving.again.is_empty() {
            self.counts.reclaimed += 1;
            self.end_reclaim(segment);
            return true;
        }
        let has_more = !is_waiting && moving.at < moving.entries.len();
        self.reclaim.step = Step::Moving { segment, moving };
        has_more
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
            Step::Moving { segment, moving } => {
                let Some(at) = moving.moves.iter().position(|one| one.ticket == ticket.0) else { return };
                let (one, segment) = (moving.moves.swap_remove(at), *segment);
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
        if let Ok(place) = self.append(hash, &entry, true) {
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
        let place = if is_over(stub, now) { Err(Missing::Segment) } else { self.append(one.hash, &entry, true) };
        let place = match place {
            Ok(place) => place,
            Err(Missing::Buffer) => {
                if let Step::Moving { moving, .. } = &mut self.reclaim.step {
                    moving.again.push((one.hash, one.place));
                }
                return;
            }
            Err(Missing::Segment) => {
                self.counts.lost_moves += u64::from(!is_over(stub, now));
                self.remove_id(one.hash, id);
                return;
            }
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
