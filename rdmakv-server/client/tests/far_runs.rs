//! Procedures on far memory at real servers, which are processes of their own.
//!
//! ```text
//! cargo test -p rdmakv-client --test far_runs
//! ```

mod server;

use rdmakv_client::Client;
use rdmakv_client::far::{
    AccessError, Bucket, Cas64, Filter, Lane, Memory, Options, Outcome, Procedure, RunEnd, RunError, Walk,
};
use server::{Server, soon};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const MIB: u64 = 1 << 20;
const REGION: u64 = 2 * MIB;
const FABRICS: [&str; 2] = ["shm", "iwarp"];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A server with 16 MiB in regions of 2 MiB, on both fabrics.
fn far_server(workers: &str) -> Server {
    let name = format!("shm:@rdmakv-far-runs-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let far = ["--far", "16m", "--far-region", "2m", "--far-threads", workers];
    Server::on_a_free_port(&[&far[..], &["--fabric", &name, "--fabric", "iwarp:127.0.0.1:0", "-m", "32"]].concat())
}

fn address(server: &Server, fabric: &str) -> String {
    let start = format!("listening on {fabric}:");
    let found = server.lines.iter().find_map(|line| line.strip_prefix(&start));
    format!("{fabric}:{}", found.expect("it prints where it listens"))
}

/// Two servers with a memory of 8 regions, four on each.
struct Pair {
    servers: Vec<Server>,
    memory: Memory,
}

fn pair(fabric: &str) -> Pair {
    let servers = vec![far_server("1"), far_server("2")];
    let client = Client::new(servers.iter().map(|server| address(server, fabric))).unwrap();
    Pair { memory: Memory::create(&client, 8 * REGION, &Options::default()).unwrap(), servers }
}

fn write(lane: &mut Lane, at: u64, bytes: &[u8]) {
    let mut buffer = lane.buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    let ticket = lane.write(at, buffer).unwrap();
    lane.wait(ticket).unwrap();
}

fn walk(at: u64, nodes: u32, key: &[u8]) -> Procedure {
    Procedure::Walk(Walk { at, next: 0, key_at: 8, nodes, length: 32, key: key.to_vec() })
}

/// Writes a chain of nodes: the address of the next one, then the number.
fn write_chain(lane: &mut Lane, places: &[u64]) {
    for (number, &at) in places.iter().enumerate() {
        let next = places.get(number + 1).copied().unwrap_or(0);
        write(lane, at, &[next.to_le_bytes(), (number as u64).to_le_bytes()].concat());
    }
}

fn done(outcome: &Outcome) -> (RunEnd, u64, u32) {
    assert!(outcome.rest.is_none());
    (outcome.end, outcome.at, outcome.hops)
}

#[test]
fn chains_are_followed_from_server_to_server() {
    for fabric in FABRICS {
        let Pair { memory, servers: _servers } = pair(fabric);
        let (mut lane, mut runner) = (memory.lane().unwrap(), memory.runner());
        // Two nodes in each region: first and last regions are on different servers.
        let places: Vec<u64> = (0..16_u64).map(|node| (node * 5 % 8) * REGION + 4096 + node * 64).collect();
        write_chain(&mut lane, &places);
        for (number, &at) in places.iter().enumerate() {
            let outcome = runner.call(walk(places[0], 100, &(number as u64).to_le_bytes())).unwrap();
            let (end, found, hops) = done(&outcome);
            assert_eq!((end, found), (RunEnd::Done, at), "{fabric}");
            assert!(hops as usize <= number && (number < 4 || hops > 0), "{fabric}: node {number} by {hops} hops");
            assert_eq!(outcome.reply[8..16], (number as u64).to_le_bytes());
            assert_eq!(outcome.bytes, 64 * (number as u32 + 2), "each node once, and the reply");
        }
        let outcome = runner.call(walk(places[0], 100, b"no such key")).unwrap();
        assert_eq!((outcome.end, outcome.at, outcome.reply.len()), (RunEnd::Done, 0, 0));
        memory.delete().unwrap();
        assert_eq!(runner.call(walk(places[0], 1, b"")).unwrap_err(), AccessError::Ended.into());
    }
}

#[test]
fn many_procedures_have_one_outcome_each() {
    for fabric in FABRICS {
        let Pair { memory, servers: _servers } = pair(fabric);
        let mut lane = memory.lane().unwrap();
        let places: Vec<u64> = (0..12_u64).map(|node| (node % 8) * REGION + 4096 + node * 64).collect();
        write_chain(&mut lane, &places);
        let (mut runner, mut other) = (memory.runner(), memory.runner());
        // Far more than are under way at a time. None is waited for meanwhile.
        let tickets: Vec<_> =
            (0..300_u64).map(|at| runner.run(walk(places[0], 100, &(at % 12).to_le_bytes()))).collect();
        for (at, ticket) in tickets.into_iter().enumerate().rev() {
            let outcome = runner.wait(ticket.unwrap()).unwrap();
            assert_eq!(done(&outcome).1, places[at % 12], "{fabric}");
        }
        let ticket = runner.run(walk(places[0], 1, b"")).unwrap();
        assert_eq!(other.wait(ticket).unwrap_err(), AccessError::OtherLane.into());
        memory.delete().unwrap();
    }
}

#[test]
fn killed_servers_end_procedures_as_lost() {
    for fabric in FABRICS {
        let Pair { memory, mut servers } = pair(fabric);
        let mut lane = memory.lane().unwrap();
        // From each region to one of the other half.
        let places: Vec<u64> = (0..16_u64).map(|node| (node * 5 % 8) * REGION + 4096 + node * 64).collect();
        write_chain(&mut lane, &places);
        let mut runner = memory.runner();
        let tickets: Vec<_> = (0..20).map(|_| runner.run(walk(places[0], 100, &15_u64.to_le_bytes()))).collect();
        drop(servers.pop());
        for ticket in tickets {
            match ticket.and_then(|ticket| runner.wait(ticket)) {
                Ok(outcome) => assert_eq!(done(&outcome).1, places[15]),
                Err(error) => assert!(matches!(error, RunError::Access(AccessError::Lost { .. })), "{error}"),
            }
        }
        let lost = runner.call(walk(places[0], 100, &15_u64.to_le_bytes())).unwrap_err();
        assert!(matches!(lost, RunError::Access(AccessError::Lost { .. })), "{fabric}: {lost}");
        let there = |region: u64| runner.call(walk(region * REGION + 8, 1, b"")).is_ok();
        assert_eq!((0..8).map(there).filter(|is_there| *is_there).count(), 4, "the other server's go on");
        memory.delete().unwrap();
    }
}

#[test]
fn limits_end_procedures_which_then_go_on() {
    let Pair { memory, servers: _servers } = pair("shm");
    let (mut lane, mut runner) = (memory.lane().unwrap(), memory.runner());
    // A circle of two servers, and one of a node.
    let (one, other) = (4096, 7 * REGION + 4096);
    write(&mut lane, one, &u64::to_le_bytes(other));
    write(&mut lane, other, &u64::to_le_bytes(one));
    let outcome = runner.call(walk(one, u32::MAX, b"")).unwrap();
    assert_eq!((outcome.end, outcome.hops), (RunEnd::Hops, 65));
    assert_eq!(runner.call(outcome.rest.unwrap()).unwrap().end, RunEnd::Hops);
    write(&mut lane, one, &one.to_le_bytes());
    let outcome = runner.call(walk(one, u32::MAX, b"")).unwrap();
    assert!(matches!(outcome.end, RunEnd::Bytes | RunEnd::Time) && outcome.rest.is_some(), "{:?}", outcome.end);
    // A pointer that leads nowhere.
    write(&mut lane, one, &(1_u64 << 50).to_le_bytes());
    let error = runner.call(walk(one, 2, b"")).unwrap_err();
    assert!(matches!(error, RunError::Access(AccessError::OutOfRange { .. })), "{error}");
    // Records over all regions: a record across the border of the two servers.
    let filter = |at, records| {
        let (stride, field, pointer, from, found) = (48, 0, None, 0, 0);
        Procedure::Filter(Filter { at, records, stride, field, least: 0, greatest: 0, pointer, from, length: 8, found })
    };
    let border = runner.call(filter(4 * REGION - 4800 - 24, 200)).unwrap_err();
    assert!(matches!(border, RunError::Apart { at, .. } if at == 4 * REGION - 24), "{border}");
    let outcome = runner.call(filter(4 * REGION - 4800, 200)).unwrap();
    assert_eq!((outcome.hops, outcome.reply.len()), (1, 200 * 8));
    let mut outcome = runner.call(filter(4 * REGION - 48_000, 2000)).unwrap();
    let mut replied = 0;
    while let Some(rest) = outcome.rest.take() {
        assert_eq!(outcome.end, RunEnd::Full);
        replied += outcome.reply.len();
        outcome = runner.call(rest).unwrap();
    }
    assert_eq!(replied + outcome.reply.len(), 2000 * 8);
}

#[test]
fn tables_and_numbers_are_used_in_place() {
    for fabric in FABRICS {
        let Pair { memory, servers: _servers } = pair(fabric);
        let (mut lane, mut runner) = (memory.lane().unwrap(), memory.runner());
        // A bucket on one server whose second item is on the other.
        let items = [(5_u64, 64_u64), (7, 7 * REGION + 64), (7, 5 * REGION)];
        let bucket: Vec<u8> =
            items.iter().flat_map(|&(hash, at)| [hash.to_le_bytes(), at.to_le_bytes()].concat()).collect();
        write(&mut lane, 8192, &bucket);
        write(&mut lane, 64, b"key value 0");
        write(&mut lane, 7 * REGION + 64, b"yek value 1");
        write(&mut lane, 5 * REGION, b"key value 2");
        let find = |hash, key: &[u8]| {
            let (at, entries, first, key_at, length, item) = (8192, 3, 0, 0, 11, 0);
            Procedure::Bucket(Bucket { at, entries, first, hash, key_at, length, item, key: key.to_vec() })
        };
        assert_eq!(runner.call(find(7, b"key")).unwrap().reply, b"key value 2", "{fabric}");
        assert_eq!(runner.call(find(7, b"")).unwrap().reply, b"yek value 1");
        assert_eq!(runner.call(find(6, b"key")).unwrap().at, 0);
        // Two runners count one number up.
        let mut other = memory.runner();
        for count in 0..200_u64 {
            let runner = if count % 2 == 0 { &mut runner } else { &mut other };
            let cas = Procedure::Cas64(Cas64 { at: 3 * REGION, old: count, new: count + 1 });
            assert_eq!(runner.call(cas).unwrap().reply, count.to_le_bytes(), "{fabric}");
        }
        memory.delete().unwrap();
    }
}

#[test]
fn servers_without_workers_run_nothing() {
    let server = far_server("0");
    let client = Client::new([address(&server, "shm")]).unwrap();
    let memory = Memory::create(&client, MIB, &Options::default()).unwrap();
    let mut runner = memory.runner();
    let error = runner.call(walk(64, 1, b"")).unwrap_err();
    assert!(error.to_string().contains("raise its --far-threads"), "{error}");
    assert!(matches!(runner.call(walk(64, 0, b"")), Err(RunError::Arguments { .. })));
    assert!(matches!(runner.call(walk(MIB, 1, b"")), Err(RunError::Access(AccessError::OutOfRange { .. }))));
}

/// Runs the command.
fn rdmakv(server: &str, arguments: &str, secret: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmakv"));
    command.args(["-s", server]).args(arguments.split_whitespace()).stdin(Stdio::null());
    command.env("RDMAKV_FAR_SECRET", secret).output().unwrap()
}

#[test]
fn command_runs_procedures_and_measures_chains() {
    let server = far_server("1");
    let at = address(&server, "shm");
    let client = Client::new([&at]).unwrap();
    let named = Options { name: Some("scratch".to_owned()), ..Options::default() };
    let memory = Memory::create(&client, REGION, &named).unwrap();
    let secret = memory.secret().to_string();
    let mut lane = memory.lane().unwrap();
    write(&mut lane, 4096, &[8192_u64.to_le_bytes(), *b"first...", 7_u64.to_le_bytes()].concat());
    write(&mut lane, 8192, &[0_u64.to_le_bytes(), *b"second..", 9_u64.to_le_bytes()].concat());
    drop((lane, memory));
    let run = |arguments: &str| {
        let mut output = None;
        let (procedure, arguments) = arguments.split_once(' ').unwrap();
        soon("the former owner's end", || {
            let said = rdmakv(&at, &format!("far run {procedure} scratch {arguments}"), &secret);
            let is_taken = String::from_utf8_lossy(&said.stderr).contains("another process");
            output = Some(said);
            !is_taken
        });
        let Output { status, stdout, stderr } = output.unwrap();
        (status.code(), stdout, String::from_utf8(stderr).unwrap())
    };
    let (code, reply, said) = run("walk --at 4096 --key second --key-at 8 --length 14");
    assert_eq!((code, &reply[8..]), (Some(0), &b"second"[..]), "{said}");
    assert!(said.contains("done at 8192: 192 bytes read, 0 hops"), "{said}");
    let (code, _, said) = run("walk --at 4096 --key third --key-at 8 --length 14");
    assert!(code == Some(1) && said.contains("no such key"), "{said}");
    let (code, reply, _) = run("filter --at 4096 --records 2 --stride 4096 --field 16 --least 8 --from 8 --length 6");
    assert_eq!((code, &reply[..]), (Some(0), &b"second"[..]));
    let (code, reply, said) = run("cas64 --at 4112 --old 7 --new 8");
    assert_eq!((code, reply), (Some(0), 7_u64.to_le_bytes().to_vec()));
    assert!(said.contains("replaced at 4112: 7 by 8"), "{said}");
    let (code, reply, said) = run("cas64 --at 4112 --old 7 --new 9");
    assert_eq!((code, reply), (Some(1), 8_u64.to_le_bytes().to_vec()));
    assert!(said.contains("it has 8, not 7"), "{said}");
    let (code, _, said) = run("cas64 --at 4113 --old 7 --new 8");
    assert!(code == Some(2) && said.contains("multiple of 8"), "{said}");
    for fabric in FABRICS {
        let at = address(&server, fabric);
        let output = rdmakv(&at, "far bench --chain 8 --size 2m --seconds 0.05", "");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success() && said.contains("8 reads, one after the other"), "{said}");
        assert!(said.contains("a walk takes"), "{said}");
    }
    let output = rdmakv(&at, "far bench --chain 4000 --size 2m --seconds 0.05", "");
    assert!(String::from_utf8_lossy(&output.stderr).contains("shorten it"));
}
