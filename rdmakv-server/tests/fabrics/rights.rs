//! The rights of a tag: what it permits its client, for how long, and the limits.

use frrwp::fabric::{Completion, Endpoint, Local};
use frrwp::wire::MESSAGE;
use mrrc::Access;
use mrrc::registrar::Registrar;
use rdmakv_proto::item;
use rdmakv_proto::messages::{Reply, Tag};

use super::client::{Client, Iwarp, Way, cache};
use super::common::{Server, ask, soon};
use super::{fabric, on_both};

on_both! {
    nobody_writes_by_a_tag(&[]) = written;
    what_replaces_an_item_is_seen_by_who_has_its_tag(&["--tag-lease", "20s"]) = replaced;
    what_is_gone_is_dead_before_anybody_is_told(&["--tag-lease", "20s"]) = gone;
}

fn iwarp(flags: &[&str]) -> Server {
    Server::on_a_free_port(&[flags, &["--fabric", "iwarp:127.0.0.1:0"]].concat())
}

/// Tries to write by a tag, on a connection of its own; whether that connection is gone after it.
#[expect(unsafe_code, reason = "posts by hand what no engine does")]
fn write<W: Way>(way: &W, address: &str, tag: &Tag) -> bool {
    let mut endpoint = way.connect(address).unwrap();
    let domain = way.domain();
    let range = mrrc::PageRange::of_bytes(way.memory() as u64, tag.segment.length).unwrap();
    let registration = domain.register(range, Access::LOCAL).unwrap();
    let from = [Local { address: way.memory(), length: tag.segment.length as usize, registration: &registration }];
    // SAFETY: the memory is the way's, and has no other user.
    let _ = unsafe { endpoint.write(1, &from, crate::client::segment(tag), None) };
    let mut message = Box::new([0; MESSAGE]);
    for _ in 0..100 {
        endpoint.wait(Some(endpoint.now() + 50_000_000));
        while let Some(completion) = endpoint.poll(&mut message) {
            if matches!(completion, Completion::Lost | Completion::Flushed) {
                return true;
            }
        }
    }
    false
}

fn written<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    let tag = client.set("a", b"value").unwrap();
    assert!(write(way, address, &tag), "who writes loses his connection");
    let (_, kind, answer) = client.get("a", false);
    let Reply::Item { image, .. } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
    assert_eq!(item::check(image, b"a", tag.incarnation, 1).unwrap().value, b"value");
}

fn replaced<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let name = address.split(':').next().unwrap();
    let mut client = Client::new(way, &cache, address);
    let first = client.set("a", &[b'1'; 1000]).unwrap();
    let mut other = server.connect();
    ask(&mut other, &[&b"set a 0 0 900\r\n"[..], &[b'2'; 900], b"\r\n"].concat(), b"STORED\r\n");
    // Over TCP no client is told of a tag: the old one leads to dead memory, or to the present item.
    match client.read_value(&first, "a") {
        None => assert!(name != "iwarp" && client.stat(&format!("{name}_swaps")) == 0),
        Some(value) => {
            assert_eq!((&value[..], client.stat(&format!("{name}_swaps"))), (&[b'2'; 900][..], 1));
            // The memory behind the shorter item belongs to no item.
            let image = client.read(&first).unwrap();
            assert!(image[item::HEADER + 1 + 900..].iter().all(|&byte| byte == 0));
        }
    }
    let (_, kind, answer) = client.get("a", true);
    let Reply::Item { tag: Some(second), .. } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
    assert_eq!(client.read_value(&second, "a").unwrap(), [b'2'; 900]);
    if name == "iwarp" {
        assert_eq!(second, first, "a key keeps its tag");
    }
}

fn gone<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    let mut other = server.connect();
    let ends: [(&str, &[u8], &[u8]); 4] = [
        ("deleted", b"delete deleted\r\n", b"DELETED\r\n"),
        ("over", b"touch over -1\r\n", b"TOUCHED\r\n"),
        ("counted", b"incr counted 1\r\n", b"2\r\n"),
        ("flushed", b"flush_all\r\n", b"OK\r\n"),
    ];
    for (key, command, answer) in ends {
        let tag = client.set(key, b"1").unwrap();
        assert_eq!(client.read_value(&tag, key).unwrap(), b"1");
        ask(&mut other, command, answer);
        if key == "over" {
            ask(&mut other, b"get over\r\n", b"END\r\n");
        }
        let now = client.read_value(&tag, key);
        assert!(now.is_none() || (key == "counted" && now.as_deref() == Some(b"2")), "{key}: {now:?}");
    }
}

#[test]
fn over_iwarp_a_tag_is_of_one_client_alone() {
    let server = iwarp(&[]);
    let way = Iwarp::new();
    let cache = cache(&way);
    let address = fabric(&server, "iwarp");
    let (mut one, mut other) = (Client::new(&way, &cache, &address), Client::new(&way, &cache, &address));
    let tag = one.set("a", b"value").unwrap();
    assert_eq!(other.read(&tag), None, "another's tag ends the connection");
    assert_eq!(other.hear(), None);
    assert_eq!(one.read_value(&tag, "a").unwrap(), b"value");
    // Nor does it reach farther than it says.
    let mut farther = tag;
    farther.segment.length += 1;
    assert_eq!(one.read(&farther), None);
}

#[test]
fn iwarp_tag_shows_no_former_bytes() {
    let server = iwarp(&[]);
    let way = Iwarp::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "iwarp"));
    // Over TCP, so that no client has a tag of it and its chunk is free at once.
    let secret = [&b"set secret 0 0 1000\r\n"[..], &[b's'; 1000], b"\r\ndelete secret\r\n"].concat();
    for _ in 0..3 {
        ask(&mut server.connect(), &secret, b"STORED\r\nDELETED\r\n");
        let tag = client.set("a", &[b'a'; 950]).unwrap();
        let (image, used) = (client.read(&tag).unwrap(), item::HEADER + 1 + 950);
        assert!(image.len() > used, "a tag reaches a little farther than its item");
        assert!(image[used..].iter().all(|&byte| byte == 0));
        assert_eq!(client.run(None, &[b"delete a\r\n"]).0, "DELETED\r\n");
        soon("that nothing is leased", || client.stat("leased_chunks") == 0);
    }
}

#[test]
fn iwarp_ended_tag_reads_zeros_and_renews() {
    let server = iwarp(&["--tag-lease", "300ms"]);
    let way = Iwarp::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "iwarp"));
    let tag = client.set("a", b"value").unwrap();
    soon("that nothing is leased", || client.stat("leased_chunks") == 0);
    let late = client.read(&tag).expect("a late read does not end the connection");
    assert!(late.iter().all(|&byte| byte == 0), "and finds nothing");
    let (_, kind, answer) = client.get("a", true);
    let Reply::Item { tag: Some(again), .. } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
    assert_eq!(again, tag);
    assert_eq!(client.read_value(&tag, "a").unwrap(), b"value");
}

/// Tests for RDMA devices with memory windows that hold; the others print a line.
#[cfg(any(feature = "verbs", feature = "verbs-linked"))]
mod windows {
    use std::process::{Command, Stdio};

    use super::super::client::{Client, Verbs, cache};
    use super::*;

    /// Returns a server that keeps its clients to their grants.
    fn server(flags: &[&str]) -> Option<Server> {
        let host = Verbs::address()?;
        if Verbs::exposes() {
            println!("the windows of this device do not hold: not tried what they keep clients from");
            return None;
        }
        Some(Verbs::server(&host, flags))
    }

    mod verbs {
        use super::*;

        #[test]
        fn unguarded_exposure_needs_consent() {
            let Some(host) = Verbs::address() else { return };
            let place = format!("verbs:{host}:0");
            if !Verbs::exposes() {
                let server = super::server(&[]).unwrap();
                let says = |line: &String| line.contains("told of, and no others (memory windows)");
                assert!(server.lines.iter().any(says), "{:?}", server.lines);
                return;
            }
            let program = std::env::var("RDMAKV_SERVER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_rdmakv-server").into());
            let mut command = Command::new(program);
            command.args(["-p", "-1", "-l", "127.0.0.1", "--fabric", &place]);
            let said = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&said.stderr);
            println!("the windows: {said}");
            assert!(said.contains("say --expose slab") && said.contains("memory windows"), "{said}");
        }

        #[test]
        fn a_tag_is_of_one_client_alone_and_of_one_item() {
            let Some(server) = server(&["--tag-lease", "10s"]) else { return };
            let address = fabric(&server, "verbs");
            let way = Verbs::new(&address);
            let cache = cache(&way);
            let client = || Client::new(&way, &cache, &address);
            let (mut one, mut other) = (client(), client());
            let before = one.set("before", &[b'b'; 900]).unwrap();
            let tag = one.set("a", &[b'a'; 900]).unwrap();
            let after = one.set("after", &[b'c'; 900]).unwrap();
            assert_eq!(one.read_value(&tag, "a").unwrap(), [b'a'; 900]);
            assert_eq!(other.read(&tag), None, "another's key ends the connection");
            assert_eq!(one.read_value(&before, "before").unwrap(), [b'b'; 900]);
            assert_eq!(one.read_value(&after, "after").unwrap(), [b'c'; 900]);
            // Nor does it reach farther than it says, on either side, into what is another item's.
            type Change = fn(&mut Tag, &Tag);
            let wrong: [Change; 4] = [
                |tag, _| tag.segment.length += 1,
                |tag, _| tag.segment.address -= 1,
                |tag, other| tag.segment.address = other.segment.address,
                |tag, _| tag.segment.key = tag.segment.key.wrapping_add(1),
            ];
            for (number, change) in wrong.into_iter().enumerate() {
                let mut client = client();
                let (_, kind, answer) = client.get("a", true);
                let Reply::Item { tag: Some(mut tag), .. } = Reply::decode(kind, &answer).unwrap() else {
                    panic!("{kind:?}")
                };
                change(&mut tag, &before);
                assert_eq!(client.read(&tag), None, "change {number}");
            }
            assert_eq!(one.read_value(&before, "before").unwrap(), [b'b'; 900], "nobody else's business");
        }

        #[test]
        fn ended_tag_opens_nothing_and_frees_its_chunk() {
            let Some(server) = server(&["--tag-lease", "300ms"]) else { return };
            let address = fabric(&server, "verbs");
            let way = Verbs::new(&address);
            let cache = cache(&way);
            let (mut late, mut other) = (Client::new(&way, &cache, &address), Client::new(&way, &cache, &address));
            let tag = late.set("a", &[b'a'; 900]).unwrap();
            assert_eq!(late.read_value(&tag, "a").unwrap(), [b'a'; 900]);
            soon("that nothing is leased", || other.stat("leased_chunks") == 0);
            // Its chunk's registration is there as before.
            assert!(other.stat("verbs_registered_bytes") > 0);
            assert_eq!(late.read(&tag), None, "a late read ends the connection");
        }

        #[test]
        fn many_tags_have_distinct_keys() {
            let Some(server) = server(&["--tag-lease", "20s"]) else { return };
            let address = fabric(&server, "verbs");
            let way = Verbs::new(&address);
            let cache = cache(&way);
            let mut client = Client::new(&way, &cache, &address);
            // More than a connection has windows at first.
            let tags: Vec<_> = (0..200_u8).map(|n| client.set(&format!("k{n}"), &[n; 700]).unwrap()).collect();
            for (n, tag) in tags.iter().enumerate() {
                assert_eq!(client.read_value(tag, &format!("k{n}")).unwrap(), [n as u8; 700]);
            }
            let keys: std::collections::HashSet<_> = tags.iter().map(|tag| tag.segment.key).collect();
            assert_eq!(keys.len(), tags.len());
        }
    }
}
