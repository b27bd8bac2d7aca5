//! The same with real pins.

use super::*;
use ::io_uring::{IoUring, opcode, types};
use mrrc::registrar::io_uring::IoUringBuffers;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

type Pinned = Cache<IoUringBuffers>;

/// Or a line that says why there is none.
fn cache() -> Option<(IoUring, Pinned)> {
    let made = IoUring::new(8).map_err(|error| error.to_string()).and_then(|ring| {
        let table = IoUringBuffers::new(&ring, 64).map_err(|error| error.to_string())?;
        Ok((ring, table))
    });
    let (ring, table) = match made {
        Ok(made) => made,
        Err(error) => {
            println!("not run: no fixed buffers of an io_uring here: {error}");
            return None;
        }
    };
    let cache = Cache::builder(table).monitor(Explicit).ignore_environment().build().unwrap();
    if cache.usage().capacity_pages < 256 {
        println!("not run: the process may lock too little");
        return None;
    }
    Some((ring, cache))
}

/// Pages that the kernel counts as pinned by this process.
fn pins() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024 / PAGE
}

/// Older kernels unpin a little after a slot was cleared.
#[track_caller]
fn comes_to(pages: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while pins() != pages && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pins(), pages, "pages pinned");
}

/// Returns a mapping of small pages.
fn map(pages: usize) -> *mut u8 {
    // SAFETY: a new mapping, over none that exists.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(std::ptr::null_mut(), pages * PAGE_BYTES, protection, flags, -1, 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        libc::madvise(mapped, pages * PAGE_BYTES, libc::MADV_NOHUGEPAGE);
        mapped.cast()
    }
}

fn unmap(address: *mut u8, pages: usize) {
    // SAFETY: the test's own mapping, of which there are no references.
    assert_eq!(unsafe { libc::munmap(address.cast(), pages * PAGE_BYTES) }, 0);
}

#[test]
fn arena_drop_unpins_all_but_leased() {
    let _alone = alone();
    let Some((_ring, cache)) = cache() else { return };
    let before = pins();
    let arena = cache.arena(40 * PAGE_BYTES).unwrap();
    let lease = arena.acquire(..3 * PAGE_BYTES, Access::LOCAL).unwrap();
    drop(arena.acquire(10 * PAGE_BYTES..20 * PAGE_BYTES, Access::LOCAL).unwrap());
    comes_to(before + 13);
    drop(arena);
    comes_to(before + 3);
    drop(lease);
    cache.reap().unwrap();
    comes_to(before);
}

#[test]
fn device_write_reaches_current_arena() {
    let _alone = alone();
    let Some((mut ring, cache)) = cache() else { return };
    // SAFETY: `memfd_create` reads a name that ends with 0, and makes a descriptor.
    let file = unsafe { libc::memfd_create(c"mrrc".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(file >= 0);
    // SAFETY: the file was just opened, for this.
    let file: std::fs::File = unsafe { std::os::fd::FromRawFd::from_raw_fd(file) };
    // Again at the same address, most likely: the pins are those of the new memory.
    for round in 1..=3_u8 {
        let arena = cache.arena(4 * PAGE_BYTES).unwrap();
        file.write_all_at(&[round; 5000], 0).unwrap();
        let lease = arena.acquire(100..5100, Access::LOCAL).unwrap();
        let segment = lease.segments().next().unwrap();
        let (to, slot) = (segment.address().cast_mut(), segment.registration().index());
        let read = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), to, 5000, slot).build();
        // SAFETY: the lease keeps the memory until the completion is seen.
        unsafe { ring.submission().push(&read) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().map(|done| done.result()), Some(5000));
        let mut bytes = [9; 5002];
        arena.read_at(99, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[5001]), (0, 0));
        assert!(bytes[1..5001].iter().all(|&byte| byte == round));
    }
}

#[test]
fn a_slice_is_pinned_while_the_closure_runs() {
    let _alone = alone();
    let Some((_ring, cache)) = cache() else { return };
    let before = pins();
    let address = map(8);
    // SAFETY: the mapping is alone this test's, and this is the only reference to it.
    let slice = unsafe { std::slice::from_raw_parts_mut(address, 8 * PAGE_BYTES) };
    cache.with_slice_mut(slice, |_| comes_to(before + 8)).unwrap();
    comes_to(before);
    let panics = catch_unwind(AssertUnwindSafe(|| cache.with_slice(slice, |_| panic!("on purpose"))));
    assert!(panics.is_err());
    comes_to(before);
    unmap(address, 8);
    assert!(matches!(cache.with_slice(b"read-only memory", |_| ()), Ok(()) | Err(AcquireError::Register { .. })));
    comes_to(before);
}

#[test]
fn shrunk_memory_is_registered_anew() {
    let _alone = alone();
    let Some((_ring, cache)) = cache() else { return };
    let before = pins();
    let address = map(16);
    // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
    let acquire = |pages: usize| unsafe { cache.acquire(address, pages * PAGE_BYTES, Access::LOCAL) };
    drop(acquire(16).unwrap());
    comes_to(before + 16);
    let change = cache.begin_change(address.wrapping_add(10 * PAGE_BYTES), 6 * PAGE_BYTES).unwrap();
    unmap(address.wrapping_add(10 * PAGE_BYTES), 6);
    drop(change);
    let refused = acquire(16).unwrap_err();
    assert!(refused.to_string().contains("is not mapped"), "{refused}");
    drop(acquire(10).unwrap());
    assert_eq!(cache.counters().attempts, 3);
    comes_to(before + 10);
    unmap(address, 10);
    drop(cache);
    comes_to(before);
}

#[test]
fn list_with_hole_is_pinned_separately() {
    let _alone = alone();
    let Some((_ring, cache)) = cache() else { return };
    let before = pins();
    let address = map(18);
    let at = |page: usize| address.wrapping_add(page * PAGE_BYTES).cast_const();
    let list = [(at(9), 9 * PAGE_BYTES), (at(0), 8 * PAGE_BYTES)];
    // SAFETY: `acquire_list` restricts uses of the memory during transfers; this test makes none.
    let leases = unsafe { cache.acquire_list(&list, Access::LOCAL) }.unwrap();
    let slots: Vec<_> = leases.iter().map(|lease| lease.segments().next().unwrap().registration().index()).collect();
    assert_eq!(slots[0], slots[1]);
    comes_to(before + 18);
    drop(leases);
    let change = cache.begin_change(at(8), PAGE_BYTES).unwrap();
    unmap(at(8).cast_mut(), 1);
    drop(change);
    // SAFETY: `acquire_list` restricts uses of the memory during transfers; this test makes none.
    drop(unsafe { cache.acquire_list(&list, Access::LOCAL) }.unwrap());
    assert_eq!(cache.counters().attempts, 3);
    comes_to(before + 17);
    drop(cache);
    comes_to(before);
    unmap(address, 8);
    unmap(at(9).cast_mut(), 9);
}

#[test]
fn freed_slice_is_not_found_by_its_successor() {
    use mrrc::invalidation::Userfaultfd;
    let _alone = alone();
    let Some((ring, _)) = cache() else { return };
    let monitor = match Userfaultfd::new() {
        Ok(monitor) => monitor,
        Err(error) => {
            println!("not run: {error}");
            return;
        }
    };
    let table = IoUringBuffers::new(&IoUring::new(8).unwrap(), 64).unwrap();
    drop(ring);
    let cache = Cache::builder(table).monitor(monitor).ignore_environment().build().unwrap();
    let mut addresses = HashSet::new();
    for round in 1..=4 {
        let address = map(8);
        addresses.insert(address);
        // SAFETY: the mapping is alone this test's, and this is the only reference to it.
        let slice = unsafe { std::slice::from_raw_parts(address, 8 * PAGE_BYTES) };
        cache.with_slice(slice, |_| ()).unwrap();
        cache.with_slice(slice, |_| ()).unwrap();
        let counters = cache.counters();
        assert_eq!((counters.attempts, counters.decisions.hits(), counters.unwatched), (round, round, 0));
        unmap(address, 8);
    }
    println!("{} addresses in 4 rounds", addresses.len());
}
