//! `bursts`: checkpoints through a mounted burst buffer against the same straight to its disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use procfs::Current;
use rdmakv_client::Cluster;
use rdmakv_fuse::{Files, Settings};
use sha2::{Digest, Sha256};

use super::Failure;
use super::places::{Place, failed};
use crate::checkpoint::{BLOCK, Figures, Pattern, Shape, Sum, Sums, Times, due, name};
use crate::cpu;

/// How often the backing directory is looked at while it drains.
const LOOK: Duration = Duration::from_millis(10);

/// The most that a sector of a disk has, to which direct reads are aligned.
const SECTOR: usize = 4096;

#[derive(Debug, Args)]
#[command(after_help = "\
Ranks are threads. Each writes a file of each checkpoint, closes it, and reads it at the end. On the disk it syncs it, too. The SHA-256
of each file is printed, and is equal as it was written, as it is read from the burst buffer, and in the backing directory.

The disk is to be as slow as a shared one. A loop device that a control group limits is such a disk: the README has the commands.

With --etcd the ranks do the same by the library, without the mount. Files in a tmpfs are for comparison.

The exit code is 0 if blocked time is at most 0.35 of that on the disk, with the library 0.25, draining at least 0.9 of dd's rate, and
restart at least 3 times as fast as cold reads. It is 1 otherwise.

Examples:
  rdmakv-bench bursts /mnt/run7 --backing /slow/run7 --disk /slow
  rdmakv-bench bursts /mnt/run7 --backing /slow/run7 --disk /slow --in-drain 'kill -9 4711' --in-drain 'kill -9 4712'
  rdmakv-bench bursts /mnt/run7 --backing /slow/run7 --disk /slow --etcd http://127.0.0.1:2379")]
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
    /// A command for the shell, run once when half of the mount's last checkpoint is drained: it may kill a server. Several are spread
    /// over the drain
    #[arg(long, value_name = "COMMAND")]
    in_drain: Vec<String>,
    /// Measure the library, too. The etcd of the cluster: http://HOST:PORT, with commas between several
    #[arg(long, value_name = "URL,...")]
    etcd: Option<String>,
    /// The name of the cluster in etcd
    #[arg(long, value_name = "NAME", default_value = "main")]
    cluster: String,
    /// A directory in memory, for comparison. It is left out if a checkpoint has no room there
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// Seconds that draining a checkpoint may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl Bursts {
    pub(super) fn act(&self) -> Result<ExitCode, Failure> {
        if self.size < self.ranks {
            return Err(Failure::usage("--size: each rank writes at least 1 MiB: use fewer --ranks"));
        }
        let shape = Shape { ranks: self.ranks, blocks: self.size, checkpoints: self.checkpoints };
        let dd = self.dd()?;
        let disk = Times { drain: Some(dd), ..plain(&shape, Place::Directory(&self.disk, true), true)? };
        let tmpfs = self.in_memory(&shape)?;
        let at_mount = Place::Directory(&self.mount, false);
        let (mount, mut sums) = self.buffered(&shape, 0, at_mount, &self.in_drain)?;
        let mut library = None;
        if let Some(etcd) = &self.etcd {
            let mut cluster = Cluster::new(etcd.clone());
            cluster.name.clone_from(&self.cluster);
            let files = Files::mount(&cluster, &self.backing, Settings::default());
            let files = files.map_err(|error| Failure::work(error.to_string()))?;
            // The mount's files stay until here: removing them would count as part of this drain.
            let (times, more) = self.buffered(&shape, shape.checkpoints, Place::Library(&files), &[])?;
            library = Some(times);
            sums.extend(more);
            for checkpoint in shape.checkpoints..2 * shape.checkpoints {
                remove(&shape, checkpoint, Place::Library(&files))?;
            }
        }
        for checkpoint in 0..shape.checkpoints {
            remove(&shape, checkpoint, at_mount)?;
        }
        let figures = Figures { bytes: shape.bytes(), mount, library, disk, tmpfs };
        let (ranks, size, checkpoints) = (self.ranks, self.size, self.checkpoints);
        println!("{ranks} ranks, {size} MiB a checkpoint, {checkpoints} checkpoints; means of a checkpoint");
        println!("{}", figures.table());
        let verdicts = figures.verdicts();
        verdicts.iter().for_each(|verdict| println!("{}", verdict.text));
        println!("SHA-256 as written, as read from the burst buffer, and in the backing directory:");
        sums.iter().for_each(|sums| println!("{sums}"));
        let are_equal = sums.iter().all(Sums::are_equal);
        println!("{}", if are_equal { "all bytes are equal" } else { "bytes DIFFER" });
        let is_met = are_equal && verdicts.iter().all(|verdict| verdict.is_met);
        Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Writes checkpoints to the burst buffer, waits until each is drained, and reads the last one. The files stay.
    fn buffered(
        &self,
        shape: &Shape,
        first: u64,
        place: Place<'_>,
        in_drain: &[String],
    ) -> Result<(Times, Vec<Sums>), Failure> {
        let all = first..first + shape.checkpoints;
        let mut written = Vec::new();
        for checkpoint in all.clone() {
            // Before the times: it would take CPU from the drain.
            written.push(each_rank(shape, |rank, pattern| Ok(pattern.sum(checkpoint, rank, shape.share(rank))))?);
        }
        let (mut sum, mut drain) = (Times::default(), 0.0);
        for checkpoint in all.clone() {
            let before = allocated(&self.backing);
            let used = cpu::of_all();
            sum.blocked += write(shape, checkpoint, place)?;
            sum.cpu += cpu::of_all() - used;
            let is_last = checkpoint + 1 == all.end;
            let commands = if is_last { in_drain } else { &[] };
            drain += self.wait_for_drain(shape, checkpoint, before, commands)?;
            if !is_last {
                std::thread::sleep(Duration::from_secs(self.pause));
            }
        }
        let restart = read(shape, all.end - 1, place, false)?;
        let mut sums = Vec::new();
        for (checkpoint, written) in all.zip(written) {
            let buffer = hash(shape, checkpoint, place)?;
            let backing = hash(shape, checkpoint, Place::Directory(&self.backing, false))?;
            for (rank, ((written, buffer), backing)) in written.into_iter().zip(buffer).zip(backing).enumerate() {
                sums.push(Sums { name: name(checkpoint, rank as u64), written, buffer, backing });
            }
        }
        let count = shape.checkpoints as f64;
        let times = Times { blocked: sum.blocked / count, drain: Some(drain / count), restart, cpu: sum.cpu / count };
        Ok((times, sums))
    }

    /// Writes and reads checkpoints in the tmpfs. None, with a line, if there is no room for one.
    fn in_memory(&self, shape: &Shape) -> Result<Option<Times>, Failure> {
        let free = rustix::fs::statvfs(&self.tmpfs).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
        let memory = procfs::Meminfo::current().ok().and_then(|memory| memory.mem_available).unwrap_or(0);
        if free.min(memory) < shape.bytes() + shape.bytes() / 8 {
            eprintln!("{}: left out: a checkpoint has no room there: use a smaller --size", self.tmpfs.display());
            return Ok(None);
        }
        let folder = tempfile::tempdir_in(&self.tmpfs);
        let folder = folder.map_err(|error| failed("make a directory in", &self.tmpfs, &error))?;
        plain(shape, Place::Directory(folder.path(), false), false).map(Some)
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

    /// Waits until the backing directory shows a checkpoint. Returns the seconds from its first byte there.
    fn wait_for_drain(
        &self,
        shape: &Shape,
        checkpoint: u64,
        before: u64,
        mut commands: &[String],
    ) -> Result<f64, Failure> {
        let (waited, mut begun) = (Instant::now(), None);
        let count = commands.len();
        let files = shape.files(checkpoint);
        let is_shown = |(name, size): &(String, u64)| {
            fs::metadata(self.backing.join(name)).is_ok_and(|found| found.len() == *size)
        };
        while !files.iter().all(is_shown) {
            let there = allocated(&self.backing).saturating_sub(before);
            if there > 0 {
                begun.get_or_insert_with(Instant::now);
            }
            let run = count - commands.len();
            if due(count, there, shape.bytes()) > run
                && let Some((command, rest)) = commands.split_first()
            {
                shell(command)?;
                commands = rest;
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
        if !commands.is_empty() {
            return Err(Failure::work("--in-drain: the drain ended before all commands ran: use a larger --size"));
        }
        Ok(begun.unwrap_or(waited).elapsed().as_secs_f64())
    }
}

/// Writes checkpoints, each removed before the next one, and reads the last one. Nothing is drained.
fn plain(shape: &Shape, place: Place<'_>, cold: bool) -> Result<Times, Failure> {
    let mut times = Times::default();
    let count = shape.checkpoints as f64;
    for checkpoint in 0..shape.checkpoints {
        let used = cpu::of_all();
        times.blocked += write(shape, checkpoint, place)? / count;
        times.cpu += (cpu::of_all() - used) / count;
        if checkpoint + 1 == shape.checkpoints {
            times.restart = read(shape, checkpoint, place, cold)?;
        }
        remove(shape, checkpoint, place)?;
    }
    Ok(times)
}

/// Writes a checkpoint. Returns how long the slowest rank was in its calls.
fn write(shape: &Shape, checkpoint: u64, place: Place<'_>) -> Result<f64, Failure> {
    let blocked = each_rank(shape, |rank, pattern| {
        let mut blocked = Duration::ZERO;
        let begun = Instant::now();
        let mut file = place.create(&name(checkpoint, rank))?;
        blocked += begun.elapsed();
        for block in 0..shape.share(rank) {
            let bytes = pattern.block(checkpoint, rank, block);
            let begun = Instant::now();
            file.write(bytes)?;
            blocked += begun.elapsed();
        }
        let begun = Instant::now();
        file.close()?;
        Ok(blocked + begun.elapsed())
    })?;
    Ok(slowest(&blocked))
}

/// Reads a checkpoint, and compares its bytes. Returns how long the slowest rank was in its calls.
fn read(shape: &Shape, checkpoint: u64, place: Place<'_>, directly: bool) -> Result<f64, Failure> {
    let blocked = each_rank(shape, |rank, pattern| {
        let mut memory = vec![0; BLOCK + SECTOR];
        let start = memory.as_ptr().align_offset(SECTOR).min(SECTOR);
        let bytes = &mut memory[start..start + BLOCK];
        let mut blocked = Duration::ZERO;
        let begun = Instant::now();
        let mut file = place.open(&name(checkpoint, rank), directly)?;
        blocked += begun.elapsed();
        for block in 0..shape.share(rank) {
            let begun = Instant::now();
            file.read(bytes)?;
            blocked += begun.elapsed();
            if bytes != pattern.block(checkpoint, rank, block) {
                return Err(failed("read", file.path(), &format_args!("MiB {block} has other bytes")));
            }
        }
        Ok(blocked)
    })?;
    Ok(slowest(&blocked))
}

/// Returns the sums of the files of a checkpoint.
fn hash(shape: &Shape, checkpoint: u64, place: Place<'_>) -> Result<Vec<Sum>, Failure> {
    each_rank(shape, |rank, _| {
        let (mut bytes, mut hash) = (vec![0; BLOCK], Sha256::new());
        let mut file = place.open(&name(checkpoint, rank), false)?;
        for _ in 0..shape.share(rank) {
            file.read(&mut bytes)?;
            hash.update(&bytes);
        }
        Ok(Sum::of(hash))
    })
}

/// Has all ranks do something at once. Returns what each returned.
fn each_rank<T: Send>(
    shape: &Shape,
    act: impl Fn(u64, &mut Pattern) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    std::thread::scope(|scope| {
        let start = |rank| {
            let act = &act;
            scope.spawn(move || act(rank, &mut Pattern::new()))
        };
        let threads: Vec<_> = (0..shape.ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| Failure::work("a rank panicked"))?).collect()
    })
}

fn slowest(blocked: &[Duration]) -> f64 {
    blocked.iter().max().map_or(0.0, Duration::as_secs_f64)
}

fn remove(shape: &Shape, checkpoint: u64, place: Place<'_>) -> Result<(), Failure> {
    shape.files(checkpoint).iter().try_for_each(|(name, _)| place.remove(name))
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
