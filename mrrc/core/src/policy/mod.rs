//! Eviction policies.
//!
//! A [`Policy`] orders the regions and proposes victims. It sees every region enter, be asked for and
//! leave, and nothing else: no clock, no thread, no registrar. A caching scheme *beyond* the choice
//! of victims is its [`Scheme`], a value that the core reads: whether it caches whole buckets,
//! matches exactly, merges overlaps, deregisters in batches. So each file below holds one algorithm
//! and the request procedure exists once.
//!
//! | name | victims |
//! | --- | --- |
//! | [`mrrc`] | the paper: LRU above, size and recency below, evicted in batches |
//! | [`none`], [`pindown`], [`fmrd`] | the paper's peers |
//! | [`sieve`], [`s3fifo`], [`gdsf`] | general ones |
//! | [`probation`] | ours: the paper's idea with frequency, costs and a learned trust in newcomers |
//!
//! These are the policies that a cache can be told by name ([`PolicyKind`]). Those for research (ARC, LIRS, LRU-K, the caches of UCX, libfabric and
//! NCCL, and others) are in the crate `tracesim-policies`. A policy of your own implements [`Policy`] in your crate, of [`parts`] or of
//! anything else; `tracesim` replays traces through it.

use crate::cost::Linear;
use crate::range::PageRange;
use crate::regions::{RegionId, Regions};

pub mod fmrd;
pub mod gdsf;
pub mod kind;
pub mod mrrc;
pub mod none;
pub mod parts;
pub mod pindown;
pub mod probation;
pub mod s3fifo;
pub mod sieve;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod frequency_table;
mod parameters;
mod params;
mod resorting;
mod shadow_caches;

pub use kind::{PolicyKind, UnknownPolicy};
pub use params::PolicyParams;

/// Orders regions and proposes victims.
///
/// A policy keeps the regions in an order of its own: in lists that the store of regions offers
/// ([`Regions::new_list`], made when the first region enters), in the notes that a region has for it
/// ([`Region`](crate::Region)), or in any collection. One that meets a region in use
/// ([`Region::in_use`](crate::Region::in_use)) while it looks for victims either passes over it or sets it
/// aside ([`Region::set_aside`](crate::Region::set_aside)), so that it is not met again. The core hands a
/// region that was set aside to [`put_back`](Policy::put_back) when its last lease ends.
///
/// First in, first out, in full:
///
/// ```
/// use mrrc_core::policy::Policy;
/// use mrrc_core::{Config, Core, PageRange, RegionId, Regions};
/// use std::collections::VecDeque;
///
/// #[derive(Default)]
/// struct Fifo(VecDeque<RegionId>);
///
/// impl Policy for Fifo {
///     fn insert(&mut self, _: &mut Regions, id: RegionId) {
///         self.0.push_back(id);
///     }
///     fn touch(&mut self, _: &mut Regions, _: RegionId) {}
///     fn remove(&mut self, _: &mut Regions, id: RegionId) {
///         self.0.retain(|&other| other != id);
///     }
///     fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
///         let oldest = self.0.iter().position(|&id| !regions.get(id).in_use())?;
///         self.0.remove(oldest)
///     }
///     fn put_back(&mut self, _: &mut Regions, id: RegionId) {
///         self.0.push_front(id);
///     }
/// }
///
/// let mut core = Core::with_policy(&Config::new(2), Fifo::default())?;
/// for page in [1, 2, 1, 3] {
///     core.request(PageRange::new(page, 1)?)?;
/// }
/// assert_eq!(core.find(PageRange::new(1, 1)?), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Policy {
    /// Returns the caching scheme beyond the choice of victims.
    fn scheme(&self) -> Scheme {
        Scheme::default()
    }

    /// These ranges are about to be registered, a region each, and victims have to leave for them. Called before the victims
    /// are taken, and not if there is room. A request that is refused calls it and no `insert`.
    fn missed(&mut self, ranges: &mut dyn Iterator<Item = PageRange>) {
        let _ = ranges;
    }

    /// A region was registered.
    fn insert(&mut self, regions: &mut Regions, id: RegionId);

    /// A request asked for pages of the region.
    fn touch(&mut self, regions: &mut Regions, id: RegionId);

    /// The region leaves, but not as a victim: it was invalidated or merged into another.
    fn remove(&mut self, regions: &mut Regions, id: RegionId);

    /// Returns the next victim, taken out of the order; `None` when all that is left is in use. The
    /// core panics rather than evict a region in use.
    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId>;

    /// A victim that is held after all, or a region that was set aside, takes its old place again, or
    /// the nearest to it that the policy can find.
    fn put_back(&mut self, regions: &mut Regions, id: RegionId);

    /// The last lease of a region ended.
    fn released(&mut self, regions: &mut Regions, id: RegionId) {
        let _ = (regions, id);
    }

    /// Registration costs this much from now on; policies that weigh cost take it over.
    fn costs(&mut self, costs: &Linear) {
        let _ = costs;
    }

    /// Returns the number of uses of a region between two runs of *full* that the policy can tell apart:
    /// a cache with hits that leave marks counts up to this many. One where only recency matters.
    fn max_touches(&self) -> u32 {
        1
    }

    /// Prepares each run of *full*, before victims are taken.
    fn prepare(&mut self, regions: &mut Regions) {
        let _ = regions;
    }

    /// How much one run of *full* takes when this much is needed; never less.
    fn batch_size(&self, need: Need) -> Need {
        need
    }

    /// Bytes allocated besides the regions' slots.
    fn memory(&self) -> usize {
        0
    }
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn scheme(&self) -> Scheme {
        (**self).scheme()
    }
    fn missed(&mut self, ranges: &mut dyn Iterator<Item = PageRange>) {
        (**self).missed(ranges);
    }
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        (**self).insert(regions, id);
    }
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        (**self).touch(regions, id);
    }
    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        (**self).remove(regions, id);
    }
    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        (**self).victim(regions)
    }
    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        (**self).put_back(regions, id);
    }
    fn released(&mut self, regions: &mut Regions, id: RegionId) {
        (**self).released(regions, id);
    }
    fn costs(&mut self, costs: &Linear) {
        (**self).costs(costs);
    }
    fn max_touches(&self) -> u32 {
        (**self).max_touches()
    }
    fn prepare(&mut self, regions: &mut Regions) {
        (**self).prepare(regions);
    }
    fn batch_size(&self, need: Need) -> Need {
        (**self).batch_size(need)
    }
    fn memory(&self) -> usize {
        (**self).memory()
    }
}

/// How much room a batch of victims has to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Need {
    /// Pages, at least.
    pub pages: u64,
    /// Regions, at least.
    pub regions: u64,
}

impl Need {
    /// Returns whether nothing is needed.
    pub fn is_met(self) -> bool {
        self.pages == 0 && self.regions == 0
    }

    /// Returns the need that is left once a region of that many pages has left.
    #[must_use]
    pub fn less(self, pages: u64) -> Self {
        Self { pages: self.pages.saturating_sub(pages), regions: self.regions.saturating_sub(1) }
    }
}

/// A caching scheme beyond the choice of victims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scheme {
    /// The size of what is cached.
    pub granule: Granule,
    /// When a cached region serves a request.
    pub matching: Matching,
    /// The treatment of regions that a request overlaps without being served by one.
    pub overlap: Overlap,
    /// Whether victims are deregistered together.
    pub deregistration: Deregistration,
    /// How long regions stay.
    pub keeps: Keeps,
    /// The most regions that the scheme caches, besides the limit of the registrar.
    pub max_regions: Option<u64>,
    /// Whether the ranges of one request may be registered as one spanning region (as `ogr` of `tracesim-policies` does).
    pub groups: bool,
    /// Whether a miss registers more than was requested where that was seen to pay.
    pub widens: bool,
}

impl Default for Scheme {
    /// Regions as requested, split at overlaps, deregistered in batches.
    fn default() -> Self {
        Self {
            granule: Granule::Region,
            matching: Matching::Contain,
            overlap: Overlap::Split,
            deregistration: Deregistration::Batch,
            keeps: Keeps::UntilEvicted,
            max_regions: None,
            groups: false,
            widens: false,
        }
    }
}

/// The size of what is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granule {
    /// The registered region.
    Region,
    /// Single pages: a run of missing pages is one registration, but each page is evicted alone.
    Page,
    /// Aligned buckets of so many pages, each registered whole.
    Bucket(u64),
}

/// When a cached region serves a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Matching {
    /// When it contains the request.
    Contain,
    /// When it is the request, same start and same length. Other regions do not exist for a request:
    /// cached regions may overlap, and pages are hit only by whole requests.
    Exact,
}

/// The treatment of regions that a request overlaps when none contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// They stay; the gaps between them are registered (the paper).
    Split,
    /// They leave, and their union with the request is registered (UCX).
    Merge,
    /// They leave, and the request is registered as it is.
    Whole,
}

/// Whether victims are deregistered together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deregistration {
    /// All victims of a run in one operation.
    Batch,
    /// One operation each.
    Single,
}

/// How long regions stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// They are not kept at all: each request registers and deregisters.
    Nothing,
    /// They leave when others need the room.
    UntilEvicted,
    /// They never leave; what finds no room is registered for its request alone.
    Forever,
}
