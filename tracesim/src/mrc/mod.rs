//! The LRU curve: the hit ratio at many capacities, from one pass over a trace.
//!
//! A cache that evicts the least recently used holds the top of one stack, whatever its capacity. So the *distance* of a
//! use, the pages that were used since the last one, itself included, tells from which capacity on it is a hit.
//! There are two ways to see a trace with overlapping requests, and both are here:
//!
//! * [`Unit::Region`]: a request is one thing, named by its start and length; requests that overlap have nothing to do with each
//!   other, and each takes its own room. The pages of a request are found together or not at all. This is
//!   `pindown --match exact` to the digit, and `pindown` where no two requests overlap without being the same.
//! * [`Unit::Page`]: pages are found one by one, for any requester, and a request is a hit if all its pages are found. Distances
//!   are kept by runs of pages that were last used together, not by page. This is `pindown-page` to the digit where requests are of
//!   one page. Elsewhere, pages of one request stand in the stack together. The rest of a request after others took parts of it is
//!   taken to be found from the capacity on that holds all of the rest, which is too much by less than that request's pages.
//!
//! Both are exact for capacities that hold the largest request. Below, a cache lets larger requests bypass it, and what they
//! take of the stack here they do not take there. Leases are not looked at: what is in use can be evicted here. Invalidation
//! removes pages, or every region that it touches, and what lies below moves up. A cache that evicted others for them before
//! does not get those back, so where much is invalidated the curve is a little too high. Every process has a stack, and a
//! cache, of its own.
//!
//! With [`Sampling`], a share of the regions, or of aligned blocks of 64 pages, stands for all: see `sample`. Then memory
//! and time go by the share, and a request is judged by those of its pages that are looked at.

mod reuse;
mod sample;
mod stack;

pub use reuse::{Reuse, reuse_distances};

use crate::last_use::LastUse;
use mrrc_core::PageRange;
use rustc_hash::FxHashMap;
use sample::Sampler;
use stack::Stack;
use traces::{Kind, Process, Trace};

/// Pages of the blocks that are sampled, where pages are.
const BLOCK: u64 = 64;

/// The most blocks of one request that are looked at one by one.
const MOST_BLOCKS: usize = 1 << 16;

/// The unit of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unit {
    /// Requests, by start and length.
    #[default]
    Region,
    /// Pages.
    Page,
}

/// How much is looked at.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Sampling {
    /// Everything.
    #[default]
    Exact,
    /// This share of what is used, above 0 and up to 1.
    Rate(f64),
    /// As large a share as keeps no more than so many regions, or blocks of 64 pages, in memory.
    Size(usize),
}

/// Hits by capacity.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Curve {
    /// Requests, a range of a list being one.
    pub requests: u64,
    /// Pages asked for.
    pub pages: u64,
    /// Capacities in pages, rising, and what they find.
    pub points: Vec<Point>,
    /// The share that was looked at, at the end of the trace; 1 without sampling.
    pub share: f64,
}

/// The hits of an LRU cache of one capacity.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Point {
    /// Pages.
    pub capacity: u64,
    /// Requests that are hits; an estimate if sampled.
    pub hits: f64,
    /// Pages that are found.
    pub hit_pages: f64,
}

impl Curve {
    /// Hits over requests, at each capacity.
    pub fn hit_ratios(&self) -> impl Iterator<Item = (u64, f64)> {
        self.points.iter().map(|point| (point.capacity, point.hits / self.requests.max(1) as f64))
    }

    /// Pages found over pages asked for, at each capacity.
    pub fn page_hit_ratios(&self) -> impl Iterator<Item = (u64, f64)> {
        self.points.iter().map(|point| (point.capacity, point.hit_pages / self.pages.max(1) as f64))
    }
}

/// Returns the curve at these capacities, which need not be in order.
pub fn curve(trace: &Trace, capacities_pages: &[u64], unit: Unit, sampling: Sampling) -> Curve {
    let mut capacities = capacities_pages.to_vec();
    capacities.sort_unstable();
    capacities.dedup();
    let mut whole = Curve { share: 1.0, ..Curve::default() };
    whole.points.extend(capacities.iter().map(|&capacity| Point { capacity, ..Point::default() }));
    for process in &trace.processes {
        let mut pass = Pass::new(&capacities, unit, sampling);
        pass.run(process);
        pass.add_to(&mut whole);
    }
    whole
}

/// The used ranges, and their slots in the stack.
enum Uses {
    Pages(LastUse<u32>),
    Regions(FxHashMap<PageRange, u32>),
}

/// One process.
struct Pass<'a> {
    capacities: &'a [u64],
    uses: Uses,
    stack: Stack,
    sampler: Sampler,
    /// By the first capacity that makes it one, hits; the last are none at all.
    hits: Vec<f64>,
    /// As `hits`, pages.
    hit_pages: Vec<f64>,
    requests: u64,
    pages: u64,
    /// The hits of a request: pages, and the capacity from which on they are found. Kept to be used again.
    found: Vec<(u64, u32)>,
}

impl<'a> Pass<'a> {
    fn new(capacities: &'a [u64], unit: Unit, sampling: Sampling) -> Self {
        Self {
            capacities,
            uses: match unit {
                Unit::Page => Uses::Pages(LastUse::default()),
                Unit::Region => Uses::Regions(FxHashMap::default()),
            },
            stack: Stack::default(),
            sampler: Sampler::new(sampling),
            hits: vec![0.0; capacities.len() + 1],
            hit_pages: vec![0.0; capacities.len() + 1],
            requests: 0,
            pages: 0,
            found: Vec::new(),
        }
    }

    fn run(&mut self, process: &Process) {
        for step in process.steps.iter() {
            let range = step.range();
            match step.kind() {
                Kind::Release => {}
                Kind::Invalidate => self.forget(range),
                Kind::Request | Kind::Acquire => {
                    self.requests += 1;
                    self.pages = self.pages.saturating_add(range.pages());
                    match self.uses {
                        Uses::Regions(_) => self.use_region(range),
                        Uses::Pages(_) if self.sampler.takes_all() => self.use_pages(range, true),
                        Uses::Pages(_) => self.use_blocks(range),
                    }
                }
            }
        }
    }

    /// Returns the first of the capacities that holds so many pages of all, of which the share shows so many.
    #[inline]
    fn holds(&self, depth: u64) -> usize {
        let depth = if self.sampler.takes_all() { depth } else { (depth as f64 / self.sampler.share()) as u64 };
        self.capacities.partition_point(|&capacity| capacity < depth)
    }

    fn make_slot(&mut self) {
        if self.stack.is_full() {
            match &mut self.uses {
                Uses::Pages(runs) => self.stack.close_up(runs.values_mut()),
                Uses::Regions(regions) => self.stack.close_up(regions.values_mut()),
            }
        }
    }

    fn use_region(&mut self, range: PageRange) {
        if !self.sampler.follows(range) {
            return;
        }
        self.make_slot();
        let weight = 1.0 / self.sampler.share();
        let Uses::Regions(regions) = &mut self.uses else { return };
        let slot = self.stack.push(range.pages());
        let before = regions.insert(range, slot);
        if let Some(before) = before {
            self.stack.remove(before, range.pages());
            // Its pages are in its new slot now, and so at the same depth as they were.
            let depth = self.stack.depth(before);
            let at = self.holds(depth);
            self.hits[at] += weight;
            self.hit_pages[at] += weight * range.pages() as f64;
        } else {
            self.miss(weight, range.pages());
        }
        let Uses::Regions(regions) = &mut self.uses else { return };
        self.sampler.add(range, |gone| {
            if let Some(slot) = regions.remove(&gone) {
                self.stack.remove(slot, gone.pages());
            }
        });
    }

    fn miss(&mut self, weight: f64, pages: u64) {
        let never = self.capacities.len();
        self.hits[never] += weight;
        self.hit_pages[never] += weight * pages as f64;
    }

    /// Uses these pages as one request or, unless it `counts`, as a part of one.
    fn use_pages(&mut self, range: PageRange, counts: bool) {
        self.make_slot();
        let weight = 1.0 / self.sampler.share();
        let slot = self.stack.push(range.pages());
        let Uses::Pages(runs) = &mut self.uses else { return };
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let mut new_pages = 0;
        runs.put(range, slot, |pages, before| match before {
            Some(before) => found.push((pages, before)),
            None => new_pages += pages,
        });
        // The request's own slot is on top already, and does not count.
        let own = range.pages();
        let mut deepest = 0;
        for &(pages, before) in &found {
            let depth = self.stack.depth(before) - own;
            deepest = deepest.max(depth);
            self.find_pages(pages, depth, weight);
        }
        found.iter().for_each(|&(pages, before)| self.stack.remove(before, pages));
        self.found = found;
        let never = self.capacities.len();
        self.hit_pages[never] += weight * new_pages as f64;
        if counts {
            let at = if new_pages == 0 { self.holds(deepest) } else { never };
            self.hits[at] += weight;
        }
    }

    /// Pages lie one below the other; the last at this depth.
    fn find_pages(&mut self, pages: u64, depth: u64, weight: f64) {
        let last = self.holds(depth);
        let mut at = self.holds(depth - pages + 1);
        let mut left = pages;
        let above = depth - pages;
        while at < last {
            // Some of the pages fit this capacity, and not the one before.
            let share = self.sampler.share();
            let fit = ((self.capacities[at] as f64 * share) as u64).saturating_sub(above).min(pages);
            let fit = fit.saturating_sub(pages - left);
            self.hit_pages[at] += weight * fit as f64;
            left -= fit;
            at += 1;
        }
        self.hit_pages[last] += weight * left as f64;
    }

    /// Uses those of the request's blocks that are followed; the first page's stands for the request.
    fn use_blocks(&mut self, range: PageRange) {
        let first = range.start() / BLOCK;
        for at in (first..=(range.end() - 1) / BLOCK).take(MOST_BLOCKS) {
            let Ok(block) = PageRange::new(at * BLOCK, BLOCK) else { return };
            if !self.sampler.follows(block) {
                continue;
            }
            if let Some(part) = block.intersection(range) {
                self.use_pages(part, at == first);
            }
            let Uses::Pages(runs) = &mut self.uses else { return };
            let stack = &mut self.stack;
            self.sampler.add(block, |gone| {
                runs.take(gone, |pages, slot| slot.into_iter().for_each(|slot| stack.remove(slot, pages)))
            });
        }
    }

    fn forget(&mut self, range: PageRange) {
        let stack = &mut self.stack;
        match &mut self.uses {
            Uses::Pages(runs) => {
                runs.take(range, |pages, slot| slot.into_iter().for_each(|slot| stack.remove(slot, pages)));
            }
            Uses::Regions(regions) => regions.retain(|region, &mut slot| {
                let stays = !region.overlaps(range);
                if !stays {
                    stack.remove(slot, region.pages());
                }
                stays
            }),
        }
    }

    fn add_to(self, curve: &mut Curve) {
        // The sample's excess or lack is put down to what any capacity finds.
        let lacks = |sampled: &[f64], all: u64| all as f64 - sampled.iter().sum::<f64>();
        let (mut hits, mut hit_pages) = (lacks(&self.hits, self.requests), lacks(&self.hit_pages, self.pages));
        for (at, point) in curve.points.iter_mut().enumerate() {
            hits += self.hits[at];
            hit_pages += self.hit_pages[at];
            point.hits += hits.clamp(0.0, self.requests as f64);
            point.hit_pages += hit_pages.clamp(0.0, self.pages as f64);
        }
        curve.requests += self.requests;
        curve.pages = curve.pages.saturating_add(self.pages);
        curve.share = curve.share.min(self.sampler.share());
    }
}
