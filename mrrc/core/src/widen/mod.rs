//! Widening: registering more than was requested, where that was seen to pay.
//!
//! A miss may register the aligned block of 2, 4, 16 or 64 pages around it: its neighbours are then hits. That pays where neighbours
//! are asked for soon, and costs pages and room where they are not. A [`Widener`] learns which is the case, from the misses alone: hits
//! of a cache take no lock.
//!
//! **Shadows.** For each width a shadow plays these requests through a cache of blocks of that width and of the same capacity.
//! It is first in, first out: a block is there if fewer pages than the capacity entered after it. Blocks of memory that changed leave. So
//! each request has a cost at each width:
//!
//! ```text
//!   (a + a') · width · blocks missing  +  (b + b'/4) · runs of missing blocks
//! ```
//!
//! with the cost model's constants. A batch is taken to hold four regions.
//!
//! **Choice.** These costs are summed up for the whole address space and for each context, which is an aligned 2 MiB. Both
//! sums decay with each miss that they count: half of their weight is 1,400 and 23 misses old or less. A miss takes the width that cost least
//! in its context, with a share of the whole in it. A context with few misses takes that of the whole. Wider than the request
//! is taken only where that costs less than [`CLEARLY`] times the request alone.
//!
//! **Exact for a while.** After a widened registration failed, its context is exact for 64 misses. Each time these are twice as many,
//! up to 1,024. After refusals that may soon be over they are few: `pauses.rs`.
//!
//! **Growth.** Where each request is answered by one region, misses close to each other register ever more than their block:
//! `growth.rs`. The bounds of the mapping have to be known.
//!
//! **Bounds.** A block takes no page outside of what the caller allows: the mapping, and between the neighbouring regions. It has at
//! most an eighth of the capacity.
//!
//! **Memory.** The shadows have tables for at most [`MOST_PAGES`] pages. A shadow of a larger capacity plays everything until it has more than
//! that. Then half of the contexts leave all shadows, the capacity of which is halved: they play a sample, one context in a power of two.
//! Other contexts go by the whole, and a change that may take neighbours along keeps them exact for a few misses. If no context of the
//! sample is asked for in a long time, the shadows begin anew with all. All tables have a fixed size, at most 0.6 MB together. A request
//! allocates nothing.

mod growth;
mod pauses;
mod shadow;

use crate::access::Access;
use crate::cost::Linear;
use crate::range::PageRange;
use growth::Growth;
pub(crate) use growth::Overlap;
use pauses::Pauses;
use shadow::{MOST_RANK, Shadow, rank_of};

/// The widths, in pages: powers of two.
const WIDTHS: [u64; 5] = [1, 2, 4, 16, WIDEST];
pub(crate) const WIDEST: u64 = 64;

/// A wider block has to cost less than this share of the request alone.
const CLEARLY: f32 = 0.97;

/// The decay of the sums for each miss that they count: of the whole, and of a context.
const DECAY_ALL: f32 = 0.9995;
const DECAY_CONTEXT: f32 = 0.97;

/// Misses that a context has counted, decayed, before it is asked.
const ENOUGH: f32 = 6.0;

/// The weight of the whole in a context's choice, once both are scaled to cost the same without widening.
const SHARE_OF_ALL: f32 = 0.125;

/// A context is two to this power pages: 2 MiB.
const CONTEXT_BITS: u32 = 9;

/// Pages that the tables of the shadows are made for, at most. Where more is played it is a sample.
const MOST_PAGES: u64 = 1 << 14;

/// The shadows begin anew after so many contexts of others in turn, for each that is played: by chance once in 3,000 times.
/// A context that is missed more often in a row than it has pages counts as another with each miss.
const SILENT: u64 = 8;

/// Pages of one request that the shadows play: its length beyond this tells nothing new.
const PLAYED: u64 = 256;

/// Learns from requests by how much a miss should be widened. Decides alike for alike sequences of calls.
#[derive(Debug)]
pub(crate) struct Widener {
    costs: Linear,
    /// Pages of the cache.
    capacity: u64,
    /// The most pages of a widened range.
    most: u64,
    /// One context in two to this power is played: those of this rank and above.
    rank: u32,
    /// Misses since one was played; one in another context than the last counts as a whole context ([`SILENT`]).
    unplayed: u64,
    /// The context of the last miss that was not played.
    last: u64,
    /// Misses in a row in that context.
    in_last: u64,
    shadows: [Shadow; WIDTHS.len()],
    all: Sums,
    contexts: Box<[Context]>,
    pauses: Pauses,
    /// Only where each request is answered by one region.
    growth: Option<Box<Growth>>,
    /// Whether requests that give rights to peers are widened as well.
    is_for_peers: bool,
}

/// The cost of each width, decayed.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    costs: [f32; WIDTHS.len()],
}

impl Sums {
    fn add(&mut self, decay: f32, costs: &Self) {
        for (sum, cost) in self.costs.iter_mut().zip(costs.costs) {
            *sum = *sum * decay + cost;
        }
    }

    /// Returns the place of the cheapest of the first `widths`.
    fn cheapest(&self, widths: usize) -> usize {
        let exact = self.costs[0] * CLEARLY;
        let wide = (1..widths).filter(|&at| self.costs[at] < exact);
        wide.min_by(|&a, &b| self.costs[a].total_cmp(&self.costs[b])).unwrap_or(0)
    }
}

/// The sums of one context. Contexts of one place in the table displace each other.
#[derive(Clone, Copy, Debug, Default)]
struct Context {
    /// The upper bits of the hashed number.
    tag: u32,
    /// Misses, decayed.
    misses: f32,
    sums: Sums,
}

impl Widener {
    /// Returns a widener that has seen nothing, for a cache of so many pages.
    pub(crate) fn new(capacity: u64, costs: &Linear) -> Self {
        let contexts = (capacity.clamp(1, MOST_PAGES) / 2).next_power_of_two().clamp(256, 4096) as usize;
        Self {
            costs: *costs,
            capacity,
            most: capacity / 8,
            rank: 0,
            unplayed: 0,
            last: 0,
            in_last: 0,
            shadows: WIDTHS.map(|width| Shadow::new(width, capacity.div_ceil(width), MOST_PAGES / width)),
            all: Sums::default(),
            contexts: vec![Context::default(); contexts].into(),
            pauses: Pauses::new(contexts / 8),
            growth: None,
            is_for_peers: false,
        }
    }

    /// Has misses that are close to each other grow.
    pub(crate) fn begin_growth(&mut self) {
        self.growth = Some(Box::new(Growth::new(self.capacity)));
    }

    /// Has requests that give rights to peers widened as well: peers can reach the neighbours then.
    pub(crate) fn include_peers(&mut self) {
        self.is_for_peers = true;
    }

    /// Returns whether requests for these rights may be widened.
    #[inline]
    pub(crate) fn allows(&self, access: Access) -> bool {
        self.is_for_peers || access.class() == 0
    }

    /// Sets the costs of registrations from now on.
    pub(crate) fn set_costs(&mut self, costs: &Linear) {
        self.costs = *costs;
    }

    /// Returns whether the context of this hash is played.
    #[inline]
    fn is_played(&self, hash: u64) -> bool {
        rank_of(hash) >= self.rank
    }

    /// Learns from a request.
    pub(crate) fn observe(&mut self, range: PageRange) {
        let hash = hash_of(range.start());
        self.pauses.pass(hash);
        if let Some(growth) = &mut self.growth {
            growth.observe(range);
        }
        let (at, tag) = self.place_of(hash);
        if !self.is_played(hash) {
            // What was learned before it left the sample is not so for ever.
            let context = &mut self.contexts[at];
            if context.tag == tag {
                context.misses *= DECAY_CONTEXT;
            }
            self.in_last = if hash == self.last { self.in_last + 1 } else { 0 };
            self.last = hash;
            let is_scan = (1..1 << CONTEXT_BITS).contains(&self.in_last);
            self.unplayed += if is_scan { 1 } else { 1 << CONTEXT_BITS };
            if self.unplayed >> self.rank >= SILENT << CONTEXT_BITS {
                self.play_all();
            }
            return;
        }
        self.unplayed = 0;
        let end = range.start() + range.pages().min(PLAYED);
        let page = self.costs.reg_page + self.costs.dereg_page;
        let call = self.call();
        let mut costs = Sums::default();
        let mut any_missed = false;
        for ((shadow, width), cost) in self.shadows.iter_mut().zip(WIDTHS).zip(&mut costs.costs) {
            let missing = shadow.request(range.start() / width, (end - 1) / width);
            any_missed |= missing.blocks > 0;
            *cost = (page * (missing.blocks * width) as f64 + call * missing.runs as f64) as f32;
        }
        if any_missed {
            if self.shadows.iter().any(Shadow::is_full) {
                self.play_half();
            }
            self.all.add(DECAY_ALL, &costs);
            let context = &mut self.contexts[at];
            if context.tag != tag {
                // It has to be displaced a few times, or once where it was not used for long.
                context.misses -= 1.0;
                if context.misses > 0.0 {
                    return;
                }
                *context = Context { tag, ..Context::default() };
            }
            context.sums.add(DECAY_CONTEXT, &costs);
            context.misses = context.misses * DECAY_CONTEXT + 1.0;
        }
    }

    /// Learns that memory changed: what was registered there is of no use. Of a long range only the ends are played: all
    /// widths lose what is between. `lost` spans the regions that leave.
    pub(crate) fn forget(&mut self, range: PageRange, lost: Option<PageRange>) {
        if let Some((growth, lost)) = self.growth.as_mut().zip(lost) {
            growth.forget(lost);
        }
        let (start, last) = (range.start(), range.end() - 1);
        for (shadow, width) in self.shadows.iter_mut().zip(WIDTHS) {
            if range.pages() <= PLAYED {
                shadow.forget(start / width, last / width);
            } else {
                shadow.forget(start / width, (start + PLAYED / 2) / width);
                shadow.forget((last - PLAYED / 2) / width, last / width);
            }
        }
        // A block over one of its ends was taken along. Where that is not played, it is not known whether it was used again.
        for (page, is_cut) in [(start, start % WIDEST != 0), (last, (last + 1) % WIDEST != 0)] {
            let hash = hash_of(page);
            if is_cut && !self.is_played(hash) {
                self.pauses.pause(hash);
            }
        }
    }

    /// Plays half as many contexts from now on.
    #[cold]
    fn play_half(&mut self) {
        if self.rank < MOST_RANK {
            self.rank += 1;
            let played = self.capacity >> self.rank;
            for (shadow, width) in self.shadows.iter_mut().zip(WIDTHS) {
                shadow.keep(self.rank, played.div_ceil(width));
            }
        }
    }

    /// Plays all contexts again. Nothing in the shadows was asked for in a long time.
    #[cold]
    fn play_all(&mut self) {
        (self.rank, self.unplayed) = (0, 0);
        for (shadow, width) in self.shadows.iter_mut().zip(WIDTHS) {
            shadow.keep(MOST_RANK + 1, self.capacity.div_ceil(width));
        }
    }

    /// Learns that a widened registration of a gap failed, and would again.
    pub(crate) fn refuse(&mut self, gap: PageRange) {
        self.pauses.refuse(hash_of(gap.start()));
    }

    /// Learns that the surroundings of a gap cannot be registered just now.
    pub(crate) fn pause(&mut self, gap: PageRange) {
        self.pauses.pause(hash_of(gap.start()));
    }

    /// Learns whether any pages around a request can be registered with it.
    pub(crate) fn look(&mut self, range: PageRange, found: bool) {
        self.pauses.look(hash_of(range.start()), found);
        if let Some(growth) = self.growth.as_mut().filter(|_| !found) {
            growth.found_nothing(range);
        }
    }

    /// Returns the cost of a registration's calls.
    fn call(&self) -> f64 {
        self.costs.reg_call + self.costs.dereg_call / 4.0
    }

    /// Returns the range to register for a gap: the gap, or a block around it that lies in `within`.
    pub(crate) fn widen(&self, gap: PageRange, within: PageRange) -> PageRange {
        let width = self.width_of(gap);
        let Some(allowed) = gap.rounded_out(width).intersection(within) else { return gap };
        if allowed.contains(gap) && allowed.pages() <= self.most { allowed } else { gap }
    }

    /// Returns the range to register for a gap whose mapping is known: the gap, or more around it that lies in `within`. `room`: what it can
    /// take without an eviction.
    pub(crate) fn grow(&self, gap: PageRange, within: PageRange, room: u64) -> PageRange {
        let is_exact = self.pauses.is_exact(hash_of(gap.start())) || !within.contains(gap);
        self.growth.as_ref().filter(|_| !is_exact).map_or(gap, |growth| growth.grow(gap, within, room))
    }

    /// Returns what a grown region may share with its neighbours.
    pub(crate) fn overlap(&self, gap: PageRange) -> Overlap {
        self.growth.as_ref().map_or(Overlap::default(), |growth| growth.overlap(gap))
    }

    /// Learns by how much a gap was widened.
    pub(crate) fn widened(&mut self, gap: PageRange, wide: PageRange) {
        if let Some(growth) = &mut self.growth {
            growth.registered(gap, wide);
        }
    }

    /// Returns the pages around a gap that a widened registration can take at most. `room`: what growth can take without an eviction.
    pub(crate) fn reach(&self, gap: PageRange, room: u64) -> PageRange {
        let block = gap.rounded_out(self.width_of(gap));
        match &self.growth {
            Some(growth) if !self.pauses.is_exact(hash_of(gap.start())) => block.hull(growth.reach(gap, room)),
            _ => block,
        }
    }

    /// Returns the bytes allocated. They do not change.
    pub(crate) fn memory(&self) -> usize {
        let shadows: usize = self.shadows.iter().map(Shadow::memory).sum();
        let growth = self.growth.as_deref().map_or(0, size_of_val);
        size_of::<Self>() + shadows + size_of_val(&*self.contexts) + self.pauses.memory() + growth
    }

    fn width_of(&self, gap: PageRange) -> u64 {
        let hash = hash_of(gap.start());
        if self.pauses.is_exact(hash) {
            return 1;
        }
        let widths = WIDTHS.iter().filter(|&&width| width <= self.most).count();
        let (at, tag) = self.place_of(hash);
        let context = &self.contexts[at];
        let is_known = context.tag == tag && context.misses >= ENOUGH;
        let sums = if is_known && self.all.costs[0] > 0.0 {
            let share = SHARE_OF_ALL * context.sums.costs[0] / self.all.costs[0];
            Sums { costs: std::array::from_fn(|width| context.sums.costs[width] + share * self.all.costs[width]) }
        } else {
            self.all
        };
        WIDTHS[sums.cheapest(widths)]
    }

    /// Returns the place of the context of this hash in the table, and its tag.
    fn place_of(&self, hash: u64) -> (usize, u32) {
        (hash as usize & (self.contexts.len() - 1), (hash >> 16) as u32)
    }
}

/// Returns the hash of the context of a page.
fn hash_of(page: u64) -> u64 {
    mix(page >> CONTEXT_BITS)
}

/// Returns a number of which each bit depends on all bits of this one (the finish of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::new(start, pages).unwrap()
    }

    fn taught(capacity: u64, starts: impl IntoIterator<Item = u64>) -> Widener {
        let mut widener = Widener::new(capacity, &Linear::PAPER);
        starts.into_iter().for_each(|start| widener.observe(range(start, 1)));
        widener
    }

    #[test]
    fn knows_nothing_and_widens_nothing() {
        let widener = Widener::new(10_000, &Linear::PAPER);
        assert_eq!(widener.widen(range(70, 2), PageRange::EVERYTHING), range(70, 2));
    }

    #[test]
    fn widens_scans_to_whole_blocks() {
        let widener = taught(10_000, 0..20_033);
        assert_eq!(widener.widen(range(30_000, 1), PageRange::EVERYTHING), range(29_952, 64));
    }

    #[test]
    fn leaves_lone_pages_exact() {
        let widener = taught(1000, (0..20_000).map(|nth| nth * 7919 % 1_000_003));
        assert_eq!(widener.widen(range(5, 1), PageRange::EVERYTHING), range(5, 1));
    }

    #[test]
    fn learns_each_context_by_itself() {
        // One part is scanned again and again, and single pages elsewhere are asked for once.
        let starts = (0..40_000).flat_map(|nth| [nth % 512, (1 << 20) + nth * 7919 % 262_144]);
        let widener = taught(1024, starts);
        assert!(widener.widen(range(40, 1), PageRange::EVERYTHING).pages() > 1);
        let single = range((1 << 20) + 77, 1);
        assert_eq!(widener.widen(single, PageRange::EVERYTHING), single);
    }

    #[test]
    fn forgets_what_no_longer_pays() {
        let mut widener = taught(1000, 0..20_000);
        assert_eq!(widener.widen(range(1, 1), PageRange::EVERYTHING).pages(), 64);
        for nth in 0..20_000 {
            widener.observe(range((1 << 30) + nth * 7919 % 1_000_003, 1));
        }
        assert_eq!(widener.widen(range(1 << 29, 1), PageRange::EVERYTHING), range(1 << 29, 1));
    }

    #[test]
    fn small_caches_keep_to_an_eighth() {
        for (capacity, pages) in [(7, 1), (15, 1), (31, 2), (32, 4), (127, 4), (128, 16), (512, 64)] {
            let widener = taught(capacity, 0..20_000);
            assert_eq!(widener.widen(range(64, 1), PageRange::EVERYTHING).pages(), pages, "{capacity}");
        }
    }

    #[test]
    fn failures_keep_a_context_exact_for_a_while() {
        let mut widener = taught(10_000, 0..20_033);
        let (here, elsewhere) = (range(30_000, 1), range(1 << 20, 1));
        widener.refuse(here);
        assert_eq!(widener.widen(here, PageRange::EVERYTHING), here);
        assert!(widener.widen(elsewhere, PageRange::EVERYTHING).pages() > 1);
        // The context is scanned.
        (29_696..29_706).for_each(|page| widener.observe(range(page, 1)));
        assert_eq!(widener.widen(here, PageRange::EVERYTHING), here);
        (29_706..30_208).for_each(|page| widener.observe(range(page, 1)));
        assert!(widener.widen(here, PageRange::EVERYTHING).pages() > 1);
    }

    #[test]
    fn neighbours_that_change_end_widening() {
        let mut widener = taught(10_000, 0..20_033);
        let (here, neighbour) = (range(1 << 25, 1), range((1 << 25) + 1, 1));
        assert!(widener.widen(here, PageRange::EVERYTHING).pages() > 1);
        for _ in 0..40 {
            widener.observe(here);
            widener.observe(neighbour);
            widener.forget(neighbour, None);
        }
        assert_eq!(widener.widen(here, PageRange::EVERYTHING), here);
    }

    /// A capacity of which a small program fills a small share.
    const HUGE: u64 = 1 << 22;

    #[test]
    fn large_caches_learn_from_a_small_program() {
        // Buffers of 2 MiB, each of which is scanned; then single pages far apart.
        let mut widener = taught(HUGE, 0..8192);
        for context in [3, 20, 1000] {
            assert_eq!(widener.widen(range(context << 9, 1), PageRange::EVERYTHING).pages(), 64, "{context}");
        }
        (0..600_000).for_each(|nth| widener.observe(range((1 << 40) + nth * 7919, 1)));
        let elsewhere = range(1 << 28, 1);
        assert_eq!(widener.widen(elsewhere, PageRange::EVERYTHING), elsewhere);
        assert!(widener.rank > 0);
    }

    #[test]
    fn contexts_that_are_not_played_go_by_the_whole() {
        let mut widener = taught(HUGE, 0..1 << 18);
        let is_played = |widener: &Widener, context: u64| widener.is_played(mix(context));
        let contexts: Vec<_> = (1000..2000).filter(|&context| !is_played(&widener, context)).collect();
        assert!((500..1000).contains(&contexts.len()) && widener.rank >= 4, "{}", widener.rank);
        let width = |widener: &Widener, context: u64| widener.width_of(range(context << 9, 1));
        assert!(contexts.iter().all(|&context| width(&widener, context) == 64));
        // A failure there lasts for a while, not for ever.
        let here = contexts[0];
        widener.refuse(range(here << 9, 1));
        for miss in 0..64 {
            assert_eq!(width(&widener, here), 1, "{miss}");
            widener.observe(range((here << 9) + miss, 1));
        }
        assert_eq!(width(&widener, here), 64);
        // Nor does what was learned before the context left the sample.
        let there = contexts[1];
        let (at, tag) = widener.place_of(mix(there));
        let costs = [1.0, 900.0, 900.0, 900.0, 900.0];
        widener.contexts[at] = Context { tag, misses: 33.0, sums: Sums { costs } };
        assert_eq!(width(&widener, there), 1);
        (0..64).for_each(|page| widener.observe(range((there << 9) + page, 1)));
        assert_eq!(width(&widener, there), 64);
    }

    #[test]
    fn what_is_small_again_is_learned_anew() {
        let mut widener = taught(HUGE, 0..1 << 21);
        let rank = widener.rank;
        assert!(rank >= 7, "{rank}");
        // None of these is in the sample.
        let contexts: Vec<_> = (1 << 20..).filter(|&context| !widener.is_played(mix(context))).take(16).collect();
        assert!(contexts.iter().all(|&context| widener.width_of(range(context << 9, 1)) == 64));
        // Single pages, which are not asked for again.
        for nth in 0..20_000 {
            let context = contexts[nth % contexts.len()] + ((nth / 1024) << 24) as u64;
            let page = (nth * 7919 % 512) as u64;
            if widener.rank > 0 && widener.is_played(mix(context)) {
                continue;
            }
            widener.observe(range((context << 9) + page, 1));
        }
        assert!(widener.rank < rank);
        let exact = |context: &u64| widener.width_of(range(context << 9, 1)) == 1;
        assert!(contexts.iter().all(exact));
    }

    #[test]
    fn one_small_context_is_learned_anew() {
        let mut widener = taught(HUGE, 0..1 << 21);
        assert!(widener.rank >= 7, "{}", widener.rank);
        let most = (SILENT << widener.rank) + 600;
        let here = (1 << 20..).find(|&context| !widener.is_played(mix(context))).unwrap() << 9;
        // Single pages of a few blocks that are unmapped and mapped again.
        let page = |nth: u64| here + nth % 4 * WIDEST + nth % 7;
        let is_wide = |widener: &Widener| (0..4).any(|nth| widener.width_of(range(page(nth), 1)) > 1);
        assert!(is_wide(&widener));
        for nth in 0..most {
            widener.observe(range(page(nth), 1));
            widener.forget(range(here + nth % 4 * WIDEST, WIDEST), None);
        }
        assert!(!is_wide(&widener) && widener.rank == 0, "{}", widener.rank);
    }

    #[test]
    fn a_scan_of_other_contexts_keeps_the_sample() {
        let mut widener = taught(HUGE, 0..1 << 21);
        let rank = widener.rank;
        let others = (1 << 20..).filter(|&context| rank_of(mix(context)) < rank).take((SILENT as usize) << (rank - 2));
        others.for_each(|context| (0..512).for_each(|page| widener.observe(range((context << 9) + page, 1))));
        assert_eq!(widener.rank, rank);
    }

    #[test]
    fn changes_teach_where_nothing_is_played() {
        let mut widener = taught(HUGE, 0..1 << 18);
        let here = (1000..).find(|&context| !widener.is_played(mix(context))).unwrap() << 9;
        let (kept, goes) = (range(here, 1), range(here + 1, 1));
        for nth in 0..40 {
            assert_eq!(widener.width_of(kept), if nth == 0 { 64 } else { 1 });
            widener.observe(kept);
            widener.forget(goes, None);
        }
        // Whole blocks take nothing along.
        let next = (here >> 9) + 1..;
        let there = next.clone().find(|&context| !widener.is_played(mix(context))).unwrap() << 9;
        widener.forget(range(there + 64, 128), None);
        assert_eq!(widener.width_of(range(there, 1)), 64);
    }

    #[test]
    fn cheap_calls_widen_nothing() {
        let mut widener = Widener::new(1000, &Linear { reg_call: 0.0, dereg_call: 0.0, ..Linear::PAPER });
        (0..20_033).for_each(|start| widener.observe(range(start, 1)));
        assert_eq!(widener.widen(range(30_000, 1), PageRange::EVERYTHING).pages(), 1);
    }

    #[test]
    fn memory_is_bounded_whatever_the_capacity() {
        for capacity in [1, 1000, 1 << 14, 1 << 20, 1 << 40, u64::MAX] {
            let memory = Widener::new(capacity, &Linear::PAPER).memory();
            assert!(
                memory <= 600_000 && memory as u64 <= capacity.saturating_mul(80).saturating_add(8192),
                "{capacity}: {memory}"
            );
        }
    }

    proptest! {
        #[test]
        fn stays_within_bounds(
            capacity in 1_u64..5000,
            requests in prop::collection::vec((0_u64..4000, 1_u64..80), 0..400),
            gap in (0_u64..4000, 1_u64..200),
            before in 0_u64..100,
            after in 0_u64..100,
            is_last in any::<bool>(),
        ) {
            let mut widener = Widener::new(capacity, &Linear::PAPER);
            requests.iter().for_each(|&(start, pages)| widener.observe(range(start, pages)));
            let memory = widener.memory();
            // At the end of the address space, or somewhere.
            let last = PageRange::EVERYTHING.end();
            let gap = if is_last { range(last - gap.1, gap.1) } else { range(gap.0, gap.1) };
            let within = PageRange::between(gap.start().saturating_sub(before), (gap.end() + after).min(last));
            let wide = widener.widen(gap, within);
            prop_assert!(wide.contains(gap) && within.contains(wide));
            prop_assert!(wide == gap || wide.pages() <= capacity / 8);
            prop_assert!(widener.reach(gap, 0).contains(wide));
            prop_assert_eq!(widener.memory(), memory);
        }
    }
}
