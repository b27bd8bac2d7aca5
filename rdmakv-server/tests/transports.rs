//! The real server, met as a client meets it.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{PATIENCE, Server, ask, soon};

#[test]
fn memccapable_finds_every_ability() {
    let found = Command::new("memccapable").arg("-h").arg("127.0.0.1").arg("-p").arg("1").output();
    if matches!(&found, Err(error) if error.kind() == ErrorKind::NotFound) {
        eprintln!("skipped: memccapable is not installed (Debian: libmemcached-tools)");
        return;
    }
    let server = Server::on_a_free_port(&[]);
    let port = server.address("tcp").rsplit(':').next().unwrap().to_owned();
    let run = Command::new("memccapable").args(["-h", "127.0.0.1", "-p", &port]).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(text.contains("All tests passed"), "{text}");
    assert_eq!(text.matches("[pass]").count(), 54, "{text}");
}

#[test]
fn large_values_go_in_and_come_back_pipelined() {
    let server = Server::on_a_free_port(&["-I", "4m"]);
    let mut stream = server.connect();
    let value: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    let mut set = format!("set big 0 0 {}\r\n", value.len()).into_bytes();
    set.extend_from_slice(&value);
    set.extend_from_slice(b"\r\n");
    ask(&mut stream, &set, b"STORED\r\n");
    let mut one = format!("VALUE big 0 {}\r\n", value.len()).into_bytes();
    one.extend_from_slice(&value);
    one.extend_from_slice(b"\r\nEND\r\n");
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&b"get big\r\n".repeat(20)).unwrap());
    for _ in 0..20 {
        let mut got = vec![0; one.len()];
        reader.read_exact(&mut got).unwrap();
        assert!(got == one);
    }
    writer.join().unwrap();
}

#[test]
fn large_binary_value_is_stored_at_last_byte() {
    let server = Server::on_a_free_port(&[]);
    let mut stream = server.connect();
    let value = vec![b'v'; 900_000];
    let mut set = vec![0x80, 1, 0, 1, 8, 0, 0, 0];
    set.extend_from_slice(&(8 + 1 + value.len() as u32).to_be_bytes());
    set.extend_from_slice(&[0; 20]);
    set.push(b'k');
    set.extend_from_slice(&value);
    // Nothing follows it: a server that waits for more waits for ever.
    ask(&mut stream, &set, &[0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::on_a_free_port(&["-t", "2"]);
    let mut stream = server.connect();
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for n in 0..5000 {
        requests.extend_from_slice(format!("set k{n} 0 0 4\r\n{n:04}\r\nget k{n}\r\n").as_bytes());
        answers.extend_from_slice(format!("STORED\r\nVALUE k{n} 0 4\r\n{n:04}\r\nEND\r\n").as_bytes());
    }
    let mut writer = stream.try_clone().unwrap();
    let thread = std::thread::spawn(move || writer.write_all(&requests).unwrap());
    let mut got = vec![0; answers.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == answers);
    thread.join().unwrap();
    assert!(server.stat("conn_yields") > 0);
    assert_eq!((server.stat("cmd_set"), server.stat("get_hits")), (5000, 5000));
}

#[test]
fn a_datagram_asks_and_datagrams_answer() {
    let server = Server::on_a_free_port(&["-U", "-1"]);
    let value = "v".repeat(5000);
    ask(&mut server.connect(), format!("set u 0 0 5000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"\x12\x34\0\0\0\x01\0\0get u\r\n", server.address("udp")).unwrap();
    let (mut parts, mut total) = (std::collections::BTreeMap::new(), usize::MAX);
    while parts.len() < total {
        let mut datagram = [0; 2000];
        let read = socket.recv(&mut datagram).unwrap();
        assert_eq!(datagram[..2], [0x12, 0x34]);
        total = usize::from(datagram[5]);
        parts.insert(datagram[3], datagram[8..read].to_vec());
    }
    assert_eq!(total, 4);
    let whole: Vec<u8> = parts.into_values().flatten().collect();
    assert_eq!(whole, format!("VALUE u 0 5000\r\n{value}\r\nEND\r\n").into_bytes());
}

#[test]
fn errors_in_datagrams_are_not_answered() {
    // Two servers, of which one was sent a datagram with the other's address as its source, must not reply without end.
    let server = Server::on_a_free_port(&["-U", "-1"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let answer = |text: &[u8]| {
        let request = [b"\0\x07\0\0\0\x01\0\0", text].concat();
        socket.send_to(&request, server.address("udp")).unwrap();
        let mut datagram = [0; 100];
        let read = socket.recv(&mut datagram).unwrap();
        datagram[8..read].to_vec()
    };
    assert_eq!(answer(b"nonsense\r\n"), b"ERROR\r\n");
    for error in [&b"ERROR\r\n"[..], b"CLIENT_ERROR bad command line format\r\n", b"SERVER_ERROR out of memory\r\n"] {
        let request = [b"\0\x08\0\0\0\x01\0\0", error].concat();
        socket.send_to(&request, server.address("udp")).unwrap();
    }
    // Had they been answered, those answers would come first.
    assert_eq!(answer(b"mn\r\n"), b"MN\r\n");
}

#[test]
fn datagram_answers_are_whole_and_bounded() {
    let server = Server::on_a_free_port(&["-U", "-1", "-t", "1"]);
    let value = "v".repeat(1_000_000);
    ask(&mut server.connect(), format!("set u 0 0 1000000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let say = |number: u8, text: &[u8]| {
        socket.send_to(&[&[0, number, 0, 0, 0, 1, 0, 0], text].concat(), server.address("udp")).unwrap();
    };
    // Half a gigabyte, for a kilobyte.
    say(1, &[&b"get"[..], &b" u".repeat(500), b"\r\n"].concat());
    // More requests than a connection has in one turn.
    say(2, &b"mn\r\n".repeat(100));
    let mut datagram = [0; 2000];
    let read = socket.recv(&mut datagram).unwrap();
    assert_eq!((datagram[1], &datagram[8..read]), (2, &b"MN\r\n".repeat(100)[..]));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB");
    assert!(peak.parse::<u64>().unwrap() < 200 << 10, "{peak} kB at the most");
    // More datagrams than one turn takes, and fewer than the system has room for: all of them are answered.
    let numbers = 10..140_u8;
    numbers.clone().for_each(|number| say(number, b"mn\r\n"));
    let answered: std::collections::BTreeSet<u8> = numbers
        .clone()
        .map(|_| {
            socket.recv(&mut datagram).unwrap();
            datagram[1]
        })
        .collect();
    assert!(answered.iter().copied().eq(numbers));
    // Nothing is lent any more: the memory is the next value's.
    ask(&mut server.connect(), b"delete u\r\n", b"DELETED\r\n");
    assert_eq!(server.stat("bytes"), 0);
}

#[test]
fn unix_socket_has_its_mode_and_is_removed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv");
    let mut server = Server::start(&["-s", path.to_str().unwrap(), "-a", "750"]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
    ask(
        &mut UnixStream::connect(&path).unwrap(),
        b"set a 0 0 1\r\nx\r\nget a\r\n",
        b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
    server.signal("-TERM");
    assert!(server.process.wait().unwrap().success());
    assert!(!path.exists());
}

#[test]
fn unix_socket_answers_a_slow_reader_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv");
    let _server = Server::start(&["-s", path.to_str().unwrap()]);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let value = "v".repeat(900_000);
    ask(&mut stream, format!("set big 0 0 900000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    let one = format!("VALUE big 0 900000\r\n{value}\r\nEND\r\n");
    // The socket is full, has room, and is full again.
    for _ in 0..3 {
        stream.write_all(&b"get big\r\n".repeat(10)).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        for _ in 0..10 {
            let mut got = vec![0; one.len()];
            got.chunks_mut(50_000).for_each(|piece| stream.read_exact(piece).unwrap());
            assert!(got == one.as_bytes());
        }
        ask(&mut stream, b"mn\r\n", b"MN\r\n");
    }
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let server = Server::on_a_free_port(&["-c", "2"]);
    let (mut one, mut two) = (server.connect(), server.connect());
    ask(&mut one, b"mn\r\n", b"MN\r\n");
    ask(&mut two, b"mn\r\n", b"MN\r\n");
    let mut text = String::new();
    server.connect().read_to_string(&mut text).unwrap();
    assert_eq!(text, "ERROR Too many open connections\r\n");
    drop(two);
    // The place is free again as soon as the server has seen it.
    while server.connect().write_all(b"mn\r\n").is_err() {}
}

#[test]
fn silent_connections_end_when_their_time_is_up() {
    let server = Server::on_a_free_port(&["-o", "idle_timeout=1"]);
    let mut stream = server.connect();
    ask(&mut stream, b"mn\r\n", b"MN\r\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(server.stat("idle_kicks"), 1);
}

#[test]
fn vanished_clients_leak_nothing() {
    let server = Server::on_a_free_port(&["-m", "8"]);
    for turn in 0..60 {
        let mut stream = server.connect();
        // Eight megabytes hold a few of these: chunks that leaked would soon be missed.
        stream.write_all(b"set half 0 0 900000\r\n").unwrap();
        stream.write_all(&vec![turn; 300_000]).unwrap();
    }
    // One that is seen late would make room for itself.
    soon("that they are gone", || server.stat("curr_connections") == 1);
    let value = "x".repeat(900_000);
    ask(&mut server.connect(), format!("set whole 0 0 900000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    // And clients that ask and do not read.
    for _ in 0..20 {
        server.connect().write_all(&b"get whole\r\n".repeat(50)).unwrap();
    }
    soon("that they are gone", || server.stat("curr_connections") == 1);
    assert_eq!(server.stat("curr_items"), 1);
    ask(&mut server.connect(), b"flush_all\r\n", b"OK\r\n");
    ask(&mut server.connect(), format!("set whole 0 0 900000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
}

#[test]
fn stopping_server_answers_pending_requests() {
    let mut server = Server::on_a_free_port(&[]);
    let mut stream = server.connect();
    ask(&mut stream, b"set a 0 0 10\r\n01234", b"");
    ask(&mut server.connect(), b"mn\r\n", b"MN\r\n");
    server.signal("-TERM");
    std::thread::sleep(Duration::from_millis(300));
    ask(&mut stream, b"56789\r\n", b"STORED\r\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn wrong_flags_say_what_is_wrong_and_end_with_two() {
    for (arguments, words) in
        [(&["-Z"][..], "ssl_chain_cert=FILE"), (&["--nonsense"], "nonsense"), (&["-I", "1g"], "half of the memory")]
    {
        let run = Command::new(env!("CARGO_BIN_EXE_rdmakv-server")).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&run.stderr).contains(words), "{run:?}");
    }
    let server = Server::on_a_free_port(&[]);
    let port = server.address("tcp").rsplit(':').next().unwrap().to_owned();
    let run =
        Command::new(env!("CARGO_BIN_EXE_rdmakv-server")).args(["-p", &port, "-l", "127.0.0.1"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1), "the port is taken");
}

#[test]
fn runs_where_nothing_listens_and_warns() {
    for arguments in [&["-p", "0"][..], &["-p", "0", "-l", "127.0.0.1:1", "--http", "0", "--fabric", "none"]] {
        let program = env!("CARGO_BIN_EXE_rdmakv-server");
        let mut server = Server::run(Command::new(program).args(arguments).stderr(Stdio::piped()));
        server.signal("-TERM");
        assert!(server.process.wait().unwrap().success());
        let mut warned = String::new();
        server.process.stderr.take().unwrap().read_to_string(&mut warned).unwrap();
        assert!(warned.contains("name a TCP port (-p), a UDP port (-U), a Unix socket (-s) or a fabric"), "{warned}");
    }
}
