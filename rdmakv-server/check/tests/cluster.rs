//! `rdmakv-check cluster`, as a shell uses it. It is skipped, with a line, on machines without etcd.

use std::process::{Command, Stdio};

/// Returns the exit code, and what was written.
fn check(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rdmakv-check")).arg("cluster").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn no_write_is_lost() {
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return println!("skipped: etcd is not installed");
    }
    let none = ["--pauses", "0", "--outages", "0", "--leaders", "0"];
    let some = ["--kills", "1", "--cuts", "1", "--drains", "1"];
    let size = ["-n", "1200", "-t", "3", "--servers", "4", "--etcds", "1", "--seed", "5"];
    let (code, said, why) = check(&[&none[..], &some, &size].concat());
    assert_eq!(code, 0, "{said}{why}");
    let was_cut = why.contains("no server is cut off: ") || said.contains("  server cut off from etcd       1");
    assert!(was_cut && said.contains("  server killed                  1"), "{said}{why}");
    assert!(said.contains("  server drained                 1"), "{said}{why}");
    assert!(said.contains("lost writes: 0; violations: 0; undecided keys: 0\n"), "{said}");
    assert!(["reads", "sets", "compared", "increments"].iter().all(|name| said.contains(name)), "{said}");
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    for (arguments, expected) in [
        (&["--servers", "2"][..], "choose a policy: there are fewer servers"),
        (&["--servers", "3"], "no server could take the keys of one that drains"),
        (&["--policy", "none"], "values would not survive a server"),
        (&["--etcds", "1"], "the other etcds have to elect one"),
    ] {
        let (code, _, why) = check(arguments);
        assert!(code == 1 && why.contains(expected), "{why}");
    }
}
