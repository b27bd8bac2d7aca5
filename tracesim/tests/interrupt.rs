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

/// Waits with much patience until something holds. Returns whether it does.
#[cfg(target_os = "linux")]
fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    use std::time::{Duration, Instant};
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > Duration::from_secs(300) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Interrupts a process once that holds. Returns its exit status; it is killed if it does not end.
#[cfg(target_os = "linux")]
fn interrupted_once(child: &mut Child, mut holds: impl FnMut(&Child) -> bool) -> Option<i32> {
    assert!(wait_until(|| holds(child)), "it does not come so far");
    interrupt(child);
    let mut status = None;
    let ended = wait_until(|| {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !ended {
        child.kill().unwrap();
    }
    status.and_then(|status| status.code())
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_one_removes_a_file_of_a_stalled_pipe() {
    let folder = folder();
    let pipe = path(&folder, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (to, name) in [("pages", "out.csv"), ("registrations-binary", "out.reg.zst")] {
        let out = path(&folder, name);
        let mut child = command(&["convert", "--format", "pages", "--to", to, &pipe, &out]);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut writer = File::options().write(true).open(&pipe).unwrap();
        writer.write_all(b"start_page,pages\n").unwrap();
        writer.write_all(&b"1,1\n".repeat(1 << 18)).unwrap();
        // The file is being made, and the rest does not come.
        let code = interrupted_once(&mut child, |_| names(&folder).iter().any(|name| name.starts_with(".out")));
        let output = child.wait_with_output().unwrap();
        assert_eq!(code, Some(130), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "tracesim: interrupted\n");
        assert_eq!(names(&folder), ["pipe"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_standard_error_keeps_no_interruption() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let folder = folder();
    let pipe = path(&folder, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let error = writer.try_clone().unwrap();
    let written = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        // It writes on as long as there is room, and ends with the reader.
        threads.spawn(|| {
            while writer.write_all(b"x").is_ok() {
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut before = 0;
        let is_full = || {
            let now = written.load(Ordering::Relaxed);
            now > 0 && std::mem::replace(&mut before, now) == now
        };
        assert!(wait_until(is_full));
        let mut child = command(&["info", &pipe]).stdout(Stdio::null()).stderr(error).spawn().unwrap();
        assert_eq!(interrupted_once(&mut child, hears), Some(130));
        child.wait().unwrap();
        drop(reader);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_one_ends_a_wait_for_a_pipe() {
    let folder = folder();
    // It has no writer, so it cannot be opened.
    let pipe = path(&folder, "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let results = path(&folder, "results");
    for arguments in [&["info", "-o", &results, &pipe][..], &["mrc", &pipe], &["bound", &pipe], &["convert", &pipe]] {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let code = interrupted_once(&mut child, hears);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code, Some(130), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "tracesim: interrupted\n", "{arguments:?}");
        assert_eq!((output.stdout, names(&folder)), (Vec::new(), vec!["pipe".to_owned()]), "{arguments:?}");
    }
}
