//! Each command that changes an item, over TCP: the next GET in a datagram has its effect.

use std::time::Instant;

use crate::common::{PATIENCE, Server, ask, soon};
use crate::wire::{Client, Wire, tcp};

/// A request of the binary protocol, for the key `k`.
fn binary(code: u8, extras: &[u8], key: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, code, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    bytes.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(extras);
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(value);
    bytes
}

/// Sends binary requests, and a last one whose answer is known.
fn send_binary(server: &Server, mut request: Vec<u8>) {
    let mut stream = server.connect();
    request.extend_from_slice(&binary(0x0a, &[], "", &[]));
    std::io::Write::write_all(&mut stream, &request).unwrap();
    let mut read = Vec::new();
    while !(read.len() >= 24 && read[read.len() - 24..].starts_with(&[0x81, 0x0a])) {
        let mut byte = [0];
        std::io::Read::read_exact(&mut stream, &mut byte).unwrap();
        read.push(byte[0]);
    }
}

/// Has the kernel answer the key: twice, so that nothing of before is left. Returns the answer.
fn warm(server: &Server, client: &mut Client) -> String {
    let before = server.stat("kernel_gets");
    let answer = tcp(server, b"get k\r\n");
    for _ in 0..2 {
        assert_eq!(client.get("k"), answer);
    }
    assert!(server.stat("kernel_gets") >= before + 2, "the kernel does not answer {answer:?}");
    answer
}

/// Compares the answers after a change; returns them.
fn same(name: &str, server: &Server, client: &mut Client) -> String {
    // The datagram is first: nothing else has had the change carried out, or an entry made anew.
    let datagram = client.get("k");
    assert_eq!(datagram, tcp(server, b"get k\r\n"), "{name}");
    assert_eq!(client.get("k"), datagram, "{name}, again");
    // A stale item's answers tell which client is the first that asks.
    let plain = |answer: String| [" W", " X", " Z"].iter().fold(answer, |answer, mark| answer.replace(mark, ""));
    let meta = plain(client.ask(META));
    assert_eq!(meta, plain(tcp(server, META.as_bytes())), "{name}, {META}");
    datagram
}

const META: &str = "mg k s f v c k O9\r\n";
/// The value before a change, unless it has to be another one.
const VALUE: &str = "set k 7 0 5\r\nvalue\r\n";
const NUMBER: &str = "set k 0 0 2\r\n99\r\n";

#[test]
fn text_commands_are_seen_at_once() {
    let large = format!("set k 0 0 5000\r\n{}\r\n", "l".repeat(5000));
    let too_large = format!("set k 0 0 70000\r\n{}\r\n", "t".repeat(70_000));
    let other_class = format!("set k 0 0 600\r\n{}\r\n", "o".repeat(600));
    let appended = format!("append k 0 0 700\r\n{}\r\n", "a".repeat(700));
    // Whether the answer changes.
    let rows = [
        (VALUE, "set k 1 0 5\r\nother\r\n", true),
        (VALUE, "set k 1 0 5 noreply\r\nother\r\n", true),
        (VALUE, &other_class, true),
        (VALUE, &large, true),
        (VALUE, "set k 0 -1 1\r\nx\r\n", true),
        (VALUE, &too_large, true),
        (VALUE, "add k 1 0 5\r\nother\r\n", false),
        (VALUE, "delete k\r\nadd k 1 0 5\r\nother\r\n", true),
        (VALUE, "replace k 1 0 5\r\nother\r\n", true),
        (VALUE, "append k 0 0 1\r\nx\r\n", true),
        (VALUE, &appended, true),
        (VALUE, "prepend k 0 0 1\r\nx\r\n", true),
        (VALUE, "cas k 1 0 5 1\r\nother\r\n", false),
        (VALUE, "delete k\r\n", true),
        (VALUE, "delete k noreply\r\n", true),
        (VALUE, "touch k -1\r\n", true),
        (VALUE, "touch k 100\r\n", false),
        (VALUE, "gat -1 k\r\n", true),
        (VALUE, "gats -1 k\r\n", true),
        (VALUE, "gat 100 k\r\n", false),
        (VALUE, "flush_all\r\n", true),
        (VALUE, "flush_all 0\r\n", true),
        (VALUE, "flush_all noreply\r\n", true),
        (VALUE, "flush_all 100\r\n", false),
        (VALUE, "flush_all\r\nset k 3 0 3\r\nnew\r\n", true),
        (VALUE, "incr k 1\r\n", false),
        (NUMBER, "incr k 1\r\n", true),
        (NUMBER, "decr k 1\r\n", true),
        (NUMBER, "decr k 95\r\n", true),
        (NUMBER, "incr k 18446744073709551615 noreply\r\n", true),
    ];
    commands(&rows);
}

#[test]
fn meta_commands_are_seen_at_once() {
    let rows = [
        (VALUE, "ms k 5 F1\r\nother\r\n", true),
        (VALUE, "ms k 5 q\r\nother\r\n", true),
        (VALUE, "ms k 5 ME\r\nother\r\n", false),
        (VALUE, "ms k 1 MA\r\nx\r\n", true),
        (VALUE, "ms k 1 MP\r\nx\r\n", true),
        (VALUE, "ms k 5 MR\r\nother\r\n", true),
        (VALUE, "ms k 5 MS T-1\r\nother\r\n", true),
        (VALUE, "ms k 5 E12345\r\nother\r\n", true),
        (VALUE, "ms k 5 C1\r\nother\r\n", false),
        // With an older version: it is stored, and stale.
        (VALUE, "ms k 5 I C1\r\nother\r\n", true),
        (VALUE, "ms aw== 5 b\r\nother\r\n", true),
        (VALUE, "md k\r\n", true),
        (VALUE, "md k q\r\n", true),
        (VALUE, "md k C1\r\n", false),
        (VALUE, "md k I\r\n", false),
        (VALUE, "md k I T30\r\n", false),
        (VALUE, "md k x\r\n", true),
        (VALUE, "md aw== b\r\n", true),
        (VALUE, "mg k T-1\r\n", true),
        (VALUE, "mg k v T-1\r\n", true),
        (VALUE, "mg k s v T100\r\n", false),
        (VALUE, "md k\r\nmg k N30 v\r\n", true),
        (NUMBER, "ma k\r\n", true),
        (NUMBER, "ma k MD D90\r\n", true),
        (NUMBER, "ma k T-1\r\n", true),
        (NUMBER, "ma k E777\r\n", true),
        (NUMBER, "md k\r\nma k N0 J13\r\n", true),
    ];
    commands(&rows);
}

fn commands(rows: &[(&str, &str, bool)]) {
    Wire::run(|wire| {
        let server = wire.server(&["-I", "64k"]);
        let mut client = wire.client();
        for &(setup, change, changes) in rows {
            // A flush of the row before may be due.
            tcp(&server, b"flush_all\r\n");
            tcp(&server, setup.as_bytes());
            let before = warm(&server, &mut client);
            let said = tcp(&server, change.as_bytes());
            let name = &change[..change.len().min(60)];
            let after = same(name, &server, &mut client);
            assert_eq!(after != before, changes, "{name}: {said}: {after}");
        }
    });
}

#[test]
fn cas_is_seen_at_once() {
    Wire::run(|wire| {
        let server = wire.server(&[]);
        let mut client = wire.client();
        for round in 0..20 {
            tcp(&server, VALUE.as_bytes());
            warm(&server, &mut client);
            // The version in a datagram is one to compare with.
            let gets = client.ask("gets k\r\n");
            let version = gets.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
            let done = tcp(&server, format!("cas k 0 0 2 {version}\r\n{:02}\r\n", round).as_bytes());
            assert_eq!(done, "STORED\r\n");
            assert_eq!(same("cas", &server, &mut client), format!("VALUE k 0 2\r\n{round:02}\r\nEND\r\n"));
            let refused = tcp(&server, format!("cas k 0 0 1 {version}\r\nx\r\n").as_bytes());
            assert_eq!(refused, "EXISTS\r\n");
        }
    });
}

#[test]
fn binary_commands_are_seen_at_once() {
    let store = [&7_u32.to_be_bytes()[..], &0_u32.to_be_bytes()].concat();
    let add = |delta: u64| [&delta.to_be_bytes()[..], &[0; 12]].concat();
    let soon_gone = 1_u32.to_be_bytes();
    let none: &[u8] = &[];
    let rows = [
        (0x01, &store[..], "other", true),
        (0x11, &store[..], "other", true),
        (0x02, &store[..], "other", false),
        (0x12, &store[..], "other", false),
        (0x03, &store[..], "other", true),
        (0x13, &store[..], "other", true),
        (0x0e, none, "more", true),
        (0x0f, none, "more", true),
        (0x19, none, "more", true),
        (0x1a, none, "more", true),
        (0x04, none, "", true),
        (0x14, none, "", true),
    ];
    Wire::run(|wire| {
        let server = wire.server(&[]);
        let mut client = wire.client();
        let mut row = |setup: &str, name: String, request: Vec<u8>, changes: bool| {
            tcp(&server, b"flush_all\r\n");
            tcp(&server, setup.as_bytes());
            let before = warm(&server, &mut client);
            send_binary(&server, request);
            let after = same(&name, &server, &mut client);
            assert_eq!(after != before, changes, "{name}: {after}");
        };
        for (code, extras, value, changes) in rows {
            row(VALUE, format!("code {code:#x}"), binary(code, extras, "k", value.as_bytes()), changes);
        }
        for (code, delta) in [(0x05, 3), (0x06, 95), (0x15, 3), (0x16, 95)] {
            row(NUMBER, format!("code {code:#x}"), binary(code, &add(delta), "k", &[]), true);
        }
        for code in [0x08, 0x18] {
            row(VALUE, format!("code {code:#x}"), binary(code, &[], "", &[]), true);
        }
        // Touched, to be gone within a second.
        for code in [0x1c, 0x1d, 0x1e, 0x23, 0x24] {
            tcp(&server, VALUE.as_bytes());
            warm(&server, &mut client);
            send_binary(&server, binary(code, &soon_gone, "k", &[]));
            gone_together(&format!("code {code:#x}"), &server, &mut client);
        }
    });
}

/// Waits until the key is gone. Once a client over TCP has not found it, no datagram finds it.
fn gone_together(name: &str, server: &Server, client: &mut Client) {
    let mut stream = server.connect();
    let begun = Instant::now();
    loop {
        std::io::Write::write_all(&mut stream, b"get k\r\nmn\r\n").unwrap();
        let mut answer = [0; 200];
        let mut read = 0;
        while !answer[..read].ends_with(b"MN\r\n") {
            read += std::io::Read::read(&mut stream, &mut answer[read..]).unwrap();
        }
        let datagram = client.get("k");
        if answer.starts_with(b"END\r\n") {
            assert_eq!(datagram, "END\r\n", "{name}");
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{name}: it never ends");
    }
}

#[test]
fn time_is_the_servers() {
    Wire::run(|wire| {
        let server = wire.server(&[]);
        let mut client = wire.client();
        for change in [
            "set k 0 1 5\r\nvalue\r\n",
            "touch k 1\r\n",
            "gat 1 k\r\n",
            "mg k T1\r\n",
            "ms k 1 T1\r\nx\r\n",
            "flush_all 1\r\n",
        ] {
            tcp(&server, b"flush_all\r\n");
            tcp(&server, VALUE.as_bytes());
            warm(&server, &mut client);
            tcp(&server, change.as_bytes());
            gone_together(change, &server, &mut client);
        }
        // The same the other way round: once a datagram has not found it, nothing does.
        for change in ["set k 0 1 5\r\nvalue\r\n", "flush_all 1\r\n"] {
            tcp(&server, b"flush_all\r\n");
            tcp(&server, VALUE.as_bytes());
            tcp(&server, change.as_bytes());
            soon("that a datagram finds nothing", || client.get("k") == "END\r\n");
            ask(&mut server.connect(), b"get k\r\n", b"END\r\n");
        }
    });
}

/// Sets many keys; returns their names.
fn fill(server: &Server, name: &str, count: usize, length: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|number| format!("{name}{number}")).collect();
    for some in keys.chunks(500) {
        let mut request = Vec::new();
        for key in some {
            let value = format!("{key:>length$}");
            request.extend_from_slice(format!("set {key} 0 0 {length} noreply\r\n{value}\r\n").as_bytes());
        }
        tcp(server, &request);
    }
    keys
}

/// Compares all keys' answers; returns how many are there.
fn all_same(server: &Server, client: &mut Client, keys: &[String]) -> usize {
    let mut there = 0;
    for some in keys.chunks(200) {
        // First: a GET over TCP might make an entry, or bring an item back.
        let datagrams: Vec<String> = some.iter().map(|key| client.get(key)).collect();
        for (key, datagram) in some.iter().zip(datagrams) {
            assert_eq!(datagram, tcp(server, format!("get {key}\r\n").as_bytes()), "{key}");
            there += usize::from(datagram != "END\r\n");
        }
    }
    there
}

#[test]
fn evicted_items_are_gone_for_datagrams() {
    Wire::run(|wire| {
        let server = wire.server(&["-m", "4", "-I", "64k", "-o", "slab_automove=0"]);
        let mut client = wire.client();
        let first = fill(&server, "first", 1000, 1000);
        first.iter().for_each(|key| _ = client.get(key));
        let second = fill(&server, "second", 3500, 1000);
        assert!(server.stat("evictions") > 500);
        let there = all_same(&server, &mut client, &[first, second].concat());
        assert!((1000..4000).contains(&there), "{there}");
        let before = server.stat("kernel_gets");
        // Smaller memory: pages are given back.
        let more = fill(&server, "third", 100, 1000);
        tcp(&server, b"cache_memlimit 2\r\n");
        all_same(&server, &mut client, &more);
        assert!(server.stat("kernel_gets") > before);
    });
}

#[test]
fn items_read_by_the_kernel_alone_are_kept() {
    Wire::run(|wire| {
        let server = wire.server(&["-m", "8", "-I", "64k"]);
        let mut client = wire.client();
        let hot = fill(&server, "hot", 1000, 500);
        for _ in 0..3 {
            hot.iter().for_each(|key| _ = client.get(key));
        }
        let before = server.stat("kernel_gets");
        fill(&server, "scanned", 16_000, 500);
        assert!(server.stat("evictions") > 1000);
        let kept = hot.iter().filter(|key| client.get(key) != "END\r\n").count();
        println!("{kept} of 1000 items that only the kernel read are kept");
        assert!(kept >= 900, "{kept}");
        assert!(server.stat("kernel_gets") >= before + 900);
    });
}

#[test]
fn moved_items_and_pages_are_seen() {
    Wire::run(|wire| {
        let server = wire.server(&["-m", "8", "-I", "64k"]);
        let mut client = wire.client();
        let small = fill(&server, "small", 20_000, 100);
        let some: Vec<String> = small.iter().step_by(40).cloned().collect();
        some.iter().for_each(|key| _ = client.get(key));
        let class = |server: &Server| {
            let stats = server.stats("slabs");
            let chunks = |name: &String| name.ends_with(":total_pages").then(|| stats[name].parse::<u64>().unwrap());
            let (name, _) =
                stats.keys().filter_map(|name| Some((name, chunks(name)?))).max_by_key(|two| two.1).unwrap();
            name.split(':').next().unwrap().to_owned()
        };
        let from = class(&server);
        // Another class takes the pages, one by one, and writes over them.
        let mut large = Vec::new();
        for round in 0..10 {
            let done = tcp(&server, format!("slabs reassign {from} 30\r\n").as_bytes());
            assert!(done.starts_with("OK") || done.starts_with("NOSPARE"), "{done}");
            large.extend(fill(&server, &format!("large{round}-"), 100, 1200));
            some.iter().step_by(5).for_each(|key| _ = client.get(key));
        }
        assert!(server.stat("slabs_moved") > 0);
        let there = all_same(&server, &mut client, &[some, large].concat());
        assert!(there > 100, "{there}");
    });
}

#[test]
fn items_on_flash_return_to_the_kernel() {
    Wire::run(|wire| {
        let folder = tempfile::tempdir().unwrap();
        let flash = format!("--flash={}:64m", folder.path().join("flash").display());
        let server = wire.server(&["-m", "8", "-I", "64k", &flash]);
        let mut client = wire.client();
        let keys = fill(&server, "k", 12_000, 1000);
        keys.iter().for_each(|key| _ = client.get(key));
        let there = all_same(&server, &mut client, &keys);
        println!("{there} of 12000 items are there, {} came from flash", server.stat("get_extstore"));
        assert!(server.stat("get_extstore") > 0 && there > 1000, "{there}");
        // Those that are asked for again are in memory again.
        let some: Vec<String> = keys.iter().step_by(60).cloned().collect();
        let before = server.stat("kernel_gets");
        for _ in 0..6 {
            some.iter().for_each(|key| _ = client.get(key));
        }
        all_same(&server, &mut client, &some);
        let in_kernel = server.stat("kernel_gets") - before;
        assert!(in_kernel > 100, "{in_kernel}");
    });
}
