//! The command.

fn main() -> std::process::ExitCode {
    benches::cli::main()
}
