//! Far memory at real servers, which are processes of their own: accesses under stamps, and what is left when a side dies.
//!
//! ```text
//! cargo test -p rdmakv-client --test far
//! ```

mod server;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdmakv_client::Client;
use rdmakv_client::far::bench::{Load, measure};
use rdmakv_client::far::configuration::{Configuration, Limits, Prices};
use rdmakv_client::far::measure::samples;
use rdmakv_client::far::model::{Model, Operation, Point, Sample};
use rdmakv_client::far::search::cheapest;
use rdmakv_client::far::slo::Slo;
use rdmakv_client::far::{
    AccessError, Cas64, Lane, LevelError, Memory, MemoryError, Options, Procedure, RunError, Secret, Terms, create_for,
};
use server::{Server, soon};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Fabrics, each with the workers that carry batches out: none is one-sided access.
const WAYS: [(&str, u32); 4] = [("shm", 0), ("iwarp", 0), ("shm", 1), ("iwarp", 2)];

/// A server's options: regions of 2 MiB, on both fabrics.
fn far_server(size: &str) -> Server {
    let name =
        format!("shm:@rdmakv-far-{}-{}", std::process::id(), NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    Server::on_a_free_port(&[
        "--far",
        size,
        "--far-region",
        "2m",
        "--far-threads",
        "2",
        "--fabric",
        &name,
        "--fabric",
        "iwarp:127.0.0.1:0",
        "-m",
        "32",
    ])
}

static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Returns the server's address on a fabric.
fn address(server: &Server, fabric: &str) -> String {
    let start = format!("listening on {fabric}:");
    let found = server.lines.iter().find_map(|line| line.strip_prefix(&start));
    format!("{fabric}:{}", found.unwrap_or_else(|| panic!("it prints where it listens: {:?}", server.lines)))
}

fn client(server: &Server, fabric: &str) -> Client {
    Client::new([address(server, fabric)]).unwrap()
}

fn create(client: &Client, capacity: u64, workers: u32) -> Memory {
    Memory::create(client, capacity, &Options { depth: 6, workers, batch: 5, ..Options::default() }).unwrap()
}

fn write(lane: &mut Lane, at: u64, bytes: &[u8]) -> Result<(), AccessError> {
    let mut buffer = lane.buffer(bytes.len())?;
    buffer.copy_from_slice(bytes);
    let ticket = lane.write(at, buffer)?;
    lane.wait(ticket).map(drop)
}

fn read(lane: &mut Lane, at: u64, length: usize) -> Result<Vec<u8>, AccessError> {
    let buffer = lane.buffer(length)?;
    let ticket = lane.read(at, buffer)?;
    lane.wait(ticket).map(|buffer| buffer.to_vec())
}

#[test]
fn a_lane_refuses_the_ticket_of_another() {
    let server = far_server("16m");
    let client = client(&server, "shm");
    let memory = create(&client, MIB, 0);
    let (mut one, mut other) = (memory.lane().unwrap(), memory.lane().unwrap());
    let ticket = one.read(0, one.buffer(64).unwrap()).unwrap();
    let own = other.read(0, other.buffer(32).unwrap()).unwrap();
    assert!(matches!(other.wait(ticket), Err(AccessError::OtherLane)));
    assert_eq!(other.wait(own).unwrap().len(), 32);
}

/// Random ranges under way at a time that do not overlap, against a plain array.
fn random_ranges(server: &Server, fabric: &str, workers: u32) {
    const CAPACITY: u64 = 5 * MIB + 1234;
    let client = client(server, fabric);
    let memory = create(&client, CAPACITY, workers);
    assert_eq!(memory.capacity(), CAPACITY);
    let mut lane = memory.lane().unwrap();
    let mut model = vec![0_u8; CAPACITY as usize];
    let mut random = StdRng::seed_from_u64(7);
    let mut under_way = VecDeque::new();
    for step in 0..1500_u64 {
        let length = if step % 50 == 0 { random.random_range(1..3 * MIB) } else { random.random_range(1..5000) };
        let at = if step % 5 == 0 {
            // Around the border of two regions.
            (2 * MIB * random.random_range(1..3)).saturating_sub(length / 2)
        } else {
            random.random_range(0..CAPACITY)
        };
        let length = length.min(CAPACITY - at);
        let range = at as usize..(at + length) as usize;
        let overlaps = |of: &(std::ops::Range<usize>, _, _)| of.0.start < range.end && range.start < of.0.end;
        while under_way.len() > 8 || under_way.iter().any(overlaps) {
            finish(&mut lane, under_way.pop_front().unwrap());
        }
        let mut buffer = lane.buffer(range.len()).unwrap();
        if random.random() {
            random.fill(&mut buffer[..]);
            model[range.clone()].copy_from_slice(&buffer);
            under_way.push_back((range, lane.write(at, buffer).unwrap(), None));
        } else {
            buffer.fill(0xee);
            let expected = model[range.clone()].to_vec();
            under_way.push_back((range, lane.read(at, buffer).unwrap(), Some(expected)));
        }
    }
    under_way.into_iter().for_each(|access| finish(&mut lane, access));
    // Another lane, and parts of several places in one read.
    let mut other = memory.lane().unwrap();
    assert!(read(&mut other, 0, CAPACITY as usize).unwrap() == model, "{fabric}");
    let parts = [(2 * MIB - 3, 7), (0, 1), (CAPACITY - 5, 5)];
    let buffer = other.buffer(13).unwrap();
    let ticket = other.read_batch(&parts, buffer).unwrap();
    let expected: Vec<u8> =
        parts.iter().flat_map(|&(at, length)| &model[at as usize..(at + length) as usize]).copied().collect();
    assert_eq!(other.wait(ticket).unwrap()[..], expected);
    // Nothing, too much, and a batch that does not fit.
    assert_eq!(read(&mut other, 5, 0).unwrap(), b"");
    let beyond = AccessError::OutOfRange { at: CAPACITY - 4, length: 5, capacity: CAPACITY };
    assert_eq!(read(&mut other, CAPACITY - 4, 5), Err(beyond));
    let buffer = other.buffer(5).unwrap();
    assert_eq!(other.read_batch(&[(0, 4)], buffer).unwrap_err(), AccessError::Buffer { wanted: 4, length: 5 });
    drop((lane, other));
    memory.delete().unwrap();
}

fn finish(
    lane: &mut Lane,
    (range, ticket, expected): (std::ops::Range<usize>, rdmakv_client::far::Ticket, Option<Vec<u8>>),
) {
    let buffer = lane.wait(ticket).unwrap();
    if let Some(expected) = expected {
        assert!(buffer[..] == expected, "{range:?}");
    }
}

#[test]
fn random_ranges_are_as_written_over_shm() {
    random_ranges(&far_server("64m"), "shm", 0);
}

#[test]
fn random_ranges_are_as_written_over_iwarp() {
    random_ranges(&far_server("64m"), "iwarp", 0);
}

#[test]
fn random_ranges_are_as_written_in_batches() {
    let server = far_server("64m");
    random_ranges(&server, "shm", 1);
    random_ranges(&server, "iwarp", 2);
}

#[test]
fn servers_lend_no_more_workers_than_they_have() {
    let server = far_server("16m");
    let client = client(&server, "shm");
    let memory = create(&client, MIB, 3);
    assert_eq!(memory.workers(), 2);
    let error = memory.lane().unwrap_err();
    assert!(matches!(error, MemoryError::Workers { offered: 2, .. }), "{error}");
    let of = Configuration { workers: 2, lanes: 1, batch: 7, depth: 3 };
    let mut lane = memory.lane_of(&of).unwrap();
    write(&mut lane, 5, b"bytes").unwrap();
    assert_eq!(read(&mut lane, 4, 6).unwrap(), b"\0bytes");
}

#[test]
fn batches_under_way_are_bounded() {
    let server = far_server("16m");
    for fabric in ["shm", "iwarp"] {
        let client = client(&server, fabric);
        let memory = create(&client, 4 * MIB, 1);
        let mut lane = memory.lane_of(&Configuration { workers: 1, lanes: 1, batch: 512, depth: 48 }).unwrap();
        // Far more than a message, a batch or all batches of a lane hold. Nothing is waited for meanwhile.
        let mut tickets = Vec::new();
        for record in 0..60_000_u64 {
            let mut buffer = lane.buffer(64).unwrap();
            buffer.fill(record as u8);
            tickets.push(lane.write(record * 64, buffer).unwrap());
        }
        tickets.into_iter().for_each(|ticket| drop(lane.wait(ticket).unwrap()));
        for record in (0..60_000_u64).step_by(777) {
            assert_eq!(read(&mut lane, record * 64, 64).unwrap(), [record as u8; 64], "{fabric}");
        }
        drop(lane);
        memory.delete().unwrap();
    }
}

#[test]
fn lanes_see_acked_writes_of_each_other() {
    let server = far_server("64m");
    for (fabric, workers) in WAYS {
        let client = client(&server, fabric);
        let memory = create(&client, 4 * MIB, workers);
        let (mut one, mut other) = (memory.lane().unwrap(), memory.lane().unwrap());
        for counter in 1..2000_u64 {
            let at = (counter * 4096 + counter * 8) % (4 * MIB - 8);
            write(&mut one, at, &counter.to_le_bytes()).unwrap();
            assert_eq!(read(&mut other, at, 8).unwrap(), counter.to_le_bytes(), "{fabric}");
        }
        drop((one, other));
        memory.delete().unwrap();
    }
}

#[test]
fn room_is_bounded_and_comes_back_zeroed() {
    let server = far_server("16m");
    for fabric in ["shm", "iwarp"] {
        let client = client(&server, fabric);
        let error = Memory::create(&client, 16 * MIB, &Options::default()).unwrap_err();
        assert_eq!(error, MemoryError::NoRoom { offered: 8 * MIB }, "half of it is for others");
        for _ in 0..3 {
            let memory = create(&client, 8 * MIB, 0);
            assert!(matches!(Memory::create(&client, 1, &Options::default()), Err(MemoryError::NoRoom { offered: 0 })));
            let mut lane = memory.lane().unwrap();
            assert!(read(&mut lane, 0, 8 << 20).unwrap().iter().all(|&byte| byte == 0), "{fabric}: another's bytes");
            write(&mut lane, 0, &vec![7; 8 << 20]).unwrap();
            memory.delete().unwrap();
            assert_eq!(read(&mut lane, 0, 1), Err(AccessError::Ended));
        }
    }
    let none = Server::on_a_free_port(&["--fabric", "iwarp:127.0.0.1:0"]);
    let error = Memory::create(&client(&none, "iwarp"), 1, &Options::default()).unwrap_err();
    assert!(matches!(&error, MemoryError::Unable { .. }) && error.to_string().contains("--far SIZE"), "{error}");
}

#[test]
fn killed_servers_lose_their_regions_alone() {
    for (fabric, workers) in WAYS {
        let (one, other) = (far_server("16m"), far_server("16m"));
        let client = Client::new([address(&one, fabric), address(&other, fabric)]).unwrap();
        let mut memory = create(&client, 12 * MIB, workers);
        let mut lane = memory.lane().unwrap();
        for region in 0..6_u64 {
            write(&mut lane, region * 2 * MIB, &region.to_le_bytes()).unwrap();
        }
        assert_eq!(memory.lost().0, []);
        drop(one);
        let mut lost = Vec::new();
        for region in 0..6_u64 {
            match read(&mut lane, region * 2 * MIB, 8) {
                Ok(bytes) => assert_eq!(bytes, region.to_le_bytes()),
                Err(AccessError::Lost { regions, .. }) => {
                    assert!(regions.contains(&(region as u32)), "{regions:?}");
                    lost.push(region);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost == [0, 1, 2, 3] || lost == [2, 3, 4, 5] || lost == [0, 1] || lost == [4, 5], "{fabric}: {lost:?}");
        let all = memory.lost().0;
        assert_eq!((all.len(), all[0].len()), (1, lost.len()));
        let error = write(&mut lane, lost[0] * 2 * MIB, b"x").unwrap_err();
        assert!(matches!(error, AccessError::Lost { .. }), "{error}");
        // A later lane knows it from the beginning.
        let mut later = memory.lane().unwrap();
        assert!(matches!(read(&mut later, lost[0] * 2 * MIB, 8), Err(AccessError::Lost { .. })));
        let there = (0..6).find(|region| !lost.contains(region)).unwrap();
        assert_eq!(read(&mut later, there * 2 * MIB, 8).unwrap(), there.to_le_bytes());
        drop((lane, later));
        memory.delete().unwrap();
    }
}

#[test]
fn regions_that_only_a_dead_server_had_are_lost() {
    for fabric in ["shm", "iwarp"] {
        let servers = [far_server("16m"), far_server("16m")];
        let addresses = [0, 1].map(|at: usize| address(&servers[at], fabric));
        let client = Client::new(&addresses).unwrap();
        let options = Options { name: Some("mine".into()), ..Options::default() };
        let memory = Memory::create(&client, 12 * MIB, &options).unwrap();
        let (secret, at) = (memory.secret(), memory.servers());
        // The first one has room for four regions, the other one has the last two.
        let last = at.iter().find(|(_, regions)| *regions == 2).map(|(name, _)| name.clone()).expect("two servers");
        drop(memory);
        let dead = usize::from(last == addresses[1]);
        let [one, other] = servers;
        let _living = if dead == 0 { (drop(one), other) } else { (drop(other), one) };
        let mut opened = None;
        soon("the former owner's end", || {
            opened = Memory::open(&client, "mine", secret, &options)
                .map_err(|error| assert_eq!(error, MemoryError::Taken, "{fabric}"))
                .ok();
            opened.is_some()
        });
        let mut memory = opened.unwrap();
        let lost: Vec<u32> = memory.lost().0.into_iter().flatten().collect();
        assert_eq!((memory.capacity(), lost), (12 * MIB, vec![4, 5]), "{fabric}");
        let mut lane = memory.lane().unwrap();
        write(&mut lane, 7 * MIB, b"bytes").unwrap();
        assert!(matches!(read(&mut lane, 8 * MIB, 1), Err(AccessError::Lost { .. })), "{fabric}");
        drop(lane);
        memory.delete().unwrap();
    }
}

#[test]
fn death_under_load_ends_each_write_once() {
    for (fabric, workers) in WAYS {
        let server = far_server("16m");
        let client = client(&server, fabric);
        let memory = create(&client, 8 * MIB, workers);
        let mut lane = memory.lane().unwrap();
        let mut server = Some(server);
        let mut under_way = VecDeque::new();
        let error = loop {
            let begun = lane.buffer(8).and_then(|buffer| lane.write(under_way.len() as u64 * 8, buffer));
            match begun {
                Ok(ticket) => under_way.push_back(ticket),
                Err(error) => break error,
            }
            if under_way.len() == 5000 {
                server = None;
            }
        };
        assert!(server.is_none() && matches!(error, AccessError::Lost { .. }), "{fabric}: {error}");
        // Each has one outcome.
        let outcomes: Vec<_> = under_way.into_iter().map(|ticket| lane.wait(ticket).is_ok()).collect();
        assert!(outcomes[0] && outcomes.len() >= 5000);
    }
}

/// The variables by which a test program becomes a client that is to be killed.
const OWNS: &str = "RDMAKV_TEST_OWNS";

/// Becomes a client that makes a memory, writes, and waits to be killed.
#[test]
#[ignore = "the process of a client"]
fn own() {
    let Ok(owns) = std::env::var(OWNS) else { return };
    let (workers, server) = owns.split_once(' ').unwrap();
    let client = Client::new([server]).unwrap();
    let workers = workers.parse().unwrap();
    let options = Options { name: Some("mine".into()), workers, batch: 3, ..Options::default() };
    let memory = Memory::create(&client, 4 * MIB, &options).unwrap();
    let mut lane = memory.lane().unwrap();
    for at in 0..1000_u64 {
        write(&mut lane, at * 4000, &at.to_le_bytes()).unwrap();
    }
    println!("\nsecret {}", memory.secret());
    std::io::stdout().flush().unwrap();
    // It is killed in the middle of these.
    loop {
        for at in 0..1000_u64 {
            let buffer = lane.buffer(8).unwrap();
            let ticket = lane.write(at * 4000 + 16, buffer).unwrap();
            lane.wait(ticket).unwrap();
        }
    }
}

struct Owner(Child);

impl Owner {
    fn begin(server: &str, workers: u32) -> (Self, Secret) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "own", "--nocapture", "--include-ignored"])
            .env(OWNS, format!("{workers} {server}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let secret = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("secret ")?.parse().ok());
        (Self(process), secret.expect("it prints the secret"))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn secret_opens_memory_of_a_killed_client() {
    let server = far_server("16m");
    for (fabric, workers) in WAYS {
        let (owner, secret) = Owner::begin(&address(&server, fabric), workers);
        let client = client(&server, fabric);
        let open = |name, secret| Memory::open(&client, name, secret, &Options::default());
        assert_eq!(open("mine", secret).unwrap_err(), MemoryError::Taken, "{fabric}");
        let wrong = "0123456789abcdef0123456789abcdef".parse().unwrap();
        assert_eq!(open("mine", wrong).unwrap_err(), MemoryError::Unknown);
        assert_eq!(open("other", secret).unwrap_err(), MemoryError::Unknown);
        let named = Options { name: Some("mine".into()), ..Options::default() };
        assert_eq!(Memory::create(&client, 1, &named).unwrap_err(), MemoryError::NameInUse);
        drop(owner);
        let mut opened = None;
        soon("the former owner's end", || {
            opened = open("mine", secret).map_err(|error| assert_eq!(error, MemoryError::Taken)).ok();
            opened.is_some()
        });
        let memory = opened.unwrap();
        assert_eq!(memory.capacity(), 4 * MIB);
        let mut lane = memory.lane().unwrap();
        for at in 0..1000_u64 {
            assert_eq!(read(&mut lane, at * 4000, 8).unwrap(), at.to_le_bytes(), "{fabric}");
        }
        drop(lane);
        memory.delete().unwrap();
        assert_eq!(open("mine", secret).unwrap_err(), MemoryError::Unknown);
    }
}

/// Runs the command, and returns its exit code and what it printed.
fn rdmakv(arguments: &[&str], secret: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
    command.args(arguments).stdin(Stdio::null());
    secret.map(|secret| command.env("RDMAKV_FAR_SECRET", secret));
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[test]
fn command_makes_measures_and_deletes() {
    let server = far_server("32m");
    let at = address(&server, "shm");
    let (code, made) = rdmakv(&["-s", &at, "far", "create", "mine", "--size", "4m", "--for", "600"], None);
    assert_eq!(code, Some(0), "{made}");
    let secret = made.lines().find_map(|line| line.strip_prefix("secret  ")).expect("a secret");
    let (code, said) = rdmakv(&["-s", &at, "far", "create", "mine", "--size", "4m"], None);
    assert!(code == Some(1) && said.contains("there is one of this name"), "{said}");
    let (code, said) = rdmakv(&["-s", &at, "far", "delete", "mine"], None);
    assert!(code == Some(2) && said.contains("RDMAKV_FAR_SECRET"), "{said}");
    assert_eq!(rdmakv(&["-s", &at, "far", "delete", "mine"], Some(&"0".repeat(32))).0, Some(1));
    assert_eq!(rdmakv(&["-s", &at, "far", "delete", "mine"], Some(secret)), (Some(0), String::new()));
    for fabric in ["shm", "iwarp"] {
        let at = address(&server, fabric);
        let arguments =
            ["-s", &at, "far", "bench", "--size", "4m", "--lanes", "2", "--depth", "4", "--seconds", "0.05"];
        let (code, said) = rdmakv(&arguments, None);
        assert!(code == Some(0) && said.contains("one-sided, 2 lanes, 4 in flight") && said.contains("p99"), "{said}");
        let (code, said) = rdmakv(&[&arguments[..], &["--workers", "2", "--batch", "32"]].concat(), None);
        assert!(code == Some(0) && said.contains("2 workers, 2 lanes, batches of 32, 4 in flight"), "{said}");
    }
}

#[test]
fn plans_follow_from_a_measured_model() {
    let server = far_server("16m");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a/model.csv");
    let file = file.to_str().unwrap();
    let plan = |latency: &str, throughput: &str, fabric: &str| {
        let level = ["--latency", latency, "--throughput", throughput, "--fabric", fabric, "--file", file];
        rdmakv(&[&["far", "plan"], &level[..]].concat(), None)
    };
    // A login without a password is no login.
    let no_password =
        Command::new(env!("CARGO_BIN_EXE_rdmakv")).args(["get", "key"]).env("RDMAKV_LOGIN", "ann").output();
    let said = String::from_utf8(no_password.unwrap().stderr).unwrap();
    assert!(said.contains("RDMAKV_LOGIN has no colon"), "{said}");
    let (code, said) = plan("1000000", "1", "shm");
    assert!(code == Some(1) && said.contains("rdmakv far model"), "{said}");
    let at = address(&server, "shm");
    let small = ["--lanes", "1", "--depth", "2", "--time", "1"];
    let model = [&["-s", &at, "far", "model", "--size", "4m", "--file", file], &small[..]].concat();
    let (code, said) = rdmakv(&model, None);
    assert!(code == Some(0) && said.contains("points of shm"), "{said}");
    let text = std::fs::read_to_string(file).unwrap();
    // An axis ends where more gains nothing, which may be early beside other work.
    let is_batch = |line: &str| line.starts_with("shm,write,64,1,1,") && !line.starts_with("shm,write,64,1,1,1,");
    assert!(text.lines().any(is_batch), "batches by a worker are measured: {text}");
    // A level that each configuration meets takes the cheapest.
    let (code, said) = plan("1000000", "1", "shm");
    assert!(code == Some(0) && said.starts_with("one-sided, 1 lane, 1 in flight: "), "{said}");
    let drawn = folder.path().join("plan.html");
    let drawn = drawn.to_str().unwrap();
    let level =
        ["--latency", "1000000", "--throughput", "1", "--file", file, "--check", "--size", "4m", "--picture", drawn];
    let (code, said) = rdmakv(&[&["-s", &at, "far", "plan"], &level[..]].concat(), None);
    assert!(code == Some(0) && said.contains("it meets the level"), "{said}");
    assert!(
        std::fs::read_to_string(drawn)
            .unwrap()
            .contains("<h1>One-sided access by 1 lane, 1 in flight: meets 1 accesses/s at a mean of 1 s")
    );
    // A level for a new memory, by the model where programs look for one.
    let made = folder.path().join("data/rdmakv/far/model.csv");
    std::fs::create_dir_all(made.parent().unwrap()).unwrap();
    std::fs::copy(file, made).unwrap();
    let mut create = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
    create.args(["-s", &at, "far", "create", "planned", "--size", "2m", "--latency", "1000000"]);
    let half = create.output().unwrap();
    assert!(half.status.code() == Some(2) && String::from_utf8(half.stderr).unwrap().contains("--throughput"));
    let planned = create.args(["--throughput", "1"]).env("XDG_DATA_HOME", folder.path().join("data")).output().unwrap();
    let said = String::from_utf8([planned.stdout, planned.stderr].concat()).unwrap();
    assert!(said.contains("plan    one-sided, 1 lane, 1 in flight: ") && !said.contains("measuring"), "{said}");
    let (code, said) = plan("0.001", "1e11", "shm");
    assert!(code == Some(1) && said.contains("nothing here makes"), "{said}");
    let (code, said) = plan("1000000", "1", "iwarp");
    assert!(code == Some(1) && said.contains("has no iwarp"), "{said}");
    let text = std::fs::read_to_string(file).unwrap().replace("# machine ", "# machine another, ");
    std::fs::write(file, text).unwrap();
    let (code, said) = plan("1000000", "1", "shm");
    assert!(code == Some(1) && said.contains("--any-machine"), "{said}");
}

#[test]
fn reservations_end_and_are_renewed() {
    let server = far_server("16m");
    let client = client(&server, "shm");
    let short = Options { duration: Duration::from_millis(300), ..Options::default() };
    let mut kept = Memory::create(&client, 2 * MIB, &short).unwrap();
    assert!(kept.renew(Duration::from_secs(600)).unwrap() > Duration::from_secs(500));
    let memory = Memory::create(&client, 2 * MIB, &short).unwrap();
    let mut lane = memory.lane().unwrap();
    soon("its end", || match write(&mut lane, 0, b"x") {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error, AccessError::Ended);
            true
        }
    });
    soon("its room", || Memory::create(&client, 6 * MIB, &Options::default()).map(|memory| memory.delete()).is_ok());
    let mut lane = kept.lane().unwrap();
    write(&mut lane, 0, b"x").unwrap();
    drop(lane);
    kept.delete().unwrap();
}

#[test]
fn memories_are_made_for_levels() {
    let server = far_server("32m");
    let client = client(&server, "iwarp");
    let limits = Limits { workers: 1, lanes: 1, depth: 2 };
    let measured = Terms { limits, time: Duration::from_millis(1), ..Terms::default() };
    let options = Options::default();
    let easy = Slo::new(Duration::from_secs(1), 1.0, 64, 1.0).unwrap();
    let (memory, chosen) = create_for(&client, 16 * MIB, &easy, &measured, &options).unwrap();
    assert_eq!(chosen.configuration, Configuration { workers: 0, lanes: 1, batch: 1, depth: 1 }, "the cheapest");
    let mut lane = memory.lane().unwrap();
    assert!(read(&mut lane, 0, 1 << 20).unwrap().iter().all(|&byte| byte == 0), "nothing of the measurement is left");
    memory.delete().unwrap();
    let hopeless = Slo::new(Duration::from_nanos(1), 1.0, 64, 0.5).unwrap();
    let error = create_for(&client, 16 * MIB, &hopeless, &measured, &options).unwrap_err();
    assert!(matches!(error, LevelError::Infeasible(_)), "{error}");
    // By a model in which only batches are fast enough.
    let point = |workers: u32| Point { throughput: 1e5 * f64::from(1 + 9 * workers), mean: 1e4, p99: 2e4 };
    let sample = |workers, batch| Sample {
        operation: Operation::Read,
        record: 64,
        configuration: Configuration { workers, lanes: 1, batch, depth: 1 },
        point: point(workers),
    };
    let model = Model::of(&[sample(0, 1), sample(1, 8)]);
    let known = Terms { model: Some(&model), ..measured };
    let fast = Slo::new(Duration::from_millis(1), 5e5, 64, 1.0).unwrap();
    let (memory, chosen) = create_for(&client, 16 * MIB, &fast, &known, &options).unwrap();
    assert!(chosen.configuration.workers == 1 && memory.workers() == 2, "{chosen}");
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 7, b"in a batch").unwrap();
    assert_eq!(read(&mut lane, 7, 10).unwrap(), b"in a batch");
}

/// A number of an environment variable.
fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Returns the median of three runs of each configuration by throughput, as a model has it. They take turns.
fn measured<const N: usize>(memory: &Memory, of: [&Configuration; N], slo: &Slo, time: Duration) -> [Point; N] {
    let mut lanes = of.map(|of| (0..of.lanes).map(|_| memory.lane_of(of).unwrap()).collect::<Vec<Lane>>());
    let load = Load { record: slo.record(), reads: slo.reads(), time };
    let mut runs = [(); N].map(|()| Vec::new());
    for _ in 0..3 {
        for (at, of) in of.into_iter().enumerate() {
            runs[at].push(measure(&mut lanes[at], memory.capacity(), of, &load).unwrap().point);
        }
    }
    runs.map(|mut runs| {
        runs.sort_by(|one, other| one.throughput.total_cmp(&other.throughput));
        runs[1]
    })
}

/// Returns whether a configuration meets a level, and its first measurement. If that is not as expected, two more
/// have to be. In these it takes turns
/// with the configuration by which the level was drawn. That one tells whether the machine is as fast as the model says.
fn judged(
    memory: &Memory,
    (of, expected): (&Configuration, bool),
    (slo, drawn): (&Slo, &Drawn),
    time: Duration,
) -> (bool, Point) {
    let [first] = measured(memory, [of], slo, time);
    if meets(&first, slo) == expected {
        return (expected, first);
    }
    let again = [(); 2].map(|()| {
        let [point, known] = measured(memory, [of, &drawn.configuration], slo, time);
        println!(
            "  again: {of}: {:.0}/s, {:.1} us; {}: {:.0} % of the model's throughput, {:.0} % of its latency",
            point.throughput,
            point.mean / 1e3,
            drawn.configuration,
            known.throughput / drawn.point.throughput * 100.0,
            known.mean / drawn.point.mean * 100.0,
        );
        meets(&point, slo)
    });
    (expected ^ again.iter().any(|&met| met != expected), first)
}

/// The configuration by which a level was drawn, and its point in the model.
struct Drawn {
    configuration: Configuration,
    point: Point,
}

fn meets(point: &Point, slo: &Slo) -> bool {
    point.throughput >= slo.throughput() && point.mean <= slo.latency().as_secs_f64() * 1e9
}

/// All configurations within the limits, from the cheapest on.
fn by_cost(limits: &Limits, record: u32, prices: &Prices) -> Vec<Configuration> {
    let mut all = Vec::new();
    for workers in 0..=limits.workers {
        for lanes in workers.max(1)..=limits.lanes {
            for batch in limits.batches(workers, record) {
                all.extend(limits.depths().map(|depth| Configuration { workers, lanes, batch, depth }));
            }
        }
    }
    all.sort_by(|one, other| prices.cost(one, record).total_cmp(&prices.cost(other, record)));
    all
}

/// Draws a level that a random configuration meets by the model, with room to spare.
fn random_level(random: &mut StdRng, model: &Model, limits: &Limits) -> (Slo, Drawn) {
    let record = [64, 200, 512][random.random_range(0..3)];
    let reads = [1.0, 0.9, 0.5][random.random_range(0..3)];
    let all = by_cost(limits, record, &Prices::default());
    let configuration = all[random.random_range(0..all.len())];
    let point = model.at(record, reads, &configuration).expect("it was measured");
    let latency = Duration::from_nanos((point.mean * random.random_range(1.25..3.0)) as u64);
    let slo = Slo::new(latency, point.throughput * random.random_range(0.3..0.8), record, reads).unwrap();
    (slo, Drawn { configuration, point })
}

/// Random levels on real servers: the choice meets them in measurement, and hardly anything cheaper does.
#[test]
#[ignore = "minutes of measuring on a machine at rest: see docs/testing.md"]
fn random_levels_are_met() {
    let (levels, time) = (variable("FAR_LEVELS", 30), Duration::from_millis(variable("FAR_MILLIS", 100)));
    let server = far_server("64m");
    let mut random = StdRng::seed_from_u64(variable("FAR_SEED", 27));
    let (limits, prices) = (Limits { workers: 1, lanes: 2, depth: 8 }, Prices::default());
    let (mut met, mut cheap, mut longest) = (0, 0, Duration::ZERO);
    for fabric in ["shm", "iwarp"] {
        let client = client(&server, fabric);
        let memory = Memory::create(&client, 16 * MIB, &Options::default()).unwrap();
        let points = (&[Operation::Read, Operation::Write][..], &[64, 512][..]);
        let model = Model::of(&samples(&memory, &limits, points, time / 2, |_, _, _| {}).unwrap());
        for number in 0..levels.div_ceil(2) {
            let (slo, drawn) = random_level(&mut random, &model, &limits);
            let level = (&slo, &drawn);
            let begun = Instant::now();
            let found = cheapest(&model, &slo, &limits, &prices);
            longest = longest.max(begun.elapsed());
            let chosen = found.expect("a configuration meets it by the model");
            let (is_met, point) = judged(&memory, (&chosen.configuration, true), level, time * 2);
            let cheaper = by_cost(&limits, slo.record(), &prices);
            let cost = |of: &Configuration| prices.cost(of, slo.record());
            let cheaper = cheaper.into_iter().take_while(|of| cost(of) * 1.2 < chosen.cost);
            let best = cheaper.into_iter().find(|of| judged(&memory, (of, false), level, time * 2).0);
            met += u64::from(is_met);
            cheap += u64::from(best.is_none());
            println!(
                "{fabric} {number}: {:.0}/s in {:?}, {} bytes, {:.0} % reads: {chosen}; measured {:.0}/s, {:.1} us{}{}",
                slo.throughput(),
                slo.latency(),
                slo.record(),
                slo.reads() * 100.0,
                point.throughput,
                point.mean / 1e3,
                if is_met { "" } else { ": MISSED" },
                best.map_or(String::new(), |best| format!("; far cheaper: {best}, cost {:.2}", cost(&best))),
            );
        }
        memory.delete().unwrap();
    }
    let levels = levels.div_ceil(2) * 2;
    println!("{met} of {levels} levels met; {cheap} at most 1.2 x the cheapest; the longest search took {longest:?}");
    assert!(met * 100 >= levels * 95 && cheap * 100 >= levels * 95, "{met} met, {cheap} cheap, of {levels}");
}

#[test]
fn a_model_of_more_workers_still_gives_lanes() {
    let server = far_server("32m");
    let client = client(&server, "iwarp");
    let sample = |workers: u32| Sample {
        operation: Operation::Read,
        record: 64,
        configuration: Configuration {
            workers,
            lanes: workers.max(1),
            batch: if workers == 0 { 1 } else { 8 },
            depth: 1,
        },
        point: Point { throughput: 1e5 * f64::from(1 + workers), mean: 1e4, p99: 2e4 },
    };
    // Measured at a server with four workers; this one has two.
    let model = Model::of(&[sample(0), sample(1), sample(2), sample(4)]);
    let limits = Limits { workers: 8, lanes: 8, depth: 2 };
    let known = Terms { model: Some(&model), limits, ..Terms::default() };
    let level = Slo::new(Duration::from_millis(1), 4e5, 64, 1.0).unwrap();
    match create_for(&client, 16 * MIB, &level, &known, &Options::default()) {
        Ok((memory, chosen)) => {
            let lane = memory.lane();
            assert!(lane.is_ok(), "planned {chosen}: {}", lane.unwrap_err());
        }
        Err(error) => assert!(matches!(error, LevelError::Infeasible(_)), "{error}"),
    }
}

#[test]
fn a_server_without_room_for_lanes_is_not_lost() {
    let server = {
        let name = format!(
            "shm:@rdmakv-far-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        );
        Server::on_a_free_port(&["--far", "1g", "--far-region", "2m", "--fabric", &name, "-m", "32"])
    };
    let client = client(&server, "shm");
    let victim = create(&client, 4 * MIB, 0);
    let mut lane = victim.lane().unwrap();
    write(&mut lane, 0, b"bytes").unwrap();
    let greedy = create(&client, 400 * MIB, 0);
    let mut lanes = Vec::new();
    'lanes: for number in 0..400 {
        let Ok(mut lane) = greedy.lane() else { break };
        for region in 0..200 {
            if let Err(error) = read(&mut lane, region * 2 * MIB, 8) {
                println!("lane {number}, region {region}: {error}");
                lanes.push(lane);
                break 'lanes;
            }
        }
        lanes.push(lane);
    }
    println!("{} lanes", lanes.len());
    assert_eq!(read(&mut lane, 2 * MIB, 8).map(drop), Ok(()));
    // The server has no room for another connection now, and lives.
    let another = victim.lane().map(drop);
    let kept = read(&mut lane, 0, 5);
    let own = read(&mut lanes[0], 0, 8).map(drop);
    println!("another lane: {another:?}; one that was there: {kept:?}; the greedy memory's: {own:?}");
    assert_eq!(kept.as_deref(), Ok(&b"bytes"[..]), "a lane that could not connect is no loss of the server's regions");
    assert_eq!(own, Ok(()));
}

#[test]
fn batches_that_are_too_long_name_the_limit() {
    let server = far_server("16m");
    let client = client(&server, "shm");
    let memory = create(&client, 4 * MIB, 0);
    let mut lane = memory.lane().unwrap();
    let parts: Vec<(u64, u64)> = (0..100_000).map(|at| (at * 8, 8)).collect();
    let buffer = lane.buffer(parts.len() * 8).unwrap();
    match lane.read_batch(&parts, buffer) {
        Ok(ticket) => drop(lane.wait(ticket).unwrap()),
        Err(error) => assert_eq!(error, AccessError::Long { parts: 100_000, most: 1 << 16 }),
    }
}

#[test]
fn a_secret_that_is_not_told_leaves_no_memory() {
    let server = far_server("16m");
    let at = address(&server, "shm");
    let create = ["-s", &at, "far", "create", "mine", "--size", "4m"];
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_rdmakv")).args(create).stdout(full).stderr(Stdio::null()).status();
    assert_eq!(ended.unwrap().code(), Some(1));
    let (code, said) = rdmakv(&create, None);
    assert!(code == Some(0) && said.contains("secret"), "{said}");
}

/// Returns a server that takes a few connections.
fn small_server() -> Server {
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("shm:@rdmakv-far-{}-{number}", std::process::id());
    let flags = ["--far", "16m", "--far-region", "2m", "--fabric", &name, "--fabric-connections", "4", "-m", "32"];
    Server::on_a_free_port(&flags)
}

#[test]
fn a_dead_server_is_lost_to_a_first_lane_and_runner() {
    let mut server = Some(far_server("16m"));
    let client = client(server.as_ref().unwrap(), "shm");
    let mut memory = create(&client, 4 * MIB, 0);
    let mut runner = memory.runner();
    server.take();
    server::soon("the loss", || !memory.lost().0.is_empty());
    let ended = runner.call(Procedure::Cas64(Cas64 { at: 8, old: 0, new: 1 })).unwrap_err();
    assert!(matches!(ended, RunError::Access(AccessError::Lost { .. })), "{ended}");
    assert!(matches!(read(&mut memory.lane().unwrap(), 0, 8), Err(AccessError::Lost { .. })));
}

#[test]
fn deleting_frees_regions_where_lanes_were_refused() {
    let server = small_server();
    let client = client(&server, "shm");
    let memory = create(&client, 8 * MIB, 0);
    let lanes: Vec<_> = (0..6).map(|_| memory.lane()).collect();
    assert!(lanes.iter().any(Result::is_err));
    drop(lanes);
    memory.delete().unwrap();
    let again = Memory::create(&client, 8 * MIB, &Options::default()).map(drop);
    assert!(again.is_ok(), "its room is not there: {}", again.unwrap_err());
}

#[test]
fn a_full_server_is_not_lost_to_a_first_lane() {
    let server = small_server();
    let client = client(&server, "shm");
    let options = Options { name: Some("kept".to_owned()), ..Options::default() };
    let mut memory = Memory::create(&client, 2 * MIB, &options).unwrap();
    let others: Vec<_> = (0..3).map(|_| create(&client, MIB, 0)).collect();
    let refused = memory.lane().unwrap_err();
    assert!(matches!(refused, MemoryError::Refused { .. }), "{refused}");
    let refused = memory.runner().call(Procedure::Cas64(Cas64 { at: 8, old: 0, new: 1 })).unwrap_err();
    assert!(matches!(refused, RunError::Unreachable { .. }), "{refused}");
    let refused = Memory::open(&client, "kept", memory.secret(), &Options::default()).unwrap_err();
    assert!(matches!(refused, MemoryError::Refused { .. }), "its regions are not lost: {refused}");
    assert!(memory.lost().0.is_empty());
    drop(others);
    // The server notices that.
    soon("a lane", || memory.lane().is_ok_and(|mut lane| read(&mut lane, 0, 8).is_ok()));
}

/// Begins a measurement that takes all room of a server's user, and waits until it has that.
fn long_bench(at: &str, more: &[&str]) -> Child {
    let client = Client::new([at]).unwrap();
    let load = ["-s", at, "far", "bench", "--size", "8m", "--seconds", "3600"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
    let bench = bench.args(load).args(more).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    soon("the measurement", || is_full(&client));
    bench
}

/// Returns whether servers have no room: no server has so much.
fn is_full(client: &Client) -> bool {
    let asked = Memory::create(client, 1 << 40, &Options::default());
    matches!(asked, Err(MemoryError::NoRoom { offered: 0 }))
}

#[test]
fn a_bench_ends_with_its_server() {
    for fabric in ["shm", "iwarp"] {
        let server = far_server("16m");
        let mut bench = long_bench(&address(&server, fabric), &[]);
        drop(server);
        soon("its end", || bench.try_wait().unwrap().is_some());
        let output = bench.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("is lost"), "{said}");
    }
}

#[test]
fn an_interrupted_bench_leaves_no_memory() {
    for (fabric, more) in [("shm", &[][..]), ("iwarp", &[]), ("iwarp", &["--chain", "4"])] {
        let server = far_server("16m");
        let at = address(&server, fabric);
        let mut bench = long_bench(&at, more);
        // A shell has its background jobs ignore SIGINT, and the bench keeps that.
        let sent = Command::new("kill").args(["-TERM", &bench.id().to_string()]).status().unwrap();
        assert!(sent.success());
        soon("its end", || bench.try_wait().unwrap().is_some());
        let output = bench.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(130) && said.contains("is deleted"), "{said}");
        assert!(!is_full(&Client::new([at]).unwrap()));
    }
}

#[test]
fn control_characters_are_no_names() {
    let server = far_server("16m");
    let client = client(&server, "shm");
    for name in ["", "a\nb", "\u{1b}[2J", "a\u{85}b"] {
        let options = Options { name: Some(name.to_owned()), ..Options::default() };
        assert_eq!(Memory::create(&client, MIB, &options).unwrap_err(), MemoryError::Name, "{name:?}");
    }
    let full = MemoryError::NoRoom { offered: 0 }.to_string();
    assert!(full.contains("delete memories") && !full.contains("0 bytes"), "{full}");
}
