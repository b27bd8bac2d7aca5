//! Configurations and placement, through the public interface.

use proptest::prelude::*;
use rdmakv_cluster::config::{ChangeError, Config, Epoch, Incarnation, MAX_SERVERS, Policy, ServerId, State};
use rdmakv_cluster::placement::{Placement, Ring};

fn join(config: &Config, name: &str, run: u64) -> Config {
    config.with_server(name, vec![format!("tcp:{name}")], 1, Incarnation(run)).unwrap()
}

/// A cluster of servers that are all up.
fn cluster(servers: u8) -> Config {
    let joined = (0..servers).fold(Config::new(7), |config, id| join(&config, &format!("s{id}"), u64::from(id)));
    joined.whole().unwrap()
}

#[test]
fn first_server_serves_at_once_others_join() {
    let one = join(&Config::new(7), "s0", 10);
    assert_eq!((one.epoch(), one.servers()[0].state), (Epoch(2), State::Up));
    let two = join(&one, "s1", 11);
    assert_eq!(two.servers()[1].state, State::Joining);
    assert_eq!(Placement::of(&two).group(b"k", 2).serving, [ServerId(0)]);
    assert_eq!(Placement::of(&two).group(b"k", 2).extra, [ServerId(1)]);
    let whole = two.whole().unwrap();
    assert!(whole.is_whole() && whole.servers().iter().all(|server| server.state == State::Up));
    assert_eq!(Placement::of(&whole).group(b"k", 2).extra, []);
}

#[test]
fn a_new_run_takes_its_number_and_joins() {
    let config = cluster(3);
    assert_eq!(config.with_server("s1", vec![], 1, Incarnation(1)), Err(ChangeError::RunTaken));
    let back = join(&config, "s1", 99);
    let server = back.server(ServerId(1)).unwrap();
    assert_eq!((server.incarnation, server.state), (Incarnation(99), State::Joining));
    assert!(back.incarnation(Incarnation(1)).is_none());
}

#[test]
fn a_draining_server_serves_until_whole() {
    let config = cluster(4);
    let key = b"k";
    let leaving = Placement::of(&config).primary(key).unwrap();
    let draining = config.draining(leaving).unwrap();
    let group = Placement::of(&draining).group(key, 2);
    assert_eq!((group.primary(), group.extra.len()), (Some(leaving), 1));
    let left = draining.whole().unwrap();
    assert!(left.server(leaving).is_none());
    let after = Placement::of(&left).group(key, 2);
    assert_eq!(after.serving, [group.serving[1], group.extra[0]]);
}

#[test]
fn a_joining_server_does_not_drain() {
    let config = join(&cluster(2), "s2", 9);
    assert_eq!(config.draining(ServerId(2)), Err(ChangeError::Joining));
    assert!(config.whole().unwrap().draining(ServerId(2)).is_ok());
}

#[test]
fn the_last_server_stays_though_it_drains() {
    let config = cluster(2);
    let drains = config.draining(ServerId(0)).unwrap().without_server(ServerId(1)).unwrap();
    let whole = drains.whole().unwrap();
    let states: Vec<_> = whole.servers().iter().map(|server| (server.id, server.state)).collect();
    assert_eq!(states, [(ServerId(0), State::Up)]);
}

#[test]
fn forgets_the_server_that_others_wait_for_alone() {
    let one = cluster(1).whole().unwrap();
    let joined = join(&one, "s1", 8);
    let forgot = joined.forget(ServerId(0)).unwrap();
    assert_eq!((forgot.servers().len(), forgot.flushed(), forgot.is_whole()), (1, forgot.epoch(), false));
    assert_eq!(forgot.whole().unwrap().servers()[0].state, State::Up);
    // The first server of an empty cluster serves at once.
    assert_eq!(join(&one.forget(ServerId(0)).unwrap(), "s2", 9).servers()[0].state, State::Up);
    for (config, id, error) in [
        (&joined, 1, ChangeError::NotAwaited),
        (&joined, 7, ChangeError::Unknown),
        (&joined.whole().unwrap(), 0, ChangeError::NotAwaited),
    ] {
        assert_eq!(config.forget(ServerId(id)), Err(error));
    }
}

#[test]
fn refuses_changes_without_sense() {
    let config = cluster(2);
    assert_eq!(config.without_server(ServerId(9)), Err(ChangeError::Unknown));
    assert_eq!(config.draining(ServerId(9)), Err(ChangeError::Unknown));
    assert_eq!(config.with_server("x", vec![], 0, Incarnation(9)), Err(ChangeError::NoWeight));
    for policy in [Policy::Copies(1), Policy::Copies(65), Policy::Code { data: 1, parity: 2 }] {
        assert_eq!(config.with_policy(b"", policy), Err(ChangeError::Policy));
    }
    let full = cluster(MAX_SERVERS as u8);
    assert_eq!(full.with_server("x", vec![], 1, Incarnation(99)), Err(ChangeError::Full));
}

#[test]
fn the_longest_prefix_has_the_policy() {
    let config = cluster(3).with_policy(b"a", Policy::Copies(3)).unwrap();
    let config = config.with_policy(b"ab", Policy::Code { data: 2, parity: 1 }).unwrap();
    let config = config.with_policy(b"abc", Policy::None).unwrap();
    let sizes = [&b"b"[..], b"a", b"ac", b"ab1", b"abcd"].map(|key| config.policy(key).group_size());
    assert_eq!(sizes, [1, 3, 3, 3, 1]);
    assert_eq!(config.with_policy(b"a", Policy::Copies(2)).unwrap().policy(b"a"), Policy::Copies(2));
}

#[test]
fn groups_of_fragments_do_not_get_too_small() {
    let code = |data, parity| Policy::Code { data, parity };
    let config = cluster(3).with_policy(b"a", code(4, 2)).unwrap();
    for (prefix, policy, expected) in [
        (&b"a"[..], Policy::Copies(3), Err(ChangeError::Fragments)),
        (b"ab", code(2, 1), Err(ChangeError::Fragments)),
        (b"a", code(3, 4), Err(ChangeError::Fragments)),
        (b"a", code(4, 1), Ok(())),
        (b"a", code(6, 3), Ok(())),
        (b"a", Policy::None, Ok(())),
        (b"b", Policy::Copies(2), Ok(())),
    ] {
        assert_eq!(config.with_policy(prefix, policy).map(drop), expected, "{policy}");
    }
    let dropped = config.with_policy(b"a", Policy::None).unwrap();
    assert!(dropped.with_policy(b"a", Policy::Copies(3)).is_ok());
}

#[test]
fn names_and_addresses_are_words() {
    let config = cluster(1);
    let join =
        |name: &str, address: &str| config.with_server(name, vec![address.to_owned()], 1, Incarnation(9)).map(drop);
    assert_eq!(join("tcp:h:1", "tcp:h:1"), Ok(()));
    for name in ["", "1", "0063", "a b", "a\u{1b}[2J"] {
        assert_eq!(join(name, "tcp:h:1"), Err(ChangeError::Name), "{name:?}");
    }
    for address in ["", "tcp:h 1", "tcp:\u{1b}[2J", "tcp:\u{9b}"] {
        assert_eq!(join("a", address), Err(ChangeError::Addresses), "{address:?}");
    }
}

#[test]
fn fewer_servers_still_lose_as_many() {
    let code = Policy::Code { data: 4, parity: 2 };
    let shrunk = [6, 5, 4, 3, 2, 1].map(|live| code.shrunk_to(live));
    let code = |data| Some(Policy::Code { data, parity: 2 });
    assert_eq!(shrunk, [code(4), code(3), code(2), Some(Policy::Copies(3)), Some(Policy::Copies(2)), None]);
    assert_eq!(Policy::Copies(3).shrunk_to(2), Some(Policy::Copies(2)));
    assert_eq!(Policy::Copies(3).shrunk_to(1), None);
}

#[test]
fn the_past_reaches_back_to_the_last_whole_epoch() {
    let whole = cluster(3);
    let first = whole.epoch().0;
    assert!(whole.past().iter().any(|members| members.epoch.0 == first - 1), "for those that adopt the whole epoch");
    let later = whole.without_server(ServerId(0)).unwrap().flush().unwrap();
    assert_eq!(later.past().iter().map(|members| members.epoch.0).collect::<Vec<_>>(), [first, first + 1]);
    assert_eq!(later.flushed(), later.epoch());
}

#[test]
fn another_cluster_never_supersedes() {
    let (ours, theirs) = (cluster(2), Config::new(8));
    assert!(ours.supersedes(&Config::new(7)) && !Config::new(7).supersedes(&ours) && !ours.supersedes(&ours));
    assert!(!ours.supersedes(&theirs));
}

/// Clients of any release have to agree where keys are.
#[test]
fn places_never_change() {
    let ring = Ring::of([(ServerId(0), "a", 1), (ServerId(1), "b", 2), (ServerId(2), "c", 1)]);
    let groups = ["", "k", "key-1", "key-2", "key-3", "key-4"].map(|key| ring.group(key.as_bytes(), 3));
    let of = |ids: [u8; 3]| ids.map(ServerId).to_vec();
    assert_eq!(groups, GROUPS.map(of));
}

const GROUPS: [[u8; 3]; 6] = [[1, 2, 0], [1, 2, 0], [1, 0, 2], [1, 0, 2], [2, 0, 1], [1, 0, 2]];

#[test]
fn weights_share_the_keys() {
    let ring = Ring::of([(ServerId(0), "a", 1), (ServerId(1), "b", 3)]);
    let second = (0..4000).filter(|key| ring.primary(format!("key-{key}").as_bytes()) == Some(ServerId(1))).count();
    assert!((2700..3300).contains(&second), "three quarters: {second}");
}

proptest! {
    /// A server that is lost changes no group but its own, and the next of these steps in last.
    #[test]
    fn losing_a_server_moves_only_its_keys(servers in 2_u8..12, lost in 0_u8..12, size in 1_usize..7, key: Vec<u8>) {
        let config = cluster(servers);
        let lost = ServerId(lost % servers);
        let before = Placement::of(&config).group(&key, size);
        let after = Placement::of(&config.without_server(lost).unwrap()).group(&key, size);
        let kept: Vec<_> = before.serving.iter().copied().filter(|&server| server != lost).collect();
        prop_assert_eq!(&after.serving[..kept.len()], &kept[..]);
        prop_assert!(after.serving.len() == size.min(usize::from(servers) - 1) && after.extra.is_empty());
        prop_assert_eq!(Placement::of(&config).primary(&key), before.primary());
    }

    /// A member of the next whole epoch takes writes before it, when servers join or drain.
    #[test]
    fn next_members_take_writes_before(servers in 2_u8..9, drained in 0_u8..9, joins in 0_u8..4, size in 1_usize..5,
        key: Vec<u8>) {
        let config = cluster(servers).draining(ServerId(drained % servers)).unwrap();
        let config = (0..joins).fold(config, |config, run| join(&config, &format!("n{run}"), 100 + u64::from(run)));
        let group = Placement::of(&config).group(&key, size);
        let next = Placement::of(&config.whole().unwrap()).group(&key, size);
        prop_assert!(next.serving.iter().all(|&server| group.has(server)));
        prop_assert!(next.extra.is_empty());
    }
}
