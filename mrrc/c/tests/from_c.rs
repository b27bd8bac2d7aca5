//! Programs in C, against the installed library: what it promises, misuse, threads, forks; with the tools that see memory misused.
//!
//! Each program says `done`, or what is not so and ends with 1; 77 is that the system has not what it needs.

mod common;

use common::{Installed, compile, compile_with, crate_file, run, tool};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs a program that says `done` at its end.
fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        println!("{}", said.trim());
        return;
    }
    assert!(output.status.success() && said.trim() == "done", "{command:?}: {}\n{said}{complaint}", output.status);
}

fn program(installed: &Installed, name: &str) -> std::path::PathBuf {
    compile(installed, &crate_file(&format!("tests/c/{name}.c")), &[])
}

#[test]
fn leases_segments_lists_changes_arenas_and_numbers() {
    let Some(installed) = Installed::here() else { return };
    passes(&mut installed.command(program(&installed, "leases")));
}

#[test]
fn misuse_is_an_error_and_never_a_crash() {
    let Some(installed) = Installed::here() else { return };
    passes(&mut installed.command(program(&installed, "misuse")));
}

#[test]
fn threads_release_each_others_leases() {
    let Some(installed) = Installed::here() else { return };
    passes(installed.command(program(&installed, "threads")).arg("5000"));
}

#[test]
fn a_child_has_no_use_of_its_parents_cache() {
    let Some(installed) = Installed::here() else { return };
    passes(&mut installed.command(program(&installed, "fork")));
}

#[test]
fn the_kernel_tells_of_changes() {
    let Some(installed) = Installed::here() else { return };
    passes(&mut installed.command(program(&installed, "changes")));
}

#[test]
fn valgrind_finds_no_misuse_of_memory_and_no_leak() {
    if !tool("valgrind") {
        println!("not run: there is no valgrind");
        return;
    }
    let Some(installed) = Installed::here() else { return };
    // A child leaks its parent's cache, on purpose.
    for (name, leaks) in [("leases", "full"), ("misuse", "full"), ("fork", "no")] {
        let mut command = installed.command("valgrind");
        command.args(["--quiet", "--fair-sched=try", "--error-exitcode=9", &format!("--leak-check={leaks}")]);
        command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
        passes(command.arg(program(&installed, name)));
    }
}

#[test]
fn address_sanitizer_finds_nothing() {
    let Some(installed) = Installed::here() else { return };
    let flags = static_flags(&installed);
    let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
    flags.push("-fsanitize=address,undefined");
    if !has_sanitizers(&installed) {
        println!("not run: the compiler has no sanitizers");
        return;
    }
    for (name, arguments) in [("leases", &[][..]), ("misuse", &[]), ("threads", &["2000"])] {
        let program = compile_with(&installed, &crate_file(&format!("tests/c/{name}.c")), "sanitized", &flags);
        passes(installed.command(program).args(arguments));
    }
}

fn has_sanitizers(installed: &Installed) -> bool {
    let (source, program) = (installed.programs().join("nothing.c"), installed.programs().join("nothing"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let compiled = Command::new("cc").args(["-fsanitize=address,undefined", "-o"]).arg(&program).arg(&source).output();
    compiled.is_ok_and(|output| output.status.success())
        && Command::new(&program).output().is_ok_and(|output| output.status.success())
}

/// Returns the flags that link the static library and the usual rest.
fn static_flags(installed: &Installed) -> Vec<String> {
    let flags = installed.flags(&["--static", "--cflags", "--libs"]);
    flags.into_iter().map(|flag| if flag == "-lmrrc" { "-l:libmrrc.a".to_owned() } else { flag }).collect()
}

#[test]
fn the_first_example_is_the_same_with_either_library() {
    let Some(installed) = Installed::here() else { return };
    let source = crate_file("examples/callbacks.c");
    let shared = compile(&installed, &source, &[]);
    let said = run(&mut installed.command(&shared));
    assert!(said.contains("hits            9  90.0 %") && said.contains("the card deregisters key 1"), "{said}");
    assert!(needed(&shared).contains("libmrrc.so.0"), "{}", needed(&shared));

    let flags = static_flags(&installed);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let linked = compile_with(&installed, &source, "static", &flags);
    assert!(!needed(&linked).contains("mrrc"), "{}", needed(&linked));
    assert_eq!(run(installed.command(&linked).env_remove("LD_LIBRARY_PATH")), said);

    // All of it, with the C library.
    let alone = compile_with(&installed, &source, "alone", &[&flags[..], &["-static"]].concat());
    assert_eq!(run(installed.command(&alone).env_remove("LD_LIBRARY_PATH")), said);
}

/// Returns the shared libraries that a program needs.
fn needed(program: &Path) -> String {
    run(Command::new("objdump").arg("-p").arg(program)).lines().filter(|line| line.contains("NEEDED")).collect()
}

#[test]
fn pins_example_sends_current_memory() {
    let Some(installed) = Installed::here() else { return };
    let program = compile(&installed, &crate_file("examples/pins.c"), &[]);
    let output = installed.command(&program).output().unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        println!("{}", complaint.trim());
        return;
    }
    assert!(output.status.success(), "{}: {said}{complaint}", output.status);
    for line in [
        "first:    memory holds A, registered now, A came out; 4 pages are pinned",
        "again:    memory holds A, was registered, A came out; 4 pages are pinned",
        "remapped: memory holds B, registered now, B came out; 4 pages are pinned",
        "freed:    0 pages are pinned",
    ] {
        assert!(said.contains(line), "not there: {line}\n{said}");
    }
}

#[test]
fn verbs_example_compiles_and_detects_the_device() {
    let Some(installed) = Installed::here() else { return };
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("not run: there is no <infiniband/verbs.h> (libibverbs-dev)");
        return;
    }
    let source = crate_file("examples/verbs.c");
    let shared = compile(&installed, &source, &["-libverbs"]);
    let flags = static_flags(&installed);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let linked = compile_with(&installed, &source, "static", &[&flags[..], &["-libverbs"]].concat());
    for program in [shared, linked] {
        let output = installed.command(program).arg("no such card").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("there is no RDMA device no such card"), "{said}");
    }
}

/// Returns the blocks of the README in this language, in their order.
fn blocks(language: &str) -> Vec<String> {
    let readme = fs::read_to_string(crate_file("README.md")).unwrap();
    let begin = format!("```{language}\n");
    readme.split(&begin).skip(1).map(|rest| rest.split("```\n").next().unwrap().to_owned()).collect()
}

#[test]
fn the_readmes_first_program_prints_what_it_says() {
    let Some(installed) = Installed::here() else { return };
    let source = installed.programs().join("first.c");
    fs::write(&source, &blocks("c")[0]).unwrap();
    let said = run(&mut installed.command(compile(&installed, &source, &[])));
    assert_eq!(said, blocks("text")[0]);
}

#[test]
fn the_readmes_other_pieces_compile() {
    let Some(installed) = Installed::here() else { return };
    let prelude = "\
#include <err.h>
#include <mrrc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
struct ibv_sge { uint64_t addr; uint32_t length; uint32_t lkey; };
enum { MAX_SGE = 16 };
void post(struct ibv_sge *sges, size_t count);
void piece(mrrc_cache_t *cache, mrrc_options_t *options, struct ibv_pd *pd, int ring_fd, char *buffer, size_t length);
void piece(mrrc_cache_t *cache, mrrc_options_t *options, struct ibv_pd *pd, int ring_fd, char *buffer, size_t length)
{
    mrrc_error_t error;
    mrrc_lease_t lease = { { 0 } };
    (void)cache, (void)options, (void)pd, (void)ring_fd, (void)buffer, (void)length, (void)error, (void)lease;
";
    let pieces = blocks("c");
    assert!(pieces.len() > 4);
    for (nth, piece) in pieces.iter().enumerate().skip(1) {
        let source = installed.programs().join(format!("piece{nth}.c"));
        fs::write(&source, format!("{prelude}{piece}}}\n")).unwrap();
        compile(&installed, &source, &["-c"]);
    }
}

#[test]
fn the_readme_names_every_function() {
    let readme = fs::read_to_string(crate_file("README.md")).unwrap();
    let header = fs::read_to_string(crate_file("include/mrrc.h")).unwrap();
    for line in header.lines() {
        let name = line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap();
        if line.contains('(') && name.starts_with("mrrc_") && !line.starts_with([' ', '/']) {
            assert!(readme.contains(name), "{name}");
        }
    }
}
