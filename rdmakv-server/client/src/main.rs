//! The command.

fn main() -> std::process::ExitCode {
    rdmakv_client::cli::main()
}
