//! Compiles the program where the feature `bpf` asks for it.

use std::path::{Path, PathBuf};
use std::process::Command;

const NEEDED: &str =
    "feature \"bpf\" compiles gets.bpf.c: clang 14 or later is needed (apt-get install clang), or CLANG=its path";

fn main() {
    for file in ["gets.bpf.c", "helpers.h", "layout.h"] {
        println!("cargo:rerun-if-changed=src/{file}");
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("gets.bpf.o");
    let clang = clang().unwrap_or_else(|| panic!("{NEEDED}"));
    let mut command = Command::new(&clang);
    command.args(["-g", "-O2", "-mcpu=v3", "-target", "bpfel", "-Wall", "-Werror", "-Wno-unused-function"]);
    // Only x86 keeps the order of loads.
    if arch != "x86_64" {
        command.arg("-DORDER_BY_ADDITION");
    }
    let status = command.arg("-c").arg(Path::new("src/gets.bpf.c")).arg("-o").arg(&out).status();
    assert!(status.is_ok_and(|status| status.success()), "{clang} does not compile gets.bpf.c: {NEEDED}");
}

/// Returns the clang to use: CLANG, or the first of the usual names that says that it is 14 or later.
fn clang() -> Option<String> {
    if let Ok(own) = std::env::var("CLANG") {
        return Some(own);
    }
    let names = ["clang".to_owned()].into_iter().chain((14..=24).rev().map(|version| format!("clang-{version}")));
    names.into_iter().find(|name| {
        let Ok(output) = Command::new(name).arg("-dumpversion").output() else { return false };
        let version = String::from_utf8_lossy(&output.stdout);
        version.split('.').next().and_then(|major| major.trim().parse().ok()).is_some_and(|major: u32| major >= 14)
    })
}
