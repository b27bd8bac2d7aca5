//! Worlds of [`crate::model`], explored and walked through, and the faults that this must find.
//!
//! `RDMAKV_WALK=SEED` prints a walk's steps, and `RDMAKV_WALKS=N` walks more often than 300 times.

use stateright::{Checker, Model, Property};

use crate::dice::Dice;
use crate::faults;
use crate::model::{Action, Operation, Shape, World};

const ALL: &[Operation] = &[
    Operation::Write(0),
    Operation::Write(1),
    Operation::Rename(0, 1),
    Operation::Rename(1, 0),
    Operation::Unlink(0),
    Operation::Unlink(1),
];

/// Two mounts that do anything to two names, of which any may die, with a server.
const LARGE: Shape =
    Shape { operations: 5, dead_mounts: 2, loses_server: true, room: None, spills: false, choices: ALL };

/// The same with room for a file and a half.
const TIGHT: Shape = Shape { room: Some(3), ..LARGE };

/// The same, with mounts that write to the backing what servers have no room for.
const SPILLING: Shape = Shape { spills: true, ..TIGHT };

/// One file that spills.
const SPILLED: Shape = Shape { room: Some(1), spills: true, ..WRITTEN };

/// One file that comes and goes.
const ONE: Shape = Shape { operations: 4, choices: &[Operation::Write(0), Operation::Unlink(0)], ..LARGE };

/// One file, written by a mount that may die at once.
const WRITTEN: Shape = Shape { operations: 2, choices: &[Operation::Write(0)], ..LARGE };

/// One file, written once by each mount.
const SMALL: Shape = Shape { operations: 1, dead_mounts: 1, choices: &[Operation::Write(0)], ..LARGE };

/// All states of a small world.
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
        next.step(action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("safe", |_, world: &World| world.violation().is_none())]
    }
}

/// Takes steps at random. Returns the world after them, or after a violation.
fn walk(shape: &Shape, seed: u64, steps: u32) -> World {
    let mut dice = Dice(seed);
    let mut world = World::new(shape);
    let shows = std::env::var("RDMAKV_WALK").is_ok_and(|shown| shown == seed.to_string());
    for _ in 0..steps {
        let mut actions = world.actions(shape);
        // Losses are rare, and so is what may happen at any time.
        let is_rare = |action: &Action| {
            matches!(action, Action::Remove(_) | Action::KillServer(_) | Action::KillMount(_) | Action::Expire(_))
                || matches!(action, Action::Late(_) | Action::Evict(_) | Action::GiveUp(_))
        };
        let rare = dice.below(24) == 0;
        let (chosen, others): (Vec<Action>, Vec<Action>) = actions.iter().partition(|action| is_rare(action) == rare);
        actions = if chosen.is_empty() { others } else { chosen };
        if actions.is_empty() {
            break;
        }
        let action = actions[dice.below(actions.len() as u64) as usize];
        if shows {
            eprintln!("{action:?}");
        }
        world.step(action);
        if world.violation().is_some() {
            break;
        }
    }
    world
}

/// Lets mounts end, and agents and servers go on, without new operations and losses. Returns whether the backing shows all.
fn settle(world: &mut World, seed: u64) -> bool {
    let mut dice = Dice(seed);
    let shape = Shape { operations: 0, dead_mounts: 0, loses_server: false, choices: &[], ..LARGE };
    // A server that was killed is removed.
    let losing = Shape { loses_server: true, ..shape.clone() };
    let is_dead = |action: &Action| matches!(action, Action::Remove(at) if world.is_dead(*at));
    if let Some(removal) = world.actions(&losing).into_iter().find(is_dead) {
        world.step(removal);
    }
    for _ in 0..3000 {
        let mut actions = world.actions(&shape);
        actions.retain(|action| !matches!(action, Action::KillMount(_) | Action::Evict(_)));
        if actions.is_empty() || world.is_persisted() && world.is_idle() {
            break;
        }
        world.step(actions[dice.below(actions.len() as u64) as usize]);
        if world.violation().is_some() {
            return false;
        }
    }
    world.is_persisted()
}

/// Returns how many walks a test takes.
fn walks() -> u64 {
    std::env::var("RDMAKV_WALKS").map_or(300, |walks| walks.parse().expect("RDMAKV_WALKS is a number"))
}

fn end_persisted(shape: &Shape) {
    let mut published = 0;
    for seed in 0..walks() {
        let mut world = walk(shape, seed, 400);
        assert_eq!(world.violation(), None, "seed {seed}");
        let is_persisted = settle(&mut world, seed);
        assert!(is_persisted, "seed {seed}: {:?} {:?}", world.violation(), world.actions(shape));
        published += world.published();
    }
    assert!(u64::from(published) > walks(), "only {published} names were published");
}

#[test]
fn walks_lose_no_bytes_and_end_persisted() {
    end_persisted(&LARGE);
}

#[test]
fn writers_that_wait_for_room_end_persisted() {
    end_persisted(&TIGHT);
}

#[test]
fn writers_that_spill_end_persisted() {
    end_persisted(&SPILLING);
}

#[test]
fn small_worlds_lose_no_bytes() {
    let checker = Explored(SMALL).checker().threads(2).target_state_count(40_000).spawn_bfs().join();
    let violation = checker.discovery("safe").and_then(|path| path.last_state().violation());
    assert_eq!(violation, None);
}

/// Takes long: run it by name, in a release build.
#[test]
#[ignore = "explores five million states"]
fn explores_small_worlds_for_long() {
    let checker = Explored(SMALL).checker().threads(2).target_state_count(5_000_000).spawn_bfs().join();
    let violation = checker.discovery("safe").and_then(|path| path.last_state().violation());
    assert_eq!(violation, None);
    println!("{} states", checker.unique_state_count());
}

#[test]
fn walks_find_planted_faults() {
    for fault in [
        "frozen-changed",
        "p-before-fsync",
        "carried-before-sync",
        "finish-with-hole",
        "dirty-evicted",
        "freeze-not-all",
        "no-fence",
        "thawed",
        "spill-not-synced",
        "torn-not-copied",
    ] {
        faults::plant(fault);
        let shapes = [&LARGE, &ONE, &WRITTEN, &SPILLED];
        let shape = |seed: u64| shapes[seed as usize % shapes.len()];
        let found = |seed: u64| walk(shape(seed), seed, 400).violation().map(|violation| (seed, violation));
        let found = (0..6000).find_map(found);
        faults::plant("");
        println!("{fault}: {found:?}");
        assert!(found.is_some(), "{fault}");
    }
}
