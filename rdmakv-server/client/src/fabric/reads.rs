//! One-sided reads: a GET of a key with a known tag, in which the server's CPU has no part.
//!
//! The item is believed if everything in it is as it should be, and if the lease, as it stood when the read was posted, was not over when
//! the last byte had come. Anything else forgets the tag and asks the server. The server is told now and then of the reads, unless its
//! fabric counts reads by itself.

#![expect(unsafe_code, reason = "lends slots to engines")]

use super::items;
use super::link::Link;
use crate::common::Common;
use crate::counters::Counters;
use crate::ops::Name;
use crate::slots::{Slot, Slots};
use crate::tags::{At, Leased, Tags};
use crate::value::Value;
use frrwp::engine::Event;
use rdmakv_proto::clock;
use rdmakv_proto::item::HEADER;
use rdmakv_proto::messages::{Kind, RemoteSegment, Request, Tag};
use std::time::{Duration, Instant};

/// Tags that one SEEN speaks of.
const SEEN: usize = 200;
/// One-sided reads under way at a time; the next ones wait.
const READS: usize = 48;

/// A one-sided read.
pub(super) struct Fetching {
    pub(super) id: u64,
    pub(super) op: Option<Name>,
    pub(super) slot: Slot,
    pub(super) leased: Leased,
    pub(super) at: At,
}

impl Link {
    /// Gets an item, one-sidedly if that is to be had.
    pub(super) fn get(&mut self, common: &mut Common, tags: &mut Tags, name: Name) {
        if self.fetches.len() >= READS {
            self.held.push_back(name);
        } else if !self.read_by_tag(common, tags, name) {
            self.ask(common, tags, name);
        }
    }

    /// Reads the items that waited for their turn.
    pub(super) fn get_held(&mut self, common: &mut Common, tags: &mut Tags) {
        while self.fetches.len() < READS
            && let Some(name) = self.held.pop_front()
        {
            self.get(common, tags, name);
        }
    }

    /// Posts a one-sided read of an item, if the key has a tag and its lease is not over.
    #[inline]
    fn post(&mut self, slots: Option<&mut Slots>, tags: &mut Tags, key: &[u8]) -> Option<Fetching> {
        let (at, leased, size) = tags.get(key)?;
        // A read by a tag that is closed would take the connection along.
        if clock::boot() >= leased.until {
            tags.forget(key);
            return None;
        }
        let Tag { segment, .. } = leased.tag;
        let length = if size == 0 { segment.length } else { segment.length.min(size.into()) };
        let slot = slots?.take(usize::try_from(length).ok()?)?;
        // SAFETY: the slot has no other owner before the end of the read is reported, or the engine is dropped: it is kept in
        // `fetches`, which is dropped after the engine, and what waits here waits for that end.
        let id = unsafe { self.fetch(slot.as_ptr(), RemoteSegment { length, ..segment }) }?;
        Some(Fetching { id, op: None, slot, leased, at })
    }

    /// As the end's `fetch`. With the fault `no-crc` the second half comes later, so that it is seen what the sum is for.
    #[inline]
    unsafe fn fetch(&mut self, memory: *mut u8, from: RemoteSegment) -> Option<u64> {
        #[cfg(rdmakv_fault_injection)]
        if rdmakv_proto::faults::injected(rdmakv_proto::faults::Fault::NoCrc) {
            let half = from.length / 2;
            // SAFETY: the caller promises the memory until the read has ended; the end of the first half is not needed, as that
            // of the second comes later.
            return unsafe {
                self.end.fetch(memory, RemoteSegment { length: half, ..from }).ok()?;
                std::thread::sleep(Duration::from_millis(1));
                let rest = RemoteSegment { address: from.address + half, length: from.length - half, ..from };
                self.end.fetch(memory.add(half as usize), rest).ok()
            };
        }
        // SAFETY: the caller promises that the memory stays, with no other user, until the fetch has ended.
        unsafe { self.end.fetch(memory, from) }.ok()
    }

    /// Returns the value, read one-sidedly while the caller waits; none if that is not to be had.
    #[inline]
    pub(crate) fn get_now(&mut self, common: &mut Common, tags: &mut Tags, key: &[u8]) -> Option<Value> {
        if common.ops.is_changing(key) {
            return None;
        }
        if self.has_table()
            && let Some(value) = self.get_by_table(common, tags, key)
        {
            return Some(value);
        }
        let fetching = self.post(common.fabrics.slots(), tags, key)?;
        self.end.progress();
        // Over shared memory it was done when it was posted.
        let succeeded = match self.end.next_event() {
            Some(Event::ReadCompleted { id, succeeded }) if id == fetching.id => succeeded,
            event => match self.wait_for(fetching.id, event, common.timeout) {
                Some(succeeded) => succeeded,
                None => {
                    // Its memory is the engine's as long as that lives.
                    self.fetches.push_back(fetching);
                    return None;
                }
            },
        };
        self.believe(&mut common.counters, tags, fetching, succeeded, key)
    }

    /// Waits for the end of a read. Other events are kept.
    #[cold]
    fn wait_for(&mut self, read: u64, first: Option<Event>, longest: Duration) -> Option<bool> {
        self.events.extend(first);
        let until = Instant::now() + longest;
        loop {
            while let Some(event) = self.end.next_event() {
                match event {
                    Event::ReadCompleted { id, succeeded } if id == read => return Some(succeeded),
                    event => self.events.push_back(event),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.broken
                    .get_or_insert_with(|| format!("a one-sided read took more than {} ms", longest.as_millis()));
                return None;
            }
            if matches!(self.events.back(), Some(Event::Closed { .. })) {
                return None;
            }
            self.end.wait(left);
            self.end.progress();
        }
    }

    /// Reads an item for an operation. False if its key has no tag and is not in the table, or is being changed: then the server knows
    /// what comes first.
    pub(super) fn read_by_tag(&mut self, common: &mut Common, tags: &mut Tags, name: Name) -> bool {
        if common.ops.get(name).is_none_or(|op| common.ops.is_changing(&op.key)) {
            return false;
        }
        if self.has_table() && self.end_by_table(common, tags, name) {
            return true;
        }
        let Some(op) = common.ops.get(name) else { return false };
        let Some(fetching) = self.post(common.fabrics.slots(), tags, &op.key) else { return false };
        self.fetches.push_back(Fetching { op: Some(name), ..fetching });
        true
    }

    /// Returns the read value, if it is the key's.
    #[inline]
    pub(super) fn believe(
        &mut self,
        counters: &mut Counters,
        tags: &mut Tags,
        Fetching { slot, leased, at, .. }: Fetching,
        succeeded: bool,
        key: &[u8],
    ) -> Option<Value> {
        if !succeeded {
            return None;
        }
        // After the last byte: what was read within the lease was not used for another item meanwhile.
        let now = clock::boot();
        if now < leased.until
            && let Ok(value) = items::read(slot, key, leased.tag.incarnation)
        {
            tags.was_read(at, &leased, (HEADER + key.len() + value.len()) as u32);
            counters.one_sided += 1;
            if now.saturating_sub(self.seen_at) >= self.lease / 2 {
                self.tell_seen(tags, now);
            }
            return Some(value);
        }
        counters.distrusted += 1;
        tags.forget(key);
        None
    }

    /// Tells the server what was read, if it does not know.
    pub(super) fn tell_seen(&mut self, tags: &mut Tags, now: u64) {
        if self.counts_reads || !self.has_seen(tags) || !self.outbox.is_empty() {
            return;
        }
        self.message.clear();
        let message = &mut self.message;
        let mut told = 0;
        tags.take_seen(SEEN, |address, key, reads| {
            Request::seen(message, address, key, reads);
            told += 1;
        });
        if let Some(table) = &mut self.table {
            table.take_seen(SEEN - told, |address, key, reads| {
                Request::seen(message, address, key, reads);
            });
        }
        // The rest goes with the next message: else of many that are read the same would never be reported.
        if !self.has_seen(tags) {
            self.seen_at = now;
        }
        if self.message.is_empty() {
            return;
        }
        let id = self.name();
        self.outbox.push(id, Kind::Seen, &self.message);
        self.say();
    }

    fn has_seen(&self, tags: &Tags) -> bool {
        tags.has_seen() || self.table.as_ref().is_some_and(|table| table.has_seen())
    }

    /// Says what waits to be said, if there is room for it by now. What else happens is kept.
    pub(super) fn make_room(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        self.end.progress();
        while let Some(event) = self.end.next_event() {
            match event {
                Event::Writable => self.say(),
                event => self.events.push_back(event),
            }
        }
    }

    /// The last that was read, told before the connection is closed.
    pub(crate) fn tell_last_reads(&mut self, tags: &mut Tags) {
        // As much as there is room for: no reader waits for more.
        while self.is_ready() && !self.counts_reads && self.has_seen(tags) && self.outbox.is_empty() {
            self.tell_seen(tags, 0);
        }
    }
}
