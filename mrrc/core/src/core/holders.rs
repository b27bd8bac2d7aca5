//! Holders of regions without the core's knowledge: a cache of many threads is asked before anything leaves.
//!
//! Hits of such a cache take hold of regions without the core's knowledge. So the core proposes victims,
//! and the holders answer which of them stay.

use crate::access::Access;
use crate::grid::Grid;
use crate::range::PageRange;
use crate::regions::RegionId;

/// A request to the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
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
    /// The requests that may share its regions.
    pub sharing: Sharing,
    /// The pages that a widened registration may take; those of the request alone keep it exact. Only where the configuration
    /// [widens](crate::Config::widen), and only for local rights.
    pub mapping: PageRange,
    /// The pages before which its answer may be divided: other bounds of regions within it are replaced. None where each may be one. A
    /// caller asks for no more between two of these than a region may have. It needs regions that split and match by containment.
    pub blocks: Option<Grid>,
}

/// The sharing of a request's regions, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// All that grant the rights.
    #[default]
    All,
    /// Those of its own class: a request for local use is not served by a region that peers have rights to.
    OwnClass,
    /// None: it is registered for this request, and no look-up finds it.
    Nothing,
}

impl Request {
    /// Returns a request for local use, which is not widened.
    pub fn new(range: PageRange) -> Self {
        Self {
            range,
            access: Access::LOCAL_READ,
            max_segments: usize::MAX,
            again: false,
            sharing: Sharing::All,
            mapping: range,
            blocks: None,
        }
    }

    /// Returns a request with rights, where nothing is known of mappings: for local use it may be widened into all pages around it.
    pub fn within_all(range: PageRange, access: Access) -> Self {
        let mapping = if access.is_remote() { range } else { PageRange::EVERYTHING };
        Self { access, mapping, ..Self::new(range) }
    }
}

/// The holders of regions without the core's knowledge.
pub trait Holders {
    /// These regions are about to leave. From now on they take no new hold; those that are held already
    /// are appended to `held`. The core holds each of those once more, until it is told by
    /// [`Core::release`](super::Core::release) that they are free.
    fn unpublish(&mut self, leaving: &[RegionId], held: &mut Vec<RegionId>);

    /// These regions stay after all: they are held, or there was not enough to make room.
    fn republish(&mut self, regions: &[RegionId]);

    /// Appends the regions that were asked for without the core's knowledge since it was last told, each as
    /// often as that happened, in a stated order; or about `most` of them now and the rest the next time. They move up
    /// before victims are chosen.
    fn touched(&mut self, most: usize, touched: &mut Vec<RegionId>) {
        let _ = (most, touched);
    }

    /// How often a region that was [unpublished](Holders::unpublish) was asked for since it was last told. It counts as told
    /// from now on.
    fn touches(&mut self, region: RegionId) -> u32 {
        let _ = region;
        0
    }

    /// Returns whether there are none: all holds and all uses are known, so no holder is asked before regions leave.
    fn are_none(&self) -> bool {
        false
    }
}

/// No other holders: every hold is known to the core.
#[derive(Debug)]
pub struct NoHolders;

impl Holders for NoHolders {
    #[inline]
    fn unpublish(&mut self, _: &[RegionId], _: &mut Vec<RegionId>) {}

    #[inline]
    fn republish(&mut self, _: &[RegionId]) {}

    #[inline]
    fn are_none(&self) -> bool {
        true
    }
}
