//! `side-by-side` as its users run it: what it prints, and how it says no.

use serde_json::Value;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_side-by-side")).args(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it prints text")
}

fn lines(arguments: &[&str]) -> Vec<Value> {
    let output = run(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn named<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("no line {name} in {lines:#?}"))
}

#[test]
fn json_is_nothing_but_lines_of_five_fields() {
    let lines = lines(&["cache", "--json", "--quick", "--only", "hit/irregular/1", "--only", "machine"]);
    for line in &lines {
        let keys: Vec<_> = line.as_object().expect("an object").keys().map(String::as_str).collect();
        assert!(["name", "ours", "peer", "unit", "ratio"].iter().all(|key| keys.contains(key)) && keys.len() == 5);
        assert!(line["ours"].as_f64().is_some_and(|ours| ours > 0.0), "{line}");
        assert!(!line["peer"].is_null() || line["ratio"].is_null(), "{line}");
        let speedup = line["name"].as_str().expect("a name").starts_with("speedup");
        assert_eq!(line["unit"], if speedup { "x" } else { "ns" });
    }
    named(&lines, "hit/irregular/1/1-thread");
    named(&lines, "machine/arithmetic/1-thread");
}

#[test]
fn ratio_appears_only_without_overlap() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("saved");
    let arguments = ["fabric", "--json", "--seconds", "0", "--only", "shm/read", "--save"];
    let lines = lines(&[&arguments[..], &[file.to_str().unwrap()]].concat());
    let saved = std::fs::read_to_string(file).unwrap();
    let saved = saved.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap()["row"]["row"].clone());
    let mut judged = 0;
    for row in saved.filter(|row| !row["peer"].is_null()) {
        let ends = |whose: &str| [0, 1].map(|end| row[whose]["rounds"][end].as_f64().expect("it has rounds"));
        let ([low, high], [their_low, their_high]) = (ends("ours"), ends("peer"));
        let same = low == high && (low, high) == (their_low, their_high);
        let overlap = low <= their_high && their_low <= high && !same;
        let line = named(&lines, row["name"].as_str().expect("a name"));
        assert_eq!(line["ratio"].is_null(), overlap, "{row}");
        judged += 1;
    }
    assert_eq!(judged, lines.iter().filter(|line| !line["peer"].is_null()).count());
    assert!(judged > 0);
}

#[test]
fn the_program_says_its_version() {
    let output = run(&["--version"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), format!("side-by-side {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn peer_is_in_every_line_or_none() {
    let output = run(&["cache", "--json", "--quick", "--only", "bad-address"]);
    let there = !text(&output.stderr).contains("install libucx-dev");
    let lines = lines(&["cache", "--json", "--quick", "--only", "bad-address"]);
    assert!(lines.iter().all(|line| line["peer"].is_null() != there), "{lines:#?}");
}

#[test]
fn one_bad_address_costs_one_attempt_and_no_eviction() {
    let lines = lines(&["cache", "--json", "--only", "bad-address"]);
    assert_eq!(named(&lines, "bad-address/attempts")["ours"], 1.0);
    assert_eq!(named(&lines, "bad-address/evictions")["ours"], 0.0);
}

#[test]
fn the_list_names_what_only_takes() {
    let list = run(&["cache", "--list"]);
    assert!(list.status.success());
    for name in text(&list.stdout).lines() {
        let output = run(&["cache", "--list", "--only", name]);
        assert_eq!(text(&output.stdout).trim_end(), name);
    }
}

#[test]
fn partial_name_selects_rows() {
    let list = run(&["cache", "--list", "--rows", "--threads", "1", "--only", "1000-of"]);
    let rows: Vec<_> = text(&list.stdout).lines().collect();
    assert_eq!(rows, ["churn/1000-of-2000", "churn/1000-of-2000/request", "churn/1000-of-2000/watched"]);
    let lines = lines(&["cache", "--json", "--quick", "--only", "full/att", "--only", "address/evictions"]);
    let names: Vec<_> = lines.iter().map(|line| line["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["bad-address/evictions", "bad-address/full/attempts"]);
}

#[test]
fn listed_rows_are_the_measured_rows() {
    let only =
        ["--only", "machine", "--only", "hit/stride/1", "--only", "churn", "--only", "stall", "--only", "bad-address"];
    let list = run(&[&["cache", "--list", "--rows"], &only[..]].concat());
    let mut listed: Vec<_> = text(&list.stdout).lines().map(str::to_owned).collect();
    let lines = lines(&[&["cache", "--json", "--quick"], &only[..]].concat());
    let mut measured: Vec<_> = lines.iter().map(|line| line["name"].as_str().expect("a name").to_owned()).collect();
    if !measured.iter().any(|name| name.starts_with("stall")) {
        listed.retain(|name| !name.starts_with("stall"));
    }
    listed.sort_unstable();
    measured.sort_unstable();
    assert_eq!(listed, measured);
}

/// Returns the simulator's part, without its peer.
fn sim(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_side-by-side"));
    command.args(["sim", "--quick", "--folder"]).arg(folder.path()).args(arguments).env("PYTHON", "none");
    command.output().expect("the program starts")
}

#[test]
fn the_simulator_runs_without_its_peer_and_says_so() {
    let output = sim(&["--json", "--policy", "pindown,mrrc"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("peer: none, as there is no libCacheSim: PYTHON says none"));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(
        names[..5],
        ["sim/read", "sim/pindown/replay", "sim/pindown/misses", "sim/mrrc/replay", "sim/mrrc/misses"]
    );
    assert_eq!(names[5..], ["sim/pindown/command", "sim/mrrc/command"]);
    for line in &lines {
        assert!(line["peer"].is_null() && line["ratio"].is_null() && line["ours"].as_f64() > Some(0.0), "{line}");
    }
    // MRRC spares what is asked for often, by its size: fewer misses than LRU's where sizes vary.
    assert!(named(&lines, "sim/mrrc/misses")["ours"].as_f64() < named(&lines, "sim/pindown/misses")["ours"].as_f64());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_side-by-side"));
    let output = command.args(["sim", "--quick", "--folder"]).arg(file.path()).env("PYTHON", "none").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot be written"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&file.path().display().to_string()));
}

/// Returns the rows that are listed, and those that are measured.
fn listed_and_measured(arguments: &[&str]) -> (Vec<String>, Vec<String>) {
    let list = run(&[arguments, &["--list"]].concat());
    let mut listed: Vec<_> = text(&list.stdout).lines().map(str::to_owned).collect();
    let lines = lines(&[arguments, &["--quick", "--json"]].concat());
    let mut measured: Vec<_> = lines.iter().map(|line| line["name"].as_str().expect("a name").to_owned()).collect();
    listed.sort_unstable();
    measured.sort_unstable();
    (listed, measured)
}

#[test]
fn the_fabrics_are_measured_row_by_row_as_listed() {
    let (listed, measured) = listed_and_measured(&["fabric"]);
    assert_eq!(listed, measured);
    for row in ["shm/read/10KiB/p50", "iwarp/crc/read/1KiB/cpu/far", "iwarp/no-crc/write/1MiB", "shm/connections/far"] {
        assert!(listed.iter().any(|name| name == row), "{row} in {listed:?}");
    }
}

#[test]
fn handshake_covers_both_fabrics_and_all_states() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return println!("skipped: both ends register at once, which takes two CPUs");
    }
    for write in [&[][..], &["--write"]] {
        let (listed, measured) = listed_and_measured(&[&["handshake", "--only", "nic/16KiB"], write].concat());
        assert_eq!(listed, measured);
        assert_eq!(listed.len(), 2 * (4 * 2 + 3), "{listed:?}");
    }
    let (listed, measured) = listed_and_measured(&["handshake", "--only", "copies/shm/nic/64KiB"]);
    assert_eq!(listed, measured);
    assert_eq!(listed.len(), 4 * 2 + 3, "{listed:?}");
}

#[test]
fn resilience_is_measured_row_by_row_as_listed() {
    if Command::new("etcd").arg("--version").output().is_err() {
        return println!("skipped: etcd is not installed");
    }
    let list = run(&["resilience", "--list"]);
    let table = run(&["resilience", "--quick"]);
    assert!(table.status.success(), "{}", text(&table.stderr));
    let (list, table) = (text(&list.stdout), text(&table.stdout));
    let measured = |row: &&str| table.lines().any(|line| line.split_whitespace().next() == Some(row));
    assert_eq!(list.lines().filter(measured).count(), list.lines().count(), "{table}");
    assert_eq!(table.matches(" limit at ").count(), 16, "{table}");
    // What is counted is the same in each run.
    let of = |row: &str| table.lines().find(|line| line.contains(row)).unwrap_or_default();
    for row in ["memory/copies", "memory/code"] {
        assert!(of(row).contains("met with"), "{table}");
    }
}

#[test]
fn resilience_names_the_package_of_a_missing_etcd() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_side-by-side"));
    let output = command.args(["resilience", "--quick"]).env("PATH", "/does/not/exist").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("start etcd: there is no such program: apt-get install etcd-server"));
}

#[test]
fn fabric_table_shows_goals() {
    let output = run(&["fabric", "--quick", "--only", "shm/read"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).matches("goal ").count(), 2, "{}", text(&output.stdout));
}

#[test]
fn wrong_usage_is_status_2_and_says_what_is_right() {
    for (arguments, says) in [
        (&["cache", "--only", "hits"][..], "hit/stride/1000"),
        (&["cache", "--threads", "0"], "CPUs"),
        (&["cache", "--threads", "1000000"], "CPUs"),
        (&["cache", "--seconds", "NaN"], "0 to 3600"),
        (&["cache", "--seconds", "-1"], "seconds"),
        (&["cache", "--quick", "--seconds", "1"], "--quick"),
        (&["sim", "--policy", "lru"], "pindown"),
        (&["sim", "--requests", "0"], "requests"),
        (&["sim", "--capacity", "many"], "capacity"),
        (&["fabric", "--only", "verbs"], "iwarp/crc"),
        (&["fabric", "--quick", "--seconds", "1"], "--quick"),
        (&["handshake", "--only", ""], "shm/nic/4KiB"),
        (&["handshake", "--seconds", "-1"], "seconds"),
        (&["resilience", "--only", "sets"], "set/1MiB"),
        (&["resilience", "--rounds", "0"], "rounds"),
        (&["cash"], "cache"),
        (&["all", "--only", "cash"], "cache"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_table_names_its_rows_and_says_who_took_part() {
    let output = run(&["cache", "--quick", "--only", "bad-address"]);
    let text = text(&output.stdout);
    for part in ["ours:", "peer:", "bad-address/attempts", "ours/peer"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn servers_appear_in_every_line_or_one_only() {
    let arguments = ["kv", "--json", "--quick", "--only", "get/1KiB/30:1", "--only", "overhead/10KiB"];
    let peer = !text(&run(&["kv", "--json", "--quick", "--only", "overhead/10KiB"]).stderr).contains("peer: none");
    let lines = lines(&arguments);
    assert!(lines.iter().all(|line| line["peer"].is_null() != peer), "{lines:#?}");
    for name in ["get/1KiB/30:1/cpu", "get/1KiB/30:1/p99.9", "overhead/10KiB/items"] {
        assert!(named(&lines, name)["ours"].as_f64().is_some_and(|ours| ours > 0.0));
    }
}

#[test]
fn crossover_compares_messages_and_transfers() {
    let (listed, measured) = listed_and_measured(&["kv", "--only", "crossover/shm/get-many", "--only", "iwarp/set/"]);
    assert_eq!(listed, measured);
    for row in
        ["crossover/shm/get-many/64KiB/p50", "crossover/iwarp/set/1KiB/cpu", "crossover/iwarp/set/p50/messages-to"]
    {
        assert!(listed.iter().any(|name| name == row), "{row} in {listed:?}");
    }
}

#[test]
fn breakdown_shows_where_cycles_go() {
    let lines = lines(&["kv", "--json", "--quick", "--only", "breakdown/1KiB"]);
    for way in ["iwarp", "tcp"] {
        assert!(named(&lines, &format!("breakdown/1KiB/{way}/switches/waited"))["ours"].is_number());
        let of = |what: &str| {
            let prefix = format!("breakdown/1KiB/{way}/{what}/");
            let of = lines.iter().filter(|line| line["name"].as_str().is_some_and(|name| name.starts_with(&prefix)));
            of.map(|line| line["ours"].as_f64().expect("a number")).collect::<Vec<_>>()
        };
        // One system call at least waits for a request, one takes it and one answers; where there is a class, there are all five.
        let (calls, classes) = (of("calls"), of("cpu"));
        assert!(calls.is_empty() || calls.iter().sum::<f64>() > 2.0, "{calls:?}");
        assert!(classes.is_empty() || (classes.len() == 5 && classes.iter().sum::<f64>() > 0.0), "{classes:?}");
    }
}

#[test]
fn a_trace_is_named_with_its_megabytes() {
    let output = run(&["kv", "--trace", "requests.trace"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("FILE:64"), "{}", text(&output.stderr));
}

#[test]
fn a_named_trace_is_replayed_on_each_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("few.trace");
    let requests: String = (0..300).map(|n| format!("{n} {} {}\n", n % 100, 1000 + n % 7)).collect();
    std::fs::write(&file, requests).unwrap();
    let trace = format!("{}:8", file.display());
    let lines = lines(&["kv", "--json", "--only", "eviction", "--trace", &trace]);
    let misses = named(&lines, "eviction/few/8MB/misses");
    assert_eq!(misses["ours"], 0.3333, "each object is missed once");
    assert!(misses["peer"].is_null() || misses["peer"] == misses["ours"]);
}

/// `all`, with the two parts whose peers are always there, on these CPUs.
fn all(arguments: &[&'static str], cpus: usize) -> Output {
    let arguments = [&["all", "--quick", "--only", "fabric,handshake"], arguments].concat();
    let started = std::thread::spawn(move || {
        if cpus == 1 {
            benches::pin::pin(benches::pin::allowed().unwrap()[0]).unwrap();
        }
        run(&arguments)
    });
    started.join().unwrap()
}

#[test]
fn all_prints_tables_then_json() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return println!("skipped: both ends register at once, which takes two CPUs");
    }
    let output = all(&[], 2);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (tables, json) = text(&output.stdout).split_once("\n{").expect("JSON begins a line");
    assert_eq!(tables.matches(", version ").count(), 2, "each part has its head: {tables}");
    let json = format!("{{{json}");
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert_eq!(lines[0]["parts"][1]["command"], "side-by-side handshake --quick");
    assert!(lines[0]["host"]["machine"].as_str().expect("a machine").contains("CPU"));
    for part in ["fabric", "handshake"] {
        for row in text(&run(&[part, "--list"]).stdout).lines() {
            assert!(tables.contains(row), "{row}");
            named(&lines[1..], row);
        }
    }
}

#[test]
fn failed_part_keeps_the_other_results() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.md");
    let output = all(&["--json", "--markdown", page.display().to_string().leak()], 1);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).ends_with("not measured to their end: handshake\n"), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    named(&lines[1..], "shm/read/1KiB/p50");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("**`handshake` was not measured to its end.**") && page.contains("| `shm/read/1KiB/p50` |"));
}

#[test]
fn unwritable_page_fails_before_measuring() {
    let output = run(&["all", "--quick", "--markdown", "/does/not/exist"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/does/not/exist cannot be written") && output.stdout.is_empty());
}
