//! What a tag lets its client do, for how long, and what it does not.

use frrwp::fabric::{Completion, Endpoint, Local};
use frrwp::wire::MESSAGE;
use mrrc::Access;
use mrrc::registrar::Registrar;
use rdmakv_server::item;
use rdmakv_server::rdma::wire::{Reply, Tag};

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
    // SAFETY: the memory is the way's, and nobody uses it.
    let _ = unsafe { endpoint.write(1, &from, tag.segment, None) };
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
    // Over TCP nobody is told of a tag: the old one leads to what is dead, or to what is there now.
    match client.read_value(&first, "a") {
        None => assert!(name != "iwarp" && client.stat(&format!("{name}_swaps")) == 0),
        Some(value) => {
            assert_eq!((&value[..], client.stat(&format!("{name}_swaps"))), (&[b'2'; 900][..], 1));
            // What is behind the shorter item is nobody's.
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
fn over_iwarp_a_tag_shows_nothing_of_who_was_in_the_chunk_before() {
    let server = iwarp(&[]);
    let way = Iwarp::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "iwarp"));
    // Over TCP, so that nobody has a tag of it and its chunk is free at once.
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
fn over_iwarp_a_tag_whose_lease_has_ended_leads_to_nothing_and_a_new_one_is_the_same() {
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
