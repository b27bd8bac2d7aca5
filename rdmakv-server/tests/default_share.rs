//! With the flags that the server has when none are given, and items that fit into it, clients over shared memory read nearly all items
//! one-sidedly, however many clients there are.

mod common;

use common::{PATIENCE, Server};
use rdmakv_client::{Client, Options, Source};

/// Items of 1 KiB: a sixth of the memory.
const KEYS: u64 = 10_000;
/// GETs of all clients.
const GETS: u64 = 32_000;

fn key(number: u64) -> String {
    format!("key-{number}")
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(128)
}

fn patient() -> Options {
    Options { timeout: PATIENCE, connect_timeout: PATIENCE, ..Options::default() }
}

fn client(server: &Server) -> Client {
    let found = server.lines.iter().find_map(|line| line.strip_prefix("listening on shm:"));
    let address = format!("shm:{}", found.expect("it listens over shared memory"));
    Client::with_options([address], patient()).unwrap()
}

fn get(client: &mut Client, number: u64) -> bool {
    let got = client.get(key(number)).unwrap().expect("it was stored, and fits");
    assert!(*got == value(number), "{number}");
    got.source() == Source::OneSided
}

fn filled() -> Server {
    let server = Server::on_a_free_port(&[]);
    let mut first = client(&server);
    for number in 0..KEYS {
        assert!(first.set(key(number), value(number), ()).unwrap().is_stored());
    }
    server
}

/// Returns the share of one-sided reads among GETs of random keys by so many clients at a time.
fn share(server: &Server, clients: u64, keys: u64) -> f64 {
    let one_sided: u64 = std::thread::scope(|scope| {
        let reading = |number: u64| {
            let mut client = client(server);
            move || {
                let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1);
                let mut next = || {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) % keys
                };
                (0..GETS / clients).map(|_| u64::from(get(&mut client, next()))).sum::<u64>()
            }
        };
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(reading(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    one_sided as f64 / (GETS / clients * clients) as f64
}

#[test]
fn nearly_all_gets_are_one_sided_for_1_to_64_clients() {
    let server = filled();
    // The first GET of each key tells the server that it is read so, from any client.
    let mut first = client(&server);
    for number in 0..KEYS {
        get(&mut first, number);
    }
    for clients in [1, 4, 16, 64] {
        let share = share(&server, clients, KEYS);
        assert!(share >= 0.95, "{clients} clients: {share}");
    }
    assert_eq!(server.stat("shm_leased_chunks"), 0, "nothing is leased for that");
}

#[test]
fn what_changes_is_read_one_sidedly_too() {
    let server = filled();
    let (mut reader, mut writer) = (client(&server), client(&server));
    let mut one_sided = 0;
    for round in 0..2000 {
        let number = round % 100;
        let changed = number + KEYS * (round + 1);
        assert!(writer.set(key(number), value(changed), ()).unwrap().is_stored());
        let got = reader.get(key(number)).unwrap().expect("it was stored");
        assert!(*got == value(changed), "{number}, round {round}");
        one_sided += u64::from(got.source() == Source::OneSided);
    }
    // Each key's first GET is not.
    assert!(one_sided >= 1800, "{one_sided}");
}

#[test]
fn other_clients_work_without_the_table() {
    let server = filled();
    let found = server.lines.iter().find_map(|line| line.strip_prefix("listening on shm:")).unwrap();
    let options = Options { one_sided: false, ..patient() };
    let mut plain = Client::with_options([format!("shm:{found}")], options).unwrap();
    assert!((0..100).all(|number| !get(&mut plain, number)));
    assert_eq!(server.stat("shm_listed"), 0);
}
