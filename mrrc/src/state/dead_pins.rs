//! Dead pins: pages that are still registered although their memory changed (it was unmapped, moved or discarded), and that no
//! lease has. Only the registration keeps them in memory.
//!
//! They are to be few, and to be gone soon: [`MOST`] pages of a cache, and [`NAP`]. The background deregisters them, and sleeps no
//! longer than that while they come. When there are more, it is woken, and misses deregister a part before they register more.
//! One change can leave more than that at once. The registrar may also refuse to take them back.
//!
//! Pure: the time is an argument.

use crate::range::{PAGE, PageRange};
use std::time::{Duration, Instant};

/// Pages of a cache from which on its misses deregister dead pins, too: 64 MiB.
pub(crate) const MOST: u64 = (64 << 20) / PAGE;
/// The longest sleep of the background while dead pins come. They are to be gone after 100 ms.
pub(crate) const NAP: Duration = Duration::from_millis(50);

/// The dead pins of a cache. Owns their number, and the records.
#[derive(Default, Debug)]
pub(super) struct DeadPins {
    pages: u64,
    peak: u64,
    longest: Duration,
}

impl DeadPins {
    pub(super) fn add(&mut self, range: PageRange) {
        self.pages += range.pages();
        self.peak = self.peak.max(self.pages);
    }

    /// Takes off pins that were dead since then.
    pub(super) fn remove(&mut self, range: PageRange, since: Instant, now: Instant) {
        self.pages = self.pages.saturating_sub(range.pages());
        self.longest = self.longest.max(now.saturating_duration_since(since));
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    pub(super) fn are_many(&self) -> bool {
        self.pages > MOST
    }

    /// Returns the most pages at once so far.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the longest time so far, where the oldest of those that there are is dead since then.
    pub(super) fn longest(&self, oldest: Option<Instant>, now: Instant) -> Duration {
        self.longest.max(oldest.map_or(Duration::ZERO, |oldest| now.saturating_duration_since(oldest)))
    }
}
