//! Regions that are being registered, and those that they replace: nothing changes for others until the new one is published.

use mrrc_core::core::{Core, NoHolders, Request, Sharing};
use mrrc_core::policy::{Keeps, Matching, PolicyKind};
use mrrc_core::{Access, Config, PageRange, Part, RegionEvent, RegionId, RegionState};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MORE: Access = Access::LOCAL.union(Access::REMOTE_READ);

fn range(start: u64, pages: u64) -> PageRange {
    PageRange::new(start, pages).unwrap()
}

fn core(capacity: u64) -> Core {
    let mut core = Core::new(&Config { policy: PolicyKind::Mrrc, ..Config::new(capacity) }).unwrap();
    core.limit_hard();
    core
}

fn request(core: &mut Core, start: u64, pages: u64, access: Access) -> Vec<Part> {
    let request = Request { access, ..Request::new(range(start, pages)) };
    core.request_with(&request, &mut NoHolders).unwrap().parts().to_vec()
}

/// Asks for what becomes one region, and returns its name.
fn begin(core: &mut Core, start: u64, pages: u64, access: Access) -> RegionId {
    let parts = request(core, start, pages, access);
    let [Part::Gap { region: Some(id), .. }] = parts[..] else { panic!("one gap: {parts:?}") };
    assert_eq!(core.state_of(id), RegionState::Registering);
    id
}

fn register(core: &mut Core, start: u64, pages: u64, access: Access) -> RegionId {
    let id = begin(core, start, pages, access);
    _ = core.publish(&[id], &mut NoHolders);
    id
}

#[test]
fn old_region_serves_hits_until_publish() {
    let mut core = core(64);
    let old = register(&mut core, 0, 8, Access::LOCAL_READ);
    let new = begin(&mut core, 0, 8, Access::LOCAL);
    assert_eq!(core.find_with(range(2, 2), Access::LOCAL_READ), Some(old));
    assert_eq!(request(&mut core, 2, 2, Access::LOCAL_READ), [Part::Ready { region: old, range: range(2, 2) }]);
    assert_eq!((core.used_pages(), core.counters().upgraded), (16, 0), "both are registered meanwhile");
    let left: Vec<_> = core.publish(&[new], &mut NoHolders).batches().flatten().map(|leaving| leaving.region).collect();
    assert_eq!(left, [old]);
    assert_eq!(core.find_with(range(2, 2), Access::LOCAL), Some(new));
    assert_eq!((core.used_pages(), core.held_pages(), core.counters().upgraded), (8, 0, 1));
}

#[test]
fn failed_replacement_changes_nothing() {
    let mut core = core(64);
    let old = register(&mut core, 0, 8, Access::LOCAL_READ);
    let new = begin(&mut core, 2, 4, Access::LOCAL);
    core.abandon(new);
    assert_eq!(core.find_with(range(0, 8), Access::LOCAL_READ), Some(old));
    let counted = core.counters();
    assert_eq!((counted.upgraded, counted.deregs, counted.failed), (0, 0, 1));
    assert_eq!((core.used_pages(), core.used_regions(), core.held_pages()), (8, 1, 0));
}

#[test]
fn same_upgrade_waits_for_the_first() {
    let mut core = core(64);
    register(&mut core, 0, 8, Access::LOCAL_READ);
    let new = begin(&mut core, 0, 8, Access::LOCAL);
    let waits = |range| [Part::Registering { region: new, range }];
    assert_eq!(request(&mut core, 2, 3, Access::LOCAL), waits(range(2, 3)), "it is to serve it");
    assert_eq!(request(&mut core, 6, 9, Access::LOCAL), waits(range(6, 9)), "it is in the way");
    assert_eq!(core.used_pages(), 16, "and nothing is reserved");
}

#[test]
fn new_region_of_a_gap_is_waited_for() {
    let mut core = core(64);
    let new = begin(&mut core, 0, 8, Access::LOCAL_READ);
    assert_eq!(request(&mut core, 4, 2, Access::LOCAL_READ), [Part::Registering { region: new, range: range(4, 2) }]);
    let parts = request(&mut core, 4, 8, Access::LOCAL_READ);
    assert_eq!(parts[0], Part::Registering { region: new, range: range(4, 4) });
    assert!(matches!(parts[1], Part::Gap { range: rest, .. } if rest == range(8, 4)), "{parts:?}");
    // More rights: the first has to be there before it can be replaced.
    assert_eq!(request(&mut core, 4, 2, Access::LOCAL), [Part::Registering { region: new, range: range(4, 2) }]);
    core.abandon(new);
    begin(&mut core, 4, 2, Access::LOCAL);
}

#[test]
fn old_region_leaves_first_if_both_do_not_fit() {
    let mut core = core(12);
    let old = register(&mut core, 0, 8, Access::LOCAL_READ);
    let request = Request { access: Access::LOCAL, ..Request::new(range(0, 8)) };
    let outcome = core.request_with(&request, &mut NoHolders).unwrap();
    assert_eq!(outcome.batches().flatten().map(|leaving| leaving.region).collect::<Vec<_>>(), [old]);
    assert_eq!((core.used_pages(), core.counters().upgraded), (8, 1));
}

#[test]
fn held_old_region_stays_until_its_lease_ends() {
    let mut core = core(64);
    let old = register(&mut core, 0, 8, Access::LOCAL_READ);
    core.hold(old);
    let new = begin(&mut core, 0, 8, Access::LOCAL);
    assert!(core.publish(&[new], &mut NoHolders).is_empty());
    assert_eq!((core.state_of(old), core.used_pages()), (RegionState::Retired, 16));
    assert!(!core.release(old).is_empty());
    assert_eq!((core.state_of(old), core.used_pages()), (RegionState::Absent, 8));
}

#[test]
fn others_may_evict_what_is_being_replaced() {
    let mut core = core(16);
    register(&mut core, 0, 8, Access::LOCAL_READ);
    let new = begin(&mut core, 0, 8, Access::LOCAL);
    // Sixteen pages are registered; the old eight are the only ones that can leave.
    register(&mut core, 100, 4, Access::LOCAL);
    assert_eq!(core.find_with(range(0, 8), Access::LOCAL_READ), None);
    _ = core.publish(&[new], &mut NoHolders);
    assert_eq!(core.find_with(range(0, 8), Access::LOCAL), Some(new));
    assert_eq!(core.counters().upgraded, 0, "there was nothing left to replace");
}

#[test]
fn changed_memory_is_not_published() {
    let mut core = core(64);
    register(&mut core, 0, 8, Access::LOCAL_READ);
    let new = begin(&mut core, 0, 8, Access::LOCAL);
    assert_eq!(core.invalidate(range(7, 1)).batches().count(), 1, "the old one leaves at once");
    assert_eq!(core.state_of(new), RegionState::Retired, "the new one is good for its own lease");
    assert!(!core.release(new).is_empty());
    assert_eq!((core.used_pages(), core.counters().invalidated), (0, 2));
}

#[test]
fn uses_while_registering_do_not_reach_the_policy() {
    for &policy in PolicyKind::ALL {
        let mut core = Core::new(&Config { policy, ..Config::new(64) }).unwrap();
        core.limit_hard();
        let request = Request::new(range(0, 4));
        let Some(id) = core.request_with(&request, &mut NoHolders).unwrap().parts()[0].region() else {
            panic!("{policy}")
        };
        if core.state_of(id) == RegionState::Registering {
            core.apply_touches([id, id]);
            _ = core.request_with(&request, &mut NoHolders).unwrap();
            _ = core.publish(&[id], &mut NoHolders);
            core.apply_touches([id]);
        }
    }
}

#[test]
fn every_state_has_its_transitions() {
    use RegionEvent as Event;
    use RegionState as State;
    let life = [
        (Event::Reserved, State::Registering),
        (Event::Published, State::Cached),
        (Event::Retired, State::Retired),
        (Event::Released, State::PendingDeregistration),
        (Event::Taken, State::Deregistering),
        (Event::Refused, State::PendingDeregistration),
        (Event::Taken, State::Deregistering),
        (Event::Deregistered, State::Absent),
    ];
    let mut state = State::Absent;
    for (event, next) in life {
        state = state.after(event).unwrap();
        assert_eq!(state, next);
    }
    assert_eq!(State::Registering.after(Event::Failed), Some(State::Absent));
    assert_eq!(State::Registering.after(Event::Retired), Some(State::Retired));
    assert_eq!(State::Cached.after(Event::Failed), None, "what is registered does not fail to be");
    assert_eq!(State::Absent.after(Event::Published), None);
}

#[test]
fn no_region_exceeds_the_most_pages() {
    let longest = |core: &mut Core, start, pages| {
        let parts = request(core, start, pages, Access::LOCAL);
        parts.iter().map(|part| part.range().pages()).max().unwrap()
    };
    let most = Config { policy: PolicyKind::Mrrc, max_region_pages: Some(5), max_regions: Some(3), ..Config::new(64) };
    let mut keeps_nothing = Core::new(&Config { policy: PolicyKind::None, ..most.clone() }).unwrap();
    keeps_nothing.limit_hard();
    assert_eq!(longest(&mut keeps_nothing, 0, 12), 5);
    let mut short_of_rights = Core::new(&most).unwrap();
    short_of_rights.limit_hard();
    register(&mut short_of_rights, 0, 1, Access::LOCAL);
    register(&mut short_of_rights, 12, 4, Access::LOCAL_READ);
    assert_eq!(longest(&mut short_of_rights, 0, 15), 5, "it is cut, or takes the place of what it overlaps");
}

#[derive(Clone, Debug)]
enum Step {
    Request { start: u64, pages: u64, access: Access, apart: bool },
    Publish(usize),
    Abandon(usize),
    Hold(usize),
    Release(usize),
    Invalidate { start: u64, pages: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![4 => Just(Access::LOCAL_READ), 3 => Just(Access::LOCAL), 1 => Just(MORE)];
    let step = prop_oneof![
        8 => (0_u64..60, 1_u64..16, access, prop::bool::weighted(0.1))
            .prop_map(|(start, pages, access, apart)| Step::Request { start, pages, access, apart }),
        6 => (0_usize..8).prop_map(Step::Publish),
        2 => (0_usize..8).prop_map(Step::Abandon),
        2 => (0_usize..8).prop_map(Step::Hold),
        2 => (0_usize..8).prop_map(Step::Release),
        1 => (0_u64..60, 1_u64..8).prop_map(|(start, pages)| Step::Invalidate { start, pages }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Requests that register at the same time: what each has begun is published or abandoned in any order.
struct World {
    core: Core,
    begun: Vec<RegionId>,
    held: Vec<RegionId>,
    facts: BTreeMap<RegionId, (PageRange, Access)>,
}

impl World {
    fn cached(&self) -> BTreeSet<RegionId> {
        self.core.cached().map(|(id, _)| id).collect()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Request { start, pages, access, apart } => {
                let sharing = if apart { Sharing::Nothing } else { Sharing::All };
                let request = Request { access, sharing, ..Request::new(range(start, pages)) };
                let Ok(outcome) = self.core.request_with(&request, &mut NoHolders) else { return };
                let parts = outcome.parts().to_vec();
                for part in parts {
                    match part {
                        Part::Ready { region, .. } => assert_eq!(self.core.state_of(region), RegionState::Cached),
                        Part::Registering { region, .. } => assert!(self.begun.contains(&region), "it is waited for"),
                        Part::Gap { region, range, access } => {
                            let id = region.unwrap();
                            self.begun.push(id);
                            self.facts.insert(id, (range, access));
                        }
                    }
                }
            }
            Step::Publish(nth) if nth < self.begun.len() => {
                let id = self.begun.swap_remove(nth);
                if self.core.state_of(id) == RegionState::Registering {
                    _ = self.core.publish(&[id], &mut NoHolders);
                    let (range, access) = self.facts[&id];
                    assert_eq!(self.core.find_with(range, access), Some(id), "hits find what was published");
                } else {
                    _ = self.core.release(id);
                }
            }
            Step::Abandon(nth) if nth < self.begun.len() => {
                let before = self.cached();
                self.core.abandon(self.begun.swap_remove(nth));
                assert_eq!(self.cached(), before, "a failure changes nothing");
            }
            Step::Hold(nth) => {
                if let Some(id) = self.cached().into_iter().nth(nth) {
                    self.core.hold(id);
                    self.held.push(id);
                }
            }
            Step::Release(nth) if nth < self.held.len() => _ = self.core.release(self.held.swap_remove(nth)),
            Step::Invalidate { start, pages } => {
                _ = self.core.invalidate(range(start, pages));
                let mut any = false;
                self.core.for_each_overlap(range(start, pages), |_| any = true);
                assert!(!any, "nothing is found that was invalidated");
            }
            Step::Publish(_) | Step::Abandon(_) | Step::Release(_) => {}
        }
        self.check();
    }

    fn check(&self) {
        assert!(self.core.used_pages() <= self.core.capacity());
        let cached: Vec<_> = self.core.cached().collect();
        for (nth, &(id, range)) in cached.iter().enumerate() {
            let (_, access) = self.facts[&id];
            assert_eq!(self.core.find_with(range, access), Some(id), "a cached region is a hit");
            let alike = |other: &RegionId| self.facts[other].1.is_remote() == access.is_remote();
            let twice = cached[..nth].iter().any(|(other, pages)| pages.overlaps(range) && alike(other));
            assert!(!twice, "published regions of a class do not overlap");
        }
        let registered = cached.iter().map(|&(id, _)| id).chain(self.begun.iter().copied());
        let registered: BTreeSet<_> = registered.chain(self.held.iter().copied()).collect();
        let pages: u64 = registered.iter().map(|&id| self.core.range_of(id).unwrap().pages()).sum();
        assert_eq!((self.core.used_pages(), self.core.used_regions()), (pages, registered.len() as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_changes_before_publish(steps in steps(), capacity in 16_u64..120, policy in 0..PolicyKind::ALL.len()) {
        let mut core = Core::new(&Config { policy: PolicyKind::ALL[policy], max_regions: Some(24), ..Config::new(capacity) }).unwrap();
        core.limit_hard();
        // Exact matching has regions that overlap; and what keeps nothing publishes nothing.
        if core.scheme().matching == Matching::Exact || core.scheme().keeps == Keeps::Nothing {
            return Ok(());
        }
        let mut world = World { core, begun: Vec::new(), held: Vec::new(), facts: BTreeMap::new() };
        steps.iter().for_each(|step| world.step(step));
        // Whatever is begun ends, and then all of it can be found and left.
        while !world.begun.is_empty() {
            world.step(&Step::Publish(0));
        }
        while !world.held.is_empty() {
            world.step(&Step::Release(0));
        }
        _ = world.core.invalidate(PageRange::EVERYTHING);
        prop_assert_eq!((world.core.used_pages(), world.core.held_pages()), (0, 0));
    }
}
