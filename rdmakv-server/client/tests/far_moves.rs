//! Moves of far memory between real servers, while lanes go on and while each side dies.
//!
//! ```text
//! cargo test -p rdmakv-client --test far_moves
//! FAR_KILLS=200 cargo test --release -p rdmakv-client --test far_moves random_deaths -- --ignored --nocapture
//! FAR_WALKS=100000 cargo test --release -p rdmakv-client --test far_moves all_walks -- --ignored --nocapture
//! FAR_MIB=1024 cargo test --release -p rdmakv-client --test far_moves figures -- --ignored --nocapture
//! ```

mod server;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdmakv_client::Client;
use rdmakv_client::far::migration::{Call, Outcome};
use rdmakv_client::far::{
    AccessError, Cas64, Event, Lane, Memory, MemoryError, Options, Outcome as RunOutcome, Procedure,
};
use rdmakv_client::far::{RunEnd, RunTicket, Runner, Secret, Stepped, Walk};
use server::{Server, soon};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Fabrics, each with the workers that carry batches out.
const WAYS: [(&str, u32); 4] = [("shm", 0), ("iwarp", 0), ("shm", 1), ("iwarp", 1)];
/// Places that a writer stamps.
const PLACES: u64 = 64;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Servers that read from each other, with regions of this size.
fn pair(size: &str, region: &str, more: &[&str]) -> [Server; 2] {
    let number = NEXT.fetch_add(1, Relaxed);
    let name = |at: usize| format!("shm:@rdmakv-moves-{}-{number}-{at}", std::process::id());
    let server = |at: usize| {
        let (own, peers) = (name(at), format!("{},iwarp:127.0.0.1", name(1 - at)));
        let flags = ["--far", size, "--far-region", region, "--far-peers", &peers, "--fabric", &own];
        let both = [&flags[..], &["--fabric", "iwarp:127.0.0.1:0", "-m", "32"], more].concat();
        Server::on_a_free_port(&both)
    };
    [server(0), server(1)]
}

fn address(server: &Server, fabric: &str) -> String {
    let start = format!("listening on {fabric}:");
    let found = server.lines.iter().find_map(|line| line.strip_prefix(&start));
    format!("{fabric}:{}", found.unwrap_or_else(|| panic!("it prints where it listens: {:?}", server.lines)))
}

/// Makes a memory at the first of these addresses.
fn create(addresses: &[String; 2], capacity: u64, workers: u32) -> Memory {
    let options = Options { name: Some("mine".into()), depth: 6, workers, batch: 5, ..Options::default() };
    let one = Client::new([&addresses[0]]).unwrap();
    let memory = Memory::create(&one, capacity, &options).unwrap();
    // Opened again at both: this process is one owner after the other.
    let secret = memory.secret();
    drop(memory);
    open(addresses, secret, &options)
}

fn open(addresses: &[String; 2], secret: Secret, options: &Options) -> Memory {
    let client = Client::new(addresses).unwrap();
    let mut opened = None;
    soon("the former owner's end", || {
        opened = Memory::open(&client, "mine", secret, options)
            .map_err(|error| assert!(matches!(error, MemoryError::Taken | MemoryError::Unreachable { .. }), "{error}"))
            .ok();
        opened.is_some()
    });
    opened.unwrap()
}

fn write(lane: &mut Lane, at: u64, bytes: &[u8]) -> Result<(), AccessError> {
    let mut buffer = lane.buffer(bytes.len())?;
    buffer.copy_from_slice(bytes);
    let ticket = lane.write(at, buffer)?;
    lane.wait(ticket).map(drop)
}

fn read(lane: &mut Lane, at: u64) -> Result<u64, AccessError> {
    let buffer = lane.buffer(8)?;
    let ticket = lane.read(at, buffer)?;
    lane.wait(ticket).map(|buffer| u64::from_le_bytes(buffer[..].try_into().unwrap()))
}

/// Writes the stamps 1, 2, 3, … in turn to places all over the memory, and calls `acked` with each that is acked. It reads some back. Ends
/// at the first loss, or when it is told.
fn stamp(memory_bytes: u64, lane: &mut Lane, is_over: &AtomicBool, acked: impl Fn(u64)) -> Option<AccessError> {
    let at = |stamp: u64| stamp % PLACES * (memory_bytes / PLACES);
    for stamp in 1.. {
        if is_over.load(Relaxed) {
            return None;
        }
        loop {
            match write(lane, at(stamp), &stamp.to_le_bytes()) {
                Ok(()) => break,
                Err(AccessError::Busy { .. }) => std::thread::yield_now(),
                Err(error) => return Some(error),
            }
        }
        acked(stamp);
        let before = stamp.saturating_sub(stamp % 50).max(1);
        match read(lane, at(before)) {
            Ok(found) => {
                assert!(found >= before && found % PLACES == before % PLACES, "{found} where {before} was acked")
            }
            Err(error) => return Some(error),
        }
    }
    None
}

/// Asserts that each stamp up to the last acked one is there, or its region is reported lost. Returns whether something is lost.
fn check(memory_bytes: u64, lane: &mut Lane, acked: u64, what: &str) -> bool {
    let mut lost = false;
    for place in 0..PLACES {
        let last = acked.saturating_sub((acked + PLACES - place) % PLACES);
        match read(lane, place * (memory_bytes / PLACES)) {
            Ok(found) if acked >= PLACES || last > 0 => {
                assert!(found >= last && found % PLACES == place % PLACES, "{what}: {found} at {place}, acked {last}");
            }
            Ok(_) => {}
            Err(AccessError::Lost { .. }) => lost = true,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    lost
}

#[test]
fn regions_move_while_lanes_go_on() {
    for (fabric, workers) in WAYS {
        let servers = pair("32m", "2m", &[]);
        let addresses = [0, 1].map(|at| address(&servers[at], fabric));
        let mut memory = create(&addresses, 8 * MIB, workers);
        let (over, acked) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut lanes = [memory.lane().unwrap(), memory.lane().unwrap()];
        std::thread::scope(|threads| {
            let [writer, reader] = &mut lanes;
            let writer = threads.spawn(|| stamp(8 * MIB, writer, &over, |stamp| acked.store(stamp, Relaxed)));
            let reader = threads.spawn(|| {
                while !over.load(Relaxed) {
                    check(8 * MIB, reader, acked.load(Relaxed), fabric).then(|| panic!("{fabric}: lost"));
                }
            });
            for (from, to) in [(0, 1), (1, 0), (0, 1)] {
                let before = acked.load(Relaxed);
                let moved = memory.migrate(&addresses[from], Some(&addresses[to])).unwrap();
                assert_eq!((moved.regions, moved.lost, moved.bytes), (4, 0, 8 * MIB), "{fabric}");
                soon("stamps after the move", || acked.load(Relaxed) > before + 50);
            }
            over.store(true, Relaxed);
            assert_eq!(writer.join().unwrap(), None, "{fabric} {workers}");
            reader.join().unwrap();
        });
        let events = memory.events();
        assert_eq!(events.iter().filter(|event| matches!(event, Event::Moved { .. })).count(), 12, "{events:?}");
        assert_eq!(memory.servers(), [(addresses[1].clone(), 4)]);
        let [first, _second] = servers;
        drop(first);
        assert_eq!(memory.lost().0, [], "nothing is at the first one");
        assert!(!check(8 * MIB, &mut lanes[0], acked.load(Relaxed), fabric));
        drop(lanes);
        memory.delete().unwrap();
    }
}

/// Nodes of a chain.
const NODES: u64 = 12;
/// The address of the number that procedures count up.
const NUMBER: u64 = 7 * MIB;

/// Returns the place of a node: they go around all regions.
fn node(number: u64) -> u64 {
    number % 4 * 2 * MIB + 4096 + number * 64
}

/// Waits for a procedure. One that came to the limit of hops goes on.
fn finish(runner: &mut Runner, ticket: RunTicket) -> RunOutcome {
    let mut outcome = runner.wait(ticket).unwrap();
    while let Some(rest) = outcome.rest.take() {
        assert!(matches!(outcome.end, RunEnd::Hops | RunEnd::Time), "{outcome:?}");
        outcome = runner.call(rest).unwrap();
    }
    outcome
}

/// Follows a chain so many times. In between it writes new values to nodes: a walk that begins later has to find them.
fn walk_while_writing(lane: &mut Lane, runner: &mut Runner, walks: u64) {
    let (mut values, mut under_way) = ([0_u64; NODES as usize], VecDeque::new());
    for walk in 0..walks + 8 {
        if let Some((ticket, key, value)) = (walk >= 8).then(|| under_way.pop_front()).flatten() {
            let RunOutcome { at, reply, .. } = finish(runner, ticket);
            assert_eq!((at, &reply[8..16]), (node(key), &key.to_le_bytes()[..]));
            let found = u64::from_le_bytes(reply[16..24].try_into().unwrap());
            assert!(found >= value, "{found} in node {key} after {value} was acked");
        }
        if walk >= walks {
            continue;
        }
        let key = walk * 7 % NODES;
        if walk % 3 == 0 {
            values[key as usize] = walk;
            write(lane, node(key) + 16, &walk.to_le_bytes()).unwrap();
        }
        let key_bytes = key.to_le_bytes().to_vec();
        let of = Walk { at: node(0), next: 0, key_at: 8, nodes: 100, length: 24, key: key_bytes };
        under_way.push_back((runner.run(Procedure::Walk(of)).unwrap(), key, values[key as usize]));
    }
    assert!(under_way.is_empty());
}

/// Counts a number up so many times, as others do at the same time.
fn count_up(runner: &mut Runner, times: u64) {
    let (mut old, mut counted) = (0, 0);
    while counted < times {
        let ticket = runner.run(Procedure::Cas64(Cas64 { at: NUMBER, old, new: old + 1 })).unwrap();
        let was = u64::from_le_bytes(finish(runner, ticket).reply.try_into().unwrap());
        counted += u64::from(was == old);
        old = if was == old { old + 1 } else { was };
    }
}

/// Runs so many walks, and a tenth as many counts on two threads, while all regions move to and fro.
fn run_while_regions_move(fabric: &str, walks: u64) {
    let servers = pair("32m", "2m", &[]);
    let addresses = [0, 1].map(|at| address(&servers[at], fabric));
    let mut memory = create(&addresses, 8 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    for number in 0..NODES {
        let next = if number + 1 < NODES { node(number + 1) } else { 0 };
        write(&mut lane, node(number), &[next.to_le_bytes(), number.to_le_bytes(), [0; 8]].concat()).unwrap();
    }
    let [mut walker, mut one, mut other] = [memory.runner(), memory.runner(), memory.runner()];
    let mut moves = 0;
    std::thread::scope(|threads| {
        let walks_all = threads.spawn(|| walk_while_writing(&mut lane, &mut walker, walks));
        let counts = [&mut one, &mut other].map(|runner| threads.spawn(|| count_up(runner, walks / 10)));
        while !walks_all.is_finished() || counts.iter().any(|count| !count.is_finished()) {
            let moved = memory.migrate(&addresses[moves % 2], Some(&addresses[1 - moves % 2])).unwrap();
            assert_eq!((moved.regions, moved.lost), (4, 0), "{fabric}");
            moves += 1;
        }
        walks_all.join().unwrap();
        counts.into_iter().for_each(|count| count.join().unwrap());
    });
    println!("{fabric}: {walks} walks while regions moved {} times", moves * 4);
    assert!(moves > 0);
    assert_eq!(read(&mut lane, NUMBER).unwrap(), walks / 10 * 2, "{fabric}: each count once");
    assert!(memory.events().iter().all(|event| !matches!(event, Event::Left { .. } | Event::Stayed { .. })));
    drop((lane, walker, one, other));
    memory.delete().unwrap();
}

#[test]
fn walks_are_right_while_regions_move() {
    for fabric in ["shm", "iwarp"] {
        run_while_regions_move(fabric, 1000);
    }
}

#[test]
fn walks_wait_for_frozen_regions_and_find_new_bytes() {
    for fabric in ["shm", "iwarp"] {
        let servers = pair("8m", "2m", &[]);
        let addresses = [0, 1].map(|at: usize| address(&servers[at], fabric));
        let mut memory = create(&addresses, 4 * MIB, 0);
        let (mut lane, mut runner, mut counter) = (memory.lane().unwrap(), memory.runner(), memory.runner());
        // From the region that stays to the one that moves.
        write(&mut lane, 2 * MIB, &u64::to_le_bytes(4096)).unwrap();
        write(&mut lane, 4096, &[[0; 8], *b"old byte"].concat()).unwrap();
        let of = |at| Procedure::Walk(Walk { at, next: 0, key_at: 8, nodes: 2, length: 16, key: Vec::new() });
        let count = |old| Procedure::Cas64(Cas64 { at: 8192, old, new: old + 1 });
        let mut moving = memory.begin_move(0, &addresses[1]).unwrap();
        while !matches!(moving.step(), Stepped::Asked(Call::Take { .. })) {}
        assert_eq!(counter.call(count(0)).unwrap().reply, [0; 8], "procedures write while a region is copied");
        while !matches!(moving.step(), Stepped::Asked(Call::Freeze { .. })) {}
        let frozen = runner.run(of(2 * MIB)).unwrap();
        let counted = counter.run(count(1)).unwrap();
        assert!((0..100).all(|_| !runner.test(&frozen) && !counter.test(&counted)), "{fabric}: they wait");
        while moving.step() != Stepped::Asked(Call::Commit) {}
        write(&mut lane, 4096 + 8, b"new byte").unwrap();
        // The first server still has the old bytes.
        let ticket = runner.run(of(2 * MIB)).unwrap();
        assert_eq!(finish(&mut runner, ticket).reply[8..], *b"new byte", "{fabric}");
        assert_eq!(finish(&mut runner, frozen).at, 4096);
        assert!(!counter.test(&counted), "{fabric}: its map has not come");
        assert!(matches!(moving.run(), Outcome::At(_)));
        drop(moving);
        assert_eq!(finish(&mut counter, counted).reply, 1_u64.to_le_bytes(), "{fabric}");
        assert_eq!(read(&mut lane, 8192).unwrap(), 2, "{fabric}");
        drop((lane, runner, counter));
        memory.delete().unwrap();
    }
}

#[test]
#[ignore = "as many as FAR_WALKS says: see docs/testing.md"]
fn all_walks_are_right_while_regions_move() {
    for fabric in ["shm", "iwarp"] {
        run_while_regions_move(fabric, variable("FAR_WALKS", 100_000));
    }
}

/// Moves the only region, with a death of server `victim` after so many requests. Returns whether there were as many.
fn dies_after(requests: usize, victim: usize, fabric: &str) -> bool {
    let what = format!("{fabric}: server {victim} dies after {requests} requests");
    let mut servers = pair("8m", "2m", &[]).map(Some);
    let addresses = [0, 1].map(|at: usize| address(servers[at].as_ref().unwrap(), fabric));
    let mut memory = create(&addresses, 2 * MIB, 0);
    let (over, acked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut lane = memory.lane().unwrap();
    let mut asked = 0;
    let outcome = std::thread::scope(|threads| {
        let writer = threads.spawn(|| stamp(2 * MIB, &mut lane, &over, |stamp| acked.store(stamp, Relaxed)));
        soon("stamps", || acked.load(Relaxed) > 100);
        let mut moving = memory.begin_move(0, &addresses[1]).unwrap();
        let outcome = loop {
            if asked == requests && servers[victim].is_some() {
                servers[victim] = None;
            }
            match moving.step() {
                Stepped::Waited => {}
                Stepped::Asked(_) => asked += 1,
                Stepped::Ended(outcome) => break outcome,
            }
        };
        over.store(true, Relaxed);
        if let Some(error) = writer.join().unwrap() {
            assert!(matches!(error, AccessError::Lost { .. }), "{what}: {error}");
        }
        outcome
    });
    let was_killed = servers[victim].is_none();
    let lost = check(2 * MIB, &mut lane, acked.load(Relaxed), &what);
    println!("{what}: {outcome:?}{}", if lost { ", lost" } else { "" });
    if was_killed {
        // Before FREEZE the region is the first server's alone; after COMMIT the second one's.
        let is_committed = requests >= 6;
        assert_eq!(lost, if is_committed { victim == 1 } else { victim == 0 && requests < 5 }, "{what}: {outcome:?}");
        assert!(lost || outcome != Outcome::Lost, "{what}: {outcome:?}");
    }
    was_killed
}

#[test]
fn servers_killed_at_each_step_keep_acked_writes() {
    for (fabric, victims) in [("shm", [0, 1]), ("iwarp", [0, 1])] {
        for victim in victims {
            let tried = (0..20).take_while(|&requests| dies_after(requests, victim, fabric)).count();
            assert!(tried >= 8, "each step was tried: {tried}");
        }
    }
}

/// The variables by which a test program becomes a client that is to be killed.
const OWNS: &str = "RDMAKV_TEST_MOVES";

/// Becomes a client that moves its region up to a request, and waits to be killed. Its stamps that are acked are in a file.
#[test]
#[ignore = "the process of a client"]
fn own() {
    let Ok(owns) = std::env::var(OWNS) else { return };
    let [requests, file, one, other] = owns.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let (requests, addresses) = (requests.parse::<usize>().unwrap(), [one.to_owned(), other.to_owned()]);
    let file = std::fs::File::create(file).unwrap();
    let mut memory = create(&addresses, 2 * MIB, 0);
    println!("\nsecret {}", memory.secret());
    std::io::stdout().flush().unwrap();
    let (over, acked) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut lane = memory.lane().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            stamp(2 * MIB, &mut lane, &over, |stamp| {
                file.write_all_at(&stamp.to_le_bytes(), 0).unwrap();
                acked.store(stamp, Relaxed);
            })
        });
        soon("stamps", || acked.load(Relaxed) > 100);
        let (mut moving, mut asked) = (memory.begin_move(0, &addresses[1]).unwrap(), 0);
        while asked < requests {
            match moving.step() {
                Stepped::Waited => {}
                Stepped::Asked(_) => asked += 1,
                Stepped::Ended(outcome) => {
                    println!("ended {outcome:?}");
                    break;
                }
            }
        }
        println!("stands after {asked}");
        std::io::stdout().flush().unwrap();
        std::thread::sleep(Duration::from_secs(600));
    });
}

struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills the client after so many requests of its move. Returns whether there were as many.
fn client_dies_after(requests: usize, fabric: &str) -> bool {
    let what = format!("{fabric}: the client dies after {requests} requests");
    let servers = pair("8m", "2m", &[]);
    let addresses = [0, 1].map(|at: usize| address(&servers[at], fabric));
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "own", "--nocapture", "--include-ignored"])
        .env(OWNS, format!("{requests} {} {} {}", file.path().display(), addresses[0], addresses[1]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let owner = Owner(process);
    let secret: Secret = lines.find_map(|line| line.strip_prefix("secret ")?.parse().ok()).expect("a secret");
    let asked: usize = lines.find_map(|line| line.strip_prefix("stands after ")?.parse().ok()).expect("it stands");
    drop(owner);
    let acked = u64::from_le_bytes(std::fs::read(file.path()).unwrap()[..8].try_into().unwrap());
    let mut memory = open(&addresses, secret, &Options::default());
    assert_eq!(memory.lost().0, [], "{what}: both servers answer");
    let mut lane = memory.lane().unwrap();
    assert!(!check(2 * MIB, &mut lane, acked, &what));
    println!("{what}: {acked} stamps, at {:?}", memory.servers());
    // It can be written and moved on.
    let is_there = memory.servers()[0].0 == addresses[1];
    assert_eq!(is_there, asked >= 6, "{what}");
    let to = usize::from(!is_there);
    memory.migrate(&addresses[1 - to], Some(&addresses[to])).unwrap();
    assert!(!check(2 * MIB, &mut lane, acked, &what));
    write(&mut lane, 0, &1_u64.to_le_bytes()).unwrap();
    drop(lane);
    memory.delete().unwrap();
    asked == requests
}

#[test]
fn clients_killed_at_each_step_keep_acked_writes() {
    for fabric in ["shm", "iwarp"] {
        let tried = (0..20).take_while(|&requests| client_dies_after(requests, fabric)).count();
        assert!(tried >= 8, "each step was tried: {tried}");
    }
}

#[test]
fn copies_of_strangers_regions_are_refused() {
    let servers = pair("8m", "2m", &[]);
    let stranger = pair("8m", "2m", &[]);
    let addresses = [address(&servers[0], "shm"), address(&stranger[1], "shm")];
    let mut memory = create(&addresses, 2 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 8, b"stays   ").unwrap();
    let error = memory.migrate(&addresses[0], None).unwrap_err();
    assert!(error.to_string().contains("--far-peers"), "{error}");
    assert_eq!(read(&mut lane, 8).unwrap().to_le_bytes(), *b"stays   ");
    write(&mut lane, 8, b"goes on ").unwrap();
    let unknown = memory.migrate("shm:@nobody", None).unwrap_err();
    assert!(matches!(unknown, MemoryError::UnknownServer { .. }), "{unknown}");
    drop(lane);
    memory.delete().unwrap();
}

#[test]
fn command_moves_memory_to_another_server() {
    let servers = pair("8m", "2m", &[]);
    let addresses = [address(&servers[0], "shm"), address(&servers[1], "shm")];
    let memory = create(&addresses, 4 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 3 * MIB, b"comes   ").unwrap();
    let secret = memory.secret();
    drop((lane, memory));
    let run = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
        command.args(["-s", &addresses[0], "-s", &addresses[1], "far", "migrate", "mine"]);
        command.args(arguments.split(' ')).env("RDMAKV_FAR_SECRET", secret.to_string()).stdin(Stdio::null());
        let mut output = None;
        soon("the former owner's end", || {
            let said = command.output().unwrap();
            let is_taken = String::from_utf8_lossy(&said.stderr).contains("another process");
            output = Some(said);
            !is_taken
        });
        let output = output.unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, said) = run(&format!("--from {}", addresses[0]));
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("moved   2 regions, 4 MiB") && said.contains(&format!("at      {}: 2", addresses[1])),
        "{said}"
    );
    let (code, said) = run(&format!("--from {} --to shm:@nobody", addresses[1]));
    assert!(code == Some(1) && said.contains("name one of the client's servers"), "{said}");
    let memory = open(&addresses, secret, &Options::default());
    assert_eq!(memory.servers(), [(addresses[1].clone(), 2)]);
    assert_eq!(read(&mut memory.lane().unwrap(), 3 * MIB).unwrap().to_le_bytes(), *b"comes   ");
    memory.delete().unwrap();
}

#[test]
fn paused_writes_wait_and_others_are_refused() {
    let servers = pair("8m", "2m", &[]);
    let addresses = [0, 1].map(|at: usize| address(&servers[at], "shm"));
    let mut memory = create(&addresses, 4 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    let mut moving = memory.begin_move(0, &addresses[1]).unwrap();
    while !matches!(moving.step(), Stepped::Asked(Call::Freeze { .. })) {}
    assert!(moving.is_paused());
    let mut tickets = Vec::new();
    let refused = loop {
        let mut buffer = lane.buffer(8).unwrap();
        buffer.copy_from_slice(&(tickets.len() as u64).to_le_bytes());
        match lane.write(tickets.len() as u64 * 8, buffer) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, tickets.len()), (AccessError::Busy { region: 0 }, 1024));
    assert!(!lane.test(&tickets[0]), "it waits");
    assert_eq!(read(&mut lane, 8).unwrap(), 0, "reads go on");
    write(&mut lane, 2 * MIB, b"another ").unwrap();
    assert!(matches!(moving.run(), Outcome::At(_)));
    drop(moving);
    for ticket in tickets {
        drop(lane.wait(ticket).unwrap());
    }
    assert_eq!(read(&mut lane, 1023 * 8).unwrap(), 1023);
    drop(lane);
    memory.delete().unwrap();
}

#[test]
fn a_stopping_server_waits_for_its_regions_to_move() {
    let [mut first, second] = pair("8m", "2m", &["--far-notice", "60s"]);
    let addresses = [address(&first, "shm"), address(&second, "shm")];
    let mut memory = create(&addresses, 4 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 3 * MIB, b"kept    ").unwrap();
    assert_eq!(memory.tend().unwrap().regions, 0);
    first.terminate();
    let mut moved = 0;
    soon("the notice", || {
        moved += memory.tend().unwrap().regions;
        moved == 2
    });
    let events = memory.events();
    assert!(events.iter().any(|event| matches!(event, Event::Stopping { .. })), "{events:?}");
    assert!(first.wait(), "it stops by itself");
    assert_eq!(read(&mut lane, 3 * MIB).unwrap().to_le_bytes(), *b"kept    ");
    assert_eq!(memory.lost().0, []);
    write(&mut lane, 3 * MIB, b"goes on ").unwrap();
    drop(lane);
    memory.delete().unwrap();
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Servers die at random moments of moves.
#[test]
#[ignore = "as many as FAR_KILLS says: see docs/testing.md"]
fn random_deaths_keep_acked_writes() {
    let mut random = StdRng::seed_from_u64(variable("FAR_SEED", 27));
    let mut lost = 0;
    for round in 0..variable("FAR_KILLS", 50) {
        let fabric = ["shm", "iwarp"][random.random_range(0..2)];
        let (victim, after) = (random.random_range(0..2), Duration::from_micros(random.random_range(0..30_000)));
        let what = format!("round {round}, {fabric}: server {victim} dies after {after:?}");
        let mut servers = pair("16m", "2m", &[]).map(Some);
        let addresses = [0, 1].map(|at: usize| address(servers[at].as_ref().unwrap(), fabric));
        let mut memory = create(&addresses, 4 * MIB, random.random_range(0..2));
        let (over, acked) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut lane = memory.lane().unwrap();
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| stamp(4 * MIB, &mut lane, &over, |stamp| acked.store(stamp, Relaxed)));
            soon("stamps", || acked.load(Relaxed) > 100);
            let killed = &mut servers[victim];
            let killer = threads.spawn(move || {
                std::thread::sleep(after);
                *killed = None;
            });
            let _ = memory.migrate(&addresses[0], Some(&addresses[1]));
            killer.join().unwrap();
            over.store(true, Relaxed);
            writer.join().unwrap();
        });
        lost += u32::from(check(4 * MIB, &mut lane, acked.load(Relaxed), &what));
        println!("{what}: {} stamps", acked.load(Relaxed));
    }
    println!("{lost} rounds lost something, and said so");
}

/// The speed of accesses while FAR_MIB are moved over shared memory: prints figures, and asserts none but that no access fails.
#[test]
#[ignore = "figures, on a machine at rest: see docs/testing.md"]
fn figures_of_moves() {
    let mib = variable("FAR_MIB", 256);
    let size = format!("{}m", 2 * mib + 64);
    let servers = pair(&size, "16m", &["--registered-memory", &(4 * mib + 256).to_string()]);
    let addresses = [0, 1].map(|at: usize| address(&servers[at], "shm"));
    let mut memory = create(&addresses, mib * MIB, 0);
    let mut lane = memory.lane().unwrap();
    let over = AtomicBool::new(false);
    let phase = AtomicU32::new(0);
    let nanos = std::thread::scope(|threads| {
        let load = threads.spawn(|| {
            let mut nanos = [const { Vec::new() }; 2];
            let mut random = StdRng::seed_from_u64(1);
            while !over.load(Relaxed) {
                let at = random.random_range(0..mib * MIB / 64) * 64;
                let begun = Instant::now();
                match random.random_range(0..10) {
                    0 => write(&mut lane, at, &[7; 64]).unwrap(),
                    _ => drop(read(&mut lane, at).unwrap()),
                }
                nanos[phase.load(Relaxed) as usize].push(begun.elapsed().as_nanos() as u64);
            }
            nanos
        });
        std::thread::sleep(Duration::from_secs(2));
        phase.store(1, Relaxed);
        let begun = Instant::now();
        let moved = memory.migrate(&addresses[0], Some(&addresses[1])).unwrap();
        let time = begun.elapsed();
        over.store(true, Relaxed);
        let speed = moved.bytes as f64 / time.as_secs_f64() / MIB as f64;
        println!("{} regions, {mib} MiB in {time:?}: {speed:.0} MiB/s", moved.regions);
        println!("longest pause of writes to a region: {:?}", moved.longest_pause);
        let events = memory.events();
        let pauses = events.iter().filter_map(|event| match event {
            Event::Moved { paused, .. } => Some(*paused),
            _ => None,
        });
        let mut pauses: Vec<Duration> = pauses.collect();
        pauses.sort_unstable();
        let at = |share: usize| pauses[(pauses.len() - 1) * share / 100];
        println!("pauses of {} regions: median {:?}, p90 {:?}", pauses.len(), at(50), at(90));
        load.join().unwrap()
    });
    for (mut nanos, name) in nanos.into_iter().zip(["before", "moving"]) {
        nanos.sort_unstable();
        let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize] as f64 / 1e3;
        println!(
            "{name}: {} accesses, none failed, median {:.2} us, p99 {:.2} us, longest {:.2} us",
            nanos.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    memory.delete().unwrap();
}

#[test]
fn a_shorter_reservation_at_the_target_is_known() {
    let number = NEXT.fetch_add(1, Relaxed);
    let name = |at: usize| format!("shm:@rdmakv-moves-{}-{number}-{at}", std::process::id());
    let server = |at: usize, longest: &str| {
        let (own, peers) = (name(at), name(1 - at));
        let flags = ["--far", "8m", "--far-region", "2m", "--far-peers", &peers, "--fabric", &own, "-m", "32"];
        Server::on_a_free_port(&[&flags[..], &["--far-longest", longest]].concat())
    };
    let servers = [server(0, "24h"), server(1, "3s")];
    let addresses = [0, 1].map(|at| address(&servers[at], "shm"));
    let mut memory = create(&addresses, 2 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 0, b"bytes").unwrap();
    assert_eq!(memory.migrate(&addresses[0], None).unwrap().regions, 1);
    let left = memory.left();
    std::thread::sleep(Duration::from_secs(5));
    let after = read(&mut lane, 0);
    assert!(left <= Duration::from_secs(3), "{left:?} are left by the client; then a read is {after:?}");
}

#[test]
fn parts_that_moves_left_are_dropped_later() {
    let servers = pair("8m", "2m", &[]);
    let addresses = [0, 1].map(|at: usize| address(&servers[at], "shm"));
    let one = Client::new([&addresses[0]]).unwrap();
    // Of four regions a login has two.
    let is_full = || match Memory::create(&one, 4 * MIB, &Options::default()) {
        Ok(memory) => memory.delete().map(|()| false).unwrap(),
        Err(error) => matches!(error, MemoryError::NoRoom { .. }) || panic!("{error}"),
    };
    let mut memory = create(&addresses, 2 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 0, b"old byte").unwrap();
    let mut moving = memory.begin_move(0, &addresses[1]).unwrap();
    while !matches!(moving.step(), Stepped::Asked(Call::Freeze { .. })) {}
    // The thread of the lane does something else after this.
    let ticket = lane.read(0, lane.buffer(8).unwrap()).unwrap();
    assert!(matches!(moving.run(), Outcome::At(_)));
    drop(moving);
    let left = |event: &Event| *event == Event::Left { region: 0, at: addresses[0].clone() };
    assert!(memory.events().iter().any(left));
    memory.tend().unwrap();
    assert!(is_full(), "the read has not ended");
    assert_eq!(&lane.wait(ticket).unwrap()[..], b"old byte");
    memory.tend().unwrap();
    assert!(!is_full(), "it is dropped once the read has ended");
    assert_eq!(read(&mut lane, 0).unwrap().to_le_bytes(), *b"old byte");
    // So it can come back.
    assert_eq!(memory.migrate(&addresses[1], Some(&addresses[0])).unwrap().regions, 1);
    assert_eq!(memory.lost().0, []);
    drop(lane);
    memory.delete().unwrap();
}

#[test]
fn reads_while_a_move_fails_lose_no_server() {
    let fabric = "iwarp";
    let mut servers = pair("16m", "2m", &[]).map(Some);
    let addresses = [0, 1].map(|at: usize| address(servers[at].as_ref().unwrap(), fabric));
    let mut memory = create(&addresses, 4 * MIB, 0);
    let mut first = memory.lane().unwrap();
    write(&mut first, 0, b"bytes").unwrap();
    write(&mut first, 2 * MIB, b"bytes").unwrap();
    // A lane that has not come to region 1 yet.
    let mut reader = memory.lane().unwrap();
    let mut moving = memory.begin_move(1, &addresses[1]).unwrap();
    while !matches!(moving.step(), Stepped::Asked(Call::Freeze { .. })) {}
    let outcome = std::thread::scope(|threads| {
        // Reads are allowed in this phase: many of region 0, and one of region 1.
        let reading = threads.spawn(|| {
            let pieces = 30_000_u64;
            let mut parts: Vec<(u64, u64)> = (0..pieces).map(|at| (at % 1000 * 8, 8)).collect();
            parts.push((2 * MIB, 8));
            let buffer = reader.buffer(parts.len() * 8).unwrap();
            let ticket = reader.read_batch(&parts, buffer)?;
            reader.wait(ticket).map(drop)
        });
        std::thread::sleep(Duration::from_millis(20));
        servers[1] = None;
        let outcome = moving.run();
        drop(moving);
        let read = reading.join().unwrap();
        println!("the move: {outcome:?}, the reads: {read:?}");
        outcome
    });
    assert!(matches!(outcome, Outcome::Stayed(_)), "{outcome:?}");
    let lost = memory.lost().0;
    assert!(lost.is_empty(), "the first server lives, and {lost:?} are lost");
    assert!(read(&mut first, 0).is_ok());
}

#[test]
fn a_procedure_that_waits_for_a_map_ends_in_time() {
    let servers = pair("8m", "2m", &[]);
    let addresses = [0, 1].map(|at: usize| address(&servers[at], "shm"));
    let mut memory = create(&addresses, 2 * MIB, 0);
    let mut runner = memory.runner();
    let mut moving = memory.begin_move(0, &addresses[1]).unwrap();
    while moving.step() != Stepped::Asked(Call::Commit) {}
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let outcome = runner.call(Procedure::Cas64(Cas64 { at: 8192, old: 0, new: 1 })).map(|ran| ran.end);
        let _ = sender.send(outcome);
    });
    // 10 s, and the patience of an answer, another 10.
    let outcome = receiver.recv_timeout(Duration::from_secs(30));
    assert!(outcome.is_ok(), "it is asked again and again");
    assert!(matches!(moving.run(), Outcome::At(_)));
}
