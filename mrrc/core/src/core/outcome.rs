//! The answer to a request: what is there, what is to be registered, what has to go first.

use crate::access::Access;
use crate::range::PageRange;
use crate::regions::RegionId;

/// The result of a request's look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Found {
    /// A cached region that is the request.
    Exact,
    /// A cached region that contains it.
    Subset,
    /// Several cached regions that cover it together.
    Covered,
    /// Cached regions that cover some of it.
    Partial,
    /// Nothing.
    #[default]
    Miss,
}

impl Found {
    /// Returns whether nothing has to be registered.
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Exact | Self::Subset | Self::Covered)
    }
}

/// A part of the request, served by one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Already registered: usable at once, also while gaps are being registered.
    Ready {
        /// The region that covers it.
        region: RegionId,
        /// The pages of the request that it covers.
        range: PageRange,
    },
    /// Under a [hard limit](super::Core::limit_hard): another request registers the region. Wait until that is over, and
    /// ask for the range again. Either the region is to serve the range, or it is in its way: then this is the only part.
    Registering {
        /// The region that is waited for.
        region: RegionId,
        /// The pages of the request that are to be asked for again.
        range: PageRange,
    },
    /// To be registered, once the victims are deregistered.
    Gap {
        /// The region that it becomes; `None` when it is registered for this request alone and
        /// deregistered when that ends. Such a gap can be longer than the largest region: register it in
        /// [pieces](PageRange::pieces).
        region: Option<RegionId>,
        /// The range to register. It can hold more than was asked for: a merged hull, a whole bucket.
        range: PageRange,
        /// The rights to register it with: what was asked for, and what its pages had before.
        access: Access,
    },
}

impl Part {
    /// Returns the region that serves the part, now or once it is registered; `None` for what is
    /// registered for its request alone.
    pub fn region(&self) -> Option<RegionId> {
        match *self {
            Self::Ready { region, .. } | Self::Registering { region, .. } => Some(region),
            Self::Gap { region, .. } => region,
        }
    }

    /// Returns the pages of the part.
    pub fn range(&self) -> PageRange {
        match *self {
            Self::Ready { range, .. } | Self::Registering { range, .. } | Self::Gap { range, .. } => range,
        }
    }
}

/// A region that is to be deregistered.
///
/// Its id is free for other regions from now on: look up what was kept under it before acting on
/// the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// The name that it had.
    pub region: RegionId,
    /// The pages that it holds.
    pub range: PageRange,
}

/// The outcome of a request. Act on it in this order: deregister each batch, register each gap.
#[derive(Debug)]
pub struct Outcome {
    found: Found,
    bypass: bool,
    parts: Vec<Part>,
    leaving: Leavers,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Self { found: Found::Miss, bypass: false, parts: Vec::new(), leaving: Leavers::default() }
    }

    /// The whole answer when one region serves the request. Nothing leaves then.
    #[inline]
    pub(super) fn hit(&mut self, found: Found, part: Part) {
        self.start(found);
        self.parts.push(part);
    }

    #[inline]
    pub(super) fn start(&mut self, found: Found) {
        self.found = found;
        self.bypass = false;
        self.parts.clear();
        self.leaving.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, part: Part) {
        self.parts.push(part);
    }

    pub(super) fn set_bypass(&mut self) {
        self.bypass = true;
    }

    #[inline]
    pub(super) fn leavers(&self) -> &Leavers {
        &self.leaving
    }

    #[inline]
    pub(super) fn leaving_mut(&mut self) -> &mut Leavers {
        &mut self.leaving
    }

    /// Returns the result of the look-up when the request came.
    #[inline]
    pub fn found(&self) -> Found {
        self.found
    }

    /// Returns whether the gaps are registered for this request alone, because it does not fit.
    #[inline]
    pub fn is_bypass(&self) -> bool {
        self.bypass
    }

    /// Returns the parts of the request, in address order.
    #[inline]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the ranges to register, in address order.
    pub fn gaps(&self) -> impl Iterator<Item = PageRange> {
        self.parts.iter().filter_map(|part| match part {
            Part::Gap { range, .. } => Some(*range),
            Part::Ready { .. } | Part::Registering { .. } => None,
        })
    }

    /// Returns the regions to deregister first; each batch in one operation.
    pub fn batches(&self) -> impl Iterator<Item = &[Leaving]> {
        self.leaving.batches()
    }
}

/// Regions that leave, in batches.
#[derive(Debug, Default)]
pub struct Leavers {
    regions: Vec<Leaving>,
    /// The end of each batch.
    ends: Vec<usize>,
}

impl Leavers {
    #[inline]
    pub(super) fn clear(&mut self) {
        self.regions.clear();
        self.ends.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, leaving: Leaving) {
        self.regions.push(leaving);
    }

    /// Closes the open batch; false if it is empty.
    #[inline]
    pub(super) fn close(&mut self) -> bool {
        let open = self.regions.len() > self.ends.last().copied().unwrap_or(0);
        if open {
            self.ends.push(self.regions.len());
        }
        open
    }

    /// Each batch, to be deregistered in one operation.
    pub fn batches(&self) -> impl Iterator<Item = &[Leaving]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.regions[start..end])
    }

    /// Returns whether nothing leaves.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}
