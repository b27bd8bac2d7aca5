//! Modules on far memory at a real server: `cargo test -p rdmakv-server --features wasm-tests --test modules`.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::Server;
use rdmakv_client::Client;
use rdmakv_client::far::modules::{ModuleError, ModuleFault};
use rdmakv_client::far::{Lane, Memory, Module, Options, Procedure, RunEnd, RunError, Walk};
use rdmakv_client::far::{list_modules, remove_module, store_module};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

const WALK: &str = include_str!("../examples/far-modules/walk.wat");
const REGION: u64 = 2 << 20;

fn server(name: &str, more: &[&str]) -> Server {
    let name = format!("shm:@rdmakv-modules-{name}-{}", std::process::id());
    let far = ["--far", "16m", "--far-region", "2m", "-m", "16", "--fabric", &name, "--fabric", "iwarp:127.0.0.1:0"];
    Server::on_a_free_port(&[&far, more].concat())
}

fn code(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

/// Returns a module whose step does this.
fn step(body: &str) -> Vec<u8> {
    code(&format!(
        r#"(module (import "far" "done" (func $done)) (memory (export "memory") 1)
            (func $step (export "step") (param $at i64) (result i64) {body}))"#
    ))
}

fn module(name: &str, at: u64, state: &[u8]) -> Procedure {
    Procedure::Module(Module { at, name: name.as_bytes().to_vec(), state: state.to_vec() })
}

fn write(lane: &mut Lane, at: u64, bytes: &[u8]) {
    let mut buffer = lane.buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    let ticket = lane.write(at, buffer).unwrap();
    lane.wait(ticket).unwrap();
}

/// Writes a chain of nodes of 64 bytes: the address of the next one at 8, the number at 16.
fn write_chain(lane: &mut Lane, places: &[u64]) {
    for (number, &at) in places.iter().enumerate() {
        let next = places.get(number + 1).copied().unwrap_or(0);
        write(lane, at, &[[0; 8], next.to_le_bytes(), (number as u64).to_le_bytes()].concat());
    }
}

fn key(number: u64) -> Vec<u8> {
    [&number.to_le_bytes()[..], &100_u32.to_le_bytes()].concat()
}

#[test]
fn module_walks_over_two_servers() {
    for fabric in ["shm", "iwarp"] {
        let servers =
            [server(&format!("one-{fabric}"), &["--far-wasm"]), server(&format!("two-{fabric}"), &["--far-wasm"])];
        let client = Client::new(servers.iter().map(|server| server.fabric(fabric))).unwrap();
        let memory = Memory::create(&client, 8 * REGION, &Options::default()).unwrap();
        store_module(&client, "walk", &code(WALK)).unwrap();
        let (mut lane, mut runner) = (memory.lane().unwrap(), memory.runner());
        let places: Vec<u64> = (0..16_u64).map(|node| (node * 5 % 8) * REGION + 4096 + node * 64).collect();
        write_chain(&mut lane, &places);
        for (number, &at) in places.iter().enumerate() {
            let walk = Walk {
                at: places[0],
                next: 8,
                key_at: 16,
                nodes: 100,
                length: 64,
                key: key(number as u64)[..8].to_vec(),
            };
            let built_in = runner.call(Procedure::Walk(walk)).unwrap();
            let outcome = runner.call(module("walk", places[0], &key(number as u64))).unwrap();
            assert_eq!((outcome.end, outcome.at, outcome.hops), (RunEnd::Done, at, built_in.hops), "{fabric}");
            assert_eq!(outcome.reply, built_in.reply);
        }
        let listed = list_modules(&client).unwrap();
        assert_eq!(listed.iter().map(|module| &module.name[..]).collect::<Vec<_>>(), ["walk", "walk"]);
        remove_module(&client, "walk").unwrap();
        let gone = runner.call(module("walk", places[0], &key(1))).unwrap_err();
        assert!(matches!(gone, RunError::NoModule { .. }) && gone.to_string().contains("far module add"), "{gone}");
        memory.delete().unwrap();
    }
}

#[test]
fn bad_modules_are_refused_and_others_go_on() {
    let server = server("bad", &["--far-wasm"]);
    let client = Client::new([server.fabric("iwarp")]).unwrap();
    let mut memory = Memory::create(&client, REGION, &Options::default()).unwrap();
    let refused = |error| match error {
        Err(ModuleError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    for (bytes, why) in [
        (code("(module)"), ModuleFault::NoStep),
        (b"(module)".to_vec(), ModuleFault::Malformed),
        (vec![0; 300_000], ModuleFault::TooLong),
        (code(r#"(module (import "wasi" "exit" (func)))"#), ModuleFault::Import),
        (code("(module (func $f) (start $f))"), ModuleFault::Start),
        (code("(module (memory 100))"), ModuleFault::Memory),
    ] {
        assert_eq!(refused(store_module(&client, "bad", &bytes)), why);
    }
    assert_eq!(refused(store_module(&client, "", &code(WALK))), ModuleFault::Name);
    assert_eq!(refused(remove_module(&client, "bad")), ModuleFault::Unknown);
    // A long one comes in parts.
    let data = format!(
        r#"(module (memory 4) (data (i32.const 0) "{}") (func (export "step") (param i64) (result i64) (local.get 0)))"#,
        "x".repeat(200_000)
    );
    memory.store_module("long", &code(&data)).unwrap();
    for number in 0..15 {
        memory.store_module(&format!("nine-{number}"), &step("(call $done) (i64.const 9)")).unwrap();
    }
    assert_eq!(refused(memory.store_module("one more", &code(WALK))), ModuleFault::TooMany);
    for (name, body, end) in [
        ("nine-0", "(loop $l (br $l)) unreachable", RunEnd::Fuel),
        ("nine-1", "unreachable", RunEnd::Trap),
        ("nine-2", "(call $step (local.get $at))", RunEnd::Trap),
        ("nine-3", "(local.get $at)", RunEnd::Time),
        ("nine-4", "(drop (memory.grow (i32.const 16))) (call $done) (i64.const 9)", RunEnd::Done),
    ] {
        memory.store_module(name, &step(body)).unwrap();
        let mut runner = memory.runner();
        let outcome = runner.call(module(name, 64, b"")).unwrap();
        assert_eq!(outcome.end, end, "{name}");
        let outcome = runner.call(module("nine-9", 64, b"")).unwrap();
        assert_eq!((outcome.end, outcome.at), (RunEnd::Done, 9));
        let walk = Walk { at: 64, next: 0, key_at: 0, nodes: 1, length: 8, key: Vec::new() };
        assert_eq!(runner.call(Procedure::Walk(walk)).unwrap().end, RunEnd::Done);
    }
    memory.delete().unwrap();
}

#[test]
fn servers_without_the_flag_name_it() {
    let server = server("none", &[]);
    let client = Client::new([server.fabric("shm")]).unwrap();
    let memory = Memory::create(&client, REGION, &Options::default()).unwrap();
    let refused = store_module(&client, "walk", &code(WALK)).unwrap_err().to_string();
    assert!(refused.contains("--far-wasm") && refused.contains("--features wasm"), "{refused}");
    let refused = memory.runner().call(module("walk", 64, b"")).unwrap_err().to_string();
    assert!(refused.contains("--far-wasm"), "{refused}");
    memory.delete().unwrap();
}

#[test]
fn users_run_their_own_modules() {
    let users = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(users.path(), "ann:secret-of-ann\nbob:secret-of-bob\n").unwrap();
    let server = server("users", &["--far-wasm", "-Y", users.path().to_str().unwrap()]);
    let client = |name: &str| {
        let login = Some((name.to_owned(), format!("secret-of-{name}")));
        let options = rdmakv_client::Options { login, ..rdmakv_client::Options::default() };
        Client::with_options([server.fabric("iwarp")], options).unwrap()
    };
    let (ann, bob) = (client("ann"), client("bob"));
    store_module(&ann, "nine", &step("(call $done) (i64.const 9)")).unwrap();
    for (client, is_hers) in [(&ann, true), (&bob, false)] {
        let memory = Memory::create(client, REGION, &Options::default()).unwrap();
        let outcome = memory.runner().call(module("nine", 64, b""));
        assert_eq!(outcome.is_ok(), is_hers, "{outcome:?}");
        assert_eq!(list_modules(client).unwrap().len(), usize::from(is_hers));
        memory.delete().unwrap();
    }
    assert!(remove_module(&bob, "nine").is_err());
}

#[test]
fn hundred_thousand_calls_have_one_outcome_each() {
    let server = server("many", &["--far-wasm", "--far-wasm-threads", "2"]);
    let client = Client::new([server.fabric("shm")]).unwrap();
    let mut memory = Memory::create(&client, REGION, &Options::default()).unwrap();
    memory.store_module("next", &step("(call $done) (i64.add (local.get $at) (i64.const 1))")).unwrap();
    let calls = if cfg!(debug_assertions) { 5000 } else { 50_000 };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut runner = memory.runner();
            scope.spawn(move || {
                let tickets: Vec<_> = (0..calls).map(|at| runner.run(module("next", at, b"")).unwrap()).collect();
                for (at, ticket) in tickets.into_iter().enumerate() {
                    assert_eq!(runner.wait(ticket).unwrap().at, at as u64 + 1);
                }
            });
        }
    });
    memory.delete().unwrap();
}

/// Returns the threads of a process, and their names.
fn threads_of(process: u32) -> Vec<(i32, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let number = |task: &std::fs::DirEntry| task.file_name().to_str().unwrap().parse().unwrap();
    tasks.map(|task| (number(&task), std::fs::read_to_string(task.path().join("comm")).unwrap_or_default())).collect()
}

/// Has a thread run on this processor alone; without a thread, it is the one that calls.
fn pin(thread: Option<i32>, processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(thread.and_then(Pid::from_raw), &set).unwrap();
}

/// The p99 of a walk and of a read, alone and beside a module that never ends: the medians of nine runs, in turns.
///
/// The runaway's threads have a processor: that of modules, of its connection, and its client. All others have another one, always.
#[test]
#[ignore = "it prints times of this machine"]
fn neighbours_of_a_runaway() {
    const REST: usize = 0;
    const RUNAWAY: usize = 1;
    let server = server("neighbours", &["--far-wasm"]);
    for (thread, name) in threads_of(server.process.id()) {
        pin(Some(thread), if name.starts_with("far-wasm") { RUNAWAY } else { REST });
    }
    let client = Client::new([server.fabric("shm")]).unwrap();
    let mut memory = Memory::create(&client, REGION, &Options::default()).unwrap();
    memory.store_module("endless", &step("(loop $l (br $l)) unreachable")).unwrap();
    let before = threads_of(server.process.id());
    let mut runaway = memory.runner();
    assert_eq!(runaway.call(module("endless", 64, b"")).unwrap().end, RunEnd::Fuel);
    for thread in threads_of(server.process.id()).into_iter().filter(|thread| !before.contains(thread)) {
        println!("the runaway's: {}", thread.1.trim());
        pin(Some(thread.0), RUNAWAY);
    }
    pin(None, REST);
    // The p50 and p99 of a walk, and of a read.
    let measure = || {
        let (mut lane, mut runner) = (memory.lane().unwrap(), memory.runner());
        let (mut walks, mut reads) = (Vec::new(), Vec::new());
        for _ in 0..10_000 {
            let begun = Instant::now();
            let walk = Walk { at: 64, next: 0, key_at: 0, nodes: 1, length: 8, key: Vec::new() };
            runner.call(Procedure::Walk(walk)).unwrap();
            walks.push(begun.elapsed());
            let buffer = lane.buffer(64).unwrap();
            let begun = Instant::now();
            let ticket = lane.read(64, buffer).unwrap();
            lane.wait(ticket).unwrap();
            reads.push(begun.elapsed());
        }
        [walks, reads].map(|mut times| {
            times.sort_unstable();
            [50, 99].map(|part| times[times.len() * part / 100])
        })
    };
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    // In turns, because this machine has other work as well.
    for _ in 0..9 {
        alone.push(measure());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (runaway, stop) = (&mut runaway, &stop);
            scope.spawn(move || {
                pin(None, RUNAWAY);
                while !stop.load(Relaxed) {
                    assert_eq!(runaway.call(module("endless", 64, b"")).unwrap().end, RunEnd::Fuel);
                }
            });
            beside.push(measure());
            stop.store(true, Relaxed);
        });
    }
    for (of, name) in ["walk", "read"].into_iter().enumerate() {
        for (part, quantile) in ["p50", "p99"].into_iter().enumerate() {
            let median = |all: &[[[Duration; 2]; 2]]| {
                let mut times: Vec<Duration> = all.iter().map(|both| both[of][part]).collect();
                times.sort_unstable();
                times[times.len() / 2]
            };
            let (alone, beside) = (median(&alone), median(&beside));
            let ratio = beside.as_secs_f64() / alone.as_secs_f64();
            println!("{quantile} of a {name}: {alone:?} alone, {beside:?} beside a runaway, {ratio:.2} times");
        }
    }
    println!("wanted: at most 1.5 times the p99");
    memory.delete().unwrap();
}
