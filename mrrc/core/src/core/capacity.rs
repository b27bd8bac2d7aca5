//! How much may be registered, and how much is.

use crate::config::Config;
use crate::grid::{Cutter, Grid};
use crate::policy::{Need, Scheme};
use crate::range::PageRange;
use crate::regions::RegionId;

/// Pages and regions, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    pub(super) pages: u64,
    pub(super) regions: u64,
}

impl Total {
    pub(super) fn add(&mut self, pages: u64) {
        self.pages += pages;
        self.regions += 1;
    }

    fn remove(&mut self, pages: u64) {
        self.pages -= pages;
        self.regions -= 1;
    }
}

/// The limits, and the pages and regions that count against them. Owns these totals; they say nothing of which regions.
#[derive(Debug)]
pub(super) struct Capacity {
    limit: Total,
    /// The most pages in one region.
    region_pages: u64,
    /// The lines that no region crosses, where there are any.
    slices: Option<Grid>,
    /// Registered: cached, being registered, or retired and still held.
    used: Total,
    /// Of these, what is held.
    held: Total,
    /// See [`Core::limit_hard`](super::Core::limit_hard).
    is_hard: bool,
}

impl Capacity {
    pub(super) fn new(config: &Config, scheme: &Scheme) -> Self {
        let regions = [config.max_regions, scheme.max_regions, Some(RegionId::MOST)].into_iter().flatten().min();
        let region_pages = config.slice_pages.into_iter().chain(config.max_region_pages).min().unwrap_or(u64::MAX);
        Self {
            // More than the address space is the address space; and totals cannot overflow.
            limit: Total { pages: config.capacity.min(PageRange::EVERYTHING.pages()), regions: regions.unwrap_or(0) },
            region_pages,
            slices: config.slice_pages.map(|_| Grid::every(region_pages)),
            used: Total::default(),
            held: Total::default(),
            is_hard: false,
        }
    }

    pub(super) fn limit(&self) -> Total {
        self.limit
    }

    pub(super) fn region_pages(&self) -> u64 {
        self.region_pages
    }

    /// Returns how ranges are divided into regions; `blocks` says where a request may be divided.
    #[inline]
    pub(super) fn cutter(&self, blocks: Option<Grid>) -> Cutter {
        match blocks {
            Some(blocks) => Cutter::new(self.region_pages, blocks.coarsened(self.region_pages)).only_long(),
            None => Cutter::new(self.region_pages, self.slices),
        }
    }

    /// Each request is answered by one region, which is not cut.
    pub(super) fn forget_slices(&mut self) {
        self.slices = None;
    }

    /// Returns whether no region crosses certain lines.
    #[inline]
    pub(super) fn has_slices(&self) -> bool {
        self.slices.is_some()
    }

    pub(super) fn used(&self) -> Total {
        self.used
    }

    pub(super) fn held(&self) -> Total {
        self.held
    }

    #[inline]
    pub(super) fn is_hard(&self) -> bool {
        self.is_hard
    }

    pub(super) fn set_hard(&mut self) {
        self.is_hard = true;
    }

    /// Returns whether so much is within the limits, whatever else is registered.
    pub(super) fn allows(&self, total: Total) -> bool {
        total.pages <= self.limit.pages && total.regions <= self.limit.regions
    }

    /// Returns whether so much fits beside all that is registered.
    #[inline]
    pub(super) fn fits(&self, more: Total) -> bool {
        self.used.pages + more.pages <= self.limit.pages
            && self.used.regions.saturating_add(more.regions) <= self.limit.regions
    }

    /// Returns what has to leave before so much fits, besides what leaves anyway.
    #[inline]
    pub(super) fn shortfall(&self, more: Total, leaving: Total) -> Need {
        let pages = self.used.pages - leaving.pages + more.pages;
        let regions = self.used.regions - leaving.regions + more.regions;
        Need { pages: pages.saturating_sub(self.limit.pages), regions: regions.saturating_sub(self.limit.regions) }
    }

    /// Returns how much nothing holds: so much can leave.
    #[inline]
    pub(super) fn unheld(&self) -> Need {
        Need { pages: self.used.pages - self.held.pages, regions: self.used.regions - self.held.regions }
    }

    /// Counts a region of so many pages.
    #[inline]
    pub(super) fn add(&mut self, pages: u64) {
        self.used.add(pages);
    }

    /// Counts a region out.
    #[inline]
    pub(super) fn remove(&mut self, pages: u64) {
        self.used.remove(pages);
    }

    /// Counts a region that is held from now on.
    #[inline]
    pub(super) fn hold(&mut self, pages: u64) {
        self.held.add(pages);
    }

    /// Counts a region that is no longer held.
    #[inline]
    pub(super) fn release(&mut self, pages: u64) {
        self.held.remove(pages);
    }
}
