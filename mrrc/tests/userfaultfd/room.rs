//! Memory to be watched, and what can be done to it.

use crate::BYTES;
use crate::child::in_child;
use mrrc::{PAGE, PageRange};
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub(crate) const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Sixteen writable pages between two inaccessible ones, so that the kernel joins them with nothing, and far
/// from where the kernel puts mappings of its own choice, so that a hole in them stays one.
pub(crate) struct Room(usize);

impl Room {
    pub(crate) const PAGES: usize = 16;

    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);
        let hint = NEXT.fetch_add(64 * PAGE, SeqCst) as *mut libc::c_void;
        // SAFETY: new memory, at the hint if nothing is there.
        let start = unsafe { libc::mmap(hint, (Self::PAGES + 2) * BYTES, libc::PROT_NONE, ANONYMOUS, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", Error::last_os_error());
        let room = Self(start as usize + BYTES);
        room.protect(libc::PROT_READ | libc::PROT_WRITE);
        room.touch(0, Self::PAGES);
        room
    }

    pub(crate) fn range(&self, page: usize, pages: usize) -> PageRange {
        PageRange::of_bytes((self.0 + page * BYTES) as u64, (pages * BYTES) as u64).unwrap()
    }

    pub(crate) fn at(&self, page: usize) -> *mut libc::c_void {
        (self.0 + page * BYTES) as *mut libc::c_void
    }

    pub(crate) fn touch(&self, page: usize, pages: usize) {
        for page in page..page + pages {
            // SAFETY: the page is mapped for writing, and nothing but tests lies in it.
            unsafe { self.at(page).cast::<u8>().write_volatile(1) };
        }
    }

    pub(crate) fn map(&self, page: usize, pages: usize, flags: libc::c_int) {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: within the room, which belongs to the test.
        let mapped = unsafe { libc::mmap(self.at(page), pages * BYTES, prot, flags | libc::MAP_FIXED, -1, 0) };
        assert_eq!(mapped, self.at(page), "{}", Error::last_os_error());
        self.touch(page, pages);
    }

    pub(crate) fn map_file(&self, flags: libc::c_int, prot: libc::c_int, file: &std::fs::File) {
        use std::os::fd::AsRawFd;
        // SAFETY: the pages are between the two fences of this room's own mapping.
        let mapped = unsafe { libc::mmap(self.at(0), BYTES, prot, flags | libc::MAP_FIXED, file.as_raw_fd(), 0) };
        assert_eq!(mapped, self.at(0), "{}", Error::last_os_error());
    }

    pub(crate) fn unmap(&self, page: usize, pages: usize) {
        // SAFETY: the pages are between the two fences of this room's own mapping. The hole is small; if other code
        // maps there, the test that asks notices.
        assert_eq!(unsafe { libc::munmap(self.at(page), pages * BYTES) }, 0);
    }

    /// Other memory at the same place, by a call that unmaps and one that maps, or by one that does both.
    pub(crate) fn renew(&self, turn: usize) {
        if turn.is_multiple_of(4) {
            return self.map(0, Self::PAGES, ANONYMOUS);
        }
        if turn % 4 == 1 {
            // Memory that is not watched takes the place first, so that no other thread can. SAFETY: the pages are
            // between the two fences of this room's own mapping.
            let fence = unsafe {
                let flags = ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(self.at(0), Self::PAGES * BYTES, libc::PROT_NONE, flags, -1, 0)
            };
            assert_eq!(fence, self.at(0));
            return self.map(0, Self::PAGES, ANONYMOUS);
        }
        self.unmap(0, Self::PAGES);
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: MAP_FIXED_NOREPLACE maps only where nothing is mapped.
        let mapped = unsafe { libc::mmap(self.at(0), Self::PAGES * BYTES, prot, flags, -1, 0) };
        assert_eq!(mapped, self.at(0), "another thread took the place: {}", Error::last_os_error());
        self.touch(0, Self::PAGES);
    }

    pub(crate) fn remap(&self, old: usize, new: usize, flags: libc::c_int, to: *mut libc::c_void) {
        // SAFETY: the pages are between the two fences of this room's own mapping.
        let mapped = unsafe { libc::mremap(self.at(0), old * BYTES, new * BYTES, flags, to) };
        assert_ne!(mapped, libc::MAP_FAILED, "{}", Error::last_os_error());
    }

    /// Moves the memory into another room; a hole stays behind.
    pub(crate) fn move_to(&self, other: &Self) {
        self.remap(Self::PAGES, Self::PAGES, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, other.at(0));
    }

    pub(crate) fn advise(&self, page: usize, pages: usize, advice: libc::c_int) {
        // SAFETY: the pages are between the two fences of this room's own mapping.
        let advised = unsafe { libc::madvise(self.at(page), pages * BYTES, advice) };
        assert_eq!(advised, 0, "{}", Error::last_os_error());
    }

    pub(crate) fn protect(&self, prot: libc::c_int) {
        self.protect_part(0, Self::PAGES, prot);
    }

    pub(crate) fn protect_part(&self, page: usize, pages: usize, prot: libc::c_int) {
        // SAFETY: the pages are between the two fences of this room's own mapping.
        assert_eq!(unsafe { libc::mprotect(self.at(page), pages * BYTES, prot) }, 0);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the room and its two fences, or the holes where they were, which no other mapping got.
        unsafe { libc::munmap((self.0 - BYTES) as *mut _, (Self::PAGES + 2) * BYTES) };
    }
}

pub(crate) fn in_a_child_unmap(room: &Room) {
    in_child(|| {
        room.unmap(0, Room::PAGES);
        0
    });
}

pub(crate) fn unmap_after_a_move(room: &Room) {
    let there = Room::new();
    room.move_to(&there);
    room.map(0, Room::PAGES, ANONYMOUS);
    there.unmap(0, Room::PAGES);
}

pub(crate) fn memfd() -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: a new descriptor that is owned by the file.
    let file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
    file.set_len(PAGE).unwrap();
    file
}

/// How many of the rooms are registered with some userfaultfd in write-protect mode: the kernel's own word.
pub(crate) fn registered(rooms: &[Room]) -> usize {
    let starts: Vec<_> = rooms.iter().map(|room| room.0).collect();
    registered_at(&starts)
}

/// As [`registered`], of the mappings at these addresses.
pub(crate) fn registered_at(starts: &[usize]) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    let mut count = 0;
    for line in text.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|bounds| bounds.split_once('-')) {
            let bounds = usize::from_str_radix(start, 16).ok().zip(usize::from_str_radix(end, 16).ok());
            here = bounds.is_some_and(|(start, end)| starts.iter().any(|at| (start..end).contains(at)));
        }
        count += (here && line.starts_with("VmFlags:") && line.contains(" uw")) as usize;
    }
    count
}
