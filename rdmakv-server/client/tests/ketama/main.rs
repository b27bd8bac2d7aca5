//! Every key goes to the server to which libmemcached sends it.

use rand::{RngExt, SeedableRng};
use rdmakv_client::{Client, Continuum, Options};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A host or path, a port or 0, a weight.
type Named = (String, u16, u32);

fn client(continuum: Continuum, servers: &[Named]) -> Client {
    let texts = servers.iter().map(|(host, port, weight)| match (host.starts_with('/'), host.contains(':')) {
        (true, _) => format!("unix:{host},weight={weight}"),
        (_, true) => format!("tcp:[{host}]:{port},weight={weight}"),
        _ => format!("shm:@not-there-{port},tcp:{host}:{port},weight={weight}"),
    });
    Client::with_options(texts, Options { continuum, ..Options::default() }).unwrap()
}

fn named(servers: &[(&str, u16, u32)]) -> Vec<Named> {
    servers.iter().map(|&(host, port, weight)| (host.to_owned(), port, weight)).collect()
}

/// The placement by libmemcached 1.1.4 of key-0 to key-63.
#[test]
fn keys_go_where_libmemcached_was_seen_to_send_them() {
    for (continuum, servers, said) in [
        (
            Continuum::Plain,
            named(&[("10.0.0.1", 11211, 1), ("10.0.0.2", 11211, 1), ("10.0.0.3", 11212, 1)]),
            "0210012201112101110001101222110002010121102012221210021022121120",
        ),
        (
            Continuum::Weighted,
            named(&[("10.0.0.1", 11211, 1), ("10.0.0.2", 11211, 3), ("10.0.0.3", 11212, 2), ("/tmp/a.sock", 0, 2)]),
            "1203313212300031233111211110311333011011131331121131101233131201",
        ),
        (
            Continuum::Weighted,
            named(&[
                ("a.example", 11211, 1),
                ("b.example", 11211, 1),
                ("c.example", 22122, 1),
                ("d.example", 11211, 1),
                ("e.example", 11211, 1),
            ]),
            "2320001313402310230221021414302122110122043411322321122314222020",
        ),
        (
            Continuum::PlainMd5,
            named(&[("10.0.0.1", 11211, 1), ("10.0.0.2", 11211, 1), ("10.0.0.3", 11212, 1)]),
            "1002200011012022020011220101121110001012120201121021222200200011",
        ),
        // The points count weights then.
        (
            Continuum::Plain,
            named(&[("::1", 11213, 5), ("10.0.0.2", 11213, 1)]),
            "0000100111001000000000000011000000010111000101000000001000001100",
        ),
    ] {
        let client = client(continuum, &servers);
        let ours: String = (0..64).map(|key| client.server_of(format!("key-{key}")).to_string()).collect();
        assert_eq!(ours, said, "{servers:?}");
    }
}

/// libmemcached itself, asked by a program that is built here.
#[test]
fn keys_go_where_libmemcached_sends_them() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("ring");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ketama/ring.c");
    let built =
        Command::new("cc").arg(&source).arg("-o").arg(&program).arg("-lmemcached").stderr(Stdio::null()).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: libmemcached's own ring: it does not build (Debian: apt-get install libmemcached-dev)");
        return;
    }
    let mut random = rand::rngs::StdRng::seed_from_u64(11);
    for round in 0..12 {
        let (name, continuum) =
            [("weighted", Continuum::Weighted), ("plain", Continuum::Plain), ("md5", Continuum::PlainMd5)][round % 3];
        let servers: Vec<Named> = (0..random.random_range(2..20))
            .map(|at| {
                // Without weights, libmemcached takes another way.
                let weight = if round % 2 == 0 { random.random_range(1..30) } else { 1 };
                match random.random_range(0..4) {
                    0 => (format!("/tmp/{round}/{at}.sock"), 0, weight),
                    1 => (format!("10.0.{round}.{at}"), 11211, weight),
                    2 => (format!("fe80::{at}"), 11211, weight),
                    _ => (format!("cache-{at}.example"), random.random_range(1..=u16::MAX), weight),
                }
            })
            .collect();
        let mut key = || {
            let mut key: Vec<u8> = (0..random.random_range(1..60)).map(|_| random.random_range(b'!'..=255)).collect();
            key.retain(|&byte| byte != 127);
            key.push(b'k');
            key
        };
        let keys: Vec<Vec<u8>> = (0..2000).map(|_| key()).collect();
        let mut ring = Command::new(&program)
            .arg(name)
            .args(servers.iter().flat_map(|(host, port, weight)| [host.clone(), port.to_string(), weight.to_string()]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = ring.stdin.take().unwrap();
        let text = keys.join(&b'\n');
        let telling = std::thread::spawn(move || stdin.write_all(&text).unwrap());
        let said = String::from_utf8(ring.wait_with_output().unwrap().stdout).unwrap();
        telling.join().unwrap();
        let client = client(continuum, &servers);
        let theirs: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
        let ours: Vec<usize> = keys.iter().map(|key| client.server_of(key)).collect();
        assert_eq!(theirs.len(), keys.len());
        let differ = ours.iter().zip(&theirs).filter(|(our, their)| our != their).count();
        assert_eq!(differ, 0, "of {} keys, {continuum:?}, {servers:?}", keys.len());
    }
}
