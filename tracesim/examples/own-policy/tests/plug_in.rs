//! A policy of another crate takes part in every command of `tracesim` that runs policies.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Requests for single pages: a loop over 40 of them, and 20 that come again and again.
fn trace(folder: &Path) -> String {
    let file = folder.join("pages.csv");
    let line = |n: u64| if n.is_multiple_of(3) { n / 3 % 20 } else { 100 + n % 40 };
    let lines: String = (0..3_000).map(|n| format!("{},1\n", line(n))).collect();
    std::fs::write(&file, format!("start_page,pages\n{lines}")).unwrap();
    file.to_string_lossy().into_owned()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_own-policy")).args(arguments).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = run(arguments);
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn rows(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Second chance by hand: the pages and their marks, oldest first.
fn misses(capacity: usize) -> u64 {
    let mut queue: std::collections::VecDeque<(u64, bool)> = std::collections::VecDeque::new();
    let mut misses = 0;
    for n in 0..3_000_u64 {
        let page = if n.is_multiple_of(3) { n / 3 % 20 } else { 100 + n % 40 };
        if let Some((_, used)) = queue.iter_mut().find(|(known, _)| *known == page) {
            *used = true;
            continue;
        }
        misses += 1;
        while queue.len() == capacity {
            match queue.pop_front() {
                Some((page, true)) => queue.push_back((page, false)),
                _ => break,
            }
        }
        queue.push_back((page, false));
    }
    misses
}

#[test]
fn replay_counts_what_the_policy_does() {
    let folder = tempfile::tempdir().unwrap();
    let found = rows(&stdout(&["replay", "-p", "second-chance", "-c", "30p", "--json", &trace(folder.path())]));
    assert_eq!(found[0]["policy"], "second-chance");
    assert_eq!(found[0]["miss"], misses(30), "{found:?}");
}

#[test]
fn compare_reports_it_beside_others() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, page) = (trace(folder.path()), folder.path().join("page.html"));
    let report = page.to_string_lossy().into_owned();
    let compare = ["compare", "-p", "second-chance,mrrc,sieve", "-c", "30p,10%", "--report", &report, &trace];
    let table = stdout(&compare);
    assert!(table.contains("second-chance") && table.contains("mrrc"), "{table}");
    assert!(std::fs::read_to_string(page).unwrap().contains("second-chance"));
    let all = rows(&stdout(&["compare", "--json", "-c", "30p", &trace]));
    assert!(all.iter().any(|row| row["policy"] == "second-chance"), "`all` has it as well");
    let bound = |row: &&Value| row["policy"] == "second-chance" && row["lower_bound_us"].is_number();
    assert!(all.iter().any(|row| bound(&row)), "the lower bound holds for it");
}

/// The plain command merges shards of a policy that it does not have: they name it.
#[test]
fn shards_join_to_what_one_process_prints() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let compare = ["compare", "-p", "second-chance,mrrc", "-c", "30p,10%"];
    let shards: Vec<String> = (1..=3).map(|n| folder.path().join(format!("{n}.shard")).display().to_string()).collect();
    for (n, shard) in shards.iter().enumerate() {
        stdout(&[&compare[..], &["--shard", &format!("{}/3", n + 1), "-o", shard, &trace]].concat());
    }
    let merge: Vec<&str> = ["merge"].into_iter().chain(shards.iter().map(String::as_str)).collect();
    assert_eq!(stdout(&merge), stdout(&[&compare[..], &[&trace]].concat()));
}

#[test]
fn help_and_errors_name_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!(stdout(&["replay", "--help"]).contains("second-chance"));
    let output = run(&["replay", "-p", "third-chance", &trace(folder.path())]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint.contains("third-chance") && complaint.contains("second-chance"), "{complaint}");
    let complaint = run(&["replay", "nowhere.csv"]).stderr;
    assert!(String::from_utf8_lossy(&complaint).starts_with("own-policy: "), "{complaint:?}");
}
