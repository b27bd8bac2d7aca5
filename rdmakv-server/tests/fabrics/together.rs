//! The client of this package and the server, over the fabrics: what one stores the other finds, by whatever way.

use rdmakv_client::{Client, Options, Source};
use rdmakv_proto::eager;

use super::common::{PATIENCE, Server, ask};
use super::fabric;

fn on_each(flags: &[&str], test: impl Fn(&Server, &str)) {
    let server = Server::on_a_free_port(flags);
    test(&server, &fabric(&server, "shm"));
    let server = Server::on_a_free_port(&[flags, &["--fabric", "iwarp:127.0.0.1:0"]].concat());
    test(&server, &fabric(&server, "iwarp"));
}

fn client(address: &str, one_sided: bool) -> Client {
    let options = Options { one_sided, timeout: PATIENCE, connect_timeout: PATIENCE, ..Options::default() };
    Client::with_options([address], options).unwrap()
}

fn value(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 255) as u8).collect()
}

#[test]
fn values_are_asked_for_once_and_read_from_then_on() {
    on_each(&["-I", "4m", "-m", "128", "--tag-lease", "60s"], |server, address| {
        let mut client = client(address, true);
        for size in [0, 1, 1000, 8192, 8193, 32_768, 32_769, 100_000, 1_000_000] {
            let (key, value) = (format!("key-{size}"), value(size));
            assert!(client.set(&key, &value, ()).unwrap().is_stored(), "{address}, {size}");
            let _ = client.get(&key).unwrap().unwrap();
            let again = client.get(&key).unwrap().unwrap();
            assert_eq!((&again[..], again.source()), (&value[..], Source::OneSided), "{address}, {size}");
        }
        // A value that another client stores over TCP is seen at once.
        ask(&mut server.connect(), b"set key-1000 7 0 3\r\nabc\r\n", b"STORED\r\n");
        let now = client.get("key-1000").unwrap().unwrap();
        assert_eq!((&now[..], now.flags()), (&b"abc"[..], 7));
        ask(&mut server.connect(), b"delete key-1000\r\n", b"DELETED\r\n");
        assert!(client.get("key-1000").unwrap().is_none());
        assert!(client.counters().one_sided >= 6);
    });
}

#[test]
fn eager_limit_separates_messages_and_transfers() {
    for (eager, limit) in [("0", 0), ("5k", 5 << 10), ("64k", eager::MOST)] {
        on_each(&["--eager", eager], |server, address| {
            let mut client = client(address, false);
            let pulled = format!("{}_sets_pulled", address.split(':').next().unwrap());
            for (size, source, sets) in [(limit, Source::Message, 0), (limit + 1, Source::Transfer, 1)] {
                assert!(client.set("key", value(size), ()).unwrap().is_stored());
                assert_eq!(server.stat(&pulled), sets, "{address}, {size}");
                // The second time the size is known.
                for _ in 0..2 {
                    let got = client.get("key").unwrap().unwrap();
                    assert_eq!((&got[..], got.source()), (&value(size)[..], source), "{address}, {size}");
                }
            }
        });
    }
}

#[test]
fn commands_do_what_they_do_over_tcp() {
    on_each(&[], |_, address| {
        let mut client = client(address, true);
        assert!(client.add("a", "1", ()).unwrap().is_stored());
        assert!(!client.add("a", "2", ()).unwrap().is_stored());
        assert_eq!(client.incr("a", 41).unwrap(), Some(42));
        assert!(client.append("a", "!").unwrap().is_stored());
        let found = client.gets("a").unwrap().unwrap();
        assert_eq!(&found[..], b"42!");
        assert!(client.cas("a", "new", found.version(), ()).unwrap().is_stored());
        assert!(!client.cas("a", "newer", found.version(), ()).unwrap().is_stored());
        assert!(client.delete("a").unwrap() && !client.delete("a").unwrap());
        assert!(client.get("a").unwrap().is_none());
    });
}
