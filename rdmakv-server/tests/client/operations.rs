//! The results of each operation, over TCP and a Unix socket, at this server and at memcached.

use crate::common::Server;
use crate::{client, patient};
use rdmakv_client::{Client, Data, Error, Expire, Options, Source, Stored, Terms};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn version(stored: Stored) -> u64 {
    let Stored::Yes(version) = stored else { panic!("{stored:?}") };
    version
}

pub(crate) fn everything_at(server: &str) {
    let mut client = client([server]);
    let minute = Duration::from_secs(60);
    assert!(client.get("a").unwrap().is_none());
    let terms = Terms { flags: 7, expire: Expire::In(minute) };
    let first = version(client.set("a", "one", terms).unwrap());
    let value = client.gets("a").unwrap().unwrap();
    assert_eq!((&value[..], value.flags(), value.version()), (&b"one"[..], 7, first));
    assert_eq!(value.source() == Source::Socket, client.fabric(0).is_none());
    assert_eq!(client.add("a", "two", ()).unwrap(), Stored::NotStored);
    assert_eq!(client.replace("b", "two", ()).unwrap(), Stored::NotStored);
    assert_eq!(client.append("b", "two").unwrap(), Stored::NotStored);
    assert_eq!(client.cas("b", "two", first, ()).unwrap(), Stored::NotFound);
    let second = version(client.cas("a", "two", first, ()).unwrap());
    assert_eq!(client.cas("a", "three", first, ()).unwrap(), Stored::Exists);
    assert!(second != first && client.append("a", "-").unwrap().is_stored());
    assert!(client.prepend("a", "+").unwrap().is_stored());
    assert_eq!(client.gat("a", minute).unwrap().unwrap(), b"+two-");
    assert!(client.touch("a", minute).unwrap() && !client.touch("b", minute).unwrap());
    assert!(client.delete("a").unwrap() && !client.delete("a").unwrap());
    assert!(client.set("n", "41", ()).unwrap().is_stored());
    assert_eq!((client.incr("n", 1).unwrap(), client.decr("n", 50).unwrap()), (Some(42), Some(0)));
    assert_eq!(client.incr("m", 1).unwrap(), None);
    // Ended operations are gone.
    assert!(client.set("e", "x", Duration::ZERO).unwrap().is_stored());
    assert!(client.get("e").unwrap().is_none());
    // Any bytes are a value, and nearly any a key.
    let binary: Vec<u8> = (0..=255).collect();
    for key in [&b"with space"[..], b"\r\n", &[0; 186], &[255; 250], &[b'k'; 250], &binary[..100]] {
        assert!(client.set(key, &binary, ()).unwrap().is_stored());
        assert_eq!(&client.get(key).unwrap().unwrap()[..], binary);
    }
    let large: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7 / 8) as u8).collect();
    assert!(client.set("large", &large, ()).unwrap().is_stored());
    assert_eq!(client.get("large").unwrap().unwrap().into_vec(), large);
    assert!(client.set("empty", "", ()).unwrap().is_stored());
    assert_eq!(client.get("empty").unwrap().unwrap().len(), 0);
    let error = client.set("huge", vec![0; 2 << 20], ()).unwrap_err();
    assert!(matches!(&error, Error::Refused { said, .. } if said.contains("too large")), "{error}");
    let error = client.incr("empty", 1).unwrap_err();
    assert!(error.to_string().starts_with("incr \"empty\" at "), "{error}");
    // After an error the connection still stands.
    assert_eq!(client.counters().lost_connections, 0);
    assert!(client.version()[0].1.as_ref().unwrap().starts_with(|first: char| first.is_ascii_digit()));
    let stats = client.stats("");
    assert!(stats[0].1.as_ref().unwrap().iter().any(|(name, _)| name == "curr_items"));
    assert!(client.stats("settings")[0].1.as_ref().unwrap().len() > 5);
    assert!(client.stats("no-such-statistics-there")[0].1.as_ref().map_or(true, Vec::is_empty));
    assert!(*client.flush(Duration::ZERO)[0].1.as_ref().unwrap());
    assert!(client.get("n").unwrap().is_none());
}

#[test]
fn operations_do_over_tcp_what_they_say() {
    let server = Server::on_a_free_port(&[]);
    everything_at(&format!("tcp:{}", server.address("tcp")));
}

#[test]
fn operations_do_over_a_unix_socket_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv.sock");
    let _server = Server::start(&["-s", path.to_str().unwrap()]);
    everything_at(&format!("unix:{}", path.display()));
}

struct Memcached(Child);

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn operations_do_the_same_at_memcached() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memcached.sock");
    let started = Command::new("memcached")
        .args(["-u", "root", "-s", path.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(process) = started else {
        eprintln!("SKIPPED: the client against memcached: there is none (Debian: apt-get install memcached)");
        return;
    };
    let _memcached = Memcached(process);
    crate::common::soon("memcached's socket", || std::os::unix::net::UnixStream::connect(&path).is_ok());
    everything_at(path.to_str().unwrap());
}

#[test]
fn concurrent_operations_keep_their_answers() {
    let server = Server::on_a_free_port(&[]);
    let address = server.address("tcp");
    let mut client = Client::with_options([&address], Options { window: 64, ..patient() }).unwrap();
    // More than the window, with values that fill every buffer on the way.
    let value = |key: usize| vec![key as u8; key * 331 % 90_000];
    let tickets: Vec<_> = (0..60).map(|key| client.iset(format!("{key}"), value(key), ()).unwrap()).collect();
    let mut given_back = 0;
    for (key, ticket) in tickets.into_iter().enumerate() {
        let (stored, data) = client.wait_for_data(ticket);
        assert!(stored.unwrap().is_stored());
        given_back += usize::from(matches!(data, Data::Vec(vec) if vec == value(key)));
    }
    assert_eq!((given_back, client.open()), (60, 0));
    for key in 60..500 {
        drop(client.bset(format!("{key}"), value(key), ()).unwrap());
    }
    for (key, got) in client.get_many((0..500).map(|key| key.to_string())).into_iter().enumerate() {
        assert_eq!(&got.unwrap().unwrap()[..], value(key), "{key}");
    }
}

#[test]
fn a_full_window_is_said_or_waited_for() {
    let server = Server::on_a_free_port(&[]);
    let mut client = Client::with_options([server.address("tcp")], Options { window: 3, ..patient() }).unwrap();
    let tickets: Vec<_> = (0..3).map(|_| client.iget("a").unwrap()).collect();
    assert!(matches!(client.iget("a"), Err(Error::Full { most: 3, .. })));
    // Results that are never taken hold their places.
    assert!(matches!(client.bget("a"), Err(Error::Full { .. })));
    while !client.test(&tickets[2]).unwrap() {}
    let mut other = crate::client([server.address("tcp")]);
    assert!(matches!(other.test(&tickets[0]), Err(Error::OtherClient)));
    drop(tickets);
    for _ in 0..10 {
        drop(client.bget("a").unwrap());
    }
    assert!(client.get("a").unwrap().is_none());
}

#[test]
fn keys_are_spread_over_the_servers_and_found_again() {
    let servers: Vec<Server> = (0..3).map(|_| Server::on_a_free_port(&[])).collect();
    let mut client = client(servers.iter().map(|server| server.address("tcp")));
    for key in 0..300 {
        assert!(client.set(format!("{key}"), format!("v{key}"), ()).unwrap().is_stored());
    }
    for (server, (text, stats)) in servers.iter().zip(client.stats("")) {
        assert!(text.contains(&server.address("tcp")));
        let stats = stats.unwrap();
        let items: u32 = stats.iter().find(|(name, _)| name == "curr_items").unwrap().1.parse().unwrap();
        assert!((40..180).contains(&items), "{items}");
    }
    let got = client.get_many((0..300).map(|key| key.to_string()));
    assert!(got.into_iter().enumerate().all(|(key, got)| got.unwrap().unwrap() == *format!("v{key}").as_bytes()));
}

#[test]
fn what_is_no_key_is_told_before_anything_is_sent() {
    let mut client = Client::new(["tcp:127.0.0.1:1"]).unwrap();
    for key in [&b""[..], &[b'k'; 251], &[b' '; 187]] {
        assert!(matches!(client.get(key), Err(Error::Key { .. })));
    }
    assert!(matches!(Client::new(Vec::<String>::new()), Err(Error::NoServer)));
}
