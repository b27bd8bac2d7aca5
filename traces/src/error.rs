//! What can go wrong with a trace: always the file, the place in it, what is wrong and what to do.

use std::path::PathBuf;

/// A trace that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The system refused.
    #[error("{}: {doing}: {error}", file.display())]
    Io {
        /// The file, `-` for standard input or output.
        file: PathBuf,
        /// What was tried: `open`, `read`, `write`.
        doing: &'static str,
        /// Its answer.
        #[source]
        error: std::io::Error,
    },
    /// The content is not what the format says.
    #[error("{}, {at}: {what}; {remedy}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// Where: `line 17`, `byte 4096`, `record 3`.
        at: String,
        /// What is wrong there.
        what: String,
        /// What to try.
        remedy: String,
    },
    /// An option that makes no sense by itself or for this format.
    #[error("{option}: {what}; {remedy}")]
    Option {
        /// The option as the command line spells it.
        option: &'static str,
        /// What is wrong with it.
        what: String,
        /// What to give instead.
        remedy: String,
    },
}
