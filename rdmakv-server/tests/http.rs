//! Watching the server: metrics as Prometheus wants them, health, the overview's numbers; and clients that are slow, hostile
//! or many.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{PATIENCE, Server, ask, soon, to};
use rdmakv_client::{Client, Options};
use serde_json::Value;

fn client(address: &str) -> Client {
    let options = Options { timeout: PATIENCE, connect_timeout: PATIENCE, ..Options::default() };
    Client::with_options([address], options).unwrap()
}

fn server(more: &[&str]) -> Server {
    Server::on_a_free_port(&[&["--http", "127.0.0.1:0"], more].concat())
}

/// All that comes until the end, or until nothing more does.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn talk(server: &Server) {
    let mut stream = server.connect();
    ask(&mut stream, b"set a 0 0 1\r\nx\r\nset big 0 0 3000\r\n", b"STORED\r\n");
    stream.write_all(&[b'x'; 3000]).unwrap();
    ask(&mut stream, b"\r\n", b"STORED\r\n");
    for _ in 0..400 {
        ask(&mut stream, b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    }
    ask(&mut stream, b"get none\r\ndelete none\r\nincr a 1\r\n", b"END\r\nNOT_FOUND\r\nCLIENT_ERROR");
}

/// Names, types and samples, where the text keeps to the format and to the conventions.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut types, mut helped, mut samples) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a metric is explained");
            assert!(help.ends_with('.') && helped.insert(name.to_owned()), "{line}");
            family = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            types.insert(name.to_owned(), kind.to_owned());
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let bare = name.split('{').next().unwrap();
            assert!(bare.starts_with("rdmakv_") && bare.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
            let of = if types[&family] == "histogram" { bare.rsplit_once('_').unwrap().0 } else { bare };
            assert_eq!(of, family, "samples follow the type");
            assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line} is there twice");
        }
    }
    samples
}

#[test]
fn metrics_suit_prometheus_and_match_requests() {
    let server = server(&[]);
    talk(&server);
    let wanted = [
        ("gets_total{result=\"hit\"}", 400.0),
        ("gets_total{result=\"miss\"}", 1.0),
        ("sets_total", 2.0),
        ("deletes_total{result=\"miss\"}", 1.0),
        ("items", 2.0),
        ("connections_max", 1024.0),
        ("memory_limit_bytes", f64::from(64 << 20)),
        ("accepting", 1.0),
    ];
    let (mut text, mut metrics) = (String::new(), BTreeMap::new());
    // Workers publish their counts after they have answered.
    soon(&format!("all of {wanted:?}"), || {
        let (status, body) = server.http("/metrics");
        assert_eq!(status, 200);
        (metrics, text) = (parse(&body), body);
        wanted.iter().all(|(name, value)| metrics[&format!("rdmakv_{name}")] == *value)
    });
    let classes: Vec<&String> = metrics.keys().filter(|name| name.starts_with("rdmakv_class_items{")).collect();
    assert_eq!(classes.len(), 2, "an item in each of two classes");
    // Of 400 gets one after the other some were measured, and each is in the buckets above it.
    let name = |part: &str, more: &str| {
        format!("rdmakv_sampled_turn_duration_seconds_{part}{{transport=\"socket\",asked=\"get\"{more}")
    };
    let count = metrics[&name("count", "}")];
    assert!((1.0..100.0).contains(&count), "{count}");
    assert!(metrics[&name("sum", "}")] > 0.0);
    assert_eq!(metrics[&name("bucket", ",le=\"+Inf\"}")], count);
    let buckets = text.lines().filter(|line| line.starts_with(&name("bucket", "")));
    let buckets: Vec<f64> = buckets.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert!(buckets.is_sorted() && buckets.len() > 20, "{buckets:?}");
}

#[test]
fn prometheus_own_tool_finds_nothing_to_improve() {
    let server = server(&[]);
    talk(&server);
    let tool = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut tool = match tool {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: promtool is not installed (Debian: prometheus)");
            return;
        }
        tool => tool.unwrap(),
    };
    tool.stdin.take().unwrap().write_all(server.http("/metrics").1.as_bytes()).unwrap();
    let checked = tool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_overview_has_its_policy_and_its_numbers() {
    let server = server(&["-t", "3"]);
    let mut stream = to(&server.address("http"));
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let page = rest(&mut stream);
    let policy = page.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: ")).expect("there is one");
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    talk(&server);
    let numbers = |since: u64| -> Value {
        let (status, body) = server.http(&format!("/overview.json?since={since}"));
        assert_eq!(status, 200);
        serde_json::from_str(&body).unwrap()
    };
    soon("all hits", || numbers(0)["totals"]["hits"] == 400);
    let all = numbers(0);
    assert_eq!(all["server"]["threads"], 3);
    assert_eq!(all["classes"].as_array().unwrap().len(), 2);
    let last = loop {
        let now = numbers(0);
        match now["points"].as_array().unwrap().last() {
            Some(point) => break point["number"].as_u64().unwrap(),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let newer = numbers(last);
    assert!(newer["points"].as_array().unwrap().iter().all(|point| point["number"].as_u64().unwrap() > last));
    // A page that has seen more than there is talks to another server than before.
    assert_eq!(numbers(last + 1000)["points"][0]["number"], 1);
}

#[test]
fn requests_over_a_fabric_are_measured() {
    let name = format!("shm:@rdmakv-http-{}", std::process::id());
    let server = server(&["--fabric", &name, "--fabric", "iwarp:127.0.0.1:0"]);
    for transport in ["shm", "iwarp"] {
        let mut client = client(&server.fabric(transport));
        for key in 0..1000 {
            let _ = client.set(format!("{transport}:{key}"), b"a value", ()).unwrap();
            assert!(client.get(format!("{transport}:{key}")).unwrap().is_some());
            // Nothing is there: that is asked by a message, each time.
            assert!(client.get(format!("none:{key}")).unwrap().is_none());
        }
    }
    for (transport, asked) in [("shm", "get"), ("shm", "set"), ("iwarp", "get"), ("iwarp", "set")] {
        let name = |part| {
            format!("rdmakv_sampled_turn_duration_seconds_{part}{{transport=\"{transport}\",asked=\"{asked}\"}}")
        };
        let mut metrics = BTreeMap::new();
        soon("a measured request", || {
            metrics = parse(&server.http("/metrics").1);
            metrics.get(&name("count")).is_some_and(|&count| count > 0.0)
        });
        let count = metrics[&name("count")];
        assert!((1.0..100.0).contains(&count), "{transport}, {asked}: {count} of 2,000 gets at most and 1,000 sets");
        assert!(metrics[&name("sum")] > 0.0);
    }
    // And the overview has latencies of them, though no client came over a socket.
    soon("a point with latencies", || {
        let numbers: Value = serde_json::from_str(&server.http("/overview.json").1).unwrap();
        let bars = numbers["bars"].as_array().unwrap();
        let points = numbers["points"].as_array().unwrap();
        !bars.is_empty() && points.iter().any(|point| point["p50"].as_f64().is_some_and(|seconds| seconds > 0.0))
    });
}

#[test]
fn one_sided_reads_are_rates_on_the_overview() {
    let name = format!("shm:@rdmakv-rates-{}", std::process::id());
    for fabric in [name.as_str(), "iwarp:127.0.0.1:0"] {
        let server = server(&["--fabric", fabric]);
        let transport = fabric.split(':').next().unwrap();
        let mut client = client(&server.fabric(transport));
        let _ = client.set("key", b"a value", ()).unwrap();
        soon("a rate of one-sided reads", || {
            for _ in 0..100 {
                assert!(client.get("key").unwrap().is_some());
            }
            let numbers: Value = serde_json::from_str(&server.http("/overview.json").1).unwrap();
            let points = numbers["points"].as_array().unwrap();
            let seen =
                |point: &Value| ["one_sided", "hits"].iter().all(|rate| point[rate].as_f64().is_some_and(|n| n > 0.0));
            numbers["totals"]["one_sided"].as_u64().unwrap() > 0 && points.iter().any(seen)
        });
        let numbers: Value = serde_json::from_str(&server.http("/overview.json").1).unwrap();
        let totals = &numbers["totals"];
        // Over shm clients find items in a table, without tags.
        assert!(transport == "shm" || totals["registered"].as_u64().unwrap() > 0, "what clients read is registered");
        assert!(totals["registered"].as_u64() <= totals["registered_limit"].as_u64());
    }
}

#[test]
fn health_is_good_until_the_end_begins() {
    let mut server = server(&[]);
    assert_eq!(server.http("/health"), (200, "ok\n".into()));
    let mut busy = server.connect();
    ask(&mut busy, b"mn\r\nset a 0 0 4\r\nab", b"MN\r\n");
    server.signal("-USR1");
    soon("the end", || server.http("/health").0 == 503);
    assert!(server.http("/health").1.starts_with("finishing"));
    assert_eq!(parse(&server.http("/metrics").1)["rdmakv_accepting"], 0.0);
    server.signal("-TERM");
    drop(busy);
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn requests_pipeline_and_wrong_ones_get_errors() {
    let server = server(&[]);
    let address = server.address("http");
    let say = |request: &str| {
        let mut stream = to(&address);
        stream.write_all(request.as_bytes()).unwrap();
        rest(&mut stream)
    };
    let get = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    let said = say(&format!("{}HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n{get}", get.repeat(3)));
    assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 4, "{said}");
    assert_eq!(said.matches("\r\n\r\nok\n").count(), 3, "to HEAD there is no body: {said}");
    for (request, status) in [
        ("GET /nothing HTTP/1.0\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("stats\r\n\r\n", "400"),
        (&format!("GET /{} HTTP/1.1\r\n", "a".repeat(9000)), "431"),
        (&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)), "431"),
    ] {
        let said = say(request);
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{}: {said}", &request[..request.len().min(40)]);
    }
}

#[test]
fn who_asks_without_end_leaves_room_for_others() {
    let server = server(&[]);
    let greedy = to(&server.address("http"));
    let (mut reader, mut writer) = (greedy.try_clone().unwrap(), greedy.try_clone().unwrap());
    let asking = std::thread::spawn(move || {
        let many = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
        while writer.write_all(&many).is_ok() {}
    });
    let (much, has_much) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        let mut read = 0;
        while let Ok(some @ 1..) = reader.read(&mut bytes) {
            read += some;
            if read > 10_000 {
                let _ = much.send(());
            }
        }
    });
    has_much.recv().expect("it is answered, too");
    for _ in 0..20 {
        assert_eq!(server.http("/health").0, 200);
    }
    greedy.shutdown(std::net::Shutdown::Both).unwrap();
    asking.join().unwrap();
    reading.join().unwrap();
}

#[test]
fn those_who_dawdle_keep_nobody_from_being_answered() {
    let server = server(&["-t", "1"]);
    let address = server.address("http");
    // Some send nothing, some half of a request, some ask for much and read nothing.
    let mut dawdlers: Vec<TcpStream> = Vec::new();
    for n in 0..300 {
        let mut stream = to(&address);
        let part: &[u8] = [&b""[..], b"GET /metr", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"][n % 3];
        let times = if n % 3 == 2 { 100 } else { 1 };
        let _ = stream.write_all(&part.repeat(times));
        dawdlers.push(stream);
        if n % 50 == 0 {
            assert_eq!(server.http("/health").0, 200);
        }
    }
    assert_eq!(server.http("/metrics").0, 200);
    ask(&mut server.connect(), b"mn\r\n", b"MN\r\n");
    // The server does not keep them all.
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count();
    assert!(descriptors < 120, "{descriptors}");
    // The connection that has waited longest was closed, not the newest.
    dawdlers[297].set_nonblocking(true).unwrap();
    let still = dawdlers[297].read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(still, Err(ErrorKind::WouldBlock));
    assert_eq!(rest(&mut dawdlers[0]), "");
    drop(dawdlers);
    assert_eq!(server.http("/health").0, 200);
}

#[test]
fn only_names_of_this_server_are_answered() {
    let server = server(&["--http-host", "kv.example.com,cache1.example.com", "--http-host", "b.example.com"]);
    let address = server.address("http");
    let status = |path: &str, host: &str| {
        let mut stream = to(&address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let answer = rest(&mut stream);
        (answer.split(' ').nth(1).unwrap().to_owned(), answer)
    };
    for path in ["/", "/overview.json", "/metrics", "/nothing"] {
        let (refused, answer) = status(path, "evil.example:9150");
        assert!(refused == "421" && answer.contains("--http-host"), "{path}: {answer}");
        assert!(!answer.contains("rdmakv_"), "{path}: {answer}");
    }
    // It tells nothing else, and its clients may know the server by any name.
    assert_eq!(status("/health", "evil.example").0, "200");
    for host in [&address, "localhost:9150", "kv.example.com:9150", "CACHE1.example.com", "b.example.com"] {
        assert_eq!(status("/metrics", host).0, "200", "{host}");
    }
}
