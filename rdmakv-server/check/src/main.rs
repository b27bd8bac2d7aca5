//! The command.

fn main() -> std::process::ExitCode {
    rdmakv_check::cli::main()
}
