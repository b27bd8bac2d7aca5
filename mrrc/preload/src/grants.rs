//! Rights of peers in one domain of the program's, each given by a memory window and ended with its registration.
//!
//! # Locks and ownership
//!
//! The windows are behind a lock that is held while one is bound or unbound, and for nothing else. A grant owns what keeps its
//! region registered. The window ends before that does; if it does not end, the region stays registered for good.

use crate::looped::Looped;
use crate::stats::Stats;
use crate::windows::{Bound, Bytes, Device, Windows};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The windows of one domain.
pub(crate) struct Grants {
    windows: Mutex<Windows<Looped>>,
    /// Whether windows give rights to atomic operations.
    atomics: bool,
    stats: &'static Stats,
    /// The program has closed the domain: nothing of it is called any more.
    closed: Arc<AtomicBool>,
}

type Key = Bound<<Looped as Device>::Window>;

impl Grants {
    pub(crate) fn new(windows: Windows<Looped>, atomics: bool, stats: &'static Stats, closed: Arc<AtomicBool>) -> Self {
        Self { windows: Mutex::new(windows), atomics, stats, closed }
    }

    pub(crate) fn has_atomics(&self) -> bool {
        self.atomics
    }

    /// Lets peers at exactly these bytes with exactly these rights. `region` is what keeps them registered.
    pub(crate) fn grant<L>(self: &Arc<Self>, bytes: &Bytes, region: L) -> Option<Grant<L>> {
        match self.windows().bind(bytes) {
            Ok(bound) => {
                self.stats.bound();
                Some(Grant { of: self.clone(), bound: Some(bound), region: Some(region) })
            }
            Err(_) => {
                self.stats.window_failed();
                None
            }
        }
    }

    /// Ends the idle windows that were bound to a region, before that is deregistered.
    pub(crate) fn region_ends(&self, region: usize) {
        self.windows().region_ends(region);
    }

    /// Ends what no grant uses: the idle windows and, if there is no grant, the queue pair.
    pub(crate) fn close(&self) {
        if !self.is_closed() {
            self.windows().close();
        }
    }

    /// The domain is closed: the kernel has taken everything back.
    pub(crate) fn abandon(&self) {
        self.windows().abandon();
    }

    /// Returns how many windows are bound and how many are idle.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.windows().counts()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn windows(&self) -> MutexGuard<'_, Windows<Looped>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right of peers to the bytes of one registration.
pub(crate) struct Grant<L> {
    of: Arc<Grants>,
    bound: Option<Key>,
    region: Option<L>,
}

impl<L> Grant<L> {
    /// Returns the key that peers use.
    pub(crate) fn key(&self) -> u32 {
        self.bound.as_ref().map_or(0, |bound| bound.key)
    }

    /// Returns when the key opens nothing any more.
    ///
    /// # Errors
    /// An `errno`: the device did not end the window, and peers may still use it.
    pub(crate) fn end(&mut self) -> Result<(), i32> {
        if let Some(bound) = self.bound.take()
            && !self.of.is_closed()
            && let Err((bound, why)) = self.of.windows().unbind(bound)
        {
            self.of.stats.window_failed();
            self.bound = Some(bound);
            return Err(why);
        }
        self.region = None;
        Ok(())
    }
}

impl<L> Drop for Grant<L> {
    fn drop(&mut self) {
        if self.end().is_err() {
            std::mem::forget(self.region.take());
        }
    }
}
