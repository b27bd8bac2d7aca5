//! Counters of events, exact. Counters serve users and tests alike.

use super::outcome::Found;
use crate::cost::Linear;

/// Everything that a core has counted since it was made. Pages saturate: 4,096 requests for the whole
/// address space are more than a number can count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Requests: `exact + subset + covered + partial + miss`.
    pub requests: u64,
    /// Requests that were a cached region.
    pub exact: u64,
    /// Requests inside a cached region.
    pub subset: u64,
    /// Requests that several cached regions cover together.
    pub covered: u64,
    /// Requests that cached regions cover in part.
    pub partial: u64,
    /// Requests that touch no cached region.
    pub miss: u64,
    /// Requests too large to cache beside what they overlap; counted as partial or miss too.
    pub bypass: u64,
    /// Requests refused because everything else was in use; counted as partial or miss too.
    pub all_in_use: u64,
    /// Pages asked for.
    pub pages: u64,
    /// Pages asked for that lay in cached regions.
    pub hit_pages: u64,
    /// Registrations.
    pub regs: u64,
    /// Pages registered.
    pub reg_pages: u64,
    /// Regions deregistered.
    pub deregs: u64,
    /// Pages deregistered.
    pub dereg_pages: u64,
    /// Deregistration operations; one may take many regions.
    pub dereg_batches: u64,
    /// Regions that left to make room.
    pub evicted: u64,
    /// Regions that gave way to a larger one that took in their pages, with the same rights.
    pub merged: u64,
    /// Regions that gave way to ones with more rights.
    pub upgraded: u64,
    /// Registrations that did not come about, of those in `regs`.
    pub failed: u64,
    /// Regions that an invalidation touched.
    pub invalidated: u64,
    /// Pages of those regions.
    pub invalidated_pages: u64,
    /// The most pages that were ever registered at once, bypasses included.
    pub peak_pages: u64,
}

impl Counters {
    /// Requests that needed no registration.
    pub fn hits(&self) -> u64 {
        self.exact + self.subset + self.covered
    }

    /// Returns the share of requests that needed no registration; 0 before the first.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits(), self.requests)
    }

    /// Returns the share of pages asked for that lay in cached regions; 0 before the first.
    pub fn page_hit_ratio(&self) -> f64 {
        ratio(self.hit_pages, self.pages)
    }

    /// Microseconds spent registering and deregistering, by a cost model, a batch being one operation.
    pub fn cost(&self, model: &Linear) -> Cost {
        Cost {
            reg_us: model.reg_page * self.reg_pages as f64 + model.reg_call * self.regs as f64,
            dereg_us: model.dereg_page * self.dereg_pages as f64 + model.dereg_call * self.dereg_batches as f64,
        }
    }

    /// As [`Counters::cost`], but every region pays for its own deregistration: the paper's formula (1).
    pub fn cost_by_region(&self, model: &Linear) -> Cost {
        Self { dereg_batches: self.deregs, ..*self }.cost(model)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Time spent, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Registering.
    pub reg_us: f64,
    /// Deregistering.
    pub dereg_us: f64,
}

impl Cost {
    /// Both together.
    pub fn total_us(&self) -> f64 {
        self.reg_us + self.dereg_us
    }
}

/// Requests that one region serves, counted apart: a hit adds to two numbers, the rest is derived.
#[derive(Clone, Copy, Default)]
pub(super) struct SingleHits {
    /// Subsets, and exact ones.
    requests: [u64; 2],
    pages: u64,
}

impl SingleHits {
    #[inline]
    pub(super) fn count(&mut self, exact: bool, pages: u64) {
        self.requests[usize::from(exact)] += 1;
        self.pages = self.pages.saturating_add(pages);
    }
}

impl Counters {
    /// A request that no single region serves.
    pub(super) fn missed(&mut self, found: Found, hit_pages: u64, pages: u64) {
        self.requests += 1;
        self.pages = self.pages.saturating_add(pages);
        self.hit_pages = self.hit_pages.saturating_add(hit_pages);
        match found {
            Found::Covered => self.covered += 1,
            Found::Partial => self.partial += 1,
            Found::Exact | Found::Subset | Found::Miss => self.miss += 1,
        }
    }

    /// These and the requests that one region served.
    pub(super) fn with(self, hits: SingleHits) -> Self {
        let [subset, exact] = hits.requests;
        Self {
            requests: self.requests + subset + exact,
            exact,
            subset,
            pages: self.pages.saturating_add(hits.pages),
            hit_pages: self.hit_pages.saturating_add(hits.pages),
            ..self
        }
    }
}
