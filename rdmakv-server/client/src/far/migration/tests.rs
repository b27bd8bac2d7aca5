use super::*;

const FROM: Target = Target { server: 1, epoch: 7 };
const TO: ServerId = 2;
const NOW: Duration = Duration::ZERO;
const BUSY: u64 = 0;
const QUIET: u64 = u64::MAX;

fn begun() -> (Table, Migration) {
    let mut table = Table::new(3 << 20, 1 << 20, FROM).unwrap();
    let migration = Migration::new(&mut table, 1, TO).expect("it can move");
    (table, migration)
}

/// Answers requests until one of this kind is next, and returns that.
fn until(table: &mut Table, migration: &mut Migration, call: Call) -> Ask {
    for _ in 0..20 {
        let Step::Ask(ask) = migration.poll(QUIET) else { panic!("it ended before {call:?}") };
        if ask.call == call {
            return ask;
        }
        migration.answered(table, NOW, &ask, Ok(&[]));
    }
    panic!("{call:?} never came")
}

#[test]
fn a_move_asks_in_order() {
    let (mut table, mut migration) = begun();
    assert_eq!(migration.poll(BUSY), Step::Wait, "writes of before are not marked");
    let mut asked = Vec::new();
    while let Step::Ask(ask) = migration.poll(QUIET) {
        asked.push((ask.server, ask.epoch, ask.call));
        assert_eq!(migration.poll(QUIET), Step::Ask(ask), "the same, until it is answered");
        migration.answered(&mut table, NOW, &ask, Ok(&[2]));
    }
    let expected = [
        (1, 7, Call::Tags),
        (2, 8, Call::Take { source: 1 }),
        (2, 8, Call::Pull { is_last: false }),
        (1, 7, Call::Freeze { to: 2 }),
        (2, 8, Call::Pull { is_last: true }),
        (2, 8, Call::Commit),
        (2, 8, Call::Map),
        (1, 7, Call::Drop { to: 2 }),
    ];
    assert_eq!(asked, expected);
    assert_eq!(migration.poll(QUIET), Step::Done(Outcome::At(2)));
    assert_eq!(table.target(1), Some(Target { server: 2, epoch: 8 }));
    assert_eq!(table.target(0), Some(FROM));
}

#[test]
fn steps_wait_for_older_accesses() {
    let (mut table, mut migration) = begun();
    until(&mut table, &mut migration, Call::Pull { is_last: false });
    let Step::Ask(copied) = migration.poll(QUIET) else { panic!("it asks") };
    migration.answered(&mut table, NOW, &copied, Ok(&[]));
    let paused = table.change();
    assert_eq!(migration.poll(paused - 1), Step::Wait, "a write may be under way");
    assert!(matches!(migration.poll(paused), Step::Ask(Ask { call: Call::Freeze { .. }, .. })));
    let map = until(&mut table, &mut migration, Call::Map);
    migration.answered(&mut table, NOW, &map, Ok(&[]));
    let placed = table.change();
    assert_eq!(migration.poll(placed - 1), Step::Wait, "a read may be under way");
    assert!(matches!(migration.poll(placed), Step::Ask(Ask { call: Call::Drop { .. }, .. })));
}

#[test]
fn refused_copies_leave_the_region_as_it_was() {
    let (mut table, mut migration) = begun();
    let take = until(&mut table, &mut migration, Call::Take { source: 1 });
    migration.answered(&mut table, NOW, &take, Err(Refusal::NoRoom));
    let drop = until(&mut table, &mut migration, Call::Drop { to: 0 });
    assert_eq!((drop.server, drop.epoch), (2, 8));
    migration.answered(&mut table, NOW, &drop, Err(Refusal::Unknown));
    assert_eq!(migration.poll(QUIET), Step::Done(Outcome::Stayed(Some(Refusal::NoRoom))));
    assert_eq!(table.target(1), Some(FROM));
}

#[test]
fn a_move_can_be_given_up_until_commit() {
    let (mut table, mut migration) = begun();
    until(&mut table, &mut migration, Call::Pull { is_last: true });
    assert!(migration.give_up(&mut table));
    let thaw = until(&mut table, &mut migration, Call::Thaw);
    assert_eq!((thaw.server, thaw.epoch), (1, 9));
    assert!(table.write(1, 8).is_ok_and(|route| route == crate::far::table::WriteRoute::Wait), "not before the answer");
    until(&mut table, &mut migration, Call::Drop { to: 0 });
    assert_eq!(table.target(1), Some(Target { server: 1, epoch: 9 }));
    let (mut table, mut migration) = begun();
    until(&mut table, &mut migration, Call::Commit);
    assert!(!migration.give_up(&mut table));
}

#[test]
fn a_part_that_is_still_used_can_be_left() {
    let (mut table, mut migration) = begun();
    assert_eq!(migration.leave(), None, "all of it is at the first server");
    let map = until(&mut table, &mut migration, Call::Map);
    assert_eq!(migration.leave(), None, "the other one waits for its map");
    migration.answered(&mut table, NOW, &map, Ok(&[]));
    let change = table.change();
    let ask = Ask { server: 1, region: 1, epoch: 7, call: Call::Drop { to: 2 } };
    let left = Some((Leftover { ask, change }, Outcome::At(2)));
    assert_eq!(migration.clone().leave(), left, "after the accesses of before");
    until(&mut table, &mut migration, ask.call);
    migration.answered(&mut table, NOW, &ask, Err(Refusal::State));
    assert_eq!(migration.leave(), Some((Leftover { ask, change: 0 }, Outcome::At(2))));
    assert_eq!((migration.poll(BUSY), migration.leave()), (Step::Done(Outcome::At(2)), None));
}

#[test]
fn a_lost_region_is_dropped_in_the_end() {
    let (mut table, mut migration) = begun();
    until(&mut table, &mut migration, Call::Map);
    migration.gone(&mut table, NOW, 2);
    let drop = until(&mut table, &mut migration, Call::Drop { to: 0 });
    assert_eq!((drop.server, drop.epoch), (1, 7));
    migration.answered(&mut table, NOW, &drop, Err(Refusal::State));
    assert_eq!(migration.poll(QUIET), Step::Ask(drop), "procedures read it");
    let change = table.change();
    assert_eq!(migration.leave(), Some((Leftover { ask: drop, change }, Outcome::Lost)));
}

#[test]
fn answers_to_other_requests_change_nothing() {
    let (mut table, mut migration) = begun();
    let take = until(&mut table, &mut migration, Call::Take { source: 1 });
    let before = (table.clone(), migration.clone());
    for call in [Call::Tags, Call::Commit, Call::Take { source: 3 }] {
        migration.answered(&mut table, NOW, &Ask { call, ..take }, Ok(&[]));
        migration.answered(&mut table, NOW, &Ask { call, ..take }, Err(Refusal::State));
    }
    migration.gone(&mut table, NOW, 3);
    assert_eq!((table, migration), before);
}

#[test]
fn both_servers_gone_is_a_loss_in_any_order() {
    for order in [[1, 2], [2, 1]] {
        for steps in 0..9 {
            let (mut table, mut migration) = begun();
            for _ in 0..steps {
                if let Step::Ask(ask) = migration.poll(QUIET) {
                    migration.answered(&mut table, NOW, &ask, Ok(&[]));
                }
            }
            let moved = matches!(migration.poll(QUIET), Step::Done(_));
            order.into_iter().for_each(|server| migration.gone(&mut table, NOW, server));
            match migration.poll(QUIET) {
                Step::Done(Outcome::At(2)) => assert!(moved || order[0] == 1, "after {steps} steps"),
                // The end of a copy: the driver takes the table's regions of a server that is gone for lost.
                Step::Done(Outcome::Stayed(_)) => assert_eq!((order[0], table.target(1)), (2, Some(FROM))),
                step => assert_eq!((step, table.target(1)), (Step::Done(Outcome::Lost), None), "after {steps} steps"),
            }
        }
    }
}

#[test]
fn regions_without_epochs_or_servers_stay() {
    let mut table = Table::new(1 << 20, 1 << 20, FROM).unwrap();
    assert!(Migration::new(&mut table, 0, 1).is_none(), "it is there");
    assert!(Migration::new(&mut table, 1, 2).is_none(), "there is none");
    table.place(0, Target { server: 1, epoch: u32::MAX - 1 });
    assert!(Migration::new(&mut table, 0, 2).is_none(), "no epochs are left");
    table.lose(0, NOW);
    assert!(Migration::new(&mut table, 0, 2).is_none(), "it is lost");
    assert_eq!(epoch_after_loss(7), Some(1 << 16));
    assert_eq!(epoch_after_loss(1 << 16), Some(2 << 16));
    assert_eq!(epoch_after_loss(u32::MAX), None);
}

#[test]
fn an_open_believes_what_cannot_be_older() {
    let entry = |epoch, state, other| Entry { region: 1, epoch, state, other };
    let at = |server, epoch| Found::At { target: Target { server, epoch }, thaw: None, is_unmapped: false };
    let live = (1, entry(7, State::Live, 0));
    let frozen = (1, entry(7, State::Frozen, 2));
    let moved = (1, entry(7, State::Moved, 2));
    let copy = (2, entry(8, State::Copying, 1));
    let committed = (2, entry(8, State::Committed, 1));
    let mapped = (2, entry(8, State::Live, 0));
    let unmapped = Found::At { target: Target { server: 2, epoch: 8 }, thaw: None, is_unmapped: true };
    let thawed = Found::At { target: Target { server: 1, epoch: 9 }, thaw: Some(9), is_unmapped: false };
    assert_eq!(find(&[]), Found::Lost);
    assert_eq!(find(&[live]), at(1, 7));
    assert_eq!(find(&[live, copy]), at(1, 7));
    assert_eq!(find(&[frozen]), Found::Lost, "the other one may have been written");
    assert_eq!(find(&[copy]), Found::Lost);
    assert_eq!(find(&[frozen, copy]), thawed);
    assert_eq!(find(&[committed]), Found::Lost, "the first one may have been thawed");
    assert_eq!(find(&[committed, frozen]), unmapped);
    assert_eq!(find(&[moved, committed]), unmapped);
    assert_eq!(find(&[(1, entry(9, State::Live, 0)), committed]), at(1, 9));
    assert_eq!(find(&[mapped, frozen]), at(2, 8));
    assert_eq!(find(&[mapped]), at(2, 8));
    assert_eq!(find(&[moved]), Found::Lost);
}

#[test]
fn recovery_thaws_or_maps_before_others_forget() {
    let entry = |epoch, state, other| Entry { region: 1, epoch, state, other };
    let cases = [
        ([(1, entry(7, State::Frozen, 2)), (2, entry(8, State::Copying, 1))], Call::Thaw, 1),
        ([(1, entry(7, State::Frozen, 2)), (2, entry(8, State::Committed, 1))], Call::Map, 2),
    ];
    for (entries, first, keeper) in cases {
        let mut table = Table::new(3 << 20, 1 << 20, FROM).unwrap();
        let mut recovery = Recovery::new(&mut table, NOW, 1, &entries);
        let Step::Ask(ask) = recovery.poll() else { panic!("it asks") };
        assert_eq!((ask.server, ask.call), (keeper, first));
        recovery.answered(&mut table, NOW, &ask, Ok(&[]));
        let Step::Ask(ask) = recovery.poll() else { panic!("it asks") };
        assert_eq!((ask.server, ask.call), (3 - keeper, Call::Drop { to: keeper }));
        recovery.answered(&mut table, NOW, &ask, Err(Refusal::Unknown));
        assert_eq!(recovery.poll(), Step::Done(Outcome::At(keeper)));
        assert_eq!(table.target(1).map(|target| target.server), Some(keeper));
        // The same, but the server that has it is gone first.
        let mut recovery = Recovery::new(&mut table, NOW, 1, &entries);
        recovery.gone(&mut table, NOW, keeper);
        let Step::Ask(ask) = recovery.poll() else { panic!("it asks") };
        assert_eq!((ask.server, ask.call), (3 - keeper, Call::Drop { to: 0 }));
        recovery.gone(&mut table, NOW, 3 - keeper);
        assert_eq!((recovery.poll(), table.target(1)), (Step::Done(Outcome::Lost), None));
    }
}
