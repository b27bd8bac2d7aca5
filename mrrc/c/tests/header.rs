//! The header: it is what the sources make, compilers take it, and the library has what it declares and nothing else.

mod common;

use common::{Installed, compile, crate_file, run, tool};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// In the order in which the header has them.
const SOURCES: [&str; 10] =
    ["status", "access", "options", "callbacks", "cache", "lease", "begun", "changes", "arena", "report"];

#[test]
fn the_header_is_what_the_sources_make() {
    let config = cbindgen::Config::from_file(crate_file("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_file(&format!("src/{source}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = tidied(&String::from_utf8(made).unwrap());
    let place = crate_file("include/mrrc.h");
    if std::env::var("MRRC_H").is_ok_and(|word| word == "write") {
        fs::write(&place, &made).unwrap();
    }
    let committed = fs::read_to_string(&place).unwrap_or_default();
    let differs = made.lines().zip(committed.lines()).enumerate().find(|(_, (made, committed))| made != committed);
    assert!(
        made == committed,
        "include/mrrc.h is not what the sources make, at {differs:?}: MRRC_H=write cargo test -p mrrc-c --test header"
    );
}

#[test]
fn options_are_the_table_of_settings() {
    let source = fs::read_to_string(crate_file("src/options.rs")).unwrap();
    let is_row = |line: &&str| line.starts_with("/// | ") && !line.contains("| name ") && !line.contains("| ---");
    let rows: Vec<_> = source.lines().filter(is_row).filter(|line| !line.contains("| environment ")).collect();
    let row = |setting: &mrrc::settings::Setting| format!("/// | {:<23} | {:<85} |", setting.name(), setting.help());
    assert_eq!(rows, mrrc::settings::all().iter().map(row).collect::<Vec<_>>());
}

#[test]
fn every_source_with_symbols_is_in_the_header() {
    for entry in fs::read_dir(crate_file("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let exports = text.contains("#[unsafe(no_mangle)]") || text.contains("pub const MRRC_");
        assert_eq!(exports, SOURCES.contains(&&*name), "{name}");
    }
}

#[test]
fn header_compiles_without_warnings() {
    let directory = tempfile::tempdir().unwrap();
    let text = "#include <mrrc.h>\n#include <mrrc.h>\nint main(void) { mrrc_lease_t lease = { { 0 } }; return mrrc_release(&lease) == MRRC_OK; }\n";
    for (compiler, name, flags) in [
        ("cc", "header.c", &["-std=c11"][..]),
        ("cc", "header99.c", &["-std=c99"]),
        ("c++", "header.cc", &["-std=c++11", "-Wno-missing-field-initializers"]),
    ] {
        if !tool(compiler) {
            println!("not run: there is no {compiler} for the header");
            continue;
        }
        let source = directory.path().join(name);
        fs::write(&source, text).unwrap();
        let mut command = Command::new(compiler);
        command.args(flags).args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"]);
        run(command.arg(crate_file("include")).arg(source));
    }
}

#[test]
fn libraries_export_exactly_the_header() {
    let Some(installed) = Installed::here() else { return };
    let declared = declared();
    assert!(declared.len() > 30 && declared.contains("mrrc_acquire"), "{declared:?}");
    for (library, flags) in [("libmrrc.so", &["-D"][..]), ("libmrrc.a", &["-g"])] {
        let mut command = Command::new("nm");
        let listed =
            run(command.args(flags).args(["--defined-only", "--format=posix"]).arg(installed.library(library)));
        let symbols: BTreeSet<String> = listed
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(_, rest)| !rest.trim().is_empty())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(symbols, declared, "{library}");
    }
}

#[test]
fn every_function_of_the_header_can_be_linked() {
    let Some(installed) = Installed::here() else { return };
    let mut text = "#include <mrrc.h>\n#include <stdio.h>\nint main(void) {\n    void (*all[])(void) = {\n".to_owned();
    for name in declared() {
        text += &format!("        (void (*)(void)){name},\n");
    }
    text += "    };\n    printf(\"%zu %s\\n\", sizeof all / sizeof *all, mrrc_version());\n    return 0;\n}\n";
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("all.c");
    fs::write(&source, text).unwrap();
    let right = format!("{} {}", declared().len(), env!("CARGO_PKG_VERSION"));
    let program = compile(&installed, &source, &[]);
    assert_eq!(run(&mut installed.command(&program)).trim(), right);
    if !tool("c++") {
        println!("not run in part: there is no c++");
        return;
    }
    let program = directory.path().join("all");
    run(Command::new("c++")
        .args(["-x", "c++", "-o"])
        .arg(&program)
        .arg(&source)
        .args(installed.flags(&["--cflags", "--libs"])));
    assert_eq!(run(&mut installed.command(&program)).trim(), right);
}

#[test]
fn the_versions_agree() {
    let numbers = [mrrc_c::MRRC_VERSION_MAJOR, mrrc_c::MRRC_VERSION_MINOR, mrrc_c::MRRC_VERSION_PATCH];
    assert_eq!(numbers.map(|number| number.to_string()).join("."), env!("CARGO_PKG_VERSION"));
}

/// No blanks at the ends of lines, and comments of one line in one line.
fn tidied(made: &str) -> String {
    let lines: Vec<_> = made.trim_start().lines().map(str::trim_end).collect();
    let mut tidy = String::new();
    let mut next = 0;
    while next < lines.len() {
        let short = match &lines[next..] {
            [begin, text, end, ..] if begin.trim() == "/**" && end.trim() == "*/" => text.trim().strip_prefix("* "),
            _ => None,
        };
        match short {
            Some(text) => {
                let indent = &lines[next][..lines[next].len() - 3];
                tidy += &format!("{indent}/** {text} */\n");
                next += 3;
            }
            None => {
                tidy += lines[next];
                tidy.push('\n');
                next += 1;
            }
        }
    }
    tidy
}

/// Returns the names of the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(crate_file("include/mrrc.h")).unwrap();
    let mut code = String::new();
    let mut rest = &*header;
    while let Some(begin) = rest.find("/*") {
        code += &rest[..begin];
        rest = rest[begin..].split_once("*/").unwrap().1;
    }
    code += rest;
    let names = code.match_indices("mrrc_").filter_map(|(at, _)| {
        let text = &code[at..];
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let is_begin = !code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        (is_begin && text[end..].starts_with('(')).then(|| text[..end].to_owned())
    });
    names.collect()
}
