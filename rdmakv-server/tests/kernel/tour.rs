//! The README's tour of GETs in the kernel, typed by a program.

use std::process::{Command, Stdio};

use rdmakv_bpf::pair::Pair;

use crate::common::SERVER;

const README: &str = include_str!("../../README.md");

/// Returns the blocks of this language in the README's section.
fn blocks(language: &str) -> Vec<&'static str> {
    let section = README.split_once("\n## GETs in the kernel\n").unwrap().1.split("\n## ").next().unwrap();
    let mut blocks = section.split("```").skip(1).step_by(2);
    blocks.by_ref().filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[test]
fn tour_in_the_readme_works() {
    if let Some(why) = Pair::lacks() {
        return println!("SKIPPED: the README's tour of GETs in the kernel: {why}");
    }
    let (typed, shown) = (blocks("sh"), blocks("text"));
    // The first builds the server, which was built already.
    assert!(typed.len() == 4 && typed[0].contains("cargo build") && shown.len() == 2);
    // Names of namespaces are files under /run: these are not the system's.
    let script = format!("set -e\nmount -t tmpfs tmpfs /run\n{}", typed[1..].concat());
    let script = script.replace("target/release/rdmakv-server", SERVER);
    // All of its processes end with the first.
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "-m", "-n", "-p", "-f", "--kill-child", "--mount-proc", "bash", "-c", &script]);
    command.stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for text in shown {
        assert!(said.contains(text), "{text}\nis not in\n{said}");
    }
}
