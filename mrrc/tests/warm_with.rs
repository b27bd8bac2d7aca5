//! Large ranges registered ahead of their use by several threads, over real pins of an io_uring.
//!
//! `VmPin` is of the whole process, so one test runs at a time. A test that the system cannot run says so in a line and passes.

#![cfg(all(feature = "io-uring", target_os = "linux"))]
#![allow(unsafe_code, reason = "memory is mapped by address, and acquired for no transfer")]

use ::io_uring::IoUring;
use mrrc::cache::{Warm, WarmError};
use mrrc::invalidation::Explicit;
use mrrc::registrar::Registrar;
use mrrc::registrar::io_uring::IoUringBuffers;
use mrrc::{Access, Cache, PAGE};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[path = "common/pins.rs"]
mod pins;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cache(pages: u64, segments: Option<usize>) -> Option<(IoUring, Cache<IoUringBuffers>)> {
    let made = IoUring::new(8).map_err(|error| error.to_string());
    let made = made.and_then(|ring| {
        let table = IoUringBuffers::new(&ring, 1024).map_err(|error| error.to_string())?;
        Ok((ring, table))
    });
    let (ring, table) = match made {
        Ok(made) => made,
        Err(error) => {
            println!("not run: {error}");
            return None;
        }
    };
    if table.limits().pages.is_some_and(|limit| limit < pages) {
        println!("not run: the process may lock too little ({:?})", table.limits());
        return None;
    }
    let builder = Cache::builder(table).monitor(Explicit).ignore_environment().capacity_pages(pages);
    let builder = match segments {
        Some(most) => builder.max_segments(most),
        None => builder,
    };
    Some((ring, builder.build().unwrap()))
}

/// Fresh memory, unmapped in the end.
struct Memory {
    address: *mut u8,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: `mmap` without a place makes a mapping that touches no other memory.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self { address: mapped.cast(), bytes }
    }

    fn without_huge_pages(self) -> Self {
        // SAFETY: advice on a mapping of this test's own.
        unsafe { libc::madvise(self.address.cast(), self.bytes, libc::MADV_NOHUGEPAGE) };
        self
    }

    fn warm(&self, cache: &Cache<IoUringBuffers>, how: &Warm) -> Result<u64, WarmError> {
        // SAFETY: the memory outlives the cache's use of it, and no transfer is made.
        unsafe { cache.warm_with(self.address, self.bytes, Access::LOCAL, how, |_, _| ControlFlow::Continue(())) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its address is not used any longer.
        unsafe { libc::munmap(self.address.cast(), self.bytes) };
    }
}

const BYTES: usize = 40 << 20;
const PAGES: u64 = BYTES as u64 / PAGE;

#[test]
fn chunks_are_pinned_by_several_threads() {
    let _alone = alone();
    let Some((_ring, cache)) = cache(2 * PAGES, None) else { return };
    let memory = Memory::new(BYTES).without_huge_pages();
    let (mut last, mut calls, caller) = (0, 0, std::thread::current().id());
    let progress = |done, total| {
        assert!(last < done && done <= total && total == 2 * BYTES as u64, "{last} {done} {total}");
        assert_eq!(std::thread::current().id(), caller);
        (last, calls) = (done, calls + 1);
        ControlFlow::Continue(())
    };
    let how = Warm::new().threads(3).chunk(6 << 20);
    // SAFETY: the memory outlives the cache's use of it, and no transfer is made.
    let bytes = unsafe { cache.warm_with(memory.address, BYTES, Access::LOCAL, &how, progress) }.unwrap();
    // Two pieces of 32 MiB, and seven chunks.
    assert_eq!((bytes, last, calls), (BYTES as u64, 2 * BYTES as u64, 2 + 7));
    assert_eq!((pins::pinned(), cache.usage().regions, cache.counters().attempts), (PAGES, 7, 7));
    // SAFETY: the memory outlives the lease, and no transfer is made.
    let lease = unsafe { cache.acquire(memory.address, BYTES, Access::LOCAL) }.unwrap();
    assert_eq!((lease.segments().count(), cache.counters().attempts), (7, 7));
    drop((lease, cache));
    pins::comes_to(0);
}

#[test]
fn cache_of_one_segment_registers_one_region() {
    let _alone = alone();
    let Some((_ring, cache)) = cache(2 * PAGES, Some(1)) else { return };
    let memory = Memory::new(BYTES).without_huge_pages();
    assert_eq!(memory.warm(&cache, &Warm::new().threads(2).chunk(1 << 20)).unwrap(), BYTES as u64);
    assert_eq!((cache.usage().regions, pins::pinned()), (1, PAGES));
}

#[test]
fn progress_can_stop_it() {
    let _alone = alone();
    let Some((_ring, cache)) = cache(2 * PAGES, None) else { return };
    let memory = Memory::new(BYTES);
    let how = Warm::new().threads(1).chunk(1 << 20).prefault(false);
    let until = |done, _| if done < 3 << 20 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    // SAFETY: the memory outlives the cache's use of it, and no transfer is made.
    let bytes = unsafe { cache.warm_with(memory.address, BYTES, Access::LOCAL, &how, until) }.unwrap();
    // The thread may have begun others by then.
    assert!(bytes >= 3 << 20 && bytes == cache.usage().pages * PAGE, "{bytes}");
}

#[test]
fn errors_name_the_first_bad_page() {
    let _alone = alone();
    let Some((_ring, cache)) = cache(2 * PAGES, None) else { return };
    let memory = Memory::new(BYTES);
    let at = 1234 * PAGE as usize;
    // SAFETY: the page is this test's own, and no reference leads to it.
    let hole = unsafe { memory.address.add(at) };
    // SAFETY: the five pages are this test's own, and no reference leads to them.
    assert_eq!(unsafe { libc::munmap(hole.cast(), 5 * PAGE as usize) }, 0);
    let error = memory.warm(&cache, &Warm::new().threads(2)).unwrap_err();
    assert!(matches!(error, WarmError::Page { address, .. } if address == hole as u64), "{error}");
    assert!(error.to_string().contains(&format!("{hole:?}")), "{error}");
    let error = memory.warm(&cache, &Warm::new().prefault(false)).unwrap_err();
    assert!(matches!(error, WarmError::Acquire(_)), "{error}");
    // SAFETY: no memory is registered, because there are no bytes.
    let empty =
        unsafe { cache.warm_with(memory.address, 0, Access::LOCAL, &Warm::new(), |_, _| ControlFlow::Continue(())) };
    assert!(empty.is_err());
}

/// Minor faults of this process so far.
fn faults() -> u64 {
    // SAFETY: the structure is plain numbers, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    usage.ru_minflt as u64
}

/// Prints the README's figures: fresh memory by one call, one thread, two, and with huge pages, best of some rounds. `WARM_MIB` and
/// `WARM_ROUNDS` set the size and the rounds.
#[test]
#[ignore = "takes a while; prints figures"]
fn long_form() {
    let _alone = alone();
    let number = |name: &str, or: usize| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let (bytes, rounds) = (number("WARM_MIB", 2048) << 20, number("WARM_ROUNDS", 3));
    let chunk = (bytes / 8) as u64;
    let ways: [(&str, Option<Warm>); 4] = [
        ("one call", None),
        ("warm_with, 1 thread", Some(Warm::new().threads(1).chunk(chunk))),
        ("warm_with, 2 threads", Some(Warm::new().threads(2).chunk(chunk))),
        ("warm_with, 2 threads, huge pages", Some(Warm::new().threads(2).chunk(chunk).huge(true))),
    ];
    let mut best = [Duration::MAX; 4];
    let mut faulted = [0; 4];
    for _ in 0..rounds {
        for (nth, (_, how)) in ways.iter().enumerate() {
            let Some((_ring, cache)) = cache(2 * bytes as u64 / PAGE, None) else { return };
            let memory = Memory::new(bytes);
            let (begun, before) = (Instant::now(), faults());
            match how {
                None => {
                    // SAFETY: the memory outlives the cache's use of it, and no transfer is made.
                    drop(unsafe { cache.acquire(memory.address, bytes, Access::LOCAL) }.unwrap());
                }
                Some(how) => assert_eq!(memory.warm(&cache, how).unwrap(), bytes as u64),
            }
            best[nth] = best[nth].min(begun.elapsed());
            faulted[nth] = faults() - before;
        }
    }
    for (nth, (name, _)) in ways.iter().enumerate() {
        let part = best[nth].as_secs_f64() / best[0].as_secs_f64();
        println!("{name}: {:.2} s, {part:.2} of one call; {} minor faults", best[nth].as_secs_f64(), faulted[nth]);
    }
}
