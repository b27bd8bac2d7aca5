//! Starts that are refused, and ends: nothing is left behind.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, SERVER, Server, ask, soon};
use crate::wire::{ADDRESS, HERE, PORT, THERE, Wire, run, tcp};

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
        // No process that the server might start has them.
        for file in std::fs::read_dir(format!("/proc/{}/fdinfo", server.process.id())).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap_or_default();
            if ["map_id:", "prog_id:", "link_id:"].iter().any(|id| text.contains(id)) {
                let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
                assert!(u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0, "{text}");
            }
        }
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
fn programs_follow_their_interface() {
    Wire::run(|wire| {
        let mut command = Command::new(SERVER);
        command.args(["-p", "11211", "-U", "11211", &format!("--xdp={HERE}")]).stderr(Stdio::piped());
        let mut server = Server::run(&mut command);
        let mut client = wire.client();
        let value = "v".repeat(1000);
        ask(&mut server.connect(), format!("set k 0 0 1000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
        let wanted = format!("VALUE k 0 1000\r\n{value}\r\nEND\r\n");
        let kernel_answers = |client: &mut crate::wire::Client| {
            let before = server.stat("kernel_gets");
            client.ask_once("get k\r\n").is_some_and(|answer| answer == wanted) && server.stat("kernel_gets") > before
        };
        assert!(kernel_answers(&mut client));

        // Answers that do not fit any more would be lost for ever.
        wire.run_there(&format!("ip link set {THERE} mtu 600"));
        run(&format!("ip link set {HERE} mtu 600"));
        soon("answers of the socket", || client.ask_once("get k\r\n").is_some_and(|answer| answer == wanted));
        assert!(!kernel_answers(&mut client));
        run(&format!("ip link set {HERE} mtu 1500"));
        wire.run_there(&format!("ip link set {THERE} mtu 1500"));
        soon("answers of the kernel", || kernel_answers(&mut client));

        // By its number, whatever its name.
        run(&format!("ip link set {HERE} down"));
        run(&format!("ip link set {HERE} name another"));
        run("ip link set another address 02:00:00:00:00:77");
        run("ip link set another up");
        wire.run_there(&format!("ip neigh flush dev {THERE}"));
        soon("answers by a new hardware address", || kernel_answers(&mut client));
        run("ip link set another down");
        run(&format!("ip link set another name {HERE}"));
        run(&format!("ip link set {HERE} up"));

        // Addresses come and go.
        run(&format!("ip addr add 10.77.0.9/24 dev {HERE}"));
        let mut second = wire.client_at("10.77.0.9", PORT);
        soon("answers at a new address", || kernel_answers(&mut second));
        run(&format!("ip addr del 10.77.0.9/24 dev {HERE}"));
        soon("no answers at an address that was removed", || second.ask_once("get k\r\n").is_none());
        assert!(kernel_answers(&mut client));
        server.signal("-TERM");
        assert!(server.process.wait().unwrap().success());
        let mut said = String::new();
        server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let is_told = |line: &str| line.contains("10.77.0.9") && line.ends_with(" are answered in the kernel now");
        assert!(said.lines().any(is_told), "{said}");
        assert!(!said.contains("gone"), "{said}");
    });
}

#[test]
fn interface_that_cannot_be_read_is_left() {
    Wire::run(|wire| {
        let mut command = Command::new(SERVER);
        command.args(["-l", ADDRESS, "-p", "11211", "-U", "11211", &format!("--xdp={HERE}")]).stderr(Stdio::piped());
        let mut server = Server::run(&mut command);
        let mut client = wire.client();
        tcp(&server, b"set k 0 0 1\r\nx\r\n");
        let warm = Some("VALUE k 0 1\r\nx\r\nEND\r\n".to_owned());
        // Descriptors are needed to ask about an interface, and here to ask for a count: this connection has one.
        let mut stream = server.connect();
        let mut kernel_answers = || {
            let mut gets = || {
                std::io::Write::write_all(&mut stream, b"stats\r\n").unwrap();
                let mut text = Vec::new();
                while !text.ends_with(b"END\r\n") {
                    let mut piece = [0; 16 << 10];
                    let read = stream.read(&mut piece).unwrap();
                    assert!(read > 0);
                    text.extend_from_slice(&piece[..read]);
                }
                let text = String::from_utf8(text).unwrap();
                text.lines().find_map(|line| line.strip_prefix("STAT kernel_gets ")?.parse::<u64>().ok()).unwrap()
            };
            let before = gets();
            (client.ask_once("get k\r\n") == warm).then(|| gets() > before)
        };
        soon("an answer of the kernel", || kernel_answers() == Some(true));
        let limit = |number: u32| run(&format!("prlimit --pid {} --nofile={number}:4096", server.process.id()));
        limit(3);
        soon("an answer of the socket", || kernel_answers() == Some(false));
        limit(1024);
        soon("an answer of the kernel", || kernel_answers() == Some(true));
        server.signal("-TERM");
        assert!(server.process.wait().unwrap().success());
        let mut said = String::new();
        server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said.matches(&format!("--xdp {HERE}: reading its addresses: ")).count(), 1, "{said}");
    });
}

#[test]
fn interface_that_moves_away_is_left() {
    Wire::run(|_| {
        let server = Server::start(&["-p", "11211", "-U", "11211", &format!("--xdp={HERE}")]);
        let all = in_kernel(&server);
        let mut elsewhere = Command::new("unshare");
        elsewhere.args(["-n", "sh", "-c", "echo ready; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut elsewhere = elsewhere.spawn().unwrap();
        elsewhere.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let number = elsewhere.id();
        run(&format!("ip link set {HERE} netns {number}"));
        // The programs go with it, unless they are taken off.
        soon("an interface without a program", || {
            !run(&format!("nsenter -n -t {number} ip link show {HERE}")).contains("xdp")
        });
        ended(elsewhere);
        let links: Vec<_> = all.into_iter().filter(|one| one.0 == "link").collect();
        all_gone(&links);
        drop(server);
    });
}

#[test]
fn server_killed_while_it_starts_leaves_nothing() {
    Wire::run(|wire| {
        for round in 0..30_u64 {
            let child = start(&["-l", ADDRESS, "-p", "11211", "-U", "11211", &format!("--xdp={HERE}")]);
            std::thread::sleep(Duration::from_millis(round * 5));
            ended(child);
            is_left();
        }
        // Nor is anything at tcx: this would be the second answer, or none.
        let server = wire.server(&[]);
        tcp(&server, b"set k 0 0 1\r\nx\r\n");
        assert_eq!(wire.client().get("k"), "VALUE k 0 1\r\nx\r\nEND\r\n");
        assert_eq!(in_kernel(&server).iter().filter(|one| one.0 == "link").count(), 2);
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
        let mut command = Command::new("sh");
        // Maps do not count as locked memory.
        command.args(["-c", "ulimit -l 0 && exec setpriv \"$@\"", "sh"]);
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
    Wire::run(|wire| {
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
        match rdmakv_bpf::pair::run("ip tuntap add dev rdmakvt mode tun") {
            Ok(_) => refused(&mut server("rdmakvt"), &["--xdp rdmakvt: its packets have no headers of Ethernet"]),
            Err(_) => println!("SKIPPED: an interface that is no Ethernet: this system makes none"),
        }
        match rdmakv_bpf::pair::run("ip link add rdmakvn type dummy") {
            Ok(_) => {
                run("ip addr add 10.79.0.1/24 dev rdmakvn");
                let mut without = Command::new(SERVER);
                without.args(["-p", "11211", "-U", "11211", "--xdp=rdmakvn"]);
                refused(&mut without, &["--xdp rdmakvn: its driver has no XDP (EOPNOTSUPP): --xdp=rdmakvn=generic"]);
            }
            Err(_) => println!("SKIPPED: an interface whose driver has no XDP: this system makes none"),
        }
        // At the other end, as with a card: its driver has a page for a packet.
        wire.run_there(&format!("ip link set {THERE} mtu 9000"));
        refused(
            &mut server(HERE),
            &[&format!("--xdp {HERE}: its driver does not take"), "mtu 1500", "=generic takes any"],
        );
        wire.run_there(&format!("ip link set {THERE} mtu 1500"));
        if has_bpftool() {
            let shown = wire.run_there(&format!("ip link show {THERE}"));
            let id = shown.split_once("prog/xdp id ").unwrap().1.split_whitespace().next().unwrap();
            run(&format!("bpftool net attach xdpgeneric id {id} dev {HERE}"));
            refused(&mut server(HERE), &[&format!("--xdp {HERE}: program {id} is there already")]);
            run(&format!("bpftool net detach xdpgeneric dev {HERE}"));
        }
        let lists = server(HERE);
        let mut without = Command::new("setpriv");
        if without.arg("--version").output().is_err() {
            return println!("SKIPPED: a server without CAP_BPF: setpriv is not installed");
        }
        for (lacks, missing) in [
            ("-bpf,-sys_admin", "CAP_BPF"),
            ("-net_admin,-sys_admin", "CAP_NET_ADMIN"),
            ("-perfmon,-sys_admin", "CAP_PERFMON"),
            ("-all", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON"),
        ] {
            let mut without = Command::new("setpriv");
            without.args([format!("--bounding-set={lacks}"), format!("--inh-caps={lacks}")]);
            without.arg(SERVER).args(lists.get_args());
            let missing = format!("missing: {missing}. Start as root");
            refused(&mut without, &[&format!("--xdp {HERE}: needs CAP_BPF"), &missing, "setcap"]);
        }
        assert!(!has_program());
    });
}
