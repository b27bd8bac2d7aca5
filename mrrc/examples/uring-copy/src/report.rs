//! Measurement and report.

use crate::copy::Way;
use crate::files::Job;
use crate::{CHUNK, Options, Plan, Result};
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

/// The figures of one copy.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) wall: Duration,
    /// The figures of the whole process, with the kernel's work for it.
    pub(crate) cpu: Duration,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) registered: u64,
    /// System calls to register and deregister.
    pub(crate) calls: u64,
}

impl Way {
    /// Returns the median over the rounds, in microseconds a chunk.
    fn median(&self, chunks: u64, of: impl Fn(&Sample) -> Duration) -> f64 {
        let mut times: Vec<Duration> = self.samples.iter().map(of).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6 / chunks as f64
    }

    /// Returns the counters of the measured rounds.
    fn counted(&self) -> Counts {
        let (now, before) = (self.pins.counts(), self.before);
        Counts {
            requests: now.requests - before.requests,
            hits: now.hits - before.hits,
            registered: now.registered - before.registered,
            calls: now.calls - before.calls,
        }
    }
}

pub(crate) fn report(options: &Options, plan: &Plan, job: &Job, ways: &[Way; 3], cpu: usize) -> String {
    let chunks = job.length.div_ceil(job.chunk);
    let mut text = format!(
        "{} in chunks of {}, {} at a time, {} on {}\n{} buffers of {}, some used more often; the cache may keep {} \
         of {}\nmedians of {} rounds, the three taking turns, on CPU {cpu}; every copy equals its original\n\n",
        human(job.length),
        human(job.chunk),
        options.depth,
        if job.direct { "O_DIRECT" } else { "through the page cache" },
        job.file_system,
        options.buffers,
        human(job.chunk),
        human(ways[2].pins.limit()),
        human(u64::from(options.buffers) * job.chunk),
        options.rounds,
    );
    let cpu_of = |way: &Way| way.median(chunks, |sample| sample.cpu);
    let wall_of = |way: &Way| way.median(chunks, |sample| sample.wall);
    text += "a chunk (read + write)   CPU us  of cached   wall us   MiB/s   registered   hits  calls for that\n";
    for way in ways {
        let (busy, wall, counts) = (cpu_of(way), wall_of(way), way.counted());
        let hits = match counts.requests {
            0 => "-".to_owned(),
            requests => format!("{:.0}%", 100.0 * counts.hits as f64 / requests as f64),
        };
        let _ = writeln!(
            text,
            "{:<22} {busy:>8.1} {:>9.2}x {wall:>9.0} {:>7.0} {:>12} {hits:>6} {:>15}",
            way.name,
            busy / cpu_of(&ways[2]),
            job.chunk as f64 / wall / 1.048_576,
            counts.registered,
            counts.calls,
        );
    }
    text.push('\n');
    let change = |of: &dyn Fn(&Way) -> f64, way: &Way| {
        let saved = 100.0 * (1.0 - of(&ways[2]) / of(way));
        format!("{:.0}% {}", saved.abs(), if saved >= 0.0 { "less" } else { "more" })
    };
    let _ = writeln!(
        text,
        "The cached copy takes {} CPU time than with plain buffers and {} than registering each time;\n\
         {} and {} time on the clock.",
        change(&cpu_of, &ways[0]),
        change(&cpu_of, &ways[1]),
        change(&wall_of, &ways[0]),
        change(&wall_of, &ways[1]),
    );
    let busy = 100.0 * cpu_of(&ways[2]) / wall_of(&ways[2]);
    if job.direct && busy < 50.0 {
        let _ = writeln!(
            text,
            "It computes {busy:.0}% of that time and waits the rest, for the disk or for its turn on the CPU."
        );
    }
    if !job.direct {
        text += "The page cache copies bytes and pins nothing, so registered buffers save nothing here.\n";
    } else if matches!(job.file_system.as_str(), "tmpfs" | "ramfs") {
        let _ = writeln!(
            text,
            "{} takes O_DIRECT and copies bytes all the same, which pins nothing: try --dir on a disk.",
            job.file_system
        );
    }
    if plan.chunk < CHUNK && options.chunk.is_none() {
        let _ = writeln!(
            text,
            "The process may pin {} (ulimit -l), so the chunks are small: large ones gain more.",
            human(plan.limit)
        );
    }
    for way in ways.iter().filter(|way| way.short > 0) {
        let _ = writeln!(
            text,
            "{}: no more could be registered {} times, so fewer chunks were under way: raise --capacity or ulimit -l.",
            way.name, way.short
        );
    }
    text
}

/// Stays on the CPU it is on, so that the ways do not differ by where they ran.
pub(crate) fn stay_on_one_cpu() -> Result<usize> {
    #[expect(unsafe_code, reason = "system calls")]
    // SAFETY: the set is plain bits, for which zero is a value; the number is that of a CPU, so it is inside of the
    // set; and the call reads a set of that size.
    let (cpu, failed) = unsafe {
        let cpu = libc::sched_getcpu().max(0) as usize % libc::CPU_SETSIZE as usize;
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        (cpu, libc::sched_setaffinity(0, size_of_val(&set), &set) != 0)
    };
    if failed {
        return Err(format!("staying on CPU {cpu}: {}", io::Error::last_os_error()).into());
    }
    Ok(cpu)
}

/// Returns the CPU time of the process so far, of all threads, in user and kernel mode.
pub(crate) fn cpu_time() -> Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "a system call")]
    // SAFETY: the pointer is to a structure of the kind that the call fills.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } != 0 {
        return Err(format!("reading the CPU time: {}", io::Error::last_os_error()).into());
    }
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

pub(crate) fn human(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}
