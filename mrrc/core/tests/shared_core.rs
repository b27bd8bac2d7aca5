//! A core that is driven as a cache of many threads does, by random steps. A list of what is registered is the model.
//! Requests register at the same time and fail; the core does not know of hits; memory changes, and room is made.
//!
//! The default takes seconds. To search for longer:
//!
//! ```text
//! MRRC_CASES=100000 cargo test --release -p mrrc-core --test shared_core
//! ```

use mrrc_core::core::{Core, Holders, Request, Sharing};
use mrrc_core::policy::{Granule, Keeps, Matching, Need, Overlap, PolicyKind};
use mrrc_core::{Access, Config, Grid, Leaving, PAGE, PageRange, Part, RegionId, RegionState};
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, BTreeSet};

const MORE: Access = Access::LOCAL.union(Access::REMOTE_READ);
const MAX_REGIONS: u64 = 20;

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).expect("not empty")
}

#[derive(Clone, Debug)]
enum Step {
    Request(Request),
    /// The request, if it is a lone gap with room.
    Lone(Request),
    Publish(usize),
    Abandon(usize),
    /// A hit that the core does not know, and its end.
    Hit(usize),
    EndHit(usize),
    /// A hold that the core knows, and its end.
    Hold(usize),
    Release(usize),
    Invalidate(PageRange),
    Evict {
        need: Need,
        exactly: bool,
    },
}

fn requests() -> impl Strategy<Value = Request> {
    let access = prop_oneof![4 => Just(Access::LOCAL_READ), 3 => Just(Access::LOCAL), 1 => Just(MORE)];
    let sharing = prop_oneof![8 => Just(Sharing::All), 1 => Just(Sharing::OwnClass), 1 => Just(Sharing::Nothing)];
    let segments = select(&[1_usize, 3, usize::MAX]);
    let mapping = prop_oneof![Just(None), Just(Some(range(0, 80)))];
    // Blocks of so many halves of a page, the first so many bytes into its page.
    let blocks = prop_oneof![2 => Just(None), 1 => (1_u64..8, select(&[0_u64, 100, 2048])).prop_map(Some)];
    (0_u64..60, 1_u64..16, access, sharing, segments, any::<bool>(), mapping, blocks).prop_map(
        |(start, pages, access, sharing, max_segments, again, mapping, blocks)| {
            let exact = Request::new(range(start, pages));
            let mapping = mapping.unwrap_or(exact.mapping);
            let grid = |(halves, offset)| Grid::of_blocks(start * PAGE + offset, halves * PAGE / 2, PAGE);
            let blocks = blocks.and_then(grid);
            Request { access, sharing, max_segments, again, mapping, blocks, ..exact }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let need = (0_u64..40, 0_u64..6).prop_map(|(pages, regions)| Need { pages, regions });
    let step = prop_oneof![
        8 => requests().prop_map(Step::Request),
        2 => requests().prop_map(Step::Lone),
        7 => (0_usize..6).prop_map(Step::Publish),
        2 => (0_usize..6).prop_map(Step::Abandon),
        4 => (0_usize..8).prop_map(Step::Hit),
        4 => (0_usize..8).prop_map(Step::EndHit),
        1 => (0_usize..8).prop_map(Step::Hold),
        2 => (0_usize..8).prop_map(Step::Release),
        1 => (0_u64..60, 1_u64..8).prop_map(|(start, pages)| Step::Invalidate(range(start, pages))),
        1 => (need, any::<bool>()).prop_map(|(need, exactly)| Step::Evict { need, exactly }),
    ];
    prop::collection::vec(step, 1..150)
}

/// The other threads.
#[derive(Default)]
struct Threads {
    hits: Vec<RegionId>,
    /// Regions that take no new hits.
    hidden: BTreeSet<RegionId>,
    /// Regions of which the core has a hold for them.
    reported: BTreeSet<RegionId>,
    touches: BTreeMap<RegionId, u32>,
}

impl Holders for Threads {
    fn unpublish(&mut self, leaving: &[RegionId], held: &mut Vec<RegionId>) {
        for &id in leaving {
            self.hidden.insert(id);
            if self.hits.contains(&id) && self.reported.insert(id) {
                held.push(id);
            }
        }
    }

    fn republish(&mut self, regions: &[RegionId]) {
        regions.iter().for_each(|id| _ = self.hidden.remove(id));
    }

    fn touched(&mut self, most: usize, touched: &mut Vec<RegionId>) {
        for (id, count) in std::mem::take(&mut self.touches) {
            if touched.len() >= most {
                self.touches.insert(id, count);
            } else {
                touched.extend((0..count).map(|_| id));
            }
        }
    }

    fn touches(&mut self, region: RegionId) -> u32 {
        self.touches.remove(&region).unwrap_or(0)
    }
}

struct World {
    core: Core,
    threads: Threads,
    /// All that is registered, or about to be.
    registered: BTreeMap<RegionId, (PageRange, Access)>,
    begun: Vec<RegionId>,
    held: Vec<RegionId>,
    /// The most pages of a region, and the pages of a slice.
    longest: u64,
    slice: Option<u64>,
}

impl World {
    fn is_in_use(&self, id: RegionId) -> bool {
        [&self.begun, &self.held, &self.threads.hits].iter().any(|ids| ids.contains(&id))
    }

    /// Removes what the core let go.
    fn leave<'a>(&mut self, batches: impl IntoIterator<Item = &'a [Leaving]>) {
        for &Leaving { region, range } in batches.into_iter().flatten() {
            assert!(!self.is_in_use(region), "{region:?} is in use");
            let (was, _) = self.registered.remove(&region).expect("it was registered");
            assert_eq!(was, range);
            self.threads.hidden.remove(&region);
            self.threads.touches.remove(&region);
        }
    }

    /// Returns the request as a cache makes it. None where it refuses it.
    fn allowed(&self, request: Request) -> Option<Request> {
        let scheme = self.core.scheme();
        let cuts = scheme.granule == Granule::Region && scheme.overlap == Overlap::Split;
        let blocks = request.blocks.filter(|_| cuts);
        let is_short = request.range.pages() <= self.longest;
        let can_divide = blocks.is_none_or(|blocks| blocks.coarsened(self.longest).is_some());
        let has_one_key = self.core.has_one_key();
        (is_short || can_divide && !has_one_key).then_some(Request { blocks, ..request })
    }

    fn request(&mut self, request: &Request) {
        let may_evict = self.core.may_evict_for(request);
        let before = self.core.counters();
        let cached: BTreeSet<_> = self.core.cached().collect();
        let answer = self.core.request_with(request, &mut self.threads).map(|outcome| {
            let batches: Vec<_> = outcome.batches().map(<[Leaving]>::to_vec).collect();
            (batches, outcome.parts().to_vec())
        });
        let after = self.core.counters();
        assert_eq!(after.requests - before.requests, u64::from(!request.again));
        let Ok((batches, parts)) = answer else {
            assert_eq!(self.core.cached().collect::<BTreeSet<_>>(), cached, "a refusal changes nothing");
            assert_eq!((after.deregs, after.regs), (before.deregs, before.regs));
            return;
        };
        assert!(may_evict || after.deregs == before.deregs, "{request:?} evicts");
        self.leave(batches.iter().map(|batch| &batch[..]));
        let mut next = request.range.start();
        let waits = matches!(parts[..], [Part::Registering { .. }]);
        for &part in &parts {
            assert!(part.range().start() <= next, "{parts:?} leave a page out");
            next = next.max(part.range().end());
            let id = part.region().expect("everything is a region");
            if let Part::Gap { range, access, .. } = part {
                self.begun.push(id);
                self.threads.hidden.insert(id);
                assert!(self.registered.insert(id, (range, access)).is_none(), "{id:?} was let go");
            }
            let (region, has) = self.registered[&id];
            if !waits {
                assert!(region.contains(part.range()) && has.contains(request.access), "{part:?} for {request:?}");
            }
            let state = self.core.state_of(id);
            match part {
                Part::Ready { .. } => assert_eq!(state, RegionState::Cached),
                Part::Registering { .. } => assert_eq!(state, RegionState::Registering),
                Part::Gap { .. } => assert_eq!(state == RegionState::Retired, !self.core.is_found(id)),
            }
        }
        assert!(next >= request.range.end(), "{parts:?} for {request:?}");
        if !waits {
            self.check_division(request, &parts);
        }
    }

    /// New regions keep to the lines of slices, and no answer divides a block.
    fn check_division(&self, request: &Request, parts: &[Part]) {
        let gaps = parts.iter().filter(|part| matches!(part, Part::Gap { .. })).map(Part::range);
        for gap in gaps {
            assert!(gap.pages() <= self.longest, "{gap} for {request:?}");
            if let Some(slice) = self.slice.filter(|_| request.blocks.is_none() && !self.core.has_one_key()) {
                assert_eq!(gap.start() / slice, (gap.end() - 1) / slice, "{gap} for {request:?}");
            }
        }
        if let Some(blocks) = request.blocks {
            let regions = parts.iter().filter_map(Part::region).map(|id| self.registered[&id].0);
            let bounds = regions.flat_map(|region| [region.start(), region.end()]);
            let inside = |page: &u64| (request.range.start() + 1..request.range.end()).contains(page);
            let mut divided = bounds.filter(inside).filter(|&page| !blocks.divides(page));
            assert_eq!(divided.next(), None, "{parts:?} for {request:?}");
        }
    }

    fn lone(&mut self, request: &Request) {
        let before = (self.core.counters(), self.core.used_pages());
        let served = self.core.find_with(request.range, request.access);
        let Some(id) = self.core.request_lone(request) else {
            assert_eq!((self.core.counters(), self.core.used_pages()), before, "nothing is done");
            return;
        };
        assert!(served.is_none() || request.sharing == Sharing::OwnClass);
        assert_eq!((self.core.counters().deregs, self.core.state_of(id)), (before.0.deregs, RegionState::Registering));
        self.begun.push(id);
        self.threads.hidden.insert(id);
        self.registered.insert(id, (request.range, request.access));
        let gap = Part::Gap { region: Some(id), range: request.range, access: request.access };
        self.check_division(request, &[gap]);
    }

    fn publish(&mut self, id: RegionId) {
        if self.core.state_of(id) != RegionState::Registering {
            // It was invalidated meanwhile, or is for one request.
            return self.release(id);
        }
        let left: Vec<_> = self.core.publish(&[id], &mut self.threads).batches().map(<[Leaving]>::to_vec).collect();
        self.leave(left.iter().map(|batch| &batch[..]));
        self.threads.hidden.remove(&id);
        assert_eq!(self.core.state_of(id), RegionState::Cached);
    }

    fn release(&mut self, id: RegionId) {
        let left: Vec<_> = self.core.release(id).batches().map(<[Leaving]>::to_vec).collect();
        self.leave(left.iter().map(|batch| &batch[..]));
    }

    fn evict(&mut self, need: Need, exactly: bool) {
        let used = (self.core.used_pages(), self.core.used_regions());
        let left = if exactly {
            self.core.evict_exactly(need, &mut self.threads)
        } else {
            self.core.evict(need, &mut self.threads)
        };
        let left: Vec<_> = left.batches().map(<[Leaving]>::to_vec).collect();
        self.leave(left.iter().map(|batch| &batch[..]));
        let freed = Need { pages: used.0 - self.core.used_pages(), regions: used.1 - self.core.used_regions() };
        if exactly && let Some(last) = left.iter().flatten().last() {
            let pages = freed.pages - last.range.pages();
            assert!(pages < need.pages || freed.regions <= need.regions, "{freed:?} for {need:?}");
        }
        let is_enough = freed.pages >= need.pages && freed.regions >= need.regions;
        if !is_enough && self.core.scheme().keeps == Keeps::UntilEvicted {
            // The rest is in use, or was not proposed: the core looks a few times.
            let idle = self.core.cached().filter(|&(id, _)| !self.is_in_use(id)).count();
            assert!(idle == 0 || !self.threads.hits.is_empty(), "{idle} regions could leave for {need:?}");
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Request(request) => self.allowed(request).iter().for_each(|request| self.request(request)),
            Step::Lone(request) => self.allowed(request).iter().for_each(|request| self.lone(request)),
            Step::Publish(nth) if nth < self.begun.len() => {
                let id = self.begun.swap_remove(nth);
                self.publish(id);
            }
            Step::Abandon(nth) if nth < self.begun.len() => {
                let before: Vec<_> = self.core.cached().collect();
                let id = self.begun.swap_remove(nth);
                self.core.abandon(id);
                self.registered.remove(&id);
                self.threads.hidden.remove(&id);
                assert_eq!(self.core.cached().collect::<Vec<_>>(), before, "a failure changes nothing");
            }
            Step::Hit(nth) => {
                let shown = self.core.cached().map(|(id, _)| id).filter(|id| !self.threads.hidden.contains(id));
                if let Some(id) = shown.collect::<Vec<_>>().get(nth) {
                    self.threads.hits.push(*id);
                    *self.threads.touches.entry(*id).or_default() += 1;
                }
            }
            Step::EndHit(nth) if nth < self.threads.hits.len() => {
                let id = self.threads.hits.swap_remove(nth);
                if !self.threads.hits.contains(&id) && self.threads.reported.remove(&id) {
                    self.release(id);
                }
            }
            Step::Hold(nth) => {
                let cached = self.core.cached().nth(nth);
                if let Some((id, _)) = cached {
                    self.core.hold(id);
                    self.held.push(id);
                }
            }
            Step::Release(nth) if nth < self.held.len() => {
                let id = self.held.swap_remove(nth);
                self.release(id);
            }
            Step::Invalidate(range) => {
                let left = self.core.invalidate_among(range, &mut self.threads);
                let left: Vec<_> = left.batches().map(<[Leaving]>::to_vec).collect();
                self.leave(left.iter().map(|batch| &batch[..]));
                self.core.for_each_overlap(range, |id| panic!("{id:?} is found and was invalidated"));
            }
            Step::Evict { need, exactly } => self.evict(need, exactly),
            Step::Publish(_) | Step::Abandon(_) | Step::EndHit(_) | Step::Release(_) => {}
        }
        self.check();
    }

    fn check(&self) {
        let pages = self.registered.values().map(|(range, _)| range.pages()).sum();
        assert_eq!((self.core.used_pages(), self.core.used_regions()), (pages, self.registered.len() as u64));
        assert!(pages <= self.core.capacity() && self.registered.len() as u64 <= MAX_REGIONS);
        let cached: Vec<_> = self.core.cached().collect();
        for (nth, &(id, range)) in cached.iter().enumerate() {
            let (is, access) = self.registered[&id];
            assert_eq!(is, range);
            assert!(!self.threads.hidden.contains(&id), "{id:?} stays, so it takes hits");
            let found = self.core.find_with(range, access).expect("a cached region is a hit");
            let (region, has) = self.registered[&found];
            assert!(region.contains(range) && has.contains(access));
            let alike = |other: &RegionId| self.registered[other].1.is_remote() == access.is_remote();
            let overlaps = cached[..nth].iter().any(|(other, pages)| pages.overlaps(range) && alike(other));
            assert!(!overlaps || self.core.has_one_key(), "published regions of a class do not overlap");
        }
        let known = self.begun.iter().chain(&self.held).chain(&self.threads.reported);
        let known: BTreeSet<_> = known.collect();
        let held: u64 = known.iter().map(|&id| self.registered[id].0.pages()).sum();
        assert_eq!(self.core.held_pages(), held);
    }
}

fn cases() -> u32 {
    std::env::var("MRRC_CASES").map_or(300, |text| text.parse().expect("MRRC_CASES is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn registered_regions_are_accounted_for(
        steps in steps(),
        capacity in 16_u64..120,
        policy in select(PolicyKind::ALL),
        one_key in any::<bool>(),
        widen in any::<bool>(),
        slice in prop::option::of(3_u64..20),
        max_region_pages in prop_oneof![2 => Just(None), 1 => (4_u64..20).prop_map(Some)],
    ) {
        let plain = Config { policy, max_regions: Some(MAX_REGIONS), max_region_pages, ..Config::new(capacity) };
        // Some policies cannot be sliced, and some cannot widen.
        let slice = slice.map(|slice| max_region_pages.map_or(slice, |most| slice.min(most)));
        let exact = Config { slice_pages: slice, ..plain.clone() };
        let (exact, slice) = if Core::new(&exact).is_ok() { (exact, slice) } else { (plain, None) };
        let longest = slice.or(max_region_pages).unwrap_or(u64::MAX);
        let core = Core::new(&Config { widen: widen.then_some(true), ..exact.clone() });
        let mut core = core.or_else(|_| Core::new(&exact)).expect("a configuration that fits");
        if one_key { core.use_one_key() } else { core.limit_hard() }
        // Where matching is exact regions overlap; and a policy that keeps nothing publishes nothing.
        if core.scheme().matching == Matching::Exact || core.scheme().keeps == Keeps::Nothing {
            return Ok(());
        }
        let mut world = World {
            core,
            threads: Threads::default(),
            registered: BTreeMap::new(),
            begun: Vec::new(),
            held: Vec::new(),
            longest,
            slice,
        };
        steps.iter().for_each(|step| world.step(step));
        while !world.begun.is_empty() {
            world.step(&Step::Publish(0));
        }
        while !world.threads.hits.is_empty() {
            world.step(&Step::EndHit(0));
        }
        while !world.held.is_empty() {
            world.step(&Step::Release(0));
        }
        world.step(&Step::Invalidate(PageRange::EVERYTHING));
        prop_assert_eq!((world.core.used_pages(), world.core.held_pages()), (0, 0));
    }
}
