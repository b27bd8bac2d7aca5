//! Whether a cache is worth its trouble.
//!
//! A program that maps each buffer anew, and unmaps it afterwards, gains nothing from a cache and pays for it: each registration is
//! a miss, each unmapping is reported and waited for. So a cache looks at itself now and then. If next to nothing of what it was asked for
//! was there, and most of what it registered was unmapped again, it stands aside for a while, which doubles each time, and is tried
//! again after that. Misses alone are no reason: every program begins with them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Requests between two looks.
const WINDOW: u32 = 64;
/// Hits among them from which it is worth it.
const FEW: u32 = WINDOW / 20;
/// Regions unmapped meanwhile, from which that is why.
const MANY: u64 = WINDOW as u64 / 2;
/// Requests for which it stands aside, at first and at most.
const ASIDE: u32 = 1 << 10;
const ASIDE_MOST: u32 = 1 << 17;

/// Counts of several threads at once: which request is the last of a window is nobody's concern.
#[derive(Default)]
pub(crate) struct Worth {
    asked: AtomicU32,
    hits: AtomicU32,
    /// Regions that had been unmapped at the last look.
    unmapped: AtomicU64,
    /// Requests left for which it stands aside, and for how many it did so last.
    aside: AtomicU32,
    last: AtomicU32,
}

impl Worth {
    /// Whether this request is to be passed on.
    pub(crate) fn stands_aside(&self) -> bool {
        self.aside.load(Relaxed) > 0 && self.aside.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// A request was served. Returns whether it is the time to [look](Worth::look).
    pub(crate) fn served(&self, hit: bool) -> bool {
        if hit {
            self.hits.fetch_add(1, Relaxed);
        }
        (self.asked.fetch_add(1, Relaxed) + 1).is_multiple_of(WINDOW)
    }

    /// With the number of regions that have been unmapped so far. Returns whether it stands aside from now on.
    pub(crate) fn look(&self, unmapped: u64) -> bool {
        let hits = self.hits.swap(0, Relaxed);
        let meanwhile = unmapped.saturating_sub(self.unmapped.swap(unmapped, Relaxed));
        let worthless = hits < FEW && meanwhile >= MANY;
        let last = if worthless { (self.last.load(Relaxed) * 2).clamp(ASIDE, ASIDE_MOST) } else { 0 };
        self.last.store(last, Relaxed);
        self.aside.store(last, Relaxed);
        worthless
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of requests, of which some hit and so many regions are unmapped. Whether it stands aside then.
    fn window(worth: &Worth, hits: u32, unmapped: &mut u64, more: u64) -> bool {
        for at in 0..WINDOW {
            assert!(!worth.stands_aside());
            assert_eq!(worth.served(at < hits), at + 1 == WINDOW);
        }
        *unmapped += more;
        worth.look(*unmapped)
    }

    fn aside(worth: &Worth) -> u32 {
        (0..).find(|_| !worth.stands_aside()).unwrap()
    }

    #[test]
    fn a_program_that_unmaps_everything_is_left_alone_for_longer_and_longer() {
        let (worth, mut unmapped) = (Worth::default(), 0);
        for expected in [1 << 10, 1 << 11, 1 << 12] {
            assert!(window(&worth, 0, &mut unmapped, 64));
            assert_eq!(aside(&worth), expected);
        }
        for _ in 0..20 {
            assert!(window(&worth, 0, &mut unmapped, 64));
            assert!(aside(&worth) <= ASIDE_MOST);
        }
    }

    #[test]
    fn one_that_changes_its_ways_is_served_again() {
        let (worth, mut unmapped) = (Worth::default(), 0);
        assert!(window(&worth, 0, &mut unmapped, 64));
        aside(&worth);
        assert!(!window(&worth, 20, &mut unmapped, 44));
        assert!(window(&worth, 0, &mut unmapped, 64));
        assert_eq!(aside(&worth), ASIDE, "as if for the first time");
    }

    #[test]
    fn misses_alone_are_no_reason() {
        let (worth, mut unmapped) = (Worth::default(), 0);
        for _ in 0..100 {
            assert!(!window(&worth, 0, &mut unmapped, 10));
        }
    }
}
