//! The README's list of flags is true.

use std::collections::BTreeSet;
use std::process::Command;

const README: &str = include_str!("../README.md");

/// Whatever looks like a long flag in these lines.
fn flags<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in lines {
        for (at, _) in line.match_indices("--") {
            let name = line[at + 2..].split(|c: char| !c.is_ascii_alphabetic() && c != '-' && c != '_').next().unwrap();
            if !name.trim_matches('-').is_empty() {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn flag_table_equals_help() {
    let help = Command::new(env!("CARGO_BIN_EXE_rdmakv-server")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let table = README.lines().skip_while(|line| *line != "## Flags").take_while(|line| !line.starts_with("| signal"));
    let kernel = README
        .lines()
        .skip_while(|line| *line != "## GETs in the kernel")
        .take_while(|line| *line != "## More items than memory");
    let modules =
        README.lines().skip_while(|line| *line != "### Far memory").take_while(|line| *line != "## The client");
    // Help names them where they work.
    let table = table.chain(kernel.filter(|_| cfg!(feature = "bpf"))).chain(modules.filter(|_| cfg!(feature = "wasm")));
    let listed = flags(table.filter(|line| line.starts_with('|')).map(|line| line.split(" | ").next().unwrap()));
    let known = flags(help.lines().map(str::trim_start).filter(|line| line.starts_with('-')));
    assert_eq!(listed, known);
}

#[test]
fn tour_of_a_cluster_waits_for_its_servers() {
    let tour = README.lines().skip_while(|line| *line != "## A server in a cluster");
    let tour: Vec<&str> = tour.skip_while(|line| *line != "```sh").take_while(|line| *line != "```").collect();
    let ports = tour.iter().find_map(|line| line.strip_prefix("for port in ")?.strip_suffix("; do")).unwrap();
    let wait = format!("rdmakv cluster status --wait 60 --up {} ", ports.split(' ').count());
    let place = |beginning: &str| tour.iter().position(|line| line.starts_with(beginning)).unwrap();
    assert!(place("done") < place(&wait) && place(&wait) < place("rdmakv set "), "{tour:?}");
}
