//! The command on the real server, and on servers that are wrong in one way each.

mod flawed;

use std::process::{Command, Output};

use flawed::Flaw;

fn check(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmakv-check")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

/// Returns the number in that row and column of the table.
fn cell(text: &str, row: &str, column: &str) -> u64 {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let line =
        lines.find(|line| line.split_whitespace().next() == Some(row)).unwrap_or_else(|| panic!("{row}: {text}"));
    let cells: Vec<&str> = line.split_whitespace().filter(|&word| word != "%").collect();
    let at = names.iter().position(|&name| name == column).unwrap();
    cells[at + 1].parse().unwrap()
}

#[test]
fn keys_stay_linearizable_under_kills() {
    let text = survives(&["-n", "6000", "--kill-server-every", "2000op"]);
    assert_eq!(cell(&text, "GET", "tcp"), cell(&text, "GET", "all"), "{text}");
}

#[test]
fn keys_stay_linearizable_across_transports() {
    let transports =
        ["--transports", "shm,shm,tcp,iwarp,socket", "--threads", "5", "--processes", "3", "--tag-lease", "300ms"];
    let text = survives(&[&["-n", "12000", "--kill-server-every", "4000op"], &transports[..]].concat());
    for transport in ["tcp", "socket", "shm", "iwarp"] {
        assert!(cell(&text, "GET", transport) > 0 && cell(&text, "SET", transport) > 0, "{transport}: {text}");
    }
    assert!(share(&text, "GET") > 0.0, "{text}");
}

#[test]
fn keys_stay_linearizable_over_lossy_datagrams() {
    let transports = ["--transports", "datagrams,datagrams,tcp,iwarp", "--loss", "3", "--kill-server-every", "4000op"];
    let text = survives(&[&["-n", "9000"], &transports[..]].concat());
    assert!(cell(&text, "GET", "datagrams") > 200 && cell(&text, "SET", "datagrams") > 20, "{text}");
    let line = text.lines().find(|line| line.ends_with("datagrams were lost on purpose")).unwrap();
    assert!(line.split(' ').next().unwrap().parse::<u64>().unwrap() > 20, "{line}");
}

#[test]
fn keys_stay_linearizable_as_busy_clients_move() {
    let transports = ["--transports", "hybrid,hybrid,tcp", "--loss", "1", "--kill-server-every", "12000op"];
    let text = survives(&[&["-n", "30000"], &transports[..]].concat());
    assert!(cell(&text, "GET", "hybrid") > 500 && cell(&text, "SET", "hybrid") > 100, "{text}");
    assert!(share(&text, "GET") > 0.0, "{text}");
    let line = text.lines().find(|line| line.contains("times a busy client moved")).unwrap();
    assert!(line.split(' ').next().unwrap().parse::<u64>().unwrap() > 1, "{line}");
}

#[test]
fn nothing_old_is_back_after_kills_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let (items, log) = (folder.path().join("items"), folder.path().join("log"));
    let arguments = ["-m", "8", "-e", &items.display().to_string(), "--flash", &format!("{}:64m", log.display())]
        .map(|argument| format!("--server-argument={argument}"));
    let mut plan = vec!["-n", "16000", "--kill-server-every", "6000op", "--stop-server-every", "2500op"];
    plan.extend(["--transports", "shm,tcp", "--tag-lease", "200ms", "--large"]);
    plan.extend(arguments.iter().map(String::as_str));
    let text = survives(&plan);
    assert!(!text.contains("(0 after an orderly stop"), "{text}");
}

#[cfg(feature = "bpf")]
#[test]
fn keys_stay_linearizable_with_the_kernel() {
    if let Some(why) = rdmakv_bpf::pair::Pair::lacks() {
        return println!("SKIPPED: a torture with GETs in the kernel: {why}");
    }
    let four = ["--hot", "1", "--counters", "1", "--warm", "1", "--cold", "1", "--flush-every", "2000"];
    let (output, text) = check(
        &[&["-q", "-n", "50000", "--kernel", "--transports", "udp,tcp,iwarp,udp", "--small"], &four[..]].concat(),
    );
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find(|line| line.contains("answered in the kernel")).unwrap();
    let in_kernel: u64 = line.split(' ').next().unwrap().parse().unwrap();
    let (all, changes) = (cell(&text, "GET", "udp"), cell(&text, "SET", "tcp") + cell(&text, "SET", "iwarp"));
    println!("{line}");
    assert!(in_kernel * 2 >= all && all > 10_000 && changes > 100, "{text}");
}

/// Returns the share of those in that row in which the server had no part.
fn share(text: &str, row: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(row)).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    cells[cells.iter().position(|&cell| cell == "%").unwrap() - 1].parse().unwrap()
}

/// A run on the real server, which is killed, as its clients are.
fn survives(arguments: &[&str]) -> String {
    let plan = ["-q", "--cold", "200", "--flush-every", "2000", "--kill-client-every", "1000op", "-m", "4"];
    let (output, text) = check(&[&plan[..], arguments].concat());
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // Otherwise it would have shown nothing.
    for (row, column) in [("GET", "done"), ("GET", "absent"), ("SET", "done"), ("DELETE", "done"), ("CAS", "done")] {
        assert!(cell(&text, row, column) > 0, "{row} {column}: {text}");
    }
    assert!(cell(&text, "CAS", "refused") > 0 && cell(&text, "INCR", "done") > 0, "{text}");
    assert!(!text.contains("\n0 restarts") && !text.contains(" 0 client processes killed"), "{text}");
    text
}

/// Returns the findings in a server with that flaw.
fn found(flaw: Flaw) -> String {
    let server = flawed::Server::start(flaw);
    let (output, text) = check(&[
        "-q",
        "-n",
        "4000",
        "--cold",
        "50",
        "--warm",
        "8",
        "--readers",
        "0",
        "--at",
        &server.address,
        "--kill-client-every",
        "0",
    ]);
    assert_eq!(output.status.code(), Some(i32::from(flaw != Flaw::None)), "{flaw:?}: {text}");
    text
}

#[test]
fn a_server_without_a_flaw_has_none() {
    assert!(found(Flaw::None).contains(": 0 violations"));
}

#[test]
fn an_old_value_that_is_seen_again_is_found() {
    assert!(found(Flaw::Stale).contains("came back"));
}

#[test]
fn a_value_of_two_is_found() {
    assert!(found(Flaw::Torn).contains("torn value"));
}

#[test]
fn a_deletion_that_does_not_delete_is_found() {
    let text = found(Flaw::Undeleted);
    assert!(text.contains("came back") || text.contains("no order"), "{text}");
}

#[test]
fn a_deletion_of_what_was_not_there_is_found() {
    assert!(found(Flaw::DeletedTwice).contains("no order"));
}

#[test]
fn a_lost_update_is_found() {
    let text = found(Flaw::LostUpdate);
    assert!(text.contains("value written twice") || text.contains("value replaced twice"), "{text}");
}

#[test]
fn a_value_under_a_wrong_key_is_found() {
    let text = found(Flaw::WrongKey);
    assert!(text.contains("value that was never written") && text.contains("was written to"), "{text}");
}

#[test]
fn a_wrong_call_says_what_would_be_right() {
    let (output, _) = check(&["--transports", "carrier-pigeon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tcp, socket, shm, iwarp, datagrams and hybrid"));
}
