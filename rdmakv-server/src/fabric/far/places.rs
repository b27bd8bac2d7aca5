//! Places: the parts of the arena, each as long as a region.
//!
//! A place that is freed may still be written by its former owner, through a tag or a mapping. So it passes through four states:
//!
//! ```text
//! free ── take ──► used ── free ──► freed: the driver ends all access ── revoked ──► quarantined: late accesses end
//!  ▲                                                                                                      │ time
//!  └─────────────── zeroed ─────────────── being zeroed ◄──────────────────── next_to_zero ───────────────┘
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// The places of an arena.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Places {
    total: u32,
    quarantine: Duration,
    free: BTreeSet<u32>,
    freed: VecDeque<u32>,
    revoking: BTreeSet<u32>,
    quarantined: VecDeque<(Duration, u32)>,
    zeroing: BTreeSet<u32>,
}

impl Places {
    /// Returns so many free places. Each is in quarantine that long.
    pub fn new(total: u32, quarantine: Duration) -> Self {
        Self {
            total,
            quarantine,
            free: (0..total).collect(),
            freed: VecDeque::new(),
            revoking: BTreeSet::new(),
            quarantined: VecDeque::new(),
            zeroing: BTreeSet::new(),
        }
    }

    /// Returns how many there are.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns how many are free.
    pub fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes a free place.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop_first()
    }

    /// Takes back a place that was in use.
    pub(super) fn free(&mut self, place: u32) {
        self.freed.push_back(place);
    }

    /// Returns a place whose tags and mappings are to be taken from its former owner. [`Places::revoked`] follows.
    pub fn next_to_revoke(&mut self) -> Option<u32> {
        let place = self.freed.pop_front()?;
        self.revoking.insert(place);
        Some(place)
    }

    /// Begins the quarantine of a place: no new access to it can begin.
    pub fn revoked(&mut self, now: Duration, place: u32) {
        if self.revoking.remove(&place) {
            self.quarantined.push_back((now.saturating_add(self.quarantine), place));
        }
    }

    /// Returns a place whose quarantine is over. It is to be zeroed, and [`Places::zeroed`] follows.
    pub fn next_to_zero(&mut self, now: Duration) -> Option<u32> {
        let &(until, place) = self.quarantined.front()?;
        if now < until {
            return None;
        }
        self.quarantined.pop_front();
        self.zeroing.insert(place);
        Some(place)
    }

    /// Makes a place free again.
    pub fn zeroed(&mut self, place: u32) {
        if self.zeroing.remove(&place) {
            self.free.insert(place);
        }
    }

    /// Returns when the next quarantine ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.quarantined.front().map(|&(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn freed_places_return_after_all_steps() {
        let mut places = Places::new(2, 8 * SECOND);
        let (first, second) = (places.take().unwrap(), places.take().unwrap());
        assert_eq!((places.take(), places.free_count()), (None, 0));
        places.free(first);
        assert_eq!(places.take(), None, "its owner may still write");
        assert_eq!(places.next_to_zero(Duration::MAX), None);
        assert_eq!(places.next_to_revoke(), Some(first));
        places.revoked(SECOND, first);
        assert_eq!(places.next_end(), Some(9 * SECOND));
        assert_eq!(places.next_to_zero(9 * SECOND - Duration::from_nanos(1)), None);
        assert_eq!(places.next_to_zero(9 * SECOND), Some(first));
        assert_eq!(places.take(), None, "it has another's bytes");
        places.zeroed(first);
        assert_eq!(places.take(), Some(first));
        assert_ne!(first, second);
    }

    #[test]
    fn steps_out_of_order_free_nothing() {
        let mut places = Places::new(1, SECOND);
        let place = places.take().unwrap();
        places.zeroed(place);
        places.revoked(SECOND, place);
        assert_eq!((places.take(), places.next_to_zero(Duration::MAX)), (None, None));
        places.free(place);
        places.zeroed(place);
        places.revoked(SECOND, place);
        assert_eq!((places.take(), places.next_to_zero(Duration::MAX)), (None, None), "it was not asked to revoke it");
        assert_eq!(places.next_to_revoke(), Some(place));
        places.revoked(SECOND, place);
        places.revoked(SECOND, place);
        assert_eq!(places.next_to_zero(Duration::MAX), Some(place));
        assert_eq!(places.next_to_zero(Duration::MAX), None, "once is enough");
    }
}
