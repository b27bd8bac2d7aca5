//! The store against a table that is exact, as the kernel's program would read it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use proptest::prelude::*;

use super::chunk::{CHOSEN, Id, STALE};
use super::*;

const NOW: u64 = 1_000_000;
/// The begin of the store's memory.
const BASE: u64 = 1 << 30;
const SHARD: usize = 3;

#[derive(Debug, Default)]
struct State {
    /// Key and hits by place.
    entries: HashMap<u64, (Vec<u8>, u32)>,
    flushed: u64,
    flush_at: u64,
    pages_left: u64,
}

#[derive(Debug, Default)]
struct Exact(Mutex<State>);

impl Exact {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// Has the program see hits of a key, if it is entered; returns whether it is.
    fn hit(&self, key: &[u8], hits: u32) -> bool {
        self.with(|state| {
            let entry = state.entries.values_mut().find(|(name, _)| name == key);
            entry.map(|(_, seen)| *seen = (*seen + hits).min(3)).is_some()
        })
    }
}

impl KernelTable for Exact {
    fn enter(&self, key: &[u8], place: u64) {
        self.with(|state| {
            assert!(state.entries.insert(place, (key.to_vec(), 0)).is_none(), "a place is entered twice")
        });
    }
    fn has(&self, key: &[u8], place: u64) -> bool {
        self.with(|state| state.entries.get(&place).is_some_and(|(name, _)| name == key))
    }
    fn remove(&self, key: &[u8], place: u64) -> u32 {
        self.with(|state| {
            let removed = state.entries.remove(&place);
            assert!(removed.as_ref().is_none_or(|(name, _)| name == key), "the entry is another key's");
            removed.map_or(0, |(_, hits)| hits)
        })
    }
    fn take_hits(&self, _: &[u8], place: u64) -> u32 {
        self.with(|state| state.entries.get_mut(&place).map_or(0, |(_, hits)| std::mem::take(hits)))
    }
    fn page_left(&self) {
        self.with(|state| state.pages_left += 1);
    }
    fn flushed(&self, shard: usize, version: u64) {
        assert_eq!(shard, SHARD);
        self.with(|state| (state.flushed, state.flush_at) = (version, 0));
    }
    fn flush_at(&self, shard: usize, at: u64) {
        assert_eq!(shard, SHARD);
        self.with(|state| state.flush_at = at);
    }
}

fn store(memory: usize) -> (Store, Arc<Exact>) {
    let mut store = Store::new(&Config { memory, extra: 0, huge: false, ..Config::default() }).unwrap();
    let table = Arc::new(Exact::default());
    store.list_in_kernel(table.clone(), BASE, SHARD);
    (store, table)
}

fn set(store: &mut Store, key: &[u8], value: &[u8], expiry: u64, terms: Terms, now: u64) {
    if let Ok(mut writer) = store.reserve(key, value.len(), 0, expiry, now) {
        writer.value().copy_from_slice(value);
        store.publish(writer, terms, now);
    }
}

/// The class of each page when an item of it was last entered, and how many pages had left theirs by then.
type Classes = HashMap<u64, (usize, u64)>;

/// Checks that exactly those items are entered that live and fit, and that a page that changed its class was reported.
fn check(store: &Store, table: &Exact, classes: &mut Classes, now: u64) {
    store.check().unwrap();
    let (mut wanted, mut place) = (HashMap::new(), Place::default());
    while let Some(id) = store.slabs.next_chunk(&mut place, None) {
        let chunk = store.slabs.chunk(id);
        let fits = chunk.key_len() + chunk.value_len() <= 1370;
        // An item that is over may be entered still: the program sees that by itself.
        if store.is_alive(id) && fits && !chunk.marked(STALE) {
            wanted.insert(BASE + id.at() as u64, (chunk.key().to_vec(), store.is_over(id, now)));
        }
    }
    table.with(|state| {
        assert_eq!(state.flush_at, store.versions.continuation().flush_at.unwrap_or(0));
        for (place, (key, _)) in &state.entries {
            let id = Id::of((place - BASE) as usize);
            let (name, over) = wanted.remove(place).expect("an entry without an item that lives and fits");
            assert_eq!(&name, key);
            let chunk = store.slabs.chunk(id);
            let flushed = chunk.version() <= state.flushed || (state.flush_at != 0 && state.flush_at <= now);
            let expired = chunk.expiry() != 0 && chunk.expiry() <= now;
            assert!(!over || flushed || expired, "an item is over, and the program cannot tell");
            // One with a version that a client chose may be passed up for nothing.
            assert!(over || !flushed || chunk.marked(CHOSEN) || store.versions.flush_due(now));
            let page = place / store.slabs.page_bytes() as u64;
            let before = classes.insert(page, (chunk.class(), state.pages_left));
            let same = before.is_none_or(|(class, left)| class == chunk.class() || left < state.pages_left);
            assert!(same, "a page changed its class, and no reader learns of it");
        }
        let over_at_once = wanted.values().all(|(_, over)| *over);
        assert!(over_at_once, "items that live and fit are not entered");
    });
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, usize, u64),
    Append(u8, usize),
    Add(u8, u64),
    Chosen(u8, u64),
    Delete(u8),
    Invalidate(u8, bool, bool),
    Touch(u8, u64),
    Hit(u8, u32),
    Get(u8),
    Displace(u8),
    Flush(u64),
    Reassign(usize, usize),
    Pass(u64),
    Crawl,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expiry = prop_oneof![3 => Just(0), 1 => 1..5_u64];
    let length = prop_oneof![4 => 0..1400_usize, 1 => 1350..1400_usize, 2 => 1400..200_000_usize];
    let key = any::<u8>;
    prop::collection::vec(
        prop_oneof![
            12 => (key(), length, expiry.clone()).prop_map(|(key, length, expiry)| Step::Set(key, length, expiry)),
            2 => (key(), 0..900_usize).prop_map(|(key, length)| Step::Append(key, length)),
            2 => (key(), any::<u64>()).prop_map(|(key, by)| Step::Add(key, by)),
            2 => (key(), 0..500_u64).prop_map(|(key, version)| Step::Chosen(key, version)),
            2 => key().prop_map(Step::Delete),
            2 => (key(), any::<bool>(), any::<bool>()).prop_map(|(key, stale, empty)| Step::Invalidate(key, stale, empty)),
            2 => (key(), expiry).prop_map(|(key, expiry)| Step::Touch(key, expiry)),
            2 => (key(), 1..4_u32).prop_map(|(key, hits)| Step::Hit(key, hits)),
            2 => key().prop_map(Step::Get),
            2 => key().prop_map(Step::Displace),
            1 => (0..4_u64).prop_map(Step::Flush),
            1 => (0..40_usize, 0..40_usize).prop_map(|(from, to)| Step::Reassign(from, to)),
            2 => (0..3_u64).prop_map(Step::Pass),
            1 => Just(Step::Crawl),
        ],
        1..400,
    )
}

fn run(steps: Vec<Step>) {
    let (mut store, table) = store(4 << 20);
    let (mut classes, mut now) = (Classes::new(), NOW);
    for step in steps {
        let until = |expiry| if expiry == 0 { 0 } else { now + expiry - 1 };
        match step {
            Step::Set(key, length, expiry) => {
                set(&mut store, &[key], &vec![b'1'; length], until(expiry), Terms::default(), now);
            }
            Step::Append(key, length) => {
                let terms = Terms { mode: Mode::Append, ..Terms::default() };
                set(&mut store, &[key], &vec![b'2'; length], 0, terms, now);
            }
            Step::Add(key, by) => {
                set(&mut store, &[key], b"7", 0, Terms { mode: Mode::Add, ..Terms::default() }, now);
                store.add(&[key], (true, by), (None, None), None, now);
            }
            Step::Chosen(key, version) => {
                set(&mut store, &[key], b"chosen", 0, Terms { version: Some(version), ..Terms::default() }, now);
            }
            Step::Delete(key) => {
                store.delete(&[key], None, now);
            }
            Step::Invalidate(key, stale, empty) => {
                store.invalidate(&[key], None, Keep { stale, empty, expiry: None, version: None }, now);
            }
            Step::Touch(key, expiry) => {
                store.touch(&[key], until(expiry), now);
            }
            Step::Hit(key, hits) => {
                table.hit(&[key], hits);
            }
            Step::Get(key) => {
                store.learn_hits(&[key], now);
                store.get(&[key], true, now);
            }
            Step::Displace(key) => {
                table.with(|state| state.entries.retain(|_, (name, _)| name != &[key]));
                let there = store.get(&[key], true, now).is_some();
                store.list_again(&[key], now);
                store.list_again(&[key], now);
                // Without an answer nothing asks for another entry. An item that is over was taken out by the look.
                assert!(there || store.peek(&[key], now) == Found::Not);
            }
            Step::Flush(delay) => store.flush((delay > 0).then_some(now + delay), now),
            Step::Reassign(from, to) => {
                let _ = store.reassign(Some(from), to, now);
            }
            Step::Pass(seconds) => {
                now += seconds;
                store.tick(now);
            }
            Step::Crawl => {
                store.crawl(1000, now);
            }
        }
        check(&store, &table, &mut classes, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn kernel_table_has_the_items_that_live_and_fit(steps in steps()) {
        run(steps);
    }
}

#[test]
fn pages_that_change_class_are_reported() {
    let (mut store, table) = store(8 << 20);
    let mut classes = Classes::new();
    for turn in 0..60_000_u32 {
        let length = if turn / 20_000 % 2 == 0 { 600 } else { 1_200 };
        set(&mut store, &turn.to_le_bytes(), &vec![1; length], 0, Terms::default(), NOW);
        if turn % 2_000 == 0 {
            store.tick(NOW);
            check(&store, &table, &mut classes, NOW);
        }
    }
    assert!(table.with(|state| state.pages_left) > 0 && store.report(NOW).counters.slabs_moved > 0);
}

#[test]
fn items_that_move_stay_listed() {
    let (mut store, table) = store(8 << 20);
    let mut classes = Classes::new();
    for number in 0..6_000_u32 {
        set(&mut store, &number.to_le_bytes(), &[1; 600], 0, Terms::default(), NOW);
    }
    for number in 0..3_000_u32 {
        store.delete(&(number * 2).to_le_bytes(), None, NOW);
    }
    let class = store.class_for(4, 600) - 1;
    store.reassign(Some(class), class + 3, NOW).unwrap();
    assert!(store.report(NOW).counters.rescues > 100);
    check(&store, &table, &mut classes, NOW);
}

/// Items that the kernel's program alone answers, and more others than memory has room for.
#[test]
fn hits_in_the_kernel_keep_items() {
    let (mut store, table) = store(4 << 20);
    let name = |number: u32| number.to_le_bytes();
    for number in 0..500 {
        set(&mut store, &name(number), &[1; 1000], 0, Terms::default(), NOW);
    }
    for number in 1_000..9_000 {
        set(&mut store, &name(number), &[1; 1000], 0, Terms::default(), NOW);
        if number % 500 == 0 {
            for hot in 0..500 {
                table.hit(&name(hot), 1);
            }
        }
    }
    let kept = (0..500).filter(|&number| store.peek(&name(number), NOW) != Found::Not).count();
    assert!(kept >= 450, "{kept} of 500");
    assert!(store.len() < 5_000 && table.hit(&name(1), 1));
}

#[test]
fn hits_in_the_kernel_are_shown() {
    let (mut store, table) = store(4 << 20);
    set(&mut store, b"key", b"value", 0, Terms::default(), NOW);
    assert!(table.hit(b"key", 1));
    store.learn_hits(b"key", NOW + 5);
    let view = store.get(b"key", false, NOW + 7).unwrap();
    assert_eq!((view.fetched, view.accessed), (true, NOW as u32 + 5));
    // Those of a value go over to the next one.
    assert!(table.hit(b"key", 2));
    set(&mut store, b"key", b"another", 0, Terms::default(), NOW + 8);
    let handle = store.get(b"key", false, NOW + 8).unwrap().handle();
    assert_eq!(store.slabs.chunk(handle.0).frequency(), 3);
}
