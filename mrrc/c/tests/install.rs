//! The files that `install` leaves, and its errors for wrong use.

mod common;

use common::{Installed, compile_with, crate_file, install, run};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn installed_names_suit_linkers_and_loaders() {
    let Some(installed) = Installed::here() else { return };
    let version = env!("CARGO_PKG_VERSION");
    let major = version.split('.').next().unwrap();
    let link = |name: &str| fs::read_link(installed.library(name)).unwrap().to_str().unwrap().to_owned();
    assert_eq!(link("libmrrc.so"), format!("libmrrc.so.{major}"));
    assert_eq!(link(&format!("libmrrc.so.{major}")), format!("libmrrc.so.{version}"));
    let library = installed.library(&format!("libmrrc.so.{version}"));
    let headers = run(Command::new("objdump").arg("-p").arg(&library));
    assert!(headers.contains(&format!("SONAME               libmrrc.so.{major}")), "{headers}");
    let dynamic = run(Command::new("readelf").args(["-d", "-W"]).arg(&library));
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    for (name, mode) in [("include/mrrc.h", 0o644), ("lib/libmrrc.a", 0o644), ("lib/pkgconfig/mrrc.pc", 0o644)] {
        assert_eq!(fs::metadata(installed.prefix().join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
    }
    assert_eq!(installed.flags(&["--modversion"]), [version]);
    let private = installed.flags(&["--static", "--libs"]);
    assert!(private.len() > 2 && !private.contains(&"-lgcc_s".to_owned()), "{private:?}");
}

#[test]
fn staged_package_is_found_at_its_prefix() {
    let Some(installed) = Installed::here() else { return };
    let root = installed.programs().join("root");
    let said = install(
        &["--prefix=/opt/mrrc", "--libdir", "/opt/mrrc/lib64", "--destdir"]
            .map(OsStr::new)
            .iter()
            .copied()
            .chain([root.as_os_str()])
            .collect::<Vec<_>>(),
    );
    assert!(said.contains("LD_LIBRARY_PATH=/opt/mrrc/lib64"), "{said}");
    let described = fs::read_to_string(root.join("opt/mrrc/lib64/pkgconfig/mrrc.pc")).unwrap();
    assert!(described.contains("libdir=/opt/mrrc/lib64\n") && !described.contains('@'), "{described}");
    assert!(!described.contains(root.to_str().unwrap()) && !described.contains('#'), "{described}");
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", root.join("opt/mrrc/lib64/pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", &root);
    let flags = run(command.args(["--cflags", "--libs", "mrrc"]));
    let flags: Vec<_> = flags.split_whitespace().collect();
    let program = compile_with(&installed, &crate_file("examples/callbacks.c"), "package", &flags);
    run(Command::new(program).env("LD_LIBRARY_PATH", root.join("opt/mrrc/lib64")));
}

#[test]
fn install_errors_are_one_line_and_change_nothing() {
    for (arguments, code, words) in [
        (&["--prefx", "/tmp"][..], 2, "`--prefx` is no option"),
        (&["--prefix"], 2, "--prefix needs a value"),
        (&["--prefix", "here"], 2, "`here` is no absolute path"),
        (&["--prefix", "/my programs"], 2, "has a blank"),
        (&["--prefix", "/nowhere", "--built", "/"], 1, "has no libmrrc_c.so"),
    ] {
        let output = Command::new(crate_file("install")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{arguments:?}: {said}");
        assert!(said.lines().next().unwrap().contains(words), "{arguments:?}: {said}");
    }
    // Root often has no cargo: a build by an ordinary user can be installed all the same.
    let empty = tempfile::tempdir().unwrap();
    for tool in ["bash", "sed", "dirname", "realpath", "head", "ld", "nm", "objcopy", "ar", "env"] {
        let paths = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&paths).map(|directory| directory.join(tool)).find(|file| file.is_file());
        if let Some(found) = found {
            std::os::unix::fs::symlink(found, empty.path().join(tool)).unwrap();
        }
    }
    let output = Command::new("bash").arg(crate_file("install")).env("PATH", empty.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("there is no cargo"), "{said}");
    assert!(run(Command::new(crate_file("install")).arg("--help")).contains("--destdir"));
}
