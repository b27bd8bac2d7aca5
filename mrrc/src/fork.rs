//! A word that tells a forked child from its parent.

use crate::shim::sync::atomic::{AtomicU64, Ordering};
use std::io;

#[cfg(not(any(loom, shuttle)))]
use wiped::Word;

/// A word that is 0 in a child that was forked, and never 0 in the process that made it.
///
/// It lies in a page that the kernel wipes in a child (`MADV_WIPEONFORK`), however the child was made: hooks of `fork` miss raw
/// clones.
#[derive(Debug)]
pub struct ForkGuard(Word);

/// The checkers' stand-in: nothing forks there.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
struct Word(AtomicU64);

#[cfg(any(loom, shuttle))]
impl Word {
    fn new() -> io::Result<Self> {
        Ok(Self(AtomicU64::new(ForkGuard::FIRST)))
    }

    #[inline(always)]
    fn get(&self) -> &AtomicU64 {
        &self.0
    }
}

impl ForkGuard {
    /// The word of a new guard.
    pub(crate) const FIRST: u64 = 1;

    /// Returns a guard of this process.
    ///
    /// # Errors
    /// The system has no page, or cannot wipe one on fork (Linux before 4.14).
    pub fn new() -> io::Result<Self> {
        Word::new().map(Self)
    }

    /// Returns whether this is a child that was forked from the process that made the guard.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    /// Returns the word. Its users keep it from being 0.
    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU64 {
        self.0.get()
    }
}

#[cfg(not(any(loom, shuttle)))]
mod wiped {
    #![expect(unsafe_code, reason = "a page of its own, wiped on fork")]

    use super::ForkGuard;
    use crate::pool::Pool;
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub(super) struct Word(&'static Line);

    /// A line of a page that is wiped on fork. Guards share such pages: to read those of many caches takes few of the
    /// processor's translations, and they do not lie at the same place of different pages, where they would displace each other.
    #[derive(Debug)]
    #[repr(align(64))]
    struct Line(AtomicU64);

    const PAGE: usize = crate::PAGE as usize;
    const LINES: usize = PAGE / size_of::<Line>();

    static POOL: Pool<Line> = Pool::new();

    impl Word {
        pub(super) fn new() -> io::Result<Self> {
            let line = POOL.take().map_or_else(new_page, Ok)?;
            line.0.store(ForkGuard::FIRST, Ordering::Release);
            Ok(Self(line))
        }

        #[inline(always)]
        pub(super) fn get(&self) -> &AtomicU64 {
            &self.0.0
        }
    }

    /// Returns a line of a page that is never unmapped. The others are in the pool.
    fn new_page() -> io::Result<&'static Line> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
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

    impl Drop for Word {
        fn drop(&mut self) {
            // In a child the line is the parent's word as long as anything of its owner is looked at.
            if self.get().load(Ordering::Relaxed) != 0 {
                POOL.put([self.0]);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_made_it_knows_it() {
        assert!(!ForkGuard::new().unwrap().is_forked());
    }
}
