//! Pages and regions together.

use crate::range::PageRange;

/// Pages and regions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Footprint {
    pub(crate) pages: u64,
    pub(crate) regions: u64,
}

impl Footprint {
    /// Returns the footprint of a region for each of these ranges.
    #[inline]
    pub(crate) fn of(ranges: impl IntoIterator<Item = PageRange>) -> Self {
        ranges.into_iter().fold(Self::default(), |sum, range| sum.plus(Self { pages: range.pages(), regions: 1 }))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { pages: self.pages + other.pages, regions: self.regions + other.regions }
    }

    /// Returns this less the other. Saturates: a registrar may claim to have deregistered more than there was.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { pages: self.pages.saturating_sub(other.pages), regions: self.regions.saturating_sub(other.regions) }
    }
}
