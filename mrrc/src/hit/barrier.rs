//! The two sides of one barrier: a light one for every hit, a heavy one for a thread that retires a region.
//!
//! Hits are many and retirements few, so the system is asked to put the barrier into the hits' side only when it is needed:
//! `membarrier` interrupts every running thread of the process and lets a hit do with an order to the compiler. Where that call
//! is refused, hits pay for a real fence (about 6 ns).

use crate::hit::records::LeaseCount;
use crate::shim::sync::atomic::{AtomicU32, Ordering, fence};

/// Which of the two is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Barrier {
    /// Hits pay nothing; retiring regions interrupts the other threads once a batch.
    Membarrier,
    /// Every hit pays for a full fence.
    Fence,
}

impl Barrier {
    /// Returns the best that the system offers.
    pub(crate) fn choose() -> Self {
        if asymmetric::is_offered() { Self::Membarrier } else { Self::Fence }
    }

    /// Announces the region that is taken; later loads come after all threads can see that.
    #[inline(always)]
    pub(crate) fn announce(self, slot: &AtomicU32, name: u32) {
        match self {
            Self::Membarrier => {
                // Release: a reader of this name comes after the lease that emptied the slot before.
                slot.store(name, Ordering::Release);
                asymmetric::light();
            }
            Self::Fence => {
                // On x86 an exchange is a full barrier, and cheaper than the fence that says the same.
                if cfg!(all(target_arch = "x86_64", not(any(loom, shuttle)))) {
                    slot.swap(name, Ordering::SeqCst);
                    asymmetric::light();
                } else {
                    slot.store(name, Ordering::Release);
                    fence(Ordering::SeqCst);
                }
            }
        }
    }

    /// The same for a count of leases; rare enough for a fence. False: there are too many.
    pub(crate) fn announce_count(self, count: &LeaseCount) -> bool {
        let counted = count.add();
        fence(Ordering::SeqCst);
        counted
    }

    /// Makes earlier stores visible to every hit that is not seen announced from here on.
    pub(crate) fn heavy(self) {
        fence(Ordering::SeqCst);
        if self == Self::Membarrier {
            asymmetric::heavy();
            fence(Ordering::SeqCst);
        }
    }
}

/// Between the store that empties a slot and the look whether its release is awaited: an order to the compiler alone, in both
/// modes. With `membarrier` the other side makes it a barrier; without, the awaiting thread looks again from time to time. The
/// checkers, where time does not pass, have the fence.
#[inline(always)]
pub(crate) fn after_release() {
    if cfg!(any(loom, shuttle)) {
        fence(Ordering::SeqCst);
    } else {
        asymmetric::light();
    }
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle, miri))))]
mod asymmetric {
    #![expect(unsafe_code, reason = "one system call")]

    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

    fn membarrier(command: libc::c_int) -> libc::c_long {
        // SAFETY: the call takes two numbers and touches no memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    /// Returns whether the process may use it; registers it once.
    pub(crate) fn is_offered() -> bool {
        /// 1 no, 2 yes. No lock: a child that is forked while another thread asks would wait for that thread.
        static OFFERED: AtomicU8 = AtomicU8::new(0);
        match OFFERED.load(Ordering::Relaxed) {
            0 => {
                let is_offered = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
                    && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
                OFFERED.store(1 + u8::from(is_offered), Ordering::Relaxed);
                is_offered
            }
            known => known == 2,
        }
    }

    #[inline(always)]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        // It cannot fail once it was registered; were it to, every hit since would be in doubt.
        assert!(done == 0, "membarrier failed: {}", std::io::Error::last_os_error());
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, shuttle, miri)))))]
mod asymmetric {
    pub(crate) fn is_offered() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn light() {}

    pub(crate) fn heavy() {}
}
