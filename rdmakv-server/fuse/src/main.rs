//! The command.

fn main() -> std::process::ExitCode {
    rdmakv_fuse::cli::main()
}
