//! One-sided reads, messages and transfers: what comes which way, and what is not believed.

use crate::by_hand::Running;
use crate::{client, patient};
use rdmakv_client::{Client, Data, Error, Options, Source, Value};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn on_each_fabric(test: impl Fn(Running)) {
    test(Running::over_shm());
    test(Running::over_iwarp());
}

fn bytes(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|at| ((at + seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn got(client: &mut Client, key: &str) -> Value {
    client.get(key).unwrap().expect("it is there")
}

#[test]
fn a_value_is_asked_for_once_and_read_from_then_on() {
    on_each_fabric(|server| {
        let mut client = client([&server.address]);
        for size in [0, 1, 100, 5_000, 8_000, 100_000, 1_000_000] {
            let (key, value) = (format!("key-{size}"), bytes(size, 1));
            assert!(client.set(&key, &value, ()).unwrap().is_stored());
            let first = got(&mut client, &key);
            // It is known to be large.
            let source = if size > 8_100 { Source::Transfer } else { Source::Message };
            assert_eq!((&first[..], first.source()), (&value[..], source), "{size}");
            let before = server.store.knobs.requests.load(SeqCst);
            for _ in 0..50 {
                let value_again = got(&mut client, &key);
                assert_eq!((&value_again[..], value_again.source()), (&value[..], Source::OneSided), "{size}");
                assert_eq!(value_again.version(), first.version());
            }
            assert_eq!(server.store.knobs.requests.load(SeqCst), before);
        }
        assert!(client.counters().one_sided > 300 && client.registered() > 0);
        assert_eq!(client.fabric(0).map(ToString::to_string), Some(server.address.clone()));
    });
}

#[test]
fn without_tags_large_values_come_by_transfers() {
    on_each_fabric(|server| {
        server.store.knobs.tags.store(false, SeqCst);
        let mut client = client([&server.address]);
        let value = bytes(300_000, 2);
        server.store.put(b"large", &value, 9);
        for round in 1..5 {
            let value_again = got(&mut client, "large");
            assert_eq!(
                (&value_again[..], value_again.source(), value_again.flags()),
                (&value[..], Source::Transfer, 9)
            );
            assert_eq!(server.store.knobs.transfers.load(SeqCst), round);
        }
        // Its size is known: only the first time it was asked for by a message.
        assert_eq!(server.store.knobs.requests.load(SeqCst), 1);
        // It has grown, shrunk, gone.
        let grown = bytes(500_000, 3);
        server.store.put(b"large", &grown, 0);
        assert_eq!(&got(&mut client, "large")[..], grown);
        server.store.put(b"large", b"small", 0);
        assert_eq!(&got(&mut client, "large")[..], b"small");
        server.store.put(b"large", &value, 0);
        assert_eq!(&got(&mut client, "large")[..], value);
        assert!(client.delete("large").unwrap());
        assert!(client.get("large").unwrap().is_none());
        // Where transfers are refused, it comes in messages.
        server.store.put(b"large", &value, 0);
        server.store.knobs.no_transfers.store(true, SeqCst);
        let value_again = got(&mut client, "large");
        assert_eq!((&value_again[..], value_again.source()), (&value[..], Source::Message));
    });
}

#[test]
fn what_others_changed_is_never_read_from_the_tag() {
    on_each_fabric(|server| {
        let (mut one, mut other) = (client([&server.address]), client([&server.address]));
        for round in 0..50_u32 {
            let value = round.to_string();
            assert!(one.set("key", &value, ()).unwrap().is_stored());
            for _ in 0..3 {
                assert_eq!(&got(&mut other, "key")[..], value.as_bytes());
                assert_eq!(&got(&mut one, "key")[..], value.as_bytes());
            }
            if round % 10 == 9 {
                assert!(other.delete("key").unwrap());
                assert!(one.get("key").unwrap().is_none() && other.get("key").unwrap().is_none());
            }
        }
        assert!(other.counters().distrusted >= 40, "{:?}", other.counters());
    });
}

#[test]
fn what_is_not_as_it_should_be_is_asked_for() {
    on_each_fabric(|server| {
        let mut client = client([&server.address]);
        let value = bytes(2_000, 4);
        server.store.put(b"key", &value, 0);
        for (what, at, wrong) in [
            ("the state", 0, 3),
            ("the magic", 2, 0),
            ("the incarnation", 4, 1),
            ("an end long ago", 8, 1),
            ("the version", 17, 0x80),
            ("the length", 25, 0xff),
            ("the key", 58, b'x'),
            ("a byte in the middle", 1_000, 0x55),
            ("the last byte", 56 + 3 + 1_999, 0xaa),
        ] {
            assert_eq!(got(&mut client, "key").len(), 2_000);
            assert_eq!(got(&mut client, "key").source(), Source::OneSided);
            let (place, len) = server.store.place(b"key").unwrap();
            let before = server.store.bytes(place, len);
            let (asked, distrusted) = (server.store.knobs.requests.load(SeqCst), client.counters().distrusted);
            server.store.write(place + at, &[if before[at] == wrong { !wrong } else { wrong }]);
            // The server, asked, says what it says; here it repeats what is in memory, which a client does not believe either.
            let told = client.get("key");
            let has_asked = server.store.knobs.requests.load(SeqCst) > asked;
            assert!(has_asked && client.counters().distrusted == distrusted + 1, "{what}");
            server.store.write(place, &before);
            // State and end are the server's business.
            assert_eq!(told.is_ok(), matches!(at, 0 | 8), "{what}: {told:?}");
        }
    });
}

#[test]
fn a_lease_that_is_over_is_not_read_by() {
    on_each_fabric(|server| {
        server.store.knobs.lease_ms.store(50, SeqCst);
        let mut client = client([&server.address]);
        server.store.put(b"key", b"value", 0);
        for _ in 0..3 {
            assert_eq!(got(&mut client, "key").source(), Source::Message);
            std::thread::sleep(Duration::from_millis(60));
        }
        // Nor by one that is over as it comes.
        server.store.knobs.lease_ms.store(0, SeqCst);
        let mut client = crate::client([&server.address]);
        for _ in 0..3 {
            assert_eq!(got(&mut client, "key").source(), Source::Message);
        }
        assert_eq!(client.counters().one_sided, 0);
    });
}

#[test]
fn large_values_are_stored_from_the_clients_memory() {
    on_each_fabric(|server| {
        let mut client = client([&server.address]);
        let value = bytes(1_000_000, 5);
        assert!(client.set("a", &value, ()).unwrap().is_stored());
        let mut buffer = client.buffer(value.len()).unwrap();
        buffer.copy_from_slice(&value);
        let ticket = client.iset("b", buffer, ()).unwrap();
        let (stored, Data::Buffer(mut buffer)) = client.wait_for_data(ticket) else { panic!("the buffer comes back") };
        assert!(stored.unwrap().is_stored());
        buffer[0] ^= 1;
        let ticket = client.iset("c", buffer, ()).unwrap();
        assert!(client.wait(ticket).unwrap().is_stored());
        let ticket = client.iset("d", value.clone(), ()).unwrap();
        let (stored, Data::Vec(back)) = client.wait_for_data(ticket) else { panic!("the vector comes back") };
        assert!(stored.unwrap().is_stored() && back == value);
        assert_eq!((&got(&mut client, "a")[..], &got(&mut client, "b")[..]), (&value[..], &value[..]));
        assert!(got(&mut client, "c")[1..] == value[1..] && got(&mut client, "c")[0] == value[0] ^ 1);
        // More than there is memory for.
        let error = client.set("e", vec![0; 65 << 20], ()).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    });
}

#[test]
fn many_operations_go_on_at_once() {
    on_each_fabric(|server| {
        let mut client = Client::with_options([&server.address], Options { window: 100, ..patient() }).unwrap();
        let size = |key: u32| (key * 97 % 20_000) as usize;
        for key in 0..500 {
            drop(client.bset(format!("{key}"), bytes(size(key), key), ()).unwrap());
        }
        for _ in 0..3 {
            for (key, value) in client.get_many((0..500).map(|key| key.to_string())).into_iter().enumerate() {
                assert_eq!(&value.unwrap().unwrap()[..], bytes(size(key as u32), key as u32), "{key}");
            }
        }
        assert!(client.counters().one_sided >= 500, "{:?}", client.counters());
        assert_eq!(client.open(), 0);
    });
}

#[test]
fn values_outlive_client_and_cross_threads() {
    let server = Running::over_shm();
    let mut client = Client::with_options([&server.address], Options { value_memory: 1 << 16, ..patient() }).unwrap();
    server.store.put(b"key", &bytes(3_000, 6), 0);
    // Once its memory is full of values that are kept, others come by other ways.
    let values: Vec<_> = (0..100).map(|_| got(&mut client, "key")).collect();
    let one_sided = values.iter().filter(|value| value.source() == Source::OneSided).count();
    assert!((5..=16).contains(&one_sided), "{one_sided}");
    drop(client);
    drop(server);
    std::thread::spawn(move || assert!(values.iter().all(|value| **value == bytes(3_000, 6)))).join().unwrap();
}

#[test]
fn reads_that_the_server_does_not_see_are_told_to_it() {
    let server = Running::over_shm();
    server.store.knobs.lease_ms.store(400, SeqCst);
    let mut client = client([&server.address]);
    server.store.put(b"key", b"value", 0);
    let mut reads = 0;
    crate::common::soon("a report", || {
        reads += u64::from(got(&mut client, "key").source() == Source::OneSided);
        server.store.knobs.seen.load(SeqCst) > 0
    });
    reads += u64::from(got(&mut client, "key").source() == Source::OneSided);
    drop(client);
    crate::common::soon("the last words", || server.store.knobs.seen.load(SeqCst) == reads);
}

#[test]
fn whoever_does_not_want_tags_gets_none() {
    let server = Running::over_shm();
    let mut client = Client::with_options([&server.address], Options { one_sided: false, ..patient() }).unwrap();
    server.store.put(b"key", b"value", 0);
    for _ in 0..3 {
        assert_eq!(got(&mut client, "key").source(), Source::Message);
    }
}

#[test]
fn what_is_being_changed_is_asked_for() {
    on_each_fabric(|server| {
        let mut client = client([&server.address]);
        server.store.put(b"key", b"old", 0);
        server.store.put(b"other", b"value", 0);
        assert_eq!(got(&mut client, "other"), b"value");
        // The answer to the first, with its tag, comes before the second is carried out.
        server.store.knobs.lazy.store(true, SeqCst);
        let first = client.iget("key").unwrap();
        let second = client.iset("key", &b"new"[..], ()).unwrap();
        assert_eq!(client.wait(first).unwrap().unwrap(), b"old");
        // The server knows what is first, the tag does not.
        assert_eq!(got(&mut client, "key").source(), Source::Message);
        let third = client.iget("key").unwrap();
        assert_eq!(client.wait(third).unwrap().unwrap().source(), Source::Message);
        assert_eq!(got(&mut client, "other").source(), Source::OneSided);
        drop(second);
    });
}

#[test]
fn however_many_are_read_the_server_is_told_of_all() {
    let server = Running::over_shm();
    server.store.knobs.lease_ms.store(60_000, SeqCst);
    let mut client = client([&server.address]);
    let keys: Vec<_> = (0..1500_u32).map(u32::to_le_bytes).collect();
    for key in &keys {
        server.store.put(key, b"value", 0);
        assert!(client.get(key).unwrap().is_some());
    }
    for key in &keys {
        assert!(client.get(key).unwrap().is_some());
    }
    let read = client.counters().one_sided;
    assert!(read >= 1000, "{read}");
    drop(client);
    crate::common::soon("that all are told of", || server.store.knobs.seen.load(SeqCst) == read);
}

#[test]
fn many_are_asked_for_in_the_room_that_is_left() {
    let server = Running::over_shm();
    let mut client = Client::with_options([&server.address], Options { window: 4, ..patient() }).unwrap();
    for key in 0..20_u8 {
        server.store.put(&[b'k', key], &[key; 100], 0);
    }
    let held: Vec<_> = (0..3).map(|_| client.iget("other").unwrap()).collect();
    let got = client.get_many((0..20_u8).map(|key| [b'k', key]));
    for (key, value) in (0..20_u8).zip(got) {
        assert_eq!(value.unwrap().unwrap(), [key; 100]);
    }
    assert!(held.into_iter().all(|ticket| client.wait(ticket).unwrap().is_none()));
}
