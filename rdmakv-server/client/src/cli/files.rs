//! Commands about files in a cluster: they are `rdmakv-fuse`'s, which is another program, as it needs more of the system.

use super::Failure;
use super::flags::{CLUSTER, Flags};
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "rdmakv-fuse";

/// Becomes `rdmakv-fuse` with this command and these arguments: the one beside this program, or else in PATH.
pub(super) fn become_program(flags: &Flags, command: &str, arguments: &[OsString]) -> Result<(), Failure> {
    if !flags.servers.is_empty() {
        let why =
            format!("{command}: files are in a cluster: give --etcd URL or the variable RDMAKV_ETCD in place of -s");
        return Err(Failure::Usage(why));
    }
    let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|path| path.is_file());
    let mut program = Command::new(beside.unwrap_or_else(|| PathBuf::from(PROGRAM)));
    program.arg(command);
    // It takes each of them once, and has the same cluster by default.
    if flags.cluster != CLUSTER && !has(arguments, "--cluster") {
        program.args(["--cluster", &flags.cluster]);
    }
    if let Some(etcd) = flags.etcd.as_ref().filter(|_| !has(arguments, "--etcd")) {
        program.args(["--etcd", etcd]);
    }
    let error = program.args(arguments).exec();
    Err(Failure::No(match error.kind() {
        ErrorKind::NotFound => {
            format!("{command}: there is no `{PROGRAM}` beside `rdmakv` or in PATH: cargo build --release -p {PROGRAM}")
        }
        _ => format!("{command}: start `{PROGRAM}`: {error}"),
    }))
}

/// Returns whether the arguments have this flag, with its value in the same argument or the next.
fn has(arguments: &[OsString], flag: &str) -> bool {
    let is_it = |argument: &OsString| {
        argument.as_bytes().strip_prefix(flag.as_bytes()).is_some_and(|rest| matches!(rest.first(), None | Some(b'=')))
    };
    arguments.iter().take_while(|argument| *argument != "--").any(is_it)
}
