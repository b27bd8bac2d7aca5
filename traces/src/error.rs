//! Errors of traces: always the file, the place in it, the cause and the remedy.

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
        /// The operation: `open`, `read`, `write`.
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
        /// The place: `line 17`, `byte 4096`, `record 3`.
        at: String,
        /// The cause there.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// An option that makes no sense by itself or for this format.
    #[error("{option}: {what}; {remedy}")]
    Option {
        /// The option as the command line spells it.
        option: &'static str,
        /// The cause.
        what: String,
        /// The remedy.
        remedy: String,
    },
}
