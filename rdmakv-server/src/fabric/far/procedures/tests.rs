//! Procedures over regions of two servers, against plain loops over the whole memory.

use super::*;
use proptest::prelude::*;
use rdmakv_proto::far::procedures::{Bucket, Cas64, ENTRY, Filter, Walk};

pub(super) const REGION: usize = 1024;
pub(super) const REGIONS: usize = 8;
pub(super) const SIZE: usize = REGION * REGIONS;

/// A memory, as one of its servers sees it.
struct Seen<'a> {
    bytes: &'a mut [u8],
    owners: &'a [u8],
    server: u8,
    frozen: Option<usize>,
}

impl Space for Seen<'_> {
    fn here(&mut self, at: u64, length: usize) -> usize {
        let of = |at: usize| self.owners.get(at / REGION) == Some(&self.server);
        (at as usize..).take(length).take_while(|&at| of(at)).count()
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        let is_here = self.here(at, into.len()) == into.len();
        if is_here {
            into.copy_from_slice(&self.bytes[at as usize..][..into.len()]);
        }
        is_here
    }

    fn cas64(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Miss> {
        if self.here(at, 8) < 8 {
            return Err(Miss::Elsewhere);
        }
        if self.frozen == Some(at as usize / REGION) {
            return Err(Miss::Frozen);
        }
        let place = &mut self.bytes[at as usize..][..8];
        let was = u64::from_le_bytes(place.try_into().unwrap());
        if was == old {
            place.copy_from_slice(&new.to_le_bytes());
        }
        Ok(was)
    }
}

/// Runs a procedure as a client does: it follows it from server to server.
pub(super) fn run_all(
    of: &Procedure,
    bytes: &mut [u8],
    owners: &[u8],
    steps: u32,
    limits: &Limits,
) -> (End, Vec<u8>, Procedure) {
    let (mut of, mut spent, mut reply) = (of.clone(), Spent::default(), Vec::new());
    let mut at = of.at();
    loop {
        let Some(&server) = owners.get(at as usize / REGION) else {
            return (End { status: RunStatus::Failed, at }, reply, of);
        };
        let mut seen = Seen { bytes: &mut *bytes, owners, server, frozen: None };
        let end = loop {
            // Between steps it is nothing but its arguments.
            let mut arguments = Vec::new();
            of.encode(&mut arguments);
            assert_eq!(Procedure::decode(of.number(), &arguments).as_ref(), Ok(&of));
            if let Some(end) = take_steps(&mut of, &mut seen, (&mut spent, limits), &mut reply, steps) {
                break end;
            }
        };
        assert!(reply.len() <= limits.reply as usize && spent.bytes <= limits.bytes);
        assert_eq!(spent.replied as usize, reply.len());
        if end.status != RunStatus::Elsewhere {
            return (end, reply, of);
        }
        at = end.at;
        spent.hops += 1;
    }
}

pub(super) fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub(super) const WIDE: Limits = Limits { hops: 1000, ..LIMITS };

fn done(at: u64) -> End {
    End { status: RunStatus::Done, at }
}

/// Nodes of 64 bytes: the pointer at 8, the key at 16.
fn plain_walk(bytes: &[u8], mut at: u64, nodes: u32, key: &[u8]) -> u64 {
    for left in (0..nodes).rev() {
        let node = &bytes[at as usize..][..64];
        let next = get(node, 8);
        let is_last = left == 0 || next == 0;
        if if key.is_empty() { is_last } else { node[16..].starts_with(key) } {
            return at;
        }
        if is_last {
            return 0;
        }
        at = next;
    }
    0
}

fn owners() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..2_u8, REGIONS)
}

proptest! {
    #[test]
    fn walks_find_what_a_plain_loop_finds(
        owners in owners(), next in prop::collection::vec(0..SIZE as u64 / 64, SIZE / 64),
        keys in prop::collection::vec(0..20_u8, SIZE / 64),
        first in 0..SIZE as u64 / 64, nodes in 1..200_u32, key in 0..22_u8, steps in 1..70_u32,
    ) {
        let mut bytes = vec![0; SIZE];
        for (node, (next, key)) in next.iter().zip(keys).enumerate() {
            put(&mut bytes, node * 64 + 8, next * 64);
            bytes[node * 64 + 16] = key;
        }
        let key = if key == 21 { Vec::new() } else { vec![key] };
        let expected = plain_walk(&bytes, first * 64, nodes, &key);
        let walk = Walk { at: first * 64, next: 8, key_at: 16, nodes, length: 64, key: key.clone() };
        let (end, reply, _) = run_all(&Procedure::Walk(walk), &mut bytes, &owners, steps, &WIDE);
        prop_assert_eq!(end, done(expected));
        // A node at 0 may be found, too, if the walk begins there.
        if expected != 0 {
            prop_assert_eq!(&reply, &bytes[expected as usize..][..64]);
        }
    }

    #[test]
    fn buckets_find_what_a_plain_loop_finds(
        owners in owners(), entries in prop::collection::vec((0..3_u64, 0..100_u64, 0..3_u8), 0..20), steps in 1..5_u32,
    ) {
        let mut bytes = vec![0; SIZE];
        let at = 2 * REGION;
        let item = |number: u64| if number == 0 { 0 } else { 3 * REGION as u64 + number * 32 };
        for (entry, &(hash, number, key)) in entries.iter().enumerate() {
            put(&mut bytes, at + entry * ENTRY, hash);
            put(&mut bytes, at + entry * ENTRY + 8, item(number));
            if number != 0 {
                bytes[item(number) as usize + 10] = key;
            }
        }
        let found = entries.iter().find(|(hash, number, _)| {
            *hash == 1 && *number != 0 && bytes[item(*number) as usize + 10] == 2
        });
        let expected = found.map_or(0, |&(_, number, _)| item(number));
        let of = Bucket { at: at as u64, entries: entries.len() as u32, first: 0, hash: 1, key_at: 10, length: 32, item: 0, key: vec![2] };
        let (end, reply, _) = run_all(&Procedure::Bucket(of), &mut bytes, &owners, steps, &WIDE);
        prop_assert_eq!(end, done(expected));
        let whole: &[u8] = if expected == 0 { b"" } else { &bytes[expected as usize..][..32] };
        prop_assert_eq!(&reply[..], whole);
    }

    #[test]
    fn filters_find_what_a_plain_loop_finds(
        owners in owners(), numbers in prop::collection::vec((0..8_u64, 0..60_u64), 1..100),
        points in any::<bool>(), steps in 1..5_u32, reply in 32..4097_u32,
    ) {
        let mut bytes: Vec<u8> = (0..SIZE).map(|at| at as u8).collect();
        let at = REGION;
        for (record, &(number, pointer)) in numbers.iter().enumerate() {
            put(&mut bytes, at + record * 32, number);
            put(&mut bytes, at + record * 32 + 8, if pointer < 10 { 0 } else { (4 * REGION) as u64 + pointer * 64 });
        }
        let mut expected = Vec::new();
        for (record, &(number, _)) in numbers.iter().enumerate() {
            let record = at + record * 32;
            let pointer = get(&bytes, record + 8) as usize;
            let from = if points { pointer } else { record };
            if (2..=4).contains(&number) && !(points && pointer == 0) {
                expected.extend_from_slice(&bytes[from + 4..][..16]);
            }
        }
        let pointer = points.then_some(8);
        let records = numbers.len() as u64;
        let mut of = Procedure::Filter(Filter { at: at as u64, records, stride: 32, field: 0, least: 2, greatest: 4, pointer, from: 4, length: 16, found: 0 });
        // A full reply is taken, and it goes on.
        let limits = Limits { reply, ..WIDE };
        let mut replied = Vec::new();
        loop {
            let (end, reply, rest) = run_all(&of, &mut bytes, &owners, steps, &limits);
            replied.extend(reply);
            if end.status != RunStatus::Full {
                prop_assert_eq!(end, done((at + numbers.len() * 32) as u64));
                break;
            }
            of = rest;
        }
        prop_assert_eq!(replied, expected);
    }

    #[test]
    fn any_arguments_end_without_panic(
        owners in owners(), number in 1..5_u32, arguments in prop::collection::vec(0..5_u8, 0..70), noise in any::<u64>(),
    ) {
        let mut bytes: Vec<u8> = (0..SIZE as u64).map(|at| (at.wrapping_mul(noise) >> 60) as u8).collect();
        if let Ok(of) = Procedure::decode(number, &arguments) {
            run_all(&of, &mut bytes, &owners, 7, &LIMITS);
        }
    }
}

fn walk(at: u64, nodes: u32) -> Procedure {
    Procedure::Walk(Walk { at, next: 0, key_at: 0, nodes, length: 8, key: Vec::new() })
}

#[test]
fn endless_walks_end_at_the_limit_of_bytes() {
    let mut bytes = vec![0; SIZE];
    put(&mut bytes, 64, 64);
    let (end, reply, rest) = run_all(&walk(64, u32::MAX), &mut bytes, &[0; REGIONS], 64, &LIMITS);
    assert_eq!((end, reply.len()), (End { status: RunStatus::Bytes, at: 64 }, 0));
    assert_eq!(rest, walk(64, u32::MAX - LIMITS.bytes / 64), "each read costs 64 bytes");
}

#[test]
fn walks_to_and_fro_end_at_the_limit_of_hops() {
    let mut bytes = vec![0; SIZE];
    let there = REGION as u64;
    put(&mut bytes, 64, there);
    put(&mut bytes, REGION, 64);
    let owners = [0, 1, 0, 0, 0, 0, 0, 0];
    let (end, _, rest) = run_all(&walk(64, 1000), &mut bytes, &owners, 64, &LIMITS);
    assert_eq!(end, End { status: RunStatus::Hops, at: there });
    assert_eq!(rest, walk(there, 1000 - 65));
}

#[test]
fn reads_across_servers_fail() {
    let mut bytes = vec![0; SIZE];
    let at = REGION as u64 - 4;
    let owners = [0, 1, 0, 0, 0, 0, 0, 0];
    let (end, ..) = run_all(&walk(at, 1), &mut bytes, &owners, 64, &LIMITS);
    assert_eq!(end, End { status: RunStatus::Failed, at });
    let (end, ..) = run_all(&walk(at, 1), &mut bytes, &[0; REGIONS], 64, &LIMITS);
    assert_eq!(end, done(at), "across regions of one server they do not");
    let (end, ..) = run_all(&walk(u64::MAX - 3, 1), &mut bytes, &owners, 64, &LIMITS);
    assert_eq!(end, End { status: RunStatus::Failed, at: u64::MAX - 3 });
}

#[test]
fn numbers_are_replaced_if_they_are_as_expected() {
    let mut bytes = vec![0; SIZE];
    put(&mut bytes, 72, 5);
    let cas = |old, new| Procedure::Cas64(Cas64 { at: 72, old, new });
    let owners = [0; REGIONS];
    for (old, new, was, is) in [(4, 9, 5, 5), (5, 9, 5, 9), (5, 1, 9, 9)] {
        let (end, reply, _) = run_all(&cas(old, new), &mut bytes, &owners, 1, &LIMITS);
        assert_eq!((end, reply), (done(72), u64::to_le_bytes(was).to_vec()));
        assert_eq!(get(&bytes, 72), is);
    }
    let take = |bytes: &mut Vec<u8>, frozen, replied| {
        let mut seen = Seen { bytes, owners: &owners, server: 0, frozen };
        let mut spent = Spent { replied, ..Spent::default() };
        take_steps(&mut cas(9, 3), &mut seen, (&mut spent, &LIMITS), &mut Vec::new(), 1).unwrap()
    };
    assert_eq!(take(&mut bytes, Some(0), 0), End { status: RunStatus::Frozen, at: 72 });
    assert_eq!(take(&mut bytes, None, LIMITS.reply), End { status: RunStatus::Full, at: 72 });
    assert_eq!(get(&bytes, 72), 9, "neither has written");
}
