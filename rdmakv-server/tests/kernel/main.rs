//! The real server with programs at its interface: what the kernel answers is always what the server would answer.

mod coherence;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod races;
mod tour;
mod wire;

use wire::{Wire, tcp};

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
            // The GET above came over TCP.
            assert!(server.stat("kernel_gets") >= in_kernel + 51, "{length}");
            assert_eq!(own(), own_before + 1, "{length}");
        }
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
            ("mg a v\r\n", "VA 1\r\nx\r\n"),
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
