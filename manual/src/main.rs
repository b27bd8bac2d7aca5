//! The command.

fn main() -> std::process::ExitCode {
    manual::cli::main()
}
