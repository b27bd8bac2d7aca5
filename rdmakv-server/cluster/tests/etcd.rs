//! The client of etcd, against servers of etcd that the tests start.

mod etcd_server;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd_server::{Members, PATIENCE};
use rdmakv_cluster::config::{Config, Epoch, Incarnation, Policy, ServerId};
use rdmakv_cluster::etcd::gateway::LeaseId;
use rdmakv_cluster::etcd::http::Answer;
use rdmakv_cluster::etcd::{Endpoint, Error, Etcd, Store, Watch, WatchEvent, Written};
use rdmakv_cluster::facts::{Fact, View};

const RUN: (ServerId, Incarnation) = (ServerId(1), Incarnation(7));

fn adopted(epoch: u32) -> Fact {
    Fact::Adopted(RUN.0, RUN.1, Epoch(epoch))
}

/// Follows a watch until the view shows a fact.
fn follow_until(store: &Store, watch: &mut Watch, view: &mut View, fact: &Fact) {
    let begun = Instant::now();
    while !view.facts().has(fact) {
        assert!(begun.elapsed() < PATIENCE, "the watch does not show {fact:?}");
        match watch.wait(Duration::from_secs(1)) {
            Ok(WatchEvent::Changes(events)) => store.apply(view, &events).unwrap(),
            Ok(WatchEvent::Quiet) => {}
            Ok(WatchEvent::Compacted(_)) => panic!("the watch missed changes"),
            Err(Error::Unreachable { .. }) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Changes the configuration as users and servers do, from many threads. Returns each epoch that was written.
fn write_epochs(members: &Members, writers: u8, changes: u8) -> Vec<Epoch> {
    std::thread::scope(|scope| {
        let write = |writer: u8| {
            let mut store = members.store("c");
            move || {
                let change = |change: u8| {
                    let prefix = [writer, change];
                    let wanted = |config: &Config| config.policies().iter().any(|(of, _)| of[..] == prefix);
                    // An answer that was lost may be found to have been done.
                    let update = store.update(|_, config| {
                        if wanted(config) { Ok(None) } else { config.with_policy(&prefix, Policy::Copies(2)).map(Some) }
                    });
                    update.unwrap().epoch()
                };
                (0..changes).map(change).collect::<Vec<_>>()
            }
        };
        let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(write(writer))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn concurrent_writers_make_one_order() {
    let Some(members) = Members::start(1) else { return };
    let mut store = members.store("c");
    assert!(store.create(&Config::new(7)).unwrap());
    assert!(!store.create(&Config::new(8)).unwrap());
    let epochs = write_epochs(&members, 16, 5);
    let written: BTreeSet<Epoch> = epochs.iter().copied().collect();
    assert_eq!(written.into_iter().collect::<Vec<_>>(), (2..=81).map(Epoch).collect::<Vec<_>>());
    let view = store.read().unwrap();
    let config = view.config().unwrap();
    assert_eq!((config.uuid(), config.epoch(), config.policies().len()), (7, Epoch(81), 80));
    // A view of before does not overwrite it.
    assert_eq!(store.write(&View::default(), &Config::new(9)).unwrap(), Written::Overtaken);
    assert_eq!(store.read().unwrap().config(), Some(config));
}

#[test]
fn a_watch_reports_what_compaction_took() {
    let Some(members) = Members::start(1) else { return };
    let mut store = members.store("c");
    let before = store.read().unwrap();
    for epoch in 1..=10 {
        store.put(&[adopted(epoch)], None).unwrap();
    }
    // A watch from before sees all changes in their order.
    let mut view = before.clone();
    follow_until(&store, &mut store.watch(&before), &mut view, &adopted(10));
    assert_eq!(view, store.read().unwrap());

    let revision = view.revision();
    members.list[0].post("kv/compaction", &format!("{{\"revision\":\"{revision}\"}}")).unwrap();
    let mut late = store.watch(&before);
    assert_eq!(late.wait(PATIENCE).unwrap(), WatchEvent::Compacted(revision));
    // Reading again is the remedy.
    let mut view = store.read().unwrap();
    let mut watch = store.watch(&view);
    store.put(&[adopted(11)], None).unwrap();
    follow_until(&store, &mut watch, &mut view, &adopted(11));
    store.remove(&[adopted(11)]).unwrap();
    let gone = watch.wait(PATIENCE).unwrap();
    let WatchEvent::Changes(events) = gone else { panic!("{gone:?}") };
    store.apply(&mut view, &events).unwrap();
    assert_eq!((view.facts().iter().count(), &view), (0, &store.read().unwrap()));
}

#[test]
fn a_watch_goes_on_when_etcd_returns() {
    let Some(mut members) = Members::start(1) else { return };
    let mut store = members.store("c");
    store.create(&Config::new(7)).unwrap();
    let mut view = store.read().unwrap();
    let mut watch = store.watch(&view);
    store.put(&[adopted(1)], None).unwrap();
    follow_until(&store, &mut watch, &mut view, &adopted(1));

    members.list[0].kill();
    let error = store.read().unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    let port = members.list[0].port;
    let expected =
        format!("read configuration http://127.0.0.1:{port}: connection refused: start etcd or correct --etcd");
    assert_eq!(error.to_string(), expected);

    members.list[0].start();
    let begun = Instant::now();
    while store.put(&[adopted(2)], None).is_err() {
        assert!(begun.elapsed() < PATIENCE, "etcd does not return");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The watch began before the stop, and misses nothing of after.
    follow_until(&store, &mut watch, &mut view, &adopted(2));
    assert_eq!(view.config().unwrap().uuid(), 7);
}

#[test]
fn no_epoch_is_lost_when_the_leader_dies() {
    let Some(mut members) = Members::start(3) else { return };
    let mut store = members.store("c");
    store.create(&Config::new(7)).unwrap();
    let mut view = store.read().unwrap();
    let mut watch = store.watch(&view);
    let before = write_epochs(&members, 4, 3);
    let leader = members.list.iter().position(|member| member.leader() == Some(true)).unwrap();
    members.list[leader].kill();
    let after = write_epochs(&members, 8, 3);
    // The first half of the second round was written by the first.
    assert_eq!((before.len(), after.len()), (12, 24));
    let last = store.read().unwrap();
    let config = last.config().unwrap();
    assert_eq!((config.epoch(), config.policies().len()), (Epoch(25), 24));
    store.put(&[adopted(25)], None).unwrap();
    follow_until(&store, &mut watch, &mut view, &adopted(25));
    assert_eq!(view.config(), Some(config));
}

#[test]
fn facts_go_with_their_lease() {
    let Some(members) = Members::start(1) else { return };
    let mut store = members.store("c");
    let lease = store.etcd().grant(60).unwrap();
    let alive = Fact::Alive(RUN.0, RUN.1);
    store.put(&[alive, adopted(1)], Some(lease)).unwrap();
    store.put(&[adopted(2)], None).unwrap();
    assert!(store.etcd().renew(lease).unwrap() && store.read().unwrap().facts().is_alive(RUN.0, RUN.1));
    store.etcd().revoke(lease).unwrap();
    store.etcd().revoke(lease).unwrap();
    let facts: Vec<Fact> = store.read().unwrap().facts().iter().copied().collect();
    assert_eq!(facts, [adopted(2)]);
    assert!(!store.etcd().renew(lease).unwrap() && !store.etcd().renew(LeaseId(1)).unwrap());
    let refused = store.put(&[alive], Some(lease)).unwrap_err();
    assert!(matches!(&refused, Error::Refused { .. }) && refused.to_string().contains("lease not found"), "{refused}");
}

/// The first endpoint takes connections and never answers; the second refuses them.
#[test]
fn a_silent_endpoint_is_passed_over() {
    let Some(members) = Members::start(1) else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let urls = format!("{},{closed},{}", silent.local_addr().unwrap(), members.urls());
    let etcd = |timeout| Etcd::new(Endpoint::list(&urls).unwrap(), timeout);
    let mut store = Store::new(etcd(Duration::from_secs(9)), "c").unwrap();
    assert_eq!(store.read().unwrap().config(), None);
    let mut watch = store.watch(&View::default());
    store.put(&[adopted(1)], None).unwrap();
    follow_until(&store, &mut watch, &mut View::default(), &adopted(1));
    // Alone it ends within its time: a read is tried again, the outcome of a write is unknown.
    let alone = Endpoint::list(&silent.local_addr().unwrap().to_string()).unwrap();
    let mut store = Store::new(Etcd::new(alone, Duration::from_millis(200)), "c").unwrap();
    assert!(matches!(store.read(), Err(Error::TimedOut { .. })));
    assert!(matches!(store.create(&Config::new(7)), Err(Error::TimedOut { .. } | Error::OutcomeUnknown { .. })));
}

#[test]
fn another_program_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = Endpoint::list(&listener.local_addr().unwrap().to_string()).unwrap();
    let serve = std::thread::spawn(move || {
        for answer in
            ["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"]
        {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let mut store = Store::new(Etcd::new(endpoints, PATIENCE), "c").unwrap();
    for cause in ["not an answer of etcd's gateway", "status 404 for /v3/kv/range"] {
        let error = store.read().unwrap_err();
        assert!(matches!(&error, Error::NotEtcd { .. }) && error.to_string().contains(cause), "{error}");
    }
    serve.join().unwrap();
}

/// Passes requests on to etcd, one for each connection. Answers those whose path is wanted, and closes the connection of others.
fn proxy(etcd: u16, is_answered: impl Fn(&str) -> bool + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request, mut bytes) = (stream.unwrap(), Vec::new(), [0; 65536]);
            // Bodies are objects of JSON.
            while !request.ends_with(b"}") {
                match stream.read(&mut bytes).unwrap_or(0) {
                    0 => break,
                    count => request.extend(&bytes[..count]),
                }
            }
            let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_owned();
            let mut to = TcpStream::connect(("127.0.0.1", etcd)).unwrap();
            to.write_all(&request).unwrap();
            let mut answer = Answer::default();
            while !answer.is_done() {
                let count = to.read(&mut bytes).unwrap();
                answer.push(&bytes[..count]).unwrap();
            }
            if is_answered(&path) {
                let body = answer.body();
                let _ =
                    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(body);
            }
        }
    });
    address
}

fn store_at(address: &str, timeout: Duration) -> Store {
    Store::new(Etcd::new(Endpoint::list(address).unwrap(), timeout), "c").unwrap()
}

#[test]
fn a_change_with_a_lost_answer_is_found() {
    let Some(members) = Members::start(1) else { return };
    members.store("c").create(&Config::new(7)).unwrap();
    let lost = AtomicBool::new(false);
    let address = proxy(members.list[0].port, move |path| !path.ends_with("txn") || lost.swap(true, Ordering::Relaxed));
    let changed = store_at(&address, PATIENCE).update(|_, config| config.flush().map(Some)).unwrap();
    assert_eq!((changed.epoch(), members.store("c").read().unwrap().config()), (Epoch(2), Some(&changed)));
}

#[test]
fn an_unknown_outcome_stays_unknown() {
    let Some(members) = Members::start(1) else { return };
    members.store("c").create(&Config::new(7)).unwrap();
    let is_cut = AtomicBool::new(false);
    let address = proxy(members.list[0].port, move |path| {
        is_cut.fetch_or(path.ends_with("txn"), Ordering::Relaxed);
        !is_cut.load(Ordering::Relaxed)
    });
    let error = store_at(&address, Duration::from_secs(3)).update(|_, config| config.flush().map(Some)).unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
}

#[test]
fn another_program_is_passed_over() {
    let Some(members) = Members::start(1) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = format!("{},{}", listener.local_addr().unwrap(), members.urls());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
        }
    });
    assert_eq!(store_at(&urls, PATIENCE).read().unwrap().config(), None);
    // A proxy may have passed a write on. The next try is at another endpoint.
    let mut store = store_at(&urls, PATIENCE);
    let error = store.write(&View::default(), &Config::new(7)).unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert!(store.create(&Config::new(7)).unwrap());
}

#[test]
fn users_log_in_and_their_tokens_are_renewed() {
    let Some(members) = Members::start(1) else { return };
    let etcd = &members.list[0];
    for (path, body) in [
        ("auth/user/add", r#"{"name":"root","password":"pass:word"}"#),
        ("auth/role/add", r#"{"name":"root"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/enable", "{}"),
    ] {
        etcd.post(path, body).unwrap();
    }
    let store = |login: &str| {
        let endpoints = Endpoint::list(&format!("http://{login}127.0.0.1:{}", etcd.port)).unwrap();
        Store::new(Etcd::new(endpoints, PATIENCE), "c").unwrap()
    };
    for login in ["", "root:wrong@"] {
        let error = store(login).read().unwrap_err().to_string();
        assert!(
            error.contains("give the user in the variable RDMAKV_ETCD, as http://USER:PASSWORD@HOST:PORT"),
            "{error}"
        );
        assert!(!error.contains("wrong"), "{error}");
    }
    let mut store = store("root:pass%3aword@");
    store.create(&Config::new(7)).unwrap();
    let mut view = store.read().unwrap();
    let mut watch = store.watch(&view);
    store.put(&[adopted(1)], None).unwrap();
    follow_until(&store, &mut watch, &mut view, &adopted(1));
    assert_eq!(view.config().unwrap().uuid(), 7);
}
