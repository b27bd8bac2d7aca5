//! Whether the parent process runs under the shim and the same variables. Then it has reported their mistakes, and
//! one line is enough for a whole tree of processes.
//!
//! Where that is not to be known (another user's process, one that is gone) it is said again.

use std::fs;
use std::os::unix::ffi::OsStrExt;

/// As its file is called wherever it lies.
const SHIM: &str = "libmrrc_preload";

/// Returns whether the parent has said it.
pub(crate) fn parent_reported() -> bool {
    let parent = std::os::unix::process::parent_id();
    let read = |file: &str| fs::read(format!("/proc/{parent}/{file}")).unwrap_or_default();
    let own = std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let mapped = read("maps");
    same(own, read("environ").split(|&byte| byte == 0))
        && String::from_utf8_lossy(&mapped).lines().any(|line| line.contains(SHIM))
}

/// Returns whether both have the same of our variables. Those of the parent are what it was started with.
fn same<'a>(own: impl Iterator<Item = Vec<u8>>, parents: impl Iterator<Item = &'a [u8]>) -> bool {
    let sorted = |mut variables: Vec<Vec<u8>>| {
        variables.retain(|variable| variable.starts_with(b"MRRC_"));
        variables.sort_unstable();
        variables
    };
    sorted(own.collect()) == sorted(parents.map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_variables_count_in_any_order() {
        let same = |own: &[&str], parents: &[&str]| {
            same(own.iter().map(|text| text.as_bytes().to_vec()), parents.iter().map(|text| text.as_bytes()))
        };
        assert!(same(
            &["MRRC_POLICY=best", "A=1", "MRRC_PRELOAD=on"],
            &["MRRC_PRELOAD=on", "MRRC_POLICY=best", "A=2", ""]
        ));
        assert!(!same(&["MRRC_POLICY=best"], &["MRRC_POLICY=good"]));
        assert!(!same(&["MRRC_POLICY=best"], &["MRRC_POLICY=best", "MRRC_PRELOAD=off"]));
        assert!(!same(&["MRRC_POLICY=best"], &[]));
    }

    #[test]
    fn a_parent_without_the_shim_has_said_nothing() {
        assert!(!parent_reported());
    }
}
