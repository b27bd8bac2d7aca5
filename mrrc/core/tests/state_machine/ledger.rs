//! The books of a driver that does exactly what the core tells it: registers the gaps, deregisters the
//! batches, holds and releases. Whatever the policy, the core must never say less or more than is true.

use mrrc_core::policy::{Granule, Keeps, Matching, Overlap};
use mrrc_core::{AllInUse, Config, Core, Counters, Found, Leavers, Leaving, Outcome, PageRange, Part, RegionId};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Ledger {
    core: Core,
    capacity: u64,
    max_regions: u64,
    max_region_pages: u64,
    /// The registered ranges, cached or not.
    registered: BTreeMap<RegionId, PageRange>,
    holds: BTreeMap<RegionId, u32>,
    /// The expected counters.
    expected: Counters,
}

/// The cache just before a request.
struct Before {
    cached: BTreeSet<PageRange>,
    /// Pages of the request that lie in cached regions.
    hit_pages: u64,
    used_pages: u64,
    used_regions: u64,
    counters: Counters,
}

/// An [`Outcome`] to keep.
struct Answer {
    found: Found,
    bypass: bool,
    parts: Vec<Part>,
    batches: Vec<Vec<Leaving>>,
}

impl Answer {
    fn of(outcome: &Outcome) -> Self {
        Self {
            found: outcome.found(),
            bypass: outcome.is_bypass(),
            parts: outcome.parts().to_vec(),
            batches: outcome.batches().map(<[Leaving]>::to_vec).collect(),
        }
    }
}

fn pages_in(ranges: impl IntoIterator<Item = PageRange>) -> BTreeSet<u64> {
    ranges.into_iter().flat_map(|range| range.start()..range.end()).collect()
}

fn region_of(part: &Part) -> Option<RegionId> {
    match *part {
        Part::Ready { region, .. } | Part::Registering { region, .. } => Some(region),
        Part::Gap { region, .. } => region,
    }
}

/// The parts are the request, in address order. A merged region or a bucket reaches beyond it.
fn check_tiling(asked: PageRange, parts: &[Part]) {
    let mut next = asked.start();
    for part in parts.iter().filter_map(|part| part.range().intersection(asked)) {
        assert_eq!(part.start(), next, "no overlap and no hole: {parts:?}");
        next = part.end();
    }
    assert_eq!(next, asked.end(), "to the end: {parts:?}");
}

fn count_pieces(answer: &Answer, longest: u64) -> u64 {
    let gaps = answer.parts.iter().filter(|part| matches!(part, Part::Gap { .. }));
    gaps.map(|gap| gap.range().pages().div_ceil(longest)).sum()
}

impl Ledger {
    pub(crate) fn new(core: Core, config: &Config) -> Self {
        let limits = config.max_regions.into_iter().chain(core.scheme().max_regions);
        Self {
            capacity: config.capacity,
            max_regions: limits.min().unwrap_or(u64::MAX),
            max_region_pages: config.max_region_pages.unwrap_or(u64::MAX),
            registered: BTreeMap::new(),
            holds: BTreeMap::new(),
            expected: Counters::default(),
            core,
        }
    }

    /// Returns the regions that answer, or none if all that could leave is in use.
    pub(crate) fn request(&mut self, asked: PageRange) -> Vec<RegionId> {
        let before = self.survey(asked);
        self.expected.requests += 1;
        self.expected.pages += asked.pages();
        self.expected.hit_pages += before.hit_pages;
        match self.core.request(asked) {
            Ok(outcome) => {
                let answer = Answer::of(outcome);
                self.check_found(asked, &before, &answer);
                check_tiling(asked, &answer.parts);
                let gaps = self.book(&answer);
                self.check_eviction(&before, &answer, gaps);
                self.count_registrations(&before, &answer, gaps);
                answer.parts.iter().filter_map(region_of).collect()
            }
            Err(refusal) => {
                self.check_refusal(asked, &before, &refusal);
                Vec::new()
            }
        }
    }

    /// Requests that come together. Some may be answered as a group, by what spans them; how each is
    /// classified is not repeated here.
    pub(crate) fn request_list(&mut self, asked: &[PageRange]) {
        let mut answers = Vec::new();
        let left = self.core.request_list(asked, |span, outcome| answers.push((span, outcome.map(Answer::of))));
        let left = batches_of(left);
        let mut answering = BTreeSet::new();
        let mut answered = BTreeSet::new();
        for (span, answer) in &answers {
            answered.extend(pages_in([*span]));
            if let Ok(answer) = answer {
                check_tiling(*span, &answer.parts);
                for leaving in answer.batches.iter().flatten() {
                    assert!(!answering.contains(&leaving.region), "{leaving:?} answers an earlier range of the list");
                }
                self.book(answer);
                answering.extend(answer.parts.iter().filter_map(Part::region));
            }
        }
        left.iter().for_each(|batch| self.deregister(batch));
        assert!(pages_in(asked.iter().copied()).is_subset(&answered), "every range is answered");
        // A region that spans a group would serve no member that is matched exactly.
        let groups = self.core.scheme().groups && self.core.scheme().matching == Matching::Contain;
        assert!(groups || answers.iter().map(|(span, _)| span).eq(asked), "each alone");
        let mut counters = self.core.counters();
        assert_eq!(counters.requests, self.expected.requests + asked.len() as u64);
        assert_eq!(counters.pages, self.expected.pages + asked.iter().map(|range| range.pages()).sum::<u64>());
        counters.merged = 0;
        self.expected = counters;
    }

    fn survey(&self, asked: PageRange) -> Before {
        let cached: BTreeSet<PageRange> = self.core.cached().map(|(_, range)| range).collect();
        let hit_pages = match self.core.scheme().matching {
            Matching::Contain => pages_in(cached.iter().copied()).intersection(&pages_in([asked])).count() as u64,
            // A range too long for one region is cut, and its pieces are matched.
            Matching::Exact => {
                let pieces = (asked.start()..asked.end()).step_by(self.max_region_pages as usize).map(|start| {
                    let pages = self.max_region_pages.min(asked.end() - start);
                    PageRange::new(start, pages).expect("not empty")
                });
                pieces.filter(|piece| cached.contains(piece)).map(PageRange::pages).sum()
            }
        };
        Before {
            hit_pages,
            cached,
            used_pages: self.core.used_pages(),
            used_regions: self.core.used_regions(),
            counters: self.core.counters(),
        }
    }

    /// Checks that the answer agrees with the cached regions.
    fn check_found(&mut self, asked: PageRange, before: &Before, answer: &Answer) {
        let scheme = self.core.scheme();
        let found = answer.found;
        let by_one = match scheme.matching {
            Matching::Contain => before.cached.iter().any(|range| range.contains(asked)),
            Matching::Exact => before.cached.contains(&asked),
        };
        assert_eq!(found == Found::Exact, before.cached.contains(&asked));
        assert_eq!(matches!(found, Found::Exact | Found::Subset), by_one);
        assert_eq!(found.is_hit(), answer.parts.iter().all(|part| matches!(part, Part::Ready { .. })));
        assert!(!found.is_hit() || before.hit_pages == asked.pages(), "{found:?}, but not every page was cached");
        assert_eq!(found == Found::Miss, before.hit_pages == 0);
        let is_whole = before.hit_pages == asked.pages();
        assert!(found.is_hit() || !is_whole || scheme.overlap != Overlap::Split, "{found:?} of cached pages");
        *match found {
            Found::Exact => &mut self.expected.exact,
            Found::Subset => &mut self.expected.subset,
            Found::Covered => &mut self.expected.covered,
            Found::Partial => &mut self.expected.partial,
            Found::Miss => &mut self.expected.miss,
        } += 1;
    }

    /// Deregisters, then registers, as told. Pages and number of the gaps.
    fn book(&mut self, Answer { bypass, parts, batches, .. }: &Answer) -> (u64, u64) {
        for part in parts {
            if let Part::Ready { region, range } = part {
                assert!(self.registered[region].contains(*range), "{part:?} was registered before");
            }
        }
        batches.iter().for_each(|batch| self.deregister(batch));
        self.expected.evicted += batches.iter().flatten().count() as u64;
        let kept = self.core.scheme().keeps != Keeps::Nothing && !bypass;
        let (mut pages, mut gaps) = (0, 0);
        for part in parts {
            match *part {
                Part::Ready { region, .. } => assert!(self.registered.contains_key(&region), "{part:?} stays"),
                Part::Registering { .. } => panic!("{part:?}: there is no hard limit"),
                Part::Gap { region, range, .. } => {
                    pages += range.pages();
                    gaps += 1;
                    assert_eq!(region.is_some(), kept);
                    if let Some(id) = region {
                        assert!(range.pages() <= self.max_region_pages, "one registration: {part:?}");
                        assert_eq!(self.registered.insert(id, range), None, "{id:?} names one region at a time");
                    }
                }
            }
        }
        (pages, gaps)
    }

    /// Nothing leaves without need.
    fn check_eviction(&self, before: &Before, answer: &Answer, (pages, gaps): (u64, u64)) {
        let scheme = self.core.scheme();
        if scheme.overlap == Overlap::Split && !answer.batches.is_empty() {
            assert!(!answer.bypass && scheme.keeps == Keeps::UntilEvicted, "nothing is evicted for what is not kept");
            let has_room = before.used_pages + pages <= self.capacity;
            let has_slots = before.used_regions + gaps <= self.max_regions;
            assert!(!(has_room && has_slots), "evictions happen only when the cache is full");
        }
    }

    fn count_registrations(&mut self, before: &Before, answer: &Answer, (pages, gaps): (u64, u64)) {
        if gaps == 0 {
            return;
        }
        let scheme = self.core.scheme();
        let kept = scheme.keeps != Keeps::Nothing && !answer.bypass;
        let regs = match scheme.granule {
            Granule::Page => self.core.counters().regs - before.counters.regs,
            Granule::Region | Granule::Bucket(_) if kept => gaps,
            // A gap that is not kept is not cut, but still registered in pieces.
            Granule::Region => count_pieces(answer, self.max_region_pages),
            Granule::Bucket(pages) => count_pieces(answer, self.max_region_pages.min(pages)),
        };
        self.expected.regs += regs;
        self.expected.reg_pages += pages;
        let mut registered = self.core.used_pages();
        if !kept {
            self.expected.bypass += u64::from(answer.bypass);
            self.expected.deregs += regs;
            self.expected.dereg_pages += pages;
            self.expected.dereg_batches += 1;
            registered += pages;
        }
        self.expected.peak_pages = self.expected.peak_pages.max(registered);
    }

    /// Nothing was lost, and it could not be helped.
    fn check_refusal(&mut self, asked: PageRange, before: &Before, refusal: &AllInUse) {
        assert_eq!(refusal.asked, asked);
        assert!(refusal.missing_pages > 0 || refusal.missing_regions > 0);
        let can_leave = (before.used_pages - refusal.in_use_pages, before.used_regions - refusal.in_use_regions);
        // Merged regions leave too, but what takes their place is larger.
        let is_enough = can_leave.0 >= refusal.missing_pages && can_leave.1 >= refusal.missing_regions;
        assert!(!is_enough || self.core.scheme().overlap != Overlap::Split, "{can_leave:?} would do: {refusal}");
        let held: u64 = self.holds.keys().map(|id| self.registered[id].pages()).sum();
        assert!(refusal.in_use_pages >= held && refusal.in_use_regions >= self.holds.len() as u64);
        assert_eq!(self.core.cached().map(|(_, range)| range).collect::<BTreeSet<_>>(), before.cached);
        self.expected.all_in_use += 1;
        let is_partial = before.hit_pages > 0;
        self.expected.partial += u64::from(is_partial);
        self.expected.miss += u64::from(!is_partial);
    }

    pub(crate) fn hold(&mut self, id: RegionId) {
        self.core.hold(id);
        *self.holds.entry(id).or_insert(0) += 1;
    }

    pub(crate) fn release(&mut self, id: RegionId) {
        let was_cached = self.core.cached().any(|(other, _)| other == id);
        let left = batches_of(self.core.release(id));
        let holds = self.holds.get_mut(&id).expect("held");
        *holds -= 1;
        if *holds == 0 {
            self.holds.remove(&id);
        }
        let leaves = !was_cached && !self.holds.contains_key(&id);
        let expected = leaves.then(|| vec![Leaving { region: id, range: self.registered[&id] }]);
        assert_eq!(left, expected.into_iter().collect::<Vec<_>>());
        left.iter().for_each(|batch| self.deregister(batch));
    }

    pub(crate) fn invalidate(&mut self, range: PageRange) {
        let touched: BTreeMap<RegionId, PageRange> =
            self.core.cached().filter(|(_, cached)| cached.overlaps(range)).collect();
        self.expected.invalidated += touched.len() as u64;
        self.expected.invalidated_pages += touched.values().map(|range| range.pages()).sum::<u64>();
        let left = batches_of(self.core.invalidate(range));
        left.iter().for_each(|batch| self.deregister(batch));
        let left: BTreeMap<_, _> = left.iter().flatten().map(|leaving| (leaving.region, leaving.range)).collect();
        let idle: BTreeMap<_, _> = touched.into_iter().filter(|(id, _)| !self.holds.contains_key(id)).collect();
        assert_eq!(left, idle, "what nobody holds leaves at once");
        assert!(!self.core.cached().any(|(_, cached)| cached.overlaps(range)), "what was invalidated is not found");
    }

    fn deregister(&mut self, batch: &[Leaving]) {
        assert!(!batch.is_empty());
        for leaving in batch {
            assert!(!self.holds.contains_key(&leaving.region), "{leaving:?} is held");
            assert_eq!(self.registered.remove(&leaving.region), Some(leaving.range), "registered, and left once");
            self.expected.deregs += 1;
            self.expected.dereg_pages += leaving.range.pages();
        }
        self.expected.dereg_batches += 1;
    }

    /// Checks the invariants after every step.
    pub(crate) fn check(&self) {
        let core = &self.core;
        assert!(core.used_pages() <= self.capacity && core.used_regions() <= self.max_regions, "the limits hold");
        assert_eq!(core.used_pages(), self.registered.values().map(|range| range.pages()).sum::<u64>());
        assert_eq!(core.used_regions(), self.registered.len() as u64);
        assert_eq!(core.held_pages(), self.holds.keys().map(|id| self.registered[id].pages()).sum::<u64>());

        let cached: BTreeMap<RegionId, PageRange> = core.cached().collect();
        for (id, range) in &self.registered {
            assert!(cached.get(id) == Some(range) || self.holds.contains_key(id), "{id:?} is retired, but not held");
        }
        for (&id, &range) in &cached {
            assert_eq!(self.registered.get(&id), Some(&range), "what is cached is registered");
            assert_eq!(core.find(range), Some(id), "what is cached is found");
        }
        if core.scheme().matching == Matching::Contain {
            let pages: u64 = cached.values().map(|range| range.pages()).sum();
            assert_eq!(pages_in(cached.values().copied()).len() as u64, pages, "cached regions are disjoint");
        }
        assert!(core.scheme().keeps != Keeps::Nothing || self.registered.is_empty(), "nothing is kept");
        self.check_counters();
    }

    fn check_counters(&self) {
        let mut counters = self.core.counters();
        let classes = counters.exact + counters.subset + counters.covered + counters.partial + counters.miss;
        assert_eq!(counters.requests, classes);
        assert_eq!(counters.hits(), counters.exact + counters.subset + counters.covered);
        assert_eq!(counters.reg_pages - counters.dereg_pages, self.core.used_pages());
        // A run of missing pages is one registration, but as many deregistrations as pages.
        if self.core.scheme().granule != Granule::Page {
            assert_eq!(counters.regs - counters.deregs, self.core.used_regions());
        }
        assert!(counters.merged == 0 || self.core.scheme().overlap != Overlap::Split);
        if std::mem::take(&mut counters.merged) > 0 {
            // Some of what left was merged.
            assert!(counters.evicted <= self.expected.evicted);
            counters.evicted = self.expected.evicted;
        }
        assert_eq!(counters, self.expected);
    }

    /// Gives everything back, whatever is held or cached: then nothing is registered.
    pub(crate) fn close(mut self, address_space: PageRange) {
        for (id, holds) in self.holds.clone() {
            (0..holds).for_each(|_| self.release(id));
        }
        self.check();
        self.invalidate(address_space);
        self.check();
        assert_eq!((self.core.used_pages(), self.core.used_regions(), self.core.held_pages()), (0, 0, 0));
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn held(&self) -> Vec<RegionId> {
        self.holds.keys().copied().collect()
    }
}

fn batches_of(leavers: &Leavers) -> Vec<Vec<Leaving>> {
    let batches: Vec<_> = leavers.batches().map(<[Leaving]>::to_vec).collect();
    assert_eq!(batches.is_empty(), leavers.is_empty());
    batches
}
