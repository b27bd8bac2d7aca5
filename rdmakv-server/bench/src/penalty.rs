//! The cost of a miss where a database stands behind the cache.
//!
//! The database is asked once, before the run; no request of the run waits for it. A miss is given one of the times that were
//! measured, or the one that was said, and what comes of it is reported beside what was measured.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// The penalty.
///
/// ```
/// use std::time::Duration;
/// use rdmakv_bench::Penalty;
///
/// assert_eq!(Penalty::of(Duration::from_millis(95)).mean(), Duration::from_millis(95));
/// ```
#[derive(Clone, Debug)]
pub struct Penalty {
    samples: Arc<[u64]>,
    text: String,
}

/// How often a file is read, and a command run.
const READS: usize = 200;
const COMMANDS: usize = 20;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(10);

impl Penalty {
    /// Always this long.
    pub fn of(time: Duration) -> Self {
        Self { samples: [time.as_nanos() as u64].into(), text: format!("given, {time:?}") }
    }

    /// Measures reads of so many bytes of this file, at random places, and past the system's cache where that can be had.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is too short.
    pub fn of_file(path: &Path, bytes: usize) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("the miss penalty of {}: {error}", path.display());
        // Direct reads want whole blocks, in the file and in memory.
        const ALIGN: usize = 4096;
        let len = bytes.max(1).next_multiple_of(ALIGN);
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        let (file, how) = match direct {
            Ok(file) => (file, "direct reads"),
            Err(_) => (File::open(path).map_err(wrong)?, "reads through the system's cache"),
        };
        let whole = file.metadata().map_err(wrong)?.len() / ALIGN as u64;
        let blocks = (len / ALIGN) as u64;
        if whole < blocks {
            return Err(format!(
                "the miss penalty of {}: it is shorter than a value; name a larger file, many times the memory's size",
                path.display()
            ));
        }
        let mut space = vec![0; len + ALIGN];
        let start = space.as_ptr().align_offset(ALIGN);
        let buffer = &mut space[start..start + len];
        let mut random = Pcg64::seed_from_u64(17);
        Self::measured(format!("{how} of {}", path.display()), READS, || {
            let at = random.random_range(0..=whole - blocks) * ALIGN as u64;
            let begin = Instant::now();
            file.read_exact_at(buffer, at).map_err(wrong)?;
            Ok(begin.elapsed())
        })
    }

    /// Measures this command, run by the shell; the time to start one that does nothing is taken off.
    ///
    /// # Errors
    ///
    /// It cannot be run, or fails.
    pub fn of_command(command: &str) -> Result<Self, String> {
        let once = |command: &str| {
            let begin = Instant::now();
            let done =
                Command::new("/bin/sh").args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).status();
            match done {
                Ok(status) if status.success() => Ok(begin.elapsed()),
                Ok(status) => Err(format!("the miss penalty by `{command}`: it ended with {status}")),
                Err(error) => Err(format!("the miss penalty by `{command}`: {error}")),
            }
        };
        let mut idle = (0..10).map(|_| once(":")).collect::<Result<Vec<_>, _>>()?;
        idle.sort();
        let idle = idle[idle.len() / 2];
        Self::measured(format!("`{command}`"), COMMANDS, || Ok(once(command)?.saturating_sub(idle)))
    }

    fn measured(text: String, most: usize, mut once: impl FnMut() -> Result<Duration, String>) -> Result<Self, String> {
        let begin = Instant::now();
        let mut samples = Vec::new();
        while samples.is_empty() || (samples.len() < most && begin.elapsed() < PATIENCE) {
            samples.push(once()?.as_nanos() as u64);
        }
        let text = format!("measured, {} times, {text}", samples.len());
        Ok(Self { samples: samples.into(), text })
    }

    /// Returns the mean.
    pub fn mean(&self) -> Duration {
        let sum: u128 = self.samples.iter().map(|&sample| u128::from(sample)).sum();
        Duration::from_nanos((sum / self.samples.len().max(1) as u128) as u64)
    }

    /// Returns its origin.
    pub fn about(&self) -> &str {
        &self.text
    }

    #[inline]
    pub(crate) fn draw(&self, random: &mut impl Rng) -> u64 {
        match self.samples[..] {
            [only] => only,
            _ => self.samples[random.random_range(0..self.samples.len())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalty_file_is_sampled_and_short_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("database");
        std::fs::write(&path, vec![1; 64 << 10]).unwrap();
        let penalty = Penalty::of_file(&path, 10_000).unwrap();
        assert!(!penalty.samples.is_empty() && penalty.mean() > Duration::ZERO, "{penalty:?}");
        assert!(penalty.about().contains("database"));
        assert!(Penalty::of_file(&path, 100_000).unwrap_err().contains("shorter than a value"));
        assert!(Penalty::of_file(Path::new("/nowhere"), 1).unwrap_err().contains("/nowhere"));
    }

    #[test]
    fn a_command_is_timed_and_one_that_fails_is_named() {
        let penalty = Penalty::of_command("sleep 0.05").unwrap();
        assert!(penalty.mean() > Duration::from_millis(25), "{penalty:?}");
        assert!(Penalty::of_command("exit 3").unwrap_err().contains("exit 3"));
    }

    #[test]
    fn misses_draw_from_what_was_measured() {
        let penalty = Penalty { samples: [1, 2, 3, 4].into(), text: String::new() };
        let mut random = Pcg64::seed_from_u64(3);
        let mut seen = [0; 4];
        (0..100_000).for_each(|_| seen[penalty.draw(&mut random) as usize - 1] += 1);
        crate::theory::fits(&seen, &[0.25; 4]);
    }
}
