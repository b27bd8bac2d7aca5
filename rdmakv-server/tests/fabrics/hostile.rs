//! Clients that say nonsense, take nothing, or go in the middle of something: the server goes on, for all others as before.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rdmakv_proto::messages::{self, Kind, RemoteSegment, Request};

use super::client::{Client, Way, cache};
use super::common::{Server, soon};
use super::on_both;

on_both! {
    noise_ends_its_own_connection_and_nothing_else(&["--fabric-connections", "8"]) = noise;
    vanished_client_leaves_nothing_behind(&["--tag-lease", "50ms", "-I", "2m"]) = cut;
    who_takes_no_answers_is_held_back(&[]) = slow;
    nonsense_is_answered_and_ends_the_connection(&[]) = sense;
}

fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The acts of a client.
#[derive(Clone, Debug)]
enum Act {
    Say(Vec<u8>),
    /// Opens a transfer with this header, of so many bytes, one way or the other.
    Open(Vec<u8>, usize, bool),
}

fn act() -> impl Strategy<Value = Act> {
    let asked = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4000),
        Just([&[1, 0, 0, 0, Kind::Get as u8, 0, 0, 0, 1, 1][..], b"a"].concat()),
        fragment(),
    ];
    let open = (asked, 0..200_000_usize, any::<bool>());
    prop_oneof![3 => fragment().prop_map(Act::Say), 1 => open.prop_map(|(asked, room, read)| Act::Open(asked, room, read))]
}

/// Returns a fragment: noise, or the right start and noise, or something that is nearly right.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..2000);
    let kinds = prop::sample::select(vec![Kind::Hello, Kind::Run, Kind::Get, Kind::Put, Kind::Seen, Kind::Item]);
    let started = (any::<u32>(), kinds.clone(), any::<bool>(), bytes()).prop_map(|(id, kind, more, bytes)| {
        let mut fragment = Vec::new();
        messages::start(&mut fragment, id, kind, more);
        fragment.extend(bytes);
        fragment
    });
    let commands = prop::sample::select(vec![
        &b"set a 0 0 100000\r\n"[..],
        b"get a b c d\r\n",
        b"ms k 5\r\nabc\r\n",
        b"mg \x00 v\r\n",
        b"stats\r\nstats\r\n",
        b"lru_crawler metadump all\r\n",
        b"incr a 18446744073709551615\r\n",
        b"flush_all\r\n",
        b"\r\n",
        b"get",
    ]);
    let runs = (any::<u32>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..251), commands);
    let runs = runs.prop_map(|(id, wish, key, command)| {
        let mut fragment = Vec::new();
        messages::start(&mut fragment, id, Kind::Run, false);
        Request::run(&mut fragment, wish, &key, &[command]);
        fragment
    });
    prop_oneof![bytes(), started, runs]
}

fn noise<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut other = Client::new(way, &cache, address);
    other.set("mine", b"value");
    let before = resident(server.process.id());
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    runner
        .run(&(any::<bool>(), prop::collection::vec(act(), 1..12)), |(greets, acts)| {
            // Those before it have gone, and the server may not have seen it yet.
            let mut let_in = None;
            soon("that somebody is let in", || {
                let_in = Client::silent(way, &cache, address).ok();
                let_in.is_some()
            });
            let mut client = let_in.unwrap();
            if greets {
                let mut hello = Vec::new();
                messages::start(&mut hello, 1, Kind::Hello, false);
                Request::hello(&mut hello, false);
                client.say(&hello);
            }
            for act in &acts {
                let goes_on = match act {
                    Act::Say(fragment) => client.say(fragment),
                    Act::Open(header, room, read) => client.open_any(header, *room, *read),
                };
                if !goes_on {
                    break;
                }
                client.look();
                let mut heard = Vec::new();
                while client.engine.recv_message(&mut heard) {}
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(other.run(None, &[b"mn\r\n"]).0, "MN\r\n", "others are served");
    let after = resident(server.process.id());
    assert!(after < before + (64 << 20), "{before} bytes have become {after}");
    soon("that all of them are gone", || {
        let name = address.split(':').next().unwrap();
        other.stat(&format!("{name}_connections")) == 1
    });
    let name = address.split(':').next().unwrap();
    assert_eq!(other.stat(&format!("{name}_faults")), 0);
}

/// Does something up to a point, and is gone.
fn go<W: Way>(way: &W, address: &str, point: usize) {
    let cache = cache(way);
    let Ok(mut client) = Client::silent(way, &cache, address) else { return };
    if point == 0 {
        return;
    }
    client.hello();
    let mut bytes = Vec::new();
    match point {
        1 => {}
        2 => {
            // Half of a message.
            messages::start(&mut bytes, 7, Kind::Run, true);
            bytes.extend_from_slice(b"\0\0set a 0 0 1000");
            client.say(&bytes);
        }
        3 => {
            let kind = Request::run(&mut bytes, true, b"a", &[b"set a 0 0 5\r\nvalue\r\n"]);
            client.tell(kind, &bytes);
        }
        4 => {
            let kind = Request::get(&mut bytes, true, b"short");
            client.tell(kind, &bytes);
        }
        5 => {
            let kind = Request::get(&mut bytes, true, b"long");
            client.tell(kind, &bytes);
        }
        6 => drop(client.open("long", true, 2 << 20)),
        7 => {
            client.open("long", true, 2 << 20);
            let _ = client.hear();
        }
        8 => {
            // The server reads a value of which the client takes no more notice.
            let (leases, segments) = client.lend(&[b'v'; 1_000_000], 50);
            let kind = Request::put(&mut bytes, true, b"put", b"set put 0 0 1000000", &segments);
            client.tell(kind, &bytes);
            drop(client);
            drop(leases);
        }
        9 => {
            // A key that is none.
            let (leases, mut segments) = client.lend(&[b'v'; 1_000_000], 1);
            segments[0].key ^= 0x5555;
            let kind = Request::put(&mut bytes, true, b"put", b"set put 0 0 1000000", &segments);
            client.tell(kind, &bytes);
            let _ = client.hear();
            drop(leases);
        }
        10 => {
            // Much is asked for and nothing taken.
            for _ in 0..20 {
                bytes.clear();
                let kind = Request::run(&mut bytes, false, b"", &[b"get long long long long\r\n"]);
                if client.engine.send_message(&[&[1, 0, 0, 0, kind as u8, 0, 0, 0], &bytes[..]].concat()).is_err() {
                    break;
                }
            }
        }
        _ => {
            let kind = Request::seen(&mut bytes, 1, 2, 3);
            client.tell(kind, &bytes);
        }
    }
}

fn cut<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut other = Client::new(way, &cache, address);
    other.set("short", b"value");
    assert_eq!(other.put("long", &vec![b'l'; 1_500_000], 1).1, Kind::Ran);
    for round in 0..3 {
        for point in 0..12 {
            go(way, address, point);
            assert_eq!(other.run(None, &[b"mn\r\n"]).0, "MN\r\n", "round {round}, point {point}");
        }
    }
    let name = address.split(':').next().unwrap();
    soon("that all are gone", || other.stat(&format!("{name}_connections")) == 1);
    soon("that nothing is leased", || other.stat("leased_chunks") == 0);
    soon("that what was taken for transfers is back", || {
        let transfer = other.open("long", false, 2 << 20);
        let there = other.hear().unwrap().1 == Kind::Tag;
        there && other.finish(transfer)
    });
    // Chunks that are in use are items', and no others.
    soon("that every chunk is an item's", || {
        let items = other.stat("curr_items");
        let (slabs, _) = other.run(None, &[b"stats slabs\r\n"]);
        let used = slabs.lines().filter_map(|line| line.split_once(":used_chunks ")?.1.trim().parse::<u64>().ok());
        used.sum::<u64>() == items
    });
    assert_eq!(other.stat(&format!("{name}_faults")), 0);
}

fn slow<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut other = Client::new(way, &cache, address);
    assert_eq!(other.put("long", &vec![b'l'; 500_000], 1).1, Kind::Ran);
    let before = resident(server.process.id());
    let mut bytes = Vec::new();
    let kind = Request::run(&mut bytes, false, b"", &[b"get long long long long long long long long\r\n"]);
    let mut slow = Client::new(way, &cache, address);
    let mut said = 0;
    // He has no room to say more in the end.
    for _ in 0..10_000 {
        if slow.engine.send_message(&[&[1, 0, 0, 0, kind as u8, 0, 0, 0], &bytes[..]].concat()).is_err() {
            break;
        }
        said += 1;
        slow.look();
    }
    assert!(said < 10_000, "who takes nothing is held back");
    assert_eq!(other.run(None, &[b"mn\r\n"]).0, "MN\r\n");
    let after = resident(server.process.id());
    assert!(after < before + (32 << 20), "{before} bytes have become {after}");
    // Once he takes them, all is there.
    for _ in 0..said {
        let (_, kind, answer) = slow.hear().unwrap();
        assert_eq!((kind, answer.len() > 4_000_000), (Kind::Ran, true));
    }
}

fn sense<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut hello = Vec::new();
    Request::hello(&mut hello, false);
    let get = |key: &[u8]| {
        let mut bytes = Vec::new();
        Request::get(&mut bytes, false, key);
        bytes
    };
    let run = |command: &[u8]| {
        let mut bytes = Vec::new();
        Request::run(&mut bytes, false, b"", &[command]);
        bytes
    };
    let later = [&2_u16.to_le_bytes()[..], &[0; 6]].concat();
    let put = |line: &[u8], length| {
        let mut bytes = Vec::new();
        Request::put(&mut bytes, false, b"a", line, &[RemoteSegment { address: 0, length, key: 7 }]);
        bytes
    };
    let cases: [(bool, Kind, Vec<u8>); 12] = [
        (false, Kind::Get, get(b"a")),
        (false, Kind::Hello, later),
        (true, Kind::Get, get(b"")),
        (true, Kind::Run, run(b"get a")),
        (true, Kind::Run, run(b"set a 0 0 5\r\nval")),
        (true, Kind::Run, run(b"mn\r\nmn\r\n")),
        (true, Kind::Item, Vec::new()),
        (true, Kind::Seen, vec![1, 2, 3]),
        // A value comes from the segments alone, and all of it.
        (true, Kind::Put, put(b"set a 0 0 5\r\nva", 3)),
        (true, Kind::Put, put(b"set a 0 0 5", 3)),
        (true, Kind::Put, put(b"get a", 3)),
        (true, Kind::Put, put(b"set a 0 0 5\r\nvalue\r\nset b 0 0 5\r\nvalue\r\n", 5)),
    ];
    for (at, (greets, kind, bytes)) in cases.into_iter().enumerate() {
        let mut client = Client::silent(way, &cache, address).unwrap();
        if greets {
            client.hello();
        }
        let answer = client.ask(kind, &bytes);
        assert!(matches!(answer, Some((_, Kind::Refused, _)) | None), "case {at}: {answer:?}");
        assert_eq!(client.hear(), None, "case {at}: the connection ends");
    }
    let mut client = Client::new(way, &cache, address);
    assert_eq!(client.run(None, &[b"get a\r\n"]).0, "END\r\n", "none of it was carried out");
}
