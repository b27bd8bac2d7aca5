//! Fabrics that go: what falls back, what is unknown, what comes back, and what is left.

use crate::by_hand::Running;
use crate::common::{Server, soon};
use crate::{client, patient};
use rdmakv_client::{Client, Error, Options, Source};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Some tests wait until a time-out is over: it is short, and longer than a busy machine takes for what is answered.
fn impatient() -> Options {
    Options { timeout: Duration::from_secs(3), ..patient() }
}

fn on_each_fabric(test: impl Fn(Running)) {
    test(Running::over_shm());
    test(Running::over_iwarp());
}

/// A server over a fabric, and another one over TCP in the place of its sockets. Both have the key, with different values.
fn with_tcp(test: impl Fn(Running, &mut Client)) {
    let tcp = Server::on_a_free_port(&[]);
    let address = tcp.address("tcp");
    assert!(client([&address]).set("key", "from tcp", ()).unwrap().is_stored());
    on_each_fabric(|server| {
        server.store.put(b"key", b"from the fabric", 0);
        let mut client = Client::with_options([format!("{},tcp:{address}", server.address)], impatient()).unwrap();
        // On a busy machine it may take so long to come up that the socket is asked first.
        soon("the fabric", || matches!(client.get("key"), Ok(Some(value)) if value == *b"from the fabric"));
        test(server, &mut client);
    });
}

#[test]
fn reads_fall_back_to_tcp_and_return() {
    with_tcp(|server, client| {
        server.store.knobs.tags.store(false, SeqCst);
        server.store.knobs.silent.store(true, SeqCst);
        // A tag is no use after its connection.
        assert_eq!(client.get("key").unwrap().unwrap().source(), Source::OneSided);
        // The socket answers a request that the fabric does not, within the same time.
        assert!(client.get("other").unwrap().is_none());
        // One that says nothing for all of that time is given up.
        soon("the end of the fabric", || {
            client.get("other").unwrap().is_none() && client.counters().lost_connections > 0
        });
        server.store.knobs.silent.store(false, SeqCst);
        // By one of the ways, at once; then by the fabric again.
        assert!(client.get("key").unwrap().is_some());
        soon("the fabric", || client.get("key").unwrap().unwrap().source() == Source::Message);
        assert_eq!(client.get("key").unwrap().unwrap(), b"from the fabric");
    });
}

#[test]
fn interrupted_reads_repeat_and_mutations_do_not() {
    with_tcp(|server, client| {
        server.store.knobs.hangs_up.store(true, SeqCst);
        assert!(client.get("other").unwrap().is_none());
        soon("the fabric", || client.get("key").unwrap().unwrap().source() != Source::Socket);
        server.store.knobs.hangs_up.store(true, SeqCst);
        let error = client.set("key", "new", ()).unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
        assert!(error.to_string().contains(&server.address), "{error}");
        soon("the fabric", || client.get("key").unwrap().unwrap().source() != Source::Socket);
        // Nor where the value is read out of the client's memory.
        server.store.knobs.hangs_up.store(true, SeqCst);
        let ticket = client.iset("key", vec![1; 100_000], ()).unwrap();
        assert!(matches!(client.wait(ticket), Err(Error::OutcomeUnknown { .. })));
        assert_eq!(client.open(), 0);
    });
}

#[test]
fn what_the_fabric_does_not_take_goes_over_tcp() {
    with_tcp(|server, client| {
        server.store.knobs.refuses.store(true, SeqCst);
        assert!(client.get("new").unwrap().is_none());
        assert!(client.set("new", "value", ()).unwrap().is_stored());
        assert_eq!(client.get("new").unwrap().unwrap().source(), Source::Socket);
        assert!(client.delete("new").unwrap() && client.counters().refused >= 4);
    });
    // Where there is nothing else, it is as the server says.
    on_each_fabric(|server| {
        server.store.knobs.refuses.store(true, SeqCst);
        let mut client = Client::with_options([&server.address], impatient()).unwrap();
        let error = client.get("key").unwrap_err();
        assert!(matches!(&error, Error::Refused { said, .. } if said == "not now"), "{error}");
    });
}

#[test]
fn untaken_mutation_is_reported_not_done() {
    let server = Running::over_shm();
    // A connection here is accepted and never answered: it takes as long as it may.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = format!("{},{}", server.address, silent.local_addr().unwrap());
    let login = Some(("me".to_owned(), "secret".to_owned()));
    let (timeout, connect_timeout) = (Duration::from_secs(3), Duration::from_secs(30));
    let options = Options { login, timeout, connect_timeout, ..Options::default() };
    let mut client = Client::with_options([addresses], options).unwrap();
    server.store.put(b"key", b"value", 0);
    assert_eq!(client.get("key").unwrap().unwrap(), b"value");
    server.store.knobs.refuses.store(true, SeqCst);
    let deleted = client.idelete("key").unwrap();
    soon("the refusal", || {
        client.progress();
        client.counters().refused == 1
    });
    // It waits for the socket until its time is over.
    let error = client.wait(deleted).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    // And the fabric has no part in that.
    assert_eq!((client.counters().lost_connections, client.fabric(0).is_some()), (0, true));
}

#[test]
fn missing_fabric_costs_only_the_fabric() {
    let tcp = Server::on_a_free_port(&[]);
    let address = tcp.address("tcp");
    for fabric in ["shm:@nobody-listens-there", "iwarp:127.0.0.1:1", "verbs:127.0.0.1:1"] {
        let mut with_socket = client([format!("{fabric},{address}")]);
        for _ in 0..50 {
            assert!(with_socket.set("key", "value", ()).unwrap().is_stored());
        }
        assert_eq!(with_socket.get("key").unwrap().unwrap().source(), Source::Socket);
        let mut client = client([fabric]);
        let error = client.get("key").unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}

#[test]
fn restarted_server_is_read_without_stale_state() {
    let mut server = Running::over_shm();
    let mut client = Client::with_options([&server.address], impatient()).unwrap();
    for round in 0..4_u8 {
        server.store.put(b"key", &[round; 1000], 0);
        soon("an answer", || client.get("key").is_ok());
        for _ in 0..10 {
            assert_eq!(client.get("key").unwrap().unwrap(), [round; 1000]);
        }
        assert_eq!(client.get("key").unwrap().unwrap().source(), Source::OneSided);
        server = server.again();
        // A read that meets the end of the old one is asked of the new one, which has nothing.
        soon("an answer", || matches!(client.get("key"), Ok(None)));
    }
}

#[test]
fn nothing_is_left_of_connections_that_are_gone() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    on_each_fabric(|server| {
        let value = vec![5; 100_000];
        let mut client = Client::with_options([&server.address], impatient()).unwrap();
        let mut most = None;
        for round in 0..10 {
            soon("an answer", || client.set("large", &value, ()).is_ok());
            assert_eq!(&client.get("large").unwrap().unwrap()[..], value);
            assert!(client.set("small", "x", ()).unwrap().is_stored());
            let tickets = [client.iget("large"), client.iget("small"), client.iget("other")].map(Result::unwrap);
            let stored = client.iset("large", value.clone(), ()).unwrap();
            server.store.knobs.hangs_up.store(true, SeqCst);
            drop(client.iset("other", vec![1; 50_000], ()).unwrap());
            tickets.into_iter().for_each(|ticket| drop(client.wait(ticket)));
            let _ = client.wait(stored);
            soon("the end of all", || {
                client.progress();
                client.open() == 0
            });
            // Memory that was registered is used again, not registered anew. Other tests have descriptors, too.
            let now = (client.registered(), descriptors());
            let most = most.get_or_insert((now.0 + (1 << 20), now.1 + 100));
            assert!(round < 2 || (now.0 <= most.0 && now.1 <= most.1), "{now:?} {most:?}");
        }
    });
}
