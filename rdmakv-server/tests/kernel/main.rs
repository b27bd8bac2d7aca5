//! The real server with programs at its interface: what the kernel answers is always what the server would answer.

mod coherence;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod races;
mod tour;
mod wire;

use common::Server;
use wire::{ADDRESS, HERE, PORT, THERE, Wire, run, tcp};

#[test]
fn kernel_answers_gets_without_the_server() {
    Wire::run(|wire| {
        let server = wire.server(&["-u", "nobody"]);
        let mut client = wire.client();
        for (length, flags) in [(1, 0), (32, 7), (200, u32::MAX), (1024, 0), (1300, 12)] {
            let value = "v".repeat(length);
            tcp(&server, format!("set k {flags} 0 {length}\r\n{value}\r\n").as_bytes());
            let own = || server.stat("cmd_get") - server.stat("kernel_gets");
            let (in_kernel, own_before) = (server.stat("kernel_gets"), own());
            for _ in 0..50 {
                assert_eq!(client.get("k"), format!("VALUE k {flags} {length}\r\n{value}\r\nEND\r\n"));
            }
            let gets = client.ask("gets k\r\n");
            assert_eq!(gets, tcp(&server, b"gets k\r\n"));
            let meta = "mg k s v q Otoken f t c k\r\n";
            assert_eq!(client.ask(meta), tcp(&server, meta.as_bytes()));
            // The GETs above came over TCP.
            assert!(server.stat("kernel_gets") >= in_kernel + 52, "{length}");
            assert_eq!(own(), own_before + 2, "{length}");
        }
        assert!(server.stat("cmd_meta") >= 10);
        // Seconds that are left, as the server counts them.
        tcp(&server, b"set k 0 1000 1\r\nx\r\n");
        let left = |answer: String| answer.trim().strip_prefix("HD t").unwrap().parse::<u64>().unwrap();
        let (before, own) = (server.stat("kernel_gets"), left(tcp(&server, b"mg k t\r\n")));
        let in_kernel = left(client.ask("mg k t\r\n"));
        assert!(server.stat("kernel_gets") > before && (own - 60..=own).contains(&in_kernel), "{own} {in_kernel}");
        assert_eq!(server.stat("get_hits"), server.stat("cmd_get"));
        tcp(&server, b"stats reset\r\n");
        assert_eq!((server.stat("kernel_gets"), server.stat("cmd_get")), (0, 0));
    });
}

#[test]
fn socket_answers_the_rest() {
    Wire::run(|wire| {
        let server = wire.server(&[]);
        let mut client = wire.client();
        let value = "v".repeat(5000);
        let long = "k".repeat(250);
        tcp(&server, format!("set a 0 0 1\r\nx\r\nset b 0 0 5000\r\n{value}\r\nset {long} 0 0 1\r\ny\r\n").as_bytes());
        assert_eq!(client.get(&long), format!("VALUE {long} 0 1\r\ny\r\nEND\r\n"));
        let in_kernel = server.stat("kernel_gets");
        assert!(in_kernel > 0);
        for (request, answer) in [
            ("get nothing\r\n", "END\r\n"),
            ("get b\r\n", &format!("VALUE b 0 5000\r\n{value}\r\nEND\r\n")),
            ("get a a\r\n", "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n"),
            ("get a\r\nmn\r\n", "VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n"),
            ("mg a v h\r\n", "VA 1 h1\r\nx\r\n"),
            ("gat 100 a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
            ("set a 0 0 1\r\nz\r\n", "STORED\r\n"),
        ] {
            assert_eq!(client.ask(request), answer, "{request:?}");
        }
        assert_eq!(server.stat("kernel_gets"), in_kernel);
        assert!(server.stat("kernel_passed_unknown") >= 2);
        assert_eq!(client.get("a"), "VALUE a 0 1\r\nz\r\nEND\r\n");
        // A datagram that is lost is sent again.
        assert!(server.stat("kernel_gets") > in_kernel);
    });
}

#[test]
fn all_interfaces_and_families_are_answered() {
    Wire::run(|wire| {
        run(&format!("ip link add rdmakvc type veth peer name rdmakvd netns {}", wire.path()));
        for line in [
            "ip addr add 10.78.0.1/24 dev rdmakvc",
            "ip addr add fd78::1/64 dev rdmakvc nodad",
            "ip link set rdmakvc up",
            &format!("ip addr add fd77::1/64 dev {HERE} nodad"),
        ] {
            run(line);
        }
        for line in [
            "ip addr add 10.78.0.2/24 dev rdmakvd",
            "ip addr add fd78::2/64 dev rdmakvd nodad",
            "ip link set rdmakvd up",
            &format!("ip addr add fd77::2/64 dev {THERE} nodad"),
        ] {
            wire.run_there(line);
        }
        let server = Server::start(&["-p", "11211", "-U", "11211", &format!("--xdp={HERE},rdmakvc=generic")]);
        let mut clients =
            [ADDRESS, "10.78.0.1", "fd77::1", "fd78::1"].map(|address| (address, wire.client_at(address, PORT)));
        for round in 0..20 {
            let value = "v".repeat(1 + round * 60);
            tcp(&server, format!("set k 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
            for (address, client) in &mut clients {
                let before = server.stat("kernel_gets");
                assert_eq!(client.get("k"), format!("VALUE k 0 {}\r\n{value}\r\nEND\r\n", value.len()), "{address}");
                assert!(server.stat("kernel_gets") > before, "{address}: the kernel does not answer");
            }
        }
    });
}
