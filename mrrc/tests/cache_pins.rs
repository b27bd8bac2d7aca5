//! The cache over real pins, through the fixed buffers of an io_uring: what the kernel counts as pinned (`VmPin`).
//!
//! `VmPin` is of the whole process, so one test runs at a time. A test that the system cannot run says so in a line
//! and passes.

#![cfg(all(feature = "io-uring", target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped by address, and acquired for no transfer")]

use ::io_uring::IoUring;
use mrrc::cache::Builder;
use mrrc::invalidation::{Explicit, Userfaultfd};
use mrrc::registrar::Registrar;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, AcquireError, Cache, Lease, PAGE};
use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[path = "common/pins.rs"]
mod pins;
#[path = "common/small_limit.rs"]
mod small_limit;

use pins::{comes_to, pinned};
use small_limit::becomes_who_may_lock;

const CHILD: &str = "MRRCTEST_UNPRIVILEGED";

/// The limits of children: small, medium, and the default of distributions.
const CHILD_LIMITS: [u64; 3] = [256 << 10, 1 << 20, 8 << 20];

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a ring and a cache over its table, or a line that says why not.
fn cache(slots: u32, pages: Option<u64>) -> Option<(IoUring, Cache<IoUringBuffers>)> {
    cache_over(8, slots, pages)
}

fn cache_over(entries: u32, slots: u32, pages: Option<u64>) -> Option<(IoUring, Cache<IoUringBuffers>)> {
    let (ring, builder) = builder_over(entries, slots, pages)?;
    Some((ring, builder.build().unwrap()))
}

fn builder_over(entries: u32, slots: u32, pages: Option<u64>) -> Option<(IoUring, Builder<IoUringBuffers>)> {
    let made = IoUring::new(entries).map_err(|error| error.to_string());
    let made = made.and_then(|ring| {
        let table = IoUringBuffers::new(&ring, slots).map_err(|error| error.to_string())?;
        Ok((ring, table))
    });
    let (ring, table) = match made {
        Ok(made) => made,
        Err(error) => {
            println!("not run: {error}");
            return None;
        }
    };
    if table.limits().pages.is_some_and(|limit| limit < pages.unwrap_or(1)) {
        println!("not run: the process may lock too little ({:?})", table.limits());
        return None;
    }
    let builder = Cache::builder(table).monitor(Explicit).ignore_environment();
    let builder = match pages {
        Some(pages) => builder.capacity_pages(pages),
        None => builder,
    };
    Some((ring, builder))
}

/// Pages of this process, small ones: a huge page would count as a whole.
struct Memory {
    address: *mut u8,
    pages: u64,
}

impl Memory {
    fn new(pages: u64) -> Self {
        let bytes = (pages * PAGE) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: `mmap` without a place makes a mapping that touches no other memory.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        // SAFETY: advice on the mapping just made; it may be unknown to the kernel.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
        Self { address: mapped.cast(), pages }
    }

    /// Maps new memory over it.
    fn renew(&self) {
        let bytes = (self.pages * PAGE) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the mapping is ours, and no reference leads to it.
        let mapped =
            unsafe { libc::mmap(self.address.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_eq!(mapped, self.address.cast(), "mmap: {}", io::Error::last_os_error());
        // SAFETY: as for a new mapping, which it is.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
    }

    fn acquire(
        &self,
        cache: &Cache<IoUringBuffers>,
        page: u64,
        pages: u64,
    ) -> Result<Lease<IoUringBuffers>, AcquireError> {
        assert!(page + pages <= self.pages);
        // SAFETY: within the mapping, and no transfer is made.
        unsafe { cache.acquire(self.address.add((page * PAGE) as usize), (pages * PAGE) as usize, Access::LOCAL) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its address is not used any longer.
        unsafe { libc::munmap(self.address.cast(), (self.pages * PAGE) as usize) };
    }
}

#[test]
fn kernel_pins_match_usage_and_capacity() {
    let _alone = alone();
    let before = pinned();
    let Some((_ring, cache)) = cache(64, Some(128)) else { return };
    let memory = Memory::new(512);
    for round in 0..3 {
        for region in 0..64 {
            let lease = memory.acquire(&cache, region * 8, 8).unwrap();
            let segment = lease.segments().next().unwrap();
            assert!(segment.registration().holds(segment.address() as u64, segment.len() as u64), "round {round}");
            assert!(cache.usage().pages <= 128);
        }
    }
    let held = memory.acquire(&cache, 0, 128).unwrap();
    let error = memory.acquire(&cache, 200, 1).unwrap_err();
    assert!(matches!(error, AcquireError::AllInUse { .. }), "{error}");
    comes_to(before + 128);
    drop(held);
    cache.flush().unwrap();
    comes_to(before);
    drop(memory.acquire(&cache, 0, 8).unwrap());
    drop(cache);
    comes_to(before);
}

#[test]
fn pins_end_when_no_lease_has_them_for_long() {
    let _alone = alone();
    let Some((_ring, builder)) = builder_over(8, 16, Some(64)) else { return };
    let cache = builder.max_unheld(u64::MAX, Duration::from_millis(200)).build().unwrap();
    let before = pinned();
    let memory = Memory::new(32);
    let held = memory.acquire(&cache, 0, 8).unwrap();
    drop(memory.acquire(&cache, 16, 8).unwrap());
    comes_to(before + 8);
    drop(held);
    comes_to(before);
    assert_eq!((cache.counters().expired, cache.usage().pages), (2, 0));
}

#[test]
fn storm_of_unmappings_leaves_few_dead_pins() {
    const PIECE: u64 = 512;
    const THREADS: u64 = 3;
    let _alone = alone();
    let before = pinned();
    let Some((_ring, builder)) = builder_over(8, 1024, Some(1 << 18)) else { return };
    let Ok(monitor) = Userfaultfd::new() else {
        println!("not run: no userfaultfd here");
        return;
    };
    let cache = builder.monitor(monitor).build().unwrap();
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                // Each at its own address: another thread's unmapping is heard of only when it has returned.
                let memory = Memory::new(PIECE);
                for _ in 0..100 {
                    drop(memory.acquire(&cache, 0, PIECE).unwrap());
                    memory.renew();
                }
            });
        }
    });
    comes_to(before);
    // The thread that unpinned them may not have counted them yet.
    cache.reap().unwrap();
    let (storm, all) = (cache.counters(), 100 * THREADS * PIECE);
    assert_eq!((storm.attempts, storm.deregistered, cache.usage().dead_pages), (100 * THREADS, 100 * THREADS, 0));
    // 64 MiB, and what each thread unmaps between a miss and the next.
    assert!(storm.peak_dead_pages <= (64 << 20) / PAGE + 2 * THREADS * PIECE, "{storm:?}");
    // One unmapping leaves more than that, and not for long.
    let memory = Memory::new(64 * PIECE);
    let held: Vec<_> = (0..64).map(|nth| memory.acquire(&cache, nth * PIECE, PIECE).unwrap()).collect();
    drop(held);
    drop(memory);
    comes_to(before);
    let counters = cache.counters();
    println!(
        "{} pages unmapped in a storm: {} dead at once, {:?}; then {} in one call: {:?}",
        all,
        storm.peak_dead_pages,
        storm.longest_dead,
        64 * PIECE,
        counters.longest_dead
    );
    // Minutes for a thread that does not run.
    assert!(counters.longest_dead < Duration::from_secs(30), "{counters:?}");
}

#[test]
fn unmapped_memory_costs_one_attempt() {
    let _alone = alone();
    let before = pinned();
    let Some((_ring, cache)) = cache(64, Some(256)) else { return };
    let memory = Memory::new(256);
    // SAFETY: the last 16 pages of this test's mapping.
    unsafe { libc::munmap(memory.address.add(240 * PAGE as usize).cast(), 16 * PAGE as usize) };
    (0..20).for_each(|region| drop(memory.acquire(&cache, region * 8, 8).unwrap()));
    let counted = cache.counters();
    let error = memory.acquire(&cache, 238, 4).unwrap_err();
    let AcquireError::Register { attempts: 1, source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.raw_os_error(), Some(libc::EFAULT));
    (0..20).for_each(|region| drop(memory.acquire(&cache, region * 8, 8).unwrap()));
    let after = cache.counters();
    assert_eq!((after.attempts - counted.attempts, after.decisions.deregs), (1, 0));
    assert_eq!(pinned() - before, 160);
    drop(cache);
    comes_to(before);
}

#[test]
fn read_only_memory_is_refused_with_reason() {
    let _alone = alone();
    let Some((_ring, cache)) = cache(64, Some(256)) else { return };
    let memory = Memory::new(8);
    // SAFETY: a page of this test's mapping, which is not written.
    assert_eq!(unsafe { libc::mprotect(memory.address.add(PAGE as usize).cast(), PAGE as usize, libc::PROT_READ) }, 0);
    let said = |page, pages| memory.acquire(&cache, page, pages).unwrap_err().to_string();
    let read_only = format!("{:#x} is mapped read-only, and io_uring pins for writing", memory.address as u64 + PAGE);
    assert!(said(0, 4).contains(&read_only), "{}", said(0, 4));
    // SAFETY: the page is in this test's mapping, and is not used any more.
    unsafe { libc::munmap(memory.address.add(2 * PAGE as usize).cast(), PAGE as usize) };
    let hole = format!("{:#x} is not mapped", memory.address as u64 + 2 * PAGE);
    assert!(said(0, 4).contains(&hole) && said(2, 1).contains(&hole), "{}", said(0, 4));
}

/// Run by the next test in processes of their own, which may lock little and have no privileges.
#[test]
#[ignore = "for the test `user_limit_below_working_set_still_works`"]
fn child_with_a_small_limit() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let limit = std::env::var(CHILD).unwrap().parse().unwrap();
    if !becomes_who_may_lock(limit, 1_600_000_000) {
        return;
    }
    let before = pinned();
    for entries in [8, 256] {
        let Some((_ring, cache)) = cache_over(entries, 1024, None) else { return };
        let capacity = cache.usage().capacity_pages;
        let rings = limit / PAGE - capacity;
        assert!((2..=16).contains(&rings), "the default leaves room for the ring: {rings} pages for {entries} entries");
        let memory = Memory::new(4 * capacity);
        // All of it at once, and one page more would be too much: nothing was promised that the kernel refuses.
        let end = Instant::now() + Duration::from_secs(60);
        let whole = loop {
            match memory.acquire(&cache, 0, capacity) {
                Ok(whole) => break whole,
                // The kernel takes down rings of before, which count for the user, when it finds the time.
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((pinned() - before, cache.counters().retries), (capacity, 0));
        drop(whole);
        let step = capacity / 8;
        for round in 0..3 {
            for region in 0..32 {
                if let Err(error) = memory.acquire(&cache, region * step, step) {
                    panic!("round {round}, region {region}: {error}");
                }
                assert!(pinned() - before <= capacity);
            }
        }
        let hits = cache.counters().decisions.hits();
        drop((memory.acquire(&cache, 31 * step, step).unwrap(), memory.acquire(&cache, 31 * step + 1, 1).unwrap()));
        let counted = cache.counters();
        assert_eq!(counted.decisions.hits(), hits + 2);
        assert!(counted.deregistered > 60, "{counted:?}");
        assert_eq!(counted.retries, 0, "the kernel never refused");
        println!("evicted: {} of {}, {rings} pages for the ring", counted.deregistered, counted.attempts);
        drop(cache);
        comes_to(before);
    }
    // Another process of this user has locked a part of it, of which the cache knows nothing.
    let Some((_ring, cache)) = cache(1024, None) else { return };
    let half = cache.usage().capacity_pages / 2;
    let Some((_second, others)) = self::cache(64, Some(half)) else { return };
    let theirs = Memory::new(half);
    let lock = theirs.acquire(&others, 0, half).unwrap();
    let memory = Memory::new(8 * half);
    for region in 0..64 {
        drop(memory.acquire(&cache, region * (half / 8), half / 8).unwrap());
    }
    assert!(cache.counters().retries > 0, "the kernel refused, and room was made");
    drop((lock, others, cache));
    comes_to(before);
    println!("went on");
}

#[test]
fn user_limit_below_working_set_still_works() {
    let _alone = alone();
    for limit in CHILD_LIMITS {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_with_a_small_limit", "--ignored", "--nocapture", "--test-threads=1"]);
        let output = command.env(CHILD, limit.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{limit}: {said}{}", String::from_utf8_lossy(&output.stderr));
        match said.lines().find(|line| line.contains("not run: ")) {
            Some(line) => println!("{line}"),
            None => assert!(said.contains("went on"), "{said}"),
        }
    }
}
