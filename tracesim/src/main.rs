//! The command.

fn main() -> std::process::ExitCode {
    tracesim::main_with(&[])
}
