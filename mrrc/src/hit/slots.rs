//! Slots: the regions that threads hold.
//!
//! Each thread that uses a cache has a chain of [`Block`]s of it: slots with the names of the regions that its leases
//! hold. Only the owner puts names in; the thread that drops the lease, any thread, takes one out by storing
//! 0. So a hit writes to no line that other threads write, and a release is one store.
//!
//! A thread fills the slots of one block at a time. Where none is left it looks at a few others of its chain, and makes
//! another: so a slot is found in the same number of steps however many leases there are. A chain has at most
//! [`MOST_BLOCKS`]; leases beyond are counted in their regions.
//!
//! Blocks belong to the cache and outlive their threads: a lease that was taken on a thread that is gone still has its
//! slot. A block of a thread that is gone is given to the next thread that needs one. When the cache is gone its blocks
//! serve others: no block is ever freed, because a release looks at its slot once more after the store that may have been
//! the last thing that kept the cache.
//!
//! Ownership: the list of blocks and their owners is behind a lock of its own. It is taken when a thread comes or needs a
//! block and when the slots are read, after the lock of the cache if that is held too. Slots are atomics and need no
//! lock.

use crate::hit::barrier::{self, Barrier};
use crate::hit::notifier::Notifier;
use crate::pool::Pool;
use crate::shim::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::shim::sync::{Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Slots of a block.
pub(crate) const SLOTS: usize = if cfg!(loom) {
    2
} else if cfg!(shuttle) {
    1
} else {
    49
};
/// Blocks that a thread has of one cache at most. A look through all of them, which every batch that leaves takes, is to
/// be some microseconds.
pub(crate) const MOST_BLOCKS: usize = if cfg!(any(loom, shuttle)) {
    2
} else if cfg!(test) {
    32
} else {
    128
};
/// A block with fewer free slots is left alone: a look costs as much as some hits, and so many share it.
const ENOUGH: u32 = if SLOTS < 8 { 1 } else { SLOTS as u32 / 4 * 3 };
/// Blocks that are looked at before another is made.
const LOOKS: usize = 3;
/// How many leases are counted before a chain that can grow no more is looked at again.
const RESPITE: u32 = 64;

/// A place for one hold.
///
/// Its release looks at `awaited` after the store that empties it, by an order like that of a hit. A thread that awaits the
/// release writes that before it looks whether the slot is still in use. See `hit/mod.rs`.
pub(crate) struct Slot {
    /// The region that is held here, or 0.
    name: AtomicU32,
    /// The region with an awaited release, or 0.
    awaited: AtomicU32,
}

impl Slot {
    fn new() -> Self {
        Self { name: AtomicU32::new(0), awaited: AtomicU32::new(0) }
    }

    /// Returns the region that is held here, for the lease's owner.
    pub(crate) fn name(&self) -> u32 {
        self.name.load(Ordering::Relaxed)
    }

    /// Announces the region that is taken; later loads come after all threads can see that.
    #[inline(always)]
    pub(crate) fn announce(&self, barrier: Barrier, name: u32) {
        barrier.announce(&self.name, name);
    }

    /// The same under the lock of the cache, where no other looks.
    pub(crate) fn hold(&self, name: u32) {
        self.name.store(name, Ordering::Relaxed);
    }

    /// Ends a hold. Release: a reader that finds the slot empty comes after all that was done under the hold. From there
    /// on the cache may be gone; the slot stays.
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.name.store(0, Ordering::Release);
        barrier::after_release();
        if self.awaited.load(Ordering::Relaxed) != 0 {
            self.tell();
        }
    }

    /// Only the one release that finds the wish reports, and it reports the region in it: it may have been meant for a
    /// later lease, if another came between the store and the look. Then it is too early, and the region is awaited once
    /// more.
    #[cold]
    #[inline(never)]
    fn tell(&self) {
        let name = self.awaited.swap(0, Ordering::AcqRel);
        if name != 0 {
            Block::of(self).notifier().lease_ended(name);
        }
    }

    /// Acquire: a slot that is read empty was emptied by a lease that is through with its region.
    fn read(&self) -> u32 {
        self.name.load(Ordering::Acquire)
    }
}

/// Slots of one thread, and what it counts. A hit by the first slot needs the first line alone.
#[repr(C, align(64))]
pub(crate) struct Block {
    /// The slot of this block that was taken last. Owner only.
    last: AtomicPtr<Slot>,
    /// The slots from this one on were never used. Written by the owner only, before it announces anything in one.
    used: AtomicU32,
    owned: AtomicBool,
    /// Slots that are free: some of them all, and never the last. Owner only.
    free: AtomicU64,
    /// Hits: of part of a region, and of a whole one. Written by the owner only, read by all.
    hits: [AtomicU64; 2],
    hit_pages: AtomicU64,
    notifier: AtomicPtr<Notifier>,
    slots: [Slot; SLOTS],
}

/// Blocks that were made together. As long as it is aligned, so that a slot leads to its block.
///
/// A block is seven lines long. So the first lines of 64 blocks lie at 64 different places of a page, where they do not
/// displace each other from the processor's first cache, and all of them in few pages.
#[repr(C)]
#[cfg_attr(not(any(loom, shuttle)), repr(align(32768)))]
#[cfg_attr(any(loom, shuttle), repr(align(4096)))]
struct Slab {
    blocks: [Block; SLAB],
}

const SLAB: usize = if cfg!(any(loom, shuttle)) { 1 } else { 73 };

const _: () = assert!(size_of::<Slab>() == align_of::<Slab>() && SLOTS <= u64::BITS as usize);
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Block>() == 7 * 64 && std::mem::offset_of!(Block, slots) + size_of::<Slot>() <= 64);

static POOL: Pool<Block> = Pool::new();

impl Slab {
    /// One of its blocks. The others are in the pool.
    #[expect(unsafe_code, reason = "blocks are made where they stay: a slab is too large for a stack")]
    fn make() -> &'static Block {
        let slab: &'static mut MaybeUninit<Self> = Box::leak(Box::new_uninit());
        let first = slab.as_mut_ptr().cast::<Block>();
        for nth in 0..SLAB {
            // SAFETY: a slab is so many blocks and nothing before them.
            unsafe { first.add(nth).write(Block::new()) };
        }
        // SAFETY: all its blocks were just made.
        let slab: &'static Self = unsafe { slab.assume_init_ref() };
        // For `Block::of`.
        std::ptr::from_ref(slab).expose_provenance();
        let Some((first, others)) = slab.blocks.split_first() else { unreachable!("a slab has blocks") };
        POOL.put(others);
        first
    }
}

impl Block {
    fn new() -> Self {
        Self {
            last: AtomicPtr::new(std::ptr::null_mut()),
            used: AtomicU32::new(0),
            free: AtomicU64::new(0),
            hits: [(); 2].map(|()| AtomicU64::new(0)),
            hit_pages: AtomicU64::new(0),
            notifier: AtomicPtr::new(std::ptr::null_mut()),
            owned: AtomicBool::new(true),
            slots: [(); SLOTS].map(|()| Slot::new()),
        }
    }

    /// Returns an empty block, owned by the caller.
    fn claim(notifier: &'static Notifier) -> &'static Self {
        let block = POOL.take().unwrap_or_else(Slab::make);
        block.hits.iter().chain([&block.hit_pages]).for_each(|counter| counter.store(0, Ordering::Relaxed));
        block.set_last(0);
        block.owned.store(true, Ordering::Relaxed);
        block.notifier.store(std::ptr::from_ref(notifier).cast_mut(), Ordering::Release);
        block.refresh();
        block
    }

    /// Returns the block of a slot.
    #[expect(unsafe_code, reason = "it goes from a part to the whole")]
    fn of(slot: &Slot) -> &'static Self {
        let address = std::ptr::from_ref(slot).addr();
        let within = address % align_of::<Slab>();
        let slab = std::ptr::with_exposed_provenance::<Slab>(address - within);
        // SAFETY: slots are made in slabs alone, which are as long as their alignment; `make` exposed the slab's pointer, and no
        // slab is freed.
        &unsafe { &*slab }.blocks[within / size_of::<Self>()]
    }

    #[expect(unsafe_code, reason = "it follows the pointer to the notifier")]
    fn notifier(&self) -> &'static Notifier {
        // SAFETY: `claim` has stored it before there was a slot to come here from, and notifiers are never freed.
        unsafe { &*self.notifier.load(Ordering::Acquire) }
    }

    /// Returns a free slot, if one is known. For the owner of the block.
    #[inline(always)]
    pub(crate) fn free_slot(&self) -> Option<&Slot> {
        let last = self.last();
        // Mostly the last one is free again. Acquire: the lease that had it is through with the region.
        if last.name.load(Ordering::Acquire) == 0 {
            return Some(last);
        }
        self.next_slot()
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "it follows the pointer to the slot")]
    fn last(&self) -> &Slot {
        let last = self.last.load(Ordering::Relaxed);
        // SAFETY: `claim` has set it, and it always points to a slot of this block. That it is aligned spares the lease, which
        // has marks in these bits, a test.
        unsafe {
            std::hint::assert_unchecked(last.is_aligned());
            &*last
        }
    }

    fn set_last(&self, nth: usize) {
        self.last.store(std::ptr::from_ref(&self.slots[nth]).cast_mut(), Ordering::Relaxed);
        if self.used.load(Ordering::Relaxed) <= nth as u32 {
            self.used.store(nth as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Returns one of those that are known to be free, whether the one behind the last is free or not. With leases that end in
    /// any order that is unpredictable, and a processor that guesses wrong loses as much time as a hit takes.
    #[cold]
    #[inline(never)]
    fn next_slot(&self) -> Option<&Slot> {
        let free = self.free.load(Ordering::Relaxed);
        let next = free.trailing_zeros() as usize;
        let slot = self.slots.get(next)?;
        self.free.store(free & (free - 1), Ordering::Relaxed);
        self.set_last(next);
        Some(slot)
    }

    fn number_of_last(&self) -> usize {
        (std::ptr::from_ref(self.last()).addr() - self.slots.as_ptr().addr()) / size_of::<Slot>()
    }

    /// Looks which slots are free. Returns how many. For the owner of the block.
    fn refresh(&self) -> u32 {
        let mut free = 0;
        for (nth, slot) in self.slots.iter().enumerate() {
            free |= u64::from(slot.read() == 0) << nth;
        }
        self.free.store(free & !(1 << self.number_of_last()), Ordering::Relaxed);
        free.count_ones()
    }

    /// Counts a hit. For the owner of the block, so that load and store suffice.
    #[inline(always)]
    pub(crate) fn count(&self, exact: bool, pages: u64) {
        let add = |counter: &AtomicU64, more| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.hits[usize::from(exact)], 1);
        add(&self.hit_pages, pages);
    }

    /// Returns the slots that may be in use. After a heavy barrier: what is announced elsewhere finds its record
    /// hidden.
    fn used(&self) -> &[Slot] {
        &self.slots[..self.used.load(Ordering::Relaxed) as usize]
    }

    /// Appends the names in the slots.
    fn read(&self, names: &mut Vec<u32>) {
        names.extend(self.used().iter().map(Slot::read).filter(|&name| name != 0));
    }
}

/// The blocks of one cache.
pub(crate) struct Blocks {
    /// The number of the cache: neither 0 nor [`NOBODY`], and never used again. Modulo [`NEAR_BLOCKS`] it is the place where
    /// threads look for their block first.
    number: u64,
    notifier: &'static Notifier,
    list: Mutex<Vec<&'static Block>>,
}

impl Blocks {
    pub(crate) fn new() -> Arc<Self> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let notifier = Notifier::claim();
        let count = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let number = count * NEAR_BLOCKS as u64 + (notifier.number() % NEAR_BLOCKS) as u64;
        Arc::new(Self { number, notifier, list: Mutex::new(Vec::new()) })
    }

    /// Returns the number of the cache.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the background thread's.
    pub(crate) fn notifier(&self) -> &'static Notifier {
        self.notifier
    }

    fn list(&self) -> MutexGuard<'_, Vec<&'static Block>> {
        self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Appends every name that is in a slot of any thread.
    pub(crate) fn read(&self, names: &mut Vec<u32>) {
        self.list().iter().for_each(|block| block.read(names));
    }

    /// Makes every later release of one of these regions report; one in progress may not. The names are in their
    /// order. Appends those that were to be told and are not any more.
    pub(crate) fn await_releases(&self, names: &[u32], dropped: &mut Vec<u32>) {
        for slot in self.list().iter().flat_map(|block| block.used()) {
            let name = slot.read();
            if name != 0 && names.binary_search(&name).is_ok() {
                let before = slot.awaited.swap(name, Ordering::AcqRel);
                if before != 0 && before != name {
                    dropped.push(before);
                }
            }
        }
    }

    /// Appends every name that is in a slot of any thread, and apart those with releases that will not be reported.
    pub(crate) fn read_unaware(&self, names: &mut Vec<u32>, unaware: &mut Vec<u32>) {
        for slot in self.list().iter().flat_map(|block| block.used()) {
            let name = slot.read();
            if name != 0 {
                names.push(name);
                if slot.awaited.load(Ordering::Relaxed) != name {
                    unaware.push(name);
                }
            }
        }
    }

    /// Hits counted by all threads that ever were: partial, exact, and their pages.
    pub(crate) fn counts(&self) -> ([u64; 2], u64) {
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

    fn claim(&self) -> &'static Block {
        let mut list = self.list();
        for block in list.iter() {
            // Acquire, with the release of the thread that gave it up: its counts are seen. It may still have leases.
            if !block.owned.load(Ordering::Acquire) && block.refresh() >= ENOUGH {
                block.owned.store(true, Ordering::Relaxed);
                return block;
            }
        }
        let block = Block::claim(self.notifier);
        list.push(block);
        block
    }
}

impl Drop for Blocks {
    /// The cache is gone, so no lease has a slot, and no thread comes here for another.
    fn drop(&mut self) {
        POOL.put(self.list().drain(..));
        self.notifier.give_up();
    }
}

/// The blocks that this thread owns of one cache.
struct Chain {
    cache: u64,
    blocks: Weak<Blocks>,
    chain: Vec<&'static Block>,
    /// The one that is filled.
    current: usize,
    /// How many leases are counted before the chain is looked at again.
    respite: u32,
}

impl Chain {
    fn of(blocks: &Arc<Blocks>) -> Self {
        let chain = vec![blocks.claim()];
        Self { cache: blocks.number, blocks: Arc::downgrade(blocks), chain, current: 0, respite: 0 }
    }

    /// Makes a block with free slots the current one. `None` if there is none and there may be no more.
    fn advance(&mut self, blocks: &Blocks) -> Option<()> {
        if self.respite > 0 {
            self.respite -= 1;
            return None;
        }
        let mut most = (0, self.current);
        for _ in 0..LOOKS.min(self.chain.len()) {
            let free = self.chain[self.current].refresh();
            if free >= ENOUGH {
                return Some(());
            }
            most = most.max((free, self.current));
            self.current = (self.current + 1) % self.chain.len();
        }
        if self.chain.len() < MOST_BLOCKS {
            self.current = self.chain.len();
            self.chain.push(blocks.claim());
            return Some(());
        }
        if most.0 == 0 {
            self.respite = RESPITE;
            return None;
        }
        self.current = most.1;
        Some(())
    }
}

/// The chains of this thread, by the numbers of the caches' notifiers; given up when the thread ends.
struct Mine(Vec<Option<Chain>>);

impl Drop for Mine {
    fn drop(&mut self) {
        _ = NEAR.try_with(Near::clear);
        for Chain { blocks, chain, .. } in self.0.iter().flatten() {
            // Blocks of a cache that is gone are others' by now.
            if let Some(_blocks) = blocks.upgrade() {
                chain.iter().for_each(|block| block.owned.store(false, Ordering::Release));
            }
        }
    }
}

/// The blocks that are filled, by the places of their caches. Caches that there are at the same time have different places,
/// if they are no more than these. In two arrays: an index into words is part of an instruction.
struct Near {
    owners: [Cell<u64>; NEAR_BLOCKS],
    blocks: [Cell<NonNull<Block>>; NEAR_BLOCKS],
}

/// A power of two: the place is some bits of the number. Each thread has 16 bytes for each of them, and some have little stack.
const NEAR_BLOCKS: usize = 128;

impl Near {
    const fn new() -> Self {
        let blocks = [const { Cell::new(NonNull::dangling()) }; NEAR_BLOCKS];
        Self { owners: [const { Cell::new(0) }; NEAR_BLOCKS], blocks }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "it follows the pointer to the block")]
    fn get(&self, cache: u64) -> Option<&'static Block> {
        let place = cache as usize % NEAR_BLOCKS;
        // SAFETY: `set` stores both, no cache has the number 0 of a place that was never set, and no block is freed.
        (self.owners[place].get() == cache).then(|| unsafe { self.blocks[place].get().as_ref() })
    }

    fn set(&self, cache: u64, block: &'static Block) {
        let place = cache as usize % NEAR_BLOCKS;
        self.owners[place].set(cache);
        self.blocks[place].set(NonNull::from(block));
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
pub(crate) const NOBODY: u64 = u64::MAX;

/// Returns the block that this thread fills of the cache of that number, if it was used not long ago.
#[inline(always)]
pub(crate) fn nearby(cache: u64) -> Option<&'static Block> {
    NEAR.try_with(|near| near.get(cache)).ok().flatten()
}

/// Returns a free slot of this thread, and its block. `None` where the thread is ending and has no place to keep blocks,
/// where it has as many leases as it may have slots, or where it needs a block and may not take the list's lock.
#[inline]
pub(crate) fn free_slot(
    blocks: &Arc<Blocks>,
    may_lock: impl FnOnce() -> bool,
) -> Option<(&'static Block, &'static Slot)> {
    if let Some(block) = nearby(blocks.number)
        && let Some(slot) = block.free_slot()
    {
        return Some((block, slot));
    }
    if may_lock() { find_slot(blocks) } else { None }
}

/// Returns the block in which this thread counts; `None` where it has none and cannot have one now.
pub(crate) fn mine(blocks: &Arc<Blocks>, may_lock: impl FnOnce() -> bool) -> Option<&'static Block> {
    let near = nearby(blocks.number);
    near.or_else(|| if may_lock() { with_chain(blocks, |chain| Some(chain.chain[chain.current])) } else { None })
}

#[cold]
#[inline(never)]
fn find_slot(blocks: &Arc<Blocks>) -> Option<(&'static Block, &'static Slot)> {
    with_chain(blocks, |chain| {
        if let Some(slot) = chain.chain[chain.current].free_slot() {
            return Some((chain.chain[chain.current], slot));
        }
        chain.advance(blocks)?;
        let block = chain.chain[chain.current];
        Some((block, block.free_slot()?))
    })
}

/// Does something with this thread's chain of a cache. The block that is current after that is near from then on.
fn with_chain<A>(blocks: &Arc<Blocks>, work: impl FnOnce(&mut Chain) -> Option<A>) -> Option<A> {
    let number = blocks.notifier.number();
    let (answer, block) = MINE
        .try_with(|mine| {
            let chains = &mut mine.try_borrow_mut().ok()?.0;
            if chains.len() <= number {
                chains.resize_with(number + 1, || None);
            }
            let chain = match &mut chains[number] {
                Some(chain) if chain.cache == blocks.number => chain,
                // The chain of a cache that is gone goes too.
                other => other.insert(Chain::of(blocks)),
            };
            let answer = work(chain);
            Some((answer, chain.chain[chain.current]))
        })
        .ok()??;
    NEAR.try_with(|near| near.set(blocks.number, block)).ok()?;
    answer
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Fills this thread's slots.
    fn fill(blocks: &Arc<Blocks>, leases: usize) -> Vec<&'static Slot> {
        let mut slots = Vec::new();
        for _ in 0..leases {
            let (_, slot) = free_slot(blocks, || true).unwrap();
            slot.hold(7);
            slots.push(slot);
        }
        slots
    }

    fn chain(blocks: &Arc<Blocks>) -> usize {
        with_chain(blocks, |chain| Some(chain.chain.len())).unwrap()
    }

    #[test]
    fn a_chain_grows_with_its_leases_and_no_further() {
        let blocks = Blocks::new();
        let mut slots = fill(&blocks, 10 * SLOTS);
        assert_eq!(chain(&blocks), 10);
        for round in 0..20 * SLOTS {
            slots[round % (10 * SLOTS)].release();
            slots[round % (10 * SLOTS)] = free_slot(&blocks, || true).unwrap().1;
            slots[round % (10 * SLOTS)].hold(7);
        }
        assert_eq!(chain(&blocks), 11, "one in which the next ones begin");
        slots.iter().for_each(|slot| slot.release());
        let mut names = Vec::new();
        blocks.read(&mut names);
        assert_eq!(names, []);
    }

    #[test]
    fn each_slot_leads_to_its_block() {
        // Blocks that are claimed are never given back here; valgrind finds them.
        static CLAIMED: std::sync::Mutex<Vec<&'static Block>> = std::sync::Mutex::new(Vec::new());
        let notifier = Notifier::claim();
        // More than a slab has.
        for block in std::iter::repeat_with(|| Block::claim(notifier)).take(2 * SLAB) {
            assert!(block.slots.iter().all(|slot| std::ptr::eq(Block::of(slot), block)));
            CLAIMED.lock().unwrap().push(block);
        }
    }

    #[test]
    fn a_full_chain_is_not_looked_at_each_time() {
        let blocks = Blocks::new();
        let slots = fill(&blocks, MOST_BLOCKS * SLOTS);
        assert!(free_slot(&blocks, || true).is_none());
        slots[0].release();
        let tries = (0..100_000).take_while(|_| free_slot(&blocks, || true).is_none()).count();
        assert!(tries <= (RESPITE as usize + 1) * MOST_BLOCKS.div_ceil(LOOKS), "{tries}");
        slots.iter().for_each(|slot| slot.release());
    }

    #[test]
    fn blocks_of_many_caches_are_near_at_hand() {
        let caches: Vec<_> = (0..64).map(|_| Blocks::new()).collect();
        if caches.iter().any(|blocks| blocks.notifier.number() >= NEAR_BLOCKS) {
            println!("skipped: other tests have too many caches");
            return;
        }
        caches.iter().for_each(|blocks| assert!(free_slot(blocks, || true).is_some()));
        assert!(caches.iter().all(|blocks| nearby(blocks.number).is_some()));
    }

    #[test]
    fn a_thread_that_ends_leaves_its_block_to_the_next() {
        let blocks = Blocks::new();
        let claim = || std::thread::scope(|threads| threads.spawn(|| fill(&blocks, 1)[0]).join().unwrap());
        let (first, second) = (claim(), claim());
        // It has a lease still, and room.
        assert!(std::ptr::eq(Block::of(first), Block::of(second)));
        let mut names = Vec::new();
        blocks.read(&mut names);
        assert_eq!(names, [7, 7]);
        // Blocks are used again when the cache is gone, and are empty then.
        [first, second].into_iter().for_each(Slot::release);
    }
}
