//! The tier over a model of devices: late, torn and failed transfers, crashes at every step, restarts.
//!
//! The model knows the value that each key has. Flash may forget, but whatever it returns has to be that value.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use rdmakv_flash::record::Summed;
use rdmakv_flash::restart::{Start, Step, stop_steps};
use rdmakv_flash::superblock::Superblock;
use rdmakv_flash::{
    Action, Area, Buffer, DeviceError, Entry, Flash, Layout, LoadId, Loaded, Lookup, ManifestError, Settings, Ticket,
};
use rdmakv_proto::item;

const UNIT: usize = 512;
const SEGMENT: u32 = 16 << 10;
const SIZES: [u64; 2] = [4096 + 7 * SEGMENT as u64, 4096 + 5 * SEGMENT as u64];
const BUFFERS: usize = 3;
const LOADS: usize = 3;
const STUB_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Truth {
    version: u64,
    value: Vec<u8>,
    expiry: u32,
    /// In RAM, and if so, whether flash has it too.
    ram: Option<bool>,
    fetched: bool,
}

struct Read<T> {
    id: T,
    area: Area,
    /// The device's bytes when the read began.
    before: Vec<u8>,
    key: u8,
}

struct World {
    disks: Vec<Vec<u8>>,
    blocks: Vec<Option<Superblock>>,
    manifest: Option<Vec<u8>>,
    saved: HashMap<u8, Truth>,
    flash: Flash,
    truth: HashMap<u8, Truth>,
    writes: Vec<(Ticket, Area, Arc<Buffer>)>,
    reads: Vec<Read<Ticket>>,
    loads: Vec<Read<LoadId>>,
    now: u32,
    clock: u64,
    versions: u64,
    life: u32,
    noise: u64,
    stops: u64,
    found: u32,
    /// Whether devices fail.
    faults: bool,
}

fn settings(life: u32) -> Settings {
    let layout = Layout::new(&SIZES, 1, 0, SEGMENT, UNIT as u32).unwrap();
    let mut settings = Settings::new(layout, life, 42);
    (settings.item_min, settings.batch, settings.buffers, settings.loads) = (100, 4096, BUFFERS, LOADS);
    (settings.stub_bytes, settings.silence, settings.rewrite_percent) = (STUB_BYTES, 50, 25);
    settings
}

/// Three lengths: stubs of two of them fit at a time.
fn key(number: u8) -> Vec<u8> {
    format!("key-{number:02}{}", ["", "", "", "longer", "", "", "even longer"][usize::from(number % 7)]).into_bytes()
}

impl World {
    fn new(noise: u64) -> Self {
        Self {
            disks: SIZES.map(|size| vec![0; size as usize]).to_vec(),
            blocks: vec![None; 2],
            manifest: None,
            saved: HashMap::new(),
            flash: Flash::new(settings(1)),
            truth: HashMap::new(),
            writes: Vec::new(),
            reads: Vec::new(),
            loads: Vec::new(),
            now: 1000,
            clock: 0,
            versions: 0,
            life: 1,
            noise: noise | 1,
            stops: 0,
            found: 0,
            faults: true,
        }
    }
    fn random(&mut self) -> u64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        self.noise
    }

    fn bytes(&self, area: Area) -> &[u8] {
        &self.disks[usize::from(area.file)][area.offset as usize..][..area.len as usize]
    }
    /// Writes all sectors, or some of them.
    fn apply(&mut self, area: Area, buffer: &Buffer, is_whole: bool) {
        for at in (0..area.len as usize).step_by(UNIT) {
            if is_whole || self.random().is_multiple_of(2) {
                let to = &mut self.disks[usize::from(area.file)][area.offset as usize + at..][..UNIT];
                to.copy_from_slice(&buffer.bytes()[at..at + UNIT]);
            }
        }
    }
    /// Returns the bytes of a read, sometimes an error. Each sector is as it was when the read began, or as it is now.
    fn bring(&mut self, area: Area, before: &[u8], how: u8) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = self.bytes(area).to_vec();
        for at in (0..bytes.len()).step_by(UNIT) {
            if self.random().is_multiple_of(2) {
                bytes[at..at + UNIT].copy_from_slice(&before[at..at + UNIT]);
            }
        }
        match how {
            _ if !self.faults => Ok(bytes),
            0..3 => Err([DeviceError::Silent, DeviceError::Failed(5)][usize::from(how % 2)]),
            3..6 => {
                let at = self.random() as usize % bytes.len();
                bytes[at] ^= 1 << (how % 8);
                Ok(bytes)
            }
            6..8 => Ok(bytes[..bytes.len() / 2].to_vec()),
            _ => Ok(bytes),
        }
    }

    fn check(&mut self, number: u8, item: rdmakv_flash::Item<'_>) {
        let truth =
            self.truth.get_mut(&number).unwrap_or_else(|| panic!("key {number} has no value, but flash returned one"));
        assert_eq!(truth.ram, None, "key {number} is in RAM, and flash returned a value of it");
        assert_eq!(item.record.version, truth.version, "key {number}");
        assert!(item.record.value == truth.value, "key {number}: another value");
        assert_eq!((item.expiry, item.record.key), (truth.expiry, &key(number)[..]));
        assert!(item.expiry == 0 || item.expiry > self.now, "key {number} is over");
        truth.ram = Some(true);
        truth.fetched = true;
        self.found += 1;
    }

    fn store(&mut self, number: u8, len: usize, expiry: u32) {
        let key = key(number);
        self.flash.remove(self.flash.hash(&key), &key);
        // Its lowest byte, which stubs have, is often that of another value.
        self.versions += [1, 256][len % 2];
        let value = vec![(self.versions ^ self.versions >> 8) as u8; len];
        let truth = Truth { version: self.versions, value, expiry, ram: Some(false), fetched: len.is_multiple_of(2) };
        self.truth.insert(number, truth);
    }
    fn evict(&mut self, number: u8) {
        let Some(truth) = self.truth.get_mut(&number) else { return };
        let Some(is_clean) = truth.ram.take() else { return };
        let (key, truth) = (key(number), truth.clone());
        if truth.expiry != 0 && truth.expiry <= self.now {
            self.flash.remove(self.flash.hash(&key), &key);
            self.truth.remove(&number);
            return;
        }
        let crc = item::sum(truth.version, 7, &key, &truth.value);
        let frequency = (truth.version % 5) as u8;
        let entry = Entry {
            key: &key,
            value: &truth.value,
            version: truth.version,
            flags: 7,
            crc,
            expiry: truth.expiry,
            frequency,
            fetched: truth.fetched,
            marks: 2,
        };
        let hash = self.flash.hash(&key);
        if is_clean && self.flash.keep(hash, &entry) {
            return;
        }
        if self.flash.admit(hash, &entry, self.now).is_err() {
            self.truth.remove(&number);
        }
    }
    fn get(&mut self, number: u8) {
        if self.truth.get(&number).is_some_and(|truth| truth.ram.is_some()) {
            return;
        }
        let (key, now, clock) = (key(number), self.now, self.clock);
        let hash = self.flash.hash(&key);
        // The item borrows the tier: the check needs the rest of the world.
        let mut flash = std::mem::replace(&mut self.flash, Flash::new(settings(0)));
        match flash.get(hash, &key, now, clock) {
            Lookup::Absent => {
                self.truth.remove(&number);
            }
            Lookup::Item(item) => self.check(number, item),
            Lookup::Load(id, area) => {
                let before = self.bytes(area).to_vec();
                self.loads.push(Read { id, area, before, key: number });
            }
            Lookup::Join(id) => assert!(self.loads.iter().any(|load| load.id == id && load.key == number)),
            Lookup::Busy => assert_eq!(self.loads.len(), LOADS),
        }
        self.flash = flash;
    }
    fn delete(&mut self, number: u8) {
        let key = key(number);
        self.flash.remove(self.flash.hash(&key), &key);
        self.truth.remove(&number);
    }
    fn touch(&mut self, number: u8, expiry: u32) {
        let key = key(number);
        let hash = self.flash.hash(&key);
        let Some(truth) = self.truth.get_mut(&number) else { return };
        if truth.ram.is_some() || self.flash.touch(hash, &key, expiry, self.now) {
            truth.expiry = expiry;
        } else {
            self.truth.remove(&number);
        }
    }

    fn end_write(&mut self, which: usize, how: u8) {
        if self.writes.is_empty() {
            return;
        }
        let (ticket, area, buffer) = self.writes.swap_remove(which % self.writes.len());
        let is_ok = how >= 4 || !self.faults;
        // A device may report a write that it did not do.
        if how % 8 != 5 || !self.faults {
            self.apply(area, &buffer, is_ok);
        }
        drop(buffer);
        self.flash.written(ticket, if is_ok { Ok(()) } else { Err(DeviceError::Full) }, self.now);
    }
    fn end_read(&mut self, which: usize, how: u8) {
        if self.reads.is_empty() {
            return;
        }
        let read = self.reads.swap_remove(which % self.reads.len());
        let bytes = self.bring(read.area, &read.before, how);
        self.flash.read(read.id, bytes.as_deref().map(Summed::new).map_err(|&error| error), self.now);
    }
    fn end_load(&mut self, which: usize, how: u8) {
        if self.loads.is_empty() {
            return;
        }
        let load = self.loads.swap_remove(which % self.loads.len());
        let bytes = self.bring(load.area, &load.before, how);
        match self.flash.loaded(load.id, bytes.as_deref().map(Summed::new).map_err(|&error| error), self.now) {
            Loaded::Item(item) => self.check(load.key, item),
            Loaded::Again => {}
            end @ (Loaded::Expired | Loaded::Failed(_) | Loaded::Wrong(_)) => {
                assert!(self.faults || end == Loaded::Expired, "{end:?}");
                self.truth.remove(&load.key);
            }
        }
    }
    fn silence(&mut self) {
        while let Some(id) = self.flash.next_silent(self.clock) {
            let load = self.loads.iter().find(|load| load.id == id).unwrap();
            self.truth.remove(&load.key);
        }
    }

    /// Hands out what the tier wants done.
    fn drive(&mut self) {
        while let Some(action) = self.flash.next_action() {
            match action {
                Action::Write { ticket, area, buffer } => {
                    assert!(area.offset % 4096 == 0 && area.len % 4096 == 0 && area.len > 0);
                    assert_eq!(buffer.bytes().as_ptr() as usize % 4096, 0);
                    self.writes.push((ticket, area, buffer));
                }
                Action::Read { ticket, area } => {
                    let before = self.bytes(area).to_vec();
                    self.reads.push(Read { id: ticket, area, before, key: 0 });
                }
            }
        }
        assert!(self.writes.len() <= BUFFERS);
        let usage = self.flash.usage();
        assert!(usage.stub_bytes as u64 <= STUB_BYTES && usage.loads <= LOADS, "{usage:?}");
        assert!(usage.index_bytes <= 64 << 10 && usage.other_bytes <= BUFFERS * 8192 + 16384, "{usage:?}");
        assert!(usage.items <= 64);
    }

    /// Loses what a crash loses: memory, and parts of the writes in progress.
    fn crash(&mut self) {
        for (_, area, buffer) in std::mem::take(&mut self.writes) {
            self.apply(area, &buffer, false);
        }
        self.forget();
        self.truth.clear();
    }
    fn forget(&mut self) {
        self.writes.clear();
        self.reads.clear();
        self.loads.clear();
    }
    /// Stops in order; a crash comes before that step, if it is one.
    fn stop(&mut self, crash_before: usize, how: u8) {
        self.stops += 1;
        for (at, step) in stop_steps(self.stops).into_iter().enumerate() {
            if at == crash_before {
                self.crash();
                return;
            }
            match step {
                Step::WriteOut => {
                    self.flash.stop();
                    self.drive();
                    while !self.flash.is_stopped() {
                        let how = if how < 8 { (self.random() % 16) as u8 } else { 9 };
                        self.end_write(0, how);
                        self.drive();
                    }
                }
                Step::MarkClean(stop) => self.mark(Some(stop)),
                Step::WriteManifest(stop) => {
                    let mut bytes = self.flash.manifest(stop);
                    if how % 8 == 1 {
                        let at = self.random() as usize % bytes.len();
                        bytes[at] ^= 1;
                    }
                    self.manifest = Some(bytes);
                    // A record of a key that was found absent by the server only is not missed.
                    self.saved = std::mem::take(&mut self.truth);
                }
                _ => unreachable!(),
            }
        }
        self.forget();
        self.truth.clear();
    }
    fn mark(&mut self, stop: Option<u64>) {
        for (file, block) in self.blocks.iter_mut().enumerate() {
            let (size, file) = (SIZES[file], file as u16);
            *block =
                Some(Superblock { log: 1, size, stop, segment: SEGMENT, unit: UNIT as u32, shards: 1, file, files: 2 });
        }
    }
    fn start(&mut self, crash_before: usize) {
        let mut start = Start::new(&self.blocks);
        self.life += 1;
        let mut flash = Flash::new(settings(self.life));
        let mut truth = HashMap::new();
        let mut at = 0;
        while let Some(step) = start.next_step() {
            if at == crash_before {
                return self.start(usize::MAX);
            }
            at += 1;
            match step {
                Step::ReadManifest(stop) => {
                    if let Some(bytes) = &self.manifest
                        && let Ok(restored) = Flash::restore(settings(self.life), bytes, stop)
                    {
                        assert!(restored.usage().items <= self.saved.len());
                        (flash, truth) = (restored, self.saved.clone());
                    }
                }
                Step::RemoveManifest => self.manifest = None,
                Step::MarkInUse => self.mark(None),
                Step::Serve => {
                    self.flash = std::mem::replace(&mut flash, Flash::new(settings(0)));
                    self.truth = std::mem::take(&mut truth);
                    self.saved.clear();
                }
                _ => unreachable!(),
            }
        }
    }

    fn step(&mut self, (op, number, how): (u8, u8, u8)) {
        let key = number % 28;
        let len = 60 + usize::from(how) * 11;
        match op {
            0..22 => self.store(key, len, 0),
            22..32 => self.store(key, len, self.now + 25 + u32::from(how)),
            32..90 => self.evict(key),
            90..150 => self.get(key),
            150..157 => self.delete(key),
            157..162 => self.touch(key, self.now + u32::from(how)),
            162..192 => self.end_write(how.into(), how),
            192..206 => self.end_read(how.into(), number),
            206..230 => self.end_load(how.into(), number),
            230..244 => while self.flash.work(self.now) {},
            244..246 => self.flash.write_out(),
            246..249 => self.now += u32::from(how % 64),
            249..251 => {
                self.clock += u64::from(how);
                self.silence();
            }
            251 if how < 60 => {
                self.flash.flush();
                self.truth.clear();
            }
            252 if how < 10 && self.faults => self.flash.lose_file(u16::from(how % 2)),
            253 => {
                self.stop(usize::from(how / 8 % 12), how);
                self.start(usize::from(number % 12));
            }
            254 if how < 100 => {
                self.crash();
                self.start(usize::from(number % 12));
            }
            _ => {}
        }
        self.drive();
    }
}

/// Returns how many histories are tried: `NOISE=1000` times as many as usual.
fn cases() -> u32 {
    std::env::var("NOISE").map_or(1, |times| times.parse().expect("NOISE is a number")) * 256
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn no_old_or_wrong_value_is_returned(noise: u64, faults: bool, ops in prop::collection::vec(any::<(u8, u8, u8)>(), 100..1500)) {
        let mut world = World::new(noise);
        world.faults = faults;
        world.mark(None);
        for op in ops {
            world.step(op);
        }
        prop_assert!(faults || world.flash.counts().wrong == 0);
    }
}

/// Ends all that is in progress, without errors.
fn settle(world: &mut World) {
    loop {
        while world.flash.work(world.now) {}
        world.drive();
        if world.writes.is_empty() && world.reads.is_empty() {
            return;
        }
        world.end_write(0, 9);
        world.end_read(0, 99);
    }
}

#[test]
fn all_items_are_back_after_an_orderly_stop() {
    let mut world = World::new(1);
    world.mark(None);
    for round in 0..3 {
        for number in 0..28 {
            if number % 7 != 6 {
                world.store(number, 200 + usize::from(number) * 20, if number % 2 == 0 { 0 } else { 5000 });
                world.evict(number);
            }
            settle(&mut world);
        }
        let before = world.truth.len();
        assert_eq!(before, 24);
        for number in (0..28).step_by(5) {
            world.get(number);
            world.end_load(0, 99);
        }
        world.stop(usize::MAX, 99);
        let manifest = world.manifest.as_deref().unwrap();
        let other = Flash::restore(settings(9), manifest, world.stops + 1);
        assert_eq!(other.err(), Some(ManifestError::OtherStop));
        let mut larger = settings(9);
        larger.layout = Layout::new(&[2 * SIZES[0]], 1, 0, SEGMENT, UNIT as u32).unwrap();
        assert_eq!(Flash::restore(larger, manifest, world.stops).err(), Some(ManifestError::OtherLayout));
        world.start(usize::MAX);
        assert_eq!(world.flash.usage().items, 24, "round {round}");
        let found = world.found;
        for number in 0..28 {
            world.get(number);
            world.end_load(0, 99);
        }
        let in_ram = (0..28).step_by(5).filter(|number| number % 7 != 6).count() as u32;
        assert_eq!(world.found - found, 24 - in_ram);
        assert_eq!(world.truth.len(), 24);
    }
}

#[test]
fn writes_are_bounded_near_full() {
    // Two records of 1.5 KiB a batch of 4 KiB, three batches a segment: 72 in all, of which 58 would be current.
    let mut world = World::new(7);
    world.mark(None);
    let keys: Vec<_> = (0..58_u32).map(|number| format!("k{number:05}").into_bytes()).collect();
    let mut versions = 0;
    for _ in 0..20_000 {
        let key = &keys[world.random() as usize % keys.len()];
        versions += 1;
        let value = vec![1; 1400];
        let crc = item::sum(versions, 0, key, &value);
        let (value, frequency) = (&value[..], (versions % 3) as u8);
        let entry =
            Entry { key, value, version: versions, flags: 0, crc, expiry: 0, frequency, fetched: true, marks: 0 };
        let hash = world.flash.hash(key);
        let admitted = world.flash.admit(hash, &entry, world.now);
        assert_eq!(admitted, Ok(()), "{:#?}", world.flash);
        settle(&mut world);
    }
    let counts = world.flash.counts();
    let factor = (counts.admitted_bytes + counts.rewritten_bytes) as f64 / counts.admitted_bytes as f64;
    assert!((1.2..=1.26).contains(&factor), "{factor}");
    assert!(counts.rewritten > 0 && counts.evicted > 0 && counts.dropped_busy == 0, "{counts:?}");
    assert!(world.flash.usage().items > 40, "{:?}", world.flash.usage());
}

#[test]
fn full_log_of_old_values_takes_unread_items() {
    let mut world = World::new(9);
    world.mark(None);
    let mut versions = 0;
    // 20 keys of which flash has room for 70: what fills it are values that were written again.
    for turn in 0..2000 {
        let key = format!("k{:05}", turn % 20).into_bytes();
        versions += 1;
        let value = vec![1; 1400];
        let crc = item::sum(versions, 0, &key, &value);
        let entry = Entry {
            key: &key,
            value: &value,
            version: versions,
            flags: 0,
            crc,
            expiry: 0,
            frequency: 0,
            fetched: false,
            marks: 0,
        };
        let admitted = world.flash.admit(world.flash.hash(&key), &entry, world.now);
        assert_eq!(admitted, Ok(()), "turn {turn}: {:#?}", world.flash.counts());
        settle(&mut world);
    }
    assert_eq!(world.flash.usage().items, 20);
    assert_eq!(world.flash.counts().evicted, 0);
}

#[test]
fn a_segment_waits_for_its_writes() {
    let mut world = World::new(5);
    world.store(1, 1000, 0);
    world.evict(1);
    world.flash.write_out();
    world.drive();
    world.flash.flush();
    world.truth.clear();
    while world.flash.work(world.now) {}
    assert_eq!((world.flash.usage().items, world.flash.usage().free_segments), (0, 11));
    world.end_write(0, 99);
    assert_eq!(world.flash.usage().free_segments, 12);
}

#[test]
fn a_file_that_fails_is_given_up() {
    let mut world = World::new(3);
    world.mark(None);
    let mut number = 0;
    while world.flash.usage().lost_files == 0 {
        number = (number + 1) % 6;
        world.store(number, 1000, 0);
        world.evict(number);
        world.flash.write_out();
        world.drive();
        while !world.writes.is_empty() {
            world.end_write(0, 0);
            world.drive();
        }
        assert_eq!(world.flash.usage().items, 0, "a batch that failed has no items");
    }
    assert!(world.flash.counts().write_errors >= u64::from(rdmakv_flash::WRITE_ERRORS));
    // The other file goes on.
    for number in 0..4 {
        world.store(number, 1000, 0);
        world.evict(number);
        settle(&mut world);
        world.get(number);
        world.end_load(0, 99);
    }
    assert!(world.found >= 4);
}

/// Fills the log until a record is being read to be moved; returns its key.
fn until_a_move(world: &mut World) -> u8 {
    let numbers: Vec<u8> = (0..80).filter(|number| ![3, 6].contains(&(number % 7))).collect();
    for turn in 0_u32.. {
        assert!(turn < 10_000, "{:?}", world.flash.counts());
        let number = numbers[world.random() as usize % numbers.len()];
        world.store(number, 1400, 0);
        world.evict(number);
        loop {
            while world.flash.work(world.now) {}
            world.drive();
            // A directory is at a segment's end.
            let is_record = |read: &Read<Ticket>| rdmakv_flash::record::parse(&read.before).is_ok();
            if let Some(read) = world.reads.iter().find(|read| is_record(read)) {
                let (record, ..) = rdmakv_flash::record::parse(&read.before).unwrap();
                return (0..80).find(|&number| key(number) == record.key).unwrap();
            }
            if world.writes.is_empty() && world.reads.is_empty() {
                break;
            }
            world.end_write(0, 9);
            world.end_read(0, 99);
        }
    }
    unreachable!()
}

#[test]
fn items_that_end_while_they_move_stay_away() {
    for how in 0..3 {
        let mut world = World::new(11);
        world.mark(None);
        world.faults = false;
        let number = until_a_move(&mut world);
        match how {
            0 => world.delete(number),
            1 => {
                world.store(number, 700, 0);
                world.truth.remove(&number);
            }
            _ => {
                world.flash.flush();
                world.truth.clear();
            }
        }
        settle(&mut world);
        for number in 0..80 {
            world.get(number);
            world.end_load(0, 99);
        }
        let key = key(number);
        let hash = world.flash.hash(&key);
        assert_eq!(world.flash.peek(hash, &key, world.now), None, "{how}");
    }
}
