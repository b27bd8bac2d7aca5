//! Looks for the peer's library and links it when it is there.
//!
//! UCX is there when a small C file that includes `ucs/memory/rcache.h` compiles and links (Debian:
//! `libucx-dev`). Then the shim is built and `cfg(peer_ucx)` is set. When not, everything builds all the same
//! and the program says why the peer is missing. `UCX_PREFIX` names an installation outside
//! the system's paths; `UCX_PREFIX=none` does without.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHIM: &str = "src/peer/ucx_shim.c";
const HEADER: &str = "include/ucs/memory/rcache.h";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(peer_ucx)");
    for path in ["build.rs", SHIM] {
        println!("cargo:rerun-if-changed={path}");
    }
    for variable in ["UCX_PREFIX", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let found = Ucx::look();
    // Cargo looks at what is named here and nothing else: the header when it is there, so that its removal
    // is noticed, and where it would appear when not.
    let header = found.prefix.join(HEADER);
    let watched = if header.exists() { header } else { found.prefix.join("include") };
    if watched.exists() {
        println!("cargo:rerun-if-changed={}", watched.display());
    }
    match found.probe() {
        Ok(()) => found.link(),
        Err(why) => println!("cargo:rustc-env=PEER_UCX_MISSING={why}"),
    }
}

/// The folders that are searched for UCX.
struct Ucx {
    prefix: PathBuf,
    include: Vec<PathBuf>,
    lib: Vec<PathBuf>,
}

impl Ucx {
    /// `UCX_PREFIX`, or what pkg-config says, or the compiler's own paths.
    fn look() -> Self {
        if let Some(prefix) = env::var_os("UCX_PREFIX").filter(|prefix| !prefix.is_empty()) {
            let prefix = PathBuf::from(prefix);
            return Self { include: vec![prefix.join("include")], lib: vec![prefix.join("lib")], prefix };
        }
        let flags = pkg_config(&["--cflags", "--libs", "ucx-ucs"]);
        let after =
            |letter: &str| flags.iter().filter_map(|flag| flag.strip_prefix(letter)).map(PathBuf::from).collect();
        let prefix = pkg_config(&["--variable=prefix", "ucx-ucs"]).into_iter().next();
        Self { prefix: prefix.unwrap_or("/usr".into()).into(), include: after("-I"), lib: after("-L") }
    }

    fn shim(&self) -> cc::Build {
        let mut build = cc::Build::new();
        build.file(SHIM).includes(&self.include).opt_level(2).cargo_warnings(false);
        build
    }

    /// Compiles the shim and links it with the library into a program that is never run.
    fn probe(&self) -> Result<(), &'static str> {
        if self.prefix == Path::new("none") {
            return Err("UCX_PREFIX says none");
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
        let main = out.join("ucx_probe.c");
        fs::write(&main, "extern int peer_ucx_linked(void);\nint main(void) { return peer_ucx_linked(); }\n")
            .map_err(|_| "OUT_DIR cannot be written to")?;
        let compiler = self.shim().try_get_compiler().map_err(|_| "there is no C compiler")?;
        let compile = |target: &Path, extra: &[&str]| {
            let mut command = compiler.to_command();
            command.args(extra).arg(SHIM).arg("-o").arg(target);
            command
        };
        if !quiet(&mut compile(&out.join("ucx_probe.o"), &["-c"])) {
            let there = self.prefix.join(HEADER).exists();
            return Err(if there { "its headers are not those of 1.13" } else { "there is no ucs/memory/rcache.h" });
        }
        let mut link = compile(&out.join("ucx_probe"), &[]);
        link.arg(main).args(self.lib.iter().map(|dir| format!("-L{}", dir.display()))).arg("-lucs");
        if quiet(&mut link) { Ok(()) } else { Err("its headers are there but libucs does not link") }
    }

    fn link(&self) {
        self.shim().compile("peer_ucx_shim");
        for dir in &self.lib {
            println!("cargo:rustc-link-search=native={}", dir.display());
        }
        println!("cargo:rustc-link-lib=ucs");
        let version = pkg_config(&["--modversion", "ucx-ucs"]).into_iter().next();
        println!(
            "cargo:rustc-env=PEER_UCX_VERSION={}",
            version.as_deref().unwrap_or("of a version that it does not tell")
        );
        println!("cargo:rustc-cfg=peer_ucx");
    }
}

/// Returns the words that pkg-config answers; none if it or the package is missing.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or("pkg-config".into());
    let Ok(output) = Command::new(program).args(arguments).output() else { return Vec::new() };
    if !output.status.success() {
        return Vec::new();
    }
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Returns whether a command succeeds; what it says is not shown.
fn quiet(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
