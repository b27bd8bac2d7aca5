//! The word that every call looks at: is all well, is a change being dealt with, is this a forked child?
//!
//! It lies in a page that the kernel wipes in a child (`MADV_WIPEONFORK`), so a child finds 0 there
//! however it was made: fork hooks miss raw clones. Otherwise it is 1, and 2 more for each monitor
//! that is dealing with a change. Its highest bit says, for good, that the state is broken: then no hit is served
//! without the lock, which tells. One load tells the usual case.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use wiped::Gate;

#[cfg(any(loom, shuttle))]
pub(crate) use plain::Gate;

const OPEN: u64 = 1;
const DRAINING: u64 = 2;
const BROKEN: u64 = 1 << 63;

/// The flag is not looked at. Wrong, and for one purpose: `tests/torture` must find stale hits then.
const UNCHECKED: bool = cfg!(mrrc_torture_no_gate);

macro_rules! states {
    () => {
        /// Returns whether nothing stands in the way of a hit. Acquire: a reader that finds it open
        /// after a change was dealt with finds the regions struck out.
        #[inline(always)]
        pub(crate) fn is_open(&self) -> bool {
            let word = self.word().load(Ordering::Acquire);
            word == OPEN || (UNCHECKED && word != 0)
        }

        /// Returns whether this is a child that was forked from the process of the cache.
        #[inline]
        pub(crate) fn is_forked(&self) -> bool {
            self.word().load(Ordering::Relaxed) == 0
        }

        /// Returns whether a change is being dealt with.
        #[inline]
        pub(crate) fn is_draining(&self) -> bool {
            self.word().load(Ordering::Acquire) >= DRAINING && !UNCHECKED
        }

        /// A change is being dealt with from now on. Sequentially consistent, before the event is read.
        pub(crate) fn raise(&self) {
            self.word().fetch_add(DRAINING, Ordering::SeqCst);
        }

        /// the state is broken: raised for good. Before the finder lowers it, so no hit falls in between.
        #[cold]
        pub(crate) fn break_down(&self) {
            // A wiped page stays wiped.
            if !self.is_forked() {
                self.word().fetch_or(BROKEN, Ordering::SeqCst);
            }
        }

        /// Returns whether the state is broken.
        pub(crate) fn is_broken(&self) -> bool {
            self.word().load(Ordering::Relaxed) & BROKEN != 0
        }

        /// It is dealt with. Release: see [`Gate::is_open`].
        pub(crate) fn lower(&self) {
            self.word().fetch_sub(DRAINING, Ordering::Release);
        }
    };
}

#[cfg(not(any(loom, shuttle)))]
mod wiped {
    #![expect(unsafe_code, reason = "a page of its own, wiped on fork")]

    use super::{BROKEN, DRAINING, OPEN, UNCHECKED};
    use crate::hit::notifier::Pool;
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// See the [module](super).
    pub(crate) struct Gate(&'static Line);

    /// A line of a page that is wiped on fork. Gates share such pages: to read those of many caches takes few of the
    /// processor's translations, and they do not lie at the same place of different pages, where they would displace each other.
    #[repr(align(64))]
    struct Line(AtomicU64);

    const PAGE: usize = crate::PAGE as usize;
    const LINES: usize = PAGE / size_of::<Line>();

    static POOL: Pool<Line> = Pool::new();

    impl Gate {
        /// # Errors
        /// The system has no page, or cannot wipe one on fork (Linux before 4.14).
        pub(crate) fn new() -> io::Result<Self> {
            let line = POOL.take().map_or_else(new_page, Ok)?;
            line.0.store(OPEN, Ordering::Release);
            Ok(Self(line))
        }

        #[inline(always)]
        fn word(&self) -> &AtomicU64 {
            &self.0.0
        }

        states!();
    }

    /// Returns a line of a page that is never unmapped. The others are in the pool.
    fn new_page() -> io::Result<&'static Line> {
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page was just mapped, and nothing is in it yet.
        if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
            let error = io::Error::last_os_error();
            // SAFETY: the page was mapped just now, and no other code has its address.
            unsafe { libc::munmap(page, PAGE) };
            return Err(error);
        }
        // SAFETY: so many lines are mapped there, aligned and zeroed, and they stay.
        let lines: &'static [Line] = unsafe { std::slice::from_raw_parts(page.cast(), LINES) };
        let Some((first, others)) = lines.split_first() else { unreachable!("a page has lines") };
        POOL.put(others);
        Ok(first)
    }

    impl Drop for Gate {
        fn drop(&mut self) {
            // In a child the line is the parent's gate as long as anything of that cache is looked at.
            if !self.is_forked() {
                POOL.put([self.0]);
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::{io::Read, os::fd::AsRawFd};

        use super::*;

        #[test]
        fn a_child_finds_the_gate_wiped_however_it_was_made() {
            let gate = Gate::new().unwrap();
            gate.raise();
            assert!(gate.is_draining() && !gate.is_open() && !gate.is_forked());
            gate.lower();
            assert!(gate.is_open() && !gate.is_broken());
            for raw in [false, true] {
                // The child answers through a pipe: its exit status belongs to whatever watches over it (a checker of memory
                // holds it to account for what its parent's other threads own).
                let (mut answer, question) = io::pipe().unwrap();
                // SAFETY: the child only reads a word, writes a byte and leaves.
                unsafe {
                    let child = if raw {
                        libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
                    } else {
                        libc::fork()
                    };
                    assert!(child >= 0);
                    if child == 0 {
                        let wiped = u8::from(gate.is_forked() && !gate.is_open());
                        libc::write(question.as_raw_fd(), (&raw const wiped).cast(), 1);
                        libc::_exit(0);
                    }
                    drop(question);
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
                let mut wiped = [0];
                answer.read_exact(&mut wiped).unwrap();
                assert_eq!(wiped, [1]);
                assert!(gate.is_open());
            }
        }

        #[test]
        fn what_is_broken_is_not_opened_by_those_who_lower_it() {
            let gate = Gate::new().unwrap();
            gate.raise();
            gate.break_down();
            gate.lower();
            assert!(gate.is_broken() && gate.is_draining() && !gate.is_open() && !gate.is_forked());
        }
    }
}

#[cfg(any(loom, shuttle))]
mod plain {
    use super::{BROKEN, DRAINING, OPEN, UNCHECKED};
    use crate::shim::sync::atomic::{AtomicU64, Ordering};
    use std::io;

    /// The checkers' stand-in: nothing forks there.
    pub(crate) struct Gate(AtomicU64);

    impl Gate {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(AtomicU64::new(OPEN)))
        }

        #[inline(always)]
        fn word(&self) -> &AtomicU64 {
            &self.0
        }

        states!();
    }
}
