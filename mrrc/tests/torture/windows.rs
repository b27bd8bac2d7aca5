//! A small set of hot addresses, and all the ways in which what lies there can change.

use crate::random::Random;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
/// The most pages of a window, and the distance from one to the next.
pub(crate) const WIDEST: usize = 16;
/// Candidate addresses: far from where the system puts mappings of its own accord, so that an address
/// that is unmapped for a moment is not reused.
const PLACES: [usize; 3] = [0x10_0000_0000, 0x20_0000_0000, 0x30_0000_0000];

/// The memory at a window's address. A thread that has it locked owns the memory.
pub(crate) struct Window {
    pub(crate) address: usize,
    /// 0: nothing is mapped.
    pub(crate) pages: usize,
    pub(crate) shared: bool,
}

/// The windows, and for each thread a place to which pages can be moved out of the way.
pub(crate) struct Windows {
    base: usize,
    all: Vec<Mutex<Window>>,
    threads: usize,
    /// The window with a change in flight, if any.
    changing: AtomicUsize,
}

/// A way to change a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// `munmap`, then `mmap`.
    Reuse,
    /// `mmap` over it.
    Over,
    /// `mmap` over a part of it.
    Part,
    /// `mremap` away, then `mmap`.
    Away,
    /// `mremap` of other pages onto it.
    Onto,
    /// `mremap` that takes the pages and leaves the mapping.
    Drain,
    /// `mremap` to fewer pages, then to more.
    Resize,
    /// `MADV_DONTNEED`.
    Discard,
    /// `MADV_FREE`.
    Free,
    /// `MADV_REMOVE`.
    Remove,
}

impl Change {
    /// Those that a mutator chooses from.
    pub(crate) const ALL: [Self; 10] = [
        Self::Reuse,
        Self::Over,
        Self::Part,
        Self::Away,
        Self::Onto,
        Self::Drain,
        Self::Resize,
        Self::Discard,
        Self::Free,
        Self::Remove,
    ];

    /// Returns whether the mapping stays and its pages go.
    pub(crate) fn discards(self) -> bool {
        matches!(self, Self::Discard | Self::Free | Self::Remove)
    }
}

impl Windows {
    pub(crate) fn new(count: usize, threads: usize) -> Self {
        let bytes = (count + 2 * threads) * WIDEST * PAGE;
        let free = |&place: &usize| map_at(place, bytes, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE, false).is_ok();
        let base = PLACES.into_iter().find(|place| free(place)).expect("some address space that is free");
        unmap(base, bytes);
        let window = |i| Mutex::new(Window { address: base + i * WIDEST * PAGE, pages: 0, shared: false });
        Self { base, all: (0..count).map(window).collect(), threads, changing: AtomicUsize::new(0) }
    }

    /// Returns the windows.
    pub(crate) fn all(&self) -> &[Mutex<Window>] {
        &self.all
    }

    /// Returns the start of a window, with any owner.
    pub(crate) fn address(&self, window: usize) -> usize {
        self.base + window * WIDEST * PAGE
    }

    /// Returns a window that is changing, or was a moment ago.
    pub(crate) fn changing(&self) -> usize {
        self.changing.load(Ordering::Relaxed)
    }

    /// This one is about to change.
    pub(crate) fn note_change(&self, window: &Window) {
        self.changing.store((window.address - self.base) / (WIDEST * PAGE), Ordering::Relaxed);
    }

    /// Returns the place where this thread can put pages.
    pub(crate) fn aside(&self, thread: usize) -> usize {
        assert!(thread < self.threads);
        self.address(self.all.len() + 2 * thread)
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        unmap(self.base, (self.all.len() + 2 * self.threads) * WIDEST * PAGE);
    }
}

impl Window {
    /// Returns the bytes of the window.
    pub(crate) fn bytes(&self) -> usize {
        self.pages * PAGE
    }

    /// Maps it anew: it had nothing.
    pub(crate) fn fill(&mut self, random: &mut Random) {
        (self.pages, self.shared) = shape(random);
        map_at(self.address, self.bytes(), WRITABLE, libc::MAP_FIXED_NOREPLACE, self.shared).expect("a free address");
    }

    /// Changes it, and answers what was done in the end. When this returns, so have the calls.
    pub(crate) fn change(&mut self, change: Change, aside: usize, random: &mut Random) -> Change {
        let (address, bytes) = (self.address, self.bytes());
        match change {
            Change::Reuse => {
                unmap(address, bytes);
                self.fill(random);
            }
            Change::Over => {
                let (pages, shared) = shape(random);
                map_at(address, pages * PAGE, WRITABLE, libc::MAP_FIXED, shared).expect("a mapping over another");
                if pages < self.pages {
                    unmap(address + pages * PAGE, (self.pages - pages) * PAGE);
                }
                (self.pages, self.shared) = (pages, shared);
            }
            Change::Part => {
                let first = random.below(self.pages);
                let pages = 1 + random.below(self.pages - first);
                let (start, length) = (address + first * PAGE, pages * PAGE);
                if random.chance(2) {
                    unmap(start, length);
                    map_at(start, length, WRITABLE, libc::MAP_FIXED_NOREPLACE, self.shared).expect("a hole");
                } else {
                    map_at(start, length, WRITABLE, libc::MAP_FIXED, self.shared).expect("a mapping over another");
                }
            }
            Change::Away => {
                if remap(address, bytes, aside, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).is_err() {
                    // Several mappings in a row: kernels move one at a time, and may have moved the first.
                    unmap(aside, bytes);
                    return self.change(Change::Reuse, aside, random);
                }
                self.fill(random);
                unmap(aside, bytes);
            }
            Change::Onto => {
                let (pages, shared) = shape(random);
                map_at(aside, pages * PAGE, WRITABLE, libc::MAP_FIXED_NOREPLACE, shared).expect("a free address");
                remap(aside, pages * PAGE, address, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).expect("a move");
                if pages < self.pages {
                    unmap(address + pages * PAGE, (self.pages - pages) * PAGE);
                }
                (self.pages, self.shared) = (pages, shared);
            }
            Change::Drain => {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
                if remap(address, bytes, aside, flags).is_err() {
                    unmap(aside, bytes);
                    return self.change(Change::Over, aside, random);
                }
                unmap(aside, bytes);
            }
            Change::Resize => {
                let fewer = 1 + random.below(self.pages);
                if fewer < self.pages {
                    unmap(address + fewer * PAGE, (self.pages - fewer) * PAGE);
                }
                let more = fewer + random.below(WIDEST + 1 - fewer);
                if more > fewer {
                    let (start, length) = (address + fewer * PAGE, (more - fewer) * PAGE);
                    map_at(start, length, WRITABLE, libc::MAP_FIXED_NOREPLACE, self.shared).expect("a free address");
                }
                self.pages = more;
            }
            Change::Discard => advise(address, bytes, libc::MADV_DONTNEED).expect("a discard"),
            Change::Free | Change::Remove => {
                let advice = if self.shared { libc::MADV_REMOVE } else { libc::MADV_FREE };
                advise(address, bytes, advice).expect("a discard");
                return if self.shared { Change::Remove } else { Change::Free };
            }
        }
        change
    }
}

fn shape(random: &mut Random) -> (usize, bool) {
    // Full ones now and then, so that neighbours become one mapping.
    let pages = if random.chance(4) { WIDEST } else { 1 + random.below(WIDEST) };
    (pages, random.chance(16))
}

const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn map_at(address: usize, bytes: usize, protection: i32, how: i32, shared: bool) -> io::Result<()> {
    let flags = libc::MAP_ANONYMOUS | how | if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    // SAFETY: addresses of this program's own zone only.
    let mapped = unsafe { libc::mmap(address as *mut libc::c_void, bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(mapped as usize, address, "this kernel does not know MAP_FIXED_NOREPLACE (Linux 4.17)");
    Ok(())
}

/// Maps pages where nothing is; `EEXIST` as long as something is.
pub(crate) fn map_free(address: usize, pages: usize) -> io::Result<()> {
    map_at(address, pages * PAGE, WRITABLE, libc::MAP_FIXED_NOREPLACE, false)
}

/// `munmap`.
pub(crate) fn unmap(address: usize, bytes: usize) {
    // SAFETY: addresses of this program's own zone only; their owner is the caller.
    let done = unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
    assert_eq!(done, 0, "munmap: {}", io::Error::last_os_error());
}

/// `mremap` to an address.
pub(crate) fn remap(from: usize, bytes: usize, to: usize, flags: i32) -> io::Result<()> {
    let (from, to) = (from as *mut libc::c_void, to as *mut libc::c_void);
    // SAFETY: addresses of this program's own zone only; their owner is the caller.
    match unsafe { libc::mremap(from, bytes, bytes, flags, to) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn advise(address: usize, bytes: usize, advice: i32) -> io::Result<()> {
    // SAFETY: addresses of this program's own zone only; their owner is the caller.
    match unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
