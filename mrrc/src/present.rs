//! Which pages of this process are its own, in memory: to register few pages that are not.
//!
//! The kernel's page of zeroes, which a read puts under untouched memory, is not. Nor is a page that is shared with a child process until one of
//! the two writes it. To pin such a page takes memory for a copy.
//!
//! Buffers of an allocator have a page or two between them that were never touched. Such a [hole](HOLE) is passed over where the
//! pages on both sides are the process's own. To pin it takes memory, so [few](FEW) pages are in holes.

use crate::own_file::OwnFile;
use crate::range::{PAGE, PageRange};
use std::io;
use std::os::unix::fs::FileExt;

/// The kernel's table of this process's pages.
#[derive(Debug)]
pub(crate) struct PageMap(OwnFile);

/// Pages looked at in one system call, on each side of a range.
const MOST: u64 = 128;
/// Bytes of an entry, and the bits of a page that is in memory and mapped by this process alone.
const ENTRY: usize = size_of::<u64>();
const OWN: u64 = 1 << 63 | 1 << 56;
/// Bits of a page that is in memory or swapped out. One without these was never touched, or was given back.
const BACKED: u64 = 1 << 63 | 1 << 62;
/// The most pages of a hole.
const HOLE: u64 = 2;
/// One page may be in a hole for so many that are not.
const FEW: u64 = 32;

impl PageMap {
    /// # Errors
    /// Fails where the system has no such table, or has pages of another size than ours.
    pub(crate) fn open() -> io::Result<Self> {
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: `sysconf` takes a number and returns one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if u64::try_from(page) != Ok(PAGE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        OwnFile::open("/proc/self/pagemap").map(Self)
    }

    /// Returns the range with the process's own pages next to it that are in memory now, within the bounds, and the small holes between
    /// these. One system call where these are close, and otherwise one for each 128 pages that are.
    pub(crate) fn around(&self, range: PageRange, within: PageRange) -> PageRange {
        let (first, last) = (within.start().min(range.start()), within.end().max(range.end()));
        let mut entries = [0_u8; 2 * MOST as usize * ENTRY];
        let mut before = Run::next_to(range.pages());
        if last - first <= 2 * MOST {
            let found = self.read(first, last, &mut entries);
            let (ahead, rest) = found.split_at(((range.start() - first) as usize * ENTRY).min(found.len()));
            let behind = rest.get(range.pages() as usize * ENTRY..).unwrap_or_default();
            before.take(ahead.rchunks_exact(ENTRY));
            let mut after = before.turned();
            after.take(behind.chunks_exact(ENTRY));
            return PageRange::between(range.start() - before.pages, range.end() + after.pages);
        }
        before.take_parts(range.start() - first, |run, done, part| {
            let end = range.start() - done;
            run.take(self.read(end - part, end, &mut entries).rchunks_exact(ENTRY));
        });
        let mut after = before.turned();
        after.take_parts(last - range.end(), |run, done, part| {
            let start = range.end() + done;
            run.take(self.read(start, start + part, &mut entries).chunks_exact(ENTRY));
        });
        PageRange::between(range.start() - before.pages, range.end() + after.pages)
    }

    /// Returns the entries of these pages; none where they cannot be read all, or the program has closed the file.
    fn read<'a>(&self, start: u64, end: u64, entries: &'a mut [u8]) -> &'a [u8] {
        let wanted = &mut entries[..(end - start) as usize * ENTRY];
        match self.0.get().and_then(|table| table.read_exact_at(wanted, start * ENTRY as u64)) {
            Ok(()) => wanted,
            Err(_) => &[],
        }
    }
}

/// Pages next to a range, from it outwards.
#[derive(Debug)]
struct Run {
    /// Up to the last that is the process's own.
    pages: u64,
    /// Pages that were looked at.
    seen: u64,
    /// The process's own, with those of the range, and those in holes.
    own: u64,
    holes: u64,
    /// Pages of the hole that was looked at last, if no page followed it.
    hole: u64,
    is_over: bool,
}

impl Run {
    /// Returns an empty one, next to so many pages.
    fn next_to(pages: u64) -> Self {
        Self { pages: 0, seen: 0, own: pages, holes: 0, hole: 0, is_over: false }
    }

    /// Returns an empty one on the other side.
    fn turned(&self) -> Self {
        Self { holes: self.holes - self.hole, ..Self::next_to(self.own) }
    }

    /// Adds pages by their entries.
    fn take<'a>(&mut self, entries: impl Iterator<Item = &'a [u8]>) {
        for entry in entries {
            let word = entry.try_into().map_or(0, u64::from_ne_bytes);
            self.seen += 1;
            if word & OWN == OWN {
                self.own += 1;
                (self.pages, self.hole) = (self.seen, 0);
            } else if word & BACKED == 0 && self.hole < HOLE && (self.holes + 1) * FEW <= self.own {
                self.holes += 1;
                self.hole += 1;
            } else {
                self.is_over = true;
                return;
            }
        }
    }

    /// Adds up to so many pages, part by part, until it is over.
    fn take_parts(&mut self, pages: u64, mut take: impl FnMut(&mut Self, u64, u64)) {
        while self.seen < pages && !self.is_over {
            let (done, part) = (self.seen, (pages - self.seen).min(MOST));
            take(self, done, part);
            // Entries that cannot be read end it.
            self.is_over |= self.seen < done + part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps so many pages, and writes to those of the range. Children of other tests do not get them.
    #[expect(unsafe_code, reason = "memory is mapped by hand")]
    fn filled(pages: u64, written: std::ops::Range<u64>) -> PageRange {
        let range = filled_and_shared(pages, written);
        let (memory, bytes) = ((range.start() * PAGE) as *mut libc::c_void, (pages * PAGE) as usize);
        // SAFETY: the mapping is this test's own.
        assert_eq!(unsafe { libc::madvise(memory, bytes, libc::MADV_DONTFORK) }, 0);
        range
    }

    /// As [`filled`], and children get them.
    #[expect(unsafe_code, reason = "memory is mapped by hand")]
    fn filled_and_shared(pages: u64, written: std::ops::Range<u64>) -> PageRange {
        let bytes = (pages * PAGE) as usize;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping touches nothing that exists. It stays to the end of the process.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: the mapping is this test's own. Pages of 4 KiB come alone then.
        unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
        let range = PageRange::new(memory as u64 / PAGE, pages).unwrap();
        written.for_each(|page| touch(range, page));
        range
    }

    /// Writes to a page of a mapping.
    #[expect(unsafe_code, reason = "memory is written by its address")]
    fn touch(mapping: PageRange, page: u64) {
        assert!(page < mapping.pages());
        // SAFETY: the page lies in the mapping, which is this test's own.
        unsafe { (((mapping.start() + page) * PAGE) as *mut u8).write(1) };
    }

    #[test]
    #[cfg_attr(miri, ignore = "it maps memory")]
    fn pages_in_memory_end_at_the_first_that_is_not() {
        let map = PageMap::open().unwrap();
        for (start, pages) in [(40, 2), (33, 30), (32, 31)] {
            let whole = filled(600, 32..63);
            let at = |start: u64, end: u64| PageRange::between(whole.start() + start, whole.start() + end);
            let asked = at(start, start + pages);
            assert_eq!(map.around(asked, whole), at(32, 63));
            assert_eq!(map.around(asked, at(33, 600)), at(33.min(start), 63));
            assert_eq!(map.around(asked, asked), asked);
        }
        // A long range, whose ends are looked at alone; and far beyond one look.
        let whole = filled(1000, 100..900);
        let at = |start: u64, end: u64| PageRange::between(whole.start() + start, whole.start() + end);
        assert_eq!(map.around(at(101, 800), whole), at(100, 900));
        assert_eq!(map.around(at(300, 310), whole), at(100, 900));
        assert_eq!(map.around(at(300, 310), at(0, 500)), at(100, 500));
        assert_eq!(map.around(at(500, 510), at(500 - 3 * MOST, 1000)), at(500 - 3 * MOST, 900));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it maps memory")]
    fn small_holes_between_own_pages_are_passed_over() {
        let map = PageMap::open().unwrap();
        // Buffers of an allocator, whose last page was never touched.
        let whole = filled(1000, 0..0);
        let at = |start: u64, end: u64| PageRange::between(whole.start() + start, whole.start() + end);
        let end = 15 * 66 - 1;
        (0..end).filter(|page| page % 66 != 65).for_each(|page| touch(whole, page));
        for within in [at(0, 250), whole] {
            assert_eq!(map.around(at(66, 130), within), at(0, within.end().min(at(0, end).end()) - whole.start()));
        }
        assert_eq!(map.around(at(66, 130), at(65, 132)), at(66, 131), "none ends with a hole");
        assert_eq!(map.around(at(66, 97), whole), at(66, end), "too few pages for the first hole before them");
        // Larger holes are none of an allocator, and many small ones are sparse memory.
        let whole = filled(600, 100..200);
        let at = |start: u64, end: u64| PageRange::between(whole.start() + start, whole.start() + end);
        (203..300).for_each(|page| touch(whole, page));
        assert_eq!(map.around(at(110, 190), whole), at(100, 200));
        (0..99).step_by(2).for_each(|page| touch(whole, page));
        assert_eq!(map.around(at(100, 131), whole), at(100, 200));
        assert_eq!(map.around(at(100, 164), whole), at(96, 200), "two for 66");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it maps memory")]
    #[expect(unsafe_code, reason = "memory is read by its address")]
    fn the_page_of_zeroes_is_not_ours() {
        let map = PageMap::open().unwrap();
        let whole = filled(64, 20..24);
        for page in whole.start()..whole.end() {
            // SAFETY: the page is mapped, and nothing writes it meanwhile.
            unsafe { ((page * PAGE) as *const u8).read_volatile() };
        }
        let at = |start: u64, end: u64| PageRange::between(whole.start() + start, whole.start() + end);
        assert_eq!(map.around(at(50, 51), whole), at(50, 51));
        assert_eq!(map.around(at(21, 22), whole), at(20, 24));
        assert_eq!(map.around(at(24, 25), whole), at(20, 25));
    }

    #[test]
    #[cfg_attr(miri, ignore = "it forks")]
    #[expect(unsafe_code, reason = "it forks")]
    fn pages_shared_with_a_child_are_not_ours() {
        let map = PageMap::open().unwrap();
        let whole = filled_and_shared(64, 0..64);
        let asked = PageRange::between(whole.start() + 20, whole.start() + 22);
        // SAFETY: the child waits for its end, and takes no lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: `pause` has no arguments, and returns when a signal was handled.
                unsafe { libc::pause() };
            }
        }
        let found = map.around(asked, whole);
        let mut status = 0;
        // SAFETY: the child is this test's own, and is waited for once.
        let ended = unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, &raw mut status, 0)) };
        assert_eq!((found, ended), (asked, (0, child)));
    }

    #[test]
    fn addresses_that_no_memory_can_have_add_nothing() {
        let map = PageMap::open().unwrap();
        let last = PageRange::EVERYTHING.end();
        let top = PageRange::between(last - 1, last);
        assert_eq!(map.around(top, PageRange::EVERYTHING), top);
        let low = PageRange::between(0, 1);
        assert_eq!(map.around(low, PageRange::between(0, 2)), low);
    }
}
