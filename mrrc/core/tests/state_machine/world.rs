//! The steps of a cache's life and the naive model's answers: the reference of the test against it.
//!
//! The address space is small, and requests are drawn to the neighbourhood of what is cached, so that
//! exact hits, subsets, straddles and bypasses are all frequent.

use crate::naive::{Answer, Limits, Naive, Name, Pages, Refusal};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use proptest_state_machine::ReferenceStateMachine;
use std::collections::BTreeMap;

/// One past the last page that is asked for.
const END: u64 = 300;

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) naive: Naive,
    /// The regions that the last request returned, in the order of their parts.
    last: Vec<Name>,
    held: Vec<Name>,
    /// How often regions are held, compared with how often they are released (3).
    holding: u32,
    /// The outcome of the last step.
    pub(crate) reply: Reply,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Request(Pages),
    /// The fast half of a request alone.
    Hit(Pages),
    /// A region that the last request returned, by its place.
    Hold(usize),
    /// The held region, by its place.
    Release(usize),
    Invalidate(Pages),
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Nothing,
    Answered(Result<Answer, Refusal>),
    Hit(bool),
    Left(Vec<Pages>),
}

impl ReferenceStateMachine for World {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        (limits(), 0..6u32)
            .prop_map(|(limits, holding)| Self {
                naive: Naive::new(limits),
                last: Vec::new(),
                held: Vec::new(),
                holding,
                reply: Reply::Nothing,
            })
            .boxed()
    }

    fn transitions(world: &Self) -> BoxedStrategy<Step> {
        let mut steps = vec![
            (10, range(world).prop_map(Step::Request).boxed()),
            (2, range(world).prop_map(Step::Hit).boxed()),
            (1, range(world).prop_map(Step::Invalidate).boxed()),
        ];
        let holdable: Vec<_> = (0..world.last.len()).filter(|&i| world.naive.is_registered(world.last[i])).collect();
        if !holdable.is_empty() && world.holding > 0 {
            steps.push((world.holding, select(holdable).prop_map(Step::Hold).boxed()));
        }
        if !world.held.is_empty() {
            steps.push((3, (0..world.held.len()).prop_map(Step::Release).boxed()));
        }
        proptest::strategy::Union::new_weighted(steps).boxed()
    }

    fn preconditions(world: &Self, step: &Step) -> bool {
        match *step {
            Step::Hold(place) => world.last.get(place).is_some_and(|&name| world.naive.is_registered(name)),
            Step::Release(place) => place < world.held.len(),
            Step::Request(_) | Step::Hit(_) | Step::Invalidate(_) => true,
        }
    }

    fn apply(mut world: Self, step: &Step) -> Self {
        world.reply = match *step {
            Step::Request(asked) => {
                let answer = world.naive.request(asked);
                let parts = answer.iter().flat_map(|answer| &answer.parts);
                world.last = parts.filter_map(|part| part.region).collect();
                Reply::Answered(answer)
            }
            Step::Hit(asked) => {
                let hit = world.naive.hit(asked);
                world.last = hit.into_iter().collect();
                Reply::Hit(hit.is_some())
            }
            Step::Hold(place) => {
                world.naive.hold(world.last[place]);
                world.held.push(world.last[place]);
                Reply::Nothing
            }
            Step::Release(place) => {
                let name = world.held.swap_remove(place);
                Reply::Left(world.naive.release(name))
            }
            Step::Invalidate(range) => Reply::Left(world.naive.invalidate(range)),
        };
        world
    }
}

fn limits() -> impl Strategy<Value = Limits> {
    let fraction = || select(vec![0.0, 0.07, 0.33, 0.5, 0.9, 1.0]);
    let limit = |most| prop_oneof![2 => Just(None), 1 => (1..=most).prop_map(Some)];
    (prop_oneof![1..=20u64, 20..=200u64], fraction(), fraction(), limit(20u64), limit(40u64)).prop_map(
        |(capacity, resort, evict, max_regions, max_region_pages)| Limits {
            capacity,
            resort,
            evict,
            max_regions,
            max_region_pages,
        },
    )
}

fn range(world: &World) -> BoxedStrategy<Pages> {
    let capacity = world.naive.limits().capacity;
    let length = prop_oneof![4 => 1..=capacity / 5 + 1, 2 => 1..=capacity, 1 => 1..=END];
    let anywhere = (0..END, length).prop_map(|(start, length)| (start, (start + length).min(END)));
    let cached: Vec<_> = world.naive.cached().into_iter().collect();
    if cached.is_empty() {
        return anywhere.boxed();
    }
    let shift = || prop_oneof![Just(0), -6..=6i64];
    let nearby = (select(cached), shift(), shift()).prop_map(|((start, end), before, behind)| {
        let start = start.saturating_add_signed(before).min(END - 1);
        (start, end.saturating_add_signed(behind).clamp(start + 1, END))
    });
    prop_oneof![anywhere, nearby].boxed()
}

/// A test that meets nothing but misses finds nothing.
#[test]
fn random_worlds_see_everything_happen() {
    let mut runner = TestRunner::deterministic();
    let strategy = World::sequential_strategy(150);
    let mut seen = BTreeMap::new();
    for _ in 0..100 {
        let (mut world, steps, _) = strategy.new_tree(&mut runner).expect("a world").current();
        for step in &steps {
            world = World::apply(world, step);
            let what = match (&world.reply, step) {
                (Reply::Answered(Ok(answer)), _) => match answer.batches.len() {
                    _ if answer.bypass => "bypass".to_owned(),
                    0 => format!("{:?}", answer.found),
                    1 => "full".to_owned(),
                    _ => "full twice".to_owned(),
                },
                (Reply::Answered(Err(_)), _) => "all in use".to_owned(),
                (Reply::Hit(there), _) => format!("hit: {there}"),
                (Reply::Left(leaving), Step::Invalidate(_)) => format!("invalidated some: {}", !leaving.is_empty()),
                (Reply::Left(leaving), _) => format!("released a retired one: {}", !leaving.is_empty()),
                (Reply::Nothing, _) => "held".to_owned(),
            };
            *seen.entry(what).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), 16, "{seen:?}");
    assert!(seen.values().all(|&count| count > 30), "{seen:?}");
}
