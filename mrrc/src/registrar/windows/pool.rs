//! Which memory window serves a registration, and when a window ends: decisions, and nothing else.
//!
//! A key has 8 bits that change: each binding of a window takes the next of 256 keys, and so does each unbinding. A window is
//! replaced before a key comes round, so an old key never opens what another registration shows. Windows are used again in the
//! order of their ends, so that the same keys lie far apart.
//!
//! An idle window is unbound. Some devices may keep a reference to the region that it was bound to, so it ends before that region
//! does. At most [`MOST_IDLE`] windows are idle.

use std::collections::VecDeque;

/// Idle windows of a domain, at most.
pub(super) const MOST_IDLE: usize = 1024;
/// The changes of a window's key, at most: one less than it has keys.
const MOST_CHANGES: u16 = 255;
/// A registration changes the key when it begins and when it ends.
const CHANGES_EACH: u16 = 2;

/// A window of the device's, and what it was used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window<W> {
    pub(super) handle: W,
    /// How often its key has changed since the device made it.
    changes: u16,
    /// The region that it is bound to, or was last.
    region: usize,
}

impl<W> Window<W> {
    /// Returns a window that the device has just made.
    pub(super) fn new(handle: W) -> Self {
        Self { handle, changes: 0, region: 0 }
    }

    /// Notes that it is bound to a region.
    pub(super) fn is_bound(&mut self, region: usize) {
        self.changes = self.changes.saturating_add(1);
        self.region = region;
    }

    /// Notes that it is unbound, or may be, or that a binding was refused: the key may have changed.
    pub(super) fn is_unbound(&mut self) {
        self.changes = self.changes.saturating_add(1);
    }

    /// Returns the region that it is bound to, or was last.
    pub(super) fn region(&self) -> usize {
        self.region
    }

    /// Returns whether another registration would bring a key round.
    fn is_worn(&self) -> bool {
        self.changes.saturating_add(CHANGES_EACH) > MOST_CHANGES
    }
}

/// The idle windows of a domain, the longest idle first.
#[derive(Debug)]
pub(super) struct Pool<W> {
    idle: VecDeque<Window<W>>,
    most: usize,
}

impl<W: Copy> Pool<W> {
    pub(super) fn new(most: usize) -> Self {
        Self { idle: VecDeque::new(), most }
    }

    /// Returns the window for the next registration, if one is idle.
    pub(super) fn take(&mut self) -> Option<Window<W>> {
        self.idle.pop_front()
    }

    /// Keeps a window that was unbound, and returns one that the device is to end now. That is this one if it is worn. It is the
    /// one that was idle longest if there are too many.
    pub(super) fn put_back(&mut self, window: Window<W>) -> Option<W> {
        if window.is_worn() {
            return Some(window.handle);
        }
        self.idle.push_back(window);
        (self.idle.len() > self.most).then(|| self.idle.pop_front().map(|first| first.handle)).flatten()
    }

    /// Takes out the windows that end before this region does.
    pub(super) fn take_of(&mut self, region: usize) -> Vec<W> {
        let (of_region, others): (VecDeque<_>, VecDeque<_>) =
            self.idle.drain(..).partition(|window: &Window<W>| window.region == region);
        self.idle = others;
        of_region.into_iter().map(|window| window.handle).collect()
    }

    /// Takes out all, at the end of the domain.
    pub(super) fn take_all(&mut self) -> Vec<W> {
        self.idle.drain(..).map(|window| window.handle).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.idle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worn_window_ends_before_a_key_comes_round() {
        let mut pool = Pool::new(4);
        let mut window = Window::new(7);
        let (mut key, mut shown) = (0_u8, Vec::new());
        loop {
            key = key.wrapping_add(1);
            window.is_bound(1);
            shown.push(key);
            key = key.wrapping_add(1);
            window.is_unbound();
            if pool.put_back(window) == Some(7) {
                break;
            }
            window = pool.take().unwrap();
        }
        let times = shown.len();
        shown.sort_unstable();
        shown.dedup();
        assert_eq!((times, shown.len(), pool.len()), (127, 127, 0));
    }

    #[test]
    fn the_longest_idle_window_is_next() {
        let mut pool = Pool::new(3);
        let ended: Vec<_> = (0..5).filter_map(|handle| pool.put_back(Window::new(handle))).collect();
        assert_eq!(ended, [0, 1]);
        assert_eq!(pool.take().map(|window| window.handle), Some(2));
    }

    #[test]
    fn windows_of_a_region_leave_with_it() {
        let mut pool = Pool::new(8);
        for handle in 0..6 {
            let mut window = Window::new(handle);
            window.is_bound(handle % 2);
            window.is_unbound();
            assert_eq!(pool.put_back(window), None);
        }
        assert_eq!(pool.take_of(1), [1, 3, 5]);
        assert_eq!(pool.take_all(), [0, 2, 4]);
    }
}
