//! Buffers with identities, of a kind that is made up: `dma_bufs.rs` has those of the kernel, where it has any.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::kinds::{Identity, KindError, MemoryKind};
use mrrc::{Access, Cache, Lease, PAGE};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A buffer at these pages.
#[derive(Clone)]
struct Buffer {
    kind: &'static str,
    number: u64,
    start: u64,
    pages: u64,
    /// The buffers that are kept.
    kept: Arc<AtomicUsize>,
}

struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Buffer {
    fn new(number: u64, start: u64, pages: u64) -> Self {
        Self { kind: "test", number, start, pages, kept: Arc::default() }
    }
}

impl MemoryKind for Buffer {
    fn name(&self) -> &'static str {
        self.kind
    }

    fn identify(&self, _: *const u8) -> io::Result<Identity> {
        Ok(Identity { buffer: self.number, generation: 0, range: range(self.start, self.pages) })
    }

    fn keep(&self, _: &Identity) -> io::Result<Box<dyn Send>> {
        self.kept.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Kept(self.kept.clone())))
    }
}

fn acquire(cache: &Cache<Device>, kind: &dyn MemoryKind, start: u64, pages: u64) -> Result<Lease<Device>, KindError> {
    // SAFETY: the registrar only counts, so nothing reads or writes the memory.
    unsafe { cache.acquire_kind(kind, address(start), (pages * PAGE) as usize, Access::LOCAL) }
}

/// Acquires all of a buffer. Returns whether that was a hit.
fn hits(cache: &Cache<Device>, buffer: &Buffer) -> bool {
    let before = cache.counters().attempts;
    drop(acquire(cache, buffer, buffer.start, buffer.pages).unwrap());
    cache.counters().attempts == before
}

#[test]
fn other_buffer_of_an_address_is_no_hit() {
    let device = device();
    let cache = cache(&device, 1000);
    let first = Buffer::new(1, 0, 8);
    assert!(!hits(&cache, &first) && hits(&cache, &first));
    let others = [
        Buffer { number: 2, ..first.clone() },
        Buffer { kind: "other", ..first.clone() },
        Buffer { pages: 9, ..first.clone() },
        Buffer { pages: 7, ..first.clone() },
        Buffer { start: 7, ..first.clone() },
    ];
    for other in &others {
        for _ in 0..2 {
            assert!(!hits(&cache, other) && hits(&cache, other));
            assert!(!hits(&cache, &first) && hits(&cache, &first));
        }
    }
    // What the program registered there by itself is of no buffer that is known.
    let memory = Buffer::new(9, 100, 4);
    drop(take(&cache, 100, 4));
    assert!(!hits(&cache, &memory));
}

#[test]
fn neighbours_keep_their_regions() {
    let device = device();
    let cache = cache(&device, 1000);
    let (left, right) = (Buffer::new(1, 0, 8), Buffer::new(2, 8, 8));
    assert!(!hits(&cache, &left) && !hits(&cache, &right));
    assert!(hits(&cache, &left) && hits(&cache, &right));
    assert!(!hits(&cache, &Buffer { number: 3, ..right.clone() }));
    assert!(hits(&cache, &left));
}

#[test]
fn forgotten_buffer_is_no_hit_and_not_kept() {
    let device = device();
    let cache = cache(&device, 1000);
    let (first, second) = (Buffer::new(1, 0, 8), Buffer::new(2, 20, 8));
    hits(&cache, &first);
    hits(&cache, &second);
    let lease = acquire(&cache, &first, 0, 8).unwrap();
    cache.forget_kind(address(7), 1).unwrap();
    assert_eq!((first.kept.load(Ordering::SeqCst), second.kept.load(Ordering::SeqCst)), (0, 1));
    assert!(lease.segments().next().is_some(), "leases keep what they have");
    assert!(!hits(&cache, &first) && hits(&cache, &second));
    drop(lease);
    drop(cache);
    assert_eq!((first.kept.load(Ordering::SeqCst), second.kept.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn known_buffers_are_bounded_and_leave_with_regions() {
    let device = device();
    let cache = cache(&device, 100_000);
    let kept = Arc::<AtomicUsize>::default();
    let buffer = |number: u64| Buffer { kept: kept.clone(), ..Buffer::new(number, 2 * number, 1) };
    (0..1024).for_each(|number| assert!(!hits(&cache, &buffer(number))));
    assert!((0..1024).all(|number| hits(&cache, &buffer(number))));
    assert!(!hits(&cache, &buffer(1024)));
    assert_eq!(kept.load(Ordering::SeqCst), 1024);
    assert!(hits(&cache, &buffer(1)) && !is_hit(&cache, 0, 1), "the first is forgotten with its region");
}

#[test]
fn unused_buffers_are_given_up_for_new_ones() {
    let device = device();
    let cache = builder(&device, 1000).max_unheld(u64::MAX, Duration::from_millis(100)).build().unwrap();
    let (first, second) = (Buffer::new(1, 0, 8), Buffer::new(2, 20, 8));
    hits(&cache, &first);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(first.kept.load(Ordering::SeqCst), 1);
    hits(&cache, &second);
    assert_eq!((first.kept.load(Ordering::SeqCst), second.kept.load(Ordering::SeqCst)), (0, 1));
}

/// A buffer that another one takes the place of before the first is kept.
struct Changing(Cell<u64>);

impl MemoryKind for Changing {
    fn name(&self) -> &'static str {
        "changing"
    }

    fn identify(&self, _: *const u8) -> io::Result<Identity> {
        Ok(Identity { buffer: self.0.get(), generation: 0, range: range(0, 8) })
    }

    fn keep(&self, identity: &Identity) -> io::Result<Box<dyn Send>> {
        self.0.set(2);
        Ok(Box::new(identity.buffer))
    }
}

#[test]
fn buffer_that_leaves_before_it_is_kept_is_an_error() {
    let device = device();
    let cache = cache(&device, 1000);
    let changing = Changing(Cell::new(1));
    let error = acquire(&cache, &changing, 0, 8).unwrap_err();
    assert!(matches!(error, KindError::Identify { .. }), "{error}");
    assert_eq!(cache.counters().attempts, 0, "nothing is registered");
    drop(acquire(&cache, &changing, 0, 8).unwrap());
    changing.0.set(1);
    // The first was never known.
    assert!(acquire(&cache, &changing, 0, 8).is_err());
}

/// A kind that calls the cache while it keeps a buffer, and when it gives one up.
struct Calling(Arc<Cache<Device>>, u64);

struct GivesUp(Arc<Cache<Device>>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.forget_kind(address(500), 1).unwrap();
    }
}

impl MemoryKind for Calling {
    fn name(&self) -> &'static str {
        "calling"
    }

    fn identify(&self, _: *const u8) -> io::Result<Identity> {
        Ok(Identity { buffer: self.1, generation: 0, range: range(0, 8) })
    }

    fn keep(&self, _: &Identity) -> io::Result<Box<dyn Send>> {
        hits(&self.0, &Buffer::new(7, 500, 1));
        Ok(Box::new(GivesUp(self.0.clone())))
    }
}

#[test]
fn kind_can_call_the_cache() {
    let device = device();
    let cache = Arc::new(cache(&device, 1000));
    // The second replaces the first, which is dropped then.
    for number in [1, 2, 2] {
        drop(acquire(&cache, &Calling(cache.clone(), number), 0, 8).unwrap());
    }
    cache.forget_kind(address(0), 1).unwrap();
    assert_eq!(Arc::strong_count(&cache), 1, "all were given up");
}

#[test]
fn requests_beyond_a_buffer_are_errors() {
    let device = device();
    let cache = cache(&device, 1000);
    let buffer = Buffer::new(1, 4, 4);
    for (start, pages) in [(3, 1), (3, 2), (7, 2), (8, 1), (0, 20)] {
        let error = acquire(&cache, &buffer, start, pages).unwrap_err();
        assert!(matches!(error, KindError::Outside { .. }), "{error}");
    }
    assert_eq!(buffer.kept.load(Ordering::SeqCst), 0);
    assert!(acquire(&cache, &buffer, 7, 1).is_ok());
}

/// Parts of buffers.
struct Part(Buffer);

impl MemoryKind for Part {
    fn name(&self) -> &'static str {
        "parts"
    }

    fn identify(&self, address: *const u8) -> io::Result<Identity> {
        self.0.identify(address)
    }

    fn tells_parts(&self) -> bool {
        true
    }

    fn keep(&self, identity: &Identity) -> io::Result<Box<dyn Send>> {
        self.0.keep(identity)
    }
}

#[test]
fn parts_of_one_buffer_keep_their_regions() {
    let device = device();
    let cache = cache(&device, 1000);
    let kept = Arc::<AtomicUsize>::default();
    let attempts = |number, start, pages| {
        let before = cache.counters().attempts;
        let part = Part(Buffer { kept: kept.clone(), ..Buffer::new(number, start, pages) });
        drop(acquire(&cache, &part, start, pages).unwrap());
        cache.counters().attempts - before
    };
    // Registered by the program itself, before any buffer was known there.
    drop(take(&cache, 30, 2));
    assert_eq!((attempts(1, 8, 8), attempts(1, 0, 4), attempts(1, 4, 8)), (1, 1, 1));
    for _ in 0..3 {
        let all = [(8, 8), (0, 4), (4, 8), (0, 16), (9, 2)].map(|(start, pages)| attempts(1, start, pages));
        assert_eq!(all, [0; 5]);
    }
    // Its pages that no part had are registered anew, those of the program among them.
    let pages = device.counts().reg_pages;
    assert_eq!((attempts(1, 12, 20), device.counts().reg_pages - pages), (1, 16));
    assert_eq!(attempts(1, 0, 32), 0);
    // Another buffer at a part of it hides all of the former.
    assert_eq!((attempts(2, 10, 2), attempts(2, 10, 2), attempts(1, 0, 4)), (1, 0, 1));
    cache.forget_kind(address(0), 64 * PAGE as usize).unwrap();
    assert_eq!(kept.load(Ordering::SeqCst), 0);
}
