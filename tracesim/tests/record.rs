//! `record` runs a program as if it was not there, and says in a line what came of the recording.
#![cfg(target_os = "linux")]

mod common;

use common::{folder, path};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use traces_record::layout::{HEAD, Head, Operation, RECORD, Record};

/// Returns a library to preload. It records as the real ones do; what it records, [`program`] says.
fn library(folder: &TempDir) -> Option<PathBuf> {
    compile(folder, "libtraces_mpi.so", LIBRARY, &["-shared", "-fPIC"])
}

/// Maps the recording that the variable names, and writes as many records as `EVENTS` says when it is loaded.
const LIBRARY: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((constructor)) static void load(void) {
    const char *file = getenv("MRRC_RECORD"), *events = getenv("EVENTS"), *pages = getenv("RECORDS");
    if (!file || !events) return;
    int descriptor = open(file, O_RDWR), from = open(pages, O_RDONLY);
    if (descriptor < 0 || from < 0) return;
    uint64_t count = strtoull(events, NULL, 10);
    static char record[32];
    for (uint64_t n = 0; n < count && read(from, record, 32) == 32; n++) pwrite(descriptor, record, 32, 4096 + 32 * n);
    char *head = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    *(uint64_t *)(head + 64) = count;
    *(uint64_t *)(head + 128) = count;
    *(uint32_t *)(head + 192) = 1;
    *(uint32_t *)(head + 196) = 1;
    *(uint32_t *)(head + 204) = 2;
    unsetenv("EVENTS");
}
"#;

fn compile(folder: &TempDir, name: &str, source: &str, options: &[&str]) -> Option<PathBuf> {
    let (code, made) = (path(folder, "code.c"), folder.path().join(name));
    std::fs::write(&code, source).unwrap();
    let compiled = Command::new("cc").args(options).arg("-o").arg(&made).arg(&code).output();
    match compiled {
        Ok(output) if output.status.success() => Some(made),
        _ => {
            eprintln!("not run: there is no C compiler");
            None
        }
    }
}

fn record(folder: &TempDir, options: &[&str], program: &[&str]) -> Output {
    let file = path(folder, "x.reg");
    let mut arguments = vec!["record", "--library", folder.path().to_str().unwrap(), "-o", &file];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(program);
    common::command(&arguments).env_remove("TRACESIM_LIBRARY").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn output_status_and_signals_are_the_programs() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    let output = record(&folder, &["--what", "mpi"], &["sh", "-c", "cat; echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert!(said(&output).starts_with("err\n"), "{}", said(&output));
    let output = record(&folder, &["--what", "mpi"], &["sh", "-c", "kill -USR2 $$"]);
    assert_eq!(output.status.signal(), Some(12), "{}", said(&output));
}

#[test]
fn what_is_sent_to_it_is_sent_on_to_the_program() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    let file = path(&folder, "x.reg");
    let script = "trap 'echo heard; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let library = folder.path().to_str().unwrap();
    let arguments = ["record", "--library", library, "--what", "mpi", "-o", &file, "--", "sh", "-c", script];
    let mut child = common::command(&arguments).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    assert!(Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status().unwrap().success());
    assert_eq!(lines.next().unwrap().unwrap(), "heard");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn what_was_recorded_is_counted_and_can_be_read() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    let records = path(&folder, "records");
    let record_of = |n: u64| {
        let operation = if n.is_multiple_of(2) { Operation::Acquire } else { Operation::Release };
        Record {
            operation,
            access: 3,
            process: 10,
            thread: 10,
            time: n,
            address: (n / 2) << 12,
            length: 100,
            domain: 0,
        }
        .bytes()
    };
    std::fs::write(&records, (2..100).flat_map(record_of).collect::<Vec<u8>>()).unwrap();
    let file = path(&folder, "x.reg");
    let library = folder.path().to_str().unwrap();
    let arguments = ["record", "--library", library, "-o", &file, "--", "true"];
    let output = common::command(&arguments).env("EVENTS", "98").env("RECORDS", &records).output().unwrap();
    assert!(said(&output).contains("98 events of 1 process in"), "{}", said(&output));
    assert!(said(&output).contains("without verbs: libmrrc_preload.so is not there"), "{}", said(&output));
    let info = common::stdout(&["info", &file]);
    assert!(info.contains("49 acquires, 49 releases"), "{info}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), (HEAD + 98 * RECORD) as u64);
}

#[test]
fn unused_libraries_leave_an_empty_recording() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    let output = record(&folder, &["--what", "mpi"], &["true"]);
    assert!(output.status.success());
    assert_eq!(said(&output).lines().count(), 1);
    assert!(said(&output).contains("holds nothing: the program called no verbs and no MPI"), "{}", said(&output));
    let bytes = std::fs::read(path(&folder, "x.reg")).unwrap();
    assert_eq!(Head::of_bytes(bytes[..].try_into().unwrap()).unwrap().claimed, 0);
    let complaint = common::complaint(&["advise", &path(&folder, "x.reg")], 1);
    assert!(complaint.contains("no requests in it"), "{complaint}");
}

#[test]
fn a_failed_program_is_reported_as_such() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    for (script, status) in [("exit 3", "exit status: 3"), ("kill -KILL $$", "signal: 9 (SIGKILL)")] {
        let output = record(&folder, &["--what", "mpi"], &["sh", "-c", script]);
        let expected = format!("holds nothing: the program failed ({status}) before it used verbs or MPI");
        assert!(said(&output).contains(&expected), "{}", said(&output));
        assert!(!said(&output).contains("called no"), "{}", said(&output));
    }
}

#[test]
fn unwritable_recording_fails_before_the_program() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    std::fs::create_dir(path(&folder, "x.reg")).unwrap();
    let nowhere = path(&folder, "no/such/x.reg");
    for more in [&["--what", "mpi"][..], &["--what", "mpi", "-o", &nowhere]] {
        let library = folder.path().to_str().unwrap();
        let mut arguments = vec!["record", "--library", library];
        let file = path(&folder, "x.reg");
        if !more.contains(&"-o") {
            arguments.extend(["-o", &file]);
        }
        arguments.extend(more);
        arguments.extend(["--", "sh", "-c", "echo out; exit 5"]);
        let output = common::command(&arguments).env_remove("TRACESIM_LIBRARY").output().unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
        assert!(said(&output).contains("name another file by --output; the program was not run"), "{}", said(&output));
    }
}

#[test]
fn missing_program_keeps_the_old_recording() {
    let folder = folder();
    let Some(_) = library(&folder) else { return };
    std::fs::write(path(&folder, "x.reg"), "of yesterday").unwrap();
    for program in ["no-such-program", "./no-such-program"] {
        let output = record(&folder, &["--what", "mpi"], &[program]);
        assert_eq!(output.status.code(), Some(127));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
        assert!(said(&output).contains(&format!("{program}: not found")), "{}", said(&output));
    }
    assert_eq!(std::fs::read(path(&folder, "x.reg")).unwrap(), b"of yesterday");
    let plain = path(&folder, "plain");
    std::fs::write(&plain, "no program").unwrap();
    assert_eq!(record(&folder, &["--what", "mpi"], &[&plain]).status.code(), Some(126));
}

#[test]
fn missing_library_names_what_builds_it() {
    let folder = folder();
    let output = record(&folder, &["--what", "verbs"], &["touch", &path(&folder, "ran")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cargo build --release -p mrrc-preload"), "{}", said(&output));
    assert!(!Path::new(&path(&folder, "ran")).exists());
}

#[test]
fn wrong_usage_is_said() {
    for (arguments, what) in [
        (&["record"][..], "required"),
        (&["record", "true"], "--"),
        (&["record", "-o", "-", "--", "true"], "it is a file"),
        (&["record", "--limit", "much", "--", "true"], "no size"),
        (&["record", "--limit", "4K", "--", "true"], "no room for an event"),
        (&["record", "--what", "dreams", "--", "true"], "auto, verbs, mpi"),
    ] {
        let complaint = common::complaint(arguments, 2);
        assert!(complaint.contains(what), "{arguments:?}: {complaint}");
    }
}
