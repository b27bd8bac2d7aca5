//! Each command against a server that is a process: memcached where it is installed, else the null server.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rdmakv-bench");

/// A server that ends with the test.
struct Server {
    process: Child,
    place: String,
    _folder: tempfile::TempDir,
}

impl Server {
    /// None where it is not installed.
    fn memcached(more: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-m", "64", "-s"]).arg(&path).args(more).stderr(Stdio::null());
        let Ok(mut process) = command.spawn() else {
            eprintln!("memcached: not run: it is not installed (Debian: memcached)");
            return None;
        };
        while UnixStream::connect(&path).is_err() && process.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let place = format!("unix:{}", path.display());
        Some(Self { process, place, _folder: folder })
    }

    fn null(size: &str) -> Self {
        let mut process =
            Command::new(PROGRAM).args(["null-server", "-s", size]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { process, place, _folder: tempfile::tempdir().unwrap() }
    }

    /// Returns when it has computed so many nanoseconds more: then it was asked for something.
    fn has_computed_more(&self, nanos: u64) {
        let stat = format!("/proc/{}/schedstat", self.process.id());
        let computed = || std::fs::read_to_string(&stat).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
        let before = computed();
        while computed() < before + nanos {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the command with these words, the server's place for `@`, and short times.
fn words(line: &str, place: &str) -> Vec<String> {
    let mut words: Vec<String> = line.split_whitespace().map(|word| word.replace('@', place)).collect();
    words.extend(["--json", "--timeout", "60", "-q"].map(str::to_owned));
    words
}

fn run(line: &str, place: &str) -> (Output, Value) {
    let output = Command::new(PROGRAM).args(words(line, place)).output().unwrap();
    let study = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, study)
}

fn good(line: &str, place: &str) -> Vec<Value> {
    let (output, study) = run(line, place);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    study["stages"].as_array().unwrap().clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn paper_has_a_stage_per_size_with_server_cpu() {
    let Some(server) = Server::memcached(&["-I", "2m"]) else { return };
    let stages = good("paper @ -k 100 --sizes 1k,10k,100k -T 0.5 -w 0.05 --verify", &server.place);
    let names: Vec<&str> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["1k", "10k", "100k"]);
    for stage in &stages {
        let report = &stage["report"];
        assert_eq!(report["server"]["pid"], server.process.id());
        assert!(number(&report["server"]["user_ns"]) + number(&report["server"]["system_ns"]) > 0.0, "{report}");
        assert!(number(&report["hits"]) > 0.0 && number(&report["stored"]) == 0.0, "GETs only: {report}");
    }
}

#[test]
fn paper_with_missed_gets_is_invalid() {
    let Some(server) = Server::memcached(&["-m", "2"]) else { return };
    let (output, study) = run("paper @ --sizes 100k -k 400 -T 0.1 -w 0", &server.place);
    assert_eq!(output.status.code(), Some(1));
    let why = study["stages"][0]["report"]["invalid_because"][0].as_str().unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Which it is depends on how the server gives room.
    assert!(why.contains("GETs missed") || said.contains("were refused"), "{why} {said}");
}

#[test]
fn latency_has_stages_by_operation_and_window() {
    let server = Server::null("100");
    let stages = good("latency @ -k 100 --sizes 100 --windows 1,8 -T 0.4 -w 0.02 --verify", &server.place);
    let names: Vec<&str> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "set 100 blocking",
            "set 100 window 8",
            "get 100 blocking",
            "get 100 window 8",
            "mixed 100 blocking",
            "mixed 100 window 8"
        ]
    );
    let kinds = |at: usize| stages[at]["report"]["latencies"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        (kinds(0), kinds(2), kinds(4)),
        (vec!["set".into()], vec!["get".into()], vec!["get".into(), "set".into()])
    );
    assert_eq!((&stages[0]["report"]["depth"], &stages[1]["report"]["depth"]), (&1.into(), &8.into()));
}

#[test]
fn ycsb_workloads_find_all_their_keys() {
    let Some(server) = Server::memcached(&[]) else { return };
    let stages = good("ycsb all @ -k 2000 -s 100 -T 0.5 -w 0 -c 8 -d 2 --verify --scan 20", &server.place);
    let names: Vec<&str> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["load", "A", "B", "C", "F", "D", "E"]);
    for stage in &stages {
        // Even in D, where the newest keys are read most: a key is not asked for before it is there.
        assert_eq!(number(&stage["report"]["misses"]), 0.0, "{stage}");
    }
    let report = |at: usize| &stages[at]["report"];
    assert_eq!(number(&report(0)["stored"]), 2000.0);
    let count = |at: usize, kind: &str| number(&report(at)["latencies"][kind]["count"]);
    // Each write of F is half of a pair. Of those under way in the end, the pair was to start in time and the write was not.
    let late = count(4, "modify") - count(4, "set");
    assert!(count(4, "modify") > 0.0 && (0.0..=16.0).contains(&late), "{late} pairs more than writes");
    // A pair is one operation and two answers.
    assert!(number(&report(4)["answers"]) > 1.2 * number(&report(4)["operations"]));
    let scanned = &report(6)["scanned"];
    assert!(number(&scanned["found"]) > 0.0 && scanned["found"] == scanned["sought"], "{scanned}");
}

#[test]
fn scans_are_refused_without_multi_key_requests() {
    let server = Server::null("100");
    let (output, _) = run("ycsb e @ --protocol binary", &server.place);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--protocol text"), "{said}");
}

#[test]
fn penalty_latency_is_reported_separately() {
    let Some(server) = Server::memcached(&[]) else { return };
    // Nothing was written before: the first GET of each key misses, and then it is there.
    let line = "hybrid @ -k 300 -s 100 --no-load --penalty 20s -T 3 -w 0 -c 1 --choice sequential";
    let stages = good(line, &server.place);
    let report = &stages[0]["report"];
    assert_eq!((number(&report["misses"]), number(&report["stored"])), (300.0, 300.0), "{report}");
    let latency = |kind: &str, at: &str| number(&report["latencies"][kind][at]);
    assert!(latency("get", "max") < 1e7, "nobody waited: {report}");
    assert!(latency("with_penalty", "max") >= 1.99e7, "{report}");
    assert_eq!(latency("get", "count"), latency("with_penalty", "count"));
    assert_eq!(number(&report["penalty"]["seconds"]), 6000.0);
}

#[test]
fn a_checkpoint_is_read_back_as_it_was_written() {
    let Some(server) = Server::memcached(&[]) else { return };
    let line = "bursty @ -c 3 --block 64k --chunk 8k --period 40ms -T 0.4 -d 4 --verify --tolerance 10s";
    let stages = good(line, &server.place);
    let (checkpoint, restart) = (&stages[0]["report"], &stages[1]["report"]);
    // Ten periods, three connections, eight chunks a block: how busy the machine is changes nothing.
    assert_eq!(number(&checkpoint["latencies"]["block"]["count"]), 30.0, "{checkpoint}");
    assert_eq!(number(&checkpoint["latencies"]["set"]["count"]), 240.0);
    assert_eq!((number(&restart["misses"]), number(&restart["wrong_values"])), (0.0, 0.0), "{restart}");
    assert!(number(&restart["bursts"]["done"]) >= 3.0);
}

#[test]
fn restart_without_its_blocks_is_invalid() {
    let Some(server) = Server::memcached(&["-m", "2"]) else { return };
    let line = "bursty @ -c 2 --block 4m --chunk 256k --blocks 4 --period 20ms -T 0.3 -d 4 --tolerance 10s";
    let (output, study) = run(line, &server.place);
    assert_eq!(output.status.code(), Some(1));
    let why = study["stages"][1]["report"]["invalid_because"].to_string();
    assert!(why.contains("GETs missed"), "{why}");
}

#[test]
fn blocks_never_begun_invalidate_the_run() {
    let server = Server::null("100k");
    // As many bytes as no machine moves in a millisecond.
    let line = "bursty @ -c 2 --block 400m --chunk 100k --period 1ms --blocks 1 -T 0.3 -m 1:0 --tolerance 10ms";
    let (output, study) = run(line, &server.place);
    assert_eq!(output.status.code(), Some(1));
    let report = &study["stages"][0]["report"];
    let why: Vec<&str> = report["invalid_because"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(why.iter().any(|why| why.contains("never began")), "{why:?}");
}

fn trace(folder: &Path) -> String {
    let path = folder.join("trace");
    let lines: String = (0..2000_u64).map(|at| format!("{} {} {}\n", at / 100, at * at % 101, 100 + at % 7)).collect();
    std::fs::write(&path, lines).unwrap();
    path.display().to_string()
}

#[test]
fn trace_is_replayed_and_its_misses_written() {
    let Some(server) = Server::memcached(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let mut keys: Vec<u64> = (0..2000_u64).map(|at| at * at % 101).collect();
    keys.sort_unstable();
    keys.dedup();
    let line = format!("replay {trace} @ --format objects -c 1 --verify");
    let report = &good(&line, &server.place)[0]["report"];
    assert_eq!(number(&report["operations"]), 2000.0, "{report}");
    assert_eq!((number(&report["misses"]), number(&report["stored"])), (keys.len() as f64, keys.len() as f64));
    // 19 seconds of it in 0.19, by two threads: each keeps the order of its keys, so that all are there now.
    let line = format!("replay {trace} @ --format objects -t 2 -c 4 --speed 100 --tolerance 10s");
    let report = &good(&line, &server.place)[0]["report"];
    assert_eq!((number(&report["hits"]), number(&report["misses"])), (2000.0, 0.0), "{report}");
    assert!(number(&report["seconds"]) >= 0.19 && report["depth"].is_null(), "{report}");
}

#[test]
fn a_trace_without_times_is_not_replayed_by_them() {
    let server = Server::null("4096");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.lirs");
    std::fs::write(&path, "1\n2\n3\n1\n").unwrap();
    let line = format!("replay {} @ --format lirs", path.display());
    assert_eq!(number(&good(&line, &server.place)[0]["report"]["operations"]), 4.0);
    let (output, _) = run(&format!("{line} --speed 1"), &server.place);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--speed max"), "{said}");
}

/// Each command but for scans, by a client of ours over a socket: what a fabric changes is how values come.
#[test]
fn each_command_runs_through_the_client_library() {
    let Some(server) = Server::memcached(&[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    for line in [
        "run client:@ -k 200 -s 100 -c 2 -d 4 -T 0.5 -w 0.05 --verify -m 1:1",
        "run client:@ -k 200 -s 100 -c 2 -r 200 --arrivals constant -T 0.3 -w 0.1 --verify --tolerance 10s",
        "paper client:@ -k 100 --sizes 1k -T 0.5 -w 0 -c 2",
        "latency client:@ -k 100 --sizes 100 --windows 8 --ops set,get -T 0.5 -w 0 --verify",
        "ycsb d,f client:@ -k 500 -s 100 -T 0.5 -w 0 -c 3 --verify",
        "hybrid client:@ -k 100 -s 100 -T 0.5 -w 0 -c 2 --no-load --key-prefix hy",
        "bursty client:@ -c 2 --block 64k --chunk 8k --period 40ms -T 0.2 -d 4 --verify --tolerance 10s",
        &format!("replay {trace} client:@ --format objects -c 2 --key-prefix re"),
    ] {
        for stage in good(line, &server.place) {
            let report = &stage["report"];
            let (hits, ways) = (number(&report["hits"]), &report["ways"]);
            let known = ["one_sided", "messages", "transfers"].map(|way| number(&ways[way]));
            assert_eq!(known, [0.0; 3], "{line}: {report}");
            assert_eq!(report["protocol"], "client library", "{line}");
            // Both count in the same time, but for those under way at its ends.
            assert!((number(&ways["sockets"]) - hits).abs() <= 64.0, "{line}: {report}");
            assert!(
                number(&report["operations"]) > 0.0 && report["target"].as_str().unwrap().starts_with("client:unix:")
            );
        }
    }
}

/// Over each fabric that needs no device, values are read without the server; where it is not built beside us, that is said.
#[test]
fn fabric_values_are_read_one_sidedly() {
    let server = Path::new(PROGRAM).with_file_name("rdmakv-server");
    if !server.exists() {
        eprintln!("fabrics: not run: {} is not built (cargo build -p rdmakv-server)", server.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [socket, shm] = ["socket", "shm"].map(|name| folder.path().join(name).display().to_string());
    let shm = format!("shm:{shm}");
    let mut command = Command::new(server);
    command.args(["-m", "64", "-s", &socket, "--fabric", &shm]).stdout(Stdio::null()).stderr(Stdio::null());
    let process = command.spawn().unwrap();
    let mut server = Server { process, place: format!("{shm},unix:{socket}"), _folder: folder };
    while UnixStream::connect(&socket).is_err() && server.process.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for line in [
        "run @ -k 100 -s 1k -c 2 -m 1:0 -T 0.6 -w 0.1 --verify",
        "ycsb f @ -k 100 -s 1k -c 2 -T 0.5 -w 0 --verify",
        "latency @ -k 50 --sizes 20k --windows 4 --ops get,mixed -T 0.5 -w 0.1 --verify",
        "bursty @ -c 2 --block 64k --chunk 8k --period 40ms -T 0.3 -d 4 --verify --tolerance 10s",
    ] {
        for stage in good(line, &server.place) {
            let (name, report) = (&stage["name"], &stage["report"]);
            assert_eq!((number(&report["wrong_values"]), number(&report["misses"])), (0.0, 0.0), "{line}: {report}");
            assert_eq!(report["server"]["pid"], server.process.id(), "by its socket");
            let ways = &report["ways"];
            // A key that was just written several times is not lent: only what is merely read has to be read one-sidedly.
            if line.starts_with("run") && number(&report["hits"]) > 2000.0 {
                assert!(number(&ways["one_sided"]) > 0.0, "{line}, {name}: {ways}");
            }
            assert_eq!(number(&ways["sockets"]), 0.0, "{line}, {name}: {ways}");
        }
    }
    server.end();
    let (output, _) = run("run @ -T 1", &server.place);
    assert_eq!(output.status.code(), Some(1), "it is gone");
}

/// Killed in the middle of each command: what there is comes out, and the exit says that it is not all.
#[test]
fn dying_server_ends_each_command_with_results() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    for line in [
        "paper @ -k 50 --sizes 100,200 -T 60 -w 0",
        "ycsb a,b @ -k 50 -s 100 -T 60 -w 0",
        "latency @ --sizes 100 -k 50 -T 60 -w 0",
        "hybrid @ -k 50 -s 100 -T 60 -w 0",
        "bursty @ -m 1:1 --chunk 100 --block 1000 --period 10ms -T 60 --tolerance 10s",
        &format!("replay {trace} @ --format objects --speed 5"),
        "run client:@ -k 50 -s 100 -T 60 -w 0 -c 2",
    ] {
        let mut server = Server::null("100");
        let log = folder.path().join("log");
        let process = Command::new(PROGRAM)
            .args(words(line, &server.place))
            .args(["--log", log.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Most write their keys first, which takes a few ms at most. The trace is short, and has no such stage.
        server.has_computed_more(if line.starts_with("replay") { 2_000_000 } else { 20_000_000 });
        server.end();
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        let study: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let stages = study["stages"].as_array().unwrap_or_else(|| panic!("{line}: nothing came out; {said}"));
        let last = &stages.last().unwrap()["report"];
        let why = last["ended_early"].as_str().unwrap_or_default();
        // Our own client puts it in words of its own. A SET may have been on its way.
        let ways: &[_] = if line.contains("client:") {
            &["no connection", "the outcome is unknown"]
        } else {
            &["closed the connection"]
        };
        assert!(ways.iter().any(|way| why.contains(way)), "{line}: {last}");
        assert!(number(&last["operations"]) > 0.0, "{line}: {last}");
        assert!(said.contains(why) && log.metadata().unwrap().len() > 0, "{line}: {said}");
    }
}

#[test]
fn who_interrupts_gets_what_there_is() {
    let server = Server::null("100");
    let words = words("run @ -k 50 -s 100 -T 60 -w 0", &server.place);
    let process = Command::new(PROGRAM).args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    server.has_computed_more(5_000_000);
    // The shell's own: the command is of a package that not every machine has.
    let kill = format!("kill -INT {}", process.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = process.wait_with_output().unwrap();
    let study: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = &study["stages"][0]["report"];
    assert!(output.status.code() == Some(1) && report["ended_early"] == "interrupted", "{report}");
    assert!(number(&report["operations"]) > 0.0 && number(&report["seconds"]) < 60.0, "{report}");
}

#[test]
fn outputs_are_written_or_refused_before_the_run() {
    let server = Server::null("100");
    let folder = tempfile::tempdir().unwrap();
    let [page, log] = ["page.html", "log.hlog"].map(|name| folder.path().join(name));
    let line = format!("paper @ -k 50 --sizes 100 -T 0.5 -w 0 --html {} --log {}", page.display(), log.display());
    good(&line, &server.place);
    let (page, log) = (std::fs::read_to_string(page).unwrap(), std::fs::read_to_string(log).unwrap());
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("GETs at the highest rate"));
    assert!(log.contains("[Histogram log format version") || log.contains("rdmakv-bench paper"), "{log}");
    assert!(log.lines().any(|line| line.starts_with("Tag=100/GET,")), "{log}");
    let (output, _) = run("run @ --html /nowhere/at/all.html", &server.place);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("/nowhere/at/all.html"), "{said}");
}

#[test]
fn help_has_examples_everywhere() {
    for command in ["", "run", "paper", "latency", "ycsb", "hybrid", "bursty", "bursts", "replay", "null-server"] {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = Command::new(PROGRAM).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("Examples:\n  rdmakv-bench "), "{command}: {text}");
    }
}

/// A plain directory in place of a mount is its own backing directory.
#[test]
fn bursts_compares_bytes_and_leaves_no_files() {
    // A file system in memory may have no direct reads.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mount, disk) = (folder.path().join("mount"), folder.path().join("disk"));
    std::fs::create_dir(&mount).unwrap();
    std::fs::create_dir(&disk).unwrap();
    let run = |size: &str, more: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("bursts").arg(&mount).arg("--backing").arg(&mount).arg("--disk").arg(&disk);
        command.args(["--ranks", "3", "--checkpoints", "2", "--pause", "0", "--size", size]).args(more);
        let output = command.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, said) = run("4", &[]);
    let is_met = !said.contains("MISSED");
    assert!(said.contains("all bytes are equal") && code == i32::from(!is_met), "{code}: {said}");
    assert!(said.contains("blocked: write and close") && said.contains("drain, on the disk dd"), "{said}");
    let sums: Vec<_> = said.lines().filter_map(|line| line.split_once("  bursts-")).collect();
    assert!(sums.len() == 6 && sums.iter().all(|(sum, _)| sum.len() == 64), "{said}");
    for directory in [&mount, &disk] {
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "files stay");
    }
    let (code, said) = run("4", &["--in-drain", "true"]);
    assert!(code == 1 && said.contains("use a larger --size"), "{said}");
    let (code, said) = run("4", &["--etcd", "http://127.0.0.1:1", "--tmpfs", "/absent"]);
    assert!(code == 1 && said.contains("etcd") && said.contains("/absent: left out"), "{said}");
    let left = std::fs::read_dir(&mount).unwrap().map(|found| std::fs::remove_file(found.unwrap().path()));
    assert_eq!(left.filter(Result::is_ok).count(), 6, "files of a run that failed");
    let (code, said) = run("2", &[]);
    assert!(code == 2 && said.contains("use fewer --ranks"), "{said}");
    std::fs::remove_dir_all(&disk).unwrap();
    let (code, said) = run("4", &[]);
    assert!(code == 1 && said.contains("dd to "), "{said}");
}

#[test]
fn study_compares_servers_and_leaves_no_files() {
    if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("memcached: not run: it is not installed (Debian: memcached)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["hybrid", "study", "--quick", "--contenders", "memcached,extstore", "--json", "-q", "--folder"]);
    let output = command.arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("ext_") {
        eprintln!("memcached: not run: it has no extstore");
        return;
    }
    assert!(output.status.success(), "{said}");
    let study: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = study["rows"].as_array().unwrap();
    let of = |part: &str, contender: &str| {
        let is = |row: &&Value| row["part"] == part && row["contender"] == contender;
        &rows.iter().find(is).unwrap_or_else(|| panic!("{part} of {contender}: {rows:?}"))["figures"]
    };
    assert!(number(&of("uniform", "extstore")["hit_ratio"]) > number(&of("uniform", "memcached")["hit_ratio"]));
    assert!(number(&of("uniform", "extstore")["flash_share"]) > 0.5, "{rows:?}");
    assert_eq!(of("uniform", "memcached")["with_penalty"].as_array().unwrap().len(), 4);
    assert_eq!(rows.len(), 6, "a pattern of two, three rows of the tiers of one, one of full flash: {rows:?}");
    let mut command = Command::new(PROGRAM);
    command.args(["hybrid", "study", "--quick", "--contenders", "extstore", "--parts", "full", "--max-frag", "0.5"]);
    let output = command.args(["--json", "-q", "--folder"]).arg(folder.path()).output().unwrap();
    let study: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = study["rows"].as_array().unwrap();
    assert_eq!((rows.len(), rows[0]["part"].as_str()), (1, Some("80 % full")), "{rows:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files stay");
}

#[test]
fn study_refuses_what_is_no_share() {
    let output = Command::new(PROGRAM).args(["hybrid", "study", "--max-frag", "23"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--max-frag: shares from 0 to 1"), "{said}");
}

#[test]
fn study_names_the_program_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["hybrid", "study", "--quick", "-q", "--server", "/nowhere/rdmakv-server", "--folder"]);
    let output = command.arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("start /nowhere/rdmakv-server: not found: build it"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files stay");
}

#[test]
fn crowd_counts_clients_and_their_memory() {
    let Some(server) = Server::memcached(&[]) else { return };
    let run = |more: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["crowd", &server.place, "-c", "20", "-T", "100ms"]).args(more);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = run(&["--active", "2"]);
    assert_eq!(code, Some(0), "{said}");
    let number = |what: &str| {
        let line = said.lines().find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("{what}: {said}"));
        line[what.len()..].split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    assert!(said.starts_with("20 clients after "), "{said}");
    assert_eq!(number("clients by socket"), 20);
    assert!(number("reads") > 0 && number("server's memory before") > 100, "{said}");
    // An idle connection of memcached's takes some KiB.
    assert!((1..1 << 20).contains(&number("for each of them")), "{said}");

    let (code, said) = run(&["--active", "21"]);
    assert!(code == Some(2) && said.contains("--active: there are fewer --clients"), "{said}");
    let (code, said) = run(&["--server-pid", "2147483647"]);
    assert!(code == Some(1) && said.contains("read the memory of process 2147483647"), "{said}");
}

#[test]
fn crowd_names_the_server_that_is_not_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("tcp:{}", listener.local_addr().unwrap());
    drop(listener);
    let output = Command::new(PROGRAM).args(["crowd", &place, "--timeout", "1s"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(&place), "{said}");
}
