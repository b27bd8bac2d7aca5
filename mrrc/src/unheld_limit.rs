//! The limit on regions that no lease has.

use mrrc_core::PAGE;
use std::time::Duration;

/// How much may stay registered without a lease, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnheldLimit {
    pub(crate) pages: u64,
    pub(crate) time: Duration,
}

impl UnheldLimit {
    /// As much as there is room for, for ever.
    pub(crate) const NONE: Self = Self { pages: u64::MAX, time: Duration::MAX };
    /// The shortest time: looks at the regions are not arbitrarily close to each other.
    pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

    pub(crate) fn new(pages: u64, time: Duration) -> Self {
        Self { pages, time: time.max(Self::SHORTEST) }
    }

    /// Returns whether pages are limited: there can be more.
    pub(crate) fn is_sized(self) -> bool {
        self.pages < u64::MAX / PAGE
    }

    /// Returns the limit that keeps to both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { pages: self.pages.min(other.pages), time: self.time.min(other.time) }
    }
}
