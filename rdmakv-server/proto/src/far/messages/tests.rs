use super::modules::{MODULES_MAX, NAME_MAX, Stored};
use super::*;
use crate::messages::Kind;
use proptest::prelude::*;

/// Bytes before what follows by verb.
const HEAD: usize = 20;

fn segment() -> RemoteSegment {
    RemoteSegment { address: 0x1000, length: 2 << 20, key: 42 }
}

fn source() -> Source<'static> {
    Source { server: 9, token: [7; 16], address: b"shm:@rdmakv-11211" }
}

/// Each verb, with something in each field.
fn requests(scratch: &mut [Vec<u8>; 2]) -> Vec<Request<'_>> {
    let [runs, servers] = scratch;
    let run = RegionRun { first: 3, regions: 4, epoch: 5, server: 6 };
    let runs = Runs::write(&[run, RegionRun { first: u32::MAX, regions: 0, ..run }], runs);
    let servers = Servers::write(&[source(), Source { address: b"", ..source() }], servers);
    let taken = Verb::Take {
        regions: 64,
        of: 100,
        millis: 7_200_000,
        owner: 11,
        secret: [3; 16],
        name: b"cache",
        source: Some(source()),
    };
    let run = Run { request: 1, procedure: 2, hops: 3, bytes: 4, micros: 5, replied: 6, arguments: b"key" };
    let verbs = [
        Verb::Offer,
        taken,
        Verb::Take { regions: 1, of: 0, millis: 1, owner: 2, secret: [0; 16], name: b"", source: None },
        Verb::Tags { moves: true },
        Verb::Batch { batch: b"a batch" },
        Verb::Renew { millis: 1000 },
        Verb::List { owner: 5, secret: [9; 16], name: b"cache" },
        Verb::Freeze { to: 77 },
        Verb::Pull { is_last: true, marks: &[0b101] },
        Verb::Commit,
        Verb::Thaw,
        Verb::Drop { to: 0 },
        Verb::Map { number: 8, runs, servers },
        Verb::Run(run),
        Verb::Code { length: 100, at: 97, name: b"walk", part: b"end" },
        Verb::End,
        Verb::TagsByToken { token: [4; 16] },
        Verb::Modules,
        Verb::Forget { name: b"walk" },
    ];
    verbs.into_iter().map(|verb| Request { memory: u64::MAX - 1, region: 12, epoch: 13, verb }).collect()
}

fn replies(scratch: &mut [Vec<u8>; 3]) -> Vec<Reply<'_>> {
    let [segments, entries, modules] = scratch;
    let stored = [Stored { name: b"walk", length: 1 }, Stored { name: &[7; NAME_MAX], length: u32::MAX }];
    let modules = Modules::write(stored, modules);
    let read = Segments::write(&[segment(), segment()], segments);
    let entry = Entry { region: 1, epoch: 2, state: State::Frozen, other: 3 };
    let states = [State::Live, State::Committed, State::Copying, State::Frozen, State::Moved];
    let entries = Entries::write(&states.map(|state| Entry { state, ..entry }), entries);
    let answers = [
        Answer::Refused { verb: verb::TAKE, why: Refusal::NoRoom, room: 7 },
        Answer::Refused { verb: verb::PULL, why: Refusal::SourceGone, room: 0 },
        Answer::Refused { verb: verb::FORGET, why: Refusal::NoModule, room: 0 },
        Answer::Offer { server: 5, region_bytes: 16 << 20, longest_millis: 86_400_000, regions: 64, workers: 1 },
        Answer::Take { secret: [3; 16] },
        Answer::Tags { token: [1; 16], read, write: read },
        Answer::Batch { replies: b"replies" },
        Answer::Renew { left_millis: 6 },
        Answer::List { server: 5, left_millis: 6, more: true, total: 0, entries },
        Answer::List { server: 5, left_millis: 6, more: true, total: 1, entries },
        Answer::List { server: 5, left_millis: 6, more: false, total: u32::MAX, entries },
        Answer::Freeze { marks: &[1, 2, 3] },
        Answer::Pull { sum: 0xdead_beef },
        Answer::Commit { read, write: read },
        Answer::Thaw,
        Answer::Drop { sum: 7 },
        Answer::Map,
        Answer::Run(Ran {
            request: 1,
            status: RunStatus::Elsewhere,
            bytes: 2,
            micros: 3,
            at: 4,
            arguments: b"key",
            reply: b"bytes",
        }),
        Answer::Code { length: 4 },
        Answer::Modules { modules },
        Answer::Forget,
        Answer::End,
        Answer::Notice { millis: 30_000 },
    ];
    answers.into_iter().map(|answer| Reply { memory: 1, region: 2, epoch: 3, answer }).collect()
}

fn bytes_of(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

#[test]
fn requests_come_back_as_they_were() {
    let mut scratch = Default::default();
    let all = requests(&mut scratch);
    for request in &all {
        let bytes = bytes_of(|into| request.encode(into));
        assert_eq!(Request::decode(&bytes).as_ref(), Ok(request));
        assert_eq!(bytes[0], request.verb.number());
        for end in 0..bytes.len() {
            // A part of CODE may end anywhere, and a batch has a length and a sum of its own.
            let open = if bytes[0] == verb::CODE { HEAD + 13 } else { HEAD };
            let is_open = end >= open && [verb::CODE, verb::BATCH].contains(&bytes[0]);
            assert!(Request::decode(&bytes[..end]).is_err() || is_open, "{request:?} up to {end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Request::decode(&longer).is_err() || bytes[0] == verb::BATCH, "{request:?} and a byte");
    }
    let numbers: std::collections::BTreeSet<u8> = all.iter().map(|request| request.verb.number()).collect();
    assert!(numbers.into_iter().eq(verb::OFFER..=verb::FORGET), "each verb was tried");
}

#[test]
fn replies_come_back_as_they_were() {
    let mut scratch = Default::default();
    for reply in replies(&mut scratch) {
        let bytes = bytes_of(|into| reply.encode(into));
        assert_eq!(Reply::decode(&bytes), Ok(reply));
        let is_batch = bytes[0] == verb::BATCH;
        for end in 0..bytes.len() {
            assert!(Reply::decode(&bytes[..end]).is_err() || (is_batch && end >= HEAD), "{reply:?} up to {end}");
        }
        assert!(Reply::decode(&[&bytes[..], &[0]].concat()).is_err() || is_batch, "{reply:?} and a byte");
    }
}

#[test]
fn runs_servers_and_entries_are_listed() {
    let mut scratch = Default::default();
    for request in requests(&mut scratch) {
        if let Verb::Map { runs, servers, .. } = request.verb {
            assert_eq!(runs.iter().map(|run| run.first).collect::<Vec<_>>(), [3, u32::MAX]);
            assert_eq!(servers.iter().map(|server| server.address.len()).collect::<Vec<_>>(), [17, 0]);
        }
    }
    for reply in replies(&mut Default::default()) {
        if let Answer::List { entries, .. } = reply.answer {
            assert_eq!(entries.iter().map(|entry| entry.state as u8).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        }
        if let Answer::Modules { modules } = reply.answer {
            assert_eq!(
                modules.iter().map(|module| (module.name.len(), module.length)).collect::<Vec<_>>(),
                [(4, 1), (64, u32::MAX)]
            );
        }
    }
}

#[test]
fn refuses_more_than_bounds_allow() {
    let refused = |verb: Verb<'_>| {
        let request = Request { memory: 1, region: 2, epoch: 3, verb };
        Request::decode(&bytes_of(|into| request.encode(into))).is_err()
    };
    let marks = vec![0; MARKS_MAX + 1];
    assert!(refused(Verb::Pull { is_last: false, marks: &marks }));
    assert!(!refused(Verb::Pull { is_last: false, marks: &marks[1..] }));
    let run = RegionRun { first: 0, regions: 1, epoch: 1, server: 1 };
    let many = |runs: usize, servers: usize| {
        let (mut of_runs, mut of_servers) = (Vec::new(), Vec::new());
        let runs = Runs::write(&vec![run; runs], &mut of_runs);
        refused(Verb::Map { number: 1, runs, servers: Servers::write(&vec![source(); servers], &mut of_servers) })
    };
    assert!(!many(RUNS_MAX, SERVERS_MAX) && many(RUNS_MAX + 1, 1) && many(1, SERVERS_MAX + 1));
    let mut endless = Vec::new();
    let endless = Runs::write(&[RegionRun { first: u32::MAX, ..run }], &mut endless);
    assert!(refused(Verb::Map { number: 1, runs: endless, servers: Servers::default() }));
    let part = vec![0; PART_MAX + 1];
    let code = |length, at, name, part| refused(Verb::Code { length, at, name, part });
    assert!(code(u32::MAX, 0, b"a", &part));
    assert!(!code(u32::MAX, 0, b"a", &part[1..]), "the server refuses a module that is too long");
    assert!(code(4, 2, b"a", b"end") && code(4, u32::MAX, b"a", b"end"));
    let name = [b'a'; NAME_MAX + 1];
    assert!(code(4, 0, b"", b"end") && code(4, 0, &name, b"end") && !code(4, 0, &name[1..], b"end"));
    assert!(refused(Verb::Forget { name: b"" }));
    let run = Run { request: 1, procedure: 1, hops: 0, bytes: 0, micros: 0, replied: 0, arguments: &part[..257] };
    assert!(refused(Verb::Run(run)));
}

#[test]
fn refuses_lists_of_too_many_modules() {
    let is_taken = |count: usize| {
        let mut of = Vec::new();
        let modules = Modules::write(vec![Stored { name: b"a", length: 1 }; count], &mut of);
        let reply = Reply { memory: 0, region: 0, epoch: 0, answer: Answer::Modules { modules } };
        Reply::decode(&bytes_of(|into| reply.encode(into))).is_ok()
    };
    assert!(is_taken(0) && is_taken(MODULES_MAX) && !is_taken(MODULES_MAX + 1));
}

#[test]
fn lists_without_a_count_are_taken() {
    let (mut none, entries) = (Vec::new(), Entries::default());
    let bytes = |more, total| {
        let answer = Answer::List { server: 5, left_millis: 6, more, total, entries };
        bytes_of(|into| Reply { memory: 1, region: 2, epoch: 3, answer }.encode(into))
    };
    let flags = HEAD + 20;
    for (more, flag) in [(false, 0), (true, 1)] {
        let [without, with] = [0, 7].map(|total| bytes(more, total));
        assert_eq!((without[flags], with[flags], with.len() - without.len()), (flag, flag + 2, 4));
        let mut zero = with.clone();
        zero[flags + 4..flags + 8].fill(0);
        assert!(Reply::decode(&zero).is_err(), "a count has one encoding");
        none = without;
    }
    for flag in 4..=u8::MAX {
        none[flags] = flag;
        assert!(Reply::decode(&none).is_err(), "{flag}");
    }
}

#[test]
fn refuses_bytes_that_are_not_zero() {
    let request = Request { memory: 1, region: 2, epoch: 3, verb: Verb::Commit };
    let bytes = bytes_of(|into| request.encode(into));
    for at in 1..4 {
        let mut other = bytes.clone();
        other[at] = 1;
        assert!(Request::decode(&other).is_err());
    }
    let notice = Reply { memory: 0, region: 0, epoch: 0, answer: Answer::Notice { millis: 1 } };
    let mut bytes = bytes_of(|into| notice.encode(into));
    bytes[1] = Refusal::Stale as u8;
    bytes.truncate(24);
    assert!(Reply::decode(&bytes).is_err(), "a notice is not refused");
}

#[test]
fn bodies_travel_in_kinds_of_their_own() {
    assert_eq!([7, 25].map(Kind::of), [Some(Kind::Far), Some(Kind::FarAnswer)]);
    let request = Request { memory: 3, region: 1, epoch: 2, verb: Verb::Offer };
    let bytes = bytes_of(|into| request.encode(into));
    let carried = crate::messages::Request::decode(Kind::Far, &bytes);
    assert_eq!(carried, Ok(crate::messages::Request::Far(&bytes)));
    assert!(crate::messages::Reply::decode(Kind::Far, &bytes).is_err());
    let mut into = Vec::new();
    assert_eq!(crate::messages::Reply::Far(&bytes).encode(&mut into), Kind::FarAnswer);
    assert_eq!(crate::messages::Reply::decode(Kind::FarAnswer, &into), Ok(crate::messages::Reply::Far(&bytes)));
}

proptest! {
    #[test]
    fn any_bytes_are_taken_without_panic(verb in 0..40_u8, body in prop::collection::vec(0..4_u8, 0..200)) {
        let bytes = [&[verb, 0, 0, 0][..], &body].concat();
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(bytes_of(|into| request.encode(into)), bytes.clone(), "a request has one encoding");
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            prop_assert_eq!(bytes_of(|into| reply.encode(into)), bytes, "a reply has one encoding");
        }
    }
}
