//! The contents of a cache, to look at.

use super::capacity::{Capacity, Total};
use super::holders::{Request, Sharing};
use super::lookup::Lookup;
use super::outcome::{Found, Part};
use crate::access::Access;
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState, Regions};

/// The regions, how they are found, and the room there is. The planner decides by it; nothing changes through it.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) regions: &'a Regions,
    pub(super) lookup: &'a Lookup,
    pub(super) capacity: &'a Capacity,
}

impl View<'_> {
    /// Returns a published region of a class that contains the range.
    #[inline(always)]
    pub(super) fn find_in(self, class: usize, range: PageRange) -> Option<RegionId> {
        self.lookup.find(class, range, self.regions)
    }

    /// As [`View::find_in`], by a region that grants the rights.
    #[inline(always)]
    pub(super) fn find_granting(self, class: usize, range: PageRange, access: Access) -> Option<RegionId> {
        self.lookup.find_granting(class, range, access, self.regions)
    }

    /// Returns a published region that contains the range and grants the rights. A region that peers have
    /// rights to serves its owner too.
    #[inline(always)]
    pub(super) fn find_with(self, range: PageRange, access: Access) -> Option<RegionId> {
        let found = self.find_granting(access.class(), range, access);
        let may_be_remote = found.is_none() && access.class() == 0 && !self.lookup.is_empty(1);
        if may_be_remote { self.find_granting(1, range, access) } else { found }
    }

    /// Returns the region that serves the request, now or once it is registered.
    #[inline]
    pub(super) fn find_for(self, request: &Request) -> Option<RegionId> {
        let found = match request.sharing {
            Sharing::All => self.find_with(request.range, request.access),
            Sharing::OwnClass => self.find_granting(request.access.class(), request.range, request.access),
            Sharing::Nothing => return None,
        };
        if found.is_none() && self.lookup.has_replacements() { self.find_replacement(request) } else { found }
    }

    /// Returns the region that is being registered, in the place of others, and that is to serve the request.
    #[cold]
    fn find_replacement(self, request: &Request) -> Option<RegionId> {
        let own = request.access.class();
        let classes = if request.sharing == Sharing::All { own..2 } else { own..own + 1 };
        classes
            .into_iter()
            .find_map(|class| self.lookup.find_replacement(class, request.range, request.access, self.regions))
    }

    /// Returns how one region serves a request.
    #[inline]
    pub(super) fn found_as(self, id: RegionId, asked: PageRange) -> Found {
        if self.regions.pages(id) == asked.pages() { Found::Exact } else { Found::Subset }
    }

    /// Returns the part of a request that a region serves, now or once it is registered.
    #[inline]
    pub(super) fn part_of(self, region: RegionId, range: PageRange) -> Part {
        match self.regions.get(region).state() {
            RegionState::Registering => Part::Registering { region, range },
            _ => Part::Ready { region, range },
        }
    }

    /// Returns whether each request is answered by one region, and regions may overlap.
    #[inline]
    pub(super) fn has_one_key(self) -> bool {
        self.lookup.layers(0).is_some()
    }

    /// Returns the size of those of the regions that nothing holds.
    pub(super) fn unheld_total(self, ids: &[RegionId]) -> Total {
        let mut total = Total::default();
        let unheld = ids.iter().map(|&id| self.regions.get(id)).filter(|region| !region.in_use());
        unheld.for_each(|region| total.add(region.pages()));
        total
    }
}
