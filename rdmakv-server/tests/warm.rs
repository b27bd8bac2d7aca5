//! `-e FILE`: after an orderly stop every item is back, after any other end none.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdmakv_client::Client;

use common::{PATIENCE, SERVER, Server, ask, soon};

const ITEMS: u64 = 3000;

/// A folder with the files of a server, and a port that is free.
struct Place {
    folder: tempfile::TempDir,
    address: &'static str,
    port: u16,
}

impl Place {
    fn new() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { folder: tempfile::tempdir().unwrap(), address: "127.0.0.1", port }
    }
    fn file(&self) -> PathBuf {
        self.folder.path().join("items")
    }
    fn meta(&self) -> PathBuf {
        self.folder.path().join("items.meta")
    }
    fn flags(&self, more: &[&str]) -> Vec<String> {
        let (port, file) = (self.port.to_string(), self.file().display().to_string());
        let flags = ["-p", &port, "-l", self.address, "-m", "64", "-t", "2", "-A", "-e", &file];
        flags.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
    }
    fn start(&self, more: &[&str]) -> Server {
        let flags = self.flags(more);
        Server::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
    }
    /// Starts a server that does not serve; returns what it says.
    fn refused(&self, more: &[&str]) -> String {
        refused(Command::new(SERVER).args(self.flags(more)))
    }
    /// Starts a server, and returns what it says of FILE, too.
    fn start_loud(&self, more: &[&str]) -> (Server, String) {
        let mut server = Server::run(Command::new(SERVER).args(self.flags(more)).stderr(Stdio::piped()));
        let mut errors = BufReader::new(server.process.stderr.take().unwrap());
        let mut said = String::new();
        while !said.lines().any(|line| line.contains("-e ") && !line.contains("waits until")) {
            assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
        }
        // Its later lines have a reader.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        (server, said)
    }
    /// The record by which servers of this address hear of each other.
    fn record(&self) -> PathBuf {
        format!("/dev/shm/rdmakv-{}/rdmakv-{}.life", user(), self.port).into()
    }
    fn flash(&self) -> String {
        format!("{}:256m", self.folder.path().join("log").display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The record of this address is for servers that come after, and none does.
        let _ = std::fs::remove_file(self.record());
    }
}

fn user() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// Runs a server that does not serve; returns what it says.
fn refused(command: &mut Command) -> String {
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while process.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = process.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let out = process.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1), "it serves");
    String::from_utf8(out.stderr).unwrap()
}

/// Returns a command of the server for which the kernel has no io_uring.
fn without_io_uring(flags: Vec<String>) -> Command {
    const SETUP: u32 = 425;
    let step = |code: u32, k, jf| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, SETUP, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let mut command = Command::new(SERVER);
    command.args(flags);
    #[expect(unsafe_code, reason = "a filter of system calls")]
    // SAFETY: between fork and exec the closure makes two system calls, with memory of its own that outlives them.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let is_set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    command
}

fn end(mut server: Server, signal: &str) {
    server.signal(signal);
    assert!(server.process.wait().unwrap().success());
}

fn value(number: u64) -> Vec<u8> {
    (0..number * 37 % 5000).map(|at| (at * 7 + number * 11) as u8).collect()
}

fn set(client: &mut TcpStream, key: &str, value: &[u8], (flags, expiry): (u64, u64)) {
    let mut request = format!("set {key} {flags} {expiry} {}\r\n", value.len()).into_bytes();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    ask(client, &request, b"STORED\r\n");
}

fn fill(server: &Server) {
    let mut client = server.connect();
    for number in 0..ITEMS {
        let expiry = if number % 3 == 0 { 5000 + number } else { 0 };
        set(&mut client, &format!("k{number}"), &value(number), (number, expiry));
        if number % 64 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Flags, version, seconds to live and value of an item.
type Item = (u64, u64, i64, Vec<u8>);

/// Returns each item, where it is there.
fn all(server: &Server) -> Vec<Option<Item>> {
    let mut client = BufReader::new(server.connect());
    (0..ITEMS)
        .map(|number| {
            client.get_mut().write_all(format!("mg k{number} v f c t\r\n").as_bytes()).unwrap();
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["VA", len, flags, version, left] = words[..] else {
                assert_eq!(words, ["EN"]);
                return None;
            };
            let mut data = vec![0; len.parse::<usize>().unwrap() + 2];
            client.read_exact(&mut data).unwrap();
            data.truncate(data.len() - 2);
            let number = |word: &str| word[1..].parse().unwrap();
            Some((number(flags), number(version), left[1..].parse().unwrap(), data))
        })
        .collect()
}

/// Checks that what was there before is there again, and is what was stored; returns how many items.
fn compare(before: &[Option<Item>], after: &[Option<Item>]) -> usize {
    let mut count = 0;
    for (number, (before, after)) in before.iter().zip(after).enumerate() {
        match (before, after) {
            (Some(before), Some(after)) => {
                assert_eq!((before.0, before.1, &before.3), (after.0, after.1, &after.3), "k{number}");
                assert_eq!(after.0, number as u64);
                assert!(after.3 == value(number as u64), "k{number}");
                let is_timed = number % 3 == 0;
                assert_eq!(after.2 == -1, !is_timed, "k{number}");
                assert!(!is_timed || (after.2 <= before.2 && after.2 > before.2 - 60), "k{number} {}", after.2);
                count += 1;
            }
            (None, None) => {}
            _ => panic!("k{number}: {} before, {} after", before.is_some(), after.is_some()),
        }
    }
    count
}

/// Returns how many items are in memory.
fn curr_items(server: &Server) -> u64 {
    let stats = server.stats("");
    let of = |name: &str| stats.get(name).map_or(0, |value| value.parse::<u64>().unwrap());
    of("curr_items") - of("flash_only_items")
}

#[test]
fn memory_is_back_after_every_orderly_stop() {
    let place = Place::new();
    let server = place.start(&[]);
    fill(&server);
    let mut before = all(&server);
    assert!(before.iter().flatten().count() as u64 == ITEMS, "all fit");
    end(server, "-TERM");
    for stop in ["-INT", "-USR1", "shutdown", "shutdown graceful", "-TERM"] {
        assert!(place.meta().exists());
        let mut server = place.start(&[]);
        assert!(!place.meta().exists(), "{stop}: none while it serves");
        let after = all(&server);
        assert_eq!(compare(&before, &after) as u64, ITEMS, "{stop}");
        assert_eq!(server.stat("evictions"), 0);
        before = after;
        if stop.starts_with('-') {
            end(server, stop);
        } else {
            server.connect().write_all(format!("{stop}\r\n").as_bytes()).unwrap();
            assert!(server.process.wait().unwrap().success());
        }
    }
    let (_server, said) = place.start_loud(&[]);
    assert!(said.contains(&format!("{ITEMS} items are back")), "{said}");
}

#[test]
fn flash_is_back_after_an_orderly_stop() {
    let place = Place::new();
    let flash = place.flash();
    let more = ["--flash", &flash, "-m", "8", "-I", "512k"];
    let server = place.start(&more);
    // Three times the memory.
    fill(&server);
    let mut client = server.connect();
    for number in 0..4000 {
        set(&mut client, &format!("filler{number}"), &[7; 4000], (0, 0));
        if number % 16 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let before = all(&server);
    let there = before.iter().flatten().count() as u64;
    let (gone, away) = (server.stat("evictions"), server.stat("extstore_objects_used"));
    assert!(away > 2000 && there > ITEMS / 2, "{there} there, {away} on flash, {gone} gone");
    end(server, "-TERM");
    let (server, said) = place.start_loud(&more);
    assert!(said.contains("on flash"), "{said}");
    let after = all(&server);
    let lost = before.iter().zip(&after).filter(|(before, after)| before.is_some() && after.is_none()).count() as u64;
    // Reading all of them drives others out; none is lost by the restart itself.
    assert!(lost <= server.stat("evictions"), "{lost}");
    let both: Vec<_> = before.iter().zip(&after).filter(|(_, after)| after.is_some()).collect();
    assert!(both.len() as u64 > ITEMS / 2);
    for (before, after) in both {
        if let (Some(before), Some(after)) = (before, after) {
            assert_eq!((before.0, before.1, &before.3), (after.0, after.1, &after.3));
        }
    }
    assert!(server.stat("get_extstore") > 100);
    drop(server);
    // That was a kill: nothing is there, on flash neither.
    let server = place.start(&more);
    assert_eq!((curr_items(&server), server.stat("extstore_objects_used")), (0, 0));
    assert!(all(&server).iter().all(Option::is_none));
}

#[test]
fn ended_item_is_not_back_from_its_record() {
    let place = Place::new();
    let flash = place.flash();
    let more = ["--flash", &flash, "-m", "8", "-I", "512k", "-o", "no_lru_crawler"];
    let server = place.start(&more);
    fill(&server);
    let mut client = server.connect();
    // From flash into memory, where they get an end that their records do not know.
    let brought: Vec<u64> = (0..ITEMS / 3).filter(|number| number % 3 != 0 && number * 37 % 5000 > 1000).collect();
    let before = server.stat("get_extstore");
    for number in &brought {
        client.write_all(format!("mg k{number} s\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).unwrap();
        let seconds = if number % 2 == 0 { 1 } else { 4 };
        if line.starts_with("HD") {
            ask(&mut client, format!("touch k{number} {seconds}\r\n").as_bytes(), b"TOUCHED\r\n");
        }
    }
    assert!(server.stat("get_extstore") > before + 100);
    // Some end before the stop, others while the server is down.
    std::thread::sleep(Duration::from_millis(2000));
    end(server, "-TERM");
    std::thread::sleep(Duration::from_millis(4000));
    let server = place.start(&more);
    let found = all(&server);
    for number in brought {
        assert!(found[number as usize].is_none(), "k{number}");
    }
    assert!(found.iter().flatten().count() > 500);
}

#[test]
fn log_of_another_stop_loses_its_items_only() {
    let place = Place::new();
    let flash = place.flash();
    let more = ["--flash", &flash, "-m", "8", "-I", "512k"];
    let server = place.start(&more);
    fill(&server);
    let items = curr_items(&server);
    assert!(server.stat("extstore_objects_used") > 100);
    end(server, "-TERM");
    // As if the log were of a backup: zeros before data are another program's.
    let log = std::fs::OpenOptions::new().write(true).open(place.folder.path().join("log")).unwrap();
    log.write_all_at(&[0; 4096], 0).unwrap();
    assert!(place.refused(&more).contains("begins with zeros"));
    log.set_len(0).unwrap();
    drop(log);
    let server = place.start(&more);
    assert_eq!((curr_items(&server), server.stat("extstore_objects_used")), (items, 0));
    let found = all(&server);
    assert!(found.iter().flatten().count() as u64 >= items - server.stat("evictions"));
    for (number, item) in found.iter().enumerate() {
        assert!(item.as_ref().is_none_or(|item| item.3 == value(number as u64)));
    }
}

#[test]
fn nothing_is_back_after_a_kill() {
    let place = Place::new();
    let server = place.start(&["--tag-lease", "100ms"]);
    ask(&mut server.connect(), b"set a 1 0 3\r\none\r\n", b"STORED\r\n");
    end(server, "-TERM");
    let server = place.start(&["--tag-lease", "100ms"]);
    ask(&mut server.connect(), b"set a 1 0 3\r\ntwo\r\n", b"STORED\r\n");
    drop(server);
    let (server, said) = place.start_loud(&["--tag-lease", "100ms"]);
    assert!(said.contains("starts empty") && said.contains("was killed"), "{said}");
    ask(&mut server.connect(), b"get a\r\n", b"END\r\n");
    end(server, "-TERM");
}

#[test]
fn time_that_was_down_counts() {
    let place = Place::new();
    let server = place.start(&[]);
    let mut client = server.connect();
    ask(
        &mut client,
        b"set short 0 2 1\r\nx\r\nset long 0 500 1\r\nx\r\nset never 0 0 1\r\nx\r\n",
        &b"STORED\r\n".repeat(3),
    );
    ask(
        &mut client,
        b"set flushed 0 0 1\r\nx\r\nflush_all\r\nset short 0 2 1\r\ny\r\nset long 0 500 1\r\ny\r\n",
        b"STORED\r\nOK\r\nSTORED\r\nSTORED\r\n",
    );
    end(server, "-TERM");
    std::thread::sleep(Duration::from_millis(2500));
    let server = place.start(&[]);
    let mut client = server.connect();
    ask(&mut client, b"get short long never flushed\r\n", b"VALUE long 0 1\r\ny\r\nEND\r\n");
    let mut line = String::new();
    client.write_all(b"mg long t\r\n").unwrap();
    BufReader::new(&client).read_line(&mut line).unwrap();
    let left: u64 = line.trim().strip_prefix("HD t").unwrap().parse().unwrap();
    assert!(left <= 498, "{left}");
    // A flush that comes later comes though the server was down.
    ask(&mut client, b"flush_all 2\r\n", b"OK\r\n");
    end(server, "-TERM");
    std::thread::sleep(Duration::from_millis(2500));
    let server = place.start(&[]);
    ask(&mut server.connect(), b"get long\r\n", b"END\r\n");
}

#[test]
fn versions_go_on() {
    let place = Place::new();
    let server = place.start(&[]);
    ask(&mut server.connect(), b"ms a 1 c\r\nx\r\nms b 1 c\r\nx\r\n", b"HD c1\r\nHD c2\r\n");
    ask(&mut server.connect(), b"delete b\r\n", b"DELETED\r\n");
    end(server, "-TERM");
    let server = place.start(&[]);
    ask(&mut server.connect(), b"ms a 1 C2 c\r\ny\r\nms a 1 C1 c\r\ny\r\n", b"EX c0\r\nHD c3\r\n");
}

#[test]
fn shm_clients_read_what_is_back() {
    let place = Place::new();
    let fabric = format!("shm:@rdmakv-warm-{}", place.port);
    let more = ["--fabric", &fabric, "--tag-lease", "500ms"];
    let server = place.start(&more);
    fill(&server);
    let mut client = Client::new([&fabric]).unwrap();
    let read = |client: &mut Client, number: u64| {
        client.get(format!("k{number}").as_bytes()).unwrap().map(|item| item.to_vec())
    };
    for number in (0..ITEMS).chain(0..ITEMS) {
        assert!(read(&mut client, number) == Some(value(number)), "{number}");
    }
    // Items that are leased at the stop are back as well.
    end(server, "-TERM");
    let server = place.start(&more);
    let mut stream = server.connect();
    set(&mut stream, "k7", b"changed", (0, 0));
    // The client that read before sees this server's items, and a new one, too.
    soon("that the client is back", || {
        client.get(b"k7").is_ok_and(|item| item.is_some_and(|item| item.to_vec() == b"changed"))
    });
    let mut next = Client::new([&fabric]).unwrap();
    for client in [&mut client, &mut next] {
        for number in (0..ITEMS).chain(0..ITEMS).filter(|&number| number != 7) {
            assert!(read(client, number) == Some(value(number)), "{number}");
        }
    }
    assert!(curr_items(&server) <= ITEMS);
}

#[test]
fn items_of_a_file_that_was_removed_are_lost_aloud() {
    let place = Place::new();
    let mut server = Server::run(Command::new(SERVER).args(place.flags(&[])).stderr(Stdio::piped()));
    let errors = server.process.stderr.take().unwrap();
    std::fs::remove_file(place.file()).unwrap();
    server.signal("-TERM");
    let said = std::io::read_to_string(errors).unwrap();
    assert!(said.contains("it was removed, or another file is in its place: they are lost"), "{said}");
    assert!(!server.process.wait().unwrap().success());
}

#[test]
fn items_are_kept_beside_the_target_of_a_link() {
    let place = Place::new();
    let real = place.folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(real.join("kept"), place.file()).unwrap();
    let server = place.start(&[]);
    fill(&server);
    let before = all(&server);
    end(server, "-TERM");
    assert!(real.join("kept.meta").exists() && !place.meta().exists());

    // The same file without the link: the name does not count.
    std::fs::remove_file(place.file()).unwrap();
    std::fs::rename(real.join("kept"), place.file()).unwrap();
    std::fs::rename(real.join("kept.meta"), place.meta()).unwrap();
    let server = place.start(&[]);
    assert_eq!(compare(&before, &all(&server)), ITEMS as usize);
}

#[test]
fn what_does_not_agree_starts_empty() {
    let place = Place::new();
    let stored = || {
        let server = place.start(&[]);
        ask(&mut server.connect(), b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
        end(server, "-TERM");
    };
    let cold = |more: &[&str], words: &str| {
        let (server, said) = place.start_loud(more);
        assert!(said.contains("starts empty") && said.contains(words), "{words}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(curr_items(&server), 0);
        ask(&mut server.connect(), b"get a\r\n", b"END\r\n");
        end(server, "-TERM");
    };
    for (more, words) in [
        (["-m", "65"], "they were -m 64"),
        (["-I", "2m"], "limits"),
        (["-f", "1.5"], "limits"),
        (["-n", "64"], "limits"),
    ] {
        stored();
        cold(&more, words);
    }
    // Damaged, short, empty, of another stop.
    stored();
    let good = std::fs::read(place.meta()).unwrap();
    for at in (0..good.len()).step_by(61) {
        stored();
        let mut bytes = std::fs::read(place.meta()).unwrap();
        bytes[at] ^= 1;
        std::fs::write(place.meta(), bytes).unwrap();
        cold(&[], "damaged");
    }
    for len in [0, 5, good.len() - 1] {
        stored();
        let bytes = std::fs::read(place.meta()).unwrap();
        std::fs::write(place.meta(), &bytes[..len]).unwrap();
        cold(&[], "damaged");
    }
    stored();
    std::fs::write(place.meta(), &good).unwrap();
    cold(&[], "different stops");
    // The items themselves.
    stored();
    let file = std::fs::OpenOptions::new().write(true).open(place.file()).unwrap();
    file.write_all_at(b"?", 4096 + 40).unwrap();
    cold(&[], "cannot be read");
    // Another server was at the address meanwhile.
    stored();
    let port = place.port.to_string();
    end(Server::start(&["-p", &port, "-l", "127.0.0.1"]), "-TERM");
    cold(&[], "another server was at this address");
    // This one is at another address, where a server was that left no record.
    stored();
    let next = Place::new().port.to_string();
    end(Server::start(&["-p", &next, "-l", "127.0.0.1"]), "-TERM");
    cold(&["-p", &next], "items are of a server at rdmakv-");
    // The record of the address is gone.
    stored();
    std::fs::remove_file(place.record()).unwrap();
    cold(&[], "nothing tells");
}

#[test]
fn clock_that_went_back_starts_empty() {
    let place = Place::new();
    let server = place.start(&[]);
    ask(&mut server.connect(), b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
    end(server, "-TERM");
    let mut bytes = std::fs::read(place.meta()).unwrap();
    // As if the stop had been tomorrow.
    let clock = u64::from_le_bytes(bytes[20..28].try_into().unwrap()) + 86_400;
    bytes[20..28].copy_from_slice(&clock.to_le_bytes());
    let body = bytes.len() - 4;
    let sum = rdmakv_flash::record::sum(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(place.meta(), bytes).unwrap();
    let (server, said) = place.start_loud(&[]);
    assert!(said.contains("behind the one at the stop"), "{said}");
    assert_eq!(curr_items(&server), 0);
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let place = Place::new();
    let server = place.start(&[]);
    let said = place.refused(&["-p", "-1"]);
    assert!(said.contains("another server uses it"), "{said}");
    drop(server);
    let foreign = place.folder.path().join("diary");
    std::fs::write(&foreign, "dear diary").unwrap();
    let foreign = foreign.display().to_string();
    for (file, words) in [
        (&foreign[..], "another program wrote it"),
        ("/dev/null", "not a regular file"),
        ("/does/not/exist/items", "make its directory"),
        ("/proc/items", "make its directory"),
    ] {
        let said = place.refused(&["-e", file]);
        assert!(said.contains(words) && said.contains(file), "{said}");
    }
    assert_eq!(std::fs::read(&foreign).unwrap(), b"dear diary");
    // Larger than any file system here; only address space is asked for before.
    let said = place.refused(&["-m", "16777216", "-t", "1"]);
    assert!(said.contains("larger file system") || said.contains("mapping"), "{said}");
    assert!(!place.meta().exists());
}

#[test]
fn one_file_by_two_names_is_refused() {
    let place = Place::new();
    let (file, link) = (place.file(), place.folder.path().join("link"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let said = place.refused(&["--flash", &format!("{}:256m", link.display())]);
    assert!(said.contains("the same file as") && said.contains("items"), "{said}");
    let (one, two) = (place.folder.path().join("one"), place.folder.path().join("two"));
    std::os::unix::fs::symlink(&one, &two).unwrap();
    let said = place.refused(&["--flash", &format!("{}:256m,{}:256m", one.display(), two.display())]);
    assert!(said.contains("the same file as") && said.contains("one"), "{said}");
}

#[test]
fn limit_on_file_sizes_loses_nothing() {
    let place = Place::new();
    let server = place.start(&[]);
    set(&mut server.connect(), "kept", b"value", (0, 0));
    end(server, "-TERM");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 61440; exec \"$@\"", "sh", SERVER]).args(place.flags(&["--fabric", "none"]));
    let said = refused(&mut limited);
    assert!(said.contains("ulimit -f"), "{said}");
    let (server, said) = place.start_loud(&[]);
    assert!(said.contains("1 item is back"), "{said}");
    drop(server);
}

#[test]
fn zeros_before_data_are_not_overwritten() {
    let place = Place::new();
    let path = |name: &str| place.folder.path().join(name).display().to_string();
    // As an image of a file system begins.
    let image = [vec![0; 64 << 10], b"_BHRfS_M".to_vec()].concat();
    std::fs::write(path("image"), &image).unwrap();
    let flash = format!("{}:256m", path("image"));
    for more in [["-e", &path("image")], ["--flash", &flash]] {
        let said = place.refused(&more);
        assert!(said.contains("begins with zeros") && said.contains("image: "), "{said}");
        assert_eq!(std::fs::read(path("image")).unwrap(), image, "{more:?}");
    }
    // Only zeros are data, too, but a file without any data is not.
    std::fs::write(path("zeros"), vec![0; 8192]).unwrap();
    assert!(place.refused(&["-e", &path("zeros")]).contains("begins with zeros"));
    for name in ["sparse", "log"] {
        std::fs::File::create(path(name)).unwrap().set_len(1 << 30).unwrap();
    }
    let flash = format!("{}:256m", path("log"));
    end(place.start(&["-e", &path("sparse"), "--flash", &flash]), "-TERM");
}

#[test]
fn file_that_was_there_is_not_removed() {
    let place = Place::new();
    std::fs::write(place.file(), "").unwrap();
    std::fs::set_permissions(place.file(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = place.refused(&["-m", "16777216", "-t", "1"]);
    assert!(said.contains("larger file system") || said.contains("mapping"), "{said}");
    let about = std::fs::metadata(place.file()).unwrap();
    assert_eq!(about.len(), 0);
    // Values are for no other user.
    let _server = place.start(&[]);
    assert_eq!(std::fs::metadata(place.file()).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn file_put_beside_is_not_written() {
    let place = Place::new();
    let (new, diary) = (place.folder.path().join("items.meta.new"), place.folder.path().join("diary"));
    std::fs::write(&diary, "dear diary").unwrap();
    let link = || std::fs::hard_link(&diary, &new).unwrap();
    let pipe = || assert!(Command::new("mkfifo").arg(&new).status().unwrap().success());
    for (number, put) in [&link as &dyn Fn(), &pipe].into_iter().enumerate() {
        let mut server = place.start(&[]);
        assert_eq!(curr_items(&server), number as u64);
        set(&mut server.connect(), &format!("key{number}"), b"value", (0, 0));
        std::fs::remove_file(&new).unwrap();
        put();
        server.signal("-TERM");
        soon("the end of the server", || server.process.try_wait().unwrap().is_some());
    }
    assert_eq!(curr_items(&place.start(&[])), 2);
    assert_eq!(std::fs::read(&diary).unwrap(), b"dear diary");
}

#[test]
fn own_port_is_not_waited_for() {
    let place = Place::new();
    let own = format!("127.0.0.1:{}", place.port);
    for more in [["--http", &own[..]], ["-l", &own]] {
        let said = place.refused(&more);
        assert!(said.contains("this server listens there already") && !said.contains("waits"), "{said}");
    }
}

#[test]
fn handover_is_warm() {
    let place = Place::new();
    let mut server = place.start(&[]);
    let mut client = server.connect();
    ask(&mut client, b"set a 1 0 3\r\none\r\n", b"STORED\r\n");
    server.signal("-USR1");
    // The port is free, and its client takes longer than FILE is waited for.
    let next = std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            soon("that the port is free", || std::net::TcpListener::bind(("127.0.0.1", place.port)).is_ok());
            place.start_loud(&[])
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(7) {
            ask(&mut client, b"set a 1 0 3\r\ntwo\r\n", b"STORED\r\n");
            std::thread::sleep(Duration::from_millis(200));
        }
        drop(client);
        next.join().unwrap()
    });
    assert!(server.process.wait().unwrap().success());
    let (server, said) = next;
    assert!(said.contains("1 item is back"), "{said}");
    ask(&mut server.connect(), b"get a\r\n", b"VALUE a 1 3\r\ntwo\r\nEND\r\n");
    end(server, "-TERM");
    let (_server, said) = place.start_loud(&[]);
    assert!(said.contains("1 item is back"), "{said}");
}

#[test]
fn next_server_waits_for_the_port() {
    let place = Place::new();
    let server = place.start(&[]);
    ask(&mut server.connect(), b"set a 1 0 3\r\none\r\n", b"STORED\r\n");
    let mut next = Command::new(SERVER);
    let mut next = next.args(place.flags(&[])).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(next.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    assert!(said.contains("waits until another server has left"), "{said}");
    end(server, "-TERM");
    while !said.contains("1 item is back") {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn record_in_use_is_reported() {
    let place = Place::new();
    let _first = place.start(&[]);
    let file = place.folder.path().join("other").display().to_string();
    let mut second = Place::new();
    (second.port, second.address) = (place.port, "127.0.0.2");
    let (_second, said) = second.start_loud(&["-e", &file]);
    assert!(said.contains("another server of this name runs") && said.contains("next start is empty"), "{said}");
}

#[test]
fn start_that_fails_loses_nothing() {
    let place = Place::new();
    let flash = place.flash();
    let more = ["--flash", &flash, "-m", "64", "-I", "512k"];
    let server = place.start(&more);
    fill(&server);
    let before = all(&server);
    end(server, "-TERM");
    // Before the items are read.
    let said = refused(&mut without_io_uring(place.flags(&more)));
    assert!(said.contains("io_uring"), "{said}");
    let server = place.start(&more);
    assert_eq!(compare(&before, &all(&server)) as u64, ITEMS);
    end(server, "-TERM");
    // After that.
    let fabric = format!("shm:@rdmakv-fail-{}", place.port);
    let pinned = ["-I", "512k", "--pin", "--fabric", &fabric];
    let said = refused(&mut without_io_uring(place.flags(&pinned)));
    assert!(said.contains("--pin: an io_uring") && said.contains("items are kept"), "{said}");
    let server = place.start(&["-I", "512k"]);
    assert_eq!(compare(&before, &all(&server)) as u64, ITEMS);
}

#[test]
fn items_on_flash_are_lost_with_a_line() {
    let place = Place::new();
    let flash = place.flash();
    let more = ["--flash", &flash, "-m", "8", "-I", "512k"];
    let stored = || {
        let server = place.start(&more);
        fill(&server);
        assert!(server.stat("extstore_objects_used") > 100);
        end(server, "-TERM");
    };
    let lost = |more: &[&str], words: &str| {
        let mut server = Server::run(Command::new(SERVER).args(place.flags(more)).stderr(Stdio::piped()));
        assert!(curr_items(&server) > 100);
        server.signal("-TERM");
        let mut said = String::new();
        server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains(words), "{said}");
    };
    stored();
    std::fs::remove_file(place.folder.path().join("log")).unwrap();
    lost(&more, "--flash: its items are not those of -e FILE: it starts empty");
    stored();
    lost(&["-m", "8", "-I", "512k"], "items on flash are lost: this start has no --flash");
}

#[test]
fn server_without_devices_is_not_waited_for() {
    let place = Place::new();
    let more = ["--tag-lease", "60s", "--fabric", "none"];
    drop(place.start(&more));
    let begun = Instant::now();
    let (server, said) = place.start_loud(&more);
    assert!(begun.elapsed() < PATIENCE / 2 && said.contains("was killed"), "{said}");
    end(server, "-TERM");
}

#[test]
fn record_that_was_removed_is_written_again() {
    let place = Place::new();
    let more = ["--fabric", "none"];
    let server = place.start(&more);
    ask(&mut server.connect(), b"set a 1 0 3\r\none\r\n", b"STORED\r\n");
    std::fs::remove_file(place.record()).unwrap();
    soon("that the record is there again", || place.record().exists());
    std::fs::remove_file(place.record()).unwrap();
    // Also if it goes shortly before the end.
    end(server, "-TERM");
    let (_server, said) = place.start_loud(&more);
    assert!(said.contains("1 item is back"), "{said}");
}

#[test]
fn stop_and_start_take_little_memory() {
    let place = Place::new();
    let flash = place.flash();
    let more = ["--flash", &flash, "-m", "32", "-I", "512k", "-o", "ext_item_size=64", "-t", "1"];
    let mut server = place.start(&more);
    let mut client = server.connect();
    for first in (0..200_000).step_by(500) {
        let items =
            (first..first + 500).map(|number| format!("set {number:0>240} 0 0 40 noreply\r\n{number:0>40}\r\n"));
        ask(&mut client, (items.collect::<String>() + "mn\r\n").as_bytes(), b"MN\r\n");
        std::thread::sleep(Duration::from_millis(4));
    }
    drop(client);
    let away = server.stat("extstore_objects_used");
    assert!(away > 40_000, "{away}");
    let path = format!("/proc/{}/status", server.process.id());
    let kilobytes = |name: &str| -> Option<u64> {
        let status = std::fs::read_to_string(&path).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok())
    };
    std::fs::write(format!("/proc/{}/clear_refs", server.process.id()), "5").unwrap();
    let before = kilobytes("VmHWM:").unwrap();
    server.signal("-TERM");
    let mut peak = before;
    while server.process.try_wait().unwrap().is_none() {
        peak = peak.max(kilobytes("VmHWM:").unwrap_or(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    // The keys on flash alone are 10 MB at least.
    assert!(peak - before < 6 << 10, "{before} kB before, {peak} kB at most, {away} items on flash");
    let server = place.start(&more);
    assert_eq!(server.stat("extstore_objects_used"), away);
}
