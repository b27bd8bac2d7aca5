//! One-sided reads: a GET of a key with a known tag, in which the server's CPU has no part.
//!
//! The item is believed if everything in it is as it should be, and if the lease, as it stood when the read was posted, was not over when
//! the last byte had come. Anything else forgets the tag and asks the server. The server is told now and then of the reads, unless its
//! fabric counts reads by itself.

#![expect(unsafe_code, reason = "lends slots to engines")]

use super::channel::Channel;
use super::items;
use super::table::Table;
use crate::answer::Answer;
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
use std::collections::VecDeque;

/// Tags that one SEEN speaks of.
const SEEN: usize = 200;
/// One-sided reads under way at a time; the next ones wait.
const READS: usize = 48;

/// A one-sided read by a tag whose lease was not over when it was planned.
struct Planned {
    from: RemoteSegment,
    slot: Slot,
    leased: Leased,
    at: At,
}

/// A one-sided read that was posted.
struct Fetching {
    id: u64,
    op: Option<Name>,
    read: Planned,
}

/// The one-sided reads of a connection, and the server's table.
pub(super) struct Reads {
    fetches: VecDeque<Fetching>,
    /// GETs that wait until fewer reads are under way.
    held: VecDeque<Name>,
    /// Whether the server counts one-sided reads by itself.
    counts_reads: bool,
    /// When reads were last reported.
    seen_at: u64,
    /// The GET table, if the server has one.
    table: Option<Box<Table>>,
}

/// The result of a GET without a request to the server.
pub(super) enum Got {
    /// A read is under way, waits, or has answered.
    Begun,
    /// The server has to be asked.
    NotHere,
}

impl Reads {
    pub(super) fn new(counts_reads: bool) -> Self {
        let seen_at = clock::boot();
        Self { fetches: VecDeque::new(), held: VecDeque::new(), counts_reads, seen_at, table: None }
    }

    /// Notes the server's table.
    pub(super) fn set_table(&mut self, table: Option<Table>) {
        self.table = table.map(Box::new);
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.fetches.is_empty() || !self.held.is_empty()
    }

    /// Returns the operations that are open here, and whether anything of them was sent.
    pub(super) fn open(&self) -> impl Iterator<Item = (Name, bool)> {
        let held = self.held.iter().map(|&name| (name, false));
        held.chain(self.fetches.iter().filter_map(|fetching| Some((fetching.op?, true))))
    }

    /// Gets an item, one-sidedly if possible.
    pub(super) fn get(&mut self, channel: &mut Channel, common: &mut Common, tags: &mut Tags, name: Name) -> Got {
        if self.fetches.len() >= READS {
            self.held.push_back(name);
        } else if !self.read_by_tag(channel, common, tags, name) {
            return Got::NotHere;
        }
        Got::Begun
    }

    /// Returns the next GET that waited, if a read may be posted now.
    pub(super) fn next_held(&mut self) -> Option<Name> {
        if self.fetches.len() < READS { self.held.pop_front() } else { None }
    }

    /// Returns a one-sided read of an item, if the key has a tag and its lease is not over.
    #[inline]
    fn plan(slots: Option<&mut Slots>, tags: &mut Tags, key: &[u8]) -> Option<Planned> {
        let (at, leased, size) = tags.get(key)?;
        // A read by a tag that is closed would take the connection along.
        if clock::boot() >= leased.until {
            tags.forget(key);
            return None;
        }
        let Tag { segment, .. } = leased.tag;
        let length = if size == 0 { segment.length } else { segment.length.min(size.into()) };
        let slot = slots?.take(usize::try_from(length).ok()?)?;
        Some(Planned { from: RemoteSegment { length, ..segment }, slot, leased, at })
    }

    /// Posts a one-sided read.
    #[inline]
    fn post(channel: &mut Channel, read: Planned) -> Option<Fetching> {
        // SAFETY: the slot has no other owner before the end of the read is reported, or the engine is dropped: it is kept in
        // `fetches`, which is dropped after the engine, and what waits here waits for that end.
        let id = unsafe { channel.fetch(read.slot.as_ptr(), read.from) }?;
        Some(Fetching { id, op: None, read })
    }

    /// Returns the value, read one-sidedly while the caller waits; none if that is not to be had. The table is read if it may list the key.
    #[inline]
    pub(super) fn get_now(
        &mut self,
        channel: &mut Channel,
        common: &mut Common,
        tags: &mut Tags,
        (key, may_be_listed): (&[u8], bool),
    ) -> Option<Value> {
        if common.ops.is_changing(key) {
            return None;
        }
        if may_be_listed && let Some(value) = self.get_by_table(channel, common, tags, key) {
            return Some(value);
        }
        let mut read = Self::plan(common.fabrics.slots(), tags, key)?;
        // A fabric that has a table reads while it is asked to, without an event.
        if self.table.is_some()
            && let Some(succeeded) = channel.read_item(&mut read.slot, read.from)
        {
            return self.believe(channel, &mut common.counters, tags, read, succeeded, key);
        }
        let fetching = Self::post(channel, read)?;
        channel.end().progress();
        let succeeded = match channel.end().next_event() {
            Some(Event::ReadCompleted { id, succeeded }) if id == fetching.id => succeeded,
            event => match channel.wait_for(fetching.id, event, common.timeout) {
                Some(succeeded) => succeeded,
                None => {
                    // Its memory is the engine's as long as that lives.
                    self.fetches.push_back(fetching);
                    return None;
                }
            },
        };
        self.believe(channel, &mut common.counters, tags, fetching.read, succeeded, key)
    }

    /// Returns the value, if the table has it.
    #[inline]
    fn get_by_table(
        &mut self,
        channel: &mut Channel,
        common: &mut Common,
        tags: &mut Tags,
        key: &[u8],
    ) -> Option<Value> {
        let (value, now) = self.table.as_mut()?.get(channel, common, key)?;
        common.counters.one_sided += 1;
        if now.saturating_sub(self.seen_at) >= channel.lease() / 2 {
            channel.make_room();
            self.tell_seen(channel, tags, now);
        }
        Some(value)
    }

    /// Ends an operation with the value, if the table has it. Returns false if the server has to be asked.
    fn end_by_table(&mut self, channel: &mut Channel, common: &mut Common, tags: &mut Tags, name: Name) -> bool {
        let Some(op) = common.ops.unanswered(name) else { return false };
        let key = std::mem::take(&mut op.key);
        let value = self.get_by_table(channel, common, tags, &key);
        if let Some(op) = common.ops.unanswered(name) {
            op.key = key;
        }
        match value {
            Some(value) => common.end(name, Ok(Answer::Value(Some(value)))),
            None => return false,
        }
        true
    }

    /// Reads an item for an operation. Returns false if its key has no tag and is not in the table, or is being changed: the server
    /// knows what comes first.
    pub(super) fn read_by_tag(
        &mut self,
        channel: &mut Channel,
        common: &mut Common,
        tags: &mut Tags,
        name: Name,
    ) -> bool {
        if common.ops.get(name).is_none_or(|op| common.ops.is_changing(&op.key)) {
            return false;
        }
        if self.table.is_some() && self.end_by_table(channel, common, tags, name) {
            return true;
        }
        let Some(op) = common.ops.get(name) else { return false };
        let read = Self::plan(common.fabrics.slots(), tags, &op.key);
        let Some(fetching) = read.and_then(|read| Self::post(channel, read)) else { return false };
        self.fetches.push_back(Fetching { op: Some(name), ..fetching });
        true
    }

    /// Takes the end of a read. Returns an operation that the server has to be asked for.
    pub(super) fn ended(
        &mut self,
        channel: &mut Channel,
        common: &mut Common,
        tags: &mut Tags,
        (id, succeeded): (u64, bool),
    ) -> Option<Name> {
        let at = self.fetches.iter().position(|fetching| fetching.id == id)?;
        let fetching = self.fetches.remove(at)?;
        let name = fetching.op?;
        let op = common.ops.unanswered(name)?;
        let key = std::mem::take(&mut op.key);
        let value = self.believe(channel, &mut common.counters, tags, fetching.read, succeeded, &key);
        if let Some(op) = common.ops.unanswered(name) {
            op.key = key;
        }
        match value {
            Some(value) => common.end(name, Ok(Answer::Value(Some(value)))),
            None => return Some(name),
        }
        None
    }

    /// Returns the read value, if it is the key's.
    #[inline]
    fn believe(
        &mut self,
        channel: &mut Channel,
        counters: &mut Counters,
        tags: &mut Tags,
        Planned { slot, leased, at, .. }: Planned,
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
            if now.saturating_sub(self.seen_at) >= channel.lease() / 2 {
                channel.make_room();
                self.tell_seen(channel, tags, now);
            }
            return Some(value);
        }
        counters.distrusted += 1;
        tags.forget(key);
        None
    }

    /// Reports reads, if it is time.
    pub(super) fn tell_if_due(&mut self, channel: &mut Channel, tags: &mut Tags, now: u64) {
        if now.saturating_sub(self.seen_at) >= channel.lease() / 4 {
            self.tell_seen(channel, tags, now);
        }
    }

    /// Reports to the server what was read, if it does not know.
    fn tell_seen(&mut self, channel: &mut Channel, tags: &mut Tags, now: u64) {
        if self.counts_reads || !self.has_seen(tags) || !channel.has_sent_all() {
            return;
        }
        channel.message.clear();
        let message = &mut channel.message;
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
        if channel.message.is_empty() {
            return;
        }
        let id = channel.next_id();
        channel.send(id, Kind::Seen);
    }

    fn has_seen(&self, tags: &Tags) -> bool {
        tags.has_seen() || self.table.as_ref().is_some_and(|table| table.has_seen())
    }

    /// Reports the last reads, before the connection is closed.
    pub(super) fn tell_last(&mut self, channel: &mut Channel, tags: &mut Tags) {
        // As much as there is room for: no reader waits for more.
        while channel.broken().is_none() && !self.counts_reads && self.has_seen(tags) && channel.has_sent_all() {
            self.tell_seen(channel, tags, 0);
        }
    }
}
