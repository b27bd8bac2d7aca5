//! Clusters of [`crate::model`], explored and walked through, and the faults that this must find.
//!
//! Walks meet ten of sixteen faults. The others need a certain order of events, and have schedules of their own: `schedules.rs`.
//! `RDMAKV_WALK=SEED` prints a walk's steps, and `RDMAKV_WALKS=N` walks more often than 25 times.

use stateright::{Checker, Model, Property};

use crate::config::Policy;
use crate::dice::Dice;
use crate::faults;
use crate::model::{Action, Shape, World};

/// Three servers with a copy each, and one write of each of two clients.
const SMALL: Shape = Shape {
    servers: 3,
    joining: 0,
    policy: Policy::Copies(3),
    keys: 1,
    clients: 2,
    operations: 1,
    deletes: false,
    staged: false,
    epochs: 2,
    timeouts: 1,
    duplicates: 0,
    losses: 1,
    repairs: false,
    flushes: 0,
    tags: false,
};

/// Servers that are lost, return, join, drain and are repaired.
const LARGE: Shape = Shape {
    servers: 4,
    joining: 0,
    policy: Policy::Copies(2),
    keys: 2,
    clients: 3,
    operations: 40,
    deletes: false,
    staged: false,
    epochs: 60,
    timeouts: 60,
    duplicates: 40,
    losses: 1,
    repairs: true,
    flushes: 0,
    tags: false,
};

/// Values in fragments, of which two may be lost.
const CODED: Shape = Shape { servers: 6, policy: Policy::Code { data: 2, parity: 2 }, losses: 2, ..LARGE };

/// As many servers as 4+2 needs, and one more.
const WIDE: Shape = Shape { servers: 7, policy: Policy::Code { data: 4, parity: 2 }, keys: 1, ..CODED };

/// Values in fragments that are read by tags.
const TAGGED: Shape = Shape { keys: 1, tags: true, ..CODED };

/// Values are deleted, and flushed.
const FLUSHED: Shape = Shape { deletes: true, flushes: 20, ..LARGE };

/// All states of a small cluster.
struct Explored(Shape);

impl Model for Explored {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(world.actions(&self.0));
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.step(&self.0, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("linearizable", |_, world: &World| world.violation().is_none()),
            Property::sometimes("finished", |explored: &Self, world: &World| world.is_finished(&explored.0)),
        ]
    }
}

/// Explores up to this many transitions, or all for 0. Returns the violation, if all writes ended in some state, and the count of states.
fn explore(shape: &Shape, transitions: usize) -> (Option<&'static str>, bool, usize) {
    let checker = Explored(shape.clone()).checker().threads(2).target_state_count(transitions).spawn_bfs().join();
    let violation = checker.discovery("linearizable").and_then(|path| path.last_state().violation());
    (violation, checker.discovery("finished").is_some(), checker.unique_state_count())
}

/// Takes steps at random. Returns the world after them, or after a violation.
fn walk(shape: &Shape, seed: u64, steps: u32) -> World {
    let mut dice = Dice(seed);
    let mut world = World::new(shape);
    let shows = std::env::var("RDMAKV_WALK").is_ok_and(|shown| shown == seed.to_string());
    for _ in 0..steps {
        let actions = world.actions(shape);
        if actions.is_empty() {
            break;
        }
        let rare = |action: &Action| match action {
            Action::Deliver(_) => 0,
            Action::Begin(..) | Action::Learn(_) | Action::Adopt(_) | Action::Expire(_) | Action::Whole => 1,
            Action::Repair(_) | Action::SendFates(_) | Action::Return(_) => 1,
            Action::ReadByTag(..) => 1,
            // Tags get old, and with them what they lead to.
            Action::LearnTags(_) => 2,
            Action::Flush => 2,
            Action::Duplicate(_) | Action::Overdue(..) | Action::Forget(..) => 2,
            Action::Lose(_) | Action::Crash(_) | Action::Remove(_) | Action::Drain(_) | Action::Retry(_) => 3,
        };
        let rarity = match dice.below(32) {
            0 => 3,
            1 | 2 => 2,
            3..=9 => 1,
            _ => 0,
        };
        let chosen: Vec<Action> = actions.iter().copied().filter(|action| rare(action) == rarity).collect();
        let chosen = if chosen.is_empty() { actions } else { chosen };
        let action = chosen[dice.below(chosen.len() as u64) as usize];
        if shows {
            eprintln!("{}", world.describe(action));
        }
        world.step(shape, action);
        if world.violation().is_some() {
            break;
        }
    }
    world
}

/// Lets nothing more go wrong, and all that is under way go on. Returns whether all writes ended and the cluster is whole.
fn settle(shape: &Shape, world: &mut World, seed: u64) -> bool {
    let mut dice = Dice(seed);
    let shape = Shape { losses: 0, duplicates: 0, timeouts: u8::MAX, epochs: u32::MAX, ..shape.clone() };
    for _ in 0..20_000 {
        let is_new = |action: &Action| {
            let is_read = matches!(action, Action::LearnTags(_) | Action::ReadByTag(..));
            is_read || matches!(action, Action::Begin(..) | Action::Forget(..) | Action::Duplicate(_))
        };
        let is_change =
            |action: &Action| matches!(action, Action::Crash(_) | Action::Return(_) | Action::Drain(_) | Action::Flush);
        let mut actions = world.actions(&shape);
        actions.retain(|action| !is_new(action) && !is_change(action));
        let is_retry = |action: &Action| matches!(action, Action::Lose(_) | Action::Retry(_));
        let others: Vec<Action> = actions.iter().copied().filter(|action| !is_retry(action)).collect();
        let actions = if others.is_empty() { actions } else { others };
        if actions.is_empty() {
            break;
        }
        let action = actions[dice.below(actions.len() as u64) as usize];
        world.step(&shape, action);
        if world.violation().is_some() {
            return false;
        }
    }
    world.is_idle() && (!shape.repairs || world.is_whole())
}

/// Walks until a violation. Returns the walk's seed and the violation.
fn found(shape: &Shape, fault: &'static str, walks: u64) -> Option<(u64, &'static str)> {
    faults::plant(fault);
    let found = (0..walks).find_map(|seed| walk(shape, seed, 1000).violation().map(|violation| (seed, violation)));
    faults::plant("");
    found
}

/// Explores a small cluster, and asserts that nothing is wrong and that writes end.
fn is_linearizable(shape: &Shape, states: usize) {
    let (violation, is_finished, states) = explore(shape, states);
    assert_eq!(violation, None, "{shape:?}");
    assert!(is_finished, "no writes ended in {states} states of {shape:?}");
}

#[test]
fn small_clusters_are_linearizable() {
    for policy in [Policy::Copies(3), Policy::Copies(2)] {
        is_linearizable(&Shape { policy, timeouts: 0, epochs: 1, losses: 0, ..SMALL }, 0);
        is_linearizable(&Shape { policy, clients: 1, ..SMALL }, 30_000);
    }
}

/// Takes long: run it by name, in a release build.
#[test]
#[ignore = "explores 20 million transitions"]
fn explores_small_clusters_for_long() {
    is_linearizable(&Shape { clients: 1, epochs: 3, losses: 2, ..SMALL }, 10_000_000);
    // Breadth first, two clients do not come to the end of both writes in so many transitions.
    let shape = Shape { epochs: 3, losses: 2, ..SMALL };
    assert_eq!(explore(&shape, 10_000_000).0, None, "{shape:?}");
}

/// Returns how many walks a test takes.
fn walks() -> u64 {
    std::env::var("RDMAKV_WALKS").map_or(25, |walks| walks.parse().expect("RDMAKV_WALKS is a number"))
}

/// Walks, then lets all settle: each write ends, and the cluster becomes whole.
fn walks_are_linearizable(shape: &Shape, steps: u32) {
    let mut writes = 0;
    for seed in 0..walks() {
        let mut world = walk(shape, seed, steps);
        assert_eq!(world.violation(), None, "seed {seed}");
        writes += world.writes();
        let ends = settle(shape, &mut world, seed);
        assert!(ends, "seed {seed}: {:?} {:?}", world.violation(), world.actions(shape));
    }
    assert!(writes >= 25, "only {writes} writes");
}

#[test]
fn walks_of_copies_are_linearizable() {
    walks_are_linearizable(&LARGE, 1000);
}

#[test]
fn walks_of_staged_copies_are_linearizable() {
    walks_are_linearizable(&Shape { staged: true, ..LARGE }, 1000);
}

#[test]
fn walks_of_fragments_are_linearizable() {
    walks_are_linearizable(&CODED, 1000);
    walks_are_linearizable(&WIDE, 4000);
}

#[test]
fn walks_of_reads_by_tags_are_linearizable() {
    walks_are_linearizable(&TAGGED, 2000);
    let reads: u64 = (0..walks()).map(|seed| walk(&TAGGED, seed, 2000).reads_by_tag()).sum();
    assert!(reads >= 25, "only {reads} reads");
}

#[test]
fn walks_find_planted_faults_of_tags() {
    for fault in ["dead-primary-believed", "versions-mixed"] {
        assert!(found(&TAGGED, fault, 600).is_some(), "{fault}");
    }
    // One that was the primary, and holds the same piece in a later epoch.
    let shape = Shape { servers: 4, policy: Policy::Code { data: 2, parity: 1 }, losses: 1, ..TAGGED };
    assert!(found(&shape, "not-covered", 600).is_some());
}

#[test]
fn walks_find_planted_faults() {
    for fault in [
        "no-fence",
        "no-fence-after-skip",
        "publish-before-sealed",
        "tag-past-right",
        "ambiguous-not-completed",
        "no-refuse",
    ] {
        assert!(found(&LARGE, fault, 600).is_some(), "{fault}");
    }
    assert!(found(&FLUSHED, "flushed-kept", 600).is_some());
}

#[test]
fn walks_with_flushes_are_linearizable() {
    walks_are_linearizable(&FLUSHED, 1000);
    walks_are_linearizable(&Shape { policy: Policy::Copies(3), staged: true, losses: 2, ..FLUSHED }, 1000);
}

#[test]
fn walks_with_deletions_are_linearizable() {
    walks_are_linearizable(&Shape { deletes: true, ..LARGE }, 1000);
}
