//! The word that every call looks at: is all well, is a change being dealt with, is this a forked child?
//!
//! It is the word of a [`ForkGuard`], so it is 0 in a forked child. Otherwise it is 1, and 2 more for each monitor that is dealing
//! with a change. Its highest bit says, for good, that the state is broken: then no hit is served without the lock, which tells.
//! One load tells the usual case.

use crate::fork::ForkGuard;
use crate::shim::sync::atomic::{AtomicU64, Ordering};
use std::io;

const OPEN: u64 = ForkGuard::FIRST;
const DRAINING: u64 = 2;
const BROKEN: u64 = 1 << 63;

/// The flag is not looked at. Wrong, and for one purpose: `tests/torture` must find stale hits then.
const UNCHECKED: bool = cfg!(mrrc_torture_no_gate);

/// See the [module](self).
pub(crate) struct Gate(ForkGuard);

impl Gate {
    /// # Errors
    /// As [`ForkGuard::new`].
    pub(crate) fn new() -> io::Result<Self> {
        ForkGuard::new().map(Self)
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        self.0.word()
    }

    /// Returns whether nothing stands in the way of a hit. Acquire: a reader that finds it open after a change was dealt with
    /// finds the records hidden.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        let word = self.word().load(Ordering::Acquire);
        word == OPEN || (UNCHECKED && word != 0)
    }

    /// Returns whether this is a child that was forked from the process of the cache.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.0.is_forked()
    }

    /// Returns whether a change is being dealt with.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.word().load(Ordering::Acquire) >= DRAINING && !UNCHECKED
    }

    /// Notes that a change is being dealt with from now on. Sequentially consistent, before the event is read.
    pub(crate) fn raise(&self) {
        self.word().fetch_add(DRAINING, Ordering::SeqCst);
    }

    /// Notes that the state is broken: raised for good. Before the finder lowers it, so no hit falls in between.
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

    /// Notes that a change is dealt with. Release: see [`Gate::is_open`].
    pub(crate) fn lower(&self) {
        self.word().fetch_sub(DRAINING, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[expect(unsafe_code, reason = "it forks")]
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
