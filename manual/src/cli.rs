//! The command line.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes the manual pages and shell completions of every command
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    /// The folder in whose share/ bash, zsh, fish and man look: /usr/local, or ~/.local for one user
    #[arg(long, value_name = "DIR", default_value = "target")]
    prefix: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  manual                             into target/share
  man -M target/share/man tracesim   reads one there
  manual --prefix ~/.local           for yourself
  manual --prefix /usr/local         for all users

zsh finds completions where its fpath points: `fpath+=(~/.local/share/zsh/site-functions)` before compinit in ~/.zshrc.
bash finds them with the package bash-completion.

Exit status: 0 written, 1 not, 2 wrong usage.";

/// Runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match crate::write(&cli.prefix.join("share")) {
        Ok(written) => {
            let crate::Written { pages, completions } = written;
            println!(
                "{} pages, {} completions in {}",
                pages.len(),
                completions.len(),
                cli.prefix.join("share").display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("manual: {error}");
            ExitCode::FAILURE
        }
    }
}
