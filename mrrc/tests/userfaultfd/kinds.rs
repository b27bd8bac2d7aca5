//! Every kind of mapping whose changes the monitor cannot hear of: it is refused before it is watched, nothing of it is
//! cached, and the reason is given.

use crate::by_hand::ByHand;
use crate::room::{ANONYMOUS, Room, memfd, registered, registered_at};
use crate::told::monitor;
use crate::{BYTES, Duration};
use mrrc::cache::Finding;
use mrrc::invalidation::{Unwatched, Userfaultfd, Watch};
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, PAGE, PageRange};
use std::fs::File;
use std::os::fd::FromRawFd;
use std::ptr;

/// A mapping that the kernel places, and takes back at the end.
struct Mapped(*mut libc::c_void, usize);

impl Mapped {
    fn new(bytes: usize, rights: libc::c_int, flags: libc::c_int, file: libc::c_int) -> Option<Self> {
        // SAFETY: it is mapped where nothing is.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, flags, file, 0) };
        (at != libc::MAP_FAILED).then_some(Self(at, bytes))
    }

    fn range(&self) -> PageRange {
        PageRange::of_bytes(self.0 as u64, self.1 as u64).unwrap()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the test's own, to which nothing refers.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

fn cache() -> Option<Cache<NoopRegistrar>> {
    let monitor = Userfaultfd::new().map_err(|error| println!("skipped: {error}")).ok()?;
    let builder =
        Cache::builder(NoopRegistrar::default()).ignore_environment().monitor(monitor).capacity_pages(1 << 30);
    Some(builder.discard_grace(Duration::from_millis(100)).build().unwrap())
}

/// Each of two requests registers the range for itself, and the explanation says why.
fn expect_uncached(cache: &Cache<NoopRegistrar>, what: &str, range: PageRange, why: Unwatched) {
    let (address, bytes) = ((range.start() * PAGE) as *const u8, (range.pages() * PAGE) as usize);
    let before = cache.counters();
    for _ in 0..2 {
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        drop(unsafe { cache.acquire(address, bytes, Access::LOCAL) }.unwrap());
    }
    let after = cache.counters();
    assert_eq!((after.attempts - before.attempts, after.unwatched - before.unwatched), (2, 2), "{what}");
    let explained = cache.explain(address, bytes, Access::LOCAL);
    let is_said = |finding: &Finding| matches!(finding, Finding::Unwatched { why: said, .. } if *said == why);
    assert!(explained.findings().iter().any(is_said), "{what}: {explained}");
}

#[test]
fn mappings_without_access_are_not_watched() {
    let Some((monitor, _told)) = monitor() else { return };
    let Some(cache) = cache() else { return };
    let refused = Watch::Unwatched(Unwatched::NoAccess);
    let mut rooms = Vec::new();
    for (flags, rights) in [
        (ANONYMOUS, libc::PROT_NONE),
        (libc::MAP_SHARED | libc::MAP_ANONYMOUS, libc::PROT_NONE),
        // No device may read what may only be executed.
        (ANONYMOUS, libc::PROT_EXEC),
    ] {
        let room = Room::new();
        room.map(0, 16, flags);
        room.protect(rights);
        assert_eq!(monitor.watch(room.range(3, 2)), refused);
        expect_uncached(&cache, "without access", room.range(3, 2), Unwatched::NoAccess);
        rooms.push(room);
    }
    assert_eq!(registered(&rooms), 0);
    // A part is enough.
    let room = Room::new();
    room.protect_part(5, 1, libc::PROT_NONE);
    assert_eq!(monitor.watch(room.range(4, 4)), refused);
    assert_eq!(monitor.watch(room.range(6, 4)), Watch::Watched);
    // Memory that may be written may be read by a device, and the rights may come later.
    room.protect_part(5, 1, libc::PROT_WRITE);
    assert_eq!(monitor.watch(room.range(4, 4)), Watch::Watched);
}

#[test]
fn reserved_address_space_makes_no_userfaultfd_call() {
    const GIB: usize = 1 << 30;
    let Some(cache) = cache() else { return };
    let Some(reserved) = Mapped::new(100 * GIB, libc::PROT_NONE, ANONYMOUS | libc::MAP_NORESERVE, -1) else {
        println!("skipped: no address space");
        return;
    };
    expect_uncached(&cache, "100 GiB", reserved.range(), Unwatched::NoAccess);
    let part = PageRange::new(reserved.range().start() + 7, 100).unwrap();
    expect_uncached(&cache, "a part of it", part, Unwatched::NoAccess);
    assert_eq!(registered_at(&[reserved.0 as usize]), 0);
}

#[test]
fn a_change_of_protection_is_no_change_of_pages() {
    let Some(cache) = cache() else { return };
    let room = Room::new();
    let ask = || {
        let address = room.at(2).cast::<u8>().cast_const();
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        drop(unsafe { cache.acquire(address, 2 * BYTES, Access::LOCAL) }.unwrap());
        cache.counters().attempts
    };
    assert_eq!(ask(), 1);
    // The registration means the same pages, whatever the program may do with them.
    room.protect(libc::PROT_NONE);
    assert_eq!(ask(), 1);
    room.protect(WRITABLE);
    assert_eq!(ask(), 1);
    room.map(0, 16, ANONYMOUS);
    assert_eq!(ask(), 2);
}

#[test]
fn unwatched_mappings_are_not_cached() {
    let Some(cache) = cache() else { return };
    let expect = |what, mapped: Option<Mapped>, why| match mapped {
        Some(mapped) => {
            expect_uncached(&cache, what, mapped.range(), why);
            assert_eq!(registered_at(&[mapped.0 as usize]), 0, "{what}");
        }
        None => println!("skipped: no mapping of {what} here"),
    };
    use std::os::fd::AsRawFd;
    let file = File::open("/proc/self/exe").unwrap();
    for sharing in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
        expect("a file", Mapped::new(BYTES, libc::PROT_READ, sharing, file.as_raw_fd()), Unwatched::File);
        let shared = memfd();
        let why = if sharing == libc::MAP_SHARED { Unwatched::Unsealed } else { Unwatched::SharedMemory };
        expect("a memfd", Mapped::new(BYTES, WRITABLE, sharing, shared.as_raw_fd()), why);
        let closed = Mapped::new(BYTES, WRITABLE, libc::MAP_SHARED, memfd().as_raw_fd());
        expect("a closed memfd", closed, Unwatched::NoDescriptor);
    }
    // SAFETY: a new descriptor, if it is one, that is owned by the file.
    let huge = unsafe { libc::memfd_create(c"huge".as_ptr(), libc::MFD_HUGETLB) };
    if huge >= 0 {
        // SAFETY: the descriptor was just made, and is owned by nothing else.
        let huge = unsafe { File::from_raw_fd(huge) };
        huge.set_len(2 << 20).unwrap();
        let mapped = Mapped::new(2 << 20, WRITABLE, libc::MAP_SHARED, huge.as_raw_fd());
        expect("a memfd of huge pages", mapped, Unwatched::Unsealed);
    }
    // SAFETY: a new descriptor, if it is one, that is owned by the file.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) } as libc::c_int;
    if secret >= 0 {
        // SAFETY: the descriptor was just made, and is owned by nothing else.
        let secret = unsafe { File::from_raw_fd(secret) };
        secret.set_len(PAGE).unwrap();
        expect("a memfd_secret", Mapped::new(BYTES, WRITABLE, libc::MAP_SHARED, secret.as_raw_fd()), Unwatched::File);
    }
    // A driver's memory: that of an io_uring.
    let mut parameters = [0_u8; 120];
    // SAFETY: the call reads and writes one `io_uring_params`, which has 120 bytes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) } as libc::c_int;
    if ring >= 0 {
        // SAFETY: a new descriptor that is owned by the file.
        let ring = unsafe { File::from_raw_fd(ring) };
        expect("a ring", Mapped::new(BYTES, WRITABLE, libc::MAP_SHARED, ring.as_raw_fd()), Unwatched::Special);
    }
    // SAFETY: a private segment, attached where the kernel likes and removed with its last detachment.
    unsafe {
        let segment = libc::shmget(libc::IPC_PRIVATE, BYTES, 0o600 | libc::IPC_CREAT);
        let at = libc::shmat(segment, ptr::null(), 0);
        libc::shmctl(segment, libc::IPC_RMID, ptr::null_mut());
        let range = PageRange::of_bytes(at as u64, PAGE).unwrap();
        expect_uncached(&cache, "a segment", range, Unwatched::SharedMemory);
        libc::shmdt(at);
    }
    let room = Room::new();
    room.unmap(7, 1);
    expect_uncached(&cache, "a hole", room.range(6, 3), Unwatched::Unmapped);
    let Some((other, _told)) = crate::told::monitor_here() else { return };
    let theirs = Room::new();
    assert_eq!(other.watch(theirs.range(0, 16)), Watch::Watched);
    expect_uncached(&cache, "another's", theirs.range(2, 2), Unwatched::Taken);
}
