//! The client against the real server, over its fabrics.

use crate::common::{Server, soon};
use crate::{client, patient};
use rdmakv_client::{Client, Error, Options, Source, Stored, Value};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Returns a server, and how to reach it over this fabric.
fn start(fabric: &str, flags: &[&str]) -> (Server, String) {
    let place = if fabric == "iwarp" { &["--fabric", "iwarp:127.0.0.1:0"][..] } else { &[] };
    let server = Server::on_a_free_port(&[flags, place].concat());
    let start = format!("listening on {fabric}:");
    let found = server.lines.iter().find_map(|line| line.strip_prefix(&start));
    let address = format!("{fabric}:{}", found.expect("it says where it listens"));
    (server, address)
}

const FABRICS: [&str; 2] = ["shm", "iwarp"];

fn with_tcp(server: &Server, address: &str) -> String {
    format!("{address},tcp:{}", server.address("tcp"))
}

#[test]
fn operations_do_over_fabrics_what_they_say() {
    for fabric in FABRICS {
        let (_server, address) = start(fabric, &[]);
        crate::operations::everything_at(&address);
    }
}

#[test]
fn fabrics_are_served_without_a_port() {
    let server = Server::start(&["-p", "0", "--fabric", "iwarp:127.0.0.1:0"]);
    assert!(!server.lines.iter().any(|line| line.contains("tcp")), "{:?}", server.lines);
    let mut client = client([server.fabric("iwarp")]);
    assert!(client.set("a", b"b", ()).unwrap().is_stored());
    assert!(client.get("a").unwrap().is_some());
}

#[test]
fn values_of_every_size_are_read_one_sidedly() {
    for fabric in FABRICS {
        let (_server, address) = start(fabric, &["--tag-lease", "60s"]);
        let mut client = client([&address]);
        for size in [0, 1, 1000, 8191, 8192, 8193, 32_767, 32_768, 32_769, 500_000, 1_040_000] {
            let value: Vec<u8> = (0..size).map(|at| (at * 31 / 7) as u8).collect();
            let key = format!("key-{size}");
            let Stored::Yes(version) = client.set(&key, &value, ()).unwrap() else { panic!("it is stored") };
            let mut one_sided = 0;
            for _ in 0..20 {
                let got = client.get(&key).unwrap().unwrap();
                assert!(*got == value && got.version() == version, "{size}");
                one_sided += u32::from(got.source() == Source::OneSided);
            }
            assert!(one_sided >= 15, "{fabric} {size}: {one_sided}");
        }
    }
}

#[test]
fn no_client_reads_what_another_has_replaced() {
    for fabric in FABRICS {
        // Little memory, so that chunks are used again soon.
        let (server, address) = start(fabric, &["-m", "8", "--tag-lease", "50ms"]);
        let (server, address) = (&server, &with_tcp(&server, &address));
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let _done = Done(&done);
                // Over TCP, where leases are unknown.
                let mut client = client([format!("tcp:{}", server.address("tcp"))]);
                for round in 1..300_u64 {
                    let value = [round.to_le_bytes(); 100].concat();
                    match round % 50 {
                        0 => drop(client.delete("key").unwrap()),
                        _ => assert!(client.set("key", value, ()).unwrap().is_stored()),
                    }
                    written.store(round, SeqCst);
                    // Where all memory is leased, there is none for this.
                    let _ = client.set(format!("other-{}", round % 3000), [1; 3000], ());
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut client = client([address]);
                    let mut last = 0;
                    while !done.load(SeqCst) {
                        let before = written.load(SeqCst);
                        if let Some(value) = client.get("key").unwrap() {
                            let round = u64::from_le_bytes(value[..8].try_into().unwrap());
                            assert!(*value == *[round.to_le_bytes(); 100].concat(), "it is whole");
                            assert!(round >= before && round >= last, "{round} after {before}, {last}");
                            last = round;
                        }
                    }
                    assert_eq!(client.counters().errors, 0);
                });
            }
            writing.join().unwrap();
        });
    }
}

#[test]
fn killed_server_never_hangs_the_client() {
    for fabric in FABRICS {
        let (server, address) = start(fabric, &[]);
        let mut client = client([with_tcp(&server, &address)]);
        assert!(client.set("key", vec![1; 100_000], ()).unwrap().is_stored());
        assert_eq!(client.get("key").unwrap().unwrap().len(), 100_000);
        let under_way: Vec<_> = (0..30_u8)
            .map(|at| (client.iget("key").unwrap(), client.iset([at], vec![at; 60_000], ()).unwrap()))
            .collect();
        server.signal("-9");
        for (got, stored) in under_way {
            match client.wait(got) {
                Ok(value) => assert!(value.is_none_or(|value| value.len() == 100_000)),
                Err(Error::Unreachable { .. } | Error::TimedOut { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            match client.wait(stored) {
                Ok(_) | Err(Error::OutcomeUnknown { .. } | Error::Unreachable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop(server);
        // Its memory outlives it, and may be read as long as the lease lasts.
        soon("its end", || match client.get("key") {
            Ok(value) => value.is_some_and(|value| value.len() != 100_000),
            Err(error) => matches!(error, Error::Unreachable { .. }),
        });
        assert!(matches!(client.set("key", "", ()), Err(Error::Unreachable { .. })));
        assert_eq!(client.open(), 0);
    }
}

#[test]
fn stopped_server_times_out_then_recovers() {
    for fabric in FABRICS {
        let (server, address) = start(fabric, &[]);
        let options = Options { timeout: Duration::from_secs(1), ..patient() };
        let mut client = Client::with_options([&address], options).unwrap();
        soon("a value", || client.set("key", "value", ()).is_ok_and(|stored| stored.is_stored()));
        soon("an answer", || client.get("key").is_ok_and(|value| value.is_some()));
        server.stop();
        // It still finishes its current work.
        soon("the stop", || client.get("other").is_err());
        assert!(client.set("other", "", ()).is_err());
        server.signal("-CONT");
        soon("an answer", || client.get("key").is_ok_and(|value| value.is_some()));
        let is_one_sided = |value: Option<Value>| value.is_some_and(|value| value.source() == Source::OneSided);
        soon("a one-sided read", || client.get("key").is_ok_and(is_one_sided));
    }
}

#[test]
fn the_server_learns_what_was_read_without_it() {
    for fabric in FABRICS {
        let (server, address) = start(fabric, &["--tag-lease", "200ms"]);
        let mut client = client([&address]);
        assert!(client.set("key", "value", ()).unwrap().is_stored());
        soon("a report", || {
            assert!(client.get("key").unwrap().is_some());
            server.stat("get_one_sided") > 0
        });
        drop(client);
    }
}

#[test]
fn password_works_over_every_transport() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("passwords");
    std::fs::write(&file, "me:secret\n").unwrap();
    for fabric in FABRICS {
        let (server, address) = start(fabric, &["-Y", file.to_str().unwrap()]);
        for address in [address, format!("tcp:{}", server.address("tcp"))] {
            let with = |password: &str| Options { login: Some(("me".to_owned(), password.to_owned())), ..patient() };
            let mut client = Client::with_options([&address], with("secret")).unwrap();
            assert!(client.set("key", "value", ()).unwrap().is_stored());
            assert_eq!(client.get("key").unwrap().unwrap(), b"value");
            let mut client = Client::with_options([&address], with("wrong")).unwrap();
            let error = client.get("key").unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
            assert!(error.to_string().contains("authentication failure"), "{error}");
        }
    }
}
