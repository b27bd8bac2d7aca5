//! A word that a forked child finds wiped, however it was made: hooks of `fork` miss raw clones.
#![expect(unsafe_code, reason = "a page of its own, wiped on fork")]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether this is still the process that made it.
pub(crate) struct ForkGuard(NonNull<AtomicU64>);

// SAFETY: what it points to is an atomic that is never freed.
unsafe impl Send for ForkGuard {}
// SAFETY: it gives shared access to the atomic only, which is never freed.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// # Errors
    /// The system has no page, or cannot wipe one on fork (Linux before 4.14).
    pub(crate) fn new() -> io::Result<Self> {
        let length = mrrc::PAGE as usize;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), length, access, kind, -1, 0) };
        let word = if page == libc::MAP_FAILED { None } else { NonNull::new(page.cast::<AtomicU64>()) };
        let word = word.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the whole page was mapped just now, and nothing refers to it.
        if unsafe { libc::madvise(page, length, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page was mapped just now, is aligned and zeroed, and is never unmapped.
        unsafe { word.as_ref() }.store(1, Ordering::Release);
        Ok(Self(word))
    }

    pub(crate) fn is_this_process(&self) -> bool {
        // SAFETY: `new` mapped the page, and it is never unmapped.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) == 1
    }
}

/// Returns whether pages that are pinned stay the parent's when it forks: Linux copies them for the child since 5.12. On
/// older ones a registration that outlives the program's own would part from its memory at the next fork.
pub(crate) fn kernel_copies_pinned_pages() -> bool {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return false };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_made_it_knows_it() {
        assert!(ForkGuard::new().unwrap().is_this_process());
    }
}
