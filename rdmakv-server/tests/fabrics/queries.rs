//! Requests of clients, and their answers.

use rdmakv_proto::eager;
use rdmakv_proto::item;
use rdmakv_proto::messages::{Kind, Reply, Request};

use super::client::{Client, Way, cache};
use super::common::{Server, ask};
use super::on_both;

on_both! {
    commands_are_carried_out_as_over_tcp(&[]) = commands;
    short_items_arrive_in_messages_with_tags(&[]) = short;
    long_items_are_written_into_the_clients_memory(&["-I", "4m", "--eager", "8k"]) = long;
    long_values_are_read_out_of_the_clients_memory(&["-I", "4m"]) = pulled;
    long_answers_come_whole(&[]) = dump;
    answers_keep_the_request_order(&["--eager", "8k"]) = order;
}

/// Bytes of a value that is too long for a message, whatever the limit is.
const LONG: usize = eager::MOST + 1;

fn value(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn commands<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    assert_eq!(client.run(None, &[b"set a 5 0 3\r\nabc\r\n"]).0, "STORED\r\n");
    assert_eq!(client.run(None, &[b"get a\r\n"]).0, "VALUE a 5 3\r\nabc\r\nEND\r\n");
    assert_eq!((client.stat("cmd_set"), client.stat("get_hits")), (1, 1));
    ask(&mut server.connect(), b"get a\r\n", b"VALUE a 5 3\r\nabc\r\nEND\r\n");
    assert_eq!(client.run(None, &[b"ms b 2\r\nno\r\n"]).0, "HD\r\n");
    assert_eq!(client.run(None, &[b"mg b v\r\n"]).0, "VA 2\r\nno\r\n");
    assert_eq!(client.run(None, &[b"delete b noreply\r\n"]).0, "");
    assert_eq!(
        client.run(None, &[b"incr a 1\r\n"]).0,
        "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
    );
    assert_eq!(client.run(None, &[b"nonsense\r\n"]).0, "ERROR\r\n");
    assert_eq!(client.run(None, &[b"quit\r\n"]).0, "");
    assert_eq!(client.hear(), None, "quit ends the connection");
}

fn short<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    assert_eq!(client.get("a", true).1, Kind::None);
    let set = client.set("a", b"one").expect("a tag");
    assert_eq!(client.read_value(&set, "a").as_deref(), Some(&b"one"[..]));
    let (_, kind, answer) = client.get("a", true);
    let Reply::Item { tag, image } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
    assert_eq!(item::check(image, b"a", set.incarnation, 1).unwrap().value, b"one");
    let tag = tag.expect("a tag");
    assert_eq!(client.read(&tag).unwrap()[..image.len()], *image, "what the server says is what the tag leads to");
    // Nothing is told that was not wished for.
    let (_, kind, answer) = client.get("a", false);
    assert!(matches!(Reply::decode(kind, &answer).unwrap(), Reply::Item { tag: None, .. }));
    // Once it is gone, the tag's target is not believed.
    assert_eq!(client.run(None, &[b"delete a\r\n"]).0, "DELETED\r\n");
    assert_eq!(client.read_value(&tag, "a"), None);
    let long = client.set("b", &value(8192)).expect("a tag");
    assert_eq!(client.read_value(&long, "b").unwrap(), value(8192));
}

fn long<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    let value = value(3 << 20);
    let line = format!("set a 0 0 {LONG}\r\n");
    assert_eq!(client.run(None, &[line.as_bytes(), &value[..LONG], b"\r\n"]).0, "STORED\r\n");
    let (_, kind, answer) = client.get("a", false);
    let Reply::Large { tag: None, size } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
    assert_eq!(size as usize, item::HEADER + 1 + LONG);
    let transfer = client.open("a", true, size as usize);
    let (_, kind, answer) = client.hear().unwrap();
    let Reply::Tag(Some(tag)) = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
    assert!(client.finish(transfer));
    let image = client.memory(size as usize);
    assert_eq!(item::check(&image, b"a", tag.incarnation, 1).unwrap().value, &value[..LONG]);
    assert_eq!(client.read_value(&tag, "a").unwrap(), &value[..LONG]);
    // Too little room, nothing there, and what is short enough for a message.
    for (key, room, wanted) in [("a", 100, Kind::Large), ("b", 1000, Kind::None), ("c", 1000, Kind::Item)] {
        client.set("c", b"short");
        let transfer = client.open(key, false, room);
        assert_eq!(client.hear().unwrap().1, wanted, "{key}");
        assert!(!client.finish(transfer), "{key}");
    }
    assert_eq!(client.put("d", &value, 1).1, Kind::Ran);
    let transfer = client.open("d", false, 4 << 20);
    assert_eq!(client.hear().unwrap().1, Kind::Tag);
    assert!(client.finish(transfer));
    let image = client.memory(item::HEADER + 1 + value.len());
    assert_eq!(item::check(&image, b"d", tag.incarnation, 1).unwrap().value, value);
}

fn pulled<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    for (length, parts) in [(0, 1), (1, 1), (100, 3), (10_000, 1), (1_000_000, 40), (3_000_000, 1)] {
        // Another key each time: one that changes so quickly gets no tags.
        let (key, value) = (format!("k{length}"), value(length));
        let (_, kind, answer) = client.put(&key, &value, parts);
        let Reply::Ran { tag, answer } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}: {answer:?}") };
        assert_eq!(answer, b"STORED\r\n");
        if length <= 1_000_000 {
            assert_eq!(client.read_value(&tag.expect("a tag"), &key).unwrap(), value);
        }
        let mut wanted = format!("VALUE {key} 0 {length}\r\n").into_bytes();
        wanted.extend_from_slice(&value);
        wanted.extend_from_slice(b"\r\nEND\r\n");
        ask(&mut server.connect(), format!("get {key}\r\n").as_bytes(), &wanted);
    }
    // A value that cannot be stored is refused as over TCP.
    let (_, kind, answer) = client.put("a", &value(5_000_000), 1);
    let Reply::Ran { answer, .. } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}: {answer:?}") };
    assert_eq!(answer, b"SERVER_ERROR object too large for cache\r\n");
    assert_eq!(client.run(None, &[b"mn\r\n"]).0, "MN\r\n");
    // Also nothing, if no reply is wanted.
    let (leases, segments) = client.lend(&value(5_000_000), 1);
    let mut bytes = Vec::new();
    let kind = Request::put(&mut bytes, false, b"a", b"set a 0 0 5000000 noreply", &segments);
    let (_, kind, answer) = client.ask(kind, &bytes).expect("an answer");
    assert!(matches!(Reply::decode(kind, &answer).unwrap(), Reply::Ran { tag: None, answer: b"" }));
    drop(leases);
    assert_eq!(client.run(None, &[b"mn\r\n"]).0, "MN\r\n");
}

fn dump<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    for n in 0..3000 {
        client.run(None, &[format!("set key-{n} 0 0 3 noreply\r\nabc\r\n").as_bytes()]);
    }
    let (answer, _) = client.run(None, &[b"lru_crawler metadump all\r\n"]);
    assert_eq!(answer.lines().filter(|line| line.starts_with("key=key-")).count(), 3000);
    assert!(answer.ends_with("END\r\n"));
    // Many values, of which the long ones are lent by the store.
    client.put("long", &value(500_000), 1);
    let (answer, _) = client.run(None, &[b"get long key-1 long key-2 long\r\n"]);
    assert!(answer.len() > 1_500_000 && answer.ends_with("END\r\n"));
}

fn order<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    let length = LONG;
    for round in 0..20_u8 {
        client.set("a", &vec![round; length]);
        // A slow request; meanwhile the next two come, and neither is waited for.
        let tell = |client: &mut Client<'_, W>, command: &[&[u8]]| {
            let mut bytes = Vec::new();
            let kind = Request::run(&mut bytes, false, b"", command);
            client.tell(kind, &bytes).expect("it is said");
        };
        tell(&mut client, &[b"stats\r\n"]);
        tell(&mut client, &[format!("set a 0 0 {length}\r\n").as_bytes(), &vec![round + 100; length], b"\r\n"]);
        let transfer = client.open("a", false, 2 * length);
        for wanted in [Kind::Ran, Kind::Ran, Kind::Tag] {
            assert_eq!(client.hear().unwrap().1, wanted, "round {round}");
        }
        assert!(client.finish(transfer));
        let image = client.memory(item::HEADER + 1 + length);
        assert_eq!(image.last(), Some(&(round + 100)), "round {round}: what came before it was done before it");
    }
}
