//! On what terms clients are served: names and passwords, how many, how much may be leased, how servers follow each other.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::process::{Command, Stdio};

use rdmakv_proto::messages::RemoteSegment;
use rdmakv_proto::messages::{Kind, Refusal, Reply, Request, Tag};
use rustix::time::{ClockId, clock_gettime};

use super::client::{Client, Iwarp, Shm, Way, cache};
use super::common::{SERVER, Server, ask, soon};
use super::{fabric, on_both};

on_both! {
    many_tags_are_granted_within_shares(&["-m", "64", "--registered-memory", "8", "--tag-lease", "60s"]) = shares;
    reconnecting_client_stays_within_total(&["-m", "64", "--registered-memory", "8", "--tag-lease", "60s"]) = again_and_again;
    leases_end_and_what_they_held_is_free_again(&["--tag-lease", "100ms", "-m", "64"]) = ends;
    a_key_that_changes_all_the_time_gets_no_tags(&["--tag-lease", "60s"]) = churn;
    reads_that_nobody_asked_for_count(&["--tag-lease", "3s"]) = seen;
    statistics_say_what_is_there(&[]) = statistics;
}

const MB: u64 = 1 << 20;
/// Pages that may be leased of 8 MB, where nothing is pinned.
const LEASED: u64 = 2048 - 2 * 257;

/// Stores so many items of 4000 bytes, and asks for tags of all; how many it gets.
fn tags<W: Way>(client: &mut Client<'_, W>, of: &str, count: usize) -> usize {
    let mut given = 0;
    for n in 0..count {
        let key = format!("{of}{n}");
        let (answer, _) = client.run(None, &[format!("set {key} 0 0 4000\r\n").as_bytes(), &[b'x'; 4000], b"\r\n"]);
        assert_eq!(answer, "STORED\r\n");
        let (_, kind, answer) = client.get(&key, true);
        let Reply::Item { tag, .. } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
        given += usize::from(tag.is_some());
    }
    given
}

fn shares<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let name = address.split(':').next().unwrap();
    let stat = |client: &mut Client<'_, W>, name_of: &str| client.stat(&format!("{name}_{name_of}"));
    let mut first = Client::new(way, &cache, address);
    let limit = stat(&mut first, "registered_limit_bytes");
    assert_eq!(limit, 8 * MB);
    // No other client wants any: there are no shares, but of pins. An item here is on two pages or one.
    let pins = name == "verbs";
    let given = tags(&mut first, "a", 600);
    assert!(if pins { (100..600).contains(&given) } else { given == 600 }, "{given}");
    // All together leave room for two of the largest items, of the 2048 pages that may be registered.
    let mut others: Vec<_> = (0..6).map(|_| Client::new(way, &cache, address)).collect();
    for (n, other) in others.iter_mut().enumerate() {
        tags(other, &format!("b{n}-"), 400);
        assert!(stat(other, "leased_pages") <= LEASED);
        assert!(stat(other, "registered_bytes") <= limit);
    }
    assert!(stat(&mut first, "leased_pages") > if pins { LEASED / 4 } else { LEASED / 2 });
    assert!(stat(&mut first, "refused_budget") > 0, "{}", first.run(None, &[b"stats\r\n"]).0);
    // All are served all the same, and what could not be leased can be stored and read.
    assert_eq!(first.get("b5-399", false).1, Kind::Item);
}

fn again_and_again<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let name = address.split(':').next().unwrap();
    for round in 0..5 {
        let mut client = Client::new(way, &cache, address);
        let given = tags(&mut client, &format!("{round}-"), 300);
        assert!(round > 0 || given > 100, "{given} at first");
        // It can have its former ones again.
        let (_, kind, answer) = client.get("0-0", true);
        let Reply::Item { tag, .. } = Reply::decode(kind, &answer).unwrap() else { panic!("{kind:?}") };
        assert!(tag.is_some(), "round {round}");
        drop(client);
        soon("that he is gone", || server.stat(&format!("{name}_connections")) == 0);
        let leased = server.stat(&format!("{name}_leased_pages"));
        assert!((100..=LEASED).contains(&leased), "{leased} pages are leased after round {round}");
    }
}

fn ends<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let name = address.split(':').next().unwrap();
    let mut client = Client::new(way, &cache, address);
    assert_eq!(tags(&mut client, "a", 100), 100);
    for n in 0..50 {
        client.run(None, &[format!("delete a{n}\r\n").as_bytes()]);
    }
    soon("that leases end", || client.stat("leased_chunks") == 0);
    assert_eq!(client.stat("leased_dead_chunks"), 0);
    soon("that their memory is nobody's", || client.stat(&format!("{name}_leased_pages")) == 0);
    assert_eq!(client.stat("curr_items"), 50);
    // A client that leaves with tags leaves nothing behind.
    assert_eq!(tags(&mut client, "a", 100), 100);
    drop(client);
    let mut client = Client::new(way, &cache, address);
    soon("that leases end", || client.stat("leased_chunks") == 0);
}

fn churn<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let mut client = Client::new(way, &cache, address);
    let given = (0..20).filter(|n| client.set("a", format!("value {n}").as_bytes()).is_some()).count();
    assert!(given <= 3, "{given}");
    assert!(client.set("b", b"x").is_some(), "other keys have nothing to do with it");
    let (text, _) = client.run(None, &[b"stats\r\n"]);
    assert!(text.contains("_refused_churn 1"), "{text}");
}

fn seen<W: Way>(_: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let name = address.split(':').next().unwrap();
    let mut client = Client::new(way, &cache, address);
    let tag = client.set("a", b"value").unwrap();
    for _ in 0..10 {
        assert_eq!(client.read_value(&tag, "a").as_deref(), Some(&b"value"[..]));
    }
    if name != "iwarp" {
        // The server does not see them; the client tells.
        let mut bytes = Vec::new();
        let kind = Request::seen(&mut bytes, tag.segment.address, tag.segment.key, 10);
        // Tags of other clients count for nothing.
        Request::seen(&mut bytes, tag.segment.address + 8, tag.segment.key, 1000);
        Request::seen(&mut bytes, u64::MAX, 0, 1000);
        client.tell(kind, &bytes).unwrap();
    }
    soon("that the reads count", || client.stat(&format!("{name}_seen_reads")) == 10);
    soon("that they are hits", || client.stat("get_hits") == 10);
    assert_eq!(client.stat("cmd_get"), 10);
    if name == "shm" {
        // A client that ends says so last, and is heard.
        let mut bytes = Vec::new();
        let kind = Request::seen(&mut bytes, tag.segment.address, tag.segment.key, 7);
        client.tell(kind, &bytes).unwrap();
        drop(client);
        let mut client = Client::new(way, &cache, address);
        soon("that the last reads count", || client.stat("shm_seen_reads") == 17);
    }
}

fn statistics<W: Way>(server: &Server, way: &W, address: &str) {
    let cache = cache(way);
    let name = address.split(':').next().unwrap();
    let mut client = Client::new(way, &cache, address);
    client.set("a", b"value");
    client.get("a", true);
    for (stat, wanted) in [("connections", 1), ("total_connections", 1), ("grants", 2), ("gets_by_message", 1)] {
        assert_eq!(client.stat(&format!("{name}_{stat}")), wanted, "{stat}");
    }
    let (settings, _) = client.run(None, &[b"stats settings\r\n"]);
    assert!(
        settings.contains("STAT tag_lease_ms 1000\r\n") && settings.contains("STAT registration_policy probation\r\n")
    );
    drop(client);
    soon("that it is gone", || server.stat(&format!("{name}_connections")) == 0);
}

#[test]
fn the_metrics_have_the_fabrics() {
    let server = Server::on_a_free_port(&["--http", "127.0.0.1:0", "--tag-lease", "60s"]);
    let way = Shm::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "shm"));
    client.set("a", b"value");
    let (_, text) = server.http("/metrics");
    for line in [
        "rdmakv_fabric_connections{fabric=\"shm\"} 1",
        "rdmakv_fabric_leased_chunks{fabric=\"shm\"} 1",
        "rdmakv_fabric_events_total{fabric=\"shm\",event=\"grants\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[test]
fn names_and_passwords_are_asked_for_over_fabrics_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    std::fs::write(&file, "me:secret\n").unwrap();
    let server = Server::on_a_free_port(&["-Y", file.to_str().unwrap()]);
    let way = Shm::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "shm"));
    assert_eq!(client.run(None, &[b"get a\r\n"]).0, "CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(client.run(None, &[b"set a 0 0 1\r\nx\r\n"]).0, "CLIENT_ERROR bad authentication token format\r\n");
    let refused = |(_, kind, answer): (u32, Kind, Vec<u8>)| match Reply::decode(kind, &answer).unwrap() {
        Reply::Refused { why: Refusal::NotNow, text } => text.contains("unauthenticated"),
        _ => false,
    };
    assert!(refused(client.get("a", true)));
    let transfer = client.open("a", true, 100_000);
    assert!(refused(client.hear().unwrap()) && !client.finish(transfer));
    assert!(refused(client.put("a", &[b'x'; 10_000], 1)));
    assert_eq!(client.run(None, &[b"set auth 0 0 9\r\nme secret\r\n"]).0, "STORED\r\n");
    assert!(client.set("a", b"value").is_some());
    assert_eq!(client.get("a", true).1, Kind::Item);
    // Nor may a command that is refused bring the tag of an item that is there.
    let mut other = Client::new(&way, &cache, &fabric(&server, "shm"));
    let (answer, tag) = other.run(Some(b"a"), &[b"version\r\n"]);
    assert_eq!((answer.as_str(), tag), ("CLIENT_ERROR unauthenticated\r\n", None));
}

#[test]
fn no_more_come_in_than_there_may_be() {
    let server = Server::on_a_free_port(&["--fabric-connections", "2"]);
    let way = Shm::new();
    let cache = cache(&way);
    let address = fabric(&server, "shm");
    let mut there: Vec<_> = (0..2).map(|_| Client::new(&way, &cache, &address)).collect();
    let mut bytes = Vec::new();
    let kind = Request::hello(&mut bytes, false);
    let comes_in = || Client::silent(&way, &cache, &address).is_ok_and(|mut next| next.ask(kind, &bytes).is_some());
    assert!(!comes_in());
    soon("that it is counted", || there[0].stat("shm_rejected_connections") == 1);
    there.pop();
    // As one goes, another comes in.
    soon("that there is a place", comes_in);
}

#[test]
#[ignore = "takes ten seconds"]
fn who_does_not_say_hello_takes_no_place_for_long() {
    let server = Server::on_a_free_port(&["--fabric-connections", "1"]);
    let way = Shm::new();
    let cache = cache(&way);
    let address = fabric(&server, "shm");
    let mut silent = Client::silent(&way, &cache, &address).unwrap();
    for _ in 0..400 {
        silent.look();
        if silent.closed {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(silent.closed);
    soon("that there is a place", || Client::silent(&way, &cache, &address).is_ok());
}

#[test]
fn without_fabrics_there_are_none() {
    let server = Server::on_a_free_port(&["--fabric", "none"]);
    assert!(!server.lines.iter().any(|line| line.contains("shm:")));
    let mut stream = server.connect();
    ask(&mut stream, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
}

/// Runs a server under a limit on the sizes of files, in blocks of the shell's.
fn under_a_limit(flags: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 64; exec \"$@\"", "sh", SERVER, "-p", "-1", "-l", "127.0.0.1"]).args(flags);
    command
}

#[test]
fn a_limit_on_file_sizes_is_no_signal() {
    // Items are in anonymous memory then.
    let server = Server::run(&mut under_a_limit(&["--fabric", "none"]));
    let mut stream = std::net::TcpStream::connect(server.address("tcp")).unwrap();
    ask(&mut stream, b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    drop(server);
    // Over shared memory clients map a file: an error that names the remedy.
    let name = format!("shm:@rdmakv-limited-{}", std::process::id());
    let output = under_a_limit(&["--fabric", &name]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the limit on file sizes does not allow it: raise it (ulimit -f)"), "{said}");
}

#[test]
fn peers_of_another_protocol_are_counted() {
    let server = Server::on_a_free_port(&[]);
    let address = fabric(&server, "shm");
    let place = SocketAddrUnix::new_abstract_name(address.strip_prefix("shm:@").unwrap().as_bytes()).unwrap();
    for _ in 0..20 {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &place).unwrap();
        rustix::net::send(&socket, b"GET / HTTP/1.1", SendFlags::NOSIGNAL).unwrap();
    }
    soon("that they are counted", || server.stat("shm_rejected_connections") == 20);
    let way = Shm::new();
    let cache = cache(&way);
    assert!(Client::new(&way, &cache, &address).stat("shm_connections") == 1);
}

/// Starts a server that keeps its errors in this folder.
fn heard(folder: &std::path::Path, flags: &[&str]) -> Server {
    let mut command = Command::new(SERVER);
    command.args(["-p", "-1", "-l", "127.0.0.1", "--tag-lease", "300ms"]).args(flags);
    Server::run(command.stderr(Stdio::from(std::fs::File::create(folder.join("said")).unwrap())))
}

#[test]
fn who_finishes_waits_for_clients_over_fabrics_too() {
    let mut server = Server::on_a_free_port(&[]);
    let way = Shm::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "shm"));
    server.signal("-USR1");
    // A client that goes on to ask is answered; a silent one is disconnected.
    soon("that nobody is let in", || {
        assert_eq!(client.run(None, &[b"mn\r\n"]).0, "MN\r\n");
        Client::silent(&way, &cache, &fabric(&server, "shm")).is_err()
    });
    assert_eq!(client.hear(), None);
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn a_server_that_ends_takes_nobody_by_surprise() {
    let mut server = Server::on_a_free_port(&[]);
    let way = Shm::new();
    let cache = cache(&way);
    let mut client = Client::new(&way, &cache, &fabric(&server, "shm"));
    let tag = client.set("a", b"value").unwrap();
    server.signal("-TERM");
    assert_eq!(client.hear(), None);
    assert!(server.process.wait().unwrap().success());
    assert_eq!(client.read_value(&tag, "a"), None);
}

#[test]
fn the_table_says_by_which_clock_items_end() {
    let server = Server::on_a_free_port(&[]);
    let way = Shm::new();
    let cache = cache(&way);
    let mut client = Client::silent(&way, &cache, &fabric(&server, "shm")).unwrap();
    let mut hello = Vec::new();
    let kind = Request::hello(&mut hello, true);
    client.ask(kind, &hello).expect("a welcome");
    let (_, kind, told) = client.hear().expect("the table");
    let Reply::Table(table) = Reply::decode(kind, &told).unwrap() else { panic!("{kind:?}") };
    let segment = RemoteSegment { length: 16, ..table.segments.iter().next().unwrap() };
    let head = client.read(&Tag { segment, incarnation: 0 }).unwrap();
    let beyond_boot = u64::from_le_bytes(head[8..].try_into().unwrap());
    let now =
        || (clock_gettime(ClockId::Boottime).tv_sec.cast_unsigned() * 1_000_000_000 + beyond_boot) / 1_000_000_000;
    let (before, said, after) = (now(), client.stat("time"), now());
    assert!((before..=after + 1).contains(&said), "{before} {said} {after}");
}

#[test]
fn guessed_tags_are_logged_and_hold_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let said = || std::fs::read_to_string(folder.path().join("said")).unwrap();
    let server = heard(folder.path(), &["--fabric", "iwarp:127.0.0.1:0"]);
    let address = fabric(&server, "iwarp");
    let way = Iwarp::new();
    let cache = cache(&way);
    let guess = |number: u32| {
        let mut client = Client::new(&way, &cache, &address);
        let mut tag = client.set(&number.to_string(), b"value").expect("a tag");
        tag.segment.key ^= 1 << number;
        assert_eq!(client.read(&tag), None);
    };
    (0..7).for_each(guess);
    let mut client = Client::new(&way, &cache, &address);
    assert_eq!((client.stat("iwarp_tag_guesses"), client.stat("iwarp_tag_throttles")), (7, 1));
    let line = "iwarp: 127.0.0.1 reads by a tag that its connection never had";
    soon("that it is logged", || said().contains(line));
    assert_eq!(said().matches(line).count(), 1);
}
