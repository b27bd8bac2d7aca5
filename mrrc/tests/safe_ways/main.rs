//! The ways into the cache besides plain acquiring: arenas, scopes, lists, and changes that the program announces.

#![allow(unsafe_code, reason = "memory is acquired, mapped and unmapped by address")]

mod arena;
mod changing;
mod list;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod pinned;
mod scope;

use mrrc::cache::{ArenaError, ChangeError, OutsideArena, Unusable};
use mrrc::cost::Linear;
use mrrc::invalidation::{Explicit, Monitor, Reports, Unwatched, Watch};
use mrrc::registrar::Limits;
use mrrc::testing::{Event, Fault, Gate, Model};
use mrrc::{Access, AcquireError, Arena, Cache, Lease, PAGE, PageRange};
use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Makes tests run one at a time, because mappings and pins are of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const PAGE_BYTES: usize = PAGE as usize;

/// Addresses that nothing is done with: the model registers whatever it is asked for.
fn page(number: usize) -> *const u8 {
    (number * PAGE_BYTES) as *const u8
}

/// Returns a cache over a model, which the program tells of changes.
fn explicit() -> (Model, Cache<Model>) {
    let model = Model::new(Linear::PAPER);
    let cache = Cache::builder(model.clone()).capacity_pages(100_000).monitor(Explicit).ignore_environment();
    (model, cache.build().unwrap())
}

/// Returns a cache over a model, with a monitor that watches.
fn told() -> (Model, Told, Cache<Model>) {
    let (model, told) = (Model::new(Linear::PAPER), Told::default());
    let cache = Cache::builder(model.clone()).capacity_pages(100_000).monitor(told.clone()).background(false);
    (model, told, cache.ignore_environment().build().unwrap())
}

/// Acquires a lease of memory that no device uses.
fn acquire(
    cache: &Cache<Model>,
    address: *const u8,
    length: usize,
    access: Access,
) -> Result<Lease<Model>, AcquireError> {
    // SAFETY: `acquire` restricts uses of the memory during transfers; a model makes none.
    unsafe { cache.acquire(address, length, access) }
}

/// Acquires leases of buffers that no device uses.
fn acquire_list(
    cache: &Cache<Model>,
    buffers: &[(*const u8, usize)],
    access: Access,
) -> Result<Vec<Lease<Model>>, AcquireError> {
    // SAFETY: `acquire_list` restricts uses of the memory during transfers; a model makes none.
    unsafe { cache.acquire_list(buffers, access) }
}

/// Registers memory that no device uses.
fn warm(cache: &Cache<Model>, address: *const u8, length: usize, access: Access) -> Result<(), AcquireError> {
    // SAFETY: `warm` restricts uses of the memory during later transfers; a model makes none.
    unsafe { cache.warm(address, length, access) }
}

/// Regions that are registered now.
fn registered(model: &Model) -> u64 {
    model.counts().regs - model.counts().deregs
}

/// Watches what a test tells it to, and notes what it was asked.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    asked: Vec<PageRange>,
    refuses: bool,
}

// SAFETY: there is no device, so a change that goes unheard harms no memory.
unsafe impl Monitor for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    unsafe fn start(&self, _: Arc<dyn Reports>) -> io::Result<()> {
        Ok(())
    }

    unsafe fn watch(&self, range: PageRange) -> Watch {
        let mut state = self.0.lock().unwrap();
        state.asked.push(range);
        if state.refuses { Watch::Unwatched(Unwatched::SharedMemory) } else { Watch::Watched }
    }
}

/// Holds the registrations of a model until the gate is opened.
fn held(model: &Model) -> Gate {
    let gate = Gate::closed();
    let passed = gate.clone();
    model.on_call(move |event| {
        if matches!(event, Event::Registering { .. }) {
            passed.pass();
        }
    });
    gate
}

#[test]
fn oversized_request_is_cut_with_few_segments() {
    let _alone = alone();
    let model = Model::new(Linear::PAPER);
    model.limit(Limits { region_pages: Some(4), ..Limits::NONE });
    let cache = Cache::builder(model).max_segments(3).monitor(Explicit).ignore_environment().build().unwrap();
    for first in [102, 107] {
        warm(&cache, page(first), PAGE_BYTES, Access::LOCAL).unwrap();
    }
    let lease = acquire(&cache, page(100), 12 * PAGE_BYTES, Access::LOCAL).unwrap();
    assert_eq!(lease.segments().count(), 3);
    let refused = acquire(&cache, page(200), 13 * PAGE_BYTES, Access::LOCAL);
    assert!(matches!(refused, Err(AcquireError::TooLarge { .. })), "{refused:?}");
    let slice = vec![0; 13 * PAGE_BYTES];
    assert!(matches!(cache.with_slice(&slice, |_| ()), Err(AcquireError::TooLarge { .. })));
}
