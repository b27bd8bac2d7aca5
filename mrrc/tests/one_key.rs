//! One-key mode: each request is answered by one region, and costs no more than it would without a cache.
//!
//! For any sequence: no more registrations than requests, at most twice the pages, at most four regions on a page. No
//! right that a page did not have and that was not asked for it, and hits for earlier requests that did not leave.

#![allow(unsafe_code, reason = "leases are acquired for no transfer")]

mod common;

use common::*;
use mrrc::core::{Core, NoHolders, Request};
use mrrc::{Access, Cache, Config, PAGE, PageRange, Part, RegionId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tracesim_policies::AnyPolicy;

/// The most regions that have one page.
const DEPTH: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask { start: u64, pages: u64, access: Access, keep: bool, fails: bool },
    End(usize),
    Invalidate { start: u64, pages: u64 },
}

fn accesses() -> impl Strategy<Value = Access> {
    let remote = |more: Access| Access::LOCAL_READ | more;
    prop_oneof![
        4 => Just(Access::LOCAL_READ),
        4 => Just(Access::LOCAL),
        1 => Just(remote(Access::REMOTE_READ)),
        1 => Just(remote(Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
        1 => Just(remote(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)),
    ]
}

/// Small and large requests that begin close to each other, so that many overlap.
fn asks(fails: f64) -> impl Strategy<Value = Step> {
    let pages = prop_oneof![1_u64..4, 1_u64..20, 1_u64..80];
    (0_u64..100, pages, accesses(), prop::bool::weighted(0.1), prop::bool::weighted(fails))
        .prop_map(|(start, pages, access, keep, fails)| Step::Ask { start, pages, access, keep, fails })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => asks(0.1),
        3 => (0_usize..8).prop_map(Step::End),
        1 => (0_u64..120, 1_u64..20).prop_map(|(start, pages)| Step::Invalidate { start, pages }),
    ];
    prop::collection::vec(step, 1..200)
}

/// A core, driven as a cache does, and what its regions are.
struct World {
    core: Core,
    regions: BTreeMap<RegionId, (PageRange, Access)>,
    held: Vec<RegionId>,
}

impl World {
    fn new(policy: AnyPolicy, capacity: u64) -> Self {
        let mut core = policy.core(&Config::new(capacity)).unwrap();
        core.use_one_key();
        Self { core, regions: BTreeMap::new(), held: Vec::new() }
    }

    fn cached(&self) -> Vec<(PageRange, Access)> {
        self.core.cached().map(|(id, _)| self.regions[&id]).collect()
    }

    /// Returns the registrations made for the request, and whether it was refused.
    fn ask(&mut self, range: PageRange, access: Access, keep: bool, fails: bool) -> Option<(PageRange, Access)> {
        let before = self.cached();
        let ask = Request { access, ..Request::new(range) };
        // Everything may be in use.
        let outcome = self.core.request_with(&ask, &mut NoHolders).ok()?;
        let [part] = outcome.parts()[..] else { panic!("one region: {:?}", outcome.parts()) };
        let id = part.region().unwrap();
        let Part::Gap { range: made, access: has, .. } = part else {
            let (region, has) = self.regions[&id];
            assert!(region.contains(range) && has.contains(access));
            if keep {
                self.core.hold(id);
                self.held.push(id);
            }
            return None;
        };
        assert!(made.contains(range) && has.contains(access));
        assert!(made.pages() <= 2 * range.pages(), "{made:?} for {range:?}");
        for page in made.start()..made.end() {
            let page = PageRange::new(page, 1).unwrap();
            let class =
                before.iter().filter(|(region, had)| region.contains(page) && had.is_remote() == has.is_remote());
            let mut granted = class.fold(Access::empty(), |all, (_, had)| all | *had);
            granted |= if range.contains(page) { access } else { Access::empty() };
            assert!(granted.contains(has), "{page:?} gets more than it had and was asked for");
        }
        if fails {
            self.core.abandon(id);
        } else {
            self.regions.insert(id, (made, has));
            if keep {
                self.core.hold(id);
                self.held.push(id);
            }
            _ = self.core.publish(&[id], &mut NoHolders);
        }
        (!fails).then_some((made, has))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { start, pages, access, keep, fails } => {
                let asked = range(start, pages);
                if self.ask(asked, access, keep, fails).is_some() {
                    for inner in [asked, range(start, 1), range(start + pages - 1, 1), range(start + pages / 2, 1)] {
                        assert!(self.core.find_with(inner, access).is_some(), "{inner:?} was just registered");
                    }
                }
            }
            Step::End(nth) => {
                if nth < self.held.len() {
                    let id = self.held.swap_remove(nth);
                    _ = self.core.release(id);
                }
            }
            Step::Invalidate { start, pages } => _ = self.core.invalidate(range(start, pages)),
        }
        self.check();
    }

    fn check(&self) {
        let counted = self.core.counters();
        assert!(counted.regs <= counted.requests, "{counted:?}");
        assert!(counted.reg_pages <= 2 * counted.pages, "{counted:?}");
        assert!(self.core.used_pages() <= self.core.capacity());
        let cached = self.cached();
        for &(region, has) in &cached {
            assert!(self.core.find_with(region, has).is_some(), "{region:?} is found");
        }
        let alike = |a: Access, b: Access| a.is_remote() == b.is_remote();
        for (nth, &(region, has)) in cached.iter().enumerate() {
            let covers =
                |(other, had): (PageRange, Access)| alike(has, had) && other.contains(region) && had.contains(has);
            let covering = cached.iter().enumerate().filter(|&(other, &facts)| other != nth && covers(facts)).count();
            assert_eq!(covering, 0, "{region:?} with {has} is of no use");
            // The deepest pages include the first of some region.
            let first = PageRange::new(region.start(), 1).unwrap();
            let deep = cached.iter().filter(|&&(other, had)| alike(has, had) && other.contains(first)).count();
            assert!(deep <= DEPTH, "{deep} regions on {first:?}");
        }
    }
}

/// Those that register what is asked for.
const POLICIES: [AnyPolicy; 6] =
    [AnyPolicy::Mrrc, AnyPolicy::Probation, AnyPolicy::PinDown, AnyPolicy::Gdsf, AnyPolicy::S3Fifo, AnyPolicy::Lirs];

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_costs_more_than_no_cache(steps in steps(), capacity in 80_u64..400) {
        for policy in POLICIES {
            let mut world = World::new(policy, capacity);
            steps.iter().for_each(|&step| world.step(step));
        }
    }

    /// While nothing is evicted or crowded out, what was asked for once is found for good.
    #[test]
    fn what_was_asked_for_is_found_again(steps in prop::collection::vec(asks(0.0), 1..60)) {
        let mut world = World::new(AnyPolicy::Mrrc, 1 << 20);
        let mut asked = Vec::new();
        for step in steps {
            let Step::Ask { start, pages, access, .. } = step else { continue };
            world.step(step);
            asked.push((range(start, pages), access));
            let counted = world.core.counters();
            if counted.deregs == counted.merged + counted.upgraded && world.held.is_empty() {
                for &(range, access) in &asked {
                    prop_assert!(world.core.find_with(range, access).is_some(), "{:?}", range);
                }
            }
        }
    }
}

/// Five regions that begin and end one after the other, each too small to take the one before in: too deep by one.
const STAIRS: [(u64, u64); 5] = [(0, 200), (120, 82), (170, 34), (190, 15), (199, 7)];

#[test]
fn a_page_with_four_regions_gets_no_fifth() {
    let mut world = World::new(AnyPolicy::Mrrc, 1000);
    for (start, pages) in STAIRS {
        world.step(Step::Ask { start, pages, access: Access::LOCAL, keep: false, fails: false });
    }
    let counted = world.core.counters();
    assert_eq!((counted.regs, counted.deregs, counted.merged), (5, 1, 0), "the smallest layer gave way");
    let found = STAIRS.map(|(start, pages)| world.core.find_with(range(start, pages), Access::LOCAL).is_some());
    assert_eq!(found, [true, true, true, false, true]);
}

#[test]
fn what_gave_way_for_a_failure_comes_back() {
    let mut world = World::new(AnyPolicy::Mrrc, 1000);
    for (nth, (start, pages)) in STAIRS.into_iter().enumerate() {
        world.step(Step::Ask { start, pages, access: Access::LOCAL, keep: false, fails: nth == 4 });
    }
    let counted = world.core.counters();
    assert_eq!((counted.regs, counted.failed, counted.deregs), (5, 1, 0));
    let found = STAIRS.map(|(start, pages)| world.core.find_with(range(start, pages), Access::LOCAL).is_some());
    assert_eq!(found, [true, true, true, true, false]);
}

fn one_key(device: &Device, capacity: u64) -> Cache<Device> {
    builder(device, capacity).max_segments(1).build().unwrap()
}

#[test]
fn sends_of_all_and_receives_of_a_part_hit() {
    const MIB: u64 = (1 << 20) / PAGE;
    let mut world = World::new(AnyPolicy::Mrrc, 64 * MIB);
    let device = device();
    let cache = one_key(&device, 64 * MIB);
    for nth in 0..1001 {
        let (pages, access) = if nth % 2 == 0 { (MIB, Access::LOCAL_READ) } else { (1, Access::LOCAL) };
        world.ask(range(0, pages), access, false, false);
        let lease = ask(&cache, 0, pages, access).unwrap();
        assert_eq!(lease.segments().count(), 1);
    }
    assert_eq!((world.core.counters().regs, world.core.used_pages()), (2, MIB + 1));
    assert_eq!((device.counts().reg_attempts, device.counts().pages), (2, MIB + 1));
    assert_eq!(cache.counters().decisions.hits(), 999);
}

/// Windows of 3 MiB that slide by 1 MiB over 64 MiB.
fn slide(mut window: impl FnMut(u64, u64)) -> u64 {
    const MIB: u64 = (1 << 20) / PAGE;
    (0..=61).for_each(|nth| window(nth * MIB, 3 * MIB));
    62 * 3 * MIB
}

#[test]
fn sliding_windows_cost_at_most_twice_the_pages() {
    const MIB: u64 = (1 << 20) / PAGE;
    let mut world = World::new(AnyPolicy::Mrrc, 32 * MIB);
    let device = device();
    let cache = one_key(&device, 32 * MIB);
    for round in 1..=3 {
        slide(|start, pages| _ = world.ask(range(start, pages), Access::LOCAL, false, false));
        let asked = slide(|start, pages| drop(take(&cache, start, pages)));
        let (core, seen) = (world.core.counters(), device.counts());
        assert!(core.regs <= 62 * round && core.reg_pages <= 2 * asked * round, "{core:?}");
        assert!(seen.regs <= 62 * round && seen.reg_pages <= 2 * asked * round, "{seen:?}");
        assert!(seen.peak_pages <= 32 * MIB);
    }
    // With room for all of them, the second time nothing is registered.
    let roomy = one_key(&device, 512 * MIB);
    slide(|start, pages| drop(take(&roomy, start, pages)));
    let first = roomy.counters().attempts;
    slide(|start, pages| drop(take(&roomy, start, pages)));
    assert_eq!((roomy.counters().attempts, roomy.counters().decisions.hits()), (first, 124 - first));
}

#[test]
fn what_overlaps_serves_until_its_successor_stands() {
    let device = device();
    let cache = one_key(&device, 64);
    drop(take(&cache, 0, 4));
    let gate = gate_at(
        &device,
        |event| matches!(event, mrrc::testing::Event::Registering { range: asked, .. } if *asked == range(0, 8)),
    );
    std::thread::scope(|threads| {
        let larger = threads.spawn(|| drop(take(&cache, 2, 6)));
        gate.await_waiting(1);
        assert!(ask(&cache, 0, 4, Access::LOCAL).is_ok());
        assert_eq!(cache.counters().attempts, 1, "a hit, while its successor is registered");
        gate.open();
        larger.join().unwrap();
    });
    assert_eq!((cache.counters().decisions.merged, cache.usage().leaving), (1, 1));
    assert!(is_hit(&cache, 0, 8));
}

#[test]
fn a_change_strikes_out_all_that_overlap() {
    let device = device();
    let cache = one_key(&device, 1000);
    for (start, pages) in &STAIRS[..4] {
        drop(take(&cache, *start, *pages));
    }
    let held = take(&cache, 0, 200);
    cache.invalidate(address(199), PAGE as usize).unwrap();
    cache.reap().unwrap();
    assert_eq!((device.counts().regions, cache.usage().regions), (1, 1), "the one that is held");
    drop(held);
    for (start, pages) in STAIRS {
        assert!(!is_hit(&cache, start, pages));
    }
    cache.flush().unwrap();
    assert_eq!((device.counts().regions, device.counts().pages), (0, 0));
}

#[test]
fn threads_that_overlap_get_one_region_each() {
    let device = device();
    let cache = builder(&device, 256).max_segments(1).capacity_timeout(std::time::Duration::from_secs(60));
    let cache = cache.background(true).build().unwrap();
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (cache, device) = (&cache, &device);
            threads.spawn(move || {
                let mut numbers = Numbers(thread);
                for _ in 0..1500 {
                    let (start, pages) = (numbers.below(150), numbers.below(40) + 1);
                    let access = [Access::LOCAL_READ, Access::LOCAL, Access::LOCAL | Access::REMOTE_READ];
                    let access = access[numbers.below(3) as usize];
                    let lease = ask(cache, start, pages, access).unwrap();
                    let [(at, length, made)] = parts(&lease)[..] else { panic!("one segment") };
                    assert_eq!((at, length), (start, pages));
                    assert!(made.contains(range(start, pages)));
                    assert!(lease.segments().all(|segment| segment.registration().access.contains(access)));
                    drop(lease);
                    if numbers.below(30) == 0 {
                        cache.invalidate(address(numbers.below(150)), PAGE as usize).unwrap();
                    }
                    assert!(device.counts().peak_pages <= 256);
                }
            });
        }
    });
    let counted = cache.counters();
    assert!(counted.attempts <= counted.decisions.requests && counted.decisions.requests == 6000);
    assert!(counted.decisions.reg_pages <= 2 * counted.decisions.pages);
    cache.flush().unwrap();
    assert_eq!((device.counts().regions, cache.usage().pages), (0, 0));
}
