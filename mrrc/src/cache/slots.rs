//! Where threads say which regions they hold.
//!
//! Each thread that uses a cache has a [`Block`] of it: slots with the names of the regions that its leases
//! hold. Only the owner puts names in; whoever drops the lease, on whatever thread, takes one out by storing
//! 0. So a hit writes to no line that other threads write, and a release is one store.
//!
//! Blocks belong to the cache and outlive their threads: a lease that was taken on a thread that is gone
//! still has its slot. A block whose thread is gone is given to the next thread that comes.
//!
//! Ownership: the list of blocks and who owns which is behind a lock of its own, taken when a thread
//! comes or goes and when the slots are read, after the lock of the cache if that is held too. Slots are atomics
//! and need no lock.

use crate::shim::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::shim::sync::{Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

/// Leases that a thread has slots for; further ones are counted in their regions.
pub(super) const SLOTS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// One thread's slots, and what it counts.
#[repr(align(128))]
pub(super) struct Block {
    /// Where the last slot was taken. Owner only.
    last: AtomicU32,
    /// Hits: of part of a region, and of a whole one. Written by the owner only, read by all.
    pub(super) hits: [AtomicU64; 2],
    pub(super) hit_pages: AtomicU64,
    slots: [AtomicU32; SLOTS],
    owned: AtomicBool,
}

impl Block {
    fn new() -> Self {
        Self {
            last: AtomicU32::new(0),
            hits: [(); 2].map(|()| AtomicU64::new(0)),
            hit_pages: AtomicU64::new(0),
            slots: [(); SLOTS].map(|()| AtomicU32::new(0)),
            owned: AtomicBool::new(true),
        }
    }

    /// A free slot, if there is one. For the owner of the block.
    #[inline(always)]
    pub(super) fn free_slot(&self) -> Option<&AtomicU32> {
        let last = self.last.load(Ordering::Relaxed) as usize % SLOTS;
        // Mostly the last one is free again. Acquire: the lease that had it is through with the region.
        if self.slots[last].load(Ordering::Acquire) == 0 {
            return Some(&self.slots[last]);
        }
        self.next_slot(last)
    }

    #[cold]
    #[inline(never)]
    fn next_slot(&self, last: usize) -> Option<&AtomicU32> {
        let free = (1..SLOTS).map(|step| (last + step) % SLOTS);
        let free = { free }.find(|&slot| self.slots[slot].load(Ordering::Acquire) == 0)?;
        self.last.store(free as u32, Ordering::Relaxed);
        Some(&self.slots[free])
    }

    /// Counts a hit. For the owner of the block, so that load and store suffice.
    #[inline(always)]
    pub(super) fn count(&self, exact: bool, pages: u64) {
        let add = |counter: &AtomicU64, more| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.hits[usize::from(exact)], 1);
        add(&self.hit_pages, pages);
    }

    /// Appends the names in the slots.
    fn read(&self, names: &mut Vec<u32>) {
        // Acquire: a slot that is read empty was emptied by a lease that is through with its region.
        names.extend(self.slots.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|&name| name != 0));
    }
}

/// The blocks of one cache.
pub(super) struct Blocks(Mutex<Vec<Arc<Block>>>);

impl Blocks {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Vec::new())))
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Block>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Appends every name that is in a slot of any thread.
    pub(super) fn read(&self, names: &mut Vec<u32>) {
        self.list().iter().for_each(|block| block.read(names));
    }

    /// Hits counted by all threads that ever were: partial, exact, and their pages.
    pub(super) fn counts(&self) -> ([u64; 2], u64) {
        let mut hits = [0; 2];
        let mut pages = 0_u64;
        for block in self.list().iter() {
            for (sum, counter) in hits.iter_mut().zip(&block.hits) {
                *sum += counter.load(Ordering::Relaxed);
            }
            pages = pages.wrapping_add(block.hit_pages.load(Ordering::Relaxed));
        }
        (hits, pages)
    }

    fn claim(&self) -> Arc<Block> {
        let mut list = self.list();
        // Acquire, with the release of the thread that gave it up: its counts are seen.
        let given_up = list.iter().find(|block| !block.owned.load(Ordering::Acquire));
        if let Some(block) = given_up {
            block.owned.store(true, Ordering::Relaxed);
            return block.clone();
        }
        let block = Arc::new(Block::new());
        list.push(block.clone());
        block
    }
}

/// The blocks that this thread owns, in all caches; given up when the thread ends.
struct Mine(Vec<(u64, Weak<Blocks>, Arc<Block>)>);

impl Drop for Mine {
    fn drop(&mut self) {
        _ = NEAR.try_with(Near::clear);
        for (_, _, block) in &self.0 {
            block.owned.store(false, Ordering::Release);
        }
    }
}

/// The blocks used last, by the last bits of the number of their cache, in two arrays: an index into words is part of an
/// instruction.
struct Near {
    owners: [Cell<u64>; NEAR_BLOCKS],
    blocks: [Cell<*const Block>; NEAR_BLOCKS],
}

const NEAR_BLOCKS: usize = 4;

impl Near {
    const fn new() -> Self {
        let blocks = [const { Cell::new(std::ptr::null()) }; NEAR_BLOCKS];
        Self { owners: [const { Cell::new(0) }; NEAR_BLOCKS], blocks }
    }

    #[inline(always)]
    fn get(&self, cache: u64) -> Option<*const Block> {
        let place = cache as usize % NEAR_BLOCKS;
        (self.owners[place].get() == cache).then(|| self.blocks[place].get())
    }

    fn set(&self, cache: u64, block: *const Block) {
        let place = cache as usize % NEAR_BLOCKS;
        self.owners[place].set(cache);
        self.blocks[place].set(block);
    }

    fn clear(&self) {
        self.owners.iter().for_each(|owner| owner.set(0));
    }
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    /// No destructor, so no check on each use.
    static NEAR: Near = const { Near::new() };
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(Vec::new())) };
}

#[cfg(any(loom, shuttle))]
crate::shim::thread_local! {
    static NEAR: Near = Near::new();
    static MINE: RefCell<Mine> = RefCell::new(Mine(Vec::new()));
}

/// The number of no cache.
pub(super) const NOBODY: u64 = u64::MAX;

/// This thread's block of the cache of that number, if it was used not long ago. The pointer is good as long as the
/// cache is.
#[inline(always)]
pub(super) fn nearby(cache: u64) -> Option<*const Block> {
    NEAR.try_with(|near| near.get(cache)).ok().flatten()
}

/// This thread's block of the cache of that number, which is neither 0 nor [`NOBODY`] and never used again; `None`
/// where the thread is ending and has no place to keep one, or has none yet and may not take the list's lock. The
/// pointer is good as long as the cache is.
#[inline]
pub(super) fn mine(cache: u64, blocks: &Arc<Blocks>, may_lock: impl FnOnce() -> bool) -> Option<*const Block> {
    nearby(cache).or_else(|| if may_lock() { look_up(cache, blocks) } else { None })
}

#[cold]
#[inline(never)]
fn look_up(cache: u64, blocks: &Arc<Blocks>) -> Option<*const Block> {
    let block = MINE
        .try_with(|mine| {
            let mine = &mut mine.try_borrow_mut().ok()?.0;
            if let Some((_, _, block)) = mine.iter().find(|(owner, _, _)| *owner == cache) {
                return Some(Arc::as_ptr(block));
            }
            // Blocks of caches that are gone go too.
            mine.retain(|(_, blocks, _)| blocks.strong_count() > 0);
            let block = blocks.claim();
            let pointer = Arc::as_ptr(&block);
            mine.push((cache, Arc::downgrade(blocks), block));
            Some(pointer)
        })
        .ok()??;
    NEAR.try_with(|near| near.set(cache, block)).ok()?;
    Some(block)
}
