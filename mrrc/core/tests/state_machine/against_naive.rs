//! The core with policy `mrrc` answers every step as the naive model does: what it found, which parts are
//! ready, what is registered and what leaves in which batch, down to the last counter.

use crate::naive::{self, Answer, Name, Pages, Refusal};
use crate::world::{Reply, Step, World};
use mrrc_core::policy::PolicyKind;
use mrrc_core::{AllInUse, Config, Core, Leavers, Leaving, Outcome, PageRange, Part, RegionId};
use proptest::prelude::*;
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use std::collections::BTreeSet;

/// The core, and what the test remembers of its answers.
struct Driven {
    core: Core,
    last: Vec<RegionId>,
    held: Vec<RegionId>,
}

fn page_range((start, end): Pages) -> PageRange {
    PageRange::new(start, end - start).expect("the model makes no empty ranges")
}

fn pages(range: PageRange) -> Pages {
    (range.start(), range.end())
}

fn batch(leaving: &[Leaving]) -> Vec<Pages> {
    leaving.iter().map(|left| pages(left.range)).collect()
}

/// Returns the regions that leave at once, in one batch if any.
fn single_batch(leavers: &Leavers) -> Vec<Pages> {
    let batches: Vec<_> = leavers.batches().map(batch).collect();
    assert_eq!(batches.is_empty(), leavers.is_empty());
    assert!(batches.len() <= 1, "deregistered in one operation: {batches:?}");
    batches.concat()
}

fn region(part: &Part) -> Option<RegionId> {
    match *part {
        Part::Ready { region, .. } | Part::Registering { region, .. } => Some(region),
        Part::Gap { region, .. } => region,
    }
}

/// The model's names are not the core's: what is compared is whether there is a region.
fn part(part: &Part) -> naive::Part {
    naive::Part {
        region: region(part).map(|_| Name::default()),
        is_gap: matches!(part, Part::Gap { .. }),
        pages: pages(part.range()),
    }
}

fn answer(outcome: &Outcome) -> Answer {
    Answer {
        found: outcome.found(),
        bypass: outcome.is_bypass(),
        parts: outcome.parts().iter().map(part).collect(),
        batches: outcome.batches().map(batch).collect(),
    }
}

fn without_names(mut answer: Answer) -> Answer {
    answer.parts.iter_mut().for_each(|part| part.region = part.region.map(|_| Name::default()));
    answer
}

impl Driven {
    fn request(&mut self, asked: PageRange, expected: &Result<Answer, Refusal>) {
        match (self.core.request(asked), expected.clone()) {
            (Ok(outcome), Ok(expected)) => {
                assert_eq!(answer(outcome), without_names(expected));
                let gaps: Vec<_> = outcome.parts().iter().filter(|part| matches!(part, Part::Gap { .. })).collect();
                assert!(outcome.gaps().eq(gaps.iter().map(|gap| gap.range())), "gaps in the order of the parts");
                self.last = outcome.parts().iter().filter_map(region).collect();
            }
            (Err(refused), Err(Refusal { missing_pages, missing_regions, in_use_pages, in_use_regions })) => {
                let expected = AllInUse { asked, missing_pages, missing_regions, in_use_pages, in_use_regions };
                assert_eq!(refused, expected);
                self.last.clear();
            }
            (ours, theirs) => panic!("the core says {ours:?}, the model {theirs:?}"),
        }
    }
}

struct AgainstNaive;

impl StateMachineTest for AgainstNaive {
    type SystemUnderTest = Driven;
    type Reference = World;

    fn init_test(world: &World) -> Driven {
        let limits = world.naive.limits();
        let config = Config {
            policy: PolicyKind::Mrrc,
            resort: limits.resort,
            evict: limits.evict,
            max_regions: limits.max_regions,
            max_region_pages: limits.max_region_pages,
            ..Config::new(limits.capacity)
        };
        Driven { core: Core::new(&config).expect("a valid configuration"), last: Vec::new(), held: Vec::new() }
    }

    fn apply(mut driven: Driven, world: &World, step: Step) -> Driven {
        match (step, &world.reply) {
            (Step::Request(asked), Reply::Answered(expected)) => driven.request(page_range(asked), expected),
            (Step::Hit(asked), &Reply::Hit(expected)) => {
                let there = driven.core.find(page_range(asked));
                let hit = driven.core.hit(page_range(asked));
                assert_eq!((hit.is_some(), hit), (expected, there));
                driven.last = hit.into_iter().collect();
            }
            (Step::Hold(place), Reply::Nothing) => {
                driven.core.hold(driven.last[place]);
                driven.held.push(driven.last[place]);
            }
            (Step::Release(place), Reply::Left(expected)) => {
                let id = driven.held.swap_remove(place);
                assert_eq!(&single_batch(driven.core.release(id)), expected);
            }
            (Step::Invalidate(range), Reply::Left(expected)) => {
                assert_eq!(&single_batch(driven.core.invalidate(page_range(range))), expected);
            }
            (step, reply) => unreachable!("{step:?} is not answered by {reply:?}"),
        }
        driven
    }

    fn check_invariants(Driven { core, .. }: &Driven, World { naive, .. }: &World) {
        let cached: BTreeSet<_> = core.cached().map(|(_, range)| pages(range)).collect();
        assert_eq!(cached, naive.cached());
        assert_eq!((core.used_pages(), core.used_regions()), (naive.used_pages(), naive.used_regions()));
        assert_eq!(core.held_pages(), naive.held_pages());
        assert_eq!(core.counters(), naive.counters());
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: crate::cases(400), ..ProptestConfig::default() })]

    #[test]
    fn mrrc_answers_every_step_as_the_naive_model_does(sequential 1..150 => AgainstNaive);
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: crate::cases(400).div_ceil(200), ..ProptestConfig::default() })]

    /// State that is kept only now and then (stale entries, empty lists) is thrown out on the way.
    #[test]
    fn mrrc_matches_naive_model_over_long_run(sequential 1_500..1_501 => AgainstNaive);
}
