//! `explain` says why, and changes nothing.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::cache::{Explanation, Finding};
use mrrc::cost::Linear;
use mrrc::invalidation::Unwatched;
use mrrc::registrar::{Limits, Registrar};
use mrrc::testing::{AddressSpace, Event, FakeMonitor, FakeNic, Gate, Model, Stage};
use mrrc::{Access, Cache, PAGE, RangeError};
use std::thread;
use std::time::Duration;

const REMOTE: Access = Access::LOCAL.union(Access::REMOTE_READ);

fn explain<R: Registrar>(cache: &Cache<R>, start: u64, pages: u64, access: Access) -> Explanation {
    let state = || {
        let mut counters = cache.counters();
        // It grows while a region that was invalidated waits for its end.
        counters.longest_dead = Duration::ZERO;
        (counters, cache.usage())
    };
    let before = state();
    let explanation = cache.explain(address(start), (pages * PAGE) as usize, access);
    assert_eq!(state(), before, "nothing is decided or counted");
    assert_eq!(explanation.to_string().lines().count(), explanation.findings().len(), "{explanation}");
    explanation
}

#[track_caller]
fn says<R: Registrar>(cache: &Cache<R>, start: u64, pages: u64, access: Access, findings: &[Finding]) {
    assert_eq!(explain(cache, start, pages, access).findings(), findings);
}

#[test]
fn a_hit_names_its_region() {
    let cache = cache(&device(), 64);
    drop(take(&cache, 0, 8));
    drop(ask(&cache, 20, 4, REMOTE).unwrap());
    says(&cache, 2, 3, Access::LOCAL, &[Finding::Hit { region: range(0, 8), access: Access::LOCAL }]);
    says(&cache, 20, 4, Access::LOCAL_READ, &[Finding::Hit { region: range(20, 4), access: REMOTE }]);
    assert!(explain(&cache, 2, 3, Access::LOCAL).is_hit());
}

#[test]
fn parts_are_told_in_their_order() {
    let cache = cache(&device(), 64);
    drop((take(&cache, 2, 2), take(&cache, 4, 4)));
    let covered = |start, pages| Finding::Covered { part: range(start, pages), region: range(start, pages) };
    let missing = |start, pages| Finding::Missing { part: range(start, pages) };
    says(&cache, 0, 10, Access::LOCAL, &[missing(0, 2), covered(2, 2), covered(4, 4), missing(8, 2)]);
    says(&cache, 2, 6, Access::LOCAL, &[covered(2, 2), covered(4, 4)]);
    assert!(explain(&cache, 2, 6, Access::LOCAL).is_hit() && !explain(&cache, 0, 10, Access::LOCAL).is_hit());
}

#[test]
fn rights_that_a_region_lacks_are_named() {
    let cache = cache(&device(), 64);
    drop(ask(&cache, 0, 8, REMOTE).unwrap());
    let lacking = Finding::Lacking { part: range(2, 2), region: range(0, 8), lacking: Access::REMOTE_WRITE };
    says(&cache, 2, 2, REMOTE | Access::REMOTE_WRITE, &[lacking]);
    // A local region is of another class: to a peer it is nothing.
    drop(take(&cache, 20, 4));
    says(&cache, 20, 4, REMOTE, &[Finding::Missing { part: range(20, 4) }]);
}

#[test]
fn what_is_refused_is_said_to_be() {
    let device = device();
    device.grant(Access::LOCAL);
    device.limit(Limits { region_pages: Some(8), regions: Some(4), ..Limits::NONE });
    let cache = builder(&device, 64).max_segments(2).build().unwrap();
    says(&cache, 0, 1, Access::REMOTE_READ, &[Finding::NotGranted { lacking: Access::REMOTE_READ }]);
    says(&cache, 0, 65, Access::LOCAL, &[Finding::TooLarge { needed: 65, limit: 64, unit: "pages" }]);
    says(&cache, 0, 17, Access::LOCAL, &[Finding::TooLarge { needed: 3, limit: 2, unit: "segments" }]);
    says(&cache, 0, 0, Access::LOCAL, &[Finding::Range(RangeError::Empty { start: BASE * PAGE })]);
    assert_eq!(cache.explain(std::ptr::null(), 1, Access::LOCAL).findings().len(), 1);
}

#[test]
fn who_would_have_to_leave_is_counted() {
    let cache = builder(&device(), 64).max_regions(16).build().unwrap();
    fill(&cache, 15, 4);
    says(&cache, 100, 4, Access::LOCAL, &[Finding::Missing { part: range(100, 4) }]);
    drop(take(&cache, 60, 4));
    let missing = Finding::Missing { part: range(100, 4) };
    says(&cache, 100, 4, Access::LOCAL, &[missing, Finding::NoRoom { pages: 4, regions: 1 }]);
}

#[test]
fn what_cannot_leave_does_not_leave() {
    let cache = builder(&device(), 64).max_regions(16).build().unwrap();
    fill(&cache, 16, 4);
    let held: Vec<_> = (0..15).map(|region| take(&cache, region * 4, 4)).collect();
    let missing = |pages| Finding::Missing { part: range(100, pages) };
    says(&cache, 100, 4, Access::LOCAL, &[missing(4), Finding::NoRoom { pages: 4, regions: 1 }]);
    says(&cache, 100, 8, Access::LOCAL, &[missing(8), Finding::AllInUse { pages: 4, regions: 0 }]);
    // The one that is free serves the request itself.
    let covered = Finding::Covered { part: range(60, 4), region: range(60, 4) };
    let beside = Finding::Missing { part: range(64, 4) };
    says(&cache, 60, 8, Access::LOCAL, &[covered, beside, Finding::AllInUse { pages: 4, regions: 1 }]);
    let last = take(&cache, 60, 4);
    says(&cache, 100, 1, Access::LOCAL, &[missing(1), Finding::AllInUse { pages: 1, regions: 1 }]);
    let said = explain(&cache, 100, 1, Access::LOCAL).to_string();
    assert!(said.contains("lacks 1 page and 1 region,") && !said.contains("leave first"), "{said}");
    assert!(ask(&cache, 100, 1, Access::LOCAL).is_err(), "and so it is");
    drop((held, last));
    assert!(ask(&cache, 100, 8, Access::LOCAL).is_ok());
}

#[test]
fn a_change_that_the_program_told_of_is_seen() {
    let cache = cache(&device(), 64);
    drop((take(&cache, 0, 4), take(&cache, 8, 4)));
    let change = cache.begin_change(address(2), PAGE as usize).unwrap();
    let missing = Finding::Missing { part: range(0, 4) };
    says(&cache, 0, 4, Access::LOCAL, &[missing.clone(), Finding::Announced { part: range(0, 4) }]);
    says(&cache, 8, 4, Access::LOCAL, &[Finding::Hit { region: range(8, 4), access: Access::LOCAL }]);
    drop(change);
    says(&cache, 0, 4, Access::LOCAL, &[missing]);
}

#[test]
#[cfg(all(feature = "io-uring", target_os = "linux"))]
fn unmapped_is_refused_with_one_reason() {
    use mrrc::registrar::io_uring::IoUringBuffers;
    let ring = io_uring::IoUring::new(8).map_err(|error| error.to_string());
    let table = ring.and_then(|ring| IoUringBuffers::new(&ring, 8).map_err(|error| error.to_string()));
    let cache = table.and_then(|table| {
        let builder =
            Cache::builder(table).ignore_environment().capacity_pages(4).policy(mrrc::policy::PolicyKind::Mrrc);
        builder.build().map_err(|error| error.to_string())
    });
    let cache = match cache {
        Ok(cache) => cache,
        Err(error) => return println!("not run: {error}"),
    };
    let memory = vec![0_u8; 4 * PAGE as usize];
    // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
    let held = unsafe { cache.acquire(memory.as_ptr(), 3 * PAGE as usize, Access::LOCAL) };
    let why = cache.explain(std::ptr::without_provenance(PAGE as usize), 1, Access::LOCAL);
    let [Finding::Missing { .. }, Finding::NotRegistrable { why: remedy, .. }] = why.findings() else {
        panic!("{why}")
    };
    assert!(remedy.contains("0x1000 is not mapped") && !why.to_string().contains("one lease at a time"), "{why}");
    drop(held);
}

#[test]
fn a_registration_under_way_is_seen() {
    let device = device();
    let gate = gate_at(&device, |event| matches!(event, Event::Registering { .. }));
    let cache = cache(&device, 64);
    thread::scope(|threads| {
        let miss = threads.spawn(|| drop(take(&cache, 4, 4)));
        gate.await_waiting(1);
        let missing = Finding::Missing { part: range(0, 4) };
        says(&cache, 0, 8, Access::LOCAL, &[missing.clone(), Finding::UnderWay { part: range(4, 4) }]);
        cache.invalidate(address(4), 1).unwrap();
        says(&cache, 0, 4, Access::LOCAL, &[missing]);
        gate.open();
        miss.join().unwrap();
    });
}

type Faked = Cache<Model<FakeNic>>;

fn faked(monitor: &FakeMonitor, space: &AddressSpace, grace: Duration) -> Faked {
    let device = Model::over(Linear::PAPER, FakeNic::new(space));
    let builder = Cache::builder(device)
        .capacity_pages(64)
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .monitor(monitor.clone())
        .discard_grace(grace);
    builder.background(false).ignore_environment().build().unwrap()
}

#[test]
fn what_the_monitor_refuses_is_said_with_its_reason() {
    let space = AddressSpace::new(64);
    space.map(range(0, 32)).unwrap();
    let monitor = FakeMonitor::inline(&space);
    monitor.refuse(range(8, 4), Unwatched::File);
    let cache = faked(&monitor, &space, Duration::ZERO);
    let before = monitor.watches();
    let why = Finding::Unwatched { part: range(8, 2), why: Unwatched::File };
    says(&cache, 8, 2, Access::LOCAL, &[Finding::Missing { part: range(8, 2) }, why]);
    assert!(explain(&cache, 8, 2, Access::LOCAL).to_string().contains("truncation"));
    says(&cache, 0, 2, Access::LOCAL, &[Finding::Missing { part: range(0, 2) }]);
    let after = monitor.watches();
    assert_eq!(after.0 - after.1, before.0 - before.1, "no watch is left behind");
}

#[test]
fn discarded_range_reports_the_time_left() {
    let space = AddressSpace::new(64);
    space.map(range(0, 32)).unwrap();
    let monitor = FakeMonitor::inline(&space);
    let cache = faked(&monitor, &space, Duration::from_secs(1000));
    drop(take(&cache, 0, 8));
    space.discard(range(2, 2)).unwrap();
    let explanation = explain(&cache, 0, 8, Access::LOCAL);
    let [Finding::Missing { part }, Finding::Discarded { part: discarded, left }] = explanation.findings() else {
        panic!("{explanation}")
    };
    assert_eq!((*part, *discarded), (range(0, 8), range(2, 2)));
    assert!(*left > Duration::from_secs(900) && *left <= Duration::from_secs(1000));
}

#[test]
fn a_change_that_is_being_dealt_with_is_seen() {
    let space = AddressSpace::new(64);
    space.map(range(0, 32)).unwrap();
    let monitor = FakeMonitor::stepped(&space);
    let cache = faked(&monitor, &space, Duration::ZERO);
    drop(take(&cache, 0, 4));
    drop(take(&cache, 8, 4));
    let gate = Gate::closed();
    let held = gate.clone();
    monitor.on_stage(move |stage| {
        if stage == Stage::Applied {
            held.pass();
        }
    });
    thread::scope(|threads| {
        threads.spawn(|| space.unmap(range(0, 4)));
        monitor.await_pending(1);
        let stepping = threads.spawn(|| monitor.step());
        gate.await_waiting(1);
        let explanation = cache.explain(address(0), 4 * PAGE as usize, Access::LOCAL);
        let other = cache.explain(address(8), 1, Access::LOCAL);
        gate.open();
        stepping.join().unwrap();
        let [Finding::Stale { part }, Finding::Changing, Finding::NotRegistrable { part: unmapped, .. }] =
            explanation.findings()
        else {
            panic!("{explanation}")
        };
        assert_eq!([*part, *unmapped], [range(0, 4); 2]);
        assert!(!other.is_hit(), "every request waits for it");
    });
    assert!(explain(&cache, 8, 4, Access::LOCAL).is_hit());
}

#[test]
fn explain_predicts_hits_exactly() {
    let device = device();
    let cache = cache(&device, 64);
    let mut numbers = Numbers(3);
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..2000 {
        let (start, pages) = (numbers.below(100), numbers.below(8) + 1);
        let access = [Access::LOCAL_READ, Access::LOCAL, REMOTE][numbers.below(3) as usize];
        let told = explain(&cache, start, pages, access).is_hit();
        let before = device.counts().reg_attempts;
        drop(ask(&cache, start, pages, access).unwrap());
        assert_eq!(told, device.counts().reg_attempts == before, "{start} {pages} {access}");
        *(if told { &mut hits } else { &mut misses }) += 1;
    }
    assert!(hits > 100 && misses > 100);
}

#[test]
fn with_one_key_one_region_has_to_serve() {
    let cache = builder(&device(), 64).max_segments(1).build().unwrap();
    drop((take(&cache, 0, 4), take(&cache, 4, 8)));
    says(&cache, 2, 4, Access::LOCAL, &[Finding::Missing { part: range(2, 4) }]);
    assert!(!is_hit(&cache, 2, 4) && is_hit(&cache, 2, 4));
}
