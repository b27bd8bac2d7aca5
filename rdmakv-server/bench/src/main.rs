//! The command.

fn main() -> std::process::ExitCode {
    rdmakv_bench::cli::main()
}
