//! The store against a map that does the same slowly.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_000_000;

const STALE: Keep = Keep { stale: true, empty: false, expiry: None, version: None };

fn store(memory: usize) -> Store {
    Store::new(&Config { memory, extra: 0, huge: false, ..Config::default() }).unwrap()
}

fn set_until(store: &mut Store, key: &[u8], value: &[u8], expiry: u64, now: u64) -> Outcome {
    put(store, key, value, expiry, Terms::default(), now)
}

fn put(store: &mut Store, key: &[u8], value: &[u8], expiry: u64, terms: Terms, now: u64) -> Outcome {
    match store.reserve(key, value.len(), 7, expiry, now) {
        Ok(mut writer) => {
            writer.value().copy_from_slice(value);
            store.publish(writer, terms, now)
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

fn set(store: &mut Store, key: &[u8], value: &[u8]) -> Outcome {
    set_until(store, key, value, 0, NOW)
}

fn value(store: &mut Store, key: &[u8], now: u64) -> Option<Vec<u8>> {
    store.get(key, true, now).map(|view| view.value.to_vec())
}

#[test]
fn what_was_set_comes_back_with_flags_and_version() {
    let mut store = store(4 << 20);
    let Outcome::Stored(first) = set(&mut store, b"a", b"one") else { panic!() };
    let Outcome::Stored(second) = set(&mut store, b"a", b"two") else { panic!() };
    let view = store.get(b"a", true, NOW).unwrap();
    assert_eq!((view.value, view.flags, view.version, view.fetched), (&b"two"[..], 7, second, false));
    assert!(second > first && store.get(b"a", true, NOW).unwrap().fetched);
    store.check().unwrap();
}

#[test]
fn chunk_counts_its_lives() {
    let mut store = store(4 << 20);
    let life = |store: &mut Store| {
        let handle = store.get(b"a", false, NOW).unwrap().handle();
        (handle.0, store.slabs.chunk(handle.0).life())
    };
    let mut lives = HashMap::new();
    for turn in 0..10_u8 {
        set(&mut store, b"a", &[turn; 20]);
        let (id, life) = life(&mut store);
        assert_eq!(lives.insert(id, life).map_or(1, |before| before + 1), life, "{turn}");
        let chunk = store.slabs.chunk(id);
        assert_eq!((chunk.key_len(), chunk.class()), (1, store.class_for(1, 20) - 1));
    }
    assert_eq!(lives.len(), 2, "a value and the next take turns in two chunks");
    // A copy begins a life of its own, whatever that of the other is.
    let (id, _) = life(&mut store);
    let class = store.slabs.chunk(id).class();
    let copy = store.slabs.allocate(class).unwrap();
    let before = store.slabs.chunk(copy).life();
    store.slabs.copy(id, copy);
    assert_eq!((store.slabs.chunk(copy).life(), store.slabs.chunk(copy).value()), (before + 1, &[9; 20][..]));
}

#[test]
fn an_item_ends_when_its_time_comes_and_not_before() {
    let mut store = store(4 << 20);
    set_until(&mut store, b"a", b"x", NOW + 10, NOW);
    assert!(value(&mut store, b"a", NOW + 9).is_some());
    assert!(value(&mut store, b"a", NOW + 10).is_none());
    assert_eq!(store.report(NOW).counters.get_expired, 1);
    assert_eq!(store.len(), 0);
}

#[test]
fn crawler_removes_only_expired_items() {
    let mut store = store(8 << 20);
    for n in 0..5000_u32 {
        set_until(&mut store, &n.to_le_bytes(), b"value", if n % 2 == 0 { NOW + 5 } else { 0 }, NOW);
    }
    while !store.crawl(100, NOW + 5) {}
    assert_eq!(store.len(), 2500);
    assert_eq!(store.class_totals().crawler_reclaimed, 2500);
    store.check().unwrap();
}

#[test]
fn flush_ends_only_earlier_items() {
    let mut store = store(4 << 20);
    set(&mut store, b"before", b"x");
    store.flush(None, NOW);
    set(&mut store, b"after", b"x");
    assert!(value(&mut store, b"before", NOW).is_none() && value(&mut store, b"after", NOW).is_some());
    store.flush(Some(NOW + 5), NOW);
    store.tick(NOW + 4);
    assert!(value(&mut store, b"after", NOW + 4).is_some());
    store.tick(NOW + 5);
    assert!(value(&mut store, b"after", NOW + 5).is_none());
}

#[test]
fn delayed_flush_spares_later_items() {
    let mut store = store(4 << 20);
    set(&mut store, b"before", b"x");
    store.flush(Some(NOW + 10), NOW);
    assert!(value(&mut store, b"before", NOW + 9).is_some());
    // Its second has begun, before any tick.
    assert!(value(&mut store, b"before", NOW + 10).is_none());
    set_until(&mut store, b"after", b"x", 0, NOW + 10);
    store.tick(NOW + 10);
    assert!(value(&mut store, b"after", NOW + 11).is_some());
}

#[test]
fn walks_begin_a_flush_that_is_due() {
    let walks: [fn(&mut Store) -> usize; 3] = [
        |store| {
            let mut seen = 0;
            store.walk(None, NOW + 10, |_| {
                seen += 1;
                true
            });
            seen
        },
        |store| {
            let mut seen = 0;
            while !store.walk_on(&mut Walk::default(), 100, NOW + 10, |_| seen += 1) {}
            seen
        },
        |store| {
            while !store.crawl(100, NOW + 10) {}
            store.len()
        },
    ];
    for walk in walks {
        let mut store = store(4 << 20);
        set(&mut store, b"before", b"x");
        store.flush(Some(NOW + 10), NOW);
        assert_eq!(walk(&mut store), 0, "`get` would find nothing in this second");
    }
}

#[test]
fn an_item_that_can_be_held_no_more_still_changes() {
    let mut store = store(4 << 20);
    set(&mut store, b"n", b"41");
    let handle = store.get(b"n", true, NOW).unwrap().handle();
    let holders: Vec<_> = std::iter::from_fn(|| store.hold(handle)).collect();
    assert_eq!(holders.len(), 0xffff);
    assert!(matches!(store.add(b"n", (true, 1), (None, None), None, NOW), Sum::Done { number: 42, .. }));
    assert!(holders.iter().all(|held| held.value() == b"41"));
    for held in holders {
        store.release(held);
    }
    set(&mut store, b"m", b"x");
    let handle = store.get(b"m", true, NOW).unwrap().handle();
    let holders: Vec<_> = std::iter::from_fn(|| store.hold(handle)).collect();
    assert_eq!(store.invalidate(b"m", None, STALE, NOW), Deleted::Done);
    assert!(store.get(b"m", true, NOW).unwrap().stale);
    for held in holders {
        store.release(held);
    }
    store.check().unwrap();
    assert_eq!(store.slabs.used_of(0), 2, "what nobody holds is free again");
}

#[test]
fn held_chunk_is_unchanged_until_released() {
    let mut store = store(2 << 20);
    set(&mut store, b"held", &[7; 1000]);
    let handle = store.get(b"held", true, NOW).unwrap().handle();
    let (one, two) = (store.hold(handle).unwrap(), store.hold(handle).unwrap());
    store.delete(b"held", None, NOW);
    let used = |store: &Store| store.report(NOW).classes.iter().map(|class| class.used).sum::<u64>();
    // Enough of the same size to use every chunk there is many times.
    for n in 0..20_000_u32 {
        assert!(matches!(set(&mut store, &n.to_le_bytes(), &[1; 1000]), Outcome::Stored(_)));
    }
    assert_eq!(one.value(), &[7; 1000]);
    let before = used(&store);
    store.release(one);
    assert_eq!(two.value(), &[7; 1000]);
    assert_eq!(used(&store), before);
    store.release(two);
    assert_eq!(used(&store), before - 1);
    store.check().unwrap();
}

#[test]
fn fully_held_store_refuses_and_reuses_nothing() {
    let mut store = store(2 << 20);
    let mut held = Vec::new();
    for n in 0.. {
        if matches!(set(&mut store, &u32::to_le_bytes(n), &[n as u8; 200_000]), Outcome::Refused(Refused::NoMemory)) {
            break;
        }
        let handle = store.get(&u32::to_le_bytes(n), true, NOW).unwrap().handle();
        held.push((n as u8, store.hold(handle).unwrap()));
    }
    assert!(held.len() >= 8);
    for (n, held) in held {
        assert!(held.value().iter().all(|&byte| byte == n));
        store.release(held);
    }
    assert!(matches!(set(&mut store, b"again", &[1; 200_000]), Outcome::Stored(_)));
    store.check().unwrap();
}

#[test]
fn scattered_readers_do_not_cost_all_items() {
    let mut store = store(64 << 20);
    let mut stored = 0_u32;
    while store.report(NOW).classes.iter().all(|class| class.counters.evicted == 0) {
        set(&mut store, &stored.to_le_bytes(), &[1; 10_000]);
        stored += 1;
    }
    let handles: Vec<_> = (0..stored).filter_map(|n| Some(store.get(&n.to_le_bytes(), true, NOW)?.handle())).collect();
    let held: Vec<_> = handles.iter().step_by(10).filter_map(|&handle| store.hold(handle)).collect();
    let before = store.len();
    // There is no page for another size, however often one is asked for.
    for n in 0..100_u32 {
        assert_eq!(set(&mut store, &n.to_be_bytes(), &[2; 100]), Outcome::Refused(Refused::NoMemory));
    }
    assert!(store.len() > before * 3 / 4, "{} of {before} are left", store.len());
    for held in held {
        store.release(held);
    }
    assert!(matches!(set(&mut store, b"later", &[2; 100]), Outcome::Stored(_)));
    store.check().unwrap();
}

#[test]
fn hot_items_survive_a_scan() {
    let mut store = store(4 << 20);
    let hot: Vec<[u8; 8]> = (0..1000_u64).map(|n| n.to_le_bytes()).collect();
    for key in &hot {
        set(&mut store, key, &[0; 500]);
    }
    for key in hot.iter().chain(&hot) {
        assert!(value(&mut store, key, NOW).is_some());
    }
    for n in 1_000_000..1_060_000_u64 {
        set(&mut store, &n.to_le_bytes(), &[0; 500]);
    }
    let kept = hot.iter().filter(|key| store.get(*key, false, NOW).is_some()).count();
    assert!(kept > 900, "{kept} of 1000");
    store.check().unwrap();
}

#[test]
fn store_without_eviction_refuses_and_keeps() {
    let mut store =
        Store::new(&Config { memory: 2 << 20, extra: 0, evict: false, huge: false, ..Config::default() }).unwrap();
    let mut stored = 0_u32;
    while matches!(set(&mut store, &stored.to_le_bytes(), &[0; 5000]), Outcome::Stored(_)) {
        stored += 1;
    }
    assert!((0..stored).all(|n| store.get(&n.to_le_bytes(), true, NOW).is_some()));
    assert_eq!(store.report(NOW).counters.no_memory, 1);
}

#[test]
fn starved_class_gets_a_page() {
    let mut store = store(4 << 20);
    for n in 0..60_000_u32 {
        set(&mut store, &n.to_le_bytes(), &[0; 60]);
    }
    assert!(matches!(set(&mut store, b"large", &[1; 700_000]), Outcome::Stored(_)));
    assert!(matches!(set(&mut store, b"middle", &[1; 9000]), Outcome::Stored(_)));
    assert!(value(&mut store, b"large", NOW).is_some());
    store.check().unwrap();
}

#[test]
fn pages_move_to_the_class_that_is_short_of_them() {
    let mut store = store(8 << 20);
    for n in 0..80_000_u32 {
        set_until(&mut store, &n.to_le_bytes(), &[0; 60], 0, NOW);
    }
    // The load has changed: only large items are asked for, and there are more of them than fit.
    for second in 100..160 {
        for n in 0..200_u32 {
            set_until(&mut store, &(1 << 30 | n).to_le_bytes(), &[0; 20_000], 0, NOW + second);
        }
        store.tick(NOW + second);
    }
    store.check().unwrap();
    let large = store.sizes().iter().position(|&size| size > 20_000).unwrap();
    let pages = store.report(NOW).classes.iter().find(|class| class.class == large).unwrap().pages;
    assert!(pages >= 4, "{pages} pages");
    // Two hundred of them fit into less than five pages.
    assert!((0..200_u32).filter(|n| store.get(&(1 << 30 | n).to_le_bytes(), false, NOW + 160).is_some()).count() > 150);
}

#[test]
fn class_gets_one_page_beyond_the_limit() {
    let mut store = Store::new(&Config { memory: 2 << 20, extra: 2 << 20, huge: false, ..Config::default() }).unwrap();
    let pages = |store: &Store| store.report(NOW).malloced >> 20;
    for n in 0..60_000_u32 {
        set(&mut store, &n.to_le_bytes(), &[0; 60]);
    }
    assert_eq!(pages(&store), 2, "who has pages gets no more");
    for (length, expected) in [(9_000, 3), (100_000, 4), (700_000, 4)] {
        for n in 0..500_u32 {
            assert!(matches!(set(&mut store, &n.to_be_bytes(), &vec![1; length]), Outcome::Stored(_)));
        }
        assert_eq!(pages(&store), expected);
    }
    store.check().unwrap();
}

#[test]
fn page_moves_to_the_busier_class() {
    let mut store = store(16 << 20);
    let key = |kind: u32, n: u32| (u64::from(kind) << 32 | u64::from(n)).to_le_bytes();
    let ask = |store: &mut Store, key: &[u8], length: usize| {
        let there = store.get(key, true, NOW).is_some();
        if !there {
            set(store, key, &vec![0; length]);
        }
        there
    };
    for n in 0..20_000 {
        set(&mut store, &key(0, n), &[0; 900]);
    }
    // Of the small items few are asked for now; the larger ones would fit into half of the memory. All in one second.
    let (mut hits, mut random) = (0, 1_u32);
    for turn in 0..10_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ask(&mut store, &key(0, turn % 100), 900);
        hits += u32::from(ask(&mut store, &key(1, (random >> 16) % 250), 30_000) && turn >= 7500);
    }
    assert!(hits > 2000, "{hits} of 2500");
    assert!((0..100).all(|n| store.get(&key(0, n), false, NOW).is_some()), "what is asked for stays");
    store.check().unwrap();
}

#[test]
fn items_move_along_when_their_page_does() {
    let mut store = store(8 << 20);
    for n in 0..40_000_u32 {
        set(&mut store, &n.to_le_bytes(), &n.to_le_bytes());
    }
    for n in (0..40_000_u32).filter(|n| n % 4 != 0) {
        store.delete(&n.to_le_bytes(), None, NOW);
    }
    let class = store.report(NOW).classes[0].class;
    let pages = store.report(NOW).classes[0].pages;
    store.reassign(Some(class), class + 5, NOW).unwrap();
    assert!(store.report(NOW).counters.rescues > 0);
    assert_eq!(store.report(NOW).classes[0].pages, pages - 1);
    for n in (0..40_000_u32).step_by(4) {
        assert_eq!(value(&mut store, &n.to_le_bytes(), NOW).unwrap(), n.to_le_bytes());
    }
    store.check().unwrap();
}

#[test]
fn unpublished_chunks_leave_a_draining_page() {
    let mut store = store(8 << 20);
    // Every page has chunks that are published and chunks that are not.
    let mut writers = Vec::new();
    for n in 0..30_000_u32 {
        set(&mut store, &n.to_le_bytes(), b"out");
        let key = n + 100_000;
        let mut writer = store.reserve(&key.to_le_bytes(), 4, 0, 0, NOW).unwrap();
        writer.value().copy_from_slice(&key.to_le_bytes());
        writers.push((key, writer));
    }
    for n in 0..30_000_u32 {
        store.delete(&n.to_le_bytes(), None, NOW);
    }
    let class = store.report(NOW).classes[0].class;
    for _ in 0..3 {
        store.reassign(Some(class), class + 5, NOW).unwrap();
    }
    assert_eq!(store.slabs.draining(), 3, "unpublished chunks hold their pages");
    for (n, writer) in writers {
        assert!(matches!(store.publish(writer, Terms::default(), NOW), Outcome::Stored(_)));
        assert_eq!(value(&mut store, &n.to_le_bytes(), NOW).unwrap(), n.to_le_bytes());
    }
    assert_eq!(store.slabs.draining(), 0, "published elsewhere, they hold none");
    store.check().unwrap();
}

#[test]
fn items_that_are_over_leave_a_draining_page_alone() {
    let mut store = store(8 << 20);
    let mut writers = Vec::new();
    for n in 0..30_000_u32 {
        set(&mut store, &n.to_le_bytes(), b"here");
        writers.push(store.reserve(&(n + 100_000).to_le_bytes(), 4, 0, NOW - 1, NOW).unwrap());
    }
    let class = store.report(NOW).classes[0].class;
    store.reassign(Some(class), class + 5, NOW).unwrap();
    let before = store.report(NOW).counters;
    for writer in writers {
        assert!(matches!(store.publish(writer, Terms::default(), NOW), Outcome::Stored(_)));
    }
    let after = store.report(NOW).counters;
    assert_eq!((after.move_evictions, after.rescues), (before.move_evictions, before.rescues), "no item makes room");
    assert_eq!(store.slabs.draining(), 0);
    store.check().unwrap();
}

#[test]
fn marks_move_along_with_an_item() {
    let mut store = store(8 << 20);
    let terms = Terms { binary: true, version: Some(7), ..Terms::default() };
    for n in 0..40_000_u32 {
        let chunk = store.reserve(&n.to_le_bytes(), 0, 0, 0, NOW).unwrap();
        assert_eq!(store.publish(chunk, terms, NOW), Outcome::Stored(7));
    }
    for n in (0..40_000_u32).filter(|n| n % 4 != 0) {
        store.delete(&n.to_le_bytes(), None, NOW);
    }
    let class = store.report(NOW).classes[0].class;
    store.reassign(Some(class), class + 5, NOW).unwrap();
    assert!(store.report(NOW).counters.rescues > 0);
    for n in (0..40_000_u32).step_by(4) {
        let view = store.get(&n.to_le_bytes(), false, NOW).unwrap();
        assert!(view.binary && view.version == 7);
    }
    // That a client chose its version is not forgotten either: else it would outlive a flush, or end with the next version.
    store.flush(None, NOW);
    assert!(store.is_empty());
    store.check().unwrap();
}

#[test]
fn an_item_larger_than_allowed_is_refused() {
    let mut store = store(8 << 20);
    let most = (1 << 20) - HEADER - 1;
    assert!(matches!(set(&mut store, b"a", &vec![0; most]), Outcome::Stored(_)));
    assert_eq!(set(&mut store, b"a", &vec![0; most + 1]), Outcome::Refused(Refused::TooLarge));
    let mut large =
        Store::new(&Config { memory: 64 << 20, item_max: 8 << 20, huge: false, ..Config::default() }).unwrap();
    assert!(matches!(set(&mut large, b"a", &vec![3; 7 << 20]), Outcome::Stored(_)));
    assert_eq!(value(&mut large, b"a", NOW).unwrap(), vec![3; 7 << 20]);
}

#[test]
fn a_lower_limit_is_kept_after_a_while() {
    let mut store = store(16 << 20);
    for n in 0..200_000_u32 {
        set(&mut store, &n.to_le_bytes(), &[0; 100]);
    }
    store.set_limit(4 << 20);
    for second in 0..20 {
        store.tick(NOW + second);
    }
    assert!(store.report(NOW).malloced <= 4 << 20);
    assert!(matches!(set(&mut store, b"new", b"x"), Outcome::Stored(_)));
    store.check().unwrap();
}

#[test]
fn populated_pages_are_used_and_given_back() {
    let mut store = store(16 << 20);
    set(&mut store, b"first", b"x");
    let mut populated = 0;
    while let Some(page) = store.empty_page() {
        page.populate().unwrap();
        populated += 1;
    }
    assert_eq!((populated, store.slabs.resident_bytes()), (15, 16 << 20));
    store.check().unwrap();
    for n in 0..200_000_u32 {
        set(&mut store, &n.to_le_bytes(), &[0; 100]);
    }
    assert_eq!(store.slabs.resident_bytes(), 16 << 20);
    store.set_limit(4 << 20);
    for second in 0..20 {
        store.tick(NOW + second);
    }
    assert_eq!(store.slabs.resident_bytes(), 4 << 20);
    assert!(store.empty_page().is_none());
    store.check().unwrap();
}

#[test]
fn stale_item_gets_a_new_version() {
    let mut store = store(4 << 20);
    let Outcome::Stored(version) = set(&mut store, b"a", b"x") else { panic!() };
    assert_eq!(store.invalidate(b"a", Some(version + 1), STALE, NOW), Deleted::Exists);
    assert_eq!(store.invalidate(b"a", Some(version), Keep { expiry: Some(NOW + 30), ..STALE }, NOW), Deleted::Done);
    let view = store.get(b"a", true, NOW).unwrap();
    assert!(view.stale && view.version > version && view.expiry == NOW + 30 && view.value == b"x");
    let older = Terms { cas: Some(version), invalidate: true, ..Terms::default() };
    assert!(matches!(put(&mut store, b"a", b"y", 0, older, NOW), Outcome::Stored(_)));
    assert!(store.get(b"a", true, NOW).unwrap().stale);
}

#[test]
fn item_header_matches_its_documentation() {
    let mut store = store(4 << 20);
    set(&mut store, b"key", b"value");
    let handle = store.get(b"key", true, NOW).unwrap().handle();
    let place = store.extent(handle);
    let bytes = &store.slabs.bytes(place)[..HEADER + 8];
    assert_eq!((bytes[0], &bytes[2..4], &bytes[4..8]), (2, &MAGIC.to_le_bytes()[..], &1_u32.to_le_bytes()[..]));
    assert_eq!((&bytes[24..28], &bytes[28..32], bytes[36]), (&5_u32.to_le_bytes()[..], &7_u32.to_le_bytes()[..], 3));
    assert_eq!(&bytes[HEADER..], b"keyvalue");
    let held = store.hold(handle).unwrap();
    set(&mut store, b"key", b"other");
    assert_eq!(store.slabs.bytes(place)[0], 3, "dead, though held");
    store.release(held);
}

#[test]
fn what_comes_back_soon_after_it_left_is_kept_longer() {
    let mut store = store(4 << 20);
    let mut scan = (1_000_000_u64..).map(u64::to_le_bytes);
    set(&mut store, b"again", &[0; 500]);
    while store.get(b"again", false, NOW).is_some() {
        set(&mut store, &scan.next().unwrap(), &[0; 500]);
    }
    set(&mut store, b"again", &[0; 500]);
    for key in scan.take(20_000) {
        set(&mut store, &key, &[0; 500]);
    }
    assert!(store.get(b"again", false, NOW).is_some());
}

#[test]
fn an_item_that_is_being_read_is_not_evicted() {
    let mut store = store(2 << 20);
    set(&mut store, b"read", &[7; 1000]);
    let handle = store.get(b"read", false, NOW).unwrap().handle();
    let held = store.hold(handle).unwrap();
    for n in 0..20_000_u32 {
        set(&mut store, &n.to_le_bytes(), &[1; 1000]);
    }
    assert!(store.get(b"read", false, NOW).is_some());
    store.release(held);
}

/// Room for the longer value may have to come from the very page that the shorter one is in.
#[test]
fn an_item_can_grow_though_its_page_has_to_go_for_it() {
    let (mut stored, mut driven_out) = (0, 0);
    for target in (0..250_u32).step_by(5) {
        let mut store = store(3 << 20);
        for n in 0..290_u32 {
            set(&mut store, &n.to_le_bytes(), &[1; 9900]);
        }
        let terms = Terms { mode: Mode::Append, ..Terms::default() };
        let outcome = put(&mut store, &target.to_le_bytes(), &vec![2; 345_000], 0, terms, NOW);
        match outcome {
            Outcome::Stored(_) => {
                assert_eq!(value(&mut store, &target.to_le_bytes(), NOW).unwrap().len(), 354_900);
                stored += 1;
            }
            // The first chunk, for what is appended, may have driven it out.
            Outcome::NotStored => driven_out += 1,
            other => panic!("{target}: {other:?}"),
        }
        store.check().unwrap();
    }
    assert!(stored > 20, "{stored} stored, {driven_out} driven out before");
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, len: usize, ttl: u64, mode: u8, cas: Option<bool> },
    Get(u8),
    Delete(u8),
    Touch(u8, u64),
    Number(u8, u64),
    Add(u8, bool, u64),
    Invalidate(u8),
    Flush,
    Later(u64),
    Crawl,
    Reassign(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let ttl = prop_oneof![3 => Just(0), 1 => 1..20_u64];
    prop_oneof![
        6 => (0..24_u8, prop_oneof![0..300_usize, 0..30_000_usize], ttl.clone(), 0..8_u8, prop::option::weighted(0.2, any::<bool>()))
            .prop_map(|(key, len, ttl, mode, cas)| Op::Put { key, len, ttl, mode, cas }),
        6 => (0..24_u8).prop_map(Op::Get),
        2 => (0..24_u8).prop_map(Op::Delete),
        1 => (0..24_u8, ttl).prop_map(|(key, ttl)| Op::Touch(key, ttl)),
        1 => (0..24_u8, prop_oneof![0..20_u64, any::<u64>()]).prop_map(|(key, number)| Op::Number(key, number)),
        3 => (0..24_u8, any::<bool>(), prop_oneof![0..20_u64, any::<u64>()]).prop_map(|(key, up, by)| Op::Add(key, up, by)),
        1 => (0..24_u8).prop_map(Op::Invalidate),
        1 => Just(Op::Flush),
        2 => (1..8_u64).prop_map(Op::Later),
        1 => Just(Op::Crawl),
        1 => (0..30_usize, 0..30_usize).prop_map(|(from, to)| Op::Reassign(from, to)),
    ]
}

/// The model's knowledge of a key.
#[derive(Clone, Debug)]
struct Known {
    value: Vec<u8>,
    expiry: u64,
    version: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// With memory for all: everything is as in the map. With too little: what is there is as in the map.
    #[test]
    fn the_store_agrees_with_a_map(ops in prop::collection::vec(op(), 1..250), ample in any::<bool>()) {
        let mut store = store(if ample { 64 << 20 } else { 2 << 20 });
        let (mut model, mut now): (HashMap<u8, Known>, u64) = (HashMap::new(), NOW);
        let until = |ttl: u64, now: u64| if ttl == 0 { 0 } else { now + ttl };
        for (turn, op) in ops.into_iter().enumerate() {
            model.retain(|_, known| known.expiry == 0 || known.expiry > now);
            if !ample {
                model.retain(|key, _| store.get(&[*key], false, now).is_some());
            }
            match op {
                Op::Put { key, len, ttl, mode, cas } => {
                    let value = vec![turn as u8 | 0x80; len];
                    let mode = [Mode::Set, Mode::Set, Mode::Set, Mode::Set, Mode::Add, Mode::Replace, Mode::Append, Mode::Prepend][usize::from(mode)];
                    let Ok(mut writer) = store.reserve(&[key], len, 0, until(ttl, now), now) else { prop_assert!(!ample); continue };
                    writer.value().copy_from_slice(&value);
                    if !ample && store.get(&[key], false, now).is_none() {
                        model.remove(&key);
                    }
                    let known = model.get(&key).cloned();
                    let cas = cas.map(|right| known.as_ref().map_or(1, |known| known.version) + u64::from(!right));
                    let outcome = store.publish(writer, Terms { mode, cas, ..Terms::default() }, now);
                    let expected = match (&known, cas, mode) {
                        (None, Some(_), _) => Outcome::NotFound,
                        (Some(known), Some(cas), _) if cas != known.version => Outcome::Exists,
                        (Some(_), _, Mode::Add) | (None, _, Mode::Replace | Mode::Append | Mode::Prepend) => Outcome::NotStored,
                        _ => Outcome::Stored(0),
                    };
                    match outcome {
                        Outcome::Stored(version) => {
                            prop_assert_eq!(expected, Outcome::Stored(0));
                            let (value, expiry) = match (mode, known) {
                                (Mode::Append, Some(known)) => ([known.value, value].concat(), known.expiry),
                                (Mode::Prepend, Some(known)) => ([value, known.value].concat(), known.expiry),
                                _ => (value, until(ttl, now)),
                            };
                            model.insert(key, Known { value, expiry, version });
                        }
                        Outcome::Refused(Refused::TooLarge) => prop_assert!(matches!(mode, Mode::Append | Mode::Prepend)),
                        Outcome::Refused(_) => prop_assert!(!ample),
                        other => prop_assert_eq!(other, expected),
                    }
                }
                Op::Get(key) => {
                    let found = store.get(&[key], true, now).map(|view| (view.value.to_vec(), view.version, view.expiry));
                    prop_assert_eq!(found, model.get(&key).map(|known| (known.value.clone(), known.version, known.expiry)));
                }
                Op::Delete(key) => prop_assert_eq!(store.delete(&[key], None, now) == Deleted::Done, model.remove(&key).is_some()),
                Op::Touch(key, ttl) => {
                    prop_assert_eq!(store.touch(&[key], until(ttl, now), now).is_some(), model.contains_key(&key));
                    if let Some(known) = model.get_mut(&key) { known.expiry = until(ttl, now); }
                }
                Op::Number(key, number) => {
                    let value = number.to_string().into_bytes();
                    if let Outcome::Stored(version) = set_until(&mut store, &[key], &value, 0, now) {
                        model.insert(key, Known { value, expiry: 0, version });
                    }
                }
                Op::Add(key, up, by) => {
                    let before = model.get(&key).map(|known| std::str::from_utf8(&known.value).ok().and_then(|text| text.parse::<u64>().ok()));
                    match (store.add(&[key], (up, by), (None, None), None, now), before) {
                        (Sum::NotFound, None) | (Sum::NoNumber, Some(None)) => {}
                        (Sum::Done { number, version, .. }, Some(Some(old))) => {
                            prop_assert_eq!(number, if up { old.wrapping_add(by) } else { old.saturating_sub(by) });
                            let known = model.get_mut(&key).unwrap();
                            (known.value, known.version) = (number.to_string().into_bytes(), version);
                        }
                        (Sum::Refused(_), _) => prop_assert!(!ample),
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                Op::Invalidate(key) => {
                    let done = store.invalidate(&[key], None, Keep { stale: true, ..Keep::default() }, now) == Deleted::Done;
                    prop_assert_eq!(done, model.contains_key(&key));
                    if let Some(view) = store.get(&[key], false, now) {
                        prop_assert!(view.stale);
                        model.get_mut(&key).unwrap().version = view.version;
                    } else {
                        prop_assert!(!ample || !done);
                    }
                }
                Op::Flush => { store.flush(None, now); model.clear(); }
                Op::Later(seconds) => { now += seconds; store.tick(now); }
                Op::Crawl => { while !store.crawl(1000, now) {} }
                Op::Reassign(from, to) => {
                    let _ = store.reassign(Some(from), to, now);
                    if ample { model.retain(|key, _| store.get(&[*key], false, now).is_some()); }
                }
            }
        }
        if let Err(wrong) = store.check() { prop_assert!(false, "{wrong}"); }
    }
}
