//! The steps by which windows are bound and unbound in a domain, over a device behind a trait.
//!
//! A window that cannot be unbound is ended by the device, which ends its key as well. So a registration is over when
//! [`Windows::unbind`] returns `Ok`, whatever the queue pair did.
//!
//! A queue pair in error is torn down and made anew by the next binding. A binding is tried twice. After [`MOST_FAILURES`] failures
//! without a success between them no window is bound in the domain any more. Those that are bound are then ended without a try to unbind
//! them. A queue pair that does not answer counts as [`SILENCE`] failures, because others wait as long.
//!
//! A device may give a new window the number of one that was ended, and with it keys that peers may still have. So a window whose next
//! key is one of the last [`MOST_ENDED`] is left idle.

use super::pool::{MOST_IDLE, Pool, Window};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// Failures of the queue pair in a row after which a domain has no windows.
const MOST_FAILURES: u32 = 8;
/// The failures that a queue pair without an answer counts as.
const SILENCE: u32 = MOST_FAILURES / 2;
/// Keys that ended last and are not used again. As many as one window has.
const MOST_ENDED: usize = 127;
/// Windows that the device did not end, after which there are no more.
const MOST_LEFT: usize = 64;

/// The bytes of a window, the region that they lie in, and the rights of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    pub(super) region: usize,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) rights: u32,
}

/// Why the device did not carry out a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// It refused the call, and nothing has changed. The number is an `errno`.
    Refused(i32),
    /// The queue pair is in error.
    Broken,
    /// The queue pair did not answer for a long time.
    Silent,
}

impl Failure {
    /// Returns the failures of the queue pair that it counts as.
    fn weight(self) -> u32 {
        match self {
            Self::Refused(_) => 0,
            Self::Broken => 1,
            Self::Silent => SILENCE,
        }
    }
}

/// A device with windows, and the queue pair that binds them.
pub(super) trait Device {
    type Window: Copy;

    /// Makes a window. The error is an `errno`.
    fn make(&mut self) -> Result<Self::Window, i32>;
    /// Returns the window's key now. The next step changes its last 8 bits to the number that follows.
    fn key(&self, window: Self::Window) -> u32;
    /// Returns the new key when the window is bound. Makes the queue pair first if it is not there yet.
    fn bind(&mut self, window: Self::Window, bytes: &Bytes) -> Result<u32, Failure>;
    /// Returns when the window is unbound. Makes the queue pair first if it is not there yet.
    fn unbind(&mut self, window: Self::Window, region: usize) -> Result<(), Failure>;
    /// Ends a window, bound or not.
    fn end(&mut self, window: Self::Window) -> Result<(), i32>;
    /// Ends the queue pair, so that nothing that was posted is carried out any more.
    fn tear_down(&mut self);
    /// Forgets the queue pair, which has gone with its domain.
    fn abandon(&mut self);
}

/// A window that is bound, and its key.
#[derive(Debug)]
pub(super) struct Bound<W> {
    window: Window<W>,
    pub(super) key: u32,
}

/// The keys that ended last.
#[derive(Default)]
struct Ended {
    order: VecDeque<u32>,
    all: FxHashSet<u32>,
}

impl Ended {
    fn add(&mut self, key: u32) {
        if self.all.insert(key) {
            self.order.push_back(key);
        }
        if self.order.len() > MOST_ENDED
            && let Some(first) = self.order.pop_front()
        {
            self.all.remove(&first);
        }
    }

    fn has(&self, key: u32) -> bool {
        self.all.contains(&key)
    }

    /// Returns how many keys ended before this one.
    fn age(&self, key: u32) -> Option<usize> {
        self.order.iter().position(|&ended| ended == key)
    }
}

/// Returns the key that a window has after the next step.
fn following(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// The windows of one domain.
pub(super) struct Windows<D: Device> {
    device: D,
    pool: Pool<D::Window>,
    ended: Ended,
    /// Windows that the device refused to end. The program knows none of their keys, unless it ended the registration.
    left: Vec<D::Window>,
    bound: usize,
    failures: u32,
}

impl<D: Device> Windows<D> {
    pub(super) fn new(device: D) -> Self {
        Self { device, pool: Pool::new(MOST_IDLE), ended: Ended::default(), left: Vec::new(), bound: 0, failures: 0 }
    }

    /// Binds a window over exactly these bytes, with exactly these rights.
    ///
    /// # Errors
    /// The `errno` of the refusal. Nothing is bound then.
    pub(super) fn bind(&mut self, bytes: &Bytes) -> Result<Bound<D::Window>, i32> {
        for _ in 0..2 {
            if self.has_failed() || self.left.len() >= MOST_LEFT {
                break;
            }
            let mut window = self.take()?;
            match self.device.bind(window.handle, bytes) {
                Ok(key) => {
                    window.is_bound(bytes.region);
                    (self.failures, self.bound) = (0, self.bound + 1);
                    return Ok(Bound { window, key });
                }
                Err(Failure::Refused(why)) => {
                    window.is_unbound();
                    self.keep(window);
                    return Err(why);
                }
                Err(failure) => {
                    self.failures += failure.weight();
                    // First the pair, so that the binding does not come after the window's end.
                    self.device.tear_down();
                    self.end(window.handle);
                }
            }
        }
        Err(libc::EIO)
    }

    /// Returns when the window's key opens nothing any more.
    ///
    /// # Errors
    /// The device neither unbinds nor ends it: the window is still bound.
    pub(super) fn unbind(&mut self, mut bound: Bound<D::Window>) -> Result<(), (Bound<D::Window>, i32)> {
        let (handle, region) = (bound.window.handle, bound.window.region());
        // A device that does not answer would not do so for each of many windows.
        if !self.has_failed() {
            // The key may have changed, whatever comes of it.
            bound.window.is_unbound();
            match self.device.unbind(handle, region) {
                Ok(()) => {
                    self.keep(bound.window);
                    self.is_over(bound.key);
                    return Ok(());
                }
                Err(Failure::Refused(_)) => {}
                Err(failure) => {
                    self.failures += failure.weight();
                    self.device.tear_down();
                }
            }
        }
        match self.device.end(handle) {
            Ok(()) => {
                self.is_over(bound.key);
                Ok(())
            }
            Err(why) => Err((bound, why)),
        }
    }

    /// Notes that a key opens nothing any more.
    fn is_over(&mut self, key: u32) {
        self.bound -= 1;
        self.ended.add(key);
    }

    /// Whether the queue pair failed too often.
    fn has_failed(&self) -> bool {
        self.failures >= MOST_FAILURES
    }

    /// Returns a window, idle or new. Its next key did not end lately.
    fn take(&mut self) -> Result<Window<D::Window>, i32> {
        let mut stale = Vec::new();
        // It ends: the keys of windows differ.
        let found = loop {
            let window = match self.pool.take() {
                Some(window) => window,
                None => match self.device.make() {
                    Ok(handle) => Window::new(handle),
                    Err(why) => break Err(why),
                },
            };
            if !self.ended.has(self.next_key(&window)) {
                break Ok(window);
            }
            stale.push(window);
        };
        let found = found.or_else(|why| {
            // The device has no more windows. The one whose next key ended first is next.
            let ages = stale.iter().map(|window| self.ended.age(self.next_key(window)));
            let oldest = ages.enumerate().min_by_key(|&(_, age)| age);
            oldest.map(|(at, _)| stale.swap_remove(at)).ok_or(why)
        });
        stale.into_iter().for_each(|window| self.keep(window));
        found
    }

    fn next_key(&self, window: &Window<D::Window>) -> u32 {
        following(self.device.key(window.handle))
    }

    /// Ends the idle windows that were bound to a region, before that ends.
    pub(super) fn region_ends(&mut self, region: usize) {
        for window in self.pool.take_of(region) {
            self.end(window);
        }
    }

    /// Ends all idle windows and, unless one is bound, the queue pair. The next binding makes it anew.
    pub(super) fn close(&mut self) {
        let all = self.pool.take_all();
        let left = std::mem::take(&mut self.left);
        all.into_iter().chain(left).for_each(|window| self.end(window));
        if self.bound == 0 {
            self.device.tear_down();
        }
    }

    /// Forgets all: the domain is closed, and what was in it is gone.
    pub(super) fn abandon(&mut self) {
        self.pool.take_all();
        self.left.clear();
        self.bound = 0;
        self.device.abandon();
    }

    /// Why no window is bound any more, if that is so.
    pub(super) fn trouble(&self) -> Option<String> {
        if self.has_failed() {
            Some("the queue pair that binds them failed again and again".into())
        } else if self.left.len() >= MOST_LEFT {
            Some(format!("the device refused to end {} of them", self.left.len()))
        } else {
            None
        }
    }

    /// Returns how many are bound and how many are idle.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.bound, self.pool.len())
    }

    fn keep(&mut self, window: Window<D::Window>) {
        if let Some(surplus) = self.pool.put_back(window) {
            self.end(surplus);
        }
    }

    /// Ends a window that is not bound. One that the device refuses to end is tried again at the domain's end.
    fn end(&mut self, window: D::Window) {
        if self.device.end(window).is_err() {
            self.left.push(window);
        }
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
