//! The `ibv_mr` that a program is given for a registration that the cache serves.
//!
//! It shows the address and length that were asked for, and the keys of the region that covers them. It lies in
//! memory of the shim's, so its address shows that it is not libibverbs' own. Two things follow from that:
//!
//! * A *stranger* (a region of libibverbs' own, of a driver's, a dma-buf's) is never taken for one of these.
//! * One that is deregistered twice is known as dead and refused, however late. libibverbs would use freed memory.
//!
//! No kernel gives the handle in it. A copy of the structure that is passed to libibverbs is refused as unknown, and
//! does not deregister the cache's.
//!
//! # Locks and ownership
//!
//! Shadows lie in blocks that are never freed and found without a lock, so that a forked child can tell its parent's. Each has
//! a state; the thread that changes it from *live* to *busy* owns its contents until it changes it again. The dead
//! wait in a queue and are used again in the order of their deaths. So many others come first that an old pointer is
//! unlikely to be still in use.
#![expect(unsafe_code, reason = "memory that programs in C read")]

use crate::abi::{Mr, MrTail};
use crate::pinner::Pinner;
use mrrc::Lease;
use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The backing of a shadow.
pub(crate) enum Backing {
    /// A region of a cache, and perhaps a window for peers.
    Leased(Lease<Pinner>),
    /// A registration of its own, after it was changed.
    Own(NonNull<Mr>),
}

/// The shim's own data of a shadow.
pub(crate) struct Behind {
    pub(crate) backing: Backing,
    /// The access flags that were asked for.
    pub(crate) access: u32,
}

// SAFETY: libibverbs' regions belong to no thread, and a lease can be sent.
unsafe impl Send for Behind {}

/// The program has a pointer to the first field.
#[repr(C, align(256))]
pub(crate) struct Shadow {
    mr: UnsafeCell<Mr>,
    tail: UnsafeCell<MrTail>,
    state: AtomicU32,
    /// Which process' it is: its number among those that this one descends from.
    owner: AtomicU32,
    /// In which domain, as long as it is not dead.
    pd: AtomicUsize,
    behind: UnsafeCell<Option<Behind>>,
}

// SAFETY: the contents of cells are used by the thread that owns the shadow by its state, or are the program's to read.
unsafe impl Sync for Shadow {}

const LIVE: u32 = 1;
const BUSY: u32 = 2;
const DEAD: u32 = 3;

/// No handle of the kernel's: those count up from 0, and are bounded by 2^31.
const NO_HANDLE: u32 = u32::MAX;

const SIZE: usize = size_of::<Shadow>();
const BLOCK: usize = 1 << 16;
/// The first is left out.
const IN_BLOCK: usize = BLOCK / SIZE;
const _: () = assert!(SIZE == 256 && BLOCK.is_multiple_of(SIZE));

/// Blocks, found by their addresses. Enough for a million registrations at once; what is more is not cached.
static BLOCKS: [AtomicUsize; 1 << 12] = [const { AtomicUsize::new(0) }; 1 << 12];

fn place(block: usize) -> usize {
    (block / BLOCK).wrapping_mul(0x9E37_79B9) >> 7
}

fn is_block(block: usize) -> bool {
    for step in 0..BLOCKS.len() {
        match BLOCKS[(place(block) + step) % BLOCKS.len()].load(Ordering::Acquire) {
            0 => return false,
            found if found == block => return true,
            _ => {}
        }
    }
    false
}

/// False if there is no room.
fn add_block(block: usize) -> bool {
    for step in 0..BLOCKS.len() {
        let at = &BLOCKS[(place(block) + step) % BLOCKS.len()];
        if at.compare_exchange(0, block, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return true;
        }
    }
    false
}

/// Shadows of one process.
pub(crate) struct Shadows {
    process: u32,
    dead: Mutex<VecDeque<&'static Shadow>>,
}

/// The dead that wait, at least, before one is used again.
const WAITING: usize = IN_BLOCK - 1;

impl Shadows {
    pub(crate) fn new(process: u32) -> Self {
        Self { process, dead: Mutex::new(VecDeque::new()) }
    }

    /// Shows a registration to the program. None, with what was to stand behind it, where there is no room for more.
    pub(crate) fn show(&self, mr: Mr, behind: Behind) -> Result<*mut Mr, Behind> {
        let Some(shadow) = self.take() else { return Err(behind) };
        // SAFETY: no other thread has it: it was dead, and taken out of the queue.
        unsafe {
            *shadow.mr.get() = Mr { handle: NO_HANDLE, ..mr };
            *shadow.tail.get() = MrTail { kind: 0, access: behind.access as i32, drivers: [0; 12] };
            *shadow.behind.get() = Some(behind);
        }
        shadow.pd.store(mr.pd as usize, Ordering::Relaxed);
        shadow.state.store(LIVE, Ordering::Release);
        Ok(shadow.mr.get())
    }

    fn take(&self) -> Option<&'static Shadow> {
        let mut dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        if dead.len() <= WAITING {
            dead.extend(more(self.process)?);
        }
        dead.pop_front()
    }

    /// Returns whether it is one of this process', and not of one that it was forked from.
    pub(crate) fn owns(&self, shadow: &Shadow) -> bool {
        shadow.owner.load(Ordering::Relaxed) == self.process
    }

    /// Its end. It is used again later.
    pub(crate) fn release(&self, held: Held) {
        let shadow = held.end();
        if self.owns(shadow) {
            self.dead.lock().unwrap_or_else(PoisonError::into_inner).push_back(shadow);
        }
    }

    /// Returns those of this process that show registrations in a domain, except those that another thread is changing.
    pub(crate) fn of_domain(&self, pd: usize) -> Vec<Held> {
        let mut found = Vec::new();
        for block in &BLOCKS {
            let block = block.load(Ordering::Acquire);
            for at in 0..if block == 0 { 0 } else { IN_BLOCK } {
                // SAFETY: a block that is known is full of shadows, and stays.
                let shadow = unsafe { &*((block + at * SIZE) as *const Shadow) };
                // Others are not touched, so that a concurrent deregistration does not find them busy.
                if self.owns(shadow) && shadow.pd.load(Ordering::Relaxed) == pd {
                    found.extend(hold(shadow));
                }
            }
        }
        found
    }
}

/// Returns a block of new ones.
fn more(process: u32) -> Option<impl Iterator<Item = &'static Shadow>> {
    let layout = Layout::from_size_align(BLOCK, BLOCK).ok()?;
    // SAFETY: the layout has a size. Zeroed, it is full of shadows of no state and nothing behind them.
    let block = unsafe { alloc_zeroed(layout) };
    let first = block.cast::<Shadow>();
    if first.is_null() {
        return None;
    }
    let shadows = (0..IN_BLOCK).map(move |at| {
        // SAFETY: in the block, which is never freed once it is known; and no other thread has it yet.
        let shadow = unsafe { first.add(at) };
        // SAFETY: the shadow lies in the fresh block, which no other thread knows yet, and its fields may be written.
        unsafe {
            (&raw mut (*shadow).behind).write(UnsafeCell::new(None));
            (&raw mut (*shadow).owner).write(AtomicU32::new(process));
            (&raw mut (*shadow).state).write(AtomicU32::new(DEAD));
            &*shadow
        }
    });
    // In place before other threads can find them.
    let shadows: Vec<_> = shadows.collect();
    if add_block(block as usize) {
        return Some(shadows.into_iter());
    }
    // SAFETY: it was allocated with this layout, and no other thread knows it.
    unsafe { std::alloc::dealloc(block, layout) };
    None
}

/// Returns the shadow that this `ibv_mr` is, if it is one, live or dead.
pub(crate) fn find(mr: *const Mr) -> Option<&'static Shadow> {
    let address = mr as usize;
    let is_ours = address.is_multiple_of(SIZE) && is_block(address & !(BLOCK - 1));
    // SAFETY: a block that is known is full of shadows, and stays.
    is_ours.then(|| unsafe { &*(mr.cast::<Shadow>()) })
}

/// Returns the flags that a registration was asked for with, where that is known: of a stranger it is not.
pub(crate) fn access(mr: *const Mr) -> u32 {
    // SAFETY: a number, which is written before the shadow is shown and when it is changed, as the program has asked.
    find(mr).map_or(0, |shadow| unsafe { (*shadow.tail.get()).access as u32 })
}

/// A shadow that this thread has for itself. Live again when it is dropped.
pub(crate) struct Held(&'static Shadow);

/// Returns None if it is dead, or another thread has it at the moment.
pub(crate) fn hold(shadow: &'static Shadow) -> Option<Held> {
    shadow.state.compare_exchange(LIVE, BUSY, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| Held(shadow))
}

impl Held {
    /// Returns the structure that the program sees.
    pub(crate) fn mr(&self) -> Mr {
        // SAFETY: the program reads it, and only the holder of the shadow writes.
        unsafe { *self.0.mr.get() }
    }

    pub(crate) fn behind(&self) -> &Behind {
        // SAFETY: it is this thread's as long as it is busy.
        match unsafe { &*self.0.behind.get() } {
            Some(behind) => behind,
            None => unreachable!("a live shadow has something behind it"),
        }
    }

    /// Ends the right of peers, if a window gives it. Returns when its key opens nothing any more.
    ///
    /// # Errors
    /// An `errno`: the window was not ended.
    pub(crate) fn end_window(&mut self) -> Result<(), i32> {
        // SAFETY: it is this thread's as long as it is busy, and this is the only reference.
        match unsafe { &mut *self.0.behind.get() } {
            Some(Behind { backing: Backing::Leased(lease), .. }) => {
                lease.end_windows().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
            }
            _ => Ok(()),
        }
    }

    /// Shows something else from now on. Returns what was behind it.
    pub(crate) fn change(&mut self, mr: Mr, behind: Behind) -> Option<Behind> {
        self.0.pd.store(mr.pd as usize, Ordering::Relaxed);
        // SAFETY: as in `behind`; the program has asked for the change.
        unsafe {
            (*self.0.tail.get()).access = behind.access as i32;
            *self.0.mr.get() = Mr { handle: NO_HANDLE, ..mr };
            (*self.0.behind.get()).replace(behind)
        }
    }

    /// Its contents stay there and are never touched: in a child they are the parent's.
    fn forget(&self) {
        // SAFETY: a held shadow's state is *busy*, so only its holder uses what is behind it.
        std::mem::forget(unsafe { (*self.0.behind.get()).take() });
    }

    /// Dead: no key is left in it.
    fn end(self) -> &'static Shadow {
        let shadow = self.0;
        // SAFETY: a held shadow's state is *busy*, so only its holder uses what is behind it.
        unsafe {
            (*shadow.mr.get()).lkey = 0;
            (*shadow.mr.get()).rkey = 0;
            drop((*shadow.behind.get()).take());
        }
        std::mem::forget(self);
        shadow.pd.store(0, Ordering::Relaxed);
        shadow.state.store(DEAD, Ordering::Release);
        shadow
    }

    /// The end of one that the parent has.
    pub(crate) fn abandon(self) {
        self.forget();
        self.end();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state.store(LIVE, Ordering::Release);
    }
}
