//! The answer to a request: what is there, what is to be registered, what has to go first.

use crate::access::Access;
use crate::range::PageRange;
use crate::regions::RegionId;

/// What a request found.
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
    /// Whether nothing has to be registered.
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Exact | Self::Subset | Self::Covered)
    }
}

/// A part of the request, served by one region. What becomes of it is a [`Segment`](crate::Segment) of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Already registered: usable at once, also while gaps are being registered.
    Ready {
        /// The region that covers it.
        region: RegionId,
        /// The pages of the request that it covers.
        range: PageRange,
    },
    /// To be registered, once the victims are deregistered.
    Gap {
        /// The region that it becomes; `None` when it is registered for this request alone and
        /// deregistered when that ends. Such a gap can be longer than the largest region: register it in
        /// [pieces](PageRange::pieces).
        region: Option<RegionId>,
        /// What to register. It can hold more than was asked for: a merged hull, a whole bucket.
        range: PageRange,
        /// The rights to register it with: what was asked for, and what its pages had before.
        access: Access,
    },
}

impl Part {
    /// The region that serves the part, now or once it is registered; `None` for what is registered
    /// for its request alone.
    pub fn region(&self) -> Option<RegionId> {
        match *self {
            Self::Ready { region, .. } => Some(region),
            Self::Gap { region, .. } => region,
        }
    }

    /// The pages of the part.
    pub fn range(&self) -> PageRange {
        match *self {
            Self::Ready { range, .. } | Self::Gap { range, .. } => range,
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

/// A region whose place a gap is to take, and which stands until it has: see [`Outcome::yielding`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Yielding {
    /// The region. It is held once for whoever registers the gap.
    pub region: RegionId,
    /// What for.
    pub(super) why: Gives,
}

/// Why a region gives way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gives {
    /// It is short of rights.
    Rights,
    /// A larger one takes its pages in.
    Pages,
    /// Too many regions would overlap.
    Place,
}

/// What a request comes to. Act on it in this order: deregister each batch, register each gap.
#[derive(Debug)]
pub struct Outcome {
    found: Found,
    bypass: bool,
    parts: Vec<Part>,
    leaving: Leavers,
    yielding: Vec<Yielding>,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Self { found: Found::Miss, bypass: false, parts: Vec::new(), leaving: Leavers::default(), yielding: Vec::new() }
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
        self.yielding.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, part: Part) {
        self.parts.push(part);
    }

    pub(super) fn push_yielding(&mut self, yielding: Yielding) {
        self.yielding.push(yielding);
    }

    pub(super) fn set_bypass(&mut self) {
        self.bypass = true;
    }

    pub(super) fn leaving_mut(&mut self) -> &mut Leavers {
        &mut self.leaving
    }

    /// What the request found when it came.
    #[inline]
    pub fn found(&self) -> Found {
        self.found
    }

    /// Whether the gaps are registered for this request alone, because it does not fit.
    #[inline]
    pub fn is_bypass(&self) -> bool {
        self.bypass
    }

    /// The parts of the request, in address order.
    #[inline]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What has to be registered, in address order.
    pub fn gaps(&self) -> impl Iterator<Item = PageRange> {
        self.parts.iter().filter_map(|part| match part {
            Part::Gap { range, .. } => Some(*range),
            Part::Ready { .. } => None,
        })
    }

    /// Under a [hard limit](super::Core::limit_hard): regions that look-ups find no longer, and that come back if
    /// what takes their place cannot be registered. End each by [`Core::give_way`](super::Core::give_way) or
    /// [`Core::come_back`](super::Core::come_back).
    pub fn yielding(&self) -> &[Yielding] {
        &self.yielding
    }

    /// What has to be deregistered first; each batch in one operation.
    pub fn batches(&self) -> impl Iterator<Item = &[Leaving]> {
        self.leaving.batches()
    }
}

/// Regions that leave, in batches.
#[derive(Debug, Default)]
pub struct Leavers {
    regions: Vec<Leaving>,
    /// Where each batch ends.
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

    /// Whether nothing leaves.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}
