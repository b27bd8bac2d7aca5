//! Points in operations at which tests kill or stop the process. Nothing outside of this crate's own tests.

/// Does nothing outside of tests: a point at which they can end the process.
#[cfg(not(test))]
#[inline(always)]
pub(super) fn failpoint() {}

#[cfg(test)]
pub(super) use counted::{arm, failpoint};

#[cfg(test)]
mod counted {
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

    static TAKEN: AtomicU64 = AtomicU64::new(0);
    static FATAL: AtomicU64 = AtomicU64::new(u64::MAX);
    static SIGNAL: AtomicI32 = AtomicI32::new(0);

    /// At this step the process gets this signal.
    pub(in super::super) fn arm(step: u64, signal: i32) {
        SIGNAL.store(signal, SeqCst);
        FATAL.store(step, SeqCst);
    }

    #[expect(unsafe_code, reason = "sends a signal to this process")]
    pub(in super::super) fn failpoint() {
        if TAKEN.fetch_add(1, SeqCst) == FATAL.load(SeqCst) {
            // SAFETY: a signal to this very process.
            unsafe { libc::kill(libc::getpid(), SIGNAL.load(SeqCst)) };
            // Another thread may take it, and this one would go on for a while. A stop is for good: only a kill ends it.
            loop {
                std::thread::park();
            }
        }
    }
}
