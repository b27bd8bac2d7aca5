//! Leased chunks: what becomes of them, in which order, and what their fabrics are told.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::leases::nanos;
use super::*;
use rdmakv_proto::item::State;

const NOW: u64 = 1_000_000;
/// In nanoseconds.
const AT: u64 = NOW * 1_000_000_000;
const D: u64 = 1_000_000_000;
const ENDS: u64 = AT + D + D / 8;

fn store(memory: usize) -> Store {
    Store::new(&Config { memory, extra: 0, huge: false, ..Config::default() }).unwrap()
}

fn set(store: &mut Store, key: &[u8], value: &[u8]) -> Outcome {
    set_at(store, key, value, 0, NOW)
}

fn set_at(store: &mut Store, key: &[u8], value: &[u8], expiry: u64, now: u64) -> Outcome {
    match store.reserve(key, value.len(), 0, expiry, now) {
        Ok(mut writer) => {
            writer.value().copy_from_slice(value);
            store.publish(writer, Terms::default(), now)
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

fn lease(store: &mut Store, key: &[u8], at: u64) -> Result<u64, NoLease> {
    let handle = store.get(key, false, at / 1_000_000_000).ok_or(NoLease::Gone)?.handle();
    store.lease(handle, at)
}

fn extent(store: &mut Store, key: &[u8]) -> Extent {
    let handle = store.get(key, false, NOW).unwrap().handle();
    store.extent(handle)
}

fn state(store: &Store, extent: Extent) -> State {
    // A page that went to the pool has no chunks.
    store.slabs.chunk_at(extent.address).map_or(State::Free, |id| store.slabs.chunk(id).state())
}

/// The notices to a fabric.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Replaced(Extent, Extent, State, State),
    Ended(Extent, u64),
}

/// A fabric that notes what it is told; its tags go over if it is so made.
struct Fabric {
    rebinds: bool,
    clears: u64,
    open: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Exposure for Fabric {
    fn replaced(&mut self, replacement: &Replacement<'_>) -> bool {
        let (old, new) = replacement.states();
        self.told.lock().unwrap().push(Told::Replaced(replacement.old, replacement.new, old, new));
        replacement.clear_tail(self.clears);
        self.rebinds
    }
    fn is_open(&mut self, _: Extent) -> bool {
        self.open.load(Relaxed)
    }
    fn ended(&mut self, chunk: Extent, now: u64) {
        self.told.lock().unwrap().push(Told::Ended(chunk, now));
    }
}

fn attach(store: &mut Store, rebinds: bool) -> Arc<Mutex<Vec<Told>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    store.attach(Box::new(Fabric { rebinds, clears: 0, open: Arc::default(), told: told.clone() }));
    told
}

#[test]
fn leased_chunk_dies_at_once_frees_at_lease_end() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", &[7; 1000]);
    let before = extent(&mut store, b"key");
    assert_eq!(lease(&mut store, b"key", AT), Ok(ENDS));
    assert_eq!(store.delete(b"key", None, NOW), Deleted::Done);
    assert_eq!(state(&store, before), State::Dead);
    let report = store.report(NOW);
    assert_eq!((report.leased, report.leased_dead, report.leased_dead_bytes), (1, 1, before.used));
    assert_eq!(report.classes[0].used, 1);
    assert_eq!(store.sweep(ENDS - 1, 10), 0);
    store.check().unwrap();
    assert_eq!(store.sweep(ENDS, 10), 1);
    assert_eq!(state(&store, before), State::Free);
    let report = store.report(NOW);
    assert_eq!((report.leased, report.leased_dead, report.leased_dead_bytes), (0, 0, 0));
    store.check().unwrap();
}

#[test]
fn open_chunk_is_freed_only_when_closed() {
    let mut store = store(2 << 20);
    let (open, told) = (Arc::new(AtomicBool::new(true)), Arc::default());
    store.attach(Box::new(Fabric { rebinds: false, clears: 0, open: open.clone(), told: Arc::clone(&told) }));
    set(&mut store, b"key", &[7; 1000]);
    let chunk = extent(&mut store, b"key");
    lease(&mut store, b"key", AT).unwrap();
    store.delete(b"key", None, NOW);
    assert_eq!((store.sweep(ENDS, 10), store.sweep(ENDS + D / 100, 10)), (0, 0));
    assert_eq!((state(&store, chunk), told.lock().unwrap().len()), (State::Dead, 0));
    // Again and again, as long as it takes; and then soon.
    assert_eq!(store.sweep(ENDS + D, 10), 0);
    open.store(false, Relaxed);
    store.check().unwrap();
    assert_eq!(store.sweep(ENDS + D + D / 16, 10), 1);
    assert_eq!((state(&store, chunk), told.lock().unwrap().len()), (State::Free, 1));
    store.check().unwrap();
}

#[test]
fn a_lease_is_made_longer_and_never_shorter() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", b"x");
    for at in [AT, AT + 500, AT + 100] {
        assert_eq!(lease(&mut store, b"key", at), Ok(at - AT + ENDS), "what this grant says");
    }
    store.delete(b"key", None, NOW);
    assert_eq!(store.sweep(ENDS + 499, 10), 0);
    assert_eq!(store.sweep(ENDS + 500, 10), 1);
}

#[test]
fn whole_seconds_end_leases_only_afterwards() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", b"x");
    lease(&mut store, b"key", AT).unwrap();
    store.delete(b"key", None, NOW);
    store.tick(NOW + 1);
    assert_eq!(store.report(NOW).leased, 1);
    store.tick(NOW + 2);
    assert_eq!(store.report(NOW).leased, 0);
}

#[test]
fn following_tags_see_dead_old_unpublished_new() {
    let mut store = store(2 << 20);
    let (follows, stays) = (attach(&mut store, true), attach(&mut store, false));
    set(&mut store, b"key", b"old");
    let old = extent(&mut store, b"key");
    lease(&mut store, b"key", AT).unwrap();
    set(&mut store, b"key", b"new");
    let new = extent(&mut store, b"key");
    let told = vec![Told::Replaced(old, new, State::Dead, State::Unpublished)];
    assert_eq!((&*follows.lock().unwrap(), &*stays.lock().unwrap()), (&told, &told));
    assert_eq!(state(&store, new), State::Alive);
    assert_eq!(store.report(NOW).leased, 2, "the new one too, as long as the old one");
    store.sweep(ENDS, 10);
    assert_eq!(store.report(NOW).leased, 0);
    assert_eq!(follows.lock().unwrap().len(), 3);
    assert_eq!((state(&store, old), state(&store, new)), (State::Free, State::Alive));
    store.check().unwrap();
}

#[test]
fn staying_tags_keep_the_old_chunk() {
    let mut store = store(2 << 20);
    let told = attach(&mut store, false);
    set(&mut store, b"key", b"old");
    let old = extent(&mut store, b"key");
    lease(&mut store, b"key", AT).unwrap();
    set(&mut store, b"key", b"new");
    assert_eq!(store.report(NOW).leased, 1);
    store.sweep(ENDS, 10);
    assert_eq!(told.lock().unwrap().last(), Some(&Told::Ended(old, ENDS)));
    store.check().unwrap();
}

#[test]
fn what_is_not_leased_is_nobodys_business() {
    let mut store = store(2 << 20);
    let told = attach(&mut store, true);
    set(&mut store, b"key", b"old");
    set(&mut store, b"key", b"new");
    store.delete(b"key", None, NOW);
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn key_dying_twice_is_refused_until_still() {
    let mut store = store(2 << 20);
    let told = attach(&mut store, true);
    set(&mut store, b"key", b"1");
    lease(&mut store, b"key", AT + 1).unwrap();
    set(&mut store, b"key", b"2");
    set(&mut store, b"key", b"3");
    assert_eq!(told.lock().unwrap().len(), 1, "the second time its tags stay where they are");
    assert_eq!(lease(&mut store, b"key", AT + 2), Err(NoLease::Churn));
    assert_eq!(store.report(NOW).counters.leases_refused, 1);
    set(&mut store, b"key", b"4");
    assert_eq!(lease(&mut store, b"key", AT + D / 2), Err(NoLease::Churn), "it changed again");
    assert_eq!(lease(&mut store, b"key", AT + D / 2 + D - 1), Err(NoLease::Churn));
    assert!(lease(&mut store, b"key", AT + D / 2 + D).is_ok());
    store.check().unwrap();
}

#[test]
fn refused_lease_dates_the_next_death() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", b"1");
    set(&mut store, b"other", b"x");
    lease(&mut store, b"key", AT).unwrap();
    let handle = store.get(b"other", false, NOW).unwrap().handle();
    let other = store.hold(handle).unwrap();
    store.delete(b"other", None, NOW);
    // Whole seconds alone would have the first death at the begin of this second, more than one D before the second death.
    assert_eq!(store.expose(&other, AT + 9 * D / 10), Err(NoLease::Gone));
    store.release(other);
    set(&mut store, b"key", b"2");
    lease(&mut store, b"key", AT + 11 * D / 10).unwrap();
    set_at(&mut store, b"key", b"3", 0, NOW + 1);
    assert_eq!(lease(&mut store, b"key", AT + 12 * D / 10), Err(NoLease::Churn));
}

#[test]
fn leased_chunks_are_never_reused() {
    let mut store = store(2 << 20);
    let mut places = Vec::new();
    for n in 0..10_u32 {
        set(&mut store, &n.to_le_bytes(), &[n as u8; 1000]);
        lease(&mut store, &n.to_le_bytes(), AT).unwrap();
        places.push(extent(&mut store, &n.to_le_bytes()));
    }
    for n in 0..10_u32 {
        store.delete(&n.to_le_bytes(), None, NOW);
    }
    for n in 100..20_000_u32 {
        assert!(matches!(set(&mut store, &n.to_le_bytes(), &[1; 1000]), Outcome::Stored(_)));
    }
    assert!(places.iter().all(|&place| state(&store, place) == State::Dead));
    store.check().unwrap();
}

#[test]
fn eviction_takes_what_nobody_leases() {
    let mut store = store(2 << 20);
    for n in 0..10_u32 {
        set(&mut store, &n.to_le_bytes(), &[n as u8; 1000]);
        lease(&mut store, &n.to_le_bytes(), AT).unwrap();
    }
    for n in 100..20_000_u32 {
        set(&mut store, &n.to_le_bytes(), &[1; 1000]);
    }
    assert!((0..10_u32).all(|n| store.get(&n.to_le_bytes(), false, NOW).is_some()));
}

#[test]
fn fully_leased_store_revokes_some_then_refuses() {
    let mut store = store(2 << 20);
    let mut stored = 0_u32;
    while matches!(set(&mut store, &stored.to_le_bytes(), &[9; 10_000]), Outcome::Stored(_)) {
        if lease(&mut store, &stored.to_le_bytes(), AT).is_err() {
            break;
        }
        stored += 1;
    }
    assert!(stored > 100);
    let report = store.report(NOW);
    assert_eq!((report.counters.leases_revoked, report.leased_dead), (1, 1));
    for n in 0..1000_u32 {
        assert_eq!(set(&mut store, &n.to_be_bytes(), &[9; 10_000]), Outcome::Refused(Refused::NoMemory));
    }
    let report = store.report(NOW);
    assert!(report.leased_dead <= 64 && store.len() >= 100, "a bounded number waits");
    store.check().unwrap();
    assert!(matches!(set_at(&mut store, b"later", &[9; 10_000], 0, NOW + 2), Outcome::Stored(_)));
    store.check().unwrap();
}

#[test]
fn a_flush_leaves_nothing_leased_alive() {
    let mut store = store(2 << 20);
    set(&mut store, b"a", b"x");
    set(&mut store, b"b", b"x");
    let (a, b) = (extent(&mut store, b"a"), extent(&mut store, b"b"));
    lease(&mut store, b"a", AT).unwrap();
    store.flush(None, NOW);
    assert_eq!((state(&store, a), state(&store, b)), (State::Dead, State::Alive), "nobody reads the other");
    set(&mut store, b"a", b"y");
    lease(&mut store, b"a", AT).unwrap();
    let a = extent(&mut store, b"a");
    store.flush(Some(NOW + 1), NOW);
    assert_eq!(state(&store, a), State::Alive);
    store.tick(NOW + 1);
    assert_eq!(state(&store, a), State::Dead);
    store.check().unwrap();
}

#[test]
fn who_is_not_shown_an_expired_item_is_right_for_all() {
    let leased = |store: &mut Store| {
        set_at(store, b"key", b"x", NOW + 1, NOW);
        let place = extent(store, b"key");
        lease(store, b"key", AT).unwrap();
        place
    };
    let faces: [fn(&mut Store); 6] = [
        |store| assert!(store.get(b"key", true, NOW + 1).is_none()),
        |store| store.walk(None, NOW + 1, |_| panic!("it is over")),
        |store| assert!(store.walk_on(&mut Walk::default(), 100_000, NOW + 1, |_| panic!("it is over"))),
        |store| assert!(store.touch(b"key", 0, NOW + 1).is_none()),
        |store| assert_eq!(store.delete(b"key", None, NOW + 1), Deleted::NotFound),
        |store| while !store.crawl(1000, NOW + 1) {},
    ];
    for (face, ask) in faces.into_iter().enumerate() {
        let mut store = store(2 << 20);
        let place = leased(&mut store);
        ask(&mut store);
        assert_eq!(state(&store, place), State::Dead, "face {face}");
    }
    let mut store = store(2 << 20);
    set_at(&mut store, b"key", b"x", NOW + 1, NOW);
    let handle = store.get(b"key", false, NOW).unwrap().handle();
    assert_eq!(store.lease(handle, nanos(NOW + 1)), Err(NoLease::Gone), "nor is it leased");
}

#[test]
fn an_end_that_is_past_already_is_one_for_all() {
    for rebinds in [true, false] {
        let mut store = store(2 << 20);
        attach(&mut store, rebinds);
        set(&mut store, b"touched", &[1; 5000]);
        let place = extent(&mut store, b"touched");
        lease(&mut store, b"touched", AT).unwrap();
        let handle = store.touch(b"touched", 1, NOW).expect("as it was").handle();
        assert_eq!(state(&store, place), State::Dead);
        let held = store.hold(handle).expect("who touched it may still read it");
        store.sweep(ENDS, 10);
        assert_eq!(held.value(), [1; 5000]);
        store.release(held);
        assert_eq!(state(&store, place), State::Free);
        set(&mut store, b"set", b"x");
        lease(&mut store, b"set", AT).unwrap();
        set_at(&mut store, b"set", b"y", 1, NOW);
        let mut place = Place::default();
        while let Some(id) = store.slabs.next_chunk(&mut place, None) {
            assert!(!store.slabs.chunk(id).marked(chunk::LEASED) || !store.is_alive(id));
        }
        assert!(store.get(b"set", false, NOW).is_none());
        store.check().unwrap();
    }
}

#[test]
fn moved_item_rebinds_or_leaves_its_tags() {
    for rebinds in [true, false] {
        let mut store = store(8 << 20);
        let told = attach(&mut store, rebinds);
        for n in 0..40_000_u32 {
            set(&mut store, &n.to_le_bytes(), &n.to_le_bytes());
        }
        for n in (0..40_000_u32).filter(|n| n % 4 != 0) {
            store.delete(&n.to_le_bytes(), None, NOW);
        }
        let leased: Vec<u32> = (0..40_000).step_by(400).collect();
        for n in &leased {
            lease(&mut store, &n.to_le_bytes(), AT).unwrap();
        }
        let class = store.report(NOW).classes[0].class;
        for target in [5, 6, 7] {
            let _ = store.reassign(Some(class), class + target, NOW);
        }
        let told: Vec<Told> = told.lock().unwrap().clone();
        assert!(!told.is_empty(), "some page had leased items");
        assert!(told.iter().all(|told| matches!(told, Told::Replaced(_, _, State::Dead, State::Unpublished))));
        assert!(leased.iter().all(|n| store.get(&n.to_le_bytes(), false, NOW).is_some()), "none was lost");
        store.check().unwrap();
        store.tick(NOW + 2);
        assert_eq!(store.report(NOW).leased, 0);
        assert_eq!(store.report(NOW).classes.iter().map(|class| class.used).sum::<u64>(), 10_000);
        store.check().unwrap();
    }
}

#[test]
fn close_leaves_no_leased_chunk_alive() {
    let mut store = store(2 << 20);
    set(&mut store, b"a", b"x");
    set(&mut store, b"b", b"x");
    let a = extent(&mut store, b"a");
    lease(&mut store, b"a", AT).unwrap();
    store.close(NOW);
    assert_eq!(state(&store, a), State::Dead);
    assert_eq!(lease(&mut store, b"b", AT), Err(NoLease::Closed));
}

#[test]
fn chunk_dead_before_exposure_is_not_exposed() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", b"x");
    let handle = store.get(b"key", false, NOW).unwrap().handle();
    let held = store.hold(handle).unwrap();
    set(&mut store, b"key", b"y");
    assert_eq!(store.expose(&held, AT), Err(NoLease::Gone));
    store.release(held);
    let handle = store.get(b"key", false, NOW).unwrap().handle();
    let held = store.hold(handle).unwrap();
    assert_eq!(store.expose(&held, AT), Ok(ENDS));
    store.release(held);
    store.check().unwrap();
}

#[test]
fn read_reports_reach_only_item_starts() {
    let mut store = store(2 << 20);
    // Its expiry contains the byte for alive: a reader that takes the middle of a header for a begin is misled.
    set_at(&mut store, b"key", b"x", (NOW | 0xff) + 3, NOW);
    let place = extent(&mut store, b"key");
    assert!(store.seen(place.address, 1_000_000, NOW));
    let view = store.get(b"key", false, NOW).unwrap();
    assert!(view.fetched);
    assert_eq!(store.report(NOW).counters.one_sided, 1_000_000);
    let (base, len) = store.arena();
    for wrong in
        [0, 1, base as u64 - 8, place.address + 8, place.address + place.slot, base as u64 + len as u64, u64::MAX]
    {
        // So early nothing is over, whatever is taken for its end.
        assert!(!store.seen(wrong, 1, 0), "{wrong:x}");
    }
    store.delete(b"key", None, NOW);
    assert!(!store.seen(place.address, 1, NOW));
}

#[test]
fn chunk_tail_shows_no_former_bytes() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", &[0xaa; 1000]);
    let place = extent(&mut store, b"key");
    store.delete(b"key", None, NOW);
    set(&mut store, b"key", &[0xbb; 700]);
    let tail = |store: &Store, place: Extent| store.slabs.bytes(place)[place.used as usize..].to_vec();
    let next = extent(&mut store, b"key");
    if next.slot == place.slot {
        assert_eq!(next.address, place.address);
    }
    set(&mut store, b"key", &[0xbb; 990]);
    let handle = store.get(b"key", false, NOW).unwrap().handle();
    let next = store.extent(handle);
    assert!(next.address != place.address || tail(&store, next).contains(&0xaa));
    let held = store.hold(handle).unwrap();
    store.clear_tail(&held, u64::MAX);
    store.release(held);
    assert!(tail(&store, next).iter().all(|&byte| byte == 0));
    assert_eq!(store.get(b"key", false, NOW).unwrap().value, [0xbb; 990]);
    store.check().unwrap();
}

#[test]
fn item_image_equals_one_sided_bytes() {
    let mut store = store(2 << 20);
    set(&mut store, b"key", b"value");
    let handle = store.get(b"key", false, NOW).unwrap().handle();
    let mut image = Vec::new();
    store.image(handle, &mut image);
    assert_eq!(image, store.slabs.bytes(store.extent(handle))[..HEADER + 8]);
}

#[test]
fn store_releases_foreign_memory_last() {
    let config = Config { memory: 2 << 20, extra: 0, ..Config::default() };
    let kept = Arc::new(());
    let make = |len: usize| {
        let pages = vec![[0_u64; 512]; len / 4096 + 1].into_boxed_slice();
        let pages = Box::leak(pages);
        let aligned = (pages.as_mut_ptr() as usize).next_multiple_of(4096) as *mut u8;
        #[expect(unsafe_code, reason = "memory for a store")]
        // SAFETY: zeros that are never freed and that no other code knows, from a multiple of 4096 on.
        let memory = unsafe { Memory::new(std::ptr::NonNull::new(aligned).unwrap(), len, Box::new(kept.clone())) };
        Ok(memory)
    };
    let mut store = Store::with_memory(&config, make).unwrap();
    assert_eq!(store.backing(), Backing::Given);
    set(&mut store, b"key", b"value");
    let handle = store.get(b"key", false, NOW).unwrap().handle();
    let held = store.hold(handle).unwrap();
    drop(store);
    assert_eq!((held.value(), Arc::strong_count(&kept)), (&b"value"[..], 2));
    drop(held);
    assert_eq!(Arc::strong_count(&kept), 1);
    let short = Store::with_memory(&config, |len| make(len - 4096));
    assert!(short.is_err());
}

#[test]
fn leases_last_no_longer_than_they_may() {
    let config = Config { lease: Duration::from_secs(3600), huge: false, ..Config::default() };
    let mut store = Store::new(&config).unwrap();
    set(&mut store, b"key", b"x");
    assert_eq!(lease(&mut store, b"key", AT), Ok(AT + lasting(LONGEST).as_nanos() as u64));
}
