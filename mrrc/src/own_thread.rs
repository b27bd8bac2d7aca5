//! Threads of the library's own, for which threads of the program wait: an unmapping returns when the monitor's thread has
//! read its message.
//!
//! A new thread inherits its creator's CPUs, scheduling policy, nice value, timer slack and signal mask. A creator that is
//! bound to one CPU and polls there under `SCHED_FIFO` would keep such a thread from ever running. So every thread of
//! the library runs under the ordinary policy (`SCHED_OTHER`, nice 0, 50 µs of timer slack), with all signals
//! blocked. Its CPUs are those that the process had when the library was loaded, or those that [`set_cpus`] names.
//!
//! The creator sets what could keep the thread from running; the thread itself does the rest. A setting that the
//! system refuses (a lower nice value takes a privilege) stays as it was inherited. Such a thread runs, if later than
//! it might.

use crate::shim::thread::JoinHandle;
use std::io;

#[cfg(target_os = "linux")]
pub(crate) use linux::{Cpus, set_cpus, spawn_real};

/// Starts a thread of a library's own, under the ordinary policy, with all signals blocked. Its CPUs are those of the
/// process at load or those that were set (`MRRC_CPUS`), whatever the creator has. For libraries over this one with
/// threads that other threads wait for, as those of this one. Under a checker it is one of the checker's threads.
///
/// # Errors
/// Returns the system's error if it has no thread left.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    return spawn_real(std::thread::Builder::new().name(name.to_owned()), run);
    #[cfg(not(all(target_os = "linux", not(any(loom, shuttle)))))]
    crate::shim::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Returns the number of CPUs that such threads can run on, at least 1. The CPUs that the calling thread is bound to have no part in it.
pub(crate) fn cpus() -> usize {
    #[cfg(target_os = "linux")]
    return linux::count();
    #[cfg(not(target_os = "linux"))]
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(target_os = "linux")]
mod linux {
    #![expect(unsafe_code, reason = "system calls about threads")]

    use std::convert::Infallible;
    use std::io;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
    use std::sync::mpsc::Receiver;
    use std::thread::{Builder, JoinHandle};

    /// Words of a set of CPUs: 8,192 of them, as many as Linux knows.
    const WORDS: usize = 128;

    /// Timer slack of an ordinary thread, in nanoseconds.
    const SLACK: libc::c_ulong = 50_000;

    /// A set of CPUs.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub(crate) struct Cpus(Box<[u64; WORDS]>);

    /// The CPUs of the process when the library was loaded; none before.
    static AT_LOAD: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

    /// The CPUs that were set instead: null, or leaked. No lock: a child of a fork would wait for the thread that has it.
    static SET: AtomicPtr<Cpus> = AtomicPtr::new(std::ptr::null_mut());

    fn set() -> Option<&'static Cpus> {
        // SAFETY: null, or leaked by `set_cpus` and never changed.
        unsafe { SET.load(Ordering::Acquire).as_ref() }
    }

    /// Run when the library is loaded: with the program, before its `main`, or by `dlopen`.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static ON_LOAD: extern "C" fn() = {
        extern "C" fn on_load() {
            // The main thread's too: a library can be loaded by a thread that is bound to some CPU.
            let main = libc::pid_t::try_from(std::process::id()).unwrap_or(0);
            for thread in [0, main] {
                let words = cpus_of(thread);
                AT_LOAD.iter().zip(words.iter()).for_each(|(all, &word)| _ = all.fetch_or(word, Ordering::Relaxed));
            }
        }
        on_load
    };

    /// Threads that are started from now on run on these CPUs.
    ///
    /// # Errors
    /// Where the process may use none of them.
    pub(crate) fn set_cpus(cpus: &Cpus) -> io::Result<()> {
        let (tried, builder) = (cpus.clone(), Builder::new().name("mrrc-cpus".into()));
        let trial = builder.spawn(move || tried.take())?;
        trial.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        if set() != Some(cpus) {
            SET.store(Box::leak(Box::new(cpus.clone())), Ordering::Release);
        }
        Ok(())
    }

    impl Cpus {
        const SIZE: usize = WORDS * size_of::<u64>();

        pub(crate) fn all() -> Self {
            Self(Box::new([u64::MAX; WORDS]))
        }

        /// Reads `all`, or numbers and ranges of numbers with commas: `0-3,8`.
        pub(crate) fn parse(text: &str) -> Option<Self> {
            if text == "all" {
                return Some(Self::all());
            }
            let mut words = Box::new([0_u64; WORDS]);
            for part in text.split(',') {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
                if first > last || last >= WORDS * 64 {
                    return None;
                }
                (first..=last).for_each(|cpu| words[cpu / 64] |= 1 << (cpu % 64));
            }
            Some(Self(words))
        }

        fn wanted() -> Self {
            set().cloned().unwrap_or_else(|| {
                let words = std::array::from_fn(|nth| AT_LOAD[nth].load(Ordering::Relaxed));
                Self(Box::new(words))
            })
        }

        /// Binds the calling thread to them.
        fn take(&self) -> io::Result<()> {
            // SAFETY: the call reads that many bytes, borrowed for it, and is about the calling thread.
            match unsafe { libc::sched_setaffinity(0, Self::SIZE, self.0.as_ptr().cast()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }

        fn give(&self, thread: libc::pthread_t) -> bool {
            // SAFETY: the thread was not joined or detached yet, nor has it ended, and the call reads that many bytes,
            // borrowed for it.
            unsafe { libc::pthread_setaffinity_np(thread, Self::SIZE, self.0.as_ptr().cast()) == 0 }
        }
    }

    /// Returns the CPUs of a thread; 0 is this one.
    fn cpus_of(thread: libc::pid_t) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        // SAFETY: the call writes at most that many bytes, which are borrowed for it.
        unsafe { libc::sched_getaffinity(thread, size_of_val(&words), words.as_mut_ptr().cast()) };
        words
    }

    /// The CPUs that threads are given, of those that are there.
    pub(super) fn count() -> usize {
        let wanted: u32 = Cpus::wanted().0.iter().map(|word| word.count_ones()).sum();
        // SAFETY: `sysconf` takes a number and returns one, or -1.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(online).map_or(1, |online| online.min(wanted as usize)).max(1)
    }

    /// Starts a thread of the library's own, whether a checker runs or not.
    ///
    /// # Errors
    /// The system's error where it has no thread left.
    pub(crate) fn spawn_real(builder: Builder, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        let (set, is_set) = std::sync::mpsc::channel::<Infallible>();
        let thread = without_signals(|| {
            builder.spawn(move || {
                // The C library takes a thread that has ended for the calling one, and would unbind the creator. So it
                // stays until its creator is through, however it ends: there is no message but that the other end is gone.
                let _until_set = Waits(is_set);
                become_ordinary();
                run();
            })
        })?;
        let handle = thread.as_pthread_t();
        // All that the process may use where what is wanted is not to be had: a set of CPUs can shrink meanwhile.
        if !Cpus::wanted().give(handle) {
            Cpus::all().give(handle);
        }
        let ordinary = libc::sched_param { sched_priority: 0 };
        // SAFETY: the thread was not joined or detached yet, nor has it ended, and the call reads one `sched_param`.
        unsafe { libc::pthread_setschedparam(handle, libc::SCHED_OTHER, &raw const ordinary) };
        drop(set);
        Ok(thread)
    }

    /// Waits, when it is dropped, until the other end is dropped.
    struct Waits(Receiver<Infallible>);

    impl Drop for Waits {
        fn drop(&mut self) {
            _ = self.0.recv();
        }
    }

    /// Gives the running thread the ordinary CPUs and scheduling.
    fn become_ordinary() {
        // SAFETY: these calls are about the calling thread and take numbers.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
            libc::prctl(libc::PR_SET_TIMERSLACK, SLACK);
        }
    }

    /// Runs `f` with every signal blocked: threads that it starts never run a handler of the program's.
    fn without_signals<T>(f: impl FnOnce() -> T) -> T {
        // SAFETY: plain data, for which zeroes are a value.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: both sets live across the calls.
        let blocked = unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0
        };
        let result = f();
        if blocked {
            // SAFETY: the set is what the call before wrote.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
        }
        result
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn cpus_are_read_as_taskset_reads_them() {
            let cpus = Cpus::parse("0-3, 8,70").unwrap();
            assert_eq!(cpus.0[..2], [0x10f, 1 << 6]);
            assert_eq!(Cpus::parse("all"), Some(Cpus::all()));
            for wrong in ["", "3-1", "a", "1,", "8192", "-1", "1-"] {
                assert_eq!(Cpus::parse(wrong), None, "{wrong}");
            }
        }

        #[test]
        fn bound_caller_counts_all_cpus() {
            let before = count();
            let bound = std::thread::spawn(|| {
                let first = cpus_of(0).iter().position(|&word| word != 0).unwrap();
                let mut one = Cpus(Box::new([0; WORDS]));
                one.0[first] = 1 << cpus_of(0)[first].trailing_zeros();
                one.take().unwrap();
                (std::thread::available_parallelism().unwrap().get(), count())
            });
            assert_eq!(bound.join().unwrap(), (1, before));
        }

        #[test]
        fn cpus_at_load_are_known() {
            let known = Cpus::wanted();
            let here = cpus_of(0);
            assert!(known.0.iter().any(|&word| word != 0), "the library's start was seen");
            assert!(known.0.iter().zip(here).all(|(all, here)| here & !*all == 0));
        }
    }
}
