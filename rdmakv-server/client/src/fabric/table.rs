//! GETs by the server's [GET table](rdmakv_proto::gets): the key is looked up in the server's memory, and the item read there, without a tag
//! and without a word to the server.
//!
//! Only over a fabric that reads while it is asked to, which is shared memory. Whatever is not as it should be leaves the GET to the server.

use super::channel::Channel;
use super::items;
use crate::common::Common;
use crate::slots::{Slot, Slots};
use crate::value::Value;
use rdmakv_proto::clock;
use rdmakv_proto::gets::{BUCKET, Entry, HEAD, Hasher, SLOTS, bucket};
use rdmakv_proto::item::ItemError;
use rdmakv_proto::messages::{self, RemoteSegment};

/// How often a GET begins again, where its item gives way to another or the table's time has come meanwhile.
const TRIES: u32 = 3;

/// A server's table.
pub(super) struct Table {
    hasher: Hasher,
    buckets: u64,
    table: RemoteSegment,
    /// With the place that each begins at.
    arenas: Vec<(u64, RemoteSegment)>,
    /// Until when it holds, as it said when it was asked last.
    until: u64,
    /// The difference of the boot clock to the one that items expire by, in nanoseconds; 0 if unknown.
    beyond_boot: u64,
    /// The slot that buckets are read to.
    scratch: Slot,
    reads: Reads,
}

impl Table {
    /// Returns the table that a server tells of, if it makes sense and the server's clock is this one: `asked` is before the server was
    /// greeted.
    pub(super) fn new(told: messages::Table<'_>, asked: u64, slots: &mut Slots) -> Option<Self> {
        let mut segments = told.segments.iter();
        let table = segments.next()?;
        let buckets = table.length.checked_sub(HEAD)? / BUCKET;
        if buckets == 0 || !(asked..=clock::boot()).contains(&told.now) {
            return None;
        }
        let mut place = 0_u64;
        let mut arenas = Vec::new();
        for arena in segments {
            arenas.push((place, arena));
            place = place.checked_add(arena.length)?;
        }
        let scratch = slots.take(BUCKET as usize)?;
        let (hasher, reads) = (Hasher::new(told.secret), Reads::default());
        // A table may be mapped with a little more than it has.
        Some(Self { hasher, buckets: 1 << buckets.ilog2(), table, arenas, until: 0, beyond_boot: 0, scratch, reads })
    }

    /// Words of the table.
    fn words(&self, at: u64, words: usize) -> RemoteSegment {
        RemoteSegment { address: self.table.address + at, length: words as u64 * 8, ..self.table }
    }

    fn word(&self, slot: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.scratch.bytes()[slot * 8..slot * 8 + 8]);
        u64::from_le_bytes(word)
    }

    /// Returns the time, in Unix seconds, by the clock that items expire by.
    fn unix(&self) -> u64 {
        match self.beyond_boot {
            0 => clock::unix(),
            beyond => clock::boot().saturating_add(beyond) / 1_000_000_000,
        }
    }

    /// Returns the place of the entry's item.
    fn item(&self, entry: Entry) -> Option<RemoteSegment> {
        let place = entry.place();
        let within = |&&(start, arena): &&(u64, RemoteSegment)| place >= start && place - start < arena.length;
        let &(start, arena) = self.arenas.iter().find(within)?;
        let at = place - start;
        let length = entry.bytes().min(arena.length - at);
        Some(RemoteSegment { address: arena.address + at, length, key: arena.key })
    }
}

/// The result of a look at the table.
enum Looked {
    /// The value, and when it was looked at.
    Value(Value, u64),
    /// The item gave way to another meanwhile, or it was not sure that the table holds.
    Again,
    /// The server knows.
    Nothing,
}

impl Table {
    /// Returns the value, if the table has it, and when it was looked at.
    #[inline]
    pub(super) fn get(&mut self, channel: &mut Channel, common: &mut Common, key: &[u8]) -> Option<(Value, u64)> {
        for _ in 0..TRIES {
            match self.look_up(channel, common, key) {
                Looked::Value(value, now) => return Some((value, now)),
                Looked::Again => {}
                Looked::Nothing => break,
            }
        }
        None
    }

    /// Reads into the scratch.
    #[inline]
    fn read_words(&mut self, channel: &mut Channel, words: RemoteSegment) -> bool {
        channel.read_now(&mut self.scratch, words) == Some(true)
    }

    /// Reads until when the table holds, and the clock that items expire by. The report counts for later reads.
    #[cold]
    fn read_head(&mut self, channel: &mut Channel) -> bool {
        let read = self.read_words(channel, self.words(0, 2));
        if read {
            (self.until, self.beyond_boot) = (self.word(0), self.word(1));
        }
        read
    }

    /// Entry, item, entry: see the [rules](rdmakv_proto::gets#the-rules).
    #[inline]
    fn look_up(&mut self, channel: &mut Channel, common: &mut Common, key: &[u8]) -> Looked {
        let incarnation = channel.incarnation();
        if self.until == 0 && !self.read_head(channel) {
            return Looked::Nothing;
        }
        let hash = self.hasher.hash(key);
        let at = HEAD + bucket(hash, self.buckets) * BUCKET;
        if !self.read_words(channel, self.words(at, SLOTS)) {
            return Looked::Nothing;
        }
        let words: [u64; SLOTS] = std::array::from_fn(|slot| self.word(slot));
        for (slot, entry) in words.into_iter().enumerate().filter_map(|(slot, word)| Some((slot, Entry::of(word)?))) {
            if !entry.may_be(hash) {
                continue;
            }
            let Some(item) = self.item(entry) else { return Looked::Nothing };
            let Some(mut into) = common.fabrics.slots().and_then(|slots| slots.take(item.length as usize)) else {
                return Looked::Nothing;
            };
            let again = self.words(at + slot as u64 * 8, 1);
            if channel.read_item(&mut into, item) != Some(true) || !self.read_words(channel, again) {
                return Looked::Nothing;
            }
            if self.word(0) != entry.word() {
                return Looked::Again;
            }
            let value = match items::read_at(into, key, incarnation, || self.unix()) {
                Ok(value) if entry.has_version(value.version()) => value,
                // Two keys with one print.
                Err(ItemError::OtherKey) => continue,
                _ => {
                    common.counters.distrusted += 1;
                    return Looked::Nothing;
                }
            };
            let now = clock::boot();
            if now < self.until {
                self.reads.count(item.address, item.key);
                return Looked::Value(value, now);
            }
            if !self.read_head(channel) || self.until <= now {
                return Looked::Nothing;
            }
            return Looked::Again;
        }
        Looked::Nothing
    }
}

/// Slots of [`Reads`], a power of two.
const COUNTED: usize = 1024;

/// Which items were read how often since that was told: as many as there are slots. Items that share a slot share a count, and it is told
/// of one of them, which each of the reads is as likely to choose: so that the sum is right, and what is read often is told of.
struct Reads {
    slots: Box<[Read; COUNTED]>,
    /// Slots in use.
    used: usize,
    /// The next place to report.
    next: usize,
    random: u64,
}

#[derive(Clone, Copy, Default)]
struct Read {
    address: u64,
    key: u32,
    reads: u32,
}

impl Default for Reads {
    fn default() -> Self {
        Self { slots: Box::new([Read::default(); COUNTED]), used: 0, next: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl Reads {
    #[inline]
    fn count(&mut self, address: u64, key: u32) {
        let at = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - COUNTED.ilog2());
        let slot = &mut self.slots[at as usize];
        self.used += usize::from(slot.reads == 0);
        slot.reads = slot.reads.saturating_add(1);
        if slot.address != address {
            // xorshift64
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if ((self.random >> 32) * u64::from(slot.reads)) >> 32 == 0 {
                (slot.address, slot.key) = (address, key);
            }
        }
    }

    /// Addresses, keys and reads since the last time, at most so many.
    fn take(&mut self, most: usize, mut see: impl FnMut(u64, u32, u32)) {
        let mut taken = 0;
        while self.used > 0 && taken < most {
            let slot = &mut self.slots[self.next];
            self.next = (self.next + 1) % COUNTED;
            if slot.reads > 0 {
                see(slot.address, slot.key, std::mem::take(&mut slot.reads));
                self.used -= 1;
                taken += 1;
            }
        }
    }
}

impl Table {
    pub(super) fn has_seen(&self) -> bool {
        self.reads.used > 0
    }

    pub(super) fn take_seen(&mut self, most: usize, see: impl FnMut(u64, u32, u32)) {
        self.reads.take(most, see);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmakv_proto::item;
    use std::collections::HashMap;

    #[test]
    fn items_expire_by_the_clock_of_the_server() {
        let mut slots = Slots::new(1 << 16).unwrap();
        let mut written = Vec::new();
        let segment = RemoteSegment { address: 0, length: HEAD + BUCKET, key: 1 };
        let segments = messages::Segments::write(&[segment], &mut written);
        let now = clock::boot();
        let mut table = Table::new(messages::Table { now, secret: [1, 2], segments }, now, &mut slots).unwrap();
        assert!(clock::unix().abs_diff(table.unix()) <= 1, "it has not said it");
        // The time of day was put back by an hour since the server began; and forward.
        for ahead in [3600_u64, 0_u64.wrapping_sub(3600)] {
            table.beyond_boot = (clock::unix().wrapping_add(ahead) * 1_000_000_000).saturating_sub(clock::boot());
            assert!(clock::unix().wrapping_add(ahead).abs_diff(table.unix()) <= 1);
            let mut ends = |expiry: u64| {
                let mut slot = slots.take(512).unwrap();
                image(slot.bytes_mut(), expiry);
                items::read_at(slot, b"key", 7, || table.unix()).is_err()
            };
            let by_the_server = clock::unix().wrapping_add(ahead);
            assert!(ends(by_the_server - 60) && !ends(by_the_server + 60) && !ends(0));
        }
    }

    /// An item with the key "key" and no value.
    fn image(into: &mut [u8], expiry: u64) {
        let (key, version) = (b"key", 9_u64);
        into.fill(0);
        into[0] = item::State::Alive as u8;
        into[2..4].copy_from_slice(&item::MAGIC.to_le_bytes());
        into[4..8].copy_from_slice(&7_u32.to_le_bytes());
        into[8..16].copy_from_slice(&expiry.to_le_bytes());
        into[16..24].copy_from_slice(&version.to_le_bytes());
        into[32..36].copy_from_slice(&item::sum(version, 0, key, b"").to_le_bytes());
        into[36] = 3;
        into[item::HEADER..item::HEADER + 3].copy_from_slice(key);
    }

    #[test]
    fn every_read_is_told_once_and_of_what_is_read_often() {
        let mut reads = Reads::default();
        for turn in 0..100_000_u64 {
            // One item of every second read, and each of many others once.
            reads.count(if turn % 2 == 0 { 64 } else { 4096 + turn * 64 }, 7);
        }
        let (mut told, mut messages) = (HashMap::new(), 0);
        while reads.used > 0 {
            let mut entries = 0;
            reads.take(200, |address, key, reads| {
                assert_eq!(key, 7);
                *told.entry(address).or_insert(0_u64) += u64::from(reads);
                entries += 1;
            });
            assert!(entries <= 200);
            messages += 1;
        }
        assert_eq!(told.values().sum::<u64>(), 100_000);
        assert!((2..=COUNTED / 200 + 1).contains(&messages), "{messages}");
        assert!(told[&64] >= 50_000, "{told:?}");
        reads.take(200, |_, _, _| panic!("twice"));
    }

    #[test]
    fn few_items_are_counted_one_by_one() {
        let mut reads = Reads::default();
        for turn in 0..30_u64 {
            reads.count(4096 + turn % 3 * 1184, 7);
        }
        let mut told = Vec::new();
        reads.take(200, |address, _, reads| told.push((address, reads)));
        told.sort_unstable();
        assert_eq!(told, [(4096, 10), (4096 + 1184, 10), (4096 + 2 * 1184, 10)]);
    }
}
