//! Who else holds regions: the question that a cache of many threads is asked before anything leaves.
//!
//! Hits of such a cache take hold of regions without the core's knowledge. So the core proposes what is to
//! leave, and those who know answer which of it stays.

use crate::access::Access;
use crate::range::PageRange;
use crate::regions::RegionId;

/// What is asked of the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The pages.
    pub range: PageRange,
    /// The rights that every page needs.
    pub access: Access,
    /// The most segments that the answer may have: where there would be more, what it overlaps is replaced by
    /// their hull, or, where that is too large, by the range asked for. Where one region cannot have the rights that
    /// its pages have and need, the range is registered for this request alone, and all stays. Where the core
    /// [uses one key](super::Core::use_one_key), it is one.
    pub max_segments: usize,
    /// Whether this request was made and counted before, and is planned again.
    pub again: bool,
    /// Whose regions may serve it.
    pub sharing: Sharing,
}

/// Whose regions may serve a request, and whom what it registers may serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// All that grant the rights.
    #[default]
    All,
    /// Those of its own class: a request for local use is not served by a region that peers have rights to.
    OwnClass,
    /// None: it is registered for this request, and nobody finds it.
    Nothing,
}

impl Ask {
    /// A request for local use.
    pub fn new(range: PageRange) -> Self {
        Self { range, access: Access::LOCAL_READ, max_segments: usize::MAX, again: false, sharing: Sharing::All }
    }
}

/// Those who may hold regions without the core's knowledge.
pub trait Holders {
    /// These regions are about to leave. From now on nobody new can take hold of them; those that somebody
    /// holds already are appended to `held`. The core holds each of those once more, until it is told
    /// by [`Core::release`](super::Core::release) that they are free.
    fn hold_back(&mut self, leaving: &[RegionId], held: &mut Vec<RegionId>);

    /// These regions stay after all: somebody holds them, or there was not enough to make room.
    fn stay(&mut self, regions: &[RegionId]);

    /// Appends the regions that were asked for without the core's knowledge since it was last told, each as
    /// often as that happened, in a stated order; or about `most` of them now and the rest the next time. They move up
    /// before victims are chosen.
    fn touched(&mut self, most: usize, touched: &mut Vec<RegionId>) {
        let _ = (most, touched);
    }

    /// How often a region that was [held back](Holders::hold_back) was asked for since it was last told. It counts as told
    /// from now on.
    fn touches(&mut self, region: RegionId) -> u32 {
        let _ = region;
        0
    }

    /// Whether there are none: all holds and all uses are known, so nobody is asked before regions leave.
    fn are_none(&self) -> bool {
        false
    }
}

/// Nobody else: whatever holds a region told the core.
#[derive(Debug)]
pub struct NobodyElse;

impl Holders for NobodyElse {
    #[inline]
    fn hold_back(&mut self, _: &[RegionId], _: &mut Vec<RegionId>) {}

    #[inline]
    fn stay(&mut self, _: &[RegionId]) {}

    #[inline]
    fn are_none(&self) -> bool {
        true
    }
}
