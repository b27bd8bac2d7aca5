//! Programs in C, compiled here, and a libibverbs without a kernel behind it, which counts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the library that is tested: cargo builds it beside the tests.
pub(crate) fn shim() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.with_file_name("libmrrc_preload.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// Returns the folder of the compiled programs.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    BUILT.get_or_init(build).path()
}

fn build() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (at, tests) = (directory.path(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    let fake = tests.join("fake");
    let compile = |arguments: &[&str], source: PathBuf, product: &str| {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(&fake)
            .arg(source)
            .arg("-o")
            .arg(at.join(product));
        let output = cc.arg("-L").arg(at).args(arguments).output().unwrap();
        assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let map = format!("-Wl,--version-script={}", fake.join("libibverbs.map").display());
    let library = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &map, "-lpthread"];
    compile(&library, fake.join("libibverbs.c"), "libibverbs.so.1");
    std::os::unix::fs::symlink("libibverbs.so.1", at.join("libibverbs.so")).unwrap();
    for program in ["nasty", "each", "domains", "stream", "peers", "rights"] {
        let source = tests.join("programs").join(program).with_extension("c");
        compile(&["-libverbs", "-lpthread"], source, program);
    }
    compile(&["-ldl", "-lpthread"], tests.join("programs/unload.c"), "unload");
    compile(&["-shared", "-fPIC", "-ldl"], tests.join("programs/counting.c"), "counting.so");
    compile(&["-shared", "-fPIC", "-libverbs"], tests.join("programs/plugin.c"), "plugin.so");
    compile(&[], tests.join("programs/confined.c"), "confined");
    // As packages of Python's bring it along, under a name of its own.
    let bundled = "libibverbs-1a2b3c4d.so.1";
    let soname = format!("-Wl,-soname,{bundled}");
    compile(&["-shared", "-fPIC", &soname, &map, "-lpthread"], fake.join("libibverbs.c"), bundled);
    compile(&["-shared", "-fPIC", &format!("-l:{bundled}")], tests.join("programs/plugin.c"), "bundled.so");
    compile(&["-DPROGRAM", "-ldl"], tests.join("programs/plugin.c"), "program");
    directory
}

/// How a run ended, with what the libibverbs counted.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) said: String,
    pub(crate) complained: String,
    pub(crate) code: Option<i32>,
    pub(crate) counts: Vec<Counts>,
}

/// The calls of one process to libibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) registered: u64,
    pub(crate) deregistered: u64,
    pub(crate) live: u64,
    pub(crate) most: u64,
    pub(crate) domains: u64,
    pub(crate) contexts: u64,
    /// Calls that found no room.
    pub(crate) refused: u64,
    /// Memory windows at the end.
    pub(crate) windows: u64,
}

/// A program with its arguments, under these variables.
pub(crate) fn run(preloaded: bool, program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let preloaded: Vec<_> = preloaded.then(shim).into_iter().collect();
    run_under(&preloaded, program, arguments, variables)
}

/// The same under these libraries.
pub(crate) fn run_under(preloaded: &[PathBuf], program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let counts = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(if program.contains('/') { program.into() } else { built().join(program) });
    // The user's environment is not inherited.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MRRC_")) {
        command.env_remove(name);
    }
    command.args(arguments).env("LD_LIBRARY_PATH", built()).env("FAKE_COUNTS", counts.path());
    if !preloaded.is_empty() {
        let names: Vec<_> = preloaded.iter().map(|path| path.to_str().unwrap()).collect();
        command.env("LD_PRELOAD", names.join(":"));
    }
    command.envs(variables.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let counted = std::fs::read_to_string(counts.path()).unwrap();
    Ran {
        said: text(stdout),
        complained: text(stderr),
        code: status.code(),
        counts: counted.lines().map(Counts::read).collect(),
    }
}

impl Counts {
    fn read(line: &str) -> Self {
        let numbers: Vec<u64> = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let [registered, deregistered, live, most, domains, contexts, refused, windows] = numbers[..] else {
            panic!("{line}")
        };
        Self { registered, deregistered, live, most, domains, contexts, refused, windows }
    }
}

impl Ran {
    /// Returns the counts of the only process.
    pub(crate) fn count(&self) -> Counts {
        assert_eq!(self.counts.len(), 1, "{self:?}");
        self.counts[0]
    }

    /// Fails if the program was told anything, or ended badly.
    pub(crate) fn well(self) -> Self {
        assert!(self.code == Some(0) && self.complained.is_empty(), "{self:?}");
        self
    }
}
