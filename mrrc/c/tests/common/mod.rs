//! The library installed as users install it, and programs compiled against that.

#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A tree that `install` made, the same for all tests of a program, and a place for what one test makes.
pub(crate) struct Installed {
    prefix: &'static Path,
    programs: TempDir,
}

impl Installed {
    /// Returns this build, installed. None, and a line that says so, where there are no tools for that.
    pub(crate) fn here() -> Option<Self> {
        static TREE: OnceLock<PathBuf> = OnceLock::new();
        for needed in ["bash", "cc", "nm", "ld", "objcopy", "pkg-config"] {
            if !tool(needed) {
                println!("not run: there is no {needed} to install the library and to build programs with it");
                return None;
            }
        }
        let prefix = TREE.get_or_init(|| {
            let name = std::env::current_exe().unwrap().file_stem().unwrap().to_owned();
            let tree = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            _ = std::fs::remove_dir_all(&tree);
            install(&[OsStr::new("--prefix"), tree.as_os_str()]);
            tree
        });
        Some(Self { prefix, programs: tempfile::tempdir().unwrap() })
    }

    pub(crate) fn prefix(&self) -> &Path {
        self.prefix
    }

    /// Returns the folder for a test's files.
    pub(crate) fn programs(&self) -> &Path {
        self.programs.path()
    }

    pub(crate) fn library(&self, name: &str) -> PathBuf {
        self.prefix().join("lib").join(name)
    }

    /// Returns the output of pkg-config.
    pub(crate) fn flags(&self, asked: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.library("pkgconfig")).args(asked).arg("mrrc");
        run(&mut command).split_whitespace().map(str::to_owned).collect()
    }

    /// Returns a program that finds the shared library here, and no settings.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.prefix().join("lib"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MRRC_") {
                command.env_remove(name);
            }
        }
        command
    }
}

/// Runs `install` with these arguments, on what this test was built with.
pub(crate) fn install(arguments: &[&OsStr]) -> String {
    // Cargo puts the libraries beside the tests that it builds them for.
    let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    run(Command::new(crate_file("install")).arg("--built").arg(built).args(arguments))
}

/// Returns a file of this crate.
pub(crate) fn crate_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

pub(crate) fn tool(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(name).is_file())
}

/// Runs it, and gives what it printed. Panics with all that it said if it fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// Compiles a program of C against the installed library, with what pkg-config says and these flags besides.
pub(crate) fn compile(installed: &Installed, source: &Path, flags: &[&str]) -> PathBuf {
    let library = installed.flags(&["--cflags", "--libs"]);
    let library: Vec<_> = library.iter().map(String::as_str).collect();
    compile_with(installed, source, "shared", &[&library[..], flags].concat())
}

/// As [`compile`], with these flags alone. The name tells apart what is made of one source.
pub(crate) fn compile_with(installed: &Installed, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = installed.programs().join(format!("{}-{name}", source.file_stem().unwrap().to_str().unwrap()));
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-g", "-O1", "-pthread", "-o"]);
    run(command.arg(&program).arg(source).args(flags));
    program
}
