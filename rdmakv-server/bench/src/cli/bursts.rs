//! `bursts`: checkpoints through a mounted burst buffer against the same straight to its disk.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::Failure;
use crate::checkpoint::{BLOCK, Figures, Pattern, Shape, name};

/// How often the backing directory is looked at while it drains.
const LOOK: Duration = Duration::from_millis(10);

/// The most that a sector of a disk has, to which direct reads are aligned.
const SECTOR: usize = 4096;

#[derive(Debug, Args)]
#[command(after_help = "\
Ranks are threads. Each writes a file of each checkpoint, closes it, and reads it at the end. On the disk it syncs it, too. All
bytes are compared: on the mount, and in the backing directory.

The disk is to be as slow as a shared one. A loop device that a control group limits is such a disk: the README has the commands.

The exit code is 0 if blocked time is at most 0.35 of that on the disk, draining at least 0.9 of dd's rate, and restart at least 3
times as fast as cold reads. It is 1 otherwise.

Examples:
  rdmakv-bench bursts /mnt/run7 --backing /slow/run7 --disk /slow
  rdmakv-bench bursts /mnt/run7 --backing /slow/run7 --disk /slow --in-drain 'kill -9 4711'")]
pub(super) struct Bursts {
    /// The directory at which the burst buffer is mounted
    mount: PathBuf,
    /// The backing directory of the mount
    #[arg(long, value_name = "DIR")]
    backing: PathBuf,
    /// A directory on the same disk, outside of the backing directory
    #[arg(long, value_name = "DIR")]
    disk: PathBuf,
    /// Programs that write at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    ranks: u64,
    /// MiB of a checkpoint, of all ranks together
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    size: u64,
    /// Checkpoints, one after the other
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    checkpoints: u64,
    /// Seconds without writes after each checkpoint; the next one begins once the one before is drained
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pause: u64,
    /// A command for the shell, run once when half of the last checkpoint is drained: it may kill a server
    #[arg(long, value_name = "COMMAND")]
    in_drain: Option<String>,
    /// Seconds that draining a checkpoint may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

/// The sums of several checkpoints, in seconds.
#[derive(Default)]
struct Sums {
    blocked: f64,
    drain: f64,
}

impl Bursts {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        if self.size < self.ranks {
            return Err(Failure::usage("--size: each rank writes at least 1 MiB: use fewer --ranks"));
        }
        let shape = Shape { ranks: self.ranks, blocks: self.size, checkpoints: self.checkpoints };
        let count = shape.checkpoints as f64;
        let dd = self.dd()?;
        let mut direct = 0.0;
        let mut cold = 0.0;
        for checkpoint in 0..shape.checkpoints {
            direct += self.write(&shape, checkpoint, &self.disk, true)?;
            if checkpoint + 1 == shape.checkpoints {
                cold = self.read(&shape, checkpoint, &self.disk, true)?;
            }
            remove(&shape, checkpoint, &self.disk)?;
        }
        let mut sums = Sums::default();
        for checkpoint in 0..shape.checkpoints {
            let before = allocated(&self.backing);
            sums.blocked += self.write(&shape, checkpoint, &self.mount, false)?;
            let is_last = checkpoint + 1 == shape.checkpoints;
            sums.drain += self.wait_for_drain(&shape, checkpoint, before, is_last)?;
            if !is_last {
                std::thread::sleep(Duration::from_secs(self.pause));
            }
        }
        let last = shape.checkpoints - 1;
        let restart = self.read(&shape, last, &self.mount, false)?;
        for checkpoint in 0..shape.checkpoints {
            self.read(&shape, checkpoint, &self.backing, false)?;
            self.read(&shape, checkpoint, &self.mount, false)?;
            remove(&shape, checkpoint, &self.mount)?;
        }
        let figures = Figures {
            bytes: shape.bytes(),
            blocked: sums.blocked / count,
            direct: direct / count,
            drain: sums.drain / count,
            dd,
            restart,
            cold,
        };
        println!("{} ranks, {} MiB a checkpoint, {} checkpoints; means of a checkpoint", self.ranks, self.size, count);
        println!("{}", figures.table());
        let verdicts = figures.verdicts();
        verdicts.iter().for_each(|verdict| println!("{}", verdict.text));
        println!("all bytes are equal: on the mount, and in the backing directory");
        let is_met = verdicts.iter().all(|verdict| verdict.is_met);
        Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Has `dd` write as many bytes as a checkpoint has. Returns the seconds.
    fn dd(&self) -> Result<f64, Failure> {
        let path = self.disk.join("bursts.dd");
        let begun = Instant::now();
        let status = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "conv=fsync", "status=none"])
            .arg(format!("count={}", self.size))
            .arg(format!("of={}", path.display()))
            .status()
            .map_err(|error| Failure::work(format!("run dd: {error}: install coreutils")))?;
        let seconds = begun.elapsed().as_secs_f64();
        if !status.success() {
            return Err(Failure::work(format!("dd to {} ended with {status}", path.display())));
        }
        fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))?;
        Ok(seconds)
    }

    /// Writes a checkpoint. Returns how long the slowest rank was in its calls.
    fn write(&self, shape: &Shape, checkpoint: u64, directory: &Path, syncs: bool) -> Result<f64, Failure> {
        ranks(shape, |rank, pattern| {
            let path = directory.join(name(checkpoint, rank));
            let mut blocked = Duration::ZERO;
            let mut timed = |begun: Instant| blocked += begun.elapsed();
            let begun = Instant::now();
            let mut file = File::create(&path).map_err(|error| failed("make", &path, &error))?;
            timed(begun);
            for block in 0..shape.share(rank) {
                let bytes = pattern.block(checkpoint, rank, block);
                let begun = Instant::now();
                file.write_all(bytes).map_err(|error| failed("write", &path, &error))?;
                timed(begun);
            }
            let begun = Instant::now();
            if syncs {
                file.sync_all().map_err(|error| failed("sync", &path, &error))?;
            }
            drop(file);
            timed(begun);
            Ok(blocked)
        })
    }

    /// Reads a checkpoint, and compares its bytes. Returns how long the slowest rank was in its calls.
    fn read(&self, shape: &Shape, checkpoint: u64, directory: &Path, directly: bool) -> Result<f64, Failure> {
        ranks(shape, |rank, pattern| {
            let path = directory.join(name(checkpoint, rank));
            let mut options = File::options();
            options.read(true);
            if directly {
                options.custom_flags(libc::O_DIRECT);
            }
            let mut memory = vec![0; BLOCK + SECTOR];
            let start = memory.as_ptr().align_offset(SECTOR).min(SECTOR);
            let bytes = &mut memory[start..start + BLOCK];
            let mut blocked = Duration::ZERO;
            let begun = Instant::now();
            let mut file = options.open(&path).map_err(|error| failed("open", &path, &error))?;
            if !directly {
                // Another node's restart would have no pages of it.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            }
            blocked += begun.elapsed();
            for block in 0..shape.share(rank) {
                let begun = Instant::now();
                file.read_exact(bytes).map_err(|error| failed("read", &path, &error))?;
                blocked += begun.elapsed();
                if bytes != pattern.block(checkpoint, rank, block) {
                    return Err(Failure::work(format!("read {}: MiB {block} has other bytes", path.display())));
                }
            }
            Ok(blocked)
        })
    }

    /// Waits until the backing directory shows a checkpoint. Returns the seconds from its first byte there.
    fn wait_for_drain(&self, shape: &Shape, checkpoint: u64, before: u64, is_last: bool) -> Result<f64, Failure> {
        let (waited, mut begun) = (Instant::now(), None);
        let mut command = self.in_drain.as_deref().filter(|_| is_last);
        let files = shape.files(checkpoint);
        let is_shown = |(name, size): &(String, u64)| {
            fs::metadata(self.backing.join(name)).is_ok_and(|found| found.len() == *size)
        };
        while !files.iter().all(is_shown) {
            let there = allocated(&self.backing).saturating_sub(before);
            if there > 0 {
                begun.get_or_insert_with(Instant::now);
            }
            if there >= shape.bytes() / 2
                && let Some(command) = command.take()
            {
                shell(command)?;
            }
            if waited.elapsed() > Duration::from_secs(self.timeout) {
                let why = format!(
                    "drain to {}: not done after {} s: see whether `rdmakv-fuse agent` runs",
                    self.backing.display(),
                    self.timeout
                );
                return Err(Failure::work(why));
            }
            std::thread::sleep(LOOK);
        }
        if command.is_some() {
            return Err(Failure::work("--in-drain: the drain ended before it was half done: use a larger --size"));
        }
        Ok(begun.unwrap_or(waited).elapsed().as_secs_f64())
    }
}

/// Has all ranks do something at once. Returns the seconds of the slowest.
fn ranks(shape: &Shape, act: impl Fn(u64, &mut Pattern) -> Result<Duration, Failure> + Sync) -> Result<f64, Failure> {
    std::thread::scope(|scope| {
        let start = |rank| {
            let act = &act;
            scope.spawn(move || act(rank, &mut Pattern::new()))
        };
        let threads: Vec<_> = (0..shape.ranks).map(start).collect();
        let mut slowest = 0_f64;
        for thread in threads {
            let blocked = thread.join().map_err(|_| Failure::work("a rank panicked"))??;
            slowest = slowest.max(blocked.as_secs_f64());
        }
        Ok(slowest)
    })
}

fn remove(shape: &Shape, checkpoint: u64, directory: &Path) -> Result<(), Failure> {
    for (name, _) in shape.files(checkpoint) {
        let path = directory.join(name);
        fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))?;
    }
    Ok(())
}

/// Returns the bytes of data files that the backing directory has on its disk.
fn allocated(backing: &Path) -> u64 {
    let Ok(files) = fs::read_dir(backing.join(".rdmakv/data")) else { return 0 };
    let sizes = files.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.blocks() * 512));
    sizes.sum()
}

fn shell(command: &str) -> Result<(), Failure> {
    let status = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).status();
    let status = status.map_err(|error| Failure::work(format!("run {command}: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure::work(format!("{command} ended with {status}"))) }
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::work(format!("{operation} {}: {error}", path.display()))
}
