//! Several caches over the same memory, and one userfaultfd: all of them cache, and all of them hear of changes.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "memory is mapped by address, and acquired for no transfer")]

use mrrc::cache::{Builder, Finding};
#[path = "common/by_hand.rs"]
mod by_hand;

use by_hand::ByHand;
use mrrc::invalidation::{Unwatched, Userfaultfd};
use mrrc::testing::NoopRegistrar;
use mrrc::{Access, Cache, PAGE};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BYTES: usize = 16 * PAGE as usize;

fn builder() -> Builder<NoopRegistrar> {
    Cache::builder(NoopRegistrar::default()).capacity_pages(1024).ignore_environment()
}

/// Runs one test at a time, because caches share the process's monitor by default; prints a line if none can run.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Userfaultfd::new() {
        Ok(_) => Some(alone),
        Err(error) => {
            println!("not run: {error}");
            None
        }
    }
}

struct Memory(*mut u8);

impl Memory {
    fn new() -> Self {
        Self::at(std::ptr::null_mut(), 0)
    }

    fn at(address: *mut u8, flags: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, or one in the place of a mapping of the caller's.
        let mapped = unsafe { libc::mmap(address.cast(), BYTES, protection, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Self(mapped.cast())
    }

    /// Other pages at the same address.
    fn remap(&self) {
        std::mem::forget(Self::at(self.0, libc::MAP_FIXED));
    }

    /// Returns whether nothing was registered for it.
    fn hits(&self, cache: &Cache<NoopRegistrar>) -> bool {
        let before = cache.counters().attempts;
        // SAFETY: `acquire` restricts uses of the memory during transfers; this test makes none.
        drop(unsafe { cache.acquire(self.0, BYTES, Access::LOCAL) }.unwrap());
        cache.counters().attempts == before
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.0.cast(), BYTES) };
    }
}

#[track_caller]
fn both_cache_and_hear([first, second]: [&Cache<NoopRegistrar>; 2]) {
    let memory = Memory::new();
    for _ in 0..3 {
        for cache in [first, second] {
            assert!(!memory.hits(cache) && memory.hits(cache));
            assert_eq!(cache.counters().unwatched, 0);
        }
        memory.remap();
    }
    assert!(!memory.hits(second) && !memory.hits(first));
}

#[test]
fn default_caches_share_the_monitor() {
    let Some(_alone) = alone() else { return };
    let (first, second) = (builder().build().unwrap(), builder().build().unwrap());
    both_cache_and_hear([&first, &second]);
    drop(first);
    let third = builder().build().unwrap();
    both_cache_and_hear([&third, &second]);
}

#[test]
fn cloned_monitors_share_changes() {
    let Some(_alone) = alone() else { return };
    let monitor = Userfaultfd::new().unwrap();
    let first = builder().monitor(monitor.clone()).build().unwrap();
    let second = builder().monitor(monitor).build().unwrap();
    both_cache_and_hear([&first, &second]);
    let stranger = builder().monitor(Userfaultfd::new().unwrap()).build().unwrap();
    let memory = Memory::new();
    assert!(!memory.hits(&first) && memory.hits(&first));
    assert!(!memory.hits(&stranger) && !memory.hits(&stranger) && stranger.counters().unwatched == 2);
    let why = stranger.explain(memory.0, BYTES, Access::LOCAL);
    let taken = |finding: &Finding| matches!(finding, Finding::Unwatched { why: Unwatched::Taken, .. });
    assert!(why.findings().iter().any(taken) && why.to_string().contains("share one"), "{why}");
}

#[test]
fn a_cache_that_goes_leaves_the_others_watched() {
    let Some(_alone) = alone() else { return };
    let (first, second) = (builder().build().unwrap(), builder().build().unwrap());
    let memory = Memory::new();
    for _ in 0..100 {
        let passing = builder().build().unwrap();
        assert!(!memory.hits(&passing));
        drop(passing);
    }
    assert!(!memory.hits(&first) && !memory.hits(&second));
    drop(first);
    assert!(memory.hits(&second));
    memory.remap();
    assert!(!memory.hits(&second) && memory.hits(&second));
}

#[test]
fn the_last_one_ends_it_and_the_next_begins_anew() {
    let Some(_alone) = alone() else { return };
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
        names.filter_map(|task| name(task).ok()).filter(|name| name.trim() == "mrrc-monitor").count()
    };
    let memory = Memory::new();
    for _ in 0..3 {
        let caches: Vec<_> = (0..5).map(|_| builder().build().unwrap()).collect();
        assert_eq!(threads(), 1);
        for cache in &caches {
            assert!(!memory.hits(cache) && memory.hits(cache));
        }
        drop(caches);
        let end = Instant::now() + Duration::from_secs(120);
        while threads() > 0 {
            assert!(Instant::now() < end, "the thread is still there");
            std::thread::yield_now();
        }
        // The reader has stopped: this would wait for ever if anything were still registered.
        memory.remap();
    }
    // One that is never started counts as well, until it is dropped.
    let spare = Userfaultfd::of_process().unwrap();
    drop(builder().build().unwrap());
    assert_eq!(threads(), 1);
    let late = builder().monitor(spare).build().unwrap();
    assert!(!memory.hits(&late) && memory.hits(&late));
}

#[test]
fn a_clone_of_what_has_ended_says_so() {
    let Some(_alone) = alone() else { return };
    let monitor = Userfaultfd::new().unwrap();
    let cache = builder().monitor(monitor.clone()).build().unwrap();
    drop((monitor.clone(), cache));
    let cache = builder().monitor(monitor).build().expect("the first kept it");
    let memory = Memory::new();
    assert!(!memory.hits(&cache) && memory.hits(&cache));
    let ended = Userfaultfd::new().unwrap();
    drop(builder().monitor(ended.clone()).build().unwrap());
    ended.stop();
    drop(builder().monitor(ended).build().expect("not started, so not stopped"));
}

#[test]
fn a_child_has_one_of_its_own() {
    let Some(_alone) = alone() else { return };
    let cache = builder().build().unwrap();
    let memory = Memory::new();
    assert!(!memory.hits(&cache));
    // SAFETY: the child leaves by `_exit`; the test runs alone, so no lock is held by a thread that it lacks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let works = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let own = builder().build().unwrap();
            let inherited = cache.explain(memory.0, BYTES, Access::LOCAL);
            assert!(!inherited.is_hit() && !memory.hits(&own) && memory.hits(&own));
            memory.remap();
            assert!(!memory.hits(&own));
        }));
        // SAFETY: ends the child, whose test is over.
        unsafe { libc::_exit(if works.is_ok() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: writes the status, which lives through the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
    assert!(memory.hits(&cache));
    memory.remap();
    assert!(!memory.hits(&cache));
}

#[test]
fn caches_come_and_go_while_memory_changes() {
    let Some(_alone) = alone() else { return };
    let steady = builder().build().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..100 {
                let passing = builder().build().unwrap();
                let memory = Memory::new();
                for _ in 0..5 {
                    assert!(!memory.hits(&passing));
                    memory.remap();
                }
            }
            over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let memory = Memory::new();
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            assert!(!memory.hits(&steady), "nothing stale");
            memory.remap();
        }
    });
}
