//! The manual pages and the shell completions of every command, made of the command lines themselves. The pages of
//! the libraries that are preloaded are written by hand (`pages/`).
//!
//! ```sh
//! cargo run -p manual                            # into target/share
//! man -M target/share/man tracesim-compare
//! cargo run -p manual -- --prefix ~/.local       # where man and the shells look
//! ```
//!
//! A crate of its own, and no hidden flag of each command: so no command carries code that only packagers run. It takes a
//! command's `clap::Command`, for which the library behind each has a function.

pub mod cli;
mod notes;
mod page;
mod share;

use clap::Command;
pub use share::{Written, write};

/// Every command of the workspace but this one.
pub fn commands() -> Vec<Command> {
    vec![
        tracesim::cli::command(),
        rdmakv_server::startup::command(),
        rdmakv_client::cli::command(),
        rdmakv_fuse::cli::command(),
        rdmakv_bench::cli::command(),
        rdmakv_check::cli::command(),
        benches::cli::command(),
    ]
}

/// Pages that are written by hand: their file names and texts.
pub const BY_HAND: [(&str, &str); 4] = [
    ("mrrc.7", include_str!("../pages/mrrc.7")),
    ("mrrc-fabric.7", include_str!("../pages/mrrc-fabric.7")),
    ("mrrc-preload.7", include_str!("../pages/mrrc-preload.7")),
    ("traces-mpi.7", include_str!("../pages/traces-mpi.7")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Notes;

    /// The examples of a command and of all within it.
    fn examples(line: &Command, into: &mut Vec<String>) {
        for text in [line.get_after_help(), line.get_after_long_help()].into_iter().flatten() {
            into.extend(Notes::of(&text.to_string()).examples.into_iter().map(|example| example.command));
        }
        line.get_subcommands().for_each(|inner| examples(inner, into));
    }

    #[test]
    fn every_example_is_what_the_command_takes() {
        for line in commands() {
            let mut texts = Vec::new();
            examples(&line, &mut texts);
            assert!(!texts.is_empty());
            for text in texts {
                // Up to what is the shell's.
                let own = text.split(['|', '<', '>']).next().unwrap_or_default();
                let words = shlex::split(own).unwrap_or_else(|| panic!("{text}"));
                if words[0] == line.get_name() && !own.contains("$(") {
                    let taken = line.clone().try_get_matches_from(&words);
                    assert!(
                        taken.is_ok(),
                        "{text}: {}",
                        taken.err().map_or_else(String::new, |error| error.to_string())
                    );
                }
            }
        }
    }
}
