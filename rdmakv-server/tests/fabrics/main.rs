//! Clients over fabrics, against the real server: what they are told, what they can read by themselves, and what becomes of them.

// Each module uses some of it.
#[path = "../common/mod.rs"]
mod common;

mod apart;
mod client;
mod cut;
mod far;
mod hostile;
mod kills;
mod puppet;
mod queries;
mod quiet;
mod relay;
mod rights;
mod steps;
mod successors;
mod terms;
mod together;

use client::{Client, Shm, Way, cache};
use common::Server;

/// Returns a server's address over this fabric.
fn fabric(server: &Server, kind: &str) -> String {
    server.fabric(kind)
}

/// Runs a test over shared memory and over iWARP, each against a server of its own.
macro_rules! on_shm_and_iwarp {
    ($($(#[$attribute:meta])* $name:ident($flags:expr) = $test:ident;)*) => {
        mod shm {
            $($(#[$attribute])* #[test] fn $name() {
                let server = crate::common::Server::on_a_free_port($flags);
                let address = crate::fabric(&server, "shm");
                super::$test(&server, &crate::client::Shm::new(), &address);
            })*
        }
        mod iwarp {
            $($(#[$attribute])* #[test] fn $name() {
                let flags: &[&str] = $flags;
                let server = crate::common::Server::on_a_free_port(&[flags, &["--fabric", "iwarp:127.0.0.1:0"]].concat());
                let address = crate::fabric(&server, "iwarp");
                super::$test(&server, &crate::client::Iwarp::new(), &address);
            })*
        }
    };
}
use on_shm_and_iwarp;

/// Runs a test on both of these fabrics; and on an RDMA device where there is one.
macro_rules! on_both {
    ($($(#[$attribute:meta])* $name:ident($flags:expr) = $test:ident;)*) => {
        crate::on_shm_and_iwarp! { $($(#[$attribute])* $name($flags) = $test;)* }
        #[cfg(any(feature = "verbs", feature = "verbs-linked"))]
        mod verbs {
            $($(#[$attribute])* #[test] fn $name() {
                let Some(host) = crate::client::Verbs::address() else { return };
                let server = crate::client::Verbs::server(&host, $flags);
                let address = crate::fabric(&server, "verbs");
                super::$test(&server, &crate::client::Verbs::new(&address), &address);
            })*
        }
    };
}
use on_both;

/// The smallest thing that can be seen.
#[test]
fn a_server_says_where_it_listens_and_who_it_is() {
    let server = Server::on_a_free_port(&["--tag-lease", "2s", "--eager", "4k"]);
    let way = Shm::new();
    let cache = cache(&way);
    let mut client = Client::silent(&way, &cache, &fabric(&server, "shm")).unwrap();
    let welcome = client.hello();
    assert_eq!((welcome.version, welcome.lease_ms, welcome.eager, welcome.largest), (1, 2000, 4096, 1 << 20));
    assert!(welcome.incarnation != 0 && !way.memory().is_null());
    assert!(server.lines.iter().any(|line| line.contains("of this user, and can read every item")));
}
