//! The second tier: items that leave memory for flash, and their way back.
//!
//! [`Flash`] decides where they are, and the driver of the device carries out its transfers. Nothing here waits: [`Store::recall`] says
//! that an item has to be read, and a request that needs its value comes again when [`Store::loaded`] names it.
//!
//! An item that was read back keeps its record, and is CLEAN: if it leaves again unchanged, nothing is written. The end or change of a value
//! removes the record under the same lock (`end.rs`, `put.rs`). So no record has a former value.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::sync::Arc;

use rdmakv_flash::record::Summed;
use rdmakv_flash::{Area, DeviceError, Entry, Flash, LoadId, Loaded, Lookup, ManifestError, Settings, StubMemory};

use super::Store;
use super::chunk::{BINARY, CHOSEN, CLEAN, FETCHED, Id, STALE, WON};
use super::slabs::Slabs;
use crate::metrics::{FlashCounts, FlashGauges};
use rdmakv_proto::faults::{Fault, injected};

/// Names a request that waits for an item, to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter(pub u64);

/// A read that is to be done now. It ends with [`Store::loaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Names it.
    pub id: LoadId,
    /// The bytes to be read.
    pub area: Area,
}

/// A tier of the server before, as it was at the stop.
pub struct Kept<'a> {
    /// See [`Flash::write_manifest`].
    pub manifest: Box<dyn Read + 'a>,
    /// The stop that it is of.
    pub stop: u64,
}

impl std::fmt::Debug for Kept<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("stop", &self.stop).finish_non_exhaustive()
    }
}

/// The answer to [`Store::recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// Nothing of the key is on flash only: a lookup in memory tells all.
    Here,
    /// It is being read: the waiter is named at the end. The read begins now, if there is one.
    Away(Option<Load>),
    /// Too much is being read: the waiter is named when there is room.
    Busy,
    /// There is no memory for it.
    NoMemory,
}

/// Requests in line at most. Others are refused.
const LINE: usize = 1 << 16;
/// Seconds without the end of a read after which a device is not asked any more, and for which a request stays in line.
const SILENCE: u64 = 5;

/// Bytes of memory for reads that count for the memory limit, at most. Threads share them to keep some for later reads.
const READ_MEMORY: usize = 4 << 20;

/// Marks of an item that its stub keeps. Others are not admitted with theirs: they end soon.
const KEPT: [u64; 2] = [BINARY, CHOSEN];

/// Returns whether the [marks](KEPT) of a stub say that its key was stored as base64.
pub(super) fn is_binary(marks: u8) -> bool {
    KEPT.iter().enumerate().any(|(bit, &mark)| mark == BINARY && marks >> bit & 1 != 0)
}

/// The tier of a store.
pub(super) struct Tier {
    pub(super) flash: Flash,
    /// The requests that wait for each read, and its bytes.
    loads: HashMap<LoadId, (Vec<Waiter>, usize)>,
    reading: usize,
    reading_max: usize,
    /// Bytes of the memory limit that are for reads.
    read_memory: usize,
    /// Requests that wait until there is room for their reads, and since when.
    line: VecDeque<(Waiter, u64)>,
    /// When a read ended last, or the first of those in progress began.
    progress: u64,
    /// Learns that the driver has something to do.
    bell: Option<Arc<dyn Fn() + Send + Sync>>,
    no_memory: u64,
    promoted: u64,
    read_bytes: u64,
    limit_bytes: u64,
    segments: usize,
    /// The part of the memory that stubs may take.
    stub_share: f64,
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier").field("flash", &self.flash).field("reading", &self.reading).finish_non_exhaustive()
    }
}

impl Tier {
    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell();
        }
    }
    /// Returns whether the device does not answer any more.
    fn is_stuck(&self, now: u64) -> bool {
        !self.loads.is_empty() && now > self.progress + SILENCE
    }
    /// Has a request wait for room.
    fn queue(&mut self, waiter: Option<Waiter>, now: u64) -> Recall {
        if self.line.len() >= LINE {
            self.no_memory += 1;
            return Recall::NoMemory;
        }
        self.line.extend(waiter.map(|waiter| (waiter, now)));
        Recall::Busy
    }
    /// Returns the bytes of stubs, and of all else that counts for the memory limit.
    fn bytes(&self) -> (usize, usize) {
        let usage = self.flash.usage();
        (usage.stub_bytes, usage.buffer_bytes + usage.index_bytes + usage.mapped_bytes + self.read_memory)
    }
}

/// A record's fields, copied out of a buffer.
struct Copied {
    key: Vec<u8>,
    value: Vec<u8>,
    version: u64,
    flags: u32,
    crc: u32,
}

/// The fields of an item that its stub has.
#[derive(Clone, Copy)]
struct About {
    expiry: u64,
    fetched: bool,
    marks: u8,
}

impl About {
    fn of(item: &rdmakv_flash::Item<'_>) -> Self {
        Self { expiry: u64::from(item.expiry), fetched: item.fetched, marks: item.marks }
    }
}

impl Store {
    /// Gives the store a second tier, with what is kept or empty. Its key hash is the store's. The driver's `bell` rings when there is
    /// an [action](Flash::next_action).
    ///
    /// # Errors
    ///
    /// What is kept cannot be used: the tier is empty.
    pub fn attach_flash(
        &mut self,
        settings: Settings,
        kept: Option<Kept<'_>>,
        bell: Option<Arc<dyn Fn() + Send + Sync>>,
    ) -> Result<(), ManifestError> {
        let reading_max = (self.memory / 32).max(2 << 20);
        let segments = settings.layout.segments() as usize;
        let limit_bytes = segments as u64 * u64::from(settings.layout.segment_bytes());
        let stub_share = settings.stub_bytes as f64 / self.memory as f64;
        let stub_page = self.slabs.page_bytes();
        let settings = Settings { seed: self.seed, stub_page, ..settings };
        let restored = kept.map(|kept| self.restore_flash(settings.clone(), kept));
        let (mut flash, result) = match restored {
            None => (Flash::new(settings), Ok(())),
            Some(Ok(flash)) => (flash, Ok(())),
            Some(Err(error)) => (Flash::new(settings), Err(error)),
        };
        flash.take_lent_only();
        debug_assert_eq!(flash.hash(b"key"), self.index.hash(b"key"), "one hash for both tables");
        let (loads, line) = (HashMap::new(), VecDeque::new());
        let tier = Tier {
            flash,
            loads,
            reading: 0,
            reading_max,
            read_memory: (self.memory / 32).min(READ_MEMORY),
            line,
            progress: 0,
            bell,
            no_memory: 0,
            promoted: 0,
            read_bytes: 0,
            limit_bytes,
            segments,
            stub_share,
        };
        self.tier = Some(Box::new(tier));
        self.set_limit(self.memory);
        result
    }

    /// Makes a tier of what is kept, with stubs in pages of this store.
    fn restore_flash(&mut self, settings: Settings, mut kept: Kept<'_>) -> Result<Flash, ManifestError> {
        let mut lent = Vec::new();
        let slabs = &mut self.slabs;
        let restored = Flash::restore_in(settings, &mut *kept.manifest, kept.stop, || {
            let memory = stub_memory(slabs)?;
            lent.push(memory.address());
            Some(memory)
        });
        let is_ours = |flash: &Flash| flash.hash(b"key") == self.index.hash(b"key");
        let restored = restored.and_then(|flash| if is_ours(&flash) { Ok(flash) } else { Err(ManifestError::Damaged) });
        if restored.is_err() {
            lent.into_iter().for_each(|address| self.slabs.return_page(address));
        }
        restored
    }

    /// Returns the bytes of the memory limit that are for reads of the second tier.
    pub fn read_memory(&self) -> usize {
        self.tier.as_deref().map_or(0, |tier| tier.read_memory)
    }

    /// Returns the second tier, for the driver of its device.
    pub fn flash(&mut self) -> Option<&mut Flash> {
        self.tier.as_deref_mut().map(|tier| &mut tier.flash)
    }

    /// Returns the second tier, to look at.
    pub fn flash_tier(&self) -> Option<&Flash> {
        self.tier.as_deref().map(|tier| &tier.flash)
    }

    /// Returns the numbers at present.
    pub(super) fn flash_report(&self) -> Option<(FlashCounts, FlashGauges)> {
        let tier = self.tier.as_deref()?;
        let (counts, usage) = (tier.flash.counts(), tier.flash.usage());
        let counted = FlashCounts {
            recalled: tier.promoted,
            silent: counts.silent,
            no_memory: tier.no_memory,
            promoted: tier.promoted,
            lost: counts.read_errors + counts.wrong,
            wrong: counts.wrong,
            rewritten: counts.rewritten,
            reclaimed: counts.reclaimed,
            evicted: counts.evicted,
            evicted_bytes: counts.evicted_bytes,
            lost_moves: counts.lost_moves,
            opened: counts.opened,
            freed: counts.freed,
            reads: counts.loads,
            admitted: counts.admitted,
            written_bytes: counts.written_bytes,
            read_bytes: tier.read_bytes,
            admitted_bytes: counts.admitted_bytes,
            rewritten_bytes: counts.rewritten_bytes,
            left_clean: counts.left_clean,
            joined: counts.joined,
            buffered: counts.buffered,
            dropped_size: counts.dropped_size,
            dropped_expiry: counts.dropped_expiry,
            dropped_unread: counts.dropped_unread,
            dropped_busy: counts.dropped_busy,
            dropped_stubs: counts.dropped_stubs,
            dropped_lost: counts.dropped_lost,
            read_errors: counts.read_errors,
            write_errors: counts.write_errors,
        };
        let there = tier.segments - usage.lost_segments;
        let (used_segments, used_bytes) = ((there - usage.free_segments) as u64, tier.flash.used_bytes());
        let a_segment = tier.limit_bytes / tier.segments as u64;
        let fragmented_bytes = (a_segment * used_segments).saturating_sub(used_bytes);
        let gauges = FlashGauges {
            items: usage.items as u64,
            away: usage.away as u64,
            used_bytes,
            fragmented_bytes,
            free_segments: usage.free_segments as u64,
            used_segments,
            limit_bytes: a_segment * there as u64,
            loads: usage.loads as u64,
            waiting: tier.line.len() as u64,
            stub_bytes: usage.stub_bytes as u64,
            index_bytes: usage.index_bytes as u64,
            buffer_bytes: usage.buffer_bytes as u64,
            lost_files: usage.lost_files as u64,
        };
        Some((counted, gauges))
    }

    /// After the memory limit has changed: has stubs take their share of it, but leave room for two pages.
    pub(super) fn limit_stubs(&mut self) {
        let (memory, page) = (self.memory, self.slabs.page_bytes());
        let Some(tier) = self.tier.as_deref_mut() else { return };
        let (own, others) = tier.bytes();
        let share = (tier.stub_share * memory as f64) as usize;
        let share = share.min(memory.saturating_sub(others + 2 * page)).max(page);
        tier.flash.set_stub_limit(share as u64);
        if own > share {
            tier.ring();
        }
    }
    /// As the tier's memory becomes more, pages for items become fewer, a little ahead. Returns whether one has to go.
    pub(super) fn make_room_for_stubs(&mut self) -> bool {
        let Some(tier) = self.tier.as_deref_mut() else { return false };
        // The index grows by less at a time.
        self.slabs.set_limit(self.memory.saturating_sub(tier.bytes().1 + (32 << 10)));
        while let Some(memory) = tier.flash.return_stub_memory() {
            if self.slabs.has(memory.address()) {
                self.slabs.return_page(memory.address());
            }
        }
        if !tier.flash.wants_stub_memory() {
            self.slabs.want_none();
        } else if let Some(memory) = stub_memory(&mut self.slabs) {
            tier.flash.lend_stub_memory(memory);
        } else {
            return true;
        }
        self.slabs.over_limit()
    }

    /// Returns whether the key's item is on flash. It is not in memory.
    pub(super) fn is_away(&mut self, hash: u64, key: &[u8], now: u64) -> bool {
        self.tier.as_deref_mut().is_some_and(|tier| tier.flash.peek(hash, key, now as u32).is_some())
    }
    /// Ends an item that is on flash only; returns whether there was one.
    pub(super) fn end_away(&mut self, hash: u64, key: &[u8], now: u64) -> bool {
        let there = self.is_away(hash, key, now);
        if let Some(tier) = &mut self.tier {
            tier.flash.remove(hash, key);
        }
        there
    }
    /// Gives an item that is on flash only another expiry; returns whether there is one.
    pub fn touch_away(&mut self, key: &[u8], expiry: u64, now: u64) -> bool {
        let hash = self.index.hash(key);
        let Some(tier) = &mut self.tier else { return false };
        let touched = tier.flash.touch(hash, key, narrow(expiry), now as u32);
        if touched && expiry != 0 && expiry <= now {
            tier.flash.remove(hash, key);
        }
        touched
    }

    /// Takes an item that leaves memory; returns whether it is on flash.
    pub(super) fn leave_for_flash(&mut self, id: Id, hash: u64, now: u64) -> bool {
        let Some(tier) = self.tier.as_deref_mut() else { return false };
        let chunk = self.slabs.chunk(id);
        if chunk.marked(STALE | WON) {
            tier.flash.remove(hash, chunk.key());
            return false;
        }
        let marks = KEPT.iter().enumerate().map(|(bit, &mark)| u8::from(chunk.marked(mark)) << bit).sum();
        let entry = Entry {
            key: chunk.key(),
            value: chunk.value(),
            version: chunk.version(),
            flags: chunk.flags(),
            crc: chunk.crc(),
            expiry: narrow(chunk.expiry()),
            frequency: chunk.frequency().min(7) as u8,
            fetched: chunk.marked(FETCHED),
            marks,
        };
        if chunk.marked(CLEAN) && tier.flash.keep(hash, &entry) {
            return true;
        }
        let admitted = tier.flash.admit(hash, &entry, now as u32);
        // What found no room may have asked for some.
        if tier.flash.is_due() || matches!(admitted, Err(rdmakv_flash::Refused::Stubs | rdmakv_flash::Refused::Busy)) {
            tier.ring();
        }
        admitted.is_ok()
    }

    /// Before a command that needs the key's value, under the same lock: says whether it has to come again. `waiter` is named then, if
    /// there is one.
    #[inline]
    pub fn recall(&mut self, key: &[u8], waiter: impl Into<Option<Waiter>>, now: u64) -> Recall {
        if self.tier.is_none() { Recall::Here } else { self.bring_back(key, waiter.into(), now) }
    }

    /// Begins to read an item that a command will soon need, if it is on flash only.
    pub fn hint(&mut self, key: &[u8], now: u64) -> Option<Load> {
        match self.tier.as_deref().map(|tier| tier.flash.is_loading(self.index.hash(key), key))? {
            true => None,
            false => match self.bring_back(key, None, now) {
                Recall::Away(load) => load,
                _ => None,
            },
        }
    }

    #[inline(never)]
    fn bring_back(&mut self, key: &[u8], waiter: Option<Waiter>, now: u64) -> Recall {
        self.flush_if_due(now);
        let hash = self.index.hash(key);
        if self.index.find(&self.slabs, hash, key).is_some() {
            return Recall::Here;
        }
        let Some(tier) = self.tier.as_deref_mut() else { return Recall::Here };
        let Some(peek) = tier.flash.peek(hash, key, now as u32) else { return Recall::Here };
        let is_loading = tier.flash.is_loading(hash, key);
        // The item would go for nothing.
        if !is_loading && tier.is_stuck(now) {
            tier.no_memory += 1;
            return Recall::NoMemory;
        }
        // One item is always worth a try.
        let is_full = tier.reading > 0 && tier.reading + peek.len as usize > tier.reading_max;
        if is_full && !is_loading {
            return tier.queue(waiter, now);
        }
        let (id, area) = match tier.flash.get(hash, key, now as u32, now * 1000) {
            Lookup::Absent => return Recall::Here,
            Lookup::Busy => return tier.queue(waiter, now),
            Lookup::Join(id) => {
                if let Some((waiters, _)) = tier.loads.get_mut(&id) {
                    waiters.extend(waiter);
                }
                return Recall::Away(None);
            }
            Lookup::Load(id, area) => (id, area),
            Lookup::Item(item) => {
                let about = About::of(&item);
                let record = item.record;
                let (version, flags, crc) = (record.version, record.flags, record.crc);
                let copied = Copied { key: record.key.to_vec(), value: record.value.to_vec(), version, flags, crc };
                return if self.promote(hash, &copied.view(), about, now) { Recall::Here } else { Recall::NoMemory };
            }
        };
        if tier.loads.is_empty() {
            tier.progress = now;
        }
        tier.loads.insert(id, (waiter.into_iter().collect(), area.len as usize));
        tier.reading += area.len as usize;
        tier.read_bytes += u64::from(area.len);
        Recall::Away(Some(Load { id, area }))
    }

    /// Takes the end of a read, with all bytes that its area has; returns the requests that go on now.
    pub fn loaded(&mut self, load: LoadId, bytes: Result<Summed<'_>, DeviceError>, now: u64) -> Vec<Waiter> {
        self.flush_if_due(now);
        let Some(tier) = self.tier.as_deref_mut() else { return Vec::new() };
        let (mut waiters, len) = tier.loads.remove(&load).unwrap_or_default();
        tier.reading -= len;
        tier.progress = now;
        // Requests that find their items in memory begin no read, whose end would name others.
        let in_line = if tier.loads.is_empty() { tier.line.len() } else { tier.line.len().min(2) };
        waiters.extend(tier.line.drain(..in_line).map(|(waiter, _)| waiter));
        if let Loaded::Item(item) = tier.flash.loaded(load, bytes, now as u32) {
            let hash = self.index.hash(item.record.key);
            // Without a fault nothing of the key is in memory.
            let is_there =
                injected(Fault::FlashLoadNotOrphaned) && self.index.find(&self.slabs, hash, item.record.key).is_some();
            if is_there {
                return waiters;
            }
            // What is not promoted is still on flash.
            self.promote(hash, &item.record, About::of(&item), now);
        }
        waiters
    }

    /// Gives up reads that take too long; returns the requests that go on now. Their ends are still to be reported.
    pub fn give_up_loads(&mut self, now: u64) -> Vec<Waiter> {
        let Some(tier) = self.tier.as_deref_mut() else { return Vec::new() };
        let mut waiters = Vec::new();
        while let Some(load) = tier.flash.next_silent(now * 1000) {
            if let Some((waiting, _)) = tier.loads.get_mut(&load) {
                waiters.append(waiting);
            }
        }
        // Those that a read's end named may not have come again. Where nothing moves, all are refused.
        let is_ended = tier.loads.is_empty() || tier.is_stuck(now);
        let is_over = |&(_, since): &(Waiter, u64)| is_ended || now > since + SILENCE;
        let over = tier.line.iter().take_while(|waiting| is_over(waiting)).count();
        waiters.extend(tier.line.drain(..over).map(|(waiter, _)| waiter));
        waiters
    }

    /// Ends a read that is not done; returns the requests that go on now. Its item stays, to be read again.
    pub fn cancel_load(&mut self, load: LoadId) -> Vec<Waiter> {
        let Some(tier) = self.tier.as_deref_mut() else { return Vec::new() };
        let Some((mut waiters, len)) = tier.loads.remove(&load) else { return Vec::new() };
        tier.reading -= len;
        tier.flash.cancel(load);
        if tier.loads.is_empty() {
            waiters.extend(tier.line.drain(..).map(|(waiter, _)| waiter));
        }
        waiters
    }

    /// Makes a record an item in memory; returns whether there was room for it.
    fn promote(&mut self, hash: u64, record: &rdmakv_flash::Record<'_>, about: About, now: u64) -> bool {
        debug_assert!(self.index.find(&self.slabs, hash, record.key).is_none(), "its record would be gone");
        let class = self.slabs.class_for(record.key.len(), record.value.len());
        let id = class.and_then(|class| Some((class, self.allocate(class, now)?)));
        let Some((class, id)) = id else {
            if let Some(tier) = &mut self.tier {
                tier.no_memory += 1;
                tier.flash.unshadow(hash, record.key);
            }
            return false;
        };
        let chunk = self.slabs.begin(id, class, self.versions.incarnation(), record.key, record.value.len());
        chunk.value_mut().copy_from_slice(record.value);
        chunk.set_version(record.version);
        chunk.set_flags(record.flags);
        chunk.set_crc(record.crc);
        chunk.set_expiry(about.expiry);
        chunk.set_accessed(now);
        let kept = KEPT.iter().enumerate().filter(|(bit, _)| about.marks >> bit & 1 != 0).map(|(_, mark)| mark);
        chunk.mark(kept.fold(CLEAN, |marks, mark| marks | mark) | if about.fetched { FETCHED } else { 0 });
        self.index.insert(&self.slabs, hash, id);
        self.eviction.admit(&self.slabs, id, hash);
        self.slabs.publish(id);
        if self.table.lists_all() {
            self.table.list(&self.slabs, id);
        }
        if let Some(tier) = &mut self.tier {
            tier.promoted += 1;
        }
        true
    }
}

impl Copied {
    fn view(&self) -> rdmakv_flash::Record<'_> {
        let Self { version, flags, crc, .. } = *self;
        rdmakv_flash::Record { key: &self.key, value: &self.value, version, flags, crc }
    }
}

/// Lends a page for stubs, if the limit allows another.
fn stub_memory(slabs: &mut Slabs) -> Option<StubMemory> {
    let (base, arena) = slabs.lend_page()?;
    #[expect(unsafe_code, reason = "the page is lent by its address")]
    // SAFETY: the page is initialised and writable as long as the arena, and `lend_page` gives it to nothing else until it is
    // returned. Peers may read of it as of any chunk, and believe nothing without a lease.
    Some(unsafe { StubMemory::lent(base, slabs.page_bytes(), arena) })
}

/// Returns an expiry as flash has it: one beyond the year 2106 ends then.
fn narrow(expiry: u64) -> u32 {
    u32::try_from(expiry).unwrap_or(u32::MAX)
}
