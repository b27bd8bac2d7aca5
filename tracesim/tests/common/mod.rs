//! The command as a process.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Returns the sample traces.
pub(crate) fn golden(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../traces/data/golden").join(name).display().to_string()
}

/// Returns the command, in a directory of its own where it matters.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracesim"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RAYON_NUM_THREADS");
    command
}

/// Runs it to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command starts")
}

/// Returns the output of a success.
pub(crate) fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tracesim {}: {}: {said}", arguments.join(" "), output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the error output of a failure with this status, which prints nothing else.
pub(crate) fn complaint(arguments: &[&str], status: i32) -> String {
    let output = run(arguments);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(status), "tracesim {}: {said}", arguments.join(" "));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "tracesim {}", arguments.join(" "));
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// Returns a directory that goes with its owner.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Returns a path in it.
pub(crate) fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Returns the names of the folder's files, hidden ones too.
pub(crate) fn names(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("it is there");
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
