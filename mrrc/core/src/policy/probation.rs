//! Newcomers on probation: frequency, cost and a learned trust in what is new.
//!
//! The paper's idea is kept: what is small and was used lately stays, what leaves leaves in batches, and a value that only
//! rises lets the unused grow cold. Four things are added.
//!
//! **Worth.** As in GreedyDual-Size-Frequency ([`gdsf`](super::gdsf)) a region is worth `L + w(uses) · cost / pages`, anew at
//! each use, the cost being what registering it again takes by the cost model. The least worth leaves and `L` rises to it.
//! Uses count up to a bound, so that what was popular once can leave.
//!
//! **Memory.** The uses of a region that is evicted after more than one are remembered (a word each, in a
//! table that forgets: `frequency_table.rs`), and half of them count when it returns.
//!
//! **Probation.** Most regions of a scan are never asked for again. So a newcomer is worth little at first (`w` is 0.05
//! instead of 1) and is the next to go, *unless* it is one of the few that are trusted. A use lifts any of them
//! among the established. That keeps scans out; and in a loop that is longer than the cache, where newest and oldest are equals and LRU finds
//! nothing, those that are trusted stay long enough to be met again. While the cache has room all are trusted.
//!
//! ```text
//!   newcomer ──┬─ trusted (a share of them) ──► established: worth by uses, cost and size
//!              └─ on probation ── a use ──────►      │
//!                      │                             │ sinks as L rises
//!                      ▼                             ▼
//!                 deregistered ◄──── batch ──── least worth    (uses > 1: remembered)
//! ```
//!
//! **Parameters.** How many newcomers deserve trust, and how much uses tell, depends on the workload: a web server's
//! log wants one in ten, a disk behind no other cache all of them. Three sets of parameters (`parameters.rs`) are simulated all the time on a
//! sample of the ranges (some 200 regions each, `shadow_caches.rs`), and the cache takes the one that lately cost least there. So
//! the share of the cache that newcomers have, which corresponds to the paper's frequent section, follows the workload.
//!
//! **Batches.** A batch of `k` regions pays `b'` once, and keeps `k / 2` places empty on average. An empty place costs
//! about as much as loading a region over again, so the cheapest `k` grows with the root of the number of regions, times
//! the root of `b'` over that cost: the economic order quantity. A thousand one-page regions by the paper's costs leave by
//! thirty, and where deregistration costs nothing a call, nothing leaves early.
//!
//! **The default.** It has the lowest geometric mean of total cost on traces that it was not tuned on, of all policies that
//! register what was requested: `docs/default-policy.md`. It is not the best everywhere. Over ten real traces and the paper's two
//! workloads, at 1, 5, 10 and 25 % of the footprint, it is 3.5 and 5.3 % above `lru-k` and `lirs` in two of the 48 cells, and far
//! above `firehose` where that registers neighbours that are asked for next.
//!
//! A hit costs two stores and a few multiplications, as in `gdsf`; one in many, those of the sample, three look-ups
//! in small hash maps. The order takes 24 bytes a region as a heap, and one in the [lean](Probation::lean) form. Once regions were evicted
//! there are 8 to 16 bytes a region of memory of them, and some 100 KiB of shadow caches, which do not grow with the cache.

use super::frequency_table::{FrequencyTable, name_of};
use super::parameters::{CHOICES, MAX_TOUCHES, Parameters};
use super::parts::{Ordered, Ranking, Winners};
use super::shadow_caches::ShadowCaches;
use super::{Need, Policy};
use crate::cost::Linear;
use crate::policy::PolicyParams;
use crate::regions::{RegionId, RegionState, Regions};

/// Regions in a shadow cache: from this to twice as many. The cache gets another sample when it has left four times that
/// band on either side.
const SAMPLE: usize = 128;

/// How much cheaper another set of parameters has to be before it is taken, so that equals do not alternate.
const CLEARLY: f64 = 0.995;

/// Places that are empty for a while cost this share of what they would if every region were met again at once:
/// between 1/4 and 1/16 the geometric mean of total costs changes by a tenth of a percent.
const EMPTY_PLACE: f64 = 0.125;

/// The mark of regions in the sample.
const SAMPLED: u8 = 1;

/// Regions by worth, those evicted by uses, and the choices. Uses [`Region::count`](crate::Region::count) for the
/// uses and [`Region::mark`](crate::Region::mark) for whether a region is in the sample.
#[derive(Debug)]
pub struct Probation<R = Ordered> {
    benefit: R,
    clock: f64,
    /// The most that a victim was worth since the last region entered.
    left: f64,
    cost: Linear,
    capacity: u64,
    choices: [Parameters; CHOICES.len()],
    /// The place of the parameters in use.
    taken: usize,
    frequencies: FrequencyTable,
    /// Regions that ever entered, to decide on trust by.
    entered: u64,
    /// Whether room had to be made before. The first region that it is made for is still trusted: so the clock begins
    /// at what that and all others are worth, and those that came while there was room have no lead that lasts.
    full: bool,
    /// Regions at the last run of *full*.
    regions: usize,
    /// The pages of a batch of the cheapest size, for so many regions and these costs; 0 where batches save nothing.
    batch_pages: u64,
    /// One for each set of parameters; none until the cache is full.
    shadows: Option<Box<ShadowCaches<{ CHOICES.len() }>>>,
    /// One range in 2 to this power is in the sample.
    sample_bits: u32,
}

impl Probation {
    /// With the capacity and the cost model of the configuration.
    pub fn new(params: &PolicyParams) -> Self {
        Self::over(params)
    }

    /// Returns a policy with one set of parameters, for tests.
    #[cfg(test)]
    pub(super) fn with_one_choice(params: &PolicyParams, choice: &Parameters) -> Self {
        Self { choices: std::array::from_fn(|_| choice.clone()), ..Self::new(params) }
    }
}

impl Probation<Winners> {
    /// As [`Probation::new`], with the same decisions: it keeps less for each region, and touches cost it more.
    pub fn lean(params: &PolicyParams) -> Self {
        Self::over(params)
    }
}

impl<R: Ranking> Probation<R> {
    fn over(params: &PolicyParams) -> Self {
        let mut policy = Self {
            benefit: R::default(),
            clock: 0.0,
            left: 0.0,
            cost: params.cost,
            capacity: params.capacity,
            choices: Parameters::all(),
            taken: 0,
            frequencies: FrequencyTable::new(),
            entered: 0,
            full: false,
            regions: 0,
            batch_pages: 0,
            shadows: None,
            sample_bits: 0,
        };
        policy.set_batch();
        policy
    }

    /// Finds the size of batches anew.
    fn set_batch(&mut self) {
        let regions = self.regions.max(1) as f64;
        let pages = (self.capacity as f64 / regions).max(1.0);
        let saved = self.cost.dereg_call;
        let batch = || (regions * saved / (EMPTY_PLACE * self.cost.reload(pages as u64))).sqrt().min(regions);
        self.batch_pages = if saved == 0.0 { 0 } else { (pages * batch()) as u64 };
    }

    #[inline]
    fn density(&self, pages: u64) -> f64 {
        self.cost.reload(pages) / pages as f64
    }

    fn is_sampled(&self, name: u64) -> bool {
        // Bits that neither the table of the evicted nor a hash map of the sample chooses by.
        name >> 40 & ((1 << self.sample_bits) - 1) == 0
    }

    /// A range of the sample was asked for: the shadows play it, and the cheapest choice is taken.
    #[inline(never)]
    fn play(&mut self, name: u64, pages: u64) {
        let Some(shadows) = &mut self.shadows else { return };
        shadows.ask(name, pages, &self.cost);
        let costs = shadows.costs();
        if let Some((best, &cost)) = costs.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1))
            && cost < CLEARLY * costs[self.taken]
        {
            self.taken = best;
        }
    }

    /// Chooses a sample of suitable size, and opens the shadows with what of it is cached.
    #[cold]
    fn choose_sample(&mut self, regions: &Regions) {
        self.sample_bits = (self.regions / SAMPLE).max(1).ilog2();
        let capacity = (self.capacity >> self.sample_bits).max(1);
        let mut sample = Vec::new();
        for (id, region) in regions.iter().filter(|(_, region)| region.state() == RegionState::Cached) {
            let name = name_of(region.range());
            let is_sampled = self.is_sampled(name);
            region.set_mark(region.mark() & !SAMPLED | if is_sampled { SAMPLED } else { 0 });
            if is_sampled {
                sample.push((region.order.get(), name, id));
            }
        }
        sample.sort_unstable();
        let mut shadows = ShadowCaches::new(&self.choices, capacity);
        for (_, name, id) in sample {
            let region = regions.get(id);
            shadows.open_with(name, region.pages(), region.count.get(), &self.cost);
        }
        shadows.carry_over(self.shadows.as_ref().map_or_else(Default::default, |before| before.costs()));
        self.shadows = Some(Box::new(shadows));
    }

    /// Returns whether the shadows have far more or far fewer regions than they should.
    fn sample_is_unfit(&self) -> bool {
        let sampled = self.regions >> self.sample_bits;
        self.shadows.is_none() || sampled > 8 * SAMPLE || sampled < SAMPLE / 4 && self.sample_bits > 0
    }
}

impl<R: Ranking> Policy for Probation<R> {
    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        let (name, pages) = (name_of(region.range()), region.pages());
        let uses = 1 + self.frequencies.get(name) / 2;
        region.count.set(uses);
        self.entered += 1;
        let choice = &self.choices[self.taken];
        let density = self.density(pages);
        let benefit = if self.full {
            choice.benefit(uses, density, name ^ self.entered)
        } else {
            choice.benefit_while_room(uses, density)
        };
        self.full |= self.left > 0.0;
        // As in `gdsf`: the clock rises no higher than to what the newcomer is worth.
        self.clock = self.clock.max(self.left.min(self.clock + benefit));
        self.left = 0.0;
        let benefit = self.clock + benefit;
        if self.shadows.is_some() && self.is_sampled(name) {
            region.set_mark(region.mark() | SAMPLED);
            self.play(name, pages);
        }
        self.benefit.insert(regions, id, benefit);
    }

    #[inline]
    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        let pages = region.pages();
        region.count.set(region.count.get().saturating_add(1));
        let benefit = self.clock + self.choices[self.taken].benefit(region.count.get(), self.density(pages), 0);
        if region.mark() & SAMPLED != 0 {
            self.play(name_of(region.range()), pages);
        }
        self.benefit.raise(regions, id, benefit.max(regions.get(id).weight.get()));
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.benefit.remove(regions, id);
    }

    fn costs(&mut self, costs: &Linear) {
        self.cost = *costs;
        self.set_batch();
    }

    /// More uses than these count no more.
    fn max_touches(&self) -> u32 {
        MAX_TOUCHES
    }

    fn prepare(&mut self, regions: &mut Regions) {
        if self.regions != regions.len() {
            self.regions = regions.len();
            self.set_batch();
        }
        self.frequencies.grow(self.regions);
        if self.sample_is_unfit() {
            self.choose_sample(regions);
        }
    }

    fn batch_size(&self, need: Need) -> Need {
        Need { pages: need.pages.max(self.batch_pages), regions: need.regions }
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let id = self.benefit.take_idle(regions)?;
        let region = regions.get(id);
        // The sign is the ranking's.
        self.left = self.left.max(region.weight.get().abs());
        if region.count.get() > 1 {
            self.frequencies.insert(name_of(region.range()), region.count.get());
        }
        Some(id)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        // It stays, so the clock does not rise for it, and it is none of the evicted.
        self.left = self.left.min(region.weight.get().abs());
        self.frequencies.forget(name_of(region.range()));
        self.benefit.put_back(regions, id);
    }

    fn memory(&self) -> usize {
        self.benefit.memory()
            + self.frequencies.memory()
            + self.shadows.as_ref().map_or(0, |shadows| size_of_val(&**shadows) + shadows.memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;
    use crate::policy::testing::returns_without_a_ghost;
    use crate::{Config, Core, PageRange};

    fn range(object: u64, pages: u64) -> PageRange {
        PageRange::new(object * 64, pages).unwrap()
    }

    fn core(capacity: u64) -> Core<Probation> {
        let config = Config::new(capacity);
        Core::with_policy(&config, Probation::new(&config.params())).unwrap()
    }

    /// Hits among requests for these objects, of one page each.
    fn hits<P: Policy>(core: &mut Core<P>, objects: impl Iterator<Item = u64>) -> usize {
        objects.filter(|&object| core.request(range(object, 1)).unwrap().found().is_hit()).count()
    }

    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut seed = seed;
        move |below| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        }
    }

    #[test]
    fn a_scan_leaves_what_is_used_where_it_is() {
        for (kind, kept) in [(PolicyKind::Probation, 90), (PolicyKind::PinDown, 0)] {
            let mut core = Core::new(&Config { policy: kind, ..Config::new(120) }).unwrap();
            hits(&mut core, (0..5).flat_map(|_| 0..100));
            hits(&mut core, 1_000..1_240);
            let still = (0..100).filter(|&object| core.find(range(object, 1)).is_some()).count();
            assert!(still >= kept && (kept > 0 || still == 0), "{kind} keeps {still} of 100");
        }
    }

    #[test]
    fn a_loop_longer_than_the_cache_is_met_again_in_part() {
        for (kind, least) in [(PolicyKind::Probation, 3_000), (PolicyKind::PinDown, 0), (PolicyKind::Gdsf, 0)] {
            let mut core = Core::new(&Config { policy: kind, ..Config::new(400) }).unwrap();
            let hits = hits(&mut core, (0..20).flat_map(|_| 0..600));
            assert!(hits >= least && (least > 0 || hits == 0), "{kind} hits {hits} of 12,000");
        }
    }

    #[test]
    fn the_stance_follows_the_workload_there_and_back() {
        let mut core = core(300);
        let mut random = random(1);
        // The region used last is used next: a window that moves on.
        let moving = (0..30_000).map(|i| i / 10 + random(280));
        let hits_of_moving = hits(&mut core, moving);
        let trusting = CHOICES.len() - 1;
        assert_eq!(core.policy().taken, trusting);
        // Most of it comes once, and between that are a few hundred that stay popular.
        let mut once = 1 << 30;
        let scans = (0..60_000).map(|i| {
            once += 1;
            if i % 3 > 0 { once } else { (1 << 20) + random(250) }
        });
        let hits_of_scans = hits(&mut core, scans);
        assert_ne!(core.policy().taken, trusting);
        assert!(hits_of_scans > 15_000, "{hits_of_scans} of 20,000");
        assert!(hits_of_moving > 22_000, "{hits_of_moving} of 30,000");
    }

    #[test]
    fn half_of_the_uses_count_when_a_region_returns() {
        let mut regions = Regions::new();
        let mut policy = Probation::new(&PolicyParams::new(10));
        let mut enter = |policy: &mut Probation, uses: u32| {
            let id = regions.insert(range(1, 1));
            policy.insert(&mut regions, id);
            let at_first = regions.get(id).count.get();
            (1..uses).for_each(|_| policy.touch(&mut regions, id));
            assert_eq!(policy.victim(&mut regions), Some(id));
            regions.remove(id);
            at_first
        };
        assert_eq!([enter(&mut policy, 7), enter(&mut policy, 1), enter(&mut policy, 1)], [1, 4, 3]);
    }

    #[test]
    fn a_victim_that_is_put_back_is_not_remembered() {
        let mut regions = Regions::new();
        let mut policy = Probation::new(&PolicyParams::new(10));
        let twice = regions.insert(range(1, 1));
        policy.insert(&mut regions, twice);
        policy.touch(&mut regions, twice);
        assert_eq!(policy.victim(&mut regions), Some(twice));
        policy.put_back(&mut regions, twice);
        policy.remove(&mut regions, twice);
        regions.remove(twice);
        let id = returns_without_a_ghost(&mut policy, &mut regions, range(1, 1));
        assert_eq!(regions.get(id).count.get(), 1);
    }

    #[test]
    fn batches_grow_with_root_of_pages_and_savings() {
        let policy = |regions, dereg_call| {
            let mut policy = Probation { regions, ..Probation::new(&PolicyParams::new(10_000)) };
            policy.costs(&Linear { dereg_call, ..Linear::PAPER });
            policy
        };
        let pages = |regions, dereg_call| policy(regions, dereg_call).batch_size(Need { pages: 1, regions: 0 }).pages;
        assert_eq!(pages(10_000, 1.10), 96);
        assert_eq!(pages(100, 1.10), 286, "regions of 100 pages cost more to lose too soon");
        assert_eq!(pages(10_000, 0.0), 1);
        let huge = policy(100, 1.10).batch_size(Need { pages: 5_000, regions: 3 });
        assert_eq!(huge, Need { pages: 5_000, regions: 3 });
    }

    #[test]
    fn the_sample_is_chosen_anew_when_sizes_change() {
        let mut core = core(1 << 16);
        let mut random = random(2);
        let sampled = |policy: &Probation| policy.regions >> policy.sample_bits;
        for (pages, bits) in [(64, 3), (1, 9), (64, 3), (8, 6)] {
            for _ in 0..400_000 / pages {
                core.request(range(random(1 << 20), pages)).unwrap();
            }
            let policy = core.policy();
            assert!((SAMPLE / 4..=8 * SAMPLE).contains(&sampled(policy)), "{pages} pages: {}", sampled(policy));
            assert!(policy.sample_bits.abs_diff(bits) <= 3, "{pages} pages: 1 in 2^{}", policy.sample_bits);
            let shadows = policy.shadows.as_ref().map_or(0, |shadows| shadows.memory());
            assert!(shadows < 400 << 10, "{shadows} bytes");
        }
    }

    #[test]
    fn both_forms_decide_alike() {
        let config = Config { max_regions: Some(400), ..Config::new(2000) };
        let mut heap = core_of(&config, Probation::new(&config.params()));
        let mut lean = core_of(&config, Probation::lean(&config.params()));
        let mut random = random(5);
        let mut held = Vec::new();
        for step in 0..60_000 {
            let object = if step % 5 < 3 { random(300) * random(300) / 64 } else { random(4000) };
            let asked = range(object, 1 + object % 13);
            let found = heap.request(asked).map(|outcome| outcome.parts().to_vec());
            assert_eq!(lean.request(asked).map(|outcome| outcome.parts().to_vec()), found, "{step}");
            match random(20) {
                0 if held.len() < 50 => {
                    let id = found.unwrap()[0].region();
                    if let Some(id) = id {
                        heap.hold(id);
                        lean.hold(id);
                        held.push(id);
                    }
                }
                1 | 2 if !held.is_empty() => {
                    let id = held.swap_remove(random(held.len() as u64) as usize);
                    heap.release(id);
                    lean.release(id);
                }
                3 => {
                    heap.invalidate(asked);
                    lean.invalidate(asked);
                }
                _ => {}
            }
            assert_eq!(heap.used_pages(), lean.used_pages());
        }
        assert_eq!(heap.counters(), lean.counters());
        assert!(heap.counters().evicted > 1000 && heap.policy().shadows.is_some());
        assert!(lean.policy().benefit.memory() < heap.policy().benefit.memory() / 8);
    }

    fn core_of<P: Policy>(config: &Config, policy: P) -> Core<P> {
        Core::with_policy(config, policy).unwrap()
    }

    #[test]
    fn memory_per_region_is_bounded() {
        let mut core = core(20_000);
        let mut random = random(3);
        for _ in 0..300_000 {
            let object = random(300) * random(300);
            core.request(range(object, 1)).unwrap();
        }
        let each = core.policy().memory() / core.used_regions() as usize;
        assert!(each < 80, "{each} bytes a region");
    }
}
