//! The lock-free pieces under loom: every order of their loads and stores that the memory model allows, up to
//! a number of preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mrrc --lib --release -- loom_tests::
//! ```
//!
//! Loom sees the fenced form of the barrier. A registration stands for a cell of loom's, which reports a read that is
//! not ordered against the write: reading it under a hold is using a key, and writing `GONE` to it is deregistering.
#![expect(unsafe_code, reason = "it plays the part of those who hold a region or the lock")]

use crate::access::Access;
use crate::config::Config;
use crate::core::{Core, Holders, NoHolders, Request};
use crate::footprint::Footprint;
use crate::hit::barrier::Barrier;
use crate::hit::records::Record;
use crate::hit::slots::{self, Block, Slot};
use crate::hit::{self, HitTables};
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::shim::sync::atomic::{AtomicBool, Ordering};
use crate::shim::thread;
use crate::state::CacheState;
use loom::cell::UnsafeCell;
use std::sync::Arc;

const GONE: u64 = u64::MAX;

/// A registration: knows where its region starts until it is deregistered. Shared with the test, so that even a
/// protocol that is broken on purpose reads memory that is there.
#[derive(Clone)]
struct Key(Arc<UnsafeCell<u64>>);

// SAFETY: the cell is loom's, which reports every race.
unsafe impl Send for Key {}
// SAFETY: the cell is loom's, which reports every race.
unsafe impl Sync for Key {}

impl Key {
    fn of(range: PageRange) -> Self {
        let key = Self(Arc::new(UnsafeCell::new(GONE)));
        // SAFETY: loom's cell reports every access that races with this one.
        key.0.with_mut(|start| unsafe { *start = range.start() });
        key
    }

    fn is_of(&self, range: PageRange) -> bool {
        // SAFETY: loom's cell reports every access that races with this one.
        self.0.with(|start| unsafe { *start == range.start() })
    }

    fn deregister(&self) {
        // SAFETY: loom's cell reports every access that races with this one.
        self.0.with_mut(|start| unsafe { *start = GONE });
    }
}

/// The shared parts of a cache with one record.
struct Field(HitTables<Key>);

fn core() -> Core {
    Core::new(&Config { policy: crate::policy::PolicyKind::Mrrc, ..Config::new(64) }).unwrap()
}

fn id() -> RegionId {
    RegionId::of_index(0)
}

fn range(start: u64) -> PageRange {
    PageRange::new(start, 2).unwrap()
}

/// Two regions that have nothing in common.
const HERE: u64 = 10;
const THERE: u64 = 20;

impl Field {
    fn new() -> Arc<Self> {
        Arc::new(Self(HitTables::new(1, &mut core(), Barrier::Fence, true).unwrap()))
    }

    fn record(&self) -> &Record<Key> {
        &self.0.records[id()]
    }

    /// Returns the block of the thread that asks.
    fn block(&self) -> &'static Block {
        slots::mine(&self.0.blocks, || true).unwrap()
    }

    fn free_slot(&self) -> &'static Slot {
        slots::free_slot(&self.0.blocks, || true).unwrap().1
    }

    /// A hit of the first page of what starts there, and its use. Whether it was one.
    fn hit(&self, start: u64) -> bool {
        self.hit_at(start, || self.0.gate.is_open())
    }

    fn hit_at(&self, start: u64, gate: impl FnOnce() -> bool) -> bool {
        let (barrier, record) = (Barrier::Fence, self.record());
        let asked = PageRange::new(start, 1).unwrap();
        let slot = self.free_slot();
        let taken = hit::take(barrier, slot, record, id().raw(), asked, Access::LOCAL, gate);
        if taken.is_some() {
            self.look(start);
            slot.release();
        }
        taken.is_some()
    }

    /// The same by a thread without a free slot.
    fn hit_counted(&self, start: u64) -> bool {
        let (barrier, record) = (Barrier::Fence, self.record());
        let asked = PageRange::new(start, 1).unwrap();
        let (name, notifier) = (id().raw(), self.0.blocks.notifier());
        let taken = hit::take_counted(barrier, record, name, notifier, asked, Access::LOCAL, || self.0.gate.is_open());
        if taken.is_some() {
            self.look(start);
            hit::release_counted(record, name, notifier);
        }
        taken.is_some()
    }

    fn look(&self, start: u64) {
        // SAFETY: the caller holds the region: that this suffices is what is tested.
        let key = unsafe { self.record().registration() };
        assert!(key.is_of(range(start)), "a hit got a registration that is gone, or another's");
    }
}

/// The holder of the lock. (There is but one here, so the lock itself is left out.)
struct Owner {
    field: Arc<Field>,
    state: CacheState<Key>,
    /// Every registration that there was.
    made: Vec<Key>,
}

impl Owner {
    fn of(field: &Arc<Field>) -> Self {
        let mut owner = Self {
            field: Arc::clone(field),
            state: CacheState::new(core(), Footprint { pages: 64, regions: 1 }, None),
            made: Vec::new(),
        };
        owner.register(HERE);
        owner
    }

    fn register(&mut self, start: u64) {
        let key = Key::of(range(start));
        self.made.push(key.clone());
        self.state.begin(id(), 1);
        self.state.set_registered(id(), true, true);
        self.field.record().fill(range(start), Access::LOCAL, key);
        self.field.record().show();
    }

    /// The core knows of the region, and holds it on account of a lease.
    fn lend(&mut self) {
        let core = &mut self.state.core;
        core.request_with(&Request::new(range(HERE)), &mut NoHolders).unwrap();
        core.hold(id());
        assert!(self.state.lease_holds.add(id()));
    }

    /// Hides the region and looks for its holders: the code that ships. Returns whether there are none.
    fn is_free(&mut self) -> bool {
        let recalled = self.state.stats.recalled;
        self.state.with_core(&self.field.0, |_, leases| leases.unpublish(&[id()], &mut Vec::new()));
        self.state.stats.recalled == recalled
    }

    /// Shows held regions again.
    fn put_back(&mut self) {
        self.state.with_core(&self.field.0, |_, leases| leases.republish(&[id()]));
    }

    /// Retires the region and deregisters it, if no thread holds it. Returns whether it did.
    fn try_retire(&mut self) -> bool {
        let is_free = self.is_free();
        if is_free {
            self.deregister();
        }
        is_free
    }

    /// Retires the region at the end of a test, unless that is done.
    fn retire(&mut self, is_done: bool) {
        assert!(is_done || self.try_retire(), "the leases ended, so nobody holds it");
    }

    fn deregister(&mut self) {
        // SAFETY: the record is filled, hidden and found free.
        let key = unsafe { self.field.record().empty() };
        self.state.in_flight.remove(id());
        key.deregister();
    }
}

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(test);
}

type Hit = fn(&Field, u64) -> bool;

fn spawn_hit(field: &Arc<Field>, hit: Hit, start: u64) -> thread::JoinHandle<bool> {
    let field = Arc::clone(field);
    thread::spawn(move || hit(&field, start))
}

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) {
    threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
}

/// Hits race a retirement. A hit that is not seen finds the record hidden.
fn hits_against_retirement(hits: &'static [Hit]) {
    explore(move || {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let threads: Vec<_> = hits.iter().map(|&hit| spawn_hit(&field, hit, HERE)).collect();
        let at_once = owner.try_retire();
        join(threads);
        owner.retire(at_once);
    });
}

#[test]
fn retired_record_is_not_read() {
    hits_against_retirement(&[Field::hit]);
}

#[test]
fn a_counted_hold_holds_as_well() {
    hits_against_retirement(&[Field::hit_counted]);
}

#[test]
fn slots_and_counts_are_both_looked_at() {
    hits_against_retirement(&[Field::hit, Field::hit_counted]);
}

#[test]
fn last_lease_ends_the_hold() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let thread = {
            let field = Arc::clone(&field);
            thread::spawn(move || {
                field.hit(HERE);
                field.hit(HERE);
            })
        };
        // Not only once: what leases have is looked after again and again.
        let is_retired = owner.try_retire() || owner.try_retire();
        thread.join().unwrap();
        owner.retire(is_retired);
    });
}

#[test]
fn what_is_put_back_serves_and_can_be_retired_later() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let threads = [spawn_hit(&field, Field::hit, HERE), spawn_hit(&field, Field::hit, HERE)];
        let is_retired = owner.try_retire();
        if !is_retired {
            owner.put_back();
        }
        join(threads);
        assert_eq!(field.hit(HERE), !is_retired);
        owner.retire(is_retired);
    });
}

/// The candidate of both threads is the same name. One asks for what it meant, and one for what it comes to
/// mean.
#[test]
fn reused_id_serves_only_the_new_region() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let threads = [spawn_hit(&field, Field::hit, HERE), spawn_hit(&field, Field::hit, THERE)];
        if owner.try_retire() {
            owner.register(THERE);
        }
        join(threads);
        owner.retire(false);
    });
}

/// A monitor deals with a change, and a request begins after the change has returned. Whether it is a hit in some order.
fn hits_after_a_change(hit: Hit) -> bool {
    let found = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let any = Arc::clone(&found);
    explore(move || {
        let field = Field::new();
        let _owner = Owner::of(&field);
        let returned = Arc::new(AtomicBool::new(false));
        let (change, at) = (Arc::clone(&returned), Arc::clone(&field));
        let thread = thread::spawn(move || change.load(Ordering::Acquire) && hit(&at, HERE));
        field.0.gate.raise();
        // The event is read: from here on the call that changed the memory may return.
        returned.store(true, Ordering::Release);
        field.record().hide();
        field.0.gate.lower();
        any.fetch_or(thread.join().unwrap(), Ordering::Relaxed);
    });
    found.load(Ordering::Relaxed)
}

#[test]
fn no_hit_after_a_change_has_returned() {
    assert!(!hits_after_a_change(Field::hit));
    assert!(!hits_after_a_change(Field::hit_counted));
}

/// The wrong order, so that it is known to matter: the record is looked at first, and the gate afterwards. Between
/// the two the record is hidden and the gate lowered.
#[test]
fn gate_read_after_the_record_is_unsafe() {
    assert!(hits_after_a_change(|field, start| field.hit_at(start, || true) && field.0.gate.is_open()));
    // And not at all.
    assert!(hits_after_a_change(|field, start| field.hit_at(start, || true)));
}

/// A thread counts with a load and a store. That is exact only if the next owner of the block sees all that it
/// counted.
#[test]
fn released_block_passes_on_all_its_counts() {
    explore(|| {
        let field = Field::new();
        let count = |field: &Arc<Field>| {
            let field = Arc::clone(field);
            thread::spawn(move || field.block().count(true, 3))
        };
        join([count(&field), count(&field)]);
        assert_eq!(field.0.blocks.counts(), ([0, 2], 6));
    });
}

/// A lease can be dropped by another thread than the one that took it; the slot is then free again.
#[test]
fn slot_emptied_by_another_thread_is_free() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        // The main thread takes the lease; the other uses it and drops it.
        let slot = field.free_slot();
        hit::take(Barrier::Fence, slot, field.record(), id().raw(), range(HERE), Access::LOCAL, || true).unwrap();
        let thread = {
            let field = Arc::clone(&field);
            thread::spawn(move || {
                field.look(HERE);
                slot.release();
            })
        };
        if owner.try_retire() {
            owner.register(THERE);
            assert!(field.hit(THERE));
        }
        thread.join().unwrap();
        owner.retire(false);
    });
}

/// A retiring thread sees only the last hold of a slot end, so that one has to come after the holds before
/// it, on any threads.
#[test]
fn reused_slot_ends_earlier_holds() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let thread = {
            let field = Arc::clone(&field);
            thread::spawn(move || {
                let slot = field.free_slot();
                let asked = range(HERE);
                if hit::take(Barrier::Fence, slot, field.record(), id().raw(), asked, Access::LOCAL, || true).is_none()
                {
                    return;
                }
                let at = Arc::clone(&field);
                let other = thread::spawn(move || {
                    at.look(HERE);
                    slot.release();
                });
                field.hit(HERE);
                other.join().unwrap();
            })
        };
        let mut is_retired = owner.try_retire();
        if !is_retired {
            owner.put_back();
            // Also while the other two are at it.
            is_retired = owner.try_retire();
        }
        thread.join().unwrap();
        owner.retire(is_retired);
    });
}

/// The end of an awaited lease is seen at once or reported, so that no further look is needed.
fn ends_that_are_awaited(hit: Hit, is_hidden: bool) {
    explore(move || {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        owner.lend();
        let thread = {
            let field = Arc::clone(&field);
            thread::spawn(move || {
                hit(&field, HERE);
                hit(&field, HERE);
            })
        };
        if is_hidden {
            field.record().hide();
            owner.state.core.withdraw(id());
        }
        owner.state.await_leases(&field.0);
        // Told too early, it is awaited once more.
        owner.state.sweep(&field.0);
        if owner.state.lease_holds.fresh() > 0 {
            owner.state.await_leases(&field.0);
        }
        thread.join().unwrap();
        owner.state.sweep(&field.0);
        assert!(owner.state.lease_holds.is_empty(), "a lease has ended, and nobody was told");
        assert_eq!(owner.state.reclaimer.pending_regions(), usize::from(is_hidden));
    });
}

#[test]
fn the_end_of_a_retired_region_is_not_missed() {
    ends_that_are_awaited(Field::hit, true);
    ends_that_are_awaited(Field::hit_counted, true);
}

/// A region that stays can be taken again in the slot that was awaited.
#[test]
fn the_end_of_a_region_that_stays_is_not_missed() {
    ends_that_are_awaited(Field::hit, false);
    ends_that_are_awaited(Field::hit_counted, false);
}
