//! `firehose`, `lazy`, `ogr`, `ucx`, `libfabric` and `nccl` do what is said of them: answer for answer the same as a plain
//! model, which is one list of ranges, the longest unused first, and searched from end to end.

use mrrc_core::{Config, Found, PageRange};
use tracesim_policies::AnyPolicy;

/// The first page, and one past the last.
type Pages = (u64, u64);

fn size((start, end): Pages) -> u64 {
    end - start
}

fn overlap(a: Pages, b: Pages) -> bool {
    a.0 < b.1 && b.0 < a.1
}

fn contains(a: Pages, b: Pages) -> bool {
    a.0 <= b.0 && b.1 <= a.1
}

/// The counts of both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    regs: u64,
    reg_pages: u64,
    deregs: u64,
    dereg_pages: u64,
    bypass: u64,
}

struct Naive {
    policy: AnyPolicy,
    config: Config,
    /// The longest unused first.
    regions: Vec<Pages>,
    /// The list of requests in flight.
    held: Vec<Pages>,
    counts: Counts,
}

impl Naive {
    fn new(policy: AnyPolicy, config: &Config) -> Self {
        let (regions, held) = Default::default();
        Self { policy, config: config.clone(), regions, held, counts: Counts::default() }
    }

    fn register(&mut self, pages: Pages) {
        self.counts.regs += 1;
        self.counts.reg_pages += size(pages);
    }

    fn deregister(&mut self, pages: Pages) {
        self.counts.deregs += 1;
        self.counts.dereg_pages += size(pages);
    }

    fn raise(&mut self, region: Pages) {
        self.regions.retain(|&other| other != region);
        self.regions.push(region);
    }

    fn bypass(&mut self, gaps: &[Pages]) {
        self.counts.bypass += 1;
        for &gap in gaps {
            self.register(gap);
            self.deregister(gap);
        }
    }

    /// Evicts the longest unused, but not these, until so many pages and entries fit beside the rest.
    fn make_room(&mut self, pages: u64, entries: u64, most_entries: u64, spare: &[Pages]) {
        let full = |regions: &[Pages], capacity| {
            let used: u64 = regions.iter().map(|&region| size(region)).sum();
            used + pages > capacity || regions.len() as u64 + entries > most_entries
        };
        while full(&self.regions, self.config.capacity) {
            let may_go = |region: &Pages| !spare.contains(region) && !self.held.contains(region);
            let place = self.regions.iter().position(may_go).expect("there is room for one request");
            let victim = self.regions.remove(place);
            self.deregister(victim);
        }
    }

    /// Those that overlap, in address order.
    fn overlapping(&self, asked: Pages) -> Vec<Pages> {
        let mut found: Vec<_> = self.regions.iter().copied().filter(|&region| overlap(region, asked)).collect();
        found.sort_unstable();
        found
    }

    /// Returns the missing pages, one by one; cut at the ends of buckets.
    fn gaps(&self, asked: Pages, bucket: u64) -> Vec<Pages> {
        let mut gaps: Vec<Pages> = Vec::new();
        for page in asked.0..asked.1 {
            if self.regions.iter().any(|&region| overlap(region, (page, page + 1))) {
                continue;
            }
            match gaps.last_mut() {
                Some(last) if last.1 == page && page % bucket != 0 => last.1 += 1,
                _ => gaps.push((page, page + 1)),
            }
        }
        gaps
    }

    fn request(&mut self, asked: Pages) -> Found {
        let found = self.classify(asked);
        self.serve(asked);
        found
    }

    /// How much of it is there.
    fn classify(&self, asked: Pages) -> Found {
        if self.policy == AnyPolicy::Lazy {
            return if self.regions.contains(&asked) { Found::Exact } else { Found::Miss };
        }
        let merges = matches!(self.policy, AnyPolicy::Ucx | AnyPolicy::Libfabric);
        let overlapping = self.overlapping(asked);
        if let Some(&region) = overlapping.iter().find(|&&region| contains(region, asked)) {
            return if region == asked { Found::Exact } else { Found::Subset };
        }
        if overlapping.is_empty() {
            Found::Miss
        } else if !merges && self.gaps(asked, u64::MAX).is_empty() {
            Found::Covered
        } else {
            Found::Partial
        }
    }

    fn serve(&mut self, asked: Pages) {
        match self.policy {
            AnyPolicy::Lazy => self.serve_exactly(asked),
            AnyPolicy::Ucx => self.serve_merging(asked, u64::MAX),
            AnyPolicy::Libfabric => self.serve_merging(asked, self.config.cache_entries),
            AnyPolicy::Firehose => {
                let bucket = self.config.bucket_pages;
                self.serve_split((asked.0 / bucket * bucket, asked.1.next_multiple_of(bucket)), bucket, asked);
            }
            _ => self.serve_split(asked, u64::MAX, asked),
        }
    }

    fn serve_exactly(&mut self, asked: Pages) {
        if self.regions.contains(&asked) {
            self.raise(asked);
        } else if size(asked) > self.config.capacity {
            self.bypass(&[asked]);
        } else {
            self.make_room(size(asked), 1, self.config.table_entries, &[]);
            self.register(asked);
            self.regions.push(asked);
        }
    }

    fn serve_merging(&mut self, asked: Pages, entries: u64) {
        let overlapping = self.overlapping(asked);
        overlapping.iter().for_each(|&region| self.raise(region));
        if overlapping.iter().any(|&region| contains(region, asked)) {
            return;
        }
        let union = overlapping.iter().fold(asked, |all, region| (all.0.min(region.0), all.1.max(region.1)));
        if size(union) > self.config.capacity {
            return self.bypass(&[asked]);
        }
        for &region in &overlapping {
            self.regions.retain(|&other| other != region);
            self.deregister(region);
        }
        self.make_room(size(union), 1, entries, &[]);
        self.register(union);
        self.regions.push(union);
    }

    /// Keeps overlapping regions and registers the gaps. `asked` is what the caller asked for before it was rounded.
    fn serve_split(&mut self, rounded: Pages, bucket: u64, asked: Pages) {
        let overlapping = self.overlapping(rounded);
        overlapping.iter().for_each(|&region| self.raise(region));
        if overlapping.iter().any(|&region| contains(region, asked)) {
            return;
        }
        let gaps = self.gaps(rounded, bucket);
        let pages = |list: &[Pages]| list.iter().map(|&pages| size(pages)).sum::<u64>();
        let beside = if self.policy == AnyPolicy::Nccl { &self.regions } else { &overlapping };
        if pages(beside) + pages(&gaps) > self.config.capacity && !gaps.is_empty() {
            return self.bypass(&gaps);
        }
        self.make_room(pages(&gaps), gaps.len() as u64, u64::MAX, &overlapping);
        for gap in gaps {
            self.register(gap);
            self.regions.push(gap);
        }
    }

    /// Optimistic group registration: neighbours are joined while the hole costs less than the calls it saves, as long as
    /// the holes stay a quarter of the group.
    fn request_list(&mut self, asked: &[Pages]) -> Vec<Found> {
        let mut found = Vec::new();
        let mut missed = Vec::new();
        let hold = |this: &mut Self, asked| {
            let answering = this.overlapping(asked);
            this.held.extend(answering);
        };
        for &one in asked {
            if self.regions.iter().any(|&region| contains(region, one)) {
                found.push(self.request(one));
                hold(self, one);
            } else {
                missed.push(one);
            }
        }
        missed.sort_by_key(|&pages| (pages.0, size(pages)));
        let cost = self.config.cost;
        while !missed.is_empty() {
            let (mut span, mut holes, mut members) = (missed[0], 0, 1);
            while let Some(&next) = missed.get(members) {
                let hole = next.0.saturating_sub(span.1);
                let joined = (span.0, span.1.max(next.1));
                let cheaper = hole as f64 * (cost.reg_page + cost.dereg_page) < cost.reg_call + cost.dereg_call;
                if !cheaper || 4 * (holes + hole) > size(joined) || size(joined) > self.config.capacity {
                    break;
                }
                (span, holes, members) = (joined, holes + hole, members + 1);
            }
            let members: Vec<Pages> = missed.drain(..members).collect();
            found.extend(members.iter().map(|&member| self.classify(member)).collect::<Vec<_>>());
            self.serve(span);
            hold(self, span);
        }
        self.held.clear();
        found
    }
}

/// The same numbers everywhere and forever (SplitMix64, Steele et al. 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }

    fn range(&mut self) -> Pages {
        // Places that come again, of sizes that come again, and a giant now and then.
        let start = self.below(60) * self.below(60) / 20;
        let pages = if self.below(100) == 0 { 1 + self.below(90) } else { 1 + self.below(6) };
        (start, start + pages)
    }
}

fn page_range((start, end): Pages) -> PageRange {
    PageRange::new(start, end - start).unwrap()
}

fn counts_of(core: &mrrc_core::Core) -> Counts {
    let counters = core.counters();
    Counts {
        regs: counters.regs,
        reg_pages: counters.reg_pages,
        deregs: counters.deregs,
        dereg_pages: counters.dereg_pages,
        bypass: counters.bypass,
    }
}

fn compare(policy: AnyPolicy) {
    for (seed, capacity) in [(1, 12), (2, 30), (3, 64), (4, 120), (5, 1_000)] {
        let config = Config { bucket_pages: 4, table_entries: 16, cache_entries: 9, ..Config::new(capacity) };
        let mut core = policy.core(&config).unwrap();
        let mut naive = Naive::new(policy, &config);
        let mut random = Random(seed);
        for step in 0..2_000 {
            let asked = random.range();
            let found = core.request(page_range(asked)).unwrap().found();
            let said = format!("{policy}, {capacity} pages: request {step}, {asked:?}");
            assert_eq!(found, naive.request(asked), "{said}");
            agree(&core, &naive, &said);
        }
    }
}

/// The same is cached, and the same was done to get there.
fn agree(core: &mrrc_core::Core, naive: &Naive, said: &str) {
    assert_eq!(counts_of(core), naive.counts, "{said}");
    let mut ours: Vec<Pages> = core.cached().map(|(_, range)| (range.start(), range.end())).collect();
    let mut theirs = naive.regions.clone();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs, "{said}");
}

#[test]
fn firehose() {
    compare(AnyPolicy::Firehose);
}

#[test]
fn lazy() {
    compare(AnyPolicy::Lazy);
}

#[test]
fn ucx() {
    compare(AnyPolicy::Ucx);
}

#[test]
fn libfabric() {
    compare(AnyPolicy::Libfabric);
}

#[test]
fn nccl() {
    compare(AnyPolicy::Nccl);
}

#[test]
fn ogr_of_one_range() {
    compare(AnyPolicy::Ogr);
}

#[test]
fn ogr_of_lists() {
    for (seed, capacity) in [(1, 64), (2, 120), (3, 1_000)] {
        let (policy, config) = (AnyPolicy::Ogr, Config::new(capacity));
        let mut core = policy.core(&config).unwrap();
        let mut naive = Naive::new(policy, &config);
        let mut random = Random(seed);
        let mut groups = 0;
        for step in 0..1_500 {
            let base = random.below(200);
            let list: Vec<Pages> = (0..1 + random.below(3))
                .map(|_| {
                    let start = base + random.below(20);
                    (start, start + 1 + random.below(5))
                })
                .collect();
            let asked: Vec<PageRange> = list.iter().map(|&pages| page_range(pages)).collect();
            let mut answers = 0;
            core.request_list(&asked, |_, outcome| {
                outcome.unwrap();
                answers += 1;
            });
            groups += u32::from(answers < asked.len());
            naive.request_list(&list);
            agree(&core, &naive, &format!("{capacity} pages: list {step}, {list:?}"));
        }
        assert!(groups > 100, "{groups} lists had groups");
    }
}
