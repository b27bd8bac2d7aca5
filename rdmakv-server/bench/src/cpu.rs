//! CPU time: this thread's own, and another process's.

use std::io;

use procfs::CurrentSI;

/// CPU time used, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl Used {
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.user += other.user;
        self.system += other.system;
    }
}

/// Returns the CPU time of this thread.
pub(crate) fn of_this_thread() -> Used {
    usage(libc::RUSAGE_THREAD)
}

/// Returns the CPU time of all threads of this process.
pub(crate) fn of_this_process() -> Used {
    usage(libc::RUSAGE_SELF)
}

/// Returns the CPU time of all of the machine's processes, in seconds; 0 if the system does not tell it.
pub(crate) fn of_all() -> f64 {
    let Ok(stats) = procfs::KernelStats::current() else { return 0.0 };
    let all = stats.total;
    let parts = [all.user, all.nice, all.system, all.irq.unwrap_or(0), all.softirq.unwrap_or(0)];
    parts.iter().sum::<u64>() as f64 / procfs::ticks_per_second() as f64
}

fn usage(of: libc::c_int) -> Used {
    #[expect(unsafe_code, reason = "getrusage, which no safe crate at hand offers for a thread")]
    // SAFETY: an all-zero record is a value of the type, and the call overwrites it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        // It fails only for arguments that are wrong, and then the record stays zero.
        libc::getrusage(of, &raw mut usage);
        usage
    };
    let nanos = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    Used { user: nanos(usage.ru_utime), system: nanos(usage.ru_stime) }
}

/// A watched process: its own clock gives its time, and `/proc` the shares in user and kernel mode.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) pid: i32,
    pub(crate) name: String,
    clock: libc::clockid_t,
}

/// The CPU time of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    total: f64,
    user: f64,
    system: f64,
}

impl Sample {
    /// The clock is exact, and the parts are in ticks of 10 ms: they divide what the clock says.
    pub(crate) fn since(&self, before: &Self) -> Used {
        let (user, system) = (self.user - before.user, self.system - before.system);
        let total = self.total - before.total;
        let share = if user + system > 0.0 { user / (user + system) } else { 0.5 };
        Used { user: total * share, system: total * (1.0 - share) }
    }
}

impl Watched {
    pub(crate) fn new(pid: i32) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("the CPU time of process {pid}: {error}");
        let mut clock = 0;
        #[expect(unsafe_code, reason = "clock_getcpuclockid")]
        // SAFETY: the call writes a clock's number where it is told.
        let refused = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
        if refused != 0 {
            return Err(wrong(io::Error::from_raw_os_error(refused)));
        }
        let stat = procfs::process::Process::new(pid).and_then(|process| process.stat());
        let name = stat.map_err(|error| format!("the CPU time of process {pid}: {error}"))?.comm;
        Ok(Self { pid, name, clock })
    }

    /// Returns its CPU time; none when it is gone.
    pub(crate) fn sample(&self) -> Option<Sample> {
        #[expect(unsafe_code, reason = "clock_gettime of another process's clock")]
        // SAFETY: an all-zero time is a value of the type, and the call overwrites it.
        let time = unsafe {
            let mut time = std::mem::zeroed::<libc::timespec>();
            if libc::clock_gettime(self.clock, &raw mut time) != 0 {
                return None;
            }
            time
        };
        let stat = procfs::process::Process::new(self.pid).ok()?.stat().ok()?;
        let tick = 1e9 / procfs::ticks_per_second() as f64;
        Some(Sample {
            total: time.tv_sec as f64 * 1e9 + time.tv_nsec as f64,
            user: stat.utime as f64 * tick,
            system: stat.stime as f64 * tick,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy child: what it uses is seen from outside, and none of it is ours.
    #[test]
    fn a_process_that_computes_is_seen_to_compute() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let watched = Watched::new(child.id() as i32).unwrap();
        let before = watched.sample().unwrap();
        let used = loop {
            let used = watched.sample().unwrap().since(&before);
            if used.user + used.system > 50e6 {
                break used;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watched.name == "sh" || watched.name == "dash", "{}", watched.name);
        assert!(used.user > 0.0);
        assert!(watched.sample().is_none());
        assert!(Watched::new(child.id() as i32).unwrap_err().contains("CPU time of process"));
    }
}
