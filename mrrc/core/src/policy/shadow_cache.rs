//! A small simulated cache that shows what a set of parameters would have cost.
//!
//! A shadow sees a sample of the ranges, chosen by their names, and has the same share of the capacity, so its
//! costs are to the sample what the cache's would be to all, had it taken this choice. It runs the same worth, the same
//! clock and the same memory of the evicted as [`Probation`](super::probation::Probation) itself, but each
//! of its regions is a row in a hash map and an entry in a heap.

use super::frequency_table::FrequencyTable;
use super::parameters::Parameters;
use crate::cost::Linear;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Costs count half after about 1,400 requests of the sample: some turnovers of the shadow, and enough of them
/// that chance does not choose.
const FADING: f64 = 1.0 - 1.0 / 2000.0;

/// One set of parameters at work on a sample.
#[derive(Debug)]
pub(super) struct ShadowCache {
    choice: Parameters,
    capacity: u64,
    used: u64,
    clock: f64,
    requests: u32,
    full: bool,
    regions: FxHashMap<u64, Row>,
    /// As in `ordered.rs`: no entry is above its region, and one that is below it is brought up to date when it
    /// comes up. One entry a region.
    heap: BinaryHeap<Reverse<Entry>>,
    frequencies: FrequencyTable,
    cost: f64,
}

/// The bits of a worth, the last request and the name.
type Entry = (u64, u32, u64);

#[derive(Debug)]
struct Row {
    pages: u64,
    benefit: f64,
    uses: u32,
    /// The number of the last request for it, which may start over: it breaks ties, and tells an entry of the
    /// heap that is out of date.
    last: u32,
}

impl ShadowCache {
    pub(super) fn new(choice: Parameters, capacity: u64) -> Self {
        Self {
            choice,
            capacity,
            used: 0,
            clock: 0.0,
            requests: 0,
            full: false,
            regions: FxHashMap::default(),
            heap: BinaryHeap::new(),
            frequencies: FrequencyTable::new(),
            cost: 0.0,
        }
    }

    /// A region of the sample that the cache has, as it is: the play begins in the middle.
    pub(super) fn open_with(&mut self, name: u64, pages: u64, uses: u32, costs: &Linear) {
        if self.used + pages > self.capacity || self.regions.contains_key(&name) {
            return;
        }
        let benefit = self.choice.benefit_while_room(uses, costs.reload(pages) / pages as f64);
        self.requests = self.requests.wrapping_add(1);
        self.enter(name, Row { uses, pages, benefit, last: self.requests });
    }

    fn enter(&mut self, name: u64, row: Row) {
        self.used += row.pages;
        self.heap.push(Reverse((row.benefit.to_bits(), row.last, name)));
        self.regions.insert(name, row);
    }

    /// A range of the sample was asked for.
    pub(super) fn ask(&mut self, name: u64, pages: u64, costs: &Linear) {
        self.requests = self.requests.wrapping_add(1);
        self.cost *= FADING;
        let density = costs.reload(pages) / pages as f64;
        if let Some(row) = self.regions.get_mut(&name) {
            row.uses = row.uses.saturating_add(1);
            row.benefit = row.benefit.max(self.clock + self.choice.benefit(row.uses, density, name));
            row.last = self.requests;
            return;
        }
        self.cost += costs.reload(pages);
        if pages > self.capacity {
            return;
        }
        let left = self.make_room(pages);
        let uses = 1 + self.frequencies.get(name) / 2;
        let benefit = if self.full {
            self.choice.benefit(uses, density, name ^ u64::from(self.requests))
        } else {
            self.choice.benefit_while_room(uses, density)
        };
        self.full |= left > 0.0;
        self.clock = self.clock.max(left.min(self.clock + benefit));
        self.enter(name, Row { uses, pages, benefit: self.clock + benefit, last: self.requests });
    }

    /// Evicts until so many pages fit; returns the most that one of the victims was worth.
    fn make_room(&mut self, pages: u64) -> f64 {
        let mut left = 0.0_f64;
        if self.used + pages > self.capacity {
            self.frequencies.grow(self.regions.len());
        }
        while self.used + pages > self.capacity {
            let Some(mut top) = self.heap.peek_mut() else { break };
            let (benefit, last, name) = top.0;
            let row = &self.regions[&name];
            if row.last != last {
                top.0 = (row.benefit.to_bits(), row.last, name);
                continue;
            }
            PeekMut::pop(top);
            left = left.max(f64::from_bits(benefit));
            self.used -= row.pages;
            if row.uses > 1 {
                self.frequencies.insert(name, row.uses);
            }
            self.regions.remove(&name);
        }
        left
    }

    /// Returns the recent cost.
    pub(super) fn cost(&self) -> f64 {
        self.cost
    }

    /// Carries over the cost of an earlier shadow of the same choice.
    pub(super) fn carry_over(&mut self, cost: f64) {
        self.cost = cost;
    }

    /// Bytes allocated.
    pub(super) fn memory(&self) -> usize {
        self.regions.capacity() * (size_of::<(u64, Row)>() + 1)
            + self.heap.capacity() * size_of::<Reverse<Entry>>()
            + self.frequencies.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::frequency_table::name_of;
    use crate::policy::probation::Probation;
    use crate::{Config, Core, PageRange};

    /// Popular ranges of 1 to 5 pages and some of 80, with other favourites from time to time.
    fn requests() -> impl Iterator<Item = PageRange> {
        let mut seed = 1_u64;
        (0..20_000_u64).map(move |i| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (a, b) = (seed >> 33 & 1023, seed >> 43 & 1023);
            let object = (a * b / 1024 + i / 5_000 * 200) % 1024;
            let pages = if object % 61 == 0 { 80 } else { 1 + object % 5 };
            PageRange::new(128 * object, pages).unwrap()
        })
    }

    #[test]
    fn shadow_cost_equals_real_cost() {
        // Trust is left to chance elsewhere; here all newcomers have it. Without a price a call nothing leaves in
        // batches.
        let costs = Linear { dereg_call: 0.0, ..Linear::PAPER };
        let config = Config { cost: costs, ..Config::new(600) };
        let [.., trusting] = Parameters::all();
        let mut core = Core::with_policy(&config, Probation::with_one_choice(&config.params(), &trusting)).unwrap();
        let mut shadow = ShadowCache::new(trusting, 600);
        let mut misses = 0;
        for (i, asked) in requests().enumerate() {
            let before = shadow.cost();
            shadow.ask(name_of(asked), asked.pages(), &costs);
            let missed = shadow.cost() > before;
            assert_eq!(core.request(asked).unwrap().found().is_hit(), !missed, "request {i}, {asked:?}");
            misses += u32::from(missed);
        }
        assert!((2_000..18_000).contains(&misses), "{misses}");
        assert_eq!(shadow.used, core.used_pages());
    }

    #[test]
    fn a_play_that_opens_in_the_middle_has_what_fits() {
        let mut shadow = ShadowCache::new(Parameters::all()[0].clone(), 10);
        for name in 0..8 {
            shadow.open_with(name << 8, 3, 1, &Linear::PAPER);
        }
        assert_eq!((shadow.used, shadow.regions.len()), (9, 3));
        shadow.ask(1 << 8, 3, &Linear::PAPER);
        assert_eq!(shadow.cost(), 0.0);
        shadow.ask(9 << 8, 11, &Linear::PAPER);
        assert_eq!((shadow.used, shadow.regions.len()), (9, 3), "what never fits pushes nobody out");
    }

    #[test]
    fn memory_stays_bounded() {
        let mut shadow = ShadowCache::new(Parameters::all()[0].clone(), 200);
        for i in 0..50_000 {
            shadow.ask(name_of(PageRange::new(i % 900, 1).unwrap()), 1, &Linear::PAPER);
        }
        assert!(shadow.memory() < 32 << 10, "{}", shadow.memory());
    }
}
