//! How much of the files the backing directory does not have yet, and waiting for it.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, Subcommand};
use rdmakv_client::{Cluster, Options};

use super::Failure;
use crate::{DiskError, Status};

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "Examples:\n  rdmakv-fuse files status\n  rdmakv-fuse files settle";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Shows how many files and bytes the directory does not have, and which are torn or lost
    #[command(
        after_help = "`dirty bytes` are those of files that the directory does not have. `spilled` is about how many bytes of these mounts wrote to .rdmakv/data there, because servers had no room. Holes of such files count, too. An open file counts as it was at its last sync. `disk error` is the last failure of the directory that an agent met, within a day: the file, the error, and how long ago. An agent tries again every 5 s.\n\nExamples:\n  rdmakv-fuse files status\n  rdmakv-fuse files status --check                reads all bytes that are not in the directory, for lost ones"
    )]
    Status {
        /// Read all bytes that are not in the directory, and name the files of which some are lost
        #[arg(long)]
        check: bool,
    },
    /// Waits until the directory has all files, or those of a path; the exit code is 1 if it does not come to that
    #[command(
        after_help = "Examples:\n  rdmakv-fuse files settle --timeout 600\n  rdmakv-fuse files settle run7/checkpoint        waits for what the mount has there"
    )]
    Settle {
        /// A file, or a directory with all that it has, from the root of the mount; all files, unless given
        path: Option<OsString>,
        /// How long it waits
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        timeout: u64,
    },
}

pub(super) fn run(cluster: &Cluster, flags: &Flags) -> Result<(), Failure> {
    match &flags.command {
        &Command::Status { check } => {
            let status = Status::of(cluster, Options::default(), check)?;
            Ok(std::io::stdout().write_all(text(&status, check, SystemTime::now()).as_bytes())?)
        }
        Command::Settle { path, timeout } => settle(cluster, path.as_deref(), Duration::from_secs(*timeout)),
    }
}

fn settle(cluster: &Cluster, path: Option<&OsStr>, longest: Duration) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let path = path.map_or(&b"/"[..], OsStr::as_bytes);
        let Some(left) = Status::unsettled_in(cluster, Options::default(), path)? else { return Ok(()) };
        if begun.elapsed() >= longest {
            let (left, after) = (left.escape_ascii(), longest.as_secs());
            return Err(Failure::No(format!(
                "settle: the directory does not show {left} after {after} s: close it, and see whether `rdmakv-fuse agent` runs, or reports that the directory has no room or fails"
            )));
        }
        std::thread::sleep(LOOK.min(longest.saturating_sub(begun.elapsed())));
    }
}

fn text(status: &Status, is_checked: bool, now: SystemTime) -> String {
    let Status { files, bytes, open, frozen, dirty, spilled, names, torn, lost, disk_error } = status;
    let disk_error = disk_error.as_ref().map_or("none".to_owned(), |DiskError { path, errno, at }| {
        // The clock of another machine may be ahead.
        let ago = now.duration_since(*at).unwrap_or_default().as_secs();
        format!("{}: {errno}, {ago} s ago", path.escape_ascii())
    });
    let lost_count = if is_checked { lost.len().to_string() } else { "not looked for: use --check".to_owned() };
    let mut text = format!(
        "files        {files}\nbytes        {bytes}\ndirty bytes  {dirty}\nspilled      {spilled}\nopen files   {open}\nfrozen files {frozen}\nnames left   {names}\ndisk error   {disk_error}\ntorn         {}\nlost         {lost_count}\n",
        torn.len()
    );
    let named = |word: &'static str| move |path: &Vec<u8>| format!("{word} {}\n", path.escape_ascii());
    text.extend(torn.iter().map(named("torn")));
    text.extend(lost.iter().map(named("lost")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn the_text_names_torn_and_lost_files() {
        let status = Status {
            files: 3,
            dirty: 70,
            spilled: 40,
            torn: vec![b"/a".to_vec()],
            lost: vec![b"/b\n".to_vec()],
            ..Status::default()
        };
        let shown = text(&status, true, SystemTime::UNIX_EPOCH);
        assert!(
            shown.starts_with("files        3\n") && shown.contains("dirty bytes  70\nspilled      40\n"),
            "{shown}"
        );
        assert!(shown.ends_with("lost         1\ntorn /a\nlost /b\\n\n"), "{shown}");
        assert!(text(&Status::default(), false, SystemTime::UNIX_EPOCH).contains("use --check"));
    }

    #[test]
    fn the_text_has_the_last_disk_error() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let shown = |status, now| text(&status, false, SystemTime::UNIX_EPOCH + Duration::from_secs(now));
        assert!(shown(Status::default(), 112).contains("disk error   none\n"));
        let error = DiskError { path: b"/a\n".to_vec(), errno: Errno::NOSPC, at };
        let status = Status { disk_error: Some(error), ..Status::default() };
        for (now, ago) in [(112, 12), (90, 0)] {
            let shown = shown(status.clone(), now);
            let line = format!("disk error   /a\\n: {}, {ago} s ago\n", Errno::NOSPC);
            assert!(shown.contains(&line), "{shown}");
        }
    }
}
