//! Ctrl-C prints what is finished, and leaves no partial file.
#![cfg(unix)]

mod common;

use common::{command, folder, golden, names, path};
use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Compares on a trace that ends and on one that does not, and interrupts the latter.
fn interrupted(folder: &TempDir, more: &[&str]) -> Output {
    let endless = path(folder, "endless.csv");
    assert!(Command::new("mkfifo").arg(&endless).status().unwrap().success());
    let trace = golden("overlaps.csv");
    let mut arguments = vec!["compare", "--format", "pages", "-p", "pindown,sieve", "-c", "10%,64p"];
    arguments.extend(more);
    arguments.extend([trace.as_str(), &endless]);
    let child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // This waits until it is opened to be read: by then the first trace is done.
    let mut pipe = File::options().write(true).open(&endless).unwrap();
    let mut sent = 0;
    let _ = pipe.write_all(b"start_page,pages\n");
    while pipe.write_all(b"1,1\n2,1\n3,1\n").is_ok() {
        if sent == 0 {
            let interrupt = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
            assert!(interrupt.success());
        }
        sent += 1;
    }
    drop(pipe);
    std::fs::remove_file(endless).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn what_is_finished_is_printed() {
    let folder = folder();
    let output = interrupted(&folder, &["--json"]);
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_eq!(printed.lines().count(), 6, "two lines and two policies at two capacities: {printed}");
    assert_eq!(said, "tracesim: interrupted: 6 of 12 results finished, and printed\n");
    assert!(
        printed.lines().all(|line| line.starts_with("{\"trace\":\"overlaps.csv\"") && line.ends_with('}')),
        "{printed}"
    );
    let table = interrupted(&folder, &[]);
    assert_eq!(table.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&table.stdout).contains("(infinite cache)"));
}

#[test]
fn a_file_is_whole_or_not_there() {
    let folder = folder();
    let results = path(&folder, "results.json");
    let output = interrupted(&folder, &["--json", "-o", &results]);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 6, "what is finished goes to standard output");
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn no_page_is_made_of_half_a_study() {
    let folder = folder();
    let page = path(&folder, "page.html");
    let output = interrupted(&folder, &["--report", &page]);
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stdout).contains("(infinite cache)"), "what is finished is printed");
    assert_eq!(names(&folder), [""; 0]);
}
