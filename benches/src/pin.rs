//! Threads stay where they are put: a figure means something only if its thread did not move.
//!
//! The wrapper around `sched_setaffinity` is small and here, because the order in which CPUs are used
//! matters as much: whole cores first, and CPU 0, which tends to take the interrupts, last.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem;

/// CPU numbers that a `cpu_set_t` holds.
const MOST: usize = 8 * mem::size_of::<libc::cpu_set_t>();

/// Returns the CPUs that this thread may run on.
///
/// # Errors
/// That of `sched_getaffinity`: `EINVAL` on a machine with more than 1,024 CPUs.
pub fn allowed() -> io::Result<Vec<usize>> {
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: an all-zero set is a value of the type, and the call writes no more than the size it is told.
    let set = unsafe {
        let mut set = mem::zeroed::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) != 0 {
            return Err(io::Error::last_os_error());
        }
        set
    };
    #[expect(unsafe_code, reason = "a macro of the system's header")]
    // SAFETY: the number is less than the set holds.
    let is_in = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..MOST).filter(is_in).collect())
}

/// Puts this thread on one CPU.
///
/// # Errors
/// `EINVAL` for a CPU that is not there or that the process may not use.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= MOST {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: an all-zero set is a value of the type, the CPU is less than it holds, and the call reads no
    // more than the size it is told.
    let refused = unsafe {
        let mut set = mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set)
    };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Does something in a thread on that CPU, which processes that are started there inherit.
///
/// # Errors
/// As [`pin`], and those of what is done.
pub fn on<T: Send>(cpu: usize, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || pin(cpu).and_then(|()| act()));
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread on that CPU panicked")))
    })
}

/// How often this thread left its CPU since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switches {
    /// It was pushed off by another.
    pub pushed: u64,
    /// It waited, for a lock or asleep: its own doing, and part of what is measured.
    pub waited: u64,
}

/// Seconds of user CPU that this thread has had.
pub fn user_seconds() -> f64 {
    let time = usage().ru_utime;
    time.tv_sec as f64 + time.tv_usec as f64 * 1e-6
}

/// Returns the seconds of CPU, the program's and the kernel's, of children of this process that ended and were waited for.
pub fn seconds_of_children() -> f64 {
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: the record is plain numbers, which the call overwrites; it fails only for a wrong first argument.
    let usage = unsafe {
        let mut usage = mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Nanoseconds of CPU that this process has had, all its threads.
pub fn process_nanos() -> u64 {
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: the record is plain numbers, which the call overwrites.
    let time = unsafe {
        let mut time = mem::zeroed::<libc::timespec>();
        // It fails only for clocks that are not there, and then the record stays zero.
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the nanoseconds of CPU that a process has had, all its threads, those that ended too.
///
/// # Errors
/// Those of the system: there is no such process.
pub fn nanos_of(process: u32) -> io::Result<u64> {
    let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
    #[expect(unsafe_code, reason = "system calls")]
    // SAFETY: the first call writes the clock's number, which the second one reads, and that overwrites the record.
    let time = unsafe {
        let (mut clock, mut time) = (0, mem::zeroed::<libc::timespec>());
        // The first call returns the error, the second one sets it.
        let error = libc::clock_getcpuclockid(process, &raw mut clock);
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        if libc::clock_gettime(clock, &raw mut time) != 0 {
            return Err(io::Error::last_os_error());
        }
        time
    };
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Lets this process have as many open files as it may.
///
/// # Errors
/// Those of the system.
pub fn many_files() -> io::Result<()> {
    #[expect(unsafe_code, reason = "system calls")]
    // SAFETY: the record is plain numbers, which the first call overwrites and the second reads.
    let done = unsafe {
        let mut limit = mem::zeroed::<libc::rlimit>();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// See [`Switches`].
pub fn switches() -> Switches {
    let usage = usage();
    Switches { pushed: usage.ru_nivcsw as u64, waited: usage.ru_nvcsw as u64 }
}

/// Returns this thread's resource usage.
fn usage() -> libc::rusage {
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: an all-zero record is a value of the type, which the call overwrites.
    unsafe {
        let mut usage = mem::zeroed::<libc::rusage>();
        // It fails only for arguments that are wrong, and then the record stays zero.
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    }
}

/// CPUs in the order in which threads are put on them, and how they share cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// One thread after the other is put here.
    pub cpus: Vec<usize>,
    /// The CPUs of each core, as far as the machine tells.
    cores: Vec<BTreeSet<usize>>,
}

impl Places {
    /// Returns the CPUs that this process may use.
    ///
    /// # Errors
    /// That of [`allowed`].
    pub fn look() -> io::Result<Self> {
        Ok(Self::new(&allowed()?, siblings))
    }

    fn new(allowed: &[usize], siblings: impl Fn(usize) -> Option<BTreeSet<usize>>) -> Self {
        let mut cores: Vec<BTreeSet<usize>> = Vec::new();
        for &cpu in allowed {
            if !cores.iter().any(|core| core.contains(&cpu)) {
                let mut core = siblings(cpu).unwrap_or_default();
                core.retain(|cpu| allowed.contains(cpu));
                core.insert(cpu);
                cores.push(core);
            }
        }
        // The last of each core, then the last but one of each; CPU 0 comes late.
        let most = cores.iter().map(BTreeSet::len).max().unwrap_or(0);
        let cpus = (0..most).flat_map(|nth| cores.iter().rev().filter_map(move |core| core.iter().rev().nth(nth)));
        Self { cpus: cpus.copied().collect(), cores }
    }

    /// How the first `threads` CPUs share cores, in a sentence.
    pub fn describe(&self, threads: usize) -> String {
        let used: BTreeSet<_> = self.cpus.iter().take(threads).copied().collect();
        let shared = self.cores.iter().map(|core| core & &used).filter(|core| core.len() > 1);
        let shared: Vec<_> =
            shared.map(|core| format!("CPUs {} are hyperthreads of one core", list(&core, " and "))).collect();
        match (used.len(), shared.is_empty()) {
            (0 | 1, _) => format!("One thread, on CPU {}.", list(&used, ", ")),
            (_, true) => format!(
                "Threads on CPUs {}: by the machine's own account each a core (a virtual machine may not know).",
                list(&used, ", ")
            ),
            (_, false) => format!("Threads on CPUs {}: {}.", list(&used, ", "), shared.join("; ")),
        }
    }
}

fn list(cpus: &BTreeSet<usize>, between: &str) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(between)
}

/// Returns the CPUs on the core of this one, if the machine tells.
fn siblings(cpu: usize) -> Option<BTreeSet<usize>> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(fs::read_to_string(file).ok()?.trim())
}

/// `0-1,4`.
fn parse_list(list: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> BTreeSet<usize> {
        cpus.iter().copied().collect()
    }

    #[test]
    fn a_pinned_thread_is_allowed_on_that_cpu_alone() {
        std::thread::spawn(|| {
            let cpu = *allowed().unwrap().last().unwrap();
            pin(cpu).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn who_is_pushed_aside_knows_it_and_who_waits_is_not() {
        std::thread::spawn(|| {
            let before = switches();
            (0..50).for_each(|_| std::thread::sleep(std::time::Duration::from_micros(100)));
            let after = switches();
            assert!(after.waited - before.waited >= 50);
            assert!(after.pushed - before.pushed < 25, "others may push it aside, but not every time");
            // Two threads that never sleep on one CPU: sooner or later one has to go.
            let cpu = allowed().unwrap()[0];
            pin(cpu).unwrap();
            let over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
                while switches().pushed == after.pushed {}
                over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_cannot_be_is_an_error() {
        for cpu in [MOST, usize::MAX] {
            assert_eq!(pin(cpu).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn cpu_of_a_process_is_that_of_all_its_threads() {
        let before = nanos_of(std::process::id()).unwrap();
        let own = process_nanos();
        let spin = move || while process_nanos() < own + 20_000_000 {};
        std::thread::spawn(spin).join().unwrap();
        assert!(nanos_of(std::process::id()).unwrap() >= before + 20_000_000);
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert!(nanos_of(u32::MAX).is_err() && nanos_of(ended.id()).is_err());
    }

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0"), Some(set(&[0])));
        assert_eq!(parse_list("0-1,4,6-7"), Some(set(&[0, 1, 4, 6, 7])));
        for bad in ["", "x", "1-", "0-99999999999999999999", "0-4294967295"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn whole_cores_come_first_and_cpu_0_late() {
        let pairs = |cpu| Some(set(&[cpu % 2, cpu % 2 + 2]));
        let places = Places::new(&[0, 1, 2, 3], pairs);
        assert_eq!(places.cpus, [3, 2, 1, 0]);
        assert!(!places.describe(2).contains("hyperthreads"));
        assert!(places.describe(4).contains("CPUs 0 and 2 are hyperthreads of one core"));
    }

    #[test]
    fn places_use_allowed_cpus_unknown_is_a_core() {
        assert_eq!(Places::new(&[1, 3], |_| Some(set(&[0, 1, 2, 3]))).cpus, [3, 1]);
        assert_eq!(Places::new(&[0, 1], |_| None).cpus, [1, 0]);
    }
}
