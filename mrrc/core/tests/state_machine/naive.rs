//! The rules of MRRC and MRE a second time, so plainly that reading them is enough to believe them.
//!
//! One stack, a list from the bottom to the top. Its lower part is the resorting section: the regions
//! that carry a mark (factor, entry number). Each run of *full* sorts it with a plain sort. A
//! request's hits are looked up page by page. Nothing here is fast, and nothing that computes is the
//! crate's; only the words for answers are ([`Found`], [`Counters`]).

use mrrc_core::{Counters, Found};
use std::collections::{BTreeMap, BTreeSet};

/// The first page, and one past the last.
pub(crate) type Pages = (u64, u64);

/// Names a region forever.
pub(crate) type Name = usize;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) capacity: u64,
    pub(crate) resort: f64,
    pub(crate) evict: f64,
    pub(crate) max_regions: Option<u64>,
    pub(crate) max_region_pages: Option<u64>,
}

/// Pages of a request that lie in one region, or that become one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Part {
    /// `None`: registered for this request alone.
    pub(crate) region: Option<Name>,
    pub(crate) is_gap: bool,
    pub(crate) pages: Pages,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Answer {
    pub(crate) found: Found,
    pub(crate) bypass: bool,
    pub(crate) parts: Vec<Part>,
    pub(crate) batches: Vec<Vec<Pages>>,
}

/// All that could leave is in use.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Refusal {
    pub(crate) missing_pages: u64,
    pub(crate) missing_regions: u64,
    pub(crate) in_use_pages: u64,
    pub(crate) in_use_regions: u64,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    name: Name,
    pages: Pages,
    /// Eviction factor and entry number, in the resorting section.
    mark: Option<(f64, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    limits: Limits,
    /// From the bottom to the top.
    stack: Vec<Region>,
    /// Not found any more, but held.
    retired: Vec<Region>,
    holds: BTreeMap<Name, u32>,
    r: f64,
    entries: u64,
    names: usize,
    counters: Counters,
}

fn size((start, end): Pages) -> u64 {
    end - start
}

fn pages_of(regions: &[Region]) -> u64 {
    regions.iter().map(|region| size(region.pages)).sum()
}

impl Naive {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            stack: Vec::new(),
            retired: Vec::new(),
            holds: BTreeMap::new(),
            r: 0.0,
            entries: 0,
            names: 0,
            counters: Counters::default(),
        }
    }

    pub(crate) fn request(&mut self, asked: Pages) -> Result<Answer, Refusal> {
        let longest = self.limits.max_region_pages.unwrap_or(u64::MAX);
        let mut parts = self.parts(asked, longest);
        let gaps: Vec<Pages> = parts.iter().filter(|part| part.is_gap).map(|part| part.pages).collect();
        let overlaps: Vec<Name> = parts.iter().filter_map(|part| part.region).collect();
        let found = match (overlaps.len(), gaps.len()) {
            (1, 0) if self.get(overlaps[0]).pages == asked => Found::Exact,
            (1, 0) => Found::Subset,
            (_, 0) => Found::Covered,
            (0, _) => Found::Miss,
            _ => Found::Partial,
        };
        let gap_pages: u64 = gaps.iter().map(|&gap| size(gap)).sum();
        let gap_count = gaps.len() as u64;
        self.count(found, size(asked), size(asked) - gap_pages);
        overlaps.iter().for_each(|&name| self.move_to_top(name));
        let mut answer = Answer { found, bypass: false, parts: parts.clone(), batches: Vec::new() };
        if gaps.is_empty() {
            return Ok(answer);
        }

        let overlapping: Vec<Region> = overlaps.iter().map(|&name| self.get(name)).collect();
        if pages_of(&overlapping) + gap_pages > self.limits.capacity {
            answer.bypass = true;
            answer.parts = self.parts(asked, u64::MAX);
            self.counters.bypass += 1;
            self.counters.regs += gap_count;
            self.counters.reg_pages += gap_pages;
            self.counters.deregs += gap_count;
            self.counters.dereg_pages += gap_pages;
            self.counters.dereg_batches += 1;
            self.counters.peak_pages = self.counters.peak_pages.max(self.used_pages() + gap_pages);
            return Ok(answer);
        }

        if let Some(refusal) = self.refusal(gap_pages, gap_count, &overlaps) {
            self.counters.all_in_use += 1;
            return Err(refusal);
        }
        while self.need(gap_pages, gap_count) != (0, 0) {
            let need = self.need(gap_pages, gap_count);
            let batch = self.full(need, &overlaps);
            assert!(!batch.is_empty(), "refused before, if nothing could leave");
            answer.batches.push(batch);
        }
        for part in parts.iter_mut().filter(|part| part.is_gap) {
            self.names += 1;
            part.region = Some(self.names);
            self.stack.push(Region { name: self.names, pages: part.pages, mark: None });
            self.counters.regs += 1;
            self.counters.reg_pages += size(part.pages);
        }
        self.counters.peak_pages = self.counters.peak_pages.max(self.used_pages());
        answer.parts = parts;
        Ok(answer)
    }

    /// Walks over the pages of the request. A part ends where the region changes, and a gap also where
    /// the longest region would. (An answer shows the gaps of a bypass whole; they count as cut.)
    fn parts(&self, asked: Pages, longest: u64) -> Vec<Part> {
        let mut owners = BTreeMap::new();
        for region in &self.stack {
            (region.pages.0..region.pages.1).for_each(|page| assert_eq!(owners.insert(page, region.name), None));
        }
        let mut parts: Vec<Part> = Vec::new();
        for page in asked.0..asked.1 {
            let region = owners.get(&page).copied();
            match parts.last_mut() {
                Some(part) if part.region == region && (region.is_some() || size(part.pages) < longest) => {
                    part.pages.1 = page + 1;
                }
                _ => parts.push(Part { region, is_gap: region.is_none(), pages: (page, page + 1) }),
            }
        }
        parts
    }

    fn count(&mut self, found: Found, pages: u64, hit_pages: u64) {
        self.counters.requests += 1;
        self.counters.pages += pages;
        self.counters.hit_pages += hit_pages;
        *match found {
            Found::Exact => &mut self.counters.exact,
            Found::Subset => &mut self.counters.subset,
            Found::Covered => &mut self.counters.covered,
            Found::Partial => &mut self.counters.partial,
            Found::Miss => &mut self.counters.miss,
        } += 1;
    }

    fn get(&self, name: Name) -> Region {
        *self.stack.iter().find(|region| region.name == name).expect("cached")
    }

    fn move_to_top(&mut self, name: Name) {
        let region = self.get(name);
        self.stack.retain(|other| other.name != name);
        self.stack.push(Region { mark: None, ..region });
    }

    /// Pages and regions by which the limits would be exceeded.
    fn need(&self, gap_pages: u64, gap_count: u64) -> (u64, u64) {
        let max_regions = self.limits.max_regions.unwrap_or(u64::MAX);
        (
            (self.used_pages() + gap_pages).saturating_sub(self.limits.capacity),
            (self.used_regions() + gap_count).saturating_sub(max_regions),
        )
    }

    fn is_candidate(&self, name: Name, overlaps: &[Name]) -> bool {
        !self.holds.contains_key(&name) && !overlaps.contains(&name)
    }

    /// Decided before anything is evicted.
    fn refusal(&self, gap_pages: u64, gap_count: u64, overlaps: &[Name]) -> Option<Refusal> {
        let (missing_pages, missing_regions) = self.need(gap_pages, gap_count);
        let (can_leave, in_use): (Vec<Region>, Vec<Region>) =
            self.stack.iter().chain(&self.retired).partition(|region| self.is_candidate(region.name, overlaps));
        let refusal = Refusal {
            missing_pages,
            missing_regions,
            in_use_pages: pages_of(&in_use),
            in_use_regions: in_use.len() as u64,
        };
        (pages_of(&can_leave) < missing_pages || (can_leave.len() as u64) < missing_regions).then_some(refusal)
    }

    /// One run of *full*, by the numbers of its description.
    fn full(&mut self, (need_pages, need_regions): (u64, u64), overlaps: &[Name]) -> Vec<Pages> {
        // 1. The system recency value becomes the smallest factor.
        let factors = self.stack.iter().filter_map(|region| Some(region.mark?.0));
        self.r = factors.reduce(f64::min).unwrap_or(self.r);

        // 2. The resorting section is filled from the old end of the frequent section.
        let wanted = self.share(self.limits.resort);
        loop {
            let resorting: Vec<Region> = self.stack.iter().filter(|region| region.mark.is_some()).copied().collect();
            let is_next = |region: &Region| region.mark.is_none() && self.is_candidate(region.name, overlaps);
            let Some(next) = self.stack.iter().position(is_next) else { break };
            if pages_of(&resorting) >= wanted {
                break;
            }
            self.entries += 1;
            let region = &mut self.stack[next];
            region.mark = Some((self.r + 1.0 / size(region.pages) as f64, self.entries));
        }
        // The sort keeps the order of equals, and so that of the frequent section.
        let rank = |region: &Region| region.mark.unwrap_or((f64::INFINITY, 0));
        self.stack.sort_by(|a, b| rank(a).partial_cmp(&rank(b)).expect("factors are numbers"));

        // 3. The eviction segment leaves from the bottom. Where only regions are missing, it is a share of these.
        let share = self.share(self.limits.evict);
        let (goal_pages, goal_regions) = match self.limits.max_regions {
            Some(most) if need_pages == 0 => (0, need_regions.max(share * most / self.limits.capacity)),
            _ => (need_pages.max(share), need_regions),
        };
        let mut batch = Vec::new();
        while self.stack.first().is_some_and(|bottom| bottom.mark.is_some())
            && (batch.iter().copied().map(size).sum::<u64>() < goal_pages || (batch.len() as u64) < goal_regions)
        {
            batch.push(self.stack.remove(0).pages);
        }
        self.counters.evicted += batch.len() as u64;
        self.count_batch(&batch);
        batch
    }

    /// Returns a fraction of the capacity, rounded down, but one page at least.
    fn share(&self, fraction: f64) -> u64 {
        ((fraction * self.limits.capacity as f64).floor() as u64).max(1)
    }

    fn count_batch(&mut self, batch: &[Pages]) {
        self.counters.deregs += batch.len() as u64;
        self.counters.dereg_pages += batch.iter().copied().map(size).sum::<u64>();
        self.counters.dereg_batches += u64::from(!batch.is_empty());
    }

    /// The fast half of a request: if one region serves it, that is all; if not, nothing happens.
    pub(crate) fn hit(&mut self, asked: Pages) -> Option<Name> {
        let [Part { region: Some(name), .. }] = self.parts(asked, u64::MAX)[..] else { return None };
        let found = if self.get(name).pages == asked { Found::Exact } else { Found::Subset };
        self.count(found, size(asked), size(asked));
        self.move_to_top(name);
        Some(name)
    }

    pub(crate) fn hold(&mut self, name: Name) {
        *self.holds.entry(name).or_insert(0) += 1;
    }

    /// Returns the ranges deregistered because of it.
    pub(crate) fn release(&mut self, name: Name) -> Vec<Pages> {
        let holds = self.holds.get_mut(&name).expect("held");
        *holds -= 1;
        if *holds > 0 {
            return Vec::new();
        }
        self.holds.remove(&name);
        let leaving: Vec<Pages> = self.retired.iter().filter(|region| region.name == name).map(|r| r.pages).collect();
        self.retired.retain(|region| region.name != name);
        self.count_batch(&leaving);
        leaving
    }

    /// Returns the ranges deregistered because of it; held ones only leave the lookup.
    pub(crate) fn invalidate(&mut self, range: Pages) -> Vec<Pages> {
        let touches = |region: &Region| (region.pages.0..region.pages.1).any(|page| range.0 <= page && page < range.1);
        let (mut touched, kept): (Vec<Region>, Vec<Region>) = self.stack.iter().copied().partition(touches);
        self.stack = kept;
        touched.sort_by_key(|region| region.pages);
        self.counters.invalidated += touched.len() as u64;
        self.counters.invalidated_pages += pages_of(&touched);
        let (held, leaving): (Vec<Region>, Vec<Region>) =
            touched.iter().partition(|region| self.holds.contains_key(&region.name));
        self.retired.extend(held);
        let leaving: Vec<Pages> = leaving.iter().map(|region| region.pages).collect();
        self.count_batch(&leaving);
        leaving
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns whether the region is cached, or retired and held.
    pub(crate) fn is_registered(&self, name: Name) -> bool {
        self.stack.iter().chain(&self.retired).any(|region| region.name == name)
    }

    pub(crate) fn cached(&self) -> BTreeSet<Pages> {
        self.stack.iter().map(|region| region.pages).collect()
    }

    pub(crate) fn used_pages(&self) -> u64 {
        pages_of(&self.stack) + pages_of(&self.retired)
    }

    pub(crate) fn used_regions(&self) -> u64 {
        (self.stack.len() + self.retired.len()) as u64
    }

    pub(crate) fn held_pages(&self) -> u64 {
        let all = self.stack.iter().chain(&self.retired);
        all.filter(|region| self.holds.contains_key(&region.name)).map(|region| size(region.pages)).sum()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }
}
