//! The stores of the example `far-log` hold the same records.

mod common;
#[path = "../examples/far-log/log.rs"]
mod log;
#[path = "../examples/far-log/stores.rs"]
mod stores;

use common::Server;
use log::{Log, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdmakv_client::Client;
use rdmakv_client::far::{Memory, Options};
use std::collections::HashMap;
use stores::{Far, Local, Ram};

/// Random operations, against a plain map. Few chains and pages, so that most records are in the store, in long chains.
fn random_operations(name: &str, store: &mut dyn Store) {
    let (mut log, mut map) = (Log::new(store, 64, 2), HashMap::new());
    let mut random = StdRng::seed_from_u64(3);
    for step in 0..6000_u64 {
        let key = random.random_range(0..2500);
        if step < 4000 {
            log.set(key, step).unwrap();
            map.insert(key, step);
        } else {
            assert_eq!(log.get(key).unwrap(), map.get(&key).copied(), "{name}: key {key}");
        }
    }
}

#[test]
fn stores_of_a_log_return_the_same() {
    random_operations("memory", &mut Ram::default());
    for is_direct in [false, true] {
        match Local::new(&std::env::temp_dir(), is_direct) {
            Ok(mut file) => random_operations("file", &mut file),
            Err(error) => println!("skipped a file: io_uring, O_TMPFILE or O_DIRECT: {error}"),
        }
    }
    let name = format!("shm:@rdmakv-test-far-log-{}", std::process::id());
    let far = ["--far", "16m", "--far-region", "2m", "-m", "16", "--fabric", "iwarp:127.0.0.1:0", "--fabric", &name];
    let server = Server::on_a_free_port(&far);
    for fabric in ["shm", "iwarp"] {
        let line = server.lines.iter().find_map(|line| line.strip_prefix(&format!("listening on {fabric}:"))).unwrap();
        let client = Client::new([format!("{fabric}:{line}")]).unwrap();
        for walks in [false, true] {
            let memory = Memory::create(&client, 1 << 20, &Options::default()).unwrap();
            random_operations(fabric, &mut Far::new(&memory, walks).unwrap());
            memory.delete().unwrap();
        }
    }
}
