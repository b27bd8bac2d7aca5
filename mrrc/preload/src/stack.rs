//! Whether a thread has the stack that a cache takes.
//!
//! libibverbs needs a few kilobytes, and programs make threads with no more than that. A request that misses takes some twenty
//! here. Code on a stack that is not its thread's (a fibre's, a signal's) may have any.
#![expect(unsafe_code, reason = "the C library is asked for the bounds of this thread's stack")]

use std::cell::Cell;

/// The stack that a call needs, with a margin.
const NEEDED: usize = 64 << 10;

thread_local! {
    /// The bounds of this thread's stack; nothing as long as they were not asked for.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Returns whether there is enough.
pub(crate) fn is_enough() -> bool {
    let here = 0_u8;
    let at = (&raw const here).addr();
    let (lowest, end) = match BOUNDS.get() {
        (0, 0) => {
            let bounds = bounds().unwrap_or((1, 1));
            BOUNDS.set(bounds);
            bounds
        }
        known => known,
    };
    (lowest..end).contains(&at) && at - lowest >= NEEDED
}

fn bounds() -> Option<(usize, usize)> {
    // SAFETY: `getpid` and `gettid` take no arguments.
    let is_first = unsafe { libc::getpid() == libc::gettid() };
    if is_first { of_first() } else { of_thread() }
}

/// The stack of a process' first thread grows as far as it may. The C library would read the list of mappings for it.
fn of_first() -> Option<(usize, usize)> {
    unsafe extern "C" {
        /// The start of the stack: the dynamic linker's variable.
        static __libc_stack_end: *const u8;
    }
    // SAFETY: written before anything of the program ran.
    let end = unsafe { __libc_stack_end }.addr();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local structure that the call may write.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } != 0 {
        return None;
    }
    // Unlimited is less than what lies below.
    let most = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).min(8 << 20);
    Some((end.checked_sub(most)?, end))
}

fn of_thread() -> Option<(usize, usize)> {
    // SAFETY: plain memory, which the call fills.
    let mut attributes = unsafe { std::mem::zeroed() };
    // SAFETY: this thread's, and a structure for them.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: filled above, and two places to write to.
    let failed = unsafe { libc::pthread_attr_getstack(&attributes, &mut lowest, &mut size) } != 0;
    // SAFETY: filled above, and used no more.
    unsafe { libc::pthread_attr_destroy(&mut attributes) };
    (!failed).then(|| (lowest.addr(), lowest.addr().saturating_add(size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_stack_is_enough_and_a_small_one_is_not() {
        for (size, enough) in [(1 << 20, true), (32 << 10, false)] {
            let thread = std::thread::Builder::new().stack_size(size).spawn(is_enough).unwrap();
            assert_eq!(thread.join().unwrap(), enough, "{size}");
        }
    }
}
