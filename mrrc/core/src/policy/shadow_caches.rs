//! Small simulated caches that show what each set of parameters would have cost.
//!
//! Shadows see a sample of the ranges, chosen by their names, and have the same share of the capacity. So their
//! costs are to the sample what the cache's would be to all, had it taken that choice. They run the same worth, the same
//! clock and the same memory of the evicted as [`Probation`](super::probation::Probation) itself.
//!
//! All see the same requests, so a range has one row for all of them, and is looked up once. Each shadow that has it has
//! an entry for it in its heap.

use super::frequency_table::FrequencyTable;
use super::parameters::Parameters;
use crate::cost::Linear;
use crate::grow;
use dary_heap::{PeekMut, QuaternaryHeap};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Costs count half after about 1,400 requests of the sample: some turnovers of the shadow, and enough of them
/// that chance does not choose.
const FADING: f64 = 1.0 - 1.0 / 2000.0;

/// Sets of parameters at work on a sample.
#[derive(Debug)]
pub(super) struct ShadowCaches<const N: usize> {
    capacity: u64,
    requests: u32,
    /// Every range that some shadow has.
    rows: Vec<Row<N>>,
    /// The places in `rows` that are free.
    free: Vec<u32>,
    /// The place of a range in `rows`, by its name.
    places: FxHashMap<u64, u32>,
    shadows: [Shadow; N],
}

/// One set of parameters at work.
#[derive(Debug)]
struct Shadow {
    choice: Parameters,
    used: u64,
    clock: f64,
    full: bool,
    /// As in `ordered.rs`: no entry is above its region, and one that is below it is brought up to date when it
    /// comes up. One entry a region.
    heap: QuaternaryHeap<Reverse<Entry>>,
    frequencies: FrequencyTable,
    cost: f64,
}

/// The bits of a worth, the last request and the place of the row, from above: it compares without a branch to guess wrong.
type Entry = u128;

/// A range that shadows have.
#[derive(Debug)]
struct Row<const N: usize> {
    name: u64,
    pages: u64,
    /// The shadows that have it, a bit for each.
    present: u32,
    uses: [Uses; N],
}

/// The uses of a range in one shadow.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    benefit: f64,
    count: u32,
    /// The number of the last request for it, which may start over. It breaks ties. An entry of the heap with another is out
    /// of date.
    last: u32,
}

impl Uses {
    #[inline]
    fn entry(&self, place: u32) -> Entry {
        u128::from(self.benefit.to_bits()) << 64 | u128::from(self.last) << 32 | u128::from(place)
    }
}

impl<const N: usize> ShadowCaches<N> {
    pub(super) fn new(choices: &[Parameters; N], capacity: u64) -> Self {
        let shadow = |choice: &Parameters| Shadow {
            choice: choice.clone(),
            used: 0,
            clock: 0.0,
            full: false,
            heap: QuaternaryHeap::new(),
            frequencies: FrequencyTable::new(),
            cost: 0.0,
        };
        Self {
            capacity,
            requests: 0,
            rows: Vec::new(),
            free: Vec::new(),
            places: FxHashMap::default(),
            shadows: choices.each_ref().map(shadow),
        }
    }

    /// A region of the sample that the cache has, as it is: the play begins in the middle.
    pub(super) fn open_with(&mut self, name: u64, pages: u64, uses: u32, costs: &Linear) {
        // All have the same so far.
        let is_full = self.shadows.iter().any(|shadow| shadow.used + pages > self.capacity);
        if is_full || self.places.contains_key(&name) {
            return;
        }
        self.requests = self.requests.wrapping_add(1);
        let density = costs.reload(pages) / pages as f64;
        let place = self.add_row(name, pages);
        let row = &mut self.rows[place as usize];
        for (nth, shadow) in self.shadows.iter_mut().enumerate() {
            let benefit = shadow.choice.benefit_while_room(uses, density);
            row.uses[nth] = Uses { benefit, count: uses, last: self.requests };
            row.present |= 1 << nth;
            shadow.used += pages;
            shadow.heap.push(Reverse(row.uses[nth].entry(place)));
        }
    }

    /// Makes a row for a range that no shadow has yet.
    fn add_row(&mut self, name: u64, pages: u64) -> u32 {
        let row = Row { name, pages, present: 0, uses: [Uses::default(); N] };
        let place = if let Some(place) = self.free.pop() {
            self.rows[place as usize] = row;
            place
        } else {
            grow::push(&mut self.rows, row);
            (self.rows.len() - 1) as u32
        };
        self.places.insert(name, place);
        place
    }

    /// A range of the sample was asked for.
    pub(super) fn ask(&mut self, name: u64, pages: u64, costs: &Linear) {
        self.requests = self.requests.wrapping_add(1);
        let reload = costs.reload(pages);
        self.shadows.iter_mut().for_each(|shadow| shadow.cost *= FADING);
        if pages > self.capacity {
            self.shadows.iter_mut().for_each(|shadow| shadow.cost += reload);
            return;
        }
        let density = reload / pages as f64;
        let known = self.places.get(&name).copied();
        let place = known.unwrap_or_else(|| self.add_row(name, pages));
        for nth in 0..N {
            let Row { present, uses, .. } = &mut self.rows[place as usize];
            let (shadow, uses) = (&mut self.shadows[nth], &mut uses[nth]);
            if *present & 1 << nth != 0 {
                uses.count = uses.count.saturating_add(1);
                uses.benefit = uses.benefit.max(shadow.clock + shadow.choice.benefit(uses.count, density, name));
                uses.last = self.requests;
            } else {
                *present |= 1 << nth;
                shadow.cost += reload;
                self.admit(nth, place, density);
            }
        }
    }

    /// Puts the range of this row into a shadow, in the place of those that are worth least.
    fn admit(&mut self, nth: usize, place: u32, density: f64) {
        let Row { name, pages, .. } = self.rows[place as usize];
        let (left, is_top_gone) = self.make_room(nth, pages);
        let shadow = &mut self.shadows[nth];
        let count = 1 + shadow.frequencies.get(name) / 2;
        let benefit = if shadow.full {
            shadow.choice.benefit(count, density, name ^ u64::from(self.requests))
        } else {
            shadow.choice.benefit_while_room(count, density)
        };
        shadow.full |= left > 0.0;
        shadow.clock = shadow.clock.max(left.min(shadow.clock + benefit));
        shadow.used += pages;
        let uses = Uses { benefit: shadow.clock + benefit, count, last: self.requests };
        self.rows[place as usize].uses[nth] = uses;
        let entry = Reverse(uses.entry(place));
        if !is_top_gone {
            shadow.heap.push(entry);
        } else if let Some(mut top) = shadow.heap.peek_mut() {
            // What is new is mostly worth little, and sinks less far than an entry from the end of the heap would.
            *top = entry;
        }
    }

    /// Evicts until so many pages fit. Returns the most that one of the victims was worth, and whether the first entry of the
    /// heap is that of the last victim still.
    fn make_room(&mut self, nth: usize, pages: u64) -> (f64, bool) {
        let Self { capacity, rows, free, places, shadows, .. } = self;
        let shadow = &mut shadows[nth];
        let (mut left, mut is_top_gone) = (0.0_f64, false);
        if shadow.used + pages > *capacity {
            shadow.frequencies.grow(shadow.heap.len());
        }
        while shadow.used + pages > *capacity {
            let Some(mut top) = shadow.heap.peek_mut() else { break };
            if is_top_gone {
                PeekMut::pop(top);
                is_top_gone = false;
                continue;
            }
            let Reverse(entry) = *top;
            let place = entry as u32;
            let row = &mut rows[place as usize];
            let uses = row.uses[nth];
            if uses.last != (entry >> 32) as u32 {
                *top = Reverse(uses.entry(place));
                continue;
            }
            is_top_gone = true;
            left = left.max(uses.benefit);
            shadow.used -= row.pages;
            if uses.count > 1 {
                shadow.frequencies.insert(row.name, uses.count);
            }
            row.present &= !(1 << nth);
            if row.present == 0 {
                places.remove(&row.name);
                free.push(place);
            }
        }
        (left, is_top_gone)
    }

    /// Returns the recent cost of each.
    pub(super) fn costs(&self) -> [f64; N] {
        self.shadows.each_ref().map(|shadow| shadow.cost)
    }

    /// Carries over the costs of earlier shadows of the same choices.
    pub(super) fn carry_over(&mut self, costs: [f64; N]) {
        self.shadows.iter_mut().zip(costs).for_each(|(shadow, cost)| shadow.cost = cost);
    }

    /// Bytes allocated.
    pub(super) fn memory(&self) -> usize {
        let of = |shadow: &Shadow| shadow.heap.capacity() * size_of::<Reverse<Entry>>() + shadow.frequencies.memory();
        self.rows.capacity() * size_of::<Row<N>>()
            + self.free.capacity() * size_of::<u32>()
            + self.places.capacity() * (size_of::<(u64, u32)>() + 1)
            + self.shadows.iter().map(of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::frequency_table::name_of;
    use crate::policy::probation::Probation;
    use crate::{Config, Core, PageRange};
    use proptest::prelude::*;

    /// A shadow as it is described: each by itself, and the least worth is looked for among all.
    struct Plain {
        choice: Parameters,
        capacity: u64,
        clock: f64,
        requests: u32,
        full: bool,
        regions: FxHashMap<u64, (u64, Uses)>,
        frequencies: FrequencyTable,
        cost: f64,
    }

    impl Plain {
        fn new(choice: &Parameters, capacity: u64) -> Self {
            let (regions, frequencies) = (FxHashMap::default(), FrequencyTable::new());
            let choice = choice.clone();
            Self { choice, capacity, clock: 0.0, requests: 0, full: false, regions, frequencies, cost: 0.0 }
        }

        fn used(&self) -> u64 {
            self.regions.values().map(|&(pages, _)| pages).sum()
        }

        fn open_with(&mut self, name: u64, pages: u64, count: u32, costs: &Linear) {
            if self.used() + pages > self.capacity || self.regions.contains_key(&name) {
                return;
            }
            let benefit = self.choice.benefit_while_room(count, costs.reload(pages) / pages as f64);
            self.requests += 1;
            self.regions.insert(name, (pages, Uses { benefit, count, last: self.requests }));
        }

        fn ask(&mut self, name: u64, pages: u64, costs: &Linear) {
            self.requests += 1;
            self.cost *= FADING;
            let density = costs.reload(pages) / pages as f64;
            if let Some((_, uses)) = self.regions.get_mut(&name) {
                uses.count += 1;
                uses.benefit = uses.benefit.max(self.clock + self.choice.benefit(uses.count, density, name));
                uses.last = self.requests;
                return;
            }
            self.cost += costs.reload(pages);
            if pages > self.capacity {
                return;
            }
            let mut left = 0.0_f64;
            if self.used() + pages > self.capacity {
                self.frequencies.grow(self.regions.len());
            }
            while self.used() + pages > self.capacity {
                let rank = |&(&name, (_, uses)): &(&u64, &(u64, Uses))| (uses.benefit.to_bits(), uses.last, name);
                let (&victim, &(_, uses)) = self.regions.iter().min_by_key(rank).unwrap();
                left = left.max(uses.benefit);
                if uses.count > 1 {
                    self.frequencies.insert(victim, uses.count);
                }
                self.regions.remove(&victim);
            }
            let count = 1 + self.frequencies.get(name) / 2;
            let benefit = if self.full {
                self.choice.benefit(count, density, name ^ u64::from(self.requests))
            } else {
                self.choice.benefit_while_room(count, density)
            };
            self.full |= left > 0.0;
            self.clock = self.clock.max(left.min(self.clock + benefit));
            let benefit = self.clock + benefit;
            self.regions.insert(name, (pages, Uses { benefit, count, last: self.requests }));
        }
    }

    proptest! {
        #[test]
        fn joint_shadows_cost_what_plain_ones_do(
            opened in prop::collection::vec((0_u64..60, 1_u32..20), 0..30),
            asked in prop::collection::vec(0_u64..60, 1..600),
        ) {
            let costs = Linear::PAPER;
            let choices = Parameters::all();
            let mut joint = ShadowCaches::new(&choices, 40);
            let mut plain = choices.each_ref().map(|choice| Plain::new(choice, 40));
            // Some have several pages, and one never fits.
            let range = |object: u64| PageRange::new(object * 100, if object == 7 { 50 } else { 1 + object % 4 }).unwrap();
            for (object, uses) in opened {
                let (name, pages) = (name_of(range(object)), range(object).pages());
                joint.open_with(name, pages, uses, &costs);
                plain.iter_mut().for_each(|plain| plain.open_with(name, pages, uses, &costs));
            }
            joint.carry_over([3.0; 3]);
            plain.iter_mut().for_each(|plain| plain.cost = 3.0);
            for object in asked {
                let (name, pages) = (name_of(range(object)), range(object).pages());
                joint.ask(name, pages, &costs);
                plain.iter_mut().for_each(|plain| plain.ask(name, pages, &costs));
                prop_assert_eq!(joint.costs(), plain.each_ref().map(|plain| plain.cost));
                for (shadow, plain) in joint.shadows.iter().zip(&plain) {
                    prop_assert_eq!((shadow.used, shadow.heap.len()), (plain.used(), plain.regions.len()));
                }
            }
            let any: rustc_hash::FxHashSet<_> = plain.iter().flat_map(|plain| plain.regions.keys()).collect();
            prop_assert_eq!((joint.places.len(), joint.rows.len() - joint.free.len()), (any.len(), any.len()));
        }
    }

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
        let mut shadow = ShadowCaches::new(&[trusting], 600);
        let mut misses = 0;
        for (i, asked) in requests().enumerate() {
            let [before] = shadow.costs();
            shadow.ask(name_of(asked), asked.pages(), &costs);
            let missed = shadow.costs()[0] > before;
            assert_eq!(core.request(asked).unwrap().found().is_hit(), !missed, "request {i}, {asked:?}");
            misses += u32::from(missed);
        }
        assert!((2_000..18_000).contains(&misses), "{misses}");
        assert_eq!(shadow.shadows[0].used, core.used_pages());
    }

    #[test]
    fn a_play_that_opens_in_the_middle_has_what_fits() {
        let [wary, ..] = Parameters::all();
        let mut shadow = ShadowCaches::new(&[wary], 10);
        for name in 0..8 {
            shadow.open_with(name << 8, 3, 1, &Linear::PAPER);
        }
        assert_eq!((shadow.shadows[0].used, shadow.places.len()), (9, 3));
        shadow.ask(1 << 8, 3, &Linear::PAPER);
        assert_eq!(shadow.costs(), [0.0]);
        shadow.ask(9 << 8, 11, &Linear::PAPER);
        assert_eq!((shadow.shadows[0].used, shadow.places.len()), (9, 3), "what never fits pushes nobody out");
    }

    #[test]
    fn memory_stays_bounded() {
        let [wary, ..] = Parameters::all();
        let mut shadow = ShadowCaches::new(&[wary], 200);
        for i in 0..50_000 {
            shadow.ask(name_of(PageRange::new(i % 900, 1).unwrap()), 1, &Linear::PAPER);
        }
        assert!(shadow.memory() < 32 << 10, "{}", shadow.memory());
    }
}
