//! The command.

fn main() -> std::process::ExitCode {
    rdmakv_server::startup::main()
}
