//! Programs under the library, over a libfabric that has only a cache, and over the system's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the library that is tested: cargo builds it beside the tests.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libmrrc_fabric.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// Returns the folder of the compiled programs.
fn built() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let directory = tempfile::tempdir().unwrap();
            let (at, tests) = (directory.path(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
            let compile = |source: &str, product: &str, arguments: &[&str]| {
                let mut cc = Command::new("cc");
                cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(tests.join("fake"));
                cc.arg(tests.join(source)).arg("-o").arg(at.join(product)).arg("-L").arg(at).args(arguments);
                let output = cc.output().unwrap();
                assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
            };
            let shared = ["-shared", "-fPIC", "-Wl,-soname,libfabric.so.1", "-lpthread"];
            compile("fake/libfabric.c", "libfabric.so.1", &shared);
            compile("programs/remaps.c", "remaps", &["-l:libfabric.so.1", "-lpthread"]);
            compile("programs/importer.c", "importer", &["-ldl"]);
            directory
        })
        .path()
}

struct Ran {
    said: String,
    complained: String,
    code: Option<i32>,
}

fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(built().join(program));
    command.args(arguments).env("LD_LIBRARY_PATH", built()).env_remove("MRRC_FABRIC_LIBRARY");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { said: text(output.stdout), complained: text(output.stderr), code: output.status.code() }
}

/// Runs `remaps` under the library: returns the registrations. Fails if a hit was stale.
fn registrations(arguments: &[&str]) -> u64 {
    let library = library();
    let ran = run("remaps", arguments, &[("LD_PRELOAD", library.to_str().unwrap())]);
    assert!(ran.code == Some(0) && ran.complained.is_empty(), "{:?}: {}{}", ran.code, ran.said, ran.complained);
    let counts = ran.said.trim().strip_prefix("registered ").and_then(|rest| rest.split_once(", stale "));
    let (registered, stale) = counts.unwrap_or_else(|| panic!("{}", ran.said));
    assert_eq!(stale, "0", "{arguments:?}: {}", ran.said);
    registered.parse().unwrap()
}

/// Whether this system gives userfaultfds.
fn has_userfaultfd() -> bool {
    let is_there = mrrc::invalidation::Userfaultfd::new().is_ok();
    if !is_there {
        println!("no userfaultfd here: nothing is tested");
    }
    is_there
}

#[test]
fn steady_buffers_are_registered_once() {
    if has_userfaultfd() {
        assert_eq!(registrations(&["10000", "8", "0", "0", "remap"]), 8);
    }
}

#[test]
fn remapped_buffers_are_never_stale() {
    if !has_userfaultfd() {
        return;
    }
    for how in ["remap", "move"] {
        // Each round has a change of its own, and other threads change memory. A move leaves a hole, which they would fill.
        registrations(&["3000", "8", "1", if how == "move" { "0" } else { "3" }, how]);
        // Once libfabric was told, nothing registers but the first transfer of each buffer.
        assert_eq!(registrations(&["10000", "8", "100", "0", how]), 8, "{how}");
    }
}

#[test]
fn discarded_buffers_are_never_stale() {
    if has_userfaultfd() {
        registrations(&["3000", "8", "10", "2", "discard"]);
    }
}

#[test]
fn second_import_answers_busy() {
    let library = library();
    let library = library.to_str().unwrap();
    let fake = built().join("libfabric.so.1");
    for libfabric in [fake.to_str().unwrap(), "/usr/lib/x86_64-linux-gnu/libfabric.so.1"] {
        if !Path::new(libfabric).exists() {
            println!("{libfabric} is not there");
            continue;
        }
        let variables = [("LD_PRELOAD", library), ("MRRC_FABRIC_LIBRARY", libfabric)];
        let under = run("importer", &[libfabric], &variables);
        assert_eq!((under.code, &*under.said, &*under.complained), (Some(0), "own: -16\n", ""), "{libfabric}");
        // The library is loaded after the program has imported a monitor of its own.
        let after = run("importer", &[libfabric, library], &[("MRRC_FABRIC_LIBRARY", libfabric)]);
        assert_eq!((after.code, &*after.said), (Some(0), "own: 0\nmrrc: -16\n"), "{libfabric}");
        assert!(after.complained.contains("libfabric has another monitor"), "{}", after.complained);
        assert_eq!(after.complained.lines().count(), 1, "{}", after.complained);
    }
}

#[test]
fn a_monitor_that_the_user_names_is_left_to_libfabric() {
    let library = library();
    let variables = [("LD_PRELOAD", library.to_str().unwrap()), ("FI_MR_CACHE_MONITOR", "disabled")];
    let ran = run("remaps", &["10", "2", "0", "0", "remap"], &variables);
    assert!(ran.complained.contains("FI_MR_CACHE_MONITOR is set"), "{}", ran.complained);
    // A program without libfabric hears nothing.
    let shell = Command::new("true").envs(variables).output().unwrap();
    assert!(shell.status.success() && shell.stderr.is_empty());
}

#[test]
fn a_line_that_cannot_be_printed_ends_no_program() {
    let library = library();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new("true");
    command.env("LD_PRELOAD", library).env("MRRC_FABRIC_LIBRARY", "/nowhere/libfabric.so.1").stderr(full);
    assert_eq!(command.status().unwrap().code(), Some(0));
}

#[test]
fn programs_without_libfabric_are_left_alone() {
    let library = library();
    let library = library.to_str().unwrap();
    let alone = run("importer", &[], &[("LD_PRELOAD", library)]);
    assert_eq!((alone.code, &*alone.said, &*alone.complained), (Some(77), "", ""));
    let wrong = run("importer", &[], &[("LD_PRELOAD", library), ("MRRC_FABRIC_LIBRARY", "/nowhere/libfabric.so")]);
    assert!(
        wrong.complained.starts_with("mrrc-fabric: import a monitor: MRRC_FABRIC_LIBRARY: "),
        "{}",
        wrong.complained
    );
    assert_eq!((wrong.code, wrong.complained.lines().count()), (Some(77), 1), "{}", wrong.complained);
}
