//! The registrar over io_uring, with real pins: what the kernel counts (`VmPin`) and where bytes go.
//!
//! `VmPin` is of the whole process, so one test runs at a time. A test that the system cannot run (no io_uring,
//! too small a limit) says so in a line and passes.

#![cfg(all(feature = "io-uring", target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped, unmapped and submitted to the kernel by address")]

use ::io_uring::{IoUring, cqueue, opcode, squeue, types};
use mrrc::registrar::io_uring::{FixedBuffer, IoUringBuffers, IoUringError};
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "common/pins.rs"]
mod pins;
#[path = "common/small_limit.rs"]
mod small_limit;

use pins::{comes_to, pinned};
use small_limit::becomes_who_may_lock;

/// Set for the copy of this program that gives up its privileges.
const CHILD: &str = "MRRC_TEST_UNPRIVILEGED";

/// The child's limit on locked memory.
const CHILD_LIMIT: u64 = 1 << 20;

/// More than any test here pins.
const NEEDED_PAGES: u64 = 1024;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a ring, or a line that says why there is none.
fn ring() -> Option<IoUring> {
    match IoUring::new(8) {
        Ok(ring) => Some(ring),
        Err(error) => {
            let refused = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::ENOMEM];
            assert!(error.raw_os_error().is_some_and(|code| refused.contains(&code)), "io_uring_setup: {error}");
            println!("not run: the system has no io_uring for this process ({error})");
            None
        }
    }
}

/// Returns a ring and its table, or a line that says why not.
fn table(slots: u32) -> Option<(IoUring, IoUringBuffers)> {
    let ring = ring()?;
    let table = match IoUringBuffers::new(&ring, slots) {
        Ok(table) => table,
        Err(IoUringError::Refused { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
            println!("not run: this kernel has no sparse tables of buffers (Linux 5.19)");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    if table.limits().pages.is_some_and(|pages| pages < NEEDED_PAGES) {
        println!("not run: the process may lock too little ({:?})", table.limits());
        return None;
    }
    Some((ring, table))
}

/// A line of `/proc/self/status`.
/// Pages of this process, small ones: a huge page would count as a whole.
struct Memory {
    address: *mut u8,
    pages: u64,
}

impl Memory {
    fn new(pages: u64) -> Self {
        Self::mapped(std::ptr::null_mut(), pages, libc::PROT_READ | libc::PROT_WRITE, 0)
    }

    fn read_only(pages: u64) -> Self {
        Self::mapped(std::ptr::null_mut(), pages, libc::PROT_READ, 0)
    }

    /// Other pages at the same address, in one step: between two, another thread's memory might come there.
    fn renew(self) -> Self {
        let old = std::mem::ManuallyDrop::new(self);
        Self::mapped(old.address, old.pages, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED)
    }

    fn mapped(address: *mut u8, pages: u64, protection: i32, fixed: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        let bytes = (pages * PAGE) as usize;
        // SAFETY: a new mapping, where none is or over one that the caller gives up.
        let mapped = unsafe { libc::mmap(address.cast(), bytes, protection, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        // SAFETY: advice on the mapping just made; it may be unknown to the kernel.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
        Self { address: mapped.cast(), pages }
    }

    fn range(&self) -> PageRange {
        PageRange::of_bytes(self.address as u64, self.pages * PAGE).unwrap()
    }

    /// Page `page` alone.
    fn page(&self, page: u64) -> PageRange {
        PageRange::new(self.range().start() + page, 1).unwrap()
    }

    fn fill(&mut self, byte: u8) {
        // SAFETY: the mapping is ours alone and writable; no request is under way in any caller.
        unsafe { self.address.write_bytes(byte, (self.pages * PAGE) as usize) };
    }

    fn bytes(&self) -> Vec<u8> {
        let mut copy = vec![0; (self.pages * PAGE) as usize];
        // SAFETY: the mapping is readable, and no request is under way in any caller.
        unsafe { self.address.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len()) };
        copy
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its address is not used any longer.
        unsafe { libc::munmap(self.address.cast(), (self.pages * PAGE) as usize) };
    }
}

fn memfd() -> File {
    // SAFETY: the name is a C string; the descriptor is new, and ours.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"mrrc".as_ptr(), libc::MFD_CLOEXEC)) };
    assert!(file.as_raw_fd() >= 0);
    file
}

fn submit(ring: &mut IoUring, request: &squeue::Entry) {
    // SAFETY: fixed buffers are pinned by the kernel, and the files outlive the requests: every caller waits.
    unsafe { ring.submission().push(request) }.unwrap();
    ring.submit().unwrap();
}

fn wait(ring: &mut IoUring) -> i32 {
    ring.submit_and_wait(1).unwrap();
    ring.completion().next().unwrap().result()
}

fn read_fixed(ring: &mut IoUring, file: &File, address: *mut u8, length: u32, index: u16) -> i32 {
    submit(ring, &opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), address, length, index).build());
    wait(ring)
}

fn write_fixed(ring: &mut IoUring, file: &File, address: *mut u8, length: u32, index: u16) -> i32 {
    submit(ring, &opcode::WriteFixed::new(types::Fd(file.as_raw_fd()), address, length, index).build());
    wait(ring)
}

fn register(table: &IoUringBuffers, range: PageRange) -> FixedBuffer {
    table.register(range, Access::LOCAL).unwrap()
}

/// Returns a registration as the cache would hand it back.
fn registered(registration: FixedBuffer) -> Registered<FixedBuffer> {
    Registered { range: registration.range(), access: Access::LOCAL, registration }
}

fn deregister(table: &IoUringBuffers, batch: Vec<FixedBuffer>) {
    let mut batch = batch.into_iter().map(registered).collect();
    table.deregister(&mut batch).unwrap();
    assert!(batch.is_empty());
}

#[test]
fn exactly_registered_pages_are_pinned() {
    let _alone = alone();
    let Some((_ring, table)) = table(16) else { return };
    let before = pinned();
    let memory = Memory::new(64);
    let whole = register(&table, memory.range());
    assert_eq!(pinned() - before, 64);
    let page = register(&table, memory.page(63));
    assert_eq!(pinned() - before, 65, "what is registered twice is pinned twice");
    deregister(&table, vec![whole]);
    comes_to(before + 1);
    deregister(&table, vec![page]);
    comes_to(before);
    assert_eq!(table.free_slots(), 16);
}

#[test]
fn an_unmapping_leaves_the_pages_pinned() {
    let _alone = alone();
    let Some((_ring, table)) = table(16) else { return };
    let before = pinned();
    let memory = Memory::new(32);
    let buffer = register(&table, memory.range());
    drop(memory);
    assert_eq!(pinned() - before, 32, "what a cache must end");
    deregister(&table, vec![buffer]);
    comes_to(before);
}

#[test]
fn registration_keeps_its_old_pages() {
    let _alone = alone();
    let Some((mut ring, table)) = table(16) else { return };
    let (before, file) = (pinned(), memfd());
    let mut memory = Memory::new(1);
    memory.fill(b'o');
    let (address, stale) = (memory.address, register(&table, memory.range()));
    let mut memory = memory.renew();
    memory.fill(b'n');
    assert_eq!(write_fixed(&mut ring, &file, address, 4096, stale.index()), 4096);
    let mut written = vec![0; 4096];
    file.read_exact_at(&mut written, 0).unwrap();
    assert_eq!(written, [b'o'; 4096], "the old page, and no error: the stale hit that a cache exists to prevent");
    let fresh = register(&table, memory.range());
    assert_eq!(write_fixed(&mut ring, &file, address, 4096, fresh.index()), 4096);
    file.read_exact_at(&mut written, 0).unwrap();
    assert_eq!(written, [b'n'; 4096]);
    deregister(&table, vec![stale, fresh]);
    comes_to(before);
}

#[test]
fn bytes_go_where_the_index_says() {
    let _alone = alone();
    let Some((mut ring, table)) = table(16) else { return };
    let (before, file, mut memory) = (pinned(), memfd(), Memory::new(4));
    let (front, back) = (PageRange::new(memory.range().start(), 2).unwrap(), memory.page(3));
    let (front, back) = (register(&table, front), register(&table, back));
    assert_ne!(front.index(), back.index());

    let sample: Vec<u8> = (0..8192_u32).map(|i| (i * 7 % 251) as u8).collect();
    file.write_all_at(&sample, 0).unwrap();
    assert_eq!(read_fixed(&mut ring, &file, memory.address, 8192, front.index()), 8192);
    assert_eq!(memory.bytes()[..8192], sample);

    memory.fill(b'x');
    let inside = memory.address.wrapping_add(3 * 4096 + 100);
    assert!(back.holds(inside as u64, 50));
    assert_eq!(write_fixed(&mut ring, &file, inside, 50, back.index()), 50);
    let mut written = vec![0; 51];
    file.read_exact_at(&mut written, 0).unwrap();
    assert_eq!(written[..50], [b'x'; 50]);
    assert_eq!(written[50], sample[50]);

    // The kernel refuses an access outside of a buffer, by the test that it has for it.
    for (address, length, buffer) in [(inside, 50, &front), (memory.address, 8193, &front), (inside, 4096, &back)] {
        assert!(!buffer.holds(address as u64, length.into()));
        assert_eq!(read_fixed(&mut ring, &file, address, length, buffer.index()), -libc::EFAULT);
    }
    let (address, index) = (memory.address, front.index());
    deregister(&table, vec![front, back]);
    assert_eq!(read_fixed(&mut ring, &file, address, 1, index), -libc::EFAULT, "an empty slot");
    comes_to(before);
}

#[test]
fn deregistration_spares_a_started_request() {
    let _alone = alone();
    let Some((mut ring, table)) = table(16) else { return };
    let (before, memory, other) = (pinned(), Memory::new(1), Memory::new(1));
    let (reader, mut writer) = io::pipe().unwrap();
    let buffer = register(&table, memory.range());
    let read = opcode::ReadFixed::new(types::Fd(reader.as_raw_fd()), memory.address, 4, buffer.index()).build();
    submit(&mut ring, &read);
    deregister(&table, vec![buffer]);
    assert_eq!(pinned() - before, 1, "held by the request");
    let others: Vec<_> = (0..16).map(|_| register(&table, other.range())).collect();
    writer.write_all(b"late").unwrap();
    assert_eq!(wait(&mut ring), 4);
    assert_eq!(memory.bytes()[..4], *b"late");
    assert_eq!(other.bytes()[..4], [0; 4], "the slot's next buffer is not touched");
    deregister(&table, others);
    comes_to(before);
}

#[test]
fn a_batch_of_neighbours_is_deregistered_in_one_call() {
    let _alone = alone();
    let Some((_ring, table)) = table(1024) else { return };
    let (before, memory) = (pinned(), Memory::new(8));
    let mut batch: Vec<_> = (0..8).map(|page| register(&table, memory.page(page))).collect();
    batch.swap(0, 5);
    batch.swap(3, 7);
    deregister(&table, batch);
    assert_eq!(table.clearing_calls(), 1);

    let mut batch: Vec<_> = (0..8).map(|page| register(&table, memory.page(page))).collect();
    deregister(&table, vec![batch.swap_remove(3)]);
    assert_eq!(table.clearing_calls(), 2);
    deregister(&table, batch);
    assert_eq!(table.clearing_calls(), 4, "two runs, with the hole between them");

    let batch = (0..600).map(|page| register(&table, memory.page(page % 8))).collect();
    comes_to(before + 600);
    deregister(&table, batch);
    assert_eq!(table.clearing_calls(), 7, "no more than 256 slots a call");
    comes_to(before);

    deregister(&table, Vec::new());
    assert_eq!(table.clearing_calls(), 7, "nothing to do");
}

#[test]
fn full_table_is_enospc_until_a_slot_frees() {
    let _alone = alone();
    let Some((_ring, table)) = table(4) else { return };
    let (before, memory) = (pinned(), Memory::new(5));
    assert_eq!(table.limits().regions, Some(4));
    let mut batch: Vec<_> = (0..4).map(|page| register(&table, memory.page(page))).collect();
    let full = table.register(memory.page(4), Access::LOCAL).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!((pinned() - before, table.free_slots()), (4, 0));
    deregister(&table, vec![batch.pop().unwrap()]);
    batch.push(register(&table, memory.page(4)));
    deregister(&table, batch);
    comes_to(before);
}

#[test]
fn unpinnable_is_refused_without_residue() {
    let _alone = alone();
    let Some((_ring, table)) = table(2) else { return };
    let (before, memory) = (pinned(), Memory::new(4));
    let hole = Memory::new(3);
    // SAFETY: the middle page of a mapping of this test.
    unsafe { libc::munmap(hole.address.add(4096).cast(), 4096) };
    let read_only = Memory::read_only(1);
    let last = PageRange::of_bytes(u64::MAX, 1).unwrap();
    let null = PageRange::new(0, 1).unwrap();
    // More often than there are slots: none is lost.
    for _ in 0..3 {
        for range in [hole.range(), read_only.range(), null] {
            let error = table.register(range, Access::LOCAL_READ).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{range}");
        }
        assert!(table.register(last, Access::LOCAL).is_err());
        assert!(table.register(PageRange::EVERYTHING, Access::LOCAL).unwrap_err().to_string().contains("262144 pages"));
        let remote = table.register(memory.range(), Access::LOCAL | Access::REMOTE_READ).unwrap_err();
        assert!(remote.to_string().contains("remote-read"), "{remote}");
    }
    assert_eq!((pinned(), table.free_slots()), (before, 2));
}

#[test]
fn limits_are_those_of_the_kernel() {
    let _alone = alone();
    let Some((_ring, table)) = table(8) else { return };
    let limits = table.limits();
    assert_eq!((limits.regions, limits.region_pages), (Some(8), Some(262_144)));
    assert!(limits.page_size.is_power_of_two() && limits.page_size >= PAGE);
    assert!(limits.pages.is_some(), "the default is finite");
    assert_eq!(table.rights(), Access::LOCAL);
    // One page more than a region may have, without touching that much memory: the kernel looks at the length
    // first.
    let memory = Memory::new(1);
    let long = PageRange::new(memory.range().start(), 262_145).unwrap();
    assert!(table.register(long, Access::LOCAL).is_err());
}

#[test]
fn foreign_ring_is_used_by_its_descriptor() {
    let _alone = alone();
    let Some((ring, table)) = table(8) else { return };
    let limits = table.limits();
    drop(table);
    // SAFETY: the ring is open for longer than this.
    let file = |ring: &IoUring| unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    let table = IoUringBuffers::from_fd(file(&ring), 8).unwrap();
    assert!(matches!(IoUringBuffers::from_fd(file(&ring), 8), Err(IoUringError::Taken)));
    let told = table.limits();
    assert_eq!(
        (told.regions, told.region_pages, told.page_size),
        (limits.regions, limits.region_pages, limits.page_size)
    );
    // It does not know how large the ring's entries are, and is told no smaller ring than it has.
    let (of_ring, of_file) = (limits.pages.unwrap(), told.pages.unwrap());
    assert!(of_file <= of_ring && of_ring - of_file <= 4, "{of_file} and {of_ring} pages");
    let (before, memory) = (pinned(), Memory::new(16));
    let buffer = table.register(memory.range(), Access::LOCAL).unwrap();
    assert_eq!(pinned() - before, 16);
    table
        .deregister(&mut vec![Registered { range: memory.range(), access: Access::LOCAL, registration: buffer }])
        .unwrap();
    comes_to(before);
    for slots in [0, 16_385] {
        assert!(matches!(IoUringBuffers::from_fd(file(&ring), slots), Err(IoUringError::Slots { .. })), "{slots}");
    }
    let no_ring = File::open("/dev/null").unwrap();
    let error = IoUringBuffers::from_fd(no_ring.as_fd(), 8).unwrap_err();
    assert!(matches!(error, IoUringError::NoRing(_)) && error.to_string().contains("pass the file"), "{error}");
    match IoUring::<squeue::Entry, cqueue::Entry>::builder().setup_single_issuer().build(8) {
        Ok(ring) => assert!(matches!(IoUringBuffers::from_fd(file(&ring), 8), Err(IoUringError::SingleIssuer))),
        Err(error) => println!("not run in part: no IORING_SETUP_SINGLE_ISSUER here ({error})"),
    }
}

#[test]
fn a_ring_that_cannot_have_a_table_says_why() {
    let _alone = alone();
    let Some((ring, table)) = table(8) else { return };
    assert!(matches!(IoUringBuffers::new(&ring, 8), Err(IoUringError::Taken)));
    drop(table);
    for slots in [0, 16_385, u32::MAX] {
        assert!(matches!(IoUringBuffers::new(&ring, slots), Err(IoUringError::Slots { .. })), "{slots}");
    }
    drop(IoUringBuffers::new(&ring, 16_384).unwrap());
    drop(IoUringBuffers::new(&ring, 1).expect("dropping a table leaves the ring without one"));
    match IoUring::<squeue::Entry, cqueue::Entry>::builder().setup_single_issuer().build(8) {
        Ok(ring) => {
            let error = IoUringBuffers::new(&ring, 8).unwrap_err();
            assert!(error.to_string().contains("SINGLE_ISSUER"), "{error}");
        }
        Err(error) => println!("not run in part: no IORING_SETUP_SINGLE_ISSUER here ({error})"),
    }
}

#[test]
fn a_buffer_of_another_ring_is_not_cleared() {
    let _alone = alone();
    let (Some((_ring, ours)), Some((_other, theirs))) = (table(4), table(4)) else { return };
    let (before, memory) = (pinned(), Memory::new(1));
    let mine = register(&ours, memory.range());
    let mut batch = vec![registered(register(&theirs, memory.range()))];
    assert!(ours.deregister(&mut batch).is_err());
    assert_eq!((batch.len(), pinned() - before), (1, 2));
    theirs.deregister(&mut batch).unwrap();
    deregister(&ours, vec![mine]);
    comes_to(before);
}

#[test]
fn dropped_table_unpins_after_ring_closed() {
    let _alone = alone();
    let (before, memory) = (pinned(), Memory::new(8));
    let Some((ring, first)) = table(8) else { return };
    let lost = register(&first, memory.range());
    drop(first);
    comes_to(before);
    drop(lost);

    let table = IoUringBuffers::new(&ring, 8).unwrap();
    let buffer = register(&table, memory.range());
    drop(ring);
    assert_eq!(pinned() - before, 8, "the table keeps the ring's file");
    deregister(&table, vec![buffer]);
    comes_to(before);
}

/// Returns the number of the file that a table has of its ring, if this process has no other rings.
fn duplicate_of(ring: &IoUring) -> i32 {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let is_ring = std::fs::read_link(entry.path()).ok()?.to_str()? == "anon_inode:[io_uring]";
        entry.file_name().to_str()?.parse().ok().filter(|_| is_ring)
    });
    let others: Vec<i32> = numbers.filter(|&number| number != ring.as_raw_fd()).collect();
    assert_eq!(others.len(), 1, "{others:?}");
    others[0]
}

/// The program closed all its files, and has another ring by the number of the table's.
#[test]
fn another_ring_of_the_same_number_is_left_alone() {
    let _alone = alone();
    let Some((ring, first)) = table(8) else { return };
    let number = duplicate_of(&ring);
    let Some((other, second)) = table(8) else { return };
    let (before, memory) = (pinned(), Memory::new(2));
    let (here, there) = (register(&first, memory.page(0)), register(&second, memory.page(1)));
    // SAFETY: both numbers are open, and nothing but the table uses the one that is replaced.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    let closed = |error: io::Error| assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    closed(first.register(memory.page(0), Access::LOCAL).unwrap_err());
    let mut batch = vec![registered(here)];
    closed(first.deregister(&mut batch).unwrap_err());
    assert_eq!(batch.len(), 1);
    drop(first);
    // SAFETY: the number is this test's: it leads to the other ring, unless that was closed.
    assert_eq!(unsafe { libc::close(number) }, 0);
    // The other ring has its table, and the buffer in it.
    assert!(matches!(IoUringBuffers::new(&other, 8), Err(IoUringError::Taken)));
    deregister(&second, vec![there]);
    // Its buffer is unpinned with the ring, a little later.
    drop(ring);
    comes_to(before);
}

#[test]
fn child_drop_leaves_parent_table() {
    let _alone = alone();
    let Some((mut ring, table)) = table(8) else { return };
    let (before, mut memory, file) = (pinned(), Memory::new(2), memfd());
    memory.fill(b'p');
    let buffer = register(&table, memory.range());
    // SAFETY: the child runs nothing but the drop, which takes no lock but the allocator's (fit for forks), and
    // exits.
    match unsafe { libc::fork() } {
        0 => {
            drop(table);
            // SAFETY: no handler of this process runs.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut code = -1;
            // SAFETY: our child, and an integer to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut code, 0) }, child);
            assert_eq!(code, 0);
        }
    }
    assert_eq!(pinned() - before, 2);
    assert_eq!(write_fixed(&mut ring, &file, memory.address, 4096, buffer.index()), 4096);
    deregister(&table, vec![buffer]);
    comes_to(before);
}

#[test]
fn threads_lose_no_slot_and_no_pin() {
    let _alone = alone();
    let Some((_ring, table)) = table(32) else { return };
    let before = pinned();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let memory = Memory::new(16);
                for round in 0..200 {
                    let batch: Vec<_> = (0..8).map(|page| register(&table, memory.page((round + page) % 16))).collect();
                    let mut indices: Vec<_> = batch.iter().map(FixedBuffer::index).collect();
                    indices.sort_unstable();
                    indices.dedup();
                    assert_eq!(indices.len(), 8);
                    deregister(&table, batch);
                }
            });
        }
    });
    assert_eq!(table.free_slots(), 32);
    comes_to(before);
}

/// Run by the next test in a process of its own, which may lock 1 MiB and has no privileges.
#[test]
#[ignore = "for the test `small_limit_gives_enomem_and_recovers`"]
fn child_with_a_small_limit() {
    if std::env::var_os(CHILD).is_none() {
        println!("not run: only as a child of another test");
        return;
    }
    if !becomes_who_may_lock(CHILD_LIMIT, 1_500_000_000) {
        return;
    }
    let Some(ring) = ring() else { return };
    let table = IoUringBuffers::new(&ring, 1024).unwrap();
    let rings = CHILD_LIMIT / PAGE - table.limits().pages.unwrap();
    assert!((2..=8).contains(&rings), "the limit less the ring's own pages: {rings}");
    let (before, memory) = (pinned(), Memory::new(16));

    let mut batch = Vec::new();
    let error = loop {
        match table.register(memory.range(), Access::LOCAL) {
            Ok(buffer) => batch.push(buffer),
            Err(error) => break error,
        }
        assert!(batch.len() < 17, "17 times 16 pages are more than the limit");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(pinned() - before, 16 * batch.len() as u64, "the refused one left no pin");
    if batch.is_empty() {
        println!("not run: other processes of this user have locked all that it may");
        return;
    }
    deregister(&table, vec![batch.pop().unwrap()]);
    comes_to(before + 16 * batch.len() as u64);
    batch.push(table.register(memory.range(), Access::LOCAL).expect("room was made"));
    deregister(&table, batch);
    comes_to(before);
    println!("enforced");
}

#[test]
fn small_limit_gives_enomem_and_recovers() {
    let _alone = alone();
    if ring().is_none() {
        return;
    }
    let arguments = ["--exact", "child_with_a_small_limit", "--ignored", "--nocapture", "--test-threads=1"];
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).env(CHILD, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    match said.lines().find(|line| line.contains("not run: ")) {
        Some(line) => println!("{line}"),
        None => assert!(said.contains("enforced"), "{said}"),
    }
}
