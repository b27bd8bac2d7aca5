//! The mount as a process.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use rdmakv_client::Cluster;
use rustix::fs::{FileType, fstat};

use super::Failure;
use crate::library::{Files, Fsync, Settings};
use crate::mount;

/// Set for the process that serves a mount in the background.
const IN_BACKGROUND: &str = "RDMAKV_FUSE_IN_BACKGROUND";

/// The begin of the line that the serving process prints once programs may use the mount.
const MOUNTED: &str = "mounted";

const EXAMPLES: &str = "\
`fusermount3 -u DIR` or `umount DIR` ends it, and so do SIGTERM and SIGINT. What programs closed or synced is in the cluster by then. \
An agent carries it to the backing directory: see `rdmakv-fuse agent`. While one does, the process waits for it; a signal ends that.

Refused: hard links, devices, pipes and sockets (EPERM); renames of directories and between directories (EXDEV); xattrs and holes by \
fallocate (ENOTSUP); writing what another mount writes, or where it writes (EBUSY after 5 s). Times of reading are not kept.

Examples:
  rdmakv-fuse mount /mnt/run7 --backing /lustre/run7 --etcd http://10.0.0.1:2379
  rdmakv-fuse mount /mnt/run7 --backing /lustre/run7 -d
  rdmakv-fuse mount /mnt/look --backing /lustre/run7 --read-only";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Flags {
    /// An empty directory, where the files appear
    #[arg(value_name = "DIR")]
    at: PathBuf,
    /// The directory that has the files in the end, the same for all mounts and agents
    #[arg(long, value_name = "DIR")]
    backing: PathBuf,
    /// Bytes of a chunk of new files, a power of two from 64k to 8m. Servers need a larger -I for more than 512k in copies. A file has 131,072
    /// chunks at most [default: 256k, or 128k for each data fragment]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    chunk: Option<u64>,
    /// How long servers refuse all chunks for want of room before chunks go to the backing directory at once
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    spill_after: u64,
    /// When fsync, O_SYNC and close return: once the bytes survive lost servers, or once the backing directory shows the file
    #[arg(long, value_enum, default_value_t = FsyncFlag::Memory)]
    fsync: FsyncFlag,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// End at once when it is unmounted, and do not wait until the agent has carried the files to the backing directory
    #[arg(long)]
    no_settle: bool,
    /// Return once it is mounted, and serve in the background
    #[arg(short = 'd', long = "daemon")]
    daemon: bool,
}

/// A value of `--fsync`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FsyncFlag {
    /// The bytes survive lost servers
    Memory,
    /// The backing directory shows the file
    Backing,
}

/// Serves until the mount is unmounted.
pub(super) fn run(cluster: &Cluster, flags: &Flags) -> Result<(), Failure> {
    let is_background = std::env::var_os(IN_BACKGROUND).is_some();
    if flags.daemon && !is_background {
        return start();
    }
    if is_background {
        // It leads a process group at most, so this fails nowhere.
        let _ = rustix::process::setsid();
    }
    mount::check(&flags.at)?;
    let spill = Duration::from_secs(flags.spill_after);
    let fsync = if flags.fsync == FsyncFlag::Backing { Fsync::Backing } else { Fsync::Memory };
    let settings = Settings { chunk: flags.chunk, spill, fsync, ..Settings::default() };
    let files = Files::mount(cluster, &flags.backing, settings)?;
    let how = mount::How { is_read_only: flags.read_only, settles: !flags.no_settle };
    mount::serve(&files, &flags.at, how, || {
        // Where standard output is closed, it serves all the same.
        let _ = writeln!(std::io::stdout(), "{MOUNTED} {}", flags.at.display());
        if is_background {
            give_up_pipes();
        }
    })?;
    Ok(())
}

/// Gives up standard output and error that are pipes or sockets. `$(...)`, ssh and Slurm read them to the end, so they would wait for the mount's
/// end. Messages go to files and terminals only.
fn give_up_pipes() {
    let is_pipe = |of: BorrowedFd<'_>| {
        let kind = fstat(of).map(|stat| FileType::from_raw_mode(stat.st_mode));
        matches!(kind, Ok(FileType::Fifo | FileType::Socket))
    };
    let Ok(nothing) = OpenOptions::new().write(true).open("/dev/null") else { return };
    // Where that fails, they stay.
    if is_pipe(std::io::stdout().as_fd()) {
        let _ = rustix::stdio::dup2_stdout(&nothing);
    }
    if is_pipe(std::io::stderr().as_fd()) {
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
}

/// Starts this command once more, in the background, and waits until it has mounted.
fn start() -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::No(format!("start in the background: {error}: leave out -d"));
    let mut serving = Command::new(std::env::current_exe().map_err(failed)?)
        .args(std::env::args_os().skip(1))
        .env(IN_BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = serving.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line.starts_with(MOUNTED) {
        return Ok(());
    }
    // It has printed why.
    let ended = serving.wait().map_err(failed)?;
    Err(Failure::No(format!("start in the background: the mount ended with {ended}: see its message above")))
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok().filter(|&number: &u64| number <= 1 << 30);
    number.map(|number| number << unit).ok_or_else(|| "use a number of bytes, with k or m for KiB or MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn chunks_are_read_with_their_unit() {
        assert_eq!((bytes("65536"), bytes("64k"), bytes("8M")), (Ok(65536), Ok(65536), Ok(8 << 20)));
        assert!(bytes("").is_err() && bytes("k").is_err() && bytes("99999999999m").is_err() && bytes("-1").is_err());
    }
}
