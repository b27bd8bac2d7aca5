//! `rdmakv-check cluster`, as a shell uses it. It is skipped, with a line, on machines without etcd.

use std::process::{Command, Stdio};

/// Returns the exit code, and what was written.
fn check(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmakv-check")).arg("cluster").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn no_write_is_lost_with_two_servers() {
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return println!("skipped: etcd is not installed");
    }
    let (code, said, why) = check(&["-n", "1200", "-t", "3", "--servers", "4", "--seed", "5"]);
    assert_eq!(code, 0, "{said}{why}");
    assert!(said.contains("faults: 1 servers killed, 1 paused, etcd killed 1 times\n"), "{said}");
    assert!(said.contains("lost writes: 0; violations: 0; undecided keys: 0\n"), "{said}");
    assert!(["reads", "sets", "compared", "increments"].iter().all(|name| said.contains(name)), "{said}");
}

#[test]
fn more_losses_than_copies_are_refused() {
    let (code, _, why) = check(&["--copies", "2"]);
    assert!(code == 1 && why.contains("fewer kills and pauses than copies"), "{why}");
    let (code, _, why) = check(&["--servers", "2"]);
    assert!(code == 1 && why.contains("more servers than copies"), "{why}");
}
