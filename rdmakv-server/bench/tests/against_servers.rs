//! The generator against servers: one that stores nothing, those that fail it, and memcached where it is installed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rdmakv_bench::null::Null;
use rdmakv_bench::{Kind, Mix, Plan, Protocol, Report, Sizes, Traffic, run, run_watched};

/// A null server on a thread, ended with the test.
struct Here {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    plan: Plan,
}

impl Here {
    fn new(place: &str, sizes: &str) -> Self {
        let sizes: Sizes = sizes.parse().unwrap();
        let null = Null::bind(place, &sizes).unwrap();
        let mut plan = Plan::new(null.target().clone());
        plan.sizes = sizes;
        plan.verify = true;
        plan.connections = 4;
        plan.keys = 500;
        plan.warm_up = Duration::from_millis(20);
        plan.duration = Duration::from_millis(400);
        // However busy this machine is.
        plan.timeout = Duration::from_secs(60);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = Some(std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || null.serve(&stop).unwrap()
        }));
        Self { stop, thread, plan }
    }

    fn run(&self, change: impl FnOnce(&mut Plan)) -> Report {
        let mut plan = self.plan.clone();
        change(&mut plan);
        run(&plan).unwrap()
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn each_protocol_and_socket_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", folder.path().join("null").display());
    for place in ["127.0.0.1:0", &unix] {
        let server = Here::new(place, "0-20k");
        for protocol in [Protocol::Text, Protocol::Meta, Protocol::Binary] {
            let report = server.run(|plan| {
                plan.protocol = protocol;
                plan.depth = 5;
                plan.threads = 2;
                plan.traffic = Traffic::Mix(Mix::sets(0.3));
            });
            assert!(report.is_good(), "{report:?}");
            assert!(report.hits > 0 && report.stored > 0 && report.misses == 0, "{report:?}");
            assert_eq!(report.wrong_values, Some(0));
            assert_eq!(report.histograms.count(Kind::Get), report.hits, "each GET that counts has a latency");
        }
    }
}

#[test]
fn datagrams_are_put_together_again() {
    let server = Here::new("udp:127.0.0.1:0", "0-8k");
    let report = server.run(|plan| {
        plan.load = false;
        plan.traffic = Traffic::Mix(Mix::sets(0.0));
        plan.depth = 3;
    });
    assert!(report.hits > 0 && report.wrong_values == Some(0) && report.ended_early.is_none(), "{report:?}");
}

#[test]
fn a_value_that_is_another_is_noticed() {
    let server = Here::new("127.0.0.1:0", "100");
    let report = server.run(|plan| plan.sizes = "101".parse().unwrap());
    assert!(report.wrong_values.unwrap() > 0 && !report.is_good());
}

#[test]
fn open_loop_keeps_its_schedule() {
    let server = Here::new("127.0.0.1:0", "10");
    let report = server.run(|plan| {
        plan.rate = Some(2000.0);
        plan.arrivals = "constant".parse().unwrap();
        plan.duration = Duration::from_millis(500);
        // How busy this machine is, is not the question here.
        plan.tolerance = Duration::from_secs(10);
    });
    let kept = report.schedule.unwrap();
    assert_eq!(report.histograms.count(Kind::Get) + report.histograms.count(Kind::Set), 1000, "{report:?}");
    assert_eq!((kept.started, kept.unsent), (2000.0, 0));
    assert!(report.latencies[&Kind::Get].max >= kept.late_p50, "lateness is part of the latency");
}

#[test]
fn impossible_schedule_invalidates_the_run() {
    let server = Here::new("127.0.0.1:0", "10");
    let report = server.run(|plan| plan.rate = Some(5e7));
    assert!(!report.valid && report.invalid_because.iter().any(|why| why.contains("was not kept")), "{report:?}");
}

#[test]
fn whoever_watches_sees_every_answer() {
    let server = Here::new("127.0.0.1:0", "10");
    let mut plan = server.plan.clone();
    plan.duration = Duration::from_millis(1200);
    let (mut latencies, mut seconds) = (0, 0);
    let report = run_watched(&plan, |second| {
        latencies += second.latencies.count(Kind::Get) + second.latencies.count(Kind::Set);
        seconds += 1;
    })
    .unwrap();
    assert!(seconds >= 2);
    assert_eq!(latencies, report.histograms.count(Kind::Get) + report.histograms.count(Kind::Set));
}

/// A server that answers each read with this, so often, and then closes the connection.
fn server_that_says(answer: &'static [u8], times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move |mut stream: TcpStream| {
        let mut buffer = [0; 4096];
        for _ in 0..times {
            if !matches!(stream.read(&mut buffer), Ok(1..)) || stream.write_all(answer).is_err() {
                return;
            }
        }
        // Silent, but there, until the other side goes.
        if times == 0 {
            while matches!(stream.read(&mut buffer), Ok(1..)) {}
        }
    };
    // The threads end with the test's process.
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(move || serve(stream))))
    });
    address
}

fn command(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rdmakv-bench")).args(arguments).output().unwrap()
}

#[test]
fn failing_server_ends_the_run_with_results() {
    for (answer, times, why) in [
        (&b"END\r\n"[..], 40, "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 40, "nonsense from the server: VALUE or END was awaited"),
        (b"END\r\nEND\r\n", 40, "nothing was asked"),
        (b"\0\xff\0\xff", 1000, "nonsense"),
        (b"", 0, "did not answer"),
    ] {
        let place = server_that_says(answer, times);
        let patience = if times == 0 { "0.3" } else { "60" };
        let arguments =
            ["run", &place, "--no-load", "-m", "1:0", "-c", "2", "-T", "20", "-w", "0", "--timeout", patience];
        let output = command(&[&arguments[..], &["--json"]].concat());
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{said}");
        let study: serde_json::Value = serde_json::from_str(&text).unwrap();
        let report = &study["stages"][0]["report"];
        assert!(report["ended_early"].as_str().unwrap().contains(why), "{report}");
        assert!(report["seconds"].as_f64().unwrap() < 20.0);
        if times == 40 && why.starts_with("closed") {
            assert!(report["operations"].as_u64().unwrap() >= 40, "one connection's answers at least");
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_said_to_be_down() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for place in [free, "unix:/nowhere/at/all".into(), "no-such-host.invalid:11211".into()] {
        let output = command(&["run", &place, "-q"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(said.contains("connecting to") || said.contains("looking up"), "{said}");
    }
}

#[test]
fn wrong_flags_say_what_is_wrong_and_end_with_two() {
    for (arguments, words) in [
        (&["run", "-c", "0"][..], "connections: 0 is not between 1"),
        (&["run", "-s", "x"], "a length"),
        (&["run", "-m", "1"], "30:1"),
        (&["run", "udp:127.0.0.1:1", "-m", "1:1"], "over UDP only GETs"),
        (&["run", "-r", "5", "-d", "2"], "cannot be used with"),
        (&["run", "-r", "-5"], "-5"),
        (&["run", "--choice", "zapf"], "one of uniform"),
        (&["run", "shm:"], "shm:PATH"),
        (&["ycsb", "e", "client:127.0.0.1:1"], "over sockets only"),
        (&["paper", "shm:@kv", "-c", "2000"], "a thread of its own"),
        (&["run", "-T", "0"], "duration"),
        (&["run", "-k", "100000000", "--key-len", "9"], "keys of 9 bytes"),
        (&["walk"], "unrecognized subcommand"),
    ] {
        let output = command(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

/// A process with a line that says where it listens.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_servers_cpu_is_counted_and_the_log_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let program = env!("CARGO_BIN_EXE_rdmakv-bench");
    let mut server = Process(Command::new(program).arg("null-server").stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let place = line.trim().strip_prefix("listening on ").unwrap();
    let mut arguments = vec!["run", place, "-T", "1.1", "-w", "0.1", "--verify", "--timeout", "60", "--json"];
    arguments.extend(["--log", log.to_str().unwrap()]);
    let output = command(&arguments);
    assert!(output.status.success(), "{output:?}");
    let study: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = &study["stages"][0]["report"];
    assert_eq!(report["server"]["pid"], server.0.id());
    let cpu = |of: &str| report[of]["user_ns"].as_f64().unwrap() + report[of]["system_ns"].as_f64().unwrap();
    assert!(cpu("server") > 0.0 && cpu("generator") > 0.0, "{report}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("answers"), "progress");

    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    let bytes = std::fs::read(&log).unwrap();
    let mut logged = 0;
    for entry in IntervalLogIterator::new(&bytes) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            use hdrhistogram::serialization::Deserializer;
            use std::io::Cursor;
            let compressed = base64_decode(interval.encoded_histogram());
            let histogram: hdrhistogram::Histogram<u64> =
                Deserializer::new().deserialize(&mut Cursor::new(compressed)).unwrap();
            logged += histogram.len();
        }
    }
    let counted = ["get", "set"].map(|kind| report["latencies"][kind]["count"].as_u64().unwrap()).iter().sum::<u64>();
    assert_eq!(logged, counted);
}

fn base64_decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four
            .iter()
            .fold(0_u32, |bits, byte| bits << 6 | LETTERS.iter().position(|letter| letter == byte).unwrap() as u32)
            << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[test]
fn memcached_itself_is_spoken_to_in_all_its_ways() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mc");
    let started =
        Command::new("memcached").args(["-u", "root", "-m", "64", "-s"]).arg(&path).stderr(Stdio::null()).spawn();
    let Ok(process) = started else {
        eprintln!("memcached: not run: it is not installed (Debian: memcached)");
        return;
    };
    let mut server = Process(process);
    while UnixStream::connect(&path).is_err() && server.0.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for protocol in [Protocol::Text, Protocol::Meta, Protocol::Binary] {
        let mut plan = Plan::new(format!("unix:{}", path.display()).parse().unwrap());
        plan.protocol = protocol;
        plan.sizes = "1-30k".parse().unwrap();
        plan.keys = 200;
        plan.depth = 4;
        plan.verify = true;
        plan.warm_up = Duration::ZERO;
        plan.duration = Duration::from_millis(100);
        plan.timeout = Duration::from_secs(60);
        let report = run(&plan).unwrap();
        assert!(report.is_good() && report.hits > 0 && report.misses == 0, "{report:?}");
        assert_eq!(report.server.unwrap().pid, server.0.id() as i32);
        // Half of the keys were never written.
        plan.key_prefix = format!("{protocol}-");
        plan.key_len = 20;
        (plan.load, plan.traffic) = (false, Traffic::Mix(Mix::sets(0.0)));
        let report = run(&plan).unwrap();
        assert!(report.is_good() && report.hits == 0 && report.misses > 0, "{report:?}");
    }
}
