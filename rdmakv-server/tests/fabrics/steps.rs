//! Clients of this package and servers that are killed at a chosen byte of each operation, or while they are in the middle of it: the
//! other one is clean soon, and goes on.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::common::{SERVER, Server, soon};
use super::puppet::Puppet;
use super::relay::{Relay, Towards};

/// Bytes of a large value.
const LARGE: usize = 1_000_000;

fn files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Chunks in use.
fn used(server: &Server) -> u64 {
    use std::io::{Read, Write};
    let (mut stream, mut slabs) = (server.connect(), String::new());
    stream.write_all(b"stats slabs\r\nquit\r\n").unwrap();
    stream.read_to_string(&mut slabs).unwrap();
    let used = slabs.lines().filter_map(|line| line.split_once(":used_chunks ")?.1.trim().parse::<u64>().ok());
    used.sum()
}

/// Operations that can be under way, whether with tags, and which way most of their bytes go.
const READS: [(&str, bool, Towards); 4] = [
    ("get large", true, Towards::Client),
    ("get large", false, Towards::Client),
    ("get small", true, Towards::Client),
    ("get small", false, Towards::Client),
];
const WRITES: [(&str, bool, Towards); 2] =
    [("set large 1000000 2", true, Towards::Server), ("set small 1000 2", true, Towards::Server)];

/// Bytes of it at which it is held.
fn points(order: &str) -> &'static [usize] {
    if order.contains("large") { &[1, LARGE / 2, LARGE] } else { &[1, 500] }
}

/// Returns a client that has stored both values, and asked for them once.
fn acquainted(address: &str, one_sided: bool) -> Puppet {
    let mut client = Puppet::new(address, one_sided);
    for order in ["set large 1000000 1", "set small 1000 1"] {
        assert_eq!(client.ask(order), "stored");
    }
    assert!(client.ask("get large").starts_with("1000000 1 "));
    assert!(client.ask("get small").starts_with("1000 1 "));
    client
}

#[test]
fn a_client_killed_at_any_byte_leaves_nothing_behind() {
    let flags = ["--tag-lease", "200ms", "-I", "2m", "--fabric", "iwarp:127.0.0.1:0"];
    let server = Server::on_a_free_port(&flags);
    let relay = Relay::new();
    relay.leads_to(super::fabric(&server, "iwarp").strip_prefix("iwarp:").unwrap());
    let address = format!("iwarp:{}", relay.address);
    let is_clean = |what: &str| {
        soon(&format!("that {what} is over"), || server.stat("iwarp_connections") == 0);
        soon("that nothing is leased", || server.stat("leased_chunks") == 0 && server.stat("iwarp_leased_pages") == 0);
        soon("that every chunk is an item's", || used(&server) == server.stat("curr_items"));
    };
    // Threads have what they need from the first client on.
    acquainted(&address, true).kill();
    is_clean("the first");
    // The test's own connections to the server may still be closing.
    let mut before = files(server.process.id());
    soon("that the server's files are the same ones", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = files(server.process.id());
        std::mem::replace(&mut before, now) == now
    });
    for (order, one_sided, towards) in READS.into_iter().chain(WRITES) {
        for &point in points(order) {
            let mut client = acquainted(&address, one_sided);
            relay.hold(towards, point);
            client.begin(order);
            relay.is_held();
            client.kill();
            relay.let_go();
            is_clean(&format!("{order}, byte {point}"));
            // A half-stored value belongs to no key.
            let mut other = Puppet::new(&server.address("tcp"), false);
            for (order, length) in [("get large", LARGE), ("get small", 1000)] {
                let got = other.ask(order);
                assert!(got == format!("{length} 1 Socket") || got == format!("{length} 2 Socket"), "{got}");
            }
        }
    }
    soon("that no file is left", || files(server.process.id()) == before);
    assert_eq!(server.stat("iwarp_faults"), 0);
}

/// A server that is killed and started again in its place.
struct Mortal {
    folder: tempfile::TempDir,
    server: Server,
    port: String,
    relay: Relay,
    fabric: &'static str,
}

impl Mortal {
    fn new(fabric: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Self::start(folder.path(), "-1", fabric);
        let port = server.address("tcp").rsplit_once(':').unwrap().1.to_owned();
        let own = Self { folder, server, port, relay: Relay::new(), fabric };
        own.is_relayed();
        own
    }

    fn start(folder: &std::path::Path, port: &str, fabric: &str) -> Server {
        let place = match fabric {
            "shm" => format!("shm:{}/socket", folder.display()),
            _ => "iwarp:127.0.0.1:0".to_owned(),
        };
        let mut command = Command::new(SERVER);
        command
            .args(["-p", port, "-l", "127.0.0.1", "--tag-lease", "200ms", "-I", "2m", "--fabric", &place])
            .stderr(Stdio::null());
        Server::run(&mut command)
    }

    fn is_relayed(&self) {
        if self.fabric == "iwarp" {
            self.relay.leads_to(super::fabric(&self.server, "iwarp").strip_prefix("iwarp:").unwrap());
        }
    }

    /// Every way to it.
    fn address(&self) -> String {
        let fabric = match self.fabric {
            "shm" => format!("shm:{}/socket", self.folder.path().display()),
            _ => format!("iwarp:{}", self.relay.address),
        };
        format!("{fabric},tcp:127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        self.server.process.kill().unwrap();
        self.server.process.wait().unwrap();
    }

    fn rise(&mut self) {
        self.server = Self::start(self.folder.path(), &self.port, self.fabric);
        self.is_relayed();
    }
}

/// The server is killed when the client has begun this, and as it is described.
fn dies(server: &mut Mortal, client: &mut Puppet, order: &str, has_begun: impl FnOnce(&Mortal)) {
    client.begin(order);
    has_begun(server);
    server.kill();
    server.relay.let_go();
    let outcome = client.end();
    let expected: &[&str] = if order.starts_with("set") {
        // Done, or not begun, or unknown.
        &["unknown", "unreachable", "stored"]
    } else {
        // A read is believed while its lease lasts.
        &["unreachable", "timed out", "1000000 1 OneSided", "1000 1 OneSided"]
    };
    assert!(expected.contains(&&*outcome), "{order}: {outcome}");
    assert!(["unreachable", "timed out"].contains(&&*client.ask("get other")), "there is no server");
    server.rise();
    soon("that there is a server again", || client.ask("get other") == "none");
    assert_eq!(client.ask("get large"), "none", "and a new one");
    for order in ["set large 1000000 1", "set small 1000 1"] {
        assert_eq!(client.ask(order), "stored");
    }
}

/// Returns the client's state once it has the fabric again.
fn settles(client: &mut Puppet, one_sided: bool) -> (usize, usize) {
    let source = if one_sided { "OneSided" } else { "Message" };
    soon("that the fabric is there again", || {
        let large = client.ask("get large");
        assert!(large.starts_with("1000000 1 "), "{large}");
        !large.ends_with("Socket") && client.ask("get small") == format!("1000 1 {source}")
    });
    client.has()
}

/// Files, and mappings, of one connection with its memory. It may be made again or not yet when a client is looked at.
const ONE_CONNECTION: usize = 3;

/// Nothing is left of the connections before: what is left of each would add up.
fn has_only(client: &mut Puppet, one_sided: bool, before: (usize, usize)) {
    let is_clean = |now: (usize, usize)| now.0 <= before.0 + ONE_CONNECTION && now.1 <= before.1 + ONE_CONNECTION;
    soon(&format!("that it has files and mappings as before, {before:?}"), || is_clean(settles(client, one_sided)));
    let has = client.ask("what it has");
    let (open, registered) = has.split_once(' ').unwrap();
    assert_eq!(open, "0");
    // Registrations are kept for the next time: three values' memory, and not one more with each time.
    assert!(registered.parse::<usize>().unwrap() < 4 * LARGE, "{registered} bytes are registered");
}

#[test]
fn a_server_killed_at_any_byte_is_found_again() {
    let mut server = Mortal::new("iwarp");
    for one_sided in [true, false] {
        let mut client = acquainted(&server.address(), one_sided);
        // It has a connection over TCP, too, once it has needed one. A server that has stopped answers nothing before it dies.
        server.server.stop();
        dies(&mut server, &mut client, "get small", |_| {});
        let before = settles(&mut client, one_sided);
        for (order, _, towards) in READS.into_iter().chain(WRITES).filter(|&(_, with, _)| with == one_sided) {
            for &point in points(order) {
                server.relay.hold(towards, point);
                dies(&mut server, &mut client, order, |server| server.relay.is_held());
                has_only(&mut client, one_sided, before);
            }
        }
    }
}

#[test]
fn server_killed_in_any_shm_step_is_found_again() {
    let mut server = Mortal::new("shm");
    for one_sided in [true, false] {
        let mut client = acquainted(&server.address(), one_sided);
        // It has a connection over TCP, too, once it has needed one. A server that has stopped answers nothing before it dies.
        server.server.stop();
        dies(&mut server, &mut client, "get small", |_| {});
        let before = settles(&mut client, one_sided);
        for (order, ..) in READS.into_iter().chain(WRITES).filter(|&(_, with, _)| with == one_sided) {
            // It has stopped, so what is asked of it is there when it is killed, and not begun.
            server.server.stop();
            dies(&mut server, &mut client, order, |_| std::thread::sleep(Duration::from_millis(20)));
            has_only(&mut client, one_sided, before);
        }
    }
    let left =
        || std::fs::read_dir(server.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert!(left().contains(&"socket".into()), "{:?}", left());
    server.server.signal("-TERM");
    server.server.process.wait().unwrap();
    assert!(!left().contains(&"socket".into()), "{:?}", left());
}

/// Both run on one CPU, beside others: a server that is woken by the greeting answers before its client runs on.
#[test]
fn client_on_the_servers_cpu_reads_the_table() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let all = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap());
    // Of this thread, of those that it starts, and of their processes.
    sched_setaffinity(None, &one).unwrap();
    let mut server = Mortal::new("shm");
    let busy: Vec<_> =
        (0..3).map(|_| Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())).collect();
    for _ in 0..5 {
        let mut client = acquainted(&server.address(), true);
        dies(&mut server, &mut client, "get small", |_| {});
        settles(&mut client, true);
        client.kill();
    }
    drop(busy);
}

/// A process that takes its CPU for itself as far as it may.
struct Busy(std::process::Child);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
