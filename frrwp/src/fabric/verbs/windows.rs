//! Memory windows: the peer of one connection is let at some bytes of a registration, for reading, for as long as that is wanted.
//!
//! A window is bound, and its key taken back, by requests on the connection's own queue. So the opener of one gets its key at once,
//! and the endpoint posts the binding before the next message: that may carry the key. Taking it back is posted when the endpoint
//! does its work next, which it is woken for. What the window keeps is let go when the device has carried that out, or the
//! connection has ended.
//!
//! Windows are used again, the longest unused first, each time by another key: the low byte of a key is this side's to choose. When
//! it has been all that it can be, the window is given back to the device and another made. A key that is too old opens nothing,
//! or in the end something that its peer was let at again.
//!
//! Windows are made by the endpoint's own thread, some before they are asked for: an opener does not wait for the system. The
//! lock is for the lists here alone, and no call of the system is made with it but one that wakes.

#![expect(unsafe_code, reason = "the calls of libibverbs")]

use super::{VerbsDomain, ib};
use crate::wire::Segment;
use mrrc::registrar::verbs::MemoryRegion;
use rustix::event::{EventfdFlags, eventfd};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Windows of one connection at most.
const MOST: usize = 4096;
/// Unused ones below which more are made, as many as there are, but no more than this at a time.
const LOW: usize = 16;
const AT_ONCE: usize = 128;
/// Keys that a window has.
const KEYS: u32 = 256;

/// The objects kept as long as a peer may access memory by a window.
pub(super) type Keeps = Arc<dyn Any + Send + Sync>;

/// Lets the peer of one connection at memory, for reading. Clones are of the same connection.
///
/// ```no_run
/// use std::sync::Arc;
/// # use frrwp::fabric::Endpoint;
/// # use frrwp::fabric::verbs::{VerbsDomain, VerbsListener, VerbsOptions};
/// # use mrrc::{Access, Cache};
/// let options = VerbsOptions { windows: true, ..VerbsOptions::default() };
/// let domain = VerbsDomain::open(None, options)?;
/// let mut endpoint = VerbsListener::bind(&domain, "verbs:0.0.0.0:7471")?.accept(64, None)?;
/// let cache = Cache::builder(domain.clone()).build()?;
/// let memory = vec![7_u8; 8192];
/// // SAFETY: the memory outlives the lease.
/// let lease = Arc::new(unsafe { cache.acquire(memory.as_ptr(), memory.len(), Access::LOCAL) }?);
/// if let (Some(windows), Some(part)) = (endpoint.windows(), lease.segments().next()) {
///     // SAFETY: the owner of the lease has the memory, and it registered. The peer reads bytes that are not written meanwhile.
///     let window = unsafe { windows.open(part.registration(), memory[100..].as_ptr(), 200, lease.clone()) }?;
///     let told = window.segment();
///     endpoint.send(&told.key.to_le_bytes())?;
///     // … and from when it is dropped the key is on its way to open nothing.
///     drop(window);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Windows(Arc<Shared>);

struct Shared {
    domain: VerbsDomain,
    state: Mutex<State>,
    /// Whether something is to be posted, or made.
    waits: AtomicBool,
    wakes: OwnedFd,
}

#[derive(Default)]
struct State {
    ended: bool,
    all: Vec<Option<One>>,
    /// Numbers of `all` that are none's, and of unused windows.
    vacant: Vec<usize>,
    unused: VecDeque<usize>,
    wanted: VecDeque<Wanted>,
    /// The windows that went with the connection, until the queue pair is gone too.
    kept: Vec<Keeps>,
}

struct One {
    window: NonNull<ib::ibv_mw>,
    /// As it is bound, or was last, and how often it was.
    key: u32,
    bound: u32,
    keeps: Option<Keeps>,
}

enum Wanted {
    Bind { number: usize, region: NonNull<ib::ibv_mr>, address: u64, length: u64 },
    Close { number: usize },
}

// SAFETY: libibverbs' windows and regions belong to no thread.
unsafe impl Send for State {}

/// The work to be posted.
pub(super) enum Work {
    Bind { window: NonNull<ib::ibv_mw>, key: u32, region: NonNull<ib::ibv_mr>, address: u64, length: u64 },
    Invalidate { number: usize, key: u32 },
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the endpoint look. With the lock, so that it is not put to sleep again meanwhile.
    fn wake(&self) {
        if !self.waits.swap(true, Ordering::Release) {
            // It fails only where it is awake already.
            let _ = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes());
        }
    }

    /// Returns a window of the device's, if there are more.
    fn make(&self) -> Option<One> {
        // SAFETY: the context and the domain are open as long as this has a clone of them.
        let window = unsafe {
            let make = (*self.domain.context()).ops.alloc_mw?;
            NonNull::new(make(self.domain.protection_domain(), ib::ibv_mw_type::IBV_MW_TYPE_2))?
        };
        // SAFETY: libibverbs has just returned the window, so its key can be read.
        let key = unsafe { (*window.as_ptr()).rkey };
        Some(One { window, key, bound: 0, keeps: None })
    }
}

/// Gives a window back to the device: by its keys no peer accesses anything any more, whatever it was bound to.
fn give_back(window: NonNull<ib::ibv_mw>) {
    // SAFETY: it was made, and is given back once; nothing of it is posted any more.
    unsafe {
        if let Some(give_back) = (*(*window.as_ptr()).context).ops.dealloc_mw {
            give_back(window.as_ptr());
        }
    }
}

impl State {
    fn enter(&mut self, one: One) {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[number] = Some(one);
        self.unused.push_back(number);
    }

    fn made(&self) -> usize {
        self.all.len() - self.vacant.len()
    }

    fn is_short(&self) -> bool {
        !self.ended && self.unused.len() < LOW && self.made() < MOST
    }
}

impl Windows {
    pub(super) fn new(domain: &VerbsDomain) -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let windows = Self(Arc::new(Shared {
            domain: domain.clone(),
            state: Mutex::default(),
            waits: AtomicBool::new(false),
            wakes,
        }));
        windows.stock();
        Ok(windows)
    }

    /// Lets the peer read these bytes by a key of their own. It is valid from the next message on that the endpoint sends,
    /// until the window is dropped and the device has taken the key back. `keeps` is dropped after that.
    ///
    /// # Errors
    /// The device has no more windows, or the connection all that it may have; it has ended; the registration does not cover
    /// the bytes. None of these ends the connection.
    ///
    /// # Safety
    /// As long as `keeps` lives, peers may read the bytes, and they stay registered by this registration of the connection's domain.
    pub unsafe fn open(
        &self,
        registration: &MemoryRegion,
        address: *const u8,
        length: usize,
        keeps: Arc<dyn Any + Send + Sync>,
    ) -> io::Result<Window> {
        let (address, length) = (address as u64, length as u64);
        if length == 0 || !registration.holds(address, length) {
            let what = "a window over bytes that its registration does not cover: register them, and at least one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut state = self.0.state();
        if state.ended {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let Some(number) = state.unused.pop_front() else {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "no memory window is left: close others first"));
        };
        let Some(one) = &mut state.all[number] else { return Err(io::ErrorKind::NotFound.into()) };
        one.key = (one.key & !(KEYS - 1)) | (one.key.wrapping_add(1) & (KEYS - 1));
        one.bound += 1;
        one.keeps = Some(keeps);
        let key = one.key;
        state.wanted.push_back(Wanted::Bind { number, region: registration.raw().cast(), address, length });
        self.0.wake();
        drop(state);
        Ok(Window { of: self.0.clone(), number, segment: Segment { address, length, key } })
    }

    /// Returns the descriptor that is readable when the endpoint is to look.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.0.wakes.as_fd()
    }

    /// Returns the next work to post. Makes windows before, where they are getting few.
    pub(super) fn next(&self) -> Option<Work> {
        if !self.0.waits.load(Ordering::Acquire) {
            return None;
        }
        self.stock();
        let state = self.0.state();
        match state.wanted.front() {
            Some(&Wanted::Bind { number, region, address, length }) => {
                let One { window, key, .. } = *state.all[number].as_ref()?;
                Some(Work::Bind { window, key, region, address, length })
            }
            Some(&Wanted::Close { number }) => {
                let key = state.all[number].as_ref()?.key;
                Some(Work::Invalidate { number, key })
            }
            None => {
                self.0.waits.store(false, Ordering::Relaxed);
                let _ = rustix::io::read(&self.0.wakes, &mut [0; 8]);
                None
            }
        }
    }

    /// Notes that the next work was posted.
    pub(super) fn is_posted(&self) {
        self.0.state().wanted.pop_front();
    }

    /// Makes windows where few are left.
    fn stock(&self) {
        let state = self.0.state();
        if !state.is_short() {
            return;
        }
        let count = state.made().clamp(LOW, AT_ONCE).min(MOST - state.made());
        drop(state);
        let made: Vec<_> = std::iter::from_fn(|| self.0.make()).take(count).collect();
        let mut state = self.0.state();
        made.into_iter().for_each(|one| state.enter(one));
    }

    /// The device has taken back this window's key.
    pub(super) fn closed(&self, number: usize) {
        let mut state = self.0.state();
        let Some(one) = state.all.get_mut(number).and_then(Option::as_mut) else { return };
        let keeps = one.keeps.take();
        let old = if one.bound + 1 < KEYS {
            state.unused.push_back(number);
            None
        } else {
            state.vacant.push(number);
            state.all[number].take()
        };
        if state.is_short() {
            self.0.wake();
        }
        drop(state);
        if let Some(One { window, .. }) = old {
            give_back(window);
        }
        drop(keeps);
    }

    /// The connection ends: windows go, and nothing is posted any more.
    pub(super) fn end(&self) {
        let mut state = self.0.state();
        state.ended = true;
        state.wanted.clear();
        state.unused.clear();
        let all = std::mem::take(&mut state.all);
        state.vacant.clear();
        let mut windows = Vec::with_capacity(all.len());
        for One { window, keeps, .. } in all.into_iter().flatten() {
            windows.push(window);
            state.kept.extend(keeps);
        }
        drop(state);
        windows.into_iter().for_each(give_back);
    }

    /// And its queue pair has gone.
    pub(super) fn release(&self) {
        let kept = std::mem::take(&mut self.0.state().kept);
        drop(kept);
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state();
        f.debug_struct("Windows").field("made", &state.made()).field("unused", &state.unused.len()).finish()
    }
}

/// Some bytes that the peer of one connection may read by a key of their own. Dropping it takes the key back, and waits for
/// nothing.
#[must_use = "the key is taken back when this is dropped"]
pub struct Window {
    of: Arc<Shared>,
    number: usize,
    segment: Segment,
}

impl Window {
    /// Returns the segment for the peer.
    pub fn segment(&self) -> Segment {
        self.segment
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut state = self.of.state();
        if !state.ended {
            state.wanted.push_back(Wanted::Close { number: self.number });
            self.of.wake();
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("segment", &self.segment).finish_non_exhaustive()
    }
}
