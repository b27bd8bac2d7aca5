//! The lock-free pieces under loom: every order of their loads and stores that the memory model allows, up to
//! a number of preemptions.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mrrc --lib --release -- orders::
//! ```
//!
//! Loom sees the fenced form of the barrier. What a registration stands for is a cell of loom's, which complains
//! of a reading that is not ordered against the writing: reading it under a hold is using a key, and writing `GONE` to
//! it is deregistering.
#![expect(unsafe_code, reason = "it plays the part of those who hold a region or the lock")]

use super::barrier::Barrier;
use super::books::{Books, Desk, Entry};
use super::gate::Gate;
use super::hit;
use super::records::{Record, Records};
use super::slots::{self, Block, Blocks, Slot};
use crate::access::Access;
use crate::config::Config;
use crate::core::{Ask, Holders, NobodyElse};
use crate::range::PageRange;
use crate::regions::RegionId;
use crate::shim::sync::atomic::{AtomicBool, Ordering};
use crate::shim::thread;
use loom::cell::UnsafeCell;
use std::sync::Arc;

const GONE: u64 = u64::MAX;

/// A registration: knows where its region starts until it is deregistered. Shared with the test, so that even a
/// protocol that is broken on purpose reads memory that is there.
#[derive(Clone)]
struct Key(Arc<UnsafeCell<u64>>);

// SAFETY: loom watches over the cell.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Key {
    fn of(range: PageRange) -> Self {
        let key = Self(Arc::new(UnsafeCell::new(GONE)));
        // SAFETY: loom watches.
        key.0.with_mut(|start| unsafe { *start = range.start() });
        key
    }

    fn is_of(&self, range: PageRange) -> bool {
        // SAFETY: loom watches.
        self.0.with(|start| unsafe { *start == range.start() })
    }

    fn deregister(&self) {
        // SAFETY: loom watches.
        self.0.with_mut(|start| unsafe { *start = GONE });
    }
}

/// What threads share of a cache with one record.
struct Field {
    records: Records<Key>,
    blocks: Arc<Blocks>,
    gate: Gate,
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
        Arc::new(Self { records: Records::new(1).unwrap(), blocks: Blocks::new(), gate: Gate::new().unwrap() })
    }

    fn record(&self) -> &Record<Key> {
        &self.records[id()]
    }

    fn desk(&self) -> Desk<'_, Key> {
        Desk { records: &self.records, blocks: &self.blocks, signs: &[], barrier: Barrier::Fence }
    }

    /// The block of the thread that asks.
    fn block(&self) -> &'static Block {
        slots::mine(&self.blocks, || true).unwrap()
    }

    fn free_slot(&self) -> &'static Slot {
        slots::free_slot(&self.blocks, || true).unwrap().1
    }

    /// A hit of the first page of what starts there, and its use. Whether it was one.
    fn hit(&self, start: u64) -> bool {
        self.hit_at(start, || self.gate.is_open())
    }

    fn hit_at(&self, start: u64, gate: impl FnOnce() -> bool) -> bool {
        let (barrier, record) = (Barrier::Fence, self.record());
        let asked = PageRange::new(start, 1).unwrap();
        let slot = self.free_slot();
        let taken = hit::take(barrier, slot, record, id().raw(), asked, Access::LOCAL, gate);
        if taken.is_some() {
            self.look(start);
            slot.let_go();
        }
        taken.is_some()
    }

    /// The same by a thread without a free slot.
    fn hit_counted(&self, start: u64) -> bool {
        let (barrier, record) = (Barrier::Fence, self.record());
        let asked = PageRange::new(start, 1).unwrap();
        let (name, notifier) = (id().raw(), self.blocks.notifier());
        let taken = hit::take_counted(barrier, record, name, notifier, asked, Access::LOCAL, || self.gate.is_open());
        if taken.is_some() {
            self.look(start);
            hit::let_go_counted(record, name, notifier);
        }
        taken.is_some()
    }

    fn look(&self, start: u64) {
        // SAFETY: the caller holds the region: that this suffices is what is tested.
        let key = unsafe { self.record().registration() };
        assert!(key.is_of(range(start)), "a hit got a registration that is gone, or another's");
    }
}

/// Who has the lock. (There is but one here, so the lock itself is left out.)
struct Owner {
    field: Arc<Field>,
    books: Books<Key>,
    /// Every registration that there was.
    made: Vec<Key>,
}

impl Owner {
    fn of(field: &Arc<Field>) -> Self {
        let core = Config::new(64).build().unwrap();
        let mut owner = Self { field: Arc::clone(field), books: Books::new(core), made: Vec::new() };
        owner.register(HERE);
        owner
    }

    fn register(&mut self, start: u64) {
        let key = Key::of(range(start));
        self.made.push(key.clone());
        self.books.set_entry(id(), Entry::Standing { stale: false, watched: true });
        self.field.record().fill(range(start), Access::LOCAL, key);
        self.field.record().show();
    }

    /// The core knows of the region, and holds it on account of a lease.
    fn lend(&mut self) {
        let core = &mut self.books.core;
        core.ask(&Ask::new(range(HERE)), &mut NobodyElse).unwrap();
        core.hold(id());
        self.books.lent.push(id());
    }

    /// Hides the region and looks who holds it: the code that ships. Whether nobody does.
    fn is_free(&mut self) -> bool {
        let mut held = Vec::new();
        let (_, mut leases) = self.books.parts(self.field.desk());
        leases.hold_back(&[id()], &mut held);
        held.is_empty()
    }

    /// Shows again what somebody holds.
    fn put_back(&mut self) {
        let (_, mut leases) = self.books.parts(self.field.desk());
        leases.stay(&[id()]);
    }

    fn deregister(&mut self) {
        // SAFETY: the record is filled, hidden and found free.
        let key = unsafe { self.field.record().empty() };
        self.books.set_entry(id(), Entry::Vacant);
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

/// Hits race a retirement. Whoever is not seen finds the record hidden.
fn hits_against_retirement(hits: &'static [Hit]) {
    explore(move || {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let threads: Vec<_> = hits.iter().map(|&hit| spawn_hit(&field, hit, HERE)).collect();
        let at_once = owner.is_free();
        if at_once {
            owner.deregister();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        if !at_once {
            assert!(owner.is_free(), "the leases ended, so nobody holds it");
            owner.deregister();
        }
    });
}

#[test]
fn a_registration_is_not_looked_at_after_it_was_taken_out() {
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
fn leases_that_end_one_by_one_end_the_hold_with_the_last() {
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
        // Not only once: what is lent is looked after again and again.
        let freed = owner.is_free() || owner.is_free();
        if freed {
            owner.deregister();
        }
        thread.join().unwrap();
        if !freed {
            assert!(owner.is_free());
            owner.deregister();
        }
    });
}

#[test]
fn what_is_put_back_serves_and_can_be_retired_later() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let threads = [spawn_hit(&field, Field::hit, HERE), spawn_hit(&field, Field::hit, HERE)];
        let free = owner.is_free();
        if free {
            owner.deregister();
        } else {
            owner.put_back();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(field.hit(HERE), !free);
        if !free {
            assert!(owner.is_free());
            owner.deregister();
        }
    });
}

/// The candidate of both threads is the same name. One asks for what it meant, and one for what it comes to
/// mean.
#[test]
fn a_name_that_is_used_again_serves_the_new_region_only() {
    explore(|| {
        let field = Field::new();
        let mut owner = Owner::of(&field);
        let threads = [spawn_hit(&field, Field::hit, HERE), spawn_hit(&field, Field::hit, THERE)];
        if owner.is_free() {
            owner.deregister();
            owner.register(THERE);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(owner.is_free());
        owner.deregister();
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
        field.gate.raise();
        // The event is read: from here on the call that changed the memory may return.
        returned.store(true, Ordering::Release);
        field.record().hide();
        field.gate.lower();
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
fn a_gate_that_is_looked_at_after_the_record_is_no_good() {
    assert!(hits_after_a_change(|field, start| field.hit_at(start, || true) && field.gate.is_open()));
    // And not at all.
    assert!(hits_after_a_change(|field, start| field.hit_at(start, || true)));
}

/// What a thread counts it counts with a load and a store. That is exact only if whoever owns the block after it sees
/// all that it counted.
#[test]
fn a_block_that_is_given_up_is_another_threads_with_all_its_counts() {
    explore(|| {
        let field = Field::new();
        let count = |field: &Arc<Field>| {
            let field = Arc::clone(field);
            thread::spawn(move || field.block().count(true, 3))
        };
        for thread in [count(&field), count(&field)] {
            thread.join().unwrap();
        }
        assert_eq!(field.blocks.counts(), ([0, 2], 6));
    });
}

/// A lease can be dropped by another thread than the one that took it, whose slot is then free again.
#[test]
fn a_slot_that_another_thread_emptied_is_free_and_its_hold_over() {
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
                slot.let_go();
            })
        };
        if owner.is_free() {
            owner.deregister();
            owner.register(THERE);
            assert!(field.hit(THERE));
        }
        thread.join().unwrap();
        assert!(owner.is_free());
        owner.deregister();
    });
}

/// Who retires sees only the last hold of a slot end, so that one has to come after the holds before it, on
/// whatever thread they ended.
#[test]
fn a_slot_that_is_used_again_ends_the_holds_before_too() {
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
                    slot.let_go();
                });
                field.hit(HERE);
                other.join().unwrap();
            })
        };
        let free = owner.is_free();
        if free {
            owner.deregister();
        } else {
            owner.put_back();
        }
        // Also while the other two are at it.
        let later = !free && owner.is_free();
        if later {
            owner.deregister();
        }
        thread.join().unwrap();
        if !free && !later {
            assert!(owner.is_free());
            owner.deregister();
        }
    });
}

/// The end of a lease that is awaited is seen at once or told, so that nobody has to look again.
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
            owner.books.core.withdraw(id());
        }
        owner.books.await_lent(field.desk());
        // Told too early, it is awaited once more.
        owner.books.sweep(field.desk());
        if owner.books.lent.fresh() > 0 {
            owner.books.await_lent(field.desk());
        }
        thread.join().unwrap();
        owner.books.sweep(field.desk());
        assert!(owner.books.lent.is_empty(), "a lease has ended, and nobody was told");
        assert_eq!(owner.books.limbo.len(), usize::from(is_hidden));
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
