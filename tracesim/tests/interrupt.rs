//! Ctrl-C prints what is finished, leaves no partial file, and ends the command where it waits.
#![cfg(unix)]

mod common;

use common::{command, folder, golden, names, path};
use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Interrupts a process.
fn interrupt(child: &Child) {
    assert!(Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap().success());
}

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
            interrupt(&child);
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

/// Returns whether the process has a handler for SIGINT.
#[cfg(target_os = "linux")]
fn hears(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    u64::from_str_radix(caught.trim(), 16).is_ok_and(|caught| caught & (1 << 1) != 0)
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_one_ends_a_wait_for_a_pipe() {
    use std::time::{Duration, Instant};
    const PATIENCE: Duration = Duration::from_secs(300);
    let folder = folder();
    // It has no writer, so it cannot be opened.
    let pipe = path(&folder, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let results = path(&folder, "results");
    for arguments in [&["info", "-o", &results, &pipe][..], &["mrc", &pipe], &["bound", &pipe], &["convert", &pipe]] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let mut is_sent = false;
        let mut wait = || loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if !is_sent && hears(&child) {
                interrupt(&child);
                is_sent = true;
            }
            if begun.elapsed() > PATIENCE {
                child.kill().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let status = wait().unwrap_or_else(|| panic!("{arguments:?} does not end"));
        let output = child.wait_with_output().unwrap();
        assert_eq!(status.code(), Some(130), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "tracesim: interrupted\n", "{arguments:?}");
        assert_eq!((output.stdout, names(&folder)), (Vec::new(), vec!["pipe".to_owned()]), "{arguments:?}");
    }
}
