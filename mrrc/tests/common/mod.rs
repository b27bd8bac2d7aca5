//! Shared parts of the cache's tests: a device whose registrations show their ranges, and requests by page.
//!
//! There is no memory behind the addresses: nothing here follows one.

#![allow(dead_code, unsafe_code, reason = "each test uses a part of it; leases are acquired for no transfer")]

use mrrc::cache::{Builder, PendingLease};
use mrrc::cost::Linear;
use mrrc::invalidation::Explicit;
use mrrc::policy::PolicyKind;
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::testing::{Event, Gate, Model};
use mrrc::{Access, AcquireError, Cache, Config, Lease, PAGE, PageRange};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page that tests count from.
pub(crate) const BASE: u64 = 0x1000;

/// Registers anything; what it returns says what was asked for.
#[derive(Clone, Default)]
pub(crate) struct Plain {
    made: Arc<AtomicU64>,
}

/// A registration of a [`Plain`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) key: u64,
    pub(crate) range: PageRange,
    pub(crate) access: Access,
}

// SAFETY: there is no device; keys are counted up.
unsafe impl Registrar for Plain {
    type Registration = Made;

    fn register(&self, range: PageRange, access: Access) -> io::Result<Made> {
        Ok(Made { key: self.made.fetch_add(1, Ordering::Relaxed), range, access })
    }

    fn deregister(&self, batch: &mut Vec<Registered<Made>>) -> io::Result<()> {
        for registered in batch.drain(..) {
            assert_eq!(registered.registration.range, registered.range, "a batch says what was registered");
            assert_eq!(registered.registration.access, registered.access, "with its rights");
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "plain"
    }
}

pub(crate) type Device = Model<Plain>;

pub(crate) fn device() -> Device {
    Model::over(Linear::PAPER, Plain::default())
}

/// Returns a gate at which those of the device's calls wait that this is true of.
pub(crate) fn gate_at(device: &Device, waits: impl Fn(&Event) -> bool + Send + Sync + 'static) -> Gate {
    let gate = Gate::closed();
    let held = gate.clone();
    device.on_call(move |event| {
        if waits(event) {
            held.pass();
        }
    });
    gate
}

/// No background, no environment, invalidated by hand.
pub(crate) fn builder(device: &Device, pages: u64) -> Builder<Device> {
    // All tests but those that name one can be run with another policy.
    let policy = std::env::var("MRRCTEST_POLICY").map_or(PolicyKind::default(), |name| name.parse().unwrap());
    let config = Config { policy, ..Config::new(pages) };
    let builder = Cache::builder(device.clone()).config(config).capacity_pages(pages);
    builder.monitor(Explicit).ignore_environment()
}

pub(crate) fn cache(device: &Device, pages: u64) -> Cache<Device> {
    builder(device, pages).build().unwrap()
}

/// Pages counted from [`BASE`].
pub(crate) fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(BASE + start, pages).unwrap()
}

pub(crate) fn address(start: u64) -> *const u8 {
    ((BASE + start) * PAGE) as *const u8
}

pub(crate) fn ask<R: Registrar>(
    cache: &Cache<R>,
    start: u64,
    pages: u64,
    access: Access,
) -> Result<Lease<R>, AcquireError> {
    acquire_at(cache, address(start), (pages * PAGE) as usize, access)
}

/// Acquires a lease of bytes that no device uses.
pub(crate) fn acquire_at<R: Registrar>(
    cache: &Cache<R>,
    address: *const u8,
    length: usize,
    access: Access,
) -> Result<Lease<R>, AcquireError> {
    // SAFETY: `acquire` restricts uses of the memory during transfers; tests with these addresses make none.
    unsafe { cache.acquire(address, length, access) }
}

/// Begins to acquire bytes that no device uses.
pub(crate) fn begin_at<R: Registrar>(
    cache: &Cache<R>,
    address: *const u8,
    length: usize,
    access: Access,
) -> Result<PendingLease<'_, R>, AcquireError> {
    // SAFETY: `begin` restricts uses of the memory during transfers; tests with these addresses make none.
    unsafe { cache.begin(address, length, access) }
}

/// Registers bytes that no device uses.
pub(crate) fn warm_at<R: Registrar>(
    cache: &Cache<R>,
    address: *const u8,
    length: usize,
    access: Access,
) -> Result<(), AcquireError> {
    // SAFETY: `warm` restricts uses of the memory during later transfers; tests with these addresses make none.
    unsafe { cache.warm(address, length, access) }
}

#[track_caller]
pub(crate) fn take<R: Registrar>(cache: &Cache<R>, start: u64, pages: u64) -> Lease<R> {
    ask(cache, start, pages, Access::LOCAL).unwrap()
}

/// Acquires it and lets it go; whether nothing was registered.
#[track_caller]
pub(crate) fn is_hit<R: Registrar>(cache: &Cache<R>, start: u64, pages: u64) -> bool {
    let before = cache.counters().attempts;
    drop(take(cache, start, pages));
    cache.counters().attempts == before
}

/// Fills the cache with so many regions of so many pages each, one after the other from [`BASE`].
#[track_caller]
pub(crate) fn fill<R: Registrar>(cache: &Cache<R>, regions: u64, pages: u64) {
    for region in 0..regions {
        drop(take(cache, region * pages, pages));
    }
}

/// Returns whether what [`fill`] registered is still there, every region of it.
#[track_caller]
pub(crate) fn all_hit<R: Registrar>(cache: &Cache<R>, regions: u64, pages: u64) -> bool {
    (0..regions).all(|region| is_hit(cache, region * pages, pages))
}

/// Returns the segments of a lease: first page and pages from [`BASE`], and the range of their registration.
pub(crate) fn parts(lease: &Lease<Device>) -> Vec<(u64, u64, PageRange)> {
    let part = |segment: mrrc::Segment<'_, Made>| {
        let at = segment.address() as u64;
        assert_eq!((at % PAGE, segment.len() as u64 % PAGE), (0, 0), "whole pages");
        (at / PAGE - BASE, segment.len() as u64 / PAGE, segment.registration().range)
    };
    lease.segments().map(part).collect()
}

/// Numbers that look random, the same each time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
