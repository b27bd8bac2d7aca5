//! Starts that are refused, and ends: nothing is left behind.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, SERVER, Server, ask, soon};
use crate::wire::{ADDRESS, HERE, Wire, run, tcp};

fn has_program() -> bool {
    run(&format!("ip link show {HERE}")).contains("xdp")
}

/// Waits until the kernel has taken the programs off.
fn is_left() {
    soon("an interface without a program", || !has_program());
}

/// Returns the numbers of the programs, maps and links that a process has open, and of the maps that its programs use.
fn in_kernel(server: &Server) -> Vec<(&'static str, u32)> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(format!("/proc/{}/fdinfo", server.process.id())).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap_or_default();
        for (kind, field) in [("map", "map_id:"), ("link", "link_id:"), ("prog", "prog_id:")] {
            all.extend(text.lines().filter_map(|line| Some((kind, line.strip_prefix(field)?.trim().parse().unwrap()))));
        }
    }
    let programs: Vec<_> = all.iter().filter(|one| one.0 == "prog").map(|one| one.1).collect();
    for program in programs.into_iter().filter(|_| has_bpftool()) {
        let shown = run(&format!("bpftool prog show id {program}"));
        let maps = shown.split_once("map_ids ").unwrap().1.split_whitespace().next().unwrap();
        all.extend(maps.split(',').map(|map| ("map", map.parse::<u32>().unwrap())));
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn has_bpftool() -> bool {
    Command::new("bpftool").arg("version").output().is_ok()
}

/// Waits until none of these is in the kernel any more, if there is a program that knows.
fn all_gone(all: &[(&str, u32)]) {
    if !has_bpftool() {
        return println!("SKIPPED: which programs and maps are left: bpftool is not installed");
    }
    let is_there = |(kind, id): &(&str, u32)| {
        let shown = Command::new("bpftool").args([kind, "show", "id", &id.to_string()]).output().unwrap();
        shown.status.success()
    };
    soon("a kernel without the server's programs and maps", || !all.iter().any(is_there));
}

#[test]
fn killed_server_leaves_nothing() {
    Wire::run(|wire| {
        let mut server = wire.server(&[]);
        let mut client = wire.client();
        tcp(&server, b"set k 0 0 1\r\nx\r\n");
        assert_eq!(client.get("k"), "VALUE k 0 1\r\nx\r\nEND\r\n");
        let all = in_kernel(&server);
        let count = |kind| all.iter().filter(|one| one.0 == kind).count();
        // XDP and tcx; items, table, head, tally, constants and scratch.
        assert!(count("prog") >= 2 && count("link") == 2, "{all:?}");
        assert!(count("map") >= 5 || !has_bpftool(), "{all:?}");
        assert!(has_program());
        server.process.kill().unwrap();
        server.process.wait().unwrap();
        is_left();
        all_gone(&all);
        assert_eq!(client.ask_once("get k\r\n"), None);
        // The next one finds the interface free.
        let next = wire.server(&[]);
        assert_eq!(client.get("k"), "END\r\n");
        drop(next);
    });
}

#[test]
fn server_that_ends_in_order_leaves_nothing() {
    Wire::run(|wire| {
        let mut server = wire.server(&["-u", "nobody"]);
        let said = server.lines.join("\n");
        for words in
            [&format!("GETs over UDP at {ADDRESS} are answered in the kernel (XDP, {HERE})")[..], "=generic needs none"]
        {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(said.contains("no firewall rule is asked") && said.contains("a BPF map"), "{said}");
        // The server needs no privileges any more.
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{set}: {status}");
        }
        let all = in_kernel(&server);
        server.signal("-TERM");
        assert!(server.process.wait().unwrap().success());
        assert!(!has_program());
        all_gone(&all);
    });
}

#[test]
fn next_server_waits_for_the_one_before() {
    Wire::run(|wire| {
        let server = wire.server(&[]);
        // Another place for clients, at the same interface.
        let second = Command::new(SERVER)
            .args(["-l", ADDRESS, "-p", "11212", "-U", "11212", &format!("--xdp={HERE}")])
            .output()
            .unwrap();
        assert_eq!(second.status.code(), Some(1), "{second:?}");
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        let line = format!("--xdp {HERE}: program ");
        assert!(said.contains(&line) && said.contains(" is there already"), "{said}");
        let waiting = std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                drop(server);
            });
            let mut next = start(&["-l", ADDRESS, "-p", "11213", "-U", "11213", &format!("--xdp={HERE}")]);
            ending.join().unwrap();
            soon("the next one's program", has_program);
            std::thread::sleep(Duration::from_millis(100));
            assert!(next.try_wait().unwrap().is_none(), "the next one gave up");
            next
        });
        ended(waiting);
    });
}

fn start(arguments: &[&str]) -> Child {
    Command::new(SERVER).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(mut process: Child) -> Output {
    let _ = process.kill();
    process.wait_with_output().unwrap()
}

#[test]
fn stopped_server_is_answered_for() {
    Wire::run(|wire| {
        let server = wire.server(&[]);
        let mut client = wire.client();
        tcp(&server, b"set k 0 0 1\r\nx\r\nset gone 0 1 1\r\ny\r\n");
        let warm = "VALUE k 0 1\r\nx\r\nEND\r\n";
        assert_eq!(client.get("k"), warm);
        server.stop();
        // Nothing changes while all of the server stands still; hits go on.
        for _ in 0..100 {
            assert_eq!(client.get("k"), warm);
        }
        assert_eq!(client.ask_once("get unknown\r\n"), None);
        // Time goes on: what has expired is not answered.
        let begun = Instant::now();
        while client.ask_once("get gone\r\n").is_some() {
            assert!(begun.elapsed() < PATIENCE, "an expired item is answered for ever");
        }
        server.signal("-CONT");
        assert_eq!(client.get("unknown"), "END\r\n");
        assert_eq!(client.get("gone"), "END\r\n");
        assert_eq!(client.get("k"), warm);
    });
}

#[test]
fn interface_may_go_first() {
    Wire::run(|_| {
        let mut command = Command::new(SERVER);
        command.args(["-p", "11211", "-U", "11211", &format!("--xdp={HERE}")]).stderr(Stdio::piped());
        let mut server = Server::run(&mut command);
        let mut stream = crate::common::to("127.0.0.1:11211");
        ask(&mut stream, b"set k 0 0 1\r\nx\r\n", b"STORED\r\n");
        let settings = |stream: &mut std::net::TcpStream| {
            std::io::Write::write_all(stream, b"stats settings\r\n").unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"END\r\n") {
                let mut piece = [0; 4096];
                let read = stream.read(&mut piece).unwrap();
                assert!(read > 0);
                text.extend_from_slice(&piece[..read]);
            }
            String::from_utf8(text).unwrap()
        };
        assert!(settings(&mut stream).contains(&format!("STAT xdp {HERE}\r\n")));
        let all = in_kernel(&server);
        run(&format!("ip link delete {HERE}"));
        soon("the remark", || settings(&mut stream).contains(&format!("STAT xdp {HERE} (gone)\r\n")));
        // It serves as before.
        ask(&mut stream, b"get k\r\n", b"VALUE k 0 1\r\nx\r\nEND\r\n");
        server.signal("-TERM");
        assert!(server.process.wait().unwrap().success());
        let mut said = String::new();
        server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said.matches(&format!("--xdp {HERE}: the interface is gone")).count(), 1, "{said}");
        all_gone(&all);
    });
}

#[test]
fn generic_mode_answers_without_xdp() {
    Wire::run(|wire| {
        let generic = format!("--xdp={HERE}=generic");
        let server = Server::start(&["-l", ADDRESS, "-p", "11211", "-U", "11211", &generic]);
        let mut client = wire.client();
        assert!(!has_program());
        for length in [1, 1300] {
            let value = "v".repeat(length);
            tcp(&server, format!("set k 0 0 {length}\r\n{value}\r\n").as_bytes());
            let before = server.stat("kernel_gets");
            for _ in 0..20 {
                assert_eq!(client.get("k"), format!("VALUE k 0 {length}\r\n{value}\r\nEND\r\n"));
            }
            assert!(server.stat("kernel_gets") >= before + 20, "{length}");
        }
    });
}

#[test]
fn servers_in_generic_mode_share_an_interface() {
    Wire::run(|wire| {
        let start = |port: &str| {
            let generic = format!("--xdp={HERE}=generic");
            Server::start(&["-l", ADDRESS, "-p", port, "-U", port, &generic])
        };
        let servers = ["11211", "11212"].map(start);
        for (server, port) in servers.iter().zip([11211, 11212]) {
            tcp(server, format!("set k 0 0 5\r\n{port}\r\n").as_bytes());
            let mut client = wire.client_of(port);
            for _ in 0..20 {
                assert_eq!(client.get("k"), format!("VALUE k 0 5\r\n{port}\r\nEND\r\n"));
            }
            assert!(server.stat("kernel_gets") >= 20, "{port}");
        }
    });
}

#[test]
fn three_capabilities_are_enough() {
    if Command::new("setpriv").arg("--version").output().is_err() {
        return println!("SKIPPED: a server with three capabilities: setpriv is not installed");
    }
    Wire::run(|wire| {
        let three = "+bpf,+net_admin,+perfmon";
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all,+bpf,+net_admin,+perfmon",
        ]);
        command.arg(format!("--inh-caps=-all,{three}")).arg(format!("--ambient-caps=-all,{three}")).arg(SERVER);
        command.args(["-l", ADDRESS, "-p", "11211", "-U", "11211", &format!("--xdp={HERE}")]);
        let server = Server::run(&mut command);
        let mut client = wire.client();
        tcp(&server, b"set k 0 0 1\r\nx\r\n");
        assert_eq!(client.get("k"), "VALUE k 0 1\r\nx\r\nEND\r\n");
        assert!(server.stat("kernel_gets") >= 1);
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
        assert!(
            ["CapEff", "CapPrm", "CapAmb"].iter().all(|set| status.contains(&format!("{set}:\t0000000000000000"))),
            "{status}"
        );
    });
}

#[test]
fn refused_starts_name_the_cause() {
    Wire::run(|_| {
        let refused = |command: &mut Command, words: &[&str]| {
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        };
        let flags = ["-l", ADDRESS, "-p", "11211", "-U", "11211"];
        let server = |xdp: &str| {
            let mut command = Command::new(SERVER);
            command.args(flags).arg(format!("--xdp={xdp}"));
            command
        };
        refused(&mut server("no-such-one"), &["--xdp no-such-one:"]);
        let lists = server(HERE);
        let mut without = Command::new("setpriv");
        if without.arg("--version").output().is_err() {
            return println!("SKIPPED: a server without CAP_BPF: setpriv is not installed");
        }
        let mut without = Command::new("setpriv");
        without.args(["--bounding-set=-bpf,-sys_admin", "--inh-caps=-bpf,-sys_admin"]);
        without.arg(SERVER).args(lists.get_args());
        refused(&mut without, &[&format!("--xdp {HERE}: needs CAP_BPF"), "missing: CAP_BPF.", "setcap"]);
        assert!(!has_program());
    });
}
