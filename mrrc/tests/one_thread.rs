//! A cache that one thread uses, without a background thread: it counts what a bare core counts, and its registrations live
//! as long as its leases.

#![allow(unsafe_code, reason = "memory is acquired by address")]

#[path = "common/reference.rs"]
mod reference;

use mrrc::cache::{Builder, Unusable};
use mrrc::cost::Linear;
use mrrc::invalidation::Explicit;
use mrrc::policy::{Granule, Keeps, Matching, Overlap, PolicyKind};
use mrrc::registrar::{Limits, Registrar};
use mrrc::testing::{AddressSpace, Event, FakeNic, Fault, Landing, Model, NoopRegistrar, Transfer};
use mrrc::{Access, AcquireError, BuildError, Cache, Config, Lease, PAGE, PageRange};
use proptest::prelude::*;
use reference::Reference;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracesim_policies::AnyPolicy;

fn pages(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).unwrap()
}

fn model() -> Model<NoopRegistrar> {
    Model::new(Linear::PAPER)
}

/// No environment, no background, told of changes by calls.
fn builder<R: Registrar>(registrar: R) -> Builder<R> {
    Cache::builder(registrar)
        .ignore_environment()
        .policy(mrrc::policy::PolicyKind::Mrrc)
        .monitor(Explicit)
        .background(false)
}

fn cache<R: Registrar>(registrar: R, capacity: u64) -> Cache<R> {
    builder(registrar).capacity_pages(capacity).build().unwrap()
}

/// Waits until it is so: the end of a cache that leases outlive comes from a thread of its own.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

fn acquire_as<R: Registrar>(cache: &Cache<R>, range: PageRange, access: Access) -> Result<Lease<R>, AcquireError> {
    let (address, length) = place(range);
    // SAFETY: the devices of these tests transfer nothing to real memory.
    unsafe { cache.acquire(address, length, access) }
}

fn acquire<R: Registrar>(cache: &Cache<R>, range: PageRange) -> Result<Lease<R>, AcquireError> {
    acquire_as(cache, range, Access::LOCAL)
}

fn place(range: PageRange) -> (*const u8, usize) {
    (std::ptr::without_provenance((range.start() * PAGE) as usize), (range.pages() * PAGE) as usize)
}

fn invalidate<R: Registrar>(cache: &Cache<R>, range: PageRange) {
    let (address, length) = place(range);
    cache.invalidate(address, length).unwrap();
}

type Key = mrrc::testing::Registration;

fn parts<R: Registrar<Registration = Key>>(lease: &Lease<R>) -> Vec<(PageRange, u64)> {
    let part = |segment: mrrc::Segment<'_, Key>| {
        let range = PageRange::of_bytes(segment.address() as u64, segment.len() as u64).unwrap();
        (range, segment.registration().key())
    };
    lease.segments().map(part).collect()
}

fn keys<R: Registrar<Registration = Key>>(lease: &Lease<R>) -> Vec<u64> {
    parts(lease).into_iter().map(|(_, key)| key).collect()
}

// ---- the same decisions as a bare core ----

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        range: PageRange,
        access: Access,
        keep: bool,
    },
    /// The lease that is this many from the oldest ends.
    End(usize),
    Change(PageRange),
    Reap,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (1_u64..96, 1_u64..=8).prop_map(|(start, length)| pages(start, length));
    let access = prop_oneof![
        4 => Just(Access::LOCAL),
        1 => Just(Access::LOCAL_READ),
        1 => Just(Access::LOCAL | Access::REMOTE_READ),
        1 => Just(Access::LOCAL | Access::REMOTE_WRITE),
    ];
    let step = prop_oneof![
        20 => (range(), access, any::<bool>()).prop_map(|(range, access, keep)| Step::Acquire { range, access, keep }),
        9 => (0_usize..8).prop_map(Step::End),
        1 => range().prop_map(Step::Change),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..200)
}

/// The room of a request beside its overlaps: so much is never registered past the limit, and a core without a hard
/// limit does what the cache's does. (Requests have up to 8 pages, and so have the regions that they overlap.)
const ENOUGH: u64 = 22;

/// Policies under which what a request overlaps stays.
fn splitting() -> Vec<AnyPolicy> {
    let splits = |policy: &AnyPolicy| {
        let core = policy.core(&Config::new(ENOUGH)).unwrap();
        let scheme = core.scheme();
        (scheme.overlap, scheme.matching, scheme.keeps) == (Overlap::Split, Matching::Contain, Keeps::UntilEvicted)
            && matches!(scheme.granule, Granule::Region)
    };
    AnyPolicy::ALL.iter().copied().filter(splits).collect()
}

/// Returns whether a request may lack room beside these leases, whose regions have up to 8 pages each.
fn may_lack_room(leases: &VecDeque<Lease<Model<FakeNic>>>, capacity: u64, most_regions: Option<u64>) -> bool {
    let regions = leases.iter().flat_map(keys).collect::<BTreeSet<_>>().len() as u64;
    8 * regions + ENOUGH > capacity || most_regions.is_some_and(|most| regions + ENOUGH > most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn it_decides_as_a_core_and_its_keys_lead_to_pages(
        steps in steps(),
        // Otherwise each lease ends before the next request, and a bare core decides the same.
        keeps in any::<bool>(),
        policy in prop::sample::select(splitting()),
        capacity in ENOUGH..80,
        most_regions in prop::option::of(16_u64..24),
        // More than any request has: that its parts are counted first must not matter.
        max_segments in prop::option::of(Just(1000)),
    ) {
        let space = AddressSpace::new(4096);
        space.map(pages(1, 128)).unwrap();
        let device = Model::over(Linear::PAPER, FakeNic::new(&space));
        device.limit(Limits { pages: Some(capacity), regions: most_regions, ..Limits::NONE });
        // The cache's default; a region has a page at least.
        let max_regions = Some(most_regions.unwrap_or(1 << 20).min(capacity));
        let mut reference = Reference::new(policy, &Config { max_regions, ..Config::new(capacity) }, false);
        let builder = builder(device.clone());
        let builder = builder.policy_from(move |params| policy.build(params)).max_segments(max_segments.unwrap_or(usize::MAX));
        let cache = builder.build().unwrap();

        let mut leases = VecDeque::new();
        for step in steps {
            match step {
                Step::Acquire { range, access, keep } => {
                    let got = acquire_as(&cache, range, access);
                    let expected = (!keeps).then(|| reference.ask(range, access).parts);
                    let Ok(lease) = &got else {
                        prop_assert!(keeps && matches!(got, Err(AcquireError::AllInUse { .. })), "{:?}", got);
                        prop_assert!(may_lack_room(&leases, capacity, most_regions), "{:?}", got);
                        continue;
                    };
                    let got_parts: Vec<_> = parts(lease).into_iter().map(|(range, _)| range).collect();
                    prop_assert_eq!(&got_parts, expected.as_ref().unwrap_or(&got_parts));
                    prop_assert_eq!((got_parts[0].start(), got_parts.last().unwrap().end()), (range.start(), range.end()));
                    prop_assert!(got_parts.windows(2).all(|pair| pair[0].end() == pair[1].start()));
                    // A new lease leads where the addresses lead.
                    for (range, key) in parts(lease) {
                        let (address, length) = place(range);
                        let read = Transfer::read(key, address as u64, length as u64);
                        let read = if access.contains(Access::REMOTE_READ) { read.by_peer() } else { read };
                        let landed = device.device().perform(&read, &space.begin()).unwrap();
                        prop_assert!(landed.iter().all(|page| page.landing == Landing::Current));
                    }
                    if keep && keeps {
                        leases.push_back(got.unwrap());
                    }
                }
                Step::End(nth) => {
                    if let Some(lease) = leases.remove(nth.min(leases.len().saturating_sub(1))) {
                        let before = device.counts().dereg_attempts;
                        drop(lease);
                        prop_assert_eq!(device.counts().dereg_attempts, before, "a lease that ends deregisters nothing");
                    }
                }
                Step::Change(range) => {
                    invalidate(&cache, range);
                    _ = reference.core.invalidate(range);
                    space.unmap(range);
                    space.map(range).unwrap();
                }
                Step::Reap => _ = cache.reap().unwrap(),
            }
            if !keeps {
                prop_assert_eq!(cache.counters().decisions, reference.counters());
            }
            // A lease keeps its keys, whatever became of the pages.
            for lease in &leases {
                for (range, key) in parts(lease) {
                    let (address, length) = place(range);
                    let read = Transfer::read(key, address as u64, length as u64);
                    prop_assert!(device.device().perform(&read, &space.begin()).is_ok());
                }
            }
            let usage = cache.usage();
            prop_assert_eq!((usage.pages, usage.regions), (device.counts().pages, device.counts().regions));
            prop_assert!(device.counts().peak_pages <= capacity);
            prop_assert!(device.counts().peak_regions <= most_regions.unwrap_or(u64::MAX));
            let counters = cache.counters();
            prop_assert_eq!(counters.attempts, counters.decisions.regs);
            prop_assert_eq!(counters.decisions.deregs, counters.deregistered + usage.leaving);
        }
        drop(cache);
        leases.clear();
        until("the leases ended, and what they had is registered still", || device.counts().pages == 0);
        prop_assert_eq!(device.device().pinned_pages(), 0);
        prop_assert_eq!(device.counts().dereg_failures, 0);
    }
}

// ---- leases ----

#[test]
fn ended_lease_stays_cached() {
    let device = model();
    let cache = cache(device.clone(), 64);
    let first = keys(&acquire(&cache, pages(10, 4)).unwrap());
    assert_eq!(device.counts().dereg_attempts, 0);
    assert_eq!(keys(&acquire(&cache, pages(11, 2)).unwrap()), first);
    assert_eq!((cache.counters().attempts, cache.counters().decisions.subset), (1, 1));
    cache.reap().unwrap();
    assert_eq!(device.counts().dereg_attempts, 0, "nothing has left");
}

#[test]
fn invalidated_region_outlives_lookup_for_its_lease() {
    let device = model();
    let cache = cache(device.clone(), 64);
    let old = acquire(&cache, pages(10, 4)).unwrap();
    invalidate(&cache, pages(12, 1));
    let new = acquire(&cache, pages(10, 4)).unwrap();
    assert_ne!(keys(&old), keys(&new));
    assert_eq!(device.counts().regions, 2);
    drop(old);
    assert_eq!((device.counts().regions, cache.usage().retired), (2, 1), "a lease does not deregister");
    assert_eq!(cache.reap().unwrap().regions, 1);
    assert_eq!(device.counts().regions, 1);
    assert_eq!(keys(&acquire(&cache, pages(10, 4)).unwrap()), keys(&new));
}

#[test]
fn lease_parts_show_each_byte_once() {
    let cache = cache(model(), 64);
    // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
    unsafe { cache.warm(place(pages(12, 2)).0, 2 * PAGE as usize, Access::LOCAL) }.unwrap();
    // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
    unsafe { cache.warm(place(pages(16, 2)).0, 2 * PAGE as usize, Access::LOCAL) }.unwrap();
    let start = 10 * PAGE + 100;
    // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
    let lease =
        unsafe { cache.acquire(std::ptr::without_provenance(start as usize), 8 * PAGE as usize, Access::LOCAL) };
    let lease = lease.unwrap();
    let parts: Vec<_> = lease.segments().map(|part| (part.address() as u64, part.len() as u64)).collect();
    let page = |page: u64| page * PAGE;
    assert_eq!(
        parts,
        [(start, page(12) - start), (page(12), page(2)), (page(14), page(2)), (page(16), page(2)), (page(18), 100)]
    );
    assert_eq!((lease.address() as u64, lease.len() as u64), (start, page(8)));
}

#[test]
fn last_page_of_address_space_is_usable() {
    let cache = cache(model(), 64);
    let address = std::ptr::without_provenance(usize::MAX - 99);
    // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
    let lease = unsafe { cache.acquire(address, 100, Access::LOCAL) }.unwrap();
    let parts: Vec<_> = lease.segments().map(|part| (part.address(), part.len())).collect();
    assert_eq!(parts, [(address, 100)]);
}

#[test]
fn leases_outlive_their_cache() {
    let device = model();
    let cache = cache(device.clone(), 64);
    let one = acquire(&cache, pages(10, 4)).unwrap();
    let two = acquire(&cache, pages(12, 4)).unwrap();
    drop(acquire(&cache, pages(40, 4)).unwrap());
    drop(cache);
    assert_eq!(device.counts().regions, 2, "what no lease has went with the cache");
    assert_eq!((keys(&one).len(), keys(&two).len()), (1, 2));
    drop(two);
    assert_eq!(keys(&one).len(), 1);
    assert!(device.counts().regions >= 1, "one has its region still");
    drop(one);
    until("the last lease ended, and a region is registered still", || device.counts().regions == 0);
}

#[test]
fn a_lease_is_no_larger_than_four_words() {
    assert_eq!(size_of::<Lease<NoopRegistrar>>(), 4 * size_of::<usize>());
}

// ---- limits and failures ----

#[test]
fn oversized_and_blocked_fail_at_once() {
    let device = model();
    let cache = cache(device.clone(), 8);
    let error = acquire(&cache, pages(10, 9)).unwrap_err();
    assert!(matches!(error, AcquireError::TooLarge { needed: 9, limit: 8, .. }), "{error}");
    let lease = acquire(&cache, pages(10, 6)).unwrap();
    let error = acquire(&cache, pages(30, 3)).unwrap_err();
    let AcquireError::AllInUse { source, waited } = error else { panic!("{error}") };
    assert_eq!((source.missing_pages, source.in_use_pages, waited.as_nanos()), (1, 6, 0));
    assert_eq!(device.counts().reg_attempts, 1);
    drop(lease);
    drop(acquire(&cache, pages(30, 3)).unwrap());
}

#[test]
fn ungranted_rights_never_reach_registrar() {
    let device = model();
    device.grant(Access::LOCAL);
    let cache = cache(device.clone(), 8);
    let error = acquire_as(&cache, pages(10, 1), Access::REMOTE_READ).unwrap_err();
    assert!(matches!(error, AcquireError::Rights { .. }), "{error}");
    assert_eq!(device.counts().reg_attempts, 0);
}

#[test]
fn more_rights_replace_the_region_page_by_page() {
    let device = model();
    let cache = cache(device.clone(), 64);
    let read = Access::LOCAL | Access::REMOTE_READ;
    let write = Access::LOCAL | Access::REMOTE_WRITE;
    let old = acquire_as(&cache, pages(10, 4), read).unwrap();
    let new = acquire_as(&cache, pages(12, 4), write).unwrap();
    assert_eq!(cache.counters().decisions.upgraded, 1);
    let ranges: Vec<_> = parts(&new).into_iter().map(|(range, _)| range).collect();
    assert_eq!(ranges, [pages(12, 2), pages(14, 2)], "no page gains a right by its neighbours' request");
    assert_eq!(keys(&old).len(), 1);
    drop(acquire_as(&cache, pages(12, 2), read | write).unwrap());
    assert_eq!(cache.counters().decisions.exact, 1, "the pages that had rights keep them");
}

#[test]
fn few_segments_merge_regions() {
    let builder = builder(model()).capacity_pages(64).max_segments(2);
    let cache = builder.build().unwrap();
    drop(acquire(&cache, pages(10, 2)).unwrap());
    assert_eq!(acquire(&cache, pages(10, 4)).unwrap().segments().count(), 2);
    assert_eq!(acquire(&cache, pages(10, 6)).unwrap().segments().count(), 1);
    assert_eq!(cache.counters().decisions.merged, 2);
}

#[test]
fn bad_address_costs_one_attempt_no_eviction() {
    let space = AddressSpace::new(64);
    space.map(pages(1, 16)).unwrap();
    let device = Model::over(Linear::PAPER, FakeNic::new(&space));
    let cache = cache(device.clone(), 8);
    for page in 1..9 {
        drop(acquire(&cache, pages(page, 1)).unwrap());
    }
    let before = cache.counters();
    let error = acquire(&cache, pages(100, 2)).unwrap_err();
    assert!(matches!(error, AcquireError::Register { attempts: 1, .. }), "{error}");
    let after = cache.counters();
    assert_eq!((after.attempts - before.attempts, after.decisions.deregs), (1, 0));
    assert_eq!(cache.usage().regions, 8);
}

#[test]
fn permanent_refusal_is_tried_once() {
    let device = model();
    let cache = cache(device.clone(), 8);
    drop(acquire(&cache, pages(10, 4)).unwrap());
    device.fail_register(Fault::within(pages(100, 1), libc::EFAULT));
    let error = acquire(&cache, pages(100, 2)).unwrap_err();
    assert!(matches!(error, AcquireError::Register { attempts: 1, .. }), "{error}");
    assert_eq!((device.counts().reg_attempts, device.counts().dereg_attempts, cache.usage().regions), (2, 0, 1));
}

#[test]
fn registered_parts_survive_a_failed_gap() {
    let device = model();
    let cache = cache(device.clone(), 64);
    drop(acquire(&cache, pages(14, 2)).unwrap());
    device.fail_register(Fault::within(pages(17, 1), libc::EFAULT));
    let error = acquire(&cache, pages(10, 8)).unwrap_err();
    assert!(matches!(error, AcquireError::Register { attempts: 1, .. }), "{error}");
    assert_eq!((device.counts().pages, cache.usage().pages, cache.usage().regions), (6, 6, 2));
    assert_eq!(cache.counters().decisions.failed, 1);
    device.heal();
    assert_eq!(acquire(&cache, pages(10, 8)).unwrap().segments().count(), 3);
    cache.flush().unwrap();
    assert_eq!((device.counts().pages, cache.usage().pages), (0, 0), "no hold is left behind");
}

#[test]
fn out_of_room_evicts_and_retries() {
    let device = model();
    device.limit_untold(Limits { pages: Some(16), ..Limits::NONE });
    let cache = cache(device.clone(), 64);
    for place in 0..4 {
        drop(acquire(&cache, pages(10 + 10 * place, 4)).unwrap());
    }
    let lease = acquire(&cache, pages(100, 6)).unwrap();
    let counters = cache.counters();
    assert_eq!((counters.retries, counters.attempts), (1, 6));
    assert!(device.counts().pages <= 16);
    device.fail_register(Fault::always(libc::ENOMEM));
    let before = device.counts().reg_attempts;
    let error = acquire(&cache, pages(200, 1)).unwrap_err();
    assert!(matches!(error, AcquireError::Register { .. }), "{error}");
    assert!(device.counts().reg_attempts - before <= 5, "a stated number of times");
    assert_eq!(keys(&lease).len(), 1, "what is in use stays");
    assert_eq!((device.counts().pages, cache.usage().pages), (6, 6));
}

#[test]
fn refused_deregistration_counts_and_is_retried() {
    let device = model();
    let cache = cache(device.clone(), 8);
    drop(acquire(&cache, pages(10, 8)).unwrap());
    device.fail_deregister(Fault::next(2, libc::EIO));
    let error = acquire(&cache, pages(30, 8)).unwrap_err();
    assert!(matches!(error, AcquireError::DeregistrationFailed { pages: 8, regions: 1, .. }), "{error}");
    assert_eq!((cache.usage().refused, cache.usage().pages, cache.counters().failed_deregs), (1, 8, 2));
    drop(acquire(&cache, pages(30, 8)).unwrap());
    assert_eq!((cache.usage().refused, device.counts().pages, device.counts().peak_pages), (0, 8, 8));
}

#[test]
fn refused_deregistration_attempts_are_bounded() {
    let device = model();
    let cache = cache(device.clone(), 8);
    let lease = acquire(&cache, pages(10, 8)).unwrap();
    device.fail_deregister(Fault::always(libc::EIO));
    drop(cache);
    drop(lease);
    until("it is tried again", || device.counts().dereg_attempts >= 2);
    let counts = device.counts();
    assert_eq!(counts.pages, 8);
    assert!((2..100).contains(&counts.dereg_attempts), "{counts:?}");
}

#[test]
fn registrar_panic_removes_placeholders() {
    let device = model();
    let cache = cache(device.clone(), 16);
    let held = acquire(&cache, pages(12, 2)).unwrap();
    device.on_call(|event| assert!(!matches!(event, Event::Registering { range, .. } if range.start() == 14), "bang"));
    let result = catch_unwind(AssertUnwindSafe(|| acquire(&cache, pages(10, 6))));
    assert!(result.is_err());
    // The gap that was registered before is not kept: what a request that panics was about is in doubt.
    assert_eq!((cache.usage().pages, cache.counters().decisions.failed), (4, 2));
    device.on_call(|_| ());
    assert_eq!(acquire(&cache, pages(10, 6)).unwrap().segments().count(), 3);
    drop(held);
    cache.flush().unwrap();
    assert_eq!((device.counts().pages, cache.usage().pages), (0, 0));
}

#[test]
fn panic_in_deregistration_loses_no_region() {
    let device = model();
    let cache = cache(device.clone(), 8);
    drop(acquire(&cache, pages(10, 8)).unwrap());
    device.on_call(|event| assert!(!matches!(event, Event::Deregistering { .. }), "bang"));
    assert!(catch_unwind(AssertUnwindSafe(|| acquire(&cache, pages(30, 8)))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| cache.reap())).is_err());
    assert_eq!((cache.usage().refused, cache.usage().pages), (1, 8));
    device.on_call(|_| ());
    drop(acquire(&cache, pages(30, 8)).unwrap());
    assert_eq!(device.counts().pages, 8);
    drop(cache);
    assert_eq!(device.counts().pages, 0);
}

#[test]
fn panic_after_last_lease_frees_nothing() {
    let device = model();
    let cache = cache(device.clone(), 8);
    let lease = acquire(&cache, pages(10, 8)).unwrap();
    drop(cache);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    device.on_call(move |event| {
        if matches!(event, Event::Deregistering { .. }) {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("bang");
        }
    });
    assert!(
        catch_unwind(AssertUnwindSafe(|| drop(lease))).is_ok(),
        "the thread that drops a lease deregisters nothing"
    );
    until("it is tried again", || calls.load(Ordering::Relaxed) >= 2);
    assert_eq!(device.counts().pages, 8);
}

// ---- a registrar that calls back ----

thread_local! {
    static HERE: RefCell<Option<Rc<Cache<Model>>>> = const { RefCell::new(None) };
    static LEASE: RefCell<Option<Lease<Model>>> = const { RefCell::new(None) };
    static SERVED: Cell<u32> = const { Cell::new(0) };
}

#[test]
fn many_reported_changes_leave_the_rest() {
    let device = model();
    let cache = Rc::new(cache(device.clone(), 256));
    (0..100).for_each(|nth| drop(acquire(&cache, pages(2 * nth + 2, 1)).unwrap()));
    HERE.set(Some(cache.clone()));
    device.on_call(|_| {
        let Some(cache) = HERE.take() else { return };
        (0..70).for_each(|nth| invalidate(&cache, pages(2 * nth + 2, 1)));
    });
    drop(acquire(&cache, pages(1000, 1)).unwrap());
    assert_eq!(cache.counters().decisions.invalidated, 70);
}

#[test]
fn a_registrar_may_use_the_cache_that_calls_it() {
    let device = model();
    let cache = Rc::new(cache(device.clone(), 64));
    HERE.set(Some(cache.clone()));
    LEASE.set(Some(acquire(&cache, pages(40, 4)).unwrap()));
    device.on_call(|event| {
        if !matches!(event, Event::Registering { .. }) {
            return;
        }
        let Some(cache) = HERE.take() else { return };
        let served = u32::from(acquire(&cache, pages(40, 4)).is_ok())
            + u32::from(cache.reap().is_ok())
            + u32::from(cache.flush().is_ok());
        SERVED.set(served);
        drop(LEASE.take());
        invalidate(&cache, pages(10, 1));
        invalidate(&cache, pages(40, 1));
    });
    let lease = acquire(&cache, pages(10, 4)).unwrap();
    assert_eq!(SERVED.get(), 3);
    assert_eq!(
        cache.usage().retired,
        2,
        "both regions were invalidated, and no request has looked for ended leases yet"
    );
    let again = acquire(&cache, pages(10, 4)).unwrap();
    assert_ne!(keys(&lease), keys(&again), "the pages changed while they were registered");
    drop((lease, again));
    cache.flush().unwrap();
    assert_eq!((device.counts().pages, cache.usage().pages), (0, 0));
}

// ---- building, forking ----

#[test]
fn a_monitor_that_does_not_start_is_an_error() {
    struct Elsewhere;
    // SAFETY: it never starts, so nothing is watched.
    unsafe impl mrrc::invalidation::Monitor for Elsewhere {
        fn name(&self) -> &'static str {
            "elsewhere"
        }
        unsafe fn start(&self, _: std::sync::Arc<dyn mrrc::invalidation::Reports>) -> std::io::Result<()> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
        unsafe fn watch(&self, _: PageRange) -> mrrc::invalidation::Watch {
            mrrc::invalidation::Watch::Watched
        }
    }
    let refused = builder(model()).monitor(Elsewhere).build();
    assert!(matches!(refused, Err(BuildError::Monitor { monitor: "elsewhere", .. })));
    builder(model()).monitor(Explicit).build().unwrap();
    assert!(matches!(builder(model()).capacity_pages(0).build(), Err(BuildError::Config(_))));
}

#[test]
fn uncached_policy_registers_each_lease() {
    let device = model();
    let builder = builder(device.clone()).capacity_pages(16).policy(PolicyKind::None);
    let cache = builder.build().unwrap();
    for _ in 0..3 {
        drop(acquire(&cache, pages(10, 4)).unwrap());
    }
    assert_eq!((device.counts().regs, cache.counters().decisions.hits()), (3, 0));
    cache.reap().unwrap();
    assert_eq!(device.counts().pages, 0);
}

#[test]
fn forked_child_deregisters_nothing() {
    let device = model();
    let cache = cache(device.clone(), 64);
    let kept = acquire(&cache, pages(10, 4)).unwrap();
    drop(acquire(&cache, pages(20, 4)).unwrap());
    invalidate(&cache, pages(20, 1));
    // SAFETY: the child looks at its copy and leaves at once.
    let status = unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let refused =
                |result: Result<_, AcquireError>| matches!(result, Err(AcquireError::Unusable(Unusable::Forked)));
            let mut wrong = i32::from(!refused(acquire(&cache, pages(10, 4))));
            wrong |= i32::from(!refused(acquire(&cache, pages(50, 4)))) << 1;
            wrong |= i32::from(cache.reap().is_ok() || kept.segments().count() != 0) << 2;
            let before = device.counts();
            drop(cache);
            drop(kept);
            wrong |= i32::from(device.counts() != before) << 3;
            libc::_exit(wrong);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: hit, 2: miss, 4: reap or segments, 8: dropped in the child");
    assert_eq!(keys(&kept).len(), 1);
    drop((kept, cache));
    assert_eq!(device.counts().pages, 0);
}

// ---- real pins ----

#[cfg(all(feature = "io-uring", target_os = "linux"))]
#[test]
fn io_uring_pins_pages_once() {
    use mrrc::registrar::io_uring::IoUringBuffers;
    let pinned = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024 / PAGE
    };
    let Ok(ring) = io_uring::IoUring::new(8) else {
        println!("not run: the system has no io_uring for this process");
        return;
    };
    let table = match IoUringBuffers::new(&ring, 16) {
        Ok(table) if table.limits().pages.is_none_or(|pages| pages >= 64) => table,
        refused => {
            println!("not run: {refused:?}");
            return;
        }
    };
    let before = pinned();
    let cache = cache(table, 64);
    let bytes = 16 * PAGE as usize;
    // SAFETY: a new mapping, over none that exists.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: advice on the mapping just made: a huge page would count as a whole.
    unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
    let memory = memory.cast::<u8>();
    for _ in 0..10 {
        // SAFETY: the mapping outlives the lease, and nothing is transferred.
        let lease = unsafe { cache.acquire(memory, bytes, Access::LOCAL) }.unwrap();
        assert_eq!((pinned() - before, lease.segments().count()), (16, 1));
    }
    assert_eq!(pinned() - before, 16, "they stay pinned");
    cache.invalidate(memory, bytes).unwrap();
    assert_eq!(cache.reap().unwrap().pages, 16);
    // Older kernels unpin a little later.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while pinned() != before && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(pinned(), before);
    drop(cache);
    // SAFETY: the mapping is ours, and is not used any longer.
    unsafe { libc::munmap(memory.cast(), bytes) };
}
