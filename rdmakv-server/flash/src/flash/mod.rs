//! The flash tier of one shard, as a state machine.

mod manifest;
mod reclaim;
mod walk;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::quality::FixedState;
use rdmakv_proto::faults::{Fault, injected};

use crate::admit::{self, Refused};
use crate::device::{DeviceError, Files};
use crate::index::Index;
use crate::layout::{self, Area, Layout};
use crate::loads::{Load, LoadId, Loads};
use crate::memory::StubMemory;
use crate::record::{self, Entry, Record, RecordError, Summed};
use crate::segments::{Segments, State};
use crate::stubs::{self, Id, Stub, Stubs};
use crate::writer::{Buffer, Missing, Writer};

pub use manifest::ManifestError;
use reclaim::Reclaim;
pub use walk::{Crawled, Listed, Position};

/// Admissions between two looks at how full the log is.
const LOOKS: u32 = 64;
/// Segments of a log of which one free one is for reclaim alone.
const ONE_FOR_MOVES: usize = 12;

/// How a shard uses its part of the files.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The shard's part of the files.
    pub layout: Layout,
    /// A number that no other run of a server has: records of others are not believed.
    pub life: u32,
    /// The secret of the key hash.
    pub seed: u64,
    /// Bytes of a record at least.
    pub item_min: u32,
    /// Bytes of a batch, and so of a record, at most.
    pub batch: u32,
    /// Number of buffers for batches.
    pub buffers: usize,
    /// Bytes of memory for stubs at most.
    pub stub_bytes: u64,
    /// Bytes of memory that stubs get at a time.
    pub stub_page: usize,
    /// Reads for clients in progress at most.
    pub loads: usize,
    /// Bytes that reclaim may write again for 100 bytes admitted: see [`rewrite_percent`].
    pub rewrite_percent: u32,
    /// Whether reclaim drops items that were never fetched.
    pub drop_unread: bool,
    /// Milliseconds after which a read is no longer waited for.
    pub silence: u64,
}

impl Settings {
    /// Returns the defaults for a layout.
    #[must_use]
    pub fn new(layout: Layout, life: u32, seed: u64) -> Self {
        Self {
            layout,
            life,
            seed,
            item_min: 512,
            batch: 1 << 20,
            buffers: 4,
            stub_bytes: 32 << 20,
            stub_page: 1 << 20,
            loads: 128,
            rewrite_percent: rewrite_percent(60),
            drop_unread: false,
            silence: 5000,
        }
    }
}

/// Returns how much may be written again where segments are reclaimed of which this share, in percent, is named.
///
/// Such a segment gives room for the rest of it only. So 60 is 150 bytes for 100 admitted, and 80 is 400.
#[must_use]
pub fn rewrite_percent(share: u32) -> u32 {
    let share = share.min(95);
    100 * share / (100 - share)
}

/// Names a write or a read of the tier's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// A transfer that the driver is to do. Both end by a call with the ticket.
///
/// For a transfer that it waits for no longer, a driver reports [`DeviceError::Silent`]. A later end is ignored, and a buffer is used
/// again only when the driver has dropped it.
#[derive(Clone, Debug)]
pub enum Action {
    /// Write the first bytes of the buffer, as many as the area has; then [`Flash::written`]. Drop the buffer before.
    Write {
        /// Names the write.
        ticket: Ticket,
        /// The bytes on flash to be written.
        area: Area,
        /// The bytes.
        buffer: Arc<Buffer>,
    },
    /// Read for reclaim; then [`Flash::read`].
    Read {
        /// Names the read.
        ticket: Ticket,
        /// The bytes to be read.
        area: Area,
    },
}

/// An item that a GET found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The record; its bytes are a buffer's or those that were read.
    pub record: Record<'a>,
    /// When it ends, in Unix seconds; 0 is never. What the record says of that does not count.
    pub expiry: u32,
    /// How often it was asked for.
    pub frequency: u8,
    /// Whether it was fetched since it was stored.
    pub fetched: bool,
    /// The store's two marks.
    pub marks: u8,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Not on flash.
    Absent,
    /// Still in a buffer. It counts as in RAM from now on.
    Item(Item<'a>),
    /// To be read, into memory of as many bytes as the area has; then [`Flash::loaded`].
    Load(LoadId, Area),
    /// Being read for another request: wait for this load.
    Join(LoadId),
    /// Too many reads are in progress: wait for the end of one.
    Busy,
}

/// The end of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// The item. It counts as in RAM from now on.
    Item(Item<'a>),
    /// The item was changed, removed or moved meanwhile: look it up again.
    Again,
    /// It is over.
    Expired,
    /// The read failed: the item is gone.
    Failed(DeviceError),
    /// The bytes are not to be believed: the item is gone.
    Wrong(RecordError),
}

/// The fields of an item that need no read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// When it ends, in Unix seconds; 0 is never.
    pub expiry: u32,
    /// Bytes of the record, rounded up.
    pub len: u32,
    /// Whether it was fetched since it was stored.
    pub fetched: bool,
    /// Whether it is in RAM too.
    pub shadowed: bool,
}

/// Counts of what happened. Bytes are rounded up to units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the statistics")]
pub struct Counts {
    pub admitted: u64,
    pub admitted_bytes: u64,
    pub written_bytes: u64,
    pub rewritten: u64,
    pub rewritten_bytes: u64,
    pub dropped_size: u64,
    pub dropped_expiry: u64,
    pub dropped_unread: u64,
    pub dropped_busy: u64,
    pub dropped_stubs: u64,
    pub dropped_lost: u64,
    pub evicted: u64,
    pub evicted_bytes: u64,
    pub lost_moves: u64,
    pub left_clean: u64,
    pub loads: u64,
    pub joined: u64,
    pub buffered: u64,
    pub orphaned: u64,
    pub silent: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub wrong: u64,
    pub reclaimed: u64,
    pub opened: u64,
    pub freed: u64,
}

/// Amounts at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Items on flash.
    pub items: usize,
    /// Of these, items that are not in RAM too.
    pub away: usize,
    /// Bytes of memory for stubs.
    pub stub_bytes: usize,
    /// Bytes of memory for stubs that is not lent.
    pub mapped_bytes: usize,
    /// Bytes of memory for the index.
    pub index_bytes: usize,
    /// Bytes of memory for all buffers that may be made.
    pub buffer_bytes: usize,
    /// Bytes of memory for all else.
    pub other_bytes: usize,
    /// Free segments.
    pub free_segments: usize,
    /// Segments that were given up with their files.
    pub lost_segments: usize,
    /// Loads in progress.
    pub loads: usize,
    /// Files that were given up.
    pub lost_files: usize,
}

/// The flash tier of one shard.
///
/// It owns keys and places; the driver owns files and time. `now` is in Unix seconds. Calls happen under the shard's lock, and do a
/// bounded amount of work.
#[derive(Debug)]
pub struct Flash {
    settings: Settings,
    hasher: FixedState,
    stubs: Stubs,
    index: Index,
    segments: Segments,
    writer: Writer,
    loads: Loads,
    files: Files,
    reclaim: Reclaim,
    /// The stub that the crawler has come to.
    crawled: Id,
    counts: Counts,
    /// Segments opened in this life of the log.
    opened: u32,
    /// Bytes that reclaim may write again.
    credit: u64,
    /// Admissions since the last look at how full the log is, which found [this](Self::is_full).
    looks: u32,
    was_full: bool,
    /// Whether an item had an expiry since the last sweep.
    has_expiry: bool,
    is_stopping: bool,
    /// Whether every file was given up.
    is_lost: bool,
}

impl Flash {
    /// Makes an empty tier.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let (layout, segments) = (&settings.layout, settings.layout.segments());
        Self {
            hasher: FixedState::with_seed(settings.seed),
            stubs: Stubs::new(settings.stub_bytes, settings.stub_page),
            index: Index::new(),
            segments: Segments::new(segments),
            writer: Writer::new(layout.unit(), layout.segment_bytes(), settings.batch, settings.buffers),
            loads: Loads::new(settings.loads),
            files: Files::default(),
            reclaim: Reclaim::default(),
            crawled: Id::NONE,
            counts: Counts::default(),
            opened: 0,
            credit: 0,
            looks: 0,
            was_full: false,
            has_expiry: false,
            is_stopping: false,
            is_lost: false,
            settings,
        }
    }

    /// Returns the hash of a key that the other calls take.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        hash(&self.hasher, key)
    }
    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { opened: u64::from(self.opened), freed: self.segments.freed(), ..self.counts }
    }
    /// Returns the amounts.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            items: self.stubs.len(),
            away: self.stubs.away(),
            stub_bytes: self.stubs.bytes(),
            mapped_bytes: self.stubs.mapped_bytes(),
            index_bytes: self.index.bytes(),
            buffer_bytes: self.writer.most_bytes(),
            other_bytes: self.writer.bytes() + self.segments.bytes() + self.reclaim.bytes(),
            free_segments: self.segments.free(),
            lost_segments: self.segments.lost(),
            loads: self.loads.len(),
            lost_files: self.files.lost(),
        }
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<Id> {
        self.index.find(hash, |id| self.stubs.key(id) == key)
    }
    /// Returns the stub of this hash that names the place.
    fn at_place(&self, hash: u64, place: u32) -> Option<Id> {
        self.index.find(hash, |id| self.stubs.get(id).place == place)
    }
    fn segment_of(&self, stub: Stub) -> u32 {
        self.settings.layout.segment_of(stub.place)
    }

    /// Adds a key's stub, which it has none of.
    fn insert(&mut self, hash: u64, key: &[u8], stub: Stub) -> Option<Id> {
        let id = self.stubs.insert(key, stub)?;
        let Self { index, stubs, hasher, .. } = self;
        index.insert(hash, id, |id| self::hash(hasher, stubs.key(id)));
        self.has_expiry |= stub.expiry != 0;
        self.segments.named(self.settings.layout.segment_of(stub.place), layout::decode_len(stub.len));
        Some(id)
    }
    fn remove_id(&mut self, hash: u64, id: Id) {
        let stub = self.stubs.get(id);
        if stub.marks & stubs::LOADING != 0 {
            self.loads.orphan(id);
        }
        self.index.remove(hash, id);
        self.stubs.remove(id);
        let segment = self.segment_of(stub);
        self.segments.unnamed(segment, layout::decode_len(stub.len));
        self.settle(segment);
    }
    /// Removes an item whose segment counts no more. One that a file took with it is lost.
    fn remove_uncounted(&mut self, hash: u64, id: Id, now: u32) {
        let stub = self.stubs.get(id);
        if self.segments.get(self.segment_of(stub)).state == (State::Lost { counted: true }) {
            self.count_lost(stub, now);
        }
        self.remove_id(hash, id);
    }
    /// Counts a lost item, unless it is over or in RAM too.
    fn count_lost(&mut self, stub: Stub, now: u32) {
        self.counts.dropped_lost += u64::from(stub.marks & stubs::SHADOWED == 0 && !is_over(stub, now));
    }
    /// Has a stub name another place.
    fn move_to(&mut self, id: Id, place: u32) {
        let mut stub = self.stubs.get(id);
        if stub.marks & stubs::LOADING != 0 {
            self.loads.orphan(id);
        }
        let old = self.segment_of(stub);
        (stub.place, stub.marks) = (place, stub.marks & !stubs::LOADING);
        self.stubs.set(id, stub);
        let units = layout::decode_len(stub.len);
        self.segments.named(self.segment_of(stub), units);
        self.segments.unnamed(old, units);
        self.settle(old);
    }
    /// Frees a segment that nothing names and nothing writes.
    fn settle(&mut self, number: u32) {
        let segment = self.segments.get(number);
        let is_done = matches!(segment.state, State::Sealed | State::Condemned);
        if is_done && segment.live == 0 && !self.writer.is_busy(number) {
            self.segments.release(number);
        }
    }

    /// Takes an item that leaves RAM. A former value of the key is forgotten in any case.
    ///
    /// # Errors
    ///
    /// [`Refused`]: it is not on flash.
    pub fn admit(&mut self, hash: u64, entry: &Entry<'_>, now: u32) -> Result<(), Refused> {
        // With the fault, what is too small for flash leaves an older value there.
        if !(injected(Fault::FlashKeptAtOverwrite) && record::len(entry) < self.settings.item_min as usize) {
            self.remove(hash, entry.key);
        }
        let admitted = self.try_admit(hash, entry, now);
        let counts = &mut self.counts;
        match admitted {
            Ok(()) => counts.admitted += 1,
            Err(Refused::Size) => counts.dropped_size += 1,
            Err(Refused::Expiry) => counts.dropped_expiry += 1,
            Err(Refused::Unread) => counts.dropped_unread += 1,
            Err(Refused::Busy) => counts.dropped_busy += 1,
            Err(Refused::Stubs) => counts.dropped_stubs += 1,
            Err(Refused::Lost) => counts.dropped_lost += 1,
        }
        admitted
    }
    /// Sets how many bytes stubs may take. Where they take more, [`work`](Self::work) drops items.
    pub fn set_stub_limit(&mut self, bytes: u64) {
        self.stubs.set_limit(bytes);
    }
    /// Has stubs take no more memory than is [lent](Self::lend_stub_memory) from now on.
    pub fn take_lent_only(&mut self) {
        self.stubs.take_lent_only();
    }
    /// Returns whether more memory should be lent soon.
    #[must_use]
    pub fn wants_stub_memory(&self) -> bool {
        self.stubs.wants_memory()
    }
    /// Takes memory for stubs: as many bytes as [`Settings::stub_page`].
    pub fn lend_stub_memory(&mut self, memory: StubMemory) {
        self.stubs.lend(memory);
    }
    /// Returns memory that was lent and is not needed.
    #[must_use]
    pub fn return_stub_memory(&mut self) -> Option<StubMemory> {
        self.stubs.take_back()
    }
    /// Adds a stub that has no place yet.
    fn take_stub(&mut self, key: &[u8], stub: Stub) -> Option<Id> {
        if let Some(id) = self.stubs.insert(key, stub) {
            return Some(id);
        }
        if !self.stubs.is_full() {
            return None;
        }
        // Keys of another length have all blocks: one of these is as good for keys of this length.
        match self.stubs.next_to_empty(key.len()) {
            Some(block) => {
                self.empty_block(block);
                self.stubs.insert(key, stub)
            }
            None => {
                self.reclaim.want_early();
                None
            }
        }
    }
    /// Removes an item's stub to make room. One that is in RAM too is not lost by that.
    fn evict(&mut self, hash: u64, id: Id) {
        let stub = self.stubs.get(id);
        if stub.marks & stubs::SHADOWED == 0 {
            self.counts.evicted += 1;
            self.counts.evicted_bytes += u64::from(self.bytes_of(stub));
        }
        self.remove_id(hash, id);
    }
    /// Drops all items whose stubs are in this block.
    fn empty_block(&mut self, block: usize) {
        for id in self.stubs.of_block(block) {
            let hash = self.hash(self.stubs.key(id));
            self.evict(hash, id);
        }
    }
    fn try_admit(&mut self, hash: u64, entry: &Entry<'_>, now: u32) -> Result<(), Refused> {
        if self.is_lost {
            return Err(Refused::Lost);
        }
        let len = record::len(entry);
        let is_short = self.is_full();
        admit::worth(entry, len, (self.settings.item_min as usize, self.writer.record_max()), is_short, now)?;
        let padded = len.next_multiple_of(self.settings.layout.unit() as usize);
        // The stub first: a record without one would be a write for nothing.
        let marks = entry.frequency.min(7)
            | if entry.fetched { stubs::FETCHED } else { 0 }
            | (entry.marks << stubs::OWN_SHIFT & stubs::OWN);
        let units = (padded / self.settings.layout.unit() as usize) as u32;
        let (len, version) = (layout::encode_len(units), entry.version as u8);
        let stub = Stub { place: 0, expiry: entry.expiry, len, version, marks };
        let Some(id) = self.take_stub(entry.key, stub) else { return Err(Refused::Stubs) };
        let Ok(place) = self.append(hash, entry, false) else {
            self.stubs.remove(id);
            return Err(Refused::Busy);
        };
        self.stubs.set(id, Stub { place, expiry: entry.expiry, len, version, marks });
        let Self { index, stubs, hasher, .. } = self;
        index.insert(hash, id, |id| self::hash(hasher, stubs.key(id)));
        self.segments.named(self.settings.layout.segment_of(place), layout::decode_len(len));
        self.has_expiry |= entry.expiry != 0;
        self.counts.admitted_bytes += padded as u64;
        let most = u64::from(self.settings.layout.segment_bytes()) * 100;
        self.credit = (self.credit + padded as u64 * u64::from(self.settings.rewrite_percent)).min(most);
        Ok(())
    }
    /// Returns whether an item that is taken drives others out. Then free segments are few, and of each other one more is named than may
    /// be written again.
    fn is_full(&mut self) -> bool {
        if self.segments.free() > self.reserve() {
            self.looks = 0;
            return false;
        }
        if self.looks == 0 {
            let least = self.segments.emptiest().map(|number| self.segments.get(number).live_units);
            self.was_full = least.is_none_or(|least| least > self.rewrite_units());
        }
        self.looks = (self.looks + 1) % LOOKS;
        self.was_full
    }
    /// Returns the units of a segment that are written again at most: what the rest pays for, and half of it now and then.
    fn rewrite_units(&self) -> u32 {
        let (layout, percent) = (&self.settings.layout, u64::from(self.settings.rewrite_percent));
        let units = layout.segment_bytes() / layout.unit();
        (units / 2).max((u64::from(units) * percent / (100 + percent)) as u32)
    }
    /// Returns how many segments reclaim keeps free.
    fn reserve(&self) -> usize {
        let segments = self.segments.len() as usize;
        1 + usize::from(segments >= ONE_FOR_MOVES) + segments / 64
    }
    /// Writes a record to the open segment; returns its place. The last free segment is opened for reclaim only.
    fn append(&mut self, hash: u64, entry: &Entry<'_>, is_move: bool) -> Result<u32, Missing> {
        if self.is_stopping {
            return Err(Missing::Segment);
        }
        let kept = usize::from(!is_move && self.segments.len() as usize >= ONE_FOR_MOVES);
        loop {
            let appended = self.writer.append(entry, hash);
            self.take_full();
            match appended {
                Ok(offset) => {
                    let (segment, _) = self.writer.segment().ok_or(Missing::Segment)?;
                    return Ok(self.settings.layout.place(segment, offset));
                }
                Err(Missing::Buffer) => return Err(Missing::Buffer),
                Err(Missing::Segment) if self.segments.free() <= kept => return Err(Missing::Segment),
                Err(Missing::Segment) => {
                    let sequence = u64::from(self.settings.life) << 32 | u64::from(self.opened + 1);
                    let segment = self.segments.take_free(sequence).ok_or(Missing::Segment)?;
                    self.opened += 1;
                    self.writer.open(segment, sequence);
                }
            }
        }
    }
    fn take_full(&mut self) {
        while let Some(full) = self.writer.next_full() {
            self.segments.seal(full.segment, full.records);
        }
    }

    /// Looks an item up for a client. `clock` counts milliseconds.
    pub fn get(&mut self, hash: u64, key: &[u8], now: u32, clock: u64) -> Lookup<'_> {
        let Some(id) = self.find(hash, key) else { return Lookup::Absent };
        let mut stub = self.stubs.get(id);
        let segment = self.segment_of(stub);
        if !self.segments.counts(segment) {
            self.remove_uncounted(hash, id, now);
            return Lookup::Absent;
        }
        if is_over(stub, now) {
            self.remove_id(hash, id);
            return Lookup::Absent;
        }
        if stub.marks & stubs::FREQUENCY < 7 {
            stub.marks += 1;
        }
        let offset = self.settings.layout.offset_of(stub.place);
        if self.writer.bytes_at(segment, offset).is_some() {
            let item = (stub.expiry, stub.marks);
            stub.marks |= stubs::SHADOWED | stubs::FETCHED;
            self.stubs.set(id, stub);
            self.counts.buffered += 1;
            let bytes = self.writer.bytes_at(segment, offset).unwrap_or_default();
            return match record::parse(bytes) {
                Ok((record, _, _)) => Lookup::Item(view(record, item.0, item.1)),
                Err(_) => Lookup::Absent,
            };
        }
        if stub.marks & stubs::LOADING != 0 {
            self.stubs.set(id, stub);
            if let Some(load) = self.loads.of(id) {
                self.counts.joined += 1;
                return Lookup::Join(load);
            }
        }
        if self.loads.is_full() {
            return Lookup::Busy;
        }
        stub.marks |= stubs::LOADING;
        self.stubs.set(id, stub);
        self.counts.loads += 1;
        let layout = &self.settings.layout;
        let area = layout.area(segment, offset, layout.read_len(stub.place, stub.len));
        let load = Load { stub: id, hash, place: stub.place, begun: clock, orphaned: false };
        Lookup::Load(self.loads.begin(load), area)
    }
    /// Takes the end of a load: the bytes that were read, all that the area had.
    pub fn loaded<'a>(&mut self, load: LoadId, bytes: Result<Summed<'a>, DeviceError>, now: u32) -> Loaded<'a> {
        let Some(load) = self.loads.end(load) else { return Loaded::Again };
        self.counts.read_errors += u64::from(bytes.is_err());
        if load.orphaned {
            self.counts.orphaned += 1;
            if injected(Fault::FlashLoadNotOrphaned)
                && let Ok(read) = bytes
                && let Ok((record, ..)) = record::parse(read.bytes())
                && self.find(load.hash, record.key).is_none()
            {
                return Loaded::Item(view(record, 0, 0));
            }
            return Loaded::Again;
        }
        let (id, mut stub) = (load.stub, self.stubs.get(load.stub));
        debug_assert_eq!(stub.place, load.place, "a move orphans");
        stub.marks &= !stubs::LOADING;
        self.stubs.set(id, stub);
        let segment = self.segment_of(stub);
        if !self.segments.counts(segment) {
            self.remove_uncounted(load.hash, id, now);
            return Loaded::Again;
        }
        if is_over(stub, now) {
            self.remove_id(load.hash, id);
            return Loaded::Expired;
        }
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                self.remove_id(load.hash, id);
                return Loaded::Failed(error);
            }
        };
        match record::believe(bytes, self.stubs.key(id), stub.version, self.segments.get(segment).sequence) {
            Ok(record) => {
                let item = view(record, stub.expiry, stub.marks);
                stub.marks |= stubs::SHADOWED | stubs::FETCHED;
                self.stubs.set(id, stub);
                Loaded::Item(item)
            }
            Err(error) => {
                self.counts.wrong += 1;
                self.remove_id(load.hash, id);
                Loaded::Wrong(error)
            }
        }
    }
    /// Ends a load that is not done. Its item stays.
    pub fn cancel(&mut self, load: LoadId) {
        let Some(load) = self.loads.end(load).filter(|load| !load.orphaned) else { return };
        let mut stub = self.stubs.get(load.stub);
        stub.marks &= !stubs::LOADING;
        self.stubs.set(load.stub, stub);
    }
    /// Notes that an item which a call returned is not in RAM, after all.
    pub fn unshadow(&mut self, hash: u64, key: &[u8]) {
        let Some(id) = self.find(hash, key) else { return };
        let mut stub = self.stubs.get(id);
        stub.marks &= !stubs::SHADOWED;
        self.stubs.set(id, stub);
    }
    /// Returns a load that has been silent for too long. Its item is gone, and requests that wait for it get a miss. Its memory is the device's
    /// until it has ended.
    pub fn next_silent(&mut self, clock: u64) -> Option<LoadId> {
        let (id, load) = self.loads.silent(clock.checked_sub(self.settings.silence)?)?;
        self.counts.silent += 1;
        self.remove_id(load.hash, load.stub);
        Some(id)
    }

    /// Takes back an item that leaves RAM unchanged; returns whether it is still on flash, so that nothing is written.
    pub fn keep(&mut self, hash: u64, entry: &Entry<'_>) -> bool {
        let Some(id) = self.find(hash, entry.key) else { return false };
        let mut stub = self.stubs.get(id);
        let segment = self.segment_of(stub);
        if stub.version != entry.version as u8 || !self.segments.counts(segment) {
            self.remove_id(hash, id);
            return false;
        }
        stub.expiry = entry.expiry;
        self.has_expiry |= entry.expiry != 0;
        let loading = stub.marks & stubs::LOADING;
        stub.marks = entry.frequency.min(7)
            | loading
            | if entry.fetched { stubs::FETCHED } else { 0 }
            | (entry.marks << stubs::OWN_SHIFT & stubs::OWN);
        self.stubs.set(id, stub);
        self.counts.left_clean += 1;
        true
    }
    /// Returns whether an item is being read for a client.
    #[must_use]
    pub fn is_loading(&self, hash: u64, key: &[u8]) -> bool {
        self.find(hash, key).is_some_and(|id| self.stubs.get(id).marks & stubs::LOADING != 0)
    }
    /// Returns whether a buffer waits to be written.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.writer.is_due()
    }
    /// Returns what the stub says of an item.
    pub fn peek(&mut self, hash: u64, key: &[u8], now: u32) -> Option<Peek> {
        let id = self.find(hash, key)?;
        let stub = self.stubs.get(id);
        if !self.segments.counts(self.segment_of(stub)) {
            self.remove_uncounted(hash, id, now);
            return None;
        }
        if is_over(stub, now) {
            self.remove_id(hash, id);
            return None;
        }
        let (len, marks) = (layout::decode_len(stub.len) * self.settings.layout.unit(), stub.marks);
        let is = |mark| marks & mark != 0;
        Some(Peek { expiry: stub.expiry, len, fetched: is(stubs::FETCHED), shadowed: is(stubs::SHADOWED) })
    }
    /// Changes when an item ends; returns whether it is there.
    pub fn touch(&mut self, hash: u64, key: &[u8], expiry: u32, now: u32) -> bool {
        if self.peek(hash, key, now).is_none() {
            return false;
        }
        let Some(id) = self.find(hash, key) else { return false };
        let stub = self.stubs.get(id);
        self.stubs.set(id, Stub { expiry, ..stub });
        self.has_expiry |= expiry != 0;
        true
    }
    /// Forgets an item: its value is another one from now on, or none. Returns whether it was there.
    pub fn remove(&mut self, hash: u64, key: &[u8]) -> bool {
        let found = self.find(hash, key);
        if let Some(id) = found {
            self.remove_id(hash, id);
        }
        found.is_some()
    }
    /// Forgets all items.
    pub fn flush(&mut self) {
        self.writer.abandon();
        if !injected(Fault::FlashMovesTheDead) {
            self.reclaim.abort();
        }
        for number in 0..self.segments.len() {
            if self.segments.condemn(number) {
                self.settle(number);
            }
        }
        self.reclaim.sweep_all();
    }

    /// Has what is in a buffer written, though it is not full.
    pub fn write_out(&mut self) {
        self.writer.close_batch();
    }
    /// Returns the next action for the driver, or `None` if nothing is to be done. Drivers call it until then.
    pub fn next_action(&mut self) -> Option<Action> {
        if let Some(batch) = self.writer.next_write() {
            let area = self.settings.layout.area(batch.segment, batch.begin, batch.len);
            self.counts.written_bytes += u64::from(batch.len);
            return Some(Action::Write { ticket: Ticket(batch.ticket), area, buffer: batch.buffer });
        }
        self.next_read()
    }
    /// Takes the end of a write. Returns the file, if it is given up now.
    pub fn written(&mut self, ticket: Ticket, result: Result<(), DeviceError>, now: u32) -> Option<u16> {
        let batch = self.writer.written(ticket.0)?;
        let segment = batch.segment;
        let file = self.settings.layout.file(segment);
        if result.is_err() {
            self.counts.write_errors += 1;
            if !batch.is_directory {
                self.forget_batch(segment, batch.begin, &batch.buffer.bytes()[..batch.len as usize], now);
            }
        }
        self.writer.recycle(batch);
        self.writer.write_directory();
        self.take_full();
        let is_given_up = self.files.written(file, result.is_ok());
        if is_given_up {
            self.lose_file(file);
        }
        self.settle(segment);
        is_given_up.then_some(file)
    }
    /// Forgets the items of a batch that could not be written.
    fn forget_batch(&mut self, segment: u32, begin: u32, bytes: &[u8], now: u32) {
        let unit = self.settings.layout.unit();
        let mut at = 0_usize;
        while let Ok((record, hash, _)) = record::parse(&bytes[at..]) {
            let place = self.settings.layout.place(segment, begin + at as u32);
            if let Some(id) = self.at_place(hash, place) {
                if self.segments.counts(segment) {
                    self.count_lost(self.stubs.get(id), now);
                }
                self.remove_uncounted(hash, id, now);
            }
            at += (rdmakv_proto::item::HEADER + record.key.len() + record.value.len()).next_multiple_of(unit as usize);
            if at >= bytes.len() {
                break;
            }
        }
    }
    /// Gives a file up, with all that is in it.
    pub fn lose_file(&mut self, file: u16) {
        self.files.lose(file);
        if self.writer.segment().is_some_and(|(segment, _)| self.settings.layout.file(segment) == file) {
            self.writer.abandon();
        }
        if self.reclaim.segment().is_some_and(|segment| self.settings.layout.file(segment) == file) {
            self.reclaim.abort();
        }
        for number in 0..self.segments.len() {
            if self.settings.layout.file(number) == file {
                self.segments.lose(number);
            }
        }
        self.is_lost = self.segments.lost() == self.segments.len() as usize;
        self.reclaim.sweep_all();
    }

    /// Begins an orderly stop: nothing is admitted from now on, and what is in buffers is written with its directory. When
    /// [`is_stopped`](Self::is_stopped), [`manifest`](Self::manifest) has the rest.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        self.writer.seal();
        self.take_full();
        if let Some(segment) = self.reclaim.abort() {
            // Its directory is there still, but the records that were moved are of another segment now: their stubs say so.
            self.segments.reseal(segment);
        }
    }
    /// Returns whether all is written, after [`stop`](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopping && self.writer.is_idle()
    }
}

fn is_over(stub: Stub, now: u32) -> bool {
    stub.expiry != 0 && stub.expiry <= now
}

fn view(record: Record<'_>, expiry: u32, marks: u8) -> Item<'_> {
    Item {
        record,
        expiry,
        frequency: marks & stubs::FREQUENCY,
        fetched: marks & stubs::FETCHED != 0,
        marks: view_marks(marks),
    }
}

fn view_marks(marks: u8) -> u8 {
    (marks & stubs::OWN) >> stubs::OWN_SHIFT
}

fn hash(hasher: &FixedState, key: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(key);
    state.finish()
}
