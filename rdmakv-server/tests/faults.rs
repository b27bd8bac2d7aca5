//! Trouble around a server: memory and descriptors run out, clients are slow, silent or killed. Nothing leaks,
//! counters come back to zero, and every worker goes on answering.

mod common;

use common::{SERVER, Server, ask, soon, to};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// More connections than there are workers, one after the other to each: all of them answer.
fn every_worker_answers(server: &Server) {
    let mut all: Vec<TcpStream> = (0..8).map(|_| server.connect()).collect();
    for stream in &mut all {
        ask(stream, b"mn\r\n", b"MN\r\n");
    }
}

/// Chunks in use, those included that are filled or lent.
fn chunks_in_use(server: &Server) -> u64 {
    let mut stream = server.connect();
    stream.write_all(b"stats slabs\r\nquit\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let used = text.lines().filter_map(|line| line.split_once(":used_chunks ")?.1.trim().parse::<u64>().ok());
    used.sum()
}

/// Waits until only the asking client is connected: the server sees an end when it sees it.
fn all_are_gone(server: &Server) {
    soon("that all are gone", || server.stat("curr_connections") == 1);
}

fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn set(stream: &mut TcpStream, key: &str, value: &[u8]) -> String {
    stream.write_all(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes()).unwrap();
    stream.write_all(value).unwrap();
    stream.write_all(b"\r\n").unwrap();
    line(stream)
}

fn line(stream: &mut TcpStream) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn full_memory_refuses_keeps_and_recovers() {
    let server = Server::on_a_free_port(&["-m", "8", "-M"]);
    let mut stream = server.connect();
    let value = vec![b'x'; 50_000];
    let mut stored = 0;
    let refusal = loop {
        match &set(&mut stream, &format!("k{stored}"), &value)[..] {
            "STORED\r\n" => stored += 1,
            other => break other.to_owned(),
        }
    };
    assert_eq!(refusal, "SERVER_ERROR out of memory storing object\r\n");
    assert!((100..200).contains(&stored), "{stored}");
    for n in 0..stored {
        let mut answer = format!("VALUE k{n} 0 50000\r\n").into_bytes();
        answer.extend_from_slice(&value);
        answer.extend_from_slice(b"\r\nEND\r\n");
        ask(&mut stream, format!("get k{n}\r\n").as_bytes(), &answer);
    }
    for n in 0..stored {
        ask(&mut stream, format!("delete k{n}\r\n").as_bytes(), b"DELETED\r\n");
    }
    assert_eq!((chunks_in_use(&server), server.stat("curr_items"), server.stat("bytes")), (0, 0, 0));
    assert_eq!(server.stat("evictions"), 0);
    // Another size: the memory is not bound to the one that it was used for.
    for n in 0..20 {
        assert_eq!(set(&mut stream, &format!("l{n}"), &vec![b'y'; 300_000]), "STORED\r\n");
    }
}

#[test]
fn connections_wait_for_descriptors() {
    let script = "ulimit -n 48 && exec \"$0\" \"$@\"";
    let server = Server::run(
        Command::new("sh").args(["-c", script, SERVER, "-p", "-1", "-l", "127.0.0.1"]).stderr(Stdio::null()),
    );
    let mut first = server.connect();
    ask(&mut first, b"mn\r\n", b"MN\r\n");
    let mut others: Vec<TcpStream> = (0..80).map(|_| server.connect()).collect();
    for stream in &mut others {
        stream.write_all(b"mn\r\n").unwrap();
    }
    // The accepted ones are served; the rest waits, and no other client suffers.
    ask(&mut others[0], b"", b"MN\r\n");
    ask(&mut first, b"mn\r\n", b"MN\r\n");
    soon("that descriptors run out", || stat_on(&mut first, "listen_disabled_num") > 0);
    // As each goes, another comes in.
    for mut stream in others.into_iter().skip(1) {
        ask(&mut stream, b"", b"MN\r\n");
    }
    while stat_on(&mut first, "curr_connections") > 1 {}
    every_worker_answers(&server);
}

/// Returns a number of `stats`, on a connection that goes on.
fn stat_on(stream: &mut TcpStream, name: &str) -> u64 {
    stream.write_all(b"stats\r\n").unwrap();
    let mut found = None;
    loop {
        let line = line(stream);
        if line == "END\r\n" {
            return found.unwrap();
        }
        if let Some(value) = line.strip_prefix("STAT ").and_then(|rest| rest.strip_prefix(name)?.strip_prefix(' ')) {
            found = value.trim().parse().ok();
        }
    }
}

#[test]
fn slow_reader_costs_bounded_memory() {
    // All that a connection asks is carried out in one turn, if nothing else bounds it.
    let server = Server::on_a_free_port(&["-m", "16", "-R", "1000000"]);
    let mut stream = server.connect();
    let value: Vec<u8> = (0..400_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(set(&mut stream, "v", &value), "STORED\r\n");
    assert_eq!(set(&mut stream, "small", &value[..3000]), "STORED\r\n");
    let before = resident(server.process.id());
    let mut slow: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    for stream in &mut slow {
        // Nine megabytes of small values each, and forty of large ones.
        stream.write_all(&[b"get small\r\n".repeat(3000), b"get v\r\n".repeat(100)].concat()).unwrap();
    }
    for _ in 0..50 {
        every_worker_answers(&server);
    }
    let grown = resident(server.process.id()).saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes more for answers that nobody reads");
    // A value on its way stays as it was, though the key has another value meanwhile; later ones are new.
    let mut lent = server.connect();
    lent.write_all(&b"get v\r\n".repeat(100)).unwrap();
    ask(&mut lent, b"", b"VALUE v 0 400000\r\n");
    assert_eq!(set(&mut stream, "v", b"new"), "STORED\r\n");
    ask(&mut lent, b"", &value);
    let mut first = slow.remove(0);
    let small = [b"VALUE small 0 3000\r\n", &value[..3000], b"\r\nEND\r\n"].concat();
    for _ in 0..3000 {
        ask(&mut first, b"", &small);
    }
    ask(&mut first, b"", b"VALUE v 0 3\r\nnew\r\nEND\r\n");
    drop((first, lent, slow, stream));
    all_are_gone(&server);
    ask(&mut server.connect(), b"delete v\r\ndelete small\r\n", b"DELETED\r\nDELETED\r\n");
    assert_eq!(chunks_in_use(&server), 0, "nothing stays lent");
}

#[test]
fn half_closed_connection_is_answered() {
    let server = Server::on_a_free_port(&[]);
    let mut stream = server.connect();
    stream.write_all(b"set a 0 0 3\r\nabc\r\nget a\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\n");
    // In the middle of a value: there is no rest to wait for.
    let mut stream = server.connect();
    stream.write_all(b"set b 0 0 100000\r\nabc").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    // And a client that has vanished without a word ends with its time.
    all_are_gone(&server);
    assert_eq!(chunks_in_use(&server), 1);
}

#[test]
fn killed_clients_leak_nothing_and_block_no_worker() {
    let server = Server::on_a_free_port(&["-m", "64"]);
    let port = server.address("tcp").rsplit(':').next().unwrap().to_owned();
    assert_eq!(set(&mut server.connect(), "large", &vec![b'x'; 500_000]), "STORED\r\n");
    let commands = [
        "set half 0 0 900000\\r\\nabc",
        "set half 0 0 10\\r\\n01234",
        "get lar",
        "ms half 300000 T30\\r\\nabc",
        "\\x80\\x01\\x00\\x04\\x08\\x00\\x00\\x00\\x00\\x00\\xff\\xff",
        "get large\\r\\nget large\\r\\nget large\\r\\nget large\\r\\nget large\\r\\nget large\\r\\nget large\\r\\nget large\\r\\n",
        "",
    ];
    let mut clients = Vec::new();
    for command in commands.iter().cycle().take(35) {
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{command}' >&3; echo; exec sleep 1000");
        let mut client = match Command::new("bash").args(["-c", &script]).stdout(Stdio::piped()).spawn() {
            Ok(client) => client,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: there is no bash to be the client");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        // It has said what it says.
        client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        clients.push(client);
    }
    every_worker_answers(&server);
    for client in &mut clients {
        // This is kill -9.
        client.kill().unwrap();
        client.wait().unwrap();
    }
    all_are_gone(&server);
    assert_eq!((server.stat("curr_items"), chunks_in_use(&server)), (1, 1));
    every_worker_answers(&server);
}

/// Opens so many connections, asks on some, ends them all; says what the server had resident with them.
fn idle(server: &Server, count: usize) -> u64 {
    let address = server.address("tcp");
    let mut all: Vec<TcpStream> = (0..count).map(|_| to(&address)).collect();
    for stream in all.iter_mut().step_by(97) {
        ask(stream, b"mn\r\n", b"MN\r\n");
    }
    let counted = server.stat("curr_connections");
    assert_eq!(counted, count as u64 + 1);
    every_worker_answers(server);
    let resident = resident(server.process.id());
    drop(all);
    all_are_gone(server);
    resident
}

fn idle_connections(count: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if limit.maximum.is_some_and(|most| most < count as u64 + 200) {
        eprintln!("skipped: {count} connections need more descriptors than this process may have (ulimit -Hn)");
        return;
    }
    let server = Server::on_a_free_port(&["-c", &(count + 100).to_string()]);
    let before = resident(server.process.id());
    let first = idle(&server, count);
    let second = idle(&server, count);
    let each = first.saturating_sub(before) / count as u64;
    eprintln!("{count} idle connections: {each} bytes resident for each");
    assert!(each < 4096, "{each} bytes for a connection that does nothing");
    assert!(second < first + (1 << 20), "{first} bytes resident the first time, {second} the second");
    assert_eq!((server.stat("curr_connections"), chunks_in_use(&server)), (1, 0));
}

#[test]
fn idle_connections_cost_little_and_leave_nothing() {
    idle_connections(800);
}

/// `cargo test -p rdmakv-server --test faults -- --ignored`
#[test]
#[ignore = "the long form: ten thousand connections, twice; needs as many descriptors"]
fn ten_thousand_idle_connections_are_cheap() {
    idle_connections(10_000);
}

#[test]
fn whoever_reads_the_warnings_may_go() {
    let mut server = Server::run(
        Command::new(SERVER).args(["-p", "-1", "-l", "127.0.0.1", "-c", "2", "-vv"]).stderr(Stdio::piped()),
    );
    drop(server.process.stderr.take());
    let (mut one, mut two) = (server.connect(), server.connect());
    ask(&mut one, b"mn\r\n", b"MN\r\n");
    ask(&mut two, b"mn\r\n", b"MN\r\n");
    let mut refused = String::new();
    server.connect().read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    ask(&mut one, b"mn\r\n", b"MN\r\n");
    server.signal("-TERM");
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn who_reads_slowly_is_not_idle() {
    let server = Server::on_a_free_port(&["-o", "idle_timeout=2"]);
    let mut stream = server.connect();
    let value = vec![b'x'; 1_000_000];
    assert_eq!(set(&mut stream, "v", &value), "STORED\r\n");
    stream.write_all(&b"get v\r\n".repeat(80)).unwrap();
    let mut one = b"VALUE v 0 1000000\r\n".to_vec();
    one.extend_from_slice(&value);
    one.extend_from_slice(b"\r\nEND\r\n");
    // Longer than a client may be silent; the system holds a few megabytes of it.
    for _ in 0..80 {
        ask(&mut stream, b"", &one);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.stat("idle_kicks"), 0);
}
