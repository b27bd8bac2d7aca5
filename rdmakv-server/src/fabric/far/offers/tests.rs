use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const SECRET: Secret = [7; 16];
const FRESH: Secret = [9; 16];

fn offers(regions: u32) -> Offers {
    let (longest, forward, quarantine) = (3600 * SECOND, 60 * SECOND, 8 * SECOND);
    Offers::new(Settings { regions, longest, forward, quarantine })
}

fn at(seconds: u64, login: u32, connection: u64) -> Caller {
    Caller { now: Duration::from_secs(seconds), login, connection }
}

fn take(memory: u64, regions: u32) -> Take<'static> {
    let duration = 100 * SECOND;
    Take { memory, first: 0, regions, total: 0, epoch: 1, duration, owner: 1, secret: SECRET, name: b"", source: None }
}

fn states(offers: &mut Offers, caller: &Caller, memory: u64) -> Vec<(u32, u32, State)> {
    let list = offers.list(caller, memory, b"", 1, &SECRET, 0).expect("it is there");
    list.entries.iter().map(|entry| (entry.region, entry.epoch, entry.state)).collect()
}

/// Frees all places that were given back.
fn clean(offers: &mut Offers, now: Duration) {
    while let Some(place) = offers.places_mut().next_to_revoke() {
        offers.places_mut().revoked(now, place);
    }
    while let Some(place) = offers.places_mut().next_to_zero(now) {
        offers.places_mut().zeroed(place);
    }
}

#[test]
fn a_login_has_half_of_what_others_leave() {
    let mut offers = offers(16);
    assert_eq!((offers.room(1), offers.room(2)), (8, 8));
    assert_eq!(offers.take(&at(0, 1, 1), &take(1, 9), FRESH), Err(Refused { why: Refusal::NoRoom, room: 8 }));
    offers.take(&at(0, 1, 1), &take(1, 8), FRESH).unwrap();
    assert_eq!((offers.room(1), offers.room(2)), (0, 4));
    offers.take(&at(0, 2, 2), &take(2, 4), FRESH).unwrap();
    assert_eq!([1, 2, 3].map(|login| offers.room(login)), [0, 0, 2]);
    offers.end(&at(1, 1, 1), 1).unwrap();
    assert_eq!([1, 2, 3].map(|login| offers.room(login)), [4, 4, 4], "freed places are not free at once");
    clean(&mut offers, SECOND);
    assert_eq!([1, 2, 3].map(|login| offers.room(login)), [4, 4, 4]);
    clean(&mut offers, 9 * SECOND);
    assert_eq!([1, 2, 3].map(|login| offers.room(login)), [6, 4, 6]);
}

#[test]
fn requests_again_have_the_first_outcome() {
    let (mut offers, caller) = (offers(16), at(0, 1, 1));
    assert_eq!(offers.take(&caller, &Take { secret: [0; 16], ..take(1, 2) }, FRESH), Ok(FRESH));
    assert_eq!(offers.take(&caller, &Take { secret: [0; 16], ..take(1, 2) }, [1; 16]), Ok(FRESH));
    assert_eq!(offers.room(1), 6);
    for _ in 0..2 {
        assert_eq!(offers.freeze(&caller, 1, 0, 1, 77), Ok(Freeze::Done));
    }
    for _ in 0..2 {
        offers.thaw(&caller, 1, 0, 3).unwrap();
    }
    for is_lost in [true, false] {
        assert_eq!(offers.drop_region(&caller, 1, 0, 3, 0), Ok(is_lost), "it counts once");
    }
    let copy = Take { source: Some(77), epoch: 4, regions: 1, ..take(1, 1) };
    let copy = Take { secret: FRESH, ..copy };
    for _ in 0..2 {
        offers.take(&caller, &copy, FRESH).unwrap();
        offers.copied(&caller, 1, 0, 4).unwrap();
    }
    for _ in 0..2 {
        offers.commit(&caller, 1, 0, 4).unwrap();
    }
    for _ in 0..2 {
        offers.map(&caller, 1, 0..1, 4).unwrap();
    }
    offers.commit(&caller, 1, 0, 4).unwrap();
    assert_eq!(offers.list(&caller, 1, b"", 1, &FRESH, 0).unwrap().entries[0].state, State::Live);
    for _ in 0..2 {
        assert_eq!(offers.renew(&caller, 1, 200 * SECOND), Ok(200 * SECOND));
    }
}

#[test]
fn a_region_passes_through_its_states() {
    let (mut a, mut b, caller) = (offers(4), offers(4), at(0, 1, 1));
    a.take(&caller, &take(1, 1), FRESH).unwrap();
    assert_eq!(states(&mut a, &caller, 1), [(0, 1, State::Live)]);
    b.take(&caller, &Take { source: Some(1), epoch: 2, ..take(1, 1) }, FRESH).unwrap();
    assert_eq!(states(&mut b, &caller, 1), [(0, 2, State::Copying)]);
    assert_eq!(b.commit(&caller, 1, 0, 2), Err(Refusal::State.into()), "it is not whole");
    a.freeze(&caller, 1, 0, 1, 2).unwrap();
    assert_eq!(a.freeze(&caller, 1, 0, 1, 3), Err(Refusal::State.into()), "it goes to another server");
    assert_eq!(a.begin_write(1, 0), Err(Refusal::State.into()));
    b.copied(&caller, 1, 0, 2).unwrap();
    b.commit(&caller, 1, 0, 2).unwrap();
    assert_eq!(states(&mut b, &caller, 1), [(0, 2, State::Committed)]);
    assert_eq!(b.begin_write(1, 0), Err(Refusal::State.into()), "procedures wait for the map");
    assert_eq!(b.freeze(&caller, 1, 0, 2, 1), Err(Refusal::State.into()), "the map comes first");
    b.map(&caller, 1, 0..1, 1).unwrap();
    assert_eq!(states(&mut b, &caller, 1), [(0, 2, State::Committed)], "that was an older map");
    b.map(&caller, 1, 0..1, 2).unwrap();
    assert_eq!(states(&mut b, &caller, 1), [(0, 2, State::Live)]);
    assert_eq!(a.drop_region(&caller, 1, 0, 1, 2), Ok(false), "it moved");
    assert_eq!(states(&mut a, &caller, 1), [(0, 1, State::Moved)]);
    assert_eq!(a.thaw(&caller, 1, 0, 3), Err(Refusal::State.into()));
    assert_eq!(a.place(1, 0), None);
    a.expire(59 * SECOND);
    assert_eq!(states(&mut a, &caller, 1).len(), 1);
    a.expire(60 * SECOND);
    assert!(states(&mut a, &caller, 1).is_empty());
}

#[test]
fn older_epochs_change_nothing() {
    let (mut offers, caller) = (offers(4), at(0, 1, 1));
    offers.take(&caller, &Take { epoch: 5, ..take(1, 1) }, FRESH).unwrap();
    let before = offers.clone();
    assert_eq!(offers.take(&caller, &Take { epoch: 4, ..take(1, 1) }, FRESH), Err(Refusal::Stale.into()));
    assert_eq!(
        offers.take(&caller, &Take { epoch: 6, ..take(1, 1) }, FRESH),
        Err(Refusal::State.into()),
        "drop it first"
    );
    assert_eq!(offers.freeze(&caller, 1, 0, 4, 2), Err(Refusal::Stale.into()));
    assert_eq!(offers.commit(&caller, 1, 0, 4), Err(Refusal::Stale.into()));
    assert_eq!(offers.thaw(&caller, 1, 0, 4), Err(Refusal::Stale.into()));
    assert_eq!(offers.drop_region(&caller, 1, 0, 4, 0), Err(Refusal::Stale.into()));
    assert_eq!(offers, before);
}

#[test]
fn memories_have_one_owner_at_a_time() {
    let mut offers = offers(4);
    offers.take(&at(0, 1, 1), &Take { name: b"cache", ..take(1, 1) }, FRESH).unwrap();
    let mut list =
        |caller: Caller, name: &[u8], owner, secret| offers.list(&caller, 1, name, owner, &secret, 0).map(|_| ());
    assert_eq!(list(at(0, 1, 2), b"cache", 1, SECRET), Ok(()), "another connection of the owner");
    assert_eq!(list(at(0, 1, 3), b"cache", 2, SECRET), Err(Refusal::Taken.into()));
    assert_eq!(list(at(0, 1, 3), b"cache", 2, [8; 16]), Err(Refusal::Unknown.into()));
    assert_eq!(list(at(0, 2, 3), b"cache", 2, SECRET), Err(Refusal::Unknown.into()), "another login");
    assert_eq!(list(at(0, 1, 3), b"cash", 2, SECRET), Err(Refusal::Unknown.into()));
    offers.detach(1);
    assert_eq!(offers.list(&at(0, 1, 3), 1, b"", 2, &SECRET, 0).map(drop), Err(Refusal::Taken.into()), "one is left");
    offers.detach(2);
    offers.begin_write(1, 0).unwrap();
    assert_eq!(
        offers.list(&at(0, 1, 3), 1, b"", 2, &SECRET, 0).map(drop),
        Err(Refusal::Taken.into()),
        "a procedure is left"
    );
    offers.end_write(1, 0);
    assert_eq!(offers.list(&at(0, 1, 3), 1, b"", 2, &SECRET, 0).map(|list| list.memory), Ok(1));
    assert_eq!(offers.renew(&at(0, 1, 1), 1, SECOND), Err(Refusal::Unknown.into()), "the former owner's");
    let other = Take { memory: 2, name: b"cache", ..take(2, 1) };
    assert_eq!(offers.take(&at(0, 1, 4), &other, FRESH), Err(Refusal::Taken.into()), "the name is in use");
    assert_eq!(offers.take(&at(0, 2, 4), &other, FRESH), Ok(SECRET), "names are a login's own");
}

#[test]
fn memories_end_at_their_time() {
    let mut offers = offers(4);
    offers.take(&at(0, 1, 1), &take(1, 2), FRESH).unwrap();
    assert_eq!(offers.renew(&at(50, 1, 1), 1, 100 * SECOND), Ok(100 * SECOND));
    assert_eq!(offers.renew(&at(60, 1, 1), 1, SECOND), Ok(90 * SECOND), "it does not get shorter");
    assert_eq!(offers.renew(&at(60, 1, 1), 1, Duration::MAX), Ok(3600 * SECOND), "nor longer than the longest");
    assert!(offers.expire(3659 * SECOND).is_empty());
    offers.begin_write(1, 0).unwrap();
    assert!(offers.expire(3660 * SECOND).is_empty(), "a procedure writes");
    offers.end_write(1, 0);
    assert_eq!(offers.expire(3660 * SECOND), [1]);
    assert_eq!(offers.list(&at(3660, 1, 1), 1, b"", 1, &SECRET, 0).map(drop), Err(Refusal::Unknown.into()));
    assert_eq!(offers.places().free_count(), 2);
    clean(&mut offers, 3660 * SECOND);
    clean(&mut offers, 3668 * SECOND);
    assert_eq!(offers.places().free_count(), 4);
}

#[test]
fn freezing_waits_for_procedures() {
    let (mut offers, caller) = (offers(4), at(0, 1, 1));
    offers.take(&caller, &take(1, 1), FRESH).unwrap();
    assert_eq!(offers.begin_write(1, 0), Ok(0));
    assert_eq!(offers.freeze(&caller, 1, 0, 1, 2), Ok(Freeze::Writing(1)));
    assert_eq!(offers.begin_write(1, 0), Err(Refusal::State.into()), "no other one begins");
    assert_eq!(offers.drop_region(&caller, 1, 0, 1, 2), Err(Refusal::State.into()));
    offers.end_write(1, 0);
    assert_eq!(offers.freeze(&caller, 1, 0, 1, 2), Ok(Freeze::Done));
}

#[test]
fn freezing_waits_for_writes_of_batches() {
    let (mut offers, caller) = (offers(8), at(0, 1, 1));
    offers.take(&caller, &take(1, 2), FRESH).unwrap();
    let accesses = [(0, true), (1, false), (0, true), (7, true)];
    let begun = offers.begin_batch(&caller, 1, &accesses).unwrap();
    assert_eq!(begun, [Ok(0), Ok(1), Ok(0), Err(Refusal::Unknown)]);
    assert_eq!(offers.freeze(&caller, 1, 0, 1, 2), Ok(Freeze::Writing(2)));
    assert_eq!(offers.freeze(&caller, 1, 1, 1, 2), Ok(Freeze::Done), "it is only read");
    assert_eq!(offers.drop_region(&caller, 1, 0, 1, 2), Err(Refusal::State.into()));
    assert_eq!(offers.end(&caller, 1), Err(Refusal::State.into()));
    for left in [1, 0] {
        offers.end_write(1, 0);
        let expected = if left == 0 { Freeze::Done } else { Freeze::Writing(left) };
        assert_eq!(offers.freeze(&caller, 1, 0, 1, 2), Ok(expected));
    }
    let refused = offers.begin_batch(&caller, 1, &[(0, true), (0, false)]).unwrap();
    assert_eq!(refused, [Err(Refusal::State), Ok(0)], "a write is refused from then on");
    assert_eq!(offers.freeze(&caller, 1, 0, 1, 2), Ok(Freeze::Done), "and not counted");
    // Before its map has come: its client writes to a region by then.
    offers.take(&caller, &Take { first: 3, regions: 1, epoch: 2, source: Some(5), ..take(1, 1) }, FRESH).unwrap();
    offers.copied(&caller, 1, 3, 2).unwrap();
    offers.commit(&caller, 1, 3, 2).unwrap();
    assert_eq!(offers.begin_batch(&caller, 1, &[(3, true)]).unwrap(), [Ok(2)]);
}

#[test]
fn frozen_regions_are_not_read_or_dropped() {
    let (mut offers, caller) = (offers(4), at(0, 1, 1));
    offers.take(&caller, &take(1, 1), FRESH).unwrap();
    assert_eq!(offers.begin_read(&caller, 1, 0), Ok(0));
    assert_eq!(offers.begin_read(&at(0, 1, 2), 1, 0), Err(Refusal::Unknown.into()), "another's");
    assert_eq!(offers.freeze(&caller, 1, 0, 1, 2), Ok(Freeze::Done), "reads go on");
    assert_eq!(offers.begin_read(&caller, 1, 0), Err(Refusal::State.into()), "it may be newer at the other server");
    assert_eq!(offers.drop_region(&caller, 1, 0, 1, 2), Err(Refusal::State.into()));
    assert_eq!(offers.frozen(1, 0, 1), None);
    offers.end_read(1, 0);
    assert_eq!(offers.frozen(1, 0, 1), Some(0));
    assert_eq!(offers.drop_region(&caller, 1, 0, 1, 2), Ok(false));
}

#[test]
fn lists_count_regions_of_all_servers() {
    let (mut offers, caller) = (offers(8), at(0, 1, 1));
    let mut total = |taken| {
        offers.take(&caller, &taken, FRESH).unwrap();
        offers.list(&caller, 1, b"", 1, &SECRET, 0).unwrap().total
    };
    assert_eq!(total(take(1, 1)), 0, "a client that does not tell");
    assert_eq!(total(Take { total: 20, ..take(1, 1) }), 20);
    let copy = Take { first: 9, epoch: 2, source: Some(3), total: 20, ..take(1, 1) };
    assert_eq!(total(copy), 20);
    assert_eq!(total(Take { total: 0, ..copy }), 20, "it is not forgotten");
}

#[test]
fn long_lists_come_in_parts() {
    let mut offers = offers(3 * ENTRIES_MAX as u32);
    let (caller, regions) = (at(0, 1, 1), ENTRIES_MAX as u32 + 1);
    offers.take(&caller, &take(1, regions), FRESH).unwrap();
    let first = offers.list(&caller, 1, b"", 1, &SECRET, 0).unwrap();
    assert_eq!((first.entries.len(), first.more), (ENTRIES_MAX, true));
    let rest = offers.list(&caller, 1, b"", 1, &SECRET, ENTRIES_MAX as u32).unwrap();
    assert_eq!((rest.entries.len(), rest.more), (1, false));
}

proptest! {
    /// Each place is free, of one region, or on its way back; and no login gets more than its part.
    #[test]
    fn places_are_of_one_region_each(steps in prop::collection::vec((0..9_u8, 1..4_u64, 0..6_u32, 1..5_u32), 1..80)) {
        let mut offers = offers(12);
        for (now, (what, memory, region, epoch)) in steps.into_iter().enumerate() {
            let caller = at(now as u64, memory as u32 % 2, memory);
            let source = (what == 1).then_some(4);
            let taken = Take { first: region, epoch, source, ..take(memory, epoch) };
            let room = offers.room(caller.login);
            match what {
                0 | 1 => {
                    let free = offers.places().free_count();
                    let is_taken = offers.take(&caller, &taken, FRESH).is_ok();
                    prop_assert!(!is_taken || free - offers.places().free_count() <= room);
                }
                2 => _ = offers.freeze(&caller, memory, region, epoch, 4),
                3 => _ = offers.copied(&caller, memory, region, epoch).and_then(|()| offers.commit(&caller, memory, region, epoch)),
                4 => _ = offers.thaw(&caller, memory, region, epoch),
                5 => _ = offers.drop_region(&caller, memory, region, epoch, u64::from(epoch % 2)),
                6 => _ = offers.end(&caller, memory),
                7 => clean(&mut offers, caller.now),
                _ => _ = offers.expire(caller.now),
            }
            let mut held = std::collections::BTreeSet::new();
            for memory in 1..4 {
                for place in (0..12).filter_map(|region| offers.place(memory, region)) {
                    prop_assert!(place < 12 && held.insert(place), "place {place} has two regions");
                }
            }
            prop_assert!(held.len() as u32 + offers.places().free_count() <= 12);
        }
        (1..4).for_each(|memory| _ = offers.end(&at(0, memory as u32 % 2, memory), memory));
        offers.expire(Duration::MAX);
        clean(&mut offers, Duration::ZERO);
        clean(&mut offers, Duration::MAX);
        prop_assert_eq!(offers.places().free_count(), 12, "all come back");
    }
}

#[test]
fn memories_of_one_login_leave_half_to_others() {
    let mut offers = offers(16);
    for memory in 0..=MEMORIES_MAX as u64 {
        let _ = offers.take(&at(0, 1, 1), &take(memory, 0), FRESH);
    }
    let other = offers.take(&at(1, 2, 2), &take(1 << 40, 1), FRESH);
    assert!(other.is_ok(), "{other:?}, with room for {}", offers.room(2));
}
