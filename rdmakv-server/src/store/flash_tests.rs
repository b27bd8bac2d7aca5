//! The store with a second tier on a device in memory.

use std::collections::HashMap;

use rdmakv_flash::record::Summed;
use rdmakv_flash::{Action, DeviceError, Layout, Settings};

use super::flash::{Load, Recall, Waiter};
use super::*;

const NOW: u64 = 1_000_000;
/// The buffers of the tier, 128 KiB of stubs' index, and what is kept for more of it.
const OVERHEAD: usize = 4 * (260 << 10) + (128 << 10) + (32 << 10);
const MEMORY: usize = (5 << 20) + OVERHEAD;
const SEGMENT: u32 = 1 << 20;
const SIZE: u64 = 4096 + 32 * SEGMENT as u64;

struct Tiered {
    store: Store,
    device: Vec<u8>,
    turn: u64,
    now: u64,
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

fn value(number: u64, turn: u64) -> Vec<u8> {
    (0..2000 + number * 97 % 1000).map(|at| (at * 7 + number + turn * 13) as u8).collect()
}

impl Tiered {
    fn new() -> Self {
        Self::with(MEMORY)
    }
    fn with(memory: usize) -> Self {
        Self::with_stubs(memory, 1 << 20)
    }
    fn with_stubs(memory: usize, stub_bytes: u64) -> Self {
        let config = Config { memory, extra: 0, huge: false, seed: 5, ..Config::default() };
        let mut store = Store::new(&config).unwrap();
        let mut settings = Settings::new(Layout::new(&[SIZE], 1, 0, SEGMENT, 512).unwrap(), 1, 0);
        (settings.batch, settings.stub_bytes, settings.loads) = (256 << 10, stub_bytes, 8);
        store.attach_flash(settings, None, None).unwrap();
        Self { store, device: vec![0; SIZE as usize], turn: 0, now: NOW }
    }
    /// Does all that the tier wants done.
    fn settle(&mut self) {
        let Self { store, device, now, .. } = self;
        let flash = store.flash().unwrap();
        loop {
            let has_more = flash.work(*now as u32);
            let Some(action) = flash.next_action() else {
                if has_more {
                    continue;
                }
                return;
            };
            match action {
                Action::Write { ticket, area, buffer } => {
                    let at = area.offset as usize;
                    device[at..at + area.len as usize].copy_from_slice(&buffer.bytes()[..area.len as usize]);
                    drop(buffer);
                    flash.written(ticket, Ok(()), *now as u32);
                }
                Action::Read { ticket, area } => {
                    let at = area.offset as usize;
                    flash.read(ticket, Ok(Summed::new(&device[at..at + area.len as usize])), *now as u32);
                }
            }
        }
    }
    fn put(&mut self, key: &[u8], value: &[u8], expiry: u64, terms: Terms) -> Outcome {
        let outcome = match self.store.reserve(key, value.len(), 7, expiry, self.now) {
            Ok(mut writer) => {
                writer.value().copy_from_slice(value);
                self.store.publish(writer, terms, self.now)
            }
            Err(refused) => Outcome::Refused(refused),
        };
        self.settle();
        outcome
    }
    fn set(&mut self, key: &[u8], value: &[u8]) -> u64 {
        match self.put(key, value, 0, Terms::default()) {
            Outcome::Stored(version) => version,
            other => panic!("{other:?}"),
        }
    }
    fn end(&mut self, load: Load) -> Vec<Waiter> {
        let at = load.area.offset as usize;
        let bytes = self.device[at..at + load.area.len as usize].to_vec();
        self.store.loaded(load.id, Ok(Summed::new(&bytes)), self.now)
    }
    fn begin(&mut self, key: &[u8]) -> Load {
        match self.store.recall(key, Waiter(0), self.now) {
            Recall::Away(Some(load)) => load,
            other => panic!("{other:?}"),
        }
    }
    /// Brings the key's item to memory, if it is anywhere.
    fn recall(&mut self, key: &[u8]) {
        for _ in 0..3 {
            self.turn += 1;
            match self.store.recall(key, Waiter(self.turn), self.now) {
                Recall::Here => return,
                Recall::Away(Some(load)) => assert_eq!(self.end(load), [Waiter(self.turn)]),
                other => panic!("{other:?}"),
            }
        }
        panic!("it does not come back");
    }
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.recall(key);
        self.store.get(key, true, self.now).map(|view| view.value.to_vec())
    }
    fn is_away(&mut self, key: &[u8]) -> bool {
        let hash = self.store.index.hash(key);
        let is_here = self.store.index.find(&self.store.slabs, hash, key).is_some();
        !is_here && self.store.is_away(hash, key, self.now)
    }
    fn evict(&mut self, key: &[u8]) {
        let id = self.store.index.find(&self.store.slabs, self.store.index.hash(key), key).expect("it is in memory");
        self.store.evict(id, self.now);
    }
    /// Has the item be on the device only.
    fn push_out(&mut self, key: &[u8]) {
        self.evict(key);
        self.store.flash().unwrap().write_out();
        self.settle();
        assert!(self.is_away(key), "it is not on flash");
    }
}

#[test]
fn items_beyond_memory_come_back_as_they_were() {
    let mut tier = Tiered::new();
    let versions: Vec<u64> = (0..4000).map(|number| tier.set(&key(number), &value(number, 0))).collect();
    assert!(tier.store.len() < 2500, "{} in memory", tier.store.len());
    for (number, version) in versions.into_iter().enumerate() {
        tier.recall(&key(number as u64));
        let view = tier.store.get(&key(number as u64), true, NOW).unwrap();
        assert!(view.value == value(number as u64, 0), "{number}");
        assert_eq!((view.flags, view.version, view.expiry), (7, version, 0));
        tier.settle();
    }
    tier.store.check().unwrap();
    let counts = tier.store.flash_tier().unwrap().counts();
    assert!(counts.loads > 1500 && counts.left_clean > 200 && counts.wrong == 0, "{counts:?}");
    assert_eq!(tier.store.class_totals().evicted, 0, "none was lost");
}

#[test]
fn memory_has_room_for_stubs_and_buffers_too() {
    let mut tier = Tiered::new();
    for number in 0..16_000 {
        tier.set(&key(number), &value(number, 0)[..700]);
        if number % 500 == 0 {
            tier.store.tick(NOW);
        }
    }
    for _ in 0..8 {
        tier.store.tick(NOW);
    }
    let usage = tier.store.flash_tier().unwrap().usage();
    assert!(usage.items > 8000 && usage.stub_bytes > 150 << 10, "{usage:?}");
    let pages = tier.store.slabs.memory_in_use();
    // A fourth one would leave no room for reads.
    assert_eq!(pages, 3 << 20);
    assert!(pages + usage.stub_bytes + usage.buffer_bytes + MEMORY / 32 <= MEMORY, "{pages} {usage:?}");
}

/// The bytes of memory that count for the limit.
fn taken(tier: &Tiered) -> usize {
    let usage = tier.store.flash_tier().unwrap().usage();
    usage.mapped_bytes + usage.buffer_bytes + usage.index_bytes + tier.store.slabs.resident_bytes()
}

#[test]
fn stubs_take_no_memory_that_pages_have() {
    let mut tier = Tiered::new();
    // No tick comes.
    for number in 0..24_000 {
        tier.set(&key(number), &value(number, 0)[..500 + number as usize % 300]);
        let taken = taken(&tier);
        assert!(taken <= MEMORY, "{number}: {taken}");
    }
    let counts = tier.store.flash_tier().unwrap().counts();
    assert!(counts.admitted > 18_000 && counts.dropped_stubs < 100, "{counts:?}");
    tier.store.check().unwrap();
}

#[test]
fn a_lower_limit_holds_for_stubs_too() {
    let long = |number: u64| format!("{number:0>200}").into_bytes();
    let mut tier = Tiered::with_stubs(12 << 20, 6 << 20);
    for number in 0..24_000 {
        tier.set(&long(number), &value(number, 0)[..600]);
    }
    let stubs = |tier: &Tiered| tier.store.flash_tier().unwrap().usage().stub_bytes;
    let before = stubs(&tier);
    assert!(before > 2 << 20, "{before}");
    tier.store.set_limit(5 << 20);
    for _ in 0..8 {
        tier.store.tick(NOW);
        tier.settle();
    }
    let taken = taken(&tier);
    assert!(taken <= 5 << 20 && stubs(&tier) <= 2 << 20, "{taken}, stubs {before} to {}", stubs(&tier));
    tier.store.check().unwrap();
    let found =
        (0..24_000).filter(|&number| tier.get(&long(number)).is_some_and(|found| found == value(number, 0)[..600]));
    assert!(found.count() > 1000);
}

#[test]
fn changes_of_an_item_on_flash_end_its_record() {
    let mut tier = Tiered::new();
    let expect = |tier: &mut Tiered, value: Option<&[u8]>| {
        assert_eq!(tier.get(b"k").as_deref(), value);
        assert_eq!(tier.store.delete(b"k", None, NOW) == Deleted::Done, value.is_some());
        assert_eq!(tier.get(b"k"), None);
    };
    let long = [b'x'; 900];
    let away = |tier: &mut Tiered| {
        let version = tier.set(b"k", &long);
        tier.push_out(b"k");
        version
    };
    away(&mut tier);
    tier.set(b"k", b"new");
    expect(&mut tier, Some(b"new"));

    away(&mut tier);
    assert_eq!(tier.store.delete(b"k", None, NOW), Deleted::Done);
    assert_eq!(tier.store.delete(b"k", None, NOW), Deleted::NotFound);
    expect(&mut tier, None);

    away(&mut tier);
    assert_eq!(tier.put(b"k", b"a", 0, Terms { mode: Mode::Add, ..Terms::default() }), Outcome::NotStored);
    expect(&mut tier, Some(&long));

    away(&mut tier);
    let replace = Terms { mode: Mode::Replace, ..Terms::default() };
    assert!(matches!(tier.put(b"k", b"r", 0, replace), Outcome::Stored(_)));
    expect(&mut tier, Some(b"r"));
    assert_eq!(tier.put(b"k", b"r", 0, replace), Outcome::NotStored);

    // Without its value in memory nothing is appended or compared.
    let append = Terms { mode: Mode::Append, ..Terms::default() };
    away(&mut tier);
    assert_eq!(tier.put(b"k", b"y", 0, append), Outcome::Refused(Refused::NoMemory));
    tier.recall(b"k");
    assert!(matches!(tier.put(b"k", b"y", 0, append), Outcome::Stored(_)));
    expect(&mut tier, Some(&[&long[..], b"y"].concat()));

    let version = away(&mut tier);
    let cas = Terms { cas: Some(version), ..Terms::default() };
    assert_eq!(tier.put(b"k", b"c", 0, cas), Outcome::Refused(Refused::NoMemory));
    tier.recall(b"k");
    assert!(matches!(tier.put(b"k", b"c", 0, cas), Outcome::Stored(_)));
    expect(&mut tier, Some(b"c"));

    tier.set(b"k", &[&b"41"[..], &[b' '; 900]].concat());
    tier.push_out(b"k");
    tier.recall(b"k");
    let sum = tier.store.add(b"k", (true, 1), (None, None), None, NOW);
    assert!(matches!(sum, Sum::Done { number: 42, .. }), "{sum:?}");
    expect(&mut tier, Some(b"42"));
    tier.store.check().unwrap();
}

#[test]
fn an_item_on_flash_ends_when_its_time_comes() {
    let mut tier = Tiered::new();
    let long = [b'x'; 900];
    tier.put(b"k", &long, NOW + 100, Terms::default());
    tier.push_out(b"k");
    assert!(tier.store.touch_away(b"k", NOW + 200, NOW));
    tier.now = NOW + 150;
    assert_eq!(tier.get(b"k").as_deref(), Some(&long[..]));
    // In memory it gets another end, and takes that along.
    tier.store.touch(b"k", NOW + 300, tier.now).unwrap();
    tier.push_out(b"k");
    tier.now = NOW + 250;
    assert_eq!(tier.get(b"k").as_deref(), Some(&long[..]));
    tier.push_out(b"k");
    tier.now = NOW + 300;
    assert_eq!(tier.get(b"k"), None);

    tier.set(b"k", &long);
    tier.push_out(b"k");
    assert!(tier.store.touch_away(b"k", 1, tier.now) && !tier.store.touch_away(b"k", 0, tier.now));
    assert_eq!(tier.get(b"k"), None);

    // One that ends in memory does not come back with the end that it had on flash.
    tier.set(b"k", &long);
    tier.push_out(b"k");
    tier.recall(b"k");
    tier.store.touch(b"k", tier.now + 5, tier.now).unwrap();
    tier.now += 5;
    assert_eq!(tier.get(b"k"), None);
}

#[test]
fn flush_ends_what_is_on_flash() {
    let mut tier = Tiered::new();
    for number in 0..4000 {
        tier.set(&key(number), &value(number, 0));
    }
    tier.store.flush(None, NOW);
    tier.settle();
    for number in 0..4000 {
        assert_eq!(tier.get(&key(number)), None, "{number}");
    }
    // And later, whether a lookup or the clock comes first.
    for number in 0..4000 {
        tier.set(&key(number), &value(number, 1));
    }
    tier.store.flush(Some(NOW + 10), NOW);
    tier.now = NOW + 9;
    assert!(tier.get(&key(0)).is_some());
    tier.now = NOW + 10;
    for number in 0..4000 {
        assert_eq!(tier.get(&key(number)), None, "{number}");
    }
}

#[test]
fn a_read_that_was_overtaken_shows_nothing_old() {
    let long = [b'x'; 900];
    type Overtaking = (fn(&mut Tiered), Option<&'static [u8]>);
    let overtake: [Overtaking; 5] = [
        (|tier| _ = tier.store.delete(b"k", None, NOW), None),
        (|tier| _ = tier.set(b"k", b"new"), Some(b"new")),
        (|tier| tier.store.flush(None, NOW), None),
        (|tier| _ = tier.store.touch_away(b"k", 1, NOW), None),
        (|tier| assert_eq!(tier.store.give_up_loads(NOW + 100), [Waiter(0)]), None),
    ];
    for (overtake, value) in overtake {
        let mut tier = Tiered::new();
        tier.set(b"k", &long);
        tier.push_out(b"k");
        let load = tier.begin(b"k");
        overtake(&mut tier);
        tier.settle();
        tier.end(load);
        assert_eq!(tier.get(b"k").as_deref(), value);
        tier.store.check().unwrap();
    }
}

#[test]
fn requests_for_one_item_share_its_read() {
    let mut tier = Tiered::new();
    tier.set(b"k", &[b'x'; 900]);
    tier.push_out(b"k");
    let load = tier.store.hint(b"k", NOW).unwrap();
    assert_eq!(tier.store.hint(b"k", NOW), None);
    assert_eq!(tier.store.recall(b"k", Waiter(1), NOW), Recall::Away(None));
    assert_eq!(tier.store.recall(b"k", Waiter(2), NOW), Recall::Away(None));
    assert_eq!(tier.end(load), [Waiter(1), Waiter(2)]);
    assert_eq!(tier.store.recall(b"k", Waiter(3), NOW), Recall::Here);
    assert_eq!(tier.store.get(b"k", true, NOW).unwrap().value, [b'x'; 900]);
}

#[test]
fn reads_are_bounded_and_others_wait_in_line() {
    let mut tier = Tiered::new();
    for number in 0..4000 {
        tier.set(&key(number), &value(number, 0));
    }
    let away: Vec<u64> = (0..4000).filter(|&number| tier.is_away(&key(number))).take(20).collect();
    let mut loads = Vec::new();
    for (at, &number) in away.iter().enumerate() {
        match tier.store.recall(&key(number), Waiter(at as u64), NOW) {
            Recall::Away(Some(load)) => loads.push(load),
            other => assert_eq!(other, Recall::Busy),
        }
    }
    assert_eq!(loads.len(), 8);
    assert_eq!(tier.end(loads[0]), [Waiter(0), Waiter(8), Waiter(9)]);
    for load in loads.drain(1..) {
        tier.end(load);
    }
    // All that is left in line is named in the end, whatever became of those before.
    tier.store.give_up_loads(NOW);
    assert!(tier.store.give_up_loads(NOW).is_empty());
}

#[test]
fn the_last_read_ends_the_line() {
    let mut tier = Tiered::new();
    for number in 0..4000 {
        tier.set(&key(number), &value(number, 0));
    }
    let away: Vec<u64> = (0..4000).filter(|&number| tier.is_away(&key(number))).take(9).collect();
    let loads: Vec<Load> = away[..8].iter().map(|&number| tier.begin(&key(number))).collect();
    for waiter in 1..100 {
        assert_eq!(tier.store.recall(&key(away[8]), Waiter(waiter), NOW), Recall::Busy);
    }
    // None of those that are named begins another read.
    let named: usize = loads.into_iter().map(|load| tier.end(load).len() - 1).sum();
    assert_eq!(named, 99);
}

#[test]
fn a_device_that_is_silent_is_not_asked() {
    let mut tier = Tiered::new();
    for number in 0..4000 {
        tier.set(&key(number), &value(number, 0));
    }
    let away: Vec<u64> = (0..4000).filter(|&number| tier.is_away(&key(number))).take(12).collect();
    let loads: Vec<Load> = away[..8].iter().map(|&number| tier.begin(&key(number))).collect();
    assert_eq!(tier.store.recall(&key(away[8]), Waiter(1), NOW + 3), Recall::Busy);
    // Without a place nothing is named, and nothing stands in line.
    assert_eq!(tier.store.recall(&key(away[8]), None, NOW + 3), Recall::Busy);
    assert!(tier.store.give_up_loads(NOW + 3).is_empty());
    assert_eq!(tier.store.give_up_loads(NOW + 6).len(), 9);
    for number in &away[9..] {
        assert_eq!(tier.store.recall(&key(*number), Waiter(2), NOW + 6), Recall::NoMemory);
    }
    tier.now = NOW + 20;
    assert!(tier.end(loads[0]).is_empty());
    // One has answered: items that were not asked for are there.
    assert_eq!(tier.get(&key(away[9])), Some(value(away[9], 0)));
    assert_eq!(tier.get(&key(away[0])), None);
}

#[test]
fn a_read_that_is_cancelled_loses_nothing() {
    let mut tier = Tiered::new();
    let long = [b'x'; 900];
    tier.set(b"k", &long);
    tier.push_out(b"k");
    let load = tier.begin(b"k");
    assert_eq!(tier.store.recall(b"k", Waiter(7), NOW), Recall::Away(None));
    assert_eq!(tier.store.cancel_load(load.id), [Waiter(0), Waiter(7)]);
    assert!(tier.end(load).is_empty(), "it has ended");
    assert_eq!(tier.get(b"k").as_deref(), Some(&long[..]));
    assert_eq!(tier.store.flash_tier().unwrap().usage().loads, 0);
}

#[test]
fn a_device_error_is_a_miss() {
    let mut tier = Tiered::new();
    tier.set(b"k", &[b'x'; 900]);
    tier.push_out(b"k");
    let load = tier.begin(b"k");
    assert_eq!(tier.store.loaded(load.id, Err(DeviceError::Failed(5)), NOW), [Waiter(0)]);
    assert_eq!(tier.get(b"k"), None);
    tier.set(b"k", &[b'x'; 900]);
    tier.push_out(b"k");
    tier.device.fill(0x55);
    assert_eq!(tier.get(b"k"), None);
    assert_eq!(tier.store.flash_tier().unwrap().counts().wrong, 1);
}

#[test]
fn marks_and_chosen_versions_are_kept() {
    let mut tier = Tiered::new();
    let long = [b'x'; 900];
    let terms = |version| Terms { binary: true, version: Some(version), ..Terms::default() };
    tier.put(b"k", &long, 0, terms(u64::MAX - 1));
    tier.put(b"l", &long, 0, terms(1));
    tier.push_out(b"k");
    tier.push_out(b"l");
    for (key, version) in [(b"k", u64::MAX - 1), (b"l", 1)] {
        tier.recall(key);
        let view = tier.store.get(key, true, NOW).unwrap();
        assert_eq!((view.version, view.binary, view.stale, view.won), (version, true, false, false));
    }
    // They are in memory again, and do not outlive a flush.
    tier.store.flush(None, NOW);
    assert_eq!((tier.get(b"k"), tier.get(b"l")), (None, None));
    tier.put(b"l", &long, 0, terms(1));
    tier.push_out(b"l");
    assert!(tier.get(b"l").is_some(), "its version is one from before the flush");
}

#[test]
fn an_invalidated_item_does_not_come_back_as_it_was() {
    let mut tier = Tiered::new();
    tier.set(b"k", &[b'x'; 900]);
    tier.push_out(b"k");
    tier.recall(b"k");
    let keep = Keep { stale: true, empty: false, expiry: None, version: None };
    assert_eq!(tier.store.invalidate(b"k", None, keep, NOW), Deleted::Done);
    tier.evict(b"k");
    assert_eq!(tier.get(b"k"), None);

    tier.set(b"k", &[b'x'; 900]);
    tier.push_out(b"k");
    tier.recall(b"k");
    let handle = tier.store.get(b"k", true, NOW).unwrap().handle();
    tier.store.mark_won(handle);
    tier.evict(b"k");
    assert_eq!(tier.get(b"k"), None, "it would have to be renewed twice");
}

#[test]
fn an_item_in_a_buffer_comes_back_at_once() {
    let mut tier = Tiered::new();
    let version = tier.set(b"k", &[b'x'; 900]);
    tier.evict(b"k");
    assert_eq!(tier.store.recall(b"k", Waiter(1), NOW), Recall::Here);
    let view = tier.store.get(b"k", true, NOW).unwrap();
    assert_eq!((view.value, view.version), (&[b'x'; 900][..], version));
    assert_eq!(tier.store.flash_tier().unwrap().counts().loads, 0);
    tier.store.check().unwrap();
}

/// Any order of commands, reads and ends of reads; what is found is the key's value.
#[test]
fn no_other_value_than_the_last_is_found() {
    for history in 0..8 * crate::noise_times() {
        let mut state = (history + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut tier = Tiered::with((3 << 20) + OVERHEAD);
        let (mut values, mut loads) = (HashMap::<u64, (Vec<u8>, u64)>::new(), Vec::new());
        let (mut found, mut asked) = (0, 0);
        for step in 0..12_000 {
            let number = random(4000);
            let key = key(number);
            match random(20) {
                0..=8 => {
                    let expiry = if random(3) == 0 { tier.now + random(300) + 1 } else { 0 };
                    let value = value(number, step);
                    if let Outcome::Stored(_) = tier.put(&key, &value, expiry, Terms::default()) {
                        values.insert(number, (value, expiry));
                    }
                }
                9 => {
                    let done = tier.store.delete(&key, None, tier.now);
                    let there = values.remove(&number).is_some_and(|(_, expiry)| expiry == 0 || expiry > tier.now);
                    assert!(there || done == Deleted::NotFound);
                }
                10 => {
                    let expiry = if random(2) == 0 { 0 } else { tier.now + random(300) };
                    let touched = tier.store.touch(&key, expiry, tier.now).is_some()
                        || tier.store.touch_away(&key, expiry, tier.now);
                    match values.get_mut(&number) {
                        Some((_, end)) if *end == 0 || *end > tier.now => {
                            if touched {
                                *end = expiry;
                            }
                        }
                        _ => assert!(!touched),
                    }
                }
                11 => {
                    let terms = Terms { mode: Mode::Append, ..Terms::default() };
                    if let Outcome::Stored(_) = tier.put(&key, b"tail", 0, terms) {
                        values.get_mut(&number).expect("a value was there").0.extend_from_slice(b"tail");
                    }
                }
                12 if random(200) == 0 => {
                    tier.store.flush(None, tier.now);
                    values.clear();
                }
                13 if random(20) == 0 => tier.now += random(60),
                14 if random(20) == 0 => tier.store.tick(tier.now),
                15..=16 if !loads.is_empty() => {
                    let load: Load = loads.swap_remove(random(loads.len() as u64) as usize);
                    if random(30) == 0 {
                        tier.store.loaded(load.id, Err(DeviceError::Short), tier.now);
                    } else {
                        tier.end(load);
                    }
                }
                _ => {
                    if let Recall::Away(load) = tier.store.recall(&key, Waiter(step), tier.now) {
                        loads.extend(load);
                        continue;
                    }
                    let Some(view) = tier.store.get(&key, true, tier.now) else { continue };
                    let (value, expiry) = values.get(&number).expect("it was deleted, or never stored");
                    assert!(view.value == value, "history {history}, step {step}: another value");
                    assert_eq!(view.expiry, *expiry, "history {history}, step {step}");
                }
            }
            tier.settle();
            asked += u64::from(values.contains_key(&number));
            found += u64::from(tier.is_away(&key));
        }
        loads.into_iter().for_each(|load| _ = tier.end(load));
        tier.store.check().unwrap();
        let counts = tier.store.flash_tier().unwrap().counts();
        assert!(found > 50 && asked > 1000 && counts.loads > 50, "history {history}: {found} {asked} {counts:?}");
    }
}

/// Returns the keys that a walk in small steps shows, and how often each.
fn shown(tier: &mut Tiered) -> HashMap<Vec<u8>, usize> {
    let (mut walk, mut shown) = (Walk::default(), HashMap::new());
    while !tier.store.walk_on(&mut walk, 7, tier.now, |item| *shown.entry(item.key.to_vec()).or_insert(0) += 1) {}
    shown
}

#[test]
fn walks_and_counts_have_items_on_flash() {
    let mut tier = Tiered::new();
    for number in 0..3000 {
        tier.set(&key(number), &value(number, 0));
    }
    assert!(tier.is_away(&key(1)) && tier.is_away(&key(2)));
    // Some are in memory and on flash.
    for number in (1..600).step_by(9) {
        tier.get(&key(number));
    }
    tier.store.delete(&key(2), None, tier.now);
    assert!(tier.store.touch_away(&key(3), tier.now + 5, tier.now));
    let all = shown(&mut tier);
    assert!(all.values().all(|&times| times == 1));
    let there: Vec<_> = (0..3000).filter(|&number| all.contains_key(&key(number))).collect();
    assert_eq!((all.len(), there.len()), (2999, 2999));
    let report = tier.store.report(tier.now);
    assert_eq!(report.items, 2999);
    assert!(report.here < 2500, "{}", report.here);
    let by_class: u64 = report.classes.iter().map(|class| class.small + class.main + class.away).sum();
    assert_eq!(by_class, 2999);
    // What is over is not shown, and the crawler ends it.
    tier.now += 5;
    assert!(!shown(&mut tier).contains_key(&key(3)));
    assert_eq!(tier.store.report(tier.now).items, 2999);
    while !tier.store.crawl_flash(100, tier.now) {}
    assert_eq!(tier.store.report(tier.now).items, 2998);
    assert_eq!(tier.store.class_totals().crawler_reclaimed, 1);
    tier.store.flush(None, tier.now);
    assert!(shown(&mut tier).is_empty());
}

#[test]
fn a_glance_reads_nothing_and_counts() {
    let mut tier = Tiered::new();
    tier.put(b"key", &value(1, 0), NOW + 100, Terms::default());
    assert_eq!(tier.store.glance(b"key", true, NOW), None, "it is in memory");
    tier.push_out(b"key");
    let glance = |fetched| Some(Glance { expiry: NOW + 100, fetched, binary: false });
    assert_eq!(tier.store.glance(b"key", false, NOW), glance(false));
    assert_eq!(tier.store.glance(b"key", true, NOW), glance(false));
    assert_eq!(tier.store.glance(b"key", true, NOW), glance(true));
    assert!(tier.is_away(b"key"));
    assert!(matches!(tier.store.peek(b"key", NOW), Found::Item { value: 2097..2600, .. }));
    assert_eq!(tier.store.glance(b"key", true, NOW + 100), None, "it is over");
}
