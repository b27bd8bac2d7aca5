//! The folders of the recording libraries: beside the command, unless it is told otherwise.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A library that records a program when it is preloaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Library {
    /// Its file.
    pub file: &'static str,
    /// The calls that it records.
    pub records: &'static str,
    /// How `--what` names that.
    pub option: &'static str,
    /// The package that it is built from.
    pub package: &'static str,
}

/// Registrations of verbs.
pub const VERBS: Library =
    Library { file: "libmrrc_preload.so", records: "verbs", option: "verbs", package: "mrrc-preload" };
/// Messages of MPI.
pub const MPI: Library = Library { file: "libtraces_mpi.so", records: "MPI", option: "mpi", package: "traces-mpi" };

/// Why a library cannot be preloaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// It is in none of the places.
    #[error(
        "{file}: not in {}: build it with `cargo build --release -p {package}`, and name its directory with --library (or \
         {VARIABLE}) if that is another",
        places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NotFound {
        /// Its name.
        file: &'static str,
        /// The package that it is built from.
        package: &'static str,
        /// The folders that were searched.
        places: Vec<PathBuf>,
    },
    /// A preloaded library's path cannot have such letters.
    #[error("{}: the linker does not preload what has a blank or a colon in its path: move it, and name its directory with --library", path.display())]
    Path {
        /// Its path.
        path: PathBuf,
    },
}

/// Names the directory of the libraries.
pub const VARIABLE: &str = "TRACESIM_LIBRARY";

impl Library {
    /// Its path: in the directory that was named; or beside the command, or in `../lib` from there.
    ///
    /// # Errors
    /// [`LibraryError`].
    pub fn find(&self, named: Option<&Path>) -> Result<PathBuf, LibraryError> {
        let places = match named {
            Some(named) => vec![named.to_owned()],
            None => beside(),
        };
        let found = places.iter().map(|place| place.join(self.file)).find(|path| path.is_file());
        let Some(found) = found else {
            return Err(LibraryError::NotFound { file: self.file, package: self.package, places });
        };
        // The program may change its directory before it starts another.
        let path = found.canonicalize().unwrap_or(found);
        if path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
            return Err(LibraryError::Path { path });
        }
        Ok(path)
    }
}

fn beside() -> Vec<PathBuf> {
    let command = std::env::current_exe().and_then(|command| command.canonicalize());
    let folder = command.ok().and_then(|command| command.parent().map(Path::to_owned));
    folder.map_or(Vec::new(), |folder| vec![folder.join("../lib"), folder]).into_iter().rev().collect()
}

/// Returns the value of `LD_PRELOAD` with these before what is there.
pub fn preload(libraries: &[PathBuf], there: Option<OsString>) -> OsString {
    let there = there.filter(|there| !there.is_empty());
    let all = libraries.iter().map(|path| path.as_os_str()).chain(there.as_deref());
    all.collect::<Vec<&OsStr>>().join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_names_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let error = MPI.find(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("cargo build --release -p traces-mpi") && error.contains("--library"), "{error}");
        let blank = folder.path().join("a b");
        std::fs::create_dir(&blank).unwrap();
        std::fs::write(blank.join(MPI.file), "").unwrap();
        assert!(matches!(MPI.find(Some(&blank)), Err(LibraryError::Path { .. })));
    }

    #[test]
    fn what_was_preloaded_stays() {
        let ours = [PathBuf::from("/a/x.so"), PathBuf::from("/a/y.so")];
        assert_eq!(preload(&ours, None), "/a/x.so:/a/y.so");
        assert_eq!(preload(&ours[..1], Some("/b/z.so".into())), "/a/x.so:/b/z.so");
        assert_eq!(preload(&ours[..1], Some("".into())), "/a/x.so");
    }
}
