//! Settings by environment variables, as a program meets them: in processes of their own.

mod common;

use common::*;
use mrrc::Cache;
use std::process::Command;

const CHILD: &str = "MRRCTEST_BUILDS";

#[test]
#[ignore = "for the other tests of this file"]
fn child_builds_a_cache() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let built = Cache::builder(device()).capacity_pages(100).max_regions(50).monitor(mrrc::invalidation::Explicit);
    match built.build() {
        Ok(cache) => {
            let usage = cache.usage();
            let times = if cache.latencies().is_some() { "timed" } else { "not timed" };
            println!(
                "built: {} pages, {} regions, {times}, {}",
                usage.capacity_pages,
                usage.capacity_regions,
                cache.monitor()
            );
        }
        Err(error) => println!("refused: {error}"),
    }
}

/// What a program with these variables says.
fn build_with(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_builds_a_cache", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let line =
        said.lines().find_map(|line| line.find("built:").or(line.find("refused:")).map(|at| line[at..].to_owned()));
    line.unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn who_runs_a_program_has_the_last_word() {
    assert_eq!(build_with(&[]), "built: 100 pages, 50 regions, not timed, explicit");
    let variables = [("MRRC_CAPACITY", "256K"), ("MRRC_MAX_REGIONS", "7"), ("MRRC_HISTOGRAMS", "on")];
    assert_eq!(build_with(&variables), "built: 64 pages, 7 regions, timed, explicit");
    assert_eq!(build_with(&[("MRRC_CAPACITY", " "), ("MRRC_SOMETHING", "x")]), build_with(&[]));
}

#[test]
fn what_makes_no_sense_is_said_with_what_would() {
    for (name, value) in [
        ("MRRC_CAPACITY", "lots"),
        ("MRRC_CAPACITY", "99999999999T"),
        ("MRRC_MAX_REGIONS", "-1"),
        ("MRRC_POLICY", "best"),
        ("MRRC_EVICT", "2"),
        ("MRRC_MONITOR", "none"),
        ("MRRC_PATIENCE", "10"),
        ("MRRC_MAX_SEGMENTS", "0"),
        ("MRRC_BACKGROUND", "maybe"),
    ] {
        let said = build_with(&[(name, value)]);
        assert!(said.starts_with("refused: ") && said.contains(name) && said.contains("expected"), "{said}");
    }
    let said = build_with(&[("MRRC_CAPACTIY", "64M")]);
    assert!(said.contains("did you mean MRRC_CAPACITY?"), "{said}");
    for nothing in ["0", "4095"] {
        let said = build_with(&[("MRRC_CAPACITY", nothing)]);
        assert!(said.contains("MRRC_CAPACITY") && said.contains("at least 4096"), "{said}");
    }
    let said = build_with(&[("MRRC_POLICY", "best")]);
    assert!(said.contains("nccl") && said.contains("w-tinylfu"), "{said}");
}
