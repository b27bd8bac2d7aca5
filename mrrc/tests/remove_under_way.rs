//! A discard of shared memory that began before the memory was watched.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]
#![allow(unsafe_code, reason = "memory is mapped and discarded by address")]

use mrrc::invalidation::Userfaultfd;
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// So much takes the kernel some milliseconds to discard.
const BYTES: usize = 64 << 20;
const PAGE: usize = 4096;
const ATTEMPTS: usize = 20;

#[test]
fn unnoticed_shared_discard_is_not_cached() {
    let monitor = match Userfaultfd::new() {
        Ok(monitor) => monitor,
        Err(error) => return println!("not run: {error}"),
    };
    let cache = Cache::builder(NoopRegistrar::default())
        .ignore_environment()
        .capacity_pages(64)
        .monitor(monitor)
        .build()
        .unwrap();
    for _ in 0..ATTEMPTS {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: `mmap` without a place makes a mapping that touches no other memory.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let (address, state) = (memory as usize, AtomicU32::new(0));
        // SAFETY: `warm` restricts uses of the memory during later transfers; this test makes none.
        let warm = || unsafe { cache.warm((address + BYTES - PAGE) as *const u8, PAGE, Access::LOCAL) };
        let mut under_way = false;
        std::thread::scope(|threads| {
            threads.spawn(|| {
                state.store(1, Ordering::SeqCst);
                // SAFETY: no reference leads into the mapping.
                let done = unsafe { libc::madvise(address as *mut libc::c_void, BYTES, libc::MADV_REMOVE) };
                state.store(2, Ordering::SeqCst);
                assert_eq!(done, 0, "MADV_REMOVE");
            });
            while state.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(500));
            warm().unwrap();
            under_way = state.load(Ordering::SeqCst) == 1;
        });
        let (attempts, begun) = (cache.counters().attempts, Instant::now());
        warm().unwrap();
        assert_eq!(cache.counters().attempts, attempts + 1, "pages that are gone may have been found");
        // It is cached in the end.
        let hits = || cache.counters().decisions.hits();
        let before = hits();
        while hits() == before {
            assert!(begun.elapsed() < Duration::from_secs(120), "not cached after a moment");
            std::thread::sleep(Duration::from_millis(20));
            warm().unwrap();
        }
        // SAFETY: the mapping is this test's, and is not used afterwards.
        unsafe { libc::munmap(memory, BYTES) };
        if under_way {
            return;
        }
    }
    println!("not shown: the discard was always over before");
}
