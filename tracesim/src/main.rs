//! The command.

fn main() -> std::process::ExitCode {
    tracesim::cli::main()
}
