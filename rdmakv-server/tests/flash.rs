//! A server with more items than memory holds: the others are in a file, and every command finds them.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rdmakv_client::Client;

use common::{PATIENCE, SERVER, Server, ask, soon};

const ITEMS: u64 = 5000;

/// Flags of a server with 16 MB of memory and this file.
fn flags(file: &Path) -> Vec<String> {
    let flash = format!("{}:256m", file.display());
    ["-m", "16", "-t", "2", "-U", "-1", "--http", "127.0.0.1:0", "--flash", &flash].map(String::from).to_vec()
}

fn start(file: &Path) -> Server {
    let flags = flags(file);
    Server::on_a_free_port(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn value(number: u64, turn: u64) -> Vec<u8> {
    (0..6000 + number * 37 % 3000).map(|at| (at * 7 + number * 11 + turn * 3) as u8).collect()
}

/// Stores all items, a few at a time; returns how many had to go altogether.
fn fill(server: &Server, turn: u64) -> u64 {
    let mut client = server.connect();
    for number in 0..ITEMS {
        let value = value(number, turn);
        let mut request = format!("set k{number} {} 0 {}\r\n", number % 1000, value.len()).into_bytes();
        request.extend_from_slice(&value);
        request.extend_from_slice(b"\r\n");
        ask(&mut client, &request, b"STORED\r\n");
        // Items that come faster than the device writes are dropped.
        if number % 64 == 0 {
            std::thread::sleep(Duration::from_millis(4));
        }
    }
    server.stat("evictions")
}

#[test]
fn items_of_a_file_cut_short_are_lost_aloud() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flash");
    let mut server = Server::run(
        Command::new(SERVER).args(flags(&file)).args(["-p", "-1", "-l", "127.0.0.1"]).stderr(Stdio::piped()),
    );
    let errors = server.process.stderr.take().unwrap();
    fill(&server, 0);
    std::fs::File::options().write(true).open(&file).unwrap().set_len(1 << 20).unwrap();
    let mut client = BufReader::new(server.connect());
    let found = (0..ITEMS).filter(|&number| {
        client.get_mut().write_all(format!("get k{number}\r\n").as_bytes()).unwrap();
        let head = line(&mut client);
        if head == "END\r\n" {
            return false;
        }
        let len = head.trim().rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!((data(&mut client, len), line(&mut client)), (value(number, 0), "END\r\n".into()));
        true
    });
    assert!(found.count() < ITEMS as usize / 2);
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        tell.send(lines.find(|line| line.contains("could not be read"))).unwrap();
    });
    let said = told.recv_timeout(PATIENCE).expect("a line about them").unwrap();
    assert!(said.contains("--flash") && said.contains("they are lost"), "{said}");
}

fn line(client: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    line
}

fn data(client: &mut BufReader<TcpStream>, len: usize) -> Vec<u8> {
    let mut value = vec![0; len + 2];
    client.read_exact(&mut value).unwrap();
    assert!(value.ends_with(b"\r\n"));
    value.truncate(len);
    value
}

/// Reads the answer to a `get` of several keys; returns which were there.
fn values(client: &mut BufReader<TcpStream>, turn: u64) -> Vec<u64> {
    let mut found = Vec::new();
    loop {
        let line = line(client);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["END"] => return found,
            ["VALUE", key, flags, len] => {
                let number: u64 = key[1..].parse().unwrap();
                assert_eq!(flags, (number % 1000).to_string());
                assert!(data(client, len.parse().unwrap()) == value(number, turn), "{key}");
                found.push(number);
            }
            _ => panic!("{line}"),
        }
    }
}

/// Reads all items in the text protocol, so many at a time; returns how many were there.
fn read_all(server: &Server, at_once: u64, turn: u64) -> u64 {
    let mut client = BufReader::new(server.connect());
    let mut found = 0;
    for first in (0..ITEMS).step_by(at_once as usize) {
        let keys: Vec<String> = (first..(first + at_once).min(ITEMS)).map(|number| format!("k{number}")).collect();
        let request = format!("get {}\r\n", keys.join(" "));
        client.get_mut().write_all(request.as_bytes()).unwrap();
        let values = values(&mut client, turn);
        assert!(values.is_sorted(), "in the order of the request");
        found += values.len() as u64;
    }
    found
}

/// Checks that a look at all items found those that are not gone; returns how many are gone now.
fn check(server: &Server, gone_before: u64, found: u64) -> u64 {
    let gone = server.stat("evictions");
    assert!(found <= ITEMS - gone_before && found >= ITEMS - gone, "{found} found, {gone_before} to {gone} gone");
    gone
}

#[test]
fn all_that_was_stored_is_read_in_every_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder.path().join("log"));
    let gone = fill(&server, 0);
    assert!(gone < ITEMS / 2, "{gone} items are gone");
    let (items, limit) = (server.stat("extstore_objects_used"), server.stat("extstore_limit_maxbytes"));
    assert!(items > ITEMS / 4 && limit > 200 << 20, "{items} {limit}");
    let gone = check(&server, gone, read_all(&server, 1, 0));
    let gone = check(&server, gone, read_all(&server, 50, 0));

    let mut client = BufReader::new(server.connect());
    let mut found = 0;
    for first in (0..ITEMS).step_by(25) {
        let all: String = (first..first + 25).map(|number| format!("mg k{number} v f k\r\n")).collect();
        client.get_mut().write_all(all.as_bytes()).unwrap();
        for number in first..first + 25 {
            let line = line(&mut client);
            if line.starts_with("EN ") {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[2..], [format!("f{}", number % 1000), format!("kk{number}")], "{line}");
            assert!(data(&mut client, words[1].parse().unwrap()) == value(number, 0), "{number}");
            found += 1;
        }
    }
    let gone = check(&server, gone, found);

    // Binary: quiet gets with keys, and a no-op that ends them.
    let mut client = server.connect();
    let request = |op: u8, key: &str| {
        let mut header = [0; 24];
        (header[0], header[1], header[3], header[11]) = (0x80, op, key.len() as u8, key.len() as u8);
        [&header, key.as_bytes()].concat()
    };
    let mut found = 0;
    for first in (0..ITEMS).step_by(25) {
        let mut all: Vec<u8> = (first..first + 25).flat_map(|number| request(0x0d, &format!("k{number}"))).collect();
        all.extend(request(0x0a, ""));
        client.write_all(&all).unwrap();
        loop {
            let mut header = [0; 24];
            client.read_exact(&mut header).unwrap();
            assert_eq!((header[0], &header[6..8]), (0x81, &[0, 0][..]));
            let (key, body) = (usize::from(header[3]), u32::from_be_bytes(header[8..12].try_into().unwrap()));
            let mut bytes = vec![0; body as usize];
            client.read_exact(&mut bytes).unwrap();
            if header[1] == 0x0a {
                break;
            }
            let number: u64 = std::str::from_utf8(&bytes[5..4 + key]).unwrap().parse().unwrap();
            assert!(bytes[4 + key..] == value(number, 0), "{number}");
            found += 1;
        }
    }
    check(&server, gone, found);

    let reads = server.stat("extstore_objects_read");
    assert!(reads > ITEMS / 2, "{reads} reads");
    assert_eq!((server.stat("badcrc_from_extstore"), server.stat("miss_from_extstore")), (0, 0));
    let (status, metrics) = server.http("/metrics");
    assert!(status == 200 && metrics.contains("\nrdmakv_flash_recalls_total{how=\"read\"} "), "{metrics}");
}

#[test]
fn commands_in_a_row_are_answered_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder.path().join("log"));
    fill(&server, 0);
    let mut client = BufReader::new(server.connect());
    for number in (0..400).step_by(4) {
        let new = format!(
            "get k{number}\r\nset k{number} 1 0 3\r\nnew\r\nget k{number}\r\nappend k{} 0 0 4\r\ntail\r\nmg k{} s\r\n\
             delete k{}\r\nget k{}\r\ntouch k{} 500\r\nmg k{} t v\r\nincr k{} 1\r\n",
            number + 1,
            number + 1,
            number + 2,
            number + 2,
            number + 3,
            number + 3,
            number + 3,
        );
        client.get_mut().write_all(new.as_bytes()).unwrap();
        let before = values(&mut client, 0);
        assert_eq!(line(&mut client), "STORED\r\n");
        assert_eq!(
            (line(&mut client).as_str(), data(&mut client, 3)),
            (&*format!("VALUE k{number} 1 3\r\n"), b"new".to_vec())
        );
        assert_eq!(line(&mut client), "END\r\n");
        match line(&mut client).as_str() {
            "STORED\r\n" => assert_eq!(line(&mut client), format!("HD s{}\r\n", value(number + 1, 0).len() + 4)),
            other => assert_eq!((other, line(&mut client).as_str()), ("NOT_STORED\r\n", "EN\r\n")),
        }
        let deleted = line(&mut client);
        assert!(deleted == "DELETED\r\n" || deleted == "NOT_FOUND\r\n");
        assert_eq!(line(&mut client), "END\r\n");
        let touched = line(&mut client);
        if touched == "TOUCHED\r\n" {
            let line = line(&mut client);
            let words: Vec<&str> = line.split_whitespace().collect();
            assert!(words[2] == "t500" || words[2] == "t499", "{line}");
            assert!(data(&mut client, words[1].parse().unwrap()) == value(number + 3, 0));
        } else {
            assert_eq!(line(&mut client), "EN\r\n");
        }
        let sum = line(&mut client);
        assert!(sum.starts_with("CLIENT_ERROR cannot increment") || sum == "NOT_FOUND\r\n", "{sum}");
        assert!(before.len() <= 1);
    }
    ask(client.get_mut(), b"flush_all\r\n", b"OK\r\n");
    assert_eq!(read_all(&server, 50, 0), 0);
}

#[test]
fn many_clients_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder.path().join("log"));
    let gone = fill(&server, 0);
    assert!(gone < ITEMS / 2, "{gone} items are gone");
    std::thread::scope(|scope| {
        for reader in 0..6 {
            let server = &server;
            scope.spawn(move || {
                check(server, gone, read_all(server, 1 + reader * 7, 0));
            });
        }
    });
    assert_eq!(server.stat("get_aborted_extstore"), 0);
}

#[test]
fn clients_over_a_fabric_find_items_on_flash() {
    let folder = tempfile::tempdir().unwrap();
    let fabric = format!("shm:{}/socket", folder.path().display());
    let mut flags = flags(&folder.path().join("log"));
    flags.extend(["--fabric".into(), fabric.clone()]);
    let server = Server::on_a_free_port(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut gone = fill(&server, 0);
    let mut client = Client::new([&fabric]).unwrap();
    for _ in 0..2 {
        let mut found = 0;
        for number in 0..ITEMS {
            if let Some(read) = client.get(format!("k{number}")).unwrap() {
                assert!(read[..] == value(number, 0), "{number}");
                found += 1;
            }
        }
        gone = check(&server, gone, found);
    }
    for number in (0..200).step_by(2) {
        // Changed over TCP while the client may have a tag of the former value.
        ask(&mut server.connect(), format!("set k{number} 0 0 3\r\nnew\r\n").as_bytes(), b"STORED\r\n");
        assert_eq!(&client.get(format!("k{number}")).unwrap().unwrap()[..], b"new");
        client.delete(format!("k{}", number + 1)).unwrap();
        ask(&mut server.connect(), format!("get k{}\r\n", number + 1).as_bytes(), b"END\r\n");
    }
    assert!(server.stat("extstore_objects_read") > ITEMS / 2);
}

#[test]
fn datagrams_wait_for_flash_too() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder.path().join("log"));
    fill(&server, 0);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(server.address("udp")).unwrap();
    let mut found = 0;
    for number in 0..100_u64 {
        let request = format!("\0{}\0\0\0\x01\0\0get k{number}\r\n", number as u8 as char);
        socket.send(request.as_bytes()).unwrap();
        let (mut parts, mut total) = (Vec::new(), 1);
        while parts.len() < total {
            let mut part = [0; 2000];
            let len = socket.recv(&mut part).unwrap();
            total = usize::from(part[5]);
            parts.push((part[3], part[8..len].to_vec()));
        }
        parts.sort();
        let text = parts.into_iter().flat_map(|(_, part)| part).collect::<Vec<u8>>();
        if text != b"END\r\n" {
            let head = format!("VALUE k{number} {} {}\r\n", number % 1000, value(number, 0).len());
            assert!(text == [head.as_bytes(), &value(number, 0), b"\r\nEND\r\n"].concat(), "{number}");
            found += 1;
        }
    }
    assert!(found > 40, "{found}");
}

#[test]
fn a_long_answer_goes_on_after_flash() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(&folder.path().join("log"));
    fill(&server, 0);
    let mut client = server.connect();
    let long = vec![b'x'; 600_000];
    // The second drives the first out, which is dropped where the device has not written what was before.
    let are_there = (0..100).any(|_| {
        for key in ["long1", "long2"] {
            let request = [format!("set {key} 0 0 600000\r\n").as_bytes(), &long, b"\r\n"].concat();
            ask(&mut client, &request, b"STORED\r\n");
        }
        std::thread::sleep(Duration::from_millis(20));
        let mut client = BufReader::new(server.connect());
        let keys = ["long1", "long2"].into_iter();
        keys.filter(|key| {
            client.get_mut().write_all(format!("mg {key} s\r\n").as_bytes()).unwrap();
            line(&mut client) == "HD s600000\r\n"
        })
        .count()
            == 2
    });
    assert!(are_there);
    let reads = server.stat("extstore_objects_read");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(server.address("udp")).unwrap();
    let rest: Vec<String> = (100..110).map(|number| format!("k{number}")).collect();
    let request = format!("\0\0\0\0\0\x01\0\0get long1 long2 {}\r\n", rest.join(" "));
    socket.send(request.as_bytes()).unwrap();
    let mut part = [0; 2000];
    let len = socket.recv(&mut part).unwrap();
    let total = usize::from(part[4]) << 8 | usize::from(part[5]);
    assert!(part[8..len].starts_with(b"VALUE long1 0 600000\r\n") && total > 1_200_000 / 1400, "{total} parts");
    assert!(server.stat("extstore_objects_read") > reads, "all were in memory");
}

#[test]
fn a_killed_server_leaves_nothing_to_its_successor() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    for turn in 0..3 {
        let server = start(&file);
        assert_eq!(read_all(&server, 50, turn), 0, "items of a server that was killed");
        let gone = fill(&server, turn);
        assert!(gone < ITEMS / 2, "{gone} items are gone");
        check(&server, gone, read_all(&server, 50, turn));
        server.signal(if turn == 1 { "-TERM" } else { "-KILL" });
        drop(server);
    }
}

/// Returns the exit status of a server with these flags, and what it printed.
fn fails(flags: &[String]) -> (i32, String) {
    let mut command = Command::new(SERVER);
    let output = command.args(["-p", "-1", "-l", "127.0.0.1"]).args(flags).stdin(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    std::fs::write(&file, "their notes").unwrap();
    let (code, said) = fails(&flags(&file));
    assert!(code == 1 && said.contains("another program wrote it"), "{code} {said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"their notes");
    std::fs::remove_file(&file).unwrap();

    let server = start(&file);
    let (code, said) = fails(&flags(&file));
    assert!(code == 1 && said.contains("another server uses it"), "{code} {said}");
    drop(server);

    let small = format!("{}:10m", file.display());
    let (code, said) = fails(&["--flash".into(), small]);
    assert!(code == 2 && said.contains("give PATH:32m or more"), "{code} {said}");
    let large = flags(&file).into_iter().chain(["-o".into(), "ext_wbuf_size=8".into()]).collect::<Vec<_>>();
    let (code, said) = fails(&large);
    assert!(code == 2 && said.contains("-m 64 at least"), "{code} {said}");
    let (code, said) = fails(&flags(&folder.path().join("none/log")));
    assert!(code == 1 && said.contains("none/log"), "{code} {said}");
    let (code, said) = fails(&flags(Path::new("/dev/null")));
    assert!(code == 1 && said.contains("not a regular file"), "{code} {said}");
}

#[test]
fn limit_on_file_sizes_is_an_error_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    // A file that has its size already, too: writes beyond the limit would end the server.
    for is_there in [false, true] {
        if is_there {
            drop(start(&file));
        }
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 131072; exec \"$@\"", "sh", SERVER, "-p", "-1", "-l", "127.0.0.1"]);
        let output = command.args(flags(&file)).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("raise it (ulimit -f)"), "{said}");
    }
}

/// Returns the memory of a server that is resident, in bytes.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Stores items of a long key and a short value, many in a row.
fn fill_small(server: &Server, items: std::ops::Range<u64>) {
    let mut client = BufReader::new(server.connect());
    let (first, last) = (items.start, items.end);
    for first in (first..last).step_by(500) {
        let all: String = (first..first + 500)
            .map(|number| format!("set {number:0>100} 0 0 400 noreply\r\n{number:0>400}\r\n"))
            .collect();
        client.get_mut().write_all(all.as_bytes()).unwrap();
        client.get_mut().write_all(b"mn\r\n").unwrap();
        assert_eq!(line(&mut client), "MN\r\n");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn stubs_take_memory_from_pages() {
    const MEMORY: u64 = 64 << 20;
    let folder = tempfile::tempdir().unwrap();
    let flash = format!("{}:1g", folder.path().join("log").display());
    let server =
        Server::on_a_free_port(&["-m", "64", "-t", "2", "--flash", &flash, "-o", "ext_item_size=64,ext_page_size=8"]);
    fill_small(&server, 0..5000);
    let before = resident(&server) - server.stat("bytes");
    fill_small(&server, 5000..300_000);
    let (stubs, items) = (server.stat("flash_stub_bytes"), server.stat("extstore_objects_used"));
    let now = resident(&server);
    assert!(stubs > 16 << 20 && items > 150_000, "{stubs} bytes of {items} stubs");
    assert!(now <= before + MEMORY * 105 / 100, "{before} to {now}");
    assert!(server.stat("flash_dropped_stubs") < 300, "items had no room for their stubs");
}

#[test]
fn a_lower_memory_limit_gives_memory_back() {
    let folder = tempfile::tempdir().unwrap();
    let flash = format!("{}:1g", folder.path().join("log").display());
    // Memory that local clients may map is never given back.
    let server = Server::on_a_free_port(&[
        "-m",
        "64",
        "-t",
        "2",
        "--fabric",
        "none",
        "--flash",
        &flash,
        "-o",
        "ext_item_size=64,ext_page_size=8",
    ]);
    fill_small(&server, 0..5000);
    let before = resident(&server) - server.stat("bytes");
    fill_small(&server, 5000..200_000);
    ask(&mut server.connect(), b"cache_memlimit 24\r\n", b"OK\r\n");
    soon("that memory is given back", || resident(&server) <= before + (24 << 20) * 110 / 100);
    fill_small(&server, 200_000..220_000);
    let now = resident(&server);
    assert!(now <= before + (24 << 20) * 110 / 100, "{before} to {now}");
    let mut client = BufReader::new(server.connect());
    client.get_mut().write_all(format!("get {:0>100}\r\n", 219_999).as_bytes()).unwrap();
    assert_eq!(line(&mut client), format!("VALUE {:0>100} 0 400\r\n", 219_999));
}

/// A device that does not answer while its pipe is empty. Only debug builds have it.
#[cfg(debug_assertions)]
struct Gate(std::fs::File);

#[cfg(debug_assertions)]
impl Gate {
    /// Starts a server on a device that answers.
    fn start(folder: &Path, more: &[&str]) -> (Self, Server) {
        let path = folder.join("gate");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let pipe = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let gate = Self(pipe);
        gate.open();
        let flags = flags(&folder.join("log"));
        let all: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let mut command = Command::new(SERVER);
        let server =
            Server::run(command.args(["-p", "-1", "-l", "127.0.0.1"]).args(all).env("RDMAKV_TEST_DEVICE", path));
        (gate, server)
    }
    fn open(&self) {
        (&self.0).write_all(b"x").unwrap();
    }
    fn close(&self) {
        (&self.0).read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn stop_answers_a_long_row_of_gets() {
    const GETS: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(&folder.path().join("log"));
    fill(&server, 0);
    let mut client = BufReader::new(server.connect());
    let all: String = (0..GETS).map(|number| format!("get k{number}\r\n")).collect();
    client.get_mut().write_all(all.as_bytes()).unwrap();
    server.signal("-TERM");
    let found = (0..GETS).map(|_| values(&mut client, 0).len() as u64).sum::<u64>();
    assert!(found > GETS / 3, "{found}");
    assert!(server.process.wait().unwrap().success());
}

/// Returns keys of items that are on flash only, as far as can be told: they were stored first.
#[cfg(debug_assertions)]
fn old_keys() -> impl Iterator<Item = String> {
    (0..1500).map(|number| format!("k{number}"))
}

#[test]
#[cfg(debug_assertions)]
fn a_silent_device_holds_no_request_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, server) = Gate::start(folder.path(), &[]);
    fill(&server, 0);
    soon("that all is written", || server.stat("extstore_io_queue") == 0);
    gate.close();
    let began = std::time::Instant::now();
    let mut clients: Vec<_> = old_keys()
        .take(500)
        .map(|key| {
            let mut client = BufReader::new(server.connect());
            client.get_mut().write_all(format!("get {key}\r\n").as_bytes()).unwrap();
            client
        })
        .collect();
    soon("that some wait in line", || server.stat("flash_reads_waiting") > 0);
    let (mut missed, mut refused, mut found) = (0, 0, 0);
    for client in &mut clients {
        match line(client).as_str() {
            "END\r\n" => missed += 1,
            "SERVER_ERROR out of memory reading item\r\n" => refused += 1,
            text if text.starts_with("VALUE ") => found += 1,
            text => panic!("{text}"),
        }
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(missed > 20 && refused > 100, "{missed} missed, {refused} refused, {found} found");
    // What is in memory is served, and what is not is refused at once.
    let mut client = BufReader::new(server.connect());
    let began = std::time::Instant::now();
    client.get_mut().write_all(format!("get k{}\r\nget k1400\r\n", ITEMS - 1).as_bytes()).unwrap();
    assert_eq!(values(&mut client, 0), [ITEMS - 1]);
    line(&mut client);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    drop(clients);

    gate.open();
    soon("that the device is asked again", || server.stat("extstore_io_queue") == 0);
    assert!(read_all(&server, 10, 0) > ITEMS / 4);
}

#[test]
#[cfg(debug_assertions)]
fn a_server_ends_though_its_device_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let fabric = format!("shm:{}/socket", folder.path().display());
    let (gate, mut server) = Gate::start(folder.path(), &["--fabric", &fabric]);
    fill(&server, 0);
    let mut over_fabric = Client::new([&fabric]).unwrap();
    assert!(over_fabric.get("none").unwrap().is_none());
    gate.close();
    let mut over_tcp = server.connect();
    over_tcp.write_all(b"get k1\r\n").unwrap();
    let waits = std::thread::spawn(move || _ = over_fabric.get("k2"));
    soon("that both are read", || server.stat("extstore_io_queue") == 2);
    server.signal("-TERM");
    let began = std::time::Instant::now();
    while server.process.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(30), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    waits.join().unwrap();
}

#[test]
#[cfg(debug_assertions)]
fn datagrams_without_a_place_do_not_wait_in_line() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, server) = Gate::start(folder.path(), &[]);
    fill(&server, 0);
    gate.close();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server.address("udp")).unwrap();
    for (number, key) in old_keys().enumerate() {
        socket.send(format!("\0\0\0\0\0\x01\0\0get {key}\r\n").as_bytes()).unwrap();
        if number % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    soon("that they have arrived", || server.stat("cmd_get") > 1000 || server.stat("extstore_io_queue") > 64);
    let (reads, waiting) = (server.stat("extstore_io_queue"), server.stat("flash_reads_waiting"));
    assert!(waiting <= 64, "{reads} reads, {waiting} in line");
    drop(gate);
}

#[test]
fn a_file_system_without_direct_io_serves_too() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return;
    }
    let folder = tempfile::tempdir_in(memory).unwrap();
    let mut small = flags(&folder.path().join("log"));
    let last = small.len() - 1;
    small[last] = small[last].replace(":256m", ":64m");
    let server = Server::on_a_free_port(&small.iter().map(String::as_str).collect::<Vec<_>>());
    fill(&server, 0);
    assert!(read_all(&server, 20, 0) > ITEMS / 4);
    soon("that reads have ended", || server.stat("extstore_io_queue") == 0);
}
