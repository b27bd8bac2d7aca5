//! The files that packages rely on: a page and completions for every command, which `man` and the shells take.

use clap::Command as Line;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn written() -> (TempDir, manual::Written) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written = manual::write(folder.path()).expect("the pages are written");
    (folder, written)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the output of a program, or a line that says that it is not there.
fn with(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: {program}: {error}");
            None
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Returns the targets of one kind that are installed: neither examples in packages of their own nor the fuzz targets.
fn targets(kind: &str) -> Vec<String> {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&cargo.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let others = ["own-policy", "uring-copy", "fuzz"];
    let installed = packages.filter(|package| !others.contains(&package["name"].as_str().expect("a name")));
    let targets = installed.flat_map(|package| {
        let targets = package["targets"].as_array().expect("targets");
        targets.iter().filter(|target| target["kind"].as_array().expect("kinds").iter().any(|it| it == kind))
    });
    targets.map(|target| target["name"].as_str().expect("a name").to_owned()).collect()
}

/// A command and all within it, with what is typed.
fn each(line: &Line, typed: String, act: &mut dyn FnMut(&Line, &str)) {
    act(line, &typed);
    for inner in line.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        each(inner, format!("{typed} {}", inner.get_name()), act);
    }
}

fn every(mut act: impl FnMut(&Line, &str)) {
    for line in manual::commands() {
        each(&line, line.get_name().to_owned(), &mut act);
    }
}

#[test]
fn every_command_has_a_page_and_completions() {
    let (folder, written) = written();
    for name in targets("bin").iter().filter(|name| *name != "manual") {
        for file in [
            format!("man/man1/{name}.1"),
            format!("bash-completion/completions/{name}"),
            format!("zsh/site-functions/_{name}"),
            format!("fish/vendor_completions.d/{name}.fish"),
        ] {
            assert!(folder.path().join(&file).exists(), "{file}: add {name} to manual's commands()");
        }
    }
    let mut inner = 0;
    every(|_, typed| {
        let page = folder.path().join(format!("man/man1/{}.1", typed.replace(' ', "-")));
        assert!(written.pages.contains(&page), "{}", page.display());
        inner += 1;
    });
    assert_eq!(written.pages.len(), inner + manual::BY_HAND.len());
}

#[test]
fn every_preloaded_library_has_a_page() {
    // The C library is for linking, and its manual is its header.
    for library in targets("cdylib").iter().filter(|name| *name != "mrrc_c") {
        let file = format!("lib{library}.so");
        assert!(manual::BY_HAND.iter().any(|(_, text)| text.contains(&file)), "{file}");
    }
}

#[test]
fn every_command_says_examples() {
    every(|line, typed| {
        let after = line.get_after_help().map_or_else(String::new, ToString::to_string);
        let called = |text: &str| text.lines().any(|line| line.trim_start().starts_with(typed));
        assert!(after.contains("Examples:") && called(&after), "{typed} --help has no example of it: {after}");
    });
}

#[test]
fn every_setting_is_in_the_page_of_settings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = |name: &str| manual::BY_HAND.iter().find(|(file, _)| *file == name).expect("a page").1;
    // A test of mrrc compares that table with the settings.
    let table = fs::read_to_string(root.join("mrrc/src/settings.md")).expect("the table of settings");
    let variables: Vec<_> =
        table.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0)).collect();
    assert!(variables.len() > 10, "{variables:?}");
    for variable in variables {
        assert!(page("mrrc.7").contains(variable), "{variable}");
    }
    let shim =
        fs::read_to_string(root.join("mrrc/preload/src/settings.rs")).expect("the source of the shim's settings");
    let words = shim.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    let own: Vec<_> = words.filter(|word| word.starts_with("MRRC_PRELOAD")).collect();
    assert!(own.len() >= 3, "{own:?}");
    for name in own.iter().filter(|name| !matches!(**name, "MRRC_PRELOAD_" | "MRRC_PRELOAD_SUMARY")) {
        assert!(page("mrrc-preload.7").contains(&format!("B {name}\n")), "{name}");
    }
}

#[test]
fn every_page_is_formatted_without_a_warning() {
    let (_folder, written) = written();
    let pages: Vec<_> = written.pages.iter().map(|page| text(page)).collect();
    if let Some(output) = with("man", &[&["--warnings", "-l"], &pages[..]].concat()) {
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
        let shown = said(&output);
        for page in &written.pages {
            let name = page.file_stem().expect("a name").to_string_lossy();
            assert!(shown.contains(&format!("{}(", name.to_uppercase())), "{name}");
        }
        assert!(shown.contains("mrrc 0."), "the version");
    }
    if let Some(output) = with("mandoc", &[&["-T", "lint", "-W", "error"], &pages[..]].concat()) {
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn page_has_examples_and_exit_status() {
    let (folder, _) = written();
    let page = fs::read_to_string(folder.path().join("man/man1/tracesim-compare.1")).expect("a page");
    let (_, examples) = page.split_once(".SH EXAMPLES\n").expect("a section of examples");
    assert!(examples.starts_with(".TP\n\\fBtracesim compare requests.csv\\fR\nevery policy"), "{examples}");
    let page = fs::read_to_string(folder.path().join("man/man1/tracesim.1")).expect("a page");
    assert!(page.contains(".SH \"EXIT STATUS\"\n0, 1 if the work failed"), "{page}");
}

/// Returns a shell's output, given the folder of its completions; none where there is no such shell.
fn completes(written: &manual::Written, shell: &str, folder: &str, script: &str) -> Option<String> {
    let folder: PathBuf = written.completions.iter().find(|file| file.ends_with(folder)).cloned().expect("completions");
    let output = with(
        shell,
        &["-c", &script.replace("FILE", text(&folder)).replace("DIR", text(folder.parent().expect("a folder")))],
    )?;
    assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {}", said(&output));
    Some(said(&output))
}

#[test]
fn shells_load_and_use_completions() {
    let (folder, written) = written();
    // In bash every one of them is loaded.
    for file in written.completions.iter().filter(|file| file.starts_with(folder.path().join("bash-completion"))) {
        if let Some(output) = with("bash", &["-c", &format!("source {}", file.display())]) {
            assert!(output.status.success() && output.stderr.is_empty(), "{}: {}", file.display(), said(&output));
        }
    }
    let bash =
        "source FILE; COMP_WORDS=(tracesim rep); COMP_CWORD=1; _tracesim tracesim rep tracesim; echo ${COMPREPLY[@]}";
    if let Some(said) = completes(&written, "bash", "bash-completion/completions/tracesim", bash) {
        assert_eq!(said.trim(), "replay reproduce");
    }
    let fish = "source FILE; complete -C 'tracesim repl'";
    if let Some(said) = completes(&written, "fish", "fish/vendor_completions.d/tracesim.fish", fish) {
        assert!(said.starts_with("replay"), "{said}");
    }
    let zsh = "fpath=(DIR $fpath); autoload -Uz compinit; compinit -u -D; for each in tracesim rdmakv-server rdmakv-bench side-by-side; \
               do print $each $_comps[$each]; autoload +X $_comps[$each]; done";
    if let Some(said) = completes(&written, "zsh", "zsh/site-functions/_tracesim", zsh) {
        assert!(said.contains("tracesim _tracesim") && said.contains("side-by-side _side-by-side"), "{said}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_manual")).args(["--prefix", "/proc/none"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("manual: /proc/none/share/man/man7/mrrc.7 cannot be written"), "{}", said(&output));
}
