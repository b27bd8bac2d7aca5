//! Servers that go, stall, lie and come back.

use crate::common::Server;
use crate::{client, patient};
use rdmakv_client::{Client, Error, Options};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

fn impatient() -> Options {
    Options { timeout: Duration::from_millis(300), ..Options::default() }
}

/// A server that does this with its connections, one after the other.
fn by_hand(serve: impl Fn(usize, std::net::TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            serve(at, stream.unwrap());
        }
    });
    address
}

fn hear(stream: &mut impl Read) {
    let _ = stream.read(&mut [0; 1000]);
}

#[test]
fn lost_answer_is_unknown_for_set_repeated_for_get() {
    let address = by_hand(|at, mut stream| {
        hear(&mut stream);
        if at == 1 {
            stream.write_all(b"VA 1 f0 c1\r\nx\r\n").unwrap();
            hear(&mut stream);
        }
    });
    let mut client = client([&address]);
    // The first connection is closed without an answer, the second one answers.
    assert_eq!(client.get("a").unwrap().unwrap(), b"x");
    let error = client.set("a", "b", ()).unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert!(error.to_string().contains("set \"a\" at tcp:127.0.0.1:"), "{error}");
    assert_eq!(client.open(), 0);
}

#[test]
fn silent_server_times_out() {
    let address = by_hand(|_, stream| std::mem::forget(stream));
    let mut client = Client::with_options([&address], impatient()).unwrap();
    let error = client.get("a").unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let error = client.delete("a").unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    // Without a waiting caller, too.
    let ticket = client.iget("a").unwrap();
    while !client.test(&ticket).unwrap() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(client.wait(ticket), Err(Error::TimedOut { .. })));
    assert_eq!((client.counters().timeouts, client.open()), (3, 0));
}

#[test]
fn nonsense_ends_the_connection_and_is_said() {
    let address = by_hand(|_, mut stream| {
        hear(&mut stream);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        hear(&mut stream);
    });
    let mut client = client([&address]);
    let error = client.get("a").unwrap_err();
    assert!(matches!(error, Error::Nonsense { .. }), "{error}");
    let error = client.set("a", "", ()).unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
}

#[test]
fn nobody_there_is_said_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let back_off = (Duration::from_secs(3600), Duration::from_secs(3600));
    let mut client = Client::with_options([&address], Options { back_off, ..patient() }).unwrap();
    for _ in 0..20 {
        let error = client.set("a", "", ()).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
    // Not each of them tried to connect.
    assert_eq!(client.counters().failed_connections, 1);
}

#[test]
fn killed_server_is_found_again_without_leaks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv.sock");
    let start = || Server::start(&["-s", path.to_str().unwrap()]);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut client = client([path.to_str().unwrap()]);
    let mut before = None;
    for _ in 0..5 {
        let server = start();
        crate::common::soon("an answer", || client.set("a", "x", ()).is_ok());
        assert_eq!(client.get("a").unwrap().unwrap(), b"x");
        let under_way: Vec<_> = (0..50).map(|_| client.iset("b", vec![0; 50_000], ()).unwrap()).collect();
        server.signal("-9");
        for ticket in under_way {
            match client.wait(ticket) {
                Ok(_) | Err(Error::OutcomeUnknown { .. } | Error::Unreachable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop(server);
        assert!(matches!(client.get("a"), Err(Error::Unreachable { .. })));
        assert_eq!(client.open(), 0);
        // Other tests of this program have descriptors too; those of this one do not pile up.
        let now = descriptors();
        assert!(now < before.unwrap_or(now) + 100);
        before.get_or_insert(now);
    }
}
