//! Rights of peers by memory windows: exact, and ended with the lease.

#![allow(unsafe_code, reason = "leases are acquired for no transfer, and one test forks")]

mod common;

use common::*;
use mrrc::cache::{BuildError, Finding, NoKey, Unusable};
use mrrc::invalidation::Explicit;
use mrrc::registrar::rails::Rails;
use mrrc::registrar::windows::{PeerWindows, Remote};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, AcquireError, Cache, Lease, PAGE, PageRange};
use proptest::prelude::*;
use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const READ: Access = Access::LOCAL.union(Access::REMOTE_READ);
const WRITE: Access = Access::LOCAL.union(Access::REMOTE_WRITE);

/// A window, and the number of the region that it is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    region: u64,
    address: usize,
    length: usize,
    rights: Access,
}

/// The windows of a [`Card`].
#[derive(Default)]
struct Windows {
    open: Mutex<HashMap<u32, Open>>,
    keys: AtomicU32,
    /// No window is bound, or none is unbound.
    binds_fail: AtomicBool,
    unbinds_fail: AtomicBool,
    /// A second window is a panic.
    panics: AtomicBool,
}

impl Windows {
    fn table(&self) -> MutexGuard<'_, HashMap<u32, Open>> {
        self.open.lock().unwrap()
    }

    fn opens(&self, key: Option<u32>) -> Option<Open> {
        self.table().get(&key?).copied()
    }

    fn open(&self) -> usize {
        self.table().len()
    }
}

// SAFETY: there is no device; keys are counted up, and forgotten at the end.
unsafe impl PeerWindows<Made> for Windows {
    fn rights(&self) -> Access {
        Access::REMOTE_READ | Access::REMOTE_WRITE
    }

    fn bind(&self, region: &Made, address: usize, length: usize, rights: Access) -> io::Result<u32> {
        if self.binds_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        assert!(!region.access.is_remote(), "a region has rights for peers itself");
        let bytes = PageRange::of_bytes(address as u64, length as u64).unwrap();
        assert!(region.range.contains(bytes), "{bytes} is not in {}", region.range);
        assert!(!self.panics.load(Ordering::Relaxed) || self.open() == 0, "a second window");
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        self.table().insert(key, Open { region: region.key, address, length, rights });
        Ok(key)
    }

    fn unbind(&self, key: u32) -> io::Result<()> {
        if self.unbinds_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        self.table().remove(&key).map(|_| ()).ok_or_else(|| panic!("{key} ends twice"))
    }

    fn trouble(&self) -> Option<String> {
        self.binds_fail.load(Ordering::Relaxed).then(|| "the queue pair fails".into())
    }
}

/// A device with windows.
#[derive(Clone, Default)]
struct Card {
    plain: Plain,
    windows: Arc<Windows>,
    limits: Limits,
}

// SAFETY: there is no device; keys are counted up.
unsafe impl Registrar for Card {
    type Registration = Made;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Made> {
        self.plain.register(range, access)
    }

    fn deregister(&self, batch: &mut Vec<Registered<Made>>) -> io::Result<()> {
        for Registered { registration, .. } in batch.iter() {
            let is_open = self.windows.table().values().any(|open| open.region == registration.key);
            assert!(!is_open, "a region ends before its window");
        }
        self.plain.deregister(batch)
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn ready_windows(&mut self) -> io::Result<Arc<dyn PeerWindows<Made>>> {
        Ok(self.windows.clone())
    }

    fn name(&self) -> &'static str {
        "card"
    }
}

fn cache_of(card: &Card, pages: u64) -> Cache<Card> {
    let builder = Cache::builder(card.clone()).capacity_pages(pages).monitor(Explicit).ignore_environment();
    builder.remote(Remote::Windows).build().unwrap()
}

fn keys(lease: &Lease<Card>) -> Vec<Option<u32>> {
    lease.segments().map(|part| part.window()).collect()
}

#[test]
fn key_opens_the_bytes_of_the_lease_until_its_end() {
    let card = Card::default();
    let (cache, windows) = (cache_of(&card, 64), &card.windows);
    let bytes = (address(2).wrapping_add(100), 5000);
    let lease = acquire_at(&cache, bytes.0, bytes.1, READ).unwrap();
    let part = lease.segments().next().unwrap();
    let opens = windows.opens(part.window()).unwrap();
    let (region, range) = (part.registration().key, part.registration().range);
    assert_eq!(opens, Open { region, address: bytes.0 as usize, length: bytes.1, rights: Access::REMOTE_READ });
    assert_eq!(range, common::range(2, 2));
    drop(lease);
    assert_eq!(windows.open(), 0, "the key opens something after the lease");

    // The pages stay, for peers and for local use, and the next key is another.
    let again = acquire_at(&cache, bytes.0, 64, WRITE).unwrap();
    assert_eq!(windows.opens(keys(&again)[0]).unwrap().rights, Access::REMOTE_WRITE);
    assert_ne!(keys(&again)[0], Some(0));
    let local = take(&cache, 2, 2);
    assert_eq!((keys(&local)[0], cache.counters().attempts), (None, 1));
    drop((again, local));
    assert_eq!((cache.counters().windows, cache.counters().windows_failed, windows.open()), (2, 0, 0));
    assert!(cache.counters().to_string().contains("  2  bound for peers"), "{}", cache.counters());
}

#[test]
fn each_segment_has_its_window() {
    let card = Card::default();
    let cache = cache_of(&card, 64);
    drop((take(&cache, 0, 2), take(&cache, 4, 2)));
    let lease = acquire_at(&cache, address(1).wrapping_add(8), 3 * PAGE as usize, READ).unwrap();
    let opens: Vec<_> = keys(&lease).into_iter().map(|key| card.windows.opens(key).unwrap()).collect();
    let at = |page| address(page) as usize;
    let bytes: Vec<_> = opens.iter().map(|open| (open.address, open.length)).collect();
    assert_eq!(bytes, [(at(1) + 8, 4088), (at(2), 8192), (at(4), 8)]);
    let part = lease.segment_for(4088, 8192).unwrap();
    assert_eq!(part.window(), keys(&lease)[1]);
    assert!(matches!(lease.segment_for(0, 8192), Err(NoKey::Straddles { at: 4088, .. })));
    drop(lease);
    assert_eq!(card.windows.open(), 0);
}

#[test]
fn every_way_to_a_lease_binds_and_none_that_warms() {
    let card = Card::default();
    let (cache, windows) = (cache_of(&card, 256), &card.windows);
    warm_at(&cache, address(0), 4096, READ).unwrap();
    // SAFETY: nothing is touched: no page is made present.
    let warmed = unsafe {
        let how = mrrc::cache::Warm::new().prefault(false);
        cache.warm_with(address(1), 4096, READ, &how, |_, _| ControlFlow::Continue(()))
    };
    warmed.unwrap();
    assert_eq!((cache.counters().attempts, cache.counters().windows), (2, 0));

    let memory = vec![0_u8; 64 * 4096];
    let list: Vec<_> = memory.chunks(8 * 4096).map(|row| (row.as_ptr(), 7 * 4096)).collect();
    // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
    let leases = unsafe { cache.acquire_list(&list, READ) }.unwrap();
    for (lease, (address, _)) in leases.iter().zip(&list) {
        assert_eq!(windows.opens(keys(lease)[0]).unwrap().address, *address as usize);
    }
    // Buffers for peers share a region where buffers for local use would.
    assert_eq!(cache.counters().attempts, 3);
    drop(leases);

    let mut pending = begin_at(&cache, address(60), 4096, READ).unwrap();
    assert_eq!(windows.open(), 0);
    windows.binds_fail.store(true, Ordering::Relaxed);
    assert!(matches!(pending.finish(), Err(AcquireError::Window { .. })));
    windows.binds_fail.store(false, Ordering::Relaxed);
    let lease = pending.finish().unwrap();
    assert!(matches!(pending.finish(), Err(AcquireError::Finished { .. })));
    assert_eq!(windows.opens(keys(&lease)[0]).unwrap().length, 4096);
    drop((pending, lease));

    for _ in 0..2 {
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        let lease = unsafe { cache.acquire_blocks(address(70), 8192, 1024, READ) }.unwrap();
        assert_eq!(windows.opens(keys(&lease)[0]).unwrap().length, 8192);
    }
    let arena = cache.arena(3 * 4096).unwrap();
    for _ in 0..2 {
        let lease = arena.acquire(10..20, READ).unwrap();
        assert_eq!(windows.opens(keys(&lease)[0]).unwrap().length, 10);
    }
    drop(arena);
    assert_eq!(windows.open(), 0);
}

#[test]
fn explain_tells_of_windows() {
    let card = Card::default();
    let cache = cache_of(&card, 64);
    let explain = |access| cache.explain(address(0), 4096, access);
    assert_eq!(
        explain(READ).findings(),
        [Finding::Missing { part: range(0, 1) }, Finding::Window { rights: Access::REMOTE_READ }]
    );
    drop(take(&cache, 0, 1));
    assert!(explain(READ).is_hit() && explain(READ).to_string().contains("gives peers remote-read, until the lease"));
    assert_eq!(explain(Access::LOCAL).findings().len(), 1);
    let atomic = Access::LOCAL | Access::REMOTE_ATOMIC;
    assert_eq!(explain(atomic).findings(), [Finding::NotGranted { lacking: Access::REMOTE_ATOMIC }]);
    assert!(matches!(ask(&cache, 0, 1, atomic), Err(AcquireError::Rights { .. })));
    card.windows.binds_fail.store(true, Ordering::Relaxed);
    assert!(explain(READ).to_string().contains("no memory window can be bound: the queue pair fails"));
    assert!(explain(Access::LOCAL).is_hit());
    // What is refused before any window is bound is told of first.
    let only_read = Access::LOCAL_READ | Access::REMOTE_WRITE;
    assert_eq!(explain(only_read).findings(), [Finding::NeedsLocalWrite { rights: Access::REMOTE_WRITE }]);
    let too_large = cache.explain(address(0), 65 * PAGE as usize, READ);
    assert!(matches!(too_large.findings(), [Finding::TooLarge { .. }]), "{too_large}");
}

#[test]
fn refused_window_leases_nothing_and_keeps_the_region() {
    let card = Card::default();
    let cache = cache_of(&card, 64);
    card.windows.binds_fail.store(true, Ordering::Relaxed);
    let error = ask(&cache, 0, 1, READ).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, AcquireError::Window { .. }) && text.contains("no memory window of card gives"), "{text}");
    assert!(is_hit(&cache, 0, 1));
    assert_eq!((cache.counters().windows_failed, cache.counters().attempts), (1, 1));
    card.windows.binds_fail.store(false, Ordering::Relaxed);
    let only_read = Access::LOCAL_READ | Access::REMOTE_WRITE;
    assert!(ask(&cache, 9, 1, only_read).unwrap_err().to_string().contains("ask for local-write too"));
    cache.flush().unwrap();
    assert_eq!(cache.usage().pages, 0, "a refused request holds its region");
}

#[test]
fn ready_segments_stay_held_after_a_refused_window() {
    let card = Card::default();
    let cache = cache_of(&card, 64);
    drop(take(&cache, 0, 2));
    let mut pending = begin_at(&cache, address(0), 4 * PAGE as usize, READ).unwrap();
    assert_eq!(pending.ready().map(|part| part.len()).collect::<Vec<_>>(), [2 * PAGE as usize]);
    card.windows.binds_fail.store(true, Ordering::Relaxed);
    // What is flushed is not found any more, so the next attempt registers it again.
    for pages in [4, 8] {
        assert!(matches!(pending.finish(), Err(AcquireError::Window { .. })));
        cache.flush().unwrap();
        assert_eq!(cache.usage().pages, pages, "what transfers may use has left");
    }
    card.windows.binds_fail.store(false, Ordering::Relaxed);
    let lease = pending.finish().unwrap();
    assert_eq!((keys(&lease).len(), card.windows.open()), (1, 1));
    drop((lease, pending));
    cache.flush().unwrap();
    assert_eq!((cache.usage().pages, card.windows.open()), (0, 0));
}

#[test]
fn errors_of_windows_name_one_remedy() {
    let build = |source| BuildError::Windows { registrar: "card", source }.to_string();
    let none = build(io::Error::new(io::ErrorKind::Unsupported, "it has none"));
    assert!(none.ends_with("card: it has none: use another device, or Remote::Trusted with a short `max_unheld` if peers may keep their rights that long"));
    let forked = build(io::Error::new(io::ErrorKind::InvalidInput, "made before the fork: open one here"));
    assert!(forked.ends_with("card: made before the fork: open one here"), "{forked}");

    let range = PageRange::new(1, 1).unwrap();
    let of =
        |source| AcquireError::Window { range, rights: Access::REMOTE_READ, registrar: "card", source }.to_string();
    let system = |number| of(io::Error::from_raw_os_error(number));
    assert!(system(libc::ENOMEM).ends_with("end leases that peers are done with"));
    // It has the same kind as the library's own refusals.
    assert!(system(libc::EINVAL).ends_with("Remote::Trusted takes no windows"));
    let cache = cache_of(&Card::default(), 64);
    let error = ask(&cache, 0, 1, Access::LOCAL_READ | Access::REMOTE_WRITE).unwrap_err().to_string();
    assert!(error.ends_with("ask for local-write too"), "{error}");
}

#[test]
fn panic_of_a_registrar_leaves_no_window() {
    let card = Card::default();
    let cache = cache_of(&card, 64);
    drop((take(&cache, 0, 2), take(&cache, 4, 2)));
    card.windows.panics.store(true, Ordering::Relaxed);
    let ask = || ask(&cache, 0, 6, READ);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).is_err());
    assert_eq!(card.windows.open(), 0, "a window has no lease");
    cache.flush().unwrap();
    assert_eq!(cache.usage().pages, 0);
}

#[test]
fn region_of_a_bound_window_stays_registered() {
    let card = Card::default();
    let (cache, windows) = (cache_of(&card, 64), &card.windows);
    let mut lease = ask(&cache, 0, 1, READ).unwrap();
    let key = keys(&lease)[0];
    windows.unbinds_fail.store(true, Ordering::Relaxed);
    assert_eq!(lease.end_windows().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert_eq!(keys(&lease)[0], key);
    windows.unbinds_fail.store(false, Ordering::Relaxed);
    lease.end_windows().unwrap();
    assert_eq!((keys(&lease)[0], windows.open()), (None, 0));
    lease.end_windows().unwrap();
    drop(lease);

    let lease = ask(&cache, 0, 1, READ).unwrap();
    windows.unbinds_fail.store(true, Ordering::Relaxed);
    drop(lease);
    cache.flush().unwrap();
    assert_eq!((cache.usage().pages, windows.open()), (1, 1), "peers reach pages that the device does not know");
    assert_eq!(cache.counters().windows_failed, 2);
}

#[test]
fn registrar_without_windows_makes_no_cache() {
    let builder = Cache::builder(device()).monitor(Explicit).ignore_environment().remote(Remote::Windows);
    let error = builder.build().unwrap_err();
    assert!(matches!(error, BuildError::Windows { .. }));
    assert!(error.to_string().contains("has no memory windows: use another device, or Remote::Trusted"), "{error}");
    // Each of these has windows, and no other device is the remedy.
    let rails = Rails::new(vec![Card::default(), Card::default()]).unwrap();
    let error =
        Cache::builder(rails).monitor(Explicit).ignore_environment().remote(Remote::Windows).build().unwrap_err();
    assert!(error.to_string().ends_with("has no memory windows for several devices: make a cache for each"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn child_unbinds_nothing() {
    let card = Card::default();
    let cache = cache_of(&card, 64);
    let mut lease = ask(&cache, 0, 1, READ).unwrap();
    // Windows of a child cannot be bound: that is not the reason to give.
    card.windows.binds_fail.store(true, Ordering::Relaxed);
    // SAFETY: the child looks, drops and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let explained = cache.explain(address(0), 4096, READ);
        let is_told = explained.findings() == [Finding::Unusable(Unusable::Forked)];
        let ends = is_told && lease.end_windows().is_ok() && lease.segments().next().is_none();
        drop(lease);
        // SAFETY: the process ends without its parent's destructors.
        unsafe { libc::_exit(if ends && card.windows.open() == 1 { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: our child, and an integer to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(card.windows.opens(keys(&lease)[0]).is_some());
}

#[test]
fn windows_of_threads_end_with_their_leases() {
    let card = Card::default();
    let cache = cache_of(&card, 24);
    let windows = &card.windows;
    std::thread::scope(|threads| {
        for thread in 0..4_u64 {
            let cache = &cache;
            threads.spawn(move || {
                let mut last = thread;
                let mut below = |most: u64| {
                    last = last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (last >> 33) % most
                };
                for _ in 0..1500 {
                    let (at, length) =
                        (address(below(20)).wrapping_add(below(PAGE) as usize), 1 + below(3 * PAGE) as usize);
                    if below(16) == 0 {
                        cache.invalidate(at, length).unwrap();
                    }
                    if below(64) == 0 {
                        // Requests of all threads are refused for a while.
                        windows.binds_fail.fetch_xor(true, Ordering::Relaxed);
                    }
                    let Ok(lease) = acquire_at(cache, at, length, READ) else { continue };
                    let mut next = at as usize;
                    for part in lease.segments() {
                        let opens = windows.opens(part.window()).unwrap();
                        assert_eq!((opens.address, opens.length), (next, part.len()));
                        assert_eq!(opens.region, part.registration().key);
                        next += part.len();
                    }
                    assert_eq!(next, at as usize + length);
                    let keys = keys(&lease);
                    drop(lease);
                    assert!(keys.into_iter().all(|key| windows.opens(key).is_none()));
                }
            });
        }
    });
    assert_eq!(windows.open(), 0);
    cache.flush().unwrap();
    assert_eq!(cache.usage().pages, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Take { page: u64, pages: u64, offset: usize, for_peers: bool },
    Drop(usize),
    End(usize),
    Invalidate(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u64..40, 1_u64..6, 0_usize..4096, any::<bool>())
            .prop_map(|(page, pages, offset, for_peers)| Step::Take { page, pages, offset, for_peers }),
        4 => (0_usize..16).prop_map(Step::Drop),
        1 => (0_usize..16).prop_map(Step::End),
        1 => (0_u64..40).prop_map(Step::Invalidate),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In a small cache, where regions are evicted, merged, divided and invalidated all the time. The card checks that no region
    /// ends before its windows.
    #[test]
    fn windows_are_those_of_the_leases(steps in steps(), one_segment in any::<bool>()) {
        let card = Card::default();
        let builder = Cache::builder(card.clone()).capacity_pages(12).monitor(Explicit).ignore_environment();
        let most = if one_segment { 1 } else { usize::MAX };
        let cache = builder.remote(Remote::Windows).max_segments(most).build().unwrap();
        let mut leases: Vec<(Lease<Card>, bool)> = Vec::new();
        for step in steps {
            match step {
                Step::Take { page, pages, offset, for_peers } => {
                    let length = (pages * PAGE) as usize - offset;
                    let access = if for_peers { READ } else { Access::LOCAL };
                    if let Ok(lease) = acquire_at(&cache, address(page).wrapping_add(offset), length, access) {
                        leases.push((lease, for_peers));
                    }
                }
                Step::Drop(which) if !leases.is_empty() => drop(leases.swap_remove(which % leases.len())),
                Step::End(which) if !leases.is_empty() => {
                    let which = which % leases.len();
                    leases[which].0.end_windows().unwrap();
                    leases[which].1 = false;
                }
                Step::Invalidate(page) => cache.invalidate(address(page), 2 * PAGE as usize).unwrap(),
                _ => {}
            }
            let mut bound = 0;
            for (lease, for_peers) in &leases {
                for part in lease.segments() {
                    let opens = card.windows.opens(part.window());
                    let region = part.registration().key;
                    let (address, length) = (part.address() as usize, part.len());
                    let expected = Open { region, address, length, rights: Access::REMOTE_READ };
                    prop_assert_eq!(opens, for_peers.then_some(expected));
                    bound += usize::from(*for_peers);
                }
            }
            prop_assert_eq!(card.windows.open(), bound, "a window belongs to no lease");
        }
        drop(leases);
        prop_assert_eq!(card.windows.open(), 0);
    }
}
