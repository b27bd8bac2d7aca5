//! The tier step by step: one situation a test, over a device that ends each transfer when it is told.

use std::sync::Arc;

use rdmakv_flash::record::Summed;
use rdmakv_flash::{
    Action, Area, Buffer, DeviceError, Entry, Flash, Layout, LoadId, Loaded, Lookup, Refused, Settings, Ticket,
};
use rdmakv_proto::item;

const UNIT: u32 = 512;
const SEGMENT: u32 = 16 << 10;
const SEGMENTS: u64 = 16;
/// Two records in each batch of 4 KiB, and three batches with the directory in a segment.
const VALUE: usize = 1400;
const RECORDS: usize = 6;

struct World {
    flash: Flash,
    disk: Vec<u8>,
    writes: Vec<(Ticket, Area, Arc<Buffer>)>,
    reads: Vec<(Ticket, Area)>,
    now: u32,
    versions: u64,
    noise: u64,
}

impl World {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let size = 4096 + SEGMENTS * u64::from(SEGMENT);
        let mut settings = Settings::new(Layout::new(&[size], 1, 0, SEGMENT, UNIT).unwrap(), 1, 42);
        (settings.item_min, settings.batch, settings.buffers) = (500, 4096, 3);
        change(&mut settings);
        let (flash, disk) = (Flash::new(settings), vec![0; size as usize]);
        Self { flash, disk, writes: Vec::new(), reads: Vec::new(), now: 1000, versions: 0, noise: 7 }
    }
    fn bytes(&self, area: Area) -> Vec<u8> {
        self.disk[area.offset as usize..][..area.len as usize].to_vec()
    }

    fn admit(&mut self, key: &str, len: usize, change: impl FnOnce(&mut Entry<'_>)) -> Result<(), Refused> {
        self.versions += 1;
        let (key, value) = (key.as_bytes(), vec![self.versions as u8; len]);
        let crc = item::sum(self.versions, 0, key, &value);
        let (value, version) = (&value[..], self.versions);
        let mut entry = Entry { key, value, version, flags: 0, crc, expiry: 0, frequency: 1, fetched: true, marks: 0 };
        change(&mut entry);
        self.flash.admit(self.flash.hash(key), &entry, self.now)
    }
    /// Stores an item of the usual size, and does all that is to be done.
    fn put(&mut self, key: &str) {
        assert_eq!(self.admit(key, VALUE, |_| {}), Ok(()), "{key}: {:?}", self.flash.counts());
        self.settle();
    }
    /// Stores some of these again, one after another.
    fn put_some(&mut self, keys: &[String], times: usize) {
        for _ in 0..times {
            self.noise ^= self.noise << 13;
            self.noise ^= self.noise >> 7;
            self.noise ^= self.noise << 17;
            self.put(&keys[(self.noise >> 16) as usize % keys.len()]);
        }
    }
    fn get(&mut self, key: &str) -> Lookup<'_> {
        self.flash.get(self.flash.hash(key.as_bytes()), key.as_bytes(), self.now, 0)
    }
    fn load(&mut self, key: &str) -> (LoadId, Area) {
        match self.get(key) {
            Lookup::Load(load, area) => (load, area),
            other => panic!("{key}: {other:?}"),
        }
    }
    fn loaded<'a>(&mut self, load: LoadId, bytes: &'a [u8]) -> Loaded<'a> {
        self.flash.loaded(load, Ok(Summed::new(bytes)), self.now)
    }
    fn is_there(&mut self, key: &str) -> bool {
        self.flash.peek(self.flash.hash(key.as_bytes()), key.as_bytes(), self.now).is_some()
    }

    /// Takes what the tier wants done.
    fn work(&mut self) {
        while self.flash.work(self.now) {}
        while let Some(action) = self.flash.next_action() {
            match action {
                Action::Write { ticket, area, buffer } => self.writes.push((ticket, area, buffer)),
                Action::Read { ticket, area } => self.reads.push((ticket, area)),
            }
        }
    }
    fn end_writes(&mut self) {
        for (ticket, area, buffer) in std::mem::take(&mut self.writes) {
            self.disk[area.offset as usize..][..area.len as usize]
                .copy_from_slice(&buffer.bytes()[..area.len as usize]);
            drop(buffer);
            self.flash.written(ticket, Ok(()), self.now);
        }
    }
    fn end_reads(&mut self) {
        for (ticket, area) in std::mem::take(&mut self.reads) {
            let bytes = self.bytes(area);
            self.flash.read(ticket, Ok(Summed::new(&bytes)), self.now);
        }
    }
    /// Does all that is to be done.
    fn settle(&mut self) {
        self.work();
        while !self.writes.is_empty() || !self.reads.is_empty() {
            self.end_writes();
            self.end_reads();
            self.work();
        }
    }
}

/// Returns the keys that fill this number of segments, and half of another.
fn keys(name: &str, segments: usize) -> Vec<String> {
    (0..segments * RECORDS + RECORDS / 2).map(|number| format!("{name}{number:04}")).collect()
}

#[test]
fn a_move_that_finds_no_buffer_is_made_later() {
    let mut world = World::new(|_| {});
    let keys = keys("k", 9);
    keys.iter().for_each(|key| world.put(key));
    // What is written again leaves places that are not current in every segment.
    let mut at = 0;
    let is_record = |world: &World| {
        let parsed = |&(_, area): &(Ticket, Area)| rdmakv_flash::record::parse(&world.bytes(area)).is_ok();
        world.reads.iter().any(parsed)
    };
    while !is_record(&world) {
        at += 7;
        assert!(at < 70_000, "nothing is moved: {:?}", world.flash.counts());
        world.end_writes();
        world.end_reads();
        assert_eq!(world.admit(&keys[at % keys.len()], VALUE, |_| {}), Ok(()));
        world.work();
    }
    // Both buffers fill while the records are read.
    let mut others = 0;
    while world.admit(&format!("other{others}"), VALUE, |_| {}).is_ok() {
        others += 1;
        world.work();
        assert!(others < 10, "no end of buffers");
    }
    let before = world.flash.counts();
    world.end_reads();
    assert_eq!(world.flash.counts().rewritten, before.rewritten, "a move found a buffer");
    world.settle();
    let counts = world.flash.counts();
    assert!(counts.rewritten > before.rewritten, "{counts:?}");
    assert_eq!((counts.lost_moves, counts.evicted), (0, 0));
    for key in &keys {
        assert!(world.is_there(key), "{key} is gone");
    }
}

#[test]
fn items_that_are_over_make_room() {
    let mut world = World::new(|_| {});
    for key in keys("over", 9) {
        assert_eq!(world.admit(&key, VALUE, |entry| entry.expiry = 2000), Ok(()));
        world.settle();
    }
    world.now = 2001;
    // These are written again and again: theirs are the emptiest segments.
    let keys = keys("k", 1);
    keys.iter().for_each(|key| world.put(key));
    world.put_some(&keys, 500);
    assert_eq!(world.flash.usage().items, keys.len());
    assert_eq!(world.flash.counts().evicted, 0);
}

#[test]
fn unread_items_are_not_moved_if_told_so() {
    for drop_unread in [false, true] {
        let mut world = World::new(|settings| settings.drop_unread = drop_unread);
        let keys = keys("k", 9);
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(world.admit(key, VALUE, |entry| entry.fetched = at % 2 == 0), Ok(()));
            world.settle();
        }
        // A third is written again; the rest stays as it is.
        let changing: Vec<_> = keys.iter().step_by(3).cloned().collect();
        world.put_some(&changing, 500);
        let mut left = |parity| {
            let staying = (0..keys.len()).filter(|at| at % 3 != 0 && at % 2 == parity);
            staying.filter(|&at| world.is_there(&keys[at])).count()
        };
        let (read, unread, all) = (left(0), left(1), keys.len() / 3);
        assert_eq!((read, unread == all), (all, !drop_unread), "{unread} of {all}");
    }
}

#[test]
fn a_cancelled_load_can_begin_again() {
    let mut world = World::new(|_| {});
    world.put("first");
    world.flash.write_out();
    world.settle();
    let (load, _) = world.load("first");
    world.flash.cancel(load);
    assert_eq!(world.flash.usage().loads, 0);
    assert!(!world.flash.is_loading(world.flash.hash(b"first"), b"first"));
    let (load, area) = world.load("first");
    let bytes = world.bytes(area);
    assert!(matches!(world.loaded(load, &bytes), Loaded::Item(_)));

    // A load whose item ended means nothing any more. Its stub may be another item's, which is being read.
    world.put("third");
    world.flash.write_out();
    world.settle();
    let (old, _) = world.load("third");
    assert!(world.flash.remove(world.flash.hash(b"third"), b"third"));
    world.put("other");
    world.flash.write_out();
    world.settle();
    let (load, area) = world.load("other");
    world.flash.cancel(old);
    assert_eq!(world.get("other"), Lookup::Join(load));
    let bytes = world.bytes(area);
    assert!(matches!(world.loaded(load, &bytes), Loaded::Item(_)));
}

#[test]
fn what_is_not_in_memory_after_all_is_kept() {
    let mut world = World::new(|_| {});
    world.put("here");
    world.put("away");
    for key in ["here", "away"] {
        assert!(matches!(world.get(key), Lookup::Item(_)), "it is in a buffer");
    }
    assert_eq!(world.flash.usage().away, 0);
    world.flash.unshadow(world.flash.hash(b"away"), b"away");
    assert_eq!(world.flash.usage().away, 1);
    // Reclaim keeps that one.
    let keys = keys("k", 10);
    keys.iter().for_each(|key| world.put(key));
    world.put_some(&keys, 1000);
    assert_eq!((world.is_there("here"), world.is_there("away")), (false, true));
}

#[test]
fn a_load_of_an_item_that_ended_shows_nothing() {
    let mut world = World::new(|_| {});
    world.put("key");
    world.flash.write_out();
    world.settle();
    let (load, area) = world.load("key");
    let bytes = world.bytes(area);
    world.flash.remove(world.flash.hash(b"key"), b"key");
    assert_eq!(world.loaded(load, &bytes), Loaded::Again);
}

#[test]
fn a_damaged_record_is_not_believed() {
    let mut world = World::new(|_| {});
    world.put("key");
    world.flash.write_out();
    world.settle();
    let (load, area) = world.load("key");
    let mut bytes = world.bytes(area);
    bytes[VALUE / 2] ^= 1;
    assert!(matches!(world.loaded(load, &bytes), Loaded::Wrong(_)));
    assert!(!world.is_there("key"));
}

#[test]
fn a_value_too_small_for_flash_ends_the_old_one() {
    let mut world = World::new(|_| {});
    world.put("key");
    assert_eq!(world.admit("key", 10, |_| {}), Err(Refused::Size));
    assert!(!world.is_there("key"));
}

#[test]
fn items_of_a_lost_file_count_as_lost() {
    let mut world = World::new(|_| {});
    for key in keys("k", 4) {
        world.put(&key);
    }
    // One of them is in memory too, and is not lost.
    let (load, area) = world.load("k0001");
    let bytes = world.bytes(area);
    assert!(matches!(world.loaded(load, &bytes), Loaded::Item(_)));
    let mut given_up = Vec::new();
    for number in 0.. {
        match world.admit(&format!("late{number}"), VALUE, |entry| (entry.frequency, entry.fetched) = (0, false)) {
            Err(Refused::Lost) => break,
            admitted => assert_eq!(admitted, Ok(())),
        }
        world.work();
        for (ticket, _, buffer) in std::mem::take(&mut world.writes) {
            drop(buffer);
            given_up.extend(world.flash.written(ticket, Err(DeviceError::Failed(5)), world.now));
        }
    }
    assert_eq!(given_up, [0]);
    world.settle();
    let (counts, usage) = (world.flash.counts(), world.flash.usage());
    assert_eq!((usage.items, usage.free_segments, usage.lost_segments), (0, 0, SEGMENTS as usize));
    // All but the one in memory, and the one that came too late.
    assert_eq!(counts.dropped_lost, counts.admitted, "{counts:?}");
    assert_eq!((counts.dropped_unread, counts.dropped_busy, counts.evicted), (0, 0, 0));
}

#[test]
fn flushed_and_expired_items_are_not_lost() {
    let lost = |end: fn(&mut World)| {
        let mut world = World::new(|_| {});
        for key in keys("k", 2) {
            assert_eq!(world.admit(&key, VALUE, |entry| entry.expiry = 2000), Ok(()));
            world.settle();
        }
        // One batch is with the device, and fails.
        world.flash.write_out();
        world.work();
        let failed = std::mem::take(&mut world.writes);
        assert!(!failed.is_empty());
        end(&mut world);
        for (ticket, ..) in failed {
            world.flash.written(ticket, Err(DeviceError::Failed(5)), world.now);
        }
        world.flash.lose_file(0);
        world.settle();
        assert_eq!(world.flash.usage().items, 0);
        (world.flash.counts().dropped_lost, world.flash.counts().admitted)
    };
    let (of_all, admitted) = lost(|_| {});
    assert_eq!(of_all, admitted);
    assert_eq!(lost(|world| world.flash.flush()).0, 0);
    assert_eq!(lost(|world| world.now = 2000).0, 0);
}
