//! The provenance of a page: the exact command, and a checksum of each trace, so that anyone can make it again.

use maud::{Markup, html};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use traces::generate::Workload;

/// The provenance of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Provenance {
    /// The command, as a shell takes it.
    pub command: String,
    /// The program's version.
    pub version: String,
    /// The traces.
    pub origins: Vec<Origin>,
}

/// The origin of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Its name.
    pub trace: String,
    /// The source of the checksum.
    pub source: Source,
    /// [`checksum`](crate::shard::checksum) of its steps: traces that ask for the same have the same.
    pub steps: String,
}

/// The source of a trace's checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The bytes of a file, as `sha256sum` has it.
    File {
        /// How many.
        bytes: u64,
        /// SHA-256 in hexadecimal.
        sha256: String,
    },
    /// A workload: of its name with all options.
    Workload {
        /// Name and options.
        spec: String,
        /// SHA-256 in hexadecimal.
        sha256: String,
    },
    /// A stream, which is gone when it was read.
    Stream,
}

impl Source {
    /// Reads the file once more. A source that is no regular file is a stream.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" || !path.metadata()?.is_file() {
            return Ok(Self::Stream);
        }
        let mut file = File::open(path)?;
        let (mut hasher, mut bytes) = (Sha256::new(), 0);
        let mut buffer = vec![0; 1 << 16];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Self::File { bytes, sha256: hex(&hasher.finalize()) }),
                n => {
                    hasher.update(&buffer[..n]);
                    bytes += n as u64;
                }
            }
        }
    }

    /// Returns a workload with its options, all of them.
    pub fn of_workload(workload: &Workload) -> Self {
        let spec = workload.to_string();
        let sha256 = hex(&Sha256::digest(spec.as_bytes()));
        Self::Workload { spec, sha256 }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Provenance {
    /// Returns the text of a command with these arguments, its name left out.
    pub fn of_command(arguments: impl IntoIterator<Item = String>, origins: Vec<Origin>) -> Self {
        // A null byte cannot be in an argument.
        let quoted = arguments.into_iter().map(|word| shlex::try_quote(&word).map(Into::into).unwrap_or(word));
        let command = std::iter::once("tracesim".to_owned()).chain(quoted).collect::<Vec<String>>().join(" ");
        Self { command, version: env!("CARGO_PKG_VERSION").to_owned(), origins }
    }

    pub(super) fn footer(&self) -> Markup {
        html! {
            footer {
                h2 { "How this page was made" }
                p { "By tracesim " (self.version) ", with this command:" }
                pre { code { (self.command) } }
                @if !self.origins.is_empty() {
                    table {
                        thead { tr { th { "trace" } th { "source" } th { "SHA-256" } th { "XXH64 of the requests" } } }
                        tbody { @for origin in &self.origins { (origin.row()) } }
                    }
                }
                p {
                    "Counts come from the cache's own code, replayed; times are computed from counts by the cost model that is \
                     named, unless a figure says that it was measured. The same command on the same traces makes the same page."
                }
            }
        }
    }
}

impl Origin {
    fn row(&self) -> Markup {
        let (source, sha256) = match &self.source {
            Source::File { bytes, sha256 } => (format!("file of {} bytes", super::grouped(*bytes)), sha256.as_str()),
            Source::Workload { spec, sha256 } => (format!("generated; the checksum is of {spec}"), sha256.as_str()),
            Source::Stream => ("a stream, read once".to_owned(), "–"),
        };
        html! { tr { td { (self.trace) } td { (source) } td { code { (sha256) } } td { code { (self.steps) } } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_file_is_what_sha256sum_prints() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
        assert_eq!(Source::of_file(&path).unwrap(), Source::File { bytes: 3, sha256 });
        assert_eq!(Source::of_file(Path::new("-")).unwrap(), Source::Stream);
        assert!(Source::of_file(&folder.path().join("nothing")).is_err());
    }

    #[test]
    fn a_workload_differs_by_its_options() {
        let [one, other] =
            ["zipf:seed=1", "zipf:seed=2"].map(|spec| Source::of_workload(&spec.parse::<Workload>().unwrap()));
        assert_ne!(one, other);
    }

    #[test]
    fn the_command_can_be_pasted() {
        let words = ["compare", "-p", "mrrc", "a b.csv", "it's.csv"].map(str::to_owned);
        let command = Provenance::of_command(words.clone(), Vec::new()).command;
        assert_eq!(shlex::split(&command).unwrap()[1..], words);
    }
}
